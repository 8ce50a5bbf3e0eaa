//! The map of one volume: sub-block -> physical block, in pages that exist only where something is
//! mapped. An unmapped sub-block reads as zeros.

use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::{HashMap, HashSet};
use meta::Pba;

/// Sub-blocks per page: 4 KiB of memory for 2 MiB of a volume. Small in tests, so that the small volumes
/// of the simulation have several.
const PAGE: u64 = if cfg!(test) { 8 } else { 512 };
/// Pages per folder: 4 KiB of memory for 1 GiB of a volume.
const FOLDER: u64 = 512;

/// No physical block has this number (the drive index would be 65535).
const NONE: u64 = u64::MAX;

struct Page {
    entries: [u64; PAGE as usize],
    mapped: u32,
}

struct Folder {
    pages: [Option<Box<Page>>; FOLDER as usize],
    used: u32,
}

/// Numbers of folders follow each other: one multiplication spreads them (2^64 over the golden ratio).
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The mapped sub-blocks of a volume.
#[derive(Default)]
pub(crate) struct PageMap {
    folders: HashMap<u64, Box<Folder>, BuildHasherDefault<Spread>>,
    /// The folders there are, in order.
    order: BTreeSet<u64>,
    mapped: u64,
    /// What is still in the store only; `None` when everything is here.
    unloaded: Option<Box<Unloaded>>,
}

/// The part of a map that was not read from the store yet.
struct Unloaded {
    /// All sub-blocks before this one are loaded: the first of a page.
    from: u64,
    /// Pages behind it that are loaded too.
    pages: HashSet<u64>,
}

/// Folder, page in it, and entry in that, of a sub-block.
fn split(sub_block: u64) -> (u64, usize, usize) {
    let page = sub_block / PAGE;
    (
        page / FOLDER,
        (page % FOLDER) as usize,
        (sub_block % PAGE) as usize,
    )
}

impl PageMap {
    /// A map of so many sub-blocks that are all in the store only.
    pub(crate) fn unloaded(mapped: u64) -> Self {
        let unloaded = Unloaded {
            from: 0,
            pages: HashSet::new(),
        };
        Self {
            mapped,
            unloaded: (mapped > 0).then(|| Box::new(unloaded)),
            ..Self::default()
        }
    }

    fn has_page(&self, page: u64) -> bool {
        let is_here =
            |unloaded: &Unloaded| page < unloaded.from / PAGE || unloaded.pages.contains(&page);
        self.unloaded.as_deref().is_none_or(is_here)
    }

    /// Ranges of sub-blocks that must be loaded before those in `start..end` are looked up.
    pub(crate) fn missing(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        (start / PAGE..end.div_ceil(PAGE))
            .filter(|page| !self.has_page(*page))
            .map(|page| (page * PAGE, (page + 1).saturating_mul(PAGE)))
    }

    /// Where the store has to be read next; `None` when everything is loaded.
    pub(crate) fn next_unloaded(&self) -> Option<u64> {
        self.unloaded.as_ref().map(|unloaded| unloaded.from)
    }

    /// Takes what the store has in one of the ranges of [`missing`](Self::missing).
    pub(crate) fn load_page(&mut self, start: u64, rows: &[(u64, Pba)]) {
        let page = start / PAGE;
        if self.has_page(page) {
            return; // somebody else was faster, and it may have changed since
        }
        for (sub_block, pba) in rows {
            self.place(*sub_block, Some(*pba));
        }
        if let Some(unloaded) = &mut self.unloaded {
            unloaded.pages.insert(page);
        }
    }

    /// Takes what the store has from [`next_unloaded`](Self::next_unloaded) up to `end`, the first
    /// sub-block of a page; `None`: up to its end.
    pub(crate) fn load_next(&mut self, end: Option<u64>, rows: &[(u64, Pba)]) {
        for (sub_block, pba) in rows {
            if !self.has_page(sub_block / PAGE) {
                self.place(*sub_block, Some(*pba));
            }
        }
        match (&mut self.unloaded, end) {
            (Some(unloaded), Some(end)) => {
                unloaded.from = end;
                unloaded.pages.retain(|page| *page >= end / PAGE);
            }
            (unloaded, _) => *unloaded = None,
        }
    }

    /// The first sub-block of the page of this one.
    pub(crate) fn page_start(sub_block: u64) -> u64 {
        sub_block - sub_block % PAGE
    }

    /// Where a sub-block is stored.
    #[inline]
    pub(crate) fn lookup(&self, sub_block: u64) -> Option<Pba> {
        debug_assert!(self.has_page(sub_block / PAGE));
        let (folder, page, entry) = split(sub_block);
        let page = self.folders.get(&folder)?.pages[page].as_ref()?;
        match page.entries[entry] {
            NONE => None,
            pba => Some(Pba(pba)),
        }
    }

    /// Maps or unmaps a sub-block; returns what it was mapped to.
    pub(crate) fn replace(&mut self, sub_block: u64, new: Option<Pba>) -> Option<Pba> {
        debug_assert!(self.has_page(sub_block / PAGE));
        let old = self.place(sub_block, new);
        // A damaged store may have said too few.
        match (old, new) {
            (None, Some(_)) => self.mapped += 1,
            (Some(_), None) => self.mapped = self.mapped.saturating_sub(1),
            _ => {}
        }
        old
    }

    fn place(&mut self, sub_block: u64, new: Option<Pba>) -> Option<Pba> {
        let (number, page_at, entry) = split(sub_block);
        let folder = match (self.folders.get_mut(&number), new) {
            (Some(folder), _) => folder,
            (None, None) => return None,
            (None, Some(_)) => {
                self.order.insert(number);
                let folder = || {
                    Box::new(Folder {
                        pages: [const { None }; FOLDER as usize],
                        used: 0,
                    })
                };
                self.folders.entry(number).or_insert_with(folder)
            }
        };
        let page = match (&mut folder.pages[page_at], new) {
            (Some(page), _) => page,
            (None, None) => return None,
            (slot @ None, Some(_)) => {
                folder.used += 1;
                slot.insert(Box::new(Page {
                    entries: [NONE; PAGE as usize],
                    mapped: 0,
                }))
            }
        };
        let old = std::mem::replace(&mut page.entries[entry], new.map_or(NONE, |pba| pba.0));
        if old == NONE && new.is_some() {
            page.mapped += 1;
        } else if old != NONE && new.is_none() {
            page.mapped -= 1;
        }
        if page.mapped == 0 {
            folder.pages[page_at] = None;
            folder.used -= 1;
            if folder.used == 0 {
                self.folders.remove(&number);
                self.order.remove(&number);
            }
        }
        (old != NONE).then_some(Pba(old))
    }

    /// How many sub-blocks are mapped.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The mapped sub-blocks in `start..end`, in order.
    pub(crate) fn range(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Pba)> + '_ {
        let pages_of = |number: &u64| {
            let base = number * FOLDER;
            let folder = self.folders.get(number);
            let pages = folder.map_or(&[][..], |folder| &folder.pages[..]);
            (base..).zip(pages)
        };
        let last_page = end.div_ceil(PAGE);
        let folders = start / PAGE / FOLDER..last_page.div_ceil(FOLDER);
        self.order
            .range(folders.start..folders.end.max(folders.start))
            .flat_map(pages_of)
            .skip_while(move |(number, _)| *number < start / PAGE)
            .take_while(move |(number, _)| *number < last_page)
            .filter_map(|(number, page)| Some((number * PAGE, page.as_ref()?)))
            .flat_map(move |(base, page)| {
                (base..)
                    .zip(&page.entries)
                    .filter(|(_, pba)| **pba != NONE)
                    .map(|(sub_block, pba)| (sub_block, Pba(*pba)))
            })
            .filter(move |(sub_block, _)| (start..end).contains(sub_block))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_map_agrees_with_a_plain_ordered_map(
            scale in proptest::sample::select(vec![1u64, 100, 10_000]),
            steps in proptest::collection::vec((0u64..3000, proptest::option::of(0u64..50)), 1..300),
            start in 0u64..3000,
            len in 0u64..3000,
        ) {
            let (start, len) = (start * scale, len * scale);
            let steps = steps.into_iter().map(|(sub_block, new)| (sub_block * scale, new));
            let mut map = PageMap::default();
            let mut model = BTreeMap::new();
            for (sub_block, new) in steps {
                let old = match new {
                    Some(pba) => model.insert(sub_block, pba),
                    None => model.remove(&sub_block),
                };
                prop_assert_eq!(map.replace(sub_block, new.map(Pba)).map(|pba| pba.0), old);
                prop_assert_eq!(map.mapped(), model.len() as u64);
            }
            let found: Vec<_> = map.range(start, start + len).map(|(at, pba)| (at, pba.0)).collect();
            let wanted: Vec<_> = model.range(start..start + len).map(|(at, pba)| (*at, *pba)).collect();
            prop_assert_eq!(found, wanted);
            for (sub_block, pba) in &model {
                prop_assert_eq!(map.lookup(*sub_block).map(|pba| pba.0), Some(*pba));
            }
        }
    }

    proptest! {
        #[test]
        fn a_map_that_is_loaded_piece_by_piece_ends_as_one_that_was_there(
            stored in proptest::collection::btree_map(0u64..300, 0u64..50, 1..100),
            steps in proptest::collection::vec((0u8..3, 0u64..300, proptest::option::of(0u64..50)), 1..100),
        ) {
            let mut map = PageMap::unloaded(stored.len() as u64);
            let mut model = stored.clone();
            let rows = |start: u64, end: u64| -> Vec<(u64, Pba)> {
                stored.range(start..end).map(|(at, pba)| (*at, Pba(*pba))).collect()
            };
            for (what, at, new) in steps {
                match (what, map.next_unloaded()) {
                    (0, Some(from)) => map.load_next(Some(from + PAGE), &rows(from, from + PAGE)),
                    _ => {
                        // As a command does: what it needs is loaded first, by two at once perhaps.
                        let missing: Vec<_> = map.missing(at, at + 1).collect();
                        for (start, end) in missing.iter().chain(&missing) {
                            map.load_page(*start, &rows(*start, *end));
                        }
                        let old = match new {
                            Some(pba) => model.insert(at, pba),
                            None => model.remove(&at),
                        };
                        prop_assert_eq!(map.replace(at, new.map(Pba)).map(|pba| pba.0), old);
                        for (start, end) in missing {
                            map.load_page(start, &rows(start, end));
                        }
                    }
                }
                prop_assert_eq!(map.mapped(), model.len() as u64);
            }
            if let Some(from) = map.next_unloaded() {
                map.load_next(None, &rows(from, u64::MAX));
            }
            prop_assert!(map.next_unloaded().is_none());
            let found: Vec<_> = map.range(0, 400).map(|(at, pba)| (at, pba.0)).collect();
            prop_assert_eq!(found, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn pages_without_a_mapping_cost_no_memory() {
        let mut map = PageMap::default();
        map.replace(1 << 40, Some(Pba(1)));
        map.replace(1 << 40, None);
        assert!(map.folders.is_empty() && map.order.is_empty());
    }
}
