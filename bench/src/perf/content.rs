//! What is written: contents with numbers, so that duplicates are meant and anything else is unique.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Grain of duplicates and of verification.
pub(super) const SUB_BLOCK_BYTES: usize = 4096;

/// The content of one sub-block: all zeroes, or the content of this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Zeroes.
    Zero,
    /// Number `0`, `1`, ... of this run's contents.
    Number(u64),
}

/// What the bytes of a content are made of, besides its number.
#[derive(Debug, Clone, Copy)]
struct Source {
    seed: u64,
    /// Percent of each block that are zeroes, at its end.
    compress_percent: u8,
}

/// Makes contents. Number `n` of a source is the same bytes in every run; both stand in its first 16
/// bytes, so two different ones never are equal.
pub(super) struct Generator {
    source: Source,
    duplicate_percent: u64,
    zero_percent: u64,
    /// Sub-blocks made, and how many of them were zero or duplicates.
    made: u64,
    zeroes: u64,
    duplicates: u64,
    /// Numbers in use: 0..unique.
    unique: u64,
    random: ChaCha8Rng,
}

impl Generator {
    pub(super) fn new(
        seed: u64,
        duplicate_percent: u8,
        zero_percent: u8,
        compress_percent: u8,
    ) -> Self {
        Self {
            source: Source {
                seed,
                compress_percent,
            },
            duplicate_percent: duplicate_percent.into(),
            zero_percent: zero_percent.into(),
            made: 0,
            zeroes: 0,
            duplicates: 0,
            unique: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// The next content to write. The shares are kept exactly, not on average: after `n` sub-blocks
    /// there are `n * percent / 100` zeroes, and as many duplicates as asked for, give or take one.
    fn next(&mut self) -> Content {
        self.made += 1;
        if self.zeroes < self.made * self.zero_percent / 100 {
            self.zeroes += 1;
            return Content::Zero;
        }
        if self.duplicates < self.made * self.duplicate_percent / 100 && self.unique > 0 {
            self.duplicates += 1;
            return Content::Number(self.random.next_u64() % self.unique);
        }
        self.unique += 1;
        Content::Number(self.unique - 1)
    }

    /// Fills a buffer and says with what.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Vec<Content> {
        buffer
            .chunks_mut(SUB_BLOCK_BYTES)
            .map(|block| {
                let content = self.next();
                render(self.source, content, block);
                content
            })
            .collect()
    }

    /// Compares sub-blocks with what they should be. When nothing is known of them, a sub-block that claims a number
    /// of this seed must be that content; others are not judged.
    pub(super) fn judge(&self, buffer: &[u8], expected: Option<&[Content]>) -> Judged {
        let mut judged = Judged::default();
        for (index, block) in buffer.chunks(SUB_BLOCK_BYTES).enumerate() {
            let known = expected.and_then(|all| all.get(index)).copied();
            let Some(content) = known.or_else(|| claimed(self.source, block)) else {
                judged.unknown += 1;
                continue;
            };
            judged.verified += 1;
            let mut right = [0; SUB_BLOCK_BYTES];
            let right = &mut right[..block.len()];
            render(self.source, content, right);
            judged.wrong += u64::from(right != block);
        }
        judged
    }
}

/// What came of comparing sub-blocks that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// Sub-blocks that were compared.
    pub(super) verified: u64,
    /// Those of them that are not what they should be.
    pub(super) wrong: u64,
    /// Sub-blocks of which nobody knows what they should be.
    pub(super) unknown: u64,
}

impl std::ops::AddAssign for Judged {
    fn add_assign(&mut self, more: Self) {
        self.verified += more.verified;
        self.wrong += more.wrong;
        self.unknown += more.unknown;
    }
}

/// The content that a sub-block says it is, when it is of this source.
fn claimed(source: Source, block: &[u8]) -> Option<Content> {
    let (tag_bytes, rest) = block.split_first_chunk()?;
    let number = u64::from_le_bytes(*rest.first_chunk()?);
    let claims = u64::from_le_bytes(*tag_bytes) == tag(source, block.len()) && number != 0;
    claims.then(|| Content::Number(number - 1))
}

/// What the first 8 bytes of a content say: the source, and how long a shorter block is, because eight
/// blocks of 512 bytes are no sub-block.
fn tag(source: Source, len: usize) -> u64 {
    let compress = u64::from(source.compress_percent) << 40;
    source.seed ^ compress ^ ((len % SUB_BLOCK_BYTES) as u64) << 48
}

/// Bytes of a content's tag and number: they are in every block, however well it compresses.
const HEAD_BYTES: usize = 16;

/// Bytes made of one random word.
const LINE_BYTES: usize = 64;

fn next_word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Eight words out of one, none of which shows in another.
fn render_line(word: u64, line: &mut [u8; LINE_BYTES]) {
    let (words, _) = line.as_chunks_mut::<8>();
    let mut pattern = 0_u64;
    for to in words {
        *to = (word ^ pattern).to_le_bytes();
        pattern = pattern.wrapping_add(0xa076_1d64_78bd_642f);
    }
}

/// The bytes of a content; `block` is a sub-block, or a shorter block as a whole.
fn render(source: Source, content: Content, block: &mut [u8]) {
    let Content::Number(number) = content else {
        return block.fill(0);
    };
    // SplitMix64 (Steele, Lea, Flood 2014), one step for each line of 64 bytes: making contents must
    // not be what a measurement measures. The words of a line differ, so none of it compresses.
    let zeroes = block.len() * usize::from(source.compress_percent.min(100)) / 100;
    let random_bytes = (block.len() - zeroes).max(HEAD_BYTES);
    let (random, zeroes) = block.split_at_mut(random_bytes);
    zeroes.fill(0);
    let mut state = source.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95);
    let (lines, rest) = random.as_chunks_mut::<LINE_BYTES>();
    for line in lines {
        render_line(next_word(&mut state), line);
    }
    let mut line = [0; LINE_BYTES];
    render_line(next_word(&mut state), &mut line);
    rest.copy_from_slice(&line[..rest.len()]);
    let tag = tag(source, block.len());
    block[..8].copy_from_slice(&tag.to_le_bytes());
    // One more than the number, so that a block of zeroes is never the content 0 of seed 0.
    block[8..HEAD_BYTES].copy_from_slice(&(number + 1).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn blocks(duplicate: u8, zero: u8, count: usize) -> Vec<Vec<u8>> {
        let mut generator = Generator::new(7, duplicate, zero, 0);
        let mut buffer = vec![0; SUB_BLOCK_BYTES * count];
        let contents = generator.fill(&mut buffer);
        let all_right = Judged {
            verified: count as u64,
            ..Judged::default()
        };
        assert_eq!(generator.judge(&buffer, Some(&contents)), all_right);
        let zeroes = contents.iter().filter(|content| **content == Content::Zero);
        let unknown = zeroes.count() as u64;
        let judged = generator.judge(&buffer, None);
        assert_eq!((judged.wrong, judged.unknown), (0, unknown));
        assert_eq!(judged.verified, count as u64 - unknown);
        buffer.chunks(SUB_BLOCK_BYTES).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn without_duplicates_no_sub_block_is_ever_repeated() {
        let all = blocks(0, 0, 3000);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3000);
    }

    #[test]
    fn the_shares_of_duplicates_and_zeroes_are_kept() {
        let all = blocks(50, 10, 2000);
        let zeroes = all
            .iter()
            .filter(|block| block.iter().all(|byte| *byte == 0))
            .count();
        let distinct: HashSet<_> = all
            .iter()
            .filter(|block| block.iter().any(|byte| *byte != 0))
            .collect();
        assert_eq!(zeroes, 200);
        assert!(
            (800..=801).contains(&distinct.len()),
            "{} distinct",
            distinct.len()
        );
    }

    #[test]
    fn so_much_of_each_sub_block_is_zeroes_as_a_compression_is_to_save() {
        for percent in [0, 1, 50, 99, 100] {
            let mut generator = Generator::new(7, 0, 0, percent);
            let mut buffer = vec![0; SUB_BLOCK_BYTES * 100];
            let contents = generator.fill(&mut buffer);
            let all: HashSet<_> = buffer.chunks(SUB_BLOCK_BYTES).collect();
            assert_eq!(all.len(), 100, "none is repeated");
            for block in &all {
                let zeroes = block.iter().rev().take_while(|byte| **byte == 0).count();
                let asked = SUB_BLOCK_BYTES * usize::from(percent) / 100;
                // The head stays, and a random byte can be 0, too.
                let least = asked.min(SUB_BLOCK_BYTES - HEAD_BYTES);
                assert!(
                    (least..least + HEAD_BYTES).contains(&zeroes),
                    "{zeroes} of {asked}"
                );
            }
            let right = generator.judge(&buffer, Some(&contents));
            assert_eq!((right.verified, right.wrong), (100, 0));
            assert_eq!(generator.judge(&buffer, None), right);
        }
    }

    #[test]
    fn of_what_another_seed_wrote_nothing_is_verified() {
        let mut buffer = vec![0; SUB_BLOCK_BYTES * 4];
        Generator::new(1, 0, 0, 0).fill(&mut buffer);
        let judged = Generator::new(2, 0, 0, 0).judge(&buffer, None);
        let nothing = Judged {
            unknown: 4,
            ..Judged::default()
        };
        assert_eq!(judged, nothing);
        // Nor of what the same seed wrote to be compressed otherwise.
        let judged = Generator::new(1, 0, 0, 50).judge(&buffer, None);
        assert_eq!(judged, nothing);
    }

    #[test]
    fn one_wrong_bit_is_one_wrong_sub_block() {
        let mut generator = Generator::new(1, 0, 0, 0);
        let mut buffer = vec![0; SUB_BLOCK_BYTES * 4];
        let contents = generator.fill(&mut buffer);
        buffer[SUB_BLOCK_BYTES * 2 + 100] ^= 1;
        assert_eq!(generator.judge(&buffer, Some(&contents)).wrong, 1);
        assert_eq!(generator.judge(&buffer, None).wrong, 1);
        let (first, second) = buffer.split_at_mut(SUB_BLOCK_BYTES);
        first.swap_with_slice(&mut second[..SUB_BLOCK_BYTES]);
        assert_eq!(
            generator.judge(&buffer, Some(&contents)).wrong,
            3,
            "swapped blocks are wrong"
        );
    }
}
