//! Volumes.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/volumes` | list of [`VolumeView`] |
//! | `POST /v1/volumes` with [`CreateVolume`] | [`VolumeView`] |
//! | `GET /v1/volumes/NAME` | [`VolumeView`] |
//! | `PATCH /v1/volumes/NAME` with [`ResizeVolume`] | [`VolumeView`] |
//! | `PATCH /v1/volumes/NAME/policy` with [`SetPolicy`] | [`VolumeView`] |
//! | `POST /v1/volumes/NAME/rename` with [`RenameVolume`] | [`VolumeView`] |
//! | `DELETE /v1/volumes/NAME` | the [`VolumeView`] that it was |

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, patch, post};
use axum::{Json, Router};
use dedup::{PolicyChange, VolumeSpec};
use hyper::Method;
use meta::{Compression, VerifyPolicy, VolumeInfo};
use serde::{Deserialize, Serialize};
use subsystem::catalog::Catalog;
use subsystem::errors::Failure;
use subsystem::target::imports::Import;
use subsystem::target::volumes::{Place, no_volume};
use uuid::Uuid;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, on_control, parse_nqn};
use crate::tasks;

/// A volume as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    /// The volume's name.
    pub name: String,
    /// The identifier of its namespaces, if it is the same in all subsystems that show it; `null` if none does,
    /// or if they differ.
    pub nsid: Option<u32>,
    /// Where hosts find it.
    #[serde(default)]
    pub namespaces: Vec<Shown>,
    /// Its identity, stable for its life.
    pub uuid: String,
    /// The identity as hosts see it in NGUID: 32 hexadecimal digits.
    pub nguid: String,
    /// Its size as hosts see it, in bytes.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub lba_bytes: u32,
    /// Its mapped sub-blocks, in bytes.
    pub logical_bytes: u64,
    /// Whether its blocks are deduplicated.
    pub dedup: bool,
    /// The compression of new data: `off`, `lz4` or `zstd`.
    pub compression: Compression,
    /// What a write does when a stored block has the fingerprint of the new data.
    pub verify: VerifyPolicy,
    /// Its domain; empty for the pool's own.
    pub domain: String,
    /// The image that is coming into it; `null` if none is. Until it is whole no host sees the volume.
    #[serde(default)]
    pub import: Option<ImportView>,
}

impl VolumeView {
    fn new(
        info: &VolumeInfo,
        namespaces: Vec<Shown>,
        logical_bytes: u64,
        import: Option<ImportView>,
    ) -> Self {
        Self {
            import,
            name: info.name.clone(),
            nsid: common_nsid(&namespaces),
            namespaces,
            uuid: info.uuid.to_string(),
            nguid: info
                .nguid
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            logical_bytes,
            dedup: info.dedup,
            compression: info.compression,
            verify: info.verify,
            domain: info.domain.clone(),
        }
    }
}

/// An image that is coming into a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportView {
    /// What the image is known by to who sends it.
    pub image: String,
    /// Its length, if that is known before its end.
    pub image_bytes: Option<u64>,
    /// Up to here the image survives a loss of power.
    pub done_bytes: u64,
    /// The name behind the `@` of the snapshot that there is of the volume when all has come; `null` if the image is that
    /// of none.
    #[serde(default)]
    pub snapshot: Option<String>,
}

impl From<Import> for ImportView {
    fn from(import: Import) -> Self {
        Self {
            image: import.image,
            image_bytes: import.image_bytes,
            done_bytes: import.done_bytes,
            snapshot: import.snapshot.map(|snapshot| snapshot.name),
        }
    }
}

/// A new volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Up to 64 of a-z A-Z 0-9 . _ -
    pub name: String,
    /// Its size as hosts see it, in bytes; a multiple of 4096.
    pub size_bytes: u64,
    /// Bytes of a logical block: 512 or 4096.
    #[serde(default = "default_lba_bytes")]
    pub lba_bytes: u32,
    /// Whether its blocks are deduplicated.
    #[serde(default = "default_dedup")]
    pub dedup: bool,
    /// The compression of new data: `off`, `lz4` or `zstd`.
    #[serde(default)]
    pub compression: Compression,
    /// What a write does when a stored block has the fingerprint of the new data.
    #[serde(default)]
    pub verify: VerifyPolicy,
    /// Its domain: volumes share blocks within one only. Empty for the pool's own, or up to 64 of
    /// a-z A-Z 0-9 . _ -
    #[serde(default)]
    pub domain: String,
    /// The subsystem to attach it to; the default one if left out, and none for "none".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Its identity, which hosts see as UUID and NGUID; without it a random one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

impl CreateVolume {
    /// The name that stands for no subsystem.
    pub const NO_SUBSYSTEM: &'static str = "none";
}

fn default_dedup() -> bool {
    true
}

fn default_lba_bytes() -> u32 {
    4096
}

/// A new size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// In bytes; a multiple of 4096.
    pub size_bytes: u64,
    /// Must be set to make the volume smaller: the data behind its new end are lost.
    #[serde(default)]
    pub shrink: bool,
}

/// A new name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameVolume {
    /// Up to 64 of a-z A-Z 0-9 . _ -
    pub name: String,
}

/// What becomes of what is written to a volume from now on; what was written stays as it is. What is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// Whether its blocks are deduplicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<bool>,
    /// The compression of new data: `off`, `lz4` or `zstd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// What a write does when a stored block has the fingerprint of the new data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyPolicy>,
    /// Its domain, which cannot change: another one than it has is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// A volume as a subsystem shows it to hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The subsystem's name.
    pub subsystem: String,
    /// The namespace's identifier there.
    pub nsid: u32,
}

/// The namespaces of all volumes that are shown to hosts.
pub(crate) fn shown(catalog: &Catalog) -> BTreeMap<Uuid, Vec<Shown>> {
    let mut shown: BTreeMap<Uuid, Vec<Shown>> = BTreeMap::new();
    for subsystem in catalog.subsystems.values() {
        for (nsid, namespace) in &subsystem.namespaces {
            shown.entry(namespace.volume).or_default().push(Shown {
                subsystem: subsystem.nqn.to_string(),
                nsid: *nsid,
            });
        }
    }
    shown
}

/// The identifier that all of these namespaces have.
#[must_use]
pub fn common_nsid(namespaces: &[Shown]) -> Option<u32> {
    let first = namespaces.first()?.nsid;
    namespaces
        .iter()
        .all(|it| it.nsid == first)
        .then_some(first)
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{name}", get(show).patch(resize).delete(delete))
        .route("/v1/volumes/{name}/policy", patch(set_policy))
        .route("/v1/volumes/{name}/rename", post(rename))
}

pub(crate) fn logical_bytes(space: &dedup::PoolStatus, nsid: u32) -> u64 {
    space
        .volumes
        .iter()
        .find(|v| v.nsid == nsid)
        .map_or(0, |v| v.logical_bytes)
}

/// The volume of that name.
pub(crate) fn find(state: &ApiState, name: &str) -> Result<Arc<VolumeInfo>, Failure> {
    let volume = state.engine.volume(name).ok_or_else(|| no_volume(name))?;
    Ok(volume.info())
}

pub(crate) fn view(state: &ApiState, name: &str) -> Result<VolumeView, Failure> {
    let info = find(state, name)?;
    let mut shown = shown(&state.target.catalog());
    Ok(VolumeView::new(
        &info,
        shown.remove(&info.uuid).unwrap_or_default(),
        logical_bytes(&state.engine.status(), info.nsid),
        import_of(state, &info),
    ))
}

/// The import to a volume, as far as it can be understood.
fn import_of(state: &ApiState, info: &VolumeInfo) -> Option<ImportView> {
    let import = state.target.import_of(info.uuid).ok()?;
    import.map(ImportView::from)
}

async fn list(State(state): State<ApiState>) -> Json<Vec<VolumeView>> {
    let space = state.engine.status();
    let volumes = state.engine.volumes();
    let mut shown = shown(&state.target.catalog());
    let view = |info: &VolumeInfo| {
        let namespaces = shown.remove(&info.uuid).unwrap_or_default();
        let logical = logical_bytes(&space, info.nsid);
        VolumeView::new(info, namespaces, logical, import_of(&state, info))
    };
    Json(volumes.iter().map(view).collect())
}

async fn show(State(state): State<ApiState>, Path(name): Path<String>) -> Answer<VolumeView> {
    Ok(Json(view(&state, &name)?))
}

/// The volume that a request asks for, and where hosts are to see it.
pub(crate) fn planned(request: CreateVolume) -> Result<(VolumeSpec, Place), Failure> {
    let spec = VolumeSpec {
        name: request.name,
        size_bytes: request.size_bytes,
        lba_bytes: request.lba_bytes,
        nsid: None,
        uuid: request.uuid,
        dedup: request.dedup,
        compression: request.compression,
        verify: request.verify,
        domain: request.domain,
    };
    let place = match request.subsystem.as_deref() {
        None => Place::Default,
        Some(CreateVolume::NO_SUBSYSTEM) => Place::Nowhere,
        Some(nqn) => Place::In {
            nqn: parse_nqn(nqn)?,
            hosts: None,
            shared: true,
        },
    };
    Ok((spec, place))
}

async fn create(
    State(state): State<ApiState>,
    Body(request): Body<CreateVolume>,
) -> Answer<VolumeView> {
    let name = request.name.clone();
    let (spec, place) = planned(request)?;
    let target = state.target.clone();
    let work = move || async move { target.create_volume(spec, place).await };
    state.control.spawn(work).await??;
    Ok(Json(view(&state, &name)?))
}

async fn resize(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<ResizeVolume>,
) -> Answer<VolumeView> {
    let before = view(&state, &name)?;
    if request.size_bytes < before.size_bytes && !request.shrink {
        return Err(Failure::invalid(format!(
            "volume '{name}' has {} bytes: making it smaller loses the data behind its new end; \
             --shrink allows that",
            before.size_bytes
        ))
        .into());
    }
    let info = find(&state, &name)?;
    state.target.check_complete(&info)?;
    let (engine, volume) = (state.engine.clone(), name.clone());
    let work = move || async move { engine.resize_volume(&volume, request.size_bytes).await };
    on_control(&state, work).await?;
    Ok(Json(view(&state, &name)?))
}

async fn set_policy(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<SetPolicy>,
) -> Answer<VolumeView> {
    let SetPolicy {
        dedup,
        compression,
        verify,
        domain,
    } = request;
    let change = PolicyChange {
        dedup,
        compression,
        verify,
        domain,
    };
    if change == PolicyChange::default() {
        return Err(Failure::invalid(format!(
            "volume '{name}': nothing is to be changed; say dedup, compression or verify"
        ))
        .into());
    }
    let (engine, volume) = (state.engine.clone(), name.clone());
    let work = move || async move { engine.set_volume_policy(&volume, &change).await };
    on_control(&state, work).await?;
    Ok(Json(view(&state, &name)?))
}

async fn rename(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<RenameVolume>,
) -> Answer<VolumeView> {
    let (engine, new) = (state.engine.clone(), request.name.clone());
    let work = move || async move { engine.rename_volume(&name, &new).await };
    on_control(&state, work).await?;
    Ok(Json(view(&state, &request.name)?))
}

async fn delete(State(state): State<ApiState>, Path(name): Path<String>) -> Answer<VolumeView> {
    if name.contains('@') {
        return Err(no_volume(&name).into()); // snapshots have a request of their own
    }
    let before = view(&state, &name)?;
    let (target, volume) = (state.target.clone(), name.clone());
    let work = move || async move { target.delete_volume(&volume).await };
    state.control.spawn(work).await??;
    tasks::follow_deletion(&state, &name);
    Ok(Json(before))
}

impl Client {
    /// All volumes.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn volumes(&self) -> Result<Vec<VolumeView>, Failure> {
        self.get("/v1/volumes").await
    }

    /// One volume.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn volume(&self, name: &str) -> Result<VolumeView, Failure> {
        self.get(&volume_path(name)?).await
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// The daemon refuses (name taken, size not usable), or no daemon serves the pool.
    pub async fn create_volume(&self, request: &CreateVolume) -> Result<VolumeView, Failure> {
        self.send(Method::POST, "/v1/volumes", Some(request)).await
    }

    /// Changes a volume's size.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn resize_volume(
        &self,
        name: &str,
        request: &ResizeVolume,
    ) -> Result<VolumeView, Failure> {
        self.send(Method::PATCH, &volume_path(name)?, Some(request))
            .await
    }

    /// Changes what becomes of what is written to a volume from now on.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_volume_policy(
        &self,
        name: &str,
        request: &SetPolicy,
    ) -> Result<VolumeView, Failure> {
        let path = format!("{}/policy", volume_path(name)?);
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn rename_volume(
        &self,
        name: &str,
        request: &RenameVolume,
    ) -> Result<VolumeView, Failure> {
        let path = format!("{}/rename", volume_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Deletes a volume and its data; returns what it was.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn delete_volume(&self, name: &str) -> Result<VolumeView, Failure> {
        self.send(Method::DELETE, &volume_path(name)?, None::<&()>)
            .await
    }
}

/// Whether a name is made of what names may have.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// The path of a volume, or of a snapshot as one. Names that neither can have never reach the daemon.
pub(crate) fn volume_path(name: &str) -> Result<String, Failure> {
    if !name.splitn(2, '@').all(is_plain) {
        return Err(Failure::invalid(format!(
            "'{name}' cannot be the name of a volume: names are made of a-z A-Z 0-9 . _ -"
        )));
    }
    Ok(format!("/v1/volumes/{name}"))
}
