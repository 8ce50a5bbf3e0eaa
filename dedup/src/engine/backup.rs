//! A backup of the metadata while the engine works: journal and store of one moment.
//!
//! As long as it is made, no checkpoint moves records from the journal into the store: the store stays as it is, and
//! so do the records after it. Commands go on. Data that acknowledged writes brought before the backup began is
//! on stable drives, and its records say so.

use std::path::PathBuf;

use meta::BackupFolder;

use crate::sync::wait::lock;
use crate::{Engine, Result};

impl Engine {
    /// Makes a backup of the metadata in a folder that was begun for it; returns its path. Runs on a reactor.
    ///
    /// # Errors
    /// `Unavailable` if the backup cannot be written, or the pool could not be flushed; there is no backup then.
    pub async fn backup(&self, folder: BackupFolder) -> Result<PathBuf> {
        self.flush().await?;
        let held = self.shared.checkpoint_lock.clone().lock_owned().await;
        let shared = self.shared.clone();
        self.shared
            .block_on(move || {
                shared.store.copy_to(folder.store_dir())?;
                let needed = lock(&shared.journal).needed();
                folder.write_journal(&needed)?;
                drop(held);
                Ok(folder.finish()?)
            })
            .await
    }
}
