//! A pool with copies survives its drives: the commands of the guide's chapter about it.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, run, succeeds, wait_for};

/// The states of the drives, in their order.
fn states(pool: &Pool) -> Vec<String> {
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    let drives = drives.as_array().expect("a list").iter();
    let state = |drive: &serde_json::Value| drive["state"].as_str().expect("a word").to_owned();
    drives.map(state).collect()
}

#[test]
fn a_pool_with_copies_goes_on_without_a_drive_and_a_new_one_gets_all_of_it() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a folder").to_owned();
    let path = |name: &str| folder.join(name).display().to_string();
    let (first, second, third) = (path("first"), path("second"), path("third"));
    let sized = |path: &str| format!("{path}=256M");
    let mirror = ["--create", "0", "--redundancy", "mirror=2"];
    let named = ["--drive", &sized(&first), "--drive", &sized(&second)];
    let volume = ["--volume", "vol0=64M"];
    let daemon = pool.serve(&[&mirror[..], &named, &volume].concat());
    let image = path("image");
    let bytes: Vec<u8> = (0..32u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(&image, &bytes).expect("written");
    succeeds(&["volume", "import", "--pool", pool.dir(), "data", &image]);
    let status = pool.status();
    assert_eq!(status["pool"]["redundancy"], "mirror=2");
    assert_eq!(status["pool"]["at_risk_bytes"], 0);
    let verify = || {
        let copy = path("copy");
        let _ = fs::remove_file(&copy);
        succeeds(&["volume", "export", "--pool", pool.dir(), "data", &copy]);
        assert!(fs::read(&copy).expect("exported") == bytes);
    };

    // A drive is gone when the daemon starts.
    daemon.stop(Signal::TERM);
    fs::remove_file(&first).expect("it was there");
    let daemon = pool.serve(&[]);
    assert_eq!(states(&pool), ["offline", "online"]);
    assert!(pool.status()["pool"]["at_risk_bytes"].as_u64() > Some(0));
    verify();
    fails(
        &["drive", "offline", "--pool", pool.dir(), &second],
        65,
        &["no other drive has"],
    );
    fails(
        &["drive", "online", "--pool", pool.dir(), &first],
        66,
        &[&first],
    );
    fails(
        &["drive", "online", "--pool", pool.dir(), &image],
        66,
        &["not a drive of this pool"],
    );

    // Another one takes its place, and then the other one can go.
    succeeds(&[
        "drive",
        "replace",
        "--pool",
        pool.dir(),
        &first,
        &sized(&third),
    ]);
    wait_for("the rebuild", || states(&pool) == ["online", "online"]);
    assert_eq!(pool.status()["pool"]["rebuild"], serde_json::Value::Null);
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert_eq!(states(&pool), ["online", "online"]);
    succeeds(&["drive", "offline", "--pool", pool.dir(), &second]);
    verify();
    let health = run(&["status", "--pool", pool.dir()]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    wait_for("the alert", || {
        let status = run(&["status", "--pool", pool.dir()]);
        String::from_utf8_lossy(&status.stdout).contains("is offline")
    });
    assert!(health.contains("mirror=2"), "{health}");
    succeeds(&["drive", "online", "--pool", pool.dir(), &second]);
    wait_for("the rebuild", || states(&pool) == ["online", "online"]);
    daemon.stop(Signal::TERM);
    let checked = run(&["pool", "check", "--pool", pool.dir(), "--data"]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn copies_that_the_drives_have_no_room_for_are_refused_and_no_pool_is_made() {
    let pool = Pool::new();
    let drive = pool.dir.parent().expect("a folder").join("only");
    let drive = format!("{}=256M", drive.display());
    let arguments = [
        "--create",
        "0",
        "--redundancy",
        "mirror=2",
        "--drive",
        &drive,
    ];
    pool.fails_to_serve(&arguments, 65, &["name more drives"]);
}
