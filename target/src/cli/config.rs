//! `onefold config ...`: the configuration file of `onefold serve`, and what is configured in a pool as a file.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use api::config::{ExportConfig, ImportConfig, ImportedConfig};
use api::hosts::SecretText;
use clap::Subcommand;
use serde_json::json;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::ask::tell;
use super::host::read_file;
use super::run::converse;
use super::{Exit, Outcome, print, print_json};
use crate::config;
use crate::exit::EXIT_FAILED;

/// `onefold config ...`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Explain the mistakes of a configuration file: exit 0 if there are none, 1 otherwise
    ///
    /// Each key alone, keys that contradict each other, and what is missing on this machine: groups, certificates,
    /// memory. `onefold serve` refuses the same.
    #[command(after_help = "Example:\n  onefold config check /etc/onefold/onefold.toml")]
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
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
    /// Write what is configured in a pool into one file: volumes, subsystems, hosts, listeners, referrals
    #[command(after_help = "Examples:\n  onefold config export pool.toml\n  \
                      onefold config export pool.toml --passphrase-file passphrase\n\n\
                      THE DATA OF THE VOLUMES ARE NOT IN IT, nor what hosts made themselves: reservations and saved\n\
                      features. Secrets of hosts are left out, or wrapped under a passphrase.")]
    Export {
        /// The file, - for standard output; one that is there is replaced
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Wrap the secrets of hosts under the passphrase in this file, - for standard input
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON: what is not in the file; the file must not be standard output then
        #[arg(long)]
        json: bool,
    },
    /// Bring an exported file into a pool; nothing is deleted, no volume gets smaller
    #[command(
        after_help = "Examples:\n  onefold config import pool.toml --dry-run\n  onefold config import pool.toml\n\n\
                      The file is checked whole before anything changes. What the pool has stays; where it\n\
                      differs from the file, --replace changes it. An import that ended in the middle can be\n\
                      run again. THE DATA OF THE VOLUMES ARE NOT IN THE FILE: new volumes are empty. A host whose\n\
                      secret is not in the file cannot connect until it is set.\n\
                      A new pool has a volume vol0, unless `serve` names others: if the file has one of that name,\n\
                      `onefold volume delete vol0` comes first."
    )]
    Import {
        /// The file, - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
        /// Change what is in the pool and differs from the file
        #[arg(long)]
        replace: bool,
        /// A file with the passphrase under which the secrets are wrapped
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The longest file that is imported, in bytes: the daemon takes 16 MiB.
const IMPORT_BYTES_MAX: u64 = 17 << 20;

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
        ConfigCommand::Export {
            file,
            passphrase_file,
            pool,
            json,
        } => {
            if json && file.as_os_str() == "-" {
                return Err(Failure::invalid(
                    "standard output is the file: name another one, or leave out --json",
                )
                .into());
            }
            let passphrase = passphrase_file.as_deref().map(passphrase).transpose()?;
            let client = Client::new(&pool.pool);
            let exported = converse(client.export_config(&ExportConfig { passphrase }))?;
            match file.as_os_str() == "-" {
                true => print(&exported.text),
                false => write_whole(&file, &exported.text)?,
            }
            if json {
                let left_out = exported.hosts_without_secrets;
                print_json(&json!({"file": file, "hosts_without_secrets": left_out}))?;
            } else if let hosts @ 1.. = exported.hosts_without_secrets {
                tell([format!(
                    "The secrets of {hosts} hosts are left out: --passphrase-file wraps them."
                )]);
            }
            Ok(ExitCode::SUCCESS)
        }
        ConfigCommand::Import {
            file,
            dry_run,
            replace,
            passphrase_file,
            pool,
            json,
        } => {
            let request = ImportConfig {
                text: read_import(&file)?,
                name: file.display().to_string(),
                passphrase: passphrase_file.as_deref().map(passphrase).transpose()?,
                replace,
                dry_run,
            };
            let imported = converse(Client::new(&pool.pool).import_config(&request))?;
            match json {
                true => print_json(&imported)?,
                false => print(&told(&imported)),
            }
            Ok(ExitCode::SUCCESS)
        }
        ConfigCommand::Check { file, json } => {
            let unreadable = |why: String| Exit::could_not_run(Failure::invalid(why));
            let text = config::read(&file).map_err(unreadable)?;
            let mistakes = config::understand_here(&text).err().unwrap_or_default();
            match (json, mistakes.is_empty()) {
                (true, _) => {
                    let each = |mistake: &config::Mistake| json!({"line": mistake.line, "message": mistake.what});
                    let mistakes: Vec<_> = mistakes.iter().map(each).collect();
                    print_json(&json!({"file": file, "mistakes": mistakes}))?;
                }
                (false, true) => print(&format!("{}: no mistakes\n", file.display())),
                (false, false) => print(&(config::told(&file, &mistakes) + "\n")),
            }
            Ok(match mistakes.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(EXIT_FAILED),
            })
        }
    }
}

/// A passphrase: the first line of a file.
fn passphrase(path: &Path) -> Result<SecretText, Failure> {
    read_file(path, |text| match text.lines().next().unwrap_or_default() {
        "" => Err("there is no passphrase on its first line"),
        line => Ok(SecretText(line.to_owned())),
    })
}

fn read_import(path: &Path) -> Result<String, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::invalid(format!(
            "the file '{}' cannot be read: {why}",
            path.display()
        ))
    };
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        from.take(IMPORT_BYTES_MAX).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = match path.as_os_str() == "-" {
        true => read(&mut std::io::stdin().lock()),
        false => std::fs::File::open(path).and_then(|mut file| read(&mut file)),
    };
    text.map_err(|error| failed(&error))
}

/// Writes a file that only its owner can read; the one that is there is replaced when the new one is whole.
fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::unavailable(format!(
            "the file '{}' cannot be written: {error}",
            path.display()
        ))
    };
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(new);
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|error| {
        // What was begun is of no use; if it was not, there is nothing to remove.
        let _ = std::fs::remove_file(&new);
        failed(error)
    })
}

fn told(imported: &ImportedConfig) -> String {
    let mut lines = imported.changes.clone();
    lines.extend(imported.notes.iter().map(|note| format!("note: {note}")));
    lines.push(match (imported.changes.len(), imported.dry_run) {
        (0, _) => "nothing to change: the pool has all that is in the file".to_owned(),
        (changes, true) => format!("{changes} changes to make; nothing was changed (--dry-run)"),
        (changes, false) => format!("{changes} changes made"),
    });
    lines.join("\n") + "\n"
}
