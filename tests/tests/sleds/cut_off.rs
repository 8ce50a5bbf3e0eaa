//! A node that is cut off from hosts, and not from the pool's drives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::process::geteuid;
use tests::daemon::{Daemon, assert_consistent_in, onefold_in, text_of};
use tests::host::{Seen, stay_attached};
use tests::lab::{Network, Node, TARGET_V4};
use tests::paths::Writer;
use tests::sled::Sled;
use tests::wait_for;

use crate::offered::text;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the host writes that is not cut off: behind what the other one does.
const BASE: u64 = 64 << 20;

#[test]
fn a_node_that_hosts_do_not_reach_keeps_the_pool_until_it_is_told_to_move_it_and_then_they_go_on() {
    if !geteuid().is_root() {
        let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must_run, "networks of their own need root");
        eprintln!("skipped: networks of their own need root");
        return;
    }
    let network = Network::new(0, 1500);
    let [first, second, far, near] = [0, 1, 2, 3].map(|number| network.node(number));
    let folder = tempfile::tempdir().expect("a folder");
    let sleds: Vec<Sled> = (0..2)
        .map(|number| {
            let listen = format!("tcp://{TARGET_V4}:{}", 4430 + u32::from(number));
            Sled::start_new(folder.path(), number, &listen, Some(network.name()))
        })
        .collect();
    let listen = [&first, &second].map(|node| format!("tcp://{}:4420", node.address()));
    let pools = ["one", "two"].map(|name| folder.path().join(name));
    let start = |node: &Node, at: usize| {
        let mut arguments = vec!["--join", "--reactors", "1", "--listen", &listen[at]];
        arguments.extend(["--create", "0", "--redundancy", "mirror=2"]);
        arguments.extend(["--volume", "vol0=128M"]);
        arguments.extend(sleds.iter().flat_map(|sled| ["--drive", &sled.drive]));
        let machine = format!("node{at}");
        Daemon::start_on(&machine, Some(node.name()), &pools[at], &arguments)
            .expect("root may make machines of this one")
    };
    let [owner, standby] = [(&first, 0), (&second, 1)].map(|(node, at)| start(node, at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let writer = far.runs(|| Writer::start(&listen));
    let seen = Arc::new(Seen::default());
    let other = near.runs(|| {
        let (address, seen) = (listen[0].parse().expect("an address"), seen.clone());
        thread::spawn(move || {
            let host = async move { stay_attached(address, BASE, &seen, |_| ()).await };
            reactor::run(reactor::Config::default(), host).expect("this machine permits io_uring");
        })
    });
    let hosts = || {
        let status = owner.status();
        status["hosts"].as_array().expect("a list").len()
    };
    wait_for("both hosts", PATIENCE, || (hosts() == 2).then_some(()));

    let cut = first.cut_off_from(far.address());
    // It hears no more from that host, and that takes longer than a lease lasts.
    wait_for("the host to be gone", PATIENCE, || {
        (hosts() == 1).then_some(())
    });
    let written = seen.writes.load(Ordering::Relaxed);
    wait_for("the other host's writes", PATIENCE, || {
        (seen.writes.load(Ordering::Relaxed) > written + 100).then_some(())
    });
    let nodes = ["pool", "nodes", &sleds[0].drive, "--json"];
    let nodes = onefold_in(Some(network.name()), &nodes);
    let listed: serde_json::Value = serde_json::from_slice(&nodes.stdout).expect("JSON");
    let serving = listed.as_array().expect("a list").iter();
    let serving: Vec<_> = serving.filter(|node| node["serves"] == true).collect();
    assert!(
        serving.len() == 1 && serving[0]["machine"] == "node0",
        "{listed}"
    );
    let log = standby.log();
    assert!(!log.contains("this node takes it over"), "{log}");
    seen.enough.store(true, Ordering::Relaxed);
    other.join().expect("the host found what it wrote");

    // An operator gives the pool to a node that all hosts reach.
    let command = ["pool", "move", "--pool", text(&pools[0])];
    let moved = onefold_in(Some(first.name()), &command);
    assert!(moved.status.success(), "{}", text_of(&moved));
    standby.prints("ready", PATIENCE);
    owner.prints("standby", PATIENCE);
    writer.goes_on();
    drop(cut);
    writer.end();
    for node in [owner, standby] {
        assert!(node.stop().success());
    }
    assert_consistent_in(Some(second.name()), &pools[1]);
}
