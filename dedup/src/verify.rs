//! Making sure of duplicates: the bytes of what a fingerprint found.
//!
//! What a volume's [`VerifyPolicy`] promises, should two contents ever have the same fingerprint:
//! * `trust`: nothing. The key is secret, and 2^-53 is the chance of an accident in a pool of 1 PiB.
//! * `compare`: both stay right, always. The block is read from its drive while the batch writes its new
//!   ones, and a write is acknowledged when all its duplicates are equal byte by byte. Content that
//!   differs, or whose twin cannot be read or is damaged, gets a block of its own, which is the one that
//!   is found from then on.
//! * `background`: both stay right in all that anybody can read and that was flushed. A write is
//!   acknowledged at once; its range stays locked and the bytes that found a twin stay in memory until
//!   they are written again in the way of `compare`: reads and changes of the range, flushes and writes
//!   with FUA wait for that. A crash before may leave a colliding write with its twin's content, at most
//!   [`crate::EngineConfig::verify_bytes_max`] of unflushed writes; a write that failed with the journal
//!   may be among them, so flushes vouch for nothing from then on. When that memory is in use, or
//!   background maintenance does not run, a write compares before it is acknowledged.
//!
//! Two contents of one batch are compared in memory, under `compare` and `background`. A content that
//! another batch is writing is waited for, as always, and then compared.
//!
//! Nobody waits in a circle: memory for comparisons is a pool of its own, and who holds some of it waits
//! for drives only, but for the one that compares in the background, whose share always fits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use drives::BLOCK_BYTES;
use meta::{Pba, VerifyPolicy};
use reactor::{Buffer, BufferPool};
use serde::{Deserialize, Serialize};

use crate::blocks::read_blocks;
use crate::engine::Shared;
use crate::fingerprint;
use crate::lane::{BATCH_BLOCKS, Command};
use crate::range_lock::RangeGuard;
use crate::told::Met;
use crate::trouble::Action;
use crate::volume::VolumeCore;
use crate::wait::{Event, lock};
use crate::write::{Batch, Crc, Item, Progress};
use crate::{EngineError, ErrorKind, MAX_COMMAND_BYTES, Result};

/// Memory for blocks that are read back: the background's share and six batches at once.
const BUFFER_BYTES: usize = 16 << 20;

/// How often an acknowledged write is tried to be compared: a drive may fail once.
const ATTEMPTS: u32 = 3;

// What one batch reads back fits one buffer.
const _: () = assert!(BATCH_BLOCKS * BLOCK_BYTES <= reactor::MAX_BUFFER_BYTES);
const _: () = assert!(MAX_COMMAND_BYTES + 2 * BLOCK_BYTES <= reactor::MAX_BUFFER_BYTES);

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

/// What is left to do before the block of an item is known to hold its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing.
    #[default]
    Done,
    /// Compare with what the drive holds.
    Stored,
    /// Compare with that other item of the batch, whose block it shares.
    Within(u32),
    /// It differs from what is found by its fingerprint: it needs a block of its own.
    Distinct,
}

/// A block that was found by its fingerprint, and who wants it.
pub(crate) struct Candidate {
    item: u32,
    pba: Pba,
}

/// What the drives hold at the candidates, one block after the other.
pub(crate) struct Found {
    buf: Buffer,
    /// Places that could not be read.
    unreadable: Vec<usize>,
}

/// Reads candidates from their drives. A drive that fails only makes them unusable.
pub(crate) async fn read(shared: &Shared, candidates: &[Candidate]) -> Found {
    let mut buf = shared
        .verify
        .buffers
        .alloc(candidates.len() * BLOCK_BYTES)
        .await;
    let mut unreadable = Vec::new();
    for (at, drive) in shared.drives.iter().enumerate() {
        let places: Vec<usize> = (0..candidates.len())
            .filter(|place| usize::from(candidates[*place].pba.drive()) == at)
            .collect();
        let blocks: Vec<(Pba, usize)> = places
            .iter()
            .map(|place| (candidates[*place].pba, place * BLOCK_BYTES))
            .collect();
        if blocks.is_empty() {
            continue;
        }
        let (failed, back) = read_blocks(&**drive, buf, &blocks).await;
        buf = back;
        if let Some(failed) = failed {
            if failed.is_medium() {
                let mut state = lock(&shared.state);
                for place in &failed.places {
                    shared.found_damage(&mut state, blocks[*place].0);
                }
            }
            // Its content is stored again.
            shared.drive_failed(&**drive, Action::Read, &failed.error);
            unreadable.extend(failed.places.into_iter().map(|at| places[at]));
        }
    }
    Found { buf, unreadable }
}

impl Batch {
    /// Compares items that share the new block of another item of the batch.
    pub(crate) fn compare_within(&mut self) {
        for at in 0..self.items.len() {
            if let Check::Within(other) = self.items[at].check
                && self.items[at].taken.is_some()
            {
                self.shared.verify.compared.fetch_add(1, Ordering::Relaxed);
                let is_equal = self.block(at) == self.block(other as usize);
                self.settle(at, is_equal);
            }
        }
    }

    /// Blocks to be read and compared before anybody is told; what can be compared later is kept for it.
    pub(crate) fn candidates(&mut self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for number in 0..self.jobs.len() {
            let items = self.jobs[number].items.clone();
            let is_open = |item: &Item| item.check == Check::Stored && item.taken.is_some();
            let open = self.items[items.clone()]
                .iter()
                .filter(|item| is_open(item));
            let count = open.count();
            if count == 0 || self.keep_for_later(number, count) {
                continue;
            }
            candidates.extend(items.filter_map(|at| {
                let item = self.items.get(at).filter(|item| is_open(item))?;
                let item_number = at as u32;
                item.taken.map(|pba| Candidate {
                    item: item_number,
                    pba,
                })
            }));
        }
        candidates
    }

    /// Compares with what was read.
    pub(crate) fn compare(&mut self, candidates: &[Candidate], found: &Found) {
        let stored = fingerprint::split(&found.buf);
        for (place, (candidate, stored)) in candidates.iter().zip(stored).enumerate() {
            let at = candidate.item as usize;
            if found.unreadable.contains(&place) {
                self.settle(at, false);
                continue;
            }
            self.shared.verify.compared.fetch_add(1, Ordering::Relaxed);
            let is_equal = self.block(at) == Some(stored);
            if !is_equal
                && matches!(self.items[at].crc, Crc::Known(crc) if crc != fingerprint::crc32c(stored))
            {
                // Not what was written there: no collision, but damage.
                let mut state = lock(&self.shared.state);
                self.shared.found_damage(&mut state, candidate.pba);
            } else if !is_equal {
                self.shared.verify.collided(candidate.pba);
            }
            self.settle(at, is_equal);
        }
    }

    /// The bytes of an item, while its command has its buffer.
    fn block(&self, item: usize) -> Option<&fingerprint::Block> {
        let job = self.jobs.iter().find(|job| job.items.contains(&item))?;
        job.blocks().get(item - job.items.start)
    }

    /// An item keeps its block, or tries again for one of its own.
    fn settle(&mut self, at: usize, is_equal: bool) {
        #[cfg(test)]
        let is_equal = is_equal || crate::ablation::is(crate::ablation::Broken::IgnoreMismatch);
        let item = &mut self.items[at];
        if is_equal {
            item.check = Check::Done;
            return;
        }
        item.check = Check::Distinct;
        item.crc = Crc::Unknown;
        if let Some(pba) = item.taken.take() {
            lock(&self.shared.state).give_back(pba);
        }
        let job = self.jobs.iter_mut().find(|job| job.items.contains(&at));
        if let Some(job) = job
            && matches!(job.progress, Progress::Claimed)
        {
            job.progress = Progress::Begun;
        }
    }

    /// Keeps the bytes of a job's open items, so that they can be compared when it was told; false if
    /// its policy or the room does not allow that.
    fn keep_for_later(&mut self, number: usize, count: usize) -> bool {
        let job = &mut self.jobs[number];
        let Some(command) = &job.command else {
            return false;
        };
        if command.verify != VerifyPolicy::Background {
            return false;
        }
        let Some(room) = Room::reserve(&self.shared, count) else {
            return false;
        };
        let mut pieces: Vec<KeptPiece> = Vec::new();
        for (place, item) in self.items[job.items.clone()].iter_mut().enumerate() {
            if item.check != Check::Stored || item.taken.is_none() {
                continue;
            }
            item.check = Check::Done;
            let Some(block) = job.blocks().get(place) else {
                continue;
            };
            let at = command.start + place as u64;
            match pieces.last_mut() {
                Some(last) if last.end() == at => last.bytes.extend_from_slice(block),
                _ => pieces.push(KeptPiece {
                    start: at,
                    bytes: block.to_vec(),
                }),
            }
        }
        job.kept.push(Kept {
            pieces,
            _room: room,
        });
        true
    }
}

/// Consecutive sub-blocks of an acknowledged write.
struct KeptPiece {
    start: u64,
    bytes: Vec<u8>,
}

impl KeptPiece {
    fn end(&self) -> u64 {
        self.start + (self.bytes.len() / BLOCK_BYTES) as u64
    }
}

/// Bytes that are to be compared when their write was acknowledged.
pub(crate) struct Kept {
    pieces: Vec<KeptPiece>,
    _room: Room,
}

/// The first sub-block, and how many there are.
fn extent(kept: &[Kept]) -> (u64, u64) {
    let pieces = || kept.iter().flat_map(|kept| &kept.pieces);
    let blocks = pieces().map(|piece| piece.end() - piece.start).sum();
    (pieces().next().map_or(0, |piece| piece.start), blocks)
}

/// A share of the memory for acknowledged writes, and of the pool's free blocks: if all of them collide,
/// each finds room.
struct Room {
    shared: Arc<Shared>,
    blocks: usize,
}

impl Room {
    /// `None` if there is none, or if nobody will compare.
    fn reserve(shared: &Arc<Shared>, blocks: usize) -> Option<Self> {
        let mut queue = lock(&shared.verify.queue);
        let kept_bytes = queue.kept_bytes + blocks * BLOCK_BYTES;
        if kept_bytes > shared.config.verify_bytes_max || !queue.is_on_duty || queue.is_ending {
            return None;
        }
        queue.kept_bytes = kept_bytes;
        drop(queue);
        let is_promised = lock(&shared.state).space.promise(blocks as u64);
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
        lock(&self.shared.state)
            .space
            .take_promise_back(self.blocks as u64);
        self.shared.verify.release(self.blocks);
    }
}

/// An acknowledged write that is not compared yet. Its range is locked.
struct Pending {
    shared: Arc<Shared>,
    volume: Arc<VolumeCore>,
    kept: Vec<Kept>,
    is_done: Arc<Event>,
    is_compared: bool,
    /// Why it could not be, the last time.
    error: String,
    _guard: Option<RangeGuard>,
}

impl Pending {
    fn pieces(&self) -> impl Iterator<Item = &KeptPiece> {
        self.kept.iter().flat_map(|kept| &kept.pieces)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_compared {
            let (first, blocks) = extent(&self.kept);
            let name = self.volume.name();
            let range = [(first, first + blocks)].into_iter();
            lock(&self.shared.news).volume(Met::Uncompared, &name, range, &self.error);
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
    /// Somebody takes what is queued.
    is_on_duty: bool,
    /// ... and stops when nothing is left.
    is_ending: bool,
    waker: Option<Waker>,
    /// When this happens, all that is queued now is compared.
    last: Option<Arc<Event>>,
}

/// Comparisons of an engine.
pub(crate) struct Verify {
    buffers: BufferPool,
    queue: Mutex<Queue>,
    compared: AtomicU64,
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

    fn collided(&self, pba: Pba) {
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
            // Who ends waits for the last one.
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

    /// A write failed that was not compared, and the journal may hold its record: opened again, the pool
    /// may map it to twins that are none. Until then nothing of it is seen, and no flush vouches.
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

    fn push(&self, pending: Pending) {
        let mut queue = lock(&self.queue);
        if !queue.is_on_duty {
            // It left after the room was given: nobody would come for it.
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
                "duplicates could not be compared with their twins (the log names them): restart, and compare \
                 them with a copy",
            ));
        }
        Ok(())
    }

    /// Whoever compares stops when nothing is left; writes compare for themselves from now on.
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
    async fn next(&self) -> Option<Pending> {
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
    fn go_on_duty(&self) -> Option<Duty<'_>> {
        let mut queue = lock(&self.queue);
        if queue.is_on_duty {
            return None;
        }
        queue.is_on_duty = true;
        Some(Duty(self))
    }
}

struct Duty<'a>(&'a Verify);

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

impl Shared {
    /// Queues an acknowledged write to be compared; its range stays locked until then.
    pub(crate) fn compare_later(self: &Arc<Self>, command: &mut Command, kept: Vec<Kept>) {
        let guard = command.take_guard();
        #[cfg(test)]
        let guard =
            guard.filter(|_| !crate::ablation::is(crate::ablation::Broken::UnlockBeforeCompared));
        self.verify.push(Pending {
            shared: self.clone(),
            volume: command.volume.clone(),
            kept,
            is_done: Arc::default(),
            is_compared: false,
            error: String::new(),
            _guard: guard,
        });
    }

    /// Compares acknowledged writes, until [`Verify::end`].
    pub(crate) async fn keep_verifying(self: &Arc<Self>) {
        let Some(_duty) = self.verify.go_on_duty() else {
            return;
        };
        while let Some(mut pending) = self.verify.next().await {
            for _ in 0..ATTEMPTS {
                match self.write_again(&pending).await {
                    Ok(()) => pending.is_compared = true,
                    // What is gone need not be right.
                    Err(error) if error.kind == ErrorKind::NotFound => pending.is_compared = true,
                    Err(error) => pending.error = error.to_string(),
                }
                if pending.is_compared {
                    break;
                }
            }
        }
    }

    /// Writes the kept bytes where they are already, with a comparison: only what differs changes.
    async fn write_again(self: &Arc<Self>, pending: &Pending) -> Result<()> {
        let mut commands = Vec::new();
        let mut ends = Vec::new();
        for piece in pending.pieces() {
            let mut buf = self.verify.buffers.alloc(piece.bytes.len()).await;
            buf.copy_from_slice(&piece.bytes);
            let (command, end) = Command::again(&pending.volume, piece.start, buf);
            commands.push(command);
            ends.push(end);
        }
        crate::write::run(self.clone(), commands).await;
        let lost = || Err(EngineError::internal("a comparison had no end"));
        ends.into_iter()
            .try_for_each(|end| end.result().unwrap_or_else(lost).map(drop))
    }
}

#[cfg(test)]
mod tests;
