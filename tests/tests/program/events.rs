//! The event log: who came, who changed what, over restarts, and as it happens.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::harness::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-00000000e001";

impl Pool {
    fn events(&self) -> Vec<Value> {
        let page = json(&["events", "--limit", "4096", "--json", "--pool", self.dir()]);
        page["events"].as_array().expect("a list").clone()
    }

    /// Waits for an event of that kind whose text has these words.
    fn waits_for_event(&self, kind: &str, words: &[&str]) {
        wait_for(&format!("{kind} {words:?}"), || {
            self.events().iter().any(|event| {
                let text = event.to_string();
                event["kind"] == kind && words.iter().all(|word| text.contains(word))
            })
        });
    }
}

#[test]
fn who_came_and_who_changed_what_is_kept_over_restarts() {
    let pool = Pool::new();
    // What is logged to standard error is another question than what is kept.
    let daemon = pool.serve(&["--create", "1G", "--log", "off"]);
    let load = Load::start(&pool, &pool.subsystem(), HOST);
    pool.waits_for_event("attach", &[HOST]);
    drop(load);
    pool.waits_for_event("detach", &[HOST]);
    succeeds(&[
        "volume",
        "create",
        "kept",
        "--size",
        "64M",
        "--pool",
        pool.dir(),
    ]);
    pool.waits_for_event("admin", &["added volume 'kept'", "uid"]);
    fails(
        &[
            "volume",
            "create",
            "kept",
            "--size",
            "64M",
            "--pool",
            pool.dir(),
        ],
        65,
        &["kept"],
    );
    pool.waits_for_event("admin", &["a change was refused"]);
    let before = pool.events();
    daemon.kill();
    let daemon = pool.serve(&[]);
    let after = pool.events();
    assert_eq!(
        after[..before.len()],
        before[..],
        "a killed daemon loses no event"
    );
    let ids: Vec<u64> = after
        .iter()
        .map(|event| event["id"].as_u64().expect("a number"))
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let text = succeeds(&["events", "--pool", pool.dir()]);
    assert!(
        text.contains("admin") && text.contains("added volume 'kept'"),
        "{text}"
    );
    daemon.stop(Signal::TERM);
    fails(
        &["events", "--pool", pool.dir(), "--json"],
        69,
        &["\"exit_code\":69"],
    );
}

#[test]
fn events_that_are_gone_are_told_and_not_left_out() {
    let pool = Pool::new();
    pool.create().stop(Signal::TERM);
    let line = |id: u64| {
        format!(
            "{{\"id\":{id},\"at\":\"2026-11-22T15:04:15.123Z\",\"kind\":\"notice\",\"message\":\"kept\"}}\n"
        )
    };
    std::fs::write(pool.dir.join("events"), line(100)).expect("its folder is there");
    let daemon = pool.serve(&[]);
    let listed = succeeds(&["events", "--since", "60", "--pool", pool.dir()]);
    let first = listed.lines().next().expect("a line");
    assert!(
        first.contains("skipped") && first.contains("39 events") && first.contains("count=39"),
        "{listed}"
    );
    let follow = [
        "events",
        "--follow",
        "--limit",
        "1",
        "--since",
        "60",
        "--json",
        "--pool",
        pool.dir(),
    ];
    let mut follower = Command::new(onefold())
        .args(follow)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines();
    let two: Vec<Value> = lines
        .take(2)
        .map(|line| serde_json::from_str(&line.expect("a line")).expect("an event"))
        .collect();
    assert_eq!(
        (&two[0]["kind"], &two[0]["id"]),
        (&"skipped".into(), &99.into())
    );
    assert_eq!(
        (&two[1]["kind"], &two[1]["id"]),
        (&"notice".into(), &100.into())
    );
    daemon.stop(Signal::TERM);
    follower.wait().expect("it ends");
}

#[test]
fn who_follows_sees_a_change_as_it_happens_and_the_end_of_the_daemon() {
    let pool = Pool::new();
    let daemon = pool.create();
    // Making a pool makes its first volume.
    pool.waits_for_event("notice", &["a volume was created"]);
    let latest = pool.events().last().expect("an event")["id"].to_string();
    let mut follower = Command::new(onefold())
        .args([
            "events",
            "--follow",
            "--json",
            "--since",
            &latest,
            "--pool",
            pool.dir(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines();
    succeeds(&[
        "volume",
        "create",
        "seen",
        "--size",
        "64M",
        "--pool",
        pool.dir(),
    ]);
    let found = lines.by_ref().map_while(Result::ok).find(|line| {
        let event: Value = serde_json::from_str(line).expect("a line is an event");
        event["kind"] == "admin"
            && event["message"]
                .as_str()
                .is_some_and(|text| text.contains("'seen'"))
    });
    assert!(found.is_some(), "the stream ended");
    daemon.stop(Signal::TERM);
    let ended = follower.wait().expect("it ends");
    assert_eq!(ended.code(), Some(69), "its daemon is gone");
}
