//! The authentication state of one queue.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme::Sqe;
use nvme::auth::{Group, Hash, KeyPair, Message};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::FabricsCommand;

use super::AuthLimits;

/// The step of the exchange that comes next.
pub(super) enum Step<S> {
    /// Nothing is under way.
    Idle,
    /// A message is being worked on.
    Working,
    /// The controller's message is ready to be received.
    Ready(Message, After<S>),
    /// The host's reply is due.
    Reply(Box<Challenged<S>>),
    /// The host's confirmation of the controller's answer is due.
    Success2(u16),
}

/// What follows the controller's message.
pub(super) enum After<S> {
    Reply(Box<Challenged<S>>),
    Success2(u16),
    Done,
    /// It was AUTH_Failure1: the queue ends.
    End,
}

/// A challenge that the host has received, or receives next.
pub(super) struct Challenged<S> {
    pub(super) transaction: u16,
    pub(super) hash: Hash,
    pub(super) group: Group,
    pub(super) sequence: u32,
    pub(super) value: Vec<u8>,
    pub(super) pair: Option<KeyPair>,
    /// The host's SC_C; not 0 if a TLS key is to be made.
    pub(super) secure_channel: u8,
    /// The host's secrets when the exchange began.
    pub(super) secrets: Arc<S>,
}

/// The authentication of a queue. Of the queue's reactor alone.
pub struct QueueAuth<S> {
    /// Commands are taken.
    open: Cell<bool>,
    step: RefCell<Step<S>>,
    /// When the host must have authenticated.
    deadline: Cell<Option<Instant>>,
    timeout: Duration,
    /// The host was told that it failed: the queue ends.
    over: Cell<bool>,
    /// The current exchange only makes a TLS key, with which the host connects again: without TLS the queue does nothing
    /// more (Base 2.1, section 8.3.4.5.9).
    pub(super) for_key_alone: Cell<bool>,
    /// Such a key was made.
    key_made: Cell<bool>,
    /// Exchanges within the window, and when the window began.
    begun: Cell<(u32, Instant)>,
}

impl<S> QueueAuth<S> {
    /// For a queue that has just connected, and whose host has to authenticate if that is required.
    #[must_use]
    pub fn new(required: bool, timeout: Duration) -> Self {
        Self {
            open: Cell::new(!required),
            step: RefCell::new(Step::Idle),
            deadline: Cell::new(required.then(|| reactor::now() + timeout)),
            timeout,
            over: Cell::new(false),
            for_key_alone: Cell::new(false),
            key_made: Cell::new(false),
            begun: Cell::new((0, reactor::now())),
        }
    }

    /// Whether a TLS key was made, with which the host has to connect again.
    pub fn has_made_key(&self) -> bool {
        self.key_made.get()
    }

    /// A queue without TLS closes once its host has a TLS key. The host may still fetch the last message, in time.
    pub fn close_for_key(&self) {
        self.key_made.set(true);
        self.stop_soon();
    }

    /// Whether the exchange that ended was for a TLS key alone: then the queue does nothing more.
    pub fn is_for_key_alone(&self) -> bool {
        self.for_key_alone.get()
    }

    /// Whether commands are taken.
    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// No command is taken any more.
    pub(super) fn stop(&self) {
        self.open.set(false);
    }

    /// The same; the host may still fetch the last message, in time.
    pub(super) fn stop_soon(&self) {
        self.stop();
        let deadline = reactor::now() + self.timeout;
        self.deadline
            .set(Some(self.deadline.get().unwrap_or(deadline)));
    }

    /// Whether the host may start one more exchange; each one is computed.
    pub(super) fn may_begin(&self, limits: &AuthLimits) -> bool {
        let now = reactor::now();
        let (count, since) = self.begun.get();
        let (count, since) = match now.duration_since(since) < limits.window {
            true => (count.saturating_add(1), since),
            false => (1, now),
        };
        self.begun.set((count, since));
        count <= limits.exchanges_max
    }

    /// Whether the host failed and was told: the queue ends.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Whether a command may run.
    pub fn admits(&self, sqe: &Sqe) -> bool {
        self.open.get()
            || (sqe.opcode() == FABRICS_OPCODE
                && matches!(
                    FabricsCommand::parse(sqe),
                    Ok(FabricsCommand::AuthSend(_)
                        | FabricsCommand::AuthReceive(_)
                        | FabricsCommand::Disconnect { .. })
                ))
    }

    /// Whether the host has yet to authenticate.
    pub fn is_awaited(&self) -> bool {
        !self.open.get() && !self.over.get()
    }

    /// Whether the exchange has failed already.
    pub fn has_failed(&self) -> bool {
        self.over.get() || matches!(&*self.step.borrow(), Step::Ready(_, After::End))
    }

    /// How long until [`QueueAuth::is_late`] may be true, `usual` at most.
    pub fn pause(&self, usual: Duration) -> Duration {
        match self.deadline.get() {
            Some(deadline) => usual.min(deadline.saturating_duration_since(reactor::now())),
            None => usual,
        }
    }

    /// Whether the host takes too long.
    pub fn is_late(&self) -> bool {
        self.deadline
            .get()
            .is_some_and(|deadline| deadline <= reactor::now())
    }

    /// The controller's message, if it is ready.
    pub(super) fn message(&self) -> Option<Vec<u8>> {
        match &*self.step.borrow() {
            Step::Ready(message, _) => Some(message.encode()),
            _ => None,
        }
    }

    /// The host has that message. Another Receive may have been faster; then this one repeated it.
    pub(super) fn received(&self) {
        let mut step = self.step.borrow_mut();
        match std::mem::replace(&mut *step, Step::Idle) {
            Step::Ready(_, After::Reply(challenged)) => *step = Step::Reply(challenged),
            Step::Ready(_, After::Success2(transaction)) => *step = Step::Success2(transaction),
            Step::Ready(_, After::Done) => {}
            Step::Ready(_, After::End) => self.over.set(true),
            other => *step = other,
        }
    }

    pub(super) fn take(&self) -> Step<S> {
        self.step.replace(Step::Working)
    }

    pub(super) fn set(&self, step: Step<S>) {
        *self.step.borrow_mut() = step;
    }

    pub(super) fn began(&self) {
        if self.open.get() {
            self.deadline.set(Some(reactor::now() + self.timeout));
        }
    }

    /// The host has proved who it is.
    pub fn done(&self) {
        self.open.set(true);
        self.deadline.set(None);
    }
}
