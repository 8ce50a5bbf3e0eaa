//! RDMA in guests that takes too long for every run: RDMA devices of the kernel at both ends, and soft
//! RoCE, through networks that lose, reorder, repeat and damage packets.
//!
//! These tests need root, QEMU and the lab's images, as those in `guests.rs`. They are run by name
//! (CONTRIBUTING.md), not by `./test.sh`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::time::Duration;

use tests::lab::{Guest, GuestSpec, Network, program_for_guests};

const MINUTE: Duration = Duration::from_secs(60);

/// What the network does to packets, one after the other; the stories of both guests know the names.
const STAGES: [&str; 4] = ["loss-0.1", "loss-1", "loss-5", "mixed"];

/// The subsystem of the kernel's own target.
const KERNEL_NQN: &str = "nqn.2026-11.dev.onefold:kernel";

#[test]
#[ignore = "boots two guests: tests/lab/setup.sh, then by name (CONTRIBUTING.md); rxe in an emulated kernel is not steady enough for every run"]
fn rdma_devices_serve_a_linux_host_and_attach_to_a_linux_target() {
    let network = Network::new(2, 1500);
    let program = tempfile::tempdir().expect("a folder can be made");
    let files = program_for_guests(program.path());
    let spec = |name, number, story| GuestSpec {
        name,
        kernel: "6.12",
        number,
        story,
        arguments: &["10.77.0.2", KERNEL_NQN],
        limit_seconds: 1800,
        files: &files,
    };
    let mut target = Guest::start(&network, &spec("rnic-target", 0, "verbs_target"));
    target.await_signal("up", 8 * MINUTE);
    let mut host = Guest::start(&network, &spec("rnic-host", 1, "verbs_host"));
    host.await_signal("clean", 5 * MINUTE);
    for stage in STAGES {
        let (on, done) = (format!("{stage}-on"), format!("{stage}-done"));
        target.signal(stage);
        target.await_signal(&on, MINUTE);
        host.signal(&on);
        host.await_signal(&done, 4 * MINUTE);
    }
    println!("{}", host.finish(5 * MINUTE));
    target.signal("done");
    println!("{}", target.finish(3 * MINUTE));
}

#[test]
#[ignore = "boots two guests: tests/lab/setup.sh, then by name (CONTRIBUTING.md); it takes minutes"]
fn soft_roce_carries_data_through_a_bad_network() {
    let network = Network::new(2, 1500);
    let program = tempfile::tempdir().expect("a folder can be made");
    let files = program_for_guests(program.path());
    let spec = |name, number, story| GuestSpec {
        name,
        kernel: "6.12",
        number,
        story,
        arguments: &["10.77.0.2"],
        limit_seconds: 1800,
        files: &files,
    };
    let mut target = Guest::start(&network, &spec("soft-target", 0, "loss_target"));
    target.await_signal("up", 8 * MINUTE);
    let mut host = Guest::start(&network, &spec("soft-host", 1, "loss_host"));
    // First our own host at the other end, then the kernel's.
    for end in ["own", "kernel"] {
        host.await_signal(&format!("{end}-clean"), 5 * MINUTE);
        for stage in STAGES {
            let name = format!("{end}-{stage}");
            let (on, done) = (format!("{name}-on"), format!("{name}-done"));
            target.signal(&name);
            target.await_signal(&on, MINUTE);
            host.signal(&on);
            host.await_signal(&done, 4 * MINUTE);
        }
        target.signal(&format!("{end}-over"));
        target.await_signal(&format!("{end}-quiet"), MINUTE);
        host.signal(&format!("{end}-quiet"));
    }
    println!("{}", host.finish(5 * MINUTE));
    target.signal("done");
    println!("{}", target.finish(3 * MINUTE));
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
            story: "verbs_removal",
            arguments: &["10.77.0.2"],
            limit_seconds: 400,
            files: &program_for_guests(program.path()),
        },
    );
    println!("{}", guest.finish(7 * MINUTE));
}
