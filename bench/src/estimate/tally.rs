//! Counting distinct blocks and what they compress to, in bounded memory.
//!
//! Guarantees: exact as long as the fingerprints fit the bound. Beyond it only the blocks are kept whose
//! fingerprints fall into a share of all fingerprints, a share that is halved whenever the bound is
//! reached; since fingerprints are evenly distributed, the count divided by the share estimates the whole
//! (Gibbons 2001, distinct sampling), and its error is known.

use std::collections::{HashMap, HashSet};

use super::report::Grain;

/// Compressed blocks that are kept as a sample, for each block size.
const COMPRESSED_MAX: usize = 32 << 10;

/// A block that LZ4 makes hardly smaller is stored as it is: at least an eighth has to be gained.
const GAIN_MIN: usize = 8;

/// How many standard deviations an error covers: 95 % of all cases.
const DEVIATIONS: f64 = 1.96;

/// Keys below a bound that falls by half when there are too many.
struct Share {
    halvings: u32,
}

impl Share {
    fn holds(&self, key: u64) -> bool {
        key.leading_zeros() >= self.halvings
    }

    /// Of all keys.
    fn part(&self) -> f64 {
        0.5f64.powi(self.halvings as i32)
    }
}

/// Blocks of one size.
pub(super) struct Tally {
    block_bytes: usize,
    blocks: u64,
    zero_blocks: u64,
    seen: HashSet<u64>,
    seen_max: usize,
    seen_share: Share,
    compressed: HashMap<u64, u32>,
    compressed_share: Share,
    scratch: Vec<u8>,
}

impl Tally {
    /// For blocks of `block_bytes`; keeps at most `seen_max` fingerprints.
    pub(super) fn new(block_bytes: usize, seen_max: usize) -> Self {
        Self {
            block_bytes,
            blocks: 0,
            zero_blocks: 0,
            seen: HashSet::new(),
            seen_max: seen_max.max(1),
            seen_share: Share { halvings: 0 },
            compressed: HashMap::new(),
            compressed_share: Share { halvings: 0 },
            scratch: vec![0; lz4_flex::block::get_maximum_output_size(block_bytes)],
        }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Counts blocks of zeros.
    pub(super) fn add_zeros(&mut self, blocks: u64) {
        self.blocks += blocks;
        self.zero_blocks += blocks;
    }

    /// Counts a block with the given first half of its fingerprint.
    pub(super) fn add(&mut self, key: u64, block: &[u8]) {
        self.blocks += 1;
        if self.seen_share.holds(key) {
            self.seen.insert(key);
            while self.seen.len() > self.seen_max {
                self.seen_share.halvings += 1;
                let share = &self.seen_share;
                self.seen.retain(|&key| share.holds(key));
            }
        }
        if self.compressed_share.holds(key) && !self.compressed.contains_key(&key) {
            let stored = self.stored_bytes(block);
            self.compressed.insert(key, stored);
            while self.compressed.len() > COMPRESSED_MAX {
                self.compressed_share.halvings += 1;
                let share = &self.compressed_share;
                self.compressed.retain(|&key, _| share.holds(key));
            }
        }
    }

    /// Bytes that the block takes when it may be compressed.
    fn stored_bytes(&mut self, block: &[u8]) -> u32 {
        let plain = block.len();
        let stored = match lz4_flex::block::compress_into(block, &mut self.scratch) {
            Ok(bytes) if bytes + plain / GAIN_MIN <= plain => bytes,
            _ => plain,
        };
        stored as u32
    }

    /// What was counted.
    pub(super) fn grain(&self) -> Grain {
        let part = self.seen_share.part();
        let kept = self.seen.len() as f64;
        let unique = kept / part;
        let unique_error = DEVIATIONS * (kept * (1.0 - part)).sqrt() / part;
        let bytes = self.block_bytes as f64;

        let count = self.compressed.len() as f64;
        let (mut sum, mut squares) = (0.0, 0.0);
        for &stored in self.compressed.values() {
            sum += f64::from(stored);
            squares += f64::from(stored) * f64::from(stored);
        }
        let mean = if count > 0.0 { sum / count } else { bytes };
        let variance = (squares / count.max(1.0) - mean * mean).max(0.0);
        let of_sample = 1.0 - self.compressed_share.part();
        let mean_error = DEVIATIONS * (variance * of_sample / count.max(1.0)).sqrt();
        let compressed = unique * mean;
        // Both estimates err on their own: their relative errors add in squares.
        let compressed_error = (unique * mean_error).hypot(unique_error * mean);
        Grain {
            block_bytes: self.block_bytes as u64,
            blocks: self.blocks,
            zero_blocks: self.zero_blocks,
            unique_blocks: unique.round() as u64,
            deduplicated_bytes: (unique * bytes).round() as u64,
            deduplicated_error_bytes: (unique_error * bytes).round() as u64,
            compressed_bytes: compressed.round() as u64,
            compressed_error_bytes: compressed_error.round() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> u64 {
        let hash = blake3::hash(&number.to_le_bytes());
        u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"))
    }

    #[test]
    fn few_blocks_are_counted_exactly() {
        let mut tally = Tally::new(4096, 1000);
        for number in 0..1000 {
            for _ in 0..3 {
                tally.add(key(number), &[number as u8; 4096]);
            }
        }
        tally.add_zeros(7);
        let grain = tally.grain();
        assert_eq!((grain.blocks, grain.zero_blocks), (3007, 7));
        assert_eq!(
            (grain.unique_blocks, grain.deduplicated_error_bytes),
            (1000, 0)
        );
        assert_eq!(grain.deduplicated_bytes, 1000 * 4096);
    }

    #[test]
    fn many_blocks_are_estimated_within_the_stated_error_and_memory() {
        let mut tally = Tally::new(512, 1 << 12);
        for number in 0..200_000 {
            tally.add(key(number), &[0; 512]);
            tally.add(key(number / 2), &[0; 512]);
        }
        assert!(tally.seen.len() <= 1 << 12 && tally.compressed.len() <= COMPRESSED_MAX);
        let grain = tally.grain();
        let off = grain.deduplicated_bytes.abs_diff(200_000 * 512);
        // Twice the error that 95 of 100 samples keep; this sample is always the same.
        assert!(
            off <= 2 * grain.deduplicated_error_bytes,
            "{off} beyond {}",
            grain.deduplicated_error_bytes
        );
        let relative = grain.deduplicated_error_bytes as f64 / grain.deduplicated_bytes as f64;
        assert!((0.01..0.06).contains(&relative), "{relative}");
    }

    #[test]
    fn what_lz4_cannot_make_smaller_is_stored_as_it_is() {
        let mut tally = Tally::new(4096, 100);
        let mut random = vec![0; 4096];
        for (index, chunk) in random.chunks_mut(32).enumerate() {
            chunk.copy_from_slice(blake3::hash(&index.to_le_bytes()).as_bytes());
        }
        tally.add(key(1), &random);
        assert_eq!(tally.grain().compressed_bytes, 4096);
        tally.add(key(2), &[b'a'; 4096]);
        let both = tally.grain().compressed_bytes;
        assert!((4096..4096 + 200).contains(&both), "{both}");
    }
}
