//! A backup of the metadata while the engine works: journal and store of one moment.
//!
//! As long as it is made, no checkpoint moves records from the journal into the store: the store stays as it is, and
//! so do the records after it. Commands go on. Data that acknowledged writes brought before the backup began is
//! on stable drives, and its records say so.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meta::{BackupFolder, Journal, JournalConfig, PoolDir, RocksOptions, Store};

use crate::wait::lock;
use crate::{Engine, Result};

/// Makes a backup of the metadata of the pool in `dir`, which no other process may be using, in the folder
/// `target`; returns its path.
///
/// # Errors
/// There is no pool, it is in use or damaged, or the backup cannot be written; there is no backup then.
pub fn backup_pool(dir: &Path, target: &Path) -> Result<PathBuf> {
    let pool = PoolDir::open(dir)?;
    let folder = pool.begin_backup(target)?;
    let store = pool.open_store(RocksOptions::default())?;
    store.copy_to(folder.store_dir())?;
    let media = Arc::new(pool.open_journal()?);
    let (journal, _) = Journal::open(media, store.checkpoint()?, JournalConfig::default())?;
    folder.write_journal(&journal.needed())?;
    Ok(folder.finish()?)
}

impl Engine {
    /// Makes a backup of the metadata in a folder that was begun for it; returns its path. Runs on a reactor.
    ///
    /// # Errors
    /// `Unavailable` if the backup cannot be written, or the pool could not be flushed; there is no backup then.
    pub async fn backup(&self, folder: BackupFolder) -> Result<PathBuf> {
        self.flush().await?;
        let turn = self.shared.checkpoint_turn.clone().lock_owned().await;
        let shared = self.shared.clone();
        self.shared
            .block_on(move || {
                shared.store.copy_to(folder.store_dir())?;
                let needed = lock(&shared.journal).needed();
                folder.write_journal(&needed)?;
                drop(turn);
                Ok(folder.finish()?)
            })
            .await
    }
}
