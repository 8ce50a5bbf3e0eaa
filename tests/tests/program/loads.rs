//! Loads: what `onefold perf` says of the data and of errors, and how many hosts find room.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::harness::*;

/// Runs a load: its exit code, its report and what it said beside that.
fn perf(pool: &Pool, words: &str) -> (Option<i32>, Value, String) {
    let subsystem = pool.subsystem();
    let mut arguments = vec!["perf", &subsystem, "--json", "--range", "4M", "--bs", "64k"];
    arguments.extend(words.split(' '));
    let output = run(&arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), report, errors)
}

/// Commands of hosts that the daemon has carried out.
fn commands(pool: &Pool) -> u64 {
    let status = json(&["status", "--pool", pool.dir(), "--json"]);
    let reactors = status["reactors"].as_array().expect("a list").iter();
    reactors
        .map(|reactor| reactor["commands"].as_u64().expect("a number"))
        .sum()
}

#[test]
fn a_load_that_verifies_says_how_much_it_verified_and_fails_if_that_is_nothing() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let (code, report, errors) = perf(&pool, "--rw read --size 4M --seed 7 --verify");
    assert_eq!(code, Some(1), "nothing was ever written: {report}");
    assert!(
        errors.contains("nothing was verified") && errors.contains("seed 7"),
        "{errors}"
    );
    assert_eq!(
        (&report["verified_blocks"], &report["unverified_blocks"]),
        (&0.into(), &1024.into())
    );

    let (code, report, _) = perf(&pool, "--rw write --size 2M --seed 7 --verify");
    assert_eq!(
        (code, &report["verified_blocks"]),
        (Some(0), &512.into()),
        "{report}"
    );
    let (code, report, _) = perf(&pool, "--rw read --size 4M --seed 7 --verify");
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(
        (&report["verified_blocks"], &report["unverified_blocks"]),
        (&512.into(), &512.into())
    );

    let (code, _, errors) = perf(&pool, "--rw read --size 4M --seed 8 --verify");
    assert_eq!(code, Some(1), "another seed: {errors}");
    let (code, _, errors) = perf(&pool, "--rw randread --size 4M --verify");
    assert_eq!(code, Some(65), "without a seed: {errors}");
    assert!(errors.contains("--seed"), "{errors}");

    let subsystem = pool.subsystem();
    let load = [
        "perf", &subsystem, "--rw", "read", "--size", "1M", "--seed", "7",
    ];
    assert!(succeeds(&load).contains("not verified"));
}

#[test]
fn a_load_names_the_status_of_commands_that_failed() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let namespace = ["namespace", "set", NQN, "1", "--pool", pool.dir()];
    succeeds(&[&namespace[..], &["--write-protect", "on"]].concat());
    let (code, report, _) = perf(&pool, "--rw write --size 1M");
    let refused = &report["errors_by_status"];
    assert_eq!((code, &report["errors"]), (Some(1), &16.into()), "{report}");
    assert_eq!(
        (&refused[0]["command"], &refused[0]["commands"]),
        (&"write".into(), &16.into())
    );
    let status = refused[0]["status"].as_str().expect("text");
    assert!(status.contains("Namespace is Write Protected"), "{status}");
}

#[test]
fn a_load_that_is_interrupted_prints_the_result_so_far() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let subsystem = pool.subsystem();
    let mut load = Command::new(onefold());
    load.args(["perf", &subsystem, "--rw", "randwrite", "--range", "4M"]);
    load.args(["--time", "3600", "--verify", "--json"]);
    let child = load.stdout(Stdio::piped()).spawn().expect("it starts");
    wait_for("its first commands", || commands(&pool) > 100);
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(output.status.code(), Some(130), "{report}");
    assert_eq!(report["interrupted"], true);
    assert!(report["write"]["ios"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_load_whose_target_is_lost_prints_the_result_so_far_and_why_it_ended() {
    for transport in ["tcp", "rdma"] {
        let pool = Pool::new();
        let tcp = pool.address.replace("rdma://", "tcp://");
        let daemon = pool.serve(&["--create", "1G", "--listen", &tcp]);
        let subsystem = format!("{}/{NQN}", pool.address.replace("rdma", transport));
        let mut load = Command::new(onefold());
        load.args(["perf", &subsystem, "--rw", "randwrite", "--range", "4M"]);
        load.args(["--time", "3600", "--verify", "--json"]);
        let load = load.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = load.spawn().expect("it starts");
        wait_for("its first commands", || commands(&pool) > 100);
        daemon.kill();
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{transport}: {errors}");
        assert!(errors.contains("the connection was lost: "), "{errors}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert!(report["write"]["ios"].as_u64() > Some(50), "{report}");
        assert_eq!(report["interrupted"], false);
        let why = report["connection_lost"].as_str().expect("why");
        assert!(errors.contains(why), "{errors}: {why}");
    }
}

#[test]
fn defaults_fit_the_limit_of_open_files_and_the_log_names_it_when_a_host_is_refused() {
    let pool = Pool::new();
    let address = pool.address.replace("rdma://", "tcp://");
    let log = pool.dir.with_extension("log");
    let serve = |more: &str| {
        let line = format!(
            "ulimit -n 256 && exec {} serve --pool {} {more}",
            onefold(),
            pool.dir()
        );
        let mut shell = Command::new("sh");
        let listen = format!("--listen {} --listen {address}", pool.address);
        shell.args(["-c", &format!("{line} {listen}")]);
        Daemon::start_as(shell.stderr(File::create(&log).expect("a log")))
    };
    let logged = || fs::read_to_string(&log).expect("a log");
    let daemon = serve("--create 1G");
    assert!(!logged().contains("WARN"), "{}", logged());
    let subsystem = format!("{address}/{NQN}");
    let load = [
        "perf", &subsystem, "--rw", "randread", "--time", "1", "--queues", "32",
    ];
    fails(&load, 1, &["granted 16 of 32"]);
    assert!(
        logged().contains("16 I/O queues, which is what 256 open files"),
        "{}",
        logged()
    );
    daemon.stop(Signal::TERM);

    // Queues that were asked for leave room for one host.
    let daemon = serve("--io-queues 120");
    let first = Load::start(&pool, &subsystem, "nqn.2026-11.org.example:first");
    let load = ["perf", &subsystem, "--rw", "randread", "--time", "1"];
    fails(&load, 1, &["Busy"]);
    assert!(
        logged().contains("1 hosts are attached, and no more may be; 256 open files are allowed"),
        "{}",
        logged()
    );
    drop(first);
    daemon.stop(Signal::TERM);
}

#[test]
fn status_tells_what_hosts_do_to_each_volume_in_a_second() {
    let pool = Pool::new();
    let daemon = pool.create();
    let rates = || pool.status()["volumes"][0]["rates"].clone();
    let load = Load::start(&pool, &pool.subsystem(), "nqn.2026-11.org.example:host");
    wait_for("rates of a volume that is read", || {
        rates()["read_commands"].as_u64() > Some(0)
    });
    let seen = rates();
    assert!(seen["over_seconds"].as_u64() >= Some(5), "{seen}");
    assert!(seen["read_bytes"].as_u64() > Some(0), "{seen}");
    drop(load);
    wait_for("the rates to fall when the host is gone", || {
        rates()["read_commands"] == 0
    });
    daemon.stop(Signal::TERM);
}
