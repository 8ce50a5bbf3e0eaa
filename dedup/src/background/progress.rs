//! How far a piece of background work is.

use std::sync::atomic::{AtomicU64, Ordering};

/// Steps done of those there are. It is a figure for people: what is done is never decided by it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// The work begins, and has so many steps.
    pub(crate) fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Some steps are done.
    pub(crate) fn add(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// In percent; `None` if there are no steps.
    pub(crate) fn percent(&self) -> Option<u8> {
        let total = self.total.load(Ordering::Relaxed);
        // What is written meanwhile adds steps that were not counted.
        let done = self.done.load(Ordering::Relaxed).min(total);
        let percent = u128::from(done)
            .saturating_mul(100)
            .checked_div(u128::from(total))?;
        u8::try_from(percent).ok()
    }
}
