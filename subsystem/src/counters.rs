//! Counters of what hosts did since the daemon started. Together with earlier runs (`record`) they are the figures of
//! the SMART / Health Information log page.
//!
//! Guarantees: no reactor waits for another one to count, because each queue has counters of its own; a
//! sum misses nothing and counts nothing twice, whichever queues come and go.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

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

/// The counters of one queue, or of what one queue does to one volume. Aligned to cache lines, so that queues of two reactors share none.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct QueueCounters {
    pub(crate) read_commands: Counter,
    pub(crate) write_commands: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    pub(crate) media_errors: Counter,
    pub(crate) error_entries: Counter,
}

impl QueueCounters {
    pub(crate) fn count_read(&self, bytes: u64) {
        self.read_commands.add(1);
        self.bytes_read.add(bytes);
    }

    pub(crate) fn count_write(&self, bytes: u64) {
        self.write_commands.add(1);
        self.bytes_written.add(bytes);
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
    /// By the volumes that they are about.
    volumes: Mutex<HashMap<Uuid, Queues>>,
}

/// What one queue does to one volume.
#[derive(Debug)]
pub(crate) struct VolumeCounters {
    volume: Uuid,
    counters: Arc<QueueCounters>,
    health: Arc<Health>,
}

impl VolumeCounters {
    pub(crate) fn count_read(&self, bytes: u64) {
        self.counters.count_read(bytes);
    }

    pub(crate) fn count_write(&self, bytes: u64) {
        self.counters.count_write(bytes);
    }
}

impl Drop for VolumeCounters {
    fn drop(&mut self) {
        if let Some(queues) = lock(&self.health.volumes).get_mut(&self.volume) {
            queues.retire(&self.counters);
        }
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

/// Counters that are summed: those of the queues of a reactor or of a controller, or those of a volume.
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

    /// Counters for what a queue does to a volume. The queue drops them when it forgets the volume.
    pub(crate) fn enrol_volume(self: &Arc<Self>, volume: Uuid) -> VolumeCounters {
        let counters = Arc::new(QueueCounters::default());
        let mut all = lock(&self.volumes);
        all.entry(volume).or_default().live.push(counters.clone());
        VolumeCounters {
            volume,
            counters,
            health: self.clone(),
        }
    }

    /// The volume was deleted.
    pub(crate) fn forget_volume(&self, volume: Uuid) {
        lock(&self.volumes).remove(&volume);
    }

    /// What hosts did to a volume.
    pub(crate) fn of_volume(&self, volume: Uuid) -> Totals {
        let all = lock(&self.volumes);
        all.get(&volume)
            .map_or_else(Totals::default, Queues::totals)
    }

    /// All figures now.
    pub(crate) fn totals(&self) -> Totals {
        let all = lock(&self.queues);
        let sums = all.values().map(Queues::totals);
        sums.fold(Totals::default(), Totals::plus)
    }

    /// The queues that a reactor has now, and the figures of all that it has had.
    pub(crate) fn of_reactor(&self, name: &str) -> (usize, Totals) {
        let all = lock(&self.queues);
        let queues = all.get(name);
        queues.map_or_else(Default::default, |q| (q.live.len(), q.totals()))
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
        first.count_read(4096);
        second.count_write(512);
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
        let (queues, of_first) = health.of_reactor("data0");
        assert_eq!(
            (queues, of_first.commands()),
            (0, 1),
            "it stays its reactor's"
        );
        assert_eq!(health.of_reactor("data1").0, 1);
        assert_eq!(health.of_reactor("data2"), (0, Totals::default()));
    }

    #[test]
    fn a_volume_keeps_its_counts_when_queues_forget_it_and_loses_them_when_it_is_deleted() {
        let health = Arc::new(Health::new());
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let first = health.enrol_volume(one);
        let second = health.enrol_volume(one);
        first.count_read(4096);
        second.count_write(512);
        health.enrol_volume(other).count_write(8192);
        drop(first);
        let totals = health.of_volume(one);
        assert_eq!((totals.commands(), totals.bytes_read), (2, 4096));
        assert_eq!(health.of_volume(other).bytes_written, 8192);
        health.forget_volume(one);
        assert_eq!(health.of_volume(one), Totals::default());
        drop(second);
        assert_eq!(health.of_volume(one), Totals::default());
    }

    #[test]
    fn a_controller_counts_what_its_queues_did_also_those_that_are_gone() {
        let (health, counters) = (Health::new(), ControllerCounters::default());
        let queues = [health.enrol("data0"), health.enrol("data1")];
        for queue in &queues {
            counters.enrol(queue.clone());
            queue.count_read(4096);
        }
        counters.retire(&queues[0]);
        assert_eq!(counters.totals().read_commands, 2);
        assert_eq!(counters.totals().bytes_read, 8192);
    }
}
