//! Where segments lie on the drives: one look-up in an array for each block of I/O.
//!
//! An address names a segment and a block in it ([`Pba`]). A segment is named after the drive and the place where it was
//! made, and keeps that name wherever it lies. Its row in the store says where that is.
//!
//! Guarantees: a segment has a durable row before any of its blocks is used; no two segments lie at one place; a segment
//! lies as a whole on a drive that has room for it. A drive's last segment is as short as what is left of the drive, so
//! that all of it is used. What this version would not keep as it is, a second copy or a sealed segment, is refused.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use meta::{Pba, SegmentCopy, SegmentRow, SegmentState};

use crate::{EngineError, LABEL_BLOCKS, Result};

/// Blocks of a segment: 64 MiB. Long enough that a row costs nothing beside its data (30 bytes of 64 MiB) and that the
/// array stays small (8 bytes each: 128 KiB for 1 TiB); short enough to be moved or rebuilt in a second. Small in
/// tests: small drives have several.
pub(crate) const SEGMENT_BLOCKS: u64 = if cfg!(test) { 64 } else { (64 << 20) / 4096 };

/// Bits of a block number on a drive in a word of the array; the drive's index is above them.
const BLOCK_BITS: u32 = 48;

// Every block of the largest drive has a number of so many bits.
const _: () = assert!(Pba::BLOCK_MAX + LABEL_BLOCKS < 1 << BLOCK_BITS);

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the drive.
    pub(crate) drive: u16,
    /// The block there, the label area included.
    pub(crate) block: u64,
}

/// Rows by the address of their segment's first block.
pub(crate) type Rows = Vec<(Pba, SegmentRow)>;

/// The places of all segments: for each drive, of those that were made there, drive and first block.
pub(crate) struct Segments(Box<[OnceLock<Box<[AtomicU64]>>]>);

impl Segments {
    /// No segments, of drives of which there are so many at most.
    pub(crate) fn new(drives_max: usize) -> Self {
        Self((0..drives_max).map(|_| OnceLock::new()).collect())
    }

    /// The segments that were made on the drive with this index, in order. Once for each drive.
    pub(crate) fn add(&self, home: u16, rows: &[(Pba, SegmentRow)]) {
        let words = rows.iter().map(|(_, row)| AtomicU64::new(word(row)));
        if let Some(of_home) = self.0.get(usize::from(home)) {
            let is_new = of_home.set(words.collect()).is_ok();
            debug_assert!(is_new, "drive {home} was added twice");
        }
    }

    /// Where a block is, or the pack of a fragment; `None` if no segment has it.
    #[inline]
    pub(crate) fn place(&self, pba: Pba) -> Option<Place> {
        let block = pba.block();
        let of_home = self.0.get(usize::from(pba.drive()))?.get()?;
        let word = of_home.get((block / SEGMENT_BLOCKS) as usize)?;
        let word = word.load(Ordering::Acquire);
        Some(Place {
            drive: (word >> BLOCK_BITS) as u16,
            block: (word & ((1 << BLOCK_BITS) - 1)) + block % SEGMENT_BLOCKS,
        })
    }
}

fn word(row: &SegmentRow) -> u64 {
    let SegmentCopy { drive, slot } = row.first();
    u64::from(drive) << BLOCK_BITS | (LABEL_BLOCKS + u64::from(slot) * SEGMENT_BLOCKS)
}

/// Segments of a drive with so many data blocks.
pub(crate) fn count(data_blocks: u64) -> u64 {
    data_blocks.div_ceil(SEGMENT_BLOCKS)
}

/// The first address of a segment.
fn name(home: u16, index: u64) -> Pba {
    Pba::new(home, index * SEGMENT_BLOCKS)
}

/// Blocks of a segment that was made on a drive of this size.
fn blocks_of(index: u64, data_blocks: u64) -> u64 {
    (data_blocks - index * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS)
}

/// The addresses of all segments that were made on a drive.
pub(crate) fn names(home: u16) -> std::ops::Range<Pba> {
    Pba::new(home, 0)..Pba::new(home + 1, 0)
}

/// Rows for all segments of a drive: each lies where it was made.
pub(crate) fn rows_of_new(home: u16, data_blocks: u64, epoch: u32) -> Rows {
    let row = |index: u64| {
        let slot = index as u32;
        let copy = SegmentCopy { drive: home, slot };
        (name(home, index), SegmentRow::of_one(epoch, copy))
    };
    (0..count(data_blocks)).map(row).collect()
}

/// Rows of all segments of a pool.
pub(crate) struct Completed {
    /// By the drive where the segments were made.
    pub(crate) of_drives: Vec<Rows>,
    /// Drives of which the store lacks rows.
    pub(crate) made: Vec<u16>,
    /// Segments that lost their rows: those of the same drive that were made later have theirs.
    pub(crate) lost: Vec<Pba>,
}

/// The rows of all drives: those of the store, and what is missing of them. A drive that is new lacks all of its rows, one
/// that is larger than it was the last ones; and all drives of a pool whose program had no segments.
///
/// # Errors
/// Rows that contradict each other, or the drives.
pub(crate) fn complete(stored: Rows, data_blocks: &[u64], epoch: u32) -> Result<Completed> {
    let mut completed = Completed {
        of_drives: Vec::with_capacity(data_blocks.len()),
        made: Vec::new(),
        lost: Vec::new(),
    };
    for (home, blocks) in (0u16..).zip(data_blocks) {
        let range = names(home);
        let first = stored.partition_point(|(pba, _)| *pba < range.start);
        let end = stored.partition_point(|(pba, _)| *pba < range.end);
        let mut rows = rows_of_new(home, *blocks, epoch);
        let mut missing = Vec::new();
        // Those behind the end are of a drive that was larger. None of their blocks is in use, or that is found.
        let mut known = stored[first..end].iter().peekable();
        for row in &mut rows {
            match known.next_if(|(pba, _)| *pba == row.0) {
                Some(stored) => {
                    *row = *stored;
                    completed.lost.append(&mut missing);
                }
                None => missing.push(row.0),
            }
        }
        if !missing.is_empty() || completed.lost.last().is_some_and(|pba| pba.drive() == home) {
            completed.made.push(home);
        }
        completed.of_drives.push(rows);
    }
    check(&completed.of_drives, data_blocks)?;
    Ok(completed)
}

/// Every segment has one copy and is open, and lies on a drive that has room for it, and alone.
fn check(of_drives: &[Rows], data_blocks: &[u64]) -> Result<()> {
    let mut taken = BTreeSet::new();
    for (rows, blocks) in of_drives.iter().zip(data_blocks) {
        for (index, (pba, row)) in (0..).zip(rows) {
            // The format has room for both. To write one copy of two, or to a sealed segment, would ruin what they are for.
            if row.copies().len() > 1 || row.state != SegmentState::Open {
                return Err(newer(*pba));
            }
            for copy in row.copies() {
                let drive = data_blocks.get(usize::from(copy.drive)).copied();
                let first = u64::from(copy.slot) * SEGMENT_BLOCKS;
                if drive.is_none_or(|drive| first + blocks_of(index, *blocks) > drive) {
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
        "the segment of data block {} of drive number {} has several copies, or is sealed, which this version of onefold does \
         not keep up: open the pool with the version that made it; nothing was changed",
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
mod tests {
    use super::*;

    fn at(drive: u16, slot: u32) -> SegmentRow {
        SegmentRow::of_one(1, SegmentCopy { drive, slot })
    }

    fn message(completed: Result<Completed>) -> String {
        completed.err().expect("it is refused").message
    }

    #[test]
    fn all_blocks_of_drives_of_unequal_size_have_a_place_and_none_beyond() {
        let sizes = [1, SEGMENT_BLOCKS, 3 * SEGMENT_BLOCKS - 1];
        let completed = complete(Vec::new(), &sizes, 7).unwrap();
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
                assert_eq!(segments.place(pba), Some(place));
                assert_eq!(segments.place(pba.fragment(3)), Some(place));
            }
            let beyond = Pba::new(drive, count(blocks) * SEGMENT_BLOCKS);
            assert_eq!(segments.place(beyond), None);
        }
        assert_eq!(segments.place(Pba::new(3, 0)), None);
        assert_eq!(segments.place(Pba::new(999, 0)), None);
    }

    #[test]
    fn a_segment_that_lies_elsewhere_is_found_there() {
        let sizes = [2 * SEGMENT_BLOCKS, 2 * SEGMENT_BLOCKS + 5];
        let mut stored = rows_of_new(0, sizes[0], 1);
        stored.extend(rows_of_new(1, sizes[1], 1));
        (stored[1].1, stored[2].1) = (stored[2].1, stored[1].1);
        let completed = complete(stored, &sizes, 9).unwrap();
        assert!(completed.made.is_empty() && completed.lost.is_empty());
        let segments = Segments::new(2);
        segments.add(0, &completed.of_drives[0]);
        let place = segments.place(Pba::new(0, SEGMENT_BLOCKS + 3));
        let block = LABEL_BLOCKS + 3;
        assert_eq!(place, Some(Place { drive: 1, block }));
    }

    #[test]
    fn rows_are_made_for_drives_that_are_new_or_grew_and_only_for_these() {
        let stored = rows_of_new(0, 2 * SEGMENT_BLOCKS - 9, 1);
        let sizes = [2 * SEGMENT_BLOCKS - 9, 3];
        assert_eq!(complete(stored.clone(), &sizes, 2).unwrap().made, [1]);
        // What was added to the last segment has a place without a row more.
        let longer = complete(stored.clone(), &[2 * SEGMENT_BLOCKS], 2).unwrap();
        assert!(longer.made.is_empty());
        let grown = complete(stored, &[2 * SEGMENT_BLOCKS + 1], 2).unwrap();
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
        let completed = complete(stored.clone(), &[size], 2).unwrap();
        assert_eq!(completed.lost, [Pba::new(0, SEGMENT_BLOCKS)]);
        assert_eq!(completed.made, [0]);
        stored[1].1 = at(0, 1);
        let refused = message(complete(stored, &[size], 2));
        assert!(refused.contains("lies where another one does"), "{refused}");
    }

    #[test]
    fn a_segment_with_copies_or_a_seal_of_a_later_version_is_refused_before_anything_is_written_to_it()
     {
        let sizes = [2 * SEGMENT_BLOCKS; 2];
        let copies = [0, 1].map(|drive| SegmentCopy { drive, slot: 1 });
        let mirrored = SegmentRow::new(3, &copies).unwrap();
        let mut sealed = at(0, 1);
        sealed.state = SegmentState::Sealed;
        for row in [mirrored, sealed] {
            let mut stored = rows_of_new(0, sizes[0], 1);
            stored[1].1 = row;
            let refused = message(complete(stored, &sizes, 4));
            assert!(refused.contains("the version that made it"), "{refused}");
        }
    }

    #[test]
    fn a_row_that_leads_beyond_a_drive_is_refused() {
        let sizes = [2 * SEGMENT_BLOCKS, SEGMENT_BLOCKS - 1];
        // A drive that there is not, and places that are too short or none.
        for row in [at(2, 0), at(1, 0), at(0, 2)] {
            let mut stored = rows_of_new(0, sizes[0], 1);
            stored[0].1 = row;
            let refused = message(complete(stored, &sizes, 2));
            assert!(refused.contains("has room for it"), "{row:?}: {refused}");
        }
    }
}
