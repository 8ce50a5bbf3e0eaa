//! Small things to wait on. Wakers may be woken from any thread; no lock is held across an await.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

/// How often a lock is tried before its thread sleeps: some microseconds, as long as the state is held
/// for a batch. To sleep and to be woken costs both reactors more than that.
const LOCK_TRIES: usize = 400;

/// Locks, also after a panic of another holder: the engine's short sections leave no half-made state
/// that a later reader could mistake (every multi-step change is undone by guards).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    if let Some(guard) = crate::schedules::lock_in_story(mutex) {
        return guard;
    }
    for _ in 0..LOCK_TRIES {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that happens once, and that many may wait for.
#[derive(Default)]
pub(crate) struct Event {
    inner: Mutex<EventInner>,
}

#[derive(Default)]
struct EventInner {
    set: bool,
    wakers: Vec<Waker>,
}

impl Event {
    /// Lets it happen: everyone who waits goes on.
    pub(crate) fn set(&self) {
        let wakers = {
            let mut inner = lock(&self.inner);
            inner.set = true;
            std::mem::take(&mut inner.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits until it has happened.
    pub(crate) fn wait(&self) -> EventWait<'_> {
        EventWait { event: self }
    }
}

pub(crate) struct EventWait<'a> {
    event: &'a Event,
}

impl Future for EventWait<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.event.inner);
        if inner.set {
            return Poll::Ready(());
        }
        if !inner.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            inner.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Lets every other ready task of the executor run once. Works on any executor.
pub(crate) fn yield_once() -> YieldOnce {
    YieldOnce { yielded: false }
}

pub(crate) struct YieldOnce {
    yielded: bool,
}

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
