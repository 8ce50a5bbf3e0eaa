//! What a block is known by: a keyed BLAKE3 digest cut to 128 bits, and its CRC-32C.
//!
//! Many blocks in, many results out: they are hashed side by side in SIMD lanes ([`SideBySide`]); an
//! accelerator could stand behind this interface without a change above it.

use drives::BLOCK_BYTES;
use meta::Fingerprint;

use crate::side_by_side::{Digest, LANES, SideBySide};

/// The bytes of one sub-block.
pub type Block = [u8; BLOCK_BYTES];

/// Fingerprints blocks with the pool's secret: without it nobody can search for collisions offline.
/// 128 bits keep the chance of a collision in a pool of 1 PiB below 2^-52.
pub struct Hasher {
    hash: SideBySide,
}

impl Hasher {
    /// With the pool's key.
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            hash: SideBySide::new(key),
        }
    }

    /// Gives the fingerprints of blocks to `each`, in order.
    pub fn batch<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a Block>,
        mut each: impl FnMut(Fingerprint),
    ) {
        let mut blocks = blocks.into_iter();
        let mut digests = [[0; 32]; LANES];
        while let Some(first) = blocks.next() {
            let mut group = [first; LANES];
            let mut count = 1;
            for (place, block) in group[1..].iter_mut().zip(blocks.by_ref()) {
                *place = block;
                count += 1;
            }
            self.hash.digests(&group[..count], &mut digests);
            digests[..count].iter().map(cut).for_each(&mut each);
        }
    }

    /// The fingerprint of one block.
    pub fn one(&self, block: &Block) -> Fingerprint {
        let mut digest = [[0; 32]];
        self.hash.digests(&[block], &mut digest);
        cut(&digest[0])
    }
}

/// The half of a digest that is stored.
fn cut(digest: &Digest) -> Fingerprint {
    let mut out = [0; 16];
    out.copy_from_slice(&digest[..16]);
    #[cfg(test)]
    weak::weaken(&mut out);
    if out == Fingerprint::NONE.0 {
        // That value says that there is none.
        out[15] = 1;
    }
    Fingerprint(out)
}

/// CRC-32C (Castagnoli) of a block: checked on every read.
#[inline]
pub(crate) fn crc32c(block: &[u8]) -> u32 {
    // The library returns every CRC in a u64; a 32-bit one fits its lower half.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// Whether a block is all zeros (such blocks are not stored).
#[inline]
pub(crate) fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<32>();
    words.iter().all(|word| *word == [0u8; 32]) && rest.iter().all(|byte| *byte == 0)
}

/// The sub-blocks of a buffer.
#[inline]
pub(crate) fn split(bytes: &[u8]) -> &[Block] {
    bytes.as_chunks().0
}

/// A hash that collides, for tests of what happens then.
#[cfg(test)]
pub(crate) mod weak {
    use std::cell::Cell;

    thread_local! {
        static VALUES: Cell<Option<u8>> = const { Cell::new(None) };
    }

    /// From now on there are so many fingerprints on this thread; `None`: all.
    pub(crate) fn set(values: Option<u8>) {
        VALUES.set(values);
    }

    pub(super) fn weaken(fingerprint: &mut [u8; 16]) {
        if let Some(values) = VALUES.get() {
            let value = fingerprint[0] % values;
            *fingerprint = [value; 16];
            // None of them says that there is none.
            fingerprint[15] = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_equals_the_public_hash_block_by_block() {
        let key = [7u8; 32];
        let hasher = Hasher::new(&key);
        for count in 0..40u8 {
            let blocks: Vec<Block> = (0..count).map(|i| [i; BLOCK_BYTES]).collect();
            let mut found = Vec::new();
            hasher.batch(&blocks, |fingerprint| found.push(fingerprint));
            let wanted: Vec<_> = blocks
                .iter()
                .map(|block| cut(blake3::keyed_hash(&key, block).as_bytes()))
                .collect();
            assert_eq!(found, wanted);
            assert!(blocks.iter().map(|block| hasher.one(block)).eq(wanted));
        }
    }

    #[test]
    fn another_pool_key_gives_other_fingerprints() {
        let block = [1u8; BLOCK_BYTES];
        let fingerprint = |key| Hasher::new(&[key; 32]).one(&block);
        assert_ne!(fingerprint(1), fingerprint(2));
    }

    #[test]
    fn the_checksum_is_crc32c_with_its_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn only_a_block_of_nothing_but_zeros_is_zero() {
        let mut block = vec![0u8; BLOCK_BYTES];
        assert!(is_zero(&block));
        for at in [0, 31, 32, 2048, BLOCK_BYTES - 1] {
            block[at] = 1;
            assert!(!is_zero(&block));
            block[at] = 0;
        }
    }
}
