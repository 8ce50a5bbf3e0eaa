//! Keyed BLAKE3 of many blocks at once: chunk k of all blocks in the SIMD lanes of one call.
//!
//! BLAKE3 cuts its input into chunks of 1 KiB that are hashed independently, so a block of 4 KiB alone
//! fills 4 lanes of 8 (AVX2) or 16 (AVX-512). Chunk k of many blocks fills all of them. Guarantee: the
//! digests are those of `blake3::keyed_hash`, bit for bit; a test compares them.
//!
//! The lanes are reached through `blake3::platform`, which is public but not stable: the workspace pins
//! the exact version, and nothing but this module knows of it.

use blake3::IncrementCounter;
use blake3::platform::Platform;
use drives::BLOCK_BYTES;

/// Blocks that are hashed in one go: the lanes of AVX-512.
pub(crate) const LANES: usize = 16;

const CHUNK_BYTES: usize = 1024;
const CHUNKS: usize = BLOCK_BYTES / CHUNK_BYTES;
/// Bytes of a message that [`SideBySide::short`] takes: what one step of BLAKE3 takes.
pub(crate) const SHORT_BYTES: usize = 64;
/// Bytes of a chaining value, and of the digest.
const VALUE_BYTES: usize = 32;
const PARENT_BYTES: usize = 2 * VALUE_BYTES;

// Domain separation flags: BLAKE3 paper, table 3.
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const KEYED_HASH: u8 = 1 << 4;

/// A block's digest.
pub(crate) type Digest = [u8; VALUE_BYTES];

/// BLAKE3 with a key, on this machine.
pub(crate) struct SideBySide {
    platform: Platform,
    key: [u32; 8],
}

impl SideBySide {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let (words, _) = key.as_chunks::<4>();
        let mut key = [0; 8];
        for (word, bytes) in key.iter_mut().zip(words) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self {
            platform: Platform::detect(),
            key,
        }
    }

    /// The digests of at most [`LANES`] blocks, in order.
    pub(crate) fn digests(&self, blocks: &[&[u8; BLOCK_BYTES]], out: &mut [Digest]) {
        // Narrower machines, and what is left over, take the widest group that leaves no lane empty.
        let mut at = 0;
        while at < blocks.len() {
            let left = blocks.len() - at;
            let width = match left {
                LANES.. => LANES,
                8.. => 8,
                4.. => 4,
                _ => 1,
            };
            let (blocks, out) = (&blocks[at..at + width], &mut out[at..at + width]);
            if width == 1 {
                self.alone(blocks[0], &mut out[0]);
            } else {
                self.group(blocks, out);
            }
            at += width;
        }
    }

    /// The digests of at most [`LANES`] messages of one step each, in order.
    pub(crate) fn short(&self, messages: &[[u8; SHORT_BYTES]], out: &mut [Digest]) {
        let Some(first) = messages.first() else {
            return;
        };
        let mut inputs = [first; LANES];
        for (input, message) in inputs.iter_mut().zip(messages) {
            *input = message;
        }
        self.platform.hash_many(
            &inputs[..messages.len()],
            &self.key,
            0,
            IncrementCounter::No,
            KEYED_HASH,
            CHUNK_START,
            CHUNK_END | ROOT,
            out.as_flattened_mut(),
        );
    }

    /// One block: its four chunks side by side.
    fn alone(&self, block: &[u8; BLOCK_BYTES], out: &mut Digest) {
        let (chunks, _) = block.as_chunks::<CHUNK_BYTES>();
        let inputs: [&[u8; CHUNK_BYTES]; CHUNKS] = std::array::from_fn(|k| &chunks[k]);
        let mut values = [0; CHUNKS * VALUE_BYTES];
        self.platform.hash_many(
            &inputs,
            &self.key,
            0,
            IncrementCounter::Yes,
            KEYED_HASH,
            CHUNK_START,
            CHUNK_END,
            &mut values,
        );
        let (pairs, _) = values.as_chunks::<PARENT_BYTES>();
        let mut parents = [0; PARENT_BYTES];
        self.parents(&[&pairs[0], &pairs[1]], 0, &mut parents);
        self.parents(&[&parents], ROOT, out);
    }

    /// Up to [`LANES`] blocks: chunk k of all of them side by side.
    fn group(&self, blocks: &[&[u8; BLOCK_BYTES]], out: &mut [Digest]) {
        let count = blocks.len();
        let mut inputs = [&blocks[0].as_chunks::<CHUNK_BYTES>().0[0]; LANES];
        // Per block: the values of its chunks one after the other, which is what parents are made of.
        let mut values = [[0; CHUNKS * VALUE_BYTES]; LANES];
        for k in 0..CHUNKS {
            for (input, block) in inputs.iter_mut().zip(blocks) {
                *input = &block.as_chunks::<CHUNK_BYTES>().0[k];
            }
            let mut column = [0; LANES * VALUE_BYTES];
            self.platform.hash_many(
                &inputs[..count],
                &self.key,
                k as u64,
                IncrementCounter::No,
                KEYED_HASH,
                CHUNK_START,
                CHUNK_END,
                &mut column,
            );
            let (column, _) = column.as_chunks::<VALUE_BYTES>();
            for (values, value) in values.iter_mut().zip(column) {
                values[k * VALUE_BYTES..(k + 1) * VALUE_BYTES].copy_from_slice(value);
            }
        }
        let (pairs, _) = values.as_flattened().as_chunks::<PARENT_BYTES>();
        let mut parents = [0; LANES * PARENT_BYTES];
        let inputs: [&[u8; PARENT_BYTES]; 2 * LANES] = std::array::from_fn(|at| &pairs[at]);
        self.parents(&inputs[..2 * count], 0, &mut parents);
        let (parents, _) = parents.as_chunks::<PARENT_BYTES>();
        let inputs: [&[u8; PARENT_BYTES]; LANES] = std::array::from_fn(|at| &parents[at]);
        self.parents(&inputs[..count], ROOT, out.as_flattened_mut());
    }

    fn parents(&self, inputs: &[&[u8; PARENT_BYTES]], root: u8, out: &mut [u8]) {
        let flags = KEYED_HASH | PARENT | root;
        let counter = IncrementCounter::No;
        self.platform
            .hash_many(inputs, &self.key, 0, counter, flags, 0, 0, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_equal(key: [u8; 32], blocks: &[Box<[u8; BLOCK_BYTES]>]) {
        let hasher = SideBySide::new(&key);
        for group in blocks.chunks(LANES) {
            let views: Vec<&[u8; BLOCK_BYTES]> = group.iter().map(|block| &**block).collect();
            let mut found = [[0; VALUE_BYTES]; LANES];
            hasher.digests(&views, &mut found[..views.len()]);
            for (block, found) in views.iter().zip(found) {
                assert_eq!(found, *blake3::keyed_hash(&key, *block).as_bytes());
            }
        }
    }

    #[test]
    fn any_number_of_blocks_has_the_digests_of_the_public_hash() {
        let block = |seed: usize| {
            let mut block = Box::new([0; BLOCK_BYTES]);
            for (at, byte) in block.iter_mut().enumerate() {
                *byte = (at * 31 + at / 251 + seed * 7) as u8;
            }
            block
        };
        for count in 1..=40 {
            let blocks: Vec<_> = (0..count).map(block).collect();
            assert_equal([count as u8; 32], &blocks);
        }
    }

    #[test]
    fn any_number_of_short_messages_has_the_digests_of_the_public_hash() {
        for count in 0..=LANES {
            let key = [count as u8; 32];
            let message = |seed: usize| [(seed * 37 + count) as u8; SHORT_BYTES];
            let messages: Vec<_> = (0..count).map(message).collect();
            let mut found = [[0; 32]; LANES];
            SideBySide::new(&key).short(&messages, &mut found);
            for (message, found) in messages.iter().zip(found) {
                assert_eq!(found, *blake3::keyed_hash(&key, message).as_bytes());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_content_and_key_has_the_digests_of_the_public_hash(
            key in any::<[u8; 32]>(),
            seeds in proptest::collection::vec(any::<[u8; 16]>(), 1..=LANES),
        ) {
            let blocks: Vec<Box<[u8; BLOCK_BYTES]>> = seeds
                .iter()
                .map(|seed| {
                    let mut block = Box::new([0; BLOCK_BYTES]);
                    blake3::Hasher::new().update(seed).finalize_xof().fill(&mut block[..]);
                    block
                })
                .collect();
            assert_equal(key, &blocks);
        }
    }
}
