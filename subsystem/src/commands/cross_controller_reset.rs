//! Cross-Controller Reset (TP8028; NVM Express Base 2.3, sections 5.4.3 and 9.6.2): a host that has lost its way to one
//! controller asks another one to end it, so that it may repeat there what it does not know the outcome of.
//!
//! Guarantees:
//! - A reset is told as successful only when no command of the controller can take effect any more. A controller of this process
//!   is ended, and its last command waited for. One that is not here is of an earlier process or of another node: the drives refuse
//!   what that has in hand as soon as this node has opened the pool, and a record proves that this node still has it.
//! - A standby does not know what other nodes do. It says that the reset is under way, until it has taken the pool over.
//! - A host resets only its own controllers, by name and identifier of the host, and only the instance that it means.

use std::time::Duration;

use nvme::Status;
use nvme::admin::CrossControllerReset;

use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::controller::instance::Instance;
use crate::controller::resets::{Awaited, Impacted};
use crate::limits::ControllerIds;
use crate::lock::lock;
use crate::queue::Queue;

/// Byte offsets in the command, for the error log.
const ICID_AT: u16 = 40;
const CIU_AT: u16 = 42;
const CIRN_AT: u16 = 48;

/// How long the command itself waits for the last commands of the controller. Nearly all end sooner, and then the host needs no
/// event and no log page. A host gives an admin command 60 s (Linux, `NVME_ADMIN_TIMEOUT`).
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Runs Cross-Controller Reset.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>, reset: CrossControllerReset) -> Outcome {
    let (target, source) = (&command.queue.target, &command.queue.controller);
    let invalid = |location| Err(Fault::field(Status::INVALID_FIELD, location));
    if reset.cntlid == source.id || !ControllerIds::ALL.contains(reset.cntlid) {
        return invalid(ICID_AT);
    }
    if reset.uniquifier == 0 {
        return invalid(CIU_AT);
    }
    if reset.random == 0 {
        return invalid(CIRN_AT);
    }
    let impacted = Impacted {
        id: reset.cntlid,
        instance: Instance {
            uniquifier: reset.uniquifier,
            random: reset.random,
        },
    };
    let present = source.subsystem.registered(impacted.id);
    let present = present.filter(|controller| controller.instance() == impacted.instance);
    let Some(controller) = present else {
        if !target.is_serving() {
            return wait(command, impacted, Awaited::Pool, || ()).await;
        }
        target.prove_owner().await?;
        // It may be what the same controller was before a reset, with commands that end now.
        return match source.subsystem.is_over(&impacted) {
            true => Ok(Success::result(CrossControllerReset::IMMEDIATE.into())),
            false => wait(command, impacted, Awaited::Commands, || ()).await,
        };
    };
    if controller.host != source.host {
        return invalid(ICID_AT);
    }
    let end = || {
        if !controller.is_ending() {
            fabric::log_of_peer!(
                warn,
                "cross-controller reset",
                source.peer.ip(),
                host = %source.host.nqn,
                asked = source.id,
                controller = %controller,
                "the host has lost its way to a controller, and asked another one to end it"
            );
            controller.end_silent();
        }
    };
    wait(command, impacted, Awaited::Commands, end).await
}

/// Begins a reset, and waits for a while until it is over.
async fn wait<Q: Queue>(
    command: &Command<Q>,
    impacted: Impacted,
    awaited: Awaited,
    begin: impl FnOnce(),
) -> Outcome {
    let (target, source) = (&command.queue.target, &command.queue.controller);
    // Before the first look: whatever ends from here on is noted there.
    let ticket = lock(&source.resets).begin(impacted, awaited)?;
    begin();
    let waited = match awaited {
        Awaited::Commands => {
            let over = source.subsystem.until_over(&impacted);
            let over = command.abortable(reactor::timeout(WAIT_MAX, over)).await;
            over.map(|over| over.is_ok())
        }
        Awaited::Pool => Ok(target.is_serving()),
    };
    let is_over = matches!(waited, Ok(true));
    let is_over = lock(&source.resets).answer(&ticket, is_over);
    waited?;
    let result = match is_over {
        true => CrossControllerReset::IMMEDIATE,
        false => 0,
    };
    Ok(Success::result(result.into()))
}
