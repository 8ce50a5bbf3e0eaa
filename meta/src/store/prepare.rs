//! From a batch to what RocksDB writes: one row or one change for each page that the batch touches.
//!
//! Blocks need what is stored, to prove the batch and to turn its differences into counts: their pages are
//! looked up, many at a time, so it is known what remains. A batch says of its mappings what they were; a page of
//! theirs is looked up only if the batch takes away without adding, which may leave nothing. So a page is
//! deleted in the batch that takes its last entry, and no row is ever empty.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use rocksdb::{ColumnFamily, DB, DBPinnableSlice, DEFAULT_COLUMN_FAMILY_NAME, WriteBatch};
use uuid::Uuid;

use super::database::{INDEX_FAMILY, classify, corrupt};
use super::page::{self, Page};
use super::rows::{self, KEY_CHECKPOINT, KEY_FORMAT, KEY_TOTALS};
use crate::batch::{
    Batch, BlockChange, IndexEntryChange, MapChange, resolve_block, resolve_volume,
};
use crate::changes::{Change, ChangesOfPage};
use crate::codec::CodecError;
use crate::error::MetaError;
use crate::runs::Number;
use crate::types::{BlockRow, Fingerprint, MapId, Mapping, Pba, Totals};

/// Pages looked up at a time.
const LOOKUP_PAGES: usize = 512;

/// Turns a batch into rows.
pub(super) struct Preparation<'a> {
    /// For errors.
    pub(super) dir: &'a Path,
    pub(super) db: &'a DB,
    pub(super) pool: Uuid,
    pub(super) batch: &'a Batch,
    /// Follows the batch.
    pub(super) totals: &'a mut Totals,
    pub(super) index_entries: IndexEntryRows,
}

/// What becomes of index entries.
#[derive(Default)]
pub(super) struct IndexEntryRows {
    old: Vec<Fingerprint>,
    new: Vec<(Fingerprint, Pba)>,
}

impl IndexEntryRows {
    fn add(&mut self, pba: Pba, change: IndexEntryChange) {
        self.old.extend(change.old);
        self.new.extend(change.new.map(|new| (new, pba)));
    }
}

impl<'a> Preparation<'a> {
    /// What is to be written.
    ///
    /// # Errors
    /// [`MetaError::Inconsistent`], and what reading the store gives.
    pub(super) fn run(mut self) -> Result<WriteBatch, MetaError> {
        let mut out = WriteBatch::default();
        self.blocks(&mut out)?;
        let index_entries = std::mem::take(&mut self.index_entries);
        self.write_index_entries(index_entries, &mut out)?;
        self.volumes(&mut out)?;
        self.settings(&mut out);
        self.mappings(&mut out)?;
        self.maps(&mut out);
        if let Some(anew) = &self.batch.totals {
            *self.totals = anew.clone();
        }
        out.put(KEY_TOTALS, rows::totals(self.totals));
        out.put(KEY_CHECKPOINT, rows::checkpoint(self.batch.checkpoint));
        Ok(out)
    }

    fn blocks(&mut self, out: &mut WriteBatch) -> Result<(), MetaError> {
        let (mut row, mut change) = (Page::new(), Page::new());
        let mut changes = Gathered::default();
        for pages in together(self.batch.blocks.pages()) {
            let keys: Vec<_> = pages
                .iter()
                .map(|page| rows::block_key(page.first))
                .collect();
            let stored = self.stored(&keys)?;
            for ((number, key), value) in keys.iter().enumerate().zip(&stored) {
                row.read_row(value.as_deref())
                    .map_err(|error| self.corrupt("block", error))?;
                change.clear();
                let changes = changes.of_page(&pages, number);
                self.block_page(key, changes, &row, &mut change, out)?;
            }
        }
        Ok(())
    }

    /// Blocks of one page, whose row is `row`. `operand` is empty.
    fn block_page(
        &mut self,
        key: &[u8],
        changes: &[(Pba, BlockChange)],
        row: &Page<BlockRow>,
        operand: &mut Page<BlockRow>,
        out: &mut WriteBatch,
    ) -> Result<(), MetaError> {
        let mut present = row.present();
        for (pba, change) in changes {
            let position = page::position(pba.0);
            let before = row.get(position);
            let after = resolve_block(*pba, before, change)?;
            self.index_entries
                .add(*pba, IndexEntryChange::new(before, after, change));
            present = present & !(1 << position) | u64::from(after.is_some()) << position;
            if before != after {
                operand.put(position, after);
            }
        }
        let (Some((pba, _)), false) = (changes.first(), operand.is_empty()) else {
            return Ok(());
        };
        let (new, gone) = (present & !row.present(), row.present() & !present);
        let (new, gone) = (new.count_ones().into(), gone.count_ones().into());
        if !self.totals.change_blocks(*pba, new, gone) && self.batch.totals.is_none() {
            return Err(too_few("blocks"));
        }
        match present {
            0 => out.delete(key),
            _ if row.is_empty() => out.put(key, operand.change()),
            _ => out.merge(key, operand.change()),
        }
        Ok(())
    }

    /// Deletes the index entries of blocks that go, then writes new ones.
    fn write_index_entries(
        &self,
        entries: IndexEntryRows,
        out: &mut WriteBatch,
    ) -> Result<(), MetaError> {
        if entries.old.is_empty() && entries.new.is_empty() {
            return Ok(());
        }
        let family = index_family(self.db)?;
        for old in &entries.old {
            out.delete_cf(family, old.0);
        }
        let left = write_index_entries(self.dir, self.db, entries.new, out)?;
        for (fingerprint, pba) in left {
            let before = block(self.dir, self.db, pba)?;
            let after = self.batch.block_after(pba, before)?;
            clear_index_entry(pba, fingerprint, after, out);
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

    /// Comes after the mappings: what is left of a map that goes are holes.
    fn maps(&self, out: &mut WriteBatch) {
        for (id, info) in &self.batch.maps {
            match info {
                Some(info) => {
                    out.put(KEY_FORMAT, rows::format(self.pool, true));
                    out.put(rows::ancestry_key(*id), rows::ancestry(info));
                }
                None => {
                    let (first, end) = rows::map_keys(*id);
                    out.delete_range(first, end);
                    out.delete(rows::ancestry_key(*id));
                }
            }
        }
    }

    fn settings(&self, out: &mut WriteBatch) {
        rows::put_settings(out, &self.batch.settings);
    }

    fn mappings(&mut self, out: &mut WriteBatch) -> Result<(), MetaError> {
        let mut change = Page::new();
        let mut changes = Gathered::default();
        for pages in together(self.batch.map.pages()) {
            // A page that was all mapped and is all given back needs no look as well.
            let is_unclear = |page: &&ChangesOfPage<'_, (MapId, u64), MapChange>| {
                (page.len() as u64) < page::ENTRIES && page.iter().all(|(_, c)| c.new.is_none())
            };
            let unclear = pages.iter().filter(is_unclear);
            let unclear: Vec<_> = unclear.map(map_key).collect();
            let stored = self.stored(&unclear)?;
            let mut stored = unclear.iter().zip(stored).peekable();
            for (number, page) in pages.iter().enumerate() {
                let key = map_key(page);
                let stored = stored.next_if(|(unclear, _)| **unclear == key);
                let stored = stored.map(|(_, value)| value);
                change.clear();
                let changes = changes.of_page(&pages, number);
                self.map_page(&key, changes, stored, &mut change, out)?;
            }
        }
        Ok(())
    }

    /// Mappings of one page, and what is stored of it if that matters. `operand` is empty.
    fn map_page(
        &mut self,
        key: &[u8],
        changes: &[((MapId, u64), MapChange)],
        stored: Option<Option<DBPinnableSlice<'_>>>,
        operand: &mut Page<Mapping>,
        out: &mut WriteBatch,
    ) -> Result<(), MetaError> {
        let (mut added, mut gone) = (0u64, 0u64);
        let (mut mapped, mut unmapped) = (0, 0);
        for ((_, sub_block), change) in changes {
            let (was, is_mapped) = change.is_mapped();
            mapped += u64::from(is_mapped);
            unmapped += u64::from(was);
            let is = change.new.is_some();
            let position = page::position(*sub_block);
            added |= u64::from(is) << position;
            gone |= u64::from(!is) << position;
            operand.put(position, change.new);
        }
        let map = changes.first().map_or(0, |((map, _), _)| *map);
        if !self.totals.change_mappings(map, mapped, unmapped) && self.batch.totals.is_none() {
            return Err(too_few("mappings"));
        }
        let remaining = match &stored {
            Some(value) => {
                let mut row = Page::<Mapping>::new();
                row.read_row(value.as_deref())
                    .map_err(|error| self.corrupt("mapping", error))?;
                row.present() & !gone
            }
            None => !gone,
        };
        match (added, remaining) {
            (0, 0) => out.delete(key),
            // Nothing that was there before shows through.
            (u64::MAX, _) => out.put(key, operand.change()),
            _ => out.merge(key, operand.change()),
        }
        Ok(())
    }

    /// What is stored under keys that rise.
    fn stored<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<DBPinnableSlice<'a>>>, MetaError> {
        look_up(self.dir, self.db, DEFAULT_COLUMN_FAMILY_NAME, keys)
    }

    fn corrupt(&self, what: &str, error: CodecError) -> MetaError {
        corrupt(self.dir, what, error)
    }
}

/// What is stored in a family under keys that rise.
pub(super) fn look_up<'a, K: AsRef<[u8]>>(
    dir: &Path,
    db: &'a DB,
    family: &str,
    keys: &[K],
) -> Result<Vec<Option<DBPinnableSlice<'a>>>, MetaError> {
    let read = |error| classify(dir, "read the metadata store", error);
    let values = db.batched_multi_get_cf(handle(db, family)?, keys, true);
    values
        .into_iter()
        .map(|value| value.map_err(read))
        .collect()
}

/// Pages, as many at a time as are looked up together.
fn together<T>(mut pages: impl Iterator<Item = T>) -> impl Iterator<Item = Vec<T>> {
    std::iter::from_fn(move || {
        let some: Vec<_> = pages.by_ref().take(LOOKUP_PAGES).collect();
        (!some.is_empty()).then_some(some)
    })
}

/// Changes of some pages, one after the other. Entries of records lie in the order of time: they are fetched for
/// several pages at once, so that the processor waits for many at a time.
struct Gathered<K, V> {
    changes: Vec<(K, V)>,
    /// Where each page that is fetched begins and ends in it.
    pages: VecDeque<Range<usize>>,
}

/// Changes that are fetched at once, at least: they stay in the processor's cache.
const GATHERED: usize = 1024;

impl<K, V> Default for Gathered<K, V> {
    fn default() -> Self {
        Self {
            changes: Vec::new(),
            pages: VecDeque::new(),
        }
    }
}

impl<K: Number, V: Change> Gathered<K, V> {
    /// The changes of the page `pages[number]`. Pages are asked for in order.
    fn of_page(&mut self, pages: &[ChangesOfPage<'_, K, V>], number: usize) -> &[(K, V)] {
        if self.pages.is_empty() {
            self.changes.clear();
            for page in &pages[number..] {
                let start = self.changes.len();
                if start >= GATHERED {
                    break;
                }
                page.append_to(&mut self.changes);
                self.pages.push_back(start..self.changes.len());
            }
        }
        match self.pages.pop_front() {
            Some(page) => &self.changes[page],
            None => &[],
        }
    }
}

/// Where index entries are.
pub(super) fn index_family(db: &DB) -> Result<&ColumnFamily, MetaError> {
    handle(db, INDEX_FAMILY)
}

fn handle<'a>(db: &'a DB, family: &str) -> Result<&'a ColumnFamily, MetaError> {
    db.cf_handle(family)
        .ok_or_else(|| MetaError::Invalid(format!("the metadata store has no family {family}")))
}

/// The changes of block rows and index entries that let index entries lead to these blocks, where their rows say the same.
pub(super) fn put_index_entries(
    dir: &Path,
    db: &DB,
    blocks: &[(Pba, Fingerprint)],
) -> Result<WriteBatch, MetaError> {
    let mut out = WriteBatch::default();
    let mut blocks = blocks.to_vec();
    blocks.sort_unstable();
    let mut new = Vec::with_capacity(blocks.len());
    let pages = blocks.chunk_by(|(a, _), (b, _)| a.page(page::ENTRIES) == b.page(page::ENTRIES));
    let pages: Vec<_> = pages.collect();
    for pages in pages.chunks(LOOKUP_PAGES) {
        let keys = pages.iter().map(|page| rows::block_key(page[0].0));
        let keys: Vec<_> = keys.collect();
        let stored = look_up(dir, db, DEFAULT_COLUMN_FAMILY_NAME, &keys)?;
        for ((blocks, key), stored) in pages.iter().zip(&keys).zip(&stored) {
            let Some(stored) = stored else { continue };
            let row = Page::<BlockRow>::of_row(stored);
            let row = row.map_err(|error| corrupt(dir, "block", error))?;
            let mut operand = Page::new();
            for (pba, fingerprint) in *blocks {
                let position = page::position(pba.0);
                let block = row.get(position);
                let is_wanted =
                    |block: &BlockRow| block.fingerprint == *fingerprint && !block.has_index_entry;
                let Some(block) = block.filter(is_wanted) else {
                    continue;
                };
                new.push((*fingerprint, *pba));
                let has_index_entry = true;
                let block = Some(BlockRow {
                    has_index_entry,
                    ..block
                });
                operand.put(position, block);
            }
            if !operand.is_empty() {
                out.merge(key, operand.change());
            }
        }
    }
    for (fingerprint, pba) in write_index_entries(dir, db, new, &mut out)? {
        let row = block(dir, db, pba)?;
        clear_index_entry(pba, fingerprint, row, &mut out);
    }
    Ok(out)
}

/// Writes index entries; returns which others led to a block until now, or would have.
fn write_index_entries(
    dir: &Path,
    db: &DB,
    mut new: Vec<(Fingerprint, Pba)>,
    out: &mut WriteBatch,
) -> Result<Vec<(Fingerprint, Pba)>, MetaError> {
    let family = index_family(db)?;
    let mut left = Vec::new();
    new.sort_unstable();
    new.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            left.push(std::mem::replace(kept, *next));
        }
        is_same
    });
    for new in new.chunks(LOOKUP_PAGES) {
        let keys: Vec<_> = new.iter().map(|(fingerprint, _)| fingerprint.0).collect();
        let stored = look_up(dir, db, INDEX_FAMILY, &keys)?;
        for ((fingerprint, pba), stored) in new.iter().zip(stored) {
            let stored = stored
                .map(|stored| rows::parse_index_entry(&stored))
                .transpose();
            let stored = stored.map_err(|error| corrupt(dir, "index entry", error))?;
            let other = stored.filter(|stored| stored != pba);
            left.extend(other.map(|other| (*fingerprint, other)));
            if stored != Some(*pba) {
                out.put_cf(family, fingerprint.0, rows::index_entry(*pba));
            }
        }
    }
    Ok(left)
}

/// The index entry for a content does not lead to this block any more, whose row is this.
fn clear_index_entry(
    pba: Pba,
    fingerprint: Fingerprint,
    row: Option<BlockRow>,
    out: &mut WriteBatch,
) {
    if let Some(row) = row
        && row.fingerprint == fingerprint
    {
        let has_index_entry = false;
        let mut operand = Page::new();
        let row = Some(BlockRow {
            has_index_entry,
            ..row
        });
        operand.put(page::position(pba.0), row);
        out.merge(rows::block_key(pba), operand.change());
    }
}

/// The stored row of a block.
fn block(dir: &Path, db: &DB, pba: Pba) -> Result<Option<BlockRow>, MetaError> {
    let keys = [rows::block_key(pba)];
    let stored = look_up(dir, db, DEFAULT_COLUMN_FAMILY_NAME, &keys)?;
    let Some(Some(stored)) = stored.first() else {
        return Ok(None);
    };
    let row = Page::<BlockRow>::of_row(stored).map_err(|error| corrupt(dir, "block", error))?;
    Ok(row.get(page::position(pba.0)))
}

fn map_key(page: &ChangesOfPage<'_, (MapId, u64), MapChange>) -> [u8; 13] {
    let (map, sub_block) = page.first;
    rows::map_key(map, sub_block)
}

fn too_few(what: &str) -> MetaError {
    MetaError::Inconsistent(format!("more {what} go than the totals say"))
}
