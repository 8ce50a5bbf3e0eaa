//! Exports as they are configured: volumes that are reached by something else than NVMe.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::errors::Failure;

/// Exports of a target.
pub const EXPORTS_MAX: usize = 1024;

/// The longest path of a socket: `sun_path` has 108 bytes with a zero at the end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How a volume is reached.
///
/// A new kind is a variant here with a check of its address, an arm where the program starts the servers of exports, and
/// an option of `onefold export create`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportKind {
    /// vhost-user-blk: a virtual machine's disk, by a socket of this machine.
    Vhost,
    /// A network block device, by a socket of this machine or by TCP.
    Nbd,
}

impl ExportKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Vhost, Self::Nbd];

    /// Its name, as the API and the command line say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vhost => "vhost",
            Self::Nbd => "nbd",
        }
    }

    /// Whether something of this kind can be reached there.
    fn check_address(self, address: &str) -> Result<(), Failure> {
        match self {
            Self::Vhost => check_socket_path(address),
            Self::Nbd => address.parse::<NbdAddress>().map(drop),
        }
    }
}

impl std::fmt::Display for ExportKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where an NBD server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// `unix:PATH`: a socket of this machine.
    Unix(String),
    /// `tcp://ADDRESS:PORT`
    Tcp(SocketAddr),
}

impl FromStr for NbdAddress {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::invalid(format!(
                "'{}' is no place of an NBD export: name one such as unix:/run/onefold/vm1.nbd, tcp://10.0.0.1:10809 or \
                 tcp://[::1]:10809",
                text.escape_debug()
            ))
        };
        if let Some(path) = text.strip_prefix("unix:") {
            check_socket_path(path)?;
            return Ok(Self::Unix(path.to_owned()));
        }
        let address = text.strip_prefix("tcp://").ok_or_else(wrong)?;
        let address: SocketAddr = address.parse().map_err(|_| wrong())?;
        // One place has one text.
        match address.port() != 0 && format!("tcp://{address}") == text {
            true => Ok(Self::Tcp(address)),
            false => Err(wrong()),
        }
    }
}

impl std::fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{path}"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// Whether a socket can be made at that path, whatever the daemon's working directory is.
fn check_socket_path(path: &str) -> Result<(), Failure> {
    let has_name = Path::new(path).file_name().is_some() && !path.ends_with('/');
    if !path.starts_with('/') || !has_name || path.contains('\0') {
        return Err(Failure::invalid(format!(
            "'{}' is no absolute path of a socket: name one such as /run/onefold/vm1.sock",
            path.escape_debug()
        )));
    }
    match path.len() > SOCKET_PATH_BYTES_MAX {
        true => Err(Failure::invalid(format!(
            "'{path}' is too long for a socket: use at most {SOCKET_PATH_BYTES_MAX} bytes"
        ))),
        false => Ok(()),
    }
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportConfig {
    /// Its number.
    pub id: u16,
    /// The volume, by its identity.
    pub volume: Uuid,
    /// How it is reached.
    pub kind: ExportKind,
    /// Where: of [`ExportKind::Vhost`] the path of a socket, of [`ExportKind::Nbd`] an [`NbdAddress`].
    pub address: String,
    /// It takes no writes.
    #[serde(default)]
    pub read_only: bool,
}

impl ExportConfig {
    /// Whether there can be such an export.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        self.kind.check_address(&self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_an_absolute_path_that_fits() {
        for good in ["/run/a.sock", "/a", "/run/vm 1/b"] {
            assert!(ExportKind::Vhost.check_address(good).is_ok(), "{good}");
        }
        let long = format!("/{}", "a".repeat(SOCKET_PATH_BYTES_MAX));
        for bad in ["", "/", "a.sock", "./a", "/run/", "/a\0b", "/run/..", &long] {
            assert!(ExportKind::Vhost.check_address(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_nbd_export_is_at_a_socket_or_at_an_address_with_a_port() {
        for good in [
            "unix:/run/a.nbd",
            "tcp://127.0.0.1:10809",
            "tcp://0.0.0.0:1",
            "tcp://[::]:10809",
        ] {
            let address: NbdAddress = good.parse().expect("an address");
            assert_eq!(address.to_string(), good);
        }
        for bad in [
            "",
            "/run/a.nbd",
            "unix:a.nbd",
            "unix:",
            "tcp://127.0.0.1",
            "tcp://127.0.0.1:0",
            "tcp://localhost:10809",
            "tcp://[0:0::1]:10809",
            "127.0.0.1:10809",
        ] {
            assert!(ExportKind::Nbd.check_address(bad).is_err(), "{bad:?}");
        }
    }
}
