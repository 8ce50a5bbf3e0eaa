//! The nouns that the journal, the store and the engine share.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes at the beginning of every drive that hold its label and never hold data: 1 MiB, so that data
/// begins at an alignment that suits every drive. It is 256 blocks of 4096 bytes.
pub const LABEL_AREA_BYTES: u64 = 1 << 20;

/// Longest volume name, in bytes of UTF-8. It fits in one length byte of a record.
pub const VOLUME_NAME_BYTES_MAX: usize = 255;

/// A physical block address: a drive of the pool and a data block on it.
///
/// Blocks are counted in sub-blocks of the pool from the end of the drive's label area, so block 0 is
/// the first block that holds data ([`Pba::byte_offset`]). The drive index is in the top 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pba(pub u64);

impl Pba {
    /// Bits of the block number; the drive index is above them.
    pub const BLOCK_BITS: u32 = 48;
    /// Largest block number.
    pub const BLOCK_MAX: u64 = (1 << Self::BLOCK_BITS) - 1;

    /// The address of data block `block` on drive `drive`. Bits of `block` above
    /// [`Self::BLOCK_MAX`] are ignored; a drive is never that large.
    pub const fn new(drive: u16, block: u64) -> Self {
        debug_assert!(block <= Self::BLOCK_MAX);
        Self(((drive as u64) << Self::BLOCK_BITS) | (block & Self::BLOCK_MAX))
    }

    /// Index of the drive in the pool's list of drives.
    #[inline]
    pub const fn drive(self) -> u16 {
        (self.0 >> Self::BLOCK_BITS) as u16
    }

    /// Data block on that drive, in sub-blocks after the label area.
    #[inline]
    pub const fn block(self) -> u64 {
        self.0 & Self::BLOCK_MAX
    }

    /// Where the block begins on its drive, in bytes, for a pool with this sub-block size.
    pub const fn byte_offset(self, sub_block_bytes: u32) -> u64 {
        LABEL_AREA_BYTES + self.block() * sub_block_bytes as u64
    }
}

impl fmt::Debug for Pba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.drive(), self.block())
    }
}

impl fmt::Display for Pba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The keyed BLAKE3 hash of a sub-block, truncated to 128 bits; or [`Fingerprint::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// The content was not hashed: it was written to a volume without deduplication. Who computes
    /// fingerprints must not let any content have this one.
    pub const NONE: Self = Self([0; 16]);

    /// Whether the content was hashed.
    #[inline]
    pub fn is_some(&self) -> bool {
        *self != Self::NONE
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Most ranges of one volume that are being trimmed at a time: a row and a record with all of them stay
/// small, and nothing but this bounds how a volume can be cut up.
pub const TRIMMING_RANGES_MAX: usize = 64;

/// Whether a volume serves I/O or is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Hosts can use it.
    Active,
    /// Deleted by the user; its mappings are being released.
    Deleting,
}

/// How a write makes sure that a block found by its fingerprint holds the same content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyPolicy {
    /// Equal fingerprints are equal contents: 128 bits of a hash whose key is secret.
    #[default]
    Trust,
    /// The block is read and compared byte by byte before the write is acknowledged.
    Compare,
    /// The block is read and compared after the write was acknowledged, before anything else can use
    /// its range and before the next flush is through.
    Background,
}

impl VerifyPolicy {
    /// The word that users know it by.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Compare => "compare",
            Self::Background => "background",
        }
    }
}

impl fmt::Display for VerifyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No policy has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no verify policy; use trust, compare or background")]
pub struct UnknownVerifyPolicy(pub String);

impl std::str::FromStr for VerifyPolicy {
    type Err = UnknownVerifyPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Trust, Self::Compare, Self::Background]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| UnknownVerifyPolicy(text.to_owned()))
    }
}

/// A volume, as the pool remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Key of the volume in map rows; never shown to hosts. Not reused while rows with it exist.
    pub id: u32,
    /// Name, unique in the pool; at most [`VOLUME_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// NVMe namespace identifier (1-based).
    pub nsid: u32,
    /// Identity that hosts see; never changes.
    pub uuid: Uuid,
    /// NGUID that hosts see; never changes.
    pub nguid: [u8; 16],
    /// Size that hosts see, in bytes.
    pub size_bytes: u64,
    /// Logical block size that hosts see, in bytes: 512 or 4096.
    pub lba_bytes: u32,
    /// Whether it serves I/O.
    pub state: VolumeState,
    /// Whether what is written to it is deduplicated. If not, nothing is hashed; a block that was not
    /// flushed before a crash is then proven by its CRC-32C alone.
    pub dedup: bool,
    /// How a write makes sure of a duplicate.
    #[serde(default)]
    pub verify: VerifyPolicy,
    /// Name of its domain, at most [`VOLUME_NAME_BYTES_MAX`] bytes; empty = the pool's own. Volumes
    /// share blocks within a domain only; the key of its fingerprints follows from the name.
    #[serde(default)]
    pub domain: String,
    /// Sub-blocks (first, one past the last) that read as zeros although they may still be mapped: they
    /// were given back, and are unmapped in the background. In order, none empty, none touching the
    /// next; at most [`TRIMMING_RANGES_MAX`]. Whatever is mapped beyond the volume's end lies in one.
    #[serde(default)]
    pub trimming: Vec<(u64, u64)>,
}

impl VolumeInfo {
    /// Whether a sub-block is being trimmed: it reads as zeros, whatever it is mapped to.
    pub fn is_trimming(&self, sub_block: u64) -> bool {
        let at = self.trimming.partition_point(|(_, end)| *end <= sub_block);
        let range = self.trimming.get(at);
        range.is_some_and(|(first, _)| *first <= sub_block)
    }
}

/// What the store knows about one physical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// How many mappings point to the block; never 0 in a stored row.
    pub refcount: u32,
    /// Fingerprint of its content, or [`Fingerprint::NONE`].
    pub fingerprint: Fingerprint,
    /// CRC-32C of its content.
    pub crc32c: u32,
}

/// Where a sub-block lies, and what a read of it must find there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The block.
    pub pba: Pba,
    /// CRC-32C of its content, so that a read needs no other row.
    pub crc32c: u32,
}

/// How much a store holds, kept up with every batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Mapped sub-blocks by volume id; volumes without any are left out.
    pub mapped: BTreeMap<u32, u64>,
    /// Rows of blocks by drive index; drives without any are left out.
    pub blocks: BTreeMap<u16, u64>,
}

impl Totals {
    /// Counts a mapping that is there.
    pub fn add_mapping(&mut self, volume: u32) {
        *self.mapped.entry(volume).or_default() += 1;
    }

    /// Counts a block row that is there.
    pub fn add_block(&mut self, pba: Pba) {
        *self.blocks.entry(pba.drive()).or_default() += 1;
    }

    /// Follows the change of a mapping; false if that cannot be.
    pub(crate) fn change_mapping(&mut self, volume: u32, before: bool, after: bool) -> bool {
        change(&mut self.mapped, volume, before, after)
    }

    /// Follows the change of a block's row; false if that cannot be.
    pub(crate) fn change_block(&mut self, pba: Pba, before: bool, after: bool) -> bool {
        change(&mut self.blocks, pba.drive(), before, after)
    }
}

fn change<K: Ord + Copy>(counts: &mut BTreeMap<K, u64>, key: K, before: bool, after: bool) -> bool {
    if before == after {
        return true;
    }
    let count = counts.entry(key).or_default();
    let changed = if after {
        count.checked_add(1)
    } else {
        count.checked_sub(1)
    };
    *count = changed.unwrap_or(0);
    if *count == 0 {
        counts.remove(&key);
    }
    changed.is_some()
}

/// A place in the journal: the next record to read or write there, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Sequence number of the next record; the first record ever has 1.
    pub seq: u64,
    /// Byte offset in the ring at which the reader looks for it.
    pub offset: u64,
}

impl Position {
    /// Where the journal of a new pool begins.
    pub const START: Self = Self { seq: 1, offset: 0 };
}

/// What the rows of a store stand for: every record before `position`, and none from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// The first record that is not in the store.
    pub position: Position,
    /// Epoch of the opening that owns the journal: only records of this epoch are replayed.
    pub epoch: u32,
}

impl Checkpoint {
    /// The checkpoint of a new pool: nothing stored, nothing journaled.
    pub const EMPTY: Self = Self {
        position: Position::START,
        epoch: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_knows_which_sub_blocks_are_being_trimmed() {
        let volume = VolumeInfo {
            id: 1,
            name: "v".to_owned(),
            nsid: 1,
            uuid: Uuid::nil(),
            nguid: [0; 16],
            size_bytes: 1 << 20,
            lba_bytes: 512,
            state: VolumeState::Active,
            dedup: true,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
            trimming: vec![(2, 4), (7, 8)],
        };
        let trimming: Vec<u64> = (0..10).filter(|at| volume.is_trimming(*at)).collect();
        assert_eq!(trimming, [2, 3, 7]);
    }

    #[test]
    fn an_address_names_a_drive_and_a_block_after_the_label_area() {
        let pba = Pba::new(3, 7);
        assert_eq!((pba.drive(), pba.block()), (3, 7));
        assert_eq!(pba.byte_offset(4096), (1 << 20) + 7 * 4096);
        assert_eq!(Pba::new(u16::MAX, Pba::BLOCK_MAX).0, u64::MAX);
        assert_eq!(pba.to_string(), "3:7");
    }
}
