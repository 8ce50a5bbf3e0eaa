//! What a command needs before it changes a range, which it has locked: memory, the pages of the range, and what is
//! known of the blocks that are mapped there.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::BLOCK_BYTES;
use futures_util::future::select;
use meta::Pba;

use crate::io::span::Span;
use crate::io::trim::settle;
use crate::log::checkpoint::checkpoint;
use crate::metadata::page_map::View;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::residency::loading::bring_in_blocks_to_write;
use crate::residency::pages::{bring_in, evict};
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Checkpoints that one write waits for when memory is full of what is not stored.
const MEMORY_ATTEMPTS: u32 = 4;

/// As [`bring_in`], for a write: what is known of the blocks that the map itself has there is in memory too. It may have
/// to wait until there is memory.
pub(crate) async fn bring_in_to_write(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    start: u64,
    end: u64,
) -> Result<()> {
    if shared.is_crowded.load(Ordering::Acquire) {
        wait_for_memory(shared).await;
    }
    bring_in(shared, core, start, end).await?;
    if !shared.is_partial.load(Ordering::Acquire) {
        return Ok(());
    }
    let mapped: Vec<Pba> = match lock(&shared.state).volumes.get(&core.id) {
        Some(entry) => {
            let map = entry.map();
            let mapped = map.range(start, end, View::Own);
            mapped.map(|(_, mapping)| mapping.pba).collect()
        }
        None => Vec::new(),
    };
    bring_in_blocks_to_write(shared, mapped.into_iter()).await
}

/// Lets a checkpoint make room, if changes that the store does not have are what fills the memory.
async fn wait_for_memory(shared: &Arc<Shared>) {
    for _ in 0..MEMORY_ATTEMPTS {
        evict(shared);
        if !shared.is_crowded.load(Ordering::Acquire) {
            return;
        }
        // A checkpoint is long; each of its batches makes room.
        let stored = lock(&shared.stored).clone();
        let checkpoint = checkpoint(shared);
        // If the store takes nothing, the append that finds the journal full returns the error.
        drop(select(pin!(checkpoint), stored.wait()).await);
    }
}

/// Whether the range, which is locked, can be mapped to something new.
pub(crate) async fn ready_to_map(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    span: Span,
) -> Result<()> {
    check_end(shared, core, span)?;
    bring_in_to_write(shared, core, span.first, span.end).await?;
    settle(shared, core, span.first, span.end).await
}

/// Whether the range is still inside: the volume can shrink, or go, while a command waits for its
/// range. Shrinking takes the range lock of what it cuts off.
pub(crate) fn check_end(shared: &Shared, core: &VolumeCore, span: Span) -> Result<()> {
    let size = active_size(shared, core)?;
    if span.end > size / BLOCK_BYTES as u64 {
        return Err(beyond_end(core, size));
    }
    Ok(())
}

/// The volume's size, if it can be used.
pub(crate) fn active_size(shared: &Shared, core: &VolumeCore) -> Result<u64> {
    if shared.is_closed() {
        return Err(EngineError::closed());
    }
    if !core.is_active() {
        let id = core.id;
        return Err(EngineError::not_found(format!("volume {id} was deleted")));
    }
    Ok(core.size_bytes())
}

pub(crate) fn beyond_end(core: &VolumeCore, size: u64) -> EngineError {
    EngineError::invalid(format!(
        "volume `{}`: the range goes beyond its size of {size} bytes",
        core.name()
    ))
}
