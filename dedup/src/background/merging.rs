//! Merging: lines of maps get shorter when snapshots and clones go, and nothing is kept that nobody sees.
//!
//! * A parent's only child, itself a parent, gives its parent a copy of its entries (*lift*). Nobody sees a difference:
//!   all that see the parent see it through that child, which hides these entries until then.
//! * When a map has no entries, or its parent has all of them, its children are re-parented to the grandparent, one at a
//!   time. Then the map has no children, and is freed as others are ([`crate::background::freeing`]).
//! * What a volume's map hides of its parent, whose only child it is, is taken away there (*drop*). What hides it is on
//!   stable drives before: an opening may take a mapping back whose data never arrived, and what it hid shows again.
//! * A page that a volume inherits from many ancestors becomes its own ([`crate::background::bring_near`]).
//!
//! Each slice is some records, and any of them may be the last one before a crash: what was lifted or dropped so far
//! shows nowhere. A parent with one child gets another only when that child's children are re-parented to it, which
//! happens here only, by one task at a time.

use std::sync::Arc;

use meta::{Fingerprint, MapEntry, MapId, MapInfo, Mapping, NewBlock, Pba, Record};

use crate::Result;
use crate::background::bring_near::bring_near;
use crate::io::trim::unmap_found;
use crate::log::append::commit;
use crate::log::flush::{flush_upto, note_durable};
use crate::metadata::ancestry::MergeStep;
use crate::metadata::block_table::IN_FLIGHT;
use crate::metadata::page_map::{OwnPage, PAGE, View};
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::pages::{find_mapped, window};
use crate::residency::rows::pin_rows;
use crate::sync::wait::{lock, yield_once};

/// Pages that one slice looks at.
const PAGES: usize = if cfg!(test) { 3 } else { 64 };

/// Merges a little; false if there is nothing to merge.
pub(crate) async fn merge_slice(shared: &Arc<Shared>) -> Result<bool> {
    let _lock = shared.merge_lock.lock().await;
    let step = {
        let mut state = lock(&shared.state);
        if state.read_only().is_some() {
            return Ok(false);
        }
        state.next_merge()
    };
    match step {
        Some(MergeStep::Lift { map, parent }) => lift(shared, map, parent).await?,
        Some(MergeStep::Look { map, .. }) => look(shared, map).await?,
        Some(MergeStep::Pass { map, parent }) => pass_on(shared, map, parent).await?,
        Some(MergeStep::Drop { map, parent }) => drop_hidden(shared, map, parent).await?,
        None => return bring_some_near(shared).await,
    }
    yield_once().await;
    Ok(true)
}

/// The parent of a map, if the map is its only child.
fn is_only_child(state: &State, map: MapId, parent: MapId) -> bool {
    let is_child = state
        .map(map)
        .is_some_and(|map| map.info().parent == Some(parent));
    let children = state.ancestry.parents.get(&parent).map(|it| it.children());
    is_child && children == Some(1)
}

/// Copies some of a map's entries to its parent.
async fn lift(shared: &Arc<Shared>, map: MapId, parent: MapId) -> Result<()> {
    let (of_parent, of_map) = {
        let state = lock(&shared.state);
        let held = |map| state.ancestry.parents.get(map).map(|it| it.purging.clone());
        match (held(&parent), held(&map)) {
            (Some(parent), Some(map)) => (parent, map),
            _ => return Ok(()),
        }
    };
    let _locks = (of_parent.lock().await, of_map.lock().await);
    let (from, since) = {
        let state = lock(&shared.state);
        if !is_only_child(&state, map, parent) {
            return Ok(());
        }
        let Some(it) = state.ancestry.parents.get(&map) else {
            return Ok(());
        };
        (it.merge.lifted_upto, it.since)
    };
    // An opening proves nothing of copies.
    flush_upto(shared, since).await?;
    let (pages, upto) = own_some(shared, map, from).await?;
    for page in pages {
        lift_page(shared, (map, parent), page).await?;
    }
    let mut state = lock(&shared.state);
    if let Some(it) = state.ancestry.parents.get_mut(&map) {
        it.merge.lifted_upto = upto;
        it.merge.is_lifted = upto == u64::MAX && !it.merge.is_stuck;
    }
    Ok(())
}

/// Some pages with entries of a map's own, from a sub-block on, and where to go on.
async fn own_some(shared: &Shared, map: MapId, from: u64) -> Result<(Vec<OwnPage>, u64)> {
    let mut pages: Vec<OwnPage> = Vec::new();
    let mut at = from;
    while at < u64::MAX && pages.len() < PAGES {
        let Some(window) = window(shared, map, (at, u64::MAX), View::Own).await? else {
            return Ok((pages, u64::MAX));
        };
        let end = window.end;
        {
            let state = lock(&shared.state);
            let map = state.map(map);
            while pages.len() < PAGES
                && at < end
                && let Some(page) = map.as_ref().and_then(|map| map.first_own(at, end))
            {
                at = page.start.saturating_add(PAGE);
                pages.push(page);
            }
        }
        if pages.len() < PAGES {
            at = end;
        }
        drop(window);
        yield_once().await;
    }
    Ok((pages, at))
}

async fn lift_page(
    shared: &Arc<Shared>,
    (map, parent): (MapId, MapId),
    page: OwnPage,
) -> Result<()> {
    let start = page.start;
    let end = start.saturating_add(PAGE);
    let Some(_window) = window(shared, parent, (start, end), View::Own).await? else {
        return Ok(());
    };
    let mut pins = Vec::new();
    let (entries, references) = loop {
        let made = copy(shared, &mut lock(&shared.state), (map, parent), &page);
        match made {
            Copy::Made(entries, references) => break (entries, references),
            Copy::NotResident(missing) => pins.push(pin_rows(shared, missing).await?),
            Copy::Nothing => return Ok(()),
        }
    };
    let record = Record::Own {
        map: parent,
        start,
        entries,
    };
    commit(shared, record, None, Some(references)).await?;
    Ok(())
}

enum Copy {
    /// Entries for the whole page, and what they refer to.
    Made(Vec<MapEntry>, References),
    /// Of these addresses only the store knows.
    NotResident(Vec<Pba>),
    /// The parent has it, or cannot have it now.
    Nothing,
}

fn copy(
    shared: &Arc<Shared>,
    state: &mut State,
    (map, parent): (MapId, MapId),
    page: &OwnPage,
) -> Copy {
    if !is_only_child(state, map, parent) {
        return Copy::Nothing;
    }
    let Some(above) = state.map(parent) else {
        return Copy::Nothing;
    };
    let hole = above.inherits().then_some(Mapping::HOLE);
    let OwnPage { start, entries, .. } = page;
    let before = above.first_own(*start, start.saturating_add(PAGE));
    drop(above);
    let before = before.map_or(vec![None; entries.len()], |page| page.entries);
    // Where the map has none, the parent's entry stays.
    let after = entries.iter().zip(&before).map(|(own, before)| match own {
        None => *before,
        Some(own) if own.is_hole() => hole,
        Some(own) => Some(*own),
    });
    let after: Vec<Option<Mapping>> = after.collect();
    if after == before {
        return Copy::Nothing; // it was lifted before
    }
    let mapped = |mapping: &Option<Mapping>| mapping.filter(|mapping| !mapping.is_hole());
    let blocks: Vec<Pba> = after.iter().filter_map(mapped).map(|it| it.pba).collect();
    let old = before.iter().filter_map(mapped).map(|it| it.pba);
    let missing = blocks.iter().copied().chain(old);
    let missing: Vec<Pba> = missing
        .filter(|pba| !state.blocks.is_resident(*pba))
        .collect();
    if !missing.is_empty() {
        return Copy::NotResident(missing);
    }
    // A page can refer to one block as often as it has entries.
    let is_full = |pba: &Pba| state.blocks.get(*pba).references >= IN_FLIGHT - 1 - PAGE as u32;
    if blocks.iter().any(is_full) {
        if let Some(it) = state.ancestry.parents.get_mut(&map) {
            it.merge.is_stuck = true;
        }
        return Copy::Nothing;
    }
    let new_block = |Mapping { pba, crc32c }: Mapping| {
        if pba.is_hole() {
            return NewBlock::HOLE;
        }
        let fingerprint: Fingerprint = state.blocks.get(pba).fingerprint;
        NewBlock {
            pba,
            fingerprint,
            crc32c,
        }
    };
    let entries = before.iter().zip(&after).map(|(before, after)| MapEntry {
        old: mapped(before).map(|before| before.pba),
        new: after.map(new_block),
    });
    let entries: Vec<MapEntry> = entries.collect();
    for pba in &blocks {
        state.take(*pba);
    }
    Copy::Made(entries, References::new(shared, blocks))
}

/// Looks whether a map has entries of its own at all: holes may be all that there is.
async fn look(shared: &Shared, map: MapId) -> Result<()> {
    let mut from = 0;
    loop {
        let (pages, upto) = own_some(shared, map, from).await?;
        from = upto;
        if pages.is_empty() && upto < u64::MAX {
            continue;
        }
        let mut state = lock(&shared.state);
        if let Some(it) = state.ancestry.parents.get_mut(&map) {
            it.merge.has_pages = !pages.is_empty();
            it.merge.is_lifted = pages.is_empty();
        }
        return Ok(());
    }
}

/// A child of a map passes on to the map's parent.
async fn pass_on(shared: &Arc<Shared>, map: MapId, parent: MapId) -> Result<()> {
    // Nobody forks it meanwhile.
    let _admin = shared.admin_lock.lock().await;
    let Some((child, volume)) = ({
        let state = lock(&shared.state);
        let child = state.child_of(map);
        child.map(|child| {
            let volume = state.volume_of(child.id).map(|entry| entry.core.clone());
            let purging = state.ancestry.parents.get(&child.id);
            (child, (volume, purging.map(|it| it.purging.clone())))
        })
    }) else {
        return Ok(());
    };
    // Nor does anybody delete it.
    let (volume, purging) = volume;
    let _trim = match &volume {
        Some(core) => Some(core.trim_lock.lock().await),
        None => None,
    };
    let _purging = match &purging {
        Some(purging) => Some(purging.lock().await),
        None => None,
    };
    {
        let state = lock(&shared.state);
        let is_same = state.map(child.id).is_some_and(|map| map.info() == child);
        let is_there = state.ancestry.parents.contains_key(&parent);
        if !is_same || !is_there {
            return Ok(());
        }
    }
    let record = Record::Reparent(MapInfo {
        parent: Some(parent),
        ..child
    });
    commit(shared, record, None, None).await?;
    Ok(())
}

/// Takes away what the only child of a parent hides of it.
async fn drop_hidden(shared: &Arc<Shared>, map: MapId, parent: MapId) -> Result<()> {
    let held = match lock(&shared.state).ancestry.parents.get(&parent) {
        Some(parent) => parent.purging.clone(),
        None => return Ok(()),
    };
    let _lock = held.lock().await;
    let (from, mapped) = {
        let state = lock(&shared.state);
        if !is_only_child(&state, map, parent) {
            return Ok(());
        }
        let from = state.ancestry.parents.get(&parent);
        let mapped = state.map(map).map_or(0, |map| map.mapped());
        (from.map_or(0, |it| it.merge.dropped_upto), mapped)
    };
    let (pages, upto) = own_some(shared, map, from).await?;
    let changed = pages.iter().map(|page| page.changed).max();
    flush_upto(shared, changed.unwrap_or(0)).await?;
    if !pages.is_empty() {
        // Perhaps only the store says so, and a copy of the store that is older than the journal does not.
        note_durable(shared).await?;
    }
    for page in pages {
        let (start, end) = (page.start, page.start.saturating_add(PAGE));
        let mut found = find_mapped(shared, parent, (start, end), PAGE as usize, View::Own).await?;
        let hides = |at: u64| page.entries[(at - start) as usize].is_some();
        found.entries.retain(|(at, _)| hides(*at));
        if !found.entries.is_empty() {
            unmap_found(shared, parent, found, None).await?;
        }
    }
    let mut state = lock(&shared.state);
    if let Some(it) = state.ancestry.parents.get_mut(&parent) {
        let is_all = upto == u64::MAX;
        it.merge.dropped_upto = if is_all { 0 } else { upto };
        if is_all {
            it.merge.dropped_at = Some(mapped);
        }
    }
    Ok(())
}

/// A page of a volume that many ancestors have entries of becomes the volume's own.
async fn bring_some_near(shared: &Arc<Shared>) -> Result<bool> {
    let (core, start) = {
        let mut state = lock(&shared.state);
        let Some((volume, start)) = state.ancestry.far.pop_first() else {
            return Ok(false);
        };
        match state.active(volume) {
            Ok(entry) => (entry.core.clone(), start),
            Err(_) => return Ok(true),
        }
    };
    bring_near(shared, &core, start).await?;
    Ok(true)
}

#[cfg(test)]
pub(crate) mod tests;
