//! The drive of a lab.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use drives::{
    Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, MemoryDrive, Transferred,
};
use reactor::Buffer;

/// What the writes of a drive pass. While it is closed the drive hangs.
#[derive(Default)]
pub(crate) struct Gate {
    is_closed: AtomicBool,
    is_broken: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    /// Writes that come from here on wait.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// The drive goes on.
    pub(crate) fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("no panic"));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The drive flushes nothing any more.
    pub(crate) fn break_off(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
    }

    async fn passed(&self) {
        std::future::poll_fn(|cx| {
            let mut waiting = self.waiting.lock().expect("no panic");
            match self.is_closed.load(Ordering::SeqCst) {
                false => Poll::Ready(()),
                true => {
                    waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

/// A drive in memory that counts writes, and hangs on demand.
pub(crate) struct CountingDrive {
    pub(crate) memory: MemoryDrive,
    pub(crate) writes: Arc<AtomicUsize>,
    pub(crate) gate: Arc<Gate>,
}

impl Drive for CountingDrive {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        self.memory.read(buffer, extents)
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.gate.passed().await;
            self.memory.write(buffer, extents).await
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.gate.passed().await;
            self.memory.write_many(buffers, extents).await
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async {
            // As for a real one, somebody waits for it, and may end there.
            let mut has_waited = false;
            std::future::poll_fn(|cx| match std::mem::replace(&mut has_waited, true) {
                true => Poll::Ready(()),
                false => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
            if self.gate.is_broken.load(Ordering::SeqCst) {
                return Err(DriveError::new(ErrorKind::Io, self.name(), "it is broken"));
            }
            self.memory.flush().await
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.memory.discard(block, blocks)
    }
}
