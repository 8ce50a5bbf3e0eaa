//! Bringing in what the store knows of blocks, while the pool is in use.
//!
//! After an opening nothing is known of the blocks. A command first brings in the rows of the blocks that are mapped in
//! its range ([`crate::residency::pages`] brings in maps, [`crate::residency::rows`] rows). Background work brings in all
//! others, group by group, so that the index and the free space know of them.
//!
//! Guarantees:
//! * A block is allocated only in a group of which it is known which blocks are free.
//! * A content that is written before its older block is known is stored once more, and deduplicated afterwards
//!   ([`crate::metadata::deferred_dedup`]). When too much is deferred, writes wait until all blocks are known. (A content
//!   that is on its way to the drive when the last group is entered stays stored twice.)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use meta::Pba;

use crate::Result;
use crate::pool::Shared;
use crate::residency::on_disk_index::write_index_entries;
use crate::residency::rows::{enter_group, pin_rows};
use crate::sync::wait::{lock, yield_once};

/// Brings in what is known of blocks, to be used soon.
pub(crate) async fn bring_in_blocks(
    shared: &Arc<Shared>,
    blocks: impl Iterator<Item = Pba>,
) -> Result<()> {
    if !shared.is_partial.load(Ordering::Acquire) {
        return Ok(());
    }
    let missing: Vec<Pba> = {
        let state = lock(&shared.state);
        blocks
            .filter(|pba| !state.blocks.is_resident(*pba))
            .collect()
    };
    pin_rows(shared, missing).await.map(drop)
}

/// As [`bring_in_blocks`](Self::bring_in_blocks), for a write: it may have to wait until everything is
/// loaded, so that what is remembered of such writes stays bounded.
pub(crate) async fn bring_in_blocks_to_write(
    shared: &Arc<Shared>,
    blocks: impl Iterator<Item = Pba>,
) -> Result<()> {
    let is_full = {
        let state = lock(&shared.state);
        state
            .deferred
            .as_ref()
            .is_some_and(|deferred| deferred.is_full())
    };
    match is_full {
        true => load_all(shared).await,
        false => bring_in_blocks(shared, blocks).await,
    }
}

/// Loads some more blocks; false when all are loaded.
pub(crate) async fn load_some(shared: &Arc<Shared>) -> Result<bool> {
    if shared.loaded.load(Ordering::Acquire) {
        return Ok(false);
    }
    let next = lock(&shared.state).blocks.next_unentered();
    match next {
        Some(first) => {
            enter_group(shared, first).await?;
            write_index_entries(shared).await?;
        }
        None => {
            let deferred = {
                let mut state = lock(&shared.state);
                shared.loaded.store(true, Ordering::Release);
                state.deferred.take()
            };
            if let Some(deferred) = deferred {
                lock(&shared.merges).extend(deferred.merges());
                tracing::info!("all blocks are known");
            }
            return Ok(false);
        }
    }
    Ok(true)
}

/// Loads all blocks: for work that looks at all of them, and may wait.
pub(crate) async fn load_all(shared: &Arc<Shared>) -> Result<()> {
    while load_some(shared).await? {
        yield_once().await;
    }
    Ok(())
}
