//! Damage of stored data: made on purpose, found, named and repaired.
//!
//! Each test listens on a loopback address of its own, so that they can run side by side.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, time::Duration};

use meta::{Batch, BlockChange, LoadVisitor, Pba, PoolDir, RocksOptions, Store, VolumeInfo};
use serde_json::Value;
use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent, onefold, text_of},
    wait_for,
};

const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// A folder for one test's pool, and the address that its daemon uses.
struct Place {
    folder: TempDir,
    address: String,
}

impl Place {
    fn new(number: u8) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("onefold-trust-")
            .tempdir()
            .expect("a folder");
        Self {
            folder,
            address: format!("127.77.9.{number}"),
        }
    }

    fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    fn listen(&self) -> String {
        format!("rdma://{}:4420", self.address)
    }

    fn serve(&self, arguments: &[&str]) -> Daemon {
        let listen = self.listen();
        let mut all = vec!["--listen", &listen];
        all.extend_from_slice(arguments);
        Daemon::start(&self.pool(), None, &all)
    }

    fn perf(&self, arguments: &[&str]) -> Value {
        let target = format!("{}/{NQN}", self.listen());
        let mut all = vec!["perf", &target, "--json"];
        all.extend_from_slice(arguments);
        let output = onefold(&all);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("perf printed no JSON ({error}): {}", text_of(&output)))
    }

    /// A load that verifies: so many of its commands fail, and nothing is returned that is wrong.
    #[track_caller]
    fn reads_with_errors(&self, arguments: &[&str], errors: u64) {
        let report = self.perf(arguments);
        assert_eq!(
            (&report["errors"], &report["verify_errors"]),
            (&errors.into(), &0.into()),
            "{report:#}"
        );
    }

    /// `onefold scrub VERB --json ...`: its exit code and what it printed.
    fn scrub(&self, verb: &str, arguments: &[&str]) -> (i32, Value) {
        let pool = self.pool();
        let mut all = vec![
            "scrub",
            verb,
            "--json",
            "--pool",
            pool.to_str().expect("UTF-8"),
        ];
        all.extend_from_slice(arguments);
        let output = onefold(&all);
        let view = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", text_of(&output)));
        (output.status.code().expect("it ends by itself"), view)
    }

    /// `onefold pool VERB DIR ...`: its exit code and what it printed.
    fn pool_command(&self, verb: &str, arguments: &[&str]) -> (i32, String) {
        let pool = self.pool();
        let mut all = vec!["pool", verb, pool.to_str().expect("UTF-8")];
        all.extend_from_slice(arguments);
        let output = onefold(&all);
        let code = output.status.code().expect("it ends by itself");
        (code, text_of(&output))
    }
}

/// The blocks of a store, in the order of the sub-blocks of its first volume.
#[derive(Default)]
struct Mapped(Vec<Pba>);

impl LoadVisitor for Mapped {
    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, _pba: Pba, _row: meta::BlockRow) {}

    fn map(&mut self, _volume: u32, _sub_block: u64, mapping: meta::Mapping) {
        self.0.push(mapping.pba);
    }
}

#[test]
fn a_damaged_pool_is_repaired_after_it_said_how_and_only_when_told() {
    let place = Place::new(1);
    let daemon = place.serve(&["--create", "64M", "--volume", "vol0=64M"]);
    let load = ["--bs", "64k", "--qd", "4", "--size", "4M", "--seed", "3"];
    place.perf(&[&["--rw", "write"][..], &load[..]].concat());
    assert!(daemon.stop().success());
    assert_consistent(&place.pool());
    let (code, text) = place.pool_command("repair", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("nothing to repair"), "{text}");

    let dir = PoolDir::open(&place.pool()).expect("the pool");
    let store = dir.open_store(RocksOptions::default()).expect("its store");
    let mut mapped = Mapped::default();
    let checkpoint = store.load(&mut mapped).expect("its rows");
    let mut batch = Batch::checkpoint_only(checkpoint);
    let count = |delta: i64| BlockChange {
        wants_index_entry: false,
        delta,
        lowest: delta.min(0),
        content: None,
    };
    batch.blocks.insert(mapped.0[16], count(-1));
    batch.blocks.insert(mapped.0[17], count(-1));
    batch.blocks.insert(mapped.0[40], count(5));
    store.apply(&batch).expect("the damage");
    drop((store, dir));

    assert_eq!(place.pool_command("check", &[]).0, 2);
    let before = fs::read_dir(place.pool()).expect("the folder").count();
    let (code, text) = place.pool_command("repair", &[]);
    assert_eq!(code, 2, "nobody agreed: {text}");
    assert!(
        text.contains("--yes") && text.contains("'vol0', bytes 65536 to 73727"),
        "{text}"
    );
    assert_eq!(place.pool_command("check", &[]).0, 2, "nothing was changed");
    assert_eq!(
        fs::read_dir(place.pool()).expect("the folder").count(),
        before
    );

    let (code, text) = place.pool_command("repair", &["--yes"]);
    assert_eq!(code, 0, "{text}");
    // Three blocks, and the mappings to the two that are lost: their checksums never match.
    let backup = text
        .lines()
        .find_map(|line| line.strip_prefix("repaired; the 5 changed rows as they were: "));
    let kept = fs::read_to_string(backup.expect(&text)).expect("the backup");
    assert_eq!(
        kept.lines()
            .filter(|line| line.starts_with("block "))
            .count(),
        3,
        "{kept}"
    );
    assert_consistent(&place.pool());
    let (code, text) = place.pool_command("repair", &["--json"]);
    assert_eq!(
        (code, text.contains("\"repaired\": false")),
        (0, true),
        "{text}"
    );

    // Hosts read everything but the lost blocks, and those again after they were written.
    let daemon = place.serve(&[]);
    let read = [&["--rw", "read", "--verify"][..], &load[..]].concat();
    place.reads_with_errors(&read, 1);
    place.perf(&[&["--rw", "write"][..], &load[..]].concat());
    place.reads_with_errors(&read, 0);
    assert!(daemon.stop().success());
    let (code, text) = place.pool_command("check", &["--data"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_scrub_names_the_ranges_that_a_damaged_block_belongs_to_and_a_new_write_heals_them() {
    let place = Place::new(2);
    let daemon = place.serve(&["--create", "64M", "--volume", "vol0=64M"]);
    let load = ["--bs", "64k", "--qd", "4", "--size", "4M", "--seed", "5"];
    place.perf(&[&["--rw", "write"][..], &load[..]].concat());
    assert!(daemon.stop().success());
    // A bit of the drive flips: data block 100, behind the label area of 1 MiB.
    let drive = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(place.pool().join("drive0"))
        .expect("the drive");
    let at = (256 + 100) * 4096 + 9;
    let mut byte = [0];
    drive.read_exact_at(&mut byte, at).expect("it is there");
    drive
        .write_all_at(&[byte[0] ^ 1], at)
        .expect("it is changed");

    let daemon = place.serve(&["--warn-at", "5,50"]);
    assert_eq!(place.scrub("status", &[]).1["phase"], "never");
    let (code, view) = place.scrub("start", &["--rate", "1G"]);
    assert_eq!((code, &view["phase"]), (0, &"running".into()), "{view:#}");
    let view = wait_for("the scrub", Duration::from_secs(60), || {
        let (code, view) = place.scrub("status", &[]);
        (view["phase"] == "finished").then_some((code, view))
    });
    let (code, view) = view;
    assert_eq!(code, 2, "damage is no success: {view:#}");
    assert_eq!(
        (&view["checked_blocks"], &view["bad_blocks"]),
        (&1024.into(), &1.into())
    );
    let (code, text) = place.pool_command("check", &["--online"]);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("DAMAGED DATA") && text.contains("volume 'vol0', bytes"),
        "{text}"
    );
    let health = &daemon.status()["health"];
    assert_eq!(health["damage"]["damaged_blocks"], 1, "{health:#}");
    assert_eq!(
        health["damage"]["ranges"][0]["volume"], "vol0",
        "{health:#}"
    );
    assert_eq!(health["damage"]["ranges"][0]["bytes"], 4096, "{health:#}");
    assert_eq!(health["fill_warning_percent"], 5, "{health:#}");
    let log = fs::read_to_string(place.pool().with_extension("log")).expect("the log");
    assert_eq!(
        log.matches("the pool fills up").count(),
        1,
        "warned once: {log}"
    );

    // Offline the verdict and its words are the same, and what was not looked at is said.
    assert!(daemon.stop().success());
    let (code, text) = place.pool_command("check", &[]);
    assert_eq!(code, 2, "{text}");
    for words in [
        "DAMAGED DATA",
        "volume 'vol0', bytes",
        "What helps: write these ranges again",
        "not looked at: the data in 1023 blocks",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (code, text) = place.pool_command("repair", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("nothing to repair") && text.contains("not looked at: data"),
        "{text}"
    );
    let daemon = place.serve(&[]);

    // Hosts get an error for the block, and everything when it was written again.
    let read = [&["--rw", "read", "--verify"][..], &load[..]].concat();
    place.reads_with_errors(&read, 1);
    place.perf(&[&["--rw", "write"][..], &load[..]].concat());
    place.reads_with_errors(&read, 0);
    wait_for(
        "the damage to be forgotten",
        Duration::from_secs(60),
        || (place.scrub("status", &[]).0 == 0).then_some(()),
    );
    let (code, text) = place.pool_command("check", &["--online"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("mappings 1024, blocks 1024"), "{text}");
    assert!(daemon.stop().success());
    let (code, text) = place.pool_command("check", &["--data"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = place.pool_command("check", &["--online"]);
    assert_eq!(code, 1, "no daemon can be asked: {text}");
}

#[test]
fn a_pool_whose_metadata_store_is_damaged_is_served_again_after_a_repair() {
    let place = Place::new(3);
    let daemon = place.serve(&["--create", "64M", "--volume", "vol0=64M"]);
    let load = ["--bs", "64k", "--qd", "4", "--size", "4M", "--seed", "9"];
    place.perf(&[&["--rw", "write"][..], &load[..]].concat());
    assert!(daemon.stop().success());
    let current = place.pool().join("metadata").join("CURRENT");
    fs::remove_file(&current).expect("RocksDB has a CURRENT file");

    let listen = place.listen();
    let refused = Daemon::try_start(&place.pool(), None, &["--listen", &listen]);
    let text = refused.expect_err("its store is damaged");
    assert!(text.contains("pool repair"), "names the remedy: {text}");
    let (code, text) = place.pool_command("check", &["--data"]);
    assert!(matches!(code, 1 | 2), "{text}");
    assert!(!current.exists(), "a check changes nothing");
    let (code, text) = place.pool_command("repair", &[]);
    assert_eq!(code, 2, "nobody agreed: {text}");
    assert!(text.contains("makes a new metadata store"), "{text}");
    assert!(!current.exists(), "nothing was changed");

    let (code, text) = place.pool_command("repair", &["--yes"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = place.pool_command("check", &["--data"]);
    assert_eq!(code, 0, "{text}");
    let _daemon = place.serve(&[]);
    let report = place.perf(&[&["--rw", "read", "--verify"][..], &load[..]].concat());
    assert_eq!(
        (&report["errors"], &report["verified_blocks"]),
        (&0.into(), &1024.into()),
        "{report:#}"
    );
}
