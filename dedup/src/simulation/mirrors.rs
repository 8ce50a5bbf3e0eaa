//! Pools whose segments have two copies: a drive that fails goes offline, and nobody notices; drives are taken offline and
//! rebuilt meanwhile.

use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive};
use futures_util::future::join;
use meta::{Pba, Store};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::BufferPool;

use super::drive::ShakyDrive;
use super::world::Actor;
use super::{Story, executor, labels};
use crate::background::rebuild::rebuild_if_wanted;
use crate::content::fingerprint;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::drive_state::{Condition, DriveState};
use crate::drive_io::fetch::Fetch;
use crate::drive_io::layout::{self, Wanted};
use crate::drive_io::segments::SEGMENT_BLOCKS;
use crate::sync::wait::yield_once;
use crate::{Engine, LABEL_BLOCKS};

/// Whether the segments of this story have copies.
pub(crate) fn is_mirrored(seed: u64) -> bool {
    seed % 8 == 6
}

/// Two or three drives, of which each has room for a segment at least.
pub(super) fn drives(seed: u64, pool: &BufferPool) -> Vec<Arc<ShakyDrive>> {
    // Not the story's own numbers.
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    let drives = 0..rng.random_range(2..=3);
    let drives = drives.map(|index| {
        let blocks = LABEL_BLOCKS + rng.random_range(SEGMENT_BLOCKS..3 * SEGMENT_BLOCKS);
        let plan = Story::plan(&mut rng);
        labels::labeled(seed, (index, blocks), plan, pool)
    });
    drives.collect()
}

/// Somebody takes drives offline and has them rebuilt while hosts write.
pub(super) async fn tend_drives(actor: Actor, mut rng: ChaCha8Rng) {
    let engine = &actor.engine;
    for _ in 0..rng.random_range(0..6) {
        for _ in 0..rng.random_range(0..200) {
            yield_once().await;
        }
        let drives = engine.shared.drives.len() as u16;
        let drive = rng.random_range(0..drives);
        // Refused where another one is offline, or what was written to it may happen yet.
        let _ = match engine.shared.drives.state(drive) {
            DriveState::Online => engine.take_drive_offline(drive).await,
            DriveState::Offline => engine.rebuild_drive(drive).await,
            DriveState::Rebuilding => Ok(()),
        };
        let is = |state| engine.shared.drives.state(drive) == state;
        let waits = is(DriveState::Rebuilding);
        let rebuilt = rebuild_if_wanted(&engine.shared, &engine.background);
        if rng.random_bool(0.3) {
            // It is to be rebuilt again before the rebuild is through.
            join(rebuilt, leave_and_return(engine, drive, &mut rng)).await;
        } else {
            rebuilt.await;
        }
        actor.world.borrow_mut().tally.rebuilt += u64::from(waits && is(DriveState::Online));
    }
}

/// A drive goes offline for some moments.
async fn leave_and_return(engine: &Engine, drive: u16, rng: &mut ChaCha8Rng) {
    for _ in 0..2 {
        for _ in 0..rng.random_range(0..20) {
            yield_once().await;
        }
        // Refused as above.
        let _ = match engine.shared.drives.state(drive) {
            DriveState::Offline => engine.rebuild_drive(drive).await,
            _ => engine.take_drive_offline(drive).await,
        };
    }
}

impl Story {
    /// All copies that may be read hold what the rows say.
    pub(super) fn audit_copies(&mut self, engine: &Arc<Engine>) {
        let shared = engine.shared.clone();
        if !shared.drives.has_copies() {
            return;
        }
        let drives = self.drives.iter();
        let copies: Vec<Arc<dyn Drive>> = drives.map(|drive| drive.copy() as _).collect();
        let sizes = copies
            .iter()
            .map(|drive| Some(drive.blocks() - LABEL_BLOCKS));
        let sizes: Vec<_> = sizes.collect();
        let wanted = Wanted {
            drives: &sizes,
            copies: 2,
            domains: &[],
            added: None,
            changed_copies: None,
            avoided: &[],
            resting: &[],
            epoch: 0,
        };
        let rows = self.store.segments().expect("rows of a store in memory");
        let segments = layout::complete(&rows, &wanted).expect("rows of an open pool");
        let list = DriveList::new(&copies, &segments, &shared.drives.conditions());
        let blocks = self.store.blocks(Pba(0), Pba(u64::MAX), usize::MAX);
        let blocks = blocks.expect("rows of a store in memory");
        let conditions = shared.drives.conditions();
        let is_offline = |condition: &&Condition| condition.state() == DriveState::Offline;
        let offline = conditions.iter().filter(is_offline).count() as u64;
        let (pool, world) = (self.pool.clone(), self.world.clone());
        world.borrow_mut().tally.mirrored += 1;
        world.borrow_mut().tally.offline += offline;
        let proof = async move {
            let hashers = shared.domains.in_use();
            for (pba, row) in blocks {
                for place in list.readable(pba).iter() {
                    let buf = pool.alloc(BLOCK_BYTES).await;
                    let mut fetch = Fetch::of_drive(&list, place.drive, [(pba, 0)].into_iter());
                    let (failed, buf) = fetch.read(buf).await;
                    let block = &fingerprint::split(&buf)[0];
                    let is_right = hashers.prove(block, row.fingerprint, row.crc32c);
                    assert!(
                        failed.is_empty() && is_right,
                        "the copy of block {pba} on drive {} is not what its row says",
                        place.drive
                    );
                }
            }
        };
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        executor::run(&mut rng, vec![Box::pin(proof)], |_| false);
    }
}
