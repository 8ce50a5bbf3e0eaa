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
//! | `/v1/health` | [`health`] |
//! | `/v1/scrub` | [`scrub`] |
//! | `/v1/check`, `/v1/backup`, `/v1/survey` | [`pool`] |
//! | `/v1/drives` | [`drives`] |
//! | `/v1/subsystems` | [`subsystems`] |
//! | `/v1/subsystems/NQN/namespaces` | [`namespaces`] |
//! | `/v1/referrals` | [`referrals`] |
//! | `/v1/hosts` | [`hosts`] |
//! | `/v1/listeners` | [`listeners`] |
//! | `/v1/ana` | [`ana`] |
//! | `/v1/config` | [`config`] |
//! | `/healthz` | [`health`] |
//! | `/metrics` | `metrics` |
//!
//! Errors carry [`errors::ErrorBody`] and a status of the table in [`errors`].
//!
//! Guarantees: only the socket's owner can use it (mode 0600), others by [`http`] what [`public`] has; the server runs on tokio and hands the
//! engine's work to the control reactor, never to one that serves hosts; request bodies are bounded; what is
//! changed is logged with the user who did it (`audit`).

#![forbid(unsafe_code)]

pub mod ana;
mod audit;
mod caller;
pub mod client;
pub mod config;
pub mod drives;
pub mod errors;
pub mod health;
pub mod hosts;
pub mod http;
pub mod listeners;
mod metrics;
pub mod namespaces;
pub mod pool;
pub mod referrals;
pub mod reservations;
pub mod scrub;
mod server;
pub mod socket;
pub mod status;
pub mod subsystems;
pub mod volumes;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use dedup::ErrorKind;
use subsystem::errors::Failure;

pub use server::{ApiState, Daemon, Reloaded};

/// The longest request body, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The routes; tests call them without a socket.
pub fn router(state: ApiState) -> Router {
    Router::new()
        .merge(status::routes())
        .merge(volumes::routes())
        .merge(health::routes())
        .merge(scrub::routes())
        .merge(pool::routes())
        .merge(drives::routes())
        .merge(subsystems::routes())
        .merge(namespaces::routes())
        .merge(referrals::routes())
        .merge(ana::routes())
        .merge(hosts::routes())
        .merge(reservations::routes())
        .merge(listeners::routes())
        .merge(config::routes())
        .merge(public_routes())
        .fallback(no_such_path)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn_with_state(state.clone(), audit::record))
        .with_state(state)
}

/// What is answered on TCP.
pub fn public(state: ApiState) -> Router {
    public_routes().fallback(no_such_path).with_state(state)
}

fn public_routes() -> Router<ApiState> {
    health::public_routes().merge(metrics::routes())
}

async fn no_such_path() -> errors::Refusal {
    Failure::new(ErrorKind::NotFound, "the API has no such path").into()
}
