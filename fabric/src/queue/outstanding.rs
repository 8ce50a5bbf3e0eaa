//! The commands that a host has outstanding on one queue, whatever carries it.
//!
//! Guarantees: at most `depth` commands are outstanding; an answer is taken for a command only while
//! that very command is outstanding, not for an earlier or later user of its place; whoever waits for
//! a command learns its end exactly once, and a command that nobody waits for any more still runs to
//! its end.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use nvme::Cqe;
use reactor::Buffer;

use super::HostError;
use crate::memory::Permit;

/// Bits of a command identifier that hold the slot; those above count its uses, so that a late or
/// repeated completion is not taken for the slot's next command.
const SLOT_BITS: u32 = 10;

/// The longest queue, in entries.
pub(crate) const DEPTH_MAX: u16 = 1 << SLOT_BITS;

/// How a command ends: its completion, and the buffer of its data if it had one.
pub(crate) type Outcome = Result<(Cqe, Option<Buffer>), HostError>;

/// Commands by their identifiers; `T` is what the transport keeps of each.
pub(crate) struct Commands<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
}

struct Slot<T> {
    uses: u16,
    command: Option<Command<T>>,
}

/// A command that the target works on.
pub(crate) struct Command<T> {
    /// What the transport keeps of it.
    pub(crate) kept: T,
    reply: Rc<Reply>,
    _permit: Permit,
}

/// Where a command's end is told.
#[derive(Default)]
pub(crate) struct Reply {
    outcome: Cell<Option<Outcome>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> Commands<T> {
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            slots: (0..depth)
                .map(|_| Slot {
                    uses: 0,
                    command: None,
                })
                .collect(),
            free: (0..depth).rev().collect(),
        }
    }

    /// The identifier of the next command, if there is room for it.
    pub(crate) fn next_cid(&mut self) -> Option<u16> {
        let index = *self.free.last()?;
        let uses = self.slots[usize::from(index)].uses.wrapping_add(1);
        Some(index | (uses << SLOT_BITS))
    }

    /// Begins the command that [`next_cid`](Self::next_cid) named.
    pub(crate) fn begin(&mut self, kept: T, permit: Permit) -> Rc<Reply> {
        let reply = Rc::new(Reply::default());
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[usize::from(index)];
            slot.uses = slot.uses.wrapping_add(1);
            slot.command = Some(Command {
                kept,
                reply: reply.clone(),
                _permit: permit,
            });
        }
        reply
    }

    fn slot(&mut self, cid: u16) -> Option<&mut Slot<T>> {
        self.slots
            .get_mut(usize::from(cid & (DEPTH_MAX - 1)))
            .filter(|slot| slot.uses << SLOT_BITS == cid & !(DEPTH_MAX - 1))
    }

    /// An outstanding command.
    pub(crate) fn get(&mut self, cid: u16) -> Option<&mut T> {
        Some(&mut self.slot(cid)?.command.as_mut()?.kept)
    }

    /// Takes an outstanding command out: it is over.
    pub(crate) fn take(&mut self, cid: u16) -> Option<Command<T>> {
        let command = self.slot(cid)?.command.take()?;
        self.free.push(cid & (DEPTH_MAX - 1));
        Some(command)
    }

    /// Takes all of them out: the queue is over.
    pub(crate) fn take_all(&mut self) -> Vec<Command<T>> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.command.take())
            .collect()
    }
}

impl<T> Command<T> {
    /// Tells whoever waits, with what becomes of the transport's part.
    pub(crate) fn end(self, outcome: impl FnOnce(T) -> Outcome) {
        self.reply.set(outcome(self.kept));
    }
}

impl Reply {
    fn set(&self, outcome: Outcome) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits for the end of the command.
    pub(crate) async fn wait(&self) -> Outcome {
        poll_fn(|cx| match self.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}
