//! Drives that are devices of a vhost-user-blk server on this machine: of SPDK, of QEMU's storage daemon, of any other. This is
//! the protocol's front end, as a virtual machine monitor and the driver of its guest are one.
//!
//! | file | what is in it |
//! |---|---|
//! | `address` | the path of a socket as the path of a drive |
//! | `message`, `control` | the protocol's messages, and the conversation |
//! | `facts` | what the server says of its device, and whether it is the same one as before |
//! | `memory`, `queue` | the memory that is shared, and the split virtqueues in it |
//! | `connection`, `peer` | one connection: how it begins, how it ends, and the process behind it |
//! | `fencing` | connections that have ended while the server may still work |
//! | `shared`, `link` | the drive for all reactors, and for one |
//! | `transfer`, `lent` | blocks by commands, and the buffers that the server uses where they lie |
//!
//! Guarantees, beside those of every [`Drive`]:
//! - All reactors share one connection, which has a queue for each of them as far as the server has so many. What meets a lost
//!   connection ends within [`Limits`]; a read is repeated once on the next one, a write never where the server had it.
//! - At every connection the device is compared with the one that was opened: name, size and block size. Nothing is read from
//!   or written to another one.
//! - A write or discard without an answer is in doubt until [`fence`](Drive::fence) says otherwise; `connection` has the rule.
//! - A completed write that was not flushed when its connection was lost may be lost with the server's cache: every flush
//!   after that fails, until [`forget_losses`] is told that somebody compares the whole drive. A device without
//!   `VIRTIO_BLK_F_FLUSH` writes through (VIRTIO 1.2, section 5.2.5): there a flush has nothing to do.
//! - A server that breaks the rules ends its connection, and nothing else.
//! - Memory is bounded: each queue has [`QUEUE_BUFFER_BYTES`], with 128 commands in flight at most.
//!
//! Data in shared buffers ([`reactor::SharedMemory`]) stay where they are: the server, and the device behind it, read and write
//! them there. It could do so with all of that memory, so that it is to be trusted as this process is. It is told of the memory
//! when a connection begins, so that what is made later is not in it; others' data are copied once, between their buffers and
//! the memory of the queues.
//!
//! While reactors are awake, they look for answers, and the server has to wake nobody. It is kicked once in a turn of a reactor.
//!
//! The words are those of VIRTIO 1.2 (sections 2.7 and 5.2) and of QEMU's docs/interop/vhost-user.rst.
#![deny(unsafe_code)]

mod address;
mod connection;
mod control;
mod facts;
mod fencing;
mod lent;
mod link;
mod memory;
mod message;
#[allow(unsafe_code)]
mod peer;
mod queue;
mod shared;
mod transfer;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use drives::{
    Drive, DriveError, Extent, GatherExtent, LocalBoxFuture, Transferred, check_gather,
    check_range, check_transfer,
};
use reactor::Buffer;

pub use address::{SocketAddress, SocketAddressError};
pub use shared::forget_losses;

use shared::Shared;

/// Bytes of memory that each queue of a drive has at most, for its commands and their data.
pub const QUEUE_BUFFER_BYTES: usize = memory::QUEUE_BYTES_MAX;

/// The times after which something is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a command may take, Flush included. What takes longer ends the connection.
    pub command: Duration,
    /// How long one attempt to connect may take, with all that is asked of the device.
    pub connect: Duration,
    /// How long a transfer tries to get a connection, with pauses in between, before it fails; and how long a fence waits.
    pub patience: Duration,
    /// How long a server may work on commands of a process that has ended. There is no way to ask: an opening waits so
    /// long after the start of this process before it writes.
    pub orphans: Duration,
}

impl Default for Limits {
    /// 30 s for a command, as Linux (`nvme_core.io_timeout`); 5 s to connect; 10 s of patience; 10 s for commands of an
    /// earlier process.
    fn default() -> Self {
        Self {
            command: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            patience: Duration::from_secs(10),
            orphans: Duration::from_secs(10),
        }
    }
}

/// How a [`VhostDrive`] is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse a device with fewer blocks: it is another one.
    pub expected_blocks: Option<u64>,
    /// Queues that are used, if the server has so many: one for each reactor is best.
    pub queues: u16,
    /// Times.
    pub limits: Limits,
}

impl Default for OpenOptions {
    /// A queue for each processor, 16 at most.
    fn default() -> Self {
        let processors = std::thread::available_parallelism();
        Self {
            expected_blocks: None,
            queues: processors.map_or(1, |count| count.get().min(16) as u16),
            limits: Limits::default(),
        }
    }
}

/// What a claim may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The owner never wrote to the device.
    First,
    /// An earlier opening by the owner may have left writes in doubt.
    Again,
}

/// A device of a vhost-user-blk server. Transfers need a reactor on the calling thread.
#[derive(Debug)]
pub struct VhostDrive {
    shared: Arc<Shared>,
}

impl VhostDrive {
    /// Connects, and reads what the device is. It may be read then, and written after [`claim`](Self::claim).
    ///
    /// # Errors
    /// No server answers at the socket within the limit, the socket is open in this process already, or the device can only be
    /// read, is smaller than expected, or is one that a drive cannot be made of.
    pub async fn open(address: SocketAddress, options: OpenOptions) -> Result<Self, DriveError> {
        let expected = options.expected_blocks;
        let shared = Shared::open(address, options).await?;
        let drive = Self { shared };
        drive.check_size(expected)?;
        Ok(drive)
    }

    fn check_size(&self, expected: Option<u64>) -> Result<(), DriveError> {
        let (found, needed) = (self.blocks(), expected.unwrap_or(1));
        if found >= needed {
            return Ok(());
        }
        let text = format!(
            "the device has {found} blocks of 4096 bytes, and should have {needed}: it is another one, or was made smaller; \
             name the right one, or make it as large as it was"
        );
        Err(self.shared.error(drives::ErrorKind::Truncated, text))
    }

    /// Waits, before the first write, until no command of an earlier opening by the same owner can happen any more:
    /// what this process sent is fenced, and what an earlier one sent is given [`Limits::orphans`].
    ///
    /// # Errors
    /// As of [`fence`](Drive::fence).
    pub async fn claim(&self, claim: Claim) -> Result<(), DriveError> {
        self.shared.claim(claim).await
    }
}

impl Drive for VhostDrive {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn blocks(&self) -> u64 {
        self.shared.facts().drive_blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            match check_transfer(self, &buffer, extents) {
                Ok(()) => transfer::read(&self.shared, buffer, extents).await,
                Err(error) => (Err(error), buffer),
            }
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            match check_transfer(self, &buffer, extents) {
                Ok(()) => transfer::write(&self.shared, buffer, extents).await,
                Err(error) => (Err(error), buffer),
            }
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_gather(self, &buffers, extents)?;
            transfer::write_many(&self.shared, buffers, extents).await
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(transfer::flush(&self.shared))
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_range(self, block, blocks)?;
            transfer::discard(&self.shared, block, blocks).await
        })
    }

    fn fence<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(self.shared.fence())
    }
}
