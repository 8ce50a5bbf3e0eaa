//! Little-endian writing, and bounds-checked reading, of records and rows.

use uuid::Uuid;

use crate::types::{
    Compression, MapId, MapInfo, SnapshotOf, TRIMMING_RANGES_MAX, VOLUME_NAME_BYTES_MAX,
    VerifyPolicy, VolumeInfo, VolumePolicy, VolumeState,
};

/// CRC-32C (Castagnoli) of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    // The function returns a 64-bit value for every algorithm; this one fills the low 32 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C (Castagnoli) of parts that follow each other.
pub(crate) fn crc32c_of_parts(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// Reads fields off the front of a slice; every read is checked.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

/// The bytes end too early, or say something impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("ends too early")]
    Short,
    #[error("has bytes behind its end")]
    Trailing,
    #[error("has an impossible {0}")]
    Field(&'static str),
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(CodecError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(CodecError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, CodecError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Succeeds only if everything was read.
    pub(crate) fn end(self) -> Result<(), CodecError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(CodecError::Trailing)
        }
    }
}

/// Bytes of a volume besides its two names.
const VOLUME_BYTES: usize = 4 + 4 + 8 + 4 + 1 + 1 + 1 + 1 + 16 + 16 + 1 + 1;

/// Bytes of what [`put_volume`] appends.
pub(crate) fn volume_len(volume: &VolumeInfo) -> usize {
    VOLUME_BYTES
        + volume.name.len().min(VOLUME_NAME_BYTES_MAX)
        + volume.domain.len().min(VOLUME_NAME_BYTES_MAX)
        + ranges_len(&volume.trimming)
        + match volume.snapshot {
            None if volume.map == volume.id => 0,
            None => 4,
            Some(_) => 4 + 4 + 8,
        }
}

/// Bytes of a map's number and of what [`put_map_info`] appends.
pub(crate) fn map_info_len(info: &MapInfo) -> usize {
    4 + 4 + 1 + info.parent.map_or(0, |_| 4)
}

/// Appends a map without its number: its depth, a byte that says whether it has a parent, and that.
pub(crate) fn put_map_info(out: &mut Vec<u8>, info: &MapInfo) {
    out.extend_from_slice(&info.depth.to_le_bytes());
    out.push(u8::from(info.parent.is_some()));
    if let Some(parent) = info.parent {
        out.extend_from_slice(&parent.to_le_bytes());
    }
}

/// Reads what [`put_map_info`] wrote of the map with this number.
pub(crate) fn take_map_info(reader: &mut Reader<'_>, id: MapId) -> Result<MapInfo, CodecError> {
    let depth = reader.u32()?;
    let parent = match reader.u8()? {
        0 => None,
        1 => Some(reader.u32()?),
        _ => return Err(CodecError::Field("parent")),
    };
    if parent.is_some() != (depth > 0) || parent == Some(id) {
        return Err(CodecError::Field("depth"));
    }
    Ok(MapInfo { id, parent, depth })
}

/// Appends a volume: id, nsid, size, LBA size, state, deduplication, verify policy, compression, uuid,
/// nguid, name and domain with a length byte each, ranges that are being trimmed; at the end its map, if that has
/// another number than the volume or it is a snapshot, and of a snapshot its volume and when it was taken.
pub(crate) fn put_volume(out: &mut Vec<u8>, volume: &VolumeInfo) {
    out.extend_from_slice(&volume.id.to_le_bytes());
    out.extend_from_slice(&volume.nsid.to_le_bytes());
    out.extend_from_slice(&volume.size_bytes.to_le_bytes());
    out.extend_from_slice(&volume.lba_bytes.to_le_bytes());
    out.push(match volume.state {
        VolumeState::Active => 0,
        VolumeState::Deleting => 1,
    });
    put_policy(out, volume.policy());
    out.extend_from_slice(volume.uuid.as_bytes());
    out.extend_from_slice(&volume.nguid);
    put_name(out, &volume.name);
    put_name(out, &volume.domain);
    put_ranges(out, &volume.trimming);
    if volume.map != volume.id || volume.snapshot.is_some() {
        out.extend_from_slice(&volume.map.to_le_bytes());
    }
    if let Some(SnapshotOf { volume, created }) = volume.snapshot {
        out.extend_from_slice(&volume.to_le_bytes());
        out.extend_from_slice(&created.to_le_bytes());
    }
}

/// Bytes of what [`put_policy`] appends.
pub(crate) const POLICY_BYTES: usize = 3;

/// Appends a volume's policy: deduplication, verify policy, compression.
pub(crate) fn put_policy(out: &mut Vec<u8>, policy: VolumePolicy) {
    out.push(u8::from(policy.dedup));
    out.push(match policy.verify {
        VerifyPolicy::Trust => 0,
        VerifyPolicy::Compare => 1,
        VerifyPolicy::Background => 2,
    });
    out.push(match policy.compression {
        Compression::Off => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    });
}

/// Reads what [`put_policy`] wrote.
pub(crate) fn take_policy(reader: &mut Reader<'_>) -> Result<VolumePolicy, CodecError> {
    let dedup = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(CodecError::Field("deduplication switch")),
    };
    let verify = match reader.u8()? {
        0 => VerifyPolicy::Trust,
        1 => VerifyPolicy::Compare,
        2 => VerifyPolicy::Background,
        _ => return Err(CodecError::Field("verify policy")),
    };
    let compression = match reader.u8()? {
        0 => Compression::Off,
        1 => Compression::Lz4,
        2 => Compression::Zstd,
        _ => return Err(CodecError::Field("compression")),
    };
    Ok(VolumePolicy {
        dedup,
        verify,
        compression,
    })
}

/// The caller has checked the name's length; a longer one is cut so that the row stays readable.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    let mut len = name.len().min(VOLUME_NAME_BYTES_MAX);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    out.push(len as u8);
    out.extend_from_slice(&name.as_bytes()[..len]);
}

pub(crate) fn take_name(reader: &mut Reader<'_>, what: &'static str) -> Result<String, CodecError> {
    let len = usize::from(reader.u8()?);
    std::str::from_utf8(reader.bytes(len)?)
        .map(str::to_owned)
        .map_err(|_| CodecError::Field(what))
}

/// Bytes of what [`put_ranges`] appends.
pub(crate) fn ranges_len(ranges: &[(u64, u64)]) -> usize {
    2 + 16 * ranges.len().min(TRIMMING_RANGES_MAX)
}

/// Appends ranges of sub-blocks: their number in two bytes, then the first sub-block and one past the
/// last of each. The caller keeps to [`TRIMMING_RANGES_MAX`].
pub(crate) fn put_ranges(out: &mut Vec<u8>, ranges: &[(u64, u64)]) {
    debug_assert!(ranges.len() <= TRIMMING_RANGES_MAX);
    let ranges = &ranges[..ranges.len().min(TRIMMING_RANGES_MAX)];
    out.extend_from_slice(&(ranges.len() as u16).to_le_bytes());
    for (first, end) in ranges {
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&end.to_le_bytes());
    }
}

/// Reads what [`put_ranges`] wrote: in order, none empty, none touching the next.
pub(crate) fn take_ranges(reader: &mut Reader<'_>) -> Result<Vec<(u64, u64)>, CodecError> {
    let count = usize::from(u16::from_le_bytes(reader.array()?));
    if count > TRIMMING_RANGES_MAX || count > reader.remaining() / 16 {
        return Err(CodecError::Field("number of ranges"));
    }
    let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(count);
    for _ in 0..count {
        let (first, end) = (reader.u64()?, reader.u64()?);
        let follows = ranges.last().is_none_or(|(_, before)| *before < first);
        if first >= end || !follows {
            return Err(CodecError::Field("range of sub-blocks"));
        }
        ranges.push((first, end));
    }
    Ok(ranges)
}

/// Reads what [`put_volume`] wrote, to the end of the bytes.
pub(crate) fn take_volume(reader: &mut Reader<'_>) -> Result<VolumeInfo, CodecError> {
    let id = reader.u32()?;
    let nsid = reader.u32()?;
    let size_bytes = reader.u64()?;
    let lba_bytes = reader.u32()?;
    let state = match reader.u8()? {
        0 => VolumeState::Active,
        1 => VolumeState::Deleting,
        _ => return Err(CodecError::Field("volume state")),
    };
    let VolumePolicy {
        dedup,
        verify,
        compression,
    } = take_policy(reader)?;
    let uuid = Uuid::from_bytes(reader.array()?);
    let nguid = reader.array()?;
    let name = take_name(reader, "volume name")?;
    let domain = take_name(reader, "domain name")?;
    let trimming = take_ranges(reader)?;
    let map = match reader.remaining() {
        0 => None,
        _ => Some(reader.u32()?),
    };
    let snapshot = match reader.remaining() {
        0 => None,
        _ => Some(SnapshotOf {
            volume: reader.u32()?,
            created: reader.u64()?,
        }),
    };
    // There is one encoding only.
    if map == Some(id) && snapshot.is_none() {
        return Err(CodecError::Field("map"));
    }
    let map = map.unwrap_or(id);
    Ok(VolumeInfo {
        id,
        map,
        name,
        nsid,
        uuid,
        nguid,
        size_bytes,
        lba_bytes,
        state,
        dedup,
        verify,
        domain,
        trimming,
        compression,
        snapshot,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_castagnoli_crc_of_the_standards() {
        // Check value of CRC-32C, as in RFC 3720 and the catalogue of CRC parameters.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
