//! The 16-byte completion queue entry (Base 2.0, figure 90; on fabrics without a phase bit).

use crate::Status;

/// Bytes of a completion queue entry.
pub const CQE_BYTES: usize = 16;

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cqe {
    /// Command-specific result, dwords 0 and 1 (Property Get uses all 64 bits).
    pub result: u64,
    /// How far the controller has taken entries off the submission queue.
    pub sq_head: u16,
    /// The queue; fabrics hosts ignore it.
    pub sq_id: u16,
    /// The command that is completed.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl Cqe {
    /// A completion with this status and result; the queue fills in the rest.
    #[must_use]
    pub const fn new(status: Status, result: u64) -> Self {
        Self {
            result,
            sq_head: 0,
            sq_id: 0,
            cid: 0,
            status,
        }
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; CQE_BYTES] {
        let mut out = [0; CQE_BYTES];
        out[..8].copy_from_slice(&self.result.to_le_bytes());
        out[8..10].copy_from_slice(&self.sq_head.to_le_bytes());
        out[10..12].copy_from_slice(&self.sq_id.to_le_bytes());
        out[12..14].copy_from_slice(&self.cid.to_le_bytes());
        out[14..].copy_from_slice(&(self.status.bits() << 1).to_le_bytes());
        out
    }

    /// From a response capsule, or `None` when it is shorter than a completion.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CQE_BYTES] = bytes.first_chunk()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            result: u64::from_le_bytes(*bytes.first_chunk()?),
            sq_head: half(8),
            sq_id: half(10),
            cid: half(12),
            status: Status::from_bits(half(14) >> 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_reads_back_as_it_was_written() {
        let cqe = Cqe {
            result: 0x1122_3344_5566_7788,
            sq_head: 7,
            sq_id: 3,
            cid: 0xf00d,
            status: Status::LBA_OUT_OF_RANGE.with_dnr(),
        };
        assert_eq!(Cqe::decode(&cqe.encode()), Some(cqe));
        assert_eq!(Cqe::decode(&cqe.encode()[..15]), None);
    }
}
