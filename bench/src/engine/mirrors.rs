//! Two copies of all data beside one, and the rebuild of a drive.
//!
//! - Writes go to drives that are memory: a second copy costs the core that moves it.
//! - Reads are of drives that limit ([`LimitedDrive`]), as drives mostly do: two have twice as much to give.
//! - A rebuild is held against the limit of its drives, and against the time in which one of them is copied as a whole:
//!   the least that a mirror which knows nothing of its contents takes, such as one of Linux's md.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::{DriveState, EngineConfig};
use drives::{BLOCK_BYTES, Drive};

use super::content::Mix;
use super::limited::{Limit, LimitedDrive};
use super::load::{Act, Load, Places, Run, Until};
use super::pool::{Cores, KNOWN_BLOCKS, Pool};
use super::report::{Goal, Row, Unit};
use super::{EngineBenchError, LARGE, SMALL};

/// What a drive that limits gives: little beside what one core asks for, so that the drives are what is measured.
const LIMIT: Limit = Limit {
    commands_per_second: 50_000.0,
    bytes_per_second: 400e6,
};

/// How often a rebuild is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What is measured: sizes and times.
pub(super) struct Plan {
    /// Bytes of each of four drives.
    pub(super) drive_bytes: u64,
    pub(super) run_time: Duration,
    pub(super) runs: usize,
}

/// A pool whose data have so many copies, on as many drives, 30 % full.
async fn pool(
    cores: &Cores,
    folder: &Path,
    drives: &[Arc<LimitedDrive>],
) -> Result<Pool, EngineBenchError> {
    let full = drives[0].blocks() * 3 / 10;
    let in_commands = |blocks: u64| blocks / (LARGE / BLOCK_BYTES) as u64 * LARGE as u64;
    let config = EngineConfig {
        copies: drives.len(),
        ..EngineConfig::default()
    };
    let all = drives.iter().map(|drive| drive.clone() as Arc<dyn Drive>);
    let bytes = in_commands(full.saturating_sub(KNOWN_BLOCKS));
    let pool = Pool::create_with(folder, all.collect(), bytes, config).await?;
    pool.write_known(cores).await?;
    pool.fill(cores).await?;
    Ok(pool)
}

/// Runs two loads in turns, so that both meet the same machine; of the pairs the one in the middle by its ratio.
async fn in_turns(
    cores: &Cores,
    plan: &Plan,
    [one, two]: [&Load; 2],
) -> Result<(Run, Run), EngineBenchError> {
    let timed = |load: &Load, time| Load {
        until: Until::Time(time),
        ..load.clone()
    };
    for load in [one, two] {
        cores.run(timed(load, plan.run_time / 2)).await?;
    }
    let mut pairs = Vec::new();
    for _ in 0..plan.runs {
        let first = cores.run(timed(one, plan.run_time)).await?;
        pairs.push((first, cores.run(timed(two, plan.run_time)).await?));
    }
    let ratio = |(one, two): &(Run, Run)| two.per_second() / one.per_second();
    pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    Ok(pairs.swap_remove(pairs.len() / 2))
}

/// Two copies, held against one.
fn beside_one(name: &str, (one, two): &(Run, Run), least: f64) -> Row {
    let row = Row::new(name, two.per_second(), Unit::CommandsPerSecond).of_run(two);
    let row = row.beside("one copy", one.per_second());
    let row = Row {
        core_ratio: Some(one.core_us() / two.core_us()),
        ..row
    };
    row.with_goal(Goal::RatioAtLeast(least))
}

/// Measures all of it.
pub(super) async fn run(
    cores: &Cores,
    folder: &Path,
    plan: &Plan,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    let mut rows = writes(cores, folder, plan, progress).await?;
    rows.extend(limited(cores, folder, plan, progress).await?);
    Ok(rows)
}

fn drives<const N: usize>(
    names: [&'static str; N],
    plan: &Plan,
    limit: Option<Limit>,
) -> Result<Vec<Arc<LimitedDrive>>, EngineBenchError> {
    let blocks = plan.drive_bytes / BLOCK_BYTES as u64;
    let drives = names.map(|name| LimitedDrive::new(name, blocks, limit).map(Arc::new));
    Ok(drives.into_iter().collect::<Result<_, _>>()?)
}

async fn writes(
    cores: &Cores,
    folder: &Path,
    plan: &Plan,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("filling pools with one copy and with two");
    let (alone, both) = (
        drives(["alone"], plan, None)?,
        drives(["left", "right"], plan, None)?,
    );
    let one = pool(cores, &folder.join("one-copy"), &alone).await?;
    let two = pool(cores, &folder.join("two-copies"), &both).await?;
    let mut rows = Vec::new();
    for (name, places, bytes, depth, least) in [
        ("mirror-write-4k-unique", Places::Random, SMALL, 32, 0.90),
        ("mirror-write-128k-unique", Places::InOrder, LARGE, 8, 0.85),
    ] {
        progress(name);
        let [one, two] =
            [&one, &two].map(|pool| pool.load(Act::Write(Mix::Unique), places, bytes, depth));
        let pair = in_turns(cores, plan, [&one, &two]).await?;
        rows.push(beside_one(name, &pair, least));
    }
    one.discard().await;
    two.discard().await;
    Ok(rows)
}

async fn limited(
    cores: &Cores,
    folder: &Path,
    plan: &Plan,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("filling pools on drives that limit");
    let (alone, both) = (
        drives(["alone"], plan, Some(LIMIT))?,
        drives(["left", "right"], plan, Some(LIMIT))?,
    );
    let one = pool(cores, &folder.join("one-limited"), &alone).await?;
    let two = pool(cores, &folder.join("two-limited"), &both).await?;
    let mut rows = Vec::new();
    for (name, places, bytes, depth) in [
        ("mirror-read-4k-limited", Places::Random, SMALL, 64),
        ("mirror-read-128k-limited", Places::Random, LARGE, 16),
    ] {
        progress(name);
        let [one, two] = [&one, &two].map(|pool| pool.load(Act::Read, places, bytes, depth));
        let pair = in_turns(cores, plan, [&one, &two]).await?;
        rows.push(beside_one(name, &pair, 1.7));
    }
    let name = "mirror-read-4k-degraded";
    progress(name);
    two.engine.take_drive_offline(1).await?;
    let [alone, left] = [&one, &two].map(|pool| pool.load(Act::Read, Places::Random, SMALL, 64));
    let pair = in_turns(cores, plan, [&alone, &left]).await?;
    rows.push(beside_one(name, &pair, 0.95));
    one.discard().await;
    rows.extend(rebuild(two, plan, progress).await?);
    Ok(rows)
}

/// A new drive takes the place of the second one, which is offline.
async fn rebuild(
    pool: Pool,
    plan: &Plan,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("mirror-rebuild");
    let new = drives(["new"], plan, Some(LIMIT))?.remove(0);
    let engine = &pool.engine;
    let live = engine.status().used_bytes;
    let began = Instant::now();
    engine
        .replace_drive(1, new.clone(), None, || Ok(()))
        .await?;
    while engine.status().drives[1].state != DriveState::Online {
        reactor::sleep(LOOK).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let written = new.written_bytes() as f64;
    let row = Row::new(
        "mirror-rebuild",
        live as f64 / seconds,
        Unit::BytesPerSecond,
    );
    let row = row.beside("the limit of its drives", LIMIT.bytes_per_second);
    let mut rows = vec![row.with_goal(Goal::RatioAtLeast(0.80))];
    let row = Row::new(
        "mirror-rebuild-written-of-live",
        written / live as f64,
        Unit::Ratio,
    );
    rows.push(row.with_goal(Goal::ValueAtMost(1.05)));
    let whole = plan.drive_bytes as f64 / LIMIT.bytes_per_second;
    let row = Row::new(
        "mirror-rebuild-time-of-whole-copy",
        seconds / whole,
        Unit::Ratio,
    );
    rows.push(row.with_goal(Goal::ValueAtMost(0.35)));
    pool.discard().await;
    Ok(rows)
}
