//! What reactors meet at. The modules that are built on nothing else ([`crate::wait`],
//! [`crate::range_lock`]) are compiled once more by `tests/schedules.rs`, with primitives whose schedule a
//! test chooses.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
