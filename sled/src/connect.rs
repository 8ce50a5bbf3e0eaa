//! Fabrics Connect: a queue joins a controller (NVMe-oF 1.1, section 3.3).
//!
//! Guarantees:
//! - On a new queue only a valid Connect has any effect.
//! - Only hosts that may use the drives have a controller of the sled; the discovery service answers all.
//! - A host with a TLS key has a controller by TLS alone, and a queue with TLS joins only the host and subsystem that its key is for.
//! - An I/O queue joins only a controller of the same host, by NQN and identifier, over the same transport, and
//!   with TLS if, and only if, the admin queue has it.
//! - A refusal names the wrong field (IATTR and IPO in the result). It has Do Not Retry, on which a Linux host deletes its
//!   controller, only where a repetition cannot help.

use std::borrow::Cow;
use std::sync::Arc;

use fabric::serving::auth::AUTH_REQUIRED;
use fabric::{Capsule, QueueInfo, TargetQueue};
use nvme::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectCommand, ConnectData, InvalidParameter,
};
use nvme::{Cqe, Nqn, Status};
use reactor::BufferPool;
use reservations::HostId;
use tracing::field::display;

use crate::controller::{Controller, Host, Kind, NewController, QueueHandle};
use crate::limits::{ADMIN_QUEUE_DEPTH, EARLIER_ASSOCIATIONS_TIMEOUT};
use crate::target::Sled;

/// A queue that has joined its controller.
pub(crate) struct Joined {
    pub(crate) controller: Arc<Controller>,
    pub(crate) handle: Arc<QueueHandle>,
    /// The host has to authenticate on this queue.
    pub(crate) has_to_authenticate: bool,
    /// Commands that the host may have outstanding.
    depth: u16,
}

/// A refusal: status, result, and the reason for the log.
struct Refusal {
    status: Status,
    result: u64,
    why: Cow<'static, str>,
    /// Who is refused, if that is why.
    host: Option<Nqn>,
}

impl Refusal {
    fn because(status: Status, why: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            result: 0,
            why: why.into(),
            host: None,
        }
    }

    fn field(parameter: InvalidParameter, why: &'static str) -> Self {
        Self {
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            result: parameter.result(),
            why: why.into(),
            host: None,
        }
    }

    /// The host itself is refused, and need not try again.
    fn of_host(host: &Nqn, why: &'static str) -> Self {
        Self {
            host: Some(host.clone()),
            ..Self::because(Status::CONNECT_INVALID_HOST.with_dnr(), why)
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::because(status, "the command is wrong, or came at a wrong time")
    }
}

/// Answers commands until a Connect succeeds; `None` when the queue ends before.
pub(crate) async fn join(sled: &Sled, queue: &TargetQueue, buffers: &BufferPool) -> Option<Joined> {
    loop {
        let capsule = queue.next_command().await?;
        match connect(sled, queue, &capsule, buffers).await {
            Ok(joined) => {
                let controller = &joined.controller;
                queue.connected(joined.handle.qid, joined.depth);
                let asks = match joined.has_to_authenticate {
                    true => AUTH_REQUIRED,
                    false => 0,
                };
                let result = u64::from(controller.id) | asks;
                queue.complete(capsule, Cqe::new(Status::SUCCESS, result), None);
                return Some(joined);
            }
            Err(refusal) => {
                let info = queue.info();
                let host = refusal.host.as_ref().map(display);
                fabric::log_of_peer!(
                    warn,
                    "Connect was refused",
                    info.peer.ip(),
                    event = "refused",
                    host,
                    peer = %info.peer,
                    qid = info.qid,
                    status = %refusal.status,
                    "Connect was refused: {}",
                    refusal.why
                );
                queue.complete(capsule, Cqe::new(refusal.status, refusal.result), None);
            }
        }
    }
}

async fn connect(
    sled: &Sled,
    queue: &TargetQueue,
    capsule: &Capsule,
    buffers: &BufferPool,
) -> Result<Joined, Refusal> {
    let info = queue.info();
    let command = ConnectCommand::first(&capsule.sqe)?;
    let depth = info.depth.unwrap_or(match command.qid {
        0 => ADMIN_QUEUE_DEPTH,
        _ => sled.queue_limits(info.transport).depth,
    });
    command
        .check_queue(info.qid, sled.limits().io_queues, depth)
        .map_err(|wrong| Refusal::field(wrong, "the queue's identifier or size is wrong"))?;
    let data = match queue.take_data(capsule, CONNECT_DATA_BYTES) {
        Some(data) => data,
        None => {
            let buffer = buffers.alloc(CONNECT_DATA_BYTES).await;
            let fetched = queue.fetch(capsule, CONNECT_DATA_BYTES, buffer).await;
            fetched.map_err(|error| Refusal::because(error.status, error.message))?
        }
    };
    let data = ConnectData::parse(&data.buffer)
        .map_err(|wrong| Refusal::field(wrong, "a name in it is no NQN"))?;
    if sled.is_stopping() {
        let busy = Status::CONNECT_CONTROLLER_BUSY;
        return Err(Refusal::because(busy, "the sled stops"));
    }
    if let Some(session) = queue.tls()
        && !sled.access().is_for(info.peer, &session, &data)
    {
        let why = "its TLS key is another host's, or for another subsystem";
        return Err(Refusal::of_host(&data.host, why));
    }
    let is_by_tls = queue.tls().is_some();
    let kind = sled.kind_of(&data.subsystem).ok_or(Refusal::field(
        InvalidParameter::SUBSYSTEM,
        "there is no subsystem of that name here",
    ))?;
    match command.qid {
        0 => connect_admin(sled, &info, is_by_tls, &command, data, kind).await,
        _ => connect_io(sled, &info, is_by_tls, &command, &data, kind),
    }
}

async fn connect_admin(
    sled: &Sled,
    info: &QueueInfo,
    is_by_tls: bool,
    command: &ConnectCommand,
    data: ConnectData,
    kind: Kind,
) -> Result<Joined, Refusal> {
    if kind == Kind::Nvm {
        check_host(sled, info, is_by_tls, &data.host)?;
    }
    if data.cntlid != CNTLID_DYNAMIC {
        return Err(Refusal::field(
            InvalidParameter::CONTROLLER,
            "an admin queue asks for a controller of its own choice",
        ));
    }
    let registry = sled.registry(kind);
    let host = Host {
        nqn: data.host,
        id: data.host_id,
    };
    if kind == Kind::Nvm
        && let Some(owner) = sled.owner_of(&HostId::from_bytes(host.id))
        && owner != host.nqn
    {
        let why = "its identifier is another host's, which is registered with a drive: give each host one of its own";
        return Err(Refusal::of_host(&host.nqn, why));
    }
    let gone = registry.earlier_associations_gone(&host);
    let gone = reactor::timeout(EARLIER_ASSOCIATIONS_TIMEOUT, gone).await;
    let busy = Status::CONNECT_CONTROLLER_BUSY;
    gone.map_err(|_| {
        let why = "commands of the host's earlier association are still under way";
        Refusal::because(busy, why)
    })?;
    let new = NewController {
        kind,
        host,
        peer: info.peer,
        local: info.local,
        transport: info.transport,
        is_by_tls,
        kato_ms: command.kato_ms,
    };
    let unproven = kind == Kind::Nvm && sled.access().secrets(&new.host.nqn).is_some();
    let address = info.peer.ip();
    let unproven = unproven.then(|| (address, sled.known_addresses().contains(address)));
    let controller = registry.add(new, unproven).ok_or(Refusal::because(
        busy,
        "as many hosts are attached as may be",
    ))?;
    let handle = QueueHandle::new(0);
    controller.attach(&handle)?;
    Ok(Joined {
        has_to_authenticate: sled.secrets(&controller).is_some(),
        controller,
        handle,
        // Zero based; checked to be less than the queue's depth.
        depth: command.sqsize + 1,
    })
}

/// Refuses a host that may not use the drives, or not like this.
fn check_host(sled: &Sled, info: &QueueInfo, is_by_tls: bool, host: &Nqn) -> Result<(), Refusal> {
    let access = sled.access();
    if !access.allows(host) {
        let why = "the host is not among those of --host";
        return Err(Refusal::of_host(host, why));
    }
    if access.requires_tls(host) && !is_by_tls {
        let why = "the host has a TLS key and connected without TLS: attach it over TCP with --tls, or give --host no key";
        return Err(Refusal::of_host(host, why));
    }
    if access.secrets(host).is_some()
        && let Some(held_off) = access.exchanges.holds_off(info.peer.ip(), host)
    {
        let busy = Status::CONNECT_CONTROLLER_BUSY;
        return Err(Refusal {
            host: Some(host.clone()),
            ..Refusal::because(busy, held_off.to_string())
        });
    }
    Ok(())
}

fn connect_io(
    sled: &Sled,
    info: &QueueInfo,
    is_by_tls: bool,
    command: &ConnectCommand,
    data: &ConnectData,
    kind: Kind,
) -> Result<Joined, Refusal> {
    if kind == Kind::Discovery {
        return Err(Refusal::field(
            InvalidParameter::QUEUE_ID,
            "the discovery service has no I/O queues",
        ));
    }
    let controller = sled
        .registry(kind)
        .get(data.cntlid)
        .filter(|controller| {
            controller.transport == info.transport && controller.is_by_tls == is_by_tls
        })
        .ok_or(Refusal::field(
            InvalidParameter::CONTROLLER,
            "there is no such controller",
        ))?;
    let another = "the controller is another host's";
    if controller.host.nqn != data.host {
        return Err(Refusal::field(InvalidParameter::HOST, another));
    }
    if controller.host.id != data.host_id {
        return Err(Refusal::field(InvalidParameter::HOST_ID, another));
    }
    if controller
        .granted_queues()
        .is_some_and(|granted| command.qid > granted)
    {
        return Err(Refusal::field(
            InvalidParameter::QUEUE_ID,
            "the host was granted fewer I/O queues",
        ));
    }
    let handle = QueueHandle::new(command.qid);
    controller.attach(&handle)?;
    Ok(Joined {
        has_to_authenticate: sled.secrets(&controller).is_some(),
        controller,
        handle,
        depth: command.sqsize + 1,
    })
}
