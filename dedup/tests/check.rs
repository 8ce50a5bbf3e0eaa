//! The offline check of a pool in a folder, with RocksDB, a journal file and a drive file.

mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dedup::{CheckOptions, CheckReport, ErrorKind, check_pool};
use drives::BLOCK_BYTES;
use meta::{LABEL_BYTES, PoolDir};
use support::folder::{BLOCKS, filled, open};
use support::{Pool, block_on, expect_kind};

fn check(dir: &Path) -> CheckReport {
    check_pool(dir, CheckOptions { data: true }).unwrap()
}

#[test]
fn a_pool_that_was_killed_checks_clean_before_and_after_recovery() {
    let (_keep, dir) = filled();
    for round in 0..2 {
        let report = check(&dir);
        assert!(report.consistent, "{report:?}");
        assert_eq!((report.volumes, report.mappings, report.blocks), (1, 5, 5));
        assert_eq!(report.data_blocks_checked, 5);
        assert_eq!(report.journal_records > 0, round == 0);
        // Opening and closing cleanly leaves nothing in the journal.
        let (_pool, engine) = open(&dir);
        let buffers = Pool::new(1);
        let volume = engine.volume("v").unwrap();
        assert_eq!(buffers.read(&volume, 0, 6).unwrap(), [0, 2, 3, 5, 6, 4]);
        block_on(engine.shutdown()).unwrap();
    }
}

#[test]
fn a_pool_in_use_and_a_folder_without_a_pool_cannot_be_checked() {
    let (_keep, dir) = filled();
    let pool = PoolDir::open(&dir).unwrap();
    expect_kind(
        check_pool(&dir, CheckOptions::default()),
        ErrorKind::Unavailable,
    );
    drop(pool);
    let empty = tempfile::tempdir().unwrap();
    expect_kind(
        check_pool(empty.path(), CheckOptions::default()),
        ErrorKind::NotFound,
    );
}

#[test]
fn a_changed_block_is_found_when_data_is_read() {
    let (_keep, dir) = filled();
    let drive = OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.join("drive0"))
        .unwrap();
    // The first data block was flushed, so nothing but reading it can tell.
    drive
        .write_all_at(b"x", 256 * BLOCK_BYTES as u64 + BLOCK_BYTES as u64 + 9)
        .unwrap();
    assert!(
        check_pool(&dir, CheckOptions { data: false })
            .unwrap()
            .consistent
    );
    let report = check(&dir);
    assert!(!report.consistent);
    assert_eq!(report.findings_total, 1, "{report:?}");
    assert!(report.findings[0].object.ends_with("drive0"));
}

#[test]
fn a_missing_truncated_or_foreign_drive_is_named() {
    let (_keep, dir) = filled();
    let path = dir.join("drive0");
    let find = || {
        let report = check(&dir);
        assert!(
            !report.consistent && report.findings[0].object.ends_with("drive0"),
            "{report:?}"
        );
        report.findings[0].detail.clone()
    };
    let drive = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut label = [0; LABEL_BYTES];
    drive.read_exact_at(&mut label, 0).unwrap();
    drive.write_all_at(&[1; 100], 0).unwrap();
    assert!(find().contains("label"));
    drive.write_all_at(&[1; 100], LABEL_BYTES as u64).unwrap();
    find();
    drive.write_all_at(&label, 0).unwrap();
    drive.write_all_at(&label, LABEL_BYTES as u64).unwrap();
    assert!(check(&dir).consistent);

    drive.set_len(BLOCKS * BLOCK_BYTES as u64 - 1).unwrap();
    assert!(find().contains("truncated"));
    std::fs::remove_file(&path).unwrap();
    assert!(find().contains("missing"));
}

#[test]
fn a_journal_from_an_older_copy_is_refused_and_the_remedy_named() {
    let (_keep, dir) = filled();
    let older = std::fs::read(dir.join("journal")).unwrap();
    // The pool goes on; what the store has is not in the copy.
    let (pool, engine) = open(&dir);
    let buffers = Pool::new(1);
    let volume = engine.volume("v").unwrap();
    buffers.write(&volume, 7, &[7, 8, 9]).unwrap();
    block_on(engine.checkpoint()).unwrap();
    buffers.write(&volume, 10, &[10]).unwrap();
    drop((volume, engine, pool));
    let newer = std::fs::read(dir.join("journal")).unwrap();

    std::fs::write(dir.join("journal"), &older).unwrap();
    let report = check(&dir);
    let detail = &report.findings[0].detail;
    assert!(!report.consistent, "{report:?}");
    assert!(
        detail.contains("restore `journal` and `metadata/`"),
        "{detail}"
    );
    let refused = dedup::Repair::plan(&dir).err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused}");

    std::fs::write(dir.join("journal"), &newer).unwrap();
    assert!(check(&dir).consistent);
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(buffers.read(&volume, 7, 4).unwrap(), [7, 8, 9, 10]);
}

#[test]
fn a_damaged_journal_or_store_is_a_finding() {
    let (_keep, dir) = filled();
    let journal = std::fs::read(dir.join("journal")).unwrap();
    std::fs::write(dir.join("journal"), &journal[..5000]).unwrap();
    let report = check(&dir);
    assert!(
        !report.consistent && report.findings[0].object.ends_with("journal"),
        "{report:?}"
    );
    std::fs::write(dir.join("journal"), &journal).unwrap();
    assert!(check(&dir).consistent);

    std::fs::remove_file(dir.join("metadata").join("CURRENT")).unwrap();
    let report = check(&dir);
    assert!(
        !report.consistent && report.findings[0].object.ends_with("metadata"),
        "{report:?}"
    );
}
