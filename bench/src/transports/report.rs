//! Figures of `onefold bench transports`.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::Workload;
use crate::machine::Machine;

/// All figures of a benchmark of the transports.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// The workloads, target by target.
    pub rows: Vec<Row>,
    /// What could not be measured, and other circumstances.
    pub notes: Vec<String>,
}

/// The median run of a workload on a target.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The workload's name.
    pub name: String,
    /// `onefold`, or the address of another target.
    pub target: String,
    /// Commands a second.
    pub commands_per_second: f64,
    /// Least and greatest of the runs.
    pub range: [f64; 2],
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Latency of a command, in microseconds: its median.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// Processor time of the client for a command, microseconds; its start is in it.
    pub client_us: f64,
    /// Processor time of the target for a command, if its process is known.
    pub target_us: Option<f64>,
    /// In proportion to the workload that the goal names.
    pub ratio: Option<f64>,
    /// Commands a second of our own target in proportion to this one's, of another target.
    pub beside: Option<f64>,
    /// What is to be reached.
    pub goal: Option<String>,
    /// Whether it was.
    pub met: Option<bool>,
}

impl Row {
    pub(super) fn of_report(
        target: &str,
        workload: &Workload,
        report: &Value,
        client_seconds: f64,
        target_seconds: Option<f64>,
    ) -> Self {
        let direction = &report[if workload.writes() { "write" } else { "read" }];
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let commands = number(&direction["ios"]).max(1.0);
        let rate = number(&direction["iops"]);
        let latency = &direction["latency_ns"];
        Self {
            name: workload.name.to_owned(),
            target: target.to_owned(),
            commands_per_second: rate,
            range: [rate, rate],
            bytes_per_second: rate * workload.block_bytes as f64,
            p50_us: number(&latency["p50"]) / 1e3,
            p99_us: number(&latency["p99"]) / 1e3,
            client_us: client_seconds / commands * 1e6,
            target_us: target_seconds.map(|seconds| seconds / commands * 1e6),
            ratio: None,
            beside: None,
            goal: None,
            met: None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<26} {:>10} {:>10} {:>8} {:>9} {:>10} {:>10}  {:<28} {:<5} target",
            "workload", "K/s", "MB/s", "p50 us", "p99 us", "client us", "target us", "goal", "met"
        )?;
        for row in &self.rows {
            let target_us = row
                .target_us
                .map_or_else(String::new, |us| format!("{us:.2}"));
            let mut goal = row.goal.clone().unwrap_or_default();
            if let Some(ratio) = row.ratio {
                goal = format!("{goal} ({ratio:.2})");
            }
            if let Some(beside) = row.beside {
                goal = format!("onefold is {beside:.2} of it");
            }
            let met = match row.met {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            };
            writeln!(
                f,
                "{:<26} {:>10.1} {:>10.0} {:>8.1} {:>9.1} {:>10.2} {:>10}  {:<28} {met:<5} {}",
                row.name,
                row.commands_per_second / 1e3,
                row.bytes_per_second / 1e6,
                row.p50_us,
                row.p99_us,
                row.client_us,
                target_us,
                goal,
                row.target,
            )?;
        }
        for note in &self.notes {
            writeln!(f, "- {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::TCP;
    use super::*;

    #[test]
    fn a_clients_report_becomes_a_row_with_processor_time_for_a_command() {
        let report = serde_json::json!({
            "read": { "ios": 0, "iops": 0.0 },
            "write": {
                "ios": 1000, "iops": 500.0,
                "latency_ns": { "p50": 1500, "p99": 20_000 }
            }
        });
        let writes = TCP
            .iter()
            .find(|workload| workload.name == "tcp-write-128k");
        let row = Row::of_report("onefold", writes.expect("a row"), &report, 0.5, Some(0.25));
        assert_eq!(row.bytes_per_second.round(), 500.0 * 131_072.0);
        assert_eq!((row.p50_us, row.p99_us), (1.5, 20.0));
        assert_eq!((row.client_us, row.target_us), (500.0, Some(250.0)));
    }
}
