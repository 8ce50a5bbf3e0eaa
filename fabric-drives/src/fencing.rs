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
//! A key is 32 bits of the owner (the pool) and 32 random bits: who finds a reservation knows whether it is of an earlier
//! opening by the same owner, which is fenced, or of somebody else, who is left alone.
//!
//! Guarantees: a fence that succeeded settled all that was in doubt when it began; while it is under way no reactor
//! writes by an old association; a reservation that another owner or another opening took is never taken back silently.

use std::sync::Arc;
use std::time::Duration;

use drives::{DriveError, ErrorKind};
use initiator::{Error, Namespace};
use nvme::Status;
use nvme::reservation::{
    AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReportedRegistrant, ReservationType,
};
use uuid::Uuid;

use crate::Claim;
use crate::connect::Live;
use crate::link;
use crate::shared::{Shared, random_id};

const KIND: ReservationType = ReservationType::WriteExclusive;

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

/// What a reservation that was taken proves.
enum Taken {
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
        let mut is_fenced = false;
        let mut key = 0;
        if self.facts().has_reservations {
            key = new_key(owner);
            let link = link::of(self)?;
            let live = link.live_once(self).await?;
            let taken = self
                .take(&live.namespace, owner, key, claim == Claim::Forced)
                .await?;
            is_fenced = matches!(taken, Taken::Fenced);
        }
        if claim == Claim::Again && !is_fenced {
            let settled = self.facts().settled_after(self.limits.keep_alive);
            self.wait_until(self.process_began() + settled).await;
        }
        self.set_key(key);
        self.state().owner = Some(owner);
        Ok(())
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
            let key = new_key(owner);
            {
                let mut state = self.state();
                state.host_id = random_id();
                state.generation += 1;
            }
            let link = link::of(self)?;
            let live = link.live_once(self).await?;
            let taken = self.take(&live.namespace, owner, key, false).await?;
            self.set_key(key);
            if let Taken::First = taken {
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

    fn set_key(&self, key: u64) {
        let mut state = self.state();
        state.key = key;
        self.reservation.set(key, state.generation);
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
        let (owner, key, host_id, generation) = {
            let state = self.state();
            (state.owner, state.key, state.host_id, state.generation)
        };
        let Some(owner) = owner.filter(|_| live.is_usable(generation)) else {
            return Ok(());
        };
        let refused = |error: Error| self.unreserved(&error);
        let report = live.namespace.reservation_report().await.map_err(refused)?;
        let holder = report.registrants.iter().find(|one| one.is_holder);
        match holder {
            Some(holder) if holder.key == key && holder.host == host_id => return Ok(()),
            // Another opening of the same pool preempted this one: that one writes from now on.
            Some(holder) if holder.key != key => return Err(self.taken_over(holder)),
            // Nobody has it, or a Host Identifier of this opening that a fence replaced without success.
            _ => {}
        }
        let mut registrants = report.registrants.iter();
        let registered = registrants.find(|one| one.host == host_id);
        let key = registered.map_or_else(|| new_key(owner), |one| one.key);
        self.take(&live.namespace, owner, key, false).await?;
        self.set_key(key);
        Ok(())
    }

    /// Registers the key, preempts all other keys of the owner (of anybody, if forced), and holds the reservation.
    async fn take(
        &self,
        namespace: &Namespace,
        owner: Uuid,
        key: u64,
        is_forced: bool,
    ) -> Result<Taken, DriveError> {
        let refused = |error: Error| self.unreserved(&error);
        let report = namespace.reservation_report().await.map_err(refused)?;
        let (mine, others): (Vec<&ReportedRegistrant>, Vec<&ReportedRegistrant>) =
            report.registrants.iter().partition(|one| one.key == key);
        let is_foreign = |one: &ReportedRegistrant| !is_forced && !is_owners(one.key, owner);
        if let Some(other) = others.iter().find(|one| one.is_holder && is_foreign(one)) {
            return Err(self.taken_over(other));
        }
        if mine.is_empty() {
            let keys = KeyPair {
                current: 0,
                other: key,
            };
            let register =
                namespace.register(RegisterAction::Register, false, self.facts().persists, keys);
            register.await.map_err(refused)?;
        }
        let acquire = |action, preempted| {
            let keys = KeyPair {
                current: key,
                other: preempted,
            };
            namespace.acquire(action, KIND, keys)
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
            let is_gone = |error: &Error| {
                error.status().map(Status::code) == Some(Status::RESERVATION_CONFLICT)
            };
            match preempt {
                Err(error) if is_gone(&error) && !one.is_holder => {}
                ended => ended.map_err(refused)?,
            }
        }
        Ok(match preempted.is_empty() {
            true => Taken::First,
            false => Taken::Fenced,
        })
    }

    fn taken_over(&self, other: &ReportedRegistrant) -> DriveError {
        let text = format!(
            "another host has a reservation on the namespace (host {}, key {:#x}): end what uses it there, or clear the \
             reservation (`nvme resv-release --rrela=1`) if nothing does",
            Uuid::from_bytes(other.host),
            other.key
        );
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
