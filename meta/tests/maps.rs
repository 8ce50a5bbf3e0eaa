//! Maps with parents: what the stores make of forks, copies of pages, holes and deletions.

mod common;

use std::path::Path;

use common::{Rows, load};
use meta::{
    BatchBuilder, Checkpoint, Fingerprint, Fork, MapEntry, MapInfo, Mapping, MemoryStore, NewBlock,
    Pba, Position, Record, RocksOptions, RocksStore, Store, VolumeInfo, check,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use uuid::Uuid;

const POOL: Uuid = Uuid::from_u128(7);

fn at(seq: u64) -> Checkpoint {
    Checkpoint {
        position: Position { seq, offset: 0 },
        epoch: 1,
        last_epoch: None,
    }
}

fn volume(id: u32) -> VolumeInfo {
    let any = common::volume_info().new_tree(&mut TestRunner::deterministic());
    VolumeInfo {
        id,
        map: id,
        name: format!("v{id}"),
        size_bytes: 1 << 30,
        state: meta::VolumeState::Active,
        trimming: Vec::new(),
        ..any.expect("a volume").current()
    }
}

fn block(number: u64) -> NewBlock {
    NewBlock {
        pba: Pba::new(0, number),
        fingerprint: Fingerprint([number as u8; 16]),
        crc32c: number as u32,
    }
}

fn new(number: u64) -> MapEntry {
    MapEntry {
        old: None,
        new: Some(block(number)),
    }
}

/// A volume with two blocks, its clone that copied the page and hides one of the two, and the origin's new block.
fn forked() -> Vec<Record> {
    vec![
        Record::VolumeCreate(volume(1)),
        Record::Map {
            map: 1,
            start: 0,
            entries: vec![new(5), new(6)],
        },
        Record::Fork(vec![Fork {
            parent: MapInfo::root(1),
            volume: 1,
            map: 3,
            clone: volume(2),
        }]),
        Record::Own {
            map: 2,
            start: 0,
            entries: vec![new(5), new(6)],
        },
        Record::Hide {
            map: 2,
            entries: vec![(0, block(5).pba)],
        },
        Record::Map {
            map: 3,
            start: 70,
            entries: vec![new(8)],
        },
    ]
}

/// The clone goes first, then the origin, and their parent at last.
fn deleted() -> Vec<Record> {
    let unmap = |map, at, number| Record::Unmap {
        map,
        entries: vec![(at, block(number).pba)],
    };
    vec![
        Record::VolumeDelete { id: 2 },
        unmap(2, 1, 6),
        Record::MapGone { id: 2 },
        Record::VolumeGone { id: 2 },
        Record::VolumeDelete { id: 1 },
        unmap(3, 70, 8),
        Record::MapGone { id: 3 },
        Record::VolumeGone { id: 1 },
        unmap(1, 0, 5),
        unmap(1, 1, 6),
        Record::MapGone { id: 1 },
    ]
}

/// Applies records, so many a batch.
fn apply(store: &dyn Store, first: u64, records: Vec<Record>, a_batch: usize) -> u64 {
    let numbered: Vec<_> = (first..).zip(records).collect();
    let mut next = first;
    for records in numbered.chunks(a_batch) {
        next += records.len() as u64;
        let batch = BatchBuilder::from_records(records, at(next)).expect("a history");
        store.apply(&batch).expect("applying");
        let report = check(store).expect("checking");
        assert!(report.is_consistent(), "{report:?}");
    }
    next
}

fn open(dir: &Path) -> RocksStore {
    RocksStore::open(dir, POOL, RocksOptions::default()).expect("opening")
}

#[test]
fn a_clone_counts_what_it_copied_and_leaves_nothing_when_it_goes() {
    for a_batch in [1, 2, 5, 100] {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().join("store");
        RocksStore::create(&dir, POOL).expect("creating");
        let stores: [Box<dyn Store>; 2] = [Box::new(MemoryStore::new()), Box::new(open(&dir))];
        for store in &stores {
            let next = apply(&**store, 1, forked(), a_batch);
            let (rows, _) = load(&**store).expect("loading");
            assert_eq!(rows.volumes[&1].map, 3);
            let root = MapInfo::root(1);
            assert_eq!(
                store.maps().expect("maps"),
                [root, root.child(2), root.child(3)]
            );
            assert_eq!(rows.map[&(2, 0)], Mapping::HOLE);
            let counts = rows.blocks.values().map(|row| row.refcount);
            assert_eq!(counts.collect::<Vec<_>>(), [1, 2, 1]);
            let totals = store.totals().expect("totals");
            assert_eq!(totals.mapped, [(1, 2), (2, 1), (3, 1)].into());

            apply(&**store, next, deleted(), a_batch);
            let (rows, _) = load(&**store).expect("loading");
            assert_eq!(rows, Rows::default());
            assert_eq!(store.maps().expect("maps"), []);
            assert_eq!(store.totals().expect("totals").mapped, [].into());
        }
    }
}

#[test]
fn rows_with_parents_have_a_version_of_their_own_and_others_stay_as_they_were() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("store");
    RocksStore::create(&dir, POOL).expect("creating");
    let version = || {
        // What is in RocksDB's log only, this program takes up, and this way of reading does not.
        drop(open(&dir));
        let options = rocksdb::Options::default();
        let db = rocksdb::DB::open_cf_for_read_only(&options, &dir, ["default"], false);
        let row = db.expect("opening").get(b"f").expect("reading");
        row.expect("the format row")[0]
    };
    let store = open(&dir);
    apply(&store, 1, forked().drain(..2).collect(), 10);
    drop(store);
    assert_eq!(version(), 7);
    let store = open(&dir);
    apply(&store, 3, forked().drain(2..).collect(), 10);
    drop(store);
    let reader = RocksStore::open_read_only(&dir, POOL, RocksOptions::default());
    assert_eq!(reader.expect("opening").maps().expect("maps").len(), 3);
    assert_eq!(version(), 8);
    assert_eq!(open(&dir).maps().expect("maps").len(), 3);
}

#[test]
fn a_store_of_an_older_program_is_raised_when_it_is_opened_to_be_written_to() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("store");
    RocksStore::create(&dir, POOL).expect("creating");
    let families = || {
        let family = |name: &str| (name.to_owned(), rocksdb::Options::default());
        let names = rocksdb::DB::list_cf(&rocksdb::Options::default(), &dir).expect("families");
        names.iter().map(|name| family(name)).collect::<Vec<_>>()
    };
    let raw = || {
        let options = rocksdb::Options::default();
        rocksdb::DB::open_cf_with_opts(&options, &dir, families()).expect("opening")
    };
    let version = || raw().get(b"f").expect("reading").expect("the format row")[0];
    assert_eq!(version(), 7);
    let format = |version: u8| [&[version, 0, 0, 0], &POOL.as_bytes()[..]].concat();
    // Without forks; with some, of maps that inherit page by page; with some.
    for (old, new) in [(4, 7), (5, 8), (6, 8)] {
        raw().put(b"f", format(old)).expect("writing");
        let reader = RocksStore::open_read_only(&dir, POOL, RocksOptions::default());
        assert_eq!(reader.expect("opening").maps().expect("maps"), []);
        assert_eq!(version(), old);
        drop(open(&dir));
        assert_eq!(version(), new);
    }
    raw().put(b"f", format(9)).expect("writing");
    let refused = RocksStore::open(&dir, POOL, RocksOptions::default()).err();
    let text = refused.expect("a newer store").to_string();
    assert!(
        text.contains("format version 9, this program reads version 8"),
        "{text}"
    );
    // A repair would throw away what it does not know.
    let [new, scratch] = ["new", "scratch"].map(|name| dir.with_extension(name));
    let refused = meta::Salvage::make(&dir, &new, &scratch, POOL).err();
    assert_eq!(
        refused.map(|error| error.kind()),
        Some(meta::MetaErrorKind::WrongVersion)
    );
    assert_eq!(version(), 9);
}

#[test]
fn the_check_finds_a_map_whose_parent_is_not_there() {
    let store = MemoryStore::new();
    let next = apply(&store, 1, forked(), 100);
    let mut batch = meta::Batch::checkpoint_only(at(next));
    batch.maps.insert(9, Some(MapInfo::root(8).child(9)));
    let report = meta::check_with(&store, &batch, 0, meta::CHECK_MEMORY_BYTES).expect("checking");
    let expected = [(meta::ProblemKind::WrongParent, 1)];
    assert_eq!(report.counts, expected.into_iter().collect());
}
