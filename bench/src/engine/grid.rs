//! The grid that dm-vdo is measured with: contents that compress by 0, 55 and 90 percent, of which 0, 50
//! and 90 percent are duplicates, written in order to volumes that compress by LZ4.
//!
//! A content that compresses by 55 percent is 45 percent noise, and zeros, as fio makes it. Each cell
//! gives the rate of its writes, and the data blocks in use for each byte that was written (metadata not
//! counted). The duplicates are of contents that were written before, to another volume, and that do not
//! count.

use std::path::Path;
use std::sync::Arc;

use dedup::{Volume, VolumeSpec};
use drives::{BLOCK_BYTES, Drive, MemoryDrive};
use meta::Compression;

use super::EngineBenchError;
use super::content::Mix;
use super::load::{Act, Goal, Load, Places, Run, Until};
use super::pool::{Cores, Pool};
use super::report::{Row, Unit};

const COMPRESSIBLE_PERCENT: [u32; 3] = [0, 55, 90];
const DUPLICATE_PERCENT: [u32; 3] = [0, 50, 90];

/// Bytes and depth of the writes.
const COMMAND_BYTES: usize = 128 << 10;
const DEPTH: usize = 8;

/// All cells, on a memory drive and volumes of so many bytes.
pub(super) async fn run(
    cores: &Cores,
    folder: &Path,
    volume_bytes: u64,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>, EngineBenchError> {
    progress("filling the grid's memory drive");
    let volumes = (COMPRESSIBLE_PERCENT.len() * (1 + DUPLICATE_PERCENT.len())) as u64;
    // A volume more, and what the pool's own volumes and its label take.
    let blocks = (volumes + 2) * volume_bytes / BLOCK_BYTES as u64;
    let drive: Arc<dyn Drive> = Arc::new(MemoryDrive::resident(blocks)?);
    let pool = Pool::create(&folder.join("grid"), drive, volume_bytes).await?;
    let grid = Grid {
        cores,
        pool: &pool,
        volume_bytes,
    };
    let mut rows = Vec::new();
    for compressible in COMPRESSIBLE_PERCENT {
        let known = grid.volume(format!("known-{compressible}")).await?;
        let from = pool.numbers.take(grid.blocks());
        grid.write(&known, Mix::InOrder { from }, compressible)
            .await?;
        for percent in DUPLICATE_PERCENT {
            let name = format!("grid-c{compressible}-d{percent}");
            progress(&name);
            let volume = grid.volume(name.clone()).await?;
            let mix = Mix::Duplicates {
                percent,
                from,
                known: grid.blocks(),
            };
            let before = pool.engine.status().used_bytes;
            let run = grid.write(&volume, mix, compressible).await?;
            let used = pool.engine.status().used_bytes - before;
            let rate = run.per_second() * COMMAND_BYTES as f64;
            rows.push(Row::new(&*name, rate, Unit::BytesPerSecond).of_run(&run));
            let space = used as f64 / volume_bytes as f64;
            rows.push(Row::new(format!("{name}-space"), space, Unit::Ratio));
        }
        let run = grid.go(&known, Act::Read, compressible).await?;
        let name = format!("grid-c{compressible}-read-128k");
        let rate = run.per_second() * COMMAND_BYTES as f64;
        rows.push(Row::new(name, rate, Unit::BytesPerSecond).of_run(&run));
    }
    pool.discard().await;
    Ok(rows)
}

struct Grid<'a> {
    cores: &'a Cores,
    pool: &'a Pool,
    volume_bytes: u64,
}

impl Grid<'_> {
    fn blocks(&self) -> u64 {
        self.volume_bytes / BLOCK_BYTES as u64
    }

    /// A new volume that compresses.
    async fn volume(&self, name: String) -> Result<Arc<Volume>, EngineBenchError> {
        let spec = VolumeSpec {
            name,
            size_bytes: self.volume_bytes,
            compression: Compression::Lz4,
            ..super::pool::volume_spec()
        };
        Ok(self.pool.engine.create_volume(spec).await?)
    }

    /// Writes the whole volume once.
    async fn write(
        &self,
        volume: &Arc<Volume>,
        mix: Mix,
        compressible: u32,
    ) -> Result<Run, EngineBenchError> {
        self.go(volume, Act::Write(mix), compressible).await
    }

    /// Goes through the whole volume once.
    async fn go(
        &self,
        volume: &Arc<Volume>,
        act: Act,
        compressible: u32,
    ) -> Result<Run, EngineBenchError> {
        let load = Load {
            goal: Goal::Volume(volume.clone()),
            range_bytes: self.volume_bytes,
            until: Until::Commands(self.volume_bytes / COMMAND_BYTES as u64),
            compressible,
            ..self.pool.load(act, Places::InOrder, COMMAND_BYTES, DEPTH)
        };
        self.cores.run(load).await
    }
}
