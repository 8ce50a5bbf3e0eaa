//! A pool for a workload: a folder with journal and store on disk, an engine, two volumes, and one or two
//! data reactors on cores of their own.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dedup::{Blocking, Engine, EngineConfig, EngineParts, Hasher, Volume, VolumeSpec};
use drives::{BLOCK_BYTES, Drive};
use meta::{
    Batch, CheckReport, DriveSpec, PoolDir, PoolSpec, RocksOptions, RocksStore, Store, VerifyPolicy,
};
use reactor::{JoinHandle, PoolConfig, ReactorThread, SharedMemory, SharedPages};

use super::EngineBenchError;
use super::content::{Deck, Mix, Numbers};
use super::load::{Act, Goal, Load, Places, Run, Until, run};
use crate::machine;

/// Memory of a data reactor's buffers: two decks of them, and what drives take.
const BUFFER_BYTES: usize = 64 << 20;

/// What `--spin` takes at most.
const SPIN_MAX: Duration = Duration::from_millis(1);

/// The names of the data reactors' threads.
const DATA_NAMES: [&str; 2] = ["bench-data0", "bench-data1"];

/// Reactors for load, each bound to a core; everything else runs elsewhere if there is another core.
pub(crate) struct Cores {
    reactors: Vec<ReactorThread>,
    all: Vec<usize>,
    others: Vec<usize>,
}

impl Cores {
    /// One reactor on the first core; a second one, when asked for, on the next. Everything else is
    /// bound to the cores that are left, or to the last when none is.
    pub(crate) async fn start(count: usize) -> Result<Self, EngineBenchError> {
        Self::start_with(count, None, reactor::Config::default().spin).await
    }

    /// The same with buffers that servers of drives can map, and reactors that poll for as long as the daemon's may.
    pub(crate) async fn start_shared(count: usize) -> Result<Self, EngineBenchError> {
        let memory = SharedMemory::new(count * BUFFER_BYTES, SharedPages::Usual);
        let memory = memory.map_err(EngineBenchError::Reactor)?;
        Self::start_with(count, Some(memory), SPIN_MAX).await
    }

    async fn start_with(
        count: usize,
        shared: Option<SharedMemory>,
        spin: Duration,
    ) -> Result<Self, EngineBenchError> {
        let own = machine::cores();
        let mut reactors = Vec::new();
        for (index, name) in DATA_NAMES.iter().take(count).enumerate() {
            let config = reactor::Config {
                name: (*name).to_owned(),
                buffer_pool: PoolConfig {
                    bytes: BUFFER_BYTES,
                },
                shared_memory: shared.clone(),
                spin,
                ..reactor::Config::default()
            };
            let reactor = reactor::start(config).map_err(EngineBenchError::Reactor)?;
            let core = own[index % own.len()];
            on(
                &reactor,
                move || async move { machine::bind_thread(&[core]) },
            )
            .await?
            .map_err(EngineBenchError::Reactor)?;
            reactors.push(reactor);
        }
        let others = match own.get(count..) {
            Some(rest) if !rest.is_empty() => rest.to_vec(),
            _ => own[own.len() - 1..].to_vec(),
        };
        // This thread opens the pools and runs their background work; RocksDB's threads are born here.
        machine::bind_thread(&others).map_err(EngineBenchError::Reactor)?;
        Ok(Self {
            reactors,
            all: own,
            others,
        })
    }

    /// Sends helper threads to the other cores. They come and go: call it before a run.
    fn clear(&self) {
        machine::bind_helpers(&self.others);
    }

    /// Runs the load on the first reactor.
    pub(crate) async fn run(&self, load: Load) -> Result<Run, EngineBenchError> {
        self.clear();
        let start = machine::process_seconds();
        let run = on(&self.reactors[0], move || run_here(load, 1)).await??;
        Ok(with_helpers(run, start))
    }

    /// The same with as many buffers as commands, so that they stay in the caches of both sides as those of a front-end do.
    pub(crate) async fn run_with_few_buffers(&self, load: Load) -> Result<Run, EngineBenchError> {
        self.clear();
        let start = machine::process_seconds();
        let few = load.depth;
        let run = on(&self.reactors[0], move || run_with(load, 1, Some(few))).await??;
        Ok(with_helpers(run, start))
    }

    /// Runs two loads at the same time on the first reactor. The processor time of its thread is that of both.
    pub(super) async fn run_both(
        &self,
        one: Load,
        other: Load,
    ) -> Result<(Run, Run), EngineBenchError> {
        self.clear();
        let handle = self.reactors[0].handle();
        let other = handle.spawn(move || run_here(other, 2));
        let one = on(&self.reactors[0], move || run_here(one, 1)).await??;
        let other = other.await.map_err(|_| EngineBenchError::Stopped)??;
        Ok((one, other))
    }

    /// Runs the load on every reactor at the same time: commands of all, over the longest time.
    pub(super) async fn run_on_all(&self, load: Load) -> Result<Run, EngineBenchError> {
        self.clear();
        let start = machine::process_seconds();
        let running: Vec<_> = (1..)
            .zip(&self.reactors)
            .map(|(seed, reactor)| {
                let load = load.clone();
                reactor.handle().spawn(move || run_here(load, seed))
            })
            .collect();
        let mut all: Option<Run> = None;
        for run in running {
            let run = run.await.map_err(|_| EngineBenchError::Stopped)??;
            all = Some(match all {
                None => run,
                Some(sum) => Run {
                    commands: sum.commands + run.commands,
                    seconds: sum.seconds.max(run.seconds),
                    core_seconds: sum.core_seconds + run.core_seconds,
                    helper_seconds: 0.0,
                    p50_us: sum.p50_us.max(run.p50_us),
                    p99_us: sum.p99_us.max(run.p99_us),
                    within: sum.within,
                },
            });
        }
        let run = all.ok_or(EngineBenchError::Stopped)?;
        Ok(with_helpers(run, start))
    }

    /// Runs something else on the first reactor. Threads are bound to no core meanwhile, as in the daemon, except that
    /// one.
    pub(crate) async fn on_first<T, F, Fut>(&self, make: F) -> Result<T, EngineBenchError>
    where
        T: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        machine::bind_helpers(&self.all);
        on(&self.reactors[0], make).await
    }
}

/// Adds the processor time of the helper threads: that of the process since `start`, less that of the load's threads.
fn with_helpers(run: Run, start: f64) -> Run {
    let all = machine::process_seconds() - start;
    Run {
        helper_seconds: (all - run.core_seconds).max(0.0),
        ..run
    }
}

async fn on<T, F, Fut>(reactor: &ReactorThread, make: F) -> Result<T, EngineBenchError>
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let task = reactor.handle().spawn(make);
    task.await.map_err(|_| EngineBenchError::Stopped)
}

async fn run_here(load: Load, seed: u64) -> Result<Run, EngineBenchError> {
    run_with(load, seed, None).await
}

/// With so many buffers, or as many as do not fit a core's own caches.
async fn run_with(load: Load, seed: u64, few: Option<usize>) -> Result<Run, EngineBenchError> {
    let Some(reactor) = reactor::current() else {
        return Err(EngineBenchError::Stopped);
    };
    let (pool, bytes) = (reactor.buffers(), load.block_bytes);
    let (least, zeros) = (2 * load.depth, load.compressible);
    let deck = match few {
        Some(count) => Deck::of(pool, bytes, count, seed, zeros).await,
        None => Deck::new(pool, bytes, least, seed, zeros).await,
    };
    Ok(run(load, deck).await?)
}

/// An engine over its drives, its journal and store in a folder of their own.
pub(crate) struct Pool {
    pub(super) engine: Arc<Engine>,
    /// What the workloads write to.
    pub(super) volume: Arc<Volume>,
    pub(super) numbers: Arc<Numbers>,
    drives: Vec<Arc<dyn Drive>>,
    dir: PoolDir,
    config: EngineConfig,
    /// To see when the last user of the store is gone.
    store: Weak<RocksStore>,
    maintenance: JoinHandle<()>,
}

/// Contents `0..KNOWN_BLOCKS` lie on a volume that no workload overwrites: the duplicates are of them.
pub(super) const KNOWN_BLOCKS: u64 = 32 << 10;

/// How long a store may take to close its files.
const CLOSING_MS_MAX: u32 = 10_000;

pub(super) const KNOWN_VOLUME: &str = "known";
pub(super) const WORK_VOLUME: &str = "work";

impl Pool {
    /// Makes it in `folder`, with a volume of `volume_bytes`. The drive needs room for that, for the
    /// known contents, and for what is overwritten and not reusable yet.
    pub(crate) async fn create(
        folder: &Path,
        drive: Arc<dyn Drive>,
        volume_bytes: u64,
    ) -> Result<Self, EngineBenchError> {
        Self::create_with(folder, vec![drive], volume_bytes, EngineConfig::default()).await
    }

    /// As [`create`](Self::create), on several drives, with an engine that is not configured as usual.
    pub(super) async fn create_with(
        folder: &Path,
        drives: Vec<Arc<dyn Drive>>,
        volume_bytes: u64,
        config: EngineConfig,
    ) -> Result<Self, EngineBenchError> {
        let specs = drives.iter();
        let specs = specs.map(|drive| DriveSpec::new(drive.name(), drive.blocks()));
        let spec = PoolSpec {
            fingerprint: Hasher::suited(),
            ..PoolSpec::new(specs.collect())
        };
        let path: PathBuf = folder.to_path_buf();
        let dir = reactor::unblock(move || PoolDir::create(&path, &spec)).await?;
        let (engine, store) = open(&dir, &drives, &config).await?;
        for (name, size_bytes) in [
            (KNOWN_VOLUME, KNOWN_BLOCKS * BLOCK_BYTES as u64),
            (WORK_VOLUME, volume_bytes),
        ] {
            let spec = VolumeSpec {
                name: name.to_owned(),
                size_bytes,
                ..volume_spec()
            };
            engine.create_volume(spec).await?;
        }
        let volume = engine
            .volume(WORK_VOLUME)
            .ok_or(EngineBenchError::Stopped)?;
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        let numbers = Arc::new(Numbers::default());
        numbers.take(KNOWN_BLOCKS);
        Ok(Self {
            engine,
            volume,
            numbers,
            drives,
            dir,
            config,
            store,
            maintenance,
        })
    }

    /// Ends the engine as a crash of its process would, and opens the pool again. Gives the time from
    /// there until a sub-block was read and another content written to it.
    pub(super) async fn crash_and_open(self) -> Result<(Self, Duration), EngineBenchError> {
        let ended = self.end().await;
        let (dir, drives, config) = (&ended.dir, &ended.drives, &ended.config);
        let (start, (engine, store)) = once_closed(|| open(dir, drives, config)).await?;
        let pool = ended.with(engine, store)?;
        let reactor = reactor::current().ok_or(EngineBenchError::Stopped)?;
        // This reactor has few buffers: it makes no load.
        let deck = Deck::of(reactor.buffers(), BLOCK_BYTES, 1, 1, 0).await;
        let buf = deck.take().ok_or(EngineBenchError::Stopped)?;
        let volume = &pool.volume;
        let blocks = volume.info().size_bytes / BLOCK_BYTES as u64;
        let middle = blocks / 2 * BLOCK_BYTES as u64;
        let (read, mut buf) = volume.read(middle, buf).await;
        read?;
        deck.stamp(&mut buf, Mix::Unique, &pool.numbers, 0);
        volume.write(middle, buf, false).await.0?;
        let took = start.elapsed();
        Ok((pool, took))
    }

    /// Ends the engine, has the rows of its store checked with tables of so many bytes each, and opens the pool again. Gives how
    /// long each check took, what it found, and the bytes by which resident memory rose.
    pub(super) async fn check(
        self,
        memory_bytes: &[usize],
    ) -> Result<(Self, Vec<(Duration, CheckReport, u64)>), EngineBenchError> {
        let ended = self.end().await;
        let dir = &ended.dir;
        let open_store = || async { Ok(dir.open_store(RocksOptions::default())?) };
        let (_, store) = once_closed(open_store).await?;
        let pending = Batch::checkpoint_only(store.checkpoint()?);
        let mut checks = Vec::new();
        for memory_bytes in memory_bytes {
            let start = Instant::now();
            let check = || meta::check_with(&store, &pending, BLOCK_BYTES as u32, *memory_bytes);
            let (report, memory) = machine::resident_rise(check);
            checks.push((start.elapsed(), report?, memory));
        }
        drop(store);
        let (drives, config) = (&ended.drives, &ended.config);
        let (_, (engine, store)) = once_closed(|| open(dir, drives, config)).await?;
        Ok((ended.with(engine, store)?, checks))
    }

    /// Drops the engine as it is, and waits until nobody uses its store.
    async fn end(self) -> Ended {
        let Self {
            engine,
            volume,
            numbers,
            drives,
            dir,
            config,
            store,
            maintenance,
        } = self;
        maintenance.abort();
        let _ = maintenance.await;
        drop((engine, volume));
        // A checkpoint on a helper thread ends first: in a real crash it would end at once.
        while store.strong_count() > 0 {
            reactor::sleep(Duration::from_millis(1)).await;
        }
        Ended {
            numbers,
            drives,
            dir,
            config,
        }
    }

    /// A load on the work volume.
    pub(crate) fn load(&self, act: Act, places: Places, block_bytes: usize, depth: usize) -> Load {
        Load {
            goal: Goal::Volume(self.volume.clone()),
            act,
            places,
            block_bytes,
            compressible: 0,
            depth,
            range_bytes: self.volume.info().size_bytes,
            until: Until::Commands(0),
            numbers: self.numbers.clone(),
            windows: None,
        }
    }

    /// A load on the volume of the known contents.
    pub(super) fn load_on_known(
        &self,
        act: Act,
        places: Places,
        block_bytes: usize,
        depth: usize,
    ) -> Result<Load, EngineBenchError> {
        let volume = self.engine.volume(KNOWN_VOLUME);
        Ok(Load {
            goal: Goal::Volume(volume.ok_or(EngineBenchError::Stopped)?),
            range_bytes: KNOWN_BLOCKS * BLOCK_BYTES as u64,
            ..self.load(act, places, block_bytes, depth)
        })
    }

    /// Writes the known contents.
    pub(super) async fn write_known(&self, cores: &Cores) -> Result<(), EngineBenchError> {
        let block_bytes = 128 << 10;
        let act = Act::Write(Mix::InOrder { from: 0 });
        let mut load = self.load_on_known(act, Places::InOrder, block_bytes, 8)?;
        load.until = Until::Commands(load.range_bytes / block_bytes as u64);
        cores.run(load).await?;
        Ok(())
    }

    /// Fills the work volume in order with new contents.
    pub(crate) async fn fill(&self, cores: &Cores) -> Result<(), EngineBenchError> {
        let block_bytes = 128 << 10;
        let mut load = self.load(Act::Write(Mix::Unique), Places::InOrder, block_bytes, 8);
        load.until = Until::Commands(load.range_bytes / block_bytes as u64);
        cores.run(load).await?;
        Ok(())
    }

    /// Makes everything durable and stored, and ends the engine.
    pub(crate) async fn close(self) -> Result<(), EngineBenchError> {
        self.engine.shutdown().await?;
        let _ = self.maintenance.await;
        Ok(())
    }

    /// Drops the engine as it is: nothing is stored or flushed.
    pub(super) async fn discard(self) {
        self.maintenance.abort();
        let _ = self.maintenance.await;
    }
}

/// What is left of a pool whose engine has ended.
struct Ended {
    numbers: Arc<Numbers>,
    drives: Vec<Arc<dyn Drive>>,
    dir: PoolDir,
    config: EngineConfig,
}

impl Ended {
    fn with(self, engine: Arc<Engine>, store: Weak<RocksStore>) -> Result<Pool, EngineBenchError> {
        let volume = engine
            .volume(WORK_VOLUME)
            .ok_or(EngineBenchError::Stopped)?;
        let maintenance = reactor::spawn(engine.clone().run_maintenance());
        Ok(Pool {
            engine,
            volume,
            numbers: self.numbers,
            drives: self.drives,
            dir: self.dir,
            config: self.config,
            store,
            maintenance,
        })
    }
}

/// Opens what a store is part of. The last user of that store is gone before its files are closed. Gives the moment at which
/// the attempt began that opened it.
async fn once_closed<T, Fut>(open: impl Fn() -> Fut) -> Result<(Instant, T), EngineBenchError>
where
    Fut: Future<Output = Result<T, EngineBenchError>>,
{
    let mut attempts = 0;
    loop {
        let start = Instant::now();
        match open().await {
            Ok(opened) => return Ok((start, opened)),
            Err(EngineBenchError::Pool(_)) if attempts < CLOSING_MS_MAX => {
                attempts += 1;
                reactor::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A volume as the daemon makes it, but for its name and size.
pub(super) fn volume_spec() -> VolumeSpec {
    VolumeSpec {
        name: String::new(),
        size_bytes: 0,
        lba_bytes: BLOCK_BYTES as u32,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: meta::Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    }
}

async fn open(
    dir: &PoolDir,
    drives: &[Arc<dyn Drive>],
    config: &EngineConfig,
) -> Result<(Arc<Engine>, Weak<RocksStore>), EngineBenchError> {
    let store = Arc::new(dir.open_store(RocksOptions::default())?);
    let watch = Arc::downgrade(&store);
    let parts = EngineParts {
        drives: drives.to_vec(),
        journal: Arc::new(dir.open_journal()?),
        store,
        hash_keys: dir.identity().hash_keys.clone(),
        fingerprint: dir.identity().fingerprint,
        blocking: Blocking::Threads,
        boot: None,
        config: config.clone(),
    };
    Ok((Engine::open(parts).await?, watch))
}
