//! Fencing: when what is in doubt cannot happen any more, and that no other host writes to the drive.
//!
//! A command without an answer may be under way in the target, or in the network. A new association says nothing about
//! that: the old controller may still work. Two things do:
//!
//! - *A reservation* (NVMe Base 2.0, section 8.19). Each opening and each fence has a Host Identifier and a reservation key of its
//!   own. The new host registers, and takes the reservation of the old one by Preempt and Abort: the target aborts
//!   the commands of the host that loses its registration, and refuses its later ones (Reservation Conflict), before it
//!   completes the Acquire. So it is over at once.
//! - *Time*. The target ends an association whose host is silent for the Keep Alive Timeout, and quiesces its commands in the
//!   Command Quiesce Time: [`Facts::settled_after`](crate::facts::Facts::settled_after) of the last loss, nothing of it
//!   happens. So does a target that lost the registration because it started again.
//!
//! A key is 32 bits of the owner (the pool) and 32 random bits, and half of a Host Identifier names the machine: who finds a
//! reservation knows whether it is of an earlier opening by the same owner on this machine, which is fenced, of one on another
//! machine, which may live, or of somebody else, who is left alone.
//!
//! An opening that was shut out has no registration any more, and who did that has one, also when it has left in order. So an
//! opening that was cut off meanwhile finds out whenever it comes back, as long as the target keeps registrations. One that is not cut off,
//! and stood still, does so before its association ends: until then who shut it out does not give the reservation up.
//!
//! Guarantees: a fence that succeeded settled all that was in doubt when it began; while it is under way no reactor
//! writes by an old association; a reservation that another owner or another opening took is never taken back silently.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};
use initiator::{Error, Namespace};
use nvme::Status;
use nvme::reservation::{
    AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReportedRegistrant, ReservationReport,
    ReservationType,
};
use uuid::Uuid;

use crate::Claim;
use crate::connect::Live;
use crate::link;
use crate::shared::{Shared, is_of_machine, new_host_id};

const KIND: ReservationType = ReservationType::WriteExclusive;

/// Keys of an opening that are remembered: one that it has, and those of fences that failed since.
const OWN_KEYS_MAX: usize = 64;

/// The half of a key that names the owner.
fn owner_half(owner: Uuid) -> u64 {
    let (high, low) = owner.as_u64_pair();
    let mixed = high ^ low.rotate_left(23);
    (mixed ^ mixed << 32) & 0xffff_ffff_0000_0000
}

fn is_owners(key: u64, owner: Uuid) -> bool {
    key & 0xffff_ffff_0000_0000 == owner_half(owner)
}

/// A key of this owner that no earlier opening had, and not 0, which is no key.
fn new_key(owner: Uuid) -> u64 {
    let (random, _) = Uuid::new_v4().as_u64_pair();
    owner_half(owner) | random >> 32 | 1
}

/// Whose registrations are removed by who takes a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preempts {
    /// Those of this opening alone.
    Own,
    /// Those of the owner, but for a reservation that it holds on another machine.
    OfMachine,
    /// All of the owner.
    OfOwner,
    /// All.
    All,
}

/// Whether a command met another host's reservation.
pub(crate) fn is_conflict(error: &Error) -> bool {
    error.status().map(Status::code) == Some(Status::RESERVATION_CONFLICT)
}

/// A namespace, as far as a fence changes it.
pub(crate) trait Reserves {
    async fn report(&self) -> Result<ReservationReport, Error>;

    /// Registers a key, where the host has none.
    async fn register(&self, persist: Option<bool>, key: u64) -> Result<(), Error>;

    /// Takes the reservation, or removes registrations.
    async fn acquire(&self, action: AcquireAction, keys: KeyPair) -> Result<(), Error>;
}

impl Reserves for Namespace {
    async fn report(&self) -> Result<ReservationReport, Error> {
        self.reservation_report().await
    }

    async fn register(&self, persist: Option<bool>, key: u64) -> Result<(), Error> {
        let keys = KeyPair {
            current: 0,
            other: key,
        };
        self.register(RegisterAction::Register, false, persist, keys)
            .await
    }

    async fn acquire(&self, action: AcquireAction, keys: KeyPair) -> Result<(), Error> {
        self.acquire(action, KIND, keys).await
    }
}

/// What a reservation that was taken proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The target aborted all that the earlier registrants had under way.
    Fenced,
    /// Nobody was registered.
    First,
}

impl Shared {
    /// See [`RemoteDrive::claim`](crate::RemoteDrive::claim).
    pub(crate) async fn claim(
        self: &Arc<Self>,
        owner: Uuid,
        claim: Claim,
    ) -> Result<(), DriveError> {
        let _turn = self.claiming.lock().await;
        let (mut key, mut taken) = (0, Taken::First);
        if self.facts().has_reservations {
            let live = link::of(self)?.live_once(self).await?;
            (key, taken) = self.take_for(&live.namespace, owner, claim).await?;
        }
        if matches!(claim, Claim::Again | Claim::Moved) && taken == Taken::First {
            let settled = self.facts().settled_after(self.limits.keep_alive);
            self.wait_until(self.process_began() + settled).await;
        }
        self.claimed(owner, key);
        Ok(())
    }

    /// Takes the reservation by a new key, which is returned.
    pub(crate) async fn take_for(
        &self,
        namespace: &impl Reserves,
        owner: Uuid,
        claim: Claim,
    ) -> Result<(u64, Taken), DriveError> {
        let key = new_key(owner);
        let preempts = match claim {
            Claim::First | Claim::Again => Preempts::OfMachine,
            Claim::Moved => Preempts::OfOwner,
            Claim::Forced => Preempts::All,
        };
        let taken = self.take(namespace, owner, key, preempts).await?;
        Ok((key, taken))
    }

    /// The namespace is the owner's, by this key.
    pub(crate) fn claimed(&self, owner: Uuid, key: u64) {
        self.set_key(key);
        self.state().owner = Some(owner);
    }

    /// See [`RemoteDrive::holder_elsewhere`](crate::RemoteDrive::holder_elsewhere).
    pub(crate) async fn holder_elsewhere(self: &Arc<Self>) -> Result<Option<Uuid>, DriveError> {
        if !self.facts().has_reservations {
            return Ok(None);
        }
        let live = link::of(self)?.live_once(self).await?;
        let report = live.namespace.reservation_report().await;
        let report = report.map_err(|error| self.error(ErrorKind::Io, error.to_string()))?;
        let mut registrants = report.registrants.iter();
        let elsewhere =
            registrants.find(|one| one.is_holder && !is_of_machine(&one.host, &self.host));
        Ok(elsewhere.map(|one| Uuid::from_bytes(one.host)))
    }

    /// Whether it is time to look if another opening has taken the namespace: an owner that only reads, or does nothing, would not hear of
    /// it. All reactors that use the drive ask, and one of them is told to.
    pub(crate) fn may_look(&self) -> bool {
        let mut state = self.state();
        let now = reactor::now();
        let pause = self.limits.look;
        let is_time = |at: Instant| now.saturating_duration_since(at) > pause - pause / 4;
        let may = state.key != 0 && state.looked_at.is_none_or(is_time);
        if may {
            state.looked_at = Some(now);
        }
        may
    }

    /// Proves that what was in doubt when this began cannot happen any more.
    pub(crate) async fn fence(self: &Arc<Self>) -> Result<(), DriveError> {
        let _turn = self.claiming.lock().await;
        let (owner, lost_at) = {
            let state = self.state();
            (state.owner, state.lost_at)
        };
        let Some(lost_at) = lost_at else {
            return Ok(());
        };
        let settled = self.facts().settled_after(self.limits.keep_alive);
        if let Some(owner) = owner.filter(|_| self.facts().has_reservations) {
            self.replace_host_id(new_host_id(&self.host));
            let live = link::of(self)?.live_once(self).await?;
            let taken = self.take_again(&live.namespace, owner).await?;
            if taken == Taken::First {
                self.wait_until(lost_at + settled).await;
            }
        } else {
            self.wait_until(lost_at + settled).await;
        }
        let mut state = self.state();
        if state.lost_at == Some(lost_at) {
            state.lost_at = None;
            self.reservation.keep(false);
        }
        Ok(())
    }

    /// No association of an earlier Host Identifier is used any more.
    pub(crate) fn replace_host_id(&self, next: [u8; 16]) {
        let mut state = self.state();
        state.host_id = next;
        state.generation += 1;
    }

    /// Takes the reservation from the Host Identifiers that this opening had before.
    pub(crate) async fn take_again(
        &self,
        namespace: &impl Reserves,
        owner: Uuid,
    ) -> Result<Taken, DriveError> {
        let key = self.own_key(owner);
        let taken = self.take(namespace, owner, key, Preempts::Own).await?;
        self.set_key(key);
        Ok(taken)
    }

    fn set_key(&self, key: u64) {
        let mut state = self.state();
        state.key = key;
        state.own_keys = vec![key];
        self.reservation.set(key, state.generation);
    }

    /// A new key of this opening.
    fn own_key(&self, owner: Uuid) -> u64 {
        let key = new_key(owner);
        let mut state = self.state();
        if state.own_keys.len() == OWN_KEYS_MAX {
            // The one that holds the reservation is the first.
            state.own_keys.remove(1);
        }
        state.own_keys.push(key);
        key
    }

    fn is_own(&self, key: u64) -> bool {
        self.state().own_keys.contains(&key)
    }

    async fn wait_until(&self, deadline: std::time::Instant) {
        let left = deadline.saturating_duration_since(reactor::now());
        if left > Duration::ZERO {
            tracing::info!(
                drive = self.name,
                ?left,
                "waiting until no earlier command can happen any more on the drive"
            );
            reactor::sleep_until(deadline).await;
        }
    }

    /// Makes sure that a new association may write: a target that started again may have forgotten the reservation.
    ///
    /// # Errors
    /// Somebody else has it.
    pub(crate) async fn renew(self: &Arc<Self>, live: &Live) -> Result<(), DriveError> {
        if !self.facts().has_reservations || self.state().owner.is_none() {
            return Ok(());
        }
        let _turn = self.claiming.lock().await;
        let (owner, generation) = {
            let state = self.state();
            (state.owner, state.generation)
        };
        match owner.filter(|_| live.is_usable(generation)) {
            Some(owner) => self.hold_again(&live.namespace, owner).await,
            None => Ok(()),
        }
    }

    /// Takes the reservation if this opening does not hold it.
    pub(crate) async fn hold_again(
        &self,
        namespace: &impl Reserves,
        owner: Uuid,
    ) -> Result<(), DriveError> {
        let (key, host_id) = {
            let state = self.state();
            (state.key, state.host_id)
        };
        let refused = |error: Error| self.unreserved(&error);
        let report = namespace.report().await.map_err(refused)?;
        let mut holders = report.registrants.iter().filter(|one| one.is_holder);
        let holds = |one: &ReportedRegistrant| one.key == key && one.host == host_id;
        if holders.any(holds) {
            return Ok(());
        }
        // Nobody has it, or another one, or a Host Identifier of this opening that a fence replaced without success.
        let mut registrants = report.registrants.iter();
        let registered = registrants.find(|one| one.host == host_id);
        let key = registered.map_or_else(|| self.own_key(owner), |one| one.key);
        self.take(namespace, owner, key, Preempts::Own).await?;
        self.set_key(key);
        Ok(())
    }

    /// The error of a command that met another host's reservation, if that host is the owner's next opening.
    pub(crate) async fn conflict(&self, namespace: &impl Reserves) -> Option<DriveError> {
        let owner = self.state().owner?;
        let report = namespace.report().await.ok()?;
        let other = self.successor(owner, &report)?;
        Some(self.taken_over(owner, other))
    }

    /// The opening by the same owner that shut this one out: it is registered, and this one is not.
    fn successor<'a>(
        &self,
        owner: Uuid,
        report: &'a ReservationReport,
    ) -> Option<&'a ReportedRegistrant> {
        if report.registrants.iter().any(|one| self.is_own(one.key)) {
            return None;
        }
        let mut registrants = report.registrants.iter();
        registrants.find(|one| is_owners(one.key, owner))
    }

    /// Registers the key, preempts others, and holds the reservation.
    async fn take(
        &self,
        namespace: &impl Reserves,
        owner: Uuid,
        key: u64,
        preempts: Preempts,
    ) -> Result<Taken, DriveError> {
        let refused = |error: Error| self.unreserved(&error);
        let report = namespace.report().await.map_err(refused)?;
        let (mine, others): (Vec<&ReportedRegistrant>, Vec<&ReportedRegistrant>) =
            report.registrants.iter().partition(|one| one.key == key);
        let is_foreign = |one: &ReportedRegistrant| match preempts {
            Preempts::Own => !self.is_own(one.key),
            Preempts::OfMachine => {
                let may_live = one.is_holder && !is_of_machine(&one.host, &self.host);
                may_live || !is_owners(one.key, owner)
            }
            Preempts::OfOwner => !is_owners(one.key, owner),
            Preempts::All => false,
        };
        if let Some(other) = others.iter().find(|one| one.is_holder && is_foreign(one)) {
            return Err(self.taken_over(owner, other));
        }
        if preempts == Preempts::Own
            && let Some(other) = self.successor(owner, &report)
        {
            return Err(self.taken_over(owner, other));
        }
        if mine.is_empty() {
            let register = namespace.register(self.facts().persists, key);
            register.await.map_err(refused)?;
        }
        let acquire = |action, preempted| {
            let keys = KeyPair {
                current: key,
                other: preempted,
            };
            namespace.acquire(action, keys)
        };
        // The holder first: who takes its reservation may remove other registrations then.
        let mut preempted: Vec<_> = others.into_iter().filter(|one| !is_foreign(one)).collect();
        preempted.sort_by_key(|one| !one.is_holder);
        let is_held = mine.iter().any(|one| one.is_holder)
            || preempted.first().is_some_and(|one| one.is_holder);
        if !is_held {
            acquire(AcquireAction::Acquire, 0).await.map_err(refused)?;
        }
        for one in &preempted {
            let preempt = acquire(AcquireAction::PreemptAndAbort, one.key).await;
            // Several hosts may have had the same key: then the first preempt removed all of them.
            match preempt {
                Err(error) if is_conflict(&error) && !one.is_holder => {}
                ended => ended.map_err(refused)?,
            }
        }
        // Who is registered alone has left in order, and has nothing under way.
        let is_shut_out =
            |one: &&ReportedRegistrant| one.is_holder && !is_of_machine(&one.host, &self.host);
        if preempted.iter().any(is_shut_out) {
            let settled = self.facts().settled_after(self.limits.keep_alive);
            self.reservation.keep_until(Instant::now() + settled);
        }
        // A holder that gave the reservation up since the report had a registration left, and nobody has the reservation now.
        if preempted.first().is_some_and(|one| one.is_holder) {
            acquire(AcquireAction::Acquire, 0).await.map_err(refused)?;
        }
        Ok(match preempted.is_empty() {
            true => Taken::First,
            false => Taken::Fenced,
        })
    }

    /// Another one has the namespace, and not this opening by `owner`.
    fn taken_over(&self, owner: Uuid, other: &ReportedRegistrant) -> DriveError {
        let is_owners = is_owners(other.key, owner);
        if is_owners && self.state().owner.is_some() {
            self.lose();
        }
        let host = Uuid::from_bytes(other.host);
        let text = match is_owners {
            true => format!(
                "the pool has the namespace open on another machine (host {host}): stop it there; if that machine is gone for \
                 good, take the pool over: `onefold pool import --force`; if a node serves the pool now without this drive, it takes \
                 it by `onefold drive online`"
            ),
            false => format!(
                "another host has a reservation on the namespace (host {host}, key {:#x}): end what uses it there, or clear the \
                 reservation (`nvme resv-release --rrela=1`) if nothing does",
                other.key
            ),
        };
        self.error(ErrorKind::InUse, text)
    }

    fn unreserved(&self, error: &Error) -> DriveError {
        self.error(
            ErrorKind::Io,
            format!("the namespace cannot be reserved: {error}"),
        )
    }
}

/// Gives the reservation up, so that another owner can have the namespace. Best effort. The registration stays: by it the
/// next opening by the same owner proves that this one is over.
pub(crate) async fn release(namespace: &Namespace, key: u64) {
    let _ = namespace.release(ReleaseAction::Release, KIND, key).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_its_owner_and_is_new_each_time() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2 << 64));
        let keys = [new_key(one), new_key(one)];
        assert_ne!(keys[0], keys[1]);
        for key in keys {
            assert_ne!(key, 0);
            assert!(is_owners(key, one) && !is_owners(key, other));
        }
    }
}
