//! Locks of data that stay valid when a holder panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data stays valid even if a holder panicked: every change is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
