//! The `onefold` program's commands.
//!
//! Guarantees: what a command prints as its result goes to standard output, everything else to
//! standard error; a failure names the object and the remedy; the exit code follows the table in
//! [`crate::exit`].

mod ana;
pub mod args;
mod ask;
pub mod bench;
pub mod bounds;
pub mod config;
mod discover;
pub mod drive;
pub mod estimate;
mod health;
pub mod host;
pub(crate) mod line;
pub mod listener;
pub(crate) mod logging;
mod perf;
mod pool;
mod repair;
mod reservation;
mod run;
mod scrub;
mod status;
pub mod subsystem;
mod table;
mod volume;

use std::io::{self, Write};
use std::process::ExitCode;

use ::subsystem::errors::Failure;
use clap::error::ErrorKind as UsageKind;
use serde::Serialize;

use crate::exit::{EXIT_FAILED, EXIT_USAGE, exit_code};
use args::{Command, PoolCommand};

/// Runs the program with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match line::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let help = matches!(
                error.kind(),
                UsageKind::DisplayHelp | UsageKind::DisplayVersion
            );
            return if help {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(EXIT_USAGE)
            };
        }
    };
    if let Err(failure) = logging::start(&cli.command) {
        let _ = writeln!(io::stderr().lock(), "onefold: {failure}");
        return ExitCode::from(EXIT_USAGE);
    }
    match run_command(cli.command) {
        Ok(code) => code,
        Err(error) => {
            let mut stderr = io::stderr().lock();
            let _ = writeln!(stderr, "onefold: {}", error.failure);
            ExitCode::from(error.code)
        }
    }
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
    match command {
        Command::Serve(args) => {
            crate::serve::run(&args)?;
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
        Command::Status(args) => status::run(&args),
        Command::Pool(PoolCommand::Check {
            place,
            data,
            online,
            json,
        }) => match online {
            true => pool::check_online(&place.dir()?, json),
            false => pool::check(&place.dir()?, data, json),
        },
        Command::Scrub(command) => scrub::run(command),
        Command::Pool(PoolCommand::Backup { dir, pool }) => pool::backup(&pool.pool, &dir),
        Command::Pool(PoolCommand::Repair { place, yes, json }) => {
            repair::pool_repair(&place.dir()?, yes, json)
        }
        Command::Discover(args) => discover::run(&args),
        Command::Perf(args) => perf::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Estimate(args) => estimate::run(args),
    }
}

/// Prints a result. A reader that went away (a closed pipe) is no failure.
pub(crate) fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Prints a result as JSON, indented, with a final newline.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::new(dedup::ErrorKind::Internal, format!("no JSON: {e}")))?;
    print(&(text + "\n"));
    Ok(())
}

#[cfg(test)]
mod tests;
