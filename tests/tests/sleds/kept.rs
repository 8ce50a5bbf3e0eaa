//! What a pool keeps for its hosts goes to the next node with it: reservations, the list of hosts, secrets, snapshots.

use std::path::Path;
use std::time::{Duration, Instant};

use fabric::{Connector, TcpHostConfig};
use initiator::{ConnectOptions, Controller, Error, Host, Namespace};
use nvme::Status;
use nvme::reservation::{AcquireAction, KeyPair, RegisterAction, ReservationType};
use tests::daemon::{assert_consistent, onefold, text_of};

use crate::offered::{Offered, text};

const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// A host that proves who it is.
const PROVES: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000bbbb";

const KIND: ReservationType = ReservationType::WriteExclusive;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// How soon a host tries again what waits for the next node.
const AGAIN: Duration = Duration::from_millis(20);

/// The keys of the host that has the reservations, and of the other one that is registered.
const KEYS: [u64; 2] = [1, 2];

/// A command on the daemon of a pool.
#[track_caller]
fn does(pool: &Path, arguments: &[&str]) -> String {
    let output = onefold(&[arguments, &["--pool", text(pool)]].concat());
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

/// A secret of a host in a file.
fn secret(folder: &Path, name: &str) -> String {
    let made = onefold(&["host", "gen-dhchap-key"]);
    assert!(made.status.success(), "{}", text_of(&made));
    let path = folder.join(name);
    std::fs::write(&path, made.stdout).expect("written");
    text(&path).to_owned()
}

/// A host that is attached to a node.
struct Attached {
    controller: Controller,
    /// Volumes whose reservations survive a loss of power, and end with it.
    volumes: [Namespace; 2],
    snapshot: Namespace,
}

async fn attach(connector: &Connector, listen: &str, host: &Host) -> Attached {
    let address: fabric::TransportAddress = listen.parse().expect("an address");
    let nqn = NQN.parse().expect("a name");
    let options = ConnectOptions::new(address.socket_addr(), nqn, host.clone());
    let controller = Controller::connect(connector, options).await;
    let controller = controller.expect("the host is on the list");
    let volume = async |nsid| controller.namespace(nsid).await.expect("a namespace");
    Attached {
        volumes: [volume(1).await, volume(2).await],
        snapshot: volume(3).await,
        controller,
    }
}

async fn write(volume: &Namespace, byte: u8) -> Result<(), Error> {
    let mut buffer = initiator::buffer(4096).await;
    buffer.fill(byte);
    volume.write(0, buffer, false).await.0
}

/// The same by a host that waits until the node has the pool.
async fn write_in_the_end(volume: &Namespace, byte: u8) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        match write(volume, byte).await {
            Err(error)
                if error.status().map(Status::code) == Some(Status::ASYMMETRIC_INACCESSIBLE)
                    && began.elapsed() < PATIENCE =>
            {
                reactor::sleep(AGAIN).await;
            }
            ended => return ended,
        }
    }
}

#[track_caller]
fn conflicts(result: Result<(), Error>) {
    let error = result.expect_err("another host has the reservation");
    let status = error.status().expect("the node answered");
    assert_eq!(status.code(), Status::RESERVATION_CONFLICT, "{error}");
}

async fn reads(volume: &Namespace, byte: u8) {
    let buffer = initiator::buffer(4096).await;
    let (result, buffer) = volume.read(0, buffer).await;
    result.expect("it is read");
    assert!(buffer.iter().all(|it| *it == byte), "not all of {byte}");
}

/// The hosts reserve on the first node, which dies while they are attached to both; what they find by the other one.
async fn reserve_and_go_on(listen: [String; 2], hosts: [Host; 2], owner_dies: impl FnOnce()) {
    let connector = Connector::tcp(TcpHostConfig::default());
    let mut before = Vec::new();
    let mut after = Vec::new();
    for host in &hosts {
        before.push(attach(&connector, &listen[0], host).await);
        after.push(attach(&connector, &listen[1], host).await);
    }
    for at in 0..2 {
        let survives_power = at == 0;
        for (host, key) in before.iter().zip(KEYS) {
            let keys = KeyPair {
                current: 0,
                other: key,
            };
            let register = RegisterAction::Register;
            let registered = host.volumes[at].register(register, false, Some(survives_power), keys);
            registered.await.expect("a free key");
        }
        let keys = KeyPair {
            current: KEYS[0],
            other: 0,
        };
        let acquired = before[0].volumes[at].acquire(AcquireAction::Acquire, KIND, keys);
        acquired.await.expect("nobody has it");
        write(&before[0].volumes[at], 2).await.expect("it has it");
        conflicts(write(&before[1].volumes[at], 3).await);
    }
    owner_dies();
    for at in 0..2 {
        let [holder, other] = [&after[0].volumes[at], &after[1].volumes[at]];
        conflicts(write_in_the_end(other, 4).await);
        reads(other, 2).await;
        write_in_the_end(holder, 5).await.expect("it has it");
        reads(other, 5).await;
        let report = other.reservation_report().await.expect("a report");
        assert_eq!((report.kind, report.persist), (Some(KIND), at == 0));
        let known = report.registrants.iter();
        let mut known: Vec<_> = known.map(|it| (it.key, it.host, it.is_holder)).collect();
        known.sort_unstable();
        let [one, two] = &hosts;
        assert_eq!(known, [(KEYS[0], one.id, true), (KEYS[1], two.id, false)]);
    }
    for host in &after {
        reads(&host.snapshot, 1).await;
    }
    for host in before.iter().chain(&after) {
        host.controller.close();
    }
    connector.shutdown().await;
}

#[test]
fn reservations_the_list_of_hosts_their_secrets_and_snapshots_survive_a_takeover() {
    let offered = Offered::<2>::new(2, 210);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    let folder = tempfile::tempdir().expect("a folder");
    let [right, wrong] = ["right", "wrong"].map(|name| secret(folder.path(), name));
    let hosts = [Host::generate(), Host::generate()];
    let [pool, next] = &offered.pools;
    for host in [hosts[0].nqn.as_str(), hosts[1].nqn.as_str(), PROVES] {
        does(pool, &["subsystem", "allow", NQN, host]);
    }
    does(
        pool,
        &["host", "create", PROVES, "--dhchap-secret-file", &right],
    );
    does(pool, &["volume", "create", "vol1", "--size", "64M"]);
    fill(&offered.listen[0], &hosts[0]);
    does(pool, &["snapshot", "create", "vol0@before"]);
    does(pool, &["namespace", "attach", NQN, "vol0@before"]);
    // Hosts of a standby see what it heard of.
    standby.logs("the pool's folder is prepared", PATIENCE);
    sees_all(&offered.listen[1], &hosts[0]);

    let listen = offered.listen.clone();
    let attached = hosts.clone();
    let story = async move { reserve_and_go_on(listen, attached, || first.kill_hard()).await };
    reactor::run(reactor::Config::default(), story).expect("this machine permits io_uring");
    standby.prints("ready", PATIENCE);

    let perf = |keys: &[&str]| {
        let target = format!("{}/{NQN}", offered.listen[1]);
        let load = ["perf", &target, "--rw", "randread", "--size", "1M"];
        onefold(&[&load, keys].concat())
    };
    let attaches = perf(&["--hostnqn", PROVES, "--dhchap-secret-file", &right]);
    assert!(attaches.status.success(), "{}", text_of(&attaches));
    let stranger = Host::generate();
    for (keys, why) in [
        (
            &["--hostnqn", stranger.nqn.as_str()][..],
            "Connect Invalid Host",
        ),
        (&["--hostnqn", PROVES], "--dhchap-secret-file"),
        (
            &["--hostnqn", PROVES, "--dhchap-secret-file", &wrong],
            "wrong answer",
        ),
    ] {
        let refused = perf(keys);
        let said = text_of(&refused);
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
    assert!(does(next, &["snapshot", "list"]).contains("vol0@before"));
    assert!(does(next, &["host", "list"]).contains(PROVES));
    assert!(standby.stop().success());
    assert_consistent(next);
}

/// What the snapshot has.
fn fill(listen: &str, host: &Host) {
    with_controller(listen, host, async |controller| {
        let volume = controller.namespace(1).await.expect("a volume");
        write(&volume, 1).await.expect("nobody has reserved it");
    });
}

/// Waits until a node shows the host all namespaces.
fn sees_all(listen: &str, host: &Host) {
    with_controller(listen, host, async |controller| {
        let began = Instant::now();
        while controller.namespaces().await.expect("a list") != [1, 2, 3] {
            assert!(began.elapsed() < PATIENCE, "waited in vain for namespaces");
            reactor::sleep(AGAIN).await;
        }
    });
}

fn with_controller(listen: &str, host: &Host, run: impl AsyncFnOnce(&Controller)) {
    let address: fabric::TransportAddress = listen.parse().expect("an address");
    let work = async move {
        let connector = Connector::tcp(TcpHostConfig::default());
        let nqn = NQN.parse().expect("a name");
        let options = ConnectOptions::new(address.socket_addr(), nqn, host.clone());
        let controller = Controller::connect(&connector, options).await;
        let controller = controller.expect("the host is on the list");
        run(&controller).await;
        controller.close();
        connector.shutdown().await;
    };
    reactor::run(reactor::Config::default(), work).expect("this machine permits io_uring");
}
