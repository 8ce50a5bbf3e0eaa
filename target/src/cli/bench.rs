//! `onefold bench ...`: measurements of this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::engine::{EngineBenchError, Options};
use clap::{Args, Subcommand};

use super::commands::on_reactor;
use super::{Exit, Outcome, print, print_json};
use crate::errors::Failure;

/// `onefold bench ...`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure the engine without a network, each figure beside the machine's own limit
    Engine(EngineArgs),
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
    /// Unique 4 KiB blocks of the large pool [default: 20000000, with --quick 262144]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1024..=1 << 32))]
    pub blocks: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs a benchmark.
pub(super) fn run(command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Engine(args) => engine(&args),
    }
}

/// Memory of the reactor that opens pools and runs their background work.
const CONTROL_BUFFER_BYTES: usize = 8 << 20;

fn engine(args: &EngineArgs) -> Outcome {
    let options = Options {
        quick: args.quick,
        dir: args.dir.clone(),
        large_blocks: args.blocks,
    };
    let progress = |what: &str| eprintln!("{what} ...");
    let report = on_reactor(
        CONTROL_BUFFER_BYTES,
        bench::engine::run(&options, &progress),
    )?
    .map_err(|error| {
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
