//! Letting a part of a pool be used that is an older copy: its metadata, or a drive.

use std::path::Path;
use std::sync::Arc;

use meta::{PoolDir, RocksOptions, Store};

use crate::log::labels::OlderCopy;
use crate::offline::check::{CheckReport, open_drives};
use crate::{EngineError, Result};

/// A pool whose metadata was compared with its drives. The pool is locked as long as this lives.
pub struct Restore {
    pool: PoolDir,
    epoch: u32,
    drives_epoch: u32,
    older: Vec<String>,
    accepts: Option<u32>,
}

impl Restore {
    /// Looks at the pool in `dir`, which no other process may be using.
    ///
    /// # Errors
    /// There is no pool, it is in use, or metadata or drives cannot be read.
    pub fn look(dir: &Path) -> Result<Self> {
        let pool = PoolDir::open(dir)?;
        let mut report = CheckReport::default();
        let found = open_drives(&pool, &mut report)?;
        let (Some(found), []) = (found, report.findings.as_slice()) else {
            let first = report.findings.first();
            let what = first.map_or_else(String::new, |f| format!("{}: {}", f.object, f.detail));
            return Err(EngineError::corrupt(format!("{what}; nothing was changed")));
        };
        let store: Arc<dyn Store> = Arc::new(pool.open_store(RocksOptions::default())?);
        let epoch = store.checkpoint()?.epoch;
        let older = found.older_copies(&*store, None)?;
        let told = |older: &OlderCopy<'_>| older.told(epoch, |at| found.name_of(at));
        let (told, accepts) = (
            older.iter().map(told).collect(),
            older.iter().map(OlderCopy::epoch).max(),
        );
        drop(store);
        Ok(Self {
            pool,
            epoch,
            drives_epoch: found.newest_epoch(),
            older: told,
            accepts,
        })
    }

    /// The epoch of the metadata.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The latest epoch on a drive.
    pub fn drives_epoch(&self) -> u32 {
        self.drives_epoch
    }

    /// What is older than the rest of the pool, in words.
    pub fn older(&self) -> &[String] {
        &self.older
    }

    /// Lets the next opening use what is older, and go beyond the rest. Durable.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn accept(self) -> Result<()> {
        match self.accepts {
            Some(epoch) => Ok(self.pool.accept_epoch(epoch)?),
            None => Ok(()),
        }
    }
}
