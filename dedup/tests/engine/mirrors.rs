//! Pools with copies: what a drive loses, others have.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Pool, TestDrive, block_on, contents, expect_kind, plain_spec, spec};
use dedup::{
    DriveState, Engine, ErrorKind, HealthState, Redundancy, ScrubPhase, Volume, VolumeSpec,
};
use drives::BLOCK_BYTES;

/// Data blocks of a segment: 64 MiB.
const SEGMENT: u64 = 16 * 1024;

/// A pool with two copies on drives with room for so many segments each, and a volume.
fn mirrored(segments: &[u64]) -> (Pool, Arc<Engine>, Arc<Volume>) {
    let mut pool = Pool::new(0);
    pool.config.copies = 2;
    let drives = segments.iter().map(|count| TestDrive::new(count * SEGMENT));
    pool.drives = drives.collect();
    let (engine, volume) = pool.with_volume(1000, 4096);
    (pool, engine, volume)
}

fn states(engine: &Engine) -> Vec<DriveState> {
    let drives = engine.status().drives;
    drives.iter().map(|drive| drive.state).collect()
}

const ON: DriveState = DriveState::Online;
const OFF: DriveState = DriveState::Offline;

#[test]
fn what_decays_on_one_drive_is_read_from_another_and_written_again() {
    let (pool, engine, volume) = mirrored(&[1, 1]);
    let plain = block_on(engine.create_volume(plain_spec("plain", 16))).unwrap();
    let packed = VolumeSpec {
        compression: meta::Compression::Lz4,
        ..spec("packed", 64, 4096)
    };
    let packed = block_on(engine.create_volume(packed)).unwrap();
    let all: Vec<u64> = (1..=40).collect();
    pool.write(&volume, 0, &all).unwrap();
    pool.write(&plain, 0, &[50, 51]).unwrap();
    pool.write(&packed, 0, &[60, 61, 62]).unwrap();
    let is_right = |engine: &Engine| {
        let read = |name, count| pool.read(&engine.volume(name).unwrap(), 0, count).unwrap();
        assert_eq!(read("v", 40), all);
        assert_eq!(read("plain", 2), [50, 51]);
        assert_eq!(read("packed", 3), [60, 61, 62]);
    };
    block_on(engine.shutdown()).unwrap();
    drop((engine, volume, plain, packed));
    // One drive after the other: each is mended by what the other one has.
    for decayed in [0, 1, 0] {
        pool.drives[decayed].corrupt_all();
        let engine = pool.open();
        is_right(&engine);
        with_scrub(&engine, || {
            assert_eq!(engine.scrub_status().bad_blocks, 0);
            assert_eq!(engine.status().damaged_blocks, 0);
        });
    }
    is_right(&pool.open());
}

/// Runs background work until a scrub is through.
fn with_scrub(engine: &Arc<Engine>, then: impl FnOnce()) {
    reactor::run(reactor::Config::default(), async {
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        engine.start_scrub(1 << 30).unwrap();
        while engine.scrub_status().phase == ScrubPhase::Running {
            reactor::sleep(Duration::from_millis(1)).await;
        }
        then();
        engine.shutdown().await.unwrap();
        let _ = maintenance.await;
    })
    .unwrap();
}

#[test]
fn a_drive_that_fails_goes_offline_unnoticed_and_gets_what_it_missed_when_it_returns() {
    let (pool, engine, volume) = mirrored(&[2, 2]);
    assert_eq!(engine.redundancy(), Redundancy::Mirror2);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    let second = &pool.drives[1];
    second.fail_writes.store(true, Ordering::Relaxed);
    second.fail_reads.store(true, Ordering::Relaxed);
    pool.write(&volume, 3, &[4, 5]).unwrap();
    assert_eq!(states(&engine), [ON, OFF]);
    assert_eq!(engine.failed_drives(), [1]);
    let drives = engine.status().drives;
    assert!(drives[1].errors > 0 && drives[0].errors == 0, "{drives:?}");
    assert_eq!(drives[0].stale_bytes, 0);
    assert_eq!(drives[1].stale_bytes, drives[1].used_bytes);
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 2, 3, 4, 5]);
    block_on(volume.flush()).unwrap();
    block_on(engine.maintain()).unwrap();
    let verdict = engine.verdict();
    assert_eq!(verdict.state, HealthState::Degraded);
    let says = |text: &str| {
        verdict
            .reasons
            .iter()
            .any(|reason| reason.what.contains(text))
    };
    assert!(says("is offline"), "{verdict:?}");
    assert_eq!(engine.status().at_risk_bytes(), 5 * BLOCK_BYTES as u64);
    drop((engine, volume));

    // A restart knows that it is offline, also when it works again: it lacks data.
    let second = &pool.drives[1];
    second.fail_writes.store(false, Ordering::Relaxed);
    second.fail_reads.store(false, Ordering::Relaxed);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(states(&engine), [ON, OFF]);
    assert_eq!(engine.failed_drives(), [1]);
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 2, 3, 4, 5]);

    let before = second.written_blocks.load(Ordering::Relaxed);
    block_on(engine.rebuild_drive(1)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(states(&engine), [ON, ON]);
    let written = second.written_blocks.load(Ordering::Relaxed) - before;
    assert_eq!(written, 2, "it got what it missed, and nothing else");
    // Now it alone has everything.
    pool.drives[0].fail_reads.store(true, Ordering::Relaxed);
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 2, 3, 4, 5]);
    block_on(engine.maintain()).unwrap();
    let verdict = engine.verdict();
    assert!(
        !verdict
            .reasons
            .iter()
            .any(|reason| reason.what.contains("offline"))
    );
}

#[test]
fn a_failed_flush_of_one_drive_loses_nothing_and_leaves_the_pool_writable() {
    let (pool, engine, volume) = mirrored(&[1, 1, 1]);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.drives[0].fail_flushes.store(true, Ordering::Relaxed);
    block_on(volume.flush()).unwrap();
    assert_eq!(states(&engine)[0], OFF);
    pool.write(&volume, 3, &[4]).unwrap();
    assert_eq!(pool.read(&volume, 0, 4).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn the_last_drive_with_some_data_never_goes_offline() {
    let (pool, engine, volume) = mirrored(&[1, 1]);
    pool.write(&volume, 0, &[1]).unwrap();
    block_on(engine.take_drive_offline(0)).unwrap();
    assert!(engine.failed_drives().is_empty(), "somebody wanted it so");
    let refused = expect_kind(block_on(engine.take_drive_offline(1)), ErrorKind::Invalid);
    assert!(refused.contains("no other drive has"), "{refused}");
    pool.drives[1].fail_writes.store(true, Ordering::Relaxed);
    expect_kind(pool.write(&volume, 1, &[2]), ErrorKind::WriteFault);
    assert_eq!(states(&engine), [OFF, ON]);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [1, 0]);
    // A pool without copies has no such drive at all.
    let single = Pool::new(64);
    let (engine, _) = single.with_volume(64, 4096);
    expect_kind(block_on(engine.take_drive_offline(0)), ErrorKind::Invalid);
    expect_kind(block_on(engine.rebuild_drive(0)), ErrorKind::Invalid);
}

#[test]
fn another_drive_takes_the_place_of_one_and_gets_all_of_its_data() {
    let (mut pool, engine, volume) = mirrored(&[1, 1]);
    let all: Vec<u64> = (1..=200).collect();
    pool.write(&volume, 0, &all).unwrap();
    let small = TestDrive::new(SEGMENT - 1);
    let refused = block_on(engine.replace_drive(1, small, None, || panic!("it is too small")));
    assert!(expect_kind(refused, ErrorKind::Invalid).contains("name a larger one"));
    assert_eq!(states(&engine), [ON, ON]);

    let new = TestDrive::new(SEGMENT);
    block_on(engine.replace_drive(1, new.clone(), None, || Ok(()))).unwrap();
    assert_eq!(states(&engine), [ON, DriveState::Rebuilding]);
    pool.write(&volume, 200, &[201]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(states(&engine), [ON, ON]);
    // All once, and what was written meanwhile once more: nothing is compared on a drive that is new.
    assert_eq!(new.written_blocks.load(Ordering::Relaxed), 202);
    drop((engine, volume));
    pool.drives[1] = new;
    pool.drives[0].fail_reads.store(true, Ordering::Relaxed);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 200).unwrap(), all);
}

#[test]
fn a_drive_that_does_not_answer_is_left_and_used_again_when_it_has_answered() {
    let (mut pool, engine, volume) = mirrored(&[1, 1]);
    drop((engine, volume));
    pool.config.drive_answer_max = Duration::from_millis(50);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    let buffers = pool.buffers.clone();
    let second = pool.drives[1].clone();
    // Half of them are read from one copy, and half from the other one.
    let all: Vec<u64> = (1..=64).collect();
    let to_write = pool.buffer(&all);
    reactor::run(reactor::Config::default(), async move {
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        second.hangs.store(true, Ordering::Relaxed);
        let (written, buffer) = volume.write(0, to_write, false).await;
        written.unwrap();
        drop(buffer);
        assert_eq!(states(&engine), [ON, OFF]);
        volume.flush().await.unwrap();
        let read_all = async || {
            for (first, part) in (0..).step_by(32).zip(all.chunks(32)) {
                let buffer = buffers.alloc(32 * BLOCK_BYTES).await;
                let (read, buffer) = volume.read(first * BLOCK_BYTES as u64, buffer).await;
                read.unwrap();
                assert_eq!(contents(&buffer), part);
            }
        };
        read_all().await;
        // Nobody knows what it does yet.
        let refused = expect_kind(engine.rebuild_drive(1).await, ErrorKind::Unavailable);
        assert!(refused.contains("does not answer"), "{refused}");

        second.hangs.store(false, Ordering::Relaxed);
        while engine.rebuild_drive(1).await.is_err() {
            reactor::yield_now().await;
        }
        while states(&engine) != [ON, ON] {
            reactor::yield_now().await;
        }
        // One that is only read is offline as well.
        second.hangs.store(true, Ordering::Relaxed);
        while states(&engine) == [ON, ON] {
            read_all().await;
            // The other one answers at once, and is the only one that is asked: time goes on only here.
            reactor::yield_now().await;
        }
        second.hangs.store(false, Ordering::Relaxed);
        engine.shutdown().await.unwrap();
        let _ = maintenance.await;
    })
    .unwrap();
}

#[test]
fn what_lies_beside_data_that_a_drive_does_not_give_stays_what_it_is() {
    let (mut pool, engine, volume) = mirrored(&[1, 1]);
    let bytes = block_on(engine.create_volume(spec("bytes", 64, 512))).unwrap();
    // Of 64 blocks that are written one after the other, one drive is asked for the first half, and the other one for the rest.
    let (of_volume, of_bytes): (Vec<u64>, Vec<u64>) = ((1..=64).collect(), (101..=164).collect());
    pool.write(&volume, 0, &of_volume).unwrap();
    pool.write(&bytes, 0, &of_bytes).unwrap();
    drop((engine, volume, bytes));
    pool.config.drive_answer_max = Duration::from_millis(50);
    let engine = pool.open();
    let (volume, bytes) = (engine.volume("v").unwrap(), engine.volume("bytes").unwrap());
    let (buffers, second) = (pool.buffers.clone(), pool.drives[1].clone());
    reactor::run(reactor::Config::default(), async move {
        // What buffers held before is nobody's business.
        let mut used = Vec::new();
        while let Some(mut buffer) = buffers.try_alloc(BLOCK_BYTES) {
            buffer.fill(0xee);
            used.push(buffer);
        }
        drop(used);
        second.hangs.store(true, Ordering::Relaxed);
        let buffer = buffers.alloc(12 * BLOCK_BYTES).await;
        let (read, buffer) = volume.read(58 * BLOCK_BYTES as u64, buffer).await;
        read.unwrap();
        let beside = &buffer[6 * BLOCK_BYTES..];
        assert_eq!(contents(&buffer)[..6], of_volume[58..]);
        assert!(beside.iter().all(|byte| *byte == 0), "never written");
        drop(buffer);
        // Both ends are parts of blocks.
        let mut buffer = buffers.alloc(2 * BLOCK_BYTES).await;
        buffer.fill(7);
        let (written, buffer) = bytes
            .write(40 * BLOCK_BYTES as u64 + 1024, buffer, false)
            .await;
        written.unwrap();
        drop(buffer);
        second.hangs.store(false, Ordering::Relaxed);
        let buffer = buffers.alloc(4 * BLOCK_BYTES).await;
        let (read, buffer) = bytes.read(39 * BLOCK_BYTES as u64, buffer).await;
        read.unwrap();
        for (at, part) in buffer.chunks(512).enumerate() {
            let word = u64::from_le_bytes(part[..8].try_into().unwrap());
            match at {
                10..26 => assert!(part.iter().all(|byte| *byte == 7), "{at}"),
                _ => assert_eq!(word, of_bytes[39 + at / 8], "{at}"),
            }
        }
        drop(buffer);
        engine.shutdown().await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_read_that_takes_long_is_answered_by_another_copy_and_its_drive_stays() {
    let (mut pool, engine, volume) = mirrored(&[1, 1]);
    let all: Vec<u64> = (1..=64).collect();
    pool.write(&volume, 0, &all).unwrap();
    drop((engine, volume));
    pool.config.drive_answer_max = Duration::from_secs(3600);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    let (buffers, second) = (pool.buffers.clone(), pool.drives[1].clone());
    reactor::run(reactor::Config::default(), async move {
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        second.hangs.store(true, Ordering::Relaxed);
        // From both drives, at once and alone; and beside what was never written.
        for (first, count) in [(0, 64), (32, 32), (40, 1), (60, 12)] {
            let buffer = buffers.alloc(count * BLOCK_BYTES).await;
            let (read, buffer) = volume.read((first * BLOCK_BYTES) as u64, buffer).await;
            read.unwrap();
            let found = contents(&buffer);
            let stored = all.iter().skip(first).chain(&[0; 64]).take(count);
            assert!(found.iter().eq(stored), "{first}: {found:?}");
        }
        let of = |engine: &Engine| {
            let drives = engine.status().drives;
            drives
                .iter()
                .map(|drive| drive.hedged_reads)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&engine), [0, 1], "who owes an answer is not asked again");
        assert_eq!(states(&engine), [ON, ON]);
        assert!(
            buffers.stats().free_bytes < buffers.stats().total_bytes,
            "it reads still"
        );
        // In the end the drive fails what it was asked for. That is known.
        second.fail_reads.store(true, Ordering::Relaxed);
        second.hangs.store(false, Ordering::Relaxed);
        while engine.status().drives[1].errors == 0 {
            reactor::yield_now().await;
        }
        while buffers.stats().free_bytes < buffers.stats().total_bytes {
            reactor::yield_now().await;
        }
        engine.shutdown().await.unwrap();
        let _ = maintenance.await;
    })
    .unwrap();
}

/// Whether a rebuild has looked at something.
fn is_under_way(engine: &Engine) -> bool {
    let drives = engine.status().drives;
    let mut rebuilds = drives.iter().filter_map(|drive| drive.rebuild);
    rebuilds.any(|rebuild| rebuild.done_bytes > 0)
}

#[test]
fn a_drive_that_is_replaced_during_its_rebuild_gets_all_of_its_data() {
    let (mut pool, engine, volume) = mirrored(&[1, 1]);
    let all: Vec<u64> = (1..=960).collect();
    for (first, part) in (0..).step_by(64).zip(all.chunks(64)) {
        pool.write(&volume, first, part).unwrap();
    }
    let new = TestDrive::new(SEGMENT);
    let last = new.clone();
    let engine_of_run = engine.clone();
    reactor::run(reactor::Config::default(), async move {
        let engine = engine_of_run;
        let until = async |is: &dyn Fn(&Engine) -> bool| {
            while !is(&engine) {
                reactor::yield_now().await;
            }
        };
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        engine
            .replace_drive(1, TestDrive::new(SEGMENT), None, || Ok(()))
            .await
            .unwrap();
        until(&|engine| is_under_way(engine)).await;
        engine
            .replace_drive(1, last, None, || Ok(()))
            .await
            .unwrap();
        assert_eq!(states(&engine), [ON, DriveState::Rebuilding]);
        assert!(!is_under_way(&engine), "another drive was rebuilt");
        until(&|engine| states(engine) == [ON, ON]).await;
        engine.shutdown().await.unwrap();
        let _ = maintenance.await;
    })
    .unwrap();
    assert_eq!(new.written_blocks.load(Ordering::Relaxed), 960);
    drop((engine, volume));
    pool.drives[1] = new;
    pool.drives[0].fail_reads.store(true, Ordering::Relaxed);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    for (first, part) in (0..).step_by(64).zip(all.chunks(64)) {
        assert_eq!(pool.read(&volume, first, 64).unwrap(), part);
    }
}

#[test]
fn how_fast_a_new_drive_was_filled_is_known_after_a_restart_and_a_comparison_tells_nothing() {
    let mut pool = Pool::new(0);
    pool.config.copies = 2;
    pool.drives = vec![TestDrive::new(3 * SEGMENT), TestDrive::new(3 * SEGMENT)];
    let (engine, volume) = pool.with_volume(2 * SEGMENT, 4096);
    let fill = |half: u64| {
        let all: Vec<u64> = (half * SEGMENT + 1..=(half + 1) * SEGMENT).collect();
        let firsts = (half * SEGMENT..).step_by(64);
        for (first, part) in firsts.zip(all.chunks(64)) {
            pool.write(&volume, first, part).unwrap();
        }
    };
    fill(0);
    assert_eq!(engine.copysets().of_size, [0, 1, 0]);
    block_on(engine.take_drive_offline(1)).unwrap();
    assert_eq!(engine.copysets().of_size, [1, 0, 0]);
    assert_eq!(engine.copysets_when_online().of_size, [0, 1, 0]);
    fill(1);
    block_on(engine.rebuild_drive(1)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(states(&engine), [ON, ON]);
    assert_eq!(engine.copysets().of_size, [0, 1, 0]);
    assert_eq!(engine.rebuild_speed(), None, "half was compared");
    let new = TestDrive::new(3 * SEGMENT);
    block_on(engine.replace_drive(1, new.clone(), None, || Ok(()))).unwrap();
    block_on(engine.maintain()).unwrap();
    let speed = engine.rebuild_speed().expect("a drive was filled");
    assert_eq!(speed.copied_bytes, 2 * SEGMENT * BLOCK_BYTES as u64);
    drop((engine, volume));
    pool.drives[1] = new;
    let engine = pool.open();
    assert_eq!(engine.rebuild_speed(), Some(speed));
}

#[test]
fn copies_need_as_many_drives_with_room_for_a_segment() {
    let mut pool = Pool::new(3 * SEGMENT);
    pool.config.copies = 2;
    let refused = expect_kind(pool.try_open(), ErrorKind::Invalid);
    assert!(refused.contains("name more drives"), "{refused}");
    assert_eq!(pool.drive().written_blocks.load(Ordering::Relaxed), 0);
    pool.drives.push(TestDrive::new(SEGMENT));
    let engine = pool.open();
    assert_eq!(engine.status().capacity_bytes, SEGMENT * BLOCK_BYTES as u64);
    // What the larger one has left is used when there is another drive.
    let third = TestDrive::new(2 * SEGMENT);
    block_on(engine.add_drive(third, None, |_| Ok(()))).unwrap();
    assert_eq!(
        engine.status().capacity_bytes,
        3 * SEGMENT * BLOCK_BYTES as u64
    );
}
