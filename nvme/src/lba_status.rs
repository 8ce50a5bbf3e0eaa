//! Get LBA Status: which logical blocks cannot be read (NVM Command Set 1.0, section 4.2.1).

use crate::Sqe;
use crate::byte_enum::byte_enum;

/// Get LBA Status, on the admin queue.
pub const OPCODE_GET_LBA_STATUS: u8 = 0x86;

/// Bytes before the descriptors of a list.
const HEADER_BYTES: usize = 8;
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 16;

/// Completion condition: the list is full, and there are more descriptors.
const CMPC_MORE: u8 = 1;
/// Completion condition: the whole range is told.
const CMPC_DONE: u8 = 2;

byte_enum! {
    /// What is asked for (ATYPE).
    pub enum LbaStatusAction {
        /// 10h: look through the range first, and tell all that is found.
        Scan = 0x10,
        /// 11h: tell what is known.
        Known = 0x11,
    }
}

/// Fields of Get LBA Status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLbaStatus {
    /// Namespace.
    pub nsid: u32,
    /// First block.
    pub slba: u64,
    /// Blocks; 0: up to the end of the namespace.
    pub blocks: u16,
    /// Number of the action ([`LbaStatusAction`]).
    pub action: u8,
    /// Bytes that the host has room for: (MNDW + 1) * 4.
    pub length: u64,
}

impl GetLbaStatus {
    /// Reads the fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            slba: sqe.slba(),
            length: (u64::from(sqe.cdw(12)) + 1) * 4,
            blocks: sqe.cdw(13) as u16,
            action: (sqe.cdw(13) >> 24) as u8,
        }
    }

    /// The command as a host sends it; `length` is a multiple of 4, from 4 to 2^34.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        Sqe::new(OPCODE_GET_LBA_STATUS)
            .with_nsid(self.nsid)
            .with_cdw(10, self.slba as u32)
            .with_cdw(11, (self.slba >> 32) as u32)
            .with_cdw(12, (self.length / 4).wrapping_sub(1) as u32)
            .with_cdw(13, u32::from(self.blocks) | u32::from(self.action) << 24)
    }
}

/// Blocks that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbaStatusRange {
    /// First block (DSLBA).
    pub slba: u64,
    /// How many.
    pub blocks: u32,
}

/// A list of blocks that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LbaStatusList {
    /// In order.
    pub ranges: Vec<LbaStatusRange>,
    /// There are more than fit.
    pub has_more: bool,
}

impl LbaStatusList {
    /// Bytes of a list without descriptors.
    pub const BYTES_MIN: usize = HEADER_BYTES;

    /// Descriptors that fit into so many bytes.
    #[must_use]
    pub const fn fitting(bytes: usize) -> usize {
        bytes.saturating_sub(HEADER_BYTES) / DESCRIPTOR_BYTES
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        out[..4].copy_from_slice(&(self.ranges.len() as u32).to_le_bytes());
        out[4] = if self.has_more { CMPC_MORE } else { CMPC_DONE };
        for range in &self.ranges {
            let mut descriptor = [0; DESCRIPTOR_BYTES];
            descriptor[..8].copy_from_slice(&range.slba.to_le_bytes());
            descriptor[8..12].copy_from_slice(&range.blocks.to_le_bytes());
            out.extend_from_slice(&descriptor);
        }
        out
    }

    /// Reads a list; `None` if it is shorter than it says, or says nothing that is known.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let count = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let has_more = match header[4] {
            CMPC_MORE => true,
            CMPC_DONE => false,
            _ => return None,
        };
        let (all, _) = bytes[HEADER_BYTES..].as_chunks::<DESCRIPTOR_BYTES>();
        let ranges = all.get(..count)?.iter().map(|b| LbaStatusRange {
            slba: u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            blocks: u32::from_le_bytes([b[8], b[9], b[10], b[11]]),
        });
        Some(Self {
            ranges: ranges.collect(),
            has_more,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_read_back(ranges: Vec<(u64, u32)>, has_more: bool) {
            let range = |(slba, blocks)| LbaStatusRange { slba, blocks };
            let list = LbaStatusList { ranges: ranges.into_iter().map(range).collect(), has_more };
            let bytes = list.encode();
            prop_assert_eq!(LbaStatusList::fitting(bytes.len()), list.ranges.len());
            prop_assert_eq!(LbaStatusList::decode(&bytes), Some(list));
        }

        #[test]
        fn any_bytes_are_a_list_or_none(bytes: Vec<u8>) {
            let _ = LbaStatusList::decode(&bytes);
        }
    }

    #[test]
    fn fields_stand_where_nvme_cli_writes_them() {
        let get = GetLbaStatus {
            nsid: 3,
            slba: 1 << 40,
            blocks: 0x1234,
            action: LbaStatusAction::Scan.as_u8(),
            length: 4096,
        };
        let sqe = get.to_sqe();
        assert_eq!((sqe.opcode(), sqe.cdw(12)), (0x86, 1023));
        assert_eq!(sqe.cdw(13), 0x1000_1234);
        assert_eq!(GetLbaStatus::parse(&sqe), get);
        for number in 0..=u8::MAX {
            if let Some(action) = LbaStatusAction::from_u8(number) {
                assert_eq!(action.as_u8(), number);
            }
        }
    }
}
