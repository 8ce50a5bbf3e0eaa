//! The maps that are parents, and how one finds the map with a number.
//!
//! A volume has its map with it. A map that was forked is a *parent*: no volume has it, and it never changes again but
//! by its deletion. Guarantees:
//! * A parent stays as long as a map has it as its parent; then background work takes its mappings away, as it does
//!   with those of a deleted volume. So maps can be deleted in any order.
//! * What a child knows of an inherited page is a copy of what its nearest ancestor with that page has. It never gets
//!   old: parents do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::lock::Mutex as AsyncMutex;
use meta::{MapId, MapInfo, Mapping, VolumeInfo};

use crate::metadata::page_map::{Inherited, PAGE, PageMap, by_page, rows_of_page};
use crate::metadata::state::State;
use crate::metadata::volume::VolumeEntry;
use crate::{EngineError, Result};

/// Pages in the memory of one ancestor that one load looks at.
const ANCESTOR_PAGES: usize = if cfg!(test) { 2 } else { 64 };

/// A map that has children, or had some.
pub(crate) struct Parent {
    pub(crate) map: PageMap,
    children: u32,
    /// Held by a task that takes its mappings away.
    pub(crate) purging: Arc<AsyncMutex<()>>,
}

impl Parent {
    fn new(map: PageMap, children: u32) -> Self {
        Self {
            map,
            children,
            purging: Arc::default(),
        }
    }
}

/// The maps that volumes do not have by their own number.
#[derive(Default)]
pub(crate) struct Ancestry {
    /// The volumes of maps that have other numbers than these.
    heads: BTreeMap<MapId, u32>,
    pub(crate) parents: BTreeMap<MapId, Parent>,
}

impl Ancestry {
    /// The volume that has a map.
    pub(crate) fn volume_mut<'a>(
        &self,
        volumes: &'a mut BTreeMap<u32, VolumeEntry>,
        map: MapId,
    ) -> Option<&'a mut VolumeEntry> {
        let volume = self.heads.get(&map).unwrap_or(&map);
        volumes
            .get_mut(volume)
            .filter(|entry| entry.map.id() == map)
    }

    /// A map, if there is one of that number.
    pub(crate) fn map_mut<'a>(
        &'a mut self,
        volumes: &'a mut BTreeMap<u32, VolumeEntry>,
        map: MapId,
    ) -> Option<&'a mut PageMap> {
        match self.volume_mut(volumes, map) {
            Some(entry) => Some(&mut entry.map),
            None => self.parents.get_mut(&map).map(|parent| &mut parent.map),
        }
    }

    /// A volume has a map of another number than its own.
    pub(crate) fn set_head(&mut self, map: MapId, volume: u32) {
        if map != volume {
            self.heads.insert(map, volume);
        }
    }

    /// A volume goes, and its map with it.
    pub(crate) fn forget_head(&mut self, map: MapId) {
        self.heads.remove(&map);
    }

    /// A map has a parent less.
    fn lose_child(&mut self, parent: Option<MapId>) {
        if let Some(parent) = parent.and_then(|parent| self.parents.get_mut(&parent)) {
            parent.children = parent.children.saturating_sub(1);
        }
    }

    /// A parent without children, if there is one.
    pub(crate) fn childless(&self) -> Option<MapId> {
        #[cfg(test)]
        if crate::ablation::is(crate::ablation::Broken::FreeParentInUse) {
            return self.parents.keys().next_back().copied();
        }
        let mut parents = self.parents.iter();
        parents.find_map(|(id, parent)| (parent.children == 0).then_some(*id))
    }
}

impl State {
    /// The volume that has a map.
    pub(crate) fn volume_of(&self, map: MapId) -> Option<&VolumeEntry> {
        let volume = self.ancestry.heads.get(&map).unwrap_or(&map);
        self.volumes
            .get(volume)
            .filter(|entry| entry.map.id() == map)
    }

    /// A map, if there is one of that number.
    pub(crate) fn map(&self, map: MapId) -> Option<&PageMap> {
        match self.volume_of(map) {
            Some(entry) => Some(&entry.map),
            None => self.ancestry.parents.get(&map).map(|parent| &parent.map),
        }
    }

    /// A map to be changed, if there is one of that number.
    pub(crate) fn map_mut(&mut self, map: MapId) -> Option<&mut PageMap> {
        self.ancestry.map_mut(&mut self.volumes, map)
    }

    /// The first map from this number on.
    pub(crate) fn next_map(&self, from: MapId) -> Option<MapId> {
        let heads = self.volumes.values().map(|entry| entry.map.id());
        let parents = self.ancestry.parents.keys().copied();
        heads.chain(parents).filter(|id| *id >= from).min()
    }

    /// A map and its ancestors, the nearest first.
    pub(crate) fn line_of(&self, map: MapId) -> Vec<MapId> {
        let mut line = vec![map];
        let mut next = self.map(map).and_then(|map| map.info().parent);
        while let Some(id) = next {
            line.push(id);
            let parent = self.ancestry.parents.get(&id);
            next = parent.and_then(|parent| parent.map.info().parent);
        }
        line
    }

    /// Takes what the store has of a map, and of its ancestors if all that is visible is wanted (`rows`: the nearest
    /// first), from one page on up to another. Returns up to where that is all.
    pub(crate) fn take_rows(
        &mut self,
        (start, end): (u64, u64),
        rows: &[(MapId, Vec<(u64, Mapping)>)],
    ) -> u64 {
        self.resident.reads += 1;
        let Some(((id, own), ancestors)) = rows.split_first() else {
            return end;
        };
        let Self {
            volumes,
            ancestry,
            resident,
            ..
        } = self;
        let mut pages = BTreeSet::new();
        let mut upto = end;
        for (id, rows) in ancestors {
            pages.extend(by_page(rows).map(|(page, _)| page));
            let Some(parent) = ancestry.parents.get(id) else {
                continue;
            };
            let here = parent.map.resident_pages(start, upto);
            let here: Vec<u64> = here.take(ANCESTOR_PAGES).collect();
            if let Some(last) = here.last().filter(|_| here.len() == ANCESTOR_PAGES) {
                upto = upto.min((last + 1).saturating_mul(PAGE));
            }
            pages.extend(here);
        }
        if end - start == PAGE {
            pages.insert(start / PAGE); // that nothing is there is to be known, too
        }
        let inherited = |page: u64| {
            for (id, rows) in ancestors {
                let rows = rows_of_page(rows, page);
                let Some(parent) = ancestry.parents.get(id) else {
                    continue;
                };
                match parent.map.inherited(page, rows) {
                    Inherited::Page(entries) => return entries,
                    Inherited::Stored(rows) => return rows.to_vec(),
                    Inherited::Further => {}
                }
            }
            Vec::new()
        };
        let pages = pages.range(..upto.div_ceil(PAGE));
        let pages: Vec<_> = match ancestors.is_empty() {
            true => Vec::new(),
            false => pages.map(|page| (*page, inherited(*page))).collect(),
        };
        if let Some(map) = ancestry.map_mut(volumes, *id) {
            map.load((start, end), own, resident);
            for (page, entries) in pages {
                map.inherit(page, &entries, resident);
            }
        }
        upto
    }

    /// A volume's map becomes a parent, and the volume and its clone get children of it.
    pub(super) fn install_fork(&mut self, volume: u32, map: MapId, clone: &VolumeInfo) {
        self.saw_volume(map);
        self.saw_volume(clone.map);
        let since = self.last_change;
        let Some(entry) = self.volumes.get_mut(&volume) else {
            return;
        };
        let parent = entry.map.fork(map);
        let info = parent.info();
        entry.change(|info| info.map = map);
        entry.core.inherits(map, since);
        self.ancestry.forget_head(info.id);
        self.ancestry.set_head(map, volume);
        let parent = Parent::new(parent, 2);
        self.ancestry.parents.insert(info.id, parent);
        self.add_volume(clone.clone(), info.child(clone.map), 0);
        if let Some(entry) = self.volumes.get(&clone.id) {
            entry.core.inherits(clone.map, since);
        }
    }

    /// A volume comes, with its map: so many sub-blocks of its own are mapped, all in the store only.
    pub(crate) fn add_volume(&mut self, info: VolumeInfo, map: MapInfo, mapped: u64) {
        self.saw_volume(info.id);
        self.saw_volume(info.map);
        self.ancestry.set_head(info.map, info.id);
        let entry = VolumeEntry::stored(info, map, mapped);
        self.volumes.insert(entry.info.id, entry);
    }

    /// What the store knows of volumes and maps; all mappings are in the store only.
    ///
    /// # Errors
    /// A map has a parent that there is not.
    pub(crate) fn load_maps(
        &mut self,
        volumes: Vec<VolumeInfo>,
        maps: &[MapInfo],
        mapped: impl Fn(MapId) -> u64,
    ) -> Result<()> {
        let rows: BTreeMap<MapId, MapInfo> = maps.iter().map(|info| (info.id, *info)).collect();
        let mut parents = rows.clone();
        for info in volumes {
            let map = parents.remove(&info.map);
            let map = map.unwrap_or(MapInfo::root(info.map));
            let mapped = mapped(info.map);
            self.add_volume(info, map, mapped);
        }
        for (id, info) in parents {
            self.saw_volume(id);
            let map = PageMap::stored(info, mapped(id));
            self.ancestry.parents.insert(id, Parent::new(map, 0));
        }
        for (id, parent) in rows
            .values()
            .filter_map(|info| Some((info.id, info.parent?)))
        {
            let Some(parent) = self.ancestry.parents.get_mut(&parent) else {
                return Err(EngineError::contradiction(format_args!(
                    "map {id} has map {parent} as its parent, which is none"
                )));
            };
            parent.children += 1;
        }
        Ok(())
    }

    /// A map goes that nothing is mapped in.
    pub(super) fn install_map_gone(&mut self, id: MapId) {
        if let Some(gone) = self.ancestry.parents.remove(&id) {
            gone.map.leaves(&mut self.resident);
            self.ancestry.lose_child(gone.map.info().parent);
        } else if let Some(map) = self.map_mut(id) {
            let parent = map.info().parent;
            map.orphan();
            self.ancestry.lose_child(parent);
        }
    }
}
