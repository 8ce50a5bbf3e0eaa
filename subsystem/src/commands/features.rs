//! Get Features and Set Features.
//!
//! Guarantees: a feature that this target does not have is refused, so that a host never believes that it was set; a
//! value to be saved is durable before the answer, and every later controller of the same host in the same subsystem
//! starts with it, also after restarts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvme::Status;
use nvme::admin::{GetFeatures, SetFeatures};
use nvme::features::{
    AsyncEventConfig, FeatureId, HOST_BEHAVIOR_BYTES, HostBehavior, NumberOfQueues, Select,
    TIMESTAMP_BYTES, Timestamp,
};
use nvme::identify::NSID_BROADCAST;
use nvme::log::FeatureEffects;

use crate::commands::{reservation_features, write_protect};
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::controller::Controller;
use crate::controller::features::FeatureState;
use crate::controller::saved_features::{self, SaveError};
use crate::queue::Queue;

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const FID_AT: u16 = 40;
const SELECT_AT: u16 = 41;
const DWORD_11_AT: u16 = 44;

/// 10Fh, Feature Not Namespace Specific (Base 2.0, figure 97).
const FEATURE_NOT_NAMESPACE_SPECIFIC: Status = Status::from_bits(0x10f);

/// Bytes of the extended host identifier.
const HOST_ID_BYTES: usize = 16;

/// A feature: which controllers have it, and what can be done with it.
struct Row {
    id: FeatureId,
    /// Discovery controllers have it too.
    discovery: bool,
    changeable: bool,
    kept: Kept,
    scope: Scope,
}

/// Whether a value outlives its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Never,
    /// When the host asks for it (SV).
    Saveable,
    /// Every value that is set.
    Always,
}

/// What has a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Controller,
    Namespace,
}

const fn row(id: FeatureId, kept: Kept) -> Row {
    Row {
        id,
        discovery: false,
        changeable: true,
        kept,
        scope: Scope::Controller,
    }
}

/// All features. What is listed here is announced, and answers every Select.
const FEATURES: &[Row] = &[
    row(FeatureId::Arbitration, Kept::Saveable),
    Row {
        // There is one power state.
        changeable: false,
        ..row(FeatureId::PowerManagement, Kept::Never)
    },
    row(FeatureId::TemperatureThreshold, Kept::Saveable),
    row(FeatureId::ErrorRecovery, Kept::Saveable),
    row(FeatureId::VolatileWriteCache, Kept::Saveable),
    row(FeatureId::NumberOfQueues, Kept::Never),
    row(FeatureId::WriteAtomicity, Kept::Saveable),
    Row {
        discovery: true,
        ..row(FeatureId::AsyncEventConfig, Kept::Saveable)
    },
    row(FeatureId::Timestamp, Kept::Never),
    Row {
        discovery: true,
        ..row(FeatureId::KeepAliveTimer, Kept::Never)
    },
    row(FeatureId::HostBehavior, Kept::Never),
    row(FeatureId::CommandSetProfile, Kept::Never),
    row(FeatureId::SoftwareProgress, Kept::Always),
    Row {
        // It is set by Connect, and only there.
        changeable: false,
        ..row(FeatureId::HostIdentifier, Kept::Never)
    },
    Row {
        scope: Scope::Namespace,
        ..row(FeatureId::ReservationNotificationMask, Kept::Never)
    },
    Row {
        scope: Scope::Namespace,
        ..row(FeatureId::ReservationPersistence, Kept::Never)
    },
    Row {
        scope: Scope::Namespace,
        ..row(FeatureId::NamespaceWriteProtection, Kept::Never)
    },
];

impl Row {
    /// The feature, if this kind of controller has it.
    fn of(controller: &Controller, fid: u8) -> Result<&'static Self, Fault> {
        let row = FEATURES.iter().find(|row| row.id.as_u8() == fid);
        row.filter(|row| row.discovery || !controller.is_discovery())
            .ok_or(Fault::field(Status::INVALID_FIELD, FID_AT))
    }

    /// Whether a host may save the value. Discovery controllers save nothing: every host gets one.
    fn is_saveable(&self, controller: &Controller) -> bool {
        self.kept != Kept::Never && !controller.is_discovery()
    }

    /// The capabilities of the feature (Select 3).
    fn capabilities(&self, controller: &Controller) -> u32 {
        let mut capabilities = 0;
        if self.changeable {
            capabilities |= Select::CHANGEABLE;
        }
        if self.scope == Scope::Namespace {
            capabilities |= Select::NAMESPACE_SPECIFIC;
        }
        if self.is_saveable(controller) {
            capabilities |= Select::SAVEABLE;
        }
        capabilities
    }
}

/// The Feature Identifiers Supported and Effects log page.
pub(crate) fn effects_page() -> FeatureEffects {
    let mut effects = FeatureEffects::default();
    for row in FEATURES {
        let scope = match row.scope {
            Scope::Controller => FeatureEffects::CONTROLLER_SCOPE,
            Scope::Namespace => FeatureEffects::NAMESPACE_SCOPE,
        };
        effects.0[usize::from(row.id.as_u8())] = FeatureEffects::SUPPORTED | scope;
    }
    effects
}

/// The events that a controller of that kind can report.
pub(crate) fn supported_events(controller: &Controller) -> AsyncEventConfig {
    match controller.is_discovery() {
        true => AsyncEventConfig::DISCOVERY_CHANGE,
        false => AsyncEventConfig::NAMESPACE_ATTRIBUTE
            .union(AsyncEventConfig::ANA_CHANGE)
            .union(AsyncEventConfig::CROSS_CONTROLLER_RESET),
    }
}

/// Runs Get Features.
pub(crate) async fn get<Q: Queue>(command: &Command<Q>, get: GetFeatures) -> Outcome {
    let controller = &command.queue.controller;
    let row = Row::of(controller, get.fid)?;
    let select =
        Select::from_u8(get.select).ok_or(Fault::field(Status::INVALID_FIELD, SELECT_AT))?;
    let now = controller.with_features(|features| features.clone());
    let state = match select {
        Select::Supported => {
            let capabilities = row.capabilities(controller);
            return Ok(Success::result(u64::from(capabilities)));
        }
        Select::Current => now,
        Select::Saved => now.reset(),
        Select::Default => FeatureState::default(),
    };
    let current = select == Select::Current;
    let value = match row.id {
        FeatureId::PowerManagement => 0,
        FeatureId::TemperatureThreshold => temperature_threshold(&state, get.cdw11)?,
        FeatureId::NumberOfQueues => {
            let count = state.io_queues(&controller.limits);
            NumberOfQueues {
                submission: count,
                completion: count,
            }
            .encode()
        }
        FeatureId::AsyncEventConfig if current => controller.events.wanted(),
        FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence => match current
        {
            true => reservation_features::get(command, row.id, get.nsid)?,
            false => 0,
        },
        FeatureId::NamespaceWriteProtection => write_protect::get(command, get, select)?,
        FeatureId::KeepAliveTimer if current => controller.kato_ms(),
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
        id => state.current.of(id),
    };
    Ok(Success::result(u64::from(value)))
}

/// The threshold of the composite temperature; there are no sensors, and no lower threshold.
fn temperature_threshold(state: &FeatureState, dword_11: u32) -> Result<u32, Fault> {
    let (sensor, kind) = (dword_11 >> 16 & 0xf, dword_11 >> 20 & 3);
    match (sensor, kind) {
        (0, 0) => Ok(state.current.of(FeatureId::TemperatureThreshold)),
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
    let controller = &command.queue.controller;
    let row = Row::of(controller, set.fid)?;
    if set.save && !row.is_saveable(controller) {
        return Err(Fault::field(Status::FEATURE_NOT_SAVEABLE, FID_AT));
    }
    match row.id {
        FeatureId::ReservationNotificationMask | FeatureId::ReservationPersistence => {
            return reservation_features::set(command, row.id, set.nsid, set.dwords[0]).await;
        }
        FeatureId::NamespaceWriteProtection => return write_protect::set(command, set).await,
        _ => {}
    }
    if !matches!(set.nsid, 0 | NSID_BROADCAST) {
        return Err(Fault::field(FEATURE_NOT_NAMESPACE_SPECIFIC, NSID_AT));
    }
    let value = set.dwords[0];
    let invalid = Fault::field(Status::INVALID_FIELD, DWORD_11_AT);
    // The value to store: every arm without a return yields one dword.
    let value = match row.id {
        FeatureId::Arbitration => value,
        FeatureId::PowerManagement if value & 0x1f == 0 => return Ok(Success::default()),
        FeatureId::PowerManagement => return Err(invalid),
        FeatureId::TemperatureThreshold => match (value >> 16 & 0xf, value >> 20 & 3) {
            (0 | 0xf, 0) => value & 0xffff,
            // There is no lower threshold to be kept.
            (0 | 0xf, 1) => return Ok(Success::default()),
            _ => return Err(invalid),
        },
        // Bit 16, DULBE: no namespace reports deallocated blocks as errors.
        FeatureId::ErrorRecovery if value & 1 << 16 != 0 => return Err(invalid),
        FeatureId::ErrorRecovery => value,
        FeatureId::VolatileWriteCache => {
            if value & 1 == 0 {
                // Writes that were acknowledged before must not be less durable than later ones.
                if let Ok(engine) = command.queue.target.engine() {
                    engine.flush().await?;
                }
            }
            value & 1
        }
        FeatureId::NumberOfQueues => {
            let wanted = NumberOfQueues::decode(value).ok_or(invalid)?;
            if controller.io_queue_count() > 0 {
                return Err(Status::COMMAND_SEQUENCE.with_dnr().into());
            }
            let limits = &controller.limits;
            let granted = wanted.limited_to(limits.io_queues);
            if let (Some(descriptors), true) = (limits.descriptors, granted != wanted) {
                crate::limits::tell_of_fewer_queues(descriptors, limits.io_queues);
            }
            let usable = granted.submission.min(granted.completion);
            controller.with_features(|f| f.granted_queues = Some(usable));
            return Ok(Success::result(u64::from(granted.encode())));
        }
        FeatureId::WriteAtomicity => value & 1,
        FeatureId::AsyncEventConfig => {
            let known = AsyncEventConfig::SMART.union(supported_events(controller));
            if !known.contains(AsyncEventConfig(value)) {
                return Err(invalid);
            }
            value
        }
        FeatureId::KeepAliveTimer => {
            controller.set_kato_ms(value);
            return Ok(Success::default());
        }
        FeatureId::Timestamp => {
            command.check_data_room(TIMESTAMP_BYTES)?;
            let data = command.fetch(TIMESTAMP_BYTES).await?;
            let set_ms =
                u64::from_le_bytes([data[0], data[1], data[2], data[3], data[4], data[5], 0, 0]);
            let at = reactor::now();
            controller.with_features(|f| f.timestamp = Some((set_ms, at)));
            return Ok(Success::default());
        }
        FeatureId::HostBehavior => {
            command.check_data_room(HOST_BEHAVIOR_BYTES)?;
            let data = command.fetch(HOST_BEHAVIOR_BYTES).await?;
            let behavior = HostBehavior::decode(&data).ok_or(invalid)?;
            controller.with_features(|f| f.host_behavior = behavior);
            return Ok(Success::default());
        }
        // Identify 1Ch lists one combination of command sets, the first one.
        FeatureId::CommandSetProfile if value & 0x1ff == 0 => return Ok(Success::default()),
        FeatureId::CommandSetProfile => {
            return Err(Fault::field(
                Status::COMMAND_SET_COMBINATION_REJECTED,
                DWORD_11_AT,
            ));
        }
        FeatureId::SoftwareProgress => value & 0xff,
        FeatureId::HostIdentifier => return Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        _ => return Err(Fault::field(Status::INVALID_FIELD, FID_AT)),
    };
    if set.save || row.kept == Kept::Always {
        save(command, row.id, value).await?;
    }
    controller.with_features(|f| f.current.set(row.id, value));
    if row.id == FeatureId::AsyncEventConfig {
        controller.events.set_wanted(value);
        if !controller.is_discovery() {
            // A host that asks for events is told of present warnings.
            let warnings = command.queue.target.warnings();
            for kind in warnings.events() {
                controller.events.raise(kind);
            }
        }
    }
    Ok(Success::default())
}

/// Saves a value of the command's host.
async fn save<Q: Queue>(command: &Command<Q>, id: FeatureId, value: u32) -> Result<(), Fault> {
    let (target, controller) = (&command.queue.target, &command.queue.controller);
    let _turn = target.saving_features.lock().await;
    let who = (&controller.subsystem.nqn, &controller.host.nqn);
    let saved = saved_features::save(target.engine()?, who, id, value).await;
    let saved = saved.map_err(|error| match error {
        SaveError::TooManyHosts => {
            fabric::log_of_peer!(
                warn,
                "features not saved",
                controller.peer.ip(),
                host = %controller.host.nqn,
                "no more than {} hosts can have features saved",
                saved_features::HOSTS_MAX
            );
            Status::FEATURE_NOT_SAVEABLE.with_dnr().into()
        }
        SaveError::Engine(error) => Fault::from(error),
    })?;
    controller.with_features(|features| features.saved = saved);
    Ok(())
}
