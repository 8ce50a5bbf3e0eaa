//! Flushes: data on stable drives, then a record in a synced journal that says so.
//!
//! Guarantees: a change counts as durable only when its data is on stable drives and its record is on stable
//! storage (a synced journal that says so, or the store). A failed flush or sync makes the pool read-only: what the
//! drive holds is not known any more, and opening the pool again proves each block.
//!
//! Where a sync of the journal flushes the data too ([`meta::JournalMedia::flushes_data`]), there is no flush of drives before it. The journal
//! says then what the sync before made durable: this one may not end, and the journal's file has its record all the same.
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
    let target = shared.state.share().installed();
    flush_upto(shared, target).await
}

/// Makes changes up to `target` survive a power loss. Flushes that wait share the next one, and wait for none after that.
pub(crate) async fn flush_upto(shared: &Arc<Shared>, target: u64) -> Result<()> {
    if shared.durable.has_reached(target) {
        return Ok(());
    }
    shared.rounds.arrive();
    // When a flush ends, the next one may take the lock before tasks that waited for the first. They go on without the lock
    // once their changes are durable.
    let locking = shared.flush_lock.clone().lock_owned();
    let held = match select(shared.durable.wait(target), locking).await {
        Either::Left(_) => return Ok(()),
        Either::Right((held, _)) => held,
    };
    if shared.durable.has_reached(target) {
        return Ok(());
    }
    shared.rounds.gather().await;
    shared.rounds.begin();
    let (upto, bytes) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        (state.last_change(), state.unflushed_bytes())
    };
    let flushed = match flushes_data(shared) {
        // What this sync makes durable the next one says; an opening before that proves it.
        true => Flushed {
            upto,
            noted: shared.durable.reached(),
            bytes,
        },
        false => {
            flush_drives(shared, upto).await?;
            Flushed {
                upto,
                noted: upto,
                bytes: 0,
            }
        }
    };
    note(shared, held, flushed).await
}

/// Flushes, and the journal says so of all that was flushed: blocks that were freed until then can be used again.
pub(crate) async fn flush_and_note(shared: &Arc<Shared>) -> Result<()> {
    flush(shared).await?;
    let held = shared.flush_lock.clone().lock_owned().await;
    let upto = shared.durable.reached();
    if shared.state.share().durable >= upto {
        return Ok(());
    }
    let flushed = Flushed {
        upto,
        noted: upto,
        bytes: 0,
    };
    note(shared, held, flushed).await
}

/// What a sync of the journal makes durable.
struct Flushed {
    /// Changes up to this one.
    upto: u64,
    /// What the journal says of that.
    noted: u64,
    /// Bytes of data that nobody has flushed before.
    bytes: u64,
}

async fn note(shared: &Arc<Shared>, held: OwnedMutexGuard<()>, flushed: Flushed) -> Result<()> {
    let upto = flushed.noted;
    match begin_note(shared, &Record::Durable { upto }) {
        Ok(append) => {
            append.finish().await?;
            let owned = shared.clone();
            shared
                .block_on(move || sync_journal(&owned, held, &flushed))
                .await
        }
        // The store can say as well that it is durable.
        Err(error) if error.is_full() => checkpoint(shared).await,
        Err(error) => Err(shared.fail(error.to_string())),
    }
}

/// Says in the journal what counts as durable, also if the store says so.
pub(crate) async fn note_durable(shared: &Arc<Shared>) -> Result<()> {
    let upto = shared.durable.reached();
    match begin_note(shared, &Record::Durable { upto }) {
        Ok(append) => append.finish().await.map(drop),
        Err(error) if error.is_full() => checkpoint(shared).await,
        Err(error) => Err(shared.fail(error.to_string())),
    }
}

/// All data of records up to `upto` is on stable drives afterwards.
pub(crate) async fn flush_drives(shared: &Shared, upto: u64) -> Result<()> {
    let bytes = shared.state.share().unflushed_bytes();
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
    state.has_flushed(bytes);
    Ok(())
}

/// Whether a sync of the journal makes all data durable that were written before.
fn flushes_data(shared: &Shared) -> bool {
    shared.drives.len() == 1 && lock(&shared.journal).flushes_data()
}

/// The blocking half of a flush.
fn sync_journal(shared: &Shared, held: OwnedMutexGuard<()>, flushed: &Flushed) -> Result<()> {
    let settled = settle_journal(shared);
    if settled.is_ok() {
        {
            let mut state = lock(&shared.state);
            state.flushed = state.flushed.max(flushed.upto);
            state.has_flushed(flushed.bytes);
            // Blocks that later changes freed are not used again before the journal says that those are durable.
            state.set_durable(flushed.noted);
        }
        shared.release_freed();
        shared.rounds.end();
        shared.durable.reach(flushed.upto);
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
pub(crate) mod tests;
