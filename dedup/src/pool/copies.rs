//! A pool whose segments have copies goes on without a drive that fails.
//!
//! Guarantees: that a drive is offline is durable before anything is acknowledged that it lacks; no drive goes offline that
//! is the last one with some segment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drives::DriveError;
use meta::Store;

use crate::drive_io::drive_list::{DriveList, Replacement};
use crate::drive_io::drive_state::{Condition, DriveState, stored};
use crate::pool::Shared;
use crate::pool::config::{Blocking, block_on};
use crate::{EngineError, Result};

impl Shared {
    /// Takes a drive offline that failed to write, or to flush: what it lacks from now on is on others. False if it has
    /// anything alone, or if that cannot be written down; then whoever met the error has to fail.
    pub(crate) async fn go_on_without(&self, drive: u16, error: &DriveError) -> bool {
        if !self.drives.has_copies() {
            return false;
        }
        let _changing = self.drive_states.lock().await;
        if error.is_in_doubt() {
            self.drives.doubt(drive);
        }
        if self.drives.state(drive) == DriveState::Offline {
            return true;
        }
        take_offline(&self.drives, (&self.store, self.blocking), drive, error).await
    }

    /// The rebuild with that number gave a drive all that it should have: it is read from now on. False if it went offline
    /// meanwhile, though it may be rebuilt again.
    ///
    /// # Errors
    /// It cannot be written down.
    pub(crate) async fn put_online(&self, drive: u16, rebuild: u64) -> Result<bool> {
        let _changing = self.drive_states.lock().await;
        if self.drives.rebuild(drive) != Some(rebuild) {
            return Ok(false);
        }
        put_condition(
            &self.drives,
            (&self.store, self.blocking),
            drive,
            Condition::Online,
        )
        .await?;
        Ok(true)
    }

    /// A drive that is offline is rebuilt from now on by background work: the same one, or another one in its place.
    ///
    /// # Errors
    /// It is not offline, or something that was written to it may happen yet, or it cannot be written down.
    pub(crate) async fn begin_rebuild(
        &self,
        drive: u16,
        replacement: Option<Replacement>,
    ) -> Result<()> {
        let _changing = self.drive_states.lock().await;
        let name = self.drive_name(drive);
        if self.drives.state(drive) != DriveState::Offline {
            return Err(EngineError::invalid(format!(
                "drive {name} is {}: only a drive that is offline can be rebuilt",
                self.drives.state(drive)
            )));
        }
        if let Some(replacement) = replacement {
            if !self.drives.replace(drive, replacement) {
                return Err(EngineError::invalid(format!(
                    "drive {name} was replaced too often: start the daemon again first"
                )));
            }
        } else if self.drives.is_in_doubt(drive) {
            let of_index = self.drives.get(drive.into());
            let fence = of_index.map(|drive| drive.fence());
            let fenced = match fence {
                Some(fence) => fence.await,
                None => Ok(()),
            };
            if let Err(error) = fenced {
                return Err(EngineError::unavailable(format!(
                    "drive {name} may still do what failed before: {error}; try again later, or start the daemon again, \
                     which settles it"
                )));
            }
            self.drives.settled(drive);
        }
        put_condition(
            &self.drives,
            (&self.store, self.blocking),
            drive,
            Condition::Rebuilding,
        )
        .await
    }

    /// Whether others that are online have all that a drive has.
    ///
    /// # Errors
    /// They do not.
    pub(crate) fn check_can_go_offline(&self, drive: u16) -> Result<()> {
        match self.drives.has_copies() && self.drives.is_spare(drive) {
            true => Ok(()),
            false => Err(EngineError::invalid(format!(
                "drive {} has data that no other drive has that is online: it cannot go offline",
                self.drive_name(drive)
            ))),
        }
    }

    /// A drive on which nothing lies is no drive of the pool any more.
    ///
    /// # Errors
    /// It cannot be written down.
    pub(crate) async fn put_removed(&self, drive: u16) -> Result<()> {
        let _changing = self.drive_states.lock().await;
        let store = (&self.store, self.blocking);
        put_condition(&self.drives, store, drive, Condition::Removed).await
    }

    /// Takes a drive offline because somebody wants so.
    ///
    /// # Errors
    /// It has data that no other drive has, or it cannot be written down.
    pub(crate) async fn put_offline(&self, drive: u16) -> Result<()> {
        let _changing = self.drive_states.lock().await;
        self.check_can_go_offline(drive)?;
        put_condition(
            &self.drives,
            (&self.store, self.blocking),
            drive,
            Condition::TakenOffline,
        )
        .await
    }
}

/// Makes a drive's condition durable, and then counts on it.
async fn put_condition(
    drives: &DriveList,
    (store, blocking): (&Arc<dyn Store>, Blocking),
    drive: u16,
    condition: Condition,
) -> Result<()> {
    let mut conditions = drives.conditions();
    if let Some(of_drive) = conditions.get_mut(usize::from(drive)) {
        *of_drive = condition;
    }
    let store = store.clone();
    let written = move || store.put_settings(&stored(&conditions));
    block_on(blocking, written).await?;
    drives.set_condition(drive, condition);
    Ok(())
}

/// Whether hosts are at work.
#[derive(Default)]
pub(crate) struct Hosts(AtomicBool);

impl Hosts {
    /// A host reads or writes.
    #[inline]
    pub(crate) fn work(&self) {
        // Written only when it changes: all reactors read it.
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a host read or wrote since the last question.
    pub(crate) fn were_at_work(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Writes down that a drive is offline, and uses it no more; false if that is not possible.
pub(crate) async fn take_offline(
    drives: &DriveList,
    store: (&Arc<dyn Store>, Blocking),
    drive: u16,
    error: &DriveError,
) -> bool {
    if !drives.is_spare(drive) {
        return false;
    }
    let written = put_condition(drives, store, drive, Condition::Failed).await;
    let name = drives.get(drive.into()).map_or("?", |drive| drive.name());
    if let Err(failure) = written {
        tracing::error!(drive = name, %error, %failure, "the drive failed, and the metadata cannot say so");
        return false;
    }
    tracing::error!(
        drive = name,
        %error,
        "the drive is offline: the pool goes on with the copies on other drives"
    );
    true
}
