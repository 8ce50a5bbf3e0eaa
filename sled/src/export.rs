//! A drive as a namespace, with the table of the nodes that share it.
//!
//! Guarantees:
//! - Every outcome of the drive becomes a status that says no more than the drive said.
//! - When nobody knows what becomes of something that the drive was told, and it cannot be fenced, the drive serves nobody
//!   any more until it is opened again: what may still happen then meets no newer data.

mod node_table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use drives::{BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent};
use nvme::Status;
use reactor::{Buffer, Guard, lock_whole as lock};

pub use node_table::{Edition, NodeTable};

/// A drive that hosts use.
pub struct Export {
    drive: Arc<dyn Drive>,
    uuid: [u8; 16],
    is_volatile: bool,
    is_new: bool,
    is_in_doubt: AtomicBool,
    nodes: Mutex<NodeTable>,
}

/// What the drive was asked for, for the status of its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read,
    Change,
    Flush,
}

impl Export {
    /// The drive, with the UUID by which hosts know it ([`crate::identity`]).
    #[must_use]
    pub fn new(drive: Arc<dyn Drive>, uuid: [u8; 16]) -> Self {
        Self {
            drive,
            uuid,
            is_volatile: false,
            is_new: false,
            is_in_doubt: AtomicBool::new(false),
            nodes: Mutex::default(),
        }
    }

    /// The same, of a drive that forgets what it holds when this program ends: it is another drive afterwards.
    #[must_use]
    pub fn volatile(self) -> Self {
        Self {
            is_volatile: true,
            ..self
        }
    }

    /// The same, of a drive that was made now: whoever reserved one of that name before does not mean it.
    #[must_use]
    pub fn made(self) -> Self {
        Self {
            is_new: true,
            ..self
        }
    }

    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    /// Its UUID, in the byte order of RFC 4122.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The drive's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.drive.name()
    }

    /// Its logical blocks, of [`BLOCK_BYTES`].
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.drive.blocks()
    }

    /// The table of the nodes that share it.
    pub(crate) fn node_table(&self) -> Guard<MutexGuard<'_, NodeTable>> {
        lock(&self.nodes)
    }

    /// Whether these blocks are all on the drive.
    pub(crate) fn has(&self, block: u64, blocks: u32) -> bool {
        block
            .checked_add(u64::from(blocks))
            .is_some_and(|end| end <= self.blocks())
    }

    /// Reads into the buffer, from its start. The blocks fit it.
    pub(crate) async fn read(
        &self,
        block: u64,
        blocks: u32,
        buffer: Buffer,
    ) -> (Result<(), Status>, Buffer) {
        if let Err(status) = self.check() {
            return (Err(status), buffer);
        }
        let (done, buffer) = self.drive.read(buffer, &[whole(block, blocks)]).await;
        (self.outcome(Asked::Read, done).await, buffer)
    }

    /// Writes what the buffer begins with.
    pub(crate) async fn write(
        &self,
        block: u64,
        blocks: u32,
        buffer: Buffer,
    ) -> Result<(), Status> {
        self.check()?;
        let (done, _buffer) = self.drive.write(buffer, &[whole(block, blocks)]).await;
        self.outcome(Asked::Change, done).await
    }

    /// Makes durable what was completed before.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        self.check()?;
        let done = self.drive.flush().await;
        self.outcome(Asked::Flush, done).await
    }

    /// Gives blocks back.
    pub(crate) async fn discard(&self, block: u64, blocks: u64) -> Result<(), Status> {
        self.check()?;
        let done = self.drive.discard(block, blocks).await;
        self.outcome(Asked::Change, done).await
    }

    fn check(&self) -> Result<(), Status> {
        match self.is_in_doubt.load(Ordering::Acquire) {
            true => Err(Status::NAMESPACE_NOT_READY.with_dnr()),
            false => Ok(()),
        }
    }

    async fn outcome(&self, asked: Asked, done: Result<(), DriveError>) -> Result<(), Status> {
        let Err(error) = done else {
            return Ok(());
        };
        let drive = self.name();
        if error.is_in_doubt() && self.drive.fence().await.is_err() {
            // Before the answer: a host that has it, and goes on, meets a drive that takes nothing.
            if !self.is_in_doubt.swap(true, Ordering::AcqRel) {
                tracing::error!(
                    drive,
                    %error,
                    "nobody knows what becomes of what the drive was told: it serves nobody until this program is \
                     started again"
                );
            }
        } else {
            tracing::warn!(drive, %error, ?asked, "the drive failed");
        }
        Err(status_of(asked, error.kind()))
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export")
            .field("drive", &self.name())
            .finish_non_exhaustive()
    }
}

/// Blocks that lie at the start of a buffer.
fn whole(block: u64, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset: 0,
        blocks,
    }
}

/// Bytes of so many blocks; a command names 65,536 at most.
pub(crate) fn bytes_of(blocks: u32) -> usize {
    blocks as usize * BLOCK_BYTES
}

fn status_of(asked: Asked, kind: ErrorKind) -> Status {
    match (kind, asked) {
        (ErrorKind::NoSpace, _) => Status::CAPACITY_EXCEEDED.with_dnr(),
        // The range was checked, so this is a mistake of this program.
        (ErrorKind::Invalid, _) => Status::INTERNAL.with_dnr(),
        (_, Asked::Read) => Status::UNRECOVERED_READ,
        (_, Asked::Change) => Status::WRITE_FAULT,
        // The kernel tells of lost writes once: no repetition makes them durable.
        (_, Asked::Flush) => Status::WRITE_FAULT.with_dnr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_media_error_and_never_a_missing_feature() {
        for kind in [ErrorKind::Io, ErrorKind::Truncated, ErrorKind::InUse] {
            assert_eq!(status_of(Asked::Read, kind), Status::UNRECOVERED_READ);
            assert_eq!(status_of(Asked::Change, kind), Status::WRITE_FAULT);
            assert!(status_of(Asked::Flush, kind).is_dnr());
        }
        let full = status_of(Asked::Change, ErrorKind::NoSpace);
        assert_eq!(full.code(), Status::CAPACITY_EXCEEDED);
    }
}
