//! The nouns that the journal, the store and the engine share.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes at the beginning of every drive that hold its label and never hold data: 1 MiB, so that data
/// begins at an alignment that suits every drive. It is 256 blocks of 4096 bytes.
pub const LABEL_AREA_BYTES: u64 = 1 << 20;

/// Longest volume name, in bytes of UTF-8. It fits in one length byte of a record.
pub const VOLUME_NAME_BYTES_MAX: usize = 255;

/// A physical address: where a content is stored.
///
/// It names a whole data block of a segment, or a *fragment*: one of the compressed contents that share a
/// block (a pack). A segment is named after the drive and the place there where it was made, and keeps its name when it
/// moves: where it lies now, says its row ([`crate::SegmentRow`]). So the bits from 48 on and the upper bits of the block
/// number are the segment, the lower bits of that are the block's offset in it. Blocks are counted in sub-blocks of the
/// pool from the end of the drive's label area, so block 0 is the first block that holds data.
///
/// | bits    | whole block           | fragment                        |
/// |---------|-----------------------|---------------------------------|
/// | 63      | 0                     | 1                               |
/// | 62..=48 | drive                 | drive                           |
/// | 47..=0  | block                 | block * 16 + slot in the pack   |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pba(pub u64);

impl Pba {
    /// Bits of the block number (and slot); the drive index is above them.
    pub const BLOCK_BITS: u32 = 48;
    /// Largest block number of a drive: with a slot it still fits.
    pub const BLOCK_MAX: u64 = (1 << (Self::BLOCK_BITS - Self::SLOT_BITS)) - 1;
    /// Largest index of a drive.
    pub const DRIVE_MAX: u16 = (1 << 15) - 1;
    /// Addresses that a block has for its fragments. The last one is never used.
    pub const SLOTS: u64 = 1 << Self::SLOT_BITS;
    /// Largest slot of a fragment.
    pub const SLOT_MAX: u8 = Self::SLOTS as u8 - 2;

    const SLOT_BITS: u32 = 4;
    const FRAGMENT: u64 = 1 << 63;
    const NUMBER_MASK: u64 = (1 << Self::BLOCK_BITS) - 1;

    /// No address: where a map has this, it maps nothing, and hides what its ancestors have. No drive has the last
    /// index, so no block is there.
    pub const HOLE: Self = Self(u64::MAX - 1);

    /// Whether it is [`Pba::HOLE`].
    #[inline]
    pub const fn is_hole(self) -> bool {
        self.0 == Self::HOLE.0
    }

    /// The address of data block `block` on drive `drive`. Bits above [`Self::BLOCK_MAX`] and
    /// [`Self::DRIVE_MAX`] are ignored; a drive is never that large.
    #[inline]
    pub const fn new(drive: u16, block: u64) -> Self {
        debug_assert!(block <= Self::BLOCK_MAX && drive <= Self::DRIVE_MAX);
        Self((((drive & Self::DRIVE_MAX) as u64) << Self::BLOCK_BITS) | (block & Self::BLOCK_MAX))
    }

    /// The address of a fragment in the block of this one.
    #[inline]
    #[must_use]
    pub const fn fragment(self, slot: u8) -> Self {
        debug_assert!(slot <= Self::SLOT_MAX);
        let number = self.block() << Self::SLOT_BITS | (slot as u64 & (Self::SLOTS - 1));
        Self(Self::FRAGMENT | (self.drive() as u64) << Self::BLOCK_BITS | number)
    }

    /// Whether it is one of several contents in a block.
    #[inline]
    pub const fn is_fragment(self) -> bool {
        self.0 & Self::FRAGMENT != 0
    }

    /// Its slot in the pack, if it is a fragment.
    #[inline]
    pub const fn slot(self) -> Option<u8> {
        match self.is_fragment() {
            true => Some((self.0 & (Self::SLOTS - 1)) as u8),
            false => None,
        }
    }

    /// The whole block that it is in.
    #[inline]
    #[must_use]
    pub const fn container(self) -> Self {
        match self.is_fragment() {
            true => Self::new(self.drive(), self.block()),
            false => self,
        }
    }

    /// Index of the drive where its segment was made, in the pool's list of drives.
    #[inline]
    pub const fn drive(self) -> u16 {
        (self.0 >> Self::BLOCK_BITS) as u16 & Self::DRIVE_MAX
    }

    /// Data block there, in sub-blocks after the label area.
    #[inline]
    pub const fn block(self) -> u64 {
        match self.is_fragment() {
            true => self.number() >> Self::SLOT_BITS,
            false => self.number(),
        }
    }

    /// Its number among the addresses of its drive and kind: the block, or the block * 16 + slot.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER_MASK
    }

    /// Whether a drive with this many data blocks has the address.
    #[inline]
    pub const fn is_within(self, blocks: u64) -> bool {
        let is_slot = match self.slot() {
            Some(slot) => slot <= Self::SLOT_MAX,
            None => true,
        };
        is_slot && self.block() < blocks
    }
}

impl fmt::Debug for Pba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.drive(), self.block())?;
        self.slot().map_or(Ok(()), |slot| write!(f, "/{slot}"))
    }
}

impl fmt::Display for Pba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The text of an address, `DRIVE:BLOCK` or `DRIVE:BLOCK/SLOT`, does not name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address; one looks like 0:77 or 0:77/3")]
pub struct PbaError;

impl FromStr for Pba {
    type Err = PbaError;

    fn from_str(text: &str) -> Result<Self, PbaError> {
        let (drive, block) = text.split_once(':').ok_or(PbaError)?;
        let (block, slot) = match block.split_once('/') {
            Some((block, slot)) => (block, Some(slot.parse().map_err(|_| PbaError)?)),
            None => (block, None),
        };
        let drive: u16 = drive.parse().map_err(|_| PbaError)?;
        let block: u64 = block.parse().map_err(|_| PbaError)?;
        let is_slot = slot.is_none_or(|slot: u8| slot <= Self::SLOT_MAX);
        if drive > Self::DRIVE_MAX || block > Self::BLOCK_MAX || !is_slot {
            return Err(PbaError);
        }
        let whole = Self::new(drive, block);
        Ok(slot.map_or(whole, |slot| whole.fragment(slot)))
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

/// How the contents that are written to a volume are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As they are.
    #[default]
    Off,
    /// By LZ4, where that saves space: quick.
    Lz4,
    /// By Zstandard, where that saves space: smaller and several times slower.
    Zstd,
}

impl Compression {
    /// The word that users know it by.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No compression has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no compression; use off, lz4 or zstd")]
pub struct UnknownCompression(pub String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Off, Self::Lz4, Self::Zstd]
            .into_iter()
            .find(|compression| compression.as_str() == text)
            .ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}

/// How the fingerprints of a pool are computed. It is named when the pool is made, and stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FingerprintFunction {
    /// Keyed BLAKE3, cut to 128 bits.
    #[default]
    Blake3,
    /// Toeplitz-CLNH, a keyed universal hash, with keyed BLAKE3 behind it.
    Clnh,
}

impl FingerprintFunction {
    /// The word that users know it by.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Clnh => "clnh",
        }
    }
}

impl fmt::Display for FingerprintFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No function has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no function for fingerprints; use clnh or blake3")]
pub struct UnknownFingerprintFunction(pub String);

impl FromStr for FingerprintFunction {
    type Err = UnknownFingerprintFunction;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Blake3, Self::Clnh]
            .into_iter()
            .find(|function| function.as_str() == text)
            .ok_or_else(|| UnknownFingerprintFunction(text.to_owned()))
    }
}

/// The number of a map.
///
/// A map says where the sub-blocks of a volume are stored. It has an identity of its own: a volume names its map, and a
/// map may have a parent. A sub-block of which a map has no entry is its parent's; an entry that maps nothing and hides
/// the parent's is a hole ([`Pba::HOLE`]). The counts of blocks count the mappings that maps have themselves.
///
/// A volume that was never forked has a map of its own number, without a row: so it was before maps had numbers.
pub type MapId = u32;

/// Ancestors of a map at most. A page that is not in memory is looked for in them, the nearest first, so this bounds
/// what one command reads from the store for it.
pub const MAP_DEPTH_MAX: u32 = 2048;

/// A map that has a parent, or had children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// Its number.
    pub id: MapId,
    /// The map that has the entries that this one has not.
    pub parent: Option<MapId>,
    /// As many as it has ancestors when it is made, and always more than its parent's: so no map is its own ancestor.
    /// It stays when ancestors are taken out of the line.
    pub depth: u32,
}

impl MapInfo {
    /// A map without a parent.
    pub const fn root(id: MapId) -> Self {
        Self {
            id,
            parent: None,
            depth: 0,
        }
    }

    /// A child of this map.
    #[must_use]
    pub const fn child(&self, id: MapId) -> Self {
        Self {
            id,
            parent: Some(self.id),
            depth: self.depth + 1,
        }
    }
}

/// What makes the row of a volume that of a snapshot: a volume that does not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOf {
    /// The number of the volume that it was taken of.
    pub volume: u32,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
}

/// A volume, as the pool remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Number of the volume; never shown to hosts. Volumes and maps are numbered together.
    pub id: u32,
    /// The map that says where its sub-blocks are; never shown to hosts either.
    pub map: MapId,
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
    /// How new contents that are written to it are stored.
    #[serde(default)]
    pub compression: Compression,
    /// Sub-blocks (first, one past the last) that read as zeros although they may still be mapped: they
    /// were given back, and are unmapped in the background. In order, none empty, none touching the
    /// next; at most [`TRIMMING_RANGES_MAX`]. Whatever is mapped beyond the volume's end lies in one.
    #[serde(default)]
    pub trimming: Vec<(u64, u64)>,
    /// It is a snapshot: hosts do not change it. Its name is then that of the snapshot alone in the store and the
    /// journal, and `VOLUME@NAME` everywhere else.
    #[serde(default)]
    pub snapshot: Option<SnapshotOf>,
}

impl VolumeInfo {
    /// Whether a sub-block is being trimmed: it reads as zeros, whatever it is mapped to.
    pub fn is_trimming(&self, sub_block: u64) -> bool {
        let at = self.trimming.partition_point(|(_, end)| *end <= sub_block);
        let range = self.trimming.get(at);
        range.is_some_and(|(first, _)| *first <= sub_block)
    }
}

impl VolumeInfo {
    /// What becomes of what is written to it.
    pub fn policy(&self) -> VolumePolicy {
        VolumePolicy {
            dedup: self.dedup,
            verify: self.verify,
            compression: self.compression,
        }
    }

    /// What is written from now on follows this policy.
    pub fn set_policy(&mut self, policy: VolumePolicy) {
        let VolumePolicy {
            dedup,
            verify,
            compression,
        } = policy;
        self.dedup = dedup;
        self.verify = verify;
        self.compression = compression;
    }
}

/// What becomes of what is written to a volume. It can change; what was written before stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePolicy {
    /// [`VolumeInfo::dedup`].
    pub dedup: bool,
    /// [`VolumeInfo::verify`].
    pub verify: VerifyPolicy,
    /// [`VolumeInfo::compression`].
    pub compression: Compression,
}

/// References to one block at most, as the store counts them.
pub(crate) const REFCOUNT_MAX: u32 = i32::MAX as u32;

/// What the store knows about one physical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// How many mappings point to the block; never 0 in a stored row, and less than 2^31.
    pub refcount: u32,
    /// Fingerprint of its content, or [`Fingerprint::NONE`].
    pub fingerprint: Fingerprint,
    /// CRC-32C of its content.
    pub crc32c: u32,
    /// The index entry for its fingerprint leads to it ([`Store::put_index_entries`](crate::Store::put_index_entries)).
    pub has_index_entry: bool,
}

/// Where a sub-block lies, and what a read of it must find there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The block.
    pub pba: Pba,
    /// CRC-32C of its content, so that a read needs no other row.
    pub crc32c: u32,
}

impl Mapping {
    /// Nothing is mapped, and nothing is inherited.
    pub const HOLE: Self = Self {
        pba: Pba::HOLE,
        crc32c: 0,
    };

    /// Whether it is a hole, and no mapping.
    pub const fn is_hole(&self) -> bool {
        self.pba.is_hole()
    }
}

/// How much a store holds, kept up with every batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Mapped sub-blocks by map, without holes; maps without any are left out.
    pub mapped: BTreeMap<MapId, u64>,
    /// Rows of blocks by drive index; drives without any are left out.
    pub blocks: BTreeMap<u16, u64>,
}

impl Totals {
    /// Counts a mapping that is there.
    pub fn add_mapping(&mut self, map: MapId) {
        *self.mapped.entry(map).or_default() += 1;
    }

    /// Counts a block row that is there.
    pub fn add_block(&mut self, pba: Pba) {
        *self.blocks.entry(pba.drive()).or_default() += 1;
    }

    /// So many mappings come, and so many go; false if that cannot be.
    pub(crate) fn change_mappings(&mut self, map: MapId, new: u64, gone: u64) -> bool {
        change(&mut self.mapped, map, new, gone)
    }

    /// So many rows of blocks of the drive of this one come, and so many go; false if that cannot be.
    pub(crate) fn change_blocks(&mut self, pba: Pba, new: u64, gone: u64) -> bool {
        change(&mut self.blocks, pba.drive(), new, gone)
    }
}

fn change<K: Ord + Copy>(counts: &mut BTreeMap<K, u64>, key: K, new: u64, gone: u64) -> bool {
    if new == gone {
        return true;
    }
    let count = counts.entry(key).or_default();
    let changed = count
        .checked_add(new)
        .and_then(|count| count.checked_sub(gone));
    *count = changed.unwrap_or(0);
    if *count == 0 {
        counts.remove(&key);
    }
    changed.is_some()
}

/// A position in the journal: the next record to read or write there, and where it is.
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
    /// Epoch of the record before `position`, which the journal holds durably: what proves that the
    /// journal is not older than the rows. `None`: there is none, or the program that stored this did
    /// not see to it (until November 2026).
    pub last_epoch: Option<u32>,
}

impl Checkpoint {
    /// The checkpoint of a new pool: nothing stored, nothing journaled.
    pub const EMPTY: Self = Self {
        position: Position::START,
        epoch: 0,
        last_epoch: None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_knows_which_sub_blocks_are_being_trimmed() {
        let volume = VolumeInfo {
            id: 1,
            map: 1,
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
            compression: Compression::Off,
            trimming: vec![(2, 4), (7, 8)],
            snapshot: None,
        };
        let trimming: Vec<u64> = (0..10).filter(|at| volume.is_trimming(*at)).collect();
        assert_eq!(trimming, [2, 3, 7]);
    }

    #[test]
    fn an_address_names_a_drive_and_a_block_after_the_label_area() {
        let pba = Pba::new(3, 7);
        assert_eq!((pba.drive(), pba.block()), (3, 7));
        assert_eq!(pba.to_string(), "3:7");
        assert_eq!((pba.container(), pba.slot()), (pba, None));
    }

    #[test]
    fn a_fragment_knows_its_block_and_is_none_of_the_whole_blocks() {
        let last = Pba::new(Pba::DRIVE_MAX, Pba::BLOCK_MAX);
        for (block, slot) in [(Pba::new(3, 7), 0), (Pba::new(3, 7), 14), (last, 9)] {
            let pba = block.fragment(slot);
            assert!(pba.is_fragment() && !block.is_fragment());
            assert_eq!((pba.slot(), pba.container()), (Some(slot), block));
            assert_eq!((pba.drive(), pba.block()), (block.drive(), block.block()));
            assert_eq!(pba.number(), block.block() * 16 + u64::from(slot));
            assert_ne!(pba.0, u64::MAX);
            let blocks = block.block() + 1;
            assert!(pba.is_within(blocks) && !pba.is_within(blocks - 1));
        }
        // The last of a block's sixteen addresses is no fragment.
        assert!(!Pba(Pba::new(0, 7).fragment(14).0 + 1).is_within(100));
    }

    #[test]
    fn an_address_reads_back_from_its_text_and_nothing_else_does() {
        let block = Pba::new(3, 7);
        for pba in [block, block.fragment(0), block.fragment(14)] {
            assert_eq!(pba.to_string().parse(), Ok(pba));
        }
        let beyond = format!("0:{}", Pba::BLOCK_MAX + 1);
        for text in [
            "", "7", "3:", ":7", "3:7/", "3:7/15", "3:7/x", "32768:0", &beyond,
        ] {
            assert_eq!(text.parse::<Pba>(), Err(PbaError), "{text}");
        }
    }
}
