//! Stories of contents that have the same fingerprint, of domains, and of drives that fail a compare.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, Drive, FaultDrive, FaultPlan};
use futures_util::future::{join, join_all};
use meta::{HookedMedia, JournalConfig, JournalMedia, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

use crate::background::healing::examine;
use crate::hooks;
use crate::io::verify::keep_verifying;
use crate::sync::wait::yield_once;
use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, ErrorKind, LABEL_BLOCKS, Volume,
    VolumeSpec,
};

/// Runs a future that waits for nothing but others in it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
    panic!("it waits for something that does not come");
}

struct Pool {
    drive: RefCell<Arc<FaultDrive>>,
    media: Arc<MemoryMedia>,
    store: Arc<MemoryStore>,
    buffers: BufferPool,
}

impl Pool {
    /// With two fingerprints for all contents.
    fn weak() -> Self {
        hooks::limit_fingerprints(Some(2));
        Self::new(200)
    }

    fn new(blocks: u64) -> Self {
        let drive = FaultDrive::new(LABEL_BLOCKS + blocks, FaultPlan::default());
        Self {
            drive: RefCell::new(Arc::new(drive)),
            media: Arc::new(MemoryMedia::new(4 << 20)),
            store: Arc::new(MemoryStore::new()),
            buffers: BufferPool::new(8 << 20).unwrap(),
        }
    }

    fn open(&self) -> Arc<Engine> {
        self.open_on(self.media.clone())
    }

    fn open_on(&self, journal: Arc<dyn JournalMedia>) -> Arc<Engine> {
        let parts = EngineParts {
            drives: vec![self.drive.borrow().clone()],
            journal,
            store: self.store.clone(),
            hash_keys: [5; 32].into(),
            fingerprint: meta::FingerprintFunction::Blake3,
            blocking: Blocking::Inline,
            boot: None,
            config: EngineConfig {
                bounce_bytes: BOUNCE_BYTES_MIN,
                journal: JournalConfig::default(),
                ..EngineConfig::default()
            },
        };
        block_on(Engine::open(parts)).unwrap()
    }

    fn create(
        &self,
        engine: &Engine,
        name: &str,
        verify: VerifyPolicy,
        domain: &str,
    ) -> Arc<Volume> {
        let spec = VolumeSpec {
            name: name.to_owned(),
            size_bytes: 64 * BLOCK_BYTES as u64,
            lba_bytes: 512,
            nsid: None,
            uuid: None,
            dedup: true,
            compression: meta::Compression::Off,
            verify,
            domain: domain.to_owned(),
        };
        block_on(engine.create_volume(spec)).unwrap()
    }

    fn data(&self, contents: &[u64]) -> Buffer {
        let mut buf = self
            .buffers
            .try_alloc(contents.len() * BLOCK_BYTES)
            .unwrap();
        for (block, content) in buf.chunks_exact_mut(BLOCK_BYTES).zip(contents) {
            for word in block.chunks_exact_mut(8) {
                word.copy_from_slice(&content.to_le_bytes());
            }
        }
        buf
    }

    async fn write(&self, volume: &Volume, at: u64, contents: &[u64]) {
        let data = self.data(contents);
        let (result, _) = volume.write(at * BLOCK_BYTES as u64, data, false).await;
        result.unwrap();
    }

    async fn read(&self, volume: &Volume, at: u64, count: usize) -> Vec<u64> {
        let buf = self.buffers.try_alloc(count * BLOCK_BYTES).unwrap();
        let (result, buf) = volume.read(at * BLOCK_BYTES as u64, buf).await;
        result.unwrap();
        let content = |block: &[u8]| {
            let word = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert!(
                block.chunks_exact(8).all(|other| other == &block[..8]),
                "a mixture"
            );
            word
        };
        buf.chunks_exact(BLOCK_BYTES).map(content).collect()
    }

    /// The process dies, and the power goes.
    fn crash(&self) {
        let drive = self.drive.borrow().crash(FaultPlan::default());
        *self.drive.borrow_mut() = Arc::new(drive);
        self.media.power_loss(1);
    }
}

/// Works while somebody compares in the background.
fn with_background<T>(engine: &Arc<Engine>, work: impl Future<Output = T>) -> T {
    let shared = engine.shared.clone();
    let work = async {
        // Let it come on duty.
        yield_once().await;
        let done = work.await;
        engine.shared.verify.end();
        done
    };
    block_on(join(async move { keep_verifying(&shared).await }, work)).1
}

fn used_blocks(engine: &Engine) -> u64 {
    engine.status().used_bytes / BLOCK_BYTES as u64
}

const MANY: [u64; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

#[test]
fn with_compare_contents_of_one_fingerprint_stay_apart_whatever_way_they_come() {
    let pool = Pool::weak();
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Compare, "");
    // In one command.
    block_on(pool.write(&volume, 0, &MANY));
    assert_eq!(block_on(pool.read(&volume, 0, 12)), MANY);
    // In one batch, and against what is stored.
    let writes = (0..12).map(|at| {
        let (pool, volume) = (&pool, &volume);
        async move { pool.write(volume, 12 + at, &[20 + at]).await }
    });
    block_on(join_all(writes));
    let wanted: Vec<u64> = (20..32).collect();
    assert_eq!(block_on(pool.read(&volume, 12, 12)), wanted);
    assert_eq!(block_on(pool.read(&volume, 0, 12)), MANY);
    // What is really the same is stored once, as long as it is what is found.
    let before = used_blocks(&engine);
    let status = engine.status().verify;
    assert!(status.collisions >= 10, "{status:?}");
    block_on(pool.write(&volume, 40, &[31]));
    block_on(pool.write(&volume, 41, &[31]));
    block_on(pool.write(&volume, 42, &[31]));
    assert!(used_blocks(&engine) <= before + 1);
    assert_eq!(block_on(pool.read(&volume, 40, 3)), [31; 3]);
    // And over a power loss.
    block_on(volume.flush()).unwrap();
    drop((volume, engine));
    pool.crash();
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(block_on(pool.read(&volume, 0, 12)), MANY);
    assert_eq!(block_on(pool.read(&volume, 12, 12)), wanted);
    hooks::limit_fingerprints(None);
}

#[test]
fn with_trust_a_collision_would_be_believed_so_the_hash_of_these_tests_does_collide() {
    let pool = Pool::weak();
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Trust, "");
    block_on(pool.write(&volume, 0, &MANY));
    assert_ne!(block_on(pool.read(&volume, 0, 12)), MANY);
    assert_eq!(used_blocks(&engine), 2);
    hooks::limit_fingerprints(None);
}

#[test]
fn in_the_background_a_collision_is_put_right_before_anybody_reads_it() {
    let pool = Pool::weak();
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    with_background(&engine, async {
        pool.write(&volume, 0, &[1, 2, 3, 4]).await;
        pool.write(&volume, 4, &[5, 6, 7, 8]).await;
        assert_eq!(pool.read(&volume, 0, 8).await, [1, 2, 3, 4, 5, 6, 7, 8]);
        // A later write of the range is later, whatever is still being compared.
        pool.write(&volume, 8, &[5, 6]).await;
        pool.write(&volume, 8, &[9, 10]).await;
        assert_eq!(pool.read(&volume, 8, 2).await, [9, 10]);
        pool.write(&volume, 20, &MANY).await;
        volume.flush().await.unwrap();
        assert_eq!(engine.status().verify.waiting_bytes, 0);
    });
    let status = engine.status().verify;
    assert!(
        status.collisions > 0 && status.failed_blocks == 0,
        "{status:?}"
    );
    drop((volume, engine));
    pool.crash();
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(block_on(pool.read(&volume, 20, 12)), MANY);
    hooks::limit_fingerprints(None);
}

/// A correction is a record whose block may not have reached the drive: then an opening keeps what was there, the twin.
/// Before anybody is told of a snapshot, all of that is flushed; before that, it has what its volume has.
#[test]
fn a_snapshot_has_what_collided_once_it_was_told_and_before_that_what_its_volume_has() {
    let (mut there, mut twins) = (0, 0);
    for (seed, is_told) in (0..60).flat_map(|seed| [(seed, false), (seed, true)]) {
        let pool = Pool::weak();
        let plan = FaultPlan {
            seed,
            ..FaultPlan::default()
        };
        let drive = FaultDrive::new(LABEL_BLOCKS + 200, plan.clone());
        *pool.drive.borrow_mut() = Arc::new(drive);
        let engine = pool.open();
        let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
        with_background(&engine, async {
            pool.write(&volume, 0, &MANY).await;
            volume.flush().await.unwrap();
            pool.write(&volume, 20, &[33, 34]).await;
            // It waits until they are compared.
            assert_eq!(pool.read(&volume, 20, 2).await, [33, 34]);
            if is_told {
                engine.create_snapshots(&["v@s"], 1).await.unwrap();
                return;
            }
            // The record of the snapshot is appended, and the flush has no end.
            pool.drive.borrow().cut_power();
            let mut snapshot = pin!(engine.create_snapshots(&["v@s"], 1));
            assert!(stays_pending(&mut snapshot));
        });
        drop((volume, engine));
        let drive = pool.drive.borrow().crash(plan);
        *pool.drive.borrow_mut() = Arc::new(drive);
        pool.media.power_loss(seed);
        let engine = pool.open();
        let of_volume = block_on(pool.read(&engine.volume("v").unwrap(), 20, 2));
        let Some(snapshot) = engine.volume("v@s") else {
            assert!(!is_told, "seed {seed}: it is gone");
            continue;
        };
        there += 1;
        let found = block_on(pool.read(&snapshot, 20, 2));
        assert_eq!(found, of_volume, "seed {seed}");
        let hasher = engine.shared.domains.hasher("");
        let fingerprint = |content: u64| {
            let data = pool.data(&[content]);
            hasher.one(data[..].first_chunk().unwrap())
        };
        for (found, written) in found.into_iter().zip([33, 34]) {
            let is_twin = found != written && fingerprint(found) == fingerprint(written);
            assert!(
                found == written || (is_twin && !is_told),
                "seed {seed}: {found}"
            );
            twins += u32::from(is_twin);
        }
    }
    assert!(there > 60 && twins > 0, "{there} snapshots, {twins} twins");
    hooks::limit_fingerprints(None);
}

#[test]
fn a_write_is_acknowledged_before_its_background_compare_and_its_flush_is_not() {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    block_on(pool.write(&volume, 0, &[1, 2, 3]));
    let duty = engine.shared.verify.go_on_duty().unwrap();
    block_on(pool.write(&volume, 8, &[1, 2, 3]));
    let status = engine.status().verify;
    assert_eq!(
        (status.compared_blocks, status.waiting_bytes),
        (0, 3 * 4096)
    );
    let mut flush = pin!(volume.flush());
    let mut read = pin!(pool.read(&volume, 8, 3));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        assert!(flush.as_mut().poll(&mut context).is_pending());
        assert!(read.as_mut().poll(&mut context).is_pending());
    }
    // Elsewhere all goes on.
    assert_eq!(block_on(pool.read(&volume, 0, 3)), [1, 2, 3]);
    // Without the one who compares, the flush tells that nobody did.
    drop(duty);
    assert!(block_on(flush).is_err());
    assert_eq!(block_on(read), [1, 2, 3]);
    assert_eq!(engine.status().verify.failed_blocks, 3);
    // And goes on to tell so, whoever asks, until a restart; volumes that are compared are not concerned.
    assert!(block_on(volume.flush()).is_err());
    assert!(block_on(engine.flush()).is_err());
    let other = pool.create(&engine, "other", VerifyPolicy::Compare, "");
    block_on(other.flush()).unwrap();
    assert!(block_on(engine.shutdown()).is_err());
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(block_on(pool.read(&volume, 8, 3)), [1, 2, 3]);
    block_on(volume.flush()).unwrap();
}

/// Polls a future often; whether it is never done.
fn stays_pending(future: &mut std::pin::Pin<&mut impl Future>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    (0..100).all(|_| future.as_mut().poll(&mut context).is_pending())
}

#[test]
fn a_write_that_is_dropped_on_its_way_into_the_journal_is_compared_as_any_other() {
    let pool = Pool::weak();
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    with_background(&engine, async {
        pool.write(&volume, 0, &MANY).await;
        volume.flush().await.unwrap();
        hooks::hold_appends(true);
        {
            let mut write = pin!(pool.write(&volume, 20, &[33, 34, 35]));
            assert!(
                stays_pending(&mut write),
                "its record has no more than its range of the journal"
            );
        }
        hooks::hold_appends(false);
        assert_eq!(pool.read(&volume, 20, 3).await, [33, 34, 35]);
        volume.flush().await.unwrap();
    });
    block_on(engine.shutdown()).unwrap();
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(block_on(pool.read(&volume, 20, 3)), [33, 34, 35]);
    hooks::limit_fingerprints(None);
}

/// The journal ends before a record that is not written, whatever is written behind it.
#[test]
fn what_a_dropped_write_wrote_is_acknowledged_to_nobody_before_the_journal_has_it() {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Trust, "");
    let grain = BLOCK_BYTES as u64;
    block_on(pool.write(&volume, 30, &[2]));
    {
        hooks::hold_appends(true);
        let mut first = pin!(pool.write(&volume, 0, &[1]));
        assert!(stays_pending(&mut first));
        {
            let mut dropped = pin!(pool.write(&volume, 8, &[2]));
            assert!(stays_pending(&mut dropped));
        }
        hooks::hold_appends(false);
        assert_eq!(block_on(pool.read(&volume, 8, 1)), [2]);
        {
            let mut copy = pin!(volume.copy(8 * grain, &volume, 30 * grain, grain, &pool.buffers));
            assert!(stays_pending(&mut copy), "told of what a crash undoes");
        }
        {
            let mut trim = pin!(volume.trim(50 * grain, 10 * grain));
            assert!(stays_pending(&mut trim), "told of what a crash undoes");
        }
        let mut again = pin!(pool.write(&volume, 8, &[2]));
        assert!(stays_pending(&mut again), "told of what a crash undoes");
        block_on(first);
        block_on(again);
    }
    drop((volume, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(block_on(pool.read(&volume, 0, 1)), [1]);
    assert_eq!(block_on(pool.read(&volume, 8, 1)), [2]);
}

#[test]
fn a_write_with_fua_is_acknowledged_after_its_background_compare_and_not_before() {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    block_on(pool.write(&volume, 0, &[1, 2, 3]));
    let duty = engine.shared.verify.go_on_duty().unwrap();
    let grain = BLOCK_BYTES as u64;
    {
        // A write, and a compare and write.
        let mut whole = pin!(volume.write(8 * grain, pool.data(&[1, 2]), true));
        assert!(stays_pending(&mut whole), "it was not compared");
        let (expected, new) = (pool.data(&[0]), pool.data(&[3]));
        let mut exchange = pin!(volume.compare_and_write(20 * grain, &expected, &new, true));
        assert!(stays_pending(&mut exchange), "it was not compared");
        // What is acknowledged without FUA waits for nobody.
        block_on(pool.write(&volume, 30, &[1]));
        let status = engine.status().verify;
        assert_eq!(
            (status.compared_blocks, status.waiting_bytes),
            (0, 4 * grain)
        );
        // Nobody vouches for what nobody compared.
        drop(duty);
        assert!(block_on(whole).0.is_err());
        assert!(block_on(exchange).is_err());
    }
    // Compared, they are acknowledged.
    drop((volume, engine));
    let engine = pool.open();
    block_on(engine.load()).unwrap();
    let volume = engine.volume("v").unwrap();
    with_background(&engine, async {
        let (result, _) = volume.write(40 * grain, pool.data(&[1, 2]), true).await;
        result.unwrap();
        let status = engine.status().verify;
        assert_eq!((status.compared_blocks, status.waiting_bytes), (2, 0));
    });
}

#[test]
fn a_policy_changes_after_the_comparisons_of_the_old_one_and_flushes_remember_that_one_failed() {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    block_on(pool.write(&volume, 0, &[1, 2, 3]));
    let duty = engine.shared.verify.go_on_duty().unwrap();
    block_on(pool.write(&volume, 30, &[1]));
    let strict = crate::PolicyChange {
        verify: Some(VerifyPolicy::Compare),
        ..crate::PolicyChange::default()
    };
    {
        let mut change = pin!(engine.set_volume_policy("v", &strict));
        assert!(stays_pending(&mut change), "a comparison is to come");
        assert_eq!(volume.info().verify, VerifyPolicy::Background);
        drop(duty);
        block_on(change).unwrap();
    }
    assert_eq!(volume.info().verify, VerifyPolicy::Compare);
    assert_eq!(engine.status().verify.failed_blocks, 1);
    assert!(block_on(volume.flush()).is_err(), "it was not compared");
}

/// The policy of a volume when it was asked to change, and a comparison of the old one is to come.
pub(crate) fn policy_while_a_comparison_is_to_come() -> VerifyPolicy {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    block_on(pool.write(&volume, 0, &[1, 2, 3]));
    let _duty = engine.shared.verify.go_on_duty().unwrap();
    block_on(pool.write(&volume, 30, &[1]));
    let strict = crate::PolicyChange {
        verify: Some(VerifyPolicy::Compare),
        ..crate::PolicyChange::default()
    };
    let mut change = pin!(engine.set_volume_policy("v", &strict));
    stays_pending(&mut change);
    volume.info().verify
}

#[test]
fn a_change_of_policy_waits_for_the_comparisons_of_the_old_one() {
    let verify = policy_while_a_comparison_is_to_come();
    assert_eq!(verify, VerifyPolicy::Background);
}

#[test]
fn no_flush_vouches_when_a_write_failed_that_a_restart_may_find_with_the_content_of_its_twin() {
    let pool = Pool::weak();
    let fails = Arc::new(AtomicBool::new(false));
    let lies = fails.clone();
    // It has what it says it could not write.
    let media = HookedMedia::new(pool.media.clone(), move || {
        match lies.load(Ordering::Relaxed) {
            true => Err(io::Error::other("simulated failure")),
            false => Ok(()),
        }
    });
    let engine = pool.open_on(Arc::new(media));
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    let other = pool.create(&engine, "other", VerifyPolicy::Compare, "");
    with_background(&engine, async {
        pool.write(&volume, 0, &MANY).await;
        volume.flush().await.unwrap();
        fails.store(true, Ordering::Relaxed);
        let at = 3 * BLOCK_BYTES as u64;
        let (result, _) = volume.write(at, pool.data(&[99]), false).await;
        assert_eq!(result.unwrap_err().kind, ErrorKind::Unavailable);
        // Nobody sees anything of it yet.
        assert_eq!(pool.read(&volume, 0, 12).await, MANY);
        assert!(volume.flush().await.is_err());
        assert!(engine.flush().await.is_err());
        other.flush().await.unwrap();
    });
    drop((volume, other, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    let found = block_on(pool.read(&volume, 0, 12));
    assert_ne!(found[3], MANY[3], "the record was not there");
    assert_ne!(found[3], 99, "it had no twin");
    let rest = |found: &[u64]| [found[..3].to_vec(), found[4..].to_vec()].concat();
    assert_eq!(rest(&found), rest(&MANY));
    // What is written now is told as ever.
    block_on(pool.write(&volume, 3, &[99]));
    block_on(volume.flush()).unwrap();
    assert_eq!(block_on(pool.read(&volume, 3, 1)), [99]);
    hooks::limit_fingerprints(None);
}

#[test]
fn when_nobody_compares_in_the_background_or_its_memory_is_full_a_write_compares_for_itself() {
    let pool = Pool::weak();
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Background, "");
    block_on(pool.write(&volume, 0, &MANY));
    block_on(pool.write(&volume, 20, &[90, 91, 92]));
    assert_eq!(block_on(pool.read(&volume, 0, 12)), MANY);
    assert_eq!(block_on(pool.read(&volume, 20, 3)), [90, 91, 92]);
    assert_eq!(engine.status().verify.waiting_bytes, 0);
    hooks::limit_fingerprints(None);
}

#[test]
fn a_twin_that_cannot_be_read_or_is_damaged_costs_a_block_and_no_data() {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volume = pool.create(&engine, "v", VerifyPolicy::Compare, "");
    block_on(pool.write(&volume, 0, &[1, 2]));
    // Another content appears where the first one was written.
    let drive = pool.drive.borrow().clone();
    let extent = [drives::Extent {
        block: LABEL_BLOCKS,
        buffer_offset: 0,
        blocks: 1,
    }];
    let (result, _) = block_on(drive.write(pool.data(&[77]), &extent));
    result.unwrap();
    block_on(pool.write(&volume, 8, &[1, 2]));
    assert_eq!(block_on(pool.read(&volume, 8, 2)), [1, 2]);
    assert_eq!(used_blocks(&engine), 3);
    let status = engine.status();
    assert_eq!((status.damaged_blocks, status.verify.collisions), (1, 0));
}

#[test]
fn domains_share_nothing_and_every_one_is_proven_by_its_own_key() {
    hooks::limit_fingerprints(None);
    let pool = Pool::new(200);
    let engine = pool.open();
    let volumes = [
        ("a", ""),
        ("b", ""),
        ("c", "tenant"),
        ("d", "tenant"),
        ("e", "other"),
    ]
    .map(|(name, domain)| pool.create(&engine, name, VerifyPolicy::Trust, domain));
    for (at, volume) in volumes.iter().enumerate() {
        block_on(pool.write(volume, at as u64, &[1, 2, 3]));
    }
    // Three domains, three copies; also when they come in one batch.
    assert_eq!(used_blocks(&engine), 9);
    let pool_ref = &pool;
    block_on(join_all(
        volumes
            .iter()
            .map(|volume| pool_ref.write(volume, 10, &[4])),
    ));
    assert_eq!(used_blocks(&engine), 12);
    // A crash before any flush: recovery proves each by the key of its volume.
    drop((volumes, engine));
    let drive = pool.drive.borrow().restart(FaultPlan::default());
    *pool.drive.borrow_mut() = Arc::new(drive);
    let engine = pool.open();
    assert_eq!(
        hooks::last_opening().unproven,
        0,
        "a sub-block was taken back"
    );
    for (at, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let volume = engine.volume(name).unwrap();
        assert_eq!(block_on(pool.read(&volume, at as u64, 3)), [1, 2, 3]);
        assert_eq!(block_on(pool.read(&volume, 10, 1)), [4]);
    }
    block_on(engine.load()).unwrap();
    assert_eq!(used_blocks(&engine), 12);
    // The scrub's way of looking finds all of them well, and a domain's twin is found again.
    let hashers = engine.shared.domains.in_use();
    let state = crate::sync::wait::lock(&engine.shared.state);
    let blocks: Vec<_> = state.blocks.iter().collect();
    drop(state);
    for (pba, info) in blocks {
        let buf = pool.buffers.try_alloc(BLOCK_BYTES).unwrap();
        let (verdict, _) = block_on(examine(&engine.shared, pba, &info, buf));
        assert_eq!(
            verdict,
            crate::background::healing::Verdict::Good,
            "block {pba}"
        );
    }
    drop(hashers);
    let volume = engine.volume("d").unwrap();
    block_on(pool.write(&volume, 30, &[1, 2, 3, 4]));
    assert_eq!(used_blocks(&engine), 12);
    assert_eq!(engine.status().damaged_blocks, 0);
}
