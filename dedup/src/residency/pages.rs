//! Bringing pages of maps into memory, while the pool is in use.
//!
//! A command brings in the pages of the range that it has locked. They stay until it unlocks the range
//! ([`crate::metadata::resident`]). Work on a whole map goes through it in windows, which keep their pages in the same
//! way. Whoever reads a page from the store, or looks at one, holds such a range or window. So what was read is never
//! older than what was evicted meanwhile. If another task brought the page in first, its page counts and the rows that
//! were read are dropped.

use meta::{Mapping, MetaError, Pba};

use crate::metadata::page_map::{page_end, page_start};
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
    volume: u32,
    number: u64,
    /// One past its last sub-block.
    pub(crate) end: u64,
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if let Some(entry) = lock(&self.shared.state).volumes.get_mut(&self.volume) {
            entry.map.let_go(self.number);
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

impl Window<'_> {
    fn narrow(&self) {
        if let Some(entry) = lock(&self.shared.state).volumes.get_mut(&self.volume) {
            entry.map.narrow(self.number, self.end);
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
    let missing: Vec<u64> = match lock(&shared.state).volumes.get(&core.id) {
        Some(entry) => entry.map.missing(start, end).collect(),
        None => Vec::new(),
    };
    for page in missing {
        load_page(shared, core.id, page).await?;
    }
    Ok(())
}

/// Brings in a page; `start` is its first sub-block. A range is locked that it belongs to.
pub(crate) async fn load_page(shared: &Shared, volume: u32, start: u64) -> Result<()> {
    let end = page_end(start.saturating_add(1));
    let rows = read_mappings(shared, volume, (start, end), usize::MAX).await?;
    take_rows(shared, volume, (start, end), &rows);
    Ok(())
}

fn take_rows(shared: &Shared, volume: u32, range: (u64, u64), rows: &[(u64, Mapping)]) {
    let mut state = lock(&shared.state);
    let state = &mut *state;
    state.resident.reads += 1;
    if let Some(entry) = state.volumes.get_mut(&volume) {
        entry.map.load(range, rows, &mut state.resident);
    }
    state.evict_some();
}

async fn read_mappings(
    shared: &Shared,
    volume: u32,
    (start, end): (u64, u64),
    count_max: usize,
) -> Result<Vec<(u64, Mapping)>> {
    let store = shared.store.clone();
    let rows = shared.block_on(move || store.mappings(volume, start, end, count_max));
    let rows: std::result::Result<_, MetaError> = rows.await;
    let rows: Vec<(u64, Mapping)> = rows?;
    let state = lock(&shared.state);
    match rows
        .iter()
        .find(|(_, mapping)| !state.space.contains(mapping.pba))
    {
        Some((_, mapping)) => Err(EngineError::no_such_block(mapping.pba)),
        None => Ok(rows),
    }
}

/// Brings in what is mapped from `start` on, up to some place before or at `end`; `None` if there is
/// no such volume. Takes no longer, and no more memory, whatever is mapped.
pub(crate) async fn window(
    shared: &Shared,
    volume: u32,
    start: u64,
    end: u64,
) -> Result<Option<Window<'_>>> {
    let mut window = {
        let mut state = lock(&shared.state);
        let Some(entry) = state.volumes.get_mut(&volume) else {
            return Ok(None);
        };
        let known = entry.map.known_upto(start, end);
        let held = if known > start { known } else { end };
        Window {
            shared,
            volume,
            number: entry.map.hold(start, held),
            end: known,
        }
    };
    if window.end > start || start >= end {
        return Ok(Some(window));
    }
    window.end = end.min(load_some_pages(shared, volume, start, end).await?);
    window.narrow();
    Ok(Some(window))
}

/// Brings in pages from that of `start` on; returns where the first one begins that may be missing. A
/// window is open on the range.
async fn load_some_pages(shared: &Shared, volume: u32, start: u64, end: u64) -> Result<u64> {
    let (first, mut last) = (page_start(start), page_end(end));
    let mut rows = read_mappings(shared, volume, (first, last), MAPPINGS).await?;
    if rows.len() == MAPPINGS
        && let Some((at, _)) = rows.last()
    {
        // The last page may not be whole. It is not the first one: there are more rows.
        last = page_start(*at);
        rows.retain(|(at, _)| *at < last);
    }
    take_rows(shared, volume, (first, last), &rows);
    Ok(last)
}

/// The next mapped sub-blocks from `start` on, at most so many.
pub(crate) async fn find_mapped(
    shared: &Shared,
    volume: u32,
    start: u64,
    end: u64,
    count_max: usize,
) -> Result<Found<'_>> {
    let mut at = start;
    while at < end
        && let Some(mut window) = window(shared, volume, at, end).await?
    {
        let entries: Vec<(u64, Pba)> = match lock(&shared.state).volumes.get(&volume) {
            Some(entry) => {
                let mapped = entry.map.range(at, window.end).take(count_max);
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

/// Whether anything is mapped in `start..end`.
pub(crate) async fn is_mapped(shared: &Shared, volume: u32, start: u64, end: u64) -> Result<bool> {
    let found = find_mapped(shared, volume, start, end, 1).await?;
    Ok(!found.entries.is_empty())
}

/// Brings some more of the maps in, as long as memory is not half full; false if that is all. Goes
/// through them once.
pub(crate) async fn warm_up(shared: &Shared) -> Result<bool> {
    let (window, from) = {
        let mut state = lock(&shared.state);
        let state = &mut *state;
        if state.resident.bytes() > state.resident.limit() / 2 {
            return Ok(false);
        }
        let warmed = state.warmed_upto;
        let mut volumes = state.volumes.range_mut(warmed.0..);
        let next = volumes.find_map(|(id, entry)| {
            let from = entry.map.unknown_from()?;
            ((*id, from) >= warmed).then(|| (*id, entry.map.hold(from, u64::MAX), from))
        });
        let Some((volume, number, from)) = next else {
            return Ok(false);
        };
        let window = Window {
            shared,
            volume,
            number,
            end: u64::MAX,
        };
        (window, from)
    };
    let upto = load_some_pages(shared, window.volume, from, window.end).await?;
    lock(&shared.state).warmed_upto = (window.volume, upto);
    Ok(true)
}

/// Lets everything leave memory that there is no room for, and that can.
pub(crate) fn evict(shared: &Shared) {
    loop {
        let mut state = lock(&shared.state);
        state.evict_some();
        if !state.resident.is_full() || state.resident.is_stuck() || state.is_appending {
            return;
        }
    }
}
