//! Freeing: what was trimmed at once or deleted is unmapped slice after slice, and so are maps that nobody inherits
//! from any more.

use std::sync::Arc;

use meta::{MapId, Record};

use crate::Result;
use crate::background::Background;
use crate::background::merging::merge_slice;
use crate::io::trim::{find_core, trim_slice, unmap_found};
use crate::log::append::commit;
use crate::metadata::page_map::View;
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
    // Before the last volume that came from it: as long as that is there, so is the domain of the blocks.
    let childless = lock(&shared.state).ancestry.childless();
    if let Some(map) = childless {
        return purge_map_slice(shared, map).await.map(|()| true);
    }
    let deleted = find_core(shared, |entry| !entry.is_active());
    match deleted {
        None => merge_slice(shared).await,
        Some(core) => purge_slice(shared, background, &core).await.map(|()| true),
    }
}

/// Takes mappings away of a map that no other has as its parent; forgets it when there are none.
async fn purge_map_slice(shared: &Arc<Shared>, map: MapId) -> Result<()> {
    let purging = match lock(&shared.state).ancestry.parents.get(&map) {
        Some(parent) => parent.purging.clone(),
        None => return Ok(()),
    };
    // Another round of background work may be at it, and be done meanwhile.
    let _lock = purging.lock().await;
    {
        let state = lock(&shared.state);
        state.check_writable()?;
        if !state.ancestry.parents.contains_key(&map) {
            return Ok(());
        }
    }
    let entries_max = shared.config.trim_record_entries;
    let found = find_mapped(shared, map, (0, u64::MAX), entries_max, View::Own).await?;
    if found.entries.is_empty() {
        commit(shared, Record::MapGone { id: map }, None, None).await?;
    } else {
        unmap_found(shared, map, found, None).await?;
    }
    yield_once().await;
    Ok(())
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
    let (map, mapped, inherits) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let Some(entry) = state.volumes.get(&volume) else {
            return Ok(());
        };
        let map = entry.map();
        (map.id(), map.mapped(), map.inherits())
    };
    lock(&background.deleting).entry(volume).or_insert(mapped);
    let entries_max = shared.config.trim_record_entries;
    let found = find_mapped(shared, map, (0, u64::MAX), entries_max, View::Own).await?;
    if found.entries.is_empty() && inherits {
        commit(shared, Record::MapGone { id: map }, Some(guard), None).await?;
    } else if found.entries.is_empty() {
        // Another round may have left a parent without children after this one chose the volume.
        if lock(&shared.state).ancestry.childless().is_some() {
            return Ok(());
        }
        commit(shared, Record::VolumeGone { id: volume }, Some(guard), None).await?;
        lock(&background.deleting).remove(&volume);
    } else {
        unmap_found(shared, map, found, Some(guard)).await?;
    }
    yield_once().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use futures_util::future::join;
    use meta::Compression;

    use super::free_slice;
    use crate::residency::rows::tests::{Pool, used_blocks};
    use crate::sync::wait::lock;

    #[test]
    fn the_last_volume_of_a_domain_goes_after_all_that_it_had_though_two_rounds_are_at_it() {
        reactor::run(reactor::Config::default(), async {
            let pool = Pool::new();
            let engine = pool.open().await;
            let volume = pool.volume(&engine, "v", Compression::Off).await;
            pool.write(&volume, 0).await;
            engine.create_snapshots(&["v@a"], 1).await.unwrap();
            engine.delete_volume("v@a").await.unwrap();
            engine.maintain().await.unwrap();
            engine.delete_volume("v").await.unwrap();
            let left = || {
                let state = lock(&engine.shared.state);
                (state.volumes.len(), state.ancestry.parents.len())
            };
            assert_eq!(left(), (1, 1));

            let core = {
                let state = lock(&engine.shared.state);
                state.volumes.values().next().unwrap().core.clone()
            };
            let guard = core.range_lock.exclusive(0, u64::MAX).await;
            let mut first = pin!(free_slice(&engine.shared, &engine.background));
            let mut second = pin!(free_slice(&engine.shared, &engine.background));
            for _ in 0..10 {
                poll_fn(|context| {
                    assert!(first.as_mut().poll(context).is_pending());
                    assert!(second.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            drop(guard);
            let (first, second) = join(first, second).await;
            assert!(first.unwrap() && second.unwrap());
            assert_eq!(left(), (1, 1), "its blocks are of no domain that is known");
            engine.maintain().await.unwrap();
            assert_eq!((left(), used_blocks(&engine)), ((0, 0), 0));
        })
        .unwrap();
    }
}
