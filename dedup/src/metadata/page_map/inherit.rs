//! What a map has from its ancestors.

use std::sync::Arc;

use meta::{MapId, MapInfo, Mapping};

use super::page::{ALL, Page};
use super::{FOLDER, LOOK, NotResident, PAGE, PageMap, Slot, split};
use crate::metadata::resident::Resident;

/// What is mapped in a page.
pub(crate) type PageEntries = [Option<Mapping>; PAGE as usize];

/// What shows of a page through a line of maps, of which the nearest ones are looked at first.
#[derive(Clone)]
pub(crate) struct Sight {
    pub(crate) entries: PageEntries,
    /// Which entries a map had, by bits.
    seen: u64,
}

impl Sight {
    pub(crate) fn new() -> Self {
        Self {
            entries: [None; PAGE as usize],
            seen: 0,
        }
    }

    /// Whether further maps cannot show anything.
    pub(crate) fn is_full(&self) -> bool {
        self.seen == ALL
    }

    /// The next map has this entry.
    pub(crate) fn add(&mut self, entry: usize, mapping: Mapping) {
        if self.seen >> entry & 1 == 0 {
            self.seen |= 1 << entry;
            self.entries[entry] = Some(mapping).filter(|mapping| !mapping.is_hole());
        }
    }

    /// The next map has these rows of the page.
    pub(crate) fn add_rows(&mut self, rows: &[(u64, Mapping)]) {
        for (sub_block, mapping) in rows {
            self.add(split(*sub_block).1, *mapping);
        }
    }

    fn add_page(&mut self, page: &Page) {
        for entry in 0..PAGE as usize {
            if let Some(own) = page.get_own(entry) {
                self.add(entry, own);
            } else if page.is_complete {
                self.add(entry, page.get(entry).unwrap_or(Mapping::HOLE));
            }
        }
    }
}

/// Pages of sub-blocks, one after the other.
pub(crate) fn by_page(rows: &[(u64, Mapping)]) -> impl Iterator<Item = (u64, &[(u64, Mapping)])> {
    rows.chunk_by(|(a, _), (b, _)| a / PAGE == b / PAGE)
        .map(|rows| (rows[0].0 / PAGE, rows))
}

/// What of rows belongs to a page.
pub(crate) fn rows_of_page(rows: &[(u64, Mapping)], page: u64) -> &[(u64, Mapping)] {
    let first = rows.partition_point(|(at, _)| at / PAGE < page);
    let rest = &rows[first..];
    &rest[..rest.partition_point(|(at, _)| at / PAGE == page)]
}

impl PageMap {
    /// Whether pages of it may be its ancestors'.
    pub(crate) fn inherits(&self) -> bool {
        self.info.parent.is_some()
    }

    /// Has another parent from now on, through which the same shows.
    pub(crate) fn adopt(&mut self, info: MapInfo) {
        self.info = info;
    }

    /// The first page in `start..end` that is in memory with entries of the map's own, and these.
    pub(crate) fn first_own(&self, start: u64, end: u64) -> Option<OwnPage> {
        let mut pages = self.pages_in(start / PAGE, end.div_ceil(PAGE));
        let (number, page) = pages.find(|(_, page)| page.own != 0)?;
        let entries = (0..PAGE as usize).map(|entry| page.get_own(entry));
        Some(OwnPage {
            start: number * PAGE,
            entries: entries.collect(),
            changed: page.changed,
        })
    }

    /// Whether the map has an entry of its own there, which is in memory.
    pub(crate) fn is_own(&self, sub_block: u64) -> bool {
        let (number, entry) = split(sub_block);
        matches!(self.slot(number), Slot::Resident(page) if page.is_own(entry))
    }

    /// By a record, its row went, and nothing is mapped in it any more: holes do not count, and what it inherited does
    /// not show.
    pub(crate) fn orphan(&mut self, record: u64, resident: &Resident) {
        debug_assert_eq!(self.mapped, 0, "a map goes with mappings");
        self.leaves(resident);
        let id = self.info.id;
        *self = Self {
            emptied: record,
            changed: record,
            windows: std::mem::take(&mut self.windows),
            next_window: self.next_window,
            is_whole: self.is_whole.clone(),
            ..Self::new(id)
        };
        self.say_if_whole();
    }

    /// Becomes a new map that inherits all from this one, which is returned.
    pub(crate) fn fork(&mut self, id: MapId) -> Self {
        self.succeed(self.info.child(id))
    }

    /// Becomes a new map, which has a parent and nothing of its own; returns this one.
    pub(crate) fn succeed(&mut self, by: MapInfo) -> Self {
        // Nobody had its number before: the store has nothing of it.
        let child = Self {
            info: by,
            is_whole: self.is_whole.clone(),
            ..Self::new(by.id)
        };
        child.say_if_whole();
        let mut parent = std::mem::replace(self, child);
        parent.is_whole = Arc::default();
        parent.say_if_whole();
        parent
    }

    /// Takes what ancestors show of a page, which is complete then. What the store has of the page itself was taken
    /// before.
    pub(crate) fn inherit(&mut self, number: u64, seen: &Sight, resident: &Resident) {
        match self.slot(number) {
            Slot::Resident(page) if page.is_complete => return,
            Slot::Resident(_) => {}
            Slot::Stored | Slot::Empty => {
                self.insert(number, Page::empty(resident.ticket(), false), resident)
            }
        }
        if let Some(page) = self.page_mut(number) {
            page.fill(&seen.entries);
        }
    }

    /// Whether any page is in memory.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages > 0
    }

    /// Whether what the map itself has of a page is in the store only.
    pub(crate) fn is_stored(&self, number: u64) -> bool {
        matches!(self.slot(number), Slot::Stored)
    }

    /// Adds what the map has of a page to what nearer ones have; `rows`: what the store has, if it was asked.
    ///
    /// # Errors
    /// The store has to be asked.
    pub(crate) fn show(
        &self,
        number: u64,
        rows: Option<&[(u64, Mapping)]>,
        seen: &mut Sight,
    ) -> Result<(), NotResident> {
        match (self.slot(number), rows) {
            (Slot::Resident(page), _) => seen.add_page(page),
            (Slot::Stored, Some(rows)) => seen.add_rows(rows),
            (Slot::Stored, None) => return Err(NotResident),
            (Slot::Empty, _) => {}
        }
        Ok(())
    }

    /// Where one finds what the map itself has of a page.
    pub(crate) fn look(&self, number: u64) -> Shown<'_> {
        match self.slot(number) {
            Slot::Resident(page) => Shown::Here(HerePage(page)),
            Slot::Stored => Shown::Stored,
            Slot::Empty => Shown::Nowhere,
        }
    }

    /// Whether the store had all of the map when it had everything up to this record, and nothing changed since.
    pub(crate) fn is_as_stored(&self, stored: u64) -> bool {
        self.changed <= stored
    }

    /// The same of one page. `has_rows`: the store had any of it, when it had that record or a later one, and nothing of
    /// the page could leave memory since.
    pub(crate) fn is_page_as_stored(&self, number: u64, has_rows: bool, stored: u64) -> bool {
        match self.slot(number) {
            Slot::Resident(page) => page.changed <= stored,
            Slot::Stored => true,
            Slot::Empty => !has_rows,
        }
    }

    /// Of which pages of a folder the map may have entries of its own, by bits, and whether that is all: else the
    /// store may have more.
    pub(crate) fn own_bits(&self, number: u64) -> (u64, bool) {
        let bits = self.folders.get(&number).map_or(0, |folder| {
            let own = folder.pages().filter(|(_, page)| page.own != 0);
            own.fold(folder.stored, |bits, (at, _)| bits | 1 << at)
        });
        let end = number.saturating_add(1).saturating_mul(FOLDER);
        (bits, end <= self.noted_upto)
    }

    /// Whether the map may have entries of its own in `start..end`, as far as a short look tells.
    pub(crate) fn may_have(&self, start: u64, end: u64) -> bool {
        let (first, last) = (start / PAGE, end.div_ceil(PAGE));
        if last > self.noted_upto {
            return true;
        }
        let mut looks = 0;
        for number in self.order.range(first / FOLDER..last.div_ceil(FOLDER)) {
            looks += 1;
            let base = number * FOLDER;
            let (bits, _) = self.own_bits(*number);
            let is_in = |at: u64| bits >> at & 1 != 0 && (first..last).contains(&(base + at));
            if looks == LOOK || (0..FOLDER).any(is_in) {
                return true;
            }
        }
        false
    }

    /// Pages of the map's own in `start..end` that are in memory, of so many that are, and up to where that is.
    pub(crate) fn own_pages(&self, start: u64, end: u64, looks: usize) -> (Vec<u64>, u64) {
        let mut pages = self.pages_in(start / PAGE, end.div_ceil(PAGE));
        let seen = pages.by_ref().take(looks);
        let own = seen.filter(|(_, page)| page.own != 0);
        let own = own.map(|(number, _)| number).collect();
        (own, pages.next().map_or(end, |(next, _)| next * PAGE))
    }

    /// Pages that are in memory, in order.
    pub(crate) fn resident_pages(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.pages_in(start / PAGE, end.div_ceil(PAGE))
            .map(|(number, _)| number)
    }

    /// Pages that are in memory and not as hosts see them, in order.
    pub(crate) fn incomplete_pages(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.pages_in(start / PAGE, end.div_ceil(PAGE))
            .filter(|(_, page)| !page.is_complete)
            .map(|(number, _)| number)
    }

    /// What a host sees of the page of a sub-block where the map has no entry of its own: runs of such entries, each
    /// with its first sub-block. Nothing if not all of it is in memory.
    pub(crate) fn to_copy(&self, sub_block: u64) -> Vec<(u64, Vec<Option<Mapping>>)> {
        let number = sub_block / PAGE;
        let Slot::Resident(page) = self.slot(number) else {
            return Vec::new();
        };
        if !page.is_complete {
            return Vec::new();
        }
        let all: Vec<usize> = (0..PAGE as usize).collect();
        let runs = all.chunk_by(|a, b| page.is_own(*a) == page.is_own(*b));
        runs.filter(|run| !page.is_own(run[0]))
            .map(|run| {
                let first = number * PAGE + run[0] as u64;
                (first, run.iter().map(|entry| page.get(*entry)).collect())
            })
            .collect()
    }
}

/// The entries that a map itself has of a page: mappings and holes.
pub(crate) struct OwnPage {
    /// Its first sub-block.
    pub(crate) start: u64,
    pub(crate) entries: Vec<Option<Mapping>>,
    /// The record that changed it last, if the store does not have it.
    pub(crate) changed: u64,
}

/// A page in memory.
#[derive(Clone, Copy)]
pub(crate) struct HerePage<'a>(&'a Page);

impl HerePage<'_> {
    /// Which entries are the map's own, by bits.
    pub(crate) fn own(self) -> u64 {
        self.0.own
    }

    /// What shows of an entry, which may be nothing. `None`: only ancestors can tell.
    pub(crate) fn shown(self, entry: usize) -> Option<Option<Mapping>> {
        let Self(page) = self;
        (page.is_complete || page.is_own(entry)).then(|| page.get(entry))
    }
}

/// Where one finds what a map itself has of a page.
pub(crate) enum Shown<'a> {
    /// In memory.
    Here(HerePage<'a>),
    /// In its rows in the store.
    Stored,
    /// It has nothing of it.
    Nowhere,
}
