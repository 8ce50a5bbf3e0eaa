//! How long a restart of the daemon under load is felt: from SIGTERM to the first I/O of a host that comes
//! again. `cargo test -p tests --test restart_pause -- --nocapture` prints it.

#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fabric::TransportAddress;
use tests::daemon::{Daemon, assert_consistent};
use tests::host::{Seen, stay_attached};
use tests::own_address;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

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
        let attached = stay_attached(address, 0, &on_host, |at| {
            let _ = told.send(at);
        });
        reactor::run(config, attached).expect("a reactor");
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
