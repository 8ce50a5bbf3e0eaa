//! Looking at maps without bringing them into memory: what two volumes see, page by page.
//!
//! A part of the maps is read from the store in order, with a window open on it, so that what changes meanwhile is in
//! memory and counts. Of volumes with a common ancestor only the maps before it are gone through: a page that none of
//! these has any of is the ancestor's for both, and thus equal. What was read stays as it is stored, so that what is equal is
//! not decoded.
//!
//! Who reads a part compares it too, as it is stored. A look, with the state locked, takes that for every page that did not
//! change since the store had it, and compares only the others again.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use meta::{MapId, MapRows, Mapping, MetaError, RowCursor, RowEntries, Store, VolumeInfo};

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

/// The same where nothing changed since the store had it, so that what was read is right.
const STEP_STORED: usize = if cfg!(test) { 5 } else { 1024 };

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
    Stored(StoredPage<'a>),
}

impl<'a> Layer<'a> {
    /// `None` if the map has nothing of the page.
    fn of((map, rows): ReadMap<'a>, number: u64) -> Option<Self> {
        match map.look(number) {
            Shown::Here(page) => Some(Self::Here(page)),
            Shown::Stored => {
                let first = number * PAGE;
                StoredPage::of(rows?.within(first, first + PAGE)).map(Self::Stored)
            }
            Shown::Nowhere => None,
        }
    }
}

/// What one map has of a page, in memory or as it is stored.
trait Own {
    /// Which entries of a page are the map's own, by bits.
    fn own(&self, number: u64) -> u64;

    /// What shows of a sub-block, which may be nothing. `None`: only maps behind this one can tell.
    fn shown(&self, sub_block: u64) -> Option<Option<Mapping>>;
}

impl Own for Layer<'_> {
    fn own(&self, number: u64) -> u64 {
        match self {
            Self::Here(page) => page.own(),
            Self::Stored(page) => page.own(number),
        }
    }

    fn shown(&self, sub_block: u64) -> Option<Option<Mapping>> {
        match self {
            Self::Here(page) => page.shown((sub_block % PAGE) as usize),
            Self::Stored(page) => page.shown(sub_block),
        }
    }
}

/// What is stored of a page in one map.
struct StoredPage<'a> {
    rows: RowEntries<'a>,
    /// Which of its row are there, by bits.
    positions: u64,
}

impl<'a> StoredPage<'a> {
    /// `None` if there is nothing.
    fn of(rows: RowEntries<'a>) -> Option<Self> {
        let positions = rows.positions();
        (positions != 0).then_some(Self { rows, positions })
    }
}

impl Own for StoredPage<'_> {
    fn own(&self, number: u64) -> u64 {
        self.positions >> (number * PAGE % ROW)
    }

    fn shown(&self, sub_block: u64) -> Option<Option<Mapping>> {
        let mapping = self.rows.get(self.positions, (sub_block % ROW) as u8)?;
        Some(Some(mapping).filter(|mapping| !mapping.is_hole()))
    }
}

/// What shows of a sub-block through layers, of which the first is the nearest.
fn shown<L: Own>(layers: &[L], behind: &[L], sub_block: u64) -> Option<Mapping> {
    let mut all = layers.iter().chain(behind);
    all.find_map(|layer| layer.shown(sub_block)).flatten()
}

/// The entries that one side's maps have of a page, by bits.
fn own_of<L: Own>(layers: &[L], number: u64) -> u64 {
    layers.iter().fold(0, |own, layer| own | layer.own(number))
}

/// A page of maps, and what is stored of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadPage {
    number: u64,
    /// Which entries differ between two volumes that see of the page what is stored, by bits.
    differs: u64,
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
    /// Pages that may differ, in order.
    pages: Vec<ReadPage>,
    /// The store had what all records up to this one changed when the rows were read.
    stored: u64,
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
    /// Those of each side, the nearest first.
    lines: Vec<Vec<MapId>>,
    /// The ancestors of all, the nearest first.
    common: Vec<MapId>,
    start: u64,
    end: u64,
    /// Pages of the first maps that are in memory.
    in_memory: Vec<u64>,
}

impl Plan {
    /// Reads what is to be read, and compares it. Cuts the part short where one look reads enough.
    fn read(&mut self, store: &dyn Store) -> std::result::Result<(Rows, Vec<ReadPage>), MetaError> {
        let mut rows = Rows::new();
        let mut left = ROWS;
        // Only of so many pages what ancestors have is read then.
        let rows_max = match self.common.is_empty() {
            true => usize::MAX,
            false => PAGES,
        };
        for map in &self.own {
            let count_max = left.clamp(MAPPINGS_MIN, MAPPINGS);
            let range = self.start..self.end;
            let read = store.map_rows(*map, slice::from_ref(&range), (rows_max, count_max))?;
            if read.count() >= count_max || read.rows() >= rows_max {
                self.end = self.end.min(read.end());
            }
            left = left.saturating_sub(read.count());
            if !read.is_empty() {
                rows.insert(*map, read);
            }
        }
        let part = self.start / PAGE..self.end.div_ceil(PAGE);
        let mut pages = std::mem::take(&mut self.in_memory);
        pages.retain(|page| part.contains(page));
        for read in rows.values() {
            pages.extend(read.parts(PAGE).filter(|page| part.contains(page)));
        }
        // They are a few runs in order, one behind the other.
        pages.sort();
        pages.dedup();
        if !self.common.is_empty() {
            if let Some(page) = pages.get(PAGES).copied() {
                self.end = page * PAGE;
                pages.truncate(PAGES);
            }
            self.read_common(&pages, store, &mut rows)?;
        }
        let differs = self.compare(&pages, &rows);
        Ok((rows, differs))
    }

    /// Reads what common ancestors have of pages, as far as it shows.
    fn read_common(
        &self,
        pages: &[u64],
        store: &dyn Store,
        rows: &mut Rows,
    ) -> std::result::Result<(), MetaError> {
        // Which entries of these pages no map has so far, by bits.
        let mut missing: Vec<(u64, u64)> = pages.iter().map(|page| (*page, ALL)).collect();
        for map in &self.common {
            let ranges = missing.chunk_by(|(a, _), (b, _)| b - a <= GAP);
            let ranges = ranges.filter_map(|pages| {
                let ((first, _), (last, _)) = (pages.first()?, pages.last()?);
                Some(first * PAGE..(last + 1).saturating_mul(PAGE))
            });
            let ranges: Vec<_> = ranges.collect();
            if ranges.is_empty() {
                break; // what further ancestors have does not show
            }
            let read = store.map_rows(*map, &ranges, (usize::MAX, usize::MAX))?;
            let mut cursor = read.cursor();
            missing.retain_mut(|(page, left)| {
                let found = cursor.within(*page * PAGE, (*page + 1).saturating_mul(PAGE));
                *left &= !(found.positions() >> (*page * PAGE % ROW));
                *left != 0
            });
            if !read.is_empty() {
                rows.insert(*map, read);
            }
        }
        Ok(())
    }

    /// What differs in pages, as it is stored.
    fn compare(&self, pages: &[u64], rows: &Rows) -> Vec<ReadPage> {
        let line = |side: usize| self.lines.get(side).map_or(&[][..], Vec::as_slice);
        let [mut a, mut b] = [0, 1].map(|side| StoredLine::new(line(side), rows));
        let mut behind = StoredLine::new(&self.common, rows);
        let compare = |number: &u64| {
            let (a, b) = (a.page(*number), b.page(*number));
            let differs = match own_of(a, *number) | own_of(b, *number) {
                0 => 0,
                left => differences((a, b), behind.page(*number), *number, left),
            };
            ReadPage {
                number: *number,
                differs,
            }
        };
        pages.iter().map(compare).collect()
    }
}

/// What is stored of maps that lie behind each other, page by page in order.
struct StoredLine<'a> {
    maps: Vec<RowCursor<'a>>,
    layers: Vec<StoredPage<'a>>,
}

impl<'a> StoredLine<'a> {
    fn new(maps: &[MapId], rows: &'a Rows) -> Self {
        let maps = maps.iter().filter_map(|map| rows.get(map));
        Self {
            maps: maps.map(MapRows::cursor).collect(),
            layers: Vec::new(),
        }
    }

    /// What they have of a page, the nearest first.
    fn page(&mut self, number: u64) -> &[StoredPage<'a>] {
        let (first, end) = (number * PAGE, (number + 1).saturating_mul(PAGE));
        self.layers.clear();
        let rows = self.maps.iter_mut().map(|map| map.within(first, end));
        self.layers.extend(rows.filter_map(StoredPage::of));
        &self.layers
    }
}

/// What the only layer has, or nothing if there is none.
fn only<'a>(layers: &[StoredPage<'a>]) -> Option<RowEntries<'a>> {
    match layers {
        [] => Some(RowEntries::EMPTY),
        [page] => Some(page.rows),
        _ => None,
    }
}

/// Which entries of a page differ between two sides, of those that either has, by bits.
fn differences(
    (a, b): (&[StoredPage<'_>], &[StoredPage<'_>]),
    behind: &[StoredPage<'_>],
    number: u64,
    left: u64,
) -> u64 {
    if let (Some(a), Some(b), []) = (only(a), only(b), behind) {
        let mut differs = 0;
        if a != b {
            a.differences(b, |position| differs |= 1 << (u64::from(position) % PAGE));
        }
        return differs;
    }
    differing(left, number, |at| {
        shown(a, behind, at) != shown(b, behind, at)
    })
}

/// Those of some entries of a page, by bits, whose sub-blocks differ.
fn differing(mut left: u64, number: u64, differs: impl Fn(u64) -> bool) -> u64 {
    let mut found = 0;
    while left != 0 {
        let bit = left & left.wrapping_neg();
        left ^= bit;
        if differs(number * PAGE + u64::from(bit.trailing_zeros())) {
            found |= bit;
        }
    }
    found
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
            let read = plan.read(&*store);
            read.map(|read| (read, plan))
        });
        let read: std::result::Result<_, MetaError> = read.await;
        ((lines.rows, lines.pages), plan) = read?;
        lines.end = plan.end;
        for window in &mut lines.windows {
            window.shorten(lines.end);
        }
        Ok(lines)
    }

    /// Whether there are so few pages that the next part may be larger.
    pub(crate) fn is_small(&self) -> bool {
        self.pages.len() < PAGES / 2
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
        // What parents have does not change; those that have nothing there are not asked.
        let may_have = |id: &&MapId| {
            let parent = state.ancestry.parents.get(*id);
            parent.is_none_or(|parent| parent.map.may_have(start, end))
        };
        let lines = sides.iter().zip(&own_counts).map(|(side, own)| {
            let own = side.line[..*own].iter().filter(may_have);
            own.copied().collect()
        });
        let lines: Vec<Vec<MapId>> = lines.collect();
        let own: BTreeSet<MapId> = lines.iter().flatten().copied().collect();
        let common = match (has_common, sides.first(), own_counts.first()) {
            (true, Some(side), Some(own)) => {
                let common = side.line[*own..].iter();
                common.filter(may_have).copied().collect()
            }
            _ => Vec::new(),
        };
        let mut in_memory = Vec::new();
        let looks = (LOOK / own.len().max(1)).max(1);
        for map in own.iter().filter_map(|id| state.map(*id)) {
            let (of_map, upto) = map.own_pages(start, end, looks);
            in_memory.extend(of_map);
            end = end.min(upto);
        }
        let all = own.iter().chain(&common);
        let windows = all
            .filter_map(|id| Window::hold(shared, &mut state, *id, (start, end)))
            .collect();
        let held = Self {
            shared,
            sides,
            own: own_counts,
            has_common,
            rows: Rows::new(),
            pages: Vec::new(),
            stored: state.resident.stored(),
            end,
            windows,
        };
        let plan = Plan {
            own,
            lines,
            common,
            start,
            end,
            in_memory,
        };
        Ok((held, plan))
    }

    /// Looks at some pages from that of `from` on, at one moment: gives `each` the runs of sub-blocks where the volumes map
    /// other blocks, or where the one volume maps any. `None`: what was read is not what they see any more.
    ///
    /// # Errors
    /// `NotFound` if a volume was deleted.
    pub(crate) fn see(
        &self,
        cores: &[&VolumeCore],
        from: u64,
        mut each: impl FnMut(u64, u64),
    ) -> Result<Option<Seen>> {
        let seen = self.seen_at_once(cores, page_start(from))?;
        let Some((pages, upto)) = seen else {
            return Ok(None);
        };
        for page in pages.iter().filter(|page| page.differs != 0) {
            let (mut at, mut left) = (page.number * PAGE, page.differs);
            while left != 0 {
                let (gap, run) = (
                    left.trailing_zeros(),
                    (left >> left.trailing_zeros()).trailing_ones(),
                );
                at += u64::from(gap);
                each(at, u64::from(run));
                at += u64::from(run);
                left = left.unbounded_shr(gap + run);
            }
        }
        Ok(Some(Seen {
            upto,
            pages: pages.len(),
        }))
    }

    /// What differs in some pages from that of `from` on, at one moment, and up to where that is.
    fn seen_at_once(
        &self,
        cores: &[&VolumeCore],
        from: u64,
    ) -> Result<Option<(Vec<ReadPage>, u64)>> {
        let state = lock(&self.shared.state);
        for (core, side) in cores.iter().zip(&self.sides) {
            if Side::of(&state, core)? != *side {
                return Ok(None);
            }
        }
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
        // Maps that changed since they were read, or since the store last had everything.
        let changed = own.iter().flatten().chain(&behind);
        let changed = changed.filter(|(map, _)| !map.is_as_stored(self.stored));
        let changed: Vec<_> = changed.copied().collect();
        let step = match changed.is_empty() {
            true => STEP_STORED,
            false => STEP,
        };
        let ahead = self.pages.partition_point(|page| page.number < from / PAGE);
        let ahead = &self.pages[ahead..];
        let step_end = ahead.get(step).map(|next| next.number * PAGE);
        let step_end = step_end.unwrap_or(self.end);
        let (new, mut upto) = match changed.is_empty() {
            true => (BTreeSet::new(), step_end),
            false => self.pages_since(&locked, (from, step_end)),
        };
        // What the common ancestors have of such a page was not read.
        if self.has_common
            && let Some(first) = new.first()
        {
            upto = upto.min(first * PAGE);
            if upto <= from {
                return Ok(None);
            }
        }
        let ahead = ahead.iter().take_while(|page| page.number < upto / PAGE);
        let mut pages: Vec<ReadPage> = ahead.copied().collect();
        let new = new.into_iter().take_while(|page| *page < upto / PAGE);
        pages.extend(new.map(|number| ReadPage { number, differs: 0 }));
        pages.sort_by_key(|page| page.number);
        if let Some(next) = pages.get(step) {
            upto = next.number * PAGE;
            pages.truncate(step);
        }
        let infos: Vec<_> = self.sides.iter().map(|side| side.info(&state)).collect();
        let uncut = infos.iter().map(|info| info.map_or(0, uncut_upto)).min();
        let (mut faces, mut common) = ([const { Vec::new() }; 2], Vec::new());
        for page in &mut pages {
            let number = page.number;
            let is_uncut = uncut.is_some_and(|uncut| number < uncut);
            let is_as_stored = |(map, rows): &ReadMap<'_>| {
                let first = number * PAGE;
                let has_rows =
                    rows.is_some_and(|rows| !rows.within(first, first + PAGE).is_empty());
                map.is_page_as_stored(number, has_rows, self.stored)
            };
            if is_uncut && changed.iter().all(is_as_stored) {
                continue;
            }
            for (face, maps) in faces.iter_mut().zip(&own) {
                face.clear();
                face.extend(maps.iter().filter_map(|map| Layer::of(*map, number)));
            }
            // What no map has that only one of them sees is equal, as far as both see it.
            let left = match is_uncut {
                true => own_of(&faces[0], number) | own_of(&faces[1], number),
                false => ALL,
            };
            common.clear();
            if left != 0 {
                common.extend(behind.iter().filter_map(|map| Layer::of(*map, number)));
            }
            page.differs = differing(left, number, |at| {
                let [a, b] = [0, 1].map(|side| {
                    let info = infos.get(side).copied().flatten();
                    let reads = is_uncut || info.is_some_and(|info| reads_as_mapped(info, at));
                    reads.then(|| shown(&faces[side], &common, at)).flatten()
                });
                a != b
            });
        }
        Ok(Some((pages, upto)))
    }

    /// Pages of a part that volumes made their own since this was read, and up to where was looked for them.
    fn pages_since(&self, locked: &Locked<'_>, (from, end): (u64, u64)) -> (BTreeSet<u64>, u64) {
        let mut new = BTreeSet::new();
        let mut upto = end;
        let is_read = |page: &u64| {
            let known = self.pages.binary_search_by_key(page, |page| page.number);
            known.is_ok()
        };
        for (side, own) in self.sides.iter().zip(&self.own) {
            let head = side.line.first().filter(|_| *own > 0);
            let Some(map) = head.and_then(|id| locked.get(id)) else {
                continue;
            };
            let (pages, looked_upto) = map.own_pages(from, upto, LOOK);
            upto = looked_upto;
            new.extend(pages.into_iter().filter(|page| !is_read(page)));
        }
        new.split_off(&(upto / PAGE));
        (new, upto)
    }
}
