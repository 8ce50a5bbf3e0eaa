//! Snapshots, clones and rollbacks.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/snapshots` | list of [`SnapshotView`] |
//! | `POST /v1/snapshots` with [`CreateSnapshots`] | list of [`SnapshotView`] |
//! | `DELETE /v1/snapshots/VOLUME@NAME` | the [`SnapshotView`] that it was |
//! | `POST /v1/snapshots/VOLUME@NAME/rollback` with [`RollBack`] | [`VolumeView`] |
//! | `POST /v1/volumes/VOLUME[@NAME]/clones` with [`CloneVolume`] | list of [`VolumeView`] |
//!
//! Guarantees: snapshots that are asked for together are of one moment, and all of them are taken or none; a rollback is
//! refused while hosts are attached to the volume, unless it is forced.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use dedup::{ErrorKind, Survey, rfc3339};
use hyper::Method;
use meta::VolumeInfo;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use subsystem::target::volumes::Place;
use uuid::Uuid;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, parse_nqn};
use crate::tasks;
use crate::volumes::{CreateVolume, Shown, VolumeView, is_plain, shown, view, volume_path};

/// New volumes of one request at most.
pub const CLONES_MAX: usize = 1024;

/// A snapshot as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotView {
    /// `VOLUME@NAME`.
    pub name: String,
    /// The volume that it was taken of.
    pub volume: String,
    /// When it was taken, in seconds since 1970.
    pub created_at: u64,
    /// The same as a time of RFC 3339, in UTC.
    pub created: String,
    /// Its identity, stable for its life.
    pub uuid: String,
    /// What names its content: the same in all pools to which it was sent.
    #[serde(default)]
    pub content: Uuid,
    /// The volume's size at that time, in bytes.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub lba_bytes: u32,
    /// Physical blocks that it alone refers to, in bytes: what its deletion frees. `null` until a survey counted them.
    pub unique_bytes: Option<u64>,
    /// Physical blocks that it shares with its volume or with others, in bytes. `null` until a survey counted them.
    pub shared_bytes: Option<u64>,
    /// Of these, the ones that its volume, other snapshots of that, or clones refer to. `null` until a survey counted them.
    pub related_bytes: Option<u64>,
    /// Where hosts find it, read-only.
    pub namespaces: Vec<Shown>,
}

impl SnapshotView {
    fn new(
        info: &VolumeInfo,
        content: Uuid,
        namespaces: Vec<Shown>,
        survey: Option<&Survey>,
    ) -> Self {
        let created_at = info.snapshot.map_or(0, |of| of.created);
        let volume = info.name.split('@').next().unwrap_or_default();
        let volumes = survey.map(|survey| survey.volumes.iter());
        let shares = volumes.and_then(|mut all| all.find(|it| it.nsid == info.nsid));
        Self {
            name: info.name.clone(),
            volume: volume.to_owned(),
            created_at,
            created: rfc3339(UNIX_EPOCH + std::time::Duration::from_secs(created_at)),
            uuid: info.uuid.to_string(),
            content,
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            unique_bytes: shares.map(|shares| shares.unique_bytes),
            shared_bytes: shares.map(|shares| shares.shared_bytes),
            related_bytes: shares.map(|shares| shares.related_bytes),
            namespaces,
        }
    }
}

/// Snapshots of one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshots {
    /// Each `VOLUME@NAME`, every volume once; NAME: up to 64 of a-z A-Z 0-9 . _ -
    pub names: Vec<String>,
}

/// A volume goes back to one of its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// Must be set while hosts are attached to the volume: its data change under them.
    #[serde(default)]
    pub force: bool,
}

/// New volumes with the content of another one, or of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneVolume {
    /// Their names, each up to 64 of a-z A-Z 0-9 . _ -
    pub names: Vec<String>,
    /// The subsystem to attach them to; the default one if left out, and none for "none".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/snapshots", get(list).post(create))
        .route("/v1/snapshots/{name}", delete(remove))
        .route("/v1/snapshots/{name}/rollback", post(roll_back))
        .route("/v1/volumes/{name}/clones", post(clone))
}

/// There is no snapshot of that name.
fn no_snapshot(name: &str) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no snapshot '{name}': `onefold snapshot list` shows those there are"),
    )
}

/// The snapshot of that name.
fn find(state: &ApiState, name: &str) -> Result<VolumeInfo, Failure> {
    let mut snapshots = state.engine.snapshots().into_iter();
    snapshots
        .find(|info| info.name == name)
        .ok_or_else(|| no_snapshot(name))
}

fn views(state: &ApiState, infos: &[VolumeInfo]) -> Vec<SnapshotView> {
    let mut shown = shown(&state.target.catalog());
    let survey = state.engine.last_survey();
    let view = |info: &VolumeInfo| {
        let namespaces = shown.remove(&info.uuid).unwrap_or_default();
        let content = state.target.content_of(info.uuid);
        SnapshotView::new(info, content, namespaces, survey.as_ref())
    };
    infos.iter().map(view).collect()
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

async fn list(State(state): State<ApiState>) -> Json<Vec<SnapshotView>> {
    Json(views(&state, &state.engine.snapshots()))
}

/// Takes snapshots of one moment.
pub(crate) async fn take(
    state: &ApiState,
    names: Vec<String>,
    created: u64,
) -> Result<Vec<VolumeInfo>, Failure> {
    let target = state.target.clone();
    let work = move || async move {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        target.take_snapshots(&names, created).await
    };
    state.control.spawn(work).await?
}

async fn create(
    State(state): State<ApiState>,
    Body(request): Body<CreateSnapshots>,
) -> Answer<Vec<SnapshotView>> {
    let made = take(&state, request.names, now()).await?;
    Ok(Json(views(&state, &made)))
}

/// Deletes a snapshot, and the namespaces that show it.
pub(crate) async fn discard(state: &ApiState, name: &str) -> Result<(), Failure> {
    find(state, name)?;
    let (target, snapshot) = (state.target.clone(), name.to_owned());
    let work = move || async move { target.delete_volume(&snapshot).await };
    state.control.spawn(work).await??;
    tasks::follow_deletion(state, name);
    Ok(())
}

async fn remove(State(state): State<ApiState>, Path(name): Path<String>) -> Answer<SnapshotView> {
    let before = views(&state, &[find(&state, &name)?]);
    discard(&state, &name).await?;
    let view = before.into_iter().next();
    Ok(Json(view.ok_or_else(|| no_snapshot(&name))?))
}

/// The hosts that are attached to a subsystem that shows them a volume.
fn attached(state: &ApiState, volume: Uuid) -> Vec<String> {
    let catalog = state.target.catalog();
    let sees = |subsystem: &str, host: &str| {
        let mut all = catalog.subsystems.values();
        let shown = all.find(|it| it.nqn.as_str() == subsystem);
        let mut namespaces = shown.into_iter().flat_map(|it| it.namespaces.values());
        namespaces.any(|namespace| {
            let only = namespace.hosts.as_ref();
            namespace.volume == volume
                && only.is_none_or(|hosts| hosts.iter().any(|it| it.as_str() == host))
        })
    };
    let hosts = state.target.attached_hosts().into_iter();
    let hosts = hosts.filter(|host| sees(&host.subsystem, &host.hostnqn));
    let mut names: Vec<String> = hosts.map(|host| host.hostnqn).collect();
    names.sort();
    names.dedup();
    names
}

async fn roll_back(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<RollBack>,
) -> Answer<VolumeView> {
    find(&state, &name)?;
    let of = name.split('@').next().unwrap_or_default().to_owned();
    let volume = view(&state, &of)?;
    let uuid = volume.uuid.parse().unwrap_or_default();
    // No host sees a volume that waits for the rest of something.
    let hosts = match volume.import {
        None => attached(&state, uuid),
        Some(_) => Vec::new(),
    };
    if !hosts.is_empty() && !request.force {
        return Err(Failure::invalid(format!(
            "volume '{of}' cannot be rolled back to '{name}' while hosts use it, whose caches would not know: detach \
             {} first; --force does it all the same",
            hosts.join(", ")
        ))
        .into());
    }
    let target = state.target.clone();
    let work = move || async move { target.roll_back(&name).await };
    state.control.spawn(work).await??;
    Ok(Json(view(&state, &of)?))
}

async fn clone(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<CloneVolume>,
) -> Answer<Vec<VolumeView>> {
    if request.names.is_empty() || request.names.len() > CLONES_MAX {
        return Err(Failure::invalid(format!(
            "{} clones at once are not possible: name 1 to {CLONES_MAX}",
            request.names.len()
        ))
        .into());
    }
    let place = match request.subsystem.as_deref() {
        None => Place::Default,
        Some(CreateVolume::NO_SUBSYSTEM) => Place::Nowhere,
        Some(nqn) => Place::In {
            nqn: parse_nqn(nqn)?,
            hosts: None,
            shared: true,
        },
    };
    let (target, names) = (state.target.clone(), request.names.clone());
    let work = move || async move { target.clone_volume(&name, &names, &place).await };
    state.control.spawn(work).await??;
    let views = request.names.iter().map(|name| view(&state, name));
    Ok(Json(views.collect::<Result<_, _>>()?))
}

impl Client {
    /// All snapshots, the oldest first.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotView>, Failure> {
        self.get("/v1/snapshots").await
    }

    /// Takes snapshots of one moment.
    ///
    /// # Errors
    /// The daemon refuses (no such volume, a name that is taken), or no daemon serves the pool.
    pub async fn create_snapshots(
        &self,
        request: &CreateSnapshots,
    ) -> Result<Vec<SnapshotView>, Failure> {
        self.send(Method::POST, "/v1/snapshots", Some(request))
            .await
    }

    /// Deletes a snapshot; returns what it was.
    ///
    /// # Errors
    /// There is no such snapshot, or no daemon serves the pool.
    pub async fn delete_snapshot(&self, name: &str) -> Result<SnapshotView, Failure> {
        self.send(Method::DELETE, &snapshot_path(name)?, None::<&()>)
            .await
    }

    /// Gives a volume the content of one of its snapshots.
    ///
    /// # Errors
    /// There is no such snapshot, hosts are attached, or no daemon serves the pool.
    pub async fn roll_back(&self, name: &str, request: &RollBack) -> Result<VolumeView, Failure> {
        let path = format!("{}/rollback", snapshot_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Makes new volumes with the content of a volume, or of a snapshot.
    ///
    /// # Errors
    /// The daemon refuses (nothing of that name, a name that is taken), or no daemon serves the pool.
    pub async fn clone_volume(
        &self,
        name: &str,
        request: &CloneVolume,
    ) -> Result<Vec<VolumeView>, Failure> {
        let path = format!("{}/clones", volume_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }
}

/// The path of a snapshot. Names that a snapshot cannot have never reach the daemon.
fn snapshot_path(name: &str) -> Result<String, Failure> {
    match name.split_once('@') {
        Some((volume, snapshot)) if is_plain(volume) && is_plain(snapshot) => {
            Ok(format!("/v1/snapshots/{name}"))
        }
        _ => Err(Failure::invalid(format!(
            "'{}' cannot be the name of a snapshot: name it VOLUME@NAME, both of a-z A-Z 0-9 . _ -",
            name.chars().take(140).collect::<String>().escape_default()
        ))),
    }
}
