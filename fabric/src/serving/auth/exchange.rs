//! One queue's exchange, step by step: what the host sent, and what it is told.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::auth::{
    AUTH_DATA_BYTES_MAX, Challenge, Concatenation, CryptoError, DhError, Exchange, Explanation,
    Failure, Group, Hash, KeyPair, Message, Negotiate, Party, Reply, Success1, TlsPsk,
};
use nvme::fabrics::AuthTransfer;
use nvme::{Nqn, Status};

use super::queue_auth::{After, Challenged, QueueAuth, Step};
use super::{Exchanges, HostSecrets, random};

/// Byte offsets in Authentication Send and Receive, for the error log.
const PROTOCOL_AT: u16 = 41;
const LENGTH_AT: u16 = 44;

/// The largest room for a message: what is behind it is sent as zeros.
const ROOM_BYTES_MAX: u32 = 16 << 10;

/// A queue whose host authenticates, as who serves it has it.
pub trait Authenticating {
    /// The secrets of its host.
    type Secrets: HostSecrets;

    /// The state of its exchange.
    fn auth(&self) -> &QueueAuth<Self::Secrets>;

    /// What all exchanges share.
    fn exchanges(&self) -> &Exchanges;

    /// The secrets of its host now; none if it need not authenticate.
    fn secrets(&self) -> Option<Arc<Self::Secrets>>;

    /// The host's name.
    fn host(&self) -> &Nqn;

    /// The name of the controller's subsystem.
    fn subsystem(&self) -> &Nqn;

    /// The host's address.
    fn peer(&self) -> SocketAddr;

    /// The queue's identifier.
    fn qid(&self) -> u16;

    /// Whether the host may have what it says of a TLS key to be made (SC_C; 0: none), and then whether the exchange is for that
    /// key alone.
    ///
    /// # Errors
    /// It may not.
    fn check_channel(
        &self,
        secure_channel: u8,
        secrets: &Self::Secrets,
    ) -> Result<bool, Explanation>;

    /// Such a key was made, of these secrets.
    fn key_made(&self, psk: TlsPsk, of: &Arc<Self::Secrets>);

    /// The host has proved who it is.
    fn proved(&self);

    /// The host ended the exchange: the queue ends.
    fn close(&self);
}

/// A field of Authentication Send or Receive that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongTransfer {
    /// What the host is told.
    pub status: Status,
    /// The byte of the command.
    pub location: u16,
}

/// Checks the fields of Authentication Send.
///
/// # Errors
/// The one that is wrong.
pub fn check_send(transfer: AuthTransfer) -> Result<(), WrongTransfer> {
    check(transfer, AUTH_DATA_BYTES_MAX as u32)
}

/// The same of Authentication Receive.
///
/// # Errors
/// The one that is wrong.
pub fn check_receive(transfer: AuthTransfer) -> Result<(), WrongTransfer> {
    check(transfer, ROOM_BYTES_MAX)
}

fn check(transfer: AuthTransfer, bytes_max: u32) -> Result<(), WrongTransfer> {
    let wrong = |location| {
        Err(WrongTransfer {
            status: Status::INVALID_FIELD,
            location,
        })
    };
    match transfer {
        AuthTransfer { protocol, .. } if protocol != AuthTransfer::PROTOCOL => wrong(PROTOCOL_AT),
        AuthTransfer { length, .. } if length == 0 || length > bytes_max => wrong(LENGTH_AT),
        _ => Ok(()),
    }
}

/// A message of the host came, by Authentication Send.
///
/// # Errors
/// It came at a wrong time. A message that is wrong is none: the host is told by the next message that it receives.
pub async fn sent<A: Authenticating>(queue: &A, data: &[u8]) -> Result<(), Status> {
    let auth = queue.auth();
    let step = auth.take();
    if matches!(step, Step::Working | Step::Ready(_, After::End)) {
        // A second message at a time is refused, and the first one goes on. A host that failed has to connect again.
        auth.set(step);
        return Err(Status::COMMAND_SEQUENCE.with_dnr());
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
    let next = match (Message::parse(data), step) {
        // The host may start over at any time.
        (Ok(Message::Negotiate(_)), _) if !auth.may_begin(queue.exchanges().limits()) => {
            Err(Explanation::Failed)
        }
        (Ok(Message::Negotiate(negotiate)), _) => {
            auth.began();
            self::negotiate(queue, &negotiate).await
        }
        (Ok(message), Step::Reply(_) | Step::Success2(_))
            if message.transaction() != transaction =>
        {
            Err(Explanation::IncorrectPayload)
        }
        (Ok(Message::Reply(reply)), Step::Reply(challenged)) => {
            self::reply(queue, reply, *challenged).await
        }
        (Ok(Message::Success2(_)), Step::Success2(_)) => {
            succeeded(queue);
            Ok(Step::Idle)
        }
        (Ok(Message::Failure2(failure)), _) => {
            note_failure(queue, failure.explanation, "the host ended it");
            auth.stop();
            queue.close();
            Ok(Step::Idle)
        }
        (Ok(_), _) => Err(Explanation::IncorrectMessage),
        (Err(malformed), _) => Err(malformed.explanation),
    };
    auth.set(next.unwrap_or_else(|explanation| {
        note_failure(queue, explanation, "refused");
        // The host has to fetch the failure in time.
        auth.stop_soon();
        let failure = Failure {
            transaction,
            explanation,
        };
        Step::Ready(Message::Failure1(failure), After::End)
    }));
    Ok(())
}

/// The message that the host gets by Authentication Receive, with room for so many bytes. Once it is on its way, say so by
/// [`received`].
///
/// # Errors
/// There is none, or the room is too small.
pub fn message<A: Authenticating>(queue: &A, room: usize) -> Result<Vec<u8>, WrongTransfer> {
    let message = queue.auth().message().ok_or(WrongTransfer {
        status: Status::COMMAND_SEQUENCE,
        location: nvme::log::NO_LOCATION,
    })?;
    match message.len() > room {
        true => Err(WrongTransfer {
            status: Status::INVALID_FIELD,
            location: LENGTH_AT,
        }),
        false => Ok(message),
    }
}

/// The host has the message.
pub fn received<A: Authenticating>(queue: &A) {
    queue.auth().received();
}

/// The host offers hashes and groups: it gets a challenge.
async fn negotiate<A: Authenticating>(
    queue: &A,
    negotiate: &Negotiate,
) -> Result<Step<A::Secrets>, Explanation> {
    let concatenates = negotiate.secure_channel != 0;
    let secrets = queue.secrets().ok_or(Explanation::ProtocolUnusable)?;
    let for_key_alone = queue.check_channel(negotiate.secure_channel, &secrets)?;
    if negotiate.hashes.is_empty() && negotiate.groups.is_empty() {
        return Err(Explanation::ProtocolUnusable);
    }
    queue.auth().for_key_alone.set(for_key_alone);
    // A TLS key is made of a Diffie-Hellman exchange, with the hash of a cipher suite.
    let without = |offered: &[u8], id: u8| {
        let left = offered.iter().copied();
        left.filter(|offered| !(concatenates && *offered == id))
            .collect::<Vec<_>>()
    };
    let hash = secrets
        .choose_hash(&without(&negotiate.hashes, Hash::Sha512.id()))
        .ok_or(Explanation::HashUnusable)?;
    let group = secrets
        .choose_group(&without(&negotiate.groups, Group::Null.id()))
        .ok_or(Explanation::GroupUnusable)?;
    let pair = compute(queue, move || KeyPair::from_random(group, &random())).await?;
    let challenged = Challenged {
        transaction: negotiate.transaction,
        hash,
        group,
        sequence: queue.exchanges().next_sequence(),
        value: random::<64>()[..hash.len()].to_vec(),
        pair,
        secure_channel: negotiate.secure_channel,
        secrets,
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

/// The host answers the challenge, and may send one of its own.
async fn reply<A: Authenticating>(
    queue: &A,
    reply: Reply,
    challenged: Challenged<A::Secrets>,
) -> Result<Step<A::Secrets>, Explanation> {
    let (transaction, hash) = (challenged.transaction, challenged.hash);
    if reply.answer.len() != hash.len() || reply.public.len() != challenged.group.value_bytes() {
        return Err(Explanation::IncorrectPayload);
    }
    let concatenates = challenged.secure_channel != 0;
    if concatenates && reply.challenge.is_none() {
        return Err(Explanation::IncorrectPayload);
    }
    let asks = is_asked(&reply, &challenged);
    let (host, subsystem) = (queue.host().clone(), queue.subsystem().clone());
    let secrets = challenged.secrets.clone();
    let work = move || prove(&reply, &challenged, host.as_str(), subsystem.as_str());
    let Proven { answer, psk } = compute(queue, work).await??;
    if let Some(psk) = psk {
        tracing::debug!(host = %queue.host(), identity = psk.identity, "a TLS key was made");
        queue.key_made(psk, &secrets);
    }
    if !asks {
        succeeded(queue);
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
fn is_asked<S>(reply: &Reply, challenged: &Challenged<S>) -> bool {
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
fn prove<S: HostSecrets>(
    reply: &Reply,
    challenged: &Challenged<S>,
    host: &str,
    subsystem: &str,
) -> Result<Result<Proven, Explanation>, CryptoError> {
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
    let Some(secret) = challenged.secrets.secret() else {
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
        let Some(secret) = challenged.secrets.controller_secret() else {
            return Ok(Err(Explanation::Failed));
        };
        let answer = exchange.answer(Party::Controller, secret, value, *sequence, shared)?;
        proven.answer = Some(answer.to_vec());
    }
    Ok(Ok(proven))
}

/// Computes on a helper thread, in turn.
async fn compute<A: Authenticating, T: Send + 'static>(
    queue: &A,
    work: impl FnOnce() -> Result<T, CryptoError> + Send + 'static,
) -> Result<T, Explanation> {
    let address = queue.peer().ip();
    let permit = queue.exchanges().permits.take(address).await;
    let work = move || {
        let result = work();
        drop(permit);
        result
    };
    reactor::unblock(work).await.map_err(|error| {
        crate::log_of_peer!(
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

fn succeeded<A: Authenticating>(queue: &A) {
    let (host, qid) = (queue.host(), queue.qid());
    queue.exchanges().succeeded(queue.peer().ip(), host);
    tracing::debug!(%host, qid, "authenticated");
    queue.proved();
}

fn note_failure<A: Authenticating>(queue: &A, explanation: Explanation, how: &'static str) {
    let peer = queue.peer();
    let lately = queue.exchanges().failed(peer.ip(), queue.host());
    crate::log_of_peer!(
        warn,
        "authentication failed",
        peer.ip(),
        event = "refused",
        host = %queue.host(),
        peer = %peer,
        qid = queue.qid(),
        reason = %explanation,
        lately,
        "authentication failed: {how}"
    );
}
