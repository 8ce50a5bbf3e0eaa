//! Wakers of tasks that wait for the same condition.

use std::task::{Context, Waker};

/// The wakers of whoever waits. A task that polls again is not stored twice.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Waker>);

impl Waiters {
    /// Wakes this task at the next [`wake_all`](Self::wake_all).
    pub(crate) fn register(&mut self, cx: &Context<'_>) {
        if !self.0.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.0.push(cx.waker().clone());
        }
    }

    /// Wakes and forgets everyone.
    pub(crate) fn wake_all(&mut self) {
        for waker in self.0.drain(..) {
            waker.wake();
        }
    }
}
