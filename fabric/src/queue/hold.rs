//! Whoever holds a queue keeps it open.

use std::ops::Deref;
use std::rc::Rc;

use crate::error::CloseReason;

/// One side of a queue.
pub(crate) trait Close {
    /// Begins to end the queue; the first reason is the one that is told.
    fn close(&self, reason: CloseReason);
}

/// A queue that closes when the last clone of this is dropped.
pub(crate) struct Holder<T: Close>(Rc<Guard<T>>);

struct Guard<T: Close>(Rc<T>);

impl<T: Close> Drop for Guard<T> {
    fn drop(&mut self) {
        self.0.close(CloseReason::Local);
    }
}

impl<T: Close> From<Rc<T>> for Holder<T> {
    fn from(queue: Rc<T>) -> Self {
        Self(Rc::new(Guard(queue)))
    }
}

impl<T: Close> Clone for Holder<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Close> Deref for Holder<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}
