//! Pages that a map has from its ancestors.

use std::sync::Arc;

use meta::{MapId, MapInfo, Mapping};

use super::{PAGE, Page, PageMap, Slot, split};
use crate::metadata::resident::Resident;

/// What is mapped in a page.
pub(crate) type PageEntries = [Option<Mapping>; PAGE as usize];

/// What a child finds in an ancestor, of one page.
pub(crate) enum Inherited<'a> {
    /// The page is in memory.
    Page(Vec<(u64, Mapping)>),
    /// What the store says, counts: its rows of the page.
    Stored(&'a [(u64, Mapping)]),
    /// The ancestor does not have it: the next one is asked.
    Further,
}

/// Where hosts find what they see of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// In the memory of the map that was asked.
    Here,
    /// In the map's rows in the store.
    Stored,
    /// The map's ancestors say it.
    Further,
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

    /// The first page of the map's own in `start..end` that is in memory, with its mappings and holes.
    pub(crate) fn first_own(&self, start: u64, end: u64) -> Option<(u64, Vec<Option<Mapping>>)> {
        let mut pages = self.pages_in(start / PAGE, end.div_ceil(PAGE));
        let (number, page) = pages.find(|(_, page)| !page.is_inherited && page.present > 0)?;
        let entries = (0..PAGE as usize).map(|entry| page.get(entry));
        Some((number * PAGE, entries.collect()))
    }

    /// Its row went, and nothing is mapped in it any more: holes do not count.
    pub(crate) fn orphan(&mut self) {
        self.info = MapInfo::root(self.info.id);
    }

    /// Becomes a new map that inherits all from this one, which is returned.
    pub(crate) fn fork(&mut self, id: MapId) -> Self {
        self.succeed(self.info.child(id))
    }

    /// Becomes a new map, which has a parent and nothing of its own; returns this one.
    pub(crate) fn succeed(&mut self, by: MapInfo) -> Self {
        let child = Self {
            is_whole: self.is_whole.clone(),
            ..Self::stored(by, 0)
        };
        child.say_if_whole();
        let mut parent = std::mem::replace(self, child);
        parent.is_whole = Arc::default();
        parent.say_if_whole();
        parent
    }

    /// Takes a page that an ancestor has, or nobody, if it is not in memory.
    pub(crate) fn inherit(
        &mut self,
        number: u64,
        rows: &[(u64, Mapping)],
        resident: &mut Resident,
    ) {
        if !matches!(self.slot(number), Slot::Stored) {
            return;
        }
        let mut page = Page::empty(resident.ticket());
        page.is_inherited = true;
        for (sub_block, mapping) in rows.iter().filter(|(_, mapping)| !mapping.is_hole()) {
            page.set(split(*sub_block).1, Some(*mapping));
        }
        self.insert(number, page, resident);
    }

    /// What a child inherits of a page, if the store has these rows of it. The map does not change any more.
    pub(crate) fn inherited<'a>(&self, number: u64, rows: &'a [(u64, Mapping)]) -> Inherited<'a> {
        match self.slot(number) {
            Slot::Resident(page) if page.is_inherited || page.present > 0 => {
                let first = number * PAGE;
                let entries = page.entries();
                Inherited::Page(entries.map(|(at, to)| (first + at as u64, to)).collect())
            }
            Slot::Stored if !rows.is_empty() => Inherited::Stored(rows),
            Slot::Resident(_) | Slot::Stored | Slot::Empty => Inherited::Further,
        }
    }

    /// Says where a host finds what it sees of a page, and puts it into `entries` if that is here. `is_stored`: the store
    /// has some of the page. `is_head`: a volume has the map, so what is in memory is what hosts see.
    pub(crate) fn show(
        &self,
        number: u64,
        is_stored: bool,
        is_head: bool,
        entries: &mut PageEntries,
    ) -> Shown {
        match self.slot(number) {
            Slot::Resident(page) if is_head || page.is_inherited || page.present > 0 => {
                for (at, entry) in entries.iter_mut().enumerate() {
                    *entry = page.get(at);
                }
                Shown::Here
            }
            Slot::Stored if is_stored => Shown::Stored,
            Slot::Resident(_) | Slot::Stored | Slot::Empty => Shown::Further,
        }
    }

    /// Pages of the map's own in `start..end` that are in memory, of so many that are, and up to where that is.
    pub(crate) fn own_pages(&self, start: u64, end: u64, looks: usize) -> (Vec<u64>, u64) {
        let mut pages = self.pages_in(start / PAGE, end.div_ceil(PAGE));
        let seen = pages.by_ref().take(looks);
        let own = seen.filter(|(_, page)| !page.is_inherited);
        let own = own.map(|(number, _)| number).collect();
        (own, pages.next().map_or(end, |(next, _)| next * PAGE))
    }

    /// Pages that are in memory, in order.
    pub(crate) fn resident_pages(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.pages_in(start / PAGE, end.div_ceil(PAGE))
            .map(|(number, _)| number)
    }

    /// What is mapped in the page of a sub-block, which is inherited and in memory; `None` if there is nothing to
    /// copy.
    pub(crate) fn to_copy(&self, sub_block: u64) -> Option<Vec<(u64, Mapping)>> {
        let number = sub_block / PAGE;
        match self.slot(number) {
            Slot::Resident(page) if page.is_inherited && page.mapped > 0 => {
                let entries = page.entries();
                Some(
                    entries
                        .map(|(at, to)| (number * PAGE + at as u64, to))
                        .collect(),
                )
            }
            _ => None,
        }
    }
}
