//! Drives are emptied and leave their pool, and one that is added to a mirror makes room: while hosts use the pool.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, run, succeeds, wait_for};

/// The drives of a pool, and a file in it that must stay as it is.
struct Story {
    pool: Pool,
    folder: PathBuf,
    bytes: Vec<u8>,
}

impl Story {
    fn new() -> Self {
        let pool = Pool::new();
        let folder = pool.dir.parent().expect("a folder").to_owned();
        let bytes: Vec<u8> = (0..20u32 << 18).flat_map(u32::to_le_bytes).collect();
        fs::write(folder.join("image"), &bytes).expect("written");
        Self {
            pool,
            folder,
            bytes,
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn import(&self) {
        let image = self.path("image");
        succeeds(&[
            "volume",
            "import",
            "--pool",
            self.pool.dir(),
            "data",
            &image,
        ]);
    }

    fn verify(&self) {
        let copy = self.path("copy");
        let _ = fs::remove_file(&copy);
        succeeds(&["volume", "export", "--pool", self.pool.dir(), "data", &copy]);
        assert!(fs::read(&copy).expect("exported") == self.bytes);
    }

    /// Path and state of each drive.
    fn drives(&self) -> Vec<(String, String)> {
        let drives = json(&["drive", "list", "--pool", self.pool.dir(), "--json"]);
        let text =
            |drive: &serde_json::Value, key: &str| drive[key].as_str().expect("a text").to_owned();
        let drives = drives.as_array().expect("a list").iter();
        drives
            .map(|drive| (text(drive, "path"), text(drive, "state")))
            .collect()
    }

    /// Waits until these are the drives, all of them online.
    fn wait_for_drives(&self, paths: &[&str]) {
        let online = |path: &&str| ((*path).to_owned(), "online".to_owned());
        let wanted: Vec<_> = paths.iter().map(online).collect();
        wait_for("the drives", || self.drives() == wanted);
    }

    fn check(&self) {
        let checked = run(&["pool", "check", "--pool", self.pool.dir(), "--data"]);
        assert!(checked.status.success(), "{checked:?}");
    }

    fn capacity_mib(&self) -> u64 {
        let status = self.pool.status();
        status["pool"]["capacity_bytes"].as_u64().expect("a number") >> 20
    }
}

#[test]
fn a_drive_is_removed_from_a_pool_in_use_and_its_data_are_on_the_others() {
    let story = Story::new();
    let pool = &story.pool;
    let (first, second) = (story.path("first"), story.path("second"));
    let drive = first.clone() + "=256M";
    let daemon = pool.serve(&["--create", "0", "--drive", &drive, "--volume", "vol0=64M"]);
    story.import();
    let remove = |drive: &str| {
        json(&["drive", "remove", "--pool", pool.dir(), drive, "--json"]);
    };
    fails(
        &["drive", "remove", "--pool", pool.dir(), &first],
        65,
        &["lack room", "add a drive"],
    );
    json(&[
        "drive",
        "add",
        "--pool",
        pool.dir(),
        &(second.clone() + "=256M"),
        "--json",
    ]);
    remove(&first);
    story.wait_for_drives(&[&second]);
    story.verify();
    // Its label is gone, and where it was another one may be.
    let held = fs::read(&first).expect("the file is left");
    assert!(held[..8192].iter().all(|byte| *byte == 0));
    daemon.stop(Signal::TERM);
    story.check();
    let daemon = pool.serve(&[]);
    story.wait_for_drives(&[&second]);
    story.verify();
    // It has old data, of which nothing belongs to the pool.
    json(&[
        "drive",
        "add",
        "--pool",
        pool.dir(),
        &first,
        "--force",
        &first,
        "--json",
    ]);
    story.wait_for_drives(&[&second, &first]);
    // A daemon that is killed goes on where it was.
    remove(&second);
    daemon.kill();
    let daemon = pool.serve(&[]);
    story.wait_for_drives(&[&first]);
    story.verify();
    daemon.stop(Signal::TERM);
    fs::remove_file(&second).expect("nobody needs it");
    story.check();
    let daemon = pool.serve(&[]);
    story.verify();
    daemon.stop(Signal::TERM);
}

#[test]
fn one_drive_more_makes_room_in_a_mirror_and_any_drive_can_then_leave() {
    let story = Story::new();
    let pool = &story.pool;
    let paths = ["first", "second", "third"].map(|name| story.path(name));
    let sized = paths.clone().map(|path| path + "=256M");
    let daemon = pool.serve(&[
        "--create",
        "0",
        "--redundancy",
        "mirror=2",
        "--drive",
        &sized[0],
        "--drive",
        &sized[1],
        "--volume",
        "vol0=64M",
    ]);
    story.import();
    assert_eq!(story.capacity_mib(), 192);
    json(&["drive", "add", "--pool", pool.dir(), &sized[2], "--json"]);
    wait_for("room for one more segment", || story.capacity_mib() == 256);
    story.verify();
    json(&["drive", "remove", "--pool", pool.dir(), &paths[1], "--json"]);
    story.wait_for_drives(&[&paths[0], &paths[2]]);
    assert_eq!(story.capacity_mib(), 192);
    story.verify();
    // Each of the others has all of it.
    json(&[
        "drive",
        "offline",
        "--pool",
        pool.dir(),
        &paths[0],
        "--json",
    ]);
    story.verify();
    daemon.stop(Signal::TERM);
    story.check();
}

#[test]
fn a_pool_in_use_gets_more_copies_and_then_fewer() {
    let story = Story::new();
    let pool = &story.pool;
    let paths = ["first", "second"].map(|name| story.path(name));
    let sized = paths.clone().map(|path| path + "=256M");
    let named = ["--drive", &sized[0], "--drive", &sized[1]];
    let daemon = pool.serve(&[&["--create", "0"], &named[..], &["--volume", "vol0=64M"]].concat());
    story.import();
    let set = |redundancy: &str| {
        json(&[
            "pool",
            "set",
            "--pool",
            pool.dir(),
            "--redundancy",
            redundancy,
            "--json",
        ])
    };
    let status = || story.pool.status()["pool"].clone();
    fails(
        &[
            "pool",
            "set",
            "--pool",
            pool.dir(),
            "--redundancy",
            "mirror=3",
        ],
        65,
        &["failure domains", "add a drive"],
    );
    assert_eq!(set("mirror=2")["redundancy"], "mirror=2");
    wait_for("all copies", || status()["at_risk_bytes"] == 0);
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert_eq!(status()["redundancy"], "mirror=2");
    for path in &paths {
        json(&["drive", "offline", "--pool", pool.dir(), path, "--json"]);
        story.verify();
        json(&["drive", "online", "--pool", pool.dir(), path, "--json"]);
        story.wait_for_drives(&[&paths[0], &paths[1]]);
    }
    set("none");
    wait_for("the room of one copy", || story.capacity_mib() > 300);
    story.verify();
    daemon.stop(Signal::TERM);
    story.check();
}
