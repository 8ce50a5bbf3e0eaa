//! A drive that a pool knows, to be opened again.
//!
//! Guarantees: nothing is written to a drive that is not this one.

use std::path::PathBuf;

use dedup::ErrorKind;
use drives::{DriveError, OpenOptions};
use fabric_drives::Claim;
use meta::{DriveLabel, DriveSpec, PoolDir};
use reactor::BufferPool;
use subsystem::errors::Failure;

use crate::errors::of_drive;
use crate::labels;
use crate::lingering::outlast_by;
use crate::opened_drive::OpenedDrive;

/// A drive of the pool, as it is to be found.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KnownDrive {
    pub(crate) path: PathBuf,
    pub(crate) spec: DriveSpec,
    label: DriveLabel,
}

impl KnownDrive {
    /// The one with that index.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn of(dir: &PoolDir, index: u16) -> Result<Self, Failure> {
        let identity = dir.identity();
        let spec = identity.drives.get(usize::from(index));
        let (Some(spec), Some(label)) = (spec, identity.label(index)) else {
            let text = format!("the pool has no drive number {}", u32::from(index) + 1);
            return Err(Failure::new(ErrorKind::NotFound, text));
        };
        Ok(Self {
            path: dir.drive_path(index).unwrap_or_else(|| spec.path.clone()),
            spec: spec.clone(),
            label,
        })
    }

    /// Opens it, and claims it so. Nothing is written to a drive that is not this one.
    ///
    /// # Errors
    /// Names why it cannot be used, and what to do.
    pub(crate) async fn open(
        self,
        claim: Claim,
        buffers: &BufferPool,
    ) -> Result<(Self, OpenedDrive), Failure> {
        let options = OpenOptions {
            create_bytes: None,
            expected_blocks: Some(self.spec.blocks + self.spec.metadata_blocks),
        };
        let is_taken = |error: &DriveError| error.kind() == drives::ErrorKind::InUse;
        let open = || OpenedDrive::open(&self.path, &options);
        let drive = outlast_by(is_taken, open, reactor::sleep)
            .await
            .map_err(of_drive)?;
        self.verify(&drive, buffers).await?;
        // A claim takes the drive from an earlier opening on this machine. One that lives, perhaps with a newer folder, keeps it.
        if claim == Claim::Again
            && let Some(server) = drive.server_elsewhere().await
        {
            return Err(Failure::unavailable(format!(
                "drive '{}': {server}",
                self.path.display()
            )));
        }
        let claimed = drive.claim(self.label.pool, claim).await;
        claimed.map_err(of_drive)?;
        Ok((self, drive))
    }

    /// Whether an opened drive is this one.
    ///
    /// # Errors
    /// Its label is another one's, or cannot be read.
    pub(crate) async fn verify(
        &self,
        drive: &OpenedDrive,
        buffers: &BufferPool,
    ) -> Result<(), Failure> {
        labels::verify(drive.drive(), &self.path, &self.label, buffers).await
    }
}
