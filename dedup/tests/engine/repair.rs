//! The offline repair of a pool in a folder: every kind of damage, made on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::folder::{BLOCKS, create, filled, open};
use crate::support::{Pool, block_on, expect_kind, space, spec};
use dedup::{CheckOptions, ErrorKind, LostRange, Repair, RepairReport, VolumeSpec, check_pool};
use drives::BLOCK_BYTES;
use meta::{
    Batch, BlockChange, BlockContent, BlockRow, CHECK_MEMORY_BYTES, Compression, Fingerprint,
    LoadVisitor, MapChange, Mapping, Pba, PoolDir, RocksOptions, Store, VolumeChange, VolumeInfo,
};

const GRAIN: u64 = BLOCK_BYTES as u64;

/// Memory for one block of the tables at a time, and for a few.
const MEMORY: [usize; 2] = [1, 1000];

#[derive(Clone, Debug, Default, PartialEq)]
struct Rows {
    volumes: BTreeMap<u32, VolumeInfo>,
    blocks: BTreeMap<Pba, BlockRow>,
    map: BTreeMap<(u32, u64), Mapping>,
}

impl LoadVisitor for Rows {
    fn volume(&mut self, volume: VolumeInfo) {
        self.volumes.insert(volume.id, volume);
    }

    fn block(&mut self, pba: Pba, row: BlockRow) {
        self.blocks.insert(pba, row);
    }

    fn map(&mut self, volume: u32, sub_block: u64, mapping: Mapping) {
        self.map.insert((volume, sub_block), mapping);
    }
}

/// The rows of the store; changed first by whatever `damage` puts into the batch.
fn damage(dir: &Path, damage: impl FnOnce(&mut Batch, &Rows)) -> Rows {
    let pool = PoolDir::open(dir).unwrap();
    let store = pool.open_store(RocksOptions::default()).unwrap();
    let mut rows = Rows::default();
    let checkpoint = store.load(&mut rows).unwrap();
    let mut batch = Batch::checkpoint_only(checkpoint);
    damage(&mut batch, &rows);
    store.apply(&batch).unwrap();
    let mut rows = Rows::default();
    store.load(&mut rows).unwrap();
    rows
}

fn rows(dir: &Path) -> Rows {
    damage(dir, |_, _| {})
}

/// Removes the row of a block.
fn remove_block(batch: &mut Batch, rows: &Rows, pba: Pba) {
    let count = i64::from(rows.blocks[&pba].refcount);
    let change = BlockChange {
        wants_index_entry: false,
        delta: -count,
        lowest: -count,
        content: None,
    };
    batch.blocks.insert(pba, change);
}

fn count(delta: i64) -> BlockChange {
    BlockChange {
        wants_index_entry: false,
        delta,
        lowest: delta.min(0),
        content: None,
    }
}

fn is_clean(dir: &Path) -> bool {
    let report = check_pool(dir, CheckOptions::default()).unwrap();
    report.consistent
}

/// Expects damage, repairs it, and proves that the pool is clean then, opens, and needs no second
/// repair.
fn repair(dir: &Path) -> (RepairReport, PathBuf) {
    assert!(!is_clean(dir), "the damage is not noticed");
    let plans = MEMORY.map(|bytes| Repair::plan(dir, bytes).unwrap().report().clone());
    let plan = Repair::plan(dir, CHECK_MEMORY_BYTES).unwrap();
    let report = plan.report().clone();
    assert!(!report.consistent);
    for small in plans {
        assert_eq!(small, report, "it is the same with little memory");
    }
    let backup = plan.apply().unwrap().expect("something was changed");
    assert!(is_clean(dir), "the repair left something behind");
    let after = rows(dir);
    let again = Repair::plan(dir, CHECK_MEMORY_BYTES).unwrap();
    assert!(again.report().consistent, "{:?}", again.report());
    assert_eq!(again.apply().unwrap(), None, "a second repair does nothing");
    assert_eq!(rows(dir), after);
    (report, backup)
}

fn lost(volume: &str, offset: u64, bytes: u64) -> (String, u64, u64) {
    (volume.to_owned(), offset * GRAIN, bytes * GRAIN)
}

fn ranges(report: &RepairReport) -> Vec<(String, u64, u64)> {
    let range = |lost: &LostRange| (lost.volume.clone(), lost.offset, lost.bytes);
    report.lost.iter().map(range).collect()
}

#[test]
fn a_clean_pool_is_left_alone() {
    let (_keep, dir) = filled();
    let before = rows(&dir);
    let plan = Repair::plan(&dir, CHECK_MEMORY_BYTES).unwrap();
    assert!(plan.report().consistent);
    assert!(plan.report().journal_records > 0);
    assert_eq!(plan.apply().unwrap(), None);
    assert_eq!(rows(&dir), before);
    let files = fs::read_dir(&dir).unwrap();
    assert!(
        files
            .flatten()
            .all(|file| !file.file_name().to_string_lossy().starts_with("repair"))
    );
}

#[test]
fn leaked_blocks_are_freed_and_wrong_counts_follow_the_maps() {
    let (_keep, dir) = filled();
    let leak = Pba::new(0, 700);
    let foreign = Pba::new(3, 5);
    let before = damage(&dir, |batch, rows| {
        let row = BlockChange {
            wants_index_entry: false,
            delta: 9,
            lowest: 0,
            content: Some(BlockContent {
                fingerprint: Fingerprint([7; 16]),
                crc32c: 7,
            }),
        };
        batch.blocks.insert(leak, row);
        batch.blocks.insert(foreign, row);
        let (pba, _) = rows.blocks.first_key_value().unwrap();
        batch.blocks.insert(*pba, count(3));
        let (pba, _) = rows.blocks.last_key_value().unwrap();
        batch.blocks.insert(*pba, count(1));
    });
    let (report, backup) = repair(&dir);
    assert_eq!((report.freed_blocks, report.corrected_counts), (2, 2));
    assert_eq!(report.lost_sub_blocks, 0);
    let text = fs::read_to_string(backup).unwrap();
    let row = before.blocks[&leak];
    let line = format!(
        "block {leak}: references=9 fingerprint={} crc32c=00000007 => none\n",
        row.fingerprint
    );
    assert!(text.contains(&line), "{text}");
    // Every row that differs is in the backup, and no other.
    let changed = before
        .blocks
        .iter()
        .filter(|(pba, row)| rows(&dir).blocks.get(pba) != Some(row));
    assert!(changed.clone().count() >= 4);
    for (pba, _) in changed {
        assert!(
            text.contains(&format!("\nblock {pba}: references=")),
            "{text}"
        );
    }
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(
        Pool::new(1).read(&volume, 0, 6).unwrap(),
        [0, 2, 3, 5, 6, 4]
    );
    assert_eq!(space(&engine).0, 5);
}

#[test]
fn a_mapping_without_a_block_reads_as_an_error_until_it_is_written_again() {
    let (_keep, dir) = filled();
    damage(&dir, |batch, rows| {
        // Sub-blocks 1 and 2, and 0 and 3, of which the journal has newer mappings.
        for at in 0..4 {
            remove_block(batch, rows, rows.map[&(1, at)].pba);
        }
    });
    let (report, _) = repair(&dir);
    assert_eq!(ranges(&report), [lost("v", 1, 2)]);
    assert_eq!((report.lost_ranges, report.lost_sub_blocks), (1, 2));
    // What reads the data finds it: the damage is known, not hidden.
    let data = check_pool(
        &dir,
        CheckOptions {
            data: true,
            ..CheckOptions::default()
        },
    )
    .unwrap();
    assert_eq!(data.damage.damaged_blocks, 2, "{data:?}");
    assert_eq!(data.damage.ranges[0].bytes, 2 * GRAIN, "{data:?}");

    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    expect_kind(buffers.read(&volume, 1, 1), ErrorKind::Corrupt);
    expect_kind(buffers.read(&volume, 2, 1), ErrorKind::Corrupt);
    assert_eq!(buffers.read(&volume, 3, 3).unwrap(), [5, 6, 4]);
    // Nothing that is written now is taken for stored in a lost block.
    buffers.write(&volume, 10, &[2, 3]).unwrap();
    assert_eq!(buffers.read(&volume, 10, 2).unwrap(), [2, 3]);
    buffers.write(&volume, 1, &[2]).unwrap();
    block_on(volume.trim(2 * GRAIN, GRAIN)).unwrap();
    assert_eq!(buffers.read(&volume, 0, 6).unwrap(), [0, 2, 0, 5, 6, 4]);
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine, pool));
    let data = check_pool(
        &dir,
        CheckOptions {
            data: true,
            ..CheckOptions::default()
        },
    )
    .unwrap();
    assert!(data.consistent, "{data:?}");
}

#[test]
fn a_mapping_to_a_block_that_no_drive_has_is_lost_and_keeps_the_rest_readable() {
    let (_keep, dir) = filled();
    damage(&dir, |batch, rows| {
        for (at, block) in [(1, BLOCKS), (5, 1 << 40)] {
            let old = rows.map[&(1, at)];
            let pba = Pba::new(0, block);
            let new = Some(Mapping { pba, ..old });
            let old = Some(old.pba);
            batch.map.insert((1, at), MapChange { old, new });
        }
    });
    let (report, _) = repair(&dir);
    assert_eq!(ranges(&report), [lost("v", 1, 1), lost("v", 5, 1)]);
    assert_eq!(report.freed_blocks, 2);
    let buffers = Pool::new(1);
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    for at in [1, 5] {
        expect_kind(buffers.read(&volume, at, 1), ErrorKind::Corrupt);
    }
    assert_eq!(buffers.read(&volume, 2, 3).unwrap(), [3, 5, 6]);
}

#[test]
fn what_stands_for_lost_data_is_no_block_that_holds_compressed_contents() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let buffers = Pool::new(1);
    let (pool, engine) = open(dir.path());
    let packed = VolumeSpec {
        compression: Compression::Lz4,
        ..spec("v", 500, 4096)
    };
    let volume = block_on(engine.create_volume(packed)).unwrap();
    let contents: Vec<u64> = (1..=30).collect();
    buffers.write(&volume, 0, &contents).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine, pool));
    damage(dir.path(), |batch, rows| {
        let before = rows.map[&(1, 0)];
        assert!(before.pba.is_fragment());
        let lost = Mapping {
            pba: Pba::new(7, 1),
            ..before
        };
        batch.map.insert(
            (1, 0),
            MapChange {
                old: Some(before.pba),
                new: Some(lost),
            },
        );
        batch.blocks.insert(before.pba, count(-1));
    });
    let (report, _) = repair(dir.path());
    assert_eq!(ranges(&report), [lost("v", 0, 1)]);

    let (_pool, engine) = open(dir.path());
    let volume = engine.volume("v").unwrap();
    // Its block is free again, and taken by others.
    block_on(volume.trim(0, GRAIN)).unwrap();
    block_on(volume.flush()).unwrap();
    let plain = block_on(engine.create_volume(spec("plain", 100, 4096))).unwrap();
    let others: Vec<u64> = (1000..1100).collect();
    buffers.write(&plain, 0, &others).unwrap();
    assert_eq!(buffers.read(&volume, 1, 29).unwrap(), contents[1..]);
}

#[test]
fn a_mapping_that_contradicts_its_block_never_shows_the_content_of_another_one() {
    let (_keep, dir) = filled();
    damage(&dir, |batch, rows| {
        // Sub-block 1 leads to the block of sub-block 2, with the checksum of its own content.
        let (own, other) = (rows.map[&(1, 1)], rows.map[&(1, 2)]);
        let new = Some(Mapping {
            pba: other.pba,
            crc32c: own.crc32c,
        });
        let old = Some(own.pba);
        batch.map.insert((1, 1), MapChange { old, new });
    });
    let (report, _) = repair(&dir);
    assert_eq!(ranges(&report), [lost("v", 1, 1)]);
    let buffers = Pool::new(1);
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    expect_kind(buffers.read(&volume, 1, 1), ErrorKind::Corrupt);
    assert_eq!(buffers.read(&volume, 2, 4).unwrap(), [3, 5, 6, 4]);
}

#[test]
fn a_block_whose_row_has_a_wrong_checksum_keeps_its_data_if_the_drive_proves_its_mappings() {
    let (_keep, dir) = filled();
    let before = damage(&dir, |batch, rows| {
        let row = rows.blocks[&rows.map[&(1, 1)].pba];
        let wrong = BlockChange {
            lowest: -i64::from(row.refcount),
            content: Some(BlockContent {
                fingerprint: row.fingerprint,
                crc32c: !row.crc32c,
            }),
            ..count(0)
        };
        batch.blocks.insert(rows.map[&(1, 1)].pba, wrong);
    });
    let (report, _) = repair(&dir);
    assert_eq!(report.lost_sub_blocks, 0, "{report:?}");
    let mapping = rows(&dir).map[&(1, 1)];
    assert_eq!(mapping, before.map[&(1, 1)]);
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(
        Pool::new(1).read(&volume, 0, 6).unwrap(),
        [0, 2, 3, 5, 6, 4]
    );
}

#[test]
fn the_data_of_a_volume_that_lost_its_row_comes_back_under_another_name() {
    let (_keep, dir) = filled();
    let before = rows(&dir).volumes[&1].clone();
    damage(&dir, |batch, _| {
        batch.volumes.insert(1, VolumeChange::Remove);
    });
    let (report, backup) = repair(&dir);
    let found = &report.recovered_volumes[0];
    assert_eq!((found.name.as_str(), found.mappings), ("recovered-1", 5));
    assert_eq!(found.size_bytes, 6 * GRAIN);
    assert_eq!(report.lost_sub_blocks, 0);
    let text = fs::read_to_string(backup).unwrap();
    assert!(
        text.contains("volume 1: none => name=recovered-1 "),
        "{text}"
    );
    let buffers = Pool::new(1);
    let (_pool, engine) = open(&dir);
    assert!(engine.volume(&before.name).is_none());
    let volume = engine.volume("recovered-1").unwrap();
    assert_eq!(buffers.read(&volume, 0, 6).unwrap(), [0, 2, 3, 5, 6, 4]);
    // It is a volume like any other: whoever does not need it deletes it.
    block_on(engine.delete_volume("recovered-1")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 0);
}

#[test]
fn mappings_behind_the_end_of_a_volume_are_removed() {
    let (_keep, dir) = filled();
    damage(&dir, |batch, rows| {
        let mapping = rows.map[&(1, 1)];
        let pba = mapping.pba;
        for at in [500, 1 << 60] {
            let change = MapChange {
                old: None,
                new: Some(mapping),
            };
            batch.map.insert((1, at), change);
        }
        batch.blocks.insert(pba, count(1));
    });
    let (report, _) = repair(&dir);
    assert_eq!((report.dropped_mappings, report.corrected_counts), (2, 1));
    assert_eq!(report.lost_sub_blocks, 0);
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(
        Pool::new(1).read(&volume, 0, 6).unwrap(),
        [0, 2, 3, 5, 6, 4]
    );
}

#[test]
fn of_two_contents_in_one_block_only_the_one_on_the_drive_survives() {
    let (_keep, dir) = filled();
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    block_on(engine.checkpoint()).unwrap();
    // The journal says that this block holds content 2; then its row says something else.
    Pool::new(1).write(&volume, 20, &[2]).unwrap();
    drop((volume, engine, pool));
    let before = damage(&dir, |batch, rows| {
        let pba = rows.map[&(1, 1)].pba;
        let references = i64::from(rows.blocks[&pba].refcount);
        let other = BlockChange {
            wants_index_entry: false,
            delta: 0,
            lowest: -references,
            content: Some(BlockContent {
                fingerprint: Fingerprint([1; 16]),
                crc32c: 1,
            }),
        };
        batch.blocks.insert(pba, other);
    });
    let (report, _) = repair(&dir);
    assert_eq!(ranges(&report), [lost("v", 1, 1)]);
    let after = rows(&dir);
    assert_eq!(after.map[&(1, 20)], before.map[&(1, 1)]);
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    let buffers = Pool::new(1);
    assert_eq!(buffers.read(&volume, 20, 1).unwrap(), [2]);
    expect_kind(buffers.read(&volume, 1, 1), ErrorKind::Corrupt);
}

#[test]
fn writes_that_were_never_flushed_are_proven_by_a_repair_too() {
    let (_keep, dir) = filled();
    let drive = fs::OpenOptions::new()
        .write(true)
        .open(dir.join("drive0"))
        .unwrap();
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    let buffers = Pool::new(1);
    buffers.write(&volume, 1, &[77]).unwrap();
    drop((volume, engine, pool));
    // The data of that write never arrived: what is not in the store yet is in none of its blocks.
    let stored = rows(&dir).blocks;
    for block in (0..32).filter(|block| !stored.contains_key(&Pba::new(0, *block))) {
        drive
            .write_all_at(&[9; 512], (256 + block) * GRAIN)
            .unwrap();
    }
    damage(&dir, |batch, rows| {
        batch.blocks.insert(rows.map[&(1, 2)].pba, count(1));
    });
    let (report, _) = repair(&dir);
    assert_eq!((report.unproven, report.lost_sub_blocks), (1, 0));
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(buffers.read(&volume, 1, 2).unwrap(), [2, 3]);
}

#[test]
fn a_pool_without_a_drive_or_in_use_is_not_touched() {
    let (_keep, dir) = filled();
    fs::rename(dir.join("drive0"), dir.join("away")).unwrap();
    let message = expect_kind(Repair::plan(&dir, CHECK_MEMORY_BYTES), ErrorKind::Corrupt);
    assert!(message.contains("drive0"), "{message}");
    fs::rename(dir.join("away"), dir.join("drive0")).unwrap();
    let held = PoolDir::open(&dir).unwrap();
    expect_kind(
        Repair::plan(&dir, CHECK_MEMORY_BYTES),
        ErrorKind::Unavailable,
    );
    drop(held);
    assert!(
        Repair::plan(&dir, CHECK_MEMORY_BYTES)
            .unwrap()
            .report()
            .consistent
    );
}

#[test]
fn a_backup_that_cannot_be_written_stops_the_repair() {
    let (_keep, dir) = filled();
    let before = damage(&dir, |batch, rows| {
        batch.blocks.insert(rows.map[&(1, 1)].pba, count(1));
    });
    let plan = Repair::plan(&dir, CHECK_MEMORY_BYTES).unwrap();
    // The folder goes away under it: root may write everywhere else.
    let away = dir.with_extension("away");
    fs::rename(&dir, &away).unwrap();
    let message = expect_kind(plan.apply(), ErrorKind::Unavailable);
    assert!(message.contains("backup"), "{message}");
    fs::rename(&away, &dir).unwrap();
    assert_eq!(rows(&dir), before);
    repair(&dir);
}

#[test]
fn every_lost_range_of_a_large_damage_is_counted() {
    let (_keep, dir) = filled();
    let (pool, engine) = open(&dir);
    let volume = block_on(engine.create_volume(spec("big", 2048, 4096))).unwrap();
    let buffers = Pool::new(1);
    let contents: Vec<u64> = (1000..1200).collect();
    buffers.write(&volume, 0, &contents).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine, pool));
    damage(&dir, |batch, rows| {
        for pba in rows.blocks.keys() {
            remove_block(batch, rows, *pba);
        }
    });
    let (report, _) = repair(&dir);
    assert_eq!(report.lost_sub_blocks, 205);
    assert_eq!(ranges(&report), [lost("v", 1, 5), lost("big", 0, 200)]);
}
