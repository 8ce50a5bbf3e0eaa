//! A drive that answers when it is told to.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use drives::{Drive, DriveError, Extent, GatherExtent, LocalBoxFuture, MemoryDrive, Transferred};
use reactor::Buffer;

/// A drive in memory that holds its answers back as long as it is told to.
pub struct SlowDrive {
    inner: MemoryDrive,
    /// It holds reads and writes back.
    pub holds_back: AtomicBool,
    /// It holds flushes back.
    pub holds_flushes: AtomicBool,
    asked: AtomicU64,
    flushes: AtomicU64,
}

impl SlowDrive {
    /// A drive with so many blocks, which answers at once.
    #[must_use]
    pub fn new(blocks: u64) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDrive::new(blocks),
            holds_back: AtomicBool::new(false),
            holds_flushes: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        })
    }

    /// Reads and writes that it was asked for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Flushes that it was asked for.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    async fn answer(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Self::hold(&self.holds_back).await;
    }

    async fn hold(holds_back: &AtomicBool) {
        poll_fn(|cx| {
            if !holds_back.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Drive for SlowDrive {
    fn name(&self) -> &str {
        "slow"
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            self.answer().await;
            self.inner.read(buffer, extents).await
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            self.answer().await;
            self.inner.write(buffer, extents).await
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            self.answer().await;
            self.inner.write_many(buffers, extents).await
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            Self::hold(&self.holds_flushes).await;
            self.inner.flush().await
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.inner.discard(block, blocks)
    }
}
