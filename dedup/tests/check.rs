//! The offline check of a pool in a folder, with RocksDB, a journal file and a drive file.

mod support;

use std::fs::{File, OpenOptions};
use std::future::ready;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedup::{
    Blocking, CheckOptions, CheckReport, Engine, EngineConfig, EngineParts, ErrorKind, check_pool,
};
use drives::{BLOCK_BYTES, Drive, DriveError, Extent, LocalBoxFuture, Transferred};
use meta::{DriveSpec, LABEL_BYTES, PoolDir, PoolSpec, RocksOptions};
use reactor::Buffer;
use support::{Pool, block_on, expect_kind, spec};

const BLOCKS: u64 = 1024;

/// A file as a drive, without a reactor.
struct PlainFile(File);

impl Drive for PlainFile {
    fn name(&self) -> &str {
        "drive0"
    }

    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn read<'a>(
        &'a self,
        mut buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        for extent in extents {
            let end = extent.buffer_offset + extent.blocks as usize * BLOCK_BYTES;
            let offset = extent.block * BLOCK_BYTES as u64;
            self.0
                .read_exact_at(&mut buffer[extent.buffer_offset..end], offset)
                .unwrap();
        }
        Box::pin(ready((Ok(()), buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        for extent in extents {
            let end = extent.buffer_offset + extent.blocks as usize * BLOCK_BYTES;
            let offset = extent.block * BLOCK_BYTES as u64;
            self.0
                .write_all_at(&buffer[extent.buffer_offset..end], offset)
                .unwrap();
        }
        Box::pin(ready((Ok(()), buffer)))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.0.sync_data().unwrap();
        Box::pin(ready(Ok(())))
    }

    fn discard<'a>(&'a self, _: u64, _: u64) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Ok(())))
    }
}

fn create(dir: &Path) {
    let spec = PoolSpec {
        journal_bytes: 4 << 20,
        ..PoolSpec::new(vec![DriveSpec::new("drive0", BLOCKS)])
    };
    let creation = PoolDir::begin(dir, &spec).unwrap();
    let drive = File::create(creation.drive_path(0).unwrap()).unwrap();
    drive.set_len(BLOCKS * BLOCK_BYTES as u64).unwrap();
    let label = creation.identity().label(0).unwrap().encode();
    drive.write_all_at(&label, 0).unwrap();
    drive.write_all_at(&label, LABEL_BYTES as u64).unwrap();
    creation.finish().unwrap();
}

/// The pool and its engine; dropping both without a word is a kill.
fn open(dir: &Path) -> (PoolDir, Arc<Engine>) {
    let pool = PoolDir::open(dir).unwrap();
    let drive = OpenOptions::new()
        .read(true)
        .write(true)
        .open(pool.drive_path(0).unwrap())
        .unwrap();
    let engine = Engine::open(EngineParts {
        drives: vec![Arc::new(PlainFile(drive))],
        journal: Arc::new(pool.open_journal().unwrap()),
        store: Arc::new(pool.open_store(RocksOptions::default()).unwrap()),
        hash_key: pool.identity().hash_key,
        blocking: Blocking::Inline,
        config: EngineConfig::default(),
    });
    let engine = block_on(engine).unwrap();
    (pool, engine)
}

fn check(dir: &Path) -> CheckReport {
    check_pool(dir, CheckOptions { data: true }).unwrap()
}

/// A pool with some content, partly in the store and partly in the journal only.
fn filled() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let buffers = Pool::new(1);
    let (pool, engine) = open(dir.path());
    let volume = block_on(engine.create_volume(spec("v", 500, 4096))).unwrap();
    buffers.write(&volume, 0, &[1, 2, 3, 1, 0, 4]).unwrap();
    block_on(engine.checkpoint()).unwrap();
    buffers.write(&volume, 3, &[5, 6]).unwrap();
    block_on(volume.trim(0, 4096)).unwrap();
    drop((volume, engine, pool));
    let path = dir.path().to_path_buf();
    (dir, path)
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
