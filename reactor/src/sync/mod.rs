//! Primitives for tasks to wait for one another.
//!
//! Guarantees: usable from any thread and any executor; wakers are called after locks are released;
//! no primitive allocates to wake; who waits in a line is served first come, first served; a dropped
//! future gives up its place, and what it was already granted goes to the next.

mod event;
mod mpsc;
mod oneshot_channel;
mod semaphore;

pub use event::{Event, EventWait, Notified, Notify};
pub use semaphore::{Acquire, Permit, Semaphore};

/// A bounded queue with many senders and one receiver.
pub mod queue {
    pub use super::mpsc::{Full, Receiver, Recv, Send, Sender, channel};
}

/// One value from one task to another.
pub mod oneshot {
    pub use super::oneshot_channel::{Receiver, Sender, channel};
}

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// The other side of a channel is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side of the channel is gone")]
pub struct Closed;

/// Locks also after a panic of another holder: the sections in this module change their state in one
/// step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers who polls, without a new clone when it is the same task.
pub(crate) fn remember(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}
