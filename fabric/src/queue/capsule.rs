//! A command with its data, on its way from a host.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nvme::{Sqe, Status};
use reactor::Buffer;

use crate::memory::{FabricMemory, Permit};

/// Why data of a command could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot fetch the data of a command: {message}")]
pub struct TransferError {
    /// What to complete the command with.
    pub status: Status,
    /// What went wrong.
    pub message: &'static str,
}

impl TransferError {
    pub(crate) const GONE: Self = Self {
        status: Status::DATA_TRANSFER_ERROR,
        message: "the connection ended before the data came",
    };

    pub(crate) fn new(status: Status, message: &'static str) -> Self {
        Self { status, message }
    }
}

/// A command as it arrived, with its in-capsule data.
#[derive(Debug)]
pub struct Capsule {
    /// The submission queue entry.
    pub sqe: Sqe,
    /// When it arrived, if somebody wanted to know ([`ArrivalTimes`]).
    pub arrived: Option<Instant>,
    pub(crate) data: CapsuleData,
}

impl Capsule {
    /// A command that arrives now.
    pub(crate) fn new(sqe: Sqe, data: CapsuleData) -> Self {
        let is_wanted = TIMES_WANTED.load(Ordering::Relaxed) > 0;
        Self {
            sqe,
            arrived: is_wanted.then(Instant::now),
            data,
        }
    }
}

/// How many want to know when commands arrive.
static TIMES_WANTED: AtomicUsize = AtomicUsize::new(0);

/// As long as there is one of these, commands of all queues of the process note when they arrive.
#[derive(Debug)]
pub struct ArrivalTimes(());

impl ArrivalTimes {
    /// Somebody wants to know it.
    #[must_use]
    pub fn wanted() -> Self {
        TIMES_WANTED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for ArrivalTimes {
    fn drop(&mut self) {
        TIMES_WANTED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the data of a capsule is.
#[derive(Debug)]
pub(crate) enum CapsuleData {
    /// It has none.
    None,
    /// Behind the queue entry in a posted receive, up to `len` bytes of it.
    Received { memory: FabricMemory, len: usize },
    /// In a buffer of its own, which whoever fetches the data takes out.
    Buffer(RefCell<Option<Buffer>>),
    /// In memory of the queue, because no buffer was free; the permit is its share of the bound.
    Kept { bytes: Box<[u8]>, _permit: Permit },
    /// It arrived and is not there: the command fails with this.
    Lost(TransferError),
}
