//! A pool whose folder is lost is made usable from its drives alone.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, succeeds, wait_for};
use crate::kept_file::KeptFile;

/// A pool with a file of 8 MiB.
fn story() -> KeptFile {
    KeptFile::new(8)
}

/// A drive of 1 GiB: smaller ones hold no metadata.
fn sized(story: &KeptFile, name: &str) -> String {
    story.path(name) + "=1G"
}

/// Which drives hold the metadata, in their order.
fn holders(pool: &Pool) -> Vec<bool> {
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    let drives = drives.as_array().expect("a list").iter();
    let holds = |drive: &serde_json::Value| drive["metadata"].as_bool().expect("a flag");
    drives.map(holds).collect()
}

fn import_from(pool: &Pool, drives: &[&str]) -> serde_json::Value {
    let to = ["--pool", pool.dir(), "--json"];
    json(&[&["pool", "import"], drives, &to].concat())
}

/// How a pool with two copies on two such drives is made.
fn two_drives(story: &KeptFile) -> Vec<String> {
    let drives = [
        "--drive",
        &sized(story, "first"),
        "--drive",
        &sized(story, "second"),
    ];
    let pool = [
        "--create",
        "0",
        "--redundancy",
        "mirror=2",
        "--volume",
        "vol0=64M",
    ];
    let all = [&pool[..], &drives].concat();
    all.into_iter().map(str::to_owned).collect()
}

fn refs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn a_pool_whose_folder_is_lost_is_made_again_of_its_drives_with_all_that_was_flushed() {
    let story = story();
    let pool = &story.pool;
    let (first, second) = (story.path("first"), story.path("second"));
    let daemon = pool.serve(&refs(&two_drives(&story)));
    assert_eq!(holders(pool), [true, true]);
    story.import_image("data");
    let host = "nqn.2014-08.org.nvmexpress:uuid:6c1e3f0a-58a5-4d3a-9d2e-2f6f1b7f3a10";
    succeeds(&["host", "create", "--pool", pool.dir(), host]);
    // Another volume has the drives in use when the daemon is killed.
    pool.load(&[
        "--rw",
        "randwrite",
        "--size",
        "32M",
        "--seed",
        "7",
        "--verify",
    ]);
    fails(
        &[
            "pool",
            "import",
            &first,
            &second,
            "--pool",
            &story.path("new"),
        ],
        69,
        &["in use", "a pool that is served needs no import"],
    );
    daemon.kill();
    story.lose_the_folder();
    let imported = import_from(pool, &[&second, &first]);
    assert_eq!(imported["missing"], serde_json::json!([]));
    pool.is_consistent();
    let daemon = pool.serve(&[]);
    story.verify("data");
    assert_eq!(holders(pool), [true, true]);
    let hosts = json(&["host", "list", "--pool", pool.dir(), "--json"]);
    assert!(hosts.to_string().contains(host), "{hosts}");
    // And again, at once.
    story.import_image("more");
    daemon.kill();
    story.lose_the_folder();
    import_from(pool, &[&first, &second]);
    let daemon = pool.serve(&[]);
    story.verify("data");
    story.verify("more");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_drive_that_knows_less_is_not_imported_alone_and_the_one_that_is_left_is() {
    let story = story();
    let pool = &story.pool;
    let (first, second) = (story.path("first"), story.path("second"));
    let daemon = pool.serve(&refs(&two_drives(&story)));
    succeeds(&["drive", "offline", "--pool", pool.dir(), &first]);
    wait_for("the metadata to leave the drive", || {
        holders(pool) == [false, true]
    });
    story.import_image("data");
    daemon.kill();
    let name = pool
        .dir
        .file_name()
        .expect("a name")
        .to_str()
        .expect("text")
        .to_owned();
    story.lose_the_folder();
    let import = ["pool", "import", &first, "--pool", pool.dir()];
    let forced = format!("--force {name}");
    fails(&import, 65, &["drive number 2", &second, &forced]);
    let of_another = [&import[..], &["--force", "other"]].concat();
    fails(&of_another, 65, &["'other'", &name]);
    assert!(!Path::new(pool.dir()).exists(), "nothing was made");
    import_from(pool, &[&second]);
    let daemon = pool.serve(&[]);
    story.verify("data");
    // The other drive is there again, and gets what it lacks.
    succeeds(&["drive", "online", "--pool", pool.dir(), &first]);
    wait_for("the metadata to come back", || {
        holders(pool) == [true, true]
    });
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_drive_that_is_added_or_takes_the_place_of_another_holds_the_metadata_too() {
    let story = story();
    let pool = &story.pool;
    let (second, third, fourth) = (
        story.path("second"),
        story.path("third"),
        story.path("fourth"),
    );
    let daemon = pool.serve(&refs(&two_drives(&story)));
    let (first, dir) = (story.path("first"), pool.dir());
    succeeds(&["drive", "add", "--pool", dir, &sized(&story, "third")]);
    wait_for("three copies", || holders(pool) == [true, true, true]);
    succeeds(&[
        "drive",
        "replace",
        "--pool",
        dir,
        &first,
        &sized(&story, "fourth"),
    ]);
    wait_for("three copies again", || holders(pool) == [true, true, true]);
    wait_for("the rebuild", || pool.status()["pool"]["rebuild"].is_null());
    story.import_image("data");
    daemon.kill();
    story.lose_the_folder();
    fails(
        &[
            "pool", "import", &first, &second, &third, &fourth, "--pool", dir,
        ],
        65,
        &[&first, "no drive of the pool any more", "leave it out"],
    );
    import_from(pool, &[&third, &fourth, &second]);
    let daemon = pool.serve(&[]);
    story.verify("data");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn what_cannot_be_imported_is_named_with_what_to_do() {
    let story = story();
    let pool = &story.pool;
    let (first, second) = (story.path("first"), story.path("second"));
    pool.serve(&refs(&two_drives(&story))).stop(Signal::TERM);
    let other = Pool::new();
    let small = other
        .dir
        .parent()
        .expect("a folder")
        .join("small")
        .display()
        .to_string();
    let sized = small.clone() + "=256M";
    other
        .serve(&["--create", "0", "--drive", &sized])
        .stop(Signal::TERM);
    let new = story.path("new");
    let refused = |drives: &[&str], words: &[&str]| {
        let to = ["--pool", &new];
        fails(&[&["pool", "import"], drives, &to[..]].concat(), 65, words);
        assert!(!Path::new(&new).exists(), "nothing was made");
    };
    refused(&[&first, &first], &["named twice"]);
    refused(&[&first, &small], &["the drives of one pool"]);
    let image = story.path("image");
    refused(
        &[&first, &image],
        &[&image, "no drive of a pool", "pool labels"],
    );
    let copy = story.path("copy");
    fs::copy(&first, &copy).expect("copied");
    refused(&[&first, &second, &copy], &["label of the same drive"]);
    fails(
        &["pool", "import", &small, "--pool", &new],
        66,
        &["hold none of the pool's metadata", "restore a backup"],
    );
    fails(
        &["pool", "import", &first, &second, "--pool", pool.dir()],
        65,
        &["holds a pool", "a new folder"],
    );
}
