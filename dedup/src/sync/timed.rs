//! Locks that all reactors share, with a clock that tells how long they were held.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use reactor::Guard;

use crate::sync::clock::{Clock, LockTimes};
use crate::sync::wait::{HeldBy, Lockable, take};

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
        self.clock.turn(is_on);
    }

    /// What the clock counted since the lock was made.
    pub(crate) fn times(&self) -> LockTimes {
        self.clock.times()
    }
}

impl<T> Lockable for Timed<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn take(&self) -> Guard<MutexGuard<'_, T>> {
        self.mutex.take()
    }

    fn clock(&self) -> Option<&Clock> {
        self.clock.if_on()
    }
}

/// A lock that is held by one who may change everything ([`lock`](crate::sync::wait::lock)), or by several who change only
/// what has locks of its own inside ([`share`](TimedRw::share)).
pub(crate) struct TimedRw<T> {
    inner: RwLock<T>,
    /// Of who has it alone, and of those who share it.
    alone: Clock,
    shared: Clock,
}

/// A lock that is shared.
pub(crate) type SharedWith<'a, T> = HeldBy<'a, RwLockReadGuard<'a, T>>;

impl<T> TimedRw<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            inner: RwLock::new(value),
            alone: Clock::default(),
            shared: Clock::default(),
        }
    }

    /// Waits until nobody has the lock alone. A panic while it is shared ends the process, as with
    /// [`lock`](crate::sync::wait::lock).
    pub(crate) fn share(&self) -> SharedWith<'_, T> {
        HeldBy::new(self.shared.if_on(), || {
            take(|| self.inner.try_read(), || self.inner.read())
        })
    }

    /// Turns the clocks on or off.
    pub(crate) fn time(&self, is_on: bool) {
        for clock in [&self.alone, &self.shared] {
            clock.turn(is_on);
        }
    }

    /// What the clocks counted since the lock was made: of who had it alone, and of those who shared it.
    pub(crate) fn times(&self) -> (LockTimes, LockTimes) {
        (self.alone.times(), self.shared.times())
    }
}

impl<T> Lockable for TimedRw<T> {
    type Guard<'a>
        = RwLockWriteGuard<'a, T>
    where
        T: 'a;

    fn take(&self) -> Guard<RwLockWriteGuard<'_, T>> {
        take(|| self.inner.try_write(), || self.inner.write())
    }

    fn clock(&self) -> Option<&Clock> {
        self.alone.if_on()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
