//! Drives that are namespaces of other NVMe-oF targets: of the Linux kernel's, of SPDK, of an array, of another Onefold.
//!
//! Guarantees, beside those of every [`Drive`]:
//! - A reactor that uses the drive has an association of its own with the target, made when it is first needed and again when it
//!   was lost. What meets a lost association ends within [`Limits`]; a read is repeated once on the next one, a write never
//!   where the target may have done it.
//! - Where this host has keys for the target ([`KeyFolder`]), no connection goes without them: with a key for TLS none is in clear.
//! - At every connection the namespace is compared with the one that was opened: identifiers (UUID, NGUID, EUI-64), size and
//!   LBA format. Nothing is read from or written to another one.
//! - A write or discard without an answer is in doubt until [`fence`](Drive::fence) says otherwise; `fencing` has the rule.
//!   A drive is opened for reading; before the first write [`RemoteDrive::claim`] fences what an earlier process left.
//! - Where the target has reservations, an opening by the owner on another machine is left alone, or shut out for good. It is told by
//!   its next command, or within [`Limits::look`] as long as it reaches the target, and [`OnTakenOver`] is called before anybody
//!   hears of the failure.
//! - A completed write that was not flushed when its association was lost may be lost with the target's cache: every flush
//!   after that fails, until [`forget_losses`] is told that somebody compares the whole drive.
//! - A Flush is sent on every association that wrote since its last one.
//! - Memory is bounded: each reactor has [`LINK_BUFFER_BYTES`] for each drive, and as many commands in flight as the queue has
//!   entries.
//!
//! A read of one run of blocks that fills its buffer goes straight into that. All other data is copied once, between the
//! caller's buffers and those of the association: the host side takes whole buffers, and others may read the caller's meanwhile.
#![forbid(unsafe_code)]

mod address;
mod connect;
mod drained;
mod facts;
mod fencing;
mod keys;
mod link;
mod node;
mod node_table;
mod shared;
#[cfg(test)]
mod simulation;
mod transfer;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use drives::{
    Drive, DriveError, Extent, GatherExtent, LocalBoxFuture, OnTakenOver, SmartLog, Transferred,
    check_gather, check_range, check_transfer, runs_of_many, runs_of_one,
};
use nvme::Nqn;
use reactor::Buffer;
use uuid::Uuid;

pub use address::{RemoteAddress, RemoteAddressError};
pub use drained::Drained;
pub use keys::{KeyFileError, KeyFolder, read_key_file};
pub use link::LINK_BUFFER_BYTES;
pub use node::{
    Holders, Node, NodeOptions, NodeState, SeenPool, SilentSled, Survey, nodes_of, owner_at,
};
pub use node_table::{NodeTable, NodeTableLimits, TableDescription, TableEntry, TableSeen};
pub use shared::forget_losses;

use shared::Shared;

/// The times after which something is given up, and the queue's depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keep Alive Timeout (KATO): a target that has heard nothing for so long ends the association, and so does this side.
    pub keep_alive: Duration,
    /// How long a command may take, Flush included. What takes longer ends its association.
    pub command: Duration,
    /// How long one attempt to connect may take, with all that is asked of the namespace.
    pub connect: Duration,
    /// How long a transfer tries to get an association, with pauses in between, before it fails.
    pub patience: Duration,
    /// How often an owner asks the target whether another opening has taken the namespace.
    pub look: Duration,
    /// Commands in flight on each association (2 to 1024).
    pub depth: u16,
}

impl Default for Limits {
    /// Keep Alive Timeout 4 s, so that what is in doubt can be fenced after 16 s also where there are no reservations; 30 s
    /// for a command, as Linux (`nvme_core.io_timeout`); 5 s to connect; 10 s of patience; a look each second; depth 128.
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(4),
            command: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            patience: Duration::from_secs(10),
            look: Duration::from_secs(1),
            depth: 128,
        }
    }
}

/// How a [`RemoteDrive`] is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// The name that this host has for the target.
    pub host: Nqn,
    /// Where the keys for targets are.
    pub keys: KeyFolder,
    /// Refuse a namespace with fewer blocks: it is another one.
    pub expected_blocks: Option<u64>,
    /// Times and depth.
    pub limits: Limits,
    /// What happens when another opening by the same owner takes the namespace.
    pub on_taken_over: Option<OnTakenOver>,
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("host", &self.host)
            .field("expected_blocks", &self.expected_blocks)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl OpenOptions {
    /// Of a host with that name and those keys, and the limits that are usual.
    #[must_use]
    pub fn new(host: Nqn, keys: KeyFolder) -> Self {
        Self {
            host,
            keys,
            expected_blocks: None,
            limits: Limits::default(),
            on_taken_over: None,
        }
    }
}

/// What a claim may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The owner never wrote to the namespace.
    First,
    /// The same, and the reservation of another owner is taken over.
    Forced,
    /// An earlier opening by the owner may have left writes in doubt. One on another machine may live, and keeps its reservation.
    Again,
    /// The same, and whoever opened it on another machine is shut out.
    Moved,
}

/// A namespace of an NVMe-oF target. Transfers need a reactor on the calling thread.
#[derive(Debug)]
pub struct RemoteDrive {
    shared: Arc<Shared>,
}

impl RemoteDrive {
    /// Connects, and reads what the namespace is. It may be read then, and written after [`claim`](Self::claim).
    ///
    /// # Errors
    /// The target cannot be reached within the limit or does not admit this host, a key for it cannot be used, it has no such subsystem or namespace, the
    /// namespace is open in this process already, is smaller than expected, or has blocks or metadata that a drive cannot have.
    pub async fn open(address: RemoteAddress, options: OpenOptions) -> Result<Self, DriveError> {
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
            "the namespace has {found} blocks of 4096 bytes, and should have {needed}: it is another one, or was made \
             smaller; name the right one, or make it as large as it was"
        );
        Err(DriveError::new(
            drives::ErrorKind::Truncated,
            self.name(),
            text,
        ))
    }

    /// Makes the namespace this owner's, before the first write: fences what an earlier opening by the same owner left
    /// in doubt, and, where the namespace has reservations, takes one (Write Exclusive), so that no other host writes to it.
    /// Where nothing proves that an earlier opening is fenced, this waits until no command of it can happen any more.
    ///
    /// `owner` is the same each time that this owner opens the drive, and no one else's: the pool's UUID.
    ///
    /// # Errors
    /// Another owner holds a reservation, or this owner does on another machine, or the target does not answer.
    pub async fn claim(&self, owner: Uuid, claim: Claim) -> Result<(), DriveError> {
        self.shared.claim(owner, claim).await
    }

    /// Whether a claim ends all that an earlier opening by the owner may still do, wherever that is: the namespace has reservations.
    #[must_use]
    pub fn fences_others(&self) -> bool {
        self.shared.facts().has_reservations
    }

    /// The host on another machine that holds the reservation of the namespace, if one does.
    ///
    /// # Errors
    /// The target does not answer.
    pub async fn holder_elsewhere(&self) -> Result<Option<Uuid>, DriveError> {
        self.shared.holder_elsewhere().await
    }

    /// The reservation stays when nobody has this drive any more, so that no earlier opening may write until the owner's next one.
    pub fn keep_reservation(&self) {
        self.shared.reservation.keep(true);
    }

    /// What [`keep_reservation`](Self::keep_reservation) said holds no more: the owner uses the namespace, and gives its reservation up at
    /// the end, if nothing is in doubt then.
    pub fn may_release_reservation(&self) {
        let state = self.shared.state();
        if state.lost_at.is_none() {
            self.shared.reservation.keep(false);
        }
    }

    /// The namespace's UUID, if it has one.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        self.shared.facts().identity.uuid.map(Uuid::from_bytes)
    }

    /// The name that this host has for the target.
    #[must_use]
    pub fn host(&self) -> &Nqn {
        &self.shared.host
    }
}

impl Drop for RemoteDrive {
    fn drop(&mut self) {
        self.shared.closed.set();
    }
}

impl Drive for RemoteDrive {
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
            if let Err(error) = check_transfer(self, &buffer, extents) {
                return (Err(error), buffer);
            }
            let result = transfer::write(&self.shared, |_| &buffer, runs_of_one(extents)).await;
            (result, buffer)
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_gather(self, &buffers, extents)?;
            transfer::write(&self.shared, |at| &buffers[at], runs_of_many(extents)).await
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(self.shared.flush())
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

    fn smart_log<'a>(&'a self) -> LocalBoxFuture<'a, Result<Option<SmartLog>, DriveError>> {
        Box::pin(transfer::smart_log(&self.shared))
    }
}
