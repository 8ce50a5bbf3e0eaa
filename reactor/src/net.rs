//! Readiness of sockets.
//!
//! Guarantees: nothing that happens to a watched socket goes unreported; a report costs no system call
//! of its own, and none is made while nothing happens; the descriptor stays open until the kernel
//! knows that nobody watches it any more.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::executor::{self, Core};
use crate::slab::Key;

/// What happened to a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Reading may give something: data, the end, or an error.
    pub readable: bool,
    /// Writing may take something, or give an error.
    pub writable: bool,
    /// The peer sends no more, or the connection failed: after what is there, reading gives the end or
    /// the error. This is not reported again.
    pub ended: bool,
}

/// A descriptor that this reactor's ring watches as long as this lives. It reports changes, once each
/// (edge-triggered): who learned that a socket is readable reads until there is nothing left, or
/// remembers that there is more.
pub struct Watch {
    core: Rc<Core>,
    key: Key,
}

impl Watch {
    /// Begins to watch; what is ready already is reported too.
    ///
    /// # Errors
    /// If this thread is not a reactor's, or the reactor is stopping.
    pub fn new(fd: &Arc<OwnedFd>) -> io::Result<Self> {
        let core = executor::current()
            .ok_or_else(|| io::Error::other("watching a socket needs a reactor"))?;
        let key = core.ring.borrow_mut().watch(fd.clone())?;
        Ok(Self { core, key })
    }

    /// What happened since the last look; pending if nothing did. One task can wait at a time.
    ///
    /// # Errors
    /// If the descriptor cannot be polled, or the reactor is stopping.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<io::Result<Readiness>> {
        let polled = self.core.ring.borrow_mut().poll_watch(self.key, cx);
        polled.map_ok(|events| {
            let has = |bits: i16| events & bits as u32 != 0;
            let broken = libc::POLLERR | libc::POLLHUP;
            Readiness {
                readable: has(libc::POLLIN | libc::POLLRDHUP | broken),
                writable: has(libc::POLLOUT | broken),
                ended: has(libc::POLLRDHUP | broken),
            }
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let forgotten = self.core.ring.borrow_mut().forget(self.key);
        drop(forgotten);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}
