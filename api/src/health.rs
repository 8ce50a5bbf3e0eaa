//! The health of the pool.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/health` | [`Health`] |
//! | `GET /healthz` | text: 200 if hosts are served, 503 if the pool takes no writes; and what is wrong |

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use dedup::{
    DamageStatus, DeletingStatus, DriveTrouble, Engine, HealthState, ScrubStatus, TrimmingStatus,
    Verdict, VerifyStatus,
};
use serde::{Deserialize, Serialize};

use crate::server::ApiState;

/// The health of a pool, and what may need attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The state, since when and why.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The highest warning level that the pool's fill has reached, in percent.
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
    /// Large trims that are still running.
    pub trimming: Vec<TrimmingStatus>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/health", get(health))
        .route("/healthz", get(healthz))
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

async fn health(State(state): State<ApiState>) -> Json<Health> {
    Json(health_of(&state.engine).await)
}

async fn healthz(State(state): State<ApiState>) -> (StatusCode, String) {
    told(&state.engine.verdict())
}

/// A verdict as programs that watch a service read it: the status first.
fn told(verdict: &Verdict) -> (StatusCode, String) {
    let status = match verdict.state {
        HealthState::Ok | HealthState::Degraded => StatusCode::OK,
        HealthState::TakesNoWrites => StatusCode::SERVICE_UNAVAILABLE,
    };
    let reasons = verdict.reasons.iter();
    let reasons = reasons.map(|reason| format!("{}\n", reason.what));
    (
        status,
        format!("{}\n{}", verdict.state, reasons.collect::<String>()),
    )
}
