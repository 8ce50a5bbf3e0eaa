//! Receives that all accepted queue pairs of a device share (InfiniBand specification, 10.2.9: shared
//! receive queue).
//!
//! A message takes a slot from its arrival until its completion is looked at, not from when its queue
//! pair is ready for one: so the memory that the device may write to does not grow with the hosts.
//! Guarantees:
//!
//! - A slot is given to the device again only after its message was copied out, or thrown away.
//! - How many messages a queue pair may receive is not decided here: [`Rings`](super::Rings) count what
//!   was posted to each, and take no more.
//! - When all slots are taken, the device tells senders that it is not ready, and they try again.

use std::cell::RefCell;
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::abi::*;
use super::domain::{Domain, WorkCompletion};
use super::memory::Slab;
use super::receives::post_slots;
use super::rings::RECEIVE;
use crate::error::VerbsError;

/// Set in the number of a receive that is shared: completions of queue pairs that are gone must not be
/// taken for one.
const SHARED_RECEIVE: u64 = RECEIVE | 1 << 62;

/// A shared receive queue and the slots that messages arrive in.
pub(in crate::verbs) struct SharedReceives {
    raw: NonNull<ibv_srq>,
    slab: Slab,
    /// Slots that the device does not have.
    spare: RefCell<Vec<usize>>,
    domain: Rc<Domain>,
}

impl SharedReceives {
    /// A queue of so many slots, all given to the device; `None` if the device has no such queues. The
    /// completion queues that are made from now on have room for them.
    pub(in crate::verbs) fn create(
        domain: &Rc<Domain>,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Option<Rc<Self>>, VerbsError> {
        let slots = slots.min(domain.limits().shared_receives);
        if slots == 0 || domain.context().ops().post_srq_recv.is_none() {
            return Ok(None);
        }
        let failed = |error: io::Error| {
            VerbsError::failed(domain.name(), "make a shared receive queue", &error)
        };
        let slab = Slab::new(domain, slots, slot_bytes)
            .map_err(|error| domain.registration_error(slots * slot_bytes, &error))?;
        let mut attributes = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            max_wr: u32::try_from(slots).unwrap_or(u32::MAX),
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the protection domain is open, and the attributes are valid for the call.
        let raw =
            unsafe { (domain.libraries().ib.ibv_create_srq)(domain.pd(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(io::Error::last_os_error()))?;
        let shared = Rc::new(Self {
            raw,
            slab,
            spare: RefCell::new((0..slots).rev().collect()),
            domain: domain.clone(),
        });
        shared.refill().map_err(failed)?;
        domain.expect_shared_receives(slots);
        Ok(Some(shared))
    }

    /// Bytes of the longest message.
    pub(in crate::verbs) fn slot_bytes(&self) -> usize {
        self.slab.slot_bytes()
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// Copies the beginning of the message in a slot, as much as there is room for, and takes the slot
    /// back.
    pub(super) fn take(&self, slot: usize, len: usize, into: &mut [u8]) {
        self.slab.copy_out(slot, len, into);
        self.spare.borrow_mut().push(slot);
    }

    /// The shared slot that a completion is about; none if the receive was of a queue pair's own queue.
    pub(super) fn slot_of(work: &WorkCompletion) -> Option<usize> {
        let is_shared = work.id & SHARED_RECEIVE == SHARED_RECEIVE;
        is_shared.then_some((work.id & !SHARED_RECEIVE) as usize)
    }

    /// Takes back the slot of a message whose queue pair is gone, or that is not wanted.
    pub(in crate::verbs) fn throw_away(&self, work: &WorkCompletion) {
        if let Some(slot) = Self::slot_of(work) {
            self.take(slot, 0, &mut []);
        }
    }

    /// Gives the device all slots that it does not have; says how many calls that took.
    ///
    /// # Errors
    /// The device is lost.
    pub(in crate::verbs) fn refill(&self) -> io::Result<u64> {
        let mut spare = self.spare.borrow_mut();
        let post = self.domain.context().ops().post_srq_recv;
        let post = post.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        let mut calls = 0;
        while !spare.is_empty() {
            let all = spare
                .iter()
                .rev()
                .map(|slot| (*slot, self.slab.slot_bytes()));
            let count = post_slots(&self.slab, SHARED_RECEIVE, all, |requests, bad| {
                // SAFETY: the queue is alive; requests and places are valid for the call, which copies
                // them. The slots belong to this queue and are read by nobody until their completion.
                unsafe { post(self.raw(), requests, bad) }
            })?;
            let left = spare.len() - count;
            spare.truncate(left);
            calls += 1;
        }
        Ok(calls)
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: queue pairs of this queue hold it, so none is left; the slots are freed after it.
        let code = unsafe { (self.domain.libraries().ib.ibv_destroy_srq)(self.raw()) };
        if code != 0 {
            let error = io::Error::from_raw_os_error(code.abs());
            tracing::error!(%error, "a shared receive queue could not be destroyed");
        }
    }
}
