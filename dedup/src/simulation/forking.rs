//! Clones of volumes, and of clones, while hosts write to the origin.
//!
//! A clone has of each sub-block what the origin had at some time of the fork. A crash may end a fork: then the clone is
//! there with what the origin could have been found with, or not at all.
//!
//! Snapshots of several volumes are taken at one moment: after a crash all of them are there, or none. A volume that is
//! rolled back has what its snapshot has, or, after a crash, what it had before.

use std::collections::BTreeSet;

use futures_util::future::join;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

use super::model::{Cell, Content};
use super::world::{Actor, Admin, VolumeModel, World};
use crate::Engine;
use crate::sync::wait::yield_once;

/// Volumes, clones included, up to which volumes are cloned.
const WITH_CLONES_MAX: usize = 6;

impl World {
    /// A step is over: whether the process dies now.
    pub(super) fn dies_now(&mut self) -> bool {
        let Some(steps) = &mut self.dies_in else {
            return false;
        };
        *steps = steps.saturating_sub(1);
        *steps == 0
    }

    /// Adds the clone of a volume, of this one if it is named; returns both and the origin's name.
    fn begin_fork(
        &mut self,
        rng: &mut ChaCha8Rng,
        wanted: Option<Uuid>,
    ) -> Option<(Uuid, Uuid, String)> {
        let volumes = self.volumes.iter();
        if volumes.filter(|it| it.snapshot_of.is_none()).count() >= WITH_CLONES_MAX {
            return None;
        }
        let began = self.tick();
        let uuid = Uuid::from_u128(rng.random());
        let at = rng.random_range(0..self.volumes.len().max(1));
        let wanted = wanted.and_then(|uuid| self.volumes.iter().position(|it| it.uuid == uuid));
        let origin = self.volumes.get_mut(wanted.unwrap_or(at))?;
        if origin.admin != Admin::Idle || origin.next_policy.is_some() {
            return None;
        }
        origin.busy += 1;
        origin.forks += 1;
        let clone = VolumeModel {
            uuid,
            name: format!("c-{uuid}"),
            admin: Admin::Creating,
            origin: Some((origin.uuid, began)),
            busy: 0,
            forks: 0,
            snapshot_of: None,
            moment: None,
            ..origin.clone()
        };
        let ends = (origin.uuid, uuid, origin.name.clone());
        self.volumes.push(clone);
        Some(ends)
    }

    /// What the clones have that a fork made, or a crash left. `since`: the earliest time from which on the origin
    /// counts; without it, that of the fork.
    pub(super) fn settle_clone(&mut self, clone: Uuid, since: Option<u64>) {
        let now = self.tick();
        let Some((origin, began)) = self.volume(clone).and_then(|model| model.origin.take()) else {
            return;
        };
        let is_after_crash = since.is_some();
        let since = since.map_or(began, |since| since.min(began));
        let Some(origin) = self.volume(origin) else {
            return;
        };
        let of_origin = |cell: &Cell| {
            let among = Cell::among(cell.since(since).copied().collect(), now);
            match is_after_crash {
                // What the origin lost of a correction, the clone lost, too.
                true => among.changed_as(cell),
                false => among,
            }
        };
        let cells = origin.cells.iter().map(of_origin).collect();
        if let Some(clone) = self.volume(clone) {
            clone.cells = cells;
        }
    }
}

impl Actor {
    pub(super) async fn fork(&self, rng: &mut ChaCha8Rng) {
        // What is written right before is not durable yet.
        let written = self.choose(rng).filter(|_| rng.random());
        let written = written.map(|target| target.uuid);
        if written.is_some() {
            self.burst_at(rng, written).await;
        }
        let begun = self.world.borrow_mut().begin_fork(rng, written);
        let Some((origin, uuid, name)) = begun else {
            return;
        };
        let clone = format!("c-{uuid}");
        // Writes that wait for the fork copy what it has left behind while that is made durable.
        let made = self.engine.clone_volume(&name, &clone, Some(uuid));
        let writes = async {
            if rng.random_range(0..4) > 0 {
                return self.burst_at(rng, written).await;
            }
            // The worst moment: the fork is there, and not durable.
            let mut patience = 1000;
            let (mut burst_rng, dies_in) = (rng.clone(), rng.random_range(1..30));
            let dying = async {
                while self.engine.volume(&clone).is_none() && patience > 0 {
                    patience -= 1;
                    yield_once().await;
                }
                self.world.borrow_mut().dies_in = Some(dies_in);
            };
            join(self.burst_at(&mut burst_rng, Some(origin)), dying).await;
        };
        let (made, ()) = join(made, writes).await;
        let result = made.map(drop);
        let mut world = self.world.borrow_mut();
        if let Some(model) = world.volume(origin) {
            model.busy -= 1;
            model.forks -= 1;
        }
        world.judge(origin, "fork", &result);
        // After a failure it is open whether it will be there; the next opening tells.
        if result.is_ok() {
            world.settle_clone(uuid, None);
            world.tally.forks += 1;
            if let Some(volume) = world.volume(uuid) {
                volume.admin = Admin::Idle;
            }
        }
    }
}

/// Snapshots in the world at most.
const SNAPSHOTS_MAX: usize = 8;

impl World {
    /// Adds snapshots of some volumes, of one moment; returns their names and the volumes.
    fn begin_snapshot(&mut self, rng: &mut ChaCha8Rng) -> Vec<(Uuid, String)> {
        let count = self.volumes.iter().filter(|it| it.snapshot_of.is_some());
        if count.count() >= SNAPSHOTS_MAX {
            return Vec::new();
        }
        let began = self.tick();
        let wanted = |it: &&mut VolumeModel| {
            it.admin == Admin::Idle && it.snapshot_of.is_none() && it.next_policy.is_none()
        };
        let origins = self.volumes.iter_mut().filter(wanted);
        let mut snapshots = Vec::new();
        for origin in origins.take(rng.random_range(1..=3)) {
            origin.busy += 1;
            origin.forks += 1;
            snapshots.push(VolumeModel {
                // The engine chooses it: known when it is there.
                uuid: Uuid::from_u128(rng.random()),
                name: format!("{}@s{began}", origin.name),
                admin: Admin::Creating,
                origin: Some((origin.uuid, began)),
                busy: 0,
                forks: 0,
                snapshot_of: Some(origin.uuid),
                moment: Some(began),
                ..origin.clone()
            });
        }
        let made = snapshots.iter();
        let names = made.filter_map(|it| Some((it.snapshot_of?, it.name.clone())));
        let names = names.collect();
        self.volumes.extend(snapshots);
        names
    }

    /// Snapshots got their identities; those of one moment are all there, or none of them.
    pub(super) fn identify_snapshots(&mut self, engine: &Engine) {
        let infos = engine.snapshots();
        for model in &mut self.volumes {
            let found = infos.iter().find(|info| info.name == model.name);
            if let Some(info) = found.filter(|_| model.snapshot_of.is_some()) {
                model.uuid = info.uuid;
            }
        }
        let is_there = |model: &&VolumeModel| infos.iter().any(|info| info.uuid == model.uuid);
        let mut moments: Vec<u64> = self.volumes.iter().filter_map(|it| it.moment).collect();
        moments.dedup();
        for moment in moments {
            let of_it = || self.volumes.iter().filter(|it| it.moment == Some(moment));
            let (found, all) = (of_it().filter(is_there).count(), of_it().count());
            assert!(
                found == 0 || found == all,
                "{found} of {all} snapshots of one moment are there"
            );
        }
    }

    /// What a volume has that was rolled back, for all that is known.
    pub(super) fn settle_rollback(&mut self, volume: Uuid, lost_power: Option<u64>) {
        let now = self.tick();
        let Some(Admin::RollingBack(snapshot)) = self.volume(volume).map(|it| it.admin) else {
            return;
        };
        let Some(snapshot) = self.volume(snapshot).map(|it| it.cells.clone()) else {
            return;
        };
        let Some(model) = self.volume(volume) else {
            return;
        };
        let of = |cell: &Cell| -> BTreeSet<Content> { cell.since(now).copied().collect() };
        let before = std::mem::take(&mut model.cells);
        let cells = snapshot.iter().enumerate().map(|(at, cell)| {
            let mut possible = of(cell);
            // It may not have taken place.
            match (lost_power, before.get(at)) {
                (Some(flushed), Some(left)) => {
                    possible.extend(left.since(flushed));
                    Cell::among(possible, now).changed_as(left)
                }
                _ => Cell::among(possible, now),
            }
        });
        model.cells = cells.collect();
    }
}

impl Actor {
    /// Snapshots of some volumes at one moment, while hosts write.
    pub(super) async fn snapshot(&self, rng: &mut ChaCha8Rng) {
        let begun = self.world.borrow_mut().begin_snapshot(rng);
        if begun.is_empty() {
            return;
        }
        let names: Vec<&str> = begun.iter().map(|(_, name)| name.as_str()).collect();
        let made = self.engine.create_snapshots(&names, 7);
        let (made, ()) = join(made, self.burst(rng)).await;
        let result = made.map(drop);
        let mut world = self.world.borrow_mut();
        for (origin, _) in &begun {
            if let Some(model) = world.volume(*origin) {
                model.busy -= 1;
                model.forks -= 1;
            }
            world.judge(*origin, "snapshot", &result);
        }
        if result.is_err() {
            return; // the next opening tells whether they are there
        }
        world.identify_snapshots(&self.engine);
        for (_, name) in &begun {
            let model = world.volumes.iter().find(|model| model.name == *name);
            let uuid = model.expect("a snapshot").uuid;
            world.settle_clone(uuid, None);
            world.tally.snapshots += 1;
            if let Some(model) = world.volume(uuid) {
                model.admin = Admin::Idle;
                model.moment = None;
            }
        }
    }

    /// A volume goes that has no snapshots, or a snapshot.
    pub(super) async fn delete(&self, rng: &mut ChaCha8Rng) {
        let chosen = {
            let mut world = self.world.borrow_mut();
            let count = world.volumes.len();
            let at = rng.random_range(0..count.max(1));
            let uuid = world.volumes.get(at).map(|volume| volume.uuid);
            if uuid.is_some() && world.volumes.iter().any(|it| it.snapshot_of == uuid) {
                return; // its snapshots go first
            }
            let volume = world
                .volumes
                .get_mut(at)
                .filter(|volume| volume.admin == Admin::Idle && volume.forks == 0);
            volume.map(|volume| {
                volume.admin = Admin::Deleting;
                (volume.uuid, volume.name.clone())
            })
        };
        let Some((uuid, name)) = chosen else { return };
        let result = self.engine.delete_volume(&name).await;
        let mut world = self.world.borrow_mut();
        world.judge(uuid, "delete", &result);
        if result.is_ok() {
            world.volumes.retain(|volume| volume.uuid != uuid);
        }
    }

    /// A snapshot goes, and what it left of its line is merged.
    pub(super) async fn drop_snapshot(&self, rng: &mut ChaCha8Rng) {
        let chosen = {
            let mut world = self.world.borrow_mut();
            let is_free = |it: &&mut VolumeModel| {
                it.snapshot_of.is_some() && it.admin == Admin::Idle && it.forks == 0
            };
            let mut snapshots: Vec<_> = world.volumes.iter_mut().filter(is_free).collect();
            let at = rng.random_range(0..snapshots.len().max(1));
            snapshots.get_mut(at).map(|model| {
                model.admin = Admin::Deleting;
                (model.uuid, model.name.clone())
            })
        };
        let Some((uuid, name)) = chosen else { return };
        let result = self.engine.delete_volume(&name).await;
        {
            let mut world = self.world.borrow_mut();
            world.judge(uuid, "delete", &result);
            if result.is_ok() {
                world.volumes.retain(|volume| volume.uuid != uuid);
            }
        }
        let _ = self.engine.maintain().await;
    }

    /// A volume that nobody uses goes back to one of its snapshots.
    pub(super) async fn roll_back(&self, rng: &mut ChaCha8Rng) {
        let chosen = {
            let mut world = self.world.borrow_mut();
            let snapshots = world.volumes.iter().filter(|it| it.admin == Admin::Idle);
            let snapshots = snapshots.filter_map(|it| Some((it.snapshot_of?, it.uuid)));
            let all: Vec<_> = snapshots.collect();
            let chosen = all.get(rng.random_range(0..all.len().max(1))).copied();
            let Some((volume, snapshot)) = chosen else {
                return;
            };
            let is_free = |it: &&mut VolumeModel| it.admin == Admin::Idle && it.busy == 0;
            let Some(model) = world.volume(volume).filter(is_free) else {
                return;
            };
            model.admin = Admin::RollingBack(snapshot);
            let Some(model) = world.volume(snapshot) else {
                return;
            };
            model.forks += 1; // it is not deleted meanwhile
            (volume, snapshot, model.name.clone())
        };
        let (volume, snapshot, name) = chosen;
        let result = self.engine.rollback(&name).await.map(drop);
        let mut world = self.world.borrow_mut();
        if let Some(model) = world.volume(snapshot) {
            model.forks -= 1;
        }
        world.judge(volume, "rollback", &result);
        if result.is_ok() {
            world.settle_rollback(volume, None);
            world.tally.rollbacks += 1;
            if let Some(model) = world.volume(volume) {
                model.admin = Admin::Idle;
            }
        }
    }
}
