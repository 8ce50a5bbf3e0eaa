//! The workers of a queue: tasks that work on its commands.
//!
//! One worker is the leader: it takes the next command from the queue and works on it. As long as commands
//! are done without waiting it goes on with the next one, within one poll. When a command has to wait,
//! the leader first hands the lead to an idle worker, or to a new one; when its command is done it is idle
//! itself. So a command costs no task of its own, and none waits behind another.
//!
//! Guarantees:
//! - There are at most as many workers as commands in flight, plus the leader; those that were not needed
//!   lately end ([`Workers::shrink`]).
//! - A leader that ends without handing the lead on, for whatever reason, is noticed ([`Workers::lost`]).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The workers of one queue. Of the queue's reactor alone.
#[derive(Default)]
pub struct Workers {
    idle: RefCell<Vec<Rc<Worker>>>,
    /// The fewest that were idle at once since the last [`Workers::shrink`].
    fewest_idle: Cell<usize>,
    /// There is no leader any more.
    lost: Cell<bool>,
    on_lost: RefCell<Option<Waker>>,
}

/// A worker, as others wake it.
#[derive(Default)]
pub struct Worker {
    call: Cell<Option<Call>>,
    waker: RefCell<Option<Waker>>,
}

/// What an idle worker is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// It is the leader now.
    BecomeLeader,
    /// It is not needed.
    End,
}

impl Worker {
    fn call(&self, call: Call) {
        self.call.set(Some(call));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits until it is told what to do.
    pub async fn called(&self) -> Call {
        poll_fn(|cx| match self.call.take() {
            Some(call) => Poll::Ready(call),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

impl Workers {
    /// Waits until there is no leader any more: the queue has ended, or a worker has died.
    pub async fn lost(&self) {
        poll_fn(|cx| {
            if self.lost.get() {
                return Poll::Ready(());
            }
            *self.on_lost.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends the workers that were not needed since the last call.
    pub fn shrink(&self) {
        let needless = self.fewest_idle.get();
        let mut idle = self.idle.borrow_mut();
        // The ones at the front have been idle longest.
        let needless = needless.min(idle.len());
        let ended: Vec<_> = idle.drain(..needless).collect();
        self.fewest_idle.set(idle.len());
        drop(idle);
        ended.iter().for_each(|worker| worker.call(Call::End));
    }

    /// Ends all idle workers.
    pub fn end_idle(&self) {
        self.fewest_idle.set(usize::MAX);
        self.shrink();
    }

    /// A worker has nothing to do.
    pub fn add_idle(&self, worker: &Rc<Worker>) {
        self.idle.borrow_mut().push(worker.clone());
    }

    /// An idle worker, which is idle no longer.
    fn take_idle(&self) -> Option<Rc<Worker>> {
        let mut idle = self.idle.borrow_mut();
        let worker = idle.pop();
        self.fewest_idle.set(self.fewest_idle.get().min(idle.len()));
        worker
    }
}

/// A worker's share in the lead. If the leader ends while it holds the lead, the lead is lost, which the queue notices.
pub struct Leadership<'a> {
    workers: &'a Workers,
    held: bool,
}

impl<'a> Leadership<'a> {
    /// The lead, held by a new worker.
    pub fn taken(workers: &'a Workers) -> Self {
        Self {
            workers,
            held: true,
        }
    }

    /// Whether this worker is the leader.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// This worker was called to lead.
    pub fn take(&mut self) {
        self.held = true;
    }

    /// Hands the lead to an idle worker; without one, `start` makes a new worker that leads.
    pub fn hand_on(&mut self, start: impl FnOnce()) {
        self.held = false;
        match self.workers.take_idle() {
            Some(worker) => worker.call(Call::BecomeLeader),
            None => start(),
        }
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        if self.held {
            self.workers.lost.set(true);
            if let Some(waker) = self.workers.on_lost.take() {
                waker.wake();
            }
        }
    }
}
