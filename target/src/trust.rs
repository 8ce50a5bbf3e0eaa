//! The part of the control interface that is about trust: damage, scrub, online check, fill level.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/health` | [`Health`] |
//! | `GET /v1/scrub` | [`ScrubView`] |
//! | `POST /v1/scrub` with [`StartScrub`] | [`ScrubView`] |
//! | `DELETE /v1/scrub` | [`ScrubView`] |
//! | `POST /v1/check` | [`OnlineCheckReport`], when it is through |

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::{get, post};
use axum::{Json, Router};
use dedup::{
    DamageStatus, DeletingStatus, DriveTrouble, Engine, OnlineCheckReport, SCRUB_RATE_DEFAULT,
    ScrubStatus, TrimmingStatus, Verdict, VerifyStatus,
};
use serde::{Deserialize, Serialize};

use crate::api::{ApiState, malformed, on_control};
use crate::errors::Failure;

/// What may need somebody's attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// How the pool does, since when and why.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The highest of the fill levels to be warned of that the pool has reached, in percent.
    pub fill_warning_percent: Option<u8>,
    /// Damaged blocks, and the ranges of volumes that refer to them.
    pub damage: DamageStatus,
    /// The scrub that runs, or the last one.
    pub scrub: ScrubStatus,
    /// Byte compares of duplicates.
    pub verify: VerifyStatus,
    /// Deleted volumes whose blocks are being freed.
    pub deleting: Vec<DeletingStatus>,
    /// Drives on which something fails, and the volumes with data on them.
    pub drives: Vec<DriveTrouble>,
    /// Large trims that are being worked off.
    pub trimming: Vec<TrimmingStatus>,
}

/// A scrub, and all the damage that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubView {
    /// How far it is.
    #[serde(flatten)]
    pub scrub: ScrubStatus,
    /// Damaged blocks, whoever found them, and the ranges of volumes that refer to them.
    pub damage: DamageStatus,
}

/// How to scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartScrub {
    /// Bytes per second that it reads at most.
    #[serde(default = "default_rate")]
    pub rate_bytes_per_second: u64,
}

fn default_rate() -> u64 {
    SCRUB_RATE_DEFAULT
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/scrub", get(scrub).post(start_scrub).delete(stop_scrub))
        .route("/v1/check", post(check))
}

/// The health of a pool at this moment.
pub async fn health_of(engine: &Engine) -> Health {
    let status = engine.status();
    Health {
        verdict: engine.verdict(),
        fill_warning_percent: status.fill_warning_percent,
        damage: engine.damage().await,
        scrub: engine.scrub_status(),
        verify: status.verify,
        deleting: status.deleting,
        drives: engine.drive_troubles(),
        trimming: status.trimming,
    }
}

async fn view_of(engine: &Engine) -> ScrubView {
    ScrubView {
        scrub: engine.scrub_status(),
        damage: engine.damage().await,
    }
}

async fn health(State(state): State<ApiState>) -> Json<Health> {
    Json(health_of(&state.engine).await)
}

async fn scrub(State(state): State<ApiState>) -> Json<ScrubView> {
    Json(view_of(&state.engine).await)
}

async fn start_scrub(
    State(state): State<ApiState>,
    body: Result<Json<StartScrub>, JsonRejection>,
) -> Result<Json<ScrubView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    state.engine.start_scrub(request.rate_bytes_per_second)?;
    Ok(Json(view_of(&state.engine).await))
}

async fn stop_scrub(State(state): State<ApiState>) -> Result<Json<ScrubView>, Failure> {
    state.engine.stop_scrub()?;
    Ok(Json(view_of(&state.engine).await))
}

async fn check(State(state): State<ApiState>) -> Result<Json<OnlineCheckReport>, Failure> {
    let engine = state.engine.clone();
    let work = move || async move { engine.check_online().await };
    on_control(&state, work).await.map(Json)
}
