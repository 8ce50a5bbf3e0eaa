//! The control interface: HTTP with JSON bodies on the pool's unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/space` | [`SpaceDetail`] |
//! | `GET /v1/volumes` | list of [`VolumeView`] |
//! | `POST /v1/volumes` with [`CreateVolume`] | [`VolumeView`] |
//! | `GET /v1/volumes/NAME` | [`VolumeView`] |
//! | `PATCH /v1/volumes/NAME` with [`ResizeVolume`] | [`VolumeView`] |
//! | `DELETE /v1/volumes/NAME` | the [`VolumeView`] that it was |
//! | `/v1/health`, `/v1/scrub`, `/v1/check` | see [`crate::trust`] |
//! | `/v1/backup` | see [`crate::backup`] |
//! | `/v1/drives`, `/v1/survey` | see [`crate::drive_api`] |
//! | `/v1/subsystems`, `/v1/referrals` | see [`crate::subsystem_api`] |
//! | `/v1/hosts` | see [`crate::host_api`] |
//! | `/v1/listeners` | see [`crate::listener_api`] |
//!
//! Errors carry [`ErrorBody`] and a status of the table in [`crate::errors`].
//!
//! Guarantees: only the socket's owner can use it (mode 0600); the server runs on tokio and hands the
//! engine's work to the control reactor, never to one that serves hosts; request bodies are bounded; what is
//! changed is logged with the user who did it (`audit`).

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dedup::{Engine, ErrorKind, VolumeSpec};
use futures_util::lock::Mutex;
use meta::{Compression, PoolDir, VerifyPolicy, VolumeInfo};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use uuid::Uuid;

use crate::errors::{ErrorBody, Failure, http_status};
use crate::listen::Report;
use crate::listeners::Listeners;
use crate::socket::SocketPath;
use crate::status::{PoolSpace, Shown, SpaceDetail, Status, VolumeSpace, common_nsid, shown};
use crate::subsystem::Target;
use crate::subsystem_api::parse_nqn;
use crate::trust::{Health, health_of};
use crate::volumes::Place;

/// The longest request body, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

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
    /// How new contents are stored: `off`, `lz4` or `zstd`.
    pub compression: Compression,
    /// What a write does about a block that has the fingerprint of new data.
    pub verify: VerifyPolicy,
    /// Its domain; empty for the pool's own.
    pub domain: String,
}

impl VolumeView {
    fn new(info: &VolumeInfo, namespaces: Vec<Shown>, logical_bytes: u64) -> Self {
        Self {
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

/// What a volume is created from.
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
    /// How new contents are stored: `off`, `lz4` or `zstd`.
    #[serde(default)]
    pub compression: Compression,
    /// What a write does about a block that has the fingerprint of new data.
    #[serde(default)]
    pub verify: VerifyPolicy,
    /// Its domain: volumes share blocks within one only. Empty for the pool's own, or up to 64 of
    /// a-z A-Z 0-9 . _ -
    #[serde(default)]
    pub domain: String,
    /// The subsystem that shows it to hosts: without it the default one, and "none" is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Its identity, which hosts see as UUID and NGUID; without it a random one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

impl CreateVolume {
    /// What a volume without a subsystem says.
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
    /// Must be set when the volume becomes smaller: what lies behind its new end is lost.
    #[serde(default)]
    pub shrink: bool,
}

/// What the handlers need.
#[derive(Clone)]
pub struct ApiState {
    /// The target whose hosts are shown.
    pub target: Arc<Target>,
    /// The engine.
    pub engine: Arc<Engine>,
    /// The pool's folder, which knows its drives.
    pub dir: Arc<Mutex<PoolDir>>,
    /// Where the engine's control work runs.
    pub control: reactor::Handle,
    /// Where hosts come in.
    pub(crate) listeners: Listeners,
    /// Changes take turns, so that the log knows whose each is.
    pub(crate) audit: Arc<Mutex<()>>,
}

/// A bound socket, not yet served.
#[derive(Debug)]
pub struct ApiSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ApiSocket {
    /// Binds the socket of the pool in `pool`, in place of one that a killed daemon left. The caller
    /// holds the pool's lock, so no live daemon loses its socket.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn bind(pool: &Path) -> io::Result<Self> {
        let path = SocketPath::of_pool(pool)?;
        match std::fs::remove_file(path.as_path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(path.as_path())?;
        std::fs::set_permissions(path.as_path(), std::fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener,
            path: pool.join(crate::socket::SOCKET_NAME),
        })
    }

    /// Serves until `stop` is ready, then removes the socket.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn serve(
        self,
        state: ApiState,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let service = router(state).into_make_service_with_connect_info::<crate::audit::Caller>();
        let served = axum::serve(self.listener, service)
            .with_graceful_shutdown(stop)
            .await;
        let _ = std::fs::remove_file(&self.path);
        served
    }
}

/// The routes; tests call them without a socket.
pub fn router(state: ApiState) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/space", get(space))
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{name}", get(show).patch(resize).delete(delete))
        .merge(crate::trust::routes())
        .merge(crate::drive_api::routes())
        .merge(crate::backup::routes())
        .merge(crate::subsystem_api::routes())
        .merge(crate::ana::api::routes())
        .merge(crate::host_api::routes())
        .merge(crate::reservation::api::routes())
        .merge(crate::listener_api::routes())
        .fallback(async || Failure::new(ErrorKind::NotFound, "the API has no such path"))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn_with_state(state.clone(), crate::audit::record))
        .with_state(state)
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(http_status(self.kind))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody::from(&self))).into_response()
    }
}

/// Hosts, volumes, space at this moment; the health is left to [`health_of`].
fn status_of(target: &Target, engine: &Engine, reports: Vec<Report>) -> Status {
    let space = engine.status();
    let mut shown = shown(&target.catalog());
    let volume = |info: &VolumeInfo| {
        let namespaces = shown.remove(&info.uuid).unwrap_or_default();
        VolumeSpace {
            name: info.name.clone(),
            nsid: common_nsid(&namespaces),
            namespaces,
            uuid: info.uuid.to_string(),
            size_bytes: info.size_bytes,
            logical_bytes: logical_bytes(&space, info.nsid),
            zero_bytes: info
                .size_bytes
                .saturating_sub(logical_bytes(&space, info.nsid)),
        }
    };
    let volumes = engine.volumes().iter().map(volume).collect();
    Status {
        version: crate::VERSION.to_owned(),
        pool: PoolSpace::new(&space),
        volumes,
        hosts: target.attached_hosts(),
        transports: target.transport_figures(&reports),
        reactors: reports.into_iter().map(|report| report.reactor).collect(),
        health: Health::default(),
        survey: engine.last_survey(),
        authentication: target.auth_figures(),
        tls: target.tls_figures(),
    }
}

fn logical_bytes(space: &dedup::PoolStatus, nsid: u32) -> u64 {
    space
        .volumes
        .iter()
        .find(|v| v.nsid == nsid)
        .map_or(0, |v| v.logical_bytes)
}

fn view(state: &ApiState, name: &str) -> Result<VolumeView, Failure> {
    let volume = state.engine.volume(name).ok_or_else(|| no_volume(name))?;
    let info = volume.info();
    let mut shown = shown(&state.target.catalog());
    Ok(VolumeView::new(
        &info,
        shown.remove(&info.uuid).unwrap_or_default(),
        logical_bytes(&state.engine.status(), info.nsid),
    ))
}

pub(crate) fn no_volume(name: &str) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no volume '{name}': `onefold volume list` shows those there are"),
    )
}

async fn status(State(state): State<ApiState>) -> Json<Status> {
    let reports = state.listeners.reports().await;
    let mut status = status_of(&state.target, &state.engine, reports);
    status.health = health_of(&state.engine).await;
    Json(status)
}

async fn space(State(state): State<ApiState>) -> Json<SpaceDetail> {
    Json(SpaceDetail::new(&state.engine.status()))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<VolumeView>> {
    let space = state.engine.status();
    let volumes = state.engine.volumes();
    let mut shown = shown(&state.target.catalog());
    let view = |info: &VolumeInfo| {
        let namespaces = shown.remove(&info.uuid).unwrap_or_default();
        VolumeView::new(info, namespaces, logical_bytes(&space, info.nsid))
    };
    Json(volumes.iter().map(view).collect())
}

async fn show(
    State(state): State<ApiState>,
    UrlPath(name): UrlPath<String>,
) -> Result<Json<VolumeView>, Failure> {
    view(&state, &name).map(Json)
}

async fn create(
    State(state): State<ApiState>,
    body: Result<Json<CreateVolume>, JsonRejection>,
) -> Result<Json<VolumeView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let name = request.name.clone();
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
    let target = state.target.clone();
    let work = move || async move { target.create_volume(spec, place).await };
    state.control.spawn(work).await??;
    view(&state, &name).map(Json)
}

async fn resize(
    State(state): State<ApiState>,
    UrlPath(name): UrlPath<String>,
    body: Result<Json<ResizeVolume>, JsonRejection>,
) -> Result<Json<VolumeView>, Failure> {
    let Json(request) = body.map_err(malformed)?;
    let before = view(&state, &name)?;
    if request.size_bytes < before.size_bytes && !request.shrink {
        return Err(Failure::invalid(format!(
            "volume '{name}' has {} bytes: making it smaller discards what lies behind its new end; \
             ask for it with --shrink",
            before.size_bytes
        )));
    }
    let (engine, volume) = (state.engine.clone(), name.clone());
    let work = move || async move { engine.resize_volume(&volume, request.size_bytes).await };
    on_control(&state, work).await?;
    view(&state, &name).map(Json)
}

async fn delete(
    State(state): State<ApiState>,
    UrlPath(name): UrlPath<String>,
) -> Result<Json<VolumeView>, Failure> {
    let before = view(&state, &name)?;
    let target = state.target.clone();
    let work = move || async move { target.delete_volume(&name).await };
    state.control.spawn(work).await??;
    Ok(Json(before))
}

pub(crate) fn malformed(rejection: JsonRejection) -> Failure {
    Failure::invalid(format!(
        "the request's body is not as expected: {}",
        rejection.body_text()
    ))
}

/// Runs engine work on the control reactor. It runs to its end even if the client goes away.
pub(crate) async fn on_control<F, Fut, T>(state: &ApiState, work: F) -> Result<T, Failure>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = dedup::Result<T>> + 'static,
    T: Send + 'static,
{
    Ok(state.control.spawn(work).await??)
}
