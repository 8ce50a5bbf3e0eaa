//! No schedule of reactors loses a wake-up, lets two of them have a range at once, or mixes up data.
//!
//! Shuttle runs each story with thousands of schedules, and ends with the one that leads to a panic or to a
//! deadlock. Reactors are its threads, and every lock is a place where it may let another one go on:
//! [`crate::sync::wait::lock`] asks here first. A failure says how to replay its schedule.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, Drive, MemoryDrive};
use meta::{Compression, JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::BufferPool;
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};

use crate::hooks;
use crate::io::reclaim::reclaim_space;
use crate::log::checkpoint::checkpoint;
use crate::simulation::count_everything;
use crate::sync::range_lock::RangeLock;
use crate::sync::wait::{Event, lock};
use crate::{Blocking, Engine, EngineConfig, EngineParts, LABEL_BLOCKS, Volume, VolumeSpec};

/// Schedules of a small story and way of choosing them: about a second in all.
pub(crate) const SCHEDULES: usize = 10_000;
/// Schedules of the story of the whole engine, if `ONEFOLD_SCHEDULES` does not say how many.
pub(crate) const ENGINE_SCHEDULES: usize = 300;
/// Preemptions at places of its choice, of the second way.
const PREEMPTIONS: usize = 3;

fn engine_schedules() -> usize {
    let asked = std::env::var("ONEFOLD_SCHEDULES").ok();
    asked.map_or(ENGINE_SCHEDULES, |asked| asked.parse().expect("a number"))
}

fn run(scheduler: impl Scheduler + 'static, config: Config, story: fn()) {
    hooks::tell_stories(true);
    let told = catch_unwind(AssertUnwindSafe(|| {
        Runner::new(scheduler, config).run(story)
    }));
    hooks::tell_stories(false);
    if let Err(panic) = told {
        std::panic::resume_unwind(panic);
    }
}

fn tell(story: fn()) {
    run(RandomScheduler::new(SCHEDULES), Config::new(), story);
    let scheduler = PctScheduler::new(PREEMPTIONS, SCHEDULES);
    run(scheduler, Config::new(), story);
}

/// Polls once, and gives up if it is not ready.
fn try_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn everyone_who_waits_for_an_event_goes_on_when_it_happens() {
    tell(events);
}

fn events() {
    let event = Arc::new(Event::default());
    let waiters = (0..2).map(|_| {
        let event = event.clone();
        thread::spawn(move || {
            // One that asked before and has left is in nobody's way.
            try_once(event.wait());
            block_on(event.wait());
        })
    });
    let waiters: Vec<_> = waiters.collect();
    event.set();
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert!(try_once(event.wait()).is_some());
}

/// Sub-blocks that somebody uses: how many read each, or that one writes it.
#[derive(Default)]
struct InUse {
    cells: [AtomicUsize; 4],
}

impl InUse {
    const WRITER: usize = 1000;

    fn by(&self, start: u64, end: u64, weight: usize) {
        let cells = &self.cells[start as usize..end as usize];
        for cell in cells {
            let others = cell.fetch_add(weight, Ordering::SeqCst);
            let is_free = match weight {
                Self::WRITER => others == 0,
                _ => others < Self::WRITER,
            };
            assert!(is_free, "{others} use what {weight} has");
        }
        thread::yield_now();
        for cell in cells {
            cell.fetch_sub(weight, Ordering::SeqCst);
        }
    }
}

#[test]
fn ranges_are_had_by_one_writer_or_by_readers_and_everyone_gets_theirs() {
    tell(ranges);
}

pub(crate) fn ranges() {
    let ranges = Arc::new(RangeLock::default());
    let in_use = Arc::new(InUse::default());
    // What three reactors want, one after the other: some overlap, some do not.
    let wants: [&[(u64, u64, bool)]; 3] = [
        &[(0, 2, true), (1, 4, false)],
        &[(1, 3, true), (0, 1, false), (3, 4, true)],
        &[(0, 4, false), (2, 4, true)],
    ];
    let reactors = wants.map(|wants| {
        let (ranges, in_use) = (ranges.clone(), in_use.clone());
        thread::spawn(move || {
            for (start, end, is_writer) in wants {
                let acquire = || match is_writer {
                    true => ranges.exclusive(*start, *end),
                    false => ranges.shared(*start, *end),
                };
                // A command that is dropped while it waits, or at once when it has its range.
                drop(try_once(acquire()));
                let guard = block_on(acquire());
                let weight = if *is_writer { InUse::WRITER } else { 1 };
                in_use.by(*start, *end, weight);
                drop(guard);
            }
        })
    });
    for reactor in reactors {
        reactor.join().unwrap();
    }
    // Nothing of them is left.
    assert!(try_once(ranges.exclusive(0, 4)).is_some());
}

#[test]
fn writers_of_a_range_go_in_the_order_in_which_they_asked() {
    tell(queue);
}

fn queue() {
    let ranges = Arc::new(RangeLock::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = block_on(ranges.exclusive(0, 8));
    let later: Vec<_> = (0..3)
        .map(|number| {
            let acquire = ranges.exclusive(number, 8);
            let order = order.clone();
            thread::spawn(move || {
                let _guard = block_on(acquire);
                lock(&order).push(number);
            })
        })
        .collect();
    drop(first);
    for writer in later {
        writer.join().unwrap();
    }
    assert_eq!(*lock(&order), [0, 1, 2]);
}

#[test]
fn reactors_that_share_contents_and_free_space_keep_their_data() {
    let schedules = RandomScheduler::new(engine_schedules());
    run(schedules, Config::new(), pool);
}

/// Sub-blocks of each reactor.
const OWN: u64 = 3;

/// A pool with hardly more room than what is written, so that blocks are used again at once, and a volume in it.
fn small_pool() -> (Arc<Engine>, Arc<Volume>, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let parts = EngineParts {
        drives: vec![Arc::new(MemoryDrive::new(LABEL_BLOCKS + 16)) as Arc<dyn Drive>],
        journal: Arc::new(MemoryMedia::new(32 << 10)),
        store: store.clone(),
        hash_keys: [7; 32].into(),
        fingerprint: meta::FingerprintFunction::Clnh,
        blocking: Blocking::Inline,
        boot: None,
        config: EngineConfig {
            metadata_cache_bytes: 0,
            bounce_bytes: crate::BOUNCE_BYTES_MIN,
            journal: JournalConfig {
                payload_bytes_max: 2048,
                reserve_bytes: 512,
            },
            ..EngineConfig::default()
        },
    };
    let engine = block_on(Engine::open(parts)).unwrap();
    let spec = VolumeSpec {
        name: "shared".to_owned(),
        size_bytes: 4 * OWN * BLOCK_BYTES as u64,
        lba_bytes: 4096,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    };
    let volume = block_on(engine.create_volume(spec)).unwrap();
    (engine, volume, store)
}

pub(crate) fn pool() {
    let (engine, volume, store) = small_pool();
    // The hasher of its domain is made under a lock of std, which no story knows of.
    block_on(act(&volume, 0, &[(0, OWN, 0), (0, 1, 1), (0, 1, 0)]));
    // What each does to its sub-blocks, one after the other: which, and their content from now on (0 =
    // trimmed). All have contents in common, and give up what another one takes.
    let acts: [&[(u64, u64, u8)]; 3] = [
        &[(0, 2, 1), (1, 2, 2), (0, 3, 0), (0, 1, 1)],
        &[(0, 1, 1), (0, 2, 2), (1, 2, 1)],
        &[(0, 3, 2), (0, 2, 0), (1, 1, 3), (0, 1, 2)],
    ];
    let reactors = (0..).zip(acts).map(|(number, acts)| {
        let volume = volume.clone();
        thread::spawn(move || block_on(act(&volume, number * OWN, acts)))
    });
    let reactors: Vec<_> = reactors.collect();
    let keeper = thread::spawn({
        let engine = engine.clone();
        move || {
            for _ in 0..2 {
                block_on(checkpoint(&engine.shared)).unwrap();
                block_on(reclaim_space(&engine.shared));
            }
        }
    });
    for reactor in reactors {
        reactor.join().unwrap();
    }
    keeper.join().unwrap();
    drop(volume);
    count_everything(&engine, &*store, false);
}

#[test]
fn a_content_that_one_reactor_gives_up_while_another_writes_it_is_stored() {
    let schedules = RandomScheduler::new(engine_schedules());
    run(schedules, Config::new(), last_references);
}

pub(crate) fn last_references() {
    let (engine, volume, store) = small_pool();
    // The hasher of its domain is made under a lock of std, which no story knows of.
    block_on(write_and_read(&volume, 0, 9));
    // All write the first content now and then, and nobody else has it when they write over it.
    let acts: [&[u8]; 3] = [&[1, 2, 1, 2], &[1, 3, 1, 3], &[4, 1, 4]];
    let reactors = (0..).zip(acts).map(|(number, acts)| {
        let volume = volume.clone();
        thread::spawn(move || {
            for content in acts {
                block_on(write_and_read(&volume, number, *content));
            }
        })
    });
    let reactors: Vec<_> = reactors.collect();
    for reactor in reactors {
        reactor.join().unwrap();
    }
    drop(volume);
    count_everything(&engine, &*store, false);
}

/// Writes a sub-block that one reactor alone uses, and looks at it.
async fn write_and_read(volume: &Volume, sub_block: u64, content: u8) {
    let buffers = BufferPool::new(1 << 20).unwrap();
    let offset = sub_block * BLOCK_BYTES as u64;
    let mut buf = buffers.alloc(BLOCK_BYTES).await;
    buf.fill(content);
    volume.write(offset, buf, false).await.0.unwrap();
    let (read, buf) = volume.read(offset, buffers.alloc(BLOCK_BYTES).await).await;
    read.unwrap();
    assert!(buf.iter().all(|byte| *byte == content), "{}", buf[0]);
}

/// Changes what one reactor alone uses, and looks at it after each step.
async fn act(volume: &Volume, first: u64, acts: &[(u64, u64, u8)]) {
    let buffers = BufferPool::new(4 << 20).unwrap();
    let block = BLOCK_BYTES as u64;
    let mut expected = [0u8; OWN as usize];
    for (start, count, content) in acts {
        let (offset, len) = ((first + start) * block, count * block);
        match content {
            0 => volume.trim(offset, len).await.unwrap(),
            _ => {
                let mut buf = buffers.alloc(len as usize).await;
                buf.fill(*content);
                volume.write(offset, buf, false).await.0.unwrap();
                // Whoever comes last has it.
                let mut buf = buffers.alloc(BLOCK_BYTES).await;
                buf.fill(*content);
                volume.write(3 * OWN * block, buf, false).await.0.unwrap();
            }
        }
        for cell in &mut expected[*start as usize..(start + count) as usize] {
            *cell = *content;
        }
        let buf = buffers.alloc(OWN as usize * BLOCK_BYTES).await;
        let (read, buf) = volume.read(first * block, buf).await;
        read.unwrap();
        for (bytes, expected) in buf.chunks(BLOCK_BYTES).zip(expected) {
            assert!(
                bytes.iter().all(|byte| *byte == expected),
                "{} for {expected}",
                bytes[0]
            );
        }
        let (read, buf) = volume
            .read(3 * OWN * block, buffers.alloc(BLOCK_BYTES).await)
            .await;
        read.unwrap();
        assert!(
            buf.iter().all(|byte| *byte == buf[0]),
            "two contents in one sub-block"
        );
    }
}

/// An event as it must not be: it looks, and only then says that it waits.
#[derive(Default)]
struct Forgetful {
    is_set: Mutex<bool>,
    wakers: Mutex<Vec<Waker>>,
}

struct Wait(Arc<Forgetful>);

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if *lock(&self.0.is_set) {
            return Poll::Ready(());
        }
        lock(&self.0.wakers).push(cx.waker().clone());
        Poll::Pending
    }
}

/// Whether some schedule ends in a panic or in a deadlock.
pub(crate) fn goes_wrong(story: fn(), schedules: usize) -> bool {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let scheduler = RandomScheduler::new(schedules);
    catch_unwind(AssertUnwindSafe(|| run(scheduler, config, story))).is_err()
}

#[test]
fn a_wake_up_that_is_lost_is_found() {
    let loses_a_wake_up = || {
        let event = Arc::new(Forgetful::default());
        let waiter = thread::spawn({
            let event = event.clone();
            move || block_on(Wait(event))
        });
        *lock(&event.is_set) = true;
        let wakers = std::mem::take(&mut *lock(&event.wakers));
        wakers.into_iter().for_each(Waker::wake);
        waiter.join().unwrap();
    };
    assert!(
        goes_wrong(loses_a_wake_up, SCHEDULES),
        "no schedule lost the wake-up"
    );
}
