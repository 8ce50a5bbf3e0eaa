//! The ANA states of listeners.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/ana` | list of [`AnaView`] |
//! | `PUT /v1/ana` with [`SetAna`] | the [`AnaView`] of that listener, when the state is in force |

use std::collections::BTreeMap;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use hyper::Method;
use nvme::ana::AnaState;
use serde::{Deserialize, Serialize};
use subsystem::catalog::PortConfig;
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::Body;
use crate::server::{ApiState, change};

/// The states of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnaView {
    /// The listener's identifier.
    pub listener: u16,
    /// Its address.
    pub address: String,
    /// The groups that are not optimized.
    pub groups: BTreeMap<u32, AnaState>,
}

impl AnaView {
    fn new(port: &PortConfig) -> Self {
        Self {
            listener: port.id,
            address: port.address.to_string(),
            groups: port.ana.clone(),
        }
    }
}

/// A state for a group on a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAna {
    /// The listener: its identifier or its address.
    pub listener: String,
    /// The group: 1 to 128.
    pub group: u32,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: AnaState,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/ana", get(list).put(set))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<AnaView>> {
    let catalog = state.target.catalog();
    let ports = catalog.ports.values();
    Json(ports.map(|port| AnaView::new(port)).collect())
}

async fn set(State(state): State<ApiState>, Body(request): Body<SetAna>) -> Answer<AnaView> {
    let view = change(&state, move |catalog| {
        let port = catalog.set_ana(&request.listener, request.group, request.state)?;
        Ok(AnaView::new(port))
    })
    .await?;
    Ok(Json(view))
}

impl Client {
    /// The listeners, and the ANA groups that are not optimized there.
    ///
    /// # Errors
    /// No daemon serves the pool.
    pub async fn ana(&self) -> Result<Vec<AnaView>, Failure> {
        self.get("/v1/ana").await
    }

    /// Sets the ANA state of a group at a listener.
    ///
    /// # Errors
    /// There is no such listener or group, or no daemon serves the pool.
    pub async fn set_ana(&self, request: &SetAna) -> Result<AnaView, Failure> {
        self.send(Method::PUT, "/v1/ana", Some(request)).await
    }
}
