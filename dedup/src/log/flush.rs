//! Flushes: data on stable drives, then a record in a synced journal that says so.
//!
//! Guarantees: a change counts as durable only when its data is on stable drives and its record is on stable
//! storage (a synced journal that says so, or the store). A failed flush or sync makes the pool read-only: what the
//! drive holds is not known any more, and opening the pool again proves each block.
//!
//! The blocking half of a flush runs to its end once it began, also when the future that asked is dropped: it owns
//! what it needs.

use std::sync::Arc;

use futures_util::future::{Either, join_all, select};
use futures_util::lock::OwnedMutexGuard;
use meta::Record;

use crate::Result;
use crate::drive_io::drive_state::DriveState;
use crate::log::append::begin_note;
use crate::log::checkpoint::checkpoint;
use crate::pool::Shared;
use crate::pool::alerts::Action;
use crate::sync::wait::lock;

/// Every change acknowledged before this call survives a power loss when it returns `Ok`.
pub(crate) async fn flush(shared: &Arc<Shared>) -> Result<()> {
    let target = lock(&shared.state).installed;
    flush_upto(shared, target).await
}

/// Makes changes up to `target` survive a power loss. Flushes that wait share the next one, and wait for none after that.
pub(crate) async fn flush_upto(shared: &Arc<Shared>, target: u64) -> Result<()> {
    if lock(&shared.state).durable >= target {
        return Ok(());
    }
    // When a flush ends, the next one may take the lock before tasks that waited for the first. They go on without the lock
    // once their changes are durable.
    let turn = shared.flush_lock.clone().lock_owned();
    let held = match select(shared.durable.wait(target), turn).await {
        Either::Left(_) => return Ok(()),
        Either::Right((held, _)) => held,
    };
    let upto = {
        let state = lock(&shared.state);
        if state.durable >= target {
            return Ok(());
        }
        state.check_writable()?;
        state.last_change
    };
    flush_drives(shared, upto).await?;
    match begin_note(shared, &Record::Durable { upto }) {
        Ok(append) => {
            append.finish().await?;
            let owned = shared.clone();
            shared
                .block_on(move || sync_journal(&owned, held, upto))
                .await
        }
        // The store can say as well that it is durable.
        Err(error) if error.is_full() => checkpoint(shared).await,
        Err(error) => Err(shared.fail(error.to_string())),
    }
}

/// Says in the journal what counts as durable, also if the store says so.
pub(crate) async fn note_durable(shared: &Arc<Shared>) -> Result<()> {
    let upto = lock(&shared.state).durable;
    match begin_note(shared, &Record::Durable { upto }) {
        Ok(append) => append.finish().await.map(drop),
        Err(error) if error.is_full() => checkpoint(shared).await,
        Err(error) => Err(shared.fail(error.to_string())),
    }
}

/// All data of records up to `upto` is on stable drives afterwards.
pub(crate) async fn flush_drives(shared: &Shared, upto: u64) -> Result<()> {
    let bytes = lock(&shared.state).unflushed_bytes;
    #[cfg(test)]
    if crate::ablation::is(crate::ablation::Broken::FlushJournalOnly) {
        lock(&shared.state).flushed = upto;
        return Ok(());
    }
    let flushes = (0u16..)
        .zip(shared.drives.iter())
        .filter(|(index, _)| shared.drives.state(*index) != DriveState::Offline)
        .map(|(index, drive)| async move { (index, drive, drive.flush().await) });
    for (index, drive, result) in join_all(flushes).await {
        if let Err(error) = result {
            shared.drive_failed(index, Action::Flush, &error);
            if shared.go_on_without(index, &error).await {
                continue;
            }
            return Err(shared.fail(format!(
                "drive {} could not be flushed: {error}; check it, and restart: recovery proves every \
                 block that was not flushed",
                drive.name()
            )));
        }
    }
    let mut state = lock(&shared.state);
    state.flushed = state.flushed.max(upto);
    state.unflushed_bytes = state.unflushed_bytes.saturating_sub(bytes);
    Ok(())
}

/// The blocking half of a flush.
fn sync_journal(shared: &Shared, held: OwnedMutexGuard<()>, upto: u64) -> Result<()> {
    let settled = settle_journal(shared);
    if settled.is_ok() {
        lock(&shared.state).set_durable(upto);
        shared.durable.reach(upto);
    }
    drop(held);
    settled
}

/// What is written so far, without a hole, is stable afterwards, without holding the journal meanwhile.
pub(crate) fn settle_journal(shared: &Shared) -> Result<()> {
    let pending = lock(&shared.journal).prepare_sync();
    let finished = pending.and_then(|pending| {
        let finished = pending.run();
        lock(&shared.journal).finish_sync(finished)
    });
    match finished {
        Ok(_) => Ok(()),
        Err(error) => Err(shared.fail(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
