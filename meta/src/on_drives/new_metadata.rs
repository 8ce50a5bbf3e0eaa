//! What store and journal are made in, of what drives hold: a pool's folder, or memory.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use uuid::Uuid;

use super::area::MetadataArea;
use super::base::Pieces;
use super::change::Change;
use super::members::lock;
use crate::backup::BackupFolder;
use crate::error::MetaError;
use crate::identity::PoolIdentity;
use crate::journal::{FileMedia, JournalMedia, MemoryMedia};
use crate::store::{MemoryStore, RocksStore, Store, raw};

/// Bytes of rows that become one table of the store, and a piece more at most.
const TABLE_BYTES: usize = 32 << 20;

/// What is made: a store of rows, which gets the changes of the log, and a journal.
pub(super) trait NewMetadata {
    type Store: Store;

    /// Makes the store of the base's pieces.
    fn put_rows(&self, pieces: Pieces<'_>) -> Result<(), Failed>;

    fn open_store(&self) -> Result<Arc<Self::Store>, MetaError>;

    /// What was written to it is durable.
    fn close_store(&self, store: Arc<Self::Store>) -> Result<(), MetaError>;

    fn create_journal(&self, bytes: u64) -> Result<Arc<dyn JournalMedia>, MetaError>;
}

pub(super) struct NewFolder<'a> {
    pub(super) pool: Uuid,
    pub(super) folder: &'a BackupFolder,
    /// If there is one already.
    pub(super) journal: Option<Arc<FileMedia>>,
}

impl NewFolder<'_> {
    /// Makes the store of the base's pieces, as long as that is wanted.
    pub(super) fn put_rows_while(
        &self,
        pieces: Pieces<'_>,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Failed> {
        let pieces = Mutex::new(pieces);
        let next_run = || {
            if !is_wanted() {
                return Err(io::Error::from(io::ErrorKind::Interrupted).into());
            }
            let (mut run, mut bytes) = (Vec::new(), 0);
            let mut pieces = lock(&pieces);
            while bytes < TABLE_BYTES
                && let Some(piece) = pieces.read_next()?
            {
                bytes += piece.len();
                run.push(piece);
            }
            let is_over = run.is_empty();
            let show = move |put: &mut raw::Put<'_, Failed>| {
                let mut pieces = run.iter();
                pieces.try_for_each(|piece| {
                    piece.each_row(&mut |key, value| put_row(put, key, value))
                })
            };
            Ok((!is_over).then(|| Box::new(show) as raw::Run<'_, Failed>))
        };
        raw::restore(self.folder.store_dir(), &next_run)
    }
}

impl NewMetadata for NewFolder<'_> {
    type Store = RocksStore;

    fn put_rows(&self, pieces: Pieces<'_>) -> Result<(), Failed> {
        self.put_rows_while(pieces, &|| true)
    }

    fn open_store(&self) -> Result<Arc<RocksStore>, MetaError> {
        let store = RocksStore::open_to_fill(self.folder.store_dir(), self.pool)?;
        Ok(Arc::new(store))
    }

    fn close_store(&self, store: Arc<RocksStore>) -> Result<(), MetaError> {
        store.finish_filling()
    }

    fn create_journal(&self, bytes: u64) -> Result<Arc<dyn JournalMedia>, MetaError> {
        match &self.journal {
            Some(journal) => Ok(journal.clone()),
            None => Ok(Arc::new(self.folder.create_journal(bytes)?)),
        }
    }
}

pub(super) struct NewInMemory {
    pub(super) store: Mutex<Arc<MemoryStore>>,
    pub(super) journal: Arc<MemoryMedia>,
}

impl NewInMemory {
    pub(super) fn new(journal_bytes: u64) -> Self {
        Self {
            store: Mutex::default(),
            journal: Arc::new(MemoryMedia::new(journal_bytes)),
        }
    }
}

impl NewMetadata for NewInMemory {
    type Store = MemoryStore;

    fn put_rows(&self, mut pieces: Pieces<'_>) -> Result<(), Failed> {
        let mut all = Vec::new();
        let mut put = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        while let Some(piece) = pieces.read_next()? {
            piece.each_row(&mut |key, value| put_row(&mut put, key, value))?;
        }
        *lock(&self.store) = Arc::new(MemoryStore::of_rows(&all)?);
        Ok(())
    }

    fn open_store(&self) -> Result<Arc<MemoryStore>, MetaError> {
        Ok(lock(&self.store).clone())
    }

    fn close_store(&self, _: Arc<MemoryStore>) -> Result<(), MetaError> {
        Ok(())
    }

    fn create_journal(&self, _: u64) -> Result<Arc<dyn JournalMedia>, MetaError> {
        Ok(self.journal.clone())
    }
}

/// Puts a row of a base into a store that has no index entries: the rows must not say that there are.
fn put_row(put: &mut raw::Put<'_, Failed>, key: &[u8], value: &[u8]) -> Result<(), Failed> {
    match key.is_empty() {
        // The identity.
        true => Ok(()),
        false => put(key, &raw::without_index_entries(key, value)),
    }
}

/// Why no store was made.
pub(super) enum Failed {
    /// The drive cannot be read, or is damaged.
    Drive(io::Error),
    Store(MetaError),
}

impl Failed {
    /// As it is told of that drive.
    pub(super) fn of(self, area: &dyn MetadataArea) -> MetaError {
        match self {
            Self::Drive(error) => MetaError::corrupt(
                area.name(),
                error.to_string(),
                "name all drives of the pool: another one may hold it too; nothing was changed",
            ),
            Self::Store(error) => error,
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Drive(error)
    }
}

impl From<MetaError> for Failed {
    fn from(error: MetaError) -> Self {
        Self::Store(error)
    }
}

/// The identity in a text that is on a drive.
pub(super) fn identity_of(area: &dyn MetadataArea, text: &str) -> io::Result<PoolIdentity> {
    let path = PathBuf::from(area.name());
    PoolIdentity::parse(&path, text.as_bytes()).map_err(io::Error::other)
}

pub(super) fn change_of(number: u64, bytes: &[u8]) -> io::Result<Change> {
    Change::decode(bytes).map_err(|error| {
        let text = format!("change {number} of its log {error}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}
