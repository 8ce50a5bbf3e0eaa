//! Appending records to the journal, and making their changes.
//!
//! Guarantees: the changes of a record are made at once after its append, before anyone else appends;
//! records of overlapping ranges are appended in the order of their range locks (a guard is held until
//! the mapping is in place); when the journal is full, the task that came first gets the next room; what records
//! are about is resident before they are appended, and until they are installed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use meta::{JournalError, Pba, Record, RecordRef};

use crate::log::checkpoint::checkpoint;
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::backpressure::RoomPermit;
use crate::residency::rows::pin_rows;
use crate::sync::range_lock::RangeGuard;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Checkpoints that one append waits for when the journal is full.
const ROOM_ATTEMPTS: u32 = 4;

/// Why nothing was appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    Journal(JournalError),
    /// The rows of these addresses are not resident: pin them, then append again.
    NotResident(Vec<Pba>),
}

impl From<JournalError> for AppendError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// Whether the error is about room: nothing was written.
pub(crate) fn is_size(error: &JournalError) -> bool {
    matches!(
        error,
        JournalError::Full { .. } | JournalError::TooLarge { .. }
    )
}

/// Appends a record and makes its changes; returns its sequence number. `guard` is held until the
/// changes are in place.
pub(crate) async fn commit(
    shared: &Arc<Shared>,
    record: Record,
    guard: Option<RangeGuard>,
) -> Result<u64> {
    let mut permit = shared.backpressure.join_if_any().await;
    let mut pins = Vec::new();
    loop {
        match append(shared, [RecordRef::from(&record)], |_| ()) {
            Ok(sequence) => {
                drop(guard);
                return Ok(sequence);
            }
            Err(AppendError::NotResident(pbas)) => pins.push(pin_rows(shared, pbas).await?),
            Err(AppendError::Journal(error)) if error.is_full() => {
                wait_for_room(shared, &mut permit).await?;
            }
            Err(AppendError::Journal(error)) => return Err(append_failed(shared, &error)),
        }
    }
}

/// One append. Its changes are made before anyone else can append, with `first` before them;
/// returns the sequence number of the first record. After an error nothing is changed.
pub(crate) fn append<'r>(
    shared: &Shared,
    records: impl IntoIterator<Item = RecordRef<'r>, IntoIter: Clone>,
    first: impl FnOnce(&mut State),
) -> std::result::Result<u64, AppendError> {
    let records = records.into_iter();
    let mut journal = lock(&shared.journal);
    check_entries(shared)?;
    {
        let mut state = lock(&shared.state);
        let missing: Vec<Pba> = records
            .clone()
            .flat_map(|r| state.not_resident(r))
            .collect();
        #[cfg(test)]
        let missing = match crate::ablation::is(crate::ablation::Broken::AppendBlindly) {
            true => Vec::new(),
            false => missing,
        };
        if !missing.is_empty() {
            return Err(AppendError::NotResident(missing));
        }
        // Nothing leaves memory until the records are installed: the journal is locked.
        state.is_appending = true;
    }
    let appended = journal.append(records.clone());
    let mut state = lock(&shared.state);
    if appended.is_err() {
        state.is_appending = false;
    }
    let appended = appended?;
    let entries = records.clone().map(|record| record.entry_count()).sum();
    shared.unstored.fetch_add(entries, Ordering::AcqRel);
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
fn check_entries(shared: &Shared) -> std::result::Result<(), JournalError> {
    let unstored = shared.unstored.load(Ordering::Acquire);
    let free = shared.config.replay_entries_max.saturating_sub(unstored);
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
    shared: &'a Arc<Shared>,
    permit: &mut Option<RoomPermit<'a>>,
) -> Result<()> {
    let Some(permit) = permit else {
        // The task in front may have left room.
        *permit = Some(shared.backpressure.join().await);
        return Ok(());
    };
    // A checkpoint is long; each of its batches makes room.
    let stored = lock(&shared.stored).clone();
    let checkpoint = checkpoint(shared);
    let progress = stored.wait();
    let checkpoint = match select(pin!(checkpoint), progress).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => return Ok(()),
    };
    permit.attempts += 1;
    if permit.attempts > ROOM_ATTEMPTS {
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
pub(crate) fn append_failed(shared: &Shared, error: &JournalError) -> EngineError {
    if let JournalError::TooLarge { .. } = error {
        return EngineError::internal(format!("a record does not fit the journal: {error}"));
    }
    // What the journal holds is not known any more: only opening it again can tell.
    shared.fail(error.to_string())
}
