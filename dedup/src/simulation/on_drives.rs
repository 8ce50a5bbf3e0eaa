//! The metadata on the drives: in a part of the stories journal and store are behind the code that copies them to areas of
//! simulated drives, and after a crash the folder is lost now and then. Then the pool is imported from the drives that are
//! there, and has all that was flushed.
//!
//! The process dies at any write and flush of an area; then those that were not flushed are lost by sectors, if power is lost
//! too. Areas stop to take writes while the rest goes on. A drive that is lost takes its area with it: what another one holds
//! is imported, and what may be older than the lost one's is refused by name. Metadata of an earlier opening is imported and
//! does not open.
//!
//! A single drive is one that keeps data in memory, and has them flushed together with the journal, as one: with the process it
//! loses what was not flushed, while the folder has the journal as it was.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use meta::{
    DriveSpec, FingerprintFunction, Importable, JournalMedia, JournalOnDrives, MayBeOlder,
    MemoryArea, MemoryMedia, MemoryStore, MetaError, MetadataArea, MetadataOnDrives, PendingIo,
    PoolIdentity, Store, StoreFault, StoreOnDrives,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

use super::drive::ShakyDrive;
use super::world::Actor;
use super::{Story, Task};
use crate::EngineParts;
use crate::drive_io::drive_state::{DriveState, conditions_of};
use crate::sync::wait::{lock, yield_once};

/// The setting by which the folder says what the areas have: generation, last change, and its end; 0 twice where they have
/// nothing.
const ON_DRIVES_KEY: &str = "meta.on-drives";

/// The pool of all stories.
const POOL: Uuid = Uuid::from_u128(1);

/// Whether the drives hold the metadata in this story: of those with copies in every second one, where a flush of an area is
/// none of the drive's data.
pub(crate) fn is_on_drives(seed: u64) -> bool {
    matches!(seed % 16, 6 | 10)
}

/// Whether a single drive keeps data in memory in this story, if it has one.
pub(super) fn may_keep_data(seed: u64) -> bool {
    seed % 16 == 10
}

/// The areas of the drives of a story, by their indexes.
pub(super) struct OnDrives {
    areas: Vec<Arc<Area>>,
    area_blocks: u64,
    log_blocks_min: u64,
    identity: String,
    death: Arc<Death>,
    /// While the pool is open.
    opened: Option<Arc<MetadataOnDrives>>,
    /// Copies of all areas, and the epoch that the pool had then.
    older: Option<(Vec<Arc<Area>>, u32)>,
}

/// The process dies at some write or flush of an area.
#[derive(Default)]
struct Death {
    /// Writes and flushes until then; wraps around, that is never, from zero.
    countdown: AtomicU64,
    is_dead: AtomicBool,
    /// The folder, which takes nothing either from then on.
    folder: Mutex<Option<(Arc<MemoryStore>, Arc<MemoryMedia>)>>,
}

/// An area of a drive, until the process dies.
struct Area {
    inner: MemoryArea,
    death: Arc<Death>,
    /// Whose data are flushed with it.
    drive: Mutex<Option<Arc<ShakyDrive>>>,
}

impl Death {
    fn arm(&self, steps: u64) {
        self.countdown.store(steps, Ordering::Relaxed);
        self.is_dead.store(false, Ordering::Relaxed);
    }

    fn strike(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        if let Some((store, media)) = &*lock(&self.folder) {
            store.fail_at(store.operations(), StoreFault::CrashBefore);
            media.fail_at(media.operations(), media.operations());
        }
    }
}

impl Area {
    fn new(blocks: u64, death: &Arc<Death>) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryArea::new(blocks),
            death: death.clone(),
            drive: Mutex::default(),
        })
    }

    /// A copy, which nothing happens to.
    fn copy(&self) -> Arc<Self> {
        Arc::new(Self {
            inner: self.inner.copy(),
            death: Arc::default(),
            drive: Mutex::default(),
        })
    }

    /// A write or flush begins: the process dies in the middle of it, or is dead.
    fn step(&self) {
        let before = self.death.countdown.fetch_sub(1, Ordering::Relaxed);
        if before == 1 {
            self.death.strike();
        }
        if self.death.is_dead.load(Ordering::Relaxed) {
            let takes = if before == 1 { 0 } else { u64::MAX };
            self.inner.fail_after(Some(takes));
        }
    }
}

impl MetadataArea for Area {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(block, bytes)
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.step();
        self.inner.write(block, bytes)
    }

    fn flush(&self) -> PendingIo {
        self.step();
        self.inner.flush()
    }

    fn flushes_data(&self) -> bool {
        lock(&self.drive).is_some()
    }

    fn write_with_data(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.step();
        let drive = lock(&self.drive).clone();
        let is_dead = self.death.is_dead.load(Ordering::Relaxed);
        if is_dead || !drive.is_some_and(|drive| drive.flush_now()) {
            return PendingIo::new(|| Err(std::io::Error::other("the process is dead")));
        }
        let written = self.inner.write(block, bytes).wait();
        let flushed = written.and_then(|()| self.inner.flush().wait());
        PendingIo::new(move || flushed)
    }
}

impl OnDrives {
    /// Those of a story with so many drives, if it has any.
    pub(super) fn new(seed: u64, drives: usize, fingerprint: FingerprintFunction) -> Option<Self> {
        if !is_on_drives(seed) {
            return None;
        }
        // Not the story's own numbers.
        let mut rng = ChaCha8Rng::seed_from_u64(seed.rotate_left(32));
        let identity = PoolIdentity {
            uuid: POOL,
            sub_block_bytes: 4096,
            fingerprint,
            hash_keys: [7; 32].into(),
            drives: vec![DriveSpec {
                uuid: Uuid::from_u128(2),
                ..DriveSpec::new("drive", 1 << 20)
            }],
            spares: Vec::new(),
        };
        let death = Arc::default();
        let area_blocks = rng.random_range(80..300);
        Some(Self {
            areas: (0..drives)
                .map(|_| Area::new(area_blocks, &death))
                .collect(),
            area_blocks,
            log_blocks_min: rng.random_range(8..48),
            identity: identity.to_text().expect("an identity"),
            death,
            opened: None,
            older: None,
        })
    }

    pub(super) fn has_struck(&self) -> bool {
        self.death.is_dead.load(Ordering::Relaxed)
    }

    pub(super) fn add_area(&mut self) {
        self.areas.push(Area::new(self.area_blocks, &self.death));
    }
}

/// Areas with the indexes of their drives.
type Areas = Vec<(u16, Arc<dyn MetadataArea>)>;

fn indexed<'a>(areas: impl Iterator<Item = (usize, &'a Arc<Area>)>) -> Areas {
    areas
        .map(|(at, area)| (at as u16, area.clone() as Arc<dyn MetadataArea>))
        .collect()
}

impl Story {
    /// Journal and store as the engine gets them.
    pub(super) fn metadata(&self) -> (Arc<dyn JournalMedia>, Arc<dyn Store>) {
        let opened = self.on_drives.as_ref().and_then(|on| on.opened.clone());
        match opened {
            None => (self.media.clone(), self.store.clone()),
            Some(copies) => (
                Arc::new(JournalOnDrives::new(copies.clone())),
                Arc::new(StoreOnDrives::new(copies)),
            ),
        }
    }

    /// The areas of the drives that are there.
    fn areas_there(&self, on: &OnDrives) -> Areas {
        let areas = on.areas.iter().enumerate();
        indexed(areas.filter(|(at, _)| !self.losses.is_missing(*at)))
    }

    /// Looks what the areas hold, before the engine is opened.
    pub(super) fn open_metadata(&mut self) -> Result<(), MetaError> {
        let Some(on) = &self.on_drives else {
            return Ok(());
        };
        *lock(&on.death.folder) = Some((self.store.clone(), self.media.clone()));
        if self.keeps_data {
            *lock(&on.areas[0].drive) = Some(self.drives[0].clone());
        }
        let opened = MetadataOnDrives::in_memory(
            (POOL, &on.identity),
            self.store.clone(),
            self.media.clone(),
            on.log_blocks_min,
            &self.areas_there(on),
        )?;
        if let Some(on) = &mut self.on_drives {
            on.opened = Some(opened);
        }
        Ok(())
    }

    /// The engine was opened: areas that hold nothing get all, as a program lets them.
    pub(super) fn metadata_opened(&self) -> Result<(), MetaError> {
        let Some(on) = &self.on_drives else {
            return Ok(());
        };
        let Some(copies) = &on.opened else {
            return Ok(());
        };
        copies.set_identity(&on.identity)?;
        keep(copies, &self.areas_there(on), |_| true)
    }

    /// What sees to it that drives that are online hold the metadata, and others do not.
    pub(super) fn keep_metadata(&mut self, actor: Actor) -> Option<Task> {
        let on = self.on_drives.as_ref()?;
        let copies = on.opened.clone()?;
        let areas = self.areas_there(on);
        let yields = self.rng.random_range(0..300);
        Some(Box::pin(async move {
            for _ in 0..3 {
                for _ in 0..yields {
                    yield_once().await;
                }
                let is_online = |index| !actor.engine.is_drive_offline(index);
                // What fails here is tried again.
                let _ = keep(&copies, &areas, is_online);
            }
        }))
    }

    /// A clean end of the pool.
    pub(super) fn close_metadata(&mut self) {
        if let Some(copies) = self.on_drives.as_mut().and_then(|on| on.opened.take()) {
            copies.close();
        }
    }

    /// Lets the process die at an area some steps from now, or an area take no more.
    pub(super) fn arm_areas(&mut self) {
        let Some(on) = &mut self.on_drives else {
            return;
        };
        let steps = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(1..200),
            _ => 0,
        };
        on.death.arm(steps);
        // Where the journal's syncs flush data, a pool cannot do without its area.
        if self.rng.random_range(0..6) == 0 && !self.keeps_data {
            let at = self.rng.random_range(0..on.areas.len());
            let takes = self.rng.random_range(0..100);
            on.areas[at].inner.fail_after(Some(takes));
        }
    }

    /// What was to fail some steps from now does not.
    pub(super) fn disarm_areas(&self) {
        let Some(on) = &self.on_drives else {
            return;
        };
        on.death.arm(0);
        for area in &on.areas {
            area.inner.fail_after(None);
        }
    }

    /// The process is dead, and perhaps power was lost too.
    pub(super) fn crash_areas(&mut self, loses_power: bool) {
        self.disarm_areas();
        let Some(on) = &mut self.on_drives else {
            return;
        };
        on.opened = None;
        for (at, area) in on.areas.iter().enumerate() {
            if loses_power && !self.losses.is_missing(at) {
                lose_power(area, &mut self.rng);
            }
        }
    }

    /// The area of a drive that is lost, or missing.
    pub(super) fn lose_area(&mut self, at: usize) {
        if let Some(on) = &self.on_drives {
            lose_power(&on.areas[at], &mut self.rng);
        }
    }

    /// Another drive has this index, with an area of its own.
    pub(super) fn replace_area(&mut self, at: usize) {
        if let Some(on) = &mut self.on_drives {
            on.areas[at] = Area::new(on.area_blocks, &on.death);
        }
    }

    /// Whether the folder says that areas have what it has.
    fn relies_on_areas(&self) -> bool {
        let settings = self.store.settings().expect("a store in memory");
        let mark = settings.get(ON_DRIVES_KEY);
        mark.is_some_and(|mark| mark[8..].iter().any(|byte| *byte != 0))
    }

    /// The store as an import makes it of all drives, if they hold one. The folder need not say so yet: an opening makes the last
    /// change again that only they have.
    pub(super) fn imported(&self) -> Option<Arc<MemoryStore>> {
        let on = self.on_drives.as_ref()?;
        match Importable::look(POOL, &indexed(on.areas.iter().enumerate())) {
            Ok(all) => Some(all.to_memory().expect("an import").0),
            Err(error) => {
                assert!(!self.relies_on_areas(), "{error}");
                None
            }
        }
    }

    /// The process is dead: perhaps the folder is lost, and the pool imported from its drives.
    pub(super) fn lose_folder(&mut self) {
        let Some(on) = &self.on_drives else { return };
        if !self.relies_on_areas() || self.rng.random_range(0..3) > 0 {
            return;
        }
        let all = Importable::look(POOL, &indexed(on.areas.iter().enumerate()));
        let all = all.expect("the folder says that areas have what it has");
        let there = self.areas_there(on);
        let found = Importable::look(POOL, &there);
        let is_complete = all
            .drives()
            .any(|index| there.iter().any(|(at, _)| *at == index));
        let check = |found: &Importable| found.check_newest(&self.newest_opening(), "");
        if !is_complete {
            // All that has the newest is lost: what is left is known to be older.
            let refused = match &found {
                Err(error) => matches!(error, MetaError::Missing { .. }),
                Ok(found) => matches!(check(found), Err(MayBeOlder::Missing(_))),
            };
            assert!(refused, "older metadata was taken for the newest");
            self.world.borrow_mut().tally.imports_refused += 1;
            return;
        }
        let found = found.expect("a drive that is there holds the newest metadata");
        let is_forced = match check(&found) {
            Ok(()) => false,
            Err(MayBeOlder::Missing(index)) => {
                assert!(
                    self.losses.is_missing(usize::from(index)),
                    "drive {index} is there"
                );
                true
            }
            Err(other) => panic!("nobody else has the pool: {other:?}"),
        };
        let (store, media) = found.to_memory().expect("an import");
        self.store = store;
        self.media = media;
        self.lost_power = Some(true);
        let tally = &mut self.world.borrow_mut().tally;
        tally.imports += 1;
        tally.imports_forced += u64::from(is_forced);
    }

    /// Perhaps somebody makes a copy of all areas.
    pub(super) fn copy_areas(&mut self) {
        let epoch = self.store.checkpoint().expect("a store in memory").epoch;
        let relies = self.relies_on_areas();
        let Some(on) = &mut self.on_drives else {
            return;
        };
        if on.older.is_none() && relies && self.rng.random() {
            on.older = Some((on.areas.iter().map(|area| area.copy()).collect(), epoch));
        }
    }

    /// The process is dead: metadata from before an opening is imported, and does not open.
    pub(super) fn import_older(&mut self) {
        let now = self.store.checkpoint().expect("a store in memory").epoch;
        let Some(on) = &mut self.on_drives else {
            return;
        };
        let Some((areas, epoch)) = on.older.take() else {
            return;
        };
        if epoch == now {
            on.older = Some((areas, epoch));
            return;
        }
        let Ok(found) = Importable::look(POOL, &indexed(areas.iter().enumerate())) else {
            return; // it was copied in the middle of something
        };
        let (store, media) = found.to_memory().expect("an import");
        if !self.is_left_behind(&store) {
            return;
        }
        let drives = self.drives.iter();
        let parts = EngineParts {
            drives: drives.map(|drive| drive.copy() as _).collect(),
            journal: media,
            store,
            ..self.parts()
        };
        self.expect_older_copy(parts);
        self.world.borrow_mut().tally.imports_older += 1;
    }

    /// Whether a drive that is there, and online as this store says, has a label of a later opening.
    fn is_left_behind(&mut self, store: &Arc<MemoryStore>) -> bool {
        let epoch = store.checkpoint().expect("a store in memory").epoch;
        let settings = store.settings().expect("a store in memory");
        let conditions = conditions_of(&settings, self.drives.len());
        let drives = self.drives.clone();
        let mut later = drives.iter().enumerate().filter(|(at, drive)| {
            let is_online = conditions[*at].state() != DriveState::Offline;
            is_online && self.label_of(drive).label.epoch() > epoch
        });
        later.next().is_some()
    }

    /// The last opening that the labels of drives that are there know.
    fn newest_opening(&self) -> meta::Opening {
        let drives = self.drives.iter().enumerate();
        let there = drives.filter(|(at, _)| !self.losses.is_missing(*at));
        let openings = there.filter_map(|(_, drive)| self.label_of(drive).label.opening);
        openings
            .max_by_key(|opening| opening.epoch)
            .unwrap_or_default()
    }
}

/// Drives that are online hold the metadata afterwards, and others do not.
fn keep(
    copies: &Arc<MetadataOnDrives>,
    areas: &Areas,
    is_online: impl Fn(u16) -> bool,
) -> Result<(), MetaError> {
    for index in copies.state().drives {
        if !is_online(index) {
            copies.leave(index)?;
        }
    }
    let online = areas.iter().filter(|(index, _)| is_online(*index));
    let online: Areas = online.cloned().collect();
    if copies.wants(online.iter().map(|(index, _)| *index)) {
        copies.join(&online)?;
    }
    Ok(())
}

fn lose_power(area: &Area, rng: &mut ChaCha8Rng) {
    let kept = [5, 50, 95][rng.random_range(0..3)];
    area.inner.lose_power(|| rng.random_range(0..100) < kept);
}
