//! A story of a fork that is not durable yet.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Compression, JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

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

/// Whether a write to a page that a fork left behind is acknowledged before what the page refers to is on stable drives.
/// The drive's operations take as long as follows from the seed.
fn is_acknowledged_early(seed: u64) -> bool {
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
        hash_key: [5; 32],
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
    // What it writes is there already: it waits for no drive of its own.
    let mut write = pin!(volume.write(0, data(&pool, &[3]), false));
    loop {
        if let Some(forked) = poll(fork.as_mut()) {
            forked.unwrap();
            return false;
        }
        if engine.volume("c").is_none() {
            continue;
        }
        if let Some((result, _)) = poll(write.as_mut()) {
            result.unwrap();
            let state = lock(&engine.shared.state);
            let entry = state
                .volumes
                .values()
                .find(|entry| &*entry.info.name == "v");
            let since = entry.unwrap().core.inherits_since();
            return state.flushed < since.expect("it was forked");
        }
    }
}

#[test]
fn a_write_to_a_fork_waits_until_what_it_copies_is_on_stable_drives() {
    assert!((0..50).all(|seed| !is_acknowledged_early(seed)));
    set(Some(Broken::CopyUnflushed));
    let is_noticed = (0..50).any(is_acknowledged_early);
    set(None);
    assert!(is_noticed, "the rule was broken, and nothing came of it");
}
