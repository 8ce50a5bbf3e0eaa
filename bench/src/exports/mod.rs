//! `onefold bench exports`: volumes as disks of virtual machines (vhost-user-blk), served by this program and by others.
//!
//! - The target is this program (`onefold serve`) with one reactor, on a core of its own; the client is a front-end in this
//!   process, on another one. Other targets can be named by their sockets, which the same client measures in the same run.
//! - Each figure is the median of several short runs; processor time of the target is told for a request.
//! - Beside a target that polls on the same core, each stands still while the other is measured, if its process is named.
//! - Reads find what was written before, and look whether it is that.

mod front_end;
pub(crate) mod load;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::daemon::{
    BenchError, CoreTime, DEDUPLICATED, Daemon, PLAIN, Paused, RunOptions, Setup, settle,
};
use crate::machine::{self, Machine};
use load::{Load, Outcome, Pattern};

pub use crate::daemon::MEMORY_DRIVE;
pub use report::{Report, Row};

/// What rows call our own target.
const OWN: &str = "onefold";
/// Bytes of a disk that each workload uses: more than caches hold.
const RANGE: u64 = 256 << 20;
/// A target that has not answered for so long does not answer.
const STALLED: Duration = Duration::from_secs(10);

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How it is measured.
    pub run: RunOptions,
    /// What stores our own data, as `--drive` takes it.
    pub drive: String,
    /// Sockets of other targets.
    pub others: Vec<PathBuf>,
    /// Only these workloads; all if there are none.
    pub only: Vec<String>,
    /// The guest's memory is of huge pages, of which the system must have some.
    pub huge_pages: bool,
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
struct Workload {
    name: &'static str,
    pattern: Pattern,
    block_bytes: usize,
    depth: u16,
    sleeps: bool,
    /// On the volume that is not deduplicated.
    plain: bool,
}

const fn small(name: &'static str, pattern: Pattern) -> Workload {
    Workload {
        name,
        pattern,
        block_bytes: 4 << 10,
        depth: 32,
        sleeps: false,
        plain: false,
    }
}

const fn large(name: &'static str, pattern: Pattern) -> Workload {
    Workload {
        block_bytes: 128 << 10,
        depth: 8,
        ..small(name, pattern)
    }
}

/// Duplicates come last: they leave nothing that a read could look at.
const WORKLOADS: [Workload; 9] = [
    small("read-4k", Pattern::Read),
    Workload {
        sleeps: true,
        ..small("read-4k-sleeping", Pattern::Read)
    },
    Workload {
        depth: 1,
        ..small("read-4k-qd1", Pattern::Read)
    },
    large("read-128k", Pattern::Read),
    small("write-4k", Pattern::WriteUnique),
    Workload {
        depth: 1,
        ..small("write-4k-qd1", Pattern::WriteUnique)
    },
    large("write-128k", Pattern::WriteUnique),
    Workload {
        plain: true,
        ..small("write-4k-plain", Pattern::WriteUnique)
    },
    small("write-4k-duplicates", Pattern::WriteDuplicates),
];

/// Names of all workloads.
pub const NAMES: [&str; WORKLOADS.len()] = {
    let mut names = [""; WORKLOADS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = WORKLOADS[at].name;
        at += 1;
    }
    names
};

const FILL: Workload = large("fill", Pattern::Fill);

impl Workload {
    fn writes(&self) -> bool {
        self.pattern != Pattern::Read
    }
}

/// A target as the client meets it.
struct Disk<'a> {
    target: &'a str,
    socket: &'a Path,
    pid: Option<u32>,
    /// It has been filled.
    is_filled: bool,
}

/// Runs the table. Blocks its thread; `progress` is told what begins.
///
/// # Errors
/// When our own target could not be measured; another target that cannot is noted in the report.
pub fn run(options: &Options, progress: &dyn Fn(&str)) -> Result<Report, BenchError> {
    // Before this thread is bound to a core.
    let machine = Machine::look(&options.run.dir);
    let own = machine::cores();
    let (target_core, client_core) = (own[0], own[own.len() - 1]);
    let mut bench = Bench {
        options,
        progress,
        rows: Vec::new(),
        notes: Vec::new(),
    };
    if target_core == client_core {
        let text = "One core: target and client share it.";
        bench.notes.push(text.to_owned());
    }
    {
        let _paused = Paused::new(&options.run.pids);
        let daemon = Daemon::start(&Setup {
            program: &options.run.program,
            dir: &options.run.dir,
            core: target_core,
            scheme: "tcp",
            drive: &options.drive,
            volumes: 0,
        })?;
        bind(client_core)?;
        for plain in [false, true] {
            let volume = if plain { PLAIN } else { DEDUPLICATED };
            let disk = Disk {
                target: OWN,
                socket: &daemon.export(&options.run.program, volume)?,
                pid: Some(daemon.pid()),
                is_filled: true,
            };
            bench.measure(&disk, |workload| workload.plain == plain)?;
        }
    }
    bind(client_core)?;
    for (index, socket) in options.others.iter().enumerate() {
        let pid = options.run.pids.get(index).copied();
        let others = options.run.pids.iter().copied();
        let rest: Vec<u32> = others.filter(|other| Some(*other) != pid).collect();
        let _paused = Paused::new(&rest);
        let disk = Disk {
            target: &socket.display().to_string(),
            socket,
            pid,
            is_filled: options.run.overwrite,
        };
        // Of others there is one disk, which has no deduplication that could be switched off.
        let suits = |workload: &Workload| options.run.overwrite || !workload.writes();
        if let Err(error) = bench.measure(&disk, suits) {
            bench.notes.push(format!("{}: {error}", disk.target));
        }
    }
    Ok(Report {
        machine,
        drive: options.drive.clone(),
        rows: bench.rows,
        notes: bench.notes,
    })
}

fn bind(core: usize) -> Result<(), BenchError> {
    machine::bind_thread(&[core]).map_err(|source| BenchError::System {
        what: "cannot bind to a core".to_owned(),
        source,
    })
}

struct Bench<'a> {
    options: &'a Options,
    progress: &'a dyn Fn(&str),
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Bench<'_> {
    fn is_wanted(&self, workload: &Workload) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.iter().any(|name| name == workload.name)
    }

    /// The workloads that suit a disk.
    fn measure(
        &mut self,
        disk: &Disk<'_>,
        suits: impl Fn(&Workload) -> bool,
    ) -> Result<(), BenchError> {
        let wanted = |it: &&Workload| suits(it) && self.is_wanted(it);
        let workloads: Vec<&Workload> = WORKLOADS.iter().filter(wanted).collect();
        if workloads.is_empty() {
            return Ok(());
        }
        if disk.is_filled {
            self.once(disk, &FILL)?;
        }
        for workload in workloads {
            let mut row = self.median(disk, workload)?;
            if disk.target != OWN {
                let mut rows = self.rows.iter();
                let own = rows.find(|own| own.name == row.name && own.target == OWN);
                row.beside = own.map(|own| own.requests_per_second / row.requests_per_second);
            }
            self.rows.push(row);
        }
        Ok(())
    }

    fn once(&self, disk: &Disk<'_>, workload: &Workload) -> Result<Outcome, BenchError> {
        let load = Load {
            pattern: workload.pattern,
            block_bytes: workload.block_bytes,
            depth: workload.depth,
            range: RANGE,
            time: Duration::from_secs(self.options.run.seconds.into()),
            sleeps: workload.sleeps,
            verify: disk.is_filled,
        };
        let outcome = load::run(disk.socket, self.options.huge_pages, &load);
        outcome.map_err(|error| BenchError::Client {
            workload: format!("{} on {}", workload.name, disk.target),
            message: error.to_string(),
        })
    }

    fn median(&self, disk: &Disk<'_>, workload: &Workload) -> Result<Row, BenchError> {
        (self.progress)(&format!("{} on {}", workload.name, disk.target));
        let own_pid = disk.pid.filter(|_| disk.target == OWN);
        let mut rows = Vec::new();
        for _ in 0..self.options.run.runs.max(1) {
            // What earlier writes left to do is not this run's, and what this one leaves is. Others may poll for ever.
            own_pid.into_iter().for_each(settle);
            let before = disk.pid.map(CoreTime::of);
            let outcome = self.once(disk, workload)?;
            own_pid.into_iter().for_each(settle);
            let time = disk.pid.zip(before);
            let seconds = time.map(|(pid, before)| CoreTime::of(pid).since(&before));
            rows.push(Row::new(workload.name, disk.target, &outcome, seconds));
        }
        rows.sort_by(|a, b| a.requests_per_second.total_cmp(&b.requests_per_second));
        let range = [
            rows[0].requests_per_second,
            rows[rows.len() - 1].requests_per_second,
        ];
        let mut median = rows.swap_remove(rows.len() / 2);
        median.range = range;
        Ok(median)
    }
}
