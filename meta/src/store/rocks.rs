//! The store on disk: RocksDB in one folder.
//!
//! * A batch is one atomic write whose log is synced before it returns.
//! * Memory is bounded by [`RocksOptions`].
//! * Damage is reported with the folder's name, never repaired by leaving something out. A log whose
//!   end is torn (the batch that was being written when power was lost) is cut there; should a drive lose
//!   more of the log than that, the journal tells
//!   ([`JournalError::StoreBehind`](crate::JournalError::StoreBehind)).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, DBRecoveryMode,
    DEFAULT_COLUMN_FAMILY_NAME, Env, ErrorKind, IteratorMode, LogLevel, MergeOperands, Options,
    ReadOptions, WriteBatch, WriteOptions,
};
use uuid::Uuid;

use super::prepare::{HintRows, Preparation, hint_family, look_up, put_hints};
use super::rows::{
    self, KEY_CHECKPOINT, KEY_FORMAT, KEY_TOTALS, PREFIX_BLOCK, PREFIX_MAP, PREFIX_SETTING,
    PREFIX_VOLUME, VERSION,
};
use super::{LoadVisitor, Store, page};
use crate::batch::{Batch, check_progress};
use crate::codec::CodecError;
use crate::error::MetaError;
use crate::types::{BlockRow, Checkpoint, Fingerprint, Mapping, Pba, Totals, VolumeInfo};

/// Bounds of the store's memory and files.
#[derive(Clone, Copy, Debug)]
pub struct RocksOptions {
    /// Memory for cached blocks, indexes and filters.
    pub cache_bytes: usize,
    /// Memory of one write buffer; up to three exist, and as much again if the store has hints.
    pub write_buffer_bytes: usize,
    /// Table files kept open at a time.
    pub open_files_max: u16,
    /// Background threads for flushes and compactions.
    pub background_jobs: u8,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            write_buffer_bytes: 32 << 20,
            open_files_max: 512,
            background_jobs: 2,
        }
    }
}

/// Log of RocksDB's own messages, in bytes a file.
const INFO_LOG_BYTES: usize = 1 << 20;
/// Files of that log.
const INFO_LOG_FILES: usize = 4;
/// Write-ahead log after which RocksDB flushes by itself, in bytes.
const WAL_BYTES_MAX: u64 = 256 << 20;
/// Bytes of the first sorted level, and table files that are collected before they are merged into it.
/// Rows come sorted but from all over the key space, so each merge rewrites most of that level: rare
/// merges into a large level cost 3.2 us of processor time a sub-block where the database's defaults
/// (256 MiB, 4 files) cost 5.3 (1.3 million random writes).
const LEVEL_BASE_BYTES: u64 = 512 << 20;
const UNSORTED_FILES: i32 = 8;
/// Share of a write buffer that tells which keys are not in it: most blocks of a batch are new.
const BUFFER_FILTER_SHARE: f64 = 0.05;
/// Name of the family of hints.
pub(super) const HINTS: &str = "hints";
/// Hints that are looked up have neighbours that nobody looks for: small blocks.
const HINT_BLOCK_BYTES: usize = 4 << 10;
/// Name of what merges pages, which RocksDB keeps.
const MERGE_NAME: &str = "onefold.pages";
/// Bytes read ahead while all rows are loaded.
const READAHEAD_BYTES: usize = 2 << 20;

const REMEDY: &str = "nothing was changed: check the drive and restore the pool folder from a copy \
                      (journal and metadata from the same moment)";

/// The store of a pool folder. Dropping it closes RocksDB; nothing needs to be flushed.
pub struct RocksStore {
    dir: PathBuf,
    pool: Uuid,
    options: RocksOptions,
    env: Option<Env>,
    /// `None` after a batch that failed, because the database refuses all writes then: the next call
    /// opens it again. Whoever uses it holds it for reading, so that reads and a batch run side by side.
    db: RwLock<Option<DB>>,
    /// Locked before `db`.
    state: Mutex<State>,
}

struct State {
    checkpoint: Checkpoint,
    totals: Totals,
    /// Where the last batch led whose write failed: the log may hold it all the same.
    in_doubt: Option<Checkpoint>,
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
        batch.put(KEY_FORMAT, rows::format(pool));
        batch.put(KEY_CHECKPOINT, rows::checkpoint(Checkpoint::EMPTY));
        batch.put(KEY_TOTALS, rows::totals(&Totals::default()));
        db.write_opt(batch, &synced())
            .and_then(|()| db.flush())
            .map_err(|error| classify(dir, "create the metadata store", error))?;
        drop(db);
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
        Self::open_in(dir, pool, options, None)
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
        Self::open_in(dir, pool, options, Some(env))
    }

    fn open_in(
        dir: &Path,
        pool: Uuid,
        options: RocksOptions,
        env: Option<Env>,
    ) -> Result<Self, MetaError> {
        let Opened {
            db,
            checkpoint,
            totals,
        } = open(dir, pool, &options, env.as_ref())?;
        Ok(Self {
            dir: dir.to_path_buf(),
            pool,
            options,
            env,
            db: RwLock::new(Some(db)),
            state: Mutex::new(State {
                checkpoint,
                totals,
                in_doubt: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the database, which is opened again first if a batch broke it.
    fn with_db<T>(&self, f: impl FnOnce(&DB) -> Result<T, MetaError>) -> Result<T, MetaError> {
        if let Some(db) = &*self.db.read().unwrap_or_else(PoisonError::into_inner) {
            return f(db);
        }
        let mut state = self.lock();
        self.open_again(&mut state)?;
        drop(state);
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        match &*db {
            Some(db) => f(db),
            None => Err(MetaError::Invalid(
                "the metadata store is closed".to_owned(),
            )),
        }
    }

    fn open_again(&self, state: &mut State) -> Result<(), MetaError> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        if db.is_none() {
            let opened = open(&self.dir, self.pool, &self.options, self.env.as_ref())?;
            *db = Some(opened.db);
            state.checkpoint = opened.checkpoint;
            state.totals = opened.totals;
        }
        Ok(())
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
        let mut options = ReadOptions::default();
        options.set_readahead_size(READAHEAD_BYTES);
        options.fill_cache(false);
        self.scan(db, options, [prefix], [prefix + 1], |key, value| {
            row(key, value).map(|()| true)
        })
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
        self.with_db(|db| {
            self.each(db, PREFIX_BLOCK, &mut |key, value| {
                let blocks = rows::blocks(key, value);
                for (pba, row) in blocks.map_err(|error| self.corrupt("block", error))? {
                    visitor.block(pba, row);
                }
                Ok(())
            })?;
            self.each(db, PREFIX_MAP, &mut |key, value| {
                let row = rows::parse_map_key(key)
                    .and_then(|(volume, _)| Ok((volume, rows::mappings(key, value)?)));
                let (volume, mappings) = row.map_err(|error| self.corrupt("mapping", error))?;
                for (sub_block, mapping) in mappings {
                    visitor.map(volume, sub_block, mapping);
                }
                Ok(())
            })?;
            for hint in db.iterator_cf(hint_family(db)?, IteratorMode::Start) {
                let (key, value) =
                    hint.map_err(|error| classify(&self.dir, "read the metadata store", error))?;
                let hint = rows::parse_hint_key(&key)
                    .and_then(|fingerprint| Ok((fingerprint, rows::parse_hint(&value)?)));
                let (fingerprint, pba) = hint.map_err(|error| self.corrupt("hint", error))?;
                visitor.hint(fingerprint, pba);
            }
            Ok(())
        })?;
        self.checkpoint()
    }

    fn checkpoint(&self) -> Result<Checkpoint, MetaError> {
        let mut state = self.lock();
        self.open_again(&mut state)?;
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
        self.open_again(&mut state)?;
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
        volume: u32,
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
            let (first, last) = (rows::map_key(volume, first), rows::map_key(volume, last));
            self.pages(db, &first, &last, row)
        })?;
        Ok(found)
    }

    fn apply(&self, batch: &Batch) -> Result<(), MetaError> {
        let mut state = self.lock();
        self.open_again(&mut state)?;
        if state.in_doubt.take() == Some(batch.checkpoint) && state.checkpoint == batch.checkpoint {
            return Ok(());
        }
        check_progress(state.checkpoint, batch)?;
        let mut totals = state.totals.clone();
        let applied = self.with_db(|db| {
            let preparation = Preparation {
                dir: &self.dir,
                db,
                batch,
                totals: &mut totals,
                hints: HintRows::default(),
            };
            let rows = preparation.run()?;
            db.write_opt(rows, &synced()).map_err(|error| {
                state.in_doubt = Some(batch.checkpoint);
                classify(&self.dir, "write to the metadata store", error)
            })
        });
        match applied {
            Ok(()) => {
                state.checkpoint = batch.checkpoint;
                state.totals = totals;
                Ok(())
            }
            Err(error) => {
                if !matches!(error, MetaError::Inconsistent(_)) {
                    *self.db.write().unwrap_or_else(PoisonError::into_inner) = None;
                }
                Err(error)
            }
        }
    }

    fn hints(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Pba>>, MetaError> {
        let mut order: Vec<usize> = (0..fingerprints.len()).collect();
        order.sort_unstable_by_key(|at| fingerprints[*at]);
        let keys: Vec<_> = order.iter().map(|at| fingerprints[*at].0).collect();
        let mut found = vec![None; fingerprints.len()];
        self.with_db(|db| {
            let values = look_up(&self.dir, db, HINTS, &keys)?;
            for (at, value) in order.iter().zip(values) {
                let pba = value.map(|value| rows::parse_hint(&value)).transpose();
                found[*at] = pba.map_err(|error| self.corrupt("hint", error))?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn has_hints(&self) -> Result<bool, MetaError> {
        self.with_db(|db| {
            let mut hints = db.iterator_cf(hint_family(db)?, IteratorMode::Start);
            let first = hints.next().transpose();
            let first =
                first.map_err(|error| classify(&self.dir, "read the metadata store", error))?;
            Ok(first.is_some())
        })
    }

    fn put_hints(&self, blocks: &[(Pba, Fingerprint)]) -> Result<(), MetaError> {
        let mut state = self.lock();
        self.open_again(&mut state)?;
        let written = self.with_db(|db| {
            let rows = put_hints(&self.dir, db, blocks)?;
            db.write_opt(rows, &synced())
                .map_err(|error| classify(&self.dir, "write to the metadata store", error))
        });
        if written.is_err() {
            *self.db.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        written
    }

    fn size_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        // Allocated, not apparent, bytes: RocksDB preallocates its log.
        let Ok(files) = std::fs::read_dir(&self.dir) else {
            return 0;
        };
        files
            .flatten()
            .filter_map(|file| file.metadata().ok())
            .map(|file| file.blocks() * 512)
            .sum()
    }
}

/// The database, and what it says of itself.
struct Opened {
    db: DB,
    checkpoint: Checkpoint,
    totals: Totals,
}

fn open(
    dir: &Path,
    pool: Uuid,
    options: &RocksOptions,
    env: Option<&Env>,
) -> Result<Opened, MetaError> {
    let exists = dir
        .try_exists()
        .map_err(|error| MetaError::io(dir, "look for the folder", error))?;
    if !exists {
        return Err(MetaError::missing(dir, REMEDY));
    }
    let current = dir.join("CURRENT");
    if !current.exists() {
        return Err(MetaError::missing(current, REMEDY));
    }
    let mut families = families(options);
    let [(_, database), _] = &mut families;
    if let Some(env) = env {
        database.set_env(env);
    }
    let database = database.clone();
    let db = DB::open_cf_with_opts(&database, dir, families)
        .map_err(|error| classify(dir, "open the metadata store", error))?;
    let read = |key: &[u8], what: &str| {
        db.get(key)
            .map_err(|error| classify(dir, "read the metadata store", error))?
            .ok_or_else(|| MetaError::corrupt(dir, format!("the {what} row is missing"), REMEDY))
    };
    let damaged =
        |what: &str, error| MetaError::corrupt(dir, format!("the {what} row {error}"), REMEDY);
    let format = read(KEY_FORMAT, "format")?;
    match rows::parse_format(&format).map_err(|error| damaged("format", error))? {
        (_, Some(found)) if found == pool => {}
        (_, Some(found)) => {
            return Err(MetaError::WrongPool {
                path: dir.to_path_buf(),
                found,
                expected: pool,
                remedy: "put the metadata of this pool back in its place".to_owned(),
            });
        }
        (found, None) => {
            return Err(MetaError::WrongVersion {
                path: dir.to_path_buf(),
                found: u64::from(found),
                supported: u64::from(VERSION),
            });
        }
    }
    let checkpoint = rows::parse_checkpoint(&read(KEY_CHECKPOINT, "checkpoint")?)
        .map_err(|error| damaged("checkpoint", error))?;
    let totals = rows::parse_totals(&read(KEY_TOTALS, "totals")?)
        .map_err(|error| damaged("totals", error))?;
    Ok(Opened {
        db,
        checkpoint,
        totals,
    })
}

/// The last number of a range that is not empty and of which something is wanted.
fn last_of(first: u64, end: u64, count_max: usize) -> Option<u64> {
    (first < end && count_max > 0).then(|| end - 1)
}

/// Merges the values of a page; `None` if they make no sense.
fn merge(
    key: &[u8],
    row: Option<&[u8]>,
    changes: &MergeOperands,
    is_whole: bool,
) -> Option<Vec<u8>> {
    let content_bytes = rows::content_bytes(*key.first()?)?;
    page::merge(content_bytes, row, changes.iter(), is_whole).ok()
}

/// The families and their options: rows, whose options are the database's too, and hints. A store that was
/// made before there were hints gets the family when it is opened.
fn families(options: &RocksOptions) -> [(&'static str, Options); 2] {
    let cache = Cache::new_lru_cache(options.cache_bytes);
    let mut rows = database_options(options, &cache);
    rows.set_merge_operator(
        MERGE_NAME,
        |key: &[u8], row: Option<&[u8]>, changes: &MergeOperands| merge(key, row, changes, true),
        |key: &[u8], row: Option<&[u8]>, changes: &MergeOperands| merge(key, row, changes, false),
    );
    let mut hints = database_options(options, &cache);
    let mut table = table_options(&cache);
    // Most look-ups find nothing, and there are more hints than the cache has room for filters: they come
    // in pieces.
    table.set_block_size(HINT_BLOCK_BYTES);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(HINT_BLOCK_BYTES);
    hints.set_block_based_table_factory(&table);
    // Fingerprints are random.
    hints.set_compression_type(DBCompressionType::None);
    [(DEFAULT_COLUMN_FAMILY_NAME, rows), (HINTS, hints)]
}

fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    // Indexes and filters count as cache too: outside of it they grow with the pool.
    table.set_cache_index_and_filter_blocks(true);
    table.set_bloom_filter(10.0, false);
    table.set_block_size(16 << 10);
    table
}

fn database_options(options: &RocksOptions, cache: &Cache) -> Options {
    let mut out = Options::default();
    out.create_if_missing(false);
    out.create_missing_column_families(true);
    out.set_paranoid_checks(true);
    out.set_block_based_table_factory(&table_options(cache));
    out.set_compression_type(DBCompressionType::Lz4);
    out.set_write_buffer_size(options.write_buffer_bytes);
    out.set_max_write_buffer_number(3);
    out.set_memtable_whole_key_filtering(true);
    out.set_memtable_prefix_bloom_ratio(BUFFER_FILTER_SHARE);
    out.set_max_bytes_for_level_base(LEVEL_BASE_BYTES);
    out.set_level_zero_file_num_compaction_trigger(UNSORTED_FILES);
    out.set_max_open_files(i32::from(options.open_files_max.max(16)));
    out.set_max_background_jobs(i32::from(options.background_jobs.max(1)));
    out.set_max_total_wal_size(WAL_BYTES_MAX);
    out.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    out.set_bytes_per_sync(1 << 20);
    out.set_log_level(LogLevel::Warn);
    out.set_max_log_file_size(INFO_LOG_BYTES);
    out.set_keep_log_file_num(INFO_LOG_FILES);
    out
}

fn synced() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    // The keys of a batch are in order.
    options.set_memtable_insert_hint_per_batch(true);
    options
}

pub(super) fn corrupt(dir: &Path, what: &str, error: CodecError) -> MetaError {
    MetaError::corrupt(dir, format!("a {what} row {error}"), REMEDY)
}

/// Turns an error of RocksDB, which says what happened only in its text, into one of ours.
pub(super) fn classify(dir: &Path, action: &str, error: rocksdb::Error) -> MetaError {
    let kind = error.kind();
    let text = error.into_string();
    if text.contains("No space left on device") || text.contains("Disk quota exceeded") {
        return MetaError::NoSpace {
            path: dir.to_path_buf(),
            detail: format!("while trying to {action}"),
        };
    }
    // A file that the database needs and that is not there is damage too.
    let lost = text.contains("No such file or directory") || text.contains("does not exist");
    match kind {
        ErrorKind::Corruption | ErrorKind::InvalidArgument | ErrorKind::NotFound => {
            MetaError::corrupt(dir, format!("cannot {action}: {text}"), REMEDY)
        }
        _ if lost => MetaError::corrupt(dir, format!("cannot {action}: {text}"), REMEDY),
        _ => MetaError::Io {
            path: dir.to_path_buf(),
            action: action.to_owned(),
            source: std::io::Error::other(text),
        },
    }
}
