//! The part of the control interface that is about paths.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/ana` | list of [`AnaView`] |
//! | `PUT /v1/ana` with [`SetAna`] | the [`AnaView`] of that listener, when the state is in force |

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::get;
use axum::{Json, Router};
use dedup::ErrorKind;
use nvme::ana::AnaState;
use serde::{Deserialize, Serialize};

use crate::api::{ApiState, malformed};
use crate::catalog::{Catalog, PortConfig};
use crate::errors::Failure;

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

async fn set(
    State(state): State<ApiState>,
    body: Result<Json<SetAna>, JsonRejection>,
) -> Result<Json<AnaView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let target = state.target.clone();
    let work = move || async move { target.change(|catalog| change(catalog, &request)).await };
    state.control.spawn(work).await?.map(Json)
}

/// Sets a state in the catalog.
///
/// # Errors
/// There is no such group or listener.
pub fn change(catalog: &mut Catalog, request: &SetAna) -> Result<AnaView, Failure> {
    let wanted = request.listener.as_str();
    let is_meant = |port: &PortConfig| {
        wanted.parse() == Ok(port.id) || wanted.parse().is_ok_and(|at| port.address == at)
    };
    let port = catalog.ports.values_mut().find(|port| is_meant(port));
    let port = port.ok_or_else(|| {
        let text =
            format!("there is no listener '{wanted}': `onefold ana list` shows those there are");
        Failure::new(ErrorKind::NotFound, text)
    })?;
    let port = Arc::make_mut(port);
    port.set_ana(request.group, request.state)?;
    Ok(AnaView::new(port))
}
