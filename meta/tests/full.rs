//! A full file system: clear errors, nothing lost, and all goes on when there is space again.
//!
//! These mount a small tmpfs. Where that is not permitted they say so and pass, but not in CI.

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::{NaivePool, load};
use meta::{
    Batch, BatchBuilder, Checkpoint, DriveSpec, Journal, JournalConfig, MetaError, MetaErrorKind,
    PoolDir, PoolSpec, Position, Record, RocksOptions, Store,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A small file system of its own, unmounted at the end.
struct SmallDisk {
    root: tempfile::TempDir,
}

impl SmallDisk {
    fn new(mebibytes: u32) -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "onefold-test"])
            .arg(root.path())
            .output();
        if mount.is_ok_and(|output| output.status.success()) {
            Some(Self { root })
        } else {
            eprintln!("left out: mounting a tmpfs is not permitted here");
            // Where all tests have to run, none passes by being left out.
            let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!must_run, "left out, though CI runs all tests");
            None
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Takes all the space that is left.
    fn fill(&self) {
        let mut filler = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("filler"))
            .unwrap();
        let chunk = [0; 4096];
        while filler.write_all(&chunk).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.root.path())
            .output();
    }
}

fn spec(journal_bytes: u64) -> PoolSpec {
    PoolSpec {
        journal_bytes,
        ..PoolSpec::new(vec![DriveSpec::new("drive0", 1 << 20)])
    }
}

fn no_space(error: &MetaError, dir: &Path) {
    assert_eq!(error.kind(), MetaErrorKind::NoSpace, "{error}");
    let message = error.to_string();
    assert!(
        message.contains(dir.to_str().unwrap()) && message.contains("free some space"),
        "{message}"
    );
}

#[test]
fn a_pool_that_does_not_fit_is_not_half_made() {
    let Some(disk) = SmallDisk::new(12) else {
        return;
    };
    let dir = disk.path("pool");
    no_space(&PoolDir::create(&dir, &spec(64 << 20)).unwrap_err(), &dir);
    assert!(!PoolDir::exists(&dir));
    // The journal fits here, the store does not.
    disk.fill();
    fs::OpenOptions::new()
        .write(true)
        .open(disk.path("filler"))
        .unwrap()
        .set_len((12 << 20) - (4 << 20) - 4096 * 6)
        .unwrap();
    no_space(&PoolDir::create(&dir, &spec(4 << 20)).unwrap_err(), &dir);
    assert!(!PoolDir::exists(&dir));
    disk.empty();
    let pool = PoolDir::create(&dir, &spec(4 << 20)).unwrap();
    pool.open_store(RocksOptions::default()).unwrap();
}

#[test]
fn the_journal_goes_on_when_the_file_system_is_full() {
    let Some(disk) = SmallDisk::new(24) else {
        return;
    };
    let pool = PoolDir::create(&disk.path("pool"), &spec(4 << 20)).unwrap();
    disk.fill();
    let media = Arc::new(pool.open_journal().unwrap());
    let mut journal = Journal::create(media.clone(), 1, JournalConfig::default()).unwrap();
    let record = Record::Unmap {
        map: 1,
        entries: vec![(1, meta::Pba(2)); 1000],
    };
    let mut seq = 0;
    // More than a lap, so that every byte of the ring is written.
    while seq < 1000 {
        match journal.append(std::slice::from_ref(&record)) {
            Ok(appended) => seq = appended.last,
            Err(error) if error.is_full() => journal.release(journal.position()).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
    journal.sync().unwrap();
}

/// Batches of 200 random commands each.
struct Commands {
    rng: ChaCha8Rng,
    seq: u64,
    truth: NaivePool,
}

impl Commands {
    fn new() -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(3),
            seq: 1,
            truth: NaivePool::default(),
        }
    }

    fn batch(&mut self) -> Batch {
        let seqs = self.seq..self.seq + 200;
        self.seq = seqs.end;
        let records: Vec<(u64, Record)> = seqs
            .map(|seq| (seq, self.truth.command(&mut self.rng)))
            .collect();
        let position = Position {
            seq: self.seq,
            offset: 0,
        };
        let checkpoint = Checkpoint {
            position,
            epoch: 1,
            last_epoch: None,
        };
        BatchBuilder::from_records(&records, checkpoint).unwrap()
    }
}

#[test]
fn on_a_file_system_that_others_filled_reads_checkpoints_and_opening_go_on() {
    let Some(disk) = SmallDisk::new(64) else {
        return;
    };
    let pool = PoolDir::create(&disk.path("pool"), &spec(4 << 20)).unwrap();
    let options = RocksOptions {
        write_buffer_bytes: 256 << 10,
        ..RocksOptions::default()
    };
    let mut commands = Commands::new();
    let store = pool.open_store(options).unwrap();
    let ballast = &pool.paths().ballast;
    assert!(ballast.exists(), "a pool with room has a ballast");
    store.apply(&commands.batch()).unwrap();
    // Others take whatever becomes free, until the log's preallocated space is used up.
    for _ in 0..1000 {
        disk.fill();
        store.apply(&commands.batch()).unwrap();
        if !ballast.exists() {
            break;
        }
    }
    assert!(
        !ballast.exists(),
        "the store never met the full file system"
    );
    store.apply(&commands.batch()).unwrap();
    assert!(store.tend().unwrap().is_short);
    drop(store);
    // It is opened again in what was given up, and read.
    let store = pool.open_store(options);
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(load(&store).unwrap().0, commands.truth.rows);
    disk.empty();
    assert!(!store.tend().unwrap().is_short);
    assert!(ballast.exists(), "there is room for it again");
    store.apply(&commands.batch()).unwrap();
    assert_eq!(load(&store).unwrap().0, commands.truth.rows);
}

#[test]
fn a_pool_is_opened_on_a_full_file_system_with_what_was_kept_for_that() {
    let Some(disk) = SmallDisk::new(64) else {
        return;
    };
    let pool = PoolDir::create(&disk.path("pool"), &spec(4 << 20)).unwrap();
    let mut commands = Commands::new();
    let store = pool.open_store(RocksOptions::default()).unwrap();
    store.apply(&commands.batch()).unwrap();
    drop(store);
    disk.fill();
    assert!(pool.paths().ballast.exists());
    let store = pool.open_store(RocksOptions::default()).unwrap();
    store.apply(&commands.batch()).unwrap();
    assert_eq!(load(&store).unwrap().0, commands.truth.rows);
    assert!(store.tend().unwrap().is_short);
}

/// A pool on that file system whose store writes small files, so that it soon needs space.
fn small_pool(disk: &SmallDisk) -> (PathBuf, PoolDir, RocksOptions) {
    let dir = disk.path("pool");
    let pool = PoolDir::create(&dir, &spec(4 << 20)).unwrap();
    let options = RocksOptions {
        write_buffer_bytes: 256 << 10,
        ..RocksOptions::default()
    };
    (dir, pool, options)
}

#[test]
fn reads_go_on_when_nothing_is_left_to_give_up() {
    let Some(disk) = SmallDisk::new(32) else {
        return;
    };
    let (dir, pool, options) = small_pool(&disk);
    let mut commands = Commands::new();
    let store = pool.open_store(options).unwrap();
    store.apply(&commands.batch()).unwrap();
    let mut rows = commands.truth.rows.clone();
    let mut pending = None;
    let mut refused = 0;
    for _ in 0..1000 {
        if refused == 5 {
            break;
        }
        // Others take whatever becomes free.
        disk.fill();
        let batch = pending.take().unwrap_or_else(|| commands.batch());
        match store.apply(&batch) {
            Ok(()) => rows = commands.truth.rows.clone(),
            Err(error) => {
                no_space(&error, &dir);
                refused += 1;
                pending = Some(batch);
            }
        }
        assert_eq!(load(&store).unwrap().0, rows);
    }
    assert_eq!(refused, 5, "the store never met the full file system");
    disk.empty();
    store.tend();
    store.apply(&pending.unwrap()).unwrap();
    assert_eq!(load(&store).unwrap().0, commands.truth.rows);
}

#[test]
fn a_store_without_space_refuses_keeps_what_it_has_and_goes_on_later() {
    let Some(disk) = SmallDisk::new(32) else {
        return;
    };
    let (dir, pool, options) = small_pool(&disk);
    let store = pool.open_store(options).unwrap();
    let mut commands = Commands::new();
    store.apply(&commands.batch()).unwrap();
    disk.fill();
    // The log's preallocated space takes some batches yet.
    let (pending, error) = loop {
        // Others take whatever becomes free.
        disk.fill();
        let next = commands.batch();
        if let Err(error) = store.apply(&next) {
            break (next, error);
        }
    };
    no_space(&error, &dir);
    // The next attempt opens the database again, which may give back some space.
    let applied = store
        .apply(&pending)
        .map_err(|error| no_space(&error, &dir))
        .is_ok();
    disk.empty();
    if !applied {
        store.apply(&pending).unwrap();
    }
    let (rows, checkpoint) = load(&store).unwrap();
    assert_eq!(rows, commands.truth.rows);
    assert_eq!(checkpoint, pending.checkpoint);
    drop(store);
    let store = pool.open_store(options).unwrap();
    assert_eq!(
        load(&store).unwrap(),
        (commands.truth.rows, pending.checkpoint)
    );
}
