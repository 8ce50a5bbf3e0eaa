//! Trims: unmapping what is trimmed, zeroed, deleted, or cut off by shrinking.
//!
//! A small trim is done when its command ends. A large one is only written down: one record says what
//! is being trimmed of the volume ([`meta::VolumeInfo::trimming`]), and from then on the range reads as
//! zeros. Background work unmaps it, slice after slice; other commands get their turn between two
//! slices, so that whatever is given back stalls nobody and takes no memory. The list survives a crash.
//!
//! What is listed is unmapped by this module alone, under the volume's `trim_lock`: nobody else maps or
//! unmaps a listed sub-block. A write takes its range off the list first ([`settle`]).

use std::sync::Arc;

use meta::{MapId, Pba, Record, TRIMMING_RANGES_MAX};

use crate::Result;
use crate::log::append::{appended_upto, commit};
use crate::metadata::page_map::View;
use crate::metadata::volume::{VolumeCore, VolumeEntry};
use crate::pool::Shared;
use crate::ranges::{self, Range};
use crate::residency::loading::bring_in_blocks;
use crate::residency::pages::{Found, find_mapped, is_mapped};
use crate::sync::range_lock::RangeGuard;
use crate::sync::wait::{lock, yield_once};

/// Sub-blocks that one piece looks at most, mapped or not.
const PIECE_SPAN_MAX: u64 = 1 << 16;

/// Makes `start..end` read as zeros. Returns the sequence number that must be durable for this to
/// survive a power loss.
pub(crate) async fn unmap(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    start: u64,
    end: u64,
) -> Result<u64> {
    if end.saturating_sub(start) > shared.config.trim_at_once {
        trim_later(shared, core, (start, end)).await
    } else {
        unmap_now(shared, core, start, end).await
    }
}

async fn unmap_now(shared: &Arc<Shared>, core: &VolumeCore, start: u64, end: u64) -> Result<u64> {
    let mut at = start;
    let mut sequence = shared.state.share().last_change();
    loop {
        // What is mapped by writes that were acknowledged is in the map: looking without the range
        // lock may miss only what is concurrent anyway.
        let found = find_visible(shared, core, (at, end), 1).await?;
        shared.state.share().check_writable()?;
        let Some((first, _)) = found.entries.first().copied() else {
            drop(found);
            return unmapped_upto(shared, sequence).await;
        };
        drop(found);
        let span_end = end.min(first + PIECE_SPAN_MAX);
        let guard = core.range_lock.exclusive(first, span_end).await;
        settle(shared, core, first, span_end).await?;
        shared.state.share().check_writable()?;
        let entries_max = shared.config.trim_record_entries;
        let found = find_visible(shared, core, (first, span_end), entries_max).await?;
        at = found.upto;
        if !found.entries.is_empty() {
            sequence = unmap_visible(shared, core, found, Some(guard)).await?;
        }
        yield_once().await;
    }
}

/// Nothing is mapped any more: that is in the journal, too, when this returns. A command that was dropped has changed
/// the map before that.
async fn unmapped_upto(shared: &Shared, sequence: u64) -> Result<u64> {
    let seen = shared.state.share().last_change();
    appended_upto(shared, seen).await?;
    Ok(sequence.max(seen))
}

/// Takes `first..end` off the list of what is being trimmed, so that it can be mapped again; unmaps
/// what is left there. The caller holds the range exclusively. Costs a look at a flag if nothing is
/// being trimmed.
pub(crate) async fn settle(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    first: u64,
    end: u64,
) -> Result<()> {
    if !core.is_trimming() {
        return Ok(());
    }
    let _lock = core.trim_lock.lock().await;
    // Somewhat more, so that not every small write of a sequence cuts again.
    let grain = shared.config.trim_record_entries as u64;
    let wide = (first - first % grain, end.next_multiple_of(grain));
    loop {
        let is_listed = {
            let state = lock(&shared.state);
            let Some(entry) = state.volumes.get(&core.id) else {
                return Ok(()); // the write finds that out
            };
            let list = &entry.info.trimming;
            ranges::within(list, (first, end)).next().is_some()
        };
        if !is_listed {
            return Ok(());
        }
        let slice = next_slice(shared, core, wide).await?;
        unmap_slice(shared, core, slice).await?;
    }
}

/// The next mappings to take away, and what is being trimmed afterwards.
struct Slice<'a> {
    found: Found<'a>,
    left: Vec<Range>,
}

/// Writes down that a range is given back.
async fn trim_later(shared: &Arc<Shared>, core: &VolumeCore, range: Range) -> Result<u64> {
    let guard = core.range_lock.exclusive(range.0, range.1).await;
    let _lock = core.trim_lock.lock().await;
    shared.state.share().check_writable()?;
    if !is_mapped(shared, core.map(), range.0, range.1).await? {
        return unmapped_upto(shared, 0).await;
    }
    let ranges = list_with(shared, core, range).await?;
    let record = Record::Trimming {
        id: core.id,
        ranges,
    };
    commit(shared, record, Some(guard), None).await
}

/// What is being trimmed of a volume together with one more range (if anything is mapped there),
/// within the bound of the list. The caller holds the volume's `trim_lock`.
pub(crate) async fn list_with(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    range: Range,
) -> Result<Vec<Range>> {
    loop {
        let is_mapped = is_mapped(shared, core.map(), range.0, range.1).await?;
        {
            let state = lock(&shared.state);
            state.check_writable()?;
            let Some(entry) = state.volumes.get(&core.id) else {
                return Ok(Vec::new());
            };
            if !is_mapped {
                return Ok(entry.info.trimming.clone());
            }
            let list = ranges::with(&entry.info.trimming, range);
            if list.len() <= TRIMMING_RANGES_MAX {
                return Ok(list);
            }
        }
        let slice = next_slice(shared, core, (0, 0)).await?;
        unmap_slice(shared, core, slice).await?;
    }
}

/// What is listed of a range, up to so many mappings; of the smallest range on the list, so that it
/// gets short soon, if nothing is or if the list would get too long. The caller holds the volume's
/// `trim_lock`.
async fn next_slice<'a>(shared: &'a Shared, core: &VolumeCore, range: Range) -> Result<Slice<'a>> {
    let list = match lock(&shared.state).volumes.get(&core.id) {
        Some(entry) => entry.info.trimming.clone(),
        None => Vec::new(),
    };
    let smallest = list.iter().copied().min_by_key(|(first, end)| end - first);
    for range in [Some(range), smallest].into_iter().flatten() {
        let Some((first, end)) = ranges::within(&list, range).next() else {
            continue;
        };
        let entries_max = shared.config.trim_record_entries;
        let found = find_visible(shared, core, (first, end), entries_max).await?;
        let left = ranges::without(&list, (range.0, found.upto));
        if left.len() <= TRIMMING_RANGES_MAX {
            return Ok(Slice { found, left });
        }
    }
    Ok(Slice {
        found: Found::nothing(0),
        left: list,
    })
}

async fn find_visible<'a>(
    shared: &'a Shared,
    core: &VolumeCore,
    range: Range,
    count_max: usize,
) -> Result<Found<'a>> {
    find_mapped(shared, core.map(), range, count_max, View::Visible).await
}

/// Takes mappings away that hosts see. Where ancestors have them too, they are hidden.
async fn unmap_visible(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    found: Found<'_>,
    guard: Option<RangeGuard>,
) -> Result<u64> {
    let map = core.map();
    if core.inherits_since().is_none() {
        return unmap_found(shared, map, found, guard).await;
    }
    let Found {
        mut entries,
        window,
        ..
    } = found;
    if let Some(pages) = lock(&shared.state).map(map) {
        // Where the map itself has nothing, the record takes nothing away.
        let inherited = entries.iter_mut().filter(|(at, _)| !pages.is_own(*at));
        inherited.for_each(|(_, pba)| *pba = Pba::HOLE);
    }
    let blocks = entries.iter().map(|(_, pba)| *pba);
    bring_in_blocks(shared, blocks.filter(|pba| !pba.is_hole())).await?;
    let sequence = commit(shared, Record::Hide { map, entries }, guard, None).await;
    drop(window);
    sequence
}

/// Takes mappings of a map itself away.
pub(crate) async fn unmap_found(
    shared: &Arc<Shared>,
    map: MapId,
    found: Found<'_>,
    guard: Option<RangeGuard>,
) -> Result<u64> {
    let Found {
        entries, window, ..
    } = found;
    let blocks = entries.iter().map(|(_, pba)| *pba);
    bring_in_blocks(shared, blocks).await?;
    let sequence = commit(shared, Record::Unmap { map, entries }, guard, None).await;
    drop(window);
    sequence
}

/// The caller holds the volume's `trim_lock`.
async fn unmap_slice(shared: &Arc<Shared>, core: &VolumeCore, slice: Slice<'_>) -> Result<()> {
    let Slice { found, left } = slice;
    if !found.entries.is_empty() {
        unmap_visible(shared, core, found, None).await?;
    }
    // In this order: what is not listed any more is unmapped, also if only one of the two survives.
    let record = Record::Trimming {
        id: core.id,
        ranges: left,
    };
    commit(shared, record, None, None).await?;
    yield_once().await;
    Ok(())
}

/// Frees one slice of what is being trimmed; false if nothing is. Waits for no range.
pub(crate) async fn trim_slice(shared: &Arc<Shared>) -> Result<bool> {
    let trimming = find_core(shared, |entry| {
        entry.is_active() && entry.core.is_trimming()
    });
    let Some(core) = trimming else {
        return Ok(false);
    };
    let _lock = core.trim_lock.lock().await;
    {
        let state = lock(&shared.state);
        state.check_writable()?;
        // It may have been deleted meanwhile.
        if !core.is_trimming() || state.active(core.id).is_err() {
            return Ok(true);
        }
    }
    let slice = next_slice(shared, &core, (0, 0)).await?;
    unmap_slice(shared, &core, slice).await.map(|()| true)
}

pub(crate) fn find_core(
    shared: &Shared,
    is_wanted: impl Fn(&VolumeEntry) -> bool,
) -> Option<Arc<VolumeCore>> {
    let state = lock(&shared.state);
    let mut volumes = state.volumes.values();
    volumes
        .find(|entry| is_wanted(entry))
        .map(|entry| entry.core.clone())
}
