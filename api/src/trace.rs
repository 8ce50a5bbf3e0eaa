//! A trace: the commands of a host as they are answered, with the time of their stages.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/trace?host=NQN` | server-sent events, each a [`TracedCommands`] |
//!
//! Guarantees: a trace that is read too slowly loses commands, and tells how many; it slows no host down.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures_util::{Stream, StreamExt, stream};
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
pub use subsystem::trace::TracedCommand;

use crate::client::{Client, segment};
use crate::errors::Refusal;
use crate::extract::Query;
use crate::server::{ApiState, parse_nqn};

/// Commands of one event: together they stay below the longest line that a client reads.
const COMMANDS_MAX: usize = 64;

/// How often a trace without commands shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Commands that were answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCommands {
    /// In the order in which they were answered.
    pub commands: Vec<TracedCommand>,
    /// Commands before them that are not told, because too many came.
    pub left_out: u64,
}

/// Whose commands.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    host: String,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/trace", get(follow))
}

async fn follow(
    State(state): State<ApiState>,
    Query(wanted): Query<Wanted>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let trace = state.target.trace(parse_nqn(&wanted.host)?)?;
    let stopped = state.target.clone();
    let events = stream::unfold(trace, |mut trace| async move {
        let commands = trace.next(COMMANDS_MAX).await;
        let left_out = trace.left_out();
        let some = TracedCommands { commands, left_out };
        let json = serde_json::to_string(&some).unwrap_or_default();
        Some((Ok(Event::default().event("commands").data(json)), trace))
    });
    let events = events.take_until(async move { stopped.stopped().await });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

impl Client {
    /// Calls `look` with the commands of a host as they are answered, until it says that it wants no more.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses, or it ends.
    pub async fn trace(
        &self,
        host: &Nqn,
        look: impl FnMut(TracedCommands) -> bool,
    ) -> Result<(), Failure> {
        let path = format!("/v1/trace?host={}", segment(host.as_str()));
        self.follow(&path, "traces", look).await
    }
}
