//! The store on disk when power is lost: RocksDB on its own files that forget what was not synced.

mod common;

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{NaivePool, load};
use meta::{BatchBuilder, Checkpoint, Position, Record, RocksOptions, RocksStore, Store, check};
use power_cut::Power;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

const POOL: Uuid = Uuid::from_u128(9);
/// Batches that are applied before the power may go.
const BATCHES: usize = 40;
/// Batches that there are: more than can be applied meanwhile.
const BATCHES_MAX: usize = 400;

/// Small buffers, so that files are written and merged all the time.
fn options() -> RocksOptions {
    RocksOptions {
        write_buffer_bytes: 64 << 10,
        ..RocksOptions::default()
    }
}

#[test]
fn a_loss_of_power_leaves_whole_batches_and_every_one_that_was_reported_done() {
    for seed in common::seeds(100).take(6) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("metadata");
        RocksStore::create(&dir, POOL).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pool = NaivePool::default();
        let mut truths = vec![(pool.clone(), Checkpoint::EMPTY)];
        // Power is lost several times, so that what a recovery wrote is lost as well.
        for _ in 0..3 {
            let power = Power::on();
            let store = RocksStore::open_on(&dir, POOL, options(), power.env()).unwrap();
            let done = AtomicUsize::new(truths.len() - 1);
            let enough = done.load(Ordering::Relaxed) + rng.random_range(0..BATCHES);
            let is_off = AtomicBool::new(false);
            let moment: u32 = rng.random_range(0..200_000);
            let mut writer_rng = ChaCha8Rng::seed_from_u64(rng.random());
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for _ in 0..BATCHES_MAX {
                        let seq = truths.last().unwrap().1.position.seq;
                        let count = writer_rng.random_range(1..30);
                        let records: Vec<(u64, Record)> = (seq..seq + count)
                            .map(|seq| (seq, pool.command(&mut writer_rng)))
                            .collect();
                        let position = Position {
                            seq: seq + count,
                            offset: 0,
                        };
                        let checkpoint = Checkpoint {
                            position,
                            epoch: 1,
                            last_epoch: None,
                        };
                        let batch = BatchBuilder::from_records(&records, checkpoint).unwrap();
                        truths.push((pool.clone(), checkpoint));
                        if let Err(error) = store.apply(&batch) {
                            assert!(is_off.load(Ordering::Acquire), "seed {seed}: {error}");
                            return;
                        }
                        done.fetch_add(1, Ordering::Release);
                    }
                });
                while done.load(Ordering::Acquire) < enough && !writer.is_finished() {
                    std::thread::yield_now();
                }
                (0..moment).for_each(|_| spin_loop());
                is_off.store(true, Ordering::Release);
                power.cut();
            });
            drop(store);
            assert!(power.lose(), "seed {seed}: the files cannot be cut");

            let store = RocksStore::open(&dir, POOL, options()).unwrap();
            let (rows, checkpoint) = load(&store).unwrap();
            let done = done.into_inner();
            let is_found =
                |(pool, at): &(NaivePool, Checkpoint)| (&pool.rows, *at) == (&rows, checkpoint);
            let prefix = (done..truths.len()).find(|batches| is_found(&truths[*batches]));
            let Some(prefix) = prefix else {
                panic!(
                    "seed {seed}: {done} batches were done, and what is there is no later state"
                );
            };
            assert!(check(&store).unwrap().is_consistent(), "seed {seed}");
            truths.truncate(prefix + 1);
            pool = truths[prefix].0.clone();
        }
    }
}

#[test]
fn what_is_not_synced_is_lost_by_a_cut() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("database");
    let power = Power::on();
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    options.set_env(&power.env());
    let db = rocksdb::DB::open(&options, &dir).unwrap();
    let mut synced = rocksdb::WriteOptions::default();
    synced.set_sync(true);
    db.put_opt(b"synced", b"1", &synced).unwrap();
    db.put(b"not synced", b"1").unwrap();
    power.cut();
    db.put(b"too late", b"1").unwrap_err();
    drop(db);
    assert!(power.lose());
    let db = rocksdb::DB::open_default(&dir).unwrap();
    let keys = db
        .iterator(rocksdb::IteratorMode::Start)
        .map(|row| row.unwrap().0);
    let keys: Vec<Box<[u8]>> = keys.collect();
    assert_eq!(keys, [Box::from(&b"synced"[..])]);
}
