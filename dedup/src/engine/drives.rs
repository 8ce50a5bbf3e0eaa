//! The drives of a pool that is opened, and those that are added to one in service.
//!
//! Guarantee: a drive is used only after the rows of its segments are durable, and after it is written down that it belongs
//! to the pool.

use std::sync::Arc;

use drives::Drive;

use crate::drive_io::data_blocks_of;
use crate::drive_io::drive_list::{DRIVES_MAX, DriveList, Replacement};
use crate::drive_io::drive_state::{Condition, DriveState, Redundancy, conditions_of, stored};
use crate::drive_io::segments::{self, Completed, Rows, Wanted};
use crate::log::recovery::data_blocks;
use crate::metadata::index::BLOCKS_MAX;
use crate::metadata::space::Space;
use crate::pool::config::{EngineParts, block_on};
use crate::sync::wait::lock;
use crate::{Engine, EngineError, Result};

/// Rows of segments that the store lacks, by the drives after which they are named.
pub(super) type NewSegments = Vec<(u16, Rows)>;

/// The drives of a pool, and where its segments lie. The rows that the store lacks are to be written before anything is: it
/// is of a program that had none, or a drive is new or larger than it was.
pub(super) async fn find(parts: &EngineParts) -> Result<(DriveList, NewSegments)> {
    let sizes = parts.drives.iter().zip(data_blocks(&parts.drives)?);
    // Nothing new is laid on a drive that is not there.
    let sizes = sizes.map(|(drive, blocks)| (!drive.is_absent()).then_some(blocks));
    let sizes: Vec<Option<u64>> = sizes.collect();
    let store = parts.store.clone();
    let copies = parts.config.copies;
    let domains = parts.config.domains.clone();
    let (completed, conditions) = block_on(parts.blocking, move || {
        let wanted = Wanted {
            drives: &sizes,
            copies,
            domains: &domains,
            added: None,
            epoch: store.checkpoint()?.epoch,
        };
        let completed = segments::complete(&store.segments()?, &wanted)?;
        let conditions = conditions_of(&store.settings()?, sizes.len());
        Ok::<_, EngineError>((completed, conditions))
    })
    .await?;
    if let Some(first) = completed.lost.first() {
        return Err(segments::lost(*first, completed.lost.len()));
    }
    if completed.data_blocks.iter().sum::<u64>() == 0 {
        return Err(segments::no_room(copies));
    }
    let mut drives = DriveList::new(&parts.drives, &completed, &conditions);
    for (index, domain) in (0..).zip(&parts.config.domains) {
        drives.set_domain(index, domain.clone());
    }
    if drives.has_copies() {
        drives = drives.bound(parts.config.drive_answer_max);
    }
    let Completed {
        of_drives, made, ..
    } = completed;
    let of_drives = (0u16..).zip(of_drives);
    let new = of_drives.filter(|(home, _)| made.contains(home));
    Ok((drives, new.collect()))
}

/// Makes durable where new segments lie, and which drives turned out to be offline. A crash leaves the rows of each drive or
/// none.
pub(super) async fn write_down(
    parts: &EngineParts,
    drives: &DriveList,
    new_segments: NewSegments,
) -> Result<()> {
    let (store, conditions) = (parts.store.clone(), drives.conditions());
    block_on(parts.blocking, move || {
        for (home, rows) in new_segments {
            store.put_segments(segments::names(home), &rows)?;
        }
        if conditions_of(&store.settings()?, conditions.len()) != conditions {
            store.put_settings(&stored(&conditions))?;
        }
        Ok::<_, EngineError>(())
    })
    .await
}

impl Engine {
    /// Adds a drive to the pool, in a failure domain; new data goes to it from now on. `write_down` makes the pool remember
    /// the drive under the index that it is told, durably; only then the drive is used. Runs on a
    /// reactor, and may block it.
    ///
    /// # Errors
    /// `Invalid` if the pool cannot have this drive, or what `write_down` returns; the pool is as it was
    /// then.
    pub async fn add_drive(
        &self,
        drive: Arc<dyn Drive>,
        domain: Option<String>,
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
        let copies = shared.config.copies;
        let size = |drive: &Arc<dyn Drive>| {
            let blocks = data_blocks_of(&**drive)?;
            Ok((!drive.is_absent()).then_some(blocks))
        };
        let sizes = shared.drives.iter().map(size);
        let mut sizes: Vec<Option<u64>> = sizes.collect::<Result<_>>()?;
        sizes.push(Some(data_blocks));
        let mut domains = shared.drives.domains();
        domains.push(domain.clone());
        let (rows, data_blocks) = shared
            .block_on(move || {
                let wanted = Wanted {
                    drives: &sizes,
                    copies,
                    domains: &domains,
                    added: Some(index),
                    epoch: store.checkpoint()?.epoch,
                };
                let names = segments::names(index);
                let mut stored = store.segments()?;
                stored.retain(|(pba, _)| !names.contains(pba));
                let mut completed = segments::complete(&stored, &wanted)?;
                let rows = completed.of_drives.swap_remove(usize::from(index));
                store.put_segments(names, &rows)?;
                let blocks = completed.data_blocks[usize::from(index)];
                Ok::<(Rows, u64), EngineError>((rows, blocks))
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
        shared.drives.set_domain(index, domain);
        lock(&shared.state).add_drive(space, data_blocks);
        Ok(index)
    }

    /// Takes a drive offline: it is neither read nor written, until it is rebuilt.
    ///
    /// # Errors
    /// `Invalid` for a drive that there is not, or that has data that no other drive has that is online.
    pub async fn take_drive_offline(&self, index: u16) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        self.check_drive(index)?;
        shared.put_offline(index).await
    }

    /// Rebuilds a drive that is offline, in the background: what it lacks is copied to it, and then it is online.
    ///
    /// # Errors
    /// `Invalid` for a drive that there is not, or that is not offline, `Unavailable` if something that was written to it
    /// before it failed may happen yet.
    pub async fn rebuild_drive(&self, index: u16) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        self.check_drive(index)?;
        shared.begin_rebuild(index, None).await
    }

    /// Puts another drive, in a failure domain, in the place of one, which goes offline, and rebuilds it. `write_down` makes the pool remember the
    /// new drive under the same index, durably.
    ///
    /// # Errors
    /// As [`take_drive_offline`](Self::take_drive_offline); `Invalid` if the new drive is smaller than what lies on the
    /// old one, or what `write_down` returns. The old drive is offline then.
    pub async fn replace_drive(
        &self,
        index: u16,
        drive: Arc<dyn Drive>,
        domain: Option<String>,
        write_down: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        self.check_replacement(index, &*drive).await?;
        shared.put_offline(index).await?;
        write_down()?;
        shared.drives.set_domain(index, domain);
        let replacement = Replacement {
            drive,
            is_new: true,
        };
        shared.begin_rebuild(index, Some(replacement)).await
    }

    /// Uses a drive again that was opened anew, and rebuilds it: it has what it had.
    ///
    /// # Errors
    /// As [`replace_drive`](Self::replace_drive).
    pub async fn reopen_drive(&self, index: u16, drive: Arc<dyn Drive>) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        self.check_replacement(index, &*drive).await?;
        shared.put_offline(index).await?;
        let replacement = Replacement {
            drive,
            is_new: false,
        };
        shared.begin_rebuild(index, Some(replacement)).await
    }

    async fn check_replacement(&self, index: u16, drive: &dyn Drive) -> Result<()> {
        self.check_drive(index)?;
        let needed = self.blocks_needed(index).await?;
        if drive.blocks() < needed {
            return Err(EngineError::invalid(format!(
                "drive {} has {} blocks, and what lies on drive {} needs {}: name a larger one",
                drive.name(),
                drive.blocks(),
                self.shared.drive_name(index),
                needed
            )));
        }
        Ok(())
    }

    /// How many blocks a drive must have that takes the place of one, the label included.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn blocks_needed(&self, index: u16) -> Result<u64> {
        let store = self.shared.store.clone();
        let rows = self.shared.block_on(move || store.segments()).await?;
        Ok(segments::end_on(&rows, index) + crate::LABEL_BLOCKS)
    }

    /// Drives that are offline because they failed: nobody took them offline.
    pub fn failed_drives(&self) -> Vec<u16> {
        let conditions = (0u16..).zip(self.shared.drives.conditions());
        let failed = conditions.filter(|(_, condition)| *condition == Condition::Failed);
        failed.map(|(index, _)| index).collect()
    }

    /// The failure domains of the drives, by their indexes.
    pub fn drive_domains(&self) -> Vec<Option<String>> {
        self.shared.drives.domains()
    }

    /// How many copies there are of all data of the pool.
    pub fn redundancy(&self) -> Redundancy {
        Redundancy::of(self.shared.drives.copies())
    }

    /// Whether a drive could not be opened with the pool.
    pub fn is_drive_absent(&self, index: u16) -> bool {
        let drive = self.shared.drives.get(usize::from(index));
        drive.is_none_or(|drive| drive.is_absent())
    }

    /// Whether a drive is neither read nor written, so that it comes back by a rebuild only.
    pub fn is_drive_offline(&self, index: u16) -> bool {
        self.shared.drives.state(index) == DriveState::Offline
    }

    /// Whether a drive can go offline.
    ///
    /// # Errors
    /// As [`take_drive_offline`](Self::take_drive_offline).
    pub fn check_can_go_offline(&self, index: u16) -> Result<()> {
        self.check_drive(index)?;
        self.shared.check_can_go_offline(index)
    }

    fn check_drive(&self, index: u16) -> Result<()> {
        lock(&self.shared.state).check_writable()?;
        match usize::from(index) < self.shared.drives.len() {
            true => Ok(()),
            false => Err(EngineError::not_found(format!(
                "the pool has no drive {index}"
            ))),
        }
    }
}
