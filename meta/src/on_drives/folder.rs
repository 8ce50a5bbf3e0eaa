//! Where the metadata is that drives have copies of: the pool's folder, or, in simulations, memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use uuid::Uuid;

use super::base::BaseError;
use super::layout::LOG_BLOCKS_MIN;
use super::members::lock;
use crate::error::MetaError;
use crate::journal::{FileMedia, JournalMedia, MemoryMedia};
use crate::store::{MemoryStore, RocksOptions, RocksStore, Store, raw};

/// The folder of a copy of the store while a base is made of it.
const COPY_DIR: &str = "metadata.copy";

/// Shows a row: its key and its value.
pub(super) type ShowRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), BaseError> + 'a;

/// Store and journal of a pool, and what a base is made of.
pub(super) trait Folder: Send + Sync {
    fn store(&self) -> &dyn Store;

    fn journal(&self) -> &dyn JournalMedia;

    /// Keeps all rows of this moment, beside the store, which goes on.
    fn keep_rows(&self) -> Result<(), MetaError>;

    /// Shows every row that is kept, by their keys; index entries are left out.
    fn show_rows(&self, row: &mut ShowRow<'_>) -> Result<(), BaseError>;

    /// Nothing is kept any more.
    fn drop_rows(&self) -> Result<(), MetaError>;

    /// As [`Store::copy_to`]. The copy knows nothing of drives.
    fn copy_to(&self, dir: &Path) -> Result<(), MetaError>;

    /// The least blocks that a log has.
    fn log_blocks_min(&self) -> u64;

    /// Does some work, beside the caller's if it can.
    fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// The folder of a pool in service.
pub(super) struct PoolFolder {
    pub(super) pool: Uuid,
    pub(super) path: PathBuf,
    pub(super) store: Arc<RocksStore>,
    pub(super) journal: Arc<FileMedia>,
}

impl PoolFolder {
    fn copy(&self) -> PathBuf {
        self.path.join(COPY_DIR)
    }
}

impl Folder for PoolFolder {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn journal(&self) -> &dyn JournalMedia {
        &*self.journal
    }

    fn keep_rows(&self) -> Result<(), MetaError> {
        self.store.copy_to(&self.copy())
    }

    fn show_rows(&self, row: &mut ShowRow<'_>) -> Result<(), BaseError> {
        raw::dump(&self.copy(), self.pool, row)
    }

    fn drop_rows(&self) -> Result<(), MetaError> {
        let copy = self.copy();
        match fs::remove_dir_all(&copy) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(MetaError::io(
                &copy,
                "remove a copy of the metadata store",
                error,
            )),
            _ => Ok(()),
        }
    }

    fn copy_to(&self, dir: &Path) -> Result<(), MetaError> {
        self.store.copy_to(dir)?;
        let copy = RocksStore::open(dir, self.pool, RocksOptions::default())?;
        raw::leave_drives_behind(&copy)
    }

    fn log_blocks_min(&self) -> u64 {
        LOG_BLOCKS_MIN
    }

    fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let named = std::thread::Builder::new().name("metadata base".to_owned());
        named.spawn(work).map(drop)
    }
}

/// Store and journal in memory. All that is done is done at once, so that a simulation can be repeated.
pub(super) struct MemoryFolder {
    pub(super) pool: Uuid,
    pub(super) store: Arc<MemoryStore>,
    pub(super) journal: Arc<MemoryMedia>,
    pub(super) log_blocks_min: u64,
    pub(super) kept: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Folder for MemoryFolder {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn journal(&self) -> &dyn JournalMedia {
        &*self.journal
    }

    fn keep_rows(&self) -> Result<(), MetaError> {
        *lock(&self.kept) = self.store.rows(self.pool);
        Ok(())
    }

    fn show_rows(&self, row: &mut ShowRow<'_>) -> Result<(), BaseError> {
        let kept = lock(&self.kept);
        kept.iter().try_for_each(|(key, value)| row(key, value))
    }

    fn drop_rows(&self) -> Result<(), MetaError> {
        lock(&self.kept).clear();
        Ok(())
    }

    fn copy_to(&self, dir: &Path) -> Result<(), MetaError> {
        self.store.copy_to(dir)
    }

    fn log_blocks_min(&self) -> u64 {
        self.log_blocks_min
    }

    fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        work();
        Ok(())
    }
}
