//! Get Features and Set Features.
//!
//! Guarantees: a feature that this target does not have is refused as a whole, so that a host never
//! believes that something was set; values that cannot be kept over a reset are refused when the host
//! asks for that (SV).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvme::Status;
use nvme::admin::{GetFeatures, SetFeatures};
use nvme::features::{
    AsyncEventConfig, FeatureId, HOST_BEHAVIOR_BYTES, HostBehavior, NumberOfQueues, Select,
    TIMESTAMP_BYTES, Timestamp,
};
use nvme::identify::NSID_BROADCAST;

use crate::command::{Command, Fault, Outcome, Success};
use crate::controller::Controller;
use crate::queue::Queue;
use crate::reservation;
use crate::subsystem::Limits;
use crate::write_protect;

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const FID_AT: u16 = 40;
const SELECT_AT: u16 = 41;
const DWORD_11_AT: u16 = 44;

/// 10Fh, Feature Not Namespace Specific (Base 2.0, figure 97).
const FEATURE_NOT_NAMESPACE_SPECIFIC: Status = Status::from_bits(0x10f);

/// The temperature threshold after a reset, in kelvin: no warning, as the specification sets it.
const TEMPERATURE_THRESHOLD: u16 = 0xffff;

/// Bytes of the extended host identifier.
const HOST_ID_BYTES: usize = 16;

/// The values that a host can set, of one controller; a controller reset brings the defaults back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeatureState {
    /// Feature 06h.
    pub(crate) write_cache: bool,
    /// Feature 01h, as the host wrote it.
    arbitration: u32,
    /// Feature 04h.
    temperature_threshold: u16,
    /// Feature 05h.
    error_recovery: u32,
    /// Feature 07h: I/O queues that were granted, once the host has asked.
    granted_queues: Option<u16>,
    /// Feature 0Ah.
    write_atomicity: u32,
    /// Feature 0Eh: what the host set, and when.
    timestamp: Option<(u64, Instant)>,
    /// Feature 16h.
    host_behavior: HostBehavior,
}

impl Default for FeatureState {
    fn default() -> Self {
        Self {
            write_cache: true,
            arbitration: 0,
            temperature_threshold: TEMPERATURE_THRESHOLD,
            error_recovery: 0,
            granted_queues: None,
            write_atomicity: 0,
            timestamp: None,
            host_behavior: HostBehavior::default(),
        }
    }
}

impl FeatureState {
    /// Formats of Copy's source ranges that the host enabled, by bits.
    pub(crate) fn copy_formats(&self) -> u16 {
        self.host_behavior.copy_formats
    }

    /// The highest I/O queue identifier that may connect.
    pub(crate) fn io_queues(&self, limits: &Limits) -> u16 {
        self.granted_queues.unwrap_or(limits.io_queues)
    }
}

/// The events that a controller of that kind can report.
pub(crate) fn supported_events(controller: &Controller) -> AsyncEventConfig {
    match controller.is_discovery() {
        true => AsyncEventConfig::DISCOVERY_CHANGE,
        false => AsyncEventConfig::NAMESPACE_ATTRIBUTE.union(AsyncEventConfig::ANA_CHANGE),
    }
}

/// The feature, if this kind of controller has it.
fn feature(controller: &Controller, fid: u8) -> Result<FeatureId, Fault> {
    use FeatureId::{
        Arbitration, AsyncEventConfig, ErrorRecovery, HostBehavior, HostIdentifier, KeepAliveTimer,
        NamespaceWriteProtection, NumberOfQueues, PowerManagement, ReservationNotificationMask,
        ReservationPersistence, TemperatureThreshold, Timestamp, VolatileWriteCache,
        WriteAtomicity,
    };
    let discovery = [AsyncEventConfig, KeepAliveTimer];
    let all = [
        Arbitration,
        PowerManagement,
        TemperatureThreshold,
        ErrorRecovery,
        VolatileWriteCache,
        NumberOfQueues,
        WriteAtomicity,
        AsyncEventConfig,
        Timestamp,
        KeepAliveTimer,
        HostBehavior,
        HostIdentifier,
        ReservationNotificationMask,
        ReservationPersistence,
        NamespaceWriteProtection,
    ];
    let offered: &[FeatureId] = if controller.is_discovery() {
        &discovery
    } else {
        &all
    };
    FeatureId::from_u8(fid)
        .filter(|id| offered.contains(id))
        .ok_or(Fault::field(Status::INVALID_FIELD, FID_AT))
}

/// Runs Get Features.
pub(crate) async fn get<Q: Queue>(command: &Command<Q>, get: GetFeatures) -> Outcome {
    let controller = &command.line.controller;
    let id = feature(controller, get.fid)?;
    let select =
        Select::from_u8(get.select).ok_or(Fault::field(Status::INVALID_FIELD, SELECT_AT))?;
    let state = match select {
        Select::Supported => return Ok(Success::result(u64::from(supported(id)))),
        Select::Current => controller.with_features(|features| *features),
        // Nothing can be saved, so what outlives a reset are the defaults.
        Select::Default | Select::Saved => FeatureState::default(),
    };
    let current = select == Select::Current;
    let value = match id {
        FeatureId::Arbitration => state.arbitration,
        FeatureId::PowerManagement => 0,
        FeatureId::TemperatureThreshold => temperature_threshold(&state, get.cdw11)?,
        FeatureId::ErrorRecovery => state.error_recovery,
        FeatureId::VolatileWriteCache => u32::from(state.write_cache),
        FeatureId::NumberOfQueues => {
            let count = state.io_queues(&controller.limits);
            NumberOfQueues {
                submission: count,
                completion: count,
            }
            .encode()
        }
        FeatureId::WriteAtomicity => state.write_atomicity,
        FeatureId::AsyncEventConfig if current => controller.events.wanted(),
        FeatureId::AsyncEventConfig => 0,
        FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence => match current
        {
            true => reservation::features::get(command, id, get.nsid)?,
            false => 0,
        },
        FeatureId::NamespaceWriteProtection => write_protect::get(command, get, select)?,
        FeatureId::KeepAliveTimer if current => controller.kato_ms(),
        FeatureId::KeepAliveTimer => 0,
        FeatureId::Timestamp => {
            return command
                .send(&timestamp(&state).encode(), TIMESTAMP_BYTES)
                .await;
        }
        FeatureId::HostBehavior => {
            return command
                .send(&state.host_behavior.encode(), HOST_BEHAVIOR_BYTES)
                .await;
        }
        FeatureId::HostIdentifier => {
            // Bit 0, EXHID: on fabrics identifiers have 16 bytes.
            if get.cdw11 & 1 == 0 {
                return Err(Fault::field(Status::INVALID_FIELD, DWORD_11_AT));
            }
            return command.send(&controller.host.id, HOST_ID_BYTES).await;
        }
        _ => return Err(Fault::field(Status::INVALID_FIELD, FID_AT)),
    };
    Ok(Success::result(u64::from(value)))
}

fn supported(id: FeatureId) -> u32 {
    match id {
        FeatureId::HostIdentifier | FeatureId::PowerManagement => 0,
        FeatureId::ReservationNotificationMask
        | FeatureId::ReservationPersistence
        | FeatureId::NamespaceWriteProtection => Select::CHANGEABLE | Select::NAMESPACE_SPECIFIC,
        _ => Select::CHANGEABLE,
    }
}

/// The threshold of the composite temperature; there are no sensors, and no lower threshold.
fn temperature_threshold(state: &FeatureState, dword_11: u32) -> Result<u32, Fault> {
    let (sensor, kind) = (dword_11 >> 16 & 0xf, dword_11 >> 20 & 3);
    match (sensor, kind) {
        (0, 0) => Ok(u32::from(state.temperature_threshold)),
        (0, 1) => Ok(0),
        _ => Err(Fault::field(Status::INVALID_FIELD, DWORD_11_AT)),
    }
}

fn timestamp(state: &FeatureState) -> Timestamp {
    let since = |at: Instant| {
        let elapsed = reactor::now().saturating_duration_since(at);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    };
    match state.timestamp {
        Some((set_ms, at)) => Timestamp {
            milliseconds: set_ms.saturating_add(since(at)),
            may_have_stopped: false,
            set_by_host: true,
        },
        None => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or(Duration::ZERO);
            Timestamp {
                milliseconds: u64::try_from(now.as_millis()).unwrap_or(0),
                may_have_stopped: false,
                set_by_host: false,
            }
        }
    }
}

/// Runs Set Features.
pub(crate) async fn set<Q: Queue>(command: &Command<Q>, set: SetFeatures) -> Outcome {
    let controller = &command.line.controller;
    let id = feature(controller, set.fid)?;
    if set.save {
        return Err(Fault::field(Status::FEATURE_NOT_SAVEABLE, FID_AT));
    }
    if let FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence = id {
        return reservation::features::set(command, id, set.nsid, set.dwords[0]).await;
    }
    if id == FeatureId::NamespaceWriteProtection {
        return write_protect::set(command, set).await;
    }
    let namespace_allowed = matches!(set.nsid, 0 | NSID_BROADCAST);
    if !namespace_allowed {
        // None of the other features has a value per namespace.
        return Err(Fault::field(FEATURE_NOT_NAMESPACE_SPECIFIC, NSID_AT));
    }
    let value = set.dwords[0];
    let invalid = Fault::field(Status::INVALID_FIELD, DWORD_11_AT);
    match id {
        FeatureId::Arbitration => controller.with_features(|f| f.arbitration = value),
        // There is one power state.
        FeatureId::PowerManagement if value & 0x1f == 0 => {}
        FeatureId::PowerManagement => return Err(invalid),
        FeatureId::TemperatureThreshold => match (value >> 16 & 0xf, value >> 20 & 3) {
            (0 | 0xf, 0) => controller.with_features(|f| f.temperature_threshold = value as u16),
            (0 | 0xf, 1) => {}
            _ => return Err(invalid),
        },
        // Bit 16, DULBE: no namespace reports deallocated blocks as errors.
        FeatureId::ErrorRecovery if value & 1 << 16 != 0 => return Err(invalid),
        FeatureId::ErrorRecovery => controller.with_features(|f| f.error_recovery = value),
        FeatureId::VolatileWriteCache => {
            if value & 1 == 0 {
                // What was acknowledged before must not be less durable than what comes after.
                command.line.target.engine.flush().await?;
            }
            controller.with_features(|f| f.write_cache = value & 1 != 0);
        }
        FeatureId::NumberOfQueues => {
            let wanted = NumberOfQueues::decode(value).ok_or(invalid)?;
            if controller.io_queue_count() > 0 {
                return Err(Status::COMMAND_SEQUENCE.with_dnr().into());
            }
            let granted = wanted.limited_to(controller.limits.io_queues);
            let usable = granted.submission.min(granted.completion);
            controller.with_features(|f| f.granted_queues = Some(usable));
            return Ok(Success::result(u64::from(granted.encode())));
        }
        FeatureId::WriteAtomicity => controller.with_features(|f| f.write_atomicity = value & 1),
        FeatureId::AsyncEventConfig => {
            // SMART warnings may be asked for, and never come.
            let known = AsyncEventConfig::SMART.union(supported_events(controller));
            if !known.contains(AsyncEventConfig(value)) {
                return Err(invalid);
            }
            controller.events.set_wanted(value);
        }
        FeatureId::KeepAliveTimer => controller.set_kato_ms(value),
        FeatureId::Timestamp => {
            command.check_data_room(TIMESTAMP_BYTES)?;
            let data = command.fetch(TIMESTAMP_BYTES).await?;
            let set_ms =
                u64::from_le_bytes([data[0], data[1], data[2], data[3], data[4], data[5], 0, 0]);
            let at = reactor::now();
            controller.with_features(|f| f.timestamp = Some((set_ms, at)));
        }
        FeatureId::HostBehavior => {
            command.check_data_room(HOST_BEHAVIOR_BYTES)?;
            let data = command.fetch(HOST_BEHAVIOR_BYTES).await?;
            let behavior = HostBehavior::decode(&data).ok_or(invalid)?;
            controller.with_features(|f| f.host_behavior = behavior);
        }
        // On fabrics the identifier comes with Connect, and only so.
        FeatureId::HostIdentifier => return Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        _ => return Err(Fault::field(Status::INVALID_FIELD, FID_AT)),
    }
    Ok(Success::default())
}
