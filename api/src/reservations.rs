//! Reservations.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/volumes/NAME/reservation` | a [`ReservationView`] |
//! | `DELETE /v1/volumes/NAME/reservation` | the same, when reservation and registrations are gone |

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use subsystem::target::volumes::no_volume;
use uuid::Uuid;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::Path;
use crate::server::{ApiState, on_control};
use crate::volumes::volume_path;

/// The reservations of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationView {
    /// The volume.
    pub volume: String,
    /// The type of the reservation in words; `null` when nobody holds one.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// They survive a restart and a loss of power (PTPL).
    pub persistent: bool,
    /// Rises with changes of registrations.
    pub generation: u32,
    /// The hosts that are registered.
    pub registrants: Vec<RegistrantView>,
}

/// A host that is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrantView {
    /// The host identifier (HOSTID).
    pub host_id: Uuid,
    /// The names under which that host is attached now.
    pub hostnqns: Vec<String>,
    /// Its key: `0x` and 16 hexadecimal digits.
    pub key: String,
    /// It holds the reservation.
    pub is_holder: bool,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/volumes/{name}/reservation", get(show).delete(clear))
}

async fn show(State(state): State<ApiState>, Path(name): Path<String>) -> Answer<ReservationView> {
    Ok(Json(view(&state, &name)?))
}

async fn clear(State(state): State<ApiState>, Path(name): Path<String>) -> Answer<ReservationView> {
    let volume = identity(&state, &name)?;
    let target = state.target.clone();
    let work = move || async move { target.clear_reservations(volume).await };
    on_control(&state, work).await?;
    tracing::info!(volume = name, "reservations cleared by the target's owner");
    Ok(Json(view(&state, &name)?))
}

fn identity(state: &ApiState, name: &str) -> Result<Uuid, Failure> {
    let volume = state.engine.volume(name).ok_or_else(|| no_volume(name))?;
    Ok(volume.info().uuid)
}

fn view(state: &ApiState, name: &str) -> Result<ReservationView, Failure> {
    let volume = identity(state, name)?;
    let report = state.target.reservations_of(volume).report();
    let controllers = state.target.controllers();
    let names = |host: [u8; 16]| {
        let mut names: Vec<String> = controllers
            .iter()
            .filter(|controller| controller.is_admitted() && !controller.is_ending())
            .filter(|controller| controller.host.id == host)
            .map(|controller| controller.host.nqn.to_string())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    Ok(ReservationView {
        volume: name.to_owned(),
        kind: report.kind.map(|kind| kind.name().to_owned()),
        persistent: report.persist,
        generation: report.generation,
        registrants: report
            .registrants
            .iter()
            .map(|one| RegistrantView {
                host_id: Uuid::from_bytes(one.host),
                hostnqns: names(one.host),
                key: format!("{:#018x}", one.key),
                is_holder: one.is_holder,
            })
            .collect(),
    })
}

impl Client {
    /// The reservations of a volume.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn reservation(&self, volume: &str) -> Result<ReservationView, Failure> {
        let path = volume_path(volume)? + "/reservation";
        self.get(&path).await
    }

    /// Removes reservation and registrations of a volume.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn clear_reservation(&self, volume: &str) -> Result<ReservationView, Failure> {
        let path = volume_path(volume)? + "/reservation";
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}
