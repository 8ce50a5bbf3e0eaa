//! Transfers of several reactors at the same time.

use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive};
use futures_util::future::join_all;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::{BufferPool, Config, PoolConfig, ReactorThread};

use crate::model::{number, stamped};
use crate::{BLOCKS, Races, extent};

const REACTORS: u64 = 3;

/// Transfers of a reactor that are under way at a time.
const DEPTH: u64 = 8;

const ROUNDS: u64 = 12;

/// Blocks that all race for.
const RACED: u64 = 4;

fn reactors() -> Vec<ReactorThread> {
    let start = |at| {
        let config = Config {
            name: format!("conformance-{at}"),
            buffer_pool: PoolConfig { bytes: 4 << 20 },
            ..Config::default()
        };
        reactor::start(config).expect("this machine permits io_uring")
    };
    (0..REACTORS).map(start).collect()
}

/// Runs the same on every reactor, at the same time.
async fn on_all<Work>(
    drive: &Arc<dyn Drive>,
    work: impl Fn(Arc<dyn Drive>, u64) -> Work + Send + Copy + 'static,
) where
    Work: Future<Output = ()> + 'static,
{
    let reactors = reactors();
    let running = reactors.iter().zip(0..).map(|(thread, at)| {
        let drive = drive.clone();
        thread.handle().spawn(move || work(drive, at))
    });
    for ended in join_all(running).await {
        ended.expect("a check on another reactor panicked; its message is above");
    }
}

fn pool() -> BufferPool {
    reactor::current().expect("a reactor").buffers().clone()
}

/// What is written last to a block by its only writer, in the round.
fn tag(block: u64, round: u64) -> u64 {
    block << 32 | round << 8 | 1
}

/// Each reactor writes and reads the blocks between those of the others.
pub(crate) async fn check_neighbours(drive: &Arc<dyn Drive>, seed: u64) {
    on_all(drive, move |drive, at| async move {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ at);
        let lanes: Vec<_> = (0..DEPTH)
            .map(|lane| (lane, rng.random_range(1..9)))
            .collect();
        join_all(lanes.into_iter().map(|(lane, stride)| {
            let drive = drive.clone();
            async move { write_lane(&*drive, at, lane, stride).await }
        }))
        .await;
        drive.flush().await.expect("flushed");
    })
    .await;
    let pool = pool();
    for block in 0..BLOCKS / 2 {
        let buffer = pool.alloc(BLOCK_BYTES).await;
        let (result, buffer) = drive.read(buffer, &[extent(block, 0, 1)]).await;
        result.expect("read");
        assert_eq!(
            number(&buffer),
            Some(tag(block, ROUNDS - 1)),
            "block {block}"
        );
    }
}

/// Writes the blocks of a lane, in an order of its own, and reads each back at once.
async fn write_lane(drive: &dyn Drive, at: u64, lane: u64, stride: u64) {
    let pool = pool();
    let own: Vec<u64> = (0..BLOCKS / 2)
        .filter(|block| block % REACTORS == at && block / REACTORS % DEPTH == lane)
        .collect();
    for round in 0..ROUNDS {
        for step in 0..own.len() {
            let block = own[(step + (round * stride) as usize) % own.len()];
            let buffer = stamped(&pool, &[tag(block, round)]).await;
            let (result, buffer) = drive.write(buffer, &[extent(block, 0, 1)]).await;
            result.expect("written");
            let (result, buffer) = drive.read(buffer, &[extent(block, 0, 1)]).await;
            result.expect("read");
            assert_eq!(number(&buffer), Some(tag(block, round)), "block {block}");
        }
    }
}

/// All write the same blocks, and read them meanwhile.
pub(crate) async fn check_races(drive: &Arc<dyn Drive>, races: Races, seed: u64) {
    let first = BLOCKS - RACED;
    let pool = pool();
    let buffer = stamped(&pool, &[7; RACED as usize]).await;
    let start = [extent(first, 0, RACED as u32)];
    drive.write(buffer, &start).await.0.expect("written");
    on_all(drive, move |drive, at| async move {
        join_all((0..DEPTH).map(|lane| {
            let drive = drive.clone();
            async move { race(&*drive, races, at, lane, seed).await }
        }))
        .await;
    })
    .await;
    let buffer = pool.alloc(RACED as usize * BLOCK_BYTES).await;
    let (result, buffer) = drive.read(buffer, &start).await;
    result.expect("read");
    for block in buffer.chunks_exact(BLOCK_BYTES) {
        assert_written(number(block));
    }
}

/// Panics where a block holds what nobody wrote.
fn assert_written(found: Option<u64>) {
    let found = found.expect("a block is torn");
    let is_ours = found >> 16 < REACTORS * DEPTH && found & 0xffff < ROUNDS;
    assert!(found == 7 || is_ours, "nobody wrote {found}");
}

async fn race(drive: &dyn Drive, races: Races, at: u64, lane: u64, seed: u64) {
    let pool = pool();
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ at << 8 ^ lane);
    let first = BLOCKS - RACED;
    for round in 0..ROUNDS {
        let skipped = rng.random_range(0..RACED);
        let count = rng.random_range(1..=RACED - skipped);
        let extents = [extent(first + skipped, 0, count as u32)];
        let tag = (at * DEPTH + lane) << 16 | round;
        let buffer = stamped(&pool, &vec![tag; count as usize]).await;
        let (result, buffer) = drive.write(buffer, &extents).await;
        result.expect("written");
        let (result, buffer) = drive.read(buffer, &extents).await;
        result.expect("read");
        for block in buffer.chunks_exact(BLOCK_BYTES) {
            match races {
                Races::ReadsAreWhole => assert_written(number(block)),
                Races::TheEndIsWhole => {}
            }
        }
    }
}
