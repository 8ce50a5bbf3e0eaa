//! A store in memory, for simulations: batches are atomic, and it can fail at any one of them.

mod raw;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::map_rows::whole_rows;
use super::{LoadVisitor, MapRows, RowKind, Store};
use crate::batch::{Batch, IndexEntryChange, check_progress, resolve_block, resolve_volume};
use crate::error::MetaError;
use crate::segment::SegmentRow;
use crate::setting::SettingChanges;
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo,
};

/// How an armed [`MemoryStore`] fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The process dies before the batch is durable.
    CrashBefore,
    /// The process dies after the batch is durable, and does not learn of it.
    CrashAfter,
    /// The file system is full; only this batch fails, and nothing of it is applied.
    NoSpace,
}

/// A store in memory. It checks more than a store on disk can afford: every change of a mapping must
/// name the mapping's present value.
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    volumes: BTreeMap<u32, VolumeInfo>,
    maps: BTreeMap<MapId, MapInfo>,
    settings: BTreeMap<String, Vec<u8>>,
    blocks: BTreeMap<Pba, BlockRow>,
    map: BTreeMap<(MapId, u64), Mapping>,
    index: BTreeMap<Fingerprint, Pba>,
    segments: BTreeMap<Pba, SegmentRow>,
    totals: Totals,
    checkpoint: Checkpoint,
    operations: u64,
    fault: Option<(u64, StoreFault)>,
    dead: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            volumes: BTreeMap::new(),
            maps: BTreeMap::new(),
            settings: BTreeMap::new(),
            blocks: BTreeMap::new(),
            map: BTreeMap::new(),
            index: BTreeMap::new(),
            segments: BTreeMap::new(),
            totals: Totals::default(),
            checkpoint: Checkpoint::EMPTY,
            operations: 0,
            fault: None,
            dead: false,
        }
    }
}

impl MemoryStore {
    /// The store of a new pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// The store as it is now, apart from this one; it does not fail.
    pub fn copy(&self) -> Self {
        let mut state = self.lock().clone();
        state.dead = false;
        state.fault = None;
        Self {
            state: Mutex::new(state),
        }
    }

    /// Batches and changes of segments applied or failed so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Lets batch number `operation` (as [`Self::operations`] counts, from 0) fail. After a crash all
    /// later batches fail too, until [`Self::revive`].
    pub fn fail_at(&self, operation: u64, fault: StoreFault) {
        self.lock().fault = Some((operation, fault));
    }

    /// Whether a crash of [`Self::fail_at`] has struck.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Another process opens the same store: batches work again.
    pub fn revive(&self) {
        let mut state = self.lock();
        state.dead = false;
        state.fault = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The index entry leads to this block, whose row says so, and to no other one any more.
    fn put_index_entry(&mut self, pba: Pba, fingerprint: Fingerprint) {
        let before = self.index.insert(fingerprint, pba);
        let before = before.filter(|before| *before != pba);
        if let Some(row) = before.and_then(|before| self.blocks.get_mut(&before))
            && row.fingerprint == fingerprint
        {
            row.has_index_entry = false;
        }
        if let Some(row) = self.blocks.get_mut(&pba) {
            row.has_index_entry = true;
        }
    }

    /// An operation that is done as a whole, and can be made to fail.
    fn change(
        &mut self,
        what: &'static str,
        change: impl FnOnce(&mut Self) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        let dead = || {
            MetaError::io(
                NAME,
                what,
                io::Error::other("the simulated process is dead"),
            )
        };
        if self.dead {
            return Err(dead());
        }
        let operation = self.operations;
        self.operations += 1;
        match self.fault.filter(|(at, _)| *at == operation) {
            None => change(self),
            Some((_, StoreFault::NoSpace)) => {
                self.fault = None;
                Err(MetaError::io(NAME, what, io::ErrorKind::StorageFull.into()))
            }
            Some((_, fault)) => {
                if fault == StoreFault::CrashAfter {
                    change(self)?;
                }
                self.dead = true;
                Err(dead())
            }
        }
    }

    fn apply(&mut self, batch: &Batch) -> Result<(), MetaError> {
        check_progress(self.checkpoint, batch)?;
        for ((map, sub_block), change) in batch.map.iter() {
            let stored = self.map.get(&(map, sub_block));
            let stored = stored.filter(|mapping| !mapping.is_hole());
            let stored = stored.map(|mapping| mapping.pba);
            if stored != change.old {
                return Err(MetaError::Inconsistent(format!(
                    "a record says that sub-block {sub_block} of map {map} mapped to {:?}, the \
                     store says {stored:?}",
                    change.old
                )));
            }
        }
        // Everything is worked out before anything is changed: a batch is applied as a whole.
        let blocks = batch
            .blocks
            .iter()
            .map(|(pba, change)| {
                let before = self.blocks.get(&pba).copied();
                let after = resolve_block(pba, before, &change)?;
                Ok((pba, after, IndexEntryChange::new(before, after, &change)))
            })
            .collect::<Result<Vec<_>, MetaError>>()?;
        let volumes = batch
            .volumes
            .iter()
            .map(|(id, change)| {
                Ok((
                    *id,
                    resolve_volume(*id, self.volumes.get(id).cloned(), change)?,
                ))
            })
            .collect::<Result<Vec<_>, MetaError>>()?;
        for (pba, _, entry) in &blocks {
            if let Some(old) = entry.old {
                let gone = self.index.remove(&old);
                debug_assert_eq!(
                    gone,
                    Some(*pba),
                    "the index entry for {old} leads elsewhere"
                );
            }
        }
        let new = blocks.iter().map(|(pba, _, entry)| (*pba, entry.new));
        let new: Vec<_> = new.filter_map(|(pba, new)| Some((pba, new?))).collect();
        for (pba, row, _) in blocks {
            let before = self.blocks.contains_key(&pba);
            let fits = self
                .totals
                .change_blocks(pba, row.is_some().into(), before.into());
            debug_assert!(
                fits || batch.totals.is_some(),
                "more blocks go than there are"
            );
            set(&mut self.blocks, pba, row);
        }
        for (pba, new) in new {
            self.put_index_entry(pba, new);
        }
        for (id, row) in volumes {
            set(&mut self.volumes, id, row);
        }
        for (key, value) in &batch.settings {
            set(&mut self.settings, key.clone(), value.clone());
        }
        for (key, change) in batch.map.iter() {
            let (before, after) = change.is_mapped();
            let fits = self
                .totals
                .change_mappings(key.0, after.into(), before.into());
            debug_assert!(
                fits || batch.totals.is_some(),
                "more mappings go than there are"
            );
            set(&mut self.map, key, change.new);
        }
        for (id, info) in &batch.maps {
            if info.is_none() {
                self.map.retain(|(map, _), mapping| {
                    let goes = map == id;
                    debug_assert!(!goes || mapping.is_hole(), "map {id} goes with mappings");
                    !goes
                });
            }
            set(&mut self.maps, *id, *info);
        }
        if let Some(totals) = &batch.totals {
            self.totals = totals.clone();
        }
        self.checkpoint = batch.checkpoint;
        Ok(())
    }
}

fn set<K: Ord, V>(rows: &mut BTreeMap<K, V>, key: K, row: Option<V>) {
    match row {
        Some(row) => {
            rows.insert(key, row);
        }
        None => {
            rows.remove(&key);
        }
    }
}

/// What messages call the store.
const NAME: &str = "store in memory";

impl Store for MemoryStore {
    fn load(&self, visitor: &mut dyn LoadVisitor) -> Result<Checkpoint, MetaError> {
        let state = self.lock();
        for volume in state.volumes.values() {
            visitor.volume(volume.clone());
        }
        for info in state.maps.values() {
            visitor.map_row(*info);
        }
        let [blocks, mappings, index_entries] =
            [RowKind::Block, RowKind::Mapping, RowKind::IndexEntry].map(|kind| visitor.wants(kind));
        for (pba, row) in state.blocks.iter().filter(|_| blocks) {
            visitor.block(*pba, *row);
        }
        for ((map, sub_block), mapping) in state.map.iter().filter(|_| mappings) {
            visitor.map(*map, *sub_block, *mapping);
        }
        for (fingerprint, pba) in state.index.iter().filter(|_| index_entries) {
            visitor.index_entry(*fingerprint, *pba);
        }
        Ok(state.checkpoint)
    }

    fn checkpoint(&self) -> Result<Checkpoint, MetaError> {
        Ok(self.lock().checkpoint)
    }

    fn volumes(&self) -> Result<Vec<VolumeInfo>, MetaError> {
        Ok(self.lock().volumes.values().cloned().collect())
    }

    fn maps(&self) -> Result<Vec<MapInfo>, MetaError> {
        Ok(self.lock().maps.values().copied().collect())
    }

    fn settings(&self) -> Result<BTreeMap<String, Vec<u8>>, MetaError> {
        Ok(self.lock().settings.clone())
    }

    fn totals(&self) -> Result<Totals, MetaError> {
        Ok(self.lock().totals.clone())
    }

    fn blocks(
        &self,
        first: Pba,
        end: Pba,
        count_max: usize,
    ) -> Result<Vec<(Pba, BlockRow)>, MetaError> {
        let state = self.lock();
        let rows = state.blocks.range(first..end.max(first));
        let rows = rows.map(|(pba, row)| (*pba, *row));
        Ok(rows.take(count_max).collect())
    }

    fn last_block(&self, end: Pba) -> Result<Option<Pba>, MetaError> {
        let state = self.lock();
        let last = state.blocks.range(..end).next_back();
        Ok(last.map(|(pba, _)| *pba))
    }

    fn mappings(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, Mapping)>, MetaError> {
        let state = self.lock();
        let rows = state.map.range((map, first)..(map, end.max(first)));
        let rows = rows.map(|((_, sub_block), mapping)| (*sub_block, *mapping));
        Ok(rows.take(count_max).collect())
    }

    fn map_rows(
        &self,
        map: MapId,
        ranges: &[Range<u64>],
        (rows_max, count_max): (usize, usize),
    ) -> Result<MapRows, MetaError> {
        let mut found = MapRows::default();
        if rows_max == 0 || count_max == 0 {
            return Ok(found);
        }
        let state = self.lock();
        for whole in whole_rows(ranges) {
            for ((_, sub_block), mapping) in state.map.range((map, whole.start)..(map, whole.end)) {
                let is_full = found.count() >= count_max || found.rows() >= rows_max;
                if is_full && *sub_block >= found.end() {
                    return Ok(found);
                }
                found.push_entry(map, *sub_block, *mapping);
            }
        }
        Ok(found)
    }

    fn mapped_parts(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        sub_blocks: u64,
    ) -> Result<Vec<u64>, MetaError> {
        let rows = self.mappings(map, first, end, usize::MAX)?;
        let mut parts: Vec<u64> = rows.iter().map(|(at, _)| at / sub_blocks).collect();
        parts.dedup();
        Ok(parts)
    }

    fn index_entries(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Pba>>, MetaError> {
        let state = self.lock();
        let found = fingerprints.iter().map(|f| state.index.get(f).copied());
        Ok(found.collect())
    }

    fn has_index_entries(&self) -> Result<bool, MetaError> {
        Ok(!self.lock().index.is_empty())
    }

    fn put_index_entries(&self, blocks: &[(Pba, Fingerprint)]) -> Result<(), MetaError> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.dead {
            let dead = io::Error::other("the simulated process is dead");
            return Err(MetaError::io(NAME, "write index entries", dead));
        }
        let is_wanted = |(pba, fingerprint): &&(Pba, Fingerprint)| {
            let row = state.blocks.get(pba);
            row.is_some_and(|row| row.fingerprint == *fingerprint && !row.has_index_entry)
        };
        let wanted: Vec<_> = blocks.iter().filter(is_wanted).collect();
        for (pba, fingerprint) in wanted {
            state.put_index_entry(*pba, *fingerprint);
        }
        Ok(())
    }

    fn segments(&self) -> Result<Vec<(Pba, SegmentRow)>, MetaError> {
        let state = self.lock();
        Ok(state
            .segments
            .iter()
            .map(|(pba, row)| (*pba, *row))
            .collect())
    }

    fn put_segments(&self, range: Range<Pba>, rows: &[(Pba, SegmentRow)]) -> Result<(), MetaError> {
        self.lock().change("write rows of segments", |state| {
            state.segments.retain(|pba, _| !range.contains(pba));
            state.segments.extend(rows.iter().copied());
            Ok(())
        })
    }

    fn put_settings(&self, changes: &SettingChanges) -> Result<(), MetaError> {
        self.lock().change("write settings", |state| {
            for (key, value) in changes {
                set(&mut state.settings, key.clone(), value.clone());
            }
            Ok(())
        })
    }

    fn apply(&self, batch: &Batch) -> Result<(), MetaError> {
        self.lock()
            .change("apply a batch", |state| state.apply(batch))
    }

    fn size_bytes(&self) -> u64 {
        let state = self.lock();
        // The bytes of keys and values as a store on disk would have them, uncompressed.
        state.map.len() as u64 * 25
            + state.blocks.len() as u64 * 33
            + state.index.len() as u64 * 24
            + state.volumes.len() as u64 * 64
    }
}
