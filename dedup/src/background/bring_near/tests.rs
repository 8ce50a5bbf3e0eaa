//! A story of a fork that is not durable yet.

use std::pin::pin;
use std::sync::Arc;

use drives::{Drive, FaultDrive, FaultPlan};
use reactor::BufferPool;

use super::bring_near;
use crate::LABEL_BLOCKS;
use crate::background::tests::{block_on, data, open, poll};
use crate::sync::wait::lock;

/// Whether a page of a fork is copied before what it refers to is on stable drives. The drive's operations take as long
/// as follows from the seed.
pub(crate) fn is_copied_early(seed: u64) -> bool {
    let plan = FaultPlan {
        seed,
        max_delay: 50,
        ..FaultPlan::default()
    };
    let pool = BufferPool::new(8 << 20).unwrap();
    let drive: Arc<dyn Drive> = Arc::new(FaultDrive::new(LABEL_BLOCKS + 200, plan));
    let (engine, volume, _) = open(vec![drive], Arc::default());
    let (result, _) = block_on(volume.write(0, data(&pool, &[1, 2, 3]), false));
    result.unwrap();
    let mut fork = pin!(engine.clone_volume("v", "c", None));
    while engine.volume("c").is_none() {
        assert!(poll(fork.as_mut()).is_none());
    }
    let core = {
        let state = lock(&engine.shared.state);
        let mut volumes = state.volumes.values();
        let entry = volumes.find(|entry| &*entry.info.name == "v");
        entry.unwrap().core.clone()
    };
    let since = core.inherits_since().expect("it was forked");
    let mut copy = pin!(bring_near(&engine.shared, &core, 0));
    let mut is_forked = false;
    loop {
        let is_copied = poll(copy.as_mut()).map(Result::unwrap).is_some();
        let state = lock(&engine.shared.state);
        let mapped = state.map(core.map()).map(|map| map.mapped());
        assert!(!is_copied || mapped == Some(3), "nothing was copied");
        if mapped == Some(3) {
            return state.flushed < since;
        }
        drop(state);
        if !is_forked {
            is_forked = poll(fork.as_mut()).map(Result::unwrap).is_some();
        }
    }
}

#[test]
fn what_a_fork_is_given_of_its_own_is_on_stable_drives_before() {
    assert!((0..50).all(|seed| !is_copied_early(seed)));
}
