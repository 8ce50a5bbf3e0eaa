//! Pools of a few drives in memory, for stories that go step by step.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, Drive};
use meta::{Compression, JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

use crate::{BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, Volume, VolumeSpec};

/// One step of a future: its value, when it is done.
pub(super) fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// All steps of a future.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    (0..1_000_000)
        .find_map(|_| poll(future.as_mut()))
        .expect("it waits for something that does not come")
}

/// Blocks of these bytes.
pub(super) fn data(pool: &BufferPool, contents: &[u8]) -> Buffer {
    let mut buf = pool.try_alloc(contents.len() * BLOCK_BYTES).unwrap();
    for (block, content) in buf.chunks_exact_mut(BLOCK_BYTES).zip(contents) {
        block.fill(*content);
    }
    buf
}

/// A pool on these drives, with the media of its journal, and an empty volume `v`.
pub(super) fn open(
    drives: Vec<Arc<dyn Drive>>,
    store: Arc<MemoryStore>,
) -> (Arc<Engine>, Arc<Volume>, Arc<MemoryMedia>) {
    let media = Arc::new(MemoryMedia::new(4 << 20));
    let parts = EngineParts {
        drives,
        journal: media.clone(),
        store,
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
    (engine, volume, media)
}
