//! Snapshots, clones and rollbacks, as their owner uses them.

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{NQN, Pool, fails, json, succeeds, wait_for};

impl Pool {
    pub(super) fn on<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--pool", self.dir()]].concat()
    }

    fn snapshots(&self) -> Vec<String> {
        let all = json(&self.on(&["snapshot", "list", "--json"]));
        let all = all.as_array().expect("a list").iter();
        all.map(|it| it["name"].as_str().expect("a name").to_owned())
            .collect()
    }

    fn verifies(&self, seed: &str) -> Value {
        self.load(&[
            "--rw", "read", "--bs", "128k", "--size", "16M", "--verify", "--seed", seed,
        ])
    }

    fn fill(&self, seed: &str) {
        self.load(&[
            "--rw", "write", "--bs", "128k", "--size", "16M", "--seed", seed,
        ]);
    }
}

#[test]
fn snapshots_are_taken_rolled_back_cloned_and_deleted_beside_a_daemon() {
    let pool = Pool::new();
    let daemon = pool.create();
    let volume = json(&pool.on(&["volume", "list", "--json"]))[0]["name"].clone();
    let volume = volume.as_str().expect("a name").to_owned();
    let (first, second) = (format!("{volume}@first"), format!("{volume}@second"));
    assert!(succeeds(&pool.on(&["snapshot", "list"])).contains("snapshot create VOLUME@NAME"));
    pool.fill("7");
    let told = succeeds(&pool.on(&["snapshot", "create", &first]));
    assert!(told.starts_with(&format!("created {first}: ")), "{told}");
    pool.fill("8");
    succeeds(&pool.on(&["volume", "create", "logs", "--size", "1G"]));
    succeeds(&pool.on(&["snapshot", "create", &second, "logs@second"]));
    assert_eq!(pool.snapshots(), [first.as_str(), &second, "logs@second"]);
    let of_logs = json(&pool.on(&["snapshot", "list", "logs", "--json"]));
    assert_eq!(of_logs.as_array().map(Vec::len), Some(1), "{of_logs}");
    assert_eq!(of_logs[0]["volume"], "logs");

    // Errors name the object and what to do.
    fails(
        &pool.on(&["snapshot", "create", &first]),
        65,
        &[&first, "snapshot delete"],
    );
    fails(
        &pool.on(&["snapshot", "create", "logs@a/b"]),
        65,
        &["a-z A-Z 0-9"],
    );
    fails(&pool.on(&["snapshot", "create", "none@a"]), 66, &["none"]);
    fails(
        &pool.on(&["snapshot", "delete", "logs@none", "--yes"]),
        66,
        &["snapshot list"],
    );
    fails(&pool.on(&["snapshot", "delete", &first]), 65, &["--yes"]);
    fails(
        &pool.on(&["volume", "delete", "logs", "--yes"]),
        65,
        &["logs@second"],
    );

    // Back, and it is what it was; the other snapshot still is what it is.
    pool.verifies("8");
    succeeds(&pool.on(&["snapshot", "rollback", &first, "--yes"]));
    pool.verifies("7");
    succeeds(&pool.on(&["snapshot", "rollback", &second, "--yes"]));
    pool.verifies("8");

    // Clones, of a snapshot and of a volume.
    succeeds(&pool.on(&["volume", "clone", &first, "c1", "c2", "c3"]));
    let of_now = pool.on(&[
        "volume",
        "clone",
        &volume,
        "c4",
        "--subsystem",
        "none",
        "--json",
    ]);
    let made = json(&of_now);
    assert_eq!(made[0]["name"], "c4", "{made}");
    assert_eq!(made[0]["namespaces"], serde_json::json!([]), "{made}");
    fails(&pool.on(&["volume", "clone", &first, "c1"]), 65, &["c1"]);
    succeeds(&pool.on(&["snapshot", "delete", &first, "--yes"]));

    // As a namespace it is read-only, and stays so.
    let shown = json(&pool.on(&["namespace", "attach", NQN, &second, "--json"]));
    assert_eq!(shown["write_protect"], "permanent", "{shown}");
    assert_eq!(shown["volume"], second.as_str(), "{shown}");

    let events = succeeds(&pool.on(&["events"]));
    for words in ["a snapshot was taken", "a volume was rolled back"] {
        assert!(events.contains(words), "{words}: {events}");
    }
    daemon.kill();
    let daemon = pool.serve(&[]);
    assert_eq!(pool.snapshots(), [second.as_str(), "logs@second"]);
    pool.verifies("8");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_schedule_takes_a_snapshot_at_once_and_survives_a_restart() {
    let pool = Pool::new();
    let daemon = pool.create();
    succeeds(&pool.on(&["volume", "create", "db", "--size", "1G"]));
    fails(
        &pool.on(&["snapshot", "schedule", "db", "--every", "5s", "--keep", "3"]),
        65,
        &["60"],
    );
    let set = pool.on(&[
        "snapshot", "schedule", "db", "--every", "1h", "--keep", "3", "--json",
    ]);
    let view = json(&set);
    assert_eq!(view[0]["volume"], "db", "{view}");
    assert_eq!((&view[0]["kept"], &view[0]["keep"]), (&1.into(), &3.into()));
    let taken = pool.snapshots();
    assert!(taken[0].starts_with("db@auto-20"), "{taken:?}");
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert!(succeeds(&pool.on(&["snapshot", "schedule"])).contains("db"));
    succeeds(&pool.on(&["snapshot", "schedule", "db", "--off"]));
    assert_eq!(pool.snapshots(), taken, "they stay");
    succeeds(&pool.on(&["snapshot", "delete", &taken[0], "--yes"]));
    wait_for("its deletion", || pool.snapshots().is_empty());
    succeeds(&pool.on(&["volume", "delete", "db", "--yes"]));
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn what_changed_since_a_snapshot_and_what_reads_as_zeros_is_told_out_of_the_maps() {
    const MIB: u64 = 1 << 20;
    let pool = Pool::new();
    let daemon = pool.create();
    let view = json(&pool.on(&["volume", "list", "--json"]))[0].clone();
    let volume = view["name"].as_str().expect("a name");
    let size = view["size_bytes"].as_u64().expect("a size");
    let snapshot = format!("{volume}@first");
    pool.fill("7");
    succeeds(&pool.on(&["snapshot", "create", &snapshot]));
    let diff = |a: &str, b: &str| json(&pool.on(&["volume", "diff", a, b, "--json"]));
    let none = serde_json::json!({"ranges": [], "changed_bytes": 0});
    assert_eq!(diff(&snapshot, volume), none);
    pool.load(&[
        "--rw", "write", "--bs", "128k", "--size", "1M", "--seed", "8",
    ]);
    let changed =
        serde_json::json!({"ranges": [{"offset": 0, "length": MIB}], "changed_bytes": MIB});
    assert_eq!(diff(&snapshot, volume), changed);
    assert_eq!(diff(volume, &snapshot), changed);
    let told = succeeds(&pool.on(&["volume", "diff", &snapshot, volume]));
    assert!(
        told.contains("1048576") && told.ends_with("(1048576 bytes) in 1 range\n"),
        "{told}"
    );

    // Of volumes that are not related, of another size.
    succeeds(&pool.on(&["volume", "create", "other", "--size", "8M"]));
    let of_other = diff("other", &snapshot);
    assert_eq!(of_other["changed_bytes"], 16 * MIB, "{of_other}");
    let zeros = json(&pool.on(&["volume", "zero-map", &snapshot, "--json"]));
    let rest = size - 16 * MIB;
    let wanted =
        serde_json::json!({"ranges": [{"offset": 16 * MIB, "length": rest}], "zero_bytes": rest});
    assert_eq!(zeros, wanted);
    let zeros = json(&pool.on(&["volume", "zero-map", "other", "--json"]));
    assert_eq!(zeros["zero_bytes"], 8 * MIB, "{zeros}");

    for name in ["none", "other@none"] {
        fails(&pool.on(&["volume", "diff", name, volume]), 66, &[name]);
        fails(&pool.on(&["volume", "diff", volume, name]), 66, &[name]);
        fails(&pool.on(&["volume", "zero-map", name]), 66, &[name]);
    }
    fails(&pool.on(&["volume", "diff", volume, "a/b"]), 65, &["a/b"]);

    // From the store, after a restart.
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert_eq!(diff(&snapshot, volume), changed);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}
