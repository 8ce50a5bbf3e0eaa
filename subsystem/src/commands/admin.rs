//! Admin commands: what a controller answers on its admin queue.
//!
//! Guarantees: a discovery controller answers only what discovery needs; an Asynchronous Event Request
//! waits without holding a buffer; Abort ends a command that waits, and reports correctly whether it did.

use nvme::Status;
use nvme::admin::AdminCommand;

use super::{
    cross_controller_reset, features, identify, lba_status, log_page, namespace_management,
};
use crate::connected_queue::command::{Command, Outcome, Success};
use crate::queue::Queue;

/// Runs an admin command.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>) -> Outcome {
    match AdminCommand::parse(command.sqe())? {
        AdminCommand::Identify(identify) => identify::run(command, identify).await,
        AdminCommand::GetLogPage(get) => log_page::run(command, get).await,
        AdminCommand::GetFeatures(get) => features::get(command, get).await,
        AdminCommand::SetFeatures(set) => features::set(command, set).await,
        AdminCommand::GetLbaStatus(_) if command.queue.controller.is_discovery() => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
        AdminCommand::GetLbaStatus(get) => lba_status::run(command, get).await,
        AdminCommand::CrossControllerReset(_) if command.queue.controller.is_discovery() => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
        AdminCommand::CrossControllerReset(reset) => {
            cross_controller_reset::run(command, reset).await
        }
        AdminCommand::AsyncEventRequest => async_event_request(command).await,
        AdminCommand::KeepAlive => {
            // The timer was restarted when the command came in, as with every command.
            Ok(Success::default())
        }
        AdminCommand::NamespaceManagement(_) | AdminCommand::NamespaceAttachment(_)
            if command.queue.controller.is_discovery() =>
        {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
        AdminCommand::NamespaceManagement(management) => {
            namespace_management::manage(command, management).await
        }
        AdminCommand::NamespaceAttachment(attachment) => {
            namespace_management::attach(command, attachment).await
        }
        AdminCommand::Abort { .. } if command.queue.controller.is_discovery() => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
        AdminCommand::Abort { sqid, cid } => Ok(Success::result(abort(command, sqid, cid))),
    }
}

async fn async_event_request<Q: Queue>(command: &Command<Q>) -> Outcome {
    let events = &command.queue.controller.events;
    let request = events
        .request()
        .ok_or(Status::ASYNC_EVENT_LIMIT.with_dnr())?;
    let kind = command.abortable(request.event()).await?;
    Ok(Success::result(u64::from(kind.event().encode())))
}

/// Bit 0 of the result: the command was not aborted (NVM Express Base 2.0, section 5.1).
fn abort<Q: Queue>(command: &Command<Q>, sqid: u16, cid: u16) -> u64 {
    let queue = command.queue.controller.queue(sqid);
    let aborted = queue.is_some_and(|queue| queue.waiting.abort(cid));
    u64::from(!aborted)
}
