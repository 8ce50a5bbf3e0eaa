//! No schedule of reactors loses a wake-up, or lets two of them have a range at once.
//!
//! What reactors wait on is compiled here once more, on primitives of shuttle: it runs each story with
//! thousands of schedules, and ends with the one that leads to a panic or to a deadlock.
//! `cargo test -p dedup --test schedules`; a failure says how to replay its schedule.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use shuttle::future::block_on;
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, FailurePersistence, Runner, thread};

/// In place of the crate's own module of that name.
mod sync {
    pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use std::sync::{PoisonError, TryLockError};
}

#[allow(dead_code, reason = "rules of the rest of the engine")]
#[path = "../src/ablation.rs"]
mod ablation;

#[allow(unused, reason = "unit tests have no harness here")]
#[path = "../src/range_lock.rs"]
mod range_lock;

#[allow(dead_code, reason = "what needs no lock has no story here")]
#[path = "../src/wait.rs"]
mod wait;

use range_lock::RangeLock;
use sync::{Arc, Mutex};
use wait::{Event, lock};

/// Schedules of each story and way of choosing them: about a second in all.
const SCHEDULES: usize = 10_000;
/// Preemptions at places of its choice, of the second way.
const PREEMPTIONS: usize = 3;

fn tell(story: fn()) {
    shuttle::check_random(story, SCHEDULES);
    shuttle::check_pct(story, SCHEDULES, PREEMPTIONS);
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

fn everyone_who_waits_for_an_event_goes_on_when_it_happens() {
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

fn ranges_are_had_by_one_writer_or_by_readers_and_everyone_gets_theirs() {
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

fn writers_of_a_range_go_in_the_order_in_which_they_asked() {
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
fn goes_wrong(story: fn()) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let runner = Runner::new(RandomScheduler::new(SCHEDULES), config);
    let told = catch_unwind(AssertUnwindSafe(|| runner.run(story)));
    std::panic::set_hook(hook);
    told.is_err()
}

fn what_is_broken_on_purpose_is_found() {
    eprintln!("two failures follow that have to be found:");
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
    assert!(goes_wrong(loses_a_wake_up), "no schedule lost the wake-up");
    ablation::set(Some(ablation::Broken::NoRangeLock));
    let is_found = goes_wrong(ranges_are_had_by_one_writer_or_by_readers_and_everyone_gets_theirs);
    ablation::set(None);
    assert!(is_found, "no schedule needed the range lock");
}

/// Stories by name; the arguments are those of the usual harness as far as they choose.
fn main() {
    type Story = (&'static str, fn());
    let stories: [Story; 4] = [
        (
            "everyone_who_waits_for_an_event_goes_on_when_it_happens",
            || tell(everyone_who_waits_for_an_event_goes_on_when_it_happens),
        ),
        (
            "ranges_are_had_by_one_writer_or_by_readers_and_everyone_gets_theirs",
            || tell(ranges_are_had_by_one_writer_or_by_readers_and_everyone_gets_theirs),
        ),
        (
            "writers_of_a_range_go_in_the_order_in_which_they_asked",
            || tell(writers_of_a_range_go_in_the_order_in_which_they_asked),
        ),
        (
            "what_is_broken_on_purpose_is_found",
            what_is_broken_on_purpose_is_found,
        ),
    ];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    if arguments.iter().any(|argument| argument == "--ignored") {
        return; // none is
    }
    for (name, story) in stories {
        let is_wanted = filters.iter().any(|filter| name.contains(filter.as_str()));
        if !filters.is_empty() && !is_wanted {
            continue;
        }
        if arguments.iter().any(|argument| argument == "--list") {
            eprintln!("{name}: test");
            continue;
        }
        story();
        eprintln!("test {name} ... ok");
    }
}
