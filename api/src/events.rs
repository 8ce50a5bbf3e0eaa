//! Events: what happened to the pool and its hosts, who administered what.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/events?since=ID&limit=N` | [`EventPage`]: events behind that one, the oldest first; without `since` the latest |
//! | `GET /v1/events/stream?since=ID` | the same as server-sent events, and each one that follows |
//!
//! A stream sends an event's identifier as `id`, its kind as `event` and its JSON as `data`. A client that comes back
//! with `Last-Event-ID` goes on where it was. Where events are gone that it has not seen, one of the kind `skipped` says
//! how many: the log is bounded, and does not wait for who reads slowly.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::{Answer, Refusal};
use crate::event_log::{EVENTS_MAX, Event, EventPage, STREAMS_MAX};
use crate::extract::Query;
use crate::server::ApiState;

/// Events of one answer, if the request does not say.
const LIMIT_DEFAULT: usize = 100;

/// Events that a stream reads at once.
const STREAM_PAGE: usize = 256;

/// How often a stream without events shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Which events.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    since: Option<u64>,
    limit: Option<usize>,
}

/// Where a stream begins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    since: Option<u64>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/events", get(list))
        .route("/v1/events/stream", get(follow))
}

async fn list(State(state): State<ApiState>, Query(wanted): Query<Wanted>) -> Answer<EventPage> {
    let limit = wanted.limit.unwrap_or(LIMIT_DEFAULT).min(EVENTS_MAX);
    Ok(Json(state.events.page(wanted.since, limit)))
}

async fn follow(
    State(state): State<ApiState>,
    headers: HeaderMap,
    Query(from): Query<From>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Refusal> {
    let place = state.events.clone().follower().ok_or_else(|| {
        Failure::unavailable(format!(
            "{STREAMS_MAX} clients follow the events already: end one of them"
        ))
    })?;
    let seen = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.parse().ok());
    // Without a place to begin at, from now on.
    let since = match seen.or(from.since) {
        Some(seen) => state.events.resume(seen),
        None => state.events.latest(),
    };
    let stopped = state.target.clone();
    let events = stream::unfold((since, place), |(since, place)| async move {
        let page = place.after(since, STREAM_PAGE).await;
        let last = page.last()?.id;
        Some((stream::iter(page), (last, place)))
    });
    let events = events
        .flatten()
        .map(|event: Arc<Event>| Ok(to_sse(&event)))
        .take_until(async move { stopped.stopped().await });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn to_sse(event: &Event) -> sse::Event {
    let json = serde_json::to_string(event).unwrap_or_default();
    sse::Event::default()
        .id(event.id.to_string())
        .event(event.kind.as_str())
        .data(json)
}

impl Client {
    /// Events behind the one with that number, or the latest ones.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn events(&self, since: Option<u64>, limit: usize) -> Result<EventPage, Failure> {
        let since = since.map_or_else(String::new, |since| format!("&since={since}"));
        self.get(&format!("/v1/events?limit={limit}{since}")).await
    }

    /// Calls `look` with each event behind the one with that number, and with those that follow, until it says that it
    /// wants no more.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses, or it ends.
    pub async fn follow_events(
        &self,
        since: u64,
        look: impl FnMut(Event) -> bool,
    ) -> Result<(), Failure> {
        let path = format!("/v1/events/stream?since={since}");
        self.follow(&path, "events", look).await
    }
}
