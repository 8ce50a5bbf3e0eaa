//! Images of disks on their way into volumes and out of them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::text_of;

use crate::harness::{Load, NQN, Pool, fails, json, onefold, succeeds, wait_for};

const MIB: u64 = 1 << 20;

/// A pool with a folder for images beside it.
struct Story {
    pool: Pool,
    folder: tempfile::TempDir,
}

impl Story {
    fn new() -> Self {
        Self {
            pool: Pool::new(),
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The words of `onefold volume ...` about this pool.
    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [&["volume"], words, &["--pool", self.pool.dir()]].concat()
    }

    #[track_caller]
    fn volume(&self, words: &[&str]) -> String {
        succeeds(&self.words(words))
    }

    #[track_caller]
    fn refuses(&self, words: &[&str], code: i32, why: &[&str]) {
        fails(&self.words(words), code, why);
    }

    #[track_caller]
    fn view(&self, name: &str) -> Value {
        json(&self.words(&["show", name, "--json"]))
    }

    /// `onefold volume import ... -`, with its standard input.
    fn import_from_pipe(&self, words: &[&str]) -> Child {
        Command::new(onefold())
            .args(self.words(&[&["import"], words].concat()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }

    /// What a volume holds, by an export.
    #[track_caller]
    fn content(&self, name: &str) -> Vec<u8> {
        let output = Command::new(onefold())
            .args(self.words(&["export", name, "-"]))
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{}", text_of(&output));
        output.stdout
    }

    /// Whether hosts see a volume that they could write to.
    fn is_seen(&self, name: &str) -> bool {
        let uuid = self.view(name)["uuid"].as_str().expect("text").to_owned();
        let nsid = self.view(name)["nsid"].to_string();
        let subsystem = self.pool.subsystem();
        let read = [
            "perf", &subsystem, "--nsid", &nsid, "--rw", "read", "--size", "4k", "--json",
        ];
        let seen = crate::harness::run(&read).status.success();
        assert!(!uuid.is_empty());
        seen
    }
}

/// Noise that is the same for the same seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
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

/// A sparse file of that many bytes, with noise at these places.
fn sparse(path: &Path, bytes: u64, data: &[(u64, usize)]) -> Vec<u8> {
    let file = File::create(path).expect("a file");
    file.set_len(bytes).expect("a length");
    let mut content = vec![0; bytes as usize];
    for (seed, (at, len)) in data.iter().enumerate() {
        let noise = noise(seed as u64 + 7, *len);
        file.write_all_at(&noise, *at).expect("a write");
        content[*at as usize..][..*len].copy_from_slice(&noise);
    }
    content
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[track_caller]
fn ended(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

#[test]
fn an_image_comes_in_sparse_and_goes_out_as_it_was() {
    let story = Story::new();
    let daemon = story.pool.create();
    let (image, out) = (story.file("disk.raw"), story.file("out.raw"));
    let content = sparse(&image, 100 * MIB, &[(0, 3 << 20), (50 * MIB + 512, 70_000)]);
    let imported = json(&story.words(&["import", "vm1", text(&image), "--json"]));
    assert_eq!(imported["image_bytes"], 100 * MIB, "{imported}");
    let sent = imported["sent_bytes"].as_u64().expect("a number");
    assert!(
        (3 * MIB..4 * MIB).contains(&sent),
        "holes are not sent: {imported}"
    );
    let view = story.view("vm1");
    assert_eq!(view["size_bytes"], 100 * MIB, "{view}");
    assert_eq!(
        (&view["lba_bytes"], &view["import"]),
        (&Value::from(4096), &Value::Null)
    );
    assert!(view["logical_bytes"].as_u64() < Some(4 * MIB), "{view}");
    assert!(story.is_seen("vm1"));

    story.volume(&["export", "vm1", text(&out)]);
    assert!(fs::read(&out).expect("a file") == content);
    let blocks = fs::metadata(&out).expect("a file").blocks();
    assert!(blocks * 512 < 5 * MIB, "it has holes: {blocks} blocks");
    assert!(story.content("vm1") == content);
    story.refuses(
        &["export", "vm1", text(&out)],
        65,
        &["exists already", "--overwrite"],
    );
    story.volume(&["export", "vm1", text(&out), "--overwrite"]);
    assert!(fs::read(&out).expect("a file") == content);
    let left = fs::read_dir(story.folder.path()).expect("a folder");
    assert_eq!(left.count(), 2, "no partial file is left");

    // The same image again takes no room.
    let used = story.pool.figure("used_bytes");
    story.volume(&["import", "vm2", text(&image)]);
    assert_eq!(story.pool.figure("used_bytes"), used);
    assert!(story.content("vm2") == content);
    daemon.stop(Signal::TERM);
    story.pool.is_consistent();
}

#[test]
fn an_image_comes_through_a_pipe_and_its_volume_is_as_long_as_it() {
    let story = Story::new();
    let _daemon = story.pool.create();
    let content = noise(3, 9_000_001);
    let mut import = story.import_from_pipe(&["vm1", "-", "--subsystem", "none"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    pipe.write_all(&content).expect("it reads");
    drop(pipe);
    let output = ended(import);
    assert!(output.status.success(), "{}", text_of(&output));
    let size = content.len().next_multiple_of(4096);
    let view = story.view("vm1");
    assert_eq!(
        (&view["size_bytes"], &view["nsid"]),
        (&Value::from(size), &Value::Null)
    );
    let out = story.content("vm1");
    assert!(out[..content.len()] == content && out[content.len()..].iter().all(|byte| *byte == 0));

    // A longer image than the size that was given.
    let mut import = story.import_from_pipe(&["vm2", "-", "--size", "8M"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    let _ = pipe.write_all(&content);
    drop(pipe);
    let output = ended(import);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    assert!(errors.contains("larger than volume 'vm2'"), "{errors}");
    assert!(!story.is_seen("vm2"));
}

#[test]
fn a_volume_gets_the_blocks_that_the_partition_table_of_its_image_was_made_for() {
    let story = Story::new();
    let _daemon = story.pool.create();
    for (name, lba, script) in [
        ("gpt512", "512", "g\nn\n\n\n\nw\n"),
        ("gpt4096", "4096", "g\nn\n\n\n\nw\n"),
        ("mbr", "512", "o\nn\np\n1\n\n\nw\n"),
    ] {
        let image = story.file(name);
        sparse(&image, 16 * MIB, &[]);
        let mut fdisk = Command::new("fdisk");
        let fdisk = fdisk.args(["--sector-size", lba, text(&image)]);
        let fdisk = fdisk.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut fdisk = fdisk.expect("fdisk is installed (test.sh does that)");
        let mut pipe = fdisk.stdin.take().expect("a pipe");
        pipe.write_all(script.as_bytes()).expect("it reads");
        drop(pipe);
        assert!(fdisk.wait().expect("it ends").success(), "{name}");
        let said = story.volume(&["import", name, text(&image)]);
        assert!(
            said.contains(&format!("made for {lba}-byte blocks")),
            "{said}"
        );
        assert_eq!(story.view(name)["lba_bytes"].to_string(), lba);
    }
    let (small, large) = (story.file("gpt512"), story.file("gpt4096"));
    let forced = story.words(&["import", "forced", text(&small), "--lba", "4096"]);
    let output = crate::harness::run(&forced);
    assert!(output.status.success());
    let warned = text_of(&output);
    assert!(warned.contains("nothing boots from it"), "{warned}");

    // Into a volume that exists.
    let over = ["import", "gpt512", text(&large)];
    story.refuses(&over, 65, &["there is one of that name already"]);
    let over = [&over[..], &["--overwrite"]].concat();
    story.refuses(&over, 65, &["blocks of 512 bytes", "--lba 512"]);
    story.volume(&[&over[..], &["--lba", "512"]].concat());
    assert!(story.content("gpt512") == fs::read(&large).expect("a file"));
}

#[test]
fn an_image_replaces_the_content_of_a_volume_that_nobody_uses() {
    let story = Story::new();
    let _daemon = story.pool.create();
    let (first, second) = (story.file("first"), story.file("second"));
    sparse(&first, 8 * MIB, &[(0, 8 << 20)]);
    let content = sparse(&second, 6 * MIB, &[(MIB, 1 << 20)]);
    story.volume(&["import", "vm1", text(&first)]);
    let over = ["import", "vm1", text(&second), "--overwrite"];
    {
        let host = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000c001";
        let _host = Load::start(&story.pool, &story.pool.subsystem(), host);
        story.refuses(&over, 65, &["volume 'vm1' is in use", host]);
    }
    wait_for("the host to be gone", || {
        let status = story.pool.status();
        status["hosts"].as_array().is_some_and(Vec::is_empty)
    });
    let protect = |to: &str| {
        let dir = story.pool.dir();
        let set = [
            "namespace",
            "set",
            NQN,
            "2",
            "--write-protect",
            to,
            "--pool",
            dir,
        ];
        succeeds(&set);
    };
    protect("on");
    story.refuses(&over, 65, &["write protected"]);
    protect("off");
    story.volume(&over);
    let out = story.content("vm1");
    assert!(
        out[..content.len()] == content,
        "what is not in the image is zeros"
    );
    assert!(out[content.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(story.view("vm1")["size_bytes"], 8 * MIB);
    let large = story.file("large");
    sparse(&large, 9 * MIB, &[]);
    let over = ["import", "vm1", text(&large), "--overwrite"];
    story.refuses(&over, 65, &["larger than volume 'vm1'"]);
    assert!(story.content("vm1") == out);
    // A snapshot is never written over, and goes out as a volume does.
    let dir = story.pool.dir();
    succeeds(&["snapshot", "create", "vm1@kept", "--pool", dir]);
    let over = ["import", "vm1@kept", text(&first), "--overwrite"];
    story.refuses(&over, 65, &["'vm1@kept' is a snapshot"]);
    story.volume(&["import", "vm1", text(&first), "--overwrite"]);
    assert!(story.content("vm1") != out);
    assert!(story.content("vm1@kept") == out);
}

#[test]
fn an_interrupted_export_leaves_no_part_of_a_file() {
    let story = Story::new();
    let daemon = story.pool.create();
    let (image, out) = (story.file("disk.raw"), story.file("out.raw"));
    fs::write(&image, noise(8, 256 << 20)).expect("a file");
    story.volume(&["import", "vm1", text(&image)]);
    let export = Command::new(onefold())
        .args(story.words(&["export", "vm1", text(&out)]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let partial = story.file("out.raw.partial");
    wait_for("a part of the file to be there", || partial.exists());
    kill_process(Pid::from_child(&export), Signal::INT).expect("it lives");
    let output = ended(export);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("Interrupted"), "{errors}");
    assert!(!partial.exists() && !out.exists(), "{errors}");
    let tasks = json(&["task", "list", "--json", "--pool", story.pool.dir()]);
    assert!(tasks.to_string().contains("interrupted"), "{tasks}");
    // Nothing is in the way of the next one.
    story.volume(&["export", "vm1", text(&out)]);
    assert!(fs::read(&out).expect("a file") == fs::read(&image).expect("a file"));
    daemon.stop(Signal::TERM);
}

#[test]
fn an_interrupted_import_leaves_a_volume_that_nobody_takes_for_whole_and_goes_on() {
    let story = Story::new();
    let daemon = story.pool.create();
    let content = noise(5, 24 << 20);
    let image = story.file("disk.raw");
    fs::write(&image, &content).expect("a file");
    // A pipe whose writer stops in the middle: nothing ends by itself.
    let mut import = story.import_from_pipe(&["vm1", "-", "--size", "24M"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    pipe.write_all(&content[..13 << 20]).expect("it reads");
    wait_for("a part of the image to be there", || {
        story.view("vm1")["logical_bytes"] == 12 * MIB
    });
    assert!(!story.is_seen("vm1"), "nobody sees a part of an image");
    kill_process(Pid::from_child(&import), Signal::INT).expect("it lives");
    let output = ended(import);
    drop(pipe);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(
        errors.contains("--resume") && errors.contains("volume delete vm1"),
        "{errors}"
    );

    let is_half = || {
        let done = story.view("vm1")["import"]["done_bytes"].as_u64();
        assert!(done > Some(0) && done <= Some(12 * MIB), "{done:?}");
        assert!(!story.is_seen("vm1"));
        story.refuses(&["export", "vm1", "-"], 65, &["only a part of an image"]);
        story.refuses(
            &["resize", "vm1", "--size", "1G"],
            65,
            &["only a part of an image"],
        );
        let dir = story.pool.dir();
        let attach = ["namespace", "attach", NQN, "vm1", "--pool", dir];
        fails(&attach, 65, &["only a part of an image"]);
        // What came from it would look whole.
        story.refuses(&["clone", "vm1", "vm2"], 65, &["only a part of an image"]);
        let snapshot = ["snapshot", "create", "vm1@half", "--pool", dir];
        fails(&snapshot, 65, &["only a part of an image"]);
        let shown = story.volume(&["show", "vm1"]);
        assert!(shown.contains("no host sees it"), "{shown}");
    };
    is_half();
    daemon.kill();
    let daemon = story.pool.serve(&[]);
    is_half();

    // It goes on with the same image, and with no other.
    let resume = ["import", "vm1", text(&image), "--resume"];
    story.refuses(&resume, 65, &["another image"]);
    let mut import = story.import_from_pipe(&["vm1", "-", "--resume", "--json"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    pipe.write_all(&content).expect("it reads");
    drop(pipe);
    let output = ended(import);
    assert!(output.status.success(), "{}", text_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (at, sent) = (&report["resumed_at_bytes"], &report["sent_bytes"]);
    let (at, sent) = (
        at.as_u64().expect("a number"),
        sent.as_u64().expect("a number"),
    );
    assert_eq!(at + sent, 24 * MIB, "what was durable is not sent again");
    assert!(at > 0);
    assert!(story.content("vm1") == content);
    assert!(story.is_seen("vm1"));
    story.refuses(&resume, 65, &["it is whole"]);
    daemon.stop(Signal::TERM);
    story.pool.is_consistent();
}

#[test]
fn an_import_that_fails_in_the_middle_says_what_to_do() {
    let story = Story::new();
    let daemon = story.pool.create();
    // More than the pool has room for.
    let mut import = story.import_from_pipe(&["vm1", "-", "--size", "4G"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    let mut written = 0;
    while written < 3 << 10 && pipe.write_all(&noise(written + 100, 1 << 20)).is_ok() {
        written += 1;
    }
    drop(pipe);
    let output = ended(import);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(73), "{errors}");
    assert!(
        errors.contains("only a part of the image") && errors.contains("--resume"),
        "{errors}"
    );
    assert!(!story.is_seen("vm1"));
    story.volume(&["delete", "vm1", "--yes"]);
    wait_for("its room to be free again", || {
        story.pool.status()["pool"]["free_bytes"].as_u64() > Some(64 * MIB)
    });

    // The daemon ends.
    let mut import = story.import_from_pipe(&["vm2", "-", "--size", "1G"]);
    let mut pipe = import.stdin.take().expect("a pipe");
    pipe.write_all(&noise(1, 12 << 20)).expect("it reads");
    wait_for("a part of the image to be there", || {
        story.view("vm2")["logical_bytes"].as_u64() >= Some(MIB)
    });
    daemon.kill();
    let _ = pipe.write_all(&noise(2, 32 << 20));
    drop(pipe);
    let output = ended(import);
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(69), "{errors}");
    assert!(errors.contains("only a part of the image"), "{errors}");
    let _daemon = story.pool.serve(&[]);
    assert_eq!(story.view("vm2")["import"]["image"], "stream");
    story.volume(&["delete", "vm2", "--yes"]);
}

#[test]
fn an_image_of_qemu_comes_in_and_one_that_lies_does_not() {
    let story = Story::new();
    let _daemon = story.pool.create();
    let (raw, image) = (story.file("disk.raw"), story.file("disk.qcow2"));
    let content = sparse(&raw, 64 * MIB, &[(0, 5 << 20), (30 * MIB, 100_000)]);
    let qemu_img = |words: &[&str]| {
        let output = Command::new("qemu-img").args(words).output();
        let output = output.expect("qemu-img is installed (test.sh does that)");
        assert!(output.status.success(), "{}", text_of(&output));
    };
    for format in ["qcow2", "vdi", "vhdx", "vmdk"] {
        let image = story.file(&format!("disk.{format}"));
        qemu_img(&[
            "convert",
            "-f",
            "raw",
            "-O",
            format,
            text(&raw),
            text(&image),
        ]);
        story.volume(&["import", format, text(&image)]);
        let found = story.content(format);
        assert!(found[..content.len()] == content, "{format}");
        assert!(story.view(format)["logical_bytes"].as_u64() < Some(6 * MIB));
    }
    // Taken as it is, it is the file's bytes.
    story.volume(&["import", "bytes", text(&image), "--format", "raw"]);
    let bytes = fs::read(&image).expect("a file");
    assert!(story.content("bytes")[..bytes.len()] == bytes);

    let secret = story.file("secret");
    fs::write(&secret, noise(9, 1 << 20)).expect("a file");
    let backed = story.file("backed.qcow2");
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-b",
        text(&secret),
        "-F",
        "raw",
        text(&backed),
    ]);
    let import = ["import", "stolen", text(&backed)];
    story.refuses(
        &import,
        65,
        &["has a backing file", text(&secret), "--backing"],
    );
    story.refuses(&["show", "stolen"], 66, &[]);
    story.volume(&[&import[..], &["--backing"]].concat());
    assert!(story.content("stolen") == fs::read(&secret).expect("a file"));

    let external = story.file("external.qcow2");
    let option = format!("data_file={}", text(&story.file("data")));
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        &option,
        text(&external),
        "1M",
    ]);
    story.refuses(
        &["import", "x", text(&external)],
        65,
        &["keeps its data in another file"],
    );

    // Its end is missing: QEMU would read zeros there.
    let cut = story.file("cut.qcow2");
    fs::write(&cut, &bytes[..bytes.len() / 2]).expect("a file");
    story.refuses(&["import", "x", text(&cut)], 65, &["cut.qcow2", "damaged"]);
    // It says that it is larger than anything can be.
    let mut vast = bytes.clone();
    vast[24..32].copy_from_slice(&(u64::MAX >> 1).to_be_bytes());
    let path = story.file("vast.qcow2");
    fs::write(&path, &vast).expect("a file");
    story.refuses(&["import", "x", text(&path)], 65, &["vast.qcow2"]);
    fs::write(&path, &bytes[..40]).expect("a file");
    story.refuses(&["import", "x", text(&path)], 65, &["vast.qcow2"]);
    story.refuses(&["show", "x"], 66, &[]);

    // Without QEMU's tools it says what to install.
    let mut bare = Command::new(onefold());
    let bare = bare
        .args(story.words(&["import", "x", text(&image)]))
        .env("PATH", "/nowhere");
    let output = bare.output().expect("the program starts");
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    assert!(errors.contains("apt-get install qemu-utils"), "{errors}");
}

#[test]
fn what_is_no_image_and_what_is_no_place_for_one_is_named() {
    let story = Story::new();
    let _daemon = story.pool.create();
    let missing = story.file("missing");
    story.refuses(
        &["import", "x", text(&missing)],
        66,
        &["there is no file", "missing"],
    );
    story.refuses(
        &["import", "x", text(story.folder.path())],
        65,
        &["is no image"],
    );
    let image = story.file("disk.raw");
    sparse(&image, MIB, &[(0, 100)]);
    let small = ["import", "x", text(&image), "--size", "512k"];
    story.refuses(&small, 65, &["no room", "--size"]);
    story.volume(&["import", "x", text(&image)]);
    let nowhere = story.file("none/out.raw");
    story.refuses(&["export", "x", text(&nowhere)], 65, &["none/out.raw"]);
    story.refuses(&["export", "y", "-"], 66, &["there is no volume 'y'"]);
    // Who reads the image goes away.
    let mut export = Command::new(onefold())
        .args(story.words(&["export", "x", "-"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = export.stdout.take().expect("a pipe");
    pipe.read_exact(&mut [0; 10]).expect("ten bytes");
    drop(pipe);
    let errors = text_of(&ended(export));
    assert!(
        errors.contains("closed before the image was whole"),
        "{errors}"
    );
}

#[test]
fn the_pool_that_has_an_images_content_already_is_found_before_the_image_is_placed() {
    let (one, other) = (Story::new(), Story::new());
    let _daemons = [one.pool.create(), other.pool.create()];
    let image = one.file("image.raw");
    // Half of it is known to one pool, a quarter to the other one, and holes are nobody's.
    let (common, few) = (noise(1, 2 << 20), noise(2, 1 << 20));
    let all = [&common[..], &few, &noise(3, 1 << 20)].concat();
    fs::write(&image, &all).expect("a file");
    File::options()
        .write(true)
        .open(&image)
        .and_then(|file| file.set_len(8 * MIB))
        .expect("a hole");
    let image = text(&image);
    for (story, content) in [(&one, &common), (&other, &few)] {
        let known = story.file("known.raw");
        fs::write(&known, content).expect("a file");
        story.volume(&["import", "known", text(&known), "--domain", "vms"]);
    }
    let pools = [one.pool.dir(), other.pool.dir()];
    let estimate = |domain: &str| {
        let words = [
            "estimate",
            image,
            "--against",
            pools[0],
            "--against",
            pools[1],
            "--json",
        ];
        let told = json(&[&words[..], &["--domain", domain]].concat());
        let against = told["against"].as_array().expect("a list").clone();
        let named = against
            .iter()
            .map(|one| one["pool"].as_str().expect("a folder").to_owned());
        assert_eq!(named.collect::<Vec<_>>(), pools);
        let known = against
            .iter()
            .map(|one| one["known"].as_f64().expect("a part"));
        known.collect::<Vec<_>>()
    };
    assert_eq!(estimate("vms"), [0.5, 0.25]);
    assert_eq!(
        estimate("another"),
        [0.0, 0.0],
        "nobody learns what another domain has"
    );
    let shown = succeeds(&["estimate", image, "--against", pools[0], "--domain", "vms"]);
    assert!(
        shown.contains("50.0 %") && shown.contains("by a sample of 1024"),
        "{shown}"
    );
    let nowhere = one.file("nowhere");
    fails(
        &["estimate", image, "--against", text(&nowhere)],
        69,
        &["nowhere"],
    );
    fails(&["estimate", image, "--domain", "vms"], 64, &["--against"]);
}
