//! The keys of the configuration file, by tables.
//!
//! Guarantee: a key has no type, no default and no help of its own. It names an option of `onefold serve`, and those are
//! the option's.

use clap::{ArgMatches, Args, FromArgMatches};

use crate::options::ServeArgs;

/// How a value is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text in quotes.
    Text,
    /// Texts in quotes, in brackets.
    Texts,
    /// `true` or `false`.
    Switch,
    /// A whole number.
    Number,
    /// Whole numbers in brackets.
    Numbers,
    /// A size in quotes, or a number of bytes.
    Size,
    /// A time in quotes.
    Time,
}

impl Kind {
    /// What to write.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::Text => "write a text in quotes",
            Self::Texts => "write texts in quotes in brackets, such as [\"tcp://192.0.2.5:4420\"]",
            Self::Switch => "write true or false",
            Self::Number => "write a whole number without quotes",
            Self::Numbers => "write whole numbers in brackets, such as [80, 90, 95]",
            Self::Size => "write a size in quotes, such as \"4G\"",
            Self::Time => "write a time in quotes, such as \"30s\"",
        }
    }
}

/// A key of the file.
pub(crate) struct Key {
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The field of [`ServeArgs`], which clap knows by its last part.
    field: &'static str,
    /// Whether two configurations have the same value here.
    pub(crate) is_same: fn(&ServeArgs, &ServeArgs) -> bool,
    /// Gives the first one the value of the second.
    pub(crate) take: fn(&mut ServeArgs, &ServeArgs),
    /// What could be there, where the default depends on the machine.
    pub(crate) sample: Option<&'static str>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.table, self.name)
    }
}

impl Key {
    /// The name of the option in clap.
    pub(crate) fn id(&self) -> &'static str {
        self.field.rsplit('.').next().unwrap_or(self.field)
    }

    /// Whether a reload can apply it; everything else waits for a restart.
    pub(crate) fn is_live(&self) -> bool {
        APPLIED.contains(&self.field)
    }

    /// Whether a reload from one to the other applies it. TLS of HTTP begins and ends with the listener. Addresses are added and removed by name: what the
    /// default stands for depends on the machine and the pool, and is found out at the start.
    pub(crate) fn is_applied(&self, running: &ServeArgs, wanted: &ServeArgs) -> bool {
        let by_default = running.listen.is_empty() || wanted.listen.is_empty();
        let has_tls = |args: &ServeArgs| args.http.http_tls_certificate.is_some();
        let begins_or_ends_tls = has_tls(running) != has_tls(wanted);
        self.is_live()
            && !(self.field == LISTEN && by_default)
            && !(CERTIFICATE.contains(&self.field) && begins_or_ends_tls)
    }

    /// The option as it stands on a command line, without the dashes before it.
    pub(crate) fn option(&self) -> String {
        self.id().replace('_', "-")
    }
}

/// The tables, and what stands in them.
pub(crate) const TABLES: [(&str, &str); 11] = [
    ("pool", "The pool that is served."),
    ("listen", "Where hosts come in."),
    ("tls", "Protection of connections over TCP."),
    ("limits", "What hosts may take."),
    ("timeouts", "Timeouts of TCP connections and drives."),
    ("memory", "Memory of the daemon."),
    ("reactors", "Data-plane threads."),
    (
        "api",
        "The pool's control socket, which the command line uses.",
    ),
    ("http", "HTTP for Prometheus, scripts and browsers."),
    ("telemetry", "Metrics for an OpenTelemetry collector."),
    ("log", "What is logged to standard error."),
];

/// The fields of [`ServeArgs`] that a reload applies. Everything else is read once, when the daemon starts.
const APPLIED: [&str; 11] = [
    "log",
    "tls",
    "warn_at",
    LISTEN,
    "bounds.queue_share",
    "bounds.host_share",
    "bounds.handshake_timeout",
    "bounds.stall_timeout",
    "bounds.stall_timeout_short",
    CERTIFICATE[0],
    CERTIFICATE[1],
];

/// By which HTTP proves who it is.
const CERTIFICATE: [&str; 2] = ["http.http_tls_certificate", "http.http_tls_key"];

/// The addresses.
const LISTEN: &str = "listen";

/// Options that are acts, done once, and not settings.
pub(crate) const ACTS: [&str; 6] = [
    "create",
    "fingerprint",
    "redundancy",
    "drive",
    "volume",
    "force",
];

macro_rules! key {
    ($table:literal, $name:literal, $kind:ident, $($field:ident).+) => {
        key!($table, $name, $kind, $($field).+, None)
    };
    ($table:literal, $name:literal, $kind:ident, $($field:ident).+, sample $sample:literal) => {
        key!($table, $name, $kind, $($field).+, Some($sample))
    };
    ($table:literal, $name:literal, $kind:ident, $($field:ident).+, $sample:expr) => {
        Key {
            table: $table,
            name: $name,
            kind: Kind::$kind,
            field: stringify!($($field).+),
            sample: $sample,
            is_same: |one, other| one.$($field).+ == other.$($field).+,
            take: |to, from| to.$($field).+.clone_from(&from.$($field).+),
        }
    };
}

/// The keys, in the order of [`TABLES`].
pub(crate) static KEYS: [Key; 40] = [
    key!("pool", "dir", Text, pool, sample "\"/srv/pool\""),
    key!("pool", "warn_at", Numbers, warn_at),
    key!("pool", "join", Switch, join),
    key!("listen", "addresses", Texts, listen, sample "[\"rdma://192.0.2.5:4420\", \"tcp://192.0.2.5:4420\"]"),
    key!("listen", "mdns", Switch, mdns),
    key!("listen", "tcp_pacing", Switch, tcp_pacing),
    key!("listen", "strict_icrc", Switch, strict_icrc),
    key!("tls", "mode", Text, tls),
    key!("limits", "hosts", Number, bounds.hosts, sample "1024"),
    key!("limits", "io_queues", Number, bounds.io_queues, sample "128"),
    key!("limits", "queue_depth", Number, bounds.queue_depth, sample "256"),
    key!("limits", "in_capsule", Size, bounds.in_capsule),
    key!("limits", "queue_share", Number, bounds.queue_share),
    key!("limits", "host_share", Number, bounds.host_share),
    key!(
        "limits",
        "rdma_shared_receives",
        Number,
        bounds.rdma_shared_receives
    ),
    key!("limits", "tcp_connections", Number, bounds.tcp_connections, sample "4096"),
    key!("timeouts", "handshake", Time, bounds.handshake_timeout),
    key!("timeouts", "stall", Time, bounds.stall_timeout),
    key!("timeouts", "stall_short", Time, bounds.stall_timeout_short),
    key!("timeouts", "drive", Time, bounds.drive_timeout),
    key!("timeouts", "hedge", Time, bounds.hedge_after),
    key!("timeouts", "drive_return", Time, bounds.drive_return),
    key!("memory", "buffers", Size, buffers),
    key!("memory", "buffer_memory", Text, buffer_memory),
    key!("memory", "metadata_cache", Size, metadata_cache),
    key!("memory", "index", Size, index_memory, sample "\"16G\""),
    key!("memory", "tcp_capsules", Size, bounds.tcp_capsules),
    key!("memory", "rdma_capsules", Size, bounds.rdma_capsules),
    key!("reactors", "count", Number, reactors, sample "4"),
    key!("reactors", "spin", Time, spin),
    key!("api", "group", Text, http.api_group, sample "\"onefold\""),
    key!("http", "listen", Text, http.http, sample "\"127.0.0.1:8420\""),
    key!("http", "names", Texts, http.http_name, sample "[\"storage.example.org\"]"),
    key!("http", "tls_certificate", Text, http.http_tls_certificate, sample "\"/etc/onefold/http.crt\""),
    key!("http", "tls_key", Text, http.http_tls_key, sample "\"/etc/onefold/http.key\""),
    key!("http", "clear_text", Switch, http.http_clear_text),
    key!("telemetry", "otlp_endpoint", Text, telemetry.otlp_endpoint, sample "\"http://127.0.0.1:4318\""),
    key!("telemetry", "otlp_interval", Time, telemetry.otlp_interval),
    key!("log", "filter", Text, log),
    key!("log", "format", Text, log_format),
];

/// The keys of a table.
pub(crate) fn of_table(table: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.table == table)
}

/// The options of `onefold serve` alone, as clap has them.
pub(crate) fn options() -> clap::Command {
    let options = ServeArgs::augment_args(clap::Command::new("serve").no_binary_name(true));
    // The file is about what is written in it, and not about who reads it.
    options.mut_args(|arg| arg.env(clap::builder::Resettable::Reset))
}

/// What options say that are written as on a command line.
///
/// # Errors
/// As for a command line.
pub(crate) fn parse_options(words: &[String]) -> Result<ServeArgs, clap::Error> {
    let matches: ArgMatches = options().try_get_matches_from(words)?;
    ServeArgs::from_arg_matches(&matches)
}
