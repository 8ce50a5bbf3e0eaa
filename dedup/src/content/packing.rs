//! Which compressed contents share a block. Nothing is larger than a block, and no pack has more fragments than
//! a block has slots.

use std::cmp::Reverse;

use drives::BLOCK_BYTES;

use super::compress::Algorithm;
use super::pack::{self, FRAGMENTS_MAX};

/// A content of a batch, compressed.
pub(crate) struct Fragment {
    /// Which item of the batch it is.
    pub(crate) item: usize,
    pub(crate) algorithm: Algorithm,
    pub(crate) bytes: Vec<u8>,
}

/// Puts fragments together in packs, largest first, each into the first pack that has room for it. Equals stay
/// in their order, so that neighbours stay together.
pub(crate) fn put_together(mut fragments: Vec<Fragment>) -> Vec<Vec<Fragment>> {
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
