//! Journal records and their bytes.
//!
//! A record is the whole effect of one command: it is replayed as a whole or not at all. Payloads are
//! little endian; the frame around them (length, CRC-32C, epoch, sequence number) is the journal's.
//! Decoding never panics, whatever the bytes are, and accepts only the one encoding of a record.

use crate::codec::{
    CodecError, POLICY_BYTES, Reader, map_info_len, put_map_info, put_name, put_policy, put_ranges,
    put_volume, ranges_len, take_map_info, take_name, take_policy, take_ranges, take_volume,
    volume_len,
};
use crate::setting::{SettingChanges, put_settings, settings_len, take_settings};
use crate::types::{
    Fingerprint, MapId, MapInfo, Pba, VOLUME_NAME_BYTES_MAX, VolumeInfo, VolumePolicy,
};

/// Most entries of one [`Record::Map`]: 16 Ki sub-blocks, 64 MiB of 4 KiB sub-blocks.
pub const MAP_ENTRIES_MAX: usize = 16 * 1024;

/// Most entries of one [`Record::Unmap`].
pub const UNMAP_ENTRIES_MAX: usize = 32 * 1024;

/// The block that a sub-block now maps to, with what recovery needs to prove its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Where the content is.
    pub pba: Pba,
    /// Fingerprint of the content, or [`Fingerprint::NONE`]: then only the CRC-32C can prove it.
    pub fingerprint: Fingerprint,
    /// CRC-32C of the content.
    pub crc32c: u32,
}

/// The change of one sub-block's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// What it mapped to before; `None` = nothing (reads as zeros).
    pub old: Option<Pba>,
    /// What it maps to from now on; `None` = nothing. A [hole](NewBlock::HOLE) is nothing either, and hides what an
    /// ancestor has there.
    pub new: Option<NewBlock>,
}

impl NewBlock {
    /// Nothing is mapped, and nothing is inherited.
    pub const HOLE: Self = Self {
        pba: Pba::HOLE,
        fingerprint: Fingerprint::NONE,
        crc32c: 0,
    };
}

impl MapEntry {
    /// The block that it maps to from now on; a hole is none.
    pub fn new_block(&self) -> Option<NewBlock> {
        self.new.filter(|new| !new.pba.is_hole())
    }

    /// Whether nothing is there before and after.
    pub(crate) fn is_nothing(&self) -> bool {
        self.old.is_none() && self.new.is_none()
    }

    /// Entries that take mappings away, with their sub-blocks: `new` is nothing, or a hole. Where the old one is a hole,
    /// nothing was mapped.
    pub fn unmapped(
        entries: &[(u64, Pba)],
        new: Option<NewBlock>,
    ) -> impl Iterator<Item = (u64, Self)> + Clone + '_ {
        entries.iter().map(move |(at, old)| {
            let old = Some(*old).filter(|old| !old.is_hole());
            (*at, Self { old, new })
        })
    }

    /// Entries of a record with their sub-blocks, from `start` on. The last one may be the last that a
    /// number can name: nothing counts beyond it.
    pub fn numbered(
        start: u64,
        entries: &[Self],
    ) -> impl Iterator<Item = (u64, Self)> + Clone + '_ {
        (0..)
            .zip(entries)
            .map(move |(at, entry)| (start + at, *entry))
    }
}

/// One change, as the journal holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A write: new mappings for consecutive sub-blocks.
    Map {
        /// The map.
        map: MapId,
        /// First sub-block.
        start: u64,
        /// The change of sub-block `start + i`; at most [`MAP_ENTRIES_MAX`].
        entries: Vec<MapEntry>,
    },
    /// A trim, or a piece of one: mappings that go away.
    Unmap {
        /// The map.
        map: MapId,
        /// Sub-block and what it mapped to; at most [`UNMAP_ENTRIES_MAX`].
        entries: Vec<(u64, Pba)>,
    },
    /// A map gets a copy: of what it inherits somewhere, or a parent of what its only child has. All blocks of it are on
    /// stable drives, and so is the record that made the map.
    Own {
        /// The map.
        map: MapId,
        /// First sub-block.
        start: u64,
        /// What sub-block `start + i` maps to; nothing was mapped there in this map if it inherited it. At most
        /// [`MAP_ENTRIES_MAX`].
        entries: Vec<MapEntry>,
    },
    /// A trim in a map that has a parent: where mappings go away, holes hide what ancestors have.
    Hide {
        /// The map.
        map: MapId,
        /// Sub-block and what it mapped to, which is a hole where it inherited that; at most [`UNMAP_ENTRIES_MAX`].
        entries: Vec<(u64, Pba)>,
    },
    /// Maps of volumes become the parents of two new ones each, all at one moment; at most [`FORKS_MAX`].
    Fork(Vec<Fork>),
    /// A volume gets the content of a snapshot of it: the snapshot's map becomes the parent of two new ones. What the
    /// volume had is a map that nothing comes from.
    Rollback {
        /// The snapshot's map, which becomes a parent, with its own parent.
        parent: MapInfo,
        /// The snapshot.
        snapshot: u32,
        /// The map that the snapshot has from now on.
        snapshot_map: MapId,
        /// The volume.
        volume: u32,
        /// The map that the volume has from now on.
        map: MapId,
        /// The snapshot's size, in bytes.
        size_bytes: u64,
        /// What is being trimmed of the snapshot.
        trimming: Vec<(u64, u64)>,
    },
    /// A map has another parent from now on, its grandparent until now: all that shows through the one shows through
    /// the other.
    Reparent(MapInfo),
    /// A map has no mappings any more, and is forgotten with its holes. No map has it as its parent.
    MapGone {
        /// The map.
        id: MapId,
    },
    /// A volume comes into being.
    VolumeCreate(VolumeInfo),
    /// A volume changes its size.
    VolumeResize {
        /// Volume id.
        id: u32,
        /// New size in bytes.
        size_bytes: u64,
        /// What is being trimmed from now on: [`VolumeInfo::trimming`], with what the change cut off.
        trimming: Vec<(u64, u64)>,
    },
    /// A volume changes its name.
    VolumeRename {
        /// Volume id.
        id: u32,
        /// Its new name.
        name: String,
    },
    /// What is written to a volume follows another policy from now on.
    VolumePolicy {
        /// Volume id.
        id: u32,
        /// Its new policy.
        policy: VolumePolicy,
    },
    /// More or less of a volume is being trimmed; the mappings follow as [`Record::Unmap`].
    Trimming {
        /// Volume id.
        id: u32,
        /// All that is being trimmed from now on: [`VolumeInfo::trimming`].
        ranges: Vec<(u64, u64)>,
    },
    /// A volume is marked as being deleted; the mappings of its map follow as [`Record::Unmap`].
    VolumeDelete {
        /// Volume id.
        id: u32,
    },
    /// A volume whose map has no mappings any more is forgotten.
    VolumeGone {
        /// Volume id.
        id: u32,
    },
    /// Settings change, together.
    Settings(SettingChanges),
    /// Every record with a sequence number up to `upto` has its data on stable drives.
    Durable {
        /// Last such sequence number.
        upto: u64,
    },
}

/// Volumes whose maps one [`Record::Fork`] makes parents, at most.
pub const FORKS_MAX: usize = 256;

/// A volume's map becomes the parent of two new ones, and never changes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The map that becomes a parent, with its own parent.
    pub parent: MapInfo,
    /// The volume whose map it was.
    pub volume: u32,
    /// The map that the volume has from now on.
    pub map: MapId,
    /// A new volume, or a snapshot, that begins with the same content; its map is new too.
    pub clone: VolumeInfo,
}

impl Fork {
    /// The rows of maps that it changes or makes.
    pub fn maps(&self) -> [MapInfo; 3] {
        let Self { parent, map, .. } = self;
        [*parent, parent.child(*map), parent.child(self.clone.map)]
    }
}

/// A payload that is not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record of kind {kind}: {detail}")]
pub struct RecordError {
    /// The kind byte.
    pub kind: u8,
    /// What is wrong.
    pub detail: String,
}

/// Kind bytes of the frames. 0 is never used, so that zeroed space is no record.
pub(crate) mod kind {
    pub(crate) const MAP: u8 = 1;
    pub(crate) const UNMAP: u8 = 2;
    pub(crate) const VOLUME_CREATE: u8 = 3;
    pub(crate) const VOLUME_RESIZE: u8 = 4;
    pub(crate) const VOLUME_DELETE: u8 = 5;
    pub(crate) const VOLUME_GONE: u8 = 6;
    pub(crate) const DURABLE: u8 = 7;
    pub(crate) const TRIMMING: u8 = 8;
    pub(crate) const SETTINGS: u8 = 9;
    pub(crate) const VOLUME_RENAME: u8 = 10;
    pub(crate) const OWN: u8 = 11;
    pub(crate) const HIDE: u8 = 12;
    /// A fork as programs wrote it whose maps inherit page by page.
    pub(crate) const FORK_OF_PAGES: u8 = 13;
    pub(crate) const MAP_GONE: u8 = 14;
    /// A rollback as these wrote it.
    pub(crate) const ROLLBACK_OF_PAGES: u8 = 15;
    pub(crate) const REPARENT: u8 = 16;
    pub(crate) const VOLUME_POLICY: u8 = 17;
    pub(crate) const FORK: u8 = 18;
    pub(crate) const ROLLBACK: u8 = 19;
}

/// Flags of a map entry: which of its parts follow.
const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const HAS_FINGERPRINT: u8 = 4;

/// A record that is about to be appended: it borrows what a write changes, so that a write owns no
/// record.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a>(Content<'a>);

#[derive(Clone, Copy, Debug)]
enum Content<'a> {
    Map {
        map: MapId,
        start: u64,
        entries: &'a [MapEntry],
    },
    Other(&'a Record),
}

impl<'a> From<&'a Record> for RecordRef<'a> {
    fn from(record: &'a Record) -> Self {
        match record {
            Record::Map {
                map,
                start,
                entries,
            } => Self::map(*map, *start, entries),
            _ => Self(Content::Other(record)),
        }
    }
}

impl<'a> RecordRef<'a> {
    /// A [`Record::Map`] with these fields.
    pub fn map(map: MapId, start: u64, entries: &'a [MapEntry]) -> Self {
        Self(Content::Map {
            map,
            start,
            entries,
        })
    }

    /// The kind byte of the frame.
    pub fn kind(&self) -> u8 {
        match self.0 {
            Content::Map { .. } => kind::MAP,
            Content::Other(record) => record.kind(),
        }
    }

    /// Bytes of the payload that [`RecordRef::encode`] writes.
    pub fn encoded_len(&self) -> usize {
        match self.0 {
            Content::Map { entries, .. } => map_len(entries),
            Content::Other(record) => record.encoded_len(),
        }
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.0 {
            Content::Map {
                map,
                start,
                entries,
            } => put_map(out, map, start, entries),
            Content::Other(record) => record.encode(out),
        }
    }

    /// The change of mappings, if it is one of a write: map, first sub-block, entries.
    pub fn as_map(&self) -> Option<(MapId, u64, &'a [MapEntry])> {
        match self.0 {
            Content::Map {
                map,
                start,
                entries,
            } => Some((map, start, entries)),
            Content::Other(_) => None,
        }
    }

    /// Changes that it makes: mappings, or one of something else.
    pub fn entry_count(&self) -> u64 {
        match self.0 {
            Content::Map { entries, .. } => entries.len() as u64,
            Content::Other(Record::Map { entries, .. } | Record::Own { entries, .. }) => {
                entries.len() as u64
            }
            Content::Other(Record::Unmap { entries, .. } | Record::Hide { entries, .. }) => {
                entries.len() as u64
            }
            Content::Other(_) => 1,
        }
    }

    /// The record, if it is not one of a write.
    pub fn as_other(&self) -> Option<&'a Record> {
        match self.0 {
            Content::Map { .. } => None,
            Content::Other(record) => Some(record),
        }
    }
}

fn map_len(entries: &[MapEntry]) -> usize {
    let new = |new: NewBlock| 8 + 4 + 16 * usize::from(new.fingerprint.is_some());
    let entry = |entry: &MapEntry| 1 + entry.old.map_or(0, |_| 8) + entry.new.map_or(0, new);
    4 + 8 + 4 + entries.iter().map(entry).sum::<usize>()
}

fn put_map(out: &mut Vec<u8>, map: MapId, start: u64, entries: &[MapEntry]) {
    out.extend_from_slice(&map.to_le_bytes());
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for entry in entries {
        let is_proven = entry.new.is_some_and(|new| new.fingerprint.is_some());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(
            flag(entry.old.is_some(), HAS_OLD)
                | flag(entry.new.is_some(), HAS_NEW)
                | flag(is_proven, HAS_FINGERPRINT),
        );
        if let Some(old) = entry.old {
            out.extend_from_slice(&old.0.to_le_bytes());
        }
        if let Some(new) = entry.new {
            out.extend_from_slice(&new.pba.0.to_le_bytes());
            if is_proven {
                out.extend_from_slice(&new.fingerprint.0);
            }
            out.extend_from_slice(&new.crc32c.to_le_bytes());
        }
    }
}

impl Record {
    /// The kind byte of the frame.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Map { .. } => kind::MAP,
            Self::Unmap { .. } => kind::UNMAP,
            Self::Own { .. } => kind::OWN,
            Self::Hide { .. } => kind::HIDE,
            Self::Fork(_) => kind::FORK,
            Self::Rollback { .. } => kind::ROLLBACK,
            Self::Reparent(_) => kind::REPARENT,
            Self::MapGone { .. } => kind::MAP_GONE,
            Self::VolumeCreate(_) => kind::VOLUME_CREATE,
            Self::VolumeResize { .. } => kind::VOLUME_RESIZE,
            Self::VolumeRename { .. } => kind::VOLUME_RENAME,
            Self::VolumePolicy { .. } => kind::VOLUME_POLICY,
            Self::Trimming { .. } => kind::TRIMMING,
            Self::VolumeDelete { .. } => kind::VOLUME_DELETE,
            Self::VolumeGone { .. } => kind::VOLUME_GONE,
            Self::Settings(_) => kind::SETTINGS,
            Self::Durable { .. } => kind::DURABLE,
        }
    }

    /// Bytes of the payload that [`Record::encode`] writes.
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Map { .. } => RecordRef::from(self).encoded_len(),
            Self::Own { entries, .. } => map_len(entries),
            Self::Unmap { entries, .. } | Self::Hide { entries, .. } => 4 + 4 + entries.len() * 16,
            Self::Fork(forks) => {
                let len = |Fork { parent, clone, .. }: &Fork| {
                    map_info_len(parent) + 4 + 4 + 4 + volume_len(clone)
                };
                2 + forks.iter().map(len).sum::<usize>()
            }
            Self::Rollback {
                parent, trimming, ..
            } => map_info_len(parent) + 4 + 4 + 4 + 4 + 8 + ranges_len(trimming),
            Self::Reparent(info) => map_info_len(info),
            Self::MapGone { .. } => 4,
            Self::VolumeCreate(volume) => volume_len(volume),
            Self::VolumeResize { trimming, .. } => 12 + ranges_len(trimming),
            Self::VolumeRename { name, .. } => 4 + 1 + name.len().min(VOLUME_NAME_BYTES_MAX),
            Self::VolumePolicy { .. } => 4 + POLICY_BYTES,
            Self::Trimming { ranges, .. } => 4 + ranges_len(ranges),
            Self::VolumeDelete { .. } | Self::VolumeGone { .. } => 4,
            Self::Settings(changes) => settings_len(changes),
            Self::Durable { .. } => 8,
        }
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Map { .. } => RecordRef::from(self).encode(out),
            Self::Own {
                map,
                start,
                entries,
            } => put_map(out, *map, *start, entries),
            Self::Unmap { map, entries } | Self::Hide { map, entries } => {
                out.extend_from_slice(&map.to_le_bytes());
                out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
                for (sub_block, old) in entries {
                    out.extend_from_slice(&sub_block.to_le_bytes());
                    out.extend_from_slice(&old.0.to_le_bytes());
                }
            }
            Self::Fork(forks) => {
                debug_assert!(forks.len() <= FORKS_MAX);
                out.extend_from_slice(&(forks.len() as u16).to_le_bytes());
                for fork in forks {
                    out.extend_from_slice(&fork.parent.id.to_le_bytes());
                    put_map_info(out, &fork.parent);
                    out.extend_from_slice(&fork.volume.to_le_bytes());
                    out.extend_from_slice(&fork.map.to_le_bytes());
                    out.extend_from_slice(&(volume_len(&fork.clone) as u32).to_le_bytes());
                    put_volume(out, &fork.clone);
                }
            }
            Self::Rollback {
                parent,
                snapshot,
                snapshot_map,
                volume,
                map,
                size_bytes,
                trimming,
            } => {
                out.extend_from_slice(&parent.id.to_le_bytes());
                put_map_info(out, parent);
                for number in [snapshot, snapshot_map, volume, map] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(&size_bytes.to_le_bytes());
                put_ranges(out, trimming);
            }
            Self::Reparent(info) => {
                out.extend_from_slice(&info.id.to_le_bytes());
                put_map_info(out, info);
            }
            Self::MapGone { id } => out.extend_from_slice(&id.to_le_bytes()),
            Self::VolumeCreate(volume) => put_volume(out, volume),
            Self::VolumeResize {
                id,
                size_bytes,
                trimming,
            } => {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&size_bytes.to_le_bytes());
                put_ranges(out, trimming);
            }
            Self::VolumeRename { id, name } => {
                out.extend_from_slice(&id.to_le_bytes());
                put_name(out, name);
            }
            Self::VolumePolicy { id, policy } => {
                out.extend_from_slice(&id.to_le_bytes());
                put_policy(out, *policy);
            }
            Self::Trimming { id, ranges } => {
                out.extend_from_slice(&id.to_le_bytes());
                put_ranges(out, ranges);
            }
            Self::VolumeDelete { id } | Self::VolumeGone { id } => {
                out.extend_from_slice(&id.to_le_bytes());
            }
            Self::Settings(changes) => put_settings(out, changes),
            Self::Durable { upto } => out.extend_from_slice(&upto.to_le_bytes()),
        }
    }

    /// The record with this kind byte and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, RecordError> {
        decode(kind, payload).map_err(|error| RecordError {
            kind,
            detail: format!("the payload {error}"),
        })
    }
}

fn decode(kind: u8, payload: &[u8]) -> Result<Record, CodecError> {
    let mut reader = Reader::new(payload);
    let record = match kind {
        kind::MAP => {
            let (map, start, entries) = take_map(&mut reader)?;
            Record::Map {
                map,
                start,
                entries,
            }
        }
        kind::OWN => {
            let (map, start, entries) = take_map(&mut reader)?;
            Record::Own {
                map,
                start,
                entries,
            }
        }
        kind::UNMAP => {
            let (map, entries) = take_unmap(&mut reader)?;
            Record::Unmap { map, entries }
        }
        kind::HIDE => {
            let (map, entries) = take_unmap(&mut reader)?;
            Record::Hide { map, entries }
        }
        kind::FORK | kind::FORK_OF_PAGES => {
            let count = usize::from(u16::from_le_bytes(reader.array()?));
            if count > FORKS_MAX {
                return Err(CodecError::Field("number of forks"));
            }
            let forks = (0..count).map(|_| take_fork(&mut reader));
            Record::Fork(forks.collect::<Result<_, _>>()?)
        }
        kind::ROLLBACK | kind::ROLLBACK_OF_PAGES => {
            let id = reader.u32()?;
            Record::Rollback {
                parent: take_map_info(&mut reader, id)?,
                snapshot: reader.u32()?,
                snapshot_map: reader.u32()?,
                volume: reader.u32()?,
                map: reader.u32()?,
                size_bytes: reader.u64()?,
                trimming: take_ranges(&mut reader)?,
            }
        }
        kind::REPARENT => {
            let id = reader.u32()?;
            Record::Reparent(take_map_info(&mut reader, id)?)
        }
        kind::MAP_GONE => Record::MapGone { id: reader.u32()? },
        kind::VOLUME_CREATE => Record::VolumeCreate(take_volume(&mut reader)?),
        kind::VOLUME_RESIZE => Record::VolumeResize {
            id: reader.u32()?,
            size_bytes: reader.u64()?,
            trimming: take_ranges(&mut reader)?,
        },
        kind::VOLUME_RENAME => Record::VolumeRename {
            id: reader.u32()?,
            name: take_name(&mut reader, "volume name")?,
        },
        kind::VOLUME_POLICY => Record::VolumePolicy {
            id: reader.u32()?,
            policy: take_policy(&mut reader)?,
        },
        kind::TRIMMING => Record::Trimming {
            id: reader.u32()?,
            ranges: take_ranges(&mut reader)?,
        },
        kind::VOLUME_DELETE => Record::VolumeDelete { id: reader.u32()? },
        kind::VOLUME_GONE => Record::VolumeGone { id: reader.u32()? },
        kind::SETTINGS => Record::Settings(take_settings(&mut reader)?),
        kind::DURABLE => Record::Durable {
            upto: reader.u64()?,
        },
        _ => return Err(CodecError::Field("kind")),
    };
    reader.end()?;
    Ok(record)
}

fn take_fork(reader: &mut Reader<'_>) -> Result<Fork, CodecError> {
    let id = reader.u32()?;
    let parent = take_map_info(reader, id)?;
    let (volume, map) = (reader.u32()?, reader.u32()?);
    let len = reader.u32()? as usize;
    let mut of_clone = Reader::new(reader.bytes(len)?);
    let clone = take_volume(&mut of_clone)?;
    of_clone.end()?;
    Ok(Fork {
        parent,
        volume,
        map,
        clone,
    })
}

fn take_map(reader: &mut Reader<'_>) -> Result<(MapId, u64, Vec<MapEntry>), CodecError> {
    let map = reader.u32()?;
    let start = reader.u64()?;
    let count = reader.u32()? as usize;
    // Every entry has at least its flags byte: a count that cannot be true reserves no memory.
    if count > MAP_ENTRIES_MAX || count > reader.remaining() {
        return Err(CodecError::Field("number of entries"));
    }
    if start.checked_add(count as u64).is_none() {
        return Err(CodecError::Field("range of sub-blocks"));
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let flags = reader.u8()?;
        let has_fingerprint = flags & HAS_FINGERPRINT != 0;
        if flags & !(HAS_OLD | HAS_NEW | HAS_FINGERPRINT) != 0
            || (has_fingerprint && flags & HAS_NEW == 0)
        {
            return Err(CodecError::Field("entry flag"));
        }
        let old = if flags & HAS_OLD != 0 {
            Some(Pba(reader.u64()?))
        } else {
            None
        };
        let new = if flags & HAS_NEW != 0 {
            let pba = Pba(reader.u64()?);
            let fingerprint = if has_fingerprint {
                let fingerprint = Fingerprint(reader.array()?);
                if !fingerprint.is_some() {
                    return Err(CodecError::Field("fingerprint"));
                }
                fingerprint
            } else {
                Fingerprint::NONE
            };
            let new = NewBlock {
                pba,
                fingerprint,
                crc32c: reader.u32()?,
            };
            if pba.is_hole() && new != NewBlock::HOLE {
                return Err(CodecError::Field("hole"));
            }
            Some(new)
        } else {
            None
        };
        entries.push(MapEntry { old, new });
    }
    Ok((map, start, entries))
}

fn take_unmap(reader: &mut Reader<'_>) -> Result<(MapId, Vec<(u64, Pba)>), CodecError> {
    let map = reader.u32()?;
    let count = reader.u32()? as usize;
    if count > UNMAP_ENTRIES_MAX || count > reader.remaining() / 16 {
        return Err(CodecError::Field("number of entries"));
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push((reader.u64()?, Pba(reader.u64()?)));
    }
    Ok((map, entries))
}
