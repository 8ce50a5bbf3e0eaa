//! Drives are emptied while hosts write, and some are kept after all; what is added is filled; and there are to be more copies
//! of all data, or fewer.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::world::Actor;
use crate::Redundancy;
use crate::background::rearranging::rearrange_if_wanted;
use crate::sync::wait::yield_once;

/// Whether segments move in this story.
pub(super) fn are_made(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Somebody empties drives, or keeps them, while hosts write.
pub(super) async fn tend_places(actor: Actor, mut rng: ChaCha8Rng) {
    let engine = &actor.engine;
    for _ in 0..rng.random_range(0..12) {
        for _ in 0..rng.random_range(0..80) {
            yield_once().await;
        }
        if rng.random_range(0..4) == 0 {
            let before = engine.redundancy();
            // Refused where there is no room.
            let _ = engine
                .set_redundancy(Redundancy::of(rng.random_range(1..=2)))
                .await;
            actor.world.borrow_mut().tally.redundancies += u64::from(engine.redundancy() != before);
        }
        let drive = rng.random_range(0..engine.shared.drives.len() as u16);
        // Refused where the others have no room.
        let _ = match engine.shared.drives.is_emptying(drive) {
            true => engine.keep_drive(drive).await.map(drop),
            false => engine.empty_drive(drive).await,
        };
        let before = engine.shared.store.segments();
        rearrange_if_wanted(&engine.shared, &engine.background).await;
        let after = engine.shared.store.segments();
        let tally = &mut actor.world.borrow_mut().tally;
        if let (Ok(before), Ok(after)) = (before, after) {
            let rows = before.iter().zip(&after);
            tally.moved += rows.filter(|(a, b)| a.1 != b.1).count() as u64;
        }
        tally.emptied += engine.empty_drives().len() as u64;
    }
}
