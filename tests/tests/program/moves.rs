//! Drives are emptied and leave their pool, and one that is added to a mirror makes room: while hosts use the pool.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, wait_for};
use crate::kept_file::KeptFile;

/// A pool with a file of 20 MiB.
fn story() -> KeptFile {
    KeptFile::new(20)
}

fn capacity_mib(pool: &Pool) -> u64 {
    pool.figure("capacity_bytes") >> 20
}

#[test]
fn a_drive_is_removed_from_a_pool_in_use_and_its_data_are_on_the_others() {
    let story = story();
    let pool = &story.pool;
    let (first, second) = (story.path("first"), story.path("second"));
    let drive = first.clone() + "=256M";
    let daemon = pool.serve(&["--create", "0", "--drive", &drive, "--volume", "vol0=64M"]);
    story.import_image("data");
    let remove = |drive: &str| {
        json(&["drive", "remove", "--pool", pool.dir(), drive, "--json"]);
    };
    fails(
        &["drive", "remove", "--pool", pool.dir(), &first],
        65,
        &["lack places", "add a drive"],
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
    story.verify("data");
    // Its label is gone, and where it was another one may be.
    let held = fs::read(&first).expect("the file is left");
    assert!(held[..8192].iter().all(|byte| *byte == 0));
    daemon.stop(Signal::TERM);
    pool.is_consistent();
    let daemon = pool.serve(&[]);
    story.wait_for_drives(&[&second]);
    story.verify("data");
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
    story.verify("data");
    daemon.stop(Signal::TERM);
    fs::remove_file(&second).expect("nobody needs it");
    pool.is_consistent();
    let daemon = pool.serve(&[]);
    story.verify("data");
    daemon.stop(Signal::TERM);
}

#[test]
fn one_drive_more_makes_room_in_a_mirror_and_any_drive_can_then_leave() {
    let story = story();
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
    story.import_image("data");
    assert_eq!(capacity_mib(pool), 192);
    json(&["drive", "add", "--pool", pool.dir(), &sized[2], "--json"]);
    wait_for("room for one more segment", || capacity_mib(pool) == 256);
    story.verify("data");
    json(&["drive", "remove", "--pool", pool.dir(), &paths[1], "--json"]);
    story.wait_for_drives(&[&paths[0], &paths[2]]);
    assert_eq!(capacity_mib(pool), 192);
    story.verify("data");
    // Each of the others has all of it.
    json(&[
        "drive",
        "offline",
        "--pool",
        pool.dir(),
        &paths[0],
        "--json",
    ]);
    story.verify("data");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_pool_in_use_gets_more_copies_and_then_fewer() {
    let story = story();
    let pool = &story.pool;
    let paths = ["first", "second"].map(|name| story.path(name));
    let sized = paths.clone().map(|path| path + "=256M");
    let named = ["--drive", &sized[0], "--drive", &sized[1]];
    let daemon = pool.serve(&[&["--create", "0"], &named[..], &["--volume", "vol0=64M"]].concat());
    story.import_image("data");
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
    let status = || pool.status()["pool"].clone();
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
        story.verify("data");
        json(&["drive", "online", "--pool", pool.dir(), path, "--json"]);
        story.wait_for_drives(&[&paths[0], &paths[1]]);
    }
    set("none");
    wait_for("the room of one copy", || capacity_mib(pool) > 300);
    story.verify("data");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}
