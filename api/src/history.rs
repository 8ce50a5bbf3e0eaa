//! What the pool held and what hosts did, over time.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/history?step=second|minute|hour&since=SECONDS` | [`HistoryPage`]: the rows behind that time, the oldest first |

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use subsystem::figures::{IoFigures, PoolSpace};
use subsystem::latency::Operation;

use crate::errors::Answer;
use crate::extract::Query;
use crate::history_log::Seen;
pub use crate::history_log::{History, HistoryPage, Step};

/// The file of a history, in the pool's folder.
pub const FILE: &str = crate::history_log::FILE;
use crate::server::ApiState;

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Looks at the pool each second, for ever.
pub async fn keep(state: ApiState) {
    let mut due = tokio::time::interval(Duration::from_secs(1));
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut fails = false;
    loop {
        due.tick().await;
        let space = PoolSpace::new(&state.engine.status());
        let levels = [
            space.capacity_bytes,
            space.used_bytes,
            space.logical_bytes,
            space.compression_saved_bytes,
        ];
        let now = Instant::now();
        if state.rates.is_due(now) {
            let volumes = state.engine.volumes().into_iter();
            let figures = volumes.map(|info| (info.uuid, state.target.volume_io(info.uuid).0));
            state.rates.look(now, figures.collect());
        }
        let IoFigures {
            read_commands,
            write_commands,
            read_bytes,
            written_bytes,
        } = state.target.io();
        let latencies = state.target.latencies();
        let seen = Seen {
            counts: [read_commands, write_commands, read_bytes, written_bytes],
            latencies: [Operation::Read, Operation::Write].map(|it| latencies.of(it)),
        };
        let kept = state.history.look(seconds_now(), levels, seen);
        if let (Err(error), false) = (&kept, fails) {
            tracing::warn!(%error, "the history cannot be written into the pool's folder: it is lost at a restart");
        }
        fails = kept.is_err();
    }
}

/// Which rows.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default)]
    step: Step,
    #[serde(default)]
    since: u64,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/history", get(show))
}

async fn show(State(state): State<ApiState>, Query(wanted): Query<Wanted>) -> Answer<HistoryPage> {
    let page = state.history.page(wanted.step, wanted.since, seconds_now());
    Ok(Json(page))
}
