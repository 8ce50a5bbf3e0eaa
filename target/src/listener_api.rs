//! The part of the control interface that is about listeners.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/listeners` | list of [`ListenerView`] |
//! | `POST /v1/listeners` with [`AddListener`] | [`ListenerView`] |
//! | `DELETE /v1/listeners/ID` | the [`ListenerView`] that it was |

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::routing::{delete, get};
use axum::{Json, Router};
use fabric::TransportAddress;
use serde::{Deserialize, Serialize};

use crate::api::{ApiState, malformed};
use crate::catalog::{self, PortConfig};
use crate::errors::Failure;

/// A listener as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerView {
    /// Its number: PORTID in the discovery log.
    pub id: u16,
    /// Where it listens.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
    /// Whether the pool keeps it; others come from `serve --listen`, or from there being no other.
    pub kept: bool,
}

impl ListenerView {
    fn new(port: &PortConfig) -> Self {
        Self {
            id: port.id,
            address: port.address,
            kept: !port.is_transient,
        }
    }
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddListener {
    /// The address; an unspecified one means all of its family.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/listeners", get(list).post(add))
        .route("/v1/listeners/{id}", delete(remove))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<ListenerView>> {
    let catalog = state.target.catalog();
    let ports = catalog.ports.values();
    Json(ports.map(|port| ListenerView::new(port)).collect())
}

async fn add(
    State(state): State<ApiState>,
    body: Result<Json<AddListener>, JsonRejection>,
) -> Result<Json<ListenerView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let work = async move {
        let (target, control) = (state.target.clone(), &state.control);
        state.listeners.add(target, control, request.address).await
    };
    let port = to_its_end(work).await?;
    Ok(Json(ListenerView::new(&port)))
}

async fn remove(
    State(state): State<ApiState>,
    Path(id): Path<u16>,
) -> Result<Json<ListenerView>, Failure> {
    let work = async move {
        let (target, control) = (state.target.clone(), &state.control);
        state.listeners.remove(target, control, id).await
    };
    let port = to_its_end(work).await?;
    Ok(Json(ListenerView::new(&port)))
}

/// Runs work to its end even if the client goes away.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let joined = tokio::spawn(work).await;
    joined.map_err(|e| Failure::new(dedup::ErrorKind::Internal, e.to_string()))?
}
