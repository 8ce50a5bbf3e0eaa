//! Drives that are objects in a pool of a Ceph cluster, by RADOS: where a pool lives that is larger than one machine, and that
//! another node may take over.
//!
//! | file | what is in it |
//! |---|---|
//! | `address` | `rados:POOL/NAME` as the path of a drive |
//! | `client` | what a drive needs of a cluster |
//! | `librados` | the same of a real one, by Ceph's library |
//! | `header` | the object that says how large a drive is, and who owned it last |
//! | `options` | how a drive is opened |
//! | `owner` | how a drive is taken, and kept |
//! | `renewer` | a thread that renews a lease |
//! | `node` | a node that owns a drive, or waits for it |
//! | `ending` | what the end of the process waits for |
//! | `shared` | the drive for all reactors |
//! | `transfer` | blocks by operations on objects |
//! | `deferred` | small writes that go along with the journal's: what becomes of each |
//! | `logging` | how they get to the cluster, and to their places |
//!
//! Guarantees, beside those of every [`Drive`]:
//! - A completed write survives what the pool's replication survives. Only of a drive that defers writes
//!   ([`RadosDrive::defer_writes`]) a flush has something to do.
//! - One process writes at a time. Who takes a drive ([`RadosDrive::claim`]) has the cluster refuse all that its last owner may
//!   still send; such an owner is told by its next command, or by the renewal of its lease, and [`OnTakenOver`](drives::OnTakenOver) is called.
//! - A write or discard that got no answer is in doubt until [`fence`](Drive::fence), by which this process shuts its own
//!   earlier client out. Nothing of that happens after anything that is read or written behind the fence.
//! - A drive takes the room of what was written to it and not discarded; what was never written is zeros.
//! - A cluster that is full is told, and not waited for.
//! - Memory is bounded: transfers in flight have 64 MiB together, deferred writes 2 MiB.
//!
//! librados is loaded when the first such drive is opened; nothing of Ceph is linked. From then on the process ends without the
//! destructors of C++, because threads of the library use what these destroy.
#![deny(unsafe_code)]

mod address;
mod client;
mod deferred;
mod ending;
mod header;
#[allow(unsafe_code)]
mod librados;
mod logging;
mod node;
mod options;
mod owner;
mod registry;
mod renewer;
mod seen;
mod shared;
#[cfg(test)]
mod tests;
mod transfer;

use drives::nodes::{Ownership, Process};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use drives::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, Part,
    Transferred, check_gather, check_range, check_transfer, runs_of_many, runs_of_one,
};
use reactor::Buffer;
use uuid::Uuid;

pub use address::{RadosAddress, RadosAddressError};
pub use node::Node;
pub use options::{Claim, Limits, OpenOptions};
pub use registry::{REGISTRY_BYTES_MAX, Registry};

use client::Cluster;
use librados::Ceph;
use shared::{Names, Shared};

/// Waits, for some seconds at most, until the cluster knows of each drive that this process has given up. The end of the process
/// waits for that by itself: this is for who goes on as another program by execve(2), which ends all threads at once.
pub fn wait_until_given_up() {
    ending::wait(ending::WAIT_MAX);
}

/// Called by who is about to end the process with an exit code, as the last step: no exit handler of Ceph's libraries runs, whose
/// threads may be at work yet. The end of the process waits for what has begun to end, as [`wait_until_given_up`] does. For a
/// program that does not call it, the end may be SIGSEGV instead of its code.
pub fn before_exit() {
    librados::before_exit();
}

/// A drive in a Ceph cluster. Transfers need a reactor on the calling thread.
#[derive(Debug)]
pub struct RadosDrive {
    shared: Arc<Shared>,
}

impl RadosDrive {
    /// Connects, and reads what the drive is. It may be read then, and written after [`claim`](Self::claim). A drive that is not
    /// there is made by that, and not before.
    ///
    /// # Errors
    /// librados, the cluster, its pool or the drive is not there or does not accept this user; or the drive is smaller than
    /// expected. Each with the remedy.
    pub async fn open(address: RadosAddress, options: OpenOptions) -> Result<Self, DriveError> {
        let names = Names {
            name: address.to_string(),
            drive: address.name().to_owned(),
            pool: address.pool().to_owned(),
            user: address.user().to_owned(),
        };
        Self::open_in(names, Arc::new(Ceph(address)), options, Process::own()).await
    }

    async fn open_in(
        names: Names,
        cluster: Arc<dyn Cluster>,
        options: OpenOptions,
        process: Process,
    ) -> Result<Self, DriveError> {
        let expected = options.expected_blocks;
        let shared = Shared::open(names, cluster, options, process).await?;
        let (found, needed) = (shared.blocks, expected.unwrap_or(1));
        if found < needed {
            let text = format!(
                "the drive has {found} blocks of 4096 bytes, and should have {needed}: it is another one; name the right one"
            );
            return Err(shared.error(ErrorKind::Truncated, text));
        }
        Ok(Self { shared })
    }

    /// Makes the drive this process's, for the pool `owner`, before the first write: nobody else writes to it from here on.
    /// Waits for the end of the lease of an owner that may be gone; one of this machine that has ended is not waited for.
    ///
    /// # Errors
    /// A living process has it, or the cluster does not do it.
    pub async fn claim(&self, owner: Uuid, claim: Claim) -> Result<(), DriveError> {
        self.shared.claim(owner, claim).await
    }

    /// Who owns it, as this process sees it: a living owner keeps its lease.
    ///
    /// # Errors
    /// The cluster does not say.
    pub async fn owner(&self) -> Result<Ownership, DriveError> {
        self.shared.owner().await
    }

    /// From now on small writes of these blocks are deferred: they are in memory until a flush, or until
    /// [`write_flushing`](Drive::write_flushing), by which they go along. Once.
    pub fn defer_writes(&self, blocks: Range<u64>) {
        self.shared.deferred.begin(blocks);
    }

    /// Whether small writes are deferred.
    #[must_use]
    pub fn defers_writes(&self) -> bool {
        self.shared.deferred.is_begun()
    }

    /// Writes, now or later.
    async fn write_runs(
        &self,
        buffers: &[Buffer],
        runs: impl Iterator<Item = (u64, Part)>,
    ) -> Result<(), DriveError> {
        let runs: Vec<(u64, Part)> = runs.collect();
        if self.shared.deferred.take(buffers, &runs) {
            // Who was taken over must not say that it took a write.
            return self.shared.client().map(drop);
        }
        self.settle(&runs).await?;
        transfer::write(&self.shared, buffers, runs.into_iter()).await
    }

    /// Nothing that was deferred is written over these from here on.
    async fn settle(&self, runs: &[(u64, Part)]) -> Result<(), DriveError> {
        for (at, part) in runs {
            let first = at / BLOCK_BYTES as u64;
            let blocks = first..first + (part.len / BLOCK_BYTES) as u64;
            logging::settle(&self.shared, blocks).await?;
        }
        Ok(())
    }

    /// Whether there was no such drive when it was opened.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.shared.is_new
    }
}

impl Drive for RadosDrive {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn blocks(&self) -> u64 {
        self.shared.blocks
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
            let buffers = std::slice::from_ref(&buffer);
            let result = self.write_runs(buffers, runs_of_one(extents)).await;
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
            self.write_runs(&buffers, runs_of_many(extents)).await
        })
    }

    fn write_flushing<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = check_transfer(self, &buffer, extents) {
                return (Err(error), buffer);
            }
            let runs: Vec<(u64, Part)> = runs_of_one(extents).collect();
            if let Err(error) = self.settle(&runs).await {
                return (Err(error), buffer);
            }
            let buffers = std::slice::from_ref(&buffer);
            let result = logging::log_with(&self.shared, buffers, &runs).await;
            (result, buffer)
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            // Who was taken over must not say any more that something is on stable storage.
            self.shared.client()?;
            logging::log(&self.shared).await
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_range(self, block, blocks)?;
            logging::settle(&self.shared, block..block + blocks).await?;
            transfer::discard(&self.shared, block, blocks).await
        })
    }

    fn fence<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(self.shared.fence())
    }
}
