//! Real kernels whose disk is an export by vhost-user-blk.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::path::Path;
use std::time::Duration;

use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::guide;
use tests::lab::{Guest, GuestSpec, Hardware, Network, steadily};
use tests::own_address;

const MINUTE: Duration = Duration::from_secs(60);
const BYTES: u64 = 1 << 30;
/// The place of the export in the guide.
const GUIDES_SOCKET: &str = "/run/onefold-vm/vm1.sock";

fn tell(pool: &Path, words: &[&str]) {
    let pool = pool.to_str().expect("a folder's name");
    let output = onefold(&[words, &["--pool", pool]].concat());
    assert!(output.status.success(), "{words:?}: {}", text_of(&output));
}

fn serve(pool: &Path, more: &[&str]) -> Daemon {
    let listen = format!("tcp://{}:4420", own_address(61));
    Daemon::start(pool, None, &[&["--listen", &listen], more].concat())
}

/// The guest's disk works, is lost to nobody while the daemon is killed twice, and grows.
#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_machines_disk_survives_kills_of_the_daemon_and_grows() {
    steadily(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let pool = folder.path().join("pool");
        let mut daemon = serve(&pool, &["--create", "4G", "--volume", "vm=1G"]);
        let socket = folder.path().join("vm.sock");
        let place = socket.display().to_string();
        tell(&pool, &["export", "create", "vm", "--vhost", &place]);
        let network = Network::new(1, 1500);
        let (before, after) = (BYTES.to_string(), (2 * BYTES).to_string());
        let spec = GuestSpec {
            name: "machine",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "vhost",
            arguments: &[&before, &after],
            limit_seconds: 600,
            files: &[],
        };
        // The machine is the one of the guide.
        let qemu = guide::arguments("virtual-machines", "qemu-system-x86_64");
        let qemu = qemu.iter().map(|it| it.replace(GUIDES_SOCKET, &place));
        let qemu: Vec<String> = qemu.collect();
        assert!(qemu.iter().any(|it| it.contains(&place)), "{qemu:?}");
        let hardware = Hardware {
            qemu: &qemu,
            ..Hardware::default()
        };
        let mut guest = Guest::start_with(&network, &spec, &hardware);
        for time in ["first", "second"] {
            guest.await_signal(&format!("{time}-writes"), 5 * MINUTE);
            daemon.kill_hard();
            daemon = serve(&pool, &[]);
            guest.signal(&format!("{time}-restart"));
        }
        guest.await_signal("growing", 5 * MINUTE);
        tell(&pool, &["volume", "resize", "vm", "--size", "2G"]);
        guest.signal("grown");
        println!("{}", guest.finish(5 * MINUTE));
        tell(&pool, &["export", "delete", &place, "--yes"]);
        daemon.stop();
        assert_consistent(&pool);
    });
}
