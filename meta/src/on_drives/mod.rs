//! Copies of the metadata on the pool's drives: with them a pool is opened from its drives alone.
//!
//! A *metadata area* is a run of blocks of a drive that the engine does not see. Up to [`COPIES_WANTED`] areas are *members*:
//! each holds everything that the pool's folder holds, in four parts (`layout.rs`):
//!
//! * two superblocks, of which the one with the larger number counts;
//! * an image of the journal's ring, brought up to date by every sync of the journal;
//! * a *log* of every change of the store ([`Change`](change::Change)), in order;
//! * two slots for a *base*: all rows of the store at one moment, from which on the log counts. A new base is written into the
//!   other slot when the log is half full, while the store goes on.
//!
//! Guarantees:
//!
//! * What a sync of the journal or a change of the store made durable is durable on every member before the caller hears of it.
//!   So what [`import`](import::Importable::write) makes is what the folder would be after a loss of power at some moment
//!   since: an ordinary opening does the rest.
//! * A member that does not take a write is none any more before anything is acknowledged that it lacks: the others have a
//!   superblock of a larger *generation*, which does not name it. The folder, too, knows which generation and which change
//!   came last ([`ON_DRIVES_KEY`](crate::setting::ON_DRIVES_KEY)). If these do not agree at an opening, nothing is added to what the areas hold: all is
//!   copied anew, under a larger generation than any that the folder ever knew. So a member that is missing while the folder goes on
//!   without it holds nothing when it comes back.
//! * Without a member the pool goes on with its folder alone, and what the areas hold is older: the epochs in the drives'
//!   labels say so to whoever imports it.

mod ahead;
mod area;
mod base;
mod change;
mod dirty;
mod folder;
mod import;
mod joining;
mod journal;
mod layout;
mod log;
mod members;
mod new_metadata;
mod newest;
mod state;
mod store;

#[cfg(test)]
mod tests;

pub use ahead::{Ahead, Followed};
pub use area::{MemoryArea, MetadataArea, PendingIo};
pub use import::{Importable, MayBeOlder};
pub use journal::JournalOnDrives;
pub use layout::metadata_blocks;
pub use members::MetadataOnDrives;
pub use newest::holders;
pub use state::OnDrivesState;
pub use store::StoreOnDrives;

/// Areas that hold the metadata, if there are so many.
const COPIES_WANTED: usize = 3;
