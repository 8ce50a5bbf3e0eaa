//! The drives of a simulated pool: they lose power, single operations on them fail, and blocks decay or cannot
//! be read. A write that fails may be in doubt: it happens later, at the worst moment, unless the drive is fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use drives::{
    BLOCK_BYTES, Drive, DriveError, Extent, FaultDrive, FaultPlan, GatherExtent, LocalBoxFuture,
    Transferred,
};
use reactor::{Buffer, BufferPool};

use crate::sync::wait::lock;

/// A drive of which single operations can be made to fail, and whose blocks decay.
pub(super) struct ShakyDrive {
    inner: FaultDrive,
    /// Operations until one fails; wraps around, that is never, from zero.
    countdown: AtomicU64,
    /// Blocks that decayed, and that nobody has begun to write since.
    decayed: Mutex<BTreeSet<u64>>,
    /// Blocks that cannot be read, and how many times more, if nobody writes them.
    unreadable: Mutex<BTreeMap<u64, u32>>,
    /// Blocks of which a read failed that was made to, of each alone.
    missed: Mutex<BTreeSet<u64>>,
    /// Writes that are in doubt: each comes right after the next write to one of its blocks.
    in_doubt: Mutex<Vec<WriteInDoubt>>,
}

/// Blocks that a failed write may still write, and their bytes.
struct WriteInDoubt {
    extents: Vec<Extent>,
    bytes: Vec<u8>,
}

impl ShakyDrive {
    pub(super) fn new(inner: FaultDrive) -> Arc<Self> {
        Arc::new(Self {
            inner,
            countdown: AtomicU64::new(0),
            decayed: Mutex::default(),
            unreadable: Mutex::default(),
            missed: Mutex::default(),
            in_doubt: Mutex::default(),
        })
    }

    /// The drive when power returns.
    pub(super) fn crash(&self, plan: FaultPlan) -> Arc<Self> {
        Arc::new(Self {
            inner: self.inner.crash(plan),
            countdown: AtomicU64::new(0),
            decayed: Mutex::new(self.decayed()),
            unreadable: Mutex::new(lock(&self.unreadable).clone()),
            missed: Mutex::default(),
            in_doubt: Mutex::default(),
        })
    }

    /// The drive as the next process finds it; as often as one likes.
    pub(super) fn restart(&self, plan: FaultPlan) -> Arc<Self> {
        self.with(self.inner.restart(plan))
    }

    /// A copy of the drive, as somebody makes it who reads it while it is in use.
    pub(super) fn copy(&self) -> Arc<Self> {
        self.with(self.inner.copy(FaultPlan::default()))
    }

    fn with(&self, inner: FaultDrive) -> Arc<Self> {
        Arc::new(Self {
            inner,
            countdown: AtomicU64::new(0),
            decayed: Mutex::new(self.decayed()),
            unreadable: Mutex::new(lock(&self.unreadable).clone()),
            missed: Mutex::default(),
            in_doubt: Mutex::default(),
        })
    }

    /// What is in doubt does not happen any more: the drive is fenced, or opened again.
    pub(super) fn settle(&self) {
        lock(&self.in_doubt).clear();
        self.inner.settle();
    }

    /// A flush that happens at once; false if the power is cut.
    pub(super) fn flush_now(&self) -> bool {
        self.inner.flush_now()
    }

    /// Whether its power was cut.
    pub(super) fn is_off(&self) -> bool {
        self.inner.is_off()
    }

    /// Lets one of the next operations fail; none from zero on.
    pub(super) fn fail_after(&self, operations: u64) {
        self.countdown.store(operations, Ordering::Relaxed);
    }

    /// Blocks that an opening, which asks a second time for each block alone, may take for unreadable.
    pub(super) fn take_missed(&self) -> BTreeSet<u64> {
        std::mem::take(&mut lock(&self.missed))
    }

    /// What is on a block is not what was written there any more.
    pub(super) fn decay(&self, block: u64) {
        self.inner.corrupt(block);
        lock(&self.decayed).insert(block);
    }

    /// Blocks that are certainly damaged.
    pub(super) fn decayed(&self) -> BTreeSet<u64> {
        lock(&self.decayed).clone()
    }

    /// The next reads of a block fail; `u32::MAX`: until it is written.
    pub(super) fn lose(&self, block: u64, reads: u32) {
        lock(&self.unreadable).insert(block, reads);
    }

    /// Whether a read of these blocks fails.
    fn meets_unreadable(&self, extents: &[Extent]) -> bool {
        let mut unreadable = lock(&self.unreadable);
        let mut meets = false;
        for extent in extents {
            let blocks = extent.block..extent.block + u64::from(extent.blocks);
            for (_, left) in unreadable.range_mut(blocks) {
                meets |= *left > 0;
                if *left != u32::MAX {
                    *left = left.saturating_sub(1);
                }
            }
        }
        meets
    }

    fn forget(&self, blocks: impl Iterator<Item = (u64, u64)>) {
        let (mut decayed, mut unreadable) = (lock(&self.decayed), lock(&self.unreadable));
        if decayed.is_empty() && unreadable.is_empty() {
            return;
        }
        for (first, count) in blocks {
            decayed.retain(|block| !(first..first + count).contains(block));
            unreadable.retain(|block, _| !(first..first + count).contains(block));
        }
    }

    /// The outcome of a write that failed is not known from here on.
    fn leave_in_doubt<'a>(
        &self,
        error: DriveError,
        parts: impl Iterator<Item = (Extent, &'a [u8])>,
    ) -> DriveError {
        let mut write = WriteInDoubt {
            extents: Vec::new(),
            bytes: Vec::new(),
        };
        for (extent, buffer) in parts {
            let len = extent.blocks as usize * BLOCK_BYTES;
            write.extents.push(Extent {
                buffer_offset: write.bytes.len(),
                ..extent
            });
            write
                .bytes
                .extend_from_slice(&buffer[extent.buffer_offset..][..len]);
        }
        lock(&self.in_doubt).push(write);
        error.in_doubt()
    }

    /// Blocks were written: what was in doubt of them comes now.
    async fn settle_doubts(&self, pool: &BufferPool, written: impl Iterator<Item = (u64, u32)>) {
        if lock(&self.in_doubt).is_empty() {
            return;
        }
        let written: Vec<_> = written.collect();
        let meets = |write: &mut WriteInDoubt| {
            let mut extents = write.extents.iter();
            extents.any(|e| {
                let overlaps = |(block, blocks): &(u64, u32)| {
                    e.block < block + u64::from(*blocks) && *block < e.block + u64::from(e.blocks)
                };
                written.iter().any(overlaps)
            })
        };
        let coming: Vec<WriteInDoubt> = lock(&self.in_doubt).extract_if(.., meets).collect();
        for write in coming {
            // Where there is no memory, it never comes.
            let Some(mut buffer) = pool.try_alloc(write.bytes.len()) else {
                continue;
            };
            buffer.copy_from_slice(&write.bytes);
            let _ = self.inner.write(buffer, &write.extents).await;
        }
    }

    fn strikes(&self) -> Option<DriveError> {
        let before = self.countdown.fetch_sub(1, Ordering::Relaxed);
        (before == 1).then(|| DriveError::new(drives::ErrorKind::Io, "shaky", "simulated failure"))
    }
}

impl Drive for ShakyDrive {
    fn name(&self) -> &str {
        "shaky"
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let unreadable = || {
            self.meets_unreadable(extents).then(|| {
                DriveError::new(drives::ErrorKind::Io, "shaky", "simulated unreadable block")
            })
        };
        let strikes = self.strikes();
        if let (
            [
                Extent {
                    block, blocks: 1, ..
                },
            ],
            true,
        ) = (extents, strikes.is_some())
        {
            lock(&self.missed).insert(*block);
        }
        match strikes.or_else(unreadable) {
            Some(error) => Box::pin(std::future::ready((Err(error), buffer))),
            None => self.inner.read(buffer, extents),
        }
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        match self.strikes() {
            Some(error) => {
                let parts = extents.iter().map(|extent| (*extent, &buffer[..]));
                let error = self.leave_in_doubt(error, parts);
                Box::pin(std::future::ready((Err(error), buffer)))
            }
            None => Box::pin(async move {
                self.forget(extents.iter().map(|e| (e.block, u64::from(e.blocks))));
                let pool = buffer.pool();
                let written = self.inner.write(buffer, extents).await;
                self.settle_doubts(&pool, extents.iter().map(|e| (e.block, e.blocks)))
                    .await;
                written
            }),
        }
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        match self.strikes() {
            Some(error) => {
                let parts = extents.iter().map(|extent| {
                    let in_buffer = Extent {
                        block: extent.block,
                        buffer_offset: extent.buffer_offset as usize,
                        blocks: extent.blocks,
                    };
                    (in_buffer, &buffers[extent.buffer as usize][..])
                });
                let error = self.leave_in_doubt(error, parts);
                Box::pin(std::future::ready(Err(error)))
            }
            None => Box::pin(async move {
                self.forget(extents.iter().map(|e| (e.block, u64::from(e.blocks))));
                let pool = buffers.first().map(Buffer::pool);
                let written = self.inner.write_many(buffers, extents).await;
                if let Some(pool) = pool {
                    self.settle_doubts(&pool, extents.iter().map(|e| (e.block, e.blocks)))
                        .await;
                }
                written
            }),
        }
    }

    fn fence<'a>(&'a self) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        self.settle();
        Box::pin(std::future::ready(Ok(())))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        match self.strikes() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => self.inner.flush(),
        }
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        count: u64,
    ) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        self.forget(std::iter::once((block, count)));
        self.inner.discard(block, count)
    }
}
