//! Pools and daemons of these stories, and what their commands print.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// The program, as a word of a command line.
pub(crate) fn onefold() -> String {
    let program = tests::daemon::program();
    program
        .to_str()
        .expect("build folders are UTF-8")
        .to_owned()
}

/// A loopback address that no other story uses.
pub(crate) fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [pid_high, pid_low] = (std::process::id() as u16).to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.1.0.0 and up: away from what a host of this machine takes at random is not possible, but
    // two of the same are one in millions.
    let host = Ipv4Addr::new(127, pid_high | 0x80, pid_low, number as u8);
    format!("rdma://{host}:4420")
}

/// How long a command of a story may take. The limit is only for a story that fails, so that it
/// does so by name, and does not wait for ever for a daemon that should have refused to start.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// Runs a command of the program to its end; one that does not end is killed and fails the story.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Output {
    let child = Command::new(onefold())
        .args(arguments)
        // Nobody is there to be asked, whoever runs the tests.
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = Pid::from_child(&child);
    let (ended, output) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match output.recv_timeout(LIMIT) {
        Ok(output) => output.expect("its output can be read"),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            let output = output.recv().expect("its output is sent when it ends");
            panic!("{arguments:?} did not end within {LIMIT:?}: {output:?}")
        }
    }
}

#[track_caller]
pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{arguments:?}: {:?} {errors}",
        output.status
    );
    String::from_utf8(output.stdout).expect("text")
}

/// The command fails with that exit code, and its message holds those words.
#[track_caller]
pub(crate) fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    for word in words {
        assert!(errors.contains(word), "'{word}' is not in: {errors}");
    }
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).expect("JSON")
}

/// Waits for what must happen; the limit is only for a test that fails.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < limit, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The volumes of a status without what hosts did since the daemon started.
pub(crate) fn volumes_of(status: &Value) -> Vec<Value> {
    let volumes = status["volumes"].as_array().expect("a list");
    let mut volumes = volumes.clone();
    for volume in &mut volumes {
        for name in ["io", "latency", "rates"] {
            let figures = volume
                .as_object_mut()
                .and_then(|volume| volume.remove(name));
            assert!(figures.is_some(), "no {name} in {volume}");
        }
    }
    volumes
}

/// A pool folder and how it is served.
pub(crate) struct Pool {
    _folder: TempDir,
    pub(crate) dir: PathBuf,
    pub(crate) address: String,
}

impl Pool {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path().join("pool");
        Self {
            _folder: folder,
            dir,
            address: address(),
        }
    }

    pub(crate) fn dir(&self) -> &str {
        self.dir.to_str().expect("text")
    }

    /// Where its daemon listens.
    pub(crate) fn ip(&self) -> IpAddr {
        let authority = self.address.trim_start_matches("rdma://");
        let address: SocketAddr = authority.parse().expect("an address and a port");
        address.ip()
    }

    pub(crate) fn subsystem(&self) -> String {
        format!("{}/{NQN}", self.address)
    }

    pub(crate) fn serve(&self, more: &[&str]) -> Daemon {
        let mut arguments = vec!["serve", "--pool", self.dir(), "--listen", &self.address];
        arguments.extend(more);
        Daemon::start(&arguments)
    }

    pub(crate) fn create(&self) -> Daemon {
        self.serve(&["--create", "1G"])
    }

    pub(crate) fn fails_to_serve(&self, more: &[&str], code: i32, words: &[&str]) {
        let mut arguments = vec!["serve", "--pool", self.dir(), "--listen", &self.address];
        arguments.extend(more);
        fails(&arguments, code, words);
    }

    pub(crate) fn status(&self) -> Value {
        json(&["status", "--pool", self.dir(), "--json"])
    }

    /// A figure of the pool in its status.
    #[track_caller]
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let status = self.status();
        let figure = status["pool"][name].as_u64();
        figure.unwrap_or_else(|| panic!("no {name} in {status:#}"))
    }

    /// A load on the default subsystem that succeeds without errors; its report.
    #[track_caller]
    pub(crate) fn load(&self, arguments: &[&str]) -> Value {
        let report = self.load_that_may_fail(arguments);
        assert_eq!(report["errors"], 0, "{report:#}");
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        report
    }

    /// A load whose commands may fail.
    #[track_caller]
    pub(crate) fn load_that_may_fail(&self, arguments: &[&str]) -> Value {
        let subsystem = self.subsystem();
        let output = run(&[&["perf", &subsystem, "--json"], arguments].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let errors = String::from_utf8_lossy(&output.stderr);
            panic!("perf printed no JSON ({error}): {errors}")
        })
    }

    pub(crate) fn is_consistent(&self) {
        let report = json(&["pool", "check", self.dir(), "--data", "--json"]);
        assert_eq!(report["consistent"], true, "{report}");
    }
}

/// A daemon that is ready.
pub(crate) struct Daemon {
    pub(crate) child: Child,
}

impl Daemon {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, Stdio::inherit())
    }

    /// The same, with its log there.
    pub(crate) fn start_with(arguments: &[&str], log: Stdio) -> Self {
        Self::start_as(Command::new(onefold()).args(arguments).stderr(log))
    }

    /// The same, as a command that becomes the program.
    pub(crate) fn start_as(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut first = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut first).expect("a line");
        assert!(first.starts_with("ready rdma"), "'{first}'");
        // The rest is read away, so that the daemon never waits for the pipe.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        Self { child }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the daemon lives");
    }

    /// None of its threads runs from here on, until it is told to continue.
    pub(crate) fn halt(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let halted = waitpid(Some(pid), WaitOptions::UNTRACED);
        let (_, status) = halted.expect("a child").expect("it changed its state");
        assert!(status.stopped(), "{status:?}");
    }

    /// Asks it to stop, and expects a clean end.
    #[track_caller]
    pub(crate) fn stop(mut self, signal: Signal) {
        self.signal(signal);
        let mut ended = None;
        wait_for("the daemon to stop", || {
            ended = self.child.try_wait().expect("it is a child");
            ended.is_some()
        });
        let status = ended.expect("the process ended");
        assert!(status.success(), "{status:?}");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

/// A load of a host of that name, which lasts until it is dropped.
pub(crate) struct Load(Child);

impl Load {
    /// Starts one, and waits until its host is attached.
    pub(crate) fn start(pool: &Pool, subsystem: &str, host: &str) -> Self {
        let mut load = Command::new(onefold());
        load.args(["perf", subsystem, "--hostnqn", host]);
        load.args(["--rw", "randread", "--time", "3600"]);
        let child = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let load = Self(child.expect("the program starts"));
        wait_for("the host to attach", || {
            let status = json(&["status", "--pool", pool.dir(), "--json"]);
            let mut hosts = status["hosts"].as_array().expect("a list").iter();
            hosts.any(|attached| attached["hostnqn"] == host)
        });
        load
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
