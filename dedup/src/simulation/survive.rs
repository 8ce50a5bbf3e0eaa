//! What must have survived: everything is read back after a crash, and compared with the model.

use drives::BLOCK_BYTES;

use super::model::Cell;
use super::world::{Actor, Admin};

impl Actor {
    /// Reads everything, and takes it for certain from now on. `lost_power`: what happened before;
    /// `None` = nothing, all must be as it was.
    pub(super) async fn verify(self, lost_power: Option<bool>) {
        self.settle_volumes();
        self.settle_settings();
        let count = self.world.borrow().volumes.len();
        let (volumes, snapshots) = (self.engine.volumes().len(), self.engine.snapshots().len());
        assert_eq!(
            volumes + snapshots,
            count,
            "a volume or a snapshot came or went"
        );
        for at in 0..count {
            let (name, cells) = {
                let world = self.world.borrow();
                (
                    world.volumes[at].name.clone(),
                    world.volumes[at].cells.len(),
                )
            };
            let volume = self.engine.volume(&name).expect("a volume is gone");
            for first in (0..cells).step_by(32) {
                let found = self.contents(&volume, first, (cells - first).min(32)).await;
                let mut world = self.world.borrow_mut();
                let now = world.tick();
                let flushed = world.flushed;
                let is_weak = world.is_hash_weak;
                let is_open = is_weak && world.volumes[at].compares_later;
                // After a mere crash too, if that cannot be told from a loss of power.
                let takes_back = lost_power.is_some() && world.has_damage && !world.tells_boot;
                for (index, found) in found.into_iter().enumerate() {
                    let cell = &mut world.volumes[at].cells[first + index];
                    let possible =
                        cell.after_crash(lost_power == Some(true) || takes_back, flushed);
                    let is_open = is_open && lost_power.is_some() && cell.changed_since(flushed);
                    assert!(
                        is_open || found.is_none_or(|found| possible.contains(&found)),
                        "{name} sub-block {} (weak hash: {is_weak}, open: {is_open}) holds {found:?}, possible after (power lost: {lost_power:?}): \
                         {possible:?}",
                        first + index
                    );
                    *cell = match found {
                        Some(found) => Cell::certain(found, now),
                        None => Cell::among(possible, now),
                    };
                }
            }
        }
    }

    /// Finds out how far changes of volumes came that a crash interrupted.
    fn settle_volumes(&self) {
        let infos = [self.engine.volumes(), self.engine.snapshots()].concat();
        let mut world = self.world.borrow_mut();
        let flushed = world.flushed;
        world.identify_snapshots(&self.engine);
        let clones: Vec<_> = world.volumes.iter().map(|volume| volume.uuid).collect();
        for clone in clones {
            world.settle_clone(clone, Some(flushed));
        }
        let rolled: Vec<_> = world.volumes.iter().map(|it| (it.uuid, it.admin)).collect();
        for (uuid, admin) in rolled {
            let Admin::RollingBack(snapshot) = admin else {
                continue;
            };
            let size = infos.iter().find(|info| info.uuid == uuid);
            let size = size.map(|info| info.size_bytes as usize / BLOCK_BYTES);
            let before = world.volume(uuid).map(|it| it.cells.len());
            let after = world.volume(snapshot).map(|it| it.cells.len());
            if size == after {
                world.settle_rollback(uuid, (size == before).then_some(flushed));
            }
        }
        let now = world.tick();
        world.volumes.retain_mut(|volume| {
            let info = infos.iter().find(|info| info.uuid == volume.uuid);
            volume.busy = 0;
            volume.forks = 0;
            volume.moment = None;
            let Some(info) = info else {
                let may_be_gone = matches!(volume.admin, Admin::Creating | Admin::Deleting);
                assert!(may_be_gone, "volume {} is gone", volume.name);
                return false;
            };
            let size = info.size_bytes as usize / BLOCK_BYTES;
            match volume.admin {
                Admin::Resizing(cells) if size == cells => volume.set_cells(size, now),
                _ => assert_eq!(size, volume.cells.len(), "the size of {}", volume.name),
            }
            assert_eq!(
                (info.name.as_str(), info.lba_bytes as usize),
                (volume.name.as_str(), volume.lba)
            );
            volume.settle_policy(info.policy());
            volume.admin = Admin::Idle;
            true
        });
    }
}
