//! One map: sub-block -> physical block and checksum, in pages. An unmapped sub-block reads as zeros.
//!
//! A page is in memory, or empty, or in the store only: then it must be loaded before anybody looks at
//! it. Empty pages take no memory where it is known which ones are not.
//!
//! A map may have a parent. A page of which it has no entry is then *inherited*: it is the parent's, or that of the
//! nearest ancestor that has one. In memory it is a copy that counts nowhere, so that a look-up costs the same at any
//! depth. The first record that changes such a page makes it the map's own, with what the record names and nothing
//! else ([`crate::io::own_page`] sees to it that all is named). What is unmapped in an own page is a hole as soon as a
//! record said so: a page stays the map's own when nothing is mapped in it any more.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use meta::{MapEntry, MapId, MapInfo, Mapping, NewBlock, Pba};

#[cfg(test)]
use crate::ablation::{self, Broken};
use crate::metadata::resident::{Fate, Key, Resident};

/// Sub-blocks per page: 0.8 KiB of memory for 256 KiB of a volume, so that a random read brings in
/// little. Small in tests, so that the small volumes of the simulation have several.
pub(crate) const PAGE: u64 = if cfg!(test) { 8 } else { 64 };
/// Pages per folder: one bit each.
const FOLDER: u64 = u64::BITS as u64;
/// Memory of a page with its places in a folder and in the clock.
pub(crate) const PAGE_BYTES: u64 = (size_of::<Page>() + 8 + 16 + size_of::<Key>()) as u64;
/// Memory of a folder without its pages.
const FOLDER_BYTES: u64 = 96;
/// Folders, or pages, that one look goes through at most.
const LOOK: usize = 1024;
/// Folders that are forgotten in one go.
const FORGET: usize = 64;

/// There is no entry. No physical block has this number or that of a hole, which are the last two: no drive has the
/// last index.
const NONE: u64 = u64::MAX;
const HOLE: u64 = Pba::HOLE.0;
const _: () = assert!(HOLE + 1 == NONE);

struct Page {
    pbas: [u64; PAGE as usize],
    crcs: [u32; PAGE as usize],
    mapped: u32,
    /// Mappings and holes.
    present: u32,
    ticket: u32,
    /// It is an ancestor's, or nobody's.
    is_inherited: bool,
    /// The record that changed it last.
    changed: u64,
    /// Used since the clock last passed.
    touched: Cell<bool>,
}

impl Page {
    fn empty(ticket: u32) -> Box<Self> {
        Box::new(Self {
            pbas: [NONE; PAGE as usize],
            crcs: [0; PAGE as usize],
            mapped: 0,
            present: 0,
            ticket,
            is_inherited: false,
            changed: 0,
            touched: Cell::new(true),
        })
    }

    fn get(&self, entry: usize) -> Option<Mapping> {
        match self.pbas[entry] {
            HOLE.. => None,
            pba => Some(Mapping {
                pba: Pba(pba),
                crc32c: self.crcs[entry],
            }),
        }
    }

    fn set(&mut self, entry: usize, new: Option<Mapping>) -> Option<Pba> {
        let (pba, crc32c) = new.map_or((NONE, 0), |new| (new.pba.0, new.crc32c));
        let old = std::mem::replace(&mut self.pbas[entry], pba);
        self.crcs[entry] = crc32c;
        self.mapped += u32::from(pba < HOLE);
        self.mapped -= u32::from(old < HOLE);
        self.present += u32::from(pba != NONE);
        self.present -= u32::from(old != NONE);
        (old < HOLE).then_some(Pba(old))
    }

    /// An inherited page becomes the map's own: nothing in it is.
    fn become_own(&mut self) {
        self.pbas = [NONE; PAGE as usize];
        self.mapped = 0;
        self.present = 0;
        self.is_inherited = false;
    }

    fn entries(&self) -> impl Iterator<Item = (usize, Mapping)> {
        (0..PAGE as usize).filter_map(|entry| Some((entry, self.get(entry)?)))
    }
}

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
    fn place(&self, bit: u64) -> usize {
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
    /// What a host sees, inherited pages too.
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
    /// Of pages before this one it is noted which are in the store only; others that are not here are
    /// empty. Of pages from this one on nothing is noted.
    noted_upto: u64,
    /// The last record that emptied a page that then left memory: up to that record, the store may
    /// have mappings where the map has none.
    emptied: u64,
    /// Pages that must stay in memory: first, end, and the number of the window that keeps them.
    windows: Vec<(u64, u64, u64)>,
    next_window: u64,
    /// Whether nothing is in the store only.
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
        let is_whole = self.stored_pages == 0 && self.noted_upto == u64::MAX;
        self.is_whole.store(is_whole, Ordering::Release);
    }

    fn slot(&self, page: u64) -> Slot<'_> {
        if let Some(folder) = self.folders.get(&(page / FOLDER)) {
            let bit = 1 << (page % FOLDER);
            if folder.resident & bit != 0 {
                return Slot::Resident(&folder.pages[folder.place(bit)]);
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

    /// Where a sub-block is stored.
    #[inline]
    pub(crate) fn find(&self, sub_block: u64) -> Result<Option<Mapping>, NotResident> {
        let (page, entry) = split(sub_block);
        match self.slot(page) {
            Slot::Resident(page) => {
                page.touched.set(true);
                Ok(page.get(entry))
            }
            Slot::Empty => Ok(None),
            Slot::Stored => Err(NotResident),
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
        let mut at = start;
        while at < end {
            let (number, first) = split(at);
            let count = (PAGE - first as u64).min(end - at);
            match self.slot(number) {
                Slot::Resident(page) => {
                    page.touched.set(true);
                    let entries = first..first + count as usize;
                    (at..)
                        .zip(entries)
                        .for_each(|(at, entry)| each(at, page.get(entry)));
                }
                Slot::Empty => (at..at + count).for_each(|at| each(at, None)),
                Slot::Stored => return Err(NotResident),
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
    /// Its page is in the store only, or inherited; nothing is changed.
    pub(crate) fn replace(
        &mut self,
        sub_block: u64,
        new: Option<Mapping>,
        record: u64,
        resident: &mut Resident,
    ) -> Result<Option<Pba>, NotResident> {
        let mut old = None;
        let place = split(sub_block);
        let new = std::iter::once(new);
        self.replace_in_page(place, new, (record, false), resident, |found| {
            old = found;
        })?;
        Ok(old)
    }

    /// Maps and unmaps sub-blocks that follow each other, by a record; gives `each` what they were mapped
    /// to, in order. `copies`: the record names all of an inherited page.
    ///
    /// # Errors
    /// The page of this sub-block is in the store only, or inherited; what is before it was changed.
    pub(crate) fn replace_run(
        &mut self,
        start: u64,
        entries: &[MapEntry],
        (record, copies): (u64, bool),
        resident: &mut Resident,
        mut each: impl FnMut(Option<Pba>),
    ) -> Result<(), u64> {
        let mut at = start;
        let mut left = entries;
        while !left.is_empty() {
            let place = split(at);
            let (now, later) = left.split_at((PAGE as usize - place.1).min(left.len()));
            let new = now.iter().map(|entry| entry.new.map(mapping_of));
            self.replace_in_page(place, new, (record, copies), resident, &mut each)
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
        (record, copies): (u64, bool),
        resident: &mut Resident,
        mut each: impl FnMut(Option<Pba>),
    ) -> Result<(), NotResident> {
        match self.slot(number) {
            Slot::Stored => return Err(NotResident),
            Slot::Empty if new.clone().all(|new| new.is_none()) => {
                new.for_each(|_| each(None));
                return Ok(());
            }
            Slot::Empty => self.insert(number, Page::empty(resident.ticket()), resident),
            Slot::Resident(page) if page.is_inherited && page.mapped > 0 && !copies => {
                #[cfg(test)]
                let is_broken = ablation::is(Broken::ForgetToCopy);
                #[cfg(not(test))]
                let is_broken = false;
                if !is_broken {
                    return Err(NotResident);
                }
            }
            Slot::Resident(_) => {}
        }
        let Some(page) = self.page_mut(number) else {
            return Err(NotResident);
        };
        if page.is_inherited {
            page.become_own();
        }
        let before = page.mapped;
        for (entry, new) in (first..).zip(new) {
            each(page.set(entry, new));
        }
        page.touched.set(true);
        page.changed = record;
        let (after, is_empty) = (page.mapped, page.present == 0);
        // A damaged store may have said too few.
        self.mapped = (self.mapped + u64::from(after)).saturating_sub(u64::from(before));
        if is_empty && number < self.noted_upto {
            self.emptied = record;
            self.remove(number, resident);
            resident.dropped(1, PAGE_BYTES);
        }
        Ok(())
    }

    fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        let folder = self.folders.get_mut(&(number / FOLDER))?;
        let bit = 1 << (number % FOLDER);
        let place = folder.place(bit);
        match folder.resident & bit != 0 {
            true => folder.pages.get_mut(place).map(|page| &mut **page),
            false => None,
        }
    }

    fn folder(&mut self, number: u64, resident: &mut Resident) -> &mut Folder {
        self.folders.entry(number).or_insert_with(|| {
            self.order.insert(number);
            resident.directory_grows(FOLDER_BYTES);
            Folder::default()
        })
    }

    /// A page comes into memory that was not here.
    fn insert(&mut self, number: u64, page: Box<Page>, resident: &mut Resident) {
        let key = Key::Page {
            map: self.info.id,
            ticket: page.ticket,
            page: number,
        };
        let bit = 1 << (number % FOLDER);
        let folder = self.folder(number / FOLDER, resident);
        let place = folder.place(bit);
        folder.pages.insert(place, page);
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
    fn remove(&mut self, number: u64, resident: &mut Resident) {
        let bit = 1 << (number % FOLDER);
        if let Some(folder) = self.folders.get_mut(&(number / FOLDER)) {
            let place = folder.place(bit);
            folder.pages.remove(place);
            folder.resident &= !bit;
            self.pages -= 1;
        }
        self.tidy(number / FOLDER, resident);
    }

    /// A folder with nothing in it goes.
    fn tidy(&mut self, number: u64, resident: &mut Resident) {
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
        resident: &mut Resident,
    ) -> Fate {
        let Slot::Resident(page) = self.slot(number) else {
            return Fate::Stale;
        };
        if page.ticket != ticket {
            return Fate::Stale;
        }
        if !may_leave || page.touched.replace(false) {
            return Fate::Kept;
        }
        let is_unstored = page.changed > resident.stored();
        #[cfg(test)]
        let is_unstored = is_unstored && !ablation::is(Broken::EvictUnstored);
        let (start, end) = (number * PAGE, (number + 1).saturating_mul(PAGE));
        let is_in_window = |(first, end, _): &(u64, u64, u64)| (*first..*end).contains(&number);
        let is_used = self.windows.iter().any(is_in_window) || is_locked(start, end);
        #[cfg(test)]
        let is_used = is_used && !ablation::is(Broken::EvictInUse);
        if is_unstored || is_used {
            return Fate::Kept;
        }
        let is_empty = page.present == 0;
        if number < self.noted_upto && !is_empty {
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
        resident: &mut Resident,
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

    /// First sub-blocks of pages of `start..end` that are in the store only.
    pub(crate) fn missing(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let is_missing = |page: &u64| matches!(self.slot(*page), Slot::Stored);
        (start / PAGE..end.div_ceil(PAGE))
            .filter(is_missing)
            .map(|page| page * PAGE)
    }

    /// Up to where, from `start` on, nothing is in the store only, as far as a short look tells.
    pub(crate) fn known_upto(&self, start: u64, end: u64) -> u64 {
        let first = start / PAGE;
        let last = end.div_ceil(PAGE);
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
        resident: &mut Resident,
    ) {
        let (first, last) = (start / PAGE, end.div_ceil(PAGE));
        for (number, rows) in by_page(rows) {
            // Another task may have brought it in first, and it may have changed since.
            if !(first..last).contains(&number) || !matches!(self.slot(number), Slot::Stored) {
                continue;
            }
            let mut page = Page::empty(resident.ticket());
            for (sub_block, mapping) in rows {
                page.set(split(*sub_block).1, Some(*mapping));
            }
            self.insert(number, page, resident);
        }
        if self.inherits() {
            return; // what the map itself does not have is not empty
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
            self.insert(first, Page::empty(resident.ticket()), resident);
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
    pub(crate) fn leaves(&self, resident: &mut Resident) {
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
                Slot::Resident(page) if page.is_inherited => false,
                Slot::Resident(_) if mapping.is_hole() => true,
                Slot::Resident(page) => page.changed > stored || self.lookup(*at) == Some(*mapping),
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

    /// How many sub-blocks are mapped in the map's own pages.
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
            .filter(move |(_, page)| view == View::Visible || !page.is_inherited)
            .flat_map(|(number, page)| {
                let entries = page.entries();
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
#[cfg(test)]
mod tests;

pub(crate) use inherit::{Inherited, PageEntries, Shown, by_page, rows_of_page};
