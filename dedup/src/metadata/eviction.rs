//! Eviction: when memory is full, the clock makes some steps at a time ([`crate::metadata::resident`]).

use crate::metadata::block_table::{Eviction, ROW_PAGE_BYTES};
use crate::metadata::resident::{Fate, Key};
use crate::metadata::state::State;

/// Steps of the clock at a time. More than twice what a change or a load adds.
const STEPS: usize = 32;

/// Row pages that may come into memory before the clock knows of them.
const CAME_MAX: usize = if cfg!(test) { 1 } else { 32 };

impl State {
    /// Whether [`evict_some`](Self::evict_some) has anything to do, as who shares the state sees it.
    pub(crate) fn wants_eviction(&self) -> bool {
        let came = self.blocks.came();
        let bytes = came as u64 * ROW_PAGE_BYTES;
        came >= CAME_MAX || (!self.is_appending() && self.resident.wants_eviction(bytes))
    }

    /// Evicts what is not needed, if memory is full: some steps, so that the state is not locked for long.
    /// To be called where something comes into memory.
    pub(crate) fn evict_some(&mut self) {
        while let Some(first) = self.blocks.take_came() {
            self.resident.add(Key::RowPage(first), ROW_PAGE_BYTES);
        }
        self.resident.set_pages_bytes(self.blocks.pages_bytes());
        if self.is_appending() {
            return;
        }
        for _ in 0..STEPS {
            if !self.resident.wants_step() {
                break;
            }
            let Some(key) = self.resident.next_key() else {
                break;
            };
            let may_leave = self.resident.is_full();
            let fate = self.pass(key, may_leave);
            self.resident.settle(key, fate);
            self.resident.set_pages_bytes(self.blocks.pages_bytes());
        }
        if self.resident.is_directory_full() {
            self.forget_some();
        }
    }

    /// The clock comes to a key.
    fn pass(&mut self, key: Key, may_leave: bool) -> Fate {
        match key {
            Key::Page { map, ticket, page } => {
                if let Some(entry) = self.ancestry.volume(&self.volumes, map) {
                    let range_lock = &entry.core.range_lock;
                    let is_locked = |start, end| range_lock.is_touched(start, end);
                    let resident = &self.resident;
                    let mut map = entry.map();
                    map.pass((page, ticket), may_leave, is_locked, resident)
                } else if let Some(parent) = self.ancestry.parents.get_mut(&map) {
                    // Commands rely on the copies that children have.
                    let map = &mut parent.map;
                    map.pass((page, ticket), may_leave, |_, _| false, &self.resident)
                } else {
                    Fate::Stale
                }
            }
            Key::RowPage(_) if !may_leave => Fate::Kept,
            Key::RowPage(first) => match self.blocks.evict(first, self.resident.stored()) {
                Eviction::Gone => Fate::Evicted(ROW_PAGE_BYTES),
                Eviction::Stays => Fate::Kept,
                Eviction::Absent => Fate::Stale,
            },
        }
    }

    /// The map that notes most forgets some of it: the store has to be asked there from now on.
    fn forget_some(&mut self) {
        let parents = self.ancestry.parents.values_mut();
        let parent = parents.max_by_key(|parent| parent.map.folders());
        let folders = parent.as_ref().map_or(0, |parent| parent.map.folders());
        let entries = self.volumes.values();
        let entry = entries.max_by_key(|entry| entry.map().folders());
        match (entry, parent) {
            (Some(entry), _) if entry.map().folders() >= folders => {
                let range_lock = &entry.core.range_lock;
                let is_locked = |start, end| range_lock.is_touched(start, end);
                entry.map().forget_some(is_locked, &self.resident);
            }
            (_, Some(parent)) => parent.map.forget_some(|_, _| false, &self.resident),
            _ => {}
        }
    }
}
