//! One queue's authentication, step by step.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvme::auth::{
    AUTH_DATA_BYTES_MAX, Challenge, DhError, Exchange, Explanation, Failure, Group, Hash, KeyPair,
    Message, Negotiate, Party, Reply, Success1,
};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::{AuthTransfer, FabricsCommand};
use nvme::{Sqe, Status};

use super::random;
use crate::catalog::HostConfig;
use crate::command::{Command, Fault, Outcome, Success};
use crate::queue::Queue;

/// Byte offsets in Authentication Send and Receive, for the error log.
const PROTOCOL_AT: u16 = 41;
const LENGTH_AT: u16 = 44;

/// The largest room for a message: what is behind it is sent as zeros.
const ROOM_BYTES_MAX: u32 = 16 << 10;

/// Where the exchange stands: what comes next, or who is working on it.
enum Step {
    /// Nothing is under way.
    Idle,
    /// A message is being worked on.
    Working,
    /// The controller's message is ready to be received.
    Ready(Message, After),
    /// The host's reply is due.
    Reply(Box<Challenged>),
    /// The host's word on the controller's proof is due.
    Success2(u16),
}

/// What follows the controller's message.
enum After {
    Reply(Box<Challenged>),
    Success2(u16),
    Done,
    /// It was AUTH_Failure1: the queue ends.
    End,
}

/// A challenge that the host has, or gets next.
struct Challenged {
    transaction: u16,
    hash: Hash,
    group: Group,
    sequence: u32,
    value: Vec<u8>,
    pair: Option<KeyPair>,
    /// The keys as they were when the exchange began.
    keys: Arc<HostConfig>,
}

/// The authentication of a queue. Of the queue's reactor alone.
pub(crate) struct QueueAuth {
    /// Commands are taken.
    open: Cell<bool>,
    step: RefCell<Step>,
    /// When the exchange, or the wait for one, has taken too long.
    deadline: Cell<Option<Instant>>,
    timeout: Duration,
    /// The host knows that it failed.
    over: Cell<bool>,
}

impl QueueAuth {
    /// Of a queue that has just connected.
    pub(crate) fn new(required: bool, timeout: Duration) -> Self {
        Self {
            open: Cell::new(!required),
            step: RefCell::new(Step::Idle),
            deadline: Cell::new(required.then(|| reactor::now() + timeout)),
            timeout,
            over: Cell::new(false),
        }
    }

    /// Whether the host failed and was told: the queue ends.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Whether a command may be worked on. The rest need not be asked for an open queue.
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

    fn take(&self) -> Step {
        self.step.replace(Step::Working)
    }

    fn set(&self, step: Step) {
        *self.step.borrow_mut() = step;
    }

    fn began(&self) {
        if self.open.get() {
            self.deadline.set(Some(reactor::now() + self.timeout));
        }
    }

    fn done(&self) {
        self.open.set(true);
        self.deadline.set(None);
    }
}

/// Authentication Send: a message of the host.
pub(crate) async fn send<Q: Queue>(command: &Command<Q>, transfer: AuthTransfer) -> Outcome {
    check(command, transfer, AUTH_DATA_BYTES_MAX as u32)?;
    let bytes = transfer.length as usize;
    command.check_data_len(bytes)?;
    let data = command.fetch(bytes).await?;
    let auth = &command.line.auth;
    let step = auth.take();
    if matches!(step, Step::Working | Step::Ready(_, After::End)) {
        // Two messages at a time: what is under way goes on. And who has failed connects anew.
        auth.set(step);
        return Err(Status::COMMAND_SEQUENCE.with_dnr().into());
    }
    let transaction = match &step {
        Step::Reply(challenged) => challenged.transaction,
        Step::Success2(transaction) => *transaction,
        Step::Idle | Step::Working | Step::Ready(..) => {
            // Where every message that has 6 bytes has it.
            data.get(4..6)
                .map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
        }
    };
    let next = match (Message::parse(&data[..bytes]), step) {
        // The host may begin anew at any time.
        (Ok(Message::Negotiate(negotiate)), _) => {
            auth.began();
            self::negotiate(command, &negotiate).await
        }
        (Ok(message), Step::Reply(_) | Step::Success2(_))
            if message.transaction() != transaction =>
        {
            Err(Explanation::IncorrectPayload)
        }
        (Ok(Message::Reply(reply)), Step::Reply(challenged)) => {
            self::reply(command, reply, *challenged).await
        }
        (Ok(Message::Success2(_)), Step::Success2(_)) => {
            succeeded(command);
            Ok(Step::Idle)
        }
        (Ok(Message::Failure2(failure)), _) => {
            note_failure(command, failure.explanation, "the host ended it");
            auth.open.set(false);
            command.line.handle.close();
            Ok(Step::Idle)
        }
        (Ok(_), _) => Err(Explanation::IncorrectMessage),
        (Err(malformed), _) => Err(malformed.explanation),
    };
    auth.set(next.unwrap_or_else(|explanation| {
        note_failure(command, explanation, "refused");
        auth.open.set(false);
        // The host has to fetch the answer in time.
        let deadline = reactor::now() + auth.timeout;
        auth.deadline
            .set(Some(auth.deadline.get().unwrap_or(deadline)));
        let failure = Failure {
            transaction,
            explanation,
        };
        Step::Ready(Message::Failure1(failure), After::End)
    }));
    Ok(Success::default())
}

/// Authentication Receive: the controller's message.
pub(crate) async fn receive<Q: Queue>(command: &Command<Q>, transfer: AuthTransfer) -> Outcome {
    check(command, transfer, ROOM_BYTES_MAX)?;
    let auth = &command.line.auth;
    let room = transfer.length as usize;
    let message = match &*auth.step.borrow() {
        Step::Ready(message, _) => message.encode(),
        _ => return Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
    };
    if message.len() > room {
        return Err(Fault::field(Status::INVALID_FIELD, LENGTH_AT));
    }
    let answer = command.send(&message, room).await?;
    // Another Receive may have been faster; then this one repeats the message.
    let mut step = auth.step.borrow_mut();
    match std::mem::replace(&mut *step, Step::Idle) {
        Step::Ready(_, After::Reply(challenged)) => *step = Step::Reply(challenged),
        Step::Ready(_, After::Success2(transaction)) => *step = Step::Success2(transaction),
        Step::Ready(_, After::Done) => {}
        Step::Ready(_, After::End) => auth.over.set(true),
        other => *step = other,
    }
    Ok(answer)
}

fn check<Q: Queue>(
    command: &Command<Q>,
    transfer: AuthTransfer,
    bytes_max: u32,
) -> Result<(), Fault> {
    let line = &command.line;
    if line.auth.open.get() && line.target.host_keys(&line.controller).is_none() {
        // There is nothing that this host could prove.
        return Err(Status::INVALID_OPCODE.with_dnr().into());
    }
    if transfer.protocol != AuthTransfer::PROTOCOL {
        return Err(Fault::field(Status::INVALID_FIELD, PROTOCOL_AT));
    }
    if transfer.length == 0 || transfer.length > bytes_max {
        return Err(Fault::field(Status::INVALID_FIELD, LENGTH_AT));
    }
    Ok(())
}

/// The host offers what it can do: it gets a challenge.
async fn negotiate<Q: Queue>(
    command: &Command<Q>,
    negotiate: &Negotiate,
) -> Result<Step, Explanation> {
    let line = &command.line;
    if negotiate.secure_channel != 0 {
        return Err(Explanation::SecureChannelMismatch);
    }
    if negotiate.hashes.is_empty() && negotiate.groups.is_empty() {
        return Err(Explanation::ProtocolUnusable);
    }
    let keys = line.target.host_keys(&line.controller);
    let keys = keys.ok_or(Explanation::ProtocolUnusable)?;
    let hash = keys
        .auth
        .choose_hash(&negotiate.hashes)
        .ok_or(Explanation::HashUnusable)?;
    let group = keys
        .auth
        .choose_group(&negotiate.groups)
        .ok_or(Explanation::GroupUnusable)?;
    let pair = compute(command, move || KeyPair::from_random(group, &random())).await?;
    let challenged = Challenged {
        transaction: negotiate.transaction,
        hash,
        group,
        sequence: line.target.auth.next_sequence(),
        value: random::<64>()[..hash.len()].to_vec(),
        pair,
        keys,
    };
    let public = challenged.pair.as_ref().map(|pair| pair.public().to_vec());
    let message = Message::Challenge(Challenge {
        transaction: challenged.transaction,
        hash,
        group,
        sequence: challenged.sequence,
        value: challenged.value.clone(),
        public: public.unwrap_or_default(),
    });
    Ok(Step::Ready(message, After::Reply(Box::new(challenged))))
}

/// The host answers, and perhaps asks back.
async fn reply<Q: Queue>(
    command: &Command<Q>,
    reply: Reply,
    challenged: Challenged,
) -> Result<Step, Explanation> {
    let (transaction, hash) = (challenged.transaction, challenged.hash);
    if reply.answer.len() != hash.len() || reply.public.len() != challenged.group.value_bytes() {
        return Err(Explanation::IncorrectPayload);
    }
    let asks = reply.challenge.is_some();
    let controller = &command.line.controller;
    let host = controller.host.nqn.clone();
    let subsystem = controller.subsystem.nqn.clone();
    let work = move || prove(&reply, &challenged, host.as_str(), subsystem.as_str());
    let answer = compute(command, work).await??;
    if !asks {
        succeeded(command);
    }
    let message = Message::Success1(Success1 {
        transaction,
        hash_bytes: hash.len() as u8,
        answer,
    });
    let after = match asks {
        true => After::Success2(transaction),
        false => After::Done,
    };
    Ok(Step::Ready(message, after))
}

/// Checks the host's answer, and computes the controller's if the host asks for it.
fn prove(
    reply: &Reply,
    challenged: &Challenged,
    host: &str,
    subsystem: &str,
) -> Result<Result<Option<Vec<u8>>, Explanation>, nvme::auth::CryptoError> {
    let shared = match &challenged.pair {
        None => None,
        Some(pair) => match pair.shared_secret(&reply.public) {
            Ok(shared) => Some(shared),
            Err(DhError::PublicValue) => return Ok(Err(Explanation::IncorrectPayload)),
            Err(DhError::Crypto(error)) => return Err(error),
        },
    };
    let shared = shared.as_ref().map(|shared| shared.as_slice());
    let exchange = Exchange {
        hash: challenged.hash,
        transaction: challenged.transaction,
        secure_channel: 0,
        host,
        subsystem,
    };
    let Some(secret) = &challenged.keys.auth.dhchap_secret else {
        return Ok(Err(Explanation::Failed));
    };
    let right = exchange.is_right(
        Party::Host,
        secret,
        &challenged.value,
        challenged.sequence,
        shared,
        &reply.answer,
    )?;
    if !right {
        return Ok(Err(Explanation::Failed));
    }
    let Some((value, sequence)) = &reply.challenge else {
        return Ok(Ok(None));
    };
    let Some(secret) = &challenged.keys.auth.dhchap_ctrl_secret else {
        return Ok(Err(Explanation::Failed));
    };
    if *value == challenged.value {
        // Who has only our own challenge to ask is a mirror.
        return Ok(Err(Explanation::Failed));
    }
    let answer = exchange.answer(Party::Controller, secret, value, *sequence, shared)?;
    Ok(Ok(Some(answer.to_vec())))
}

/// Computes on a helper thread, when it is this one's turn.
async fn compute<Q: Queue, T: Send + 'static>(
    command: &Command<Q>,
    work: impl FnOnce() -> Result<T, nvme::auth::CryptoError> + Send + 'static,
) -> Result<T, Explanation> {
    let Ok(_turn) = command.line.target.auth.computing.acquire().await else {
        return Err(Explanation::Failed);
    };
    reactor::unblock(work).await.map_err(|error| {
        tracing::error!(%error, "a host cannot be authenticated");
        Explanation::Failed
    })
}

fn succeeded<Q: Queue>(command: &Command<Q>) {
    let line = &command.line;
    line.auth.done();
    let auth = &line.target.auth;
    auth.succeeded.fetch_add(1, Ordering::Relaxed);
    auth.attempts
        .succeeded(&(line.controller.peer.ip(), line.controller.host.nqn.clone()));
    tracing::debug!(controller = ?line.controller, qid = line.handle.qid, "authenticated");
}

fn note_failure<Q: Queue>(command: &Command<Q>, explanation: Explanation, how: &'static str) {
    let line = &command.line;
    let controller = &line.controller;
    let auth = &line.target.auth;
    auth.failed.fetch_add(1, Ordering::Relaxed);
    let lately = auth
        .attempts
        .failed((controller.peer.ip(), controller.host.nqn.clone()));
    tracing::warn!(
        host = %controller.host.nqn,
        peer = %controller.peer,
        qid = line.handle.qid,
        reason = %explanation,
        lately,
        "authentication failed: {how}"
    );
}
