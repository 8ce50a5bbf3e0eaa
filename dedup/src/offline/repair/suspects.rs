//! Finds the blocks that a repair has to look at. Of all others, row and mappings agree, and stay as they are.
//!
//! Guarantee: what it keeps of healthy blocks takes no more memory than it was given, however many there are: it
//! compares one range of addresses after the other ([`BlockWindow`]). What it returns grows with the damage and with
//! the journal.

use std::collections::BTreeSet;

use meta::{
    BlockRow, BlockWindow, Counted, LoadVisitor, MapId, Mapping, Pba, RowKind, Store, VolumeInfo,
};

use super::plan::{Block, Survey};
use crate::Result;

/// The blocks that have to be looked at.
pub(super) struct Suspects {
    /// Those that have a row, by address.
    pub(super) blocks: Vec<Block>,
    /// Those that are mapped, or will be, and have none.
    pub(super) absent: BTreeSet<Pba>,
    /// Blocks of which a mapping has another checksum than their row.
    pub(super) contradicted: BTreeSet<Pba>,
}

impl Suspects {
    /// Looks for them. The tables of healthy blocks take `memory_bytes` at most.
    pub(super) fn find(store: &dyn Store, survey: &Survey, memory_bytes: usize) -> Result<Self> {
        let mut found = Self {
            blocks: Vec::new(),
            absent: BTreeSet::new(),
            contradicted: BTreeSet::new(),
        };
        let blocks = survey.stored_blocks().values().sum::<u64>();
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        let mut window = BlockWindow::new(memory_bytes, blocks);
        let mut suspects: BTreeSet<Pba> = survey.mapped_later().collect();
        // The rows are compared as they are: no change is pending that could misfit.
        while window.go_on(store, None, |_| {}, |_| {})? {
            store.load(&mut Look {
                window: &mut window,
                survey,
                found: &mut found,
            })?;
            suspects.extend(window.unsettled().map(|(pba, _)| pba));
        }
        for pba in suspects {
            match store.blocks(pba, Pba(pba.0.saturating_add(1)), 1)?.first() {
                Some((_, row)) => found.blocks.push(Block {
                    pba,
                    row: *row,
                    stored: 0,
                    kept: 0,
                }),
                None => {
                    found.absent.insert(pba);
                }
            }
        }
        Ok(found)
    }
}

/// One pass over the mappings, for the blocks of one range.
struct Look<'a> {
    window: &'a mut BlockWindow,
    survey: &'a Survey,
    found: &'a mut Suspects,
}

impl LoadVisitor for Look<'_> {
    fn wants(&self, kind: RowKind) -> bool {
        kind == RowKind::Mapping
    }

    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, _pba: Pba, _row: BlockRow) {}

    fn map(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        let pba = mapping.pba;
        if pba.is_hole() {
            return;
        }
        match self.window.count(mapping) {
            Counted::Outside => {}
            Counted::NoRow => {
                self.found.absent.insert(pba);
            }
            Counted::Counted { has_same_checksum } => {
                if !has_same_checksum {
                    self.found.contradicted.insert(pba);
                }
                let is_healthy = has_same_checksum
                    && self.survey.is_on_a_drive(pba)
                    && !self.survey.changes(map, sub_block);
                if !is_healthy {
                    self.window.mark(pba);
                }
            }
        }
    }
}
