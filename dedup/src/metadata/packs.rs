//! Packs and their addresses: how many are in use, and the pack that a batch fills.

use meta::Pba;

use super::block_table::BlockTable;

/// Fragments in use, and the blocks that they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackCount {
    pub(crate) packs: u64,
    pub(crate) fragments: u64,
    /// The pack of the fragment that was loaded last.
    last_found: Option<Pba>,
}

impl PackCount {
    /// An address is in use from now on; the first fragment of a pack has slot 0.
    pub(crate) fn add(&mut self, pba: Pba) {
        if let Some(slot) = pba.slot() {
            self.fragments += 1;
            self.packs += u64::from(slot == 0);
        }
    }

    /// A fragment was found in use when it was loaded; those of a pack come one after the other.
    pub(crate) fn add_found(&mut self, pba: Pba) {
        self.fragments += 1;
        let pack = Some(pba.container());
        self.packs += u64::from(self.last_found != pack);
        self.last_found = pack;
    }

    /// An address has no references any more. Returns the block that nothing is in now.
    pub(crate) fn remove(&mut self, blocks: &BlockTable, pba: Pba) -> Option<Pba> {
        if !pba.is_fragment() {
            return Some(pba);
        }
        self.fragments -= 1;
        if blocks.is_pack_in_use(pba) {
            return None;
        }
        self.packs -= 1;
        Some(pba.container())
    }
}

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoBlock {
    /// None is free.
    Full,
    /// What is known of this one, the next, is in the store only.
    NotResident(Pba),
}

/// A pack that a batch fills: it gets its block with its first fragment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenPack {
    block: Option<Pba>,
    count: u8,
}

impl OpenPack {
    /// The next address in it, if it needs no block or there is one.
    pub(crate) fn allocate(
        &mut self,
        block: impl FnOnce() -> Result<Pba, NoBlock>,
    ) -> Result<Pba, NoBlock> {
        let block = match self.block {
            Some(block) => block,
            None => block().map_err(|error| match error {
                NoBlock::NotResident(block) => NoBlock::NotResident(block.fragment(0)),
                NoBlock::Full => NoBlock::Full,
            })?,
        };
        debug_assert!(self.count <= Pba::SLOT_MAX);
        self.block = Some(block);
        self.count += 1;
        Ok(block.fragment(self.count - 1))
    }

    /// The fragment that came last was given back; with the last one goes the block.
    pub(crate) fn take_back(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.block = None;
        }
    }
}
