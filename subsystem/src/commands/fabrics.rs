//! Fabrics commands on a connected queue: properties, authentication and Disconnect.

use nvme::fabrics::FabricsCommand;
use nvme::properties;
use nvme::{Sqe, Status};

use crate::commands::authentication;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::controller::ConfigurationChange;
use crate::queue::Queue;

/// Byte offsets in Property Get and Set, for the error log.
const ATTRIBUTES_AT: u16 = 40;
const PROPERTY_AT: u16 = 44;

/// Runs a Fabrics command.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>) -> Outcome {
    let admin_queue = command.queue.handle.qid == 0;
    match FabricsCommand::parse(command.sqe())? {
        FabricsCommand::Connect(_) => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        FabricsCommand::PropertyGet { offset, wide } if admin_queue => {
            property_get(command, offset, wide)
        }
        FabricsCommand::PropertySet {
            offset,
            wide,
            value,
        } if admin_queue => property_set(command, offset, wide, value).await,
        FabricsCommand::PropertyGet { .. } | FabricsCommand::PropertySet { .. } => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
        FabricsCommand::Disconnect { record_format } => match (record_format, admin_queue) {
            (_, true) => Err(Status::INVALID_QUEUE_TYPE.with_dnr().into()),
            (0, false) => Ok(Success::default()),
            (_, false) => Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr().into()),
        },
        FabricsCommand::AuthSend(transfer) => authentication::send(command, transfer).await,
        FabricsCommand::AuthReceive(transfer) => authentication::receive(command, transfer).await,
    }
}

/// Whether a successful command was a Disconnect: its queue ends after the completion.
pub(crate) fn is_disconnect(sqe: &Sqe) -> bool {
    matches!(
        FabricsCommand::parse(sqe),
        Ok(FabricsCommand::Disconnect { .. })
    )
}

fn property_get<Q: Queue>(command: &Command<Q>, offset: u32, wide: bool) -> Outcome {
    let controller = &command.queue.controller;
    let (is_wide, value) = match offset {
        properties::CAP => (true, controller.capabilities().encode()),
        properties::VS => (false, u64::from(controller.version())),
        properties::CC => (false, u64::from(controller.configuration())),
        properties::CSTS => (false, u64::from(controller.status().encode())),
        properties::NSSR => (false, 0),
        // nvme-cli's show-regs reads all properties of PCIe, and expects Invalid Field without other bits for those that
        // fabrics do not have; at any other status version 2.3 gives up and shows memory that it has freed.
        _ => return Err(Fault::NotThere(Status::INVALID_FIELD)),
    };
    if wide != is_wide {
        return Err(Fault::field(Status::INVALID_FIELD, ATTRIBUTES_AT));
    }
    Ok(Success::result(value))
}

async fn property_set<Q: Queue>(
    command: &Command<Q>,
    offset: u32,
    wide: bool,
    value: u64,
) -> Outcome {
    if offset != properties::CC {
        return Err(Fault::field(Status::INVALID_FIELD, PROPERTY_AT));
    }
    if wide {
        return Err(Fault::field(Status::INVALID_FIELD, ATTRIBUTES_AT));
    }
    let controller = &command.queue.controller;
    // CC has 32 bits; the command's upper dword is reserved for it.
    match controller.configure(value as u32) {
        ConfigurationChange::Done => {}
        ConfigurationChange::Shutdown => {
            if !controller.is_discovery()
                && let Ok(engine) = command.queue.target.engine()
                && let Err(error) = engine.flush().await
            {
                fabric::log_of_peer!(error, "shutdown not durable", controller.peer.ip(), %error, %controller, "cannot make data durable for a host's shutdown");
            }
            controller.shutdown_complete();
        }
    }
    Ok(Success::default())
}
