//! One row by itself: for tools and tests that look at rows without a database.

use uuid::Uuid;

use super::rows;
use crate::codec::CodecError;
use crate::types::{BlockRow, Checkpoint, Mapping, Pba, Totals, VolumeInfo};

/// A row of the store. What the database holds are keys and values that decode to one of these, and
/// each has only one encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// The version of the rows (the one that this program knows) and the pool they belong to.
    Format(Uuid),
    /// What the rows stand for.
    Checkpoint(Checkpoint),
    /// A volume.
    Volume(VolumeInfo),
    /// A block in use.
    Block(Pba, BlockRow),
    /// Where a sub-block of a volume lies.
    Mapping {
        /// Volume id.
        volume: u32,
        /// Number of the sub-block in its volume.
        sub_block: u64,
        /// The block, and its checksum.
        mapping: Mapping,
    },
    /// How much there is.
    Totals(Totals),
}

/// Key and value are not a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the row {0}")]
pub struct RowError(CodecError);

impl From<CodecError> for RowError {
    fn from(error: CodecError) -> Self {
        Self(error)
    }
}

impl Row {
    /// The row with this key and value.
    ///
    /// # Errors
    /// [`RowError`]: of another version, damaged, or no row at all.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, RowError> {
        Ok(match key.first() {
            _ if key == rows::KEY_FORMAT => match rows::parse_format(value)? {
                (_, Some(pool)) => Self::Format(pool),
                (_, None) => return Err(CodecError::Field("version").into()),
            },
            _ if key == rows::KEY_TOTALS => Self::Totals(rows::parse_totals(value)?),
            _ if key == rows::KEY_CHECKPOINT => Self::Checkpoint(rows::parse_checkpoint(value)?),
            Some(&rows::PREFIX_VOLUME) => Self::Volume(rows::parse_volume(key, value)?),
            Some(&rows::PREFIX_BLOCK) => {
                Self::Block(rows::parse_block_key(key)?, rows::parse_block(value)?)
            }
            Some(&rows::PREFIX_MAP) => {
                let (volume, sub_block) = rows::parse_map_key(key)?;
                let mapping = rows::parse_map(value)?;
                Self::Mapping {
                    volume,
                    sub_block,
                    mapping,
                }
            }
            _ => return Err(CodecError::Field("key").into()),
        })
    }

    /// Key and value.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::Format(pool) => (rows::KEY_FORMAT.to_vec(), rows::format(*pool)),
            Self::Checkpoint(at) => (
                rows::KEY_CHECKPOINT.to_vec(),
                rows::checkpoint(*at).to_vec(),
            ),
            Self::Volume(info) => (rows::volume_key(info.id).to_vec(), rows::volume(info)),
            Self::Block(pba, row) => (rows::block_key(*pba).to_vec(), rows::block(row).to_vec()),
            Self::Mapping {
                volume,
                sub_block,
                mapping,
            } => (
                rows::map_key(*volume, *sub_block).to_vec(),
                rows::mapping(*mapping).to_vec(),
            ),
            Self::Totals(totals) => (rows::KEY_TOTALS.to_vec(), rows::totals(totals)),
        }
    }
}
