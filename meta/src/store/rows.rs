//! Keys and values of the rows.
//!
//! | row        | key                                            | value                                        |
//! |------------|------------------------------------------------|----------------------------------------------|
//! | format     | `f`                                            | version u32, pool uuid                       |
//! | checkpoint | `c`                                            | sequence number u64, offset u64, epoch u32   |
//! | volume     | `v`, id u32 big endian                         | as in the journal's record                   |
//! | map        | `a`, id u32 big endian                         | depth u32, whether it has a parent u8, that  |
//! |            |                                                | u32                                          |
//! | setting    | `s`, key                                       | value                                        |
//! | blocks     | `b`, address / 64 u64 big endian               | a page of: refcount u32 (bit 31: index entry |
//! |            |                                                | leads here), fingerprint 16 B, CRC-32C u32   |
//! | mappings   | `m`, map u32, sub-block / 64 u64, big          | a page of: address u64, CRC-32C u32          |
//! |            | endian                                         |                                              |
//! | segment    | `g`, address of its first block u64 big endian | state u8, count u8, epoch u32, and count of  |
//! |            |                                                | drive u16, slot u32                          |
//! | totals     | `t`                                            | count u32, that many of map u32 and          |
//! |            |                                                | mappings u64; count u32, that many of drive  |
//! |            |                                                | u16 and blocks u64                           |
//!
//! Index entries are in a family of their own: the key is a fingerprint of 16 B, the value an address u64.
//!
//! Keys are big endian so that their order is the order of the numbers; values are little endian. What a
//! page is says `page`.

use std::collections::BTreeMap;

use rocksdb::WriteBatch;

use super::page::{self, Page};
use crate::codec::{CodecError, Reader, put_map_info, put_volume, take_map_info, take_volume};
use crate::segment::SegmentRow;
use crate::setting::SettingChanges;
use crate::setting::{SETTING_VALUE_BYTES_MAX, take_key};
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Position, Totals, VolumeInfo,
};
use uuid::Uuid;

/// Version of the rows. 2: volumes with or without deduplication. 3: their verify policy, domain and
/// compression, addresses of fragments, checksums of mappings, totals. 4: blocks and mappings in pages. 7: runs in pages.
pub(super) const VERSION: u32 = 7;
/// Version of rows with maps that have parents, from the first fork on: what a program reads that knows nothing of
/// parents would be wrong. All else is as in [`VERSION`].
pub(super) const VERSION_PARENTS: u32 = 8;
/// The same two, as programs wrote them that know no runs: they would take rows with runs for damaged. A store that is
/// opened to be written to is raised; its rows stay as they are until they change.
pub(super) const VERSION_NO_RUNS: u32 = 4;
pub(super) const VERSION_NO_RUNS_PARENTS: u32 = 6;
/// Rows with parents, as programs wrote them whose maps inherit page by page: a page with any entry of a map's own hid all that
/// ancestors have of it. Such rows say the same where maps inherit entry by entry, because a page became a map's own with
/// a copy of all that ancestors showed: where it has no entry, they have none either. The other way round that is not so,
/// hence the version. It is raised as well.
pub(super) const VERSION_PAGES: u32 = 5;

pub(super) const KEY_FORMAT: &[u8] = b"f";
pub(super) const KEY_CHECKPOINT: &[u8] = b"c";
pub(super) const KEY_TOTALS: &[u8] = b"t";
pub(super) const PREFIX_VOLUME: u8 = b'v';
pub(super) const PREFIX_ANCESTRY: u8 = b'a';
pub(super) const PREFIX_SETTING: u8 = b's';
pub(super) const PREFIX_BLOCK: u8 = b'b';
pub(super) const PREFIX_MAP: u8 = b'm';
pub(super) const PREFIX_SEGMENT: u8 = b'g';

/// `has_parents`: there may be maps with parents.
pub(super) fn format(pool: Uuid, has_parents: bool) -> Vec<u8> {
    format_of(
        pool,
        if has_parents {
            VERSION_PARENTS
        } else {
            VERSION
        },
    )
}

/// Whether there may be maps with parents in rows of a version.
pub(super) fn has_parents(version: u32) -> bool {
    ![VERSION, VERSION_NO_RUNS].contains(&version)
}

/// The row of rows of a version, an older one too.
pub(super) fn format_of(pool: Uuid, version: u32) -> Vec<u8> {
    let mut out = version.to_le_bytes().to_vec();
    out.extend_from_slice(pool.as_bytes());
    out
}

/// The version, and the pool if this program knows the version.
pub(super) fn parse_format(value: &[u8]) -> Result<(u32, Option<Uuid>), CodecError> {
    let mut reader = Reader::new(value);
    let version = reader.u32()?;
    let is_older = matches!(
        version,
        VERSION_NO_RUNS | VERSION_NO_RUNS_PARENTS | VERSION_PAGES
    );
    if !is_older && ![VERSION, VERSION_PARENTS].contains(&version) {
        return Ok((version, None));
    }
    let pool = Uuid::from_bytes(reader.array()?);
    reader.end()?;
    Ok((version, Some(pool)))
}

pub(super) fn checkpoint(checkpoint: Checkpoint) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    out.extend(checkpoint.position.seq.to_le_bytes());
    out.extend(checkpoint.position.offset.to_le_bytes());
    out.extend(checkpoint.epoch.to_le_bytes());
    if let Some(epoch) = checkpoint.last_epoch {
        out.extend(epoch.to_le_bytes());
    }
    out
}

pub(super) fn parse_checkpoint(value: &[u8]) -> Result<Checkpoint, CodecError> {
    let mut reader = Reader::new(value);
    let position = Position {
        seq: reader.u64()?,
        offset: reader.u64()?,
    };
    let epoch = reader.u32()?;
    let last_epoch = match reader.remaining() {
        0 => None,
        _ => Some(reader.u32()?),
    };
    reader.end()?;
    if position.seq == 0 {
        return Err(CodecError::Field("sequence number"));
    }
    Ok(Checkpoint {
        position,
        epoch,
        last_epoch,
    })
}

pub(super) fn volume_key(id: u32) -> [u8; 5] {
    let mut key = [PREFIX_VOLUME; 5];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(super) fn volume(info: &VolumeInfo) -> Vec<u8> {
    let mut out = Vec::new();
    put_volume(&mut out, info);
    out
}

pub(super) fn parse_volume(key: &[u8], value: &[u8]) -> Result<VolumeInfo, CodecError> {
    let mut reader = Reader::new(value);
    let info = take_volume(&mut reader)?;
    reader.end()?;
    if key != volume_key(info.id) {
        return Err(CodecError::Field("key"));
    }
    Ok(info)
}

pub(super) fn ancestry_key(id: MapId) -> [u8; 5] {
    let mut key = [PREFIX_ANCESTRY; 5];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(super) fn ancestry(info: &MapInfo) -> Vec<u8> {
    let mut out = Vec::new();
    put_map_info(&mut out, info);
    out
}

pub(super) fn parse_ancestry(key: &[u8], value: &[u8]) -> Result<MapInfo, CodecError> {
    let id = key.get(1..).and_then(|id| id.try_into().ok());
    let id = id.map(u32::from_be_bytes).ok_or(CodecError::Field("key"))?;
    let mut reader = Reader::new(value);
    let info = take_map_info(&mut reader, id)?;
    reader.end()?;
    Ok(info)
}

pub(super) fn setting_key(key: &str) -> Vec<u8> {
    [&[PREFIX_SETTING], key.as_bytes()].concat()
}

/// The rows of settings after these changes.
pub(super) fn put_settings(out: &mut WriteBatch, changes: &SettingChanges) {
    for (key, value) in changes {
        match value {
            Some(value) => out.put(setting_key(key), value),
            None => out.delete(setting_key(key)),
        }
    }
}

/// Key and value of a setting.
pub(super) fn parse_setting(key: &[u8], value: &[u8]) -> Result<(String, Vec<u8>), CodecError> {
    let Some((&PREFIX_SETTING, key)) = key.split_first() else {
        return Err(CodecError::Field("key"));
    };
    if value.len() > SETTING_VALUE_BYTES_MAX {
        return Err(CodecError::Field("length"));
    }
    Ok((take_key(key)?, value.to_vec()))
}

/// Key of the page that a block is in.
pub(super) fn block_key(pba: Pba) -> [u8; 9] {
    let mut key = [PREFIX_BLOCK; 9];
    key[1..].copy_from_slice(&(pba.0 >> page::POSITION_BITS).to_be_bytes());
    key
}

/// The first address of a page.
pub(super) fn parse_block_key(key: &[u8]) -> Result<Pba, CodecError> {
    let mut reader = Reader::new(key);
    if reader.u8()? != PREFIX_BLOCK {
        return Err(CodecError::Field("key"));
    }
    let first = parse_page(&mut reader)?;
    reader.end()?;
    Ok(Pba(first))
}

/// Key of the page that a sub-block is in.
pub(super) fn map_key(map: MapId, sub_block: u64) -> [u8; 13] {
    let mut key = [PREFIX_MAP; 13];
    key[1..5].copy_from_slice(&map.to_be_bytes());
    key[5..].copy_from_slice(&(sub_block >> page::POSITION_BITS).to_be_bytes());
    key
}

/// The keys of all pages of a map: the first one, and the least behind them.
pub(super) fn map_keys(map: MapId) -> (Vec<u8>, Vec<u8>) {
    let first = map_key(map, 0);
    let end = match map.checked_add(1) {
        Some(next) => map_key(next, 0).to_vec(),
        None => vec![PREFIX_MAP + 1],
    };
    (first.to_vec(), end)
}

/// The map, and the first sub-block of a page.
pub(super) fn parse_map_key(key: &[u8]) -> Result<(MapId, u64), CodecError> {
    let mut reader = Reader::new(key);
    if reader.u8()? != PREFIX_MAP {
        return Err(CodecError::Field("key"));
    }
    let map = u32::from_be_bytes(reader.array()?);
    let first = parse_page(&mut reader)?;
    reader.end()?;
    Ok((map, first))
}

/// The first entry of the page whose number this is.
fn parse_page(reader: &mut Reader<'_>) -> Result<u64, CodecError> {
    let page = u64::from_be_bytes(reader.array()?);
    page.checked_mul(page::ENTRIES)
        .ok_or(CodecError::Field("page number"))
}

/// The blocks of a row, by address.
pub(super) fn blocks(
    key: &[u8],
    value: &[u8],
) -> Result<impl Iterator<Item = (Pba, BlockRow)> + use<>, CodecError> {
    let first = parse_block_key(key)?;
    let entries = Page::<BlockRow>::of_row(value)?.into_entries();
    Ok(entries.map(move |(position, row)| (Pba(first.0 | u64::from(position)), row)))
}

/// The mappings of a row, by sub-block.
pub(super) fn mappings(
    key: &[u8],
    value: &[u8],
) -> Result<impl Iterator<Item = (u64, Mapping)> + use<>, CodecError> {
    let (_, first) = parse_map_key(key)?;
    let entries = Page::<Mapping>::of_row(value)?.into_entries();
    Ok(entries.map(move |(position, mapping)| (first | u64::from(position), mapping)))
}

/// The value of an index entry.
pub(super) fn index_entry(pba: Pba) -> [u8; 8] {
    pba.0.to_le_bytes()
}

/// The content that an index entry is for.
pub(super) fn parse_index_key(key: &[u8]) -> Result<Fingerprint, CodecError> {
    let mut reader = Reader::new(key);
    let fingerprint = reader.array()?;
    reader.end()?;
    Ok(Fingerprint(fingerprint))
}

/// Where an index entry leads to.
pub(super) fn parse_index_entry(value: &[u8]) -> Result<Pba, CodecError> {
    let mut reader = Reader::new(value);
    let pba = u64::from_le_bytes(reader.array()?);
    reader.end()?;
    Ok(Pba(pba))
}

pub(super) fn segment_key(first: Pba) -> [u8; 9] {
    let mut key = [PREFIX_SEGMENT; 9];
    key[1..].copy_from_slice(&first.0.to_be_bytes());
    key
}

/// The first address of a segment, and where it lies.
pub(super) fn parse_segment(key: &[u8], value: &[u8]) -> Result<(Pba, SegmentRow), CodecError> {
    let mut reader = Reader::new(key);
    if reader.u8()? != PREFIX_SEGMENT {
        return Err(CodecError::Field("key"));
    }
    let first = Pba(u64::from_be_bytes(reader.array()?));
    reader.end()?;
    Ok((first, SegmentRow::decode(value)?))
}

/// What remains of values under a key ([`page::merge`]); `None` if it is no page's, or one of them makes no sense.
pub(super) fn merge<'a>(
    key: &[u8],
    row: Option<&[u8]>,
    changes: impl Iterator<Item = &'a [u8]>,
    into_row: bool,
) -> Option<Vec<u8>> {
    let merged = match *key.first()? {
        PREFIX_BLOCK => page::merge::<BlockRow>(row, changes, into_row),
        PREFIX_MAP => page::merge::<Mapping>(row, changes, into_row),
        _ => return None,
    };
    merged.ok()
}

pub(super) fn totals(totals: &Totals) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(totals.mapped.len() as u32).to_le_bytes());
    for (map, count) in &totals.mapped {
        out.extend_from_slice(&map.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
    }
    out.extend_from_slice(&(totals.blocks.len() as u32).to_le_bytes());
    for (drive, count) in &totals.blocks {
        out.extend_from_slice(&drive.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
    }
    out
}

pub(super) fn parse_totals(value: &[u8]) -> Result<Totals, CodecError> {
    let mut reader = Reader::new(value);
    let mapped = take_counts(&mut reader, Reader::u32)?;
    let blocks = take_counts(&mut reader, |reader| reader.array().map(u16::from_le_bytes))?;
    reader.end()?;
    Ok(Totals { mapped, blocks })
}

/// Counts by keys that rise; there is one encoding only.
fn take_counts<'a, K: Ord + Copy>(
    reader: &mut Reader<'a>,
    key: impl Fn(&mut Reader<'a>) -> Result<K, CodecError>,
) -> Result<BTreeMap<K, u64>, CodecError> {
    let mut counts = BTreeMap::new();
    for _ in 0..reader.u32()? {
        let key = key(reader)?;
        let count = reader.u64()?;
        let is_next = counts.last_key_value().is_none_or(|(last, _)| *last < key);
        if count == 0 || !is_next {
            return Err(CodecError::Field("total"));
        }
        counts.insert(key, count);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_and_sort_by_their_numbers() {
        assert!(map_key(1, u64::MAX) < map_key(2, 0));
        assert!(map_key(0, 255) < map_key(0, 256));
        assert_eq!(map_key(0, 64), map_key(0, 127));
        assert_eq!(parse_map_key(&map_key(7, 130)), Ok((7, 128)));
        assert_eq!(parse_block_key(&block_key(Pba(77))), Ok(Pba(64)));
        let last = Pba::new(Pba::DRIVE_MAX, Pba::BLOCK_MAX).fragment(14);
        assert_eq!(parse_block_key(&block_key(last)), Ok(Pba(last.0 - 62)));
        // There is no page of that number.
        assert!(parse_block_key(&[b'b', 4, 0, 0, 0, 0, 0, 0, 0]).is_err());
        let at = Checkpoint {
            position: Position { seq: 5, offset: 64 },
            epoch: 2,
            last_epoch: Some(1),
        };
        assert_eq!(parse_checkpoint(&checkpoint(at)), Ok(at));
        // As programs wrote it that knew nothing of the last record.
        let older = Checkpoint {
            last_epoch: None,
            ..at
        };
        assert_eq!(checkpoint(older).len(), 20);
        assert_eq!(parse_checkpoint(&checkpoint(older)), Ok(older));
        assert!(parse_checkpoint(&[0; 20]).is_err());
        let mut sums = Totals::default();
        assert_eq!(parse_totals(&totals(&sums)), Ok(sums.clone()));
        sums.add_mapping(9);
        sums.add_mapping(2);
        sums.add_block(Pba::new(3, 1));
        let bytes = totals(&sums);
        assert_eq!(parse_totals(&bytes), Ok(sums));
        assert!(parse_totals(&bytes[..bytes.len() - 1]).is_err());
        // Keys that do not rise are no row of ours.
        let mut turned = bytes.clone();
        turned[4..28].rotate_left(12);
        assert!(parse_totals(&turned).is_err());
        assert!(parse_map_key(&[b'm'; 12]).is_err());
    }
}
