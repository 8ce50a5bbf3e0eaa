//! Comparisons of duplicates: those that are to come, the memory that they have, and what they found.
//!
//! Guarantee: no circle of tasks that wait for each other. Memory for comparisons is a pool of its own. A batch that
//! holds some of it waits for drives only. The background task waits for more, and its share always fits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use drives::BLOCK_BYTES;
use meta::Pba;
use reactor::BufferPool;
use serde::{Deserialize, Serialize};

use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::pool::alert_log::Met;
use crate::sync::range_lock::RangeGuard;
use crate::sync::wait::{Event, lock};
use crate::{EngineError, Result};

/// Memory for blocks that are read back: the background's share and six batches at once.
const BUFFER_BYTES: usize = 16 << 20;

/// Comparisons of a pool since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyStatus {
    /// Duplicates that were compared byte by byte.
    pub compared_blocks: u64,
    /// Contents that had the fingerprint of another one, and got blocks of their own.
    pub collisions: u64,
    /// Bytes of acknowledged writes that wait to be compared.
    pub waiting_bytes: u64,
    /// Sub-blocks of acknowledged writes that could not be compared, because a drive, the journal or the
    /// program's end came in between. The log names them; flushes of volumes that compare in the
    /// background fail from then on, until the pool is opened again. (So they do after a write that
    /// failed with the journal before it was compared.)
    pub failed_blocks: u64,
}

/// Consecutive sub-blocks of an acknowledged write.
pub(crate) struct KeptPiece {
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
}

impl KeptPiece {
    pub(crate) fn end(&self) -> u64 {
        self.start + (self.bytes.len() / BLOCK_BYTES) as u64
    }
}

/// Bytes that are to be compared when their write was acknowledged.
pub(crate) struct Kept {
    pub(crate) pieces: Vec<KeptPiece>,
    pub(crate) _room: Room,
}

/// The first sub-block, and how many there are.
fn extent(kept: &[Kept]) -> (u64, u64) {
    let pieces = || kept.iter().flat_map(|kept| &kept.pieces);
    let blocks = pieces().map(|piece| piece.end() - piece.start).sum();
    (pieces().next().map_or(0, |piece| piece.start), blocks)
}

/// A share of the memory for acknowledged writes, and of the pool's free blocks: if all of them collide,
/// each finds room.
pub(crate) struct Room {
    shared: Arc<Shared>,
    blocks: usize,
}

impl Room {
    /// `None` if there is none, or if no task compares in the background.
    pub(crate) fn reserve(shared: &Arc<Shared>, blocks: usize) -> Option<Self> {
        let mut queue = lock(&shared.verify.queue);
        let kept_bytes = queue.kept_bytes + blocks * BLOCK_BYTES;
        if kept_bytes > shared.config.verify_bytes_max || !queue.is_on_duty || queue.is_ending {
            return None;
        }
        queue.kept_bytes = kept_bytes;
        drop(queue);
        let is_promised = shared.state.share().space().promise(blocks as u64);
        let room = Self {
            shared: shared.clone(),
            blocks: if is_promised { blocks } else { 0 },
        };
        if !is_promised {
            shared.verify.release(blocks);
            return None;
        }
        Some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared
            .state
            .share()
            .space()
            .take_promise_back(self.blocks as u64);
        self.shared.verify.release(self.blocks);
    }
}

/// An acknowledged write that is not compared yet. Its range is locked.
pub(crate) struct Pending {
    pub(crate) shared: Arc<Shared>,
    pub(crate) volume: Arc<VolumeCore>,
    pub(crate) kept: Vec<Kept>,
    pub(crate) is_done: Arc<Event>,
    pub(crate) is_compared: bool,
    /// Why it could not be, the last time.
    pub(crate) error: String,
    pub(crate) _guard: Option<RangeGuard>,
}

impl Pending {
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &KeptPiece> {
        self.kept.iter().flat_map(|kept| &kept.pieces)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_compared {
            let (first, blocks) = extent(&self.kept);
            let name = self.volume.name();
            let range = [(first, first + blocks)].into_iter();
            lock(&self.shared.alert_log).volume(Met::Uncompared, &name, range, &self.error);
            let verify = &self.shared.verify;
            verify.failed.fetch_add(blocks, Ordering::Relaxed);
            verify.has_failed.store(true, Ordering::Release);
        }
        self.is_done.set();
    }
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Pending>,
    kept_bytes: usize,
    /// A task takes what is queued.
    is_on_duty: bool,
    /// ... and stops when nothing is left.
    is_ending: bool,
    waker: Option<Waker>,
    /// When this happens, all that is queued now is compared.
    last: Option<Arc<Event>>,
}

/// Comparisons of an engine.
pub(crate) struct Verify {
    pub(crate) buffers: BufferPool,
    queue: Mutex<Queue>,
    pub(crate) compared: AtomicU64,
    collisions: AtomicU64,
    failed: AtomicU64,
    /// Flushes have to say so.
    has_failed: AtomicBool,
}

impl Verify {
    /// # Errors
    /// If there is no address space for its buffers.
    pub(crate) fn new() -> Result<Self> {
        let buffers = BufferPool::new(BUFFER_BYTES).map_err(|error| {
            EngineError::unavailable(format!("memory for comparisons: {error}"))
        })?;
        Ok(Self {
            buffers,
            queue: Mutex::default(),
            compared: AtomicU64::default(),
            collisions: AtomicU64::default(),
            failed: AtomicU64::default(),
            has_failed: AtomicBool::default(),
        })
    }

    pub(crate) fn status(&self) -> VerifyStatus {
        VerifyStatus {
            compared_blocks: self.compared.load(Ordering::Relaxed),
            collisions: self.collisions.load(Ordering::Relaxed),
            waiting_bytes: lock(&self.queue).kept_bytes as u64,
            failed_blocks: self.failed.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn collided(&self, pba: Pba) {
        tracing::warn!(
            drive = pba.drive(),
            block = pba.block(),
            "two contents have the same fingerprint: the new one is stored apart"
        );
        self.collisions.fetch_add(1, Ordering::Relaxed);
    }

    /// Memory of so many blocks is not needed any more.
    fn release(&self, blocks: usize) {
        let waker = {
            let mut queue = lock(&self.queue);
            queue.kept_bytes -= blocks * BLOCK_BYTES;
            // A task that ends waits for the last one.
            if queue.is_ending {
                queue.waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A write that was not compared failed, and the journal may hold its record. After the next opening its
    /// sub-blocks may be mapped to blocks with other contents of the same fingerprint. Until then reads see nothing
    /// of it, and flushes fail.
    pub(crate) fn lost_track(&self, volume: u32, kept: &[Kept]) {
        let (first, blocks) = extent(kept);
        tracing::error!(
            volume,
            byte = first * BLOCK_BYTES as u64,
            blocks,
            "a write failed with the journal before its duplicates were compared; after a restart compare \
             the volume with its copy"
        );
        self.has_failed.store(true, Ordering::Release);
    }

    pub(crate) fn push(&self, pending: Pending) {
        let mut queue = lock(&self.queue);
        if !queue.is_on_duty {
            // The task ended after the room was given: nothing would take this from the queue.
            drop(queue);
            drop(pending);
            return;
        }
        queue.last = Some(pending.is_done.clone());
        queue.pending.push_back(pending);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until everything that is acknowledged now is compared.
    ///
    /// # Errors
    /// If something could not be compared since the pool was opened: it cannot be made right any more,
    /// so nobody is told that it was.
    pub(crate) async fn caught_up(&self) -> Result<()> {
        let last = lock(&self.queue).last.clone();
        if let Some(last) = last {
            last.wait().await;
        }
        if self.has_failed.load(Ordering::Acquire) {
            return Err(EngineError::unavailable(
                "duplicates could not be compared with the blocks that they share (the log names them): restart, and compare \
                 them with a copy",
            ));
        }
        Ok(())
    }

    /// The task that compares stops when nothing is left; writes compare for themselves from now on.
    pub(crate) fn end(&self) {
        let waker = {
            let mut queue = lock(&self.queue);
            queue.is_ending = true;
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next write to compare; `None` when there will be none.
    pub(crate) async fn next(&self) -> Option<Pending> {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if let Some(pending) = queue.pending.pop_front() {
                return Poll::Ready(Some(pending));
            }
            if queue.is_ending && queue.kept_bytes == 0 {
                return Poll::Ready(None);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// For as long as it lives, writes may rely on being compared later. `None`: somebody does it
    /// already.
    pub(crate) fn go_on_duty(&self) -> Option<Duty<'_>> {
        let mut queue = lock(&self.queue);
        if queue.is_on_duty {
            return None;
        }
        queue.is_on_duty = true;
        Some(Duty(self))
    }
}

pub(crate) struct Duty<'a>(&'a Verify);

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        let left = {
            let mut queue = lock(&self.0.queue);
            queue.is_on_duty = false;
            std::mem::take(&mut queue.pending)
        };
        drop(left);
    }
}
