//! What is known of physical blocks, and how to find one by its content.
//!
//! [`BlockTable`] holds count, checksum and fingerprint per physical block, in chunks that exist only
//! where blocks are in use. [`Index`] finds a block by its fingerprint; it stores block numbers only
//! and compares the full fingerprint in the table, so a hit is always a match of all 128 bits.

use hashbrown::HashTable;
use meta::{Fingerprint, Pba};

/// Blocks per chunk of the table.
const CHUNK: u64 = 4096;

/// Bit of [`BlockInfo::references`] that marks a block in flight. A count is always below it.
pub(crate) const IN_FLIGHT: u32 = 1 << 31;

/// What is known of one physical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockInfo {
    /// Mappings, and writes under way, that refer to it; with [`IN_FLIGHT`] as long as a batch is
    /// writing it.
    pub(crate) references: u32,
    pub(crate) crc32c: u32,
    pub(crate) fingerprint: Fingerprint,
}

const UNUSED: BlockInfo = BlockInfo {
    references: 0,
    crc32c: 0,
    fingerprint: Fingerprint([0; 16]),
};

type Chunk = Box<[BlockInfo]>;

/// Facts per physical block, by drive and block.
pub(crate) struct BlockTable {
    drives: Vec<Vec<Option<Chunk>>>,
}

impl BlockTable {
    /// A table for drives of these sizes (in data blocks).
    pub(crate) fn new(data_blocks: &[u64]) -> Self {
        let chunks = |blocks: &u64| (0..blocks.div_ceil(CHUNK)).map(|_| None).collect();
        Self {
            drives: data_blocks.iter().map(chunks).collect(),
        }
    }

    /// What is known of a block; an unused one has no references.
    pub(crate) fn get(&self, pba: Pba) -> BlockInfo {
        let chunk = self
            .drives
            .get(usize::from(pba.drive()))
            .and_then(|chunks| chunks.get((pba.block() / CHUNK) as usize));
        match chunk {
            Some(Some(chunk)) => chunk[(pba.block() % CHUNK) as usize],
            _ => UNUSED,
        }
    }

    /// The entry of a block. The block must exist on its drive (checked where numbers come in).
    pub(crate) fn entry(&mut self, pba: Pba) -> &mut BlockInfo {
        let chunk = &mut self.drives[usize::from(pba.drive())][(pba.block() / CHUNK) as usize];
        let chunk = chunk.get_or_insert_with(|| vec![UNUSED; CHUNK as usize].into_boxed_slice());
        &mut chunk[(pba.block() % CHUNK) as usize]
    }

    /// Every block that has references.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Pba, &BlockInfo)> {
        self.drives.iter().enumerate().flat_map(|(drive, chunks)| {
            chunks.iter().enumerate().flat_map(move |(number, chunk)| {
                let entries = chunk.as_deref().unwrap_or_default();
                entries
                    .iter()
                    .enumerate()
                    .filter(|(_, info)| info.references > 0)
                    .map(move |(slot, info)| {
                        let block = number as u64 * CHUNK + slot as u64;
                        (Pba::new(drive as u16, block), info)
                    })
            })
        })
    }
}

/// Finds blocks by content.
#[derive(Default)]
pub(crate) struct Index {
    table: HashTable<u64>,
}

impl Index {
    /// The block with this fingerprint.
    pub(crate) fn find(&self, blocks: &BlockTable, fingerprint: &Fingerprint) -> Option<Pba> {
        self.table
            .find(hash(fingerprint), |pba| {
                blocks.get(Pba(*pba)).fingerprint == *fingerprint
            })
            .map(|pba| Pba(*pba))
    }

    /// Enters a block, whose fingerprint is in the table already; one of the same content that was
    /// entered before leaves.
    pub(crate) fn insert(&mut self, blocks: &BlockTable, pba: Pba) {
        let fingerprint = blocks.get(pba).fingerprint;
        let known = self.table.find_mut(hash(&fingerprint), |other| {
            blocks.get(Pba(*other)).fingerprint == fingerprint
        });
        if let Some(known) = known {
            *known = pba.0;
            return;
        }
        self.table
            .insert_unique(hash(&fingerprint), pba.0, |other| {
                hash(&blocks.get(Pba(*other)).fingerprint)
            });
    }

    /// Removes a block; an entry of another block with the same content stays.
    pub(crate) fn remove(&mut self, blocks: &BlockTable, pba: Pba) {
        let fingerprint = blocks.get(pba).fingerprint;
        if let Ok(entry) = self
            .table
            .find_entry(hash(&fingerprint), |other| *other == pba.0)
        {
            entry.remove();
        }
    }

    /// How many blocks can be found.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}

/// A fingerprint is uniformly distributed already: its first bytes are its hash.
fn hash(fingerprint: &Fingerprint) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&fingerprint.0[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_agrees_with_a_plain_map(steps in proptest::collection::vec((0u8..20, any::<bool>()), 1..200)) {
            let mut blocks = BlockTable::new(&[20_000]);
            let mut index = Index::default();
            let mut model = HashMap::new();
            for (number, (content, insert)) in steps.into_iter().enumerate() {
                let fingerprint = Fingerprint([content; 16]);
                if insert {
                    let pba = Pba::new(0, number as u64 * 37);
                    *blocks.entry(pba) = BlockInfo { references: 1, crc32c: 0, fingerprint };
                    index.insert(&blocks, pba);
                    model.insert(content, pba);
                } else if let Some(pba) = model.remove(&content) {
                    index.remove(&blocks, pba);
                }
                prop_assert_eq!(index.len(), model.len());
                for content in 0u8..20 {
                    let found = index.find(&blocks, &Fingerprint([content; 16]));
                    prop_assert_eq!(found.map(|p| p.0), model.get(&content).map(|p| p.0));
                }
            }
        }
    }

    #[test]
    fn removing_a_second_copy_leaves_the_one_that_can_be_found() {
        let mut blocks = BlockTable::new(&[100]);
        let mut index = Index::default();
        let fingerprint = Fingerprint([3; 16]);
        let (a, b) = (Pba::new(0, 1), Pba::new(0, 2));
        for pba in [a, b] {
            *blocks.entry(pba) = BlockInfo {
                references: 1,
                crc32c: 0,
                fingerprint,
            };
            index.insert(&blocks, pba);
        }
        index.remove(&blocks, a);
        assert_eq!(index.find(&blocks, &fingerprint).map(|p| p.0), Some(b.0));
    }
}
