//! Giving back: trims, zeroing and deletions, in pieces of bounded size.
//!
//! Each piece is one journal record under its own range lock, and other commands get their turn
//! between two pieces, so that even the deletion of a huge volume stalls nobody.

use std::sync::Arc;

use meta::Record;

use crate::Result;
use crate::engine::Shared;
use crate::volume::VolumeCore;
use crate::wait::{lock, yield_once};

/// Sub-blocks that one piece looks at most, mapped or not.
const PIECE_SPAN_MAX: u64 = 1 << 16;

/// Unmaps all sub-blocks in `start..end`. Returns the sequence number that must be durable for this to
/// survive a power loss.
pub(crate) async fn unmap(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    start: u64,
    end: u64,
) -> Result<u64> {
    let volume = core.id;
    let mut at = start;
    let mut sequence = lock(&shared.state).last_change;
    loop {
        // What is mapped by writes that were acknowledged is in the map: looking without the range
        // lock may miss only what is concurrent anyway.
        let Some((first, span_end)) = next_piece(shared, volume, at, end)? else {
            return Ok(sequence);
        };
        let guard = core.range_lock.exclusive(first, span_end).await;
        let entries: Vec<_> = {
            let state = lock(&shared.state);
            state.check_writable()?;
            match state.volumes.get(&volume) {
                Some(entry) => entry
                    .map
                    .range(first, span_end)
                    .take(shared.config.trim_chunk.max(1))
                    .collect(),
                None => return Ok(sequence),
            }
        };
        at = match entries.last() {
            // The piece may have been cut short at the limit of entries.
            Some((last, _)) if entries.len() >= shared.config.trim_chunk.max(1) => last + 1,
            _ => span_end,
        };
        if !entries.is_empty() {
            sequence = shared
                .commit(Record::Unmap { volume, entries }, Some(guard))
                .await?;
        }
        yield_once().await;
    }
}

/// Where the next mapped sub-block is, and where its piece ends.
fn next_piece(shared: &Shared, volume: u32, at: u64, end: u64) -> Result<Option<(u64, u64)>> {
    let state = lock(&shared.state);
    state.check_writable()?;
    let Some(entry) = state.volumes.get(&volume) else {
        return Ok(None);
    };
    Ok(entry
        .map
        .range(at, end)
        .next()
        .map(|(first, _)| (first, end.min(first + PIECE_SPAN_MAX))))
}
