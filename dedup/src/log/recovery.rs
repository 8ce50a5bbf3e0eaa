//! Opening a pool after whatever happened.
//!
//! The records of the journal become one batch for the store, whose size the checkpointer bounds
//! ([`crate::EngineConfig::replay_entries_max`]), so that an opening takes the same short time whatever
//! the pool holds. Records that the journal says are durable are taken as they are. The data of later
//! ones may not have reached the drives: each of their new blocks is read and compared with the
//! fingerprint in the record (with its CRC-32C alone if its volume is not deduplicated); a sub-block
//! whose block was never written keeps its old mapping, and everything else of the record applies (I2). Counts
//! follow from the mappings that result, not from what the records expected (I4). The batch brings the
//! store to a new epoch, and the journal begins empty; a crash before that finds both as they were.
//!
//! What becomes of a new block that is not what its record says:
//!
//! | the block                     | power may have been lost | only the program ended    |
//! |-------------------------------|--------------------------|---------------------------|
//! | holds something else          | never written: old mapping | damage: new mapping     |
//! | cannot be read                | damage: new mapping      | damage: new mapping       |
//!
//! A write is on the drive before its record is appended, and blocks are not written again before the record
//! that freed them is durable; so the end of the program alone undoes nothing, and a host that was not told of
//! a loss of power must not find older data ([`crate::pool::boot`] says how the two are told apart). What cannot be
//! read may well hold the new data. Damage goes to the list of damaged blocks, before the store takes
//! the batch: it reads as an error, and no new write is mapped to it. Later records of the same batch may
//! have freed such a block, or written it again: only its last content counts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive, DriveError};
use futures_util::future::join_all;
use meta::{
    Batch, BatchBuilder, Checkpoint, Fingerprint, Fork, Journal, MapEntry, MapId, NewBlock, Pba,
    Record, VolumeInfo,
};
use reactor::{Buffer, BufferPool};

use crate::content::fingerprint::{self, Hasher};
use crate::drive_io::data_blocks_of;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::drive_state::DriveState;
use crate::drive_io::fetch::Fetch;
use crate::drive_io::segments::SEGMENT_BLOCKS;
use crate::hooks::{Current, Hooks, OpeningFigures};
use crate::log::copies::{self, ProvenCopies};
use crate::log::labels::Labels;
use crate::log::replay::{Data, Proof, Replay, durable_upto, replay_record};
use crate::metadata::domain;
use crate::metadata::index::{BLOCKS_MAX, Index};
use crate::metadata::on_disk_index::OnDiskIndex;
use crate::metadata::resident::Resident;
use crate::metadata::settings::Settings;
use crate::metadata::state::State;
use crate::pool::boot;
use crate::pool::config::{EngineParts, block_on};
use crate::pool::copies::take_offline;
use crate::pool::damage_list::Damage;
use crate::{EngineError, Result};

/// Blocks read at a time to prove them.
const PROVE_BLOCKS: usize = 256;

/// A pool that was brought back.
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) journal: Journal,
    /// With what turned out to be damaged on the way.
    pub(crate) damage: Damage,
}

/// Brings a pool back: state in memory, store, labels and journal agree when this returns. Where the labels do not, it can be
/// read only.
pub(crate) async fn recover(
    parts: &EngineParts,
    labels: &Labels<'_>,
    drives: &DriveList,
    bounces: &BufferPool,
) -> Result<Recovered> {
    let (replayed, journal) = replay(parts, drives, bounces).await?;
    let checkpoint = next_checkpoint(&journal, labels.newest())?;
    if replayed.records > 0 {
        let store = (&parts.store, parts.blocking);
        for (copy, source) in replayed.copies.wrong(drives) {
            copies::rewrite(drives, store, (copy, source), bounces).await?;
        }
        // What was proven may still be in a drive's cache only.
        let online = (0u16..).zip(drives.iter());
        let online = online.filter(|(index, _)| drives.state(*index) != DriveState::Offline);
        let flushes =
            online.map(|(index, drive)| async move { (index, drive, drive.flush().await) });
        for (index, drive, result) in join_all(flushes).await {
            if let Err(error) = result
                && !(drives.has_copies() && take_offline(drives, store, index, &error).await)
            {
                return Err(EngineError::unavailable(format!(
                    "drive {} could not be flushed: {error}; check it and try again",
                    drive.name()
                )));
            }
        }
    }
    Current::note_opening(OpeningFigures {
        records: replayed.records,
        unproven: replayed.unproven,
        damaged: replayed.damaged.len() as u64,
    });
    let found: Vec<_> = replayed.damaged().collect();
    let mut batch = replayed.batch(checkpoint)?;
    boot::remember(&mut batch.settings, checkpoint, parts.boot);
    labels.remember(&mut batch.settings, checkpoint);
    let store = parts.store.clone();
    let damage_file = parts.config.damage_file.clone();
    let (mut journal, damage) = block_on(parts.blocking, move || {
        let mut damage = Damage::load(damage_file);
        damage.found_at_opening(found);
        // What the store takes is stable in the journal first: that proves that the two belong together.
        journal.settle()?;
        store.apply(&batch)?;
        Ok::<_, EngineError>((journal, damage))
    })
    .await?;
    let store = (&parts.store, parts.blocking);
    let refused = labels.claim(store, checkpoint, bounces).await?;
    journal.begin(checkpoint)?;
    let mut state = load(parts, drives).await?;
    if let Some(refused) = refused {
        state.make_read_only(refused.message);
    }
    state.will_change(journal.last_seq());
    state.flushed = state.last_change();
    state.durable = state.last_change();
    state.resident.set_stored(state.last_change());
    Ok(Recovered {
        state,
        journal,
        damage,
    })
}

/// The checkpoint of a store to which all is applied that the journal holds: of a new epoch, beyond that of all labels.
pub(crate) fn next_checkpoint(journal: &Journal, labels: u32) -> Result<Checkpoint> {
    journal
        .next_checkpoint_above(labels)
        .ok_or_else(|| EngineError::internal("the pool was opened 2^32 times; make a new one"))
}

/// Works out what the journal changes, without writing anything.
pub(crate) async fn replay(
    parts: &EngineParts,
    drives: &DriveList,
    bounces: &BufferPool,
) -> Result<(Replayed, Journal)> {
    let data_blocks = drives.data_blocks();
    let (store, media, config) = (
        parts.store.clone(),
        parts.journal.clone(),
        parts.config.journal,
    );
    let boot = parts.boot;
    let (checkpoint, known, lost_power, journal, records) = block_on(parts.blocking, move || {
        let checkpoint = store.checkpoint()?;
        let known = (store.volumes()?, store.maps()?);
        let lost_power = boot::may_have_lost_power(&store.settings()?, checkpoint, boot);
        let (journal, records) = Journal::open(media, checkpoint, config)?;
        Ok::<_, EngineError>((checkpoint, known, lost_power, journal, records))
    })
    .await?;
    let (volumes, maps) = known;
    let durable = durable_upto(&records).max(checkpoint.position.seq - 1);
    let domains = MapDomains::new(parts, &volumes, &records);
    let unproven = Unproven {
        drives,
        data_blocks,
        records: &records,
        durable,
    };
    let contents = unproven.read(bounces, domains).await?;
    let mut building = Building {
        replayed: Replayed {
            records: records.len() as u64,
            unproven: 0,
            damaged: BTreeMap::new(),
            maps: maps.into_iter().map(|info| info.id).collect(),
            volumes: volumes.iter().map(|info| (info.id, info.map)).collect(),
            builder: BatchBuilder::new(checkpoint.position.seq),
            mapped: HashMap::new(),
            copies: ProvenCopies::default(),
        },
        drives,
        data_blocks,
        contents: &contents,
    };
    for (sequence, record) in &records {
        let data = Data::of(*sequence, durable, lost_power);
        replay_record(*sequence, record, data, &mut building)?;
    }
    let replayed = building.replayed;
    if replayed.records > 0 {
        tracing::info!(
            records = replayed.records,
            unproven = replayed.unproven,
            lost_power,
            "the journal was replayed"
        );
    }
    if let Some((first, _)) = replayed.damaged.first_key_value() {
        tracing::error!(
            blocks = replayed.damaged.len(),
            %first,
            "blocks that were written before the program ended cannot be read, or hold something else: what \
             refers to them is an error until it is written again"
        );
    }
    Ok((replayed, journal))
}

/// The state of a pool whose maps and blocks are in the store only.
async fn load(parts: &EngineParts, drives: &DriveList) -> Result<State> {
    let data_blocks = drives.data_blocks().to_vec();
    let store = parts.store.clone();
    let ends = data_blocks.clone();
    let (known, settings, totals, used_ends, has_index) = block_on(parts.blocking, move || {
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
                    return Err(EngineError::no_such_block(*pba));
                }
            }
        }
        let (known, settings) = ((store.volumes()?, store.maps()?), store.settings()?);
        Ok((
            known,
            settings,
            totals,
            used_ends,
            store.has_index_entries()?,
        ))
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
            OnDiskIndex::new(has_index),
        ),
    );
    for segment in drives.unplaced() {
        state.space().withdraw(*segment, SEGMENT_BLOCKS);
    }
    state.settings = Settings::new(settings);
    let (volumes, maps) = known;
    let mapped = |map: MapId| totals.mapped.get(&map).copied().unwrap_or(0);
    state.load_maps(volumes, &maps, mapped)?;
    if used_ends.iter().any(|end| *end > 0) {
        state.blocks.forget(&used_ends);
        for (drive, end) in (0u16..).zip(used_ends) {
            let used = totals.blocks.get(&drive).copied().unwrap_or(0);
            state.space().forget(drive, end, used);
        }
        state.deferred = Some(Box::default());
    }
    Ok(state)
}

/// Data blocks of each drive.
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

/// The same, `None` for a drive that is not there: nothing new is laid on it.
pub(crate) fn blocks_there(drives: &[Arc<dyn Drive>]) -> Result<Vec<Option<u64>>> {
    let blocks = drives.iter().zip(data_blocks(drives)?);
    let blocks = blocks.map(|(drive, blocks)| (!drive.is_absent()).then_some(blocks));
    Ok(blocks.collect())
}

/// What a drive holds at a block.
struct Content {
    fingerprint: Fingerprint,
    crc32c: u32,
}

/// What drives hold, fingerprinted in the domain of the volume that a record says refers to it. What
/// cannot be read is not in it.
struct Contents {
    domains: MapDomains,
    /// By domain, address, and the drive of the copy.
    found: HashMap<(u32, Pba, u16), Content>,
}

impl Contents {
    /// Content that was not hashed is proven by its checksum alone: one block in 2^32 that was torn or
    /// lost would pass.
    fn prove(&self, map: MapId, new: &NewBlock, drive: u16) -> Proof {
        let Some(content) = self.found.get(&(self.domains.of(map), new.pba, drive)) else {
            return Proof::Unreadable;
        };
        let holds = content.crc32c == new.crc32c
            && (!new.fingerprint.is_some() || content.fingerprint == new.fingerprint);
        match holds {
            true => Proof::Holds,
            false => Proof::Differs,
        }
    }
}

/// Domains of the volumes that have maps, by numbers that are made up for one replay.
struct MapDomains {
    hashers: Vec<Hasher>,
    numbers: HashMap<MapId, u32>,
}

impl MapDomains {
    /// Of all maps of volumes that the store knows, or that records tell of. Only what a volume has is written to.
    fn new(parts: &EngineParts, volumes: &[VolumeInfo], records: &[(u64, Record)]) -> Self {
        let created = records.iter().flat_map(|(_, record)| match record {
            Record::VolumeCreate(info) => vec![(info.map, info)],
            // A clone is of the domain of its origin.
            Record::Fork(forks) => {
                let clones = forks.iter();
                let maps =
                    clones.map(|Fork { map, clone, .. }| [(*map, clone), (clone.map, clone)]);
                maps.flatten().collect()
            }
            _ => Vec::new(),
        });
        let mut names: Vec<&str> = vec![""];
        let mut numbers = HashMap::new();
        let stored = volumes.iter().map(|info| (info.map, info));
        for (map, info) in stored.chain(created) {
            let known = names.iter().position(|name| *name == info.domain);
            let number = known.unwrap_or_else(|| {
                names.push(&info.domain);
                names.len() - 1
            });
            numbers.insert(map, number as u32);
        }
        // What a volume has after a rollback is of the domain that its snapshot has.
        for (_, record) in records {
            if let Record::Rollback {
                parent,
                snapshot_map,
                map,
                ..
            } = record
                && let Some(number) = numbers.get(&parent.id).copied()
            {
                numbers.extend([(*snapshot_map, number), (*map, number)]);
            }
        }
        let hasher = |name| domain::hasher(parts.fingerprint, &parts.hash_keys, name);
        let hashers = names.into_iter().map(hasher);
        Self {
            hashers: hashers.collect(),
            numbers,
        }
    }

    /// A record of a map that there is not is refused, whatever its blocks hold.
    fn of(&self, map: MapId) -> u32 {
        self.numbers.get(&map).copied().unwrap_or(0)
    }
}

/// Records, and up to which of them data is durable: what the drives hold at the new blocks of the others is to be read.
struct Unproven<'a> {
    drives: &'a DriveList,
    data_blocks: &'a [u64],
    records: &'a [(u64, Record)],
    durable: u64,
}

impl Unproven<'_> {
    async fn read(&self, bounces: &BufferPool, domains: MapDomains) -> Result<Contents> {
        let mut wanted = BTreeSet::new();
        let records = self.records.iter();
        for (_, record) in records.filter(|(sequence, _)| *sequence > self.durable) {
            if let Record::Map { map, entries, .. } = record {
                let domain = domains.of(*map);
                let new = entries.iter().filter_map(MapEntry::new_block);
                wanted.extend(new.map(|new| (domain, new.pba)));
            }
        }
        let is_outside = |(_, pba): &&(u32, Pba)| !contains(self.data_blocks, *pba);
        if let Some((_, pba)) = wanted.iter().find(is_outside) {
            return Err(EngineError::no_such_block(*pba));
        }
        // All copies that may be read from now on.
        let copies = wanted.into_iter().flat_map(|(domain, pba)| {
            let copies = self.drives.readable(pba);
            let drives: Vec<u16> = copies.iter().map(|place| place.drive).collect();
            drives.into_iter().map(move |drive| (drive, domain, pba))
        });
        let mut wanted: Vec<(u16, u32, Pba)> = copies.collect();
        wanted.sort_unstable();
        let mut found = HashMap::with_capacity(wanted.len());
        for of_drive in wanted.chunk_by(|a, b| a.0 == b.0) {
            let mut prover = Prover {
                drives: self.drives,
                drive: of_drive[0].0,
                bounces,
                is_dead: false,
                unreadable: 0,
            };
            for same in of_drive.chunk_by(|a, b| a.1 == b.1) {
                for group in same.chunks(PROVE_BLOCKS) {
                    let domain = group[0].1;
                    let blocks: Vec<Pba> = group.iter().map(|(_, _, pba)| *pba).collect();
                    let hasher = &domains.hashers[domain as usize];
                    let contents = prover.read(hasher, &blocks).await;
                    let contents = contents.into_iter();
                    found.extend(contents.map(|(pba, c)| ((domain, pba, prover.drive), c)));
                }
            }
            if prover.unreadable > 0 {
                let drive = self.drives.get(prover.drive.into());
                let drive = drive.map_or("?", |drive| drive.name());
                tracing::error!(
                    drive,
                    blocks = prover.unreadable,
                    "blocks that were not flushed cannot be read: check the drive"
                );
            }
        }
        Ok(Contents { domains, found })
    }
}

/// Reads the copies of blocks on one drive.
struct Prover<'a> {
    drives: &'a DriveList,
    drive: u16,
    bounces: &'a BufferPool,
    /// None of a whole group could be read: blocks of others are not tried one by one, which may take
    /// seconds for each.
    is_dead: bool,
    /// Blocks that could not be read.
    unreadable: usize,
}

impl Prover<'_> {
    /// Fingerprints blocks. Those that cannot be read are left out.
    async fn read(&mut self, hasher: &Hasher, blocks: &[Pba]) -> Vec<(Pba, Content)> {
        let buf = self.bounces.alloc(blocks.len() * BLOCK_BYTES).await;
        let (found, mut buf) = self.read_together(hasher, blocks, buf).await;
        if let Ok(found) = found {
            return found;
        }
        let mut found = Vec::new();
        if !self.is_dead {
            for pba in blocks {
                let (one, back) = self.read_together(hasher, &[*pba], buf).await;
                buf = back;
                match one {
                    Ok(one) => found.extend(one),
                    Err(error) => tracing::debug!(%error, %pba, "a block cannot be read"),
                }
            }
            self.is_dead = found.is_empty() && blocks.len() == PROVE_BLOCKS;
        }
        self.unreadable += blocks.len() - found.len();
        found
    }

    /// Fingerprints blocks that are read at once.
    async fn read_together(
        &self,
        hasher: &Hasher,
        blocks: &[Pba],
        buf: Buffer,
    ) -> (std::result::Result<Vec<(Pba, Content)>, DriveError>, Buffer) {
        let offsets = (0..).step_by(BLOCK_BYTES);
        let blocks_and_offsets = blocks.iter().copied().zip(offsets);
        let mut fetch = Fetch::of_drive(self.drives, self.drive, blocks_and_offsets);
        let (failed, buf) = fetch.read(buf).await;
        if let Some((_, error)) = failed.into_iter().next() {
            return (Err(error), buf);
        }
        let contents = &fingerprint::split(&buf)[..blocks.len()];
        let mut found = Vec::with_capacity(blocks.len());
        let mut read = blocks.iter().zip(contents);
        hasher.batch(contents, |fingerprint| {
            found.extend(read.next().map(|(pba, block)| {
                let crc32c = fingerprint::crc32c(block);
                let content = Content {
                    fingerprint,
                    crc32c,
                };
                (*pba, content)
            }));
        });
        (Ok(found), buf)
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
    /// Blocks that are damaged, with what they should hold.
    damaged: BTreeMap<Pba, NewBlock>,
    /// The volumes that there are, each with its map.
    volumes: BTreeMap<u32, MapId>,
    /// Maps that have a row.
    maps: BTreeSet<MapId>,
    builder: BatchBuilder,
    /// What the records so far made of sub-blocks; where the new content was not there, what they map to still.
    mapped: HashMap<(MapId, u64), Option<Pba>>,
    /// Which copies hold the new data.
    copies: ProvenCopies,
}

/// An opening on its way: what the drives hold and can hold, and what the records make of the store.
struct Building<'a> {
    replayed: Replayed,
    drives: &'a DriveList,
    data_blocks: &'a [u64],
    contents: &'a Contents,
}

impl Replay for Building<'_> {
    /// One copy that holds it is enough: the others are written again.
    fn prove(&mut self, map: MapId, new: &NewBlock) -> Proof {
        let copies = self.drives.readable(new.pba);
        let proofs = copies.iter().map(|place| {
            let proof = self.contents.prove(map, new, place.drive);
            (place.drive, proof)
        });
        let proofs: Vec<(u16, Proof)> = proofs.collect();
        let has = |proof| proofs.iter().any(|(_, of)| *of == proof);
        let proof = match (has(Proof::Holds), has(Proof::Differs)) {
            (true, _) => Proof::Holds,
            (false, true) => Proof::Differs,
            (false, false) => Proof::Unreadable,
        };
        self.replayed.copies.note(new.pba, &proofs);
        proof
    }

    fn proven(&mut self, new: NewBlock, proof: Proof) {
        let damaged = &mut self.replayed.damaged;
        match proof {
            Proof::Holds => damaged.remove(&new.pba),
            Proof::Differs | Proof::Unreadable => damaged.insert(new.pba, new),
        };
    }

    fn undone(&mut self, map: MapId, sub_block: u64, old: Option<Pba>) {
        let replayed = &mut self.replayed;
        replayed.unproven += 1;
        replayed.mapped.entry((map, sub_block)).or_insert(old);
    }

    fn map(&mut self, sequence: u64, map: MapId, entries: Vec<(u64, MapEntry)>) -> Result<()> {
        let mut new_blocks = entries.iter().filter_map(|(_, entry)| entry.new_block());
        if let Some(new) = new_blocks.find(|new| !contains(self.data_blocks, new.pba)) {
            return Err(EngineError::no_such_block(new.pba));
        }
        self.replayed.change(sequence, map, entries.into_iter())
    }

    fn other(&mut self, sequence: u64, record: &Record) -> Result<()> {
        let replayed = &mut self.replayed;
        match record {
            Record::VolumeCreate(info) => {
                replayed.volumes.insert(info.id, info.map);
            }
            Record::Fork(forks) => {
                for fork in forks {
                    replayed.check_volume(fork.volume)?;
                    replayed.check_map(fork.parent.id)?;
                    replayed.volumes.insert(fork.volume, fork.map);
                    replayed.volumes.insert(fork.clone.id, fork.clone.map);
                    replayed.maps.extend(fork.maps().map(|info| info.id));
                }
            }
            Record::Rollback {
                parent,
                snapshot,
                snapshot_map,
                volume,
                map,
                ..
            } => {
                replayed.check_volume(*snapshot)?;
                replayed.check_volume(*volume)?;
                replayed.check_map(parent.id)?;
                replayed.volumes.insert(*snapshot, *snapshot_map);
                replayed.volumes.insert(*volume, *map);
                replayed.maps.extend([parent.id, *snapshot_map, *map]);
            }
            Record::Reparent(info) => {
                replayed.check_map(info.id)?;
                info.parent
                    .map_or(Ok(()), |parent| replayed.check_map(parent))?;
            }
            Record::MapGone { id } => {
                replayed.check_map(*id)?;
                replayed.maps.remove(id);
            }
            Record::VolumeResize { id, .. }
            | Record::VolumeRename { id, .. }
            | Record::VolumePolicy { id, .. }
            | Record::Trimming { id, .. }
            | Record::VolumeDelete { id } => replayed.check_volume(*id)?,
            Record::VolumeGone { id } => {
                replayed.check_volume(*id)?;
                replayed.volumes.remove(id);
            }
            Record::Map { .. }
            | Record::Own { .. }
            | Record::Unmap { .. }
            | Record::Hide { .. }
            | Record::Settings(_)
            | Record::Durable { .. } => {}
        }
        Ok(replayed.builder.add(sequence, record)?)
    }
}

impl Replayed {
    fn check_volume(&self, id: u32) -> Result<()> {
        match self.volumes.contains_key(&id) {
            true => Ok(()),
            false => Err(EngineError::contradiction(format_args!(
                "a record changes volume {id}, which there is not"
            ))),
        }
    }

    fn check_map(&self, id: MapId) -> Result<()> {
        // Most maps have the number of their volume, and all others have a row.
        let is_known = self.volumes.get(&id) == Some(&id) || self.maps.contains(&id);
        match is_known {
            true => Ok(()),
            false => Err(EngineError::contradiction(format_args!(
                "a record changes map {id}, which there is not"
            ))),
        }
    }

    /// Changes mappings. What they mapped to before is what earlier records made of them; of those
    /// that no record touched yet, the record itself says what the store has.
    fn change(
        &mut self,
        sequence: u64,
        map: MapId,
        entries: impl Iterator<Item = (u64, MapEntry)>,
    ) -> Result<()> {
        self.check_map(map)?;
        let entries = entries.map(|(at, entry)| {
            let MapEntry { old, new } = entry;
            let now = entry.new_block().map(|new| new.pba);
            let old = match self.mapped.entry((map, at)) {
                Entry::Occupied(mut mapped) => mapped.insert(now),
                Entry::Vacant(mapped) => {
                    mapped.insert(now);
                    old
                }
            };
            (at, MapEntry { old, new })
        });
        Ok(self.builder.change(sequence, map, entries)?)
    }

    /// Blocks that are damaged, with what they should hold, unless something else became of them.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = NewBlock> + '_ {
        self.damaged.values().copied()
    }

    /// The change of the store.
    ///
    /// # Errors
    /// Records that contradict each other.
    pub(crate) fn batch(self, checkpoint: Checkpoint) -> Result<Batch> {
        Ok(self.builder.finish(checkpoint)?)
    }
}
