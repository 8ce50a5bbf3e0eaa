//! Rounds: flushes that wait share the next one, and that one may wait for those that are about to come.
//!
//! Where each write waits for a flush, those that arrive while one is under way share the next one, a *round*. Hosts send their next
//! writes when they are told of the last ones. So a round that begins at once leaves out all that the round before acknowledged: two
//! halves of what the hosts have under way take turns, and each waits for the other half's round too. One that waits until the others are
//! back has all of them. Which is better depends on what is short. A drive takes about as long for a flush of twice as many writes. A
//! processor does not, and it can work on one half while the other half is flushed. So both ways are tried in turns, by
//! [`trial`], and the one that acknowledges more is kept.
//!
//! Guarantees: a round waits no longer than the round before took, counted from that one's end, and for [`GATHER_MAX`] at most; if it waited in
//! vain, the next ones do not wait, twice as many each time.

mod trial;

use std::future::{Future, poll_fn};
use std::sync::Mutex;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::sync::wait::lock;
use trial::Trial;

/// How long a round waits for others at most.
const GATHER_MAX: Duration = Duration::from_millis(4);

/// So many rounds in a row that waited in vain count: after the last of them this power of two, less one, begin at once.
const IN_VAIN_MAX: u32 = 6;

/// See the module.
#[derive(Default)]
pub(crate) struct Rounds {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    plan: Plan,
    /// Who gathers, and for how many.
    gathers: Option<(u64, Waker)>,
}

impl Rounds {
    /// A flush is asked for, and waits for a round.
    pub(crate) fn arrive(&self) {
        let mut inner = lock(&self.inner);
        let arrived = inner.plan.arrive();
        let is_complete = |(wanted, _): &mut (u64, Waker)| arrived >= *wanted;
        let gathers = inner.gathers.take_if(is_complete);
        drop(inner);
        if let Some((_, waker)) = gathers {
            waker.wake();
        }
    }

    /// Waits until those are there that the next round is worth waiting for. Where there is no reactor there is no clock: then for
    /// nobody.
    pub(crate) async fn gather(&self) {
        if reactor::current().is_none() {
            return;
        }
        let now = reactor::now();
        let Some((wanted, until)) = lock(&self.inner).plan.wanted(now) else {
            return;
        };
        let are_there = reactor::timeout(until.duration_since(now), self.arrived(wanted)).await;
        let mut inner = lock(&self.inner);
        inner.gathers = None;
        inner.plan.gathered(are_there.is_ok());
    }

    fn arrived(&self, wanted: u64) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            let mut inner = lock(&self.inner);
            if inner.plan.arrived >= wanted {
                return Poll::Ready(());
            }
            inner.gathers = Some((wanted, cx.waker().clone()));
            Poll::Pending
        })
    }

    /// A round begins, with all that have arrived.
    pub(crate) fn begin(&self) {
        lock(&self.inner).plan.begin(reactor::now());
    }

    /// The round has ended, and nobody was told yet.
    pub(crate) fn end(&self) {
        lock(&self.inner).plan.end(reactor::now());
    }

    /// As if a round had ended that acknowledged so many, and lasted so long that the next one may wait for them until then.
    #[cfg(test)]
    pub(crate) fn acknowledged(&self, count: u64, until: Instant) {
        let mut inner = lock(&self.inner);
        inner.plan.last = Some(Last {
            ended: until - GATHER_MAX,
            took: GATHER_MAX,
            wanted: inner.plan.arrived + count,
        });
    }
}

/// When a round begins. It counts the flushes that were asked for.
#[derive(Default)]
struct Plan {
    arrived: u64,
    /// Those that rounds took.
    begun: u64,
    /// The round under way: when it began, and how many it took.
    under_way: Option<(Instant, u64)>,
    last: Option<Last>,
    /// Rounds in a row that waited in vain.
    in_vain: u32,
    /// So many of the next rounds begin at once.
    at_once: u32,
    trial: Trial,
}

/// The last round.
struct Last {
    ended: Instant,
    took: Duration,
    /// How many will have arrived when all that it acknowledged are back, with those that arrived while it was under way.
    wanted: u64,
}

impl Plan {
    /// How many have arrived.
    fn arrive(&mut self) -> u64 {
        self.arrived += 1;
        self.arrived
    }

    /// How many shall have arrived before the next round begins, and when it begins without them; `None`: it begins at once.
    fn wanted(&mut self, now: Instant) -> Option<(u64, Instant)> {
        let last = self.last.as_ref()?;
        let until = last.ended + last.took.min(GATHER_MAX);
        if !self.trial.gathers() || self.arrived >= last.wanted || until <= now {
            return None;
        }
        if self.at_once > 0 {
            self.at_once -= 1;
            return None;
        }
        Some((last.wanted, until))
    }

    fn gathered(&mut self, are_there: bool) {
        self.in_vain = match are_there {
            true => 0,
            false => IN_VAIN_MAX.min(self.in_vain + 1),
        };
        self.at_once = (1 << self.in_vain) - 1;
    }

    fn begin(&mut self, now: Instant) {
        self.under_way = Some((now, self.arrived - self.begun));
        self.begun = self.arrived;
        if let Some(last) = &self.last
            && now.saturating_duration_since(last.ended) > last.took.max(GATHER_MAX)
        {
            self.trial.was_idle();
        }
    }

    fn end(&mut self, now: Instant) {
        let Some((began, acknowledged)) = self.under_way.take() else {
            return;
        };
        self.trial.round(acknowledged, now);
        self.last = Some(Last {
            ended: now,
            took: now.saturating_duration_since(began),
            wanted: self.arrived + acknowledged,
        });
    }
}

#[cfg(test)]
mod tests;
