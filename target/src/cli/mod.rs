//! The `onefold` program's commands.
//!
//! Guarantees: what a command prints as its result goes to standard output, everything else to
//! standard error; a failure names the object and the remedy, and is a line of JSON under `--json`; the exit
//! code follows the table in [`crate::exit`].

mod ana;
pub mod args;
mod ask;
pub mod bench;
pub mod cluster;
pub mod config;
mod default_pool;
mod diff;
pub mod discover;
pub mod doctor;
pub mod drive;
pub mod estimate;
pub mod events;
pub mod exports;
pub mod generate;
mod health;
pub mod host;
mod import;
mod labels;
mod limit;
mod line;
pub mod listener;
pub mod perf;
mod perf_progress;
mod plan;
pub mod pool;
pub mod pool_key;
mod pool_nodes;
mod pool_set;
mod progress;
pub mod receive;
mod reliability;
mod repair;
mod reservation;
mod restore;
mod run;
mod scrub;
pub mod send;
mod sled;
mod snapshot;
pub mod status;
pub mod subsystem;
mod table;
pub mod task;
pub mod token;
pub mod top;
pub mod trace;
mod transfer;
pub mod volume;
pub mod volume_export;
pub mod volume_import;
pub mod volume_nbft;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use ::subsystem::errors::Failure;
use api::errors::ErrorBody;
use clap::error::ErrorKind as UsageKind;
use serde_json::json;

use crate::exit::{EXIT_FAILED, EXIT_USAGE, exit_code};
use crate::logging;
use crate::opened_drive::open_for_reading;
use crate::output::{print, print_json, print_line};
use args::Command;

/// Runs the program with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let code = run_words();
    rados_drives::before_exit();
    code
}

fn run_words() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let json = line::asks_for_json(&words);
    let cli = match line::parse(words) {
        Ok(cli) => cli,
        Err(error) => {
            let help = matches!(
                error.kind(),
                UsageKind::DisplayHelp | UsageKind::DisplayVersion
            );
            match json && !help {
                true => tell(&Exit::usage(&error.to_string()), json),
                false => drop(error.print()),
            }
            return match help {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(EXIT_USAGE),
            };
        }
    };
    let of_daemon = match &cli.command {
        Command::Serve(args) => Some((args.log.as_str(), args.log_format)),
        Command::Sled(sled::SledCommand::Serve(args)) => Some((args.log.as_str(), args.log_format)),
        _ => None,
    };
    if let Err(failure) = logging::start(of_daemon) {
        let exit = Exit {
            failure,
            code: EXIT_USAGE,
        };
        tell(&exit, json);
        return ExitCode::from(EXIT_USAGE);
    }
    match run_command(cli.command) {
        Ok(code) => code,
        Err(error) => {
            tell(&error, json);
            ExitCode::from(error.code)
        }
    }
}

/// Tells of a failure on standard error.
fn tell(exit: &Exit, json: bool) {
    let text = match json {
        true => exit.to_json(),
        false => format!("onefold: {}", exit.failure),
    };
    // Standard error that is closed cannot be told of.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A failure and the exit code that tells of it.
struct Exit {
    failure: Failure,
    code: u8,
}

impl From<Failure> for Exit {
    fn from(failure: Failure) -> Self {
        let code = exit_code(failure.kind);
        Self { failure, code }
    }
}

impl Exit {
    /// The command line cannot be understood.
    fn usage(text: &str) -> Self {
        Self {
            failure: Failure::invalid(text.trim_start_matches("error: ").trim()),
            code: EXIT_USAGE,
        }
    }

    /// The failure on one line: what the API answers, and the exit code.
    fn to_json(&self) -> String {
        let ErrorBody { kind, message } = (&self.failure).into();
        json!({"kind": kind, "message": message, "exit_code": self.code}).to_string()
    }

    /// The command could not do its work, whatever the reason: exit 1.
    fn could_not_run(failure: Failure) -> Self {
        Self {
            failure,
            code: EXIT_FAILED,
        }
    }
}

type Outcome = Result<ExitCode, Exit>;

fn run_command(command: Command) -> Outcome {
    dedup::open_remote_drives_by(open_for_reading);
    match command {
        Command::Serve(args) => {
            crate::serve::run(&args, line::serve_again)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Config(command) => config::run(command),
        Command::Volume(command) => volume::run(command),
        Command::Drive(command) => drive::run(command),
        Command::Subsystem(command) => subsystem::subsystem(command),
        Command::Namespace(command) => subsystem::namespace(command),
        Command::Host(command) => host::host(command),
        Command::Referral(command) => subsystem::referral(command),
        Command::Ana(command) => ana::run(command),
        Command::Reservation(command) => reservation::run(command),
        Command::Listener(command) => listener::run(command),
        Command::Export(command) => exports::run(command),
        Command::Token(command) => token::run(command),
        Command::Status(args) => status::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Pool(command) => pool::run(command),
        Command::Cluster(command) => cluster::run(command),
        Command::Scrub(command) => scrub::run(command),
        Command::Sled(command) => sled::run(command),
        Command::Snapshot(command) => snapshot::run(command),
        Command::Send(args) => send::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Task(command) => task::run(command),
        Command::Discover(args) => discover::run(&args),
        Command::Perf(args) => perf::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Estimate(args) => estimate::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    }
}

#[cfg(test)]
mod tests;
