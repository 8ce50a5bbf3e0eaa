//! One association with the target, from the look-up of its name to a namespace that was compared.

use std::net::SocketAddr;
use std::time::Duration;

use drives::{DriveError, ErrorKind};
use fabric::{
    CloseReason, Connector, QueueConnectError, TcpHostConfig, TlsFailure, Transport,
    TransportAddress,
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use initiator::{ConnectOptions, Controller, Error, Host, Namespace};
use nvme::Status;

use crate::facts::Facts;
use crate::keys::{KeyKind, Keys};
use crate::shared::Shared;

/// How long an address may be silent before the next one is tried, too. Less than what a pool gives a drive that others can
/// stand in for.
const SILENCE_MAX: Duration = Duration::from_millis(250);

/// An association, and the namespace by it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) controller: Controller,
    pub(crate) namespace: Namespace,
    /// Of the Host Identifier that it was made with.
    pub(crate) generation: u64,
    /// Keeps the RDMA device.
    connector: Connector,
}

impl Live {
    /// Whether commands can be sent by it.
    pub(crate) fn is_usable(&self, generation: u64) -> bool {
        self.generation == generation && self.controller.is_whole()
    }

    /// Ends it in order.
    pub(crate) async fn end(self) {
        self.controller.disconnect().await;
        self.connector.shutdown().await;
    }
}

/// Connects to the first of the target's addresses that answers, and compares what is found there. One that is silent
/// keeps no other from it: the next one is tried beside it.
///
/// # Errors
/// None of them can be reached, or what is there is not the namespace.
pub(crate) async fn connect(shared: &Shared) -> Result<Live, DriveError> {
    let address = shared.address.clone();
    let resolved = reactor::unblock(move || address.resolve()).await;
    let resolved = resolved.map_err(|error| {
        let text = format!(
            "the target's name cannot be looked up: {error}; check it, or name an IP address"
        );
        shared.error(ErrorKind::NotFound, text)
    })?;
    let keys = shared.keys().await?;
    first_that_answers(shared, &keys, &resolved).await
}

/// Tries the addresses in their order: the next one when one refuses, or is silent for a moment.
async fn first_that_answers(
    shared: &Shared,
    keys: &Keys,
    addresses: &[TransportAddress],
) -> Result<Live, DriveError> {
    let mut failed = shared.error(ErrorKind::NotFound, "the target's name has no IP address");
    let mut attempts = FuturesUnordered::new();
    let mut waiting = addresses.iter();
    loop {
        let is_last = waiting.len() == 0;
        let pause = if is_last {
            shared.limits.connect
        } else {
            SILENCE_MAX
        };
        match reactor::timeout(pause, attempts.next()).await {
            Ok(Some(Ok(live))) => return Ok(live),
            // That another namespace is there, or a key is wrong, matters more than who does not answer.
            Ok(Some(Err(_)))
                if matches!(failed.kind(), ErrorKind::Truncated | ErrorKind::Invalid) => {}
            Ok(Some(Err(error))) => failed = error,
            Ok(None) if is_last => return Err(failed),
            // None is tried yet, or all that are tried are silent.
            Ok(None) | Err(_) => {}
        }
        if let Some(address) = waiting.next() {
            attempts.push(connect_to(shared, keys, address));
        }
    }
}

/// What connects to an address; with a key for TLS nothing in clear.
fn connector_to(
    shared: &Shared,
    keys: &Keys,
    address: &TransportAddress,
) -> Result<Connector, DriveError> {
    let Some(tls) = &keys.tls else {
        return Connector::to_reach(address).map_err(|error| {
            shared.error(ErrorKind::Io, format!("no way to reach {address}: {error}"))
        });
    };
    if address.scheme.transport() != Transport::Tcp {
        let text = format!(
            "there is a key for TLS ({}), and RDMA has none: name the drive as nvme+tcp://..., or remove the key",
            shared.key_file(KeyKind::TlsKey)
        );
        return Err(shared.error(ErrorKind::Invalid, text));
    }
    Ok(Connector::tcp(TcpHostConfig {
        tls: Some(tls.clone()),
        ..TcpHostConfig::default()
    }))
}

async fn connect_to(
    shared: &Shared,
    keys: &Keys,
    address: &TransportAddress,
) -> Result<Live, DriveError> {
    let connector = connector_to(shared, keys, address)?;
    let (id, generation) = {
        let state = shared.state();
        (state.host_id, state.generation)
    };
    let limits = &shared.limits;
    let host = Host {
        nqn: shared.host.clone(),
        id,
    };
    let peer: SocketAddr = address.socket_addr();
    let options = ConnectOptions {
        depth: limits.depth,
        keep_alive: limits.keep_alive,
        command_timeout: limits.command,
        keys: keys.dhchap.clone(),
        ..ConnectOptions::new(peer, shared.address.subsystem().clone(), host)
    };
    let refused = |error| refusal(shared, keys, &error);
    let controller = Controller::connect(&connector, options)
        .await
        .map_err(refused)?;
    let namespace = controller
        .namespace(shared.address.nsid())
        .await
        .map_err(refused)?;
    let facts = Facts::ask(&controller, &namespace).await.map_err(refused)?;
    shared.check(facts)?;
    Ok(Live {
        controller,
        namespace,
        generation,
        connector,
    })
}

/// Why there is no association, and what to do.
fn refusal(shared: &Shared, keys: &Keys, error: &Error) -> DriveError {
    let file = |kind| shared.key_file(kind);
    let has_tls = keys.has(KeyKind::TlsKey);
    let status = error.status().map(Status::code);
    let (kind, remedy) = match (status, error) {
        (Some(Status::CONNECT_INVALID_HOST), _) => {
            let by_tls = match has_tls {
                true => String::new(),
                false => format!(
                    ", or, if it admits it by TLS alone, write this host's key to {}",
                    file(KeyKind::TlsKey)
                ),
            };
            let host = &shared.host;
            let remedy =
                format!("; the target does not admit this host: allow {host} there{by_tls}");
            (ErrorKind::Io, remedy)
        }
        (Some(Status::CONNECT_INVALID_PARAMETERS), _) | (_, Error::NoNamespace { .. }) => {
            (ErrorKind::NotFound, String::new())
        }
        (_, Error::NoSecret { peer, host }) => {
            let file = file(KeyKind::HostSecret);
            let text =
                format!("{peer} asks {host} for a secret, and there is none; write it to {file}");
            return shared.error(ErrorKind::Invalid, text);
        }
        (_, Error::Authentication { .. }) => {
            let kinds = [KeyKind::HostSecret, KeyKind::ControllerSecret].into_iter();
            let files: Vec<_> = kinds.filter(|kind| keys.has(*kind)).map(file).collect();
            let remedy = match files.is_empty() {
                true => String::new(),
                false => format!(
                    "; compare {} with what the target has for {}",
                    files.join(" and "),
                    shared.host
                ),
            };
            (ErrorKind::Invalid, remedy)
        }
        (_, Error::Connect(QueueConnectError::Failed { reason, .. })) => {
            of_connection(reason, has_tls, &file(KeyKind::TlsKey))
        }
        _ => (ErrorKind::Io, String::new()),
    };
    shared.error(kind, format!("{error}{remedy}"))
}

/// What a connection that did not come about says of the key for TLS.
fn of_connection(reason: &CloseReason, has_key: bool, file: &str) -> (ErrorKind, String) {
    match reason {
        // A target that ends hangs up, too.
        CloseReason::Tls(failure) => {
            let kind = match failure {
                TlsFailure::Ended | TlsFailure::Stalled => ErrorKind::Io,
                _ => ErrorKind::Invalid,
            };
            let remedy = format!("; the key is that of {file}, and without TLS nothing is sent");
            (kind, remedy)
        }
        CloseReason::Peer | CloseReason::Network(std::io::ErrorKind::ConnectionReset)
            if !has_key =>
        {
            let remedy = format!("; if it requires TLS, write this host's key to {file}");
            (ErrorKind::Io, remedy)
        }
        _ => (ErrorKind::Io, String::new()),
    }
}
