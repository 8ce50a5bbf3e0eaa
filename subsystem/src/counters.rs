//! Counters of what hosts did since the daemon started. Together with earlier runs (`record`) they are the figures of
//! the SMART / Health Information log page.
//!
//! Guarantees: no reactor waits for another one to count, because each queue has counters of its own; a
//! sum misses nothing and counts nothing twice, whichever queues come and go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::{Deserialize, Serialize};

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

/// The counters of one queue. Aligned to cache lines, so that queues of two reactors share none.
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
}

/// The queues of a reactor.
#[derive(Debug, Default)]
struct Queues {
    gone: Totals,
    live: Vec<Arc<QueueCounters>>,
}

impl Queues {
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
            let at = queues.live.iter().position(|c| Arc::ptr_eq(c, counters));
            if let Some(at) = at {
                queues.live.swap_remove(at);
                queues.gone = queues.gone.plus(counters.totals());
            }
        }
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
}
