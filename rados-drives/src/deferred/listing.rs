//! The listing behind the data of an object: which deferred writes are logged, and not known to be in their places.
//!
//! An object that the pool's journal is written to has, behind its data, one block with a listing and then an area for the data of
//! deferred writes. Each logging writes a listing anew, and of all listings of a drive the one with the largest sequence number
//! counts. Numbers are little endian:
//!
//! | bytes | what they are |
//! |---|---|
//! | 0..16 | `onefold deferred` |
//! | 16..20 | the version of the layout, 1 |
//! | 20..24 | how many runs there are |
//! | 24..32 | the sequence number |
//! | 28 each | a run: the first block on the drive (8), the number of the object with its data (8), bytes from the area's begin (4), blocks (4), CRC-32C of the data (4) |
//! | the last 4 | CRC-32C of all before |
//!
//! Guarantee: what is no such listing is refused, whatever its bytes are.

use drives::BLOCK_BYTES;

use crate::header::OBJECT_BYTES;

/// Where an object has its listing.
pub(crate) const LISTING_AT: u64 = OBJECT_BYTES;

/// Where the area for data begins.
pub(crate) const AREA_AT: u64 = LISTING_AT + BLOCK_BYTES as u64;

/// Bytes of the area: twice what is logged at most, so that there is always room for the next data in one piece.
pub(crate) const AREA_BYTES: u32 = 4 << 20;

/// The object for what is logged without the journal, by a number that no object with data has.
pub(crate) const ASIDE: u64 = u64::MAX;

/// The largest sequence number: the next ones never overflow.
const SEQUENCE_MAX: u64 = 1 << 62;

const MAGIC: &[u8; 16] = b"onefold deferred";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 32;
const RUN_BYTES: usize = 28;
const CRC_BYTES: usize = 4;

/// Runs of one listing at most: what fits a block.
pub(crate) const RUNS_MAX: usize = (BLOCK_BYTES - HEAD_BYTES - CRC_BYTES) / RUN_BYTES;

/// Blocks that follow each other on the drive, and in the area that has their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedRun {
    pub(crate) block: u64,
    pub(crate) object: u64,
    /// From the area's begin.
    pub(crate) at: u32,
    pub(crate) blocks: u32,
    pub(crate) crc32c: u32,
}

impl ListedRun {
    pub(crate) fn bytes(&self) -> u32 {
        self.blocks * BLOCK_BYTES as u32
    }
}

/// See the module. The runs are in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) sequence: u64,
    pub(crate) runs: Vec<ListedRun>,
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    // A CRC-32 has 32 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl Listing {
    /// A block. Of more than [`RUNS_MAX`] runs the first ones.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let runs = &self.runs[..self.runs.len().min(RUNS_MAX)];
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        block.extend_from_slice(&self.sequence.to_le_bytes());
        for run in runs {
            block.extend_from_slice(&run.block.to_le_bytes());
            block.extend_from_slice(&run.object.to_le_bytes());
            block.extend_from_slice(&run.at.to_le_bytes());
            block.extend_from_slice(&run.blocks.to_le_bytes());
            block.extend_from_slice(&run.crc32c.to_le_bytes());
        }
        block.resize(BLOCK_BYTES - CRC_BYTES, 0);
        let crc = crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block
    }

    /// The listing of a drive with so many blocks; `None` if the bytes are not those of one.
    pub(crate) fn decode(block: &[u8], drive_blocks: u64) -> Option<Self> {
        let (body, crc) = block.split_at_checked(BLOCK_BYTES - CRC_BYTES)?;
        if crc != crc32c(body).to_le_bytes() || !body.starts_with(MAGIC) {
            return None;
        }
        let count = u32::from_le_bytes(number(body, 20)?) as usize;
        if u32::from_le_bytes(number(body, 16)?) != VERSION || count > RUNS_MAX {
            return None;
        }
        let run = |at: usize| {
            let run = ListedRun {
                block: u64::from_le_bytes(number(body, at)?),
                object: u64::from_le_bytes(number(body, at + 8)?),
                at: u32::from_le_bytes(number(body, at + 16)?),
                blocks: u32::from_le_bytes(number(body, at + 20)?),
                crc32c: u32::from_le_bytes(number(body, at + 24)?),
            };
            let bytes = u64::from(run.blocks) * BLOCK_BYTES as u64;
            let end = run.block.checked_add(u64::from(run.blocks))?;
            let is_there = end <= drive_blocks
                && u64::from(run.at) + bytes <= u64::from(AREA_BYTES)
                && run.blocks > 0
                && (run.object == ASIDE || run.object < drive_blocks);
            is_there.then_some(run)
        };
        let runs = (0..count).map(|number| run(HEAD_BYTES + number * RUN_BYTES));
        let sequence = u64::from_le_bytes(number(body, 24)?);
        (sequence <= SEQUENCE_MAX).then_some(())?;
        Some(Self {
            sequence,
            runs: runs.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_run() -> impl Strategy<Value = ListedRun> {
        let object = prop_oneof![Just(ASIDE), 0..100_u64];
        (0..900_u64, object, 0..100_u32, 1..100_u32, any::<u32>()).prop_map(
            |(block, object, at, blocks, crc32c)| ListedRun {
                block,
                object,
                at: at * 4096,
                blocks,
                crc32c,
            },
        )
    }

    proptest! {
        #[test]
        fn a_listing_is_read_as_it_was_written(
            sequence in 0..=SEQUENCE_MAX,
            runs in proptest::collection::vec(any_run(), 0..=RUNS_MAX),
        ) {
            let listing = Listing { sequence, runs };
            let block = listing.encode();
            prop_assert_eq!(block.len(), BLOCK_BYTES);
            prop_assert_eq!(Listing::decode(&block, 1000), Some(listing));
        }

        #[test]
        fn a_listing_with_a_wrong_bit_is_none(
            runs in proptest::collection::vec(any_run(), 0..9),
            bit in 0..BLOCK_BYTES * 8,
        ) {
            let mut block = Listing { sequence: 7, runs }.encode();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Listing::decode(&block, 1000), None);
        }
    }

    #[test]
    fn what_is_no_listing_or_names_what_there_is_not_is_refused() {
        for block in [&[][..], &[0; 4096], &[0; 5000], &MAGIC[..]] {
            assert_eq!(Listing::decode(block, 1000), None);
        }
        let beyond = Listing {
            sequence: SEQUENCE_MAX + 1,
            runs: Vec::new(),
        };
        assert_eq!(Listing::decode(&beyond.encode(), 1000), None);
        let good = ListedRun {
            block: 0,
            object: 3,
            at: 0,
            blocks: 1,
            crc32c: 0,
        };
        let bad = [
            ListedRun {
                block: 1000,
                ..good
            },
            ListedRun {
                block: u64::MAX,
                ..good
            },
            ListedRun {
                object: 1000,
                ..good
            },
            ListedRun {
                at: AREA_BYTES,
                ..good
            },
            ListedRun { blocks: 0, ..good },
            ListedRun {
                blocks: u32::MAX,
                ..good
            },
        ];
        for run in bad {
            let block = Listing {
                sequence: 1,
                runs: vec![run],
            }
            .encode();
            assert_eq!(Listing::decode(&block, 1000), None, "{run:?}");
        }
    }
}
