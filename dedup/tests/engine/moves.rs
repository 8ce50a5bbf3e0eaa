//! Drives that are emptied and removed, and drives that are filled when they come.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Pool, TestDrive, block_on, expect_kind, space};
use dedup::{DriveState, Engine, ErrorKind, HealthState, Redundancy, Volume};

/// Data blocks of a segment: 64 MiB.
const SEGMENT: u64 = 16 * 1024;

/// A pool with so many copies on drives with room for so many segments each, and a volume with some data.
fn filled(segments: &[u64], copies: usize) -> (Pool, Arc<Engine>, Arc<Volume>, Vec<u64>) {
    let mut pool = Pool::new(0);
    pool.config.copies = copies;
    let drives = segments.iter().map(|count| TestDrive::new(count * SEGMENT));
    pool.drives = drives.collect();
    let (engine, volume) = pool.with_volume(1000, 4096);
    let data: Vec<u64> = (1..=200).collect();
    pool.write(&volume, 0, &data).unwrap();
    (pool, engine, volume, data)
}

/// Background work until nothing is left to be moved.
fn move_all(engine: &Engine) {
    block_on(engine.maintain()).unwrap();
}

#[test]
fn a_drive_is_emptied_to_one_that_was_added_while_the_pool_is_in_use_and_then_removed() {
    for copies in 1..=2 {
        let (mut pool, engine, volume, data) = filled(&[2, 2], copies);
        let capacity = engine.status().capacity_bytes;
        let added = TestDrive::new(2 * SEGMENT);
        block_on(engine.add_drive(added.clone(), None, |_| Ok(()))).unwrap();
        pool.drives.push(added.clone());
        block_on(engine.empty_drive(0)).unwrap();
        assert!(engine.status().drives[0].emptying);
        expect_kind(
            block_on(engine.remove_drive(0, || Ok(()))),
            ErrorKind::Invalid,
        );
        move_all(&engine);
        assert_eq!(engine.empty_drives(), [0]);
        // With one copy the place of any segment that is not in use will do.
        let written = added.written_blocks.load(Ordering::Relaxed);
        assert!(copies == 1 || written >= 200, "{written}");
        assert_eq!(engine.status().capacity_bytes, capacity, "{copies}");
        // Nothing of it is read from there any more, nor written.
        pool.drives[0].fail_writes.store(true, Ordering::Relaxed);
        pool.drives[0].corrupt_all();
        assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
        pool.write(&volume, 400, &(501..=600).collect::<Vec<_>>())
            .unwrap();
        block_on(engine.remove_drive(0, || Ok(()))).unwrap();
        let drives = engine.status().drives;
        assert_eq!(drives.len(), 2);
        assert!(
            drives
                .iter()
                .all(|drive| drive.state == DriveState::Online && !drive.emptying)
        );
        block_on(engine.shutdown()).unwrap();
        drop((engine, volume));
        pool.config.removed = vec![0];
        let engine = pool.open();
        let volume = engine.volume("v").unwrap();
        assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
        assert_eq!(pool.read(&volume, 400, 2).unwrap(), [501, 502]);
        assert_eq!(engine.status().drives.len(), 2);
        assert_eq!(engine.status().capacity_bytes, capacity);
        // Nobody misses it.
        block_on(engine.maintain()).unwrap();
        assert_eq!(engine.verdict().state, HealthState::Ok, "{copies}");
    }
}

#[test]
fn a_drive_for_whose_data_there_is_no_room_is_not_emptied_and_the_refusal_says_what_helps() {
    let (_pool, engine, _volume, _) = filled(&[1, 1], 2);
    let refused = block_on(engine.empty_drive(1));
    let message = expect_kind(refused, ErrorKind::Invalid);
    assert!(message.contains("add a drive"), "{message}");
    expect_kind(block_on(engine.empty_drive(7)), ErrorKind::NotFound);
    let status = engine.status();
    assert!(status.drives.iter().all(|drive| !drive.emptying));
    // A pool of one drive.
    let (_pool, engine, _volume, _) = filled(&[2], 1);
    expect_kind(block_on(engine.empty_drive(0)), ErrorKind::Invalid);
}

#[test]
fn a_drive_that_is_being_emptied_is_so_after_a_restart_and_is_kept_when_somebody_says_so() {
    let (pool, engine, volume, data) = filled(&[2, 2], 1);
    let used = engine
        .status()
        .drives
        .iter()
        .position(|drive| drive.used_bytes > 0);
    let used = used.unwrap() as u16;
    block_on(engine.empty_drive(used)).unwrap();
    drop((engine, volume));
    let engine = pool.open();
    assert!(engine.status().drives[usize::from(used)].emptying);
    assert!(block_on(engine.keep_drive(used)).unwrap());
    assert!(!block_on(engine.keep_drive(used)).unwrap());
    move_all(&engine);
    assert!(engine.status().drives[usize::from(used)].used_bytes > 0);
    assert_eq!(space(&engine).2 + space(&engine).0, 4 * SEGMENT);
    // The other way round: what was moved stays where it is, and both are used.
    block_on(engine.empty_drive(used)).unwrap();
    move_all(&engine);
    assert_eq!(engine.empty_drives(), [used]);
    block_on(engine.keep_drive(used)).unwrap();
    move_all(&engine);
    assert_eq!(space(&engine).2 + space(&engine).0, 4 * SEGMENT);
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
    drop((engine, volume));
    let engine = pool.open();
    assert_eq!(
        pool.read(&engine.volume("v").unwrap(), 0, 200).unwrap(),
        data
    );
}

#[test]
fn a_drive_that_failed_is_emptied_from_the_copies_of_the_others() {
    let (pool, engine, volume, data) = filled(&[2, 2, 2], 2);
    block_on(engine.take_drive_offline(1)).unwrap();
    pool.drives[1].fail_writes.store(true, Ordering::Relaxed);
    pool.drives[1].corrupt_all();
    block_on(engine.empty_drive(1)).unwrap();
    move_all(&engine);
    assert_eq!(engine.empty_drives(), [1]);
    assert_eq!(engine.status().at_risk_bytes(), 0);
    // Both others have all of it.
    pool.drives[0].corrupt_all();
    assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
}

#[test]
fn one_drive_that_is_added_to_a_mirror_makes_room_for_half_of_its_size() {
    let (mut pool, engine, volume, data) = filled(&[2, 2], 2);
    assert_eq!(engine.status().capacity_bytes >> 26, 2);
    let added = TestDrive::new(2 * SEGMENT);
    block_on(engine.add_drive(added.clone(), None, |_| Ok(()))).unwrap();
    pool.drives.push(added);
    move_all(&engine);
    assert_eq!(engine.status().capacity_bytes >> 26, 3);
    assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
    drop((engine, volume));
    let engine = pool.open();
    assert_eq!(engine.status().capacity_bytes >> 26, 3);
    // Each drive can be lost.
    for lost in 0..3 {
        block_on(engine.take_drive_offline(lost)).unwrap();
        let volume = engine.volume("v").unwrap();
        assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
        block_on(engine.rebuild_drive(lost)).unwrap();
        move_all(&engine);
    }
}

#[test]
fn the_redundancy_of_a_pool_in_use_is_raised_and_lowered() {
    let (pool, engine, volume, data) = filled(&[2, 2], 1);
    assert_eq!(engine.redundancy(), Redundancy::None);
    block_on(engine.set_redundancy(Redundancy::Mirror2)).unwrap();
    assert!(engine.status().at_risk_bytes() > 0);
    // A drive with the only copy of something cannot go.
    expect_kind(block_on(engine.take_drive_offline(0)), ErrorKind::Invalid);
    move_all(&engine);
    assert_eq!(engine.status().at_risk_bytes(), 0);
    assert_eq!(engine.status().capacity_bytes >> 26, 2);
    pool.write(&volume, 300, &(301..=400).collect::<Vec<_>>())
        .unwrap();
    drop((engine, volume));
    let engine = pool.open();
    assert_eq!(engine.redundancy(), Redundancy::Mirror2);
    let volume = engine.volume("v").unwrap();
    for lost in 0..2 {
        block_on(engine.take_drive_offline(lost)).unwrap();
        assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
        assert_eq!(pool.read(&volume, 300, 2).unwrap(), [301, 302]);
        block_on(engine.rebuild_drive(lost)).unwrap();
        move_all(&engine);
    }
    let refused = block_on(engine.set_redundancy(Redundancy::Mirror3));
    let message = expect_kind(refused, ErrorKind::Invalid);
    assert!(message.contains("add a drive"), "{message}");
    block_on(engine.set_redundancy(Redundancy::None)).unwrap();
    move_all(&engine);
    assert_eq!(engine.status().capacity_bytes >> 26, 4);
    drop((engine, volume));
    let engine = pool.open();
    assert_eq!(engine.redundancy(), Redundancy::None);
    assert_eq!(engine.status().capacity_bytes >> 26, 4);
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 200).unwrap(), data);
}
