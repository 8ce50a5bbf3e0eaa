//! Opening a pool after whatever happened.
//!
//! The records of the journal become one batch for the store, whose size the checkpointer bounds
//! ([`crate::EngineConfig::replay_entries_max`]), so that an opening takes the same short time whatever
//! the pool holds. Records that the journal says are durable are taken as they are. The data of later
//! ones may not have reached the drives: each of their new blocks is read and compared with the
//! fingerprint in the record (with its CRC-32C alone if its volume is not deduplicated); a sub-block
//! whose block fails keeps its old mapping, and everything else of the record applies (I2). Counts
//! follow from the mappings that result, not from what the records expected (I4). The batch brings the
//! store to a new epoch, and the journal begins empty; a crash before that finds both as they were.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive};
use futures_util::future::join_all;
use meta::{
    Batch, BatchBuilder, Checkpoint, Fingerprint, Journal, MapEntry, NewBlock, Pba, Record,
    VolumeInfo,
};
use reactor::BufferPool;

use crate::domain;
use crate::engine::{EngineParts, block_on};
use crate::fingerprint::{self, Hasher};
use crate::hints::Hints;
use crate::index::{BLOCKS_MAX, Index};
use crate::pack_read::Fetch;
use crate::resident::Resident;
use crate::settings::Settings;
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
    let (replayed, journal) = replay(parts, bounces).await?;
    let checkpoint = next_checkpoint(&journal)?;
    if replayed.records > 0 {
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
    let figures = (replayed.records, replayed.unproven);
    let batch = replayed.batch(checkpoint)?;
    let store = parts.store.clone();
    let mut journal = block_on(parts.blocking, move || {
        // What the store takes is stable in the journal first: that proves that the two belong together.
        journal.settle()?;
        store.apply(&batch)?;
        Ok::<_, EngineError>(journal)
    })
    .await?;
    journal.begin(checkpoint)?;
    let mut state = load(parts).await?;
    state.last_change = journal.last_seq();
    state.flushed = state.last_change;
    state.durable = state.last_change;
    state.resident.set_stored(state.last_change);
    Ok((state, journal, figures))
}

/// The checkpoint of a store to which all is applied that the journal holds.
pub(crate) fn next_checkpoint(journal: &Journal) -> Result<Checkpoint> {
    journal
        .next_checkpoint()
        .ok_or_else(|| EngineError::internal("the pool was opened 2^32 times; make a new one"))
}

/// Works out what the journal changes, without writing anything.
pub(crate) async fn replay(
    parts: &EngineParts,
    bounces: &BufferPool,
) -> Result<(Replayed, Journal)> {
    let data_blocks = data_blocks(&parts.drives)?;
    let (store, media, config) = (
        parts.store.clone(),
        parts.journal.clone(),
        parts.config.journal,
    );
    let (checkpoint, volumes, journal, records) = block_on(parts.blocking, move || {
        let checkpoint = store.checkpoint()?;
        let volumes = store.volumes()?;
        let (journal, records) = Journal::open(media, checkpoint, config)?;
        Ok::<_, EngineError>((checkpoint, volumes, journal, records))
    })
    .await?;
    let durable = durable_upto(&records)
        .unwrap_or(0)
        .max(checkpoint.position.seq - 1);
    let domains = VolumeDomains::new(&parts.hash_key, &volumes, &records);
    let contents = read_unproven(parts, bounces, &data_blocks, domains, &records, durable).await?;
    let mut replayed = Replayed {
        records: records.len() as u64,
        unproven: 0,
        volumes: volumes.into_iter().map(|info| info.id).collect(),
        builder: BatchBuilder::new(checkpoint.position.seq),
        mapped: HashMap::new(),
    };
    for (sequence, record) in &records {
        replayed.apply(
            *sequence,
            record,
            &data_blocks,
            (*sequence > durable).then_some(&contents),
        )?;
    }
    if replayed.records > 0 {
        tracing::info!(
            records = replayed.records,
            unproven = replayed.unproven,
            "the journal was replayed"
        );
    }
    Ok((replayed, journal))
}

/// The state of a pool whose maps and blocks are in the store only.
async fn load(parts: &EngineParts) -> Result<State> {
    let data_blocks = data_blocks(&parts.drives)?;
    let store = parts.store.clone();
    let ends = data_blocks.clone();
    let (volumes, settings, totals, used_ends, has_hints) = block_on(parts.blocking, move || {
        let totals = store.totals()?;
        let mut used_ends = Vec::new();
        for (drive, blocks) in (0u16..).zip(&ends) {
            // All blocks from here on are free.
            let end = Pba::new(drive, *blocks);
            let mut used_end = 0;
            for end in [end, end.fragment(0)] {
                let last = store.last_block(end)?.filter(|last| {
                    last.drive() == drive && last.is_fragment() == end.is_fragment()
                });
                used_end = used_end.max(last.map_or(0, |last| last.block() + 1));
            }
            used_ends.push(used_end);
        }
        for drive in totals.blocks.keys() {
            let end = ends.get(usize::from(*drive)).copied().unwrap_or(0);
            let (first, last) = (Pba::new(*drive, end), Pba::new(*drive, Pba::BLOCK_MAX));
            for (first, last) in [(first, last), (first.fragment(0), last.fragment(0))] {
                if let Some((pba, _)) = store.blocks(first, last, 1)?.first() {
                    return Err(outside(*pba));
                }
            }
        }
        let (volumes, settings) = (store.volumes()?, store.settings()?);
        Ok((volumes, settings, totals, used_ends, store.has_hints()?))
    })
    .await?;
    let config = &parts.config;
    let mut state = State::new(
        &data_blocks,
        config.discard,
        config.references_max,
        Resident::new(config.metadata_cache_bytes),
        (
            Index::new(&data_blocks, config.index_bytes_max),
            Hints::new(has_hints),
        ),
    );
    state.settings = Settings::new(settings);
    for info in volumes {
        state.saw_volume(info.id);
        let mapped = totals.mapped.get(&info.id).copied().unwrap_or(0);
        state
            .volumes
            .insert(info.id, VolumeEntry::stored(info, mapped));
    }
    if used_ends.iter().any(|end| *end > 0) {
        state.blocks.forget(&used_ends);
        for (drive, end) in (0u16..).zip(used_ends) {
            let used = totals.blocks.get(&drive).copied().unwrap_or(0);
            state.space.forget(drive, end, used);
        }
        state.late = Some(Box::default());
    }
    Ok(state)
}

fn data_blocks(drives: &[Arc<dyn Drive>]) -> Result<Vec<u64>> {
    if drives.is_empty() || drives.len() > usize::from(Pba::DRIVE_MAX) {
        return Err(EngineError::invalid(format!(
            "a pool cannot have {} drives",
            drives.len()
        )));
    }
    let data_blocks = drives.iter().map(|drive| data_blocks_of(&**drive));
    let data_blocks: Vec<u64> = data_blocks.collect::<Result<_>>()?;
    let blocks: u64 = data_blocks.iter().sum();
    if blocks > BLOCKS_MAX {
        return Err(EngineError::invalid(format!(
            "the drives have {blocks} data blocks together; at most {BLOCKS_MAX} are possible"
        )));
    }
    Ok(data_blocks)
}

/// Blocks of a drive that can hold data.
pub(crate) fn data_blocks_of(drive: &dyn Drive) -> Result<u64> {
    match drive.blocks().checked_sub(LABEL_BLOCKS) {
        Some(blocks @ 1..=Pba::BLOCK_MAX) => Ok(blocks),
        _ => Err(EngineError::invalid(format!(
            "drive {} has {} blocks; from {} to 2^44 are possible",
            drive.name(),
            drive.blocks(),
            LABEL_BLOCKS + 1
        ))),
    }
}

fn durable_upto(records: &[(u64, Record)]) -> Option<u64> {
    let durable = records.iter().filter_map(|(_, record)| match record {
        Record::Durable { upto } => Some(*upto),
        _ => None,
    });
    durable.max()
}

pub(crate) fn damaged(what: impl std::fmt::Display) -> EngineError {
    EngineError::corrupt(format!(
        "the pool's metadata contradicts itself: {what}; run `onefold pool check` and \
         restore `metadata/` and `journal` from one copy"
    ))
}

pub(crate) fn outside(pba: Pba) -> EngineError {
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

/// What drives hold, fingerprinted in the domain of the volume that a record says refers to it.
struct Contents {
    domains: VolumeDomains,
    found: HashMap<(u32, Pba), Content>,
}

impl Contents {
    /// Whether a drive holds what a record says. Content that was not hashed is proven by its checksum
    /// alone: one block in 2^32 that was torn or lost would pass.
    fn prove(&self, volume: u32, new: &NewBlock) -> bool {
        let content = self.found.get(&(self.domains.of(volume), new.pba));
        content.is_some_and(|content| {
            content.crc32c == new.crc32c
                && (!new.fingerprint.is_some() || content.fingerprint == new.fingerprint)
        })
    }
}

/// Domains of volumes, by numbers that are made up for one replay.
struct VolumeDomains {
    hashers: Vec<Hasher>,
    numbers: HashMap<u32, u32>,
}

impl VolumeDomains {
    /// Of all volumes that the store knows, or that records tell of.
    fn new(pool_key: &[u8; 32], volumes: &[VolumeInfo], records: &[(u64, Record)]) -> Self {
        let created = records.iter().filter_map(|(_, record)| match record {
            Record::VolumeCreate(info) => Some(info),
            _ => None,
        });
        let mut names: Vec<&str> = vec![""];
        let mut numbers = HashMap::new();
        for info in volumes.iter().chain(created) {
            let known = names.iter().position(|name| *name == info.domain);
            let number = known.unwrap_or_else(|| {
                names.push(&info.domain);
                names.len() - 1
            });
            numbers.insert(info.id, number as u32);
        }
        let hashers = names.iter().map(|name| domain::hasher(pool_key, name));
        Self {
            hashers: hashers.collect(),
            numbers,
        }
    }

    /// A record of a volume that there is not is refused, whatever its blocks hold.
    fn of(&self, volume: u32) -> u32 {
        self.numbers.get(&volume).copied().unwrap_or(0)
    }
}

/// What the drives hold at the new blocks of records that may not be durable. Blocks that cannot be
/// read are left out.
async fn read_unproven(
    parts: &EngineParts,
    bounces: &BufferPool,
    data_blocks: &[u64],
    domains: VolumeDomains,
    records: &[(u64, Record)],
    durable: u64,
) -> Result<Contents> {
    let mut wanted = BTreeSet::new();
    for (_, record) in records.iter().filter(|(sequence, _)| *sequence > durable) {
        if let Record::Map {
            volume, entries, ..
        } = record
        {
            let domain = domains.of(*volume);
            let new = entries.iter().filter_map(|entry| entry.new);
            wanted.extend(new.map(|new| (domain, new.pba)));
        }
    }
    let is_outside = |(_, pba): &&(u32, Pba)| !contains(data_blocks, *pba);
    if let Some((_, pba)) = wanted.iter().find(is_outside) {
        return Err(outside(*pba));
    }
    let wanted: Vec<(u32, Pba)> = wanted.into_iter().collect();
    let mut found = HashMap::with_capacity(wanted.len());
    for same in wanted.chunk_by(|a, b| (a.0, a.1.drive()) == (b.0, b.1.drive())) {
        for group in same.chunks(PROVE_BLOCKS) {
            let domain = group[0].0;
            let blocks: Vec<Pba> = group.iter().map(|(_, pba)| *pba).collect();
            let hasher = &domains.hashers[domain as usize];
            let contents = read_contents(parts, bounces, hasher, &blocks).await?;
            let contents = contents.into_iter();
            found.extend(contents.map(|(pba, content)| ((domain, pba), content)));
        }
    }
    Ok(Contents { domains, found })
}

/// Reads blocks of one drive and fingerprints them. A block that cannot be read is left out; an error
/// if none can.
async fn read_contents(
    parts: &EngineParts,
    bounces: &BufferPool,
    hasher: &Hasher,
    blocks: &[Pba],
) -> Result<Vec<(Pba, Content)>> {
    let Some(drive) = blocks
        .first()
        .and_then(|pba| parts.drives.get(usize::from(pba.drive())))
    else {
        return Ok(Vec::new());
    };
    let buf = bounces.alloc(blocks.len() * BLOCK_BYTES).await;
    let places = blocks
        .iter()
        .enumerate()
        .map(|(at, pba)| (*pba, at * BLOCK_BYTES));
    let fetch = Fetch::new(places);
    let (result, mut buf) = drive.read(buf, fetch.extents()).await;
    if result.is_ok() {
        fetch.unpack(&mut buf);
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
        let fetch = Fetch::new([(*pba, 0)].into_iter());
        let (result, back) = drive.read(buf, fetch.extents()).await;
        buf = back;
        match result {
            Ok(()) => {
                fetch.unpack(&mut buf);
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

/// Whether a drive has that address.
fn contains(data_blocks: &[u64], pba: Pba) -> bool {
    data_blocks
        .get(usize::from(pba.drive()))
        .is_some_and(|blocks| pba.is_within(*blocks))
}

/// What the journal changes in the store.
pub(crate) struct Replayed {
    /// How many records were replayed.
    pub(crate) records: u64,
    /// Sub-blocks that kept their old mapping because their new data never reached the drive.
    pub(crate) unproven: u64,
    /// The volumes that there are.
    volumes: BTreeSet<u32>,
    builder: BatchBuilder,
    /// What the records so far made of sub-blocks; where the new content was not there, what they map to still.
    mapped: HashMap<(u32, u64), Option<Pba>>,
}

impl Replayed {
    /// Applies the next record. `proof`: what the drives hold, if it must be proven.
    fn apply(
        &mut self,
        sequence: u64,
        record: &Record,
        data_blocks: &[u64],
        proof: Option<&Contents>,
    ) -> Result<()> {
        #[cfg(test)]
        let proof = proof.filter(|_| !crate::ablation::is(crate::ablation::Broken::TrustUnflushed));
        match record {
            Record::Map {
                volume,
                start,
                entries,
            } => {
                let new_blocks = entries.iter().filter_map(|entry| entry.new);
                if let Some(new) = new_blocks
                    .clone()
                    .find(|new| !contains(data_blocks, new.pba))
                {
                    return Err(outside(new.pba));
                }
                let is_lost = |entry: &MapEntry| {
                    let proof = entry.new.zip(proof);
                    proof.is_some_and(|(new, contents)| !contents.prove(*volume, &new))
                };
                let (lost, good): (Vec<_>, Vec<_>) =
                    MapEntry::numbered(*start, entries).partition(|(_, entry)| is_lost(entry));
                self.unproven += lost.len() as u64;
                for (at, entry) in lost {
                    self.mapped.entry((*volume, at)).or_insert(entry.old);
                }
                self.change(sequence, *volume, good.into_iter())
            }
            Record::Unmap { volume, entries } => {
                let gone = |(at, old): &(u64, Pba)| {
                    let old = Some(*old);
                    (*at, MapEntry { old, new: None })
                };
                self.change(sequence, *volume, entries.iter().map(gone))
            }
            Record::VolumeCreate(info) => {
                self.volumes.insert(info.id);
                Ok(self.builder.add(sequence, record)?)
            }
            Record::VolumeResize { id, .. }
            | Record::Trimming { id, .. }
            | Record::VolumeDelete { id } => {
                self.check_volume(*id)?;
                Ok(self.builder.add(sequence, record)?)
            }
            Record::VolumeGone { id } => {
                self.check_volume(*id)?;
                self.volumes.remove(id);
                Ok(self.builder.add(sequence, record)?)
            }
            Record::Settings(_) | Record::Durable { .. } => {
                Ok(self.builder.add(sequence, record)?)
            }
        }
    }

    fn check_volume(&self, id: u32) -> Result<()> {
        match self.volumes.contains(&id) {
            true => Ok(()),
            false => Err(damaged(format_args!(
                "a record changes volume {id}, which there is not"
            ))),
        }
    }

    /// Changes mappings. What they mapped to before is what earlier records made of them; of those
    /// that no record touched yet, the record itself says what the store has.
    fn change(
        &mut self,
        sequence: u64,
        volume: u32,
        entries: impl Iterator<Item = (u64, MapEntry)>,
    ) -> Result<()> {
        self.check_volume(volume)?;
        let entries = entries.map(|(at, MapEntry { old, new })| {
            let now = new.map(|new| new.pba);
            let old = match self.mapped.entry((volume, at)) {
                Entry::Occupied(mut mapped) => mapped.insert(now),
                Entry::Vacant(mapped) => {
                    mapped.insert(now);
                    old
                }
            };
            (at, MapEntry { old, new })
        });
        Ok(self.builder.change(sequence, volume, entries)?)
    }

    /// The change of the store.
    ///
    /// # Errors
    /// Records that contradict each other.
    pub(crate) fn batch(self, checkpoint: Checkpoint) -> Result<Batch> {
        Ok(self.builder.finish(checkpoint)?)
    }
}
