//! Locks of this crate. Their data is never seen half-changed: a panic of who holds one ends the process.

pub(crate) use reactor::lock_whole as lock;
