//! Where the rows of blocks lie: row pages, found by folders of a group of addresses, which lie in the arrays of a directory.
//!
//! Rows, counts and new row pages change while several share the table; what is in the store only, and what leaves memory,
//! changes while one has it alone (`&mut`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::panicking;

use meta::Fingerprint;
use reactor::prefetch;

use super::{BlockInfo, GROUP, IN_FLIGHT, ROW_PAGE};

pub(super) const FOLDER_ROW_PAGES: usize = (GROUP / ROW_PAGE) as usize;

/// Folders of an array of the directory: it takes 16 KiB.
const FOLDERS: usize = if cfg!(test) { 4 } else { 512 };

/// What is known of one physical block ([`BlockInfo`]).
#[derive(Default)]
pub(super) struct Row {
    references: AtomicU32,
    crc32c: AtomicU32,
    fingerprint: [AtomicU64; 2],
}

impl Row {
    #[inline]
    pub(super) fn get(&self) -> BlockInfo {
        // What was written before the count is seen with it.
        let references = self.references.load(Ordering::Acquire);
        let mut fingerprint = [0; 16];
        for (bytes, word) in fingerprint.chunks_exact_mut(8).zip(&self.fingerprint) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        BlockInfo {
            references,
            crc32c: self.crc32c.load(Ordering::Relaxed),
            fingerprint: Fingerprint(fingerprint),
        }
    }

    #[inline]
    pub(super) fn set(&self, info: BlockInfo) {
        self.crc32c.store(info.crc32c, Ordering::Relaxed);
        for (bytes, word) in info.fingerprint.0.chunks_exact(8).zip(&self.fingerprint) {
            let mut word_bytes = [0; 8];
            word_bytes.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(word_bytes), Ordering::Relaxed);
        }
        self.references.store(info.references, Ordering::Release);
    }

    pub(super) fn set_crc32c(&self, crc32c: u32) {
        self.crc32c.store(crc32c, Ordering::Relaxed);
    }

    pub(super) fn references(&self) -> u32 {
        self.references.load(Ordering::Acquire)
    }

    /// One reference more.
    #[inline]
    pub(super) fn gain(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
    }

    /// One reference less, if that holds with what is there; the count before.
    #[inline]
    pub(super) fn lose_if(&self, may_lose: impl Fn(u32) -> bool) -> Result<u32, u32> {
        let less = |count: u32| may_lose(count).then(|| count - 1);
        self.references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
    }

    /// It is not in flight any more.
    #[inline]
    pub(super) fn land(&self) {
        self.references.fetch_and(!IN_FLIGHT, Ordering::AcqRel);
    }

    /// Asks for it; it may lie in two cache lines.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(&self.references);
        prefetch(&self.fingerprint[1]);
    }

    /// It has no references.
    pub(super) fn clear(&self) {
        self.references.store(0, Ordering::Release);
    }
}

/// The rows of a row page, from the beginning of a cache line on.
#[repr(align(64))]
pub(super) struct Rows(pub(super) [Row; ROW_PAGE as usize]);

impl Rows {
    fn new() -> Self {
        Self(std::array::from_fn(|_| Row::default()))
    }
}

/// A row page, if it is in memory, and what is noted of it: beside its address, so that who looks for a row reads one cache line on the
/// way, and not three.
#[repr(C, align(32))]
pub(super) struct RowPage {
    rows: OnceLock<Box<Rows>>,
    /// The last record that changed it.
    changed: AtomicU64,
    /// References that commands hold and no record tells of, and commands that need it to stay.
    held: AtomicU32,
    /// It was used since the clock came by.
    was_touched: AtomicBool,
}

const _: () = assert!(size_of::<RowPage>() == 32);

impl RowPage {
    const fn new() -> Self {
        Self {
            rows: OnceLock::new(),
            changed: AtomicU64::new(0),
            held: AtomicU32::new(0),
            was_touched: AtomicBool::new(false),
        }
    }

    /// Its rows, if it is in memory.
    #[inline]
    pub(super) fn rows(&self) -> Option<&[Row; ROW_PAGE as usize]> {
        Some(&self.rows.get()?.0)
    }

    /// Its rows, and whether they are new.
    #[inline]
    pub(super) fn rows_or_new(&self) -> (&[Row; ROW_PAGE as usize], bool) {
        let mut is_new = false;
        let rows = self.rows.get_or_init(|| {
            is_new = true;
            Box::new(Rows::new())
        });
        (&rows.0, is_new)
    }

    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn let_go(&self, count: u32) {
        let less = |held: u32| Some(held.saturating_sub(count));
        let held = self
            .held
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        debug_assert!(
            held.is_ok_and(|held| held >= count) || panicking(),
            "nobody holds that"
        );
    }

    /// How often it is held.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Ordering::Acquire)
    }

    /// A record changed it.
    #[inline]
    pub(super) fn change(&self, sequence: u64) {
        // Mostly the last one.
        if self.changed.load(Ordering::Acquire) < sequence {
            self.changed.fetch_max(sequence, Ordering::AcqRel);
        }
    }

    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn touch(&self) {
        if !self.was_touched.load(Ordering::Relaxed) {
            self.was_touched.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was asked the last time.
    pub(super) fn take_touch(&mut self) -> bool {
        std::mem::take(self.was_touched.get_mut())
    }

    /// It leaves memory.
    pub(super) fn leave(&mut self) {
        *self = Self::new();
    }
}

/// The row pages of a folder, if any is in memory, from the beginning of a cache line on.
#[repr(align(64))]
struct Pages([RowPage; FOLDER_ROW_PAGES]);

/// The row pages of a group of addresses. Little is left of it when all of them are in the store only.
#[repr(C, align(32))]
pub(super) struct Folder {
    pages: OnceLock<Box<Pages>>,
    /// A bit for each row page that is in the store only.
    pub(super) stored: u64,
    /// How many row pages are in memory.
    resident: AtomicU32,
}

const _: () = assert!(size_of::<Folder>() == 32);

impl Folder {
    const fn new() -> Self {
        Self {
            pages: OnceLock::new(),
            stored: 0,
            resident: AtomicU32::new(0),
        }
    }

    /// A row page, if it or another one of the folder is in memory.
    #[inline]
    pub(super) fn page(&self, at: usize) -> Option<&RowPage> {
        Some(&self.pages.get()?.0[at])
    }

    pub(super) fn page_mut(&mut self, at: usize) -> Option<&mut RowPage> {
        Some(&mut self.pages.get_mut()?.0[at])
    }

    /// A row page, and whether memory was taken for those of the folder.
    fn page_or_new(&self, at: usize) -> (&RowPage, bool) {
        let mut is_new = false;
        let pages = self.pages.get_or_init(|| {
            is_new = true;
            Box::new(Pages([const { RowPage::new() }; FOLDER_ROW_PAGES]))
        });
        (&pages.0[at], is_new)
    }

    /// One more row page is in memory.
    pub(super) fn comes(&self) {
        self.resident.fetch_add(1, Ordering::AcqRel);
    }

    /// One less. Returns whether it was the last one: then the memory for those of the folder is given back.
    pub(super) fn leaves(&mut self) -> bool {
        let resident = self.resident.get_mut();
        *resident = resident.saturating_sub(1);
        *resident == 0 && self.pages.take().is_some()
    }

    /// Whether none of its addresses is in use.
    pub(super) fn is_unused(&self) -> bool {
        self.stored == 0 && self.pages.get().is_none()
    }
}

struct FolderArray([Folder; FOLDERS]);

/// The folders of a table.
pub(super) struct Directory {
    arrays: Box<[OnceLock<Box<FolderArray>>]>,
    /// One past the last folder that there ever was.
    end: AtomicU64,
    /// Folders with row pages in memory.
    resident: AtomicU64,
}

/// Memory of a folder for its row pages, if any is there.
const PAGES_BYTES: u64 = size_of::<Pages>() as u64;

impl Directory {
    /// For so many addresses.
    pub(super) fn new(addresses: u64) -> Self {
        let folders = addresses.div_ceil(GROUP);
        let arrays = (0..folders.div_ceil(FOLDERS as u64)).map(|_| OnceLock::new());
        Self {
            arrays: arrays.collect(),
            end: AtomicU64::new(0),
            resident: AtomicU64::new(0),
        }
    }

    /// Memory that stays, whatever is evicted, in bytes: the folders.
    pub(super) fn fixed_bytes(&self) -> u64 {
        let arrays = self.arrays.iter().filter(|array| array.get().is_some());
        (size_of_val(&*self.arrays) + arrays.count() * size_of::<FolderArray>()) as u64
    }

    /// Memory of all folders for row pages, in bytes.
    pub(super) fn pages_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed) * PAGES_BYTES
    }

    /// The row pages of a folder have all left memory.
    pub(super) fn pages_left(&mut self) {
        let resident = self.resident.get_mut();
        *resident = resident.saturating_sub(1);
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&Folder> {
        Some(&self.arrays.get(number / FOLDERS)?.get()?.0[number % FOLDERS])
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Folder> {
        Some(&mut self.arrays.get_mut(number / FOLDERS)?.get_mut()?.0[number % FOLDERS])
    }

    /// A folder of the table (checked where numbers come in), and a row page in it.
    #[inline]
    pub(super) fn page_or_new(&self, number: usize, at: usize) -> (&Folder, &RowPage) {
        let array = self.arrays[number / FOLDERS]
            .get_or_init(|| Box::new(FolderArray([const { Folder::new() }; FOLDERS])));
        let folder = &array.0[number % FOLDERS];
        let page = folder.page(at).unwrap_or_else(|| {
            self.end.fetch_max(number as u64 + 1, Ordering::AcqRel);
            let (page, is_new) = folder.page_or_new(at);
            if is_new {
                self.resident.fetch_add(1, Ordering::Relaxed);
            }
            page
        });
        (folder, page)
    }

    /// All folders from one on were never there.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }
}
