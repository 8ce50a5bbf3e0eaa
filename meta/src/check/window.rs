//! A range of addresses whose blocks are compared with the mappings to them, for the check and for a repair.
//!
//! Guarantee: it takes no more memory than it was given, whatever the pool holds; at least one block fits in.

use crate::batch::{Batch, resolve_block};
use crate::error::MetaError;
use crate::store::Store;
use crate::types::{BlockRow, Mapping, Pba};

/// Addresses of a page.
const PAGE_BLOCKS: u64 = 64;

/// Block rows that are read at a time.
const READ_BLOCKS: usize = 16 * 1024;

/// Blocks that follow each other, and which of them there are.
#[derive(Clone, Copy)]
struct Page {
    /// Its first address, divided by [`PAGE_BLOCKS`].
    number: u64,
    /// A bit for each block that has a row.
    present: u64,
    /// Where its first block is among all blocks.
    first: usize,
}

/// A block that is told whatever its count: no number of mappings leads there.
const MARKED: i32 = i32::MIN;

/// What is compared of a block: eight bytes each.
#[derive(Clone, Copy)]
struct Block {
    crc32c: u32,
    /// References that no mapping was found for yet; less than 0 if there were too many mappings, and [`MARKED`].
    left: i32,
}

/// What a mapping is for the blocks of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It leads to a block of another range.
    Outside,
    /// Its block has no row.
    NoRow,
    /// It was counted.
    Counted {
        /// Whether its checksum is that of its block.
        has_same_checksum: bool,
    },
}

/// The blocks of a range of addresses, and how many mappings to each were not found yet.
pub struct BlockWindow {
    first: Pba,
    /// One past its last address; no block has the last number that there is.
    end: Pba,
    pages: Vec<Page>,
    blocks: Vec<Block>,
    blocks_max: usize,
    pages_max: usize,
}

impl BlockWindow {
    /// An empty one of so many bytes, for at most `blocks` blocks.
    pub fn new(bytes: usize, blocks: usize) -> Self {
        // Where blocks lie apart, a page has few of them.
        let blocks_max = bytes / 5 * 4 / size_of::<Block>();
        let pages_max = bytes / 5 / size_of::<Page>();
        // One more than there are: a full window would not know that it has all.
        let most = blocks.saturating_add(1);
        let [blocks_max, pages_max] = [blocks_max, pages_max].map(|max| max.clamp(1, most));
        Self {
            first: Pba(0),
            end: Pba(0),
            pages: Vec::with_capacity(pages_max),
            blocks: Vec::with_capacity(blocks_max),
            blocks_max,
            pages_max,
        }
    }

    /// Loads the next blocks, with `pending` applied, and calls `each` for every one of them. Returns false when no blocks
    /// are left; calls `misfits` for each row that `pending` does not fit, which stays as it is.
    ///
    /// # Errors
    /// Those of [`Store::blocks`].
    pub fn go_on(
        &mut self,
        store: &dyn Store,
        pending: Option<&Batch>,
        mut misfits: impl FnMut(MetaError),
        mut each: impl FnMut(&BlockRow),
    ) -> Result<bool, MetaError> {
        if self.end == Pba(u64::MAX) {
            return Ok(false);
        }
        self.first = self.end;
        self.pages.clear();
        self.blocks.clear();
        while self.end != Pba(u64::MAX) {
            let stored = store.blocks(self.end, Pba(u64::MAX), READ_BLOCKS)?;
            let upto = match stored.last() {
                Some((last, _)) if stored.len() == READ_BLOCKS => Pba(last.0 + 1),
                _ => Pba(u64::MAX),
            };
            let mut stored = stored.into_iter().peekable();
            let changes = pending.map(|batch| batch.blocks.range(self.end..upto));
            let mut changes = changes.into_iter().flatten().peekable();
            loop {
                let next = [
                    stored.peek().map(|(pba, _)| *pba),
                    changes.peek().map(|(pba, _)| *pba),
                ];
                let Some(pba) = next.into_iter().flatten().min() else {
                    break;
                };
                let row = stored.next_if(|(at, _)| *at == pba).map(|(_, row)| row);
                let row = match changes.next_if(|(at, _)| *at == pba) {
                    None => row,
                    Some((_, change)) => match resolve_block(pba, row, &change) {
                        Ok(row) => row,
                        Err(error) => {
                            misfits(error);
                            row
                        }
                    },
                };
                let Some(row) = row else { continue };
                each(&row);
                self.add(pba, &row);
                if self.is_full() {
                    self.end = Pba(pba.0 + 1);
                    return Ok(true);
                }
            }
            self.end = upto;
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.blocks.len() >= self.blocks_max || self.pages.len() >= self.pages_max
    }

    /// Adds the block with the highest address so far.
    fn add(&mut self, pba: Pba, row: &BlockRow) {
        let number = pba.0 / PAGE_BLOCKS;
        let first = self.blocks.len();
        self.blocks.push(Block {
            crc32c: row.crc32c,
            // Less than 2^31, as the row says.
            left: i32::try_from(row.refcount).unwrap_or(i32::MAX),
        });
        let bit = 1 << (pba.0 % PAGE_BLOCKS);
        match self.pages.last_mut() {
            Some(page) if page.number == number => page.present |= bit,
            _ => self.pages.push(Page {
                number,
                present: bit,
                first,
            }),
        }
    }

    fn find(&mut self, pba: Pba) -> Option<&mut Block> {
        let number = pba.0 / PAGE_BLOCKS;
        let at = self.pages.binary_search_by_key(&number, |page| page.number);
        let page = self.pages.get(at.ok()?)?;
        let bit = 1 << (pba.0 % PAGE_BLOCKS);
        if page.present & bit == 0 {
            return None;
        }
        let before = (page.present & (bit - 1)).count_ones();
        self.blocks.get_mut(page.first + before as usize)
    }

    fn has(&self, pba: Pba) -> bool {
        // The last range goes to the last number that a damaged mapping may have.
        pba >= self.first && (pba < self.end || self.end == Pba(u64::MAX))
    }

    /// Counts a mapping, if it is to a block of this range.
    pub fn count(&mut self, Mapping { pba, crc32c }: Mapping) -> Counted {
        if !self.has(pba) {
            return Counted::Outside;
        }
        let Some(block) = self.find(pba) else {
            return Counted::NoRow;
        };
        if block.left != MARKED {
            block.left = block.left.saturating_sub(1).max(MARKED + 1);
        }
        Counted::Counted {
            has_same_checksum: block.crc32c == crc32c,
        }
    }

    /// Has a block of this range told by [`BlockWindow::unsettled`], whatever its count.
    pub fn mark(&mut self, pba: Pba) {
        if let Some(block) = self.find(pba) {
            block.left = MARKED;
        }
    }

    /// Blocks that have another number of references than mappings, by address, with the references that no mapping was
    /// found for; and those that were marked.
    pub fn unsettled(&self) -> impl Iterator<Item = (Pba, i64)> {
        let pages = self.pages.iter().flat_map(|page| {
            let bits = (0..PAGE_BLOCKS).filter(|bit| page.present & (1 << bit) != 0);
            let pbas = bits.map(|bit| Pba(page.number * PAGE_BLOCKS + bit));
            pbas.zip(&self.blocks[page.first..])
        });
        let left = pages.map(|(pba, block)| (pba, i64::from(block.left)));
        left.filter(|(_, left)| *left != 0)
    }
}
