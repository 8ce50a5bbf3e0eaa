//! The engine: every block is stored once, and none is lost or mixed up.
//!
//! An [`Engine`] turns volumes (thin, addressed in bytes at logical-block grain) into mappings from
//! sub-blocks of 4 KiB to physical blocks on the pool's drives. A write is split, zeros are dropped,
//! the rest is fingerprinted, known content takes a reference, new content leaves in long runs, and
//! one journal record per command holds every change of the mapping.
//!
//! What the engine guarantees (tests name these invariants):
//! * **I1** An acknowledged write survives a crash of the process at once, and a power loss after the
//!   next flush, or at once when it was written with FUA.
//! * **I2** After any crash each sub-block reads its old or its new content, never a mixture and never
//!   another block's: records whose data was not yet flushed are proven against their fingerprints.
//! * **I3** A physical block is not reused before the record that freed it is durable.
//! * **I4** A reference count equals the number of mappings, always, after any crash.
//! * **I5** A full pool fails the writes that need space, and nothing else.
//! * **I8** A corrupted block is reported, never returned as data.
//!
//! All metadata is held in memory (24 bytes per physical block that was ever used, about 10 per unique
//! sub-block in the index, and 8 per mapped one); the journal and the store are its durable form.
//!
//! The writes that arrive on a thread in the same turn of its executor are one batch ([`Volume::write`]):
//! they are fingerprinted side by side, looked up together, and share a drive write and an append. A
//! volume may be created without deduplication ([`VolumeSpec::dedup`]); what is written to it is not
//! hashed, not found by others, and proven by its CRC-32C alone after a crash.
//!
//! The futures of the engine are not `Send` (drives belong to reactors), but the engine is: every
//! reactor may use the same one. **Drive futures to their end.** A future that is dropped in the middle
//! of a drive write cannot tell whether the drive still writes, so its new blocks stay set aside until
//! the pool is opened again; nothing else is lost by dropping a future at any point.

#![forbid(unsafe_code)]

#[cfg(test)]
mod ablation;
mod admin;
mod backup;
mod block_table;
mod blocks;
mod boot;
mod check;
mod checkpoint;
mod chunks;
mod commit;
mod compress;
mod damage;
mod domain;
mod drive_list;
mod drives_online;
mod engine;
mod error;
mod fill;
mod fingerprint;
mod hints;
mod index;
mod lane;
mod load;
mod map;
mod online;
mod pack;
mod pack_read;
mod packing;
mod paging;
mod range_lock;
mod ranges;
mod read;
mod recovery;
mod repair;
mod resident;
#[cfg(test)]
mod schedules;
mod scrub;
mod settings;
mod side_by_side;
#[cfg(test)]
mod simulation;
mod space;
mod state;
mod status;
mod survey;
mod told;
mod trim;
mod trouble;
mod verify;
mod volume;
mod wait;
mod write;

pub use admin::{VolumeChange, VolumeChangeKind, VolumeSpec};
pub use backup::backup_pool;
pub use boot::BootId;
pub use check::{CheckFinding, CheckOptions, CheckReport, check_pool};
pub use compress::Algorithm;
pub use damage::{DamageStatus, DamagedRange};
pub use drives_online::{AffectedVolume, DriveTrouble, MissingDrives};
pub use engine::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, METADATA_CACHE_BYTES_MIN,
};
pub use error::{EngineError, ErrorKind, Result};
pub use fingerprint::{Block, Hasher};
pub use online::OnlineCheckReport;
pub use pack::{Pack, PackError};
pub use repair::{LostRange, RecoveredVolume, Repair, RepairReport};
pub use scrub::{SCRUB_RATE_DEFAULT, ScrubPhase, ScrubStatus};
pub use settings::SETTINGS_BYTES_MAX;
pub use status::{
    DeletingStatus, DriveStatus, PoolStatus, PoolSummary, TrimmingStatus, VolumeStatus,
};
pub use survey::{Survey, VolumeShares};
pub use trouble::{HealthState, Reason, Verdict};
pub use verify::VerifyStatus;
pub use volume::{MAX_COMMAND_BYTES, Unreadable, Volume};

/// Bytes of a sub-block, the grain of deduplication and of a drive's blocks.
pub const SUB_BLOCK_BYTES: usize = drives::BLOCK_BYTES;

/// Blocks at the beginning of every drive that hold its label.
const LABEL_BLOCKS: u64 = meta::LABEL_AREA_BYTES / SUB_BLOCK_BYTES as u64;

/// Where a physical block is on its drive.
fn drive_block(pba: meta::Pba) -> u64 {
    LABEL_BLOCKS + pba.block()
}
