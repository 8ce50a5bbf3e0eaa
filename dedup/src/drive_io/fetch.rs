//! The one way to read contents from the drives: by their addresses, wherever their segments lie, and whether they have
//! a block of their own or share one.
//!
//! A pack is read once, to the offset of the first of its contents that is wanted, and unpacked from
//! there; so a read needs no memory but the buffer that it was given.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use drives::Extent;
use meta::Pba;
use reactor::Buffer;

use crate::Block;
use crate::content::pack::Pack;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::hedge::Elsewhere;
use crate::drive_io::scatter::{self, Failures, OfDrive};
use crate::drive_io::segments::Place;
use crate::sync::gate::Pass;

/// Blocks of a buffer that are read from the same drive in a row, if it has them: 128 KiB. A buffer of which drives have single
/// pages in turns would have to be cut into pages.
const RUN_BLOCKS: u32 = 32;

/// Contents that are wanted in a buffer. As long as this lives their places are not used for others.
pub(crate) struct Fetch<'a> {
    drives: &'a DriveList,
    /// Inside the gate since the places were looked up.
    _pass: Pass<'a>,
    groups: Vec<OfDrive<Extent>>,
    /// Fragments and their offsets in the buffer, those of a pack one after the other.
    fragments: Vec<(Pba, usize)>,
    /// The only drive that is asked.
    only: Option<u16>,
    /// The drive that is asked, and for how many more blocks.
    run: (u16, u32),
    /// All blocks that are read: only where they may have other copies.
    blocks: Vec<Chosen>,
    /// The longest that other copies of theirs take to be read; `None` if one of them has none.
    others_take: Option<Duration>,
    /// Drives that failed, or took long, though others had the blocks.
    covered: Vec<u16>,
}

/// A block, where it goes in the buffer, and the drive from which it is read.
#[derive(Clone, Copy)]
struct Chosen {
    pba: Pba,
    buffer_offset: usize,
    drive: u16,
}

impl<'a> Fetch<'a> {
    /// Contents that go to these offsets (bytes from the buffer's start, whole blocks). Neighbours on the
    /// drive that are neighbours in the buffer are read together.
    pub(crate) fn new(drives: &'a DriveList, contents: impl Iterator<Item = (Pba, usize)>) -> Self {
        Self::with(drives, None, contents)
    }

    /// The same from the copies on one drive, and from no others.
    pub(crate) fn of_drive(
        drives: &'a DriveList,
        drive: u16,
        contents: impl Iterator<Item = (Pba, usize)>,
    ) -> Self {
        Self::with(drives, Some(drive), contents)
    }

    /// One content from one copy of its block, and from no other.
    pub(crate) fn of_copy(drives: &'a DriveList, copy: Place, (pba, offset): (Pba, usize)) -> Self {
        let mut fetch = Self::with(drives, Some(copy.drive), std::iter::empty());
        if pba.is_fragment() {
            fetch.fragments.push((pba, offset));
        }
        scatter::add(&mut fetch.groups, copy, offset);
        fetch
    }

    fn with(
        drives: &'a DriveList,
        only: Option<u16>,
        contents: impl Iterator<Item = (Pba, usize)>,
    ) -> Self {
        let mut fetch = Self {
            drives,
            _pass: drives.gate.pass(),
            groups: Vec::new(),
            fragments: Vec::new(),
            only,
            run: (NOWHERE.drive, 0),
            blocks: Vec::new(),
            others_take: Some(Duration::ZERO),
            covered: Vec::new(),
        };
        for (pba, offset) in contents {
            if pba.is_fragment() {
                fetch.fragments.push((pba, offset));
            } else {
                fetch.add(pba, offset);
            }
        }
        // By pack, then by offset: the first offset of a pack is read to.
        fetch
            .fragments
            .sort_unstable_by_key(|(pba, offset)| (pba.container(), *offset));
        for at in 0..fetch.fragments.len() {
            let (pba, offset) = fetch.fragments[at];
            let is_first = match at.checked_sub(1) {
                Some(before) => fetch.fragments[before].0.container() != pba.container(),
                None => true,
            };
            if is_first {
                fetch.add(pba, offset);
            }
        }
        fetch
    }

    fn add(&mut self, pba: Pba, buffer_offset: usize) {
        let drives = self.drives;
        // Of a block that no segment has, a drive that there is not.
        let place = match self.only {
            None => self.choose(&drives.readable(pba)),
            Some(drive) => {
                let places = drives.places(pba);
                places.iter().find(|place| place.drive == drive).copied()
            }
        };
        let place = place.unwrap_or(NOWHERE);
        if drives.has_copies() && self.only.is_none() {
            self.blocks.push(Chosen {
                pba,
                buffer_offset,
                drive: place.drive,
            });
        }
        scatter::add(&mut self.groups, place, buffer_offset);
    }

    /// The copy that is read: one on the drive that is asked already, or the first one.
    fn choose(&mut self, copies: &[Place]) -> Option<Place> {
        let first = copies.first()?;
        if copies.len() < 2 {
            self.others_take = None;
            return Some(*first);
        }
        let (drive, left) = self.run;
        let stays = copies.iter().find(|place| left > 0 && place.drive == drive);
        let (place, left) = match stays {
            Some(place) => (place, left),
            None => {
                self.note_others(first, copies);
                (first, RUN_BLOCKS)
            }
        };
        self.run = (place.drive, left - 1);
        Some(*place)
    }

    /// A run of blocks is read from this one of their copies.
    fn note_others(&mut self, chosen: &Place, copies: &[Place]) {
        let others = copies.iter().filter(|other| other.drive != chosen.drive);
        let others = others.filter_map(|other| self.drives.read_times(other.drive));
        let shortest = others.map(|times| times.mean()).min();
        self.others_take = self.others_take.zip(shortest).map(|(a, b)| a.max(b));
    }

    /// The drives that gave what was asked for, but for these.
    pub(crate) fn worked(&self, failed: &Failures) -> impl Iterator<Item = u16> {
        let drives = self.groups.iter().map(|group| group.drive);
        drives.filter(|drive| {
            let has_failed = failed.iter().any(|(failed, _)| failed == drive);
            !has_failed && !self.covered.contains(drive)
        })
    }

    /// The drive that is asked first, if it is one.
    pub(crate) fn only_drive(&self) -> Option<u16> {
        match &self.groups[..] {
            [one] => Some(one.drive),
            _ => None,
        }
    }

    /// Reads them, each to its offset, from all drives at once; returns the drives that failed and are alone in having
    /// what was asked for. What is of these is anything in the buffer. What another copy has is read from there, and
    /// the copy that failed is noted among the suspects.
    pub(crate) async fn read(&mut self, buf: Buffer) -> (Failures, Buffer) {
        let (failed, buf) = match self.only {
            Some(_) => scatter::read(self.drives, buf, &self.groups).await,
            None => self.read_hedged(buf).await,
        };
        self.settle(failed, buf).await
    }

    async fn read_hedged(&mut self, buf: Buffer) -> (Failures, Buffer) {
        let others = Others {
            drives: self.drives,
            blocks: &self.blocks,
            take: self.others_take.filter(|_| !self.blocks.is_empty()),
            took_long: RefCell::default(),
        };
        let read = scatter::read_hedged(self.drives, buf, &self.groups, Some(&others)).await;
        self.covered.extend(others.took_long.into_inner());
        read
    }

    /// Reads from other copies what drives failed to give, and unpacks what is there.
    async fn settle(&mut self, mut failed: Failures, mut buf: Buffer) -> (Failures, Buffer) {
        let drives = self.drives;
        let mut missing = None;
        if !failed.is_empty() && drives.has_copies() && self.only.is_none() {
            let none;
            (failed, none, buf) = self.read_others(failed, buf).await;
            missing = Some(none);
        }
        let is_there = |pba: Pba| match &missing {
            Some(missing) => !missing.contains(&pba),
            None if self.only.is_some() => failed.is_empty(),
            None => {
                let place = drives.places(pba).first().copied().unwrap_or(NOWHERE);
                failed.iter().all(|(drive, _)| *drive != place.drive)
            }
        };
        self.unpack(&mut buf, is_there);
        (failed, buf)
    }

    /// Reads what drives failed to give from other copies. Returns the failures of those that no copy covers, the blocks
    /// that nobody gave, and the buffer.
    async fn read_others(
        &mut self,
        mut failed: Failures,
        mut buf: Buffer,
    ) -> (Failures, Vec<Pba>, Buffer) {
        let drives = self.drives;
        let has_failed = |failed: &Failures, drive| failed.iter().any(|(of, _)| *of == drive);
        // Each with the drive that was asked last.
        let open = self.blocks.iter().map(|block| (*block, block.drive));
        let mut open: Vec<(Chosen, u16)> = open.collect();
        open.retain(|(_, drive)| has_failed(&failed, *drive));
        let mut missing: Vec<Chosen> = Vec::new();
        while !open.is_empty() {
            let mut groups = Vec::new();
            let mut again = Vec::new();
            for (block, _) in &open {
                let copies = drives.readable(block.pba);
                let other = copies.iter().find(|copy| !has_failed(&failed, copy.drive));
                let Some(other) = other.copied() else {
                    missing.push(*block);
                    continue;
                };
                scatter::add(&mut groups, other, block.buffer_offset);
                again.push((*block, other.drive));
            }
            let more;
            (more, buf) = scatter::read(drives, buf, &groups).await;
            let read = again.iter().filter(|(_, drive)| !has_failed(&more, *drive));
            drives.suspects.add(read.map(|(block, _)| block.pba));
            again.retain(|(_, drive)| has_failed(&more, *drive));
            failed.extend(more);
            open = again;
        }
        let is_alone = |drive: &u16| missing.iter().any(|block| block.drive == *drive);
        let (alone, covered): (Failures, Failures) =
            failed.into_iter().partition(|(drive, _)| is_alone(drive));
        for (drive, error) in covered {
            self.covered.push(drive);
            drives.suspects.add_error(drive, error);
        }
        (
            alone,
            missing.into_iter().map(|block| block.pba).collect(),
            buf,
        )
    }

    /// Puts the contents of packs that were read to their offsets. One that cannot be unpacked becomes
    /// zeros, which no content is that is stored: its checksum tells.
    fn unpack(&self, buf: &mut [u8], is_there: impl Fn(Pba) -> bool) {
        let packs = self
            .fragments
            .chunk_by(|(a, _), (b, _)| a.container() == b.container());
        for wanted in packs {
            let first = wanted.first().filter(|(pba, _)| is_there(*pba));
            let Some(block) = first.and_then(|(_, at)| block_at(buf, *at)) else {
                continue;
            };
            let block = *block;
            let pack = Pack::parse(&block);
            for (pba, at) in wanted {
                let Some(target) = block_at(buf, *at) else {
                    continue;
                };
                let slot = pba.slot().unwrap_or_default().into();
                let unpacked = pack.and_then(|pack| pack.unpack(slot, target));
                if let Err(error) = unpacked {
                    tracing::debug!(%pba, %error, "a fragment cannot be unpacked");
                    target.fill(0);
                }
            }
        }
    }
}

/// Other copies of what is read.
struct Others<'a> {
    drives: &'a DriveList,
    blocks: &'a [Chosen],
    take: Option<Duration>,
    /// The drives that took long.
    took_long: RefCell<Vec<u16>>,
}

impl Elsewhere for Others<'_> {
    fn mean(&self) -> Option<Duration> {
        self.take
    }

    fn find(&self, drive: u16, bytes: Range<usize>) -> Option<(u16, Vec<Extent>)> {
        self.took_long.borrow_mut().push(drive);
        let is_wanted =
            |block: &&Chosen| block.drive == drive && bytes.contains(&block.buffer_offset);
        let wanted = || self.blocks.iter().filter(is_wanted);
        let others = self.drives.readable(wanted().next()?.pba);
        let others = others.iter().map(|place| place.drive);
        others.filter(|other| *other != drive).find_map(|other| {
            let mut groups = Vec::new();
            for block in wanted() {
                let copies = self.drives.readable(block.pba);
                let copy = copies.iter().find(|place| place.drive == other)?;
                scatter::add(&mut groups, *copy, block.buffer_offset - bytes.start);
            }
            groups
                .pop()
                .map(|of: OfDrive<Extent>| (of.drive, of.extents))
        })
    }
}

/// The place of a block that no segment has.
const NOWHERE: Place = Place {
    drive: u16::MAX,
    block: 0,
};

fn block_at(buf: &mut [u8], at: usize) -> Option<&mut Block> {
    buf.get_mut(at..)?.first_chunk_mut()
}

#[cfg(test)]
mod tests {
    use drives::BLOCK_BYTES;

    use super::*;
    use crate::content::compress::Algorithm;
    use crate::content::compress::tests::mixed;
    use crate::drive_io::drive_list::tests::drives_where_they_were_made;

    fn extents<'a>(fetch: &'a Fetch<'_>) -> &'a [Extent] {
        let [group] = &fetch.groups[..] else {
            panic!("there is one drive");
        };
        &group.extents
    }

    #[test]
    fn neighbours_on_the_drive_and_in_the_buffer_are_read_as_one() {
        let blocks = [(10, 0), (11, 1), (12, 2), (20, 3), (21, 5), (19, 6)];
        let drives = drives_where_they_were_made(&[100]);
        let fetch = Fetch::new(
            &drives,
            blocks
                .into_iter()
                .map(|(block, at)| (Pba::new(0, block), at * BLOCK_BYTES)),
        );
        let found: Vec<_> = extents(&fetch)
            .iter()
            .map(|e| (e.block - 256, e.buffer_offset / BLOCK_BYTES, e.blocks))
            .collect();
        assert_eq!(found, [(10, 0, 3), (20, 3, 1), (21, 5, 1), (19, 6, 1)]);
    }

    #[test]
    fn of_two_drives_with_all_blocks_one_is_asked_for_so_many_in_a_row() {
        use std::sync::Arc;

        use drives::{Drive, MemoryDrive};

        use crate::LABEL_BLOCKS;
        use crate::drive_io::layout::tests::complete;
        use crate::drive_io::segments::{Rows, SEGMENT_BLOCKS};

        let drive =
            || -> Arc<dyn Drive> { Arc::new(MemoryDrive::new(LABEL_BLOCKS + 8 * SEGMENT_BLOCKS)) };
        let sizes = [8 * SEGMENT_BLOCKS; 2];
        let segments = complete(&Rows::new(), &sizes, 2, 0).unwrap();
        let drives = DriveList::new(&[drive(), drive()], &segments, &[]);
        let asked = |first: u64, blocks: u64| {
            let blocks = (first..first + blocks).map(|block| Pba::new(0, block));
            let fetch = Fetch::new(&drives, blocks.zip((0..).step_by(BLOCK_BYTES)));
            let groups = fetch.groups.iter();
            groups.map(|group| group.drive).collect::<Vec<_>>()
        };
        // They begin in the middle of what is read from one of them.
        let (one, other) = (asked(20, 32), asked(52, 32));
        assert_eq!((one.len(), other.len()), (1, 1));
        assert_ne!(one, other, "both drives work");
        assert_eq!(asked(20, 64).len(), 2);
    }

    #[test]
    fn a_pack_is_read_once_for_all_that_is_wanted_of_it_and_a_damaged_one_gives_zeros() {
        let contents: Vec<Block> = (0..5).map(|seed| mixed(seed, 300)).collect();
        let bytes: Vec<Vec<u8>> = contents
            .iter()
            .map(|content| Algorithm::Lz4.compress(content).unwrap())
            .collect();
        let mut block = [0; BLOCK_BYTES];
        Pack::build(&mut block, bytes.iter().map(|b| (Algorithm::Lz4, &b[..])));
        let (plain, packed) = (Pba::new(0, 3), Pba::new(0, 4));
        // One content is wanted twice, and one has a block of its own.
        let wanted = [
            packed.fragment(4),
            plain,
            packed.fragment(1),
            packed.fragment(4),
        ];
        let offsets = wanted.iter().enumerate();
        let drives = drives_where_they_were_made(&[100]);
        let fetch = Fetch::new(&drives, offsets.map(|(at, pba)| (*pba, at * BLOCK_BYTES)));
        let plain_block = drives.places(plain).first().map(|place| place.block);
        let read = |block: &Block| {
            let mut buf = vec![0xee; wanted.len() * BLOCK_BYTES];
            for extent in extents(&fetch) {
                assert_eq!(extent.blocks, 1);
                let from = if Some(extent.block) == plain_block {
                    &contents[0]
                } else {
                    block
                };
                buf[extent.buffer_offset..][..BLOCK_BYTES].copy_from_slice(from);
            }
            fetch.unpack(&mut buf, |_| true);
            buf
        };
        assert_eq!(extents(&fetch).len(), 2);
        let wanted = [4, 0, 1, 4].map(|at: usize| contents[at]).concat();
        assert!(read(&block) == wanted);
        block[1] = 0;
        let zeros = [0; BLOCK_BYTES];
        assert!(read(&block) == [zeros, contents[0], zeros, zeros].concat());
    }
}
