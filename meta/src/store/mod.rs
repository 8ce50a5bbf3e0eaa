//! The store: rows up to a checkpoint, changed by atomic and durable batches.

mod memory;
mod page;
mod prepare;
mod rocks;
mod row;
mod rows;

pub use memory::{MemoryStore, StoreFault};
pub use rocks::{RocksOptions, RocksStore};
pub use row::{Row, RowError};

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::error::MetaError;
use crate::types::{BlockRow, Checkpoint, Fingerprint, Mapping, Pba, Totals, VolumeInfo};

/// Receives the rows of a store: all volumes by id, then all blocks by address, then all mappings by
/// volume and sub-block, then all hints by fingerprint.
pub trait LoadVisitor {
    /// A volume.
    fn volume(&mut self, volume: VolumeInfo);
    /// A block.
    fn block(&mut self, pba: Pba, row: BlockRow);
    /// A mapping.
    fn map(&mut self, volume: u32, sub_block: u64, mapping: Mapping);
    /// A hint.
    fn hint(&mut self, fingerprint: Fingerprint, pba: Pba) {
        let _ = (fingerprint, pba);
    }
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

    /// The mappings of a volume from sub-block `first` up to, but not including, `end`: the first
    /// `count_max` of them, in order.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn mappings(
        &self,
        volume: u32,
        first: u64,
        end: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, Mapping)>, MetaError>;

    /// Where hints for these contents lead to, in the order of the contents. What a hint says is to be
    /// checked: it leads to one block of several with the same fingerprint, and the block may be gone by
    /// the time when this returns.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn hints(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Pba>>, MetaError>;

    /// Whether there are hints.
    ///
    /// # Errors
    /// As for [`Store::load`].
    fn has_hints(&self) -> Result<bool, MetaError>;

    /// Lets hints lead to those of these blocks that have a row with that fingerprint, until the row goes.
    /// They survive a loss of power when this returns.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and others: none or all were written.
    fn put_hints(&self, blocks: &[(Pba, Fingerprint)]) -> Result<(), MetaError>;

    /// Applies all of a batch and its checkpoint, atomically; they survive a loss of power when this
    /// returns.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`]: nothing was applied. [`MetaError::NoSpace`]: apply the same batch
    /// again when there may be space; it counts once, whatever became of it the first time. Other errors
    /// leave open whether the batch was applied; opening the store again tells by its checkpoint.
    fn apply(&self, batch: &Batch) -> Result<(), MetaError>;

    /// Bytes of stable storage that the rows take, about.
    fn size_bytes(&self) -> u64;
}
