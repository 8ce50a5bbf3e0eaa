//! Connections that have ended while the server may still do what it was told by them, and when it is done.
//!
//! Guarantees: such a connection is kept, with its memory, until the server is known to be done with it ([`Connection::is_settled`]
//! has the rule); there are at most [`UNSETTLED_MAX`] of a drive, and nothing more is asked of a server that has so many.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};

use crate::Claim;
use crate::connection::Connection;
use crate::shared::Shared;

/// Connections of one drive that may have unsettled commands.
const UNSETTLED_MAX: usize = 4;

/// Pause before it is looked again whether a server is done.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The unsettled connections of this process, by the names of their drives: a drive that is opened again finds those of its
/// earlier opening.
static UNSETTLED: Mutex<BTreeMap<String, Vec<Arc<Connection>>>> = Mutex::new(BTreeMap::new());

/// A moment that is not before the start of this process.
static FIRST_OPENING: OnceLock<Instant> = OnceLock::new();

fn all_unsettled() -> MutexGuard<'static, BTreeMap<String, Vec<Arc<Connection>>>> {
    // Each change is one call.
    UNSETTLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those of a drive that are unsettled still. The others are let go.
fn unsettled(drive: &str) -> Vec<Arc<Connection>> {
    let mut all = all_unsettled();
    let Some(of_drive) = all.get_mut(drive) else {
        return Vec::new();
    };
    of_drive.retain(|connection| !connection.is_settled());
    let left = of_drive.clone();
    if left.is_empty() {
        all.remove(drive);
    }
    left
}

/// Notes the start of the process.
pub(crate) fn note_opening() {
    FIRST_OPENING.get_or_init(Instant::now);
}

/// Stops the rings of a connection that has ended, on a helper thread, and keeps it until the server is done with it.
pub(crate) fn retire(drive: &str, connection: Arc<Connection>) {
    let of_drive = drive.to_owned();
    all_unsettled()
        .entry(of_drive.clone())
        .or_default()
        .push(connection.clone());
    reactor::detach(move || {
        connection.stop();
        unsettled(&of_drive);
    });
}

/// Looks again, after a pause, whether the server is done with connections of a drive that have ended.
pub(crate) async fn look_again(drive: &str) {
    reactor::sleep(LOOK_PAUSE).await;
    unsettled(drive);
}

impl Shared {
    /// Refuses another connection where too many are unsettled.
    pub(crate) fn check_unsettled(&self) -> Result<(), DriveError> {
        let left = unsettled(&self.name);
        match left.first() {
            Some(first) if left.len() >= UNSETTLED_MAX => {
                let text = format!(
                    "{} connections were lost, and what the server was told by them may still happen: {}",
                    left.len(),
                    first.remedy()
                );
                Err(self.error(ErrorKind::Io, text))
            }
            _ => Ok(()),
        }
    }

    /// See [`VhostDrive::claim`](crate::VhostDrive::claim).
    pub(crate) async fn claim(&self, claim: Claim) -> Result<(), DriveError> {
        self.fence().await?;
        if claim == Claim::Again {
            let began = *FIRST_OPENING.get_or_init(Instant::now);
            let deadline = began + self.limits.orphans;
            let left = deadline.saturating_duration_since(reactor::now());
            if left > Duration::ZERO {
                tracing::info!(
                    drive = self.name,
                    ?left,
                    "waiting until no command of an earlier process can happen any more on the drive"
                );
                reactor::sleep_until(deadline).await;
            }
        }
        Ok(())
    }

    /// Returns when the server is done with all that was sent by connections that have ended.
    pub(crate) async fn fence(&self) -> Result<(), DriveError> {
        let deadline = reactor::now() + self.limits.patience;
        loop {
            let left = unsettled(&self.name);
            let Some(first) = left.first() else {
                return Ok(());
            };
            if reactor::now() >= deadline {
                let text = format!(
                    "the connection was lost ({}), and what the server was told before may still happen: {}",
                    first.why(),
                    first.remedy()
                );
                return Err(self.error(ErrorKind::Io, text));
            }
            drop(left);
            reactor::sleep(LOOK_PAUSE).await;
        }
    }
}
