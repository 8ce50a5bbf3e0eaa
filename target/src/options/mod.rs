//! The options of `onefold serve`: what the command line, the configuration file and the daemon share.
//!
//! Guarantee: an option has its name, values, default and help here and nowhere else. The configuration file names options.

mod bounds;
mod buffers;
mod drive;
mod http;
mod sled;
mod telemetry;
mod together;
mod volume;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser;
use dedup::{METADATA_CACHE_BYTES_MIN, Redundancy};
use fabric::{TlsMode, TransportAddress};
use meta::{FingerprintFunction, UnknownFingerprintFunction};

use crate::logging::{LOG_VARIABLE, LogFormat, parse_filter};
use crate::size::parse_size;
use crate::time::parse_spin;

pub use bounds::BoundsArgs;
pub use buffers::BufferMemory;
pub(crate) use buffers::Buffers;
pub use drive::{DriveArg, drive_path};
pub use http::HttpArgs;
pub(crate) use http::is_here;
pub use sled::{HostArg, SledServeArgs};
pub use telemetry::TelemetryArgs;
pub(crate) use together::Contradiction;
pub use volume::VolumeArg;
pub(crate) use volume::{parse_compression, parse_lba, parse_uuid, parse_verify};

/// The pool that every command uses when none is named.
pub const DEFAULT_POOL: &str = "./onefold-data";

/// The variable that names the pool of commands whose line does not.
pub const POOL_VARIABLE: &str = "ONEFOLD_POOL";

/// The folder of a pool in memory when none is named.
pub const DEFAULT_MEMORY_POOL: &str = "./onefold-memory";

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
    /// clnh is several times as fast; blake3 resists even who has the key.
    #[arg(long, value_name = "clnh|blake3", value_parser = parse_fingerprint, help_heading = POOL_HEADING)]
    pub fingerprint: Option<FingerprintFunction>,
    /// Copies of all data of a new pool, on different drives [default: none]
    #[arg(long, value_name = "none|mirror=2|mirror=3", help_heading = POOL_HEADING)]
    pub redundancy: Option<Redundancy>,
    /// A drive of a new pool: a file, a block device, or the address of one elsewhere (repeatable) [default: a file]
    ///
    /// Copies lie in different failure domains. nvme+tcp://HOST:4420/NQN#NSID is a namespace of another target,
    /// vhost-user:/SOCKET a device of SPDK or QEMU, rados:POOL is in a Ceph cluster. memory=SIZE keeps nothing.
    #[arg(long = "drive", value_name = "PATH[=SIZE][,domain=NAME]", help_heading = POOL_HEADING)]
    pub drives: Vec<DriveArg>,
    /// Be a standby while another node serves the pool
    ///
    /// For drives on sleds, or in a Ceph cluster. When that node dies, this one takes the pool over. Start each node so.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = POOL_HEADING)]
    pub join: bool,
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
    /// For TCP listeners of --listen, or without it. `onefold host tls-key add` keeps hosts' keys.
    #[arg(long, value_name = "MODE", default_value_t, help_heading = LISTENERS_HEADING)]
    pub tls: TlsMode,
    /// Announce the discovery service on the local network by mDNS
    ///
    /// As _nvme-disc._tcp, for hosts that look for it there.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = LISTENERS_HEADING)]
    pub mdns: bool,
    /// TCP: keep the system's congestion control also where that is BBR
    ///
    /// That is for hosts far away. Without this option they use CUBIC, which costs far less on short paths.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = LISTENERS_HEADING)]
    pub tcp_pacing: bool,
    /// Soft RoCE: check all 32 bits of every IPv4 packet's ICRC
    ///
    /// Without this option 16 of them are. It needs CAP_NET_RAW, and costs a second receive of each packet.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, help_heading = LISTENERS_HEADING)]
    pub strict_icrc: bool,
    /// Take this drive for a new pool whatever it holds: what is there is LOST (repeatable; the path as after --drive)
    #[arg(long, value_name = "PATH")]
    pub force: Vec<PathBuf>,
    /// Memory for data between hosts and drives, for all threads together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M", help_heading = MACHINE_HEADING)]
    pub buffers: u64,
    /// Who can use it: private, shared or huge
    ///
    /// shared, huge (pages): servers of vhost-user drives use data in place.
    #[arg(long, value_name = "WHO", value_enum, default_value_t, hide_possible_values = true, hide_default_value = true, help_heading = MACHINE_HEADING)]
    pub buffer_memory: BufferMemory,
    /// Memory for maps of volumes and what is known of blocks, 8M at least
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
    /// More saves wake-ups of lone commands, 0 saves the most processor time.
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_spin, help_heading = MACHINE_HEADING)]
    pub spin: Duration,
    /// What is logged to standard error
    ///
    /// A level, and behind commas levels of parts, such as info,dedup=debug. ONEFOLD_LOG is the same as a variable.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = parse_filter, env = LOG_VARIABLE, hide_env = true, help_heading = MACHINE_HEADING)]
    pub log: String,
    /// How it is written: as text, or as JSON, one object a line
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_possible_values = true, help_heading = MACHINE_HEADING)]
    pub log_format: LogFormat,
    /// What hosts may take.
    #[command(flatten)]
    pub bounds: BoundsArgs,
    /// The HTTP listener.
    #[command(flatten)]
    pub http: HttpArgs,
    /// Where metrics are sent.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

impl ServeArgs {
    /// What no value shows alone, on whatever machine.
    ///
    /// # Errors
    /// Says which values do not go together: all of them.
    pub fn check(&self) -> Result<(), String> {
        told(&self.contradictions())
    }

    /// The same, and whether this machine can have what is said.
    ///
    /// # Errors
    /// Says which values do not go together, or not here: all of them.
    pub fn check_here(&self) -> Result<(), String> {
        self.check()?;
        told(&self.contradictions_here())
    }
}

fn told(contradictions: &[Contradiction]) -> Result<(), String> {
    let lines: Vec<&str> = contradictions.iter().map(|it| &*it.what).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => Err(lines.join("\n")),
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

/// Parses the name of a function for fingerprints.
fn parse_fingerprint(text: &str) -> Result<FingerprintFunction, String> {
    text.parse()
        .map_err(|error: UnknownFingerprintFunction| error.to_string())
}

/// Parses `on` and `off`.
pub(crate) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}
