//! The repair of a pool whose metadata store or journal is damaged as a file is: cut, overwritten, gone.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::folder::{create, filled, open};
use crate::support::{Pool, block_on, spec};
use dedup::{CheckOptions, Engine, ErrorKind, Repair, RepairReport, check_pool};
use meta::{CHECK_MEMORY_BYTES, PoolDir};

/// Repairs a pool; it is clean then, and needs no second repair.
fn repair(dir: &Path) -> RepairReport {
    let found = check_pool(dir, CheckOptions::default());
    assert!(
        found.is_err() || !found.unwrap().consistent,
        "the damage is not noticed"
    );
    let plan = Repair::plan(dir, CHECK_MEMORY_BYTES).unwrap();
    let report = plan.report().clone();
    assert!(
        !report.consistent && !report.rebuilt.is_empty(),
        "{report:?}"
    );
    assert!(plan.apply().unwrap().is_some());
    let clean = check_pool(dir, CheckOptions::default()).unwrap();
    assert!(clean.consistent, "{clean:?}\n{report:?}");
    let again = Repair::plan(dir, CHECK_MEMORY_BYTES).unwrap();
    assert!(again.report().consistent, "{:?}", again.report());
    let left: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".rebuilt") || name.ends_with(".scratch"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    report
}

/// A pool of several tables, and records in the journal that are not in the store.
fn pool() -> (tempfile::TempDir, PathBuf) {
    let (keep, dir) = filled();
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = block_on(engine.create_volume(spec("w", W_BLOCKS, 4096))).unwrap();
    for first in (0..W_BLOCKS).step_by(64) {
        let contents: Vec<u64> = (first..first + 64).map(written).collect();
        buffers.write(&volume, first, &contents).unwrap();
    }
    block_on(engine.checkpoint()).unwrap();
    drop((volume, engine, pool));
    let (pool, engine) = open(&dir);
    let volume = engine.volume("w").unwrap();
    buffers.write(&volume, 5, &[77]).unwrap();
    drop((volume, engine, pool));
    (keep, dir)
}

/// What a sub-block of volume `w` holds.
fn expected(at: u64) -> u64 {
    if at == 5 { 77 } else { written(at) }
}

/// Sub-blocks of volume `w`: their rows fill many blocks of a table.
const W_BLOCKS: u64 = 64 * 300;

/// What is in a sub-block of it at first: most of them share their contents, and some hold nothing.
fn written(at: u64) -> u64 {
    match at % 5 {
        0 => 0,
        _ => 1000 + at * at % 397,
    }
}

/// Reads both volumes: sub-blocks that are errors. What can be read is right.
fn errors(engine: &Engine) -> u64 {
    let buffers = Pool::new(1);
    let mut errors = 0;
    let mut look = |name: &str, at, content| {
        let volume = engine
            .volume(name)
            .unwrap_or_else(|| panic!("{name} is lost"));
        match buffers.read(&volume, at, 1) {
            Ok(read) => assert_eq!(read, [content], "sub-block {at} of {name}"),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
                errors += 1;
            }
        }
    };
    for (at, content) in (0..).zip([0, 2, 3, 5, 6, 4]) {
        look("v", at, content);
    }
    for at in 6..500 {
        look("v", at, 0);
    }
    for at in 0..W_BLOCKS {
        look("w", at, expected(at));
    }
    errors
}

fn tables(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("metadata")).unwrap();
    let mut tables: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "sst"))
        .collect();
    tables.sort();
    assert!(!tables.is_empty());
    tables
}

fn largest(dir: &Path) -> PathBuf {
    let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
    tables(dir).into_iter().max_by_key(size).unwrap()
}

/// Nothing that the ring has forgotten: a journal without a past, so that only rows tell of it.
fn forget_the_past(dir: &Path) {
    let (pool, engine) = open(dir);
    block_on(engine.checkpoint()).unwrap();
    drop((engine, pool));
    let pool = PoolDir::open(dir).unwrap();
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("backup");
    drop(pool);
    // A backup has what is needed, and zeros for the rest.
    dedup::backup_pool(dir, &target).unwrap();
    fs::copy(target.join("journal"), dir.join("journal")).unwrap();
}

fn noise(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let noise: Vec<u8> = (0..8192u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    file.write_all_at(&noise, offset).unwrap();
}

#[test]
fn what_the_journal_still_holds_brings_everything_back() {
    for fault in ["cut", "noise", "table gone", "current", "manifest", "all"] {
        let (_keep, dir) = pool();
        let metadata = dir.join("metadata");
        let manifest = || {
            let name = fs::read_to_string(metadata.join("CURRENT")).unwrap();
            metadata.join(name.trim())
        };
        match fault {
            "cut" => {
                let table = largest(&dir);
                let file = fs::OpenOptions::new().write(true).open(&table).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            "noise" => noise(&largest(&dir), 0),
            "table gone" => fs::remove_file(largest(&dir)).unwrap(),
            "current" => fs::remove_file(metadata.join("CURRENT")).unwrap(),
            "manifest" => noise(&manifest(), 0),
            _ => {
                fs::remove_file(manifest()).unwrap();
                for table in tables(&dir) {
                    noise(&table, 0);
                }
            }
        }
        let report = repair(&dir);
        assert_eq!(report.lost_sub_blocks, 0, "{fault}: {report:?}");
        let (_pool, engine) = open(&dir);
        assert_eq!(errors(&engine), 0, "{fault}: {report:?}");
    }
}

#[test]
fn without_a_past_what_was_in_a_damaged_place_is_named_and_reads_as_an_error() {
    for fault in ["cut", "noise", "current", "manifest"] {
        let (_keep, dir) = pool();
        forget_the_past(&dir);
        let metadata = dir.join("metadata");
        match fault {
            "cut" => {
                let table = largest(&dir);
                let file = fs::OpenOptions::new().write(true).open(&table).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            "noise" => noise(&largest(&dir), 0),
            "current" => fs::remove_file(metadata.join("CURRENT")).unwrap(),
            _ => {
                let name = fs::read_to_string(metadata.join("CURRENT")).unwrap();
                fs::remove_file(metadata.join(name.trim())).unwrap();
            }
        }
        let plan = match Repair::plan(&dir, CHECK_MEMORY_BYTES) {
            Ok(plan) => plan,
            // The one large table of a small pool can hold any key.
            Err(error) if fault == "cut" => {
                assert!(
                    error.message.contains("restore the newest backup"),
                    "{error}"
                );
                continue;
            }
            Err(error) => panic!("{fault}: {error}"),
        };
        let report = plan.report().clone();
        drop(plan);
        let is_lossless = matches!(fault, "current" | "manifest");
        assert_eq!(
            report.lost_sub_blocks == 0,
            is_lossless,
            "{fault}: {report:?}"
        );
        let report = repair(&dir);
        let (_pool, engine) = open(&dir);
        if engine.volume("w").is_some() && engine.volume("v").is_some() {
            assert_eq!(
                errors(&engine),
                report.lost_sub_blocks,
                "{fault}: {report:?}"
            );
        } else {
            assert!(!report.recovered_volumes.is_empty(), "{fault}: {report:?}");
        }
    }
}

#[test]
fn a_cut_journal_loses_what_was_behind_the_cut_and_says_so() {
    let (_keep, dir) = pool();
    let journal = dir.join("journal");
    let whole = fs::read(&journal).unwrap();
    // All records are before the cut: nothing is lost.
    fs::write(&journal, &whole[..3 << 20]).unwrap();
    let report = repair(&dir);
    assert!(
        !report
            .rebuilt
            .iter()
            .any(|note| note.contains("nobody knows which")),
        "{report:?}"
    );
    let (pool, engine) = open(&dir);
    assert_eq!(errors(&engine), 0);
    drop((engine, pool));
    assert!(dir.join("damaged-metadata-0").join("journal").exists());
    // Of a journal that is gone, nobody knows what it held.
    let (_keep, dir) = pool_and_cut();
    let report = repair(&dir);
    assert!(
        report
            .rebuilt
            .iter()
            .any(|note| note.contains("nobody knows which")),
        "{report:?}"
    );
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("w").unwrap();
    let buffers = Pool::new(1);
    // As it was at the last checkpoint.
    let before: Vec<u64> = (4..12).map(written).collect();
    assert_eq!(buffers.read(&volume, 4, 8).unwrap(), before);
}

fn pool_and_cut() -> (tempfile::TempDir, PathBuf) {
    let (keep, dir) = pool();
    fs::remove_file(dir.join("journal")).unwrap();
    (keep, dir)
}

#[test]
fn a_pool_of_which_nothing_is_left_is_refused_and_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pool");
    fs::create_dir(&dir).unwrap();
    create(&dir);
    fs::remove_file(dir.join("journal")).unwrap();
    fs::remove_dir_all(dir.join("metadata")).unwrap();
    let before = fs::read_dir(&dir).unwrap().count();
    let refused = Repair::plan(&dir, CHECK_MEMORY_BYTES).err().unwrap();
    assert!(refused.message.contains("restore"), "{refused}");
    // The lock names who used the pool last.
    assert!(fs::read_dir(&dir).unwrap().count() <= before + 1);
}
