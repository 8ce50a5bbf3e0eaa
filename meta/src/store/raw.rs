//! All rows of a store as they are stored, without their meaning: out of a folder, and into a new one; and what ties a store to
//! the copies of it on drives.
//!
//! Index entries are left out: nothing is lost without them.

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File};
use std::num::NonZero;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

use rocksdb::{DB, IngestExternalFileOptions, Options, SstFileWriter};
use uuid::Uuid;

use super::Store;
use super::database::{Access, RocksOptions, classify, families, keep_private, open, scanning};
use super::{page, rows};
use crate::error::MetaError;
use crate::setting::{ON_DRIVES_KEY, SettingChanges};

/// Bytes read ahead.
const READAHEAD_BYTES: usize = 2 << 20;
/// The folder in a store's where its first tables are made. Nothing of it is left when the store is whole.
const NEW_TABLES_DIR: &str = "new-tables";
/// Threads that make tables at a time, each with a write buffer of its own.
const THREADS_MAX: usize = 8;

/// Shows every row of the store of `pool` in the folder `dir`, which nobody writes to, by their keys.
///
/// # Errors
/// As of [`RocksStore::open_read_only`](super::RocksStore::open_read_only), and those of `row`.
pub(crate) fn dump<E: From<MetaError>>(
    dir: &Path,
    pool: Uuid,
    mut row: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let db = open(dir, pool, &RocksOptions::default(), None, Access::ReadOnly)?.db;
    let mut rows = db.raw_iterator_opt(scanning(READAHEAD_BYTES));
    rows.seek_to_first();
    while let Some((key, value)) = rows.item() {
        row(key, value)?;
        rows.next();
    }
    let ended = rows.status();
    Ok(ended.map_err(|error| classify(dir, "read the metadata store", error))?)
}

/// The value of a row if there are no index entries.
pub(crate) fn without_index_entries<'a>(key: &[u8], value: &'a [u8]) -> Cow<'a, [u8]> {
    match key.first() == Some(&rows::PREFIX_BLOCK) {
        true => page::without_index_entries(value),
        false => Cow::Borrowed(value),
    }
}

/// What drives hold of the store is older than it from here on.
///
/// # Errors
/// The store cannot be read or written.
pub(crate) fn leave_drives_behind(store: &dyn Store) -> Result<(), MetaError> {
    match store.settings()?.contains_key(ON_DRIVES_KEY) {
        true => store.put_settings(&SettingChanges::from([(ON_DRIVES_KEY.to_owned(), None)])),
        false => Ok(()),
    }
}

/// Takes a row: its key and its value.
pub(crate) type Put<'a, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 'a;

/// Rows that follow each other: shows them, by their keys, to what it is given.
pub(crate) type Run<'a, E> = Box<dyn FnOnce(&mut Put<'_, E>) -> Result<(), E> + 'a>;

/// Makes a store in the folder `dir`, which must not be there, of runs of rows; it is durable when this returns, but for the entry
/// of `dir` in its parent. Several threads ask for the next run; `None` is the end. No key of a run is among those of another.
///
/// # Errors
/// [`MetaError::NoSpace`], [`MetaError::Io`] and others, and those of the runs.
pub(crate) fn restore<'a, E: From<MetaError> + Send>(
    dir: &Path,
    next_run: &(dyn Fn() -> Result<Option<Run<'a, E>>, E> + Sync),
) -> Result<(), E> {
    let failed = |error| classify(dir, "make the metadata store", error);
    let tables_dir = dir.join(NEW_TABLES_DIR);
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&tables_dir);
    made.map_err(|error| MetaError::io(&tables_dir, "create the folder", error))?;
    let families = families(&RocksOptions::default());
    let mut options = families[0].1.clone();
    let tables = Tables {
        dir: tables_dir,
        options: options.clone(),
        made: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    tables.make_all(next_run)?;
    options.create_if_missing(true);
    options.set_error_if_exists(true);
    let db = DB::open_cf_with_opts(&options, dir, families).map_err(failed)?;
    let mut ingest = IngestExternalFileOptions::default();
    ingest.set_move_files(true);
    let made = (0..tables.made.into_inner()).map(|number| table_path(&tables.dir, number));
    db.ingest_external_file_opts(&ingest, made.collect())
        .map_err(failed)?;
    drop(db);
    let left = fs::remove_dir_all(&tables.dir);
    left.map_err(|error| MetaError::io(&tables.dir, "remove the folder", error))?;
    keep_private(dir);
    let synced = File::open(dir).and_then(|folder| folder.sync_all());
    Ok(synced.map_err(|error| MetaError::io(dir, "sync the folder", error))?)
}

/// RocksDB's tables of rows, made on several threads.
struct Tables {
    dir: PathBuf,
    options: Options,
    made: AtomicUsize,
    /// A thread failed: the others stop.
    is_over: AtomicBool,
}

fn table_path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("{number}.sst"))
}

impl Tables {
    /// Makes a table of each run.
    fn make_all<'a, E: From<MetaError> + Send>(
        &self,
        next_run: &(dyn Fn() -> Result<Option<Run<'a, E>>, E> + Sync),
    ) -> Result<(), E> {
        let threads = std::thread::available_parallelism();
        let threads = threads.map_or(1, NonZero::get).min(THREADS_MAX);
        std::thread::scope(|scope| {
            // Where the system has no more threads, these do all of it.
            let others = (1..threads).map_while(|_| {
                let other = Builder::new().name("metadata table".to_owned());
                other.spawn_scoped(scope, || self.make_some(next_run)).ok()
            });
            let others: Vec<_> = others.collect();
            let mut made = self.make_some(next_run);
            for other in others {
                let other = other.join();
                made = made.and(other.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            made
        })
    }

    fn make_some<'a, E: From<MetaError>>(
        &self,
        next_run: &(dyn Fn() -> Result<Option<Run<'a, E>>, E> + Sync),
    ) -> Result<(), E> {
        while !self.is_over.load(Ordering::Relaxed) {
            let made = match next_run() {
                Ok(None) => return Ok(()),
                Ok(Some(run)) => self.make(run),
                Err(error) => Err(error),
            };
            if made.is_err() {
                self.is_over.store(true, Ordering::Relaxed);
                return made;
            }
        }
        Ok(())
    }

    fn make<E: From<MetaError>>(&self, run: Run<'_, E>) -> Result<(), E> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let path = table_path(&self.dir, number);
        let failed = |error| classify(&path, "make a table of the metadata store", error);
        let mut table = SstFileWriter::create(&self.options);
        table.open(&path).map_err(failed)?;
        run(&mut |key, value| Ok(table.put(key, value).map_err(failed)?))?;
        // Syncs it.
        Ok(table.finish().map_err(failed)?)
    }
}
