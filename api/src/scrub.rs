//! The scrub: all data are read in the background and compared with their checksums and fingerprints.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/scrub` | [`ScrubView`] |
//! | `POST /v1/scrub` with [`StartScrub`] | [`ScrubView`] |
//! | `DELETE /v1/scrub` | [`ScrubView`] |

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::get;
use axum::{Json, Router};
use dedup::{DamageStatus, Engine, SCRUB_RATE_DEFAULT, ScrubStatus};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::server::ApiState;

/// A scrub, and all the damage that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubView {
    /// Its progress.
    #[serde(flatten)]
    pub scrub: ScrubStatus,
    /// All damaged blocks, and the ranges of volumes that refer to them.
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
    Router::new().route("/v1/scrub", get(scrub).post(start_scrub).delete(stop_scrub))
}

async fn view_of(engine: &Engine) -> ScrubView {
    ScrubView {
        scrub: engine.scrub_status(),
        damage: engine.damage().await,
    }
}

async fn scrub(State(state): State<ApiState>) -> Json<ScrubView> {
    Json(view_of(&state.engine).await)
}

async fn start_scrub(
    State(state): State<ApiState>,
    body: Result<Json<StartScrub>, JsonRejection>,
) -> Answer<ScrubView> {
    let Json(request) = body?;
    state.engine.start_scrub(request.rate_bytes_per_second)?;
    Ok(Json(view_of(&state.engine).await))
}

async fn stop_scrub(State(state): State<ApiState>) -> Answer<ScrubView> {
    state.engine.stop_scrub()?;
    Ok(Json(view_of(&state.engine).await))
}

impl Client {
    /// The progress of the scrub, and all damage.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn scrub(&self) -> Result<ScrubView, Failure> {
        self.get("/v1/scrub").await
    }

    /// Starts a scrub.
    ///
    /// # Errors
    /// One runs already, or no daemon serves the pool.
    pub async fn start_scrub(&self, request: &StartScrub) -> Result<ScrubView, Failure> {
        self.send(Method::POST, "/v1/scrub", Some(request)).await
    }

    /// Stops the scrub.
    ///
    /// # Errors
    /// None runs, or no daemon serves the pool.
    pub async fn stop_scrub(&self) -> Result<ScrubView, Failure> {
        self.send(Method::DELETE, "/v1/scrub", None::<&()>).await
    }
}
