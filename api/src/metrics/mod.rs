//! The figures of a daemon for Prometheus, in the text format of OpenMetrics 1.0.
//!
//! | request | answer |
//! |---|---|
//! | `GET /metrics` | text, `application/openmetrics-text` |
//!
//! Guarantees:
//! - A name begins with `onefold_` (that of the process with `process_`) and ends with its unit, a counter with `_total`.
//!   Sizes are bytes, times are seconds.
//! - A page is at most [`FRESH`] old, and is made no more often than that, however many ask for it: its figures are read
//!   under the engine's lock.

mod drives;
mod engine;
mod hosts;
mod load;
mod otlp;
mod page;
mod process;
mod sockets;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dedup::{ErrorKind, MetadataStatus, PoolStatus};
use futures_util::lock::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use serde_json::Value;
use subsystem::errors::Failure;
use subsystem::figures::{NetworkFigures, Report};

use crate::drive_health::DriveHealth;
use crate::errors::Refusal;
use crate::server::ApiState;
use crate::status::{Status, status_now};
pub(crate) use otlp::Resource;
use page::{Family, Page};
use process::Process;
use sockets::Sockets;
use work::Work;

/// How old a page may be. Prometheus asks every 15 s.
const FRESH: Duration = Duration::from_secs(1);

/// The media type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let last = Arc::new(Mutex::new(None));
    let answer = move |State(state): State<ApiState>| metrics(state, last);
    Router::new().route("/metrics", get(answer))
}

/// A page, and when it was made.
type Last = Option<(Instant, String)>;

async fn metrics(state: ApiState, last: Arc<Mutex<Last>>) -> Result<Response, Refusal> {
    // Those who ask at the same time wait here, and share one page.
    let mut last = last.lock().await;
    let text = match &*last {
        Some((made, text)) if made.elapsed() < FRESH => text.clone(),
        _ => {
            let text = text_of(figures(&state).await)?;
            *last = Some((Instant::now(), text.clone()));
            text
        }
    };
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

/// Everything that a page shows, at one moment.
#[derive(Debug)]
struct Figures {
    status: Status,
    space: PoolStatus,
    metadata: MetadataStatus,
    drive_health: BTreeMap<String, DriveHealth>,
    networks: Vec<(String, NetworkFigures)>,
    refused: [(&'static str, u64); 4],
    work: Work,
    sockets: Sockets,
    process: Process,
}

async fn figures(state: &ApiState) -> Figures {
    let reports = state.daemon.reports().await;
    let network = |report: &Report| (report.reactor.name.clone(), report.network);
    let networks = reports.iter().map(network).collect();
    Figures {
        status: status_now(state, reports).await,
        space: state.engine.status(),
        metadata: state.engine.metadata_status(),
        drive_health: state.daemon.drive_health(),
        networks,
        refused: state.refused.counts(),
        work: Work::look(state).await,
        sockets: Sockets::look(),
        process: Process::look(),
    }
}

impl Figures {
    fn write(&self, page: &mut Page<'_>) -> std::fmt::Result {
        engine::pool(page, &self.status, &self.space)?;
        drives::health(page, &self.drive_health)?;
        engine::health(page, &self.status, &self.space)?;
        engine::memory(page, &self.space)?;
        engine::metadata(page, &self.metadata)?;
        engine::volumes(page, &self.status)?;
        load::volumes(page, &self.status)?;
        load::limits(page, &self.status)?;
        load::guarantees(page, &self.status)?;
        load::networks(page, &self.networks)?;
        self.sockets.write(page)?;
        hosts::hosts(page, &self.status)?;
        hosts::administrators(page, self.refused)?;
        self.work.write(page)?;
        hosts::transports(page, &self.status)?;
        hosts::reactors(page, &self.status)
    }

    /// The same as a list: those of the daemon, and those of its process.
    fn families(&self) -> Result<Vec<Family>, Failure> {
        let mut families = Vec::new();
        let written = self
            .write(&mut Page::List(OWN, &mut families))
            .and_then(|()| self.process.write(&mut Page::List(USUAL, &mut families)));
        written.map_err(|_| unwritten())?;
        Ok(families)
    }
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        self.write(&mut Page::new(encoder))
    }
}

/// A request of OTLP with the figures of now.
pub(crate) async fn otlp_request(state: &ApiState, resource: &Resource) -> Result<Value, Failure> {
    let families = figures(state).await.families()?;
    Ok(otlp::request(resource, SystemTime::now(), &families))
}

/// What names begin with: those of this program, and those that every process has.
const OWN: &str = "onefold";
const USUAL: &str = "process";

fn unwritten() -> Failure {
    Failure::new(ErrorKind::Internal, "the metrics cannot be written")
}

/// The page of a daemon with these figures.
fn text_of(figures: Figures) -> Result<String, Failure> {
    let process = figures.process.clone();
    let mut own = Registry::with_prefix(OWN);
    own.register_collector(Box::new(figures));
    let mut usual = Registry::with_prefix(USUAL);
    usual.register_collector(Box::new(process));
    let mut page = String::new();
    let written = text::encode_registry(&mut page, &own)
        .and_then(|()| text::encode_registry(&mut page, &usual))
        .and_then(|()| text::encode_eof(&mut page));
    written.map_err(|_| unwritten())?;
    Ok(page)
}

#[cfg(test)]
mod tests;
