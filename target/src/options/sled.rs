//! The options of `onefold sled serve`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser;
use fabric::TransportAddress;
use nvme::Nqn;

use super::DriveArg;
use crate::logging::{LOG_VARIABLE, LogFormat, parse_filter};
use crate::size::parse_size;
use crate::time::parse_spin;

/// Headings of the options.
const WHO_HEADING: &str = "Names and access";
const MACHINE_HEADING: &str = "This machine";

/// `onefold sled serve`
#[derive(Clone, Debug, PartialEq, Args)]
#[command(
    after_help = "Examples:\n  onefold sled serve --listen tcp://192.0.2.7:4420 --drive /dev/nvme0n1 --drive /dev/nvme1n1 \\\n      \
                  --host nqn.2014-08.org.nvmexpress:uuid:6c1e3f0a-58a5-4d3a-9d2e-2f6f1b7f3a10\n  \
                  onefold sled serve --listen tcp://127.0.0.1:4420 --drive /srv/drive.img=100G\n\n\
                  It prints a line that begins with 'ready' when hosts can connect, then each drive with\n\
                  what names it elsewhere. Ctrl-C, SIGTERM and closing the terminal stop it cleanly."
)]
pub struct SledServeArgs {
    /// Serve on this address (repeatable)
    ///
    /// As `onefold serve` takes it: rdma:// takes a verbs device that owns the address, or else soft RoCE.
    #[arg(long = "listen", value_name = "tcp|rdma://ADDR:PORT", required = true)]
    pub listen: Vec<TransportAddress>,
    /// A drive to serve, a file or a block device (repeatable): the first is namespace 1, and so on
    ///
    /// It may belong to a pool. PATH=SIZE makes a file that is missing; memory=SIZE is for measurements, and nothing of it
    /// is kept. Add drives at the end: hosts that find another drive behind a number refuse it.
    #[arg(long = "drive", value_name = "PATH[=SIZE]", required = true)]
    pub drives: Vec<DriveArg>,
    /// Let this host connect, and no others but those that are named so too (repeatable) [default: any host]
    ///
    /// By ,dhchap-secret-file=FILE it has to prove who it is, by ,dhchap-ctrl-secret-file=FILE the sled proves itself too, and
    /// by ,tls-key-file=FILE it has to use TLS, over TCP. SIGHUP reads these files again.
    #[arg(long = "host", value_name = "NQN[,OPTION...]", help_heading = WHO_HEADING)]
    pub hosts: Vec<HostArg>,
    /// The sled's name, the end of its NQN [default: made from /etc/machine-id]
    ///
    /// Files, and devices without a serial number, have UUIDs that are made of it and their path. A second sled of a
    /// machine needs a name of its own.
    #[arg(long, value_name = "NAME", value_parser = parse_name, help_heading = WHO_HEADING)]
    pub name: Option<String>,
    /// Keep who has reserved a drive in this folder, so that a host that was shut out stays so after a restart [default:
    /// /var/lib/onefold/reservations, if this user may write there]
    #[arg(long, value_name = "DIR", help_heading = WHO_HEADING)]
    pub reservations: Option<PathBuf>,
    /// Memory for data between hosts and drives, for all threads together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M", help_heading = MACHINE_HEADING)]
    pub buffers: u64,
    /// Data-plane threads [default: one for each core, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64).map(usize::from), help_heading = MACHINE_HEADING)]
    pub reactors: Option<usize>,
    /// How long an idle data-plane thread polls before it sleeps, at most 1ms
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_spin, help_heading = MACHINE_HEADING)]
    pub spin: Duration,
    /// What is logged to standard error, as `onefold serve --log` takes it
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = parse_filter, env = LOG_VARIABLE, hide_env = true, help_heading = MACHINE_HEADING)]
    pub log: String,
    /// How it is written: as text, or as JSON, one object a line
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_possible_values = true, help_heading = MACHINE_HEADING)]
    pub log_format: LogFormat,
}

/// A host as `--host` names it: `NQN[,dhchap-secret-file=FILE][,dhchap-ctrl-secret-file=FILE][,tls-key-file=FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostArg {
    /// The host's name.
    pub nqn: Nqn,
    /// The file with its secret.
    pub dhchap_secret_file: Option<PathBuf>,
    /// The file with the controller's secret.
    pub dhchap_ctrl_secret_file: Option<PathBuf>,
    /// The file with its key for TLS.
    pub tls_key_file: Option<PathBuf>,
}

impl FromStr for HostArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut host = Self {
            nqn: parse_host(parts.next().unwrap_or_default())?,
            dhchap_secret_file: None,
            dhchap_ctrl_secret_file: None,
            tls_key_file: None,
        };
        for part in parts {
            let (name, file) = part.split_once('=').unwrap_or((part, ""));
            let place = match name {
                "dhchap-secret-file" => &mut host.dhchap_secret_file,
                "dhchap-ctrl-secret-file" => &mut host.dhchap_ctrl_secret_file,
                "tls-key-file" => &mut host.tls_key_file,
                _ => {
                    return Err(format!(
                        "'{name}' is nothing that a host has here: write \
                         NQN[,dhchap-secret-file=FILE][,dhchap-ctrl-secret-file=FILE][,tls-key-file=FILE]"
                    ));
                }
            };
            if file.is_empty() {
                return Err(format!(
                    "'{name}' needs a file, such as {name}=/etc/onefold/host.key"
                ));
            }
            if place.replace(PathBuf::from(file)).is_some() {
                return Err(format!("'{name}' is there twice: write it once"));
            }
        }
        match (&host.dhchap_secret_file, &host.dhchap_ctrl_secret_file) {
            (None, Some(_)) => Err(
                "a controller's secret needs one of the host too: dhchap-secret-file".to_owned(),
            ),
            _ => Ok(host),
        }
    }
}

/// Parses a host's name.
fn parse_host(text: &str) -> Result<Nqn, String> {
    let nqn = Nqn::new(text).map_err(|error| format!("'{text}': {error}"))?;
    nqn.check_form()
        .map_err(|error| format!("'{text}': {error}"))?;
    Ok(nqn)
}

/// Parses a sled's name. What stands behind its NQN where a drive is named is no part of it: a '#', for one.
fn parse_name(text: &str) -> Result<String, String> {
    let is_in_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_in_names) {
        return Err(format!(
            "'{text}' is no name: it takes letters, digits, '-', '_' and '.'"
        ));
    }
    let nqn = ::sled::identity::nqn_of(text).map_err(|error| format!("'{text}': {error}"))?;
    nqn.check_form()
        .map_err(|error| format!("'{text}': {error}"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_files_that_stand_behind_its_name() {
        let nqn = "nqn.2026-11.org.example:a";
        let parsed = |options: &str| format!("{nqn}{options}").parse::<HostArg>();
        let bare = parsed("").expect("a host");
        assert_eq!(bare.nqn.as_str(), nqn);
        assert_eq!(bare.dhchap_secret_file, None);
        let all = ",tls-key-file=/t,dhchap-secret-file=/h,dhchap-ctrl-secret-file=/c";
        let all = parsed(all).expect("a host");
        let files = [
            all.tls_key_file,
            all.dhchap_secret_file,
            all.dhchap_ctrl_secret_file,
        ];
        assert_eq!(
            files,
            ["/t", "/h", "/c"].map(|file| Some(PathBuf::from(file)))
        );
        for (wrong, told) in [
            (",tls=/t", "'tls'"),
            (",", "''"),
            (",tls-key-file", "needs a file"),
            (",tls-key-file=", "needs a file"),
            (",tls-key-file=/t,tls-key-file=/t", "twice"),
            (",dhchap-ctrl-secret-file=/c", "one of the host too"),
        ] {
            let error = parsed(wrong).expect_err(wrong);
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn names_that_make_no_nqn_are_refused() {
        assert_eq!(parse_name("rack1-s2").as_deref(), Ok("rack1-s2"));
        for wrong in ["", "two words", "x...", "a#1", "a/b"] {
            assert!(parse_name(wrong).is_err(), "{wrong}");
        }
        assert!(parse_host("nqn.2026-11.org.example:a").is_ok());
        for wrong in ["", "host1", "nqn.2014-08.org.nvmexpress:uuid:x"] {
            assert!(parse_host(wrong).is_err(), "{wrong}");
        }
    }
}
