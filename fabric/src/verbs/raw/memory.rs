//! Memory that a device may reach: registrations, and windows on them for one peer.
//!
//! Guarantees: a registration ends before its memory is freed; pools are registered without remote
//! rights, so a peer reaches only what a window or a registration of its own shows it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use reactor::{Buffer, BufferPool, MAX_BUFFER_BYTES};

use super::abi::*;
use super::domain::Domain;
use super::library::Libraries;
use crate::provider::RemoteRights;

/// What a device needs to find local memory.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) lkey: u32,
    pub(super) mr: *mut ibv_mr,
}

/// A registration.
pub(super) struct Mr {
    raw: NonNull<ibv_mr>,
    libraries: &'static Libraries,
}

impl Mr {
    /// Registers memory for the protection domain.
    ///
    /// # Safety
    /// The memory stays mapped at least as long as the registration, and the domain is not closed
    /// before it ends.
    pub(super) unsafe fn register(
        domain: &Domain,
        start: NonNull<u8>,
        bytes: usize,
        access: i32,
    ) -> io::Result<Self> {
        // SAFETY: the protection domain is open; the caller vouches for the memory.
        let raw = unsafe {
            (domain.libraries().ib.ibv_reg_mr)(domain.pd(), start.as_ptr().cast(), bytes, access)
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            libraries: domain.libraries(),
        })
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the registration is alive and not used after this.
        let code = unsafe { (self.libraries.ib.ibv_dereg_mr)(self.raw.as_ptr()) };
        if code != 0 {
            // The kernel keeps the pages then, so nothing else is ever found at the device's address.
            let error = io::Error::from_raw_os_error(code.abs());
            tracing::error!(%error, "a memory registration could not be ended");
        }
    }
}

/// The registrations of a whole buffer pool.
pub(super) struct PoolRegion {
    /// Registrations of equally long parts, the last one perhaps shorter.
    parts: Vec<Mr>,
    part_bytes: usize,
    start: usize,
    bytes: usize,
    /// Keeps the memory mapped; after the registrations, so that it is dropped after them.
    _pool: BufferPool,
}

impl PoolRegion {
    /// Registers a pool, in parts if the device has a limit. No buffer lies in two parts: buffers are
    /// aligned to their own size and at most [`MAX_BUFFER_BYTES`] long.
    pub(super) fn register(domain: &Domain, pool: BufferPool, part_max: u64) -> io::Result<Self> {
        let (start, bytes) = pool.memory();
        let part_bytes = usize::try_from(part_max)
            .unwrap_or(usize::MAX)
            .min(bytes)
            .max(MAX_BUFFER_BYTES)
            / MAX_BUFFER_BYTES
            * MAX_BUFFER_BYTES;
        let mut access = IBV_ACCESS_LOCAL_WRITE;
        if domain.limits().windows > 0 {
            access |= IBV_ACCESS_MW_BIND;
        }
        let mut parts = Vec::with_capacity(bytes.div_ceil(part_bytes));
        for offset in (0..bytes).step_by(part_bytes) {
            // SAFETY: the offset lies in the pool's mapping, which the pool held below keeps.
            let part = unsafe {
                Mr::register(
                    domain,
                    start.byte_add(offset),
                    part_bytes.min(bytes - offset),
                    access,
                )?
            };
            parts.push(part);
        }
        Ok(Self {
            parts,
            part_bytes,
            start: start.as_ptr() as usize,
            bytes,
            _pool: pool,
        })
    }

    /// Where a buffer is, if it is of this pool.
    pub(super) fn find(&self, buffer: &Buffer) -> Option<Span> {
        let address = buffer.as_ptr() as usize;
        let offset = address
            .checked_sub(self.start)
            .filter(|&o| o < self.bytes)?;
        let mr = self.parts.get(offset / self.part_bytes)?;
        Some(Span {
            address: address as u64,
            lkey: mr.lkey(),
            mr: mr.raw.as_ptr(),
        })
    }
}

/// Memory for small messages that arrive: slots of equal length, in one registration.
pub(super) struct Slab {
    mr: Mr,
    memory: Allocation,
    slot_bytes: usize,
    slots: usize,
    _domain: Rc<Domain>,
}

struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Registrations pin whole pages; a slab begins with one.
const PAGE_BYTES: usize = 4096;

impl Slab {
    pub(super) fn new(domain: &Rc<Domain>, slots: usize, slot_bytes: usize) -> io::Result<Self> {
        // Slots begin at cache lines.
        let slot_bytes = slot_bytes.max(1).next_multiple_of(64);
        let bytes = slots.max(1).checked_mul(slot_bytes);
        let layout = bytes
            .and_then(|bytes| Layout::from_size_align(bytes, PAGE_BYTES).ok())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let memory = Allocation { start, layout };
        // SAFETY: the allocation is freed after the registration, by the order of the fields, and the
        // domain is held.
        let mr = unsafe { Mr::register(domain, start, layout.size(), IBV_ACCESS_LOCAL_WRITE)? };
        Ok(Self {
            mr,
            memory,
            slot_bytes,
            slots,
            _domain: domain.clone(),
        })
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Where a slot is, for the device.
    ///
    /// # Panics
    /// If there is no such slot: numbers come from this ring's own books.
    pub(super) fn span(&self, slot: usize) -> Span {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        Span {
            address: (self.memory.start.as_ptr() as usize + slot * self.slot_bytes) as u64,
            lkey: self.mr.lkey(),
            mr: self.mr.raw.as_ptr(),
        }
    }

    /// Copies the beginning of a slot that the device has filled, as much as both sides have.
    pub(super) fn copy_out(&self, slot: usize, len: usize, into: &mut [u8]) {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let len = len.min(self.slot_bytes).min(into.len());
        // SAFETY: the range lies in the slot, which the device does not write any more because its
        // receive has completed; `into` is memory of its own.
        unsafe {
            let from = self.memory.start.as_ptr().add(slot * self.slot_bytes);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len);
        }
    }
}

/// A window of type 2: shows a part of a registration to the peer of one queue pair, and costs no
/// system call to bind or, for the peer, to invalidate.
pub(super) struct Window {
    raw: NonNull<ibv_mw>,
    dealloc: unsafe extern "C" fn(*mut ibv_mw) -> i32,
    /// The key of its last binding.
    rkey: u32,
    _domain: Rc<Domain>,
}

impl Window {
    pub(super) fn allocate(domain: &Rc<Domain>) -> io::Result<Self> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let ops = domain.context().ops();
        let alloc = ops.alloc_mw.ok_or_else(unsupported)?;
        let dealloc = ops.dealloc_mw.ok_or_else(unsupported)?;
        // SAFETY: the protection domain is open.
        let raw = NonNull::new(unsafe { alloc(domain.pd(), IBV_MW_TYPE_2) })
            .ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the window was just allocated.
        let rkey = unsafe { raw.as_ref().rkey };
        Ok(Self {
            raw,
            dealloc,
            rkey,
            _domain: domain.clone(),
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    /// The key for the next binding: the lowest byte is the user's, and must change.
    pub(super) fn next_key(&mut self) -> u32 {
        self.rkey = (self.rkey & !0xff) | (self.rkey.wrapping_add(1) & 0xff);
        self.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the window is alive and not used after this; freeing it ends the peer's access.
        let code = unsafe { (self.dealloc)(self.raw.as_ptr()) };
        if code != 0 {
            let error = io::Error::from_raw_os_error(code.abs());
            tracing::error!(%error, "a memory window could not be freed");
        }
    }
}

/// The access flags for what a peer may do.
pub(super) fn access_of(rights: RemoteRights) -> i32 {
    match rights {
        RemoteRights::Read => IBV_ACCESS_REMOTE_READ,
        RemoteRights::Write => IBV_ACCESS_REMOTE_WRITE,
    }
}
