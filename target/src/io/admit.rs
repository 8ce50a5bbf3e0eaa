//! What an I/O command must pass before it touches a namespace.
//!
//! Guarantees:
//! - Every I/O command passes [`admit`] for each namespace that it names, before its range is looked
//!   at and before its data move.
//! - The order is the same for all commands, so that a host always hears of the first reason: the
//!   state of queue and controller (before this) -> the namespace is one that this controller may see
//!   -> the state of the path (ANA) -> write protection -> reservations -> range -> data.

use std::rc::Rc;

use nvme::Status;

use crate::catalog::WriteProtect;
use crate::command::{Command, Fault};
use crate::line::KnownVolume;
use crate::queue::Queue;
use crate::reservation;

/// Byte offset of the namespace identifier in a command, for the error log.
const NSID_AT: u16 = 4;

/// What a command does to a namespace (the command groups of reservations, Base 2.0, section 8.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Looks at its content: Read, Compare, Verify, the source of a Copy.
    Read,
    /// Changes its content: Write, Write Zeroes, Write Uncorrectable, Dataset Management, the
    /// destination of a Copy.
    Write,
    /// Makes it durable: to reservations a change, to write protection none.
    Flush,
}

impl Access {
    /// The command group that reservations count it to.
    const fn group(self) -> reservation::Access {
        match self {
            Self::Read => reservation::Access::Read,
            Self::Write | Self::Flush => reservation::Access::Write,
        }
    }
}

/// The namespace, if the command may do this to it.
pub(crate) fn admit<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
) -> Result<Rc<KnownVolume>, Fault> {
    let namespace = reach(command, nsid)?;
    if access == Access::Write && namespace.config.write_protect != WriteProtect::Off {
        return Err(Fault::field(Status::NAMESPACE_WRITE_PROTECTED, NSID_AT));
    }
    if !namespace.reservations.admits(access.group()) {
        return Err(Status::RESERVATION_CONFLICT.with_dnr().into());
    }
    Ok(namespace)
}

/// The namespace, if the controller sees it and the path reaches it: what commands ask for that do
/// nothing to its content.
pub(crate) fn reach<Q: Queue>(command: &Command<Q>, nsid: u32) -> Result<Rc<KnownVolume>, Fault> {
    let namespace = command.line.namespace(nsid);
    let namespace = namespace.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))?;
    match namespace.ana.refusal() {
        None => Ok(namespace),
        Some(status) => Err(status.into()),
    }
}
