//! Who waits for whom when the journal is nearly full.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Compression, FingerprintFunction, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, LABEL_BLOCKS, Result, Volume,
    VolumeSpec,
};

const BLOCKS: u64 = 512;

/// Changes that the journal holds until they are in the store.
const CHANGES_MAX: u64 = 80;

/// Polls a future some times, as long as it can get on without anybody else.
fn settled<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    for _ in 0..1000 {
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_ready() {
            return polled;
        }
    }
    Poll::Pending
}

#[track_caller]
fn done<T>(future: impl Future<Output = T>) -> T {
    match settled(pin!(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits for something that does not come"),
    }
}

fn engine() -> Arc<Engine> {
    let parts = EngineParts {
        drives: vec![Arc::new(FaultDrive::new(
            LABEL_BLOCKS + 2 * BLOCKS,
            FaultPlan::default(),
        ))],
        journal: Arc::new(MemoryMedia::new(4 << 20)),
        store: Arc::new(MemoryStore::new()),
        hash_keys: [5; 32].into(),
        fingerprint: FingerprintFunction::Blake3,
        blocking: Blocking::Yielding,
        boot: None,
        config: EngineConfig {
            bounce_bytes: BOUNCE_BYTES_MIN,
            replay_entries_max: CHANGES_MAX,
            ..EngineConfig::default()
        },
    };
    done(Engine::open(parts)).unwrap()
}

fn block(buffers: &BufferPool, content: u64) -> Buffer {
    let mut buffer = done(buffers.alloc(BLOCK_BYTES));
    buffer.fill(0);
    buffer[..8].copy_from_slice(&content.to_le_bytes());
    buffer
}

/// Writes a block that has its number as its content.
async fn write(volume: &Volume, buffers: &BufferPool, at: u64) -> Result<()> {
    let buffer = block(buffers, at + 1);
    volume.write(at * BLOCK_BYTES as u64, buffer, false).await.0
}

#[test]
fn reads_and_snapshots_do_not_wait_for_writes_that_wait_for_room_in_the_journal() {
    let engine = engine();
    let buffers = BufferPool::new(8 << 20).unwrap();
    let spec = VolumeSpec {
        name: "v".into(),
        size_bytes: BLOCKS * BLOCK_BYTES as u64,
        lba_bytes: 4096,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    };
    let volume = done(engine.create_volume(spec)).unwrap();
    // Nothing reaches the store as long as this is held.
    let no_checkpoint = done(engine.shared.checkpoint_lock.lock());
    let mut waiting = Vec::new();
    for at in 0..CHANGES_MAX + 20 {
        let mut write = Box::pin(write(&volume, &buffers, at));
        if settled(write.as_mut()).is_pending() {
            waiting.push((at, write));
        }
    }
    let (first, _) = waiting.first().expect("the journal is nearly full");
    assert!((CHANGES_MAX / 2..CHANGES_MAX).contains(first), "{first}");
    let read = |at: u64| {
        let (result, buffer) = done(volume.read(at * BLOCK_BYTES as u64, block(&buffers, 0)));
        result.map(|()| u64::from_le_bytes(*buffer.first_chunk().expect("a block")))
    };
    for (at, _) in &waiting {
        assert_eq!(read(*at).unwrap(), 0, "what {at} had before");
    }
    done(engine.create_snapshots(&["v@s"], 0)).unwrap();
    assert_eq!(read(first - 1).unwrap(), *first);

    drop(no_checkpoint);
    let last = CHANGES_MAX + 19;
    for (at, write) in waiting {
        done(write).unwrap();
        assert_eq!(read(at).unwrap(), at + 1);
    }
    let snapshot = engine.volume("v@s").unwrap();
    let offset = last * BLOCK_BYTES as u64;
    let (result, buffer) = done(snapshot.read(offset, block(&buffers, 7)));
    result.unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0), "it was not written");
}
