//! A drive in memory with a name and, if asked for, limits as a real one has them: so many commands and bytes a second.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drives::{
    BLOCK_BYTES, Drive, DriveError, Extent, GatherExtent, LocalBoxFuture, MemoryDrive, Transferred,
};
use reactor::Buffer;

/// What a drive can do at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) commands_per_second: f64,
    pub(super) bytes_per_second: f64,
}

impl Limit {
    /// How long it is busy with so many extents of so many blocks in all.
    fn time_of(self, extents: usize, blocks: u64) -> Duration {
        let of_commands = extents as f64 / self.commands_per_second;
        let of_bytes = (blocks * BLOCK_BYTES as u64) as f64 / self.bytes_per_second;
        Duration::from_secs_f64(of_commands.max(of_bytes))
    }
}

pub(super) struct LimitedDrive {
    name: &'static str,
    memory: MemoryDrive,
    limit: Option<Limit>,
    /// When all that was asked so far is done.
    busy_until: Mutex<Instant>,
    written_blocks: AtomicU64,
}

impl LimitedDrive {
    /// A drive that has its memory from the start.
    pub(super) fn new(
        name: &'static str,
        blocks: u64,
        limit: Option<Limit>,
    ) -> Result<Self, DriveError> {
        Ok(Self {
            name,
            memory: MemoryDrive::resident(blocks)?,
            limit,
            busy_until: Mutex::new(Instant::now()),
            written_blocks: AtomicU64::new(0),
        })
    }

    /// Bytes that were written so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_blocks.load(Ordering::Relaxed) * BLOCK_BYTES as u64
    }

    /// Waits until the drive has done what it was asked before, and this.
    async fn wait(limit: Limit, busy_until: &Mutex<Instant>, extents: usize, blocks: u64) {
        let end = {
            let mut busy_until = busy_until.lock().unwrap_or_else(PoisonError::into_inner);
            *busy_until = (*busy_until).max(Instant::now()) + limit.time_of(extents, blocks);
            *busy_until
        };
        reactor::sleep_until(end).await;
    }

    /// What the memory does, when the limits allow that it has been done.
    fn limited<'a, T: 'a>(
        &'a self,
        extents: usize,
        blocks: u64,
        done: LocalBoxFuture<'a, T>,
    ) -> LocalBoxFuture<'a, T> {
        let Some(limit) = self.limit else {
            return done;
        };
        Box::pin(async move {
            Self::wait(limit, &self.busy_until, extents, blocks).await;
            done.await
        })
    }

    fn count(&self, blocks: u64) {
        self.written_blocks.fetch_add(blocks, Ordering::Relaxed);
    }
}

fn blocks_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.blocks)).sum()
}

impl Drive for LimitedDrive {
    fn name(&self) -> &str {
        self.name
    }

    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let done = self.memory.read(buffer, extents);
        self.limited(extents.len(), blocks_of(extents), done)
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let blocks = blocks_of(extents);
        self.count(blocks);
        let done = self.memory.write(buffer, extents);
        self.limited(extents.len(), blocks, done)
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let blocks = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        self.count(blocks);
        let done = self.memory.write_many(buffers, extents);
        self.limited(extents.len(), blocks, done)
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.memory.flush()
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.memory.discard(block, blocks)
    }
}
