//! Locks and events that work on any executor, and when flushes gather.
//!
//! Guarantees: no lock of a mutex is held across an await. A panic while a mutex is locked ends the process, so nobody
//! sees a half-made change.

pub(crate) mod clock;
pub(crate) mod gate;
pub(crate) mod range_lock;
pub(crate) mod rounds;
pub(crate) mod timed;
pub(crate) mod wait;
pub(crate) mod watermark;
