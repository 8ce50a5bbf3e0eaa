//! Figures of `onefold bench exports`.

use std::fmt;

use serde::Serialize;

use super::load::Outcome;
use crate::machine::Machine;

/// All figures of a benchmark of exports.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// What stored our own data.
    pub drive: String,
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
    /// `onefold`, or the socket of another target.
    pub target: String,
    /// Requests a second.
    pub requests_per_second: f64,
    /// Least and greatest of the runs.
    pub range: [f64; 2],
    /// Latency of a request, in microseconds: its median.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// Processor time of the target for a request, in microseconds, if its process is known.
    pub target_us: Option<f64>,
    /// Requests a second of our own target in proportion to this one's, of another target.
    pub beside: Option<f64>,
}

impl Row {
    pub(super) fn new(
        name: &str,
        target: &str,
        outcome: &Outcome,
        target_seconds: Option<f64>,
    ) -> Self {
        let requests = outcome.requests.max(1) as f64;
        let rate = requests / outcome.seconds.max(1e-9);
        Self {
            name: name.to_owned(),
            target: target.to_owned(),
            requests_per_second: rate,
            range: [rate, rate],
            p50_us: outcome.p50_us,
            p99_us: outcome.p99_us,
            target_us: target_seconds.map(|seconds| seconds / requests * 1e6),
            beside: None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; drive {}", self.machine, self.drive)?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<20} {:>8} {:>15} {:>8} {:>8} {:>10} {:>10}  target",
            "workload", "K/s", "of runs", "p50 us", "p99 us", "target us", "onefold/it"
        )?;
        for row in &self.rows {
            let or_nothing =
                |value: Option<f64>| value.map_or(String::new(), |it| format!("{it:.2}"));
            writeln!(
                f,
                "{:<20} {:>8.1} {:>15} {:>8.2} {:>8.2} {:>10} {:>10}  {}",
                row.name,
                row.requests_per_second / 1e3,
                format!("{:.1} to {:.1}", row.range[0] / 1e3, row.range[1] / 1e3),
                row.p50_us,
                row.p99_us,
                or_nothing(row.target_us),
                or_nothing(row.beside),
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
    use super::*;

    #[test]
    fn a_run_becomes_a_row_with_processor_time_for_a_request() {
        let outcome = Outcome {
            requests: 2000,
            seconds: 0.5,
            p50_us: 1.5,
            p99_us: 20.0,
        };
        let row = Row::new("read-4k", "onefold", &outcome, Some(0.25));
        assert_eq!(row.requests_per_second, 4000.0);
        assert_eq!(row.target_us, Some(125.0));
    }
}
