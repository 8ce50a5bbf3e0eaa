//! Damaged blocks: found by reads and by the scrub, named, and healed when their content comes by.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Pool, block_on, expect_kind, space, spec};
use dedup::{DamageStatus, DamagedRange, Engine, ErrorKind, ScrubPhase, VolumeSpec};
use drives::BLOCK_BYTES;
use meta::VerifyPolicy;

const GRAIN: u64 = BLOCK_BYTES as u64;

fn range(volume: &str, sub_block: u64, count: u64) -> DamagedRange {
    DamagedRange {
        volume: volume.to_owned(),
        offset: sub_block * GRAIN,
        bytes: count * GRAIN,
    }
}

fn damage(engine: &Engine) -> DamageStatus {
    block_on(engine.damage())
}

#[test]
fn a_damaged_block_fails_the_read_of_all_and_names_the_one() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    pool.write(&volume, 3, &[2]).unwrap();
    let other = block_on(engine.create_volume(spec("w", 16, 4096))).unwrap();
    pool.write(&other, 5, &[2, 1]).unwrap();
    pool.drive().corrupt_content(2);
    assert_eq!(damage(&engine), DamageStatus::default());

    assert_eq!(pool.read(&volume, 0, 1).unwrap(), [1]);
    // At the end of a read, or in the middle.
    for blocks in [2, 4] {
        let buf = pool.buffers.try_alloc(blocks * BLOCK_BYTES).unwrap();
        let error = block_on(volume.read(0, buf)).0.unwrap_err();
        assert_eq!(
            (error.kind, error.offset),
            (ErrorKind::Corrupt, Some(GRAIN))
        );
    }
    let buf = pool.buffers.try_alloc(512).unwrap();
    let error = block_on(volume.read(GRAIN + 1024, buf)).0.unwrap_err();
    assert_eq!(error.offset, Some(GRAIN));

    let status = damage(&engine);
    assert_eq!((status.damaged_blocks, status.ranges_total), (1, 3));
    assert_eq!(
        status.ranges,
        [range("v", 1, 1), range("v", 3, 1), range("w", 5, 1)]
    );
    assert_eq!(engine.status().damaged_blocks, 1);
}

#[test]
fn a_volume_that_compares_shares_no_block_that_cannot_be_read() {
    let pool = Pool::new(64);
    let engine = pool.open();
    let compares = VolumeSpec {
        verify: VerifyPolicy::Compare,
        ..spec("v", 64, 4096)
    };
    let volume = block_on(engine.create_volume(compares)).unwrap();
    pool.write(&volume, 0, &[1, 2]).unwrap();
    pool.drive().lose_content(1);
    pool.write(&volume, 2, &[1, 2]).unwrap();
    assert_eq!(pool.read(&volume, 2, 2).unwrap(), [1, 2]);
}

#[test]
fn writing_the_same_content_again_heals_everything_that_refers_to_it() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.write(&volume, 20, &[2]).unwrap();
    pool.drive().corrupt_content(2);
    expect_kind(pool.read(&volume, 1, 1), ErrorKind::Corrupt);
    // The new write is not mapped to the damaged block.
    pool.write(&volume, 40, &[2]).unwrap();
    assert_eq!(pool.read(&volume, 40, 1).unwrap(), [2]);
    expect_kind(pool.read(&volume, 20, 1), ErrorKind::Corrupt);
    block_on(engine.maintain()).unwrap();
    let status = damage(&engine);
    assert_eq!((status.damaged_blocks, status.healed_blocks), (0, 1));
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [1, 2, 3]);
    assert_eq!(pool.read(&volume, 20, 1).unwrap(), [2]);
    // Everything can go, and nothing is leaked.
    block_on(engine.delete_volume("v")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 64));
}

#[test]
fn a_copy_that_is_damaged_too_heals_nothing() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[2]).unwrap();
    pool.drive().corrupt_content(2);
    expect_kind(pool.read(&volume, 0, 1), ErrorKind::Corrupt);
    pool.write(&volume, 1, &[2]).unwrap();
    pool.drive().corrupt_content(2);
    block_on(engine.maintain()).unwrap();
    assert_eq!(damage(&engine).ranges, [range("v", 0, 2)]);
    expect_kind(pool.read(&volume, 0, 1), ErrorKind::Corrupt);
    expect_kind(pool.read(&volume, 1, 1), ErrorKind::Corrupt);
    pool.write(&volume, 2, &[2]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(damage(&engine).damaged_blocks, 0);
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [2, 2, 2]);
}

#[test]
fn damage_that_nobody_refers_to_any_more_is_forgotten() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    for content in [1, 2, 3] {
        pool.drive().corrupt_content(content);
    }
    expect_kind(pool.read(&volume, 0, 3), ErrorKind::Corrupt);
    assert_eq!(damage(&engine).ranges, [range("v", 0, 3)]);
    pool.write(&volume, 0, &[7]).unwrap();
    block_on(volume.trim(GRAIN, GRAIN)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(damage(&engine).ranges, [range("v", 2, 1)]);
    pool.write(&volume, 2, &[3]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(damage(&engine).damaged_blocks, 0);
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [7, 0, 3]);
}

#[test]
fn known_damage_is_known_after_a_restart_and_only_as_long_as_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = Pool::new(64);
    pool.config.damage_file = Some(folder.path().join("damaged"));
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    pool.drive().corrupt_content(1);
    pool.drive().corrupt_content(2);
    expect_kind(pool.read(&volume, 0, 2), ErrorKind::Corrupt);
    block_on(engine.maintain()).unwrap();
    drop((engine, volume));

    // The second block is whole again: a cable was loose.
    pool.drive().mend_content(2);
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(damage(&engine).damaged_blocks, 2);
    // Before anything was read, a new write does not trust the damaged blocks.
    pool.write(&volume, 10, &[1]).unwrap();
    assert_eq!(pool.read(&volume, 10, 1).unwrap(), [1]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(damage(&engine).damaged_blocks, 0);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [1, 2]);
    let used = space(&engine).0;
    pool.write(&volume, 20, &[1, 2]).unwrap();
    assert_eq!(space(&engine).0, used, "healed content is found again");
    drop((engine, volume));
    let engine = pool.open();
    assert_eq!(damage(&engine).damaged_blocks, 0);
}

#[test]
fn a_list_of_damage_that_could_not_be_written_is_written_as_soon_as_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let mut pool = Pool::new(64);
    pool.config.damage_file = Some(missing.join("damaged"));
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    pool.drive().corrupt_content(1);
    expect_kind(pool.read(&volume, 0, 2), ErrorKind::Corrupt);
    block_on(engine.maintain()).unwrap();
    std::fs::create_dir(&missing).unwrap();
    block_on(engine.maintain()).unwrap();
    drop((engine, volume));
    assert_eq!(damage(&pool.open()).damaged_blocks, 1);
}

#[test]
fn a_list_of_damage_that_makes_no_sense_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("damaged");
    let text = format!(
        "# x\n0 0 {:032x} 00000000\n7 {} zz 1\n65535 9 0 0\n\u{fffd}\n0\n",
        5,
        u64::MAX
    );
    std::fs::write(&file, text).unwrap();
    let mut pool = Pool::new(64);
    pool.config.damage_file = Some(file);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(damage(&engine).damaged_blocks, 0);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [1, 2]);
}

/// Runs on a reactor, with the engine's background work.
fn with_maintenance<F: Future<Output = ()>>(engine: &Arc<Engine>, story: F) {
    reactor::run(reactor::Config::default(), async {
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        reactor::timeout(Duration::from_secs(120), story)
            .await
            .expect("the story comes to its end");
        engine.shutdown().await.unwrap();
        let _ = maintenance.await;
    })
    .unwrap();
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        reactor::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_scrub_finds_what_no_host_has_read_yet_and_never_more_than_its_rate() {
    const RATE: u64 = 8 << 20;
    let pool = Pool::new(1024);
    let (engine, volume) = pool.with_volume(1024, 4096);
    for at in 0..4 {
        let contents: Vec<u64> = (at * 200 + 1..at * 200 + 201).collect();
        pool.write(&volume, at * 200, &contents).unwrap();
    }
    pool.drive().corrupt_content(77);
    pool.drive().corrupt_content(78);
    pool.drive().corrupt_content(600);
    assert_eq!(engine.scrub_status().phase, ScrubPhase::Never);
    expect_kind(engine.stop_scrub(), ErrorKind::Invalid);
    expect_kind(engine.start_scrub(5), ErrorKind::Invalid);
    with_maintenance(&engine, async {
        let begin = Instant::now();
        engine.start_scrub(RATE).unwrap();
        expect_kind(engine.start_scrub(RATE), ErrorKind::Invalid);
        until(|| engine.scrub_status().phase == ScrubPhase::Finished).await;
        // What is read last need not be waited for: 3 MiB of 800 blocks at 8 MiB/s, with a margin.
        assert!(begin.elapsed() >= Duration::from_millis(200));
        let status = engine.scrub_status();
        assert_eq!((status.checked_blocks, status.total_blocks), (800, 800));
        assert_eq!((status.bad_blocks, status.eta_seconds), (3, None));
        let damage = engine.damage().await;
        assert_eq!(damage.ranges, [range("v", 76, 2), range("v", 599, 1)]);
        // Writing the content anywhere heals it, without anybody's help.
        let buf = pool.buffer(&[77, 78, 600]);
        volume.write(900 * GRAIN, buf, false).await.0.unwrap();
        while engine.damage().await.healed_blocks < 3 {
            reactor::sleep(Duration::from_millis(5)).await;
        }
        engine.start_scrub(1 << 30).unwrap();
        until(|| engine.scrub_status().phase == ScrubPhase::Finished).await;
        assert_eq!(engine.scrub_status().bad_blocks, 0);
    });
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 76, 2).unwrap(), [77, 78]);
}

#[test]
fn a_scrub_can_be_stopped_and_gives_no_false_alarm_while_hosts_write() {
    let pool = Pool::new(4096);
    let (engine, volume) = pool.with_volume(2048, 4096);
    for at in 0..4 {
        let contents: Vec<u64> = (at * 250 + 1..at * 250 + 251).collect();
        pool.write(&volume, at * 250, &contents).unwrap();
    }
    with_maintenance(&engine, async {
        // A mebibyte a second takes some seconds: long enough to be stopped in the middle.
        engine.start_scrub(1 << 20).unwrap();
        until(|| engine.scrub_status().checked_blocks > 0).await;
        engine.stop_scrub().unwrap();
        until(|| engine.scrub_status().phase == ScrubPhase::Stopped).await;

        let is_done = Rc::new(std::cell::Cell::new(false));
        let writing = async {
            let mut next = 10_000;
            while !is_done.get() {
                let contents: Vec<u64> = (next..next + 100).collect();
                next += 100;
                let at = next % 1900;
                volume
                    .write(at * GRAIN, pool.buffer(&contents), false)
                    .await
                    .0
                    .unwrap();
                reactor::yield_now().await;
            }
        };
        let scrubbing = async {
            for _ in 0..5 {
                engine.start_scrub(1 << 40).unwrap();
                until(|| engine.scrub_status().phase == ScrubPhase::Finished).await;
                assert_eq!(engine.scrub_status().bad_blocks, 0);
            }
            is_done.set(true);
        };
        futures_util::future::join(writing, scrubbing).await;
        assert_eq!(engine.damage().await, DamageStatus::default());
    });
}

#[test]
fn counts_are_proven_while_hosts_write_trim_and_delete() {
    let pool = Pool::new(4096);
    let (engine, volume) = pool.with_volume(4096, 4096);
    for at in 0..8 {
        let contents: Vec<u64> = (at * 250 + 1..at * 250 + 251).collect();
        pool.write(&volume, at * 250, &contents).unwrap();
    }
    let other = block_on(engine.create_volume(spec("w", 4096, 4096))).unwrap();
    with_maintenance(&engine, async {
        let is_done = Rc::new(std::cell::Cell::new(false));
        let working = async {
            for round in 0u64.. {
                if is_done.get() {
                    break;
                }
                // Contents of the first volume move to and fro, and new ones come.
                let first = round * 37 % 1800;
                let contents: Vec<u64> = (first..first + 200).collect();
                let at = round * 91 % 3800;
                other
                    .write(at * GRAIN, pool.buffer(&contents), false)
                    .await
                    .0
                    .unwrap();
                volume
                    .trim(round * 53 % 2000 * GRAIN, 40 * GRAIN)
                    .await
                    .unwrap();
                reactor::yield_now().await;
            }
        };
        let checking = async {
            for _ in 0..3 {
                let report = engine.check_online().await.unwrap();
                assert!(report.consistent, "{report:?}");
                assert!(report.mappings > 1000 && report.blocks > 1000, "{report:?}");
            }
            is_done.set(true);
        };
        futures_util::future::join(working, checking).await;
        engine.delete_volume("v").await.unwrap();
        let report = engine.check_online().await.unwrap();
        assert!(report.consistent, "{report:?}");
    });
}
