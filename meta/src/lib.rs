//! Durable maps: what a pool knows about its volumes and blocks, and how it survives a crash.
//!
//! Two things on stable storage hold the state of a pool:
//!
//! * the [`Store`]: rows for volumes, mappings and blocks up to one [`Checkpoint`], changed only by
//!   atomic and durable batches ([`RocksStore`] on disk, [`MemoryStore`] in simulations);
//! * the [`Journal`]: every change after that checkpoint, one [`Record`] per command, in a ring of
//!   fixed size.
//!
//! What is guaranteed, and by what:
//!
//! * **A record that was appended survives a crash of the process; after [`Journal::sync`] it
//!   survives a loss of power.** Records are framed with a CRC-32C; replay ends at the first frame
//!   that is not whole, so a torn tail is the end of the journal and not an error.
//! * **Nothing stale is ever replayed.** A frame counts only if its sequence number is exactly one
//!   more than that of the frame before, and only if its epoch is the epoch of the checkpoint. Every
//!   opening of a pool stores a new checkpoint with a new epoch before it appends
//!   ([`Journal::begin`]), so what an earlier opening left behind a torn tail can never be read again.
//! * **Loss of what was synced is reported.** Each frame carries the last sequence number that was
//!   known to be synced; a chain that ends before that number is damage, not a torn tail.
//! * **Reference counts equal mappings.** A [`Batch`] derives both from the same records and the store
//!   applies them, with the new journal position, in one atomic write.
//! * **A pool is there whole or not at all.** [`PoolCreation`] renames the identity file last.
//!
//! The calls here block. None of them belongs on a data-plane thread, except appends to the journal:
//! those are plain writes to the page cache.

#![forbid(unsafe_code)]

mod attempt;
mod backup;
mod ballast;
mod batch;
mod changes;
mod check;
mod codec;
mod error;
mod identity;
mod journal;
mod label;
mod lock;
mod on_drives;
mod pool;
mod record;
mod restored;
mod runs;
mod segment;
mod setting;
mod store;
mod types;

pub use backup::BackupFolder;
pub use ballast::{BALLAST_BYTES_MAX, FolderRoom};
pub use batch::{
    Batch, BatchBuilder, BlockChange, BlockContent, MapChange, VolumeChange, VolumeUpdate,
};
pub use changes::Changes;
pub use check::{
    BlockWindow, CHECK_MEMORY_BYTES, CheckReport, Counted, Problem, ProblemKind, check, check_with,
};
pub use error::{JournalError, MetaError, MetaErrorKind};
pub use identity::{
    DriveSpec, HashKeys, PoolIdentity, SpareSpec, absolute_drive_path, is_remote_drive,
};
pub use journal::{
    Appended, FileMedia, FinishedSync, Frames, History, HookedMedia, Journal, JournalConfig,
    JournalMedia, JournalPart, JournalReader, JournalWriter, MemoryMedia, PendingSync,
    ReservedRange, SECTOR_BYTES as JOURNAL_SECTOR_BYTES,
};
pub use label::{
    ChosenLabel, DriveLabel, LABEL_BYTES, Label, LabelError, LocationKind, MetadataLocation,
    MetadataPart, Opening,
};
pub use on_drives::{
    Ahead, Followed, Importable, JournalOnDrives, MayBeOlder, MemoryArea, MetadataArea,
    MetadataOnDrives, OnDrivesState, PendingIo, StoreOnDrives, holders, metadata_blocks,
};
pub use pool::{JOURNAL_BYTES_DEFAULT, PoolCreation, PoolDir, PoolPaths, PoolSpec};
pub use record::{
    FORKS_MAX, Fork, MAP_ENTRIES_MAX, MapEntry, NewBlock, Record, RecordError, RecordRef,
    UNMAP_ENTRIES_MAX,
};
pub use segment::{COPIES_MAX, SegmentCopy, SegmentRow, SegmentState};
pub use setting::{
    SETTING_CHANGES_BYTES_MAX, SETTING_KEY_BYTES_MAX, SETTING_VALUE_BYTES_MAX, SHARED_KEY,
    SettingChanges, is_setting_key,
};
pub use store::{
    LoadVisitor, MapRows, MemoryStore, NewRows, RocksOptions, RocksStore, Row, RowCursor,
    RowEntries, RowError, RowKind, Salvage, Store, StoreFault, StoreFigures,
};
pub use types::{
    BlockRow, Checkpoint, Compression, Fingerprint, FingerprintFunction, LABEL_AREA_BYTES,
    MAP_DEPTH_MAX, MapId, MapInfo, Mapping, Pba, PbaError, Position, SnapshotOf,
    TRIMMING_RANGES_MAX, Totals, UnknownCompression, UnknownFingerprintFunction,
    UnknownVerifyPolicy, VOLUME_NAME_BYTES_MAX, VerifyPolicy, VolumeInfo, VolumePolicy,
    VolumeState,
};
