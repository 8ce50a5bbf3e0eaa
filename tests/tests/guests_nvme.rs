//! What nvme-cli in a real Linux kernel does with a subsystem: one story a feature.
//!
//! These tests need root, QEMU and the lab's images, as those in `guests.rs` do: `./test.sh` runs them
//! one after the other.

#![allow(clippy::print_stdout, reason = "what a story says is its result")]

use std::time::Duration;

use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent},
    lab::{Guest, GuestSpec, Network, TARGET_V4, steadily},
};

const MINUTE: Duration = Duration::from_secs(60);

fn pool() -> TempDir {
    tempfile::Builder::new()
        .prefix("onefold-guests-nvme-")
        .tempdir()
        .expect("a folder can be made")
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn commands_beyond_reading_and_writing_do_what_nvme_cli_expects() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let arguments = ["--create", "4G", "--volume", "vol0=2G"];
        let daemon = Daemon::start(&path, Some(network.name()), &arguments);
        let guest = Guest::start(
            &network,
            &GuestSpec {
                name: "commander",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "commands",
                arguments: &[TARGET_V4],
                limit_seconds: 300,
                files: &[],
            },
        );
        println!("{}", guest.finish(6 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&path);
    });
}
