//! The part of the control interface that is about subsystems, their namespaces and hosts, and
//! referrals.
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
//! | `POST /v1/subsystems/NQN/namespaces` with [`AttachNamespace`] | [`NamespaceView`] |
//! | `PATCH /v1/subsystems/NQN/namespaces/NSID` with [`SetNamespace`] | [`NamespaceView`] |
//! | `DELETE /v1/subsystems/NQN/namespaces/NSID` | the [`NamespaceView`] that it was |
//! | `GET /v1/referrals` | list of [`ReferralView`] |
//! | `POST /v1/referrals` with [`AddReferral`] | [`ReferralView`] |
//! | `DELETE /v1/referrals/ID` | the [`ReferralView`] that it was |

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use dedup::{Engine, ErrorKind};
use fabric::TransportAddress;
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::api::{ApiState, malformed};
use crate::catalog::{
    self, Catalog, NamespaceConfig, Referral, SubsystemConfig, WriteProtect, no_namespace,
};
use crate::errors::Failure;

/// A subsystem as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemView {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number.
    pub serial: String,
    /// Every host may connect, whatever the list says.
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
    /// Whether and how long it takes no writes.
    pub write_protect: WriteProtect,
    /// Its ANA group.
    pub ana_group: u32,
    /// The hosts that see it; `null` is every host that may connect to the subsystem.
    pub hosts: Option<BTreeSet<Nqn>>,
}

/// What a subsystem is created from.
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

/// What changes of a subsystem; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetSubsystem {
    /// Every host may connect, whatever the list says.
    #[serde(default)]
    pub allow_any_host: Option<bool>,
    /// Hosts may make, attach, detach and delete namespaces.
    #[serde(default)]
    pub namespace_management: Option<bool>,
}

/// A host for a subsystem's list; from the first one on, hosts that are not on it may not connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowHost {
    /// Its name.
    pub nqn: Nqn,
}

/// What a namespace is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachNamespace {
    /// The volume's name.
    pub volume: String,
    /// Its identifier; without it the lowest free one.
    #[serde(default)]
    pub nsid: Option<u32>,
    /// Take it out of all other subsystems at the same moment.
    #[serde(default, rename = "move")]
    pub moves: bool,
    /// The rest, where it is to be another than that of a new namespace.
    #[serde(flatten)]
    pub set: SetNamespace,
}

/// What changes of a namespace; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetNamespace {
    /// Several controllers may use it at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Whether and how long it takes no writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_protect: Option<WriteProtect>,
    /// Its ANA group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// The hosts that see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Mask>,
}

/// Who sees a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// Every host that may connect to the subsystem.
    All,
    /// These hosts.
    Only(BTreeSet<Nqn>),
}

/// Another discovery service as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferralView {
    /// Its number.
    pub id: u16,
    /// Where it listens.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
    /// The name of its discovery subsystem.
    pub nqn: Nqn,
}

/// Another discovery service that hosts are told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddReferral {
    /// Where it listens.
    #[serde(with = "catalog::text")]
    pub address: TransportAddress,
    /// The name of its discovery subsystem; without it the well-known one.
    #[serde(default)]
    pub nqn: Option<Nqn>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let namespace = "/v1/subsystems/{nqn}/namespaces/{nsid}";
    Router::new()
        .route("/v1/subsystems", get(list).post(create))
        .route(
            "/v1/subsystems/{nqn}",
            get(show).patch(set).delete(delete_subsystem),
        )
        .route("/v1/subsystems/{nqn}/hosts", post(allow))
        .route("/v1/subsystems/{nqn}/hosts/{host}", delete(disallow))
        .route("/v1/subsystems/{nqn}/namespaces", post(attach))
        .route(namespace, delete(detach).patch(set_namespace))
        .route("/v1/referrals", get(referrals).post(add_referral))
        .route("/v1/referrals/{id}", delete(remove_referral))
}

/// Changes the configuration on the control reactor. It runs to its end even if the client goes away.
pub(crate) async fn change<T: Send + 'static>(
    state: &ApiState,
    change: impl FnOnce(&mut Catalog) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let target = state.target.clone();
    let work = move || async move { target.change(change).await };
    state.control.spawn(work).await?
}

/// A name out of a request.
pub(crate) fn parse_nqn(text: &str) -> Result<Nqn, Failure> {
    text.parse()
        .map_err(|e| Failure::invalid(format!("'{text}' is no NQN: {e}")))
}

/// Refuses a name that somebody gives for the first time and that is none by the specification: a slip of the pen
/// would admit nobody, or nobody would be found under it.
pub(crate) fn check_new<'a>(names: impl IntoIterator<Item = &'a Nqn>) -> Result<(), Failure> {
    for nqn in names {
        let wrong = |e| Failure::invalid(format!("'{nqn}' is no name: {e}"));
        nqn.check_form().map_err(wrong)?;
    }
    Ok(())
}

fn volume_name(engine: &Engine, uuid: Uuid) -> String {
    let volumes = engine.volumes();
    let volume = volumes.into_iter().find(|info| info.uuid == uuid);
    volume.map_or_else(String::new, |info| info.name)
}

fn namespace_view(
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
            .map(|(nsid, config)| namespace_view(&state.engine, &subsystem.nqn, *nsid, config))
            .collect(),
        controllers: live.map_or(0, |live| live.controller_count()),
    }
}

fn view_of(state: &ApiState, nqn: &Nqn) -> Result<Json<SubsystemView>, Failure> {
    let catalog = state.target.catalog();
    Ok(Json(view(state, catalog.subsystem(nqn)?)))
}

/// Changes a subsystem, and shows what it is then.
async fn change_one(
    state: &ApiState,
    nqn: Nqn,
    make: impl FnOnce(&mut SubsystemConfig) -> Result<(), Failure> + Send + 'static,
) -> Result<Json<SubsystemView>, Failure> {
    let name = nqn.clone();
    change(state, move |catalog| make(catalog.subsystem_mut(&name)?)).await?;
    view_of(state, &nqn)
}

fn namespace_view_of(
    state: &ApiState,
    nqn: &Nqn,
    nsid: u32,
) -> Result<Json<NamespaceView>, Failure> {
    let catalog = state.target.catalog();
    let subsystem = catalog.subsystem(nqn)?;
    let namespace = subsystem
        .namespaces
        .get(&nsid)
        .ok_or_else(|| no_namespace(nqn, nsid))?;
    Ok(Json(namespace_view(&state.engine, nqn, nsid, namespace)))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<SubsystemView>> {
    let catalog = state.target.catalog();
    let all = catalog.subsystems.values();
    Json(all.map(|subsystem| view(&state, subsystem)).collect())
}

async fn show(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
) -> Result<Json<SubsystemView>, Failure> {
    view_of(&state, &parse_nqn(&nqn)?)
}

async fn create(
    State(state): State<ApiState>,
    body: Result<Json<CreateSubsystem>, JsonRejection>,
) -> Result<Json<SubsystemView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
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
    body: Result<Json<SetSubsystem>, JsonRejection>,
) -> Result<Json<SubsystemView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
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
) -> Result<Json<SubsystemView>, Failure> {
    let nqn = parse_nqn(&nqn)?;
    let before = view_of(&state, &nqn)?;
    change(&state, move |catalog| catalog.delete_subsystem(&nqn)).await?;
    Ok(before)
}

async fn allow(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    body: Result<Json<AllowHost>, JsonRejection>,
) -> Result<Json<SubsystemView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
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
) -> Result<Json<SubsystemView>, Failure> {
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

fn apply(set: SetNamespace, namespace: &mut NamespaceConfig) -> Result<(), Failure> {
    if let Some(shared) = set.shared {
        namespace.shared = shared;
    }
    if let Some(to) = set.write_protect {
        if namespace.write_protect == WriteProtect::Permanent && to != WriteProtect::Permanent {
            return Err(Failure::invalid(
                "the namespace is write protected for good: attach its volume anew where it may be written",
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
    body: Result<Json<AttachNamespace>, JsonRejection>,
) -> Result<Json<NamespaceView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let nqn = parse_nqn(&nqn)?;
    let volume = state
        .engine
        .volume(&request.volume)
        .ok_or_else(|| crate::api::no_volume(&request.volume))?;
    let mut namespace = NamespaceConfig::new(volume.info().uuid);
    apply(request.set, &mut namespace)?;
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
    namespace_view_of(&state, &nqn, nsid)
}

async fn set_namespace(
    State(state): State<ApiState>,
    Path((nqn, nsid)): Path<(String, u32)>,
    body: Result<Json<SetNamespace>, JsonRejection>,
) -> Result<Json<NamespaceView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let nqn = parse_nqn(&nqn)?;
    let name = nqn.clone();
    change(&state, move |catalog| {
        apply(request, catalog.namespace_mut(&name, nsid)?)
    })
    .await?;
    namespace_view_of(&state, &nqn, nsid)
}

async fn detach(
    State(state): State<ApiState>,
    Path((nqn, nsid)): Path<(String, u32)>,
) -> Result<Json<NamespaceView>, Failure> {
    let nqn = parse_nqn(&nqn)?;
    let before = namespace_view_of(&state, &nqn, nsid)?;
    change(&state, move |catalog| catalog.detach(&nqn, nsid)).await?;
    Ok(before)
}

fn referral_view(referral: &Referral) -> ReferralView {
    ReferralView {
        id: referral.id,
        address: referral.address,
        nqn: referral.nqn.clone(),
    }
}

async fn referrals(State(state): State<ApiState>) -> Json<Vec<ReferralView>> {
    let catalog = state.target.catalog();
    let all = catalog.referrals.values();
    Json(all.map(|referral| referral_view(referral)).collect())
}

async fn add_referral(
    State(state): State<ApiState>,
    body: Result<Json<AddReferral>, JsonRejection>,
) -> Result<Json<ReferralView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    check_new(&request.nqn)?;
    let nqn = match request.nqn {
        Some(nqn) => nqn,
        None => parse_nqn(nvme::nqn::DISCOVERY)?,
    };
    change(&state, move |catalog| {
        let known = catalog.referrals.values();
        if known.into_iter().any(|r| r.address == request.address) {
            return Err(Failure::invalid(format!(
                "there is a referral to '{}' already",
                request.address
            )));
        }
        let free = (1..=u16::MAX).find(|id| !catalog.referrals.contains_key(id));
        let id = free.ok_or_else(|| Failure::invalid("there are too many referrals"))?;
        let referral = Referral {
            id,
            address: request.address,
            nqn,
        };
        let view = referral_view(&referral);
        catalog.referrals.insert(id, Arc::new(referral));
        Ok(view)
    })
    .await
    .map(Json)
}

async fn remove_referral(
    State(state): State<ApiState>,
    Path(id): Path<u16>,
) -> Result<Json<ReferralView>, Failure> {
    change(&state, move |catalog| {
        let gone = catalog.referrals.remove(&id).ok_or_else(|| {
            Failure::new(
                ErrorKind::NotFound,
                format!("there is no referral {id}: `onefold referral list` shows those there are"),
            )
        })?;
        Ok(referral_view(&gone))
    })
    .await
    .map(Json)
}
