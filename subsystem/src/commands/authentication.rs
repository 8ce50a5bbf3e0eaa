//! Authentication Send and Receive: the exchange is that of [`fabric::serving::auth`]; here is what this target adds to it.

use std::net::SocketAddr;
use std::sync::Arc;

use fabric::TlsMode;
use fabric::serving::auth::{
    Authenticating, Exchanges, QueueAuth, WrongTransfer, check_receive, check_send, message,
    received, sent,
};
use nvme::auth::{Explanation, Negotiate, TlsPsk};
use nvme::fabrics::AuthTransfer;
use nvme::{Nqn, Status};

use crate::auth::is_generated;
use crate::catalog::HostConfig;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::queue::Queue;

/// Authentication Send: a message of the host.
pub(crate) async fn send<Q: Queue>(command: &Command<Q>, transfer: AuthTransfer) -> Outcome {
    check_asked(command)?;
    check_send(transfer).map_err(fault)?;
    let bytes = transfer.length as usize;
    command.check_data_len(bytes)?;
    let data = command.fetch(bytes).await?;
    sent(command, &data[..bytes]).await?;
    Ok(Success::default())
}

/// Authentication Receive: the controller's message.
pub(crate) async fn receive<Q: Queue>(command: &Command<Q>, transfer: AuthTransfer) -> Outcome {
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
fn check_asked<Q: Queue>(command: &Command<Q>) -> Result<(), Fault> {
    match command.queue.auth.is_open() && command.secrets().is_none() {
        true => Err(Status::INVALID_OPCODE.with_dnr().into()),
        false => Ok(()),
    }
}

impl<Q: Queue> Authenticating for Command<Q> {
    type Secrets = HostConfig;

    fn auth(&self) -> &QueueAuth<HostConfig> {
        &self.queue.auth
    }

    fn exchanges(&self) -> &Exchanges {
        &self.queue.target.auth.exchanges
    }

    fn secrets(&self) -> Option<Arc<HostConfig>> {
        self.queue.target.host_keys(&self.queue.controller)
    }

    fn host(&self) -> &Nqn {
        &self.queue.controller.host.nqn
    }

    fn subsystem(&self) -> &Nqn {
        &self.queue.controller.subsystem.nqn
    }

    fn peer(&self) -> SocketAddr {
        self.queue.controller.peer
    }

    fn qid(&self) -> u16 {
        self.queue.handle.qid
    }

    fn check_channel(&self, secure_channel: u8, secrets: &HostConfig) -> Result<bool, Explanation> {
        let concatenates = secure_channel != 0;
        let in_clear = self.queue.controller.tls.is_none();
        let is_allowed = match concatenates {
            true => may_concatenate(self, secure_channel),
            false => !(in_clear && secrets.auth.tls_only),
        };
        match is_allowed {
            true => Ok(in_clear && concatenates),
            false => Err(Explanation::SecureChannelMismatch),
        }
    }

    fn key_made(&self, psk: TlsPsk, of: &Arc<HostConfig>) {
        self.queue.target.keep_generated(psk, of);
    }

    fn proved(&self) {
        let queue = &self.queue;
        if queue.auth.is_for_key_alone() {
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

    fn close(&self) {
        self.queue.handle.close();
    }
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
