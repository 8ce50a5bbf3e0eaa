//! Real machines whose system lies on clones of one imported image of Debian.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::lab::{Guest, GuestSpec, Network, TARGET_V4, cache, folder, steadily};

const MINUTE: Duration = Duration::from_secs(60);
const CLONES: usize = 50;

/// What a command that succeeds prints.
fn tell(pool: &Path, words: &[&str]) -> String {
    let pool = pool.to_str().expect("a folder's name");
    let output = onefold(&[words, &["--pool", pool]].concat());
    assert!(output.status.success(), "{words:?}: {}", text_of(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn json(pool: &Path, words: &[&str]) -> Value {
    let text = tell(pool, &[words, &["--json"]].concat());
    serde_json::from_str(&text).expect("JSON")
}

/// A Debian that runs the story `clone_system.sh`, as a file.
fn debian_image(folder: &Path) -> PathBuf {
    let image = folder.join("debian.img");
    let root = cache().join("debian.root");
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-L", "golden", "-d"])
        .args([&root, &image])
        .arg("1G")
        .output()
        .expect("mke2fs runs");
    assert!(made.status.success(), "mke2fs: {}", text_of(&made));
    image
}

/// Boots a machine, cuts its power while it writes, and boots it again.
fn boots_twice(network: &Network, script: &Path, arguments: &[&str], disks: &[PathBuf]) {
    let spec = GuestSpec {
        name: arguments[0],
        kernel: "6.12",
        number: 0,
        cpus: 1,
        story: "boot_clone",
        arguments,
        limit_seconds: 900,
        files: &[script.to_owned()],
    };
    let mut guest = Guest::start_with_disks(network, &spec, disks);
    guest.await_signal("written", 10 * MINUTE);
    println!("{}", guest.console());
    guest.kill();
    let guest = Guest::start_with_disks(network, &spec, disks);
    println!("{}", guest.finish(10 * MINUTE));
}

#[test]
#[ignore = "boots guests: ./test.sh prepares the lab and runs it"]
fn machines_boot_from_clones_of_one_image_and_boot_again_after_their_power_was_cut() {
    steadily(|| {
        let work = tempfile::tempdir().expect("a folder");
        let pool = work.path().join("pool");
        let image = debian_image(work.path());
        // The image's service runs what has this name.
        let script = work.path().join("package.sh");
        let story = folder().join("stories/clone_system.sh");
        fs::copy(story, &script).expect("a copy");

        let network = Network::new(1, 1500);
        let [rdma, tcp] = ["rdma", "tcp"].map(|kind| format!("{kind}://{TARGET_V4}:4420"));
        let more = ["--create", "8G", "--listen", &rdma, "--listen", &tcp];
        let daemon = Daemon::start(&pool, Some(network.name()), &more);
        let image = image.to_str().expect("text");
        tell(&pool, &["volume", "import", "golden", image]);
        let names: Vec<String> = (1..=CLONES).map(|at| format!("vm-{at:03}")).collect();
        let words: Vec<&str> = ["volume", "clone", "golden"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        let began = Instant::now();
        tell(&pool, &words);
        println!("{CLONES} clones took {:?}", began.elapsed());

        let socket = work.path().join("vm-001.sock");
        let place = socket.display().to_string();
        tell(&pool, &["export", "create", "vm-001", "--vhost", &place]);
        boots_twice(&network, &script, &["vhost"], &[socket]);
        tell(&pool, &["export", "delete", &place, "--yes"]);
        for (transport, name) in [("tcp", "vm-002"), ("rdma", "vm-003")] {
            let view = json(&pool, &["volume", "show", name]);
            let nsid = view["nsid"].to_string();
            boots_twice(&network, &script, &[transport, TARGET_V4, &nsid], &[]);
        }

        // What machines wrote is their own: the image and the other clones are what they were.
        let changed = |name: &str| {
            let found = json(&pool, &["volume", "diff", "golden", name]);
            found["changed_bytes"].as_u64().expect("a number")
        };
        for name in &names[..3] {
            assert!(changed(name) > 8 << 20, "{name}: {}", changed(name));
        }
        assert_eq!(changed("vm-004"), 0);
        daemon.stop();
        assert_consistent(&pool);
    });
}
