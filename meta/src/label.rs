//! The label of a drive: which pool it belongs to, which of the pool's drives it is, in which epoch the pool was opened
//! last, and where the pool's newest metadata is.
//!
//! ```text
//! byte    0  magic "ONEFOLD\n"
//! byte    8  u32  version: 2
//! byte   12  pool uuid
//! byte   28  drive uuid
//! byte   44  u16  index in the pool
//! byte   46  u16  drives of the pool
//! byte   48  u64  blocks of the drive, 4096 bytes each, the label area included
//! byte   56  u32  sub-block size of the pool in bytes
//! byte   60  u32  epoch of the pool's last opening; 0 before the first
//! byte   64  u64  sequence number of this copy
//! byte   72  u64  when it was written, in seconds since 1970
//! byte   80  uuid of that opening
//! byte   96  name of the pool: u8 length, 63 bytes of UTF-8
//! byte  160  name of the machine: as the pool's
//! byte  224  zeros
//! byte  256  where the metadata is: u16 count, two zero bytes, then for each location u8 what (1 journal, 2 checkpoint),
//!            u8 kind (1 a folder; 2 is kept for segments of drives), u16 bytes, and the bytes: of a folder its path
//! byte 2304  zeros: room for the pool's key, wrapped
//! byte 3328  zeros
//! byte 4092  u32  CRC-32C of bytes 0..4092
//! ```
//! All little endian. Version 1 ends behind byte 60, has zeros at 46, and knows no epoch.
//!
//! Two copies are kept, in the first two 4096-byte blocks of the drive. Each opening of the pool writes one of them, the one
//! that is older or damaged, with the next sequence number: a torn write leaves the other one as it was, and the larger
//! number wins.
//!
//! What is a hint, and nothing is decided by it: the time, the names, the path. Folders move between machines.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::codec::{CodecError, Reader, crc32c};
use crate::error::MetaError;

/// Bytes of one copy of a label.
pub const LABEL_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"ONEFOLD\n";
/// The version that knew no epoch. It is read, and written anew at the next opening.
const VERSION_WITHOUT_EPOCH: u32 = 1;
const VERSION: u32 = 2;
/// Bytes of a name, its length included.
const NAME_BYTES: usize = 64;
const LOCATIONS_AT: usize = 256;
const LOCATIONS_END: usize = 2304;
/// Locations in a label at most.
const LOCATIONS_MAX: u16 = 16;
/// The longest path that is kept as a hint: two of them leave room for locations of other kinds.
const PATH_BYTES_MAX: usize = 768;
const FOLDER: u8 = 1;
const CRC_AT: usize = LABEL_BYTES - 4;

/// Identity of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveLabel {
    /// The pool it belongs to.
    pub pool: Uuid,
    /// The drive itself.
    pub drive: Uuid,
    /// Its index in the pool's list of drives.
    pub index: u16,
    /// Its size in blocks of 4096 bytes, the label area included.
    pub blocks: u64,
    /// Sub-block size of the pool, in bytes.
    pub sub_block_bytes: u32,
}

/// The last opening of the pool that a drive knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The epoch that it began; 0 for a pool that is being made.
    pub epoch: u32,
    /// Which opening it was: two that began the same epoch differ in it.
    pub id: Uuid,
    /// When, in seconds since 1970. A hint.
    pub at_seconds: u64,
    /// Drives of the pool. Of labels of one epoch the largest number is right: a drive that was added knows of itself.
    pub drives: u16,
    /// What people call the pool. A hint.
    pub pool_name: String,
    /// The machine that opened it. A hint.
    pub machine: String,
    /// Where the newest journal and checkpoint are.
    pub locations: Vec<MetadataLocation>,
}

/// A part of the pool's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataPart {
    /// The newest journal.
    Journal,
    /// The newest checkpoint of the store.
    Checkpoint,
}

/// Where a part of the metadata is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataLocation {
    /// Which part.
    pub part: MetadataPart,
    /// Where.
    pub at: LocationKind,
}

/// A kind of location for metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationKind {
    /// The pool's folder, which had this path. A hint.
    Folder(String),
    /// A kind that this program does not know.
    Other(u8, Vec<u8>),
}

/// What is on a drive: one copy of its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Which drive it is.
    pub drive: DriveLabel,
    /// Of two copies the one with the larger number is newer.
    pub sequence: u64,
    /// The last opening that wrote it; `None` in a label of version 1.
    pub opening: Option<Opening>,
}

/// The label of a drive, from its two copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenLabel {
    /// The newer copy.
    pub label: Label,
    /// Which of the copies is written next, 0 or 1: never the one that was chosen.
    pub next_copy: usize,
    /// The other copy is damaged.
    pub is_half: bool,
}

/// Why 4096 bytes are not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Nothing but zeros: never labelled, or discarded.
    #[error("is blank")]
    Blank,
    /// Something else is there.
    #[error("is not a label")]
    Foreign,
    /// A label whose checksum or content is wrong.
    #[error("is damaged")]
    Damaged,
    /// A label of another version.
    #[error("has format version {0}")]
    Version(u32),
}

impl fmt::Display for DriveLabel {
    /// Which drive of a pool it is, as people count.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            drive,
            index,
            blocks,
            sub_block_bytes,
            ..
        } = self;
        let number = u32::from(*index) + 1;
        write!(
            f,
            "drive number {number} of the pool ({drive}, {blocks} blocks of {sub_block_bytes} bytes)"
        )
    }
}

impl MetadataLocation {
    /// In the pool's folder.
    pub fn in_folder(part: MetadataPart, path: &Path) -> Self {
        let path = path.to_string_lossy().into_owned();
        let at = LocationKind::Folder(match path.len() <= PATH_BYTES_MAX {
            true => path,
            false => String::new(),
        });
        Self { part, at }
    }
}

impl Opening {
    /// When it was.
    pub fn at(&self) -> SystemTime {
        /// The end of the year 9999: a label may say anything.
        const SECONDS_MAX: u64 = 253_402_300_799;
        UNIX_EPOCH + Duration::from_secs(self.at_seconds.min(SECONDS_MAX))
    }

    /// Journal and checkpoint in the pool's folder: where all of them are today.
    pub fn in_folder(path: &Path) -> Vec<MetadataLocation> {
        [MetadataPart::Journal, MetadataPart::Checkpoint]
            .map(|part| MetadataLocation::in_folder(part, path))
            .into()
    }
}

impl Label {
    /// One copy of the label: of version 1 without an opening.
    pub fn encode(&self) -> [u8; LABEL_BYTES] {
        let DriveLabel {
            pool,
            drive,
            index,
            blocks,
            sub_block_bytes,
        } = &self.drive;
        let (version, drives) = match &self.opening {
            None => (VERSION_WITHOUT_EPOCH, 0),
            Some(opening) => (VERSION, opening.drives),
        };
        let mut bytes = Vec::with_capacity(LABEL_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(pool.as_bytes());
        bytes.extend_from_slice(drive.as_bytes());
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.extend_from_slice(&drives.to_le_bytes());
        bytes.extend_from_slice(&blocks.to_le_bytes());
        bytes.extend_from_slice(&sub_block_bytes.to_le_bytes());
        if let Some(opening) = &self.opening {
            opening.encode(self.sequence, &mut bytes);
        }
        let mut out = [0; LABEL_BYTES];
        out[..bytes.len()].copy_from_slice(&bytes);
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The label in one copy.
    pub fn decode(bytes: &[u8]) -> Result<Self, LabelError> {
        let bytes = bytes
            .first_chunk::<LABEL_BYTES>()
            .ok_or(LabelError::Damaged)?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(LabelError::Blank);
        }
        let crc = crc32c(&bytes[..CRC_AT]).to_le_bytes();
        let whole = bytes[CRC_AT..] == crc;
        match Self::parse(bytes) {
            Ok(_) | Err(LabelError::Version(_)) if !whole => Err(LabelError::Damaged),
            other => other,
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, LabelError> {
        let damaged = |_: CodecError| LabelError::Damaged;
        let mut reader = Reader::new(bytes);
        if reader.array().map_err(damaged)? != MAGIC {
            return Err(LabelError::Foreign);
        }
        let version = reader.u32().map_err(damaged)?;
        if ![VERSION_WITHOUT_EPOCH, VERSION].contains(&version) {
            return Err(LabelError::Version(version));
        }
        let pool = Uuid::from_bytes(reader.array().map_err(damaged)?);
        let drive = Uuid::from_bytes(reader.array().map_err(damaged)?);
        let index = u16::from_le_bytes(reader.array().map_err(damaged)?);
        let drives = u16::from_le_bytes(reader.array().map_err(damaged)?);
        let blocks = reader.u64().map_err(damaged)?;
        let sub_block_bytes = reader.u32().map_err(damaged)?;
        let (sequence, opening) = match version {
            VERSION => {
                let (sequence, opening) = Opening::parse(drives, bytes).map_err(damaged)?;
                (sequence, Some(opening))
            }
            _ => (0, None),
        };
        let drive = DriveLabel {
            pool,
            drive,
            index,
            blocks,
            sub_block_bytes,
        };
        Ok(Self {
            drive,
            sequence,
            opening,
        })
    }

    /// The epoch of the last opening that it knows of; 0 if it knows none.
    pub fn epoch(&self) -> u32 {
        self.opening.as_ref().map_or(0, |opening| opening.epoch)
    }

    /// The label of a drive from its two copies.
    ///
    /// # Errors
    /// What is wrong with the first copy, if neither is a label.
    pub fn choose(first: &[u8], second: &[u8]) -> Result<ChosenLabel, LabelError> {
        let (label, next_copy, is_half) = match (Self::decode(first), Self::decode(second)) {
            (Ok(first), Ok(second)) => match first.sequence >= second.sequence {
                true => (first, 1, false),
                false => (second, 0, false),
            },
            (Ok(label), Err(_)) => (label, 1, true),
            (Err(_), Ok(label)) => (label, 0, true),
            // A damaged copy says more than a blank one.
            (Err(LabelError::Blank), Err(error)) | (Err(error), Err(_)) => return Err(error),
        };
        Ok(ChosenLabel {
            label,
            next_copy,
            is_half,
        })
    }
}

impl Opening {
    /// What follows the sub-block size, up to the locations' end.
    fn encode(&self, sequence: u64, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&sequence.to_le_bytes());
        bytes.extend_from_slice(&self.at_seconds.to_le_bytes());
        bytes.extend_from_slice(self.id.as_bytes());
        for name in [&self.pool_name, &self.machine] {
            let name = clip(name, NAME_BYTES - 1);
            let end = bytes.len() + NAME_BYTES;
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(end, 0);
        }
        bytes.resize(LOCATIONS_AT, 0);
        bytes.extend_from_slice(&[0; 4]);
        let mut count = 0_u16;
        for location in &self.locations {
            let (kind, content) = match &location.at {
                LocationKind::Folder(path) => (FOLDER, clip(path, PATH_BYTES_MAX).as_bytes()),
                LocationKind::Other(kind, content) => (*kind, content.as_slice()),
            };
            // Never so: there are two locations, and what was read from a label fits one.
            if count == LOCATIONS_MAX || bytes.len() + 4 + content.len() > LOCATIONS_END {
                break;
            }
            count += 1;
            bytes.push(match location.part {
                MetadataPart::Journal => 1,
                MetadataPart::Checkpoint => 2,
            });
            bytes.push(kind);
            bytes.extend_from_slice(&(content.len() as u16).to_le_bytes());
            bytes.extend_from_slice(content);
        }
        bytes[LOCATIONS_AT..LOCATIONS_AT + 2].copy_from_slice(&count.to_le_bytes());
    }

    /// The same, of a whole label.
    fn parse(drives: u16, label: &[u8]) -> Result<(u64, Self), CodecError> {
        let mut reader = Reader::new(label);
        reader.bytes(60)?;
        let epoch = reader.u32()?;
        let sequence = reader.u64()?;
        let at_seconds = reader.u64()?;
        let id = Uuid::from_bytes(reader.array()?);
        let mut name = || {
            let field = reader.array::<NAME_BYTES>()?;
            let text = field.get(1..=usize::from(field[0]));
            text_of(text.ok_or(CodecError::Field("name"))?)
        };
        let (pool_name, machine) = (name()?, name()?);
        let mut reader = Reader::new(label.get(LOCATIONS_AT..LOCATIONS_END).unwrap_or_default());
        let count = u16::from_le_bytes(reader.array()?);
        if count > LOCATIONS_MAX {
            return Err(CodecError::Field("number of locations"));
        }
        reader.bytes(2)?;
        let mut locations = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let part = match reader.u8()? {
                1 => MetadataPart::Journal,
                2 => MetadataPart::Checkpoint,
                _ => return Err(CodecError::Field("part of the metadata")),
            };
            let kind = reader.u8()?;
            let len = u16::from_le_bytes(reader.array()?);
            let content = reader.bytes(usize::from(len))?;
            let at = match kind {
                FOLDER if content.len() > PATH_BYTES_MAX => return Err(CodecError::Field("path")),
                FOLDER => LocationKind::Folder(text_of(content)?),
                other => LocationKind::Other(other, content.to_vec()),
            };
            locations.push(MetadataLocation { part, at });
        }
        let opening = Self {
            epoch,
            id,
            at_seconds,
            drives,
            pool_name,
            machine,
            locations,
        };
        Ok((sequence, opening))
    }
}

fn text_of(bytes: &[u8]) -> Result<String, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CodecError::Field("text"))?;
    Ok(text.to_owned())
}

/// As much of a text as fits so many bytes.
fn clip(text: &str, bytes: usize) -> &str {
    let fitting = (0..=bytes).rev().find_map(|end| text.get(..end));
    match text.len() <= bytes {
        true => text,
        false => fitting.unwrap_or_default(),
    }
}

impl DriveLabel {
    /// Reads the two copies on the drive named `drive` and proves that it is the one expected.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`], [`MetaError::WrongVersion`] or [`MetaError::WrongPool`] with the drive's
    /// name and the remedy.
    pub fn verify(
        &self,
        drive: &Path,
        first: &[u8],
        second: &[u8],
    ) -> Result<ChosenLabel, MetaError> {
        let chosen = Label::choose(first, second).map_err(|error| match error {
            LabelError::Version(found) => MetaError::WrongVersion {
                path: drive.to_path_buf(),
                found: u64::from(found),
                supported: u64::from(VERSION),
            },
            LabelError::Blank | LabelError::Foreign | LabelError::Damaged => MetaError::corrupt(
                drive,
                format!("the drive's label {error} (both copies)"),
                format!(
                    "make sure that this is drive {} of the pool, and restore its first 8192 bytes from a \
                     copy; nothing was changed",
                    self.drive
                ),
            ),
        })?;
        let found = chosen.label.drive;
        if found.pool != self.pool {
            return Err(MetaError::WrongPool {
                path: drive.to_path_buf(),
                found: found.pool,
                expected: self.pool,
                remedy: "name this pool's own drive in pool.toml".to_owned(),
            });
        }
        if found != *self {
            return Err(MetaError::corrupt(
                drive,
                format!("it is {found}, and {self} is expected there"),
                "correct the paths of the drives in pool.toml: each must lead to its own drive",
            ));
        }
        let mut locations = chosen
            .label
            .opening
            .iter()
            .flat_map(|opening| &opening.locations);
        if locations.any(|location| matches!(location.at, LocationKind::Other(..))) {
            return Err(MetaError::corrupt(
                drive,
                "its label says that the pool's metadata is kept in a way that this program does not know",
                "use the program version that wrote it; nothing was changed",
            ));
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MetaErrorKind;

    fn drive() -> DriveLabel {
        DriveLabel {
            pool: Uuid::from_u128(1),
            drive: Uuid::from_u128(2),
            index: 3,
            blocks: 4000,
            sub_block_bytes: 4096,
        }
    }

    fn label(sequence: u64) -> Label {
        Label {
            drive: drive(),
            sequence,
            opening: Some(Opening {
                epoch: 7,
                id: Uuid::from_u128(9),
                at_seconds: 1_795_279_545,
                drives: 4,
                pool_name: "onefold".to_owned(),
                machine: "node1".to_owned(),
                locations: Opening::in_folder(Path::new("/var/lib/onefold")),
            }),
        }
    }

    fn of(drive: DriveLabel) -> [u8; LABEL_BYTES] {
        let label = Label { drive, ..label(1) };
        label.encode()
    }

    #[test]
    fn a_drive_in_the_place_of_another_is_told_in_words() {
        let found = DriveLabel {
            drive: Uuid::from_u128(7),
            index: 0,
            ..drive()
        };
        let copy = of(found);
        let error = drive().verify(Path::new("/dev/x"), &copy, &copy);
        let text = error.expect_err("another drive").to_string();
        let [is, expected] = [found, drive()].map(|label| label.to_string());
        assert!(
            is.starts_with("drive number 1 of the pool (00000000-"),
            "{is}"
        );
        assert!(text.contains("/dev/x"), "{text}");
        assert!(
            text.contains(&format!("it is {is}, and {expected} is expected there")),
            "{text}"
        );
        assert!(!text.contains("DriveLabel"), "{text}");
    }

    #[test]
    fn a_label_reads_back_and_so_does_one_of_the_first_version() {
        assert_eq!(Label::decode(&label(5).encode()), Ok(label(5)));
        assert_eq!(label(5).epoch(), 7);
        let old = Label {
            drive: drive(),
            sequence: 0,
            opening: None,
        };
        assert_eq!(Label::decode(&old.encode()), Ok(old.clone()));
        assert_eq!((old.epoch(), old.encode()[8]), (0, 1));
        let chosen = drive().verify(Path::new("d"), &old.encode(), &old.encode());
        let whole = ChosenLabel {
            label: old,
            next_copy: 1,
            is_half: false,
        };
        assert_eq!(chosen.unwrap(), whole);
    }

    #[test]
    fn names_and_paths_that_are_too_long_are_hints_that_are_cut_or_left_out() {
        let mut long = label(1);
        let opening = long.opening.as_mut().unwrap();
        opening.pool_name = "ö".repeat(40);
        opening.locations = Opening::in_folder(Path::new(&"p".repeat(4000)));
        let back = Label::decode(&long.encode()).unwrap().opening.unwrap();
        assert_eq!(back.pool_name, "ö".repeat(31));
        let empty = LocationKind::Folder(String::new());
        assert!(back.locations.iter().all(|location| location.at == empty));
        assert_eq!(back.locations.len(), 2);
    }

    #[test]
    fn no_changed_bit_of_a_label_is_accepted() {
        let whole = label(1).encode();
        for bit in 0..LABEL_BYTES * 8 {
            let mut damaged = whole;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_newer_copy_is_the_label_and_the_other_one_is_written_next() {
        let (older, newer) = (label(4).encode(), label(5).encode());
        let choose = |first, second| drive().verify(Path::new("d"), first, second).unwrap();
        for (first, second, next_copy) in [(&older, &newer, 0), (&newer, &older, 1)] {
            let chosen = choose(first, second);
            assert_eq!(chosen.label, label(5));
            assert_eq!((chosen.next_copy, chosen.is_half), (next_copy, false));
        }
    }

    #[test]
    fn either_copy_alone_saves_a_torn_label_and_is_not_written_next() {
        let copy = label(4).encode();
        let mut torn = label(5).encode();
        torn[50..].fill(0);
        let name = Path::new("drive0");
        for (first, second, next_copy) in [
            (&torn, &copy, 0),
            (&copy, &torn, 1),
            (&copy, &[0; LABEL_BYTES], 1),
        ] {
            let chosen = drive().verify(name, first, second).unwrap();
            assert_eq!(chosen.label, label(4));
            assert_eq!((chosen.next_copy, chosen.is_half), (next_copy, true));
        }
        let error = drive().verify(name, &torn, &torn).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::Corrupt);
        assert!(error.to_string().contains("drive0"), "{error}");
    }

    #[test]
    fn blank_foreign_and_future_drives_are_told_apart() {
        assert_eq!(Label::decode(&[0; LABEL_BYTES]), Err(LabelError::Blank));
        assert_eq!(Label::decode(&[7; LABEL_BYTES]), Err(LabelError::Foreign));
        assert_eq!(Label::decode(&[]), Err(LabelError::Damaged));
        let mut future = label(1).encode();
        future[8] = 3;
        let crc = crc32c(&future[..CRC_AT]);
        future[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Label::decode(&future), Err(LabelError::Version(3)));
        let error = drive()
            .verify(Path::new("d"), &future, &future)
            .unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::WrongVersion);
    }

    #[test]
    fn a_pool_whose_metadata_is_where_this_program_cannot_look_is_refused() {
        let mut later = label(1);
        let locations = &mut later.opening.as_mut().unwrap().locations;
        locations[0].at = LocationKind::Other(2, vec![1, 2, 3]);
        let copy = later.encode();
        assert_eq!(Label::decode(&copy), Ok(later));
        let error = drive().verify(Path::new("d"), &copy, &copy).unwrap_err();
        assert!(error.to_string().contains("does not know"), "{error}");
    }

    #[test]
    fn a_drive_of_another_pool_or_in_another_place_is_refused() {
        let name = Path::new("d");
        let other = of(DriveLabel {
            pool: Uuid::from_u128(9),
            ..drive()
        });
        let error = drive().verify(name, &other, &other).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::WrongPool);
        let others = [
            DriveLabel {
                index: 1,
                ..drive()
            },
            DriveLabel {
                drive: Uuid::from_u128(7),
                ..drive()
            },
            DriveLabel {
                blocks: 4001,
                ..drive()
            },
            DriveLabel {
                sub_block_bytes: 8192,
                ..drive()
            },
        ];
        for other in others {
            let copy = of(other);
            let error = drive().verify(name, &copy, &copy).unwrap_err();
            assert!(error.to_string().contains("pool.toml"), "{error}");
        }
    }
}
