//! What signals do to the daemon.

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::harness::*;

/// Serves a pool on a terminal of its own, which goes when this process is killed.
fn serve_on_a_terminal(pool: &Pool, more: &str) -> Daemon {
    let line = format!(
        "exec {} serve --create 1G --pool {} --listen {} {more}",
        onefold(),
        pool.dir(),
        pool.address
    );
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &line, "/dev/null"]);
    Daemon::start_as(script.stdin(Stdio::null()).env("SHELL", "/bin/sh"))
}

#[test]
fn a_daemon_whose_terminal_is_closed_ends_cleanly() {
    let pool = Pool::new();
    let log = pool.dir.with_extension("log");
    let socket = pool.dir.join("onefold.sock");
    serve_on_a_terminal(&pool, &format!("2>{}", log.display())).kill();
    wait_for("the clean end", || {
        let log = fs::read_to_string(&log).expect("a log");
        log.contains("the terminal was closed") && log.contains("stopped cleanly")
    });
    // The process is nobody's child here: it has the pool until it is gone.
    let is_free = || run(&["pool", "check", pool.dir()]).status.success();
    wait_for("the pool to be free", is_free);
    pool.is_consistent();
    assert!(!socket.exists());
    // With its log on the terminal that is gone: nothing can be written there.
    serve_on_a_terminal(&pool, "").kill();
    wait_for("the socket to go with the daemon", || !socket.exists());
    wait_for("the pool to be free", is_free);
}

#[test]
fn a_daemon_without_a_terminal_reloads_and_then_serves_a_listener_that_was_not_there() {
    let pool = Pool::new();
    let address = pool.address.replace("rdma://", "tcp://");
    let anew = address.replace(":4420", ":4421");
    let daemon = pool.create();
    for address in [&address, &anew] {
        succeeds(&["listener", "add", address, "--pool", pool.dir()]);
    }
    daemon.stop(Signal::TERM);

    let take = |address: &str| {
        let authority = address.trim_start_matches("tcp://");
        TcpListener::bind(authority).expect("a free port")
    };
    let taken = [take(&address), take(&anew)];
    let log = pool.dir.with_extension("log");
    let mut without_terminal = Command::new("setsid");
    without_terminal.args([&onefold(), "serve", "--pool", pool.dir()]);
    without_terminal.args(["--listen", &pool.address]);
    let errors = File::create(&log).expect("a log");
    let daemon = Daemon::start_as(without_terminal.stderr(errors));
    let logged = |words: &str| {
        let log = fs::read_to_string(&log).expect("a log");
        log.matches(words).count()
    };
    assert_eq!(logged("is not served"), 2, "the ports are taken");

    daemon.signal(Signal::HUP);
    wait_for("the first reload", || logged("reloaded") == 1);
    assert_eq!(logged("still not served"), 2);
    drop(taken);
    // What came anew by hand in the meantime is left alone.
    succeeds(&["listener", "remove", &anew, "--pool", pool.dir()]);
    succeeds(&["listener", "add", &anew, "--pool", pool.dir()]);
    daemon.signal(Signal::HUP);
    wait_for("the second reload", || logged("reloaded") == 2);
    assert_eq!(
        (logged("is served now"), logged("still not served")),
        (1, 2)
    );
    for address in [&address, &anew] {
        assert!(succeeds(&["discover", address]).contains(NQN), "{address}");
    }
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_daemon_that_nohup_started_outlives_a_hangup() {
    let pool = Pool::new();
    let mut nohup = Command::new("nohup");
    nohup.args([&onefold(), "serve", "--create", "1G", "--pool", pool.dir()]);
    nohup.args(["--listen", &pool.address]).stdin(Stdio::null());
    let daemon = Daemon::start_as(nohup.stderr(Stdio::piped()));
    daemon.signal(Signal::HUP);
    succeeds(&["status", "--pool", pool.dir()]);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}
