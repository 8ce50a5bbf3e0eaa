//! The features of reservations: 82h, which notifications are masked, and 83h, persistence through a
//! loss of power. Each namespace has its own value.

use nvme::Status;
use nvme::features::FeatureId;
use nvme::identify::NSID_BROADCAST;
use nvme::reservation::ReservationEvent;
use reservations::Reservations;

use crate::commands::admit::reach;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::queue::Queue;

/// Byte offset in the command, for the error log.
const DWORD_11_AT: u16 = 44;

/// The value of a namespace.
pub(crate) fn get<Q: Queue>(
    command: &Command<Q>,
    feature: FeatureId,
    nsid: u32,
) -> Result<u32, Fault> {
    let controller = &command.queue.controller;
    let namespace = reach(command, nsid)?;
    Ok(match feature {
        FeatureId::ReservationNotificationMask => controller.reservations.mask(nsid),
        _ => u32::from(namespace.admission.reservations.current().now().persists()),
    })
}

/// Sets the value of a namespace, or of all that the controller sees.
pub(crate) async fn set<Q: Queue>(
    command: &Command<Q>,
    feature: FeatureId,
    nsid: u32,
    value: u32,
) -> Outcome {
    let queue = &command.queue;
    let known = match feature {
        FeatureId::ReservationNotificationMask => ReservationEvent::MASK_ALL,
        _ => 1,
    };
    if value & !known != 0 {
        return Err(Fault::field(Status::INVALID_FIELD, DWORD_11_AT));
    }
    let nsids = match nsid {
        NSID_BROADCAST => {
            let live = queue.target.live();
            let visible = live.namespaces(&queue.controller);
            visible.iter().map(|namespace| namespace.nsid).collect()
        }
        nsid => vec![nsid],
    };
    for nsid in nsids {
        let namespace = reach(command, nsid)?;
        match feature {
            FeatureId::ReservationNotificationMask => {
                queue.controller.reservations.set_mask(nsid, value);
            }
            _ => {
                let shared = namespace.admission.reservations.current();
                let set = |now: &mut Reservations| {
                    now.set_persist(value == 1);
                    Ok::<_, Fault>(())
                };
                shared.change(queue.target.engine()?, set).await?;
            }
        }
    }
    Ok(Success::default())
}
