//! Packs on their way: which contents of a batch share a block, and what of that is in use.
//!
//! A batch plans its packs before it claims blocks: contents that nobody seems to have are compressed, and
//! those that are small enough are put together, largest first, each into the first pack that has room for
//! it. A content that would be alone in a pack is stored as it is. Claiming then gives the fragments that
//! are new after all their addresses, and the packs are made of those.

use std::cmp::Reverse;

use drives::BLOCK_BYTES;
use meta::Pba;
use reactor::Buffer;

use crate::block_table::BlockTable;
use crate::compress::Algorithm;
use crate::pack::{self, FRAGMENTS_MAX, Pack};

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
        #[cfg(test)]
        let is_broken = crate::ablation::is(crate::ablation::Broken::FreePackInUse);
        #[cfg(not(test))]
        let is_broken = false;
        let is_in_use = match is_broken {
            true => pba.slot() != Some(0),
            false => blocks.is_pack_in_use(pba),
        };
        if is_in_use {
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
    Away(Pba),
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
                NoBlock::Away(block) => NoBlock::Away(block.fragment(0)),
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

/// A content of a batch, compressed.
pub(crate) struct Fragment {
    /// Which item of the batch it is.
    pub(crate) item: usize,
    pub(crate) algorithm: Algorithm,
    pub(crate) bytes: Vec<u8>,
}

/// Who packs: in which pack an item is, and how it is compressed.
struct Place {
    pack: usize,
    fragment: Fragment,
}

/// The packs of a batch.
#[derive(Default)]
pub(crate) struct Packing {
    /// By item; empty if nothing is packed.
    places: Vec<Option<Place>>,
    packs: Vec<OpenPack>,
    /// Room for all packs, but while a drive writes from it.
    buffer: Option<Buffer>,
}

impl Packing {
    /// Puts fragments together (contents of different domains share nothing, so they come in lists of
    /// their own). `room` gives a buffer of so many bytes, or none: then nothing is packed.
    pub(crate) fn plan(
        lists: impl IntoIterator<Item = Vec<Fragment>>,
        room: impl FnOnce(usize) -> Option<Buffer>,
    ) -> Self {
        let packs: Vec<Vec<Fragment>> = lists
            .into_iter()
            .flat_map(put_together)
            .filter(|pack| pack.len() > 1)
            .collect();
        if packs.is_empty() {
            return Self::default();
        }
        let Some(buffer) = room(packs.len() * BLOCK_BYTES) else {
            tracing::debug!("no memory for packs: contents are stored as they are");
            return Self::default();
        };
        let mut packing = Self {
            places: Vec::new(),
            packs: vec![OpenPack::default(); packs.len()],
            buffer: Some(buffer),
        };
        for (pack, fragments) in packs.into_iter().enumerate() {
            for fragment in fragments {
                let item = fragment.item;
                if packing.places.len() <= item {
                    packing.places.resize_with(item + 1, || None);
                }
                packing.places[item] = Some(Place { pack, fragment });
            }
        }
        packing
    }

    fn place(&self, item: usize) -> Option<&Place> {
        self.places.get(item)?.as_ref()
    }

    /// The pack that an item goes to, if it does.
    pub(crate) fn pack_of(&mut self, item: usize) -> Option<&mut OpenPack> {
        let pack = self.place(item)?.pack;
        self.packs.get_mut(pack)
    }

    /// Where in the buffer an item's pack is.
    pub(crate) fn offset_of(&self, item: usize) -> Option<usize> {
        Some(self.place(item)?.pack * BLOCK_BYTES)
    }

    /// Makes the packs of the items that got an address in one, in the order in which they did.
    pub(crate) fn build(&mut self, items: impl Iterator<Item = usize>) {
        let Self {
            places,
            packs,
            buffer: Some(buffer),
        } = self
        else {
            return;
        };
        let mut members: Vec<Vec<&Fragment>> = packs.iter().map(|_| Vec::new()).collect();
        for place in items.filter_map(|item| places.get(item)?.as_ref()) {
            members[place.pack].push(&place.fragment);
        }
        let (blocks, _) = buffer.as_chunks_mut::<BLOCK_BYTES>();
        for (block, members) in blocks.iter_mut().zip(members) {
            if !members.is_empty() {
                let fragments = members.iter().map(|f| (f.algorithm, &f.bytes[..]));
                Pack::build(block, fragments);
            }
        }
    }

    /// The buffer with all packs, for a drive to write from. It comes back by [`Packing::put_back`].
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        self.buffer.take()
    }

    pub(crate) fn put_back(&mut self, buffer: Option<Buffer>) {
        self.buffer = buffer;
    }
}

/// First fit, largest first; equals stay in their order, so that neighbours stay together.
fn put_together(mut fragments: Vec<Fragment>) -> Vec<Vec<Fragment>> {
    fragments.sort_by_key(|fragment| Reverse(fragment.bytes.len()));
    let mut packs: Vec<(usize, Vec<Fragment>)> = Vec::new();
    for fragment in fragments {
        let len = fragment.bytes.len();
        let fits = |(bytes, members): &&mut (usize, Vec<Fragment>)| {
            members.len() < FRAGMENTS_MAX
                && pack::bytes_of(members.len() + 1, *bytes + len) <= BLOCK_BYTES
        };
        match packs.iter_mut().find(fits) {
            Some((bytes, members)) => {
                *bytes += len;
                members.push(fragment);
            }
            None => packs.push((len, vec![fragment])),
        }
    }
    packs.into_iter().map(|(_, members)| members).collect()
}
