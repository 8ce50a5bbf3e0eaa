//! Which blocks of the journal's file the areas do not have yet.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::area::BLOCK;

/// One bit for each block. Appends mark blocks from any thread, without a lock.
pub(super) struct DirtyBlocks(Vec<AtomicU64>);

impl DirtyBlocks {
    /// None of the blocks of so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let blocks = bytes.div_ceil(BLOCK as u64);
        let words = blocks.div_ceil(64) as usize;
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks the blocks of some bytes, which are written.
    pub(super) fn mark(&self, offset: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let (first, last) = (
            offset / BLOCK as u64,
            (offset + bytes as u64 - 1) / BLOCK as u64,
        );
        for block in first..=last {
            if let Some(word) = self.0.get((block / 64) as usize) {
                let bit = 1 << (block % 64);
                // Appends mark one block again and again.
                if word.load(Ordering::Acquire) & bit == 0 {
                    word.fetch_or(bit, Ordering::AcqRel);
                }
            }
        }
    }

    /// Takes the marks away, and returns the runs of blocks that had them, none longer than `most`.
    pub(super) fn take(&self, most: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (at, word) in (0..).step_by(64).zip(&self.0) {
            if word.load(Ordering::Acquire) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let block = at + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                match runs.last_mut() {
                    Some(run) if run.end == block && run.end - run.start < most => run.end += 1,
                    _ => runs.push(block..block + 1),
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_taken_once_in_runs() {
        let dirty = DirtyBlocks::new(1000 * BLOCK as u64 - 1);
        dirty.mark(4095, 2);
        dirty.mark(62 * 4096, 4096 * 5);
        dirty.mark(0, 0);
        dirty.mark(999 * 4096, 10);
        assert_eq!(dirty.take(4), [0..2, 62..66, 66..67, 999..1000]);
        assert!(dirty.take(4).is_empty());
    }

    #[test]
    fn a_block_that_is_marked_while_others_are_taken_is_taken_the_next_time() {
        let dirty = DirtyBlocks::new(1 << 20);
        dirty.mark(8192, 1);
        let third = vec![2..3; 1];
        assert_eq!(dirty.take(100), third);
        dirty.mark(8192, 1);
        assert_eq!(dirty.take(100), third);
    }
}
