//! What a block is known by: a keyed BLAKE3 digest cut to 128 bits, and its CRC-32C.
//!
//! Many blocks in, many results out: hashing side by side in SIMD lanes, or an accelerator, can stand
//! behind this interface without a change above it.

use drives::BLOCK_BYTES;
use meta::Fingerprint;

/// The fingerprints of blocks, in order. The key is the pool's secret: without it nobody can search
/// for collisions offline. 128 bits keep the chance of a collision in a pool of 1 PiB below 2^-52.
pub(crate) fn batch(key: &[u8; 32], blocks: &[&[u8]]) -> Vec<Fingerprint> {
    blocks.iter().map(|block| one(key, block)).collect()
}

/// The fingerprint of one block.
pub(crate) fn one(key: &[u8; 32], block: &[u8]) -> Fingerprint {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(block);
    let mut out = [0u8; 16];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Fingerprint(out)
}

/// CRC-32C (Castagnoli) of a block: checked on every read.
pub(crate) fn crc32c(block: &[u8]) -> u32 {
    // The library returns every CRC in a u64; a 32-bit one fits its lower half.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// Whether a block is all zeros (such blocks are not stored).
pub(crate) fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<32>();
    words.iter().all(|word| *word == [0u8; 32]) && rest.iter().all(|byte| *byte == 0)
}

/// The sub-blocks of a buffer.
pub(crate) fn split(bytes: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    bytes.chunks_exact(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_equals_the_public_hash_block_by_block() {
        let key = [7u8; 32];
        let blocks: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; BLOCK_BYTES]).collect();
        let views: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        for (block, fingerprint) in views.iter().zip(batch(&key, &views)) {
            assert_eq!(
                fingerprint.0,
                blake3::keyed_hash(&key, block).as_bytes()[..16]
            );
        }
    }

    #[test]
    fn another_pool_key_gives_other_fingerprints() {
        let block = vec![1u8; BLOCK_BYTES];
        assert_ne!(one(&[1; 32], &block).0, one(&[2; 32], &block).0);
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
