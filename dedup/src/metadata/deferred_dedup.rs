//! Deferred deduplication: contents that were written before their older blocks were known.
//!
//! After an opening the index learns of the stored blocks group by group. A content that is written before
//! its older block is known is stored once more and remembered here; when all blocks are known, its mappings
//! are led to the older block. The memory for that is bounded by [`DEFERRED_MAX`] entries of each kind.

use std::collections::HashMap;

use meta::{Fingerprint, MapId, Pba};

/// Mappings to new blocks that are remembered until everything is loaded.
const DEFERRED_MAX: usize = if cfg!(test) { 40 } else { 1 << 20 };

/// What was stored before everything was loaded.
#[derive(Default)]
pub(crate) struct DeferredDedup {
    /// New blocks that have a fingerprint.
    blocks: HashMap<Pba, Fingerprint>,
    /// The last one of each fingerprint.
    newest: HashMap<Fingerprint, Pba>,
    /// Map and sub-block that were mapped to one of them.
    mappings: Vec<(MapId, u64, Pba)>,
    /// The older block of the same fingerprint.
    twins: HashMap<Pba, Pba>,
}

impl DeferredDedup {
    /// Whether writes have to wait until everything is loaded.
    pub(crate) fn is_full(&self) -> bool {
        self.blocks.len().max(self.mappings.len()) >= DEFERRED_MAX
    }

    pub(crate) fn add_block(&mut self, pba: Pba, fingerprint: Fingerprint) {
        self.blocks.insert(pba, fingerprint);
        self.newest.insert(fingerprint, pba);
    }

    /// The block that was new with this content, and may still have it.
    pub(crate) fn newest(&self, fingerprint: &Fingerprint) -> Option<Pba> {
        self.newest.get(fingerprint).copied()
    }

    /// Whether a block was new with this content, and may still have it.
    pub(crate) fn is_about(&self, pba: Pba, fingerprint: &Fingerprint) -> bool {
        self.blocks.get(&pba) == Some(fingerprint)
    }

    /// A new block and an older one have the same content.
    pub(crate) fn add_twin(&mut self, new: Pba, old: Pba) {
        self.twins.insert(new, old);
    }

    pub(crate) fn add_mapping(&mut self, map: MapId, sub_block: u64, pba: Pba) {
        if self.blocks.contains_key(&pba) {
            self.mappings.push((map, sub_block, pba));
        }
    }

    /// What is to be mapped to an older block.
    pub(crate) fn merges(self) -> Vec<Merge> {
        let Self {
            mappings, twins, ..
        } = self;
        let merge = |(map, sub_block, new)| {
            let old = *twins.get(&new)?;
            Some(Merge {
                map,
                sub_block,
                new,
                old,
            })
        };
        mappings.into_iter().filter_map(merge).collect()
    }
}

/// A mapping to a new block, and the older block that it is to lead to.
pub(crate) struct Merge {
    pub(crate) map: MapId,
    pub(crate) sub_block: u64,
    pub(crate) new: Pba,
    pub(crate) old: Pba,
}
