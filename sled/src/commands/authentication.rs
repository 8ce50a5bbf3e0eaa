//! Authentication Send and Receive: the exchange is that of [`fabric::serving::auth`]. A sled makes no TLS keys by it.

use std::net::SocketAddr;
use std::sync::Arc;

use fabric::serving::auth::{
    Authenticating, Exchanges, QueueAuth, WrongTransfer, check_receive, check_send, message,
    received, sent,
};
use nvme::auth::{Explanation, TlsPsk};
use nvme::fabrics::AuthTransfer;
use nvme::{Nqn, Status};

use crate::access::HostKeys;
use crate::queue::{Command, Fault, Outcome, Success};

/// Authentication Send: a message of the host.
pub(crate) async fn send(command: &Command, transfer: AuthTransfer) -> Outcome {
    check_asked(command)?;
    check_send(transfer).map_err(fault)?;
    let bytes = transfer.length as usize;
    command.check_data_len(bytes)?;
    let data = command.fetch(bytes).await?;
    sent(command, &data[..bytes]).await?;
    Ok(Success::default())
}

/// Authentication Receive: the controller's message.
pub(crate) async fn receive(command: &Command, transfer: AuthTransfer) -> Outcome {
    check_asked(command)?;
    check_receive(transfer).map_err(fault)?;
    let room = transfer.length as usize;
    let message = message(command, room).map_err(fault)?;
    let answer = command.send(&message, room).await?;
    received(command);
    Ok(answer)
}

fn fault(wrong: WrongTransfer) -> Fault {
    Fault::field(wrong.status, wrong.location)
}

/// Refuses a host that has no secret to prove.
fn check_asked(command: &Command) -> Result<(), Fault> {
    match command.queue.auth.is_open() && command.secrets().is_none() {
        true => Err(Status::INVALID_OPCODE.with_dnr().into()),
        false => Ok(()),
    }
}

impl Authenticating for Command {
    type Secrets = HostKeys;

    fn auth(&self) -> &QueueAuth<HostKeys> {
        &self.queue.auth
    }

    fn exchanges(&self) -> &Exchanges {
        &self.queue.sled.access().exchanges
    }

    fn secrets(&self) -> Option<Arc<HostKeys>> {
        self.queue.sled.secrets(&self.queue.controller)
    }

    fn host(&self) -> &Nqn {
        &self.queue.controller.host.nqn
    }

    fn subsystem(&self) -> &Nqn {
        self.queue.sled.nqn()
    }

    fn peer(&self) -> SocketAddr {
        self.queue.controller.peer
    }

    fn qid(&self) -> u16 {
        self.queue.handle.qid
    }

    fn check_channel(&self, secure_channel: u8, _: &HostKeys) -> Result<bool, Explanation> {
        match secure_channel {
            0 => Ok(false),
            _ => Err(Explanation::SecureChannelMismatch),
        }
    }

    fn key_made(&self, _: TlsPsk, _: &Arc<HostKeys>) {}

    fn proved(&self) {
        self.queue.proved();
    }

    fn close(&self) {
        self.queue.handle.close.set();
    }
}
