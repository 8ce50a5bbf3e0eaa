//! Giving back: trims, zeroing, deletions, and what shrinking cuts off.
//!
//! A small trim is done when its command ends. A large one is only written down: one record says what
//! is being trimmed of the volume ([`meta::VolumeInfo::trimming`]), and from then on the range reads as
//! zeros. Background work unmaps it, slice after slice; other commands get their turn between two
//! slices, so that whatever is given back stalls nobody and takes no memory. The list survives a crash.
//!
//! What is listed is unmapped by this module alone, under the volume's `trim_turn`: nobody else maps or
//! unmaps a listed sub-block. A write takes its range off the list first ([`settle`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use meta::{Pba, Record, TRIMMING_RANGES_MAX};

use crate::Result;
use crate::engine::Shared;
use crate::ranges::{self, Range};
use crate::state::VolumeEntry;
use crate::volume::VolumeCore;
use crate::wait::{lock, yield_once};

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
        shared.load_all().await?;
        shared.trim_later(core, (start, end)).await
    } else {
        shared.bring_in(core.id, start, end).await?;
        unmap_now(shared, core, start, end).await
    }
}

async fn unmap_now(shared: &Arc<Shared>, core: &VolumeCore, start: u64, end: u64) -> Result<u64> {
    let volume = core.id;
    let mut at = start;
    let mut sequence = lock(&shared.state).last_change;
    loop {
        // What is mapped by writes that were acknowledged is in the map: looking without the range
        // lock may miss only what is concurrent anyway.
        let Some((first, span_end)) = next_piece(shared, volume, at, end)? else {
            return Ok(sequence);
        };
        let guard = core.range_lock.exclusive(first, span_end).await;
        settle(shared, core, first, span_end).await?;
        let entries: Vec<_> = {
            let state = lock(&shared.state);
            state.check_writable()?;
            match state.volumes.get(&volume) {
                Some(entry) => entry
                    .map
                    .range(first, span_end)
                    .take(shared.config.trim_chunk)
                    .collect(),
                None => return Ok(sequence),
            }
        };
        at = match entries.last() {
            // The piece may have been cut short at the limit of entries.
            Some((last, _)) if entries.len() >= shared.config.trim_chunk => last + 1,
            _ => span_end,
        };
        if !entries.is_empty() {
            sequence = shared
                .commit(Record::Unmap { volume, entries }, Some(guard))
                .await?;
        }
        yield_once().await;
    }
}

/// Where the next mapped sub-block is, and where its piece ends.
fn next_piece(shared: &Shared, volume: u32, at: u64, end: u64) -> Result<Option<(u64, u64)>> {
    let state = lock(&shared.state);
    state.check_writable()?;
    let Some(entry) = state.volumes.get(&volume) else {
        return Ok(None);
    };
    Ok(entry
        .map
        .range(at, end)
        .next()
        .map(|(first, _)| (first, end.min(first + PIECE_SPAN_MAX))))
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
    #[cfg(test)]
    if crate::ablation::is(crate::ablation::Broken::MapWhatIsTrimmed) {
        return Ok(());
    }
    let _turn = core.trim_turn.lock().await;
    // Somewhat more, so that not every small write of a sequence cuts again.
    let grain = shared.config.trim_chunk as u64;
    let wide = (first - first % grain, end.next_multiple_of(grain));
    shared.bring_in(core.id, wide.0, wide.1).await?;
    loop {
        let slice = {
            let state = lock(&shared.state);
            let Some(entry) = state.volumes.get(&core.id) else {
                return Ok(()); // who writes finds that out
            };
            let list = &entry.info.trimming;
            if ranges::within(list, (first, end)).next().is_none() {
                return Ok(());
            }
            let left = ranges::without(list, wide);
            if left.len() <= TRIMMING_RANGES_MAX {
                Some(Slice::of(entry, wide, shared.config.trim_chunk))
            } else if shared.loaded.load(Ordering::Acquire) {
                Some(Slice::smallest(entry, shared.config.trim_chunk))
            } else {
                None
            }
        };
        match slice {
            Some(slice) => shared.unmap_slice(core, slice).await?,
            None => shared.load_all().await?,
        }
    }
}

/// The next mappings to take away, and what is being trimmed afterwards.
struct Slice {
    entries: Vec<(u64, Pba)>,
    left: Vec<Range>,
}

impl Slice {
    /// What is listed of a range, up to so many mappings.
    fn of(entry: &VolumeEntry, range: Range, entries_max: usize) -> Self {
        let list = &entry.info.trimming;
        let mapped = |(first, end)| entry.map.range(first, end);
        let found = ranges::within(list, range).flat_map(mapped);
        let entries: Vec<_> = found.take(entries_max).collect();
        let done = match entries.last() {
            // There may be more behind it.
            Some((last, _)) if entries.len() >= entries_max => (range.0, last + 1),
            _ => range,
        };
        Self {
            left: ranges::without(list, done),
            entries,
        }
    }

    /// Of the smallest range on the list, so that the list gets short soon.
    fn smallest(entry: &VolumeEntry, entries_max: usize) -> Self {
        let ranges = entry.info.trimming.iter().copied();
        let smallest = ranges.min_by_key(|(first, end)| end - first);
        Self::of(entry, smallest.unwrap_or((0, 0)), entries_max)
    }
}

impl Shared {
    /// Writes down that a range is given back.
    async fn trim_later(self: &Arc<Self>, core: &VolumeCore, range: Range) -> Result<u64> {
        let guard = core.range_lock.exclusive(range.0, range.1).await;
        let _turn = core.trim_turn.lock().await;
        let is_empty = {
            let state = lock(&self.state);
            state.check_writable()?;
            let entry = state.volumes.get(&core.id);
            let first = entry.and_then(|entry| entry.map.range(range.0, range.1).next());
            first.is_none()
        };
        if is_empty {
            return Ok(lock(&self.state).last_change);
        }
        let ranges = self.list_with(core, range).await?;
        let record = Record::Trimming {
            id: core.id,
            ranges,
        };
        self.commit(record, Some(guard)).await
    }

    /// What is being trimmed of a volume together with one more range (if anything is mapped there),
    /// within the bound of the list. The caller holds the volume's `trim_turn`.
    pub(crate) async fn list_with(
        self: &Arc<Self>,
        core: &VolumeCore,
        range: Range,
    ) -> Result<Vec<Range>> {
        self.load_all().await?;
        loop {
            let slice = {
                let state = lock(&self.state);
                state.check_writable()?;
                let Some(entry) = state.volumes.get(&core.id) else {
                    return Ok(Vec::new());
                };
                if entry.map.range(range.0, range.1).next().is_none() {
                    return Ok(entry.info.trimming.clone());
                }
                let list = ranges::with(&entry.info.trimming, range);
                if list.len() <= TRIMMING_RANGES_MAX {
                    return Ok(list);
                }
                Slice::smallest(entry, self.config.trim_chunk)
            };
            self.unmap_slice(core, slice).await?;
        }
    }

    /// The caller holds the volume's `trim_turn`.
    async fn unmap_slice(self: &Arc<Self>, core: &VolumeCore, slice: Slice) -> Result<()> {
        let Slice { entries, left } = slice;
        let volume = core.id;
        if !entries.is_empty() {
            self.commit(Record::Unmap { volume, entries }, None).await?;
        }
        // In this order: what is not listed any more is unmapped, also if only one of both survives.
        let record = Record::Trimming {
            id: volume,
            ranges: left,
        };
        self.commit(record, None).await?;
        yield_once().await;
        Ok(())
    }

    /// Frees one slice of what is being trimmed, or of a deleted volume; false if there is nothing to
    /// free.
    pub(crate) async fn free_slice(self: &Arc<Self>) -> Result<bool> {
        self.load_all().await?;
        if self.trim_slice().await? {
            return Ok(true);
        }
        let deleted = self.find_core(|entry| !entry.is_active());
        match deleted {
            None => Ok(false),
            Some(core) => self.purge_slice(&core).await.map(|()| true),
        }
    }

    /// Frees one slice of what is being trimmed; false if nothing is. Waits for no range.
    pub(crate) async fn trim_slice(self: &Arc<Self>) -> Result<bool> {
        let trimming = self.find_core(|entry| entry.is_active() && entry.core.is_trimming());
        let Some(core) = trimming else {
            return Ok(false);
        };
        self.load_all().await?;
        let _turn = core.trim_turn.lock().await;
        let slice = {
            let state = lock(&self.state);
            state.check_writable()?;
            match state.volumes.get(&core.id) {
                Some(entry) if core.is_trimming() => Slice::smallest(entry, self.config.trim_chunk),
                _ => return Ok(true),
            }
        };
        self.unmap_slice(&core, slice).await.map(|()| true)
    }

    fn find_core(&self, is_wanted: impl Fn(&VolumeEntry) -> bool) -> Option<Arc<VolumeCore>> {
        let state = lock(&self.state);
        let mut volumes = state.volumes.values();
        volumes
            .find(|entry| is_wanted(entry))
            .map(|entry| entry.core.clone())
    }

    async fn purge_slice(self: &Arc<Self>, core: &VolumeCore) -> Result<()> {
        let volume = core.id;
        // Commands that began before the deletion end first; later writes find no volume.
        let guard = core.range_lock.exclusive(0, u64::MAX).await;
        let _turn = core.trim_turn.lock().await;
        let (mapped, entries) = {
            let state = lock(&self.state);
            state.check_writable()?;
            let Some(entry) = state.volumes.get(&volume) else {
                return Ok(());
            };
            let entries = entry.map.range(0, u64::MAX);
            let entries: Vec<_> = entries.take(self.config.trim_chunk).collect();
            (entry.map.mapped(), entries)
        };
        lock(&self.deleting).entry(volume).or_insert(mapped);
        let is_last = entries.is_empty();
        let record = if is_last {
            Record::VolumeGone { id: volume }
        } else {
            Record::Unmap { volume, entries }
        };
        self.commit(record, Some(guard)).await?;
        if is_last {
            lock(&self.deleting).remove(&volume);
        }
        yield_once().await;
        Ok(())
    }
}
