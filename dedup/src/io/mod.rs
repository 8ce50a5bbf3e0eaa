//! What commands of hosts do: batches of writes, reads, trims, copies and comparisons.
//!
//! Guarantee: whatever a command takes (ranges, references, blocks, pins) it gives back, also when its future is dropped.

pub(crate) mod batcher;
pub(crate) mod copy;
pub(crate) mod find;
pub(crate) mod packing;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod reclaim;
pub(crate) mod span;
pub(crate) mod trim;
pub(crate) mod verify;
pub(crate) mod write;

/// The largest read, write or compare in one call, in bytes: it fits one buffer
/// with two partial sub-blocks, and one journal record.
pub const MAX_COMMAND_BYTES: usize = 1 << 20;
