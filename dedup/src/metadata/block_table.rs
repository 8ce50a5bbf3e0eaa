//! What is known of physical blocks: count, checksum and fingerprint per address.
//!
//! It is in row pages of [`ROW_PAGE`] addresses, which are evicted one by one. A row page is *resident* if its rows are
//! in memory, or none of its addresses is in use. Row pages are found by folders of a [`GROUP`] of addresses, which note
//! which of them are in the store only.
//!
//! Guarantees:
//! * A row page leaves memory only if the store says the same of it: no record that the store does not have
//!   changed it (`changed`), and no command holds a reference in it that no record tells of (`held`).
//! * What was read while the row page came, changed and left again is not taken in ([`BlockTable::begin_load`]).
//! * *Entered* is something else: whether index and free space know of a group of blocks. That happens
//!   once, after an opening, and before that no row page of the group is here.

mod rows;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::panicking;

use meta::{Fingerprint, Pba};
use reactor::prefetch;

use crate::hooks::{Current, Hooks};
use crate::sync::wait::lock;
use rows::{Directory, FOLDER_ROW_PAGES, Folder, Row, RowPage, Rows};

/// Addresses of a row page: those of four packs, at least of one. Small in tests: small drives have several.
pub(crate) const ROW_PAGE: u64 = if cfg!(test) { 16 } else { 64 };
/// Addresses of a folder, and blocks that index and free space come to know at a time.
pub(crate) const GROUP: u64 = if cfg!(test) { 64 } else { 4096 };

// The fragments of a pack are in one row page, and a folder has a bit for each of its row pages.
const _: () = assert!(ROW_PAGE.is_multiple_of(Pba::SLOTS) && FOLDER_ROW_PAGES <= 64);

/// Bit of [`BlockInfo::references`] that marks a block in flight. A count is always below it.
pub(crate) const IN_FLIGHT: u32 = 1 << 31;

/// What is known of one physical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockInfo {
    /// Mappings, and writes under way, that refer to it; with [`IN_FLIGHT`] as long as a batch is
    /// writing it.
    pub(crate) references: u32,
    pub(crate) crc32c: u32,
    pub(crate) fingerprint: Fingerprint,
}

const UNUSED: BlockInfo = BlockInfo {
    references: 0,
    crc32c: 0,
    fingerprint: Fingerprint([0; 16]),
};

/// Memory of a row page. What is noted of it lies with the other ones of its folder ([`BlockTable::pages_bytes`]).
pub(crate) const ROW_PAGE_BYTES: u64 = size_of::<Rows>() as u64;

/// Row pages that are being read from the store.
struct Load {
    readers: u32,
    /// How often it left memory meanwhile.
    left: u32,
}

/// What the store has of a row page is being read: to be given to [`BlockTable::load`], then to
/// [`BlockTable::end_load`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) first: Pba,
    left: u32,
}

/// What became of a row page that was asked to leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// It is not there.
    Absent,
    /// It was used a moment ago, or the store does not say the same.
    Stays,
    /// It left.
    Gone,
}

/// Facts per physical address. Every drive has two tables: for its whole blocks, and for the fragments in them.
pub(crate) struct BlockTable {
    tables: Vec<Directory>,
    /// Per drive and group of blocks, whether it is not entered yet; empty when all are.
    unentered: Vec<Vec<bool>>,
    /// How many of them.
    unentered_groups: u64,
    /// Row pages that are in the store only.
    stored_row_pages: u64,
    /// Whether there are any of both.
    is_partial: Arc<AtomicBool>,
    loads: HashMap<Pba, Load>,
    /// Row pages that came into memory, and the clock does not know of them.
    came: Mutex<Vec<Pba>>,
    came_count: AtomicUsize,
    /// What row pages held when they left, to be compared when they come back: in tests.
    left: HashMap<Pba, Vec<BlockInfo>>,
}

/// The table of an address.
#[inline]
pub(crate) fn table_of(pba: Pba) -> usize {
    usize::from(pba.drive()) * 2 + usize::from(pba.is_fragment())
}

/// Table, folder, row page and entry of an address.
#[inline]
fn split(pba: Pba) -> (usize, usize, usize, usize) {
    let number = pba.number();
    (
        table_of(pba),
        (number / GROUP) as usize,
        (number % GROUP / ROW_PAGE) as usize,
        (number % ROW_PAGE) as usize,
    )
}

/// The row of an address in its row page.
#[inline]
fn row_of(pba: Pba) -> usize {
    (pba.number() % ROW_PAGE) as usize
}

/// The address with this number in a table.
#[inline]
pub(crate) fn address(table: usize, number: u64) -> Pba {
    let drive = (table / 2) as u16;
    match table % 2 {
        0 => Pba::new(drive, number),
        _ => Pba::new(drive, number / Pba::SLOTS).fragment((number % Pba::SLOTS) as u8),
    }
}

/// The first address of the row page of this one.
#[inline]
pub(crate) fn row_page_of(pba: Pba) -> Pba {
    Pba(pba.0 - pba.number() % ROW_PAGE)
}

/// The first block of the group of this one, or of the block that this fragment is in.
pub(crate) fn group_of(pba: Pba) -> Pba {
    Pba::new(pba.drive(), pba.block() - pba.block() % GROUP)
}

impl BlockTable {
    /// Tables for drives of these sizes (in data blocks).
    pub(crate) fn new(data_blocks: &[u64]) -> Self {
        let mut table = Self {
            tables: Vec::new(),
            unentered: Vec::new(),
            unentered_groups: 0,
            stored_row_pages: 0,
            is_partial: Arc::default(),
            loads: HashMap::new(),
            came: Mutex::default(),
            came_count: AtomicUsize::new(0),
            left: HashMap::new(),
        };
        for blocks in data_blocks {
            table.add_drive(*blocks);
        }
        table
    }

    /// One drive more, with the next index.
    pub(crate) fn add_drive(&mut self, data_blocks: u64) {
        let fragments = data_blocks * Pba::SLOTS;
        self.tables
            .extend([data_blocks, fragments].map(Directory::new));
    }

    /// The blocks of each drive before these ones are not entered.
    pub(crate) fn forget(&mut self, ends: &[u64]) {
        let groups = |end: &u64| vec![true; end.div_ceil(GROUP) as usize];
        self.unentered = ends.iter().map(groups).collect();
        self.unentered_groups = self
            .unentered
            .iter()
            .map(|groups| groups.len() as u64)
            .sum();
        self.note_partial();
    }

    fn note_partial(&self) {
        self.is_partial.store(!self.is_whole(), Ordering::Release);
    }

    /// A flag that says whether anything is in the store only.
    pub(crate) fn partial_flag(&self) -> Arc<AtomicBool> {
        self.is_partial.clone()
    }

    /// Whether index and free space know of a block.
    pub(crate) fn is_entered(&self, pba: Pba) -> bool {
        if self.unentered_groups == 0 {
            return true;
        }
        let groups = self.unentered.get(usize::from(pba.drive()));
        let group = groups.and_then(|groups| groups.get((pba.block() / GROUP) as usize));
        group.is_none_or(|is_unentered| !is_unentered)
    }

    /// The first block of a group that is not entered; `None` when all are.
    pub(crate) fn next_unentered(&self) -> Option<Pba> {
        if self.unentered_groups == 0 {
            return None;
        }
        (0u16..).zip(&self.unentered).find_map(|(drive, groups)| {
            let group = groups.iter().position(|is_unentered| *is_unentered)?;
            Some(Pba::new(drive, group as u64 * GROUP))
        })
    }

    /// Whether the table has all that the store has.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.unentered_groups == 0 && self.stored_row_pages == 0
    }

    /// Whether the table knows of the address what there is to know.
    #[inline]
    pub(crate) fn is_resident(&self, pba: Pba) -> bool {
        self.is_whole() || (self.is_entered(pba) && !self.is_only_stored(pba))
    }

    /// Whether the store alone has the row page of an address.
    fn is_only_stored(&self, pba: Pba) -> bool {
        let (_, _, at, _) = split(pba);
        self.folder(pba)
            .is_some_and(|folder| folder.stored & 1 << at != 0)
    }

    #[inline]
    fn folder(&self, pba: Pba) -> Option<&Folder> {
        let (table, folder, _, _) = split(pba);
        self.tables.get(table)?.get(folder)
    }

    /// The row page of an address; it may not be in memory.
    #[inline]
    fn page(&self, pba: Pba) -> Option<&RowPage> {
        let (_, _, at, _) = split(pba);
        self.folder(pba)?.page(at)
    }

    /// The rows of the row page of an address, if it is in memory.
    #[inline]
    fn rows(&self, pba: Pba) -> Option<&[Row; ROW_PAGE as usize]> {
        self.page(pba)?.rows()
    }

    /// The row page of an address, which must be here and exist on its drive (checked where numbers come in), and the row in it.
    #[inline]
    fn page_and_row_or_new(&self, pba: Pba) -> (&RowPage, &Row) {
        debug_assert!(
            self.is_resident(pba) || panicking(),
            "block {pba} is in the store only"
        );
        let (table, folder, at, row) = split(pba);
        let (folder, page) = self.tables[table].page_or_new(folder, at);
        page.touch();
        let (rows, is_new) = page.rows_or_new();
        if is_new {
            folder.comes();
            self.note_came(pba);
        }
        (page, &rows[row])
    }

    #[cold]
    fn note_came(&self, pba: Pba) {
        let mut came = lock(&self.came);
        came.push(row_page_of(pba));
        self.came_count.store(came.len(), Ordering::Relaxed);
    }

    #[inline]
    fn row(&self, pba: Pba) -> &Row {
        self.page_and_row_or_new(pba).1
    }

    #[inline]
    fn page_or_new(&self, pba: Pba) -> &RowPage {
        self.page_and_row_or_new(pba).0
    }

    /// What is known of a content that is here; an unused address has no references.
    #[inline]
    pub(crate) fn get(&self, pba: Pba) -> BlockInfo {
        debug_assert!(
            self.is_resident(pba) || panicking(),
            "block {pba} is in the store only"
        );
        self.rows(pba)
            .map_or(UNUSED, |rows| rows[row_of(pba)].get())
    }

    /// What is known of a content; `None`: the store knows.
    #[inline]
    pub(crate) fn look(&self, pba: Pba) -> Option<BlockInfo> {
        self.is_resident(pba).then(|| self.get(pba))
    }

    /// Asks for where the row page of an address is, to be [asked for](Self::prefetch) soon.
    #[inline]
    pub(crate) fn prefetch_page(&self, pba: Pba) {
        if let Some(page) = self.page(pba) {
            prefetch(page);
        }
    }

    /// Asks for what there is of an address, to be used soon.
    #[inline]
    pub(crate) fn prefetch(&self, pba: Pba) {
        if let Some(rows) = self.rows(pba) {
            rows[row_of(pba)].prefetch();
        }
    }

    /// Makes this known of an address that is here.
    pub(crate) fn set(&self, pba: Pba, info: BlockInfo) {
        self.row(pba).set(info);
    }

    /// The checksum of a block that was in flight.
    pub(crate) fn set_crc32c(&self, pba: Pba, crc32c: u32) {
        self.row(pba).set_crc32c(crc32c);
    }

    /// A block is not in flight any more.
    pub(crate) fn land(&self, pba: Pba) {
        self.row(pba).land();
    }

    /// A command allocated a block, and holds one reference of it.
    pub(crate) fn create(&self, pba: Pba, info: BlockInfo) {
        debug_assert!(info.references & !IN_FLIGHT == 1);
        let (page, row) = self.page_and_row_or_new(pba);
        page.hold();
        row.set(info);
    }

    /// A command takes one reference more, and holds it.
    pub(crate) fn take(&self, pba: Pba) {
        let (page, row) = self.page_and_row_or_new(pba);
        page.hold();
        row.gain();
    }

    /// References that a command holds of these addresses pass to mappings that record `sequence` tells of. Addresses of one row page
    /// that follow each other, as those of new blocks do, are looked for once.
    pub(crate) fn pass_on(&self, addresses: impl Iterator<Item = Pba>, sequence: u64) {
        let pass_on = |(first, count): (Pba, u32)| {
            let page = self.page_or_new(first);
            page.change(sequence);
            page.let_go(count);
        };
        let mut run: Option<(Pba, u32)> = None;
        for pba in addresses {
            match &mut run {
                Some((first, count)) if row_page_of(*first) == row_page_of(pba) => *count += 1,
                _ => run.replace((pba, 1)).into_iter().for_each(pass_on),
            }
        }
        run.into_iter().for_each(pass_on);
    }

    /// A command gives back so many references that it holds; they are still counted.
    pub(crate) fn let_go(&self, pba: Pba, references: u32) {
        self.page_or_new(pba).let_go(references);
    }

    /// Record `sequence` changes the count of an address.
    pub(crate) fn changed(&self, pba: Pba, sequence: u64) {
        self.page_or_new(pba).change(sequence);
    }

    /// Takes one reference away, if it is not the last one. Returns whether it did.
    #[inline]
    pub(crate) fn lose_one_of_several(&self, pba: Pba) -> bool {
        self.row(pba).lose_if(|count| count > 1).is_ok()
    }

    /// Takes one reference away; returns how many are left, `None` if there was none.
    #[inline]
    pub(crate) fn lose(&self, pba: Pba) -> Option<u32> {
        let before = self.row(pba).lose_if(|count| count > 0);
        before.ok().map(|before| before - 1)
    }

    /// All references of an address are void.
    pub(crate) fn clear(&self, pba: Pba) {
        self.row(pba).clear();
    }

    /// Keeps the row page of an address in memory until [`unpin`](Self::unpin); false if it takes none.
    pub(crate) fn pin(&self, pba: Pba) -> bool {
        debug_assert!(self.is_resident(pba));
        let is_there = self.rows(pba).is_some();
        if is_there {
            self.page_or_new(pba).hold();
        }
        is_there
    }

    pub(crate) fn unpin(&self, pba: Pba) {
        self.page_or_new(pba).let_go(1);
    }

    /// The store's rows of an address's row page are going to be read.
    pub(crate) fn begin_load(&mut self, pba: Pba) -> Ticket {
        let first = row_page_of(pba);
        let load = self.loads.entry(first).or_insert(Load {
            readers: 0,
            left: 0,
        });
        load.readers += 1;
        Ticket {
            first,
            left: load.left,
        }
    }

    /// Takes what the store has of a row page. Not if it is here by now, or was meanwhile.
    pub(crate) fn load(&mut self, ticket: Ticket, rows: &[(Pba, BlockInfo)]) {
        let first = ticket.first;
        let is_valid = self
            .loads
            .get(&first)
            .is_some_and(|load| load.left == ticket.left);
        if is_valid && self.is_entered(first) && self.is_only_stored(first) {
            self.bring(first, rows);
        }
    }

    /// As often as [`begin_load`](Self::begin_load).
    pub(crate) fn end_load(&mut self, ticket: Ticket) {
        if let Some(load) = self.loads.get_mut(&ticket.first) {
            load.readers -= 1;
            if load.readers == 0 {
                self.loads.remove(&ticket.first);
            }
        }
    }

    /// Brings the store's rows of a row page into memory.
    fn bring(&mut self, first: Pba, rows: &[(Pba, BlockInfo)]) {
        let (table, folder, at, _) = split(first);
        if let Some(folder) = self.tables[table].get_mut(folder)
            && folder.stored & 1 << at != 0
        {
            folder.stored &= !(1 << at);
            self.stored_row_pages -= 1;
            self.note_partial();
        }
        for (pba, info) in rows {
            debug_assert_eq!(row_page_of(*pba), first);
            self.set(*pba, *info);
        }
        if Current::observe(|| self.is_as_it_left(first)) == Some(false) {
            Current::must_not_happen("the store says something else of blocks than was evicted");
        }
    }

    /// Whether a row page that came back holds what it held when it left.
    fn is_as_it_left(&mut self, first: Pba) -> bool {
        let Some(left) = self.left.remove(&first) else {
            return true;
        };
        let now = (first.0..first.0 + ROW_PAGE).map(|pba| self.get(Pba(pba)));
        let is_same =
            |(a, b): (BlockInfo, &BlockInfo)| a == *b || (a.references, b.references) == (0, 0);
        now.zip(&left).all(is_same)
    }

    /// Takes what the store has of the blocks of a group and of their fragments, in order; it is entered
    /// from now on.
    pub(crate) fn enter(&mut self, first: Pba, rows: &[(Pba, BlockInfo)]) {
        debug_assert!(!self.is_entered(first) && group_of(first) == first);
        if let Some(groups) = self.unentered.get_mut(usize::from(first.drive()))
            && let Some(is_unentered) = groups.get_mut((first.block() / GROUP) as usize)
        {
            *is_unentered = false;
            self.unentered_groups -= 1;
            self.note_partial();
        }
        for rows in rows.chunk_by(|a, b| row_page_of(a.0) == row_page_of(b.0)) {
            self.bring(row_page_of(rows[0].0), rows);
        }
    }

    /// Lets a row page leave memory, if it was not touched since it was asked the last time and the store,
    /// which has all records up to `stored`, says the same of it.
    pub(crate) fn evict(&mut self, pba: Pba, stored: u64) -> Eviction {
        let first = row_page_of(pba);
        let (table, number, at, _) = split(first);
        let table = self.tables.get_mut(table);
        let Some(table) = table else {
            return Eviction::Absent;
        };
        let Some(folder) = table.get_mut(number) else {
            return Eviction::Absent;
        };
        let Some(page) = folder.page_mut(at) else {
            return Eviction::Absent;
        };
        let was_touched = page.take_touch();
        let Some(rows) = page.rows() else {
            return Eviction::Absent;
        };
        let (is_held, is_new) = (page.held() > 0, page.changed() > stored);
        if was_touched || is_held || is_new {
            return Eviction::Stays;
        }
        let is_used = rows.iter().any(|row| row.references() > 0);
        let infos = Current::observe(|| rows.iter().map(Row::get).collect());
        page.leave();
        let was_last = folder.leaves();
        if is_used {
            folder.stored |= 1 << at;
            self.stored_row_pages += 1;
        }
        if was_last {
            table.pages_left();
        }
        self.note_partial();
        if let Some(infos) = infos {
            self.left.insert(first, infos);
        }
        if let Some(load) = self.loads.get_mut(&first) {
            load.left += 1;
        }
        Eviction::Gone
    }

    /// A row page that came into memory, and that this was not said of yet.
    #[inline]
    pub(crate) fn take_came(&self) -> Option<Pba> {
        let mut came = lock(&self.came);
        let first = came.pop();
        self.came_count.store(came.len(), Ordering::Relaxed);
        first
    }

    /// How many there are of them.
    #[inline]
    pub(crate) fn came(&self) -> usize {
        self.came_count.load(Ordering::Relaxed)
    }

    /// Memory for what is noted of row pages, in bytes: of each folder as much as for all its row pages, if one is in memory.
    pub(crate) fn pages_bytes(&self) -> u64 {
        self.tables.iter().map(Directory::pages_bytes).sum()
    }

    /// Memory that stays, whatever is evicted, in bytes.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let folders: u64 = self.tables.iter().map(Directory::fixed_bytes).sum();
        let unentered: usize = self.unentered.iter().map(Vec::len).sum();
        folders + unentered as u64
    }

    /// Whether any fragment of a fragment's pack has references.
    pub(crate) fn is_pack_in_use(&self, pba: Pba) -> bool {
        let block = pba.container();
        (0..=Pba::SLOT_MAX).any(|slot| self.get(block.fragment(slot)).references > 0)
    }

    /// How many tables there are; table `t` is about drive `t / 2`.
    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Addresses with references among `count` numbers of a table from `first` on, of the row pages that are
    /// in memory; where nothing is costs nothing.
    pub(crate) fn used_in(
        &self,
        table: usize,
        first: u64,
        count: u64,
    ) -> impl Iterator<Item = (Pba, BlockInfo)> {
        let end = first.saturating_add(count);
        self.row_pages_in(table, first, end)
            .filter_map(|(number, folder, at)| Some((number, folder.page(at)?.rows()?)))
            .flat_map(move |(number, rows)| {
                (number..)
                    .zip(rows)
                    .filter(move |(number, row)| {
                        row.references() > 0 && (first..end).contains(number)
                    })
                    .map(move |(number, row)| (address(table, number), row.get()))
            })
    }

    /// First addresses of the row pages with numbers in `first..end` of a table that are in the store only.
    pub(crate) fn stored_in(
        &self,
        table: usize,
        first: u64,
        end: u64,
    ) -> impl Iterator<Item = Pba> {
        self.row_pages_in(table, first, end)
            .filter(|(_, folder, at)| folder.stored & 1 << at != 0)
            .map(move |(number, _, _)| address(table, number))
    }

    /// Row pages with numbers in `first..end` of a table, where there are folders: number, folder, and index in it.
    fn row_pages_in(
        &self,
        table: usize,
        first: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, &Folder, usize)> {
        let folders = self.tables.get(table);
        (first / GROUP..end.div_ceil(GROUP).min(self.numbers(table) / GROUP))
            .filter_map(move |number| Some((number * GROUP, folders?.get(number as usize)?)))
            .filter(|(_, folder)| !folder.is_unused())
            .flat_map(|(base, folder)| {
                (0..FOLDER_ROW_PAGES).map(move |at| (base + at as u64 * ROW_PAGE, folder, at))
            })
            .filter(move |(number, _, _)| number + ROW_PAGE > first && *number < end)
    }

    /// Whether a table has that number or a later one.
    pub(crate) fn has(&self, table: usize, number: u64) -> bool {
        number < self.numbers(table)
    }

    /// Every number of a table that is or was in use is below this one.
    pub(crate) fn numbers(&self, table: usize) -> u64 {
        self.tables.get(table).map_or(0, Directory::end) * GROUP
    }

    /// Every address in memory that has references: by drive, whole blocks first; fragments of a pack
    /// follow each other.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Pba, BlockInfo)> {
        (0..self.tables.len()).flat_map(|table| self.used_in(table, 0, u64::MAX))
    }

    /// References that commands hold, and commands that need a row page to stay, of all row pages.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        let tables = (0..self.tables.len()).flat_map(|table| self.row_pages_in(table, 0, u64::MAX));
        tables
            .filter_map(|(_, folder, at)| folder.page(at))
            .map(|page| u64::from(page.held()))
            .sum()
    }
}

#[cfg(test)]
mod tests;
