//! What the engine knows of volumes and blocks, in memory.
//!
//! Guarantees: nothing in this room waits, and nothing in it reads or writes a drive, the journal or the store. Hosts'
//! writes share all of it ([`state::State`]), and everything else has it alone; each volume's map has a lock of its own besides.

pub(crate) mod ancestry;
pub(crate) mod block_table;
pub(crate) mod deferred_dedup;
pub(crate) mod domain;
pub(crate) mod eviction;
pub(crate) mod flights;
pub(crate) mod index;
pub(crate) mod last_changes;
pub(crate) mod map_lock;
pub(crate) mod on_disk_index;
pub(crate) mod online_count;
pub(crate) mod owners;
pub(crate) mod packs;
pub(crate) mod page_map;
pub(crate) mod resident;
pub(crate) mod settings;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod volume;
