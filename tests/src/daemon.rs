//! The `onefold` program as a user runs it: a process with arguments, output, signals and a pool folder.

use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wait_for;

/// How long a start may take before the test gives up (a busy machine with a full journal to replay).
const READY_LIMIT: Duration = Duration::from_secs(180);

/// The program under test: `ONEFOLD_PROGRAM`, or the one beside the folder of the test executables.
///
/// # Panics
/// When it has not been built.
pub fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("ONEFOLD_PROGRAM") {
        return program.into();
    }
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test
        .ancestors()
        .nth(2)
        .expect("tests lie in <build>/<profile>/deps");
    let program = folder.join("onefold");
    assert!(
        program.exists(),
        "{} is missing: run `cargo build -p onefold` first",
        program.display()
    );
    program
}

/// Where the program runs: in the machine's network, or in a network namespace of a lab.
fn command(namespace: Option<&str>) -> Command {
    in_network(namespace, program().as_os_str())
}

/// A program in the machine's network, or in a network namespace of a lab.
pub fn in_network(namespace: Option<&str>, program: &OsStr) -> Command {
    match namespace {
        None => Command::new(program),
        Some(name) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name]).arg(program);
            command
        }
    }
}

/// Runs the program to its end with these arguments.
///
/// # Panics
/// When it cannot be started at all.
pub fn onefold(arguments: &[&str]) -> Output {
    onefold_in(None, arguments)
}

/// [`onefold`], in a network namespace.
///
/// # Panics
/// When it cannot be started at all.
pub fn onefold_in(namespace: Option<&str>, arguments: &[&str]) -> Output {
    command(namespace)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// Both outputs of a finished program, for messages.
pub fn text_of(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A running `onefold serve`. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pool: PathBuf,
    namespace: Option<String>,
    ready: String,
    /// What it prints after that.
    lines: Mutex<mpsc::Receiver<String>>,
    /// The process is a child of the one that was started.
    is_elsewhere: bool,
}

/// Whether this user may start processes that see no others of the machine.
fn can_be_elsewhere() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let tried = Command::new("unshare")
            .args(["--pid", "--uts", "--mount", "--fork", "true"])
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success())
    })
}

/// Becomes a program on a machine of that name ($0): what names its identity (the first argument) lies over the files with these, and what
/// names its boot (the second one, if it is not empty) over this machine's.
const ON_OTHER_MACHINE: &str = r#"
  echo "$0" >/proc/sys/kernel/hostname || exit
  identity=$1 boot=$2
  shift 2
  for file in /etc/nvme/hostnqn /etc/machine-id; do
    [ ! -e "$file" ] || mount --bind "$identity" "$file" || exit
  done
  [ -z "$boot" ] || mount --bind "$boot" /proc/sys/kernel/random/boot_id || exit
  exec "$@""#;

/// The program on a machine of that name, which runs since that boot, or since this machine's; `None` where that is not permitted.
fn on_machine(
    machine: &str,
    boot: Option<&str>,
    namespace: Option<&str>,
    pool: &Path,
) -> Option<Command> {
    if !can_be_elsewhere() {
        return None;
    }
    let file = |extension: &str, text: String| {
        let file = pool.with_extension(extension);
        std::fs::write(&file, text).expect("it can be written");
        file
    };
    let identity = file("machine", format!("nqn.2026-11.org.example:{machine}\n"));
    let boot = boot.map(|boot| file("boot", format!("{boot}\n")));
    let mut unshare = in_network(namespace, OsStr::new("unshare"));
    unshare.args(["--pid", "--uts", "--mount", "--fork", "--kill-child"]);
    unshare.args(["sh", "-c", ON_OTHER_MACHINE]);
    unshare.arg(machine).arg(identity);
    unshare.arg(boot.unwrap_or_default()).arg(program());
    Some(unshare)
}

/// Becomes a program whose clock is so much off ($0), but for the one that only goes on. What the library shares lies in a folder that
/// ends with the program.
const WITH_CLOCK: &str = r#"
  mount -t tmpfs none /dev/shm || exit
  exec env LD_PRELOAD='/usr/$LIB/faketime/libfaketimeMT.so.1' FAKETIME="$0" FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1 "$@""#;

/// Whether programs can have another clock.
fn can_have_clock() -> bool {
    let asked = Command::new("faketime").arg("--version").output();
    can_be_elsewhere() && asked.is_ok_and(|output| output.status.success())
}

impl Daemon {
    /// Starts `onefold serve --pool POOL ARGUMENTS...` and waits for its `ready` line.
    ///
    /// # Panics
    /// With everything that the program printed, when it ends or stays silent instead.
    pub fn start(pool: &Path, namespace: Option<&str>, arguments: &[&str]) -> Self {
        match Self::try_start(pool, namespace, arguments) {
            Ok(daemon) => daemon,
            Err(text) => panic!("onefold serve did not get ready: {text}"),
        }
    }

    /// [`Daemon::start`] for a start that may fail: the error is all that the program printed.
    ///
    /// # Errors
    /// The exit status and the printed text, when the program ends before it is ready.
    ///
    /// # Panics
    /// When the program neither ends nor gets ready.
    pub fn try_start(
        pool: &Path,
        namespace: Option<&str>,
        arguments: &[&str],
    ) -> Result<Self, String> {
        Self::try_start_by(command(namespace), pool, namespace, arguments)
    }

    /// [`Daemon::start`] as if it were on another machine: no process here sees whether it lives, nor the other way round. Where
    /// that is not permitted it is on this one.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn start_elsewhere(pool: &Path, namespace: Option<&str>, arguments: &[&str]) -> Self {
        let is_elsewhere = can_be_elsewhere();
        let program = match is_elsewhere {
            false => command(namespace),
            true => {
                let mut unshare = in_network(namespace, OsStr::new("unshare"));
                unshare.args(["--pid", "--fork", "--kill-child"]);
                unshare.arg(program());
                unshare
            }
        };
        let mut daemon = Self::start_by(program, pool, namespace, arguments);
        daemon.is_elsewhere = is_elsewhere;
        daemon
    }

    /// [`Daemon::start_elsewhere`] on a machine whose clock is off, such as `+400d`; `None` where that is not possible.
    ///
    /// # Panics
    /// As [`Daemon::start`], or where `CI=true` and it is not possible.
    pub fn start_with_clock(offset: &str, pool: &Path, arguments: &[&str]) -> Option<Self> {
        if !can_have_clock() {
            let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!must_run, "no clock can be off; test.sh installs faketime");
            eprintln!("skipped: faketime is not installed, or may not be used");
            return None;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--mount", "--fork", "--kill-child"]);
        unshare
            .args(["sh", "-c", WITH_CLOCK, offset])
            .arg(program());
        let mut daemon = Self::start_by(unshare, pool, None, arguments);
        daemon.is_elsewhere = true;
        Some(daemon)
    }

    /// [`Daemon::start_elsewhere`] on a machine of that name, which targets know by another one too; `None` where that is not permitted.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn start_on(
        machine: &str,
        namespace: Option<&str>,
        pool: &Path,
        arguments: &[&str],
    ) -> Option<Self> {
        let unshare = on_machine(machine, None, namespace, pool)?;
        let mut daemon = Self::start_by(unshare, pool, namespace, arguments);
        daemon.is_elsewhere = true;
        Some(daemon)
    }

    /// [`Daemon::start_on`] on a machine that was started another time than this one, as [`Daemon::try_start`].
    ///
    /// # Errors
    /// As [`Daemon::try_start`].
    ///
    /// # Panics
    /// As [`Daemon::try_start`].
    pub fn try_start_on(
        machine: &str,
        boot: &str,
        pool: &Path,
        arguments: &[&str],
    ) -> Option<Result<Self, String>> {
        let unshare = on_machine(machine, Some(boot), None, pool)?;
        let started = Self::try_start_by(unshare, pool, None, arguments);
        Some(started.map(|mut daemon| {
            daemon.is_elsewhere = true;
            daemon
        }))
    }

    fn start_by(
        program: Command,
        pool: &Path,
        namespace: Option<&str>,
        arguments: &[&str],
    ) -> Self {
        match Self::try_start_by(program, pool, namespace, arguments) {
            Ok(daemon) => daemon,
            Err(text) => panic!("onefold serve did not get ready: {text}"),
        }
    }

    fn try_start_by(
        mut program: Command,
        pool: &Path,
        namespace: Option<&str>,
        arguments: &[&str],
    ) -> Result<Self, String> {
        let log = pool.with_extension("log");
        let errors = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the log can be written");
        let mut child = program
            .arg("serve")
            .arg("--pool")
            .arg(pool)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("it was asked for");
        let (sender, receiver) = mpsc::channel();
        // Reads to the end, so that the daemon never blocks on a full pipe.
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            while let Some(Ok(line)) = lines.next() {
                let _ = sender.send(line);
            }
        });
        let mut printed = String::new();
        loop {
            match receiver.recv_timeout(READY_LIMIT) {
                Ok(line) if line.starts_with("ready") || line.starts_with("standby") => {
                    return Ok(Self {
                        child,
                        pool: pool.to_owned(),
                        namespace: namespace.map(str::to_owned),
                        ready: line,
                        lines: Mutex::new(receiver),
                        is_elsewhere: false,
                    });
                }
                Ok(line) => printed.push_str(&format!("{line}\n")),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = child.wait().expect("a child can be waited for");
                    let errors = std::fs::read_to_string(&log).unwrap_or_default();
                    return Err(format!("{status}\n{printed}{errors}"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                    panic!("onefold serve neither ended nor got ready; it printed:\n{printed}");
                }
            }
        }
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.pool.with_extension("log")).unwrap_or_default()
    }

    /// Waits until it has logged this.
    ///
    /// # Panics
    /// It has not within `limit`.
    pub fn logs(&self, text: &str, limit: Duration) {
        wait_for(text, limit, || self.log().contains(text).then_some(()));
    }

    /// The line that said `ready`, or `standby`, with the addresses after it.
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    /// Waits for a line that begins so, and that comes after the last one that this found.
    ///
    /// # Panics
    /// It ends, or prints no such line within `limit`.
    pub fn prints(&self, start: &str, limit: Duration) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + limit;
        loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(start) => return line,
                Ok(_) => {}
                Err(error) => panic!("it did not print '{start}': {error}"),
            }
        }
    }

    /// The process number.
    ///
    /// # Panics
    /// It has ended.
    pub fn pid(&self) -> u32 {
        let id = self.child.id();
        if !self.is_elsewhere {
            return id;
        }
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.expect("it runs");
        let child = children.split_whitespace().next().expect("it runs");
        child.parse().expect("a number")
    }

    /// `onefold status --json` of this daemon.
    ///
    /// # Panics
    /// When the command fails or prints something else than JSON.
    pub fn status(&self) -> Value {
        let pool = self.pool.to_str().expect("test folders are UTF-8");
        let output = onefold_in(
            self.namespace.as_deref(),
            &["status", "--pool", pool, "--json"],
        );
        assert!(
            output.status.success(),
            "status failed: {}",
            text_of(&output)
        );
        serde_json::from_slice(&output.stdout).expect("status --json prints JSON")
    }

    /// Bytes of data blocks in use, as `status` counts them.
    ///
    /// # Panics
    /// When the status lacks the figure.
    pub fn used_bytes(&self) -> u64 {
        self.status()["pool"]["used_bytes"]
            .as_u64()
            .expect("used_bytes is a number")
    }

    /// `kill -9`, as a crash would: nothing is flushed, nobody is told.
    ///
    /// # Panics
    /// When the process is gone already.
    pub fn kill_hard(mut self) {
        self.child.kill().expect("the daemon still runs");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits for its end, which it comes to by itself; gives back the exit status and what it has logged.
    ///
    /// # Panics
    /// When it does not end within `limit`.
    pub fn ended(mut self, limit: Duration) -> (ExitStatus, String) {
        let status = wait_for("the daemon to end by itself", limit, || {
            self.child.try_wait().expect("a child can be waited for")
        });
        (status, self.log())
    }

    /// A polite stop (SIGTERM), as Ctrl-C or an init system does; gives back the exit status.
    ///
    /// # Panics
    /// When it does not end within two minutes.
    pub fn stop(mut self) -> ExitStatus {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a child has a number");
        kill_process(pid, Signal::TERM).expect("the daemon still runs");
        wait_for("the daemon to stop", Duration::from_secs(120), || {
            self.child.try_wait().expect("a child can be waited for")
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A test that failed shows what the daemon saw; a polite stop makes it print its counters.
        if thread::panicking() {
            if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
                let _ = kill_process(pid, Signal::TERM);
            }
            let stopped = Instant::now() + Duration::from_secs(5);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < stopped {
                thread::sleep(Duration::from_millis(20));
            }
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the daemon's log ends with:\n{}", last.join("\n"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `onefold pool check` says that the pool is consistent.
///
/// # Panics
/// With its report, when it says anything else.
pub fn assert_consistent(pool: &Path) {
    assert_consistent_in(None, pool);
}

/// [`assert_consistent`], where the pool's drives are reached from a network namespace.
///
/// # Panics
/// As that.
pub fn assert_consistent_in(namespace: Option<&str>, pool: &Path) {
    let pool = pool.to_str().expect("test folders are UTF-8");
    let output = onefold_in(namespace, &["pool", "check", pool]);
    assert!(output.status.success(), "pool check: {}", text_of(&output));
}
