//! Check, repair and backup of a pool that is not in use, and what a pool that lacks drives has on them.
//!
//! Guarantee: a check changes nothing. A repair changes all that it has to, or nothing.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod missing_drives;
pub(crate) mod repair;
