//! Ending a run before its time, with the figures so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// No command was sent yet.
const STARTING: u8 = 0;
/// There are figures.
const RUNNING: u8 = 1;
/// No further command is to be sent.
const STOPPING: u8 = 2;

/// A switch that ends a run; all clones are the same one.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicU8>);

impl Default for Interrupt {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(STARTING)))
    }
}

impl Interrupt {
    /// Ends the run: it waits for the commands that are under way, then reports what there is. False if there is
    /// nothing to wait for: it has not begun yet, or was told before.
    #[must_use]
    pub fn set(&self) -> bool {
        let order = Ordering::Relaxed;
        let set = self.0.compare_exchange(RUNNING, STOPPING, order, order);
        set.is_ok()
    }

    /// Whether the run is to end.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STOPPING
    }

    /// From now on there are figures.
    pub(super) fn started(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_can_be_interrupted_once_and_only_after_its_start() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.set() && !interrupt.is_set());
        interrupt.started();
        assert!(interrupt.clone().set() && interrupt.is_set());
        assert!(!interrupt.set());
    }
}
