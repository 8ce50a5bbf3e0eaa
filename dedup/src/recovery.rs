//! Opening a pool after whatever happened.
//!
//! The checkpoint is loaded and the journal replayed over it in memory. Records that the journal says
//! are durable are taken as they are. The data of later ones may not have reached the drives: each of
//! their new blocks is read and compared with the fingerprint in the record (with its CRC-32C alone if
//! its volume is not deduplicated); a sub-block whose block fails keeps its old mapping, and everything else of the record applies (I2). Counts follow from the
//! mappings that result, not from what the records expected (I4). Then one batch makes the store equal
//! to memory, under a new epoch, and the journal begins empty.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive};
use futures_util::future::join_all;
use meta::{
    Batch, BlockChange, BlockContent, BlockRow, Checkpoint, Fingerprint, Journal, LoadVisitor,
    MapChange, NewBlock, Pba, Record, VolumeInfo,
};
use reactor::BufferPool;

use crate::engine::{EngineParts, block_on};
use crate::fingerprint::{self, Hasher};
use crate::index::{BLOCKS_MAX, BlockInfo, IN_FLIGHT};
use crate::read::coalesce;
use crate::state::{State, VolumeEntry};
use crate::{EngineError, LABEL_BLOCKS, Result};

/// Blocks read at a time to prove them.
const PROVE_BLOCKS: usize = 256;

/// Brings a pool back: state in memory, store and journal agree when this returns.
///
/// Also says how many records were replayed, and how many sub-blocks taken back.
pub(crate) async fn recover(
    parts: &EngineParts,
    bounces: &BufferPool,
) -> Result<(State, Journal, (u64, u64))> {
    let (recovered, mut journal) = replay(parts, bounces).await?;
    let epoch = journal
        .next_epoch()
        .ok_or_else(|| EngineError::internal("the pool was opened 2^32 times; make a new one"))?;
    let checkpoint = Checkpoint {
        position: journal.position(),
        epoch,
    };
    if recovered.records > 0 {
        // What was proven may still be in a drive's cache only.
        for (drive, result) in join_all(
            parts
                .drives
                .iter()
                .map(|d| async move { (d, d.flush().await) }),
        )
        .await
        {
            result.map_err(|error| {
                EngineError::unavailable(format!(
                    "drive {} could not be flushed: {error}; check it and try again",
                    drive.name()
                ))
            })?;
        }
    }
    let batch = recovered.batch(checkpoint);
    let store = parts.store.clone();
    block_on(parts.blocking, move || store.apply(&batch)).await?;
    journal.begin(checkpoint)?;
    let figures = (recovered.records, recovered.unproven);
    let mut state = recovered.state;
    state.last_change = journal.last_seq();
    state.flushed = state.last_change;
    state.durable = state.last_change;
    Ok((state, journal, figures))
}

/// Loads and replays, without writing anything.
pub(crate) async fn replay(
    parts: &EngineParts,
    bounces: &BufferPool,
) -> Result<(Recovered, Journal)> {
    let data_blocks = data_blocks(&parts.drives)?;
    let config = &parts.config;
    let state = State::new(&data_blocks, config.discard, config.references_max);
    let store = parts.store.clone();
    let (loader, checkpoint) = block_on(parts.blocking, move || {
        let mut loader = Loader {
            state,
            problem: None,
        };
        let checkpoint = store.load(&mut loader)?;
        Ok::<_, meta::MetaError>((loader, checkpoint))
    })
    .await?;
    let state = loader.finish()?;
    let (journal, records) = Journal::open(parts.journal.clone(), checkpoint, config.journal)?;
    let durable = durable_upto(&records)
        .unwrap_or(0)
        .max(checkpoint.position.seq - 1);
    let contents = read_unproven(parts, bounces, &state, &records, durable).await?;
    let mut recovered = Recovered::new(state, checkpoint.position.seq, records.len() as u64);
    for (sequence, record) in &records {
        recovered.apply(record, (*sequence > durable).then_some(&contents))?;
    }
    recovered.rebuild()?;
    if recovered.records > 0 {
        tracing::info!(
            records = recovered.records,
            unproven = recovered.unproven,
            "the journal was replayed"
        );
    }
    Ok((recovered, journal))
}

fn data_blocks(drives: &[Arc<dyn Drive>]) -> Result<Vec<u64>> {
    if drives.is_empty() || drives.len() >= usize::from(u16::MAX) {
        return Err(EngineError::invalid(format!(
            "a pool cannot have {} drives",
            drives.len()
        )));
    }
    let data_blocks = drives
        .iter()
        .map(|drive| match drive.blocks().checked_sub(LABEL_BLOCKS) {
            Some(blocks @ 1..=Pba::BLOCK_MAX) => Ok(blocks),
            _ => Err(EngineError::invalid(format!(
                "drive {} has {} blocks; from {} to 2^48 are possible",
                drive.name(),
                drive.blocks(),
                LABEL_BLOCKS + 1
            ))),
        });
    let data_blocks: Vec<u64> = data_blocks.collect::<Result<_>>()?;
    let blocks: u64 = data_blocks.iter().sum();
    if blocks > BLOCKS_MAX {
        return Err(EngineError::invalid(format!(
            "the drives have {blocks} data blocks together; at most {BLOCKS_MAX} are possible"
        )));
    }
    Ok(data_blocks)
}

fn durable_upto(records: &[(u64, Record)]) -> Option<u64> {
    let durable = records.iter().filter_map(|(_, record)| match record {
        Record::Durable { upto } => Some(*upto),
        _ => None,
    });
    durable.max()
}

fn damaged(what: impl std::fmt::Display) -> EngineError {
    EngineError::corrupt(format!(
        "the pool's metadata contradicts itself: {what}; nothing was changed, run `onefold pool check` and \
         restore `metadata/` and `journal` from one copy"
    ))
}

/// Fills the state from the store, and proves that counts and mappings agree.
struct Loader {
    state: State,
    problem: Option<EngineError>,
}

impl LoadVisitor for Loader {
    fn volume(&mut self, volume: VolumeInfo) {
        self.state.saw_volume(volume.id);
        self.state
            .volumes
            .insert(volume.id, VolumeEntry::new(volume));
    }

    fn block(&mut self, pba: Pba, row: BlockRow) {
        if !self.state.space.contains(pba) {
            self.problem.get_or_insert_with(|| outside(pba));
            return;
        }
        if row.refcount >= IN_FLIGHT {
            let count = row.refcount;
            self.problem
                .get_or_insert_with(|| damaged(format_args!("block {pba} has {count} references")));
            return;
        }
        let BlockRow {
            refcount: references,
            fingerprint,
            crc32c,
        } = row;
        *self.state.blocks.entry(pba) = BlockInfo {
            references,
            crc32c,
            fingerprint,
        };
    }

    fn map(&mut self, volume: u32, sub_block: u64, pba: Pba) {
        let Some(entry) = self.state.volumes.get_mut(&volume) else {
            self.problem.get_or_insert_with(|| {
                damaged(format_args!(
                    "sub-block {sub_block} belongs to volume {volume}, which there is not"
                ))
            });
            return;
        };
        entry.map.replace(sub_block, Some(pba));
        // Counted down to zero here, and up again in `finish`: the rest is what has no mapping.
        if self.state.blocks.get(pba).references == 0 {
            self.problem.get_or_insert_with(|| {
                damaged(format_args!(
                    "block {pba} has more mappings than references"
                ))
            });
            return;
        }
        self.state.blocks.entry(pba).references -= 1;
    }
}

impl Loader {
    fn finish(self) -> Result<State> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let mut state = self.state;
        if let Some((pba, info)) = state.blocks.iter().next() {
            let count = info.references;
            return Err(damaged(format_args!(
                "block {pba} has {count} references without a mapping"
            )));
        }
        for entry in state.volumes.values() {
            for (_, pba) in entry.map.range(0, u64::MAX) {
                state.blocks.entry(pba).references += 1;
            }
        }
        Ok(state)
    }
}

fn outside(pba: Pba) -> EngineError {
    EngineError::corrupt(format!(
        "data block {} of drive number {} is in use, but there is no such block: a drive is missing, or \
         smaller than it was; put the right one back, nothing was changed",
        pba.block(),
        pba.drive()
    ))
}

/// What a drive holds at a block.
struct Content {
    fingerprint: Fingerprint,
    crc32c: u32,
}

type Contents = HashMap<Pba, Content>;

/// Whether a drive holds what a record says. Content that was not hashed is proven by its checksum
/// alone: one block in 2^32 that was torn or lost would pass.
fn is_proven(contents: &Contents, new: &NewBlock) -> bool {
    contents.get(&new.pba).is_some_and(|content| {
        content.crc32c == new.crc32c
            && (!new.fingerprint.is_some() || content.fingerprint == new.fingerprint)
    })
}

/// What the drives hold at the new blocks of records that may not be durable. Blocks that cannot be
/// read are left out.
async fn read_unproven(
    parts: &EngineParts,
    bounces: &BufferPool,
    state: &State,
    records: &[(u64, Record)],
    durable: u64,
) -> Result<Contents> {
    let mut wanted = BTreeSet::new();
    for (_, record) in records.iter().filter(|(sequence, _)| *sequence > durable) {
        if let Record::Map { entries, .. } = record {
            wanted.extend(
                entries
                    .iter()
                    .filter_map(|entry| entry.new.map(|new| new.pba)),
            );
        }
    }
    if let Some(pba) = wanted.iter().find(|pba| !state.space.contains(**pba)) {
        return Err(outside(*pba));
    }
    let wanted: Vec<Pba> = wanted.into_iter().collect();
    let mut contents = HashMap::with_capacity(wanted.len());
    for same_drive in wanted.chunk_by(|a, b| a.drive() == b.drive()) {
        for blocks in same_drive.chunks(PROVE_BLOCKS) {
            contents.extend(read_contents(parts, bounces, blocks).await?);
        }
    }
    Ok(contents)
}

/// Reads blocks of one drive and fingerprints them. A block that cannot be read is left out; an error
/// if none can.
async fn read_contents(
    parts: &EngineParts,
    bounces: &BufferPool,
    blocks: &[Pba],
) -> Result<Vec<(Pba, Content)>> {
    let Some(drive) = blocks
        .first()
        .and_then(|pba| parts.drives.get(usize::from(pba.drive())))
    else {
        return Ok(Vec::new());
    };
    let hasher = Hasher::new(&parts.hash_key);
    let buf = bounces.alloc(blocks.len() * BLOCK_BYTES).await;
    let places = blocks
        .iter()
        .enumerate()
        .map(|(at, pba)| (*pba, at * BLOCK_BYTES));
    let (result, mut buf) = drive.read(buf, &coalesce(places)).await;
    if result.is_ok() {
        let mut found = Vec::with_capacity(blocks.len());
        let mut read = blocks.iter().zip(fingerprint::split(&buf));
        hasher.batch(fingerprint::split(&buf), |fingerprint| {
            found.extend(read.next().map(|(pba, block)| {
                let crc32c = fingerprint::crc32c(block);
                (
                    *pba,
                    Content {
                        fingerprint,
                        crc32c,
                    },
                )
            }));
        });
        return Ok(found);
    }
    let mut found = Vec::new();
    let mut last_error = None;
    for pba in blocks {
        let (result, back) = drive.read(buf, &coalesce([(*pba, 0)].into_iter())).await;
        buf = back;
        match result {
            Ok(()) => {
                let block = fingerprint::split(&buf).first();
                found.extend(block.map(|block| {
                    let fingerprint = hasher.one(block);
                    let crc32c = fingerprint::crc32c(block);
                    (
                        *pba,
                        Content {
                            fingerprint,
                            crc32c,
                        },
                    )
                }));
            }
            Err(error) => {
                tracing::warn!(%error, %pba, "a block that was not flushed cannot be read: its write is undone");
                last_error = Some(error);
            }
        }
    }
    match last_error {
        Some(error) if found.is_empty() => Err(EngineError::unavailable(format!(
            "drive {} cannot be read: {error}; check it and try again",
            drive.name()
        ))),
        _ => Ok(found),
    }
}

/// The state while records are replayed over it, and what the store held where it changes.
pub(crate) struct Recovered {
    pub(crate) state: State,
    /// How many records were replayed.
    pub(crate) records: u64,
    /// Sub-blocks that kept their old mapping because their new data never reached the drive.
    pub(crate) unproven: u64,
    /// First record that is not in the store.
    base_seq: u64,
    stored_map: BTreeMap<(u32, u64), Option<Pba>>,
    stored_blocks: BTreeMap<Pba, BlockInfo>,
    stored_volumes: BTreeMap<u32, Option<VolumeInfo>>,
}

impl Recovered {
    fn new(state: State, base_seq: u64, records: u64) -> Self {
        Self {
            state,
            records,
            unproven: 0,
            base_seq,
            stored_map: BTreeMap::new(),
            stored_blocks: BTreeMap::new(),
            stored_volumes: BTreeMap::new(),
        }
    }

    /// Applies a record. `proof`: what the drives hold, if the record must be proven.
    fn apply(&mut self, record: &Record, proof: Option<&Contents>) -> Result<()> {
        #[cfg(test)]
        let proof = proof.filter(|_| !crate::ablation::is(crate::ablation::Broken::TrustUnflushed));
        match record {
            Record::Map {
                volume,
                start,
                entries,
            } => {
                for (at, entry) in (*start..).zip(entries) {
                    match (entry.new, proof) {
                        (Some(new), Some(contents)) if !is_proven(contents, &new) => {
                            self.unproven += 1;
                        }
                        (new, _) => self.map_one(*volume, at, new)?,
                    }
                }
            }
            Record::Unmap { volume, entries } => {
                for (at, _) in entries {
                    self.map_one(*volume, *at, None)?;
                }
            }
            Record::VolumeCreate(VolumeInfo { id, .. })
            | Record::VolumeResize { id, .. }
            | Record::Trimming { id, .. }
            | Record::VolumeDelete { id } => {
                self.touch_volume(*id);
                self.state.install(record.into());
            }
            Record::VolumeGone { id } => {
                self.touch_volume(*id);
                self.unmap_all(*id)?;
                self.state.install(record.into());
            }
            Record::Durable { .. } => {}
        }
        Ok(())
    }

    fn map_one(&mut self, volume: u32, at: u64, new: Option<NewBlock>) -> Result<()> {
        if !self.state.volumes.contains_key(&volume) {
            return Ok(()); // its volume is gone by now
        }
        if let Some(new) = new {
            if !self.state.space.contains(new.pba) {
                return Err(outside(new.pba));
            }
            self.touch_block(new.pba);
            let NewBlock {
                pba,
                fingerprint,
                crc32c,
            } = new;
            let info = self.state.blocks.entry(pba);
            if info.references == 0 {
                *info = BlockInfo {
                    references: 0,
                    crc32c,
                    fingerprint,
                };
            } else if info.fingerprint != fingerprint || info.crc32c != crc32c {
                return Err(damaged(format_args!(
                    "block {pba} would hold two contents at once"
                )));
            }
            info.references = info
                .references
                .checked_add(1)
                .filter(|references| *references < IN_FLIGHT)
                .ok_or_else(|| damaged(format_args!("block {pba} has too many references")))?;
        }
        let Some(entry) = self.state.volumes.get_mut(&volume) else {
            return Ok(());
        };
        let old = entry.map.replace(at, new.map(|new| new.pba));
        self.stored_map.entry((volume, at)).or_insert(old);
        if let Some(old) = old {
            self.touch_block(old);
            self.state.blocks.entry(old).references -= 1;
        }
        Ok(())
    }

    fn unmap_all(&mut self, volume: u32) -> Result<()> {
        let mapped: Vec<u64> = match self.state.volumes.get(&volume) {
            Some(entry) => entry.map.range(0, u64::MAX).map(|(at, _)| at).collect(),
            None => Vec::new(),
        };
        mapped
            .into_iter()
            .try_for_each(|at| self.map_one(volume, at, None))
    }

    fn touch_block(&mut self, pba: Pba) {
        let info = self.state.blocks.get(pba);
        self.stored_blocks.entry(pba).or_insert(info);
    }

    fn touch_volume(&mut self, id: u32) {
        let stored = self.state.volumes.get(&id);
        let stored = stored.map(|entry| VolumeInfo::clone(&entry.info));
        self.stored_volumes.entry(id).or_insert(stored);
    }

    /// Free space and index follow from the counts.
    fn rebuild(&mut self) -> Result<()> {
        let State {
            blocks,
            space,
            index,
            ..
        } = &mut self.state;
        for (pba, info) in blocks.iter() {
            if !space.occupy(pba) {
                return Err(EngineError::internal(format!(
                    "block {pba} was found twice"
                )));
            }
            if info.fingerprint.is_some() {
                let known = index.find(blocks, &info.fingerprint);
                index.insert(blocks, pba, known);
            }
        }
        Ok(())
    }

    /// The difference between memory and the store.
    pub(crate) fn batch(&self, checkpoint: Checkpoint) -> Batch {
        let mut batch = Batch::checkpoint_only(checkpoint);
        batch.base_seq = self.base_seq;
        for ((volume, at), old) in &self.stored_map {
            let new = self
                .state
                .volumes
                .get(volume)
                .and_then(|entry| entry.map.lookup(*at));
            if *old != new {
                batch
                    .map
                    .insert((*volume, *at), MapChange { old: *old, new });
            }
        }
        for (pba, stored) in &self.stored_blocks {
            if let Some(change) = block_change(*stored, self.state.blocks.get(*pba)) {
                batch.blocks.insert(*pba, change);
            }
        }
        for (id, stored) in &self.stored_volumes {
            let now = self.state.volumes.get(id).map(|entry| &*entry.info);
            let change = match (stored, now) {
                (stored, Some(now)) if stored.as_ref() != Some(now) => {
                    meta::VolumeChange::Put(now.clone())
                }
                (Some(_), None) => meta::VolumeChange::Remove,
                _ => continue,
            };
            batch.volumes.insert(*id, change);
        }
        batch
    }
}

/// How a block's row changes; `None` = not at all.
fn block_change(stored: BlockInfo, now: BlockInfo) -> Option<BlockChange> {
    let (before, after) = (i64::from(stored.references), i64::from(now.references));
    let content = BlockContent {
        fingerprint: now.fingerprint,
        crc32c: now.crc32c,
    };
    let is_same_content = stored.fingerprint == now.fingerprint && stored.crc32c == now.crc32c;
    if before == after && (after == 0 || is_same_content) {
        return None;
    }
    Some(BlockChange {
        delta: after - before,
        // New content means that all old references went away first.
        lowest: if is_same_content {
            (after - before).min(0)
        } else {
            -before
        },
        content: (after > 0).then_some(content),
    })
}
