//! Recounts everything the engine keeps count of, while no command is under way.

use std::collections::{HashMap, HashSet};

use futures_util::FutureExt;
use meta::Store;

use crate::wait::lock;
use crate::{Engine, SUB_BLOCK_BYTES};

/// I4: counts equal mappings; index and free space follow from them; the figures add up; the store
/// agrees with itself.
///
/// `is_fresh`: the pool was just opened, so every content can be found. Later, a second copy (stored
/// because the first one's count was full, or left by a recovery) may be the only one known, and go.
pub(super) fn count_everything(engine: &Engine, store: &dyn Store, is_fresh: bool) {
    let load_some = || engine.shared.load_some().now_or_never();
    while load_some().expect("nothing else loads").expect("loading") {}
    let state = lock(&engine.shared.state);
    assert!(state.is_quiet(), "a block is still marked in flight");
    let mut mappings = HashMap::new();
    for entry in state.volumes.values() {
        let mut mapped = 0;
        for (sub_block, pba) in entry.map.range(0, u64::MAX) {
            assert!(
                sub_block < entry.sub_blocks() || entry.info.is_trimming(sub_block),
                "a mapping lies beyond the end"
            );
            *mappings.entry(pba).or_insert(0u32) += 1;
            mapped += 1;
        }
        assert_eq!(entry.map.mapped(), mapped);
    }
    let mut contents = HashSet::new();
    let mut used = 0;
    let mut fragments = 0;
    let mut in_use = HashSet::new();
    for (pba, info) in state.blocks.iter() {
        assert_eq!(
            mappings.get(&pba),
            Some(&info.references),
            "the count of block {pba}"
        );
        used += 1;
        fragments += u64::from(pba.is_fragment());
        let is_new = in_use.insert(pba.container());
        assert!(is_new || pba.is_fragment(), "block {pba} is a pack, too");
        if !info.fingerprint.is_some() {
            assert_eq!(info.references, 1, "block {pba} is shared without a hash");
            continue;
        }
        let found = state.index.find(&state.blocks, &info.fingerprint);
        let is_known = found.is_some_and(|found| mappings.contains_key(&found));
        assert!(
            is_known || (found.is_none() && !is_fresh),
            "block {pba} cannot be found, but {found:?}"
        );
        contents.insert(info.fingerprint);
    }
    assert_eq!(mappings.len(), used, "a mapping points to a free block");
    assert!(
        state.index.len() <= contents.len(),
        "the index knows blocks that are not in use"
    );
    let blocks = in_use.len() as u64;
    assert_eq!(state.space.used(), blocks, "blocks leaked");
    let packs = blocks - (used as u64 - fragments);
    assert_eq!(
        (state.packs.packs, state.packs.fragments),
        (packs, fragments)
    );
    drop(state);
    let status = engine.status();
    assert_eq!(status.used_bytes, blocks * SUB_BLOCK_BYTES as u64);
    assert_eq!(
        status.used_bytes + status.reclaiming_bytes + status.free_bytes,
        status.capacity_bytes
    );
    let report = meta::check(store).expect("checking the store");
    assert!(report.is_consistent(), "{report:?}");
}
