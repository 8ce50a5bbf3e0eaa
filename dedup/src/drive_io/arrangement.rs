//! What is to be moved on the drives of an open pool, one step after the other.
//!
//! Drives that are being emptied come first: their segments go to free places elsewhere. Where there is none, a segment that
//! is not in use gives its own. Then segments get the copies that they lack, the same way, or lose those that are too many. Then
//! segments that lie nowhere get places. If only one failure domain has room left, a copy is moved there, so that its place and
//! one more there are room for a segment.
//!
//! Guarantees: after each step every segment in use has as many copies as before it, in different failure domains, or as many
//! as it should have; steps come to an end.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Pba, SegmentCopy, SegmentRow, SegmentState};

use crate::drive_io::room::{Domain, Room};
use crate::drive_io::segments::{Rows, SEGMENT_BLOCKS};

/// What matters of a drive when segments are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriveFacts {
    /// Data blocks that it has.
    pub(crate) data_blocks: u64,
    /// Segments may be laid there.
    pub(crate) is_online: bool,
    /// Nothing is to lie there in the end.
    pub(crate) is_emptying: bool,
}

impl DriveFacts {
    fn takes_segments(&self) -> bool {
        self.is_online && !self.is_emptying
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// What a segment holds is copied to a place; then the segment lies where the row says.
    Copy {
        segment: Pba,
        to: SegmentCopy,
        row: SegmentRow,
    },
    /// A segment that is not in use lies nowhere from now on.
    Withdraw { segment: Pba },
    /// A segment that lies nowhere gets places.
    Place { segment: Pba, row: SegmentRow },
    /// A segment has fewer copies from now on: those of the row.
    Drop { segment: Pba, row: SegmentRow },
}

/// Why there is no step, though there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// The drive that is to be emptied; `None`: segments lack copies.
    pub(crate) drive: Option<u16>,
    /// Segments for which there is no room, at least.
    pub(crate) missing: u64,
}

/// Where a search goes on: what is before it was looked at in this round.
struct Cursor(Pba);

impl Default for Cursor {
    fn default() -> Self {
        Self(Pba(0))
    }
}

/// Where all segments lie, and which places are free.
pub(crate) struct Arrangement {
    rows: BTreeMap<Pba, SegmentRow>,
    drives: Vec<DriveFacts>,
    domains: Vec<Option<String>>,
    /// Segments that lie nowhere.
    unplaced: BTreeSet<Pba>,
    /// Places in which whole segments could lie, and none does.
    free: Vec<BTreeSet<u32>>,
    /// Segments to be moved from drives that are being emptied, that can be withdrawn, and that can be spread.
    emptied: Cursor,
    unused: Cursor,
    spread: Cursor,
    uneven: Cursor,
    /// No segment has too few or too many copies, as far as was looked.
    is_even: bool,
    copies: usize,
    epoch: u32,
}

impl Arrangement {
    /// Of these rows, on drives of these domains. Nothing is laid at places that are `resting`. Segments are to have so many
    /// copies, and new rows are of this epoch.
    pub(crate) fn new(
        rows: Rows,
        drives: Vec<DriveFacts>,
        domains: Vec<Option<String>>,
        resting: &BTreeSet<SegmentCopy>,
        (copies, epoch): (usize, u32),
    ) -> Self {
        let taken = rows.iter().flat_map(|(_, row)| row.copies());
        let taken: BTreeSet<SegmentCopy> = taken.chain(resting).copied().collect();
        let free = (0u16..).zip(&drives).map(|(drive, of)| {
            let slots = 0..(of.data_blocks / SEGMENT_BLOCKS) as u32;
            let is_free = |slot: &u32| !taken.contains(&SegmentCopy { drive, slot: *slot });
            slots.filter(is_free).collect()
        });
        let unplaced = rows.iter().filter(|(_, row)| is_unplaced(row));
        Self {
            free: free.collect(),
            unplaced: unplaced.map(|(segment, _)| *segment).collect(),
            rows: rows.into_iter().collect(),
            drives,
            domains,
            emptied: Cursor::default(),
            unused: Cursor::default(),
            spread: Cursor::default(),
            uneven: Cursor::default(),
            is_even: false,
            copies,
            epoch,
        }
    }

    /// Whether drives that are being emptied can be, and segments can have the copies that they lack, as far as that can be told:
    /// domains are not looked at one by one.
    ///
    /// # Errors
    /// There is not enough room.
    pub(crate) fn check_room(&self, is_unused: impl Fn(Pba) -> bool) -> Result<(), NoRoom> {
        let (mut needed, mut room) = (0, 0);
        let mut drives = (0u16..).zip(&self.drives);
        let drive = drives
            .find(|(_, of)| of.is_emptying)
            .map(|(drive, _)| drive);
        for (segment, row) in &self.rows {
            // Places at the ends of drives are too short for segments with several copies.
            let fits = |copy: &SegmentCopy| self.copies == 1 || self.is_whole(copy);
            let stays = |copy: &&SegmentCopy| fits(copy) && !self.is_emptying(copy.drive);
            let stay = row.copies().iter().filter(stays).count();
            match is_unused(*segment) {
                true => {
                    let takes = |copy: &&SegmentCopy| {
                        self.is_whole(copy) && self.takes_segments(copy.drive)
                    };
                    room += row.copies().iter().filter(takes).count() as u64;
                }
                false if row.copies().is_empty() => {}
                false => needed += self.copies.saturating_sub(stay) as u64,
            }
        }
        let free = self.room();
        room += free.free.iter().map(|free| free.len() as u64).sum::<u64>();
        let drives = 0..self.drives.len() as u16;
        let needs = if self.copies == 1 { 1 } else { SEGMENT_BLOCKS };
        let takes_one = |drive: &u16| {
            let of = self.drives[usize::from(*drive)];
            of.takes_segments() && of.data_blocks >= needs
        };
        let domains = drives.filter(takes_one).map(|drive| self.domain(drive));
        let domains: BTreeSet<Domain<'_>> = domains.collect();
        if domains.len() < self.copies {
            (needed, room) = (needed.max(1), 0);
        }
        match needed > room {
            true => Err(NoRoom {
                drive,
                missing: needed - room,
            }),
            false => Ok(()),
        }
    }

    /// Whether any drive is to be emptied, or there is anything to be laid.
    pub(crate) fn may_have_steps(&self) -> bool {
        self.drives.iter().any(|of| of.is_emptying) || !self.unplaced.is_empty() || !self.is_even
    }

    /// The segment's row.
    pub(crate) fn row(&self, segment: Pba) -> Option<SegmentRow> {
        self.rows.get(&segment).copied()
    }

    /// A step was done: the segment lies where the row says. The places that it left are free when [`vacate`](Self::vacate) says
    /// so.
    pub(crate) fn did(&mut self, segment: Pba, row: SegmentRow) {
        for copy in row.copies() {
            self.free[usize::from(copy.drive)].remove(&copy.slot);
        }
        match is_unplaced(&row) {
            true => self.unplaced.insert(segment),
            false => self.unplaced.remove(&segment),
        };
        self.rows.insert(segment, row);
    }

    /// Nothing uses a place any more.
    pub(crate) fn vacate(&mut self, copy: SegmentCopy) {
        let drive = usize::from(copy.drive);
        let whole = self.drives[drive].data_blocks / SEGMENT_BLOCKS;
        if u64::from(copy.slot) < whole {
            self.free[drive].insert(copy.slot);
        }
    }

    /// Nothing is laid at this place before [`vacate`](Self::vacate) says so.
    pub(crate) fn rest(&mut self, copy: SegmentCopy) {
        self.free[usize::from(copy.drive)].remove(&copy.slot);
    }

    /// The drives are these from now on.
    pub(crate) fn set_drives(&mut self, drives: Vec<DriveFacts>) {
        // One that was added makes a new arrangement.
        if drives.len() == self.drives.len() {
            self.drives = drives;
        }
    }

    /// The next step. `is_unused` says whether no block of a segment is in use.
    ///
    /// # Errors
    /// A drive cannot be emptied, because no other one has room.
    pub(crate) fn next(&mut self, is_unused: impl Fn(Pba) -> bool) -> Result<Option<Step>, NoRoom> {
        if let Some(step) = self.next_from_emptied(&is_unused)? {
            return Ok(Some(step));
        }
        if let Some(step) = self.next_to_even(&is_unused)? {
            return Ok(Some(step));
        }
        let Some(segment) = self.unplaced.first().copied() else {
            return Ok(None);
        };
        let place = self.room().next_row(self.copies, self.epoch);
        let place = place.map(|row| Step::Place { segment, row });
        Ok(place.or_else(|| self.next_to_spread(&is_unused)))
    }

    /// Free places on drives that take segments.
    fn room(&self) -> Room<'_> {
        let free = self.drives.iter().zip(&self.free).map(|(of, free)| {
            let is_used = of.takes_segments();
            // The first ones are taken first.
            let free = free.iter().rev().filter(|_| is_used);
            free.copied().collect()
        });
        Room::new(&self.domains, free.collect())
    }

    fn next_from_emptied(
        &mut self,
        is_unused: &impl Fn(Pba) -> bool,
    ) -> Result<Option<Step>, NoRoom> {
        if !self.drives.iter().any(|of| of.is_emptying) {
            return Ok(None);
        }
        let leaves = |_: Pba, row: &SegmentRow| {
            let copies = row.copies().iter();
            let mut leaving = copies.filter(|copy| self.is_emptying(copy.drive));
            leaving.next().copied().filter(|_| self.is_readable(row))
        };
        let Some((segment, from)) = self.find(&self.emptied, leaves) else {
            return Ok(None);
        };
        self.emptied = Cursor(segment);
        let Some(row) = self.row(segment) else {
            return Ok(None);
        };
        // With one copy it has addresses enough elsewhere.
        let costs_nothing = is_unused(segment);
        let moved = match costs_nothing && self.copies == 1 {
            true => None,
            false => self.step_to(&self.room(), segment, &row, Some(from)),
        };
        if moved.is_some() {
            return Ok(moved);
        }
        if costs_nothing {
            return Ok(Some(Step::Withdraw { segment }));
        }
        self.make_room(&row, Some(from), is_unused)
    }

    /// Another one, that lies where a copy of this one could, gives its place.
    fn make_room(
        &mut self,
        row: &SegmentRow,
        from: Option<SegmentCopy>,
        is_unused: &impl Fn(Pba) -> bool,
    ) -> Result<Option<Step>, NoRoom> {
        let gives = |other: Pba, of: &SegmentRow| {
            let fits = |copy: &SegmentCopy| self.takes(row, from, copy.drive);
            (of.copies().iter().any(fits) && is_unused(other)).then_some(())
        };
        if let Some((segment, ())) = self.find(&self.unused, gives) {
            self.unused = Cursor(segment);
            return Ok(Some(Step::Withdraw { segment }));
        }
        // Or one that is in use, and can lie where this one cannot.
        let room = self.room();
        let moves = |other: Pba, of: &SegmentRow| {
            let mut copies = of.copies().iter();
            let fits =
                |copy: &&SegmentCopy| self.is_whole(copy) && self.takes(row, from, copy.drive);
            let copy = copies.find(fits).filter(|_| self.are_online(of))?;
            self.step_to(&room, other, of, Some(*copy))
        };
        if let Some((segment, step)) = self.find(&self.spread, moves) {
            self.spread = Cursor(segment);
            return Ok(Some(step));
        }
        // Or one that is not in use, whose place such a one can have.
        let any = |other: Pba, of: &SegmentRow| {
            let takes = |copy: &SegmentCopy| self.is_whole(copy) && self.takes_segments(copy.drive);
            (of.copies().iter().any(takes) && is_unused(other)).then_some(())
        };
        match self.find(&self.unused, any) {
            Some((segment, ())) => {
                self.unused = Cursor(segment);
                Ok(Some(Step::Withdraw { segment }))
            }
            None => Err(NoRoom {
                drive: from.map(|from| from.drive),
                missing: 1,
            }),
        }
    }

    /// A segment gets a copy that it lacks, or loses one that is too many.
    fn next_to_even(&mut self, is_unused: &impl Fn(Pba) -> bool) -> Result<Option<Step>, NoRoom> {
        if self.is_even {
            return Ok(None);
        }
        let uneven = |_: Pba, row: &SegmentRow| {
            let count = row.copies().len();
            let is_uneven = count > 0 && count != self.copies && self.is_readable(row);
            is_uneven.then_some(*row)
        };
        let Some((segment, row)) = self.find(&self.uneven, uneven) else {
            self.is_even = true;
            return Ok(None);
        };
        self.uneven = Cursor(segment);
        if row.copies().len() > self.copies {
            return Ok(self.step_to_fewer(segment, &row));
        }
        if is_unused(segment) {
            return Ok(Some(Step::Withdraw { segment }));
        }
        let room = self.room();
        // One at the end of a drive may be short: it moves first.
        let short = row.copies().iter().find(|copy| !self.is_whole(copy));
        let from = short.copied();
        match self.step_to(&room, segment, &row, from) {
            Some(step) => Ok(Some(step)),
            None => self.make_room(&row, from, is_unused),
        }
    }

    /// The step that takes one copy away: one that cannot be read, or else one on the drive with the least room.
    fn step_to_fewer(&self, segment: Pba, row: &SegmentRow) -> Option<Step> {
        let copies = row.copies().iter();
        let dropped = copies.min_by_key(|copy| {
            let room = self
                .free
                .get(usize::from(copy.drive))
                .map_or(0, BTreeSet::len);
            (self.is_online(copy), room)
        })?;
        let others = row.copies().iter().filter(|copy| *copy != dropped);
        let others: Vec<SegmentCopy> = others.copied().collect();
        let row = SegmentRow::new(self.epoch, &others)?;
        Some(Step::Drop { segment, row })
    }

    /// Whether a whole segment lies at a place.
    fn is_whole(&self, copy: &SegmentCopy) -> bool {
        let of = self.drives.get(usize::from(copy.drive));
        of.is_some_and(|of| u64::from(copy.slot) < of.data_blocks / SEGMENT_BLOCKS)
    }

    /// The first segment from a cursor on of which this says something.
    fn find<T>(
        &self,
        cursor: &Cursor,
        of: impl Fn(Pba, &SegmentRow) -> Option<T>,
    ) -> Option<(Pba, T)> {
        let (before, from) = (self.rows.range(..cursor.0), self.rows.range(cursor.0..));
        let mut rows = from.chain(before);
        rows.find_map(|(segment, row)| Some((*segment, of(*segment, row)?)))
    }

    /// The step that moves one copy, or makes one more, at the roomiest place that it can have.
    fn step_to(
        &self,
        room: &Room<'_>,
        segment: Pba,
        row: &SegmentRow,
        from: Option<SegmentCopy>,
    ) -> Option<Step> {
        let drives = (0u16..).zip(&room.free);
        let fitting =
            drives.filter(|(drive, free)| !free.is_empty() && self.takes(row, from, *drive));
        let (drive, free) = fitting.max_by_key(|(drive, free)| (free.len(), u16::MAX - drive))?;
        let to = SegmentCopy {
            drive,
            slot: *free.last()?,
        };
        let mut copies = row.copies().to_vec();
        match copies.iter_mut().find(|copy| Some(**copy) == from) {
            Some(copy) => *copy = to,
            None => copies.push(to),
        }
        let row = SegmentRow::new(self.epoch, &copies)?;
        Some(Step::Copy { segment, to, row })
    }

    /// Whether a drive may have the copy of a segment that lies elsewhere now, or one more.
    fn takes(&self, row: &SegmentRow, from: Option<SegmentCopy>, drive: u16) -> bool {
        let domain = self.domain(drive);
        let mut others = row.copies().iter().filter(|copy| Some(**copy) != from);
        let of = self.drives.get(usize::from(drive));
        of.is_some_and(DriveFacts::takes_segments)
            && from.is_none_or(|from| drive != from.drive)
            && others.all(|copy| self.domain(copy.drive) != domain)
    }

    /// A copy is moved to the domain that alone has room.
    fn next_to_spread(&mut self, is_unused: &impl Fn(Pba) -> bool) -> Option<Step> {
        let (segment, step) = self.spread_one(is_unused)?;
        self.spread = Cursor(segment);
        Some(step)
    }

    fn spread_one(&self, is_unused: &impl Fn(Pba) -> bool) -> Option<(Pba, Step)> {
        let mut room = self.room();
        let domains = room.by_domain();
        let (roomiest, free, _) = *domains.first()?;
        // Each move takes a place there and gives one in another domain; the segment that is laid then takes one of each.
        let missing = self.copies.checked_sub(domains.len())?;
        if self.copies < 2 || missing == 0 || free <= missing {
            return None;
        }
        for (drive, free) in (0u16..).zip(&mut room.free) {
            if self.domain(drive) != roomiest {
                free.clear();
            }
        }
        let with_room: BTreeSet<Domain<'_>> = domains.iter().map(|(domain, ..)| *domain).collect();
        let step = |segment: Pba, row: &SegmentRow| {
            let mut copies = row.copies().iter();
            let is_there = |copy: &SegmentCopy| self.domain(copy.drive) == roomiest;
            if copies.clone().any(is_there) || !self.are_online(row) {
                return None;
            }
            let from = copies.find(|copy| !with_room.contains(&self.domain(copy.drive)))?;
            self.step_to(&room, segment, row, Some(*from))
        };
        // What is not in use costs nothing to move.
        let unused = |segment: Pba, row: &SegmentRow| {
            let step = step(segment, row)?;
            is_unused(segment).then_some(step)
        };
        let unused = self.find(&self.spread, unused);
        unused.or_else(|| self.find(&self.spread, step))
    }

    fn domain(&self, drive: u16) -> Domain<'_> {
        Room::new(&self.domains, Vec::new()).domain(drive)
    }

    fn takes_segments(&self, drive: u16) -> bool {
        let of = self.drives.get(usize::from(drive));
        of.is_some_and(DriveFacts::takes_segments)
    }

    fn is_emptying(&self, drive: u16) -> bool {
        let of = self.drives.get(usize::from(drive));
        of.is_some_and(|of| of.is_emptying)
    }

    fn is_online(&self, copy: &SegmentCopy) -> bool {
        let of = self.drives.get(usize::from(copy.drive));
        of.is_some_and(|of| of.is_online)
    }

    /// Whether a copy can be read.
    fn is_readable(&self, row: &SegmentRow) -> bool {
        row.copies().iter().any(|copy| self.is_online(copy))
    }

    fn are_online(&self, row: &SegmentRow) -> bool {
        row.copies().iter().all(|copy| self.is_online(copy))
    }
}

fn is_unplaced(row: &SegmentRow) -> bool {
    row.state == SegmentState::Unplaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive_io::layout::tests::complete;
    use crate::drive_io::layout::{self, Wanted};

    fn online(segments: u64) -> DriveFacts {
        DriveFacts {
            data_blocks: segments * SEGMENT_BLOCKS,
            is_online: true,
            is_emptying: false,
        }
    }

    /// A pool on drives with room for so many segments, to which more drives are added one by one.
    fn arranged(first: &[u64], more: &[u64], copies: usize, emptying: &[u16]) -> Arrangement {
        let sizes = |drives: &[u64]| {
            drives
                .iter()
                .map(|n| n * SEGMENT_BLOCKS)
                .collect::<Vec<_>>()
        };
        let mut drives = first.to_vec();
        let mut rows = complete(&Rows::new(), &sizes(&drives), copies, 0)
            .unwrap()
            .of_drives
            .concat();
        for added in more {
            drives.push(*added);
            let of_drives: Vec<_> = sizes(&drives).into_iter().map(Some).collect();
            let wanted = Wanted {
                drives: &of_drives,
                copies,
                domains: &[],
                added: Some(drives.len() as u16 - 1),
                changed_copies: None,
                avoided: &[],
                resting: &[],
                epoch: 0,
            };
            let completed = layout::complete(&rows, &wanted).unwrap();
            rows = completed.of_drives.concat();
        }
        let of = (0u16..).zip(&drives).map(|(at, n)| DriveFacts {
            is_emptying: emptying.contains(&at),
            ..online(*n)
        });
        let of = of.collect();
        Arrangement::new(rows, of, Vec::new(), &BTreeSet::new(), (copies, 1))
    }

    /// Does all steps; how many of each kind.
    fn go(all: &mut Arrangement, is_unused: impl Fn(Pba) -> bool) -> Result<[usize; 3], NoRoom> {
        let mut done = [0; 3];
        while let Some(step) = all.next(&is_unused)? {
            assert!(done.iter().sum::<usize>() < 1000, "steps come to an end");
            let (segment, row) = match step {
                Step::Copy { segment, row, .. } => {
                    done[0] += 1;
                    (segment, row)
                }
                Step::Withdraw { segment } => {
                    assert!(is_unused(segment));
                    done[1] += 1;
                    (segment, SegmentRow::unplaced(1))
                }
                Step::Place { segment, row } | Step::Drop { segment, row } => {
                    done[2] += 1;
                    (segment, row)
                }
            };
            let before = all.row(segment).unwrap();
            all.did(segment, row);
            for copy in before.copies().iter().filter(|c| !row.copies().contains(c)) {
                all.vacate(*copy);
            }
            let mut places = BTreeSet::new();
            for copy in all.rows.values().flat_map(|row| row.copies()) {
                assert!(places.insert(*copy), "{copy:?} is used twice");
            }
        }
        Ok(done)
    }

    fn on(all: &Arrangement, drive: u16) -> usize {
        let copies = all.rows.values().flat_map(|row| row.copies());
        copies.filter(|copy| copy.drive == drive).count()
    }

    fn placed(all: &Arrangement) -> usize {
        let rows = all.rows.values();
        rows.filter(|row| row.state == SegmentState::Open).count()
    }

    #[test]
    fn a_drive_is_emptied_to_one_that_was_added_without_losing_room_for_anything() {
        for copies in 1..=2 {
            let mut all = arranged(&[4, 4], &[4], copies, &[0]);
            let before = placed(&all);
            go(&mut all, |pba| pba.drive() == 2).unwrap();
            assert_eq!(on(&all, 0), 0);
            let room = if copies == 1 { 8 } else { 4 };
            assert!(placed(&all) == room && before >= room, "{copies}: {before}");
        }
    }

    #[test]
    fn segments_that_are_not_in_use_give_their_places_and_those_in_use_stay_whole() {
        // Nothing is in use on the second drive but one segment, and two are on the first one.
        let mut all = arranged(&[4, 4], &[], 1, &[0]);
        let used = [
            Pba::new(0, 0),
            Pba::new(0, 2 * SEGMENT_BLOCKS),
            Pba::new(1, 0),
        ];
        all.check_room(|pba| !used.contains(&pba)).unwrap();
        let done = go(&mut all, |pba| !used.contains(&pba)).unwrap();
        assert_eq!((on(&all, 0), on(&all, 1), done[0]), (0, 4, 2));
        assert!(
            used.iter()
                .all(|pba| all.row(*pba).unwrap().copies().len() == 1)
        );
    }

    #[test]
    fn a_drive_for_whose_segments_there_is_no_room_is_named_and_nothing_is_withdrawn_that_is_in_use()
     {
        for copies in 1..=2 {
            let mut all = arranged(&[4, 4], &[], copies, &[1]);
            assert_eq!(
                go(&mut all, |_| false),
                Err(NoRoom {
                    drive: Some(1),
                    missing: 1
                })
            );
            let needed = all.check_room(|_| false).unwrap_err();
            assert_eq!(
                needed,
                NoRoom {
                    drive: Some(1),
                    missing: 4
                }
            );
            assert_eq!(on(&all, 1), 4);
        }
    }

    #[test]
    fn one_drive_that_is_added_to_a_mirror_gives_it_half_of_its_room() {
        // Segments of each drive, of one that is added, copies, and how many segments there are in the end.
        let cases: [(&[u64], u64, usize, usize); 4] = [
            (&[4, 4], 4, 2, 6),
            (&[6, 6], 3, 2, 7),
            (&[4, 4, 4], 8, 3, 6),
            (&[9, 1], 4, 2, 5),
        ];
        for (first, added, copies, segments) in cases {
            let mut all = arranged(first, &[added], copies, &[]);
            go(&mut all, |_| false).unwrap();
            assert_eq!(placed(&all), segments, "{first:?} and {added}");
            assert!(all.next(|_| true).unwrap().is_none());
        }
    }

    #[test]
    fn nothing_is_laid_on_drives_that_are_not_online_and_nothing_moved_that_cannot_be_read() {
        let mut all = arranged(&[4, 4], &[4], 2, &[]);
        let mut drives = vec![online(4); 3];
        drives[2].is_online = false;
        all.set_drives(drives.clone());
        assert_eq!(all.next(|_| true), Ok(None));
        // A drive that failed is emptied from the copies of the others.
        drives[2].is_online = true;
        drives[0].is_online = false;
        drives[0].is_emptying = true;
        all.set_drives(drives);
        go(&mut all, |_| false).unwrap();
        assert_eq!((on(&all, 0), on(&all, 1), on(&all, 2)), (0, 4, 4));
    }

    #[test]
    fn segments_get_the_copies_that_they_lack_and_lose_those_that_are_too_many() {
        // One copy each; half of them are in use, and each drive has a short place at its end. One place is left in the end.
        let is_unused = |pba: Pba| pba.block() / SEGMENT_BLOCKS % 2 == 1;
        let mut drives = [4, 4, 5].map(online).to_vec();
        for of in &mut drives {
            of.data_blocks += 5;
        }
        let sizes = [4, 4, 5].map(|n| n * SEGMENT_BLOCKS + 5);
        let rows = complete(&Rows::new(), &sizes, 1, 0)
            .unwrap()
            .of_drives
            .concat();
        assert_eq!(rows.len(), 16);
        let (none, domains) = (BTreeSet::new(), Vec::new());
        let is_short = |pba: Pba| pba.block() / SEGMENT_BLOCKS == 4;
        let is_unused = |pba: Pba| is_unused(pba) || is_short(pba) && pba.drive() != 0;
        let mut all = Arrangement::new(rows, drives.clone(), domains.clone(), &none, (2, 1));
        // Of each drive two are in use, and the short one of the first.
        assert_eq!(all.check_room(is_unused).unwrap_err().missing, 1);
        let is_unused = |pba: Pba| is_unused(pba) || pba == Pba::new(2, 0);
        all.check_room(is_unused).unwrap();
        go(&mut all, is_unused).unwrap();
        assert_eq!(placed(&all), 6);
        for (segment, row) in &all.rows {
            assert!(is_unused(*segment) || row.copies().len() == 2, "{segment}");
            assert!(row.copies().iter().all(|copy| copy.slot < 5));
        }
        // And back.
        let rows: Rows = all.rows.into_iter().collect();
        let mut all = Arrangement::new(rows, drives, domains, &none, (1, 2));
        all.check_room(is_unused).unwrap();
        go(&mut all, is_unused).unwrap();
        assert_eq!(placed(&all), 13);
        assert!(all.rows.values().all(|row| row.copies().len() < 2));
    }
}
