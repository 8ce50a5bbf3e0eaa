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

use futures_util::future::join_all;
use futures_util::lock::OwnedMutexGuard;
use meta::{
    BatchBuilder, JournalError, JournalReader, MetaError, MetaErrorKind, Record, RecordRef,
};

use crate::engine::Shared;
use crate::trouble::Action;
use crate::wait::lock;
use crate::{EngineError, Result};

/// Changes of mappings per batch for the store: the more, the more of them share a page, and the less each
/// costs. In memory one takes about 400 bytes.
const BATCH_ENTRIES: u64 = 128 * 1024;

impl Shared {
    /// Every change acknowledged before this call survives a power loss when it returns `Ok`.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<()> {
        let target = lock(&self.state).last_change;
        self.flush_upto(target).await
    }

    /// Makes changes up to `target` survive a power loss. Flushes that wait share the next one.
    pub(crate) async fn flush_upto(self: &Arc<Self>, target: u64) -> Result<()> {
        if lock(&self.state).durable >= target {
            return Ok(());
        }
        let turn = self.flush_turn.clone().lock_owned().await;
        let upto = {
            let state = lock(&self.state);
            if state.durable >= target {
                return Ok(());
            }
            state.check_writable()?;
            state.last_change
        };
        self.flush_drives(upto).await?;
        match self.append_durable(upto) {
            Ok(()) => {
                let shared = self.clone();
                self.block_on(move || shared.sync_journal(turn, upto)).await
            }
            // The store can say as well that it is durable.
            Err(error) if error.is_full() => self.checkpoint().await,
            Err(error) => Err(self.fail(error.to_string())),
        }
    }

    fn append_durable(&self, upto: u64) -> std::result::Result<(), JournalError> {
        let record = Record::Durable { upto };
        let mut journal = lock(&self.journal);
        journal.append([&record])?;
        let entries = RecordRef::from(&record).entry_count();
        self.unstored.fetch_add(entries, Ordering::AcqRel);
        Ok(())
    }

    /// All data of records up to `upto` is on stable drives afterwards.
    async fn flush_drives(&self, upto: u64) -> Result<()> {
        let bytes = lock(&self.state).unflushed_bytes;
        #[cfg(test)]
        if crate::ablation::is(crate::ablation::Broken::FlushJournalOnly) {
            lock(&self.state).flushed = upto;
            return Ok(());
        }
        let flushes = self
            .drives
            .iter()
            .map(|drive| async move { (drive, drive.flush().await) });
        for (drive, result) in join_all(flushes).await {
            if let Err(error) = result {
                self.drive_failed(&**drive, Action::Flush, &error);
                return Err(self.fail(format!(
                    "drive {} could not be flushed: {error}; check it, and restart: recovery proves every \
                     block that was not flushed",
                    drive.name()
                )));
            }
        }
        let mut state = lock(&self.state);
        state.flushed = state.flushed.max(upto);
        state.unflushed_bytes = state.unflushed_bytes.saturating_sub(bytes);
        Ok(())
    }

    /// The blocking half of a flush.
    fn sync_journal(&self, turn: OwnedMutexGuard<()>, upto: u64) -> Result<()> {
        let settled = self.settle_journal();
        if settled.is_ok() {
            lock(&self.state).set_durable(upto);
        }
        drop(turn);
        settled
    }

    /// What was appended so far is stable afterwards, without holding the journal meanwhile.
    fn settle_journal(&self) -> Result<()> {
        let pending = lock(&self.journal).prepare_sync();
        let finished = pending.and_then(|pending| {
            let finished = pending.run();
            lock(&self.journal).finish_sync(finished)
        });
        match finished {
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail(error.to_string())),
        }
    }

    /// Moves all changes so far into the store, and gives their room in the journal back.
    pub(crate) async fn checkpoint(self: &Arc<Self>) -> Result<()> {
        let turn = self.checkpoint_turn.clone().lock_owned().await;
        let (upto, change, flushed) = {
            let journal = lock(&self.journal);
            if journal.position() == journal.released() {
                return Ok(());
            }
            let state = lock(&self.state);
            state.check_writable()?;
            (journal.last_seq(), state.last_change, state.flushed)
        };
        if flushed < change {
            self.flush_drives(change).await?;
        }
        let shared = self.clone();
        self.block_on(move || shared.store_changes(turn, upto))
            .await
    }

    /// The blocking half of a checkpoint.
    fn store_changes(&self, turn: OwnedMutexGuard<()>, upto: u64) -> Result<()> {
        // Nobody else releases records: what is read here stays where it is.
        let mut reader = lock(&self.journal).reader();
        while self.store_some(&mut reader, upto)? {}
        drop(turn);
        Ok(())
    }

    /// Moves the oldest changes that are not in the store there, read back from the journal; false if there
    /// are none.
    fn store_some(&self, reader: &mut JournalReader, upto: u64) -> Result<bool> {
        let upto = lock(&self.state).retry_upto.unwrap_or(upto);
        let first = reader.checkpoint().position.seq;
        let mut builder = BatchBuilder::new(first);
        let waiting = self.unstored.load(Ordering::Acquire);
        builder.reserve(waiting.min(BATCH_ENTRIES) as usize);
        let mut entries = 0;
        while entries < BATCH_ENTRIES && reader.checkpoint().position.seq <= upto {
            let read = reader
                .read()
                .map_err(|error| self.fail(error.to_string()))?;
            let Some((sequence, record)) = read else {
                break;
            };
            entries += RecordRef::from(&record).entry_count();
            builder
                .add(sequence, &record)
                .map_err(|error| self.fail(error.to_string()))?;
        }
        let checkpoint = reader.checkpoint();
        if checkpoint.position.seq == first {
            return Ok(false);
        }
        // First, so that a journal that lacks these records is known to be older than the store.
        #[cfg(test)]
        let settles = !crate::ablation::is(crate::ablation::Broken::StoreBeforeJournal);
        #[cfg(not(test))]
        let settles = true;
        if settles {
            self.settle_journal()?;
        }
        let last = checkpoint.position.seq - 1;
        let applied = builder.finish(checkpoint).and_then(|mut batch| {
            let hinted = self.want_hints(&mut batch, last);
            self.store.apply(&batch)?;
            Ok(hinted)
        });
        let hinted = match applied {
            Ok(hinted) => hinted,
            Err(error) => return Err(self.not_applied(&error, last)),
        };
        self.has_hints(&hinted, last);
        {
            let mut state = lock(&self.state);
            state.retry_upto = None;
            state.set_durable(last);
            state.resident.set_stored(last);
        }
        self.evict();
        lock(&self.journal)
            .release(checkpoint.position)
            .map_err(|error| self.fail(error.to_string()))?;
        self.unstored.fetch_sub(entries, Ordering::AcqRel);
        std::mem::take(&mut *lock(&self.stored)).set();
        Ok(true)
    }

    /// What it means that the store did not say that it took a batch that ends with this record.
    fn not_applied(&self, error: &MetaError, last: u64) -> EngineError {
        // Nothing was applied when the file system is full, and that can be cured while we run;
        // anything else leaves open what the store holds, and applying the same changes twice
        // would break its counts.
        if error.kind() == MetaErrorKind::NoSpace {
            lock(&self.state).retry_upto = Some(last);
            self.look_at_folder();
            return EngineError::unavailable(error.to_string());
        }
        self.fail(error.to_string())
    }

    /// The pool takes no changes any more; returns the error that says so.
    pub(crate) fn fail(&self, reason: String) -> EngineError {
        let error = EngineError::unavailable(reason.clone());
        lock(&self.state).make_read_only(reason);
        error
    }

    /// Discards freed blocks on the drives, batch after batch, and lets them be used again.
    pub(crate) async fn discard_freed(self: &Arc<Self>) {
        /// Blocks per batch; they cannot be allocated while it runs.
        const BATCH: usize = 4096;
        /// Shortest run that is discarded: 128 KiB.
        const DISCARD_RUN_BLOCKS_MIN: u64 = 32;
        loop {
            let _turn = self.discard_turn.lock().await;
            let taken = lock(&self.state).space.take_discards(BATCH);
            if taken.is_empty() {
                return;
            }
            for (drive, block, blocks) in crate::space::runs(&taken) {
                // Punching small holes costs a file system more than the space is worth, and the
                // blocks will be written again soon.
                if blocks < DISCARD_RUN_BLOCKS_MIN {
                    continue;
                }
                let Some(drive) = self.drives.get(usize::from(drive)) else {
                    continue;
                };
                if let Err(error) = drive.discard(block, blocks).await {
                    // A hint only: the blocks can be used all the same.
                    tracing::debug!(drive = drive.name(), %error, "a discard failed");
                }
            }
            lock(&self.state).space.finish_discards(&taken);
        }
    }

    /// Tries to make freed blocks usable; false when there is nothing to gain.
    pub(crate) async fn reclaim_space(self: &Arc<Self>) -> bool {
        if !self.loaded.load(Ordering::Acquire) && matches!(self.find_free().await, Ok(true)) {
            return true;
        }
        if lock(&self.state).space.skip_discards() > 0 {
            return true;
        }
        while !lock(&self.state).space.has_reclaimable() {
            // What was trimmed at once may not be free yet.
            if !matches!(self.trim_slice().await, Ok(true)) {
                return false;
            }
        }
        // A discard under way hands its blocks back at its end.
        drop(self.discard_turn.lock().await);
        if self.flush().await.is_err() {
            return false;
        }
        let mut state = lock(&self.state);
        let durable = state.durable;
        state.space.release(durable);
        state.space.skip_discards();
        true
    }
}
