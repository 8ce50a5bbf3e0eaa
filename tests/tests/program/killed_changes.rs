//! The daemon is killed at random moments while the drives of its pool change: it rebuilds one, empties one, changes the
//! redundancy, or has just been imported. No round loses data, and none leaves fewer copies than there were.
//!
//! `ONEFOLD_ROUNDS` is how many rounds; `ONEFOLD_SEED` chooses what they do and when they are killed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;

use crate::harness::{Daemon, Pool, json, onefold, run, succeeds, wait_for};
use crate::kept_file::KeptFile;

/// Rounds in a usual test run: one of each kind.
const ROUNDS: u64 = Change::ALL.len() as u64;

/// The longest time from the beginning of a change to the kill: what takes longer is rare with this little data.
const KILL_WITHIN_MS: u64 = 400;

const MIRROR: [&str; 2] = ["--redundancy", "mirror=2"];

fn number(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => usual,
    }
}

/// What is under way when the daemon is killed.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A drive comes back and gets what it missed.
    Rebuild,
    /// Another drive takes the place of one, and gets everything.
    Replacement,
    /// A drive is emptied.
    Evacuation,
    /// A third copy of everything is made, or given up.
    Redundancy,
    /// The folder is lost, and made again of the drives; the import is killed, too.
    Import,
}

impl Change {
    const ALL: [Self; 5] = [
        Self::Rebuild,
        Self::Replacement,
        Self::Evacuation,
        Self::Redundancy,
        Self::Import,
    ];
}

/// The pool, and what its drives are called.
struct Story {
    file: KeptFile,
    /// In the order of the pool's list.
    drives: Vec<String>,
    /// Files that were made for drives.
    made: u32,
    copies: u32,
    rng: ChaCha8Rng,
}

impl Story {
    fn new(seed: u64) -> (Self, Daemon) {
        let mut story = Self {
            file: KeptFile::new(16),
            drives: Vec::new(),
            made: 0,
            copies: 2,
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        for _ in 0..4 {
            let drive = story.new_drive();
            story.drives.push(drive);
        }
        let sized: Vec<String> = story.drives.iter().map(|it| sized(it)).collect();
        let mut create = vec!["--create", "0", "--volume", "vol0=64M"];
        create.extend(MIRROR);
        create.extend(sized.iter().flat_map(|drive| ["--drive", drive.as_str()]));
        let daemon = story.pool().serve(&create);
        story.file.import_image("data");
        story.load();
        (story, daemon)
    }

    fn pool(&self) -> &Pool {
        &self.file.pool
    }

    fn new_drive(&mut self) -> String {
        self.made += 1;
        self.file.path(&format!("drive{}", self.made))
    }

    /// Writes that are compared, to a part of the volume that is another one each time.
    fn load(&mut self) {
        let seed = self.rng.random_range(0..1000u32).to_string();
        let load = ["--rw", "randwrite", "--size", "16M", "--verify", "--seed"];
        self.pool().load(&[&load[..], &[&seed]].concat());
    }

    fn drive(&self, words: &[&str]) {
        let (verb, rest) = words.split_first().expect("a verb");
        let pool = ["--pool", self.pool().dir()];
        succeeds(&[&["drive", verb], &pool[..], rest].concat());
    }

    /// Begins a change of that drive, and returns the drives of which each can be missed afterwards.
    fn begin(&mut self, change: Change, index: usize) -> Vec<String> {
        let before = self.drives.clone();
        let drive = before[index].clone();
        match change {
            Change::Rebuild => {
                self.drive(&["offline", &drive]);
                self.load();
                self.drive(&["online", &drive]);
                vec![drive]
            }
            Change::Replacement => {
                let new = self.new_drive();
                self.drive(&["replace", &drive, &sized(&new)]);
                self.drives[index].clone_from(&new);
                vec![new]
            }
            Change::Evacuation => {
                // Otherwise the others lack room, or there are too few.
                let new = self.new_drive();
                self.drive(&["add", &sized(&new)]);
                self.drives.push(new);
                self.drive(&["remove", &drive]);
                self.drives.remove(index);
                before
            }
            Change::Redundancy => {
                self.copies = 5 - self.copies;
                let redundancy = format!("mirror={}", self.copies);
                let set = ["pool", "set", "--pool", self.pool().dir()];
                succeeds(&[&set[..], &["--redundancy", &redundancy]].concat());
                before
            }
            Change::Import => {
                let dir = self.pool().dir();
                wait_for("three drives with the metadata", || {
                    let drives = json(&["drive", "list", "--pool", dir, "--json"]);
                    let drives = drives.as_array().expect("a list").iter();
                    drives.filter(|it| it["metadata"] == true).count() == 3
                });
                before
            }
        }
    }

    /// The folder is lost. An import is killed, and the next one makes the folder.
    fn import(&mut self) {
        self.file.lose_the_folder();
        let patience = Duration::from_millis(self.rng.random_range(0..100));
        let drives: Vec<&str> = self.drives.iter().map(String::as_str).collect();
        let to = ["--pool", self.pool().dir()];
        let import = [&["pool", "import"], &drives[..], &to].concat();
        let mut killed = Command::new(onefold())
            .args(&import)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // When it is killed is what the round is about.
        std::thread::sleep(patience);
        killed.kill().expect("it is ours");
        killed.wait().expect("it is ours");
        if !self.pool().dir.join("pool.toml").exists() {
            succeeds(&import);
        }
    }

    /// No daemon runs: everything is there, also without one of these drives.
    fn audit(&mut self, may_be_missed: &[String]) {
        self.pool().is_consistent();
        let hidden = &may_be_missed[self.rng.random_range(0..may_be_missed.len())];
        let aside = hidden.clone() + ".aside";
        fs::rename(hidden, &aside).expect("a drive");
        let daemon = self.pool().serve(&[]);
        self.file.verify("data");
        daemon.kill();
        fs::rename(&aside, hidden).expect("a drive");
    }

    /// All drives are back, with everything.
    fn settle(&mut self) -> Daemon {
        let daemon = self.pool().serve(&[]);
        wait_for("all drives", || {
            let drives = self.file.drives();
            let away = drives.iter().filter(|(_, state)| state == "offline");
            for (drive, _) in away {
                // What is in doubt takes a moment until it can be used again.
                let _ = run(&["drive", "online", "--pool", self.pool().dir(), drive]);
            }
            drives.len() == self.drives.len()
                && drives.iter().all(|(_, state)| state == "online")
                && self.pool().figure("at_risk_bytes") == 0
        });
        let drives = self.file.drives().into_iter();
        self.drives = drives.map(|(path, _)| path).collect();
        daemon
    }
}

fn sized(drive: &str) -> String {
    // Smaller ones hold no metadata.
    drive.to_owned() + "=1G"
}

#[test]
fn a_daemon_that_is_killed_while_its_drives_change_loses_no_data_and_no_copy() {
    let seed = number("ONEFOLD_SEED", 1);
    let rounds = number("ONEFOLD_ROUNDS", ROUNDS);
    let (mut story, mut daemon) = Story::new(seed);
    for round in 0..rounds {
        let change = match round {
            0..ROUNDS => Change::ALL[round as usize],
            _ => Change::ALL[story.rng.random_range(0..Change::ALL.len())],
        };
        let index = story.rng.random_range(0..story.drives.len());
        let may_be_missed = story.begin(change, index);
        // When it is killed is what the round is about.
        std::thread::sleep(Duration::from_millis(
            story.rng.random_range(0..KILL_WITHIN_MS),
        ));
        daemon.kill();
        if matches!(change, Change::Import) {
            story.import();
        }
        story.audit(&may_be_missed);
        daemon = story.settle();
        story.file.verify("data");
        story.load();
    }
    daemon.stop(Signal::TERM);
    story.pool().is_consistent();
}
