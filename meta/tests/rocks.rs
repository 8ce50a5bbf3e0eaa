//! The store on disk: it survives being dropped at any time, and names every kind of damage.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{NaivePool, load};
use meta::{
    BatchBuilder, Checkpoint, MetaError, MetaErrorKind, Position, Record, RocksOptions, RocksStore,
    Store,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

const POOL: Uuid = Uuid::from_u128(77);

fn at(seq: u64) -> Checkpoint {
    Checkpoint {
        position: Position { seq, offset: 0 },
        epoch: 1,
        last_epoch: None,
    }
}

fn open(dir: &Path) -> Result<RocksStore, MetaError> {
    RocksStore::open(dir, POOL, RocksOptions::default())
}

/// A store with some rows, in table files, with `more` applied after the last flush.
fn filled(dir: &Path, commands: u64) -> NaivePool {
    RocksStore::create(dir, POOL).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(commands);
    let mut pool = NaivePool::default();
    // Opening writes what the log holds to table files, so rows end up in both.
    for (from, to) in [(1, commands), (commands, 2 * commands)] {
        let store = open(dir).unwrap();
        let records: Vec<(u64, Record)> = (from..to)
            .map(|seq| (seq, pool.command(&mut rng)))
            .collect();
        store
            .apply(&BatchBuilder::from_records(&records, at(to)).unwrap())
            .unwrap();
    }
    pool
}

fn files(dir: &Path, matches: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| matches(path.file_name().unwrap().to_str().unwrap()))
        .collect();
    out.sort();
    out
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in files(from, |_| true) {
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// Damages a copy of the store, and expects an error at the latest when its rows are loaded; then
/// expects the undamaged store to be as before.
fn damaged(dir: &Path, damage: impl FnOnce(&Path)) -> MetaError {
    let copy_dir = dir.with_extension("copy");
    copy(dir, &copy_dir);
    damage(&copy_dir);
    let result = open(&copy_dir).and_then(|store| load(&store).map(|_| ()));
    let error = result.expect_err("damage was not noticed");
    let message = error.to_string();
    assert!(message.contains(copy_dir.to_str().unwrap()), "{message}");
    fs::remove_dir_all(&copy_dir).unwrap();
    error
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, offset)
        .unwrap();
}

#[test]
fn rows_survive_when_the_store_is_dropped_without_any_goodbye() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    let pool = filled(&dir, 200);
    // A copy of the files while the store is open is what a crash of the process leaves.
    let store = open(&dir).unwrap();
    let crashed = root.path().join("crashed");
    copy(&dir, &crashed);
    assert_eq!(load(&store).unwrap(), (pool.rows.clone(), at(400)));
    assert_eq!(
        load(&open(&crashed).unwrap()).unwrap(),
        (pool.rows, at(400))
    );
}

#[test]
fn damage_of_any_file_is_reported_with_the_folder_and_a_remedy() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    let pool = filled(&dir, 300);
    let tables = |dir: &Path| files(dir, |name| name.ends_with(".sst"));
    let manifests = |dir: &Path| files(dir, |name| name.starts_with("MANIFEST"));
    assert!(!tables(&dir).is_empty());

    let errors = [
        damaged(&dir, |dir| {
            fs::write(dir.join("CURRENT"), b"garbage").unwrap()
        }),
        damaged(&dir, |dir| fs::write(dir.join("CURRENT"), b"").unwrap()),
        damaged(&dir, |dir| {
            fs::write(dir.join("CURRENT"), b"MANIFEST-999999\n").unwrap()
        }),
        damaged(&dir, |dir| overwrite(&manifests(dir)[0], 20, &[0xa5; 40])),
        damaged(&dir, |dir| fs::remove_file(&manifests(dir)[0]).unwrap()),
        damaged(&dir, |dir| overwrite(&tables(dir)[0], 100, &[0xa5; 40])),
        damaged(&dir, |dir| fs::remove_file(&tables(dir)[0]).unwrap()),
        damaged(&dir, |dir| {
            let table = fs::OpenOptions::new()
                .write(true)
                .open(&tables(dir)[0])
                .unwrap();
            table.set_len(table.metadata().unwrap().len() / 2).unwrap();
        }),
    ];
    for error in errors {
        assert_eq!(error.kind(), MetaErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("restore"), "{error}");
    }
    assert_eq!(load(&open(&dir).unwrap()).unwrap(), (pool.rows, at(600)));
}

#[test]
fn a_flipped_byte_anywhere_in_a_table_gives_the_truth_or_an_error() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    let pool = filled(&dir, 60);
    drop(open(&dir).unwrap());
    let victim = files(&dir, |name| name.ends_with(".sst")).pop().unwrap();
    let name = victim.file_name().unwrap().to_owned();
    let whole = fs::read(&victim).unwrap();
    let step = (whole.len() / 40).max(1);
    for offset in (0..whole.len()).step_by(step) {
        let copy_dir = root.path().join(format!("copy{offset}"));
        copy(&dir, &copy_dir);
        overwrite(
            &copy_dir.join(&name),
            offset as u64,
            &[whole[offset] ^ 0x40],
        );
        match open(&copy_dir).and_then(|store| load(&store)) {
            Ok(found) => assert_eq!(found, (pool.rows.clone(), at(120)), "offset {offset}"),
            Err(error) => assert_eq!(error.kind(), MetaErrorKind::Corrupt, "{offset}: {error}"),
        }
        fs::remove_dir_all(&copy_dir).unwrap();
    }
}

#[test]
fn a_torn_log_loses_only_whole_batches_from_its_end() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    RocksStore::create(&dir, POOL).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut pool = NaivePool::default();
    let mut truths = vec![(pool.rows.clone(), Checkpoint::EMPTY)];
    let store = open(&dir).unwrap();
    for round in 0..10 {
        let first = 1 + round * 10;
        let records: Vec<(u64, Record)> = (first..first + 10)
            .map(|seq| (seq, pool.command(&mut rng)))
            .collect();
        store
            .apply(&BatchBuilder::from_records(&records, at(first + 10)).unwrap())
            .unwrap();
        truths.push((pool.rows.clone(), at(first + 10)));
    }
    let crashed = root.path().join("crashed");
    copy(&dir, &crashed);
    drop(store);
    let log = files(&crashed, |name| name.ends_with(".log"))
        .pop()
        .unwrap();
    let bytes = fs::metadata(&log).unwrap().len();
    for cut in (0..bytes).step_by((bytes / 30) as usize) {
        let torn = root.path().join(format!("torn{cut}"));
        copy(&crashed, &torn);
        let log = torn.join(log.file_name().unwrap());
        fs::OpenOptions::new()
            .write(true)
            .open(log)
            .unwrap()
            .set_len(cut)
            .unwrap();
        let found = load(&open(&torn).unwrap()).unwrap();
        assert!(
            truths.contains(&found),
            "cut at {cut}: rows between two batches"
        );
        fs::remove_dir_all(&torn).unwrap();
    }
}

#[test]
fn a_store_of_another_pool_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    RocksStore::create(&dir, POOL).unwrap();
    let other = Uuid::from_u128(1);
    let error = RocksStore::open(&dir, other, RocksOptions::default())
        .err()
        .unwrap();
    assert!(
        matches!(error, MetaError::WrongPool { found: POOL, .. }),
        "{error}"
    );
}

#[test]
fn a_store_of_another_version_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    RocksStore::create(&dir, POOL).unwrap();
    let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &dir, ["hints"]).unwrap();
    db.put(b"f", [9, 0, 0, 0, 1, 2, 3]).unwrap();
    drop(db);
    let error = open(&dir).err().unwrap();
    assert_eq!(error.kind(), MetaErrorKind::WrongVersion);
    assert!(error.to_string().contains("version 9"), "{error}");
}

#[test]
fn rows_that_make_no_sense_are_damage() {
    let root = tempfile::tempdir().unwrap();
    let rows: [(&[u8], &[u8]); 5] = [
        (b"c", b"short"),
        (b"b\0\0\0\0\0\0\0\x01", &[0; 24]),
        (b"bshort", &[1; 24]),
        (b"m\0\0\0\x01\0\0\0\0\0\0\0\x01", b"x"),
        (b"v\0\0\0\x01", b"x"),
    ];
    for (index, (key, value)) in rows.iter().enumerate() {
        let dir = root.path().join(index.to_string());
        RocksStore::create(&dir, POOL).unwrap();
        let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &dir, ["hints"]).unwrap();
        db.put(key, value).unwrap();
        drop(db);
        let error = open(&dir)
            .and_then(|store| load(&store))
            .expect_err("accepted");
        assert_eq!(error.kind(), MetaErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn a_store_is_not_made_where_one_is() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    let pool = filled(&dir, 50);
    assert!(RocksStore::create(&dir, Uuid::from_u128(1)).is_err());
    assert_eq!(load(&open(&dir).unwrap()).unwrap().0, pool.rows);
}
