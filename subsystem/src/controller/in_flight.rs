//! The commands in flight on one queue.
//!
//! Two halves: [`InFlight`] counts commands and their identifiers on the queue's reactor, so that a command that never
//! waits takes no lock. [`Waiting`] lists the commands that wait, because other reactors may abort those.
//!
//! Guarantees:
//! - A command identifier is in flight at most once per queue.
//! - A command is aborted only while it waits (for a buffer, for its data, for an event), never while
//!   the engine works on it: the engine's futures run to their end.
//! - [`InFlight::earlier_done`] is ready only when no command that began before it can touch a volume.
//! - [`InFlight::none_left`] is ready only when no command of the queue can touch a volume any more.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use crate::lock::lock;

/// Words of a set of command identifiers, which have 16 bits.
const CID_WORDS: usize = (1 << 16) / 64;

/// The identifiers in use on a queue, and the number of commands. Only for the queue's reactor.
pub(crate) struct InFlight {
    used: RefCell<Box<[u64]>>,
    count: Cell<usize>,
    on_none: RefCell<Option<Waker>>,
    /// Commands that may still touch a volume, by the period that they began in.
    periods: [Cell<usize>; 2],
    /// The period of commands that begin now.
    period: Cell<Period>,
    on_period_over: RefCell<Option<Waker>>,
}

/// A period in which commands begin. It ends when somebody waits for all commands so far. Two periods alternate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Period(bool);

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
    pub(crate) fn begin(&self, cid: u16) -> bool {
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
    pub(crate) fn answering(&self, cid: u16) {
        let (word, bit) = place_of(cid);
        self.used.borrow_mut()[word] &= !bit;
    }

    /// A command has ended.
    pub(crate) fn end(&self) {
        let left = self.count.get().saturating_sub(1);
        self.count.set(left);
        if left == 0
            && let Some(waker) = self.on_none.take()
        {
            waker.wake();
        }
    }

    /// A command begins that may touch a volume.
    pub(crate) fn enter_period(&self) -> Period {
        let period = self.period.get();
        let count = self.in_period(period);
        count.set(count.get() + 1);
        period
    }

    /// A command can touch no volume any more.
    pub(crate) fn leave_period(&self, period: Period) {
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

    /// Waits until no command that began before can touch a volume. One at a time.
    pub(crate) async fn earlier_done(&self) {
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
    pub(crate) async fn none_left(&self) {
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

/// The commands of a queue that wait where they may be aborted. Usable from every thread.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Set once: every command that waits, now or later, ends without an answer.
    ending: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    cid: u16,
    nsid: u32,
    abort_requested: bool,
    waker: Waker,
}

/// Why a waiting command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The host or a reset asked for it: answer Command Abort Requested.
    Aborted,
    /// The queue ends: no answer can reach the host.
    QueueEnding,
}

impl Waiting {
    /// Asks for a command to be aborted. True if it will be; false if it is not in flight, or cannot be aborted any more.
    pub(crate) fn abort(&self, cid: u16) -> bool {
        let mut table = lock(&self.table);
        let mut waiting = table.entries.iter_mut().flatten();
        match waiting.find(|entry| entry.cid == cid) {
            None => false,
            Some(entry) => {
                entry.abort();
                true
            }
        }
    }

    /// Aborts what waits now in a namespace.
    pub(crate) fn abort_namespace(&self, nsid: u32) {
        let mut table = lock(&self.table);
        let waiting = table.entries.iter_mut().flatten();
        let there = waiting.filter(|entry| entry.nsid == nsid);
        there.for_each(Entry::abort);
    }

    /// Aborts what waits now: the controller is reset.
    pub(crate) fn abort_all(&self) {
        let mut table = lock(&self.table);
        table.entries.iter_mut().flatten().for_each(Entry::abort);
    }

    /// Ends what waits, now and from now on, without an answer: the queue is going away.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let table = lock(&self.table);
        for entry in table.entries.iter().flatten() {
            entry.waker.wake_by_ref();
        }
    }

    /// Whether [`Waiting::end`] was called.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Waits for `work` of the command `cid` in a namespace; it is dropped if the command is aborted meanwhile. Work
    /// that is ready at once touches no lock.
    ///
    /// # Errors
    /// Why the command ends early.
    pub(crate) async fn wait<T>(
        &self,
        cid: u16,
        nsid: u32,
        work: impl Future<Output = T>,
    ) -> Result<T, Interrupted> {
        let mut work = pin!(work);
        let mut place = Place {
            waiting: self,
            slot: None,
        };
        poll_fn(|cx| {
            place.check(cx.waker())?;
            match work.as_mut().poll(cx) {
                // An abort that was promised is kept, also when the work ended at the same moment.
                Poll::Ready(done) => match place.leave() {
                    true => Poll::Ready(Err(Interrupted::Aborted)),
                    false => Poll::Ready(Ok(done)),
                },
                Poll::Pending => {
                    place.enter(cid, nsid, cx.waker())?;
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Entry {
    fn abort(&mut self) {
        self.abort_requested = true;
        self.waker.wake_by_ref();
    }
}

/// The place of one waiting command in the table, once it has one; given back when dropped.
struct Place<'a> {
    waiting: &'a Waiting,
    slot: Option<usize>,
}

impl Place<'_> {
    /// Whether to go on; remembers who to wake.
    fn check(&self, waker: &Waker) -> Result<(), Interrupted> {
        if self.waiting.is_ending() {
            return Err(Interrupted::QueueEnding);
        }
        let Some(slot) = self.slot else {
            return Ok(());
        };
        let mut table = lock(&self.waiting.table);
        match table.entries.get_mut(slot) {
            Some(Some(entry)) if entry.abort_requested => Err(Interrupted::Aborted),
            Some(Some(entry)) => {
                entry.waker.clone_from(waker);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn enter(&mut self, cid: u16, nsid: u32, waker: &Waker) -> Result<(), Interrupted> {
        if self.slot.is_some() {
            return Ok(());
        }
        let mut table = lock(&self.waiting.table);
        // Under the lock: whoever ends the queue after this finds the entry.
        if self.waiting.is_ending() {
            return Err(Interrupted::QueueEnding);
        }
        let entry = Some(Entry {
            cid,
            nsid,
            abort_requested: false,
            waker: waker.clone(),
        });
        let slot = match table.free.pop() {
            Some(slot) => {
                table.entries[slot] = entry;
                slot
            }
            None => {
                table.entries.push(entry);
                table.entries.len() - 1
            }
        };
        self.slot = Some(slot);
        Ok(())
    }

    /// Gives the place back; true if an abort was requested meanwhile.
    fn leave(&mut self) -> bool {
        let Some(slot) = self.slot.take() else {
            return false;
        };
        let mut table = lock(&self.waiting.table);
        let entry = table.entries.get_mut(slot).and_then(Option::take);
        table.free.push(slot);
        entry.is_some_and(|entry| entry.abort_requested)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Context;

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
    fn what_waits_can_be_aborted_and_what_works_cannot() {
        let commands = Waiting::default();
        assert!(!commands.abort(1), "it does not wait");
        {
            let mut waiting = pin!(commands.wait(1, 1, pending::<()>()));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            assert!(!commands.abort(2), "another one");
            assert!(commands.abort(1));
            assert_eq!(
                waiting.as_mut().poll(&mut cx),
                Poll::Ready(Err(Interrupted::Aborted))
            );
        }
        assert!(!commands.abort(1), "it works again");
    }

    #[test]
    fn an_abort_that_was_promised_is_kept_although_the_work_is_done_too() {
        let commands = Waiting::default();
        let done = Cell::new(false);
        let work = poll_fn(|_| match done.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let mut waiting = pin!(commands.wait(1, 1, work));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(commands.abort(1));
        done.set(true);
        assert_eq!(
            waiting.as_mut().poll(&mut cx),
            Poll::Ready(Err(Interrupted::Aborted))
        );
    }

    #[test]
    fn a_queue_that_ends_takes_along_what_waits_later_too() {
        let commands = Waiting::default();
        let mut now = Box::pin(commands.wait(1, 1, pending::<()>()));
        assert_eq!((&mut now).now_or_never(), None);
        commands.end();
        assert_eq!(now.now_or_never(), Some(Err(Interrupted::QueueEnding)));
        assert_eq!(
            commands.wait(2, 1, ready(())).now_or_never(),
            Some(Err(Interrupted::QueueEnding))
        );
    }

    #[test]
    fn only_what_waits_in_that_namespace_is_aborted() {
        let commands = Waiting::default();
        let mut here = Box::pin(commands.wait(1, 7, pending::<()>()));
        let mut elsewhere = Box::pin(commands.wait(2, 8, pending::<()>()));
        assert_eq!((&mut here).now_or_never(), None);
        assert_eq!((&mut elsewhere).now_or_never(), None);
        commands.abort_namespace(7);
        assert_eq!(here.now_or_never(), Some(Err(Interrupted::Aborted)));
        assert_eq!(elsewhere.now_or_never(), None);
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

    #[test]
    fn places_are_used_again() {
        let commands = Waiting::default();
        for cid in 0..100 {
            assert_eq!(commands.wait(cid, 1, pending::<()>()).now_or_never(), None);
        }
        assert_eq!(lock(&commands.table).entries.len(), 1);
    }
}
