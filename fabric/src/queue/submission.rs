//! Commands on their way from a transport to whoever serves the queue.
//!
//! Guarantees: commands come out in the order in which they arrived; none comes out of a queue that
//! is ending; the head of the submission queue goes round with the completions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use nvme::Sqe;

use super::{Capsule, Lifecycle, QueueInfo};
use crate::error::CloseReason;
use crate::waiters::Waiters;

/// What every target's queue has.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) info: Cell<QueueInfo>,
    pub(crate) life: Lifecycle,
    ready: RefCell<VecDeque<Capsule>>,
    waiters: RefCell<Waiters>,
    sq_head: Cell<u16>,
}

impl SubmissionQueue {
    pub(crate) fn new(info: QueueInfo) -> Self {
        Self {
            info: Cell::new(info),
            life: Lifecycle::default(),
            ready: RefCell::default(),
            waiters: RefCell::default(),
            sq_head: Cell::new(0),
        }
    }

    /// A command arrived.
    pub(crate) fn arrived(&self, capsule: Capsule) {
        self.ready.borrow_mut().push_back(capsule);
        self.waiters.borrow_mut().wake_all();
    }

    /// The next command, or None when the queue is ending. While `may_begin` says no, none is given;
    /// [`look_again`](Self::look_again) says when to ask it again.
    pub(crate) async fn next_command(&self, may_begin: impl Fn(&Sqe) -> bool) -> Option<Capsule> {
        poll_fn(|cx| {
            if self.life.is_ending() {
                return Poll::Ready(None);
            }
            let mut ready = self.ready.borrow_mut();
            if let Some(next) = ready.front()
                && may_begin(&next.sqe)
            {
                return Poll::Ready(ready.pop_front());
            }
            self.waiters.borrow_mut().register(cx);
            Poll::Pending
        })
        .await
    }

    /// Whoever waits for a command looks again.
    pub(crate) fn look_again(&self) {
        self.waiters.borrow_mut().wake_all();
    }

    /// The head of the submission queue after one more entry of `depth`.
    pub(crate) fn next_head(&self, depth: u16) -> u16 {
        let head = (self.sq_head.get() + 1) % depth.max(1);
        self.sq_head.set(head);
        head
    }

    /// The queue begins to end: commands that nobody took are dropped. False if it did before.
    pub(crate) fn end(&self, reason: CloseReason) -> bool {
        let info = self.info.get();
        let first = self.life.end(reason.clone());
        if first {
            tracing::debug!(peer = %info.peer, qid = info.qid, %reason, "queue ends");
            let dropped = std::mem::take(&mut *self.ready.borrow_mut());
            drop(dropped);
            self.waiters.borrow_mut().wake_all();
        }
        first
    }
}
