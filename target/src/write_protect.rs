//! Namespace Write Protection, feature 84h.
//!
//! Guarantees: what was acknowledged before is durable when the host is told that the namespace is
//! protected; protection that ends with the daemon, or never, is not lifted by hosts. As with the other features
//! of a namespace (82h, 83h), a path that does not reach the namespace sends the host to another one. Reservations
//! are no matter: Set Features belongs to none of their command groups.

use nvme::Status;
use nvme::admin::{GetFeatures, SetFeatures};
use nvme::features::Select;

use crate::catalog::WriteProtect;
use crate::command::{Command, Fault, Outcome, Success};
use crate::io::admit::reach;
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
    let line = &command.line;
    let namespace = reach(command, set.nsid)?;
    let invalid = Fault::field(Status::INVALID_FIELD, DWORD_11_AT);
    let state = WriteProtect::from_feature_value(set.dwords[0] & STATE_MASK).ok_or(invalid)?;
    if state == WriteProtect::Permanent {
        // Only the target's owner does what nobody can undo (NWPC bit 2 is clear).
        return Err(invalid);
    }
    let nqn = line.controller.subsystem.nqn.clone();
    let changed = line.target.change(|catalog| {
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
        let controller = &command.line.controller;
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
