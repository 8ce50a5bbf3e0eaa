//! Policies of volumes, which change between and during writes.
//!
//! After a crash a volume has the policy from before a change or the one after it. What its blocks hold is judged as
//! without changes: a policy that took part in a write only by half shows as lost or mixed-up data.

use futures_util::future::join;
use meta::{Compression, VerifyPolicy, VolumePolicy};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::world::{Actor, Admin, VolumeModel};
use crate::PolicyChange;

/// Whether a write of such a volume is acknowledged before its duplicates are compared.
pub(super) fn compares_later(policy: VolumePolicy) -> bool {
    policy.dedup && policy.verify == VerifyPolicy::Background
}

impl Actor {
    pub(super) fn choose_policy(&self, rng: &mut ChaCha8Rng) -> VolumePolicy {
        let dedup = rng.random_range(0..4) > 0;
        let compression = match rng.random_range(0..4) {
            0 | 1 => Compression::Off,
            2 => Compression::Lz4,
            _ => Compression::Zstd,
        };
        // With a hash that collides, trust is misplaced.
        let policies = if self.world.borrow().is_hash_weak {
            &[VerifyPolicy::Compare, VerifyPolicy::Background][..]
        } else {
            &[
                VerifyPolicy::Trust,
                VerifyPolicy::Trust,
                VerifyPolicy::Compare,
                VerifyPolicy::Background,
            ]
        };
        VolumePolicy {
            dedup,
            compression,
            verify: policies[rng.random_range(0..policies.len())],
        }
    }

    /// Changes the policy of a volume while it is written to.
    pub(super) async fn change_policy(&self, rng: &mut ChaCha8Rng) {
        let policy = self.choose_policy(rng);
        let chosen = {
            let mut world = self.world.borrow_mut();
            // A clone has the policy that its origin has at that moment, so that is certain while it is made.
            let can_change = |volume: &VolumeModel| {
                volume.admin == Admin::Idle
                    && volume.snapshot_of.is_none()
                    && volume.forks == 0
                    && volume.next_policy.is_none()
            };
            let volumes = world.volumes.iter_mut();
            let mut usable: Vec<_> = volumes.filter(|volume| can_change(volume)).collect();
            let at = rng.random_range(0..usable.len().max(1));
            usable.get_mut(at).map(|volume| {
                volume.next_policy = Some(policy);
                volume.compares_later |= compares_later(policy);
                volume.has_compared_later |= compares_later(policy);
                (volume.uuid, volume.name.clone())
            })
        };
        let Some((uuid, name)) = chosen else { return };
        let change = PolicyChange {
            dedup: Some(policy.dedup),
            compression: Some(policy.compression),
            verify: Some(policy.verify),
            domain: None,
        };
        let changing = self.engine.set_volume_policy(&name, &change);
        let (result, ()) = join(changing, self.burst(rng)).await;
        let result = result.map(drop);
        let failed = self.engine.status().verify.failed_blocks;
        let mut world = self.world.borrow_mut();
        world.judge(uuid, "change of policy", &result);
        if result.is_err() {
            return; // the next opening tells
        }
        world.tally.policies += 1;
        if let Some(volume) = world.volume(uuid) {
            volume.policy = policy;
            volume.next_policy = None;
            // All that was to be compared is, unless a failure was told.
            if failed == 0 {
                volume.compares_later = compares_later(policy);
            }
        }
    }
}

impl VolumeModel {
    /// What its policy is after a crash, which must be what it was before a change or after it.
    pub(super) fn settle_policy(&mut self, found: VolumePolicy) {
        let Self {
            policy,
            next_policy,
            ..
        } = self;
        assert!(
            found == *policy || Some(found) == *next_policy,
            "the policy of {} is {found:?}; it was {policy:?}, and was to become {next_policy:?}",
            self.name
        );
        self.policy = found;
        self.next_policy = None;
    }
}
