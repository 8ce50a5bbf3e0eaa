//! The authentication state of one queue.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme::Sqe;
use nvme::auth::{Group, Hash, KeyPair, Message};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::FabricsCommand;

use crate::catalog::HostConfig;
use crate::limits::Limits;

/// The step of the exchange that comes next.
pub(crate) enum Step {
    /// Nothing is under way.
    Idle,
    /// A message is being worked on.
    Working,
    /// The controller's message is ready to be received.
    Ready(Message, After),
    /// The host's reply is due.
    Reply(Box<Challenged>),
    /// The host's confirmation of the controller's answer is due.
    Success2(u16),
}

/// What follows the controller's message.
pub(crate) enum After {
    Reply(Box<Challenged>),
    Success2(u16),
    Done,
    /// It was AUTH_Failure1: the queue ends.
    End,
}

/// A challenge that the host has received, or receives next.
pub(crate) struct Challenged {
    pub(crate) transaction: u16,
    pub(crate) hash: Hash,
    pub(crate) group: Group,
    pub(crate) sequence: u32,
    pub(crate) value: Vec<u8>,
    pub(crate) pair: Option<KeyPair>,
    /// The host's SC_C; not 0 if a TLS key is to be made.
    pub(crate) secure_channel: u8,
    /// The host's keys when the exchange began.
    pub(crate) keys: Arc<HostConfig>,
}

/// The authentication of a queue. Of the queue's reactor alone.
pub(crate) struct QueueAuth {
    /// Commands are taken.
    pub(crate) open: Cell<bool>,
    pub(crate) step: RefCell<Step>,
    /// When the host must have authenticated.
    pub(crate) deadline: Cell<Option<Instant>>,
    pub(crate) timeout: Duration,
    /// The host was told that it failed: the queue ends.
    pub(crate) over: Cell<bool>,
    /// The current exchange only makes a TLS key, with which the host connects again: without TLS the queue does nothing
    /// more (Base 2.1, section 8.3.4.5.9).
    pub(crate) for_key_alone: Cell<bool>,
    /// Such a key was made.
    key_made: Cell<bool>,
    /// Exchanges within the window, and when the window began.
    begun: Cell<(u32, Instant)>,
}

impl QueueAuth {
    /// For a queue that has just connected.
    pub(crate) fn new(required: bool, timeout: Duration) -> Self {
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
    pub(crate) fn has_made_key(&self) -> bool {
        self.key_made.get()
    }

    /// A queue without TLS closes once its host has a TLS key. The host may still fetch the last message, in time.
    pub(crate) fn close_for_key(&self) {
        self.key_made.set(true);
        self.open.set(false);
        let deadline = reactor::now() + self.timeout;
        self.deadline
            .set(Some(self.deadline.get().unwrap_or(deadline)));
    }

    /// Whether the host may start one more exchange; each one is computed.
    pub(crate) fn may_begin(&self, limits: &Limits) -> bool {
        let now = reactor::now();
        let (count, since) = self.begun.get();
        let (count, since) = match now.duration_since(since) < limits.auth_failures_window {
            true => (count.saturating_add(1), since),
            false => (1, now),
        };
        self.begun.set((count, since));
        count <= limits.auth_exchanges_max
    }

    /// Whether the host failed and was told: the queue ends.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Whether a command may run.
    pub(crate) fn admits(&self, sqe: &Sqe) -> bool {
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
    pub(crate) fn is_awaited(&self) -> bool {
        !self.open.get() && !self.over.get()
    }

    /// Whether the exchange has failed already.
    pub(crate) fn has_failed(&self) -> bool {
        self.over.get() || matches!(&*self.step.borrow(), Step::Ready(_, After::End))
    }

    /// How long until [`QueueAuth::is_late`] may be true, `usual` at most.
    pub(crate) fn pause(&self, usual: Duration) -> Duration {
        match self.deadline.get() {
            Some(deadline) => usual.min(deadline.saturating_duration_since(reactor::now())),
            None => usual,
        }
    }

    /// Whether the host takes too long.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline
            .get()
            .is_some_and(|deadline| deadline <= reactor::now())
    }

    pub(crate) fn take(&self) -> Step {
        self.step.replace(Step::Working)
    }

    pub(crate) fn set(&self, step: Step) {
        *self.step.borrow_mut() = step;
    }

    pub(crate) fn began(&self) {
        if self.open.get() {
            self.deadline.set(Some(reactor::now() + self.timeout));
        }
    }

    pub(crate) fn done(&self) {
        self.open.set(true);
        self.deadline.set(None);
    }
}
