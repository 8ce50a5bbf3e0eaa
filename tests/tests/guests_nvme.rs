//! What nvme-cli in a real Linux kernel does with a subsystem: one story a feature.
//!
//! These tests need root, QEMU and the lab's images, as those in `guests.rs` do: `./test.sh` runs them
//! one after the other.

#![allow(clippy::print_stdout, reason = "what a story says is its result")]

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent, onefold, onefold_in, program, text_of},
    lab::{Guest, GuestSpec, Network, TARGET_V4, TARGET_V6, steadily},
    wait_for,
};

const MINUTE: Duration = Duration::from_secs(60);

fn pool() -> TempDir {
    tempfile::Builder::new()
        .prefix("onefold-guests-nvme-")
        .tempdir()
        .expect("a folder can be made")
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn commands_beyond_reading_and_writing_do_what_nvme_cli_expects() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let arguments = ["--create", "4G", "--volume", "vol0=2G"];
        let daemon = Daemon::start(&path, Some(network.name()), &arguments);
        let guest = Guest::start(
            &network,
            &GuestSpec {
                name: "commander",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "commands",
                arguments: &[TARGET_V4],
                limit_seconds: 300,
                files: &[],
            },
        );
        println!("{}", guest.finish(6 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&path);
    });
}

/// Runs a command of the control interface that must succeed.
fn control(pool: &Path, arguments: &[&str]) -> String {
    let mut all = arguments.to_vec();
    all.extend_from_slice(&["--pool", pool.to_str().expect("test folders are UTF-8")]);
    let output = onefold(&all);
    assert!(output.status.success(), "{all:?}: {}", text_of(&output));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_authenticates_both_ways_and_changes_its_secret_under_load() {
    /// The larger groups take an emulated kernel many seconds; `hosts` has them all.
    const COMBINATIONS: [(&str, &str); 2] = [("sha256", "null"), ("sha384", "ffdhe2048")];
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let pool = folder.path().join("pool");
        let all = ["--create", "4G", "--volume", "vol0=1G"];
        let daemon = Daemon::start(&pool, Some(network.name()), &all);
        let combinations = COMBINATIONS.len().to_string();
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "access",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "access",
                arguments: &[TARGET_V4, &combinations],
                limit_seconds: 600,
                files: &[],
            },
        );
        guest.await_signal("keys", 3 * MINUTE);
        let file = |name: &str| guest.share().join(name);
        let text = |name: &str| std::fs::read_to_string(file(name)).expect("the guest wrote it");
        let path = |name: &str| file(name).to_str().expect("UTF-8").to_owned();
        let nqn = text("hostnqn").trim().to_owned();
        let (one, two) = (path("one.key"), path("two.key"));
        let controller = path("controller.key");
        let secrets = ["one.key", "two.key", "controller.key"].map(text);
        control(
            &pool,
            &[
                "host",
                "create",
                &nqn,
                "--dhchap-secret-file",
                &one,
                "--dhchap-ctrl-secret-file",
                &controller,
            ],
        );
        guest.signal("known");
        for (number, (hash, group)) in (1..).zip(COMBINATIONS) {
            guest.await_signal(&format!("combination-{number}"), 3 * MINUTE);
            control(
                &pool,
                &[
                    "host",
                    "set",
                    &nqn,
                    "--dhchap-hashes",
                    hash,
                    "--dhchap-groups",
                    group,
                ],
            );
            guest.signal(&format!("set-{number}"));
        }
        let count = |what: &str| {
            daemon.status()["authentication"][what]
                .as_u64()
                .expect("a number")
        };
        guest.await_signal("rotate", 3 * MINUTE);
        let before = count("succeeded");
        control(&pool, &["host", "set", &nqn, "--dhchap-secret-file", &two]);
        guest.signal("rotated");
        guest.await_signal("asked-again", MINUTE);
        // The admin queue and the I/O queue. That they are the same connections, the guest sees.
        wait_for("both queues to authenticate again", 2 * MINUTE, || {
            (count("succeeded") >= before + 2).then_some(())
        });
        guest.signal("authenticated-again");
        println!("{}", guest.finish(5 * MINUTE));
        println!("{:#}", daemon.status()["authentication"]);
        assert_eq!(count("failed"), 3, "wrong secrets are counted");
        let log = daemon.log();
        assert!(
            log.contains("authentication failed") && log.contains("10.77.0.2"),
            "and logged"
        );
        let shown = control(&pool, &["host", "list", "--json"]) + &log;
        for secret in secrets {
            assert!(!shown.contains(&secret[12..40]), "a secret is shown");
        }
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&pool);
    });
}

/// A host that comes by TLS: its kernel, the Debian release of its nvme-cli and tlshd, and how its keys are kept.
fn comes_by_tls(kernel: &str, release: &str, suites: &[&str], key_options: &[&str]) {
    let network = Network::new(1, 1500);
    let folder = pool();
    let pool = folder.path().join("pool");
    let all = ["--create", "4G", "--volume", "vol0=1G", "--tls", "allowed"];
    let daemon = Daemon::start(&pool, Some(network.name()), &all);
    let strict = format!("tcp://{TARGET_V4}:4430");
    control(&pool, &["listener", "add", &strict, "--tls", "required"]);
    let mut guest = Guest::start(
        &network,
        &GuestSpec {
            name: "tls",
            kernel,
            number: 0,
            cpus: 1,
            story: "tls",
            arguments: &[TARGET_V4, release],
            limit_seconds: 480,
            files: &[],
        },
    );
    guest.await_signal("keys", 3 * MINUTE);
    let share = guest.share().to_owned();
    let text = |name: &str| std::fs::read_to_string(share.join(name)).expect("it was written");
    let nqn = text("hostnqn").trim().to_owned();
    let secrets = ["small.tls", "large.tls", "stranger.tls"].map(text);
    for name in ["small.tls", "large.tls"] {
        let file = share.join(name);
        let file = file.to_str().expect("test folders are UTF-8");
        let add = ["host", "tls-key", "add", &nqn, "--file", file];
        control(&pool, &[&add, key_options].concat());
    }
    guest.signal("known");
    for (number, suite) in (1..).zip(suites) {
        guest.await_signal(&format!("attached-{number}"), 5 * MINUTE);
        let hosts = daemon.status()["hosts"].clone();
        assert_eq!(hosts[0]["tls"], *suite, "{hosts:#}");
        // The last one has come by the other key.
        if number > 1 {
            control(&pool, &["host", "tls-key", "remove", &nqn, "1"]);
        }
        guest.signal(&format!("seen-{number}"));
    }
    println!("{}", guest.finish(5 * MINUTE));
    let status = daemon.status();
    println!("{:#}", status["tls"]);
    let failed = status["tls"]["failed"].as_u64();
    assert!(failed >= Some(4), "hosts that were refused are counted");
    let log = daemon.log();
    assert!(
        log.contains("a TLS handshake failed") && log.contains("10.77.0.2"),
        "and logged"
    );
    let shown = control(&pool, &["host", "list", "--json"]) + &log;
    for secret in secrets {
        assert!(!shown.contains(&secret[16..40]), "a key is shown");
    }
    assert!(daemon.stop().success(), "the daemon stops cleanly");
    assert_consistent(&pool);
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_comes_by_tls_with_both_cipher_suites_and_nobody_without_the_right_key() {
    const SUITES: [&str; 2] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"];
    steadily(|| comes_by_tls("7", "forky", &SUITES, &[]));
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_host_whose_nvme_cli_derives_keys_in_the_old_way_comes_by_tls_too() {
    steadily(|| comes_by_tls("6.12", "trixie", &["TLS_AES_128_GCM_SHA256"], &["--compat"]));
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_authenticates_and_comes_again_by_tls_with_the_key_that_this_made() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let pool = folder.path().join("pool");
        let all = ["--create", "4G", "--volume", "vol0=1G", "--tls", "allowed"];
        let daemon = Daemon::start(&pool, Some(network.name()), &all);
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "concatenation",
                kernel: "7",
                number: 0,
                cpus: 1,
                story: "concatenation",
                arguments: &[TARGET_V4],
                limit_seconds: 300,
                files: &[],
            },
        );
        guest.await_signal("keys", 3 * MINUTE);
        let nqn = std::fs::read_to_string(guest.share().join("hostnqn")).expect("it was written");
        let secret = guest.share().join("host.key");
        let secret = secret.to_str().expect("test folders are UTF-8");
        let create = ["host", "create", nqn.trim(), "--dhchap-secret-file", secret];
        control(&pool, &create);
        guest.signal("known");
        guest.await_signal("attached", 3 * MINUTE);
        let hosts = daemon.status()["hosts"].clone();
        let suite = hosts[0]["tls"].as_str();
        assert!(
            suite.is_some_and(|suite| suite.starts_with("TLS_AES_")),
            "{hosts:#}"
        );
        guest.signal("seen");
        println!("{}", guest.finish(3 * MINUTE));
        let status = daemon.status();
        println!("{:#} {:#}", status["authentication"], status["tls"]);
        // An exchange for each of both controllers; every queue came by TLS.
        assert_eq!(status["authentication"]["succeeded"], 2, "{status:#}");
        assert_eq!(status["authentication"]["failed"], 1, "another secret");
        assert_eq!(status["tls"]["succeeded"], 4, "{status:#}");
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&pool);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn nvme_cli_is_answered_in_full_and_hears_of_a_pool_that_fills_up() {
    // Of Debian 12, and of Debian 13.
    for version in ["2.3", "2.13"] {
        steadily(|| {
            let network = Network::new(1, 1500);
            let folder = pool();
            let path = folder.path().join("pool");
            // Of 1 GiB 5 % are soon written.
            let all = ["--create", "1G", "--volume", "vol0=1G", "--warn-at", "5,90"];
            let daemon = Daemon::start(&path, Some(network.name()), &all);
            let guest = Guest::start(
                &network,
                &GuestSpec {
                    name: "admin",
                    kernel: "6.12",
                    number: 0,
                    cpus: 1,
                    story: "admin",
                    arguments: &[TARGET_V4, "67108864", version],
                    limit_seconds: 480,
                    files: &[],
                },
            );
            println!("{}", guest.finish(9 * MINUTE));
            assert!(daemon.stop().success(), "the daemon stops cleanly");
            assert_consistent(&path);
        });
    }
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_host_is_told_of_subsystems_that_it_may_use_and_gets_into_no_other() {
    const VMS: &str = "nqn.2026-11.org.example:vms";
    const HIDDEN: &str = "nqn.2026-11.org.example:hidden";
    const FRIEND: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let pool = folder.path().join("pool");
        let arguments = ["--create", "4G", "--volume", "vol0=64M"];
        let daemon = Daemon::start(&pool, Some(network.name()), &arguments);
        let tell = |words: &str| {
            let words: Vec<_> = words.split(' ').collect();
            control(&pool, &words)
        };
        tell(&format!("subsystem create {VMS} --namespace-management"));
        tell(&format!("subsystem create {HIDDEN} --host {FRIEND}"));
        tell("referral add tcp://10.77.0.99:8009");
        let guest = Guest::start(
            &network,
            &GuestSpec {
                name: "discoverer",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "discovery",
                arguments: &[TARGET_V4],
                limit_seconds: 480,
                files: &[],
            },
        );
        println!("{}", guest.finish(5 * MINUTE));
        let status = daemon.status();
        let tcp = status["transports"].as_array().expect("a list").iter();
        let refused: u64 = tcp
            .filter_map(|transport| transport["refused"]["host"].as_u64())
            .sum();
        assert!(refused >= 1, "the stranger is counted: {status:#}");
        let log = daemon.log();
        assert!(log.contains("not on the subsystem's list"), "and logged");
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&pool);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_host_sees_what_the_owner_does_to_namespaces_and_makes_some_of_its_own() {
    const VMS: &str = "nqn.2026-11.org.example:vms";
    const FRIEND: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let pool = folder.path().join("pool");
        let arguments = ["--create", "4G", "--volume", "vol0=64M"];
        let daemon = Daemon::start(&pool, Some(network.name()), &arguments);
        let tell = |words: &str| {
            let words: Vec<_> = words.split(' ').collect();
            control(&pool, &words)
        };
        tell(&format!("subsystem create {VMS} --namespace-management"));
        tell(&format!("volume create a --size 64M --subsystem {VMS}"));
        tell("volume create b --size 64M --subsystem none");
        tell(&format!("namespace attach {VMS} b --nsid 900"));
        tell("referral add tcp://10.77.0.99:8009");
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "subsystems",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "subsystems",
                arguments: &[TARGET_V4],
                limit_seconds: 480,
                files: &[],
            },
        );
        for (asked, words, done) in [
            (
                "create",
                format!("volume create c --size 64M --subsystem {VMS}"),
                "created",
            ),
            ("grow", "volume resize c --size 128M".to_owned(), "grown"),
            ("delete", "volume delete c --yes".to_owned(), "deleted"),
            (
                "mask",
                format!("namespace set {VMS} 900 --hosts {FRIEND}"),
                "masked",
            ),
            (
                "unmask",
                format!("namespace set {VMS} 900 --hosts all"),
                "unmasked",
            ),
            (
                "protect",
                format!("namespace set {VMS} 900 --write-protect on"),
                "protected",
            ),
            (
                "offer",
                "subsystem create nqn.2026-11.org.example:later".to_owned(),
                "offered",
            ),
        ] {
            guest.await_signal(asked, 5 * MINUTE);
            tell(&words);
            guest.signal(done);
        }
        println!("{}", guest.finish(5 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&pool);
    });
}

/// Two guests, and what they say to each other: each hears what the other one signals.
fn relay(sender: &mut Guest, hearer: &Guest, sign: &str) {
    sender.await_signal(sign, 6 * MINUTE);
    hearer.signal(sign);
}

#[test]
#[ignore = "boots two guests: ./test.sh prepares the lab and runs it"]
fn two_kernels_fence_each_other_by_reservations_that_survive_a_killed_target() {
    steadily(|| {
        let network = Network::new(2, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let arguments = ["--create", "1G", "--volume", "vol0=256M"];
        let daemon = Daemon::start(&path, Some(network.name()), &arguments);
        // Debian always has Perl; in the guest it makes the calls that no tool of Debian 12 makes.
        let files = ["/usr/bin/perl", "/lib/x86_64-linux-gnu/libcrypt.so.1"].map(PathBuf::from);
        let guest = |number, role| {
            Guest::start(
                &network,
                &GuestSpec {
                    name: role,
                    kernel: "6.12",
                    number,
                    cpus: 1,
                    story: "reservations",
                    arguments: &[TARGET_V4, role],
                    limit_seconds: 480,
                    files: &files,
                },
            )
        };
        let (mut first, mut second) = (guest(0, "first"), guest(1, "second"));
        relay(&mut first, &second, "first-reserved");
        second.await_signal("second-killing", 6 * MINUTE);
        daemon.kill_hard();
        let daemon = Daemon::start(&path, Some(network.name()), &[]);
        let shown = || control(&path, &["reservation", "show", "vol0"]);
        let text = shown();
        println!("{text}");
        assert!(text.contains("write exclusive"), "{text}");
        assert!(text.contains("survives a restart"), "{text}");
        second.signal("killed");
        relay(&mut second, &first, "second-conflicted");
        relay(&mut first, &second, "first-holds");
        relay(&mut second, &first, "second-preempted");
        relay(&mut first, &second, "first-registered");
        relay(&mut second, &first, "second-exclusive");
        relay(&mut first, &second, "first-locked-out");
        relay(&mut second, &first, "second-shared");
        relay(&mut first, &second, "first-cleared");
        let text = shown();
        assert!(text.contains("reservation none"), "{text}");
        relay(&mut second, &first, "second-done");
        println!("{}", first.finish(3 * MINUTE));
        println!("{}", second.finish(3 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&path);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_host_with_two_paths_keeps_verifying_whatever_happens_to_one_of_them() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let first = format!("tcp://[{TARGET_V6}]:4420");
        let second = format!("tcp://{TARGET_V4}:4420");
        let arguments = [
            "--create",
            "1G",
            "--volume",
            "vol0=256M",
            "--listen",
            &second,
        ];
        let daemon = Daemon::start(&path, Some(network.name()), &arguments);
        let run = |arguments: &[&str]| drop(control(&path, arguments));
        let in_network = |arguments: &[&str]| {
            let status = Command::new("ip")
                .args(["netns", "exec", network.name(), "ip"])
                .args(arguments)
                .status();
            assert!(status.is_ok_and(|status| status.success()), "{arguments:?}");
        };
        run(&["listener", "add", &first]);
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "pathfinder",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "ana",
                arguments: &[TARGET_V6, TARGET_V4],
                limit_seconds: 600,
                files: &[],
            },
        );
        for step in ["inaccessible", "change", "non-optimized", "optimized"] {
            guest.await_signal(step, 6 * MINUTE);
            run(&["ana", "set", &first, "1", step]);
            guest.signal(&format!("{step}-done"));
        }
        let address = format!("{TARGET_V6}/64");
        let cut = ["addr", "del", &address, "dev", "br0"];
        let mend = ["addr", "add", &address, "dev", "br0", "nodad"];
        for (step, change) in [("cut", &cut[..]), ("mend", &mend[..])] {
            guest.await_signal(step, 6 * MINUTE);
            in_network(change);
            guest.signal(&format!("{step}-done"));
        }
        for (step, change) in [("remove", "remove"), ("add", "add")] {
            guest.await_signal(step, 6 * MINUTE);
            run(&["listener", change, &first]);
            guest.signal(&format!("{step}-done"));
        }
        println!("{}", guest.finish(6 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&path);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_host_resets_a_controller_by_another_one() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let arguments = ["--create", "1G", "--volume", "vol0=64M"];
        let daemon = Daemon::start(&path, Some(network.name()), &arguments);
        let spec = GuestSpec {
            name: "resetter",
            kernel: "6.12",
            number: 0,
            cpus: 1,
            story: "cross_reset",
            arguments: &[TARGET_V4, TARGET_V6],
            limit_seconds: 300,
            files: &[],
        };
        println!("{}", Guest::start(&network, &spec).finish(6 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
    });
}

/// A process that is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program in a network, with its standard output in a pipe.
fn program_in(network: &Network) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", network.name()]);
    command.arg(program()).stdout(Stdio::piped());
    command
}

/// Starts `onefold sled serve` in a network, and waits until hosts can connect.
fn serve_drives(network: &Network, name: &str, folder: &Path, drives: &[PathBuf]) -> Process {
    let mut command = program_in(network);
    command
        .args(["sled", "serve", "--name", name, "--reservations"])
        .arg(folder.join("reservations"))
        .args(["--listen", &format!("tcp://{TARGET_V4}:4420")]);
    for drive in drives {
        command.arg("--drive").arg(drive);
    }
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let ready = lines.next().and_then(Result::ok).unwrap_or_default();
    let sled = Process(child);
    assert!(ready.starts_with("ready tcp"), "'{ready}'");
    // The rest is read away, so that the sled never waits for the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    sled
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_uses_the_raw_drives_of_a_sled_that_dies_and_comes_back() {
    for kernel in ["6.1", "6.12"] {
        steadily(|| {
            let network = Network::new(1, 1500);
            let folder = pool();
            let drives = ["first", "second"].map(|name| folder.path().join(name));
            for drive in &drives {
                let file = File::create(drive).expect("a file can be made");
                file.set_len(512 << 20).expect("it has a size");
            }
            let name = format!("guest-{}", std::process::id());
            let sled = serve_drives(&network, &name, folder.path(), &drives);
            let nqn = format!("nqn.2026-11.dev.onefold:sled:{name}");
            let mut guest = Guest::start(
                &network,
                &GuestSpec {
                    name: "raw",
                    kernel,
                    number: 0,
                    cpus: 2,
                    story: "sled",
                    arguments: &[TARGET_V4, &nqn],
                    limit_seconds: 600,
                    files: &[],
                },
            );
            guest.await_signal("load", 8 * MINUTE);
            drop(sled);
            let _again = serve_drives(&network, &name, folder.path(), &drives);
            println!("{}", guest.finish(10 * MINUTE));
        });
    }
}

/// The states of a pool's drives, in their order.
fn drive_states(pool: &Path) -> Vec<String> {
    let drives = control(pool, &["drive", "list", "--json"]);
    let drives: Value = serde_json::from_str(&drives).expect("JSON");
    let drives = drives.as_array().expect("a list").iter();
    let state = |drive: &Value| drive["state"].as_str().expect("a word").to_owned();
    drives.map(state).collect()
}

/// The Linux kernel's target in two machines: a newer one with reservations, and one without.
#[test]
#[ignore = "boots two guests: ./test.sh prepares the lab and runs it"]
fn a_pool_on_the_drives_of_two_kernels_survives_that_the_link_of_either_is_down_for_a_while() {
    steadily(|| {
        let network = Network::new(2, 1500);
        let nqn = |number: u32| format!("nqn.2026-11.dev.onefold:kernel-{number}");
        let address = |number: u32| format!("10.77.0.{}", number + 2);
        let kernels = [(0, "7"), (1, "6.12")];
        let mut guests = kernels.map(|(number, kernel)| {
            let spec = GuestSpec {
                name: &format!("drive-{number}"),
                kernel,
                number,
                cpus: 1,
                story: "kernel_target",
                arguments: &[&address(number), &nqn(number), "tcp"],
                limit_seconds: 900,
                files: &[],
            };
            Guest::start(&network, &spec)
        });
        for guest in &mut guests {
            guest.await_signal("up", 5 * MINUTE);
        }
        let drives = [0, 1].map(|at| format!("nvme+tcp://{}:4420/{}#1", address(at), nqn(at)));
        let folder = pool();
        let path = folder.path().join("pool");
        let mirror = ["--create", "0", "--redundancy", "mirror=2"];
        let named = ["--drive", &drives[0], "--drive", &drives[1]];
        let arguments = [&mirror[..], &named, &["--volume", "vol0=128M"]].concat();
        let daemon = Daemon::start(&path, Some(network.name()), &arguments);
        let load = program_in(&network)
            .args([
                "perf", "--json", "--rw", "randrw", "--bs", "4k", "--qd", "4",
            ])
            .args(["--range", "16M", "--verify", "--time", "800"])
            .arg(format!(
                "tcp://{TARGET_V4}:4420/nqn.2026-11.dev.onefold:default"
            ))
            .spawn();
        let mut load = Process(load.expect("the program starts"));
        let written = || {
            let io = &daemon.status()["volumes"][0]["io"]["write_commands"];
            io.as_u64().expect("a number")
        };
        // By a reservation what was in doubt is over at once; without, when the target has given it up.
        for at in [0, 1] {
            let before = written();
            wait_for("the load", MINUTE, || (written() > before).then_some(()));
            let link = |state: &str| {
                let tap = format!("tap{at}");
                let set = Command::new("ip")
                    .args(["-n", network.name(), "link", "set", &tap, state])
                    .status();
                assert!(set.is_ok_and(|status| status.success()), "{tap} {state}");
            };
            link("down");
            let down = Instant::now();
            wait_for("the drive to be left", MINUTE, || {
                (drive_states(&path)[at] == "offline").then_some(())
            });
            let before = written();
            // Longer than the keep-alive timeout: the pool and the target give each other up.
            wait_for("the end of the connections", MINUTE, || {
                (down.elapsed() > Duration::from_secs(10)).then_some(())
            });
            wait_for("more of the load", MINUTE, || {
                (written() > before).then_some(())
            });
            link("up");
            wait_for("the drive to be usable", 2 * MINUTE, || {
                let online = ["drive", "online", &drives[at], "--pool"];
                let path = path.to_str().expect("test folders are UTF-8");
                let output = onefold(&[&online[..], &[path]].concat());
                output.status.success().then_some(())
            });
            println!(
                "drive {at} is usable {:?} after its link went down",
                down.elapsed()
            );
            wait_for("the rebuild", 3 * MINUTE, || {
                (drive_states(&path) == ["online", "online"]).then_some(())
            });
        }
        let pid = Pid::from_child(&load.0);
        kill_process(pid, Signal::INT).expect("the load runs yet");
        let mut report = String::new();
        let stdout = load.0.stdout.as_mut().expect("a pipe");
        stdout.read_to_string(&mut report).expect("text");
        println!("{report}");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["errors"], 0);
        assert_eq!(report["verify_errors"], 0);
        assert_eq!(report["connection_lost"], Value::Null);
        for way in ["read", "write"] {
            // A second for the drive, and the rest for two kernels that are emulated.
            let longest = report[way]["latency_ns"]["max"].as_u64();
            assert!(longest < Some(8_000_000_000), "{way}");
        }
        control(&path, &["scrub", "start"]);
        let scrub = wait_for("the scrub", 3 * MINUTE, || {
            let scrub = control(&path, &["scrub", "status", "--json"]);
            let scrub: Value = serde_json::from_str(&scrub).expect("JSON");
            (scrub["phase"] != "running").then_some(scrub)
        });
        assert_eq!(scrub["phase"], "finished", "{scrub:#}");
        assert_eq!(scrub["bad_blocks"], 0, "{scrub:#}");
        assert_eq!(scrub["damage"]["healed_blocks"], 0, "{scrub:#}");
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        let text = path.to_str().expect("test folders are UTF-8");
        let check = ["pool", "check", text, "--data"];
        let checked = onefold_in(Some(network.name()), &check);
        assert!(checked.status.success(), "{}", text_of(&checked));
        for guest in guests {
            guest.signal("done");
            println!("{}", guest.finish(2 * MINUTE));
        }
    });
}
