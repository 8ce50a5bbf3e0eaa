//! Figures of `onefold bench engine`, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use dedup::EngineLocks;
use serde::Serialize;

use super::limits::Limits;
use super::load::Run;
use crate::machine::Machine;

/// All figures of a benchmark of the engine.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// What the machine itself can do.
    pub limits: Limits,
    /// The workloads.
    pub results: Vec<Row>,
    /// Circumstances of this run that a reader of the figures has to know.
    pub notes: Vec<String>,
}

/// The figure of one workload.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The workload's name.
    pub name: String,
    /// The median of its runs.
    pub value: f64,
    /// Of the value.
    pub unit: Unit,
    /// The value divided by the limit that it is held against.
    pub limit_ratio: Option<f64>,
    /// The same by processor time, where the limit is the core's: what the ratio would be if the load's
    /// thread had its core to itself, as long as it waits for nothing else.
    pub core_ratio: Option<f64>,
    /// What is to be reached.
    pub goal: Option<Goal>,
    /// Whether it was.
    pub met: Option<bool>,
    /// The name of the limit.
    pub limit: Option<&'static str>,
    /// Least and greatest value of the runs.
    pub range: Option<[f64; 2]>,
    /// Latency of a command in the median run, in microseconds: its median.
    pub p50_us: Option<f64>,
    /// Its 99th percentile.
    pub p99_us: Option<f64>,
    /// How much of its core the load's thread had: less than 0.95 means that the machine was busy.
    pub core_share: Option<f64>,
    /// Processor time of that thread for a command, microseconds: it hardly depends on other load.
    pub core_us: Option<f64>,
    /// Processor time of all other threads for a command, microseconds: what journal syncs, checkpoints
    /// and RocksDB cost, on other cores if there are any.
    pub helper_us: Option<f64>,
    /// Time under the locks that all reactors share, of a run of its own with their clocks on.
    pub locks: Option<Locks>,
}

/// How long locks were held and waited for: nanoseconds for each command. All threads count, those of background work too.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Locks {
    /// How long one thread had blocks, index and free space alone.
    pub state_held_ns: f64,
    /// How long threads waited for that.
    pub state_waited_ns: f64,
    /// How long threads shared blocks, index and free space.
    pub shared_held_ns: f64,
    /// How long they waited for that.
    pub shared_waited_ns: f64,
    /// How long the locks of volumes' maps were held.
    pub maps_held_ns: f64,
    /// How long threads waited for the locks of volumes' maps.
    pub maps_waited_ns: f64,
    /// How long the journal's lock was held.
    pub journal_held_ns: f64,
    /// How long threads waited for the journal's lock.
    pub journal_waited_ns: f64,
}

impl Locks {
    /// What the clocks counted from `before` to `after`, in a run of so many commands.
    pub(super) fn between(before: EngineLocks, after: EngineLocks, commands: u64) -> Self {
        let each = |before: Duration, after: Duration| {
            after.saturating_sub(before).as_nanos() as f64 / commands.max(1) as f64
        };
        Self {
            state_held_ns: each(before.state.held, after.state.held),
            state_waited_ns: each(before.state.waited, after.state.waited),
            shared_held_ns: each(before.shared_state.held, after.shared_state.held),
            shared_waited_ns: each(before.shared_state.waited, after.shared_state.waited),
            maps_held_ns: each(before.maps.held, after.maps.held),
            maps_waited_ns: each(before.maps.waited, after.maps.waited),
            journal_held_ns: each(before.journal.held, after.journal.held),
            journal_waited_ns: each(before.journal.waited, after.journal.waited),
        }
    }
}

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Bytes a second.
    #[serde(rename = "bytes/s")]
    BytesPerSecond,
    /// Commands a second.
    #[serde(rename = "commands/s")]
    CommandsPerSecond,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// A plain ratio.
    #[serde(rename = "x")]
    Ratio,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::BytesPerSecond => format!("{:.2} GB/s", value / 1e9),
            Self::CommandsPerSecond => format!("{:.1} K/s", value / 1e3),
            Self::Microseconds => format!("{value:.1} us"),
            Self::Milliseconds => format!("{value:.0} ms"),
            Self::Bytes => format!("{value:.1} B"),
            Self::Ratio => format!("{value:.3} x"),
        }
    }
}

/// What is to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The value is at least this.
    ValueAtLeast(f64),
    /// The value is at most this.
    ValueAtMost(f64),
    /// The value is at least so much of its limit.
    RatioAtLeast(f64),
    /// The value is at most so much of its limit.
    RatioAtMost(f64),
}

impl Goal {
    /// Whether it is reached.
    fn is_met(self, value: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::ValueAtLeast(goal) => value >= goal,
            Self::ValueAtMost(goal) => value <= goal,
            Self::RatioAtLeast(goal) => ratio.is_some_and(|ratio| ratio >= goal),
            Self::RatioAtMost(goal) => ratio.is_some_and(|ratio| ratio <= goal),
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Self::ValueAtLeast(goal) => format!(">= {}", unit.show(goal)),
            Self::ValueAtMost(goal) => format!("<= {}", unit.show(goal)),
            Self::RatioAtLeast(goal) => format!(">= {goal:.2} of it"),
            Self::RatioAtMost(goal) => format!("<= {goal:.2} of it"),
        }
    }
}

impl Row {
    /// A value that stands alone.
    pub(super) fn new(name: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            limit_ratio: None,
            core_ratio: None,
            goal: None,
            met: None,
            limit: None,
            range: None,
            p50_us: None,
            p99_us: None,
            core_share: None,
            core_us: None,
            helper_us: None,
            locks: None,
        }
    }

    /// The same, with what a run tells beside its value.
    pub(super) fn of_run(mut self, run: &Run) -> Self {
        self.p50_us = Some(run.p50_us);
        self.p99_us = Some(run.p99_us);
        self.core_share = Some(run.core_share());
        self.core_us = Some(run.core_us());
        self.helper_us = Some(run.helper_us());
        self
    }

    /// The same, held against a limit in the same unit.
    pub(super) fn beside(mut self, limit: &'static str, limit_value: f64) -> Self {
        self.limit = Some(limit);
        self.limit_ratio = (limit_value > 0.0).then(|| self.value / limit_value);
        self
    }

    /// The same, held against a limit of the core.
    pub(super) fn beside_core(self, limit: &'static str, limit_value: f64) -> Self {
        let mut row = self.beside(limit, limit_value);
        let shares = row.limit_ratio.zip(row.core_share);
        row.core_ratio = shares.map(|(ratio, share)| ratio / share);
        row
    }

    /// The same, with a goal.
    pub(super) fn with_goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self.met = Some(goal.is_met(self.value, self.limit_ratio));
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        writeln!(f)?;
        let limits = &self.limits;
        let bytes = |value| Unit::BytesPerSecond.show(value);
        let commands = |value| Unit::CommandsPerSecond.show(value);
        for (name, text) in [
            (
                "BLAKE3 4 KiB, side by side",
                bytes(limits.blake3_bytes_per_second),
            ),
            (
                "CLNH 4 KiB, side by side",
                bytes(limits.clnh_bytes_per_second),
            ),
            (
                "BLAKE3 4 KiB, one at a time",
                bytes(limits.blake3_one_at_a_time_bytes_per_second),
            ),
            ("CRC-32C 4 KiB", bytes(limits.crc32c_bytes_per_second)),
            (
                "memcpy 128 KiB, from memory",
                bytes(limits.memcpy_bytes_per_second),
            ),
            (
                "memcpy 128 KiB, from cache",
                bytes(limits.memcpy_cached_bytes_per_second),
            ),
            (
                "file drive, 4 KiB random writes, depth 32",
                commands(limits.raw_write_4k_qd32_per_second),
            ),
            (
                "file drive, 4 KiB random writes, depth 128",
                commands(limits.raw_write_4k_qd128_per_second),
            ),
            (
                "file drive, 128 KiB writes, depth 8",
                bytes(limits.raw_write_128k_qd8_bytes_per_second),
            ),
        ] {
            writeln!(f, "  {name:<44} {text:>12}")?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "{:<28} {:>11} {:>8} {:>8} {:>5} {:>8} {:>9}  {:<36} {:<15} met",
            "workload",
            "value",
            "p50 us",
            "p99 us",
            "core",
            "core us",
            "helper us",
            "limit",
            "goal"
        )?;
        for row in &self.results {
            let number = |value: Option<f64>, digits| {
                value.map_or_else(String::new, |value| format!("{value:.digits$}"))
            };
            let limit = match (row.limit, row.limit_ratio, row.core_ratio) {
                (Some(limit), Some(ratio), Some(by_core)) => {
                    format!("{ratio:.2} ({by_core:.2}) of {limit}")
                }
                (Some(limit), Some(ratio), None) => format!("{ratio:.2} of {limit}"),
                _ => String::new(),
            };
            let goal = row.goal.map(|goal| goal.show(row.unit));
            let met = match row.met {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            };
            writeln!(
                f,
                "{:<28} {:>11} {:>8} {:>8} {:>5} {:>8} {:>9}  {:<36} {:<15} {met}",
                row.name,
                row.unit.show(row.value),
                number(row.p50_us, 1),
                number(row.p99_us, 1),
                number(row.core_share, 2),
                number(row.core_us, 2),
                number(row.helper_us, 2),
                limit,
                goal.unwrap_or_default(),
            )?;
        }
        self.show_locks(f)?;
        for note in &self.notes {
            writeln!(f, "- {note}")?;
        }
        Ok(())
    }
}

impl Report {
    fn show_locks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = self
            .results
            .iter()
            .filter(|row| row.locks.is_some())
            .peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        writeln!(f)?;
        writeln!(
            f,
            "{:<28} {:>11} {:>11} {:>12} {:>12} {:>10} {:>10} {:>13} {:>13}",
            "locks, ns a command",
            "state alone",
            "wait",
            "state shared",
            "wait",
            "maps held",
            "maps wait",
            "journal held",
            "journal wait"
        )?;
        for row in rows {
            if let Some(locks) = row.locks {
                writeln!(
                    f,
                    "{:<28} {:>11.0} {:>11.0} {:>12.0} {:>12.0} {:>10.0} {:>10.0} {:>13.0} {:>13.0}",
                    row.name,
                    locks.state_held_ns,
                    locks.state_waited_ns,
                    locks.shared_held_ns,
                    locks.shared_waited_ns,
                    locks.maps_held_ns,
                    locks.maps_waited_ns,
                    locks.journal_held_ns,
                    locks.journal_waited_ns,
                )?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_judged_by_value_or_by_share_of_the_limit() {
        let row = Row::new("a", 3e9, Unit::BytesPerSecond)
            .beside("hash", 6e9)
            .with_goal(Goal::RatioAtLeast(0.5));
        assert_eq!((row.limit_ratio, row.met), (Some(0.5), Some(true)));
        let row = Row::new("a", 7.0, Unit::Microseconds).with_goal(Goal::ValueAtMost(6.0));
        assert_eq!(row.met, Some(false));
        let row = Row::new("a", 7.0, Unit::Ratio)
            .beside("nothing", 0.0)
            .with_goal(Goal::RatioAtLeast(0.1));
        assert_eq!((row.limit_ratio, row.met), (None, Some(false)));
    }

    #[test]
    fn json_has_the_names_that_scripts_read() {
        let row = Row::new("write-4k-unique", 300_000.0, Unit::CommandsPerSecond)
            .beside("hash", 600_000.0)
            .with_goal(Goal::ValueAtLeast(300_000.0));
        let json = serde_json::to_value(row).expect("plain data");
        assert_eq!(json["name"], "write-4k-unique");
        assert_eq!(json["unit"], "commands/s");
        assert_eq!(json["limit_ratio"], 0.5);
        assert_eq!(json["goal"]["value_at_least"], 300_000.0);
        assert_eq!(json["met"], true);
    }
}
