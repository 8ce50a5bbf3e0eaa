//! Who waits for which flush.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Compression, FingerprintFunction, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::BufferPool;

use super::flush_upto;
use crate::sync::wait::lock;
use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, LABEL_BLOCKS, VolumeSpec,
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

fn engine() -> Arc<Engine> {
    let drive = FaultDrive::new(LABEL_BLOCKS + 64, FaultPlan::default());
    done(Engine::open(EngineParts {
        drives: vec![Arc::new(drive)],
        journal: Arc::new(MemoryMedia::new(4 << 20)),
        store: Arc::new(MemoryStore::new()),
        hash_keys: [5; 32].into(),
        fingerprint: FingerprintFunction::Blake3,
        blocking: Blocking::Inline,
        boot: None,
        config: EngineConfig {
            bounce_bytes: BOUNCE_BYTES_MIN,
            ..EngineConfig::default()
        },
    }))
    .expect("it opens")
}

#[test]
fn what_one_flush_made_durable_does_not_wait_for_the_next_one() {
    let engine = engine();
    let shared = &engine.shared;
    let volume = done(engine.create_volume(VolumeSpec {
        name: "v".into(),
        size_bytes: 16 * BLOCK_BYTES as u64,
        lba_bytes: 4096,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    }));
    let volume = volume.expect("a volume");
    let buffers = BufferPool::new(1 << 20).expect("memory");
    let mut buffer = buffers.try_alloc(BLOCK_BYTES).expect("room");
    buffer.fill(7);
    done(volume.write(0, buffer, false)).0.expect("written");
    let target = lock(&shared.state).installed;
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
