//! A drive that is to be measured without a pool (`onefold bench drive`).
//!
//! Guarantee: what is in use, or holds anything, is not given to who overwrites it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use drives::{Drive, OpenOptions};
use fabric_drives::Claim;
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::of_drive;
use crate::new_drive::check_unneeded;
use crate::opened_drive::{OpenedDrive, socket_of};

/// See the module.
pub(crate) struct MeasuredDrive {
    pub(crate) drive: Arc<dyn Drive>,
    /// The socket of its vhost-user-blk server, if it has one.
    pub(crate) socket: Option<PathBuf>,
}

impl MeasuredDrive {
    /// Opens what the path names, on a reactor.
    ///
    /// # Errors
    /// It cannot be opened, or it is to be overwritten and is in use, or holds something.
    pub(crate) async fn open(path: &Path, is_overwritten: bool) -> Result<Self, Failure> {
        let as_it_is = OpenOptions::default();
        let opened = OpenedDrive::open(path, &as_it_is).await;
        let drive = opened.map_err(of_drive)?;
        if is_overwritten {
            let reactor = reactor::current();
            let reactor = reactor.ok_or_else(|| Failure::unavailable("there is no reactor"))?;
            check_unneeded(&drive, path, reactor.buffers()).await?;
            if drive.must_be_claimed() {
                // It takes writes of nobody else, and of nobody without that.
                let claimed = drive.claim(Uuid::new_v4(), Claim::First).await;
                claimed.map_err(of_drive)?;
            }
        }
        Ok(Self {
            socket: socket_of(path),
            drive: drive.into_whole(),
        })
    }
}
