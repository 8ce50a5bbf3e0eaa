//! How far a run has come, for who watches it from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It attaches to the target.
    Connecting,
    /// It sends the load that is measured.
    Load,
    /// It reads back what it wrote, to compare it.
    ReadBack,
}

/// What a run has done so far; all clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    phase: AtomicU8,
    commands: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// What the run is doing.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.0.phase.load(Ordering::Relaxed) {
            0 => Phase::Connecting,
            1 => Phase::Load,
            _ => Phase::ReadBack,
        }
    }

    /// Commands of this phase that ended well.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.0.commands.load(Ordering::Relaxed)
    }

    /// Bytes that they moved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// The next phase begins, from 0.
    pub(super) fn begin(&self, phase: Phase) {
        self.0.commands.store(0, Ordering::Relaxed);
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// A command ended well.
    pub(super) fn count(&self, bytes: usize) {
        self.0.commands.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
