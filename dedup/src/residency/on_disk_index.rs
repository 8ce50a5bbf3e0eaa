//! The on-disk index: its entries in the store, asked for and written.
//!
//! An *index entry* is a row that leads from a fingerprint to a block. A checkpoint writes the index entries of new blocks with
//! the batch that makes them stored, background work those of blocks that an opening found. An index entry goes with
//! the row of its block, so there are never more index entries than blocks. The store is asked before anything is
//! claimed, and outside of the state's lock; the writes of a batch that have to ask do so together.
//! [`crate::metadata::on_disk_index`] says what is known of them in memory, and what always holds.

use std::sync::Arc;

use meta::{Batch, Fingerprint, Pba};

use crate::hooks::{Current, Hooks};
use crate::metadata::on_disk_index::Answer;
use crate::pool::Shared;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Contents that are looked for, or noted, in one go under the lock: about 50 us.
const AT_ONCE: usize = 512;
/// Index entries that background work writes at a time.
const WRITE_AT_ONCE: usize = if cfg!(test) { 4 } else { 4096 };
/// Loaded blocks whose index entries are to be written, beyond which loading waits for that.
const LOADED_MAX: usize = if cfg!(test) { 8 } else { 64 * 1024 };

/// What index entries say of contents, in their order. Ask with the generation from before, and the state not
/// locked.
pub(crate) async fn ask_on_disk_index(
    shared: &Shared,
    generation: u64,
    fingerprints: Vec<Fingerprint>,
) -> Result<Vec<Answer>> {
    let store = shared.store.clone();
    let found = shared
        .block_on(move || store.index_entries(&fingerprints))
        .await?;
    {
        let mut state = lock(&shared.state);
        state.on_disk_index.asked += found.len() as u64;
        state.on_disk_index.answered += found.iter().flatten().count() as u64;
    }
    let answer = |pba| Answer { generation, pba };
    Ok(found.into_iter().map(answer).collect())
}

/// Has a batch, whose last record is `stored`, write the index entries of its blocks that wait for one. Returns
/// them.
pub(crate) fn want_index_entries(
    shared: &Shared,
    batch: &mut Batch,
    stored: u64,
) -> Vec<(Pba, Fingerprint)> {
    let mut wanted = Vec::new();
    if !lock(&shared.state).on_disk_index.is_waited() {
        return wanted;
    }
    let mut new = batch.blocks.iter().filter_map(|(pba, change)| {
        let content = change.content.filter(|c| c.fingerprint.is_some())?;
        Some((pba, content.fingerprint))
    });
    loop {
        let state = lock(&shared.state);
        let mut count = 0;
        for (pba, fingerprint) in new.by_ref().take(AT_ONCE) {
            count += 1;
            if state.on_disk_index.is_due(pba, &fingerprint, stored) {
                wanted.push((pba, fingerprint));
            }
        }
        if count < AT_ONCE {
            break;
        }
    }
    drop(new);
    batch.want_index_entries(wanted.iter().map(|(pba, _)| *pba));
    wanted
}

/// The store, which has all records up to `stored`, has the index entries of these blocks from now on.
pub(crate) fn note_index_entries(shared: &Shared, written: &[(Pba, Fingerprint)], stored: u64) {
    for (at, some) in written.chunks(AT_ONCE).enumerate() {
        let mut state = lock(&shared.state);
        let on_disk = &mut state.on_disk_index;
        if at == 0 {
            on_disk.generation += 1;
            on_disk.is_stored = true;
        }
        for (pba, fingerprint) in some {
            on_disk.note_index_entry(*pba, fingerprint, stored);
        }
    }
}

/// Writes the index entries of blocks that were loaded.
///
/// # Errors
/// The store takes nothing now: they wait on.
pub(crate) async fn write_index_entries(shared: &Arc<Shared>) -> Result<()> {
    loop {
        let some = lock(&shared.state).on_disk_index.take_loaded(WRITE_AT_ONCE);
        if some.is_empty() {
            return Ok(());
        }
        let owned = shared.clone();
        Current::observe(|| note_displaced(shared, &some));
        // Done to its end also if the future that asked is dropped.
        let written = shared.block_on(move || match owned.store.put_index_entries(&some) {
            Ok(()) => {
                note_index_entries(&owned, &some, 0);
                Ok(())
            }
            Err(error) => {
                lock(&owned.state).on_disk_index.loaded.extend(some);
                Err(EngineError::from(error))
            }
        });
        written.await?;
    }
}

/// Notes whether index entries of other blocks of the same contents go for these.
fn note_displaced(shared: &Shared, written: &[(Pba, Fingerprint)]) {
    let fingerprints: Vec<_> = written
        .iter()
        .map(|(_, fingerprint)| *fingerprint)
        .collect();
    let before = shared
        .store
        .index_entries(&fingerprints)
        .unwrap_or_default();
    let mut pairs = written.iter().zip(before);
    let is_displaced = pairs.any(|((pba, _), before)| before.is_some_and(|other| other != *pba));
    lock(&shared.state).on_disk_index.displaces(is_displaced);
}

/// Whether so many loaded blocks wait for their index entries that no more should be loaded.
pub(crate) fn index_entries_are_behind(shared: &Shared) -> bool {
    lock(&shared.state).on_disk_index.loaded.len() >= LOADED_MAX
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use meta::{Compression, Store};

    use super::*;
    use crate::residency::rows::tests::{BLOCKS, Pool, is_right, used_blocks};
    use crate::sync::wait::yield_once;
    use crate::{Blocking, ErrorKind};

    /// Entries of the smallest index, at most.
    const SMALLEST: u64 = 8;

    #[test]
    fn with_an_index_of_a_few_entries_every_content_is_stored_once_and_found_again() {
        reactor::run(reactor::Config::default(), async {
            for compression in [Compression::Off, Compression::Lz4] {
                let mut pool = Pool::new();
                pool.config.index_bytes_max = 0;
                let engine = pool.open().await;
                let first = pool.volume(&engine, "first", compression).await;
                pool.write(&first, 0).await;
                let used = used_blocks(&engine);
                // What the journal has and the store does not is found, and what the store has.
                let second = pool.volume(&engine, "second", compression).await;
                pool.write(&second, 0).await;
                assert_eq!(used_blocks(&engine), used);
                engine.maintain().await.unwrap();
                let third = pool.volume(&engine, "third", compression).await;
                pool.write(&third, 0).await;
                assert_eq!(used_blocks(&engine), used);
                let status = engine.status();
                assert!(status.indexed_blocks <= SMALLEST);
                let in_use = status.indexed_blocks + status.unindexed_blocks;
                assert_eq!(in_use, u64::from(BLOCKS));
                assert!(
                    status.on_disk_index_hits > 0
                        && status.on_disk_index_hits <= status.on_disk_index_lookups
                );
                is_right(&engine).await;
                engine.shutdown().await.unwrap();

                // While it is not loaded, and afterwards.
                let engine = pool.open().await;
                let fourth = pool.volume(&engine, "fourth", compression).await;
                pool.write(&fourth, 0).await;
                // What was in the index in memory has no index entry, and is merged when it has.
                assert!(used_blocks(&engine) <= used + SMALLEST);
                engine.maintain().await.unwrap();
                assert_eq!(used_blocks(&engine), used);

                // What is replaced and freed takes its index entries with it.
                pool.write(&fourth, BLOCKS).await;
                for name in ["first", "second", "third"] {
                    engine.delete_volume(name).await.unwrap();
                }
                engine.maintain().await.unwrap();
                is_right(&engine).await;
                let status = engine.status();
                let in_use = status.indexed_blocks + status.unindexed_blocks;
                assert_eq!(in_use, u64::from(BLOCKS));
                let report = meta::check(&*pool.store).unwrap();
                assert!(report.is_consistent() && report.index_agrees);
                engine.delete_volume("fourth").await.unwrap();
                engine.maintain().await.unwrap();
                assert_eq!(
                    (used_blocks(&engine), engine.status().unindexed_blocks),
                    (0, 0)
                );
                assert!(!pool.store.has_index_entries().unwrap());
            }
        })
        .unwrap();
    }

    /// Polls a future so often, and lets the reactor's other work come between; what it gives if it ends.
    async fn poll_times<F: Future>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
        for _ in 0..times {
            let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
            if let Poll::Ready(output) = polled {
                return Some(output);
            }
            yield_once().await;
        }
        None
    }

    /// Blocks in use when a new content was written twice, the second time and its way into the store while the
    /// first write had come so many steps far; and whether that one had ended before.
    pub(crate) async fn written_twice(steps: usize) -> (u64, bool) {
        /// More steps than anything here takes that does not wait for the first write.
        const STEPS: usize = 500;
        let mut pool = Pool::new();
        pool.config.index_bytes_max = 0;
        pool.blocking = Blocking::Yielding;
        let engine = pool.open().await;
        let known = pool.volume(&engine, "known", Compression::Off).await;
        pool.write(&known, 0).await;
        engine.maintain().await.unwrap();
        let (slow, quick) = (
            pool.volume(&engine, "slow", Compression::Off).await,
            pool.volume(&engine, "quick", Compression::Off).await,
        );
        let before = used_blocks(&engine);
        let mut first = pin!(pool.write_some(&slow, 0, 9_000, 1));
        let mut first_ended = poll_times(first.as_mut(), steps).await.is_some();
        let was_first_through = first_ended;
        let second = async {
            pool.write_some(&quick, 0, 9_000, 1).await;
            engine.maintain().await.unwrap();
        };
        let mut second = pin!(second);
        let mut second_ended = false;
        while !(first_ended && second_ended) {
            second_ended = second_ended || poll_times(second.as_mut(), STEPS).await.is_some();
            first_ended = first_ended || poll_times(first.as_mut(), STEPS).await.is_some();
        }
        engine.maintain().await.unwrap();
        is_right(&engine).await;
        let used = used_blocks(&engine) - before;
        engine.shutdown().await.unwrap();
        (used, was_first_through)
    }

    /// A write asks the store, and while the answer is on its way the content comes in by another one, and its
    /// index entry into the store: "no block has it" was true, and is not any more.
    #[test]
    fn a_content_that_comes_in_while_the_store_is_asked_for_it_is_stored_once() {
        reactor::run(reactor::Config::default(), async {
            let mut steps = 0;
            loop {
                let (used, was_through) = written_twice(steps).await;
                assert_eq!(used, 1, "after {steps} steps");
                if was_through {
                    break;
                }
                steps += 1;
            }
        })
        .unwrap();
    }

    #[test]
    fn with_more_damaged_blocks_than_are_hidden_nothing_is_lost_and_a_restart_finds_all_again() {
        const DAMAGED: u32 = 7;
        reactor::run(reactor::Config::default(), async {
            for hidden_max in [DAMAGED as usize, 3] {
                let mut pool = Pool::new();
                pool.config.index_bytes_max = 0;
                let engine = pool.open().await;
                lock(&engine.shared.state).on_disk_index.hidden_max = hidden_max;
                let is_off = hidden_max < DAMAGED as usize;
                let first = pool.volume(&engine, "first", Compression::Off).await;
                pool.write(&first, 0).await;
                engine.maintain().await.unwrap();
                assert_eq!(used_blocks(&engine), u64::from(BLOCKS));
                // The last ones, of which the index has none.
                for at in BLOCKS - DAMAGED..BLOCKS {
                    pool.damage(at).await;
                    let error = pool.read(&first, at).await.unwrap_err();
                    assert_eq!(error.kind, ErrorKind::Corrupt);
                }
                assert_eq!(engine.status().damaged_blocks, u64::from(DAMAGED));

                // Written again: what index entries do not tell is stored once more, and everything is right.
                let second = pool.volume(&engine, "second", Compression::Off).await;
                pool.write(&second, 0).await;
                engine.maintain().await.unwrap();
                let used = used_blocks(&engine);
                let most = u64::from(2 * BLOCKS);
                assert_eq!(used > u64::from(BLOCKS + DAMAGED), is_off, "{used} blocks");
                assert!(used <= most);
                for at in 0..BLOCKS {
                    assert_eq!(pool.read(&second, at).await.unwrap(), at + 1);
                    // What was damaged is healed, or still an error.
                    match pool.read(&first, at).await {
                        Ok(content) => assert_eq!(content, at + 1),
                        Err(error) => {
                            assert_eq!(error.kind, ErrorKind::Corrupt);
                            assert!(is_off && at >= BLOCKS - DAMAGED);
                        }
                    }
                }
                is_right(&engine).await;
                engine.shutdown().await.unwrap();

                // With the bound as it is: all are found again, and what is damaged heals.
                let engine = pool.open().await;
                engine.load().await.unwrap();
                let third = pool.volume(&engine, "third", Compression::Off).await;
                pool.write(&third, 0).await;
                engine.maintain().await.unwrap();
                assert!(used_blocks(&engine) <= used, "stored a third time");
                for at in 0..BLOCKS {
                    assert_eq!(pool.read(&third, at).await.unwrap(), at + 1);
                }
                is_right(&engine).await;
                for name in ["first", "second", "third"] {
                    engine.delete_volume(name).await.unwrap();
                }
                engine.maintain().await.unwrap();
                assert_eq!(used_blocks(&engine), 0);
                engine.shutdown().await.unwrap();
                let report = meta::check(&*pool.store).unwrap();
                assert!(report.is_consistent() && report.index_agrees);
            }
        })
        .unwrap();
    }

    #[test]
    fn an_index_may_be_made_smaller_or_larger_between_two_openings() {
        reactor::run(reactor::Config::default(), async {
            let mut pool = Pool::new();
            let engine = pool.open().await;
            let volume = pool.volume(&engine, "0", Compression::Off).await;
            pool.write(&volume, 0).await;
            engine.shutdown().await.unwrap();
            for (number, index_bytes_max) in
                [0, u64::MAX, 4000, 0, u64::MAX].into_iter().enumerate()
            {
                pool.config.index_bytes_max = index_bytes_max;
                let engine = pool.open().await;
                engine.load().await.unwrap();
                let status = engine.status();
                assert_eq!(status.unindexed_blocks == 0, index_bytes_max == u64::MAX);
                let name = (number + 1).to_string();
                let volume = pool.volume(&engine, &name, Compression::Off).await;
                pool.write(&volume, 0).await;
                assert_eq!(used_blocks(&engine), u64::from(BLOCKS));
                // With all in the index nobody asks the store, whatever index entries it has.
                pool.write(&volume, BLOCKS).await;
                let is_asked = engine.status().on_disk_index_lookups > 0;
                assert_eq!(is_asked, index_bytes_max != u64::MAX);
                engine.delete_volume(&name).await.unwrap();
                engine.maintain().await.unwrap();
                is_right(&engine).await;
                engine.shutdown().await.unwrap();
                assert!(meta::check(&*pool.store).unwrap().index_agrees);
            }
        })
        .unwrap();
    }
}
