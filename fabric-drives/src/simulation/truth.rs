//! What must be so whatever happens, as only somebody knows who sees everything.

use std::collections::BTreeSet;

use super::media::Record;
use super::world::Machine;

/// What all seeds together have seen: a simulation in which nothing happens proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) takeovers: u64,
    pub(super) writes: u64,
    /// Commands that met the reservation of another one.
    pub(super) refused: u64,
    /// Commands that took long enough to be overtaken.
    pub(super) late: u64,
    /// Preempts that waited for commands under way.
    pub(super) waited: u64,
    pub(super) restarts: u64,
    /// Processes that ended.
    pub(super) ended: u64,
    /// Owners that could not go on without half of the drives with the metadata.
    pub(super) cut_off: u64,
    /// Takeovers that met too few drives with the metadata.
    pub(super) too_few: u64,
    pub(super) fences: u64,
    pub(super) joins: u64,
    /// Pools that nobody could serve in the end, because half of the drives with the metadata or more are gone.
    pub(super) unserved: u64,
}

impl Seen {
    fn counts(&mut self) -> [&mut u64; 12] {
        [
            &mut self.takeovers,
            &mut self.writes,
            &mut self.refused,
            &mut self.late,
            &mut self.waited,
            &mut self.restarts,
            &mut self.ended,
            &mut self.cut_off,
            &mut self.too_few,
            &mut self.fences,
            &mut self.joins,
            &mut self.unserved,
        ]
    }

    pub(super) fn add(&mut self, mut other: Self) {
        for (sum, count) in self.counts().into_iter().zip(other.counts()) {
            *sum += *count;
        }
    }

    pub(super) fn least(mut self) -> u64 {
        self.counts()
            .into_iter()
            .map(|count| *count)
            .min()
            .unwrap_or(0)
    }
}

pub(super) struct Truth {
    processes: u64,
    acknowledged: BTreeSet<u64>,
    last_write: u64,
    /// The process that has read the pool last, to have it.
    owner: Option<u64>,
    /// What it read.
    read: Vec<Record>,
    epoch: u32,
    /// Who claimed each drive last, and was told so.
    claimed: Vec<Option<u64>>,
    /// The machine that had begun to copy all metadata anew to the drives, and is not done: its folder alone has all of it.
    pub(super) copies_anew: Option<usize>,
    /// When all failures had ended somebody acknowledged a write.
    pub(super) is_served: bool,
    /// When all failures had ended a node was told that tables know of nobody who had the pool.
    pub(super) is_forgotten: bool,
    pub(super) seen: Seen,
}

impl Truth {
    pub(super) fn new(sleds: usize) -> Self {
        Self {
            processes: 0,
            acknowledged: BTreeSet::new(),
            last_write: 0,
            owner: None,
            read: Vec::new(),
            epoch: 1,
            claimed: vec![None; sleds],
            copies_anew: None,
            is_served: false,
            is_forgotten: false,
            seen: Seen::default(),
        }
    }

    pub(super) fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    /// The machine with the process that has the pool.
    pub(super) fn owner_of(&self, machines: &[Machine]) -> Option<usize> {
        let mut machines = machines.iter();
        machines.position(|machine| self.owner.is_some() && machine.process == self.owner)
    }

    /// A process was told that the drive is its own.
    pub(super) fn claim(&mut self, drive: usize, process: u64) {
        self.claimed[drive] = Some(process);
    }

    /// A drive changes.
    pub(super) fn written(&self, drive: usize, process: u64) {
        let claimed = self.claimed[drive];
        assert!(
            claimed == Some(process),
            "process {process} changes drive {drive}, which is that of {claimed:?}"
        );
    }

    /// A process has read the pool, and has it from now on.
    pub(super) fn take(&mut self, process: u64, epoch: u32, records: &[Record]) {
        // It stood still since it had written its epoch: what it writes next is refused.
        if epoch < self.epoch {
            return;
        }
        let has = |write: &&u64| !records.contains(&Record::Write(**write));
        let lost = self.acknowledged.iter().find(has);
        assert!(
            lost.is_none(),
            "process {process} has the pool without the write {lost:?} that was acknowledged"
        );
        assert!(
            epoch > self.epoch,
            "process {process} has the pool in epoch {epoch}, and another one had it in {}",
            self.epoch
        );
        self.epoch = epoch;
        self.copies_anew = None;
        self.owner = Some(process);
        self.read = records.to_vec();
        self.seen.takeovers += 1;
    }

    pub(super) fn next_write(&mut self) -> u64 {
        self.last_write += 1;
        self.last_write
    }

    pub(super) fn acknowledge(&mut self, process: u64, write: u64, is_calm: bool) {
        let owner = self.owner;
        // Who stood still in between may say so later.
        assert!(
            owner == Some(process) || self.read.contains(&Record::Write(write)),
            "process {process} acknowledges the write {write}, and {owner:?} has the pool"
        );
        self.acknowledged.insert(write);
        self.seen.writes += 1;
        self.is_served |= is_calm && owner == Some(process);
    }
}
