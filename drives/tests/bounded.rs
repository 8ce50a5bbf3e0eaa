//! A drive whose answers have a bound, and one that is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance::SlowDrive;
use drives::{BLOCK_BYTES, BoundedDrive, Bounds, Drive, Extent, FrontDrive, Permission};
use reactor::{Buffer, BufferPool};

const LIMIT: Duration = Duration::from_millis(50);
const BOUNDS: Bounds = Bounds {
    answer_max: LIMIT,
    in_flight_bytes: 2 * BLOCK_BYTES,
};

/// A drive with the bound, and what stands behind it.
fn bounded(may_leave: impl Fn() -> bool + Send + Sync + 'static) -> (Arc<SlowDrive>, BoundedDrive) {
    let slow = SlowDrive::new(100);
    let permission = Arc::new(Permission::default());
    permission.ask(move |drive| drive == 3 && may_leave());
    let drive = BoundedDrive::new(slow.clone(), 3, BOUNDS, permission);
    (slow, drive)
}

const ONE: [Extent; 1] = [Extent {
    block: 7,
    buffer_offset: 0,
    blocks: 1,
}];

fn filled(pool: &BufferPool, byte: u8) -> Buffer {
    let mut buffer = pool.try_alloc(BLOCK_BYTES).expect("memory");
    buffer.fill(byte);
    buffer
}

#[test]
fn a_drive_that_does_not_answer_is_left_and_fenced_when_it_has_answered_after_all() {
    let pool = BufferPool::new(1 << 21).expect("memory");
    let (slow, drive) = bounded(|| true);
    reactor::run(reactor::Config::default(), async move {
        slow.holds_back.store(true, Ordering::Relaxed);
        let began = reactor::now();
        let (written, buffer) = drive.write(filled(&pool, 5), &ONE).await;
        let error = written.expect_err("it does not answer");
        assert!(error.is_in_doubt());
        assert!(
            error.to_string().contains("does not answer within 50ms"),
            "{error}"
        );
        assert!(reactor::now().duration_since(began) >= LIMIT);
        assert!(
            buffer.iter().all(|byte| *byte == 5),
            "the caller's data are there"
        );
        let (read, buffer) = drive.read(buffer, &ONE).await;
        assert!(read.is_err() && buffer.len() == BLOCK_BYTES);
        drop(buffer);
        let error = drive.fence().await.expect_err("two are under way");
        assert!(error.to_string().contains("2 transfers"), "{error}");

        slow.holds_back.store(false, Ordering::Relaxed);
        while drive.fence().await.is_err() {
            reactor::yield_now().await;
        }
        let (read, buffer) = drive.read(filled(&pool, 0), &ONE).await;
        read.expect("it answers");
        assert!(
            buffer.iter().all(|byte| *byte == 5),
            "what was left was written"
        );
        drop(buffer);
        assert_eq!(pool.stats().free_bytes, pool.stats().total_bytes);
    })
    .expect("a reactor");
}

#[test]
fn what_waits_for_a_drive_that_has_enough_to_do_keeps_its_buffer_when_that_is_left() {
    let pool = BufferPool::new(1 << 21).expect("memory");
    let (slow, drive) = bounded(|| true);
    let drive = Arc::new(drive);
    reactor::run(reactor::Config::default(), async move {
        slow.holds_back.store(true, Ordering::Relaxed);
        let reads = [1, 2, 3].map(|byte| {
            let (drive, buffer) = (drive.clone(), filled(&pool, byte));
            reactor::spawn(async move { drive.read_or_leave(buffer, &ONE).await })
        });
        let mut left = 0;
        for (byte, read) in (1..).zip(reads) {
            match read.await.expect("no panic") {
                Err(error) => {
                    assert!(error.is_in_doubt());
                    left += 1;
                }
                Ok((result, buffer)) => {
                    let error = result.expect_err("it does not answer");
                    assert!(!error.is_in_doubt(), "it was never told");
                    assert!(buffer.iter().all(|is| *is == byte));
                }
            }
        }
        assert_eq!((left, slow.asked()), (2, 2));
        slow.holds_back.store(false, Ordering::Relaxed);
        while drive.fence().await.is_err() {
            reactor::yield_now().await;
        }
        let (read, _) = drive.read(filled(&pool, 0), &ONE).await;
        read.expect("it has room again");
    })
    .expect("a reactor");
}

#[test]
fn a_drive_that_has_data_alone_is_waited_for() {
    let pool = BufferPool::new(1 << 21).expect("memory");
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let (slow, drive) = bounded(move || {
        count.fetch_add(1, Ordering::Relaxed);
        false
    });
    reactor::run(reactor::Config::default(), async move {
        slow.holds_back.store(true, Ordering::Relaxed);
        let wakes = slow.clone();
        reactor::spawn(async move {
            while asked.load(Ordering::Relaxed) < 2 {
                reactor::yield_now().await;
            }
            wakes.holds_back.store(false, Ordering::Relaxed);
        });
        let (written, _) = drive.write(filled(&pool, 6), &ONE).await;
        written.expect("it answered in the end");
        drive.fence().await.expect("nothing is under way");
    })
    .expect("a reactor");
}

#[test]
fn a_drive_that_hangs_at_a_flush_is_left_and_one_that_answers_reads_meanwhile_has_more_time() {
    let (slow, drive) = bounded(|| true);
    reactor::run(reactor::Config::default(), async move {
        slow.holds_flushes.store(true, Ordering::Relaxed);
        let answers = slow.clone();
        reactor::spawn(async move {
            reactor::sleep(4 * LIMIT).await;
            answers.holds_flushes.store(false, Ordering::Relaxed);
        })
        .detach();
        drive.flush().await.expect("it answers in the end");
        assert!(slow.asked() > 1, "it was asked for reads meanwhile");
        drive.fence().await.expect("nothing is under way");

        slow.holds_flushes.store(true, Ordering::Relaxed);
        slow.holds_back.store(true, Ordering::Relaxed);
        let error = drive.flush().await.expect_err("it answers nothing");
        assert!(error.is_in_doubt());
        assert!(
            !error.to_string().contains("within 500ms"),
            "it was not given that time: {error}"
        );
        let error = drive.fence().await.expect_err("two are under way");
        assert!(error.to_string().contains("2 transfers"), "{error}");
        slow.holds_flushes.store(false, Ordering::Relaxed);
        slow.holds_back.store(false, Ordering::Relaxed);
        while drive.fence().await.is_err() {
            reactor::yield_now().await;
        }
    })
    .expect("a reactor");
}

#[test]
fn who_has_another_part_of_a_device_that_was_left_does_not_wait_for_it_again() {
    let slow = SlowDrive::new(100);
    let long = Bounds {
        answer_max: Duration::from_secs(3600),
        in_flight_bytes: 2 * BLOCK_BYTES,
    };
    let permission = Arc::new(Permission::default());
    permission.ask(|_| true);
    let front = Arc::new(FrontDrive::new(slow.clone(), 50));
    let left = front.left().expect("it is a part");
    let data = BoundedDrive::new(front, 0, BOUNDS, permission.clone());
    let others = BoundedDrive::sharing(slow.clone(), 0, long, permission.clone(), left);
    let stranger = BoundedDrive::new(slow.clone(), 0, long, permission);
    reactor::run(reactor::Config::default(), async move {
        assert!(!others.is_left());
        slow.holds_flushes.store(true, Ordering::Relaxed);
        slow.holds_back.store(true, Ordering::Relaxed);
        data.flush().await.expect_err("it answers nothing");
        assert!(others.is_left() && !stranger.is_left());
        let fenced = others.fence().await.expect_err("it may still happen");
        assert!(fenced.to_string().contains("2 transfers"), "{fenced}");
        slow.holds_flushes.store(false, Ordering::Relaxed);
        slow.holds_back.store(false, Ordering::Relaxed);
        while others.is_left() {
            reactor::yield_now().await;
        }
        assert!(!others.is_in_doubt(), "what ended did so in time or not");
    })
    .expect("a reactor");
}

#[test]
fn a_drive_that_hangs_in_the_middle_of_a_long_flush_is_left() {
    let (slow, drive) = bounded(|| true);
    reactor::run(reactor::Config::default(), async move {
        slow.holds_flushes.store(true, Ordering::Relaxed);
        let hangs = slow.clone();
        reactor::spawn(async move {
            while hangs.asked() < 3 {
                reactor::yield_now().await;
            }
            hangs.holds_back.store(true, Ordering::Relaxed);
        })
        .detach();
        let error = drive
            .flush()
            .await
            .expect_err("it answers nothing any more");
        assert!(error.is_in_doubt());
        assert!(slow.asked() > 3, "it was asked again");
        slow.holds_flushes.store(false, Ordering::Relaxed);
        slow.holds_back.store(false, Ordering::Relaxed);
        while drive.fence().await.is_err() {
            reactor::yield_now().await;
        }
    })
    .expect("a reactor");
}
