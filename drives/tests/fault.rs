//! The fault-injecting drive against a model, through crashes.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use drives::{
    BLOCK_BYTES, Drive, ErrorKind, Extent, FaultDrive, FaultPlan, GatherExtent, SECTOR_BYTES,
};
use futures_util::FutureExt;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::{Buffer, BufferPool};

const BLOCKS: u64 = 12;

fn pool() -> BufferPool {
    BufferPool::new(1).expect("memory")
}

fn extent(block: u64, buffer_offset: usize, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset,
        blocks,
    }
}

/// Polls until done. A future that the power cut has stopped gives `None`.
fn finish<T>(drive: &FaultDrive, mut future: Pin<Box<dyn Future<Output = T> + '_>>) -> Option<T> {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending if drive.is_off() => return None,
            Poll::Pending => {}
        }
    }
}

fn write(drive: &FaultDrive, pool: &BufferPool, block: u64, byte: u8) -> Option<()> {
    let mut buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
    buffer.fill(byte);
    let extents = [extent(block, 0, 1)];
    let (result, _) = finish(drive, drive.write(buffer, &extents))?;
    result.expect("no fault was planned");
    Some(())
}

fn read(drive: &FaultDrive, pool: &BufferPool, block: u64) -> Buffer {
    let buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
    let (result, buffer) = drive
        .read(buffer, &[extent(block, 0, 1)])
        .now_or_never()
        .expect("no delay is planned");
    result.expect("no fault is planned");
    buffer
}

fn all_are(buffer: &[u8], byte: u8) -> bool {
    buffer.iter().all(|&b| b == byte)
}

/// What the sectors of a block may hold. Each write gives all its sectors one number.
#[derive(Clone, Debug, Default)]
struct Allowed {
    /// In the order of the writes; the last is what a read sees.
    since_flush: Vec<u64>,
    flushed: u64,
    /// A write was cut off: reads may see it or not.
    unsure: Vec<u64>,
}

impl Allowed {
    fn now(&self) -> u64 {
        *self.since_flush.last().unwrap_or(&self.flushed)
    }

    fn after_crash(&self) -> Vec<u64> {
        [&[self.flushed], &self.since_flush[..], &self.unsure[..]].concat()
    }
}

fn fill(buffer: &mut [u8], number: u64) {
    for sector in buffer.chunks_mut(SECTOR_BYTES) {
        sector.fill(number as u8);
        sector[..8].copy_from_slice(&number.to_le_bytes());
    }
}

fn sectors(buffer: &[u8]) -> Vec<u64> {
    let number = |sector: &[u8]| u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
    let sectors = buffer.chunks(SECTOR_BYTES).map(|sector| {
        assert!(
            all_are(&sector[8..], sector[0]),
            "a sector is never torn itself"
        );
        number(sector)
    });
    sectors.collect()
}

enum Doing<'a> {
    Write(BTreeMap<u64, u64>, Outcome<'a>),
    /// With what had completed when it began.
    Flush(BTreeMap<u64, u64>, Outcome<'a>),
}

type Outcome<'a> = Pin<Box<dyn Future<Output = Result<(), drives::DriveError>> + 'a>>;

fn begin_write<'a>(drive: &'a FaultDrive, buffer: Buffer, extents: &'a [Extent]) -> Outcome<'a> {
    Box::pin(async move { drive.write(buffer, extents).await.0 })
}

/// The same write, its bytes in a buffer for each extent.
fn begin_gathered<'a>(
    drive: &'a FaultDrive,
    pool: &BufferPool,
    buffer: Buffer,
    extents: &'a [Extent],
) -> Outcome<'a> {
    let mut buffers = Vec::new();
    let mut gathered = Vec::new();
    for extent in extents {
        let bytes = extent.blocks as usize * BLOCK_BYTES;
        let mut own = pool.try_alloc(BLOCK_BYTES + bytes).expect("room");
        own[BLOCK_BYTES..].copy_from_slice(&buffer[extent.buffer_offset..][..bytes]);
        gathered.push(GatherExtent {
            block: extent.block,
            buffer: buffers.len() as u32,
            buffer_offset: BLOCK_BYTES as u32,
            blocks: extent.blocks,
        });
        buffers.push(own);
    }
    Box::pin(async move { drive.write_many(Rc::new(buffers), &gathered).await })
}

/// Many operations at once, polled in any order, until the power is cut; then every block is checked.
fn live_and_crash(seed: u64) {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let pool = pool();
    let mut model: BTreeMap<u64, Allowed> = (0..BLOCKS)
        .map(|block| (block, Allowed::default()))
        .collect();
    let mut next_number = 1u64;
    let mut drive = FaultDrive::new(BLOCKS, FaultPlan::default());
    for _ in 0..3 {
        let plan = FaultPlan {
            seed: chance.random(),
            power_cut: chance.random_bool(0.7).then(|| chance.random_range(0..60)),
            max_delay: chance.random_range(0..5),
            ..FaultPlan::default()
        };
        drive = drive.crash(plan);
        let extents: Vec<[Extent; 2]> = (0..100)
            .map(|_| {
                let first = chance.random_range(0..BLOCKS - 3);
                let second = chance.random_range(first + 2..BLOCKS);
                [extent(second, 0, 1), extent(first, BLOCK_BYTES, 2)]
            })
            .collect();
        let mut doing: Vec<Doing<'_>> = Vec::new();
        for extents in &extents {
            let blocks = [extents[0].block, extents[1].block, extents[1].block + 1];
            let busy = doing.iter().any(|doing| match doing {
                Doing::Write(written, _) => blocks.iter().any(|b| written.contains_key(b)),
                Doing::Flush(..) => false,
            });
            if chance.random_ratio(1, 4) {
                let completed = model.iter().map(|(&block, allowed)| (block, allowed.now()));
                doing.push(Doing::Flush(completed.collect(), drive.flush()));
            } else if !busy {
                let mut buffer = pool.try_alloc(3 * BLOCK_BYTES).expect("room");
                let mut written = BTreeMap::new();
                for (i, block) in blocks.into_iter().enumerate() {
                    fill(&mut buffer[i * BLOCK_BYTES..][..BLOCK_BYTES], next_number);
                    written.insert(block, next_number);
                    next_number += 1;
                }
                let writing = if chance.random() {
                    begin_write(&drive, buffer, extents)
                } else {
                    begin_gathered(&drive, &pool, buffer, extents)
                };
                doing.push(Doing::Write(written, writing));
            }
            // The operation begins, which fixes what a flush has to cover.
            let last = doing.len().saturating_sub(1);
            let count = if doing.is_empty() {
                0
            } else {
                chance.random_range(0..8)
            };
            let mut polls: Vec<usize> = (0..count)
                .map(|_| chance.random_range(0..doing.len()))
                .collect();
            polls.insert(0, last);
            for at in polls {
                step(&mut doing, at, &mut model);
            }
            if drive.is_off() {
                break;
            }
        }
        if chance.random() {
            drive.cut_power();
        }
        for doing in doing {
            cut_off(doing, &mut model);
        }
        let process_only = chance.random_ratio(1, 4);
        let plan = FaultPlan {
            seed: chance.random(),
            ..FaultPlan::default()
        };
        let after = if process_only {
            drive.restart(plan)
        } else {
            drive.crash(plan)
        };
        for (&block, allowed) in &mut model {
            let found = sectors(&read(&after, &pool, block));
            let may_be = if process_only {
                [&[allowed.now()], &allowed.unsure[..]].concat()
            } else {
                allowed.after_crash()
            };
            for (i, sector) in found.iter().enumerate() {
                assert!(
                    may_be.contains(sector),
                    "seed {seed}: sector {i} of block {block} holds {sector}, not one of {may_be:?}"
                );
            }
            // From here on the model needs one content per block.
            let mut buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
            fill(&mut buffer, next_number);
            let (result, _) = after
                .write(buffer, &[extent(block, 0, 1)])
                .now_or_never()
                .expect("no delay is planned");
            result.expect("no fault is planned");
            *allowed = Allowed {
                flushed: next_number,
                ..Allowed::default()
            };
            next_number += 1;
        }
        after
            .flush()
            .now_or_never()
            .expect("no delay")
            .expect("no fault");
        drive = after;
    }
}

fn step(doing: &mut Vec<Doing<'_>>, at: usize, model: &mut BTreeMap<u64, Allowed>) {
    let mut cx = Context::from_waker(Waker::noop());
    let done = match doing.get_mut(at) {
        None => return,
        Some(Doing::Write(_, future)) => match future.as_mut().poll(&mut cx) {
            Poll::Ready(result) => {
                result.expect("no fault was planned");
                true
            }
            Poll::Pending => false,
        },
        Some(Doing::Flush(_, future)) => match future.as_mut().poll(&mut cx) {
            Poll::Ready(result) => {
                result.expect("no fault was planned");
                true
            }
            Poll::Pending => false,
        },
    };
    if !done {
        return;
    }
    match doing.swap_remove(at) {
        Doing::Write(written, _) => {
            for (block, number) in written {
                model
                    .get_mut(&block)
                    .expect("a block")
                    .since_flush
                    .push(number);
            }
        }
        Doing::Flush(covered, _) => {
            for (block, number) in covered {
                let allowed = model.get_mut(&block).expect("a block");
                let at = allowed.since_flush.iter().position(|&n| n == number);
                if let Some(at) = at {
                    allowed.since_flush.drain(..=at);
                    allowed.flushed = number;
                }
            }
        }
    }
}

fn cut_off(doing: Doing<'_>, model: &mut BTreeMap<u64, Allowed>) {
    if let Doing::Write(written, _) = doing {
        for (block, number) in written {
            model.get_mut(&block).expect("a block").unsure.push(number);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn after_a_crash_flushed_blocks_are_exact_and_others_old_new_or_torn(seed: u64) {
        live_and_crash(seed);
    }

    #[test]
    fn a_run_can_be_repeated(seed: u64) {
        let run = || {
            let pool = pool();
            let plan = FaultPlan { seed, max_delay: 3, power_cut: Some(20), ..FaultPlan::default() };
            let drive = FaultDrive::new(BLOCKS, plan);
            for i in 0..30u8 {
                if write(&drive, &pool, u64::from(i) % BLOCKS, i).is_none() {
                    break;
                }
            }
            let after = drive.crash(FaultPlan::default());
            (0..BLOCKS).map(|block| read(&after, &pool, block).to_vec()).collect::<Vec<_>>()
        };
        prop_assert!(run() == run());
    }
}

#[test]
fn what_was_flushed_survives_and_what_was_not_is_lost_now_and_then() {
    let pool = pool();
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let drive = FaultDrive::new(
            2,
            FaultPlan {
                seed,
                ..FaultPlan::default()
            },
        );
        write(&drive, &pool, 0, 1).expect("on");
        drive
            .flush()
            .now_or_never()
            .expect("no delay")
            .expect("no fault");
        write(&drive, &pool, 1, 2).expect("on");
        let after = drive.crash(FaultPlan::default());
        assert!(drive.is_off());
        assert!(all_are(&read(&after, &pool, 0), 1));
        let block = read(&after, &pool, 1);
        match (all_are(&block, 0), all_are(&block, 2)) {
            (true, _) => old += 1,
            (_, true) => new += 1,
            _ => torn += 1,
        }
    }
    assert!(
        old > 20 && new > 20 && torn > 20,
        "{old} old, {new} new, {torn} torn"
    );
}

#[test]
fn a_restart_of_the_process_loses_nothing_that_was_completed() {
    let pool = pool();
    for seed in 0..50 {
        let mut drive = FaultDrive::new(
            2,
            FaultPlan {
                seed,
                ..FaultPlan::default()
            },
        );
        for byte in 1..5 {
            write(&drive, &pool, 1, byte).expect("on");
            drive = drive.restart(FaultPlan::default());
            assert!(all_are(&read(&drive, &pool, 1), byte));
        }
        drive
            .flush()
            .now_or_never()
            .expect("no delay")
            .expect("no fault");
        let after = drive.crash(FaultPlan::default());
        assert!(all_are(&read(&after, &pool, 1), 4));
    }
}

#[test]
fn planned_operations_fail_and_no_others() {
    let pool = pool();
    let plan = FaultPlan {
        fail: vec![1, 3, 5, 7],
        ..FaultPlan::default()
    };
    let drive = FaultDrive::new(4, plan);
    write(&drive, &pool, 0, 1).expect("operation 0");
    let extents = [extent(0, 0, 1)];
    let mut buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
    buffer.fill(2);
    let (result, buffer) = drive
        .write(buffer, &extents)
        .now_or_never()
        .expect("no delay");
    let error = result.expect_err("operation 1");
    assert_eq!(error.kind(), ErrorKind::Io);
    let (result, buffer) = drive
        .read(buffer, &extents)
        .now_or_never()
        .expect("no delay");
    result.expect("operation 2");
    for sector in buffer.chunks(SECTOR_BYTES) {
        assert!(
            all_are(sector, 1) || all_are(sector, 2),
            "old, new or mixed"
        );
    }
    let (result, _) = drive
        .read(buffer, &extents)
        .now_or_never()
        .expect("no delay");
    assert!(result.is_err(), "operation 3");
    assert!(
        drive.flush().now_or_never().expect("no delay").is_ok(),
        "operation 4"
    );
    assert!(
        drive.flush().now_or_never().expect("no delay").is_err(),
        "operation 5"
    );
    assert!(
        drive
            .discard(0, 1)
            .now_or_never()
            .expect("no delay")
            .is_ok(),
        "operation 6"
    );
    assert!(
        drive
            .discard(0, 1)
            .now_or_never()
            .expect("no delay")
            .is_err(),
        "operation 7"
    );
    assert_eq!(drive.operations(), 8);
}

#[test]
fn a_gathered_write_that_fails_leaves_old_new_or_mixed_blocks_and_gives_its_buffers_back() {
    let pool = pool();
    let plan = FaultPlan {
        fail: vec![2],
        ..FaultPlan::default()
    };
    let drive = FaultDrive::new(4, plan);
    write(&drive, &pool, 0, 1).expect("operation 0");
    write(&drive, &pool, 1, 1).expect("operation 1");
    let buffers: Vec<Buffer> = [2u8, 3]
        .into_iter()
        .map(|byte| {
            let mut buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
            buffer.fill(byte);
            buffer
        })
        .collect();
    let extents = [0u32, 1].map(|index| GatherExtent {
        block: u64::from(index),
        buffer: index,
        buffer_offset: 0,
        blocks: 1,
    });
    let buffers = Rc::new(buffers);
    let result = drive
        .write_many(buffers.clone(), &extents)
        .now_or_never()
        .expect("no delay");
    assert_eq!(result.expect_err("operation 2").kind(), ErrorKind::Io);
    assert!(all_are(&buffers[0], 2) && all_are(&buffers[1], 3));
    for (block, new) in [(0, 2), (1, 3)] {
        let found = read(&drive, &pool, block);
        for sector in found.chunks(SECTOR_BYTES) {
            assert!(all_are(sector, 1) || all_are(sector, new));
        }
    }
}

#[test]
fn nothing_completes_after_the_power_is_cut() {
    let pool = pool();
    let drive = FaultDrive::new(
        4,
        FaultPlan {
            power_cut: Some(1),
            ..FaultPlan::default()
        },
    );
    assert!(write(&drive, &pool, 0, 1).is_some());
    assert!(!drive.is_off());
    assert!(write(&drive, &pool, 0, 2).is_none());
    assert!(drive.is_off());
    assert!(write(&drive, &pool, 0, 3).is_none());
    assert!(drive.flush().now_or_never().is_none());
    assert!(drive.discard(0, 1).now_or_never().is_none());
}

#[test]
fn a_corrupted_block_is_read_without_an_error() {
    let pool = pool();
    let drive = FaultDrive::new(2, FaultPlan::default());
    write(&drive, &pool, 1, 5).expect("on");
    drive.corrupt(1);
    let block = read(&drive, &pool, 1);
    assert!(block.chunks(SECTOR_BYTES).all(|sector| !all_are(sector, 5)));
}

#[test]
fn a_discarded_block_reads_as_anything_but_takes_new_content() {
    let pool = pool();
    let drive = FaultDrive::new(64, FaultPlan::default());
    for block in 0..64 {
        write(&drive, &pool, block, 9).expect("on");
    }
    drive
        .discard(0, 64)
        .now_or_never()
        .expect("no delay")
        .expect("no fault");
    let kinds: Vec<bool> = (0..64)
        .map(|b| all_are(&read(&drive, &pool, b), 0))
        .collect();
    assert!(
        kinds.contains(&true) && kinds.contains(&false),
        "zeros and rubbish"
    );
    write(&drive, &pool, 3, 7).expect("on");
    assert!(all_are(&read(&drive, &pool, 3), 7));
}
