//! The engine: opening and closing a pool, and all that a program may ask of it.
//!
//! [`Engine`] does no work of its own: its methods call the rooms below.

mod backup;
mod contents;
mod domain_keys;
mod drives;
mod health;
mod locks;
mod places;
mod settings;
mod volumes;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use futures_util::lock::Mutex as AsyncMutex;
use meta::{FingerprintFunction, FolderRoom, Opening};
use reactor::BufferPool;

use crate::background::healing::keep_list;
use crate::background::{Background, maintenance, status};
use crate::content::fingerprint::Hasher;
use crate::drive_io::drive_list::DRIVES_MAX;
use crate::log::checkpoint::checkpoint;
use crate::log::flush::flush;
use crate::log::labels::{self, Labels};
use crate::log::recovery;
use crate::metadata::domain::Domains;
use crate::pool::alerts::Alerts;
use crate::pool::backpressure::Backpressure;
use crate::pool::comparisons::Verify;
use crate::pool::config::{EngineParts, block_on};
use crate::pool::copies::Hosts;
use crate::pool::{Shared, StoredSoFar};
use crate::sync::rounds::Rounds;
use crate::sync::timed::{Timed, TimedRw};
use crate::sync::wait::lock;
use crate::sync::watermark::Watermark;
use crate::{EngineError, MetadataStatus, PoolStatus, PoolSummary, RebuildSpeed, Result};
pub use contents::KnownContents;
pub use locks::EngineLocks;
use volumes::Namespaces;

/// The engine of one pool. Share it by its `Arc`; it can be used from every reactor.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) background: Background,
    namespaces: RwLock<Namespaces>,
}

/// A pool of CLNH is served on any machine, slowly on some.
fn warn_of_slow(fingerprint: FingerprintFunction) {
    if fingerprint == FingerprintFunction::Clnh && Hasher::suited() != fingerprint {
        tracing::warn!(
            "this processor cannot multiply without carries (PCLMULQDQ, PMULL): the pool's fingerprints (clnh) take \
             some hundred times longer here; serve it on another machine, or copy its volumes to a pool made with \
             `--fingerprint blake3`"
        );
    }
}

impl Engine {
    /// Opens a pool: replays the journal, proves unflushed data against its fingerprints, and writes a
    /// checkpoint that equals the result. Maps and blocks are brought into memory afterwards, by the
    /// commands that need them and by background maintenance, and maps as far as there is memory for them.
    ///
    /// # Errors
    /// Names what is damaged, missing or out of its range; nothing is lost by trying again.
    pub async fn open(parts: EngineParts) -> Result<Arc<Engine>> {
        parts.config.check()?;
        if parts.drives.len() > DRIVES_MAX {
            return Err(EngineError::invalid(format!(
                "a pool cannot have {} drives; at most {DRIVES_MAX} are possible",
                parts.drives.len()
            )));
        }
        let bounces = BufferPool::new(parts.config.bounce_bytes).map_err(|error| {
            EngineError::unavailable(format!("memory for bounce buffers: {error}"))
        })?;
        let pool = parts.config.labels.clone();
        let (drives, new_segments) = drives::find(&parts).await?;
        let labels = Labels::read(&drives, pool.as_ref(), &bounces).await?;
        let store = parts.store.clone();
        let of_store = move || Ok::<_, EngineError>((store.checkpoint()?.epoch, store.settings()?));
        let (epoch, settings) = block_on(parts.blocking, of_store).await?;
        labels.check(epoch, &settings)?;
        let rebuild_speed = RebuildSpeed::stored_in(&settings);
        drives::write_down(&parts, &drives, new_segments).await?;
        let journal_bytes = parts.journal.capacity();
        let recovery::Recovered {
            mut state,
            journal,
            damage,
        } = recovery::recover(&parts, &labels, &drives, &bounces).await?;
        for pba in damage.listed() {
            state.on_disk_index.hide(pba);
        }
        state.when_read_only = parts.config.when_read_only;
        let quiet = parts.config.quiet;
        let fill_warnings = Mutex::new(parts.config.fill_warnings.clone().into());
        let is_loaded = state.blocks.next_unentered().is_none();
        let is_crowded = state.resident.crowded_flag();
        let is_partial = state.blocks.partial_flag();
        warn_of_slow(parts.fingerprint);
        let domains = Domains::new(parts.fingerprint, parts.hash_keys.clone());
        for entry in state.volumes.values() {
            entry.core.hasher(&domains);
        }
        let volume_changes = state.volume_changes.clone();
        let blocking = parts.blocking;
        let shared = Arc::new(Shared {
            drives,
            store: parts.store,
            domains,
            verify: Verify::new()?,
            config: parts.config,
            durable: Watermark::new(state.durable),
            state: TimedRw::new(state),
            writer: journal.writer(),
            appended: Watermark::new(journal.written_seq()),
            journal: Timed::new(journal),
            backpressure: Backpressure::default(),
            unstored: AtomicU64::new(0),
            stored: Mutex::default(),
            stored_so_far: StoredSoFar::default(),
            flush_lock: Arc::default(),
            rounds: Rounds::default(),
            checkpoint_lock: Arc::default(),
            discard_lock: AsyncMutex::default(),
            admin_lock: AsyncMutex::default(),
            merge_lock: AsyncMutex::default(),
            hosts: Hosts::default(),
            drive_states: AsyncMutex::default(),
            subscribers: Mutex::default(),
            damage: Mutex::new(damage),
            alerts: Alerts::new(quiet),
            alert_log: Mutex::default(),
            fill_warnings,
            journal_bytes,
            folder: Mutex::default(),
            blocking: parts.blocking,
            bounces,
            closed: AtomicBool::new(false),
            loaded: AtomicBool::new(is_loaded),
            is_crowded,
            is_partial,
            load_lock: AsyncMutex::default(),
            merges: Mutex::default(),
            volume_changes,
        });
        let pool = Arc::downgrade(&shared);
        let may_leave = move |drive| pool.upgrade().is_some_and(|pool| pool.drives.leave(drive));
        shared.drives.permission().ask(may_leave);
        block_on(blocking, {
            let shared = shared.clone();
            move || shared.look_at_folder()
        })
        .await;
        Ok(Arc::new(Engine {
            shared,
            background: Background {
                rebuild_speed: Mutex::new(rebuild_speed),
                ..Background::default()
            },
            namespaces: RwLock::default(),
        }))
    }

    /// Space in bytes that adds up.
    pub fn status(&self) -> PoolStatus {
        status::collect(&self.shared, &self.background)
    }

    /// The journal and the store. It asks RocksDB, which may wait for it.
    pub fn metadata_status(&self) -> MetadataStatus {
        status::of_metadata(&self.shared)
    }

    /// The figures that hosts ask for: for them [`Engine::status`] would hold up the commands of all others the
    /// longer the more volumes there are.
    pub fn summary(&self) -> PoolSummary {
        status::summarize(&self.shared)
    }

    /// How much room there is on the file system of the pool's folder, as background maintenance saw it last;
    /// `None` if the metadata is on none. When it is short of room, writes that need new blocks are refused.
    pub fn folder_room(&self) -> Option<FolderRoom> {
        lock(&self.shared.folder).clone()
    }

    /// This opening, as the labels of the drives name it: its epoch is in all that is written.
    pub fn opening(&self) -> Opening {
        let labels = self.shared.config.labels.as_ref();
        Opening {
            epoch: lock(&self.shared.journal).epoch(),
            drives: self.shared.drives.len() as u16,
            ..labels.map_or_else(Opening::default, |labels| labels.opening.clone())
        }
    }

    /// Makes every acknowledged change survive a power loss.
    ///
    /// # Errors
    /// `Unavailable` when a drive or the journal failed; the pool is read-only then.
    pub async fn flush(&self) -> Result<()> {
        self.shared.verify.caught_up().await?;
        flush(&self.shared).await
    }

    /// Returns when all blocks are known, and as much of the maps is in memory as half of
    /// [`crate::EngineConfig::metadata_cache_bytes`] takes. An opened pool can be used before that; background
    /// maintenance does this too.
    ///
    /// # Errors
    /// `Corrupt` when the store contradicts itself, `Unavailable` when it cannot be read.
    pub async fn load(&self) -> Result<()> {
        maintenance::load(&self.shared).await
    }

    /// Moves the journal's changes into the store and gives the journal's room back.
    ///
    /// # Errors
    /// `Unavailable` when the store takes nothing now; the changes stay in the journal.
    pub async fn checkpoint(&self) -> Result<()> {
        let compared = self.shared.verify.caught_up().await;
        checkpoint(&self.shared).await?;
        compared
    }

    /// Background work, for as long as the engine is in use: spawn it on one reactor. Ends soon after
    /// `shutdown`.
    pub async fn run_maintenance(self: Arc<Self>) {
        maintenance::run(&self.shared, &self.background).await;
    }

    /// One round of all background work but scrubs, without a clock: loads what background work loads, frees
    /// what was trimmed and deleted, flushes, checkpoints, discards, heals damaged blocks.
    ///
    /// # Errors
    /// The first one that background work would have logged.
    pub async fn maintain(&self) -> Result<()> {
        maintenance::once(&self.shared, &self.background).await
    }

    /// Stops taking commands (they get `Unavailable`), flushes and checkpoints. The caller has let its
    /// commands end.
    ///
    /// # Errors
    /// `Unavailable` when not everything could be made durable; opening the pool again recovers.
    pub async fn shutdown(&self) -> Result<()> {
        self.shared.closed.store(true, Ordering::Release);
        lock(&self.shared.state).closed = true;
        self.shared.verify.end();
        // What is there is kept, also if a part of it could not be compared.
        let compared = self.shared.verify.caught_up().await;
        flush(&self.shared).await?;
        checkpoint(&self.shared).await?;
        // What a scrub or a read found lately: a check of the stopped pool tells it, too.
        keep_list(&self.shared).await;
        if let Err(error) = labels::close(&self.shared).await {
            tracing::warn!(%error, "the labels of the drives do not say that the pool was closed");
        }
        compared
    }
}
