//! Copies of ranges, within a volume and between volumes of all kinds.
//!
//! What is copied does not change meanwhile, so that the model knows it for certain.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::model::Effect;
use super::world::{Actor, Admin, Target, World, patiently};
use crate::sync::wait::yield_once;

impl World {
    /// What the target becomes when the source is copied to it, and the source's cells are kept from
    /// changing. `None`: the source is open at present, or both overlap.
    fn begin_copy(&mut self, source: &Target, target: &Target) -> Option<Vec<Effect>> {
        let overlap = source.uuid == target.uuid
            && source.first() < target.first() + target.count()
            && target.first() < source.first() + source.count();
        if overlap {
            return None;
        }
        let model = self.volume(source.uuid)?;
        let range = source.first()..source.first() + source.count();
        let cells = model.cells.get_mut(range)?;
        let known: Option<Vec<_>> = cells.iter().map(|cell| cell.known()).collect();
        let known = known?;
        cells.iter_mut().for_each(|cell| cell.readers += 1);
        model.busy += 1;
        let content = |at: usize, sector| known[at][sector];
        let mut sectors =
            (0..source.count()).flat_map(|at| source.sectors(at).map(move |s| content(at, s)));
        Some(target.effects(|_, _| sectors.next().expect("both are as long")))
    }

    fn end_copy(&mut self, source: &Target) {
        if let Some(model) = self.volume(source.uuid) {
            let range = source.first()..source.first() + source.count();
            for cell in &mut model.cells[range] {
                cell.readers -= 1;
            }
            model.busy -= 1;
        }
    }
}

impl Actor {
    pub(super) async fn copy(&self, rng: &mut ChaCha8Rng) {
        let (Some(source), Some(mut target)) = (self.choose(rng), self.choose(rng)) else {
            return;
        };
        let shape = self
            .world
            .borrow_mut()
            .volume(target.uuid)
            .map(|model| (model.lba, model.cells.len() * drives::BLOCK_BYTES));
        let Some((lba, size)) = shape else { return };
        if !source.len.is_multiple_of(lba) || source.len > size {
            return;
        }
        target.len = source.len;
        target.offset = target.offset.min(size - source.len);
        // Most are aligned.
        if rng.random_range(0..4) > 0 {
            let phase = source.offset % drives::BLOCK_BYTES;
            let aligned = target.offset - target.offset % drives::BLOCK_BYTES + phase;
            if aligned.is_multiple_of(lba) && aligned + target.len <= size {
                target.offset = aligned;
            }
        }
        let (Some(from), Some(to)) = (
            self.engine.volume(&source.name),
            self.engine.volume(&target.name),
        ) else {
            return;
        };
        let begun = {
            let mut world = self.world.borrow_mut();
            world.begin_copy(&source, &target).map(|effects| {
                let id = world.begin(target.uuid, target.first(), &effects);
                if id.is_none() {
                    world.end_copy(&source);
                }
                id
            })
        };
        let Some(Some(id)) = begun else {
            return yield_once().await;
        };
        let copy = to.copy(
            target.offset as u64,
            &from,
            source.offset as u64,
            source.len as u64,
            &self.pool,
        );
        let result = patiently(rng, copy).await;
        let is_gone = {
            let mut world = self.world.borrow_mut();
            world.end_copy(&source);
            world.tally.copies += u64::from(matches!(result, Some(Ok(()))));
            let model = world.volume(source.uuid);
            model.is_none_or(|model| model.admin == Admin::Deleting)
        };
        let what = if is_gone {
            "copy of what is gone"
        } else {
            "copy"
        };
        self.finish(what, &target, id, result, false);
    }
}
