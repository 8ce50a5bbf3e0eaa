//! Bringing pages of maps into memory, while the pool is in use.
//!
//! A command brings in the pages of the range that it has locked. They stay until it unlocks the range
//! ([`crate::metadata::resident`]). Work on a whole map goes through it in windows, which keep their pages in the same
//! way. Whoever reads a page from the store, or looks at one, holds such a range or window. So what was read is never
//! older than what was evicted meanwhile. If another task brought the page in first, its page counts and the rows that
//! were read are dropped.
//!
//! Of a map with a parent, what it does not have itself comes from the nearest ancestor that has it. Those of which it
//! is noted that they have anything there are asked together ([`crate::metadata::owners`]), and they do not change.

use std::sync::Arc;

use meta::{MapId, Mapping, MetaError, Pba, Store};

use crate::metadata::ancestry::RowsOf;
use crate::metadata::owners::Answers;
use crate::metadata::page_map::{FOLDER, PAGE, Sight, View, page_end, page_start};
use crate::metadata::state::State;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::sync::wait::{lock, yield_once};
use crate::{EngineError, Result};

/// Mappings that are read from the store at a time, by work on a whole map.
const MAPPINGS: usize = if cfg!(test) { 20 } else { 1024 };

/// A part of a map: all that is mapped there is in memory, and stays as long as this lives. Let go of it
/// only when the state is not locked.
pub(crate) struct Window<'a> {
    shared: &'a Shared,
    map: MapId,
    number: u64,
    /// One past its last sub-block.
    pub(crate) end: u64,
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if let Some(mut map) = lock(&self.shared.state).map_mut(self.map) {
            map.let_go(self.number);
        }
    }
}

/// Mapped sub-blocks that follow each other.
pub(crate) struct Found<'a> {
    pub(crate) entries: Vec<(u64, Pba)>,
    /// Nothing else is mapped before this one.
    pub(crate) upto: u64,
    /// Keeps them in memory.
    pub(crate) window: Option<Window<'a>>,
}

impl Found<'_> {
    pub(crate) fn nothing(upto: u64) -> Self {
        Self {
            entries: Vec::new(),
            upto,
            window: None,
        }
    }
}

impl<'a> Window<'a> {
    /// Nothing of a part of a map leaves memory from now on; `None` if there is no such map.
    pub(crate) fn hold(
        shared: &'a Shared,
        state: &mut State,
        map: MapId,
        (start, end): (u64, u64),
    ) -> Option<Self> {
        let number = state.map_mut(map)?.hold(start, end);
        Some(Self {
            shared,
            map,
            number,
            end,
        })
    }

    /// The part ends here, not further on.
    pub(crate) fn shorten(&mut self, end: u64) {
        self.end = self.end.min(end);
        self.narrow();
    }

    fn narrow(&self) {
        if let Some(mut map) = lock(&self.shared.state).map_mut(self.map) {
            map.narrow(self.number, self.end);
        }
    }
}

/// Brings in the pages that commands on `start..end` of a volume need. The range is locked.
pub(crate) async fn bring_in(
    shared: &Shared,
    core: &VolumeCore,
    start: u64,
    end: u64,
) -> Result<()> {
    if core.is_whole() {
        return Ok(());
    }
    let missing: Vec<u64> = core.pages().missing(start, end).collect();
    for page in missing {
        load_page(shared, core.map(), page).await?;
    }
    Ok(())
}

/// Brings in a page; `start` is its first sub-block. A range is locked that it belongs to.
async fn load_page(shared: &Shared, map: MapId, start: u64) -> Result<()> {
    let end = page_end(start.saturating_add(1));
    let range = (start, end);
    load_pages(shared, map, range, usize::MAX, View::Visible)
        .await
        .map(drop)
}

/// Brings in pages from `start` on, up to `end` or to where the store has so many mappings of a map; returns where
/// that is. A range or a window is locked that they belong to.
async fn load_pages(
    shared: &Shared,
    map: MapId,
    range: (u64, u64),
    count_max: usize,
    view: View,
) -> Result<u64> {
    loop {
        let sources = match view {
            View::Own => Sources::of_map(shared, map),
            View::Visible if range.1 - range.0 == PAGE => {
                Sources::of_page(shared, map, range.0).await?
            }
            View::Visible => Sources::of_range(shared, map, range),
        };
        if let Some(upto) = load_from(shared, sources, range, count_max, view).await? {
            return Ok(upto);
        }
    }
}

/// The maps that have what is wanted.
struct Sources {
    /// A map, and those ancestors that may have anything there, the nearest first.
    maps: Vec<MapId>,
    /// So they are as long as no map got another parent.
    reparented: u64,
}

impl Sources {
    fn of_map(shared: &Shared, map: MapId) -> Self {
        Self {
            maps: vec![map],
            reparented: lock(&shared.state).ancestry.reparented,
        }
    }

    fn of_range(shared: &Shared, map: MapId, range: (u64, u64)) -> Self {
        let state = lock(&shared.state);
        let mut maps = vec![map];
        maps.extend(state.ancestors_with(map, range));
        Self {
            maps,
            reparented: state.ancestry.reparented,
        }
    }

    async fn of_page(shared: &Shared, map: MapId, start: u64) -> Result<Self> {
        let page = start / PAGE;
        let first = page / FOLDER * FOLDER;
        let folder = (first * PAGE, (first + FOLDER).saturating_mul(PAGE));
        let mut answers = Answers::new();
        let mut answered_at = None;
        // What the store did not have yet when it was asked is in memory when that is noted.
        let mut held = Vec::new();
        loop {
            let unknown = {
                let mut state = lock(&shared.state);
                let reparented = state.ancestry.reparented;
                if answered_at.replace(reparented) != Some(reparented) {
                    answers.clear();
                }
                match state.owners(map, page, &answers) {
                    Ok(owners) => {
                        let mut maps = vec![map];
                        maps.extend(owners);
                        return Ok(Self { maps, reparented });
                    }
                    Err(unknown) => {
                        let hold = |map: &MapId| Window::hold(shared, &mut state, *map, folder);
                        held.extend(unknown.iter().filter_map(hold));
                        unknown
                    }
                }
            };
            answers.extend(ask_for_owners(shared, unknown, folder).await?);
        }
    }
}

/// Which pages of a folder the store has of some maps.
async fn ask_for_owners(
    shared: &Shared,
    maps: Vec<MapId>,
    (start, end): (u64, u64),
) -> Result<Answers> {
    let store = shared.store.clone();
    let asked = shared.block_on(move || {
        let mut answers = Answers::new();
        for map in maps {
            let pages = store.mapped_parts(map, start, end, PAGE)?;
            let bits = pages.iter().map(|page| 1 << (page % FOLDER));
            answers.insert(map, bits.fold(0, |all, bit: u64| all | bit));
        }
        Ok(answers)
    });
    let asked: std::result::Result<_, MetaError> = asked.await;
    Ok(asked?)
}

/// What the store said of maps, the nearest first.
type Rows = Vec<RowsOf>;

/// Reads what these maps have in the store, up to so many mappings each; and where that ends.
fn read_rows(
    store: &dyn Store,
    maps: Vec<(MapId, bool)>,
    (start, mut end): (u64, u64),
    count_max: usize,
) -> std::result::Result<(u64, Rows), MetaError> {
    let is_page = end - start == PAGE;
    let mut seen = Sight::new();
    let mut found = Rows::with_capacity(maps.len());
    for (map, is_asked) in maps {
        // What nearer maps have hides the rest.
        if !is_asked || (is_page && seen.is_full()) {
            found.push((map, None));
            continue;
        }
        let rows = store.mappings(map, start, end, count_max)?;
        if rows.len() == count_max
            && let Some((at, _)) = rows.last()
        {
            // The last page may not be whole. It is not the first one: there are more rows.
            end = page_start(*at);
        }
        if is_page {
            seen.add_rows(&rows);
        }
        found.push((map, Some(rows)));
    }
    for rows in found.iter_mut().filter_map(|(_, rows)| rows.as_mut()) {
        rows.retain(|(at, _)| *at < end);
    }
    Ok((end, found))
}

/// Brings in pages of the first of these maps, whose ancestors the others are; `None` if they are not any more, or
/// others have to be asked.
async fn load_from(
    shared: &Shared,
    Sources { maps, reparented }: Sources,
    (start, end): (u64, u64),
    count_max: usize,
    view: View,
) -> Result<Option<u64>> {
    let is_page = end - start == PAGE;
    // What ancestors have in memory and the store does not have yet, stays until it is looked at.
    let (_held, maps) = {
        let mut state = lock(&shared.state);
        let ancestors = maps.iter().skip(1);
        let hold = |map: &MapId| Window::hold(shared, &mut state, *map, (start, end));
        let held: Vec<Window<'_>> = ancestors.filter_map(hold).collect();
        let is_asked = |map: &MapId| {
            let map = state.map(*map);
            !is_page || map.is_some_and(|map| map.is_stored(start / PAGE))
        };
        let maps: Vec<(MapId, bool)> = maps.iter().map(|map| (*map, is_asked(map))).collect();
        (held, maps)
    };
    let is_read = maps.iter().any(|(_, is_asked)| *is_asked);
    let (end, rows) = match is_read {
        true => {
            let store: Arc<dyn Store> = shared.store.clone();
            let read = shared.block_on(move || read_rows(&*store, maps, (start, end), count_max));
            let read: std::result::Result<_, MetaError> = read.await;
            read?
        }
        false => (end, maps.into_iter().map(|(map, _)| (map, None)).collect()),
    };
    let mut state = lock(&shared.state);
    // Maps that were merged meanwhile may have lost rows that were not read yet.
    if state.ancestry.reparented != reparented {
        return Ok(None);
    }
    let mut all = rows.iter().filter_map(|(_, rows)| rows.as_ref()).flatten();
    let is_nowhere = |mapping: &Mapping| !mapping.is_hole() && !state.space().contains(mapping.pba);
    if let Some((_, mapping)) = all.find(|(_, mapping)| is_nowhere(mapping)) {
        return Err(EngineError::no_such_block(mapping.pba));
    }
    if is_read {
        state.resident.was_read();
    }
    let upto = state.take_rows((start, end), &rows, view);
    state.evict_some();
    Ok(upto)
}

/// Brings in what is mapped from `start` on, up to some place before or at `end`; `None` if there is
/// no such map. Takes no longer, and no more memory, whatever is mapped.
pub(crate) async fn window(
    shared: &Shared,
    map: MapId,
    (start, end): (u64, u64),
    view: View,
) -> Result<Option<Window<'_>>> {
    let mut window = {
        let mut state = lock(&shared.state);
        let Some(mut pages) = state.map_mut(map) else {
            return Ok(None);
        };
        let known = pages.known_upto(start, end, view);
        let held = if known > start { known } else { end };
        Window {
            shared,
            map,
            number: pages.hold(start, held),
            end: known,
        }
    };
    if window.end > start || start >= end {
        return Ok(Some(window));
    }
    window.end = end.min(load_some_pages(shared, map, (start, end), view).await?);
    window.narrow();
    Ok(Some(window))
}

/// Brings in pages from that of `start` on; returns where the first one begins that may be missing. A
/// window is open on the range.
async fn load_some_pages(
    shared: &Shared,
    map: MapId,
    (start, end): (u64, u64),
    view: View,
) -> Result<u64> {
    let range = (page_start(start), page_end(end));
    load_pages(shared, map, range, MAPPINGS, view).await
}

/// The next mapped sub-blocks from `start` on, at most so many.
pub(crate) async fn find_mapped(
    shared: &Shared,
    map: MapId,
    (start, end): (u64, u64),
    count_max: usize,
    view: View,
) -> Result<Found<'_>> {
    let mut at = start;
    while at < end
        && let Some(mut window) = window(shared, map, (at, end), view).await?
    {
        let entries: Vec<(u64, Pba)> = match lock(&shared.state).map(map) {
            Some(pages) => {
                let mapped = pages.range(at, window.end, view).take(count_max);
                mapped.map(|(at, mapping)| (at, mapping.pba)).collect()
            }
            None => Vec::new(),
        };
        let Some((last, _)) = entries.last() else {
            at = window.end;
            drop(window);
            yield_once().await;
            continue;
        };
        if entries.len() >= count_max {
            window.end = last + 1;
            window.narrow();
        }
        return Ok(Found {
            entries,
            upto: window.end,
            window: Some(window),
        });
    }
    Ok(Found::nothing(end))
}

/// Whether a host sees anything that is mapped in `start..end`.
pub(crate) async fn is_mapped(shared: &Shared, map: MapId, start: u64, end: u64) -> Result<bool> {
    let found = find_mapped(shared, map, (start, end), 1, View::Visible).await?;
    Ok(!found.entries.is_empty())
}

/// Brings some more of the maps in, as long as memory is not half full; false if that is all. Goes
/// through them once.
pub(crate) async fn warm_up(shared: &Shared) -> Result<bool> {
    let (window, volume, from) = {
        let mut state = lock(&shared.state);
        let state = &mut *state;
        if state.resident.bytes() > state.resident.limit() / 2 {
            return Ok(false);
        }
        let warmed = state.warmed_upto;
        let mut volumes = state.volumes.range(warmed.0..);
        let next = volumes.find_map(|(id, entry)| {
            let from = entry.map().unknown_from()?;
            ((*id, from) >= warmed).then_some((*id, entry, from))
        });
        let Some((volume, entry, from)) = next else {
            return Ok(false);
        };
        let window = Window {
            shared,
            map: entry.info.map,
            number: entry.map().hold(from, u64::MAX),
            end: u64::MAX,
        };
        (window, volume, from)
    };
    let range = (from, window.end);
    let upto = load_some_pages(shared, window.map, range, View::Own).await?;
    lock(&shared.state).warmed_upto = (volume, upto);
    Ok(true)
}

/// Lets everything leave memory that there is no room for, and that can.
pub(crate) fn evict(shared: &Shared) {
    loop {
        let mut state = lock(&shared.state);
        state.evict_some();
        if !state.resident.is_full() || state.resident.is_stuck() || state.is_appending() {
            return;
        }
    }
}
