//! The one way to read contents from the drives: by their addresses, wherever their segments lie, and whether they have
//! a block of their own or share one.
//!
//! A pack is read once, to the place of the first of its contents that is wanted, and unpacked from
//! there; so a read needs no memory but the buffer that it was given.

use drives::{BLOCK_BYTES, Extent};
use meta::Pba;
use reactor::Buffer;

use crate::Block;
use crate::content::pack::Pack;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::scatter::{self, Failures, OfDrive};
use crate::drive_io::segments::Place;

/// Contents that are wanted in a buffer.
pub(crate) struct Fetch {
    groups: Vec<OfDrive<Extent>>,
    /// Fragments and their places, those of a pack one after the other.
    fragments: Vec<(Pba, usize)>,
}

impl Fetch {
    /// Contents that go to these places (bytes from the buffer's start, whole blocks). Neighbours on the
    /// drive that are neighbours in the buffer are read together.
    pub(crate) fn new(drives: &DriveList, contents: impl Iterator<Item = (Pba, usize)>) -> Self {
        let mut fetch = Self {
            groups: Vec::new(),
            fragments: Vec::new(),
        };
        for (pba, place) in contents {
            if pba.is_fragment() {
                fetch.fragments.push((pba, place));
            } else {
                fetch.add(drives, pba, place);
            }
        }
        // By pack, then by place: the first place of a pack is read to.
        fetch
            .fragments
            .sort_unstable_by_key(|(pba, place)| (pba.container(), *place));
        for at in 0..fetch.fragments.len() {
            let (pba, place) = fetch.fragments[at];
            let is_first = match at.checked_sub(1) {
                Some(before) => fetch.fragments[before].0.container() != pba.container(),
                None => true,
            };
            if is_first {
                fetch.add(drives, pba, place);
            }
        }
        fetch
    }

    fn add(&mut self, drives: &DriveList, pba: Pba, buffer_offset: usize) {
        let Place { drive, block } = drives.place_or_none(pba);
        let extents = scatter::of_drive(&mut self.groups, drive);
        if let Some(last) = extents.last_mut()
            && last.block + u64::from(last.blocks) == block
            && last.buffer_offset + last.blocks as usize * BLOCK_BYTES == buffer_offset
        {
            last.blocks += 1;
            return;
        }
        extents.push(Extent {
            block,
            buffer_offset,
            blocks: 1,
        });
    }

    /// The drives that it reads from.
    pub(crate) fn drives(&self) -> impl Iterator<Item = u16> {
        self.groups.iter().map(|group| group.drive)
    }

    /// Reads them, each to its place, from all drives at once; returns the drives that failed. What is of these
    /// is anything in the buffer.
    pub(crate) async fn read(&self, drives: &DriveList, buf: Buffer) -> (Failures, Buffer) {
        let (failed, mut buf) = scatter::read(drives, buf, &self.groups).await;
        let is_there = |pba: Pba| {
            failed.is_empty()
                || failed
                    .iter()
                    .all(|(drive, _)| *drive != drives.place_or_none(pba).drive)
        };
        self.unpack(&mut buf, is_there);
        (failed, buf)
    }

    /// Puts the contents of packs that were read to their places. One that cannot be unpacked becomes
    /// zeros, which no content is that is stored: its checksum tells.
    fn unpack(&self, buf: &mut [u8], is_there: impl Fn(Pba) -> bool) {
        let packs = self
            .fragments
            .chunk_by(|(a, _), (b, _)| a.container() == b.container());
        for wanted in packs {
            let first = wanted.first().filter(|(pba, _)| is_there(*pba));
            let Some(place) = first.and_then(|(_, at)| block_at(buf, *at)) else {
                continue;
            };
            let block = *place;
            let pack = Pack::parse(&block);
            for (pba, at) in wanted {
                let Some(place) = block_at(buf, *at) else {
                    continue;
                };
                let slot = pba.slot().unwrap_or_default().into();
                let unpacked = pack.and_then(|pack| pack.unpack(slot, place));
                if let Err(error) = unpacked {
                    tracing::debug!(%pba, %error, "a fragment cannot be unpacked");
                    place.fill(0);
                }
            }
        }
    }
}

fn block_at(buf: &mut [u8], at: usize) -> Option<&mut Block> {
    buf.get_mut(at..)?.first_chunk_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::compress::Algorithm;
    use crate::content::compress::tests::mixed;
    use crate::drive_io::drive_list::tests::drives_where_they_were_made;

    fn extents(fetch: &Fetch) -> &[Extent] {
        let [group] = &fetch.groups[..] else {
            panic!("there is one drive");
        };
        &group.extents
    }

    #[test]
    fn neighbours_on_the_drive_and_in_the_buffer_are_read_as_one() {
        let blocks = [(10, 0), (11, 1), (12, 2), (20, 3), (21, 5), (19, 6)];
        let fetch = Fetch::new(
            &drives_where_they_were_made(&[100]),
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
        let places = wanted.iter().enumerate();
        let drives = drives_where_they_were_made(&[100]);
        let fetch = Fetch::new(&drives, places.map(|(at, pba)| (*pba, at * BLOCK_BYTES)));
        let plain_block = drives.place(plain).map(|place| place.block);
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
