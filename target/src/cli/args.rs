//! The command line: names, arguments, help. Outside scripts rely on these names.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bench::perf::Pattern;
use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand};
use dedup::METADATA_CACHE_BYTES_MIN;
use fabric::{TlsMode, TransportAddress};
use meta::{
    Compression, FingerprintFunction, UnknownCompression, UnknownFingerprintFunction, VerifyPolicy,
};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::ana::AnaCommand;
use super::bench::BenchCommand;
use super::bounds::BoundsArgs;
use super::config::ConfigCommand;
use super::drive::DriveCommand;
use super::estimate::EstimateArgs;
use super::host::{HostCommand, IdentityArgs, TlsArgs};
use super::listener::ListenerCommand;
use super::logging::{LOG_VARIABLE, parse_filter};
use super::reservation::ReservationCommand;
use super::scrub::ScrubCommand;
use super::subsystem::{NamespaceCommand, ReferralCommand, SubsystemCommand};
use crate::size::{SizeError, parse_size};
use crate::time::parse_spin;

/// The pool that every command uses when none is named.
pub const DEFAULT_POOL: &str = "./onefold-data";

/// The variable that names the pool of commands whose line does not.
pub const POOL_VARIABLE: &str = "ONEFOLD_POOL";

/// The folder of a pool in memory when none is named.
pub const DEFAULT_MEMORY_POOL: &str = "./onefold-memory";

/// What `--drive` calls memory.
const MEMORY: &str = "memory";

/// Onefold: an NVMe-oF target that stores every block once.
#[derive(Debug, Parser)]
#[command(
    name = "onefold",
    version,
    about,
    long_about = None,
    after_help = "Examples:\n  onefold serve\n  onefold status\n  onefold volume create backup --size 1T\n\n\
                  Sizes are bytes, or a number with k, M, G or T (binary).\n\
                  ONEFOLD_POOL names the pool of commands without --pool (default: ./onefold-data).\n\
                  ONEFOLD_LOG sets what is logged to standard error (default: info)."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open a pool and serve its volumes to hosts, in the foreground
    Serve(Box<ServeArgs>),
    /// Check, print and reload the configuration file of `onefold serve`
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Create, list, show, resize and delete volumes of a running daemon
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// List and add drives of a running daemon
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Create, list, show, change and delete subsystems of a running daemon, and say who may use them
    #[command(subcommand)]
    Subsystem(SubsystemCommand),
    /// Make volumes namespaces of subsystems, and say how they are shown
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Keep keys by which hosts authenticate, and make some
    #[command(subcommand)]
    Host(HostCommand),
    /// Add, remove and list listeners of a running daemon
    #[command(subcommand)]
    Listener(ListenerCommand),
    /// Tell hosts of other discovery services
    #[command(subcommand)]
    Referral(ReferralCommand),
    /// Show and set how listeners reach namespaces: which paths hosts use
    #[command(subcommand)]
    Ana(AnaCommand),
    /// Show and clear reservations of a running daemon's volumes
    #[command(subcommand)]
    Reservation(ReservationCommand),
    /// Show a running daemon's volumes, attached hosts and space
    Status(StatusArgs),
    /// Read all data of a running daemon in the background, and prove it
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Check and repair a pool
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Ask a target which subsystems it offers
    Discover(DiscoverArgs),
    /// Load a target over its network interface, verify the data, and report like fio
    Perf(PerfArgs),
    /// Measure this machine: the engine beside the machine's own limits
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Tell what deduplication and compression would save on files, folders or devices; only reads
    Estimate(EstimateArgs),
}

/// Headings of the options of `onefold serve`.
const POOL_HEADING: &str = "Pool";
const LISTENERS_HEADING: &str = "Listeners";
const MACHINE_HEADING: &str = "This machine";

/// `onefold serve`
#[derive(Clone, Debug, PartialEq, Args)]
#[command(
    after_help = "Examples:\n  onefold serve --config /etc/onefold/onefold.toml\n  \
                  onefold serve --pool /srv/pool --create 500G \\\n      \
                  --volume vm=200G --volume db=100G,lba=512,verify=compare\n  \
                  onefold serve --pool /srv/pool --create 0 --listen tcp://192.0.2.5:4420 \\\n      \
                  --drive /dev/nvme0n1 --drive /dev/nvme1n1\n\n\
                  It prints a line that begins with 'ready' when hosts can connect. Ctrl-C,\n\
                  SIGTERM and closing the terminal stop it cleanly. Without a terminal SIGHUP\n\
                  is a reload: the configuration file is read again, and kept listeners that\n\
                  were not there are tried again."
)]
pub struct ServeArgs {
    /// TOML file of options; options given here override it
    ///
    /// `onefold config example` prints one with every key and its default, `onefold config check FILE` explains its
    /// mistakes. What neither the command line nor the file says has the default that is shown here.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The pool's folder [default: ./onefold-data, created when missing]
    #[arg(long, value_name = "DIR", env = POOL_VARIABLE, hide_env_values = true, help_heading = POOL_HEADING)]
    pub pool: Option<PathBuf>,
    /// Create the pool if it is missing
    ///
    /// SIZE is the size of each drive file that names none itself.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = POOL_HEADING)]
    pub create: Option<u64>,
    /// Fingerprints of a new pool [default: clnh where the processor can]
    ///
    /// Both need the pool's secret key to find a collision. clnh is several times as fast; blake3 resists even
    /// somebody who has the key.
    #[arg(long, value_name = "clnh|blake3", value_parser = parse_fingerprint, help_heading = POOL_HEADING)]
    pub fingerprint: Option<FingerprintFunction>,
    /// A drive of a new pool, a file or a block device (repeatable) [default: a sparse file in the pool's folder]
    ///
    /// memory=SIZE is a pool for measurements, in ./onefold-memory without --pool: nothing is kept.
    #[arg(long = "drive", value_name = "PATH[=SIZE]", help_heading = POOL_HEADING)]
    pub drives: Vec<DriveArg>,
    /// Create this volume if it is missing (repeatable) [default: vol0 in a new pool, as large as the pool]
    ///
    /// Options, each after a comma: lba=512, dedup=off, compression=lz4 or zstd, verify=compare or background,
    /// domain=NAME, uuid=UUID. `onefold volume create --help` tells what they mean.
    #[arg(long = "volume", value_name = "NAME=SIZE[,OPTION...]", help_heading = POOL_HEADING)]
    pub volumes: Vec<VolumeArg>,
    /// Warn when the pool is this full, in percent
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "80,90,95", value_parser = clap::value_parser!(u8).range(1..=100), help_heading = POOL_HEADING)]
    pub warn_at: Vec<u8>,
    /// Serve on this address (repeatable) [default: RDMA and TCP on port 4420 of every address]
    ///
    /// rdma:// takes a verbs device that owns the address, or else soft RoCE; rdma+verbs:// and rdma+soft:// insist on
    /// one of them.
    #[arg(long = "listen", value_name = "tcp|rdma://ADDR:PORT", help_heading = LISTENERS_HEADING)]
    pub listen: Vec<TransportAddress>,
    /// Whether hosts come by TLS: off, allowed or required
    ///
    /// For TCP listeners of --listen, and those without it. `onefold host tls-key add` keeps hosts' keys.
    #[arg(long, value_name = "MODE", default_value_t, help_heading = LISTENERS_HEADING)]
    pub tls: TlsMode,
    /// Announce the discovery service on the local network by mDNS
    ///
    /// As _nvme-disc._tcp, for hosts that look for it there.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = LISTENERS_HEADING)]
    pub mdns: bool,
    /// TCP: keep the system's congestion control also where that is BBR
    ///
    /// BBR sends by a timer: that is for hosts far away. Without this option connections use CUBIC there, which costs
    /// far less on short paths.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = LISTENERS_HEADING)]
    pub tcp_pacing: bool,
    /// Soft RoCE: check all 32 bits of every IPv4 packet's ICRC
    ///
    /// Without this option those 16 are checked that a UDP socket lets one check. It needs CAP_NET_RAW and costs a
    /// second receive of each packet.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = LISTENERS_HEADING)]
    pub strict_icrc: bool,
    /// Take this drive for a new pool whatever it holds: what is there is LOST (repeatable; the path as after --drive)
    #[arg(long, value_name = "PATH")]
    pub force: Vec<PathBuf>,
    /// Memory for data on its way between hosts and drives, for all threads together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M", help_heading = MACHINE_HEADING)]
    pub buffers: u64,
    /// Memory for the maps of volumes and for what is known of blocks, at least 8M
    ///
    /// What does not fit is read from the pool's folder when it is needed.
    #[arg(long, value_name = "SIZE", value_parser = parse_metadata_cache, default_value = "1G", help_heading = MACHINE_HEADING)]
    pub metadata_cache: u64,
    /// Memory for the index that finds blocks by their content [default: half of this machine's]
    ///
    /// It takes about 10 bytes a unique 4 KiB block. What has no room is found through the pool's folder, slower.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = MACHINE_HEADING)]
    pub index_memory: Option<u64>,
    /// Data-plane threads [default: one for each core, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64).map(usize::from), help_heading = MACHINE_HEADING)]
    pub reactors: Option<usize>,
    /// How long an idle data-plane thread polls before it sleeps, at most 1ms
    ///
    /// Where polling has not paid lately it hardly does. More saves wake-ups of lone commands, 0 saves the most
    /// processor time.
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_spin, help_heading = MACHINE_HEADING)]
    pub spin: Duration,
    /// What is logged to standard error
    ///
    /// A level, and behind commas levels of parts, such as info,dedup=debug. ONEFOLD_LOG is the same as a variable.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = parse_filter, env = LOG_VARIABLE, hide_env = true, help_heading = MACHINE_HEADING)]
    pub log: String,
    /// What hosts may take.
    #[command(flatten)]
    pub bounds: BoundsArgs,
}

impl ServeArgs {
    /// What no value shows alone.
    ///
    /// # Errors
    /// Says which values do not go together.
    pub fn check(&self) -> Result<(), String> {
        TransportAddress::distinct(&self.listen).map_err(|error| error.to_string())?;
        if !self.warn_at.is_sorted() {
            return Err("the percentages to warn at must rise, such as 80, 90 and 95".to_owned());
        }
        Ok(())
    }
}

/// Parses the memory for metadata.
fn parse_metadata_cache(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match bytes < METADATA_CACHE_BYTES_MIN {
        true => Err(format!("'{text}' is too little: 8M is the least")),
        false => Ok(bytes),
    }
}

/// `NAME=SIZE[,lba=512|4096][,dedup=on|off][,compression=off|lz4|zstd]
/// [,verify=trust|compare|background][,domain=NAME][,uuid=UUID]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeArg {
    /// The volume's name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes of a logical block as hosts see it: 512 or 4096.
    pub lba_bytes: u32,
    /// Whether its blocks are deduplicated.
    pub dedup: bool,
    /// How new contents are stored.
    pub compression: Compression,
    /// What a write does about a block that has the fingerprint of new data.
    pub verify: VerifyPolicy,
    /// Its domain; empty for the pool's own.
    pub domain: String,
    /// Its identity; a random one if it is not said.
    pub uuid: Option<Uuid>,
}

impl FromStr for VolumeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "'{text}' is not NAME=SIZE[,lba=512][,dedup=off][,compression=lz4][,verify=compare]\
                 [,domain=NAME][,uuid=UUID], such as vol0=64G"
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(usage)?;
        if name.is_empty() {
            return Err(usage());
        }
        let mut parts = rest.split(',');
        let size_bytes =
            parse_size(parts.next().unwrap_or_default()).map_err(|e: SizeError| e.to_string())?;
        let (mut lba_bytes, mut dedup, mut compression) = (4096, true, Compression::Off);
        let (mut verify, mut domain, mut uuid) = (VerifyPolicy::Trust, String::new(), None);
        for option in parts {
            match option.split_once('=') {
                Some(("lba", bytes)) => lba_bytes = parse_lba(bytes)?,
                Some(("dedup", switch)) => dedup = parse_switch(switch)?,
                Some(("compression", name)) => compression = parse_compression(name)?,
                Some(("verify", policy)) => verify = parse_verify(policy)?,
                Some(("domain", name)) => domain = name.to_owned(),
                Some(("uuid", text)) => uuid = Some(parse_uuid(text)?),
                _ => return Err(usage()),
            }
        }
        Ok(Self {
            name: name.to_owned(),
            size_bytes,
            lba_bytes,
            dedup,
            compression,
            verify,
            domain,
            uuid,
        })
    }
}

/// Parses an identity, as a UUID or as the 32 digits of an NGUID.
fn parse_uuid(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|error| {
        format!("'{text}' is neither a UUID nor an NGUID of 32 hexadecimal digits: {error}")
    })
}

/// Parses the name of a function for fingerprints.
fn parse_fingerprint(text: &str) -> Result<FingerprintFunction, String> {
    text.parse()
        .map_err(|error: UnknownFingerprintFunction| error.to_string())
}

/// Parses the name of a compression.
fn parse_compression(text: &str) -> Result<Compression, String> {
    text.parse()
        .map_err(|error: UnknownCompression| error.to_string())
}

/// Parses the name of a verify policy.
fn parse_verify(text: &str) -> Result<VerifyPolicy, String> {
    text.parse()
        .map_err(|error: meta::UnknownVerifyPolicy| error.to_string())
}

/// Parses `on` and `off`.
pub(super) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

/// Parses the bytes of a logical block.
fn parse_lba(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err(format!(
            "'{text}' is not a logical block size: use 512 or 4096"
        )),
    }
}

/// `PATH[=SIZE]` or `memory=SIZE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveArg {
    /// A file or a block device.
    Path {
        /// Where it is.
        path: PathBuf,
        /// The size to give a file that does not exist, in bytes.
        size_bytes: Option<u64>,
    },
    /// Memory that is lost at the end.
    Memory {
        /// Its size in bytes.
        size_bytes: u64,
    },
}

impl DriveArg {
    /// Whether it keeps nothing.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Memory { .. })
    }
}

impl FromStr for DriveArg {
    type Err = String;

    /// A path may hold '='; only a size after the last one is taken as a size. A file that is called
    /// memory is `./memory`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((path, size)) = text.rsplit_once('=')
            && let Ok(size_bytes) = parse_size(size)
            && !path.is_empty()
        {
            if path == MEMORY {
                return Ok(Self::Memory { size_bytes });
            }
            return Ok(Self::Path {
                path: PathBuf::from(path),
                size_bytes: Some(size_bytes),
            });
        }
        if text.is_empty() {
            return Err("a drive needs a path".to_owned());
        }
        if text == MEMORY {
            return Err("memory needs a size, such as memory=4G".to_owned());
        }
        Ok(Self::Path {
            path: PathBuf::from(text),
            size_bytes: None,
        })
    }
}

/// The pool whose daemon is asked.
#[derive(Clone, Debug, Args)]
pub struct PoolArg {
    /// The pool's folder
    #[arg(long, value_name = "DIR", default_value = DEFAULT_POOL, env = POOL_VARIABLE, hide_env_values = true)]
    pub pool: PathBuf,
}

/// The pool that is checked or repaired.
#[derive(Clone, Debug, Args)]
pub struct PoolPlace {
    /// The pool's folder, as --pool names it
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// As other commands name it.
    #[command(flatten)]
    pool: PoolArg,
}

impl PoolPlace {
    /// The pool's folder.
    ///
    /// # Errors
    /// Two different ones were named.
    pub fn dir(self) -> Result<PathBuf, Failure> {
        let Some(dir) = self.dir else {
            return Ok(self.pool.pool);
        };
        // What the variable or nobody says is no second name.
        let by_variable = std::env::var_os(POOL_VARIABLE).map(PathBuf::from);
        let unsaid = [
            Some(PathBuf::from(DEFAULT_POOL)),
            by_variable,
            Some(dir.clone()),
        ];
        match unsaid.contains(&Some(self.pool.pool.clone())) {
            true => Ok(dir),
            false => Err(Failure::invalid(format!(
                "'{}' and '{}' are two pools: name one",
                dir.display(),
                self.pool.pool.display()
            ))),
        }
    }
}

/// `onefold volume ...`
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a thin volume; attached hosts see it at once
    #[command(after_help = "Example:\n  onefold volume create db --size 100G --lba 512")]
    Create {
        /// The volume's name: up to 64 of a-z A-Z 0-9 . _ -
        name: String,
        /// Its size as hosts see it; thin, so it may exceed the pool
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Bytes of a logical block: 512 or 4096
        #[arg(long, value_name = "BYTES", value_parser = parse_lba, default_value = "4096")]
        lba: u32,
        /// Whether its blocks are deduplicated, with each other and with those of other volumes
        #[arg(long, value_name = "on|off", value_parser = parse_switch, default_value = "on", action = clap::ArgAction::Set)]
        dedup: bool,
        /// How new contents are stored: compressed ones share blocks, what does not shrink is stored as it is
        #[arg(long, value_name = "off|lz4|zstd", value_parser = parse_compression, default_value = "off")]
        compression: Compression,
        /// What a write does about a block that has the fingerprint of new data: trust it, compare it byte
        /// by byte before the write is acknowledged, or after that in the background
        #[arg(long, value_name = "trust|compare|background", value_parser = parse_verify, default_value = "trust")]
        verify: VerifyPolicy,
        /// Name of its domain: volumes share blocks only with others of the same domain
        #[arg(long, value_name = "NAME", default_value = "")]
        domain: String,
        /// The subsystem that shows it to hosts, or none [default: the default one]
        #[arg(long, value_name = "NQN|none")]
        subsystem: Option<String>,
        /// Its identity, which hosts see as UUID and NGUID; for restores [default: a random one]
        #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
        uuid: Option<Uuid>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    #[command(after_help = "Example:\n  onefold volume list --json")]
    List {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one volume
    #[command(after_help = "Example:\n  onefold volume show vol0")]
    Show {
        /// The volume's name
        name: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a volume's size; attached hosts see it at once
    #[command(after_help = "Example:\n  onefold volume resize vol0 --size 128G\n\n\
                            Making a volume smaller discards what lies behind its new end, and asks for --shrink.")]
    Resize {
        /// The volume's name
        name: String,
        /// Its new size
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Allow the new size to be smaller: the data behind it is lost
        #[arg(long)]
        shrink: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a volume and its data, for good
    #[command(
        after_help = "Example:\n  onefold volume delete old --yes\n\nIt asks first. Where there is no terminal to ask on it takes --yes."
    )]
    Delete {
        /// The volume's name
        name: String,
        /// Do not ask: there is no way back
        #[arg(long)]
        yes: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `onefold status`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  onefold status --pool /srv/pool --json")]
pub struct StatusArgs {
    /// The daemon's pool.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Count first what volumes have alone and what they share, instead of showing the last figures
    #[arg(long)]
    pub survey: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onefold pool ...`
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Prove a pool consistent: exit 0 consistent, 2 inconsistent, 1 could not run
    #[command(
        after_help = "Example:\n  onefold pool check --pool ./onefold-data\n\n\
                            The pool must not be served at the time, unless --online is given."
    )]
    Check {
        /// The pool.
        #[command(flatten)]
        place: PoolPlace,
        /// Also read every stored block and compare its checksum
        #[arg(long, conflicts_with = "online")]
        data: bool,
        /// Ask the daemon that serves the pool: proves its counts against its maps, and stops nothing
        #[arg(long)]
        online: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a pool's metadata (not its data) to a new folder, also while it is served
    #[command(
        after_help = "Example:\n  onefold pool backup /backups/pool-monday --pool ./onefold-data\n\n\
                            Data stay on the drives; without the metadata nobody finds them. Make a backup after every\n\
                            change of volumes and settings and as often as you can, on another drive, and keep it secret:\n\
                            it holds the pool's keys. Should the pool's folder be lost, serve the newest backup instead:\n\
                            `onefold serve --pool /backups/pool-monday` uses the same drives.\n\
                            It shows the pool as it was: what was written since is lost, and what the backup refers to\n\
                            and the drives use for something else by now reads as an error; `onefold pool check --data`\n\
                            lists it. Never serve a backup while the pool itself is whole: both write to the same drives."
    )]
    Backup {
        /// The backup's folder, which must not be there, or be empty
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// The pool.
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Make an inconsistent pool consistent: exit 0 consistent now, 2 still inconsistent, 1 could not run
    #[command(
        after_help = "Example:\n  onefold pool repair --pool ./onefold-data\n\n\
                            It says what it will do and asks. Every row that it changes is kept in a file in the pool's\n\
                            folder. Data that cannot be proven to be right reads as an error afterwards, never as\n\
                            zeros; its ranges are listed. The pool must not be served at the time."
    )]
    Repair {
        /// The pool.
        #[command(flatten)]
        place: PoolPlace,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Print JSON; without --yes it only says what it would do
        #[arg(long)]
        json: bool,
    },
}

/// `onefold discover`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold discover tcp://192.0.2.5:4420\n  onefold discover rdma://192.0.2.5:4420\n  \
                  onefold discover tcp://192.0.2.5:4420 --hostnqn HOSTNQN --tls-key-file host.tls"
)]
pub struct DiscoverArgs {
    /// The target
    #[arg(value_name = "tcp|rdma://ADDR:PORT")]
    pub address: TransportAddress,
    /// Ask as this host [default: one that nobody has seen before]
    #[arg(long, value_name = "NQN")]
    pub hostnqn: Option<nvme::Nqn>,
    /// How the connection is protected.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tcp://ADDR:PORT/SUBSYSTEM-NQN`, or `rdma://...`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemAddress {
    /// Where the target listens.
    pub address: TransportAddress,
    /// The subsystem's NQN.
    pub nqn: nvme::Nqn,
}

impl FromStr for SubsystemAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "'{text}' is not tcp://ADDR:PORT/SUBSYSTEM-NQN or rdma://..., such as tcp://127.0.0.1:4420/{}",
                subsystem::DEFAULT_SUBSYSTEM_NQN
            )
        };
        let authority_at = text.find("://").ok_or_else(usage)? + 3;
        let slash = text[authority_at..].find('/').ok_or_else(usage)? + authority_at;
        let address = text[..slash]
            .parse::<TransportAddress>()
            .map_err(|e| e.to_string())?;
        let nqn = text[slash + 1..]
            .parse::<nvme::Nqn>()
            .map_err(|e| e.to_string())?;
        Ok(Self { address, nqn })
    }
}

/// `onefold perf`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold perf tcp://127.0.0.1:4420/nqn.2026-11.dev.onefold:default --rw randread --qd 32 --time 10\n  \
                  onefold perf rdma://127.0.0.1:4420/nqn.2026-11.dev.onefold:default --rw randwrite --size 1G --dup 50 --verify --json\n\n\
                  Writing patterns overwrite the namespace's content. Ctrl-C ends the load and prints the result so far."
)]
pub struct PerfArgs {
    /// The target and the subsystem
    #[arg(value_name = "tcp|rdma://ADDR:PORT/SUBSYSTEM-NQN")]
    pub subsystem: SubsystemAddress,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    pub nsid: u32,
    /// What to do, named as fio names it: read, write, randread, randwrite, randrw or rw
    #[arg(long, value_name = "PATTERN")]
    pub rw: Pattern,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4k")]
    pub bs: u64,
    /// Commands in flight on each queue
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub qd: u16,
    /// I/O queues
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// Stop after this many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        required_unless_present = "size",
        conflicts_with = "size"
    )]
    pub time: Option<u64>,
    /// Stop after this many bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Use only this many bytes from the start of the namespace
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub range: Option<u64>,
    /// How many percent of the written 4 KiB blocks repeat content written before
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub dup: u8,
    /// How many percent of the written 4 KiB blocks are zeros
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub zero: u8,
    /// Seed of places and content: the same seed repeats the run, content included [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Read back and compare what was written. With a pattern that only reads: compare what was written with the
    /// same --seed before
    #[arg(long)]
    pub verify: bool,
    /// Over TCP: a CRC-32C for the headers of PDUs
    #[arg(long)]
    pub header_digest: bool,
    /// Over TCP: a CRC-32C for the data of PDUs
    #[arg(long)]
    pub data_digest: bool,
    /// Who connects.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// How the connections are protected.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
