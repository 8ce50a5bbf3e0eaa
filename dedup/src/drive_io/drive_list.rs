//! The drives of an open pool, where its segments lie on them, and which of their copies are used.
//!
//! Drives are added and never taken away as long as the pool is open, and an index always means the same drive, or what
//! took its place: reading the list costs no lock.
//!
//! Guarantees: a copy is read only if its drive is online, and then it has all that was acknowledged; whatever is written
//! goes to all copies but those on drives that are offline, and to the one that is being made. Who uses places passes the
//! gate, and whatever is about to lie at a place that was another segment's waits until all have left who may have seen that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use drives::{BoundedDrive, Bounds, Drive, Permission};
use meta::{Pba, SegmentCopy, SegmentRow};

use crate::drive_io::copysets::Copysets;
use crate::drive_io::drive_state::{Condition, DriveState};
use crate::drive_io::layout::Completed;
use crate::drive_io::read_times::{Hedges, ReadTimes, is_slower};
use crate::drive_io::segments::{Copies, Place, Rows, Segments};
use crate::drive_io::suspects::Suspects;
use crate::sync::gate::Gate;
use crate::{EngineError, LABEL_BLOCKS, Result};

/// Drives of a pool at most.
pub(crate) const DRIVES_MAX: usize = 256;

/// Blocks that follow each other and are read from the same copy, if it can be: 128 KiB. Neighbours are read together, and
/// all copies work.
const READ_STRIPE_BLOCKS: u64 = 32;

/// One in so many of such runs is read from the copy whose turn it is, however slow its drive was: so it is known when that is
/// fast again.
const PROBE_TURNS: u64 = 32;

/// How often a drive can be replaced while the pool is open.
const OPENINGS_MAX: usize = 16;

/// One drive of the pool.
struct Slot {
    /// What was opened for it, the last one in use. None is forgotten: whoever uses an earlier one gets an error of that.
    opened: [OnceLock<Opened>; OPENINGS_MAX],
    current: AtomicU8,
    /// Something that was written to it may happen yet.
    is_in_doubt: AtomicBool,
    /// It is another drive than the one before, and nothing of the pool is on it.
    is_new: AtomicBool,
    /// A [`Condition`].
    condition: AtomicU8,
    /// Its data is moved to other drives, and nothing new is laid there.
    is_emptying: AtomicBool,
    /// Commands of it that failed, and copies there that were wrong.
    errors: AtomicU64,
    /// How often a rebuild of it was begun.
    rebuilds: AtomicU64,
    reads: Arc<ReadTimes>,
}

/// What was opened for a drive.
struct Opened {
    drive: Arc<dyn Drive>,
    /// The same, if its answers have a bound.
    bounded: Option<Arc<BoundedDrive>>,
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
    /// All who use places are inside: see the module.
    pub(crate) gate: Gate,
    /// Whether any segment has several copies.
    has_copies: AtomicBool,
    /// Blocks that have addresses, by the drive that they are named after, when the pool was opened.
    data_blocks: Vec<u64>,
    /// Segments that lay nowhere when the pool was opened.
    unplaced: Vec<Pba>,
    /// Rows in the store may say something else than this list.
    is_unsure: AtomicBool,
    /// Copies that segments are to have.
    copies: AtomicUsize,
    /// Failure domains, by the drives' indexes; of those that are missing, and of `None`, each fails alone.
    domains: Mutex<Vec<Option<String>>>,
    /// Copies that are to be looked at.
    pub(crate) suspects: Arc<Suspects>,
    /// Reads that are asked for twice.
    pub(crate) hedges: Arc<Hedges>,
    /// After how long that is so; `None`: never.
    hedge_after: Option<Duration>,
    /// The bounds of drives whose data others have.
    bounds: Option<Bounds>,
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
            is_emptying: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            rebuilds: AtomicU64::new(0),
            reads: Arc::default(),
        };
        let list = Self {
            drives: (0..DRIVES_MAX).map(|_| slot()).collect(),
            segments: Segments::new(DRIVES_MAX),
            gate: Gate::default(),
            has_copies: AtomicBool::new(false),
            data_blocks: segments.data_blocks.clone(),
            unplaced: segments.unplaced().collect(),
            is_unsure: AtomicBool::new(false),
            copies: AtomicUsize::new(segments.copies),
            domains: Mutex::default(),
            suspects: Arc::default(),
            hedges: Arc::default(),
            hedge_after: None,
            bounds: None,
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

    /// From now on these are the bounds of a drive whose data others have: see [`permission`](Self::permission). For a pool
    /// with copies; before the list is used. A read that takes `hedge_after` at least is asked of another copy too, unless that is
    /// zero.
    pub(crate) fn bound(mut self, bounds: Bounds, hedge_after: Duration) -> Self {
        self.bounds = Some(bounds);
        self.hedge_after = Some(hedge_after).filter(|after| !after.is_zero());
        for index in 0..self.drives.len() {
            if let Some(opened) = self.drives[index].opened[0].take() {
                let bounded = self.bounded(index as u16, opened.drive);
                self.drives[index].opened[0] = OnceLock::from(bounded);
            }
        }
        self
    }

    /// After how long a read is asked of another copy too: at least, and at most; `None`: never.
    pub(crate) fn patience(&self) -> Option<(Duration, Duration)> {
        Some((self.hedge_after?, self.bounds?.answer_max / 2))
    }

    /// How long a drive takes to read.
    #[inline]
    pub(crate) fn read_times(&self, drive: u16) -> Option<&Arc<ReadTimes>> {
        self.drives.get(usize::from(drive)).map(|slot| &slot.reads)
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

    fn bounded(&self, index: u16, drive: Arc<dyn Drive>) -> Opened {
        match self.bounds {
            None => Opened {
                drive,
                bounded: None,
            },
            Some(bounds) => {
                let permission = self.permission.clone();
                let bounded = Arc::new(BoundedDrive::new(drive, index, bounds, permission));
                Opened {
                    drive: bounded.clone(),
                    bounded: Some(bounded),
                }
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
            match slot.opened[0].set(self.bounded(index, drive)) {
                Ok(()) => {
                    if rows.iter().any(|(_, row)| row.copies().len() > 1) {
                        self.has_copies.store(true, Ordering::Release);
                    }
                    self.segments.add(index, rows);
                    return Some(index);
                }
                Err(back) => drive = back.drive,
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

    /// The copy of a block on this drive, also one that is being made.
    pub(crate) fn place_on(&self, drive: u16, pba: Pba) -> Option<Place> {
        let places = self.all_places(pba);
        places.iter().find(|place| place.drive == drive).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Drive>> {
        (0..self.drives.len()).map_while(|index| self.get(index))
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<dyn Drive>> {
        self.opened(index).map(|opened| &opened.drive)
    }

    /// A drive whose answers have a bound.
    #[inline]
    pub(crate) fn get_bounded(&self, index: usize) -> Option<&Arc<BoundedDrive>> {
        self.opened(index)?.bounded.as_ref()
    }

    #[inline]
    fn opened(&self, index: usize) -> Option<&Opened> {
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

    /// Segments that lay nowhere when the pool was opened.
    pub(crate) fn unplaced(&self) -> &[Pba] {
        &self.unplaced
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

    /// Whether a drive's data is moved to others, so that it can be removed.
    pub(crate) fn is_emptying(&self, drive: u16) -> bool {
        let slot = self.drives.get(usize::from(drive));
        slot.is_some_and(|slot| slot.is_emptying.load(Ordering::Acquire))
    }

    pub(crate) fn set_emptying(&self, drive: u16, is_emptying: bool) {
        if let Some(slot) = self.drives.get(usize::from(drive)) {
            slot.is_emptying.store(is_emptying, Ordering::Release);
        }
    }

    /// For each drive whether it is being emptied.
    pub(crate) fn emptying(&self) -> Vec<bool> {
        let drives = 0..self.len() as u16;
        drives.map(|drive| self.is_emptying(drive)).collect()
    }

    /// How often a drive was to be rebuilt: as long as that is the same, and it is online, it was never offline.
    pub(crate) fn rebuilds(&self, drive: u16) -> u64 {
        let slot = self.drives.get(usize::from(drive));
        slot.map_or(0, |slot| slot.rebuilds.load(Ordering::Acquire))
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
        let stripe = pba.block() / READ_STRIPE_BLOCKS;
        let (before, from) = all.split_at(stripe as usize % all.len());
        let mut copies = Copies::default();
        for place in from.iter().chain(before) {
            if self.state(place.drive) == DriveState::Online {
                copies.push(*place);
            }
        }
        // Of each copy: all have the first turn once.
        let turn = stripe / all.len() as u64;
        let is_probe = turn.is_multiple_of(PROBE_TURNS) && !self.owes(copies.first());
        if self.bounds.is_some() && !is_probe {
            self.fastest_first(&mut copies);
        }
        copies
    }

    fn owes(&self, place: Option<&Place>) -> bool {
        let times = place.and_then(|place| self.read_times(place.drive));
        times.is_some_and(|times| times.owes())
    }

    /// The copy whose turn it is stays in front, unless its drive is much slower than another one or has much more to do.
    #[inline]
    fn fastest_first(&self, copies: &mut Copies) {
        let expected = |place: &Place| {
            let times = self.read_times(place.drive);
            times.map_or(u64::MAX, |times| times.expected_ns())
        };
        let Some(first) = copies.first().map(expected) else {
            return;
        };
        let others = copies.iter().map(expected).enumerate().skip(1);
        if let Some((at, other)) = others.min_by_key(|(_, expected)| *expected)
            && is_slower(first, other)
        {
            copies.bring_to_front(at);
        }
    }

    /// The same, with the copy that is being made.
    #[inline]
    pub(crate) fn all_places(&self, pba: Pba) -> Copies {
        self.segments.all_places(pba)
    }

    /// The copies to which a block is written. The caller is inside the gate.
    #[inline]
    pub(crate) fn writable(&self, pba: Pba) -> Copies {
        let all = self.all_places(pba);
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

    /// From now on a segment is written to this place too, where a copy of it is being made. One at a time.
    pub(crate) fn begin_copy(&self, segment: Pba, copy: SegmentCopy) {
        self.segments.begin(segment, copy);
    }

    /// A write missed the copy that is being made, which so never counts. False if it counts already.
    pub(crate) fn spoil_incoming(&self) -> bool {
        self.segments.spoil()
    }

    /// Whether a write missed the copy that is being made, or the last one that was.
    pub(crate) fn is_incoming_spoiled(&self) -> bool {
        self.segments.is_spoiled()
    }

    /// A row could not be written: where its segment lies may be another place in the store than here. Nothing is laid
    /// anywhere until the pool is opened again.
    pub(crate) fn lose_sight(&self) {
        self.is_unsure.store(true, Ordering::Release);
    }

    /// Refuses to change where segments lie, if a row could not be written.
    pub(crate) fn check_rows(&self) -> Result<()> {
        match self.is_unsure.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(EngineError::unavailable(
                "where a segment lies could not be written down earlier, so nothing is laid on drives or moved any more: see to \
                 the pool's folder, and start the daemon again",
            )),
        }
    }

    /// The copy that is being made counts from now on, unless a write missed it: then false.
    pub(crate) fn commit_copy(&self) -> bool {
        self.segments.commit()
    }

    /// No copy is being made any more, and a segment lies where this row says, which is durable.
    pub(crate) fn settle(&self, segment: Pba, row: &SegmentRow) {
        if row.copies().len() > 1 {
            self.has_copies.store(true, Ordering::Release);
        }
        self.segments.settle(segment, row);
    }

    /// No copy is being made any more.
    pub(crate) fn give_up_copy(&self) {
        self.segments.give_up();
    }

    /// How many segments have a copy on this drive.
    pub(crate) fn segments_on(&self, drive: u16) -> u64 {
        self.segments.on_drive(drive).map(|(here, _)| here).sum()
    }

    /// Copies that segments are to have.
    pub(crate) fn copies(&self) -> usize {
        self.copies.load(Ordering::Acquire)
    }

    /// Segments are to have so many copies from now on.
    pub(crate) fn set_copies(&self, copies: usize) {
        self.copies.store(copies, Ordering::Release);
    }

    /// How many segments have a place, and how many of them lack copies.
    pub(crate) fn lacking(&self) -> (u64, u64) {
        self.segments.lacking(self.copies())
    }

    /// The copysets of all data: of copies on drives that are online, or of all.
    pub(crate) fn copysets(&self, online_only: bool) -> Copysets {
        let online: Vec<bool> = (0..self.len() as u16)
            .map(|drive| !online_only || self.state(drive) == DriveState::Online)
            .collect();
        let counts = |drive: u16| online.get(usize::from(drive)) == Some(&true);
        self.segments.copysets(online.len(), counts)
    }

    /// Data blocks of a drive, and about how many of them are free: `named` says how many blocks have addresses that are
    /// named after each drive, and how many of these are free.
    pub(crate) fn room_on(&self, drive: u16, named: &[(u64, u64)]) -> (u64, u64) {
        let blocks = self.get(drive.into()).map_or(0, |drive| drive.blocks());
        let blocks = blocks.saturating_sub(LABEL_BLOCKS);
        let mut used = 0;
        for ((here, placed), (all, free)) in self.segments.on_drive(drive).zip(named) {
            let used_there = u128::from(all.saturating_sub(*free));
            used += (used_there * u128::from(here) / u128::from(placed.max(1))) as u64;
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
    use crate::drive_io::layout::tests::complete;

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

    #[test]
    fn a_drive_that_is_much_slower_is_read_now_and_then_and_in_turns_when_it_is_as_fast_again() {
        use crate::drive_io::segments::SEGMENT_BLOCKS;

        let sizes = [64 * SEGMENT_BLOCKS; 2];
        let drive = || -> Arc<dyn Drive> { Arc::new(MemoryDrive::new(LABEL_BLOCKS + sizes[0])) };
        let segments = complete(&Rows::new(), &sizes, 2, 0).unwrap();
        let second = Duration::from_secs(1);
        let bounds = Bounds {
            answer_max: second,
            in_flight_bytes: 1 << 20,
        };
        let list = DriveList::new(&[drive(), drive()], &segments, &[]).bound(bounds, second);
        let began = std::time::Instant::now();
        let took = |drive, micros| {
            let times = list.read_times(drive).unwrap();
            for _ in 0..100 {
                times
                    .begin(began)
                    .end(began + Duration::from_micros(micros));
            }
        };
        let read_from = |drive| {
            let stripes = (0..64).map(|stripe| Pba::new(0, stripe * READ_STRIPE_BLOCKS));
            let first = stripes.map(|pba| list.readable(pba)[0].drive);
            first.filter(|first| *first == drive).count()
        };
        took(0, 300);
        took(1, 300);
        assert_eq!(read_from(1), 32);
        took(0, 3000);
        let probes = read_from(0);
        assert!((1..4).contains(&probes), "{probes}");
        took(0, 300);
        assert_eq!(read_from(1), 32);
        let owed = list.read_times(0).unwrap().owe();
        assert_eq!(read_from(0), 0, "not even to see how fast it is");
        drop(owed);
        assert_eq!(read_from(1), 32);
    }
}
