//! `onefold bench transports`: a target and a client on a core each, over every transport.
//!
//! - The target is this program (`onefold serve`) with one reactor and a drive in memory, the client is
//!   this program too (`onefold perf`); both are processes of their own, bound to their cores. Other
//!   targets can be named, which are measured by the same client in the same run.
//! - Each figure is the median of several short runs; processor time of both sides is told for a command,
//!   because it hardly depends on what else the machine does.
//! - Beside a target that polls on the same core, each stands still while the other is measured, if its
//!   process is named.
//! - Reading finds data that was written before, never unwritten blocks.

mod caller;
mod idle;
mod neighbour;
mod report;

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::daemon::{
    self, BenchError, CoreTime, Daemon, MEMORY_DRIVE, Paused, RunOptions, Setup, is_settled, settle,
};
use crate::machine::{self, Machine};

pub use report::{Report, Row};

/// Bytes that each workload uses: more than caches hold.
const RANGE: &str = "256M";
/// What rows call our own target.
const OWN: &str = "onefold";
/// The target stores what was written when there is much of it, or after this time
/// (`dedup::EngineConfig::checkpoint_interval` and a second): who was idle for so long has nothing left to do.
const LEFT_OVER: Duration = Duration::from_secs(11);
/// How long to wait for that.
const LEFT_OVER_MAX: Duration = Duration::from_secs(90);
/// Hosts that are attached and do nothing.
const IDLE_HOSTS: usize = 16;
/// They are watched for at least so long, so that some of their keep alives and two scrapes of the metrics are counted.
const IDLE_SECONDS_MIN: u32 = 30;
/// Volumes of a pool of many, beside those that are used: what hosts ask for must not cost more with them.
const MANY_VOLUMES: usize = 500;
/// How the client fills a namespace before it is read.
const FILL: [&str; 8] = [
    "--rw", "write", "--bs", "128k", "--qd", "16", "--size", RANGE,
];

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How it is measured; of the others namespace 1.
    pub run: RunOptions,
    /// Other targets: `tcp://ADDR:PORT/NQN`.
    pub others: Vec<String>,
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
struct Workload {
    name: &'static str,
    pattern: &'static str,
    block: &'static str,
    block_bytes: u64,
    depth: u16,
    digests: bool,
    /// The namespace: 1 without deduplication, 2 with it.
    namespace: u32,
    goal: Goal,
}

/// What a workload is held against.
#[derive(Debug, Clone, Copy)]
enum Goal {
    /// Commands a second.
    Commands(f64),
    /// Commands a second in proportion to another workload of this run.
    Of(&'static str, f64),
    /// Median latency in microseconds, at most.
    Latency(f64),
}

// Commands a second of SPDK v26.05 (nvmf target, Malloc bdev, spdk_nvme_perf, NVMe/TCP on 127.0.0.1, one
// core each on two cores of an AMD EPYC): random reads and writes of 4 KiB at depth 32, writes and reads of
// 128 KiB at depth 16; and the mean latency of a 4 KiB read at depth 1, in microseconds. They count on that
// machine: elsewhere, name an SPDK target beside.
const SPDK_READ_4K: f64 = 480e3;
const SPDK_WRITE_4K: f64 = 420e3;
const SPDK_WRITE_128K: f64 = 38.4e3;
const SPDK_READ_128K: f64 = 33.0e3;
const SPDK_READ_QD1_US: f64 = 14.0;

const fn small(name: &'static str, pattern: &'static str, goal: Goal) -> Workload {
    Workload {
        name,
        pattern,
        block: "4k",
        block_bytes: 4 << 10,
        depth: 32,
        digests: false,
        namespace: 1,
        goal,
    }
}

const fn large(name: &'static str, pattern: &'static str, goal: Goal) -> Workload {
    Workload {
        block: "128k",
        block_bytes: 128 << 10,
        depth: 16,
        ..small(name, pattern, goal)
    }
}

const TCP: [Workload; 8] = [
    small("tcp-randread-4k", "randread", Goal::Commands(SPDK_READ_4K)),
    small(
        "tcp-randwrite-4k",
        "randwrite",
        Goal::Commands(SPDK_WRITE_4K),
    ),
    large("tcp-write-128k", "write", Goal::Commands(SPDK_WRITE_128K)),
    large("tcp-read-128k", "read", Goal::Commands(SPDK_READ_128K)),
    Workload {
        digests: true,
        ..small(
            "tcp-digests-randread-4k",
            "randread",
            Goal::Of("tcp-randread-4k", 0.65),
        )
    },
    Workload {
        digests: true,
        ..small(
            "tcp-digests-randwrite-4k",
            "randwrite",
            Goal::Of("tcp-randwrite-4k", 0.65),
        )
    },
    Workload {
        depth: 1,
        ..small(
            "tcp-randread-4k-qd1",
            "randread",
            Goal::Latency(1.1 * SPDK_READ_QD1_US),
        )
    },
    Workload {
        namespace: 2,
        ..large(
            "tcp-dedup-write-128k",
            "write",
            Goal::Commands(0.45 * SPDK_WRITE_128K),
        )
    },
];

const ROCE: [Workload; 4] = [
    large("roce-write-128k", "write", Goal::Of("tcp-write-128k", 1.0)),
    large("roce-read-128k", "read", Goal::Of("tcp-read-128k", 1.0)),
    small("roce-randread-4k", "randread", Goal::Commands(200e3)),
    small("roce-randwrite-4k", "randwrite", Goal::Commands(200e3)),
];

impl Workload {
    fn writes(&self) -> bool {
        self.pattern.contains("write")
    }
}

/// Runs the table. Blocks its thread; `progress` is told what begins.
///
/// # Errors
/// When neither transport could be measured; one of them alone, or another target, is noted in the report.
pub fn run(options: &Options, progress: &dyn Fn(&str)) -> Result<Report, BenchError> {
    // Before this thread is bound to a core.
    let machine = Machine::look(&options.run.dir);
    let own = machine::cores();
    let (target_core, client_core) = (own[0], own[own.len() - 1]);
    let mut bench = Bench {
        options,
        progress,
        client_core,
        rows: Vec::new(),
        notes: Vec::new(),
    };
    if target_core == client_core {
        bench
            .notes
            .push("One core: target and client share it.".to_owned());
    }
    let setup = |scheme, volumes| Setup {
        program: &options.run.program,
        dir: &options.run.dir,
        core: target_core,
        scheme,
        drive: MEMORY_DRIVE,
        volumes,
    };
    let mut failure = None;
    let paused = Paused::new(&options.run.pids);
    for (scheme, workloads) in [("tcp", &TCP[..]), ("rdma+soft", &ROCE[..])] {
        let measured =
            Daemon::start(&setup(scheme, 0)).and_then(|daemon| bench.own(&daemon, workloads));
        if let Err(error) = measured {
            bench.notes.push(format!("{scheme}: {error}"));
            failure.get_or_insert(error);
        }
    }
    if let (true, Some(failure)) = (bench.rows.is_empty(), failure) {
        return Err(failure);
    }
    for volumes in [0, MANY_VOLUMES] {
        let measured = Daemon::start(&setup("tcp", volumes))
            .and_then(|daemon| bench.neighbour(&daemon, volumes));
        if let Err(error) = measured {
            bench.notes.push(format!("neighbour: {error}"));
        }
    }
    drop(paused);
    for (index, address) in options.others.iter().enumerate() {
        let pid = options.run.pids.get(index).copied();
        let rest: Vec<u32> = options
            .run
            .pids
            .iter()
            .copied()
            .filter(|other| Some(*other) != pid)
            .collect();
        let _paused = Paused::new(&rest);
        if let Err(error) = bench.other(address, pid) {
            bench.notes.push(format!("{address}: {error}"));
        }
    }
    Ok(Report {
        machine,
        rows: bench.rows,
        notes: bench.notes,
    })
}

struct Bench<'a> {
    options: &'a Options,
    progress: &'a dyn Fn(&str),
    client_core: usize,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Bench<'_> {
    fn own(&mut self, daemon: &Daemon, workloads: &[Workload]) -> Result<(), BenchError> {
        for namespace in ["1", "2"] {
            self.client(
                "fill",
                daemon.address(),
                &[&FILL[..], &["--nsid", namespace]].concat(),
            )?;
        }
        for workload in workloads {
            let row = self.median(OWN, daemon.address(), workload, Some(daemon.pid()))?;
            let row = self.judge(row, workload);
            self.rows.push(row);
        }
        let seconds = self.options.run.seconds.max(IDLE_SECONDS_MIN);
        (self.progress)("what is left to do");
        if !is_settled(daemon.pid(), LEFT_OVER, LEFT_OVER_MAX) {
            let text = "The target was still at work when its idle hosts were measured.";
            self.notes.push(text.to_owned());
        }
        (self.progress)(&format!("{IDLE_HOSTS} idle hosts"));
        match idle::watch(daemon, IDLE_HOSTS, Duration::from_secs(seconds.into())) {
            Ok(idle) => self.notes.push(format!(
                "{IDLE_HOSTS} idle hosts at {} and {} scrapes of the metrics cost the target {:.2} % of a core over \
                 {seconds} s (goal: < 1 %)",
                daemon.address(),
                idle.scrapes,
                idle.core_share * 100.0
            )),
            Err(error) => self.notes.push(format!("idle hosts: {error}")),
        }
        Ok(())
    }

    /// What reads of one host take alone, beside a host that asks for namespaces and the SMART log, and beside a script
    /// that calls the API.
    fn neighbour(&mut self, daemon: &Daemon, volumes: usize) -> Result<(), BenchError> {
        self.client("fill", daemon.address(), &FILL)?;
        (self.progress)(&format!("a neighbour with {volumes} volumes more"));
        settle(daemon.pid());
        let alone = self.tail(daemon)?;
        let failed = |message| BenchError::Client {
            workload: "neighbour".to_owned(),
            message,
        };
        let asker = neighbour::Asker::start(daemon.address()).map_err(failed)?;
        let beside_admin = self.tail(daemon);
        let asked = asker.end().map_err(failed)?;
        let beside_admin = beside_admin?;
        let caller = caller::Caller::start(&daemon.api_socket());
        let beside_calls = self.tail(daemon);
        let called = caller.end().map_err(failed)?;
        let beside_calls = beside_calls?;
        self.notes.push(format!(
            "4 KiB reads at depth 1 take {:.1} us (p50), {:.1} us (p99); beside a host that sends {asked:.0} admin \
             commands a second {:.1} and {:.1}; beside {called:.0} calls of the API a minute, for the whole status, {:.1} \
             and {:.1}; with {volumes} volumes more in the pool",
            alone.p50_us,
            alone.p99_us,
            beside_admin.p50_us,
            beside_admin.p99_us,
            beside_calls.p50_us,
            beside_calls.p99_us
        ));
        Ok(())
    }

    /// The run with the median p99 of some with 4 KiB reads at depth 1.
    fn tail(&self, daemon: &Daemon) -> Result<Row, BenchError> {
        let reads = Workload {
            depth: 1,
            ..small("neighbour", "randread", Goal::Latency(0.0))
        };
        let seconds = self.options.run.seconds.to_string();
        let arguments = [
            "--rw", "randread", "--bs", "4k", "--qd", "1", "--time", &seconds, "--range", RANGE,
        ];
        let mut runs = Vec::new();
        for _ in 0..self.options.run.runs.max(1) {
            let report = self.client(reads.name, daemon.address(), &arguments)?;
            runs.push(Row::of_report(OWN, &reads, &report, 0.0, None));
        }
        runs.sort_by(|a, b| a.p99_us.total_cmp(&b.p99_us));
        Ok(runs.swap_remove(runs.len() / 2))
    }

    /// What a plain target can do, too: the workloads of its transport without deduplication.
    fn other(&mut self, address: &str, pid: Option<u32>) -> Result<(), BenchError> {
        let workloads = if address.starts_with("tcp") {
            &TCP[..]
        } else {
            &ROCE[..]
        };
        if self.options.run.overwrite {
            self.client("fill", address, &FILL)?;
        }
        for workload in workloads.iter().filter(|workload| workload.namespace == 1) {
            if workload.writes() && !self.options.run.overwrite {
                continue;
            }
            let mut row = self.median(address, address, workload, pid)?;
            let own = self.own_row(workload.name);
            row.beside = own.map(|own| own.commands_per_second / row.commands_per_second);
            self.rows.push(row);
        }
        Ok(())
    }

    fn median(
        &self,
        target: &str,
        address: &str,
        workload: &Workload,
        pid: Option<u32>,
    ) -> Result<Row, BenchError> {
        (self.progress)(&format!("{} on {target}", workload.name));
        let (depth, seconds) = (
            workload.depth.to_string(),
            self.options.run.seconds.to_string(),
        );
        let namespace = workload.namespace.to_string();
        let mut arguments = vec![
            "--rw",
            workload.pattern,
            "--bs",
            workload.block,
            "--qd",
            &depth,
            "--time",
            &seconds,
            "--nsid",
            &namespace,
            "--range",
            RANGE,
        ];
        if workload.digests {
            arguments.extend(["--header-digest", "--data-digest"]);
        }
        let mut runs = Vec::new();
        for _ in 0..self.options.run.runs.max(1) {
            // What earlier writes left to do is not this run's, and what this one leaves is.
            self.settle(target, pid);
            let target_before = pid.map(CoreTime::of);
            let client_before = daemon::children_seconds();
            let report = self.client(workload.name, address, &arguments)?;
            let client_seconds = daemon::children_seconds() - client_before;
            self.settle(target, pid);
            let target_seconds = pid
                .zip(target_before)
                .map(|(pid, before)| CoreTime::of(pid).since(&before));
            runs.push(Row::of_report(
                target,
                workload,
                &report,
                client_seconds,
                target_seconds,
            ));
        }
        runs.sort_by(|a, b| a.commands_per_second.total_cmp(&b.commands_per_second));
        let range = [
            runs[0].commands_per_second,
            runs[runs.len() - 1].commands_per_second,
        ];
        let mut median = runs.swap_remove(runs.len() / 2);
        median.range = range;
        Ok(median)
    }

    /// Waits until our own target has ended what it began. What it keeps for a later checkpoint is not in
    /// the figures of short runs. Others may poll for ever.
    fn settle(&self, target: &str, pid: Option<u32>) {
        if let Some(pid) = pid.filter(|_| target == OWN) {
            // A target that is never idle is measured as it is.
            settle(pid);
        }
    }

    /// Runs the client, and gives its report.
    fn client(
        &self,
        workload: &str,
        address: &str,
        arguments: &[&str],
    ) -> Result<Value, BenchError> {
        let failed = |message: String| BenchError::Client {
            workload: workload.to_owned(),
            message,
        };
        // A child begins on the cores of the thread that starts it.
        machine::bind_thread(&[self.client_core]).map_err(|error| failed(error.to_string()))?;
        let output = Command::new(&self.options.run.program)
            .args(["perf", address, "--json"])
            .args(arguments)
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, said.trim())));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
    }

    /// Our own figures of a workload.
    fn own_row(&self, name: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.name == name && row.target == OWN)
    }

    fn judge(&self, mut row: Row, workload: &Workload) -> Row {
        let (goal, met) = match workload.goal {
            Goal::Commands(least) => (
                format!(">= {:.0} K/s", least / 1e3),
                Some(row.commands_per_second >= least),
            ),
            Goal::Latency(most) => (format!("p50 <= {most:.1} us"), Some(row.p50_us <= most)),
            Goal::Of(other, share) => {
                let ratio = self
                    .own_row(other)
                    .map(|other| row.commands_per_second / other.commands_per_second);
                row.ratio = ratio;
                (
                    format!(">= {share:.2} of {other}"),
                    ratio.map(|ratio| ratio >= share),
                )
            }
        };
        row.goal = Some(goal);
        row.met = met;
        row
    }
}
