//! Where a stream has had a content.

use hashbrown::HashMap;

use crate::frame::{BLOCK_BYTES, Digest, Range, Same, content_hash};

/// Memory of a place for a content in the table: its hash, its offset, and what the table knows of the place.
const PLACE_BYTES: usize = 32 + 8 + 1;

/// The contents that a stream had, by their BLAKE3 of 256 bits. It needs no key: who can make two blocks of one hash
/// could mix up blocks of one volume, and nobody can. A stream whose receiver answers has one, so that each block is hashed
/// once.
#[derive(Debug)]
pub struct Contents {
    key: Option<Digest>,
    known: HashMap<[u8; 32], u64>,
    entries_max: usize,
}

impl Contents {
    /// Remembers as many contents as fit into so many bytes of memory; later ones are sent each time that they come.
    #[must_use]
    pub fn new(memory_bytes: usize) -> Self {
        // The table has a power of two of places, and doubles when seven of eight are taken.
        let places = (memory_bytes / PLACE_BYTES).checked_ilog2();
        Self {
            key: None,
            known: HashMap::new(),
            entries_max: places.map_or(0, |log| (1 << log) / 8 * 7),
        }
    }

    /// Knows them by the stream's [`content_hash`].
    #[must_use]
    pub fn with_key(self, key: Digest) -> Self {
        Self {
            key: Some(key),
            ..self
        }
    }

    /// Splits data that belong at an offset into what is new and what came before, in order. `data` are whole blocks.
    pub fn split<'a>(&mut self, offset: u64, data: &'a [u8]) -> Vec<Piece<'a>> {
        self.split_and_tell(offset, data, |_, _| {})
    }

    /// The same, and tells the offset and the hash of each new block.
    pub fn split_and_tell<'a>(
        &mut self,
        offset: u64,
        data: &'a [u8],
        mut new: impl FnMut(u64, Digest),
    ) -> Vec<Piece<'a>> {
        let mut pieces: Vec<Piece<'a>> = Vec::new();
        let mut at = 0;
        for block in data.chunks(BLOCK_BYTES as usize) {
            let here = offset + at as u64;
            let hash = match &self.key {
                None => Digest(*blake3::hash(block).as_bytes()),
                Some(key) => content_hash(key, block),
            };
            let found = self.place_of(hash, here);
            if found.is_none() {
                new(here, hash);
            }
            match (pieces.last_mut(), found) {
                (Some(Piece::New(first, run)), None) if *first + run.len() as u64 == here => {
                    let begin = at - run.len();
                    *run = &data[begin..at + block.len()];
                }
                (Some(Piece::Same(same)), Some(from)) if continues(same, from) => {
                    same.range.length += BLOCK_BYTES;
                }
                (_, None) => pieces.push(Piece::New(here, block)),
                (_, Some(from)) => pieces.push(Piece::Same(Same {
                    range: Range {
                        offset: here,
                        length: BLOCK_BYTES,
                    },
                    from,
                })),
            }
            at += block.len();
        }
        pieces
    }

    /// Where this content came before; if nowhere, it has come here.
    fn place_of(&mut self, hash: Digest, here: u64) -> Option<u64> {
        let known = self.known.get(&hash.0).copied();
        if known.is_none() && self.known.len() < self.entries_max {
            self.known.insert(hash.0, here);
        }
        known
    }
}

/// Whether a block that follows a range has what follows the other range, which still ends before this one begins.
fn continues(same: &Same, from: u64) -> bool {
    let next = same.from + same.range.length;
    from == next && next + BLOCK_BYTES <= same.range.offset
}

/// A part of what is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Data that did not come before, and the offset where they belong.
    New(u64, &'a [u8]),
    /// What came before.
    Same(Same),
}
