//! The reservation commands of a host, and what they mean to other hosts.
//!
//! Guarantees:
//! - Preempt and Abort is answered when no command of the preempted hosts can touch the namespace any
//!   more: those that wait are aborted, those that work are waited for, and an association whose
//!   commands do not end in time ends itself.
//! - Two hosts that preempt each other never wait for each other.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select};
use nvme::Status;
use nvme::reservation::{KEY_BYTES, KEY_PAIR_BYTES, KeyPair, ReservationCommand, ReservationEvent};
use uuid::Uuid;

use super::{Effects, HostId, Request};
use crate::command::{Command, Fault, Outcome, Success};
use crate::controller::{Controller, QueueHandle};
use crate::events::EventKind;
use crate::io::admit::reach;
use crate::queue::Queue;
use crate::subsystem::Target;

/// Byte offsets in the command, for the error log.
const DATA_POINTER_AT: u16 = 24;
const NUMD_AT: u16 = 40;

/// How long commands of preempted hosts may take until their associations are ended.
const FENCE_PATIENCE: Duration = Duration::from_secs(10);
/// How often those of them are aborted that have come to a point where they can be.
const ABORT_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a reservation command.
pub(crate) async fn run<Q: Queue>(
    command: &Command<Q>,
    reservation: ReservationCommand,
) -> Outcome {
    let (nsid, request) = match reservation {
        ReservationCommand::Report {
            nsid,
            length,
            extended,
        } => return report(command, nsid, length, extended).await,
        ReservationCommand::Register {
            nsid,
            action,
            ignore_key,
            persist,
        } => {
            let keys = keys(command, nsid).await?;
            let request = Request::Register {
                action,
                ignore_key,
                persist,
                keys,
            };
            (nsid, request)
        }
        ReservationCommand::Acquire { nsid, action, kind } => {
            let keys = keys(command, nsid).await?;
            (nsid, Request::Acquire { action, kind, keys })
        }
        ReservationCommand::Release { nsid, action, kind } => {
            let data = data(command, nsid, KEY_BYTES).await?;
            let key = u64::from_le_bytes(*data.first_chunk().ok_or(SHORT)?);
            (nsid, Request::Release { action, kind, key })
        }
    };
    change(command, nsid, request).await
}

const SHORT: Fault = Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT);

/// The data of a command whose namespace is within reach.
async fn data<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    len: usize,
) -> Result<reactor::Buffer, Fault> {
    reach(command, nsid)?;
    command.check_data_room(len)?;
    command.fetch(len).await
}

async fn keys<Q: Queue>(command: &Command<Q>, nsid: u32) -> Result<KeyPair, Fault> {
    let data = data(command, nsid, KEY_PAIR_BYTES).await?;
    KeyPair::decode(&data).ok_or(SHORT)
}

async fn report<Q: Queue>(command: &Command<Q>, nsid: u32, length: u64, extended: bool) -> Outcome {
    let namespace = reach(command, nsid)?;
    let most = command.line.target.limits.transfer_bytes_max();
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| length <= most);
    let length = length.ok_or(Fault::field(Status::INVALID_FIELD, NUMD_AT))?;
    if !extended {
        // On fabrics host identifiers have 128 bits; the short structure has no room for them.
        return Err(Status::HOST_ID_INCONSISTENT.with_dnr().into());
    }
    let bytes = namespace.reservations.shared().now().report().encode(true);
    let bytes = &bytes[..bytes.len().min(length)];
    command.send(bytes, length).await
}

async fn change<Q: Queue>(command: &Command<Q>, nsid: u32, request: Request) -> Outcome {
    let (target, controller) = (&command.line.target, &command.line.controller);
    let host = controller.host.id;
    if host == [0; 16] {
        // Every host without an identifier would be the same one.
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    let namespace = reach(command, nsid)?;
    let shared = namespace.reservations.shared();
    let volume = namespace.volume.info().uuid;
    let proven = controller.is_proven().then_some(&controller.host.nqn);
    let effects = shared
        .change(&target.engine, |now| {
            let host = HostId::from_bytes(host);
            let effects = now.apply(host, request)?;
            if let Some(name) = proven {
                now.own(host, name)?;
            }
            Ok::<_, Fault>(effects)
        })
        .await?;
    fabric::log_of_peer!(
        info,
        "reservations changed",
        command.line.controller.peer.ip(),
        controller = %command.line.controller,
        nsid,
        %volume,
        "reservations changed: {request}"
    );
    tell(target, volume, &effects.notify);
    if !effects.abort.is_empty() {
        // From here on this command changes nothing. It must not count as one that others wait for:
        // the host that is preempted here may be preempting this one elsewhere.
        command.is_harmless();
        fence(target, volume, &effects).await;
    }
    Ok(Success::default())
}

/// Tells hosts on all of their controllers that see the volume.
pub(crate) fn tell(target: &Target, volume: Uuid, notify: &[(HostId, ReservationEvent)]) {
    if notify.is_empty() {
        return;
    }
    for (controller, nsid) in viewers(target, volume) {
        let told = notify
            .iter()
            .filter(|(host, _)| host.as_bytes() == &controller.host.id)
            .filter(|(_, event)| controller.reservations.tell(nsid, *event))
            .count();
        if told > 0 {
            controller.events.raise(EventKind::ReservationNotification);
        }
    }
}

/// Waits until no command of these hosts that came before can touch the volume.
async fn fence(target: &Arc<Target>, volume: Uuid, effects: &Effects) {
    let fenced: Vec<(Arc<Controller>, u32)> = viewers(target, volume)
        .into_iter()
        .filter(|(controller, _)| {
            let host = HostId::from_bytes(controller.host.id);
            effects.abort.contains(&host)
        })
        .collect();
    let queues: Vec<(Arc<QueueHandle>, u32)> = fenced
        .iter()
        .flat_map(|(controller, nsid)| {
            let queues = controller.io_queues().into_iter();
            queues.map(|queue| (queue, *nsid))
        })
        .collect();
    let done = join_all(
        queues
            .iter()
            .map(|(queue, _)| queue.earlier_commands_done()),
    );
    let abort = async {
        loop {
            for (queue, nsid) in &queues {
                queue.waiting.abort_namespace(*nsid);
            }
            reactor::sleep(ABORT_INTERVAL).await;
        }
    };
    let mut done = pin!(done);
    let abort = pin!(abort);
    let aborting = select(&mut done, abort);
    if reactor::timeout(FENCE_PATIENCE, aborting).await.is_err() {
        for (controller, _) in &fenced {
            tracing::warn!(
                ?controller,
                "commands of a preempted host do not end: ending its association"
            );
            controller.end();
        }
        done.await;
    }
}

/// The controllers that see a volume, each with the namespace that it is there.
fn viewers(target: &Target, volume: Uuid) -> Vec<(Arc<Controller>, u32)> {
    let world = target.world();
    let seen = |controller: &Controller| {
        let nsid = world
            .subsystem(&controller.subsystem.nqn)?
            .nsid_of(volume)?;
        world.namespace(controller, nsid).map(|_| nsid)
    };
    let controllers = target.controllers().into_iter();
    controllers
        .filter(|controller| controller.is_admitted())
        .filter_map(|controller| seen(&controller).map(|nsid| (controller, nsid)))
        .collect()
}
