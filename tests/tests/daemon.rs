//! The daemon as its user meets it: started, looked at, loaded, broken, started again.
//!
//! Each test listens on a loopback address of its own, so that they can run side by side.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use fabric::{Connector, Device, DeviceConfig};
use initiator::{ConnectOptions, Controller, Host, Namespace};
use serde_json::Value;
use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent, onefold, text_of},
    own_address, wait_for,
};

const NQN: &str = "nqn.2026-11.dev.onefold:default";
const MIB: u64 = 1 << 20;
/// How long a test waits for what must happen: never the measure of anything, so generous.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder for one test's pool, and the address that its daemon uses.
struct Place {
    folder: TempDir,
    address: String,
}

impl Place {
    fn new(number: u8) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("onefold-test-")
            .tempdir()
            .expect("a folder");
        Self {
            folder,
            address: own_address(number).to_string(),
        }
    }

    fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    fn listen(&self) -> String {
        format!("rdma://{}:4420", self.address)
    }

    /// Starts a daemon on a small pool with one small volume.
    fn serve(&self) -> Daemon {
        self.serve_with(&["--create", "1G", "--volume", "vol0=256M"])
    }

    fn serve_with(&self, arguments: &[&str]) -> Daemon {
        let listen = self.listen();
        let mut all = vec!["--listen", &listen];
        all.extend_from_slice(arguments);
        Daemon::start(&self.pool(), None, &all)
    }

    /// `onefold perf`, which has to succeed without errors.
    fn perf(&self, arguments: &[&str]) -> Value {
        let report = self.perf_that_may_fail(arguments);
        assert_eq!(report["errors"], 0, "{report:#}");
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        report
    }

    fn perf_that_may_fail(&self, arguments: &[&str]) -> Value {
        let target = format!("{}/{NQN}", self.listen());
        let mut all = vec!["perf", &target, "--json"];
        all.extend_from_slice(arguments);
        let output = onefold(&all);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("perf printed no JSON ({error}): {}", text_of(&output)))
    }

    fn volume(&self, arguments: &[&str]) -> String {
        let pool = self.pool();
        let mut all = vec!["volume"];
        all.extend_from_slice(arguments);
        all.extend_from_slice(&["--pool", pool.to_str().expect("UTF-8")]);
        let output = onefold(&all);
        assert!(output.status.success(), "{all:?}: {}", text_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Why `serve` refuses to start.
    fn refusal(&self, arguments: &[&str]) -> String {
        let listen = self.listen();
        let mut all = vec!["--listen", &listen];
        all.extend_from_slice(arguments);
        match Daemon::try_start(&self.pool(), None, &all) {
            Ok(_) => panic!("the daemon started with {arguments:?}"),
            Err(text) => text,
        }
    }
}

fn figure(status: &Value, name: &str) -> u64 {
    status["pool"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {status:#}"))
}

#[test]
fn a_second_start_finds_the_same_volume_with_the_same_data() {
    let place = Place::new(1);
    let daemon = place.serve();
    assert!(
        daemon.ready_line().contains(&place.address),
        "{}",
        daemon.ready_line()
    );
    let report = place.perf(&[
        "--rw", "write", "--bs", "128k", "--qd", "8", "--size", "64M", "--seed", "7", "--verify",
    ]);
    assert_eq!(report["write"]["bytes"], 64 * MIB);
    let before = daemon.status();
    assert!(daemon.stop().success(), "SIGTERM is a clean end");
    assert_consistent(&place.pool());

    let daemon = place.serve_with(&[]);
    let after = daemon.status();
    assert_eq!(
        before["volumes"], after["volumes"],
        "identity, size and use are the same"
    );
    assert_eq!(figure(&before, "used_bytes"), figure(&after, "used_bytes"));
    let report = place.perf(&[
        "--rw", "read", "--bs", "128k", "--qd", "8", "--size", "64M", "--seed", "7", "--verify",
    ]);
    assert_eq!(report["read"]["bytes"], 64 * MIB);
}

#[test]
fn status_counts_every_content_once_and_zeroes_not_at_all() {
    let place = Place::new(2);
    let daemon = place.serve();
    let write = [
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "64M", "--range", "64M",
    ];
    let arguments = [&write[..], &["--dup", "50", "--zero", "25", "--verify"]].concat();
    place.perf(&arguments);
    let status = daemon.status();
    let (logical, used) = (
        figure(&status, "logical_bytes"),
        figure(&status, "used_bytes"),
    );
    assert_eq!(logical, 48 * MIB, "a quarter was zeroes: {status:#}");
    assert!(
        used.abs_diff(16 * MIB) <= 4096,
        "half was written before: {status:#}"
    );
    assert!(figure(&status, "capacity_bytes") >= used);
    assert!(
        status["pool"]["dedup_ratio"]
            .as_f64()
            .is_some_and(|ratio| (2.9..3.1).contains(&ratio))
    );
    assert_eq!(status["volumes"][0]["logical_bytes"], logical);
}

#[test]
fn a_pool_without_room_for_an_index_stores_every_block_once_also_after_a_restart() {
    let place = Place::new(13);
    let write = |nsid: &str| {
        let arguments = [
            "--nsid", nsid, "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "32M", "--seed",
            "5", "--verify",
        ];
        let report = place.perf(&arguments);
        assert_eq!(report["write"]["bytes"], 32 * MIB);
    };
    let index = ["--index-memory", "0"];
    let volumes = [
        "--create", "1G", "--volume", "one=64M", "--volume", "two=64M",
    ];
    let daemon = place.serve_with(&[&volumes[..], &index].concat());
    write("1");
    let used = figure(&daemon.status(), "used_bytes");
    assert_eq!(used, 32 * MIB);
    assert!(daemon.stop().success(), "SIGTERM is a clean end");

    // The same contents again, on another volume.
    let daemon = place.serve_with(&index);
    write("2");
    wait_for("what was written twice to be merged", PATIENCE, || {
        (figure(&daemon.status(), "used_bytes") == used).then_some(())
    });
    assert_eq!(figure(&daemon.status(), "logical_bytes"), 2 * used);
    let pool = place.pool();
    let shown = onefold(&["status", "--pool", pool.to_str().expect("UTF-8")]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let index = shown.lines().find(|line| line.starts_with("Index: "));
    let index = index.unwrap_or_else(|| panic!("{shown}"));
    let words: Vec<&str> = index.split_whitespace().collect();
    let before = |word: &str| -> u64 {
        let at = words.iter().position(|other| *other == word).expect(word);
        words[at - 1].parse().expect(index)
    };
    assert!(words[1].parse::<u64>().expect(index) < 1000, "{index}");
    let at = words.iter().position(|word| *word == "are").expect(index);
    assert!(words[at - 2].parse::<u64>().expect(index) > 7000, "{index}");
    assert!(before("times") >= 8192 - 1000, "{index}");
    assert!(daemon.stop().success(), "SIGTERM is a clean end");
    assert_consistent(&place.pool());
}

#[test]
fn every_pattern_and_block_size_reads_back_what_it_wrote() {
    let place = Place::new(3);
    let _daemon = place.serve_with(&[
        "--create",
        "1G",
        "--volume",
        "vol0=64M",
        "--volume",
        "old=64M,lba=512",
    ]);
    for (nsid, pattern, block) in [
        ("1", "randwrite", "4k"),
        ("1", "randrw", "16k"),
        ("1", "rw", "1M"),
        ("2", "randrw", "512"),
        ("2", "randrw", "4k"),
        ("2", "write", "20k"),
    ] {
        place.perf(&[
            "--nsid", nsid, "--rw", pattern, "--bs", block, "--qd", "16", "--queues", "2",
            "--size", "16M", "--dup", "30", "--zero", "10", "--verify",
        ]);
    }
}

/// What one writer knows of its blocks: the number that was acknowledged, and those that may be there.
#[derive(Default, Clone)]
struct Slot {
    acknowledged: u64,
    attempted: u64,
}

async fn namespace(place: &Place) -> (Device, Controller, Namespace) {
    let address = place.address.parse().expect("an address");
    let device = Device::open(DeviceConfig::to_reach(address)).expect("a device");
    let mut options = ConnectOptions::new(
        (address, 4420).into(),
        NQN.parse().expect("a name"),
        Host::generate(),
    );
    // What a dead daemon has acknowledged on the wire and never answers ends by this.
    options.command_timeout = Duration::from_secs(20);
    let controller = Controller::connect(&Connector::Rdma(device.clone()), options)
        .await
        .expect("the target accepts");
    let namespace = controller.namespace(1).await.expect("namespace 1");
    (device, controller, namespace)
}

/// A block that says which write it is: slot and number in each of its 8-byte words.
fn stamp(block: &mut [u8], slot: u64, number: u64) {
    for word in block.chunks_mut(16) {
        word[..8].copy_from_slice(&slot.to_le_bytes());
        word[8..16].copy_from_slice(&number.to_le_bytes());
    }
}

#[test]
fn acknowledged_writes_survive_kill_nine() {
    const SLOTS: u64 = 256;
    let place = Place::new(4);
    let mut slots: BTreeMap<u64, Slot> = BTreeMap::new();
    let mut daemon = Some(place.serve());
    for round in 0..4_u64 {
        let state = Rc::new(RefCell::new(std::mem::take(&mut slots)));
        let pid = daemon.as_ref().expect("it was started").pid();
        let shared = state.clone();
        reactor::run(reactor::Config::default(), async {
            let (_device, _controller, namespace) = namespace(&place).await;
            let writers = (0..16_u64).map(|writer| {
                let (namespace, shared) = (namespace.clone(), shared.clone());
                reactor::spawn(async move {
                    for turn in 0.. {
                        let slot = (turn * 16 + writer) % SLOTS;
                        let number = {
                            let mut slots = shared.borrow_mut();
                            let entry = slots.entry(slot).or_default();
                            entry.attempted += 1;
                            entry.attempted
                        };
                        let mut buffer = initiator::buffer(8192).await;
                        // Two sub-blocks: a command may be torn between them, a sub-block may not.
                        stamp(&mut buffer[..4096], slot, number);
                        stamp(&mut buffer[4096..], slot + SLOTS, number);
                        if namespace.write(slot * 8192, buffer, false).await.0.is_err() {
                            return;
                        }
                        shared.borrow_mut().entry(slot).or_default().acknowledged = number;
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            // The kill comes in the middle: after so many acknowledged writes, differing by round.
            loop {
                assert!(
                    !writers.iter().all(reactor::JoinHandle::is_finished),
                    "every writer failed before the kill"
                );
                let done: u64 = shared.borrow().values().map(|slot| slot.acknowledged).sum();
                if done > 3000 + round * 4500 {
                    break;
                }
                reactor::sleep(Duration::from_millis(1)).await;
            }
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a number");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
            for writer in writers {
                writer.await.expect("a writer ends by itself");
            }
        })
        .expect("a reactor");
        drop(daemon.take());
        assert_consistent(&place.pool());
        daemon = Some(place.serve_with(&[]));
        slots = state.take();
        let known = slots.clone();
        let seen = reactor::run(reactor::Config::default(), async {
            let (_device, controller, namespace) = namespace(&place).await;
            let mut seen = BTreeMap::new();
            for (slot, expected) in known {
                let (result, buffer) = namespace
                    .read(slot * 8192, initiator::buffer(8192).await)
                    .await;
                result.expect("what was acknowledged can be read");
                let mut oldest = u64::MAX;
                for (half, block) in buffer.chunks(4096).enumerate() {
                    let number = u64::from_le_bytes(block[8..16].try_into().expect("8 bytes"));
                    let mut right = vec![0; 4096];
                    if number > 0 {
                        stamp(&mut right, slot + half as u64 * SLOTS, number);
                    }
                    assert!(
                        right == block,
                        "slot {slot}: a mixture, or another block's content"
                    );
                    assert!(
                        (expected.acknowledged..=expected.attempted).contains(&number),
                        "slot {slot}: write {number} is there, {} was acknowledged",
                        expected.acknowledged
                    );
                    oldest = oldest.min(number);
                }
                seen.insert(slot, oldest);
            }
            controller.disconnect().await;
            seen
        })
        .expect("a reactor");
        assert!(seen.len() > 100, "the test wrote to many slots");
        for (slot, number) in seen {
            let entry = slots.entry(slot).or_default();
            // What was seen once may not be taken back by a later crash.
            entry.acknowledged = entry.acknowledged.max(number);
        }
    }
}

#[test]
fn volumes_come_grow_and_go_while_the_daemon_runs() {
    let place = Place::new(5);
    let daemon = place.serve();
    place.volume(&["create", "vm1", "--size", "128M"]);
    let list: Value = serde_json::from_str(&place.volume(&["list", "--json"])).expect("JSON");
    assert!(list.to_string().contains("vm1"), "{list:#}");
    place.perf(&[
        "--nsid", "2", "--rw", "write", "--bs", "128k", "--size", "32M", "--range", "32M",
    ]);
    let used = daemon.used_bytes();
    assert_eq!(used, 32 * MIB);
    place.volume(&["resize", "vm1", "--size", "256M"]);
    let shown: Value =
        serde_json::from_str(&place.volume(&["show", "vm1", "--json"])).expect("JSON");
    assert_eq!(shown["size_bytes"], 256 * MIB, "{shown:#}");
    place.volume(&["delete", "vm1", "--yes"]);
    wait_for("the deleted volume's space", PATIENCE, || {
        (daemon.used_bytes() == 0).then_some(())
    });
    assert!(daemon.stop().success());
    assert_consistent(&place.pool());
}

#[test]
fn a_full_pool_refuses_new_data_and_nothing_else() {
    let place = Place::new(6);
    let daemon = place.serve_with(&[
        "--create",
        "64M",
        "--volume",
        "vol0=256M",
        "--volume",
        "vol1=256M",
    ]);
    let write = [
        "--rw", "write", "--bs", "64k", "--qd", "8", "--verify", "--seed", "11",
    ];
    let report =
        place.perf_that_may_fail(&[&write[..], &["--size", "128M", "--range", "128M"]].concat());
    assert!(
        report["errors"].as_u64() > Some(0),
        "writes beyond the pool fail: {report:#}"
    );
    assert_eq!(
        report["verify_errors"], 0,
        "what was acknowledged is there: {report:#}"
    );
    // The same seed repeats the same content: duplicates need no space.
    let repeat = ["--size", "16M", "--range", "16M", "--nsid", "2"];
    place.perf(&[&write[..], &repeat[..]].concat());
    // Zeroes make room, and new data fit again.
    place.perf(&[
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "128M", "--range", "128M", "--zero",
        "100",
    ]);
    place.volume(&["delete", "vol1", "--yes"]);
    wait_for("space to be free again", PATIENCE, || {
        (daemon.used_bytes() == 0).then_some(())
    });
    place.perf(&[
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "16M", "--range", "16M", "--seed",
        "12", "--verify",
    ]);
    assert!(daemon.stop().success());
    assert_consistent(&place.pool());
}

#[test]
fn a_pool_in_use_names_the_process_that_holds_it() {
    let place = Place::new(7);
    let daemon = place.serve();
    let other = Place {
        folder: tempfile::tempdir().expect("a folder"),
        address: own_address(107).to_string(),
    };
    let listen = other.listen();
    let text = match Daemon::try_start(&place.pool(), None, &["--listen", &listen]) {
        Ok(_) => panic!("two daemons on one pool"),
        Err(text) => text,
    };
    assert!(
        text.contains(&daemon.pid().to_string()),
        "names the process: {text}"
    );
    let check = onefold(&["pool", "check", place.pool().to_str().expect("UTF-8")]);
    assert_eq!(
        check.status.code(),
        Some(1),
        "a pool in use cannot be checked: {}",
        text_of(&check)
    );
    assert!(text_of(&check).contains("--online"), "{}", text_of(&check));
}

#[test]
fn an_address_in_use_is_refused_with_its_name() {
    let place = Place::new(8);
    let _daemon = place.serve();
    let second = Place {
        folder: tempfile::tempdir().expect("a folder"),
        address: place.address.clone(),
    };
    let text = second.refusal(&["--create", "64M"]);
    assert!(
        text.contains("4791") && text.contains(&place.address),
        "names port and address: {text}"
    );
}

#[test]
fn a_missing_or_truncated_drive_is_named_and_nothing_is_lost() {
    let place = Place::new(9);
    let daemon = place.serve();
    place.perf(&[
        "--rw", "write", "--bs", "64k", "--size", "8M", "--range", "8M", "--seed", "5",
    ]);
    assert!(daemon.stop().success());
    let drive = place.pool().join("drive0");
    let moved = place.folder.path().join("moved");

    fs::rename(&drive, &moved).expect("the drive is a file");
    let text = place.refusal(&[]);
    assert!(text.contains("drive0"), "names the drive: {text}");
    assert!(!drive.exists(), "no empty drive is made in its place");

    fs::copy(&moved, &drive).expect("it can be copied");
    fs::File::options()
        .write(true)
        .open(&drive)
        .expect("it is there")
        .set_len(1 << 20)
        .expect("cut");
    let text = place.refusal(&[]);
    assert!(text.contains("drive0"), "names the drive: {text}");

    fs::rename(&moved, &drive).expect("it can be moved back");
    let _daemon = place.serve_with(&[]);
    place.perf(&[
        "--rw", "read", "--bs", "64k", "--size", "8M", "--range", "8M", "--seed", "5", "--verify",
    ]);
}

#[test]
fn a_damaged_label_metadata_or_version_is_refused_with_its_file_and_a_remedy() {
    let place = Place::new(10);
    assert!(place.serve().stop().success());
    let damage = |file: &Path, at: u64| {
        let open = fs::File::options()
            .read(true)
            .write(true)
            .open(file)
            .expect("it is there");
        let mut old = vec![0; 64];
        open.read_exact_at(&mut old, at).expect("it is long enough");
        open.write_all_at(&[0x5a; 64], at)
            .expect("it can be written");
        move || open.write_all_at(&old, at).expect("it can be written")
    };
    let drive = place.pool().join("drive0");
    let (undo_first, undo_second) = (damage(&drive, 0), damage(&drive, 4096));
    let text = place.refusal(&[]);
    assert!(text.contains("drive0"), "both labels are gone: {text}");
    undo_second();
    // One good copy of the label is enough.
    assert!(place.serve_with(&[]).stop().success());
    undo_first();

    let current = place.pool().join("metadata").join("CURRENT");
    let kept = fs::read(&current).expect("RocksDB has a CURRENT file");
    fs::write(&current, b"garbage\n").expect("it can be written");
    let text = place.refusal(&[]);
    assert!(text.contains("metadata"), "names RocksDB's folder: {text}");
    let check = onefold(&["pool", "check", place.pool().to_str().expect("UTF-8")]);
    assert!(
        matches!(check.status.code(), Some(1 | 2)),
        "{}",
        text_of(&check)
    );
    fs::write(&current, kept).expect("it can be written");

    let identity = place.pool().join("pool.toml");
    let kept = fs::read_to_string(&identity).expect("the identity is text");
    let other: String = kept
        .lines()
        .map(|line| {
            if line.starts_with("version") || line.starts_with("format") {
                line.replace('1', "999")
            } else {
                line.into()
            }
        })
        .map(|line| line + "\n")
        .collect();
    assert_ne!(kept, other, "the identity names its version: {kept}");
    fs::write(&identity, other).expect("it can be written");
    let text = place.refusal(&[]);
    assert!(
        text.contains("pool.toml") && text.contains("999"),
        "names file and version: {text}"
    );
    fs::write(&identity, kept).expect("it can be written");
    assert!(place.serve_with(&[]).stop().success());
}

#[test]
fn damaged_data_are_a_read_error_and_found_by_the_check() {
    let place = Place::new(11);
    let daemon = place.serve();
    place.perf(&[
        "--rw", "write", "--bs", "4k", "--size", "1M", "--range", "1M", "--seed", "3",
    ]);
    assert!(daemon.stop().success());
    let drive = fs::File::options()
        .read(true)
        .write(true)
        .open(place.pool().join("drive0"))
        .expect("it is there");
    // The data area begins after 256 blocks of labels: flip one bit of every block that holds data.
    let mut byte = [0];
    for block in 256..512_u64 {
        drive
            .read_exact_at(&mut byte, block * 4096 + 99)
            .expect("it is there");
        drive
            .write_all_at(&[byte[0] ^ 1], block * 4096 + 99)
            .expect("it can be written");
    }
    let check = onefold(&[
        "pool",
        "check",
        place.pool().to_str().expect("UTF-8"),
        "--data",
    ]);
    assert_eq!(check.status.code(), Some(2), "{}", text_of(&check));
    let _daemon = place.serve_with(&[]);
    let report = place.perf_that_may_fail(&[
        "--rw", "read", "--bs", "4k", "--size", "1M", "--range", "1M", "--seed", "3", "--verify",
    ]);
    assert_eq!(
        report["errors"], 256,
        "every damaged block is an error: {report:#}"
    );
    assert_eq!(
        report["verify_errors"], 0,
        "and none is returned as data: {report:#}"
    );
}

#[test]
fn discover_shows_the_subsystem_and_how_to_reach_it() {
    let place = Place::new(12);
    let _daemon = place.serve();
    let output = onefold(&["discover", &place.listen(), "--json"]);
    assert!(output.status.success(), "{}", text_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(NQN) && text.contains(&place.address),
        "{text}"
    );
}

#[test]
fn nobody_there_is_said_within_seconds() {
    let nobody = own_address(200).to_string();
    let output = onefold(&["discover", &format!("rdma://{nobody}:4420")]);
    assert!(!output.status.success(), "{}", text_of(&output));
    assert!(text_of(&output).contains(&nobody), "{}", text_of(&output));
}
