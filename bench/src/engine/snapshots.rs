//! Snapshots and clones of a full volume: how long they take, and what they cost its reads and writes.
//!
//! The data lie on a drive that keeps 16 bytes of each block, so that a volume is as large as its map may be.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::{Engine, EngineError};
use drives::BLOCK_BYTES;

use super::content::{Mix, template};
use super::load::{Act, Load, Places, Run, Until};
use super::pool::{Cores, KNOWN_BLOCKS, KNOWN_VOLUME, Pool, WORK_VOLUME};
use super::report::{Goal, Row, Unit};
use super::stamp::StampDrive;
use super::{EngineBenchError, LARGE, SMALL};

/// The length of the chain of snapshots.
const DEEP: u32 = 1000;

/// Ranges of one look at what differs: as many as the API asks for.
const DIFF_RANGES: usize = 16 << 10;

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

    progress("a snapshot, and writes after it");
    let took = bench.take("first").await?;
    rows.push(took_row("snapshot-take", took));
    let run = bench.go(Act::Write(Mix::Unique)).await?;
    rows.push(beside("snapshot-first-overwrite", &run, &write, 0.8));

    progress("what a volume and its snapshot, and it and a small one, differ in");
    pool.engine.checkpoint().await?;
    let first = format!("{WORK_VOLUME}@first");
    rows.push(
        bench
            .compare("snapshot-diff-1tib", &first, WORK_VOLUME)
            .await?,
    );
    rows.push(
        bench
            .compare("full-diff-1tib", KNOWN_VOLUME, WORK_VOLUME)
            .await?,
    );
    let began = Instant::now();
    pool.engine.clone_volume(WORK_VOLUME, "clone", None).await?;
    rows.push(took_row("snapshot-clone", began.elapsed()));

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

    /// Compares all of two volumes; what that takes of 1 TiB.
    async fn compare(&self, row: &str, a: &str, b: &str) -> Result<Row, EngineBenchError> {
        let volume = |name| self.pool.engine.volume(name);
        let (Some(a), Some(b)) = (volume(a), volume(b)) else {
            return Err(EngineBenchError::Stopped);
        };
        let size = a.info().size_bytes.max(b.info().size_bytes);
        // As in the daemon, one thread compares maps and others read them. These begin with this look, and then leave the
        // core of the first one.
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
        let took = self.cores.on_first(all).await??;
        let of_size = (1u64 << 40) as f64 / size as f64;
        let took = took.as_secs_f64() * 1e3 * of_size;
        Ok(Row::new(row, took, Unit::Milliseconds).with_goal(Goal::ValueAtMost(5000.0)))
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
