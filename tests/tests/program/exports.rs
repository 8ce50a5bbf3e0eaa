//! Volumes that are reached by something else than NVMe.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;

use super::harness::{Pool, fails, json, succeeds, wait_for};

fn is_socket(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|it| it.file_type().is_socket())
}

#[test]
fn exports_are_made_listed_and_deleted_and_survive_a_restart() {
    let pool = Pool::new();
    let daemon = pool.create();
    let on = |words: &[&str]| [words, &["--pool", pool.dir()]].concat().join("\u{0}");
    let run = |words: &[&str]| succeeds(&on(words).split('\u{0}').collect::<Vec<_>>());
    let refused = |words: &[&str], code, says: &[&str]| {
        fails(&on(words).split('\u{0}').collect::<Vec<_>>(), code, says);
    };
    let listed = || json(&["export", "list", "--json", "--pool", pool.dir()]);
    let volume = json(&["volume", "list", "--json", "--pool", pool.dir()])[0]["name"].clone();
    let volume = volume.as_str().expect("a name").to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (one, two) = (place("1.sock"), place("2.sock"));

    assert!(run(&["export", "list"]).contains("no export"));
    let told = run(&["export", "create", &volume, "--vhost", &one]);
    assert!(told.contains(&one) && told.contains(&volume), "{told}");
    assert!(is_socket(&one));
    let view = json(&[
        "export",
        "create",
        &volume,
        "--vhost",
        &two,
        "--read-only",
        "--json",
        "--pool",
        pool.dir(),
    ]);
    assert_eq!(view["kind"], "vhost");
    assert_eq!(view["read_only"], true);
    assert_eq!(view["served"], true);

    // Errors name the object and what to do.
    refused(
        &["export", "create", "none", "--vhost", &place("3")],
        66,
        &["none"],
    );
    refused(
        &["export", "create", &volume, "--vhost", &one],
        65,
        &[&one, "export list"],
    );
    refused(
        &["export", "create", &volume, "--vhost", "1.sock"],
        65,
        &["absolute"],
    );
    refused(&["export", "create", &volume], 64, &["--vhost"]);
    refused(&["export", "delete", "none"], 66, &["export list"]);
    refused(&["export", "delete", &volume], 65, &["several"]);
    refused(
        &["volume", "delete", &volume, "--yes"],
        65,
        &[&one, "export delete"],
    );
    let file = place("file");
    fs::write(&file, "kept").expect("a file");
    refused(
        &["export", "create", &volume, "--vhost", &file],
        65,
        &[&file, "no socket"],
    );
    assert_eq!(fs::read(&file).expect("the file"), b"kept");
    refused(
        &["export", "create", &volume, "--vhost", &place("no/3")],
        65,
        &["No such file"],
    );

    // Who uses it is seen. One at a time may.
    let client = UnixStream::connect(&one).expect("it listens");
    wait_for("the connection", || listed()[0]["connections"] == 1);
    let mut second = UnixStream::connect(&one).expect("it listens");
    assert_eq!(
        second.read(&mut [0; 1]).expect("an end"),
        0,
        "it is sent away"
    );
    refused(&["export", "delete", &one], 65, &["--yes"]);
    drop(client);
    wait_for("the end of the connection", || {
        listed()[0]["connections"] == 0
    });

    // What is configured can be brought to another pool.
    let exported = place("exported.toml");
    run(&["config", "export", &exported]);
    let text = fs::read_to_string(&exported).expect("the file");
    assert!(text.contains("[[export]]") && text.contains(&one), "{text}");

    // A kill leaves sockets behind, and a start takes them again.
    daemon.kill();
    assert!(is_socket(&one));
    let daemon = pool.serve(&[]);
    let all = listed();
    assert_eq!(all.as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(
        (&all[0]["served"], &all[1]["served"]),
        (&true.into(), &true.into())
    );
    drop(UnixStream::connect(&two).expect("it listens"));
    run(&["export", "delete", &two]);
    assert!(!Path::new(&two).exists());
    daemon.stop(Signal::TERM);
    assert!(!Path::new(&one).exists());

    // What cannot be served is told of, and keeps nothing back.
    fs::write(&one, "in the way").expect("a file");
    let daemon = pool.serve(&[]);
    assert_eq!(listed()[0]["served"], false);
    assert!(run(&["export", "list"]).contains("not served"));
    fs::remove_file(&one).expect("gone");
    daemon.signal(Signal::HUP);
    wait_for("the reload", || listed()[0]["served"] == true);
    assert!(is_socket(&one));
    run(&["export", "delete", &volume]);
    run(&["volume", "delete", &volume, "--yes"]);
    daemon.stop(Signal::TERM);
}

#[test]
fn disks_of_virtual_machines_are_measured_and_what_is_read_is_what_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let workloads = "read-4k-sleeping,read-128k,write-4k";
    let report = json(&[
        "bench",
        "exports",
        "--only",
        workloads,
        "--runs",
        "1",
        "--seconds",
        "1",
        "--json",
        "--dir",
        &dir,
    ]);
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| &row["name"]).collect();
    assert_eq!(names, workloads.split(',').collect::<Vec<_>>());
    for row in rows {
        assert_eq!(row["target"], "onefold");
        assert!(row["requests_per_second"].as_f64() > Some(0.0), "{row}");
        assert!(row["p50_us"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(
        report["notes"].as_array().map(Vec::len),
        Some(0),
        "{report}"
    );
}
