//! What a user relies on: the pool comes back from its drives as it was acknowledged, whatever failed.

mod ahead;
mod large;
mod missing;
mod needed;
mod shared;
mod with_data;

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::batch::{Batch, BatchBuilder};
use crate::error::MetaError;
use crate::identity::{DriveSpec, PoolIdentity};
use crate::journal::{FileMedia, Journal, JournalConfig, JournalMedia};
use crate::record::{MapEntry, NewBlock, Record};
use crate::segment::{SegmentCopy, SegmentRow};
use crate::setting::{ON_DRIVES_KEY, SettingChanges};
use crate::store::{RocksOptions, RocksStore, Store, raw};
use crate::types::{Checkpoint, Fingerprint, Pba, Position};

const POOL: Uuid = Uuid::from_u128(0x0f01d);
const RING: u64 = 4 << 20;
const AREA_BLOCKS: u64 = 8 << 10;

struct Pool {
    dir: TempDir,
    areas: Vec<Arc<MemoryArea>>,
}

struct Open {
    copies: Arc<MetadataOnDrives>,
    store: StoreOnDrives,
    journal: JournalOnDrives,
}

/// All rows of a store but the one that says what the drives have.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

impl Pool {
    fn new(drives: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        RocksStore::create(&dir.path().join("metadata"), POOL).unwrap();
        FileMedia::create(&dir.path().join("journal"), POOL, RING).unwrap();
        let areas = (0..drives).map(|_| Arc::new(MemoryArea::new(AREA_BLOCKS)));
        Self {
            dir,
            areas: areas.collect(),
        }
    }

    fn areas(&self) -> Vec<(u16, Arc<dyn MetadataArea>)> {
        self.areas_of(&(0..self.areas.len() as u16).collect::<Vec<_>>())
    }

    fn areas_of(&self, drives: &[u16]) -> Vec<(u16, Arc<dyn MetadataArea>)> {
        let area = |drive: &u16| self.areas[usize::from(*drive)].clone() as Arc<dyn MetadataArea>;
        drives.iter().map(|drive| (*drive, area(drive))).collect()
    }

    fn open(&self) -> Open {
        self.open_with(&self.areas())
    }

    /// With these drives only.
    fn open_with(&self, areas: &[(u16, Arc<dyn MetadataArea>)]) -> Open {
        self.try_open_with(areas).unwrap()
    }

    fn try_open_with(&self, areas: &[(u16, Arc<dyn MetadataArea>)]) -> Result<Open, MetaError> {
        let folder = self.dir.path();
        let options = RocksOptions::default();
        let store = RocksStore::open(&folder.join("metadata"), POOL, options).unwrap();
        let journal = FileMedia::open(&folder.join("journal"), POOL).unwrap();
        let (store, journal) = (Arc::new(store), Arc::new(journal));
        let text = identity().to_text().unwrap();
        let copies = MetadataOnDrives::open((POOL, folder, &text), store, journal, areas)?;
        Ok(Open {
            store: StoreOnDrives::new(copies.clone()),
            journal: JournalOnDrives::new(copies.clone()),
            copies,
        })
    }

    /// A pool whose metadata is on all of its drives.
    fn joined(drives: usize) -> (Self, Open) {
        let pool = Self::new(drives);
        let open = pool.open();
        open.copies.join(&pool.areas()).unwrap();
        assert_eq!(open.copies.state().drives.len(), drives.min(COPIES_WANTED));
        (pool, open)
    }

    /// Rows and journal of a folder that is made of these drives.
    fn import(&self, drives: &[u16]) -> Result<(Rows, Vec<u8>), String> {
        let found = Importable::look(POOL, &self.areas_of(drives));
        let found = found.map_err(|error| error.to_string())?;
        if !found.missing().is_empty() {
            return Err(format!("missing {:?}", found.missing()));
        }
        assert_eq!(*found.identity(), identity());
        let target = tempfile::tempdir().unwrap();
        let folder = target.path().join("imported");
        let written = found.write(&folder, found.identity());
        written.map_err(|error| error.to_string())?;
        Ok((rows(&folder), ring(&folder)))
    }

    fn in_folder(&self) -> (Rows, Vec<u8>) {
        let copy = tempfile::tempdir().unwrap();
        // The store may be open: look at a copy.
        for name in ["metadata", "journal"] {
            let copied = std::process::Command::new("cp")
                .arg("-r")
                .args([self.dir.path().join(name), copy.path().join(name)])
                .status();
            assert!(copied.unwrap().success());
        }
        (rows(copy.path()), ring(copy.path()))
    }
}

fn identity() -> PoolIdentity {
    PoolIdentity {
        uuid: POOL,
        sub_block_bytes: 4096,
        fingerprint: crate::FingerprintFunction::Blake3,
        hash_keys: [7; 32].into(),
        drives: vec![DriveSpec {
            uuid: Uuid::from_u128(1),
            ..DriveSpec::new("drive0", 1 << 20)
        }],
        spares: Vec::new(),
    }
}

fn rows(folder: &Path) -> Rows {
    let mut rows = Vec::new();
    let dir = folder.join("metadata");
    raw::dump(&dir, POOL, |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        Ok::<_, crate::MetaError>(())
    })
    .unwrap();
    let is_mark = |key: &[u8]| key.ends_with(ON_DRIVES_KEY.as_bytes());
    rows.retain(|(key, _)| !is_mark(key));
    rows
}

fn ring(folder: &Path) -> Vec<u8> {
    let media = FileMedia::open(&folder.join("journal"), POOL).unwrap();
    let mut bytes = vec![0; RING as usize];
    media.read_at(0, &mut bytes).unwrap();
    bytes
}

fn setting(key: &str, value: &[u8]) -> SettingChanges {
    SettingChanges::from([(key.to_owned(), Some(value.to_vec()))])
}

fn checkpoint(seq: u64) -> Checkpoint {
    Checkpoint {
        position: Position {
            seq,
            offset: seq * 8,
        },
        epoch: 1,
        last_epoch: Some(1),
    }
}

/// A batch that maps some sub-blocks to new blocks.
fn batch(first: u64, seed: u8) -> Batch {
    let entries = (0..20).map(|at| MapEntry {
        old: None,
        new: Some(NewBlock {
            pba: Pba::new(0, first * 100 + at),
            fingerprint: Fingerprint([seed; 16]),
            crc32c: u32::from(seed),
        }),
    });
    let record = Record::Map {
        map: 1,
        start: first * 1000,
        entries: entries.collect(),
    };
    BatchBuilder::from_records(&[(first, record)], checkpoint(first + 1)).unwrap()
}

#[test]
fn a_pool_whose_folder_is_lost_comes_back_from_its_drives() {
    let (pool, open) = Pool::joined(2);
    open.store.apply(&batch(1, 3)).unwrap();
    open.store.put_settings(&setting("a", b"one")).unwrap();
    let segment = SegmentRow::of_one(1, SegmentCopy { drive: 0, slot: 4 });
    let (first, end) = (Pba::new(0, 0), Pba::new(0, 1 << 20));
    let segments = [(first, segment)];
    open.store.put_segments(first..end, &segments).unwrap();
    open.store.apply(&batch(2, 4)).unwrap();
    open.journal.append_at(1, 100, b"a record").unwrap();
    open.journal.append_at(1, RING - 5, b"later").unwrap();
    open.journal.sync().unwrap();
    let expected = pool.in_folder();
    assert!(!expected.0.is_empty());
    assert_eq!(pool.import(&[0, 1]).unwrap(), expected);
    assert_eq!(pool.import(&[1]), Err("missing [0]".to_owned()));
    // What leaves the pool may be older, and the other one alone is enough.
    open.copies.leave(0).unwrap();
    assert_eq!(pool.import(&[1]).unwrap(), expected);
    assert_eq!(pool.import(&[0]), Err("missing [1]".to_owned()));
}

#[test]
fn an_imported_folder_goes_on_with_the_drives_that_it_came_from() {
    let (mut pool, open) = Pool::joined(2);
    open.store.apply(&batch(1, 3)).unwrap();
    drop(open);
    let found = Importable::look(POOL, &pool.areas()).unwrap();
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("imported");
    found.write(&folder, found.identity()).unwrap();
    pool.dir = target;
    for name in ["metadata", "journal"] {
        std::fs::rename(folder.join(name), pool.dir.path().join(name)).unwrap();
    }
    let open = pool.open();
    assert_eq!(
        open.copies.state().drives.len(),
        2,
        "nothing is copied anew"
    );
    open.store.apply(&batch(2, 3)).unwrap();
    drop(open);
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
}

#[test]
fn a_drive_that_stops_to_take_writes_holds_nothing_up_and_is_never_imported() {
    for takes in 0..6 {
        let (pool, open) = Pool::joined(2);
        open.store.put_settings(&setting("a", b"both")).unwrap();
        pool.areas[0].fail_after(Some(takes));
        for change in 1..5 {
            open.store.apply(&batch(change, 3)).unwrap();
            open.journal.write_at(change * 5000, b"a record").unwrap();
            open.journal.sync().unwrap();
        }
        assert_eq!(open.copies.state().drives, [1]);
        let expected = pool.in_folder();
        assert_eq!(pool.import(&[0, 1]).unwrap(), expected);
        assert_eq!(pool.import(&[1]).unwrap(), expected);
        assert_eq!(pool.import(&[0]), Err("missing [1]".to_owned()));
        // It works again: all is copied to it.
        pool.areas[0].fail_after(None);
        assert!(open.copies.wants([0, 1]));
        open.copies.join(&pool.areas()).unwrap();
        assert!(!open.copies.wants([0, 1]));
        open.copies.leave(1).unwrap();
        assert_eq!(pool.import(&[0]).unwrap(), expected);
    }
}

#[test]
fn a_drive_that_missed_nothing_but_a_sync_of_the_journal_is_never_imported() {
    let (pool, open) = Pool::joined(2);
    open.store.put_settings(&setting("a", b"both")).unwrap();
    pool.areas[0].fail_after(Some(0));
    open.journal.append_at(1, 0, b"a record").unwrap();
    open.journal.sync().unwrap();
    let imported = pool.import(&[0, 1]).unwrap();
    assert_eq!(imported.1[..8], *b"a record");
    assert_eq!(pool.import(&[0]), Err("missing [1]".to_owned()));
    // It works again, and holds nothing before all is copied to it.
    pool.areas[0].fail_after(None);
    drop(open);
    assert_eq!(pool.open().copies.state().drives, [1]);
}

#[test]
fn of_a_drive_that_forgets_what_it_took_nothing_is_imported_that_another_has_newer() {
    for forgetful in [0, 1] {
        let (pool, open) = Pool::joined(2);
        let media = Arc::new(JournalOnDrives::new(open.copies.clone()));
        let mut journal = Journal::create(media, 0, JournalConfig::default()).unwrap();
        let record = |n: u8| Record::Settings(setting("n", &[n]));
        journal.append([&record(1)]).unwrap();
        journal.sync().unwrap();
        pool.areas[forgetful].forget();
        journal.append([&record(2)]).unwrap();
        journal.sync().unwrap();
        assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
        open.store.put_settings(&setting("a", b"one")).unwrap();
        assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
    }
}

#[test]
fn a_drive_that_cannot_join_costs_the_others_nothing() {
    let (pool, open) = Pool::joined(2);
    let written = || {
        let superblock = layout::Superblock::read(&*pool.areas[0]);
        superblock.unwrap().unwrap().sequence
    };
    let before = written();
    let small: Arc<dyn MetadataArea> = Arc::new(MemoryArea::new(AREA_BLOCKS / 2));
    open.copies.join(&[(7, small)]).unwrap();
    let broken = Arc::new(MemoryArea::new(AREA_BLOCKS));
    broken.fail_after(Some(0));
    open.copies.join(&[(8, broken)]).unwrap();
    assert_eq!(written(), before);
    assert_eq!(open.copies.state().drives.len(), 2);
}

#[test]
fn a_spare_that_becomes_a_drive_leaves_an_identity_that_can_be_imported() {
    let spare = DriveSpec::new("spare", 1 << 20);
    let mut with_spare = identity();
    with_spare.spares.push(crate::SpareSpec {
        path: spare.path.clone(),
        domain: None,
    });
    let (mut replaced, mut added) = (with_spare.clone(), with_spare);
    replaced.replace_drive(0, spare.clone());
    added.add_drive(spare);
    for after in [replaced, added] {
        let text = after.to_text().unwrap();
        let read = PoolIdentity::parse(Path::new("pool.toml"), text.as_bytes());
        assert_eq!(read.unwrap(), after);
    }
}

#[test]
fn when_no_drive_takes_it_the_folder_goes_on_alone_and_the_next_opening_knows() {
    let (pool, open) = Pool::joined(2);
    for area in &pool.areas {
        area.fail_after(Some(0));
    }
    open.store.apply(&batch(1, 3)).unwrap();
    open.journal.write_at(0, b"a record").unwrap();
    open.journal.sync().unwrap();
    assert!(open.copies.state().drives.is_empty());
    drop(open);
    for area in &pool.areas {
        area.fail_after(None);
    }
    let open = pool.open();
    assert!(
        open.copies.state().drives.is_empty(),
        "what they have is old"
    );
    open.copies.join(&pool.areas()).unwrap();
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
}

#[test]
fn the_log_goes_round_and_round_while_bases_are_made() {
    let (pool, open) = Pool::joined(2);
    for change in 0..1200_u32 {
        let value = vec![change as u8; 60 << 10];
        let key = format!("a{}", change % 7);
        open.store.put_settings(&setting(&key, &value)).unwrap();
        if change % 400 == 399 {
            assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
        }
    }
    assert_eq!(open.copies.state().drives.len(), 2);
}

#[test]
fn metadata_that_has_no_room_on_the_drives_stops_nothing() {
    let (pool, open) = Pool::joined(1);
    for change in 0..400_u32 {
        // Random, because what repeats is compressed.
        let mut value = vec![0; 60 << 10];
        getrandom::fill(&mut value).unwrap();
        let key = format!("a{change}");
        open.store.put_settings(&setting(&key, &value)).unwrap();
    }
    while !open.copies.state().is_too_large {
        std::thread::yield_now();
    }
    open.store.put_settings(&setting("b", b"more")).unwrap();
    assert!(open.copies.state().drives.is_empty());
    assert!(pool.import(&[0]).unwrap_err().contains("hold none"));
}

#[test]
fn a_change_that_the_drives_have_and_the_folder_lacks_is_made_at_the_next_opening() {
    let (pool, open) = Pool::joined(2);
    open.store.put_settings(&setting("a", b"one")).unwrap();
    let before = tempfile::tempdir().unwrap();
    let older = |name: &str| before.path().join(name);
    open.copies.store().copy_to(&older("first")).unwrap();
    open.store.apply(&batch(1, 3)).unwrap();
    open.copies.store().copy_to(&older("second")).unwrap();
    open.store.put_settings(&setting("b", b"two")).unwrap();
    drop(open);
    let expected = pool.in_folder();
    let metadata = pool.dir.path().join("metadata");
    let put_back = |name: &str| {
        std::fs::remove_dir_all(&metadata).unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .args([older(name), metadata.clone()])
            .status();
        assert!(copied.unwrap().success());
    };
    put_back("second");
    drop(pool.open());
    assert_eq!(pool.in_folder(), expected);
    assert_eq!(pool.import(&[0, 1]).unwrap(), expected);
    // An older folder is none that only lacks the last change: it is left as it is, and so is what the drives have.
    put_back("first");
    let open = pool.open();
    assert!(open.copies.state().drives.is_empty());
    drop(open);
    assert_eq!(pool.import(&[0, 1]).unwrap(), expected);
}

/// An area in which something happens when it is read the second time.
struct Hooked {
    inner: Arc<MemoryArea>,
    reads: std::sync::atomic::AtomicU32,
    hook: Box<dyn Fn() + Send + Sync>,
}

impl MetadataArea for Hooked {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        if self.reads.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1 {
            (self.hook)();
        }
        self.inner.read(block, bytes)
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.inner.write(block, bytes)
    }

    fn flush(&self) -> PendingIo {
        self.inner.flush()
    }
}

#[test]
fn what_changes_while_a_drive_begins_to_hold_the_metadata_is_there_too() {
    for holders in [0, 1] {
        let pool = Pool::new(2);
        let open = pool.open();
        if holders == 1 {
            open.copies.join(&pool.areas_of(&[0])).unwrap();
        }
        open.journal.append_at(1, 0, b"a record").unwrap();
        open.journal.sync().unwrap();
        let copies = open.copies.clone();
        // The first part of the journal is copied by now.
        let meanwhile = move || {
            let journal = JournalOnDrives::new(copies.clone());
            journal.append_at(1, 50, b"meanwhile").unwrap();
            journal.sync().unwrap();
            let store = StoreOnDrives::new(copies.clone());
            store.put_settings(&setting("a", b"meanwhile")).unwrap();
            store.apply(&batch(1, 3)).unwrap();
        };
        let area: Arc<dyn MetadataArea> = Arc::new(Hooked {
            inner: pool.areas[1].clone(),
            reads: std::sync::atomic::AtomicU32::new(0),
            hook: Box::new(meanwhile),
        });
        open.copies.join(&[(1, area)]).unwrap();
        if holders == 1 {
            open.copies.leave(0).unwrap();
        }
        let (rows, ring) = pool.import(&[1]).unwrap();
        assert_eq!((&rows, &ring), (&pool.in_folder().0, &pool.in_folder().1));
        assert_eq!(ring[50..59], *b"meanwhile");
    }
}

#[test]
fn a_backup_of_the_folder_is_never_taken_for_what_the_drives_have() {
    let (pool, open) = Pool::joined(2);
    open.store.put_settings(&setting("a", b"one")).unwrap();
    let backup = tempfile::tempdir().unwrap();
    let copy = backup.path().join("metadata");
    open.store.copy_to(&copy).unwrap();
    drop(open);
    let metadata = pool.dir.path().join("metadata");
    std::fs::remove_dir_all(&metadata).unwrap();
    std::fs::rename(&copy, &metadata).unwrap();
    let open = pool.open();
    assert!(open.copies.state().drives.is_empty());
    open.copies.join(&pool.areas()).unwrap();
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
}

#[test]
fn a_pool_that_was_closed_in_order_says_so_until_it_is_opened() {
    let (pool, open) = Pool::joined(2);
    let is_closed = || Importable::look(POOL, &pool.areas()).unwrap().is_closed();
    assert!(!is_closed());
    open.copies.close();
    assert!(is_closed());
    drop(open);
    let open = pool.open();
    assert!(!is_closed());
    drop(open);
    assert!(!is_closed());
}

#[test]
fn damage_on_one_drive_is_none_when_another_has_the_same() {
    let (pool, open) = Pool::joined(2);
    open.store.apply(&batch(1, 3)).unwrap();
    let expected = pool.in_folder();
    let superblock = layout::Superblock::read(&*pool.areas[0]).unwrap().unwrap();
    let base = superblock.layout.slot(superblock.base_slot);
    let nothing = Arc::new(vec![1; 4096]);
    pool.areas[0].write(base, nothing.clone()).wait().unwrap();
    assert_eq!(pool.import(&[0, 1]).unwrap(), expected);
    pool.areas[1].write(base, nothing).wait().unwrap();
    assert!(pool.import(&[0, 1]).unwrap_err().contains("damaged"));
}

/// What happens to a pool.
#[derive(Clone, Debug)]
enum Step {
    Setting(u8),
    Batch(u8),
    Append(u16),
    Sync,
    Reopen,
    Base,
    Leave(u16),
    Join,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Setting),
        4 => any::<u8>().prop_map(Step::Batch),
        3 => any::<u16>().prop_map(Step::Append),
        3 => Just(Step::Sync),
        1 => Just(Step::Reopen),
        1 => Just(Step::Base),
        1 => (0..2_u16).prop_map(Step::Leave),
        2 => Just(Step::Join),
    ]
}

/// What must be there: settings and batches that were acknowledged, and what was synced of the journal.
#[derive(Clone, Default)]
struct Told {
    rows: Option<Rows>,
    ring: Vec<u8>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Both drives lose power at any write, and keep any of what was not flushed. The folder is lost. What was acknowledged
    /// is imported, or that and the one change which was on its way.
    #[test]
    fn whatever_was_acknowledged_is_imported_after_a_loss_of_power_at_any_write(
        steps in prop::collection::vec(step(), 1..24),
        takes in 0..120_u64,
        kept in any::<u64>(),
    ) {
        let (pool, mut open) = Pool::joined(2);
        let mut told = Told { rows: None, ring: vec![0; RING as usize] };
        told.rows = Some(pool.in_folder().0);
        // What was appended since the last sync, by its offset.
        let mut unsynced = std::collections::BTreeMap::new();
        let mut next_batch = 1;
        for area in &pool.areas {
            area.fail_after(Some(takes));
        }
        let mut in_flight = told.clone();
        let mut was_lost = false;
        for step in steps {
            match step {
                Step::Setting(value) => open.store.put_settings(&setting("n", &[value])).unwrap(),
                Step::Batch(seed) => {
                    open.store.apply(&batch(next_batch, seed)).unwrap();
                    next_batch += 1;
                }
                Step::Append(value) => {
                    let offset = u64::from(value) * 61;
                    open.journal.append_at(1, offset, &value.to_le_bytes()).unwrap();
                    unsynced.insert(offset, value);
                }
                Step::Sync => open.journal.sync().unwrap(),
                Step::Reopen => {
                    drop(open);
                    open = pool.open();
                    // As an opening does with all that was not synced.
                    for (offset, value) in &unsynced {
                        open.journal.write_at(*offset, &value.to_le_bytes()).unwrap();
                    }
                }
                Step::Base => open.copies.join(&[]).unwrap(),
                Step::Leave(drive) if open.copies.state().drives.len() > 1 => {
                    open.copies.leave(drive).unwrap();
                }
                Step::Leave(_) => {}
                Step::Join => open.copies.join(&pool.areas()).unwrap(),
            }
            let (rows, ring) = pool.in_folder();
            in_flight.rows = Some(rows);
            if open.copies.state().drives.is_empty() {
                was_lost = true;
                break;
            }
            if matches!(step, Step::Sync) {
                in_flight.ring = ring;
                unsynced.clear();
            }
            told = in_flight.clone();
        }
        drop(open);
        let mut bits = kept;
        for area in &pool.areas {
            area.fail_after(None);
            area.lose_power(|| {
                bits = bits.rotate_left(1) ^ 0x5bd1;
                bits & 1 == 1
            });
        }
        let imported = pool.import(&[0, 1]);
        match imported {
            Ok((rows, ring)) => {
                let is_told = told.rows.as_ref() == Some(&rows);
                let is_in_flight = was_lost && in_flight.rows.as_ref() == Some(&rows);
                prop_assert!(is_told || is_in_flight, "other rows than were told");
                // What was not synced is there or not.
                let bytes = ring.iter().zip(&told.ring);
                let mut differs = (0..).zip(bytes).filter(|(_, (now, told))| now != told);
                let is_free = |at: u64| [at, at.wrapping_sub(1)].iter().any(|at| unsynced.contains_key(at));
                let wrong = differs.find(|(at, _)| !is_free(*at));
                prop_assert!(wrong.is_none(), "{wrong:?} was synced, and is not there");
            }
            // Both failed in one write, one of them after the other told a new generation: then it is the one that counts.
            Err(why) => prop_assert!(was_lost, "{why}"),
        }
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..200_u64, (u64::MAX - 200)..=u64::MAX]
}

fn any_batch() -> impl Strategy<Value = Batch> {
    let mapping = (number(), any::<u32>()).prop_map(|(pba, crc32c)| crate::types::Mapping {
        pba: Pba(pba),
        crc32c,
    });
    let map = prop::collection::btree_map(
        (any::<u32>(), number()),
        (prop::option::of(number()), prop::option::of(mapping)),
        0..20,
    );
    let content = (any::<[u8; 16]>(), any::<u32>());
    let blocks = prop::collection::btree_map(
        number(),
        (
            any::<i64>(),
            any::<i64>(),
            prop::option::of(content),
            any::<bool>(),
        ),
        0..20,
    );
    let settings = prop::collection::btree_map(
        "[a-z.]{1,9}",
        prop::option::of(prop::collection::vec(any::<u8>(), 0..30)),
        0..4,
    );
    let updates = prop::collection::btree_map(
        any::<u32>(),
        (
            prop::option::of(any::<u64>()),
            prop::option::of("[a-z]{1,9}"),
            any::<bool>(),
        ),
        0..4,
    );
    let last = prop::option::of(any::<u32>());
    (map, blocks, settings, updates, (number(), number(), last)).prop_map(
        |(map, blocks, settings, updates, (seq, offset, last_epoch))| {
            let mut batch = Batch::checkpoint_only(Checkpoint {
                position: Position { seq, offset },
                epoch: 4,
                last_epoch,
            });
            for (key, (old, new)) in map {
                let old = old.map(Pba);
                batch.map.insert(key, crate::batch::MapChange { old, new });
            }
            for (pba, (delta, lowest, content, wants_index_entry)) in blocks {
                let content = content.map(|(fingerprint, crc32c)| crate::batch::BlockContent {
                    fingerprint: Fingerprint(fingerprint),
                    crc32c,
                });
                let change = crate::batch::BlockChange {
                    delta,
                    lowest,
                    content,
                    wants_index_entry,
                };
                batch.blocks.insert(Pba(pba), change);
            }
            batch.settings = settings;
            for (volume, (size_bytes, name, deleting)) in updates {
                let update = crate::batch::VolumeUpdate {
                    size_bytes,
                    name,
                    deleting,
                    map: deleting.then_some(volume),
                    trimming: deleting.then(|| vec![(1, 5), (7, 9)]),
                    ..crate::batch::VolumeUpdate::default()
                };
                batch
                    .volumes
                    .insert(volume, crate::batch::VolumeChange::Update(update));
            }
            batch.maps.insert(7, None);
            batch.maps.insert(
                8,
                Some(crate::types::MapInfo {
                    id: 8,
                    parent: Some(3),
                    depth: 2,
                }),
            );
            batch
        },
    )
}

proptest! {
    #[test]
    fn a_batch_in_the_log_is_the_batch_that_was_applied(batch in any_batch()) {
        let bytes = change::encode_batch(&batch);
        let decoded = change::Change::decode(&bytes);
        prop_assert_eq!(decoded, Ok(change::Change::Batch(Box::new(batch))));
        prop_assert!(change::Change::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn no_bytes_are_taken_for_a_change_that_they_are_not(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = change::Change::decode(&bytes);
    }
}
