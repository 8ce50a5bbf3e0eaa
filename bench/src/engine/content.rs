//! What the workloads write: numbered contents, so that duplicates are meant and nothing else repeats.
//!
//! A content is one template of random bytes with a stamp of 16 bytes at its start: making one costs a
//! store of 16 bytes within the measured time, and hashing does not care which bytes differ.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use drives::BLOCK_BYTES;
use reactor::{Buffer, BufferPool};

/// Bytes at the start of a block that tell contents apart.
pub(super) const STAMP_BYTES: usize = 16;

/// The bytes that tell a content apart; never all zero.
pub(super) type Stamp = [u8; STAMP_BYTES];

/// Bytes of prepared buffers that take turns: more than a core's own caches hold, as data from a
/// network is, and less than the shared cache.
const DECK_BYTES: usize = 16 << 20;

/// A small generator of places and choices (SplitMix64: Steele, Lea, Flood 2014).
pub(super) struct Chance(Cell<u64>);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub(super) fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, by multiplication (Lemire 2019); the bias of small ranges is nil.
    pub(super) fn below(&self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// The bytes that all contents share.
pub(super) fn template() -> Box<[u8; BLOCK_BYTES]> {
    let chance = Chance::new(0x6f6e_6566_6f6c_6421);
    let mut bytes = Box::new([0; BLOCK_BYTES]);
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&chance.next().to_le_bytes());
    }
    bytes
}

/// The stamp of content `number`.
pub(super) fn stamp(number: u64) -> Stamp {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(b"onefold\x01");
    stamp[8..].copy_from_slice(&number.to_le_bytes());
    stamp
}

/// Numbers of contents nobody has written yet, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    /// The first of `count` new numbers.
    pub(super) fn take(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Ordering::Relaxed)
    }
}

/// How the sub-blocks of a write are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Every sub-block is new.
    Unique,
    /// So many percent are among the `known` contents from `from` on, chosen at random, spread evenly
    /// among new ones.
    Duplicates { percent: u32, from: u64, known: u64 },
    /// The contents `from`, `from + 1`, ... in the order of the writes.
    InOrder { from: u64 },
}

/// Prepared buffers, which take turns.
pub(super) struct Deck {
    cards: RefCell<VecDeque<Buffer>>,
    chance: Chance,
    /// Sub-blocks stamped, and duplicates among them.
    made: Cell<u64>,
    duplicates: Cell<u64>,
}

impl Deck {
    /// Buffers of `block_bytes`, at least `least`, each filled with the template, of which so many percent
    /// are zeros.
    pub(super) async fn new(
        pool: &BufferPool,
        block_bytes: usize,
        least: usize,
        seed: u64,
        compressible: u32,
    ) -> Rc<Self> {
        let cards = (DECK_BYTES / block_bytes).max(least);
        Self::of(pool, block_bytes, cards, seed, compressible).await
    }

    /// So many buffers.
    pub(super) async fn of(
        pool: &BufferPool,
        block_bytes: usize,
        count: usize,
        seed: u64,
        compressible: u32,
    ) -> Rc<Self> {
        let mut template = template();
        let zeros = BLOCK_BYTES * compressible.min(99) as usize / 100;
        template[BLOCK_BYTES - zeros..].fill(0);
        let mut cards = VecDeque::new();
        for _ in 0..count {
            let mut card = pool.alloc(block_bytes).await;
            for block in card.chunks_exact_mut(BLOCK_BYTES) {
                block.copy_from_slice(&template[..]);
            }
            cards.push_back(card);
        }
        Rc::new(Self {
            cards: RefCell::new(cards),
            chance: Chance::new(seed),
            made: Cell::new(0),
            duplicates: Cell::new(0),
        })
    }

    /// The buffer whose last use is longest ago.
    pub(super) fn take(&self) -> Option<Buffer> {
        self.cards.borrow_mut().pop_front()
    }

    pub(super) fn give(&self, card: Buffer) {
        self.cards.borrow_mut().push_back(card);
    }

    pub(super) fn chance(&self) -> &Chance {
        &self.chance
    }

    /// Gives every sub-block of a buffer its content. `write` counts the writes from 0.
    pub(super) fn stamp(&self, card: &mut Buffer, mix: Mix, numbers: &Numbers, write: u64) {
        let blocks = (card.len() / BLOCK_BYTES) as u64;
        let mut fresh = match mix {
            Mix::Unique => numbers.take(blocks),
            Mix::InOrder { from } => from + write * blocks,
            Mix::Duplicates { .. } => 0,
        };
        for block in card.chunks_exact_mut(BLOCK_BYTES) {
            let number = match mix {
                Mix::Unique | Mix::InOrder { .. } => {
                    fresh += 1;
                    fresh - 1
                }
                Mix::Duplicates {
                    percent,
                    from,
                    known,
                } => {
                    self.made.set(self.made.get() + 1);
                    if self.duplicates.get() * 100 < self.made.get() * u64::from(percent) {
                        self.duplicates.set(self.duplicates.get() + 1);
                        from + self.chance.below(known)
                    } else {
                        numbers.take(1)
                    }
                }
            };
            block[..STAMP_BYTES].copy_from_slice(&stamp(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    async fn written(mix: Mix, writes: u64, numbers: &Numbers) -> Vec<Vec<u8>> {
        let pool = BufferPool::new(2 * DECK_BYTES).expect("memory");
        let deck = Deck::new(&pool, 8 * BLOCK_BYTES, 1, 7, 0).await;
        let mut blocks = Vec::new();
        for write in 0..writes {
            let mut card = deck.take().expect("a card");
            deck.stamp(&mut card, mix, numbers, write);
            blocks.extend(card.chunks_exact(BLOCK_BYTES).map(<[u8]>::to_vec));
            deck.give(card);
        }
        blocks
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        use futures_util::FutureExt;
        future.now_or_never().expect("nothing to wait for")
    }

    #[test]
    fn unique_contents_never_repeat_also_when_buffers_take_their_second_turn() {
        let numbers = Numbers::default();
        let blocks = now(written(Mix::Unique, 1200, &numbers));
        let again = now(written(Mix::Unique, 10, &numbers));
        let distinct: HashSet<_> = blocks.iter().chain(&again).collect();
        assert_eq!(distinct.len(), 8 * 1210);
    }

    #[test]
    fn nine_of_ten_sub_blocks_are_known_ones_when_ninety_percent_are_asked_for() {
        let numbers = Numbers::default();
        let known: HashSet<_> = now(written(Mix::InOrder { from: 0 }, 100, &numbers))
            .into_iter()
            .collect();
        assert_eq!(known.len(), 800);
        numbers.take(800);
        let mix = Mix::Duplicates {
            percent: 90,
            from: 0,
            known: 800,
        };
        let blocks = now(written(mix, 1000, &numbers));
        let (duplicates, fresh): (Vec<_>, Vec<_>) =
            blocks.into_iter().partition(|block| known.contains(block));
        assert_eq!(duplicates.len(), 7200);
        assert_eq!(fresh.iter().collect::<HashSet<_>>().len(), 800);
    }
}
