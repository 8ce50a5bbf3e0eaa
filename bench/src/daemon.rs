//! The target of a measurement: a daemon with a pool in memory, as a process bound to a core.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::machine;

/// The subsystem that every daemon offers.
const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// The drive of a measurement that names none.
pub const MEMORY_DRIVE: &str = "memory=3G";

/// Size of a drive that is a new file.
const DRIVE_BYTES: &str = "3G";

/// Namespace 1 is hashed by nobody, namespace 2 is deduplicated; a drive of 3 GiB has room for both, and for
/// what was overwritten and cannot be reused yet.
const ARGUMENTS: [&str; 7] = [
    "--volume",
    "plain=512M,dedup=off",
    "--volume",
    "deduplicated=512M",
    "--reactors",
    "1",
    "--listen",
];

/// The volumes of these namespaces.
pub(crate) const PLAIN: &str = "plain";
pub(crate) const DEDUPLICATED: &str = "deduplicated";

/// The folder of its pool.
const POOL: &str = "pool";

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A folder or a process.
    #[error("{what}: {source}")]
    System {
        /// What could not be done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The target.
    #[error("the target did not start: {0}")]
    Target(String),
    /// The client.
    #[error("the client failed at {workload}: {message}")]
    Client {
        /// The workload that failed.
        workload: String,
        /// What the client said.
        message: String,
    },
}

/// How a program is measured beside other targets.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The `onefold` program.
    pub program: PathBuf,
    /// A folder for the pools' journals.
    pub dir: PathBuf,
    /// Seconds of a run.
    pub seconds: u32,
    /// Runs of a workload, of which the median counts.
    pub runs: usize,
    /// Processes of the other targets, in their order, as far as they run on this machine: stopped while another target is
    /// measured, and asked for their processor time.
    pub pids: Vec<u32>,
    /// Whether the others may be overwritten; else they are only read.
    pub overwrite: bool,
}

/// What a daemon is started with.
pub(crate) struct Setup<'a> {
    pub(crate) program: &'a Path,
    /// Where its pool is made.
    pub(crate) dir: &'a Path,
    pub(crate) core: usize,
    /// Of the transport that it listens for.
    pub(crate) scheme: &'a str,
    /// What stores its data, as `--drive` takes it.
    pub(crate) drive: &'a str,
    /// Empty volumes beside its two.
    pub(crate) volumes: usize,
}

/// A target that uses less of a core than this over a look is idle.
const IDLE_SHARE: f64 = 0.05;
/// Between two looks.
const SETTLING_LOOK: Duration = Duration::from_millis(300);
/// How long to wait for it.
const SETTLING_MAX: Duration = Duration::from_secs(10);

/// A running daemon. Dropping it ends it: nothing in it is to be kept.
pub(crate) struct Daemon {
    child: Child,
    address: String,
    http: SocketAddr,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts it, and waits until hosts can connect.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, BenchError> {
        let Setup {
            program,
            dir,
            core,
            scheme,
            drive,
            volumes,
        } = *setup;
        let system = |what: &str, source| BenchError::System {
            what: format!("{what} '{}'", dir.display()),
            source,
        };
        let folder = tempfile::Builder::new()
            .prefix("onefold-bench-")
            .tempdir_in(dir)
            .map_err(|source| system("no folder can be made in", source))?;
        let said = folder.path().join("said");
        let is_memory = drive.starts_with("memory=");
        let errors = File::create(&said).map_err(|source| system("no file in", source))?;
        let port = || free_port().map_err(|source| system("no free port for", source));
        let listen = format!("{scheme}://{}:{}", own_loopback(), port()?);
        let http = SocketAddr::new(own_loopback().into(), port()?);
        // A child begins on the cores of the thread that starts it.
        machine::bind_thread(&[core]).map_err(|source| system("cannot bind to a core", source))?;
        let mut child = Command::new(program)
            .arg("serve")
            .arg("--pool")
            .arg(folder.path().join(POOL))
            .args(["--drive", drive])
            .args(["--create", DRIVE_BYTES].iter().filter(|_| !is_memory))
            .args(ARGUMENTS)
            .arg(&listen)
            .arg("--http")
            .arg(http.to_string())
            .args(
                (0..volumes)
                    .flat_map(|number| ["--volume".to_owned(), format!("volume-{number}=1M")]),
            )
            .env("ONEFOLD_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|source| BenchError::System {
                what: format!("'{}' cannot be started", program.display()),
                source,
            })?;
        let output = child.stdout.take();
        let daemon = Self {
            child,
            address: format!("{listen}/{NQN}"),
            http,
            folder,
        };
        // The end of its output is the end of the daemon.
        let is_ready = output.is_some_and(|output| {
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.any(|line| line.starts_with("ready"))
        });
        if is_ready {
            return Ok(daemon);
        }
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        Err(BenchError::Target(said.trim().to_owned()))
    }

    /// Where it listens, with its subsystem.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where it answers HTTP.
    pub(crate) fn http(&self) -> SocketAddr {
        self.http
    }

    /// The socket of its API.
    pub(crate) fn api_socket(&self) -> PathBuf {
        self.folder.path().join(POOL).join("onefold.sock")
    }

    /// Exports a volume to virtual machines; gives the socket's path.
    pub(crate) fn export(&self, program: &Path, volume: &str) -> Result<PathBuf, BenchError> {
        let socket = self.folder.path().join(format!("{volume}.sock"));
        let made = Command::new(program)
            .args(["export", "create", volume, "--vhost"])
            .arg(&socket)
            .arg("--pool")
            .arg(self.folder.path().join(POOL))
            .output();
        let made = made.map_err(|source| BenchError::System {
            what: format!("'{}' cannot be started", program.display()),
            source,
        })?;
        match made.status.success() {
            true => Ok(socket),
            false => {
                let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
                Err(BenchError::Target(said))
            }
        }
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Processor time of a process so far.
#[derive(Debug, Default)]
pub(crate) struct CoreTime {
    /// Nanoseconds of each thread that lives.
    threads: HashMap<OsString, u64>,
    /// All of it, in clock ticks, with that of threads that have ended.
    ticks: u64,
}

impl CoreTime {
    /// That of a process; nothing of one that is not there.
    pub(crate) fn of(pid: u32) -> Self {
        let of_thread = |thread: std::fs::DirEntry| {
            // proc(5): nanoseconds on a processor, nanoseconds waiting, turns.
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let nanoseconds = text.split(' ').next()?.parse().ok()?;
            Some((thread.file_name(), nanoseconds))
        };
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let threads = threads.map_or_else(
            |_| HashMap::new(),
            |threads| threads.flatten().filter_map(of_thread).collect(),
        );
        Self {
            threads,
            // utime and stime.
            ticks: ticks(&format!("/proc/{pid}/stat"), [14, 15]),
        }
    }

    /// Seconds from an earlier look to this one. Threads come and go: what those did that have ended in
    /// between shows in the ticks alone.
    pub(crate) fn since(&self, earlier: &Self) -> f64 {
        let of_thread = |(thread, now): (&OsString, &u64)| {
            let before = earlier.threads.get(thread).copied().unwrap_or(0);
            now.saturating_sub(before)
        };
        let living = self.threads.iter().map(of_thread).sum::<u64>() as f64 / 1e9;
        // Each of the two counters may be a tick behind.
        let all = self.ticks.saturating_sub(earlier.ticks + 2) as f64 / TICKS_PER_SECOND;
        living.max(all)
    }
}

/// Waits until the process has been idle for that time in a row; false if it was not within `most`.
pub(crate) fn is_settled(pid: u32, time: Duration, most: Duration) -> bool {
    let end = Instant::now() + most;
    let mut idle_since = Instant::now();
    let mut before = CoreTime::of(pid);
    while Instant::now() < end {
        // What is measured is the share of the core over this time.
        std::thread::sleep(SETTLING_LOOK);
        let now = CoreTime::of(pid);
        if now.since(&before) >= SETTLING_LOOK.as_secs_f64() * IDLE_SHARE {
            idle_since = Instant::now();
        } else if idle_since.elapsed() >= time {
            return true;
        }
        before = now;
    }
    false
}

/// Waits until the process has ended what it began, at most a bounded while: one that is never idle is measured as it is.
pub(crate) fn settle(pid: u32) {
    is_settled(pid, SETTLING_LOOK, SETTLING_MAX);
}

/// Processes that stand still until this is dropped: a target that polls would take the core from another
/// one that is measured.
pub(crate) struct Paused(Vec<Pid>);

impl Paused {
    /// Stops them.
    pub(crate) fn new(pids: &[u32]) -> Self {
        let pids = pids
            .iter()
            .filter_map(|&pid| Pid::from_raw(pid.cast_signed()));
        let stopped = pids.filter(|&pid| kill_process(pid, Signal::STOP).is_ok());
        Self(stopped.collect())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for &pid in &self.0 {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of the processes that this one has started and seen end, in seconds.
pub(crate) fn children_seconds() -> f64 {
    // cutime and cstime.
    ticks("/proc/self/stat", [16, 17]) as f64 / TICKS_PER_SECOND
}

/// What Linux tells programs to be a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// The sum of two fields of a process's `stat`, counted from 1 as proc(5) does; 0 of one that is not there.
fn ticks(stat: &str, fields: [usize; 2]) -> u64 {
    let text = std::fs::read_to_string(stat).unwrap_or_default();
    // The name, field 2, stands in brackets and may hold anything.
    let Some((_, rest)) = text.rsplit_once(") ") else {
        return 0;
    };
    let values: Vec<&str> = rest.split(' ').collect();
    let value = |field: usize| values.get(field - 3)?.parse::<u64>().ok();
    fields.into_iter().filter_map(value).sum()
}

/// A loopback address of this process's own, so that a target in use on this machine is not in the way.
fn own_loopback() -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 83, high, low.clamp(1, 254))
}

fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind((own_loopback(), 0))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(threads: &[(&str, u64)], ticks: u64) -> CoreTime {
        CoreTime {
            threads: threads
                .iter()
                .map(|(thread, time)| ((*thread).into(), *time))
                .collect(),
            ticks,
        }
    }

    #[test]
    fn threads_that_end_take_no_processor_time_back() {
        let before = at(&[("1", 5_000_000_000), ("2", 900_000_000)], 590);
        let idle = at(&[("1", 5_010_000_000)], 591);
        assert!((idle.since(&before) - 0.01).abs() < 1e-9);
        // One that worked and ended in between, and one that is new.
        let busy = at(&[("1", 5_010_000_000), ("3", 40_000_000)], 642);
        assert!((busy.since(&before) - 0.5).abs() < 1e-9);
        let begun = at(
            &[("1", 5_010_000_000), ("2", 900_000_000), ("3", 40_000_000)],
            595,
        );
        assert!((begun.since(&before) - 0.05).abs() < 1e-9);
    }

    #[test]
    fn the_processor_time_of_this_process_is_found() {
        let before = CoreTime::of(std::process::id());
        let mut sum = 0_u64;
        while CoreTime::of(std::process::id()).since(&before) < 0.03 {
            sum = (0..100_000).fold(sum, |sum: u64, n| std::hint::black_box(sum ^ n));
        }
        assert!(CoreTime::of(u32::MAX).since(&before) == 0.0, "nobody's");
    }
}
