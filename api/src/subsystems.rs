//! Subsystems, and the hosts that may use them.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/subsystems` | list of [`SubsystemView`] |
//! | `POST /v1/subsystems` with [`CreateSubsystem`] | [`SubsystemView`] |
//! | `GET /v1/subsystems/NQN` | [`SubsystemView`] |
//! | `PATCH /v1/subsystems/NQN` with [`SetSubsystem`] | [`SubsystemView`] |
//! | `DELETE /v1/subsystems/NQN` | the [`SubsystemView`] that it was |
//! | `POST /v1/subsystems/NQN/hosts` with [`AllowHost`] | [`SubsystemView`] |
//! | `DELETE /v1/subsystems/NQN/hosts/HOSTNQN` | [`SubsystemView`] |

use std::collections::BTreeSet;

use axum::extract::State;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use dedup::ErrorKind;
use hyper::Method;
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use subsystem::catalog::SubsystemConfig;
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::client::{Client, segment, subsystem_path};
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::namespaces::{self, NamespaceView};
use crate::server::{ApiState, change, check_new, parse_nqn};

/// A subsystem as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemView {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number.
    pub serial: String,
    /// Every host may connect, on the list or not.
    pub allow_any_host: bool,
    /// Hosts that may connect.
    pub hosts: BTreeSet<Nqn>,
    /// Hosts may make, attach, detach and delete namespaces.
    pub namespace_management: bool,
    /// Its namespaces, in order.
    pub namespaces: Vec<NamespaceView>,
    /// Controllers that it has now.
    pub controllers: usize,
}

/// A new subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSubsystem {
    /// Its name.
    pub nqn: Nqn,
    /// 1 to 20 printable ASCII characters; without it a random one is made.
    #[serde(default)]
    pub serial: Option<String>,
    /// Hosts may make, attach, detach and delete namespaces.
    #[serde(default)]
    pub namespace_management: bool,
    /// Hosts that may connect; an empty list means all.
    #[serde(default)]
    pub hosts: BTreeSet<Nqn>,
}

/// A change of a subsystem. Fields that are left out stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetSubsystem {
    /// Every host may connect, on the list or not.
    #[serde(default)]
    pub allow_any_host: Option<bool>,
    /// Hosts may make, attach, detach and delete namespaces.
    #[serde(default)]
    pub namespace_management: Option<bool>,
}

/// A host for a subsystem's list. As soon as the list has one, hosts that are not on it may not connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowHost {
    /// Its name.
    pub nqn: Nqn,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/subsystems", get(list).post(create))
        .route(
            "/v1/subsystems/{nqn}",
            get(show).patch(set).delete(delete_subsystem),
        )
        .route("/v1/subsystems/{nqn}/hosts", post(allow))
        .route("/v1/subsystems/{nqn}/hosts/{host}", delete(disallow))
}

fn view(state: &ApiState, subsystem: &SubsystemConfig) -> SubsystemView {
    let live = state.target.subsystem(&subsystem.nqn);
    SubsystemView {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone(),
        allow_any_host: subsystem.allow_any_host,
        hosts: subsystem.hosts.clone(),
        namespace_management: subsystem.namespace_management,
        namespaces: subsystem
            .namespaces
            .iter()
            .map(|(nsid, config)| namespaces::view(&state.engine, &subsystem.nqn, *nsid, config))
            .collect(),
        controllers: live.map_or(0, |live| live.controller_count()),
    }
}

fn view_of(state: &ApiState, nqn: &Nqn) -> Answer<SubsystemView> {
    let catalog = state.target.catalog();
    Ok(Json(view(state, catalog.subsystem(nqn)?)))
}

/// Changes a subsystem, and shows what it is then.
async fn change_one(
    state: &ApiState,
    nqn: Nqn,
    make: impl FnOnce(&mut SubsystemConfig) -> Result<(), Failure> + Send + 'static,
) -> Answer<SubsystemView> {
    let name = nqn.clone();
    change(state, move |catalog| make(catalog.subsystem_mut(&name)?)).await?;
    view_of(state, &nqn)
}

async fn list(State(state): State<ApiState>) -> Json<Vec<SubsystemView>> {
    let catalog = state.target.catalog();
    let all = catalog.subsystems.values();
    Json(all.map(|subsystem| view(&state, subsystem)).collect())
}

async fn show(State(state): State<ApiState>, Path(nqn): Path<String>) -> Answer<SubsystemView> {
    view_of(&state, &parse_nqn(&nqn)?)
}

async fn create(
    State(state): State<ApiState>,
    Body(request): Body<CreateSubsystem>,
) -> Answer<SubsystemView> {
    check_new(request.hosts.iter().chain([&request.nqn]))?;
    let nqn = request.nqn.clone();
    let serial = request.serial.unwrap_or_else(random_serial);
    change(&state, move |catalog| {
        let subsystem = SubsystemConfig {
            allow_any_host: request.hosts.is_empty(),
            hosts: request.hosts,
            namespace_management: request.namespace_management,
            ..SubsystemConfig::new(request.nqn, serial)
        };
        catalog.create_subsystem(subsystem)
    })
    .await?;
    view_of(&state, &nqn)
}

/// Twenty random hexadecimal digits.
fn random_serial() -> String {
    let mut serial = Uuid::new_v4().simple().to_string();
    serial.truncate(20);
    serial
}

async fn set(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    Body(request): Body<SetSubsystem>,
) -> Answer<SubsystemView> {
    change_one(&state, parse_nqn(&nqn)?, move |subsystem| {
        if let Some(any) = request.allow_any_host {
            subsystem.allow_any_host = any;
        }
        if let Some(may) = request.namespace_management {
            subsystem.namespace_management = may;
        }
        Ok(())
    })
    .await
}

async fn delete_subsystem(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
) -> Answer<SubsystemView> {
    let nqn = parse_nqn(&nqn)?;
    let before = view_of(&state, &nqn)?;
    change(&state, move |catalog| catalog.delete_subsystem(&nqn)).await?;
    Ok(before)
}

async fn allow(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    Body(request): Body<AllowHost>,
) -> Answer<SubsystemView> {
    check_new([&request.nqn])?;
    change_one(&state, parse_nqn(&nqn)?, move |subsystem| {
        subsystem.hosts.insert(request.nqn);
        subsystem.allow_any_host = false;
        Ok(())
    })
    .await
}

async fn disallow(
    State(state): State<ApiState>,
    Path((nqn, host)): Path<(String, String)>,
) -> Answer<SubsystemView> {
    let host = parse_nqn(&host)?;
    change_one(&state, parse_nqn(&nqn)?, move |subsystem| {
        let name = &subsystem.nqn;
        match subsystem.hosts.remove(&host) {
            true => Ok(()),
            false => Err(Failure::new(
                ErrorKind::NotFound,
                format!(
                    "host '{host}' is not on the list of subsystem '{name}': `onefold subsystem show {name}` shows it"
                ),
            )),
        }
    })
    .await
}

impl Client {
    /// All subsystems.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn subsystems(&self) -> Result<Vec<SubsystemView>, Failure> {
        self.get("/v1/subsystems").await
    }

    /// One subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or no daemon serves the pool.
    pub async fn subsystem(&self, nqn: &Nqn) -> Result<SubsystemView, Failure> {
        self.get(&subsystem_path(nqn)).await
    }

    /// Creates a subsystem.
    ///
    /// # Errors
    /// The daemon refuses (name taken, bounds), or no daemon serves the pool.
    pub async fn create_subsystem(
        &self,
        request: &CreateSubsystem,
    ) -> Result<SubsystemView, Failure> {
        self.send(Method::POST, "/v1/subsystems", Some(request))
            .await
    }

    /// Changes a subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or no daemon serves the pool.
    pub async fn set_subsystem(
        &self,
        nqn: &Nqn,
        request: &SetSubsystem,
    ) -> Result<SubsystemView, Failure> {
        self.send(Method::PATCH, &subsystem_path(nqn), Some(request))
            .await
    }

    /// Deletes a subsystem; its volumes stay. Returns what it was.
    ///
    /// # Errors
    /// There is no such subsystem, it is the default one, or no daemon serves the pool.
    pub async fn delete_subsystem(&self, nqn: &Nqn) -> Result<SubsystemView, Failure> {
        self.send(Method::DELETE, &subsystem_path(nqn), None::<&()>)
            .await
    }

    /// Adds a host to a subsystem's list.
    ///
    /// # Errors
    /// There is no such subsystem, or no daemon serves the pool.
    pub async fn allow_host(&self, nqn: &Nqn, host: &Nqn) -> Result<SubsystemView, Failure> {
        let path = format!("{}/hosts", subsystem_path(nqn));
        let request = AllowHost { nqn: host.clone() };
        self.send(Method::POST, &path, Some(&request)).await
    }

    /// Removes a host from a subsystem's list.
    ///
    /// # Errors
    /// There is no such subsystem or host, or no daemon serves the pool.
    pub async fn disallow_host(&self, nqn: &Nqn, host: &Nqn) -> Result<SubsystemView, Failure> {
        let path = format!("{}/hosts/{}", subsystem_path(nqn), segment(host.as_str()));
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}
