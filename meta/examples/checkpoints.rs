//! What it costs to move changes of mappings from the journal into RocksDB: processor time, bytes written, size.
//!
//! `cargo run -p meta --example checkpoints [-- [--dir FOLDER] [--batch CHANGES] [--scale PERCENT] [NAME...]]`
//!
//! Records as the engine journals them (each overwrite frees what was there, new blocks come in order from
//! what is free) are made batches and applied, one after the other, until RocksDB has nothing left to do.
//! Making the records is not counted.

#![expect(clippy::print_stdout, reason = "its results")]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use meta::{
    BatchBuilder, Checkpoint, Fingerprint, MapEntry, NewBlock, Pba, Position, Record, RocksOptions,
    RocksStore, Store,
};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

/// What is written, and how.
struct Workload {
    name: &'static str,
    /// Sub-blocks of the volume.
    volume: u64,
    /// Whether all of it is written in order before the measurement.
    is_full: bool,
    /// Sub-blocks of a write.
    run: u64,
    /// Whether writes follow each other, instead of going anywhere.
    in_order: bool,
    /// Whether the volume has deduplication: contents have fingerprints.
    is_deduplicated: bool,
    /// Changes that are measured.
    changes: u64,
}

const GIB: u64 = 1 << 18;

const WORKLOADS: [Workload; 6] = [
    Workload {
        name: "overwrite-1g",
        volume: GIB,
        is_full: true,
        run: 1,
        in_order: false,
        is_deduplicated: true,
        changes: 4 << 20,
    },
    Workload {
        name: "sparse-64g",
        volume: 64 * GIB,
        is_full: false,
        run: 1,
        in_order: false,
        is_deduplicated: true,
        changes: 4 << 20,
    },
    Workload {
        name: "overwrite-16g",
        volume: 16 * GIB,
        is_full: true,
        run: 1,
        in_order: false,
        is_deduplicated: true,
        changes: 2 << 20,
    },
    Workload {
        name: "in-order-128k",
        volume: 4 * GIB,
        is_full: true,
        run: 32,
        in_order: true,
        is_deduplicated: true,
        changes: 4 << 20,
    },
    Workload {
        name: "overwrite-1g-no-dedup",
        volume: GIB,
        is_full: true,
        run: 1,
        in_order: false,
        is_deduplicated: false,
        changes: 4 << 20,
    },
    Workload {
        name: "in-order-128k-no-dedup",
        volume: 4 * GIB,
        is_full: true,
        run: 32,
        in_order: true,
        is_deduplicated: false,
        changes: 4 << 20,
    },
];

/// One volume, and which blocks it uses.
struct Pool {
    map: Vec<Option<u64>>,
    is_used: Vec<bool>,
    /// Freed by records that are not stored yet.
    freed: Vec<u64>,
    cursor: usize,
    is_deduplicated: bool,
    rng: ChaCha8Rng,
}

impl Pool {
    /// A write of `run` sub-blocks from `start`.
    fn write(&mut self, start: u64, run: u64) -> Record {
        let entries = (start..start + run).map(|at| {
            while self.is_used[self.cursor] {
                self.cursor = (self.cursor + 1) % self.is_used.len();
            }
            let block = self.cursor as u64;
            self.is_used[self.cursor] = true;
            let old = self.map[at as usize].replace(block);
            self.freed.extend(old);
            let mut fingerprint = Fingerprint::NONE;
            if self.is_deduplicated {
                self.rng.fill_bytes(&mut fingerprint.0);
            }
            let new = NewBlock {
                pba: Pba::new(0, block),
                fingerprint,
                crc32c: self.rng.random(),
            };
            MapEntry {
                old: old.map(|block| Pba::new(0, block)),
                new: Some(new),
            }
        });
        let entries = entries.collect();
        Record::Map {
            map: 1,
            start,
            entries,
        }
    }

    /// What was freed can be used again.
    fn stored(&mut self) {
        for block in self.freed.drain(..) {
            self.is_used[block as usize] = false;
        }
    }
}

/// Processor seconds of `clock`.
fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes that this process gave the kernel to write, less those dropped unwritten.
fn bytes_written() -> Result<u64, Box<dyn Error>> {
    let accounts = std::fs::read_to_string("/proc/self/io")?;
    let of = |name: &str| {
        let line = accounts.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse::<u64>().ok())
            .ok_or_else(|| format!("/proc/self/io has no {name}"))
    };
    Ok(of("write_bytes:")?.saturating_sub(of("cancelled_write_bytes:")?))
}

/// Waits until this process does nothing any more: flushes and compactions are through.
fn settle() {
    let mut before = seconds(ClockId::ProcessCPUTime);
    let mut quiet = 0;
    while quiet < 3 {
        std::thread::sleep(Duration::from_millis(200));
        let now = seconds(ClockId::ProcessCPUTime);
        quiet = if now - before < 0.001 { quiet + 1 } else { 0 };
        before = now;
    }
}

/// Processor seconds of this thread.
#[derive(Default)]
struct Spent {
    making: f64,
    building: f64,
    applying: f64,
}

fn timed<T>(sum: &mut f64, work: impl FnOnce() -> T) -> T {
    let before = seconds(ClockId::ThreadCPUTime);
    let out = work();
    *sum += seconds(ClockId::ThreadCPUTime) - before;
    out
}

/// Writes `writes` times, in batches of `batch` changes.
fn write(
    store: &RocksStore,
    pool: &mut Pool,
    batch: u64,
    writes: u64,
    run: u64,
    in_order: bool,
) -> Result<Spent, Box<dyn Error>> {
    let mut spent = Spent::default();
    let slots = pool.map.len() as u64 / run;
    let mut done = 0;
    while done < writes {
        let seq = store.checkpoint()?.position.seq;
        let end = writes.min(done + (batch / run).max(1));
        let records: Vec<(u64, Record)> = timed(&mut spent.making, || {
            let records = (done..end).map(|number| {
                let slot = match in_order {
                    true => number % slots,
                    false => pool.rng.random_range(0..slots),
                };
                pool.write(slot * run, run)
            });
            (seq..).zip(records).collect()
        });
        let position = Position {
            seq: seq + records.len() as u64,
            offset: 0,
        };
        let checkpoint = Checkpoint {
            position,
            epoch: 1,
            last_epoch: None,
        };
        let batch = timed(&mut spent.building, || {
            BatchBuilder::from_records(&records, checkpoint)
        })?;
        timed(&mut spent.applying, || {
            let applied = store.apply(&batch);
            drop(batch);
            applied
        })?;
        timed(&mut spent.making, || {
            drop(records);
            pool.stored();
        });
        done = end;
    }
    Ok(spent)
}

fn measure(workload: &Workload, dir: &Path, batch: u64, scale: u64) -> Result<(), Box<dyn Error>> {
    let id = Uuid::from_u128(1);
    RocksStore::create(dir, id)?;
    let store = RocksStore::open(dir, id, RocksOptions::default())?;
    let changes = workload.changes * scale / 100;
    let blocks = match workload.is_full {
        true => 2 * workload.volume,
        false => changes + batch,
    };
    let mut pool = Pool {
        map: vec![None; workload.volume as usize],
        is_used: vec![false; blocks as usize],
        freed: Vec::new(),
        cursor: 0,
        is_deduplicated: workload.is_deduplicated,
        rng: ChaCha8Rng::seed_from_u64(1),
    };
    if workload.is_full {
        write(&store, &mut pool, batch, workload.volume / 32, 32, true)?;
        settle();
    }
    let (cpu, bytes) = (seconds(ClockId::ProcessCPUTime), bytes_written()?);
    let writes = changes / workload.run;
    let spent = write(
        &store,
        &mut pool,
        batch,
        writes,
        workload.run,
        workload.in_order,
    )?;
    settle();
    let whole = seconds(ClockId::ProcessCPUTime) - cpu - spent.making;
    let count = changes as f64;
    let mapped = pool.map.iter().flatten().count() as f64;
    println!(
        "{:22} {:5.2} us a change: {:4.2} building, {:4.2} applying, {:4.2} behind; {:5.1} bytes written; \
         {:5.1} bytes stored a mapped sub-block ({:.0} MB)",
        workload.name,
        whole / count * 1e6,
        spent.building / count * 1e6,
        spent.applying / count * 1e6,
        (whole - spent.building - spent.applying) / count * 1e6,
        (bytes_written()? - bytes) as f64 / count,
        store.size_bytes() as f64 / mapped,
        store.size_bytes() as f64 / 1e6,
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut names = Vec::new();
    let (mut dir, mut batch, mut scale) = (std::env::temp_dir(), 128 * 1024, 100);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or("an option needs a value");
        match argument.as_str() {
            "--dir" => dir = value()?.into(),
            "--batch" => batch = value()?.parse()?,
            "--scale" => scale = value()?.parse()?,
            _ => names.push(argument),
        }
    }
    println!("batches of {batch} changes");
    let wanted =
        |workload: &&Workload| names.is_empty() || names.iter().any(|name| name == workload.name);
    for workload in WORKLOADS.iter().filter(wanted) {
        let folder = tempfile::tempdir_in(&dir)?;
        measure(workload, &folder.path().join("metadata"), batch, scale)?;
    }
    Ok(())
}
