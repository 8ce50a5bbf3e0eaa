//! RDMA in guests: RDMA devices of the kernel at both ends, and soft RoCE, through networks that lose, reorder,
//! repeat and damage packets.
//!
//! These tests need root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::net::SocketAddr;
use std::process::Output;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tests::daemon::{onefold_in, text_of};
use tests::lab::{Guest, GuestSpec, Network, program_for_guests, steadily};

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

/// A guest with an RDMA device, whose hosts are Onefold's own soft RoCE outside of it.
struct Alone {
    target: Guest,
    network: Network,
    _program: TempDir,
}

impl Alone {
    fn boot(name: &str, story: &str, arguments: &[&str]) -> Self {
        let network = Network::new(1, 1500);
        let program = tempfile::tempdir().expect("a folder can be made");
        let spec = GuestSpec {
            name,
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story,
            arguments,
            limit_seconds: 1200,
            files: &program_for_guests(program.path()),
        };
        let mut target = Guest::start(&network, &spec);
        target.await_signal("up", 8 * MINUTE);
        Self {
            target,
            network,
            _program: program,
        }
    }

    /// Loads a volume by its number from outside, and checks all that is read.
    fn load(&self, address: &str, volume: &str, work: &str) -> Output {
        let host = SocketAddr::new(address.parse().expect("an address"), 4420);
        let subsystem = format!("rdma+soft://{host}/{NQN}");
        let places = "--range 32M --seed 1 --verify --nsid".split(' ');
        let arguments = ["perf", &subsystem].into_iter().chain(work.split(' '));
        let arguments: Vec<&str> = arguments.chain(places).chain([volume]).collect();
        onefold_in(Some(self.network.name()), &arguments)
    }

    fn assert_done(&self, load: &Output) {
        let said = text_of(load);
        assert!(load.status.success(), "{said}\n{}", self.target.console());
        println!("{said}");
    }

    /// The guest does all of it by itself.
    fn finish(self, limit: Duration) {
        println!("{}", self.target.finish(limit));
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
#[ignore = "boots two guests: ./test.sh prepares the lab and runs it"]
fn rdma_devices_serve_a_linux_host_and_attach_to_a_linux_target() {
    steadily(|| {
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
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn every_reactor_serves_hosts_of_an_rdma_device_that_runs_out_of_receives() {
    steadily(|| {
        let alone = Alone::boot("few-receives", "verbs_few_receives", &[ADDRESS, ADDRESS_V6]);
        // Soft RoCE has one program on an address.
        let hosts = [(ADDRESS, "1"), (ADDRESS_V6, "2")];
        let work = "--rw randrw --bs 4k --qd 64 --queues 4 --size 16M";
        let load = |(address, volume)| alone.load(address, volume, work);
        let loads: Vec<Output> = thread::scope(|scope| {
            let loads = hosts.map(|host| scope.spawn(move || load(host)));
            let ended = loads.map(|load| load.join().expect("no load panics"));
            ended.into()
        });
        loads.iter().for_each(|load| alone.assert_done(load));
        alone.target.signal("loaded");
        alone.finish(3 * MINUTE);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn an_rdma_port_goes_down_and_up_and_memory_is_short_and_hosts_are_served() {
    steadily(|| {
        let mut alone = Alone::boot("port-down", "verbs_port_down", &[ADDRESS]);
        let work = "--rw randrw --bs 16k --qd 8 --queues 4 --size 4M";
        let cut = thread::scope(|scope| {
            let load =
                scope.spawn(|| alone.load(ADDRESS, "1", "--rw randrw --bs 16k --qd 8 --time 120"));
            alone.target.signal("loading");
            load.join().expect("no load panics")
        });
        alone.target.await_signal("down", MINUTE);
        // Whoever was attached is told, and does not wait for ever.
        let told = text_of(&cut);
        assert!(!cut.status.success() && told.contains("is gone"), "{told}");
        println!("{told}");
        alone.target.signal("seen-down");
        for (ready, done) in [("again", "served"), ("little-memory", "little-served")] {
            alone.target.await_signal(ready, 2 * MINUTE);
            alone.assert_done(&alone.load(ADDRESS, "1", work));
            alone.target.signal(done);
        }
        alone.finish(3 * MINUTE);
    });
}

#[test]
#[ignore = "boots two guests: ./test.sh prepares the lab and runs it"]
fn soft_roce_carries_data_through_a_bad_network() {
    steadily(|| {
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
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_listener_outlives_the_removal_of_its_rdma_device() {
    steadily(|| {
        Alone::boot("hotplug", "verbs_removal", &[ADDRESS]).finish(7 * MINUTE);
    });
}
