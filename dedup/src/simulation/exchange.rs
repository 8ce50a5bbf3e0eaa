//! Compare and Write: what is written if, and only if, something certain is there.
//!
//! Whether it is there the model knows where nothing else changes meanwhile; that a comparison which fails writes
//! nothing, and one that succeeds everything, it knows always.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::content::{SECTOR, fill};
use super::model::{Content, Effect};
use super::world::{Actor, Target, World, patiently};
use crate::sync::wait::yield_once;

impl World {
    /// What the cells of a range certainly hold.
    fn known(&mut self, target: &Target) -> Option<Vec<Content>> {
        let model = self.volume(target.uuid)?;
        let cells = model
            .cells
            .get(target.first()..target.first() + target.count())?;
        cells.iter().map(|cell| cell.known()).collect()
    }

    /// Whether nothing but this change is open in the range.
    fn is_alone(&mut self, target: &Target, id: u64) -> bool {
        let range = target.first()..target.first() + target.count();
        let model = self.volume(target.uuid);
        let cells = model.and_then(|model| model.cells.get(range));
        cells.is_some_and(|cells| cells.iter().all(|cell| cell.is_changed_by(id)))
    }

    /// The change of these cells did not take place.
    fn take_back(&mut self, target: &Target, id: u64) {
        let now = self.tick();
        if let Some(model) = self.volume(target.uuid) {
            model.busy -= 1;
            let range = target.first()..target.first() + target.count();
            for cell in &mut model.cells[range] {
                cell.take_back(id, now);
            }
        }
    }
}

/// The bytes of a range of which every sector has that value.
fn bytes_of(target: &Target, value: impl Fn(usize, usize) -> u32) -> Vec<u8> {
    let mut bytes = vec![0; target.len];
    let sectors = (0..target.count()).flat_map(|at| target.sectors(at).map(move |s| (at, s)));
    for (sector, (at, number)) in bytes.chunks_exact_mut(SECTOR).zip(sectors) {
        fill(sector, value(at, number));
    }
    bytes
}

impl Actor {
    pub(super) async fn exchange(&self, rng: &mut ChaCha8Rng) {
        let Some(target) = self.choose(rng) else {
            return;
        };
        let Some(volume) = self.engine.volume(&target.name) else {
            return;
        };
        let effects: Vec<Effect> = self.choose_values(rng, &target);
        let Some(known) = self.world.borrow_mut().known(&target) else {
            return yield_once().await;
        };
        let mut expected = bytes_of(&target, |at, sector| known[at][sector]);
        let new = bytes_of(&target, |at, sector| effects[at][sector].unwrap_or(0));
        let differs = rng.random_range(0..4) == 0;
        if differs {
            let at = rng.random_range(0..expected.len());
            expected[at] ^= 0x80;
        }
        let is_durable = rng.random_range(0..8) == 0;
        let id = self
            .world
            .borrow_mut()
            .begin(target.uuid, target.first(), &effects);
        let Some(id) = id else {
            return yield_once().await;
        };
        let exchange = volume.compare_and_write(target.offset as u64, &expected, &new, is_durable);
        let result = patiently(rng, exchange).await;
        let said = result.clone().and_then(Result::ok);
        let mut world = self.world.borrow_mut();
        if let Some(is_equal) = said {
            // Contents that collide may be taken for each other until they were compared.
            let is_certain = !world.is_hash_weak && world.is_alone(&target, id);
            assert!(
                !is_certain || is_equal != differs,
                "a compare and write said {is_equal} of what {}",
                if differs { "differs" } else { "is there" }
            );
            world.tally.exchanges += u64::from(is_equal);
        }
        match said {
            Some(false) => world.take_back(&target, id),
            _ => {
                drop(world);
                let result = result.map(|result| result.map(drop));
                self.finish("write", &target, id, result, is_durable);
            }
        }
    }
}
