//! Raw drives for other machines: found again after a crash, by the same names; no other program's meanwhile.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Daemon, Pool, address, fails, onefold, run, succeeds};

const SIZE: u64 = 256 << 20;

/// A sled, its name, and where it listens.
pub(crate) struct Sled {
    folder: TempDir,
    pub(crate) address: String,
    name: String,
    reservations: String,
}

/// A sled that serves.
pub(crate) struct Serving {
    pub(crate) daemon: Daemon,
    /// What it printed of each drive.
    drives: Vec<String>,
    /// What names each drive elsewhere.
    pub(crate) names: Vec<String>,
}

impl Sled {
    pub(crate) fn new() -> Self {
        let address = address().replace("rdma://", "tcp://");
        let name = address.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let reservations = folder.path().join("reservations");
        Self {
            reservations: reservations.to_str().expect("text").to_owned(),
            folder,
            address,
            name: format!("program{name}"),
        }
    }

    pub(crate) fn path(&self, file: &str) -> String {
        let path = self.folder.path().join(file);
        path.to_str().expect("text").to_owned()
    }

    pub(crate) fn nqn(&self) -> String {
        format!("nqn.2026-11.dev.onefold:sled:{}", self.name)
    }

    fn subsystem(&self) -> String {
        format!("{}/{}", self.address, self.nqn())
    }

    pub(crate) fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["sled", "serve", "--listen", &self.address];
        all.extend(["--name", &self.name, "--reservations", &self.reservations]);
        all.extend(more);
        all
    }

    pub(crate) fn serve(&self, more: &[&str]) -> Serving {
        self.serve_with(more, Stdio::inherit())
    }

    /// The same, with its log there.
    pub(crate) fn serve_with(&self, more: &[&str], log: Stdio) -> Serving {
        let mut command = Command::new(onefold());
        let command = command.args(self.arguments(more)).stdout(Stdio::piped());
        let command = command.stderr(log);
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = lines.next().expect("a line").expect("text");
        assert!(
            ready.starts_with(&format!("ready {}", self.address)),
            "{ready}"
        );
        let daemon = Daemon { child };
        let (mut drives, mut names) = (Vec::new(), Vec::new());
        for line in lines.by_ref().map(|line| line.expect("text")) {
            match line.trim() {
                told if told.starts_with("Namespace ") => drives.push(told.to_owned()),
                told if told.starts_with("nvme+") => names.push(told.to_owned()),
                _ => break,
            }
        }
        // The rest is read away, so that the sled never waits for the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Serving {
            daemon,
            drives,
            names,
        }
    }

    /// A load on a namespace without errors.
    #[track_caller]
    fn load(&self, arguments: &[&str]) {
        let subsystem = self.subsystem();
        let output = run(&[&["perf", &subsystem, "--json"], arguments].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let errors = String::from_utf8_lossy(&output.stderr);
            panic!("perf printed no JSON ({error}): {errors}")
        });
        assert_eq!(report["errors"], 0, "{report:#}");
        assert_eq!(report["verify_errors"], 0, "{report:#}");
    }
}

fn content(path: &Path) -> Vec<u8> {
    let mut content = vec![0; SIZE as usize];
    let file = File::open(path).expect("it is there");
    file.read_exact_at(&mut content, 0).expect("read");
    content
}

#[test]
fn a_sled_that_was_killed_has_the_same_drives_with_their_data() {
    let sled = Sled::new();
    let (first, second) = (sled.path("first"), sled.path("second"));
    let made = [format!("{first}=256M"), format!("{second}=128M")];
    let serving = sled.serve(&["--drive", &made[0], "--drive", &made[1]]);
    assert_eq!(
        serving.names,
        [1, 2].map(|nsid| format!("nvme+{}#{nsid}", sled.subsystem()))
    );
    let write = [
        "--rw", "write", "--bs", "64k", "--seed", "7", "--size", "32M",
    ];
    sled.load(&write);
    let write = [
        "--nsid",
        "2",
        "--rw",
        "randwrite",
        "--size",
        "8M",
        "--verify",
    ];
    sled.load(&write);
    let found = succeeds(&["discover", &sled.address]);
    assert!(found.contains(&sled.nqn()), "{found}");
    let told = serving.drives;
    assert!(
        told[0].contains(&first) && told[0].contains("256 MiB"),
        "{told:?}"
    );
    serving.daemon.kill();

    let serving = sled.serve(&["--drive", &first, "--drive", &second]);
    assert_eq!(serving.drives, told, "names and UUIDs");
    let read = [
        "--rw", "read", "--bs", "64k", "--seed", "7", "--size", "32M",
    ];
    sled.load(&[&read[..], &["--verify"]].concat());
    serving.daemon.stop(Signal::TERM);
}

#[test]
fn a_drive_is_one_programs_at_a_time_and_a_sled_leaves_a_pools_drive_as_it_is() {
    let pool = Pool::new();
    let sled = Sled::new();
    let drive = sled.path("drive");
    File::create(&drive)
        .and_then(|file| file.set_len(SIZE))
        .expect("made");
    let create = ["--create", "0", "--drive", &drive, "--volume", "vol0=64M"];
    let daemon = pool.serve(&create);
    pool.load(&["--rw", "write", "--size", "16M", "--seed", "3"]);
    let refused = sled.arguments(&["--drive", &drive]);
    fails(&refused, 69, &[&drive, "in use"]);
    daemon.stop(Signal::TERM);

    let before = content(&PathBuf::from(&drive));
    let serving = sled.serve(&["--drive", &drive]);
    pool.fails_to_serve(&[], 69, &[&drive, "in use"]);
    let other = Sled::new();
    fails(&other.arguments(&["--drive", &drive]), 69, &["in use"]);
    sled.load(&["--rw", "randread", "--size", "4M"]);
    serving.daemon.stop(Signal::INT);
    assert!(content(&PathBuf::from(&drive)) == before, "it was written");

    let daemon = pool.serve(&[]);
    pool.load(&["--rw", "read", "--size", "16M", "--seed", "3", "--verify"]);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn only_the_hosts_that_are_named_use_the_drives() {
    let sled = Sled::new();
    let named = "nqn.2026-11.org.example:named";
    let serving = sled.serve(&["--drive", "memory=64M", "--host", named]);
    let load = ["--rw", "randread", "--size", "1M"];
    sled.load(&[&load[..], &["--hostnqn", named]].concat());
    let subsystem = sled.subsystem();
    let refused = run(&[&["perf", &subsystem], &load[..]].concat());
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(errors.contains("Connect Invalid Host"), "{errors}");
    serving.daemon.stop(Signal::TERM);
}

#[test]
fn what_cannot_be_served_is_told_and_leaves_no_file() {
    let sled = Sled::new();
    let drive = format!("{}=256M", sled.path("drive"));
    let none = sled.path("none");
    for (more, code, words) in [
        (vec![], 64, vec!["--drive"]),
        (vec!["--drive", "memory"], 64, vec!["memory=4G"]),
        (
            vec!["--drive", "memory=64M", "--host", "host1"],
            64,
            vec!["host1", "nqn."],
        ),
        (
            vec!["--drive", "memory=64M", "--reactors", "0"],
            64,
            vec!["--reactors"],
        ),
        (
            vec!["--drive", &drive, "--drive", &none],
            66,
            vec![&none, "PATH=SIZE"],
        ),
        (
            vec!["--drive", &drive, "--drive", &drive],
            69,
            vec!["in use"],
        ),
        (vec!["--drive", "/dev/null"], 65, vec!["/dev/null"]),
    ] {
        fails(&sled.arguments(&more), code, &words);
        assert!(!Path::new(&sled.path("drive")).exists(), "{more:?}");
    }
    fails(
        &["sled", "serve", "--drive", "memory=64M"],
        64,
        &["--listen"],
    );
    let nowhere = [
        "sled",
        "serve",
        "--listen",
        &sled.address,
        "--drive",
        &drive,
        "--reservations",
        "/dev/null/folder",
    ];
    fails(&nowhere, 65, &["/dev/null/folder", "--reservations"]);
    assert!(!Path::new(&sled.path("drive")).exists());
    let serving = sled.serve(&["--drive", "memory=64M"]);
    let other = Sled {
        name: sled.name.clone(),
        ..Sled::new()
    };
    let same_name = other.arguments(&["--drive", "memory=64M"]);
    fails(&same_name, 69, &["--name", &sled.name]);
    let other = Sled {
        address: sled.address.clone(),
        ..Sled::new()
    };
    let same_address = other.arguments(&["--drive", "memory=64M"]);
    fails(&same_address, 69, &[&sled.address, "in use"]);
    serving.daemon.stop(Signal::TERM);
}
