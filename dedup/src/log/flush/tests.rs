//! Who waits for which flush.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{
    Compression, FingerprintFunction, JournalMedia, MemoryMedia, MemoryStore, VerifyPolicy,
};
use reactor::{Buffer, BufferPool, Config};

use super::{flush_and_note, flush_upto};
use crate::sync::wait::lock;
use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, LABEL_BLOCKS, Volume, VolumeSpec,
};

/// Polls a future some times, as long as it can get on without anybody else.
fn settled<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    let mut context = Context::from_waker(Waker::noop());
    let mut polls = (0..1000).map(|_| future.as_mut().poll(&mut context));
    polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
}

fn done<T>(future: impl Future<Output = T>) -> T {
    match settled(pin!(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits for something that does not come"),
    }
}

fn engine(write_through: bool) -> Arc<Engine> {
    let drive = FaultDrive::new(LABEL_BLOCKS + 64, FaultPlan::default());
    let journal = Arc::new(MemoryMedia::new(4 << 20));
    engine_of(write_through, Arc::new(drive), journal, Arc::default())
}

fn engine_of(
    write_through: bool,
    drive: Arc<FaultDrive>,
    journal: Arc<dyn JournalMedia>,
    store: Arc<MemoryStore>,
) -> Arc<Engine> {
    done(Engine::open(EngineParts {
        drives: vec![drive],
        journal,
        store,
        hash_keys: [5; 32].into(),
        fingerprint: FingerprintFunction::Blake3,
        blocking: Blocking::Inline,
        boot: None,
        config: EngineConfig {
            bounce_bytes: BOUNCE_BYTES_MIN,
            write_through,
            ..EngineConfig::default()
        },
    }))
    .expect("it opens")
}

fn volume_of(engine: &Engine) -> Arc<Volume> {
    let volume = done(engine.create_volume(VolumeSpec {
        name: "v".into(),
        size_bytes: 64 * BLOCK_BYTES as u64,
        lba_bytes: 4096,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    }));
    volume.expect("a volume")
}

fn filled(buffers: &BufferPool, with: u8) -> Buffer {
    let mut buffer = buffers.try_alloc(BLOCK_BYTES).expect("room");
    buffer.fill(with);
    buffer
}

#[test]
fn what_one_flush_made_durable_does_not_wait_for_the_next_one() {
    let engine = engine(false);
    let shared = &engine.shared;
    let volume = volume_of(&engine);
    let buffers = BufferPool::new(1 << 20).expect("memory");
    done(volume.write(0, filled(&buffers, 7), false))
        .0
        .expect("written");
    let target = lock(&shared.state).installed();
    assert!(lock(&shared.state).durable < target);
    // A flush is under way, and another one takes its place at once.
    let others = done(shared.flush_lock.clone().lock_owned());
    let mut waiting = pin!(flush_upto(shared, target));
    assert!(settled(waiting.as_mut()).is_pending());
    lock(&shared.state).set_durable(target);
    shared.durable.reach(target);
    assert!(
        settled(waiting.as_mut()).is_ready(),
        "it waits for a flush that it does not need"
    );
    drop(others);
}

/// Where the volume is far from the beginning: in another region.
const FAR: u64 = 40 * BLOCK_BYTES as u64;

#[test]
fn in_a_pool_that_writes_through_hosts_read_only_what_is_durable() {
    let engine = engine(true);
    let shared = &engine.shared;
    let volume = volume_of(&engine);
    let buffers = BufferPool::new(1 << 20).expect("memory");
    let written = |offset, with| {
        done(volume.write(offset, filled(&buffers, with), false))
            .0
            .expect("written");
    };
    written(0, 1);
    written(FAR, 2);
    // Something else keeps flushes waiting.
    let others = done(shared.flush_lock.clone().lock_owned());
    let mut write = Box::pin(volume.write(0, filled(&buffers, 7), false));
    assert!(settled(write.as_mut()).is_pending());
    let mut read = pin!(volume.read(0, filled(&buffers, 0)));
    assert!(settled(read.as_mut()).is_pending(), "it saw the write");
    let mut compare = pin!(volume.compare(0, filled(&buffers, 7)));
    assert!(settled(compare.as_mut()).is_pending(), "it saw the write");
    let (old, new) = (vec![1; BLOCK_BYTES], vec![2; BLOCK_BYTES]);
    let mut exchange = pin!(volume.compare_and_write(0, &old, &new, false));
    assert!(settled(exchange.as_mut()).is_pending(), "it saw the write");
    let (result, found) = done(volume.read(FAR, filled(&buffers, 0)));
    result.expect("nothing there waits for a flush");
    assert_eq!(found[..], [2; BLOCK_BYTES]);
    // The host of the write is gone. Who reads makes durable what it left.
    drop(write);
    drop(others);
    let (result, found) = done(read);
    result.expect("durable");
    assert_eq!(found[..], [7; BLOCK_BYTES]);
    assert!(done(compare).0.expect("durable"));
    assert!(!done(exchange).expect("durable"));
    let state = lock(&shared.state);
    assert!(state.durable >= state.installed());
}

#[test]
fn what_a_trim_or_a_rollback_made_of_a_volume_is_read_when_it_is_durable() {
    let engine = engine(true);
    let shared = &engine.shared;
    let volume = volume_of(&engine);
    let buffers = BufferPool::new(1 << 20).expect("memory");
    let is_waiting = || {
        let mut read = pin!(volume.read(0, filled(&buffers, 0)));
        settled(read.as_mut()).is_pending()
    };
    done(volume.write(0, filled(&buffers, 7), false))
        .0
        .expect("written");
    done(engine.create_snapshots(&["v@before"], 1)).expect("a snapshot");
    assert!(!is_waiting());
    {
        let _others = done(shared.flush_lock.clone().lock_owned());
        let mut trim = pin!(volume.trim(0, BLOCK_BYTES as u64));
        assert!(settled(trim.as_mut()).is_pending());
        assert!(is_waiting(), "of the trim");
    }
    done(volume.flush()).expect("durable");
    assert!(!is_waiting());
    let _others = done(shared.flush_lock.clone().lock_owned());
    let mut rollback = pin!(engine.rollback("v@before"));
    assert!(settled(rollback.as_mut()).is_pending());
    assert!(is_waiting(), "of the rollback");
}

/// A journal whose syncs flush the data too, or do not end well.
struct WithData {
    inner: Arc<MemoryMedia>,
    drive: Arc<FaultDrive>,
    fails: AtomicBool,
    syncs: AtomicU64,
}

impl WithData {
    fn new(inner: &Arc<MemoryMedia>, drive: &Arc<FaultDrive>) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            drive: drive.clone(),
            fails: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
        })
    }
}

impl JournalMedia for WithData {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn sync(&self) -> std::io::Result<()> {
        if self.fails.load(Ordering::Relaxed) || !self.drive.flush_now() {
            return Err(std::io::Error::other("the process is dead"));
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync()
    }

    fn flushes_data(&self) -> bool {
        true
    }
}

/// A write is flushed, and the process dies in the flush of the next one. What a host reads then.
pub(crate) fn read_after_a_sync_that_failed(seed: u64) -> Result<u8, crate::EngineError> {
    let plan = FaultPlan {
        seed,
        ..FaultPlan::default()
    };
    let drive = Arc::new(FaultDrive::new(LABEL_BLOCKS + 64, plan.clone()));
    let (inner, store) = (Arc::new(MemoryMedia::new(4 << 20)), Arc::default());
    let journal = WithData::new(&inner, &drive);
    let engine = engine_of(true, drive.clone(), journal.clone(), Arc::clone(&store));
    let volume = volume_of(&engine);
    let buffers = BufferPool::new(1 << 20).expect("memory");
    let write = |with| done(volume.write(0, filled(&buffers, with), false)).0;
    write(1).expect("written");
    {
        let shared = &engine.shared;
        let installed = lock(&shared.state).installed();
        assert!(shared.durable.has_reached(installed), "it is acknowledged");
        assert!(
            lock(&shared.state).durable < installed,
            "blocks that it freed wait for the next sync"
        );
        done(flush_and_note(shared)).expect("flushed");
        assert!(lock(&shared.state).durable >= installed);
    }
    journal.fails.store(true, Ordering::Relaxed);
    write(2).expect_err("the process dies");
    drop(volume);
    drop(engine);
    let drive = Arc::new(drive.crash(plan));
    let journal = WithData::new(&inner, &drive);
    let engine = engine_of(true, drive, journal, store);
    let volume = engine.volume("v").expect("it is there");
    let (result, found) = done(volume.read(0, filled(&buffers, 0)));
    result.map(|()| found[0])
}

#[test]
fn what_the_journal_has_and_a_process_lost_from_memory_is_as_if_it_was_never_written() {
    let found = (0..16).map(|seed| read_after_a_sync_that_failed(seed).expect("it can be read"));
    let found: Vec<u8> = found.collect();
    assert!(
        found.contains(&1),
        "the last write is lost now and then: {found:?}"
    );
    assert!(found.iter().all(|byte| [1, 2].contains(byte)), "{found:?}");
}

#[test]
fn a_flush_waits_for_the_writes_that_the_last_one_acknowledged_and_takes_them_along() {
    let drive = Arc::new(FaultDrive::new(LABEL_BLOCKS + 64, FaultPlan::default()));
    let journal = WithData::new(&Arc::new(MemoryMedia::new(4 << 20)), &drive);
    let engine = engine_of(true, drive, journal.clone(), Arc::default());
    let volume = volume_of(&engine);
    let buffers = BufferPool::new(1 << 20).expect("memory");
    let syncs = || journal.syncs.load(Ordering::Relaxed);
    let before = syncs();
    let both = async {
        let soon = reactor::now() + Duration::from_secs(60);
        engine.shared.rounds.acknowledged(2, soon);
        let mut first = Box::pin(volume.write(0, filled(&buffers, 1), false));
        assert!(settled(first.as_mut()).is_pending());
        assert_eq!(syncs(), before, "the other one was not awaited");
        let second = volume.write(FAR, filled(&buffers, 2), false);
        let (first, second) = futures_util::future::join(first, second).await;
        first.0.expect("durable");
        second.0.expect("durable");
    };
    reactor::run(Config::default(), both).expect("a reactor");
    assert_eq!(syncs(), before + 1, "one flush for both");
}
