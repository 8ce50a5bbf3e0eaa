//! Images and streams as tasks: clients do the work, and the daemon follows it.
//!
//! | task | its progress | told to stop |
//! |---|---|---|
//! | import, receive | what is durable of the image | the session ends; `--resume` goes on |
//! | export, send | the last byte that was asked for | what is asked for later is refused |
//!
//! Guarantee: a client that is gone leaves no task that runs for ever. A sender that is silent for [`SEND_SILENCE_MAX`]
//! loses its session, a reader that is silent for [`READ_SILENCE_MAX`] loses its task.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use subsystem::errors::Failure;
use subsystem::target::Target;
use subsystem::target::import_sessions::{ImportBegun, SessionEnd};
use uuid::Uuid;

use crate::server::ApiState;
use crate::task_list::{LOOK_INTERVAL, Task, TaskKind, TaskState, percent};

/// For how long a sender of an image may be silent. `onefold volume import` says every few seconds that it is there.
pub const SEND_SILENCE_MAX: Duration = Duration::from_secs(300);

/// For how long a reader may be silent until its task has failed. What it reads later is still given to it.
pub const READ_SILENCE_MAX: Duration = Duration::from_secs(60);

/// How often a session is looked at.
const SESSION_LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// A client begins to read a volume or a snapshot; returns the number of its task.
///
/// # Errors
/// There is no such volume, it may not be read now, or too many tasks run.
pub(crate) fn begin_reading(
    state: &ApiState,
    kind: TaskKind,
    object: String,
) -> Result<u64, Failure> {
    state.tasks.check_room()?;
    let bytes = state.target.open_to_read(&object)?.info().size_bytes;
    let task = state.tasks.begin_reading(kind, object, bytes);
    let id = task.id;
    drop(tokio::spawn(follow_reader(task)));
    Ok(id)
}

async fn follow_reader(task: Arc<Task>) {
    let Ok(reader) = task.reader() else { return };
    while task.is_running() {
        if reader.is_cancelled() {
            task.ends(TaskState::Cancelled, None, None);
        } else if reader.silence() > READ_SILENCE_MAX {
            let text = format!(
                "nothing was read for {} s: its client has ended, or waits",
                READ_SILENCE_MAX.as_secs()
            );
            task.ends(TaskState::Failed, None, Some(text));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// An import has begun, or goes on: it is a task until its session ends. `result` is looked at when the image is whole.
pub(crate) fn follow_import(
    state: &ApiState,
    kind: TaskKind,
    name: &str,
    begun: ImportBegun,
    result: impl FnOnce() -> Option<Value> + Send + 'static,
) {
    let ImportBegun {
        session,
        volume,
        end,
    } = begun;
    let (seen, stopped) = (state.target.clone(), state.target.clone());
    let (engine, of) = (state.engine.clone(), name.to_owned());
    let progress = move || {
        let import = seen.import_of(volume).ok().flatten()?;
        let bytes = match import.image_bytes {
            // Nobody knows how long it is.
            None if import.grows => return None,
            None => engine.volume(&of)?.info().size_bytes,
            Some(bytes) => bytes,
        };
        percent(import.done_bytes, bytes)
    };
    let runtime = tokio::runtime::Handle::current();
    let cancel = move || {
        let target = stopped.clone();
        let stop = async move {
            let end = SessionEnd::Cancelled;
            target.stop_import(volume, session, end).await;
        };
        drop(runtime.spawn(stop));
        Ok(())
    };
    let task = state
        .tasks
        .begin(kind, Some(name.to_owned()), progress, cancel);
    let target = state.target.clone();
    drop(tokio::spawn(async move {
        let ended = tokio::select! {
            ended = end => ended.ok(),
            silent = silent(&target, volume, session) => Some(silent),
        };
        // Without a word the daemon ends.
        let ended = ended.unwrap_or(SessionEnd::Silent);
        match ended {
            SessionEnd::Whole => {
                task.ends(TaskState::Done, result(), None);
            }
            SessionEnd::Silent => {
                let text = format!("{ended}: --resume goes on with it");
                task.ends(TaskState::Failed, None, Some(text));
            }
            SessionEnd::TakenOver | SessionEnd::GivenUp | SessionEnd::Cancelled => {
                task.ends(TaskState::Cancelled, None, Some(ended.to_string()));
            }
        }
    }));
}

/// Ends a session whose sender is silent for too long; returns when it has.
async fn silent(target: &Target, volume: Uuid, session: Uuid) -> SessionEnd {
    loop {
        tokio::time::sleep(SESSION_LOOK_INTERVAL).await;
        match target.silence_of_import(volume, session).await {
            Some(silence) if silence > SEND_SILENCE_MAX => {
                let end = SessionEnd::Silent;
                target.stop_import(volume, session, end).await;
                return end;
            }
            Some(_) => {}
            // How it ended is told to who began it.
            None => std::future::pending().await,
        }
    }
}
