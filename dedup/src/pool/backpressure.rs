//! Backpressure of the journal: when it is full, tasks wait in a line, and the first in the line gets the next room.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

/// The line in front of a full journal.
#[derive(Default)]
pub(crate) struct Backpressure {
    waiting: AtomicU64,
    room: AsyncMutex<()>,
}

impl Backpressure {
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
