//! The label of a drive: which pool it belongs to, and which of the pool's drives it is.
//!
//! ```text
//! byte  0  magic "ONEFOLD\n"
//! byte  8  u32  version
//! byte 12  pool uuid
//! byte 28  drive uuid
//! byte 44  u16  index in the pool, then two zero bytes
//! byte 48  u64  blocks of the drive, 4096 bytes each, the label area included
//! byte 56  u32  sub-block size of the pool in bytes
//! byte 60  zeros
//! byte 4092 u32 CRC-32C of bytes 0..4092
//! ```
//! All little endian. Two copies are kept, in the first two 4096-byte blocks of the drive: a write of
//! one that is torn leaves the other.

use std::fmt;
use std::path::Path;

use uuid::Uuid;

use crate::codec::{CodecError, Reader, crc32c};
use crate::error::MetaError;

/// Bytes of one copy of a label.
pub const LABEL_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"ONEFOLD\n";
const VERSION: u32 = 1;
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

impl DriveLabel {
    /// One copy of the label; write it to the first two blocks of the drive, one after the other.
    pub fn encode(&self) -> [u8; LABEL_BYTES] {
        let mut bytes = Vec::with_capacity(LABEL_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(self.pool.as_bytes());
        bytes.extend_from_slice(self.drive.as_bytes());
        bytes.extend_from_slice(&self.index.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.blocks.to_le_bytes());
        bytes.extend_from_slice(&self.sub_block_bytes.to_le_bytes());
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
        if version != VERSION {
            return Err(LabelError::Version(version));
        }
        let pool = Uuid::from_bytes(reader.array().map_err(damaged)?);
        let drive = Uuid::from_bytes(reader.array().map_err(damaged)?);
        let index = u16::from_le_bytes(reader.array().map_err(damaged)?);
        reader.bytes(2).map_err(damaged)?;
        let blocks = reader.u64().map_err(damaged)?;
        let sub_block_bytes = reader.u32().map_err(damaged)?;
        Ok(Self {
            pool,
            drive,
            index,
            blocks,
            sub_block_bytes,
        })
    }

    /// The label of a drive from its two copies, and whether a copy needs to be written again.
    ///
    /// # Errors
    /// What is wrong with the first copy, if neither is a label.
    pub fn choose(first: &[u8], second: &[u8]) -> Result<(Self, bool), LabelError> {
        match (Self::decode(first), Self::decode(second)) {
            (Ok(first), Ok(second)) => Ok((first, first != second)),
            (Ok(label), Err(_)) | (Err(_), Ok(label)) => Ok((label, true)),
            // A damaged copy says more than a blank one.
            (Err(LabelError::Blank), Err(error)) | (Err(error), Err(_)) => Err(error),
        }
    }

    /// Reads the two copies of the drive named `drive` and proves that it is the one expected. Returns
    /// whether a copy needs to be written again.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`], [`MetaError::WrongVersion`] or [`MetaError::WrongPool`] with the drive's
    /// name and the remedy.
    pub fn verify(&self, drive: &Path, first: &[u8], second: &[u8]) -> Result<bool, MetaError> {
        let (found, repair) = Self::choose(first, second).map_err(|error| match error {
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
        Ok(repair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MetaErrorKind;

    fn label() -> DriveLabel {
        DriveLabel {
            pool: Uuid::from_u128(1),
            drive: Uuid::from_u128(2),
            index: 3,
            blocks: 4000,
            sub_block_bytes: 4096,
        }
    }

    #[test]
    fn a_drive_in_the_place_of_another_is_told_in_words() {
        let found = DriveLabel {
            drive: Uuid::from_u128(7),
            index: 0,
            ..label()
        };
        let copy = found.encode();
        let error = label().verify(Path::new("/dev/x"), &copy, &copy);
        let text = error.expect_err("another drive").to_string();
        let [is, expected] = [found, label()].map(|label| label.to_string());
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
    fn a_label_reads_back() {
        assert_eq!(DriveLabel::decode(&label().encode()), Ok(label()));
        let copy = label().encode();
        assert!(!label().verify(Path::new("drive0"), &copy, &copy).unwrap());
    }

    #[test]
    fn no_changed_bit_of_a_label_is_accepted() {
        let whole = label().encode();
        for bit in 0..LABEL_BYTES * 8 {
            let mut damaged = whole;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(DriveLabel::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn either_copy_alone_saves_a_torn_label() {
        let copy = label().encode();
        let mut torn = copy;
        torn[50..].fill(0);
        let name = Path::new("drive0");
        assert!(label().verify(name, &torn, &copy).unwrap());
        assert!(label().verify(name, &copy, &torn).unwrap());
        assert!(label().verify(name, &copy, &[0; LABEL_BYTES]).unwrap());
        let error = label().verify(name, &torn, &torn).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::Corrupt);
        assert!(error.to_string().contains("drive0"), "{error}");
    }

    #[test]
    fn blank_foreign_and_future_drives_are_told_apart() {
        assert_eq!(
            DriveLabel::decode(&[0; LABEL_BYTES]),
            Err(LabelError::Blank)
        );
        assert_eq!(
            DriveLabel::decode(&[7; LABEL_BYTES]),
            Err(LabelError::Foreign)
        );
        assert_eq!(DriveLabel::decode(&[]), Err(LabelError::Damaged));
        let mut future = label().encode();
        future[8] = 2;
        let crc = crc32c(&future[..CRC_AT]);
        future[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(DriveLabel::decode(&future), Err(LabelError::Version(2)));
        let error = label()
            .verify(Path::new("d"), &future, &future)
            .unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::WrongVersion);
    }

    #[test]
    fn a_drive_of_another_pool_or_in_another_place_is_refused() {
        let name = Path::new("d");
        let other = DriveLabel {
            pool: Uuid::from_u128(9),
            ..label()
        }
        .encode();
        let error = label().verify(name, &other, &other).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::WrongPool);
        let others = [
            DriveLabel {
                index: 1,
                ..label()
            },
            DriveLabel {
                drive: Uuid::from_u128(7),
                ..label()
            },
            DriveLabel {
                blocks: 4001,
                ..label()
            },
            DriveLabel {
                sub_block_bytes: 8192,
                ..label()
            },
        ];
        for other in others {
            let copy = other.encode();
            let error = label().verify(name, &copy, &copy).unwrap_err();
            assert!(error.to_string().contains("pool.toml"), "{error}");
        }
    }
}
