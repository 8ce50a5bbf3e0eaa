//! Structural check of a store: do mappings, blocks, counts and volumes agree?
//!
//! Memory grows with the number of blocks in the pool (about 56 bytes each): this is for an offline
//! check, not for the daemon.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::{Batch, resolve_block, resolve_volume};
use crate::error::MetaError;
use crate::store::{LoadVisitor, Store};
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo,
    VolumeState,
};

/// Problems that are described one by one; more are only counted.
const PROBLEMS_MAX: usize = 100;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// A mapping points to a block that has no row.
    DanglingMapping,
    /// A block's count is not the number of mappings to it.
    WrongCount,
    /// A block has a row, and no mapping.
    OrphanBlock,
    /// A mapping belongs to a map that no volume has, and that has no row.
    UnknownVolume,
    /// A map has a parent that there is not, or that is not above it; or two volumes have one map, or
    /// a volume has one that is a parent.
    WrongParent,
    /// A mapping lies beyond the end of its volume.
    BeyondEnd,
    /// A record cannot be applied to the rows.
    BadRecord,
    /// A mapping's checksum is not that of its block.
    WrongChecksum,
    /// The totals that the store keeps are not what it holds.
    WrongTotal,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub kind: ProblemKind,
    /// With what.
    pub detail: String,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// What the checked rows stand for.
    pub checkpoint: Checkpoint,
    /// Volumes, those being deleted included.
    pub volumes: u64,
    /// Mappings.
    pub mappings: u64,
    /// Blocks in use.
    pub blocks: u64,
    /// Blocks whose fingerprint another block has too. That is waste, not damage: the engine may store
    /// a content twice when it loses a race, or when a count is full.
    pub duplicate_fingerprints: u64,
    /// Hints that lead elsewhere than block rows say, or that are not there. That is no damage either: a
    /// hint is never believed, and a content that is not found is stored once more.
    pub wrong_hints: u64,
    /// Problems found, by kind.
    pub counts: BTreeMap<ProblemKind, u64>,
    /// The first problems, described.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_consistent(&self) -> bool {
        self.counts.is_empty()
    }

    fn problem(&mut self, kind: ProblemKind, detail: impl FnOnce() -> String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem {
                kind,
                detail: detail(),
            });
        }
    }
}

/// Checks the rows of a store.
///
/// # Errors
/// Those of [`Store::load`]; what is wrong between rows is in the report.
pub fn check(store: &dyn Store) -> Result<CheckReport, MetaError> {
    run(store, None, 0)
}

/// Checks the rows of a store as they would be with `pending` applied: what the next opening will find.
/// Nothing is written. With a `sub_block_bytes` other than 0, mappings beyond the end of their volume
/// are problems too.
///
/// # Errors
/// As for [`check`].
pub fn check_with(
    store: &dyn Store,
    pending: &Batch,
    sub_block_bytes: u32,
) -> Result<CheckReport, MetaError> {
    run(store, Some(pending), sub_block_bytes)
}

fn run(
    store: &dyn Store,
    pending: Option<&Batch>,
    sub_block_bytes: u32,
) -> Result<CheckReport, MetaError> {
    let mut rows = Rows::default();
    let mut checkpoint = store.load(&mut rows)?;
    let mut found = Totals::default();
    for block in &rows.blocks {
        found.add_block(block.pba);
    }
    rows.blocks.sort_unstable_by_key(|block| block.pba);
    let mut report = CheckReport {
        checkpoint,
        volumes: 0,
        mappings: 0,
        blocks: 0,
        duplicate_fingerprints: 0,
        wrong_hints: rows.hints.wrong + rows.hinted().abs_diff(rows.hints.right),
        counts: BTreeMap::new(),
        problems: Vec::new(),
    };
    if let Some(batch) = pending {
        checkpoint = batch.checkpoint;
        rows.apply(batch, &mut report);
    }
    report.checkpoint = checkpoint;
    rows.check_maps(&mut report);

    let mut mappings = Mappings {
        rows: &mut rows,
        pending,
        sub_block_bytes,
        report: &mut report,
        found,
    };
    // A second pass over the store, so that the mappings need not be held in memory.
    store.load(&mut mappings)?;
    if let Some(batch) = pending {
        for ((map, sub_block), change) in &batch.map {
            if let Some(mapping) = change.new {
                mappings.count(*map, *sub_block, mapping);
            }
        }
    }
    let found = mappings.found;
    let kept = store.totals()?;
    if found != kept {
        report.problem(ProblemKind::WrongTotal, || {
            format!("the totals are {kept:?}, but the rows are {found:?}")
        });
    }
    rows.report(&mut report);
    Ok(report)
}

struct Block {
    pba: Pba,
    row: BlockRow,
    mappings: u64,
}

/// First pass: volumes and blocks.
#[derive(Default)]
struct Rows {
    volumes: BTreeMap<u32, VolumeInfo>,
    maps: BTreeMap<MapId, MapInfo>,
    /// The volume of a map, from when volumes and maps are complete.
    volume_of: BTreeMap<MapId, u32>,
    /// By address.
    blocks: Vec<Block>,
    hints: Hints,
}

/// How many hints lead where block rows say that they do.
#[derive(Default)]
struct Hints {
    right: u64,
    wrong: u64,
}

impl LoadVisitor for Rows {
    fn volume(&mut self, volume: VolumeInfo) {
        self.volumes.insert(volume.id, volume);
    }

    fn map_row(&mut self, info: MapInfo) {
        self.maps.insert(info.id, info);
    }

    fn block(&mut self, pba: Pba, row: BlockRow) {
        self.blocks.push(Block {
            pba,
            row,
            mappings: 0,
        });
    }

    fn map(&mut self, _map: MapId, _sub_block: u64, _mapping: Mapping) {}

    fn hint(&mut self, fingerprint: Fingerprint, pba: Pba) {
        let row = self.find(pba).map(|block| block.row);
        let is_right = row.is_some_and(|row| row.is_hinted && row.fingerprint == fingerprint);
        match is_right {
            true => self.hints.right += 1,
            false => self.hints.wrong += 1,
        }
    }
}

impl Rows {
    fn hinted(&self) -> u64 {
        self.blocks
            .iter()
            .filter(|block| block.row.is_hinted)
            .count() as u64
    }

    fn find(&mut self, pba: Pba) -> Option<&mut Block> {
        let index = self
            .blocks
            .binary_search_by_key(&pba, |block| block.pba)
            .ok()?;
        self.blocks.get_mut(index)
    }

    fn apply(&mut self, batch: &Batch, report: &mut CheckReport) {
        let mut added = Vec::new();
        let mut removed = BTreeSet::new();
        for (pba, change) in &batch.blocks {
            let stored = self.find(*pba);
            match resolve_block(*pba, stored.as_ref().map(|block| block.row), change) {
                Ok(Some(row)) => match stored {
                    Some(block) => block.row = row,
                    None => added.push(Block {
                        pba: *pba,
                        row,
                        mappings: 0,
                    }),
                },
                Ok(None) => {
                    removed.insert(*pba);
                }
                Err(error) => report.problem(ProblemKind::BadRecord, || error.to_string()),
            }
        }
        self.blocks.retain(|block| !removed.contains(&block.pba));
        self.blocks.append(&mut added);
        self.blocks.sort_unstable_by_key(|block| block.pba);
        for (id, change) in &batch.volumes {
            match resolve_volume(*id, self.volumes.get(id).cloned(), change) {
                Ok(Some(info)) => {
                    self.volumes.insert(*id, info);
                }
                Ok(None) => {
                    self.volumes.remove(id);
                }
                Err(error) => report.problem(ProblemKind::BadRecord, || error.to_string()),
            }
        }
        for (id, info) in &batch.maps {
            match info {
                Some(info) => self.maps.insert(*id, *info),
                None => self.maps.remove(id),
            };
        }
    }

    /// Proves that every map has its parent, and that each volume has a map for itself that is nobody's parent.
    fn check_maps(&mut self, report: &mut CheckReport) {
        for info in self.volumes.values() {
            if let Some(other) = self.volume_of.insert(info.map, info.id) {
                report.problem(ProblemKind::WrongParent, || {
                    format!("volumes {other} and {} both have map {}", info.id, info.map)
                });
            }
        }
        for info in self.maps.values() {
            let Some(parent) = info.parent else { continue };
            let above = self.maps.get(&parent).map(|parent| parent.depth);
            if above.is_none_or(|above| above >= info.depth) {
                report.problem(ProblemKind::WrongParent, || {
                    format!(
                        "map {} is {} levels deep, and its parent {parent} is not there or not above it",
                        info.id, info.depth
                    )
                });
            }
            if let Some(volume) = self.volume_of.get(&parent) {
                report.problem(ProblemKind::WrongParent, || {
                    format!(
                        "map {parent} is that of volume {volume}, and the parent of map {}",
                        info.id
                    )
                });
            }
        }
    }

    fn report(self, report: &mut CheckReport) {
        report.volumes = self.volumes.len() as u64;
        report.blocks = self.blocks.len() as u64;
        for block in &self.blocks {
            let Block { pba, row, mappings } = block;
            if *mappings == 0 {
                report.problem(ProblemKind::OrphanBlock, || {
                    format!("block {pba} has {} references and no mapping", row.refcount)
                });
            } else if *mappings != u64::from(row.refcount) {
                report.problem(ProblemKind::WrongCount, || {
                    format!(
                        "block {pba} has {} references and {mappings} mappings",
                        row.refcount
                    )
                });
            }
        }
        let mut fingerprints: Vec<Fingerprint> = self
            .blocks
            .iter()
            .map(|block| block.row.fingerprint)
            .filter(Fingerprint::is_some)
            .collect();
        fingerprints.sort_unstable();
        report.duplicate_fingerprints = fingerprints
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .count() as u64;
    }
}

/// Second pass: mappings.
struct Mappings<'a> {
    rows: &'a mut Rows,
    pending: Option<&'a Batch>,
    sub_block_bytes: u32,
    report: &'a mut CheckReport,
    /// What the store itself holds.
    found: Totals,
}

impl Mappings<'_> {
    fn count(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        if mapping.is_hole() {
            return self.check_map(map, sub_block);
        }
        let Mapping { pba, crc32c } = mapping;
        self.report.mappings += 1;
        match self.rows.find(pba) {
            Some(block) => {
                block.mappings += 1;
                if block.row.crc32c != crc32c {
                    self.report.problem(ProblemKind::WrongChecksum, || {
                        format!(
                            "sub-block {sub_block} of map {map} and its block {pba} have different \
                             checksums"
                        )
                    });
                }
            }
            None => self.report.problem(ProblemKind::DanglingMapping, || {
                format!("sub-block {sub_block} of map {map} maps to block {pba}, which has no row")
            }),
        }
        self.check_map(map, sub_block);
    }

    /// A map has an entry there.
    fn check_map(&mut self, map: MapId, sub_block: u64) {
        let volume = self.rows.volume_of.get(&map);
        match volume.and_then(|volume| self.rows.volumes.get(volume)) {
            None if self.rows.maps.contains_key(&map) => {}
            None => self.report.problem(ProblemKind::UnknownVolume, || {
                format!(
                    "sub-block {sub_block} of map {map} is mapped, but no volume has such a map"
                )
            }),
            Some(info) => {
                let begin = sub_block.saturating_mul(u64::from(self.sub_block_bytes));
                // What a shrunk volume cut off is still being given back.
                if begin >= info.size_bytes
                    && self.sub_block_bytes != 0
                    && info.state == VolumeState::Active
                    && !info.is_trimming(sub_block)
                {
                    self.report.problem(ProblemKind::BeyondEnd, || {
                        format!(
                            "sub-block {sub_block} of volume {} is beyond its end",
                            info.name
                        )
                    });
                }
            }
        }
    }
}

impl LoadVisitor for Mappings<'_> {
    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, _pba: Pba, _row: BlockRow) {}

    fn map(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        let is_hole = mapping.is_hole();
        if !is_hole {
            self.found.add_mapping(map);
        }
        let pba = mapping.pba;
        let change = self
            .pending
            .and_then(|batch| batch.map.get(&(map, sub_block)));
        let goes = self
            .pending
            .is_some_and(|batch| batch.maps.get(&map) == Some(&None));
        match change {
            None if is_hole && goes => {}
            None => self.count(map, sub_block, mapping),
            // Counted with the batch, but only if it knows what it replaces.
            Some(change) if change.old == Some(pba).filter(|_| !is_hole) => {}
            Some(change) => {
                self.report.problem(ProblemKind::BadRecord, || {
                    format!(
                        "a record says that sub-block {sub_block} of map {map} mapped to {:?}, the \
                         store says {pba}",
                        change.old
                    )
                });
            }
        }
    }
}
