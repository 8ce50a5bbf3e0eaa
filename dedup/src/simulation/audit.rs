//! Recounts everything the engine keeps count of, while no command is under way.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;

use futures_util::FutureExt;
use meta::{Mapping, Store};

use crate::metadata::block_table::{ROW_PAGE, address};
use crate::metadata::map_lock::MapRef;
use crate::metadata::on_disk_index::{Answer, Sought};
use crate::metadata::page_map::View;
use crate::metadata::volume::VolumeEntry;
use crate::residency::loading::load_some;
use crate::residency::pages::window;
use crate::residency::rows::pin_rows;
use crate::sync::wait::lock;
use crate::{Engine, Extents, SUB_BLOCK_BYTES, Volume};

/// Waits for something that waits for nobody else.
fn finish<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    for _ in 0..1000 {
        if let Some(result) = work.as_mut().now_or_never() {
            return result;
        }
    }
    panic!("it waits for somebody");
}

/// Pairs of volumes that are compared.
const PAIRS: usize = 4;

/// What two volumes are said to differ in, and to have mapped, is what their maps say when they are in memory.
pub(crate) fn compare_volumes(engine: &Engine) {
    let infos = [engine.volumes(), engine.snapshots()].concat();
    let volumes: Vec<_> = infos
        .iter()
        .filter_map(|info| engine.volume_by_nsid(info.nsid))
        .collect();
    let ends = volumes.iter().zip(volumes.iter().skip(1)).take(PAIRS);
    for (a, b) in ends {
        let size = a.info().size_bytes.max(b.info().size_bytes);
        if finish(engine.shared.verify.caught_up()).is_err() {
            return; // it is not known what is shared
        }
        let told = told(size, |at| finish(a.diff(b, at, 3)).expect("comparing"));
        let (of_a, of_b) = (visible(engine, a), visible(engine, b));
        let all = 0..size / SUB_BLOCK_BYTES as u64;
        let differ: Vec<u64> = all.filter(|at| of_a.get(at) != of_b.get(at)).collect();
        assert_eq!(told, differ, "{:?} and {:?}", a.info(), b.info());
    }
    for volume in volumes.iter().take(PAIRS) {
        let size = volume.info().size_bytes;
        let told = told(size, |at| {
            finish(volume.extents(at, size - at, 3)).expect("looking")
        });
        let mapped: Vec<u64> = visible(engine, volume).into_keys().collect();
        assert_eq!(told, mapped, "{:?}", volume.info());
    }
}

/// All sub-blocks that looks tell, some ranges at a time.
fn told(size: u64, look: impl Fn(u64) -> Extents) -> Vec<u64> {
    let grain = SUB_BLOCK_BYTES as u64;
    let (mut all, mut at) = (Vec::new(), 0);
    while at < size {
        let found = look(at);
        assert!(found.upto > at && found.ranges.len() <= 3);
        for (first, bytes) in found.ranges {
            assert!(first >= at && first + bytes <= found.upto);
            all.extend(first / grain..(first + bytes) / grain);
        }
        at = found.upto;
    }
    all
}

/// What a host sees, looked up one by one.
fn visible(engine: &Engine, volume: &Volume) -> BTreeMap<u64, Mapping> {
    let info = volume.info();
    let end = info.size_bytes / SUB_BLOCK_BYTES as u64;
    let mut seen = BTreeMap::new();
    for at in 0..end {
        let map = lock(&engine.shared.state).volumes[&info.id].info.map;
        let look = window(&engine.shared, map, (at, at + 1), View::Visible);
        let window = finish(look).expect("bringing in");
        let found = lock(&engine.shared.state).volumes[&info.id].find(at);
        drop(window);
        if let Some(mapping) = found.expect("it was brought in") {
            seen.insert(at, mapping);
        }
    }
    seen
}

/// I4: counts equal mappings; index and free space follow from them; the figures add up; the store
/// agrees with itself.
///
/// `is_fresh`: the pool was just opened, so every content can be found. Later, a second copy (stored
/// because the first one's count was full, or left by a recovery) may be the only one known, and go; or a
/// block turned out to be damaged.
pub(crate) fn count_everything(engine: &Engine, store: &dyn Store, is_fresh: bool) {
    while finish(load_some(&engine.shared)).expect("loading") {}
    assert_eq!(
        lock(&engine.shared.state).blocks.held(),
        0,
        "somebody holds a reference"
    );
    let everything = {
        let state = lock(&engine.shared.state);
        let row_pages = |table| {
            let numbers = (0..state.blocks.numbers(table)).step_by(ROW_PAGE as usize);
            numbers.map(move |number| address(table, number))
        };
        let tables = 0..state.blocks.tables();
        tables.flat_map(row_pages).collect::<Vec<_>>()
    };
    let pins = finish(pin_rows(&engine.shared, everything)).expect("loading");
    let state = lock(&engine.shared.state);
    assert!(state.is_quiet(), "a block is still marked in flight");
    let mut mappings = HashMap::new();
    let stored = state.resident.stored();
    let heads = state
        .volumes
        .values()
        .map(|entry| (MapRef::Head(entry.map()), Some(entry)));
    let parents = state.ancestry.parents.values();
    let parents = parents.map(|parent| (MapRef::Parent(&parent.map), None));
    for (map, entry) in heads.chain(parents) {
        let rows = store.mappings(map.id(), 0, u64::MAX, usize::MAX);
        let all = map.with_store(&rows.expect("reading the store"), stored);
        for (sub_block, mapping) in &all {
            let is_within = |entry: &VolumeEntry| {
                *sub_block < entry.sub_blocks() || entry.info.is_trimming(*sub_block)
            };
            assert!(
                entry.is_none_or(|entry| is_within(entry) || !entry.is_active()),
                "a mapping lies beyond the end"
            );
            let (references, crc32c) = mappings
                .entry(mapping.pba)
                .or_insert((0u32, mapping.crc32c));
            *references += 1;
            assert_eq!(*crc32c, mapping.crc32c, "the checksum of {}", mapping.pba);
        }
        assert_eq!(map.mapped(), all.len() as u64);
    }
    let is_forked = !state.ancestry.parents.is_empty();
    let mut used = 0;
    let mut fragments = 0;
    let mut in_use = HashSet::new();
    for (pba, info) in state.blocks.iter() {
        assert_eq!(
            mappings.get(&pba),
            Some(&(info.references, info.crc32c)),
            "the count and checksum of block {pba}"
        );
        used += 1;
        fragments += u64::from(pba.is_fragment());
        let is_new = in_use.insert(pba.container());
        assert!(is_new || pba.is_fragment(), "block {pba} is a pack, too");
        if !info.fingerprint.is_some() {
            assert!(
                info.references == 1 || is_forked,
                "block {pba} is shared without a hash"
            );
            continue;
        }
        let on_disk = store
            .index_entries(&[info.fingerprint])
            .expect("reading the on-disk index");
        let answer = Answer {
            generation: state.on_disk_index.generation,
            pba: on_disk[0],
        };
        let found = match state.seek(&info.fingerprint, Some(answer)) {
            Sought::Indexed(found) | Sought::Unindexed(found) => Some(found),
            _ => None,
        };
        let is_known = found.is_some_and(|found| mappings.contains_key(&found));
        let may_be_hidden = !is_fresh && state.on_disk_index.displaced() > 0;
        let is_listed = || lock(&engine.shared.damage).contains(pba);
        assert!(
            is_known || (found.is_none() && (may_be_hidden || is_listed())),
            "block {pba} cannot be found, but {found:?} (on disk: {on_disk:?})"
        );
    }
    assert_eq!(mappings.len(), used, "a mapping points to a free block");
    assert!(
        state.index.len() <= used as u64,
        "the index knows blocks that are not in use"
    );
    let blocks = in_use.len() as u64;
    assert_eq!(state.space().used(), blocks, "blocks leaked");
    let packs = blocks - (used as u64 - fragments);
    {
        let counted = state.packs();
        assert_eq!((counted.packs, counted.fragments), (packs, fragments));
    }
    drop(state);
    drop(pins);
    let status = engine.status();
    assert_eq!(status.used_bytes, blocks * SUB_BLOCK_BYTES as u64);
    assert_eq!(
        status.used_bytes + status.reclaiming_bytes + status.free_bytes,
        status.capacity_bytes
    );
    let report = meta::check(store).expect("checking the store");
    assert!(report.is_consistent(), "{report:?}");
    assert!(report.index_agrees);
}
