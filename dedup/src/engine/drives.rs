//! The drives of a pool that is opened, and those that are added to one in service.
//!
//! Guarantee: a drive is used only after the rows of its segments are durable, and after it is written down that it belongs
//! to the pool.

use std::sync::Arc;

use drives::{BLOCK_BYTES, Bounds, Drive, DriveError, Extent, SmartLog};
use reactor::BufferPool;

use crate::drive_io::data_blocks_of;
use crate::drive_io::drive_list::{DRIVES_MAX, DriveList, Replacement};
use crate::drive_io::drive_state::{
    Condition, DriveState, conditions_of, copies_of, emptying_of, stored, stored_emptying,
};
use crate::drive_io::layout::{self, Completed, Wanted};
use crate::drive_io::segments::{Rows, SEGMENT_BLOCKS, names};
use crate::log::labels;
use crate::log::recovery::blocks_there;
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
    let sizes = blocks_there(&parts.drives)?;
    let store = parts.store.clone();
    let copies = parts.config.copies;
    let domains = parts.config.domains.clone();
    let (completed, conditions, emptying) = block_on(parts.blocking, move || {
        let settings = store.settings()?;
        let emptying = emptying_of(&settings, sizes.len());
        let conditions = conditions_of(&settings, sizes.len());
        let mut avoided = avoided(&emptying, &conditions);
        // One that is not there is offline from here on, and what is laid there alone could not be read.
        let absent = (0u16..).zip(&sizes).filter(|(_, size)| size.is_none());
        avoided.extend(absent.map(|(index, _)| index));
        let wanted = Wanted {
            drives: &sizes,
            copies,
            changed_copies: copies_of(&settings),
            domains: &domains,
            added: None,
            avoided: &avoided,
            resting: &[],
            epoch: store.checkpoint()?.epoch,
        };
        let completed = layout::complete(&store.segments()?, &wanted)?;
        Ok::<_, EngineError>((completed, conditions, emptying))
    })
    .await?;
    if let Some(first) = completed.lost.first() {
        return Err(layout::lost(*first, completed.lost.len()));
    }
    // A pool of which nothing is in use may have no place for segments now.
    if completed.of_drives.iter().all(Vec::is_empty) {
        return Err(layout::no_room(copies));
    }
    let mut drives = DriveList::new(&parts.drives, &completed, &conditions);
    for (index, is_emptying) in (0..).zip(emptying) {
        drives.set_emptying(index, is_emptying);
    }
    for index in parts.config.removed.iter().copied() {
        if drives.segments_on(index) > 0 {
            return Err(EngineError::contradiction(format_args!(
                "drive number {index} was removed from the pool, and segments lie there"
            )));
        }
        drives.set_condition(index, Condition::Removed);
        drives.set_emptying(index, false);
    }
    for (index, domain) in (0..).zip(&parts.config.domains) {
        drives.set_domain(index, domain.clone());
    }
    if drives.copies() > 1 {
        let bounds = Bounds {
            answer_max: parts.config.drive_answer_max,
            in_flight_bytes: parts.config.drive_in_flight_bytes,
        };
        drives = drives.bound(bounds, parts.config.hedge_after);
    }
    let Completed {
        of_drives, made, ..
    } = completed;
    let of_drives = (0u16..).zip(of_drives);
    let new = of_drives.filter(|(home, _)| made.contains(home));
    Ok((drives, new.collect()))
}

/// The drives where no segment is laid.
fn avoided(emptying: &[bool], conditions: &[Condition]) -> Vec<u16> {
    let of = (0u16..).zip(emptying).zip(conditions);
    let is_avoided = |((_, is_emptying), condition): &((u16, &bool), &Condition)| {
        **is_emptying || condition.state() != DriveState::Online
    };
    let avoided = of.filter(is_avoided);
    avoided.map(|((index, _), _)| index).collect()
}

/// Makes durable where new segments lie, and which drives turned out to be offline. A crash leaves the rows of each drive or
/// none.
pub(super) async fn write_down(
    parts: &EngineParts,
    drives: &DriveList,
    new_segments: NewSegments,
) -> Result<()> {
    let (store, conditions) = (parts.store.clone(), drives.conditions());
    let emptying = drives.emptying();
    block_on(parts.blocking, move || {
        for (home, rows) in new_segments {
            store.put_segments(names(home), &rows)?;
        }
        if conditions_of(&store.settings()?, conditions.len()) != conditions {
            store.put_settings(&stored(&conditions))?;
        }
        if emptying_of(&store.settings()?, emptying.len()) != emptying {
            store.put_settings(&stored_emptying(&emptying))?;
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
        let (addresses, index) = {
            let state = lock(&shared.state);
            state.check_writable()?;
            (state.space().addresses(), shared.drives.len())
        };
        let number = u16::try_from(index).ok().filter(|_| index < DRIVES_MAX);
        let Some(index) = number else {
            return Err(EngineError::invalid(format!(
                "the pool has {index} drives already: more are not possible"
            )));
        };
        if addresses + data_blocks > BLOCKS_MAX {
            return Err(EngineError::invalid(format!(
                "drive {}: the pool would have {} data blocks; at most {BLOCKS_MAX} are possible",
                drive.name(),
                addresses + data_blocks
            )));
        }
        let mut places = self.background.places.lock().await;
        shared.drives.check_rows()?;
        places.forget();
        let resting: Vec<_> = places.resting().into_iter().collect();
        let avoided = avoided(&shared.drives.emptying(), &shared.drives.conditions());
        // Rows of a drive that the pool does not remember are nobody's, and replaced by those of the next one.
        let store = shared.store.clone();
        let copies = shared.drives.copies();
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
                    changed_copies: Some(copies),
                    domains: &domains,
                    added: Some(index),
                    avoided: &avoided,
                    resting: &resting,
                    epoch: store.checkpoint()?.epoch,
                };
                let own = names(index);
                let mut stored = store.segments()?;
                stored.retain(|(pba, _)| !own.contains(pba));
                let mut completed = layout::complete(&stored, &wanted)?;
                let rows = completed.of_drives.swap_remove(usize::from(index));
                store.put_segments(own, &rows)?;
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
        let mut state = lock(&shared.state);
        state.add_drive(space, data_blocks);
        for (segment, row) in &rows {
            if row.copies().is_empty() {
                state.space().withdraw(*segment, SEGMENT_BLOCKS);
            }
        }
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

    /// Looks whether a drive that is offline could be rebuilt now: what it was told before has ended or never will happen, and it
    /// answers a read. Runs on a reactor, takes as long as the drive does, and keeps nobody else waiting.
    ///
    /// # Errors
    /// What the drive says, or that there is none.
    pub async fn try_drive(
        &self,
        index: u16,
        buffers: &BufferPool,
    ) -> std::result::Result<(), DriveError> {
        let list = &self.shared.drives;
        let Some(drive) = list.get(usize::from(index)) else {
            let (kind, text) = (drives::ErrorKind::Invalid, "the pool has no such drive");
            return Err(DriveError::new(kind, &index.to_string(), text));
        };
        if list.is_in_doubt(index) {
            // That it is settled is noted by the rebuild.
            drive.fence().await?;
        }
        let first = Extent {
            block: 0,
            buffer_offset: 0,
            blocks: 1,
        };
        let buffer = buffers.alloc(BLOCK_BYTES).await;
        drive.read(buffer, &[first]).await.0
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
        labels::expect_nothing_of(shared, index).await?;
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
        if !self.is_drive_offline(index) {
            shared.put_offline(index).await?;
        }
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
        Ok(layout::end_on(&rows, index) + crate::LABEL_BLOCKS)
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

    /// The drives that the pool has now, by their indexes, and what each is called.
    pub fn drive_names(&self) -> Vec<(u16, String)> {
        let drives = &self.shared.drives;
        (0u16..)
            .zip(drives.iter())
            .filter(|(index, _)| drives.condition(*index) != Condition::Removed)
            .map(|(index, drive)| (index, drive.name().to_owned()))
            .collect()
    }

    /// What a drive tells of its own health, as [`Drive::smart_log`]. Runs on a reactor, and may take as long as the drive
    /// likes.
    ///
    /// # Errors
    /// The drive could not be asked.
    pub async fn drive_smart_log(
        &self,
        index: u16,
    ) -> std::result::Result<Option<SmartLog>, DriveError> {
        match self.shared.drives.get(usize::from(index)) {
            Some(drive) => drive.smart_log().await,
            None => Ok(None),
        }
    }

    /// A drive may fail soon (what is wrong, and the remedy), or it is well: [`verdict`](Self::verdict) says so, and the log
    /// when it changes.
    pub fn note_drive_health(&self, index: u16, warning: Option<(String, String)>) {
        self.shared.alerts.drive_health(index, warning);
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

    /// Whether a drive's data is moved to others, so that it can be removed.
    pub fn is_drive_emptying(&self, index: u16) -> bool {
        self.shared.drives.is_emptying(index)
    }

    /// Whether a drive can go offline.
    ///
    /// # Errors
    /// As [`take_drive_offline`](Self::take_drive_offline).
    pub fn check_can_go_offline(&self, index: u16) -> Result<()> {
        self.check_drive(index)?;
        self.shared.check_can_go_offline(index)
    }

    pub(super) fn check_drive(&self, index: u16) -> Result<()> {
        lock(&self.shared.state).check_writable()?;
        match usize::from(index) < self.shared.drives.len() {
            true => Ok(()),
            false => Err(EngineError::not_found(format!(
                "the pool has no drive {index}"
            ))),
        }
    }
}
