//! Backups of a pool's metadata: `onefold pool backup`, and the part of the control interface behind it.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/backup` with [`MakeBackup`] | a [`BackupView`], when the backup is there |

use std::path::PathBuf;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use crate::api::{ApiState, malformed};
use crate::errors::Failure;

/// Where a backup shall go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeBackup {
    /// An absolute path of a folder that is not there, or empty.
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
    Router::new().route("/v1/backup", post(backup))
}

async fn backup(
    State(state): State<ApiState>,
    body: Result<Json<MakeBackup>, JsonRejection>,
) -> Result<Json<BackupView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    if !request.dir.is_absolute() {
        return Err(Failure::invalid(format!(
            "'{}' is not an absolute path, and the daemon has a working directory of its own",
            request.dir.display()
        )));
    }
    let (engine, dir) = (state.engine.clone(), state.dir.clone());
    let work = move || async move {
        // No drive is added meanwhile: the list of drives and the maps are of one moment.
        let dir = dir.lock().await;
        let folder = dir
            .begin_backup(&request.dir)
            .map_err(dedup::EngineError::from)?;
        engine.backup(folder).await
    };
    let dir = state.control.spawn(work).await??;
    Ok(Json(BackupView { dir }))
}
