//! Deferred deduplication: a content that was stored once more while its older block was not known becomes one with
//! that block, if their bytes are equal, by an ordinary record.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{MapEntry, NewBlock, Record};

use crate::Result;
use crate::drive_io::fetch::Fetch;
use crate::log::append::commit;
use crate::metadata::deferred_dedup::Merge;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::pages::bring_in;
use crate::residency::rows::pin_rows;
use crate::sync::wait::{lock, yield_once};

/// Maps what was stored once more while its older block was not loaded to that one.
pub(crate) async fn merge_deferred(shared: &Arc<Shared>) -> Result<()> {
    loop {
        let Some(next) = lock(&shared.merges).pop() else {
            return Ok(());
        };
        merge(shared, &next).await?;
        yield_once().await;
    }
}

async fn merge(shared: &Arc<Shared>, merge: &Merge) -> Result<()> {
    let Merge {
        map,
        sub_block,
        new,
        old,
    } = *merge;
    let core = match lock(&shared.state).volume_of(map) {
        Some(entry) => entry.core.clone(),
        None => return Ok(()),
    };
    let buf = shared.bounce(2 * BLOCK_BYTES).await;
    let guard = core.range_lock.exclusive(sub_block, sub_block + 1).await;
    bring_in(shared, &core, sub_block, sub_block + 1).await?;
    let _pins = pin_rows(shared, [old, new]).await?;
    let info = {
        let mut state = lock(&shared.state);
        // A parent does not change any more: what it has twice it keeps.
        let entry = state.volume_of(map).filter(|entry| entry.is_active());
        let is_there = entry.is_some_and(|entry| entry.is_mapped_to(sub_block, new));
        let (info, other) = (state.blocks.get(old), state.blocks.get(new));
        let is_same = (info.fingerprint, info.crc32c) == (other.fingerprint, other.crc32c);
        if !is_there || !is_same || !state.can_share(old) {
            return Ok(());
        }
        state.take(old);
        info
    };
    let taken = References::new(shared, vec![old]);
    let both = [(old, 0), (new, BLOCK_BYTES)];
    let (failed, buf) = Fetch::new(&shared.drives, both.into_iter())
        .read(&shared.drives, buf)
        .await;
    if !failed.is_empty() {
        return Ok(()); // two copies are waste, no damage
    }
    let (first, second) = buf.split_at(BLOCK_BYTES);
    if first != second {
        return Ok(());
    }
    let entry = MapEntry {
        old: Some(new),
        new: Some(NewBlock {
            pba: old,
            fingerprint: info.fingerprint,
            crc32c: info.crc32c,
        }),
    };
    let record = Record::Map {
        map,
        start: sub_block,
        entries: vec![entry],
    };
    commit(shared, record, Some(guard), Some(taken)).await?;
    Ok(())
}
