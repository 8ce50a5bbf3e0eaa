//! The control interface: HTTP with JSON bodies on the pool's unix socket, and on TCP by [`http`].
//!
//! One file for each noun: the types of its requests and answers, its routes, and the calls of the client. Below them lie
//! `server` and [`client`], and at the bottom [`socket`], `caller` and [`errors`].
//!
//! | path | noun |
//! |---|---|
//! | `/v1/status`, `/v1/space` | [`status`] |
//! | `/v1/volumes` | [`volumes`] |
//! | `/v1/volumes/NAME/reservation` | [`reservations`] |
//! | `/v1/volumes/NAME/import`, `.../data`, `.../extents`, `.../diff` | [`images`] |
//! | `/v1/volumes/NAME/import/known`, `.../key-proof`, `/v1/domain-keys` | [`known`] |
//! | `/v1/health` | [`health`] |
//! | `/v1/scrub` | [`scrub`] |
//! | `/v1/snapshots`, `/v1/volumes/NAME/clones` | [`snapshots`] |
//! | `/v1/snapshot-schedules` | [`snapshot_schedules`] |
//! | `/v1/pool`, `/v1/check`, `/v1/backup`, `/v1/survey` | [`pool`] |
//! | `/v1/drives` | [`drives`] |
//! | `/v1/subsystems` | [`subsystems`] |
//! | `/v1/subsystems/NQN/namespaces` | [`namespaces`] |
//! | `/v1/referrals` | [`referrals`] |
//! | `/v1/limits` | [`limits`] |
//! | `/v1/hosts` | [`hosts`] |
//! | `/v1/listeners` | [`listeners`] |
//! | `/v1/exports` | [`exports`] |
//! | `/v1/ana` | [`ana`] |
//! | `/v1/config` | [`config`] |
//! | `/v1/tokens` | [`tokens`] |
//! | `/v1/caller` | [`tokens`] |
//! | `/v1/history` | [`history`] |
//! | `/v1/openapi.json` | `openapi` |
//! | `/`, `/assets` | `dashboard` |
//! | `/healthz` | [`health`] |
//! | `/metrics` | `metrics` |
//! | `/v1/events` | [`events`] |
//! | `/v1/tasks` | [`tasks`] |
//! | `/v1/trace` | [`trace`] |
//!
//! Errors carry [`errors::ErrorBody`] and a status of the table in [`errors`].
//!
//! Guarantees: only the socket's owner can use it (mode 0600), and a group if one is named, others by a token over
//! [`http`] (`access`); the server runs on tokio and hands the engine's work to the control reactor, never to one that
//! serves hosts; request bodies are bounded (pieces of [`images`] by their own bound); what is changed is logged with the user who did it (`audit`), and becomes an
//! event.

#![forbid(unsafe_code)]

mod access;
pub mod ana;
mod audit;
mod caller;
pub mod client;
pub mod config;
mod dashboard;
pub mod drive_health;
pub mod drives;
pub mod errors;
pub mod event_log;
pub mod events;
pub mod exports;
mod extract;
pub mod health;
pub mod history;
mod history_log;
pub mod hosts;
pub mod http;
pub mod images;
pub mod known;
pub mod limits;
pub mod listeners;
mod metrics;
pub mod namespaces;
mod openapi;
mod operations;
pub mod pool;
pub mod rates;
pub mod referrals;
mod refused;
pub mod reliability;
pub mod reservations;
pub mod scrub;
mod server;
mod settings;
pub mod snapshot_schedules;
pub mod snapshots;
pub mod socket;
pub mod standby;
pub mod status;
pub mod subsystems;
mod task_list;
pub mod tasks;
pub mod telemetry;
pub mod tokens;
pub mod trace;
pub mod transfers;
pub mod volumes;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;

pub use refused::Refused;
pub use server::{ApiState, Daemon, ExportState, Reloaded};

/// The longest request body, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The routes; tests call them without a socket.
pub fn router(state: ApiState) -> Router {
    Router::new()
        .merge(status::routes())
        .merge(volumes::routes())
        .merge(images::routes())
        .merge(known::routes())
        .merge(health::routes())
        .merge(scrub::routes())
        .merge(snapshots::routes())
        .merge(snapshot_schedules::routes())
        .merge(pool::routes())
        .merge(drives::routes())
        .merge(subsystems::routes())
        .merge(namespaces::routes())
        .merge(referrals::routes())
        .merge(ana::routes())
        .merge(hosts::routes())
        .merge(reservations::routes())
        .merge(limits::routes())
        .merge(listeners::routes())
        .merge(exports::routes())
        .merge(config::routes())
        .merge(events::routes())
        .merge(trace::routes())
        .merge(tasks::routes())
        .merge(tokens::routes())
        .merge(metrics::routes())
        .merge(openapi::routes())
        .merge(history::routes())
        .merge(dashboard::routes())
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn_with_state(state.clone(), audit::record))
        .layer(from_fn_with_state(state.clone(), access::admit))
        .with_state(state)
}
