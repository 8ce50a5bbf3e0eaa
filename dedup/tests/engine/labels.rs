//! Which copy of a pool's metadata its drives accept.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::folder::{create, filled, open, open_worn, try_open};
use crate::support::{Pool, block_on};
use dedup::{CheckOptions, ErrorKind, Repair, Restore, backup_pool, check_pool};
use meta::{LABEL_BYTES, Label, PoolDir};

/// A pool, and a backup from before it was opened the last time.
fn with_older_copy() -> (Vec<tempfile::TempDir>, PathBuf, PathBuf) {
    let (keep, dir) = filled();
    let root = tempfile::tempdir().unwrap();
    let copy = root.path().join("copy");
    backup_pool(&dir, &copy).unwrap();
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    buffers.write(&volume, 10, &[11, 12]).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine, pool));
    (vec![keep, root], dir, copy)
}

fn drive(dir: &Path) -> Vec<u8> {
    fs::read(dir.join("drive0")).unwrap()
}

fn refusal(dir: &Path) -> String {
    let Err(error) = try_open(dir) else {
        panic!("{} was opened", dir.display());
    };
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    error.message
}

fn epochs(dir: &Path) -> [u32; 2] {
    let bytes = drive(dir);
    [0, LABEL_BYTES].map(|at| Label::decode(&bytes[at..at + LABEL_BYTES]).unwrap().epoch())
}

#[test]
fn an_older_copy_of_the_metadata_is_refused_by_name_and_nothing_is_changed() {
    let (_keep, dir, copy) = with_older_copy();
    let before = drive(&dir);
    let refused = refusal(&copy);
    for words in ["older copy", "epoch 1", "epoch 2", "pool restore"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let folder = dir.display().to_string();
    assert!(
        refused.contains(&folder),
        "where the newer one is: {refused}"
    );
    let Err(error) = Repair::plan(&copy, 1 << 20) else {
        panic!("a repair would make it look new");
    };
    assert!(error.message.contains("older copy"), "{error}");
    let report = check_pool(&copy, CheckOptions::default()).unwrap();
    let mut findings = report.findings.iter();
    assert!(!report.consistent);
    assert!(
        findings.any(|f| f.detail.contains("older copy")),
        "{report:?}"
    );
    assert!(drive(&dir) == before, "the drive was written");
    // The pool itself goes on.
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(Pool::new(1).read(&volume, 10, 2).unwrap(), [11, 12]);
}

#[test]
fn an_older_copy_that_is_restored_takes_the_place_of_the_newer_metadata_for_good() {
    let (_keep, dir, copy) = with_older_copy();
    let restore = Restore::look(&copy).unwrap();
    assert_eq!((restore.epoch(), restore.drives_epoch()), (1, 2));
    assert!(restore.older()[0].starts_with("this metadata is an older copy"));
    restore.accept().unwrap();
    let report = check_pool(&copy, CheckOptions::default()).unwrap();
    assert!(report.consistent, "{report:?}");
    let (pool, engine) = open(&copy);
    assert_eq!(engine.opening().epoch, 3);
    let volume = engine.volume("v").unwrap();
    let read = Pool::new(1).read(&volume, 0, 12).unwrap();
    assert_eq!(read, [0, 2, 3, 5, 6, 4, 0, 0, 0, 0, 0, 0]);
    drop((volume, engine, pool));
    let refused = refusal(&dir);
    assert!(refused.contains("epoch 3"), "{refused}");
    // What was said counts once.
    let later = PoolDir::open(&copy).unwrap();
    assert_eq!(later.accepted_epoch().unwrap(), Some(2));
    drop(later);
    let (pool, engine) = open(&copy);
    assert_eq!(engine.opening().epoch, 4);
    drop((engine, pool));
    let restore = Restore::look(&copy).unwrap();
    assert!(restore.older().is_empty(), "{:?}", restore.older());
}

/// A pool, and its drive from before the pool was opened the last time.
fn with_older_drive() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let (keep, dir) = filled();
    let older = drive(&dir);
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    buffers.write(&volume, 10, &[11, 12]).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine, pool));
    (keep, dir, older)
}

#[test]
fn a_drive_that_is_put_back_to_an_older_copy_is_refused_by_name_and_nothing_is_changed() {
    let (_keep, dir, older) = with_older_drive();
    let newer = drive(&dir);
    fs::write(dir.join("drive0"), &older).unwrap();
    let refused = refusal(&dir);
    for words in [
        "drive0 is an older copy",
        "epoch 1",
        "epoch 2",
        "pool restore",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let Err(error) = Repair::plan(&dir, 1 << 20) else {
        panic!("a repair would count its data as lost");
    };
    assert!(error.message.contains("older copy"), "{error}");
    let report = check_pool(&dir, CheckOptions::default()).unwrap();
    let mut findings = report.findings.iter();
    assert!(
        findings.any(|f| f.detail.contains("older copy")),
        "{report:?}"
    );
    assert!(drive(&dir) == older, "the drive was written");
    fs::write(dir.join("drive0"), newer).unwrap();
    let (_pool, engine) = open(&dir);
    assert_eq!(engine.opening().epoch, 3, "a refused start is none");
    let volume = engine.volume("v").unwrap();
    assert_eq!(Pool::new(1).read(&volume, 10, 2).unwrap(), [11, 12]);
}

#[test]
fn an_older_copy_of_a_drive_that_is_restored_is_used_and_what_it_lacks_is_an_error() {
    let (_keep, dir, older) = with_older_drive();
    let newer = drive(&dir);
    fs::write(dir.join("drive0"), &older).unwrap();
    Restore::look(&dir).unwrap().accept().unwrap();
    let (pool, engine) = open(&dir);
    assert_eq!(engine.opening().epoch, 3);
    let volume = engine.volume("v").unwrap();
    let buffers = Pool::new(1);
    let error = buffers.read(&volume, 10, 2).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert_eq!(buffers.read(&volume, 0, 4).unwrap(), [0, 2, 3, 5]);
    drop((volume, engine, pool));
    // Now it is the other one that is older.
    fs::write(dir.join("drive0"), newer).unwrap();
    let refused = refusal(&dir);
    assert!(refused.contains("older copy"), "{refused}");
}

#[test]
fn a_copy_of_a_drive_that_was_made_while_the_pool_was_open_is_refused_after_a_clean_end() {
    let (_keep, dir) = filled();
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let older = drive(&dir);
    let volume = engine.volume("v").unwrap();
    buffers.write(&volume, 10, &[11, 12]).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine, pool));
    let newer = drive(&dir);
    fs::write(dir.join("drive0"), older).unwrap();
    let refused = refusal(&dir);
    assert!(refused.contains("drive0 is an older copy"), "{refused}");
    fs::write(dir.join("drive0"), newer).unwrap();
    drop(open(&dir));
}

#[test]
fn a_torn_label_keeps_nobody_from_restoring() {
    let (_keep, dir, copy) = with_older_copy();
    let mut bytes = drive(&dir);
    bytes[100..200].fill(0xee);
    fs::write(dir.join("drive0"), &bytes).unwrap();
    let restore = Restore::look(&copy).unwrap();
    assert_eq!(restore.older().len(), 1, "{:?}", restore.older());
}

#[test]
fn a_pool_of_an_older_program_gets_epochs_on_its_labels_at_its_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    assert_eq!(epochs(dir.path()), [0, 0]);
    assert_eq!(drive(dir.path())[8], 1, "the version");
    drop(open(dir.path()));
    assert_eq!(epochs(dir.path()), [1, 1]);
    // From then on one copy is written at a time.
    drop(open(dir.path()));
    let mut both = epochs(dir.path());
    both.sort_unstable();
    assert_eq!(both, [1, 2]);
}

#[test]
fn a_torn_label_is_found_by_a_check_and_written_again_at_the_next_opening() {
    let (_keep, dir) = filled();
    let mut bytes = drive(&dir);
    bytes[100..200].fill(0xee);
    fs::write(dir.join("drive0"), &bytes).unwrap();
    let report = check_pool(&dir, CheckOptions::default()).unwrap();
    let mut findings = report.findings.iter();
    assert!(
        findings.any(|f| f.detail.contains("one of its two labels")),
        "{report:?}"
    );
    drop(open(&dir));
    let report = check_pool(&dir, CheckOptions::default()).unwrap();
    assert!(report.consistent, "{report:?}");
}

#[test]
fn a_pool_whose_drive_takes_no_writes_any_more_is_read_and_says_why_it_is_not_written() {
    let (_keep, dir) = filled();
    let buffers = Pool::new(1);
    let content = [0, 2, 3, 5, 6, 4];
    for _ in 0..2 {
        let (pool, engine) = open_worn(&dir);
        let volume = engine.volume("v").unwrap();
        assert_eq!(buffers.read(&volume, 0, 6).unwrap(), content);
        let error = buffers.write(&volume, 0, &[9]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        for words in ["read-only", "drive0", "1 of 1 did not"] {
            assert!(error.message.contains(words), "{words}: {error}");
        }
        block_on(engine.shutdown()).unwrap();
        drop((volume, engine, pool));
    }
    // The same bytes on a drive that works.
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    buffers.write(&volume, 6, &[7]).unwrap();
    assert_eq!(buffers.read(&volume, 0, 7).unwrap()[..6], content);
}
