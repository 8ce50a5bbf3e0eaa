//! What a user of the engine sees, story by story.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::support::{Pool, block_on, expect_kind, plain_spec, space, spec};
use dedup::{ErrorKind, VolumeChangeKind, VolumeSpec};
use drives::BLOCK_BYTES;
use futures_util::future::join_all;
use meta::MemoryMedia;

const GRAIN: u64 = BLOCK_BYTES as u64;

#[test]
fn a_duplicate_is_stored_once_and_outlives_its_twin() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3, 1, 1]).unwrap();
    pool.write(&volume, 20, &[3, 2, 1]).unwrap();
    assert_eq!(space(&engine).0, 3);
    assert_eq!(engine.status().logical_bytes, 8 * GRAIN);
    assert_eq!(pool.drive().written_blocks.load(Ordering::Relaxed), 3);

    block_on(volume.trim(0, 5 * GRAIN)).unwrap();
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [0; 5]);
    assert_eq!(pool.read(&volume, 20, 3).unwrap(), [3, 2, 1]);
    assert_eq!(space(&engine).0, 3);
    block_on(volume.trim(20 * GRAIN, 3 * GRAIN)).unwrap();
    assert_eq!(space(&engine).0, 0);
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 100));
}

#[test]
fn long_runs_of_freed_blocks_are_discarded_and_short_ones_are_not() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &(1..=40).collect::<Vec<_>>())
        .unwrap();
    block_on(volume.trim(36 * GRAIN, 4 * GRAIN)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.drive().discarded_blocks.load(Ordering::Relaxed), 0);
    block_on(volume.trim(0, 36 * GRAIN)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.drive().discarded_blocks.load(Ordering::Relaxed), 36);
    assert_eq!(space(&engine), (0, 0, 100));
}

#[test]
fn zeros_take_no_space_and_new_data_leaves_in_one_run() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[0; 40]).unwrap();
    assert_eq!(space(&engine).0, 0);
    assert_eq!(engine.status().logical_bytes, 0);
    pool.write(&volume, 0, &(1..=32).collect::<Vec<_>>())
        .unwrap();
    assert_eq!(pool.drive().writes.load(Ordering::Relaxed), 1);
    pool.write(&volume, 8, &[0; 8]).unwrap();
    assert_eq!(space(&engine).0, 24);
    assert_eq!(pool.read(&volume, 6, 4).unwrap(), [7, 8, 0, 0]);
}

#[test]
fn the_same_content_written_at_once_by_many_is_stored_once() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(640, 4096);
    pool.drive().write_delay.store(3, Ordering::Relaxed);
    let writes = (0..16u64).map(|at| {
        let buf = pool.buffer(&[7, 8, 7, 9]);
        let volume = &volume;
        async move { volume.write(at * 10 * GRAIN, buf, at == 3).await.0 }
    });
    for result in block_on(join_all(writes)) {
        result.unwrap();
    }
    assert_eq!(space(&engine).0, 3);
    assert_eq!(pool.drive().written_blocks.load(Ordering::Relaxed), 3);
    for at in 0..16 {
        assert_eq!(pool.read(&volume, at * 10, 4).unwrap(), [7, 8, 7, 9]);
    }
}

#[test]
fn writes_of_one_turn_share_one_append_and_a_lone_one_waits_for_nobody() {
    let pool = Pool::new(100);
    let (_engine, volume) = pool.with_volume(640, 4096);
    let appends = pool.media.operations();
    let write = |at: u64, content: u64| {
        let buf = pool.buffer(&[content, content + 1]);
        let volume = &volume;
        async move { volume.write(at * GRAIN, buf, false).await.0 }
    };
    let together = (0..12).map(|at| write(at * 2, at * 10 + 1));
    for result in block_on(join_all(together)) {
        result.unwrap();
    }
    assert_eq!(pool.media.operations(), appends + 1);
    block_on(write(100, 1000)).unwrap();
    assert_eq!(pool.media.operations(), appends + 2);
    for at in 0..12 {
        let wanted = [at * 10 + 1, at * 10 + 2];
        assert_eq!(pool.read(&volume, at * 2, 2).unwrap(), wanted);
    }
}

#[test]
fn of_writes_that_leave_together_only_those_fail_whose_blocks_cannot_be_written() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 50, &[3]).unwrap();
    pool.drive().fail_content.store(66, Ordering::Relaxed);
    // The second shares a new block with the first and fails, the fourth shares one with the third.
    let writes = [[1, 2], [1, 66], [3, 4], [4, 5], [66, 3]];
    let writes = writes.iter().enumerate().map(|(at, contents)| {
        let buf = pool.buffer(contents);
        let volume = &volume;
        async move { volume.write(at as u64 * 2 * GRAIN, buf, false).await.0 }
    });
    let results = block_on(join_all(writes));
    let failed: Vec<bool> = results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false, false, true]);
    let found = pool.read(&volume, 0, 10).unwrap();
    assert_eq!(found, [1, 2, 0, 0, 3, 4, 4, 5, 0, 0]);
    assert_eq!(space(&engine), (5, 0, 95));
}

#[test]
fn writes_whose_batch_leader_is_dropped_go_on() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.drive().write_delay.store(4, Ordering::Relaxed);
    for polls in 0..8 {
        let write = |at: u64| {
            let buf = pool.buffer(&[100 * polls + at + 1]);
            let volume = &volume;
            async move { volume.write(at * GRAIN, buf, false).await.0 }
        };
        block_on(async {
            let mut first = Box::pin(write(0));
            let mut others = Box::pin(join_all([write(1), write(2)]));
            for _ in 0..polls {
                let first = futures_util::poll!(&mut first);
                if first.is_ready() {
                    break;
                }
                let _ = futures_util::poll!(&mut others);
            }
            drop(first);
            for result in others.await {
                result.unwrap();
            }
        });
        let wanted = [100 * polls + 2, 100 * polls + 3];
        assert_eq!(pool.read(&volume, 1, 2).unwrap(), wanted);
    }
    let (used, _, _) = space(&engine);
    assert!(used <= 3, "{used} blocks for three sub-blocks");
}

#[test]
fn a_block_whose_write_is_dropped_half_way_goes_to_nobody_else() {
    let pool = Pool::new(8);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.drive().write_delay.store(4, Ordering::Relaxed);
    block_on(async {
        let mut write = Box::pin(volume.write(0, pool.buffer(&[1]), false));
        while space(&engine).0 == 0 {
            assert!(futures_util::poll!(&mut write).is_pending());
        }
    });
    // The drive may still write it.
    assert_eq!(space(&engine), (0, 1, 7));
}

#[test]
fn a_volume_without_deduplication_stores_every_copy_and_shares_with_nobody() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    let plain = block_on(engine.create_volume(plain_spec("plain", 64))).unwrap();
    assert!(volume.info().dedup && !plain.info().dedup);
    pool.write(&plain, 0, &[1, 1, 0, 2]).unwrap();
    pool.write(&volume, 0, &[1, 1, 2]).unwrap();
    pool.write(&plain, 8, &[2]).unwrap();
    assert_eq!(space(&engine), (6, 0, 94));
    drop((engine, volume, plain));
    // Nothing was flushed: the checksum alone proves what was not hashed.
    let engine = pool.open();
    let plain = engine.volume("plain").unwrap();
    assert!(!plain.info().dedup);
    assert_eq!(
        pool.read(&plain, 0, 9).unwrap(),
        [1, 1, 0, 2, 0, 0, 0, 0, 2]
    );
    pool.write(&plain, 20, &[3, 4]).unwrap();
    drop((engine, plain));
    pool.drive().corrupt_all();
    let engine = pool.open();
    let plain = engine.volume("plain").unwrap();
    assert_eq!(pool.read(&plain, 20, 2).unwrap(), [0, 0]);
    expect_kind(pool.read(&plain, 0, 1), ErrorKind::Corrupt);
    pool.write(&plain, 0, &[1]).unwrap();
    pool.write(&plain, 0, &[1]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 6);
    let report = meta::check(&*pool.store).unwrap();
    assert!(report.is_consistent());
    assert_eq!(report.duplicate_fingerprints, 0);
}

#[test]
fn when_the_writer_of_a_content_fails_those_who_waited_write_it_themselves() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.drive().write_delay.store(5, Ordering::Relaxed);
    let write = |at: u64| {
        let buf = pool.buffer(&[5]);
        let volume = &volume;
        async move { volume.write(at * GRAIN, buf, false).await.0 }
    };
    let heal = async {
        // The first write fails; the drive is well again when the second tries.
        pool.drive().fail_writes.store(true, Ordering::Relaxed);
        let first = write(0).await;
        pool.drive().fail_writes.store(false, Ordering::Relaxed);
        first
    };
    let (first, second) = block_on(futures_util::future::join(heal, write(1)));
    expect_kind(first, ErrorKind::WriteFault);
    second.unwrap();
    assert_eq!(space(&engine).0, 1);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [0, 5]);
}

#[test]
fn a_failed_write_leaves_the_old_content_and_gives_its_space_back() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    pool.drive().fail_writes.store(true, Ordering::Relaxed);
    let message = expect_kind(pool.write(&volume, 0, &[1, 9, 8]), ErrorKind::WriteFault);
    assert!(
        message.contains("test") && message.contains("write"),
        "{message}"
    );
    assert_eq!(space(&engine), (3, 0, 97));
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [1, 2, 3]);
    // What needs no new block goes on.
    pool.write(&volume, 0, &[3, 2, 1]).unwrap();
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [3, 2, 1]);
}

#[test]
fn sectors_of_512_bytes_change_only_themselves() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(16, 512);
    let mut buf = pool.buffers.try_alloc(3 * BLOCK_BYTES).unwrap();
    buf.fill(1);
    assert!(block_on(volume.write(0, buf, false)).0.is_ok());
    let mut small = pool.buffers.try_alloc(5120).unwrap();
    small.fill(2);
    assert!(block_on(volume.write(3584, small, true)).0.is_ok());
    block_on(volume.write_zeroes(512, 1024, false)).unwrap();
    block_on(volume.write_zeroes(11 * 1024, 512, false)).unwrap();
    // Neither whole sub-block is covered: a trim leaves both.
    block_on(volume.trim(512, 2 * GRAIN - 1024)).unwrap();

    let (result, all) = block_on(volume.read(0, pool.buffers.try_alloc(3 * BLOCK_BYTES).unwrap()));
    result.unwrap();
    let wanted = |at: usize| match at {
        512..1536 | 11264..11776 => 0,
        3584..8704 => 2,
        _ => 1,
    };
    assert!((0..3 * BLOCK_BYTES).all(|at| all[at] == wanted(at)));
    let mut part = pool.buffers.try_alloc(1024).unwrap();
    part.fill(2);
    let (same, mut part) = block_on(volume.compare(8192 - 512, part));
    assert!(same.unwrap());
    part[1023] = 1;
    assert!(!block_on(volume.compare(8192 - 512, part)).0.unwrap());
    let (result, _) = block_on(volume.read(512, pool.buffers.try_alloc(512).unwrap()));
    result.unwrap();
    assert_eq!(engine.status().read_only, None);
}

#[test]
fn a_request_that_cannot_be_is_refused_and_names_the_volume() {
    let pool = Pool::new(100);
    let (_engine, volume) = pool.with_volume(16, 4096);
    let buffer = |len| pool.buffers.try_alloc(len).unwrap();
    for (offset, len) in [
        (512, 4096),
        (0, 512),
        (16 * GRAIN, 4096),
        (15 * GRAIN, 8192),
        (u64::MAX - 4095, 4096),
    ] {
        let refused = block_on(volume.read(offset, buffer(len))).0;
        assert!(expect_kind(refused, ErrorKind::Invalid).contains("`v`"));
        expect_kind(
            block_on(volume.write(offset, buffer(len), false)).0,
            ErrorKind::Invalid,
        );
        expect_kind(
            block_on(volume.compare(offset, buffer(len))).0,
            ErrorKind::Invalid,
        );
        expect_kind(
            block_on(volume.trim(offset, len as u64)),
            ErrorKind::Invalid,
        );
        expect_kind(
            block_on(volume.write_zeroes(offset, len as u64, false)),
            ErrorKind::Invalid,
        );
    }
    let huge = buffer(dedup::MAX_COMMAND_BYTES + BLOCK_BYTES);
    expect_kind(block_on(volume.read(0, huge)).0, ErrorKind::Invalid);
    block_on(volume.trim(0, 0)).unwrap();
    block_on(volume.trim(0, 16 * GRAIN)).unwrap();
}

#[test]
fn volumes_are_created_resized_and_deleted_and_subscribers_hear_of_it() {
    let pool = Pool::new(100);
    let engine = pool.open();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = heard.clone();
    engine.on_change(Box::new(move |change| {
        ear.lock().unwrap().push((
            change.kind,
            change.info.name.clone(),
            change.info.size_bytes,
        ));
    }));
    let a = block_on(engine.create_volume(spec("a", 10, 512)))
        .unwrap()
        .info();
    let b = block_on(engine.create_volume(spec("b", 10, 4096)))
        .unwrap()
        .info();
    assert_eq!((a.nsid, b.nsid), (1, 2));
    assert_ne!(a.uuid, b.uuid);
    assert_eq!(a.nguid, *a.uuid.as_bytes());

    let refuse =
        |spec: VolumeSpec| expect_kind(block_on(engine.create_volume(spec)), ErrorKind::Invalid);
    refuse(spec("a", 10, 512));
    refuse(spec("", 10, 512));
    refuse(spec("with space", 10, 512));
    refuse(spec(&"x".repeat(65), 10, 512));
    refuse(spec("c", 0, 512));
    refuse(spec("c", 10, 1024));
    refuse(VolumeSpec {
        size_bytes: 4097,
        ..spec("c", 1, 512)
    });
    refuse(VolumeSpec {
        size_bytes: u64::MAX - 4095,
        ..spec("c", 1, 512)
    });
    refuse(VolumeSpec {
        nsid: Some(2),
        ..spec("c", 10, 512)
    });
    refuse(VolumeSpec {
        nsid: Some(0),
        ..spec("c", 10, 512)
    });
    refuse(VolumeSpec {
        uuid: Some(a.uuid),
        ..spec("c", 10, 512)
    });

    expect_kind(
        block_on(engine.resize_volume("zz", GRAIN)),
        ErrorKind::NotFound,
    );
    expect_kind(block_on(engine.resize_volume("a", 100)), ErrorKind::Invalid);
    let volume = engine.volume("a").unwrap();
    pool.write(&volume, 0, &[1; 10]).unwrap();
    block_on(engine.resize_volume("a", 4 * GRAIN)).unwrap();
    expect_kind(pool.read(&volume, 4, 1), ErrorKind::Invalid);
    block_on(engine.resize_volume("a", 20 * GRAIN)).unwrap();
    assert_eq!(pool.read(&volume, 2, 4).unwrap(), [1, 1, 0, 0]);
    assert_eq!(volume.info().size_bytes, 20 * GRAIN);

    block_on(engine.delete_volume("a")).unwrap();
    expect_kind(pool.read(&volume, 0, 1), ErrorKind::NotFound);
    expect_kind(pool.write(&volume, 0, &[1]), ErrorKind::NotFound);
    assert!(engine.volume("a").is_none());
    // Its name and its identifier are free at once, its blocks a little later.
    let again = block_on(engine.create_volume(spec("a", 5, 512))).unwrap();
    assert_eq!(again.info().nsid, 1);
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 100));

    use VolumeChangeKind::{Created, Deleted, Resized};
    let heard = heard.lock().unwrap().clone();
    let kinds: Vec<_> = heard
        .iter()
        .map(|(kind, name, _)| (*kind, name.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            (Created, "a"),
            (Created, "b"),
            (Resized, "a"),
            (Resized, "a"),
            (Deleted, "a"),
            (Created, "a")
        ]
    );
    assert_eq!(heard[3].2, 20 * GRAIN);
}

#[test]
fn a_volume_keeps_its_identity_and_data_under_another_name_also_after_a_kill() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 3, &[1, 2, 3]).unwrap();
    block_on(engine.create_volume(spec("b", 10, 512))).unwrap();
    let before = volume.info();
    let refused = block_on(engine.rename_volume(&before.name, "b"));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid, "taken");
    let refused = block_on(engine.rename_volume(&before.name, "no/name"));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid);
    let refused = block_on(engine.rename_volume("nobody", "c"));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::NotFound);
    block_on(engine.rename_volume(&before.name, "c")).unwrap();
    assert!(engine.volume(&before.name).is_none());
    let renamed = engine.volume("c").unwrap();
    assert_eq!(
        (renamed.info().uuid, renamed.info().nsid),
        (before.uuid, before.nsid)
    );
    assert_eq!(
        pool.read(&volume, 3, 3).unwrap(),
        [1, 2, 3],
        "an old handle"
    );
    let info = renamed.info();
    drop((engine, volume, renamed));
    for _ in 0..2 {
        // A kill each time: first the journal has the name, then the store.
        let engine = pool.open();
        let volume = engine.volume("c").unwrap();
        assert_eq!(volume.info(), info);
        assert_eq!(pool.read(&volume, 3, 3).unwrap(), [1, 2, 3]);
        assert!(engine.volume("v").is_none());
    }
}

#[test]
fn identity_and_data_are_the_same_after_a_clean_restart_and_after_a_kill() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 3, &[1, 2, 3, 0, 1]).unwrap();
    let info = volume.info();
    let status = engine.status();
    block_on(engine.shutdown()).unwrap();
    expect_kind(pool.read(&volume, 0, 1), ErrorKind::Unavailable);
    expect_kind(pool.write(&volume, 0, &[1]), ErrorKind::Unavailable);
    drop((engine, volume));
    for _ in 0..2 {
        // The second time, the engine of the first was dropped without a word: a kill.
        let engine = pool.open();
        let volume = engine.volume("v").unwrap();
        assert_eq!(volume.info(), info);
        assert_eq!(pool.read(&volume, 2, 7).unwrap(), [0, 1, 2, 3, 0, 1, 0]);
        assert_eq!(engine.status().used_bytes, status.used_bytes);
        assert_eq!(engine.status().logical_bytes, status.logical_bytes);
    }
}

#[test]
fn a_deletion_that_a_crash_interrupts_goes_on_after_it() {
    let pool = Pool::new(1000);
    let (engine, volume) = pool.with_volume(800, 4096);
    for start in (0..800).step_by(100) {
        pool.write(
            &volume,
            start,
            &(start + 1..start + 101).collect::<Vec<_>>(),
        )
        .unwrap();
    }
    block_on(engine.delete_volume("v")).unwrap();
    drop((engine, volume));
    let engine = pool.open();
    assert!(engine.volumes().is_empty());
    assert_eq!(space(&engine).0, 800);
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 1000));
}

#[test]
fn a_content_with_too_many_references_is_stored_once_more() {
    let mut pool = Pool::new(100);
    pool.config.references_max = 4;
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[5; 10]).unwrap();
    assert_eq!(space(&engine).0, 3);
    assert_eq!(pool.read(&volume, 0, 10).unwrap(), [5; 10]);
    drop((engine, volume));
    let engine = pool.open();
    assert_eq!(
        pool.read(&engine.volume("v").unwrap(), 0, 10).unwrap(),
        [5; 10]
    );
    assert_eq!(space(&engine).0, 3);
}

#[test]
fn a_content_that_comes_again_after_its_block_was_freed_gets_another_block() {
    let pool = Pool::new(8);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1]).unwrap();
    pool.write(&volume, 0, &[2]).unwrap();
    // Its old block is about to be somebody else's.
    pool.write(&volume, 1, &[1]).unwrap();
    assert_eq!(space(&engine).0, 2);
    for content in 3..40 {
        block_on(volume.flush()).unwrap();
        pool.write(&volume, 2, &[content]).unwrap();
    }
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [2, 1, 39]);
}

#[test]
fn two_threads_use_one_engine_at_once() {
    let mut pool = Pool::new(4000);
    pool.media = Arc::new(MemoryMedia::new(1 << 20));
    let (engine, volume) = pool.with_volume(4000, 4096);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, volume) = (&pool, &volume);
            scope.spawn(move || {
                for round in 0..100u64 {
                    let start = (thread * 97 + round * 31) % 3900;
                    let contents: Vec<u64> = (0..16).map(|at| 1 + (start + at) % 500).collect();
                    pool.write(volume, start, &contents).unwrap();
                    pool.read(volume, start, 16).unwrap();
                    if round % 10 == thread {
                        block_on(volume.flush()).unwrap();
                    }
                }
            });
        }
    });
    assert!(space(&engine).0 <= 500);
    let mapped = pool.read(&volume, 0, 256).unwrap();
    for (at, content) in mapped.iter().enumerate() {
        assert!(*content == 0 || *content == 1 + at as u64 % 500);
    }
    block_on(engine.maintain()).unwrap();
    assert!(meta::check(&*pool.store).unwrap().is_consistent());
}

#[test]
fn a_clone_has_what_its_origin_had_and_both_go_their_own_ways() {
    let pool = Pool::new(2000);
    let (engine, origin) = pool.with_volume(640, 4096);
    let first: Vec<u64> = (1..=200).collect();
    pool.write(&origin, 10, &first).unwrap();
    let clone = block_on(engine.clone_volume("v", "c", None)).unwrap();
    assert_eq!(space(&engine).0, 200);

    pool.write(&clone, 20, &[900, 901]).unwrap();
    pool.write(&origin, 30, &[950]).unwrap();
    block_on(clone.trim(100 * GRAIN, 5 * GRAIN)).unwrap();
    block_on(clone.write_zeroes(110 * GRAIN, GRAIN, false)).unwrap();
    let check = |engine: &dedup::Engine| {
        let (origin, clone) = (engine.volume("v").unwrap(), engine.volume("c").unwrap());
        let of_clone = pool.read(&clone, 19, 4).unwrap();
        assert_eq!(of_clone, [10, 900, 901, 13]);
        assert_eq!(pool.read(&origin, 19, 4).unwrap(), [10, 11, 12, 13]);
        assert_eq!(pool.read(&clone, 30, 1).unwrap(), [21]);
        assert_eq!(pool.read(&origin, 30, 1).unwrap(), [950]);
        // What is unmapped in a clone is not inherited.
        assert_eq!(pool.read(&clone, 99, 7).unwrap(), [90, 0, 0, 0, 0, 0, 96]);
        assert_eq!(pool.read(&clone, 110, 2).unwrap(), [0, 102]);
        assert_eq!(pool.read(&origin, 99, 3).unwrap(), [90, 91, 92]);
    };
    check(&engine);
    drop((origin, clone, engine));
    let engine = pool.open();
    check(&engine);
    block_on(engine.maintain()).unwrap();
    drop(engine);
    check(&pool.open());
}

#[test]
fn volumes_and_their_clones_are_deleted_in_any_order_and_all_space_returns() {
    for order in [["v", "c", "d"], ["c", "d", "v"], ["d", "v", "c"]] {
        let pool = Pool::new(2000);
        let (engine, origin) = pool.with_volume(640, 4096);
        pool.write(&origin, 0, &(1..=100).collect::<Vec<_>>())
            .unwrap();
        let clone = block_on(engine.clone_volume("v", "c", None)).unwrap();
        pool.write(&clone, 0, &[500; 3]).unwrap();
        let last = block_on(engine.clone_volume("c", "d", None)).unwrap();
        pool.write(&last, 50, &[600, 601]).unwrap();
        for (left, name) in (0..order.len()).rev().zip(order) {
            block_on(engine.delete_volume(name)).unwrap();
            block_on(engine.maintain()).unwrap();
            if left > 0 && order[2] == "d" {
                let last = engine.volume("d").unwrap();
                assert_eq!(pool.read(&last, 2, 2).unwrap(), [500, 4]);
                assert_eq!(pool.read(&last, 49, 4).unwrap(), [50, 600, 601, 53]);
            }
        }
        assert_eq!(space(&engine), (0, 0, 2000), "{order:?}");
    }
}

#[test]
fn data_that_change_in_memory_after_their_checksum_was_known_are_found_by_the_first_read() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    let write = |at: u64, contents: &[u64], checksums: Vec<u32>| {
        let buf = pool.buffer(contents);
        let checksums = Some(checksums.into_boxed_slice());
        block_on(volume.write_checked(at * GRAIN, buf, checksums, false)).0
    };
    let sums = |contents: &[u64]| -> Vec<u32> {
        let bytes = pool.buffer(contents);
        let blocks = bytes.chunks(BLOCK_BYTES);
        let sum = |block| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block);
        blocks.map(|block| sum(block) as u32).collect()
    };
    // Zeros and duplicates are not stored, and those in between are.
    write(0, &[1, 0, 2, 1, 3], sums(&[1, 0, 2, 1, 3])).unwrap();
    assert_eq!(pool.read(&volume, 0, 5).unwrap(), [1, 0, 2, 1, 3]);
    // A list that is not of these blocks says nothing of them.
    write(8, &[4, 5], sums(&[7, 4, 5])).unwrap();
    assert_eq!(pool.read(&volume, 8, 2).unwrap(), [4, 5]);
    // One of three changed.
    write(16, &[6, 9, 8], sums(&[6, 7, 8])).unwrap();
    assert_eq!(pool.read(&volume, 16, 1).unwrap(), [6]);
    assert_eq!(pool.read(&volume, 18, 1).unwrap(), [8]);
    expect_kind(pool.read(&volume, 17, 1), ErrorKind::Corrupt);
    block_on(engine.maintain()).unwrap();
}
