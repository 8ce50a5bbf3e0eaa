//! The net effect of a run of journal records on the rows of a store.
//!
//! Pure: no I/O. Guarantees, for records that form a consistent history:
//!
//! * each mapping appears once, with its last value (and the value before the run, so that a store can
//!   check it);
//! * the change of a block's reference count is exactly the number of mappings to it that the run adds,
//!   less the number that it takes away;
//! * records that contradict each other are refused ([`MetaError::Inconsistent`]), because applying
//!   them would break the equality of counts and mappings.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::changes::{Change, Changes, Kind};
use crate::error::MetaError;
use crate::record::{MapEntry, NewBlock, Record};
use crate::runs::{ENTRIES_MAX, Named, Occurrence, Runs, Side};
use crate::setting::SettingChanges;
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, REFCOUNT_MAX, Totals,
    VolumeInfo, VolumePolicy, VolumeState,
};

/// The change of one mapping by a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapChange {
    /// Before the run; a hole was nothing.
    pub old: Option<Pba>,
    /// After it; `None` deletes the entry, also if it is a hole. It may be a hole.
    pub new: Option<Mapping>,
}

impl MapChange {
    /// Whether something is mapped before and after; holes are nothing.
    pub(crate) fn is_mapped(&self) -> (bool, bool) {
        let is_block = |pba: Pba| !pba.is_hole();
        (
            self.old.is_some_and(is_block),
            self.new.is_some_and(|new| is_block(new.pba)),
        )
    }
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockContent {
    /// Fingerprint of the content.
    pub fingerprint: Fingerprint,
    /// CRC-32C of the content.
    pub crc32c: u32,
}

/// The change of one block by a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockChange {
    /// Mappings added less mappings taken away.
    pub delta: i64,
    /// The lowest value that `delta` had within the run, at most 0.
    pub lowest: i64,
    /// Content that the run's last new mapping to the block names.
    pub content: Option<BlockContent>,
    /// An index entry is to lead to the block, if it has a fingerprint and is in use afterwards.
    pub wants_index_entry: bool,
}

/// The change of one volume by a whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeChange {
    /// The row is this from now on.
    Put(VolumeInfo),
    /// The row stays, with changes.
    Update(VolumeUpdate),
    /// There is no row any more.
    Remove,
}

/// What changes in the row of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUpdate {
    /// New size in bytes.
    pub size_bytes: Option<u64>,
    /// New name.
    pub name: Option<String>,
    /// New policy.
    pub policy: Option<VolumePolicy>,
    /// Whether it is marked as being deleted.
    pub deleting: bool,
    /// All that is being trimmed from now on.
    pub trimming: Option<Vec<(u64, u64)>>,
    /// The map that it has from now on.
    pub map: Option<MapId>,
}

impl VolumeUpdate {
    fn apply_to(&self, info: &mut VolumeInfo) {
        info.size_bytes = self.size_bytes.unwrap_or(info.size_bytes);
        if let Some(name) = &self.name {
            info.name.clone_from(name);
        }
        if let Some(policy) = self.policy {
            info.set_policy(policy);
        }
        if self.deleting {
            info.state = VolumeState::Deleting;
        }
        if let Some(ranges) = &self.trimming {
            info.trimming.clone_from(ranges);
        }
        info.map = self.map.unwrap_or(info.map);
    }
}

/// A change of a store, to be applied as a whole: [`Store::apply`](crate::Store::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// By map and sub-block.
    pub map: Changes<(MapId, u64), MapChange>,
    /// By address.
    pub blocks: Changes<Pba, BlockChange>,
    /// By volume id.
    pub volumes: BTreeMap<u32, VolumeChange>,
    /// Rows of maps; `None`: there is none any more, and all holes of the map go.
    pub maps: BTreeMap<MapId, Option<MapInfo>>,
    /// By key.
    pub settings: SettingChanges,
    /// The store's totals after the batch, if they are not to follow from its changes (a repair).
    pub totals: Option<Totals>,
    /// Sequence number of the first record of the run. A store takes the batch only if its checkpoint
    /// is exactly there: so no record is ever applied twice, and none is left out.
    pub base_seq: u64,
    /// What the rows stand for afterwards.
    pub checkpoint: Checkpoint,
}

impl Batch {
    /// A batch that changes nothing but the epoch (and the byte offset) of a checkpoint.
    pub fn checkpoint_only(checkpoint: Checkpoint) -> Self {
        Self {
            map: Changes::default(),
            blocks: Changes::default(),
            volumes: BTreeMap::new(),
            maps: BTreeMap::new(),
            settings: SettingChanges::new(),
            totals: None,
            base_seq: checkpoint.position.seq,
            checkpoint,
        }
    }

    /// The row of a block after the batch, whose row is `stored` before it; `None` = no row.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`] if the change cannot be made.
    pub fn block_after(
        &self,
        pba: Pba,
        stored: Option<BlockRow>,
    ) -> Result<Option<BlockRow>, MetaError> {
        match self.blocks.get(&pba) {
            Some(change) => resolve_block(pba, stored, &change),
            None => Ok(stored),
        }
    }

    /// Index entries are to lead to these blocks from now on. They are in order, and the batch gives each a content.
    pub fn want_index_entries(&mut self, blocks: impl Iterator<Item = Pba>) {
        self.blocks.want_index_entries(blocks);
    }
}

/// The net effect of a run of journal records on the rows of a store: collected as they come, sorted once.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    base_seq: u64,
    /// Sequence number of the record that comes next.
    next_seq: u64,
    /// Changes of mappings, in the order in which they came.
    entries: Vec<MapEntry>,
    /// The record that each came with, counted from the first.
    changes: Vec<u32>,
    /// Which mappings they change, by map and sub-block.
    mappings: Runs<(MapId, u64)>,
    /// Blocks that entries refer to, each as its new block or as its old one.
    references: Runs<Pba>,
    /// Whether an entry changes nothing.
    has_nothings: bool,
    volumes: BTreeMap<u32, VolumeChange>,
    maps: BTreeMap<MapId, Option<MapInfo>>,
    settings: SettingChanges,
}

impl BatchBuilder {
    /// An empty one, for a run that begins with the record `base_seq`.
    pub fn new(base_seq: u64) -> Self {
        Self {
            base_seq,
            next_seq: base_seq,
            entries: Vec::new(),
            changes: Vec::new(),
            mappings: Runs::default(),
            references: Runs::default(),
            has_nothings: false,
            volumes: BTreeMap::new(),
            maps: BTreeMap::new(),
            settings: SettingChanges::new(),
        }
    }

    /// Takes memory for so many changes of mappings at once: a list that grows is copied again and again.
    pub fn reserve(&mut self, changes: usize) {
        self.entries.reserve(changes);
        self.changes.reserve(changes);
    }

    /// The net effect of `records`, which must be consecutive and end just before
    /// `checkpoint.position`.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`] if the records contradict each other or the position.
    pub fn from_records(
        records: &[(u64, Record)],
        checkpoint: Checkpoint,
    ) -> Result<Batch, MetaError> {
        let first = records
            .first()
            .map_or(checkpoint.position.seq, |(seq, _)| *seq);
        let mut builder = Self::new(first);
        for (seq, record) in records {
            builder.add(*seq, record)?;
        }
        builder.finish(checkpoint)
    }

    /// Adds the effect of the next record, whose sequence number is `seq`.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`] if it does not follow the one before, or contradicts it. The builder is
    /// then of no more use.
    pub fn add(&mut self, seq: u64, record: &Record) -> Result<(), MetaError> {
        match record {
            Record::Map {
                map,
                start,
                entries,
            }
            | Record::Own {
                map,
                start,
                entries,
            } => return self.change(seq, *map, MapEntry::numbered(*start, entries)),
            Record::Unmap { map, entries } => {
                return self.change(seq, *map, MapEntry::unmapped(entries, None));
            }
            Record::Hide { map, entries } => {
                let hole = Some(NewBlock::HOLE);
                return self.change(seq, *map, MapEntry::unmapped(entries, hole));
            }
            _ => self.follow(seq)?,
        }
        match record {
            Record::VolumeCreate(info) => self.create_volume(info),
            Record::Fork(forks) => {
                for fork in forks {
                    self.create_volume(&fork.clone)?;
                    self.change_volume(fork.volume, |update| update.map = Some(fork.map))?;
                    self.put_maps(fork.maps());
                }
                Ok(())
            }
            Record::Rollback {
                parent,
                snapshot,
                snapshot_map,
                volume,
                map,
                size_bytes,
                trimming,
            } => {
                self.change_volume(*snapshot, |update| update.map = Some(*snapshot_map))?;
                self.change_volume(*volume, |update| {
                    update.map = Some(*map);
                    update.size_bytes = Some(*size_bytes);
                    update.trimming = Some(trimming.clone());
                })?;
                self.put_maps([*parent, parent.child(*snapshot_map), parent.child(*map)]);
                Ok(())
            }
            Record::Reparent(info) => {
                self.put_maps([*info]);
                Ok(())
            }
            Record::MapGone { id } => {
                self.maps.insert(*id, None);
                Ok(())
            }
            Record::VolumeResize {
                id,
                size_bytes,
                trimming,
            } => self.change_volume(*id, |change| {
                change.size_bytes = Some(*size_bytes);
                change.trimming = Some(trimming.clone());
            }),
            Record::VolumeRename { id, name } => {
                self.change_volume(*id, |change| change.name = Some(name.clone()))
            }
            Record::VolumePolicy { id, policy } => {
                self.change_volume(*id, |change| change.policy = Some(*policy))
            }
            Record::Trimming { id, ranges } => {
                self.change_volume(*id, |change| change.trimming = Some(ranges.clone()))
            }
            Record::VolumeDelete { id } => self.change_volume(*id, |change| change.deleting = true),
            Record::VolumeGone { id } => match self.volumes.insert(*id, VolumeChange::Remove) {
                Some(VolumeChange::Remove) => Err(volume_error(*id, "removed twice")),
                _ => Ok(()),
            },
            Record::Settings(changes) => {
                let changes = changes.iter();
                self.settings
                    .extend(changes.map(|(key, value)| (key.clone(), value.clone())));
                Ok(())
            }
            Record::Map { .. }
            | Record::Own { .. }
            | Record::Unmap { .. }
            | Record::Hide { .. }
            | Record::Durable { .. } => Ok(()),
        }
    }

    /// Adds the next record, which changes sub-blocks of a map, each with what it mapped to before.
    ///
    /// # Errors
    /// As for [`BatchBuilder::add`].
    pub fn change(
        &mut self,
        seq: u64,
        map: MapId,
        entries: impl Iterator<Item = (u64, MapEntry)>,
    ) -> Result<(), MetaError> {
        self.follow(seq)?;
        let change = u32::try_from(seq - self.base_seq).map_err(|_| {
            MetaError::Inconsistent("more than 2^32 records in one batch".to_owned())
        })?;
        for (sub_block, entry) in entries {
            if self.entries.len() >= ENTRIES_MAX {
                return Err(MetaError::Inconsistent(format!(
                    "more than {ENTRIES_MAX} changes in one batch"
                )));
            }
            let at = self.entries.len() as u32;
            self.mappings.push((map, sub_block), at, Side::New);
            if let Some(new) = entry.new_block() {
                self.references.push(new.pba, at, Side::New);
            }
            if let Some(old) = entry.old {
                self.references.push(old, at, Side::Old);
            }
            self.has_nothings |= entry.is_nothing();
            self.entries.push(entry);
            self.changes.push(change);
        }
        Ok(())
    }

    /// The batch, with the checkpoint that it leads to: its position is where the record that comes next
    /// will be.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`] if the records contradict each other or the position.
    pub fn finish(self, checkpoint: Checkpoint) -> Result<Batch, MetaError> {
        if self.next_seq != checkpoint.position.seq {
            return Err(MetaError::Inconsistent(format!(
                "records {} to {} do not end before record {}",
                self.base_seq,
                self.next_seq.wrapping_sub(1),
                checkpoint.position.seq
            )));
        }
        let entries = Arc::new(self.entries);
        let has_nothings = self.has_nothings;
        Ok(Batch {
            map: sorted_mappings(self.mappings, &self.changes, &entries, has_nothings)?,
            blocks: sorted_blocks(self.references, &self.changes, &entries)?,
            volumes: self.volumes,
            maps: self.maps,
            settings: self.settings,
            totals: None,
            base_seq: self.base_seq,
            checkpoint,
        })
    }

    fn put_maps(&mut self, rows: impl IntoIterator<Item = MapInfo>) {
        let rows = rows.into_iter().map(|info| (info.id, Some(info)));
        self.maps.extend(rows);
    }

    /// Takes the next sequence number.
    fn follow(&mut self, seq: u64) -> Result<(), MetaError> {
        if seq != self.next_seq {
            return Err(MetaError::Inconsistent(format!(
                "record {seq} follows record {}",
                self.next_seq.wrapping_sub(1)
            )));
        }
        self.next_seq = seq
            .checked_add(1)
            .ok_or_else(|| MetaError::Inconsistent(format!("no record can follow record {seq}")))?;
        Ok(())
    }

    fn change_volume(
        &mut self,
        id: u32,
        change: impl FnOnce(&mut VolumeUpdate),
    ) -> Result<(), MetaError> {
        let nothing = VolumeChange::Update(VolumeUpdate::default());
        match self.volumes.entry(id).or_insert(nothing) {
            VolumeChange::Put(info) => {
                let mut update = VolumeUpdate::default();
                change(&mut update);
                update.apply_to(info);
            }
            VolumeChange::Update(update) => change(update),
            VolumeChange::Remove => return Err(volume_error(id, "changed after it was removed")),
        }
        Ok(())
    }

    fn create_volume(&mut self, info: &VolumeInfo) -> Result<(), MetaError> {
        match self.volumes.get(&info.id) {
            None | Some(VolumeChange::Remove) => {}
            Some(_) => return Err(volume_error(info.id, "created twice")),
        }
        self.volumes
            .insert(info.id, VolumeChange::Put(info.clone()));
        Ok(())
    }
}

/// What a run makes of each mapping.
fn sorted_mappings(
    mappings: Runs<(MapId, u64)>,
    records: &[u32],
    entries: &Arc<Vec<MapEntry>>,
    has_nothings: bool,
) -> Result<Changes<(MapId, u64), MapChange>, MetaError> {
    let mut changes = Changes::of_entries(entries, mappings.len());
    // A block that was freed and written anew in between may be mapped again with another content: only what is
    // unmapped before and after is no change.
    let is_nothing = |entry: u32| has_nothings && entries[entry as usize].is_nothing();
    mappings.by_number(records, |named| {
        match named {
            Named::Alone(run) if !has_nothings => changes.push_run(run),
            Named::Alone(run) => {
                for (at, entry) in run.numbers().filter(|(_, entry)| !is_nothing(*entry)) {
                    changes.push_entry(at, entry, Side::New);
                }
            }
            Named::Together(at, [alone]) => {
                if !is_nothing(alone.entry()) {
                    changes.push_entry(at, alone.entry(), Side::New);
                }
            }
            Named::Together(at, occurrences) => {
                changes.push(at, change_of_all(at, occurrences, entries)?);
            }
        }
        Ok(())
    })?;
    Ok(changes)
}

/// What several entries make of one mapping. It is a change even if nothing is mapped before and after: where something was
/// mapped in between, the store may have a hole.
fn change_of_all(
    (map, sub_block): (MapId, u64),
    occurrences: &[Occurrence<(MapId, u64)>],
    entries: &[MapEntry],
) -> Result<MapChange, MetaError> {
    let mut all = MapEntry {
        old: None,
        new: None,
    };
    let of_one = occurrences.iter().map(|at| entries[at.entry() as usize]);
    for (number, entry) in of_one.enumerate() {
        if number == 0 {
            all = entry;
            continue;
        }
        let before = all.new_block().map(|new| new.pba);
        if entry.old != before {
            return Err(MetaError::Inconsistent(format!(
                "a record says that sub-block {sub_block} of map {map} mapped to {:?}, the record before it says {before:?}",
                entry.old
            )));
        }
        all.new = entry.new;
    }
    Ok(MapChange::of_entry(&all, Kind::New))
}

/// What a run makes of each block. In each change references are taken before any is given back, so that a
/// block that only moves within it is never seen without a reference.
fn sorted_blocks(
    references: Runs<Pba>,
    records: &[u32],
    entries: &Arc<Vec<MapEntry>>,
) -> Result<Changes<Pba, BlockChange>, MetaError> {
    let mut changes = Changes::of_entries(entries, references.len());
    references.by_number(records, |named| {
        match named {
            Named::Alone(run) => changes.push_run(run),
            Named::Together(pba, [alone]) => changes.push_entry(pba, alone.entry(), alone.side()),
            Named::Together(pba, occurrences) => {
                let mut change = BlockChange::default();
                for reference in occurrences {
                    match reference.side() {
                        Side::New => {
                            change.delta += 1;
                            let new = entries[reference.entry() as usize].new;
                            change.content = new.map(|new| BlockContent {
                                fingerprint: new.fingerprint,
                                crc32c: new.crc32c,
                            });
                        }
                        Side::Old => {
                            change.delta -= 1;
                            change.lowest = change.lowest.min(change.delta);
                        }
                    }
                }
                changes.push(pba, change);
            }
        }
        Ok::<(), MetaError>(())
    })?;
    Ok(changes)
}

fn volume_error(id: u32, what: &str) -> MetaError {
    MetaError::Inconsistent(format!("volume {id} is {what}"))
}

/// The row of a block after a change; `None` = no row.
///
/// # Errors
/// [`MetaError::Inconsistent`] if a count would leave the range of its type, if content would appear
/// from nowhere, or if it would change while mappings point to it.
#[inline]
pub(crate) fn resolve_block(
    pba: Pba,
    stored: Option<BlockRow>,
    change: &BlockChange,
) -> Result<Option<BlockRow>, MetaError> {
    let bad = |what: String| Err(MetaError::Inconsistent(format!("block {pba}: {what}")));
    let before = stored.map_or(0, |row| i64::from(row.refcount));
    if before + change.lowest < 0 {
        return bad(format!(
            "{before} references, but {} are taken away",
            -change.lowest
        ));
    }
    let after = before + change.delta;
    if after == 0 {
        return Ok(None);
    }
    let Some(refcount) = u32::try_from(after)
        .ok()
        .filter(|count| *count <= REFCOUNT_MAX)
    else {
        return bad(format!("{after} references are more than can be counted"));
    };
    let stored_content = stored.map(|row| BlockContent {
        fingerprint: row.fingerprint,
        crc32c: row.crc32c,
    });
    let Some(content) = change.content.or(stored_content) else {
        return bad("references without content".to_owned());
    };
    if stored_content.is_some_and(|stored| stored != content) && before + change.lowest > 0 {
        return bad("its content changes while mappings point to it".to_owned());
    }
    Ok(Some(BlockRow {
        refcount,
        fingerprint: content.fingerprint,
        crc32c: content.crc32c,
        has_index_entry: content.fingerprint.is_some()
            && (change.wants_index_entry
                || stored.is_some_and(|stored| {
                    stored.has_index_entry && stored.fingerprint == content.fingerprint
                })),
    }))
}

/// What becomes of index entries when the row of a block changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexEntryChange {
    /// The one for this content goes: it leads to the block.
    pub(crate) old: Option<Fingerprint>,
    /// The one for this content leads to the block from now on.
    pub(crate) new: Option<Fingerprint>,
}

impl IndexEntryChange {
    pub(crate) fn new(
        before: Option<BlockRow>,
        after: Option<BlockRow>,
        change: &BlockChange,
    ) -> Self {
        let entry =
            |row: Option<BlockRow>| Some(row.filter(|row| row.has_index_entry)?.fingerprint);
        let (before, after) = (entry(before), entry(after));
        match before == after {
            true => Self::default(),
            false => Self {
                old: before,
                new: after.filter(|_| change.wants_index_entry),
            },
        }
    }
}

/// The row of a volume after a change; `None` = no row.
///
/// # Errors
/// [`MetaError::Inconsistent`] if a volume is changed that there is not.
pub(crate) fn resolve_volume(
    id: u32,
    stored: Option<VolumeInfo>,
    change: &VolumeChange,
) -> Result<Option<VolumeInfo>, MetaError> {
    match change {
        VolumeChange::Put(info) => Ok(Some(info.clone())),
        VolumeChange::Remove => Ok(None),
        VolumeChange::Update(update) => {
            let mut info = stored.ok_or_else(|| volume_error(id, "changed, but not there"))?;
            update.apply_to(&mut info);
            Ok(Some(info))
        }
    }
}

/// Proves that a batch follows a checkpoint: it begins there, and neither position nor epoch goes back.
pub(crate) fn check_progress(stored: Checkpoint, batch: &Batch) -> Result<(), MetaError> {
    let next = batch.checkpoint;
    if batch.base_seq != stored.position.seq
        || next.position.seq < batch.base_seq
        || next.epoch < stored.epoch
    {
        return Err(MetaError::Inconsistent(format!(
            "a batch of records from {} to {next:?} does not follow {stored:?}",
            batch.base_seq
        )));
    }
    Ok(())
}
