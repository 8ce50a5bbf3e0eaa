//! Appending records to the journal, and making their changes.
//!
//! An append takes three steps. With the state shared its records are checked and get their range of the journal. Without
//! any lock they are written there. When all records before them are written too, their changes are made, with
//! the state shared again, or alone where they change more than a host's write does. So reactors append side by side, and a record that is believed after a crash has all that
//! it depends on before it.
//!
//! Guarantees: nobody is told of a change, or that all is as it should be because of it ([`appended_upto`]), before its
//! record and all before that are written, and nobody sees it before (but see below);
//! records of overlapping ranges are appended in the order of their range locks (a guard is held until
//! the mapping is in place); when the journal is full, the task that came first gets the next room; what records
//! are about is resident before they are appended, and until they are installed.
//!
//! An append that is dropped in the middle is written and installed all the same, at once: whoever asked for it has
//! gone and was told nothing, and what it held of blocks is the record's. Until all before it are written, others may
//! see its change, and a crash of the program may undo it, as that of any command without an answer. Records that rest
//! on it come after it, so they are undone with it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use meta::{Frames, JournalError, MapEntry, Pba, Record, RecordRef, ReservedRange};

use crate::hooks::{Current, Hooks};
use crate::log::checkpoint::checkpoint;
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::backpressure::RoomPermit;
use crate::pool::references::References;
use crate::residency::rows::pin_rows;
use crate::sync::range_lock::RangeGuard;
use crate::sync::wait::{Unwinding, lock};
use crate::{EngineError, Result};

/// Checkpoints that one append waits for when the journal is full.
const ROOM_ATTEMPTS: u32 = 4;

/// Why nothing was appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    Journal(JournalError),
    /// The rows of these addresses are not resident: pin them, then append again.
    NotResident(Vec<Pba>),
    /// It changes a volume that is gone: a record of it would make the journal contradict itself.
    VolumeGone(u32),
}

impl From<JournalError> for AppendError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// What is told of a record for a volume that is gone.
pub(crate) fn volume_gone(id: u32) -> EngineError {
    EngineError::not_found(format!("volume {id} was deleted meanwhile"))
}

/// The volumes that must be there for a record. A deletion whose caller gave up takes place all the same, so one may go
/// between the look at a volume and its record.
fn volumes_of(record: &Record) -> Vec<u32> {
    match record {
        Record::VolumeResize { id, .. }
        | Record::VolumeRename { id, .. }
        | Record::VolumePolicy { id, .. }
        | Record::Trimming { id, .. }
        | Record::VolumeDelete { id } => vec![*id],
        Record::Fork(forks) => forks.iter().map(|fork| fork.volume).collect(),
        Record::Rollback {
            snapshot, volume, ..
        } => vec![*snapshot, *volume],
        _ => Vec::new(),
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
/// changes are in place. `references` are the record's once it has its range of the journal.
pub(crate) async fn commit(
    shared: &Arc<Shared>,
    record: Record,
    guard: Option<RangeGuard>,
    references: Option<References>,
) -> Result<u64> {
    let mut permit = shared.backpressure.join_if_any().await;
    let mut pins = Vec::new();
    let volumes = volumes_of(&record);
    loop {
        match begin_for(shared, vec![RecordRef::from(&record)], &volumes, |_| ()) {
            Ok(append) => {
                if let Some(references) = references {
                    references.pass_on();
                }
                let sequence = append.finish().await?;
                drop(guard);
                return Ok(sequence);
            }
            Err(AppendError::NotResident(pbas)) => pins.push(pin_rows(shared, pbas).await?),
            Err(AppendError::Journal(error)) if error.is_full() => {
                wait_for_room(shared, &mut permit).await?;
            }
            Err(AppendError::Journal(error)) => return Err(append_failed(shared, &error)),
            Err(AppendError::VolumeGone(id)) => return Err(volume_gone(id)),
        }
    }
}

/// Begins an append: checks the records, and reserves a range of the journal for them. `first` changes the state then. What
/// the caller holds of the records' new blocks is theirs from here on. After an error nothing is changed.
pub(crate) fn begin<'r>(
    shared: &'r Shared,
    records: Vec<RecordRef<'r>>,
    first: impl FnOnce(&State),
) -> std::result::Result<Append<'r>, AppendError> {
    begin_for(shared, records, &[], first)
}

/// The same, if these volumes are there.
fn begin_for<'r>(
    shared: &'r Shared,
    records: Vec<RecordRef<'r>>,
    volumes: &[u32],
    first: impl FnOnce(&State),
) -> std::result::Result<Append<'r>, AppendError> {
    let frames = Frames::encode(records.iter().copied());
    let entries = records.iter().map(RecordRef::entry_count).sum();
    let state = shared.state.share();
    check_entries(shared)?;
    if let Some(gone) = volumes.iter().find(|id| !state.volumes.contains_key(id)) {
        return Err(AppendError::VolumeGone(*gone));
    }
    let missing: Vec<Pba> = records
        .iter()
        .flat_map(|record| state.not_resident(*record))
        .collect();
    if !missing.is_empty() {
        return Err(AppendError::NotResident(missing));
    }
    let range = reserve(shared, &frames)?;
    shared.unstored.fetch_add(entries, Ordering::AcqRel);
    first(&state);
    state.will_change(range.last());
    // Nothing leaves memory until the records are installed.
    state.begin_append();
    drop(state);
    Ok(Append::new(shared, records, frames, range))
}

fn reserve(shared: &Shared, frames: &Frames) -> std::result::Result<ReservedRange, JournalError> {
    let mut journal = lock(&shared.journal);
    let range = journal.reserve(frames)?;
    shared.backpressure.note(&journal);
    Ok(range)
}

/// Begins an append of a record that changes nothing.
pub(crate) fn begin_note<'r>(
    shared: &'r Shared,
    note: &Record,
) -> std::result::Result<Append<'r>, JournalError> {
    let note = RecordRef::from(note);
    let frames = Frames::encode([note]);
    let range = reserve(shared, &frames)?;
    shared
        .unstored
        .fetch_add(note.entry_count(), Ordering::AcqRel);
    Ok(Append::new(shared, Vec::new(), frames, range))
}

/// Records that have their range of the journal.
#[must_use = "the records count when it is finished"]
pub(crate) struct Append<'r> {
    shared: &'r Shared,
    /// To be installed.
    records: Vec<RecordRef<'r>>,
    first: u64,
    last: u64,
    /// To be written.
    frames: Option<(Frames, ReservedRange)>,
}

impl<'r> Append<'r> {
    fn new(
        shared: &'r Shared,
        records: Vec<RecordRef<'r>>,
        frames: Frames,
        range: ReservedRange,
    ) -> Self {
        Self {
            shared,
            records,
            first: range.first(),
            last: range.last(),
            frames: Some((frames, range)),
        }
    }

    /// Writes the records and makes their changes; returns the sequence number of the first one.
    ///
    /// # Errors
    /// `Unavailable` when the journal failed: nothing is changed in memory, and what the journal holds is open until it
    /// is opened again.
    pub(crate) async fn finish(mut self) -> Result<u64> {
        Current::pause_before_write().await;
        self.write();
        if let Err(error) = appended_upto(self.shared, self.last).await {
            self.settle(false);
            return Err(error);
        }
        self.settle(true);
        Ok(self.first)
    }

    /// Writes the frames to their range. Those that wait for them go on.
    fn write(&mut self) {
        let Some((frames, range)) = self.frames.take() else {
            return;
        };
        // Others wait for what this one writes: a panic in here would leave them waiting.
        let unwinding = Unwinding::ends();
        let shared = self.shared;
        match shared.writer.write(frames, range) {
            Ok(upto) => shared.appended.reach(upto),
            Err(error) => {
                shared.fail(error.to_string());
                shared.appended.close();
            }
        }
        drop(unwinding);
    }

    /// The records are in the journal: makes their changes. Or they may not be there: they change nothing.
    fn settle(&mut self, are_there: bool) {
        let records = std::mem::take(&mut self.records);
        if records.is_empty() {
            return;
        }
        let wants_eviction = if are_there {
            self.install(&records)
        } else {
            // The references that the records were to have.
            let entries = records.iter().flat_map(|record| {
                let own = match record.as_other() {
                    Some(Record::Own { entries, .. }) => &entries[..],
                    _ => &[],
                };
                record.as_map().map_or(own, |(_, _, entries)| entries)
            });
            let new = entries.filter_map(MapEntry::new_block);
            let state = self.shared.state.share();
            state.give_back_all(new.map(|new| new.pba));
            state.end_append();
            state.wants_eviction()
        };
        if wants_eviction {
            lock(&self.shared.state).evict_some();
        }
    }

    /// Makes the changes of the records. Returns whether something is to leave memory.
    fn install(&self, records: &[RecordRef<'_>]) -> bool {
        let note = |state: &State| {
            if self.shared.config.write_through {
                let last = self.last;
                records.iter().for_each(|it| state.note_changes(*it, last));
            }
        };
        {
            let state = self.shared.state.share();
            if state.can_install_shared(records) {
                note(&state);
                state.install_shared(records);
                state.has_installed(self.last);
                state.end_append();
                return state.wants_eviction();
            }
        }
        let mut state = lock(&self.shared.state);
        note(&state);
        records.iter().for_each(|it| state.install(*it));
        state.has_installed(self.last);
        state.end_append();
        state.evict_some();
        false
    }
}

impl Drop for Append<'_> {
    /// Whoever asked for it has gone, and was told nothing.
    fn drop(&mut self) {
        if self.frames.is_some() && Current::is_dying() {
            return;
        }
        self.write();
        let has_failed = self.shared.appended.is_closed();
        self.settle(!has_failed);
    }
}

/// Waits until all records up to this one are in the journal. Who changes nothing, because a record has changed it
/// before, waits for that: the command of that record may have been dropped before it was in the journal.
///
/// # Errors
/// `Unavailable` when the journal failed: what it holds is open until it is opened again.
pub(crate) async fn appended_upto(shared: &Shared, sequence: u64) -> Result<()> {
    match shared.appended.wait(sequence).await {
        true => Ok(()),
        false => {
            let failed = shared.state.share().check_writable();
            Err(failed.err().unwrap_or_else(EngineError::closed))
        }
    }
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

/// Waits as long as the journal is nearly full. A host's command that will change something does so before it locks
/// anything: one that waits with its range locked holds up reads of it, and with them a snapshot of the volume and all
/// that wait for that.
///
/// # Errors
/// The journal's changes cannot be stored.
pub(crate) async fn admit(shared: &Arc<Shared>) -> Result<()> {
    let is_nearly_full = || {
        let entries = shared.unstored.load(Ordering::Relaxed);
        let entries_max = shared.config.replay_entries_max;
        shared.backpressure.is_nearly_full(entries, entries_max)
    };
    if !is_nearly_full() {
        return Ok(());
    }
    let _line = shared.backpressure.line_up().await;
    let mut attempts = 0;
    // One for which checkpoints make no room goes on: it is told why where it needs the room.
    while is_nearly_full() && attempts < ROOM_ATTEMPTS {
        if let Some(checkpoint) = next_batch(shared).await {
            checkpoint.map_err(|error| cannot_store(&error))?;
            attempts += 1;
        }
    }
    Ok(())
}

/// Waits until some of the journal's changes are in the store. What came of the checkpoint, if it ended.
async fn next_batch(shared: &Arc<Shared>) -> Option<Result<()>> {
    // A checkpoint is long; each of its batches makes room.
    let stored = lock(&shared.stored).clone();
    let checkpoint = checkpoint(shared);
    let progress = stored.wait();
    match select(pin!(checkpoint), progress).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

fn cannot_store(error: &EngineError) -> EngineError {
    EngineError::unavailable(format!(
        "the journal is full, and its changes cannot be stored: {}",
        error.message
    ))
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
    let Some(checkpoint) = next_batch(shared).await else {
        return Ok(());
    };
    permit.attempts += 1;
    if permit.attempts > ROOM_ATTEMPTS {
        return Err(EngineError::unavailable(
            "the journal stays full; it is too small for this load, retry later",
        ));
    }
    checkpoint.map_err(|error| cannot_store(&error))
}

/// What an append that failed means for its command, and for the pool.
pub(crate) fn append_failed(shared: &Shared, error: &JournalError) -> EngineError {
    if let JournalError::TooLarge { .. } = error {
        return EngineError::internal(format!("a record does not fit the journal: {error}"));
    }
    // What the journal holds is not known any more: only opening it again can tell.
    shared.fail(error.to_string())
}

#[cfg(test)]
mod tests;
