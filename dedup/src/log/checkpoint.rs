//! Making changes durable: flushes, and checkpoints that move the journal's changes into the store.
//!
//! Guarantees: a change counts as durable only when its data is on stable drives and its record is on
//! stable storage (a synced journal that says so, or the store); freed blocks leave quarantine only
//! then (I3); a change is applied to the store exactly once. A failed flush or sync makes the pool
//! read-only: what the drive holds is not known any more, and opening the pool again proves each block.
//!
//! The blocking halves run to their end once they began, also when the future that asked is dropped:
//! they own what they need.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::lock::OwnedMutexGuard;
use meta::{BatchBuilder, JournalReader, MetaError, MetaErrorKind, RecordRef};

use crate::log::append::appended_upto;
use crate::log::flush::flush_drives;
use crate::log::flush::settle_journal;
use crate::pool::Shared;
use crate::residency::on_disk_index::{note_index_entries, want_index_entries};
use crate::residency::pages::evict;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Changes of mappings per batch for the store: the more, the more of them share a page, and the less each
/// costs. In memory one takes about 400 bytes.
const BATCH_ENTRIES: u64 = 128 * 1024;

/// Moves all changes so far into the store, and gives their room in the journal back.
pub(crate) async fn checkpoint(shared: &Arc<Shared>) -> Result<()> {
    let held = shared.checkpoint_lock.clone().lock_owned().await;
    let upto = {
        let journal = lock(&shared.journal);
        if journal.position() == journal.released() {
            return Ok(());
        }
        journal.last_seq()
    };
    // After that of the journal: every record up to `upto` that changes something is counted.
    let (change, flushed) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        (state.last_change(), state.flushed)
    };
    appended_upto(shared, upto).await?;
    if flushed < change {
        flush_drives(shared, change).await?;
    }
    let owned = shared.clone();
    shared
        .block_on(move || store_changes(&owned, held, upto))
        .await
}

/// The blocking half of a checkpoint.
fn store_changes(shared: &Shared, held: OwnedMutexGuard<()>, upto: u64) -> Result<()> {
    // No other task releases records: what is read here stays where it is.
    let mut reader = lock(&shared.journal).reader();
    while store_some(shared, &mut reader, upto)? {}
    drop(held);
    Ok(())
}

/// Moves the oldest changes that are not in the store there, read back from the journal; false if there
/// are none.
fn store_some(shared: &Shared, reader: &mut JournalReader, upto: u64) -> Result<bool> {
    let began = Instant::now();
    let upto = lock(&shared.state).retry_upto.unwrap_or(upto);
    let first = reader.checkpoint().position.seq;
    let mut builder = BatchBuilder::new(first);
    let waiting = shared.unstored.load(Ordering::Acquire);
    builder.reserve(waiting.min(BATCH_ENTRIES) as usize);
    let mut entries = 0;
    while entries < BATCH_ENTRIES && reader.checkpoint().position.seq <= upto {
        let read = reader
            .read()
            .map_err(|error| shared.fail(error.to_string()))?;
        let Some((sequence, record)) = read else {
            break;
        };
        entries += RecordRef::from(&record).entry_count();
        builder
            .add(sequence, &record)
            .map_err(|error| shared.fail(error.to_string()))?;
    }
    let checkpoint = reader.checkpoint();
    if checkpoint.position.seq == first {
        return Ok(false);
    }
    // First, so that a journal that lacks these records is known to be older than the store.
    settle_journal(shared)?;
    let last = checkpoint.position.seq - 1;
    let applied = builder.finish(checkpoint).and_then(|mut batch| {
        let index_entries = want_index_entries(shared, &mut batch, last);
        shared.store.apply(&batch)?;
        Ok(index_entries)
    });
    let index_entries = match applied {
        Ok(index_entries) => index_entries,
        Err(error) => return Err(not_applied(shared, &error, last)),
    };
    note_index_entries(shared, &index_entries, last);
    {
        let mut state = lock(&shared.state);
        state.retry_upto = None;
        state.set_durable(last);
        state.resident.set_stored(last);
    }
    shared.release_freed();
    shared.durable.reach(last);
    evict(shared);
    let released = {
        let mut journal = lock(&shared.journal);
        let released = journal.release(checkpoint.position);
        shared.backpressure.note(&journal);
        released
    };
    released.map_err(|error| shared.fail(error.to_string()))?;
    let next = lock(&shared.journal).position().offset;
    shared.writer.prepare(next);
    shared.unstored.fetch_sub(entries, Ordering::AcqRel);
    let (so_far, took) = (&shared.stored_so_far, began.elapsed().as_micros());
    so_far.batches.fetch_add(1, Ordering::Relaxed);
    so_far.changes.fetch_add(entries, Ordering::Relaxed);
    let took = u64::try_from(took).unwrap_or(u64::MAX);
    so_far.microseconds.fetch_add(took, Ordering::Relaxed);
    std::mem::take(&mut *lock(&shared.stored)).set();
    Ok(true)
}

/// What it means that the store did not say that it took a batch that ends with this record.
fn not_applied(shared: &Shared, error: &MetaError, last: u64) -> EngineError {
    // Nothing was applied when the file system is full, and that can be cured while we run;
    // anything else leaves open what the store holds, and applying the same changes twice
    // would break its counts.
    if error.kind() == MetaErrorKind::NoSpace {
        lock(&shared.state).retry_upto = Some(last);
        shared.look_at_folder();
        return EngineError::unavailable(error.to_string());
    }
    shared.fail(error.to_string())
}
