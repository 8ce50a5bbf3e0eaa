//! Opening a pool for service: folder, drives, journal, store, engine; and making a new one.
//!
//! Guarantees:
//! - Nothing is written to a drive that holds something else than this pool's label.
//! - A pool is used only when every drive is there, whole, and carries the right label, but for those whose data others
//!   have: these are offline then.
//! - A pool in memory leaves nothing behind that could be taken for a pool.
//! - Errors name what is missing, in use or wrong, and the remedy.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dedup::{
    BATCH_BLOCKS_MAX, Blocking, BootId, Engine, EngineConfig, EngineParts, ErrorKind, Hasher,
    MissingDrives, Redundancy, check_room,
};
use drives::{AbsentDrive, BLOCK_BYTES, Drive, MemoryDrive, OpenOptions};
use fabric_drives::Claim;
use futures_util::lock::Mutex;
use meta::{
    Compression, DriveSpec, FingerprintFunction, JOURNAL_BYTES_DEFAULT, JournalConfig,
    JournalMedia, JournalOnDrives, LABEL_BYTES, Opening, PoolDir, PoolIdentity, PoolPaths,
    PoolSpec, RocksOptions, SHARED_KEY, SegmentCopy, Store, StoreOnDrives, VerifyPolicy,
    is_remote_drive,
};
use reactor::BufferPool;
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::{of_drive, of_meta};
use crate::known_drive::KnownDrive;
use crate::labels;
use crate::metadata::{AreaOfDrive, PoolMetadata};
use crate::new_drive::{
    MadeFiles, NewDrive, check_one_home, check_specs, label_of, open_named, usable_size,
};
use crate::opened_drive::{ClaimedDrives, OpenedDrive, is_in_cluster};
use crate::options::{DriveArg, VolumeArg, drive_path};

/// The largest default size of a pool and of its first volume.
const DEFAULT_POOL_BYTES: u64 = 64 << 30;

/// What a new pool without `--volume` gets.
const DEFAULT_VOLUME: &str = "vol0";

/// The drive file of a pool that names no drives, in its folder.
const DEFAULT_DRIVE: &str = "drive0";

/// The drive's path in the identity of a pool in memory. It is never opened by that name.
const MEMORY_DRIVE: &str = "memory";

/// Memory for reading and writing labels, in bytes: one copy at a time.
pub(crate) const LABEL_BUFFER_BYTES: usize = 2 * LABEL_BYTES;

/// What to open, and what to make if it is missing.
#[derive(Clone, Debug)]
pub struct PoolRequest {
    /// The pool's folder.
    pub dir: PathBuf,
    /// Make the pool if it is missing.
    pub create: Create,
    /// How a new pool computes its fingerprints; `None`: as suits this machine.
    pub fingerprint: Option<FingerprintFunction>,
    /// Copies of all data of a new pool; `None`: one.
    pub redundancy: Option<Redundancy>,
    /// Drives of a new pool; those of an existing one if any are given.
    pub drives: Vec<DriveArg>,
    /// Drives that become part of a new pool even if they hold data.
    pub force: Vec<PathBuf>,
    /// Volumes to make if they are missing.
    pub volumes: Vec<VolumeArg>,
    /// Fill levels that raise a warning, in percent.
    pub warn_at: Vec<u8>,
    /// Memory for the maps of volumes, in bytes.
    pub metadata_cache_bytes: u64,
    /// Memory for the index, in bytes.
    pub index_bytes_max: u64,
    /// How long a drive may take for what others have.
    pub drive_answer_max: Duration,
    /// After how long a read is asked of another drive too.
    pub hedge_after: Duration,
    /// Other nodes may take the pool over from its drives, which are on sleds: what is acknowledged is there. It is called with the
    /// reason when this node cannot go on without losing something to them, and ends the process.
    pub shared: Option<fn(&str)>,
}

impl PoolRequest {
    /// Whether there is no such pool yet, and one is asked for.
    #[must_use]
    pub fn makes_pool(&self) -> bool {
        let is_missing = !PoolDir::exists(&self.dir) && self.create != Create::No;
        is_missing || self.drives.iter().any(DriveArg::is_memory)
    }
}

/// Whether a missing pool is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// A missing pool is an error: a mistyped folder must not become an empty pool.
    No,
    /// With the default size.
    Default,
    /// With drive files of this size.
    Bytes(u64),
}

/// A pool in service.
pub struct OpenPool {
    /// The engine.
    pub engine: Arc<Engine>,
    /// The folder, locked as long as this lives. Drives are added under this mutex.
    pub dir: Arc<Mutex<PoolDir>>,
    /// Its metadata on its drives; `None` of a pool in memory.
    pub(crate) metadata: Option<Arc<PoolMetadata>>,
    /// The paths of its parts.
    pub paths: PoolPaths,
    /// The pool's identity.
    pub uuid: Uuid,
    /// Whether all of it is lost at the end.
    pub is_temporary: bool,
    /// Whether the pool was made just now.
    pub created: bool,
}

impl std::fmt::Debug for OpenPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPool")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

/// A pool in service, beside its folder.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) engine: Arc<Engine>,
    /// `None` of a pool in memory.
    pub(crate) metadata: Option<Arc<PoolMetadata>>,
}

impl Serving {
    /// The copies of the metadata say from here on that the pool is this.
    pub(crate) async fn note(&self, identity: &PoolIdentity) -> Result<(), Failure> {
        let Some(metadata) = self.metadata.clone() else {
            return Ok(());
        };
        let text = identity.to_text().map_err(of_meta)?;
        reactor::unblock(move || metadata.note_identity(&text)).await
    }

    /// What is kept for metadata on the drive with that index is this from here on.
    pub(crate) async fn set_area(
        &self,
        index: u16,
        area: Option<AreaOfDrive>,
    ) -> Result<(), Failure> {
        match self.metadata.clone() {
            None => Ok(()),
            Some(metadata) => reactor::unblock(move || metadata.set_area(index, area)).await,
        }
    }
}

impl OpenPool {
    /// What changes of its drives need.
    pub(crate) fn serving(&self) -> Serving {
        Serving {
            engine: self.engine.clone(),
            metadata: self.metadata.clone(),
        }
    }
}

/// Opens a pool, or makes it if it is missing and that was asked for. It blocks the reactor that it runs on, which must
/// not be one that serves hosts.
///
/// # Errors
/// Names what is missing, taken or wrong, and the remedy.
pub async fn open(request: &PoolRequest) -> Result<OpenPool, Failure> {
    open_claimed(request, ClaimedDrives::default()).await
}

/// The same of a pool that has been claimed.
///
/// # Errors
/// As of [`open`].
pub(crate) async fn open_claimed(
    request: &PoolRequest,
    claimed: ClaimedDrives,
) -> Result<OpenPool, Failure> {
    let buffers = BufferPool::new(LABEL_BUFFER_BYTES)
        .map_err(|e| Failure::unavailable(format!("no memory for buffers: {e}")))?;
    let memory = memory_bytes(&request.drives)?;
    let named = request.drives.iter().filter_map(|drive| match drive {
        DriveArg::Path { path, .. } => Some(drive_path(path)),
        DriveArg::Memory { .. } => None,
    });
    let named: Vec<PathBuf> = named.collect::<Result<_, _>>().map_err(Failure::invalid)?;
    check_named_once(&named)?;
    let created = request.makes_pool();
    let Opened { dir, drives, areas } = match memory {
        Some(bytes) => create_in_memory(request, bytes)?,
        None if created => create(request, &buffers).await?,
        None => open_existing(request, claimed, &buffers).await?,
    };
    let defers = areas.iter().any(|(_, area)| area.flushes_data);
    let folder = dir
        .open_served_store(RocksOptions::default())
        .map_err(of_meta)?;
    let (folder, file) = (Arc::new(folder), dir.open_journal().map_err(of_meta)?);
    let file = Arc::new(file);
    let metadata = match dir.is_temporary() {
        true => None,
        false => {
            let (pool, path) = (dir.identity().uuid, dir.paths().dir.clone());
            let text = dir.identity().to_text().map_err(of_meta)?;
            let (store, journal) = (folder.clone(), file.clone());
            let answer_max = request.drive_answer_max;
            let opened = reactor::unblock(move || {
                PoolMetadata::open((pool, &path, &text), store, journal, areas, answer_max)
            });
            Some(Arc::new(opened.await?))
        }
    };
    let (store, journal): (Arc<dyn Store>, Arc<dyn JournalMedia>) = match &metadata {
        None => (folder, file),
        Some(metadata) => (
            Arc::new(StoreOnDrives::new(metadata.copies.clone())),
            Arc::new(JournalOnDrives::new(metadata.copies.clone())),
        ),
    };
    // The node that goes on with it has what is on the drives, and no folder.
    let mut of_pool = dir.identity().drives.iter();
    let write_through = request.shared.is_some()
        || of_pool.any(|drive| !drive.is_removed && is_in_cluster(&drive.path));
    // There an operation costs more than what it moves.
    let batch_blocks = match write_through {
        true => BATCH_BLOCKS_MAX,
        false => EngineConfig::default().batch_blocks,
    };
    let parts = EngineParts {
        drives,
        journal,
        store,
        hash_keys: dir.identity().hash_keys.clone(),
        fingerprint: dir.identity().fingerprint,
        blocking: Blocking::Threads,
        // What a drive has in memory is lost with the program, as if power were lost. Of a shared pool nothing is acknowledged that a sled
        // can lose with its power, so what it lost is taken back.
        boot: BootId::current().filter(|_| !defers && request.shared.is_none()),
        config: EngineConfig {
            fill_warnings: request.warn_at.clone(),
            metadata_cache_bytes: request.metadata_cache_bytes,
            index_bytes_max: request.index_bytes_max,
            drive_answer_max: request.drive_answer_max,
            hedge_after: request.hedge_after,
            write_through,
            when_read_only: request.shared,
            batch_blocks,
            damage_file: Some(dir.paths().damaged.clone()),
            labels: labels::of_pool(&dir)?,
            copies: request.redundancy.map_or(1, Redundancy::copies),
            domains: {
                let drives = dir.identity().drives.iter();
                let domains =
                    drives.map(|drive| drive.domain.clone().filter(|_| !drive.is_removed));
                domains.collect()
            },
            removed: dir.identity().removed().collect(),
            ..EngineConfig::default()
        },
    };
    let engine = Engine::open(parts).await?;
    let redundancy = engine.redundancy();
    if request.redundancy.is_some_and(|asked| asked != redundancy) {
        tracing::warn!(%redundancy, "the pool exists with another redundancy than is asked for: it keeps its own");
    }
    if !engine.summary().is_read_only {
        dir.forget_accepted_epoch();
    }
    if let Some(metadata) = metadata.clone() {
        let identity = dir.identity().to_text().map_err(of_meta)?;
        if let Some(cut_off) = request.shared {
            metadata.share(cut_off);
        }
        reactor::unblock(move || metadata.opened(&identity, write_through)).await?;
    }
    note_sharing(&engine, request.shared.is_some()).await?;
    if let Some(metadata) = metadata.as_ref().filter(|_| request.shared.is_none()) {
        metadata.copies.end_sharing();
    }
    let mut volumes = request.volumes.clone();
    if created && volumes.is_empty() {
        volumes.push(VolumeArg {
            name: DEFAULT_VOLUME.to_owned(),
            size_bytes: default_volume_bytes(engine.summary().capacity_bytes),
            lba_bytes: BLOCK_BYTES as u32,
            dedup: true,
            compression: Compression::Off,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
            uuid: None,
        });
    }
    for volume in volumes {
        create_volume(&engine, volume).await?;
    }
    Ok(OpenPool {
        engine,
        paths: dir.paths().clone(),
        uuid: dir.identity().uuid,
        is_temporary: dir.is_temporary(),
        dir: Arc::new(Mutex::new(dir)),
        metadata,
        created,
    })
}

/// Notes in the pool whether nodes share it.
async fn note_sharing(engine: &Engine, is_shared: bool) -> Result<(), Failure> {
    let noted = is_shared.then(|| b"1".to_vec());
    if engine.summary().is_read_only || engine.setting(SHARED_KEY).is_some() == is_shared {
        return Ok(());
    }
    engine
        .change_settings(vec![(SHARED_KEY.to_owned(), noted)])
        .await?;
    Ok(())
}

/// The size of a pool in memory, if one is asked for.
fn memory_bytes(drives: &[DriveArg]) -> Result<Option<u64>, Failure> {
    match drives {
        [DriveArg::Memory { size_bytes }] => usable_size(*size_bytes, "the memory drive").map(Some),
        several if several.iter().any(DriveArg::is_memory) => Err(Failure::invalid(
            "a memory drive must be the only drive: its data are lost at the end, and the pool with them; name it as the \
             only --drive",
        )),
        _ => Ok(None),
    }
}

/// A pool for measurements: data in memory, journal and metadata in files as usual, all deleted at the end.
fn create_in_memory(request: &PoolRequest, bytes: u64) -> Result<Opened, Failure> {
    let dir = &request.dir;
    if PoolDir::exists(dir) {
        return Err(Failure::invalid(format!(
            "'{}' holds a pool on real drives: name another folder with --pool, or serve that pool \
             without --drive memory",
            dir.display()
        )));
    }
    let blocks = bytes / BLOCK_BYTES as u64;
    check_memory(bytes)?;
    let spec = spec_of(request, vec![DriveSpec::new(MEMORY_DRIVE, blocks)]);
    let creation = PoolDir::begin(dir, &spec).map_err(of_meta)?;
    tracing::warn!(
        bytes,
        "the pool is in memory, for measurements: NOTHING IS KEPT when this program ends"
    );
    let drive = MemoryDrive::resident(blocks).map_err(of_drive)?;
    let drive: Arc<dyn Drive> = Arc::new(drive);
    let dir = creation.finish_temporary().map_err(of_meta)?;
    Ok(Opened {
        dir,
        drives: vec![drive],
        areas: Vec::new(),
    })
}

/// Whether a drive in memory of that size fits this machine.
///
/// # Errors
/// It does not.
pub(crate) fn check_memory(bytes: u64) -> Result<(), Failure> {
    if let Some(available) = crate::machine::available_memory_bytes()
        && bytes > available
    {
        return Err(Failure::invalid(format!(
            "the memory drive of {bytes} bytes does not fit this machine's available memory, \
             {available} bytes; name a smaller one"
        )));
    }
    Ok(())
}

/// Makes a volume if it is missing. One that exists stays as it is: its size is changed by
/// `onefold volume resize`, so that a start with the first day's command line never undoes that.
async fn create_volume(engine: &Engine, volume: VolumeArg) -> Result<(), Failure> {
    if let Some(present) = engine.volume(&volume.name) {
        let info = present.info();
        let is = VolumeArg {
            name: info.name.clone(),
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            dedup: info.dedup,
            compression: info.compression,
            verify: info.verify,
            domain: info.domain.clone(),
            uuid: volume.uuid.map(|_| info.uuid),
        };
        if is != volume {
            tracing::warn!(
                volume = volume.name,
                size_bytes = info.size_bytes,
                lba_bytes = info.lba_bytes,
                dedup = info.dedup,
                compression = %info.compression,
                verify = %info.verify,
                domain = info.domain,
                uuid = %info.uuid,
                "the volume exists and is not what is asked for: it stays as it is"
            );
        }
        return Ok(());
    }
    engine.create_volume(volume.spec()).await?;
    Ok(())
}

/// What a volume may have so that all of it fits a pool of this size, whatever is written: an overwrite needs
/// a new block before it frees the old one.
fn default_volume_bytes(capacity_bytes: u64) -> u64 {
    const GRAIN: u64 = 1 << 20;
    let reserve = (capacity_bytes / 64).max(GRAIN);
    capacity_bytes.saturating_sub(reserve) / GRAIN * GRAIN
}

/// A new pool on these drives.
fn spec_of(request: &PoolRequest, drives: Vec<DriveSpec>) -> PoolSpec {
    PoolSpec {
        fingerprint: request.fingerprint.unwrap_or_else(Hasher::suited),
        journal_bytes: journal_bytes(&drives),
        ..PoolSpec::new(drives)
    }
}

/// Bytes of the journal: all of it is on drives too, and takes a part of the smallest one.
fn journal_bytes(drives: &[DriveSpec]) -> u64 {
    const DRIVE_SHARE: u64 = 64;
    let keep = drives.iter().filter(|drive| drive.metadata_blocks > 0);
    let smallest = keep.map(|drive| drive.blocks + drive.metadata_blocks).min();
    let share = smallest.map(|blocks| blocks / DRIVE_SHARE * BLOCK_BYTES as u64);
    share.map_or(JOURNAL_BYTES_DEFAULT, |share| {
        share.min(JOURNAL_BYTES_DEFAULT)
    })
}

/// A pool's folder and drives.
struct Opened {
    dir: PoolDir,
    drives: Vec<Arc<dyn Drive>>,
    /// What is kept for metadata on them, with their indexes.
    areas: Vec<(u16, AreaOfDrive)>,
}

async fn open_existing(
    request: &PoolRequest,
    mut claimed: ClaimedDrives,
    buffers: &BufferPool,
) -> Result<Opened, Failure> {
    let dir = PoolDir::open(&request.dir).map_err(of_meta)?;
    let fingerprint = dir.identity().fingerprint;
    if request
        .fingerprint
        .is_some_and(|asked| asked != fingerprint)
    {
        tracing::warn!(%fingerprint, "the pool exists with another fingerprint than is asked for: it keeps its own");
    }
    check_named_drives(&dir, &request.drives)?;
    let mut drives: Vec<Arc<dyn Drive>> = Vec::new();
    let mut areas = Vec::new();
    let mut unusable: Vec<(u16, Failure)> = Vec::new();
    for (index, spec) in (0u16..).zip(&dir.identity().drives) {
        if spec.is_removed {
            drives.push(Arc::new(AbsentDrive::removed(&spec.path, spec.blocks)));
            continue;
        }
        let known = KnownDrive::of(&dir, index)?;
        let is_left_out = claimed.is_left_out(&known.path);
        let opened = match claimed.take(spec.uuid, spec.blocks + spec.metadata_blocks) {
            Some(drive) => known.verify(&drive, buffers).await.map(|()| drive),
            None if is_left_out => Err(Failure::unavailable(format!(
                "'{}' did not answer when this node took the pool over",
                known.path.display()
            ))),
            None => {
                let opened = known.open(Claim::Again, buffers).await;
                opened.map(|(_, drive)| drive)
            }
        };
        match opened {
            Ok(drive) => {
                if dir.identity().drives.len() == 1 {
                    drive.defer_writes(spec);
                }
                let (drive, area) = drive.into_parts(spec);
                drives.push(drive);
                areas.extend(area.map(|area| (index, area)));
            }
            Err(failure) => {
                let path = dir.drive_path(index).unwrap_or_else(|| spec.path.clone());
                let reason = failure.message.clone();
                let absent = AbsentDrive::new(path.display().to_string(), spec.blocks, reason);
                drives.push(Arc::new(absent));
                unusable.push((index, failure));
            }
        }
    }
    if !unusable.is_empty() && !can_go_without(&dir, &unusable) {
        return Err(without_drives(&dir, unusable));
    }
    for (_, failure) in &unusable {
        tracing::error!("the pool opens without a drive: {}", failure.message);
    }
    Ok(Opened { dir, drives, areas })
}

/// Whether all data is on other drives too. Whether these have all that was acknowledged, the engine knows.
fn can_go_without(dir: &PoolDir, unusable: &[(u16, Failure)]) -> bool {
    let rows = dir.open_served_store(RocksOptions::default());
    let Ok(rows) = rows.and_then(|store| store.segments()) else {
        return false;
    };
    let is_there = |copy: &SegmentCopy| unusable.iter().all(|(index, _)| *index != copy.drive);
    !rows.is_empty()
        && rows
            .iter()
            .all(|(_, row)| row.copies().is_empty() || row.copies().iter().any(is_there))
}

/// The error for drives that cannot be used: each with its reason, and the volumes with data on it.
fn without_drives(dir: &PoolDir, unusable: Vec<(u16, Failure)>) -> Failure {
    let indexes: Vec<u16> = unusable.iter().map(|(index, _)| *index).collect();
    let mut unusable = unusable.into_iter();
    let Some((_, mut failure)) = unusable.next() else {
        return Failure::new(ErrorKind::Internal, "no drive is missing");
    };
    for (_, other) in unusable {
        failure.message += &format!("; {}", other.message);
    }
    failure.message += "\n";
    failure.message += &match affected_volumes(dir, &indexes) {
        Ok(text) => text,
        Err(error) => format!(
            "Which volumes have data on it is unknown, because the metadata cannot be read: {}",
            error.message
        ),
    };
    failure
}

fn affected_volumes(dir: &PoolDir, drives: &[u16]) -> Result<String, Failure> {
    let journal = Arc::new(dir.open_journal().map_err(of_meta)?);
    let store = dir
        .open_served_store(RocksOptions::default())
        .map_err(of_meta)?;
    let MissingDrives {
        affected,
        unaffected,
    } = MissingDrives::look_up(&store, journal, JournalConfig::default(), drives)?;
    let list = |names: Vec<String>| names.join(", ");
    let affected: Vec<String> = affected
        .iter()
        .map(|volume| format!("'{}' ({} bytes)", volume.name, volume.bytes))
        .collect();
    let unaffected: Vec<String> = unaffected.iter().map(|name| format!("'{name}'")).collect();
    let mut text = match affected.is_empty() {
        true => "No volume has data there".to_owned(),
        false => format!("Volumes with data there: {}", list(affected)),
    };
    if !unaffected.is_empty() {
        text += &format!(". Without: {}", list(unaffected));
    }
    Ok(text + ". The pool opens when all of its drives are there; nothing was changed.")
}

/// Where the drives of a pool are, whatever links lead there, with their indexes; without those that were removed.
pub(crate) fn own_drives(dir: &PoolDir) -> Vec<(u16, PathBuf)> {
    let drives = (0u16..).zip(&dir.identity().drives);
    let drives = drives.filter(|(_, drive)| !drive.is_removed);
    drives
        .filter_map(|(index, _)| Some((index, canonical(&dir.drive_path(index)?))))
        .collect()
}

/// Where links lead to, or the path itself; of what is elsewhere its address in the form that pools have.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    if is_remote_drive(path) {
        return drive_path(path).unwrap_or_else(|_| path.to_owned());
    }
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Refuses a drive that is named twice, also by two names of the same file or device.
pub(crate) fn check_named_once(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut named = BTreeSet::new();
    match paths.iter().find(|path| !named.insert(canonical(path))) {
        None => Ok(()),
        Some(twice) => Err(Failure::invalid(format!(
            "'{}' is named twice: name each drive once",
            twice.display()
        ))),
    }
}

/// Drives that are named for an existing pool must be its own: whoever names others is mistaken in the
/// pool or in the drive.
fn check_named_drives(dir: &PoolDir, named: &[DriveArg]) -> Result<(), Failure> {
    let own = own_drives(dir);
    for drive in named {
        let DriveArg::Path {
            path: named,
            domain,
            ..
        } = drive
        else {
            continue;
        };
        let known = own.iter().find(|(_, own)| *own == canonical(named));
        let known = known.and_then(|(at, _)| dir.identity().drives.get(usize::from(*at)));
        if known.is_some_and(|known| domain.is_some() && known.domain != *domain) {
            tracing::warn!(
                drive = %named.display(),
                "the pool exists with another failure domain of the drive than is asked for: it keeps its own"
            );
        }
        if known.is_none() {
            return Err(Failure::invalid(format!(
                "'{}' is not a drive of the pool '{}': the pool exists and has its drives already; start \
                 it without --drive, or name another pool",
                named.display(),
                dir.paths().dir.display(),
            )));
        }
    }
    Ok(())
}

async fn create(request: &PoolRequest, buffers: &BufferPool) -> Result<Opened, Failure> {
    let file_bytes = match request.create {
        Create::Bytes(bytes) => bytes,
        Create::Default | Create::No => default_bytes(&request.dir)?,
    };
    check_forced(request)?;
    let mut made = MadeFiles::default();
    let (specs, named) = plan_drives(request, file_bytes, &mut made).await?;
    check_specs(request.shared.is_some(), &specs)?;
    let drives: Vec<_> = specs
        .iter()
        .map(|drive| (drive.blocks, drive.domain.clone()))
        .collect();
    check_room(&drives, request.redundancy.unwrap_or_default())?;
    let mut creation = PoolDir::begin(&request.dir, &spec_of(request, specs)).map_err(of_meta)?;
    // Dropped before the creation, which removes the folder that they may be in.
    let mut made = made;
    let mut checked = Vec::new();
    let mut named = named.into_iter();
    for (index, spec) in (0u16..).zip(creation.identity().drives.clone()) {
        let path = creation
            .drive_path(index)
            .unwrap_or_else(|| spec.path.clone());
        let drive = match named.next() {
            Some(drive) => drive,
            None => {
                let blocks = spec.blocks + spec.metadata_blocks;
                let options = OpenOptions {
                    create_bytes: Some(blocks * BLOCK_BYTES as u64),
                    expected_blocks: Some(blocks),
                };
                let drive = OpenedDrive::open(&path, &options).await.map_err(of_drive)?;
                made.note(&drive, &path);
                drive
            }
        };
        let label = label_of(creation.identity(), index)?;
        let drive = NewDrive {
            is_forced: is_among(&request.force, &path),
            // An earlier attempt to make this very pool was interrupted.
            is_retry: labels::found(drive.drive(), buffers)
                .await?
                .is_some_and(|found| found.drive.pool == label.pool),
            drive,
            path,
            label,
            opening: Opening {
                drives: creation.identity().drives.len() as u16,
                ..labels::opening(&request.dir)
            },
        };
        drive.check(buffers).await?;
        checked.push(drive);
    }
    // Nothing is written to any of them before all can be taken.
    creation.will_label();
    made.keep();
    let mut drives: Vec<Arc<dyn Drive>> = Vec::new();
    let mut areas = Vec::new();
    let specs = creation.identity().drives.clone();
    for (index, (drive, spec)) in (0u16..).zip(checked.into_iter().zip(&specs)) {
        let drive = drive.take(buffers).await?;
        if specs.len() == 1 {
            drive.defer_writes(spec);
        }
        let (drive, area) = drive.into_parts(spec);
        drives.push(drive);
        areas.extend(area.map(|area| (index, area)));
    }
    let files: Vec<PathBuf> = drives.iter().map(|drive| drive.name().into()).collect();
    for warning in crate::room::shortages(&files) {
        tracing::warn!("{warning}");
    }
    Ok(Opened {
        dir: creation.finish().map_err(of_meta)?,
        drives,
        areas,
    })
}

/// The drives of a new pool. Those that were named are opened at once, because their sizes are needed;
/// the default one is made in the pool's folder later.
async fn plan_drives(
    request: &PoolRequest,
    file_bytes: u64,
    made: &mut MadeFiles,
) -> Result<(Vec<DriveSpec>, Vec<OpenedDrive>), Failure> {
    if request.drives.is_empty() {
        let bytes = usable_size(file_bytes, "the pool")?;
        // It keeps no metadata: it is lost with the folder.
        let spec = DriveSpec::new(DEFAULT_DRIVE, bytes / BLOCK_BYTES as u64);
        return Ok((vec![spec], Vec::new()));
    }
    check_one_home(request.drives.iter().filter_map(|named| match named {
        DriveArg::Path { path, .. } => Some(path.as_path()),
        DriveArg::Memory { .. } => None,
    }))?;
    let (mut specs, mut drives) = (Vec::new(), Vec::new());
    for named in &request.drives {
        let DriveArg::Path {
            path,
            size_bytes,
            domain,
        } = named
        else {
            continue;
        };
        let (mut spec, drive) = open_named(path, *size_bytes, Some(file_bytes), 0).await?;
        spec.domain.clone_from(domain);
        made.note(&drive, &spec.path);
        specs.push(spec);
        drives.push(drive);
    }
    Ok((specs, drives))
}

/// 64 GiB, or most of what the file system has left: a thin drive file larger than that would promise
/// what it cannot hold.
fn default_bytes(dir: &Path) -> Result<u64, Failure> {
    let existing = dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() {
        Path::new(".")
    } else {
        existing
    };
    let space = rustix::fs::statvfs(existing).map_err(|e| {
        Failure::unavailable(format!(
            "the file system of '{}' tells no size: {e}",
            existing.display()
        ))
    })?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(DEFAULT_POOL_BYTES.min(free / 10 * 9))
}

/// Paths that are forced must be among the drives: whoever types another one is mistaken in one of them.
fn check_forced(request: &PoolRequest) -> Result<(), Failure> {
    let is_named = |forced: &&PathBuf| {
        request.drives.iter().any(|drive| match drive {
            DriveArg::Path { path, .. } => canonical(path) == canonical(forced),
            DriveArg::Memory { .. } => false,
        })
    };
    match request.force.iter().find(|forced| !is_named(forced)) {
        None => Ok(()),
        Some(forced) => Err(Failure::invalid(format!(
            "--force names '{}', and no --drive does: it takes the path of the drive that may be overwritten",
            forced.display()
        ))),
    }
}

fn is_among(paths: &[PathBuf], path: &Path) -> bool {
    paths.iter().any(|one| canonical(one) == canonical(path))
}
