//! The drives of a pool that is opened, and those that are added to one in service.
//!
//! Guarantee: a drive is used only after the rows of its segments are durable, and after it is written down that it belongs
//! to the pool.

use std::sync::Arc;

use drives::Drive;

use crate::drive_io::data_blocks_of;
use crate::drive_io::drive_list::{DRIVES_MAX, DriveList};
use crate::drive_io::segments::{self, Completed, Rows};
use crate::log::recovery::data_blocks;
use crate::metadata::index::BLOCKS_MAX;
use crate::metadata::space::Space;
use crate::pool::config::{EngineParts, block_on};
use crate::sync::wait::lock;
use crate::{Engine, EngineError, Result};

/// The drives of a pool, and where its segments lie. Rows that the store lacks are made first: it is of a program that had
/// none, or a drive is new or larger than it was. A crash leaves those of each drive or none.
pub(super) async fn open(parts: &EngineParts) -> Result<DriveList> {
    let data_blocks = data_blocks(&parts.drives)?;
    let store = parts.store.clone();
    let of_drives = block_on(parts.blocking, move || {
        let epoch = store.checkpoint()?.epoch;
        let Completed {
            of_drives,
            made,
            lost,
        } = segments::complete(store.segments()?, &data_blocks, epoch)?;
        if let Some(first) = lost.first() {
            return Err(segments::lost(*first, lost.len()));
        }
        for home in made {
            store.put_segments(segments::names(home), &of_drives[usize::from(home)])?;
        }
        Ok::<Vec<Rows>, EngineError>(of_drives)
    })
    .await?;
    Ok(DriveList::new(&parts.drives, &of_drives))
}

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
        // Rows of a drive that the pool does not remember are nobody's, and replaced by those of the next one.
        let store = shared.store.clone();
        let rows = shared
            .block_on(move || {
                let epoch = store.checkpoint()?.epoch;
                let rows = segments::rows_of_new(index, data_blocks, epoch);
                store.put_segments(segments::names(index), &rows)?;
                Ok::<Rows, EngineError>(rows)
            })
            .await?;
        write_down(index)?;
        let space = Space::prepare(data_blocks);
        tracing::info!(
            drive = drive.name(),
            index,
            data_blocks,
            "a drive was added"
        );
        shared.drives.add(drive, &rows);
        lock(&shared.state).add_drive(space, data_blocks);
        Ok(index)
    }
}
