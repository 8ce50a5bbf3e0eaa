//! Batches, against the naive way: one record after the other.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{NaivePool, Rows, load};
use meta::{
    BatchBuilder, Checkpoint, Fingerprint, MapEntry, MemoryStore, MetaErrorKind, NewBlock, Pba,
    Position, Record, RocksOptions, RocksStore, Store, check, check_with,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

fn at(seq: u64) -> Checkpoint {
    Checkpoint {
        position: Position {
            seq,
            offset: seq * 8,
        },
        epoch: 1,
        last_epoch: None,
    }
}

/// Runs `commands` random commands, applies their records in batches of random length, and compares
/// the rows with the truth after each.
fn compare(store: &dyn Store, seed: u64, commands: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut pool = NaivePool::default();
    let mut seq = 1;
    while seq <= commands {
        let count = rng.random_range(0..40);
        let records: Vec<(u64, Record)> = (seq..seq + count)
            .map(|seq| (seq, pool.command(&mut rng)))
            .collect();
        seq += count;
        let batch = BatchBuilder::from_records(&records, at(seq)).unwrap();

        let report = check_with(store, &batch, 4096, meta::CHECK_MEMORY_BYTES).unwrap();
        assert!(
            report.is_consistent(),
            "seed {seed}: before: {:?}",
            report.problems
        );
        assert_eq!(report.checkpoint, at(seq));
        store.apply(&batch).unwrap();

        let (rows, checkpoint) = load(store).unwrap();
        assert_eq!(checkpoint, at(seq));
        assert_eq!(rows, pool.rows, "seed {seed}");
        let after = check(store).unwrap();
        assert!(
            after.is_consistent(),
            "seed {seed}: after: {:?}",
            after.problems
        );
        assert_eq!(
            (after.mappings, after.blocks),
            (report.mappings, report.blocks)
        );
        assert_eq!(after.duplicate_fingerprints, 0);
    }
}

#[test]
fn a_batch_equals_its_records_one_by_one_in_memory() {
    for seed in common::seeds(300) {
        compare(&MemoryStore::new(), seed, 300);
    }
}

#[test]
fn a_batch_equals_its_records_one_by_one_on_disk() {
    for seed in common::seeds(300).take(5) {
        let dir = tempfile::tempdir().unwrap();
        let store = rocks(&dir.path().join("metadata"));
        compare(&store, seed, 400);
    }
}

fn rocks(path: &Path) -> RocksStore {
    RocksStore::create(path, Uuid::from_u128(1)).unwrap();
    RocksStore::open(path, Uuid::from_u128(1), RocksOptions::default()).unwrap()
}

fn new(pba: u64, content: u8) -> Option<NewBlock> {
    Some(NewBlock {
        pba: Pba(pba),
        fingerprint: Fingerprint([content; 16]),
        crc32c: u32::from(content),
    })
}

fn map(start: u64, entries: &[(Option<u64>, Option<NewBlock>)]) -> Record {
    let entries = entries
        .iter()
        .map(|(old, new)| MapEntry {
            old: old.map(Pba),
            new: *new,
        })
        .collect();
    Record::Map {
        map: 1,
        start,
        entries,
    }
}

/// Applies each run of records as one batch; the kind of the error of the last run, if it has one.
fn apply(store: &dyn Store, runs: &[&[Record]]) -> Option<MetaErrorKind> {
    let mut seq = store.checkpoint().unwrap().position.seq;
    let mut result = None;
    for run in runs {
        assert_eq!(result, None, "an earlier run failed");
        let records: Vec<_> = (seq..).zip(run.iter().cloned()).collect();
        let end = seq + records.len() as u64;
        match BatchBuilder::from_records(&records, at(end)).and_then(|batch| store.apply(&batch)) {
            Ok(()) => seq = end,
            Err(error) => result = Some(error.kind()),
        }
    }
    result
}

fn both(test: impl Fn(&dyn Store)) {
    test(&MemoryStore::new());
    let dir = tempfile::tempdir().unwrap();
    test(&rocks(&dir.path().join("metadata")));
}

#[test]
fn a_block_freed_and_used_again_within_a_batch_holds_the_new_content() {
    both(|store| {
        let first = [map(0, &[(None, new(5, 1))])];
        let again = [
            map(0, &[(Some(5), None)]),
            map(9, &[(None, new(5, 2))]),
            map(8, &[(None, new(5, 2))]),
        ];
        assert_eq!(apply(store, &[&first, &again]), None);
        let (rows, _) = load(store).unwrap();
        let row = rows.blocks[&Pba(5)];
        assert_eq!(
            (row.refcount, row.fingerprint, row.crc32c),
            (2, Fingerprint([2; 16]), 2)
        );
    });
}

#[test]
fn contradicting_records_are_refused_and_nothing_of_them_is_applied() {
    let bad: [&[Record]; 8] = [
        // Frees a block more often than it is mapped.
        &[
            Record::Unmap {
                map: 1,
                entries: vec![(0, Pba(5))],
            },
            map(7, &[(Some(5), None)]),
        ],
        // Maps a block to other content while it is in use.
        &[map(7, &[(None, new(5, 2))])],
        // Trims the same sub-block twice.
        &[Record::Unmap {
            map: 1,
            entries: vec![(0, Pba(5)), (0, Pba(5))],
        }],
        // Forgets what the record before it mapped.
        &[map(3, &[(None, new(6, 2))]), map(3, &[(None, new(7, 3))])],
        // Frees a block that there never was.
        &[map(0, &[(Some(77), None)])],
        // Changes a volume that there is not.
        &[Record::VolumeResize {
            id: 4,
            size_bytes: 1,
            trimming: Vec::new(),
        }],
        &[Record::Trimming {
            id: 4,
            ranges: Vec::new(),
        }],
        &[Record::VolumeGone { id: 4 }, Record::VolumeDelete { id: 4 }],
    ];
    both(|store| {
        assert_eq!(apply(store, &[&[map(0, &[(None, new(5, 1))])]]), None);
        let before = load(store).unwrap();
        for (index, records) in bad.iter().enumerate() {
            let result = apply(store, &[records]);
            assert_eq!(result, Some(MetaErrorKind::Inconsistent), "case {index}");
            assert_eq!(load(store).unwrap(), before, "case {index}");
        }
    });
}

#[test]
fn a_batch_is_applied_once_and_only_where_it_follows() {
    both(|store| {
        let records = [(1, map(0, &[(None, new(5, 1))]))];
        let batch = BatchBuilder::from_records(&records, at(2)).unwrap();
        store.apply(&batch).unwrap();
        let again = store.apply(&batch).unwrap_err();
        assert_eq!(again.kind(), MetaErrorKind::Inconsistent);
        let gap = BatchBuilder::from_records(&[(3, Record::Durable { upto: 1 })], at(4)).unwrap();
        assert_eq!(
            store.apply(&gap).unwrap_err().kind(),
            MetaErrorKind::Inconsistent
        );
        assert_eq!(store.checkpoint().unwrap(), at(2));
        let (rows, _) = load(store).unwrap();
        assert_eq!(rows.blocks[&Pba(5)].refcount, 1);
    });
}

#[test]
fn records_that_do_not_follow_each_other_make_no_batch() {
    let durable = Record::Durable { upto: 0 };
    let gap = [(1, durable.clone()), (3, durable.clone())];
    assert!(BatchBuilder::from_records(&gap, at(4)).is_err());
    assert!(BatchBuilder::from_records(&[(1, durable)], at(3)).is_err());
    assert!(BatchBuilder::from_records(&[], at(3)).is_ok());
}

#[test]
fn a_mapping_that_comes_and_goes_within_a_batch_leaves_no_rows() {
    both(|store| {
        let run = [map(0, &[(None, new(5, 1))]), map(0, &[(Some(5), None)])];
        assert_eq!(apply(store, &[&run]), None);
        assert_eq!(load(store).unwrap(), (Rows::default(), at(3)));
    });
}

#[test]
fn what_was_nothing_and_is_nothing_is_no_change_and_what_is_written_beside_it_is_one() {
    let record = map(3, &[(None, None), (None, new(7, 1)), (None, None)]);
    let batch = BatchBuilder::from_records(&[(1, record)], at(2)).unwrap();
    let changed = batch.map.iter().map(|((_, at), _)| at);
    assert_eq!(changed.collect::<Vec<_>>(), [4]);
}

#[test]
fn a_hole_is_gone_when_what_was_mapped_in_its_place_is_taken_away_in_the_same_batch() {
    both(|store| {
        let hole = Some(NewBlock::HOLE);
        let first = [map(0, &[(None, hole), (None, hole)])];
        let second = [map(0, &[(None, new(5, 1))]), map(0, &[(Some(5), None)])];
        assert_eq!(apply(store, &[&first, &second]), None);
        let rows = store.mappings(1, 0, 64, 64).unwrap();
        assert_eq!(rows, [(1, meta::Mapping::HOLE)]);
    });
}

#[test]
fn the_check_finds_what_does_not_agree() {
    use meta::ProblemKind::{BeyondEnd, OrphanBlock, UnknownVolume, WrongCount};
    // A batch made by hand stands for a store that has lost the agreement.
    let store = MemoryStore::new();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut pool = NaivePool::default();
    let records: Vec<_> = (1..=50).map(|seq| (seq, pool.command(&mut rng))).collect();
    store
        .apply(&BatchBuilder::from_records(&records, at(51)).unwrap())
        .unwrap();
    let mut batch = meta::Batch::checkpoint_only(at(51));
    let content = meta::BlockContent {
        fingerprint: Fingerprint([9; 16]),
        crc32c: 9,
    };
    let change = |delta| meta::BlockChange {
        wants_index_entry: false,
        delta,
        lowest: 0,
        content: Some(content),
    };
    batch.blocks.insert(Pba(1 << 40), change(1));
    batch.blocks.insert(Pba(1 << 41), change(5));
    let mut point = |volume, sub_block, pba| {
        let new = Some(meta::Mapping {
            pba: Pba(pba),
            crc32c: 9,
        });
        batch
            .map
            .insert((volume, sub_block), meta::MapChange { old: None, new });
    };
    let volume = *pool.rows.volumes.keys().next().unwrap();
    point(volume, 1 << 40, 1 << 41);
    // What a shrunk volume hides of its parent is no fault.
    point(volume, (1 << 40) + 1, meta::Pba::HOLE.0);
    point(4_000_000, 1, 1 << 42);
    let expected = [
        (meta::ProblemKind::DanglingMapping, 1),
        (WrongCount, 1),
        (OrphanBlock, 1),
        (UnknownVolume, 1),
        (BeyondEnd, 1),
    ];
    // With memory for all blocks, for some, and for one at a time.
    let whole = check_with(&store, &batch, 4096, meta::CHECK_MEMORY_BYTES).unwrap();
    assert_eq!((whole.passes, whole.duplicate_fingerprints), (1, 1));
    let mut passes = whole.passes;
    for memory_bytes in [meta::CHECK_MEMORY_BYTES, 600, 1] {
        let report = check_with(&store, &batch, 4096, memory_bytes).unwrap();
        assert!(!report.is_consistent());
        let expected = expected.into_iter().collect();
        assert_eq!(report.counts, expected, "{memory_bytes}");
        let details = |report: &meta::CheckReport| {
            let problems = report.problems.iter();
            problems.map(|problem| problem.detail.clone()).collect()
        };
        let [found, known]: [BTreeSet<String>; 2] = [details(&report), details(&whole)];
        assert_eq!((found.len(), &found), (5, &known), "{memory_bytes}");
        assert_eq!(
            [report.volumes, report.mappings, report.blocks],
            [whole.volumes, whole.mappings, whole.blocks]
        );
        assert!(
            report.passes == 1 || report.passes > passes,
            "{memory_bytes}"
        );
        passes = report.passes;
    }
    // The last pass finds no block any more.
    assert_eq!(passes, whole.blocks + 1);
}
