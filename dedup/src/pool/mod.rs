//! An open pool: what the rooms above share, and how the pool does.
//!
//! [`Shared`] holds the locks, and says in which order they are taken. The rooms above add functions that take a
//! [`Shared`]; this room has only methods that belong to its health.

pub(crate) mod alert_log;
pub(crate) mod alerts;
pub(crate) mod backpressure;
pub(crate) mod boot;
pub(crate) mod comparisons;
pub(crate) mod config;
pub(crate) mod copies;
pub(crate) mod damage_list;
pub(crate) mod fill_level;
pub(crate) mod finding;
pub(crate) mod health;
pub(crate) mod references;
pub(crate) mod volume_change;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::lock::Mutex as AsyncMutex;
use meta::{FolderRoom, Journal, JournalWriter, Store};
use reactor::{Buffer, BufferPool};

use crate::drive_io::drive_list::DriveList;
use crate::metadata::deferred_dedup::Merge;
use crate::metadata::domain::Domains;
use crate::metadata::state::State;
use crate::sync::rounds::Rounds;
use crate::sync::timed::{Timed, TimedRw};
use crate::sync::wait::{Event, lock};
use crate::sync::watermark::Watermark;
use alert_log::AlertLog;
use alerts::Alerts;
use backpressure::Backpressure;
use comparisons::Verify;
use config::{Blocking, EngineConfig};
use copies::Hosts;
use damage_list::Damage;
use volume_change::VolumeChange;

type Subscriber = Box<dyn Fn(&VolumeChange) + Send + Sync>;

/// What the engine and its volumes share.
///
/// Order of the locks, from the first to the last: `merge_lock`, `admin_lock`, a range lock, a volume's `trim_lock`,
/// `backpressure`, `flush_lock`, `checkpoint_lock`, `discard_lock`, `drive_states`; then, never across an await, `state`, the map of a
/// volume, `journal`, `damage`, and last those of `alerts` and `alert_log`.
pub(crate) struct Shared {
    pub(crate) drives: DriveList,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) domains: Domains,
    pub(crate) verify: Verify,
    pub(crate) config: EngineConfig,
    /// [`EngineConfig::fill_warnings`], which can be changed.
    pub(crate) fill_warnings: Mutex<Arc<[u8]>>,
    pub(crate) state: TimedRw<State>,
    pub(crate) journal: Timed<Journal>,
    /// Writes the journal's frames, without its lock.
    pub(crate) writer: JournalWriter,
    /// Up to which record all are written.
    pub(crate) appended: Watermark,
    /// As in the state, for who waits for it.
    pub(crate) durable: Watermark,
    pub(crate) backpressure: Backpressure,
    /// Changes of mappings that are in the journal and not in the store.
    pub(crate) unstored: AtomicU64,
    /// Happens when the next batch is stored.
    pub(crate) stored: Mutex<Arc<Event>>,
    pub(crate) stored_so_far: StoredSoFar,
    pub(crate) flush_lock: Arc<AsyncMutex<()>>,
    pub(crate) rounds: Rounds,
    pub(crate) checkpoint_lock: Arc<AsyncMutex<()>>,
    pub(crate) discard_lock: AsyncMutex<()>,
    pub(crate) admin_lock: AsyncMutex<()>,
    /// Held by a task that merges maps.
    pub(crate) merge_lock: AsyncMutex<()>,
    pub(crate) hosts: Hosts,
    /// Held by who changes which drives are online. Taken after all others that are held across an await.
    pub(crate) drive_states: AsyncMutex<()>,
    pub(crate) subscribers: Mutex<Vec<Subscriber>>,
    pub(crate) damage: Mutex<Damage>,
    pub(crate) alerts: Alerts,
    /// What the log is told by range.
    pub(crate) alert_log: Mutex<AlertLog>,
    pub(crate) journal_bytes: u64,
    /// Room on the file system of the pool's folder, as it was at the last look.
    pub(crate) folder: Mutex<Option<FolderRoom>>,
    pub(crate) blocking: Blocking,
    pub(crate) bounces: BufferPool,
    pub(crate) closed: AtomicBool,
    /// Whether all blocks are known.
    pub(crate) loaded: AtomicBool,
    /// As the state's accounts of memory say.
    pub(crate) is_crowded: Arc<AtomicBool>,
    /// Whether anything of what is known of blocks is in the store only.
    pub(crate) is_partial: Arc<AtomicBool>,
    /// Row pages of blocks are loaded one by one, background work beside commands.
    pub(crate) load_lock: AsyncMutex<()>,
    /// Contents that are stored twice because the older one was not loaded.
    pub(crate) merges: Mutex<Vec<Merge>>,
    /// As in the state.
    pub(crate) volume_changes: Arc<AtomicU64>,
}

/// What was moved from the journal into the store since the pool was opened.
#[derive(Default)]
pub(crate) struct StoredSoFar {
    pub(crate) batches: AtomicU64,
    /// Changes of mappings.
    pub(crate) changes: AtomicU64,
    /// How long that took.
    pub(crate) microseconds: AtomicU64,
}

impl Shared {
    /// The levels to warn at when the pool fills up, in percent.
    pub(crate) fn fill_warnings(&self) -> Arc<[u8]> {
        lock(&self.fill_warnings).clone()
    }

    /// Blocks that durable records freed can be used again. Some at a time: nobody waits for all of them.
    pub(crate) fn release_freed(&self) {
        while self.state.share().release() {}
    }

    /// Runs something that blocks where the engine was told to.
    pub(crate) async fn block_on<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        config::block_on(self.blocking, work).await
    }

    /// A bounce buffer; waits until there is memory. Take it before a range lock.
    pub(crate) async fn bounce(&self, len: usize) -> Buffer {
        self.bounces.alloc(len).await
    }

    /// A bounce buffer, if there is memory now.
    pub(crate) fn try_bounce(&self, len: usize) -> Option<Buffer> {
        self.bounces.try_alloc(len)
    }

    /// The name of the drive with that index.
    pub(crate) fn drive_name(&self, index: u16) -> String {
        let drive = self.drives.get(usize::from(index));
        drive.map_or_else(String::new, |drive| drive.name().to_owned())
    }

    /// Whether no more commands are taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
