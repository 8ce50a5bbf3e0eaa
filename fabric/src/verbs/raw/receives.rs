//! Receives as the device is given them: slots of a slab, many in one call.

use std::io;
use std::ptr;

use super::abi::*;
use super::memory::Slab;
use super::rings::{POST_BATCH, chain, result};

/// Gives the device the first of these receives (a slot, and how many bytes of it), as many as go into one
/// call; says how many. Each has the number of its slot, with `tag` set. `post` is the call: it gets the
/// first request and a place for one that is refused, both valid as long as it takes.
pub(super) fn post_slots(
    slab: &Slab,
    tag: u64,
    receives: impl Iterator<Item = (usize, usize)>,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> io::Result<usize> {
    let mut places = [ibv_sge::default(); POST_BATCH];
    let mut requests = [ibv_recv_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 1,
    }; POST_BATCH];
    let mut count = 0;
    for ((place, request), (slot, bytes)) in places.iter_mut().zip(&mut requests).zip(receives) {
        let span = slab.span(slot);
        *place = ibv_sge {
            addr: span.address,
            length: bytes.min(slab.slot_bytes()) as u32,
            lkey: span.lkey,
        };
        request.wr_id = tag | slot as u64;
        request.sg_list = place;
        count += 1;
    }
    if count > 0 {
        chain(&mut requests[..count], |request, next| request.next = next);
        let mut bad = ptr::null_mut();
        result(post(requests.as_mut_ptr(), &raw mut bad))?;
    }
    Ok(count)
}
