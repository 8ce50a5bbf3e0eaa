//! Backups of a pool's metadata, and what opening one gives.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::folder::{create, filled, open};
use crate::support::{Pool, block_on, expect_kind, spec};
use dedup::{CheckOptions, ErrorKind, backup_pool, check_pool};
use meta::PoolDir;

#[test]
fn a_backup_of_a_pool_in_use_opens_as_the_pool_was_at_that_moment() {
    let (_keep, dir) = filled();
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("backup");
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    buffers.write(&volume, 10, &[11, 12]).unwrap();
    let made = block_on(engine.backup(pool.begin_backup(&target).unwrap())).unwrap();
    assert_eq!(made, target);
    let names = fs::read_dir(root.path()).unwrap().count();
    assert_eq!(names, 1, "nothing but the backup is there");
    assert_eq!(
        target.metadata().unwrap().permissions().mode() & 0o777,
        0o700
    );
    // The pool goes on: new blocks, and a checkpoint.
    buffers.write(&volume, 20, &[21, 22]).unwrap();
    block_on(engine.checkpoint()).unwrap();
    assert_eq!(buffers.read(&volume, 20, 2).unwrap(), [21, 22]);
    drop((volume, engine, pool));

    let report = check_pool(
        &target,
        CheckOptions {
            data: true,
            ..CheckOptions::default()
        },
    )
    .unwrap();
    assert!(report.consistent, "{report:?}");
    let (_pool, engine) = open(&target);
    let volume = engine.volume("v").unwrap();
    let read = buffers.read(&volume, 0, 12).unwrap();
    assert_eq!(read, [0, 2, 3, 5, 6, 4, 0, 0, 0, 0, 11, 12]);
    assert_eq!(buffers.read(&volume, 20, 2).unwrap(), [0, 0]);
}

#[test]
fn what_an_old_backup_refers_to_and_was_used_again_reads_as_an_error() {
    let (_keep, dir) = filled();
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("backup");
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    block_on(engine.backup(pool.begin_backup(&target).unwrap())).unwrap();
    // The blocks of the backup are given back, and all blocks written.
    block_on(volume.trim(0, 500 * 4096)).unwrap();
    block_on(engine.maintain()).unwrap();
    for round in 0..8u64 {
        let contents: Vec<u64> = (0..100).map(|at| 1000 + 100 * round + at).collect();
        if buffers
            .write(&volume, (round % 5) * 100, &contents)
            .is_err()
        {
            break;
        }
        block_on(engine.maintain()).unwrap();
    }
    drop((volume, engine, pool));

    let (_pool, engine) = open(&target);
    let volume = engine.volume("v").unwrap();
    let mut errors = 0;
    for (at, content) in (0..).zip([0, 2, 3, 5, 6, 4]) {
        match buffers.read(&volume, at, 1) {
            Ok(read) => assert_eq!(read, [content]),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
                errors += 1;
            }
        }
    }
    assert!(
        errors > 0,
        "no block was used again: the test shows nothing"
    );
}

#[test]
fn a_backup_never_goes_over_anything() {
    let (_keep, dir) = filled();
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("backup");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), "").unwrap();
    expect_kind(backup_pool(&dir, &target), ErrorKind::Invalid);
    fs::remove_file(target.join("precious")).unwrap();
    // What an interrupted one left is in nobody's way.
    fs::create_dir(root.path().join("backup.unfinished")).unwrap();
    fs::write(root.path().join("backup.unfinished/backup-unfinished"), "").unwrap();
    backup_pool(&dir, &target).unwrap();
    expect_kind(backup_pool(&dir, &target), ErrorKind::Invalid);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    let report = check_pool(
        &target,
        CheckOptions {
            data: true,
            ..CheckOptions::default()
        },
    )
    .unwrap();
    assert!(report.consistent, "{report:?}");
    // One that was given up leaves nothing.
    let pool = PoolDir::open(&dir).unwrap();
    drop(pool.begin_backup(&root.path().join("other")).unwrap());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_backup_is_whole_wherever_the_journal_stands_in_its_ring() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pool");
    fs::create_dir(&dir).unwrap();
    create(&dir);
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = block_on(engine.create_volume(spec("v", 500, 4096))).unwrap();
    // Some laps of the ring of 4 MiB.
    for round in 1..60u64 {
        for at in 0..500 {
            buffers
                .write(&volume, at, &[1 + (at + round) % 300])
                .unwrap();
        }
        if round % 3 == 0 {
            block_on(engine.checkpoint()).unwrap();
        }
        if round % 10 == 0 {
            let target = root.path().join(format!("backup{round}"));
            block_on(engine.backup(pool.begin_backup(&target).unwrap())).unwrap();
            let report = check_pool(
                &target,
                CheckOptions {
                    data: true,
                    ..CheckOptions::default()
                },
            )
            .unwrap();
            assert!(report.consistent, "{report:?}");
        }
    }
}
