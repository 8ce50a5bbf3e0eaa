//! Digests of headers and data: CRC-32C.
//!
//! Guarantee: data that comes in pieces is gone through once, also where the digests of its blocks are wanted besides.

use std::fmt;
use std::sync::LazyLock;

use crc_fast::{CrcAlgorithm, checksum, checksum_combine};

use super::DIGEST_BYTES;

/// The digest of a header or of data: CRC-32C (section 3.3.1.1).
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    (crc as u32).to_le_bytes()
}

/// The digest of data that comes in pieces.
pub struct PieceDigest(crc_fast::Digest);

impl Default for PieceDigest {
    fn default() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl PieceDigest {
    /// The next piece.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all pieces so far: that of [`digest`] of all bytes.
    #[must_use]
    pub fn value(&self) -> [u8; DIGEST_BYTES] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

/// Bytes of a block of which [`BlockDigests`] tells the digest.
pub const BLOCK_BYTES: usize = 4096;

/// The digest of data that comes in pieces, and those of its blocks of [`BLOCK_BYTES`]: each byte is gone through once, and
/// the digest of all follows from those of the blocks.
#[derive(Default)]
pub struct BlockDigests {
    blocks: Vec<u32>,
    /// Of all blocks so far.
    all: u32,
    /// Of the block that is there in part.
    part: PieceDigest,
    part_bytes: usize,
}

/// The CRC of data and a block behind them is that of the block, XORed with one entry of these tables for each byte of the CRC
/// of the data: CRC-32C is linear.
static BEHIND_BLOCK: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
    let algorithm = CrcAlgorithm::Crc32Iscsi;
    let of_bit = |bit: u32| {
        let before = u64::from(1_u32 << bit);
        checksum_combine(algorithm, before, 0, BLOCK_BYTES as u64) as u32
    };
    let of_byte = |at: u32, byte: u32| {
        let bits = (0..8).filter(|bit| byte >> bit & 1 == 1);
        bits.fold(0, |sum, bit| sum ^ of_bit(8 * at + bit))
    };
    [0, 1, 2, 3].map(|at| std::array::from_fn(|byte| of_byte(at, byte as u32)))
});

impl BlockDigests {
    /// For so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            blocks: Vec::with_capacity(bytes / BLOCK_BYTES),
            ..Self::default()
        }
    }

    /// The next piece.
    pub fn add(&mut self, bytes: &[u8]) {
        let missing = (BLOCK_BYTES - self.part_bytes) % BLOCK_BYTES;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        if !first.is_empty() {
            self.part.add(first);
            self.part_bytes += first.len();
            if self.part_bytes == BLOCK_BYTES {
                let whole = std::mem::take(&mut self.part);
                self.part_bytes = 0;
                self.push(u32::from_le_bytes(whole.value()));
            }
        }
        let (blocks, last) = rest.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            self.push(u32::from_le_bytes(digest(block)));
        }
        if !last.is_empty() {
            self.part.add(last);
            self.part_bytes = last.len();
        }
    }

    fn push(&mut self, block: u32) {
        let before = self.all.to_le_bytes();
        let tables = BEHIND_BLOCK.iter().zip(before);
        let behind = tables.fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)]);
        // Of no data the CRC is zero, and so are its entries.
        self.all = behind ^ block;
        self.blocks.push(block);
    }

    /// The digest of all pieces so far: that of [`digest`] of all bytes.
    #[must_use]
    pub fn value(&self) -> [u8; DIGEST_BYTES] {
        if self.part_bytes == 0 {
            return self.all.to_le_bytes();
        }
        let part = u64::from(u32::from_le_bytes(self.part.value()));
        let (all, bytes) = (u64::from(self.all), self.part_bytes as u64);
        let algorithm = CrcAlgorithm::Crc32Iscsi;
        let whole = checksum_combine(algorithm, all, part, bytes);
        (whole as u32).to_le_bytes()
    }

    /// Those of the blocks that are there, in order.
    #[must_use]
    pub fn into_blocks(self) -> Vec<u32> {
        self.blocks
    }
}

impl fmt::Debug for PieceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PieceDigest({:02x?})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digests_of_blocks_and_of_all_are_those_of_the_bytes_however_they_come(
            len in 0..5 * BLOCK_BYTES, seed: u8, cuts in prop::collection::vec(1..3 * BLOCK_BYTES, 1..6),
        ) {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect();
            let mut digests = BlockDigests::new(len);
            let mut cuts = cuts.into_iter().cycle();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                digests.add(now);
                rest = later;
            }
            prop_assert_eq!(digests.value(), digest(&bytes));
            let blocks = bytes.as_chunks::<BLOCK_BYTES>().0.iter();
            let expected: Vec<u32> = blocks.map(|block| u32::from_le_bytes(digest(block))).collect();
            prop_assert_eq!(digests.into_blocks(), expected);
        }
    }

    #[test]
    fn the_digest_is_the_one_of_iscsi() {
        // RFC 3720, appendix B.4.
        assert_eq!(digest(&[0; 32]), 0x8a91_36aa_u32.to_le_bytes());
        assert_eq!(digest(&[0xff; 32]), 0x62a8_ab43_u32.to_le_bytes());
        let counting: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&counting), 0x46dd_794e_u32.to_le_bytes());
        let mut pieces = PieceDigest::default();
        counting.chunks(7).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.value(), digest(&counting));
    }
}
