//! Bringing pages of maps into memory, while the pool is in use.
//!
//! A command brings in the pages of its range, which it has locked: from then on until it unlocks the range
//! they stay ([`crate::resident`]). Work on a whole map goes through it in windows. Every read of the
//! store for a page, and every look at a page, so happens in a range or a window that keeps the page from
//! leaving: what was read cannot be older than what left memory meanwhile, and if somebody else was faster,
//! his page is taken and the rows are thrown away.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::select;
use meta::{Mapping, MetaError, Pba};

use crate::Result;
use crate::engine::Shared;
use crate::map::{page_end, page_start};
use crate::recovery::outside;
use crate::volume::VolumeCore;
use crate::wait::{lock, yield_once};

/// Mappings that are read from the store at a time, by work on a whole map.
const MAPPINGS: usize = if cfg!(test) { 20 } else { 1024 };
/// Checkpoints that one write waits for when memory is full of what is not stored.
const MEMORY_ATTEMPTS: u32 = 4;

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

impl Shared {
    /// Brings in the pages that commands on `start..end` of a volume need. The range is locked.
    pub(crate) async fn bring_in(&self, core: &VolumeCore, start: u64, end: u64) -> Result<()> {
        if core.is_whole() {
            return Ok(());
        }
        let missing: Vec<u64> = match lock(&self.state).volumes.get(&core.id) {
            Some(entry) => entry.map.missing(start, end).collect(),
            None => Vec::new(),
        };
        for page in missing {
            self.load_page(core.id, page).await?;
        }
        Ok(())
    }

    /// As [`bring_in`](Self::bring_in), for a write: also what is known of the blocks that are mapped
    /// there. It may have to wait until there is memory.
    pub(crate) async fn bring_in_to_write(
        self: &Arc<Self>,
        core: &VolumeCore,
        start: u64,
        end: u64,
    ) -> Result<()> {
        if self.is_crowded.load(Ordering::Acquire) {
            self.wait_for_memory().await;
        }
        self.bring_in(core, start, end).await?;
        if !self.is_partial.load(Ordering::Acquire) {
            return Ok(());
        }
        let mapped: Vec<Pba> = match lock(&self.state).volumes.get(&core.id) {
            Some(entry) => {
                let mapped = entry.map.range(start, end);
                mapped.map(|(_, mapping)| mapping.pba).collect()
            }
            None => Vec::new(),
        };
        self.bring_in_blocks_to_write(mapped.into_iter()).await
    }

    /// Brings in a page; `start` is its first sub-block. A range is locked that it belongs to.
    pub(crate) async fn load_page(&self, volume: u32, start: u64) -> Result<()> {
        let end = page_end(start.saturating_add(1));
        let rows = self.read_mappings(volume, (start, end), usize::MAX).await?;
        self.take_rows(volume, (start, end), &rows);
        Ok(())
    }

    fn take_rows(&self, volume: u32, range: (u64, u64), rows: &[(u64, Mapping)]) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.resident.reads += 1;
        if let Some(entry) = state.volumes.get_mut(&volume) {
            entry.map.load(range, rows, &mut state.resident);
        }
        state.evict_some();
    }

    async fn read_mappings(
        &self,
        volume: u32,
        (start, end): (u64, u64),
        count_max: usize,
    ) -> Result<Vec<(u64, Mapping)>> {
        let store = self.store.clone();
        let rows = self.block_on(move || store.mappings(volume, start, end, count_max));
        let rows: std::result::Result<_, MetaError> = rows.await;
        let rows: Vec<(u64, Mapping)> = rows?;
        let state = lock(&self.state);
        match rows
            .iter()
            .find(|(_, mapping)| !state.space.contains(mapping.pba))
        {
            Some((_, mapping)) => Err(outside(mapping.pba)),
            None => Ok(rows),
        }
    }

    /// Brings in what is mapped from `start` on, up to some place before or at `end`; `None` if there is
    /// no such volume. Takes no longer, and no more memory, whatever is mapped.
    pub(crate) async fn window(
        &self,
        volume: u32,
        start: u64,
        end: u64,
    ) -> Result<Option<Window<'_>>> {
        let mut window = {
            let mut state = lock(&self.state);
            let Some(entry) = state.volumes.get_mut(&volume) else {
                return Ok(None);
            };
            let known = entry.map.known_upto(start, end);
            let held = if known > start { known } else { end };
            Window {
                shared: self,
                volume,
                number: entry.map.hold(start, held),
                end: known,
            }
        };
        if window.end > start || start >= end {
            return Ok(Some(window));
        }
        window.end = end.min(self.load_some_pages(volume, start, end).await?);
        window.narrow();
        Ok(Some(window))
    }

    /// Brings in pages from that of `start` on; returns where the first one begins that may be missing. A
    /// window is open on the range.
    async fn load_some_pages(&self, volume: u32, start: u64, end: u64) -> Result<u64> {
        let (first, mut last) = (page_start(start), page_end(end));
        let mut rows = self.read_mappings(volume, (first, last), MAPPINGS).await?;
        if rows.len() == MAPPINGS
            && let Some((at, _)) = rows.last()
        {
            // The last page may not be whole. It is not the first one: there are more rows.
            last = page_start(*at);
            rows.retain(|(at, _)| *at < last);
        }
        self.take_rows(volume, (first, last), &rows);
        Ok(last)
    }

    /// The next mapped sub-blocks from `start` on, at most so many.
    pub(crate) async fn find_mapped(
        &self,
        volume: u32,
        start: u64,
        end: u64,
        count_max: usize,
    ) -> Result<Found<'_>> {
        let mut at = start;
        while at < end
            && let Some(mut window) = self.window(volume, at, end).await?
        {
            let entries: Vec<(u64, Pba)> = match lock(&self.state).volumes.get(&volume) {
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
    pub(crate) async fn is_mapped(&self, volume: u32, start: u64, end: u64) -> Result<bool> {
        let found = self.find_mapped(volume, start, end, 1).await?;
        Ok(!found.entries.is_empty())
    }

    /// Brings some more of the maps in, as long as memory is not half full; false if that is all. Goes
    /// through them once.
    pub(crate) async fn warm_up(&self) -> Result<bool> {
        let (window, from) = {
            let mut state = lock(&self.state);
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
                shared: self,
                volume,
                number,
                end: u64::MAX,
            };
            (window, from)
        };
        let upto = self
            .load_some_pages(window.volume, from, window.end)
            .await?;
        lock(&self.state).warmed_upto = (window.volume, upto);
        Ok(true)
    }

    /// Lets a checkpoint make room, if changes that the store does not have are what fills the memory.
    async fn wait_for_memory(self: &Arc<Self>) {
        for _ in 0..MEMORY_ATTEMPTS {
            self.evict();
            if !self.is_crowded.load(Ordering::Acquire) {
                return;
            }
            // A checkpoint is long; each of its batches makes room.
            let stored = lock(&self.stored).clone();
            let checkpoint = self.checkpoint();
            // A store that takes nothing is told to who finds the journal full.
            drop(select(pin!(checkpoint), stored.wait()).await);
        }
    }

    /// Lets everything leave memory that there is no room for, and that can.
    pub(crate) fn evict(&self) {
        loop {
            let mut state = lock(&self.state);
            state.evict_some();
            if !state.resident.is_full() || state.resident.is_stuck() || state.is_appending {
                return;
            }
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
