//! A backup of the metadata of a pool that is not in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meta::{Journal, JournalConfig, PoolDir, RocksOptions, Store};

use crate::Result;

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
