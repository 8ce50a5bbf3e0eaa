//! A story of mappings that hide others and are not on stable drives yet.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Compression, JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

use super::merge_slice;
use crate::ablation::{Broken, set};
use crate::sync::wait::lock;
use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, LABEL_BLOCKS, VolumeSpec,
};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut poll = || match future.as_mut().poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    };
    (0..1_000_000)
        .find_map(|_| poll())
        .expect("it waits for something that does not come")
}

fn data(pool: &BufferPool, content: u8) -> Buffer {
    let mut buf = pool.try_alloc(BLOCK_BYTES).unwrap();
    buf.fill(content);
    buf
}

/// Whether a parent loses what its only child hides before that is on stable drives.
fn is_dropped_early() -> bool {
    let pool = BufferPool::new(8 << 20).unwrap();
    let drive = FaultDrive::new(LABEL_BLOCKS + 200, FaultPlan::default());
    let parts = EngineParts {
        drives: vec![Arc::new(drive)],
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
    // So many records that what there is to merge is looked at again.
    let write = |content: u8| {
        for at in 0..8 {
            let (result, _) =
                block_on(volume.write(at * BLOCK_BYTES as u64, data(&pool, content), false));
            result.unwrap();
        }
    };
    write(1);
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    block_on(engine.delete_volume("v@a")).unwrap();
    block_on(engine.maintain()).unwrap();
    let of_parent = || {
        let state = lock(&engine.shared.state);
        let parents = state.ancestry.parents.values();
        parents.map(|parent| parent.map.mapped()).sum::<u64>()
    };
    assert_eq!(of_parent(), 8, "the volume's map has a parent");
    write(2);
    let written = lock(&engine.shared.state).last_change;
    while block_on(merge_slice(&engine.shared)).unwrap() {}
    assert_eq!(of_parent(), 0, "nothing was dropped");
    lock(&engine.shared.state).flushed < written
}

#[test]
fn what_hides_a_mapping_of_a_parent_is_on_stable_drives_before_that_goes() {
    assert!(!is_dropped_early());
    set(Some(Broken::DropUnflushed));
    let is_noticed = is_dropped_early();
    set(None);
    assert!(is_noticed, "the rule was broken, and nothing came of it");
}
