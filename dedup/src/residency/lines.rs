//! Looking at maps without bringing them into memory: what two volumes see, page by page.
//!
//! A part of the maps is read from the store in order, with a window open on it, so that what changes meanwhile is in
//! memory and counts. Of volumes with a common ancestor only the maps before it are gone through: a page that none of
//! these has any of is the ancestor's for both, and thus equal. What was read stays as it is stored, so that what is equal is
//! not decoded.

use std::collections::{BTreeMap, BTreeSet};

use meta::{MapId, MapRows, Mapping, MetaError, RowEntries, Store, VolumeInfo};

use crate::Result;
use crate::metadata::map_lock::MapRef;
use crate::metadata::page_map::{HerePage, PAGE, PageMap, Shown, page_end, page_start};
use crate::metadata::state::State;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::residency::pages::Window;
use crate::sync::wait::lock;

/// Mappings that are read of one map at a time.
const MAPPINGS: usize = if cfg!(test) { 20 } else { 64 << 10 };

/// Mappings that are read of all maps together, before the part is cut to a page or two.
const ROWS: usize = if cfg!(test) { 60 } else { 256 << 10 };

/// Pages in memory that one look passes, of all maps together.
const LOOK: usize = if cfg!(test) { 6 } else { 4096 };

/// Pages that are looked at with the state locked.
const STEP: usize = if cfg!(test) { 2 } else { 64 };

/// Pages that are read of common ancestors at a time.
const PAGES: usize = if cfg!(test) { 4 } else { 1024 };

/// Sub-blocks of a row of the store.
const ROW: u64 = 64;

/// All entries of a page, by bits.
const ALL: u64 = u64::MAX >> (u64::BITS as u64 - PAGE);

/// Pages that lie no further apart are read together.
const GAP: u64 = 4;

/// Rows of maps, by the map.
type Rows = BTreeMap<MapId, MapRows>;

/// What is read of one map at least: rows end with a page, so that is always one.
const MAPPINGS_MIN: usize = 1;

/// What one volume sees.
#[derive(PartialEq, Eq)]
struct Side {
    volume: u32,
    /// Its map and the ancestors of that, the nearest first.
    line: Vec<MapId>,
    is_trimming: bool,
}

impl Side {
    fn of(state: &State, core: &VolumeCore) -> Result<Self> {
        let entry = state.active(core.id)?;
        Ok(Self {
            volume: core.id,
            line: state.line_of(entry.info.map),
            is_trimming: !entry.info.trimming.is_empty(),
        })
    }

    fn info<'a>(&self, state: &'a State) -> Option<&'a VolumeInfo> {
        state.volumes.get(&self.volume).map(|entry| &*entry.info)
    }
}

/// A map, and what was read of it.
type ReadMap<'a> = (&'a PageMap, Option<&'a MapRows>);

/// Maps that are looked at together, each once: those of volumes are locked.
type Locked<'a> = BTreeMap<MapId, MapRef<'a>>;

/// Those of some maps that were read, or have anything in memory.
fn read_maps<'a>(locked: &'a Locked<'_>, rows: &'a Rows, maps: &[MapId]) -> Vec<ReadMap<'a>> {
    let with_rows = |id: &MapId| {
        let map = &**locked.get(id)?;
        let rows = rows.get(id);
        (rows.is_some() || map.has_pages()).then_some((map, rows))
    };
    maps.iter().filter_map(with_rows).collect()
}

/// Whether a sub-block reads as it is mapped.
fn reads_as_mapped(info: &VolumeInfo, sub_block: u64) -> bool {
    let end = info.size_bytes / crate::SUB_BLOCK_BYTES as u64;
    sub_block < end && !info.is_trimming(sub_block)
}

/// Up to which page all of a volume reads as it is mapped.
fn uncut_upto(info: &VolumeInfo) -> u64 {
    match info.trimming.is_empty() {
        true => info.size_bytes / crate::SUB_BLOCK_BYTES as u64 / PAGE,
        false => 0,
    }
}

/// What one map has of a page.
enum Layer<'a> {
    /// In memory.
    Here(HerePage<'a>),
    /// As it is stored.
    Stored(RowEntries<'a>),
}

impl<'a> Layer<'a> {
    /// `None` if the map has nothing of the page.
    fn of((map, rows): ReadMap<'a>, number: u64) -> Option<Self> {
        match map.look(number) {
            Shown::Here(page) => Some(Self::Here(page)),
            Shown::Stored => {
                let first = number * PAGE;
                let rows = rows?.within(first, first + PAGE);
                (!rows.is_empty()).then_some(Self::Stored(rows))
            }
            Shown::Nowhere => None,
        }
    }

    /// Which entries are the map's own, by bits.
    fn own(&self, number: u64) -> u64 {
        match self {
            Self::Here(page) => page.own(),
            Self::Stored(rows) => rows.positions() >> (number * PAGE % ROW),
        }
    }

    /// What shows of a sub-block, which may be nothing. `None`: only maps behind this one can tell.
    fn shown(&self, sub_block: u64) -> Option<Option<Mapping>> {
        match self {
            Self::Here(page) => page.shown((sub_block % PAGE) as usize),
            Self::Stored(rows) => {
                let mapping = rows.get((sub_block % ROW) as u8)?;
                Some(Some(mapping).filter(|mapping| !mapping.is_hole()))
            }
        }
    }
}

/// What the only layer has as it is stored, or nothing if there is none.
fn as_stored<'a>(layers: &[Layer<'a>]) -> Option<RowEntries<'a>> {
    match layers {
        [] => Some(RowEntries::EMPTY),
        [Layer::Stored(rows)] => Some(*rows),
        _ => None,
    }
}

/// What shows of a sub-block through layers, of which the first is the nearest.
fn shown(layers: &[Layer<'_>], behind: &[Layer<'_>], sub_block: u64) -> Option<Mapping> {
    let mut all = layers.iter().chain(behind);
    all.find_map(|layer| layer.shown(sub_block)).flatten()
}

/// A part of what two volumes see, or of what one sees and nothing.
pub(crate) struct Lines<'a> {
    shared: &'a Shared,
    sides: Vec<Side>,
    /// How many maps of each side's line no other side has.
    own: Vec<usize>,
    /// Whether the rest of the lines is the same.
    has_common: bool,
    rows: Rows,
    /// Pages that may differ.
    pages: BTreeSet<u64>,
    /// Up to here the part reaches: a first sub-block of a page.
    pub(crate) end: u64,
    windows: Vec<Window<'a>>,
}

/// Looked at: pages from one on up to another.
pub(crate) struct Seen {
    /// Where to go on: a first sub-block of a page.
    pub(crate) upto: u64,
    /// How many pages were compared.
    pub(crate) pages: usize,
}

/// How many maps at the beginning of each line no other line has, and whether the rest is common.
fn own_maps(sides: &[Side]) -> (Vec<usize>, bool) {
    let all = (sides.iter().map(|side| side.line.len()).collect(), false);
    let [a, b] = sides else {
        return all;
    };
    // What is being trimmed reads as zeros, whatever an ancestor has there.
    if a.is_trimming || b.is_trimming {
        return all;
    }
    let of_b: BTreeMap<MapId, usize> = b.line.iter().copied().zip(0..).collect();
    let mut of_a = a.line.iter().enumerate();
    match of_a.find_map(|(of_a, id)| Some((of_a, *of_b.get(id)?))) {
        Some((of_a, of_b)) => (vec![of_a, of_b], true),
        None => all,
    }
}

/// What one look reads of the store.
struct Plan {
    /// Maps whose pages may differ.
    own: BTreeSet<MapId>,
    /// The ancestors of all, the nearest first.
    common: Vec<MapId>,
    start: u64,
    end: u64,
    /// Pages of the first maps that are in memory.
    pages: BTreeSet<u64>,
}

impl Plan {
    /// Reads what is to be read. Cuts the part short where one look reads enough.
    fn read(&mut self, store: &dyn Store) -> std::result::Result<Rows, MetaError> {
        let mut rows = Rows::new();
        let mut left = ROWS;
        // Only of so many pages what ancestors have is read then.
        let rows_max = match self.common.is_empty() {
            true => usize::MAX,
            false => PAGES,
        };
        for map in &self.own {
            let count_max = left.clamp(MAPPINGS_MIN, MAPPINGS);
            let read = store.map_rows(*map, self.start, self.end, (rows_max, count_max))?;
            if read.count() >= count_max || read.rows() >= rows_max {
                self.end = self.end.min(read.end());
            }
            left = left.saturating_sub(read.count());
            if !read.is_empty() {
                rows.insert(*map, read);
            }
        }
        let part = self.start / PAGE..self.end.div_ceil(PAGE);
        for read in rows.values() {
            let pages = read.parts(PAGE).filter(|page| part.contains(page));
            self.pages.extend(pages);
        }
        self.pages.split_off(&part.end);
        if self.common.is_empty() {
            return Ok(rows);
        }
        if let Some(page) = self.pages.iter().nth(PAGES).copied() {
            self.end = page * PAGE;
            self.pages.split_off(&page);
        }
        let pages: Vec<u64> = self.pages.iter().copied().collect();
        for pages in pages.chunk_by(|a, b| b - a <= GAP) {
            // Which entries of these pages no map has so far, by bits.
            let mut missing: BTreeMap<u64, u64> = pages.iter().map(|page| (*page, ALL)).collect();
            for map in &self.common {
                let (Some((first, _)), Some((last, _))) =
                    (missing.first_key_value(), missing.last_key_value())
                else {
                    break; // what further ancestors have does not show
                };
                let range = (first * PAGE, (last + 1).saturating_mul(PAGE));
                let read = store.map_rows(*map, range.0, range.1, (usize::MAX, usize::MAX))?;
                missing.retain(|page, left| {
                    let found = read.within(page * PAGE, (page + 1) * PAGE).positions();
                    *left &= !(found >> (page * PAGE % ROW));
                    *left != 0
                });
                rows.entry(*map).or_default().append(&read);
            }
        }
        Ok(rows)
    }
}

impl<'a> Lines<'a> {
    /// Reads what one or two volumes see from the page of a sub-block on, as far as one look goes.
    ///
    /// # Errors
    /// `NotFound` if a volume was deleted; or the store cannot be read.
    pub(crate) async fn read(
        shared: &'a Shared,
        cores: &[&VolumeCore],
        (start, end): (u64, u64),
    ) -> Result<Self> {
        let (start, end) = (page_start(start), page_end(end));
        let (mut lines, mut plan) = Self::hold(shared, cores, (start, end))?;
        let store = shared.store.clone();
        let read = shared.block_on(move || {
            let rows = plan.read(&*store);
            rows.map(|rows| (rows, plan))
        });
        let read: std::result::Result<_, MetaError> = read.await;
        (lines.rows, plan) = read?;
        lines.pages = plan.pages;
        lines.end = plan.end;
        for window in &mut lines.windows {
            window.shorten(lines.end);
        }
        Ok(lines)
    }

    /// Nothing of the part leaves memory from now on.
    fn hold(
        shared: &'a Shared,
        cores: &[&VolumeCore],
        (start, mut end): (u64, u64),
    ) -> Result<(Self, Plan)> {
        let mut state = lock(&shared.state);
        let sides = cores.iter().map(|core| Side::of(&state, core));
        let sides = sides.collect::<Result<Vec<_>>>()?;
        let (own_counts, has_common) = own_maps(&sides);
        let lines = sides.iter().zip(&own_counts);
        // What parents have does not change; those that have nothing there are not asked.
        let may_have = |id: &&MapId| {
            let parent = state.ancestry.parents.get(*id);
            parent.is_none_or(|parent| parent.map.may_have(start, end))
        };
        let own: BTreeSet<MapId> = lines
            .flat_map(|(side, own)| &side.line[..*own])
            .filter(may_have)
            .copied()
            .collect();
        let common = match (has_common, sides.first(), own_counts.first()) {
            (true, Some(side), Some(own)) => {
                let common = side.line[*own..].iter();
                common.filter(may_have).copied().collect()
            }
            _ => Vec::new(),
        };
        let mut pages = BTreeSet::new();
        let looks = (LOOK / own.len().max(1)).max(1);
        for map in own.iter().filter_map(|id| state.map(*id)) {
            let (of_map, upto) = map.own_pages(start, end, looks);
            pages.extend(of_map);
            end = end.min(upto);
        }
        let all = own.iter().chain(&common);
        let windows = all
            .filter_map(|id| Window::hold(shared, &mut state, *id, (start, end)))
            .collect();
        let lines = Self {
            shared,
            sides,
            own: own_counts,
            has_common,
            rows: Rows::new(),
            pages: BTreeSet::new(),
            end,
            windows,
        };
        let plan = Plan {
            own,
            common,
            start,
            end,
            pages,
        };
        Ok((lines, plan))
    }

    /// Looks at some pages from that of `from` on, at one moment: gives `each` the sub-blocks where the volumes map
    /// other blocks, or where the one volume maps any. `None`: what was read is not what they see any more.
    ///
    /// # Errors
    /// `NotFound` if a volume was deleted.
    pub(crate) fn see(
        &self,
        cores: &[&VolumeCore],
        from: u64,
        mut each: impl FnMut(u64),
    ) -> Result<Option<Seen>> {
        let state = lock(&self.shared.state);
        for (core, side) in cores.iter().zip(&self.sides) {
            if Side::of(&state, core)? != *side {
                return Ok(None);
            }
        }
        let from = page_start(from);
        let ahead = self.pages.range(from / PAGE..self.end / PAGE);
        let mut pages: BTreeSet<u64> = ahead.take(STEP + 1).copied().collect();
        let step_end = pages.iter().nth(STEP).map(|next| next * PAGE);
        let step_end = step_end.unwrap_or(self.end);
        let (late, mut upto) = self.late_pages(&state, (from, step_end));
        // What the common ancestors have of such a page was not read.
        if self.has_common
            && let Some(late) = late.first()
        {
            upto = upto.min(late * PAGE);
            if upto <= from {
                return Ok(None);
            }
        }
        pages.extend(late);
        pages.split_off(&(upto / PAGE));
        if let Some(next) = pages.iter().nth(STEP).copied() {
            upto = next * PAGE;
            pages.split_off(&next);
        }
        let infos: Vec<_> = self.sides.iter().map(|side| side.info(&state)).collect();
        let uncut = infos.iter().map(|info| info.map_or(0, uncut_upto)).min();
        let lines = self.sides.iter().flat_map(|side| &side.line);
        let mut locked = Locked::new();
        for id in lines {
            if !locked.contains_key(id)
                && let Some(map) = state.map(*id)
            {
                locked.insert(*id, map);
            }
        }
        let own: Vec<_> = (self.sides.iter().zip(&self.own))
            .map(|(side, own)| read_maps(&locked, &self.rows, &side.line[..*own]))
            .collect();
        let behind = match (self.has_common, self.sides.first(), self.own.first()) {
            (true, Some(side), Some(own)) => read_maps(&locked, &self.rows, &side.line[*own..]),
            _ => Vec::new(),
        };
        let (mut faces, mut common) = ([const { Vec::new() }; 2], Vec::new());
        for number in &pages {
            let number = *number;
            for (face, maps) in faces.iter_mut().zip(&own) {
                face.clear();
                face.extend(maps.iter().filter_map(|map| Layer::of(*map, number)));
            }
            let is_uncut = uncut.is_some_and(|uncut| number < uncut);
            if let (Some(a), Some(b)) = (as_stored(&faces[0]), as_stored(&faces[1]))
                && is_uncut
                && !self.has_common
            {
                if a != b {
                    let first = number * PAGE;
                    a.differences(b, |position| each(first + u64::from(position) % PAGE));
                }
                continue;
            }
            // What no map has that only one of them sees is equal, as far as both see it.
            let layers = faces.iter().flatten();
            let mut left = match is_uncut {
                true => layers.fold(0, |own, layer| own | layer.own(number)),
                false => ALL,
            };
            common.clear();
            if left != 0 {
                common.extend(behind.iter().filter_map(|map| Layer::of(*map, number)));
            }
            while left != 0 {
                let at = number * PAGE + u64::from(left.trailing_zeros());
                left &= left - 1;
                let [a, b] = [0, 1].map(|side| {
                    let info = infos.get(side).copied().flatten();
                    let reads = is_uncut || info.is_some_and(|info| reads_as_mapped(info, at));
                    reads.then(|| shown(&faces[side], &common, at)).flatten()
                });
                if a != b {
                    each(at);
                }
            }
        }
        Ok(Some(Seen {
            upto,
            pages: pages.len(),
        }))
    }

    /// Pages of a part that volumes made their own since this was read, and up to where was looked for them.
    fn late_pages(&self, state: &State, (from, end): (u64, u64)) -> (BTreeSet<u64>, u64) {
        let mut late = BTreeSet::new();
        let mut upto = end;
        for (side, own) in self.sides.iter().zip(&self.own) {
            let head = side.line.first().filter(|_| *own > 0);
            let Some(map) = head.and_then(|id| state.map(*id)) else {
                continue;
            };
            let (pages, looked_upto) = map.own_pages(from, upto, LOOK);
            upto = looked_upto;
            late.extend(pages.into_iter().filter(|page| !self.pages.contains(page)));
        }
        late.split_off(&(upto / PAGE));
        (late, upto)
    }
}
