//! The same figures for OpenTelemetry: a request of OTLP 1.x in its JSON form.
//!
//! Names are those of `/metrics` without what says unit and kind: an OTLP receiver of Prometheus puts `_bytes`, `_seconds`
//! and `_total` behind them again, so that dashboards and alerts fit both ways. Sums and histograms are cumulative: a request
//! that is lost is made good by the next one.
//!
//! The JSON is protobuf's: numbers of 64 bits are texts, an enumeration is a number (opentelemetry.io, OTLP specification,
//! "JSON Protobuf Encoding").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::page::{Family, Figure, Kind, Times};

/// AGGREGATION_TEMPORALITY_CUMULATIVE
const CUMULATIVE: u8 = 2;

/// Who sends.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    /// The program's version.
    pub(crate) version: &'static str,
    /// The pool's identity.
    pub(crate) pool: String,
    /// The machine's name.
    pub(crate) host: String,
    /// When counters began to count.
    pub(crate) started: SystemTime,
}

/// A request that has these families as they were at a moment. What has no samples is left out.
pub(super) fn request(resource: &Resource, at: SystemTime, families: &[Family]) -> Value {
    let (began, at) = (nanoseconds(resource.started), nanoseconds(at));
    let families = families.iter().filter(|family| !family.samples.is_empty());
    let metrics: Vec<Value> = families.map(|family| metric(family, &began, &at)).collect();
    json!({
        "resourceMetrics": [{
            "resource": { "attributes": attributes([
                ("service.name", "onefold"),
                ("service.version", resource.version),
                ("service.instance.id", &resource.pool),
                ("host.name", &resource.host),
            ]) },
            "scopeMetrics": [{
                "scope": { "name": "onefold", "version": resource.version },
                "metrics": metrics,
            }],
        }],
    })
}

fn metric(family: &Family, began: &str, at: &str) -> Value {
    let points = family.samples.iter().map(|(labels, figure)| {
        let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
        let mut point = match figure {
            Figure::Whole(figure) => json!({ "asInt": figure.to_string() }),
            Figure::Real(figure) => json!({ "asDouble": figure }),
            Figure::Times(times) => histogram(times),
        };
        point["attributes"] = attributes(labels);
        point["timeUnixNano"] = json!(at);
        if family.kind != Kind::Gauge {
            point["startTimeUnixNano"] = json!(began);
        }
        point
    });
    let points: Vec<Value> = points.collect();
    let mut metric = json!({
        "name": family.name,
        "description": family.help,
        "unit": family.unit.unwrap_or(""),
    });
    let (kind, data) = match family.kind {
        Kind::Gauge => ("gauge", json!({ "dataPoints": points })),
        Kind::Counter => (
            "sum",
            json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true }),
        ),
        Kind::Histogram => (
            "histogram",
            json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE }),
        ),
    };
    metric[kind] = data;
    metric
}

/// There is one bucket more than bounds: the last one has none.
fn histogram(times: &Times) -> Value {
    let counts = times.buckets.iter().map(|(_, count)| count.to_string());
    let bounds = times.buckets.iter().map(|(bound, _)| *bound);
    json!({
        "count": times.count().to_string(),
        "sum": times.sum_seconds,
        "bucketCounts": counts.collect::<Vec<_>>(),
        "explicitBounds": bounds.filter(|bound| bound.is_finite()).collect::<Vec<_>>(),
    })
}

fn attributes<'s>(attributes: impl IntoIterator<Item = (&'static str, &'s str)>) -> Value {
    let attributes = attributes.into_iter();
    attributes
        .map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } }))
        .collect()
}

/// Since 1970, as a text.
fn nanoseconds(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_nanos().to_string()
}
