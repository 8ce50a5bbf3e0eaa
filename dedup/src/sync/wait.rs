//! Small things to wait on. Wakers may be woken from any thread; no lock is held across an await.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, TryLockError, TryLockResult};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use reactor::Guard;

use crate::hooks::{Current, Hooks};
use crate::sync::clock::{Asked, Clock, Hold};

/// What [`lock`](crate::sync::wait::lock) locks.
pub(crate) trait Lockable {
    type Guard<'a>
    where
        Self: 'a;

    /// Waits for the lock.
    fn take(&self) -> Guard<Self::Guard<'_>>;

    /// The clock of this lock, if it has one and that is on.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

impl<T> Lockable for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn take(&self) -> Guard<MutexGuard<'_, T>> {
        take(|| self.try_lock(), || self.lock())
    }
}

impl<L: Lockable> Lockable for std::sync::Arc<L> {
    type Guard<'a>
        = L::Guard<'a>
    where
        L: 'a;

    fn take(&self) -> Guard<L::Guard<'_>> {
        (**self).take()
    }

    fn clock(&self) -> Option<&Clock> {
        (**self).clock()
    }
}

/// How often a lock is tried before its thread sleeps: some microseconds, as long as the state is held
/// for a batch. To sleep and to be woken costs both reactors more than that.
const LOCK_TRIES: usize = 400;

/// Locks a part of the engine. A panic while it is locked ends the process ([`reactor::Guard`]).
///
/// Nobody undoes half of a section: least of all what is installed after a record was appended, with journal
/// and state locked. Between sections a panic may be caught, as reactors do: what a command holds there (its
/// range, references, blocks in flight, its place in a batch or a line) is given back by guards when it is
/// dropped, and the blocking halves of flushes and checkpoints are found incomplete by those that follow.
pub(crate) fn lock<L: Lockable>(lock: &L) -> HeldBy<'_, L::Guard<'_>> {
    HeldBy::new(lock.clock(), || lock.take())
}

/// A part of the engine that is locked, by the guard of its kind of lock.
#[must_use = "the lock is given back at once"]
pub(crate) struct HeldBy<'a, G> {
    /// Before the guard: the counters change under the lock.
    _hold: Option<Hold<'a>>,
    guard: Guard<G>,
}

/// A part of the engine that is locked by a mutex.
pub(crate) type Held<'a, T> = HeldBy<'a, MutexGuard<'a, T>>;

impl<'a, G> HeldBy<'a, G> {
    pub(super) fn new(clock: Option<&'a Clock>, take: impl FnOnce() -> Guard<G>) -> Self {
        let asked = clock.map(Asked::now);
        let guard = take();
        Self {
            _hold: asked.map(Asked::granted),
            guard,
        }
    }
}

impl<G: Deref> Deref for HeldBy<'_, G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for HeldBy<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A change that is made without a lock, and that others wait for. A panic before it is dropped ends the process.
#[must_use = "the change is over at once"]
pub(crate) struct Unwinding {
    ends: bool,
}

impl Unwinding {
    /// From here on a panic leaves a change half made. One that is under way already does not.
    pub(crate) fn ends() -> Self {
        Self {
            ends: !Current::FORGIVES_PANICS && !std::thread::panicking(),
        }
    }
}

impl Drop for Unwinding {
    fn drop(&mut self) {
        if self.ends && std::thread::panicking() {
            reactor::end_half_changed();
        }
    }
}

/// Takes a lock: tries for some microseconds, and sleeps then.
pub(super) fn take<G>(
    try_lock: impl Fn() -> TryLockResult<G>,
    lock: impl FnOnce() -> LockResult<G>,
) -> Guard<G> {
    if let Some(guard) = Current::lock_in_story(&try_lock) {
        return hold(guard);
    }
    for _ in 0..LOCK_TRIES {
        match try_lock() {
            Ok(guard) => return hold(guard),
            Err(TryLockError::Poisoned(poisoned)) => return hold(poisoned_guard(poisoned)),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    hold(lock().unwrap_or_else(poisoned_guard))
}

fn hold<G>(guard: G) -> Guard<G> {
    match Current::FORGIVES_PANICS {
        true => Guard::forgiving(guard),
        false => Guard::new(guard),
    }
}

fn poisoned_guard<G>(poisoned: PoisonError<G>) -> G {
    match Current::FORGIVES_PANICS {
        true => poisoned.into_inner(),
        false => reactor::end_half_changed(),
    }
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
    /// The event happens: all tasks that wait for it go on.
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

/// Waits so long; where there is no reactor there is no clock, as in the simulation: it goes on.
pub(crate) async fn pause(time: Duration) {
    match reactor::current() {
        Some(_) => reactor::sleep(time).await,
        None => yield_once().await,
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
