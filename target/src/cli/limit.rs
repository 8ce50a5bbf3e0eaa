//! `--limit-...`: limits of commands and bytes a second, of a volume or of a host.

use std::time::Duration;

use api::limits::{LimitView, SetLimits};

use super::table::{Align, table};
use crate::size::{format_human, parse_size};
use crate::time::parse_burst;

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitArg(Option<u64>);

/// Limits of a volume or of a host.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LimitArgs {
    /// Commands a second; flushes do not count
    #[arg(long, value_name = "N|off", value_parser = parse_iops)]
    pub limit_iops: Option<LimitArg>,
    /// Bytes a second that reads, writes and compares move, such as 200M
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bandwidth)]
    pub limit_bandwidth: Option<LimitArg>,
    /// What may be used at once after a pause: so much time's worth of the limits [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = parse_burst)]
    pub limit_burst: Option<Duration>,
}

impl LimitArgs {
    /// What to ask for.
    pub(super) fn request(&self) -> SetLimits {
        SetLimits {
            iops: self.limit_iops.map(|limit| limit.0),
            bandwidth_bytes: self.limit_bandwidth.map(|limit| limit.0),
            burst_ms: self
                .limit_burst
                .map(|burst| u64::try_from(burst.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

fn parse_limit(
    text: &str,
    parse: impl FnOnce(&str) -> Result<u64, String>,
) -> Result<LimitArg, String> {
    match text {
        "off" => Ok(LimitArg(None)),
        _ => match parse(text)? {
            0 => Err("0 would let nothing through; 'off' takes the limit away".to_owned()),
            limit => Ok(LimitArg(Some(limit))),
        },
    }
}

fn parse_iops(text: &str) -> Result<LimitArg, String> {
    parse_limit(text, |text| {
        let wrong = || format!("'{text}' is neither a number of commands nor off");
        text.parse().map_err(|_| wrong())
    })
}

fn parse_bandwidth(text: &str) -> Result<LimitArg, String> {
    parse_limit(text, |text| parse_size(text).map_err(|e| e.to_string()))
}

fn iops_text(limit: &LimitView) -> String {
    limit.iops.map_or("-".to_owned(), |iops| iops.to_string())
}

fn bandwidth_text(limit: &LimitView) -> String {
    let bytes = limit.bandwidth_bytes;
    bytes.map_or("-".to_owned(), |bytes| format!("{}/s", format_human(bytes)))
}

/// A change of limits on one line.
pub(super) fn limit_line(limit: &LimitView) -> String {
    match (limit.iops, limit.bandwidth_bytes) {
        (None, None) => format!("{} {}: no limit\n", limit.kind.name(), limit.name),
        _ => format!(
            "{} {}: IOPS {}, bandwidth {}, burst {} ms\n",
            limit.kind.name(),
            limit.name,
            iops_text(limit),
            bandwidth_text(limit),
            limit.burst_ms
        ),
    }
}

/// All limits, for `status`; empty without any.
pub(super) fn limits_text(limits: &[LimitView]) -> String {
    if limits.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = limits
        .iter()
        .map(|limit| {
            vec![
                format!("{} {}", limit.kind.name(), limit.name),
                iops_text(limit),
                bandwidth_text(limit),
                format!("{} ms", limit.burst_ms),
                limit.held_commands.to_string(),
                format!("{:.1} s", limit.held_ns as f64 / 1e9),
            ]
        })
        .collect();
    let table = table(
        &["LIMIT OF", "IOPS", "BANDWIDTH", "BURST", "HELD BACK", "FOR"],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
        ],
    );
    format!("\n{table}")
}
