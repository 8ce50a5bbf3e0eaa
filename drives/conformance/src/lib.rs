//! For tests: what every kind of drive must do, as functions over any [`Drive`].
//!
//! [`check`] tells one long story from a seed: what does not fit is refused; what is written is read, scattered and gathered,
//! by one reactor and by several side by side; transfers that race for a block leave one of them whole; what is dropped
//! half-way harms nothing else; discards leave neighbours alone; buffers come back. [`check_failures`] and [`check_absent`] are
//! for drives that fail. They use the first [`BLOCKS`] blocks, which may hold anything before.
//!
//! A [`SlowDrive`] is for who has to cope with one.
//!
//! They panic with the seed where a drive does something else.
#![forbid(unsafe_code)]

mod model;
mod side_by_side;
mod slow;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use drives::{BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent};
use reactor::{Buffer, BufferPool};

pub use slow::SlowDrive;

/// Blocks that a drive must have, and that are written.
pub const BLOCKS: u64 = 256;

/// Bytes of the buffers that a check uses.
const BUFFER_BYTES: usize = 8 << 20;

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a kind of drive promises beyond the trait, which leaves overlapping transfers to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Races {
    /// A read that races with writes finds each block as one of them left it, or as it was before.
    ReadsAreWhole,
    /// Only what is there when all have ended is whole.
    TheEndIsWhole,
}

/// Checks a drive. Runs on a reactor, and starts others.
///
/// # Panics
/// The drive does not do what [`Drive`] says.
pub async fn check(drive: Arc<dyn Drive>, races: Races, seed: u64) {
    assert!(drive.blocks() >= BLOCKS, "{} is too small", drive.name());
    assert!(!drive.is_absent());
    println_seed(&*drive, seed);
    let pool = BufferPool::new(BUFFER_BYTES).expect("memory");
    check_refusals(&*drive, &pool).await;
    model::check(&*drive, &pool, seed).await;
    check_discards(&*drive, &pool).await;
    check_flushing(&*drive, &pool).await;
    check_dropped(&*drive, &pool).await;
    side_by_side::check_neighbours(&drive, seed).await;
    side_by_side::check_races(&drive, races, seed).await;
    drive.flush().await.expect("flushed");
    all_come_back(&pool).await;
}

/// Shown by a test that fails.
#[allow(clippy::print_stdout)]
fn println_seed(drive: &dyn Drive, seed: u64) {
    println!("{} is checked with seed {seed}", drive.name());
}

/// Checks that a drive which fails says so, gives buffers back, and works again afterwards. `fail` makes all that is asked of it
/// fail, or none.
///
/// # Panics
/// It does something else.
pub async fn check_failures(drive: Arc<dyn Drive>, fail: impl Fn(bool)) {
    let pool = BufferPool::new(BUFFER_BYTES).expect("memory");
    put(&*drive, &pool, 3, 1).await.expect("written");
    fail(true);
    let error = put(&*drive, &pool, 3, 2).await.expect_err("it fails");
    assert_failure(&*drive, &error);
    let error = look(&*drive, &pool, 3).await.expect_err("it fails");
    assert_failure(&*drive, &error);
    assert!(!error.is_in_doubt(), "a read is never in doubt: {error}");
    let buffers = Rc::new(vec![filled(&pool, 1, 3).await]);
    let error = drive
        .write_many(buffers.clone(), &[gather(3, 0, 0, 1)])
        .await;
    assert_failure(&*drive, &error.expect_err("it fails"));
    assert!(Rc::into_inner(buffers).is_some(), "its share is given up");
    fail(false);
    put(&*drive, &pool, 3, 4).await.expect("it works again");
    assert_eq!(
        look(&*drive, &pool, 3).await.expect("read"),
        vec![4; BLOCK_BYTES]
    );
    all_come_back(&pool).await;
}

/// Checks a drive that is not there.
///
/// # Panics
/// It does something else than to fail with a reason.
pub async fn check_absent(drive: &dyn Drive) {
    let pool = BufferPool::new(BUFFER_BYTES).expect("memory");
    assert!(drive.is_absent());
    assert_failure(drive, &put(drive, &pool, 0, 1).await.expect_err("absent"));
    assert_failure(drive, &look(drive, &pool, 0).await.expect_err("absent"));
    let buffers = Rc::new(vec![filled(&pool, 1, 3).await]);
    let written = drive
        .write_many(buffers.clone(), &[gather(0, 0, 0, 1)])
        .await;
    assert_failure(drive, &written.expect_err("absent"));
    drop(buffers);
    assert_failure(drive, &drive.flush().await.expect_err("absent"));
    assert_failure(drive, &drive.discard(0, 1).await.expect_err("absent"));
    all_come_back(&pool).await;
}

fn assert_failure(drive: &dyn Drive, error: &DriveError) {
    assert_ne!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.drive(), drive.name());
    assert!(error.to_string().contains(drive.name()), "{error}");
}

fn extent(block: u64, offset: usize, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset: offset,
        blocks,
    }
}

/// `offset` in blocks.
fn gather(block: u64, buffer: u32, offset: usize, blocks: u32) -> GatherExtent {
    GatherExtent {
        block,
        buffer,
        buffer_offset: (offset * BLOCK_BYTES) as u32,
        blocks,
    }
}

async fn filled(pool: &BufferPool, blocks: usize, byte: u8) -> Buffer {
    let mut buffer = pool.alloc(blocks * BLOCK_BYTES).await;
    buffer.fill(byte);
    buffer
}

/// Writes one block full of a byte.
async fn put(drive: &dyn Drive, pool: &BufferPool, block: u64, byte: u8) -> Result<(), DriveError> {
    let buffer = filled(pool, 1, byte).await;
    drive.write(buffer, &[extent(block, 0, 1)]).await.0
}

/// Reads one block.
async fn look(drive: &dyn Drive, pool: &BufferPool, block: u64) -> Result<Vec<u8>, DriveError> {
    let buffer = filled(pool, 1, 0xee).await;
    let (result, buffer) = drive.read(buffer, &[extent(block, 0, 1)]).await;
    result.map(|()| buffer.to_vec())
}

/// A write that flushes is a write, also over one that was not flushed, and one that does not fit is refused.
async fn check_flushing(drive: &dyn Drive, pool: &BufferPool) {
    for byte in [1, 2] {
        for block in [3, 4] {
            put(drive, pool, block, 9).await.expect("written");
        }
        let buffer = filled(pool, 1, byte).await;
        let (written, buffer) = drive.write_flushing(buffer, &[extent(3, 0, 1)]).await;
        written.expect("written");
        assert!(buffer.iter().all(|it| *it == byte), "the buffer is kept");
        let read = look(drive, pool, 3).await.expect("read");
        assert_eq!(read, vec![byte; BLOCK_BYTES]);
        let beside = look(drive, pool, 4).await.expect("read");
        assert_eq!(beside, vec![9; BLOCK_BYTES]);
    }
    let buffer = filled(pool, 1, 1).await;
    let beyond = [extent(drive.blocks(), 0, 1)];
    let (refused, _) = drive.write_flushing(buffer, &beyond).await;
    assert_eq!(
        refused.expect_err("it does not fit").kind(),
        ErrorKind::Invalid
    );
}

/// What fits neither the drive nor the buffers is refused as the caller's error, and moves nothing.
async fn check_refusals(drive: &dyn Drive, pool: &BufferPool) {
    let end = drive.blocks();
    put(drive, pool, 0, 7).await.expect("written");
    let wrong = [
        extent(end, 0, 1),
        extent(end - 1, 0, 2),
        extent(u64::MAX, 0, 1),
        extent(u64::MAX - 1, 0, 2),
        extent(0, BLOCK_BYTES, 2),
        extent(0, 512, 1),
        extent(0, 1, 1),
        extent(0, usize::MAX - 4095, 1),
        extent(0, 0, 3),
        extent(0, 0, u32::MAX),
    ];
    for one in wrong {
        // The good extent before it is not moved either.
        for extents in [vec![one], vec![extent(0, 0, 1), one]] {
            let buffer = filled(pool, 2, 9).await;
            let (result, buffer) = drive.write(buffer, &extents).await;
            let error = result.expect_err("it does not fit");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{one:?}: {error}");
            assert!(!error.is_in_doubt());
            let (result, buffer) = drive.read(buffer, &extents).await;
            assert_eq!(
                result.expect_err("it does not fit").kind(),
                ErrorKind::Invalid
            );
            assert!(buffer.len() == 2 * BLOCK_BYTES && buffer.iter().all(|byte| *byte == 9));
        }
    }
    let buffers = Rc::new(vec![filled(pool, 1, 9).await, filled(pool, 1, 9).await]);
    let mut crooked = gather(0, 0, 0, 1);
    crooked.buffer_offset = 2048;
    let wrong = [
        gather(end, 0, 0, 1),
        gather(0, 2, 0, 1),
        gather(0, 1, 0, 2),
        gather(0, 1, 1, 1),
        gather(0, u32::MAX, 0, 1),
        crooked,
    ];
    for one in wrong {
        let written = drive
            .write_many(buffers.clone(), &[gather(0, 0, 0, 1), one])
            .await;
        let error = written.expect_err("it does not fit");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{one:?}: {error}");
    }
    assert!(Rc::into_inner(buffers).is_some(), "its share is given up");
    for (block, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (1, u64::MAX)] {
        let error = drive
            .discard(block, blocks)
            .await
            .expect_err("no such blocks");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(
        look(drive, pool, 0).await.expect("read"),
        vec![7; BLOCK_BYTES]
    );
    // Nothing is a transfer too.
    let (result, buffer) = drive.write(filled(pool, 1, 1).await, &[]).await;
    result.expect("nothing to do");
    drive.read(buffer, &[]).await.0.expect("nothing to do");
    let buffers = Rc::new(vec![filled(pool, 1, 1).await]);
    drive.write_many(buffers, &[]).await.expect("nothing to do");
    drive.discard(end, 0).await.expect("nothing to do");
    drive.flush().await.expect("flushed");
}

/// Discards succeed, leave neighbours alone, and what was discarded can be written again.
async fn check_discards(drive: &dyn Drive, pool: &BufferPool) {
    for (first, blocks) in [(1, 1), (8, 8), (13, 50), (3, 100)] {
        let around = [first - 1, first + blocks];
        for block in first - 1..=first + blocks {
            put(drive, pool, block, block as u8).await.expect("written");
        }
        drive.discard(first, blocks).await.expect("discarded");
        for block in around {
            let content = look(drive, pool, block).await.expect("read");
            assert_eq!(
                content,
                vec![block as u8; BLOCK_BYTES],
                "a neighbour of a discard"
            );
        }
        for block in first..first + blocks {
            look(drive, pool, block)
                .await
                .expect("anything can be read");
        }
        put(drive, pool, first, 0x5a).await.expect("written again");
        drive.flush().await.expect("flushed");
        let content = look(drive, pool, first).await.expect("read");
        assert_eq!(content, vec![0x5a; BLOCK_BYTES]);
    }
}

/// Transfers that are dropped after their first poll happen or not. All others go on, and all buffers come back.
async fn check_dropped(drive: &dyn Drive, pool: &BufferPool) {
    const DROPPED: u64 = 64;
    for block in 0..DROPPED {
        put(drive, pool, block, 1).await.expect("written");
    }
    for round in 0..4 {
        for block in (0..DROPPED).step_by(4) {
            let extents = [extent(block, 0, 2)];
            poll_once(drive.write(filled(pool, 2, 2).await, &extents)).await;
            let buffers = Rc::new(vec![filled(pool, 1, 2).await]);
            let extents = [gather(block + 1, 0, 0, 1)];
            poll_once(drive.write_many(buffers, &extents)).await;
            let extents = [extent(block, 0, 4)];
            poll_once(drive.read(filled(pool, 4, 9).await, &extents)).await;
            put(drive, pool, block + 2, round)
                .await
                .expect("others go on");
            let content = look(drive, pool, block + 2).await.expect("read");
            assert_eq!(content, vec![round; BLOCK_BYTES]);
        }
        poll_once(drive.flush()).await;
    }
    all_come_back(pool).await;
    drive.flush().await.expect("flushed");
    for block in 0..DROPPED {
        let content = look(drive, pool, block).await.expect("read");
        let expected: &[u8] = match block % 4 {
            0 | 1 => &[1, 2],
            2 => &[3],
            _ => &[1],
        };
        let is_one = |byte: &u8| content.iter().all(|other| other == byte);
        assert!(
            expected.iter().any(is_one),
            "block {block} is none of {expected:?}"
        );
    }
}

/// Polls a future once, and drops it.
async fn poll_once<T>(future: impl Future<Output = T>) {
    let mut future = Box::pin(future);
    poll_fn(|cx| {
        let _ = future.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// Waits until nobody has a buffer of the pool.
async fn all_come_back(pool: &BufferPool) {
    let began = Instant::now();
    while pool.stats().free_bytes < pool.stats().total_bytes {
        assert!(began.elapsed() < PATIENCE, "a buffer does not come back");
        reactor::sleep(Duration::from_millis(1)).await;
    }
}
