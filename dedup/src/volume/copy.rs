//! Copies: sub-blocks are mapped to the blocks that the source has, and their data stay where they are.
//!
//! Guarantees:
//! * What is copied by reference is changed record by record, as by writes (I1, I2, I4): a reference on
//!   each block is held until its record is in place.
//! * No block is ever shared that must not be: between domains, of volumes that are not deduplicated, of
//!   what is damaged, beyond the count of references. The data of that are read and written, as are parts
//!   of sub-blocks.
//! * Both ranges of a piece are locked, and both at one moment: copies in opposite directions, and
//!   commands on one of the ranges, wait for nobody in a circle.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{MapEntry, NewBlock, Pba, Record};
use reactor::BufferPool;

use super::{MAX_COMMAND_BYTES, Span, Volume};
use crate::engine::Shared;
use crate::range_lock::RangeLock;
use crate::state::State;
use crate::wait::{lock, yield_once};
use crate::{EngineError, Result};

/// Sub-blocks of a piece at most; less if [`crate::EngineConfig::trim_chunk`] is.
const PIECE_MAX: u64 = 1024;

const GRAIN: u64 = BLOCK_BYTES as u64;

/// What was done of a piece.
struct Piece {
    /// Sub-blocks from its beginning that are mapped now.
    mapped: u64,
    /// Sub-blocks behind them whose data have to be moved.
    to_move: u64,
}

/// References that a copy holds until its record is in place.
struct Held {
    shared: Arc<Shared>,
    blocks: Vec<Pba>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let mut state = lock(&self.shared.state);
        for pba in self.blocks.drain(..) {
            state.give_back(pba);
        }
        let durable = state.durable;
        state.space.release(durable);
    }
}

/// The change of a piece.
struct Change {
    entries: Vec<MapEntry>,
    held: Held,
    /// Sub-blocks behind the entries that cannot be mapped so.
    to_move: u64,
}

impl Volume {
    /// Makes `len` bytes at `offset` what `source` has at `source_offset` (all multiples of both LBA
    /// sizes). The ranges do not overlap. `Ok` means that it survives a crash of the process, and after
    /// the next flush a power loss; after an error some of it may be done. `buffers` are for data that
    /// have to be moved, at most [`MAX_COMMAND_BYTES`] at a time.
    pub async fn copy(
        &self,
        offset: u64,
        source: &Volume,
        source_offset: u64,
        len: u64,
        buffers: &BufferPool,
    ) -> Result<()> {
        self.check(offset, len, u64::MAX)?;
        source.check(source_offset, len, u64::MAX)?;
        if !Arc::ptr_eq(&self.shared, &source.shared) {
            return Err(EngineError::invalid("a copy cannot leave its pool"));
        }
        if self.is_of(&source.core) && offset.abs_diff(source_offset) < len {
            return Err(EngineError::invalid(format!(
                "volume `{}`: {len} bytes at {source_offset} cannot be copied to {offset}, which overlaps them",
                self.info().name
            )));
        }
        let is_aligned = offset % GRAIN == source_offset % GRAIN;
        let shares = is_aligned && source.shares_with(self);
        let head = (offset.next_multiple_of(GRAIN) - offset).min(len);
        let mut done = 0;
        while done < len {
            let whole = (len - done) / GRAIN;
            let bytes = if !shares {
                (len - done).min(MAX_COMMAND_BYTES as u64)
            } else if done < head {
                head - done
            } else if whole == 0 {
                len - done
            } else {
                let first = ((offset + done) / GRAIN, (source_offset + done) / GRAIN);
                let piece = self.copy_piece(source, first, whole).await?;
                done += piece.mapped * GRAIN;
                piece.to_move * GRAIN
            };
            if bytes > 0 {
                let buf = buffers.alloc(bytes as usize).await;
                let (read, buf) = source.read(source_offset + done, buf).await;
                read?;
                self.write(offset + done, buf, false).await.0?;
                done += bytes;
            }
            yield_once().await;
        }
        Ok(())
    }

    /// Whether blocks of this volume can be mapped in that one, and the other way round: both are
    /// deduplicated, in the same domain.
    pub fn shares_with(&self, other: &Volume) -> bool {
        let (one, other) = (&self.core, &other.core);
        one.dedup && other.dedup && one.domain() == other.domain()
    }

    /// Maps some of `count` sub-blocks: `to` and what follows it to what the source has at `from`.
    async fn copy_piece(
        &self,
        source: &Volume,
        (to, from): (u64, u64),
        count: u64,
    ) -> Result<Piece> {
        let shared = &self.shared;
        let count = count.min(PIECE_MAX).min(shared.config.trim_chunk as u64);
        let [guard, source_guard] = RangeLock::both([
            (&self.core.range_lock, to, to + count, true),
            (&source.core.range_lock, from, from + count, false),
        ]);
        let (guard, _source_guard) = (guard.await, source_guard.await);
        self.ready_to_map(Span::new(to * GRAIN, count * GRAIN))
            .await?;
        source.check_end(Span::new(from * GRAIN, count * GRAIN))?;
        shared.bring_in(&source.core, from, from + count).await?;
        let mut stays = Vec::new();
        let change = loop {
            let looked = self.look_at_piece(&mut lock(&shared.state), source, (to, from), count);
            match looked? {
                Ok(change) => break change,
                Err(away) => stays.push(shared.keep_here(away).await?),
            }
        };
        let Change {
            entries,
            mut held,
            to_move,
        } = change;
        let mapped = entries.len() as u64;
        let is_unchanged = |entry: &MapEntry| entry.old == entry.new.map(|new| new.pba);
        if !entries.iter().all(is_unchanged) {
            let record = Record::Map {
                volume: self.core.id,
                start: to,
                entries,
            };
            shared.commit(record, Some(guard)).await?;
            // The map holds them from here on.
            held.blocks.clear();
        }
        drop(held);
        Ok(Piece { mapped, to_move })
    }

    /// Takes references on what the source has; or says of which addresses only the store knows. Both
    /// ranges are locked, and their pages are in memory.
    fn look_at_piece(
        &self,
        state: &mut State,
        source: &Volume,
        (to, from): (u64, u64),
        count: u64,
    ) -> Result<std::result::Result<Change, Vec<Pba>>> {
        state.check_writable()?;
        let mut entries = Vec::with_capacity(count as usize);
        let not_here = |_| EngineError::internal("a page that was brought in is not there");
        state
            .active(source.core.id)?
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
            .map_err(not_here)?;
        let mut targets = entries.iter_mut();
        state
            .active(self.core.id)?
            .find_run(to, to + count, |_, mapping| {
                if let Some(entry) = targets.next() {
                    entry.old = mapping.map(|mapping| mapping.pba);
                }
            })
            .map_err(not_here)?;
        let all = |entry: &MapEntry| [entry.old, entry.new.map(|new| new.pba)];
        let away: Vec<Pba> = entries
            .iter()
            .flat_map(all)
            .flatten()
            .filter(|pba| !state.blocks.is_here(*pba))
            .collect();
        if !away.is_empty() {
            return Ok(Err(away));
        }
        let damage = lock(&self.shared.damage);
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
        let shared = self.shared.clone();
        Ok(Ok(Change {
            entries,
            held: Held { shared, blocks },
            to_move,
        }))
    }
}

/// Whether a block takes one more reference, from another mapping of its content.
fn can_share(state: &State, block: &NewBlock) -> bool {
    block.fingerprint.is_some() && state.can_share(block.pba)
}
