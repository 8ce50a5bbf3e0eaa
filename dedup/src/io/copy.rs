//! Copies by reference: sub-blocks are mapped to the blocks that the source has, and their data stay where they are.
//!
//! Guarantees:
//! * What is copied by reference is changed record by record, as by writes (I1, I2, I4): a reference on
//!   each block is held until its record is in place.
//! * No block is ever shared that must not be: between domains, of volumes that are not deduplicated, of
//!   what is damaged, beyond the count of references. The data of that are left to be moved.
//! * Both ranges of a piece are locked, and both at one moment: copies in opposite directions, and
//!   commands on one of the ranges, wait for nobody in a circle.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{MapEntry, NewBlock, Pba, Record};

use crate::io::MAX_COMMAND_BYTES;
use crate::io::prepare::{check_end, ready_to_map};
use crate::io::span::Span;
use crate::log::append::{appended_upto, commit};
use crate::metadata::state::State;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::pages::bring_in;
use crate::residency::rows::pin_rows;
use crate::sync::range_lock::RangeLock;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

const GRAIN: u64 = BLOCK_BYTES as u64;

/// Sub-blocks of a piece at most; less if [`crate::EngineConfig::trim_record_entries`] is.
const PIECE_MAX: u64 = 1024;

/// What was done of a piece.
pub(crate) struct Piece {
    /// Sub-blocks from its beginning that are mapped now.
    pub(crate) mapped: u64,
    /// Sub-blocks behind them whose data have to be moved.
    pub(crate) to_move: u64,
}

/// The change of a piece.
struct Change {
    entries: Vec<MapEntry>,
    /// Hosts see all of it there already.
    is_unchanged: bool,
    references: References,
    /// Sub-blocks behind the entries that cannot be mapped so.
    to_move: u64,
}

/// Whether a block takes one more reference, from another mapping of its content.
fn can_share(state: &State, block: &NewBlock) -> bool {
    block.fingerprint.is_some() && state.can_share(block.pba)
}

/// Maps some of `count` sub-blocks: `to` and what follows it to what the source has at `from`.
pub(crate) async fn copy_piece(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    source: &VolumeCore,
    (to, from): (u64, u64),
    count: u64,
) -> Result<Piece> {
    let count = count
        .min(PIECE_MAX)
        .min(shared.config.trim_record_entries as u64);
    let [guard, source_guard] = RangeLock::both([
        (&core.range_lock, to, to + count, true),
        (&source.range_lock, from, from + count, false),
    ]);
    let (guard, _source_guard) = (guard.await, source_guard.await);
    ready_to_map(shared, core, Span::new(to * GRAIN, count * GRAIN)).await?;
    check_end(shared, source, Span::new(from * GRAIN, count * GRAIN))?;
    bring_in(shared, source, from, from + count).await?;
    let mut pins = Vec::new();
    let change = loop {
        let looked = look_at_piece(
            shared,
            &mut lock(&shared.state),
            (core, source),
            (to, from),
            count,
        );
        match looked? {
            Ok(change) => break change,
            Err(missing) => pins.push(pin_rows(shared, missing).await?),
        }
    };
    let Change {
        mut entries,
        is_unchanged,
        references,
        to_move,
    } = change;
    let mapped = entries.len() as u64;
    if !is_unchanged {
        if core.inherits_since().is_some() {
            let entries = entries.iter_mut();
            entries.for_each(|entry| entry.new = entry.new.or(Some(NewBlock::HOLE)));
        }
        let record = Record::Map {
            map: core.map(),
            start: to,
            entries,
        };
        commit(shared, record, Some(guard), Some(references)).await?;
    } else {
        drop(references);
        let seen = shared.state.share().last_change();
        appended_upto(shared, seen).await?;
    }
    Ok(Piece { mapped, to_move })
}

/// Takes references on what the source has; or says of which addresses only the store knows. Both
/// ranges are locked, and their pages are in memory.
fn look_at_piece(
    shared: &Arc<Shared>,
    state: &mut State,
    (core, source): (&VolumeCore, &VolumeCore),
    (to, from): (u64, u64),
    count: u64,
) -> Result<std::result::Result<Change, Vec<Pba>>> {
    state.check_writable()?;
    let mut entries = Vec::with_capacity(count as usize);
    let not_resident = |_| EngineError::internal("a page that was brought in is not there");
    state
        .active(source.id)?
        .core
        .find_run(from, from + count, |_, mapping| {
            entries.push(MapEntry {
                old: None,
                new: mapping.map(|mapping| NewBlock {
                    pba: mapping.pba,
                    fingerprint: meta::Fingerprint::NONE,
                    crc32c: mapping.crc32c,
                }),
            });
        })
        .map_err(not_resident)?;
    let mut shown = Vec::with_capacity(entries.len());
    let mut targets = entries.iter_mut();
    let note = |_, mapping: Option<meta::Mapping>, is_own| {
        if let Some(entry) = targets.next() {
            let pba = mapping.map(|mapping| mapping.pba);
            shown.push(pba);
            entry.old = pba.filter(|_| is_own);
        }
    };
    let map = state.active(core.id)?.map();
    map.find_run_of(to, to + count, note)
        .map_err(not_resident)?;
    drop(map);
    let all = |entry: &MapEntry| [entry.old, entry.new.map(|new| new.pba)];
    let missing: Vec<Pba> = entries
        .iter()
        .flat_map(all)
        .flatten()
        .filter(|pba| !state.blocks.is_resident(*pba))
        .collect();
    if !missing.is_empty() {
        return Ok(Err(missing));
    }
    let damage = lock(&shared.damage);
    let is_damaged = |pba| damage.count() > 0 && damage.contains(pba);
    let mut blocks = Vec::with_capacity(entries.len());
    let mut mapped = 0;
    for entry in &mut entries {
        if let Some(new) = &mut entry.new {
            new.fingerprint = state.blocks.get(new.pba).fingerprint;
            if !can_share(state, new) || is_damaged(new.pba) {
                break;
            }
            state.take(new.pba);
            blocks.push(new.pba);
        }
        mapped += 1;
    }
    // Those that follow each other are moved together.
    let cannot = |entry: &&MapEntry| {
        entry.new.is_some_and(|new| {
            let fingerprint = state.blocks.get(new.pba).fingerprint;
            !can_share(state, &NewBlock { fingerprint, ..new }) || is_damaged(new.pba)
        })
    };
    let moved_max = MAX_COMMAND_BYTES / BLOCK_BYTES;
    let to_move = entries[mapped..].iter().take(moved_max).take_while(cannot);
    let to_move = to_move.count() as u64;
    entries.truncate(mapped);
    let mut both = entries.iter().zip(&shown);
    let is_unchanged = both.all(|(entry, shown)| *shown == entry.new.map(|new| new.pba));
    Ok(Ok(Change {
        entries,
        is_unchanged,
        references: References::new(shared, blocks),
        to_move,
    }))
}
