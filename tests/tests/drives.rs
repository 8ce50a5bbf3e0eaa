//! A pool of several drives as its owner sees it: drives added while hosts work, full, restarted, and
//! one that is missing.

use std::{fs, path::PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};

const NQN: &str = "nqn.2026-11.dev.onefold:default";
const LISTEN: &str = "tcp://127.77.11.1:4420";
const MIB: u64 = 1 << 20;

struct Place(TempDir);

impl Place {
    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    fn serve(&self, arguments: &[&str]) -> Result<Daemon, String> {
        let mut all = vec!["--listen", LISTEN];
        all.extend_from_slice(arguments);
        Daemon::try_start(&self.0.path().join("pool"), None, &all)
    }

    /// Runs `onefold ARGUMENTS --json --pool POOL`: what it printed, or all of its output if it failed.
    fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let pool = self.path("pool");
        let mut all = arguments.to_vec();
        all.extend_from_slice(&["--json", "--pool", &pool]);
        let output = onefold(&all);
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
            false => Err(text_of(&output)),
        }
    }

    /// Writes new data to a volume: exit code of `onefold perf`.
    fn fill(&self, nsid: u32, bytes: u64, seed: &str) -> Option<i32> {
        let (target, bytes) = (format!("{LISTEN}/{NQN}"), bytes.to_string());
        let nsid = nsid.to_string();
        let output = onefold(&[
            "perf", &target, "--nsid", &nsid, "--rw", "write", "--bs", "128k", "--qd", "8",
            "--size", &bytes, "--seed", seed,
        ]);
        output.status.code()
    }

    fn free_bytes(&self) -> Vec<u64> {
        let drives = self.ask(&["drive", "list"]).expect("a list");
        let drives = drives.as_array().expect("a list").clone();
        drives
            .iter()
            .map(|drive| drive["free_bytes"].as_u64().expect("a number"))
            .collect()
    }
}

#[test]
fn a_full_pool_gets_another_drive_and_tells_whose_data_a_missing_one_holds() {
    let place = Place(
        tempfile::Builder::new()
            .prefix("onefold-drives-")
            .tempdir()
            .expect("a folder"),
    );
    let (one, two, three) = (place.path("one"), place.path("two"), place.path("three"));
    let sized = |path: &str| format!("{path}=64M");
    let daemon = place
        .serve(&[
            "--create",
            "64M",
            "--drive",
            &sized(&one),
            "--drive",
            &sized(&two),
            "--volume",
            "a=256M",
            "--volume",
            "b=256M",
        ])
        .expect("two drives are served");
    // 63 MiB of data on each: full before 128 MiB are written.
    assert_eq!(place.fill(1, 120 * MIB, "1"), Some(0));
    assert_ne!(
        place.fill(2, 16 * MIB, "2"),
        Some(0),
        "there was room for more"
    );

    let drives = place
        .ask(&["drive", "add", &sized(&three)])
        .expect("a third drive");
    assert_eq!(drives.as_array().map(Vec::len), Some(3), "{drives}");
    assert_eq!(place.fill(2, 16 * MIB, "2"), Some(0));
    let free = place.free_bytes();
    assert!(free[2] <= 63 * MIB - 8 * MIB, "{free:?}");

    for (drive, why) in [
        (three.as_str(), "is a drive of this pool already"),
        (one.as_str(), "is a drive of this pool already"),
        ("./is/not/there", "not there"),
    ] {
        let refused = place.ask(&["drive", "add", drive]).expect_err(drive);
        assert!(refused.contains(why), "{refused}");
    }
    let other = place.path("other");
    fs::write(&other, vec![7; 65 << 20]).expect("a file with something in it");
    let refused = place
        .ask(&["drive", "add", &other])
        .expect_err("a file in use");
    assert!(refused.contains("nothing was written"), "{refused}");

    // Figures of what the volumes have: all of it alone, and they add up.
    let status = place.ask(&["status", "--survey"]).expect("a status");
    let survey = &status["survey"];
    let sum: u64 = survey["volumes"]
        .as_array()
        .expect("volumes")
        .iter()
        .map(|volume| {
            assert_eq!(volume["shared_bytes"], 0, "{survey}");
            volume["unique_bytes"].as_u64().expect("a number")
        })
        .sum();
    assert_eq!(Some(sum), status["pool"]["used_bytes"].as_u64(), "{status}");
    for volume in status["volumes"].as_array().expect("volumes") {
        let bytes = |name: &str| volume[name].as_u64().expect("a number");
        assert_eq!(
            bytes("logical_bytes") + bytes("zero_bytes"),
            bytes("size_bytes")
        );
    }

    daemon.kill_hard();
    let daemon = place.serve(&[]).expect("all three drives are there");
    assert_eq!(place.free_bytes(), free);
    assert!(daemon.stop().success());
    assert_consistent(&place.0.path().join("pool"));

    let aside = place.path("aside");
    fs::rename(&three, &aside).expect("a drive that can be taken away");
    let message = place.serve(&[]).expect_err("a drive is missing");
    assert!(message.contains(&three), "{message}");
    assert!(message.contains("data there: 'b' ("), "{message}");
    assert!(message.contains("Without: 'a'"), "{message}");
    fs::rename(&aside, &three).expect("a drive that can be put back");
    assert!(place.serve(&[]).expect("it is back").stop().success());
}
