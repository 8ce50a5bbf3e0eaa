//! A working set larger than memory: random reads of a volume whose map does not fit the cache of maps.
//!
//! Each read of a sub-block whose page of the map is not in memory costs one read of the store, and none
//! needs more. The data lie on a drive that keeps 16 bytes of each block.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dedup::EngineConfig;
use drives::BLOCK_BYTES;

use super::content::{Mix, template};
use super::load::{Act, Load, Places, Until};
use super::pool::{Cores, KNOWN_BLOCKS, Pool};
use super::report::{Goal, Row, Unit};
use super::stamp::StampDrive;
use super::{EngineBenchError, LARGE, SMALL};

/// Memory for maps, as the daemon has it with `--metadata-cache 64M`.
const CACHE_BYTES: u64 = 64 << 20;

/// Fills a volume of so many blocks in order, and reads it at random for some time.
pub(super) async fn run(
    cores: &Cores,
    folder: &Path,
    blocks: u64,
    time: Duration,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("filling a volume whose map does not fit the memory");
    let volume_bytes = blocks * BLOCK_BYTES as u64;
    let drive_blocks = blocks + blocks / 16 + 2 * KNOWN_BLOCKS;
    let drive = Arc::new(StampDrive::new(drive_blocks, template()));
    let config = EngineConfig {
        metadata_cache_bytes: CACHE_BYTES,
        ..EngineConfig::default()
    };
    let folder = folder.join("small-cache");
    let pool = Pool::create_with(&folder, vec![drive], volume_bytes, config).await?;
    let fill = Load {
        until: Until::Commands(volume_bytes / LARGE as u64),
        ..pool.load(Act::Write(Mix::Unique), Places::InOrder, LARGE, 8)
    };
    let filled = cores.run(fill).await?;
    pool.engine.checkpoint().await?;
    let fill_rate = filled.per_second() * LARGE as f64;
    let mut rows =
        vec![Row::new("small-cache-fill-128k", fill_rate, Unit::BytesPerSecond).of_run(&filled)];

    let name = "small-cache-read-4k";
    progress(name);
    let read = Load {
        until: Until::Time(time),
        ..pool.load(Act::Read, Places::Random, SMALL, 32)
    };
    // Not twice: the places would be the same again. What the fill left in memory are other pages.
    let before = pool.engine.status();
    let run = cores.run(read).await?;
    let after = pool.engine.status();
    rows.push(Row::new(name, run.per_second(), Unit::CommandsPerSecond).of_run(&run));
    let reads = (after.map_page_reads - before.map_page_reads) as f64 / run.commands as f64;
    let row = Row::new("small-cache-metadata-reads-per-read", reads, Unit::Ratio);
    rows.push(row.with_goal(Goal::ValueAtMost(1.0)));
    let bytes = after.metadata_resident_bytes as f64;
    let row = Row::new("small-cache-resident", bytes, Unit::Bytes);
    rows.push(row.with_goal(Goal::ValueAtMost(CACHE_BYTES as f64 * 1.25)));
    pool.discard().await;
    Ok(rows)
}
