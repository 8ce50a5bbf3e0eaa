//! The health of a pool: what drives, the journal and the metadata's file system do, and what that means for commands.

use drives::DriveError;

use crate::drive_io::drive_state::{Condition, DriveState};
use crate::pool::Shared;
use crate::pool::alerts::{Action, Facts, Verdict};
use crate::pool::fill_level::{folder_level, level_reached};
use crate::sync::wait::lock;
use crate::{EngineError, ErrorKind, Result, SUB_BLOCK_BYTES};

impl Shared {
    /// Remembers that something failed on a drive.
    pub(crate) fn drive_failed(&self, drive: u16, action: Action, error: &DriveError) {
        self.drives.note_error(drive);
        self.alerts.drive_failed(drive, action, error);
    }

    /// What a failing drive means for a command.
    pub(crate) fn drive_error(
        &self,
        action: Action,
        drive: u16,
        error: &DriveError,
    ) -> EngineError {
        self.drive_failed(drive, action, error);
        let kind = crate::error::of_drive(error);
        EngineError::new(kind, format!("the {} failed: {error}", action.name()))
    }

    /// What a drive that could not write new blocks means for a command.
    pub(crate) fn write_error(&self, drive: u16, error: &DriveError) -> EngineError {
        let failed = self.drive_error(Action::Write, drive, error);
        let kind = match error.kind() {
            drives::ErrorKind::Io => ErrorKind::WriteFault,
            _ => failed.kind,
        };
        EngineError { kind, ..failed }
    }

    /// The pool is full.
    pub(crate) fn no_space(&self) -> EngineError {
        let (capacity, is_withheld) = {
            let state = lock(&self.state);
            let space = state.space();
            (space.capacity(), space.is_withheld())
        };
        if is_withheld && let Some(room) = &*lock(&self.folder) {
            return EngineError::new(
                ErrorKind::NoSpace,
                format!(
                    "the file system of the pool's folder {} is full: free space there; until then the pool \
                     takes no new data",
                    room.dir.display()
                ),
            );
        }
        let capacity = capacity * SUB_BLOCK_BYTES as u64;
        self.alerts.pool_is_full(capacity);
        EngineError::new(
            ErrorKind::NoSpace,
            format!(
                "the pool is full: all of its {capacity} bytes are in use; delete or trim data, or add a drive"
            ),
        )
    }

    /// What became of a host's write.
    pub(crate) fn written(&self, result: &Result<()>) {
        if result.is_ok() || !self.is_closed() {
            self.alerts.written(result);
        }
    }

    /// Notes what is wrong, ends what is over, and tells the log what was found.
    pub(crate) fn refresh_alerts(&self) {
        let (used, capacity, free) = {
            let state = lock(&self.state);
            let space = state.space();
            (space.used(), space.capacity(), space.free())
        };
        // Nobody misses a drive that was removed.
        let conditions = (0..).zip(self.drives.conditions());
        let of_pool = conditions.filter(|(_, condition)| *condition != Condition::Removed);
        let off: Vec<_> = of_pool
            .filter(|(_, condition)| condition.state() != DriveState::Online)
            .map(|(drive, condition)| (self.drive_name(drive), condition.state()))
            .collect();
        self.alerts.drives_off(&off);
        let levels = &self.fill_warnings();
        let damaged = lock(&self.damage).count();
        {
            let mut alert_log = lock(&self.alert_log);
            alert_log.tell(|index| self.drive_name(index));
            if damaged == 0 {
                alert_log.forget();
            }
        }
        self.alerts.look(&Facts {
            used,
            capacity,
            free,
            fill_level: level_reached(levels, used, capacity),
            damaged,
            drive: &|index| self.drives.get(usize::from(index))?.room_bytes(),
        });
    }

    /// The pool takes no changes any more; returns the error that says so.
    pub(crate) fn fail(&self, reason: String) -> EngineError {
        let error = EngineError::unavailable(reason.clone());
        lock(&self.state).make_read_only(reason);
        error
    }

    /// Looks how much room the metadata has: without any, no new data is taken. Blocks.
    pub(crate) fn look_at_folder(&self) {
        let room = self.store.tend();
        let level = room
            .as_ref()
            .and_then(|room| folder_level(&self.fill_warnings(), room));
        let is_short = room.as_ref().is_some_and(|room| room.is_short);
        self.alerts.folder(room.as_ref(), level);
        *lock(&self.folder) = room;
        lock(&self.state).space().withhold(is_short);
    }

    /// How the pool does, and why.
    pub(crate) fn verdict(&self) -> Verdict {
        let (read_only, since) = {
            let state = lock(&self.state);
            (
                state.read_only().map(str::to_owned),
                state.read_only_since(),
            )
        };
        let read_only = read_only.as_deref().zip(since);
        self.alerts.verdict(read_only, self.drives.len())
    }
}
