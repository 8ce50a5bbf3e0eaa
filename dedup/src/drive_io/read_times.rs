//! How long drives take to read, and what they are asked for: which copy is read, and when another one is asked too (a hedge).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A new time counts for so much of the mean: 1 / 16.
const WEIGHT: u64 = 16;

/// One time counts as this many means at most: a drive that stalls once is not taken for a slow one.
const OUTLIER_FACTOR: u64 = 4;

/// As short as the mean is, a time counts as so much at most (ns).
const OUTLIER_MIN_NS: u64 = 1_000_000;

/// A copy is left aside if another one is expected to be read in less than one in so many of its time.
const SLOWER_FACTOR: u64 = 2;

/// Copies whose expected times differ by less than this (ns) are as good as each other.
const SLOWER_MIN_NS: u64 = 100_000;

/// Hedges of a pool at the same time: a slow read that another copy answered is none any more.
const HEDGES_MAX: u32 = 64;

/// Reads of one drive.
#[derive(Default)]
pub(crate) struct ReadTimes {
    /// What a read takes, in nanoseconds; 0 before the first one. Two that end at the same moment may count as one.
    mean_ns: AtomicU64,
    under_way: AtomicU32,
    /// Reads that another copy answered first.
    hedged: AtomicU64,
    /// Those of them that have not ended.
    owed: AtomicU32,
}

impl ReadTimes {
    /// A read begins.
    pub(crate) fn begin(self: &Arc<Self>, now: Instant) -> Timed {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Timed {
            times: self.clone(),
            began: now,
        }
    }

    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mean = self.mean_ns.load(Ordering::Relaxed);
        let took = took.min(mean.saturating_mul(OUTLIER_FACTOR).max(OUTLIER_MIN_NS));
        let mean = match mean {
            0 => took,
            _ => mean - mean / WEIGHT + took / WEIGHT,
        };
        self.mean_ns.store(mean, Ordering::Relaxed);
    }

    /// What a read takes; zero before the first one.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean_ns.load(Ordering::Relaxed))
    }

    /// What one more read will take, in nanoseconds; nobody knows of a drive that owes an answer.
    pub(crate) fn expected_ns(&self) -> u64 {
        if self.owes() {
            return u64::MAX;
        }
        let before = u64::from(self.under_way.load(Ordering::Relaxed));
        let mean = self.mean_ns.load(Ordering::Relaxed);
        mean.saturating_mul(before + 1)
    }

    /// Another copy answered first. The drive owes its answer until what comes back is dropped.
    pub(crate) fn owe(self: &Arc<Self>) -> Owed {
        self.hedged.fetch_add(1, Ordering::Relaxed);
        self.owed.fetch_add(1, Ordering::Relaxed);
        Owed(self.clone())
    }

    /// Whether a read of it that another copy answered has not ended.
    pub(crate) fn owes(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0
    }

    /// How often that was so.
    pub(crate) fn hedged(&self) -> u64 {
        self.hedged.load(Ordering::Relaxed)
    }
}

/// Whether a copy that is expected in so long (ns) is left aside for one that is expected in so long.
pub(crate) const fn is_slower(expected_ns: u64, other_ns: u64) -> bool {
    expected_ns / SLOWER_FACTOR > other_ns && expected_ns - other_ns > SLOWER_MIN_NS
}

/// The hedges of a pool.
#[derive(Default)]
pub(crate) struct Hedges {
    under_way: AtomicU32,
}

/// One of them, until it is dropped.
pub(crate) struct Permit(Arc<Hedges>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hedges {
    /// Room for one more.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Permit> {
        let permit = Permit(self.clone());
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        (before < HEDGES_MAX).then_some(permit)
    }
}

/// An answer that a drive owes.
pub(crate) struct Owed(Arc<ReadTimes>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A read that is under way, until this is dropped. Only the time of one that ended counts.
pub(crate) struct Timed {
    times: Arc<ReadTimes>,
    began: Instant,
}

impl Timed {
    /// It ended.
    pub(crate) fn end(self, now: Instant) {
        self.times.note(now.duration_since(self.began));
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.times.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive that took so long for some reads.
    fn after(times: u32, took: Duration) -> Arc<ReadTimes> {
        let reads = Arc::new(ReadTimes::default());
        let began = Instant::now();
        for _ in 0..times {
            reads.begin(began).end(began + took);
        }
        reads
    }

    #[test]
    fn a_drive_that_stalls_once_is_not_taken_for_a_slow_one_and_a_slow_one_is_known_soon() {
        let usual = Duration::from_micros(100);
        let reads = after(50, usual);
        let began = Instant::now();
        reads.begin(began).end(began + Duration::from_secs(1));
        assert!(reads.mean() < 2 * usual, "{:?}", reads.mean());
        for _ in 0..50 {
            reads.begin(began).end(began + Duration::from_millis(20));
        }
        assert!(
            reads.mean() > Duration::from_millis(10),
            "{:?}",
            reads.mean()
        );
    }

    #[test]
    fn a_read_is_expected_to_wait_for_those_under_way_and_one_that_is_given_up_is_none() {
        let reads = after(10, Duration::from_micros(100));
        let alone = reads.expected_ns();
        let began = Instant::now();
        let waiting: Vec<Timed> = (0..3).map(|_| reads.begin(began)).collect();
        assert_eq!(reads.expected_ns(), 4 * alone);
        drop(waiting);
        assert_eq!(reads.expected_ns(), alone);
    }

    #[test]
    fn a_drive_that_owes_an_answer_is_expected_to_take_for_ever_until_it_gave_it() {
        let reads = after(10, Duration::from_micros(100));
        let owed = reads.owe();
        assert_eq!(reads.expected_ns(), u64::MAX);
        drop(owed);
        assert!(reads.expected_ns() < 1_000_000);
        assert_eq!(reads.hedged(), 1);
    }

    #[test]
    fn copies_are_as_good_as_each_other_unless_one_takes_much_longer() {
        assert!(!is_slower(90_000, 1_000), "nobody notices");
        assert!(!is_slower(1_900_000, 1_000_000));
        assert!(is_slower(2_100_000, 1_000_000));
        assert!(!is_slower(0, 0));
    }
}
