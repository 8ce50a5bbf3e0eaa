//! How a host's command comes to the namespace that it names.
//!
//! Guarantees:
//! - Every I/O command passes [`admit`] for each namespace that it names, before its range is looked
//!   at and before its data move.
//! - The order is the same for all commands, so that a host always hears of the first reason: the
//!   state of queue and controller (before this) -> the namespace is one that this controller may see
//!   -> the state of the path (ANA) -> write protection -> reservations -> range -> data.

use std::rc::Rc;

use nvme::Status;

use crate::admission::{Access, Refusal};
use crate::connected_queue::command::{Command, Fault};
use crate::connected_queue::{KnownVolume, Unreachable};
use crate::queue::Queue;

/// Byte offset of the namespace identifier in a command, for the error log.
const NSID_AT: u16 = 4;

/// The namespace, if the command may do this to it.
pub(crate) fn admit<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
) -> Result<Rc<KnownVolume>, Fault> {
    let namespace = reach(command, nsid)?;
    match namespace.admission.admit(access) {
        Ok(()) => Ok(namespace),
        Err(Refusal::WriteProtected) => {
            Err(Fault::field(Status::NAMESPACE_WRITE_PROTECTED, NSID_AT))
        }
        Err(Refusal::Reserved) => Err(Status::RESERVATION_CONFLICT.with_dnr().into()),
    }
}

/// The namespace, if the controller sees it and the path reaches it: for commands that do nothing to its content.
pub(crate) fn reach<Q: Queue>(command: &Command<Q>, nsid: u32) -> Result<Rc<KnownVolume>, Fault> {
    let namespace = seen(command, nsid)?;
    match namespace.ana.refusal() {
        None => Ok(namespace),
        Some(status) => Err(status.into()),
    }
}

/// The namespace, if the controller sees it and this node serves it, whatever the path is.
pub(crate) fn seen<Q: Queue>(command: &Command<Q>, nsid: u32) -> Result<Rc<KnownVolume>, Fault> {
    let namespace = command.queue.namespace(nsid);
    namespace.map_err(|unreachable| match unreachable {
        Unreachable::Unknown => Fault::field(Status::INVALID_NAMESPACE, NSID_AT),
        Unreachable::Elsewhere => elsewhere(),
    })
}

/// Another node serves the pool: the host tries its other paths, and this one again when it hears of a change.
pub(crate) fn elsewhere() -> Fault {
    Status::ASYMMETRIC_INACCESSIBLE.into()
}
