//! The journal and the store behind it: appends, flushes, checkpoints, recovery.
//!
//! Guarantees: a change is acknowledged only when its record is in the journal. It counts as durable only when its data
//! and its record are on stable storage. The store takes each change exactly once.

pub(crate) mod append;
pub(crate) mod checkpoint;
mod copies;
pub(crate) mod flush;
pub(crate) mod labels;
pub(crate) mod recovery;
pub(crate) mod replay;
