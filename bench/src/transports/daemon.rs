//! The target of a measurement: a daemon with a pool in memory, as a process bound to a core.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::TransportsError;
use crate::machine;

/// The subsystem that every daemon offers.
const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// Namespace 1 is hashed by nobody, namespace 2 is deduplicated; the drive has room for both, and for
/// what was overwritten and cannot be reused yet.
const ARGUMENTS: [&str; 9] = [
    "--drive",
    "memory=3G",
    "--volume",
    "plain=512M,dedup=off",
    "--volume",
    "deduplicated=512M",
    "--reactors",
    "1",
    "--listen",
];

/// A running daemon. Dropping it ends it: nothing in it is to be kept.
pub(super) struct Daemon {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts it on `core`, and waits until hosts can connect.
    pub(super) fn start(
        program: &Path,
        dir: &Path,
        scheme: &str,
        core: usize,
    ) -> Result<Self, TransportsError> {
        let system = |what: &str, source| TransportsError::System {
            what: format!("{what} '{}'", dir.display()),
            source,
        };
        let folder = tempfile::Builder::new()
            .prefix("onefold-bench-")
            .tempdir_in(dir)
            .map_err(|source| system("no folder can be made in", source))?;
        let said = folder.path().join("said");
        let errors = File::create(&said).map_err(|source| system("no file in", source))?;
        let port = free_port().map_err(|source| system("no free port for", source))?;
        let listen = format!("{scheme}://{}:{port}", own_loopback());
        // A child begins on the cores of the thread that starts it.
        machine::bind_thread(&[core]).map_err(|source| system("cannot bind to a core", source))?;
        let mut child = Command::new(program)
            .arg("serve")
            .arg("--pool")
            .arg(folder.path().join("pool"))
            .args(ARGUMENTS)
            .arg(&listen)
            .env("ONEFOLD_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|source| TransportsError::System {
                what: format!("'{}' cannot be started", program.display()),
                source,
            })?;
        let output = child.stdout.take();
        let daemon = Self {
            child,
            address: format!("{listen}/{NQN}"),
            _folder: folder,
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
        Err(TransportsError::Target(said.trim().to_owned()))
    }

    /// Where it listens, with its subsystem.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Processor time of all threads of a process so far, in seconds; 0 of one that is not there.
pub(super) fn core_seconds(pid: u32) -> f64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0.0;
    };
    // proc(5): nanoseconds on a processor, nanoseconds waiting, turns.
    let of_thread = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let threads = threads.flatten().map(|thread| thread.path());
    threads.filter_map(of_thread).sum::<u64>() as f64 / 1e9
}

/// Processes that stand still until this is dropped: a target that polls would take the core from another
/// one that is measured.
pub(super) struct Paused(Vec<Pid>);

impl Paused {
    /// Stops them.
    pub(super) fn new(pids: &[u32]) -> Self {
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
pub(super) fn children_seconds() -> f64 {
    // proc(5), stat: fields 16 and 17 are clock ticks of children, of which Linux counts 100 a second.
    // The name, field 2, stands in brackets and may hold anything.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let Some((_, fields)) = text.rsplit_once(") ") else {
        return 0.0;
    };
    let ticks = |field: usize| {
        let value = fields.split(' ').nth(field - 3);
        value
            .and_then(|value| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (ticks(16) + ticks(17)) as f64 / 100.0
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
