//! The offline check of a pool (`onefold pool check`). It changes nothing, and makes no file: it works on a file
//! system that takes no writes.
//!
//! It proves: every drive is there, whole and the right one; the journal can be read up to its end;
//! mappings, counts, blocks and volumes agree as they will be when the journal has been replayed (I4);
//! and, on request, every block in use holds the content that its checksum and fingerprint (if it has
//! one) say. Blocks that are known to be damaged are read in any case. What was not looked at is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use drives::{AbsentDrive, BLOCK_BYTES, Drive, DriveError, Extent, GatherExtent, LocalBoxFuture};
use futures_util::FutureExt;
use meta::{
    BlockRow, ChosenLabel, LABEL_BYTES, LoadVisitor, MapId, MapInfo, Mapping, MetaErrorKind, Pba,
    PoolDir, RocksOptions, RowKind, Store, VolumeInfo, is_remote_drive,
};
use reactor::{Buffer, BufferPool};
use serde::Serialize;

use super::{lineage, remote};
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::drive_state::{conditions_of, copies_of};
use crate::drive_io::layout::{self, Wanted};
use crate::drive_io::reader::read_proven;
use crate::log::labels::{self, OlderCopy};
use crate::log::recovery::{blocks_there, next_checkpoint, replay};
use crate::metadata::domain::Hashers;
use crate::pool::config::{BOUNCE_BYTES_MIN, EngineParts};
use crate::pool::damage_list::{Damage, DamageStatus};
use crate::pool::finding::CheckFinding;
use crate::{Blocking, BootId, EngineConfig, EngineError, Result};

/// Findings that are described; more are only counted.
const FINDINGS_MAX: usize = 100;

/// Blocks whose rows are read at a time.
const SCAN_BLOCKS: u64 = 64 * 1024;

/// Mappings to damaged blocks that are told by range; more are only errors when they are read.
const REFERRERS_MAX: usize = 1 << 20;

/// Who is told how far a check of the data is: blocks of the drives that were looked at, and all of them.
#[derive(Clone, Copy, Default)]
pub struct Watch<'a>(Option<&'a dyn Fn(u64, u64)>);

impl<'a> Watch<'a> {
    /// This function is called now and then, the last time when all is done.
    pub fn new(told: &'a dyn Fn(u64, u64)) -> Self {
        Self(Some(told))
    }

    fn tell(&self, done: u64, all: u64) {
        if let Some(told) = self.0 {
            told(done, all);
        }
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.0.is_some()).finish()
    }
}

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions<'a> {
    /// Read every block in use, and compare it with its checksum and, if it was written to a volume
    /// with deduplication, its fingerprint. Takes as long as reading the pool.
    pub data: bool,
    /// Bytes that its tables of blocks take at most. Where they do not hold all blocks, the mappings are read more than
    /// once: about 8.4 bytes a block are needed for each pass.
    pub memory_bytes: usize,
    /// Who is told how far it is.
    pub watch: Watch<'a>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            data: false,
            memory_bytes: meta::CHECK_MEMORY_BYTES,
            watch: Watch::default(),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Whether nothing wrong was found, in what was looked at.
    pub consistent: bool,
    /// What was not looked at, and how to have it looked at.
    pub not_looked_at: Vec<String>,
    /// Damaged data: what refers to it. Every block of it is in a finding of its drive too.
    pub damage: DamageStatus,
    /// Volumes, those being deleted included.
    pub volumes: u64,
    /// Mapped sub-blocks of all volumes.
    pub mappings: u64,
    /// Physical blocks in use.
    pub blocks: u64,
    /// Blocks whose content another block holds too: waste, no damage. An estimate where there was more than one pass.
    pub duplicate_fingerprints: u64,
    /// How often the mappings were read.
    pub passes: u64,
    /// Records in the journal that are not in the store yet.
    pub journal_records: u64,
    /// Sub-blocks that the next opening takes back, because their unflushed data never arrived.
    pub unproven: u64,
    /// Blocks that were read and compared.
    pub data_blocks_checked: u64,
    /// How many findings there are.
    pub findings_total: u64,
    /// How many of them are about damaged data: one for each drive that has some.
    pub findings_of_data: u64,
    /// The first of them.
    pub findings: Vec<CheckFinding>,
}

impl CheckReport {
    pub(crate) fn find(&mut self, object: impl Display, detail: impl Display) {
        self.findings_total += 1;
        if self.findings.len() < FINDINGS_MAX {
            let (object, detail) = (object.to_string(), detail.to_string());
            self.findings.push(CheckFinding { object, detail });
        }
    }
}

/// Checks the pool in `dir`, which no other process may be using.
///
/// # Errors
/// Only if the check could not be made: there is no pool, or it is in use, or it cannot be read. What
/// is wrong with the pool is in the report.
pub fn check_pool(dir: &Path, options: CheckOptions<'_>) -> Result<CheckReport> {
    let pool = PoolDir::look(dir)?;
    let mut report = CheckReport::default();
    let found = open_drives(&pool, &mut report)?;
    let journal = finding(
        &mut report,
        pool.paths().journal.display(),
        pool.open_journal(),
    )?;
    let store = pool.open_store(RocksOptions::default());
    let store = finding(&mut report, pool.paths().metadata.display(), store)?;
    if let (Some(found), Some(journal), Some(store)) = (found, journal, store) {
        let store: Arc<dyn Store> = Arc::new(store);
        for (at, label) in &found.labels {
            if label.is_half {
                report.find(found.name_of(*at), "one of its two labels is damaged");
            }
        }
        let epoch = store.checkpoint()?.epoch;
        for older in found.older_copies(&*store, pool.accepted_epoch()?)? {
            let name = |at| found.name_of(at);
            report.find("pool", older.told(epoch, name));
        }
        let drives = found.drives;
        let bounces = BufferPool::new(BOUNCE_BYTES_MIN)
            .map_err(|error| EngineError::unavailable(format!("memory for buffers: {error}")))?;
        let parts = EngineParts {
            drives,
            journal: Arc::new(journal),
            store: store.clone(),
            hash_keys: pool.identity().hash_keys.clone(),
            fingerprint: pool.identity().fingerprint,
            blocking: Blocking::Inline,
            boot: BootId::current(),
            config: EngineConfig {
                damage_file: Some(pool.paths().damaged.clone()),
                ..EngineConfig::default()
            },
        };
        check_parts(&parts, &bounces, options, &mut report)?;
    } else {
        report.not_looked_at.push(
            "maps, counts and data: that needs all drives, the journal and the metadata store"
                .to_owned(),
        );
    }
    report.consistent = report.findings_total == 0;
    Ok(report)
}

/// The drives, and where segments lie: those without a row will lie where they are made.
fn segments_of(parts: &EngineParts, report: &mut CheckReport) -> Result<DriveList> {
    let drives = blocks_there(&parts.drives)?;
    let wanted = Wanted {
        drives: &drives,
        copies: parts.config.copies,
        domains: &parts.config.domains,
        added: None,
        changed_copies: copies_of(&parts.store.settings()?),
        avoided: &[],
        resting: &[],
        epoch: 0,
    };
    let completed = layout::complete(&parts.store.segments()?, &wanted)?;
    if let Some(first) = completed.lost.first() {
        report.find(
            "metadata",
            layout::lost(*first, completed.lost.len()).message,
        );
    }
    let conditions = conditions_of(&parts.store.settings()?, parts.drives.len());
    Ok(DriveList::new(&parts.drives, &completed, &conditions))
}

/// Checks journal and store as they will be when the journal has been replayed, and the data.
pub(crate) fn check_parts(
    parts: &EngineParts,
    bounces: &BufferPool,
    options: CheckOptions<'_>,
    report: &mut CheckReport,
) -> Result<()> {
    // Nothing in here waits: blocking calls run inline, and the drives of a check answer at once.
    let unexpected = || EngineError::internal("the check waited for something");
    let drives = match segments_of(parts, report) {
        Ok(drives) => drives,
        Err(error) => {
            report.find("metadata", &error.message);
            report
                .not_looked_at
                .push("what the journal holds, and data".to_owned());
            let none = meta::Batch::checkpoint_only(parts.store.checkpoint()?);
            return check_rows(&*parts.store, &none, options, report);
        }
    };
    let replayed = replay(parts, &drives, bounces)
        .now_or_never()
        .ok_or_else(unexpected)?;
    let pending = replayed.and_then(|(replayed, journal)| {
        report.journal_records = replayed.records;
        report.unproven = replayed.unproven;
        let damaged = replayed.damaged().count();
        // Reading all data finds these, too.
        if damaged > 0 && !options.data {
            report.find(
                "data",
                format_args!(
                    "{damaged} block(s) that were written last cannot be read, or hold something else: what \
                     refers to them is an error until it is written again"
                ),
            );
        }
        replayed.batch(next_checkpoint(&journal, 0)?)
    });
    let pending = match pending {
        Ok(pending) => pending,
        Err(error) => {
            report.find("journal and metadata", &error.message);
            report
                .not_looked_at
                .push("what the journal holds, and data".to_owned());
            // What is in the store alone can still be looked at.
            let none = meta::Batch::checkpoint_only(parts.store.checkpoint()?);
            return check_rows(&*parts.store, &none, options, report);
        }
    };
    check_rows(&*parts.store, &pending, options, report)?;
    let known = Damage::load(parts.config.damage_file.clone());
    let known = (!options.data).then(|| known.listed().collect());
    let bad = check_data(
        parts,
        &drives,
        bounces,
        &pending,
        known,
        options.watch,
        report,
    )
    .now_or_never()
    .ok_or_else(unexpected)??;
    report_damage(&*parts.store, &pending, &bad, &drives, report)?;
    if !options.data && report.blocks > 0 {
        report.not_looked_at.push(format!(
            "the data in {} blocks: `onefold pool check --data` reads it",
            report.blocks - report.data_blocks_checked.min(report.blocks)
        ));
    }
    Ok(())
}

fn check_rows(
    store: &dyn Store,
    pending: &meta::Batch,
    options: CheckOptions<'_>,
    report: &mut CheckReport,
) -> Result<()> {
    let sub_block_bytes = crate::SUB_BLOCK_BYTES as u32;
    let rows = match meta::check_with(store, pending, sub_block_bytes, options.memory_bytes) {
        Ok(rows) => rows,
        Err(error) if is_damage(error.kind()) => {
            report.find("metadata", error);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    report.volumes = rows.volumes;
    report.mappings = rows.mappings;
    report.blocks = rows.blocks;
    report.duplicate_fingerprints = rows.duplicate_fingerprints;
    report.passes = rows.passes;
    for problem in &rows.problems {
        report.find(
            "metadata",
            format_args!("{:?}: {}", problem.kind, problem.detail),
        );
    }
    let counted: u64 = rows.counts.values().sum();
    report.findings_total += counted.saturating_sub(rows.problems.len() as u64);
    Ok(())
}

/// Compares blocks that will be in use with their rows, a range of a drive after the other: all of them, or only
/// some. Those that do not hold what they should.
async fn check_data(
    parts: &EngineParts,
    drives: &DriveList,
    bounces: &BufferPool,
    pending: &meta::Batch,
    only: Option<BTreeSet<Pba>>,
    watch: Watch<'_>,
    report: &mut CheckReport,
) -> Result<BTreeSet<Pba>> {
    let stored = parts.store.volumes()?;
    let created = pending.volumes.values().filter_map(|change| match change {
        meta::VolumeChange::Put(info) => Some(info),
        _ => None,
    });
    let hashers = Hashers::of(
        parts.fingerprint,
        &parts.hash_keys,
        stored.iter().chain(created),
    );
    let mut bad = BTreeSet::new();
    let all = parts.drives.iter().map(|drive| drive.blocks()).sum();
    let mut before = 0;
    for (index, drive) in (0u16..).zip(&parts.drives) {
        let mut first = 0;
        while first < drive.blocks() {
            watch.tell(before + first, all);
            let whole = Pba::new(index, first)..Pba::new(index, first + SCAN_BLOCKS);
            let fragments = whole.start.fragment(0)..whole.end.fragment(0);
            first += SCAN_BLOCKS;
            let mut rows: BTreeMap<Pba, BlockRow> = BTreeMap::new();
            for range in [whole, fragments] {
                let is_wanted = |only: &BTreeSet<Pba>| only.range(range.clone()).next().is_some();
                if !only.as_ref().is_none_or(is_wanted) {
                    continue;
                }
                rows.extend(parts.store.blocks(range.start, range.end, usize::MAX)?);
                for (pba, _) in pending.blocks.range(range) {
                    // What cannot be applied was found with the rows.
                    if let Ok(after) = pending.block_after(pba, rows.remove(&pba)) {
                        rows.extend(after.map(|row| (pba, row)));
                    }
                }
            }
            rows.retain(|pba, _| only.as_ref().is_none_or(|only| only.contains(pba)));
            for (pba, row) in rows {
                let buf = bounces.alloc(BLOCK_BYTES).await;
                report.data_blocks_checked += 1;
                if !is_right(drives, &hashers, pba, &row, buf).await {
                    bad.insert(pba);
                }
            }
        }
        before += drive.blocks();
    }
    watch.tell(all, all);
    Ok(bad)
}

/// Whether a block can be read, and holds what its row says.
async fn is_right(
    drives: &DriveList,
    hashers: &Hashers,
    pba: Pba,
    row: &BlockRow,
    buf: Buffer,
) -> bool {
    let (is_right, _) = read_proven(drives, (pba, 0), buf, |block| {
        hashers.prove(block, row.fingerprint, row.crc32c)
    })
    .await;
    is_right == Some(true)
}

/// Says which ranges of volumes refer to bad blocks.
fn report_damage(
    store: &dyn Store,
    pending: &meta::Batch,
    bad: &BTreeSet<Pba>,
    drives: &DriveList,
    report: &mut CheckReport,
) -> Result<()> {
    for (index, drive) in (0u16..).zip(drives.iter()) {
        let is_there = |pba: &&Pba| {
            let place = drives.places(**pba).first().copied();
            place.is_some_and(|place| place.drive == index)
        };
        let blocks = bad.iter().filter(is_there);
        if let Some(first) = blocks.clone().next() {
            report.findings_of_data += 1;
            report.find(
                drive.name(),
                format_args!(
                    "{} data block(s) cannot be read or do not hold the content that was written, the first is {}",
                    blocks.count(),
                    drives.named(*first).1
                ),
            );
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    let mut referrers = Referrers {
        bad,
        pending,
        volumes: BTreeMap::new(),
        maps: BTreeMap::new(),
        found: BTreeSet::new(),
    };
    match store.load(&mut referrers) {
        Ok(_) => {}
        // It was found with the rows.
        Err(error) if is_damage(error.kind()) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    for ((map, at), change) in pending.map.iter() {
        if let Some(mapping) = change.new {
            referrers.look(map, at, mapping.pba);
        }
    }
    for (id, change) in &pending.volumes {
        match change {
            meta::VolumeChange::Put(info) => {
                referrers.volumes.insert(*id, (info.map, info.name.clone()));
            }
            meta::VolumeChange::Update(meta::VolumeUpdate { map: Some(map), .. }) => {
                if let Some((to, _)) = referrers.volumes.get_mut(id) {
                    *to = *map;
                }
            }
            meta::VolumeChange::Update(_) => {}
            meta::VolumeChange::Remove => {
                referrers.volumes.remove(id);
            }
        }
    }
    let rows = pending.maps.values().flatten();
    referrers.maps.extend(rows.map(|info| (info.id, *info)));
    let names = referrers.names();
    report.damage.damaged_blocks = bad.len() as u64;
    let mut last = None;
    for (map, at) in &referrers.found {
        let goes_on = last == Some((*map, at.wrapping_sub(1)));
        last = Some((*map, *at));
        let unnamed = format!("number {map}");
        let name = names.get(map).unwrap_or(&unnamed);
        report.damage.add(name, at * BLOCK_BYTES as u64, goes_on);
    }
    Ok(())
}

/// Mappings to bad blocks, as they will be.
struct Referrers<'a> {
    bad: &'a BTreeSet<Pba>,
    pending: &'a meta::Batch,
    /// Maps and names of volumes.
    volumes: BTreeMap<u32, (MapId, String)>,
    maps: BTreeMap<MapId, MapInfo>,
    found: BTreeSet<(MapId, u64)>,
}

impl Referrers<'_> {
    fn look(&mut self, map: MapId, at: u64, pba: Pba) {
        if self.bad.contains(&pba) && self.found.len() < REFERRERS_MAX {
            self.found.insert((map, at));
        }
    }

    /// The names that people know maps by: that of the volume, and for a parent those of all volumes that may
    /// inherit from it.
    fn names(&self) -> BTreeMap<MapId, String> {
        let mut names: BTreeMap<MapId, String> = BTreeMap::new();
        for (map, name) in self.volumes.values() {
            for map in lineage(&self.maps, *map) {
                let of_map = names.entry(map).or_default();
                if !of_map.is_empty() {
                    of_map.push_str(", ");
                }
                of_map.push_str(name);
            }
        }
        names
    }
}

impl LoadVisitor for Referrers<'_> {
    fn wants(&self, kind: RowKind) -> bool {
        kind == RowKind::Mapping
    }

    fn volume(&mut self, volume: VolumeInfo) {
        self.volumes.insert(volume.id, (volume.map, volume.name));
    }

    fn map_row(&mut self, info: MapInfo) {
        self.maps.insert(info.id, info);
    }

    fn block(&mut self, _pba: Pba, _row: BlockRow) {}

    fn map(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        if self.pending.map.get(&(map, sub_block)).is_none() {
            self.look(map, sub_block, mapping.pba);
        }
    }
}

/// Whether the pool is wrong, as opposed to the check impossible.
fn is_damage(kind: MetaErrorKind) -> bool {
    matches!(
        kind,
        MetaErrorKind::Corrupt
            | MetaErrorKind::Inconsistent
            | MetaErrorKind::Missing
            | MetaErrorKind::WrongPool
    )
}

fn finding<T>(
    report: &mut CheckReport,
    object: impl Display,
    result: std::result::Result<T, meta::MetaError>,
) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_damage(error.kind()) => {
            report.find(object, error);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The drives of a pool, and their labels.
pub(crate) struct FoundDrives {
    pub(crate) drives: Vec<Arc<dyn Drive>>,
    /// By index, of those that are whose they should be.
    labels: BTreeMap<usize, ChosenLabel>,
}

impl FoundDrives {
    /// The latest epoch on a label.
    pub(crate) fn newest_epoch(&self) -> u32 {
        let epochs = self.labels.values().map(|found| found.label.epoch());
        epochs.max().unwrap_or(0)
    }

    /// Refuses metadata or a drive that is an older copy, if nobody said that it is to be used all the same.
    ///
    /// # Errors
    /// What is older, and what to do.
    pub(crate) fn refuse_older_copies(&self, pool: &PoolDir, store: &dyn Store) -> Result<()> {
        let older = self.older_copies(store, pool.accepted_epoch()?)?;
        let epoch = store.checkpoint()?.epoch;
        labels::refuse(&older, epoch, |at| self.name_of(at))
    }

    /// What is older than the rest of the pool, and beyond what is accepted.
    pub(crate) fn older_copies(
        &self,
        store: &dyn Store,
        accepted: Option<u32>,
    ) -> Result<Vec<OlderCopy<'_>>> {
        let (epoch, settings) = (store.checkpoint()?.epoch, store.settings()?);
        let found = self.labels.iter().map(|(at, found)| (*at, found));
        Ok(labels::older_copies(found, epoch, &settings, accepted))
    }

    /// What a drive is called.
    pub(crate) fn name_of(&self, at: usize) -> String {
        let drive = self.drives.get(at);
        drive.map_or_else(String::new, |drive| drive.name().to_owned())
    }
}

/// Opens all drives and compares their sizes and labels with the pool's; `None` if one is not usable.
pub(crate) fn open_drives(pool: &PoolDir, report: &mut CheckReport) -> Result<Option<FoundDrives>> {
    let mut drives: Vec<Arc<dyn Drive>> = Vec::new();
    let mut labels = BTreeMap::new();
    let mut are_usable = true;
    for (index, spec) in (0u16..).zip(&pool.identity().drives) {
        let path = pool.drive_path(index).unwrap_or_else(|| spec.path.clone());
        if spec.is_removed {
            drives.push(Arc::new(AbsentDrive::removed(&path, spec.blocks)));
            continue;
        }
        let drive: Arc<dyn Drive> = match is_remote_drive(&path) {
            true => remote::open(&path)?,
            false => match open_plain(&path, report)? {
                Some(drive) => Arc::new(drive),
                None => {
                    are_usable = false;
                    continue;
                }
            },
        };
        if drive.blocks() < spec.blocks {
            let found = drive.blocks();
            let wanted = spec.blocks;
            report.find(
                path.display(),
                format_args!("truncated: {found} blocks of {wanted}; restore it from a copy"),
            );
            are_usable = false;
            continue;
        }
        let copies = labels_of(&*drive)?;
        let (first, second) = copies.split_at(LABEL_BYTES);
        if let Some(label) = pool.identity().label(index) {
            match label.verify(&path, first, second) {
                Ok(chosen) => {
                    labels.insert(usize::from(index), chosen);
                }
                Err(error) => report.find(path.display(), error),
            }
        }
        drives.push(drive);
    }
    Ok(are_usable.then_some(FoundDrives { drives, labels }))
}

/// A file or device; `None`, and a finding, if it is not there.
fn open_plain(path: &Path, report: &mut CheckReport) -> Result<Option<PlainDrive>> {
    match PlainDrive::open(path) {
        Ok(drive) => Ok(Some(drive)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.find(path.display(), "missing; put the drive back in its place");
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(EngineError::unavailable(format!(
                "{}: no permission to read the drive: run this as the user that the pool belongs to, or as root",
                path.display()
            )))
        }
        Err(error) => Err(EngineError::unavailable(format!(
            "{}: {error}",
            path.display()
        ))),
    }
}

/// Both copies of the label of a drive whose futures are ready at once.
fn labels_of(drive: &dyn Drive) -> Result<Vec<u8>> {
    let unread = |why: &dyn Display| {
        EngineError::unavailable(format!("{}: its label cannot be read: {why}", drive.name()))
    };
    let pool = BufferPool::new(2 * LABEL_BYTES).map_err(|error| unread(&error))?;
    let buffer = pool.try_alloc(2 * LABEL_BYTES);
    let buffer = buffer.ok_or_else(|| unread(&"no memory"))?;
    let both = [Extent {
        block: 0,
        buffer_offset: 0,
        blocks: 2,
    }];
    let read = drive.read(buffer, &both).now_or_never();
    let (result, buffer) = read.ok_or_else(|| unread(&"it has to be waited for"))?;
    result.map_err(|error| unread(&error))?;
    Ok(buffer.to_vec())
}

/// A drive that is only read (or flushed), without a reactor: the futures are ready at once.
struct PlainDrive {
    file: File,
    name: String,
    blocks: u64,
}

impl PlainDrive {
    fn open(path: &Path) -> io::Result<Self> {
        let block = drives::block_device_of(path);
        let mut file = File::open(block.as_deref().unwrap_or(path))?;
        // What could not be written may still be read from the cache, and proves nothing.
        drives::forget_cached(&file)?;
        // A device's metadata has no length; its end has.
        let bytes = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(Self {
            file,
            name: path.display().to_string(),
            blocks: bytes / BLOCK_BYTES as u64,
        })
    }

    fn refuse(&self) -> DriveError {
        DriveError::new(drives::ErrorKind::Invalid, &self.name, "a check only reads")
    }

    fn read_extents(&self, buffer: &mut Buffer, extents: &[Extent]) -> io::Result<()> {
        for extent in extents {
            let len = extent.blocks as usize * BLOCK_BYTES;
            let target = buffer
                .get_mut(extent.buffer_offset..extent.buffer_offset + len)
                .ok_or_else(|| io::Error::other("an extent is outside of its buffer"))?;
            self.file
                .read_exact_at(target, extent.block * BLOCK_BYTES as u64)?;
        }
        Ok(())
    }
}

impl Drive for PlainDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read<'a>(
        &'a self,
        mut buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, drives::Transferred> {
        let result = self
            .read_extents(&mut buffer, extents)
            .map_err(|error| DriveError::new(drives::ErrorKind::Io, &self.name, error.to_string()));
        Box::pin(std::future::ready((result, buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        _: &'a [Extent],
    ) -> LocalBoxFuture<'a, drives::Transferred> {
        Box::pin(std::future::ready((Err(self.refuse()), buffer)))
    }

    fn write_many<'a>(
        &'a self,
        _: Rc<Vec<Buffer>>,
        _: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        Box::pin(std::future::ready(Err(self.refuse())))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        let flushed = self
            .file
            .sync_data()
            .map_err(|error| DriveError::new(drives::ErrorKind::Io, &self.name, error.to_string()));
        Box::pin(std::future::ready(flushed))
    }

    fn discard<'a>(
        &'a self,
        _: u64,
        _: u64,
    ) -> LocalBoxFuture<'a, std::result::Result<(), DriveError>> {
        Box::pin(std::future::ready(Err(self.refuse())))
    }
}
