//! Drives.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/drives` | list of [`dedup::DriveStatus`] |
//! | `POST /v1/drives` with [`AddDrive`] | the same, with the new drive, when the pool uses it |

use std::path::PathBuf;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use dedup::DriveStatus;
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::Body;
use crate::server::{ApiState, check_absolute};

/// Which drive to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDrive {
    /// An absolute path: of a block device, of a file, or of a file to be made.
    pub path: PathBuf,
    /// The size of a file to be made, in bytes.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Use it even if it holds data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/drives", get(list).post(add))
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
}
