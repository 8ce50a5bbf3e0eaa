//! All rows of a store as they are stored, without their meaning: out of a folder, and into a new one; and what ties a store to
//! the copies of it on drives.
//!
//! Hints are left out: nothing is lost without them.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::Path;

use rocksdb::{DB, WriteBatch, WriteOptions};
use uuid::Uuid;

use super::Store;
use super::database::{Access, RocksOptions, classify, families, keep_private, open, scanning};
use super::{page, rows};
use crate::error::MetaError;
use crate::setting::{ON_DRIVES_KEY, SettingChanges};

/// Bytes read ahead.
const READAHEAD_BYTES: usize = 2 << 20;
/// Bytes of rows written at a time.
const WRITE_BYTES: usize = 4 << 20;

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

/// The value of a row if there are no hints.
pub(crate) fn without_hints<'a>(key: &[u8], value: &'a [u8]) -> Cow<'a, [u8]> {
    match key.first() == Some(&rows::PREFIX_BLOCK) {
        true => page::without_hints(value),
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

/// Takes a row.
pub(crate) type Put<'a> = dyn FnMut(&[u8], &[u8]) -> io::Result<()> + 'a;

/// Makes a store in the folder `dir`, which must not hold one, of the rows that `rows` puts; it is durable when this returns, but
/// for the entry of `dir` in its parent.
///
/// # Errors
/// [`MetaError::NoSpace`] and [`MetaError::Io`], also those of `rows`.
pub(crate) fn restore(
    dir: &Path,
    rows: impl FnOnce(&mut Put<'_>) -> io::Result<()>,
) -> Result<(), MetaError> {
    let failed = |error| classify(dir, "make the metadata store", error);
    let families = families(&RocksOptions::default());
    let mut options = families[0].1.clone();
    options.create_if_missing(true);
    options.set_error_if_exists(true);
    let db = DB::open_cf_with_opts(&options, dir, families).map_err(failed)?;
    // All of it is flushed at the end, and worth nothing before.
    let mut unlogged = WriteOptions::default();
    unlogged.disable_wal(true);
    let mut batch = WriteBatch::default();
    rows(&mut |key, value| {
        batch.put(key, value);
        if batch.size_in_bytes() < WRITE_BYTES {
            return Ok(());
        }
        db.write_opt(std::mem::take(&mut batch), &unlogged)
            .map_err(io::Error::other)
    })
    .map_err(|error| MetaError::io(dir, "make the metadata store", error))?;
    let written = db.write_opt(batch, &unlogged);
    written.and_then(|()| db.flush()).map_err(failed)?;
    drop(db);
    keep_private(dir);
    File::open(dir)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| MetaError::io(dir, "sync the folder", error))
}
