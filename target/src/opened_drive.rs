//! A drive of a pool before the engine has it: a file, a block device, a generic device of NVMe, a namespace of another NVMe-oF
//! target, a device of a vhost-user-blk server, or objects of a Ceph cluster.
//!
//! Guarantees: what is elsewhere is claimed for the pool before anything is written to it ([`RemoteDrive::claim`],
//! [`VhostDrive::claim`], [`RadosDrive::claim`]); a process that is not the owner of a drive any more ends at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drives::nodes::Ownership;
use drives::{
    BLOCK_BYTES, BlockingDrive, Content, Drive, DriveError, ErrorKind, FileDrive, FrontDrive,
    OpenOptions, PassthroughDrive, block_device_of, content_of, wipe_signatures,
};
use fabric_drives::{Claim, KeyFolder, NodeOptions, RemoteAddress, RemoteDrive};
use meta::{DriveSpec, LABEL_AREA_BYTES};
use nvme::Nqn;
use rados_drives::{RadosAddress, RadosDrive};
use uuid::Uuid;
use vhost_drives::{SocketAddress, VhostDrive};

use crate::again::end_without_drive;
use crate::metadata::AreaOfDrive;

/// Where a machine's NVMe host name is, of the package nvme-cli: the kernel's host side uses it too.
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";

/// Where the keys for targets are, unless the variable names another folder. Every command finds them there, also without a
/// daemon.
const DRIVE_KEYS: &str = "/etc/onefold/drive-keys";

/// The variable that names the folder with the keys for targets.
const DRIVE_KEYS_VARIABLE: &str = "ONEFOLD_DRIVE_KEYS";

/// What names a machine that has no such file (machine-id(5)).
const MACHINE_ID_FILE: &str = "/etc/machine-id";

/// See the module.
#[derive(Debug)]
pub(crate) enum OpenedDrive {
    /// A file or a block device.
    File(FileDrive),
    /// A namespace of this machine, by its generic character device.
    Passthrough(PassthroughDrive),
    /// A namespace of another target.
    Remote(Arc<RemoteDrive>),
    /// A device of a vhost-user-blk server.
    Vhost(VhostDrive),
    /// Objects of a Ceph cluster.
    Rados(Arc<RadosDrive>),
}

/// The socket of the vhost-user-blk server that a path names, if it names one.
pub(crate) fn socket_of(path: &Path) -> Option<PathBuf> {
    match Elsewhere::of(path) {
        Ok(Some(Elsewhere::Socket(address))) => Some(address.socket().to_path_buf()),
        _ => None,
    }
}

impl OpenedDrive {
    /// Opens what the path names; what is elsewhere for reading. A file may be made.
    ///
    /// # Errors
    /// As of [`FileDrive::open`], [`RemoteDrive::open`], [`VhostDrive::open`] and [`RadosDrive::open`]; what is elsewhere is not
    /// made, but for what is in a cluster, by the claim.
    pub(crate) async fn open(path: &Path, options: &OpenOptions) -> Result<Self, DriveError> {
        match Elsewhere::of(path)? {
            None => match block_device_of(path) {
                Some(block) => PassthroughDrive::open(path, &block, options).map(Self::Passthrough),
                None => FileDrive::open(path, options).map(Self::File),
            },
            Some(Elsewhere::Namespace(address)) => {
                let host = host_nqn();
                tracing::info!(drive = %address, %host, "connecting to the drive's target");
                let remote = fabric_drives::OpenOptions {
                    expected_blocks: options.expected_blocks,
                    on_taken_over: Some(Arc::new(end_without_drive)),
                    ..fabric_drives::OpenOptions::new(host, key_folder())
                };
                let drive = RemoteDrive::open(address, remote).await?;
                Ok(Self::Remote(Arc::new(drive)))
            }
            Some(Elsewhere::Socket(address)) => {
                tracing::info!(drive = %address, "connecting to the drive's server");
                let served = vhost_drives::OpenOptions {
                    expected_blocks: options.expected_blocks,
                    ..vhost_drives::OpenOptions::default()
                };
                VhostDrive::open(address, served).await.map(Self::Vhost)
            }
            Some(Elsewhere::Cluster(address)) => {
                tracing::info!(drive = %address, "connecting to the drive's cluster");
                let in_cluster = rados_drives::OpenOptions {
                    create_bytes: options.create_bytes,
                    expected_blocks: options.expected_blocks,
                    on_taken_over: Some(Arc::new(end_without_drive)),
                    ..rados_drives::OpenOptions::default()
                };
                let drive = RadosDrive::open(address, in_cluster).await?;
                Ok(Self::Rados(Arc::new(drive)))
            }
        }
    }

    /// As a drive.
    pub(crate) fn drive(&self) -> &dyn Drive {
        match self {
            Self::File(drive) => drive,
            Self::Passthrough(drive) => drive,
            Self::Remote(drive) => &**drive,
            Self::Vhost(drive) => drive,
            Self::Rados(drive) => &**drive,
        }
    }

    /// All of it, shared.
    pub(crate) fn into_whole(self) -> Arc<dyn Drive> {
        match self {
            Self::File(drive) => Arc::new(drive),
            Self::Passthrough(drive) => Arc::new(drive),
            Self::Remote(drive) => drive,
            Self::Vhost(drive) => Arc::new(drive),
            Self::Rados(drive) => drive,
        }
    }

    /// If it is in a cluster: small writes of data go along with the journal, which is on this drive alone.
    pub(crate) fn defer_writes(&self, spec: &DriveSpec) {
        if let Self::Rados(drive) = self
            && spec.metadata_blocks > 0
        {
            drive.defer_writes(LABEL_AREA_BYTES / BLOCK_BYTES as u64..spec.blocks);
        }
    }

    /// As a drive of the engine, and what is kept for metadata behind that.
    pub(crate) fn into_parts(self, spec: &DriveSpec) -> (Arc<dyn Drive>, Option<AreaOfDrive>) {
        let is_in_cluster = self.must_be_claimed();
        let flushes_data = matches!(&self, Self::Rados(drive) if drive.defers_writes());
        let drive = self.into_whole();
        if spec.metadata_blocks == 0 {
            return (drive, None);
        }
        let front = FrontDrive::new(drive.clone(), spec.blocks);
        let area = AreaOfDrive {
            drive,
            first_block: spec.blocks,
            blocks: spec.metadata_blocks,
            left: front.left(),
            is_in_cluster,
            flushes_data,
        };
        (Arc::new(front), Some(area))
    }

    /// Whether opening it made a file.
    pub(crate) fn is_made(&self) -> bool {
        matches!(self, Self::File(drive) if drive.is_made())
    }

    /// The UUID of a namespace.
    pub(crate) fn namespace_uuid(&self) -> Option<Uuid> {
        match self {
            Self::File(_) | Self::Passthrough(_) | Self::Vhost(_) | Self::Rados(_) => None,
            Self::Remote(drive) => drive.uuid(),
        }
    }

    /// As of [`FileDrive::check_unused`]; of a namespace and of objects the claim tells, of a server's device nobody.
    pub(crate) fn check_unused(&self, path: &Path) -> Result<(), DriveError> {
        match self {
            Self::File(drive) => drive.check_unused(path),
            Self::Passthrough(drive) => drive.check_unused(),
            Self::Remote(_) | Self::Vhost(_) | Self::Rados(_) => Ok(()),
        }
    }

    /// As of [`FileDrive::content`].
    pub(crate) async fn content(&self, path: &Path) -> Result<Option<Content>, DriveError> {
        match self {
            Self::File(drive) => drive.content(path),
            Self::Passthrough(drive) => drive.content(),
            Self::Remote(_) | Self::Vhost(_) | Self::Rados(_) => content_of(self.drive()).await,
        }
    }

    /// As of [`FileDrive::wipe_signatures`].
    pub(crate) async fn wipe_signatures(&self, path: &Path) -> Result<(), DriveError> {
        match self {
            Self::File(drive) => drive.wipe_signatures(path),
            Self::Passthrough(drive) => drive.wipe_signatures(),
            Self::Remote(_) | Self::Vhost(_) | Self::Rados(_) => {
                wipe_signatures(self.drive()).await
            }
        }
    }

    /// Makes it this pool's, before the first write. Of a file or device that is so since it was opened.
    pub(crate) async fn claim(&self, pool: Uuid, claim: Claim) -> Result<(), DriveError> {
        match self {
            Self::File(_) | Self::Passthrough(_) => Ok(()),
            Self::Remote(drive) => drive.claim(pool, claim).await,
            Self::Vhost(drive) => {
                let claim = match claim {
                    Claim::First | Claim::Forced => vhost_drives::Claim::First,
                    Claim::Again | Claim::Moved => vhost_drives::Claim::Again,
                };
                drive.claim(claim).await
            }
            Self::Rados(drive) => {
                let claim = match claim {
                    Claim::First => rados_drives::Claim::First,
                    Claim::Forced | Claim::Moved => rados_drives::Claim::Forced,
                    Claim::Again => rados_drives::Claim::Again,
                };
                drive.claim(pool, claim).await
            }
        }
    }

    /// The machine with a process that has it, as far as its cluster knows; of what is elsewhere the claim tells.
    pub(crate) async fn living_owner(&self) -> Result<Option<String>, DriveError> {
        let Self::Rados(drive) = self else {
            return Ok(None);
        };
        Ok(match drive.owner().await? {
            Ownership::Owned(machine) => Some(machine),
            _ => None,
        })
    }

    /// Whether it takes no writes of anybody but who claimed it.
    pub(crate) fn must_be_claimed(&self) -> bool {
        matches!(self, Self::Rados(_))
    }

    /// The same drive once more, if a claim ends all that an earlier owner may still do, wherever that is.
    pub(crate) fn share(&self) -> Option<Self> {
        match self {
            Self::File(_) | Self::Passthrough(_) | Self::Vhost(_) => None,
            Self::Remote(drive) => drive.fences_others().then(|| Self::Remote(drive.clone())),
            Self::Rados(drive) => Some(Self::Rados(drive.clone())),
        }
    }

    /// Another process that serves a pool with it, as its node table says, for people.
    pub(crate) async fn server_elsewhere(&self) -> Option<String> {
        let Self::Remote(drive) = self else {
            return None;
        };
        let address = drive.name().parse::<RemoteAddress>().ok()?;
        let machine = fabric_drives::owner_at(address, node_options())
            .await
            .ok()??;
        Some(format!(
            "the machine '{machine}' serves a pool with it now: stop that node first; to let this machine offer that pool too, start \
             it with --join"
        ))
    }

    /// Who uses it at this moment, as far as is known, for people: a node that offers its pool, or another machine that has it reserved.
    pub(crate) async fn user_elsewhere(&self) -> Option<String> {
        if let Some(server) = self.server_elsewhere().await {
            return Some(server);
        }
        let Self::Remote(drive) = self else {
            return None;
        };
        let host = drive.holder_elsewhere().await.ok()??;
        Some(format!(
            "another machine has reserved it (host {host}), and may serve a pool with it: stop that one first; if it is gone for good, \
             take its pool over (`onefold pool import --force`), and stop it then"
        ))
    }

    /// What was claimed stays so when this process ends, until the pool is opened.
    pub(crate) fn stay_claimed(&self) {
        if let Self::Remote(drive) = self {
            drive.keep_reservation();
        }
    }

    /// The pool is opened with it: who serves that gives the drive up at the end.
    fn is_opened(&self) {
        if let Self::Remote(drive) = self {
            drive.may_release_reservation();
        }
    }
}

/// Drives that this process has claimed for a pool before it opens it, by the UUIDs of their labels. No other node can take them
/// meanwhile.
#[derive(Debug, Default)]
pub(crate) struct ClaimedDrives {
    drives: Vec<(Uuid, OpenedDrive)>,
    /// Those that did not answer, and are not waited for again.
    away: Vec<PathBuf>,
}

impl ClaimedDrives {
    pub(crate) fn add(&mut self, label: Uuid, drive: OpenedDrive) {
        self.drives.push((label, drive));
    }

    /// The pool is opened without that one.
    pub(crate) fn leave_out(&mut self, path: PathBuf) {
        self.away.push(path);
    }

    pub(crate) fn is_left_out(&self, path: &Path) -> bool {
        self.away.iter().any(|away| away == path)
    }

    /// The one with that label, if it has at least so many blocks.
    pub(crate) fn take(&mut self, label: Uuid, blocks: u64) -> Option<OpenedDrive> {
        let is_it =
            |(of, drive): &(Uuid, OpenedDrive)| *of == label && drive.drive().blocks() >= blocks;
        let at = self.drives.iter().position(is_it)?;
        let (_, drive) = self.drives.swap_remove(at);
        drive.is_opened();
        Some(drive)
    }
}

/// Where a drive is that is no file and no device of this machine.
enum Elsewhere {
    Namespace(RemoteAddress),
    Socket(SocketAddress),
    Cluster(RadosAddress),
}

impl Elsewhere {
    /// What a path names, if it is an address.
    ///
    /// # Errors
    /// It is meant as one, and is none.
    fn of(path: &Path) -> Result<Option<Self>, DriveError> {
        let text = path.to_str().unwrap_or_default();
        let invalid = |error: String| DriveError::new(ErrorKind::Invalid, text, error);
        if RemoteAddress::is_meant(text) {
            let address = text.parse::<RemoteAddress>();
            let address = address.map_err(|error| invalid(error.to_string()))?;
            return Ok(Some(Self::Namespace(address)));
        }
        if SocketAddress::is_meant(text) {
            let address = text.parse::<SocketAddress>();
            let address = address.map_err(|error| invalid(error.to_string()))?;
            return Ok(Some(Self::Socket(address)));
        }
        if RadosAddress::is_meant(text) {
            let address = text.parse::<RadosAddress>();
            let address = address.map_err(|error| invalid(error.to_string()))?;
            return Ok(Some(Self::Cluster(address)));
        }
        Ok(None)
    }
}

/// Whether a path is that of a drive in a cluster, which can be made.
pub(crate) fn is_in_cluster(path: &Path) -> bool {
    path.to_str().is_some_and(RadosAddress::is_meant)
}

/// What a drive is whose path is an address, for messages.
pub(crate) fn kind_of_address(path: &Path) -> &'static str {
    match Elsewhere::of(path) {
        Ok(Some(Elsewhere::Socket(_))) => "a device of a vhost-user-blk server",
        Ok(Some(Elsewhere::Cluster(_))) => "objects of a Ceph cluster",
        _ => "a namespace of another target",
    }
}

/// The drive at an address, for commands that read a pool's drives without a daemon.
///
/// # Errors
/// As of [`RemoteDrive::open`], [`VhostDrive::open`] and [`RadosDrive::open`], or it is no address.
pub(crate) fn open_for_reading(path: &Path) -> Result<Arc<dyn Drive>, DriveError> {
    let name = path.to_string_lossy();
    Ok(match Elsewhere::of(path)? {
        Some(Elsewhere::Namespace(address)) => {
            let options = fabric_drives::OpenOptions::new(host_nqn(), key_folder());
            let open = move || RemoteDrive::open(address, options);
            Arc::new(BlockingDrive::open(&name, open)?)
        }
        Some(Elsewhere::Socket(address)) => {
            let options = vhost_drives::OpenOptions::default();
            let open = move || VhostDrive::open(address, options);
            Arc::new(BlockingDrive::open(&name, open)?)
        }
        Some(Elsewhere::Cluster(address)) => {
            let options = rados_drives::OpenOptions::default();
            let open = move || RadosDrive::open(address, options);
            Arc::new(BlockingDrive::open(&name, open)?)
        }
        None => {
            let text = "is no address of a drive";
            return Err(DriveError::new(ErrorKind::Invalid, &name, text));
        }
    })
}

/// The folder with the keys for targets.
fn key_folder() -> KeyFolder {
    let named = std::env::var_os(DRIVE_KEYS_VARIABLE).filter(|named| !named.is_empty());
    KeyFolder::new(named.unwrap_or_else(|| DRIVE_KEYS.into()))
}

/// How this machine meets other nodes on sleds.
pub(crate) fn node_options() -> NodeOptions {
    NodeOptions::new(host_nqn(), key_folder())
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
