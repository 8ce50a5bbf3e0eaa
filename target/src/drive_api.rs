//! The part of the control interface that is about drives, and what volumes have on them and share.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/drives` | list of [`dedup::DriveStatus`] |
//! | `POST /v1/drives` with [`AddDrive`] | the same, with the new drive, when the pool uses it |
//! | `GET /v1/survey` | the last [`Survey`], or `null` before the first one has ended |
//! | `POST /v1/survey` | a [`Survey`] made now |

use std::path::PathBuf;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::get;
use axum::{Json, Router};
use dedup::{DriveStatus, Survey};
use serde::{Deserialize, Serialize};

use crate::api::{ApiState, malformed, on_control};
use crate::cli::args::DriveArg;
use crate::errors::Failure;

/// Which drive to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDrive {
    /// An absolute path: of a block device, of a file, or of a file to be made.
    pub path: PathBuf,
    /// The size of a file to be made, in bytes.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Take it whatever it holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/drives", get(list).post(add))
        .route("/v1/survey", get(last_survey).post(survey))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<DriveStatus>> {
    Json(state.engine.status().drives)
}

async fn add(
    State(state): State<ApiState>,
    body: Result<Json<AddDrive>, JsonRejection>,
) -> Result<Json<Vec<DriveStatus>>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    if !request.path.is_absolute() {
        return Err(Failure::invalid(format!(
            "'{}' is not an absolute path, and the daemon has a working directory of its own",
            request.path.display()
        )));
    }
    let force = request.force;
    let drive = DriveArg::Path {
        path: request.path,
        size_bytes: request.size_bytes,
    };
    let (engine, dir) = (state.engine.clone(), state.dir.clone());
    let work = move || async move {
        let mut dir = dir.lock().await;
        crate::pool::add_drive(&engine, &mut dir, &drive, force).await
    };
    state.control.spawn(work).await??;
    Ok(Json(state.engine.status().drives))
}

async fn last_survey(State(state): State<ApiState>) -> Json<Option<Survey>> {
    Json(state.engine.last_survey())
}

async fn survey(State(state): State<ApiState>) -> Result<Json<Survey>, Failure> {
    let engine = state.engine.clone();
    let work = move || async move { engine.survey().await };
    on_control(&state, work).await.map(Json)
}
