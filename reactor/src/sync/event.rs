use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::lock;

/// Something that happens once, and that many may wait for. Clones are the same event.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Mutex<EventState>>);

#[derive(Debug, Default)]
struct EventState {
    set: bool,
    next_ticket: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Event {
    /// An event that has not happened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets it happen: everyone who waits goes on, now and later.
    pub fn set(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.set = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    /// Whether it has happened.
    pub fn is_set(&self) -> bool {
        lock(&self.0).set
    }

    /// Waits until it has happened.
    pub fn wait(&self) -> EventWait {
        EventWait {
            event: self.clone(),
            ticket: None,
        }
    }
}

/// Waits for an [`Event`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct EventWait {
    event: Event,
    ticket: Option<u64>,
}

impl Future for EventWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = lock(&this.event.0);
        if state.set {
            return Poll::Ready(());
        }
        let next = state.next_ticket;
        let ticket = *this.ticket.get_or_insert(next);
        if ticket == next {
            state.next_ticket += 1;
        }
        state.wakers.insert(ticket, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for EventWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let waker = lock(&self.event.0).wakers.remove(&ticket);
            drop(waker);
        }
    }
}

/// A bell: rings for one waiter or for all. A ring for one that nobody heard is kept for the next
/// (once: it counts no further than one). Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct Notify(Arc<Mutex<NotifyState>>);

#[derive(Debug, Default)]
struct NotifyState {
    kept: bool,
    next_ticket: u64,
    /// Those in line, by ticket: the lowest has waited longest.
    waiting: BTreeMap<u64, Waker>,
    /// Those for whom it rang for one, not polled since.
    rung: BTreeSet<u64>,
}

impl NotifyState {
    fn ring(&mut self) -> Option<Waker> {
        match self.waiting.pop_first() {
            Some((ticket, waker)) => {
                self.rung.insert(ticket);
                Some(waker)
            }
            None => {
                self.kept = true;
                None
            }
        }
    }
}

impl Notify {
    /// A bell that has not rung.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rings for the one that has waited longest; if nobody waits, for the next that comes.
    pub fn notify_one(&self) {
        let waker = lock(&self.0).ring();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Rings for all that wait now.
    pub fn notify_all(&self) {
        let wakers = std::mem::take(&mut lock(&self.0).waiting);
        wakers.into_values().for_each(Waker::wake);
    }

    /// Waits for the bell. The place in the line is taken at the first poll.
    pub fn notified(&self) -> Notified {
        Notified {
            notify: self.clone(),
            ticket: None,
        }
    }

    /// Waits until a condition holds that may have changed each time the bell rings for all.
    pub async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let mut rung = pin!(self.notified());
            // In line before the look: a change after it rings.
            let is_rung = poll_fn(|cx| Poll::Ready(rung.as_mut().poll(cx).is_ready())).await;
            if holds() {
                return;
            }
            if !is_rung {
                rung.await;
            }
        }
    }
}

/// Waits for a [`Notify`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Notified {
    notify: Notify,
    ticket: Option<u64>,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = lock(&this.notify.0);
        match this.ticket {
            None if state.kept => {
                state.kept = false;
                Poll::Ready(())
            }
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.waiting.insert(ticket, cx.waker().clone());
                this.ticket = Some(ticket);
                Poll::Pending
            }
            Some(ticket) => match state.waiting.get_mut(&ticket) {
                Some(waker) => {
                    waker.clone_from(cx.waker());
                    Poll::Pending
                }
                None => {
                    state.rung.remove(&ticket);
                    this.ticket = None;
                    Poll::Ready(())
                }
            },
        }
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = lock(&self.notify.0);
        let mine = state.waiting.remove(&ticket);
        // It rang for this one, which will not hear it any more: the next shall.
        let next = if state.rung.remove(&ticket) {
            state.ring()
        } else {
            None
        };
        drop(state);
        drop(mine);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
