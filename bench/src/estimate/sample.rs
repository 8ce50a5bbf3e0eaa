//! Some blocks out of many, each as likely as any other (Vitter, 'Random sampling with a reservoir', 1985, algorithm R).
//!
//! Guarantee: memory is that of the blocks that are kept.

use dedup::Block;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Blocks that were kept of those that were offered.
pub(super) struct Sample {
    blocks_max: usize,
    offered: u64,
    blocks: Vec<Block>,
    random: ChaCha8Rng,
}

impl Sample {
    /// At most so many; estimates of the same data keep the same ones.
    pub(super) fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max,
            offered: 0,
            blocks: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(0),
        }
    }

    /// A block that may be kept, by its bytes.
    pub(super) fn offer(&mut self, block: &Block) {
        if self.blocks_max == 0 {
            return;
        }
        self.offered += 1;
        if self.blocks.len() < self.blocks_max {
            self.blocks.push(*block);
            return;
        }
        let place = self.random.random_range(0..self.offered) as usize;
        if let Some(kept) = self.blocks.get_mut(place) {
            *kept = *block;
        }
    }

    pub(super) fn into_blocks(self) -> Vec<Block> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Block {
        let mut block = [0; size_of::<Block>()];
        block[..8].copy_from_slice(&number.to_le_bytes());
        block
    }

    fn sampled(blocks_max: usize, offered: u64) -> Vec<u64> {
        let mut sample = Sample::new(blocks_max);
        (0..offered).for_each(|number| sample.offer(&numbered(number)));
        let number = |block: &Block| block.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        sample.into_blocks().iter().map(number).collect()
    }

    #[test]
    fn few_blocks_are_all_kept_and_none_if_none_is_wanted() {
        assert_eq!(sampled(8, 5), [0, 1, 2, 3, 4]);
        assert!(sampled(0, 5).is_empty());
    }

    #[test]
    fn of_many_blocks_each_part_is_kept_as_often_as_any_other() {
        const MOST: u64 = 1000;
        let kept = sampled(MOST as usize, 100 * MOST);
        assert_eq!(kept.len() as u64, MOST);
        // Of each tenth a hundred, with a standard deviation below ten.
        for tenth in 0..10 {
            let range = tenth * 10 * MOST..(tenth + 1) * 10 * MOST;
            let count = kept.iter().filter(|number| range.contains(number)).count();
            assert!((50..150).contains(&count), "{count} of tenth {tenth}");
        }
    }
}
