//! `onefold config ...`: the configuration file of `onefold serve`.

use std::path::PathBuf;
use std::process::ExitCode;

use api::client::Client;
use clap::Subcommand;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::run::converse;
use super::{Exit, Outcome, print, print_json};
use crate::config;
use crate::exit::EXIT_FAILED;

/// `onefold config ...`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Explain the mistakes of a configuration file: exit 0 if there are none, 1 otherwise
    #[command(after_help = "Example:\n  onefold config check /etc/onefold/onefold.toml")]
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print a configuration file with every key, its default and what it means
    #[command(after_help = "Example:\n  onefold config example > onefold.toml")]
    Example,
    /// Let a running daemon read its configuration file again, and say what that changed
    #[command(after_help = "Example:\n  onefold config reload --pool /srv/pool\n\n\
                      What is not applied waits for a restart, and is named. A file with a mistake changes nothing.")]
    Reload {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Example => {
            print(&config::example());
            Ok(ExitCode::SUCCESS)
        }
        ConfigCommand::Reload { pool, json } => {
            let reloaded = converse(Client::new(&pool.pool).reload_config())?;
            match json {
                true => print_json(&reloaded)?,
                false => print(&(config::Changes::from(reloaded).to_string() + "\n")),
            }
            Ok(ExitCode::SUCCESS)
        }
        ConfigCommand::Check { file } => {
            let unreadable = |why: String| Exit::could_not_run(Failure::invalid(why));
            let text = config::read(&file).map_err(unreadable)?;
            match config::understand(&text) {
                Ok(_) => {
                    print(&format!("{}: no mistakes\n", file.display()));
                    Ok(ExitCode::SUCCESS)
                }
                Err(mistakes) => {
                    print(&(config::told(&file, &mistakes) + "\n"));
                    Ok(ExitCode::from(EXIT_FAILED))
                }
            }
        }
    }
}
