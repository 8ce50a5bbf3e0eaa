//! Structural check of a store: do mappings, blocks, counts and volumes agree?
//!
//! Guarantee: its tables take no more memory than it was given. Where they do not hold all blocks of the pool, it compares
//! one range of addresses after the other, and reads the mappings once for each. So it makes no file.

mod window;

pub use window::{BlockWindow, Counted};

use std::collections::BTreeMap;

use crate::batch::{Batch, resolve_block, resolve_volume};
use crate::error::MetaError;
use crate::store::{LoadVisitor, RowKind, Store};
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo,
    VolumeState,
};

/// Problems that are described one by one; more are only counted.
const PROBLEMS_MAX: usize = 100;

/// Bytes that the tables of a check take by default: enough for 800 GiB of different blocks in one pass.
pub const CHECK_MEMORY_BYTES: usize = 2 << 30;

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
    /// a content twice when it loses a race, or when a count is full. Where memory does not hold all fingerprints it is
    /// an estimate from a part of them.
    pub duplicate_fingerprints: u64,
    /// Whether index entries lead where block rows say, each of them. It is no damage if not: an index entry is never believed, and a
    /// content that is not found is stored once more.
    pub index_agrees: bool,
    /// How often the mappings were read, because memory did not hold all blocks at once.
    pub passes: u64,
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

/// Checks the rows of a store, with tables of [`CHECK_MEMORY_BYTES`] at most.
///
/// # Errors
/// Those of [`Store::load`]; what is wrong between rows is in the report.
pub fn check(store: &dyn Store) -> Result<CheckReport, MetaError> {
    run(store, None, 0, CHECK_MEMORY_BYTES)
}

/// Checks the rows of a store as they would be with `pending` applied: what the next opening will find.
/// Nothing is written. With a `sub_block_bytes` other than 0, mappings beyond the end of their volume
/// are problems too. The tables take `memory_bytes` at most.
///
/// # Errors
/// As for [`check`].
pub fn check_with(
    store: &dyn Store,
    pending: &Batch,
    sub_block_bytes: u32,
    memory_bytes: usize,
) -> Result<CheckReport, MetaError> {
    run(store, Some(pending), sub_block_bytes, memory_bytes)
}

fn run(
    store: &dyn Store,
    pending: Option<&Batch>,
    sub_block_bytes: u32,
    memory_bytes: usize,
) -> Result<CheckReport, MetaError> {
    let mut rows = Rows::default();
    let checkpoint = store.load(&mut rows)?;
    let mut report = CheckReport {
        checkpoint: pending.map_or(checkpoint, |batch| batch.checkpoint),
        volumes: 0,
        mappings: 0,
        blocks: 0,
        duplicate_fingerprints: 0,
        index_agrees: rows.entries_of_blocks == rows.index_entries,
        passes: 0,
        counts: BTreeMap::new(),
        problems: Vec::new(),
    };
    let mut blocks = rows.found.blocks.values().sum::<u64>();
    if let Some(batch) = pending {
        rows.apply(batch, &mut report);
        blocks = blocks.saturating_add(batch.blocks.len() as u64);
    }
    rows.check_maps(&mut report);
    report.volumes = rows.volumes.len() as u64;

    let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
    let mut sample = Sample::new(memory_bytes / 4, blocks);
    let mut window = BlockWindow::new(memory_bytes / 4 * 3, blocks);
    let mut count = 0;
    let mut take = |row: &BlockRow| {
        count += 1;
        sample.add(row.fingerprint);
    };
    loop {
        let misfits = |error: MetaError| {
            report.problem(ProblemKind::BadRecord, || error.to_string());
        };
        if !window.go_on(store, pending, misfits, &mut take)? {
            break;
        }
        report.passes += 1;
        let mut mappings = Mappings {
            rows: &mut rows,
            window: &mut window,
            pending,
            sub_block_bytes,
            report: &mut report,
        };
        store.load(&mut mappings)?;
        if let Some(batch) = pending {
            for ((map, sub_block), change) in batch.map.iter() {
                if let Some(mapping) = change.new {
                    mappings.count(map, sub_block, mapping);
                }
            }
        }
        tell_counts(&window, store, pending, &mut report)?;
    }
    report.blocks = count;
    report.duplicate_fingerprints = sample.duplicates();
    let kept = store.totals()?;
    if rows.found != kept {
        let found = rows.found;
        report.problem(ProblemKind::WrongTotal, || {
            format!("the totals are {kept:?}, but the rows are {found:?}")
        });
    }
    Ok(report)
}

/// All mappings to the blocks of a range were counted: which have another number of references?
fn tell_counts(
    window: &BlockWindow,
    store: &dyn Store,
    pending: Option<&Batch>,
    report: &mut CheckReport,
) -> Result<(), MetaError> {
    for (pba, left) in window.unsettled() {
        // Few blocks are wrong: the count was not kept.
        let row = store.blocks(pba, Pba(pba.0 + 1), 1)?;
        let row = row.first().map(|(_, row)| *row);
        let change = pending.and_then(|batch| batch.blocks.get(&pba));
        let row = match change {
            Some(change) => resolve_block(pba, row, &change).unwrap_or(row),
            None => row,
        };
        let references = row.map_or(0, |row| i64::from(row.refcount));
        match references - left {
            0 => report.problem(ProblemKind::OrphanBlock, || {
                format!("block {pba} has {references} references and no mapping")
            }),
            mappings => report.problem(ProblemKind::WrongCount, || {
                format!("block {pba} has {references} references and {mappings} mappings")
            }),
        }
    }
    Ok(())
}

/// Fingerprints of the pool, or a part of them that is the same for equal ones.
struct Sample {
    fingerprints: Vec<Fingerprint>,
    /// One of so many is taken: a power of two.
    one_of: u128,
}

impl Sample {
    fn new(bytes: usize, blocks: usize) -> Self {
        let room = (bytes / size_of::<Fingerprint>()).max(1);
        // Half of the room, as no sample is of exactly the size that is expected.
        let one_of = match blocks <= room {
            true => 1,
            false => blocks.div_ceil(room / 2 + 1).next_power_of_two(),
        };
        Self {
            fingerprints: Vec::with_capacity(room.min(blocks)),
            one_of: one_of as u128,
        }
    }

    fn add(&mut self, fingerprint: Fingerprint) {
        let number = u128::from_le_bytes(fingerprint.0);
        let is_full = self.fingerprints.len() == self.fingerprints.capacity();
        if fingerprint.is_some() && number.is_multiple_of(self.one_of) && !is_full {
            self.fingerprints.push(fingerprint);
        }
    }

    fn duplicates(mut self) -> u64 {
        self.fingerprints.sort_unstable();
        let pairs = self.fingerprints.windows(2);
        let equal = pairs.filter(|pair| pair[0] == pair[1]).count();
        (equal as u64).saturating_mul(u64::try_from(self.one_of).unwrap_or(u64::MAX))
    }
}

/// A sum over pairs of fingerprint and address. Two sets of pairs that differ have different sums, but for accidents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pairs {
    count: u64,
    sum: u128,
}

impl Pairs {
    fn add(&mut self, fingerprint: Fingerprint, pba: Pba) {
        let [content, address] = [u128::from_le_bytes(fingerprint.0), u128::from(pba.0)];
        // A product, so that the sum changes when two pairs exchange their addresses.
        let pair = (content | 1).wrapping_mul(2 * address + 1);
        self.count += 1;
        self.sum = self.sum.wrapping_add(pair);
    }
}

/// First pass: volumes and maps, and sums over blocks and index entries.
#[derive(Default)]
struct Rows {
    volumes: BTreeMap<u32, VolumeInfo>,
    maps: BTreeMap<MapId, MapInfo>,
    /// The volume of a map, from when volumes and maps are complete.
    volume_of: BTreeMap<MapId, u32>,
    /// What the store itself holds.
    found: Totals,
    /// Index entries, as block rows have them.
    entries_of_blocks: Pairs,
    /// Index entries, as there are.
    index_entries: Pairs,
}

impl LoadVisitor for Rows {
    fn wants(&self, kind: RowKind) -> bool {
        kind != RowKind::Mapping
    }

    fn volume(&mut self, volume: VolumeInfo) {
        self.volumes.insert(volume.id, volume);
    }

    fn map_row(&mut self, info: MapInfo) {
        self.maps.insert(info.id, info);
    }

    fn block(&mut self, pba: Pba, row: BlockRow) {
        self.found.add_block(pba);
        if row.has_index_entry {
            self.entries_of_blocks.add(row.fingerprint, pba);
        }
    }

    fn map(&mut self, _map: MapId, _sub_block: u64, _mapping: Mapping) {}

    fn index_entry(&mut self, fingerprint: Fingerprint, pba: Pba) {
        self.index_entries.add(fingerprint, pba);
    }
}

impl Rows {
    fn apply(&mut self, batch: &Batch, report: &mut CheckReport) {
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
}

/// Later passes: mappings.
struct Mappings<'a> {
    rows: &'a mut Rows,
    window: &'a mut BlockWindow,
    pending: Option<&'a Batch>,
    sub_block_bytes: u32,
    report: &'a mut CheckReport,
}

impl Mappings<'_> {
    /// What is told once is told in the first pass.
    fn is_first(&self) -> bool {
        self.report.passes == 1
    }

    fn count(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        if !mapping.is_hole() {
            self.report.mappings += u64::from(self.is_first());
            let pba = mapping.pba;
            match self.window.count(mapping) {
                Counted::NoRow => self.report.problem(ProblemKind::DanglingMapping, || {
                    format!(
                        "sub-block {sub_block} of map {map} maps to block {pba}, which has no row"
                    )
                }),
                Counted::Counted {
                    has_same_checksum: false,
                } => {
                    self.report.problem(ProblemKind::WrongChecksum, || {
                        format!(
                            "sub-block {sub_block} of map {map} and its block {pba} have different checksums"
                        )
                    });
                }
                Counted::Outside | Counted::Counted { .. } => {}
            }
        }
        if self.is_first() {
            self.check_map(map, sub_block, mapping.is_hole());
        }
    }

    /// A map has an entry there.
    fn check_map(&mut self, map: MapId, sub_block: u64, is_hole: bool) {
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
                // What a shrunk volume cut off is still being given back. Its holes stay: they hide what the map's parent
                // has there, from a volume that grows again.
                if begin >= info.size_bytes
                    && !is_hole
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
    fn wants(&self, kind: RowKind) -> bool {
        kind == RowKind::Mapping
    }

    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, _pba: Pba, _row: BlockRow) {}

    fn map(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        let is_hole = mapping.is_hole();
        if !is_hole && self.is_first() {
            self.rows.found.add_mapping(map);
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
            Some(_) if !self.is_first() => {}
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
