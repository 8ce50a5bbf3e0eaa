//! RDMA and TCP side by side, over several reactors, as hosts of both meet the daemon.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent, onefold, text_of},
    own_address,
};

/// How long a daemon may take to say something.
const LIMIT: Duration = Duration::from_secs(30);
const NQN: &str = "nqn.2026-11.dev.onefold:default";

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("onefold-transports-")
        .tempdir()
        .expect("a folder")
}

fn perf(listen: &str, arguments: &[&str]) -> Value {
    let target = format!("{listen}/{NQN}");
    let output = onefold(&[&["perf", &target, "--json"], arguments].concat());
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("perf printed no JSON ({error}): {}", text_of(&output)));
    assert_eq!(report["errors"], 0, "{report:#}");
    assert_eq!(report["verify_errors"], 0, "{report:#}");
    report
}

#[test]
fn hosts_of_both_transports_use_one_volume() {
    let (folder, address) = (folder(), own_address(1));
    let pool = folder.path().join("pool");
    let (rdma, tcp) = (
        format!("rdma://{address}:4420"),
        format!("tcp://{address}:4420"),
    );
    let daemon = Daemon::start(
        &pool,
        None,
        &[
            "--listen",
            &rdma,
            "--listen",
            &tcp,
            "--reactors",
            "2",
            "--create",
            "1G",
            "--volume",
            "vol0=64M",
        ],
    );
    assert_eq!(daemon.ready_line(), format!("ready {rdma} {tcp}"));
    for from in [&rdma, &tcp] {
        let output = onefold(&["discover", from, "--json"]);
        let offers: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let told: BTreeSet<_> = offers
            .as_array()
            .expect("a list")
            .iter()
            .filter(|offer| offer["kind"] == "nvme")
            .map(|offer| {
                assert_eq!(offer["subsystem"], NQN);
                format!(
                    "{}://{}:{}",
                    offer["transport"], offer["address"], offer["port"]
                )
                .replace('"', "")
            })
            .collect();
        assert_eq!(told, BTreeSet::from([rdma.clone(), tcp.clone()]));
    }
    let discovery = format!("{tcp}/nqn.2014-08.org.nvmexpress.discovery");
    let output = onefold(&["perf", &discovery, "--rw", "read", "--time", "1"]);
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a discovery subsystem has none"), "{said}");
    // What one transport writes the other one reads: the seed says what was written.
    let fixed = [
        "--bs", "64k", "--qd", "4", "--size", "16M", "--range", "16M", "--seed", "9",
    ];
    perf(&tcp, &[&fixed[..], &["--rw", "write", "--verify"]].concat());
    perf(&rdma, &[&fixed[..], &["--rw", "read", "--verify"]].concat());
    // Blocks in the capsule and beyond it, whole and cut, with queues on both reactors.
    for (block, digests) in [
        ("4k", &[][..]),
        ("16k", &["--header-digest"]),
        ("20k", &["--data-digest"]),
        ("1M", &["--header-digest", "--data-digest"]),
    ] {
        let load = [
            "--rw", "randrw", "--bs", block, "--qd", "8", "--queues", "4", "--size", "8M", "--dup",
            "30", "--zero", "10", "--verify",
        ];
        perf(&tcp, &[&load[..], digests].concat());
    }
    assert!(daemon.stop().success(), "SIGTERM is a clean end");
    assert_consistent(&pool);
}

#[test]
fn a_tcp_port_in_use_is_refused_although_reactors_share_it() {
    let (folder, address) = (folder(), own_address(2));
    let tcp = format!("tcp://{address}:4420");
    let listen = ["--listen", &tcp, "--reactors", "2", "--create", "1G"];
    let daemon = Daemon::start(&folder.path().join("first"), None, &listen);
    let refusal = Daemon::try_start(&folder.path().join("second"), None, &listen)
        .expect_err("the port is taken");
    assert!(refusal.contains(&tcp), "{refusal}");
    assert!(daemon.stop().success());
}

#[test]
fn wrong_addresses_are_refused_with_what_to_write_instead() {
    let folder = folder();
    let pool = folder.path().join("pool");
    let serve = |addresses: &[&str]| {
        let pool = pool.to_str().expect("UTF-8");
        let mut arguments = vec!["serve", "--pool", pool, "--drive", "memory=256M"];
        arguments.extend(addresses.iter().flat_map(|address| ["--listen", address]));
        onefold(&arguments)
    };
    let own = format!("tcp://{}:4420", own_address(6));
    for (addresses, said) in [
        (
            vec!["tcp://localhost:4420"],
            "names, and zones such as %eth0, are not looked up",
        ),
        (
            vec!["tcp://[fe80::1%eth0]:4420"],
            "names, and zones such as %eth0, are not looked up",
        ),
        (vec!["tcp://127.0.0.1:0"], "NVMe's port is 4420"),
        (vec!["fc://127.0.0.1:4420"], "write tcp://"),
        (
            vec!["tcp://[fe80::1]:4420"],
            "fe80::1 is an address of one link alone",
        ),
        (vec!["tcp://192.0.2.1:4420"], "has no address 192.0.2.1"),
        (
            vec!["rdma+soft://192.0.2.1:4420"],
            "has no address 192.0.2.1",
        ),
        (
            vec![own.as_str(), "tcp://0.0.0.0:4420"],
            "leave one of them out",
        ),
    ] {
        let output = serve(&addresses);
        let text = text_of(&output);
        assert!(
            !output.status.success() && text.contains(said),
            "{addresses:?}: {text}"
        );
    }
    let output = onefold(&["discover", "rdma://0.0.0.0:4420"]);
    assert!(
        text_of(&output).contains("means every address"),
        "{}",
        text_of(&output)
    );
    // The same twice is no mistake worth a refusal.
    let twice = ["--listen", &own, "--listen", &own, "--drive", "memory=256M"];
    let daemon = Daemon::start(&pool, None, &twice);
    assert_eq!(daemon.ready_line(), format!("ready {own}"));
    assert!(daemon.stop().success());
}

#[test]
fn digests_are_refused_for_rdma() {
    let target = format!("rdma://{}:4420/{NQN}", own_address(3));
    let output = onefold(&[
        "perf",
        &target,
        "--rw",
        "read",
        "--time",
        "1",
        "--data-digest",
    ]);
    assert_eq!(output.status.code(), Some(65), "{}", text_of(&output));
}

#[test]
fn a_pool_in_memory_serves_and_leaves_nothing() {
    let (folder, address) = (folder(), own_address(4));
    let pool: PathBuf = folder.path().join("pool");
    let tcp = format!("tcp://{address}:4420");
    let arguments = [
        "--listen",
        &tcp,
        "--drive",
        "memory=256M",
        "--volume",
        "vol0=128M",
    ];
    let daemon = Daemon::start(&pool, None, &arguments);
    let load = [
        "--rw",
        "randwrite",
        "--bs",
        "16k",
        "--qd",
        "8",
        "--size",
        "16M",
        "--verify",
    ];
    perf(&tcp, &load);
    let status = daemon.status();
    assert_eq!(status["volumes"][0]["name"], "vol0");
    assert!(
        status["pool"]["used_bytes"].as_u64() > Some(0),
        "{status:#}"
    );
    // After a crash the folder is no pool, and can be used again.
    daemon.kill_hard();
    let text = text_of(&onefold(&["pool", "check", pool.to_str().expect("UTF-8")]));
    assert!(text.contains("interrupted"), "{text}");
    let daemon = Daemon::start(&pool, None, &arguments);
    assert_eq!(daemon.status()["pool"]["used_bytes"], 0, "nothing was kept");
    assert!(daemon.stop().success());
    assert!(!pool.exists(), "nothing is left of it");
}

#[test]
fn a_drive_that_a_killed_daemon_still_holds_is_waited_for_and_one_that_stays_taken_is_not() {
    let (folder, address) = (folder(), own_address(7));
    let pool = folder.path().join("pool");
    let tcp = format!("tcp://{address}:4420");
    let arguments = ["--listen", &tcp];
    let daemon = Daemon::start(&pool, None, &[&arguments[..], &["--create", "1G"]].concat());
    assert!(daemon.stop().success());
    let drive = std::fs::File::open(pool.join("drive0")).expect("the drive is there");
    drive.lock().expect("nobody has it");
    let refused = Daemon::try_start(&pool, None, &arguments).expect_err("somebody has it");
    assert!(refused.contains("drive0: is in use"), "{refused}");
    let log = pool.with_extension("log");
    let tried = |log: &std::path::Path| {
        let log = std::fs::read_to_string(log).unwrap_or_default();
        log.matches("trying again for a second").count()
    };
    let before = tried(&log);
    let letting_go = std::thread::spawn(move || {
        tests::wait_for("the daemon to find the drive taken", LIMIT, || {
            (tried(&log) > before).then_some(())
        });
        drop(drive);
    });
    let daemon = Daemon::start(&pool, None, &arguments);
    letting_go.join().expect("the drive was let go of");
    assert!(daemon.stop().success());
}

#[test]
fn a_port_that_a_killed_daemon_still_holds_is_waited_for() {
    let (folder, address) = (folder(), own_address(6));
    let pool = folder.path().join("pool");
    let place = format!("{address}:4420");
    let held = std::net::TcpListener::bind(&place).expect("the address is ours");
    let log = pool.with_extension("log");
    let letting_go = std::thread::spawn(move || {
        tests::wait_for("the daemon to find the port taken", LIMIT, || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.contains("is in use by another program").then_some(())
        });
        drop(held);
    });
    let tcp = format!("tcp://{place}");
    let daemon = Daemon::start(&pool, None, &["--listen", &tcp, "--create", "1G"]);
    letting_go.join().expect("the port was let go of");
    assert!(daemon.stop().success());
}

#[test]
fn a_pool_on_real_drives_is_never_taken_for_one_in_memory() {
    let (folder, address) = (folder(), own_address(5));
    let pool = folder.path().join("pool");
    let tcp = format!("tcp://{address}:4420");
    let daemon = Daemon::start(&pool, None, &["--listen", &tcp, "--create", "1G"]);
    assert!(daemon.stop().success());
    let refusal = Daemon::try_start(&pool, None, &["--listen", &tcp, "--drive", "memory=1G"])
        .expect_err("the folder holds data");
    assert!(refusal.contains("another folder"), "{refusal}");
    assert_consistent(&pool);
    let mixed = [
        "--listen",
        &tcp,
        "--drive",
        "memory=1G",
        "--drive",
        "/tmp/other=1G",
    ];
    let refusal = Daemon::try_start(&folder.path().join("mixed"), None, &mixed)
        .expect_err("half of the pool would be lost");
    assert!(refusal.contains("the only --drive"), "{refusal}");
}
