//! Clones of volumes, and of clones, while hosts write to the origin.
//!
//! A clone has of each sub-block what the origin had at some time of the fork. A crash may end a fork: then the clone is
//! there with what the origin could have been found with, or not at all.

use futures_util::future::join;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

use super::model::Cell;
use super::world::{Actor, Admin, VolumeModel, World};

/// Volumes, clones included, up to which volumes are cloned.
const WITH_CLONES_MAX: usize = 6;

impl World {
    /// Adds the clone of one of the volumes; returns both and the origin's name.
    fn begin_fork(&mut self, rng: &mut ChaCha8Rng) -> Option<(Uuid, Uuid, String)> {
        if self.volumes.len() >= WITH_CLONES_MAX {
            return None;
        }
        let began = self.tick();
        let uuid = Uuid::from_u128(rng.random());
        let at = rng.random_range(0..self.volumes.len().max(1));
        let origin = self.volumes.get_mut(at)?;
        if origin.admin != Admin::Idle {
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
        let since = since.map_or(began, |since| since.min(began));
        let Some(origin) = self.volume(origin) else {
            return;
        };
        let of_origin = |cell: &Cell| Cell::among(cell.since(since).copied().collect(), now);
        let cells = origin.cells.iter().map(of_origin).collect();
        if let Some(clone) = self.volume(clone) {
            clone.cells = cells;
        }
    }
}

impl Actor {
    pub(super) async fn fork(&self, rng: &mut ChaCha8Rng) {
        let begun = self.world.borrow_mut().begin_fork(rng);
        let Some((origin, uuid, name)) = begun else {
            return;
        };
        let clone = format!("c-{uuid}");
        // Writes that wait for the fork copy what it has left behind while that is made durable.
        let made = self.engine.clone_volume(&name, &clone, Some(uuid));
        let (made, ()) = join(made, self.burst(rng)).await;
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
