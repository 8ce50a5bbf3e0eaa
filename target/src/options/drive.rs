//! A drive as `--drive` and `onefold drive add` name it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use fabric_drives::RemoteAddress;
use rados_drives::RadosAddress;
use vhost_drives::SocketAddress;

use crate::size::parse_size;

/// What `--drive` calls memory.
const MEMORY: &str = "memory";

/// What comes before the name of a failure domain.
const DOMAIN: &str = ",domain=";

/// `PATH[=SIZE][,domain=NAME]` or `memory=SIZE`; a path may be `nvme+tcp://HOST[:PORT]/NQN#NSID`,
/// `nvme+rdma://...`, `vhost-user:/SOCKET` or `rados:POOL[/NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveArg {
    /// A file, a block device, a namespace of another NVMe-oF target, a device of a vhost-user-blk server, or objects of a Ceph
    /// cluster.
    Path {
        /// Where it is: a path, or an address, written out.
        path: PathBuf,
        /// The size to give a file, or a drive in a cluster, that does not exist, in bytes.
        size_bytes: Option<u64>,
        /// Its failure domain; `None`: it fails alone.
        domain: Option<String>,
    },
    /// Memory that is lost at the end.
    Memory {
        /// Its size in bytes.
        size_bytes: u64,
    },
}

impl DriveArg {
    /// Whether it keeps nothing.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Memory { .. })
    }
}

/// The path of a drive as somebody types it, in the one form that a pool has of it: an address is written out, a path made
/// absolute.
///
/// # Errors
/// It is meant as an address, and is none; or there is no working directory.
pub fn drive_path(typed: &Path) -> Result<PathBuf, String> {
    match typed.to_str() {
        Some(text) if RemoteAddress::is_meant(text) => {
            let address: RemoteAddress = text.parse().map_err(|error| format!("{error}"))?;
            Ok(address.to_path())
        }
        Some(text) if SocketAddress::is_meant(text) => {
            let address: SocketAddress = text.parse().map_err(|error| format!("{error}"))?;
            Ok(address.to_path())
        }
        Some(text) if RadosAddress::is_meant(text) => {
            let address: RadosAddress = text.parse().map_err(|error| format!("{error}"))?;
            Ok(address.to_path())
        }
        _ => std::path::absolute(typed)
            .map_err(|error| format!("drive '{}': {error}", typed.display())),
    }
}

/// A drive in a cluster, with or without a size. Names in an address have no '=', and the user that `user=16G` names is one.
fn in_cluster(text: &str, domain: Option<String>) -> Result<DriveArg, String> {
    let whole = drive_path(Path::new(text));
    let sized = text.rsplit_once('=').and_then(|(address, size)| {
        let size_bytes = parse_size(size).ok()?;
        Some((drive_path(Path::new(address)).ok()?, size_bytes))
    });
    let (path, size_bytes) = match (whole, sized) {
        (Ok(path), _) => (path, None),
        (Err(_), Some((path, size_bytes))) => (path, Some(size_bytes)),
        (Err(error), None) => return Err(error),
    };
    Ok(DriveArg::Path {
        path,
        size_bytes,
        domain,
    })
}

impl FromStr for DriveArg {
    type Err = String;

    /// A path may hold '='; only a size after the last one is taken as a size. A file that is called
    /// memory is `./memory`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (text, domain) = match text.rsplit_once(DOMAIN) {
            Some((_, "")) => {
                return Err(format!(
                    "a failure domain needs a name, such as {DOMAIN}psu-a"
                ));
            }
            Some((drive, domain)) => (drive, Some(domain.to_owned())),
            None => (text, None),
        };
        if RemoteAddress::is_meant(text) || SocketAddress::is_meant(text) {
            return Ok(Self::Path {
                path: drive_path(Path::new(text))?,
                size_bytes: None,
                domain,
            });
        }
        if RadosAddress::is_meant(text) {
            return in_cluster(text, domain);
        }
        if let Some((path, size)) = text.rsplit_once('=')
            && let Ok(size_bytes) = parse_size(size)
            && !path.is_empty()
        {
            if path == MEMORY && domain.is_some() {
                return Err("memory has no failure domain: it must be the only drive".to_owned());
            }
            if path == MEMORY {
                return Ok(Self::Memory { size_bytes });
            }
            return Ok(Self::Path {
                path: PathBuf::from(path),
                size_bytes: Some(size_bytes),
                domain,
            });
        }
        if text.is_empty() {
            return Err("a drive needs a path".to_owned());
        }
        if text == MEMORY {
            return Err("memory needs a size, such as memory=4G".to_owned());
        }
        Ok(Self::Path {
            path: PathBuf::from(text),
            size_bytes: None,
            domain,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_in_a_cluster_has_the_size_behind_its_address_and_no_other() {
        for (text, path, size) in [
            ("rados:p", "rados:p/onefold", None),
            ("rados:p/a=2G", "rados:p/a", Some(2 << 30)),
            ("rados:p?user=x=2G", "rados:p/onefold?user=x", Some(2 << 30)),
            (
                "rados:p?conf=/c=2G",
                "rados:p/onefold?conf=/c",
                Some(2 << 30),
            ),
            ("rados:p?user=2G", "rados:p/onefold?user=2G", None),
        ] {
            let expected = DriveArg::Path {
                path: path.into(),
                size_bytes: size,
                domain: None,
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["rados:", "rados:p=much", "rados:p?conf=c=2G"] {
            let error = text.parse::<DriveArg>().expect_err(text);
            assert!(error.contains("write rados:POOL"), "{error}");
        }
    }
}
