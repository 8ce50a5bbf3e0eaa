//! What is in flight in a ring, and who waits for it.
//!
//! Guarantees: a transfer owns its file and its buffer until the kernel has answered for every part;
//! short transfers are continued; a file that ends early is an error, not a short result.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Waker};

use super::gather::Gather;
use crate::Buffer;
use crate::file::FileExtent;

/// What O_DIRECT asks of file offsets, at least. A read that stops elsewhere has met the file's end.
const SECTOR_BYTES: u64 = 512;

/// Whoever waits for an operation.
pub(super) enum Waiter {
    /// Not polled yet.
    NotYet,
    Task(Waker),
    /// The future was dropped.
    Gone,
}

impl Waiter {
    pub(super) fn remember(&mut self, cx: &Context<'_>) {
        match self {
            Self::Task(waker) => waker.clone_from(cx.waker()),
            Self::NotYet | Self::Gone => *self = Self::Task(cx.waker().clone()),
        }
    }

    /// The waker, to be woken; `None` also if the future was dropped.
    pub(super) fn take(&mut self) -> Option<Waker> {
        match std::mem::replace(self, Self::NotYet) {
            Self::Task(waker) => Some(waker),
            Self::NotYet => None,
            Self::Gone => {
                *self = Self::Gone;
                None
            }
        }
    }
}

/// A read or write of one buffer, in parts.
pub(super) struct Transfer {
    pub(super) file: Arc<OwnedFd>,
    pub(super) buffer: Buffer,
    pub(super) write: bool,
    /// What each part still has to do.
    pub(super) parts: Vec<FileExtent>,
    /// Parts that the kernel has not answered for.
    pub(super) in_flight: u32,
    pub(super) error: Option<io::Error>,
    pub(super) waiter: Waiter,
}

impl Transfer {
    /// Books the kernel's answer for a part. True if the part has to be submitted again.
    pub(super) fn part_done(&mut self, part: usize, result: i32) -> bool {
        let again = self.advance(part, result);
        if !again {
            self.in_flight -= 1;
        }
        again
    }

    fn advance(&mut self, part: usize, result: i32) -> bool {
        let Ok(done) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return true;
            }
            self.fail(error);
            return false;
        };
        let part = &mut self.parts[part];
        let done = done.min(part.len);
        part.file_offset += done as u64;
        part.buffer_offset += done;
        part.len -= done;
        if part.len == 0 {
            return false;
        }
        let offset = part.file_offset;
        if self.write && done == 0 {
            let text = format!("nothing could be written at byte {offset}");
            self.fail(io::Error::new(io::ErrorKind::WriteZero, text));
            return false;
        }
        if !self.write && (done == 0 || !offset.is_multiple_of(SECTOR_BYTES)) {
            let text = format!("the file ends at byte {offset}, where more was expected");
            self.fail(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            return false;
        }
        true
    }

    /// Keeps the first error: those after it are often its consequences.
    fn fail(&mut self, error: io::Error) {
        self.error.get_or_insert(error);
    }
}

/// An operation with one answer and no buffer.
pub(super) struct Simple {
    /// Kept open for the kernel.
    pub(super) _file: Option<Arc<OwnedFd>>,
    pub(super) result: Option<i32>,
    pub(super) waiter: Waiter,
}

/// A descriptor that is watched: what happened to it since somebody looked.
pub(super) struct Watched {
    /// Kept open for the kernel.
    pub(super) file: Arc<OwnedFd>,
    /// poll(2) events that were reported and not taken.
    pub(super) events: u32,
    pub(super) error: Option<i32>,
    /// Whether the kernel still reports.
    pub(super) armed: bool,
    pub(super) waiter: Waiter,
}

pub(super) enum Operation {
    Watched(Watched),
    Transfer(Transfer),
    Gather(Gather),
    Simple(Simple),
}
