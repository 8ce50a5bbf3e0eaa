//! `onefold bench ...`: measurements of this machine.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::drive::DriveBenchError;
use bench::engine::{EngineBenchError, Options};
use bench::{BenchError, RunOptions};
use clap::{Args, Subcommand};
use serde::Serialize;
use subsystem::errors::Failure;

use super::run::on_reactor;
use super::{Exit, Outcome, print, print_json};
use crate::measured_drive::MeasuredDrive;

/// `onefold bench ...`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure the engine without a network, each figure beside the machine's own limit
    Engine(EngineArgs),
    /// Measure one drive as pools use it, without a pool: a file, a device, a namespace elsewhere, a vhost-user-blk socket
    Drive(DriveArgs),
    /// Measure TCP and RDMA between a target and a client on this machine, beside other targets
    Transports(TransportsArgs),
    /// Measure disks of virtual machines (vhost-user-blk) on this machine, beside other targets
    Exports(ExportsArgs),
}

/// How a program is measured beside other targets.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Processes of the other targets, in their order, if they run on this machine: each is stopped while another target is
    /// measured, because one that polls takes the core, and its processor time is told
    #[arg(long = "pid", value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub pids: Vec<u32>,
    /// Also write to the other targets: their disks, or first namespaces, are OVERWRITTEN
    #[arg(long)]
    pub overwrite: bool,
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Runs of each workload, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    pub runs: u16,
    /// Another build of onefold to measure
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// The file system for the pool's journal
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onefold bench exports`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold bench exports\n  onefold bench exports --overwrite --pid 4711 /run/other/vhost.0 --json\n\n\
                  Needs an idle machine with two cores: the target runs on the first, the client on the last."
)]
pub struct ExportsArgs {
    /// vhost-user-blk sockets of other targets to measure beside
    #[arg(value_name = "SOCKET")]
    pub others: Vec<PathBuf>,
    /// Only these workloads, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = bench::exports::NAMES)]
    pub only: Vec<String>,
    /// What stores the data of this program, as `onefold serve --drive` takes it, a new file or at least 3 GiB
    #[arg(long, value_name = "DRIVE", default_value = bench::exports::MEMORY_DRIVE)]
    pub drive: String,
    /// Share memory of huge pages (2 MiB), of which the system must have 8
    #[arg(long)]
    pub huge_pages: bool,
    /// How it is measured
    #[command(flatten)]
    pub run: RunArgs,
}

/// `onefold bench drive`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold bench drive /dev/nvme1n1\n  onefold bench drive nvme+tcp://192.0.2.5:4420/nqn.2016-06.io.spdk:cnode1#1 --json\n  \
                  onefold bench drive vhost-user:/run/spdk/vhost.0 --overwrite --pool-dir /tmp\n\n\
                  Needs an idle machine. The first 256 MiB of the drive are used. The device behind a vhost-user-blk\n\
                  socket is measured by a bare front-end too, beside which the drive is told."
)]
pub struct DriveArgs {
    /// The drive, as `onefold serve --drive` takes one that is there
    #[arg(value_name = "PATH")]
    pub drive: PathBuf,
    /// Also write: the drive is OVERWRITTEN; one that holds something is refused
    #[arg(long)]
    pub overwrite: bool,
    /// Also make a pool on the drive, which needs 2 GiB then, and measure a volume of it; the metadata is in this folder
    #[arg(long, value_name = "DIR", requires = "overwrite")]
    pub pool_dir: Option<PathBuf>,
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Runs of each workload, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    pub runs: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onefold bench transports`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold bench transports\n  onefold bench transports --overwrite tcp://192.0.2.5:4420/nqn.2016-06.io.spdk:cnode1 --json\n\n\
                  Needs an idle machine with two cores: the target runs on the first, the client on the last."
)]
pub struct TransportsArgs {
    /// Other targets to measure beside: the first namespace of each
    #[arg(value_name = "tcp|rdma://ADDR:PORT/SUBSYSTEM-NQN")]
    pub others: Vec<String>,
    /// How it is measured
    #[command(flatten)]
    pub run: RunArgs,
}

/// `onefold bench engine`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold bench engine --quick\n  onefold bench engine --dir /srv/pool --json\n\n\
                  Needs an idle machine, and makes pools and drive files in a temporary folder of its own:\n\
                  about 9 GiB of space and 8 GiB of memory, with --quick 2 GiB and 3 GiB."
)]
pub struct EngineArgs {
    /// A short look within 40 seconds instead of careful figures
    #[arg(long)]
    pub quick: bool,
    /// The file system to measure on
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Unique 4 KiB blocks of the large pool and of copy [default: 20000000, with --quick 262144], and of small-cache
    /// and snapshots [default: 16777216, with --quick 1048576]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1024..=1 << 32))]
    pub blocks: Option<u64>,
    /// Only these workloads, separated by commas; `large` are all figures of a large pool, `small-cache` those of a
    /// volume whose map does not fit 64 MiB, `copy` those of a copy by reference of a volume that was written in order,
    /// `mirrors` those of two copies of all data and of a rebuild (these three are not part of --quick if not asked for)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = bench::engine::WORKLOADS)]
    pub only: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs a benchmark.
pub(super) fn run(command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Engine(args) => engine(&args),
        BenchCommand::Drive(args) => drive(&args),
        BenchCommand::Transports(args) => transports(args),
        BenchCommand::Exports(args) => exports(args),
    }
}

/// Memory of the reactor that opens pools and runs their background work.
const CONTROL_BUFFER_BYTES: usize = 8 << 20;

fn engine(args: &EngineArgs) -> Outcome {
    let options = Options {
        quick: args.quick,
        dir: args.dir.clone(),
        large_blocks: args.blocks,
        only: args.only.clone(),
    };
    let report =
        on_reactor(CONTROL_BUFFER_BYTES, bench::engine::run(&options, &say))?.map_err(|error| {
            let failure = match &error {
                EngineBenchError::Folder { .. } => Failure::invalid(error.to_string()),
                _ => Failure::unavailable(error.to_string()),
            };
            Exit::could_not_run(failure)
        })?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.to_string());
    }
    Ok(ExitCode::SUCCESS)
}

fn drive(args: &DriveArgs) -> Outcome {
    let path = &args.drive;
    let measure = async {
        let failed = |error: DriveBenchError| match error {
            DriveBenchError::Small { .. } => Failure::invalid(error.to_string()),
            _ => Failure::unavailable(error.to_string()),
        };
        let bench = bench::drive::Bench::start().await.map_err(failed)?;
        let measured = MeasuredDrive::open(path, args.overwrite).await?;
        let options = bench::drive::Options {
            name: path.display().to_string(),
            socket: measured.socket,
            overwrite: args.overwrite,
            pool_dir: args.pool_dir.clone(),
            seconds: args.seconds,
            runs: args.runs.into(),
        };
        let report = bench.run(&options, measured.drive, &say).await;
        report.map_err(failed)
    };
    let report = on_reactor(CONTROL_BUFFER_BYTES, measure)??;
    match args.json {
        true => print_json(&report)?,
        false => print(&report.to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The program to measure is this one, unless another build is named.
fn run_options(args: RunArgs) -> Result<RunOptions, Failure> {
    let program = match args.program {
        Some(program) => program,
        None => std::env::current_exe().map_err(|error| {
            Failure::unavailable(format!("this program's own file is not known: {error}"))
        })?,
    };
    Ok(RunOptions {
        program,
        dir: args.dir,
        seconds: args.seconds,
        runs: usize::from(args.runs),
        pids: args.pids,
        overwrite: args.overwrite,
    })
}

fn transports(args: TransportsArgs) -> Outcome {
    let json = args.run.json;
    let options = bench::transports::Options {
        run: run_options(args.run)?,
        others: args.others,
    };
    tell(bench::transports::run(&options, &say), json)
}

fn exports(args: ExportsArgs) -> Outcome {
    let json = args.run.json;
    let options = bench::exports::Options {
        run: run_options(args.run)?,
        drive: args.drive,
        others: args.others,
        only: args.only,
        huge_pages: args.huge_pages,
    };
    tell(bench::exports::run(&options, &say), json)
}

/// Says what begins.
fn say(what: &str) {
    eprintln!("{what} ...");
}

/// Prints a report, if there is one.
fn tell<R: Display + Serialize>(report: Result<R, BenchError>, json: bool) -> Outcome {
    let report =
        report.map_err(|error| Exit::could_not_run(Failure::unavailable(error.to_string())))?;
    match json {
        true => print_json(&report)?,
        false => print(&report.to_string()),
    }
    Ok(ExitCode::SUCCESS)
}
