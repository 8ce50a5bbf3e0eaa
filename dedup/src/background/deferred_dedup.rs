//! Deferred deduplication: a content that was stored once more while its older block was not known becomes one with
//! that block, if their bytes are equal, by an ordinary record.
//!
//! Guarantee: where that cannot be, the newer block is the one that is found from then on. The older one may be damaged,
//! take no more references or be gone: then nothing would lead to the content that was written last, and it would not
//! heal what it could.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{MapEntry, NewBlock, Pba, Record};

use crate::Result;
use crate::drive_io::fetch::Fetch;
use crate::drive_io::reader::read_one;
use crate::log::append::commit;
use crate::metadata::block_table::{BlockInfo, row_page_of};
use crate::metadata::deferred_dedup::Merge;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::pages::bring_in;
use crate::residency::rows::{pin_rows, stored_infos};
use crate::sync::wait::{lock, yield_once};

/// Maps what was stored once more while its older block was not loaded to that one.
pub(crate) async fn merge_deferred(shared: &Arc<Shared>) -> Result<()> {
    loop {
        let Some(next) = lock(&shared.merges).pop() else {
            return Ok(());
        };
        if !merge(shared, &next).await? {
            keep_found(shared, next.new).await?;
        }
        yield_once().await;
    }
}

/// The newer block of a content stays: it is found by it, if it holds it.
async fn keep_found(shared: &Arc<Shared>, pba: Pba) -> Result<()> {
    let _pins = pin_rows(shared, [pba]).await?;
    // What has no references may not be resident: nothing of its row page was in use when that was to be kept.
    let Some(info) = lock(&shared.state).blocks.look(pba) else {
        return Ok(());
    };
    let buf = shared.bounce(BLOCK_BYTES).await;
    let hashers = shared.domains.in_use();
    let (is_good, buf) = read_one(&shared.drives, pba, buf, |block| {
        hashers.prove(block, info.fingerprint, info.crc32c)
    })
    .await;
    drop(buf);
    if is_good != Some(true) {
        return Ok(()); // who reads it finds that out
    }
    let rows = stored_infos(shared, vec![row_page_of(pba)]).await?;
    let is_stored = rows
        .iter()
        .any(|(stored, row)| *stored == pba && row.fingerprint == info.fingerprint);
    let mut state = lock(&shared.state);
    let is_same = |now: BlockInfo| (now.fingerprint, now.crc32c) == (info.fingerprint, info.crc32c);
    if state.blocks.look(pba).is_some_and(is_same) {
        state.takes_over(pba, is_stored);
    }
    Ok(())
}

/// Whether nothing is left to do: the mapping leads to the older block now, or its map is gone.
async fn merge(shared: &Arc<Shared>, merge: &Merge) -> Result<bool> {
    let Merge {
        map,
        sub_block,
        new,
        old,
    } = *merge;
    let core = match lock(&shared.state).volume_of(map) {
        Some(entry) => entry.core.clone(),
        None => return Ok(true),
    };
    let buf = shared.bounce(2 * BLOCK_BYTES).await;
    let guard = core.range_lock.exclusive(sub_block, sub_block + 1).await;
    bring_in(shared, &core, sub_block, sub_block + 1).await?;
    let _pins = pin_rows(shared, [old, new]).await?;
    let info = {
        let state = lock(&shared.state);
        // A parent does not change any more: what it has twice it keeps.
        let entry = state.volume_of(map).filter(|entry| entry.is_active());
        let is_there = entry.is_some_and(|entry| entry.is_mapped_to(sub_block, new));
        let both = (state.blocks.look(old), state.blocks.look(new));
        let (Some(info), Some(other)) = both else {
            return Ok(false); // one of them was freed, and others are in its row page now
        };
        let is_same = (info.fingerprint, info.crc32c) == (other.fingerprint, other.crc32c);
        if !is_there || !is_same || !state.can_share(old) {
            return Ok(false);
        }
        state.take(old);
        info
    };
    let taken = References::new(shared, vec![old]);
    let both = [(old, 0), (new, BLOCK_BYTES)];
    let (failed, buf) = Fetch::new(&shared.drives, both.into_iter()).read(buf).await;
    if !failed.is_empty() {
        return Ok(false); // two copies are waste, no damage
    }
    let (first, second) = buf.split_at(BLOCK_BYTES);
    if first != second {
        return Ok(false);
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
    Ok(true)
}

#[cfg(test)]
pub(crate) mod tests {
    use meta::Compression;

    use crate::ErrorKind;
    use crate::residency::rows::tests::{BLOCKS, Pool, is_right};

    /// A content decays while the pool is closed, and is written again before its block is known. Whether the
    /// damaged block is healed.
    pub(crate) async fn is_healed(index_bytes_max: u64) -> bool {
        const AT: u32 = 3;
        let mut pool = Pool::new();
        pool.config.index_bytes_max = index_bytes_max;
        let engine = pool.open().await;
        let first = pool.volume(&engine, "first", Compression::Off).await;
        pool.volume(&engine, "second", Compression::Off).await;
        pool.write(&first, 0).await;
        engine.shutdown().await.unwrap();
        drop((first, engine));
        pool.damage(AT).await;

        let engine = pool.open().await;
        let second = engine.volume("second").unwrap();
        pool.write_some(&second, AT, AT, 1).await;
        engine.maintain().await.unwrap();
        let first = engine.volume("first").unwrap();
        let error = pool.read(&first, AT).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        engine.maintain().await.unwrap();
        assert_eq!(pool.read(&second, AT).await.unwrap(), AT + 1);
        is_right(&engine).await;
        let is_healed = match pool.read(&first, AT).await {
            Ok(number) => {
                assert_eq!(number, AT + 1);
                true
            }
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Corrupt);
                false
            }
        };
        for at in (0..BLOCKS).filter(|at| *at != AT) {
            assert_eq!(pool.read(&first, at).await.unwrap(), at + 1);
        }
        is_healed
    }

    #[test]
    fn what_is_written_again_while_the_pool_is_loading_heals_a_block_that_is_found_damaged_later() {
        reactor::run(reactor::Config::default(), async {
            for index_bytes_max in [u64::MAX, 0] {
                assert!(is_healed(index_bytes_max).await, "{index_bytes_max}");
            }
        })
        .unwrap();
    }
}
