//! Labels of drives: who a drive belongs to, and which copy of a pool is an older one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::harness::*;

/// Writes to these 8 MiB of a pool, or reads and compares them.
fn load<'a>(seed: &'a str, pattern: &[&'a str]) -> Vec<&'a str> {
    let load = [
        "--bs", "64k", "--size", "8M", "--range", "8M", "--seed", seed,
    ];
    [&load[..], pattern].concat()
}

const WRITE: &[&str] = &["--rw", "write"];
const READ: &[&str] = &["--rw", "read", "--verify"];

#[test]
fn a_drive_that_nobody_knows_says_which_pool_it_is_of_and_who_opened_that_last() {
    let pool = Pool::new();
    pool.create().stop(Signal::TERM);
    let drive = pool.dir.join("drive0").display().to_string();
    let text = succeeds(&["pool", "labels", &drive]);
    let folder = format!("folder {}", pool.dir());
    for words in ["drive number 1 of 1", "opened last in epoch 1", &folder] {
        assert!(text.contains(words), "{words}: {text}");
    }
    pool.serve(&[]).stop(Signal::TERM);
    let labels = json(&["pool", "labels", &drive, "--json"]);
    let opening = &labels[0]["label"]["opening"];
    assert_eq!(opening["epoch"], 2, "{labels}");
    assert_eq!(opening["metadata"][0]["part"], "journal", "{labels}");
    let other = pool.dir.join("pool.toml").display().to_string();
    fails(&["pool", "labels", &other], 65, &["too small"]);
    fails(&["pool", "labels", "/nonexistent"], 66, &["is there"]);
    // A drive with something else on it is no drive of a pool.
    let foreign = pool.dir.join("foreign");
    std::fs::write(&foreign, [7; 8192]).expect("a file");
    fails(&["pool", "labels", &foreign.display().to_string()], 1, &[]);
    pool.is_consistent();
}

#[test]
fn a_drive_that_is_put_back_to_an_older_copy_is_refused_until_its_owner_says_that_it_is_all_there_is()
 {
    let pool = Pool::new();
    let daemon = pool.serve(&["--create", "256M"]);
    pool.load(&load("5", WRITE));
    daemon.stop(Signal::TERM);
    let [drive, older, newer] = ["drive0", "older", "newer"].map(|name| pool.dir.join(name));
    fs::copy(&drive, &older).expect("a copy");
    let daemon = pool.serve(&[]);
    pool.load(&load("6", WRITE));
    daemon.stop(Signal::TERM);
    fs::rename(&drive, &newer).expect("a rename");
    fs::copy(&older, &drive).expect("a copy");

    let refused = [
        "drive0 is an older copy",
        "epoch 1",
        "epoch 2",
        "onefold pool restore",
    ];
    pool.fails_to_serve(&[], 74, &refused);
    assert_eq!(run(&["pool", "check", pool.dir()]).status.code(), Some(2));
    fails(&["pool", "repair", pool.dir(), "--yes"], 2, &refused);
    assert!(
        fs::read(&drive).expect("a drive") == fs::read(&older).expect("a copy"),
        "the drive was written"
    );

    // The drive as it was last is the pool.
    fs::copy(&newer, &drive).expect("a copy");
    let daemon = pool.serve(&[]);
    pool.load(&load("6", READ));
    daemon.stop(Signal::TERM);
    pool.is_consistent();

    // It is lost: what the older one lacks reads as errors.
    fs::copy(&older, &drive).expect("a copy");
    fails(&["pool", "restore", pool.dir()], 1, &["--yes"]);
    pool.fails_to_serve(&[], 74, &["older copy"]);
    let restored = json(&["pool", "restore", pool.dir(), "--yes", "--json"]);
    let told = restored["older"][0].as_str().expect("what is older");
    assert!(told.contains("drive0 is an older copy"), "{restored}");
    let daemon = pool.serve(&[]);
    let report = pool.load_that_may_fail(&load("6", READ));
    assert_ne!(report["errors"], 0, "{report:#}");
    assert_eq!(report["verify_errors"], 0, "{report:#}");
    pool.load(&load("7", WRITE));
    daemon.stop(Signal::TERM);

    // Now the other one is the older one.
    fs::rename(&newer, &drive).expect("a rename");
    pool.fails_to_serve(&[], 74, &["drive0 is an older copy"]);
}

#[test]
fn a_daemon_that_is_killed_when_it_writes_labels_opens_again() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a parent").to_owned();
    let paths = ["a", "b"].map(|name| folder.join(name));
    let named = ["a", "b"].map(|name| format!("{}=128M", folder.join(name).display()));
    let drives = ["--drive", &named[0], "--drive", &named[1]];
    let daemon = pool.serve(&[&["--create", "192M"], &drives[..]].concat());
    pool.load(&load("5", WRITE));
    daemon.stop(Signal::TERM);
    let files = paths.map(|path| File::open(path).expect("a drive"));
    let labels = || {
        files.each_ref().map(|file| {
            let mut label = [0; 8192];
            file.read_exact_at(&mut label, 0).expect("a label");
            label
        })
    };
    for _ in 0..10 {
        let before = labels();
        let mut daemon = Command::new(onefold());
        daemon.args(["serve", "--pool", pool.dir(), "--listen", &pool.address]);
        let daemon = daemon.stdout(Stdio::null()).spawn();
        let mut daemon = daemon.expect("the program starts");
        let limit = Instant::now() + Duration::from_secs(120);
        while labels() == before {
            assert!(Instant::now() < limit, "no label was written");
        }
        daemon.kill().expect("it lives");
        daemon.wait().expect("it ends");
        pool.is_consistent();
    }
    let daemon = pool.serve(&[]);
    pool.load(&load("5", READ));
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}
