//! The store: rows up to a checkpoint, changed by atomic and durable batches.

mod database;
mod map_rows;
mod memory;
mod page;
mod prepare;
pub(crate) mod raw;
mod rocks;
mod row;
mod rows;
mod salvage;

pub use database::RocksOptions;
pub use map_rows::{MapRows, RowCursor, RowEntries};
pub use memory::{MemoryStore, StoreFault};
pub use rocks::RocksStore;
pub use row::{Row, RowError};
pub use salvage::{NewRows, Salvage};

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::ballast::FolderRoom;
use crate::batch::Batch;
use crate::error::MetaError;
use crate::segment::SegmentRow;
use crate::setting::SettingChanges;
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo,
};

/// A kind of rows of which a store may have very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Blocks.
    Block,
    /// Mappings and holes.
    Mapping,
    /// Index entries.
    IndexEntry,
}

/// Receives the rows of a store: all volumes by id, then all maps that have a row by id, then all blocks by address,
/// then all mappings by map and sub-block, then all index entries by fingerprint.
pub trait LoadVisitor {
    /// Whether rows of this kind are to be read, and shown to it.
    fn wants(&self, kind: RowKind) -> bool {
        let _ = kind;
        true
    }
    /// A volume.
    fn volume(&mut self, volume: VolumeInfo);
    /// A block.
    fn block(&mut self, pba: Pba, row: BlockRow);
    /// A map that has a parent, or had children.
    fn map_row(&mut self, info: MapInfo) {
        let _ = info;
    }
    /// A mapping, or a hole.
    fn map(&mut self, map: MapId, sub_block: u64, mapping: Mapping);
    /// An index entry.
    fn index_entry(&mut self, fingerprint: Fingerprint, pba: Pba) {
        let _ = (fingerprint, pba);
    }
}

/// What RocksDB says of itself, all families together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Rows that are in memory and in its log only, in bytes.
    pub write_buffer_bytes: u64,
    /// Its cache of what it read, in bytes.
    pub cache_bytes: u64,
    /// Memory of indexes and filters outside of the cache, in bytes.
    pub table_reader_bytes: u64,
    /// Its files with rows, in bytes.
    pub file_bytes: u64,
    /// Files that are not sorted into a level yet.
    pub unsorted_files: u64,
    /// What compactions have to rewrite, about, in bytes.
    pub pending_compaction_bytes: u64,
    /// Compactions that run now.
    pub running_compactions: u64,
    /// Write buffers that are being written to files now.
    pub running_flushes: u64,
    /// Whether it takes no writes until compactions have caught up.
    pub is_stopped: bool,
    /// Errors of its background work since it was opened.
    pub background_errors: u64,
}

/// Durable rows. All calls block.
pub trait Store: Send + Sync {
    /// Shows every row to `visitor`, and returns what the rows stand for.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if a row cannot be read or makes no sense; the visitor may have seen some
    /// rows then.
    fn load(&self, visitor: &mut dyn LoadVisitor) -> Result<Checkpoint, MetaError>;

    /// What the rows stand for.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn checkpoint(&self) -> Result<Checkpoint, MetaError>;

    /// All volumes, by id.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn volumes(&self) -> Result<Vec<VolumeInfo>, MetaError>;

    /// All maps that have a parent, or had children, by id.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn maps(&self) -> Result<Vec<MapInfo>, MetaError>;

    /// All settings, by key.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn settings(&self) -> Result<BTreeMap<String, Vec<u8>>, MetaError>;

    /// How much the rows are, without reading them.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn totals(&self) -> Result<Totals, MetaError>;

    /// The blocks from `first` up to, but not including, `end`: the first `count_max` of them, by
    /// address. Reads, also of mappings, may
    /// run beside a batch: they see all of it or nothing.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn blocks(
        &self,
        first: Pba,
        end: Pba,
        count_max: usize,
    ) -> Result<Vec<(Pba, BlockRow)>, MetaError>;

    /// The block with the highest address below `end`.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn last_block(&self, end: Pba) -> Result<Option<Pba>, MetaError>;

    /// The mappings and holes of a map itself from sub-block `first` up to, but not including, `end`: the first
    /// `count_max` of them, in order.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn mappings(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, Mapping)>, MetaError>;

    /// The rows of a map itself that may have any of the sub-blocks of some ranges, which are in order and apart from each
    /// other: the first ones, in order, until these are `most.0` rows, or have `most.1` entries. Only then there may be
    /// more.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn map_rows(
        &self,
        map: MapId,
        ranges: &[Range<u64>],
        most: (usize, usize),
    ) -> Result<MapRows, MetaError>;

    /// The numbers of the parts of so many sub-blocks where a map itself has mappings or holes, from sub-block `first`
    /// up to, but not including, `end`, in order.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn mapped_parts(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        sub_blocks: u64,
    ) -> Result<Vec<u64>, MetaError>;

    /// Where index entries for these contents lead to, in the order of the contents. What an index entry says is to be
    /// checked: it leads to one block of several with the same fingerprint, and the block may be gone by
    /// the time when this returns.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn index_entries(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Pba>>, MetaError>;

    /// Whether there are index entries.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn has_index_entries(&self) -> Result<bool, MetaError>;

    /// Lets index entries lead to those of these blocks that have a row with that fingerprint, until the row goes.
    /// They survive a loss of power when this returns.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and others: none or all were written.
    fn put_index_entries(&self, blocks: &[(Pba, Fingerprint)]) -> Result<(), MetaError>;

    /// Where all segments lie, by the addresses of their first blocks, in order.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn segments(&self) -> Result<Vec<(Pba, SegmentRow)>, MetaError>;

    /// Makes `rows` the rows of all segments in a range of addresses, atomically; they survive a loss of power when
    /// this returns.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and others: none or all were written.
    fn put_segments(&self, range: Range<Pba>, rows: &[(Pba, SegmentRow)]) -> Result<(), MetaError>;

    /// Changes settings, atomically, beside the journal; they survive a loss of power when this returns. For settings that
    /// no record of the journal is about: a record would be applied again after this.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and others: none or all were written.
    fn put_settings(&self, changes: &SettingChanges) -> Result<(), MetaError>;

    /// Applies all of a batch and its checkpoint, atomically; they survive a loss of power when this
    /// returns.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`]: nothing was applied. [`MetaError::NoSpace`]: apply the same batch
    /// again when there may be space; it counts once, whatever became of it the first time. Other errors
    /// leave open whether the batch was applied; opening the store again tells by its checkpoint.
    fn apply(&self, batch: &Batch) -> Result<(), MetaError>;

    /// Looks after the room for rows on the file system that they are on, and says how much there is. Call it
    /// from time to time. `None` if the store is on none of its own.
    fn tend(&self) -> Option<FolderRoom> {
        None
    }

    /// What a database says of itself. `None` if there is none, or it cannot be asked now.
    fn figures(&self) -> Option<StoreFigures> {
        None
    }

    /// Makes a copy of all rows, as they are at one moment, in the folder `dir`, which must not be there. The copy
    /// shares files with the store where it can: neither ever changes one.
    ///
    /// # Errors
    /// [`MetaError::Invalid`] if the store is in no folder, [`MetaError::NoSpace`] and [`MetaError::Io`].
    fn copy_to(&self, dir: &Path) -> Result<(), MetaError> {
        Err(MetaError::Invalid(format!(
            "{}: this store is in no folder, and cannot be copied to one",
            dir.display()
        )))
    }

    /// Bytes of stable storage that the rows take, about: what a look told that may be a second old.
    fn size_bytes(&self) -> u64;
}
