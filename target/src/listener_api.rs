//! The part of the control interface that is about listeners.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/listeners` | list of [`ListenerView`] |
//! | `POST /v1/listeners` with [`AddListener`] | [`ListenerView`] |
//! | `PATCH /v1/listeners/ID` with [`SetListener`] | [`ListenerView`] |
//! | `DELETE /v1/listeners/ID` | the [`ListenerView`] that it was |

use std::collections::BTreeMap;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::routing::{get, patch};
use axum::{Json, Router};
use fabric::{TlsMode, TransportAddress};
use nvme::ana::AnaState;
use serde::{Deserialize, Serialize};

use crate::api::{ApiState, malformed};
use crate::catalog::{self, PortConfig};
use crate::errors::Failure;
use crate::listeners::PortChange;

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
    /// Whether hosts come by TLS.
    #[serde(with = "catalog::text")]
    pub tls: TlsMode,
    /// The ANA groups that it does not reach best.
    pub ana: BTreeMap<u32, AnaState>,
}

impl ListenerView {
    pub(crate) fn new(port: &PortConfig) -> Self {
        Self {
            id: port.id,
            address: port.address,
            kept: !port.is_transient,
            tls: port.tls,
            ana: port.ana.clone(),
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
    /// As [`SetListener::tls`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// As [`SetListener::ana`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ana: BTreeMap<u32, AnaState>,
}

/// What changes of a listener; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetListener {
    /// Whether hosts come by TLS: `off`, `allowed` or `required`. Queues that are there go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// How it reaches the namespaces of ANA groups, each 1 to 128.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ana: BTreeMap<u32, AnaState>,
}

fn change(tls: Option<String>, ana: BTreeMap<u32, AnaState>) -> Result<PortChange, Failure> {
    let parse = |text: String| {
        let mode = text.parse::<TlsMode>();
        mode.map_err(|error| Failure::invalid(error.to_string()))
    };
    Ok(PortChange {
        tls: tls.map(parse).transpose()?,
        ana,
    })
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/listeners", get(list).post(add))
        .route("/v1/listeners/{id}", patch(set).delete(remove))
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
        let change = change(request.tls, request.ana)?;
        let listeners = &state.listeners;
        listeners
            .add(target, control, request.address, change)
            .await
    };
    let port = to_its_end(work).await?;
    Ok(Json(ListenerView::new(&port)))
}

async fn set(
    State(state): State<ApiState>,
    Path(id): Path<u16>,
    body: Result<Json<SetListener>, JsonRejection>,
) -> Result<Json<ListenerView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let change = change(request.tls, request.ana)?;
    let work = async move {
        let (target, control) = (state.target.clone(), &state.control);
        state.listeners.set(target, control, id, change).await
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
