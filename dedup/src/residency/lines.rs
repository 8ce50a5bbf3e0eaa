//! Looking at maps without bringing them into memory: what two volumes see, page by page.
//!
//! A part of the maps is read from the store in order, with a window open on it, so that what changes meanwhile is in
//! memory and counts. Of volumes with a common ancestor only the maps before it are gone through: a page that none of
//! these has any of is the ancestor's for both, and thus equal. What was read stays as it is stored, so that what is equal is
//! not decoded.

use std::collections::{BTreeMap, BTreeSet};

use meta::{MapId, MapRows, MetaError, RowEntries, Store};

use crate::Result;
use crate::metadata::page_map::{PAGE, PageEntries, PageMap, Shown, Sight, page_end, page_start};
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
            line: state.line_of(entry.map.id()),
            is_trimming: !entry.info.trimming.is_empty(),
        })
    }

    /// Those of its maps that were read, or have anything in memory, the nearest first.
    fn maps<'a>(
        &self,
        state: &'a State,
        rows: &'a Rows,
    ) -> Vec<(&'a PageMap, Option<&'a MapRows>)> {
        let with_rows = |id: &MapId| {
            let map = state.map(*id)?;
            let rows = rows.get(id);
            (rows.is_some() || map.has_pages()).then_some((map, rows))
        };
        self.line.iter().filter_map(with_rows).collect()
    }

    /// Takes out of a page what does not read as it is mapped.
    fn cut(&self, state: &State, number: u64, page: &mut PageEntries) {
        if let Some(info) = state.volumes.get(&self.volume).map(|entry| &entry.info) {
            let end = info.size_bytes / crate::SUB_BLOCK_BYTES as u64;
            for (at, entry) in (number * PAGE..).zip(page) {
                if at >= end || info.is_trimming(at) {
                    *entry = None;
                }
            }
        }
    }

    /// Up to which page all reads as it is mapped.
    fn uncut_upto(&self, state: &State) -> u64 {
        let info = state.volumes.get(&self.volume).map(|entry| &entry.info);
        let info = info.filter(|info| info.trimming.is_empty());
        info.map_or(0, |info| {
            info.size_bytes / crate::SUB_BLOCK_BYTES as u64 / PAGE
        })
    }
}

/// What one volume sees of a page.
enum Face<'a> {
    /// What was read of one map says it.
    Stored(RowEntries<'a>),
    /// What several maps have, or one has in memory.
    Seen(Box<Sight>),
}

impl<'a> Face<'a> {
    /// What shows of a page through these maps, of which the first is the nearest.
    fn of(maps: &[(&PageMap, Option<&'a MapRows>)], number: u64) -> Self {
        let first = number * PAGE;
        let mut only = RowEntries::EMPTY;
        let mut seen: Option<Box<Sight>> = None;
        for (map, rows) in maps {
            let rows = match map.look(number) {
                Shown::Here => None,
                Shown::Stored => rows.map(|rows| rows.within(first, first + PAGE)),
                Shown::Nowhere => continue,
            };
            match (rows, &mut seen) {
                (Some(rows), _) if rows.is_empty() => {}
                (Some(rows), None) if only.is_empty() && rows.len() == PAGE as usize => {
                    return Self::Stored(rows);
                }
                (Some(rows), None) if only.is_empty() => only = rows,
                (rows, _) => {
                    let seen = seen.get_or_insert_with(|| sight_of(only));
                    match rows {
                        Some(rows) => add_rows(seen, rows),
                        None => map.show(number, Some(&[]), seen).unwrap_or_default(),
                    }
                    if seen.is_full() {
                        break;
                    }
                }
            }
        }
        seen.map_or(Self::Stored(only), Self::Seen)
    }

    fn entries(self) -> PageEntries {
        match self {
            Self::Stored(rows) => sight_of(rows).entries,
            Self::Seen(seen) => seen.entries,
        }
    }
}

fn add_rows(seen: &mut Sight, rows: RowEntries<'_>) {
    for (position, mapping) in rows.iter() {
        seen.add(usize::from(position) % PAGE as usize, mapping);
    }
}

fn sight_of(rows: RowEntries<'_>) -> Box<Sight> {
    let mut seen = Box::new(Sight::new());
    add_rows(&mut seen, rows);
    seen
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
        let uncut = self.sides.iter().map(|side| side.uncut_upto(&state)).min();
        let maps: Vec<_> = self
            .sides
            .iter()
            .map(|side| side.maps(&state, &self.rows))
            .collect();
        for number in &pages {
            let number = *number;
            let mut faces = [const { Face::Stored(RowEntries::EMPTY) }; 2];
            for (maps, face) in maps.iter().zip(&mut faces) {
                *face = Face::of(maps, number);
            }
            if let [Face::Stored(a), Face::Stored(b)] = faces
                && uncut.is_some_and(|uncut| number < uncut)
            {
                if a != b {
                    let first = number * PAGE;
                    a.differences(b, |position| each(first + u64::from(position) % PAGE));
                }
                continue;
            }
            let mut seen = faces.map(Face::entries);
            for (side, page) in self.sides.iter().zip(&mut seen) {
                side.cut(&state, number, page);
            }
            let [a, b] = &seen;
            let entries = (number * PAGE..).zip(a.iter().zip(b));
            entries
                .filter(|(_, (a, b))| a != b)
                .for_each(|(at, _)| each(at));
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
