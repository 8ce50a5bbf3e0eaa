//! The database itself: its options, how it is opened, and what its errors mean.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, DBRecoveryMode,
    DEFAULT_COLUMN_FAMILY_NAME, Env, ErrorKind, LogLevel, MergeOperands, Options, ReadOptions,
    WriteOptions,
};
use uuid::Uuid;

use super::StoreFigures;
use super::rows::{self, KEY_CHECKPOINT, KEY_FORMAT, KEY_TOTALS, VERSION_PARENTS};
use crate::ballast::Ballast;
use crate::codec::CodecError;
use crate::error::{MetaError, MetaErrorKind};
use crate::types::{Checkpoint, Totals};

/// Bounds of the store's memory and files.
#[derive(Clone, Copy, Debug)]
pub struct RocksOptions {
    /// Memory for cached blocks, indexes and filters.
    pub cache_bytes: usize,
    /// Memory of one write buffer; up to three exist, and as much again if the store has index entries.
    pub write_buffer_bytes: usize,
    /// Table files kept open at a time.
    pub open_files_max: u16,
    /// Background threads for flushes and compactions.
    pub background_jobs: u8,
    /// Table files that are collected before they are merged into the first sorted level.
    pub unsorted_files: u16,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            write_buffer_bytes: 32 << 20,
            open_files_max: 512,
            background_jobs: 2,
            unsorted_files: UNSORTED_FILES,
        }
    }
}

/// A write buffer while the file system is full: its log is preallocated, and its table written as a whole.
const WRITE_BUFFER_BYTES_SHORT: usize = 4 << 20;
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
const UNSORTED_FILES: u16 = 8;
/// So many table files above that number writes are slowed down, and at so many they stop: what RocksDB does by default above 8.
const UNSORTED_FILES_SLOW: i32 = 12;
const UNSORTED_FILES_STOP: i32 = 28;
/// Share of a write buffer that tells which keys are not in it: most blocks of a batch are new.
const BUFFER_FILTER_SHARE: f64 = 0.05;
/// Name of the family of index entries; stores have it under this one.
pub(super) const INDEX_FAMILY: &str = "hints";
/// Index entries that are looked up have neighbours that nobody looks for: small blocks.
const INDEX_BLOCK_BYTES: usize = 4 << 10;
/// Name of what merges pages, which RocksDB keeps.
const MERGE_NAME: &str = "onefold.pages";

const REMEDY: &str = "nothing was changed: check the drive, then `onefold pool repair` makes a new store of what is \
                      left, or restore a backup of the pool (`onefold pool backup` makes one)";

/// The database, and what it says of itself.
pub(super) struct Opened {
    pub(super) db: DB,
    pub(super) checkpoint: Checkpoint,
    pub(super) totals: Totals,
}

/// What an opened database is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads and writes.
    Full,
    /// Reads only. Nothing in the folder is changed or made, and no space is needed.
    ReadOnly,
}

/// Opens the database of `pool` in `dir`.
pub(super) fn open(
    dir: &Path,
    pool: Uuid,
    options: &RocksOptions,
    env: Option<&Env>,
    access: Access,
) -> Result<Opened, MetaError> {
    let is_there = |path: &Path| {
        path.try_exists()
            .map_err(|error| MetaError::io(path, "look for it", error))
    };
    if !is_there(dir)? {
        return Err(MetaError::missing(dir, REMEDY));
    }
    let current = dir.join("CURRENT");
    if !is_there(&current)? {
        return Err(MetaError::missing(current, REMEDY));
    }
    let mut families = families(options);
    let [(_, database), _] = &mut families;
    if let Some(env) = env {
        database.set_env(env);
    }
    let database = database.clone();
    let opened = match access {
        Access::Full => {
            keep_private(dir);
            DB::open_cf_with_opts(&database, dir, families)
        }
        // Only a store that was made before there were index entries lacks a family, and opening for reading makes
        // none.
        Access::ReadOnly => DB::list_cf(&database, dir).and_then(|names| {
            let mut families = families.to_vec();
            families.retain(|(name, _)| names.iter().any(|known| known == name));
            DB::open_cf_with_opts_for_read_only(&database, dir, families, false)
        }),
    };
    let db = opened.map_err(|error| classify(dir, "open the metadata store", error))?;
    let read = |key: &[u8], what: &str| {
        db.get(key)
            .map_err(|error| classify(dir, "read the metadata store", error))?
            .ok_or_else(|| MetaError::corrupt(dir, format!("the {what} row is missing"), REMEDY))
    };
    let damaged =
        |what: &str, error| MetaError::corrupt(dir, format!("the {what} row {error}"), REMEDY);
    let format = read(KEY_FORMAT, "format")?;
    match rows::parse_format(&format).map_err(|error| damaged("format", error))? {
        (version, Some(found)) if found == pool => {
            let now = rows::format(pool, rows::has_parents(version));
            if now != format && access == Access::Full {
                let mut synced = WriteOptions::default();
                synced.set_sync(true);
                db.put_opt(KEY_FORMAT, now, &synced)
                    .map_err(|error| classify(dir, "write to the metadata store", error))?;
            }
        }
        (_, Some(found)) => {
            return Err(MetaError::WrongPool {
                path: dir.to_path_buf(),
                found,
                expected: pool,
                remedy: "put the metadata of this pool back in its place".to_owned(),
            });
        }
        (found, None) => return Err(wrong_version(dir, found)),
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

/// RocksDB makes its files readable for everybody, and settings hold secrets: the folder keeps others out.
/// Best effort; the pool's folder does the same.
pub(super) fn keep_private(dir: &Path) {
    let is_open = |folder: std::fs::Metadata| folder.permissions().mode() & 0o077 != 0;
    if std::fs::metadata(dir).is_ok_and(is_open) {
        let _ = std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700));
    }
}

/// The rows are of a version that this program does not know.
pub(super) fn wrong_version(dir: &Path, found: u32) -> MetaError {
    MetaError::WrongVersion {
        path: dir.to_path_buf(),
        found: u64::from(found),
        supported: u64::from(VERSION_PARENTS),
    }
}

/// The families and their options: rows, whose options are the database's too, and index entries. A store that was
/// made before there were index entries gets the family when it is opened.
pub(super) fn families(options: &RocksOptions) -> [(&'static str, Options); 2] {
    let cache = Cache::new_lru_cache(options.cache_bytes);
    let mut rows = database_options(options, &cache);
    rows.set_merge_operator(
        MERGE_NAME,
        |key: &[u8], row: Option<&[u8]>, changes: &MergeOperands| {
            rows::merge(key, row, changes.iter(), true)
        },
        |key: &[u8], row: Option<&[u8]>, changes: &MergeOperands| {
            rows::merge(key, row, changes.iter(), false)
        },
    );
    let mut index = database_options(options, &cache);
    let mut table = table_options(&cache);
    // Most look-ups find nothing, and there are more index entries than the cache has room for filters: they come
    // in pieces.
    table.set_block_size(INDEX_BLOCK_BYTES);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(INDEX_BLOCK_BYTES);
    index.set_block_based_table_factory(&table);
    // Fingerprints are random.
    index.set_compression_type(DBCompressionType::None);
    [(DEFAULT_COLUMN_FAMILY_NAME, rows), (INDEX_FAMILY, index)]
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
    let unsorted_files = i32::from(options.unsorted_files.max(1));
    out.set_level_zero_file_num_compaction_trigger(unsorted_files);
    out.set_level_zero_slowdown_writes_trigger(unsorted_files + UNSORTED_FILES_SLOW);
    out.set_level_zero_stop_writes_trigger(unsorted_files + UNSORTED_FILES_STOP);
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

/// For rows that nobody is likely to ask for again soon: they do not drive others out of the cache.
pub(super) fn scanning(readahead_bytes: usize) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_readahead_size(readahead_bytes);
    options.fill_cache(false);
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
    if text.contains("Permission denied") {
        return MetaError::NoPermission {
            path: dir.to_path_buf(),
            action: action.to_owned(),
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

/// Opens the database for writing. On a full file system the ballast makes room for that; small buffers then
/// need little of it.
pub(super) fn open_full(
    dir: &Path,
    pool: Uuid,
    options: &RocksOptions,
    env: Option<&Env>,
    ballast: Option<&mut Ballast>,
) -> Result<Opened, MetaError> {
    let frugal = RocksOptions {
        write_buffer_bytes: options.write_buffer_bytes.min(WRITE_BUFFER_BYTES_SHORT),
        ..*options
    };
    let is_short = ballast.as_ref().is_some_and(|ballast| ballast.is_short());
    let options = if is_short { &frugal } else { options };
    let opened = open(dir, pool, options, env, Access::Full);
    let is_full = matches!(&opened, Err(error) if error.kind() == MetaErrorKind::NoSpace);
    if is_full && ballast.is_some_and(Ballast::give_up) {
        return open(dir, pool, &frugal, env, Access::Full);
    }
    opened
}

/// What the database says of itself.
pub(super) fn figures(db: &DB) -> StoreFigures {
    let one = |name: &str| db.property_int_value(name).ok().flatten().unwrap_or(0);
    let index = db.cf_handle(INDEX_FAMILY);
    let both = |name: &str| {
        let of_index = index.and_then(|index| db.property_int_value_cf(index, name).ok());
        one(name) + of_index.flatten().unwrap_or(0)
    };
    StoreFigures {
        write_buffer_bytes: both("rocksdb.cur-size-all-mem-tables"),
        cache_bytes: one("rocksdb.block-cache-usage"),
        table_reader_bytes: both("rocksdb.estimate-table-readers-mem"),
        file_bytes: both("rocksdb.live-sst-files-size"),
        unsorted_files: both("rocksdb.num-files-at-level0"),
        pending_compaction_bytes: both("rocksdb.estimate-pending-compaction-bytes"),
        running_compactions: one("rocksdb.num-running-compactions"),
        running_flushes: one("rocksdb.num-running-flushes"),
        is_stopped: one("rocksdb.is-write-stopped") > 0,
        background_errors: one("rocksdb.background-errors"),
    }
}

/// Allocated, not apparent, bytes of a folder's files: RocksDB preallocates its log.
pub(super) fn allocated_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(files) = std::fs::read_dir(dir) else {
        return 0;
    };
    files
        .flatten()
        .filter_map(|file| file.metadata().ok())
        .map(|file| file.blocks() * 512)
        .sum()
}
