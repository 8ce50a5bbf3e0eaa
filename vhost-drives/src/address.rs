//! Where a drive's server listens: `vhost-user:/PATH/TO/SOCKET`.
//!
//! Guarantee: what is printed is read again as the same address.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// How the address of such a drive begins.
const SCHEME: &str = "vhost-user:";

/// Longest path of a socket, in bytes (`sun_path` of unix(7), without the zero at its end).
const PATH_BYTES_MAX: usize = 107;

/// The socket of a vhost-user-blk server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketAddress {
    path: PathBuf,
}

/// Why a text is not the address of such a socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not the address of a vhost-user-blk server: {reason}; write vhost-user:/PATH/TO/SOCKET"
)]
pub struct SocketAddressError {
    text: String,
    reason: &'static str,
}

impl SocketAddress {
    /// Whether a text is meant as such an address.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The socket's path, which is absolute.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.path
    }

    /// The address as the path of a drive.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.path.display())
    }
}

impl FromStr for SocketAddress {
    type Err = SocketAddressError;

    fn from_str(text: &str) -> Result<Self, SocketAddressError> {
        let error = |reason| SocketAddressError {
            text: text.to_owned(),
            reason,
        };
        let path = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| error("it does not begin with vhost-user:"))?;
        if path.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(error("its path has control characters"));
        }
        let path = Path::new(path);
        if !path.is_absolute() {
            return Err(error("its path does not begin with /"));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(error("its path has .. in it"));
        }
        // Without doubled slashes and dots, so that two texts of one path are alike.
        let path: PathBuf = path.components().collect();
        if path.file_name().is_none() {
            return Err(error("it names no socket"));
        }
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(error("the path of a socket has at most 107 bytes"));
        }
        Ok(Self { path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_is_read() {
        for text in ["vhost-user:/run/a.sock", "vhost-user://run/./a.sock"] {
            let address: SocketAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), "vhost-user:/run/a.sock");
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn what_names_no_socket_is_refused_with_the_form_to_write() {
        let long = format!("vhost-user:/{}", "a".repeat(107));
        for text in [
            "vhost-user:",
            "vhost-user:/",
            "vhost-user:run/a",
            "vhost-user:/a/../b",
            "vhost-user:/a\nb",
            "/run/a",
            &long,
        ] {
            let error = text.parse::<SocketAddress>().expect_err(text).to_string();
            assert!(error.contains("write vhost-user:/PATH"), "{error}");
        }
    }
}
