//! One row by itself: for tools and tests that look at rows without a database.

use uuid::Uuid;

use super::{page, rows};
use crate::codec::CodecError;
use crate::types::{BlockRow, Checkpoint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo};

/// A row of the store. What the database holds are keys and values that decode to one of these, and of
/// each only one encoding is written. (Between a row and what it says there may be changes of a page that RocksDB
/// has not merged yet: [`Row::merge`].)
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// The version of the rows and the pool they belong to.
    Format {
        /// The pool.
        pool: Uuid,
        /// One that this program reads. Which it writes: the store's own business.
        version: u32,
    },
    /// What the rows stand for.
    Checkpoint(Checkpoint),
    /// A volume.
    Volume(VolumeInfo),
    /// A map that has a parent, or had children.
    Ancestry(MapInfo),
    /// The blocks in use of one page: at least one, by address.
    Blocks(Vec<(Pba, BlockRow)>),
    /// Where the sub-blocks of one page of a map lie.
    Mappings {
        /// The map.
        map: MapId,
        /// At least one, by the number of the sub-block; holes too.
        mappings: Vec<(u64, Mapping)>,
    },
    /// A setting: its key and its value.
    Setting(String, Vec<u8>),
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
                (version, Some(pool)) => Self::Format { pool, version },
                (_, None) => return Err(CodecError::Field("version").into()),
            },
            _ if key == rows::KEY_TOTALS => Self::Totals(rows::parse_totals(value)?),
            _ if key == rows::KEY_CHECKPOINT => Self::Checkpoint(rows::parse_checkpoint(value)?),
            Some(&rows::PREFIX_VOLUME) => Self::Volume(rows::parse_volume(key, value)?),
            Some(&rows::PREFIX_ANCESTRY) => Self::Ancestry(rows::parse_ancestry(key, value)?),
            Some(&rows::PREFIX_SETTING) => {
                let (key, value) = rows::parse_setting(key, value)?;
                Self::Setting(key, value)
            }
            Some(&rows::PREFIX_BLOCK) => Self::Blocks(rows::blocks(key, value)?.collect()),
            Some(&rows::PREFIX_MAP) => {
                let (map, _) = rows::parse_map_key(key)?;
                let mappings = rows::mappings(key, value)?.collect();
                Self::Mappings { map, mappings }
            }
            _ => return Err(CodecError::Field("key").into()),
        })
    }

    /// Key and value.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::Format { pool, version } => {
                (rows::KEY_FORMAT.to_vec(), rows::format_of(*pool, *version))
            }
            Self::Ancestry(info) => (rows::ancestry_key(info.id).to_vec(), rows::ancestry(info)),
            Self::Checkpoint(at) => (rows::KEY_CHECKPOINT.to_vec(), rows::checkpoint(*at)),
            Self::Volume(info) => (rows::volume_key(info.id).to_vec(), rows::volume(info)),
            Self::Setting(key, value) => (rows::setting_key(key), value.clone()),
            Self::Blocks(blocks) => {
                let first = blocks.first().map_or(Pba(0), |(pba, _)| *pba);
                let entries = blocks.iter().map(|(pba, row)| (pba.0, *row));
                (rows::block_key(first).to_vec(), page_of(entries))
            }
            Self::Mappings { map, mappings } => {
                let first = mappings.first().map_or(0, |(sub_block, _)| *sub_block);
                let key = rows::map_key(*map, first).to_vec();
                (key, page_of(mappings.iter().copied()))
            }
            Self::Totals(totals) => (rows::KEY_TOTALS.to_vec(), rows::totals(totals)),
        }
    }

    /// The value of the row `key` after changes of its page, the oldest first; `None` if one of them, or the
    /// row, cannot be read. Without a row below them (`is_whole` is false) the result is a change again; an
    /// empty one says that there is no row any more.
    #[must_use]
    pub fn merge(
        key: &[u8],
        row: Option<&[u8]>,
        changes: &[&[u8]],
        is_whole: bool,
    ) -> Option<Vec<u8>> {
        rows::merge(key, row, changes.iter().copied(), is_whole)
    }
}

fn page_of<C: page::Content>(entries: impl Iterator<Item = (u64, C)>) -> Vec<u8> {
    let mut page = page::Page::new();
    for (number, content) in entries {
        page.put(page::position(number), Some(content));
    }
    page.row()
}
