//! Fabrics Connect: a queue joins a controller (NVMe-oF 1.1, section 3.3).
//!
//! Guarantees:
//! - On a new queue only a valid Connect has any effect.
//! - An I/O queue joins only a controller of the same host, by NQN and identifier, in the same subsystem, over the same
//!   transport, and with TLS if, and only if, the admin queue has it.
//! - A queue with TLS joins only the host and subsystem that its key is for.
//! - The Connect of a host that has yet to authenticate has no effect on others ([`crate::target::identity`]).
//! - A refusal names the wrong field (IATTR and IPO in the result). It has Do Not Retry, on which a Linux host deletes its
//!   controller, only where a repetition cannot help.

use std::sync::Arc;
use std::time::Duration;

use fabric::serving::auth::AUTH_REQUIRED;
use fabric::{QueueInfo, TlsMode, TlsSession};
use nvme::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectCommand, ConnectData, InvalidParameter,
};
use nvme::{Cqe, Nqn, Status};
use reactor::BufferPool;
use tracing::field::display;

use crate::auth::is_generated;
use crate::controller::saved_features;
use crate::controller::{Controller, NewController, QueueHandle};
use crate::controller::{Host, Subsystem, SubsystemKind};
use crate::queue::Queue;
use crate::target::Target;
use crate::target::identity::IdentifierTaken;
use crate::target::tls_keys::WrongName;

/// The longest admin queue, where the transport does not say (Linux `NVME_AQ_DEPTH`).
const ADMIN_QUEUE_DEPTH: u16 = 32;

/// How long a host that connects again waits for the last commands of its ended associations; then it is told to try
/// again.
const EARLIER_ASSOCIATIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue that has joined its controller.
pub(crate) struct Joined {
    pub(crate) controller: Arc<Controller>,
    pub(crate) handle: Arc<QueueHandle>,
    /// The host has to authenticate on this queue.
    pub(crate) authenticates: bool,
    /// Commands that the host may have outstanding.
    depth: u16,
}

/// A refusal: status, result, and the reason for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    status: Status,
    result: u64,
    /// The reason, if the status alone does not tell.
    why: Option<String>,
}

impl Refusal {
    fn because(status: Status, why: impl Into<String>) -> Self {
        Self {
            why: Some(why.into()),
            ..Self::from(status)
        }
    }

    /// The reason for people: why, or which field was wrong.
    fn reason(&self) -> String {
        if let Some(why) = &self.why {
            return why.clone();
        }
        if self.status.code() != Status::CONNECT_INVALID_PARAMETERS {
            return self.status.to_string();
        }
        let fields: [(InvalidParameter, &str); 7] = [
            (InvalidParameter::QUEUE_ID, "queue identifier"),
            (InvalidParameter::QUEUE_SIZE, "queue size"),
            (InvalidParameter::HOST_ID, "host identifier"),
            (InvalidParameter::CONTROLLER, "controller identifier"),
            (
                InvalidParameter::SUBSYSTEM,
                "subsystem: there is none of that name here (`onefold subsystem list` shows them), or the key is not \
                 for it",
            ),
            (
                InvalidParameter::HOST,
                "host name: it is no NQN; give the host one (`spdk_nvme_perf -r '... hostnqn:NQN'`)",
            ),
            (InvalidParameter::command(0), "command"),
        ];
        let wrong = fields.iter().find(|(at, _)| at.result() == self.result);
        let field = wrong.map_or("data", |(_, name)| name);
        format!("a field of Connect is wrong: {field}")
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            status,
            result: 0,
            why: None,
        }
    }
}

impl From<InvalidParameter> for Refusal {
    fn from(parameter: InvalidParameter) -> Self {
        Self {
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            result: parameter.result(),
            why: None,
        }
    }
}

/// Answers commands until a Connect succeeds; `None` when the queue ends before.
pub(crate) async fn join<Q: Queue>(
    target: &Arc<Target>,
    queue: &Q,
    buffers: &BufferPool,
) -> Option<Joined> {
    loop {
        let capsule = queue.next_command().await?;
        let mut named = None;
        let refusal = match connect(target, queue, &capsule, buffers, &mut named).await {
            Ok(joined) => {
                let cntlid = u64::from(joined.controller.id);
                let result = cntlid
                    | if joined.authenticates {
                        AUTH_REQUIRED
                    } else {
                        0
                    };
                queue.connected(joined.handle.qid, joined.depth);
                if !joined.authenticates {
                    queue.belongs_to(joined.controller.host.nqn.as_str());
                    queue.proved(joined.controller.is_ready_admin(&joined.handle));
                }
                queue.complete(capsule, Cqe::new(Status::SUCCESS, result), None);
                return Some(joined);
            }
            Err(refusal) => refusal,
        };
        let info = queue.info();
        let is_about_host = refusal.status.code() == Status::CONNECT_INVALID_HOST;
        target.connect_refused(info.transport, is_about_host);
        let (host, subsystem) = named.unzip();
        let (host, subsystem) = (host.as_ref().map(display), subsystem.as_ref().map(display));
        fabric::log_of_peer!(
            warn,
            "Connect was refused",
            info.peer.ip(),
            event = "refused",
            host,
            subsystem,
            peer = %info.peer,
            qid = info.qid,
            status = %refusal.status,
            "Connect was refused: {}",
            refusal.reason()
        );
        queue.complete(capsule, Cqe::new(refusal.status, refusal.result), None);
    }
}

async fn connect<Q: Queue>(
    target: &Arc<Target>,
    queue: &Q,
    capsule: &Q::Capsule,
    buffers: &BufferPool,
    named: &mut Option<(Nqn, Nqn)>,
) -> Result<Joined, Refusal> {
    let info = queue.info();
    let command = ConnectCommand::first(Q::sqe(capsule))?;
    let depth = info.depth.unwrap_or(match command.qid {
        0 => ADMIN_QUEUE_DEPTH,
        _ => target.limits.queue(info.transport).depth,
    });
    command.check_queue(info.qid, target.limits.io_queues, depth)?;
    let data = match queue.take_data(capsule, CONNECT_DATA_BYTES) {
        Some(data) => data,
        None => {
            let buffer = buffers.alloc(CONNECT_DATA_BYTES).await;
            queue.fetch(capsule, CONNECT_DATA_BYTES, buffer).await?
        }
    };
    let data = ConnectData::parse(&data.buffer)?;
    *named = Some((data.host.clone(), data.subsystem.clone()));
    if target.is_stopping() {
        let busy = Status::CONNECT_CONTROLLER_BUSY;
        return Err(Refusal::because(busy, "the daemon stops"));
    }
    let tls = queue.tls();
    if let Some(session) = &tls {
        let checked = target.check_tls(info.peer, session, &data);
        checked.map_err(|wrong| match wrong {
            WrongName::Host => {
                let status = Status::CONNECT_INVALID_HOST.with_dnr();
                Refusal::because(status, "its TLS key is another host's")
            }
            WrongName::Subsystem => Refusal::from(InvalidParameter::SUBSYSTEM),
        })?;
    }
    match command.qid {
        0 => connect_admin(target, &info, tls, &command, data).await,
        _ => connect_io(target, &info, tls.as_ref(), &command, &data),
    }
}

async fn connect_admin(
    target: &Arc<Target>,
    info: &QueueInfo,
    tls: Option<TlsSession>,
    command: &ConnectCommand,
    data: ConnectData,
) -> Result<Joined, Refusal> {
    let Some(subsystem) = target.subsystem(&data.subsystem) else {
        return Err(InvalidParameter::SUBSYSTEM.into());
    };
    if !target.allows(&subsystem, &data.host) {
        return Err(not_listed());
    }
    if data.cntlid != CNTLID_DYNAMIC {
        return Err(InvalidParameter::CONTROLLER.into());
    }
    let host = Host {
        nqn: data.host,
        id: data.host_id,
    };
    check_clear(target, info, &subsystem, &host, tls.as_ref())?;
    if subsystem.kind == SubsystemKind::Nvm {
        let checked = target.check_identifier(&host);
        checked.map_err(|taken| refuse_identifier(&taken, &host, info))?;
    }
    let asked = subsystem.kind == SubsystemKind::Nvm
        && !tls.as_ref().is_some_and(is_generated)
        && target.keys_of(&host.nqn).is_some();
    if asked && let Some(held_off) = target.auth.exchanges.holds_off(info.peer.ip(), &host.nqn) {
        let busy = Status::CONNECT_CONTROLLER_BUSY;
        return Err(Refusal::because(busy, held_off.to_string()));
    }
    let earlier_gone = subsystem.earlier_associations_gone(&host);
    if reactor::timeout(EARLIER_ASSOCIATIONS_TIMEOUT, earlier_gone)
        .await
        .is_err()
    {
        let busy = Status::CONNECT_CONTROLLER_BUSY;
        return Err(Refusal::because(
            busy,
            "commands of the host's earlier association are still under way",
        ));
    }
    let new = NewController {
        saved: target.describe(|pool| saved_features::of(pool, &subsystem.nqn, &host.nqn)),
        subsystem: subsystem.clone(),
        known_as: data.subsystem,
        host,
        peer: info.peer,
        local: info.local,
        transport: info.transport,
        tls,
        port: target
            .catalog()
            .port_at(info.transport, info.local)
            .map_or(0, |port| port.id),
        kato_ms: command.kato_ms,
        limits: target.limits,
    };
    let handle = QueueHandle::new(0);
    let address = info.peer.ip();
    let unproven = asked.then(|| (address, target.known.contains(address)));
    let controller = subsystem
        .add(unproven, |id| Controller::new(id, new))
        .map_err(|full| Refusal::because(Status::CONNECT_CONTROLLER_BUSY, full.to_string()))?;
    controller.attach(&handle)?;
    if !target.allows(&subsystem, &controller.host.nqn) {
        // The list of hosts has just changed.
        subsystem.remove(controller.id);
        return Err(not_listed());
    }
    let tls = controller.tls.as_ref();
    if let Err(refusal) = check_clear(target, info, &subsystem, &controller.host, tls) {
        // The host has just been required to use TLS.
        subsystem.remove(controller.id);
        return Err(refusal);
    }
    let authenticates = target.has_to_authenticate(&controller);
    if !authenticates && let Err(taken) = target.admit(&controller, controller.tls.is_some()) {
        // Another host has just connected with the identifier.
        subsystem.remove(controller.id);
        return Err(refuse_identifier(&taken, &controller.host, info));
    }
    Ok(Joined {
        authenticates,
        controller,
        handle,
        // Zero based; checked to be less than the transport's depth or the target's limit.
        depth: command.sqsize + 1,
    })
}

fn not_listed() -> Refusal {
    let status = Status::CONNECT_INVALID_HOST.with_dnr();
    let why = "the host is not on the subsystem's list; `onefold subsystem allow` puts it there";
    Refusal::because(status, why)
}

/// Checks whether the host may connect without TLS. A host that must use TLS, and has a secret, may do so where TLS is
/// allowed, to have a TLS key made: its authentication fails if it asks for anything else.
fn check_clear(
    target: &Target,
    info: &QueueInfo,
    subsystem: &Subsystem,
    host: &Host,
    tls: Option<&TlsSession>,
) -> Result<(), Refusal> {
    if tls.is_some() || subsystem.kind == SubsystemKind::Discovery {
        return Ok(());
    }
    let catalog = target.catalog();
    if !catalog.has_to_use_tls(&host.nqn) {
        return Ok(());
    }
    let port = catalog.port_at(info.transport, info.local);
    let takes_both = port.is_some_and(|port| port.tls == TlsMode::Allowed);
    if takes_both && target.keys_of(&host.nqn).is_some() {
        return Ok(());
    }
    let status = Status::CONNECT_INVALID_HOST.with_dnr();
    Err(Refusal::because(
        status,
        "the host must use TLS, and connected without; `onefold host set --tls-only off` lets it",
    ))
}

fn refuse_identifier(taken: &IdentifierTaken, host: &Host, info: &QueueInfo) -> Refusal {
    taken.log(host, info.peer);
    taken.status().into()
}

fn connect_io(
    target: &Target,
    info: &QueueInfo,
    tls: Option<&TlsSession>,
    command: &ConnectCommand,
    data: &ConnectData,
) -> Result<Joined, Refusal> {
    let Some(subsystem) = target.subsystem(&data.subsystem) else {
        return Err(InvalidParameter::SUBSYSTEM.into());
    };
    if subsystem.kind == SubsystemKind::Discovery {
        return Err(InvalidParameter::QUEUE_ID.into());
    }
    let controller = subsystem
        .controller(data.cntlid)
        .filter(|controller| {
            controller.transport == info.transport && controller.tls.is_some() == tls.is_some()
        })
        .ok_or(InvalidParameter::CONTROLLER)?;
    if controller.host.nqn != data.host {
        return Err(InvalidParameter::HOST.into());
    }
    if controller.host.id != data.host_id {
        return Err(InvalidParameter::HOST_ID.into());
    }
    if command.qid > controller.with_features(|features| features.io_queues(&target.limits)) {
        return Err(InvalidParameter::QUEUE_ID.into());
    }
    let handle = QueueHandle::new(command.qid);
    controller.attach(&handle)?;
    Ok(Joined {
        authenticates: target.has_to_authenticate(&controller),
        controller,
        handle,
        // Zero based; checked to be less than the transport's depth or the target's limit.
        depth: command.sqsize + 1,
    })
}
