//! A lock that can tell how long it was held, and how long others waited for it.
//!
//! The clock runs only in benchmarks. Otherwise a lock costs one extra flag check. In a benchmark the clock is read three
//! times for each lock, about 80 ns in all, of which one reading counts as held.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What [`lock`](crate::sync::wait::lock) locks.
pub(crate) trait Lockable {
    type Inner;

    fn mutex(&self) -> &Mutex<Self::Inner>;

    /// The clock of this lock, if it has one and that is on.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

impl<T> Lockable for Mutex<T> {
    type Inner = T;

    fn mutex(&self) -> &Mutex<T> {
        self
    }
}

impl<L: Lockable> Lockable for std::sync::Arc<L> {
    type Inner = L::Inner;

    fn mutex(&self) -> &Mutex<L::Inner> {
        (**self).mutex()
    }

    fn clock(&self) -> Option<&Clock> {
        (**self).clock()
    }
}

/// A lock that all reactors share.
#[derive(Default)]
pub(crate) struct Timed<T> {
    mutex: Mutex<T>,
    clock: Clock,
}

impl<T> Timed<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            clock: Clock::default(),
        }
    }

    /// Turns the clock on or off.
    pub(crate) fn time(&self, is_on: bool) {
        self.clock.is_on.store(is_on, Ordering::Relaxed);
    }

    /// What the clock counted since the lock was made.
    pub(crate) fn times(&self) -> LockTimes {
        let nanos = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        LockTimes {
            taken: self.clock.taken.load(Ordering::Relaxed),
            held: nanos(&self.clock.held_ns),
            waited: nanos(&self.clock.waited_ns),
        }
    }
}

impl<T> Lockable for Timed<T> {
    type Inner = T;

    fn mutex(&self) -> &Mutex<T> {
        &self.mutex
    }

    fn clock(&self) -> Option<&Clock> {
        let is_on = self.clock.is_on.load(Ordering::Relaxed);
        is_on.then_some(&self.clock)
    }
}

/// How often and how long one of the engine's locks was taken while its clock was on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTimes {
    /// How often.
    pub taken: u64,
    /// How long it was held, by all threads together.
    pub held: Duration,
    /// How long threads waited for it, all together.
    pub waited: Duration,
}

impl LockTimes {
    /// Those of two locks together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            taken: self.taken + other.taken,
            held: self.held + other.held,
            waited: self.waited + other.waited,
        }
    }
}

/// The counters change under the lock: they are in the cache of who holds it.
#[derive(Default)]
pub(crate) struct Clock {
    is_on: AtomicBool,
    taken: AtomicU64,
    held_ns: AtomicU64,
    waited_ns: AtomicU64,
}

/// A lock was asked for.
pub(crate) struct Asked<'a> {
    clock: &'a Clock,
    at: Instant,
}

impl<'a> Asked<'a> {
    pub(crate) fn now(clock: &'a Clock) -> Self {
        let at = Instant::now();
        Self { clock, at }
    }

    /// It is held from now on.
    pub(crate) fn granted(self) -> Hold<'a> {
        let since = Instant::now();
        let waited = since.duration_since(self.at);
        count(&self.clock.waited_ns, waited);
        self.clock.taken.fetch_add(1, Ordering::Relaxed);
        Hold {
            clock: self.clock,
            since,
        }
    }
}

/// A lock is held. Drop it before the lock is given back.
pub(crate) struct Hold<'a> {
    clock: &'a Clock,
    since: Instant,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        count(&self.clock.held_ns, self.since.elapsed());
    }
}

fn count(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::wait::lock;

    #[test]
    fn a_lock_tells_how_often_it_was_taken_while_its_clock_was_on() {
        let timed = Timed::new(0);
        *lock(&timed) += 1;
        assert_eq!(timed.times(), LockTimes::default());
        timed.time(true);
        *lock(&timed) += 1;
        std::thread::scope(|scope| {
            let held = lock(&timed);
            let waiter = scope.spawn(|| *lock(&timed) += 1);
            std::thread::yield_now();
            drop(held);
            waiter.join().unwrap();
        });
        timed.time(false);
        *lock(&timed) += 1;
        let times = timed.times();
        assert_eq!(times.taken, 3);
        assert!(times.held > Duration::ZERO && times.waited > Duration::ZERO);
    }
}
