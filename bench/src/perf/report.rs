//! Figures of a run.

use std::{fmt, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

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
    /// Sub-blocks that were not what was written.
    pub verify_errors: u64,
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
        write!(
            f,
            "   all: {:.2} s, {} errors, {} verify errors",
            self.seconds, self.errors, self.verify_errors
        )
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
