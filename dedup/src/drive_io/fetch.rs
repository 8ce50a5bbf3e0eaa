//! The one way to read contents from a drive: by their addresses, whether they have a block of their own or share one.
//!
//! A pack is read once, to the place of the first of its contents that is wanted, and unpacked from
//! there; so a read needs no memory but the buffer that it was given.

use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use meta::Pba;
use reactor::Buffer;

use crate::Block;
use crate::content::pack::Pack;

/// Contents of one drive that are wanted in a buffer.
pub(crate) struct Fetch {
    extents: Vec<Extent>,
    /// Fragments and their places, those of a pack one after the other.
    fragments: Vec<(Pba, usize)>,
}

impl Fetch {
    /// Contents that go to these places (bytes from the buffer's start, whole blocks). Neighbours on the
    /// drive that are neighbours in the buffer are read together.
    pub(crate) fn new(contents: impl Iterator<Item = (Pba, usize)>) -> Self {
        let mut fetch = Self {
            extents: Vec::new(),
            fragments: Vec::new(),
        };
        for (pba, place) in contents {
            if pba.is_fragment() {
                fetch.fragments.push((pba, place));
            } else {
                fetch.add(pba, place);
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
                fetch.add(pba, place);
            }
        }
        fetch
    }

    fn add(&mut self, pba: Pba, buffer_offset: usize) {
        let block = crate::drive_block(pba);
        if let Some(last) = self.extents.last_mut()
            && last.block + u64::from(last.blocks) == block
            && last.buffer_offset + last.blocks as usize * BLOCK_BYTES == buffer_offset
        {
            last.blocks += 1;
            return;
        }
        self.extents.push(Extent {
            block,
            buffer_offset,
            blocks: 1,
        });
    }

    /// Whether nothing is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Reads them, each to its place. After an error the buffer's content means nothing.
    pub(crate) async fn read_from(
        &self,
        drive: &dyn Drive,
        buf: Buffer,
    ) -> (Result<(), DriveError>, Buffer) {
        let (result, mut buf) = drive.read(buf, &self.extents).await;
        if result.is_ok() {
            self.unpack(&mut buf);
        }
        (result, buf)
    }

    /// Puts the contents of packs that were read to their places. One that cannot be unpacked becomes
    /// zeros, which no content is that is stored: its checksum tells.
    fn unpack(&self, buf: &mut [u8]) {
        let packs = self
            .fragments
            .chunk_by(|(a, _), (b, _)| a.container() == b.container());
        for wanted in packs {
            let Some(place) = wanted.first().and_then(|(_, at)| block_at(buf, *at)) else {
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

    #[test]
    fn neighbours_on_the_drive_and_in_the_buffer_are_read_as_one() {
        let blocks = [(10, 0), (11, 1), (12, 2), (20, 3), (21, 5), (19, 6)];
        let fetch = Fetch::new(
            blocks
                .into_iter()
                .map(|(block, at)| (Pba::new(0, block), at * BLOCK_BYTES)),
        );
        let found: Vec<_> = fetch
            .extents
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
        let fetch = Fetch::new(places.map(|(at, pba)| (*pba, at * BLOCK_BYTES)));
        let read = |block: &Block| {
            let mut buf = vec![0xee; wanted.len() * BLOCK_BYTES];
            for extent in &fetch.extents {
                assert_eq!(extent.blocks, 1);
                let from = if extent.block == crate::drive_block(plain) {
                    &contents[0]
                } else {
                    block
                };
                buf[extent.buffer_offset..][..BLOCK_BYTES].copy_from_slice(from);
            }
            fetch.unpack(&mut buf);
            buf
        };
        assert_eq!(fetch.extents.len(), 2);
        let wanted = [4, 0, 1, 4].map(|at: usize| contents[at]).concat();
        assert!(read(&block) == wanted);
        block[1] = 0;
        let zeros = [0; BLOCK_BYTES];
        assert!(read(&block) == [zeros, contents[0], zeros, zeros].concat());
    }
}
