//! Figures that depend on how much a pool holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::VolumeSpec;
use drives::BLOCK_BYTES;

use super::content::{self, Mix};
use super::load::{Act, Load, Places, Until};
use super::pool::{KNOWN_BLOCKS, Pool, volume_spec};
use super::report::{Goal, Row, Unit};
use super::stamp::StampDrive;
use super::{Bench, EngineBenchError, LARGE, SMALL};
use crate::machine;

/// Freeing is watched for so long at most.
const FREEING_MAX: Duration = Duration::from_secs(120);

/// What the tables of a check take for a block, about.
const CHECK_BYTES_OF_BLOCK: usize = 12;

/// What one Copy of a host takes at most.
const COPY_BYTES: u64 = 4 << 30;

impl Bench<'_> {
    /// Figures that depend on how much the pool holds: on a drive that keeps 16 bytes of each block.
    pub(super) async fn large(&mut self, blocks: u64) -> Result<(), EngineBenchError> {
        (self.progress)("filling a large pool");
        let volume_bytes = blocks * BLOCK_BYTES as u64;
        let drive_blocks = blocks + blocks / 4 + 2 * KNOWN_BLOCKS;
        let drive = Arc::new(StampDrive::new(drive_blocks, content::template()));
        let folder = self.folder.join("large");
        let pool = Pool::create(&folder, drive.clone(), volume_bytes).await?;
        pool.write_known(&self.cores).await?;
        let resident = machine::resident_bytes();
        let written = machine::written_bytes().map_err(EngineBenchError::Accounts)?;
        let start = Instant::now();
        let fill = Load {
            until: Until::Commands(blocks),
            ..pool.load(Act::Write(Mix::Unique), Places::Shuffled, SMALL, 32)
        };
        let from = KNOWN_BLOCKS;
        let run = self.cores.run(fill).await?;
        let row = Row::new("large-fill-4k", run.per_second(), Unit::CommandsPerSecond);
        self.put(row.of_run(&run));
        let processor = machine::process_seconds();
        let (pool, took) = pool.crash_and_open().await?;
        // With what it takes to close what crashed.
        let processor = machine::process_seconds() - processor;
        let row = Row::new(
            "large-open-after-crash",
            took.as_secs_f64() * 1e3,
            Unit::Milliseconds,
        );
        self.put(row.with_goal(Goal::ValueAtMost(2000.0)));
        let name = "large-open-processor";
        self.put(Row::new(name, processor * 1e3, Unit::Milliseconds));
        let loading = Instant::now();
        pool.engine.load().await?;
        let took = loading.elapsed().as_secs_f64() * 1e3;
        self.put(Row::new("large-load-after-crash", took, Unit::Milliseconds));
        pool.engine.flush().await?;
        pool.engine.checkpoint().await?;
        let sustained = blocks as f64 / start.elapsed().as_secs_f64();
        let name = "large-fill-4k-until-stored";
        self.put(Row::new(name, sustained, Unit::CommandsPerSecond));
        let written = machine::written_bytes()
            .map_err(EngineBenchError::Accounts)?
            .saturating_sub(written);
        // Every block went to the drive once, which keeps nothing on disk: the rest is metadata.
        let share = written as f64 / volume_bytes as f64;
        let row = Row::new("large-device-bytes-per-byte", 1.0 + share, Unit::Ratio);
        self.put(row.with_goal(Goal::ValueAtMost(1.15)));
        let row = Row::new("large-metadata-share", share, Unit::Ratio);
        self.put(row.with_goal(Goal::ValueAtMost(0.10)));
        // What it takes on disk in the end, the journal included.
        let kept = pool.engine.status().metadata_bytes as f64 / volume_bytes as f64;
        self.put(Row::new("large-metadata-kept", kept, Unit::Ratio));
        let resident = machine::resident_bytes()
            .saturating_sub(resident)
            .saturating_sub(drive.memory_bytes());
        let row = Row::new(
            "large-memory-per-block",
            resident as f64 / blocks as f64,
            Unit::Bytes,
        );
        self.put(row);

        let name = "large-read-4k";
        let load = pool.load(Act::Read, Places::Random, SMALL, 32);
        let row = self.median(name, load).await?.commands(name);
        self.put(row);
        let name = "large-write-4k-dup";
        let mix = Mix::Duplicates {
            percent: 100,
            from,
            known: blocks,
        };
        let load = pool.load_on_known(Act::Write(mix), Places::Random, SMALL, 32)?;
        let row = self.median(name, load).await?.commands(name);
        self.put(row);
        let pool = self.checking(pool, blocks).await?;
        self.copying(&pool, "large-copy").await?;
        self.freeing(&pool, blocks).await?;
        pool.close().await?;
        Ok(())
    }

    /// Has the rows checked, with tables that hold all blocks, and with such that hold an eighth of them: what does not fit
    /// costs time, not memory.
    async fn checking(&mut self, pool: Pool, blocks: u64) -> Result<Pool, EngineBenchError> {
        (self.progress)("checking a large pool");
        pool.engine.checkpoint().await?;
        let eighth = blocks as usize * CHECK_BYTES_OF_BLOCK / 8;
        let (pool, checks) = pool.check(&[meta::CHECK_MEMORY_BYTES, eighth]).await?;
        let names = ["large-check", "large-check-eighth"];
        for ((took, report, memory), name) in checks.into_iter().zip(names) {
            if !report.is_consistent() {
                return Err(EngineBenchError::Inconsistent);
            }
            let took = took.as_secs_f64() * 1e3;
            self.put(Row::new(name, took, Unit::Milliseconds));
            let row = Row::new(format!("{name}-passes"), report.passes as f64, Unit::Ratio);
            self.put(row);
            let row = Row::new(format!("{name}-memory"), memory as f64, Unit::Bytes);
            self.put(row);
        }
        Ok(pool)
    }

    /// Copies a volume that was written in order, as those of machines mostly are.
    pub(super) async fn copy_in_order(&mut self, blocks: u64) -> Result<(), EngineBenchError> {
        (self.progress)("filling a volume to copy");
        let volume_bytes = blocks * BLOCK_BYTES as u64;
        let drive_blocks = blocks + blocks / 16 + 2 * KNOWN_BLOCKS;
        let drive = Arc::new(StampDrive::new(drive_blocks, content::template()));
        let folder = self.folder.join("copy");
        let pool = Pool::create(&folder, drive, volume_bytes).await?;
        let fill = Load {
            until: Until::Commands(volume_bytes / LARGE as u64),
            ..pool.load(Act::Write(Mix::Unique), Places::InOrder, LARGE, 8)
        };
        self.cores.run(fill).await?;
        pool.engine.checkpoint().await?;
        self.copying(&pool, "copy").await?;
        pool.discard().await;
        Ok(())
    }

    /// Copies the whole work volume by reference, as hosts do it with Copy, and gives the copy back.
    async fn copying(&mut self, pool: &Pool, name: &str) -> Result<(), EngineBenchError> {
        (self.progress)("copying a volume by reference");
        let Some(reactor) = reactor::current() else {
            return Err(EngineBenchError::Stopped);
        };
        let size_bytes = pool.volume.info().size_bytes;
        let spec = VolumeSpec {
            name: "copy".to_owned(),
            size_bytes,
            ..volume_spec()
        };
        let copy = pool.engine.create_volume(spec).await?;
        let start = Instant::now();
        let mut at = 0;
        while at < size_bytes {
            let len = COPY_BYTES.min(size_bytes - at);
            copy.copy(at, &pool.volume, at, len, reactor.buffers())
                .await?;
            at += len;
        }
        let took = start.elapsed().as_secs_f64();
        let rate = size_bytes as f64 / took;
        self.put(Row::new(name, rate, Unit::BytesPerSecond));
        let row_name = format!("{name}-took");
        self.put(Row::new(row_name, took * 1e3, Unit::Milliseconds));
        pool.engine.checkpoint().await?;
        let took = start.elapsed().as_secs_f64() * 1e3;
        let row_name = format!("{name}-until-stored");
        let row = Row::new(row_name, took, Unit::Milliseconds);
        self.put(row);
        drop(copy);
        pool.engine.delete_volume("copy").await?;
        pool.engine.maintain().await?;
        Ok(())
    }

    /// Gives the whole work volume back at once, and looks what that costs reads of the other one.
    async fn freeing(&mut self, pool: &Pool, blocks: u64) -> Result<(), EngineBenchError> {
        (self.progress)("freeing a large volume");
        let reads = Load {
            until: Until::Time(self.plan.run_time),
            ..pool.load_on_known(Act::Read, Places::Random, SMALL, 8)?
        };
        let quiet = self.cores.run(reads.clone()).await?;
        let start = Instant::now();
        let size_bytes = pool.volume.info().size_bytes;
        pool.volume.trim(0, size_bytes).await?;
        let took = start.elapsed().as_secs_f64() * 1e3;
        self.put(Row::new("large-trim-all", took, Unit::Milliseconds));
        let mut worst = 0.0f64;
        let mut remaining = size_bytes;
        while remaining > 0 && start.elapsed() < FREEING_MAX {
            let run = self.cores.run(reads.clone()).await?;
            worst = worst.max(run.p99_us);
            let status = pool.engine.status();
            remaining = status
                .trimming
                .iter()
                .map(|trim| trim.remaining_bytes)
                .sum();
        }
        let freed = blocks.saturating_sub(remaining / BLOCK_BYTES as u64);
        let row = Row::new(
            "large-free-blocks",
            freed as f64 / start.elapsed().as_secs_f64(),
            Unit::CommandsPerSecond,
        );
        self.put(row);
        let row = Row::new("large-free-read-p99", worst, Unit::Microseconds);
        let row = row.beside("the same reads before", quiet.p99_us);
        self.put(row.with_goal(Goal::RatioAtMost(3.0)));
        Ok(())
    }
}
