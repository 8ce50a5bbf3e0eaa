//! The drives of an open pool, where its segments lie on them, and which of their copies are used.
//!
//! Drives are added and never taken away as long as the pool is open, and an index always means the same drive, or what
//! took its place: reading the list costs no lock.
//!
//! Guarantees: a copy is read only if its drive is online, and then it has all that was acknowledged; whatever is written
//! goes to all copies but those on drives that are offline.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use drives::Drive;
use meta::Pba;

use crate::LABEL_BLOCKS;
use crate::drive_io::bounded::{BoundedDrive, Permission};
use crate::drive_io::drive_state::{Condition, DriveState};
use crate::drive_io::segments::{Completed, Copies, Place, Rows, SEGMENT_BLOCKS, Segments};
use crate::drive_io::suspects::Suspects;

/// Drives of a pool at most.
pub(crate) const DRIVES_MAX: usize = 256;

/// Blocks that follow each other and are read from the same copy, if it can be: 128 KiB. Neighbours are read together, and
/// all copies work.
const READ_STRIPE_BLOCKS: u64 = 32;

/// How often a drive can be replaced while the pool is open.
const OPENINGS_MAX: usize = 16;

/// One drive of the pool.
struct Slot {
    /// What was opened for it, the last one in use. None is forgotten: whoever uses an earlier one gets an error of that.
    opened: [OnceLock<Arc<dyn Drive>>; OPENINGS_MAX],
    current: AtomicU8,
    /// Something that was written to it may happen yet.
    is_in_doubt: AtomicBool,
    /// It is another drive than the one before, and nothing of the pool is on it.
    is_new: AtomicBool,
    /// A [`Condition`].
    condition: AtomicU8,
    /// Commands of it that failed, and copies there that were wrong.
    errors: AtomicU64,
    /// How often a rebuild of it was begun.
    rebuilds: AtomicU64,
}

/// What takes the place of a drive.
pub(crate) struct Replacement {
    pub(crate) drive: Arc<dyn Drive>,
    /// It is another drive, and nothing of the pool is on it.
    pub(crate) is_new: bool,
}

/// The drives by their index, and the places of segments.
pub(crate) struct DriveList {
    drives: Box<[Slot]>,
    segments: Segments,
    /// Whether any segment has several copies.
    has_copies: AtomicBool,
    /// Blocks that have addresses, by the drive that they are named after, when the pool was opened.
    data_blocks: Vec<u64>,
    /// Copies of a segment at most, when the pool was opened.
    copies: usize,
    /// Failure domains, by the drives' indexes; of those that are missing, and of `None`, each fails alone.
    domains: Mutex<Vec<Option<String>>>,
    /// Copies that are to be looked at.
    pub(crate) suspects: Suspects,
    /// The bound of the answers of drives whose data others have.
    limit: Option<Duration>,
    permission: Arc<Permission>,
    /// Drives that did not answer, and are to be offline.
    leaving: Mutex<BTreeSet<u16>>,
}

impl DriveList {
    /// Drives with their segments, and whether they are online. The caller has made sure that there are no more than [`DRIVES_MAX`].
    pub(crate) fn new(
        drives: &[Arc<dyn Drive>],
        segments: &Completed,
        conditions: &[Condition],
    ) -> Self {
        let slot = || Slot {
            opened: [const { OnceLock::new() }; OPENINGS_MAX],
            current: AtomicU8::new(0),
            is_in_doubt: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
            condition: AtomicU8::new(Condition::Online as u8),
            errors: AtomicU64::new(0),
            rebuilds: AtomicU64::new(0),
        };
        let list = Self {
            drives: (0..DRIVES_MAX).map(|_| slot()).collect(),
            segments: Segments::new(DRIVES_MAX),
            has_copies: AtomicBool::new(false),
            data_blocks: segments.data_blocks.clone(),
            copies: {
                let rows = segments.of_drives.iter().flatten();
                rows.map(|(_, row)| row.copies().len()).max().unwrap_or(1)
            },
            domains: Mutex::default(),
            suspects: Suspects::default(),
            limit: None,
            permission: Arc::default(),
            leaving: Mutex::default(),
        };
        for (drive, rows) in drives.iter().zip(&segments.of_drives) {
            list.add(drive.clone(), rows);
        }
        for (index, condition) in (0..).zip(conditions) {
            list.set_condition(index, *condition);
        }
        list
    }

    /// From now on this is the bound of the answers of a drive whose data others have: see [`permission`](Self::permission). For a pool
    /// with copies; before the list is used.
    pub(crate) fn bound(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        for index in 0..self.drives.len() {
            if let Some(drive) = self.drives[index].opened[0].take() {
                let bounded = self.bounded(index as u16, drive);
                self.drives[index].opened[0] = OnceLock::from(bounded);
            }
        }
        self
    }

    /// The failure domains of drives, by their indexes.
    pub(crate) fn domains(&self) -> Vec<Option<String>> {
        let mut domains = self.lock_domains().clone();
        domains.resize(self.len(), None);
        domains
    }

    pub(crate) fn set_domain(&self, drive: u16, domain: Option<String>) {
        let (mut domains, drive) = (self.lock_domains(), usize::from(drive));
        if domains.len() <= drive {
            domains.resize(drive + 1, None);
        }
        domains[drive] = domain;
    }

    /// What a panic leaves is whole, but for a domain that was not set.
    fn lock_domains(&self) -> MutexGuard<'_, Vec<Option<String>>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who says whether drives may be left.
    pub(crate) fn permission(&self) -> &Permission {
        &self.permission
    }

    fn bounded(&self, index: u16, drive: Arc<dyn Drive>) -> Arc<dyn Drive> {
        match self.limit {
            None => drive,
            Some(limit) => {
                let permission = self.permission.clone();
                Arc::new(BoundedDrive::new(drive, index, limit, permission))
            }
        }
    }

    /// Whether a drive that does not answer is left: it is to be offline then. Of two drives with the same data one is left
    /// at most.
    pub(crate) fn leave(&self, drive: u16) -> bool {
        if self.state(drive) == DriveState::Offline {
            return true;
        }
        let mut leaving = self.lock_leaving();
        let may = leaving.contains(&drive) || self.is_spare_without(drive, &leaving);
        if may {
            leaving.insert(drive);
        }
        may
    }

    /// What a panic leaves is whole: a number was added or not.
    fn lock_leaving(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The drives that are to be offline, because they did not answer.
    pub(crate) fn leaving(&self) -> Vec<u16> {
        self.lock_leaving().iter().copied().collect()
    }

    /// Adds a drive behind the others, with the rows of its segments, which are durable; its index. `None` if there are
    /// as many as can be.
    pub(crate) fn add(&self, drive: Arc<dyn Drive>, rows: &Rows) -> Option<u16> {
        let mut drive = drive;
        for (index, slot) in (0..).zip(&self.drives) {
            if slot.opened[0].get().is_some() {
                continue;
            }
            drive = self.bounded(index, drive);
            match slot.opened[0].set(drive) {
                Ok(()) => {
                    if rows.iter().any(|(_, row)| row.copies().len() > 1) {
                        self.has_copies.store(true, Ordering::Release);
                    }
                    self.segments.add(index, rows);
                    return Some(index);
                }
                Err(back) => drive = back,
            }
        }
        None
    }

    /// From now on this is the drive with that index: another one that takes its place, or the same one, opened again. False
    /// if that was done too often.
    pub(crate) fn replace(&self, index: u16, Replacement { drive, is_new }: Replacement) -> bool {
        let Some(slot) = self.drives.get(usize::from(index)) else {
            return false;
        };
        let next = slot.current.load(Ordering::Acquire) + 1;
        let place = slot.opened.get(usize::from(next));
        let drive = self.bounded(index, drive);
        let is_put = place.is_some_and(|place| place.set(drive).is_ok());
        if is_put {
            slot.is_new.store(is_new, Ordering::Release);
            slot.current.store(next, Ordering::Release);
            slot.is_in_doubt.store(false, Ordering::Release);
            slot.errors.store(0, Ordering::Relaxed);
        }
        is_put
    }

    /// Whether nothing of the pool was on a drive when it took its place. Once: who asks is about to change that.
    pub(crate) fn take_newness(&self, drive: u16) -> bool {
        let slot = self.drives.get(usize::from(drive));
        slot.is_some_and(|slot| slot.is_new.swap(false, Ordering::AcqRel))
    }

    /// What a drive was told to write may happen yet, though it is offline.
    pub(crate) fn doubt(&self, drive: u16) {
        if let Some(slot) = self.drives.get(usize::from(drive)) {
            slot.is_in_doubt.store(true, Ordering::Release);
        }
    }

    /// Whether that is so.
    pub(crate) fn is_in_doubt(&self, drive: u16) -> bool {
        let slot = self.drives.get(usize::from(drive));
        slot.is_some_and(|slot| slot.is_in_doubt.load(Ordering::Acquire))
    }

    /// The drive was fenced.
    pub(crate) fn settled(&self, drive: u16) {
        if let Some(slot) = self.drives.get(usize::from(drive)) {
            slot.is_in_doubt.store(false, Ordering::Release);
        }
    }

    /// The copy of a block on this drive.
    pub(crate) fn place_on(&self, drive: u16, pba: Pba) -> Option<Place> {
        let places = self.places(pba);
        places.iter().find(|place| place.drive == drive).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Drive>> {
        (0..self.drives.len()).map_while(|index| self.get(index))
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<dyn Drive>> {
        let slot = self.drives.get(index)?;
        let current = slot.current.load(Ordering::Acquire);
        slot.opened.get(usize::from(current))?.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Blocks that have addresses, by the drive that they are named after, when the pool was opened.
    pub(crate) fn data_blocks(&self) -> &[u64] {
        &self.data_blocks
    }

    /// Whether any segment has several copies.
    #[inline]
    pub(crate) fn has_copies(&self) -> bool {
        self.has_copies.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn state(&self, drive: u16) -> DriveState {
        self.condition(drive).state()
    }

    #[inline]
    pub(crate) fn condition(&self, drive: u16) -> Condition {
        let slot = self.drives.get(usize::from(drive));
        slot.map_or(Condition::Failed, |slot| {
            Condition::of(slot.condition.load(Ordering::Acquire))
        })
    }

    /// A command of a drive failed, or a copy there was wrong.
    pub(crate) fn note_error(&self, drive: u16) {
        if let Some(slot) = self.drives.get(usize::from(drive)) {
            slot.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often that was so, of what was opened for the drive last.
    pub(crate) fn errors(&self, drive: u16) -> u64 {
        let slot = self.drives.get(usize::from(drive));
        slot.map_or(0, |slot| slot.errors.load(Ordering::Relaxed))
    }

    pub(crate) fn states(&self) -> Vec<DriveState> {
        (0..self.len() as u16)
            .map(|drive| self.state(drive))
            .collect()
    }

    pub(crate) fn conditions(&self) -> Vec<Condition> {
        (0..self.len() as u16)
            .map(|drive| self.condition(drive))
            .collect()
    }

    pub(crate) fn set_condition(&self, drive: u16, condition: Condition) {
        if let Some(slot) = self.drives.get(usize::from(drive)) {
            if condition == Condition::Rebuilding {
                slot.rebuilds.fetch_add(1, Ordering::AcqRel);
            }
            slot.condition.store(condition as u8, Ordering::Release);
            self.lock_leaving().remove(&drive);
        }
    }

    /// The number of the rebuild that a drive waits for, or is in; `None` if it is not to be rebuilt. A drive that goes
    /// offline and is to be rebuilt again gets another number: what the rebuild before did does not count.
    pub(crate) fn rebuild(&self, drive: u16) -> Option<u64> {
        let slot = self.drives.get(usize::from(drive))?;
        let number = slot.rebuilds.load(Ordering::Acquire);
        #[cfg(test)]
        let number = match crate::ablation::is(crate::ablation::Broken::RebuildWithGap) {
            true => 0,
            false => number,
        };
        (self.state(drive) == DriveState::Rebuilding).then_some(number)
    }

    /// Where the copies of a block are, or of the pack of a fragment, whatever their drives do; none if no segment has it.
    #[inline]
    pub(crate) fn places(&self, pba: Pba) -> Copies {
        self.segments.places(pba)
    }

    /// The copies from which a block can be read, the one to be read first in front. Of one copy that is all there is, it
    /// is that whatever its drive does.
    #[inline]
    pub(crate) fn readable(&self, pba: Pba) -> Copies {
        let all = self.places(pba);
        if all.len() < 2 {
            return all;
        }
        let first = (pba.block() / READ_STRIPE_BLOCKS) as usize % all.len();
        let (before, from) = all.split_at(first);
        let mut copies = Copies::default();
        for place in from.iter().chain(before) {
            if self.state(place.drive) == DriveState::Online {
                copies.push(*place);
            }
        }
        copies
    }

    /// The copies to which a block is written.
    #[inline]
    pub(crate) fn writable(&self, pba: Pba) -> Copies {
        let all = self.places(pba);
        if all.len() < 2 {
            return all;
        }
        let mut copies = Copies::default();
        for place in all.iter() {
            if self.state(place.drive) != DriveState::Offline {
                copies.push(*place);
            }
        }
        copies
    }

    /// Copies of a segment at most.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// Data blocks of a drive, and about how many of them are free: `named` says how many blocks have addresses that are
    /// named after each drive, and how many of these are free.
    pub(crate) fn room_on(&self, drive: u16, named: &[(u64, u64)]) -> (u64, u64) {
        let blocks = self.get(drive.into()).map_or(0, |drive| drive.blocks());
        let blocks = blocks.saturating_sub(LABEL_BLOCKS);
        let mut used = 0;
        for (home, segments) in (0..).zip(self.segments.on_drive(drive)) {
            let (all, free) = named.get(home as usize).copied().unwrap_or((0, 0));
            let here = u128::from(segments * SEGMENT_BLOCKS);
            used += (here * u128::from(all - free) / u128::from(all.max(1))) as u64;
        }
        (blocks, blocks.saturating_sub(used))
    }

    /// Whether all data of a drive is on others too that are online.
    pub(crate) fn is_spare(&self, drive: u16) -> bool {
        self.is_spare_without(drive, &self.lock_leaving())
    }

    fn is_spare_without(&self, drive: u16, leaving: &BTreeSet<u16>) -> bool {
        let is_online = |of: &u16| self.state(*of) == DriveState::Online && !leaving.contains(of);
        let mut partners = self.segments.partners(drive);
        partners.all(|partners| partners.iter().any(is_online))
    }

    /// Name of the drive that a block is on, the one of its first copy, and its number there among the data blocks.
    pub(crate) fn named(&self, pba: Pba) -> (&str, u64) {
        let place = self.places(pba).first().copied();
        let drive = place.and_then(|place| self.get(place.drive.into()));
        let block = place.map_or(pba.block(), |place| place.block - LABEL_BLOCKS);
        (drive.map_or("?", |drive| drive.name()), block)
    }

    /// Blocks as runs on the drives, where they are written. Those that follow each other should do so in the list.
    pub(crate) fn runs(&self, blocks: &[Pba]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for pba in blocks {
            for Place { drive, block } in self.writable(*pba).iter().copied() {
                let mut last = runs.iter_mut().rev().take(meta::COPIES_MAX);
                match last.find(|run| run.drive == drive && run.first + run.blocks == block) {
                    Some(run) => run.blocks += 1,
                    None => runs.push(Run {
                        drive,
                        first: block,
                        blocks: 1,
                    }),
                }
            }
        }
        runs
    }
}

/// Blocks of a drive that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) drive: u16,
    /// The first block on the drive, the label area included.
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use drives::MemoryDrive;

    use super::*;
    use crate::drive_io::segments::tests::complete;

    /// Drives with so many data blocks, whose segments lie where they were made.
    pub(crate) fn drives_where_they_were_made(data_blocks: &[u64]) -> DriveList {
        let drive =
            |blocks: &u64| -> Arc<dyn Drive> { Arc::new(MemoryDrive::new(LABEL_BLOCKS + blocks)) };
        let drives: Vec<_> = data_blocks.iter().map(drive).collect();
        DriveList::new(
            &drives,
            &complete(&Rows::new(), data_blocks, 1, 0).unwrap(),
            &[],
        )
    }
}
