//! Get Features and Set Features. Nothing is saved: a controller begins with the defaults.

use nvme::Status;
use nvme::admin::{GetFeatures, SetFeatures};
use nvme::features::{AsyncEventConfig, FeatureId, NumberOfQueues};
use nvme::identify::NSID_BROADCAST;
use nvme::reservation::ReservationEvent;
use reservations::Reservations;

use crate::queue::{Command, Fault, Outcome, Success};

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const FID_AT: u16 = 40;
const SELECT_AT: u16 = 41;
const DWORD_11_AT: u16 = 44;

/// 10Fh, Feature Not Namespace Specific (Base 2.0, figure 97).
const FEATURE_NOT_NAMESPACE_SPECIFIC: Status = Status::from_bits(0x10f);

/// Bytes of the extended host identifier.
const HOST_ID_BYTES: usize = 16;

/// The feature, if this kind of controller has it.
fn feature(command: &Command, fid: u8) -> Result<FeatureId, Fault> {
    let unknown = Fault::field(Status::INVALID_FIELD, FID_AT);
    let id = FeatureId::from_u8(fid).ok_or(unknown)?;
    match id {
        FeatureId::KeepAliveTimer | FeatureId::AsyncEventConfig => Ok(id),
        FeatureId::NumberOfQueues
        | FeatureId::VolatileWriteCache
        | FeatureId::HostIdentifier
        | FeatureId::ReservationNotificationMask
        | FeatureId::ReservationPersistence
            if !command.queue.controller.is_discovery() =>
        {
            Ok(id)
        }
        _ => Err(unknown),
    }
}

/// Runs Get Features.
pub(crate) async fn get(command: &Command, get: GetFeatures) -> Outcome {
    let id = feature(command, get.fid)?;
    if get.select != 0 {
        // ONCS says that there is nothing to select from.
        return Err(Fault::field(Status::INVALID_FIELD, SELECT_AT));
    }
    let controller = &command.queue.controller;
    let value = match id {
        FeatureId::NumberOfQueues => {
            let limit = command.queue.sled.limits().io_queues;
            let count = controller.granted_queues().unwrap_or(limit);
            NumberOfQueues {
                submission: count,
                completion: count,
            }
            .encode()
        }
        FeatureId::VolatileWriteCache => u32::from(!controller.is_write_through()),
        FeatureId::AsyncEventConfig => controller.events(),
        FeatureId::KeepAliveTimer => controller.kato_ms(),
        FeatureId::ReservationNotificationMask => {
            command.queue.watched(get.nsid)?;
            ReservationEvent::MASK_ALL
        }
        FeatureId::ReservationPersistence => {
            let reserved = command.queue.watched(get.nsid)?.current();
            u32::from(reserved.now().persists())
        }
        // Bit 0, EXHID: on fabrics identifiers have 16 bytes.
        _ if get.cdw11 & 1 == 0 => return Err(Fault::field(Status::INVALID_FIELD, DWORD_11_AT)),
        _ => return command.send(&controller.host.id, HOST_ID_BYTES).await,
    };
    Ok(Success::result(u64::from(value)))
}

/// Runs Set Features.
pub(crate) async fn set(command: &Command, set: SetFeatures) -> Outcome {
    let id = feature(command, set.fid)?;
    if set.save {
        return Err(Fault::field(Status::FEATURE_NOT_SAVEABLE, FID_AT));
    }
    if let FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence = id {
        return set_of_reservations(command, id, set.nsid, set.dwords[0]).await;
    }
    if !matches!(set.nsid, 0 | NSID_BROADCAST) {
        return Err(Fault::field(FEATURE_NOT_NAMESPACE_SPECIFIC, NSID_AT));
    }
    let (sled, controller) = (&command.queue.sled, &command.queue.controller);
    let value = set.dwords[0];
    let invalid = Fault::field(Status::INVALID_FIELD, DWORD_11_AT);
    match id {
        FeatureId::NumberOfQueues => {
            let wanted = NumberOfQueues::decode(value).ok_or(invalid)?;
            let granted = wanted.limited_to(sled.limits().io_queues);
            let usable = granted.submission.min(granted.completion);
            return match controller.grant_queues(usable) {
                true => Ok(Success::result(u64::from(granted.encode()))),
                false => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
            };
        }
        FeatureId::VolatileWriteCache => {
            let write_through = value & 1 == 0;
            controller.set_write_through(write_through);
            if write_through {
                // Writes that were acknowledged before must not be less durable than later ones.
                sled.flush().await?;
            }
        }
        FeatureId::AsyncEventConfig => {
            if !AsyncEventConfig::SMART.contains(AsyncEventConfig(value)) {
                return Err(invalid);
            }
            controller.set_events(value);
        }
        FeatureId::KeepAliveTimer => controller.set_kato_ms(value),
        _ => return Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
    }
    Ok(Success::default())
}

/// Sets a feature of a namespace, or of all: which notifications are masked (82h), and persistence (83h).
async fn set_of_reservations(command: &Command, id: FeatureId, nsid: u32, value: u32) -> Outcome {
    let nsids = match nsid {
        NSID_BROADCAST => 1..=command.queue.sled.namespaces(),
        nsid => nsid..=nsid,
    };
    for nsid in nsids {
        let reserved = command.queue.watched(nsid)?.current();
        match (id, value) {
            // No event is ever sent, so all are masked.
            (FeatureId::ReservationNotificationMask, ReservationEvent::MASK_ALL) => {}
            (FeatureId::ReservationNotificationMask, _) => {
                return Err(Fault::field(Status::FEATURE_NOT_CHANGEABLE, DWORD_11_AT));
            }
            (_, 0 | 1) => {
                let persist = |now: &mut Reservations| {
                    now.set_persist(value == 1);
                    Ok(())
                };
                reserved.change(persist).await?;
            }
            _ => return Err(Fault::field(Status::INVALID_FIELD, DWORD_11_AT)),
        }
    }
    Ok(Success::default())
}
