//! `onefold perf`: a load over the network interface.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use bench::perf::{Interrupt, Limit, Options, Pattern, PerfError, Progress};
use clap::Args;
use dedup::ErrorKind;
use fabric::TransportAddress;
use subsystem::errors::Failure;
use tokio::signal::unix::{SignalKind, signal};

use super::host::{IdentityArgs, TlsArgs};
use super::run::on_reactor;
use super::{Exit, Outcome, perf_progress, print, print_json};
use crate::exit::{EXIT_FAILED, EXIT_INCONSISTENT, EXIT_INTERRUPTED};
use crate::size::parse_size;

/// Memory that every load needs, besides its data.
const PERF_BUFFER_BYTES_MIN: usize = 8 << 20;

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
    /// How many percent of each other written 4 KiB block are zeros, so that it compresses (fio's
    /// buffer_compress_percentage)
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub compress: u8,
    /// Seed of places and content: the same seed repeats the run, content included [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Read back and compare what was written. With a pattern that only reads: compare what was written with the
    /// same --seed (and --compress) before
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

/// `onefold perf`: 0 all right, 2 wrong data was read, 1 commands failed, the connection was lost, nothing was verified
/// that should have been, or it could not run, 130 it was interrupted.
pub(super) fn run(args: PerfArgs) -> Outcome {
    let limit = match (args.time, args.size) {
        (Some(seconds), _) => Limit::Time(Duration::from_secs(seconds)),
        (None, Some(bytes)) => Limit::Bytes(bytes),
        (None, None) => return Err(Failure::invalid("perf needs --time or --size").into()),
    };
    let block_bytes = usize::try_from(args.bs)
        .ok()
        .filter(|bs| (1..=reactor::MAX_BUFFER_BYTES).contains(bs))
        .ok_or_else(|| Failure::invalid(format!("--bs {} is no usable block size", args.bs)))?;
    if args.verify && args.rw.only_reads() && args.seed.is_none() {
        return Err(Failure::invalid(
            "--verify cannot know what is to be read: name the --seed that it was written with",
        )
        .into());
    }
    // Without a seed no run repeats what another one wrote.
    let seed = args
        .seed
        .unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().1);
    let (host, subsystem) = (args.identity.hostnqn.as_ref(), &args.subsystem.nqn);
    let tls = args.tls.config(host, subsystem.as_str())?;
    let options = Options {
        address: args.subsystem.address,
        subsystem: args.subsystem.nqn,
        nsid: args.nsid,
        pattern: args.rw,
        block_bytes,
        depth: args.qd,
        queues: args.queues,
        limit,
        range_bytes: args.range,
        duplicate_percent: args.dup,
        zero_percent: args.zero,
        compress_percent: args.compress,
        seed,
        verify: args.verify,
        header_digest: args.header_digest,
        data_digest: args.data_digest,
        tls,
        host: args.identity.hostnqn.clone(),
        keys: args.identity.keys()?,
        interrupt: Interrupt::default(),
        progress: Progress::default(),
    };
    options
        .check_alone()
        .map_err(|e| Failure::invalid(e.to_string()))?;
    // Buffers are handed out in powers of two.
    let in_flight = usize::from(options.depth) * usize::from(options.queues);
    let buffer_bytes = block_bytes
        .next_power_of_two()
        .max(4096)
        .saturating_mul(in_flight)
        .saturating_mul(2)
        .max(PERF_BUFFER_BYTES_MIN);
    on_interrupt(&options.interrupt)?;
    let shown = perf_progress::show(options.progress.clone(), options.limit);
    let report = on_reactor(buffer_bytes, bench::perf::run(&options));
    drop(shown);
    let report = report?.map_err(|error| {
        let failure = match &error {
            PerfError::Options(_) => Failure::invalid(error.to_string()),
            _ => Failure::unavailable(error.to_string()),
        };
        Exit::could_not_run(failure)
    })?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&format!("{report}, seed {seed}\n"));
    }
    if let Some(why) = report.nothing_verified() {
        return Err(Exit::could_not_run(Failure::invalid(why)));
    }
    if let Some(why) = report.connection_lost {
        return Err(Exit {
            failure: Failure::unavailable(format!("the connection was lost: {why}")),
            code: match report.verify_errors {
                0 => EXIT_FAILED,
                _ => EXIT_INCONSISTENT,
            },
        });
    }
    Ok(match (report.verify_errors, report.errors) {
        (0, 0) if report.interrupted => ExitCode::from(EXIT_INTERRUPTED),
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(EXIT_FAILED),
        _ => ExitCode::from(EXIT_INCONSISTENT),
    })
}

/// Lets Ctrl-C and SIGTERM end the load, so that it still reports; where it has nothing to report, and when they come
/// again, they end the program at once.
fn on_interrupt(load: &Interrupt) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| {
        Failure::new(ErrorKind::Internal, format!("cannot wait for signals: {e}"))
    };
    let load = load.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(cannot)?;
    let signals = {
        let _here = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate()].map(signal)
    };
    let [interrupt, terminate] = signals;
    let (mut interrupt, mut terminate) = (interrupt.map_err(cannot)?, terminate.map_err(cannot)?);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if !load.set() {
                    std::process::exit(EXIT_INTERRUPTED.into());
                }
            }
        })
    });
    Ok(())
}
