//! One queue's authentication, step by step.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabric::TlsMode;
use nvme::auth::{
    AUTH_DATA_BYTES_MAX, Challenge, Concatenation, DhError, Exchange, Explanation, Failure, Group,
    Hash, KeyPair, Message, Negotiate, Party, Reply, Success1, TlsPsk,
};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::{AuthTransfer, FabricsCommand};
use nvme::{Sqe, Status};

use super::{random, tls};
use crate::catalog::HostConfig;
use crate::command::{Command, Fault, Outcome, Success};
use crate::queue::Queue;
use crate::subsystem::Limits;

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
    /// What the host asked for (SC_C); not 0 if a TLS key is to be made.
    secure_channel: u8,
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
    /// The exchange that began last is there to have a TLS key made, by which the host comes again: in clear it does
    /// nothing more (Base 2.1, section 8.3.4.5.9).
    for_key_alone: Cell<bool>,
    /// Such a key was made.
    key_made: Cell<bool>,
    /// Exchanges that the host began within the window, and when that began.
    begun: Cell<(u32, Instant)>,
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
            for_key_alone: Cell::new(false),
            key_made: Cell::new(false),
            begun: Cell::new((0, reactor::now())),
        }
    }

    /// Whether the host had a TLS key made, and has to come again by it.
    pub(crate) fn has_made_key(&self) -> bool {
        self.key_made.get()
    }

    /// A queue in clear is there no longer when its host has a TLS key: it may fetch the last message, in time.
    fn close_for_key(&self) {
        self.key_made.set(true);
        self.open.set(false);
        let deadline = reactor::now() + self.timeout;
        self.deadline
            .set(Some(self.deadline.get().unwrap_or(deadline)));
    }

    /// Whether the host may begin one more exchange: each costs a turn of computing.
    fn may_begin(&self, limits: &Limits) -> bool {
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
        (Ok(Message::Negotiate(_)), _) if !auth.may_begin(&command.line.target.limits) => {
            Err(Explanation::Failed)
        }
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
    let concatenates = negotiate.secure_channel != 0;
    if concatenates && !may_concatenate(command, negotiate.secure_channel) {
        return Err(Explanation::SecureChannelMismatch);
    }
    if negotiate.hashes.is_empty() && negotiate.groups.is_empty() {
        return Err(Explanation::ProtocolUnusable);
    }
    let keys = line.target.host_keys(&line.controller);
    let keys = keys.ok_or(Explanation::ProtocolUnusable)?;
    let in_clear = line.controller.tls.is_none();
    if in_clear && keys.auth.tls_only && !concatenates {
        return Err(Explanation::SecureChannelMismatch);
    }
    line.auth.for_key_alone.set(in_clear && concatenates);
    // A TLS key is made of a Diffie-Hellman exchange, with the hash of a cipher suite.
    let without = |offered: &[u8], id: u8| {
        let left = offered.iter().copied();
        left.filter(|offered| !(concatenates && *offered == id))
            .collect::<Vec<_>>()
    };
    let hash = keys
        .auth
        .choose_hash(&without(&negotiate.hashes, Hash::Sha512.id()))
        .ok_or(Explanation::HashUnusable)?;
    let group = keys
        .auth
        .choose_group(&without(&negotiate.groups, Group::Null.id()))
        .ok_or(Explanation::GroupUnusable)?;
    let pair = compute(command, move || KeyPair::from_random(group, &random())).await?;
    let challenged = Challenged {
        transaction: negotiate.transaction,
        hash,
        group,
        sequence: line.target.auth.next_sequence(),
        value: random::<64>()[..hash.len()].to_vec(),
        pair,
        secure_channel: negotiate.secure_channel,
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

/// Whether the host may have a TLS key made: on an admin queue, in clear where TLS is allowed, or to replace the
/// key of that kind that it came with.
fn may_concatenate<Q: Queue>(command: &Command<Q>, secure_channel: u8) -> bool {
    let line = &command.line;
    let controller = &line.controller;
    let port = line.target.catalog().ports.get(&controller.port).cloned();
    let takes_both = port.is_some_and(|port| port.tls == TlsMode::Allowed);
    let came = match &controller.tls {
        None => takes_both.then_some(Negotiate::NEW_TLS_PSK),
        Some(session) => tls::is_generated(session).then_some(Negotiate::REPLACE_TLS_PSK),
    };
    line.handle.qid == 0 && came == Some(secure_channel)
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
    let concatenates = challenged.secure_channel != 0;
    if concatenates && reply.challenge.is_none() {
        return Err(Explanation::IncorrectPayload);
    }
    let asks = is_asked(&reply, &challenged);
    let controller = &command.line.controller;
    let host = controller.host.nqn.clone();
    let subsystem = controller.subsystem.nqn.clone();
    let keys = challenged.keys.clone();
    let work = move || prove(&reply, &challenged, host.as_str(), subsystem.as_str());
    let Proven { answer, psk } = compute(command, work).await??;
    if let Some(psk) = psk {
        tracing::debug!(?controller, identity = psk.identity, "a TLS key was made");
        command.line.target.keep_generated(psk, &keys);
    }
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

/// Whether the controller has to prove itself, too.
fn is_asked(reply: &Reply, challenged: &Challenged) -> bool {
    let for_key_alone = |sequence: u32| challenged.secure_channel != 0 && sequence == 0;
    let challenge = reply.challenge.as_ref();
    challenge.is_some_and(|(_, sequence)| !for_key_alone(*sequence))
}

/// What comes of a host's right answer.
struct Proven {
    /// The controller's, if the host asks for it.
    answer: Option<Vec<u8>>,
    /// The TLS key that both have now, if the host wants one.
    psk: Option<TlsPsk>,
}

/// Checks the host's answer, and computes the controller's if the host asks for it.
fn prove(
    reply: &Reply,
    challenged: &Challenged,
    host: &str,
    subsystem: &str,
) -> Result<Result<Proven, Explanation>, nvme::auth::CryptoError> {
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
        secure_channel: challenged.secure_channel,
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
    let mut proven = Proven {
        answer: None,
        psk: None,
    };
    let Some((value, sequence)) = &reply.challenge else {
        return Ok(Ok(proven));
    };
    if *value == challenged.value {
        // Who has only our own challenge to ask is a mirror.
        return Ok(Err(Explanation::Failed));
    }
    if let (true, Some(shared)) = (challenged.secure_channel != 0, shared) {
        let concatenation = Concatenation {
            hash: challenged.hash,
            shared,
            controller_challenge: &challenged.value,
            host_challenge: value,
            host,
            subsystem,
        };
        proven.psk = Some(concatenation.psk()?);
    }
    if is_asked(reply, challenged) {
        let Some(secret) = &challenged.keys.auth.dhchap_ctrl_secret else {
            return Ok(Err(Explanation::Failed));
        };
        let answer = exchange.answer(Party::Controller, secret, value, *sequence, shared)?;
        proven.answer = Some(answer.to_vec());
    }
    Ok(Ok(proven))
}

/// Computes on a helper thread, when it is this one's turn.
async fn compute<Q: Queue, T: Send + 'static>(
    command: &Command<Q>,
    work: impl FnOnce() -> Result<T, nvme::auth::CryptoError> + Send + 'static,
) -> Result<T, Explanation> {
    let line = &command.line;
    let turn = line.target.auth.turns.take(line.controller.peer.ip()).await;
    let work = move || {
        let result = work();
        drop(turn);
        result
    };
    reactor::unblock(work).await.map_err(|error| {
        tracing::error!(%error, "a host cannot be authenticated");
        Explanation::Failed
    })
}

fn succeeded<Q: Queue>(command: &Command<Q>) {
    let line = &command.line;
    let auth = &line.target.auth;
    auth.succeeded.fetch_add(1, Ordering::Relaxed);
    auth.attempts
        .succeeded(&(line.controller.peer.ip(), line.controller.host.nqn.clone()));
    tracing::debug!(controller = ?line.controller, qid = line.handle.qid, "authenticated");
    if line.auth.for_key_alone.get() {
        return line.auth.close_for_key();
    }
    if line.handle.qid == 0
        && let Err(taken) = line.target.admit(&line.controller, true)
    {
        taken.log(&line.controller.host, line.controller.peer);
        line.controller.end();
        return;
    }
    line.queue.belongs_to(line.controller.host.nqn.as_str());
    line.queue
        .proved(line.controller.is_ready_admin(&line.handle));
    line.controller.subsystem.proved(line.controller.id);
    line.auth.done();
}

fn note_failure<Q: Queue>(command: &Command<Q>, explanation: Explanation, how: &'static str) {
    let line = &command.line;
    let controller = &line.controller;
    let auth = &line.target.auth;
    auth.failed.fetch_add(1, Ordering::Relaxed);
    let lately = auth
        .attempts
        .failed((controller.peer.ip(), controller.host.nqn.clone()));
    fabric::log_of_peer!(
        warn,
        "authentication failed",
        controller.peer.ip(),
        host = %controller.host.nqn,
        peer = %controller.peer,
        qid = line.handle.qid,
        reason = %explanation,
        lately,
        "authentication failed: {how}"
    );
}
