//! The part of the verbs provider that speaks to the C libraries: their interface, how they are
//! loaded, and owners of what they allocate.
//!
//! All `unsafe` of the provider is here. Guarantees to the code above, which is safe:
//!
//! - What a library allocated is freed once, and after everything that depends on it.
//! - Memory that the device may touch belongs to a [`Rings`], a [`SharedReceives`] or a registration; a
//!   ring lets go of it only after its completion, or after the queue pair is destroyed.
//! - No call blocks for the network: channels are non-blocking.
//! - Everything stays on one thread, but for event channels and for identifiers without a queue pair
//!   ([`LooseId`]): the libraries' calls may be made by any thread.

mod abi;
mod cm;
mod domain;
mod library;
mod memory;
mod receives;
mod rings;
mod sends;
mod shared_receives;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(super) use cm::{CmEvent, CmEventKind, EventChannel, Id, IdKey, LooseId, Parameters};
pub(super) use domain::{
    AsyncEvent, Context, DeviceKey, Devices, Domain, Limits, QueueKey, WorkCompletion,
};
pub(super) use library::Libraries;
pub(super) use rings::{Finished, Rings, RingsConfig};
pub(super) use shared_receives::SharedReceives;

/// The result of a call that gives 0, or -1 and the system's error number.
fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as the borrow lives.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    check(result.min(0))
}
