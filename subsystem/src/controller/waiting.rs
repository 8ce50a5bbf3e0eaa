//! The commands of one queue that wait. [`fabric::serving::InFlight`] counts all that are in flight, on the queue's reactor,
//! so that a command that never waits takes no lock; [`Waiting`] lists those that wait, because other reactors may abort
//! them.
//!
//! Guarantee: a command is aborted only while it waits (for a buffer, for its data, for an event), never while the engine
//! works on it: the engine's futures run to their end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use crate::lock::lock;

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
    use std::cell::Cell;
    use std::future::{pending, ready};
    use std::task::Context;

    use futures_util::FutureExt;

    use super::*;

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
    fn places_are_used_again() {
        let commands = Waiting::default();
        for cid in 0..100 {
            assert_eq!(commands.wait(cid, 1, pending::<()>()).now_or_never(), None);
        }
        assert_eq!(lock(&commands.table).entries.len(), 1);
    }
}
