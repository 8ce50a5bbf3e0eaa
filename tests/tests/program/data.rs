//! Data of hosts as the program keeps them: over restarts, kills, full pools and damaged drives.

use std::{
    cell::RefCell, collections::BTreeMap, fs, os::unix::fs::FileExt, rc::Rc, time::Duration,
};

use fabric::{Connector, Device, DeviceConfig};
use initiator::{ConnectOptions, Controller, Host, Namespace};
use rustix::process::Signal;
use serde_json::Value;
use tests::daemon::text_of;

use crate::harness::{Daemon, NQN, Pool, fails, run, succeeds, volumes_of, wait_for};

const MIB: u64 = 1 << 20;

/// A small pool with one small volume.
const SMALL: [&str; 4] = ["--create", "1G", "--volume", "vol0=256M"];

fn figure(status: &Value, name: &str) -> u64 {
    status["pool"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {status:#}"))
}

#[test]
fn a_second_start_finds_the_same_volume_with_the_same_data() {
    let pool = Pool::new();
    let daemon = pool.serve(&SMALL);
    let report = pool.load(&[
        "--rw", "write", "--bs", "128k", "--qd", "8", "--size", "64M", "--seed", "7", "--verify",
    ]);
    assert_eq!(report["write"]["bytes"], 64 * MIB);
    let before = pool.status();
    daemon.stop(Signal::TERM);
    pool.is_consistent();

    let _daemon = pool.serve(&[]);
    let after = pool.status();
    assert_eq!(
        volumes_of(&before),
        volumes_of(&after),
        "identity, size and use are the same"
    );
    let reads = |status: &Value| status["volumes"][0]["io"]["read_commands"].as_u64();
    assert_eq!((reads(&before), reads(&after)), (Some(512), Some(0)));
    assert_eq!(figure(&before, "used_bytes"), figure(&after, "used_bytes"));
    let report = pool.load(&[
        "--rw", "read", "--bs", "128k", "--qd", "8", "--size", "64M", "--seed", "7", "--verify",
    ]);
    assert_eq!(report["read"]["bytes"], 64 * MIB);
}

#[test]
fn status_counts_every_content_once_and_zeroes_not_at_all() {
    let pool = Pool::new();
    let _daemon = pool.serve(&SMALL);
    let write = [
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "64M", "--range", "64M",
    ];
    let arguments = [&write[..], &["--dup", "50", "--zero", "25", "--verify"]].concat();
    pool.load(&arguments);
    let status = pool.status();
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
    let pool = Pool::new();
    let write = |nsid: &str| {
        let arguments = [
            "--nsid", nsid, "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "32M", "--seed",
            "5", "--verify",
        ];
        let report = pool.load(&arguments);
        assert_eq!(report["write"]["bytes"], 32 * MIB);
    };
    let index = ["--index-memory", "0"];
    let volumes = [
        "--create", "1G", "--volume", "one=64M", "--volume", "two=64M",
    ];
    let daemon = pool.serve(&[&volumes[..], &index].concat());
    write("1");
    let used = pool.figure("used_bytes");
    assert_eq!(used, 32 * MIB);
    daemon.stop(Signal::TERM);

    // The same contents again, on another volume.
    let daemon = pool.serve(&index);
    write("2");
    wait_for("what was written twice to be merged", || {
        pool.figure("used_bytes") == used
    });
    assert_eq!(pool.figure("logical_bytes"), 2 * used);
    let shown = succeeds(&["status", "--pool", pool.dir()]);
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
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn every_pattern_and_block_size_reads_back_what_it_wrote() {
    let pool = Pool::new();
    let _daemon = pool.serve(&[
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
        pool.load(&[
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

async fn namespace(pool: &Pool) -> (Device, Controller, Namespace) {
    let address = pool.ip();
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
    let pool = Pool::new();
    let mut slots: BTreeMap<u64, Slot> = BTreeMap::new();
    let mut daemon = Some(pool.serve(&SMALL));
    for round in 0..4_u64 {
        let state = Rc::new(RefCell::new(std::mem::take(&mut slots)));
        let pid = daemon.as_ref().expect("it was started").child.id();
        let shared = state.clone();
        reactor::run(reactor::Config::default(), async {
            let (_device, _controller, namespace) = namespace(&pool).await;
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
        pool.is_consistent();
        daemon = Some(pool.serve(&[]));
        slots = state.take();
        let known = slots.clone();
        let seen = reactor::run(reactor::Config::default(), async {
            let (_device, controller, namespace) = namespace(&pool).await;
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
fn a_full_pool_refuses_new_data_and_nothing_else() {
    let pool = Pool::new();
    let log = pool.dir.with_extension("log");
    let daemon = Daemon::start_with(
        &[
            "serve",
            "--pool",
            pool.dir(),
            "--listen",
            &pool.address,
            "--create",
            "64M",
            "--volume",
            "vol0=256M",
            "--volume",
            "vol1=256M",
        ],
        fs::File::create(&log).expect("a log").into(),
    );
    let write = [
        "--rw", "write", "--bs", "64k", "--qd", "8", "--verify", "--seed", "11",
    ];
    let report =
        pool.load_that_may_fail(&[&write[..], &["--size", "128M", "--range", "128M"]].concat());
    assert!(
        report["errors"].as_u64() > Some(0),
        "writes beyond the pool fail: {report:#}"
    );
    assert_eq!(
        report["verify_errors"], 0,
        "what was acknowledged is there: {report:#}"
    );
    let health = || pool.status()["health"].clone();
    let full = health();
    assert_eq!(full["state"], "takes no writes", "{full:#}");
    assert!(full["refused_writes"].as_u64() > Some(0), "{full:#}");
    let reason = &full["reasons"][0];
    let what = reason["what"].as_str().expect("text");
    assert!(what.contains("the pool is full"), "{full:#}");
    for told in ["since", "remedy"] {
        let text = reason[told].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{told}: {full:#}");
    }
    let shown = succeeds(&["status", "--pool", pool.dir()]);
    assert!(shown.contains("Health: TAKES NO WRITES"), "{shown}");
    // The same seed repeats the same content: duplicates need no space.
    let repeat = ["--size", "16M", "--range", "16M", "--nsid", "2"];
    pool.load(&[&write[..], &repeat[..]].concat());
    // Zeroes make room, and new data fit again.
    pool.load(&[
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "128M", "--range", "128M", "--zero",
        "100",
    ]);
    succeeds(&["volume", "delete", "vol1", "--yes", "--pool", pool.dir()]);
    wait_for("space to be free again", || pool.figure("used_bytes") == 0);
    wait_for("the fault to be over", || health()["state"] == "ok");
    let log = fs::read_to_string(&log).expect("the log");
    let told = |words: &str| log.matches(words).count();
    let full = "the pool is full, and writes of new data fail";
    let over = told(&format!("over: {full}"));
    // Its beginning is told once and its end once, however many writes failed.
    assert_eq!((told(full) - over, over), (1, 1), "{log}");
    pool.load(&[
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "16M", "--range", "16M", "--seed",
        "12", "--verify",
    ]);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_load_that_compresses_takes_half_of_its_room_and_reads_back() {
    let pool = Pool::new();
    let _daemon = pool.serve(&["--create", "1G", "--volume", "vol0=256M,compression=lz4"]);
    let load = [
        "--rw",
        "write",
        "--bs",
        "64k",
        "--qd",
        "8",
        "--size",
        "32M",
        "--range",
        "32M",
        "--seed",
        "21",
        "--verify",
        "--compress",
        "60",
    ];
    pool.load(&load);
    let (used, written) = (pool.figure("used_bytes"), 32 << 20);
    // Two contents of 40 % of a block, and what a pack has around them, fit into one block.
    assert!((written / 2..written * 6 / 10).contains(&used), "{used}");
    let saved = pool.figure("compression_saved_bytes");
    assert!((written * 4 / 10..=written / 2).contains(&saved), "{saved}");
    // Another run knows what lies there by the seed and the share together.
    let verified = |compress: &str| {
        let read = [
            "--rw",
            "read",
            "--bs",
            "64k",
            "--qd",
            "8",
            "--size",
            "32M",
            "--range",
            "32M",
            "--seed",
            "21",
            "--verify",
            "--compress",
            compress,
        ];
        let report = pool.load_that_may_fail(&read);
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        report["verified_blocks"].clone()
    };
    assert_eq!((verified("60"), verified("50")), (8192.into(), 0.into()));
}

#[test]
fn damaged_data_are_a_read_error_and_found_by_the_check() {
    let pool = Pool::new();
    let daemon = pool.serve(&SMALL);
    pool.load(&[
        "--rw", "write", "--bs", "4k", "--size", "1M", "--range", "1M", "--seed", "3",
    ]);
    daemon.stop(Signal::TERM);
    let drive = fs::File::options()
        .read(true)
        .write(true)
        .open(pool.dir.join("drive0"))
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
    let check = run(&["pool", "check", pool.dir(), "--data"]);
    assert_eq!(check.status.code(), Some(2), "{}", text_of(&check));
    let _daemon = pool.serve(&[]);
    let report = pool.load_that_may_fail(&[
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
fn nobody_there_is_said_within_seconds() {
    let nobody = Pool::new();
    fails(
        &["discover", &nobody.address],
        69,
        &[&nobody.address["rdma://".len()..]],
    );
}
