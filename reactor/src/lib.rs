//! One data-plane thread per core: io_uring, timers, mailboxes, buffers.
//!
//! A reactor is a thread that runs many small tasks, one at a time, over one io_uring ring. Tasks need
//! not be `Send`, and share state in `Rc` and `Cell` as long as they stay on their reactor; wakers are
//! `Send + Sync`, so that state shared between reactors can wake tasks of another.
//!
//! Guarantees:
//! - A turn of the loop polls a bounded number of tasks and enters the kernel at most once, so a busy
//!   task delays its neighbours by a bounded number of polls; tasks are polled in the order in which
//!   they were woken.
//! - Waking allocates nothing, and writes to the reactor's eventfd only when the reactor sleeps.
//! - A [`Buffer`] that the kernel reads or writes is owned by the ring until the kernel is done, also
//!   when the future is dropped, and also when the reactor stops.
//! - A task that panics ends alone: whoever waits for it gets [`JoinError::Panicked`].
//! - `unsafe` is confined to `ring/` and `passthrough` (submission and completion), `buffer/` (the mapping), `device` (one ioctl) and
//!   `prefetch`.

mod blocking;
mod buffer;
pub mod device;
mod executor;
pub mod file;
mod join;
pub mod net;
pub mod passthrough;
mod prefetch;
mod ring;
mod shared;
mod slab;
mod source;
pub mod sync;
mod thread;
mod timer;
mod whole;

pub use blocking::{detach, unblock};
pub use buffer::{
    Alloc, BUFFER_ALIGNMENT, Buffer, BufferPool, MAX_BUFFER_BYTES, PoolConfig, PoolStats,
    SharedMemory, SharedPages,
};
pub use executor::{busy_time, others_are_ready};
pub use file::{readable, writable};
pub use join::{JoinError, JoinHandle, RemoteJoin, spawn};
pub use prefetch::{prefetch, prefetch_at};
pub use source::{Source, Watched, watch};
pub use thread::{Config, Handle, ReactorThread, current, run, start};
pub use timer::{Elapsed, Sleep, now, recently, sleep, sleep_until, timeout, yield_now};
pub use whole::{Guard, end_half_changed, lock_whole};
