//! What the machine itself can do: the figures that the engine's are held against.
//!
//! Measured on the same core, over the same kind of buffers as the workloads use.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::Hasher;
use drives::{BLOCK_BYTES, Drive, FileDrive, OpenOptions};
use meta::FingerprintFunction;
use serde::Serialize;

use super::content::{Mix, Numbers, template};
use super::load::{Act, Goal, Load, Places, Until};
use super::pool::Cores;
use super::{Budget, EngineBenchError, median_of};
use crate::machine::thread_seconds;

/// Bytes of buffers that take turns, as the workloads have them.
const DECK_BYTES: usize = 16 << 20;
/// Bytes that no cache holds.
const FAR_BYTES: usize = 256 << 20;
/// Bytes of a large command.
const LARGE_BYTES: usize = 128 << 10;

/// The machine's own limits, one core each. Bytes and commands a second.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Limits {
    /// BLAKE3 of 4 KiB blocks, side by side, out of buffers that take turns.
    pub blake3_bytes_per_second: f64,
    /// Toeplitz-CLNH of 4 KiB blocks with BLAKE3 behind it, out of the same buffers.
    pub clnh_bytes_per_second: f64,
    /// BLAKE3 of one 4 KiB block at a time.
    pub blake3_one_at_a_time_bytes_per_second: f64,
    /// Copying 128 KiB from memory that no cache holds into buffers that take turns.
    pub memcpy_bytes_per_second: f64,
    /// The same within the buffers.
    pub memcpy_cached_bytes_per_second: f64,
    /// CRC-32C of 4 KiB blocks.
    pub crc32c_bytes_per_second: f64,
    /// The file drive itself: 4 KiB random writes, 32 in flight.
    pub raw_write_4k_qd32_per_second: f64,
    /// The same, 128 in flight.
    pub raw_write_4k_qd128_per_second: f64,
    /// The file drive itself: 128 KiB writes in order, 8 in flight.
    pub raw_write_128k_qd8_bytes_per_second: f64,
}

impl Limits {
    /// Measures processor and memory.
    pub(super) async fn of_core(
        &mut self,
        cores: &Cores,
        budget: &Budget,
    ) -> Result<(), EngineBenchError> {
        let time = budget.run_time() / 2;
        let measured = cores.on_first(move || async move { of_core(time) }).await?;
        *self = measured;
        Ok(())
    }

    /// Measures a drive in a file of `bytes`, which is made and written first; it stays.
    pub(super) async fn of_file(
        &mut self,
        cores: &Cores,
        budget: &Budget,
        path: &Path,
        bytes: u64,
    ) -> Result<(), EngineBenchError> {
        let options = OpenOptions {
            create_bytes: Some(bytes),
            ..OpenOptions::default()
        };
        let drive: Arc<dyn Drive> = Arc::new(FileDrive::open(path, &options)?);
        let load = Load {
            goal: Goal::Drive(drive.clone()),
            act: Act::Write(Mix::Unique),
            places: Places::InOrder,
            block_bytes: 1 << 20,
            compressible: 0,
            depth: 8,
            range_bytes: bytes,
            until: Until::Commands(bytes >> 20),
            numbers: Arc::new(Numbers::default()),
            windows: None,
        };
        // New space costs the file system more than space that was written before.
        cores.run(load.clone()).await?;
        drive.flush().await?;
        let random = |depth| Load {
            places: Places::Random,
            block_bytes: BLOCK_BYTES,
            depth,
            ..load.clone()
        };
        let in_order = Load {
            block_bytes: LARGE_BYTES,
            ..load.clone()
        };
        let run = median_of(cores, budget, random(32)).await?;
        self.raw_write_4k_qd32_per_second = run.per_second();
        let run = median_of(cores, budget, random(128)).await?;
        self.raw_write_4k_qd128_per_second = run.per_second();
        let run = median_of(cores, budget, in_order).await?;
        self.raw_write_128k_qd8_bytes_per_second = run.per_second() * LARGE_BYTES as f64;
        Ok(())
    }
}

fn of_core(time: Duration) -> Limits {
    let template = template();
    let deck: Vec<[u8; BLOCK_BYTES]> = vec![*template; DECK_BYTES / BLOCK_BYTES];
    let far = vec![1u8; FAR_BYTES];
    let mut near = vec![2u8; DECK_BYTES];
    let hasher = Hasher::new(FingerprintFunction::Blake3, &[7; 32]);
    let clnh = Hasher::new(FingerprintFunction::Clnh, &[7; 32]);
    let group = LARGE_BYTES / BLOCK_BYTES;

    let batch_rate = |hasher: &Hasher| {
        let mut groups = deck.chunks_exact(group).cycle();
        rate(time, LARGE_BYTES, || {
            hasher.batch(groups.next().unwrap_or_default(), |fingerprint| {
                black_box(fingerprint);
            });
        })
    };
    let side_by_side = batch_rate(&hasher);
    let clnh = batch_rate(&clnh);
    let mut blocks = deck.iter().cycle();
    let one_at_a_time = rate(time, BLOCK_BYTES, || {
        if let Some(block) = blocks.next() {
            black_box(hasher.one(block));
        }
    });
    let mut blocks = deck.iter().cycle();
    let crc32c = rate(time, BLOCK_BYTES, || {
        if let Some(block) = blocks.next() {
            let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block);
            black_box(crc);
        }
    });
    let mut from = far.chunks_exact(LARGE_BYTES).cycle();
    let mut at = 0;
    let memcpy = rate(time, LARGE_BYTES, || {
        if let Some(from) = from.next() {
            near[at..at + LARGE_BYTES].copy_from_slice(from);
            black_box(&near[at]);
        }
        at = (at + LARGE_BYTES) % DECK_BYTES;
    });
    let (first, second) = near.split_at_mut(DECK_BYTES / 2);
    let mut pairs = 0;
    let cached = rate(time, LARGE_BYTES, || {
        let at = pairs * LARGE_BYTES % (DECK_BYTES / 2);
        pairs += 1;
        second[at..at + LARGE_BYTES].copy_from_slice(&first[at..at + LARGE_BYTES]);
        black_box(&second[at]);
    });
    Limits {
        blake3_bytes_per_second: side_by_side,
        clnh_bytes_per_second: clnh,
        blake3_one_at_a_time_bytes_per_second: one_at_a_time,
        memcpy_bytes_per_second: memcpy,
        memcpy_cached_bytes_per_second: cached,
        crc32c_bytes_per_second: crc32c,
        ..Limits::default()
    }
}

/// Bytes a second of something that handles `bytes` at each call, if the thread had its core to itself:
/// by its processor time, the median of three runs, after one to warm up.
fn rate(time: Duration, bytes: usize, mut call: impl FnMut()) -> f64 {
    let each = time / 4;
    let mut rates: Vec<f64> = (0..4)
        .map(|_| {
            let start = Instant::now();
            let core_start = thread_seconds();
            let mut calls = 0u64;
            while start.elapsed() < each {
                for _ in 0..16 {
                    call();
                }
                calls += 16;
            }
            calls as f64 * bytes as f64 / (thread_seconds() - core_start)
        })
        .skip(1)
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
