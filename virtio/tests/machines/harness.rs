//! A pool in memory, a reactor that serves its volumes, and an export of one.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dedup::{Blocking, Engine, EngineConfig, EngineParts, VolumeSpec};
use drives::MemoryDrive;
use meta::{MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::ReactorThread;
use subsystem::catalog::{Catalog, ExportConfig, ExportKind};
use subsystem::limits::Limits;
use subsystem::target::{Pool, Target, TargetParts};
use tempfile::TempDir;
use uuid::Uuid;
use virtio::{Parts, Server};

/// How long a story waits for what must happen: never the measure of anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the volume.
pub(crate) const VOLUME_BYTES: u64 = 64 << 20;

/// The export's number.
pub(crate) const EXPORT: u16 = 7;

pub(crate) struct Lab {
    server: Option<Server>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) target: Arc<Target>,
    reactor: ReactorThread,
    folder: TempDir,
}

/// Waits for what must happen.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < limit, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Runs work on a reactor, and waits for it.
pub(crate) fn on<T, F, Fut>(reactor: &reactor::Handle, work: F) -> T
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let (done, is_done) = mpsc::channel();
    drop(reactor.spawn(move || async move {
        done.send(work().await).expect("somebody waits");
    }));
    is_done.recv_timeout(PATIENCE).expect("the work is done")
}

impl Lab {
    pub(crate) fn new(lba_bytes: u32) -> Self {
        let config = reactor::Config {
            name: "guests".into(),
            ..reactor::Config::default()
        };
        let reactor = reactor::start(config).expect("a reactor");
        let (engine, target) = on(&reactor.handle(), move || open(lba_bytes));
        let mut lab = Self {
            server: None,
            engine,
            target,
            reactor,
            folder: tempfile::tempdir().expect("a folder"),
        };
        lab.serve();
        lab
    }

    pub(crate) fn path(&self) -> String {
        self.folder.path().join("disk.sock").display().to_string()
    }

    /// Serves the export, from now on by a new server.
    pub(crate) fn serve(&mut self) {
        self.server = None;
        let parts = Parts {
            target: self.target.clone(),
            export: EXPORT,
            path: self.path(),
            reactors: vec![self.reactor.handle()],
        };
        self.server = Some(Server::start(parts).expect("a server"));
    }

    /// Serves the same volume by one more export.
    pub(crate) fn serve_beside(&self, export: u16, path: &str) -> Server {
        let address = path.to_owned();
        self.change(move |catalog| {
            let first = catalog.exports.get(&EXPORT).expect("the first export");
            let beside = ExportConfig {
                id: export,
                address,
                ..ExportConfig::clone(first)
            };
            catalog.exports.insert(export, Arc::new(beside));
        });
        let parts = Parts {
            target: self.target.clone(),
            export,
            path: path.to_owned(),
            reactors: vec![self.reactor.handle()],
        };
        Server::start(parts).expect("a server")
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.server.as_ref().is_some_and(Server::is_connected)
    }

    pub(crate) fn on<T, F, Fut>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        on(&self.reactor.handle(), work)
    }

    /// Changes the configuration.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Catalog) + Send + 'static) {
        let target = self.target.clone();
        self.on(move || async move {
            let change = |catalog: &mut Catalog| {
                change(catalog);
                Ok(())
            };
            target.change(change).await.expect("a change");
        });
    }

    /// What a host would read of the volume, by NVMe.
    pub(crate) fn stored(&self, offset: u64, len: usize) -> Vec<u8> {
        let volume = self.engine.volume("disk").expect("the volume");
        self.on(move || async move {
            let buffers = reactor::current().expect("a reactor").buffers().clone();
            let buffer = buffers.alloc(len).await;
            let (result, buffer) = volume.read(offset, buffer).await;
            result.expect("a read");
            buffer.to_vec()
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The server's tasks are the reactor's.
        self.server = None;
    }
}

async fn open(lba_bytes: u32) -> (Arc<Engine>, Arc<Target>) {
    let parts = EngineParts {
        drives: vec![Arc::new(MemoryDrive::new(64 << 10))],
        journal: Arc::new(MemoryMedia::new(32 << 20)),
        store: Arc::new(MemoryStore::new()),
        hash_keys: [9; 32].into(),
        fingerprint: meta::FingerprintFunction::Clnh,
        blocking: Blocking::Inline,
        boot: None,
        config: EngineConfig::default(),
    };
    let engine = Engine::open(parts).await.expect("an engine");
    let target = Target::open(TargetParts {
        pool: Pool::Here(engine.clone()),
        pool_uuid: Uuid::from_u128(5),
        is_new_pool: true,
        listeners: Vec::new(),
        listeners_by_default: false,
        listeners_tls: Default::default(),
        limits: Limits::default(),
    });
    let target = target.expect("a target");
    let volume = Uuid::from_u128(0xabc);
    let spec = VolumeSpec {
        name: "disk".into(),
        size_bytes: VOLUME_BYTES,
        lba_bytes,
        nsid: None,
        uuid: Some(volume),
        dedup: true,
        compression: meta::Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    };
    engine.create_volume(spec).await.expect("a volume");
    let export = ExportConfig {
        id: EXPORT,
        volume,
        kind: ExportKind::Vhost,
        address: "/run/disk.sock".into(),
        read_only: false,
    };
    let add = |catalog: &mut Catalog| {
        catalog.exports.insert(EXPORT, Arc::new(export));
        Ok(())
    };
    target.change(add).await.expect("an export");
    (engine, target)
}
