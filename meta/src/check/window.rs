//! A range of addresses whose blocks are compared with the mappings to them.
//!
//! Guarantee: it takes no more memory than it was given, whatever the pool holds; at least one block fits in.

use crate::batch::{Batch, resolve_block};
use crate::check::{CheckReport, ProblemKind};
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

/// What is compared of a block: eight bytes each.
#[derive(Clone, Copy)]
struct Block {
    crc32c: u32,
    /// References that no mapping was found for yet; less than 0 if there were too many mappings.
    left: i32,
}

/// The blocks of a range of addresses.
pub(super) struct Window {
    first: Pba,
    /// One past its last address; no block has the last number that there is.
    end: Pba,
    pages: Vec<Page>,
    blocks: Vec<Block>,
    blocks_max: usize,
    pages_max: usize,
}

impl Window {
    /// An empty one of so many bytes, for at most `blocks` blocks.
    pub(super) fn new(bytes: usize, blocks: usize) -> Self {
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

    /// Takes the blocks in that come behind those that it has, as they are with `pending` applied, and shows `each` of
    /// them. False if there are none any more.
    pub(super) fn go_on(
        &mut self,
        store: &dyn Store,
        pending: Option<&Batch>,
        report: &mut CheckReport,
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
                    Some((_, change)) => match resolve_block(pba, row, change) {
                        Ok(row) => row,
                        Err(error) => {
                            report.problem(ProblemKind::BadRecord, || error.to_string());
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

    /// Counts a mapping, if it is to a block of this range. `names`: whose it is, for people.
    pub(super) fn count(
        &mut self,
        mapping: Mapping,
        report: &mut CheckReport,
        names: impl Fn() -> String,
    ) {
        let Mapping { pba, crc32c } = mapping;
        if !(self.first..self.end).contains(&pba) {
            return;
        }
        let Some(block) = self.find(pba) else {
            return report.problem(ProblemKind::DanglingMapping, || {
                format!("{} maps to block {pba}, which has no row", names())
            });
        };
        block.left = block.left.saturating_sub(1);
        if block.crc32c != crc32c {
            report.problem(ProblemKind::WrongChecksum, || {
                format!("{} and its block {pba} have different checksums", names())
            });
        }
    }

    /// All mappings were counted: which blocks have another number of references?
    pub(super) fn report(
        &self,
        store: &dyn Store,
        pending: Option<&Batch>,
        report: &mut CheckReport,
    ) -> Result<(), MetaError> {
        for page in &self.pages {
            let mut present = page.present;
            let mut at = page.first;
            while present != 0 {
                let pba = Pba(page.number * PAGE_BLOCKS + u64::from(present.trailing_zeros()));
                present &= present - 1;
                let left = self.blocks.get(at).map_or(0, |block| i64::from(block.left));
                at += 1;
                if left == 0 {
                    continue;
                }
                // Few blocks are wrong: the count was not kept.
                let row = store
                    .blocks(pba, Pba(pba.0 + 1), 1)?
                    .first()
                    .map(|(_, row)| *row);
                let change = pending.and_then(|batch| batch.blocks.get(&pba));
                let row = match change {
                    Some(change) => resolve_block(pba, row, change).unwrap_or(row),
                    None => row,
                };
                let references = row.map_or(0, |row| i64::from(row.refcount));
                match references - left {
                    0 => report.problem(ProblemKind::OrphanBlock, || {
                        format!("block {pba} has {references} references and no mapping")
                    }),
                    mappings => report.problem(ProblemKind::WrongCount, || {
                        format!("block {pba} has {references} references and {mappings} mappings")
                    }),
                }
            }
        }
        Ok(())
    }
}
