//! Snapshots on their way to a pool that answers what it has already.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tests::daemon::text_of;

use crate::harness::{json, onefold};
use crate::streams::{MIB, Side, noise};

/// `onefold receive` on a side, as a shell command; what it tells people goes to a file.
fn receiving(side: &Side, words: &[&str]) -> String {
    let words = side.pool.on(&[&["receive"], words].concat());
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let told = side.file("told");
    format!("{} {} 2>{}", onefold(), words.join(" "), told.display())
}

impl Side {
    fn told(&self) -> String {
        fs::read_to_string(self.file("told")).unwrap_or_default()
    }

    /// `onefold send --through` a command.
    fn sends_through(&self, words: &[&str], command: &str) -> Output {
        Command::new(onefold())
            .args(
                self.pool
                    .on(&[&["send", "--json", "--through", command], words].concat()),
            )
            .stdin(Stdio::null())
            .output()
            .expect("the program starts")
    }

    /// The report of one that went well.
    #[track_caller]
    fn sent_through(&self, words: &[&str], command: &str, to: &Side) -> Value {
        let output = self.sends_through(words, command);
        assert!(output.status.success(), "{}{}", text_of(&output), to.told());
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    #[track_caller]
    fn sends_in_vain(&self, words: &[&str], command: &str, code: i32, why: &[&str]) -> String {
        let output = self.sends_through(words, command);
        let errors = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        for word in why {
            assert!(errors.contains(word), "'{word}' is not in: {errors}");
        }
        errors
    }
}

fn number(report: &Value, name: &str) -> usize {
    report[name].as_u64().expect("a number") as usize
}

/// Passes on so many bytes, each as soon as it comes: who waits for an answer sends no more to fill a buffer.
fn first(bytes: usize) -> String {
    format!("dd bs=1 count={bytes} status=none")
}

/// A script that a sender runs as the receiver, and that the shell may change on its way.
fn script(side: &Side, text: &str) -> String {
    let path = side.file("script");
    fs::write(&path, text).expect("a file");
    format!("sh {}", path.display())
}

#[test]
fn what_the_other_side_has_in_a_volume_that_it_named_does_not_travel() {
    let (from, to) = (Side::new(), Side::new());
    let golden = noise(21, 16 * MIB);
    to.set("golden", &golden);
    // Not all of it, in other places, some of it twice, and some that is new.
    let new = noise(22, 2 * MIB);
    let content = [
        &vec![0; MIB][..],
        &golden[4 * MIB..],
        &new,
        &golden[4096..MIB],
    ]
    .concat();
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    let report = from.sent_through(
        &["vm1@s"],
        &receiving(&to, &["copy", "--like", "golden"]),
        &to,
    );
    assert_eq!(number(&report, "data_bytes"), 2 * MIB, "{report}");
    assert_eq!(number(&report, "known_bytes"), 13 * MIB - 4096, "{report}");
    // Hashes of all that is there, and the data of what is not.
    let stream = number(&report, "stream_bytes");
    assert!(stream < 2 * MIB + MIB / 2, "{report}");
    assert!(to.told().starts_with("received copy@s: "), "{}", to.told());
    assert!(to.content("copy") == content && to.content("copy@s") == content);
    assert!(to.is_seen("copy"));

    // Nobody is asked who has nothing to look in.
    let report = from.sent_through(&["vm1@s"], &receiving(&to, &["plain"]), &to);
    assert_eq!(number(&report, "data_bytes"), 15 * MIB - 4096, "{report}");
    assert!(to.content("plain") == content);

    // Changes, some of which are in the base at another place.
    let mut tuesday = content.clone();
    tuesday[..MIB].copy_from_slice(&golden[8 * MIB..9 * MIB]);
    tuesday[2 * MIB..3 * MIB].copy_from_slice(&noise(23, MIB));
    from.set("vm1", &tuesday);
    from.does(&["snapshot", "create", "vm1@t"]);
    let command = receiving(&to, &["copy", "--like", "copy@s", "--json"]);
    let report = from.sent_through(&["vm1@t", "--from", "s"], &command, &to);
    assert_eq!(number(&report, "data_bytes"), MIB, "{report}");
    assert_eq!(number(&report, "known_bytes"), MIB, "{report}");
    let received: Value = serde_json::from_str(&to.told()).expect("JSON");
    assert_eq!(received["known_bytes"], MIB, "{received}");
    assert!(to.content("copy") == tuesday && to.content("copy@s") == content);
    from.ends();
    to.ends();
}

#[test]
fn with_little_memory_less_is_found_and_what_changed_since_comes_as_data() {
    let (from, to) = (Side::new(), Side::new());
    let content = noise(24, 8 * MIB);
    to.set("golden", &content);
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    // 512 places of 17 bytes, of which seven in eight are taken.
    let command = receiving(&to, &["copy", "--like", "golden", "--memory", "8704"]);
    let report = from.sent_through(&["vm1@s"], &command, &to);
    assert_eq!(number(&report, "known_bytes"), 448 * 4096, "{report}");
    assert!(
        to.told().contains("more contents than fit"),
        "{}",
        to.told()
    );
    assert!(to.content("copy") == content);
    from.ends();
    to.ends();
}

#[test]
fn an_exchange_that_was_cut_off_goes_on_where_it_was() {
    let (from, to) = (Side::new(), Side::new());
    let golden = noise(25, 12 * MIB);
    to.set("golden", &golden);
    let content = [&noise(26, 12 * MIB)[..], &golden].concat();
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    // The first 3 MiB of the stream and not a byte more reach the receiver.
    let copy = receiving(&to, &["copy", "--like", "golden"]);
    let command = script(&from, &format!("{} | {copy}", first(3 * MIB)));
    from.sends_in_vain(&["vm1@s"], &command, 69, &["ended too early"]);
    let told = to.told();
    assert!(told.contains("ends in the middle"), "{told}");
    assert!(told.contains("--through COMMAND` there"), "{told}");
    to.hides("copy");
    let done = to.part_of("copy") as usize;
    assert!(done > 0 && done < 3 * MIB, "{done}");
    // Nobody has to say where it goes on.
    let command = receiving(&to, &["copy", "--resume", "--like", "golden"]);
    let report = from.sent_through(&["vm1@s"], &command, &to);
    assert_eq!(number(&report, "data_bytes"), 12 * MIB - done, "{report}");
    assert_eq!(number(&report, "known_bytes"), 12 * MIB, "{report}");
    assert!(to.content("copy") == content);
    from.ends();
    to.ends();
}

#[test]
fn an_exchange_that_was_changed_on_its_way_is_refused_and_loses_nothing() {
    let (from, to) = (Side::new(), Side::new());
    let golden = noise(29, 4 * MIB);
    to.set("golden", &golden);
    let content = [&golden[..], &noise(30, 8 * MIB)].concat();
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    // Four bytes, in the data and in the first answer's tag.
    let changed = |at| format!("({}; {} >/dev/null; printf ABCD; cat)", first(at), first(4));
    let copy = receiving(&to, &["copy", "--like", "golden"]);
    let command = script(&from, &format!("{} | {copy}", changed(MIB)));
    from.sends_in_vain(&["vm1@s"], &command, 69, &["ended too early"]);
    let told = to.told();
    assert!(told.contains("was changed on the way"), "{told}");
    to.hides("copy");
    let resumed = receiving(&to, &["copy", "--resume", "--like", "golden"]);
    let command = script(&from, &format!("{resumed} | {}", changed(26)));
    let why = &["answer 0 was changed on the way"];
    from.sends_in_vain(&["vm1@s"], &command, 65, why);
    to.hides("copy");
    from.sent_through(&["vm1@s"], &resumed, &to);
    assert!(to.content("copy") == content && to.content("copy@s") == content);
    assert!(to.content("golden") == golden);
    from.ends();
    to.ends();
}

#[test]
fn a_command_that_answers_nonsense_nothing_or_ends_early_is_told_and_leaves_nothing() {
    let from = Side::new();
    from.set("vm1", &noise(27, 2 * MIB));
    from.does(&["snapshot", "create", "vm1@s"]);
    let vm1 = &["vm1@s"][..];
    from.sends_in_vain(vm1, "exit 3", 69, &["`exit 3`", "ended too early", "3"]);
    from.sends_in_vain(vm1, "no-such-command-here", 69, &["ended too early", "127"]);
    from.sends_in_vain(vm1, "echo Welcome", 65, &["begins with", "Welcome"]);
    from.sends_in_vain(vm1, "cat", 65, &["begins with", "onefold stream"]);
    let quick = &["vm1@s", "--answer-timeout", "1"][..];
    from.sends_in_vain(quick, "exec sleep 600", 69, &["answered nothing for 1 s"]);
    from.sends_in_vain(quick, "cat >/dev/null", 69, &["answered nothing for 1 s"]);
    // One that is alive and answers something else than it was asked.
    let tags = "printf 'onefold answers\\0'; printf '\\3\\0\\0\\0\\1\\0\\0\\0x0123456789abcdef'; cat >/dev/null";
    from.sends_in_vain(vm1, tags, 65, &["answer 0 was changed on the way"]);
    // Nothing of it is a running task any more.
    let tasks = json(&from.pool.on(&["task", "list", "--json"]));
    let tasks = tasks.as_array().expect("a list");
    assert!(
        tasks.iter().all(|task| task["state"] != "running"),
        "{tasks:?}"
    );
    from.ends();
}

#[test]
fn a_receiver_says_what_it_needs_of_its_sender() {
    let (from, to) = (Side::new(), Side::new());
    from.set("vm1", &noise(28, MIB));
    from.does(&["snapshot", "create", "vm1@s"]);
    let (stream, _) = from.send(&["vm1@s"]);
    to.refuses_stream(
        &["copy", "--like", "golden"],
        Path::new(&stream),
        &["--through"],
    );
    let command = receiving(&to, &["copy", "--like", "golden"]);
    from.sends_in_vain(&["vm1@s"], &command, 69, &["ended too early"]);
    assert!(
        to.told().contains("no such volume or snapshot"),
        "{}",
        to.told()
    );
    let volumes = json(&to.pool.on(&["volume", "list", "--json"]));
    let mut volumes = volumes.as_array().expect("a list").iter();
    assert!(
        volumes.all(|volume| volume["name"] != "copy"),
        "nothing was begun"
    );
    from.ends();
    to.ends();
}

#[test]
fn pools_that_share_the_key_of_a_domain_leave_out_what_the_other_has_in_any_volume_of_it() {
    let (from, to) = (Side::new(), Side::new());
    let golden = noise(31, 12 * MIB);
    let new = noise(32, MIB);
    let key = from.file("key");
    let key = key.to_str().expect("text");
    from.does(&["pool", "key", "share", "--domain", "vms", key]);
    let mode = fs::metadata(key).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A key replaces no file, and goes nowhere through a link that somebody made.
    let before = fs::read(key).expect("a file");
    let link = from.file("link");
    std::os::unix::fs::symlink(from.file("elsewhere"), &link).expect("a link");
    for taken in [key, link.to_str().expect("text")] {
        let share = &["pool", "key", "share", "--domain", "other", taken];
        from.refuses(share, &["exists already"]);
    }
    assert!(fs::read(key).expect("a file") == before && !from.file("elsewhere").exists());
    let share = &["pool", "key", "share", "--domain", "no name!", "-"];
    from.refuses(share, &["is no name for a domain"]);
    let taken = to.does(&["pool", "key", "take", "--domain", "theirs", key, "--json"]);
    let taken: Value = serde_json::from_str(&taken).expect("JSON");
    assert_eq!(taken["domain"], "theirs");
    // What is there, in a volume that nobody names, and after a restart.
    let image = to.file("image");
    fs::write(&image, &golden).expect("a file");
    let image = image.to_str().expect("text");
    to.does(&["volume", "import", "golden", image, "--domain", "theirs"]);
    let to = to.restarted();
    let content = [&vec![0; MIB][..], &golden[2 * MIB..], &new].concat();
    let image = from.file("image");
    fs::write(&image, &content).expect("a file");
    let image = image.to_str().expect("text");
    from.does(&["volume", "import", "vm1", image, "--domain", "vms"]);
    from.does(&["snapshot", "create", "vm1@s"]);
    let command = receiving(&to, &["copy", "--domain", "theirs"]);
    let used = to.pool.figure("used_bytes");
    let report = from.sent_through(&["vm1@s"], &command, &to);
    assert_eq!(number(&report, "known_bytes"), 10 * MIB, "{report}");
    assert_eq!(number(&report, "data_bytes"), MIB, "{report}");
    assert!(number(&report, "stream_bytes") < MIB + MIB / 2, "{report}");
    assert!(to.content("copy") == content);
    assert_eq!(
        to.pool.figure("used_bytes") - used,
        MIB as u64,
        "it shares blocks"
    );

    // Into another domain, nobody is asked by fingerprints.
    let report = from.sent_through(&["vm1@s"], &receiving(&to, &["other"]), &to);
    assert_eq!(number(&report, "known_bytes"), 0, "{report}");
    assert!(to.content("other") == content);

    // A domain that has volumes keeps its key, and what is no key is told.
    to.refuses(
        &["pool", "key", "take", "--domain", "theirs", key],
        &["golden"],
    );
    to.refuses(
        &["pool", "key", "take", key],
        &["the domain without a name"],
    );
    to.refuses(
        &["pool", "key", "take", "--domain", "x", image],
        &["is no key"],
    );
    from.ends();
    to.ends();
}
