//! Where the parts of a metadata area are, and its superblocks.
//!
//! ```text
//! block 0, 1                superblocks: the one with the larger sequence number counts
//! then                      the image of the journal's ring
//! then                      the log, a ring of blocks
//! then                      two slots for a base
//! ```
//!
//! A superblock, little endian:
//!
//! ```text
//! byte   0  magic "OFMETA\n\0"
//! byte   8  u32  version: 1
//! byte  12  pool uuid
//! byte  28  u16  index of the drive in the pool
//! byte  30  u8   1: the pool was closed in order since; u8 0
//! byte  32  u64  sequence number of this superblock
//! byte  40  u64  generation
//! byte  48  u64  lineage: which log this is
//! byte  56  u64  bytes of the journal's ring
//! byte  64  u64  blocks of the image, of the log, and of each slot for a base: three numbers
//! byte  88  u64  where the base is, 0 or 1; the change that it goes up to; its bytes: three numbers
//! byte 112  u64  where the log begins, in blocks since the lineage began
//! byte 120  u16  count of members, 8 at most, and u16 the index of each
//! byte 4092 u32  CRC-32C of bytes 0..4092
//! ```

use std::io;
use std::sync::Arc;

use uuid::Uuid;

use super::area::{BLOCK, MetadataArea};
use crate::codec::{CodecError, Reader, crc32c};

/// Blocks of the superblocks.
const SUPERBLOCKS: u64 = 2;
const MAGIC: [u8; 8] = *b"OFMETA\n\0";
const VERSION: u32 = 1;
const CRC_AT: usize = BLOCK - 4;
const MEMBERS_MAX: u16 = 8;
/// Numbers that are counted on from here are so far from the end that none after them overflows.
pub(super) const NUMBER_MAX: u64 = u64::MAX >> 1;

/// The smallest drive that gets a metadata area, in blocks: 1 GiB.
const DRIVE_BLOCKS_MIN: u64 = 1 << 18;
/// The share of a drive that is kept for metadata, and what comes on top of it, in blocks (36 MiB): room for the changes of one
/// checkpoint. A block that is stored takes about 30 bytes of a base and a mapping about 10, so this is enough
/// where each block has four mappings.
const DRIVE_SHARE: u64 = 32;
const EXTRA_BLOCKS: u64 = 9 << 10;
/// The least that a log has: twice what one batch of the largest size takes.
pub(super) const LOG_BLOCKS_MIN: u64 = 4 << 10;

/// Blocks at the end of a drive that are kept for metadata; 0 of one that is too small.
#[must_use]
pub fn metadata_blocks(drive_blocks: u64) -> u64 {
    match drive_blocks {
        ..DRIVE_BLOCKS_MIN => 0,
        blocks => blocks / DRIVE_SHARE + EXTRA_BLOCKS,
    }
}

/// How an area is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) journal_blocks: u64,
    pub(super) log_blocks: u64,
    pub(super) slot_blocks: u64,
}

impl Layout {
    /// For areas of which the smallest has so many blocks; `None` if they are too small for that journal, and a log of at least
    /// `log_blocks_min`.
    pub(super) fn of(area_blocks: u64, journal_bytes: u64, log_blocks_min: u64) -> Option<Self> {
        let journal_blocks = journal_bytes.div_ceil(BLOCK as u64);
        let rest = area_blocks
            .checked_sub(SUPERBLOCKS)?
            .checked_sub(journal_blocks)?;
        let log_blocks = (rest / 6).max(log_blocks_min);
        let slot_blocks = rest.checked_sub(log_blocks)? / 2;
        (slot_blocks > 0).then_some(Self {
            journal_blocks,
            log_blocks,
            slot_blocks,
        })
    }

    /// The blocks of an area that it needs.
    pub(super) fn blocks(&self) -> Option<u64> {
        let slots = self.slot_blocks.checked_mul(2)?;
        SUPERBLOCKS
            .checked_add(self.journal_blocks)?
            .checked_add(self.log_blocks)?
            .checked_add(slots)
    }

    pub(super) fn journal(&self) -> u64 {
        SUPERBLOCKS
    }

    pub(super) fn log(&self) -> u64 {
        SUPERBLOCKS + self.journal_blocks
    }

    pub(super) fn slot(&self, slot: u64) -> u64 {
        self.log() + self.log_blocks + slot * self.slot_blocks
    }
}

/// What a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) pool: Uuid,
    pub(super) index: u16,
    pub(super) is_closed: bool,
    pub(super) sequence: u64,
    pub(super) generation: u64,
    pub(super) lineage: u64,
    pub(super) journal_bytes: u64,
    pub(super) layout: Layout,
    pub(super) base_slot: u64,
    pub(super) base_change: u64,
    pub(super) base_bytes: u64,
    pub(super) log_start: u64,
    pub(super) members: Vec<u16>,
}

impl Superblock {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(self.pool.as_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&[u8::from(self.is_closed), 0]);
        for number in [
            self.sequence,
            self.generation,
            self.lineage,
            self.journal_bytes,
            self.layout.journal_blocks,
            self.layout.log_blocks,
            self.layout.slot_blocks,
            self.base_slot,
            self.base_change,
            self.base_bytes,
            self.log_start,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        for member in &self.members {
            out.extend_from_slice(&member.to_le_bytes());
        }
        out.resize(CRC_AT, 0);
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        out
    }

    /// The superblock in one block; `None` if there is none.
    fn decode(block: &[u8]) -> Option<Self> {
        let (content, crc) = block.split_at_checked(CRC_AT)?;
        if crc != crc32c(content).to_le_bytes() {
            return None;
        }
        Self::parse(content).ok()
    }

    fn parse(content: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(content);
        if reader.array()? != MAGIC || reader.u32()? != VERSION {
            return Err(CodecError::Field("beginning"));
        }
        let pool = Uuid::from_bytes(reader.array()?);
        let index = u16::from_le_bytes(reader.array()?);
        let is_closed = reader.u8()? != 0;
        reader.u8()?;
        let mut number = || reader.u64();
        let (sequence, generation, lineage) = (number()?, number()?, number()?);
        let journal_bytes = number()?;
        let layout = Layout {
            journal_blocks: number()?,
            log_blocks: number()?,
            slot_blocks: number()?,
        };
        let (base_slot, base_change, base_bytes) = (number()?, number()?, number()?);
        let log_start = number()?;
        let count = u16::from_le_bytes(reader.array()?);
        if count > MEMBERS_MAX || base_slot > 1 {
            return Err(CodecError::Field("number"));
        }
        let counted = [sequence, generation, base_change, log_start];
        if counted.iter().any(|number| *number > NUMBER_MAX) {
            return Err(CodecError::Field("number"));
        }
        let is_whole = layout.journal_blocks == journal_bytes.div_ceil(BLOCK as u64)
            && layout.log_blocks > 0
            && base_bytes.div_ceil(BLOCK as u64) <= layout.slot_blocks;
        if !is_whole {
            return Err(CodecError::Field("layout"));
        }
        let members = (0..count).map(|_| reader.array().map(u16::from_le_bytes));
        let members = members.collect::<Result<_, _>>()?;
        Ok(Self {
            pool,
            index,
            is_closed,
            sequence,
            generation,
            lineage,
            journal_bytes,
            layout,
            base_slot,
            base_change,
            base_bytes,
            log_start,
            members,
        })
    }

    /// The newer superblock of an area; `None` if it has none that fits it.
    ///
    /// # Errors
    /// The drive cannot be read.
    pub(super) fn read(area: &dyn MetadataArea) -> io::Result<Option<Self>> {
        if area.blocks() < SUPERBLOCKS {
            return Ok(None);
        }
        let mut blocks = vec![0; SUPERBLOCKS as usize * BLOCK];
        area.read(0, &mut blocks)?;
        let found = blocks.chunks(BLOCK).filter_map(Self::decode);
        let fits =
            |found: &Self| (found.layout.blocks()).is_some_and(|blocks| blocks <= area.blocks());
        Ok(found.filter(fits).max_by_key(|found| found.sequence))
    }

    /// Where it is written, never over the one before.
    pub(super) fn block(&self) -> u64 {
        self.sequence % SUPERBLOCKS
    }

    /// Whether both are of one log with one base: only then the same change is at the same position of both logs.
    pub(super) fn has_log_of(&self, other: &Self) -> bool {
        self.has_base_of(other) && self.layout == other.layout
    }

    /// Whether both are of the same base.
    pub(super) fn has_base_of(&self, other: &Self) -> bool {
        let base = |of: &Self| {
            let base = (of.base_slot, of.base_change, of.base_bytes);
            (of.lineage, base, of.log_start)
        };
        base(self) == base(other)
    }

    /// As it is written.
    pub(super) fn bytes(&self) -> Arc<Vec<u8>> {
        Arc::new(self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_drives::MemoryArea;

    fn superblock(layout: Layout) -> Superblock {
        Superblock {
            pool: Uuid::from_u128(7),
            index: 3,
            is_closed: true,
            sequence: 5,
            generation: 9,
            lineage: 11,
            journal_bytes: layout.journal_blocks * BLOCK as u64,
            layout,
            base_slot: 1,
            base_change: 42,
            base_bytes: 8192,
            log_start: 17,
            members: vec![3, 1],
        }
    }

    #[test]
    fn the_parts_of_an_area_fill_it_and_do_not_overlap() {
        for (gib, journal) in [(1, 16 << 20), (8, 128 << 20), (1 << 12, 128 << 20)] {
            let area = metadata_blocks(gib << 18);
            let layout = Layout::of(area, journal, LOG_BLOCKS_MIN).expect("it fits");
            assert!(layout.log() >= layout.journal() + layout.journal_blocks);
            assert!(layout.slot(0) >= layout.log() + layout.log_blocks);
            let end = layout.slot(1) + layout.slot_blocks;
            assert_eq!(Some(end), layout.blocks());
            assert!(end <= area && area - end < 2, "{end} of {area}");
        }
        assert_eq!(metadata_blocks(DRIVE_BLOCKS_MIN - 1), 0);
        assert_eq!(Layout::of(100, 16 << 20, LOG_BLOCKS_MIN), None);
    }

    #[test]
    fn a_superblock_is_whole_or_none() {
        let layout = Layout::of(20_000, 4 << 20, LOG_BLOCKS_MIN).expect("it fits");
        let written = superblock(layout);
        let bytes = written.encode();
        assert_eq!(Superblock::decode(&bytes), Some(written.clone()));
        for at in [32, 40, 96, 112] {
            let mut far = bytes.clone();
            far[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            let crc = crc32c(&far[..CRC_AT]).to_le_bytes();
            far[CRC_AT..].copy_from_slice(&crc);
            assert_eq!(
                Superblock::decode(&far),
                None,
                "a number that overflows, at {at}"
            );
        }
        for bit in (0..130 * 8).chain(CRC_AT * 8..BLOCK * 8) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn of_two_superblocks_the_later_one_counts_and_one_for_another_size_does_not() {
        let layout = Layout::of(20_000, 4 << 20, LOG_BLOCKS_MIN).expect("it fits");
        let area = MemoryArea::new(20_000);
        let mut written = superblock(layout);
        for sequence in [6, 7] {
            written.sequence = sequence;
            area.write(written.block(), written.bytes()).wait().unwrap();
        }
        assert_eq!(Superblock::read(&area).unwrap(), Some(written.clone()));
        let small = MemoryArea::new(10_000);
        small
            .write(written.block(), written.bytes())
            .wait()
            .unwrap();
        assert_eq!(Superblock::read(&small).unwrap(), None);
    }
}
