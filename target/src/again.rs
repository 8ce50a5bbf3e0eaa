//! A process that lost its pool to another node, or gave it away, starts anew by execve(2): as a standby, with its own command line. One that
//! a service manager started ends instead, as a failure, and the manager starts it again: it has the sockets that belong to it.
//!
//! Guarantee: who lost a pool answers hosts for a fraction of a second at most, whatever the rest of the process does.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use dedup::ErrorKind;
use subsystem::errors::Failure;

use crate::exit::exit_code;

/// How long the process may take to start anew.
const START_MAX: Duration = Duration::from_millis(300);

/// The name of this process's threads, the first of which gives the process its own (proc_pid_comm(5)).
const COMM: &str = "/proc/self/comm";

/// What the system calls a process that was started anew: the last part of the path that was executed.
const NAME_ANEW: &str = "exe";

/// Where the thread that starts the program anew hears of it, if it is to come back.
static LOST: OnceLock<mpsc::Sender<()>> = OnceLock::new();

/// A process that was started anew is called as before. On its first thread, before there are others.
pub(crate) fn restore_name() {
    let is_anew = std::fs::read_to_string(COMM).is_ok_and(|name| name.trim_end() == NAME_ANEW);
    if is_anew {
        // Best effort: it is for people who list processes.
        let _ = std::fs::write(COMM, "onefold");
    }
}

/// This process is one of several that offer a pool: it comes back when it has lost it.
///
/// # Errors
/// The system has no thread for that.
pub(crate) fn come_back() -> Result<(), Failure> {
    let (lost, heard) = mpsc::channel();
    // Threads of librados take no signals, and what they start would take none either. This one takes them.
    let spawned = thread::Builder::new()
        .name("onefold-again".to_owned())
        .spawn(move || {
            if heard.recv().is_ok() {
                tracing::error!("{}", start());
                exit();
            }
        });
    spawned.map_err(|error| Failure::unavailable(format!("no thread can be started: {error}")))?;
    // It is called once.
    let _ = LOST.set(lost);
    Ok(())
}

/// Another process has a drive of this one. What hosts are told from here on may be wrong, so they are told nothing more: their
/// connections break, and they look for the pool elsewhere. On any thread.
pub(crate) fn end_without_drive(drive: &str) {
    tracing::error!(
        drive,
        "this process ends now, because the pool is another one's: nothing that was acknowledged is lost"
    );
    end()
}

/// The drives do not answer this process any more, and others wait for the pool: hosts are to go there.
pub(crate) fn end_cut_off(silent: Duration) {
    tracing::error!(
        "the pool's drives have not answered this node for {silent:?}, and another node waits for the pool: this process ends now, \
         so that hosts go there"
    );
    end()
}

/// This process cannot go on with a pool that another node can open, or this one once more. On any thread.
pub(crate) fn end_for_others(why: &str) {
    tracing::error!(
        "this process ends now, so that hosts go to another node with the pool, or come back: {why}; nothing that was acknowledged is lost"
    );
    end()
}

fn end() -> ! {
    if let Some(lost) = LOST.get()
        && lost.send(()).is_ok()
    {
        // That thread starts the program anew, which ends this one; it must not go on meanwhile.
        thread::sleep(START_MAX);
    }
    exit()
}

fn exit() -> ! {
    rados_drives::before_exit();
    std::process::exit(exit_code(ErrorKind::Unavailable).into())
}

/// What systemd gives its services: where they say that they are ready, and sockets (sd_notify(3), sd_listen_fds(3)).
const OF_MANAGER: [&str; 2] = ["NOTIFY_SOCKET", "LISTEN_FDS"];

/// Starts the program anew, and returns only if that fails, or if somebody else does it.
pub(crate) fn start() -> Failure {
    if OF_MANAGER
        .iter()
        .any(|name| std::env::var_os(name).is_some())
    {
        return Failure::unavailable(
            "the pool is another node's now: the service manager starts this one again, as its standby",
        );
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "onefold".into());
    let error = Command::new("/proc/self/exe")
        .arg0(name)
        .args(arguments)
        .exec();
    Failure::unavailable(format!(
        "the program cannot start anew: {error}: start it by hand"
    ))
}
