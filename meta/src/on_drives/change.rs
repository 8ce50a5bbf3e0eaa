//! A change of the store as it stands in the log.
//!
//! Guarantee: what is decoded is what was encoded; anything else is refused and nothing is taken of it.
//!
//! Numbers are little endian, or variable: seven bits a byte, the lowest first, the highest bit set on all but the last. What
//! can be negative is folded first (0, -1, 1, -2 ...).

use std::ops::Range;

use crate::batch::{Batch, BlockChange, BlockContent, MapChange, VolumeChange, VolumeUpdate};
use crate::changes::Changes;
use crate::codec::{
    CodecError, Reader, put_map_info, put_name, put_policy, put_ranges, put_volume, take_map_info,
    take_name, take_policy, take_ranges, take_volume,
};
use crate::segment::SegmentRow;
use crate::setting::{SettingChanges, put_settings, take_changes};
use crate::types::{Checkpoint, Fingerprint, MapId, Mapping, Pba, Position, Totals};

/// One call that changed the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// [`Store::apply`](crate::Store::apply).
    Batch(Box<Batch>),
    /// [`Store::put_segments`](crate::Store::put_segments).
    Segments(Range<Pba>, Vec<(Pba, SegmentRow)>),
    /// [`Store::put_settings`](crate::Store::put_settings).
    Settings(SettingChanges),
    /// The pool's identity is this text from now on.
    Identity(String),
}

const BATCH: u8 = 1;
const SEGMENTS: u8 = 2;
const SETTINGS: u8 = 3;
const IDENTITY: u8 = 4;

/// What a batch has, without a copy of it.
pub(super) fn encode_batch(batch: &Batch) -> Vec<u8> {
    // About what a change of a mapping and its block take.
    let mut out = Vec::with_capacity(1024 + 40 * batch.map.len());
    out.push(BATCH);
    put_batch(&mut out, batch);
    out
}

/// As they are given to the store.
pub(super) fn encode_segments(range: &Range<Pba>, rows: &[(Pba, SegmentRow)]) -> Vec<u8> {
    let mut out = vec![SEGMENTS];
    out.extend_from_slice(&range.start.0.to_le_bytes());
    out.extend_from_slice(&range.end.0.to_le_bytes());
    put_count(&mut out, rows.len());
    for (first, row) in rows {
        let row = row.encode();
        out.extend_from_slice(&first.0.to_le_bytes());
        out.push(row.len() as u8);
        out.extend_from_slice(&row);
    }
    out
}

/// As they are given to the store.
pub(super) fn encode_settings(changes: &SettingChanges) -> Vec<u8> {
    let mut out = vec![SETTINGS];
    put_settings(&mut out, changes);
    out
}

/// The text of `pool.toml`.
pub(super) fn encode_identity(text: &str) -> Vec<u8> {
    [&[IDENTITY], text.as_bytes()].concat()
}

impl Change {
    /// Whether an encoded change is one of the identity.
    pub(super) fn is_identity(bytes: &[u8]) -> bool {
        bytes.first() == Some(&IDENTITY)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let change = match reader.u8()? {
            BATCH => Self::Batch(Box::new(take_batch(&mut reader)?)),
            SEGMENTS => {
                let range = Pba(reader.u64()?)..Pba(reader.u64()?);
                let mut rows = Vec::new();
                for _ in 0..reader.u32()? {
                    let first = Pba(reader.u64()?);
                    let len = usize::from(reader.u8()?);
                    rows.push((first, SegmentRow::decode(reader.bytes(len)?)?));
                }
                Self::Segments(range, rows)
            }
            SETTINGS => Self::Settings(take_changes(&mut reader)?),
            IDENTITY => {
                let text = reader.bytes(reader.remaining())?;
                let text = std::str::from_utf8(text).map_err(|_| CodecError::Field("text"))?;
                Self::Identity(text.to_owned())
            }
            _ => return Err(CodecError::Field("kind")),
        };
        reader.end()?;
        Ok(change)
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_batch(out: &mut Vec<u8>, batch: &Batch) {
    out.extend_from_slice(&batch.base_seq.to_le_bytes());
    let Checkpoint {
        position,
        epoch,
        last_epoch,
    } = batch.checkpoint;
    out.extend_from_slice(&position.seq.to_le_bytes());
    out.extend_from_slice(&position.offset.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.push(u8::from(last_epoch.is_some()));
    out.extend_from_slice(&last_epoch.unwrap_or(0).to_le_bytes());
    put_count(out, batch.maps.len());
    for (map, info) in &batch.maps {
        out.extend_from_slice(&map.to_le_bytes());
        out.push(u8::from(info.is_some()));
        if let Some(info) = info {
            put_map_info(out, info);
        }
    }
    put_count(out, batch.volumes.len());
    for (volume, change) in &batch.volumes {
        out.extend_from_slice(&volume.to_le_bytes());
        put_volume_change(out, change);
    }
    put_settings(out, &batch.settings);
    out.push(u8::from(batch.totals.is_some()));
    if let Some(totals) = &batch.totals {
        put_totals(out, totals);
    }
    put_count(out, batch.map.len());
    let mut before = Neighbours::default();
    for (key, change) in batch.map.iter() {
        before.put_mapping(out, key, &change);
    }
    put_count(out, batch.blocks.len());
    let mut before = Neighbours::default();
    for (pba, change) in batch.blocks.iter() {
        before.put_block(out, pba, &change);
    }
}

fn take_batch(reader: &mut Reader<'_>) -> Result<Batch, CodecError> {
    let base_seq = reader.u64()?;
    let position = Position {
        seq: reader.u64()?,
        offset: reader.u64()?,
    };
    let epoch = reader.u32()?;
    let has_last = take_flag(reader)?;
    let last_epoch = Some(reader.u32()?).filter(|_| has_last);
    let mut batch = Batch::checkpoint_only(Checkpoint {
        position,
        epoch,
        last_epoch,
    });
    batch.base_seq = base_seq;
    for _ in 0..reader.u32()? {
        let map = reader.u32()?;
        let info = take_flag(reader)?.then(|| take_map_info(reader, map));
        batch.maps.insert(map, info.transpose()?);
    }
    for _ in 0..reader.u32()? {
        let volume = reader.u32()?;
        batch.volumes.insert(volume, take_volume_change(reader)?);
    }
    batch.settings = take_changes(reader)?;
    batch.totals = take_flag(reader)?
        .then(|| take_totals(reader))
        .transpose()?;
    let mut before = Neighbours::default();
    let mut map = Vec::new();
    for _ in 0..reader.u32()? {
        map.push(before.take_mapping(reader)?);
    }
    let mut before = Neighbours::default();
    let mut blocks = Vec::new();
    for _ in 0..reader.u32()? {
        blocks.push(before.take_block(reader)?);
    }
    let is_in_order =
        map.is_sorted_by(|(a, _), (b, _)| a < b) && blocks.is_sorted_by(|(a, _), (b, _)| a < b);
    if !is_in_order {
        return Err(CodecError::Field("order"));
    }
    batch.map = Changes::from_sorted(map);
    batch.blocks = Changes::from_sorted(blocks);
    Ok(batch)
}

fn take_flag(reader: &mut Reader<'_>) -> Result<bool, CodecError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(CodecError::Field("flag")),
    }
}

const PUT: u8 = 0;
const UPDATE: u8 = 1;
const REMOVE: u8 = 2;

fn put_volume_change(out: &mut Vec<u8>, change: &VolumeChange) {
    match change {
        VolumeChange::Put(info) => {
            out.push(PUT);
            // A volume's row ends where its bytes do.
            let mut row = Vec::new();
            put_volume(&mut row, info);
            put_count(out, row.len());
            out.extend_from_slice(&row);
        }
        VolumeChange::Update(update) => {
            out.push(UPDATE);
            put_update(out, update);
        }
        VolumeChange::Remove => out.push(REMOVE),
    }
}

fn take_volume_change(reader: &mut Reader<'_>) -> Result<VolumeChange, CodecError> {
    Ok(match reader.u8()? {
        PUT => {
            let len = reader.u32()? as usize;
            let mut row = Reader::new(reader.bytes(len)?);
            let info = take_volume(&mut row)?;
            row.end()?;
            VolumeChange::Put(info)
        }
        UPDATE => VolumeChange::Update(take_update(reader)?),
        REMOVE => VolumeChange::Remove,
        _ => return Err(CodecError::Field("change of a volume")),
    })
}

fn put_update(out: &mut Vec<u8>, update: &VolumeUpdate) {
    let VolumeUpdate {
        size_bytes,
        name,
        policy,
        deleting,
        trimming,
        map,
    } = update;
    out.push(u8::from(size_bytes.is_some()));
    if let Some(bytes) = size_bytes {
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    out.push(u8::from(name.is_some()));
    if let Some(name) = name {
        put_name(out, name);
    }
    out.push(u8::from(policy.is_some()));
    if let Some(policy) = policy {
        put_policy(out, *policy);
    }
    out.push(u8::from(*deleting));
    out.push(u8::from(trimming.is_some()));
    if let Some(ranges) = trimming {
        put_ranges(out, ranges);
    }
    out.push(u8::from(map.is_some()));
    if let Some(map) = map {
        out.extend_from_slice(&map.to_le_bytes());
    }
}

fn take_update(reader: &mut Reader<'_>) -> Result<VolumeUpdate, CodecError> {
    let mut update = VolumeUpdate::default();
    if take_flag(reader)? {
        update.size_bytes = Some(reader.u64()?);
    }
    if take_flag(reader)? {
        update.name = Some(take_name(reader, "name")?);
    }
    if take_flag(reader)? {
        update.policy = Some(take_policy(reader)?);
    }
    update.deleting = take_flag(reader)?;
    if take_flag(reader)? {
        update.trimming = Some(take_ranges(reader)?);
    }
    if take_flag(reader)? {
        update.map = Some(reader.u32()?);
    }
    Ok(update)
}

fn put_totals(out: &mut Vec<u8>, totals: &Totals) {
    put_count(out, totals.mapped.len());
    for (map, count) in &totals.mapped {
        out.extend_from_slice(&map.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
    }
    put_count(out, totals.blocks.len());
    for (drive, count) in &totals.blocks {
        out.extend_from_slice(&drive.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
    }
}

fn take_totals(reader: &mut Reader<'_>) -> Result<Totals, CodecError> {
    let mut totals = Totals::default();
    for _ in 0..reader.u32()? {
        let (map, count) = (reader.u32()?, reader.u64()?);
        totals.mapped.insert(map, count);
    }
    for _ in 0..reader.u32()? {
        let drive = u16::from_le_bytes(reader.array()?);
        totals.blocks.insert(drive, reader.u64()?);
    }
    Ok(totals)
}

/// What came before: keys and blocks mostly follow each other, and the difference takes a byte or two.
#[derive(Default)]
struct Neighbours {
    map: MapId,
    sub_block: u64,
    old: u64,
    new: u64,
}

const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const OTHER_MAP: u8 = 4;
const HAS_CONTENT: u8 = 1;
const WANTS_INDEX_ENTRY: u8 = 2;

impl Neighbours {
    fn put_mapping(
        &mut self,
        out: &mut Vec<u8>,
        (map, sub_block): (MapId, u64),
        change: &MapChange,
    ) {
        let flags = [
            (change.old.is_some(), HAS_OLD),
            (change.new.is_some(), HAS_NEW),
            (map != self.map, OTHER_MAP),
        ];
        let flags = flags.into_iter().filter(|(is, _)| *is);
        out.push(flags.fold(0, |all, (_, flag)| all | flag));
        if map != self.map {
            out.extend_from_slice(&map.to_le_bytes());
            (self.map, self.sub_block) = (map, 0);
        }
        put_step(out, &mut self.sub_block, sub_block);
        if let Some(old) = change.old {
            put_step(out, &mut self.old, old.0);
        }
        if let Some(new) = change.new {
            put_step(out, &mut self.new, new.pba.0);
            out.extend_from_slice(&new.crc32c.to_le_bytes());
        }
    }

    fn take_mapping(
        &mut self,
        reader: &mut Reader<'_>,
    ) -> Result<((MapId, u64), MapChange), CodecError> {
        let flags = reader.u8()?;
        if flags & !(HAS_OLD | HAS_NEW | OTHER_MAP) != 0 {
            return Err(CodecError::Field("flag"));
        }
        if flags & OTHER_MAP != 0 {
            (self.map, self.sub_block) = (reader.u32()?, 0);
        }
        let sub_block = take_step(reader, &mut self.sub_block)?;
        let mut change = MapChange {
            old: None,
            new: None,
        };
        if flags & HAS_OLD != 0 {
            change.old = Some(Pba(take_step(reader, &mut self.old)?));
        }
        if flags & HAS_NEW != 0 {
            change.new = Some(Mapping {
                pba: Pba(take_step(reader, &mut self.new)?),
                crc32c: reader.u32()?,
            });
        }
        Ok(((self.map, sub_block), change))
    }

    fn put_block(&mut self, out: &mut Vec<u8>, pba: Pba, change: &BlockChange) {
        let content = change.content.map_or(0, |_| HAS_CONTENT);
        let index_entry = if change.wants_index_entry {
            WANTS_INDEX_ENTRY
        } else {
            0
        };
        out.push(content | index_entry);
        put_step(out, &mut self.new, pba.0);
        put_number(out, fold(change.delta));
        put_number(out, fold(change.lowest));
        if let Some(content) = change.content {
            out.extend_from_slice(&content.fingerprint.0);
            out.extend_from_slice(&content.crc32c.to_le_bytes());
        }
    }

    fn take_block(&mut self, reader: &mut Reader<'_>) -> Result<(Pba, BlockChange), CodecError> {
        let flags = reader.u8()?;
        if flags & !(HAS_CONTENT | WANTS_INDEX_ENTRY) != 0 {
            return Err(CodecError::Field("flag"));
        }
        let pba = Pba(take_step(reader, &mut self.new)?);
        let mut change = BlockChange {
            delta: unfold(take_number(reader)?),
            lowest: unfold(take_number(reader)?),
            content: None,
            wants_index_entry: flags & WANTS_INDEX_ENTRY != 0,
        };
        if flags & HAS_CONTENT != 0 {
            change.content = Some(BlockContent {
                fingerprint: Fingerprint(reader.array()?),
                crc32c: reader.u32()?,
            });
        }
        Ok((pba, change))
    }
}

/// By how much a number differs from the one before; that becomes this one.
fn put_step(out: &mut Vec<u8>, before: &mut u64, number: u64) {
    put_number(out, fold(number.wrapping_sub(*before) as i64));
    *before = number;
}

fn take_step(reader: &mut Reader<'_>, before: &mut u64) -> Result<u64, CodecError> {
    *before = before.wrapping_add(unfold(take_number(reader)?) as u64);
    Ok(*before)
}

fn fold(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unfold(number: u64) -> i64 {
    ((number >> 1) as i64) ^ -((number & 1) as i64)
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(reader: &mut Reader<'_>) -> Result<u64, CodecError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8()?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(CodecError::Field("number"))
}
