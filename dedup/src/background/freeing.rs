//! Freeing: what was trimmed at once or deleted is unmapped slice after slice.

use std::sync::Arc;

use meta::Record;

use crate::Result;
use crate::background::Background;
use crate::io::trim::{find_core, trim_slice, unmap_found};
use crate::log::append::commit;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::residency::pages::find_mapped;
use crate::sync::wait::{lock, yield_once};

/// Frees one slice of what is being trimmed, or of a deleted volume; false if there is nothing to
/// free.
pub(crate) async fn free_slice(shared: &Arc<Shared>, background: &Background) -> Result<bool> {
    if trim_slice(shared).await? {
        return Ok(true);
    }
    let deleted = find_core(shared, |entry| !entry.is_active());
    match deleted {
        None => Ok(false),
        Some(core) => purge_slice(shared, background, &core).await.map(|()| true),
    }
}

async fn purge_slice(
    shared: &Arc<Shared>,
    background: &Background,
    core: &VolumeCore,
) -> Result<()> {
    let volume = core.id;
    // Commands that began before the deletion end first; later writes find no volume.
    let guard = core.range_lock.exclusive(0, u64::MAX).await;
    let _lock = core.trim_lock.lock().await;
    let mapped = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let Some(entry) = state.volumes.get(&volume) else {
            return Ok(());
        };
        entry.map.mapped()
    };
    lock(&background.deleting).entry(volume).or_insert(mapped);
    let entries_max = shared.config.trim_record_entries;
    let found = find_mapped(shared, volume, 0, u64::MAX, entries_max).await?;
    if found.entries.is_empty() {
        commit(shared, Record::VolumeGone { id: volume }, Some(guard)).await?;
        lock(&background.deleting).remove(&volume);
    } else {
        unmap_found(shared, volume, found, Some(guard)).await?;
    }
    yield_once().await;
    Ok(())
}
