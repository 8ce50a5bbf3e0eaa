//! Fabrics commands on a connected queue: properties, authentication and Disconnect.

use nvme::fabrics::FabricsCommand;
use nvme::properties::{self, Capabilities, VERSION_1_4};
use nvme::{Sqe, Status};

use crate::commands::authentication;
use crate::queue::{Command, Fault, Outcome, Success};

/// Byte offsets in Property Get and Set, for the error log.
const ATTRIBUTES_AT: u16 = 40;
const PROPERTY_AT: u16 = 44;

/// CAP.TO: the longest time to become ready, in units of 500 ms. As nvmet.
const READY_TIMEOUT_500MS: u8 = 15;

/// Runs a Fabrics command.
pub(crate) async fn run(command: &Command) -> Outcome {
    let is_admin = command.queue.handle.qid == 0;
    match FabricsCommand::parse(command.sqe())? {
        FabricsCommand::Connect(_) => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        FabricsCommand::PropertyGet { offset, wide } if is_admin => {
            property_get(command, offset, wide)
        }
        FabricsCommand::PropertySet {
            offset,
            wide,
            value,
        } if is_admin => property_set(command, offset, wide, value).await,
        FabricsCommand::Disconnect { record_format } => match (record_format, is_admin) {
            (_, true) => Err(Status::INVALID_QUEUE_TYPE.with_dnr().into()),
            (0, false) => Ok(Success::default()),
            (_, false) => Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr().into()),
        },
        FabricsCommand::AuthSend(transfer) => authentication::send(command, transfer).await,
        FabricsCommand::AuthReceive(transfer) => authentication::receive(command, transfer).await,
        FabricsCommand::PropertyGet { .. } | FabricsCommand::PropertySet { .. } => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
    }
}

/// Whether a successful command was a Disconnect: its queue ends after the completion.
pub(crate) fn is_disconnect(sqe: &Sqe) -> bool {
    matches!(
        FabricsCommand::parse(sqe),
        Ok(FabricsCommand::Disconnect { .. })
    )
}

fn capabilities(command: &Command) -> Capabilities {
    let queue = &command.queue;
    let limits = queue.sled.queue_limits(queue.controller.transport);
    Capabilities {
        max_queue_entries: limits.depth.saturating_sub(1),
        contiguous_queues: true,
        timeout_500ms: READY_TIMEOUT_500MS,
        nvm_command_set: true,
        command_sets: false,
        page_size_min: 0,
        page_size_max: 0,
    }
}

fn property_get(command: &Command, offset: u32, wide: bool) -> Outcome {
    let controller = &command.queue.controller;
    let (is_wide, value) = match offset {
        properties::CAP => (true, capabilities(command).encode()),
        properties::VS => (false, u64::from(VERSION_1_4)),
        properties::CC => (false, u64::from(controller.configuration())),
        properties::CSTS => (false, u64::from(controller.status().encode())),
        properties::NSSR => (false, 0),
        // nvme-cli's show-regs reads all properties of PCIe, and expects this status without other bits for those that
        // fabrics do not have.
        _ => return Err(Fault::NotThere(Status::INVALID_FIELD)),
    };
    match wide == is_wide {
        true => Ok(Success::result(value)),
        false => Err(Fault::field(Status::INVALID_FIELD, ATTRIBUTES_AT)),
    }
}

async fn property_set(command: &Command, offset: u32, wide: bool, value: u64) -> Outcome {
    if offset != properties::CC {
        return Err(Fault::field(Status::INVALID_FIELD, PROPERTY_AT));
    }
    if wide {
        return Err(Fault::field(Status::INVALID_FIELD, ATTRIBUTES_AT));
    }
    let queue = &command.queue;
    let controller = &queue.controller;
    // CC has 32 bits; the command's upper dword is reserved for it.
    let effect = controller.configure(value as u32);
    if effect.unsupported {
        fabric::log_of_peer!(warn, "configuration", controller.peer.ip(), host = %controller.host.nqn, configuration = format_args!("{value:#x}"), "the host asks for a configuration that is not supported");
    }
    if effect.reset {
        queue.abort_event_requests();
    }
    if effect.shutdown {
        if !controller.is_discovery()
            && let Err(status) = queue.sled.flush().await
        {
            fabric::log_of_peer!(error, "shutdown not durable", controller.peer.ip(), host = %controller.host.nqn, %status, "cannot make data durable for a host's shutdown");
        }
        controller.shutdown_complete();
    }
    Ok(Success::default())
}
