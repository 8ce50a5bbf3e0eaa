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
//! * **I6** Memory is bounded whatever the pool holds: maps and block rows that are used are in memory within
//!   [`EngineConfig::metadata_cache_bytes`], the index within [`EngineConfig::index_bytes_max`]. The rest is read from
//!   the store when it is needed. Journal and store are the durable form of all metadata.
//! * **I8** A corrupted block is reported, never returned as data.
//!
//! The writes that arrive on a thread at about the same time are one batch ([`Volume::write`]):
//! they are fingerprinted side by side, looked up together, and share a drive write and an append. A
//! volume may be created without deduplication ([`VolumeSpec::dedup`]); what is written to it is not
//! hashed, not found by others, and proven by its CRC-32C alone after a crash.
//!
//! The futures of the engine are not `Send` (drives belong to reactors), but the engine is: every
//! reactor may use the same one. **Drive futures to their end.** A future that is dropped in the middle
//! of a drive write cannot tell whether the drive still writes, so its new blocks stay set aside until
//! the pool is opened again; nothing else is lost by dropping a future at any point.

#![deny(unsafe_code)]

mod background;
mod content;
mod drive_io;
mod engine;
mod error;
mod hooks;
mod io;
mod log;
mod metadata;
mod offline;
mod pool;
mod ranges;
mod residency;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod simulation;
mod stages;
mod sync;
mod volumes;

pub use background::drive_alerts::DriveTrouble;
pub use background::online_check::OnlineCheckReport;
pub use background::rebuild::RebuildStatus;
pub use background::rebuild_speed::RebuildSpeed;
pub use background::scrub::{SCRUB_RATE_DEFAULT, ScrubPhase, ScrubStatus, check_scrub_rate};
pub use background::status::{
    DeletingStatus, DriveStatus, MetadataStatus, PoolStatus, PoolSummary, TrimmingStatus,
    VolumeStatus,
};
pub use background::survey::{Survey, VolumeShares};
pub use content::compress::Algorithm;
pub use content::fingerprint::{Block, Hasher};
pub use content::pack::{Pack, PackError};
pub use drive_io::copysets::Copysets;
pub use drive_io::drive_state::{DriveState, Redundancy};
pub use drive_io::labels::{PoolLabels, read_label, write_new_label};
pub use drive_io::layout::check_room;
pub use engine::{Engine, EngineLocks, KnownContents};
pub use error::{EngineError, ErrorKind, Result};
pub use io::MAX_COMMAND_BYTES;
pub use log::labels::{described, is_of_opening};
pub use metadata::domain::domain_key;
pub use metadata::settings::SETTINGS_BYTES_MAX;
pub use metadata::volume::{SNAPSHOTS_MAX, VOLUMES_MAX};
pub use offline::backup::backup_pool;
pub use offline::check::{CheckOptions, CheckReport, Watch, check_pool};
pub use offline::missing_drives::MissingDrives;
pub use offline::remote::{OpenRemote, open_remote_drives_by};
pub use offline::repair::{LostRange, RecoveredVolume, Repair, RepairReport};
pub use offline::restore::Restore;
pub use pool::alerts::{AffectedVolume, HealthState, Reason, Verdict, rfc3339};
pub use pool::boot::BootId;
pub use pool::comparisons::VerifyStatus;
pub use pool::config::{
    BATCH_BLOCKS_MAX, BOUNCE_BYTES_MIN, Blocking, EngineConfig, EngineParts,
    METADATA_CACHE_BYTES_MIN,
};
pub use pool::damage_list::{DamageStatus, DamagedRange};
pub use pool::finding::CheckFinding;
pub use pool::volume_change::{VolumeChange, VolumeChangeKind};
pub use stages::{Stage, Stopwatch, watched};
pub use sync::clock::LockTimes;
pub use volumes::admin::{PolicyChange, VolumeSpec, check_name};
pub use volumes::{Extents, SECTOR_BYTES, Unreadable, Volume};

/// Bytes of a sub-block, the grain of deduplication and of a drive's blocks.
pub const SUB_BLOCK_BYTES: usize = drives::BLOCK_BYTES;

/// Blocks at the beginning of every drive that hold its label.
const LABEL_BLOCKS: u64 = meta::LABEL_AREA_BYTES / SUB_BLOCK_BYTES as u64;
