//! Whether this thread's reactor has all hands full: then commands wait in sockets and rings before anybody sees them.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// It is looked at so often.
const EVERY: Duration = Duration::from_millis(10);

/// A reactor is crowded that has worked for so much of the time.
const CROWDED: f64 = 0.9;

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    busy: Duration,
    is_crowded: bool,
}

thread_local! {
    static LAST: Cell<Option<Look>> = const { Cell::new(None) };
}

/// Whether this thread's reactor was crowded when it was looked at last.
pub(super) fn is_crowded(now: Instant) -> bool {
    let last = LAST.get();
    if let Some(last) = last.filter(|last| now.saturating_duration_since(last.at) < EVERY) {
        return last.is_crowded;
    }
    let busy = reactor::busy_time();
    let is_crowded = last.is_some_and(|last| {
        let passed = now.saturating_duration_since(last.at).as_secs_f64();
        busy.saturating_sub(last.busy).as_secs_f64() >= CROWDED * passed
    });
    LAST.set(Some(Look {
        at: now,
        busy,
        is_crowded,
    }));
    is_crowded
}

/// Says it for a while, in tests of virtual time.
#[cfg(test)]
pub(super) fn pretend(now: Instant, is_crowded: bool) {
    LAST.set(Some(Look {
        at: now,
        busy: Duration::ZERO,
        is_crowded,
    }));
}
