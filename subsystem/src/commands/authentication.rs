//! Authentication Send and Receive: one queue's exchange, step by step.

use std::sync::atomic::Ordering;

use fabric::TlsMode;
use nvme::Status;
use nvme::auth::{
    AUTH_DATA_BYTES_MAX, Challenge, Concatenation, DhError, Exchange, Explanation, Failure, Group,
    Hash, KeyPair, Message, Negotiate, Party, Reply, Success1, TlsPsk,
};
use nvme::fabrics::AuthTransfer;

use crate::auth::queue_auth::{After, Challenged, Step};
use crate::auth::{is_generated, random};
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::queue::Queue;

/// Byte offsets in Authentication Send and Receive, for the error log.
const PROTOCOL_AT: u16 = 41;
const LENGTH_AT: u16 = 44;

/// The largest room for a message: what is behind it is sent as zeros.
const ROOM_BYTES_MAX: u32 = 16 << 10;

/// Authentication Send: a message of the host.
pub(crate) async fn send<Q: Queue>(command: &Command<Q>, transfer: AuthTransfer) -> Outcome {
    check(command, transfer, AUTH_DATA_BYTES_MAX as u32)?;
    let bytes = transfer.length as usize;
    command.check_data_len(bytes)?;
    let data = command.fetch(bytes).await?;
    let auth = &command.queue.auth;
    let step = auth.take();
    if matches!(step, Step::Working | Step::Ready(_, After::End)) {
        // A second message at a time is refused, and the first one goes on. A host that failed has to connect again.
        auth.set(step);
        return Err(Status::COMMAND_SEQUENCE.with_dnr().into());
    }
    let transaction = match &step {
        Step::Reply(challenged) => challenged.transaction,
        Step::Success2(transaction) => *transaction,
        Step::Idle | Step::Working | Step::Ready(..) => {
            // Every message has it at this offset.
            data.get(4..6)
                .map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
        }
    };
    let next = match (Message::parse(&data[..bytes]), step) {
        // The host may start over at any time.
        (Ok(Message::Negotiate(_)), _) if !auth.may_begin(&command.queue.target.limits) => {
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
            command.queue.handle.close();
            Ok(Step::Idle)
        }
        (Ok(_), _) => Err(Explanation::IncorrectMessage),
        (Err(malformed), _) => Err(malformed.explanation),
    };
    auth.set(next.unwrap_or_else(|explanation| {
        note_failure(command, explanation, "refused");
        auth.open.set(false);
        // The host has to fetch the failure in time.
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
    let auth = &command.queue.auth;
    let room = transfer.length as usize;
    let message = match &*auth.step.borrow() {
        Step::Ready(message, _) => message.encode(),
        _ => return Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
    };
    if message.len() > room {
        return Err(Fault::field(Status::INVALID_FIELD, LENGTH_AT));
    }
    let answer = command.send(&message, room).await?;
    // Another Receive may have been faster; then this one repeats its message.
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
    let queue = &command.queue;
    if queue.auth.open.get() && queue.target.host_keys(&queue.controller).is_none() {
        // This host has no secret to prove.
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

/// The host offers hashes and groups: it gets a challenge.
async fn negotiate<Q: Queue>(
    command: &Command<Q>,
    negotiate: &Negotiate,
) -> Result<Step, Explanation> {
    let queue = &command.queue;
    let concatenates = negotiate.secure_channel != 0;
    if concatenates && !may_concatenate(command, negotiate.secure_channel) {
        return Err(Explanation::SecureChannelMismatch);
    }
    if negotiate.hashes.is_empty() && negotiate.groups.is_empty() {
        return Err(Explanation::ProtocolUnusable);
    }
    let keys = queue.target.host_keys(&queue.controller);
    let keys = keys.ok_or(Explanation::ProtocolUnusable)?;
    let in_clear = queue.controller.tls.is_none();
    if in_clear && keys.auth.tls_only && !concatenates {
        return Err(Explanation::SecureChannelMismatch);
    }
    queue.auth.for_key_alone.set(in_clear && concatenates);
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
        sequence: queue.target.auth.next_sequence(),
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

/// Whether the host may have a TLS key made: on an admin queue without TLS where TLS is allowed, or to replace the
/// generated key that it connected with.
fn may_concatenate<Q: Queue>(command: &Command<Q>, secure_channel: u8) -> bool {
    let queue = &command.queue;
    let controller = &queue.controller;
    let port = queue.target.catalog().ports.get(&controller.port).cloned();
    let takes_both = port.is_some_and(|port| port.tls == TlsMode::Allowed);
    let came = match &controller.tls {
        None => takes_both.then_some(Negotiate::NEW_TLS_PSK),
        Some(session) => is_generated(session).then_some(Negotiate::REPLACE_TLS_PSK),
    };
    queue.handle.qid == 0 && came == Some(secure_channel)
}

/// The host answers the challenge, and may send one of its own.
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
    let controller = &command.queue.controller;
    let host = controller.host.nqn.clone();
    let subsystem = controller.subsystem.nqn.clone();
    let keys = challenged.keys.clone();
    let work = move || prove(&reply, &challenged, host.as_str(), subsystem.as_str());
    let Proven { answer, psk } = compute(command, work).await??;
    if let Some(psk) = psk {
        tracing::debug!(?controller, identity = psk.identity, "a TLS key was made");
        command.queue.target.keep_generated(psk, &keys);
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

/// Whether the controller has to authenticate too.
fn is_asked(reply: &Reply, challenged: &Challenged) -> bool {
    let for_key_alone = |sequence: u32| challenged.secure_channel != 0 && sequence == 0;
    let challenge = reply.challenge.as_ref();
    challenge.is_some_and(|(_, sequence)| !for_key_alone(*sequence))
}

/// The results of a correct answer.
struct Proven {
    /// The controller's, if the host asks for it.
    answer: Option<Vec<u8>>,
    /// The TLS key, if the host asked for one.
    psk: Option<TlsPsk>,
}

/// Checks the host's answer, and computes the controller's answer if the host asks for it.
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
        // A peer that sends our own challenge back reflects it to have it answered.
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

/// Computes on a helper thread, in turn.
async fn compute<Q: Queue, T: Send + 'static>(
    command: &Command<Q>,
    work: impl FnOnce() -> Result<T, nvme::auth::CryptoError> + Send + 'static,
) -> Result<T, Explanation> {
    let queue = &command.queue;
    let address = queue.controller.peer.ip();
    let permit = queue.target.auth.permits.take(address).await;
    let work = move || {
        let result = work();
        drop(permit);
        result
    };
    reactor::unblock(work).await.map_err(|error| {
        fabric::log_of_peer!(
            error,
            "not authenticated",
            address,
            %address,
            %error,
            "a host cannot be authenticated"
        );
        Explanation::Failed
    })
}

fn succeeded<Q: Queue>(command: &Command<Q>) {
    let queue = &command.queue;
    let auth = &queue.target.auth;
    auth.succeeded.fetch_add(1, Ordering::Relaxed);
    auth.attempts.succeeded(&(
        queue.controller.peer.ip(),
        queue.controller.host.nqn.clone(),
    ));
    tracing::debug!(controller = ?queue.controller, qid = queue.handle.qid, "authenticated");
    if queue.auth.for_key_alone.get() {
        return queue.auth.close_for_key();
    }
    if queue.handle.qid == 0
        && let Err(taken) = queue.target.admit(&queue.controller, true)
    {
        taken.log(&queue.controller.host, queue.controller.peer);
        queue.controller.end();
        return;
    }
    queue
        .transport
        .belongs_to(queue.controller.host.nqn.as_str());
    queue
        .transport
        .proved(queue.controller.is_ready_admin(&queue.handle));
    queue.controller.subsystem.proved(queue.controller.id);
    queue.auth.done();
}

fn note_failure<Q: Queue>(command: &Command<Q>, explanation: Explanation, how: &'static str) {
    let queue = &command.queue;
    let controller = &queue.controller;
    let auth = &queue.target.auth;
    auth.failed.fetch_add(1, Ordering::Relaxed);
    let lately = auth
        .attempts
        .failed((controller.peer.ip(), controller.host.nqn.clone()));
    fabric::log_of_peer!(
        warn,
        "authentication failed",
        controller.peer.ip(),
        event = "refused",
        host = %controller.host.nqn,
        peer = %controller.peer,
        qid = queue.handle.qid,
        reason = %explanation,
        lately,
        "authentication failed: {how}"
    );
}
