//! The host proves who it is, where the target asks for it.
//!
//! Guarantees: a target that asks for it and one that does not are told apart by what Connect says, and a
//! host that wants to know the controller ends the connection to one whose admin queue proves nothing; the computing
//! is done on a helper thread. Linux's target asks on admin queues alone (`nvmet_connect_result` in
//! drivers/nvme/target/fabrics-cmd.c).

use std::sync::Arc;

use fabric::HostData;
use nvme::Sqe;
use nvme::auth::{HostAuthError, HostExchange, HostKeys, Message};
use nvme::fabrics::{AuthTransfer, FabricsCommand};

use crate::controller::{ConnectOptions, Queue};
use crate::{Error, blank_buffer, buffer};

/// In the result of Connect: the host has to authenticate (AUTHREQ, ATR), and over that, secure the channel
/// (ASCR).
const AUTH_REQUIRED: u64 = 1 << 17;
const SECURE_CHANNEL_REQUIRED: u64 = 1 << 18;

/// Room for a message of the target: what Linux offers.
const ROOM_BYTES: usize = 4096;

/// Does what the result of Connect asks for, of the queue `qid`.
pub(crate) async fn authenticate(
    queue: &Queue,
    options: &ConnectOptions,
    qid: u16,
    connect_result: u64,
) -> Result<(), Error> {
    let failed = |reason: String| Error::Authentication {
        peer: queue.queue.peer(),
        reason,
    };
    if connect_result & SECURE_CHANNEL_REQUIRED != 0 {
        let reason = "it asks for secure channel concatenation, which this program does not know";
        return Err(failed(reason.to_owned()));
    }
    let required = connect_result & AUTH_REQUIRED != 0;
    let Some(keys) = &options.keys else {
        return match required {
            false => Ok(()),
            true => Err(Error::NoSecret {
                peer: queue.queue.peer(),
                host: options.host.nqn.clone(),
            }),
        };
    };
    if !required {
        return match (qid, &keys.controller_secret) {
            (0, Some(_)) => Err(failed(
                "it does not authenticate, though its secret was given".to_owned(),
            )),
            _ => Ok(()),
        };
    }
    let outcome = exchange(queue, options, keys).await?;
    outcome.map_err(|error| failed(error.to_string()))
}

async fn exchange(
    queue: &Queue,
    options: &ConnectOptions,
    keys: &Arc<HostKeys>,
) -> Result<Result<(), HostAuthError>, Error> {
    let random: [u8; 2] = random();
    let transaction = u16::from_le_bytes(random);
    let (host, subsystem) = (&options.host.nqn, &options.subsystem);
    let mut exchange =
        HostExchange::new(keys.clone(), host.as_str(), subsystem.as_str(), transaction);
    send(queue, &exchange.negotiate()).await?;
    let challenge = receive(queue).await?;
    let (mut exchange, reply) = reactor::unblock(move || {
        let reply = exchange.reply(&challenge, &[self::random(), self::random()]);
        (exchange, reply)
    })
    .await;
    let success = match reply {
        Ok(reply) => {
            send(queue, &reply).await?;
            receive(queue).await?
        }
        Err(error) => return give_up(queue, transaction, error).await,
    };
    match exchange.finish(&success) {
        Ok(None) => Ok(Ok(())),
        Ok(Some(last)) => {
            send(queue, &last).await?;
            Ok(Ok(()))
        }
        Err(error) => give_up(queue, transaction, error).await,
    }
}

/// Tells the target, if it waits.
async fn give_up(
    queue: &Queue,
    transaction: u16,
    error: HostAuthError,
) -> Result<Result<(), HostAuthError>, Error> {
    if let Some(message) = error.to_message(transaction) {
        send(queue, &message).await?;
    }
    Ok(Err(error))
}

fn transfer(length: usize) -> AuthTransfer {
    AuthTransfer {
        protocol: AuthTransfer::PROTOCOL,
        length: length as u32,
    }
}

async fn send(queue: &Queue, message: &Message) -> Result<(), Error> {
    let bytes = message.encode();
    let mut memory = buffer(bytes.len()).await;
    memory[..bytes.len()].copy_from_slice(&bytes);
    let sqe = FabricsCommand::auth_send(transfer(bytes.len()));
    let data = HostData::ToTarget(memory, bytes.len());
    queue.submit("Authentication Send", sqe, data).await?;
    Ok(())
}

async fn receive(queue: &Queue) -> Result<Vec<u8>, Error> {
    const COMMAND: &str = "Authentication Receive";
    let sqe: Sqe = FabricsCommand::auth_receive(transfer(ROOM_BYTES));
    let memory = blank_buffer(ROOM_BYTES).await;
    let data = HostData::FromTarget(memory, ROOM_BYTES);
    let (_, memory) = queue.submit(COMMAND, sqe, data).await?;
    let memory = memory.ok_or_else(|| queue.wrong(COMMAND, "no data"))?;
    Ok(memory[..ROOM_BYTES].to_vec())
}

/// Random bytes of the system.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        // Nothing that is secret can be made without them.
        panic!("the system gives no random bytes: {error}");
    }
    bytes
}
