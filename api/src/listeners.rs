//! Listeners.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/listeners` | list of [`ListenerView`] |
//! | `POST /v1/listeners` with [`AddListener`] | [`ListenerView`] |
//! | `PATCH /v1/listeners/ID` with [`SetListener`] | [`ListenerView`] |
//! | `DELETE /v1/listeners/ID` | the [`ListenerView`] that it was |

use std::collections::BTreeMap;

use axum::extract::State;
use axum::routing::{get, patch};
use axum::{Json, Router};
use fabric::{TlsMode, TransportAddress};
use hyper::Method;
use nvme::ana::AnaState;
use serde::{Deserialize, Serialize};
use subsystem::catalog::{self, PortChange, PortConfig};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, to_its_end};

/// A listener as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerView {
    /// Its number: PORTID in the discovery log.
    pub id: u16,
    /// Where it listens.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
    /// Whether the pool stores it; others come from `serve --listen`, or are the defaults.
    pub kept: bool,
    /// Whether hosts use TLS.
    #[serde(with = "catalog::text")]
    pub tls: TlsMode,
    /// The ANA groups that are not optimized there.
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

/// A new listener.
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

/// A change of a listener. Fields that are left out stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetListener {
    /// Whether hosts use TLS: `off`, `allowed` or `required`, from the next connection on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// The states of ANA groups, 1 to 128.
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
    Body(request): Body<AddListener>,
) -> Answer<ListenerView> {
    let work = async move {
        let change = change(request.tls, request.ana)?;
        state.daemon.add_listener(request.address, change).await
    };
    let port = to_its_end(work).await?;
    Ok(Json(ListenerView::new(&port)))
}

async fn set(
    State(state): State<ApiState>,
    Path(id): Path<u16>,
    Body(request): Body<SetListener>,
) -> Answer<ListenerView> {
    let change = change(request.tls, request.ana)?;
    let work = async move { state.daemon.set_listener(id, change).await };
    let port = to_its_end(work).await?;
    Ok(Json(ListenerView::new(&port)))
}

async fn remove(State(state): State<ApiState>, Path(id): Path<u16>) -> Answer<ListenerView> {
    let work = async move { state.daemon.remove_listener(id).await };
    let port = to_its_end(work).await?;
    Ok(Json(ListenerView::new(&port)))
}

impl Client {
    /// All listeners.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn listeners(&self) -> Result<Vec<ListenerView>, Failure> {
        self.get("/v1/listeners").await
    }

    /// Listens at one more address.
    ///
    /// # Errors
    /// The address is in use, or the daemon's machine does not have it; or no daemon serves the pool.
    pub async fn add_listener(&self, request: &AddListener) -> Result<ListenerView, Failure> {
        self.send(Method::POST, "/v1/listeners", Some(request))
            .await
    }

    /// Changes a listener.
    ///
    /// # Errors
    /// There is no such listener, it cannot be so, or no daemon serves the pool.
    pub async fn set_listener(
        &self,
        id: u16,
        request: &SetListener,
    ) -> Result<ListenerView, Failure> {
        let path = format!("/v1/listeners/{id}");
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Removes a listener.
    ///
    /// # Errors
    /// There is no such listener, or no daemon serves the pool.
    pub async fn remove_listener(&self, id: u16) -> Result<ListenerView, Failure> {
        let path = format!("/v1/listeners/{id}");
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}
