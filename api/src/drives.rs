//! Drives.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/drives` | list of [`DriveView`], spares behind the others |
//! | `POST /v1/drives` with [`AddDrive`] | the same, with the new drive, when the pool uses it |
//! | `POST /v1/drives/change` with [`ChangeDrive`] | the same, when the change is made, or has begun |

use std::fmt;
use std::path::PathBuf;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use dedup::{DriveState, DriveStatus, RebuildStatus};
use hyper::Method;
use meta::SpareSpec;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::drive_health::DriveHealth;
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

/// What a drive is to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriveUse {
    /// It is read and written.
    Online,
    /// What it lacks is being copied to it.
    Rebuilding,
    /// It is neither read nor written.
    Offline,
    /// It holds nothing, and takes the place of a drive that fails.
    Spare,
    /// All that lies there is being moved to other drives; then it is removed.
    Emptying,
}

impl From<DriveState> for DriveUse {
    fn from(state: DriveState) -> Self {
        match state {
            DriveState::Online => Self::Online,
            DriveState::Rebuilding => Self::Rebuilding,
            DriveState::Offline => Self::Offline,
        }
    }
}

impl fmt::Display for DriveUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Online => "online",
            Self::Rebuilding => "rebuilding",
            Self::Offline => "offline",
            Self::Spare => "spare",
            Self::Emptying => "emptying",
        })
    }
}

/// A drive or a spare of the pool. Sizes are in bytes; of a spare they are 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveView {
    /// Where it is.
    pub path: String,
    /// What it is to the pool.
    pub state: DriveUse,
    /// Its failure domain; `None`: it fails alone.
    pub domain: Option<String>,
    /// Room for data.
    pub capacity_bytes: u64,
    /// Data on it.
    pub used_bytes: u64,
    /// Room for new data.
    pub free_bytes: u64,
    /// Data that it may lack, or have in an old state.
    pub stale_bytes: u64,
    /// Commands that failed, and copies that were wrong, since it was opened.
    pub errors: u64,
    /// How far its rebuild is.
    pub rebuild: Option<RebuildStatus>,
    /// Whether it holds a copy of the pool's metadata.
    pub metadata: bool,
    /// What it tells of its own health; `None`: nothing is known.
    #[serde(default)]
    pub health: Option<DriveHealth>,
}

impl DriveView {
    /// A drive, one of `holders` if it holds a copy of the metadata.
    fn of(drive: DriveStatus, holders: &[String], health: Option<DriveHealth>) -> Self {
        Self {
            health,
            metadata: holders.contains(&drive.name),
            path: drive.name,
            state: match drive.emptying {
                true => DriveUse::Emptying,
                false => drive.state.into(),
            },
            domain: drive.domain,
            capacity_bytes: drive.capacity_bytes,
            used_bytes: drive.used_bytes,
            free_bytes: drive.free_bytes,
            stale_bytes: drive.stale_bytes,
            errors: drive.errors,
            rebuild: drive.rebuild,
        }
    }
}

impl From<&SpareSpec> for DriveView {
    fn from(spare: &SpareSpec) -> Self {
        Self {
            path: spare.path.display().to_string(),
            state: DriveUse::Spare,
            domain: spare.domain.clone(),
            capacity_bytes: 0,
            used_bytes: 0,
            free_bytes: 0,
            stale_bytes: 0,
            errors: 0,
            rebuild: None,
            metadata: false,
            health: None,
        }
    }
}

/// All drives and spares.
async fn views(state: &ApiState) -> Vec<DriveView> {
    let dir = state.dir.lock().await;
    let holders = state.daemon.metadata_drives();
    let drives = state.engine.status().drives.into_iter();
    let mut health = state.daemon.drive_health();
    let drives = drives.map(|drive| {
        let health = health.remove(&drive.name);
        DriveView::of(drive, &holders, health)
    });
    let spares = dir.identity().spares.iter().map(DriveView::from);
    drives.chain(spares).collect()
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/drives", get(list).post(add))
        .route("/v1/drives/change", post(change))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<DriveView>> {
    Json(views(&state).await)
}

async fn add(
    State(state): State<ApiState>,
    Body(request): Body<AddDrive>,
) -> Answer<Vec<DriveView>> {
    check_absolute(&request.path)?;
    state.daemon.add_drive(request).await?;
    Ok(Json(views(&state).await))
}

async fn change(
    State(state): State<ApiState>,
    Body(request): Body<ChangeDrive>,
) -> Answer<Vec<DriveView>> {
    check_absolute(&request.path)?;
    if let DriveChange::Replace(AddDrive { path, .. }) = &request.change {
        check_absolute(path)?;
    }
    state
        .daemon
        .change_drive(request.path, request.change)
        .await?;
    Ok(Json(views(&state).await))
}

impl Client {
    /// All drives and spares, and their space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn drives(&self) -> Result<Vec<DriveView>, Failure> {
        self.get("/v1/drives").await
    }

    /// Adds a drive; answers with all drives.
    ///
    /// # Errors
    /// The daemon refuses (the drive holds something, is too small, or is not there), or no daemon
    /// serves the pool.
    pub async fn add_drive(&self, request: &AddDrive) -> Result<Vec<DriveView>, Failure> {
        self.send(Method::POST, "/v1/drives", Some(request)).await
    }

    /// Changes a drive; answers with all drives.
    ///
    /// # Errors
    /// The daemon refuses (other drives lack data that this one has, a replacement that holds something or is too small),
    /// or no daemon serves the pool.
    pub async fn change_drive(&self, request: &ChangeDrive) -> Result<Vec<DriveView>, Failure> {
        self.send(Method::POST, "/v1/drives/change", Some(request))
            .await
    }
}
