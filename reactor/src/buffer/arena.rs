//! One long stretch of memory: anonymous, on huge pages where the system gives them, or a part of shared memory.
//!
//! Guarantees: aligned to [`ARENA_ALIGNMENT`]; zeroed by the kernel before its first use, so reading
//! it is never undefined; at the same address until dropped. The `unsafe` here is the mapping itself.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

use super::shared::SharedMemory;

/// A huge page of x86-64 and of aarch64 with 4 KiB pages.
pub(crate) const ARENA_ALIGNMENT: usize = 2 * 1024 * 1024;

pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    /// What it is a part of, and where that begins.
    shared: Option<(SharedMemory, u64)>,
}

// SAFETY: the arena only gives out its address. Who may touch which bytes is decided by the pool
// above it, which hands out disjoint ranges.
unsafe impl Send for Arena {}
// SAFETY: as above; no method writes through the pointer.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes`, a multiple of [`ARENA_ALIGNMENT`] greater than zero. Memory is taken from the
    /// system when it is first touched, or is the next part of shared memory.
    pub(crate) fn new(bytes: usize, shared: Option<&SharedMemory>) -> io::Result<Self> {
        assert!(
            bytes > 0 && bytes.is_multiple_of(ARENA_ALIGNMENT),
            "the pool rounds up"
        );
        let mapped = bytes
            .checked_add(ARENA_ALIGNMENT)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "too large to map"))?;
        let part = match shared {
            Some(memory) => Some((memory.clone(), memory.take(bytes)?)),
            None => None,
        };
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let head = start.align_offset(ARENA_ALIGNMENT);
        let tail = ARENA_ALIGNMENT - head;
        // SAFETY: head < ARENA_ALIGNMENT, so all three ranges lie in the mapping made above, and
        // nobody uses the two that are given back, or the third, which the shared memory replaces; the part of that is within
        // its file, whose length never changes.
        let base = unsafe {
            let base = start.byte_add(head);
            if head > 0 {
                libc::munmap(start, head);
            }
            if tail > 0 {
                libc::munmap(base.byte_add(bytes), tail);
            }
            if let Some((memory, at)) = &part {
                let shared = libc::mmap(
                    base,
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    memory.file().as_raw_fd(),
                    *at as libc::off_t,
                );
                if shared == libc::MAP_FAILED {
                    let error = io::Error::last_os_error();
                    libc::munmap(base, bytes);
                    return Err(error);
                }
            }
            // Both are hints: without huge pages the arena is merely slower, and a child that copies
            // it wastes memory only.
            libc::madvise(base, bytes, libc::MADV_HUGEPAGE);
            libc::madvise(base, bytes, libc::MADV_DONTFORK);
            base
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            base,
            bytes,
            shared: part,
        })
    }

    /// The shared memory that it is a part of, and where that begins.
    pub(crate) fn shared(&self) -> Option<(&SharedMemory, u64)> {
        let (memory, at) = self.shared.as_ref()?;
        Some((memory, *at))
    }

    /// The first byte's address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped by `new`, and every buffer keeps the arena alive.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.bytes);
        }
    }
}
