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
use std::hash::{BuildHasher, Hash};

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::error::MetaError;
use crate::record::{MapEntry, NewBlock, Record, RecordRef};
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, Mapping, Pba, Totals, VolumeInfo, VolumeState,
};

/// The change of one mapping by a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapChange {
    /// Before the run.
    pub old: Option<Pba>,
    /// After it; `None` deletes the row.
    pub new: Option<Mapping>,
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
}

/// The change of one volume by a whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeChange {
    /// The row is this from now on.
    Put(VolumeInfo),
    /// The row stays, with changes.
    Update {
        /// New size in bytes.
        size_bytes: Option<u64>,
        /// Whether it is marked as being deleted.
        deleting: bool,
        /// All that is being trimmed from now on.
        trimming: Option<Vec<(u64, u64)>>,
    },
    /// There is no row any more.
    Remove,
}

/// A change of a store, to be applied as a whole: [`Store::apply`](crate::Store::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// By volume and sub-block.
    pub map: BTreeMap<(u32, u64), MapChange>,
    /// By address.
    pub blocks: BTreeMap<Pba, BlockChange>,
    /// By volume id.
    pub volumes: BTreeMap<u32, VolumeChange>,
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
        BatchBuilder::new(checkpoint.position.seq).finish(checkpoint)
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
            Some(change) => resolve_block(pba, stored, change),
            None => Ok(stored),
        }
    }

    /// Rows that the batch touches, the checkpoint included.
    pub fn rows(&self) -> usize {
        self.map.len() + self.blocks.len() + self.volumes.len() + 1
    }
}

/// Collects records into a [`Batch`].
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    base_seq: u64,
    map: Changes<(u32, u64), MapChange>,
    blocks: Changes<Pba, BlockChange>,
    volumes: BTreeMap<u32, VolumeChange>,
}

impl BatchBuilder {
    /// An empty one, for a run that begins with the record `base_seq`.
    pub fn new(base_seq: u64) -> Self {
        Self {
            base_seq,
            map: Changes::default(),
            blocks: Changes::default(),
            volumes: BTreeMap::new(),
        }
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
        let entries = records
            .iter()
            .map(|(_, record)| RecordRef::from(record).entry_count());
        let entries = entries.sum::<u64>() as usize;
        builder.map.reserve(entries);
        // What is mapped, and what was.
        builder.blocks.reserve(2 * entries);
        for ((seq, record), expected) in records.iter().zip(first..) {
            if *seq != expected {
                return Err(MetaError::Inconsistent(format!(
                    "record {seq} follows record {}",
                    expected.wrapping_sub(1)
                )));
            }
            builder.add(record)?;
        }
        if first + records.len() as u64 != checkpoint.position.seq {
            return Err(MetaError::Inconsistent(format!(
                "records {first} to {} do not end before record {}",
                (first + records.len() as u64).wrapping_sub(1),
                checkpoint.position.seq
            )));
        }
        Ok(builder.finish(checkpoint))
    }

    /// Adds the effect of the next record.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`]; the builder is then of no more use.
    pub fn add(&mut self, record: &Record) -> Result<(), MetaError> {
        match record {
            Record::Map {
                volume,
                start,
                entries,
            } => self.change(*volume, MapEntry::numbered(*start, entries)),
            Record::Unmap { volume, entries } => {
                for (sub_block, old) in entries {
                    self.change_map(*volume, *sub_block, Some(*old), None)?;
                    self.release(*old);
                }
                Ok(())
            }
            Record::VolumeCreate(info) => {
                match self.volumes.get(&info.id) {
                    None | Some(VolumeChange::Remove) => {}
                    Some(_) => return Err(volume_error(info.id, "created twice")),
                }
                self.volumes
                    .insert(info.id, VolumeChange::Put(info.clone()));
                Ok(())
            }
            Record::VolumeResize {
                id,
                size_bytes,
                trimming,
            } => self.change_volume(*id, Some(*size_bytes), false, Some(trimming)),
            Record::Trimming { id, ranges } => self.change_volume(*id, None, false, Some(ranges)),
            Record::VolumeDelete { id } => self.change_volume(*id, None, true, None),
            Record::VolumeGone { id } => match self.volumes.insert(*id, VolumeChange::Remove) {
                Some(VolumeChange::Remove) => Err(volume_error(*id, "removed twice")),
                _ => Ok(()),
            },
            Record::Durable { .. } => Ok(()),
        }
    }

    /// What the run so far leaves a sub-block mapped to; `None` if it does not touch it.
    pub fn mapped(&self, volume: u32, sub_block: u64) -> Option<Option<Mapping>> {
        let change = self.map.get(&(volume, sub_block))?;
        Some(change.new)
    }

    /// Rows that the batch would touch so far: a caller that bounds its batches cuts by this.
    pub fn rows(&self) -> usize {
        self.map.len() + self.blocks.len() + self.volumes.len() + 1
    }

    /// The batch, with the checkpoint that it leads to.
    pub fn finish(self, checkpoint: Checkpoint) -> Batch {
        // A block that was freed and written anew in between may be mapped again with another content:
        // only what is unmapped before and after is no change.
        let is_change = |change: &MapChange| change.old.is_some() || change.new.is_some();
        Batch {
            map: self.map.into_sorted(is_change),
            blocks: self.blocks.into_sorted(|_| true),
            volumes: self.volumes,
            totals: None,
            base_seq: self.base_seq,
            checkpoint,
        }
    }

    /// Adds one change of sub-blocks of a volume, each with what it mapped to before.
    ///
    /// # Errors
    /// As for [`BatchBuilder::add`].
    pub fn change(
        &mut self,
        volume: u32,
        entries: impl Iterator<Item = (u64, MapEntry)> + Clone,
    ) -> Result<(), MetaError> {
        // References are taken before any is given back, so that a block that only moves within the
        // change is never seen without a reference.
        for (sub_block, entry) in entries.clone() {
            let new = entry
                .new
                .map(|NewBlock { pba, crc32c, .. }| Mapping { pba, crc32c });
            self.change_map(volume, sub_block, entry.old, new)?;
            if let Some(new) = entry.new {
                let content = BlockContent {
                    fingerprint: new.fingerprint,
                    crc32c: new.crc32c,
                };
                let change = self.blocks.get_or(new.pba, BlockChange::default()).0;
                change.delta += 1;
                change.content = Some(content);
            }
        }
        for old in entries.filter_map(|(_, entry)| entry.old) {
            self.release(old);
        }
        Ok(())
    }

    fn change_map(
        &mut self,
        volume: u32,
        sub_block: u64,
        old: Option<Pba>,
        new: Option<Mapping>,
    ) -> Result<(), MetaError> {
        let key = (volume, sub_block);
        let (change, was_there) = self.map.get_or(key, MapChange { old, new });
        if was_there {
            if change.new.map(|new| new.pba) != old {
                return Err(MetaError::Inconsistent(format!(
                    "a record says that sub-block {sub_block} of volume {volume} mapped to {old:?}, \
                     the record before it says {:?}",
                    change.new
                )));
            }
            change.new = new;
        }
        Ok(())
    }

    fn release(&mut self, pba: Pba) {
        let change = self.blocks.get_or(pba, BlockChange::default()).0;
        change.delta -= 1;
        change.lowest = change.lowest.min(change.delta);
    }

    fn change_volume(
        &mut self,
        id: u32,
        size: Option<u64>,
        deleted: bool,
        ranges: Option<&[(u64, u64)]>,
    ) -> Result<(), MetaError> {
        let change = self.volumes.entry(id).or_insert(VolumeChange::Update {
            size_bytes: None,
            deleting: false,
            trimming: None,
        });
        match change {
            VolumeChange::Put(info) => {
                info.size_bytes = size.unwrap_or(info.size_bytes);
                if deleted {
                    info.state = VolumeState::Deleting;
                }
                if let Some(ranges) = ranges {
                    info.trimming = ranges.to_vec();
                }
            }
            VolumeChange::Update {
                size_bytes,
                deleting,
                trimming,
            } => {
                *size_bytes = size.or(*size_bytes);
                *deleting |= deleted;
                if let Some(ranges) = ranges {
                    *trimming = Some(ranges.to_vec());
                }
            }
            VolumeChange::Remove => return Err(volume_error(id, "changed after it was removed")),
        }
        Ok(())
    }
}

/// Changes by what they change, in the order in which they came first. They are many and are looked for by
/// hash; sorting them once costs a third of what an ordered map costs.
#[derive(Clone, Debug)]
struct Changes<K, V> {
    /// Indexes of `entries`.
    places: HashTable<usize>,
    hasher: DefaultHashBuilder,
    entries: Vec<(K, V)>,
}

impl<K, V> Default for Changes<K, V> {
    fn default() -> Self {
        Self {
            places: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            entries: Vec::new(),
        }
    }
}

impl<K: Copy + Hash + Ord, V> Changes<K, V> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    /// Room for so many more, which need not come.
    fn reserve(&mut self, count: usize) {
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.places
            .reserve(count, |at| hasher.hash_one(entries[*at].0));
        self.entries.reserve(count);
    }

    fn get(&self, key: &K) -> Option<&V> {
        let hash = self.hasher.hash_one(key);
        let place = self.places.find(hash, |at| self.entries[*at].0 == *key)?;
        Some(&self.entries[*place].1)
    }

    /// The change of `key`, which is `new` if there was none, and whether there was one.
    fn get_or(&mut self, key: K, new: V) -> (&mut V, bool) {
        let Self {
            places,
            hasher,
            entries,
        } = self;
        let place = places.entry(
            hasher.hash_one(key),
            |at| entries[*at].0 == key,
            |at| hasher.hash_one(entries[*at].0),
        );
        let (place, was_there) = match place {
            Entry::Occupied(place) => (*place.get(), true),
            Entry::Vacant(place) => {
                place.insert(entries.len());
                entries.push((key, new));
                (entries.len() - 1, false)
            }
        };
        (&mut entries[place].1, was_there)
    }

    /// Those that `is_change` holds for, in order.
    fn into_sorted(mut self, is_change: impl Fn(&V) -> bool) -> BTreeMap<K, V> {
        self.entries.retain(|(_, change)| is_change(change));
        self.entries.sort_unstable_by_key(|(key, _)| *key);
        self.entries.into_iter().collect()
    }
}

fn volume_error(id: u32, what: &str) -> MetaError {
    MetaError::Inconsistent(format!("volume {id} is {what}"))
}

/// The row of a block after a change; `None` = no row.
///
/// # Errors
/// [`MetaError::Inconsistent`] if a count would leave the range of its type, if content would appear
/// from nowhere, or if it would change while mappings point to it.
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
    let Ok(refcount) = u32::try_from(after) else {
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
    }))
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
        VolumeChange::Update {
            size_bytes,
            deleting,
            trimming,
        } => {
            let mut info = stored.ok_or_else(|| volume_error(id, "changed, but not there"))?;
            info.size_bytes = size_bytes.unwrap_or(info.size_bytes);
            if *deleting {
                info.state = VolumeState::Deleting;
            }
            if let Some(ranges) = trimming {
                info.trimming = ranges.clone();
            }
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
