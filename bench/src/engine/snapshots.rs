//! Snapshots and clones of a full volume: how long they take, and what they cost its reads and writes.
//!
//! The data lie on a drive that keeps 16 bytes of each block, so that a volume is as large as its map may be.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::{Engine, EngineError};
use drives::BLOCK_BYTES;
use futures_util::future::join;

use super::content::{Mix, template};
use super::load::{Act, Load, Places, Run, Until, Windows};
use super::pool::{Cores, KNOWN_BLOCKS, KNOWN_VOLUME, Pool, WORK_VOLUME};
use super::report::{Goal, Row, Unit};
use super::stamp::StampDrive;
use super::{EngineBenchError, LARGE, SMALL};
use crate::machine;

/// The length of the chain of snapshots.
const DEEP: u32 = 1000;

/// Ranges of one look at what differs: as many as the API asks for.
const DIFF_RANGES: usize = 16 << 10;

/// Snapshots that are taken while a load runs.
const TAKEN: u32 = 20;

/// How long after its beginning a snapshot is looked at besides: as long as it may take.
const AFTER: Duration = Duration::from_millis(50);

/// So many percent of a volume are written after a snapshot of it.
const CHANGED_PERCENT: u64 = 5;

/// Fills a volume of so many blocks in order, and measures each workload for some time.
pub(super) async fn run(
    cores: &Cores,
    folder: &Path,
    blocks: u64,
    time: Duration,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("filling a volume for snapshots");
    let volume_bytes = blocks * BLOCK_BYTES as u64;
    // As much again for what is written after snapshots.
    let drive_blocks = 2 * blocks + blocks / 16 + 2 * KNOWN_BLOCKS;
    let drive = Arc::new(StampDrive::new(drive_blocks, template()));
    let pool = Pool::create(&folder.join("snapshots"), drive, volume_bytes).await?;
    let fill = Load {
        until: Until::Commands(volume_bytes / LARGE as u64),
        ..pool.load(Act::Write(Mix::Unique), Places::InOrder, LARGE, 8)
    };
    cores.run(fill).await?;
    pool.engine.checkpoint().await?;
    let bench = Snapshots {
        cores,
        pool: &pool,
        time,
    };
    let mut rows = Vec::new();
    progress("reads and writes without a snapshot");
    let read = bench.go(Act::Read).await?;
    let write = bench.go(Act::Write(Mix::Unique)).await?;
    let quiet = bench.beside_snapshots(0, None).await?;

    progress("a snapshot, and writes after it");
    let took = bench.take("first").await?;
    rows.push(took_row("snapshot-take", took));
    let run = bench.go(Act::Write(Mix::Unique)).await?;
    rows.push(beside("snapshot-first-overwrite", &run, &write, 0.8));

    progress("what a volume and its snapshot, and it and a small one, differ in");
    pool.engine.checkpoint().await?;
    let first = format!("{WORK_VOLUME}@first");
    for (name, with) in [("snapshot-diff", &*first), ("full-diff", KNOWN_VOLUME)] {
        rows.extend(bench.compare(name, with, WORK_VOLUME).await?);
    }
    let began = Instant::now();
    pool.engine.clone_volume(WORK_VOLUME, "clone", None).await?;
    rows.push(took_row("snapshot-clone", began.elapsed()));

    progress("reads and writes while snapshots are taken");
    for (name, hold) in [
        ("snapshot-during", None),
        ("snapshot-50ms-from", Some(AFTER)),
    ] {
        let met = bench.beside_snapshots(TAKEN, hold).await?;
        for (act, met, quiet) in [("read", &met.0, &quiet.0), ("write", &met.1, &quiet.1)] {
            let within = met.within;
            let row = Row::new(
                format!("{name}-{act}-4k-p99"),
                within.p99_us,
                Unit::Microseconds,
            );
            let row = row.beside("p99 without", quiet.p99_us);
            rows.push(Row {
                p50_us: Some(within.p50_us),
                p99_us: Some(within.p99_us),
                range: Some([within.p50_us, within.longest_us]),
                ..row.with_goal(Goal::RatioAtMost(2.0))
            });
        }
    }

    progress("a chain of a thousand snapshots");
    for at in 0..DEEP {
        bench.take(&format!("deep-{at}")).await?;
        let one = Load {
            until: Until::Commands(1),
            ..pool.load(Act::Write(Mix::Unique), Places::Random, SMALL, 1)
        };
        cores.run(one).await?;
    }
    // The first read of a page after a snapshot finds what ancestors show of it; later ones have it.
    let run = bench.go(Act::Read).await?;
    let ratio = run.per_second() / read.per_second();
    rows.push(Row::new("snapshot-deep-first-read-4k", ratio, Unit::Ratio).of_run(&run));
    let all = Load {
        until: Until::Commands(volume_bytes / LARGE as u64),
        ..pool.load(Act::Read, Places::InOrder, LARGE, 8)
    };
    cores.run(all).await?;
    let run = bench.go(Act::Read).await?;
    rows.push(beside("snapshot-deep-read-4k", &run, &read, 0.95));
    pool.discard().await;
    Ok(rows)
}

/// What differs of a volume that was written in order, and changed in a few parts since its snapshot.
pub(super) async fn typical(
    cores: &Cores,
    folder: &Path,
    blocks: u64,
    time: Duration,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("what a volume that was written in order and its snapshot differ in");
    let volume_bytes = blocks * BLOCK_BYTES as u64;
    let drive_blocks = 2 * blocks + 2 * KNOWN_BLOCKS;
    let drive = Arc::new(StampDrive::new(drive_blocks, template()));
    let pool = Pool::create(&folder.join("typical"), drive, volume_bytes).await?;
    pool.fill(cores).await?;
    let bench = Snapshots {
        cores,
        pool: &pool,
        time,
    };
    bench.take("typical").await?;
    let commands = volume_bytes / LARGE as u64;
    let changes = Load {
        until: Until::Commands((commands * CHANGED_PERCENT / 100).max(1)),
        ..pool.load(Act::Write(Mix::Unique), Places::Random, LARGE, 8)
    };
    cores.run(changes).await?;
    pool.engine.checkpoint().await?;
    let snapshot = format!("{WORK_VOLUME}@typical");
    let mut rows = Vec::new();
    for (name, with) in [
        ("typical-diff", &*snapshot),
        ("typical-full-diff", KNOWN_VOLUME),
    ] {
        rows.extend(bench.compare(name, with, WORK_VOLUME).await?);
    }
    pool.discard().await;
    Ok(rows)
}

struct Snapshots<'a> {
    cores: &'a Cores,
    pool: &'a Pool,
    time: Duration,
}

impl Snapshots<'_> {
    /// Takes one; how long that takes.
    async fn take(&self, name: &str) -> Result<Duration, EngineBenchError> {
        let engine: &Engine = &self.pool.engine;
        let name = format!("{WORK_VOLUME}@{name}");
        let began = Instant::now();
        engine.create_snapshots(&[&name], 0).await?;
        Ok(began.elapsed())
    }

    /// Reads and writes of single blocks at random, 16 of each under way, while so many snapshots are taken. Commands are
    /// told apart that were under way while one was, or within some time from its beginning.
    async fn beside_snapshots(
        &self,
        count: u32,
        hold: Option<Duration>,
    ) -> Result<(Run, Run), EngineBenchError> {
        let windows = Arc::new(Windows::default());
        let load = |act| Load {
            until: Until::Time(self.time),
            windows: Some(windows.clone()),
            ..self.pool.load(act, Places::Random, SMALL, 16)
        };
        let taking = async {
            let pause = self.time / (count + 1);
            for at in 0..count {
                reactor::sleep(pause).await;
                windows.begin();
                let took = self.take(&format!("{count}-{}-{at}", hold.is_some())).await;
                let hold = hold.zip(took.as_ref().ok());
                if let Some((hold, took)) = hold {
                    reactor::sleep(hold.saturating_sub(*took)).await;
                }
                windows.end();
                took?;
            }
            Ok::<_, EngineBenchError>(())
        };
        let runs = self
            .cores
            .run_both(load(Act::Read), load(Act::Write(Mix::Unique)));
        let (runs, taken) = join(runs, taking).await;
        taken?;
        runs
    }

    /// Compares all of two volumes; what that takes of 1 TiB, and the processor time of all threads, which depends less
    /// on other load.
    async fn compare(&self, name: &str, a: &str, b: &str) -> Result<[Row; 2], EngineBenchError> {
        let volume = |name| self.pool.engine.volume(name);
        let (Some(a), Some(b)) = (volume(a), volume(b)) else {
            return Err(EngineBenchError::Stopped);
        };
        let size = a.info().size_bytes.max(b.info().size_bytes);
        // As in the daemon, one thread compares maps and others read them, which begin with this look.
        let (first, other) = (a.clone(), b.clone());
        let look = move || async move { first.diff(&other, 0, 1).await };
        self.cores.on_first(look).await??;
        let all = move || async move {
            let (began, mut at) = (Instant::now(), 0);
            while at < size {
                at = a.diff(&b, at, DIFF_RANGES).await?.upto;
            }
            Ok::<_, EngineError>(began.elapsed())
        };
        let processor = machine::process_seconds();
        let took = self.cores.on_first(all).await??;
        let processor = machine::process_seconds() - processor;
        let row = |name, seconds| {
            let of_1_tib = seconds * (1u64 << 40) as f64 / size as f64;
            Row::new(name, of_1_tib * 1e3, Unit::Milliseconds)
        };
        Ok([
            row(format!("{name}-1tib"), took.as_secs_f64()).with_goal(Goal::ValueAtMost(5000.0)),
            row(format!("{name}-1tib-processor"), processor),
        ])
    }

    /// Single blocks at random.
    async fn go(&self, act: Act) -> Result<Run, EngineBenchError> {
        let load = Load {
            until: Until::Time(self.time),
            ..self.pool.load(act, Places::Random, SMALL, 32)
        };
        self.cores.run(load).await
    }
}

fn took_row(name: &str, took: Duration) -> Row {
    Row::new(name, took.as_secs_f64() * 1e3, Unit::Milliseconds).with_goal(Goal::ValueAtMost(50.0))
}

/// A rate beside that without snapshots.
fn beside(name: &str, run: &Run, without: &Run, at_least: f64) -> Row {
    let ratio = run.per_second() / without.per_second();
    let row = Row::new(name, ratio, Unit::Ratio).of_run(run);
    row.with_goal(Goal::ValueAtLeast(at_least))
}
