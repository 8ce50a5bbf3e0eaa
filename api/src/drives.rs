//! Drives.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/drives` | list of [`dedup::DriveStatus`] |
//! | `POST /v1/drives` with [`AddDrive`] | the same, with the new drive, when the pool uses it |
//! | `POST /v1/drives/change` with [`ChangeDrive`] | the same, when the change is made, or the rebuild has begun |

use std::path::PathBuf;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use dedup::DriveStatus;
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::Body;
pub use crate::server::{AddDrive, DriveChange};
use crate::server::{ApiState, check_absolute};

/// Which drive to change, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeDrive {
    /// The path of a drive of the pool, absolute.
    pub path: PathBuf,
    /// What becomes of it.
    pub change: DriveChange,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/drives", get(list).post(add))
        .route("/v1/drives/change", post(change))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<DriveStatus>> {
    Json(state.engine.status().drives)
}

async fn add(
    State(state): State<ApiState>,
    Body(request): Body<AddDrive>,
) -> Answer<Vec<DriveStatus>> {
    check_absolute(&request.path)?;
    let AddDrive {
        path,
        size_bytes,
        force,
    } = request;
    state.daemon.add_drive(path, size_bytes, force).await?;
    Ok(Json(state.engine.status().drives))
}

async fn change(
    State(state): State<ApiState>,
    Body(request): Body<ChangeDrive>,
) -> Answer<Vec<DriveStatus>> {
    check_absolute(&request.path)?;
    if let DriveChange::Replace(AddDrive { path, .. }) = &request.change {
        check_absolute(path)?;
    }
    state
        .daemon
        .change_drive(request.path, request.change)
        .await?;
    Ok(Json(state.engine.status().drives))
}

impl Client {
    /// All drives, and their space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn drives(&self) -> Result<Vec<DriveStatus>, Failure> {
        self.get("/v1/drives").await
    }

    /// Adds a drive; answers with all drives.
    ///
    /// # Errors
    /// The daemon refuses (the drive holds something, is too small, or is not there), or no daemon
    /// serves the pool.
    pub async fn add_drive(&self, request: &AddDrive) -> Result<Vec<DriveStatus>, Failure> {
        self.send(Method::POST, "/v1/drives", Some(request)).await
    }

    /// Changes a drive; answers with all drives.
    ///
    /// # Errors
    /// The daemon refuses (other drives lack data that this one has, a replacement that holds something or is too small),
    /// or no daemon serves the pool.
    pub async fn change_drive(&self, request: &ChangeDrive) -> Result<Vec<DriveStatus>, Failure> {
        self.send(Method::POST, "/v1/drives/change", Some(request))
            .await
    }
}
