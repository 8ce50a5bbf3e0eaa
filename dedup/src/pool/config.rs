//! What an engine is opened with: drives, journal, store, bounds and intervals.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drives::Drive;
use meta::{FingerprintFunction, HashKeys, JournalConfig, JournalMedia, Store};

use crate::drive_io::labels::PoolLabels;
#[cfg(test)]
use crate::sync::wait::yield_once;
use crate::{BootId, EngineError, Result};

/// Where blocking calls (journal sync, the store) run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// At once, on the calling thread: simulation, tools.
    Inline,
    /// On the reactor's bounded pool of helper threads (`reactor::unblock`).
    Threads,
    /// At once, with other tasks polled before and after: simulation of the other two.
    #[cfg(test)]
    Yielding,
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
    pub trim_record_entries: usize,
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
    /// ([`crate::Engine::verdict`]).
    pub quiet: Duration,
    /// File that keeps the list of damaged blocks over a restart; `None` keeps it in memory only.
    pub damage_file: Option<PathBuf>,
    /// How old figures of what volumes share may be ([`crate::Engine::last_survey`]) when something changed; those of a
    /// pool that is counted quickly are newer.
    pub survey_interval: Duration,
    /// Whether a change of a volume is acknowledged only when it survives a loss of power, as a write with FUA is: for pools that
    /// another node may go on with, which has what is on the drives and nothing else.
    pub write_through: bool,
    /// Called with the reason when a failure makes the pool read-only while it is in use, before anybody hears of that: for pools that
    /// can be opened again elsewhere. Commands of hosts wait for it.
    pub when_read_only: Option<fn(&str)>,
    /// With so many sub-blocks a batch of writes is full, from 1 to [`BATCH_BLOCKS_MAX`]. On local drives few enough that they
    /// stay in the processor's cache from the hash to the drive. Where each operation costs a drive much, as in a cluster, more
    /// of them share one.
    pub batch_blocks: usize,
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
    /// Copies of all data of a new pool, on different drives: 1 to 3. A pool keeps what it was made with.
    pub copies: usize,
    /// The failure domain of each drive, by its index: copies of a segment lie in different ones. A drive without one fails
    /// alone, as one that is missing here.
    pub domains: Vec<Option<String>>,
    /// How long a read or a write of a drive may take whose data others have: then the drive is offline. A flush or a discard
    /// may take ten times as long, a flush if the drive answers reads meanwhile. For pools with copies.
    pub drive_answer_max: Duration,
    /// Bytes of buffers that a drive has at the same time at most, whose data others have: a drive that hangs keeps them until the
    /// system gives it up. A quarter of the smallest pool of buffers leaves enough for all others. For pools with copies.
    pub drive_in_flight_bytes: usize,
    /// A read of a drive that takes so long, and eight times as long as reads of another drive with the same data, is asked of that
    /// one too; zero: never. For pools with copies.
    pub hedge_after: Duration,
    /// Bounds of the journal.
    pub journal: JournalConfig,
    /// What the drives' labels are to say; `None` for drives without labels, as those in memory: their first blocks are
    /// neither read nor written then.
    pub labels: Option<PoolLabels>,
    /// Indexes of drives that were removed from the pool: what stands for them in the list of drives is absent for good.
    pub removed: Vec<u16>,
}

/// The smallest [`EngineConfig::bounce_bytes`]: the largest command, unaligned at both ends, whatever
/// the shape of the buffer pool's blocks.
pub const BOUNCE_BYTES_MIN: usize = 4 << 20;

/// The largest [`EngineConfig::batch_blocks`]: 1 MiB, which is what one operation of a drive in a cluster writes.
pub const BATCH_BLOCKS_MAX: usize = 256;

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
            trim_record_entries: 256,
            trim_at_once: 16 * 1024,
            discard: true,
            bounce_bytes: 16 << 20,
            fill_warnings: vec![80, 90, 95],
            quiet: Duration::from_secs(10),
            damage_file: None,
            survey_interval: Duration::from_secs(600),
            write_through: false,
            when_read_only: None,
            batch_blocks: 64,
            references_max: u32::MAX,
            metadata_cache_bytes: 1 << 30,
            index_bytes_max: u64::MAX,
            verify_bytes_max: 16 << 20,
            domains: Vec::new(),
            copies: 1,
            drive_answer_max: Duration::from_secs(1),
            drive_in_flight_bytes: 4 << 20,
            hedge_after: Duration::from_millis(10),
            journal: JournalConfig::default(),
            labels: None,
            removed: Vec::new(),
        }
    }
}

impl EngineConfig {
    /// Whether all bounds are possible.
    ///
    /// # Errors
    /// Names the field that is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: &str| {
            Err(EngineError::invalid(format!(
                "engine configuration: {what}"
            )))
        };
        if !(1..=meta::UNMAP_ENTRIES_MAX).contains(&self.trim_record_entries) {
            return wrong("`trim_record_entries` must be 1 to 32768");
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
        check_fill_warnings(&self.fill_warnings)?;
        if self.metadata_cache_bytes < METADATA_CACHE_BYTES_MIN && !cfg!(test) {
            return wrong("`metadata_cache_bytes` must be at least 8 MiB");
        }
        if !(1..=meta::COPIES_MAX).contains(&self.copies) {
            return wrong("`copies` must be 1 to 3");
        }
        if self.drive_in_flight_bytes == 0 {
            return wrong("`drive_in_flight_bytes` must be at least 1");
        }
        if !(1..=BATCH_BLOCKS_MAX).contains(&self.batch_blocks) {
            return wrong("`batch_blocks` must be 1 to 256");
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
    /// The pool's secrets: fingerprints are keyed with them.
    pub hash_keys: HashKeys,
    /// How fingerprints are computed: what the pool was made with.
    pub fingerprint: FingerprintFunction,
    /// Where blocking calls run.
    pub blocking: Blocking,
    /// Which start of the machine this is, for what was on the drives and not flushed; `None`: power may
    /// have been lost since the pool was open.
    pub boot: Option<BootId>,
    /// Bounds and intervals.
    pub config: EngineConfig,
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
        Blocking::Yielding => {
            yield_once().await;
            let result = work();
            yield_once().await;
            result
        }
    }
}

/// Whether these can be levels to warn at.
///
/// # Errors
/// `Invalid` if they do not rise or are above 100.
pub(crate) fn check_fill_warnings(levels: &[u8]) -> Result<()> {
    match levels.is_sorted() && levels.iter().all(|level| *level <= 100) {
        true => Ok(()),
        false => Err(EngineError::invalid(
            "engine configuration: `fill_warnings` must be percentages up to 100, in order",
        )),
    }
}
