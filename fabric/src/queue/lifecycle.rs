//! How a queue ends, whatever carries it and whichever side it is.
//!
//! Guarantees: the first reason is the one that is told; a queue that is over was ending before;
//! whoever waits for the end is woken exactly when it is over.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use crate::error::CloseReason;
use crate::waiters::Waiters;

/// Open, then ending (nothing new is begun), then over (nothing is in flight any more).
#[derive(Debug, Default)]
pub(crate) struct Lifecycle(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    ending: Option<CloseReason>,
    over: bool,
    waiters: Waiters,
}

impl Lifecycle {
    /// The queue begins to end. False if it did before; then the earlier reason stays.
    pub(crate) fn end(&self, reason: CloseReason) -> bool {
        let mut state = self.0.borrow_mut();
        if state.ending.is_some() {
            return false;
        }
        state.ending = Some(reason);
        true
    }

    /// The queue is over; `reason` counts if none was given before.
    pub(crate) fn over(&self, reason: CloseReason) {
        let mut state = self.0.borrow_mut();
        state.ending.get_or_insert(reason);
        state.over = true;
        state.waiters.wake_all();
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.0.borrow().ending.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.borrow().over
    }

    /// Why it ends, if it does.
    pub(crate) fn reason(&self) -> Option<CloseReason> {
        self.0.borrow().ending.clone()
    }

    /// Waits until the queue is over.
    pub(crate) async fn wait(&self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            match (&state.ending, state.over) {
                (Some(reason), true) => Poll::Ready(reason.clone()),
                _ => {
                    state.waiters.register(cx);
                    Poll::Pending
                }
            }
        })
        .await
    }
}
