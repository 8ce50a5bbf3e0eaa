//! `onefold bench engine`: the engine without a network, each figure beside the machine's own limit.
//!
//! - One reactor on a core of its own makes all the load; checkpoints, RocksDB and helper threads run on
//!   the other cores, and their processor time is reported apart. With a second core, two reactors are
//!   measured beside one, in turn.
//! - The memory drive has its memory from the start, as the daemon's has (`serve --drive memory=SIZE`): the
//!   system's work for new memory would be most of what is measured.
//! - Journal and store are files in a folder on disk, configured as the daemon has them. The drive is
//!   memory where the table says so, and a file otherwise; its space has been written before.
//! - Every workload runs once to warm up and then several times; the median run is reported, with the
//!   least and the greatest.
//! - Contents never repeat unless a duplicate is meant (`content`).

mod content;
mod grid;
mod large;
mod limited;
mod limits;
pub(crate) mod load;
mod mirrors;
mod pool;
mod report;
mod small_cache;
mod snapshots;
mod stamp;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drives::{BLOCK_BYTES, Drive, DriveError, FileDrive, MemoryDrive, OpenOptions};

use crate::machine::Machine;
pub(crate) use content::{Mix, Numbers};
use load::{Act, Load, Places, Run, Until};
use pool::KNOWN_BLOCKS;
pub(crate) use pool::{Cores, Pool};

pub use limits::Limits;
pub use load::LoadError;
pub use report::{Goal, Locks, Report, Row, Unit};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// A short look, within 40 seconds, instead of careful figures.
    pub quick: bool,
    /// A folder on the file system that pools and drive files are made on.
    pub dir: PathBuf,
    /// Unique blocks for the figures of a large pool; `None` for the default of the mode.
    pub large_blocks: Option<u64>,
    /// Of [`WORKLOADS`], only these (and what they are held against); all if there is none.
    pub only: Vec<String>,
}

/// The workloads that can be chosen, in their order; `grid` are all figures of compression, `small-cache` those of a
/// volume whose map does not fit the memory for it, `snapshots` those of snapshots and clones of a full volume, `copy` those of copying a volume that was written in order,
/// `mirrors` those of two copies of all data, `large` those of a large pool.
pub const WORKLOADS: [&str; 17] = [
    "write-128k-unique",
    "read-128k",
    "write-128k-dup90",
    "write-4k-unique",
    "two-reactors-write-4k-unique",
    "read-4k",
    "write-4k-dup",
    "write-4k-qd1",
    "file-write-4k",
    "file-write-4k-qd128",
    "file-write-128k-dup90",
    "grid",
    "small-cache",
    "snapshots",
    "copy",
    "mirrors",
    "large",
];

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum EngineBenchError {
    /// The folder.
    #[error(
        "no folder for the benchmark can be made in '{dir}': {source}; name another with --dir"
    )]
    Folder {
        /// Where it was to be.
        dir: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A reactor could not be started, or not be bound to its core.
    #[error("a reactor cannot start: {0}")]
    Reactor(std::io::Error),
    /// The pool's folder.
    #[error(transparent)]
    Pool(#[from] meta::MetaError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] dedup::EngineError),
    /// A drive.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A run.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel's accounts.
    #[error("the bytes written cannot be counted: {0}")]
    Accounts(std::io::Error),
    /// The pool.
    #[error("the check of the benchmark's own pool found that it is wrong; tell the developers")]
    Inconsistent,
    /// An error of the benchmark.
    #[error("a reactor of the benchmark stopped before its work was done")]
    Stopped,
}

/// Sizes and times of a mode.
struct Plan {
    run_time: Duration,
    runs: usize,
    /// All runs together end by then, as far as runs can be made shorter.
    time_max: Duration,
    memory_drive_bytes: u64,
    memory_volume_bytes: u64,
    file_drive_bytes: u64,
    file_volume_bytes: u64,
    grid_volume_bytes: u64,
    small_cache_blocks: u64,
    mirrored_drive_bytes: u64,
    /// Whether the grid, the small cache and others that take long are measured without being asked for.
    has_long: bool,
    large_blocks: u64,
}

const MIB: u64 = 1 << 20;

const QUICK: Plan = Plan {
    run_time: Duration::from_millis(400),
    runs: 3,
    time_max: Duration::from_secs(32),
    memory_drive_bytes: 2048 * MIB,
    memory_volume_bytes: 512 * MIB,
    file_drive_bytes: 1024 * MIB,
    file_volume_bytes: 256 * MIB,
    grid_volume_bytes: 32 * MIB,
    small_cache_blocks: 1 << 20,
    mirrored_drive_bytes: 768 * MIB,
    // They take longer than the quick form may.
    has_long: false,
    large_blocks: 1 << 18,
};

const CAREFUL: Plan = Plan {
    run_time: Duration::from_secs(2),
    runs: 5,
    time_max: Duration::from_secs(3600),
    memory_drive_bytes: 6144 * MIB,
    memory_volume_bytes: 2048 * MIB,
    file_drive_bytes: 8192 * MIB,
    file_volume_bytes: 2048 * MIB,
    grid_volume_bytes: 256 * MIB,
    small_cache_blocks: 16 << 20,
    mirrored_drive_bytes: 2048 * MIB,
    has_long: true,
    large_blocks: 20_000_000,
};

/// Runs of all workloads together: what is left of the time is shared among those that are left.
const MEDIANS: usize = 17;

/// How long runs may take.
struct Budget {
    run_time: Duration,
    runs: usize,
    end: Instant,
    medians_left: Cell<usize>,
}

impl Budget {
    fn new(plan: &Plan) -> Self {
        Self {
            run_time: plan.run_time,
            runs: plan.runs,
            end: Instant::now() + plan.time_max,
            medians_left: Cell::new(MEDIANS),
        }
    }

    fn run_time(&self) -> Duration {
        let left = self.end.saturating_duration_since(Instant::now());
        // One more to warm up, and one with the clocks of the locks on.
        let runs = self.medians_left.get().max(1) * (self.runs + 2);
        let fair = left / runs as u32;
        let least = Duration::from_millis(50);
        self.run_time.min(fair.max(least))
    }
}

/// The median run of a load, and how far the runs lie apart.
struct Median {
    run: Run,
    least: f64,
    most: f64,
}

impl Median {
    fn per_second(&self) -> f64 {
        self.run.per_second()
    }

    fn commands(&self, name: &str) -> Row {
        self.row(name, 1.0, Unit::CommandsPerSecond)
    }

    fn bytes(&self, name: &str, block_bytes: usize) -> Row {
        self.row(name, block_bytes as f64, Unit::BytesPerSecond)
    }

    fn row(&self, name: &str, factor: f64, unit: Unit) -> Row {
        Row {
            range: Some([self.least * factor, self.most * factor]),
            ..Row::new(name, self.per_second() * factor, unit).of_run(&self.run)
        }
    }
}

/// One run to warm up, then some to measure.
async fn median_of(cores: &Cores, budget: &Budget, load: Load) -> Result<Median, EngineBenchError> {
    let time = budget.run_time();
    let timed = |time| Load {
        until: Until::Time(time),
        ..load.clone()
    };
    cores.run(timed(time / 2)).await?;
    let mut runs = Vec::new();
    for _ in 0..budget.runs {
        runs.push(cores.run(timed(time)).await?);
    }
    budget
        .medians_left
        .set(budget.medians_left.get().saturating_sub(1));
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let (least, most) = (runs[0].per_second(), runs[runs.len() - 1].per_second());
    let run = runs.swap_remove(runs.len() / 2);
    Ok(Median { run, least, most })
}

/// Runs all workloads. Call it on a reactor; `progress` is told what begins.
///
/// # Errors
/// When a folder, a reactor, a pool or a command failed.
pub async fn run(options: &Options, progress: &dyn Fn(&str)) -> Result<Report, EngineBenchError> {
    let plan = if options.quick { QUICK } else { CAREFUL };
    run_plan(options, plan, progress).await
}

/// A folder in `dir` that is gone with it.
pub(crate) fn temporary_folder(dir: &Path) -> Result<tempfile::TempDir, EngineBenchError> {
    let folder = tempfile::Builder::new()
        .prefix("onefold-bench-")
        .tempdir_in(dir);
    folder.map_err(|source| EngineBenchError::Folder {
        dir: dir.to_path_buf(),
        source,
    })
}

async fn run_plan(
    options: &Options,
    plan: Plan,
    progress: &dyn Fn(&str),
) -> Result<Report, EngineBenchError> {
    let folder = temporary_folder(&options.dir)?;
    let machine = Machine::look(folder.path());
    let reactors = machine.cores.min(2);
    let mut bench = Bench {
        cores: Cores::start(reactors).await?,
        budget: Budget::new(&plan),
        folder: folder.path().to_path_buf(),
        limits: Limits::default(),
        results: Vec::new(),
        progress,
        plan,
        only: options.only.clone(),
    };
    (bench.progress)("the machine's own limits");
    bench.limits.of_core(&bench.cores, &bench.budget).await?;
    let (file, memory): (Vec<&str>, Vec<&str>) = WORKLOADS
        .into_iter()
        .filter(|name| {
            ![LARGE_POOL, GRID, SMALL_CACHE, SNAPSHOTS, COPY, MIRRORS].contains(name)
                && bench.wants(name)
        })
        .partition(|name| name.starts_with("file-"));
    if !memory.is_empty() {
        bench.memory_drive(reactors).await?;
    }
    if !file.is_empty() {
        bench.file_drive().await?;
    }
    let is_asked = !bench.only.is_empty();
    if bench.wants(GRID) && (is_asked || bench.plan.has_long) {
        let rows = grid::run(
            &bench.cores,
            &bench.folder,
            bench.plan.grid_volume_bytes,
            progress,
        );
        bench.results.extend(rows.await?);
    }
    if bench.wants(SMALL_CACHE) && (is_asked || bench.plan.has_long) {
        let blocks = options.large_blocks;
        let rows = small_cache::run(
            &bench.cores,
            &bench.folder,
            blocks.unwrap_or(bench.plan.small_cache_blocks),
            bench.plan.run_time,
            progress,
        );
        bench.results.extend(rows.await?);
    }
    if bench.wants(SNAPSHOTS) && (is_asked || bench.plan.has_long) {
        let blocks = options.large_blocks;
        let rows = snapshots::run(
            &bench.cores,
            &bench.folder,
            blocks.unwrap_or(bench.plan.small_cache_blocks),
            bench.plan.run_time,
            progress,
        );
        bench.results.extend(rows.await?);
        let rows = snapshots::typical(
            &bench.cores,
            &bench.folder,
            blocks.unwrap_or(bench.plan.small_cache_blocks),
            bench.plan.run_time,
            progress,
        );
        bench.results.extend(rows.await?);
    }
    if bench.wants(MIRRORS) && (is_asked || bench.plan.has_long) {
        let plan = mirrors::Plan {
            drive_bytes: bench.plan.mirrored_drive_bytes,
            run_time: bench.plan.run_time,
            runs: bench.plan.runs,
        };
        let rows = mirrors::run(&bench.cores, &bench.folder, &plan, progress);
        bench.results.extend(rows.await?);
    }
    let blocks = options.large_blocks.unwrap_or(bench.plan.large_blocks);
    if bench.wants(COPY) && (is_asked || bench.plan.has_long) {
        bench.copy_in_order(blocks).await?;
    }
    if bench.wants(LARGE_POOL) {
        bench.large(blocks).await?;
    }
    let mut notes = vec![
        "Core: how much of its core the load's thread had. In brackets the ratio by its processor time: \
         what a quiet machine would give."
            .to_owned(),
    ];
    notes.push(format!(
        "Depths: 32 for 4 KiB and 8 for 128 KiB where the name says no other; volumes of {} MiB in \
         memory and {} MiB on the file, filled before; a workload's runs are {} of {:?}.",
        bench.plan.memory_volume_bytes / MIB,
        bench.plan.file_volume_bytes / MIB,
        bench.plan.runs,
        bench.plan.run_time,
    ));
    if reactors < 2 {
        notes.push(
            "One core: background work shares it with the load, and two reactors were not measured."
                .to_owned(),
        );
    }
    Ok(Report {
        machine,
        limits: bench.limits,
        results: bench.results,
        notes,
    })
}

struct Bench<'a> {
    cores: Cores,
    budget: Budget,
    folder: PathBuf,
    limits: Limits,
    results: Vec<Row>,
    progress: &'a dyn Fn(&str),
    plan: Plan,
    only: Vec<String>,
}

const LARGE_POOL: &str = "large";
const GRID: &str = "grid";
const SMALL_CACHE: &str = "small-cache";
const SNAPSHOTS: &str = "snapshots";
const COPY: &str = "copy";
const MIRRORS: &str = "mirrors";
const SMALL: usize = BLOCK_BYTES;
const LARGE: usize = 128 << 10;
const DUPLICATES: Mix = Mix::Duplicates {
    percent: 100,
    from: 0,
    known: KNOWN_BLOCKS,
};
const NINETY_PERCENT: Mix = Mix::Duplicates {
    percent: 90,
    from: 0,
    known: KNOWN_BLOCKS,
};

impl Bench<'_> {
    fn put(&mut self, row: Row) {
        self.results.push(row);
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }

    async fn median(&self, name: &str, load: Load) -> Result<Median, EngineBenchError> {
        (self.progress)(name);
        median_of(&self.cores, &self.budget, load).await
    }

    /// The row with the time under the engine's locks, of one more run of the load on so many reactors: in the others
    /// the clocks are off.
    async fn with_locks(
        &self,
        row: Row,
        pool: &Pool,
        load: Load,
        reactors: usize,
    ) -> Result<Row, EngineBenchError> {
        let load = Load {
            until: Until::Time(self.budget.run_time()),
            ..load
        };
        let before = pool.engine.lock_times();
        pool.engine.time_locks(true);
        let run = match reactors {
            1 => self.cores.run(load).await,
            _ => self.cores.run_on_all(load).await,
        };
        pool.engine.time_locks(false);
        let locks = Locks::between(before, pool.engine.lock_times(), run?.commands);
        Ok(Row {
            locks: Some(locks),
            ..row
        })
    }

    async fn memory_drive(&mut self, reactors: usize) -> Result<(), EngineBenchError> {
        let bytes = self.plan.memory_drive_bytes;
        (self.progress)("filling the memory drive");
        // The system's own work for new memory is not the engine's.
        let drive: Arc<dyn Drive> = Arc::new(MemoryDrive::resident(bytes / BLOCK_BYTES as u64)?);
        let folder = self.folder.join("memory");
        let volume_bytes = self.plan.memory_volume_bytes;
        let pool = Pool::create(&folder, drive, volume_bytes).await?;
        pool.write_known(&self.cores).await?;
        pool.fill(&self.cores).await?;

        let hash = ("side-by-side BLAKE3", self.limits.blake3_bytes_per_second);
        let memcpy = ("memcpy", self.limits.memcpy_bytes_per_second);
        for (name, act, limit, least) in [
            ("write-128k-unique", Act::Write(Mix::Unique), hash, 0.60),
            ("read-128k", Act::Read, memcpy, 0.50),
            ("write-128k-dup90", Act::Write(NINETY_PERCENT), hash, 0.75),
        ] {
            if self.wants(name) {
                let load = pool.load(act, Places::InOrder, LARGE, 8);
                let row = self.median(name, load.clone()).await?.bytes(name, LARGE);
                let row = self.with_locks(row, &pool, load, 1).await?;
                let row = row.beside_core(limit.0, limit.1);
                self.put(row.with_goal(Goal::RatioAtLeast(least)));
            }
        }
        let small = |act, depth| pool.load(act, Places::Random, SMALL, depth);
        for (name, act, limit, least) in [
            ("write-4k-unique", Act::Write(Mix::Unique), hash, 300e3),
            ("read-4k", Act::Read, memcpy, 800e3),
            ("write-4k-dup", Act::Write(DUPLICATES), hash, 400e3),
        ] {
            if self.wants(name) {
                let row = self.median(name, small(act, 32)).await?.commands(name);
                let row = self.with_locks(row, &pool, small(act, 32), 1).await?;
                let row = row.beside_core(limit.0, limit.1 / SMALL as f64);
                self.put(row.with_goal(Goal::ValueAtLeast(least)));
            }
        }
        let name = "two-reactors-write-4k-unique";
        if reactors > 1 && self.wants(name) {
            self.two_reactors(name, &pool, small(Act::Write(Mix::Unique), 32))
                .await?;
        }
        let name = "write-4k-qd1";
        if self.wants(name) {
            let load = small(Act::Write(Mix::Unique), 1);
            let median = self.median(name, load.clone()).await?;
            let alone = SMALL as f64 / self.limits.blake3_one_at_a_time_bytes_per_second * 1e6;
            let row = Row::new(name, median.run.p50_us, Unit::Microseconds).of_run(&median.run);
            let row = self.with_locks(row, &pool, load, 1).await?;
            let row = row.beside("one BLAKE3 of 4 KiB", alone);
            self.put(row.with_goal(Goal::ValueAtMost(6.0)));
        }
        pool.discard().await;
        Ok(())
    }

    /// One reactor and two in turn, so that both meet the same machine; each pair gives a ratio.
    async fn two_reactors(
        &mut self,
        name: &str,
        pool: &Pool,
        load: Load,
    ) -> Result<(), EngineBenchError> {
        (self.progress)(name);
        let load = Load {
            until: Until::Time(self.budget.run_time()),
            ..load
        };
        let mut pairs = Vec::new();
        for _ in 0..self.budget.runs {
            let one = self.cores.run(load.clone()).await?;
            let two = self.cores.run_on_all(load.clone()).await?;
            pairs.push((one, two));
        }
        let ratio = |(one, two): &(Run, Run)| two.per_second() / one.per_second();
        pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let at = pairs.len() / 2;
        let [least, most] = [0, pairs.len() - 1].map(|at| pairs[at].1.per_second());
        let (one, two) = &pairs[at];
        let row = Row {
            range: Some([least.min(most), least.max(most)]),
            core_share: Some(two.core_share() / 2.0),
            // Twice as many cores: what they do for a command's processor time on one alone.
            core_ratio: Some(2.0 * one.core_us() / two.core_us()),
            ..Row::new(name, two.per_second(), Unit::CommandsPerSecond).of_run(two)
        };
        let row = row.beside("one reactor", one.per_second());
        let row = self.with_locks(row, pool, load, 2).await?;
        self.put(row.with_goal(Goal::RatioAtLeast(1.7)));
        Ok(())
    }

    async fn file_drive(&mut self) -> Result<(), EngineBenchError> {
        (self.progress)("the file drive itself");
        let path: PathBuf = self.folder.join("drive0");
        let bytes = self.plan.file_drive_bytes;
        let (cores, budget) = (&self.cores, &self.budget);
        self.limits.of_file(cores, budget, &path, bytes).await?;
        let drive: Arc<dyn Drive> = Arc::new(FileDrive::open(&path, &OpenOptions::default())?);
        let folder = self.folder.join("file");
        let pool = Pool::create(&folder, drive, self.plan.file_volume_bytes).await?;
        pool.write_known(&self.cores).await?;
        pool.fill(&self.cores).await?;
        for (name, depth, limit, raw) in [
            (
                "file-write-4k",
                32,
                "raw random, depth 32",
                self.limits.raw_write_4k_qd32_per_second,
            ),
            (
                "file-write-4k-qd128",
                128,
                "raw random, depth 128",
                self.limits.raw_write_4k_qd128_per_second,
            ),
        ] {
            if self.wants(name) {
                let load = pool.load(Act::Write(Mix::Unique), Places::Random, SMALL, depth);
                let row = self.median(name, load).await?.commands(name);
                self.put(row.beside(limit, raw).with_goal(Goal::RatioAtLeast(1.5)));
            }
        }
        let name = "file-write-128k-dup90";
        if self.wants(name) {
            let load = pool.load(Act::Write(NINETY_PERCENT), Places::InOrder, LARGE, 8);
            let row = self.median(name, load).await?.bytes(name, LARGE);
            let raw = self.limits.raw_write_128k_qd8_bytes_per_second;
            let row = row.beside("raw in order", raw);
            self.put(row.with_goal(Goal::RatioAtLeast(1.0)));
        }
        pool.discard().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_of_the_table_gives_a_figure() {
        let plan = Plan {
            // Long enough for one command of a file on a busy machine.
            run_time: Duration::from_millis(150),
            runs: 1,
            time_max: Duration::ZERO,
            memory_drive_bytes: 512 * MIB,
            memory_volume_bytes: 64 * MIB,
            file_drive_bytes: 512 * MIB,
            file_volume_bytes: 64 * MIB,
            grid_volume_bytes: 8 * MIB,
            small_cache_blocks: 2048,
            mirrored_drive_bytes: 512 * MIB,
            has_long: true,
            large_blocks: 2000,
        };
        // On a real file system: the temporary folder is often in memory, without O_DIRECT.
        let program = std::env::current_exe().expect("a path");
        let dir = tempfile::tempdir_in(program.parent().expect("a folder")).expect("a folder");
        let options = Options {
            quick: true,
            dir: dir.path().to_path_buf(),
            large_blocks: None,
            only: Vec::new(),
        };
        let report = reactor::run(
            reactor::Config::default(),
            run_plan(&options, plan, &|_| ()),
        )
        .expect("a reactor")
        .expect("figures");
        for name in [
            "write-128k-unique",
            "write-128k-dup90",
            "write-4k-unique",
            "write-4k-dup",
            "read-4k",
            "read-128k",
            "write-4k-qd1",
            "file-write-4k",
            "file-write-128k-dup90",
        ] {
            let found: Vec<_> = report
                .results
                .iter()
                .filter(|row| row.name == name)
                .collect();
            let [row] = found[..] else {
                panic!("{} rows named {name}", found.len());
            };
            assert!(row.value > 0.0, "{name}");
            assert!(row.limit_ratio.is_some_and(|ratio| ratio > 0.0), "{name}");
            assert!(row.goal.is_some() && row.met.is_some(), "{name}");
            let locks = row.locks.filter(|locks| locks.maps_held_ns > 0.0);
            assert_eq!(locks.is_some(), !name.starts_with("file-"), "{name}");
        }
        let value = |name: &str| {
            let row = report.results.iter().find(|row| row.name == name);
            row.expect(name).value
        };
        // Tables for all blocks need one look at the mappings, smaller ones need more.
        assert_eq!(value("large-check-passes"), 1.0);
        assert!(value("large-check-eighth-passes") > 1.0);
        // What compresses and what comes again takes less space; two contents share a block at the least.
        assert!((0.99..1.01).contains(&value("grid-c0-d0-space")));
        assert!((0.49..0.55).contains(&value("grid-c55-d0-space")));
        assert!((0.09..0.15).contains(&value("grid-c90-d0-space")));
        assert!((0.09..0.12).contains(&value("grid-c0-d90-space")));
        assert!(value("grid-c90-d90-space") < 0.05);
        assert!(value("grid-c55-read-128k") > 0.0);
        assert!(value("small-cache-read-4k") > 0.0);
        assert!(value("mirror-write-4k-unique") > 0.0);
        assert!(value("mirror-read-4k-limited") > 0.0);
        // Each block in use is written once.
        assert!((0.99..1.05).contains(&value("mirror-rebuild-written-of-live")));
        assert!(value("small-cache-metadata-reads-per-read") <= 1.0);
        assert!(value("snapshot-take") > 0.0 && value("snapshot-clone") > 0.0);
        assert!(value("snapshot-first-overwrite") > 0.0);
        assert!(value("snapshot-deep-read-4k") > 0.0);
        assert!(value("snapshot-during-read-4k-p99") > 0.0);
        assert!(value("snapshot-50ms-from-write-4k-p99") > 0.0);
        assert!(value("typical-diff-1tib") > 0.0);
        assert!(value("copy") > 0.0);
        assert!(report.limits.blake3_bytes_per_second > 0.0);
        assert!(report.to_string().contains("write-128k-dup90"));
        assert!(
            dir.path().read_dir().expect("a folder").next().is_none(),
            "nothing is left behind"
        );
    }
}
