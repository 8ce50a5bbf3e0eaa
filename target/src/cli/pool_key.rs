//! `onefold pool key`: two pools fingerprint the contents of a domain with the same key.
//!
//! Guarantee: the key is written to a new file that only its owner can read, or to a pipe, never to a terminal.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use api::hosts::SecretText;
use api::known::TakeKey;
use clap::Subcommand;
use meta::{FingerprintFunction, PoolIdentity, PoolPaths};
use serde::{Deserialize, Serialize};
use streams::Digest;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::run::converse;
use super::{Outcome, print, print_json};

/// The version of a key's file.
const VERSION: u32 = 1;

/// The longest file of a key that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// `onefold pool key ...`
#[derive(Debug, Subcommand)]
pub enum PoolKeyCommand {
    /// Write the key of a domain to a file, for another pool
    #[command(
        after_help = "Examples:\n  onefold pool key share --domain vms vms.key\n  \
                      onefold pool key share --domain vms - | ssh other onefold pool key take --domain vms -\n\n\
                      Two pools that have the same key find each other's contents by their fingerprints: `onefold send --through` \
                      sends only what the other pool has in no volume of the domain. Who has the key of a domain can tell by a \
                      fingerprint what a block holds; with clnh, also make different blocks that have the same. So share it only \
                      with a pool that you trust as this one, and delete the file when it was taken. Without --domain it is \
                      the pool's own key, from which those of its other domains follow."
    )]
    Share {
        /// A new file, which only its owner can read; - is standard output
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
        /// The domain; the one without a name if this is left out
        #[arg(long, value_name = "NAME", default_value = "")]
        domain: String,
        /// The pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON, without the key
        #[arg(long)]
        json: bool,
    },
    /// Take the key of another pool for a domain that has no volume yet
    #[command(
        after_help = "Example:\n  onefold pool key take --domain vms vms.key\n\n\
                      There is no way back: the domain keeps the key, and programs that do not know of shared keys refuse the pool."
    )]
    Take {
        /// The file that `onefold pool key share` wrote; - is standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
        /// The domain; the one without a name if this is left out
        #[arg(long, value_name = "NAME", default_value = "")]
        domain: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What `--json` prints of a key that was shared.
#[derive(Serialize)]
struct Shared<'a> {
    domain: &'a str,
    file: &'a Path,
}

/// A key as it travels.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    onefold_key_version: u32,
    fingerprint: FingerprintFunction,
    key: Digest,
}

pub(super) fn run(command: PoolKeyCommand) -> Outcome {
    match command {
        PoolKeyCommand::Share {
            file,
            domain,
            pool,
            json,
        } => share(&pool.pool, &domain, &file, json)?,
        PoolKeyCommand::Take {
            file,
            domain,
            pool,
            json,
        } => take(&pool.pool, domain, &file, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn named(domain: &str) -> String {
    match domain {
        "" => "the domain without a name".to_owned(),
        name => format!("domain '{name}'"),
    }
}

fn share(pool: &Path, domain: &str, file: &Path, json: bool) -> Result<(), Failure> {
    if !domain.is_empty() {
        dedup::check_name(domain, "domain")?;
    }
    let is_stdout = file.as_os_str() == "-";
    if is_stdout && io::stdout().is_terminal() {
        return Err(Failure::invalid(
            "a key is no text for a terminal: name a file, or pipe it to `onefold pool key take -`",
        ));
    }
    if is_stdout && json {
        return Err(Failure::invalid(
            "standard output has the key: leave out --json, or name a file",
        ));
    }
    let path = PoolPaths::new(pool).identity;
    let text = std::fs::read(&path).map_err(|error| {
        Failure::invalid(format!(
            "'{}' cannot be read: {error}. The key is in the pool's folder: run this as its owner, on its machine",
            path.display()
        ))
    })?;
    let identity = PoolIdentity::parse(&path, &text).map_err(dedup::EngineError::from)?;
    let key = KeyFile {
        onefold_key_version: VERSION,
        fingerprint: identity.fingerprint,
        key: Digest(dedup::domain_key(&identity.hash_keys, domain)),
    };
    let text = toml::to_string(&key)
        .map_err(|error| Failure::invalid(format!("the key cannot be written: {error}")))?;
    let text = format!(
        "# The key of fingerprints of a domain of an Onefold pool: a secret. `onefold pool key take` reads it.\n{text}"
    );
    if is_stdout {
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush());
        return written
            .map_err(|error| Failure::unavailable(format!("the key cannot be written: {error}")));
    }
    write_new(file, &text)?;
    if json {
        return print_json(&Shared { domain, file });
    }
    print(&format!(
        "wrote the key of {} to {}: who has it should be trusted as this pool is\n",
        named(domain),
        file.display()
    ));
    Ok(())
}

/// Writes a new file that only its owner can read.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: &io::Error| {
        Failure::unavailable(format!(
            "the file '{}' cannot be written: {error}",
            path.display()
        ))
    };
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::invalid(format!(
            "'{}' exists already, and a key replaces no file: name another one",
            path.display()
        )),
        _ => failed(&error),
    })?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| {
            // A part of a key is of no use.
            let _ = std::fs::remove_file(path);
            failed(&error)
        })
}

fn take(pool: &Path, domain: String, file: &Path, json: bool) -> Result<(), Failure> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => io::stdin()
            .lock()
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text),
        false => std::fs::File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| {
        Failure::invalid(format!("'{}' cannot be read: {error}", file.display()))
    })?;
    let is_known = |key: &KeyFile| key.onefold_key_version == VERSION;
    let key = toml::from_str(&text).ok().filter(is_known).ok_or_else(|| {
        Failure::invalid(format!(
            "'{}' is no key: `onefold pool key share` writes one",
            file.display()
        ))
    })?;
    let request = TakeKey {
        domain,
        fingerprint: key.fingerprint,
        key: SecretText(key.key.into()),
    };
    let taken = converse(Client::new(pool).take_key(&request))?;
    if json {
        return print_json(&taken);
    }
    print(&format!(
        "{} has that key from now on\n",
        named(&taken.domain)
    ));
    Ok(())
}
