//! How long a restart of the daemon under load is felt: from SIGTERM to the first I/O of a host that comes
//! again. `cargo test -p tests --test restart_pause -- --nocapture` prints it.

#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fabric::{Connector, TransportAddress};
use futures_util::future::join_all;
use initiator::{ConnectOptions, Controller, Host, Namespace};
use tests::{
    daemon::{Daemon, assert_consistent},
    own_address,
};

const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// Writes in flight: a load, and little enough for a machine that is busy with other tests.
const WRITERS: u64 = 8;

/// Bytes of a write.
const WRITE_BYTES: u64 = 4096;

/// How soon a host whose connection is lost tries again. Linux waits for 10 s unless it is told
/// otherwise (`nvme connect --reconnect-delay`); that comes on top.
const RECONNECT: Duration = Duration::from_millis(20);

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the host did.
#[derive(Default)]
struct Seen {
    enough: AtomicBool,
    writes: AtomicU64,
}

/// Connects again and again, and tells when the first write of each association is done.
async fn keep_writing(address: TransportAddress, seen: Arc<Seen>, first: mpsc::Sender<Instant>) {
    let connector = Connector::to_reach(&address).expect("a connector");
    let host = Host::generate();
    let mut last = None;
    while !seen.enough.load(Ordering::Relaxed) {
        let nqn = NQN.parse().expect("a name");
        let options = ConnectOptions::new(address.socket_addr(), nqn, host.clone());
        let Ok(controller) = Controller::connect(&connector, options).await else {
            reactor::sleep(RECONNECT).await;
            continue;
        };
        if let Ok(namespace) = controller.namespace(1).await {
            let told = AtomicBool::new(false);
            let writers =
                (0..WRITERS).map(|writer| write(writer, &namespace, &seen, &first, &told));
            last = join_all(writers).await.into_iter().flatten().max();
        }
        controller.disconnect().await;
    }
    assert!(last.is_some(), "the last association wrote");
    connector.shutdown().await;
}

/// Writes one place after the other until it fails; gives the number of its last write.
async fn write(
    writer: u64,
    namespace: &Namespace,
    seen: &Seen,
    first: &mpsc::Sender<Instant>,
    told: &AtomicBool,
) -> Option<u64> {
    let mut last = None;
    for number in 0.. {
        if seen.enough.load(Ordering::Relaxed) {
            break;
        }
        let mut buffer = initiator::buffer(WRITE_BYTES as usize).await;
        buffer[..8].copy_from_slice(&(writer << 32 | number).to_le_bytes());
        let offset = (number % 1024 * WRITERS + writer) * WRITE_BYTES;
        if namespace.write(offset, buffer, false).await.0.is_err() {
            break;
        }
        seen.writes.fetch_add(1, Ordering::Relaxed);
        if !told.swap(true, Ordering::Relaxed) {
            let _ = first.send(Instant::now());
        }
        last = Some(number);
    }
    last
}

fn measure(scheme: &str, number: u8) {
    let folder = tempfile::Builder::new()
        .prefix("onefold-restart-")
        .tempdir()
        .expect("a folder");
    let pool = folder.path().join("pool");
    let listen = format!("{scheme}://{}:4420", own_address(number));
    let serve = ["--listen", &listen, "--reactors", "1"];
    let create = [&serve[..], &["--create", "1G", "--volume", "vol0=64M"]].concat();
    let daemon = Daemon::start(&pool, None, &create);
    let address: TransportAddress = listen.parse().expect("an address");
    let seen = Arc::new(Seen::default());
    let (first, firsts) = mpsc::channel();
    let (on_host, told) = (seen.clone(), first);
    let host = std::thread::spawn(move || {
        let config = reactor::Config::default();
        reactor::run(config, keep_writing(address, on_host, told)).expect("a reactor");
    });
    firsts.recv_timeout(PATIENCE).expect("a first write");
    tests::wait_for("a load", PATIENCE, || {
        (seen.writes.load(Ordering::Relaxed) > 1000).then_some(())
    });
    let told_to_stop = Instant::now();
    assert!(daemon.stop().success(), "the daemon stops cleanly");
    let stopped = Instant::now();
    let daemon = Daemon::start(&pool, None, &serve);
    let ready = Instant::now();
    let back = firsts.recv_timeout(PATIENCE).expect("the host came again");
    println!(
        "{scheme}: {} ms from SIGTERM to the first I/O of the host: {} ms until the daemon had ended, \
         {} ms until the next one was ready, {} ms until the host was back",
        (back - told_to_stop).as_millis(),
        (stopped - told_to_stop).as_millis(),
        (ready - stopped).as_millis(),
        back.saturating_duration_since(ready).as_millis()
    );
    seen.enough.store(true, Ordering::Relaxed);
    host.join().expect("the host ends");
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}

#[test]
fn a_host_is_back_soon_after_a_restart_over_tcp() {
    measure("tcp", 41);
}

#[test]
fn a_host_is_back_soon_after_a_restart_over_rdma() {
    measure("rdma+soft", 42);
}
