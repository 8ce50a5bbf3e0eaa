//! Node table commands: what nodes tell each other by a drive that they share.
//!
//! Guarantees: a reservation keeps no host from the table; the drive itself is not touched; a command whose fields or data
//! are wrong changes nothing.

use std::time::Duration;

use nvme::Status;
use nvme::node_table::{NodeTableCommand, SentText, TableReceive, TableSend};

use crate::export::{Edition, Export};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::queue::{Command, Fault, Outcome, Success};

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const DATA_POINTER_AT: u16 = 24;
const LENGTH_AT: u16 = 48;

/// Runs a node table command.
pub(crate) async fn run(command: &Command, asked: NodeTableCommand) -> Outcome {
    let export = command.queue.sled.export(asked.nsid());
    let export = export.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))?;
    match asked {
        NodeTableCommand::Send { what, length, .. } => {
            send(command, export, what, bytes_of(length)?).await
        }
        NodeTableCommand::Receive { what, length, .. } => {
            receive(command, export, what, bytes_of(length)?).await
        }
    }
}

/// Bytes of data, if a command may move them.
fn bytes_of(length: u32) -> Result<usize, Fault> {
    let length = usize::try_from(length).ok();
    let length = length.filter(|length| *length <= TRANSFER_BYTES_MAX);
    length.ok_or(Fault::field(Status::INVALID_FIELD, LENGTH_AT))
}

async fn send(command: &Command, export: &Export, what: TableSend, len: usize) -> Outcome {
    command.check_data_len(len)?;
    let data = command.fetch(len).await?;
    let sent = data.get(..len).and_then(SentText::decode);
    let sent = sent.ok_or(Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT))?;
    let mut table = export.node_table();
    let done = match what {
        TableSend::Entry {
            number,
            lease_ms: 0,
        } => table.give_up(number, sent.uuid),
        TableSend::Entry { number, lease_ms } => {
            let lease = Duration::from_millis(lease_ms.into());
            // After the lock: no other node's time is later than this one.
            table.keep(number, sent, lease, reactor::now())
        }
        TableSend::Description {
            offset,
            total,
            revision,
        } => {
            let edition = Edition {
                pool: sent.uuid,
                revision,
                total: total as usize,
            };
            let sender = command.queue.controller.id;
            table.describe(sender, edition, offset as usize, sent.text)
        }
        TableSend::Drained { replaces, revision } => table.drain(replaces, revision, sent),
    };
    drop(table);
    match done {
        Ok(()) => Ok(Success::default()),
        Err(status) if is_answer(status) => Err(Fault::NotThere(status)),
        Err(status) => Err(status.into()),
    }
}

/// Whether the status tells of other nodes, and not of a command that is wrong.
fn is_answer(status: Status) -> bool {
    matches!(
        status.code(),
        Status::NODE_ENTRY_KEPT | Status::DESCRIPTION_OLDER | Status::DRAINED_REPLACED
    )
}

async fn receive(command: &Command, export: &Export, what: TableReceive, len: usize) -> Outcome {
    command.check_data_len(len)?;
    let bytes = {
        let table = export.node_table();
        match what {
            TableReceive::Entries => table.list(reactor::now()).encode(),
            TableReceive::Description { offset } => table.description(offset as usize, len),
        }
    };
    command.send(&bytes, len).await
}
