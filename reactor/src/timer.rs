//! Waiting for a point in time.
//!
//! Guarantees: timers fire in the order of their deadlines, equal ones in the order in which they were
//! set, never early; a dropped timer leaves nothing behind.

use std::cell::Cell;
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

/// What this thread knows of the time.
#[derive(Clone, Copy)]
enum Known {
    /// No reactor runs here: nothing would bring it up to date.
    Nothing,
    /// Nobody has asked for it in this turn.
    Asked(Option<Instant>),
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::Nothing) };
}

/// A turn of this thread's reactor begins.
pub(crate) fn turn_begins() {
    KNOWN.set(Known::Asked(None));
}

/// This thread's reactor has ended.
pub(crate) fn turns_end() {
    KNOWN.set(Known::Nothing);
}

/// The time now.
pub fn now() -> Instant {
    let now = Instant::now();
    if let Known::Asked(_) = KNOWN.get() {
        KNOWN.set(Known::Asked(Some(now)));
    }
    now
}

/// The time as somebody on this reactor read it last: within this turn of its loop, or now. It costs no look at the clock
/// where there was one.
pub fn recently() -> Instant {
    match KNOWN.get() {
        Known::Asked(Some(at)) => at,
        _ => now(),
    }
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

    fn set_up(&mut self, cx: &Context<'_>) {
        let core = expect_current("a timer");
        let mut timers = core.timers.borrow_mut();
        let key = timers.insert(self.deadline, cx.waker().clone());
        drop(timers);
        self.set = Some((key, core));
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
        let Some((key, core)) = &this.set else {
            if Instant::now() < this.deadline {
                this.set_up(cx);
                return Poll::Pending;
            }
            return Poll::Ready(());
        };
        // The reactor takes out what is due: as long as it is there, no look at the clock is needed.
        if let Some(waker) = core.timers.borrow_mut().waiting.get_mut(key) {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        this.set = None;
        Poll::Ready(())
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
    // Most futures with a limit end within it: they shall cost one look at the clock.
    let mut end: Option<Sleep> = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let end = match &mut end {
            Some(end) => end,
            None => {
                let end = end.insert(sleep(duration));
                if !duration.is_zero() {
                    end.set_up(cx);
                    return Poll::Pending;
                }
                end
            }
        };
        Pin::new(end).poll(cx).map(|()| Err(Elapsed))
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
