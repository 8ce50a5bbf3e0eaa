//! A story of a fork that is not durable yet.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Compression, JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

use super::bring_near;
use crate::ablation::{Broken, set};
use crate::sync::wait::lock;
use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, LABEL_BLOCKS, VolumeSpec,
};

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    (0..1_000_000)
        .find_map(|_| poll(future.as_mut()))
        .expect("it waits for something that does not come")
}

fn data(pool: &BufferPool, contents: &[u8]) -> Buffer {
    let mut buf = pool.try_alloc(contents.len() * BLOCK_BYTES).unwrap();
    for (block, content) in buf.chunks_exact_mut(BLOCK_BYTES).zip(contents) {
        block.fill(*content);
    }
    buf
}

/// Whether a page of a fork is copied before what it refers to is on stable drives. The drive's operations take as long
/// as follows from the seed.
fn is_copied_early(seed: u64) -> bool {
    let plan = FaultPlan {
        seed,
        max_delay: 50,
        ..FaultPlan::default()
    };
    let pool = BufferPool::new(8 << 20).unwrap();
    let parts = EngineParts {
        drives: vec![Arc::new(FaultDrive::new(LABEL_BLOCKS + 200, plan))],
        journal: Arc::new(MemoryMedia::new(4 << 20)),
        store: Arc::new(MemoryStore::new()),
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
    let engine = block_on(Engine::open(parts)).unwrap();
    let spec = VolumeSpec {
        name: "v".to_owned(),
        size_bytes: 64 * BLOCK_BYTES as u64,
        lba_bytes: 4096,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    };
    let volume = block_on(engine.create_volume(spec)).unwrap();
    let (result, _) = block_on(volume.write(0, data(&pool, &[1, 2, 3]), false));
    result.unwrap();
    let mut fork = pin!(engine.clone_volume("v", "c", None));
    while engine.volume("c").is_none() {
        assert!(poll(fork.as_mut()).is_none());
    }
    let core = {
        let state = lock(&engine.shared.state);
        let mut volumes = state.volumes.values();
        let entry = volumes.find(|entry| &*entry.info.name == "v");
        entry.unwrap().core.clone()
    };
    let since = core.inherits_since().expect("it was forked");
    let mut copy = pin!(bring_near(&engine.shared, &core, 0));
    let mut is_forked = false;
    loop {
        let is_copied = poll(copy.as_mut()).map(Result::unwrap).is_some();
        let state = lock(&engine.shared.state);
        let mapped = state.map(core.map()).map(|map| map.mapped());
        assert!(!is_copied || mapped == Some(3), "nothing was copied");
        if mapped == Some(3) {
            return state.flushed < since;
        }
        drop(state);
        if !is_forked {
            is_forked = poll(fork.as_mut()).map(Result::unwrap).is_some();
        }
    }
}

#[test]
fn what_a_fork_is_given_of_its_own_is_on_stable_drives_before() {
    assert!((0..50).all(|seed| !is_copied_early(seed)));
    set(Some(Broken::CopyUnflushed));
    let is_noticed = (0..50).any(is_copied_early);
    set(None);
    assert!(is_noticed, "the rule was broken, and nothing came of it");
}
