//! Snapshots on their way between two pools, each with a daemon of its own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::text_of;

use crate::harness::{Daemon, Load, NQN, Pool, fails, json, onefold, run, succeeds, wait_for};

pub(crate) const MIB: usize = 1 << 20;

/// A pool, its daemon, and a folder for images and streams beside it.
pub(crate) struct Side {
    pub(crate) pool: Pool,
    daemon: Daemon,
    folder: tempfile::TempDir,
}

impl Side {
    pub(crate) fn new() -> Self {
        let pool = Pool::new();
        Self {
            daemon: pool.create(),
            pool,
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    pub(crate) fn does(&self, words: &[&str]) -> String {
        succeeds(&self.pool.on(words))
    }

    #[track_caller]
    pub(crate) fn refuses(&self, words: &[&str], why: &[&str]) {
        fails(&self.pool.on(words), 65, why);
    }

    #[track_caller]
    fn view(&self, name: &str) -> Value {
        json(&self.pool.on(&["volume", "show", name, "--json"]))
    }

    /// Gives a volume this content: makes it, or resizes it and writes over what it has.
    #[track_caller]
    pub(crate) fn set(&self, name: &str, content: &[u8]) {
        let image = self.file("image");
        fs::write(&image, content).expect("a file");
        let image = image.to_str().expect("text");
        let volumes = json(&self.pool.on(&["volume", "list", "--json"]));
        let mut volumes = volumes.as_array().expect("a list").iter();
        if volumes.any(|volume| volume["name"] == name) {
            let size = content.len().to_string();
            self.does(&["volume", "resize", name, "--size", &size, "--shrink"]);
            self.does(&["volume", "import", name, image, "--overwrite"]);
        } else {
            self.does(&["volume", "import", name, image]);
        }
    }

    /// What a volume, or a snapshot, holds.
    #[track_caller]
    pub(crate) fn content(&self, name: &str) -> Vec<u8> {
        let output = Command::new(onefold())
            .args(self.pool.on(&["volume", "export", name, "-"]))
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{}", text_of(&output));
        output.stdout
    }

    /// `onefold send`, to a file of this side. Returns the stream, and the report.
    #[track_caller]
    pub(crate) fn send(&self, words: &[&str]) -> (PathBuf, Value) {
        let stream = self.file(&words.join(" ").replace('/', "-"));
        let output = Command::new(onefold())
            .args(self.pool.on(&[&["send", "--json"], words].concat()))
            .stdin(Stdio::null())
            .stdout(File::create(&stream).expect("a file"))
            .stderr(Stdio::piped())
            .output()
            .expect("the program starts");
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {report}");
        (stream, serde_json::from_str(&report).expect("JSON"))
    }

    /// `onefold receive`, from a file.
    fn receive_of(&self, words: &[&str], stream: &Path) -> Output {
        Command::new(onefold())
            .args(self.pool.on(&[&["receive"], words].concat()))
            .stdin(File::open(stream).expect("a stream"))
            .output()
            .expect("the program starts")
    }

    #[track_caller]
    fn receives(&self, words: &[&str], stream: &Path) -> String {
        let output = self.receive_of(words, stream);
        assert!(output.status.success(), "{words:?}: {}", text_of(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The stream is refused, with these words. Returns what was told.
    #[track_caller]
    pub(crate) fn refuses_stream(&self, words: &[&str], stream: &Path, why: &[&str]) -> String {
        let output = self.receive_of(words, stream);
        let errors = text_of(&output);
        assert_eq!(output.status.code(), Some(65), "{words:?}: {errors}");
        for word in why {
            assert!(errors.contains(word), "'{word}' is not in: {errors}");
        }
        errors
    }

    /// `onefold receive`, whose standard input is a pipe that had this and stays open.
    fn receive_from_pipe(&self, words: &[&str], first: &[u8]) -> Child {
        let mut child = Command::new(onefold())
            .args(self.pool.on(&[&["receive"], words].concat()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let pipe = child.stdin.as_mut().expect("a pipe");
        pipe.write_all(first).expect("it reads");
        child
    }

    /// Waits until a part of a stream is durable; returns how many bytes.
    #[track_caller]
    pub(crate) fn part_of(&self, name: &str) -> u64 {
        let done = || self.view(name)["import"]["done_bytes"].as_u64();
        wait_for("a part of the stream to be durable", || done() > Some(0));
        done().expect("a number")
    }

    /// Whether hosts see a volume.
    pub(crate) fn is_seen(&self, name: &str) -> bool {
        let nsid = self.view(name)["nsid"].to_string();
        let subsystem = self.pool.subsystem();
        let read = [
            "perf", &subsystem, "--nsid", &nsid, "--rw", "read", "--size", "4k", "--json",
        ];
        let is_seen = run(&read).status.success();
        wait_for("the host to be gone", || {
            let status = self.pool.status();
            status["hosts"].as_array().is_some_and(Vec::is_empty)
        });
        is_seen
    }

    /// Nobody can use a volume, or what is made of it.
    #[track_caller]
    pub(crate) fn hides(&self, name: &str) {
        assert!(!self.is_seen(name), "hosts see a part of a stream");
        let half = format!("{name}@half");
        for words in [
            &["volume", "export", name, "-"][..],
            &["volume", "clone", name, "other"],
            &["volume", "resize", name, "--size", "1G"],
            &["snapshot", "create", &half],
            &["namespace", "attach", NQN, name],
        ] {
            self.refuses(words, &["only a part of"]);
        }
    }

    /// A snapshot's view.
    #[track_caller]
    fn snapshot(&self, name: &str) -> Value {
        let all = json(&self.pool.on(&["snapshot", "list", "--json"]));
        let mut all = all.as_array().expect("a list").iter();
        let found = all.find(|view| view["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}")).clone()
    }

    pub(crate) fn restarted(self) -> Self {
        let Self {
            pool,
            daemon,
            folder,
        } = self;
        daemon.kill();
        Self {
            daemon: pool.serve(&[]),
            pool,
            folder,
        }
    }

    #[track_caller]
    pub(crate) fn ends(self) {
        self.daemon.stop(Signal::TERM);
        self.pool.is_consistent();
    }
}

/// Noise that is the same for the same seed.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        noise.extend(word.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

fn bytes_of(stream: &Path) -> usize {
    fs::metadata(stream).expect("a stream").len() as usize
}

#[test]
fn a_snapshot_travels_whole_and_after_it_what_changed() {
    let (from, to) = (Side::new(), Side::new());
    // Half of it comes twice, and a hole is behind.
    let half = noise(1, 3 * MIB);
    let monday = [&half[..], &half, &vec![0; 10 * MIB]].concat();
    from.set("vm1", &monday);
    from.does(&["snapshot", "create", "vm1@monday"]);
    let (stream, sent) = from.send(&["vm1@monday"]);
    assert_eq!(sent["data_bytes"], 3 * MIB, "{sent}");
    assert_eq!(sent["same_bytes"], 3 * MIB, "{sent}");
    assert_eq!(sent["zero_bytes"], 0, "a new volume has zeros: {sent}");
    assert!(bytes_of(&stream) < 3 * MIB + 64 * 1024);
    let told = to.receives(&["copy"], &stream);
    assert!(told.starts_with("received copy@monday: "), "{told}");
    assert!(to.content("copy") == monday && to.content("copy@monday") == monday);
    assert!(to.is_seen("copy"));
    let (one, other) = (from.snapshot("vm1@monday"), to.snapshot("copy@monday"));
    assert_eq!(one["content"], other["content"]);
    assert_eq!(one["created"], other["created"]);
    assert_ne!(one["uuid"], other["uuid"], "hosts tell them apart");

    // Larger, with new data behind, a part changed to what is elsewhere, and a part trimmed.
    let mut tuesday = monday.clone();
    tuesday.extend(noise(2, 8 * MIB));
    tuesday[MIB..2 * MIB].fill(0);
    tuesday.copy_within(18 * MIB..19 * MIB, 4 * MIB);
    from.set("vm1", &tuesday);
    from.does(&["snapshot", "create", "vm1@tuesday"]);
    let (stream, sent) = from.send(&["vm1@tuesday", "--from", "monday"]);
    assert_eq!(sent["data_bytes"], 8 * MIB, "{sent}");
    assert_eq!(sent["same_bytes"], MIB, "{sent}");
    assert_eq!(sent["zero_bytes"], MIB, "{sent}");
    to.receives(&["copy"], &stream);
    assert!(to.content("copy") == tuesday && to.content("copy@tuesday") == tuesday);
    assert!(to.content("copy@monday") == monday);

    // Smaller again. Its whole name is understood too.
    let mut wednesday = tuesday[..6 * MIB].to_vec();
    wednesday[5 * MIB..].fill(7);
    from.set("vm1", &wednesday);
    from.does(&["snapshot", "create", "vm1@wednesday"]);
    let (stream, sent) = from.send(&["vm1@wednesday", "--from", "vm1@tuesday"]);
    assert_eq!(
        sent["data_bytes"], 4096,
        "one block, again and again: {sent}"
    );
    let report = to.receives(&["copy", "--json"], &stream);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["snapshot"], "copy@wednesday", "{report}");
    assert_eq!(report["volume"]["size_bytes"], 6 * MIB, "{report}");
    assert_eq!(report["same_bytes"], MIB - 4096, "{report}");
    assert!(to.content("copy") == wednesday);
    assert!(to.content("copy@tuesday") == tuesday);

    // Back to an earlier one, which is a change like others.
    let (stream, _) = from.send(&["vm1@monday", "--from", "wednesday"]);
    to.refuses_stream(&["copy"], &stream, &["is there already"]);
    to.does(&["snapshot", "delete", "copy@monday", "--yes"]);
    to.receives(&["copy"], &stream);
    assert!(to.content("copy@monday") == monday);
    from.ends();
    to.ends();
}

#[test]
fn a_volume_like_another_one_of_the_pool_takes_no_room_and_its_content_may_come_without_memory() {
    let (from, to) = (Side::new(), Side::new());
    let content = noise(4, 4 * MIB).repeat(2);
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    let (stream, _) = from.send(&["vm1@s"]);
    to.receives(&["one", "--subsystem", "none"], &stream);
    let used = to.pool.figure("used_bytes");
    let (stream, sent) = from.send(&["vm1@s", "--memory", "0"]);
    assert_eq!(
        (&sent["data_bytes"], &sent["same_bytes"]),
        (&(8 * MIB).into(), &0.into())
    );
    to.receives(&["two", "--subsystem", "none"], &stream);
    assert_eq!(to.pool.figure("used_bytes"), used);
    assert!(to.content("one") == content && to.content("two") == content);
    assert_eq!(to.view("one")["nsid"], Value::Null);
    // Into volumes that store every write.
    let (stream, _) = from.send(&["vm1@s"]);
    to.receives(&["three", "--dedup", "off"], &stream);
    assert!(to.content("three") == content);
    from.ends();
    to.ends();
}

#[test]
fn a_stream_that_is_cut_off_goes_on_where_it_was() {
    let (from, to) = (Side::new(), Side::new());
    let content = noise(5, 24 * MIB);
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    let (stream, _) = from.send(&["vm1@s"]);
    let whole = fs::read(&stream).expect("a stream");
    let cut = from.file("cut");
    fs::write(&cut, &whole[..16 * MIB]).expect("a file");
    let told = to.refuses_stream(
        &["copy"],
        &cut,
        &[
            "ends in the middle",
            "--resume",
            "onefold volume delete copy",
        ],
    );
    to.hides("copy");
    // What it says to type works.
    let (_, rest) = told
        .split_once("`onefold send vm1@s --start-at ")
        .expect(&told);
    let (at, _) = rest.split_once('`').expect(&told);
    assert_eq!(at, (15 * MIB).to_string(), "all whole frames are kept");
    let (rest, sent) = from.send(&["vm1@s", "--start-at", at]);
    assert_eq!(sent["data_bytes"], 9 * MIB, "{sent}");
    to.refuses_stream(&["copy"], &rest, &["--resume"]);
    let none = to.receive_of(&["new", "--resume"], &rest);
    assert_eq!(none.status.code(), Some(66), "{}", text_of(&none));
    // One that begins later would leave a gap.
    let (late, _) = from.send(&["vm1@s", "--start-at", "20M"]);
    to.refuses_stream(
        &["copy", "--resume"],
        &late,
        &["begins at byte 20971520", "--start-at 15728640"],
    );
    to.hides("copy");
    to.receives(&["copy", "--resume"], &rest);
    assert!(to.content("copy") == content && to.content("copy@s") == content);
    assert!(to.is_seen("copy"));
    to.refuses_stream(&["copy", "--resume"], &rest, &["it is whole"]);

    // The same of changes, with the whole stream again.
    let mut changed = content.clone();
    changed[4 * MIB..12 * MIB].copy_from_slice(&noise(6, 8 * MIB));
    changed.copy_within(4 * MIB..5 * MIB, 20 * MIB);
    changed[22 * MIB..].fill(0);
    from.set("vm1", &changed);
    from.does(&["snapshot", "create", "vm1@t"]);
    let (stream, _) = from.send(&["vm1@t", "--from", "s"]);
    let whole = fs::read(&stream).expect("a stream");
    fs::write(&cut, &whole[..6 * MIB]).expect("a file");
    let told = to.refuses_stream(&["copy"], &cut, &["snapshot rollback copy@s"]);
    assert!(
        told.contains("`onefold send vm1@t --from s --start-at "),
        "{told}"
    );
    to.hides("copy");
    to.receives(&["copy", "--resume"], &stream);
    assert!(to.content("copy") == changed && to.content("copy@s") == content);
    from.ends();
    to.ends();
}

#[test]
fn a_stream_that_was_changed_or_is_another_is_refused_and_nothing_is_half_there() {
    let (from, to) = (Side::new(), Side::new());
    let content = noise(7, 8 * MIB);
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    let (good, _) = from.send(&["vm1@s"]);
    let whole = fs::read(&good).expect("a stream");
    let bad = from.file("bad");
    let mut changed = whole.clone();
    changed[5 * MIB] ^= 1;
    fs::write(&bad, &changed).expect("a file");
    to.refuses_stream(
        &["copy"],
        &bad,
        &["was changed on the way", "--start-at 4194304"],
    );
    to.hides("copy");
    // The stream of another snapshot is not the rest of it.
    from.set("vm1", &noise(8, 8 * MIB));
    from.does(&["snapshot", "create", "vm1@t"]);
    let (other, _) = from.send(&["vm1@t"]);
    to.refuses_stream(&["copy", "--resume"], &other, &["another image"]);
    to.hides("copy");
    // Two, one behind the other.
    let both = [whole.clone(), fs::read(&other).expect("a stream")].concat();
    fs::write(&bad, both).expect("a file");
    to.refuses_stream(&["copy", "--resume"], &bad, &["behind the end"]);
    to.hides("copy");
    to.receives(&["copy", "--resume"], &good);
    assert!(to.content("copy") == content);

    for (bytes, why) in [
        (&b"raw bytes"[..], "no stream of `onefold send`"),
        (&[], "nothing came"),
        (&whole[..100], "ends in the middle"),
    ] {
        fs::write(&bad, bytes).expect("a file");
        to.refuses_stream(&["new"], &bad, &[why]);
        fails(&to.pool.on(&["volume", "show", "new"]), 66, &["new"]);
    }
    to.refuses_stream(&["copy"], &good, &["copy", "already"]);
    to.refuses_stream(&["a/b"], &good, &["a/b"]);
    // What cannot be sent.
    let refused = |words: &[&str], code, why: &str| {
        fails(&from.pool.on(&[&["send"], words].concat()), code, &[why]);
    };
    refused(&["vm1"], 65, "onefold snapshot create vm1@NAME");
    refused(&["vm1@none"], 66, "vm1@none");
    refused(&["vm1@s", "--from", "none"], 66, "vm1@none");
    refused(&["vm1@s", "--from", "s"], 65, "nothing changed");
    refused(&["vm1@s", "--start-at", "1000"], 65, "multiple of 4096");
    refused(&["vm1@s", "--start-at", "1G"], 65, "--start-at");
    from.ends();
    to.ends();
}

#[test]
fn changes_come_only_onto_what_they_are_changes_of() {
    let (from, to) = (Side::new(), Side::new());
    let first = noise(9, 4 * MIB);
    let second = [&noise(10, MIB)[..], &first[MIB..]].concat();
    let third = noise(11, 4 * MIB);
    for (name, content) in [("a", &first), ("b", &second), ("c", &third)] {
        from.set("vm1", content);
        from.does(&["snapshot", "create", &format!("vm1@{name}")]);
    }
    let (whole, _) = from.send(&["vm1@a"]);
    let (b, _) = from.send(&["vm1@b", "--from", "a"]);
    let (c, _) = from.send(&["vm1@c", "--from", "b"]);
    let none = to.receive_of(&["copy"], &b);
    assert_eq!(none.status.code(), Some(66), "{}", text_of(&none));
    to.set("other", &first);
    to.does(&["snapshot", "create", "other@a"]);
    to.refuses_stream(
        &["other"],
        &b,
        &["no snapshot with the content", "without --from"],
    );
    to.receives(&["copy"], &whole);
    to.refuses_stream(&["copy"], &c, &["no snapshot with the content"]);

    // A host uses it.
    {
        let host = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000c002";
        let _host = Load::start(&to.pool, &to.pool.subsystem(), host);
        to.refuses_stream(&["copy"], &b, &["volume 'copy' is in use", host]);
    }
    wait_for("the host to be gone", || {
        to.pool.status()["hosts"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    // Somebody has written to it. That stays, and hosts still see it.
    let mut written = first.clone();
    written[3 * MIB..][..4096].fill(1);
    to.set("copy", &written);
    to.refuses_stream(
        &["copy"],
        &b,
        &[
            "changed since its snapshot 'copy@a'",
            "onefold snapshot rollback copy@a",
        ],
    );
    assert!(to.content("copy") == written && to.is_seen("copy"));
    to.does(&["snapshot", "rollback", "copy@a", "--yes"]);
    // Its size counts.
    to.does(&["volume", "resize", "copy", "--size", "8M"]);
    to.refuses_stream(&["copy"], &b, &["changed since"]);
    to.does(&["snapshot", "rollback", "copy@a", "--yes"]);
    // Its name is taken.
    to.does(&["snapshot", "create", "copy@b"]);
    to.refuses_stream(
        &["copy"],
        &b,
        &["another snapshot 'copy@b'", "snapshot delete copy@b"],
    );
    to.does(&["snapshot", "delete", "copy@b", "--yes"]);
    to.receives(&["copy"], &b);
    assert!(to.content("copy") == second);
    to.refuses_stream(&["copy"], &b, &["is there already"]);
    to.receives(&["copy"], &c);
    assert!(to.content("copy") == third && to.content("copy@b") == second);

    // What names a content goes with the snapshot.
    to.does(&["snapshot", "delete", "copy@c", "--yes"]);
    to.does(&["snapshot", "rollback", "copy@b", "--yes"]);
    to.receives(&["copy"], &c);
    from.ends();
    to.ends();
}

#[test]
fn a_daemon_that_is_killed_in_the_middle_goes_on_with_the_stream_or_gives_it_up() {
    let (from, to) = (Side::new(), Side::new());
    let before = noise(12, 16 * MIB);
    let mut after = noise(13, 20 * MIB);
    after.copy_within(0..MIB, 10 * MIB);
    from.set("vm1", &before);
    from.does(&["snapshot", "create", "vm1@a"]);
    from.set("vm1", &after);
    from.does(&["snapshot", "create", "vm1@b"]);
    let (whole, _) = from.send(&["vm1@a"]);
    let (changes, _) = from.send(&["vm1@b", "--from", "a"]);

    // Of a new volume.
    let bytes = fs::read(&whole).expect("a stream");
    let child = to.receive_from_pipe(&["copy"], &bytes[..9 * MIB]);
    assert_eq!(to.part_of("copy"), 8 * MIB as u64);
    to.hides("copy");
    let to = to.restarted();
    let output = child.wait_with_output().expect("it ends");
    let errors = text_of(&output);
    assert!(
        !output.status.success() && errors.contains("--resume"),
        "{errors}"
    );
    to.hides("copy");
    let report = to.receives(&["copy", "--resume", "--json"], &whole);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["resumed_at_bytes"], 8 * MIB, "{report}");
    assert!(to.content("copy") == before && to.content("copy@a") == before);

    // Of changes, which are given up, received again, killed again, and whole in the end.
    let bytes = fs::read(&changes).expect("a stream");
    let half = &bytes[..12 * MIB];
    let child = to.receive_from_pipe(&["copy"], half);
    to.part_of("copy");
    let to = to.restarted();
    drop(child.wait_with_output());
    to.hides("copy");
    assert!(to.content("copy@a") == before);
    // Without it the changes could neither go on nor be given up.
    to.refuses(
        &["snapshot", "delete", "copy@a", "--yes"],
        &["receive copy --resume", "snapshot rollback copy@a"],
    );
    to.does(&["snapshot", "rollback", "copy@a", "--yes"]);
    assert!(to.content("copy") == before && to.is_seen("copy"));
    to.refuses_stream(&["copy", "--resume"], &changes, &["it is whole"]);

    let child = to.receive_from_pipe(&["copy"], half);
    to.part_of("copy");
    let to = to.restarted();
    drop(child.wait_with_output());
    // Ctrl-C of who resumes it, behind what came before.
    let mut child = to.receive_from_pipe(&["copy", "--resume"], &bytes[..16 * MIB]);
    // Open until the program has ended: the end of the stream would be another reason to stop.
    let pipe = child.stdin.take();
    wait_for("more of the stream to be durable", || {
        to.view("copy")["import"]["done_bytes"].as_u64() > Some(13 * MIB as u64)
    });
    let told = to.does(&["volume", "show", "copy"]);
    assert!(told.contains("of its snapshot 'b' are there"), "{told}");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it lives");
    let output = child.wait_with_output().expect("it ends");
    drop(pipe);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("snapshot rollback copy@a"), "{errors}");
    to.hides("copy");
    to.receives(&["copy", "--resume"], &changes);
    assert!(to.content("copy") == after && to.content("copy@b") == after);
    assert!(to.content("copy@a") == before);
    from.ends();
    to.ends();
}

#[test]
fn changes_go_on_from_pool_to_pool_and_come_back() {
    let (a, b, c) = (Side::new(), Side::new(), Side::new());
    let mut content = noise(14, 2 * MIB);
    a.set("vm1", &content);
    a.does(&["snapshot", "create", "vm1@1"]);
    let (stream, _) = a.send(&["vm1@1"]);
    b.receives(&["vm1"], &stream);
    let (stream, _) = b.send(&["vm1@1"]);
    c.receives(&["moved"], &stream);
    let id = a.snapshot("vm1@1")["content"].clone();
    assert_eq!(b.snapshot("vm1@1")["content"], id);
    assert_eq!(c.snapshot("moved@1")["content"], id);
    // What is written there comes back to where it began, though nothing came from there.
    content[MIB..].copy_from_slice(&noise(15, MIB));
    c.set("moved", &content);
    c.does(&["snapshot", "create", "moved@2"]);
    let c = c.restarted();
    assert_eq!(c.snapshot("moved@1")["content"], id, "after a restart too");
    let (stream, sent) = c.send(&["moved@2", "--from", "1"]);
    assert_eq!(sent["data_bytes"], MIB, "{sent}");
    a.receives(&["vm1"], &stream);
    assert!(a.content("vm1") == content);
    // And on to the second one, from the first.
    let (stream, _) = a.send(&["vm1@2", "--from", "1"]);
    b.receives(&["vm1"], &stream);
    assert!(b.content("vm1") == content);
    let ids = [&a, &b].map(|side| side.snapshot("vm1@2")["content"].clone());
    assert_eq!(
        ids,
        [c.snapshot("moved@2")["content"].clone(), ids[0].clone()]
    );
    a.ends();
    b.ends();
    c.ends();
}
