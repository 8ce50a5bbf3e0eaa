//! Backpressure of the journal: hosts' commands wait before they lock anything when it is nearly full. When it is full all
//! the same, tasks wait in a line, and the first in the line gets the next room.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};
use meta::Journal;

/// The journal is nearly full when less than one part in so many is free. Commands that came before that are under way
/// find room in it, and so do snapshots, which wait for those commands.
const KEPT_FREE: u64 = 8;

/// The line in front of a full journal, and the one before it is full.
#[derive(Default)]
pub(crate) struct Backpressure {
    waiting: AtomicU64,
    room: AsyncMutex<()>,
    /// Whether the journal's bytes are nearly all taken. Its lock is held where this changes.
    is_nearly_full: AtomicBool,
    admission: AsyncMutex<()>,
}

impl Backpressure {
    /// Takes note of how full the journal is.
    pub(crate) fn note(&self, journal: &Journal) {
        let is_nearly_full = journal.free_bytes() < journal.capacity_bytes() / KEPT_FREE;
        // Mostly nothing changes, and other cores read it.
        if self.is_nearly_full.load(Ordering::Relaxed) != is_nearly_full {
            self.is_nearly_full.store(is_nearly_full, Ordering::Relaxed);
        }
    }

    /// Whether the journal is nearly full, which holds at most `entries_max` changes, and has `entries`.
    pub(crate) fn is_nearly_full(&self, entries: u64, entries_max: u64) -> bool {
        self.is_nearly_full.load(Ordering::Relaxed)
            || entries > entries_max - entries_max / KEPT_FREE
    }

    /// Waits for those that came before while the journal was nearly full.
    pub(crate) async fn line_up(&self) -> AsyncMutexGuard<'_, ()> {
        self.admission.lock().await
    }

    /// Whether anybody stands in it.
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Joins the line, if there is one: a task that appended without a look would overtake it.
    pub(crate) async fn join_if_any(&self) -> Option<RoomPermit<'_>> {
        if self.is_busy() {
            Some(self.join().await)
        } else {
            None
        }
    }

    /// Waits until no other task waits for room.
    pub(crate) async fn join(&self) -> RoomPermit<'_> {
        let waiting = Waiting::new(&self.waiting);
        let held = self.room.lock().await;
        RoomPermit {
            attempts: 0,
            _held: held,
            _waiting: waiting,
        }
    }
}

struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::AcqRel);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Held by the head of the line. No other task appends changes as long as it lives.
pub(crate) struct RoomPermit<'a> {
    /// Checkpoints that it waited for.
    pub(crate) attempts: u32,
    _held: AsyncMutexGuard<'a, ()>,
    _waiting: Waiting<'a>,
}
