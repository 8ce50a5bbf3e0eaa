//! The map against a plain one, with pages that come and go.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn mapping(number: u64) -> Mapping {
    Mapping {
        pba: Pba(number),
        crc32c: number as u32 ^ 0x5555,
    }
}

fn plain(found: impl Iterator<Item = (u64, Mapping)>) -> Vec<(u64, u64)> {
    let checked = |(at, found): (u64, Mapping)| {
        assert_eq!(found, mapping(found.pba.0));
        (at, found.pba.0)
    };
    found.map(checked).collect()
}

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
        let resident = Resident::new(u64::MAX);
        let mut map = PageMap::new(1);
        let mut model = BTreeMap::new();
        for (record, (sub_block, new)) in (1..).zip(steps) {
            let old = match new {
                Some(pba) => model.insert(sub_block, pba),
                None => model.remove(&sub_block),
            };
            let found = map.replace(sub_block, new.map(mapping), record, &resident).unwrap();
            prop_assert_eq!(found.map(|pba| pba.0), old);
            prop_assert_eq!(map.mapped(), model.len() as u64);
        }
        let found = plain(map.range(start, start + len, View::Own));
        let wanted: Vec<_> = model.range(start..start + len).map(|(at, pba)| (*at, *pba)).collect();
        prop_assert_eq!(found, wanted);
        for (sub_block, pba) in &model {
            prop_assert_eq!(map.lookup(*sub_block), Some(mapping(*pba)));
        }
        prop_assert_eq!(map.known_upto(start, start + len, View::Own), start + len);
    }
}

/// A map, the store behind it, and what both stand for.
struct Pair {
    map: PageMap,
    resident: Resident,
    /// What the store has, and the changes that it does not have yet.
    store: BTreeMap<u64, u64>,
    journal: Vec<(u64, u64, Option<u64>)>,
    model: BTreeMap<u64, u64>,
    record: u64,
}

impl Pair {
    fn new(stored: BTreeMap<u64, u64>, limit: u64) -> Self {
        Self {
            map: PageMap::stored(MapInfo::root(1), stored.len() as u64),
            resident: Resident::new(limit),
            model: stored.clone(),
            store: stored,
            journal: Vec::new(),
            record: 0,
        }
    }

    fn rows(&self, start: u64, end: u64) -> Vec<(u64, Mapping)> {
        let rows = self.store.range(start..end);
        rows.map(|(at, pba)| (*at, mapping(*pba))).collect()
    }

    fn bring_in(&mut self, start: u64, end: u64) {
        let missing: Vec<u64> = self.map.missing(start, end).collect();
        for page in missing {
            let rows = self.rows(page, page + PAGE);
            self.map.load((page, page + PAGE), &rows, &self.resident);
            // As if two had read it at once.
            self.map.load((page, page + PAGE), &rows, &self.resident);
        }
        assert_eq!(self.map.missing(start, end).next(), None);
    }

    fn change(&mut self, at: u64, new: Option<u64>) {
        self.bring_in(at, at + 1);
        self.record += 1;
        self.journal.push((self.record, at, new));
        let old = match new {
            Some(pba) => self.model.insert(at, pba),
            None => self.model.remove(&at),
        };
        let new = new.map(mapping);
        let found = self.map.replace(at, new, self.record, &self.resident);
        assert_eq!(found, Ok(old.map(Pba)));
    }

    fn store_some(&mut self, count: usize) {
        for (record, at, new) in self.journal.drain(..count.min(self.journal.len())) {
            match new {
                Some(pba) => self.store.insert(at, pba),
                None => self.store.remove(&at),
            };
            self.resident.set_stored(record);
        }
    }

    /// The clock goes over everything; `locked` stays.
    fn evict(&mut self, locked: (u64, u64)) {
        let pages = |(base, folder): (u64, &Folder)| {
            let keys = folder
                .pages()
                .map(|(at, page)| (base * FOLDER + at, page.ticket));
            keys.collect::<Vec<_>>()
        };
        let folders = self
            .map
            .order
            .iter()
            .map(|number| (*number, &self.map.folders[number]));
        for key in folders.flat_map(pages).collect::<Vec<_>>() {
            let is_locked = |start, end| start < locked.1 && locked.0 < end;
            let fate = self.map.pass(key, true, is_locked, &self.resident);
            assert_ne!(fate, Fate::Stale);
        }
    }

    /// What is not in memory is in the store as it should be.
    fn check(&mut self) {
        assert_eq!(self.map.mapped(), self.model.len() as u64);
        let mut at = 0;
        let mut found = Vec::new();
        while at < 500 {
            let known = self.map.known_upto(at, 500, View::Own);
            found.extend(plain(self.map.range(at, known, View::Own)));
            if known == at {
                let page = page_start(at);
                found.extend(plain(self.rows(page, page + PAGE).into_iter()));
                at = page + PAGE;
            } else {
                at = known;
            }
        }
        assert_eq!(found, self.model.clone().into_iter().collect::<Vec<_>>());
        let stored: u32 = self
            .map
            .folders
            .values()
            .map(|folder| folder.stored.count_ones())
            .sum();
        let here: usize = self
            .map
            .folders
            .values()
            .map(|folder| folder.pages.len())
            .sum();
        assert_eq!(
            (self.map.stored_pages, self.map.pages),
            (u64::from(stored), here as u64)
        );
        let folders: BTreeSet<u64> = self.map.folders.keys().copied().collect();
        assert_eq!(folders, self.map.order);
    }
}

proptest! {
    #[test]
    fn pages_come_and_go_and_nothing_is_lost(
        stored in proptest::collection::btree_map(0u64..300, 0u64..50, 0..100),
        steps in proptest::collection::vec((0u8..8, 0u64..300, proptest::option::of(0u64..50)), 1..150),
    ) {
        let mut pair = Pair::new(stored, 0);
        for (what, at, new) in steps {
            match what {
                0..3 => pair.change(at, new),
                3 => pair.store_some(at as usize % 8),
                4 => pair.evict((at, at + 20)),
                5 => {
                    pair.bring_in(at, at + 20);
                    let window = pair.map.hold(at, at + 20);
                    pair.evict((0, 0));
                    pair.evict((0, 0));
                    prop_assert_eq!(pair.map.missing(at, at + 20).next(), None);
                    pair.map.let_go(window);
                }
                6 => if let Some(from) = pair.map.unknown_from() {
                    let end = if at < 50 { u64::MAX } else { from + 2 * PAGE };
                    let rows = pair.rows(from, end);
                    pair.map.load((from, end), &rows, &pair.resident);
                    prop_assert!(pair.map.unknown_from() != Some(from));
                },
                _ => {
                    let is_locked = |start: u64, end: u64| start < at && at < end;
                    pair.map.forget_some(is_locked, &pair.resident);
                }
            }
            pair.check();
        }
    }
}

#[test]
fn a_walk_from_the_beginning_notes_all_that_it_passes() {
    let stored = (0..20 * PAGE).step_by(3).map(|at| (at, at));
    let mut pair = Pair::new(stored.collect(), u64::MAX);
    pair.bring_in(0, 2 * PAGE);
    pair.bring_in(5 * PAGE, 6 * PAGE);
    let mut at = 0;
    while at < 20 * PAGE {
        let known = pair.map.known_upto(at, u64::MAX, View::Own);
        if known == at {
            let rows = pair.rows(at, at + PAGE);
            pair.map.load((at, at + PAGE), &rows, &pair.resident);
            assert_eq!(pair.map.unknown_from(), Some(at + PAGE));
        }
        at = known.max(at + PAGE);
    }
    // So what is emptied afterwards takes no memory.
    for at in 0..20 * PAGE {
        pair.change(at, None);
    }
    assert_eq!(pair.resident.bytes(), 0);
}

#[test]
fn pages_without_a_mapping_cost_no_memory() {
    let resident = Resident::new(u64::MAX);
    let mut map = PageMap::new(1);
    map.replace(1 << 40, Some(mapping(1)), 1, &resident)
        .unwrap();
    assert_eq!(resident.bytes(), PAGE_BYTES + FOLDER_BYTES);
    map.replace(1 << 40, None, 2, &resident).unwrap();
    assert!(map.folders.is_empty() && map.order.is_empty());
    assert_eq!(resident.bytes(), 0);
}

/// A child of a map that has sub-block 1, with the first page of both in memory.
fn forked(resident: &Resident) -> (PageMap, PageMap) {
    let mut child = PageMap::new(1);
    child.replace(1, Some(mapping(7)), 1, resident).unwrap();
    let parent = child.fork(2);
    assert_eq!(child.find(1), Err(NotResident));
    child.inherit(0, &seen_in(&parent, &[]), resident);
    (parent, child)
}

fn seen_in(map: &PageMap, rows: &[(u64, Mapping)]) -> Sight {
    let mut seen = Sight::new();
    map.show(0, Some(rows), &mut seen).unwrap();
    seen
}

/// The clock takes the first page.
fn evict_first(map: &mut PageMap, resident: &Resident) {
    let ticket = map.folders[&0].pages[0].ticket;
    map.folders[&0].pages[0]
        .touched
        .store(false, Ordering::Relaxed);
    let fate = map.pass((0, ticket), true, |_, _| false, resident);
    assert_eq!(fate, Fate::Evicted(PAGE_BYTES));
}

#[test]
fn what_is_inherited_is_seen_and_not_counted_and_an_entry_hides_nothing_else() {
    let resident = Resident::new(u64::MAX);
    let (parent, mut child) = forked(&resident);
    assert_eq!(child.find(1), Ok(Some(mapping(7))));
    assert_eq!((child.mapped(), parent.mapped()), (0, 1));
    assert_eq!(child.range(0, PAGE, View::Own).next(), None);
    let old = child.replace(2, Some(mapping(8)), 2, &resident);
    assert_eq!(old, Ok(None));
    let own: Vec<_> = child.range(0, PAGE, View::Own).collect();
    assert_eq!((own, child.mapped()), (vec![(2, mapping(8))], 1));
    let visible: Vec<_> = child.range(0, PAGE, View::Visible).collect();
    assert_eq!(visible, [(1, mapping(7)), (2, mapping(8))]);
    // What is written where something is inherited takes nothing away from the map itself.
    let old = child.replace(1, Some(mapping(9)), 3, &resident);
    assert_eq!((old, child.mapped()), (Ok(None), 2));
    let old = child.replace(1, Some(mapping(6)), 4, &resident);
    assert_eq!((old, child.mapped()), (Ok(Some(Pba(9))), 2));
}

#[test]
fn a_hole_hides_what_is_inherited_also_when_the_page_comes_back() {
    let resident = Resident::new(0);
    let (parent, mut child) = forked(&resident);
    let hidden = child.replace(1, Some(Mapping::HOLE), 3, &resident);
    assert_eq!(hidden, Ok(None));
    assert_eq!((child.find(1), child.mapped()), (Ok(None), 0));
    resident.set_stored(3);
    evict_first(&mut child, &resident);
    child.load((0, PAGE), &[(1, Mapping::HOLE)], &resident);
    assert_eq!(child.find(1), Err(NotResident));
    child.inherit(0, &seen_in(&parent, &[]), &resident);
    assert_eq!(child.find(1), Ok(None));
}

#[test]
fn an_entry_that_goes_shows_what_is_inherited_when_the_page_is_complete_again() {
    let resident = Resident::new(u64::MAX);
    let (parent, mut child) = forked(&resident);
    child.replace(1, Some(mapping(8)), 2, &resident).unwrap();
    child.replace(2, Some(mapping(9)), 3, &resident).unwrap();
    let old = child.replace(1, None, 4, &resident);
    assert_eq!(old, Ok(Some(Pba(8))));
    assert_eq!(child.find(2), Err(NotResident));
    assert_eq!(child.missing(0, PAGE).collect::<Vec<_>>(), [0]);
    child.inherit(0, &seen_in(&parent, &[]), &resident);
    assert_eq!(child.find(1), Ok(Some(mapping(7))));
    assert_eq!(child.find(2), Ok(Some(mapping(9))));
}

#[test]
fn the_nearest_map_that_has_an_entry_says_what_shows() {
    let resident = Resident::new(u64::MAX);
    let mut map = PageMap::new(1);
    for at in 0..3 {
        map.replace(at, Some(mapping(at)), 1, &resident).unwrap();
    }
    let root = map.fork(2);
    map.replace(1, Some(mapping(5)), 2, &resident).unwrap();
    let middle = map.fork(3);
    let mut seen = seen_in(&middle, &[]);
    // The store has another row for a page that is in memory: that does not count.
    root.show(0, Some(&[(3, mapping(4))]), &mut seen).unwrap();
    map.inherit(0, &seen, &resident);
    let visible: Vec<_> = map.range(0, PAGE, View::Visible).collect();
    assert_eq!(visible, [(0, mapping(0)), (1, mapping(5)), (2, mapping(2))]);
    assert_eq!(
        (root.own_bits(0), middle.own_bits(0)),
        ((1, true), (1, true))
    );
    assert_eq!(map.own_bits(0), (0, true));
    assert!(root.may_have(0, u64::MAX) && !root.may_have(PAGE, u64::MAX));
    assert!(!map.may_have(0, u64::MAX));
}

#[test]
fn what_shows_is_told_in_runs_to_who_copies_it() {
    let resident = Resident::new(u64::MAX);
    let (_, mut child) = forked(&resident);
    child.replace(2, Some(mapping(8)), 2, &resident).unwrap();
    let runs = child.to_copy(0);
    let nothing = vec![None; PAGE as usize - 3];
    assert_eq!(runs, [(0, vec![None, Some(mapping(7))]), (3, nothing)]);
}

#[test]
fn a_map_whose_row_went_shows_nothing_of_its_ancestors_and_takes_no_memory() {
    let resident = Resident::new(u64::MAX);
    let (parent, mut child) = forked(&resident);
    let before = child.replace(2, Some(Mapping::HOLE), 2, &resident);
    assert_eq!((before, child.find(1)), (Ok(None), Ok(Some(mapping(7)))));
    let window = child.hold(0, PAGE);
    child.orphan(3, &resident);
    assert_eq!(child.range(0, u64::MAX, View::Visible).next(), None);
    assert_eq!((child.find(1), child.find(2)), (Ok(None), Ok(None)));
    parent.leaves(&resident);
    assert_eq!(resident.bytes(), 0);
    // The store has the hole until it knows of the record; who holds a window holds it still.
    assert_eq!(child.with_store(&[(2, Mapping::HOLE)], 2).len(), 0);
    child.narrow(window, 0);
    child.let_go(window);
}
