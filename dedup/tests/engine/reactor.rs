//! The engine where it lives: on a reactor, with a drive file, a journal file, RocksDB on helper
//! threads, and background maintenance.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dedup::{Blocking, Engine, EngineConfig, EngineParts, VolumeSpec};
use drives::{BLOCK_BYTES, FileDrive};
use futures_util::future::join_all;
use meta::{DriveSpec, PoolDir, PoolSpec, RocksOptions, VerifyPolicy};
use reactor::BufferPool;

const BLOCKS: u64 = 4096;

async fn open(pool: &PoolDir) -> Arc<Engine> {
    let options = drives::OpenOptions {
        create_bytes: Some(BLOCKS * BLOCK_BYTES as u64),
        ..drives::OpenOptions::default()
    };
    let drive = FileDrive::open(pool.drive_path(0).unwrap(), &options).unwrap();
    Engine::open(EngineParts {
        drives: vec![Arc::new(drive)],
        journal: Arc::new(pool.open_journal().unwrap()),
        store: Arc::new(pool.open_store(RocksOptions::default()).unwrap()),
        hash_keys: pool.identity().hash_keys.clone(),
        fingerprint: pool.identity().fingerprint,
        blocking: Blocking::Threads,
        boot: None,
        config: EngineConfig {
            flush_interval: Duration::from_millis(50),
            checkpoint_interval: Duration::from_millis(50),
            ..EngineConfig::default()
        },
    })
    .await
    .unwrap()
}

fn create(dir: &Path) -> PoolDir {
    let drives = vec![DriveSpec::new("drive0", BLOCKS)];
    let spec = PoolSpec {
        journal_bytes: 4 << 20,
        ..PoolSpec::new(drives)
    };
    PoolDir::create(dir, &spec).unwrap()
}

/// Waits until the engine's figures are as wanted.
async fn until(engine: &Engine, is_wanted: impl Fn(&dedup::PoolStatus) -> bool) {
    let wait = async {
        while !is_wanted(&engine.status()) {
            reactor::sleep(Duration::from_millis(10)).await;
        }
    };
    reactor::timeout(Duration::from_secs(30), wait)
        .await
        .expect("background work does nothing");
}

fn run<F: Future>(future: F) -> F::Output {
    reactor::run(reactor::Config::default(), future).unwrap()
}

#[test]
fn background_work_flushes_checkpoints_and_frees_without_being_asked() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path());
    run(async {
        let engine = open(&pool).await;
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        let spec = VolumeSpec {
            name: "v".to_owned(),
            size_bytes: 64 << 20,
            lba_bytes: 4096,
            nsid: None,
            uuid: None,
            dedup: true,
            compression: meta::Compression::Off,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
        };
        let volume = engine.create_volume(spec).await.unwrap();
        let buffers = BufferPool::new(16 << 20).unwrap();
        let writes = (0..64u64).map(|at| {
            let (volume, buffers) = (&volume, &buffers);
            async move {
                let mut buf = buffers.alloc(32 * BLOCK_BYTES).await;
                for (number, block) in buf.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                    block.fill(0);
                    // Every content twice: once in the first half, once in the second.
                    let content = at % 32 * 32 + number as u64 + 1;
                    block[..8].copy_from_slice(&content.to_le_bytes());
                }
                volume
                    .write(at * 32 * BLOCK_BYTES as u64, buf, at % 16 == 0)
                    .await
                    .0
            }
        });
        for result in join_all(writes).await {
            result.unwrap();
        }
        let grain = BLOCK_BYTES as u64;
        assert_eq!(engine.status().used_bytes, 1024 * grain);
        assert_eq!(engine.status().logical_bytes, 2048 * grain);
        until(&engine, |status| status.unflushed_bytes == 0).await;

        let buf = buffers.alloc(256 * BLOCK_BYTES).await;
        let (result, buf) = volume.read(32 * 32 * grain, buf).await;
        result.unwrap();
        for (number, block) in buf.chunks_exact(BLOCK_BYTES).enumerate() {
            assert_eq!(block[..8], (number as u64 + 1).to_le_bytes());
        }
        engine.delete_volume("v").await.unwrap();
        until(&engine, |status| status.free_bytes == status.capacity_bytes).await;
        engine.shutdown().await.unwrap();
        maintenance.await.unwrap();
    });
    // The next process finds nothing to do.
    run(async {
        let engine = open(&pool).await;
        assert_eq!(engine.status().used_bytes, 0);
        assert!(engine.volumes().is_empty());
    });
}
