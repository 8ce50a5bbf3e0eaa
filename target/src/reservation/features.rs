//! The features of reservations: 82h, which notifications are masked, and 83h, persistence through a
//! loss of power. Each namespace has its own value.

use nvme::Status;
use nvme::features::FeatureId;
use nvme::identify::NSID_BROADCAST;
use nvme::reservation::ReservationEvent;

use crate::command::{Command, Fault, Outcome, Success};
use crate::io::admit::reach;
use crate::queue::Queue;

/// Byte offset in the command, for the error log.
const DWORD_11_AT: u16 = 44;

/// The value of a namespace.
pub(crate) fn get<Q: Queue>(
    command: &Command<Q>,
    feature: FeatureId,
    nsid: u32,
) -> Result<u32, Fault> {
    let controller = &command.line.controller;
    let namespace = reach(command, nsid)?;
    Ok(match feature {
        FeatureId::ReservationNotificationMask => controller.reservations.mask(nsid),
        _ => u32::from(namespace.reservations.shared().now().persists()),
    })
}

/// Sets the value of a namespace, or of all that the controller sees.
pub(crate) async fn set<Q: Queue>(
    command: &Command<Q>,
    feature: FeatureId,
    nsid: u32,
    value: u32,
) -> Outcome {
    let line = &command.line;
    let known = match feature {
        FeatureId::ReservationNotificationMask => ReservationEvent::MASK_ALL,
        _ => 1,
    };
    if value & !known != 0 {
        return Err(Fault::field(Status::INVALID_FIELD, DWORD_11_AT));
    }
    let nsids = match nsid {
        NSID_BROADCAST => {
            let world = line.target.world();
            let visible = world.namespaces(&line.controller);
            visible.iter().map(|namespace| namespace.nsid).collect()
        }
        nsid => vec![nsid],
    };
    for nsid in nsids {
        let namespace = reach(command, nsid)?;
        match feature {
            FeatureId::ReservationNotificationMask => {
                line.controller.reservations.set_mask(nsid, value);
            }
            _ => {
                let shared = namespace.reservations.shared();
                let set = |now: &mut super::Reservations| {
                    now.set_persist(value == 1);
                    Ok::<_, Fault>(())
                };
                shared.change(&line.target.engine, set).await?;
            }
        }
    }
    Ok(Success::default())
}
