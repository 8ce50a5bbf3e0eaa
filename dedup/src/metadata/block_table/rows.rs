//! Where the rows of blocks lie: row pages, found by folders of a group of addresses, and those by a directory.
//!
//! Rows, counts and new row pages change while several share the table; what is in the store only, and what leaves memory,
//! changes while one has it alone (`&mut`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::panicking;

use meta::Fingerprint;

use super::{BlockInfo, GROUP, IN_FLIGHT, ROW_PAGE};

pub(super) const FOLDER_ROW_PAGES: usize = (GROUP / ROW_PAGE) as usize;

/// Folders of a chunk of the directory.
const CHUNK: usize = if cfg!(test) { 4 } else { 512 };

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
    pub(super) fn land(&self) {
        self.references.fetch_and(!IN_FLIGHT, Ordering::AcqRel);
    }

    /// It has no references.
    pub(super) fn clear(&self) {
        self.references.store(0, Ordering::Release);
    }
}

pub(super) struct RowPage {
    /// The last record that changed it.
    changed: AtomicU64,
    /// References that commands hold and no record tells of, and commands that need it to stay.
    pub(super) held: AtomicU32,
    pub(super) rows: [Row; ROW_PAGE as usize],
}

impl RowPage {
    fn new() -> Self {
        Self {
            changed: AtomicU64::new(0),
            held: AtomicU32::new(0),
            rows: std::array::from_fn(|_| Row::default()),
        }
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

    /// A record changed it.
    pub(super) fn change(&self, sequence: u64) {
        // Mostly the last one.
        if self.changed.load(Ordering::Acquire) < sequence {
            self.changed.fetch_max(sequence, Ordering::AcqRel);
        }
    }

    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }
}

pub(super) struct Folder {
    pub(super) pages: [OnceLock<Box<RowPage>>; FOLDER_ROW_PAGES],
    /// A bit for each row page that is in the store only.
    pub(super) stored: u64,
    /// A bit for each row page that was used since the clock came by.
    touched: AtomicU64,
}

impl Folder {
    fn new() -> Self {
        Self {
            pages: [const { OnceLock::new() }; FOLDER_ROW_PAGES],
            stored: 0,
            touched: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn touch(&self, at: usize) {
        if self.touched.load(Ordering::Relaxed) & 1 << at == 0 {
            self.touched.fetch_or(1 << at, Ordering::Relaxed);
        }
    }

    /// Whether a row page was used since this was asked the last time.
    pub(super) fn take_touch(&mut self, at: usize) -> bool {
        let touched = self.touched.get_mut();
        let was_touched = *touched & 1 << at != 0;
        *touched &= !(1 << at);
        was_touched
    }

    /// A row page, and whether it is new.
    #[inline]
    pub(super) fn page_or_new(&self, at: usize) -> (&RowPage, bool) {
        let mut is_new = false;
        let page = self.pages[at].get_or_init(|| {
            is_new = true;
            Box::new(RowPage::new())
        });
        (page, is_new)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stored == 0 && self.pages.iter().all(|page| page.get().is_none())
    }
}

struct Chunk([OnceLock<Box<Folder>>; CHUNK]);

/// The folders of a table.
pub(super) struct Directory {
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    /// One past the last folder that there ever was.
    end: AtomicU64,
}

impl Directory {
    /// For so many addresses.
    pub(super) fn new(addresses: u64) -> Self {
        let folders = addresses.div_ceil(GROUP);
        let chunks = (0..folders.div_ceil(CHUNK as u64)).map(|_| OnceLock::new());
        Self {
            chunks: chunks.collect(),
            end: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&Folder> {
        let chunk = self.chunks.get(number / CHUNK)?.get()?;
        Some(chunk.0[number % CHUNK].get()?)
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Folder> {
        let chunk = self.chunks.get_mut(number / CHUNK)?.get_mut()?;
        Some(chunk.0[number % CHUNK].get_mut()?)
    }

    /// A folder of the table (checked where numbers come in).
    #[inline]
    pub(super) fn get_or_new(&self, number: usize) -> &Folder {
        let chunk = self.chunks[number / CHUNK]
            .get_or_init(|| Box::new(Chunk([const { OnceLock::new() }; CHUNK])));
        let folder = &chunk.0[number % CHUNK];
        if let Some(folder) = folder.get() {
            return folder;
        }
        self.end.fetch_max(number as u64 + 1, Ordering::AcqRel);
        folder.get_or_init(|| Box::new(Folder::new()))
    }

    /// A folder in which nothing is leaves memory.
    pub(super) fn remove(&mut self, number: usize) {
        if let Some(chunk) = self.chunks[number / CHUNK].get_mut() {
            chunk.0[number % CHUNK].take();
        }
    }

    /// All folders from one on were never there.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }
}
