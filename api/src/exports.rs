//! Exports: volumes that are reached by something else than NVMe.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/exports` | list of [`ExportView`] |
//! | `POST /v1/exports` with [`CreateExport`] | [`ExportView`] |
//! | `DELETE /v1/exports/ID` | the [`ExportView`] that it was |

use axum::extract::State;
use axum::routing::{delete, get};
use axum::{Json, Router};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::catalog::{ExportConfig, ExportKind};
use subsystem::errors::Failure;
use subsystem::target::volumes::no_volume;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, ExportState, to_its_end};

/// An export as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportView {
    /// Its number.
    pub id: u16,
    /// The volume's name.
    pub volume: String,
    /// How it is reached.
    pub kind: ExportKind,
    /// Where.
    pub address: String,
    /// It was made read-only.
    pub read_only: bool,
    /// Somebody can reach it. If not, the log says why.
    pub served: bool,
    /// Who uses it now.
    pub connections: u64,
}

/// A new export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateExport {
    /// The volume's name, or a snapshot's.
    pub volume: String,
    /// How it is reached.
    pub kind: ExportKind,
    /// Where: of kind `vhost` the absolute path of a socket, of kind `nbd` `unix:PATH` or `tcp://ADDRESS:PORT`.
    pub address: String,
    /// It takes no writes.
    #[serde(default)]
    pub read_only: bool,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/exports", get(list).post(create))
        .route("/v1/exports/{id}", delete(remove))
}

fn view(state: &ApiState, export: &ExportConfig, now: Option<&ExportState>) -> ExportView {
    let all = [state.engine.volumes(), state.engine.snapshots()].concat();
    let volume = all.into_iter().find(|info| info.uuid == export.volume);
    ExportView {
        id: export.id,
        volume: volume.map_or_else(|| export.volume.to_string(), |info| info.name),
        kind: export.kind,
        address: export.address.clone(),
        read_only: export.read_only,
        served: now.is_some(),
        connections: now.map_or(0, |now| now.connections),
    }
}

async fn list(State(state): State<ApiState>) -> Json<Vec<ExportView>> {
    let now = state.daemon.exports().await;
    let catalog = state.target.catalog();
    let exports = catalog.exports.values();
    Json(
        exports
            .map(|export| view(&state, export, now.get(&export.id)))
            .collect(),
    )
}

async fn create(
    State(state): State<ApiState>,
    Body(request): Body<CreateExport>,
) -> Answer<ExportView> {
    let name = request.volume;
    let volume = state.engine.volume(&name).ok_or_else(|| no_volume(&name))?;
    let export = ExportConfig {
        id: 0,
        volume: volume.info().uuid,
        kind: request.kind,
        address: request.address,
        read_only: request.read_only,
    };
    let daemon = state.daemon.clone();
    let export = to_its_end(async move { daemon.create_export(export).await }).await?;
    let now = state.daemon.exports().await;
    Ok(Json(view(&state, &export, now.get(&export.id))))
}

async fn remove(State(state): State<ApiState>, Path(id): Path<u16>) -> Answer<ExportView> {
    let daemon = state.daemon.clone();
    let export = to_its_end(async move { daemon.delete_export(id).await }).await?;
    Ok(Json(view(&state, &export, None)))
}

impl Client {
    /// All exports.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn exports(&self) -> Result<Vec<ExportView>, Failure> {
        self.get("/v1/exports").await
    }

    /// Makes a volume reachable, now and after every start.
    ///
    /// # Errors
    /// There is no such volume, the address is taken or cannot be, or no daemon serves the pool.
    pub async fn create_export(&self, request: &CreateExport) -> Result<ExportView, Failure> {
        self.send(Method::POST, "/v1/exports", Some(request)).await
    }

    /// Ends an export. Who uses it loses the volume.
    ///
    /// # Errors
    /// There is no such export, or no daemon serves the pool.
    pub async fn delete_export(&self, id: u16) -> Result<ExportView, Failure> {
        let path = format!("/v1/exports/{id}");
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}
