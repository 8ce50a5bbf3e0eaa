//! A host with a real kernel that is attached to two nodes of one pool, while these fail.
//!
//! A node is a network namespace with a daemon, a folder and a cable of its own. Where it loses its power, its cable is pulled and its
//! daemon killed, so nobody hears of it any more, and nothing of its memory is left; the drives are elsewhere.
//!
//! These tests need root, QEMU, the lab's images, and most of them Ceph. `ONEFOLD_TAKEOVERS` is how many there are.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tests::ceph::Ceph;
use tests::daemon::{Daemon, assert_consistent_in};
use tests::lab::{CutOff, Guest, GuestSpec, Network, Node, TARGET_V4, steadily};
use tests::sled::Sled;

/// Takeovers, unless the environment says another number.
const TAKEOVERS: usize = 3;

/// Booting an emulated guest on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// A takeover, and the return of the node that failed: Linux tries again every ten seconds.
const TURN_LIMIT: Duration = Duration::from_secs(180);

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_goes_on_by_its_other_path_whenever_the_node_with_the_pool_dies() {
    is_right_across_takeovers("fio", &[Failure::Killed], Home::in_cluster);
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_goes_on_when_the_node_with_the_pool_loses_power_or_its_way_to_the_cluster_or_sleeps() {
    let failures = [
        Failure::LosesPower,
        Failure::IsCutOffFromDrives,
        Failure::Sleeps,
    ];
    is_right_across_takeovers("fio", &failures, Home::in_cluster);
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn postgresql_keeps_every_transaction_while_the_nodes_with_its_pool_die() {
    is_right_across_takeovers("postgres", &[Failure::Killed], Home::in_cluster);
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_goes_on_when_the_node_with_a_pool_on_sleds_dies_loses_power_is_cut_off_or_sleeps() {
    let failures = [
        Failure::Killed,
        Failure::LosesPower,
        Failure::IsCutOffFromDrives,
        Failure::Sleeps,
    ];
    is_right_across_takeovers("fio", &failures, Home::on_sleds);
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn postgresql_keeps_every_transaction_while_the_nodes_with_its_pool_on_sleds_die() {
    is_right_across_takeovers("postgres", &[Failure::Killed], Home::on_sleds);
}

/// Where the pool lives.
enum Home {
    Cluster(Ceph),
    /// Each has a copy of everything.
    Sleds(Vec<Sled>),
}

impl Home {
    /// `None` where there is no Ceph.
    fn in_cluster(network: &Network, _: &Path) -> Option<Self> {
        Ceph::in_network(network.name()).map(Self::Cluster)
    }

    fn on_sleds(network: &Network, folder: &Path) -> Option<Self> {
        let sleds = (0..3).map(|number| {
            let listen = format!("tcp://{TARGET_V4}:{}", 4430 + u32::from(number));
            Sled::start_new(folder, number, &listen, Some(network.name()))
        });
        Some(Self::Sleds(sleds.collect()))
    }

    /// What a node is told of it.
    fn arguments(&self) -> Vec<String> {
        let told = match self {
            Self::Cluster(ceph) => {
                let drive = format!("{}=2G", ceph.address("pool", "guest", "onefold"));
                return ["--create", "256M", "--drive", &drive]
                    .map(str::to_owned)
                    .to_vec();
            }
            Self::Sleds(sleds) => sleds,
        };
        let create = ["--create", "0", "--redundancy", "mirror=3"];
        let volume = ["--volume", "vol0=200M"];
        let drives = told.iter().flat_map(|sled| ["--drive", &sled.drive]);
        let all = create.into_iter().chain(volume).chain(drives);
        all.map(str::to_owned).collect()
    }
}

/// How the node with the pool fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Its daemon is killed, and started again: the host hears that the connection is gone.
    Killed,
    /// Its machine says nothing any more, to nobody, and comes back with nothing of what it had in memory.
    LosesPower,
    /// Hosts reach it, and it does not reach the pool's drives.
    IsCutOffFromDrives,
    /// It stands still, and wakes when another node has the pool.
    Sleeps,
}

/// A node that failed, and what has to end before it is back.
struct Failed<'a> {
    cut_off: Option<CutOff<'a>>,
    daemon: Option<Daemon>,
}

impl Failure {
    fn befall<'a>(self, node: &'a Node, daemon: Daemon) -> Failed<'a> {
        let cut_off = match self {
            Self::Killed | Self::Sleeps => None,
            Self::LosesPower => Some(node.pull_cable()),
            Self::IsCutOffFromDrives => Some(node.cut_off_from(TARGET_V4)),
        };
        let daemon = match self {
            Self::Killed | Self::LosesPower => {
                daemon.kill_hard();
                None
            }
            Self::IsCutOffFromDrives => Some(daemon),
            Self::Sleeps => {
                tell(&daemon, Signal::STOP);
                Some(daemon)
            }
        };
        Failed { cut_off, daemon }
    }

    /// Whether it is back only when the host went on without it.
    fn lasts(self) -> bool {
        !matches!(self, Self::Killed)
    }
}

impl Failed<'_> {
    /// The node is a standby afterwards.
    fn comes_back(self, start: impl FnOnce() -> Daemon) -> Daemon {
        drop(self.cut_off);
        let Some(daemon) = self.daemon else {
            let daemon = start();
            assert!(daemon.ready_line().starts_with("standby"));
            return daemon;
        };
        tell(&daemon, Signal::CONT);
        daemon.prints("standby", TURN_LIMIT);
        daemon
    }
}

fn tell(daemon: &Daemon, signal: Signal) {
    let process = Pid::from_raw(daemon.pid().cast_signed()).expect("a child has a number");
    kill_process(process, signal).expect("it lives");
}

/// Lets the node with the pool fail again and again, while a program of the guest writes and verifies.
fn is_right_across_takeovers(
    load: &str,
    failures: &[Failure],
    home: impl Fn(&Network, &Path) -> Option<Home>,
) {
    let takeovers = std::env::var("ONEFOLD_TAKEOVERS").ok();
    let takeovers = takeovers.map_or(TAKEOVERS, |count| count.parse().expect("a number"));
    let takeovers = takeovers.max(failures.len());
    steadily(|| {
        let network = Network::new(1, 1500);
        let machines = [0, 1].map(|number| network.node(number));
        let folder = tempfile::tempdir().expect("a folder");
        let Some(home) = home(&network, folder.path()) else {
            return;
        };
        let pools = ["a", "b"].map(|name| folder.path().join(name));
        let start = |at: usize| {
            let listen = format!("tcp://{}:4420", machines[at].address());
            let told = home.arguments();
            let usual = ["--join", "--listen", &listen, "--reactors", "1"];
            let arguments: Vec<&str> = usual
                .into_iter()
                .chain(told.iter().map(String::as_str))
                .collect();
            let (machine, network) = (format!("node{at}"), Some(machines[at].name()));
            Daemon::start_on(&machine, network, &pools[at], &arguments)
                .expect("root may make machines of this one")
        };
        let mut nodes = [Some(start(0)), Some(start(1))];
        let limit = BOOT_LIMIT + TURN_LIMIT * u32::try_from(takeovers).expect("some");
        let [first, second] = machines.each_ref().map(Node::address);
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "two-paths",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "takeover",
                arguments: &[first, second, load],
                limit_seconds: limit.as_secs() as u32,
                files: &[],
            },
        );
        let mut wait = BOOT_LIMIT;
        for (turn, failure) in (1..=takeovers).zip(failures.iter().cycle()) {
            guest.await_signal(&format!("ready{turn}"), wait);
            wait = TURN_LIMIT;
            let at = (turn - 1) % 2;
            let daemon = nodes[at].take().expect("it serves the pool");
            let failed = failure.befall(&machines[at], daemon);
            let other = nodes[turn % 2].as_ref().expect("it is the standby");
            other.prints("ready", TURN_LIMIT);
            guest.signal(&format!("failed{turn}"));
            if failure.lasts() {
                guest.await_signal(&format!("on{turn}"), TURN_LIMIT);
            }
            nodes[at] = Some(failed.comes_back(|| start(at)));
            guest.await_signal(&format!("settled{turn}"), TURN_LIMIT);
            if turn == takeovers {
                guest.signal("last");
            }
            guest.signal(&format!("next{turn}"));
        }
        let console = guest.finish(TURN_LIMIT);
        let pauses: Vec<u64> = console
            .lines()
            .filter_map(|line| line.trim().strip_prefix("PAUSE ")?.parse().ok())
            .collect();
        assert_eq!(pauses.len(), takeovers, "{console}");
        println!("{console}");
        for kind in failures {
            let of_kind = failures.iter().cycle().zip(&pauses);
            let of_kind = of_kind.filter(|(failure, _)| *failure == kind);
            let mut pauses: Vec<u64> = of_kind.map(|(_, pause)| *pause).collect();
            pauses.sort_unstable();
            let Some(longest) = pauses.last() else {
                continue;
            };
            println!(
                "{} times {kind:?} under {load}: the longest operation took {} ms in the middle, {longest} ms at most",
                pauses.len(),
                pauses[pauses.len() / 2],
            );
        }
        let serving = takeovers % 2;
        let [first, second] = nodes;
        let (owner, standby) = match serving {
            0 => (first, second),
            _ => (second, first),
        };
        assert!(standby.expect("it runs").stop().success());
        assert!(owner.expect("it runs").stop().success());
        assert_consistent_in(Some(machines[serving].name()), &pools[serving]);
    });
}
