//! Drives that are added to a pool in service: one is used only after it is written down that it belongs to the pool.

use std::sync::Arc;

use drives::Drive;

use crate::drive_io::data_blocks_of;
use crate::drive_io::drive_list::DRIVES_MAX;
use crate::metadata::index::BLOCKS_MAX;
use crate::metadata::space::Space;
use crate::sync::wait::lock;
use crate::{Engine, EngineError, Result};

impl Engine {
    /// Adds a drive to the pool; new data goes to it from now on. `write_down` makes the pool remember
    /// the drive under the index that it is told, durably; only then the drive is used. Runs on a
    /// reactor, and may block it.
    ///
    /// # Errors
    /// `Invalid` if the pool cannot have this drive, or what `write_down` returns; the pool is as it was
    /// then.
    pub async fn add_drive(
        &self,
        drive: Arc<dyn Drive>,
        write_down: impl FnOnce(u16) -> Result<()>,
    ) -> Result<u16> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        let data_blocks = data_blocks_of(&*drive)?;
        let (capacity, index) = {
            let state = lock(&shared.state);
            state.check_writable()?;
            (state.space.capacity(), shared.drives.len())
        };
        let number = u16::try_from(index).ok().filter(|_| index < DRIVES_MAX);
        let Some(index) = number else {
            return Err(EngineError::invalid(format!(
                "the pool has {index} drives already: more are not possible"
            )));
        };
        if capacity + data_blocks > BLOCKS_MAX {
            return Err(EngineError::invalid(format!(
                "drive {}: the pool would have {} data blocks; at most {BLOCKS_MAX} are possible",
                drive.name(),
                capacity + data_blocks
            )));
        }
        write_down(index)?;
        let space = Space::prepare(data_blocks);
        tracing::info!(
            drive = drive.name(),
            index,
            data_blocks,
            "a drive was added"
        );
        shared.drives.add(drive);
        lock(&shared.state).add_drive(space, data_blocks);
        Ok(index)
    }
}
