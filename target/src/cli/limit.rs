//! `--limit-...` and `--guarantee-...`: limits of commands and bytes a second, of a volume or of a host, and guarantees.

use std::time::Duration;

use api::limits::{LimitView, SetLimits, SurplusView};

use super::table::{Align, table};
use crate::size::{format_human, parse_size};
use crate::time::parse_burst;

/// A limit or guarantee, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitArg(Option<u64>);

/// Limits and guarantees of a volume or of a host.
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
    /// Commands a second that it gets whatever others ask for; at most its limit
    #[arg(long, value_name = "N|off", value_parser = parse_iops)]
    pub guarantee_iops: Option<LimitArg>,
    /// Bytes a second that it gets whatever others ask for, such as 100M; with both, what is less for its commands
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bandwidth)]
    pub guarantee_bandwidth: Option<LimitArg>,
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
            guarantee_iops: self.guarantee_iops.map(|guarantee| guarantee.0),
            guarantee_bandwidth_bytes: self.guarantee_bandwidth.map(|guarantee| guarantee.0),
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
            0 => Err("0 is not possible; 'off' takes it away".to_owned()),
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

fn iops_text(iops: Option<u64>) -> String {
    iops.map_or("-".to_owned(), |iops| iops.to_string())
}

fn bandwidth_text(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{}/s", format_human(bytes)))
}

fn is_limited(limit: &LimitView) -> bool {
    limit.iops.is_some() || limit.bandwidth_bytes.is_some()
}

fn is_guaranteed(limit: &LimitView) -> bool {
    limit.guarantee_iops.is_some() || limit.guarantee_bandwidth_bytes.is_some()
}

/// A change of limits on one line, and one more if there is a guarantee.
pub(super) fn limit_line(limit: &LimitView) -> String {
    let name = format!("{} {}", limit.kind.name(), limit.name);
    let mut text = match is_limited(limit) {
        false => format!("{name}: no limit\n"),
        true => format!(
            "{name}: IOPS {}, bandwidth {}, burst {} ms\n",
            iops_text(limit.iops),
            bandwidth_text(limit.bandwidth_bytes),
            limit.burst_ms
        ),
    };
    if is_guaranteed(limit) {
        text += &format!(
            "{name}: guaranteed IOPS {}, bandwidth {}\n",
            iops_text(limit.guarantee_iops),
            bandwidth_text(limit.guarantee_bandwidth_bytes),
        );
    }
    text
}

/// All guarantees, and what is held back for them, for `status`; empty without any.
pub(super) fn guarantees_text(limits: &[LimitView], surplus: Option<&SurplusView>) -> String {
    let Some(surplus) = surplus else {
        return String::new();
    };
    let all = limits.iter().filter(|limit| is_guaranteed(limit));
    let rows: Vec<_> = all
        .map(|limit| {
            let gets = limit.achieved.as_ref();
            vec![
                format!("{} {}", limit.kind.name(), limit.name),
                iops_text(limit.guarantee_iops),
                bandwidth_text(limit.guarantee_bandwidth_bytes),
                iops_text(gets.map(|gets| gets.iops)),
                bandwidth_text(gets.map(|gets| gets.bandwidth_bytes)),
                match gets.is_some_and(|gets| gets.is_short) {
                    true => "no".to_owned(),
                    false => "yes".to_owned(),
                },
            ]
        })
        .collect();
    let table = table(
        &[
            "GUARANTEE OF",
            "IOPS",
            "BANDWIDTH",
            "IOPS NOW",
            "BANDWIDTH NOW",
            "KEPT",
        ],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
        ],
    );
    let now = match surplus.bound_bytes {
        Some(bytes) => format!(
            "now all others together may do {}/s (a command counts as 16 KiB more)",
            format_human(bytes)
        ),
        None => "now nobody is held back".to_owned(),
    };
    format!(
        "\n{table}held back for guarantees: {} commands, for {:.1} s together; {now}\n",
        surplus.held_commands,
        surplus.held_ns as f64 / 1e9,
    )
}

/// All limits, for `status`; empty without any.
pub(super) fn limits_text(limits: &[LimitView]) -> String {
    let limited = limits.iter().filter(|limit| is_limited(limit));
    let rows: Vec<_> = limited
        .map(|limit| {
            vec![
                format!("{} {}", limit.kind.name(), limit.name),
                iops_text(limit.iops),
                bandwidth_text(limit.bandwidth_bytes),
                format!("{} ms", limit.burst_ms),
                limit.held_commands.to_string(),
                format!("{:.1} s", limit.held_ns as f64 / 1e9),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
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
