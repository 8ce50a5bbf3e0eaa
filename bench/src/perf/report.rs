//! Figures of a run.

use std::{collections::BTreeMap, fmt, time::Duration};

use hdrhistogram::Histogram;
use nvme::Status;
use serde::Serialize;

use super::content::Judged;

/// Figures of a run, as `onefold perf --json` prints them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Measured time.
    pub seconds: f64,
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// Commands that ended with an error.
    pub errors: u64,
    /// What the target said to them, the most frequent one first.
    pub errors_by_status: Vec<Refusal>,
    /// Blocks of 4 KiB (or of a command, if that is less) that were read and compared.
    pub verified_blocks: u64,
    /// Blocks that were read and not compared: nobody knows what they should hold.
    pub unverified_blocks: u64,
    /// Blocks that were not what was written.
    pub verify_errors: u64,
    /// Somebody stopped it before its end.
    pub interrupted: bool,
    /// Why the connection was lost in the middle of it, if it was: the figures are those until then.
    pub connection_lost: Option<String>,
    /// Whether reads were to be compared.
    #[serde(skip)]
    pub verify: bool,
    /// The seed of places and contents.
    #[serde(skip)]
    pub seed: u64,
}

/// Commands that ended with the same error status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `read` or `write`.
    pub command: &'static str,
    /// The status, as the specification calls it, with its number.
    pub status: String,
    /// How many.
    pub commands: u64,
}

/// Kinds of refusals that are told apart; a target that invents more is no reason to keep more.
const REFUSALS_MAX: usize = 32;

/// Counts commands that ended with an error status.
#[derive(Default)]
pub(super) struct Refusals {
    counts: BTreeMap<(&'static str, String), u64>,
}

impl Refusals {
    pub(super) fn record(&mut self, command: &'static str, status: Status) {
        let mut key = (command, status.to_string());
        if self.counts.len() >= REFUSALS_MAX && !self.counts.contains_key(&key) {
            key.1 = "other statuses".to_owned();
        }
        *self.counts.entry(key).or_default() += 1;
    }

    fn list(&self) -> Vec<Refusal> {
        let refusal = |((command, status), commands): (&(&'static str, String), &u64)| Refusal {
            command,
            status: status.clone(),
            commands: *commands,
        };
        let mut list: Vec<_> = self.counts.iter().map(refusal).collect();
        list.sort_by_key(|refusal| std::cmp::Reverse(refusal.commands));
        list
    }
}

/// What a run counted beside its commands' latencies.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) errors: u64,
    pub(super) refusals: Refusals,
    pub(super) judged: Judged,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All was done.
    Done,
    /// Somebody stopped it.
    Interrupted,
    /// The connection was lost, for this reason.
    Lost(String),
}

impl Report {
    /// The report of a run.
    pub(super) fn new(
        seconds: f64,
        [read, write]: [Direction; 2],
        counts: &Counts,
        end: End,
        options: &super::Options,
    ) -> Self {
        Self {
            seconds,
            read,
            write,
            errors: counts.errors,
            errors_by_status: counts.refusals.list(),
            verified_blocks: counts.judged.verified,
            unverified_blocks: counts.judged.unknown,
            verify_errors: counts.judged.wrong,
            interrupted: end == End::Interrupted,
            connection_lost: match end {
                End::Lost(why) => Some(why),
                End::Done | End::Interrupted => None,
            },
            verify: options.verify,
            seed: options.seed,
        }
    }

    /// Why a run that was to verify says nothing about the data, if it does not.
    #[must_use]
    pub fn nothing_verified(&self) -> Option<String> {
        let is_whole = !self.interrupted && self.connection_lost.is_none();
        if !self.verify || self.verified_blocks > 0 || !is_whole {
            return None;
        }
        let seed = self.seed;
        Some(match self.unverified_blocks {
            0 => "nothing was verified: no read ended well".to_owned(),
            blocks => format!(
                "nothing was verified: none of the {blocks} blocks read holds content of seed {seed}; name the \
                 --seed that they were written with, or write them first with --seed {seed}"
            ),
        })
    }
}

/// Figures of one direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Direction {
    /// Commands that ended well.
    pub ios: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Commands a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// From submission to completion, in nanoseconds.
    pub latency_ns: Latency,
}

/// Latencies in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// Counts commands and their latencies.
pub(super) struct Recorder {
    histogram: Histogram<u64>,
    bytes: u64,
}

/// Latencies beyond a minute are counted as a minute: commands time out earlier.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

impl Recorder {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
            .expect("the bounds are constants that the histogram takes");
        Self {
            histogram,
            bytes: 0,
        }
    }

    pub(super) fn record(&mut self, latency: Duration, bytes: usize) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
        self.histogram.saturating_record(nanoseconds.max(1));
        self.bytes += bytes as u64;
    }

    pub(super) fn direction(&self, seconds: f64) -> Direction {
        let ios = self.histogram.len();
        let rate = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Direction {
            ios,
            bytes: self.bytes,
            iops: rate(ios),
            bytes_per_second: rate(self.bytes),
            latency_ns: Latency {
                mean: if ios == 0 { 0.0 } else { self.histogram.mean() },
                p50: self.histogram.value_at_quantile(0.5),
                p99: self.histogram.value_at_quantile(0.99),
                p999: self.histogram.value_at_quantile(0.999),
                max: self.histogram.max(),
            },
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, direction) in [("read", &self.read), ("write", &self.write)] {
            if direction.ios == 0 {
                continue;
            }
            let us = |ns: f64| ns / 1e3;
            writeln!(
                f,
                "{name:>6}: IOPS={:.0}, BW={:.1} MiB/s ({:.1} MB/s), {} commands, {:.1} MiB",
                direction.iops,
                direction.bytes_per_second / f64::from(1 << 20),
                direction.bytes_per_second / 1e6,
                direction.ios,
                direction.bytes as f64 / f64::from(1 << 20),
            )?;
            let latency = &direction.latency_ns;
            writeln!(
                f,
                "        latency (us): mean={:.1} p50={:.1} p99={:.1} p99.9={:.1} max={:.1}",
                us(latency.mean),
                us(latency.p50 as f64),
                us(latency.p99 as f64),
                us(latency.p999 as f64),
                us(latency.max as f64),
            )?;
        }
        for Refusal {
            command,
            status,
            commands,
        } in &self.errors_by_status
        {
            writeln!(f, "{command:>6}: {commands} commands ended with: {status}")?;
        }
        let ended = match (&self.connection_lost, self.interrupted) {
            (Some(_), _) => ", until the connection was lost",
            (None, true) => ", interrupted",
            (None, false) => "",
        };
        write!(
            f,
            "   all: {:.2} s{ended}, {} errors, ",
            self.seconds, self.errors
        )?;
        match self.verify {
            false => write!(f, "not verified"),
            true => write!(
                f,
                "{} verify errors in {} of {} blocks read that were verified",
                self.verify_errors,
                self.verified_blocks,
                self.verified_blocks + self.unverified_blocks
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_without_commands_is_all_zeroes() {
        let direction = Recorder::new().direction(1.0);
        assert_eq!((direction.ios, direction.bytes), (0, 0));
        assert_eq!(direction.latency_ns.max, 0);
        assert!(direction.latency_ns.mean.abs() < f64::EPSILON);
    }

    #[test]
    fn errors_are_counted_by_command_and_status_and_their_kinds_are_bounded() {
        let mut refusals = Refusals::default();
        for _ in 0..3 {
            refusals.record("write", Status::CAPACITY_EXCEEDED);
        }
        refusals.record("read", Status::UNRECOVERED_READ);
        let list = refusals.list();
        assert_eq!((list[0].command, list[0].commands), ("write", 3));
        assert!(list[0].status.contains("Capacity Exceeded"), "{list:?}");
        assert_eq!((list[1].command, list[1].commands), ("read", 1));
        for code in 0x300..0x400 {
            refusals.record("read", Status::from_bits(code));
        }
        let list = refusals.list();
        assert!(list.len() <= REFUSALS_MAX + 2, "{}", list.len());
        assert_eq!(list.iter().map(|r| r.commands).sum::<u64>(), 4 + 0x100);
    }

    #[test]
    fn rates_are_per_second_and_latencies_in_nanoseconds() {
        let mut recorder = Recorder::new();
        for _ in 0..1000 {
            recorder.record(Duration::from_micros(100), 4096);
        }
        let direction = recorder.direction(2.0);
        assert!((direction.iops - 500.0).abs() < 1e-9);
        assert!((direction.bytes_per_second - 2_048_000.0).abs() < 1e-6);
        assert!((99_000..=101_000).contains(&direction.latency_ns.p99));
    }
}
