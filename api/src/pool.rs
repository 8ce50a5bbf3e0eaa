//! The whole pool: its redundancy, how rarely it loses data, its online check, backups of its metadata, and what its volumes share.
//!
//! | request | answer |
//! |---|---|
//! | `PATCH /v1/pool` with [`SetPool`] | a [`PoolView`], when it is written down |
//! | `POST /v1/pool/move` | a [`MoveView`], before the pool is given away |
//! | `POST /v1/check` | [`OnlineCheckReport`], when it is through |
//! | `POST /v1/backup` with [`MakeBackup`] | a [`BackupView`], when the backup is there |
//! | `GET /v1/survey` | the last [`Survey`], or `null` before the first one has ended |
//! | `POST /v1/survey` | a [`Survey`] made now |

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, patch, post};
use axum::{Json, Router};
use dedup::{Engine, OnlineCheckReport, PoolStatus, Redundancy, Survey};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, object};
use crate::reliability::{Reliability, ReliabilityGoal, SetReliability};
use crate::server::{ApiState, check_absolute};
use crate::settings;
use crate::tasks::{self, TaskKind, Work};

/// Where the pool stores how rarely it is to lose data.
const GOAL: &str = "pool/reliability";

/// What a pool is to be: what is missing stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPool {
    /// How many copies of all data there are to be: they are made, or given up, in the background.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<Redundancy>,
    /// How rarely it is to lose data, and what is known of its drives.
    #[serde(
        default,
        deserialize_with = "object",
        skip_serializing_if = "Option::is_none"
    )]
    pub reliability: Option<SetReliability>,
}

/// How safe the data of a pool are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolView {
    /// How many copies of all data there are to be.
    pub redundancy: Redundancy,
    /// Data that have fewer copies than they should, in bytes.
    pub at_risk_bytes: u64,
    /// How rarely it loses data, and is to.
    pub reliability: Reliability,
}

/// A pool that is given to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveView {
    /// The machines of the nodes that wait for it: the one with the fewest pools takes it first.
    pub machines: Vec<String>,
}

/// A backup to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeBackup {
    /// The absolute path of a folder that does not exist, or is empty.
    pub dir: PathBuf,
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupView {
    /// Its folder.
    pub dir: PathBuf,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/pool", patch(set))
        .route("/v1/pool/move", post(give_away))
        .route("/v1/check", post(check))
        .route("/v1/backup", post(backup))
        .route("/v1/survey", get(last_survey).post(survey))
}

async fn set(State(state): State<ApiState>, Body(request): Body<SetPool>) -> Answer<PoolView> {
    let SetPool {
        redundancy,
        reliability,
    } = request;
    // What cannot be is refused before anything is changed. A goal that a later version wrote is replaced as a whole.
    let goal = match reliability {
        Some(changes) => Some(changes.applied_to(goal_of(&state.engine).unwrap_or_default())?),
        None if redundancy.is_none() => {
            return Err(Failure::invalid(
                "nothing is to be changed: name `redundancy` or `reliability`",
            )
            .into());
        }
        None => None,
    };
    if let Some(redundancy) = redundancy {
        state.daemon.set_redundancy(redundancy).await?;
    }
    if let Some(goal) = &goal {
        settings::store(&state, GOAL, Some(goal)).await?;
    }
    let space = state.engine.status();
    Ok(Json(PoolView {
        redundancy: space.redundancy,
        at_risk_bytes: space.at_risk_bytes(),
        reliability: reliability_of(&state, &space),
    }))
}

async fn give_away(State(state): State<ApiState>) -> Answer<MoveView> {
    let machines = state.daemon.give_away().await?;
    Ok(Json(MoveView { machines }))
}

/// How rarely the pool is to lose data, as it is stored.
fn goal_of(engine: &Engine) -> Result<ReliabilityGoal, Failure> {
    Ok(settings::stored(engine, GOAL)?.unwrap_or_default())
}

/// How rarely the pool loses data as it is now.
pub(crate) fn reliability_of(state: &ApiState, space: &PoolStatus) -> Reliability {
    match goal_of(&state.engine) {
        Ok(goal) => state.daemon.reliability(&goal, space),
        // A later version wrote it: the figures are those without a goal, and say so.
        Err(error) => Reliability {
            remedy: Some(error.message),
            ..state.daemon.reliability(&ReliabilityGoal::default(), space)
        },
    }
}

async fn backup(
    State(state): State<ApiState>,
    Body(request): Body<MakeBackup>,
) -> Answer<BackupView> {
    check_absolute(&request.dir)?;
    let shape = Work {
        kind: TaskKind::Backup,
        object: Some(request.dir.display().to_string()),
        percent: |_| None,
        cannot_be_cancelled: Some(
            "a backup cannot be cancelled: when it is made, delete its folder",
        ),
    };
    let dir = state.dir.clone();
    let work = move |engine: Arc<Engine>| async move {
        // The lock keeps drives from being added: the list of drives and the maps must be of one moment.
        let dir = dir.lock().await;
        let folder = dir
            .begin_backup(&request.dir)
            .map_err(dedup::EngineError::from)?;
        let dir = engine.backup(folder).await?;
        Ok(BackupView { dir })
    };
    let made = tasks::ended(tasks::start(&state, shape, work)?);
    Ok(Json(made.await?))
}

async fn last_survey(State(state): State<ApiState>) -> Json<Option<Survey>> {
    Json(state.engine.last_survey())
}

async fn survey(State(state): State<ApiState>) -> Answer<Survey> {
    Ok(Json(tasks::ended(tasks::survey(&state)?).await?))
}

async fn check(State(state): State<ApiState>) -> Answer<OnlineCheckReport> {
    Ok(Json(tasks::ended(tasks::check(&state)?).await?))
}

impl Client {
    /// Changes how many copies of all data there are to be, or how rarely data are to be lost.
    ///
    /// # Errors
    /// The drives have no room for as many, there can be no such goal, or no daemon serves the pool.
    pub async fn set_pool(&self, request: &SetPool) -> Result<PoolView, Failure> {
        self.send(Method::PATCH, "/v1/pool", Some(request)).await
    }

    /// Gives the pool to another node. The daemon is a standby from then on.
    ///
    /// # Errors
    /// No other node waits for it, the daemon would not come back, or no daemon serves the pool.
    pub async fn move_pool(&self) -> Result<MoveView, Failure> {
        self.send(Method::POST, "/v1/pool/move", None::<&()>).await
    }

    /// Counts the unique and shared data of volumes; answers when it is done.
    ///
    /// # Errors
    /// No daemon serves the pool, or it is being stopped.
    pub async fn survey(&self) -> Result<Survey, Failure> {
        self.send(Method::POST, "/v1/survey", None::<&()>).await
    }

    /// Compares the reference counts with the maps; answers when it is done.
    ///
    /// # Errors
    /// A check runs already, or no daemon serves the pool.
    pub async fn check(&self) -> Result<OnlineCheckReport, Failure> {
        self.send(Method::POST, "/v1/check", None::<&()>).await
    }

    /// Makes a backup of the metadata in a folder of the daemon's machine.
    ///
    /// # Errors
    /// Something is there, it cannot be written, or no daemon serves the pool.
    pub async fn backup(&self, request: &MakeBackup) -> Result<BackupView, Failure> {
        self.send(Method::POST, "/v1/backup", Some(request)).await
    }
}
