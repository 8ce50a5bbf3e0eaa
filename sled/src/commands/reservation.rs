//! Reservation commands: what a host may do with a drive that others reach too.
//!
//! Guarantee: who takes a reservation, also by Preempt and Abort, is answered when no command of a host that may not write any more can
//! touch the drive. One that waits for data from its host meets the new state before it gets to the drive.

use futures_util::future::join_all;
use nvme::Status;
use nvme::reservation::{KEY_BYTES, KEY_PAIR_BYTES, KeyPair, ReservationCommand};
use reservations::{Access, HostId, Request};

use crate::controller::Kind;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::queue::{Command, Fault, Outcome, Success};

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const DATA_POINTER_AT: u16 = 24;
const NUMD_AT: u16 = 40;

const SHORT: Fault = Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT);

/// Runs a reservation command.
pub(crate) async fn run(command: &Command, asked: ReservationCommand) -> Outcome {
    match asked {
        ReservationCommand::Report {
            nsid,
            length,
            extended,
        } => report(command, nsid, length, extended).await,
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
            change(command, nsid, request).await
        }
        ReservationCommand::Acquire { nsid, action, kind } => {
            let keys = keys(command, nsid).await?;
            change(command, nsid, Request::Acquire { action, kind, keys }).await
        }
        ReservationCommand::Release { nsid, action, kind } => {
            let data = data(command, nsid, KEY_BYTES).await?;
            let key = u64::from_le_bytes(*data.first_chunk().ok_or(SHORT)?);
            change(command, nsid, Request::Release { action, kind, key }).await
        }
    }
}

async fn data(command: &Command, nsid: u32, len: usize) -> Result<reactor::Buffer, Fault> {
    check(command, nsid)?;
    command.check_data_room(len)?;
    command.fetch(len).await
}

async fn keys(command: &Command, nsid: u32) -> Result<KeyPair, Fault> {
    let data = data(command, nsid, KEY_PAIR_BYTES).await?;
    KeyPair::decode(&data).ok_or(SHORT)
}

fn check(command: &Command, nsid: u32) -> Result<(), Fault> {
    match command.queue.sled.export(nsid) {
        Some(_) => Ok(()),
        None => Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT)),
    }
}

async fn report(command: &Command, nsid: u32, length: u64, extended: bool) -> Outcome {
    let reserved = command.queue.watched(nsid)?.current();
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| length <= TRANSFER_BYTES_MAX);
    let length = length.ok_or(Fault::field(Status::INVALID_FIELD, NUMD_AT))?;
    if !extended {
        // On fabrics host identifiers have 128 bits; the short structure has no room for them.
        return Err(Status::HOST_ID_INCONSISTENT.with_dnr().into());
    }
    let bytes = reserved.now().report().encode(true);
    command
        .send(&bytes[..bytes.len().min(length)], length)
        .await
}

async fn change(command: &Command, nsid: u32, request: Request) -> Outcome {
    let (sled, controller) = (&command.queue.sled, &command.queue.controller);
    let host = &controller.host;
    if host.id == [0; 16] {
        // Every host without an identifier would be the same one.
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    let reserved = command.queue.watched(nsid)?.current();
    let is_proven = sled.is_proven(controller);
    let effects = reserved
        .change(|now| {
            let id = HostId::from_bytes(host.id);
            let effects = now.apply(id, request)?;
            if is_proven {
                now.own(id, &host.nqn)?;
            }
            Ok(effects)
        })
        .await?;
    if is_proven {
        sled.registry(Kind::Nvm).end_others_called(host);
    }
    fabric::log_of_peer!(
        info,
        "reservations changed",
        controller.peer.ip(),
        host = %host.nqn,
        nsid,
        "reservations changed: {request}"
    );
    // Who takes the reservation waits for all who may not write any more: another one may have shut them out, and not know yet that nothing
    // of theirs is under way.
    let (is_taken, now) = (matches!(request, Request::Acquire { .. }), reserved.now());
    let is_out = |host: &HostId| {
        effects.abort.contains(host) || is_taken && !now.admits(host, Access::Write)
    };
    let queues = sled.registry(Kind::Nvm).io_queues_of(is_out);
    join_all(queues.iter().map(|queue| queue.barriers.earlier_done())).await;
    Ok(Success::default())
}
