//! Admin commands: what a controller answers on its admin queue.
//!
//! Guarantee: what is not announced is an invalid opcode; a discovery controller answers only what discovery needs.

use nvme::Status;
use nvme::admin::AdminCommand;

use super::{features, identify, log_page};
use crate::queue::{Command, Fault, Outcome, Success};

/// Runs an admin command.
pub(crate) async fn run(command: &Command) -> Outcome {
    let is_discovery = command.queue.controller.is_discovery();
    match AdminCommand::parse(command.sqe())? {
        AdminCommand::Identify(identify) => identify::run(command, identify).await,
        AdminCommand::GetLogPage(get) => log_page::run(command, get).await,
        AdminCommand::GetFeatures(get) => features::get(command, get).await,
        AdminCommand::SetFeatures(set) => features::set(command, set).await,
        AdminCommand::AsyncEventRequest => match command.may_wait_for_events() {
            true => Err(Fault::Held),
            false => Err(Status::ASYNC_EVENT_LIMIT.with_dnr().into()),
        },
        // The timer was restarted when the command came in, as with every command.
        AdminCommand::KeepAlive => Ok(Success::default()),
        AdminCommand::Abort { sqid, cid } if !is_discovery => {
            // Bit 0: it was not aborted. What a drive works on runs to its end.
            let aborted = sqid == 0 && command.queue.abort_waiting(cid);
            Ok(Success::result(u64::from(!aborted)))
        }
        AdminCommand::Abort { .. }
        | AdminCommand::CrossControllerReset(_)
        | AdminCommand::GetLbaStatus(_)
        | AdminCommand::NamespaceManagement(_)
        | AdminCommand::NamespaceAttachment(_) => Err(Status::INVALID_OPCODE.with_dnr().into()),
    }
}
