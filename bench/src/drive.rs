//! `onefold bench drive`: one drive, of any kind that a pool can have, without a pool.
//!
//! - One reactor on a core of its own makes all the load, as the engine does: reads and writes in buffers of its pool, which a
//!   vhost-user-blk server shares. It has as many buffers as commands, and polls for 1 ms, the most that `--spin` takes.
//! - The device behind a vhost-user-blk socket is then measured by a bare front-end too, on the same core: it gives the device
//!   its data where they lie, looks at nothing, and polls.
//! - If that is wanted, a pool is made on the drive, and a volume of it is measured in the same way, by the engine alone: there is
//!   no target and no host. Its metadata is in a folder beside.
//! - Each figure is the median of several short runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drives::Drive;
use serde::Serialize;

use crate::engine::load::{Act, Goal, Load, Places, Run, Until};
use crate::engine::{Cores, EngineBenchError, Mix, Numbers, Pool, temporary_folder};
use crate::exports::load as bare;
use crate::machine::Machine;

/// Bytes of the drive that are used, from its start.
const RANGE: u64 = 256 << 20;

/// Bytes that a drive with a pool needs: a volume of [`RANGE`], and room for what is overwritten and not free yet.
const POOL_RANGE: u64 = 2 << 30;

/// How it is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The drive as people name it.
    pub name: String,
    /// The socket of a vhost-user-blk server, if it is that.
    pub socket: Option<PathBuf>,
    /// Whether the drive may be overwritten; else it is only read.
    pub overwrite: bool,
    /// The folder for the metadata of a pool on it, if one is measured, too.
    pub pool_dir: Option<PathBuf>,
    /// Seconds of a run.
    pub seconds: u32,
    /// Runs of a workload, of which the median counts.
    pub runs: usize,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum DriveBenchError {
    /// A run.
    #[error(transparent)]
    Engine(#[from] EngineBenchError),
    /// The bare front-end.
    #[error("the bare front-end failed at {workload}: {source}")]
    FrontEnd {
        /// The workload that failed.
        workload: &'static str,
        /// What the system, or the server, said.
        source: std::io::Error,
    },
    /// The drive has less than is used of it.
    #[error("drive '{name}' has less than {mib} MiB: name a larger one")]
    Small {
        /// The drive.
        name: String,
        /// What is used of it.
        mib: u64,
    },
}

/// All figures of a drive.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What it was measured on.
    pub machine: Machine,
    /// The drive.
    pub drive: String,
    /// The workloads.
    pub rows: Vec<Row>,
}

/// One workload.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Commands a second: the median of the runs.
    pub commands_per_second: f64,
    /// Least and greatest of the runs.
    pub range: [f64; 2],
    /// Latency of a command, in microseconds: its median.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// Processor time of the reactor's thread for a command, in microseconds; it polls for a moment before it sleeps.
    pub core_us: f64,
    /// The bare front-end, if the drive is behind a vhost-user-blk socket.
    pub bare: Option<Beside>,
    /// A pool on the drive, if one was measured.
    pub pool: Option<Beside>,
}

/// What the same device gives in another way.
#[derive(Debug, Clone, Serialize)]
pub struct Beside {
    /// Commands a second: the median of the runs.
    pub commands_per_second: f64,
    /// Least and greatest of the runs.
    pub range: [f64; 2],
    /// Latency of a command in that run, in microseconds: its median.
    pub p50_us: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; drive {}", self.machine, self.drive)?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<14} {:>8} {:>15} {:>8} {:>8} {:>8}  beside a bare front-end",
            "workload", "K/s", "of runs", "p50 us", "p99 us", "core us"
        )?;
        for row in &self.rows {
            let figures = |beside: &Beside| {
                let range = beside.range;
                let [rate, least, most] =
                    [beside.commands_per_second, range[0], range[1]].map(|rate| rate / 1e3);
                let us = beside.p50_us;
                format!("{rate:.1} K/s ({least:.1} to {most:.1}), {us:.2} us")
            };
            let bare = row.bare.as_ref().map_or(String::new(), |bare| {
                let ratio = row.commands_per_second / bare.commands_per_second;
                format!("{ratio:.2} of {}", figures(bare))
            });
            let [least, most] = row.range.map(|rate| rate / 1e3);
            writeln!(
                f,
                "{:<14} {:>8.1} {:>15} {:>8.2} {:>8.2} {:>8.2}  {bare}",
                row.name,
                row.commands_per_second / 1e3,
                format!("{least:.1} to {most:.1}"),
                row.p50_us,
                row.p99_us,
                row.core_us,
            )?;
            if let Some(pool) = &row.pool {
                let ratio = pool.commands_per_second / row.commands_per_second;
                writeln!(f, "  in a pool    {ratio:>8.2} of it: {}", figures(pool))?;
            }
        }
        Ok(())
    }
}

struct Workload {
    name: &'static str,
    is_write: bool,
    block_bytes: usize,
    depth: u16,
}

const fn workload(name: &'static str, is_write: bool, block_kib: usize, depth: u16) -> Workload {
    Workload {
        name,
        is_write,
        block_bytes: block_kib << 10,
        depth,
    }
}

const WORKLOADS: [Workload; 6] = [
    workload("write-4k", true, 4, 32),
    workload("write-4k-qd1", true, 4, 1),
    workload("write-128k", true, 128, 8),
    workload("read-4k", false, 4, 32),
    workload("read-4k-qd1", false, 4, 1),
    workload("read-128k", false, 128, 8),
];

impl Options {
    fn suits(&self, workload: &Workload) -> bool {
        self.overwrite || !workload.is_write
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// The reactor that makes the load. Its buffers are shared with servers of drives that are opened after this.
pub struct Bench {
    machine: Machine,
    cores: Cores,
}

impl Bench {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no reactor, or no memory.
    pub async fn start() -> Result<Self, DriveBenchError> {
        // Before this thread is bound to a core.
        let machine = Machine::look(std::path::Path::new("."));
        let cores = Cores::start_shared(1).await?;
        Ok(Self { machine, cores })
    }

    /// Measures a drive, which is closed before its server is asked by the bare front-end. Call it on a reactor; `progress` is
    /// told what begins.
    ///
    /// # Errors
    /// The drive, or its server, failed; there is less of it than is used.
    pub async fn run(
        self,
        options: &Options,
        drive: Arc<dyn Drive>,
        progress: &dyn Fn(&str),
    ) -> Result<Report, DriveBenchError> {
        let rows = run(&self.cores, options, drive, progress).await?;
        Ok(Report {
            machine: self.machine,
            drive: options.name.clone(),
            rows,
        })
    }
}

async fn run(
    cores: &Cores,
    options: &Options,
    drive: Arc<dyn Drive>,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, DriveBenchError> {
    let needed = match options.pool_dir {
        Some(_) => POOL_RANGE,
        None => RANGE,
    };
    if drive.blocks().saturating_mul(drives::BLOCK_BYTES as u64) < needed {
        return Err(DriveBenchError::Small {
            name: options.name.clone(),
            mib: needed >> 20,
        });
    }
    let mut rows = Vec::new();
    for workload in WORKLOADS.iter().filter(|workload| options.suits(workload)) {
        progress(workload.name);
        let load = Load {
            goal: Goal::Drive(drive.clone()),
            act: match workload.is_write {
                true => Act::Write(Mix::Unique),
                false => Act::Read,
            },
            places: Places::Random,
            block_bytes: workload.block_bytes,
            compressible: 0,
            depth: workload.depth.into(),
            range_bytes: RANGE,
            until: Until::Time(options.time()),
            numbers: Arc::new(Numbers::default()),
            windows: None,
        };
        let runs = several(cores, options, &load).await?;
        let run = &runs[runs.len() / 2];
        rows.push(Row {
            name: workload.name,
            commands_per_second: run.per_second(),
            range: [runs[0].per_second(), runs[runs.len() - 1].per_second()],
            p50_us: run.p50_us,
            p99_us: run.p99_us,
            core_us: run.core_us(),
            bare: None,
            pool: None,
        });
    }
    if let Some(dir) = &options.pool_dir {
        in_a_pool(cores, options, (&drive, dir), &mut rows, progress).await?;
    }
    // A server talks with one at a time.
    drop(drive);
    if let Some(socket) = &options.socket {
        let workloads = WORKLOADS.iter().filter(|workload| options.suits(workload));
        for (workload, row) in workloads.zip(&mut rows) {
            progress(&format!("{} by a bare front-end", workload.name));
            let load = bare::Load {
                pattern: match workload.is_write {
                    true => bare::Pattern::WriteUnique,
                    false => bare::Pattern::Read,
                },
                block_bytes: workload.block_bytes,
                depth: workload.depth,
                range: RANGE,
                time: options.time(),
                sleeps: false,
                verify: false,
            };
            let (socket, runs) = (socket.clone(), options.runs.max(1));
            let measured = cores.on_first(move || async move {
                let runs = (0..runs).map(|_| bare::run(&socket, false, &load));
                runs.collect::<Result<Vec<_>, _>>()
            });
            let measured = measured.await?.map_err(|source| DriveBenchError::FrontEnd {
                workload: workload.name,
                source,
            });
            let mut measured: Vec<(f64, f64)> = measured?
                .iter()
                .map(|run| (run.requests as f64 / run.seconds, run.p50_us))
                .collect();
            measured.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (commands_per_second, p50_us) = measured[measured.len() / 2];
            row.bare = Some(Beside {
                commands_per_second,
                range: [measured[0].0, measured[measured.len() - 1].0],
                p50_us,
            });
        }
    }
    Ok(rows)
}

/// Runs of a load, the slowest one first.
async fn several(
    cores: &Cores,
    options: &Options,
    load: &Load,
) -> Result<Vec<Run>, DriveBenchError> {
    let mut runs = Vec::new();
    for _ in 0..options.runs.max(1) {
        runs.push(cores.run_with_few_buffers(load.clone()).await?);
    }
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    Ok(runs)
}

/// The same of a volume of a pool on the drive, whose metadata is in a folder in `dir`.
async fn in_a_pool(
    cores: &Cores,
    options: &Options,
    (drive, dir): (&Arc<dyn Drive>, &Path),
    rows: &mut [Row],
    progress: &dyn Fn(&str),
) -> Result<(), DriveBenchError> {
    progress("making a pool");
    let folder = temporary_folder(dir)?;
    let pool = Pool::create(&folder.path().join("pool"), drive.clone(), RANGE).await?;
    pool.fill(cores).await?;
    let workloads = WORKLOADS.iter().filter(|workload| options.suits(workload));
    for (workload, row) in workloads.zip(rows) {
        progress(&format!("{} in a pool", workload.name));
        let act = match workload.is_write {
            true => Act::Write(Mix::Unique),
            false => Act::Read,
        };
        let depth = workload.depth.into();
        let load = Load {
            until: Until::Time(options.time()),
            ..pool.load(act, Places::Random, workload.block_bytes, depth)
        };
        let runs = several(cores, options, &load).await?;
        let run = &runs[runs.len() / 2];
        row.pool = Some(Beside {
            commands_per_second: run.per_second(),
            range: [runs[0].per_second(), runs[runs.len() - 1].per_second()],
            p50_us: run.p50_us,
        });
    }
    Ok(pool.close().await?)
}
