//! Buffers for data on its way between network and drives.
//!
//! Guarantees: a pool never uses more than the bytes it was given; a [`Buffer`] is aligned to
//! [`BUFFER_ALIGNMENT`], owned by one holder at a time, and goes back to its pool when dropped; who
//! finds the pool empty waits in line, first come, first served, so that a large request is not
//! starved by small ones. A pool needs no reactor and no ring: any executor can wait for buffers. A
//! reactor registers its own pool with its ring, and I/O from that pool skips the pinning of pages.

mod arena;
mod buddy;
mod shared;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use arena::{ARENA_ALIGNMENT, Arena};
use buddy::{Buddy, ORDERS};

pub use shared::{SharedMemory, SharedPages};

/// Every buffer begins at a multiple of this: what O_DIRECT asks for at most.
pub const BUFFER_ALIGNMENT: usize = 4096;
/// The largest buffer: one huge page.
pub const MAX_BUFFER_BYTES: usize = 2 * 1024 * 1024;

/// How large a pool is.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes of all buffers together, rounded up to a multiple of [`MAX_BUFFER_BYTES`]. The system's
    /// memory is taken when a buffer is first used; all at once if the pool is registered with a
    /// ring.
    pub bytes: usize,
}

impl Default for PoolConfig {
    /// 64 MiB: 16,384 blocks of 4 KiB on their way.
    fn default() -> Self {
        Self {
            bytes: 64 * 1024 * 1024,
        }
    }
}

/// Figures of a pool, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of all buffers together.
    pub total_bytes: usize,
    /// Bytes that nobody holds (buffers are rounded up to a power of two, at least 4 KiB).
    pub free_bytes: usize,
    /// Requests in line for a buffer.
    pub waiting: usize,
    /// How often a request had to wait since the pool was made.
    pub waits_total: u64,
}

/// A bounded set of buffers in one mapping. Clones are the same pool.
#[derive(Clone)]
pub struct BufferPool(Arc<Pool>);

struct Pool {
    arena: Arena,
    state: Mutex<State>,
}

struct State {
    buddy: Buddy,
    /// Requests in line, by ticket: the lowest has waited longest.
    waiting: BTreeMap<u64, Waiter>,
    /// Pages given to requests that have not been polled since.
    granted: BTreeMap<u64, u32>,
    next_ticket: u64,
    waits_total: u64,
}

struct Waiter {
    order: usize,
    waker: Waker,
}

impl BufferPool {
    /// A pool of `bytes`, rounded up to a multiple of [`MAX_BUFFER_BYTES`] (and to one at least).
    ///
    /// # Errors
    /// If the system cannot map that much address space.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, None)
    }

    /// The same in shared memory, of which it takes the next part.
    ///
    /// # Errors
    /// As of [`new`](Self::new), and if there is not so much left of the shared memory.
    pub fn in_shared(bytes: usize, memory: &SharedMemory) -> io::Result<Self> {
        Self::with(bytes, Some(memory))
    }

    fn with(bytes: usize, shared: Option<&SharedMemory>) -> io::Result<Self> {
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(ARENA_ALIGNMENT)
            .filter(|&rounded| rounded / BUFFER_ALIGNMENT < u32::MAX as usize)
            .ok_or_else(|| {
                let text = format!("a buffer pool of {bytes} bytes is too large; make it smaller");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
        let arena = Arena::new(rounded, shared).map_err(|error| {
            let text = format!(
                "cannot map a buffer pool of {rounded} bytes: {error}; make the pool smaller or \
                 raise the limit on address space (ulimit -v)"
            );
            io::Error::new(error.kind(), text)
        })?;
        let state = State {
            buddy: Buddy::new((rounded / BUFFER_ALIGNMENT) as u32),
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
            next_ticket: 0,
            waits_total: 0,
        };
        Ok(Self(Arc::new(Pool {
            arena,
            state: Mutex::new(state),
        })))
    }

    /// Waits for a buffer of `len` bytes. Its content is whatever its last user left.
    ///
    /// Who holds buffers while waiting for more can wait for itself: take the largest first, or all
    /// at once.
    ///
    /// # Panics
    /// If `len` is greater than [`MAX_BUFFER_BYTES`]: callers split their transfers.
    pub fn alloc(&self, len: usize) -> Alloc {
        Alloc {
            pool: self.0.clone(),
            len,
            order: order_of(len),
            ticket: None,
        }
    }

    /// As [`alloc`](Self::alloc), filled with zeros.
    pub async fn alloc_zeroed(&self, len: usize) -> Buffer {
        let mut buffer = self.alloc(len).await;
        buffer.fill(0);
        buffer
    }

    /// A buffer of `len` bytes if one is free now and nobody waits; `None` also for more than
    /// [`MAX_BUFFER_BYTES`]. Its content is whatever its last user left.
    pub fn try_alloc(&self, len: usize) -> Option<Buffer> {
        if len > MAX_BUFFER_BYTES {
            return None;
        }
        let order = order_of(len);
        let page = self.0.lock().take_if_first(order)?;
        Some(Buffer::new(self.0.clone(), page, order, len))
    }

    /// Its figures now.
    pub fn stats(&self) -> PoolStats {
        let state = self.0.lock();
        PoolStats {
            total_bytes: self.0.arena.bytes(),
            free_bytes: state.buddy.free_pages() as usize * BUFFER_ALIGNMENT,
            waiting: state.waiting.len(),
            waits_total: state.waits_total,
        }
    }

    /// Address and length of the whole mapping, for registration with a ring or a device. Whoever
    /// registers it holds the pool until the registration has ended.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.0.arena.base(), self.0.arena.bytes())
    }

    /// Where `buffer` begins in the mapping, if it is of this pool.
    pub(crate) fn offset_of(&self, buffer: &Buffer) -> Option<usize> {
        Arc::ptr_eq(&self.0, &buffer.pool).then(|| buffer.page as usize * BUFFER_ALIGNMENT)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferPool").field(&self.stats()).finish()
    }
}

fn order_of(len: usize) -> usize {
    assert!(
        len <= MAX_BUFFER_BYTES,
        "a buffer of {len} bytes is larger than {MAX_BUFFER_BYTES}"
    );
    len.div_ceil(BUFFER_ALIGNMENT)
        .max(1)
        .next_power_of_two()
        .trailing_zeros() as usize
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The sections below panic only when the pool's own books are wrong, and `give` checks that
        // before it changes anything: going on is right.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, page: u32, order: usize) {
        let mut wakers = Wakers::default();
        {
            let mut state = self.lock();
            state.buddy.give(page, order);
            state.grant(&mut wakers);
        }
        wakers.wake();
    }
}

/// Wakers to be woken after the lock is gone; room for the usual one without an allocation.
#[derive(Default)]
struct Wakers {
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl Wakers {
    fn push(&mut self, waker: Waker) {
        if self.first.is_none() {
            self.first = Some(waker);
        } else {
            self.others.push(waker);
        }
    }

    fn wake(self) {
        self.first
            .into_iter()
            .chain(self.others)
            .for_each(Waker::wake);
    }
}

impl State {
    fn take_if_first(&mut self, order: usize) -> Option<u32> {
        if self.waiting.is_empty() {
            self.buddy.take(order)
        } else {
            None
        }
    }

    /// Serves the line from its head, and stops at the first that cannot be served.
    fn grant(&mut self, wakers: &mut Wakers) {
        while let Some(first) = self.waiting.first_entry() {
            let Some(page) = self.buddy.take(first.get().order) else {
                break;
            };
            let (ticket, waiter) = first.remove_entry();
            self.granted.insert(ticket, page);
            wakers.push(waiter.waker);
        }
    }
}

/// A request for a buffer. Its place in the line is taken at the first poll, and given up on drop.
#[must_use = "futures do nothing unless polled"]
pub struct Alloc {
    pool: Arc<Pool>,
    len: usize,
    order: usize,
    ticket: Option<u64>,
}

impl Future for Alloc {
    type Output = Buffer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Buffer> {
        let this = &mut *self;
        let mut state = this.pool.lock();
        let page = match this.ticket {
            None => match state.take_if_first(this.order) {
                Some(page) => page,
                None => {
                    let ticket = state.next_ticket;
                    state.next_ticket += 1;
                    state.waits_total += 1;
                    let waiter = Waiter {
                        order: this.order,
                        waker: cx.waker().clone(),
                    };
                    state.waiting.insert(ticket, waiter);
                    this.ticket = Some(ticket);
                    return Poll::Pending;
                }
            },
            Some(ticket) => match state.granted.remove(&ticket) {
                Some(page) => {
                    this.ticket = None;
                    page
                }
                None => {
                    if let Some(waiter) = state.waiting.get_mut(&ticket) {
                        waiter.waker.clone_from(cx.waker());
                    }
                    return Poll::Pending;
                }
            },
        };
        drop(state);
        Poll::Ready(Buffer::new(this.pool.clone(), page, this.order, this.len))
    }
}

impl Drop for Alloc {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut wakers = Wakers::default();
        {
            let mut state = self.pool.lock();
            state.waiting.remove(&ticket);
            if let Some(page) = state.granted.remove(&ticket) {
                state.buddy.give(page, self.order);
            }
            // The one that left may have been what held the others up.
            state.grant(&mut wakers);
        }
        wakers.wake();
    }
}

impl fmt::Debug for Alloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alloc({} bytes)", self.len)
    }
}

/// Bytes of a pool, owned. Dereferences to a slice of as many bytes as were asked for, aligned to
/// [`BUFFER_ALIGNMENT`]; goes back to its pool when dropped.
pub struct Buffer {
    pool: Arc<Pool>,
    page: u32,
    /// Or [`NO_PAGES`].
    order: u8,
    len: u32,
}

/// The order of a buffer that is about to be dropped, and whose pages another one has.
const NO_PAGES: u8 = u8::MAX;

impl Buffer {
    fn new(pool: Arc<Pool>, page: u32, order: usize, len: usize) -> Self {
        Self {
            pool,
            page,
            order: order as u8,
            len: len as u32,
        }
    }

    /// The pool that it goes back to.
    pub fn pool(&self) -> BufferPool {
        BufferPool(self.pool.clone())
    }

    /// The shared memory that it is in, and where it begins there, in bytes; nothing if it is this process's own.
    pub fn shared_place(&self) -> Option<(&SharedMemory, u64)> {
        let (memory, at) = self.pool.arena.shared()?;
        Some((memory, at + u64::from(self.page) * BUFFER_ALIGNMENT as u64))
    }

    /// Bytes that can be used without another buffer: the power of two that was allocated.
    pub fn capacity(&self) -> usize {
        BUFFER_ALIGNMENT << self.order
    }

    /// Changes the length. Bytes that come into view are whatever their last user left.
    ///
    /// # Panics
    /// If `len` is greater than [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes do not fit into {}",
            self.capacity()
        );
        self.len = len as u32;
    }

    /// Cuts it into buffers of `part_bytes`, which lie one behind the other: different holders can fill them, and
    /// [`join`](Self::join) makes one of them again. Their lengths add up to its own, those beyond it are empty. A
    /// buffer that is not longer than a part stays whole.
    ///
    /// # Panics
    /// If `part_bytes` is no power of two, or less than [`BUFFER_ALIGNMENT`].
    pub fn split(mut self, part_bytes: usize) -> Vec<Self> {
        assert!(
            part_bytes.is_power_of_two() && part_bytes >= BUFFER_ALIGNMENT,
            "a part is a range of pages that a pool could hand out"
        );
        if part_bytes >= self.capacity() {
            return vec![self];
        }
        let (order, part) = (usize::from(self.order), order_of(part_bytes));
        self.pool.lock().buddy.split(self.page, order, part);
        let (pool, first, len) = (self.pool.clone(), self.page, self.len as usize);
        let part_len = |index: usize| len.saturating_sub(index * part_bytes).min(part_bytes);
        self.order = part as u8;
        self.len = part_len(0) as u32;
        let others = (1..1_usize << (order - part)).map(|index| {
            let page = first + ((index << part) as u32);
            Self::new(pool.clone(), page, part, part_len(index))
        });
        let mut parts = Vec::with_capacity(1 << (order - part));
        parts.extend(std::iter::once(self).chain(others));
        parts
    }

    /// Makes one buffer of all the parts that [`split`](Self::split) gave, in their order.
    ///
    /// # Errors
    /// Returns the parts if they are anything else.
    pub fn join(mut parts: Vec<Self>) -> Result<Self, Vec<Self>> {
        let count = parts.len();
        let Some(first) = parts.first() else {
            return Err(parts);
        };
        let (page, part) = (first.page, usize::from(first.order));
        let order = part + count.ilog2() as usize;
        let follows = |(index, other): (usize, &Self)| {
            Arc::ptr_eq(&other.pool, &first.pool)
                && usize::from(other.order) == part
                && other.page == page + ((index << part) as u32)
        };
        if !count.is_power_of_two()
            || order >= ORDERS
            || !page.is_multiple_of(1 << order)
            || !parts.iter().enumerate().all(follows)
        {
            return Err(parts);
        }
        let others = parts.split_off(1);
        let Some(mut whole) = parts.pop() else {
            return Err(others);
        };
        whole.pool.lock().buddy.join(page, order, part);
        whole.order = order as u8;
        for other in others {
            whole.len += other.len;
            other.leave_pages();
        }
        Ok(whole)
    }

    /// Its pages are another buffer's from here on.
    fn leave_pages(mut self) {
        self.order = NO_PAGES;
    }

    /// The first byte, also of an empty buffer.
    fn start(&self) -> NonNull<u8> {
        // SAFETY: the buddy allocator hands out pages of this arena only.
        unsafe {
            self.pool
                .arena
                .base()
                .byte_add(self.page as usize * BUFFER_ALIGNMENT)
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the arena, which `pool` keeps alive and which the kernel has
        // initialised with zeros. The buddy allocator gave it to this buffer alone, so no one writes
        // to it while this borrow lives; the kernel writes only to buffers that a ring owns.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is exclusive because that of the buffer is.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.order != NO_PAGES {
            self.pool.give(self.page, usize::from(self.order));
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}
