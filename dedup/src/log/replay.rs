//! The one interpreter of the journal's records: for recovery, for repair, and for counts of what a journal says.
//!
//! Guarantee: recovery and repair come to the same mappings. A new block whose data may not have been flushed is
//! proven. If its data never arrived, its sub-block keeps the old mapping; everything else of the record counts
//! ([`crate::log::recovery`] says why).

use std::collections::BTreeMap;

use meta::{Fork, MapEntry, MapId, MapInfo, NewBlock, Pba, Record, VolumeInfo};

use crate::Result;
use crate::metadata::volume::change_row;

/// What a drive says of a block that a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// It holds what the record says.
    Holds,
    /// It holds something else.
    Differs,
    /// It cannot be read.
    Unreadable,
}

impl Proof {
    /// Whether the write never arrived: then its sub-block keeps its old mapping.
    fn is_undone(self, lost_power: bool) -> bool {
        self == Self::Differs && lost_power
    }
}

/// What records make of something: the batch of an opening, the rows of a repair, a count.
pub(crate) trait Replay {
    /// What the drive says of a new block that must be proven.
    fn prove(&mut self, map: MapId, new: &NewBlock) -> Proof;

    /// A new block was proven, or is damaged; its mapping counts.
    fn proven(&mut self, new: NewBlock, proof: Proof);

    /// The data of a sub-block never arrived: it keeps its old mapping.
    fn undone(&mut self, map: MapId, sub_block: u64, old: Option<Pba>);

    /// Sub-blocks of a map are mapped or unmapped, in their order.
    fn map(&mut self, sequence: u64, map: MapId, entries: Vec<(u64, MapEntry)>) -> Result<()>;

    /// A record that is about no mapping.
    fn other(&mut self, sequence: u64, record: &Record) -> Result<()>;
}

/// Whether new blocks of a record must be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// It is on stable drives.
    Durable,
    /// It may not have been flushed. `lost_power`: power may have been lost since.
    Doubtful { lost_power: bool },
}

impl Data {
    /// That of a record with this sequence number, if all up to `durable` is on stable drives.
    pub(crate) fn of(sequence: u64, durable: u64, lost_power: bool) -> Self {
        match sequence > durable {
            true => Self::Doubtful { lost_power },
            false => Self::Durable,
        }
    }
}

/// Up to which record the data of all records is on stable drives, as the records say; 0 if none says so.
pub(crate) fn durable_upto(records: &[(u64, Record)]) -> u64 {
    let durable = records.iter().filter_map(|(_, record)| match record {
        Record::Durable { upto } => Some(*upto),
        _ => None,
    });
    durable.max().unwrap_or(0)
}

/// Replays one record.
///
/// # Errors
/// Those of `to`.
pub(crate) fn replay_record(
    sequence: u64,
    record: &Record,
    data: Data,
    to: &mut impl Replay,
) -> Result<()> {
    match record {
        Record::Map {
            map,
            start,
            entries,
        } => {
            let mut kept = Vec::with_capacity(entries.len());
            for (at, entry) in MapEntry::numbered(*start, entries) {
                if let (Some(new), Data::Doubtful { lost_power }) = (entry.new_block(), data) {
                    let proof = to.prove(*map, &new);
                    if proof.is_undone(lost_power) {
                        to.undone(*map, at, entry.old);
                        continue;
                    }
                    to.proven(new, proof);
                }
                kept.push((at, entry));
            }
            to.map(sequence, *map, kept)
        }
        // What is copied was on stable drives before, whatever is doubtful of later records.
        Record::Own {
            map,
            start,
            entries,
        } => to.map(
            sequence,
            *map,
            MapEntry::numbered(*start, entries).collect(),
        ),
        Record::Unmap { map, entries } => {
            let entries = MapEntry::unmapped(entries, None);
            to.map(sequence, *map, entries.collect())
        }
        Record::Hide { map, entries } => {
            let entries = MapEntry::unmapped(entries, Some(NewBlock::HOLE));
            to.map(sequence, *map, entries.collect())
        }
        _ => to.other(sequence, record),
    }
}

/// What a record makes of the rows of maps.
pub(crate) fn change_maps(record: &Record, maps: &mut BTreeMap<MapId, MapInfo>) {
    match record {
        Record::Fork(forks) => {
            let all = forks.iter().flat_map(Fork::maps);
            maps.extend(all.map(|info| (info.id, info)));
        }
        Record::Rollback {
            parent,
            snapshot_map,
            map,
            ..
        } => {
            let all = [*parent, parent.child(*snapshot_map), parent.child(*map)];
            maps.extend(all.map(|info| (info.id, info)));
        }
        Record::Reparent(info) => {
            maps.insert(info.id, *info);
        }
        Record::MapGone { id } => {
            maps.remove(id);
        }
        _ => {}
    }
}

/// What a record makes of the rows of volumes.
pub(crate) fn change_volumes(record: &Record, volumes: &mut BTreeMap<u32, VolumeInfo>) {
    match record {
        Record::VolumeCreate(info) => {
            volumes.insert(info.id, info.clone());
        }
        Record::VolumeResize { id, .. }
        | Record::VolumeRename { id, .. }
        | Record::VolumePolicy { id, .. }
        | Record::Trimming { id, .. }
        | Record::VolumeDelete { id } => {
            if let Some(info) = volumes.get_mut(id) {
                change_row(info, record);
            }
        }
        Record::Fork(forks) => {
            for fork in forks {
                if let Some(info) = volumes.get_mut(&fork.volume) {
                    info.map = fork.map;
                }
                volumes.insert(fork.clone.id, fork.clone.clone());
            }
        }
        Record::Rollback {
            snapshot,
            snapshot_map,
            volume,
            map,
            size_bytes,
            trimming,
            ..
        } => {
            if let Some(info) = volumes.get_mut(snapshot) {
                info.map = *snapshot_map;
            }
            if let Some(info) = volumes.get_mut(volume) {
                info.map = *map;
                info.size_bytes = *size_bytes;
                info.trimming.clone_from(trimming);
            }
        }
        Record::VolumeGone { id } => {
            volumes.remove(id);
        }
        Record::Map { .. }
        | Record::Own { .. }
        | Record::Unmap { .. }
        | Record::Hide { .. }
        | Record::MapGone { .. }
        | Record::Reparent(_)
        | Record::Settings(_)
        | Record::Durable { .. } => {}
    }
}
