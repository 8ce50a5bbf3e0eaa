//! Namespace Write Protection, feature 84h.
//!
//! Guarantees: acknowledged writes are durable when the host is told that the namespace is protected; hosts cannot lift
//! protection until power cycle, or permanent protection. As with the other features of a namespace (82h, 83h), a path
//! whose ANA state forbids access sends the host to another path. Reservations do not apply: Set Features is in none of
//! their command groups.

use nvme::Status;
use nvme::admin::{GetFeatures, SetFeatures};
use nvme::features::Select;

use crate::catalog::WriteProtect;
use crate::commands::admit::reach;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::queue::Queue;

/// Byte offset in the command, for the error log.
const DWORD_11_AT: u16 = 44;

/// The bits of dword 11 that hold the state.
const STATE_MASK: u32 = 7;

/// The state of a namespace within reach.
pub(crate) fn get<Q: Queue>(
    command: &Command<Q>,
    get: GetFeatures,
    select: Select,
) -> Result<u32, Fault> {
    // What nvme-cli asks for of all features, without a namespace.
    if select == Select::Default || (select == Select::Saved && get.nsid == 0) {
        return Ok(WriteProtect::Off.feature_value());
    }
    let namespace = reach(command, get.nsid)?;
    let state = match (select, namespace.config.write_protect) {
        (Select::Saved, WriteProtect::UntilPowerCycle) => WriteProtect::Off,
        (_, state) => state,
    };
    Ok(state.feature_value())
}

/// Sets the state of a namespace within reach.
pub(crate) async fn set<Q: Queue>(command: &Command<Q>, set: SetFeatures) -> Outcome {
    let queue = &command.queue;
    let namespace = reach(command, set.nsid)?;
    let invalid = Fault::field(Status::INVALID_FIELD, DWORD_11_AT);
    let state = WriteProtect::from_feature_value(set.dwords[0] & STATE_MASK).ok_or(invalid)?;
    if state == WriteProtect::Permanent {
        // Only the target's owner does what nobody can undo (NWPC bit 2 is clear).
        return Err(invalid);
    }
    let nqn = queue.controller.subsystem.nqn.clone();
    let changed = queue.target.change(|catalog| {
        let namespace = catalog.namespace_mut(&nqn, set.nsid)?;
        match namespace.write_protect {
            WriteProtect::Off | WriteProtect::On => {
                namespace.write_protect = state;
                Ok(true)
            }
            WriteProtect::UntilPowerCycle | WriteProtect::Permanent => Ok(false),
        }
    });
    let changed = changed.await.map_err(|failure| {
        let controller = &command.queue.controller;
        fabric::log_of_peer!(warn, "write protection", controller.peer.ip(), %controller, %failure, nsid = set.nsid, "a host cannot change write protection");
        Fault::from(crate::errors::nvme_status(failure.kind))
    })?;
    if !changed {
        return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr().into());
    }
    if state != WriteProtect::Off {
        namespace.volume.flush().await?;
    }
    Ok(Success::default())
}
