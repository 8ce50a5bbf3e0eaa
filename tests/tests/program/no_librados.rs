//! A machine without Ceph's library: what needs it says which package to install, and everything else works.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Daemon, Pool, onefold, succeeds};

/// What every refusal says.
const REMEDY: [&str; 2] = ["librados cannot be loaded", "install the package librados2"];

/// A machine on which the library is not there. Where this one has it, a file that is no library is found in its place.
struct Machine {
    libraries: TempDir,
}

impl Machine {
    fn new() -> Self {
        let libraries = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(libraries.path().join("librados.so.2"), "").expect("written");
        Self { libraries }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(onefold());
        command.args(arguments).stdin(Stdio::null());
        command.env("LD_LIBRARY_PATH", self.libraries.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output();
        output.expect("the program starts")
    }

    /// A command that needs the library fails, as one whose drive is not there, and says what to install.
    #[track_caller]
    fn refuses(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(66), "{arguments:?}: {errors}");
        let words = REMEDY.iter().all(|word| errors.contains(word));
        assert!(
            words && errors.contains("rados:"),
            "{arguments:?}: {errors}"
        );
    }

    /// What `onefold doctor` says of the drives of a pool.
    fn doctor(&self, pool: &Pool) -> Vec<Value> {
        let output = self.run(&["doctor", "--pool", pool.dir(), "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = report["findings"].as_array().expect("a list").iter();
        let drives = findings.filter(|finding| finding["check"] == "drive");
        drives.cloned().collect()
    }
}

/// Writes another path for the only drive of a pool, as people do whose drives have moved.
fn moves_drive(pool: &Path, [from, to]: [&str; 2]) {
    let file = pool.join("pool.toml");
    let text = std::fs::read_to_string(&file).expect("a pool has one");
    let path = |name: &str| format!("path = \"{name}\"");
    let moved = text.replace(&path(from), &path(to));
    assert_ne!(moved, text);
    std::fs::write(&file, moved).expect("written");
}

#[test]
fn a_machine_without_librados_says_what_to_install_for_drives_in_a_cluster_and_serves_all_others() {
    let machine = Machine::new();
    let drive = "rados:onefold/db";
    for words in [
        &["pool", "nodes", drive][..],
        &["cluster", "status", drive],
        &["cluster", "nodes", drive],
        &["cluster", "pools", drive],
        &["cluster", "drain", "node-a", drive],
    ] {
        machine.refuses(words);
    }
    let pool = Pool::new();
    let serve = ["serve", "--pool", pool.dir(), "--listen", &pool.address];
    let create = ["--create", "1G", "--drive", "rados:onefold/db=2G"];
    machine.refuses(&[&serve[..], &create].concat());
    machine.refuses(&[&serve[..], &["--join"], &create].concat());
    machine.refuses(&[&serve[..], &["--join", "--drive", drive]].concat());
    machine.refuses(&["pool", "import", drive, "--pool", pool.dir()]);
    assert!(
        !pool.dir.exists(),
        "nothing is left of a pool that was not made"
    );

    // A pool of this machine, and all that people do with it.
    let create = [&serve[..], &["--create", "1G", "--volume", "vol0=64M"]].concat();
    let daemon = Daemon::start_as(machine.command(&create).stderr(Stdio::inherit()));
    pool.load(&["--rw", "randrw", "--size", "4M", "--verify"]);
    let healthy = machine.doctor(&pool);
    assert!(
        healthy.iter().all(|finding| finding["state"] == "ok"),
        "{healthy:?}"
    );
    daemon.stop(Signal::TERM);
    pool.is_consistent();

    // A pool whose drive is in a cluster: each command that looks at the drive says so, and changes nothing.
    moves_drive(&pool.dir, ["drive0", drive]);
    let found = machine.doctor(&pool);
    let [finding] = &found[..] else {
        panic!("one drive: {found:?}");
    };
    assert_eq!(finding["state"], "fail", "{finding}");
    let remedy = finding["remedy"].as_str().expect("a remedy");
    assert!(REMEDY.iter().all(|word| remedy.contains(word)), "{remedy}");
    machine.refuses(&serve);
    for command in ["nodes", "status", "pools"] {
        machine.refuses(&["cluster", command, "--pool", pool.dir()]);
    }
    machine.refuses(&["pool", "nodes", "--pool", pool.dir()]);
    moves_drive(&pool.dir, [drive, "drive0"]);
    let daemon = Daemon::start_as(machine.command(&serve).stderr(Stdio::inherit()));
    assert!(succeeds(&["volume", "list", "--pool", pool.dir()]).contains("vol0"));
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}
