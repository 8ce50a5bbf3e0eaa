//! `onefold host ...`: the keys that a running daemon stores for hosts, and new ones.
//!
//! Secrets come from files or standard input, never from the command line, which others can see.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use api::client::Client;
use api::hosts::{AddTlsKey, CreateHost, HostView, SecretText, SetHost, TlsKeyView};
use clap::{ArgAction, Subcommand};
use fabric::TlsHostConfig;
use nvme::Nqn;
use nvme::auth::{ConfiguredPsk, Hash, HostKeys, Secret};
use subsystem::errors::Failure;

use super::ask;
use super::limit::{LimitArgs, limit_line};
use super::run::converse;
use super::subsystem::{Answer, show};
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::options::parse_switch;

/// A file with a secret is one line of 59 to 104 bytes.
const SECRET_FILE_BYTES_MAX: u64 = 4096;

/// A host's keys.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct KeyArgs {
    /// A file with the host's secret (DHHC-1:...), - for standard input. The host then has to authenticate. A new secret
    /// does not end queues that are connected
    #[arg(long, value_name = "FILE")]
    pub dhchap_secret_file: Option<PathBuf>,
    /// A file with the controller's secret, for hosts that authenticate the controller too
    #[arg(long, value_name = "FILE")]
    pub dhchap_ctrl_secret_file: Option<PathBuf>,
    /// Hashes to negotiate, the preferred one first: sha256, sha384, sha512 [default: all]
    #[arg(long, value_name = "HASH,...", value_delimiter = ',')]
    pub dhchap_hashes: Option<Vec<String>>,
    /// Diffie-Hellman groups to negotiate: null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144,
    /// ffdhe8192 [default: all]
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub dhchap_groups: Option<Vec<String>>,
    /// Whether the host must use TLS, with a stored key or one made by its authentication. Its connections
    /// without TLS are closed
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = ArgAction::Set)]
    pub tls_only: Option<bool>,
}

/// `onefold host ...`
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Store a host's keys
    #[command(after_help = "Example:\n  onefold host create HOSTNQN --dhchap-secret-file host.key")]
    Create {
        /// Its name
        nqn: Nqn,
        /// Its keys.
        #[command(flatten)]
        keys: KeyArgs,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the hosts that have stored keys
    #[command(after_help = "Example:\n  onefold host list")]
    List {
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// Show a host's stored keys, without the secrets
    #[command(after_help = "Example:\n  onefold host show HOSTNQN")]
    Show {
        /// Its name
        nqn: Nqn,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// Delete a host's keys: it need not authenticate any more
    #[command(after_help = "Example:\n  onefold host delete HOSTNQN")]
    Delete {
        /// Its name
        nqn: Nqn,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// Change a host's keys; hosts stay connected, and authenticate with the new ones next time
    #[command(after_help = "Example:\n  onefold host set HOSTNQN --dhchap-secret-file new.key")]
    Set {
        /// Its name
        nqn: Nqn,
        /// Its keys; what is not named stays.
        #[command(flatten)]
        keys: KeyArgs,
        /// Delete the host's secret
        #[arg(long, conflicts_with = "dhchap_secret_file")]
        no_dhchap_secret: bool,
        /// Delete the controller's secret
        #[arg(long, conflicts_with = "dhchap_ctrl_secret_file")]
        no_dhchap_ctrl_secret: bool,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// Limit what a host may do in a second, on all of its paths and volumes, or guarantee it a part; it need not have stored keys
    #[command(
        after_help = "Examples:\n  onefold host limit HOSTNQN --limit-iops 20000 --limit-bandwidth 1G\n  \
                      onefold host limit HOSTNQN --guarantee-iops 5000\n\n\
                      `onefold status` shows limits and guarantees, and how often and how long commands were held back."
    )]
    Limit {
        /// Its name
        nqn: Nqn,
        /// Its limits and guarantees; what is not named stays.
        #[command(flatten)]
        limits: LimitArgs,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// Add, list and remove the TLS keys of a host
    #[command(subcommand)]
    TlsKey(TlsKeyCommand),
    /// Print a new TLS key, as `nvme gen-tls-key` does
    #[command(after_help = "Example:\n  (umask 077; onefold host gen-tls-key >host.tls)")]
    GenTlsKey {
        /// The hash of the cipher suite that it is for: sha256 or sha384
        #[arg(long, default_value = "sha256", value_parser = parse_tls_hash)]
        hash: Hash,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a new secret, as `nvme gen-dhchap-key` does
    #[command(after_help = "Example:\n  (umask 077; onefold host gen-dhchap-key >host.key)")]
    GenDhchapKey {
        /// The hash that binds it to its owner's name: none, sha256, sha384 or sha512
        #[arg(long, default_value = "sha256", value_parser = parse_hash)]
        hash: HashArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `onefold host tls-key ...`
#[derive(Debug, Subcommand)]
pub enum TlsKeyCommand {
    /// Add a TLS key to a host, for its next connections
    #[command(
        after_help = "Example:\n  onefold host tls-key add HOSTNQN --file host.tls\n\n\
                      To change a key without a disconnect: add the new one, give it to the host, remove the old one.\n\
                      Listeners take TLS when they are told to: `onefold listener set ADDRESS --tls allowed`."
    )]
    Add {
        /// The host's name
        nqn: Nqn,
        /// A file with the key (NVMeTLSkey-1:...), - for standard input
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
        /// The host's nvme-cli is older than 2.14 and uses identities of version 0 (NVMe0R...)
        #[arg(long)]
        compat: bool,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the TLS keys of a host, by number
    #[command(after_help = "Example:\n  onefold host tls-key list HOSTNQN")]
    List {
        /// The host's name
        nqn: Nqn,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a TLS key of a host; queues that use it stay connected
    #[command(after_help = "Example:\n  onefold host tls-key remove HOSTNQN 1")]
    Remove {
        /// The host's name
        nqn: Nqn,
        /// The key's number
        id: u32,
        /// Where to ask.
        #[command(flatten)]
        answer: Answer,
    },
}

fn parse_tls_hash(text: &str) -> Result<Hash, String> {
    match Hash::from_name(text) {
        Some(hash @ (Hash::Sha256 | Hash::Sha384)) => Ok(hash),
        Some(Hash::Sha512) | None => Err(format!(
            "'{text}' is not a hash of TLS keys: use sha256 or sha384"
        )),
    }
}

/// A hash, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashArg(Option<Hash>);

fn parse_hash(text: &str) -> Result<HashArg, String> {
    match text {
        "none" => Ok(HashArg(None)),
        name => Hash::from_name(name)
            .map(|hash| HashArg(Some(hash)))
            .ok_or_else(|| format!("'{name}' is not a hash: use none, sha256, sha384 or sha512")),
    }
}

/// The host as which `discover` and `perf` connect.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct IdentityArgs {
    /// Connect as this host [default: a new random name]
    #[arg(long, value_name = "NQN")]
    pub hostnqn: Option<Nqn>,
    /// A file with the host's secret (DHHC-1:...), - for standard input
    #[arg(long, value_name = "FILE", requires = "hostnqn")]
    pub dhchap_secret_file: Option<PathBuf>,
    /// A file with the controller's secret, by which the target has to authenticate itself
    #[arg(long, value_name = "FILE", requires = "dhchap_secret_file")]
    pub dhchap_ctrl_secret_file: Option<PathBuf>,
}

impl IdentityArgs {
    /// What the host authenticates with.
    pub(super) fn keys(&self) -> Result<Option<Arc<HostKeys>>, Failure> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(read_secret).transpose();
        let controller = read(&self.dhchap_ctrl_secret_file)?;
        let keys = |secret| Arc::new(HostKeys::new(secret, controller));
        Ok(read(&self.dhchap_secret_file)?.map(keys))
    }
}

/// TLS of `discover` and `perf`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArgs {
    /// Over TCP: use TLS; a file with the host's key (NVMeTLSkey-1:...), - for standard input
    #[arg(long, value_name = "FILE", requires = "hostnqn")]
    pub tls_key_file: Option<PathBuf>,
}

impl TlsArgs {
    /// The keys that the host has for a subsystem.
    pub(super) fn config(
        &self,
        host: Option<&Nqn>,
        subsystem: &str,
    ) -> Result<Option<TlsHostConfig>, Failure> {
        let (Some(path), Some(host)) = (&self.tls_key_file, host) else {
            return Ok(None);
        };
        let key = read_file(path, ConfiguredPsk::parse)?;
        let config = TlsHostConfig::of(&key, host.as_str(), subsystem);
        config
            .map(Some)
            .map_err(|error| Failure::unavailable(error.to_string()))
    }
}

/// A secret from a file or from standard input.
pub(super) fn read_file<T, E: fmt::Display>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Failure> {
    let failed =
        |error: &dyn fmt::Display| Failure::invalid(format!("{}: {error}", path.display()));
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        from.take(SECRET_FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = match path.as_os_str() == "-" {
        true => read(&mut std::io::stdin().lock()),
        false => std::fs::File::open(path).and_then(|mut file| read(&mut file)),
    };
    parse(&text.map_err(|e| failed(&e))?).map_err(|e| failed(&e))
}

fn read_secret(path: &Path) -> Result<Secret, Failure> {
    read_file(path, Secret::parse)
}

impl KeyArgs {
    fn request(self) -> Result<SetHost, Failure> {
        let read = |path: Option<PathBuf>| -> Result<_, Failure> {
            let secret = path.as_deref().map(read_secret).transpose()?;
            Ok(secret.map(|secret| Some(SecretText(secret.to_text().to_string()))))
        };
        Ok(SetHost {
            dhchap_secret: read(self.dhchap_secret_file)?,
            dhchap_ctrl_secret: read(self.dhchap_ctrl_secret_file)?,
            dhchap_hashes: self.dhchap_hashes,
            dhchap_groups: self.dhchap_groups,
            tls_only: self.tls_only,
        })
    }
}

pub(super) fn host(command: HostCommand) -> Outcome {
    let client = |answer: &Answer| Client::new(&answer.pool.pool);
    match command {
        HostCommand::Create { nqn, keys, answer } => {
            let set = keys.request()?;
            let protects = matches!(set.dhchap_secret, Some(Some(_)));
            let client = client(&answer);
            let view = converse(client.create_host(&CreateHost { nqn, set }))?;
            let done = show(&view, answer.json, host_text)?;
            if protects {
                ask::tell(converse(still_open(&client))?);
            }
            Ok(done)
        }
        HostCommand::List { answer } => {
            let views = converse(client(&answer).hosts())?;
            show(&views, answer.json, |views| host_table(views))
        }
        HostCommand::Show { nqn, answer } => {
            let view = converse(client(&answer).host(&nqn))?;
            show(&view, answer.json, host_text)
        }
        HostCommand::Limit {
            nqn,
            limits,
            answer,
        } => {
            let request = limits.request();
            let view = converse(client(&answer).set_host_limits(&nqn, &request))?;
            show(&view, answer.json, limit_line)
        }
        HostCommand::Delete { nqn, answer } => {
            let client = client(&answer);
            let view = converse(client.delete_host(&nqn))?;
            let done = show(&view, answer.json, |view| format!("deleted {}\n", view.nqn))?;
            if view.dhchap_secret.is_some() {
                ask::tell(converse(admitted(&client, &nqn))?);
            }
            Ok(done)
        }
        HostCommand::Set {
            nqn,
            keys,
            no_dhchap_secret,
            no_dhchap_ctrl_secret,
            answer,
        } => {
            let mut set = keys.request()?;
            if no_dhchap_secret {
                set.dhchap_secret = Some(None);
            }
            if no_dhchap_ctrl_secret {
                set.dhchap_ctrl_secret = Some(None);
            }
            if set == SetHost::default() {
                return Err(Failure::invalid(
                    "nothing to change: name --dhchap-secret-file, --dhchap-ctrl-secret-file, \
                     --dhchap-hashes, --dhchap-groups or --tls-only",
                )
                .into());
            }
            let protects = matches!(set.dhchap_secret, Some(Some(_)));
            let client = client(&answer);
            let view = converse(client.set_host(&nqn, &set))?;
            let done = show(&view, answer.json, host_text)?;
            if protects {
                ask::tell(converse(still_open(&client))?);
            }
            if no_dhchap_secret {
                ask::tell(converse(admitted(&client, &nqn))?);
            }
            Ok(done)
        }
        HostCommand::TlsKey(command) => tls_key(command),
        HostCommand::GenTlsKey { hash, json } => {
            let key = ConfiguredPsk::from_random(hash, &subsystem::auth::random());
            print_made("tls_key", &key.to_text(), json)
        }
        HostCommand::GenDhchapKey {
            hash: HashArg(hash),
            json,
        } => {
            let secret = Secret::from_random(hash, &subsystem::auth::random());
            print_made("dhchap_secret", &secret.to_text(), json)
        }
    }
}

/// Prints a new key: nobody else has it.
fn print_made(name: &str, key: &str, json: bool) -> Outcome {
    match json {
        true => print_json(&serde_json::Map::from_iter([(name.to_owned(), key.into())]))?,
        false => print(&format!("{key}\n")),
    }
    Ok(ExitCode::SUCCESS)
}

/// The subsystems that a host's secret does not protect: they admit hosts by any other name.
async fn still_open(client: &Client) -> Result<Option<String>, Failure> {
    let subsystems = client.subsystems().await?.into_iter();
    let open = subsystems.filter(|subsystem| subsystem.allow_any_host);
    let names: Vec<_> = open.map(|subsystem| subsystem.nqn.to_string()).collect();
    Ok((!names.is_empty()).then(|| {
        format!(
            "These subsystems still admit any host, with or without a secret: {}. `onefold subsystem allow NQN HOSTNQN` \
             admits only hosts on a list.",
            names.join(", ")
        )
    }))
}

/// The subsystems that admit a host which need not authenticate any more.
async fn admitted(client: &Client, host: &Nqn) -> Result<Option<String>, Failure> {
    let subsystems = client.subsystems().await?.into_iter();
    let open =
        subsystems.filter(|subsystem| subsystem.allow_any_host || subsystem.hosts.contains(host));
    let names: Vec<_> = open.map(|subsystem| subsystem.nqn.to_string()).collect();
    Ok((!names.is_empty()).then(|| {
        format!(
            "Any machine that uses the name {host} is now admitted without a secret to: {}.",
            names.join(", ")
        )
    }))
}

fn tls_key(command: TlsKeyCommand) -> Outcome {
    let client = |answer: &Answer| Client::new(&answer.pool.pool);
    match command {
        TlsKeyCommand::Add {
            nqn,
            file,
            compat,
            answer,
        } => {
            let key = read_file(&file, ConfiguredPsk::parse)?;
            let key = SecretText(key.to_text().to_string());
            let request = AddTlsKey { key, compat };
            let view = converse(client(&answer).add_tls_key(&nqn, &request))?;
            show(&view, answer.json, |view| {
                format!("key {} of {nqn}\n", view.id)
            })
        }
        TlsKeyCommand::List { nqn, answer } => {
            let view = converse(client(&answer).host(&nqn))?;
            show(&view.tls_keys, answer.json, |keys| tls_key_table(keys))
        }
        TlsKeyCommand::Remove { nqn, id, answer } => {
            let view = converse(client(&answer).remove_tls_key(&nqn, id))?;
            let text = |view: &TlsKeyView| format!("removed key {} of {nqn}\n", view.id);
            show(&view, answer.json, text)
        }
    }
}

fn tls_key_table(keys: &[TlsKeyView]) -> String {
    if keys.is_empty() {
        return "The host has no TLS key.\n".to_owned();
    }
    let derivation = |key: &TlsKeyView| if key.compat { "compat" } else { "standard" };
    let rows: Vec<_> = keys
        .iter()
        .map(|key| {
            vec![
                key.id.to_string(),
                key.hash.clone(),
                derivation(key).to_owned(),
                key.fingerprint.clone(),
                key.since.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    table(
        &["KEY", "HASH", "VERSION 0", "FINGERPRINT", "SINCE"],
        &rows,
        &[
            Align::Right,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
        ],
    )
}

/// The TLS keys of a host, for a line.
fn tls_keys(keys: &[TlsKeyView]) -> String {
    if keys.is_empty() {
        return "none".to_owned();
    }
    let keys = keys.iter().map(|key| format!("{} ({})", key.id, key.hash));
    keys.collect::<Vec<_>>().join(", ")
}

/// Whether a secret is stored, for people.
fn kept(hash: &Option<String>) -> String {
    hash.as_ref()
        .map_or_else(|| "none".to_owned(), |hash| format!("kept ({hash})"))
}

/// Which secret that is, and since when.
fn which(fingerprint: &Option<String>, since: &Option<String>) -> String {
    let fingerprint = fingerprint.as_ref().map(|it| format!(", fingerprint {it}"));
    let since = since.as_ref().map(|it| format!(", since {it}"));
    fingerprint.unwrap_or_default() + &since.unwrap_or_default()
}

fn any_of(names: &[String]) -> String {
    match names {
        [] => "all".to_owned(),
        names => names.join(","),
    }
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn host_text(view: &HostView) -> String {
    format!(
        "{}\n  secret             {}{}\n  controller's       {}{}\n  hashes             {}\n  groups             {}\n  TLS keys           {}\n  TLS only           {}\n",
        view.nqn,
        kept(&view.dhchap_secret),
        which(&view.dhchap_secret_fingerprint, &view.dhchap_secret_since),
        kept(&view.dhchap_ctrl_secret),
        which(
            &view.dhchap_ctrl_secret_fingerprint,
            &view.dhchap_ctrl_secret_since,
        ),
        any_of(&view.dhchap_hashes),
        any_of(&view.dhchap_groups),
        tls_keys(&view.tls_keys),
        on_or_off(view.tls_only),
    )
}

fn host_table(views: &[HostView]) -> String {
    if views.is_empty() {
        return "No host has stored keys, so no host has to authenticate.\n".to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.nqn.to_string(),
                kept(&view.dhchap_secret),
                kept(&view.dhchap_ctrl_secret),
                any_of(&view.dhchap_hashes),
                any_of(&view.dhchap_groups),
                tls_keys(&view.tls_keys),
                on_or_off(view.tls_only).to_owned(),
            ]
        })
        .collect();
    table(
        &[
            "HOST",
            "SECRET",
            "CONTROLLER",
            "HASHES",
            "GROUPS",
            "TLS KEYS",
            "TLS ONLY",
        ],
        &rows,
        &[Align::Left; 7],
    )
}
