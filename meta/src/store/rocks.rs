//! The store on disk: RocksDB in one folder.
//!
//! * A batch is one atomic write whose log is synced before it returns.
//! * Memory is bounded by [`RocksOptions`].
//! * Damage is reported with the folder's name, never repaired by leaving something out. A log whose
//!   end is torn (the batch that was being written when power was lost) is cut there; should a drive lose
//!   more of the log than that, the journal tells
//!   ([`JournalError::StoreBehind`](crate::JournalError::StoreBehind)).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rocksdb::checkpoint::Checkpoint as DbCheckpoint;
use rocksdb::{DB, Env, IteratorMode, ReadOptions, WriteBatch, WriteOptions};
use uuid::Uuid;

use super::database::{
    Access, INDEX_FAMILY, Opened, RocksOptions, allocated_bytes, classify, corrupt, families,
    figures, keep_private, open, open_full, scanning,
};
use super::map_rows::{add_parts, read_rows};
use super::prepare::{IndexEntryRows, Preparation, index_family, look_up, put_index_entries};
use super::rows::{
    self, KEY_CHECKPOINT, KEY_FORMAT, KEY_TOTALS, PREFIX_ANCESTRY, PREFIX_BLOCK, PREFIX_MAP,
    PREFIX_SEGMENT, PREFIX_SETTING, PREFIX_VOLUME,
};
use super::{LoadVisitor, MapRows, RowKind, Store, StoreFigures};
use crate::ballast::{Ballast, FolderRoom};
use crate::batch::{Batch, check_progress};
use crate::codec::CodecError;
use crate::error::{MetaError, MetaErrorKind};
use crate::segment::SegmentRow;
use crate::setting::SettingChanges;
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo,
};

/// How long what a look at the folder told is told again. The look asks the file system for each file: 60 us, a quarter of the
/// time that a request for a pool's status takes.
const SIZE_AGE_MAX: Duration = Duration::from_secs(1);
/// Table files that are collected before they are merged in a store that is being made: whoever opens it has the time for that.
const UNSORTED_FILES_FILLING: u16 = 24;
/// Bytes read ahead while all rows are loaded.
const READAHEAD_BYTES: usize = 2 << 20;

/// The store of a pool folder. Dropping it closes RocksDB; nothing needs to be flushed.
pub struct RocksStore {
    dir: PathBuf,
    pool: Uuid,
    options: RocksOptions,
    env: Option<Env>,
    purpose: Purpose,
    /// `None` if it could not be opened again. Whoever uses it holds it for reading, so that reads and a batch
    /// run side by side.
    db: RwLock<Option<DB>>,
    /// Locked before `db`.
    state: Mutex<State>,
    /// When it was last looked how large the folder is, and what was seen.
    size_bytes: Mutex<Option<(Instant, u64)>>,
}

/// What a store was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Reads and writes that survive a loss of power.
    Service,
    /// Reads alone.
    Reading,
    /// Writes that survive when all of them are done, or that are worth nothing.
    Filling,
}

struct State {
    checkpoint: Checkpoint,
    totals: Totals,
    /// Where the last batch led whose write failed: the log may hold it all the same.
    in_doubt: Option<Checkpoint>,
    /// False after a write that failed, because the database refuses all writes then: it stays for reads, and
    /// the next batch opens it again.
    takes_writes: bool,
    ballast: Option<Ballast>,
}

impl State {
    fn is_short(&self) -> bool {
        self.ballast.as_ref().is_some_and(Ballast::is_short)
    }

    /// Whether a batch that found no space may find some now.
    fn make_room(&mut self) -> bool {
        self.ballast.as_mut().is_some_and(Ballast::give_up)
    }
}

/// Takes the key and the value of a row.
type OnRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), MetaError> + 'a;

impl RocksStore {
    /// Makes an empty store for `pool` in the folder `dir`, which must not hold one, and closes it.
    /// Everything in it is durable when this returns, but for the entry of `dir` in its parent.
    pub fn create(dir: &Path, pool: Uuid) -> Result<(), MetaError> {
        let families = families(&RocksOptions::default());
        let mut options = families[0].1.clone();
        options.create_if_missing(true);
        options.set_error_if_exists(true);
        let db = DB::open_cf_with_opts(&options, dir, families)
            .map_err(|error| classify(dir, "create the metadata store", error))?;
        let mut batch = WriteBatch::default();
        batch.put(KEY_FORMAT, rows::format(pool, false));
        batch.put(KEY_CHECKPOINT, rows::checkpoint(Checkpoint::EMPTY));
        batch.put(KEY_TOTALS, rows::totals(&Totals::default()));
        db.write_opt(batch, &synced())
            .and_then(|()| db.flush())
            .map_err(|error| classify(dir, "create the metadata store", error))?;
        drop(db);
        keep_private(dir);
        std::fs::File::open(dir)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| MetaError::io(dir, "sync the folder", error))
    }

    /// Opens the store of `pool` in the folder `dir`.
    ///
    /// # Errors
    /// [`MetaError::Missing`], [`MetaError::Corrupt`], [`MetaError::WrongVersion`],
    /// [`MetaError::WrongPool`], [`MetaError::NoSpace`] or [`MetaError::Io`], each with the folder's
    /// name. A store that is not there is never made anew.
    pub fn open(dir: &Path, pool: Uuid, options: RocksOptions) -> Result<Self, MetaError> {
        Self::open_in(dir, pool, options, None, None)
    }

    /// As [`Self::open`], with a file `ballast` that holds space for the store on a file system that others
    /// fill: it is made when there is room for it, and given up when there is no other.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_with_ballast(
        dir: &Path,
        pool: Uuid,
        options: RocksOptions,
        ballast: &Path,
    ) -> Result<Self, MetaError> {
        let ballast = Ballast::new(ballast.to_path_buf());
        let store = Self::open_in(dir, pool, options, None, Some(ballast))?;
        store.tend();
        Ok(store)
    }

    /// Opens the store of `pool` in the folder `dir` for reading alone: nothing in the folder is changed or
    /// made, so that it may be on a file system that is full or takes no writes. Nobody may write to it
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_read_only(
        dir: &Path,
        pool: Uuid,
        options: RocksOptions,
    ) -> Result<Self, MetaError> {
        let opened = open(dir, pool, &options, None, Access::ReadOnly)?;
        let mut store = Self::new(dir, pool, options, None, None, opened);
        store.purpose = Purpose::Reading;
        Ok(store)
    }

    /// Opens a store that is being made. What is written survives from [`Self::finish_filling`] on. After a write that failed it
    /// takes no others: the folder is to be thrown away.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub(crate) fn open_to_fill(dir: &Path, pool: Uuid) -> Result<Self, MetaError> {
        let options = RocksOptions {
            unsorted_files: UNSORTED_FILES_FILLING,
            ..RocksOptions::default()
        };
        let mut store = Self::open(dir, pool, options)?;
        store.purpose = Purpose::Filling;
        Ok(store)
    }

    /// Makes what was written to a store that is being made survive a loss of power.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub(crate) fn finish_filling(&self) -> Result<(), MetaError> {
        let mut state = self.lock();
        self.ensure_writable(&mut state)?;
        self.with_open_db(|db| {
            let flushed = db.flush().and_then(|()| match db.cf_handle(INDEX_FAMILY) {
                Some(family) => db.flush_cf(family),
                None => Ok(()),
            });
            flushed.map_err(|error| classify(&self.dir, "write the metadata store", error))
        })
    }

    /// As [`Self::open`], with all file work done by `env`: for tests of what a loss of power leaves.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_on(
        dir: &Path,
        pool: Uuid,
        options: RocksOptions,
        env: Env,
    ) -> Result<Self, MetaError> {
        Self::open_in(dir, pool, options, Some(env), None)
    }

    fn open_in(
        dir: &Path,
        pool: Uuid,
        options: RocksOptions,
        env: Option<Env>,
        mut ballast: Option<Ballast>,
    ) -> Result<Self, MetaError> {
        let opened = open_full(dir, pool, &options, env.as_ref(), ballast.as_mut())?;
        Ok(Self::new(dir, pool, options, env, ballast, opened))
    }

    fn new(
        dir: &Path,
        pool: Uuid,
        options: RocksOptions,
        env: Option<Env>,
        ballast: Option<Ballast>,
        opened: Opened,
    ) -> Self {
        Self {
            dir: dir.to_path_buf(),
            pool,
            options,
            env,
            purpose: Purpose::Service,
            db: RwLock::new(Some(opened.db)),
            state: Mutex::new(State {
                checkpoint: opened.checkpoint,
                totals: opened.totals,
                in_doubt: None,
                takes_writes: true,
                ballast,
            }),
            size_bytes: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the database, which is opened again first if it could not be before.
    fn with_db<T>(&self, f: impl FnOnce(&DB) -> Result<T, MetaError>) -> Result<T, MetaError> {
        if let Some(db) = &*self.db.read().unwrap_or_else(PoisonError::into_inner) {
            return f(db);
        }
        self.ensure_open(&mut self.lock())?;
        self.with_open_db(f)
    }

    fn with_open_db<T>(&self, f: impl FnOnce(&DB) -> Result<T, MetaError>) -> Result<T, MetaError> {
        match &*self.db.read().unwrap_or_else(PoisonError::into_inner) {
            Some(db) => f(db),
            None => Err(MetaError::Invalid(
                "the metadata store is closed".to_owned(),
            )),
        }
    }

    fn ensure_open(&self, state: &mut State) -> Result<(), MetaError> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        if db.is_some() {
            return Ok(());
        }
        drop(db);
        match self.open_again(state) {
            // For reads.
            Err(_) if self.with_open_db(|_| Ok(())).is_ok() => Ok(()),
            opened => opened,
        }
    }

    fn ensure_writable(&self, state: &mut State) -> Result<(), MetaError> {
        if self.purpose == Purpose::Reading {
            return Err(MetaError::Invalid(
                "the metadata store was opened for reading alone".to_owned(),
            ));
        }
        if state.takes_writes {
            return self.ensure_open(state);
        }
        // It would be without what is in no log.
        if self.purpose == Purpose::Filling {
            return Err(MetaError::Invalid(
                "a write to the metadata store that is being made failed before".to_owned(),
            ));
        }
        // What serves reads is not closed for an attempt that must fail.
        if state.ballast.as_ref().is_some_and(Ballast::is_hopeless) {
            return Err(MetaError::NoSpace {
                path: self.dir.clone(),
                detail: "while trying to open the metadata store for writing".to_owned(),
            });
        }
        self.open_again(state)
    }

    /// Opens the database again, for reading alone if it cannot be opened for writing: that needs space.
    fn open_again(&self, state: &mut State) -> Result<(), MetaError> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        // It cannot be open twice.
        *db = None;
        let (env, ballast) = (self.env.as_ref(), state.ballast.as_mut());
        let (opened, result) = match open_full(&self.dir, self.pool, &self.options, env, ballast) {
            Ok(opened) => (opened, Ok(())),
            Err(error) => {
                let access = Access::ReadOnly;
                match open(&self.dir, self.pool, &self.options, env, access) {
                    Ok(opened) => (opened, Err(error)),
                    Err(_) => return Err(error),
                }
            }
        };
        *db = Some(opened.db);
        state.checkpoint = opened.checkpoint;
        state.totals = opened.totals;
        state.takes_writes = result.is_ok();
        result
    }

    /// One attempt to apply a batch.
    fn try_to_apply(&self, state: &mut State, batch: &Batch) -> Result<(), MetaError> {
        self.ensure_writable(state)?;
        if state.in_doubt.take() == Some(batch.checkpoint) && state.checkpoint == batch.checkpoint {
            return Ok(());
        }
        check_progress(state.checkpoint, batch)?;
        let mut totals = state.totals.clone();
        let applied = self.with_open_db(|db| {
            let preparation = Preparation {
                dir: &self.dir,
                db,
                pool: self.pool,
                batch,
                totals: &mut totals,
                index_entries: IndexEntryRows::default(),
            };
            let rows = preparation.run()?;
            db.write_opt(rows, &self.write_options()).map_err(|error| {
                state.in_doubt = Some(batch.checkpoint);
                classify(&self.dir, "write to the metadata store", error)
            })
        });
        match &applied {
            Ok(()) => {
                state.checkpoint = batch.checkpoint;
                state.totals = totals;
            }
            Err(MetaError::Inconsistent(_) | MetaError::Invalid(_)) => {}
            Err(_) => state.takes_writes = false,
        }
        applied
    }

    fn write_options(&self) -> WriteOptions {
        let mut options = synced();
        if self.purpose == Purpose::Filling {
            options.set_sync(false);
            options.disable_wal(true);
        }
        options
    }

    fn corrupt(&self, what: &str, error: CodecError) -> MetaError {
        corrupt(&self.dir, what, error)
    }

    /// Shows rows from `first` to `last`, both included, to `row` until that is false. A single one is
    /// looked up.
    fn pages(
        &self,
        db: &DB,
        first: &[u8],
        last: &[u8],
        mut row: impl FnMut(&[u8], &[u8]) -> Result<bool, MetaError>,
    ) -> Result<(), MetaError> {
        if first == last {
            let value = db
                .get_pinned(first)
                .map_err(|error| classify(&self.dir, "read the metadata store", error))?;
            return match value {
                Some(value) => row(first, &value).map(|_| ()),
                None => Ok(()),
            };
        }
        // The least key after the last one.
        let end = [last, &[0]].concat();
        self.scan(db, ReadOptions::default(), first, end, row)
    }

    /// Shows every row with this first key byte to `row`.
    fn each(&self, db: &DB, prefix: u8, row: &mut OnRow<'_>) -> Result<(), MetaError> {
        self.scan(
            db,
            scanning(READAHEAD_BYTES),
            [prefix],
            [prefix + 1],
            |key, value| row(key, value).map(|()| true),
        )
    }

    /// Shows the rows of a range to `row` until that is false.
    fn scan<K: AsRef<[u8]>, E: Into<Vec<u8>>>(
        &self,
        db: &DB,
        mut options: ReadOptions,
        first: K,
        end: E,
        mut row: impl FnMut(&[u8], &[u8]) -> Result<bool, MetaError>,
    ) -> Result<(), MetaError> {
        options.set_iterate_lower_bound(first.as_ref());
        options.set_iterate_upper_bound(end);
        let mut iterator = db.raw_iterator_opt(options);
        iterator.seek(first);
        while let Some((key, value)) = iterator.item() {
            if !row(key, value)? {
                return Ok(());
            }
            iterator.next();
        }
        iterator
            .status()
            .map_err(|error| classify(&self.dir, "read the metadata store", error))
    }
}

impl Store for RocksStore {
    fn load(&self, visitor: &mut dyn LoadVisitor) -> Result<Checkpoint, MetaError> {
        for info in self.volumes()? {
            visitor.volume(info);
        }
        for info in self.maps()? {
            visitor.map_row(info);
        }
        self.with_db(|db| {
            if visitor.wants(RowKind::Block) {
                self.each(db, PREFIX_BLOCK, &mut |key, value| {
                    let blocks = rows::blocks(key, value);
                    for (pba, row) in blocks.map_err(|error| self.corrupt("block", error))? {
                        visitor.block(pba, row);
                    }
                    Ok(())
                })?;
            }
            if visitor.wants(RowKind::Mapping) {
                self.each(db, PREFIX_MAP, &mut |key, value| {
                    let row = rows::parse_map_key(key)
                        .and_then(|(map, _)| Ok((map, rows::mappings(key, value)?)));
                    let (map, mappings) = row.map_err(|error| self.corrupt("mapping", error))?;
                    for (sub_block, mapping) in mappings {
                        visitor.map(map, sub_block, mapping);
                    }
                    Ok(())
                })?;
            }
            // One that was made before there were index entries, opened for reading alone, has none.
            let family = index_family(db)
                .ok()
                .filter(|_| visitor.wants(RowKind::IndexEntry));
            let entries = family.map(|family| db.iterator_cf(family, IteratorMode::Start));
            for entry in entries.into_iter().flatten() {
                let (key, value) =
                    entry.map_err(|error| classify(&self.dir, "read the metadata store", error))?;
                let entry = rows::parse_index_key(&key)
                    .and_then(|fingerprint| Ok((fingerprint, rows::parse_index_entry(&value)?)));
                let (fingerprint, pba) =
                    entry.map_err(|error| self.corrupt("index entry", error))?;
                visitor.index_entry(fingerprint, pba);
            }
            Ok(())
        })?;
        self.checkpoint()
    }

    fn checkpoint(&self) -> Result<Checkpoint, MetaError> {
        let mut state = self.lock();
        self.ensure_open(&mut state)?;
        Ok(state.checkpoint)
    }

    fn volumes(&self) -> Result<Vec<VolumeInfo>, MetaError> {
        let mut volumes = Vec::new();
        self.with_db(|db| {
            self.each(db, PREFIX_VOLUME, &mut |key, value| {
                let info = rows::parse_volume(key, value)
                    .map_err(|error| self.corrupt("volume", error))?;
                volumes.push(info);
                Ok(())
            })
        })?;
        Ok(volumes)
    }

    fn maps(&self) -> Result<Vec<MapInfo>, MetaError> {
        let mut maps = Vec::new();
        self.with_db(|db| {
            self.each(db, PREFIX_ANCESTRY, &mut |key, value| {
                let info = rows::parse_ancestry(key, value);
                maps.push(info.map_err(|error| self.corrupt("map", error))?);
                Ok(())
            })
        })?;
        Ok(maps)
    }

    fn settings(&self) -> Result<BTreeMap<String, Vec<u8>>, MetaError> {
        let mut settings = BTreeMap::new();
        self.with_db(|db| {
            self.each(db, PREFIX_SETTING, &mut |key, value| {
                let setting = rows::parse_setting(key, value);
                settings.extend([setting.map_err(|error| self.corrupt("setting", error))?]);
                Ok(())
            })
        })?;
        Ok(settings)
    }

    fn totals(&self) -> Result<Totals, MetaError> {
        let mut state = self.lock();
        self.ensure_open(&mut state)?;
        Ok(state.totals.clone())
    }

    fn blocks(
        &self,
        first: Pba,
        end: Pba,
        count_max: usize,
    ) -> Result<Vec<(Pba, BlockRow)>, MetaError> {
        let mut found = Vec::new();
        let Some(last) = last_of(first.0, end.0, count_max) else {
            return Ok(found);
        };
        self.with_db(|db| {
            let row = |key: &[u8], value: &[u8]| {
                let blocks = rows::blocks(key, value);
                let blocks = blocks.map_err(|error| self.corrupt("block", error))?;
                let wanted = blocks.filter(|(pba, _)| (first..end).contains(pba));
                found.extend(wanted.take(count_max - found.len()));
                Ok(found.len() < count_max)
            };
            let (first, last) = (rows::block_key(first), rows::block_key(Pba(last)));
            self.pages(db, &first, &last, row)
        })?;
        Ok(found)
    }

    fn last_block(&self, end: Pba) -> Result<Option<Pba>, MetaError> {
        let Some(last) = last_of(0, end.0, 1) else {
            return Ok(None);
        };
        self.with_db(|db| {
            let mut options = ReadOptions::default();
            options.set_iterate_lower_bound([PREFIX_BLOCK]);
            options.set_iterate_upper_bound([&rows::block_key(Pba(last))[..], &[0]].concat());
            let mut iterator = db.raw_iterator_opt(options);
            iterator.seek_to_last();
            // The last page may hold nothing but what is beyond the end.
            while let Some((key, value)) = iterator.item() {
                let blocks = rows::blocks(key, value);
                let blocks = blocks.map_err(|error| self.corrupt("block", error))?;
                let last = blocks.map(|(pba, _)| pba).filter(|pba| *pba < end).last();
                if last.is_some() {
                    return Ok(last);
                }
                iterator.prev();
            }
            iterator
                .status()
                .map_err(|error| classify(&self.dir, "read the metadata store", error))?;
            Ok(None)
        })
    }

    fn mappings(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, Mapping)>, MetaError> {
        let mut found = Vec::new();
        let Some(last) = last_of(first, end, count_max) else {
            return Ok(found);
        };
        self.with_db(|db| {
            let row = |key: &[u8], value: &[u8]| {
                let mappings = rows::mappings(key, value);
                let mappings = mappings.map_err(|error| self.corrupt("mapping", error))?;
                let wanted = mappings.filter(|(sub_block, _)| (first..end).contains(sub_block));
                found.extend(wanted.take(count_max - found.len()));
                Ok(found.len() < count_max)
            };
            let (first, last) = (rows::map_key(map, first), rows::map_key(map, last));
            self.pages(db, &first, &last, row)
        })?;
        Ok(found)
    }

    fn map_rows(
        &self,
        map: MapId,
        ranges: &[Range<u64>],
        most: (usize, usize),
    ) -> Result<MapRows, MetaError> {
        self.with_db(|db| read_rows(&self.dir, db, map, ranges, most))
    }

    fn mapped_parts(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        sub_blocks: u64,
    ) -> Result<Vec<u64>, MetaError> {
        let mut parts = Vec::new();
        let Some(last) = last_of(first, end, 1) else {
            return Ok(parts);
        };
        self.with_db(|db| {
            let row = |key: &[u8], value: &[u8]| {
                add_parts(&mut parts, (key, value), (first, end), sub_blocks)
                    .map_err(|error| self.corrupt("mapping", error))?;
                Ok(true)
            };
            let (first, last) = (rows::map_key(map, first), rows::map_key(map, last));
            let end = [&last[..], &[0]].concat();
            self.scan(db, ReadOptions::default(), first, end, row)
        })?;
        Ok(parts)
    }

    fn apply(&self, batch: &Batch) -> Result<(), MetaError> {
        let mut state = self.lock();
        let applied = self.try_to_apply(&mut state, batch);
        match applied {
            Err(error) if error.kind() == MetaErrorKind::NoSpace && state.make_room() => {
                self.try_to_apply(&mut state, batch)
            }
            applied => applied,
        }
    }

    fn index_entries(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Pba>>, MetaError> {
        let mut order: Vec<usize> = (0..fingerprints.len()).collect();
        order.sort_unstable_by_key(|at| fingerprints[*at]);
        let keys: Vec<_> = order.iter().map(|at| fingerprints[*at].0).collect();
        let mut found = vec![None; fingerprints.len()];
        self.with_db(|db| {
            let values = look_up(&self.dir, db, INDEX_FAMILY, &keys)?;
            for (at, value) in order.iter().zip(values) {
                let pba = value.map(|it| rows::parse_index_entry(&it)).transpose();
                found[*at] = pba.map_err(|error| self.corrupt("index entry", error))?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn has_index_entries(&self) -> Result<bool, MetaError> {
        self.with_db(|db| {
            let mut entries = db.iterator_cf(index_family(db)?, IteratorMode::Start);
            let first = entries.next().transpose();
            let first =
                first.map_err(|error| classify(&self.dir, "read the metadata store", error))?;
            Ok(first.is_some())
        })
    }

    fn put_index_entries(&self, blocks: &[(Pba, Fingerprint)]) -> Result<(), MetaError> {
        let mut state = self.lock();
        if state.is_short() {
            // Index entries are dispensable; what room there is belongs to batches.
            return Err(MetaError::NoSpace {
                path: self.dir.clone(),
                detail: "no index entries are written meanwhile".to_owned(),
            });
        }
        self.ensure_writable(&mut state)?;
        let written = self.with_open_db(|db| {
            let rows = put_index_entries(&self.dir, db, blocks)?;
            db.write_opt(rows, &self.write_options())
                .map_err(|error| classify(&self.dir, "write to the metadata store", error))
        });
        state.takes_writes = written.is_ok();
        written
    }

    fn segments(&self) -> Result<Vec<(Pba, SegmentRow)>, MetaError> {
        let mut segments = Vec::new();
        self.with_db(|db| {
            self.each(db, PREFIX_SEGMENT, &mut |key, value| {
                let segment = rows::parse_segment(key, value);
                segments.push(segment.map_err(|error| self.corrupt("segment", error))?);
                Ok(())
            })
        })?;
        Ok(segments)
    }

    fn put_segments(&self, range: Range<Pba>, rows: &[(Pba, SegmentRow)]) -> Result<(), MetaError> {
        let mut state = self.lock();
        self.ensure_writable(&mut state)?;
        let written = self.with_open_db(|db| {
            let mut out = WriteBatch::default();
            let (first, end) = (rows::segment_key(range.start), rows::segment_key(range.end));
            self.scan(db, ReadOptions::default(), first, end, |key, _| {
                out.delete(key);
                Ok(true)
            })?;
            for (first, row) in rows {
                out.put(rows::segment_key(*first), row.encode());
            }
            db.write_opt(out, &self.write_options())
                .map_err(|error| classify(&self.dir, "write to the metadata store", error))
        });
        state.takes_writes = written.is_ok();
        written
    }

    fn put_settings(&self, changes: &SettingChanges) -> Result<(), MetaError> {
        let mut state = self.lock();
        self.ensure_writable(&mut state)?;
        let written = self.with_open_db(|db| {
            let mut out = WriteBatch::default();
            rows::put_settings(&mut out, changes);
            db.write_opt(out, &self.write_options())
                .map_err(|error| classify(&self.dir, "write to the metadata store", error))
        });
        state.takes_writes = written.is_ok();
        written
    }

    fn tend(&self) -> Option<FolderRoom> {
        let mut state = self.lock();
        let was_short = state.is_short();
        let room = state.ballast.as_mut()?.tend();
        if was_short && !state.is_short() {
            // The next batch opens it as it is opened where there is room.
            state.takes_writes = false;
        }
        room
    }

    fn figures(&self) -> Option<StoreFigures> {
        // One that is closed is not opened for this.
        self.with_open_db(|db| Ok(figures(db))).ok()
    }

    fn copy_to(&self, dir: &Path) -> Result<(), MetaError> {
        self.with_db(|db| {
            let copied = DbCheckpoint::new(db).and_then(|now| now.create_checkpoint(dir));
            copied.map_err(|error| classify(dir, "copy the metadata store", error))
        })?;
        keep_private(dir);
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        let mut seen = self
            .size_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *seen {
            Some((at, bytes)) if at.elapsed() < SIZE_AGE_MAX => bytes,
            _ => {
                let bytes = allocated_bytes(&self.dir);
                *seen = Some((Instant::now(), bytes));
                bytes
            }
        }
    }
}

/// The last number of a range that is not empty and of which something is wanted.
fn last_of(first: u64, end: u64, count_max: usize) -> Option<u64> {
    (first < end && count_max > 0).then(|| end - 1)
}

fn synced() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    // The keys of a batch are in order.
    options.set_memtable_insert_hint_per_batch(true);
    options
}
