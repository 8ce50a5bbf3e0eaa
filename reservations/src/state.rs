//! What a reservation is and how commands change it: a state machine without I/O.
//!
//! Guarantees:
//! - A command that is refused changes nothing.
//! - Only a reservation has a holder, and the holder is a registrant; a reservation ends when its last holder is
//!   unregistered.
//! - At most [`REGISTRANTS_MAX`] hosts are registered.
//! - Only registrants have names.
//!
//! The rules are those of Base 2.0, section 8.19. Where they leave room, the choice is that of Linux's
//! target (drivers/nvme/target/pr.c): a preempt of a key that nobody has is a conflict.

use std::collections::BTreeMap;

use nvme::reservation::{
    AcquireAction, CNTLID_ANY, KeyPair, RegisterAction, ReleaseAction, ReportedRegistrant,
    ReservationEvent, ReservationReport, ReservationType,
};
use nvme::{Nqn, Status};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Registrants of a namespace at most. Clusters of Linux hosts have tens, and the stored registrants stay far below the
/// bound of a setting.
pub const REGISTRANTS_MAX: usize = 256;

/// Bytes of all names of registrants together, at most, because a setting is bounded. Usual names have less than a third
/// of the longest length.
const NAMES_BYTES_MAX: usize = 32 << 10;

/// A host identifier (HOSTID), by which reservations know a host on every path and in every subsystem.
pub type HostId = Uuid;

/// How a command uses a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To see data.
    Read,
    /// To change data, or anything about the namespace. Flush belongs here too.
    Write,
}

/// Registrations and the reservation of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservations {
    /// GEN of a report.
    generation: u32,
    /// PTPL: all of this survives a loss of power.
    persist: bool,
    registrants: BTreeMap<HostId, u64>,
    /// The names of registrants that proved them, and so own their identifiers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    owners: BTreeMap<HostId, Nqn>,
    held: Option<Held>,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    /// RTYPE.
    #[serde(with = "kind")]
    kind: ReservationType,
    /// Its holder; `None` for the all registrants types, which all registrants hold.
    holder: Option<HostId>,
}

/// The type of a reservation as the number that it has on the wire.
mod kind {
    use super::{Deserialize, ReservationType};

    pub(super) fn serialize<S: serde::Serializer>(
        kind: &ReservationType,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(kind.as_u8())
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ReservationType, D::Error> {
        let value = u8::deserialize(deserializer)?;
        ReservationType::from_u8(value)
            .ok_or_else(|| serde::de::Error::custom(format!("reservation type {value}")))
    }
}

/// For people: without the keys.
impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let action = match self {
            Self::Register { action, .. } => format!("{action:?}"),
            Self::Acquire { action, kind, .. } => format!("{action:?}, {}", kind.name()),
            Self::Release { action, .. } => format!("{action:?}"),
        };
        f.write_str(&action.to_lowercase())
    }
}

/// A command that changes reservations, with its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reservation Register.
    Register {
        /// RREGA.
        action: RegisterAction,
        /// IEKEY.
        ignore_key: bool,
        /// CPTPL.
        persist: Option<bool>,
        /// CRKEY and NRKEY.
        keys: KeyPair,
    },
    /// Reservation Acquire.
    Acquire {
        /// RACQA.
        action: AcquireAction,
        /// RTYPE.
        kind: ReservationType,
        /// CRKEY and PRKEY.
        keys: KeyPair,
    },
    /// Reservation Release.
    Release {
        /// RRELA.
        action: ReleaseAction,
        /// RTYPE as on the wire.
        kind: u8,
        /// CRKEY.
        key: u64,
    },
}

/// Effects of a successful command on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Hosts to be notified, and the events.
    pub notify: Vec<(HostId, ReservationEvent)>,
    /// Hosts whose commands in this namespace are to be aborted before the command is answered.
    pub abort: Vec<HostId>,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const INVALID: Status = Status::INVALID_FIELD.with_dnr();

impl Reservations {
    /// Whether a command of this host may go on.
    #[must_use]
    pub fn admits(&self, host: &HostId, access: Access) -> bool {
        let Some(held) = &self.held else {
            return true;
        };
        if access == Access::Read && !held.kind.is_exclusive_access() {
            return true;
        }
        match held.kind.admits_registrants() {
            true => self.registrants.contains_key(host),
            false => held.holder == Some(*host),
        }
    }

    /// Whether there is a reservation: without one, every command of every host may go on.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// PTPL: whether this is to survive a loss of power.
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persist
    }

    /// Whether any host is registered.
    #[must_use]
    pub fn has_registrants(&self) -> bool {
        !self.registrants.is_empty()
    }

    /// Whether the parts are consistent. A stored state is checked before it is used.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let held = self.held.as_ref().is_none_or(|held| match held.holder {
            None => held.kind.is_all_registrants() && !self.registrants.is_empty(),
            Some(host) => !held.kind.is_all_registrants() && self.registrants.contains_key(&host),
        });
        held && self.registrants.len() <= REGISTRANTS_MAX
    }

    /// Reservation Report.
    #[must_use]
    pub fn report(&self) -> ReservationReport {
        let registrants = self.registrants.iter();
        ReservationReport {
            generation: self.generation,
            kind: self.held.map(|held| held.kind),
            persist: self.persist,
            registrants: registrants
                .map(|(host, key)| ReportedRegistrant {
                    cntlid: CNTLID_ANY,
                    is_holder: self.is_holder(host),
                    host: host.into_bytes(),
                    key: *key,
                })
                .collect(),
        }
    }

    /// Feature 83h: sets persistence through a loss of power.
    pub fn set_persist(&mut self, persist: bool) {
        self.persist = persist;
    }

    /// Removes everything, as Clear does, for the owner of the target. Returns the hosts to be notified.
    pub fn clear_by_owner(&mut self) -> Effects {
        let notify = self.others(None, ReservationEvent::ReservationPreempted);
        self.generation = self.generation.wrapping_add(1);
        self.registrants.clear();
        self.owners.clear();
        self.held = None;
        Effects {
            notify,
            abort: Vec::new(),
        }
    }

    /// The name that a registrant proved.
    #[must_use]
    pub fn owner(&self, host: &HostId) -> Option<&Nqn> {
        self.owners.get(host)
    }

    /// A host that is registered has proved that name.
    ///
    /// # Errors
    /// Internal Error: the names of all registrants are too long together.
    pub fn own(&mut self, host: HostId, name: &Nqn) -> Result<(), Status> {
        if !self.registrants.contains_key(&host) {
            return Ok(());
        }
        let others = self.owners.iter().filter(|(other, _)| **other != host);
        let bytes: usize = others.map(|(_, name)| name.as_str().len()).sum();
        if bytes + name.as_str().len() > NAMES_BYTES_MAX {
            return Err(Status::INTERNAL.with_dnr());
        }
        self.owners.insert(host, name.clone());
        Ok(())
    }

    /// Applies a command of a host.
    ///
    /// # Errors
    /// The status to answer with; then nothing has changed.
    pub fn apply(&mut self, host: HostId, request: Request) -> Result<Effects, Status> {
        let effects = self.execute(host, request)?;
        let registrants = &self.registrants;
        self.owners.retain(|host, _| registrants.contains_key(host));
        Ok(effects)
    }

    fn execute(&mut self, host: HostId, request: Request) -> Result<Effects, Status> {
        match request {
            Request::Register {
                action,
                ignore_key,
                persist,
                keys,
            } => {
                let effects = self.register(host, action, ignore_key, keys)?;
                self.persist = persist.unwrap_or(self.persist);
                self.generation = self.generation.wrapping_add(1);
                Ok(effects)
            }
            Request::Acquire { action, kind, keys } => {
                self.check_key(&host, keys.current)?;
                match action {
                    AcquireAction::Acquire => self.acquire(host, kind),
                    AcquireAction::Preempt => self.preempt(host, kind, keys.other, false),
                    AcquireAction::PreemptAndAbort => self.preempt(host, kind, keys.other, true),
                }
            }
            Request::Release { action, kind, key } => {
                self.check_key(&host, key)?;
                match action {
                    ReleaseAction::Release => self.release(host, kind),
                    ReleaseAction::Clear => {
                        let told = self.others(Some(host), ReservationEvent::ReservationPreempted);
                        let effects = self.clear_by_owner();
                        Ok(Effects {
                            notify: told,
                            ..effects
                        })
                    }
                }
            }
        }
    }

    fn register(
        &mut self,
        host: HostId,
        action: RegisterAction,
        ignore_key: bool,
        keys: KeyPair,
    ) -> Result<Effects, Status> {
        let present = self.registrants.get(&host).copied();
        let knows_key = ignore_key || present == Some(keys.current);
        match (action, present) {
            (RegisterAction::Register, Some(key)) if key != keys.other => Err(CONFLICT),
            (RegisterAction::Register, _) => self.add(host, keys.other),
            (RegisterAction::Replace, Some(_)) if knows_key => self.add(host, keys.other),
            (RegisterAction::Replace, None) if ignore_key => self.add(host, keys.other),
            (RegisterAction::Unregister, Some(_)) if knows_key => {
                self.registrants.remove(&host);
                Ok(self.after_unregistered())
            }
            (RegisterAction::Replace | RegisterAction::Unregister, _) => Err(CONFLICT),
        }
    }

    fn add(&mut self, host: HostId, key: u64) -> Result<Effects, Status> {
        let is_new = !self.registrants.contains_key(&host);
        if is_new && self.registrants.len() >= REGISTRANTS_MAX {
            return Err(Status::INTERNAL.with_dnr());
        }
        self.registrants.insert(host, key);
        Ok(Effects::default())
    }

    fn check_key(&self, host: &HostId, key: u64) -> Result<(), Status> {
        match self.registrants.get(host) {
            Some(registered) if *registered == key => Ok(()),
            _ => Err(CONFLICT),
        }
    }

    fn is_holder(&self, host: &HostId) -> bool {
        self.held.is_some_and(|held| match held.holder {
            Some(holder) => holder == *host,
            None => self.registrants.contains_key(host),
        })
    }

    fn acquire(&mut self, host: HostId, kind: ReservationType) -> Result<Effects, Status> {
        match self.held {
            None => self.hold(host, kind),
            // The holder may ask again for what it has.
            Some(held) if held.kind == kind && self.is_holder(&host) => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Effects::default())
    }

    fn hold(&mut self, host: HostId, kind: ReservationType) {
        let holder = (!kind.is_all_registrants()).then_some(host);
        self.held = Some(Held { kind, holder });
    }

    fn release(&mut self, host: HostId, kind: u8) -> Result<Effects, Status> {
        // Without a reservation, or one of somebody else, there is nothing to do, and that is no error.
        let Some(held) = self.held.filter(|_| self.is_holder(&host)) else {
            return Ok(Effects::default());
        };
        if held.kind.as_u8() != kind {
            return Err(INVALID);
        }
        self.held = None;
        let notify = match held.kind.admits_registrants() {
            true => self.others(Some(host), ReservationEvent::ReservationReleased),
            false => Vec::new(),
        };
        Ok(Effects {
            notify,
            abort: Vec::new(),
        })
    }

    fn preempt(
        &mut self,
        host: HostId,
        kind: ReservationType,
        key: u64,
        abort: bool,
    ) -> Result<Effects, Status> {
        let holder_key = self.held.and_then(|held| held.holder);
        let holder_key = holder_key.and_then(|holder| self.registrants.get(&holder).copied());
        let all_registrants = self.held.is_some_and(|held| held.kind.is_all_registrants());
        let everybody = all_registrants && key == 0;
        // The reservation is taken from its holder, or from all of them; otherwise registrations alone
        // are preempted.
        let takes = everybody || holder_key == Some(key);
        if key == 0 && !takes && self.held.is_some() {
            return Err(INVALID);
        }
        let preempted = |(registrant, registered): (&HostId, &u64)| {
            let meant = everybody || *registered == key;
            // The new holder stays registered, whatever its own key is.
            (meant && !(takes && *registrant == host)).then_some(*registrant)
        };
        let gone: Vec<HostId> = self.registrants.iter().filter_map(preempted).collect();
        if gone.is_empty() && !takes {
            return Err(CONFLICT);
        }
        let former = self.held;
        for registrant in &gone {
            self.registrants.remove(registrant);
        }
        let mut effects = Effects::default();
        if takes {
            self.hold(host, kind);
            let changed = former.is_some_and(|held| held.kind != kind);
            if changed && former.is_some_and(|held| held.kind.admits_registrants()) {
                effects.notify = self.others(Some(host), ReservationEvent::ReservationReleased);
            }
        } else {
            effects = self.after_unregistered();
        }
        let others = || {
            gone.iter()
                .copied()
                .filter(|registrant| *registrant != host)
        };
        let told = others().map(|other| (other, ReservationEvent::RegistrationPreempted));
        effects.notify.extend(told);
        if abort {
            effects.abort = others().collect();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// Registrants were removed: the reservation ends with its holder, or with the last registrant.
    fn after_unregistered(&mut self) -> Effects {
        let Some(held) = self.held else {
            return Effects::default();
        };
        let stays = match held.holder {
            Some(holder) => self.registrants.contains_key(&holder),
            None => !self.registrants.is_empty(),
        };
        if stays {
            return Effects::default();
        }
        self.held = None;
        let notify = match held.kind.admits_registrants() {
            true => self.others(None, ReservationEvent::ReservationReleased),
            false => Vec::new(),
        };
        Effects {
            notify,
            abort: Vec::new(),
        }
    }

    /// All registrants but that one, with the event that they are told of.
    fn others(
        &self,
        but: Option<HostId>,
        event: ReservationEvent,
    ) -> Vec<(HostId, ReservationEvent)> {
        let hosts = self.registrants.keys().copied();
        let others = hosts.filter(|host| Some(*host) != but);
        others.map(|host| (host, event)).collect()
    }
}
