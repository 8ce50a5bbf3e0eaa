//! The log: every change of the store since a base, in a ring of blocks.
//!
//! A frame begins at a block, and is padded with zeros to whole blocks:
//!
//! ```text
//! byte  0  u32  CRC-32C of bytes 4.. to the end of the payload
//! byte  4  u32  payload bytes
//! byte  8  u64  lineage
//! byte 16  u64  number of the change
//! byte 24       payload
//! ```
//!
//! A frame counts if it is whole, of the lineage, and of the number that comes next: numbers never come again in a lineage, so
//! what an earlier round of the ring left is none.

use std::io;
use std::sync::Arc;

use super::area::{BLOCK, MetadataArea};
use super::layout::{Layout, Superblock};
use crate::codec::{Reader, crc32c};

const HEADER: usize = 24;

/// Where a frame goes: which log, which change, and where in the ring, in blocks since the lineage began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) lineage: u64,
    pub(super) change: u64,
    pub(super) block: u64,
}

impl LogPosition {
    /// Of the first change behind the base.
    pub(super) fn first(superblock: &Superblock) -> Self {
        Self {
            lineage: superblock.lineage,
            change: superblock.base_change + 1,
            block: superblock.log_start,
        }
    }

    /// Of the next change, if the one here has that payload.
    pub(super) fn behind(self, payload: &[u8]) -> Self {
        Self {
            change: self.change + 1,
            block: self.block + frame_blocks(payload),
            ..self
        }
    }
}

/// The blocks of a frame with that payload.
pub(super) fn frame_blocks(payload: &[u8]) -> u64 {
    (HEADER + payload.len()).div_ceil(BLOCK) as u64
}

/// The blocks to write for a change: one run, or two where the ring ends.
pub(super) fn frame(
    layout: &Layout,
    position: LogPosition,
    payload: &[u8],
) -> Vec<(u64, Arc<Vec<u8>>)> {
    let mut bytes = Vec::with_capacity(frame_blocks(payload) as usize * BLOCK);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&position.lineage.to_le_bytes());
    bytes.extend_from_slice(&position.change.to_le_bytes());
    bytes.extend_from_slice(payload);
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(frame_blocks(payload) as usize * BLOCK, 0);
    let at = position.block % layout.log_blocks;
    let until_end = (layout.log_blocks - at) as usize * BLOCK;
    if bytes.len() <= until_end {
        return vec![(layout.log() + at, Arc::new(bytes))];
    }
    let rest = bytes.split_off(until_end);
    vec![
        (layout.log() + at, Arc::new(bytes)),
        (layout.log(), Arc::new(rest)),
    ]
}

/// The payload of the frame at a position; `None` if it is not there.
///
/// # Errors
/// The drive cannot be read.
pub(super) fn read_frame(
    area: &dyn MetadataArea,
    layout: &Layout,
    position: LogPosition,
) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; BLOCK];
    read_ring(area, layout, position.block, &mut bytes)?;
    let mut reader = Reader::new(&bytes);
    let header = (|| {
        let (crc, len) = (reader.u32()?, reader.u32()?);
        Ok::<_, crate::codec::CodecError>((crc, len, reader.u64()?, reader.u64()?))
    })();
    let Ok((crc, len, lineage, change)) = header else {
        return Ok(None);
    };
    let whole = HEADER as u64 + u64::from(len);
    let blocks = whole.div_ceil(BLOCK as u64);
    if (lineage, change) != (position.lineage, position.change) || blocks > layout.log_blocks {
        return Ok(None);
    }
    bytes.resize(blocks as usize * BLOCK, 0);
    read_ring(area, layout, position.block, &mut bytes)?;
    bytes.truncate(whole as usize);
    if crc32c(&bytes[4..]) != crc {
        return Ok(None);
    }
    bytes.drain(..HEADER);
    Ok(Some(bytes))
}

fn read_ring(
    area: &dyn MetadataArea,
    layout: &Layout,
    block: u64,
    bytes: &mut [u8],
) -> io::Result<()> {
    let at = block % layout.log_blocks;
    let until_end = ((layout.log_blocks - at) as usize * BLOCK).min(bytes.len());
    let (head, rest) = bytes.split_at_mut(until_end);
    area.read(layout.log() + at, head)?;
    match rest.is_empty() {
        true => Ok(()),
        false => area.read(layout.log(), rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_drives::MemoryArea;

    #[test]
    fn frames_are_found_in_order_around_the_end_of_the_ring_and_older_ones_are_not() {
        let layout = Layout {
            journal_blocks: 1,
            log_blocks: 7,
            slot_blocks: 1,
        };
        let area = MemoryArea::new(layout.blocks().unwrap());
        let payload = |change: u64| vec![change as u8; (change as usize % 3) * 5000];
        let mut position = LogPosition {
            lineage: 3,
            change: 0,
            block: 0,
        };
        for change in 0..20 {
            position.change = change;
            let payload = payload(change);
            for (block, bytes) in frame(&layout, position, &payload) {
                area.write(block, bytes).wait().unwrap();
            }
            assert_eq!(
                read_frame(&area, &layout, position).unwrap(),
                Some(payload.clone())
            );
            let other = LogPosition {
                lineage: 4,
                ..position
            };
            assert_eq!(read_frame(&area, &layout, other).unwrap(), None);
            position.block += frame_blocks(&payload);
            position.change += 1;
            assert_eq!(read_frame(&area, &layout, position).unwrap(), None);
        }
    }

    #[test]
    fn a_frame_with_a_changed_bit_is_none() {
        let layout = Layout {
            journal_blocks: 1,
            log_blocks: 7,
            slot_blocks: 1,
        };
        let area = MemoryArea::new(layout.blocks().unwrap());
        let position = LogPosition {
            lineage: 1,
            change: 1,
            block: 2,
        };
        let (block, bytes) = frame(&layout, position, b"a change").remove(0);
        for bit in 0..(HEADER + 8) * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            area.write(block, Arc::new(damaged)).wait().unwrap();
            assert_eq!(
                read_frame(&area, &layout, position).unwrap(),
                None,
                "bit {bit}"
            );
        }
    }
}
