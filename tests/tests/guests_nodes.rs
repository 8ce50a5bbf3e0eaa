//! A host with a real kernel that is attached to two nodes of one pool, while these die.
//!
//! This test needs root, QEMU, the lab's images, and Ceph. `ONEFOLD_TAKEOVERS` is how many there are.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::process::Command;
use std::time::Duration;

use tests::ceph::Ceph;
use tests::daemon::{Daemon, assert_consistent_in};
use tests::lab::{Guest, GuestSpec, Network, steadily};

/// Takeovers, unless the environment says another number.
const TAKEOVERS: usize = 3;

/// Booting an emulated guest on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// A takeover, and the return of the node that died: Linux tries again every ten seconds.
const TURN_LIMIT: Duration = Duration::from_secs(180);

/// Where the nodes listen.
const NODES: [&str; 2] = ["10.77.0.1", "10.77.0.101"];

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_goes_on_by_its_other_path_whenever_the_node_with_the_pool_dies() {
    is_right_across_takeovers("fio");
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn postgresql_keeps_every_transaction_while_the_nodes_with_its_pool_die() {
    is_right_across_takeovers("postgres");
}

/// Kills the node with the pool again and again, while a program of the guest writes and verifies.
fn is_right_across_takeovers(load: &str) {
    let takeovers = std::env::var("ONEFOLD_TAKEOVERS").ok();
    let takeovers = takeovers.map_or(TAKEOVERS, |count| count.parse().expect("a number"));
    steadily(|| {
        let network = Network::new(1, 1500);
        let added = Command::new("ip")
            .args([
                "-n",
                network.name(),
                "addr",
                "add",
                "10.77.0.101/24",
                "dev",
                "br0",
            ])
            .status();
        assert!(
            added.is_ok_and(|status| status.success()),
            "a second address"
        );
        let Some(ceph) = Ceph::in_network(network.name()) else {
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let pools = ["a", "b"].map(|name| folder.path().join(name));
        let drive = format!("{}=2G", ceph.address("pool", "guest", "onefold"));
        let start = |at: usize| {
            let listen = format!("tcp://{}:4420", NODES[at]);
            let arguments = [
                "--join",
                "--create",
                "256M",
                "--drive",
                &drive,
                "--listen",
                &listen,
                "--reactors",
                "1",
            ];
            Daemon::start_elsewhere(&pools[at], Some(network.name()), &arguments)
        };
        let mut nodes = [Some(start(0)), Some(start(1))];
        let limit = BOOT_LIMIT + TURN_LIMIT * u32::try_from(takeovers).expect("some");
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "two-paths",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "takeover",
                arguments: &[NODES[0], NODES[1], load],
                limit_seconds: limit.as_secs() as u32,
                files: &[],
            },
        );
        let mut wait = BOOT_LIMIT;
        for turn in 1..=takeovers {
            guest.await_signal(&format!("ready{turn}"), wait);
            wait = TURN_LIMIT;
            let at = (turn - 1) % 2;
            nodes[at].take().expect("it serves the pool").kill_hard();
            let other = nodes[turn % 2].as_ref().expect("it is the standby");
            other.prints("ready", TURN_LIMIT);
            let back = start(at);
            assert!(back.ready_line().starts_with("standby"));
            nodes[at] = Some(back);
            guest.signal(&format!("killed{turn}"));
            guest.await_signal(&format!("settled{turn}"), TURN_LIMIT);
            if turn == takeovers {
                guest.signal("last");
            }
            guest.signal(&format!("next{turn}"));
        }
        let console = guest.finish(TURN_LIMIT);
        let mut pauses: Vec<u64> = console
            .lines()
            .filter_map(|line| line.trim().strip_prefix("PAUSE ")?.parse().ok())
            .collect();
        pauses.sort_unstable();
        assert_eq!(pauses.len(), takeovers, "{console}");
        println!("{console}");
        println!(
            "{takeovers} takeovers under {load}: the longest operation took {} ms in the middle, {} ms at most",
            pauses[takeovers / 2],
            pauses[takeovers - 1]
        );
        let serving = takeovers % 2;
        let [first, second] = nodes;
        let (owner, standby) = match serving {
            0 => (first, second),
            _ => (second, first),
        };
        assert!(standby.expect("it runs").stop().success());
        assert!(owner.expect("it runs").stop().success());
        assert_consistent_in(Some(network.name()), &pools[serving]);
    });
}
