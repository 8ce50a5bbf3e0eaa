//! One map: sub-block -> physical block and checksum, in pages. An unmapped sub-block reads as zeros.
//!
//! A page is in memory, or empty, or in the store only: then it must be loaded before anybody looks at
//! it. Empty pages take no memory where it is known which ones are not.
//!
//! A map may have a parent. Each sub-block of which it has no entry of its own is then *inherited*: it is the parent's,
//! or that of the nearest ancestor that has an entry. What is unmapped in such a map is a hole: an entry that hides what
//! ancestors have. In memory a page has both, its own entries and what shows through between them, so that a look-up
//! costs the same at any depth; what shows through counts nowhere. A page may be in memory with its own entries alone:
//! that is enough for a record, and for who looks at what counts, but not for hosts.

use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use meta::{MapEntry, MapId, MapInfo, Mapping, NewBlock, Pba};

use crate::metadata::resident::{Fate, Key, Resident};

/// Sub-blocks per page: 0.8 KiB of memory for 256 KiB of a volume, so that a random read brings in
/// little. Small in tests, so that the small volumes of the simulation have several.
pub(crate) const PAGE: u64 = if cfg!(test) { 8 } else { 64 };
/// Pages per folder: one bit each.
pub(crate) const FOLDER: u64 = u64::BITS as u64;
/// Memory of a page with its entries in a folder and in the clock.
pub(crate) const PAGE_BYTES: u64 = (size_of::<Page>() + 8 + 16 + size_of::<Key>()) as u64;
/// Memory of a folder without its pages.
const FOLDER_BYTES: u64 = 96;
/// Folders, or pages, that one look goes through at most.
const LOOK: usize = 1024;
/// Folders that are forgotten in one go.
const FORGET: usize = 64;

/// Pages that follow each other.
#[derive(Default)]
struct Folder {
    /// Which ones are in memory, by bits; they are in `pages` in that order.
    resident: u64,
    /// Which ones are in the store only, as far as that is noted.
    stored: u64,
    #[expect(clippy::vec_box, reason = "pages come and go in the middle")]
    pages: Vec<Box<Page>>,
}

impl Folder {
    /// Where a page is, or would be, among those that are here.
    fn rank(&self, bit: u64) -> usize {
        (self.resident & (bit - 1)).count_ones() as usize
    }

    fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        let mut resident = self.resident;
        self.pages.iter().map(move |page| {
            let at = resident.trailing_zeros();
            resident &= resident.wrapping_sub(1);
            (u64::from(at), &**page)
        })
    }
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

/// What is known of a page.
enum Slot<'a> {
    Resident(&'a Page),
    /// The map has no entry of its own there.
    Empty,
    /// In the store only.
    Stored,
}

/// The page of a sub-block is in the store only: it must be loaded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotResident;

/// Which pages of a map a walk looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// What a host sees, also what is inherited.
    Visible,
    /// The map's own: what counts.
    Own,
}

/// A map's mapped sub-blocks.
pub(crate) struct PageMap {
    info: MapInfo,
    folders: HashMap<u64, Folder, BuildHasherDefault<Spread>>,
    /// The folders there are, in order.
    order: BTreeSet<u64>,
    mapped: u64,
    /// Pages that are in memory.
    pages: u64,
    /// Pages that are noted to be in the store only.
    stored_pages: u64,
    /// Of pages before this one it is noted which are in the store only; others that are not here have no entry of
    /// the map's own. Of pages from this one on nothing is noted.
    noted_upto: u64,
    /// The last record that emptied a page that then left memory: up to that record, the store may
    /// have mappings where the map has none.
    emptied: u64,
    /// The last record that changed any page.
    changed: u64,
    /// Pages that must stay in memory: first, end, and the number of the window that keeps them.
    windows: Vec<(u64, u64, u64)>,
    next_window: u64,
    /// Whether nothing is in the store only, and there is no parent.
    is_whole: Arc<AtomicBool>,
}

/// Page of a sub-block, and its entry in that.
fn split(sub_block: u64) -> (u64, usize) {
    (sub_block / PAGE, (sub_block % PAGE) as usize)
}

/// The first sub-block of the page of this one.
pub(crate) fn page_start(sub_block: u64) -> u64 {
    sub_block - sub_block % PAGE
}

/// One past the last sub-block of the pages before this end.
pub(crate) fn page_end(end: u64) -> u64 {
    end.div_ceil(PAGE).saturating_mul(PAGE)
}

fn mapping_of(new: NewBlock) -> Mapping {
    Mapping {
        pba: new.pba,
        crc32c: new.crc32c,
    }
}

impl PageMap {
    /// A new map without a parent.
    pub(crate) fn new(id: MapId) -> Self {
        Self {
            info: MapInfo::root(id),
            folders: HashMap::default(),
            order: BTreeSet::new(),
            mapped: 0,
            pages: 0,
            stored_pages: 0,
            noted_upto: u64::MAX,
            emptied: 0,
            changed: 0,
            windows: Vec::new(),
            next_window: 0,
            is_whole: Arc::new(AtomicBool::new(true)),
        }
    }

    /// A map of so many sub-blocks of its own that are all in the store only, or its ancestors' so far.
    pub(crate) fn stored(info: MapInfo, mapped: u64) -> Self {
        let is_empty = mapped == 0 && info.parent.is_none();
        let map = Self {
            info,
            mapped,
            noted_upto: if is_empty { u64::MAX } else { 0 },
            ..Self::new(info.id)
        };
        map.say_if_whole();
        map
    }

    /// What stands in its row, if it has one.
    pub(crate) fn info(&self) -> MapInfo {
        self.info
    }

    pub(crate) fn id(&self) -> MapId {
        self.info.id
    }

    /// A flag that says whether nothing is in the store only.
    pub(crate) fn whole_flag(&self) -> Arc<AtomicBool> {
        self.is_whole.clone()
    }

    fn say_if_whole(&self) {
        let is_known = self.stored_pages == 0 && self.noted_upto == u64::MAX;
        let is_whole = is_known && !self.inherits();
        self.is_whole.store(is_whole, Ordering::Release);
    }

    fn slot(&self, page: u64) -> Slot<'_> {
        if let Some(folder) = self.folders.get(&(page / FOLDER)) {
            let bit = 1 << (page % FOLDER);
            if folder.resident & bit != 0 {
                return Slot::Resident(&folder.pages[folder.rank(bit)]);
            }
            if folder.stored & bit != 0 {
                return Slot::Stored;
            }
        }
        match page < self.noted_upto {
            true => Slot::Empty,
            false => Slot::Stored,
        }
    }

    /// Asks for what is in memory of a sub-block, so that what many commands look at comes at the same time.
    pub(crate) fn prefetch(&self, sub_block: u64) {
        let (page, entry) = split(sub_block);
        if let Slot::Resident(page) = self.slot(page) {
            page.prefetch(entry);
        }
    }

    /// Where a sub-block is stored.
    #[inline]
    pub(crate) fn find(&self, sub_block: u64) -> Result<Option<Mapping>, NotResident> {
        let (page, entry) = split(sub_block);
        match self.slot(page) {
            Slot::Resident(page) if page.is_complete => {
                page.touched.store(true, Ordering::Relaxed);
                Ok(page.get(entry))
            }
            Slot::Empty if !self.inherits() => Ok(None),
            Slot::Resident(_) | Slot::Empty | Slot::Stored => Err(NotResident),
        }
    }

    /// As [`find`](Self::find), of sub-blocks that follow each other: gives them to `each`, in order.
    ///
    /// # Errors
    /// A page must be brought in first; `each` was given what is before it.
    #[inline]
    pub(crate) fn find_run(
        &self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, Option<Mapping>),
    ) -> Result<(), NotResident> {
        self.find_run_of(start, end, |at, mapping, _| each(at, mapping))
    }

    /// The same; says also whether it is an entry of the map's own.
    ///
    /// # Errors
    /// As for [`find_run`](Self::find_run).
    #[inline]
    pub(crate) fn find_run_of(
        &self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, Option<Mapping>, bool),
    ) -> Result<(), NotResident> {
        let mut at = start;
        while at < end {
            let (number, first) = split(at);
            let count = (PAGE - first as u64).min(end - at);
            match self.slot(number) {
                Slot::Resident(page) if page.is_complete => {
                    page.touched.store(true, Ordering::Relaxed);
                    let entries = first..first + count as usize;
                    (at..)
                        .zip(entries)
                        .for_each(|(at, entry)| each(at, page.get(entry), page.is_own(entry)));
                }
                Slot::Empty if !self.inherits() => {
                    (at..at + count).for_each(|at| each(at, None, false));
                }
                Slot::Resident(_) | Slot::Empty | Slot::Stored => return Err(NotResident),
            }
            at += count;
        }
        Ok(())
    }

    /// As [`find`](Self::find), of a sub-block whose page was brought in.
    #[cfg(test)]
    pub(crate) fn lookup(&self, sub_block: u64) -> Option<Mapping> {
        let found = self.find(sub_block);
        debug_assert!(found.is_ok(), "sub-block {sub_block} was not brought in");
        found.unwrap_or_default()
    }

    /// Maps or unmaps a sub-block, by a record; returns what it was mapped to.
    ///
    /// # Errors
    /// Its page is in the store only; nothing is changed.
    pub(crate) fn replace(
        &mut self,
        sub_block: u64,
        new: Option<Mapping>,
        record: u64,
        resident: &Resident,
    ) -> Result<Option<Pba>, NotResident> {
        let mut old = None;
        let position = split(sub_block);
        let new = std::iter::once(new);
        self.replace_in_page(position, new, record, resident, |found| {
            old = found;
        })?;
        Ok(old)
    }

    /// Maps and unmaps sub-blocks that follow each other, by a record; gives `each` what they were mapped
    /// to in the map itself, in order.
    ///
    /// # Errors
    /// The page of this sub-block is in the store only; what is before it was changed.
    pub(crate) fn replace_run(
        &mut self,
        start: u64,
        entries: &[MapEntry],
        record: u64,
        resident: &Resident,
        mut each: impl FnMut(Option<Pba>),
    ) -> Result<(), u64> {
        let mut at = start;
        let mut left = entries;
        while !left.is_empty() {
            let position = split(at);
            let (now, later) = left.split_at((PAGE as usize - position.1).min(left.len()));
            let new = now.iter().map(|entry| entry.new.map(mapping_of));
            self.replace_in_page(position, new, record, resident, &mut each)
                .map_err(|NotResident| at)?;
            at += now.len() as u64;
            left = later;
        }
        Ok(())
    }

    fn replace_in_page(
        &mut self,
        (number, first): (u64, usize),
        new: impl Iterator<Item = Option<Mapping>> + Clone,
        record: u64,
        resident: &Resident,
        mut each: impl FnMut(Option<Pba>),
    ) -> Result<(), NotResident> {
        let inherits = self.inherits();
        match self.slot(number) {
            Slot::Stored => return Err(NotResident),
            Slot::Empty if new.clone().all(|new| new.is_none()) => {
                new.for_each(|_| each(None));
                return Ok(());
            }
            Slot::Empty => {
                let page = Page::empty(resident.ticket(), !inherits);
                self.insert(number, page, resident);
            }
            Slot::Resident(_) => {}
        }
        let Some(page) = self.page_mut(number) else {
            return Err(NotResident);
        };
        let (before, own) = (page.mapped, page.own);
        for (entry, new) in (first..).zip(new) {
            each(page.set(entry, new));
        }
        page.touched.store(true, Ordering::Relaxed);
        page.changed = record;
        // Where an entry of its own went, ancestors may show something.
        if inherits && own & !page.own != 0 {
            page.is_complete = false;
        }
        page.is_complete |= page.own == ALL;
        let after = page.mapped;
        let is_void = page.own == 0 && !(inherits && page.is_complete);
        self.changed = record;
        // A damaged store may have said too few.
        self.mapped = (self.mapped + u64::from(after)).saturating_sub(u64::from(before));
        if is_void && number < self.noted_upto {
            self.emptied = record;
            self.remove(number, resident);
            resident.dropped(1, PAGE_BYTES);
        }
        Ok(())
    }

    fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        let folder = self.folders.get_mut(&(number / FOLDER))?;
        let bit = 1 << (number % FOLDER);
        let rank = folder.rank(bit);
        match folder.resident & bit != 0 {
            true => folder.pages.get_mut(rank).map(|page| &mut **page),
            false => None,
        }
    }

    fn folder(&mut self, number: u64, resident: &Resident) -> &mut Folder {
        self.folders.entry(number).or_insert_with(|| {
            self.order.insert(number);
            resident.directory_grows(FOLDER_BYTES);
            Folder::default()
        })
    }

    /// A page comes into memory that was not here.
    fn insert(&mut self, number: u64, page: Box<Page>, resident: &Resident) {
        let key = Key::Page {
            map: self.info.id,
            ticket: page.ticket,
            page: number,
        };
        let bit = 1 << (number % FOLDER);
        let folder = self.folder(number / FOLDER, resident);
        let rank = folder.rank(bit);
        folder.pages.insert(rank, page);
        folder.resident |= bit;
        let was_stored = folder.stored & bit != 0;
        folder.stored &= !bit;
        self.pages += 1;
        if was_stored {
            self.stored_pages -= 1;
            self.say_if_whole();
        }
        resident.add(key, PAGE_BYTES);
    }

    /// A page that is here leaves memory.
    fn remove(&mut self, number: u64, resident: &Resident) {
        let bit = 1 << (number % FOLDER);
        if let Some(folder) = self.folders.get_mut(&(number / FOLDER)) {
            let rank = folder.rank(bit);
            folder.pages.remove(rank);
            folder.resident &= !bit;
            self.pages -= 1;
        }
        self.tidy(number / FOLDER, resident);
    }

    /// A folder with nothing in it goes.
    fn tidy(&mut self, number: u64, resident: &Resident) {
        let folder = self.folders.get(&number);
        if folder.is_some_and(|folder| folder.resident == 0 && folder.stored == 0) {
            self.folders.remove(&number);
            self.order.remove(&number);
            resident.directory_shrinks(FOLDER_BYTES);
        }
    }

    /// The clock comes to a page.
    pub(crate) fn pass(
        &mut self,
        (number, ticket): (u64, u32),
        may_leave: bool,
        is_locked: impl FnOnce(u64, u64) -> bool,
        resident: &Resident,
    ) -> Fate {
        let Slot::Resident(page) = self.slot(number) else {
            return Fate::Stale;
        };
        if page.ticket != ticket {
            return Fate::Stale;
        }
        if !may_leave || page.touched.swap(false, Ordering::Relaxed) {
            return Fate::Kept;
        }
        let is_unstored = page.changed > resident.stored();
        let (start, end) = (number * PAGE, (number + 1).saturating_mul(PAGE));
        let is_in_window = |(first, end, _): &(u64, u64, u64)| (*first..*end).contains(&number);
        let is_used = self.windows.iter().any(is_in_window) || is_locked(start, end);
        if is_unstored || is_used {
            return Fate::Kept;
        }
        if number < self.noted_upto && page.own != 0 {
            self.folder(number / FOLDER, resident).stored |= 1 << (number % FOLDER);
            self.stored_pages += 1;
            self.say_if_whole();
        }
        self.remove(number, resident);
        Fate::Evicted(PAGE_BYTES)
    }

    /// How many folders there are.
    pub(crate) fn folders(&self) -> usize {
        self.folders.len()
    }

    /// Forgets what is noted at the map's end, if the store can be asked instead, and nobody relies on
    /// pages that are known to be empty.
    pub(crate) fn forget_some(
        &mut self,
        is_locked: impl Fn(u64, u64) -> bool,
        resident: &Resident,
    ) {
        if self.emptied > resident.stored() {
            return;
        }
        let noted = self.noted_upto.div_ceil(FOLDER);
        let last = self.order.range(..noted).rev().take(FORGET);
        for number in last.copied().collect::<Vec<_>>() {
            let (start, end) = (number * FOLDER * PAGE, self.noted_upto.saturating_mul(PAGE));
            let noted = number * FOLDER..self.noted_upto;
            let mut windows = self.windows.iter();
            // Who holds a window may be about to map what is empty.
            let is_held = windows.any(|(first, upto, _)| *first < noted.end && noted.start < *upto);
            if is_held || is_locked(start, end) {
                break;
            }
            self.noted_upto = number * FOLDER;
            if let Some(folder) = self.folders.get_mut(&number) {
                self.stored_pages -= u64::from(folder.stored.count_ones());
                folder.stored = 0;
            }
            self.tidy(number, resident);
        }
        self.say_if_whole();
    }

    /// First sub-blocks of pages of `start..end` of which it is not known what hosts see.
    pub(crate) fn missing(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let is_missing = |page: &u64| match self.slot(*page) {
            Slot::Resident(page) => !page.is_complete,
            Slot::Empty => self.inherits(),
            Slot::Stored => true,
        };
        (start / PAGE..end.div_ceil(PAGE))
            .filter(is_missing)
            .map(|page| page * PAGE)
    }

    /// Up to where, from `start` on, all is known that one looks for, as far as a short look tells.
    pub(crate) fn known_upto(&self, start: u64, end: u64, view: View) -> u64 {
        let first = start / PAGE;
        let last = end.div_ceil(PAGE);
        if view == View::Visible && self.inherits() {
            let is_complete = |page: &u64| match self.slot(*page) {
                Slot::Resident(page) => page.is_complete,
                Slot::Empty | Slot::Stored => false,
            };
            let pages = (first..last).take(LOOK).take_while(is_complete);
            let upto = first + pages.count() as u64;
            return upto.saturating_mul(PAGE).clamp(start, end.max(start));
        }
        let mut upto = last.min(self.noted_upto.max(first));
        let mut looks = 0;
        while upto < last && looks < LOOK && matches!(self.slot(upto), Slot::Resident(_)) {
            upto += 1;
            looks += 1;
        }
        if self.stored_pages > 0 {
            for (looks, number) in self.order.range(first / FOLDER..).enumerate() {
                let base = number * FOLDER;
                if base >= upto {
                    break;
                }
                if looks == LOOK {
                    upto = base;
                    break;
                }
                let stored = self.folders.get(number).map_or(0, |folder| folder.stored);
                let from = first.saturating_sub(base);
                let stored = stored & u64::MAX.checked_shl(from as u32).unwrap_or(0);
                if stored != 0 {
                    upto = upto.min(base + u64::from(stored.trailing_zeros()));
                    break;
                }
            }
        }
        upto.saturating_mul(PAGE).clamp(start, end.max(start))
    }

    /// The first sub-block from which on nothing is noted, if there is one.
    pub(crate) fn unknown_from(&self) -> Option<u64> {
        (self.noted_upto < u64::MAX && !self.inherits())
            .then(|| self.noted_upto.saturating_mul(PAGE))
    }

    /// Takes what the store has of the map itself from one page on up to another, if it is in the store only;
    /// `start` and `end` are first sub-blocks of pages, or there is no end.
    pub(crate) fn load(
        &mut self,
        (start, end): (u64, u64),
        rows: &[(u64, Mapping)],
        resident: &Resident,
    ) {
        let (first, last) = (start / PAGE, end.div_ceil(PAGE));
        let inherits = self.inherits();
        for (number, rows) in by_page(rows) {
            // Another task may have brought it in first, and it may have changed since.
            if !(first..last).contains(&number) || !matches!(self.slot(number), Slot::Stored) {
                continue;
            }
            let mut page = Page::empty(resident.ticket(), !inherits);
            for (sub_block, mapping) in rows {
                page.set(split(*sub_block).1, Some(*mapping));
            }
            page.is_complete |= page.own == ALL;
            self.insert(number, page, resident);
        }
        // A resident page needs no note: going through a map from its beginning notes all of it.
        while self.noted_upto < first && matches!(self.slot(self.noted_upto), Slot::Resident(_)) {
            self.noted_upto += 1;
        }
        if first <= self.noted_upto && last > self.noted_upto {
            self.noted_upto = if end == u64::MAX { u64::MAX } else { last };
            self.say_if_whole();
        }
        if last - first == 1 && matches!(self.slot(first), Slot::Stored) {
            // Nothing is mapped there; that is to be known as long as it is used.
            let page = Page::empty(resident.ticket(), !inherits);
            self.insert(first, page, resident);
        }
    }

    /// Nothing of `start..end` leaves memory from now on. Returns the number of this window.
    pub(crate) fn hold(&mut self, start: u64, end: u64) -> u64 {
        self.next_window += 1;
        let window = (start / PAGE, end.div_ceil(PAGE), self.next_window);
        self.windows.push(window);
        self.next_window
    }

    /// A window ends here, not further on.
    pub(crate) fn narrow(&mut self, window: u64, upto: u64) {
        let mut windows = self.windows.iter_mut();
        if let Some((_, end, _)) = windows.find(|(.., number)| *number == window) {
            *end = (*end).min(upto.div_ceil(PAGE));
        }
    }

    /// A window is not needed any more.
    pub(crate) fn let_go(&mut self, window: u64) {
        self.windows.retain(|(.., number)| *number != window);
    }

    /// All of it leaves memory with its volume.
    pub(crate) fn leaves(&self, resident: &Resident) {
        resident.dropped(self.pages, self.pages * PAGE_BYTES);
        resident.directory_shrinks(self.folders.len() as u64 * FOLDER_BYTES);
    }

    /// All of the map, with what the store has of the pages that are not here. `stored`: the last record
    /// that the store has; what did not change since must be the same in both.
    #[cfg(test)]
    pub(crate) fn with_store(
        &self,
        rows: &[(u64, Mapping)],
        stored: u64,
    ) -> std::collections::BTreeMap<u64, Mapping> {
        for (at, mapping) in rows {
            let is_same = match self.slot(at / PAGE) {
                Slot::Resident(page) => {
                    let own = page.get_own(split(*at).1);
                    page.changed > stored || own == Some(*mapping)
                }
                Slot::Empty => self.emptied > stored,
                Slot::Stored => true,
            };
            assert!(is_same, "the store maps sub-block {at} otherwise");
        }
        let is_stored = |(at, _): &&(u64, Mapping)| matches!(self.slot(at / PAGE), Slot::Stored);
        let is_mapped = |(_, mapping): &&(u64, Mapping)| !mapping.is_hole();
        let rows = rows.iter().filter(is_stored).filter(is_mapped).copied();
        self.range(0, u64::MAX, View::Own).chain(rows).collect()
    }

    /// How many sub-blocks the map has mapped itself.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The mapped sub-blocks in `start..end` that are in memory, in order.
    pub(crate) fn range(
        &self,
        start: u64,
        end: u64,
        view: View,
    ) -> impl Iterator<Item = (u64, Mapping)> + '_ {
        self.pages_in(start / PAGE, end.div_ceil(PAGE))
            .flat_map(move |(number, page)| {
                let entries = page.entries(view);
                entries.map(move |(at, mapping)| (number * PAGE + at as u64, mapping))
            })
            .filter(move |(sub_block, _)| (start..end).contains(sub_block))
    }

    /// Pages that are in memory, in order.
    fn pages_in(&self, from: u64, end: u64) -> impl Iterator<Item = (u64, &Page)> + '_ {
        let pages = (from, end);
        let first = pages.0 / FOLDER;
        let folders = first..pages.1.div_ceil(FOLDER).max(first);
        let pages_of = |number: &u64| {
            let base = number * FOLDER;
            let folder = self.folders.get(number).into_iter();
            folder.flat_map(move |folder| folder.pages().map(move |(at, page)| (base + at, page)))
        };
        self.order
            .range(folders)
            .flat_map(pages_of)
            .filter(move |(number, _)| (pages.0..pages.1).contains(number))
    }
}

mod inherit;
mod page;
#[cfg(test)]
mod tests;

use page::{ALL, Page};

pub(crate) use inherit::{HerePage, OwnPage, Shown, Sight, by_page, rows_of_page};
