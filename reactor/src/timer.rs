//! Waiting for a point in time.
//!
//! Guarantees: timers fire in the order of their deadlines, equal ones in the order in which they were
//! set, never early; a dropped timer leaves nothing behind.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::executor::{Core, expect_current};

type TimerKey = (Instant, u64);

#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerKey, Waker>,
    next: u64,
}

impl Timers {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting
            .first_key_value()
            .map(|((deadline, _), _)| *deadline)
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerKey {
        let key = (deadline, self.next);
        self.next += 1;
        self.waiting.insert(key, waker);
        key
    }
}

/// The time now.
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for `duration`.
///
/// # Panics
/// When polled outside a reactor.
pub fn sleep(duration: Duration) -> Sleep {
    // A duration beyond what the clock can say is as good as thirty years.
    let far = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = now();
    sleep_until(now.checked_add(duration).unwrap_or_else(|| now + far))
}

/// Waits until `deadline`.
///
/// # Panics
/// When polled outside a reactor.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        set: None,
    }
}

/// Waits for a point in time; see [`sleep`] and [`sleep_until`].
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    deadline: Instant,
    set: Option<(TimerKey, Rc<Core>)>,
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    fn unset(&mut self) {
        if let Some((key, core)) = self.set.take() {
            let waker = core.timers.borrow_mut().waiting.remove(&key);
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if Instant::now() >= this.deadline {
            this.unset();
            return Poll::Ready(());
        }
        match &this.set {
            Some((key, core)) => {
                let mut timers = core.timers.borrow_mut();
                match timers.waiting.get_mut(key) {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => {
                        timers.waiting.insert(*key, cx.waker().clone());
                    }
                }
            }
            None => {
                let core = expect_current("a timer");
                let key = core
                    .timers
                    .borrow_mut()
                    .insert(this.deadline, cx.waker().clone());
                this.set = Some((key, core));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.unset();
    }
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time ran out")]
pub struct Elapsed;

/// Runs `future` for at most `duration`; then it is dropped.
///
/// # Errors
/// [`Elapsed`] if it was not done in time.
///
/// # Panics
/// When polled outside a reactor.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut end = sleep(duration);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut end).poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// Lets every task that is ready run before this one goes on. Works on any executor.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
