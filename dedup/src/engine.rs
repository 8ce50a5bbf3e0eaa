//! Opening, sharing and closing an engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use drives::Drive;
use futures_util::future::{join3, join4};
use futures_util::lock::Mutex as AsyncMutex;
use meta::{FolderRoom, Journal, JournalConfig, JournalMedia, Store, VolumeInfo};
use reactor::{Buffer, BufferPool};

use crate::commit::RoomLine;
use crate::damage::Damage;
use crate::domain::Domains;
use crate::drive_list::{DRIVES_MAX, DriveList};
use crate::fill::FillWatch;
use crate::load::Merge;
use crate::recovery;
use crate::scrub::Scrub;
use crate::state::State;
use crate::survey::Surveys;
use crate::told::News;
use crate::trouble::{Troubles, Work};
use crate::verify::Verify;
use crate::wait::{Event, lock, yield_once};
use crate::{BootId, EngineError, PoolStatus, PoolSummary, Result, Volume, VolumeChange};

/// Where blocking calls (journal sync, the store) run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// At once, on the calling thread: simulation, tools.
    Inline,
    /// On the reactor's bounded pool of helper threads (`reactor::unblock`).
    Threads,
    /// At once, with other tasks' turns before and after: simulation of the other two.
    #[cfg(test)]
    Turns,
}

/// Bounds and intervals of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Background maintenance flushes when more data than this is acknowledged but not flushed (bytes).
    pub unflushed_bytes_max: u64,
    /// ... or when the oldest unflushed change is about this old.
    pub flush_interval: Duration,
    /// Background maintenance checkpoints when the journal holds more than this share of its capacity
    /// (percent).
    pub checkpoint_journal_percent: u32,
    /// Changes of mappings at most that the journal holds and the store does not: what an opening after a
    /// crash has to replay. Background maintenance checkpoints from half of it on; at the bound, writers
    /// wait for the next batch to be stored.
    pub replay_entries_max: u64,
    /// It also checkpoints when the last checkpoint with something to do is about this old.
    pub checkpoint_interval: Duration,
    /// Mapping entries per journal record of a trim, zeroing or deletion: as long as one is made, other
    /// commands wait.
    pub trim_chunk: usize,
    /// Trims and zeroings of more sub-blocks than this are written down at once and done in the
    /// background.
    pub trim_at_once: u64,
    /// Whether freed blocks are discarded on the drives (by background maintenance) before they are
    /// reused.
    pub discard: bool,
    /// Memory of the engine's own bounce buffers (unaligned commands, compare, recovery), in bytes; at
    /// least [`BOUNCE_BYTES_MIN`]. They are apart from the callers' buffers, so that a command that
    /// holds one of those can always get on.
    pub bounce_bytes: usize,
    /// Fill levels of the pool, in percent and in order, that are warned of when they are reached.
    pub fill_warnings: Vec<u8>,
    /// How long something that failed must not have failed again before it can count as over
    /// ([`Engine::verdict`]).
    pub quiet: Duration,
    /// File that keeps the list of damaged blocks over a restart; `None` keeps it in memory only.
    pub damage_file: Option<PathBuf>,
    /// How old figures of what volumes share may be ([`Engine::last_survey`]) when something changed; those of a
    /// pool that is counted quickly are newer.
    pub survey_interval: Duration,
    /// References to one physical block at most; beyond, its content is stored once more.
    pub references_max: u32,
    /// Memory for the maps of volumes and for what is known of blocks, in bytes, at least [`METADATA_CACHE_BYTES_MIN`]. What does not fit
    /// is read from the store when it is needed. What the store does not have yet stays in memory; when
    /// that is a quarter more than this, writes wait for a checkpoint.
    pub metadata_cache_bytes: u64,
    /// Memory of the index that finds blocks by their content, in bytes: it takes about 10 a block, and some
    /// hundred in any case. What has no room is found through the store: slower, and as surely.
    pub index_bytes_max: u64,
    /// Data of acknowledged writes to volumes that compare in the background, at most (bytes); what is
    /// beyond is compared before it is acknowledged.
    pub verify_bytes_max: usize,
    /// Bounds of the journal.
    pub journal: JournalConfig,
}

/// The smallest [`EngineConfig::bounce_bytes`]: the largest command, unaligned at both ends, whatever
/// the shape of the buffer pool's blocks.
pub const BOUNCE_BYTES_MIN: usize = 4 << 20;

/// The smallest [`EngineConfig::metadata_cache_bytes`]: what some hundred commands of the largest size
/// change between two checkpoints.
pub const METADATA_CACHE_BYTES_MIN: u64 = 8 << 20;

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            unflushed_bytes_max: 256 << 20,
            flush_interval: Duration::from_secs(1),
            checkpoint_journal_percent: 33,
            replay_entries_max: 256 * 1024,
            checkpoint_interval: Duration::from_secs(10),
            trim_chunk: 256,
            trim_at_once: 16 * 1024,
            discard: true,
            bounce_bytes: 16 << 20,
            fill_warnings: vec![80, 90, 95],
            quiet: Duration::from_secs(10),
            damage_file: None,
            survey_interval: Duration::from_secs(600),
            references_max: u32::MAX,
            metadata_cache_bytes: 1 << 30,
            index_bytes_max: u64::MAX,
            verify_bytes_max: 16 << 20,
            journal: JournalConfig::default(),
        }
    }
}

impl EngineConfig {
    /// # Errors
    /// Names the field that is out of its range.
    fn check(&self) -> Result<()> {
        let wrong = |what: &str| {
            Err(EngineError::invalid(format!(
                "engine configuration: {what}"
            )))
        };
        if !(1..=meta::UNMAP_ENTRIES_MAX).contains(&self.trim_chunk) {
            return wrong("`trim_chunk` must be 1 to 32768");
        }
        if self.trim_at_once == 0 {
            return wrong("`trim_at_once` must be at least 1");
        }
        if !(1..=90).contains(&self.checkpoint_journal_percent) {
            return wrong("`checkpoint_journal_percent` must be 1 to 90");
        }
        if self.replay_entries_max == 0 {
            return wrong("`replay_entries_max` must be at least 1");
        }
        if self.bounce_bytes < BOUNCE_BYTES_MIN {
            return wrong("`bounce_bytes` must be at least 4 MiB");
        }
        if !self.fill_warnings.is_sorted() || self.fill_warnings.iter().any(|level| *level > 100) {
            return wrong("`fill_warnings` must be percentages up to 100, in order");
        }
        if self.metadata_cache_bytes < METADATA_CACHE_BYTES_MIN && !cfg!(test) {
            return wrong("`metadata_cache_bytes` must be at least 8 MiB");
        }
        if self.references_max == 0 {
            return wrong("`references_max` must be at least 1");
        }
        Ok(())
    }
}

/// What an engine is made of.
pub struct EngineParts {
    /// The pool's drives, in the order of their indexes.
    pub drives: Vec<Arc<dyn Drive>>,
    /// The journal's medium.
    pub journal: Arc<dyn JournalMedia>,
    /// The durable maps.
    pub store: Arc<dyn Store>,
    /// The pool's secret: fingerprints are keyed with it.
    pub hash_key: [u8; 32],
    /// Where blocking calls run.
    pub blocking: Blocking,
    /// Which start of the machine this is, for what was on the drives and not flushed; `None`: power may
    /// have been lost since the pool was open.
    pub boot: Option<BootId>,
    /// Bounds and intervals.
    pub config: EngineConfig,
}

type Subscriber = Box<dyn Fn(&VolumeChange) + Send + Sync>;

/// What the engine and its volumes share.
///
/// Order of the locks, from the first to the last: `admin_turn`, a range lock, a volume's `trim_turn`,
/// `room_line`, `flush_turn`, `checkpoint_turn`, `discard_turn`; then, never across an await, `journal`, `state`,
/// `damage`, and last those of `troubles` and `news`.
pub(crate) struct Shared {
    pub(crate) drives: DriveList,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) domains: Domains,
    pub(crate) verify: Verify,
    pub(crate) config: EngineConfig,
    pub(crate) state: Mutex<State>,
    pub(crate) journal: Mutex<Journal>,
    pub(crate) room_line: RoomLine,
    /// Changes of mappings that are in the journal and not in the store.
    pub(crate) unstored: AtomicU64,
    /// Happens when the next batch is stored.
    pub(crate) stored: Mutex<Arc<Event>>,
    pub(crate) flush_turn: Arc<AsyncMutex<()>>,
    pub(crate) checkpoint_turn: Arc<AsyncMutex<()>>,
    pub(crate) discard_turn: AsyncMutex<()>,
    pub(crate) admin_turn: AsyncMutex<()>,
    pub(crate) subscribers: Mutex<Vec<Subscriber>>,
    pub(crate) scrub: Mutex<Scrub>,
    pub(crate) surveys: Mutex<Surveys>,
    pub(crate) damage: Mutex<Damage>,
    pub(crate) troubles: Troubles,
    /// What the log is told by range.
    pub(crate) news: Mutex<News>,
    /// Mappings that deleted volumes had in the beginning.
    pub(crate) deleting: Mutex<BTreeMap<u32, u64>>,
    pub(crate) journal_bytes: u64,
    /// Room on the file system of the pool's folder, as it was at the last look.
    pub(crate) folder: Mutex<Option<FolderRoom>>,
    #[cfg(test)]
    pub(crate) recovered: recovery::Figures,
    blocking: Blocking,
    bounces: BufferPool,
    closed: AtomicBool,
    /// Whether all blocks are known.
    pub(crate) loaded: AtomicBool,
    /// As the state's accounts of memory say.
    pub(crate) is_crowded: Arc<AtomicBool>,
    /// Whether anything of what is known of blocks is in the store only.
    pub(crate) is_partial: Arc<AtomicBool>,
    /// Chunks of blocks are loaded one by one, background work beside commands.
    pub(crate) load_turn: AsyncMutex<()>,
    /// Contents that are stored twice because the older one was not loaded.
    pub(crate) merges: Mutex<Vec<Merge>>,
    /// As in the state.
    volume_changes: Arc<AtomicU64>,
}

impl Shared {
    /// Runs something that blocks where the engine was told to.
    pub(crate) async fn block_on<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        block_on(self.blocking, work).await
    }

    /// A bounce buffer; waits until there is memory. Take it before a range lock.
    pub(crate) async fn bounce(&self, len: usize) -> Buffer {
        self.bounces.alloc(len).await
    }

    /// A bounce buffer, if there is memory now.
    pub(crate) fn try_bounce(&self, len: usize) -> Option<Buffer> {
        self.bounces.try_alloc(len)
    }

    /// Whether no more commands are taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Runs something that blocks, here or on a helper thread.
pub(crate) async fn block_on<T: Send + 'static>(
    blocking: Blocking,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    match blocking {
        Blocking::Inline => work(),
        Blocking::Threads => reactor::unblock(work).await,
        #[cfg(test)]
        Blocking::Turns => {
            yield_once().await;
            let result = work();
            yield_once().await;
            result
        }
    }
}

/// The engine of one pool. Share it by its `Arc`; it can be used from every reactor.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    namespaces: RwLock<Namespaces>,
}

/// Handles of all volumes that can be used, as they were after so many changes.
#[derive(Default)]
struct Namespaces {
    changes: Option<u64>,
    by_nsid: Vec<Option<Arc<Volume>>>,
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
        let journal_bytes = parts.journal.capacity();
        let recovery::Recovered {
            mut state,
            journal,
            damage,
            #[cfg(test)]
            figures,
        } = recovery::recover(&parts, &bounces).await?;
        for pba in damage.listed() {
            state.hints.hide(pba);
        }
        let quiet = parts.config.quiet;
        let is_loaded = state.blocks.next_unentered().is_none();
        let is_crowded = state.resident.crowded_flag();
        let is_partial = state.blocks.partial_flag();
        let domains = Domains::new(&parts.hash_key);
        for entry in state.volumes.values() {
            entry.core.hasher(&domains);
        }
        let volume_changes = state.volume_changes.clone();
        let blocking = parts.blocking;
        let shared = Arc::new(Shared {
            drives: DriveList::new(parts.drives),
            store: parts.store,
            domains,
            verify: Verify::new()?,
            config: parts.config,
            state: Mutex::new(state),
            journal: Mutex::new(journal),
            room_line: RoomLine::default(),
            unstored: AtomicU64::new(0),
            stored: Mutex::default(),
            flush_turn: Arc::default(),
            checkpoint_turn: Arc::default(),
            discard_turn: AsyncMutex::default(),
            admin_turn: AsyncMutex::default(),
            subscribers: Mutex::default(),
            scrub: Mutex::default(),
            surveys: Mutex::default(),
            damage: Mutex::new(damage),
            troubles: Troubles::new(quiet),
            news: Mutex::default(),
            deleting: Mutex::default(),
            journal_bytes,
            folder: Mutex::default(),
            #[cfg(test)]
            recovered: figures,
            blocking: parts.blocking,
            bounces,
            closed: AtomicBool::new(false),
            loaded: AtomicBool::new(is_loaded),
            is_crowded,
            is_partial,
            load_turn: AsyncMutex::default(),
            merges: Mutex::default(),
            volume_changes,
        });
        block_on(blocking, {
            let shared = shared.clone();
            move || shared.look_at_folder()
        })
        .await;
        Ok(Arc::new(Engine {
            shared,
            namespaces: RwLock::default(),
        }))
    }

    /// All volumes that can be used, in order of namespace identifiers.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let state = lock(&self.shared.state);
        let active = state.volumes.values().filter(|entry| entry.is_active());
        let mut volumes: Vec<_> = active.map(|entry| VolumeInfo::clone(&entry.info)).collect();
        volumes.sort_unstable_by_key(|info| info.nsid);
        volumes
    }

    /// The volume of that name.
    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        let nsid = {
            let state = lock(&self.shared.state);
            let mut active = state.volumes.values().filter(|entry| entry.is_active());
            active.find(|entry| entry.info.name == name)?.info.nsid
        };
        self.volume_by_nsid(nsid)
    }

    /// The volume behind a namespace identifier. Costs no more than a look into a table.
    pub fn volume_by_nsid(&self, nsid: u32) -> Option<Arc<Volume>> {
        let now = self.shared.volume_changes.load(Ordering::Acquire);
        let known = self
            .namespaces
            .read()
            .unwrap_or_else(|_| reactor::end_half_changed());
        if known.changes == Some(now) {
            return known.by_nsid.get(nsid as usize)?.clone();
        }
        drop(known);
        let mut namespaces = self
            .namespaces
            .write()
            .unwrap_or_else(|_| reactor::end_half_changed());
        self.renew(&mut namespaces);
        namespaces.by_nsid.get(nsid as usize)?.clone()
    }

    /// Volumes that stay keep their handles.
    fn renew(&self, namespaces: &mut Namespaces) {
        let state = lock(&self.shared.state);
        let mut old = std::mem::take(&mut namespaces.by_nsid);
        // The count cannot change while the state is locked.
        namespaces.changes = Some(self.shared.volume_changes.load(Ordering::Acquire));
        for entry in state.volumes.values().filter(|entry| entry.is_active()) {
            let nsid = entry.info.nsid as usize;
            if namespaces.by_nsid.len() <= nsid {
                namespaces.by_nsid.resize(nsid + 1, None);
            }
            let kept = old.get_mut(nsid).and_then(Option::take);
            let kept = kept.filter(|volume| volume.is_of(&entry.core));
            let volume =
                kept.unwrap_or_else(|| Volume::new(self.shared.clone(), entry.core.clone()));
            namespaces.by_nsid[nsid] = Some(volume);
        }
    }

    /// Calls back on every change of a volume, on the thread that made it: do not block.
    pub fn on_change(&self, callback: Box<dyn Fn(&VolumeChange) + Send + Sync>) {
        lock(&self.shared.subscribers).push(callback);
    }

    /// Space in bytes that adds up.
    pub fn status(&self) -> PoolStatus {
        crate::status::collect(&self.shared)
    }

    /// The figures that hosts ask for: for them [`Engine::status`] would hold up the commands of all others the
    /// longer the more volumes there are.
    pub fn summary(&self) -> PoolSummary {
        crate::status::summarize(&self.shared)
    }

    /// How much room there is on the file system of the pool's folder, as background maintenance saw it last;
    /// `None` if the metadata is on none. When it is short of room, writes that need new blocks are refused.
    pub fn folder_room(&self) -> Option<FolderRoom> {
        lock(&self.shared.folder).clone()
    }

    /// Makes every acknowledged change survive a power loss.
    ///
    /// # Errors
    /// `Unavailable` when a drive or the journal failed; the pool is read-only then.
    pub async fn flush(&self) -> Result<()> {
        self.shared.verify.caught_up().await?;
        self.shared.flush().await
    }

    /// Returns when all blocks are known, and as much of the maps is in memory as half of
    /// [`EngineConfig::metadata_cache_bytes`] takes. An opened pool can be used before that; background
    /// maintenance does this too.
    ///
    /// # Errors
    /// `Corrupt` when the store contradicts itself, `Unavailable` when it cannot be read.
    pub async fn load(&self) -> Result<()> {
        self.shared.load_all().await?;
        while self.shared.warm_up().await? {
            yield_once().await;
        }
        Ok(())
    }

    /// Moves the journal's changes into the store and gives the journal's room back.
    ///
    /// # Errors
    /// `Unavailable` when the store takes nothing now; the changes stay in the journal.
    pub async fn checkpoint(&self) -> Result<()> {
        let compared = self.shared.verify.caught_up().await;
        self.shared.checkpoint().await?;
        compared
    }

    /// Background work, for as long as the engine is in use: spawn it on one reactor. Ends soon after
    /// `shutdown`.
    pub async fn run_maintenance(self: Arc<Self>) {
        join4(
            self.keep_durable(),
            self.keep_freeing(),
            self.keep_discarding(),
            join3(
                self.keep_scrubbing(),
                self.keep_watch(),
                join3(
                    self.keep_surveying(),
                    self.keep_loading(),
                    self.shared.keep_verifying(),
                ),
            ),
        )
        .await;
    }

    /// One round of all background work but scrubs, without a clock: loads what background work loads, frees what was trimmed and deleted,
    /// flushes, checkpoints, discards, heals damaged blocks.
    ///
    /// # Errors
    /// The first one that background work would have logged.
    pub async fn maintain(&self) -> Result<()> {
        let shared = self.shared.clone();
        self.shared.block_on(move || shared.look_at_folder()).await;
        self.load().await?;
        self.shared.write_hints().await?;
        self.shared.merge_late().await?;
        while self.shared.free_slice().await? {}
        let compared = self.shared.verify.caught_up().await;
        self.shared.flush().await?;
        self.shared.checkpoint().await?;
        self.shared.discard_freed().await;
        self.shared.tend_damage().await;
        self.shared.look_for_trouble();
        compared
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
        self.shared.flush().await?;
        self.shared.checkpoint().await?;
        compared
    }

    /// Flushes and checkpoints when there is reason to.
    async fn keep_durable(&self) {
        let config = &self.shared.config;
        let mut last_flush = reactor::now();
        let mut last_checkpoint = reactor::now();
        while !self.shared.is_closed() {
            reactor::sleep(TICK).await;
            let is_old = |last: Instant, interval| reactor::now().duration_since(last) >= interval;
            let (unflushed, is_flushed) = {
                let state = lock(&self.shared.state);
                (state.unflushed_bytes, state.durable >= state.last_change)
            };
            if is_flushed {
                last_flush = reactor::now();
            } else if unflushed > config.unflushed_bytes_max
                || is_old(last_flush, config.flush_interval)
            {
                self.report(Work::Flush, self.shared.flush().await);
                last_flush = reactor::now();
            }
            let (used, capacity) = {
                let journal = lock(&self.shared.journal);
                (journal.used_bytes(), journal.capacity_bytes())
            };
            let unstored = self.shared.unstored.load(Ordering::Relaxed);
            // Only what is not stored may keep memory full.
            let is_stuck = lock(&self.shared.state).resident.is_stuck();
            if used * 100 > capacity * u64::from(config.checkpoint_journal_percent)
                || unstored > config.replay_entries_max / 2
                || is_stuck
                || is_old(last_checkpoint, config.checkpoint_interval)
            {
                self.report(Work::Checkpoint, self.shared.checkpoint().await);
                last_checkpoint = reactor::now();
            }
        }
    }

    /// Frees what was trimmed and deleted, a fifth of the time at most, and only as long as the journal
    /// has room enough for hosts: the store's part of it, compaction included, costs cores as well.
    async fn keep_freeing(&self) {
        while !self.shared.is_closed() {
            if self.journal_fills() {
                reactor::sleep(TICK).await;
                continue;
            }
            let began = reactor::now();
            match self.shared.free_slice().await {
                Ok(true) => {
                    let worked = reactor::now().duration_since(began);
                    reactor::sleep(worked * FREEING_REST).await;
                }
                ended => {
                    self.report(Work::Freeing, ended.map(drop));
                    reactor::sleep(TICK).await;
                }
            }
        }
    }

    /// Whether the journal is fuller than checkpoints keep it: changes arrive faster than they are
    /// stored.
    fn journal_fills(&self) -> bool {
        let journal = lock(&self.shared.journal);
        let percent = (100 + u64::from(self.shared.config.checkpoint_journal_percent)) / 2;
        journal.used_bytes() * 100 > journal.capacity_bytes() * percent
    }

    /// Brings what is known of all blocks into memory, and as much of the maps as there is room for, once.
    async fn keep_loading(&self) {
        while !self.shared.is_closed() {
            let more = self.load_more().await;
            match more {
                Ok(true) => yield_once().await,
                Ok(false) => return self.report(Work::Loading, Ok(())),
                Err(error) => {
                    self.report(Work::Loading, Err(error));
                    reactor::sleep(TICK).await;
                }
            }
        }
    }

    async fn load_more(&self) -> Result<bool> {
        if self.shared.load_some().await? {
            return Ok(true);
        }
        self.shared.merge_late().await?;
        self.shared.warm_up().await
    }

    async fn keep_scrubbing(&self) {
        while !self.shared.is_closed() {
            self.shared.scrub_if_wanted().await;
            reactor::sleep(TICK).await;
        }
    }

    async fn keep_surveying(&self) {
        while !self.shared.is_closed() {
            self.shared.survey_if_wanted().await;
            reactor::sleep(TICK).await;
        }
    }

    /// Looks after damaged blocks, hints, the fill level, and what else is wrong.
    async fn keep_watch(&self) {
        let (mut fill, mut folder) = (FillWatch::default(), FillWatch::default());
        let mut told = reactor::now();
        while !self.shared.is_closed() {
            fill.watch(&self.shared);
            self.shared.tend_damage().await;
            self.report(Work::Hints, self.shared.write_hints().await);
            if reactor::now().duration_since(told) >= TELL {
                let shared = self.shared.clone();
                self.shared.block_on(move || shared.look_at_folder()).await;
                folder.watch_folder(&self.shared);
                self.shared.look_for_trouble();
                told = reactor::now();
            }
            reactor::sleep(TICK).await;
        }
    }

    fn report(&self, work: Work, result: Result<()>) {
        self.shared.troubles.work(work, result);
    }

    async fn keep_discarding(&self) {
        while !self.shared.is_closed() {
            if lock(&self.shared.state).space.has_discards() {
                self.shared.discard_freed().await;
            }
            reactor::sleep(TICK).await;
        }
    }
}

/// Freeing rests so many times as long as it worked.
const FREEING_REST: u32 = 4;

/// How often background work looks for something to do.
const TICK: Duration = Duration::from_millis(100);

/// How often what is wrong is looked at, and what was found is told.
const TELL: Duration = Duration::from_secs(1);
