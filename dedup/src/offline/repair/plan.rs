//! What the rows will be when the journal is replayed, and where they contradict each other.

use std::collections::{BTreeMap, BTreeSet};

use drives::BLOCK_BYTES;
use futures_util::FutureExt;
use meta::{
    Batch, BlockChange, BlockContent, BlockRow, Checkpoint, Fingerprint, FingerprintFunction,
    HashKeys, Journal, LoadVisitor, MapChange, MapEntry, MapId, MapInfo, Mapping, NewBlock, Pba,
    Record, RowKind, Totals, VolumeChange, VolumeInfo,
};
use reactor::{Buffer, BufferPool};

use super::resolve::resolve;
use super::suspects::Suspects;
use super::{Change, Parts, Plan, RepairReport};
use crate::content::fingerprint;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::drive_state::{conditions_of, copies_of};
use crate::drive_io::layout::{self, Wanted};
use crate::drive_io::reader::{read_one, read_proven};
use crate::drive_io::segments::{Rows as SegmentRows, segment_of};
use crate::log::recovery::{self, blocks_there};
use crate::log::replay::{
    Data, Proof, Replay, change_maps, change_volumes, durable_upto, replay_record,
};
use crate::metadata::domain::{self, Hashers};
use crate::pool::boot;
use crate::pool::config::BOUNCE_BYTES_MIN;
use crate::{EngineError, Result};

/// Sub-blocks that a volume can have: 2^60 bytes.
const SUB_BLOCKS_MAX: u64 = (1 << 60) / BLOCK_BYTES as u64;

/// Works out what to do. Tables of healthy blocks take `memory_bytes` at most.
pub(super) fn make(parts: &Parts, memory_bytes: usize) -> Result<Plan> {
    let mut rows = Rows::default();
    let checkpoint = parts.store.load(&mut rows)?;
    let (journal, records) =
        Journal::open(parts.journal.clone(), checkpoint, parts.journal_config)?;
    let next = recovery::next_checkpoint(&journal, parts.labels_epoch)?;
    let created = records.iter().filter_map(|(_, record)| match record {
        Record::VolumeCreate(info) => Some(info),
        _ => None,
    });
    let mut contents = Contents::new(parts, rows.volumes.values().chain(created))?;
    let settings = parts.store.settings()?;
    let lost_power = boot::may_have_lost_power(&settings, checkpoint, parts.boot);
    let later = Later::replay(
        (&rows.volumes, &rows.maps),
        &records,
        checkpoint,
        lost_power,
        &mut contents,
    )?;
    let mut report = RepairReport {
        placed_segments: contents.lost_segments,
        journal_records: records.len() as u64,
        unproven: later.unproven,
        ..RepairReport::default()
    };
    let settings = records.into_iter().filter_map(|(_, record)| match record {
        Record::Settings(changes) => Some(changes),
        _ => None,
    });
    let settings = settings.flatten().collect();
    let mut survey = Survey::new(rows, later, contents.data_blocks.clone());
    let store = &*parts.store;
    let suspects = Suspects::find(store, &survey, memory_bytes)?;
    survey.take(suspects);
    // Another pass over the store, so that the mappings need not be held in memory.
    store.load(&mut survey)?;
    survey.add_later();
    survey.is_damaged |= survey.found != parts.store.totals()? || parts.trusts_checksums;
    survey.is_damaged |= contents.lost_segments > 0;
    let mut changes = resolve(&mut survey, &mut contents, store, &mut report)?;
    let mut totals = None;
    if !report.consistent {
        // One more: every mapping gets the checksum of what its block holds in the end.
        let mut finish = Finish::new(&survey, &changes);
        parts.store.load(&mut finish)?;
        finish.add_new();
        let mappings = finish.mappings;
        totals = Some(finish.totals);
        changes.extend(mappings);
    }
    report.changed_rows = changes.len() as u64;
    let mut batch = batch_of(&changes, checkpoint, next);
    batch.totals = totals;
    batch.settings = settings;
    Ok(Plan {
        report,
        changes,
        segments: contents.segments,
        batch,
    })
}

/// What the drives hold.
pub(super) struct Contents<'a> {
    /// Whether a mapping's checksum is enough to know its block's content by.
    trusts_checksums: bool,
    drives: DriveList,
    data_blocks: Vec<u64>,
    /// Rows of segments that are to be written again, by the drive where they were made.
    segments: Vec<(u16, SegmentRows)>,
    /// How many of them were lost.
    lost_segments: u64,
    /// Segments that lie nowhere: nothing may be mapped there.
    unplaced: BTreeSet<Pba>,
    hash_keys: &'a HashKeys,
    fingerprint: FingerprintFunction,
    hashers: Hashers,
    buffer: Option<Buffer>,
}

impl<'a> Contents<'a> {
    /// `volumes`: those whose domains blocks can be of.
    pub(super) fn new<'v>(
        parts: &'a Parts,
        volumes: impl Iterator<Item = &'v VolumeInfo>,
    ) -> Result<Self> {
        let buffer = BufferPool::new(BOUNCE_BYTES_MIN)
            .ok()
            .and_then(|pool| pool.try_alloc(BLOCK_BYTES));
        if buffer.is_none() {
            return Err(EngineError::unavailable("no memory for a buffer"));
        }
        let drives = blocks_there(&parts.drives)?;
        let wanted = Wanted {
            drives: &drives,
            copies: 1,
            domains: &[],
            added: None,
            changed_copies: copies_of(&parts.store.settings()?),
            avoided: &[],
            resting: &[],
            epoch: 0,
        };
        let stored = parts.store.segments()?;
        let unplaced = stored.iter().filter(|(_, row)| row.copies().is_empty());
        let unplaced = unplaced.map(|(segment, _)| *segment).collect();
        let segments = layout::complete(&stored, &wanted)?;
        let conditions = conditions_of(&parts.store.settings()?, parts.drives.len());
        let drives = DriveList::new(&parts.drives, &segments, &conditions);
        let again = segments.lost.chunk_by(|a, b| a.drive() == b.drive());
        let again = again.map(|lost| lost[0].drive());
        let again = again.map(|home| (home, segments.of_drives[usize::from(home)].clone()));
        Ok(Self {
            trusts_checksums: parts.trusts_checksums,
            drives,
            data_blocks: segments.data_blocks,
            segments: again.collect(),
            lost_segments: segments.lost.len() as u64,
            unplaced,
            hash_keys: &parts.hash_keys,
            fingerprint: parts.fingerprint,
            hashers: Hashers::of(parts.fingerprint, &parts.hash_keys, volumes),
            buffer,
        })
    }

    /// Whether the segment of a block has a place.
    pub(super) fn has_place(&self, pba: Pba) -> bool {
        !self.unplaced.contains(&segment_of(pba))
    }

    /// Whether a block holds this content. One that was not fingerprinted is known by its checksum.
    pub(super) fn holds(&mut self, pba: Pba, content: &BlockContent) -> bool {
        self.prove(pba, content) == Proof::Holds
    }

    /// What the drive says of a block of which a record says this.
    fn prove(&mut self, pba: Pba, content: &BlockContent) -> Proof {
        let Some(buffer) = self.buffer.take() else {
            return Proof::Unreadable;
        };
        // The drives of a repair answer at once.
        let read = read_proven(&self.drives, (pba, 0), buffer, |block| {
            self.hashers
                .prove(block, content.fingerprint, content.crc32c)
        });
        let Some((holds, buffer)) = read.now_or_never() else {
            return Proof::Unreadable;
        };
        self.buffer = Some(buffer);
        match holds {
            Some(true) => Proof::Holds,
            Some(false) => Proof::Differs,
            None => Proof::Unreadable,
        }
    }

    /// What a block holds that has lost its row, if it has the checksum that a mapping of this volume says.
    pub(super) fn by_checksum(
        &mut self,
        pba: Pba,
        crc32c: u32,
        volume: Option<&VolumeInfo>,
    ) -> Option<BlockContent> {
        if !self.trusts_checksums {
            return None;
        }
        let hasher = volume
            .filter(|info| info.dedup)
            .map(|info| domain::hasher(self.fingerprint, self.hash_keys, &info.domain));
        let content = self.read(pba, |_, block| BlockContent {
            fingerprint: hasher.map_or(Fingerprint::NONE, |hasher| hasher.one(block)),
            crc32c: fingerprint::crc32c(block),
        });
        content.filter(|content| content.crc32c == crc32c)
    }

    /// Looks at what a block holds; `None` if it cannot be read.
    fn read<T>(
        &mut self,
        pba: Pba,
        look: impl FnOnce(&Hashers, &fingerprint::Block) -> T,
    ) -> Option<T> {
        let buffer = self.buffer.take()?;
        // The drives of a repair answer at once.
        let read = read_one(&self.drives, pba, buffer, |block| {
            look(&self.hashers, block)
        });
        let (seen, buffer) = read.now_or_never()?;
        self.buffer = Some(buffer);
        seen
    }

    /// What the row of a lost block says: a fingerprint that no block of data has, because it is that of
    /// a shorter text, and a checksum that its content does not have.
    pub(super) fn lost(&mut self, pba: Pba) -> BlockContent {
        let mut text = b"onefold: a lost block ".to_vec();
        text.extend_from_slice(&pba.0.to_le_bytes());
        let digest = blake3::keyed_hash(&self.hash_keys.pool, &text);
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest.as_bytes()[..16]);
        BlockContent {
            fingerprint: meta::Fingerprint(fingerprint),
            crc32c: !self
                .read(pba, |_, block| fingerprint::crc32c(block))
                .unwrap_or(0),
        }
    }
}

/// First pass: volumes and blocks.
#[derive(Default)]
struct Rows {
    volumes: BTreeMap<u32, VolumeInfo>,
    maps: BTreeMap<MapId, MapInfo>,
    /// How many blocks the store holds.
    found: Totals,
}

impl LoadVisitor for Rows {
    fn wants(&self, kind: RowKind) -> bool {
        kind == RowKind::Block
    }

    fn volume(&mut self, volume: VolumeInfo) {
        self.volumes.insert(volume.id, volume);
    }

    fn map_row(&mut self, info: MapInfo) {
        self.maps.insert(info.id, info);
    }

    fn block(&mut self, pba: Pba, _row: BlockRow) {
        self.found.add_block(pba);
    }

    fn map(&mut self, _map: MapId, _sub_block: u64, _mapping: Mapping) {}
}

/// A block that has a row, and that has to be looked at.
pub(super) struct Block {
    pub(super) pba: Pba,
    pub(super) row: BlockRow,
    /// Mappings to it in the store.
    pub(super) stored: u64,
    /// Mappings to it that stay, and that its row is right for.
    pub(super) kept: u64,
}

pub(super) fn content_of(row: &BlockRow) -> BlockContent {
    BlockContent {
        fingerprint: row.fingerprint,
        crc32c: row.crc32c,
    }
}

/// What the journal changes.
pub(super) struct Later {
    pub(super) volumes: BTreeMap<u32, VolumeInfo>,
    pub(super) maps: BTreeMap<MapId, MapInfo>,
    /// Maps that it forgets.
    gone: BTreeSet<MapId>,
    pub(super) map: BTreeMap<(MapId, u64), Option<(Pba, BlockContent)>>,
    /// Sub-blocks whose new data never arrived.
    unproven: u64,
}

impl Later {
    /// Nothing yet.
    pub(super) fn new(
        (volumes, maps): (&BTreeMap<u32, VolumeInfo>, &BTreeMap<MapId, MapInfo>),
    ) -> Self {
        Self {
            volumes: volumes.clone(),
            maps: maps.clone(),
            gone: BTreeSet::new(),
            map: BTreeMap::new(),
            unproven: 0,
        }
    }

    /// Replays records as an opening does ([`crate::log::replay`]).
    fn replay(
        stored: (&BTreeMap<u32, VolumeInfo>, &BTreeMap<MapId, MapInfo>),
        records: &[(u64, Record)],
        checkpoint: Checkpoint,
        lost_power: bool,
        contents: &mut Contents<'_>,
    ) -> Result<Self> {
        let durable = durable_upto(records).max(checkpoint.position.seq - 1);
        let mut later = Self::new(stored);
        for (sequence, record) in records {
            let data = Data::of(*sequence, durable, lost_power);
            later.apply(*sequence, record, data, contents)?;
        }
        Ok(later)
    }

    /// Replays the next record.
    pub(super) fn apply(
        &mut self,
        sequence: u64,
        record: &Record,
        data: Data,
        contents: &mut Contents<'_>,
    ) -> Result<()> {
        let later = self;
        replay_record(sequence, record, data, &mut Proving { later, contents })
    }

    fn set(&mut self, map: MapId, at: u64, new: Option<(Pba, BlockContent)>) {
        if !self.gone.contains(&map) {
            self.map.insert((map, at), new);
        }
    }

    fn forget(&mut self, map: MapId) {
        self.gone.insert(map);
        self.map.retain(|(of, _), _| *of != map);
    }
}

/// A repair on its way: what the drives hold, and what the records make of the rows.
struct Proving<'a, 'b> {
    later: &'a mut Later,
    contents: &'a mut Contents<'b>,
}

impl Replay for Proving<'_, '_> {
    fn prove(&mut self, _map: MapId, new: &NewBlock) -> Proof {
        self.contents.prove(new.pba, &content_of_new(new))
    }

    /// What is damaged is found when all blocks are looked at.
    fn proven(&mut self, _new: NewBlock, _proof: Proof) {}

    fn undone(&mut self, _map: MapId, _sub_block: u64, _old: Option<Pba>) {
        self.later.unproven += 1;
    }

    fn map(&mut self, _sequence: u64, map: MapId, entries: Vec<(u64, MapEntry)>) -> Result<()> {
        for (at, entry) in entries {
            let new = entry.new.map(|new| (new.pba, content_of_new(&new)));
            self.later.set(map, at, new);
        }
        Ok(())
    }

    /// Settings need no repair: `make` takes them as they are.
    fn other(&mut self, _sequence: u64, record: &Record) -> Result<()> {
        let later = &mut *self.later;
        match record {
            Record::VolumeGone { id } => {
                if let Some(info) = later.volumes.get(id) {
                    later.forget(info.map);
                }
            }
            Record::MapGone { id } => later.forget(*id),
            _ => {}
        }
        change_volumes(record, &mut later.volumes);
        change_maps(record, &mut later.maps);
        Ok(())
    }
}

fn content_of_new(new: &NewBlock) -> BlockContent {
    BlockContent {
        fingerprint: new.fingerprint,
        crc32c: new.crc32c,
    }
}

/// A mapping to a block whose row does not say what it holds, or not the same as others.
pub(super) struct Held {
    pub(super) map: MapId,
    pub(super) sub_block: u64,
    /// What the journal says that it holds.
    pub(super) claim: Option<BlockContent>,
    /// The checksum that the mapping says.
    pub(super) crc32c: Option<u32>,
}

/// Mappings of a map that no volume has, and that has no row.
#[derive(Clone, Copy, Default)]
pub(super) struct Stray {
    /// One past the last sub-block.
    pub(super) end: u64,
    pub(super) mappings: u64,
}

/// All mappings as they are and as they will be.
pub(super) struct Survey {
    pub(super) stored_volumes: BTreeMap<u32, VolumeInfo>,
    pub(super) volumes: BTreeMap<u32, VolumeInfo>,
    pub(super) stored_maps: BTreeMap<MapId, MapInfo>,
    pub(super) maps: BTreeMap<MapId, MapInfo>,
    /// The volumes of maps, before and after.
    stored_heads: BTreeSet<MapId>,
    pub(super) heads: BTreeMap<MapId, u32>,
    /// Those that have to be looked at, in the order of their addresses. Of all others, row and mappings agree and stay.
    pub(super) blocks: Vec<Block>,
    /// Blocks that are mapped and have no row.
    absent: BTreeSet<Pba>,
    pub(super) data_blocks: Vec<u64>,
    /// Mappings that must be looked at one by one, by block.
    pub(super) held: BTreeMap<Pba, Vec<Held>>,
    pub(super) strays: BTreeMap<MapId, Stray>,
    /// Mappings before and after.
    pub(super) map: BTreeMap<(MapId, u64), (Option<Pba>, Option<Pba>)>,
    pub(super) dropped: u64,
    /// Whether the store contradicts itself.
    pub(super) is_damaged: bool,
    gone: BTreeSet<MapId>,
    later: BTreeMap<(MapId, u64), Option<(Pba, BlockContent)>>,
    /// How much the store holds.
    found: Totals,
    /// What the mappings that the journal changes are in the store.
    replaced: BTreeMap<(MapId, u64), Pba>,
    /// Blocks of which the journal, or the checksum of a mapping, says something else than their row.
    contested: BTreeSet<Pba>,
}

impl Survey {
    fn new(rows: Rows, later: Later, data_blocks: Vec<u64>) -> Self {
        Self {
            stored_heads: rows.volumes.values().map(|info| info.map).collect(),
            heads: later
                .volumes
                .values()
                .map(|info| (info.map, info.id))
                .collect(),
            stored_volumes: rows.volumes,
            volumes: later.volumes,
            stored_maps: rows.maps,
            maps: later.maps,
            blocks: Vec::new(),
            absent: BTreeSet::new(),
            data_blocks,
            held: BTreeMap::new(),
            strays: BTreeMap::new(),
            map: BTreeMap::new(),
            dropped: 0,
            is_damaged: false,
            gone: later.gone,
            later: later.map,
            found: rows.found,
            replaced: BTreeMap::new(),
            contested: BTreeSet::new(),
        }
    }

    /// Takes over the blocks that have to be looked at.
    fn take(&mut self, suspects: Suspects) {
        self.blocks = suspects.blocks;
        self.absent = suspects.absent;
        self.contested = suspects.contradicted;
        let claims = self.later.values().flatten();
        let contested = claims.filter(|(pba, content)| {
            self.find(*pba)
                .is_some_and(|at| content_of(&self.blocks[at].row) != *content)
        });
        let contested: Vec<Pba> = contested.map(|(pba, _)| *pba).collect();
        self.contested.extend(contested);
    }

    /// How many blocks the store holds, by drive.
    pub(super) fn stored_blocks(&self) -> &BTreeMap<u16, u64> {
        &self.found.blocks
    }

    /// Whether a repair or the journal changes the mapping there, so that its block's count changes too.
    pub(super) fn changes(&self, map: MapId, at: u64) -> bool {
        self.gone.contains(&map) || self.later.contains_key(&(map, at)) || self.is_beyond(map, at)
    }

    /// Blocks that the journal's mappings lead to.
    pub(super) fn mapped_later(&self) -> impl Iterator<Item = Pba> {
        let pbas = self.later.values().flatten().map(|(pba, _)| *pba);
        pbas.filter(|pba| !pba.is_hole())
    }

    /// Whether nothing can be mapped there.
    fn is_beyond(&self, map: MapId, at: u64) -> bool {
        match self.volume_of(map) {
            // What a shrunk volume cut off is still being given back.
            Some(info) => at >= info.size_bytes / BLOCK_BYTES as u64 && !info.is_trimming(at),
            None => at >= SUB_BLOCKS_MAX,
        }
    }

    pub(super) fn find(&self, pba: Pba) -> Option<usize> {
        self.blocks
            .binary_search_by_key(&pba, |block| block.pba)
            .ok()
    }

    pub(super) fn is_on_a_drive(&self, pba: Pba) -> bool {
        self.data_blocks
            .get(usize::from(pba.drive()))
            .is_some_and(|blocks| pba.is_within(*blocks))
    }

    /// The mappings that the journal makes.
    fn add_later(&mut self) {
        for ((map, at), new) in std::mem::take(&mut self.later) {
            let before = self.replaced.get(&(map, at)).copied();
            match new {
                Some((hole, _)) if hole.is_hole() => self.change(map, at, before, Some(hole)),
                Some((pba, content)) => self.keep((map, at), before, pba, Some(content), None),
                None => self.change(map, at, before, None),
            }
        }
    }

    fn change(&mut self, map: MapId, at: u64, before: Option<Pba>, after: Option<Pba>) {
        if before != after {
            self.map.insert((map, at), (before, after));
        }
    }

    /// The volume that has a map.
    pub(super) fn volume_of(&self, map: MapId) -> Option<&VolumeInfo> {
        self.volumes.get(self.heads.get(&map)?)
    }

    /// A mapping as it will be.
    fn keep(
        &mut self,
        (map, at): (MapId, u64),
        before: Option<Pba>,
        pba: Pba,
        claim: Option<BlockContent>,
        crc32c: Option<u32>,
    ) {
        let is_known = self.volume_of(map).is_some() || self.maps.contains_key(&map);
        if self.is_beyond(map, at) {
            self.dropped += 1;
            let inherits = self
                .maps
                .get(&map)
                .is_some_and(|info| info.parent.is_some());
            // What ancestors have there is not to show when the volume grows again.
            return self.change(map, at, before, inherits.then_some(Pba::HOLE));
        }
        if !is_known {
            let stray = self.strays.entry(map).or_default();
            stray.end = stray.end.max(at + 1);
            stray.mappings += 1;
        }
        self.change(map, at, before, Some(pba));
        match self.find(pba) {
            Some(known) if !self.contested.contains(&pba) && self.is_on_a_drive(pba) => {
                self.blocks[known].kept += 1;
            }
            None if !self.absent.contains(&pba) => {}
            _ => self.held.entry(pba).or_default().push(Held {
                map,
                sub_block: at,
                claim,
                crc32c,
            }),
        }
    }
}

impl LoadVisitor for Survey {
    fn wants(&self, kind: RowKind) -> bool {
        kind == RowKind::Mapping
    }

    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, _pba: Pba, _row: BlockRow) {}

    fn map(&mut self, map: MapId, sub_block: u64, Mapping { pba, crc32c }: Mapping) {
        if pba.is_hole() {
            let is_known = self.maps.contains_key(&map) || self.gone.contains(&map);
            if self.later.contains_key(&(map, sub_block)) {
                self.replaced.insert((map, sub_block), pba);
            } else if !is_known {
                // It hides nothing, because the map has no parent.
                self.is_damaged = true;
                self.change(map, sub_block, Some(pba), None);
            }
            return;
        }
        self.found.add_mapping(map);
        match self.find(pba) {
            Some(known) => {
                let block = &mut self.blocks[known];
                block.stored += 1;
                self.is_damaged |= block.row.crc32c != crc32c;
            }
            None => self.is_damaged |= self.absent.contains(&pba),
        }
        if !self.stored_heads.contains(&map) && !self.stored_maps.contains_key(&map) {
            self.is_damaged = true;
        }
        if self.later.contains_key(&(map, sub_block)) {
            self.replaced.insert((map, sub_block), pba);
        } else if self.gone.contains(&map) {
            self.change(map, sub_block, Some(pba), None);
        } else {
            self.keep((map, sub_block), Some(pba), pba, None, Some(crc32c));
        }
    }
}

/// The last pass: the mappings that change, and how much there is afterwards.
struct Finish<'a> {
    survey: &'a Survey,
    /// Checksums of blocks whose rows change; `None`: no row.
    changed: BTreeMap<Pba, Option<u32>>,
    /// Mappings that the survey changes, and that are in the store.
    seen: BTreeSet<(MapId, u64)>,
    mappings: Vec<Change>,
    totals: Totals,
}

impl<'a> Finish<'a> {
    fn new(survey: &'a Survey, changes: &[Change]) -> Self {
        let blocks = changes.iter().filter_map(|change| match change {
            Change::Block { pba, after, .. } => Some((*pba, after.map(|row| row.crc32c))),
            _ => None,
        });
        let changed: BTreeMap<Pba, Option<u32>> = blocks.collect();
        let mut totals = Totals {
            blocks: survey.stored_blocks().clone(),
            ..Totals::default()
        };
        for change in changes {
            if let Change::Block { pba, before, after } = change {
                let count = totals.blocks.entry(pba.drive()).or_default();
                *count += u64::from(after.is_some());
                *count -= u64::from(before.is_some());
            }
        }
        totals.blocks.retain(|_, count| *count > 0);
        Self {
            survey,
            changed,
            seen: BTreeSet::new(),
            mappings: Vec::new(),
            totals,
        }
    }

    fn set(&mut self, key: (MapId, u64), before: Option<Mapping>, after: Option<Pba>) {
        let (map, sub_block) = key;
        let row = |pba| match self.survey.find(pba) {
            Some(known) => Some(self.survey.blocks[known].row.crc32c),
            // A block that nobody had to look at has the checksum that its mappings say.
            None => before
                .filter(|before| before.pba == pba)
                .map(|before| before.crc32c),
        };
        let after = after.map(|pba| Mapping {
            pba,
            crc32c: match self.changed.get(&pba) {
                Some(crc32c) => crc32c.unwrap_or(0),
                None => row(pba).unwrap_or(0),
            },
        });
        if after.is_some_and(|after| !after.is_hole()) {
            self.totals.add_mapping(map);
        }
        if before != after {
            self.mappings.push(Change::Mapping {
                map,
                sub_block,
                before,
                after,
            });
        }
    }

    /// What is not in the store.
    fn add_new(&mut self) {
        for (key, (_, after)) in &self.survey.map {
            if !self.seen.contains(key) {
                self.set(*key, None, *after);
            }
        }
    }
}

impl LoadVisitor for Finish<'_> {
    fn wants(&self, kind: RowKind) -> bool {
        kind == RowKind::Mapping
    }

    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, _pba: Pba, _row: BlockRow) {}

    fn map(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        let key = (map, sub_block);
        match self.survey.map.get(&key) {
            Some((_, after)) => {
                self.seen.insert(key);
                self.set(key, Some(mapping), *after);
            }
            None => self.set(key, Some(mapping), Some(mapping.pba)),
        }
    }
}

/// The changes as the store takes them: all or none, with the journal's position.
fn batch_of(changes: &[Change], checkpoint: Checkpoint, next: Checkpoint) -> Batch {
    let mut batch = Batch::checkpoint_only(next);
    batch.base_seq = checkpoint.position.seq;
    for change in changes {
        match change {
            Change::Volume { id, after, .. } => {
                let change = match after {
                    Some(info) => VolumeChange::Put(VolumeInfo::clone(info)),
                    None => VolumeChange::Remove,
                };
                batch.volumes.insert(*id, change);
            }
            Change::Block { pba, before, after } => {
                let count = |row: &Option<BlockRow>| row.map_or(0, |row| i64::from(row.refcount));
                let (old, new) = (count(before), count(after));
                let is_same_content =
                    before.as_ref().map(content_of) == after.as_ref().map(content_of);
                let change = BlockChange {
                    wants_index_entry: false,
                    delta: new - old,
                    // New content means that all old references go away first.
                    lowest: if is_same_content {
                        (new - old).min(0)
                    } else {
                        -old
                    },
                    content: after.as_ref().map(content_of),
                };
                batch.blocks.insert(*pba, change);
            }
            Change::Map { id, after, .. } => {
                batch.maps.insert(*id, *after);
            }
            Change::Mapping {
                map,
                sub_block,
                before,
                after,
            } => {
                let old = before.map(|mapping| mapping.pba);
                let change = MapChange { old, new: *after };
                batch.map.insert((*map, *sub_block), change);
            }
        }
    }
    batch
}
