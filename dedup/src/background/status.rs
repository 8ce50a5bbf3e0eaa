//! Space in bytes that adds up: `used + reclaiming + free = capacity`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use meta::{FingerprintFunction, FolderRoom, StoreFigures, VolumeInfo};
use serde::{Deserialize, Serialize};

use crate::SUB_BLOCK_BYTES;
use crate::background::Background;
use crate::background::rebuild::RebuildStatus;
use crate::drive_io::drive_state::{Condition, DriveState, Redundancy};
use crate::metadata::packs::PackCount;
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::comparisons::VerifyStatus;
use crate::pool::fill_level::{folder_level, level_reached};
use crate::sync::wait::lock;

/// Space of a pool and of its volumes at one moment. All figures are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolStatus {
    /// Data blocks of all drives together (labels not counted).
    pub capacity_bytes: u64,
    /// Physical data blocks that at least one mapping (or a write under way) refers to.
    pub used_bytes: u64,
    /// Physical data blocks no longer used, but not reusable before a flush (or a discard) is through.
    pub reclaiming_bytes: u64,
    /// Physical data blocks that can be allocated now.
    pub free_bytes: u64,
    /// Size of the metadata: the store plus the preallocated journal.
    pub metadata_bytes: u64,
    /// Mapped sub-blocks of all volumes, those being deleted included; zeros are not mapped. What volumes, snapshots and
    /// clones have in common by their origin counts once.
    pub logical_bytes: u64,
    /// Acknowledged changes that a power loss could still undo, in data bytes.
    pub unflushed_bytes: u64,
    /// How many copies there are of all data.
    pub redundancy: Redundancy,
    /// Why the pool takes no writes at present, if so.
    pub read_only: Option<String>,
    /// Blocks whose content did not match its checksum when read, since the pool was opened.
    pub corrupt_blocks: u64,
    /// Compressed contents that share blocks, as they would be uncompressed. They are in
    /// [`PoolStatus::packed_bytes`] of blocks: the difference is what compression saves.
    pub compressed_bytes: u64,
    /// Physical data blocks that hold compressed contents, a part of [`PoolStatus::used_bytes`].
    pub packed_bytes: u64,
    /// How fingerprints are computed.
    pub fingerprint: FingerprintFunction,
    /// Blocks that are found by their content.
    pub indexed_blocks: u64,
    /// Memory of the index that finds them, in bytes.
    pub index_bytes: u64,
    /// Memory that it may take, in bytes ([`crate::EngineConfig::index_bytes_max`]).
    pub index_bytes_max: u64,
    /// Blocks with a fingerprint that the index does not have: those that it has no room for, second blocks
    /// of a content, and damaged ones.
    pub unindexed_blocks: u64,
    /// Contents that the store was asked for since the pool was opened, because the index did not have them.
    pub on_disk_index_lookups: u64,
    /// Those of them that the store had an index entry for.
    pub on_disk_index_hits: u64,
    /// Memory that maps, and what is known of blocks, may take, in bytes
    /// ([`crate::EngineConfig::metadata_cache_bytes`]). The index is not a part of it.
    pub metadata_cache_bytes: u64,
    /// Memory that they take now, in bytes.
    pub metadata_resident_bytes: u64,
    /// Memory of what is never evicted, in bytes, beside the index: free blocks (a bit for each block of the drives), freed ones that
    /// wait, and where the rows of blocks lie. It follows from the size of the drives.
    pub metadata_fixed_bytes: u64,
    /// Reads of the store for pages of maps since the pool was opened.
    pub map_page_reads: u64,
    /// Pages of maps that left memory since the pool was opened, to be read again when they are needed.
    pub map_page_evictions: u64,
    /// Blocks that are known to be damaged now; [`crate::Engine::damage`] says what refers to them.
    pub damaged_blocks: u64,
    /// Byte compares of duplicates.
    pub verify: VerifyStatus,
    /// [`crate::EngineConfig::fill_warnings`], in percent.
    pub fill_warnings: Vec<u8>,
    /// The highest of them that is reached.
    pub fill_warning_percent: Option<u8>,
    /// Room on the file system of the pool's folder ([`crate::Engine::folder_room`]).
    pub folder: Option<FolderRoom>,
    /// The highest of [`PoolStatus::fill_warnings`] that this file system has reached.
    pub folder_warning_percent: Option<u8>,
    /// Data on segments that have fewer copies than they should, about, whatever their drives do.
    #[serde(default)]
    pub lacking_bytes: u64,
    /// One entry per drive, in order of their indexes.
    pub drives: Vec<DriveStatus>,
    /// Deleted volumes whose blocks are being freed.
    pub deleting: Vec<DeletingStatus>,
    /// Volumes of which a lot was given back at once, and is being freed.
    pub trimming: Vec<TrimmingStatus>,
    /// One entry per volume, in order of namespace identifiers.
    pub volumes: Vec<VolumeStatus>,
}

/// Space of a drive, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveStatus {
    /// What it is called: its path, mostly.
    pub name: String,
    /// Its failure domain.
    #[serde(default)]
    pub domain: Option<String>,
    /// Its data blocks (the label not counted).
    pub capacity_bytes: u64,
    /// Those that are in use; in a pool with copies about as many.
    #[serde(default)]
    pub used_bytes: u64,
    /// Those that can be allocated now; in a pool with copies about as many, and those that no segment lies on count too.
    pub free_bytes: u64,
    /// Those of the used ones that it may lack, or have in an old state: none of a drive that is online, all of one that is
    /// offline.
    #[serde(default)]
    pub stale_bytes: u64,
    /// Commands that failed, and copies that were wrong, since the drive was opened.
    #[serde(default)]
    pub errors: u64,
    /// Reads that took long, and that another drive with the same data answered first.
    #[serde(default)]
    pub hedged_reads: u64,
    /// Whether its copies of data are used. Of a pool without copies all drives are online.
    pub state: DriveState,
    /// How far its rebuild is.
    pub rebuild: Option<RebuildStatus>,
    /// Whether its data is being moved to other drives, so that it can be removed.
    #[serde(default)]
    pub emptying: bool,
}

impl PoolStatus {
    /// Data that have fewer copies than they should: those on drives that are not online, about.
    #[must_use]
    pub fn at_risk_bytes(&self) -> u64 {
        let lacking = self.drives.iter();
        let lacking = lacking.filter(|drive| drive.state != DriveState::Online);
        let on_drives: u64 = lacking.map(|drive| drive.used_bytes).sum();
        on_drives + self.lacking_bytes
    }
}

/// A volume that was deleted, and is being freed in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletingStatus {
    /// The volume's name.
    pub name: String,
    /// What is still mapped, in bytes.
    pub remaining_bytes: u64,
    /// What was mapped when the deletion (or the last start) began, in bytes.
    pub total_bytes: u64,
}

/// A large trim (or zeroing, or shrink) that is being worked off in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimmingStatus {
    /// The volume's name.
    pub name: String,
    /// What of it is still to be looked through, mapped or not, in bytes. It reads as zeros already.
    pub remaining_bytes: u64,
    /// What was to be looked through when this (or the last start) began, in bytes.
    pub total_bytes: u64,
}

/// Space of one volume, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeStatus {
    /// The volume's name.
    pub name: String,
    /// Its namespace identifier.
    pub nsid: u32,
    /// Its size as hosts see it.
    pub size_bytes: u64,
    /// Its mapped sub-blocks; zeros are not mapped. What is being trimmed counts until it is freed. Of a volume that has
    /// snapshots or is a clone, as the last survey counted them; before that, what it has itself.
    pub logical_bytes: u64,
}

/// What hosts ask of a pool again and again. Unlike [`PoolStatus`] it costs the same however many volumes there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSummary {
    /// As [`PoolStatus::capacity_bytes`].
    pub capacity_bytes: u64,
    /// As [`PoolStatus::used_bytes`].
    pub used_bytes: u64,
    /// As [`PoolStatus::free_bytes`].
    pub free_bytes: u64,
    /// Whether the pool takes no writes at present.
    pub is_read_only: bool,
    /// As [`PoolStatus::damaged_blocks`].
    pub damaged_blocks: u64,
    /// As [`PoolStatus::fill_warnings`].
    pub fill_warnings: Vec<u8>,
}

/// The journal, how its changes get into the store, and the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataStatus {
    /// The journal's ring, in bytes.
    pub journal_bytes: u64,
    /// The part of it that holds records that the store does not have, in bytes.
    pub journal_used_bytes: u64,
    /// Records that were appended in the life of the pool.
    pub journal_records: u64,
    /// Those of them that a loss of power could undo.
    pub journal_unsynced_records: u64,
    /// Changes of mappings that are in the journal and not in the store.
    pub unstored_changes: u64,
    /// Batches of changes that were stored since the pool was opened.
    pub stored_batches: u64,
    /// Changes of mappings in them.
    pub stored_changes: u64,
    /// How long that took, in microseconds.
    pub storing_microseconds: u64,
    /// The store, if it is a database that is open.
    pub store: Option<StoreFigures>,
}

/// Reads the figures of [`MetadataStatus`].
pub(crate) fn of_metadata(shared: &Shared) -> MetadataStatus {
    let stored = &shared.stored_so_far;
    let store = shared.store.figures();
    let journal = lock(&shared.journal);
    MetadataStatus {
        journal_bytes: journal.capacity_bytes(),
        journal_used_bytes: journal.used_bytes(),
        journal_records: journal.last_seq(),
        journal_unsynced_records: journal.last_seq().saturating_sub(journal.stable_seq()),
        unstored_changes: shared.unstored.load(Ordering::Relaxed),
        stored_batches: stored.batches.load(Ordering::Relaxed),
        stored_changes: stored.changes.load(Ordering::Relaxed),
        storing_microseconds: stored.microseconds.load(Ordering::Relaxed),
        store,
    }
}

/// Reads the figures of [`PoolSummary`] at one moment.
pub(crate) fn summarize(shared: &Shared) -> PoolSummary {
    let grain = SUB_BLOCK_BYTES as u64;
    let fill_warnings = shared.fill_warnings().to_vec();
    let damaged_blocks = lock(&shared.damage).count();
    let state = lock(&shared.state);
    let space = state.space();
    PoolSummary {
        capacity_bytes: space.capacity() * grain,
        used_bytes: space.used() * grain,
        free_bytes: space.free() * grain,
        is_read_only: state.read_only().is_some(),
        damaged_blocks,
        fill_warnings,
    }
}

/// Reads all figures at one moment, but the size of the store.
pub(crate) fn collect(shared: &Shared, background: &Background) -> PoolStatus {
    let grain = SUB_BLOCK_BYTES as u64;
    // Names are copied when commands can go on.
    let (infos, mut status) = figures(shared, background);
    let surveys = lock(&background.surveys);
    let volumes = infos
        .into_iter()
        .map(|(info, mapped, inherits)| VolumeStatus {
            name: info.name.clone(),
            nsid: info.nsid,
            size_bytes: info.size_bytes,
            // What a map inherits is not counted with every change.
            logical_bytes: match inherits {
                true => surveys.logical_bytes(info.nsid).unwrap_or(mapped * grain),
                false => mapped * grain,
            },
        });
    status.volumes = volumes.collect();
    drop(surveys);
    status.volumes.sort_unstable_by_key(|volume| volume.nsid);
    status
}

/// A volume, what its map has mapped itself, and whether that has a parent.
type Mapped = (Arc<VolumeInfo>, u64, bool);

/// All figures of a pool but those of its volumes, and these as they are in its state.
fn figures(shared: &Shared, background: &Background) -> (Vec<Mapped>, PoolStatus) {
    let store_bytes = shared.store.size_bytes();
    let folder = lock(&shared.folder).clone();
    let fill_warnings = shared.fill_warnings();
    let grain = SUB_BLOCK_BYTES as u64;
    // These take longer than hosts' writes should wait.
    let (indexed, hashed) = {
        let state = shared.state.share();
        (state.index.len(), state.index.hashed())
    };
    let state = lock(&shared.state);
    let volumes = state
        .volumes
        .values()
        .filter(|entry| entry.is_active() && entry.info.snapshot.is_none())
        .map(|entry| {
            let map = entry.map();
            (entry.info.clone(), map.mapped(), map.inherits())
        })
        .collect();
    let (used, capacity, reclaiming, free, space_bytes) = {
        let space = state.space();
        (
            space.used(),
            space.capacity(),
            space.reclaiming(),
            space.free(),
            space.memory_bytes(),
        )
    };
    let PackCount {
        packs, fragments, ..
    } = *state.packs();
    let (map_page_reads, map_page_evictions) = state.resident.reads_and_evictions();
    let status = PoolStatus {
        capacity_bytes: capacity * grain,
        used_bytes: used * grain,
        reclaiming_bytes: reclaiming * grain,
        free_bytes: free * grain,
        metadata_bytes: store_bytes + shared.journal_bytes,
        logical_bytes: state.mapped() * grain,
        unflushed_bytes: state.unflushed_bytes(),
        read_only: state.read_only().map(str::to_owned),
        corrupt_blocks: state.corrupt_blocks,
        compressed_bytes: fragments * grain,
        packed_bytes: packs * grain,
        fingerprint: shared.domains.function(),
        indexed_blocks: indexed,
        index_bytes: state.index.memory_bytes(),
        index_bytes_max: state.index.bytes_max(),
        unindexed_blocks: hashed.saturating_sub(indexed),
        on_disk_index_lookups: state.on_disk_index.asked,
        on_disk_index_hits: state.on_disk_index.answered,
        metadata_cache_bytes: state.resident.limit(),
        metadata_resident_bytes: state.resident.bytes(),
        metadata_fixed_bytes: state.blocks.fixed_bytes() + space_bytes,
        map_page_reads,
        map_page_evictions,
        damaged_blocks: lock(&shared.damage).count(),
        verify: shared.verify.status(),
        fill_warnings: fill_warnings.to_vec(),
        fill_warning_percent: level_reached(&fill_warnings, used, capacity),
        folder_warning_percent: folder
            .as_ref()
            .and_then(|room| folder_level(&fill_warnings, room)),
        folder,
        redundancy: Redundancy::of(shared.drives.copies()),
        lacking_bytes: {
            let (placed, lacking) = shared.drives.lacking();
            (u128::from(used * grain) * u128::from(lacking) / u128::from(placed.max(1))) as u64
        },
        drives: drives(shared, background, &state),
        deleting: deleting(background, &state),
        trimming: trimming(&state),
        volumes: Vec::new(),
    };
    (volumes, status)
}

/// Deleted volumes whose blocks are being freed.
pub(crate) fn deleting_volumes(shared: &Shared, background: &Background) -> Vec<DeletingStatus> {
    deleting(background, &lock(&shared.state))
}

fn drives(shared: &Shared, background: &Background, state: &State) -> Vec<DriveStatus> {
    let grain = SUB_BLOCK_BYTES as u64;
    let named: Vec<(u64, u64)> = state.space().by_drive().collect();
    let running = *lock(&background.rebuild);
    let mut domains = shared.drives.domains();
    let drives = (0u16..).zip(shared.drives.iter());
    drives
        .filter(|(index, _)| shared.drives.condition(*index) != Condition::Removed)
        .map(|(index, drive)| {
            let domain = domains.get_mut(usize::from(index)).and_then(Option::take);
            let (capacity, free) = shared.drives.room_on(index, &named);
            let state = shared.drives.state(index);
            let rebuild = running.and_then(|running| running.of(&shared.drives, index));
            let used_bytes = capacity.saturating_sub(free) * grain;
            DriveStatus {
                name: drive.name().to_owned(),
                domain,
                capacity_bytes: capacity * grain,
                used_bytes,
                free_bytes: free * grain,
                stale_bytes: stale_bytes(state, used_bytes, rebuild),
                errors: shared.drives.errors(index),
                hedged_reads: (shared.drives.read_times(index)).map_or(0, |times| times.hedged()),
                state,
                rebuild,
                emptying: shared.drives.is_emptying(index),
            }
        })
        .collect()
}

/// A rebuild looks at what the whole pool has in use, so the drive's part of it is in proportion.
fn stale_bytes(state: DriveState, used_bytes: u64, rebuild: Option<RebuildStatus>) -> u64 {
    match (state, rebuild) {
        (DriveState::Online, _) => 0,
        (_, Some(rebuild)) if rebuild.total_bytes > 0 => {
            let left = rebuild.total_bytes.saturating_sub(rebuild.done_bytes);
            (u128::from(used_bytes) * u128::from(left) / u128::from(rebuild.total_bytes)) as u64
        }
        _ => used_bytes,
    }
}

fn trimming(state: &State) -> Vec<TrimmingStatus> {
    let grain = SUB_BLOCK_BYTES as u64;
    let entries = state.volumes.values().filter(|entry| entry.is_active());
    entries
        .filter_map(|entry| {
            let (remaining, total) = entry.core.trim_progress();
            (remaining > 0).then(|| TrimmingStatus {
                name: entry.info.name.clone(),
                remaining_bytes: remaining * grain,
                total_bytes: total * grain,
            })
        })
        .collect()
}

fn deleting(background: &Background, state: &State) -> Vec<DeletingStatus> {
    let grain = SUB_BLOCK_BYTES as u64;
    let totals = lock(&background.deleting);
    let entries = state.volumes.values().filter(|entry| !entry.is_active());
    entries
        .map(|entry| {
            let remaining = entry.map().mapped();
            let total = totals.get(&entry.info.id).copied().unwrap_or(0);
            DeletingStatus {
                name: entry.info.name.clone(),
                remaining_bytes: remaining * grain,
                total_bytes: total.max(remaining) * grain,
            }
        })
        .collect()
}
