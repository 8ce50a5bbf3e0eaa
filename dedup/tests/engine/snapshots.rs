//! Snapshots, clones of them and rollbacks, story by story.

use std::time::Instant;

use crate::support::{Pool, block_on, expect_kind, space, spec};
use dedup::ErrorKind;
use drives::BLOCK_BYTES;
use meta::Store;

const GRAIN: u64 = BLOCK_BYTES as u64;

/// Writes 1 to 600 to the first sub-blocks.
fn fill(pool: &Pool, volume: &dedup::Volume) {
    for first in (0..600u64).step_by(100) {
        let contents: Vec<u64> = (first + 1..=first + 100).collect();
        pool.write(volume, first, &contents).unwrap();
    }
}

#[test]
fn a_snapshot_keeps_what_its_volume_had_and_takes_no_writes() {
    let pool = Pool::new(2000);
    let (engine, volume) = pool.with_volume(640, 4096);
    pool.write(&volume, 10, &[1, 2, 3]).unwrap();
    let made = block_on(engine.create_snapshots(&["v@a"], 77)).unwrap();
    assert_eq!((made.len(), made[0].name.as_str()), (1, "v@a"));
    assert_eq!(made[0].snapshot.map(|of| of.created), Some(77));
    pool.write(&volume, 11, &[9]).unwrap();
    block_on(volume.trim(12 * GRAIN, GRAIN)).unwrap();
    let check = |engine: &dedup::Engine| {
        let snapshot = engine.volume("v@a").unwrap();
        assert_eq!(pool.read(&snapshot, 10, 3).unwrap(), [1, 2, 3]);
        assert_eq!(
            pool.read(&engine.volume("v").unwrap(), 10, 3).unwrap(),
            [1, 9, 0]
        );
        assert!(!snapshot.is_writable());
        for refused in [
            pool.write(&snapshot, 10, &[7]).map(drop),
            block_on(snapshot.trim(0, GRAIN)),
            block_on(snapshot.write_zeroes(0, GRAIN, false)),
        ] {
            let error = refused.expect_err("it is a snapshot");
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(
                error.message.contains("onefold volume clone v@a"),
                "{error}"
            );
        }
        let volumes = engine.volumes();
        assert_eq!(volumes.len(), 1, "{volumes:?}");
        assert_eq!(engine.snapshots().len(), 1);
    };
    check(&engine);
    drop((volume, engine));
    let engine = pool.open();
    check(&engine);
    // It is called after its volume.
    block_on(engine.rename_volume("v", "w")).unwrap();
    assert_eq!(engine.snapshots()[0].name, "w@a");
    drop(engine);
    assert_eq!(pool.open().snapshots()[0].name, "w@a");
}

#[test]
fn names_that_cannot_be_are_refused_with_what_to_do_and_nothing_is_taken() {
    let pool = Pool::new(200);
    let (engine, volume) = pool.with_volume(64, 4096);
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    for (names, kind, words) in [
        (
            &["v@a"][..],
            ErrorKind::Invalid,
            "onefold snapshot delete v@a",
        ),
        (&["v@b", "v@c"], ErrorKind::Invalid, "name it once"),
        (&["v@b", "none@b"], ErrorKind::NotFound, "no volume `none`"),
        (&["v"], ErrorKind::Invalid, "VOLUME@NAME"),
        (&["v@"], ErrorKind::Invalid, "a-z A-Z 0-9"),
        (&["v@a b"], ErrorKind::Invalid, "a-z A-Z 0-9"),
        (&["v@a@b"], ErrorKind::Invalid, "a-z A-Z 0-9"),
        (&[], ErrorKind::Invalid, "name 1 to"),
    ] {
        let refused = block_on(engine.create_snapshots(names, 1)).map(drop);
        let error = refused.expect_err("it cannot be");
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    assert_eq!(engine.snapshots().len(), 1);
    let refused = block_on(engine.delete_volume("v"));
    let error = refused.expect_err("it has a snapshot");
    assert!(error.message.contains("v@a"), "{error}");
    expect_kind(
        block_on(engine.resize_volume("v@a", 4096)).map(drop),
        ErrorKind::Invalid,
    );
    expect_kind(block_on(engine.rollback("v")).map(drop), ErrorKind::Invalid);
    expect_kind(
        block_on(engine.rollback("v@none")).map(drop),
        ErrorKind::NotFound,
    );
    drop(volume);
    block_on(engine.delete_volume("v@a")).unwrap();
    block_on(engine.delete_volume("v")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 200));
}

#[test]
fn a_rollback_gives_back_content_and_size_and_can_be_done_again() {
    let pool = Pool::new(2000);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    for round in 0..3 {
        pool.write(&volume, 0, &[7 + round; 40]).unwrap();
        block_on(engine.resize_volume("v", 32 * GRAIN)).unwrap();
        block_on(engine.create_snapshots(&[&format!("v@later{round}")], 2)).unwrap();
        let info = block_on(engine.rollback("v@a")).unwrap();
        assert_eq!(info.size_bytes, 64 * GRAIN);
        assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 2, 3, 0, 0]);
        let later = engine.volume(&format!("v@later{round}")).unwrap();
        assert_eq!(pool.read(&later, 0, 2).unwrap(), [7 + round; 2]);
        block_on(engine.maintain()).unwrap();
    }
    drop((volume, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 2, 3, 0, 0]);
    assert_eq!(engine.snapshots().len(), 4);
}

#[test]
fn what_a_deleted_snapshot_held_alone_is_freed() {
    let pool = Pool::new(2000);
    let (engine, volume) = pool.with_volume(640, 4096);
    let first: Vec<u64> = (1..=256).collect();
    pool.write(&volume, 0, &first).unwrap();
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    let second: Vec<u64> = (1001..=1256).collect();
    pool.write(&volume, 0, &second).unwrap();
    assert_eq!(space(&engine).0, 512);
    block_on(engine.delete_volume("v@a")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 256, "the volume hides all that was there");
    assert_eq!(pool.read(&volume, 0, 256).unwrap(), second);
}

#[test]
fn a_first_write_after_a_snapshot_maps_nothing_but_what_is_written() {
    let pool = Pool::new(2000);
    let (engine, volume) = pool.with_volume(640, 4096);
    fill(&pool, &volume);
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    let before = engine.status().logical_bytes;
    pool.write(&volume, 70, &[2000]).unwrap();
    // What hosts see already is left where it is.
    pool.write(&volume, 200, &[201, 202]).unwrap();
    assert_eq!(engine.status().logical_bytes, before + GRAIN);
    assert_eq!(pool.read(&volume, 69, 3).unwrap(), [70, 2000, 72]);
    let snapshot = engine.volume("v@a").unwrap();
    assert_eq!(pool.read(&snapshot, 69, 3).unwrap(), [70, 71, 72]);
}

/// As programs left it whose maps inherited page by page: they copied a page to the map with the first write to it.
#[test]
fn a_page_that_was_copied_for_a_write_reads_as_it_did_and_is_written_and_freed() {
    let pool = Pool::new(2000);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.write(&volume, 10, &[9]).unwrap();
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    let head = volume.info().map;
    drop((volume, engine));
    drop(pool.open());
    let parent = pool.store.maps().unwrap();
    let parent = parent.iter().find(|info| info.id == head).unwrap().parent;
    let rows = pool.store.mappings(parent.unwrap(), 0, 64, 64).unwrap();
    let [first, _, third, ninth] = [0, 1, 2, 3].map(|at: usize| rows[at].1);
    let mut batch = meta::Batch::checkpoint_only(pool.store.checkpoint().unwrap());
    batch.base_seq = batch.checkpoint.position.seq;
    for (at, mapping, delta) in [(0, first, 1), (1, ninth, 2), (2, third, 1), (10, ninth, 0)] {
        let new = Some(mapping);
        batch
            .map
            .insert((head, at), meta::MapChange { old: None, new });
        if delta > 0 {
            let change = meta::BlockChange {
                delta,
                ..meta::BlockChange::default()
            };
            batch.blocks.insert(mapping.pba, change);
        }
    }
    pool.store.apply(&batch).unwrap();
    assert!(meta::check(&*pool.store).unwrap().is_consistent());
    let engine = pool.open();
    let (volume, snapshot) = (engine.volume("v").unwrap(), engine.volume("v@a").unwrap());
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 9, 3, 0, 0]);
    assert_eq!(pool.read(&snapshot, 0, 5).unwrap(), [1, 2, 3, 0, 0]);
    pool.write(&volume, 2, &[7, 8]).unwrap();
    block_on(volume.trim(0, GRAIN)).unwrap();
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [0, 9, 7, 8, 0]);
    assert_eq!(pool.read(&snapshot, 0, 5).unwrap(), [1, 2, 3, 0, 0]);
    block_on(engine.delete_volume("v@a")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [0, 9, 7, 8, 0]);
    assert_eq!(space(&engine).0, 3);
    assert!(meta::check(&*pool.store).unwrap().is_consistent());
}

/// With a schedule that keeps three, the line of maps stays short, and so do the rows of the store.
#[test]
fn maps_that_deleted_snapshots_leave_are_merged() {
    let pool = Pool::new(4000);
    let (engine, volume) = pool.with_volume(640, 4096);
    fill(&pool, &volume);
    for round in 0..100u64 {
        block_on(engine.create_snapshots(&[&format!("v@{round}")], round)).unwrap();
        pool.write(&volume, round * 5, &[2000 + round]).unwrap();
        if round >= 3 {
            let gone = format!("v@{}", round - 3);
            block_on(engine.delete_volume(&gone)).unwrap();
        }
        block_on(engine.maintain()).unwrap();
    }
    let maps = pool.store.maps().unwrap().len();
    assert!(maps <= 12, "{maps} maps of a volume with three snapshots");
    for round in 97..100u64 {
        let snapshot = engine.volume(&format!("v@{round}")).unwrap();
        let found = pool.read(&snapshot, (round - 1) * 5, 6).unwrap();
        let plain = |at: u64| (round - 1) * 5 + 1 + at;
        let wanted = [
            1999 + round,
            plain(1),
            plain(2),
            plain(3),
            plain(4),
            plain(5),
        ];
        assert_eq!(found, wanted);
    }
    assert!(meta::check(&*pool.store).unwrap().is_consistent());
    // 600 blocks, and the three that only snapshots have.
    assert_eq!(space(&engine).0, 603);
    drop((volume, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 5, 2).unwrap(), [2001, 7]);
}

#[test]
fn a_thousand_snapshots_one_of_the_other_are_taken_read_and_deleted() {
    let pool = Pool::new(6000);
    let (engine, volume) = pool.with_volume(640, 4096);
    fill(&pool, &volume);
    for round in 0..1000u64 {
        block_on(engine.create_snapshots(&[&format!("v@{round}")], round)).unwrap();
        pool.write(&volume, round % 64, &[2000 + round]).unwrap();
    }
    drop((volume, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    let began = Instant::now();
    assert_eq!(
        pool.read(&volume, 500, 100).unwrap(),
        (501..=600).collect::<Vec<_>>()
    );
    eprintln!("a first read from 1,000 maps away: {:?}", began.elapsed());
    // What was found far away comes near in the background.
    block_on(engine.maintain()).unwrap();
    let oldest = engine.volume("v@0").unwrap();
    assert_eq!(pool.read(&oldest, 0, 3).unwrap(), [1, 2, 3]);
    for round in 0..1000u64 {
        block_on(engine.delete_volume(&format!("v@{round}"))).unwrap();
    }
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.read(&volume, 500, 2).unwrap(), [501, 502]);
    assert_eq!(space(&engine).0, 600);
    assert!(meta::check(&*pool.store).unwrap().is_consistent());
}

#[test]
fn a_line_of_maps_has_a_bound_and_the_refusal_names_it() {
    let pool = Pool::new(200);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    for at in 0..meta::MAP_DEPTH_MAX {
        block_on(engine.create_snapshots(&[&format!("v@{at}")], 1)).unwrap();
    }
    let refused = block_on(engine.create_snapshots(&["v@more"], 1)).map(drop);
    let error = refused.expect_err("it is too deep");
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("delete some"), "{error}");
    drop((volume, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 4).unwrap(), [1, 2, 3, 0]);
    // Maps between which nothing was written are as good as one.
    block_on(engine.maintain()).unwrap();
    block_on(engine.create_snapshots(&["v@more"], 1)).unwrap();
}

#[test]
fn what_relatives_share_is_told_apart_from_what_others_happen_to_hold() {
    let pool = Pool::new(2000);
    let (engine, volume) = pool.with_volume(640, 4096);
    fill(&pool, &volume);
    block_on(engine.create_snapshots(&["v@a"], 77)).unwrap();
    block_on(engine.clone_volume("v@a", "clone", None)).unwrap();
    let other = block_on(engine.create_volume(spec("other", 64, 4096))).unwrap();
    // 50 that all have, 10 that a relative does not have any more.
    let held: Vec<u64> = (551..=600).collect();
    pool.write(&other, 0, &held).unwrap();
    pool.write(&volume, 0, &[1001, 1002, 1003, 1004]).unwrap();
    let clone = engine.volume("clone").unwrap();
    pool.write(&clone, 0, &[1001, 2002, 2003]).unwrap();
    pool.write(&other, 60, &[2002]).unwrap();
    let survey = block_on(engine.survey()).unwrap();
    let figures = |name: &str| {
        let volume = survey.volumes.iter().find(|it| it.name == name).unwrap();
        let figures = [
            volume.unique_bytes,
            volume.shared_bytes,
            volume.related_bytes,
        ];
        figures.map(|bytes| bytes / GRAIN)
    };
    // Its own 1002 to 1004; 596 of the snapshot, and 1001 of the clone.
    assert_eq!(figures("v"), [3, 597, 597]);
    // 1 to 3 are nobody else's any more, 4 is the clone's too.
    assert_eq!(figures("v@a"), [3, 597, 597]);
    assert_eq!(figures("clone"), [1, 599, 598]);
    assert_eq!(figures("other"), [0, 51, 0]);
}
