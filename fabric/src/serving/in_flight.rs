//! The commands in flight on one queue, as the reactor that serves it counts them.
//!
//! Guarantees:
//! - A command identifier is in flight at most once per queue.
//! - [`InFlight::earlier_done`] is ready only when no command that began before it can touch data.
//! - [`InFlight::none_left`] is ready only when no command of the queue can touch data any more.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Words of a set of command identifiers, which have 16 bits.
const CID_WORDS: usize = (1 << 16) / 64;

/// The identifiers in use on a queue, and the number of commands. Only for the queue's reactor.
pub struct InFlight {
    used: RefCell<Box<[u64]>>,
    count: Cell<usize>,
    on_none: RefCell<Option<Waker>>,
    /// Commands that may still touch data, by the period that they began in.
    periods: [Cell<usize>; 2],
    /// The period of commands that begin now.
    period: Cell<Period>,
    on_period_over: RefCell<Option<Waker>>,
}

/// A period in which commands begin. It ends when somebody waits for all commands so far. Two periods alternate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period(bool);

impl Default for InFlight {
    fn default() -> Self {
        Self {
            used: RefCell::new(vec![0; CID_WORDS].into_boxed_slice()),
            count: Cell::new(0),
            on_none: RefCell::new(None),
            periods: Default::default(),
            period: Cell::default(),
            on_period_over: RefCell::new(None),
        }
    }
}

impl InFlight {
    /// Marks an identifier as used by a new command; false if it is in flight already.
    pub fn begin(&self, cid: u16) -> bool {
        let mut used = self.used.borrow_mut();
        let (word, bit) = place_of(cid);
        if used[word] & bit != 0 {
            return false;
        }
        used[word] |= bit;
        self.count.set(self.count.get() + 1);
        true
    }

    /// A command is about to be completed: from the completion on, the host may use its identifier
    /// again. It still counts as in flight.
    pub fn answering(&self, cid: u16) {
        let (word, bit) = place_of(cid);
        self.used.borrow_mut()[word] &= !bit;
    }

    /// A command has ended.
    pub fn end(&self) {
        let left = self.count.get().saturating_sub(1);
        self.count.set(left);
        if left == 0
            && let Some(waker) = self.on_none.take()
        {
            waker.wake();
        }
    }

    /// A command begins that may touch data.
    pub fn enter_period(&self) -> Period {
        let period = self.period.get();
        let count = self.in_period(period);
        count.set(count.get() + 1);
        period
    }

    /// A command can touch no data any more.
    pub fn leave_period(&self, period: Period) {
        let count = self.in_period(period);
        let left = count.get().saturating_sub(1);
        count.set(left);
        if left == 0
            && period != self.period.get()
            && let Some(waker) = self.on_period_over.take()
        {
            waker.wake();
        }
    }

    fn in_period(&self, period: Period) -> &Cell<usize> {
        &self.periods[usize::from(period.0)]
    }

    /// Waits until no command that began before can touch data. One at a time.
    pub async fn earlier_done(&self) {
        let over = self.period.get();
        self.period.set(Period(!over.0));
        poll_fn(|cx| {
            if self.in_period(over).get() == 0 {
                return Poll::Ready(());
            }
            *self.on_period_over.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until no command is in flight.
    pub async fn none_left(&self) {
        poll_fn(|cx| {
            if self.count.get() == 0 {
                return Poll::Ready(());
            }
            *self.on_none.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

fn place_of(cid: u16) -> (usize, u64) {
    (usize::from(cid) / 64, 1 << (cid % 64))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_identifier_is_in_flight_once_and_free_again_when_answered() {
        let commands = InFlight::default();
        for cid in [0, 7, 0xffff] {
            assert!(commands.begin(cid));
            assert!(!commands.begin(cid), "{cid} is in flight");
        }
        commands.answering(7);
        assert!(commands.begin(7), "answered");
        for _ in 0..4 {
            assert!(commands.none_left().now_or_never().is_none());
            commands.end();
        }
        assert!(commands.none_left().now_or_never().is_some());
    }

    #[test]
    fn who_waits_for_earlier_commands_does_not_wait_for_later_ones() {
        let commands = InFlight::default();
        let earlier = commands.enter_period();
        let harmless = commands.enter_period();
        commands.leave_period(harmless);
        let mut done = Box::pin(commands.earlier_done());
        assert_eq!((&mut done).now_or_never(), None);
        let later = commands.enter_period();
        assert_eq!((&mut done).now_or_never(), None);
        commands.leave_period(earlier);
        assert_eq!(done.now_or_never(), Some(()));
        let mut done = Box::pin(commands.earlier_done());
        assert_eq!(
            (&mut done).now_or_never(),
            None,
            "the later one is an earlier one now"
        );
        commands.leave_period(later);
        assert_eq!(done.now_or_never(), Some(()));
        assert_eq!(commands.earlier_done().now_or_never(), Some(()));
    }
}
