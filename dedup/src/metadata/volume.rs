//! A volume in memory: its row, its map, and what commands need of it before they look at the map.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use futures_util::lock::Mutex as AsyncMutex;
use meta::{
    Compression, MapId, MapInfo, Mapping, Pba, Record, VerifyPolicy, VolumeInfo, VolumePolicy,
    VolumeState,
};

#[cfg(test)]
use crate::SUB_BLOCK_BYTES;
use crate::content::compress::Algorithm;
use crate::content::fingerprint::Hasher;
use crate::metadata::domain::Domains;
use crate::metadata::last_changes::LastChanges;
use crate::metadata::page_map::{NotResident, PageMap};
use crate::ranges;
use crate::sync::clock::LockTimes;
use crate::sync::range_lock::RangeLock;
use crate::sync::timed::Timed;
use crate::sync::wait::{Held, lock};

/// Volumes of a pool at most, those being deleted included (I6).
pub const VOLUMES_MAX: usize = 1024;

/// Snapshots of a pool at most, those being deleted included (I6). Their namespace identifiers follow those of volumes.
pub const SNAPSHOTS_MAX: usize = 8192;

/// No record has this number.
const NO_PARENT: u64 = u64::MAX;

/// What a record makes of the row of the volume that it is about.
pub(crate) fn change_row(info: &mut VolumeInfo, record: &Record) {
    match record {
        Record::VolumeResize {
            size_bytes,
            trimming,
            ..
        } => {
            info.size_bytes = *size_bytes;
            info.trimming.clone_from(trimming);
        }
        Record::VolumeRename { name, .. } => info.name.clone_from(name),
        Record::VolumePolicy { policy, .. } => info.set_policy(*policy),
        Record::Trimming { ranges, .. } => info.trimming.clone_from(ranges),
        Record::VolumeDelete { .. } => info.state = VolumeState::Deleting,
        _ => {}
    }
}

/// What commands need of a volume before they look at its map. Handles and state share it.
pub(crate) struct VolumeCore {
    pub(crate) id: u32,
    /// What becomes of what is written. It changes only while the whole volume is locked, so it stays the same as long
    /// as a range is.
    policy: PolicyBits,
    /// Writes compare in the background, or did since the pool was opened.
    compares_later: AtomicBool,
    domain: String,
    hasher: OnceLock<Arc<Hasher>>,
    pub(crate) range_lock: Arc<RangeLock>,
    /// Noted in pools that write through.
    pub(crate) last_changes: LastChanges,
    /// The map. It changes only while the whole volume is locked.
    map: AtomicU32,
    /// The record that made this map a child of another; [`NO_PARENT`] if none did.
    inherits_since: AtomicU64,
    /// Held by a task that changes the list of what is being trimmed, or unmaps it.
    pub(crate) trim_lock: AsyncMutex<()>,
    lba_bytes: u32,
    /// Hosts do not change it.
    pub(crate) is_snapshot: bool,
    size_bytes: AtomicU64,
    is_active: AtomicBool,
    /// The map's mappings. Its lock is taken after that of the state, or alone: hosts' reads take no other one.
    pages: Timed<PageMap>,
    is_whole: Arc<AtomicBool>,
    /// Sub-blocks that are being trimmed, and how many there were at most since there were any.
    trimming: AtomicU64,
    trimming_total: AtomicU64,
    info: Mutex<Arc<VolumeInfo>>,
}

impl VolumeCore {
    pub(crate) fn new(info: Arc<VolumeInfo>, pages: PageMap) -> Self {
        Self {
            id: info.id,
            policy: PolicyBits::new(info.policy()),
            compares_later: AtomicBool::new(info.verify == VerifyPolicy::Background),
            domain: info.domain.clone(),
            hasher: OnceLock::new(),
            range_lock: Arc::default(),
            last_changes: LastChanges::default(),
            map: AtomicU32::new(info.map),
            inherits_since: AtomicU64::new(NO_PARENT),
            trim_lock: AsyncMutex::default(),
            trimming: AtomicU64::new(ranges::total(&info.trimming)),
            trimming_total: AtomicU64::new(ranges::total(&info.trimming)),
            lba_bytes: info.lba_bytes,
            is_snapshot: info.snapshot.is_some(),
            size_bytes: AtomicU64::new(info.size_bytes),
            is_active: AtomicBool::new(info.state == VolumeState::Active),
            is_whole: pages.whole_flag(),
            pages: Timed::new(pages),
            info: Mutex::new(info),
        }
    }

    /// The number of its map. It stays the same as long as a range is locked, or the list of what is trimmed.
    pub(crate) fn map(&self) -> MapId {
        self.map.load(Ordering::Acquire)
    }

    /// The record since which its map has a parent, if it has one.
    pub(crate) fn inherits_since(&self) -> Option<u64> {
        let since = self.inherits_since.load(Ordering::Acquire);
        (since != NO_PARENT).then_some(since)
    }

    /// Its map is a child of another, by this record.
    pub(super) fn inherits(&self, map: MapId, since: u64) {
        self.inherits_since.store(since, Ordering::Release);
        self.map.store(map, Ordering::Release);
    }

    /// The name of its domain.
    pub(crate) fn name(&self) -> String {
        lock(&self.info).name.clone()
    }

    pub(crate) fn domain(&self) -> &str {
        &self.domain
    }

    /// Fingerprints for its domain.
    pub(crate) fn hasher(&self, domains: &Domains) -> &Arc<Hasher> {
        self.hasher.get_or_init(|| domains.hasher(&self.domain))
    }

    /// Whether what is written is fingerprinted.
    pub(crate) fn dedup(&self) -> bool {
        self.policy.load().dedup
    }

    /// How what is new is compressed, if it is.
    pub(crate) fn compression(&self) -> Option<Algorithm> {
        Algorithm::of(self.policy.load().compression)
    }

    /// What writes do about duplicates.
    pub(crate) fn verify(&self) -> VerifyPolicy {
        self.policy.load().verify
    }

    /// Whether a flush has to vouch for comparisons in the background: of now, or of an earlier policy, which may have
    /// failed.
    pub(crate) fn compares_later(&self) -> bool {
        self.compares_later.load(Ordering::Acquire)
    }

    /// Size, state or policy changed. Called under the state's lock.
    pub(crate) fn set_info(&self, info: Arc<VolumeInfo>) {
        self.size_bytes.store(info.size_bytes, Ordering::Release);
        self.policy.store(info.policy());
        if info.verify == VerifyPolicy::Background {
            self.compares_later.store(true, Ordering::Release);
        }
        let is_active = info.state == VolumeState::Active;
        self.is_active.store(is_active, Ordering::Release);
        let trimming = ranges::total(&info.trimming);
        let total = match trimming {
            0 => 0,
            _ => trimming.max(self.trimming_total.load(Ordering::Relaxed)),
        };
        self.trimming_total.store(total, Ordering::Relaxed);
        self.trimming.store(trimming, Ordering::Release);
        *lock(&self.info) = info;
    }

    /// Whether anything of the volume is being trimmed. If a task that holds a range sees `false`, nothing of its
    /// range is being trimmed until it lets go: a range is locked before it is added to the list.
    pub(crate) fn is_trimming(&self) -> bool {
        self.trimming.load(Ordering::Acquire) > 0
    }

    /// Bytes of its logical blocks.
    pub(crate) fn lba_bytes(&self) -> u32 {
        self.lba_bytes
    }

    /// Its size in bytes as it is now.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Whether it can be used.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Its row as it is now.
    pub(crate) fn info(&self) -> Arc<VolumeInfo> {
        lock(&self.info).clone()
    }

    /// The map, locked.
    pub(crate) fn pages(&self) -> Held<'_, PageMap> {
        lock(&self.pages)
    }

    /// Turns the clock of the map's lock on or off.
    pub(crate) fn time_pages(&self, is_on: bool) {
        self.pages.time(is_on);
    }

    /// What that clock counted.
    pub(crate) fn pages_times(&self) -> LockTimes {
        self.pages.times()
    }

    /// Gives `each` where sub-blocks that follow each other are stored, in order; nothing reads as zeros. A range is locked
    /// that they belong to.
    ///
    /// # Errors
    /// A page of the map must be brought in first; `each` was given what is before it.
    pub(crate) fn find_run(
        &self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, Option<Mapping>),
    ) -> std::result::Result<(), NotResident> {
        if !self.is_trimming() {
            return self.pages().find_run(start, end, each);
        }
        // What is looked at first is what ends last: something leaves the list when it is unmapped.
        let info = self.info();
        self.pages().find_run(start, end, |at, mapping| {
            each(at, mapping.filter(|_| !info.is_trimming(at)));
        })
    }

    /// Whether the whole map is resident. If a task that holds a range sees `true`, the range stays resident until
    /// it lets go.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Sub-blocks that are still to be trimmed, and that were to be at most since there were any.
    pub(crate) fn trim_progress(&self) -> (u64, u64) {
        let remaining = self.trimming.load(Ordering::Acquire);
        let total = self.trimming_total.load(Ordering::Relaxed);
        (remaining, total)
    }
}

/// A policy that is read without a lock.
struct PolicyBits(AtomicU8);

impl PolicyBits {
    const DEDUP: u8 = 1;
    const COMPARE: u8 = 2;
    const BACKGROUND: u8 = 4;
    const LZ4: u8 = 8;
    const ZSTD: u8 = 16;

    fn new(policy: VolumePolicy) -> Self {
        Self(AtomicU8::new(Self::bits(policy)))
    }

    fn bits(policy: VolumePolicy) -> u8 {
        let dedup = if policy.dedup { Self::DEDUP } else { 0 };
        let verify = match policy.verify {
            VerifyPolicy::Trust => 0,
            VerifyPolicy::Compare => Self::COMPARE,
            VerifyPolicy::Background => Self::BACKGROUND,
        };
        let compression = match policy.compression {
            Compression::Off => 0,
            Compression::Lz4 => Self::LZ4,
            Compression::Zstd => Self::ZSTD,
        };
        dedup | verify | compression
    }

    fn store(&self, policy: VolumePolicy) {
        self.0.store(Self::bits(policy), Ordering::Release);
    }

    fn load(&self) -> VolumePolicy {
        let bits = self.0.load(Ordering::Acquire);
        let has = |bit: u8| bits & bit != 0;
        VolumePolicy {
            dedup: has(Self::DEDUP),
            verify: match (has(Self::COMPARE), has(Self::BACKGROUND)) {
                (true, _) => VerifyPolicy::Compare,
                (_, true) => VerifyPolicy::Background,
                _ => VerifyPolicy::Trust,
            },
            compression: match (has(Self::LZ4), has(Self::ZSTD)) {
                (true, _) => Compression::Lz4,
                (_, true) => Compression::Zstd,
                _ => Compression::Off,
            },
        }
    }
}

/// A volume in memory.
pub(crate) struct VolumeEntry {
    pub(crate) info: Arc<VolumeInfo>,
    pub(crate) core: Arc<VolumeCore>,
}

impl VolumeEntry {
    /// One whose map is in the store only; if that has a parent, it is durable.
    pub(crate) fn stored(info: VolumeInfo, map: MapInfo, mapped: u64) -> Self {
        let inherits = map.parent.is_some();
        let info = Arc::new(info);
        let core = VolumeCore::new(info.clone(), PageMap::stored(map, mapped));
        if inherits {
            core.inherits(info.map, 0);
        }
        Self {
            core: Arc::new(core),
            info,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.info.state == VolumeState::Active
    }

    /// Its map, locked.
    pub(crate) fn map(&self) -> Held<'_, PageMap> {
        self.core.pages()
    }

    /// Where a sub-block's content is stored; `None` reads as zeros.
    ///
    /// # Errors
    /// Its page of the map must be brought in first.
    pub(crate) fn find(&self, sub_block: u64) -> std::result::Result<Option<Mapping>, NotResident> {
        if !self.info.trimming.is_empty() && self.info.is_trimming(sub_block) {
            return Ok(None);
        }
        self.map().find(sub_block)
    }

    /// Whether a sub-block, which was brought in, has its content there by an entry of the map's own.
    pub(crate) fn is_mapped_to(&self, sub_block: u64, pba: Pba) -> bool {
        let found = self.find(sub_block);
        let is_there = found.is_ok_and(|mapping| mapping.is_some_and(|mapping| mapping.pba == pba));
        is_there && self.map().is_own(sub_block)
    }

    /// Sub-blocks of the volume.
    #[cfg(test)]
    pub(crate) fn sub_blocks(&self) -> u64 {
        self.info.size_bytes / SUB_BLOCK_BYTES as u64
    }

    pub(super) fn change(&mut self, change: impl FnOnce(&mut VolumeInfo)) {
        change(Arc::make_mut(&mut self.info));
        self.core.set_info(self.info.clone());
    }
}
