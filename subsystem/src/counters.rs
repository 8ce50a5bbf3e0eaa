//! Counters of what hosts did since the daemon started. Together with earlier runs (`record`) they are the figures of
//! the SMART / Health Information log page.
//!
//! Guarantees: no reactor waits for another one to count, because each queue has counters of its own, and each reactor has
//! them for each volume; a sum misses nothing and counts nothing twice, whichever queues come and go.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::latency::{BUCKETS, Latencies, Latency, Operation, bucket_of};
use crate::lock::lock;

/// A counter that one thread raises and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Raises it. Only the counter's own thread may call this: it is no atomic addition.
    pub(crate) fn add(&self, amount: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(sum, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one queue, or of what one reactor does to one volume. Aligned to cache lines, so that queues of two reactors share none.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct QueueCounters {
    pub(crate) read_commands: Counter,
    pub(crate) write_commands: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    pub(crate) media_errors: Counter,
    pub(crate) error_entries: Counter,
    pub(crate) begun_commands: Counter,
    pub(crate) ended_commands: Counter,
}

impl QueueCounters {
    /// Counts a command that succeeded, with the bytes that it moved between host and target.
    pub(crate) fn count(&self, operation: Operation, bytes: u64) {
        let (commands, sum) = match operation {
            Operation::Read => (&self.read_commands, &self.bytes_read),
            Operation::Write
            | Operation::WriteZeroes
            | Operation::Copy
            | Operation::WriteUncorrectable => (&self.write_commands, &self.bytes_written),
            Operation::Flush | Operation::Trim | Operation::Compare | Operation::Verify => return,
        };
        commands.add(1);
        sum.add(bytes);
    }

    fn totals(&self) -> Totals {
        Totals {
            read_commands: self.read_commands.get(),
            write_commands: self.write_commands.get(),
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            media_errors: self.media_errors.get(),
            error_entries: self.error_entries.get(),
        }
    }
}

/// How long the commands of one operation took. Aligned to cache lines, so that reactors share none.
#[derive(Debug)]
#[repr(align(64))]
struct Histogram {
    total_ns: Counter,
    buckets: [Counter; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            total_ns: Counter::default(),
            buckets: std::array::from_fn(|_| Counter::default()),
        }
    }
}

/// How long the commands of one reactor on one volume took, by operation. To count one is two stores; the first one of an
/// operation takes memory, 0.8 KiB.
#[derive(Debug, Default)]
struct Histograms([OnceLock<Box<Histogram>>; Operation::ALL.len()]);

impl Histograms {
    fn count(&self, operation: Operation, took: Duration) {
        let Some(place) = self.0.get(operation as usize) else {
            return;
        };
        let histogram = place.get_or_init(Box::default);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        histogram.total_ns.add(ns);
        if let Some(bucket) = histogram.buckets.get(bucket_of(ns)) {
            bucket.add(1);
        }
    }

    /// Adds what was counted here to a sum.
    fn add_to(&self, sum: &mut Latencies) {
        for (operation, place) in Operation::ALL.into_iter().zip(&self.0) {
            let Some(histogram) = place.get() else {
                continue;
            };
            let buckets = std::array::from_fn(|at| histogram.buckets[at].get());
            let latency = Latency::new(histogram.total_ns.get(), buckets);
            sum.0.entry(operation).or_default().add(&latency);
        }
    }
}

/// Sums over all queues, those that are gone included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) read_commands: u64,
    pub(crate) write_commands: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) media_errors: u64,
    pub(crate) error_entries: u64,
}

impl Totals {
    /// Reads and writes.
    pub(crate) fn commands(&self) -> u64 {
        self.read_commands.wrapping_add(self.write_commands)
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            read_commands: self.read_commands.wrapping_add(other.read_commands),
            write_commands: self.write_commands.wrapping_add(other.write_commands),
            bytes_read: self.bytes_read.wrapping_add(other.bytes_read),
            bytes_written: self.bytes_written.wrapping_add(other.bytes_written),
            media_errors: self.media_errors.wrapping_add(other.media_errors),
            error_entries: self.error_entries.wrapping_add(other.error_entries),
        }
    }
}

/// The counters of all queues.
#[derive(Debug)]
pub(crate) struct Health {
    started: Instant,
    /// By the names of their reactors.
    queues: Mutex<BTreeMap<Box<str>, Queues>>,
    volumes: Mutex<Volumes>,
}

/// The counters of all volumes.
#[derive(Debug, Default)]
struct Volumes {
    /// By the volumes that they are about, and by the threads that count.
    live: HashMap<Uuid, HashMap<ThreadId, Arc<VolumeCounters>>>,
    /// How long commands on volumes took that were deleted.
    deleted: Latencies,
}

/// What the queues of a reactor do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfReactor {
    /// Those that it has now.
    pub(crate) queues: u64,
    /// Commands in flight there, now.
    pub(crate) in_flight: u64,
    /// What all that it has had did.
    pub(crate) totals: Totals,
}

/// What one reactor does to one volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeCounters {
    counters: QueueCounters,
    histograms: Histograms,
}

impl VolumeCounters {
    /// Counts a command that succeeded. Only the reactor that enrolled them may call this.
    pub(crate) fn count(&self, operation: Operation, bytes: u64, took: Duration) {
        self.counters.count(operation, bytes);
        self.histograms.count(operation, took);
    }
}

/// The counters of a controller's queues.
#[derive(Debug, Default)]
pub(crate) struct ControllerCounters(Mutex<Queues>);

impl ControllerCounters {
    pub(crate) fn enrol(&self, counters: Arc<QueueCounters>) {
        lock(&self.0).live.push(counters);
    }

    pub(crate) fn retire(&self, counters: &Arc<QueueCounters>) {
        lock(&self.0).retire(counters);
    }

    pub(crate) fn totals(&self) -> Totals {
        lock(&self.0).totals()
    }
}

/// Counters that are summed: those of the queues of a reactor or of a controller.
#[derive(Debug, Default)]
struct Queues {
    gone: Totals,
    live: Vec<Arc<QueueCounters>>,
}

impl Queues {
    /// Its counts stay in the sum.
    fn retire(&mut self, counters: &Arc<QueueCounters>) {
        let at = self.live.iter().position(|c| Arc::ptr_eq(c, counters));
        if let Some(at) = at {
            self.live.swap_remove(at);
            self.gone = self.gone.plus(counters.totals());
        }
    }

    fn totals(&self) -> Totals {
        let live = self.live.iter().map(|counters| counters.totals());
        live.fold(self.gone, Totals::plus)
    }
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            queues: Mutex::default(),
            volumes: Mutex::default(),
        }
    }

    /// Counters for a new queue of a reactor.
    pub(crate) fn enrol(&self, reactor: &str) -> Arc<QueueCounters> {
        let counters = Arc::new(QueueCounters::default());
        let mut all = lock(&self.queues);
        let queues = all.entry(reactor.into()).or_default();
        queues.live.push(counters.clone());
        counters
    }

    /// The queue has ended; its counts stay in the sums.
    pub(crate) fn retire(&self, counters: &Arc<QueueCounters>) {
        for queues in lock(&self.queues).values_mut() {
            queues.retire(counters);
        }
    }

    /// Counters for what this reactor does to a volume, for all of its queues.
    pub(crate) fn enrol_volume(&self, volume: Uuid) -> Arc<VolumeCounters> {
        let mut all = lock(&self.volumes);
        let reactors = all.live.entry(volume).or_default();
        reactors.entry(thread::current().id()).or_default().clone()
    }

    /// The volume was deleted.
    pub(crate) fn forget_volume(&self, volume: Uuid) {
        let mut all = lock(&self.volumes);
        let reactors = all.live.remove(&volume).unwrap_or_default();
        for reactor in reactors.values() {
            reactor.histograms.add_to(&mut all.deleted);
        }
    }

    /// What hosts did to a volume, and how long it took.
    pub(crate) fn of_volume(&self, volume: Uuid) -> (Totals, Latencies) {
        let mut sums = (Totals::default(), Latencies::default());
        let all = lock(&self.volumes);
        for reactor in all.live.get(&volume).into_iter().flat_map(HashMap::values) {
            sums.0 = sums.0.plus(reactor.counters.totals());
            reactor.histograms.add_to(&mut sums.1);
        }
        sums
    }

    /// How long the commands on all volumes took, those that were deleted included.
    pub(crate) fn latencies(&self) -> Latencies {
        let all = lock(&self.volumes);
        let mut sum = all.deleted.clone();
        for reactor in all.live.values().flat_map(HashMap::values) {
            reactor.histograms.add_to(&mut sum);
        }
        sum
    }

    /// All figures now.
    pub(crate) fn totals(&self) -> Totals {
        let all = lock(&self.queues);
        let sums = all.values().map(Queues::totals);
        sums.fold(Totals::default(), Totals::plus)
    }

    /// What the queues of a reactor do.
    pub(crate) fn of_reactor(&self, name: &str) -> OfReactor {
        let all = lock(&self.queues);
        let Some(queues) = all.get(name) else {
            return OfReactor::default();
        };
        let in_flight = queues.live.iter().map(|counters| {
            // In this order: a command that ends in between is counted as one that has begun too.
            let ended = counters.ended_commands.get();
            counters.begun_commands.get().saturating_sub(ended)
        });
        OfReactor {
            queues: queues.live.len() as u64,
            in_flight: in_flight.sum(),
            totals: queues.totals(),
        }
    }

    /// How long the daemon runs.
    pub(crate) fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_queue_counted_stays_when_it_is_gone() {
        let health = Health::new();
        let (first, second) = (health.enrol("data0"), health.enrol("data1"));
        first.count(Operation::Read, 4096);
        second.count(Operation::Write, 512);
        second.media_errors.add(2);
        let expected = Totals {
            read_commands: 1,
            write_commands: 1,
            bytes_read: 4096,
            bytes_written: 512,
            media_errors: 2,
            error_entries: 0,
        };
        assert_eq!(health.totals(), expected);
        health.retire(&first);
        health.retire(&first);
        assert_eq!(health.totals(), expected, "and is counted once");
        second.error_entries.add(1);
        assert_eq!(health.totals().error_entries, 1);
        let first = health.of_reactor("data0");
        assert_eq!(
            (first.queues, first.totals.commands()),
            (0, 1),
            "it stays its reactor's"
        );
        second.begun_commands.add(3);
        second.ended_commands.add(1);
        let second = health.of_reactor("data1");
        assert_eq!((second.queues, second.in_flight), (1, 2));
        assert_eq!(health.of_reactor("data2"), OfReactor::default());
    }

    #[test]
    fn reactors_count_a_volume_side_by_side_and_its_counts_go_when_it_is_deleted() {
        let health = Arc::new(Health::new());
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let took = Duration::from_micros(100);
        let here = health.enrol_volume(one);
        assert!(
            Arc::ptr_eq(&here, &health.enrol_volume(one)),
            "of all queues"
        );
        here.count(Operation::Read, 4096, took);
        here.count(Operation::Flush, 0, took);
        let elsewhere = health.clone();
        let counted = thread::spawn(move || {
            elsewhere
                .enrol_volume(one)
                .count(Operation::Write, 512, took);
            elsewhere
                .enrol_volume(one)
                .count(Operation::Read, 512, took);
        });
        counted.join().expect("it has counted");
        health
            .enrol_volume(other)
            .count(Operation::Write, 8192, took);
        let (totals, latencies) = health.of_volume(one);
        assert_eq!((totals.commands(), totals.bytes_read), (3, 4608));
        let commands = |operation| latencies.of(operation).commands();
        assert_eq!(
            [Operation::Read, Operation::Write, Operation::Flush].map(commands),
            [2, 1, 1]
        );
        assert_eq!(latencies.of(Operation::Read).mean_ns(), 100_000);
        assert_eq!(health.of_volume(other).0.bytes_written, 8192);
        let all = health.latencies();
        health.forget_volume(one);
        assert_eq!(health.latencies(), all, "their time stays in the sum");
        assert_eq!(all.of(Operation::Write).commands(), 2);
        assert_eq!(health.of_volume(one), Default::default());
        here.count(Operation::Read, 4096, took);
        assert_eq!(health.of_volume(one), Default::default());
    }

    #[test]
    fn a_controller_counts_what_its_queues_did_also_those_that_are_gone() {
        let (health, counters) = (Health::new(), ControllerCounters::default());
        let queues = [health.enrol("data0"), health.enrol("data1")];
        for queue in &queues {
            counters.enrol(queue.clone());
            queue.count(Operation::Read, 4096);
        }
        counters.retire(&queues[0]);
        assert_eq!(counters.totals().read_commands, 2);
        assert_eq!(counters.totals().bytes_read, 8192);
    }
}
