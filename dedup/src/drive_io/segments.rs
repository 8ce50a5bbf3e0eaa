//! Where segments lie on the drives: one look-up in an array for each block of I/O.
//!
//! An address names a segment and a block in it ([`Pba`]). A segment is named after a drive and a number, and keeps that name
//! wherever it lies. Its row in the store says where that is: at one place, or at several on different drives, its *copies*;
//! or nowhere, if its place was needed for something else and none of its blocks is in use.
//!
//! One segment at a time is being copied to one place more, its *incoming* copy: that is written like the others, and not read.
//!
//! Guarantees: who asks for the places of a block gets those of one moment. An incoming copy that a write missed never counts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use drives::Extent;
use meta::{COPIES_MAX, Pba, SegmentCopy, SegmentRow};

use crate::LABEL_BLOCKS;
use crate::drive_io::copysets::{Copysets, Counter};

/// Blocks of a segment: 64 MiB. Long enough that a row costs nothing beside its data (30 bytes of 64 MiB) and that the
/// array stays small (24 bytes each: 384 KiB for 1 TiB); short enough to be moved or rebuilt in a second. Small in
/// tests: small drives have several.
pub(crate) const SEGMENT_BLOCKS: u64 = if cfg!(test) { 64 } else { (64 << 20) / 4096 };

/// Bits of a block number on a drive in a word of the array; the drive's index is above them.
const BLOCK_BITS: u32 = 48;

// Every block of the largest drive has a number of so many bits.
const _: () = assert!(Pba::BLOCK_MAX + LABEL_BLOCKS < 1 << BLOCK_BITS);

/// The word of a copy that there is not.
const NO_COPY: u64 = u64::MAX;

/// Where a copy of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the drive.
    pub(crate) drive: u16,
    /// The block there, the label area included.
    pub(crate) block: u64,
}

impl Place {
    /// The block alone, at the beginning of a buffer.
    pub(crate) const fn extent(self) -> Extent {
        Extent {
            block: self.block,
            buffer_offset: 0,
            blocks: 1,
        }
    }
}

/// Where the copies of a block are: few, so that they need no memory of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copies {
    places: [Place; COPIES_MAX + 1],
    count: u8,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            places: [Place {
                drive: u16::MAX,
                block: 0,
            }; COPIES_MAX + 1],
            count: 0,
        }
    }
}

impl Copies {
    pub(crate) fn push(&mut self, place: Place) {
        if let Some(next) = self.places.get_mut(usize::from(self.count)) {
            *next = place;
            self.count += 1;
        }
    }

    /// The place with that number is the first one.
    pub(crate) fn bring_to_front(&mut self, at: usize) {
        if at < usize::from(self.count) {
            self.places.swap(0, at);
        }
    }
}

impl std::ops::Deref for Copies {
    type Target = [Place];

    fn deref(&self) -> &[Place] {
        self.places
            .get(..usize::from(self.count))
            .unwrap_or(&self.places)
    }
}

/// Rows by the address of their segment's first block.
pub(crate) type Rows = Vec<(Pba, SegmentRow)>;

/// The places of the copies of one segment, each as a word of drive and first block.
type Words = [AtomicU64; COPIES_MAX];

/// What became of the incoming copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Progress {
    /// It is written like the others.
    Copying = 0,
    /// A write missed it: it never counts.
    Spoiled = 1,
    /// It counts: a write that misses it fails.
    Counts = 2,
}

/// The copy that is being made.
struct Incoming {
    /// The first address of its segment, or none: [`NO_COPY`].
    segment: AtomicU64,
    /// Its place, as a word.
    place: AtomicU64,
    /// A [`Progress`].
    progress: AtomicU8,
}

/// The places of all segments: for each drive, of those that are named after it.
pub(crate) struct Segments {
    of_homes: Box<[OnceLock<Box<[Words]>>]>,
    incoming: Incoming,
    /// How often the places changed, twice for each change: odd in the middle of one.
    changes: AtomicU64,
}

impl Segments {
    /// No segments, of drives of which there are so many at most.
    pub(crate) fn new(drives_max: usize) -> Self {
        Self {
            of_homes: (0..drives_max).map(|_| OnceLock::new()).collect(),
            incoming: Incoming {
                segment: AtomicU64::new(NO_COPY),
                place: AtomicU64::new(NO_COPY),
                progress: AtomicU8::new(Progress::Copying as u8),
            },
            changes: AtomicU64::new(0),
        }
    }

    /// The segments that are named after the drive with this index, in order. Once for each drive.
    pub(crate) fn add(&self, home: u16, rows: &[(Pba, SegmentRow)]) {
        let words = rows.iter().map(|(_, row)| words(row).map(AtomicU64::new));
        if let Some(of_home) = self.of_homes.get(usize::from(home)) {
            let is_new = of_home.set(words.collect()).is_ok();
            debug_assert!(is_new, "drive {home} was added twice");
        }
    }

    /// Where the copies of a block are, or of the pack of a fragment; none if no segment has it.
    #[inline]
    pub(crate) fn places(&self, pba: Pba) -> Copies {
        self.look(|| {
            let mut copies = Copies::default();
            self.push_settled(pba, &mut copies);
            copies
        })
    }

    /// The same, with the incoming copy.
    #[inline]
    pub(crate) fn all_places(&self, pba: Pba) -> Copies {
        self.look(|| {
            let mut copies = Copies::default();
            self.push_settled(pba, &mut copies);
            if self.incoming.segment.load(Ordering::Acquire) == segment_of(pba).0 {
                copies.push(place(self.incoming.place.load(Ordering::Acquire), pba));
            }
            copies
        })
    }

    #[inline]
    fn push_settled(&self, pba: Pba, copies: &mut Copies) {
        for word in self.words_of(pba).into_iter().flatten() {
            let word = word.load(Ordering::Acquire);
            if word == NO_COPY {
                break;
            }
            copies.push(place(word, pba));
        }
    }

    #[inline]
    fn words_of(&self, pba: Pba) -> Option<&Words> {
        let of_home = self.of_homes.get(usize::from(pba.drive()))?.get()?;
        of_home.get((pba.block() / SEGMENT_BLOCKS) as usize)
    }

    /// What is seen at one moment.
    #[inline]
    fn look<T>(&self, see: impl Fn() -> T) -> T {
        loop {
            let before = self.changes.load(Ordering::Acquire);
            let seen = see();
            if before.is_multiple_of(2) && self.changes.load(Ordering::Acquire) == before {
                return seen;
            }
            std::hint::spin_loop();
        }
    }

    /// Changes places at one moment. One at a time: the caller sees to that.
    fn change(&self, change: impl FnOnce()) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        change();
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on a segment has this copy too, which is written and not read. One at a time.
    pub(crate) fn begin(&self, segment: Pba, copy: SegmentCopy) {
        let Incoming {
            segment: of,
            place,
            progress,
        } = &self.incoming;
        self.change(|| {
            progress.store(Progress::Copying as u8, Ordering::SeqCst);
            place.store(word(copy), Ordering::SeqCst);
            of.store(segment.0, Ordering::SeqCst);
        });
    }

    /// A write missed the incoming copy. False if that counts already.
    pub(crate) fn spoil(&self) -> bool {
        let now = self.progress_from(Progress::Copying, Progress::Spoiled);
        now != Progress::Counts as u8
    }

    /// The incoming copy counts from now on, unless a write missed it: then false.
    pub(crate) fn commit(&self) -> bool {
        let now = self.progress_from(Progress::Copying, Progress::Counts);
        now == Progress::Counts as u8
    }

    /// Whether a write missed the incoming copy, or the last one if there is none now.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.incoming.progress.load(Ordering::SeqCst) == Progress::Spoiled as u8
    }

    /// What the progress is after that.
    fn progress_from(&self, from: Progress, to: Progress) -> u8 {
        let (from, to) = (from as u8, to as u8);
        let order = Ordering::SeqCst;
        match self
            .incoming
            .progress
            .compare_exchange(from, to, order, order)
        {
            Ok(_) => to,
            Err(other) => other,
        }
    }

    /// Nothing is incoming any more, and a segment has the copies of this row.
    pub(crate) fn settle(&self, segment: Pba, row: &SegmentRow) {
        self.change(|| {
            for (word, new) in self.words_of(segment).into_iter().flatten().zip(words(row)) {
                word.store(new, Ordering::SeqCst);
            }
            self.incoming.segment.store(NO_COPY, Ordering::SeqCst);
        });
    }

    /// Nothing is incoming any more.
    pub(crate) fn give_up(&self) {
        self.change(|| self.incoming.segment.store(NO_COPY, Ordering::SeqCst));
    }

    /// How many segments have a copy on this drive, and how many have any, by the drive that they are named after.
    pub(crate) fn on_drive(&self, drive: u16) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        let homes = self.of_homes.iter().map_while(OnceLock::get);
        homes.map(move |words| {
            let is_here = |word: &AtomicU64| {
                let word = word.load(Ordering::Acquire);
                word != NO_COPY && (word >> BLOCK_BITS) as u16 == drive
            };
            let here = words.iter().filter(|words| words.iter().any(is_here));
            let has_place = |words: &&Words| words[0].load(Ordering::Acquire) != NO_COPY;
            let placed = words.iter().filter(has_place);
            (here.count() as u64, placed.count() as u64)
        })
    }

    /// How many segments have a place, and how many of them lack copies that they should have.
    pub(crate) fn lacking(&self, copies: usize) -> (u64, u64) {
        let (mut placed, mut lacking) = (0, 0);
        for words in self
            .of_homes
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|words| words.iter())
        {
            let there = words
                .iter()
                .filter(|word| word.load(Ordering::Acquire) != NO_COPY)
                .count();
            placed += u64::from(there > 0);
            lacking += u64::from((1..copies).contains(&there));
        }
        (placed, lacking)
    }

    /// The copysets of all segments, of so many drives. Copies on drives of which `counts` says no are left out.
    pub(crate) fn copysets(&self, drives: usize, counts: impl Fn(u16) -> bool) -> Copysets {
        let mut counter = Counter::new(drives);
        let (mut set, mut last) = (Vec::with_capacity(COPIES_MAX), Vec::new());
        let homes = self.of_homes.iter().filter_map(OnceLock::get);
        for words in homes.flat_map(|words| words.iter()) {
            let of_one_moment = self.look(|| words.each_ref().map(|it| it.load(Ordering::Acquire)));
            set.clear();
            let copies = of_one_moment.iter().take_while(|word| **word != NO_COPY);
            set.extend(copies.map(|word| (word >> BLOCK_BITS) as u16));
            set.retain(|drive| counts(*drive));
            // Neighbours mostly lie on the same drives.
            if set != last {
                last.clone_from(&set);
                counter.add(&mut set);
            }
        }
        counter.counted()
    }

    /// The drives of each segment that has a copy on this one, without it.
    pub(crate) fn partners(&self, drive: u16) -> impl Iterator<Item = Vec<u16>> {
        let homes = self.of_homes.iter().filter_map(OnceLock::get);
        homes
            .flat_map(|words| words.iter())
            .filter_map(move |words| {
                let words = words.iter().map(|word| word.load(Ordering::Acquire));
                let words = words.take_while(|word| *word != NO_COPY);
                let mut drives: Vec<u16> = words.map(|word| (word >> BLOCK_BITS) as u16).collect();
                let at = drives.iter().position(|of| *of == drive)?;
                drives.swap_remove(at);
                Some(drives)
            })
    }
}

/// The place of a block in the copy of its segment that a word says.
#[inline]
fn place(word: u64, pba: Pba) -> Place {
    Place {
        drive: (word >> BLOCK_BITS) as u16,
        block: (word & ((1 << BLOCK_BITS) - 1)) + pba.block() % SEGMENT_BLOCKS,
    }
}

fn word(SegmentCopy { drive, slot }: SegmentCopy) -> u64 {
    u64::from(drive) << BLOCK_BITS | (LABEL_BLOCKS + u64::from(slot) * SEGMENT_BLOCKS)
}

fn words(row: &SegmentRow) -> [u64; COPIES_MAX] {
    let mut copies = row.copies().iter();
    std::array::from_fn(|_| copies.next().map_or(NO_COPY, |copy| word(*copy)))
}

/// The first address of the segment of a block, or of the pack of a fragment.
#[inline]
pub(crate) fn segment_of(pba: Pba) -> Pba {
    let block = pba.block();
    Pba::new(pba.drive(), block - block % SEGMENT_BLOCKS)
}

/// The first address of a segment.
pub(super) fn name(home: u16, index: u64) -> Pba {
    Pba::new(home, index * SEGMENT_BLOCKS)
}

/// The addresses of all segments that are named after a drive.
pub(crate) fn names(home: u16) -> std::ops::Range<Pba> {
    Pba::new(home, 0)..Pba::new(home + 1, 0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn at(drive: u16, slot: u32) -> SegmentCopy {
        SegmentCopy { drive, slot }
    }

    fn drives(copies: Copies) -> Vec<u16> {
        copies.iter().map(|place| place.drive).collect()
    }

    fn mirrored() -> Segments {
        let segments = Segments::new(4);
        let row = |index| SegmentRow::new(1, &[at(0, index), at(1, index)]).unwrap();
        let rows: Rows = (0..2)
            .map(|index| (name(0, index.into()), row(index)))
            .collect();
        segments.add(0, &rows);
        segments
    }

    #[test]
    fn a_copy_that_is_being_made_is_a_place_of_its_segment_alone_and_counts_when_it_is_settled() {
        let segments = mirrored();
        let (moved, other) = (name(0, 1), name(0, 0));
        segments.begin(moved, at(2, 5));
        let of_block = Pba::new(0, SEGMENT_BLOCKS + 3);
        assert_eq!(drives(segments.places(of_block)), [0, 1]);
        assert_eq!(drives(segments.all_places(of_block)), [0, 1, 2]);
        assert_eq!(drives(segments.all_places(other)), [0, 1]);
        let there = segments.all_places(of_block.fragment(2))[2];
        assert_eq!(there.block, LABEL_BLOCKS + 5 * SEGMENT_BLOCKS + 3);
        assert!(segments.commit());
        segments.settle(moved, &SegmentRow::new(1, &[at(2, 5), at(1, 1)]).unwrap());
        assert_eq!(drives(segments.all_places(of_block)), [2, 1]);
        segments.settle(other, &SegmentRow::unplaced(1));
        assert!(segments.all_places(other).is_empty());
    }

    #[test]
    fn copysets_are_those_of_where_segments_lie_and_without_a_drive_its_partners_are_alone() {
        let segments = mirrored();
        segments.settle(
            name(0, 1),
            &SegmentRow::new(1, &[at(2, 0), at(1, 1)]).unwrap(),
        );
        assert_eq!(segments.copysets(4, |_| true).of_size, [0, 2, 0]);
        let without = |lost: u16| segments.copysets(4, |drive| drive != lost).of_size;
        assert_eq!(without(0), [1, 1, 0]);
        assert_eq!(without(1), [2, 0, 0]);
        assert_eq!(without(3), [0, 2, 0]);
        segments.settle(name(0, 1), &SegmentRow::unplaced(1));
        assert_eq!(segments.copysets(4, |_| true).of_size, [0, 1, 0]);
    }

    #[test]
    fn a_copy_that_a_write_missed_never_counts_and_no_write_misses_one_that_counts() {
        let segments = mirrored();
        segments.begin(name(0, 0), at(2, 0));
        assert!(segments.spoil() && segments.spoil());
        assert!(!segments.commit());
        segments.give_up();
        assert_eq!(drives(segments.all_places(name(0, 0))), [0, 1]);
        segments.begin(name(0, 0), at(2, 0));
        assert!(segments.commit());
        assert!(!segments.spoil());
    }

    #[test]
    fn who_looks_while_places_change_sees_those_of_one_moment() {
        let segments = mirrored();
        let row = |copies: &[SegmentCopy]| SegmentRow::new(1, copies).unwrap();
        let rows = [
            row(&[at(0, 0), at(1, 0), at(2, 0)]),
            row(&[at(2, 0), at(3, 0)]),
            row(&[at(1, 0)]),
        ];
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..30_000 {
                    segments.settle(name(0, 0), &rows[round % 3]);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                let seen = drives(segments.all_places(name(0, 0)));
                let known: [&[u16]; 4] = [&[0, 1], &[0, 1, 2], &[2, 3], &[1]];
                assert!(known.contains(&&seen[..]), "{seen:?}");
            }
        });
    }
}
