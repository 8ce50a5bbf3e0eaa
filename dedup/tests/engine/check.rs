//! The offline check of a pool in a folder, with RocksDB, a journal file and a drive file.

use std::collections::BTreeMap;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::folder::{BLOCKS, filled, open};
use crate::support::{Pool, block_on, expect_kind};
use dedup::{CheckOptions, CheckReport, DamagedRange, ErrorKind, check_pool};
use drives::BLOCK_BYTES;
use meta::{LABEL_BYTES, Pba, PoolDir};

fn check(dir: &Path) -> CheckReport {
    check_pool(
        dir,
        CheckOptions {
            data: true,
            ..CheckOptions::default()
        },
    )
    .unwrap()
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
    let quick = check_pool(&dir, CheckOptions::default()).unwrap();
    assert!(quick.consistent);
    assert!(
        quick.not_looked_at[0].contains("the data in 5 blocks"),
        "{quick:?}"
    );
    let report = check(&dir);
    assert!(!report.consistent && report.not_looked_at.is_empty());
    assert_eq!(report.findings_total, 1, "{report:?}");
    assert_eq!(report.findings_of_data, 1, "{report:?}");
    assert!(report.findings[0].object.ends_with("drive0"));
    let range = DamagedRange {
        volume: "v".to_owned(),
        offset: 4096,
        bytes: 4096,
    };
    assert_eq!(report.damage.ranges, std::slice::from_ref(&range));
    // What is known to be damaged is read in any case.
    std::fs::write(dir.join("damaged"), format!("{} 0 0\n", Pba::new(0, 1))).unwrap();
    let quick = check_pool(&dir, CheckOptions::default()).unwrap();
    assert!(!quick.consistent, "{quick:?}");
    assert_eq!((quick.data_blocks_checked, quick.blocks), (1, 5));
    assert_eq!(quick.damage.ranges, [range]);
}

/// Every file below a folder: its mode, its time of change and its content.
fn files(dir: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let about = path.metadata().unwrap();
        let content = match about.is_dir() {
            true => Vec::new(),
            false => std::fs::read(&path).unwrap(),
        };
        if about.is_dir() {
            found.extend(files(&path));
        }
        found.insert(
            path,
            (about.mode(), about.mtime(), about.mtime_nsec(), content),
        );
    }
    found
}

#[test]
fn a_check_changes_nothing_and_makes_no_file() {
    let (_keep, dir) = filled();
    let before = files(&dir);
    assert!(check(&dir).consistent);
    let after = files(&dir);
    let changed: Vec<_> = after
        .iter()
        .filter(|(path, file)| before.get(*path) != Some(file))
        .map(|(path, _)| path)
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert_eq!(before.len(), after.len());
}

#[test]
fn others_cannot_read_the_metadata_store() {
    let (_keep, dir) = filled();
    let mode = || dir.join("metadata").metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(), 0o700);
    // Of a store that was made before its folder kept others out.
    std::fs::set_permissions(dir.join("metadata"), Permissions::from_mode(0o755)).unwrap();
    drop(open(&dir));
    assert_eq!(mode(), 0o700);
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
    let refused = dedup::Repair::plan(&dir, meta::CHECK_MEMORY_BYTES)
        .err()
        .unwrap();
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
