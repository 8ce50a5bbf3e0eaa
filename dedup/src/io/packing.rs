//! Packs on their way: which contents of a batch share a block.
//!
//! A batch plans its packs before it claims blocks: contents that nobody seems to have are compressed, and
//! those that are small enough are put together ([`put_together`]). A content that would be alone in a pack is
//! stored as it is. Claiming then gives the fragments that are new after all their addresses, and the packs are
//! made of those.

use drives::BLOCK_BYTES;
use reactor::Buffer;

use crate::content::pack::Pack;
use crate::content::packing::{Fragment, put_together};
use crate::metadata::packs::OpenPack;

/// Who packs: in which pack an item is, and how it is compressed.
struct Packed {
    pack: usize,
    fragment: Fragment,
}

/// The packs of a batch.
#[derive(Default)]
pub(crate) struct Packing {
    /// By item; empty if nothing is packed.
    packed: Vec<Option<Packed>>,
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
            packed: Vec::new(),
            packs: vec![OpenPack::default(); packs.len()],
            buffer: Some(buffer),
        };
        for (pack, fragments) in packs.into_iter().enumerate() {
            for fragment in fragments {
                let item = fragment.item;
                if packing.packed.len() <= item {
                    packing.packed.resize_with(item + 1, || None);
                }
                packing.packed[item] = Some(Packed { pack, fragment });
            }
        }
        packing
    }

    fn packed(&self, item: usize) -> Option<&Packed> {
        self.packed.get(item)?.as_ref()
    }

    /// The pack that an item goes to, if it does.
    pub(crate) fn pack_of(&mut self, item: usize) -> Option<&mut OpenPack> {
        let pack = self.packed(item)?.pack;
        self.packs.get_mut(pack)
    }

    /// Where in the buffer an item's pack is.
    pub(crate) fn offset_of(&self, item: usize) -> Option<usize> {
        Some(self.packed(item)?.pack * BLOCK_BYTES)
    }

    /// Makes the packs of the items that got an address in one, in the order in which they did.
    pub(crate) fn build(&mut self, items: impl Iterator<Item = usize>) {
        let Self {
            packed,
            packs,
            buffer: Some(buffer),
        } = self
        else {
            return;
        };
        let mut members: Vec<Vec<&Fragment>> = packs.iter().map(|_| Vec::new()).collect();
        for item in items.filter_map(|item| packed.get(item)?.as_ref()) {
            members[item.pack].push(&item.fragment);
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
