//! How long commands of hosts take, by volume and operation.
//!
//! A time goes into one of 98 buckets: four to an octave, from 1 us to 17 s. So a percentile is at most a quarter
//! above the truth, whatever the times are, and two looks can be subtracted: what lies between them is the percentile of that
//! while.

use std::collections::BTreeMap;

use nvme::io;
use serde::{Deserialize, Serialize};

/// What a host asks of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Dataset Management with Deallocate.
    Trim,
    /// Write Zeroes.
    WriteZeroes,
    /// Compare, also as the first half of a fused Compare and Write.
    Compare,
    /// Verify.
    Verify,
    /// Copy.
    Copy,
    /// Write Uncorrectable.
    WriteUncorrectable,
}

impl Operation {
    /// All of them, in their order.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteZeroes,
        Self::Compare,
        Self::Verify,
        Self::Copy,
        Self::WriteUncorrectable,
    ];

    /// Its name in JSON and in labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteZeroes => "write_zeroes",
            Self::Compare => "compare",
            Self::Verify => "verify",
            Self::Copy => "copy",
            Self::WriteUncorrectable => "write_uncorrectable",
        }
    }

    /// That of an opcode of the NVM command set.
    pub(crate) const fn of(opcode: u8) -> Option<Self> {
        Some(match opcode {
            io::OPCODE_READ => Self::Read,
            io::OPCODE_WRITE => Self::Write,
            io::OPCODE_FLUSH => Self::Flush,
            io::OPCODE_DATASET_MANAGEMENT => Self::Trim,
            io::OPCODE_WRITE_ZEROES => Self::WriteZeroes,
            io::OPCODE_COMPARE => Self::Compare,
            io::OPCODE_VERIFY => Self::Verify,
            io::OPCODE_COPY => Self::Copy,
            io::OPCODE_WRITE_UNCORRECTABLE => Self::WriteUncorrectable,
            _ => return None,
        })
    }
}

/// Buckets of an octave are `1 << PARTS_SHIFT`.
const PARTS_SHIFT: u32 = 2;
/// The first bucket holds all below 2^10 ns.
const FIRST_OCTAVE: u32 = 10;
/// The last bucket holds all from 2^34 ns on: 17 s.
const LAST_OCTAVE: u32 = 34;
/// Buckets of a histogram.
pub(crate) const BUCKETS: usize = ((LAST_OCTAVE - FIRST_OCTAVE) << PARTS_SHIFT) as usize + 2;

/// The bucket of a time.
pub(crate) const fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_OCTAVE {
        return 0;
    }
    let octave = ns.ilog2();
    if octave >= LAST_OCTAVE {
        return BUCKETS - 1;
    }
    // The two bits behind the highest one say which quarter of the octave it is.
    let part = (ns >> (octave - PARTS_SHIFT)) as usize & ((1 << PARTS_SHIFT) - 1);
    1 + ((octave - FIRST_OCTAVE) << PARTS_SHIFT) as usize + part
}

/// All times of a bucket are below this, in nanoseconds; of the last one there is no such bound.
const fn bound_of(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let parts = 1 << PARTS_SHIFT;
    // The bound of a bucket is where the next one begins.
    let (octave, part) = (bucket / parts, bucket % parts);
    let octave = FIRST_OCTAVE + octave as u32;
    Some(((parts + part) as u64) << (octave - PARTS_SHIFT))
}

/// How long the commands of an operation took that succeeded, from their arrival to their answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    total_ns: u64,
    buckets: [u64; BUCKETS],
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            total_ns: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl Latency {
    /// The sum of their times, and how many are in each bucket.
    pub(crate) fn new(total_ns: u64, buckets: [u64; BUCKETS]) -> Self {
        Self { total_ns, buckets }
    }

    /// How many commands.
    #[must_use]
    pub fn commands(&self) -> u64 {
        let add = |sum: u64, count: &u64| sum.saturating_add(*count);
        self.buckets.iter().fold(0, add)
    }

    /// The sum of their times, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Their mean, in nanoseconds; 0 of none.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.commands()).unwrap_or(0)
    }

    /// So many of a thousand commands took at most this long, in nanoseconds: the upper bound of their bucket; 0 of no
    /// commands. A command beyond the last bound counts as that.
    #[must_use]
    pub fn permille_ns(&self, permille: u64) -> u64 {
        let commands = u128::from(self.commands());
        let rank = (commands * u128::from(permille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return bound_of(bucket).unwrap_or(1 << LAST_OCTAVE);
            }
        }
        0
    }

    /// The buckets that are not empty: the bound below which their times are, in nanoseconds (`None`: none), and commands.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let all = self.buckets.iter().enumerate();
        all.filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (bound_of(bucket), *count))
    }

    /// What was counted since an earlier look. If a count fell, the daemon began anew, and all is since then.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        let mut pairs = self.buckets.iter().zip(&before.buckets);
        if pairs.any(|(now, before)| now < before) {
            return since;
        }
        since.total_ns = self.total_ns.saturating_sub(before.total_ns);
        for (now, before) in since.buckets.iter_mut().zip(&before.buckets) {
            *now -= before;
        }
        since
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.total_ns = self.total_ns.wrapping_add(other.total_ns);
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.saturating_add(*more);
        }
    }
}

/// How long the commands on a volume took, by operation: those of which there were any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Latencies(pub BTreeMap<Operation, Latency>);

impl Latencies {
    /// That of an operation.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Latency {
        self.0.get(&operation).cloned().unwrap_or_default()
    }

    /// What was counted since an earlier look, as [`Latency::since`]; operations of which there were none are left out.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let since = self.0.iter().map(|(operation, now)| {
            let before = before.0.get(operation);
            let since = before.map_or_else(|| now.clone(), |before| now.since(before));
            (*operation, since)
        });
        Self(since.filter(|(_, since)| since.commands() > 0).collect())
    }

    /// Adds those of another volume.
    pub fn add(&mut self, other: &Self) {
        for (operation, latency) in &other.0 {
            self.0.entry(*operation).or_default().add(latency);
        }
    }
}

/// [`Latency`] in JSON.
#[derive(Serialize, Deserialize)]
struct LatencyJson {
    commands: u64,
    total_ns: u64,
    mean_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    /// Only those that are not empty.
    buckets: Vec<BucketJson>,
}

#[derive(Serialize, Deserialize)]
struct BucketJson {
    /// `null`: there is no bound.
    below_ns: Option<u64>,
    commands: u64,
}

impl Serialize for Latency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = self.buckets();
        let json = LatencyJson {
            commands: self.commands(),
            total_ns: self.total_ns,
            mean_ns: self.mean_ns(),
            p50_ns: self.permille_ns(500),
            p99_ns: self.permille_ns(990),
            p999_ns: self.permille_ns(999),
            buckets: buckets
                .map(|(below_ns, commands)| BucketJson { below_ns, commands })
                .collect(),
        };
        json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = LatencyJson::deserialize(deserializer)?;
        let mut latency = Self {
            total_ns: json.total_ns,
            ..Self::default()
        };
        for BucketJson { below_ns, commands } in json.buckets {
            // A bound of another version lands in the bucket that its times are in.
            let bucket = below_ns.map_or(BUCKETS - 1, |below| bucket_of(below.saturating_sub(1)));
            if let Some(sum) = latency.buckets.get_mut(bucket) {
                *sum = sum.saturating_add(commands);
            }
        }
        Ok(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(times_ns: &[u64]) -> Latency {
        let mut latency = Latency::default();
        for ns in times_ns {
            latency.total_ns = latency.total_ns.wrapping_add(*ns);
            latency.buckets[bucket_of(*ns)] += 1;
        }
        latency
    }

    #[test]
    fn buckets_follow_each_other_without_a_hole_and_no_time_is_more_than_a_quarter_below_its_bound()
    {
        let mut begins = 0;
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(begins), bucket, "{begins}");
            let Some(bound) = bound_of(bucket) else {
                assert_eq!((bucket, begins), (BUCKETS - 1, 1 << LAST_OCTAVE));
                break;
            };
            assert_eq!(bucket_of(bound - 1), bucket, "{bound}");
            assert!(bucket == 0 || bound * 4 <= begins * 5, "{begins}..{bound}");
            begins = bound;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_upper_bounds_of_what_so_many_commands_took() {
        assert_eq!(Latency::default().permille_ns(990), 0);
        let times: Vec<u64> = (1..=1000).map(|us| us * 1000).collect();
        let latency = counted(&times);
        assert_eq!(latency.commands(), 1000);
        assert_eq!(latency.mean_ns(), 500_500);
        for (permille, exact) in [(500, 500_000), (990, 990_000), (999, 999_000)] {
            let said = latency.permille_ns(permille);
            assert!(
                (exact..=exact * 5 / 4).contains(&said),
                "{permille}: {said}"
            );
        }
        let one_slow = counted(&[vec![2000; 999], vec![u64::MAX]].concat());
        assert!(one_slow.permille_ns(999) < 3000);
        assert_eq!(one_slow.permille_ns(1000), 1 << 34);
    }

    #[test]
    fn two_looks_can_be_subtracted_and_a_daemon_that_began_anew_gives_what_it_counted_since() {
        let (before, after) = (counted(&[5000; 10]), counted(&[5000, 5000, 90_000]));
        let mut now = before.clone();
        now.add(&after);
        assert_eq!(now.since(&before), after);
        assert_eq!(after.since(&before), after);
    }

    #[test]
    fn json_has_the_percentiles_and_gives_the_buckets_back() {
        let latency = counted(&[500, 1500, 2_000_000, 60_000_000_000]);
        let json = serde_json::to_value(&latency).expect("JSON");
        assert_eq!(json["commands"], 4);
        assert_eq!(json["p50_ns"], 1536);
        assert_eq!(json["buckets"][0]["below_ns"], 1024);
        assert_eq!(json["buckets"][3]["below_ns"], serde_json::Value::Null);
        let back: Latency = serde_json::from_value(json).expect("a latency");
        assert_eq!(back, latency);
    }

    #[test]
    fn names_in_json_and_in_labels_are_the_same() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
            assert_eq!(
                serde_json::to_value(operation).expect("JSON"),
                operation.name()
            );
        }
    }
}
