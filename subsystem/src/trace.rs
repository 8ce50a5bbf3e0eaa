//! Commands of a host, told to whoever watches as they are answered, with the time of their stages.
//!
//! Guarantees:
//! - A command costs one look at a counter when nobody watches any host.
//! - No command waits for who watches: what finds a watcher's queue full is left out and counted.
//! - At most [`TRACES_MAX`] watch, each with at most [`WAITING_MAX`] commands waiting to be taken.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use dedup::{Stage, Stopwatch, rfc3339};
use nvme::command::FABRICS_OPCODE;
use nvme::{Nqn, Sqe, Status, io};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::errors::Failure;
use crate::latency::Operation;
use crate::lock::lock;

/// Who can watch at a time.
pub const TRACES_MAX: usize = 8;
/// Commands that wait for one who watches.
pub const WAITING_MAX: usize = 4096;

/// A command that was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCommand {
    /// When it was answered: a time of RFC 3339, in UTC.
    pub at: String,
    /// Its queue: 0 is the admin queue.
    pub qid: u16,
    /// The identifier that the host gave it.
    pub cid: u16,
    /// What it is, such as `read`; `admin 06h` or `io 7fh` for others.
    pub operation: String,
    /// The namespace.
    pub nsid: u32,
    /// The first logical block, of commands on a range; 0 of others.
    pub lba: u64,
    /// How many, of the same commands.
    pub blocks: u32,
    /// How it was answered, in words.
    pub status: String,
    /// Whether that is an error.
    pub failed: bool,
    /// Nanoseconds from its arrival to its answer.
    pub total_ns: u64,
    /// Of these, in each stage in which it was: `receive`, `data`, `wait`, `hash`, `index`, `drive`, `journal`, `send`.
    pub stages_ns: BTreeMap<String, u64>,
}

/// Who watches.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    watchers: Mutex<Vec<Watcher>>,
    /// How many they are, for commands to look at.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Watcher {
    host: Nqn,
    commands: Sender<TracedCommand>,
    left_out: Arc<AtomicU64>,
}

/// The commands of a host, from now on.
#[derive(Debug)]
pub struct Trace {
    traces: Arc<Traces>,
    commands: Receiver<TracedCommand>,
    left_out: Arc<AtomicU64>,
}

impl Traces {
    /// Begins to watch a host, which may come later.
    ///
    /// # Errors
    /// Too many watch already.
    pub(crate) fn watch(self: &Arc<Self>, host: Nqn) -> Result<Trace, Failure> {
        let mut watchers = lock(&self.watchers);
        if watchers.len() >= TRACES_MAX {
            return Err(Failure::unavailable(format!(
                "{TRACES_MAX} traces are being taken already: end one of them"
            )));
        }
        let (sender, commands) = channel(WAITING_MAX);
        let left_out = Arc::<AtomicU64>::default();
        watchers.push(Watcher {
            host,
            commands: sender,
            left_out: left_out.clone(),
        });
        self.count.store(watchers.len(), Ordering::Relaxed);
        Ok(Trace {
            traces: self.clone(),
            commands,
            left_out,
        })
    }

    /// The stopwatch of a command that arrived then, if somebody watches its host.
    pub(crate) fn begin(&self, host: &Nqn, arrived: Instant) -> Option<Rc<Stopwatch>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let is_watched = lock(&self.watchers)
            .iter()
            .any(|watcher| watcher.host == *host);
        is_watched.then(|| {
            let stopwatch = Stopwatch::since(arrived);
            stopwatch.ended(Stage::Receive);
            Rc::new(stopwatch)
        })
    }

    /// A command of that host was answered.
    pub(crate) fn tell(&self, host: &Nqn, command: &TracedCommand) {
        let watchers = lock(&self.watchers);
        for watcher in watchers.iter().filter(|watcher| watcher.host == *host) {
            if watcher.commands.try_send(command.clone()).is_err() {
                watcher.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Trace {
    /// Waits for commands; the next ones, up to so many, in the order in which they were answered.
    pub async fn next(&mut self, limit: usize) -> Vec<TracedCommand> {
        let mut commands = Vec::new();
        self.commands.recv_many(&mut commands, limit).await;
        commands
    }

    /// Commands that were left out since this was asked last.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut watchers = lock(&self.traces.watchers);
        watchers.retain(|watcher| !Arc::ptr_eq(&watcher.left_out, &self.left_out));
        self.traces.count.store(watchers.len(), Ordering::Relaxed);
    }
}

impl TracedCommand {
    /// A command that was answered just now.
    pub(crate) fn new(qid: u16, sqe: &Sqe, status: Status, stopwatch: &Stopwatch) -> Self {
        let (lba, blocks) = match is_on_range(qid, sqe.opcode()) {
            // Bits 15:0 of dword 12, and one more.
            true => (sqe.slba(), (sqe.cdw(12) & 0xffff) + 1),
            false => (0, 0),
        };
        let nanoseconds =
            |stage| u64::try_from(stopwatch.spent(stage).as_nanos()).unwrap_or(u64::MAX);
        let spent = Stage::ALL.map(|stage| (stage, nanoseconds(stage)));
        let stages = spent.iter().filter(|(_, spent)| *spent > 0);
        Self {
            at: rfc3339(SystemTime::now()),
            qid,
            cid: sqe.cid(),
            operation: operation(qid, sqe.opcode()),
            nsid: sqe.nsid(),
            lba,
            blocks,
            status: status.to_string(),
            failed: !status.is_success(),
            total_ns: spent.iter().map(|(_, spent)| spent).sum(),
            stages_ns: stages
                .map(|(stage, spent)| (stage.name().to_owned(), *spent))
                .collect(),
        }
    }
}

/// Whether it is an I/O command with a starting LBA and a number of blocks.
fn is_on_range(qid: u16, opcode: u8) -> bool {
    let on_range = [
        io::OPCODE_WRITE,
        io::OPCODE_READ,
        io::OPCODE_WRITE_UNCORRECTABLE,
        io::OPCODE_COMPARE,
        io::OPCODE_WRITE_ZEROES,
        io::OPCODE_VERIFY,
    ];
    qid > 0 && on_range.contains(&opcode)
}

fn operation(qid: u16, opcode: u8) -> String {
    match (qid, opcode, Operation::of(opcode)) {
        (_, FABRICS_OPCODE, _) => "fabrics".to_owned(),
        (0, _, _) => format!("admin {opcode:02x}h"),
        (_, _, Some(operation)) => operation.name().replace('_', " "),
        (_, _, None) => format!("io {opcode:02x}h"),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn host(name: &str) -> Nqn {
        format!("nqn.2026-11.test:{name}").parse().expect("a name")
    }

    fn traced(cid: u16) -> TracedCommand {
        TracedCommand {
            cid,
            ..TracedCommand::default()
        }
    }

    #[test]
    fn who_watches_a_host_gets_its_commands_and_what_was_left_out() {
        let traces = Arc::new(Traces::default());
        assert!(traces.begin(&host("a"), Instant::now()).is_none());
        let mut trace = traces.watch(host("a")).expect("a place");
        assert!(traces.begin(&host("a"), Instant::now()).is_some());
        assert!(traces.begin(&host("b"), Instant::now()).is_none());
        traces.tell(&host("b"), &traced(0));
        for cid in 0..WAITING_MAX as u16 + 3 {
            traces.tell(&host("a"), &traced(cid));
        }
        let first = trace.next(2).now_or_never().expect("there are some");
        assert_eq!(first, [traced(0), traced(1)]);
        assert_eq!((trace.left_out(), trace.left_out()), (3, 0));
        drop(trace);
        assert!(traces.begin(&host("a"), Instant::now()).is_none());
    }

    #[test]
    fn those_who_watch_are_bounded() {
        let traces = Arc::new(Traces::default());
        let watch = |_| traces.watch(host("a")).expect("a place");
        let mut all: Vec<_> = (0..TRACES_MAX).map(watch).collect();
        let refused = traces.watch(host("a")).unwrap_err().message;
        assert!(refused.contains("end one of them"), "{refused}");
        all.pop();
        traces.watch(host("a")).expect("a place again");
    }

    #[test]
    fn a_command_has_its_name_its_blocks_and_all_its_time() {
        let stopwatch = Stopwatch::since(Instant::now());
        for stage in [Stage::Receive, Stage::Drive, Stage::Send] {
            stopwatch.ended(stage);
        }
        let sqe = Sqe::new(io::OPCODE_READ)
            .with_nsid(3)
            .with_cdw(10, 9)
            .with_cdw(12, 7);
        let command = TracedCommand::new(1, &sqe, Status::SUCCESS, &stopwatch);
        assert_eq!(command.operation, "read");
        assert_eq!((command.nsid, command.lba, command.blocks), (3, 9, 8));
        assert_eq!(command.stages_ns.values().sum::<u64>(), command.total_ns);
        assert!(
            command
                .stages_ns
                .keys()
                .all(|stage| ["receive", "drive", "send"].contains(&stage.as_str()))
        );
        let admin = TracedCommand::new(0, &sqe, Status::SUCCESS, &stopwatch);
        assert_eq!((admin.operation.as_str(), admin.blocks), ("admin 02h", 0));
    }
}
