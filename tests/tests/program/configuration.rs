//! What is configured is there again: subsystems, hosts, keys and listeners.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::harness::*;

#[test]
fn subsystems_hosts_and_listeners_are_there_again_after_a_kill() {
    const OTHER: &str = "nqn.2026-11.x:other";
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
    let pool = Pool::new();
    let daemon = pool.create();
    let at = |words: &[&str]| {
        let mut arguments = words.to_vec();
        arguments.extend(["--pool", pool.dir()]);
        succeeds(&arguments)
    };
    let shown = |words: &[&str]| {
        let mut arguments = words.to_vec();
        arguments.extend(["--pool", pool.dir(), "--json"]);
        json(&arguments)
    };
    at(&["subsystem", "create", OTHER, "--serial", "S1"]);
    at(&[
        "volume",
        "create",
        "a",
        "--size",
        "1M",
        "--subsystem",
        OTHER,
    ]);
    at(&[
        "volume",
        "create",
        "b",
        "--size",
        "1M",
        "--subsystem",
        "none",
    ]);
    at(&[
        "namespace",
        "attach",
        OTHER,
        "b",
        "--nsid",
        "900",
        "--hosts",
        HOST,
    ]);
    at(&["namespace", "set", OTHER, "1", "--write-protect", "on"]);
    at(&["subsystem", "allow", OTHER, HOST]);
    at(&["referral", "add", "tcp://192.0.2.9:8009"]);
    let more = pool.address.replace("rdma://", "tcp://");
    at(&["listener", "add", &more]);
    // By the new listener, which came while the daemon ran: the one that may not connect sees neither.
    let offers = |address: &str| {
        let found = json(&["discover", address, "--json"]);
        let offers = found.as_array().expect("a list").iter();
        let names = offers.map(|offer| offer["subsystem"].as_str().expect("a name").to_owned());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let offered = offers(&more);
    assert!(
        offered.contains(NQN) && !offered.contains(OTHER),
        "{offered:?}"
    );
    assert!(
        offered.contains("nqn.2014-08.org.nvmexpress.discovery"),
        "the referral"
    );

    let everything = || {
        let words: [&[&str]; 4] = [
            &["subsystem", "list"],
            &["namespace", "list"],
            &["referral", "list"],
            &["volume", "list"],
        ];
        words.map(shown)
    };
    let before = everything();
    assert_eq!(before[1].as_array().map(Vec::len), Some(3), "{}", before[1]);
    assert_eq!(shown(&["subsystem", "show", OTHER])["hosts"][0], HOST);
    daemon.kill();
    let daemon = pool.serve(&[]);
    assert_eq!(everything(), before);
    assert_eq!(offers(&more), offered, "the listener is there again");

    fails(
        &["listener", "add", &more, "--pool", pool.dir()],
        65,
        &["already"],
    );
    at(&["listener", "remove", &more]);
    fails(&["discover", &more], 69, &["refused"]);
    fails(
        &["subsystem", "delete", NQN, "--yes", "--pool", pool.dir()],
        65,
        &["default"],
    );
    fails(
        &["namespace", "detach", OTHER, "7", "--pool", pool.dir()],
        66,
        &["no namespace 7", "onefold namespace list"],
    );
    at(&["volume", "delete", "b", "--yes"]);
    let left = shown(&["namespace", "list", OTHER]);
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    at(&["subsystem", "delete", OTHER, "--yes"]);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn tls_keys_and_listeners_are_there_after_a_restart_and_keys_are_never_shown() {
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
    let pool = Pool::new();
    let key_file = pool.dir.with_extension("key");
    let log_file = pool.dir.with_extension("log");
    let mut keys = Vec::new();
    let serve = |more: &[&str]| {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_file)
            .expect("a log");
        let mut arguments = vec!["serve", "--pool", pool.dir(), "--listen", &pool.address];
        arguments.extend(more);
        Daemon::start_with(&arguments, log.into())
    };
    let daemon = serve(&["--create", "1G"]);
    let told = std::cell::RefCell::new(String::new());
    let at = |words: &[&str]| {
        let mut arguments = words.to_vec();
        arguments.extend(["--pool", pool.dir(), "--json"]);
        let text = succeeds(&arguments);
        told.borrow_mut().push_str(&text);
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let file = key_file.to_str().expect("text");
    for (number, hash) in [(1, "sha256"), (2, "sha384")] {
        let key = succeeds(&["host", "gen-tls-key", "--hash", hash]);
        std::fs::write(&key_file, &key).expect("a file");
        keys.push(key.split(':').nth(2).expect("a key").to_owned());
        let added = at(&["host", "tls-key", "add", HOST, "--file", file]);
        assert_eq!(
            (&added["id"], &added["hash"]),
            (&number.into(), &hash.into())
        );
    }
    fails(
        &[
            "host",
            "tls-key",
            "add",
            HOST,
            "--file",
            file,
            "--pool",
            pool.dir(),
        ],
        65,
        &["number 2"],
    );
    std::fs::write(&key_file, "DHHC-1:00:c2VjcmV0:").expect("a file");
    fails(
        &[
            "host",
            "tls-key",
            "add",
            HOST,
            "--file",
            file,
            "--pool",
            pool.dir(),
        ],
        65,
        &["gen-tls-key"],
    );
    let secure = pool.address.replace("rdma://", "tcp://");
    at(&["listener", "add", &secure, "--tls", "allowed"]);
    let set = at(&[
        "listener",
        "set",
        &secure,
        "--tls",
        "required",
        "--ana",
        "1=non-optimized",
    ]);
    assert_eq!(
        (&set["tls"], &set["ana"]["1"]),
        (&"required".into(), &"non-optimized".into())
    );
    at(&["listener", "set", &pool.address, "--ana", "2=inaccessible"]);
    fails(
        &[
            "listener",
            "set",
            &pool.address,
            "--tls",
            "required",
            "--pool",
            pool.dir(),
        ],
        65,
        &["only TCP"],
    );
    fails(
        &["listener", "set", &secure, "--pool", pool.dir()],
        65,
        &["--tls"],
    );
    let before = [at(&["host", "show", HOST]), at(&["listener", "list"])];
    daemon.kill();
    let daemon = serve(&[]);
    assert_eq!(
        [at(&["host", "show", HOST]), at(&["listener", "list"])],
        before
    );
    // In clear nobody gets in, which is counted.
    fails(&["discover", &secure], 69, &[]);
    let status = at(&["status"]);
    assert_eq!(status["tls"]["failed"], 1, "{status}");
    assert_eq!(at(&["host", "tls-key", "remove", HOST, "1"])["id"], 1);
    assert_eq!(at(&["host", "tls-key", "list", HOST])[0]["id"], 2);
    daemon.stop(Signal::TERM);
    let told = told.into_inner() + &std::fs::read_to_string(&log_file).expect("a log");
    assert!(told.contains("which this port requires"), "it is logged");
    for key in keys {
        assert!(!told.contains(&key), "a key was shown");
    }
    for entry in walk(&pool.dir) {
        let mode = entry.permissions().mode();
        assert_eq!(mode & 0o077, 0, "{entry:?}");
    }
}

#[test]
fn soft_roce_listeners_come_and_go_while_a_host_writes() {
    let pool = Pool::new();
    let at_first = pool.address.replace("rdma://", "rdma+soft://");
    let arguments = [
        "serve",
        "--pool",
        pool.dir(),
        "--create",
        "1G",
        "--reactors",
        "2",
        "--volume",
        "a=64M",
        "--volume",
        "b=64M",
        "--listen",
        &at_first,
    ];
    let daemon = Daemon::start(&arguments);
    let load = |address: &str, nsid: &str, size: &str| {
        let subsystem = format!("{address}/{NQN}");
        let mut command = Command::new(onefold());
        command
            .args(["perf", &subsystem, "--rw", "randwrite", "--size", size])
            .args(["--nsid", nsid, "--range", "32M", "--queues", "2"])
            .args(["--verify", "--json"])
            .stdout(Stdio::piped());
        command.spawn().expect("the program starts")
    };
    let is_right = |load: Child| {
        let output = load.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{:?}", output.status);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (&report["errors"], &report["verify_errors"]),
            (&0.into(), &0.into()),
            "{report}"
        );
    };
    let hosts = || json(&["status", "--pool", pool.dir(), "--json"])["hosts"].clone();
    let mut first = load(&at_first, "1", "256M");
    while hosts().as_array().is_none_or(Vec::is_empty) {
        assert!(first.try_wait().expect("a child").is_none(), "it attaches");
    }
    // On the device that is there, by another port; and on a device of its own, by another address.
    let port = at_first.replace(":4420", ":4421");
    let elsewhere = address().replace("rdma://", "rdma+soft://");
    for _ in 0..2 {
        for more in [&port, &elsewhere] {
            succeeds(&["listener", "add", more, "--pool", pool.dir()]);
            is_right(load(more, "2", "4M"));
            succeeds(&["listener", "remove", more, "--pool", pool.dir()]);
            let gone = format!("{more}/{NQN}");
            let late = run(&["perf", &gone, "--rw", "read", "--size", "1M"]);
            assert!(!late.status.success(), "nobody listens there any more");
        }
    }
    is_right(first);
    is_right(load(&at_first, "1", "4M"));
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

/// Everything in a folder.
fn walk(folder: &Path) -> Vec<std::fs::Metadata> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("it is there");
        if metadata.is_dir() {
            found.extend(walk(&entry.path()));
        }
        found.push(metadata);
    }
    found
}
