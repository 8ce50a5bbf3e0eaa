//! Long tasks: what the daemon works at for a while, and what came of it.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/tasks` | list of [`TaskView`], the newest last |
//! | `POST /v1/tasks` with [`StartTask`] | the [`TaskView`] of what was started |
//! | `GET /v1/tasks/ID` | [`TaskView`] |
//! | `DELETE /v1/tasks/ID` | the [`TaskView`] of what is told to stop |
//! | `POST /v1/tasks/ID/finish` with [`FinishTask`] | the [`TaskView`] of what its client has ended |
//!
//! Guarantee: a task of the daemon goes on whether or not somebody waits for it. Images and streams are the work of
//! clients ([`crate::transfers`]).

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
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
use crate::task_list::{LOOK_INTERVAL, percent};
use crate::transfers;

/// Characters of an error that a client tells; the rest is left out.
const ERROR_CHARS_MAX: usize = 1000;

/// A task to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartTask {
    /// `check` or `survey`; or `export` or `send`, which the client does: it names the task with each piece that it reads.
    /// Other tasks begin at their own paths.
    pub kind: TaskKind,
    /// The volume or snapshot that is read by an export or a send; other tasks have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// A client has done with an export or a send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishTask {
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
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
    percent(status.checked_blocks, status.total_blocks)
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
            percent(done, left.total_bytes)
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
        .route("/v1/tasks/{id}/finish", post(finish))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<TaskView>> {
    Json(state.tasks.all().iter().map(|task| task.view()).collect())
}

async fn begin(State(state): State<ApiState>, Body(request): Body<StartTask>) -> Answer<TaskView> {
    let StartTask { kind, object } = request;
    let id = match (kind, object) {
        (TaskKind::Check, None) => check(&state)?.0,
        (TaskKind::Survey, None) => survey(&state)?.0,
        (TaskKind::Export | TaskKind::Send, Some(object)) => {
            transfers::begin_reading(&state, kind, object)?
        }
        (TaskKind::Export | TaskKind::Send, None) => {
            let text = format!("a task of the kind '{kind}' has an object: the volume or snapshot");
            return Err(Failure::invalid(text).into());
        }
        (TaskKind::Check | TaskKind::Survey, Some(_)) => {
            let text =
                format!("a task of the kind '{kind}' has no object: it is about all volumes");
            return Err(Failure::invalid(text).into());
        }
        _ => {
            return Err(Failure::invalid(format!(
                "a task of the kind '{kind}' does not begin here: use `onefold scrub start`, `onefold volume delete`, \
                 `onefold pool backup`, `onefold volume import` or `onefold receive`"
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

async fn finish(
    State(state): State<ApiState>,
    Path(id): Path<u64>,
    Body(request): Body<FinishTask>,
) -> Answer<TaskView> {
    let task = state.tasks.find(id)?;
    task.reader()?;
    match request.error {
        None => task.ends(TaskState::Done, None, None),
        Some(error) => {
            let error = error.chars().take(ERROR_CHARS_MAX).collect();
            task.ends(TaskState::Failed, None, Some(error));
        }
    }
    Ok(Json(task.view()))
}

impl Client {
    /// Starts a task.
    ///
    /// # Errors
    /// It does not begin so, too many run, or no daemon serves the pool.
    pub async fn start_task(&self, request: &StartTask) -> Result<TaskView, Failure> {
        self.send(Method::POST, "/v1/tasks", Some(request)).await
    }

    /// Says that an export or a send has ended.
    ///
    /// # Errors
    /// There is no such task, or no daemon serves the pool.
    pub async fn finish_task(&self, id: u64, request: &FinishTask) -> Result<TaskView, Failure> {
        let path = format!("/v1/tasks/{id}/finish");
        self.send(Method::POST, &path, Some(request)).await
    }

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
