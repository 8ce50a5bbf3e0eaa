//! Appending records to the journal, and making their changes.
//!
//! Guarantees: the changes of a record are made at once after its append, before anyone else appends;
//! records of overlapping ranges are appended in the order of their range locks (a guard is held until
//! the mapping is in place); when the journal is full, who came first gets the next room; what records
//! are about is in memory before they are appended, and until they are installed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{Either, select};
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};
use meta::{JournalError, Pba, Record, RecordRef};

use crate::engine::Shared;
use crate::range_lock::RangeGuard;
use crate::state::State;
use crate::wait::lock;
use crate::{EngineError, Result};

/// Checkpoints that one append waits for when the journal is full.
const ROOM_ATTEMPTS: u32 = 4;

/// Why nothing was appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    Journal(JournalError),
    /// What is known of these addresses is in the store only: keep it here, then append again.
    Away(Vec<Pba>),
}

impl From<JournalError> for AppendError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// The line in front of a full journal.
#[derive(Default)]
pub(crate) struct RoomLine {
    waiting: AtomicU64,
    turn: AsyncMutex<()>,
}

impl RoomLine {
    /// Whether anybody stands in it.
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// A place in the line, if there is one. Who appends without looking would overtake.
    pub(crate) async fn join_if_any(&self) -> Option<RoomTurn<'_>> {
        if self.is_busy() {
            Some(self.join().await)
        } else {
            None
        }
    }

    /// Waits until it is this one's turn to wait for room.
    async fn join(&self) -> RoomTurn<'_> {
        let place = Place::new(&self.waiting);
        let turn = self.turn.lock().await;
        RoomTurn {
            attempts: 0,
            _turn: turn,
            _place: place,
        }
    }
}

struct Place<'a>(&'a AtomicU64);

impl<'a> Place<'a> {
    fn new(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::AcqRel);
        Self(waiting)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The head of the line. Nobody else appends changes as long as it lives.
pub(crate) struct RoomTurn<'a> {
    attempts: u32,
    _turn: AsyncMutexGuard<'a, ()>,
    _place: Place<'a>,
}

impl Shared {
    /// Appends a record and makes its changes; returns its sequence number. `guard` is held until the
    /// changes are in place.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        record: Record,
        guard: Option<RangeGuard>,
    ) -> Result<u64> {
        let mut turn = self.room_line.join_if_any().await;
        let mut stays = Vec::new();
        loop {
            match self.append([RecordRef::from(&record)], |_| ()) {
                Ok(sequence) => {
                    drop(guard);
                    return Ok(sequence);
                }
                Err(AppendError::Away(pbas)) => stays.push(self.keep_here(pbas).await?),
                Err(AppendError::Journal(error)) if error.is_full() => {
                    self.wait_for_room(&mut turn).await?;
                }
                Err(AppendError::Journal(error)) => return Err(self.append_failed(&error)),
            }
        }
    }

    /// One append. Its changes are made before anyone else can append, with `first` before them;
    /// returns the sequence number of the first record. After an error nothing is changed.
    pub(crate) fn append<'r>(
        &self,
        records: impl IntoIterator<Item = RecordRef<'r>, IntoIter: Clone>,
        first: impl FnOnce(&mut State),
    ) -> std::result::Result<u64, AppendError> {
        let records = records.into_iter();
        let mut journal = lock(&self.journal);
        self.check_entries()?;
        {
            let mut state = lock(&self.state);
            let away: Vec<Pba> = records.clone().flat_map(|r| state.away(r)).collect();
            #[cfg(test)]
            let away = match crate::ablation::is(crate::ablation::Broken::AppendBlindly) {
                true => Vec::new(),
                false => away,
            };
            if !away.is_empty() {
                return Err(AppendError::Away(away));
            }
            // Nothing leaves memory until the records are installed: the journal is locked.
            state.is_appending = true;
        }
        let appended = journal.append(records.clone());
        let mut state = lock(&self.state);
        if appended.is_err() {
            state.is_appending = false;
        }
        let appended = appended?;
        let entries = records.clone().map(|record| record.entry_count()).sum();
        self.unstored.fetch_add(entries, Ordering::AcqRel);
        first(&mut state);
        state.last_change = appended.last;
        for record in records {
            state.install(record);
        }
        state.is_appending = false;
        state.evict_some();
        Ok(appended.first)
    }

    /// The bound of what an opening has to replay is reached as if the journal were full.
    fn check_entries(&self) -> std::result::Result<(), JournalError> {
        let unstored = self.unstored.load(Ordering::Acquire);
        let free = self.config.replay_entries_max.saturating_sub(unstored);
        if free > 0 {
            return Ok(());
        }
        Err(JournalError::Full {
            journal: "changes to replay".to_owned(),
            needed: 1,
            free,
        })
    }

    /// Waits until an append that found the journal full is worth another try.
    pub(crate) async fn wait_for_room<'a>(
        self: &'a Arc<Self>,
        turn: &mut Option<RoomTurn<'a>>,
    ) -> Result<()> {
        let Some(turn) = turn else {
            // Who was in front may have left room.
            *turn = Some(self.room_line.join().await);
            return Ok(());
        };
        // A checkpoint is long; each of its batches makes room.
        let stored = lock(&self.stored).clone();
        let checkpoint = self.checkpoint();
        let progress = stored.wait();
        let checkpoint = match select(pin!(checkpoint), progress).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => return Ok(()),
        };
        turn.attempts += 1;
        if turn.attempts > ROOM_ATTEMPTS {
            return Err(EngineError::unavailable(
                "the journal stays full; it is too small for this load, retry later",
            ));
        }
        checkpoint.map_err(|error| {
            EngineError::unavailable(format!(
                "the journal is full, and its changes cannot be stored: {}",
                error.message
            ))
        })
    }

    /// What an append that failed means for its command, and for the pool.
    pub(crate) fn append_failed(&self, error: &JournalError) -> EngineError {
        if let JournalError::TooLarge { .. } = error {
            return EngineError::internal(format!("a record does not fit the journal: {error}"));
        }
        // What the journal holds is not known any more: only opening it again can tell.
        self.fail(error.to_string())
    }
}

/// Whether the error is about room: nothing was written.
pub(crate) fn is_size(error: &JournalError) -> bool {
    matches!(
        error,
        JournalError::Full { .. } | JournalError::TooLarge { .. }
    )
}
