//! Namespaces: volumes as subsystems show them.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/subsystems/NQN/namespaces` with [`AttachNamespace`] | [`NamespaceView`] |
//! | `PATCH /v1/subsystems/NQN/namespaces/NSID` with [`SetNamespace`] | [`NamespaceView`] |
//! | `DELETE /v1/subsystems/NQN/namespaces/NSID` | the [`NamespaceView`] that it was |

use std::collections::BTreeSet;

use axum::extract::State;
use axum::routing::{delete, post};
use axum::{Json, Router};
use dedup::Engine;
use hyper::Method;
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use subsystem::catalog::{NamespaceConfig, WriteProtect, no_namespace};
use subsystem::errors::Failure;
use subsystem::target::volumes::no_volume;
use uuid::Uuid;

use crate::client::{Client, subsystem_path};
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, change, check_new, parse_nqn};

/// A namespace as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceView {
    /// The subsystem's name.
    pub subsystem: Nqn,
    /// Its identifier there.
    pub nsid: u32,
    /// The volume's name.
    pub volume: String,
    /// The volume's identity, which hosts see as UUID and NGUID.
    pub uuid: Uuid,
    /// The EUI64 that hosts see: 16 hexadecimal digits, zeros for none.
    pub eui64: String,
    /// Several controllers may use it at a time.
    pub shared: bool,
    /// Its write protection.
    pub write_protect: WriteProtect,
    /// Its ANA group.
    pub ana_group: u32,
    /// The hosts that see it; `null` is every host that may connect to the subsystem.
    pub hosts: Option<BTreeSet<Nqn>>,
}

/// A new namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachNamespace {
    /// The volume's name.
    pub volume: String,
    /// Its identifier; without it the lowest free one.
    #[serde(default)]
    pub nsid: Option<u32>,
    /// Detach it from all other subsystems at the same moment.
    #[serde(default, rename = "move")]
    pub moves: bool,
    /// Settings that differ from the defaults.
    #[serde(flatten)]
    pub set: SetNamespace,
}

/// A change of a namespace. Fields that are left out stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetNamespace {
    /// Several controllers may use it at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Its write protection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_protect: Option<WriteProtect>,
    /// Its ANA group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// The hosts that see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Mask>,
}

/// The hosts that see a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// Every host that may connect to the subsystem.
    All,
    /// These hosts.
    Only(BTreeSet<Nqn>),
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/subsystems/{nqn}/namespaces", post(attach))
        .route(
            "/v1/subsystems/{nqn}/namespaces/{nsid}",
            delete(detach).patch(set),
        )
}

fn volume_name(engine: &Engine, uuid: Uuid) -> String {
    let volumes = [engine.volumes(), engine.snapshots()].concat();
    let volume = volumes.into_iter().find(|info| info.uuid == uuid);
    volume.map_or_else(String::new, |info| info.name)
}

pub(crate) fn view(
    engine: &Engine,
    nqn: &Nqn,
    nsid: u32,
    namespace: &NamespaceConfig,
) -> NamespaceView {
    NamespaceView {
        subsystem: nqn.clone(),
        nsid,
        volume: volume_name(engine, namespace.volume),
        uuid: namespace.volume,
        eui64: format!("{:016x}", u64::from_be_bytes(namespace.eui64_bytes())),
        shared: namespace.shared,
        write_protect: namespace.write_protect,
        ana_group: namespace.ana_group,
        hosts: namespace.hosts.clone(),
    }
}

fn view_of(state: &ApiState, nqn: &Nqn, nsid: u32) -> Answer<NamespaceView> {
    let catalog = state.target.catalog();
    let subsystem = catalog.subsystem(nqn)?;
    let namespace = subsystem
        .namespaces
        .get(&nsid)
        .ok_or_else(|| no_namespace(nqn, nsid))?;
    Ok(Json(view(&state.engine, nqn, nsid, namespace)))
}

fn apply(set: SetNamespace, namespace: &mut NamespaceConfig) -> Result<(), Failure> {
    if let Some(shared) = set.shared {
        namespace.shared = shared;
    }
    if let Some(to) = set.write_protect {
        if namespace.write_protect == WriteProtect::Permanent && to != WriteProtect::Permanent {
            return Err(Failure::invalid(
                "the namespace is permanently write protected: detach it and attach its volume again",
            ));
        }
        namespace.write_protect = to;
    }
    if let Some(group) = set.ana_group {
        namespace.ana_group = group;
    }
    match set.hosts {
        None => {}
        Some(Mask::All) => namespace.hosts = None,
        Some(Mask::Only(hosts)) => {
            check_new(&hosts)?;
            namespace.hosts = Some(hosts);
        }
    }
    Ok(())
}

async fn attach(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    Body(request): Body<AttachNamespace>,
) -> Answer<NamespaceView> {
    let nqn = parse_nqn(&nqn)?;
    let volume = state
        .engine
        .volume(&request.volume)
        .ok_or_else(|| no_volume(&request.volume))?;
    state.target.check_complete(&volume.info())?;
    let mut namespace = NamespaceConfig::new(volume.info().uuid);
    apply(request.set, &mut namespace)?;
    if !volume.is_writable() {
        namespace.write_protect = WriteProtect::Permanent; // a snapshot stays as it is
    }
    let name = nqn.clone();
    let nsid = change(&state, move |catalog| {
        let volume = namespace.volume;
        let nsid = catalog.attach(&name, request.nsid, namespace)?;
        if request.moves {
            catalog.detach_elsewhere(&name, volume)?;
        }
        Ok(nsid)
    })
    .await?;
    view_of(&state, &nqn, nsid)
}

async fn set(
    State(state): State<ApiState>,
    Path((nqn, nsid)): Path<(String, u32)>,
    Body(request): Body<SetNamespace>,
) -> Answer<NamespaceView> {
    let nqn = parse_nqn(&nqn)?;
    let name = nqn.clone();
    change(&state, move |catalog| {
        apply(request, catalog.namespace_mut(&name, nsid)?)
    })
    .await?;
    view_of(&state, &nqn, nsid)
}

async fn detach(
    State(state): State<ApiState>,
    Path((nqn, nsid)): Path<(String, u32)>,
) -> Answer<NamespaceView> {
    let nqn = parse_nqn(&nqn)?;
    let before = view_of(&state, &nqn, nsid)?;
    change(&state, move |catalog| catalog.detach(&nqn, nsid)).await?;
    Ok(before)
}

impl Client {
    /// Attaches a volume to a subsystem as a namespace.
    ///
    /// # Errors
    /// The daemon refuses (no such subsystem or volume, identifier taken), or no daemon serves the pool.
    pub async fn attach_namespace(
        &self,
        nqn: &Nqn,
        request: &AttachNamespace,
    ) -> Result<NamespaceView, Failure> {
        let path = format!("{}/namespaces", subsystem_path(nqn));
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Changes a namespace.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_namespace(
        &self,
        nqn: &Nqn,
        nsid: u32,
        request: &SetNamespace,
    ) -> Result<NamespaceView, Failure> {
        let path = format!("{}/namespaces/{nsid}", subsystem_path(nqn));
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Detaches a namespace from a subsystem; the volume stays. Returns what it was.
    ///
    /// # Errors
    /// There is no such subsystem or namespace, or no daemon serves the pool.
    pub async fn detach_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<NamespaceView, Failure> {
        let path = format!("{}/namespaces/{nsid}", subsystem_path(nqn));
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}
