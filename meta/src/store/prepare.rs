//! From a batch to what RocksDB writes: one row or one change for each page that the batch touches.
//!
//! Blocks need what is stored, to prove the batch and to turn its differences into counts: their pages are
//! looked up, many at a time, so it is known what remains. A batch says of its mappings what they were; a page of
//! theirs is looked up only if the batch takes away without adding, which may leave nothing. So a page is
//! deleted in the batch that takes its last entry, and no row is ever empty.

use std::path::Path;

use rocksdb::{DB, DBPinnableSlice, WriteBatch};

use super::page::{self, Content, Row};
use super::rocks::{classify, corrupt};
use super::rows::{self, KEY_CHECKPOINT, KEY_TOTALS};
use crate::batch::{Batch, BlockChange, MapChange, resolve_block, resolve_volume};
use crate::codec::CodecError;
use crate::error::MetaError;
use crate::types::{BlockRow, Mapping, Pba, Totals};

/// Pages looked up at a time.
const LOOKUP_PAGES: usize = 512;

/// Turns a batch into rows.
pub(super) struct Preparation<'a> {
    /// For errors.
    pub(super) dir: &'a Path,
    pub(super) db: &'a DB,
    pub(super) batch: &'a Batch,
    /// Follows the batch.
    pub(super) totals: &'a mut Totals,
}

impl<'a> Preparation<'a> {
    /// What is to be written.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`], and what reading the store gives.
    pub(super) fn run(mut self) -> Result<WriteBatch, MetaError> {
        let mut out = WriteBatch::default();
        self.blocks(&mut out)?;
        self.volumes(&mut out)?;
        self.mappings(&mut out)?;
        if let Some(anew) = &self.batch.totals {
            *self.totals = anew.clone();
        }
        out.put(KEY_TOTALS, rows::totals(self.totals));
        out.put(KEY_CHECKPOINT, rows::checkpoint(self.batch.checkpoint));
        Ok(out)
    }

    fn blocks(&mut self, out: &mut WriteBatch) -> Result<(), MetaError> {
        let changes = self.batch.blocks.as_slice();
        let pages: Vec<_> = changes
            .chunk_by(|(a, _), (b, _)| a.0 / page::ENTRIES == b.0 / page::ENTRIES)
            .collect();
        for pages in pages.chunks(LOOKUP_PAGES) {
            let keys: Vec<_> = pages
                .iter()
                .map(|page| rows::block_key(page[0].0))
                .collect();
            let stored = self.stored(&keys)?;
            for ((changes, key), value) in pages.iter().zip(&keys).zip(&stored) {
                self.block_page(key, changes, value.as_deref(), out)?;
            }
        }
        Ok(())
    }

    /// Blocks of one page.
    fn block_page(
        &mut self,
        key: &[u8],
        changes: &[(Pba, BlockChange)],
        stored: Option<&[u8]>,
        out: &mut WriteBatch,
    ) -> Result<(), MetaError> {
        let row = self.row::<BlockRow>("block", stored)?;
        let mut operand = Vec::with_capacity(changes.len() * (1 + BlockRow::BYTES));
        let mut present = row.as_ref().map_or(0, Row::present);
        for (pba, change) in changes {
            let position = page::position(pba.0);
            let before = row.as_ref().and_then(|row| row.get(position));
            let after = resolve_block(*pba, before, change)?;
            let (was, is) = (before.is_some(), after.is_some());
            if !self.totals.change_block(*pba, was, is) && self.batch.totals.is_none() {
                return Err(too_few("blocks"));
            }
            present = present & !(1 << position) | u64::from(is) << position;
            if before != after {
                page::put(&mut operand, position, after);
            }
        }
        if operand.is_empty() {
            return Ok(());
        }
        match (present, stored) {
            (0, _) => out.delete(key),
            (_, None) => out.put(key, operand),
            _ => out.merge(key, operand),
        }
        Ok(())
    }

    fn volumes(&mut self, out: &mut WriteBatch) -> Result<(), MetaError> {
        for (id, change) in &self.batch.volumes {
            let key = rows::volume_key(*id);
            let stored = self
                .db
                .get(key)
                .map_err(|error| classify(self.dir, "read the metadata store", error))?
                .map(|value| rows::parse_volume(&key, &value))
                .transpose()
                .map_err(|error| self.corrupt("volume", error))?;
            match resolve_volume(*id, stored, change)? {
                Some(info) => out.put(key, rows::volume(&info)),
                None => out.delete(key),
            }
        }
        Ok(())
    }

    fn mappings(&mut self, out: &mut WriteBatch) -> Result<(), MetaError> {
        let changes = self.batch.map.as_slice();
        let page_of = |(volume, sub_block): (u32, u64)| (volume, sub_block / page::ENTRIES);
        let pages: Vec<_> = changes
            .chunk_by(|(a, _), (b, _)| page_of(*a) == page_of(*b))
            .collect();
        for pages in pages.chunks(LOOKUP_PAGES) {
            // A page that was all mapped and is all given back needs no look as well.
            let is_unclear = |page: &&&[((u32, u64), MapChange)]| {
                (page.len() as u64) < page::ENTRIES && page.iter().all(|(_, c)| c.new.is_none())
            };
            let unclear = pages.iter().filter(is_unclear);
            let unclear: Vec<_> = unclear.map(|page| map_key(page)).collect();
            let stored = self.stored(&unclear)?;
            let mut stored = unclear.iter().zip(stored).peekable();
            for changes in pages {
                let key = map_key(changes);
                let stored = stored.next_if(|(unclear, _)| **unclear == key);
                let stored = stored.map(|(_, value)| value);
                self.map_page(&key, changes, stored, out)?;
            }
        }
        Ok(())
    }

    /// Mappings of one page, and what is stored of it if that matters.
    fn map_page(
        &mut self,
        key: &[u8],
        changes: &[((u32, u64), MapChange)],
        stored: Option<Option<DBPinnableSlice<'_>>>,
        out: &mut WriteBatch,
    ) -> Result<(), MetaError> {
        let mut operand = Vec::with_capacity(changes.len() * (1 + Mapping::BYTES));
        let (mut added, mut gone) = (0u64, 0u64);
        for ((volume, sub_block), change) in changes {
            let (was, is) = (change.old.is_some(), change.new.is_some());
            if !self.totals.change_mapping(*volume, was, is) && self.batch.totals.is_none() {
                return Err(too_few("mappings"));
            }
            let position = page::position(*sub_block);
            added |= u64::from(is) << position;
            gone |= u64::from(!is) << position;
            page::put(&mut operand, position, change.new);
        }
        let remaining = match &stored {
            Some(value) => {
                let row = self.row::<Mapping>("mapping", value.as_deref())?;
                row.as_ref().map_or(0, Row::present) & !gone
            }
            None => !gone,
        };
        match (added, remaining) {
            (0, 0) => out.delete(key),
            // Nothing that was there before shows through.
            (u64::MAX, _) => out.put(key, operand),
            _ => out.merge(key, operand),
        }
        Ok(())
    }

    /// What is stored under keys that rise.
    fn stored<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<DBPinnableSlice<'a>>>, MetaError> {
        let read = |error| classify(self.dir, "read the metadata store", error);
        let Some(family) = self.db.cf_handle(rocksdb::DEFAULT_COLUMN_FAMILY_NAME) else {
            return Err(MetaError::Invalid(
                "the metadata store has no rows".to_owned(),
            ));
        };
        let values = self.db.batched_multi_get_cf(family, keys, true);
        values
            .into_iter()
            .map(|value| value.map_err(read))
            .collect()
    }

    fn row<'v, C: Content>(
        &self,
        what: &str,
        value: Option<&'v [u8]>,
    ) -> Result<Option<Row<'v>>, MetaError> {
        let row = value.map(Row::parse::<C>).transpose();
        row.map_err(|error| self.corrupt(what, error))
    }

    fn corrupt(&self, what: &str, error: CodecError) -> MetaError {
        corrupt(self.dir, what, error)
    }
}

fn map_key(changes: &[((u32, u64), MapChange)]) -> [u8; 13] {
    let (volume, sub_block) = changes.first().map_or((0, 0), |(at, _)| *at);
    rows::map_key(volume, sub_block)
}

fn too_few(what: &str) -> MetaError {
    MetaError::Inconsistent(format!("more {what} go than the totals say"))
}
