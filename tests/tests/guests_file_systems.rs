//! File systems of a real kernel under load, while their owner takes snapshots and goes back to them.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::lab::{Guest, GuestSpec, Hardware, Network, TARGET_V4, steadily};

const MINUTE: Duration = Duration::from_secs(60);
/// How long the load lasts.
const LOAD_SECONDS: &str = "30";
const IMAGE_BYTES: u64 = 1 << 30;

/// What a command that succeeds prints.
fn tell(pool: &Path, words: &[&str]) -> String {
    let pool = pool.to_str().expect("a folder's name");
    let output = onefold(&[words, &["--pool", pool]].concat());
    assert!(output.status.success(), "{words:?}: {}", text_of(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn nsid(pool: &Path, volume: &str) -> String {
    let text = tell(pool, &["volume", "show", volume, "--json"]);
    let view: Value = serde_json::from_str(&text).expect("JSON");
    view["nsid"].to_string()
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_snapshot_of_file_systems_under_load_is_whole_and_so_are_they_when_rolled_back() {
    steadily(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let pool = folder.path().join("pool");
        let network = Network::new(1, 1500);
        let listen = format!("tcp://{TARGET_V4}:4420");
        let more = ["--create", "6G", "--listen", &listen];
        let daemon = Daemon::start(&pool, Some(network.name()), &more);

        // What the clones begin with: some data, and holes.
        let image = folder.path().join("golden.img");
        let data: Vec<u8> = (0..16_u64 << 17)
            .flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
            .collect();
        fs::write(&image, data).expect("an image");
        let file = fs::File::options().write(true).open(&image);
        file.and_then(|file| file.set_len(IMAGE_BYTES))
            .expect("holes");
        tell(
            &pool,
            &["volume", "import", "golden", image.to_str().expect("text")],
        );
        let by_vhost = ["vhost-ext4", "vhost-xfs"];
        let by_tcp = ["tcp-ext4", "tcp-xfs"];
        let clone = ["volume", "clone", "golden"];
        tell(
            &pool,
            &[&clone[..], &by_vhost, &["--subsystem", "none"]].concat(),
        );
        tell(&pool, &[&clone[..], &by_tcp].concat());
        let sockets: Vec<PathBuf> = by_vhost.map(|name| folder.path().join(name)).into();
        let export = || {
            for (volume, socket) in by_vhost.iter().zip(&sockets) {
                let place = socket.to_str().expect("text");
                tell(&pool, &["export", "create", volume, "--vhost", place]);
            }
        };
        export();

        let [ext4, xfs] = by_tcp.map(|name| nsid(&pool, name));
        let spec = GuestSpec {
            name: "loaded",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "fs_load",
            arguments: &[TARGET_V4, LOAD_SECONDS, &ext4, &xfs],
            limit_seconds: 900,
            files: &[],
        };
        let hardware = Hardware {
            disks: &sockets,
            ..Hardware::default()
        };
        let mut guest = Guest::start_with(&network, &spec, &hardware);
        guest.await_signal("loaded", 10 * MINUTE);
        let volumes = [by_vhost, by_tcp].concat();
        let snapshots: Vec<String> = volumes.iter().map(|it| format!("{it}@then")).collect();
        let names: Vec<&str> = snapshots.iter().map(String::as_str).collect();
        tell(&pool, &[&["snapshot", "create"], names.as_slice()].concat());
        let mut clones = String::new();
        for (volume, snapshot) in volumes.iter().zip(&names) {
            let clone = format!("{volume}-then");
            tell(&pool, &["volume", "clone", snapshot, &clone]);
            clones += &format!("{volume} {}\n", nsid(&pool, &clone));
        }
        fs::write(guest.share().join("clones"), clones).expect("the guest's folder");
        guest.signal("taken");

        guest.await_signal("detached", 10 * MINUTE);
        for volume in by_vhost {
            tell(&pool, &["export", "delete", volume, "--yes"]);
        }
        for snapshot in names {
            tell(&pool, &["snapshot", "rollback", snapshot, "--yes"]);
        }
        export();
        guest.signal("rolled-back");
        println!("{}", guest.finish(10 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&pool);
    });
}
