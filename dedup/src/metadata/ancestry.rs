//! The maps that are parents, and how one finds the map with a number.
//!
//! A volume has its map with it. A map that was forked is a *parent*: no volume has it, and it never changes again but
//! by its deletion. Guarantees:
//! * A parent stays as long as a map has it as its parent; then background work takes its mappings away, as it does
//!   with those of a deleted volume. So maps can be deleted in any order.
//! * What a map in memory shows of its ancestors never gets old: parents do not change what they show.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::lock::Mutex as AsyncMutex;
use meta::{Fork, MapId, MapInfo, Mapping, Record, VolumeInfo};

use crate::metadata::map_lock::{MapMut, MapRef};
use crate::metadata::owners::Owners;
use crate::metadata::page_map::{PAGE, PageMap, Sight, View, by_page, rows_of_page};
use crate::metadata::state::State;
use crate::metadata::volume::VolumeEntry;
use crate::{EngineError, Result};

/// Records after which it is looked again whether there is anything to merge.
const SETTLED_RECORDS: u64 = if cfg!(test) { 4 } else { 4096 };

/// Mappings that a head gets itself before it is looked again what of its parent they hide.
const DROP_MIN: u64 = if cfg!(test) { 4 } else { 4096 };

/// A page of which more ancestors than these have entries is worth a copy of its own.
const FAR: usize = if cfg!(test) { 2 } else { 16 };

/// Pages that are noted to be scattered so far, at most.
const FAR_PAGES_MAX: usize = 4096;

/// What the store has of a map in a range; nothing where it was not asked.
pub(crate) type RowsOf = (MapId, Option<Vec<(u64, Mapping)>>);

/// Pages in the memory of one ancestor that one load looks at.
const ANCESTOR_PAGES: usize = if cfg!(test) { 2 } else { 64 };

/// A map that has children, or had some.
pub(crate) struct Parent {
    pub(crate) map: PageMap,
    children: u32,
    /// The record since which it does not change.
    pub(crate) since: u64,
    /// Held by a task that takes its mappings away, or gives it those of its only child.
    pub(crate) purging: Arc<AsyncMutex<()>>,
    /// How far a merge with its parent, or with its only child, has come.
    pub(crate) merge: Merge,
}

/// What background work knows of a parent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Merge {
    /// Up to here its parent has a copy of its pages.
    pub(crate) lifted_upto: u64,
    /// It has no page of its own that its parent does not have.
    pub(crate) is_lifted: bool,
    /// Blocks of it have as many references as can be counted: it stays as it is.
    pub(crate) is_stuck: bool,
    /// It has pages of its own.
    pub(crate) has_pages: bool,
    /// Up to here nothing is left that its only child hides.
    pub(crate) dropped_upto: u64,
    /// What the child had mapped itself when that was so of all.
    pub(crate) dropped_at: Option<u64>,
}

/// What is to be done so that lines of maps get shorter, and nothing is kept that nobody sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeStep {
    /// The parent of `map`, which has no other child, gets pages of it.
    Lift { map: MapId, parent: MapId },
    /// Nobody knows yet whether `map` has any pages.
    Look { map: MapId, parent: MapId },
    /// All that shows through `map` shows through its parent: children are re-parented to that.
    Pass { map: MapId, parent: MapId },
    /// The only child of `parent` hides what it has in its own pages.
    Drop { map: MapId, parent: MapId },
}

impl Parent {
    /// How many maps have it as their parent.
    pub(crate) fn children(&self) -> u32 {
        self.children
    }

    fn new(map: PageMap, children: u32, since: u64) -> Self {
        Self {
            map,
            children,
            since,
            purging: Arc::default(),
            merge: Merge::default(),
        }
    }
}

/// The maps that volumes do not have by their own number.
#[derive(Default)]
pub(crate) struct Ancestry {
    /// The volumes of maps that have other numbers than these.
    heads: BTreeMap<MapId, u32>,
    pub(crate) parents: BTreeMap<MapId, Parent>,
    /// The last record when there was nothing to merge; `None` since maps came or went.
    settled: Option<u64>,
    /// Pages of volumes that many ancestors have entries of: volume and first sub-block.
    pub(crate) far: BTreeSet<(u32, u64)>,
    /// Which ancestors have what.
    pub(crate) owners: Owners,
    /// How often a map got another parent: lines are what they were as long as this is.
    pub(crate) reparented: u64,
}

impl Ancestry {
    /// The volume that has a map.
    pub(crate) fn volume<'a>(
        &self,
        volumes: &'a BTreeMap<u32, VolumeEntry>,
        map: MapId,
    ) -> Option<&'a VolumeEntry> {
        let volume = self.heads.get(&map).unwrap_or(&map);
        volumes.get(volume).filter(|entry| entry.info.map == map)
    }

    /// A map to be changed, if there is one of that number.
    pub(crate) fn map_mut<'a>(
        &'a mut self,
        volumes: &'a BTreeMap<u32, VolumeEntry>,
        map: MapId,
    ) -> Option<MapMut<'a>> {
        match self.volume(volumes, map) {
            Some(entry) => Some(MapMut::Head(entry.map())),
            None => {
                let parent = self.parents.get_mut(&map)?;
                Some(MapMut::Parent(&mut parent.map))
            }
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

    /// The next step of merging parents.
    fn merge_step(&self, heads: &BTreeMap<u32, VolumeEntry>) -> Option<MergeStep> {
        let of_parents = self.parents.iter().find_map(|(id, it)| {
            let parent = it.map.info().parent?;
            let above = self.parents.get(&parent)?;
            let (map, merge) = (*id, &it.merge);
            match (it.children, above.children) {
                (0, _) => None,
                _ if merge.is_stuck => None,
                _ if merge.is_lifted => Some(MergeStep::Pass { map, parent }),
                (_, 1) => Some(MergeStep::Lift { map, parent }),
                _ if it.map.mapped() == 0 && !merge.has_pages => {
                    Some(MergeStep::Look { map, parent })
                }
                _ => None,
            }
        });
        let of_heads = || {
            heads.values().find_map(|entry| {
                let (info, mapped) = {
                    let map = entry.map();
                    (map.info(), map.mapped())
                };
                let parent = info.parent?;
                let above = self.parents.get(&parent)?;
                let grain = above.map.mapped() / 16;
                let is_due = match above.merge.dropped_at {
                    None => mapped > 0,
                    Some(before) => mapped > before + grain.max(DROP_MIN),
                };
                let map = info.id;
                (above.children == 1 && above.map.mapped() > 0 && is_due)
                    .then_some(MergeStep::Drop { map, parent })
            })
        };
        of_parents.or_else(of_heads)
    }

    /// A parent without children, if there is one.
    pub(crate) fn childless(&self) -> Option<MapId> {
        let mut parents = self.parents.iter();
        parents.find_map(|(id, parent)| (parent.children == 0).then_some(*id))
    }
}

/// The name of a snapshot without that of its volume.
pub(crate) fn snapshot_name(info: &VolumeInfo) -> &str {
    info.name
        .rsplit_once('@')
        .map_or(info.name.as_str(), |(_, name)| name)
}

impl State {
    /// The volume that has a map.
    pub(crate) fn volume_of(&self, map: MapId) -> Option<&VolumeEntry> {
        self.ancestry.volume(&self.volumes, map)
    }

    /// A map, if there is one of that number.
    pub(crate) fn map(&self, map: MapId) -> Option<MapRef<'_>> {
        match self.volume_of(map) {
            Some(entry) => Some(MapRef::Head(entry.map())),
            None => {
                let parent = self.ancestry.parents.get(&map)?;
                Some(MapRef::Parent(&parent.map))
            }
        }
    }

    /// A map to be changed, if there is one of that number.
    pub(crate) fn map_mut(&mut self, map: MapId) -> Option<MapMut<'_>> {
        self.ancestry.map_mut(&self.volumes, map)
    }

    /// The next step of merging parents. A look at all maps takes long, so there is none where hardly anything changed
    /// since the last one.
    pub(crate) fn next_merge(&mut self) -> Option<MergeStep> {
        let settled = self.ancestry.settled;
        if settled.is_some_and(|at| self.last_change().saturating_sub(at) < SETTLED_RECORDS) {
            return None;
        }
        let step = self.ancestry.merge_step(&self.volumes);
        self.ancestry.settled = step.is_none().then_some(self.last_change());
        step
    }

    /// Sub-blocks that maps have mapped themselves.
    pub(crate) fn mapped(&self) -> u64 {
        let heads = self.volumes.values().map(|entry| entry.map().mapped());
        let parents = self.ancestry.parents.values();
        heads.chain(parents.map(|it| it.map.mapped())).sum()
    }

    /// The first map from this number on.
    pub(crate) fn next_map(&self, from: MapId) -> Option<MapId> {
        let heads = self.volumes.values().map(|entry| entry.info.map);
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

    /// All volumes, each with the oldest ancestor of its map. Volumes that have the same one follow each other.
    pub(crate) fn by_root(&self) -> Vec<(MapId, u32)> {
        let mut roots: BTreeMap<MapId, MapId> = BTreeMap::new();
        let mut all = Vec::with_capacity(self.volumes.len());
        for (volume, entry) in &self.volumes {
            let mut line = Vec::new();
            let mut at = entry.map().info();
            let root = loop {
                if let Some(root) = roots.get(&at.id) {
                    break *root;
                }
                line.push(at.id);
                let parent = at.parent.and_then(|id| self.ancestry.parents.get(&id));
                match parent {
                    Some(parent) => at = parent.map.info(),
                    None => break at.id,
                }
            };
            roots.extend(line.into_iter().map(|map| (map, root)));
            all.push((root, *volume));
        }
        all.sort_unstable();
        all
    }

    /// The ancestors of a map that may have entries in `start..end`, the nearest first.
    pub(crate) fn ancestors_with(&self, map: MapId, (start, end): (u64, u64)) -> Vec<MapId> {
        let line = self.line_of(map).into_iter().skip(1);
        let may_have = |id: &MapId| {
            let parent = self.ancestry.parents.get(id);
            parent.is_some_and(|parent| parent.map.may_have(start, end))
        };
        line.filter(may_have).collect()
    }

    /// Takes what the store has of a map and, if all that is visible is wanted, of those ancestors that have anything
    /// there (`rows`: the nearest first; nothing where the store was not asked), from one page on up to another. Returns
    /// up to where that is all; `None` if the store has to be asked about others.
    pub(crate) fn take_rows(
        &mut self,
        (start, end): (u64, u64),
        rows: &[RowsOf],
        view: View,
    ) -> Option<u64> {
        let Some(((id, own), ancestors)) = rows.split_first() else {
            return Some(end);
        };
        let is_page = end - start == PAGE;
        if is_page && ancestors.len() > FAR {
            self.note_far(*id, start);
        }
        let Self {
            volumes,
            ancestry,
            resident,
            ..
        } = self;
        let mut pages = BTreeSet::new();
        let mut upto = end;
        let volumes = &*volumes;
        let incomplete: Vec<u64> = {
            let mut map = ancestry.map_mut(volumes, *id)?;
            match own {
                Some(own) => map.load((start, end), own, resident),
                None if map.is_stored(start / PAGE) => return None,
                None => {}
            }
            if view == View::Own || !map.inherits() {
                return Some(end);
            }
            let pages = map.incomplete_pages(start, end);
            pages.take(ANCESTOR_PAGES).collect()
        };
        let mut add = |here: &mut dyn Iterator<Item = u64>| {
            let here: Vec<u64> = here.take(ANCESTOR_PAGES).collect();
            if let Some(last) = here.last().filter(|_| here.len() == ANCESTOR_PAGES) {
                upto = upto.min((last + 1).saturating_mul(PAGE));
            }
            pages.extend(here);
        };
        add(&mut incomplete.into_iter());
        for (id, _) in ancestors {
            if let Some(parent) = ancestry.parents.get(id) {
                add(&mut parent.map.resident_pages(start, end));
            }
        }
        for rows in ancestors.iter().filter_map(|(_, rows)| rows.as_ref()) {
            pages.extend(by_page(rows).map(|(page, _)| page));
        }
        if is_page {
            pages.insert(start / PAGE); // that nothing is there is to be known, too
        }
        for page in pages.range(start / PAGE..upto.div_ceil(PAGE)) {
            let mut seen = Sight::new();
            if let Some(map) = ancestry.map_mut(volumes, *id) {
                // What it has in the store was taken above.
                map.show(*page, Some(&[]), &mut seen).ok()?;
            }
            for (id, rows) in ancestors {
                if let Some(parent) = ancestry.parents.get(id).filter(|_| !seen.is_full()) {
                    let rows = rows.as_ref().map(|rows| rows_of_page(rows, *page));
                    parent.map.show(*page, rows, &mut seen).ok()?;
                }
            }
            if let Some(mut map) = ancestry.map_mut(volumes, *id) {
                map.inherit(*page, &seen, resident);
            }
        }
        Some(upto)
    }

    /// A page of a volume that is in use had to be brought in from many maps.
    fn note_far(&mut self, map: MapId, start: u64) {
        let volume = self.volume_of(map).filter(|entry| entry.is_active());
        let Some(id) = volume.map(|entry| entry.info.id) else {
            return;
        };
        if self.ancestry.far.len() < FAR_PAGES_MAX {
            self.ancestry.far.insert((id, start));
        }
    }

    /// A volume's map becomes a parent, and the volume and its clone get children of it.
    pub(super) fn install_fork(
        &mut self,
        Fork {
            volume, map, clone, ..
        }: &Fork,
    ) {
        self.saw_volume(clone.map);
        let since = self.last_change();
        let Some(info) = self.succeed_head(*volume, *map) else {
            return;
        };
        self.add_volume(clone.clone(), info.child(clone.map), 0);
        if let Some(entry) = self.volumes.get(&clone.id) {
            entry.core.inherits(clone.map, since);
        }
    }

    /// A volume's map becomes a parent of two; the volume gets a child of it. Returns what was its map.
    fn succeed_head(&mut self, volume: u32, map: MapId) -> Option<MapInfo> {
        self.ancestry.settled = None;
        self.saw_volume(map);
        let since = self.last_change();
        let entry = self.volumes.get_mut(&volume)?;
        let parent = entry.map().fork(map);
        let info = parent.info();
        entry.change(|info| info.map = map);
        entry.core.inherits(map, since);
        self.ancestry.forget_head(info.id);
        self.ancestry.set_head(map, volume);
        let parent = Parent::new(parent, 2, since);
        self.ancestry.parents.insert(info.id, parent);
        Some(info)
    }

    /// A volume gets the content of its snapshot; what it had is a parent without children.
    pub(super) fn install_rollback(&mut self, record: &Record) {
        let Record::Rollback {
            snapshot,
            snapshot_map,
            volume,
            map,
            size_bytes,
            trimming,
            ..
        } = record
        else {
            return;
        };
        let since = self.last_change();
        self.saw_volume(*map);
        let Some(parent) = self.succeed_head(*snapshot, *snapshot_map) else {
            return;
        };
        let Some(entry) = self.volumes.get_mut(volume) else {
            return;
        };
        let left = entry.map().succeed(parent.child(*map));
        entry.change(|info| {
            info.map = *map;
            info.size_bytes = *size_bytes;
            info.trimming.clone_from(trimming);
        });
        entry.core.inherits(*map, since);
        let id = left.id();
        self.ancestry.forget_head(id);
        self.ancestry.set_head(*map, *volume);
        self.ancestry
            .parents
            .insert(id, Parent::new(left, 0, since));
    }

    /// A map's grandparent becomes its parent.
    pub(super) fn install_reparent(&mut self, info: &MapInfo) {
        self.ancestry.settled = None;
        self.ancestry.owners.clear();
        self.ancestry.reparented += 1;
        let before = {
            let Some(mut map) = self.map_mut(info.id) else {
                return;
            };
            let before = map.info().parent;
            map.adopt(*info);
            before
        };
        self.ancestry.lose_child(before);
        // What its new parent has of it is not known.
        if let Some(it) = self.ancestry.parents.get_mut(&info.id) {
            it.merge = Merge::default();
        }
        if let Some(parent) = info
            .parent
            .and_then(|id| self.ancestry.parents.get_mut(&id))
        {
            parent.children += 1;
            parent.merge.dropped_at = None;
            parent.merge.dropped_upto = 0;
        }
    }

    /// A parent got entries of its only child: what its own parent has of it has to be looked at again.
    pub(super) fn lifted_to(&mut self, map: MapId) {
        if let Some(it) = self.ancestry.parents.get_mut(&map) {
            it.merge.lifted_upto = 0;
            it.merge.is_lifted = false;
        }
    }

    /// The first child of a map that has children itself or is a volume's.
    pub(crate) fn child_of(&self, parent: MapId) -> Option<MapInfo> {
        let heads = self.volumes.values().map(|entry| entry.map().info());
        let parents = self.ancestry.parents.values();
        let parents = parents.filter(|parent| parent.children > 0);
        let mut all = heads.chain(parents.map(|parent| parent.map.info()));
        all.find(|info| info.parent == Some(parent))
    }

    /// A volume has a name that its snapshots begin with.
    pub(crate) fn name_snapshots(&mut self, volume: u32) {
        let Some(name) = self
            .volumes
            .get(&volume)
            .map(|entry| entry.info.name.clone())
        else {
            return;
        };
        let is_of = |entry: &&mut VolumeEntry| {
            let of = entry.info.snapshot;
            of.is_some_and(|of| of.volume == volume)
        };
        for entry in self.volumes.values_mut().filter(is_of) {
            let full = format!("{name}@{}", snapshot_name(&entry.info));
            entry.change(|info| info.name = full);
        }
    }

    /// A volume comes, with its map: so many sub-blocks of its own are mapped, all in the store only.
    pub(crate) fn add_volume(&mut self, mut info: VolumeInfo, map: MapInfo, mapped: u64) {
        self.saw_volume(info.id);
        self.saw_volume(info.map);
        self.ancestry.set_head(info.map, info.id);
        let of = info.snapshot.and_then(|of| self.volumes.get(&of.volume));
        if let Some(of) = of {
            info.name = format!("{}@{}", of.info.name, snapshot_name(&info));
        }
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
            self.ancestry.parents.insert(id, Parent::new(map, 0, 0));
        }
        let all: Vec<u32> = self.volumes.keys().copied().collect();
        all.into_iter().for_each(|id| self.name_snapshots(id));
        for (id, parent) in rows
            .values()
            .filter_map(|info| Some((info.id, info.parent?)))
        {
            let Some(parent) = self.ancestry.parents.get_mut(&parent) else {
                return Err(EngineError::contradiction(format_args!(
                    "map {id} has map {parent} as its parent, and there is no such map"
                )));
            };
            parent.children += 1;
        }
        Ok(())
    }

    /// A map goes that nothing is mapped in.
    pub(super) fn install_map_gone(&mut self, id: MapId) {
        self.ancestry.settled = None;
        if let Some(gone) = self.ancestry.parents.remove(&id) {
            gone.map.leaves(&self.resident);
            self.ancestry.lose_child(gone.map.info().parent);
        } else if let Some(entry) = self.ancestry.volume(&self.volumes, id) {
            let mut map = entry.map();
            let parent = map.info().parent;
            map.orphan(self.last_change(), &self.resident);
            drop(map);
            self.ancestry.lose_child(parent);
        }
    }
}
