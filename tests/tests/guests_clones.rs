//! Real machines whose system lies on clones of one imported image of Debian.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::lab::{Guest, GuestSpec, Hardware, Network, TARGET_V4, cache, folder, mac_of, steadily};

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

/// A node whose pool has the volume `golden`, with a Debian.
struct Node {
    daemon: Daemon,
    network: Network,
    pool: PathBuf,
    /// What the image's service runs.
    script: PathBuf,
    work: TempDir,
}

impl Node {
    fn new() -> Self {
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
        Self {
            daemon,
            network,
            pool,
            script,
            work,
        }
    }

    /// Boots a machine, cuts its power while it writes, and boots it again.
    fn boots_twice(&self, arguments: &[&str], hardware: &Hardware<'_>) {
        let spec = GuestSpec {
            name: arguments[0],
            kernel: "6.12",
            number: 0,
            cpus: 1,
            story: "boot_clone",
            arguments,
            limit_seconds: 900,
            files: slice::from_ref(&self.script),
        };
        let mut guest = Guest::start_with(&self.network, &spec, hardware);
        guest.await_signal("written", 10 * MINUTE);
        println!("{}", guest.console());
        guest.kill();
        let guest = Guest::start_with(&self.network, &spec, hardware);
        println!("{}", guest.finish(10 * MINUTE));
    }

    /// How much of a volume is not as in the image.
    fn changed_bytes(&self, name: &str) -> u64 {
        let found = json(&self.pool, &["volume", "diff", "golden", name]);
        found["changed_bytes"].as_u64().expect("a number")
    }

    fn stop(self) {
        assert!(self.daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&self.pool);
    }
}

#[test]
#[ignore = "boots guests: ./test.sh prepares the lab and runs it"]
fn machines_boot_from_clones_of_one_image_and_boot_again_after_their_power_was_cut() {
    steadily(|| {
        let node = Node::new();
        let pool = &node.pool;
        let names: Vec<String> = (1..=CLONES).map(|at| format!("vm-{at:03}")).collect();
        let words: Vec<&str> = ["volume", "clone", "golden"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        let began = Instant::now();
        tell(pool, &words);
        println!("{CLONES} clones took {:?}", began.elapsed());

        let socket = node.work.path().join("vm-001.sock");
        let place = socket.display().to_string();
        tell(pool, &["export", "create", "vm-001", "--vhost", &place]);
        let by_vhost = Hardware {
            disks: &[socket],
            ..Hardware::default()
        };
        node.boots_twice(&["vhost"], &by_vhost);
        tell(pool, &["export", "delete", &place, "--yes"]);
        for (transport, name) in [("tcp", "vm-002"), ("rdma", "vm-003")] {
            let view = json(pool, &["volume", "show", name]);
            let nsid = view["nsid"].to_string();
            node.boots_twice(&[transport, TARGET_V4, &nsid], &Hardware::default());
        }

        // What machines wrote is their own: the image and the other clones are what they were.
        for name in &names[..3] {
            let changed = node.changed_bytes(name);
            assert!(changed > 8 << 20, "{name}: {changed}");
        }
        assert_eq!(node.changed_bytes("vm-004"), 0);
        node.stop();
    });
}

/// Only a host of this name may use the volume, and the table alone tells the machine that name, its address, and where
/// the volume is.
#[test]
#[ignore = "boots guests: ./test.sh prepares the lab and runs it"]
fn a_machine_boots_from_the_volume_that_its_firmwares_table_names() {
    const SUBSYSTEM: &str = "nqn.2026-11.org.example:booting";
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:7a2c4f10-6d3b-4e58-9b1a-20c35e81f6d4";
    steadily(|| {
        let node = Node::new();
        let pool = &node.pool;
        tell(pool, &["volume", "clone", "golden", "booting"]);
        tell(pool, &["subsystem", "create", SUBSYSTEM, "--host", HOST]);
        tell(
            pool,
            &["namespace", "attach", SUBSYSTEM, "booting", "--move"],
        );
        let table = node.work.path().join("booting.nbft");
        let file = table.to_str().expect("text");
        let nic = format!("{}=10.77.0.77/24", mac_of("nbft"));
        let words = [
            "volume", "nbft", "booting", file, "--host", HOST, "--nic", &nic,
        ];
        println!("{}", tell(pool, &words));
        let view = json(pool, &["volume", "show", "booting"]);
        let uuid = view["uuid"].as_str().expect("a UUID");
        let with_table = Hardware {
            acpi_table: Some(&table),
            ..Hardware::default()
        };
        node.boots_twice(&["nbft", uuid], &with_table);
        let changed = node.changed_bytes("booting");
        assert!(changed > 8 << 20, "{changed}");
        node.stop();
    });
}
