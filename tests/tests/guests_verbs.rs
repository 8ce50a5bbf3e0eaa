//! RDMA in guests that takes too long for every run: RDMA devices of the kernel at both ends, and soft
//! RoCE, through networks that lose, reorder, repeat and damage packets.
//!
//! These tests need root, QEMU and the lab's images, as those in `guests.rs`. They are run by name
//! (CONTRIBUTING.md), not by `./test.sh`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::process::Output;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tests::daemon::{onefold_in, text_of};
use tests::lab::{Guest, GuestSpec, Network, program_for_guests};

const MINUTE: Duration = Duration::from_secs(60);

/// What the network does to packets, one after the other; the stories of both guests know the names.
const STAGES: [&str; 4] = ["loss-0.1", "loss-1", "loss-5", "mixed"];

/// The subsystem of the kernel's own target.
const KERNEL_NQN: &str = "nqn.2026-11.dev.onefold:kernel";

/// The target's addresses in its guest.
const ADDRESS: &str = "10.77.0.2";
const ADDRESS_V6: &str = "fd77::2";

/// The subsystem of Onefold's target.
const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// A guest of a story.
struct Role {
    name: &'static str,
    story: &'static str,
    cpus: u32,
}

/// A guest that serves and one that attaches, with a network of their own.
struct Pair {
    target: Guest,
    host: Guest,
    _network: Network,
    _program: TempDir,
}

impl Pair {
    /// Boots both, the host when the target is up.
    fn boot(target: Role, host: Role, arguments: &[&str]) -> Self {
        let network = Network::new(2, 1500);
        let program = tempfile::tempdir().expect("a folder can be made");
        let files = program_for_guests(program.path());
        let spec = |role: Role, number| GuestSpec {
            name: role.name,
            kernel: "6.12",
            number,
            cpus: role.cpus,
            story: role.story,
            arguments,
            limit_seconds: 1800,
            files: &files,
        };
        let mut target = Guest::start(&network, &spec(target, 0));
        target.await_signal("up", 8 * MINUTE);
        let host = Guest::start(&network, &spec(host, 1));
        Self {
            target,
            host,
            _network: network,
            _program: program,
        }
    }

    /// Lets the target's network do all that it can do to packets, one after the other, while the host
    /// works.
    fn through_a_bad_network(&mut self, prefix: &str) {
        for stage in STAGES {
            let name = format!("{prefix}{stage}");
            let (on, done) = (format!("{name}-on"), format!("{name}-done"));
            self.target.signal(&name);
            self.target.await_signal(&on, MINUTE);
            self.host.signal(&on);
            self.host.await_signal(&done, 4 * MINUTE);
        }
    }

    /// Waits for both to end, the host first.
    fn finish(self) {
        println!("{}", self.host.finish(5 * MINUTE));
        self.target.signal("done");
        println!("{}", self.target.finish(3 * MINUTE));
    }
}

/// A guest with one processor.
const fn small(name: &'static str, story: &'static str) -> Role {
    Role {
        name,
        story,
        cpus: 1,
    }
}

#[test]
#[ignore = "boots two guests: tests/lab/setup.sh, then by name (CONTRIBUTING.md); rxe in an emulated kernel is not steady enough for every run"]
fn rdma_devices_serve_a_linux_host_and_attach_to_a_linux_target() {
    let target = Role {
        name: "rnic-target",
        story: "verbs_target",
        cpus: 2,
    };
    // A queue for each processor.
    let host = Role {
        name: "rnic-host",
        story: "verbs_host",
        cpus: 2,
    };
    let mut pair = Pair::boot(target, host, &[ADDRESS, KERNEL_NQN]);
    pair.host.await_signal("clean", 5 * MINUTE);
    pair.through_a_bad_network("");
    pair.finish();
}

#[test]
#[ignore = "boots a guest: tests/lab/setup.sh, then by name (CONTRIBUTING.md); rxe in an emulated kernel is not steady enough for every run"]
fn every_reactor_serves_hosts_of_an_rdma_device_that_runs_out_of_receives() {
    let network = Network::new(1, 1500);
    let program = tempfile::tempdir().expect("a folder can be made");
    let mut target = Guest::start(
        &network,
        &GuestSpec {
            name: "few-receives",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "verbs_few_receives",
            arguments: &[ADDRESS, ADDRESS_V6],
            limit_seconds: 1200,
            files: &program_for_guests(program.path()),
        },
    );
    target.await_signal("up", 8 * MINUTE);
    // Soft RoCE has one program on an address.
    let hosts = [(ADDRESS.to_owned(), "1"), (format!("[{ADDRESS_V6}]"), "2")];
    let load = |(address, volume): &(String, &str)| {
        let subsystem = format!("rdma+soft://{address}:4420/{NQN}");
        let places = ["--nsid", volume, "--range", "32M", "--size", "16M"];
        let work = "--rw randrw --bs 4k --qd 64 --queues 4 --seed 1 --verify";
        let work = ["perf", &subsystem].into_iter().chain(work.split(' '));
        let arguments: Vec<&str> = work.chain(places).collect();
        onefold_in(Some(network.name()), &arguments)
    };
    let loads: Vec<Output> = thread::scope(|scope| {
        let loads = hosts.each_ref().map(|host| scope.spawn(|| load(host)));
        let ended = loads.map(|load| load.join().expect("no load panics"));
        ended.into()
    });
    for load in loads {
        let said = text_of(&load);
        assert!(load.status.success(), "{said}\n{}", target.console());
        println!("{said}");
    }
    target.signal("loaded");
    println!("{}", target.finish(3 * MINUTE));
}

#[test]
#[ignore = "boots two guests: tests/lab/setup.sh, then by name (CONTRIBUTING.md); it takes minutes"]
fn soft_roce_carries_data_through_a_bad_network() {
    let (target, host) = (
        small("soft-target", "loss_target"),
        small("soft-host", "loss_host"),
    );
    let mut pair = Pair::boot(target, host, &[ADDRESS]);
    // First our own host at the other end, then the kernel's.
    for end in ["own", "kernel"] {
        pair.host.await_signal(&format!("{end}-clean"), 5 * MINUTE);
        pair.through_a_bad_network(&format!("{end}-"));
        pair.target.signal(&format!("{end}-over"));
        pair.target.await_signal(&format!("{end}-quiet"), MINUTE);
        pair.host.signal(&format!("{end}-quiet"));
    }
    pair.finish();
}

#[test]
#[ignore = "boots a guest: tests/lab/setup.sh, then by name (CONTRIBUTING.md); rxe in an emulated kernel is not steady enough for every run"]
fn a_listener_outlives_the_removal_of_its_rdma_device() {
    let network = Network::new(1, 1500);
    let program = tempfile::tempdir().expect("a folder can be made");
    let guest = Guest::start(
        &network,
        &GuestSpec {
            name: "hotplug",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "verbs_removal",
            arguments: &[ADDRESS],
            limit_seconds: 400,
            files: &program_for_guests(program.path()),
        },
    );
    println!("{}", guest.finish(7 * MINUTE));
}
