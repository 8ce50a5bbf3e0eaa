//! Block devices, seen as numbered blocks of 4 KiB.
//!
//! Everything above asks for blocks through the [`Drive`] trait and never learns whether a file, a
//! device, memory or a simulated failure stands behind it.
//!
//! Guarantees of every drive:
//! - A transfer that fits neither the drive nor its buffer is refused before anything is moved.
//! - A completed write is seen by every read that begins after it. It survives a power loss only
//!   after a [`flush`](Drive::flush) that began after it has completed; until then each of its blocks
//!   may come back old, new, or mixed of both in sectors of 512 bytes.
//! - Overlapping transfers in flight at the same time are the caller's to avoid.
//! - A write or discard that failed does nothing any more, unless its error is in doubt
//!   ([`DriveError::is_in_doubt`]): until it is fenced ([`Drive::fence`]), it may still happen at any time. Opening a drive
//!   fences what was in doubt before.
//! - The buffer of [`read`](Drive::read) and [`write`](Drive::write) comes back whatever happens. If the future is dropped, the transfer may happen or not.
#![forbid(unsafe_code)]

mod absent;
mod ahead;
mod blocking;
mod bounded;
mod content;
mod error;
mod fault;
mod file;
mod flusher;
mod front;
mod health;
mod memory;
pub mod nodes;
mod passthrough;
mod pieces;
mod replace;
mod users;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use reactor::Buffer;

pub use absent::AbsentDrive;
pub use blocking::BlockingDrive;
pub use bounded::{Answer, BoundedDrive, Bounds, FLUSH_FACTOR, Left, Permission, take_back};
pub use content::{Content, content_of, wipe_signatures};
pub use error::{DriveError, ErrorKind};
pub use fault::{FaultDrive, FaultPlan};
pub use file::{FileDrive, OpenOptions, forget_cached};
pub use front::FrontDrive;
pub use memory::MemoryDrive;
pub use nvme::log::SmartLog;
pub use passthrough::{PassthroughDrive, block_device_of};
pub use pieces::{Part, Piece, pieces, runs_of_many, runs_of_one};
pub use replace::replace_file;

/// Bytes of a block, on every drive.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes that reach a drive whole or not at all, even when power is lost while they are written: what
/// drives of the smallest sector promise.
pub const SECTOR_BYTES: usize = 512;

/// Called once, with the drive's name, when another process has taken a drive over that this one owned. On any thread.
pub type OnTakenOver = Arc<dyn Fn(&str) + Send + Sync>;

/// A run of blocks on the drive, and where they are in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block on the drive.
    pub block: u64,
    /// Bytes from the buffer's start, a multiple of [`BLOCK_BYTES`].
    pub buffer_offset: usize,
    /// How many blocks.
    pub blocks: u32,
}

/// A run of blocks on the drive, and where they are in one of several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherExtent {
    /// The first block on the drive.
    pub block: u64,
    /// Which buffer, counted from 0.
    pub buffer: u32,
    /// Bytes from that buffer's start, a multiple of [`BLOCK_BYTES`].
    pub buffer_offset: u32,
    /// How many blocks.
    pub blocks: u32,
}

impl GatherExtent {
    fn in_buffer(&self) -> Extent {
        Extent {
            block: self.block,
            buffer_offset: self.buffer_offset as usize,
            blocks: self.blocks,
        }
    }
}

/// A future that stays on its thread.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a transfer gives back: its outcome, and the buffer in any case.
pub type Transferred = (Result<(), DriveError>, Buffer);

/// A block device.
pub trait Drive: Send + Sync {
    /// What it is called in messages: a path, mostly.
    fn name(&self) -> &str;

    /// How many blocks it has.
    fn blocks(&self) -> u64;

    /// Reads all extents into the buffer. On an error the buffer's extents hold anything.
    fn read<'a>(&'a self, buffer: Buffer, extents: &'a [Extent])
    -> LocalBoxFuture<'a, Transferred>;

    /// Writes all extents from the buffer, in any order. On an error each block is old, new or mixed.
    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred>;

    /// Writes extents gathered from several buffers, in any order; as [`write`](Drive::write) otherwise.
    /// A drive to which every write is dear joins extents that follow each other both here and on the
    /// drive. Others may read the buffers meanwhile, as another drive does that writes them too: the drive gives up its share
    /// of them before the future is ready; if that is dropped, or its outcome is in doubt, when the transfer ends.
    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>>;

    /// Makes every write that completed before this call survive a power loss.
    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>>;

    /// Writes all extents from the buffer, as [`write`](Drive::write), and flushes: when it has completed, they and every write that
    /// completed before this call survive a power loss, and no block of the extents is there without all of those, whenever power
    /// is lost. A drive that can do so does it in one step.
    fn write_flushing<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = self.flush().await {
                return (Err(error), buffer);
            }
            match self.write(buffer, extents).await {
                (Ok(()), buffer) => (self.flush().await, buffer),
                failed => failed,
            }
        })
    }

    /// Says that nobody needs these blocks: reading them gives anything (zeros, where space is given
    /// back) until they are written again. A drive that cannot give space back succeeds and does
    /// nothing.
    fn discard<'a>(&'a self, block: u64, blocks: u64)
    -> LocalBoxFuture<'a, Result<(), DriveError>>;

    /// Returns when nothing that ended in doubt before this call can happen any more.
    ///
    /// # Errors
    /// The drive cannot tell, as any drive without a way to do so: what is in doubt stays so.
    fn fence<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let text = "it cannot tell what becomes of writes whose outcome nobody knows";
        let error = DriveError::new(ErrorKind::Io, self.name(), text);
        Box::pin(std::future::ready(Err(error)))
    }

    /// What the device tells of its own health: NVMe's SMART / Health Information log page. `None` if what is behind the drive has
    /// none. It may take as long as the device likes, and keeps nobody else waiting. Ask it again only when it has answered.
    ///
    /// # Errors
    /// The device is one that has it, and it could not be asked.
    fn smart_log<'a>(&'a self) -> LocalBoxFuture<'a, Result<Option<SmartLog>, DriveError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// What the device was left with, if somebody else has another part of it; see [`BoundedDrive`].
    fn left(&self) -> Option<Arc<Left>> {
        None
    }

    /// Whether it stands for a drive that could not be opened.
    fn is_absent(&self) -> bool {
        false
    }

    /// Free bytes of the file system that a drive's file is on; `None` for a drive that has all of its room.
    /// Blocks for the time of a system call.
    fn room_bytes(&self) -> Option<u64> {
        None
    }
}

/// Refuses what lies outside the drive or the buffers: what every drive does first.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_gather<D: Drive + ?Sized>(
    drive: &D,
    buffers: &[Buffer],
    extents: &[GatherExtent],
) -> Result<(), DriveError> {
    for extent in extents {
        let Some(buffer) = buffers.get(extent.buffer as usize) else {
            return Err(DriveError::invalid(
                drive.name(),
                format!(
                    "buffer {} is not among the {} given",
                    extent.buffer,
                    buffers.len()
                ),
            ));
        };
        check_transfer(drive, buffer, &[extent.in_buffer()])?;
    }
    Ok(())
}

/// Refuses what lies outside the drive or the buffer: what every drive does first.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_transfer<D: Drive + ?Sized>(
    drive: &D,
    buffer: &Buffer,
    extents: &[Extent],
) -> Result<(), DriveError> {
    for extent in extents {
        check_range(drive, extent.block, u64::from(extent.blocks))?;
        let bytes = extent.blocks as usize * BLOCK_BYTES;
        let end = extent.buffer_offset.checked_add(bytes);
        if !extent.buffer_offset.is_multiple_of(BLOCK_BYTES) || end.is_none_or(|e| e > buffer.len())
        {
            return Err(DriveError::invalid(
                drive.name(),
                format!(
                    "{bytes} bytes at byte {} are not whole blocks of a buffer of {} bytes",
                    extent.buffer_offset,
                    buffer.len()
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses blocks that the drive does not have.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_range<D: Drive + ?Sized>(
    drive: &D,
    block: u64,
    blocks: u64,
) -> Result<(), DriveError> {
    if block
        .checked_add(blocks)
        .is_none_or(|end| end > drive.blocks())
    {
        return Err(DriveError::invalid(
            drive.name(),
            format!(
                "blocks {block} + {blocks} are not among its {} blocks",
                drive.blocks()
            ),
        ));
    }
    Ok(())
}
