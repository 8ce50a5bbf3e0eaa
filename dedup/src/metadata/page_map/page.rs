//! A page of a map in memory: its own entries, and what ancestors show between them.

use std::sync::atomic::AtomicBool;

use meta::{Mapping, Pba};
use reactor::prefetch;

use super::inherit::PageEntries;
use super::{PAGE, View};

/// There is no entry. No physical block has this number or that of a hole, which are the last two: no drive has the
/// last index.
const NONE: u64 = u64::MAX;
const HOLE: u64 = Pba::HOLE.0;
const _: () = assert!(HOLE + 1 == NONE);
const _: () = assert!(PAGE <= u64::BITS as u64);
/// All entries of a page, by bits.
pub(super) const ALL: u64 = u64::MAX >> (u64::BITS as u64 - PAGE);

/// A page in memory.
pub(super) struct Page {
    pbas: [u64; PAGE as usize],
    crcs: [u32; PAGE as usize],
    /// Which entries are the map's own, by bits: mappings and holes.
    pub(super) own: u64,
    /// How many of its own entries map a block.
    pub(super) mapped: u32,
    pub(super) ticket: u32,
    /// The other entries are what ancestors show.
    pub(super) is_complete: bool,
    /// The record that changed it last.
    pub(super) changed: u64,
    /// Used since the clock last passed.
    pub(super) touched: AtomicBool,
}

impl Page {
    /// Asks for what a look at an entry and a change of it read.
    pub(super) fn prefetch(&self, entry: usize) {
        prefetch(&self.pbas[entry]);
        prefetch(&self.crcs[entry]);
        prefetch(&self.own);
    }

    /// `is_complete`: no ancestor shows anything.
    pub(super) fn empty(ticket: u32, is_complete: bool) -> Box<Self> {
        Box::new(Self {
            pbas: [NONE; PAGE as usize],
            crcs: [0; PAGE as usize],
            own: 0,
            mapped: 0,
            ticket,
            is_complete,
            changed: 0,
            touched: AtomicBool::new(true),
        })
    }

    /// What a host sees, if the page is complete.
    pub(super) fn get(&self, entry: usize) -> Option<Mapping> {
        match self.pbas[entry] {
            HOLE.. => None,
            pba => Some(Mapping {
                pba: Pba(pba),
                crc32c: self.crcs[entry],
            }),
        }
    }

    pub(super) fn is_own(&self, entry: usize) -> bool {
        self.own >> entry & 1 != 0
    }

    /// What the map has itself: a mapping or a hole.
    pub(super) fn get_own(&self, entry: usize) -> Option<Mapping> {
        self.is_own(entry)
            .then(|| self.get(entry).unwrap_or(Mapping::HOLE))
    }

    /// Changes an entry of the map's own; returns what it was mapped to.
    pub(super) fn set(&mut self, entry: usize, new: Option<Mapping>) -> Option<Pba> {
        let (pba, crc32c) = new.map_or((NONE, 0), |new| (new.pba.0, new.crc32c));
        let was_own = self.is_own(entry);
        if !was_own && new.is_none() {
            return None;
        }
        let old = std::mem::replace(&mut self.pbas[entry], pba);
        let old = if was_own { old } else { NONE };
        self.crcs[entry] = crc32c;
        self.own = self.own & !(1 << entry) | u64::from(new.is_some()) << entry;
        self.mapped += u32::from(pba < HOLE);
        self.mapped -= u32::from(old < HOLE);
        (old < HOLE).then_some(Pba(old))
    }

    /// Takes what ancestors show where the map has no entry of its own.
    pub(super) fn fill(&mut self, entries: &PageEntries) {
        for (at, entry) in entries.iter().enumerate() {
            if !self.is_own(at) {
                let (pba, crc32c) = entry.map_or((NONE, 0), |it| (it.pba.0, it.crc32c));
                (self.pbas[at], self.crcs[at]) = (pba, crc32c);
            }
        }
        self.is_complete = true;
    }

    /// What is mapped, for a host or in the map itself.
    pub(super) fn entries(&self, view: View) -> impl Iterator<Item = (usize, Mapping)> {
        let shows = move |entry: &usize| view == View::Visible || self.is_own(*entry);
        (0..PAGE as usize)
            .filter(shows)
            .filter_map(|entry| Some((entry, self.get(entry)?)))
    }
}
