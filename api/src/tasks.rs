//! Long tasks: what the daemon works at for a while, and what came of it.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/tasks` | list of [`TaskView`], the newest last |
//! | `POST /v1/tasks` with [`StartTask`] | the [`TaskView`] of what was started |
//! | `GET /v1/tasks/ID` | [`TaskView`] |
//! | `DELETE /v1/tasks/ID` | the [`TaskView`] of what is told to stop |
//!
//! Guarantee: a task goes on whether or not somebody waits for it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use dedup::{Engine, ErrorKind, OnlineCheckReport, ScrubPhase, ScrubStatus, Survey};
use futures_util::future::{AbortHandle, Abortable};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::ApiState;
pub use crate::task_list::{ENDED_MAX, TaskKind, TaskState, TaskView, Tasks};

/// How often work that the engine does by itself is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A task to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartTask {
    /// `check` or `survey`; scrubs, deletions and backups begin at their own paths.
    pub kind: TaskKind,
}

/// A task's result, when it has ended.
pub(crate) type Ending<T> = JoinHandle<Result<T, Failure>>;

/// What work is as a task.
pub(crate) struct Work {
    pub(crate) kind: TaskKind,
    /// What it is about.
    pub(crate) object: Option<String>,
    /// How far it is.
    pub(crate) percent: fn(&Engine) -> Option<u8>,
    /// Why it cannot be cancelled, if so.
    pub(crate) cannot_be_cancelled: Option<&'static str>,
}

/// Starts work on the control reactor as a task, which goes on if nobody waits for its result.
///
/// # Errors
/// Too many tasks run.
pub(crate) fn start<F, Fut, T>(
    state: &ApiState,
    shape: Work,
    work: F,
) -> Result<(u64, Ending<T>), Failure>
where
    F: FnOnce(Arc<Engine>) -> Fut + Send + 'static,
    Fut: Future<Output = dedup::Result<T>> + 'static,
    T: Serialize + Send + 'static,
{
    state.tasks.check_room()?;
    let Work {
        kind,
        object,
        percent,
        cannot_be_cancelled,
    } = shape;
    let (handle, registration) = AbortHandle::new_pair();
    let (engine, seen) = (state.engine.clone(), state.engine.clone());
    let cancel = move || match cannot_be_cancelled {
        Some(why) => Err(Failure::invalid(why)),
        None => {
            handle.abort();
            Ok(())
        }
    };
    let task = state
        .tasks
        .begin(kind, object, move || percent(&seen), cancel);
    let id = task.id;
    let working = state
        .control
        .spawn(move || Abortable::new(work(engine), registration));
    let ending = async move {
        match working.await {
            Ok(Ok(Ok(result))) => {
                task.ends(TaskState::Done, serde_json::to_value(&result).ok(), None);
                Ok(result)
            }
            Ok(Ok(Err(error))) => {
                task.ends(TaskState::Failed, None, Some(error.message.clone()));
                Err(error.into())
            }
            Ok(Err(_aborted)) => {
                task.ends(TaskState::Cancelled, None, None);
                Err(Failure::unavailable(format!(
                    "the {kind} was cancelled (task {id})"
                )))
            }
            Err(error) => {
                let failure = Failure::from(error);
                task.ends(TaskState::Failed, None, Some(failure.message.clone()));
                Err(failure)
            }
        }
    };
    Ok((id, tokio::spawn(ending)))
}

/// Starts an online check.
///
/// # Errors
/// Too many tasks run.
pub(crate) fn check(state: &ApiState) -> Result<(u64, Ending<OnlineCheckReport>), Failure> {
    let work = |engine: Arc<Engine>| async move { engine.check_online().await };
    let shape = Work {
        kind: TaskKind::Check,
        object: None,
        percent: Engine::check_percent,
        cannot_be_cancelled: None,
    };
    start(state, shape, work)
}

/// Starts a survey.
///
/// # Errors
/// Too many tasks run.
pub(crate) fn survey(state: &ApiState) -> Result<(u64, Ending<Survey>), Failure> {
    let work = |engine: Arc<Engine>| async move { engine.survey().await };
    let shape = Work {
        kind: TaskKind::Survey,
        object: None,
        percent: Engine::survey_percent,
        cannot_be_cancelled: None,
    };
    start(state, shape, work)
}

/// Waits for the result of a task.
///
/// # Errors
/// Those of its work; it was cancelled.
pub(crate) async fn ended<T>((_, ending): (u64, Ending<T>)) -> Result<T, Failure> {
    ending
        .await
        .map_err(|e| Failure::new(ErrorKind::Internal, e.to_string()))?
}

/// A scrub has begun: it is a task until the engine says that it has ended, which `ended` is told then.
pub(crate) fn follow_scrub<Fut>(
    state: &ApiState,
    ended: impl FnOnce(ScrubStatus) -> Fut + Send + 'static,
) where
    Fut: Future<Output = ()> + Send,
{
    let (seen, stopped) = (state.engine.clone(), state.engine.clone());
    let progress = move || percent_of_scrub(&seen.scrub_status());
    let task = state.tasks.begin(TaskKind::Scrub, None, progress, move || {
        Ok(stopped.stop_scrub()?)
    });
    let engine = state.engine.clone();
    drop(tokio::spawn(async move {
        let status = loop {
            let status = engine.scrub_status();
            if status.phase != ScrubPhase::Running {
                break status;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        };
        let state = match status.phase {
            ScrubPhase::Finished => TaskState::Done,
            ScrubPhase::Stopped | ScrubPhase::Never | ScrubPhase::Running => TaskState::Cancelled,
        };
        ended(status.clone()).await;
        task.ends(state, serde_json::to_value(&status).ok(), None);
    }));
}

fn percent_of_scrub(status: &ScrubStatus) -> Option<u8> {
    let total = status.total_blocks.max(1);
    u8::try_from(u128::from(status.checked_blocks.min(total)) * 100 / u128::from(total)).ok()
}

/// Deletions that the daemon's last end interrupted go on as tasks.
pub fn follow_deletions(state: &ApiState) {
    for one in state.engine.deleting() {
        follow_deletion(state, &one.name);
    }
}

/// A volume was deleted: freeing its space is a task until the engine has done it.
pub(crate) fn follow_deletion(state: &ApiState, volume: &str) {
    let left = {
        let (engine, name) = (state.engine.clone(), volume.to_owned());
        move || {
            let deleting = engine.deleting();
            deleting.into_iter().find(|one| one.name == name)
        }
    };
    let progress = {
        let left = left.clone();
        move || {
            let left = left()?;
            let done = left.total_bytes.saturating_sub(left.remaining_bytes);
            u8::try_from(u128::from(done) * 100 / u128::from(left.total_bytes.max(1))).ok()
        }
    };
    let cancel = || {
        Err(Failure::invalid(
            "a deletion cannot be cancelled: the volume is gone, only its space is being freed",
        ))
    };
    let task = state
        .tasks
        .begin(TaskKind::Delete, Some(volume.to_owned()), progress, cancel);
    drop(tokio::spawn(async move {
        while left().is_some() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        task.ends(TaskState::Done, None, None);
    }));
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/tasks", get(list).post(begin))
        .route("/v1/tasks/{id}", get(show).delete(cancel))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<TaskView>> {
    Json(state.tasks.all().iter().map(|task| task.view()).collect())
}

async fn begin(State(state): State<ApiState>, Body(request): Body<StartTask>) -> Answer<TaskView> {
    let id = match request.kind {
        TaskKind::Check => check(&state)?.0,
        TaskKind::Survey => survey(&state)?.0,
        TaskKind::Scrub | TaskKind::Delete | TaskKind::Backup => {
            return Err(Failure::invalid(format!(
                "a {} does not begin here: use `onefold scrub start`, `onefold volume delete` or `onefold pool backup`",
                request.kind
            ))
            .into());
        }
    };
    Ok(Json(state.tasks.find(id)?.view()))
}

async fn show(State(state): State<ApiState>, Path(id): Path<u64>) -> Answer<TaskView> {
    Ok(Json(state.tasks.find(id)?.view()))
}

async fn cancel(State(state): State<ApiState>, Path(id): Path<u64>) -> Answer<TaskView> {
    let task = state.tasks.find(id)?;
    task.cancel()?;
    Ok(Json(task.view()))
}

impl Client {
    /// All tasks that run, and those that ended last.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn tasks(&self) -> Result<Vec<TaskView>, Failure> {
        self.get("/v1/tasks").await
    }

    /// One task.
    ///
    /// # Errors
    /// There is no such task, or no daemon serves the pool.
    pub async fn task(&self, id: u64) -> Result<TaskView, Failure> {
        self.get(&format!("/v1/tasks/{id}")).await
    }

    /// Tells a task to stop.
    ///
    /// # Errors
    /// There is no such task, it has ended, or it cannot be stopped; or no daemon serves the pool.
    pub async fn cancel_task(&self, id: u64) -> Result<TaskView, Failure> {
        self.send(Method::DELETE, &format!("/v1/tasks/{id}"), None::<&()>)
            .await
    }
}
