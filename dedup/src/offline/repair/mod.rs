//! The offline repair of a pool's metadata (`onefold pool repair`).
//!
//! What it does, and why so:
//! * **Maps are the truth.** Counts are rebuilt from the mappings; blocks that nothing maps are freed.
//! * **Nothing is invented.** A mapping whose block has no row (or that contradicts another one, or has another
//!   checksum than its block's row) cannot be proven to lead to the data that was written: even if the drive
//!   holds something there, it may be another block's content. Only of contents that rows, mappings and journal
//!   name in full, and of which they name several for one block, the drive may tell which is right. Any other
//!   such sub-block is *lost*: it is mapped to a block whose recorded
//!   checksum its content does not have, so that reading it is an error (I8), and never zeros or another
//!   block's data, until a host writes it again or trims it. The bytes on the drive stay as they are.
//! * **Nothing is thrown away that can be reached again.** Mappings of a map that no volume has become a
//!   volume `recovered-ID`, as large as its last mapping; whoever does not need it deletes it. A parent that lost its
//!   row gets it back if it had no parent itself; otherwise nobody knows what its children inherit, and nothing is
//!   changed.
//! * **What the journal holds counts.** Its records are replayed as an opening would, unflushed data
//!   proven by fingerprints, so that nothing counts as lost that the journal still knows.
//! * **A store whose files are damaged** is rebuilt first (`rebuild`), from the rows that can be read and what
//!   the journal still holds; the same rules hold for what comes out of that.
//! * **It is one atomic batch**, written after a backup of every row that it changes is on stable
//!   storage. A crash leaves the pool as it was, or repaired; a repaired pool needs no repair.
//!
//! Memory grows with the damage and the journal, and not with the pool: tables of healthy blocks take what they are given,
//! and where they do not hold all blocks at once, the mappings are read more than once.

mod backup;
mod plan;
mod rebuild;
mod resolve;
mod suspects;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use drives::Drive;
use futures_util::FutureExt;
use meta::{
    Batch, BlockRow, FingerprintFunction, HashKeys, JournalConfig, JournalMedia, MapId, MapInfo,
    Mapping, Pba, PoolDir, RocksOptions, Store, VolumeInfo,
};
use serde::Serialize;

use crate::drive_io::segments::{self, Rows};
use crate::offline::check::{CheckReport, open_drives};
use crate::{BootId, EngineError, Result};

/// Ranges and volumes that are listed; more are only counted.
const LISTED_MAX: usize = 1000;

/// A range of a volume whose data is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostRange {
    /// Name of the volume.
    pub volume: String,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes that are lost: whole sub-blocks.
    pub bytes: u64,
    /// Why the data cannot be trusted.
    pub reason: String,
}

/// A volume that gets a row again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecoveredVolume {
    /// Its new name.
    pub name: String,
    /// Its namespace identifier.
    pub nsid: u32,
    /// Its size in bytes, up to the last mapping.
    pub size_bytes: u64,
    /// How many of its sub-blocks are mapped.
    pub mappings: u64,
}

/// What a repair will do, or has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Whether there is nothing to repair: then nothing is changed.
    pub consistent: bool,
    /// What to know of the rebuilt metadata store, if its files are damaged: a new one is made of what is left, and
    /// the damaged files are kept.
    pub rebuilt: Vec<String>,
    /// Blocks that nothing maps, which are freed.
    pub freed_blocks: u64,
    /// Blocks whose count is set to the number of mappings.
    pub corrected_counts: u64,
    /// Mappings behind the end of their volume, or where no volume can be, which are removed.
    pub dropped_mappings: u64,
    /// Sub-blocks whose data is lost.
    pub lost_sub_blocks: u64,
    /// Where they are; the first thousand ranges.
    pub lost: Vec<LostRange>,
    /// Ranges of lost data, listed or not.
    pub lost_ranges: u64,
    /// Volumes that are made anew for mappings without a volume.
    pub recovered_volumes: Vec<RecoveredVolume>,
    /// Records of the journal that move into the store on the way.
    pub journal_records: u64,
    /// Sub-blocks of these whose unflushed data never arrived: they keep their old content.
    pub unproven: u64,
    /// Segments of which nothing said where they lie: they are taken to be where they were made.
    pub placed_segments: u64,
    /// Rows that are changed, the journal's changes included.
    pub changed_rows: u64,
}

/// A row that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Volume {
        id: u32,
        before: Option<Box<VolumeInfo>>,
        after: Option<Box<VolumeInfo>>,
    },
    Block {
        pba: Pba,
        before: Option<BlockRow>,
        after: Option<BlockRow>,
    },
    Map {
        id: MapId,
        before: Option<MapInfo>,
        after: Option<MapInfo>,
    },
    Mapping {
        map: MapId,
        sub_block: u64,
        before: Option<Mapping>,
        after: Option<Mapping>,
    },
}

/// What a plan is made from.
struct Parts {
    drives: Vec<Arc<dyn Drive>>,
    journal: Arc<dyn JournalMedia>,
    journal_config: JournalConfig,
    store: Arc<dyn Store>,
    hash_keys: HashKeys,
    fingerprint: FingerprintFunction,
    boot: Option<BootId>,
    /// The latest epoch on a label: the repaired pool goes beyond it.
    labels_epoch: u32,
    /// The store is a new one, made of what was left: a block without a row is known by the checksum of its
    /// mapping.
    trusts_checksums: bool,
}

/// A plan: what is wrong, and the changes that make it right.
struct Plan {
    report: RepairReport,
    changes: Vec<Change>,
    /// Rows of segments that are written again, by the drive where they were made.
    segments: Vec<(u16, Rows)>,
    batch: Batch,
}

/// A pool that was looked at for repair. Nothing was changed yet; the pool is locked as long as this
/// lives.
pub struct Repair {
    pool: PoolDir,
    parts: Parts,
    plan: Plan,
    rebuilt: Option<rebuild::Rebuilt>,
}

impl Repair {
    /// Looks at the pool in `dir`, which no other process may be using, and works out what to do. Its tables of healthy
    /// blocks take `memory_bytes` at most: about 10 bytes a block are needed for each pass over the mappings.
    ///
    /// # Errors
    /// `Corrupt` if the pool is damaged in a way that cannot be repaired from what it holds: a drive is
    /// missing, or journal or store cannot be read. Other kinds if it could not be looked at.
    pub fn plan(dir: &Path, memory_bytes: usize) -> Result<Self> {
        let pool = PoolDir::open(dir)?;
        let mut report = CheckReport::default();
        let Some(found) = open_drives(&pool, &mut report)? else {
            let what = report.findings.first();
            let what = what.map_or_else(String::new, |f| format!("{}: {}", f.object, f.detail));
            return Err(EngineError::corrupt(format!(
                "{what}; a repair without this drive would count its data as lost: nothing was changed"
            )));
        };
        if rebuild::is_needed(&pool)? {
            let labels_epoch = found.newest_epoch();
            let (mut parts, mut rebuilt) = rebuild::make(&pool, found.drives)?;
            parts.labels_epoch = labels_epoch;
            let epoch = parts.store.checkpoint()?.epoch;
            if labels_epoch > epoch {
                rebuilt.notes.push(format!(
                    "what is left of the metadata is of epoch {epoch} at most, and the drives were opened in epoch \
                     {labels_epoch}: what was written since is lost"
                ));
            }
            let mut plan = plan::make(&parts, memory_bytes)?;
            plan.report.rebuilt = rebuilt.notes.clone();
            return Ok(Self {
                pool,
                parts,
                plan,
                rebuilt: Some(rebuilt),
            });
        }
        let store: Arc<dyn Store> = Arc::new(pool.open_store(RocksOptions::default())?);
        found.refuse_older_copies(&pool, &*store)?;
        let parts = Parts {
            labels_epoch: found.newest_epoch(),
            drives: found.drives,
            journal: Arc::new(pool.open_journal()?),
            journal_config: JournalConfig::default(),
            store,
            hash_keys: pool.identity().hash_keys.clone(),
            fingerprint: pool.identity().fingerprint,
            boot: BootId::current(),
            trusts_checksums: false,
        };
        let plan = plan::make(&parts, memory_bytes)?;
        Ok(Self {
            pool,
            parts,
            plan,
            rebuilt: None,
        })
    }

    /// What [`Repair::apply`] will do.
    pub fn report(&self) -> &RepairReport {
        &self.plan.report
    }

    /// Writes the backup of all rows that change, and then changes them, all or none. Returns the path of
    /// the backup; `None` if there was nothing to do.
    ///
    /// # Errors
    /// The backup or the batch could not be written: the pool is as it was.
    pub fn apply(self) -> Result<Option<PathBuf>> {
        let backup = apply(&self.parts, &self.plan, &self.pool.paths().dir)?;
        drop(self.parts);
        if let Some(rebuilt) = self.rebuilt {
            rebuilt.take_over()?;
        }
        Ok(backup)
    }
}

fn apply(parts: &Parts, plan: &Plan, dir: &Path) -> Result<Option<PathBuf>> {
    if plan.report.consistent {
        return Ok(None);
    }
    // What was proven by reading may still be in a drive's cache only, and is not proven again.
    for drive in &parts.drives {
        let flushed = drive.flush().now_or_never();
        flushed
            .ok_or_else(|| EngineError::internal("the repair waited for a drive"))?
            .map_err(|error| {
                EngineError::unavailable(format!(
                    "drive {} could not be flushed: {error}; nothing was changed",
                    drive.name()
                ))
            })?;
    }
    parts.journal.sync().map_err(|error| {
        EngineError::unavailable(format!(
            "{} could not be made durable: {error}; nothing was changed",
            parts.journal.name()
        ))
    })?;
    let path = backup::write(dir, parts.store.checkpoint()?, plan)?;
    // A crash in between leaves a pool that needs the rest of the repair.
    for (home, rows) in &plan.segments {
        parts.store.put_segments(segments::names(*home), rows)?;
    }
    parts.store.apply(&plan.batch)?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests;
