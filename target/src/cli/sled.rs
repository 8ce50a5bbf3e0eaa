//! `onefold sled ...`: raw drives for other machines.

use std::process::ExitCode;

use clap::Subcommand;

use super::Outcome;
use crate::options::SledServeArgs;
use crate::serve_sled;

/// `onefold sled ...`
#[derive(Debug, Subcommand)]
pub enum SledCommand {
    /// Serve raw drives to pools of other machines, or to Linux hosts, in the foreground
    Serve(Box<SledServeArgs>),
}

/// Runs `onefold sled ...`.
pub(super) fn run(command: SledCommand) -> Outcome {
    match command {
        SledCommand::Serve(args) => serve_sled::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
