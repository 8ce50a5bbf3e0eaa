//! Check, repair, backup and restore of a pool that is not in use, and what a pool that lacks drives has on them.
//!
//! Guarantee: a check changes nothing. A repair changes all that it has to, or nothing.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod missing_drives;
pub(crate) mod remote;
pub(crate) mod repair;
pub(crate) mod restore;

use std::collections::BTreeMap;

use meta::{MAP_DEPTH_MAX, MapId, MapInfo};

/// A map and its ancestors, the nearest first. Damaged rows may make a circle: it ends at the greatest depth.
fn lineage(maps: &BTreeMap<MapId, MapInfo>, map: MapId) -> impl Iterator<Item = MapId> {
    let parent = |map: &MapId| maps.get(map).and_then(|info| info.parent);
    std::iter::successors(Some(map), parent).take(MAP_DEPTH_MAX as usize + 1)
}
