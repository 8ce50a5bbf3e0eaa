//! A command with its data, on its way from a host.

use std::cell::RefCell;
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

/// The data of a command, as they came from its host.
#[derive(Debug)]
pub struct Fetched {
    /// The data, from the buffer's start.
    pub buffer: Buffer,
    /// The CRC-32C of each block of 4 KiB, where the transport had to compute them anyway: NVMe/TCP with data digests.
    pub checksums: Option<Box<[u32]>>,
}

impl From<Buffer> for Fetched {
    fn from(buffer: Buffer) -> Self {
        Self {
            buffer,
            checksums: None,
        }
    }
}

/// A command as it arrived, with its in-capsule data.
#[derive(Debug)]
pub struct Capsule {
    /// The submission queue entry.
    pub sqe: Sqe,
    /// When it arrived, as exactly as the reactor knew the time then ([`reactor::recently`]).
    pub arrived: Instant,
    pub(crate) data: CapsuleData,
}

impl Capsule {
    /// A command that arrives now.
    pub(crate) fn new(sqe: Sqe, data: CapsuleData) -> Self {
        Self {
            sqe,
            arrived: reactor::recently(),
            data,
        }
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
    Buffer(RefCell<Option<Fetched>>),
    /// In memory of the queue, because no buffer was free; the permit is its share of the bound.
    Kept { bytes: Box<[u8]>, _permit: Permit },
    /// It arrived and is not there: the command fails with this.
    Lost(TransferError),
}
