//! The clock of a lock: how long it was held, and how long others waited for it.
//!
//! It runs only in benchmarks. Otherwise a lock costs one extra flag check. In a benchmark it is read three
//! times for each lock, about 80 ns in all, of which one reading counts as held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// The counters change under the lock: they are in the cache of who holds it, if one does.
#[derive(Default)]
pub(crate) struct Clock {
    is_on: AtomicBool,
    taken: AtomicU64,
    held_ns: AtomicU64,
    waited_ns: AtomicU64,
}

impl Clock {
    /// Turns it on or off.
    pub(super) fn turn(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    pub(super) fn if_on(&self) -> Option<&Self> {
        self.is_on.load(Ordering::Relaxed).then_some(self)
    }

    /// What it counted since the lock was made.
    pub(super) fn times(&self) -> LockTimes {
        let nanos = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        LockTimes {
            taken: self.taken.load(Ordering::Relaxed),
            held: nanos(&self.held_ns),
            waited: nanos(&self.waited_ns),
        }
    }
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
