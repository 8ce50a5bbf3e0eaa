//! The reservation commands of a host, and their effects on other hosts.
//!
//! Guarantees:
//! - Preempt and Abort is answered when no command of the preempted hosts can touch the namespace any more: waiting
//!   commands are aborted, running ones end first, and an association whose commands do not end in time is ended. The same holds of
//!   hosts that a preempted one has preempted, and still waits for.
//! - Two hosts that preempt each other never wait for each other.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select};
use nvme::Status;
use nvme::reservation::{KEY_BYTES, KEY_PAIR_BYTES, KeyPair, ReservationCommand};
use reservations::{Effects, HostId, Request};
use uuid::Uuid;

use crate::commands::admit::reach;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::controller::{Controller, QueueHandle};
use crate::queue::Queue;
use crate::reservation::Fence;
use crate::target::Target;

/// Byte offsets in the command, for the error log.
const DATA_POINTER_AT: u16 = 24;
const NUMD_AT: u16 = 40;

/// How long commands of preempted hosts may take before their associations are ended.
const FENCE_PATIENCE: Duration = Duration::from_secs(10);
/// How often those of them that wait are aborted.
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
    let most = command.queue.target.limits.transfer_bytes_max();
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| length <= most);
    let length = length.ok_or(Fault::field(Status::INVALID_FIELD, NUMD_AT))?;
    if !extended {
        // On fabrics host identifiers have 128 bits; the short structure has no room for them.
        return Err(Status::HOST_ID_INCONSISTENT.with_dnr().into());
    }
    let bytes = namespace
        .admission
        .reservations
        .current()
        .now()
        .report()
        .encode(true);
    let bytes = &bytes[..bytes.len().min(length)];
    command.send(bytes, length).await
}

async fn change<Q: Queue>(command: &Command<Q>, nsid: u32, request: Request) -> Outcome {
    let (target, controller) = (&command.queue.target, &command.queue.controller);
    let host = controller.host.id;
    if host == [0; 16] {
        // Every host without an identifier would be the same one.
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    let namespace = reach(command, nsid)?;
    let shared = namespace.admission.reservations.current();
    let volume = namespace.volume.info().uuid;
    let proven = controller.is_proven().then_some(&controller.host.nqn);
    let (effects, fence) = shared
        .change(target.engine()?, |now| {
            let host = HostId::from_bytes(host);
            let effects = now.apply(host, request)?;
            if let Some(name) = proven {
                now.own(host, name)?;
            }
            let is_fencing = !effects.abort.is_empty();
            let fence = is_fencing.then(|| shared.fences.open(host, &effects.abort));
            Ok::<_, Fault>((effects, fence))
        })
        .await?;
    fabric::log_of_peer!(
        info,
        "reservations changed",
        command.queue.controller.peer.ip(),
        controller = %command.queue.controller,
        nsid,
        %volume,
        "reservations changed: {request}"
    );
    target.tell_registrants(volume, &effects.notify);
    if let Some(fence) = fence {
        // From here on this command changes nothing, and others need not wait for it: the host that is preempted here
        // may preempt this one elsewhere at the same time.
        command.is_harmless();
        wait_out(target, volume, &effects, &fence).await;
        shared.fences.close(&fence);
    }
    Ok(Success::default())
}

/// Waits until no command that the hosts of a fence sent before can touch the volume.
async fn wait_out(target: &Arc<Target>, volume: Uuid, effects: &Effects, fence: &Fence) {
    let of = |controller: &Controller| HostId::from_bytes(controller.host.id);
    let fenced: Vec<(Arc<Controller>, u32)> = target
        .viewers(volume)
        .into_iter()
        .filter(|(controller, _)| fence.is_for(&of(controller)))
        .collect();
    let queues: Vec<(Arc<QueueHandle>, u32)> = fenced
        .iter()
        .flat_map(|(controller, nsid)| {
            let queues = controller.io_queues().into_iter();
            queues.map(|queue| (queue, *nsid))
        })
        .collect();
    // Others may have registered again since they were preempted.
    let preempted = fenced
        .iter()
        .filter(|(controller, _)| effects.abort.contains(&of(controller)));
    let aborted: Vec<(Arc<QueueHandle>, u32)> = preempted
        .flat_map(|(controller, nsid)| {
            let queues = controller.io_queues().into_iter();
            queues.map(|queue| (queue, *nsid))
        })
        .collect();
    let done = join_all(
        queues
            .iter()
            .map(|(queue, _)| queue.barriers.earlier_done()),
    );
    let abort = async {
        loop {
            for (queue, nsid) in &aborted {
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
            fabric::log_of_peer!(
                warn,
                "preempted",
                controller.peer.ip(),
                %controller,
                "commands of a preempted host do not end: ending its association"
            );
            controller.end();
        }
        done.await;
    }
}
