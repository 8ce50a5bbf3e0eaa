//! Configuration: the daemon's file, and what is configured in the pool as a file.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/config/reload` | what came of it, a [`Reloaded`] |
//! | `POST /v1/config/export` with [`ExportConfig`] | [`ExportedConfig`] |
//! | `POST /v1/config/import` with [`ImportConfig`] | [`ImportedConfig`] |
//!
//! In an export is what lives at run time in the pool: volumes without their data, subsystems with their namespaces,
//! hosts, listeners, referrals, exports, limits, the schedules of snapshots and of scrubs. Not in it is what hosts made
//! themselves (reservations, saved features) and the history.
//!
//! Guarantees:
//! - An import is checked whole before anything changes. It deletes nothing.
//! - A file that was cut off is refused.
//! - Hosts see nothing of an import before all volumes are there. Then all of it changes as one, but schedules, listeners and
//!   exports, which come last. An import that ended in the middle can be sent again, and does the rest.
//! - No secret leaves the daemon, but wrapped under a passphrase.

mod document;
mod keys;
mod merge;
#[cfg(test)]
mod tests;
mod text;
mod wrapped;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use axum::{Json, Router};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::catalog::{Catalog, PortChange};
use subsystem::errors::Failure;
use subsystem::target::volumes::Place;
use tokio::sync::Mutex;

use self::document::{Document, Schedule};
use self::merge::{ExportStep, Import, ListenerAct, ListenerStep, Plan, Present, VolumeStep};
use self::text::{Mistake, Wanted};
use self::wrapped::Secrets;
use crate::client::Client;
use crate::errors::Answer;
use crate::extract::Body;
use crate::hosts::SecretText;
use crate::scrub;
use crate::server::{ApiState, Reloaded, change, on_control, to_its_end};
use crate::snapshot_schedules;

/// The longest configuration that is exported or imported, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// The longest request with one: JSON writes a line's end as two bytes, and a name may be longer.
const REQUEST_BYTES_MAX: usize = 2 * TEXT_BYTES_MAX;
/// Mistakes that are told of one file.
const MISTAKES_MAX: usize = 50;

/// What to export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// Wrap the secrets of hosts under this passphrase; without it they are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passphrase: Option<SecretText>,
}

/// What is configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedConfig {
    /// A TOML file.
    pub text: String,
    /// Hosts whose secrets were left out.
    pub hosts_without_secrets: usize,
}

/// What to import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportConfig {
    /// The file's text.
    pub text: String,
    /// What the file is called where its mistakes are told.
    #[serde(default = "default_name")]
    pub name: String,
    /// The passphrase under which its secrets are wrapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passphrase: Option<SecretText>,
    /// Replace what is in the pool and differs.
    #[serde(default)]
    pub replace: bool,
    /// Only say what would change.
    #[serde(default)]
    pub dry_run: bool,
}

fn default_name() -> String {
    "line".to_owned()
}

/// What an import changed, or would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedConfig {
    /// Nothing was changed: only asked.
    pub dry_run: bool,
    /// Each change.
    pub changes: Vec<String>,
    /// What is left to do.
    pub notes: Vec<String>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let import = post(import).layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX));
    Router::new()
        .route("/v1/config/reload", post(reload))
        .route("/v1/config/export", post(export))
        .route("/v1/config/import", import)
}

async fn reload(State(state): State<ApiState>) -> Answer<Reloaded> {
    Ok(Json(state.daemon.reload_config().await?))
}

async fn export(
    State(state): State<ApiState>,
    Body(request): Body<ExportConfig>,
) -> Answer<ExportedConfig> {
    let catalog = state.target.catalog();
    let volumes = state.engine.volumes();
    let mut document = Document::of(&volumes, &catalog);
    document.scrubs = scrub::schedule_of(&state.engine)?;
    document.schedules = Schedule::all(&volumes, &snapshot_schedules::all_of(&state.engine)?);
    let secrets = Secrets::of(&catalog);
    let mut hosts_without_secrets = secrets.hosts.len();
    if let Some(passphrase) = request.passphrase {
        let wrapped = computed(move || secrets.wrap(&passphrase.0)).await?;
        document.secrets = Some(wrapped);
        hosts_without_secrets = 0;
    }
    let text = document.to_text()?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "the configuration is longer than {} MiB, and could not be imported",
            TEXT_BYTES_MAX >> 20
        ))
        .into());
    }
    Ok(Json(ExportedConfig {
        text,
        hosts_without_secrets,
    }))
}

async fn import(
    State(state): State<ApiState>,
    Body(request): Body<ImportConfig>,
) -> Answer<ImportedConfig> {
    Ok(Json(to_its_end(import_all(state, request)).await?))
}

async fn import_all(state: ApiState, request: ImportConfig) -> Result<ImportedConfig, Failure> {
    let told = |mistakes: Vec<Mistake>| told(&request.name, mistakes);
    if request.text.len() > TEXT_BYTES_MAX {
        let what = format!("the file is longer than {} MiB", TEXT_BYTES_MAX >> 20);
        return Err(told(vec![Mistake { line: 1, what }]));
    }
    let wanted = text::read(&request.text).map_err(told)?;
    let secrets = secrets_of(&wanted, request.passphrase)
        .await
        .map_err(|what| told(vec![what]))?;
    let (wanted, secrets) = (Arc::new(wanted), secrets.map(Arc::new));
    let import = Import {
        wanted: &wanted,
        secrets: secrets.as_deref(),
        replace: request.replace,
    };
    let volumes = state.engine.volumes();
    let present = Present {
        volumes: &volumes,
        serial: state.target.serial(),
        scrubs: scrub::schedule_of(&state.engine)?,
        schedules: &snapshot_schedules::all_of(&state.engine)?,
    };
    let Plan {
        volumes,
        listeners,
        exports,
        scrubs,
        schedules,
        changes,
        notes,
    } = import
        .plan(present, &state.target.catalog())
        .map_err(told)?;
    let imported = ImportedConfig {
        dry_run: request.dry_run,
        changes,
        notes,
    };
    if request.dry_run || imported.changes.is_empty() {
        return Ok(imported);
    }
    for step in volumes {
        volume(&state, step).await?;
    }
    let (engine, target) = (state.engine.clone(), state.target.clone());
    let replace = request.replace;
    change(&state, move |catalog| {
        let present = Present {
            volumes: &engine.volumes(),
            serial: target.serial(),
            scrubs: None,
            schedules: &[],
        };
        let import = Import {
            wanted: &wanted,
            secrets: secrets.as_deref(),
            replace,
        };
        import.apply(present, catalog)
    })
    .await?;
    if scrubs.is_some() {
        scrub::set_schedule(&state, scrubs).await?;
    }
    if !schedules.is_empty() {
        snapshot_schedules::set_all(&state, schedules).await?;
    }
    for step in listeners {
        listener(&state, step).await?;
    }
    for step in exports {
        export_step(&state, step).await?;
    }
    Ok(imported)
}

/// The secrets of a file, if it has some.
async fn secrets_of(
    wanted: &Wanted,
    passphrase: Option<SecretText>,
) -> Result<Option<Secrets>, Mistake> {
    let wrong = |line, what: &str| Mistake {
        line,
        what: what.to_owned(),
    };
    match (&wanted.secrets, passphrase) {
        (None, None) => Ok(None),
        (Some(at), Some(passphrase)) => {
            let wrapped = at.value.clone();
            let unwrapped = computed(move || wrapped.unwrap(&passphrase.0)).await;
            unwrapped
                .map(Some)
                .map_err(|failure| wrong(at.line, &failure.message))
        }
        (Some(at), None) => Err(wrong(
            at.line,
            "the secrets are wrapped: name the file with their passphrase (--passphrase-file), or remove [secrets] \
             and set them after the import",
        )),
        (None, Some(_)) => Err(wrong(
            1,
            "there is a passphrase, but the file has no [secrets]: leave --passphrase-file out",
        )),
    }
}

/// The mistakes as one failure, each on a line of its own that begins with where it is.
fn told(name: &str, mistakes: Vec<Mistake>) -> Failure {
    let lines = mistakes.iter().take(MISTAKES_MAX);
    let lines: Vec<_> = lines
        .map(|mistake| format!("{name}:{}: {}", mistake.line, mistake.what))
        .collect();
    Failure::invalid(lines.join("\n"))
}

/// One at a time, because keys need much memory.
static COMPUTING: Mutex<()> = Mutex::const_new(());

/// Computes for longer than a reactor or a thread of the server may.
async fn computed<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let _turn = COMPUTING.lock().await;
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|e| Failure::new(dedup::ErrorKind::Internal, e.to_string()))?
}

async fn volume(state: &ApiState, step: VolumeStep) -> Result<(), Failure> {
    match step {
        VolumeStep::Create(spec) => {
            let target = state.target.clone();
            let work = move || async move { target.create_volume(spec, Place::Nowhere).await };
            state.control.spawn(work).await??;
        }
        VolumeStep::Change {
            name,
            size_bytes,
            policy,
        } => {
            let engine = state.engine.clone();
            on_control(state, move || async move {
                engine.set_volume_policy(&name, &policy).await?;
                engine.resize_volume(&name, size_bytes).await
            })
            .await?;
        }
    }
    Ok(())
}

async fn listener(state: &ApiState, step: ListenerStep) -> Result<(), Failure> {
    let ListenerStep {
        address,
        act,
        change: set,
    } = step;
    let id_of = move |catalog: &Catalog| {
        let port = catalog.ports.values().find(|port| port.address == address);
        port.map(|port| port.id).ok_or_else(|| {
            Failure::unavailable(format!(
                "listener '{address}' was removed during the import: import the file again"
            ))
        })
    };
    match act {
        ListenerAct::Add => {
            let added = state.daemon.add_listener(address, set).await;
            added.map_err(|failure| {
                let what = format!(
                    "listener '{address}' cannot be added: {failure}; everything before it is imported: mend that, or \
                     remove it from the file, and import the file again"
                );
                Failure::new(failure.kind, what)
            })?;
        }
        ListenerAct::Keep => {
            let id = change(state, move |catalog| {
                let id = id_of(catalog)?;
                if let Some(port) = catalog.ports.get_mut(&id) {
                    Arc::make_mut(port).is_transient = false;
                }
                Ok(id)
            })
            .await?;
            set_listener(state, id, set).await?;
        }
        ListenerAct::Set => {
            let id = id_of(&state.target.catalog())?;
            set_listener(state, id, set).await?;
        }
    }
    Ok(())
}

async fn export_step(state: &ApiState, step: ExportStep) -> Result<(), Failure> {
    if let Some(id) = step.replaces {
        state.daemon.delete_export(id).await?;
    }
    let address = step.export.address.clone();
    let created = state.daemon.create_export(step.export).await;
    created.map(drop).map_err(|failure| {
        let what = format!(
            "export '{address}' cannot be made: {failure}; everything before it is imported: mend that, or remove it \
             from the file, and import the file again"
        );
        Failure::new(failure.kind, what)
    })
}

async fn set_listener(state: &ApiState, id: u16, set: PortChange) -> Result<(), Failure> {
    state.daemon.set_listener(id, set).await.map(drop)
}

impl Client {
    /// Lets the daemon read its configuration file again.
    ///
    /// # Errors
    /// The file has mistakes, the daemon was started without one, or no daemon serves the pool.
    pub async fn reload_config(&self) -> Result<Reloaded, Failure> {
        let path = "/v1/config/reload";
        self.send(Method::POST, path, None::<&()>).await
    }

    /// What is configured in the pool, as a file.
    ///
    /// # Errors
    /// The passphrase cannot be, or no daemon serves the pool.
    pub async fn export_config(&self, request: &ExportConfig) -> Result<ExportedConfig, Failure> {
        self.send(Method::POST, "/v1/config/export", Some(request))
            .await
    }

    /// Brings a file into the pool.
    ///
    /// # Errors
    /// The file has mistakes, or contradicts the pool: then nothing was changed. A listener cannot be opened; or no daemon
    /// serves the pool.
    pub async fn import_config(&self, request: &ImportConfig) -> Result<ImportedConfig, Failure> {
        self.send(Method::POST, "/v1/config/import", Some(request))
            .await
    }
}
