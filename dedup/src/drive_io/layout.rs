//! Where the segments of a pool are laid: rows for those that there are, and for as many more as the drives have room for.
//!
//! Guarantees: a segment has a durable row before any of its blocks is used; no two segments lie at one place; a segment
//! lies as a whole on drives that have room for it, its copies in different failure domains. A segment with one copy may be as
//! short as what is left of its drive, so that all of it is used. What this version would not keep as it is, a sealed segment,
//! is refused.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Pba, SegmentCopy, SegmentRow, SegmentState};

use crate::drive_io::drive_state::Redundancy;
use crate::drive_io::room::{Domain, Room};
use crate::drive_io::segments::{Rows, SEGMENT_BLOCKS, name, names};
use crate::{EngineError, LABEL_BLOCKS, Result};

/// Blocks that a segment has at a place of a drive of this size.
fn blocks_at(copy: SegmentCopy, data_blocks: &[u64]) -> u64 {
    let drive = data_blocks.get(usize::from(copy.drive)).copied();
    let left = drive
        .unwrap_or(0)
        .checked_sub(u64::from(copy.slot) * SEGMENT_BLOCKS);
    left.unwrap_or(0).min(SEGMENT_BLOCKS)
}

/// Blocks of a segment, on drives of these sizes. One with several copies is whole, or its drives have no room for it; one that
/// lies nowhere has as many addresses.
fn blocks_of(row: &SegmentRow, data_blocks: &[u64]) -> u64 {
    match row.copies() {
        [one] => blocks_at(*one, data_blocks),
        _ => SEGMENT_BLOCKS,
    }
}

/// Rows of all segments of a pool.
pub(crate) struct Completed {
    /// By the drive after which the segments are named.
    pub(crate) of_drives: Vec<Rows>,
    /// Blocks that have addresses, by the same drive.
    pub(crate) data_blocks: Vec<u64>,
    /// Copies that segments are to have.
    pub(crate) copies: usize,
    /// Drives of which the store lacks rows.
    pub(crate) made: Vec<u16>,
    /// Segments that lost their rows: those of the same drive that were made later have theirs.
    pub(crate) lost: Vec<Pba>,
}

impl Completed {
    /// Segments that lie nowhere.
    pub(crate) fn unplaced(&self) -> impl Iterator<Item = Pba> {
        let rows = self.of_drives.iter().flatten();
        let unplaced = rows.filter(|(_, row)| row.state == SegmentState::Unplaced);
        unplaced.map(|(pba, _)| *pba)
    }

    /// Blocks that have a place.
    pub(crate) fn placed_blocks(&self) -> u64 {
        let all: u64 = self.data_blocks.iter().sum();
        all - self.unplaced().count() as u64 * SEGMENT_BLOCKS
    }
}

/// The data blocks of a pool's drives, from which it is made, and what segments it wants there.
pub(crate) struct Wanted<'a> {
    /// Data blocks of each drive; `None` where nobody knows, because the drive is not there.
    pub(crate) drives: &'a [Option<u64>],
    /// Copies of each segment of a new pool; one that has segments gets as many as these have.
    pub(crate) copies: usize,
    /// Copies that segments are to have, if that was changed since the pool was made.
    pub(crate) changed_copies: Option<usize>,
    /// The failure domain of each drive: copies of a new segment lie in different ones. A drive without one, or that is
    /// missing here, fails alone.
    pub(crate) domains: &'a [Option<String>],
    /// A drive that is added to an open pool: new segments are named after it, because no other drive can get addresses then.
    pub(crate) added: Option<u16>,
    /// Drives where nothing is laid: they are being emptied, or not online.
    pub(crate) avoided: &'a [u16],
    /// Places where nothing is laid, though no segment lies there.
    pub(crate) resting: &'a [SegmentCopy],
    /// The pool's epoch, for new rows.
    pub(crate) epoch: u32,
}

/// The rows of all drives: those of the store, and what is missing of them. Segments are made wherever there is room for one:
/// of a drive that is new none is there yet, of one that grew the last ones, and of a pool whose program had no segments all.
///
/// # Errors
/// Rows that contradict each other, or the drives.
pub(crate) fn complete(stored: &Rows, wanted: &Wanted<'_>) -> Result<Completed> {
    let mut data_blocks = Vec::with_capacity(wanted.drives.len());
    for (drive, blocks) in (0u16..).zip(wanted.drives) {
        // A drive that is not there has room for what lies there.
        data_blocks.push(blocks.unwrap_or_else(|| end_on(stored, drive)));
    }
    let mut layout = Layout::new(stored, &data_blocks, wanted);
    let mut completed = Completed {
        of_drives: Vec::with_capacity(data_blocks.len()),
        data_blocks: Vec::new(),
        copies: layout.copies,
        made: Vec::new(),
        lost: Vec::new(),
    };
    for home in 0..data_blocks.len() as u16 {
        let range = names(home);
        let first = stored.partition_point(|(pba, _)| *pba < range.start);
        let end = stored.partition_point(|(pba, _)| *pba < range.end);
        let mut rows = Rows::new();
        // The last ones may be of a drive that was larger. None of their blocks is in use, or that is found.
        let is_behind = |(_, row): &(Pba, SegmentRow)| match row.copies() {
            [one] => one.drive == home && blocks_at(*one, &data_blocks) == 0,
            _ => false,
        };
        let behind = stored[first..end].iter().rev();
        let behind = behind.take_while(|row| is_behind(row)).count();
        for known in &stored[first..end - behind] {
            // Blocks between the segment before and this one have addresses without a row.
            while name(home, rows.len() as u64) < known.0 {
                let lost = name(home, rows.len() as u64);
                match layout.place_lost(home, rows.len() as u32) {
                    Some(row) => rows.push((lost, row)),
                    None => {
                        return Err(contradiction(
                            lost,
                            "has no row, and there is no room for it",
                        ));
                    }
                }
                completed.lost.push(lost);
            }
            rows.push(*known);
        }
        if completed.lost.last().is_some_and(|pba| pba.drive() == home) {
            completed.made.push(home);
        }
        completed.of_drives.push(rows);
    }
    check(&completed.of_drives, &data_blocks)?;
    layout.make_all(&mut completed, wanted.added);
    let blocks = |rows: &Rows| {
        rows.iter()
            .map(|(_, row)| blocks_of(row, &data_blocks))
            .sum()
    };
    completed.data_blocks = completed.of_drives.iter().map(blocks).collect();
    Ok(completed)
}

/// Data blocks that a drive must have for the segments that lie there.
pub(crate) fn end_on(rows: &Rows, drive: u16) -> u64 {
    let copies = rows.iter().flat_map(|(_, row)| row.copies());
    let copies = copies.filter(|copy| copy.drive == drive);
    let ends = copies.map(|copy| (u64::from(copy.slot) + 1) * SEGMENT_BLOCKS);
    ends.max().unwrap_or(0)
}

/// Room on the drives in which no segment lies.
struct Layout<'a> {
    data_blocks: &'a [u64],
    copies: usize,
    epoch: u32,
    /// Places in which a whole segment can lie. One that is alone can be shorter.
    room: Room<'a>,
}

impl<'a> Layout<'a> {
    fn new(stored: &Rows, data_blocks: &'a [u64], wanted: &Wanted<'a>) -> Self {
        // A pool keeps what it was made with.
        let most = stored.iter().map(|(_, row)| row.copies().len()).max();
        let as_made = most.filter(|most| *most > 0).unwrap_or(wanted.copies);
        let copies_max = wanted.changed_copies.unwrap_or(as_made);
        let copies = stored.iter().flat_map(|(_, row)| row.copies());
        let taken = copies.chain(wanted.resting).copied();
        let taken: BTreeSet<SegmentCopy> = taken.collect();
        let free = (0u16..).zip(data_blocks).map(|(drive, blocks)| {
            let slots = match wanted.avoided.contains(&drive) {
                true => 0..0,
                false => 0..blocks.div_ceil(SEGMENT_BLOCKS) as u32,
            };
            let is_free = |slot: &u32| {
                let copy = SegmentCopy { drive, slot: *slot };
                let is_usable = copies_max == 1 || blocks_at(copy, data_blocks) == SEGMENT_BLOCKS;
                is_usable && !taken.contains(&copy)
            };
            slots.rev().filter(is_free).collect()
        });
        Self {
            data_blocks,
            copies: copies_max,
            epoch: wanted.epoch,
            room: Room::new(wanted.domains, free.collect()),
        }
    }

    /// A row for a segment that lost its own: with one copy, where it was made; else wherever there is room.
    fn place_lost(&mut self, home: u16, index: u32) -> Option<SegmentRow> {
        if self.copies > 1 {
            return self.room.next_row(self.copies, self.epoch);
        }
        let slots = &mut self.room.free[usize::from(home)];
        let slot = match slots.iter().position(|slot| *slot == index) {
            Some(at) => slots.remove(at),
            // Another one lies there, which the check finds.
            None => index,
        };
        let copy = SegmentCopy { drive: home, slot };
        Some(SegmentRow::of_one(self.epoch, copy))
    }

    /// Gives places to segments that lie nowhere, as far as there is room for whole ones.
    fn place_unplaced(&mut self, completed: &mut Completed) {
        let unplaced: Vec<Pba> = completed.unplaced().collect();
        let mut short: Vec<(usize, u32)> = Vec::new();
        for (drive, free) in (0u16..).zip(&mut self.room.free) {
            let blocks =
                |slot: &u32| blocks_at(SegmentCopy { drive, slot: *slot }, self.data_blocks);
            let shorter = free.iter().filter(|slot| blocks(slot) < SEGMENT_BLOCKS);
            short.extend(shorter.map(|slot| (usize::from(drive), *slot)));
            free.retain(|slot| blocks(slot) == SEGMENT_BLOCKS);
        }
        for pba in unplaced {
            let Some(row) = self.room.next_row(self.copies, self.epoch) else {
                break;
            };
            let home = pba.drive();
            let rows = &mut completed.of_drives[usize::from(home)];
            if let Some(known) = rows.get_mut((pba.block() / SEGMENT_BLOCKS) as usize) {
                known.1 = row;
            }
            if !completed.made.contains(&home) {
                completed.made.push(home);
            }
        }
        for (drive, slot) in short {
            self.room.free[drive].insert(0, slot);
        }
    }

    /// Rows for as many segments as there is room for, named after this drive, or after all of them in turn; and, without a
    /// place, for those that had room if the others lay elsewhere.
    fn make_all(&mut self, completed: &mut Completed, home: Option<u16>) {
        // Copies that segments lack come before new segments.
        let lacks = |(_, row): &(Pba, SegmentRow)| {
            !row.copies().is_empty() && row.copies().len() < self.copies
        };
        if completed.of_drives.iter().flatten().any(lacks) {
            return self.reserve(completed, home);
        }
        if home.is_none() && completed.unplaced().next().is_some() {
            self.place_unplaced(completed);
        }
        if self.copies == 1 {
            // Each lies on the drive after which it is named.
            for (home, slots) in (0u16..).zip(std::mem::take(&mut self.room.free)) {
                for slot in slots.into_iter().rev() {
                    let copy = SegmentCopy { drive: home, slot };
                    self.append(completed, home, SegmentRow::of_one(self.epoch, copy));
                }
            }
            return;
        }
        while let Some(row) = self.room.next_row(self.copies, self.epoch) {
            let rows_of = |copy: &&SegmentCopy| completed.of_drives[usize::from(copy.drive)].len();
            let fewest = row.copies().iter().min_by_key(rows_of);
            let home = home.or(fewest.map(|copy| copy.drive));
            if let Some(home) = home {
                self.append(completed, home, row);
            }
        }
        self.reserve(completed, home);
    }

    /// Rows without a place for segments that had room if the others lay elsewhere.
    fn reserve(&self, completed: &mut Completed, home: Option<u16>) {
        let there = completed.of_drives.iter().flatten().count() as u64;
        let drives = 0..self.data_blocks.len() as u16;
        let fewest = drives.min_by_key(|drive| completed.of_drives[usize::from(*drive)].len());
        if let Some(home) = home.or(fewest) {
            for _ in there..self.most() {
                self.append(completed, home, SegmentRow::unplaced(self.epoch));
            }
        }
    }

    /// How many segments the drives have room for, whatever lies there now: the largest number for which domains have enough
    /// room if each holds one copy of each at most.
    fn most(&self) -> u64 {
        let mut domains: BTreeMap<Domain<'_>, u64> = BTreeMap::new();
        for (drive, blocks) in (0u16..).zip(self.data_blocks) {
            *domains.entry(self.room.domain(drive)).or_default() += blocks / SEGMENT_BLOCKS;
        }
        let copies = self.copies as u64;
        let fits = |n: u64| domains.values().map(|room| room.min(&n)).sum::<u64>() >= n * copies;
        let (mut fitting, mut above) = (0, domains.values().sum::<u64>() / copies + 1);
        while above - fitting > 1 {
            let middle = fitting.midpoint(above);
            match fits(middle) {
                true => fitting = middle,
                false => above = middle,
            }
        }
        fitting
    }

    /// Names a new segment after a drive: addresses go on without a gap.
    fn append(&self, completed: &mut Completed, home: u16, row: SegmentRow) {
        let rows = &mut completed.of_drives[usize::from(home)];
        let is_whole = |row: &SegmentRow| blocks_of(row, self.data_blocks) == SEGMENT_BLOCKS;
        if rows.last().is_some_and(|(_, last)| !is_whole(last)) {
            return; // it would leave a gap behind a short one
        }
        rows.push((name(home, rows.len() as u64), row));
        if !completed.made.contains(&home) {
            completed.made.push(home);
        }
    }
}

/// No segment is sealed, and each lies on drives that have room for it, and alone, or nowhere.
fn check(of_drives: &[Rows], data_blocks: &[u64]) -> Result<()> {
    let mut taken = BTreeSet::new();
    for rows in of_drives {
        for (at, (pba, row)) in rows.iter().enumerate() {
            // The format has room for it. To write to a sealed segment would ruin what it is sealed for.
            if row.state == SegmentState::Sealed {
                return Err(newer(*pba));
            }
            let is_last = at + 1 == rows.len();
            for copy in row.copies() {
                let needed = match row.copies().len() == 1 && is_last {
                    true => 1,
                    false => SEGMENT_BLOCKS,
                };
                if blocks_at(*copy, data_blocks) < needed {
                    return Err(contradiction(*pba, "lies where no drive has room for it"));
                }
                if !taken.insert(*copy) {
                    return Err(contradiction(*pba, "lies where another one does"));
                }
            }
        }
    }
    Ok(())
}

/// Refuses drives that have no room for as many copies in different failure domains. Drives are given by their blocks, the
/// label included, and their domains.
///
/// # Errors
/// `Invalid`, with the remedy.
pub fn check_room(drives: &[(u64, Option<String>)], redundancy: Redundancy) -> Result<()> {
    let copies = redundancy.copies();
    let blocks = |(blocks, _): &(u64, _)| Some(blocks.saturating_sub(LABEL_BLOCKS));
    let sizes: Vec<_> = drives.iter().map(blocks).collect();
    let domains: Vec<_> = drives.iter().map(|(_, domain)| domain.clone()).collect();
    let wanted = Wanted {
        drives: &sizes,
        copies,
        domains: &domains,
        added: None,
        changed_copies: None,
        avoided: &[],
        resting: &[],
        epoch: 0,
    };
    match complete(&Rows::new(), &wanted)?.placed_blocks() {
        0 => Err(no_room(copies)),
        _ => Ok(()),
    }
}

/// No segment has a place for all of its copies.
pub(crate) fn no_room(copies: usize) -> EngineError {
    EngineError::invalid(format!(
        "{copies} copies need as many drives with room for 64 MiB each, the label of 1 MiB not counted, in as many failure \
         domains: name more drives, larger ones, or more domains"
    ))
}

/// Segments lost their rows.
pub(crate) fn lost(first: Pba, count: usize) -> EngineError {
    EngineError::corrupt(format!(
        "the metadata does not say where {count} segment(s) of the pool lie, the first is that of data block {} of drive \
         number {}; run `onefold pool repair`, nothing was changed",
        first.block(),
        first.drive()
    ))
}

/// A segment is as only a later version makes it.
fn newer(pba: Pba) -> EngineError {
    EngineError::invalid(format!(
        "the segment of data block {} of drive number {} is sealed, which this version of onefold does not keep up: open the \
         pool with the version that made it; nothing was changed",
        pba.block(),
        pba.drive()
    ))
}

fn contradiction(pba: Pba, what: &str) -> EngineError {
    EngineError::contradiction(format_args!(
        "the segment of data block {} of drive number {} {what}",
        pba.block(),
        pba.drive()
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::drive_io::segments::{Place, Segments};

    fn at(drive: u16, slot: u32) -> SegmentRow {
        SegmentRow::of_one(1, SegmentCopy { drive, slot })
    }

    /// The segments that drives of these sizes have, with so many copies each.
    pub(crate) fn complete(
        stored: &Rows,
        sizes: &[u64],
        copies: usize,
        epoch: u32,
    ) -> Result<Completed> {
        let drives: Vec<_> = sizes.iter().copied().map(Some).collect();
        let wanted = Wanted {
            drives: &drives,
            copies,
            domains: &[],
            added: None,
            changed_copies: None,
            avoided: &[],
            resting: &[],
            epoch,
        };
        super::complete(stored, &wanted)
    }

    /// Rows of a drive whose segments lie where they were made.
    pub(crate) fn rows_of_new(home: u16, blocks: u64, epoch: u32) -> Rows {
        let sizes: Vec<u64> = (0..home).map(|_| 1).chain([blocks]).collect();
        let completed = complete(&Vec::new(), &sizes, 1, epoch).unwrap();
        completed.of_drives.last().unwrap().clone()
    }

    fn message(completed: Result<Completed>) -> String {
        completed.err().expect("it is refused").message
    }

    #[test]
    fn all_blocks_of_drives_of_unequal_size_have_a_place_and_none_beyond() {
        let sizes = [1, SEGMENT_BLOCKS, 3 * SEGMENT_BLOCKS - 1];
        let completed = complete(&Vec::new(), &sizes, 1, 7).unwrap();
        assert_eq!(completed.made, [0, 1, 2]);
        let segments = Segments::new(4);
        for (home, rows) in (0u16..).zip(&completed.of_drives) {
            segments.add(home, rows);
        }
        for (drive, blocks) in (0u16..).zip(sizes) {
            for block in 0..blocks {
                let there = LABEL_BLOCKS + block;
                let place = Place {
                    drive,
                    block: there,
                };
                let pba = Pba::new(drive, block);
                assert_eq!(segments.places(pba)[..], [place]);
                assert_eq!(segments.places(pba.fragment(3))[..], [place]);
            }
            let beyond = Pba::new(drive, blocks.div_ceil(SEGMENT_BLOCKS) * SEGMENT_BLOCKS);
            assert!(segments.places(beyond).is_empty());
        }
        assert!(segments.places(Pba::new(3, 0)).is_empty());
        assert!(segments.places(Pba::new(999, 0)).is_empty());
    }

    #[test]
    fn a_segment_that_lies_elsewhere_is_found_there() {
        let sizes = [2 * SEGMENT_BLOCKS, 2 * SEGMENT_BLOCKS + 5];
        let mut stored = rows_of_new(0, sizes[0], 1);
        stored.extend(rows_of_new(1, sizes[1], 1));
        (stored[1].1, stored[2].1) = (stored[2].1, stored[1].1);
        let completed = complete(&stored, &sizes, 1, 9).unwrap();
        assert!(completed.made.is_empty() && completed.lost.is_empty());
        let segments = Segments::new(2);
        segments.add(0, &completed.of_drives[0]);
        let place = segments.places(Pba::new(0, SEGMENT_BLOCKS + 3));
        let block = LABEL_BLOCKS + 3;
        assert_eq!(place[..], [Place { drive: 1, block }]);
    }

    #[test]
    fn rows_are_made_for_drives_that_are_new_or_grew_and_only_for_these() {
        let stored = rows_of_new(0, 2 * SEGMENT_BLOCKS - 9, 1);
        let sizes = [2 * SEGMENT_BLOCKS - 9, 3];
        assert_eq!(complete(&stored, &sizes, 1, 2).unwrap().made, [1]);
        // What was added to the last segment has a place without a row more.
        let longer = complete(&stored, &[2 * SEGMENT_BLOCKS], 1, 2).unwrap();
        assert!(longer.made.is_empty());
        let grown = complete(&stored, &[2 * SEGMENT_BLOCKS + 1], 1, 2).unwrap();
        assert_eq!((grown.made, grown.lost.len()), (vec![0], 0));
        let epochs: Vec<u32> = grown.of_drives[0]
            .iter()
            .map(|(_, row)| row.epoch)
            .collect();
        assert_eq!(epochs, [1, 1, 2]);
    }

    #[test]
    fn a_segment_that_lost_its_row_is_named_and_never_placed_where_another_one_is() {
        let size = 3 * SEGMENT_BLOCKS;
        let mut stored = rows_of_new(0, size, 1);
        stored.remove(1);
        let completed = complete(&stored, &[size], 1, 2).unwrap();
        assert_eq!(completed.lost, [Pba::new(0, SEGMENT_BLOCKS)]);
        assert_eq!(completed.made, [0]);
        stored[1].1 = at(0, 1);
        let refused = message(complete(&stored, &[size], 1, 2));
        assert!(refused.contains("lies where another one does"), "{refused}");
    }

    #[test]
    fn a_segment_with_a_seal_of_a_later_version_is_refused_before_anything_is_written_to_it() {
        let sizes = [2 * SEGMENT_BLOCKS];
        let mut stored = rows_of_new(0, sizes[0], 1);
        stored[1].1.state = SegmentState::Sealed;
        let refused = message(complete(&stored, &sizes, 1, 4));
        assert!(refused.contains("the version that made it"), "{refused}");
    }

    #[test]
    fn copies_of_a_segment_lie_on_different_drives_and_unequal_drives_are_used_as_far_as_can_be() {
        // Segments of each drive, copies, and how many segments have room.
        let cases: [(&[u64], usize, usize); 7] = [
            (&[4, 4], 2, 4),
            (&[8, 4, 4], 2, 8),
            (&[9, 1, 1, 1], 2, 3),
            (&[3, 3, 3], 2, 4),
            (&[5, 5, 5], 3, 5),
            (&[5], 2, 0),
            (&[2, 0], 2, 0),
        ];
        for (drives, copies, segments) in cases {
            let sizes: Vec<u64> = drives.iter().map(|n| n * SEGMENT_BLOCKS + 9).collect();
            let made = complete(&Vec::new(), &sizes, copies, 3).unwrap();
            let rows = made.of_drives.iter().flatten();
            assert_eq!(rows.clone().count(), segments, "{drives:?}");
            let blocks: u64 = made.data_blocks.iter().sum();
            assert_eq!(blocks, segments as u64 * SEGMENT_BLOCKS);
            let mut places = BTreeSet::new();
            for (_, row) in rows {
                assert_eq!(row.copies().len(), copies);
                for copy in row.copies() {
                    assert!(places.insert(*copy), "{copy:?} is used twice");
                    assert!(u64::from(copy.slot) < drives[usize::from(copy.drive)]);
                }
            }
            // What is stored stays as it is.
            let stored: Rows = made.of_drives.concat();
            let again = complete(&stored, &sizes, copies, 4).unwrap();
            assert!(again.made.is_empty() && again.lost.is_empty());
            assert_eq!(again.of_drives, made.of_drives);
            // And when a drive is not there, nobody puts anything on it.
            for absent in 0..sizes.len() {
                let drives = sizes.iter().enumerate();
                let drives: Vec<_> = drives.map(|(at, n)| (at != absent).then_some(*n)).collect();
                let wanted = Wanted {
                    drives: &drives,
                    copies,
                    domains: &[],
                    added: None,
                    changed_copies: None,
                    avoided: &[],
                    resting: &[],
                    epoch: 4,
                };
                let again = super::complete(&stored, &wanted).unwrap();
                assert_eq!(again.data_blocks, made.data_blocks);
            }
        }
    }

    #[test]
    fn copies_of_a_segment_lie_in_different_failure_domains_and_all_of_these_are_filled() {
        let shelf = |name: &str| Some(name.to_owned());
        // Segments of each drive, their domains, copies, and how many segments have room.
        type Case = (&'static [u64], Vec<Option<String>>, usize, usize);
        let cases: [Case; 5] = [
            (&[4, 4, 8], vec![shelf("a"), shelf("a"), shelf("b")], 2, 8),
            (&[4, 4], vec![shelf("a"), shelf("a")], 2, 0),
            (&[4, 4, 4], vec![shelf("a"), shelf("a"), None], 2, 4),
            (&[6, 3, 3], vec![None, shelf("a")], 2, 6),
            (
                &[3, 3, 3, 3],
                vec![shelf("a"), shelf("b"), shelf("c"), shelf("c")],
                3,
                3,
            ),
        ];
        for (drives, domains, copies, segments) in cases {
            let sizes: Vec<_> = drives.iter().map(|n| Some(n * SEGMENT_BLOCKS)).collect();
            let wanted = Wanted {
                drives: &sizes,
                copies,
                domains: &domains,
                added: None,
                changed_copies: None,
                avoided: &[],
                resting: &[],
                epoch: 1,
            };
            let made = super::complete(&Vec::new(), &wanted).unwrap();
            let rows: Vec<_> = made.of_drives.iter().flatten().collect();
            assert_eq!(rows.len(), segments, "{drives:?} in {domains:?}");
            for (_, row) in rows {
                let domain = |copy: &SegmentCopy| match domains.get(usize::from(copy.drive)) {
                    Some(Some(name)) => name.clone(),
                    _ => copy.drive.to_string(),
                };
                let different: BTreeSet<String> = row.copies().iter().map(domain).collect();
                assert_eq!(different.len(), copies);
            }
        }
    }

    #[test]
    fn segments_of_a_drive_that_is_added_are_named_after_it_and_the_others_keep_their_addresses() {
        let mut sizes = vec![6 * SEGMENT_BLOCKS, 4 * SEGMENT_BLOCKS];
        let before = complete(&Vec::new(), &sizes, 2, 1).unwrap();
        sizes.push(3 * SEGMENT_BLOCKS);
        let drives: Vec<_> = sizes.iter().copied().map(Some).collect();
        let wanted = Wanted {
            drives: &drives,
            copies: 2,
            domains: &[],
            added: Some(2),
            changed_copies: None,
            avoided: &[],
            resting: &[],
            epoch: 2,
        };
        let after = super::complete(&before.of_drives.concat(), &wanted).unwrap();
        assert_eq!(after.made, [2]);
        assert_eq!(after.of_drives[..2], before.of_drives);
        // There were two places left.
        assert_eq!(after.data_blocks[2], 2 * SEGMENT_BLOCKS);
    }

    #[test]
    fn a_row_that_leads_beyond_a_drive_is_refused() {
        let sizes = [2 * SEGMENT_BLOCKS, SEGMENT_BLOCKS - 1];
        // A drive that there is not, and places that are too short or none.
        for row in [at(2, 0), at(1, 0), at(0, 2)] {
            let mut stored = rows_of_new(0, sizes[0], 1);
            stored[0].1 = row;
            let refused = message(complete(&stored, &sizes, 1, 2));
            assert!(refused.contains("has room for it"), "{row:?}: {refused}");
        }
    }
}
