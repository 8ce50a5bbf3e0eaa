//! Random transfers, one after the other, against what each block should hold.

use std::rc::Rc;

use drives::{BLOCK_BYTES, Drive, Extent, GatherExtent};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::{Buffer, BufferPool};

use crate::{BLOCKS, extent, gather};

/// Transfers of one story.
const STEPS: usize = 300;

/// Blocks of the longest one, more than any single command moves.
const LONGEST: u64 = 80;

/// What a block holds: a number that is written all over it, or `None` for anything.
type Content = Option<u64>;

struct Story<'a> {
    drive: &'a dyn Drive,
    pool: &'a BufferPool,
    rng: ChaCha8Rng,
    blocks: Vec<Content>,
    /// Of the last block that was written.
    number: u64,
}

/// Bytes of a block with this number.
fn stamp(block: &mut [u8], number: u64) {
    for word in block.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
}

/// The number of a block, if it is whole.
pub(crate) fn number(block: &[u8]) -> Option<u64> {
    let (words, []) = block.as_chunks::<8>() else {
        return None;
    };
    let first = words.first()?;
    words
        .iter()
        .all(|word| word == first)
        .then(|| u64::from_le_bytes(*first))
}

pub(crate) async fn stamped(pool: &BufferPool, numbers: &[u64]) -> Buffer {
    let mut buffer = pool.alloc(numbers.len() * BLOCK_BYTES).await;
    for (block, number) in buffer.chunks_exact_mut(BLOCK_BYTES).zip(numbers) {
        stamp(block, *number);
    }
    buffer
}

pub(crate) async fn check(drive: &dyn Drive, pool: &BufferPool, seed: u64) {
    let mut story = Story {
        drive,
        pool,
        rng: ChaCha8Rng::seed_from_u64(seed),
        blocks: vec![None; BLOCKS as usize],
        number: 0,
    };
    for step in 0..STEPS {
        match story.rng.random_range(0..10) {
            0..3 => story.write().await,
            3..6 => story.write_many().await,
            6..8 => story.read(step).await,
            8 => story.discard().await,
            _ => drive.flush().await.expect("flushed"),
        }
    }
    for first in (0..BLOCKS).step_by(64) {
        story.compare(&[extent(first, 0, 64)], 64, STEPS).await;
    }
}

impl Story<'_> {
    /// Runs of blocks that do not overlap, in any order: first block and length.
    fn runs(&mut self) -> Vec<(u64, u32)> {
        let mut first = self.rng.random_range(0..BLOCKS);
        let end = (first + self.rng.random_range(1..=LONGEST)).min(BLOCKS);
        let mut runs = Vec::new();
        while first < end {
            let blocks = self.rng.random_range(1..=end - first);
            // Some are left out, so that not all are neighbours.
            if runs.is_empty() || self.rng.random_range(0..4) > 0 {
                runs.push((first, blocks as u32));
            }
            first += blocks;
        }
        if self.rng.random() {
            runs.shuffle(&mut self.rng);
        }
        runs
    }

    fn next_numbers(&mut self, count: usize) -> Vec<u64> {
        let first = self.number + 1;
        self.number += count as u64;
        (first..=self.number).collect()
    }

    fn note(&mut self, block: u64, numbers: &[u64]) {
        for (at, number) in (block as usize..).zip(numbers) {
            self.blocks[at] = Some(*number);
        }
    }

    async fn write(&mut self) {
        let runs = self.runs();
        // One block before them that is not written.
        let count = 1 + runs.iter().map(|run| run.1 as usize).sum::<usize>();
        let numbers = self.next_numbers(count);
        let mut at = 1;
        let mut extents = Vec::new();
        for (block, blocks) in runs {
            extents.push(extent(block, at * BLOCK_BYTES, blocks));
            self.note(block, &numbers[at..at + blocks as usize]);
            at += blocks as usize;
        }
        let buffer = stamped(self.pool, &numbers).await;
        let (result, buffer) = self.drive.write(buffer, &extents).await;
        result.expect("written");
        let back = buffer.chunks_exact(BLOCK_BYTES).map(number);
        assert!(
            back.eq(numbers.into_iter().map(Some)),
            "a write changed its buffer"
        );
    }

    async fn write_many(&mut self) {
        let runs = self.runs();
        let mut buffers = Vec::new();
        let mut extents: Vec<GatherExtent> = Vec::new();
        let mut runs = runs.into_iter().peekable();
        while runs.peek().is_some() {
            // Each buffer has one or two of the runs, and a block before each.
            let mut all = Vec::new();
            for (block, blocks) in runs.by_ref().take(self.rng.random_range(1..3)) {
                let numbers = self.next_numbers(1 + blocks as usize);
                extents.push(gather(block, buffers.len() as u32, all.len() + 1, blocks));
                self.note(block, &numbers[1..]);
                all.extend(numbers);
            }
            buffers.push(stamped(self.pool, &all).await);
        }
        let buffers = Rc::new(buffers);
        let written = self.drive.write_many(buffers.clone(), &extents).await;
        written.expect("written");
        assert!(Rc::into_inner(buffers).is_some(), "its share is given up");
    }

    async fn discard(&mut self) {
        let first = self.rng.random_range(0..BLOCKS);
        let blocks = self.rng.random_range(1..=(BLOCKS - first).min(LONGEST));
        self.drive.discard(first, blocks).await.expect("discarded");
        self.blocks[first as usize..(first + blocks) as usize].fill(None);
    }

    async fn read(&mut self, step: usize) {
        let mut count = 0;
        let mut extents = Vec::new();
        for (block, blocks) in self.runs() {
            extents.push(extent(block, count * BLOCK_BYTES, blocks));
            count += blocks as usize;
        }
        self.compare(&extents, count, step).await;
    }

    /// Reads, with a block behind that is not read into.
    async fn compare(&mut self, extents: &[Extent], count: usize, step: usize) {
        let buffer = stamped(self.pool, &vec![u64::MAX; count + 1]).await;
        let (result, buffer) = self.drive.read(buffer, extents).await;
        result.expect("read");
        let mut found = buffer.chunks_exact(BLOCK_BYTES).map(number);
        for one in extents {
            let first = one.block as usize;
            for block in first..first + one.blocks as usize {
                let found = found.next().flatten();
                let expected = self.blocks[block];
                assert!(
                    expected.is_none() || expected == found,
                    "block {block} has {found:?} and not {expected:?} at step {step}"
                );
            }
        }
        assert_eq!(
            found.next(),
            Some(Some(u64::MAX)),
            "a read wrote beyond its extents"
        );
    }
}
