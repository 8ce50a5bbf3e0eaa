//! Full pools, damaged blocks, failing journals and stores.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::support::{Pool, TestDrive, block_on, expect_kind, space, spec};
use dedup::{ErrorKind, HealthState};
use drives::BLOCK_BYTES;
use meta::{JournalMedia, MemoryMedia, StoreFault};

const GRAIN: u64 = BLOCK_BYTES as u64;

#[test]
fn a_full_pool_fails_only_the_writes_that_need_space() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(256, 4096);
    for at in 0..8 {
        pool.write(
            &volume,
            at * 8,
            &(at * 8 + 1..at * 8 + 9).collect::<Vec<_>>(),
        )
        .unwrap();
    }
    assert_eq!(space(&engine), (64, 0, 0));
    let message = expect_kind(pool.write(&volume, 100, &[1000]), ErrorKind::NoSpace);
    assert!(
        message.contains("full") && message.contains("trim"),
        "{message}"
    );
    // A write that fits in part leaves nothing behind.
    expect_kind(pool.write(&volume, 100, &[1, 2, 1000]), ErrorKind::NoSpace);
    assert_eq!(pool.read(&volume, 100, 3).unwrap(), [0, 0, 0]);
    assert_eq!(engine.status().logical_bytes, 64 * GRAIN);

    // Everything else goes on.
    pool.write(&volume, 100, &[1, 2, 0, 3]).unwrap();
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    block_on(volume.flush()).unwrap();
    block_on(engine.checkpoint()).unwrap();
    assert_eq!(pool.read(&volume, 60, 4).unwrap(), [61, 62, 63, 64]);
    block_on(volume.trim(60 * GRAIN, 2 * GRAIN)).unwrap();
    block_on(volume.write_zeroes(62 * GRAIN, GRAIN, false)).unwrap();
    // Three blocks are free as soon as the trims are durable, without anybody's help.
    pool.write(&volume, 200, &[1001, 1002, 1003]).unwrap();
    assert_eq!(pool.read(&volume, 200, 3).unwrap(), [1001, 1002, 1003]);
    expect_kind(pool.write(&volume, 210, &[1004]), ErrorKind::NoSpace);
    // An overwrite frees what it replaces only afterwards, so it needs a block for a moment.
    expect_kind(pool.write(&volume, 200, &[1005]), ErrorKind::NoSpace);

    let other = block_on(engine.create_volume(spec("w", 16, 4096))).unwrap();
    pool.write(&other, 0, &[1001, 1002]).unwrap();
    block_on(engine.delete_volume("v")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (2, 0, 62));
    pool.write(&other, 2, &[1, 2, 3]).unwrap();
    drop((engine, volume, other));
    let engine = pool.open();
    assert_eq!(
        pool.read(&engine.volume("w").unwrap(), 0, 6).unwrap(),
        [1001, 1002, 1, 2, 3, 0]
    );
    assert_eq!(space(&engine), (5, 0, 59));
}

#[test]
fn the_verdict_says_what_is_wrong_and_ends_when_it_is_over() {
    let mut pool = Pool::new(20);
    pool.config.quiet = std::time::Duration::ZERO;
    let (engine, volume) = pool.with_volume(100, 4096);
    assert_eq!(engine.verdict(), dedup::Verdict::default());

    pool.drives[0].fail_writes.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        expect_kind(pool.write(&volume, 0, &[1]), ErrorKind::WriteFault);
    }
    let found = engine.verdict();
    assert_eq!(found.state, HealthState::TakesNoWrites, "{found:?}");
    assert_eq!(
        (found.reasons.len(), found.refused_writes),
        (1, 3),
        "{found:?}"
    );
    assert_eq!(engine.drive_troubles().len(), 1);
    pool.drives[0].fail_writes.store(false, Ordering::Relaxed);
    block_on(engine.maintain()).unwrap();
    assert_eq!(
        engine.verdict().reasons.len(),
        1,
        "nothing was written since"
    );
    pool.write(&volume, 0, &[1]).unwrap();
    block_on(engine.maintain()).unwrap();
    let found = engine.verdict();
    assert_eq!(
        (found.state, found.refused_writes),
        (HealthState::Ok, 3),
        "{found:?}"
    );
    assert_eq!(engine.drive_troubles(), []);

    for at in 1..20 {
        pool.write(&volume, at, &[at + 1]).unwrap();
    }
    expect_kind(pool.write(&volume, 50, &[100]), ErrorKind::NoSpace);
    block_on(engine.maintain()).unwrap();
    let found = engine.verdict();
    assert_eq!(
        (found.state, found.refused_writes),
        (HealthState::TakesNoWrites, 4)
    );
    assert!(
        found.reasons[0].what.contains("the pool is full"),
        "{found:?}"
    );
    assert!(found.reasons[1].what.contains("100 % full"), "{found:?}");
    block_on(volume.trim(0, 10 * GRAIN)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(engine.verdict().state, HealthState::Ok);
}

#[test]
fn a_pool_that_a_failed_flush_made_read_only_says_so_first() {
    let pool = Pool::new(20);
    let (engine, volume) = pool.with_volume(100, 4096);
    pool.write(&volume, 0, &[1]).unwrap();
    pool.drives[0].fail_flushes.store(true, Ordering::Relaxed);
    expect_kind(block_on(volume.flush()), ErrorKind::Unavailable);
    expect_kind(pool.write(&volume, 1, &[2]), ErrorKind::Unavailable);
    let found = engine.verdict();
    assert_eq!(
        (found.state, found.refused_writes),
        (HealthState::TakesNoWrites, 1)
    );
    let first = &found.reasons[0];
    assert!(
        first.what.contains("read-only") && first.remedy.contains("recovery proves"),
        "{found:?}"
    );
}

#[test]
fn who_can_open_the_pool_elsewhere_hears_of_it_before_a_host_hears_that_it_is_read_only() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut pool = Pool::new(20);
    pool.config.when_read_only = Some(|why| {
        TOLD.lock().expect("nobody panics").push(why.to_owned());
    });
    let (_engine, volume) = pool.with_volume(100, 4096);
    pool.write(&volume, 0, &[1]).unwrap();
    assert!(TOLD.lock().expect("nobody panics").is_empty());
    pool.drives[0].fail_flushes.store(true, Ordering::Relaxed);
    expect_kind(block_on(volume.flush()), ErrorKind::Unavailable);
    expect_kind(pool.write(&volume, 1, &[2]), ErrorKind::Unavailable);
    let told = TOLD.lock().expect("nobody panics");
    assert_eq!(told.len(), 1, "once: {told:?}");
    assert!(told[0].contains("could not be flushed"), "{told:?}");
}

#[test]
fn a_pool_of_two_drives_fills_both() {
    let mut pool = Pool::new(20);
    pool.drives.push(TestDrive::new(40));
    let (engine, volume) = pool.with_volume(100, 4096);
    for at in 0..60 {
        pool.write(&volume, at, &[at + 1]).unwrap();
    }
    expect_kind(pool.write(&volume, 70, &[99]), ErrorKind::NoSpace);
    assert_eq!(pool.drives[0].written_blocks.load(Ordering::Relaxed), 20);
    assert_eq!(pool.drives[1].written_blocks.load(Ordering::Relaxed), 40);
    assert_eq!(
        pool.read(&volume, 0, 60).unwrap(),
        (1..=60).collect::<Vec<_>>()
    );
    assert_eq!(space(&engine), (60, 0, 0));
    // A drive that is gone is named, and nothing is changed.
    drop((engine, volume));
    let gone = pool.drives.pop();
    let message = expect_kind(pool.try_open(), ErrorKind::Corrupt);
    assert!(message.contains("drive number 1"), "{message}");
    pool.drives.extend(gone);
    let engine = pool.open();
    assert_eq!(space(&engine), (60, 0, 0));
}

#[test]
fn a_damaged_block_is_reported_and_never_returned() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    pool.drive().corrupt_all();
    pool.write(&volume, 2, &[3]).unwrap();
    for (at, count) in [(0, 1), (1, 2), (0, 3)] {
        let message = expect_kind(pool.read(&volume, at, count), ErrorKind::Corrupt);
        assert!(
            message.contains("`v`") && message.contains("drive test"),
            "{message}"
        );
    }
    // A part of it neither, by reading, comparing or changing the other part.
    let mut part = pool.buffers.try_alloc(512).unwrap();
    part.fill(9);
    let (result, part) = block_on(volume.read(1024, part));
    expect_kind(result, ErrorKind::Corrupt);
    assert!(part.iter().all(|byte| *byte == 0));
    let (result, part) = block_on(volume.compare(1024, part));
    expect_kind(result, ErrorKind::Corrupt);
    expect_kind(
        block_on(volume.write(1024, part, false)).0,
        ErrorKind::Corrupt,
    );
    assert!(engine.status().corrupt_blocks >= 5);
    // Its neighbour is well, and writing the same content again heals it.
    assert_eq!(pool.read(&volume, 2, 1).unwrap(), [3]);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [1, 2, 3]);
}

#[test]
fn what_a_drive_cannot_read_is_named_like_damage_and_heals_when_it_can_again() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    pool.drive().fail_reads.store(true, Ordering::Relaxed);
    let message = expect_kind(pool.read(&volume, 0, 2), ErrorKind::Corrupt);
    assert!(
        message.contains("`v`") && message.contains("2 sub-block(s)"),
        "{message}"
    );
    // Where nothing is stored, no drive is asked.
    assert_eq!(pool.read(&volume, 10, 2).unwrap(), [0, 0]);
    let damage = block_on(engine.damage());
    assert_eq!(damage.damaged_blocks, 2);
    assert_eq!((damage.ranges[0].offset, damage.ranges[0].bytes), (0, 8192));
    assert_eq!(engine.status().corrupt_blocks, 2);
    // Looked at again, and still so.
    block_on(engine.maintain()).unwrap();
    assert_eq!(engine.status().damaged_blocks, 2);
    pool.drive().fail_reads.store(false, Ordering::Relaxed);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [1, 2]);
    pool.write(&volume, 20, &[1, 2]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(engine.status().damaged_blocks, 0);
}

#[test]
fn a_full_journal_makes_room_by_itself() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    for round in 0..2000u64 {
        pool.write(&volume, round % 60, &[1 + round % 7, 1 + round % 5])
            .unwrap();
    }
    assert!(meta::check(&*pool.store).unwrap().mappings > 0);
    block_on(engine.maintain()).unwrap();
    drop((engine, volume));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 1998 % 60, 1).unwrap(), [1 + 1998 % 7]);
}

#[test]
fn while_the_store_has_no_space_writes_wait_in_the_journal_and_then_fail_clearly() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    let mut written = 0u64;
    let message = loop {
        // The file system below the store is full for as long as this goes on.
        pool.store
            .fail_at(meta_operations(&pool), StoreFault::NoSpace);
        match pool.write(&volume, written % 60, &[1 + written % 50]) {
            Ok(()) => written += 1,
            Err(error) => break expect_kind::<()>(Err(error), ErrorKind::Unavailable),
        }
        assert!(written < 10_000, "the journal never filled");
    };
    assert!(
        message.contains("journal is full") && message.contains("no space left"),
        "{message}"
    );
    assert!(written > 100);
    // Reads go on, and so do writes once there is space below again.
    assert_eq!(
        pool.read(&volume, (written - 1) % 60, 1).unwrap(),
        [1 + (written - 1) % 50]
    );
    pool.store.revive();
    pool.write(&volume, 61, &[77]).unwrap();
    assert_eq!(engine.status().read_only, None);
    drop((engine, volume));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 61, 1).unwrap(), [77]);
    assert_eq!(
        pool.read(&volume, (written - 1) % 60, 1).unwrap(),
        [1 + (written - 1) % 50]
    );
}

fn meta_operations(pool: &Pool) -> u64 {
    pool.store.operations()
}

#[test]
fn after_a_journal_failure_the_pool_reads_on_and_a_restart_recovers() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.media.fail_at(pool.media.operations(), 1);
    let message = expect_kind(pool.write(&volume, 0, &[4]), ErrorKind::Unavailable);
    assert!(message.contains("journal"), "{message}");
    for result in [
        pool.write(&volume, 5, &[0]),
        pool.write(&volume, 5, &[1]),
        block_on(volume.trim(0, GRAIN)),
        block_on(volume.flush()),
        block_on(engine.create_volume(spec("w", 1, 512))).map(drop),
    ] {
        expect_kind(result, ErrorKind::Unavailable);
    }
    assert!(engine.status().read_only.is_some());
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [1, 2, 3]);
    assert_eq!(space(&engine).0, 3);
    drop((engine, volume));
    pool.media.revive();
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    let found = pool.read(&volume, 0, 3).unwrap();
    assert!(found == [1, 2, 3] || found == [4, 2, 3], "{found:?}");
    pool.write(&volume, 0, &[5]).unwrap();
}

#[test]
fn after_a_failed_flush_nothing_is_promised_until_a_restart_proved_every_block() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.drive().fail_flushes.store(true, Ordering::Relaxed);
    let message = expect_kind(block_on(volume.flush()), ErrorKind::Unavailable);
    assert!(message.contains("drive test"), "{message}");
    expect_kind(
        block_on(volume.write(0, pool.buffer(&[9]), true)).0,
        ErrorKind::Unavailable,
    );
    drop((engine, volume));
    expect_kind(pool.try_open(), ErrorKind::Unavailable);
    pool.drive().fail_flushes.store(false, Ordering::Relaxed);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [1, 2, 3]);
    block_on(volume.flush()).unwrap();
}

#[test]
fn after_the_store_failed_for_good_the_pool_reads_on_and_a_restart_recovers() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.store
        .fail_at(pool.store.operations(), StoreFault::CrashAfter);
    expect_kind(block_on(engine.checkpoint()), ErrorKind::Unavailable);
    expect_kind(pool.write(&volume, 0, &[1]), ErrorKind::Unavailable);
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [1, 2, 3]);
    drop((engine, volume));
    pool.store.revive();
    let engine = pool.open();
    assert_eq!(
        pool.read(&engine.volume("v").unwrap(), 0, 3).unwrap(),
        [1, 2, 3]
    );
    assert_eq!(space(&engine).0, 3);
}

#[test]
fn a_journal_that_is_too_small_or_configuration_out_of_range_is_refused() {
    let mut pool = Pool::new(64);
    pool.media = Arc::new(MemoryMedia::new(4096));
    assert!(pool.media.capacity() == 4096);
    expect_kind(pool.try_open(), ErrorKind::Invalid);
    let mut pool = Pool::new(64);
    pool.config.trim_record_entries = 0;
    assert!(expect_kind(pool.try_open(), ErrorKind::Invalid).contains("trim_record_entries"));
    let mut pool = Pool::new(64);
    pool.config.bounce_bytes = 4096;
    assert!(expect_kind(pool.try_open(), ErrorKind::Invalid).contains("bounce_bytes"));
    let mut pool = Pool::new(64);
    pool.drives.clear();
    expect_kind(pool.try_open(), ErrorKind::Invalid);
    pool.drives.push(TestDrive::new(0));
    expect_kind(pool.try_open(), ErrorKind::Invalid);
}
