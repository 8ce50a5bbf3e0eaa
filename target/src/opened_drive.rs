//! A drive of a pool before the engine has it: a file, a device, or a namespace of another NVMe-oF target.
//!
//! Guarantee: a namespace is claimed for the pool before anything is written to it ([`RemoteDrive::claim`]).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use drives::{Content, Drive, DriveError, ErrorKind, FileDrive, OpenOptions};
use fabric_drives::{BlockingDrive, Claim, RemoteAddress, RemoteDrive};
use nvme::Nqn;
use uuid::Uuid;

/// Where a machine's NVMe host name is, of the package nvme-cli: the kernel's host side uses it too.
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";

/// What names a machine that has no such file (machine-id(5)).
const MACHINE_ID_FILE: &str = "/etc/machine-id";

/// See the module.
#[derive(Debug)]
pub(crate) enum OpenedDrive {
    /// A file or a block device.
    File(FileDrive),
    /// A namespace.
    Remote(RemoteDrive),
}

impl OpenedDrive {
    /// Opens what the path names; a namespace for reading. A file may be made.
    ///
    /// # Errors
    /// As of [`FileDrive::open`] and [`RemoteDrive::open`]; a namespace is not made.
    pub(crate) async fn open(path: &Path, options: &OpenOptions) -> Result<Self, DriveError> {
        let Some(text) = path.to_str().filter(|text| RemoteAddress::is_meant(text)) else {
            return FileDrive::open(path, options).map(Self::File);
        };
        let invalid = |error| DriveError::new(ErrorKind::Invalid, text, format!("{error}"));
        let address: RemoteAddress = text.parse().map_err(invalid)?;
        let host = host_nqn();
        tracing::info!(drive = text, %host, "connecting to the drive's target");
        let remote = fabric_drives::OpenOptions {
            expected_blocks: options.expected_blocks,
            ..fabric_drives::OpenOptions::new(host)
        };
        RemoteDrive::open(address, remote).await.map(Self::Remote)
    }

    /// As a drive.
    pub(crate) fn drive(&self) -> &dyn Drive {
        match self {
            Self::File(drive) => drive,
            Self::Remote(drive) => drive,
        }
    }

    /// As a drive of the engine.
    pub(crate) fn into_drive(self) -> Arc<dyn Drive> {
        match self {
            Self::File(drive) => Arc::new(drive),
            Self::Remote(drive) => Arc::new(drive),
        }
    }

    /// Whether opening it made a file.
    pub(crate) fn is_made(&self) -> bool {
        matches!(self, Self::File(drive) if drive.is_made())
    }

    /// The UUID of a namespace.
    pub(crate) fn namespace_uuid(&self) -> Option<Uuid> {
        match self {
            Self::File(_) => None,
            Self::Remote(drive) => drive.uuid(),
        }
    }

    /// As of [`FileDrive::check_unused`]; of a namespace the claim tells.
    pub(crate) fn check_unused(&self, path: &Path) -> Result<(), DriveError> {
        match self {
            Self::File(drive) => drive.check_unused(path),
            Self::Remote(_) => Ok(()),
        }
    }

    /// As of [`FileDrive::content`].
    pub(crate) async fn content(&self, path: &Path) -> Result<Option<Content>, DriveError> {
        match self {
            Self::File(drive) => drive.content(path),
            Self::Remote(drive) => drive.content().await,
        }
    }

    /// As of [`FileDrive::wipe_signatures`].
    pub(crate) async fn wipe_signatures(&self, path: &Path) -> Result<(), DriveError> {
        match self {
            Self::File(drive) => drive.wipe_signatures(path),
            Self::Remote(drive) => drive.wipe_signatures().await,
        }
    }

    /// Makes it this pool's, before the first write. Of a file or device that is so since it was opened.
    pub(crate) async fn claim(&self, pool: Uuid, claim: Claim) -> Result<(), DriveError> {
        match self {
            Self::File(_) => Ok(()),
            Self::Remote(drive) => drive.claim(pool, claim).await,
        }
    }
}

/// The namespace at an address, for commands that read a pool's drives without a daemon.
///
/// # Errors
/// As of [`BlockingDrive::open`], or it is no address.
pub(crate) fn open_for_reading(path: &Path) -> Result<Arc<dyn Drive>, DriveError> {
    let text = path.to_string_lossy();
    let invalid = |error| DriveError::new(ErrorKind::Invalid, &text, format!("{error}"));
    let address: RemoteAddress = text.parse().map_err(invalid)?;
    let options = fabric_drives::OpenOptions::new(host_nqn());
    Ok(Arc::new(BlockingDrive::open(address, options)?))
}

/// The name that this machine has for targets: the same after a restart, so that their access lists can have it. It is that
/// of `/etc/nvme/hostnqn`, or one that is derived from the machine's identity.
pub(crate) fn host_nqn() -> Nqn {
    let set = fs::read_to_string(HOST_NQN_FILE).unwrap_or_default();
    if let Ok(set) = Nqn::new(set.trim()) {
        return set;
    }
    let machine = fs::read_to_string(MACHINE_ID_FILE).unwrap_or_default();
    let system = rustix::system::uname();
    let of_machine = match machine.trim() {
        "" => system.nodename().to_bytes(),
        id => id.as_bytes(),
    };
    // The machine's identity itself is nobody's business on a network.
    let digest = blake3::derive_key(
        "dev.onefold 2026-11 NVMe host name of a machine",
        of_machine,
    );
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let uuid = uuid::Builder::from_random_bytes(bytes).into_uuid();
    Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"))
        .expect("a prefix and a UUID are a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_name_is_well_formed_and_stays_the_same() {
        let name = host_nqn();
        assert_eq!(name, host_nqn());
        name.check_form().expect("a form that targets take");
    }
}
