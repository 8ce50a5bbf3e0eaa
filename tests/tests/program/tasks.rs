//! What a daemon works at for a while, as its owner sees it.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tests::daemon::text_of;

use super::harness::{Pool, fails, json, onefold, succeeds, wait_for};

impl Pool {
    fn tasks(&self) -> Vec<Value> {
        let tasks = json(&["task", "list", "--pool", self.dir(), "--json"]);
        tasks.as_array().expect("a list").clone()
    }

    /// The newest task of a kind.
    #[track_caller]
    fn task(&self, kind: &str) -> Value {
        let tasks = self.tasks();
        let task = tasks.iter().rev().find(|task| task["kind"] == kind);
        task.unwrap_or_else(|| panic!("no {kind} in {tasks:?}"))
            .clone()
    }

    /// A command about this pool.
    fn at<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--pool", self.dir()]].concat()
    }

    /// A command about this pool whose ends of pipes the story holds.
    fn begins(&self, words: &[&str]) -> Child {
        Command::new(onefold())
            .args(self.at(words))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }

    /// Waits until the newest task of a kind is in that state.
    #[track_caller]
    fn becomes(&self, kind: &str, state: &str) -> Value {
        wait_for(&format!("the {kind} to be {state}"), || {
            self.task(kind)["state"] == state
        });
        self.task(kind)
    }
}

#[test]
fn long_tasks_are_listed_with_what_came_of_them_and_can_be_cancelled() {
    let pool = Pool::new();
    let daemon = pool.create();
    assert!(pool.tasks().is_empty());
    pool.load(&[
        "--rw", "write", "--bs", "128k", "--size", "64M", "--seed", "7",
    ]);

    // At the slowest rate it takes longer than this story.
    succeeds(&pool.at(&["scrub", "start", "--rate", "1M"]));
    let scrub = pool.task("scrub");
    assert_eq!(scrub["state"], "running", "{scrub}");
    let id = scrub["id"].to_string();
    let listed = succeeds(&pool.at(&["task", "list"]));
    assert!(
        listed.contains("scrub") && listed.contains("running"),
        "{listed}"
    );
    succeeds(&pool.at(&["task", "cancel", &id]));
    let ended = pool.becomes("scrub", "cancelled");
    assert_eq!(ended["result"]["phase"], "stopped", "{ended}");
    fails(
        &pool.at(&["task", "cancel", &id]),
        65,
        &["has ended already"],
    );

    // The pool remembers scrubs; by the schedule the next one is due in a month.
    let view = json(&pool.at(&["scrub", "schedule", "--every-days", "30", "--json"]));
    assert_eq!(view["history"][0]["phase"], "stopped", "{view}");
    assert_eq!(view["schedule"]["every_days"], 30, "{view}");
    assert_eq!(view["phase"], "stopped", "{view}");

    succeeds(&pool.at(&["pool", "check", "--online"]));
    let check = pool.becomes("check", "done");
    assert_eq!(check["percent"], 100, "{check}");
    assert_eq!(check["result"]["consistent"], true, "{check}");
    assert!(
        check["ended"].as_str() >= check["began"].as_str(),
        "{check}"
    );
    let shown = succeeds(&pool.at(&["task", "show", &check["id"].to_string()]));
    assert!(shown.contains("\"consistent\": true"), "{shown}");
    succeeds(&pool.at(&["status", "--survey"]));
    pool.becomes("survey", "done");

    let beside = tempfile::tempdir().expect("a folder");
    let backup = beside.path().join("backup");
    let backup = backup.to_str().expect("a path of text");
    let made = json(&pool.at(&["pool", "backup", backup, "--json"]));
    assert_eq!(made["dir"], backup, "{made}");
    let task = pool.becomes("backup", "done");
    assert_eq!(task["object"], backup, "{task}");
    assert_eq!(task["result"]["dir"], backup, "{task}");

    succeeds(&pool.at(&["volume", "delete", "vol0", "--yes"]));
    let deletion = pool.becomes("delete", "done");
    assert_eq!(deletion["object"], "vol0", "{deletion}");
    fails(
        &pool.at(&["task", "show", "99"]),
        66,
        &["there is no task 99"],
    );
    daemon.stop(Signal::TERM);

    let daemon = pool.serve(&[]);
    let view = json(&pool.at(&["scrub", "schedule", "--off", "--json"]));
    assert_eq!(view["history"][0]["phase"], "stopped", "{view}");
    assert_eq!(view["schedule"], Value::Null, "{view}");
    // Of a pool that was never scrubbed one begins at once.
    daemon.stop(Signal::TERM);
    let fresh = Pool::new();
    let daemon = fresh.create();
    succeeds(&[
        "scrub",
        "schedule",
        "--every-days",
        "1",
        "--pool",
        fresh.dir(),
    ]);
    fresh.becomes("scrub", "done");
    let export = succeeds(&["config", "export", "-", "--pool", fresh.dir()]);
    assert!(export.contains("every_days = 1\n"), "{export}");
    daemon.stop(Signal::TERM);
}

#[test]
fn a_deletion_that_the_daemons_end_interrupts_goes_on_as_a_task_of_the_next_one() {
    let pool = Pool::new();
    let mut daemon = Some(pool.create());
    // Where the daemon frees faster than it is killed, the next volume is tried.
    let found = (0..8).any(|_| {
        pool.load(&[
            "--rw", "write", "--bs", "128k", "--size", "256M", "--seed", "7",
        ]);
        succeeds(&pool.at(&["volume", "delete", "vol0", "--yes"]));
        if let Some(killed) = daemon.take() {
            killed.kill();
        }
        daemon = Some(pool.serve(&[]));
        let has_one = pool.tasks().iter().any(|task| task["kind"] == "delete");
        if has_one {
            let deletion = pool.becomes("delete", "done");
            assert_eq!(deletion["object"], "vol0", "{deletion}");
        }
        succeeds(&pool.at(&["volume", "create", "vol0", "--size", "1G"]));
        has_one
    });
    assert!(found, "no deletion was interrupted");
    daemon.expect("one serves").stop(Signal::TERM);
}

#[test]
fn images_and_streams_are_tasks_too_and_whoever_sends_or_reads_one_can_be_told_to_stop() {
    let pool = Pool::new();
    let daemon = pool.create();
    let load = [
        "--rw", "write", "--bs", "128k", "--size", "64M", "--seed", "7",
    ];
    pool.load(&load);
    let beside = tempfile::tempdir().expect("a folder");
    let image = beside.path().join("image");
    let image = image.to_str().expect("a path of text");

    // Out, whole.
    succeeds(&pool.at(&["volume", "export", "vol0", image]));
    let export = pool.becomes("export", "done");
    assert_eq!(export["object"], "vol0", "{export}");
    assert_eq!(export["percent"], 100, "{export}");

    // In, by a pipe that stays open: cancelled, resumed, and whole.
    let content = std::fs::read(image).expect("an image");
    let size = content.len().to_string();
    let into = ["volume", "import", "copy", "-", "--size", &size];
    let mut import = pool.begins(&into);
    let mut pipe = import.stdin.take().expect("a pipe");
    pipe.write_all(&content[..20 << 20]).expect("it reads");
    // A part is durable each few seconds.
    wait_for("a part of the image to be told", || {
        pool.task("import")["percent"].as_u64() > Some(0)
    });
    let task = pool.task("import");
    assert_eq!(task["object"], "copy", "{task}");
    assert_eq!(task["state"], "running", "{task}");
    succeeds(&pool.at(&["task", "cancel", &task["id"].to_string()]));
    let output = import.wait_with_output().expect("it ends");
    drop(pipe);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    for word in ["it was cancelled", "--resume", "volume delete copy"] {
        assert!(errors.contains(word), "'{word}' is not in: {errors}");
    }
    pool.becomes("import", "cancelled");
    let mut import = pool.begins(&["volume", "import", "copy", "-", "--resume"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    pipe.write_all(&content).expect("it reads");
    drop(pipe);
    let output = import.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text_of(&output));
    let import = pool.becomes("import", "done");
    assert_eq!(import["result"]["name"], "copy", "{import}");

    // A stream whose reader waits in the middle.
    succeeds(&pool.at(&["snapshot", "create", "vol0@a"]));
    let mut send = pool.begins(&["send", "vol0@a"]);
    wait_for("a part of the stream to be read", || {
        let tasks = pool.tasks();
        let send = tasks.iter().find(|task| task["kind"] == "send");
        send.is_some_and(|task| task["percent"].as_u64() > Some(0))
    });
    let task = pool.task("send");
    assert_eq!(task["object"], "vol0@a", "{task}");
    assert_eq!(task["state"], "running", "{task}");
    succeeds(&pool.at(&["task", "cancel", &task["id"].to_string()]));
    pool.becomes("send", "cancelled");
    let mut stream = Vec::new();
    let mut pipe = send.stdout.take().expect("a pipe");
    pipe.read_to_end(&mut stream).expect("it writes");
    assert!(stream.len() < content.len(), "{}", stream.len());
    let output = send.wait_with_output().expect("it ends");
    let errors = text_of(&output);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("the send was cancelled"), "{errors}");
    daemon.stop(Signal::TERM);
}
