//! What a pool keeps for its hosts is there on the node that takes it over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{Connector, TcpHostConfig, TransportAddress};
use initiator::{ConnectOptions, Controller, Error, Host, Namespace};
use nvme::Status;
use nvme::auth::{HostKeys, Secret};
use nvme::reservation::{AcquireAction, KeyPair, RegisterAction, ReservationType};
use tests::daemon::{onefold, text_of};

use crate::cluster;
use crate::standby::Offered;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(20);

const NQN: &str = "nqn.2026-11.dev.onefold:default";
const KIND: ReservationType = ReservationType::WriteExclusive;

/// Runs a command that has to do what it says; what it printed.
fn does(words: &[&str]) -> String {
    let output = onefold(words);
    assert!(output.status.success(), "{words:?}: {}", text_of(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// A new secret: its text, and what a host with it has.
fn new_secret() -> (String, Arc<HostKeys>) {
    let text = does(&["host", "gen-dhchap-key"]);
    let secret = Secret::parse(&text).expect("a secret");
    (text, Arc::new(HostKeys::new(secret, None)))
}

async fn attach(
    connector: &Connector,
    listen: &str,
    host: &Host,
    keys: Option<&Arc<HostKeys>>,
) -> Result<Controller, Error> {
    let address: TransportAddress = listen.parse().expect("an address");
    let nqn = NQN.parse().expect("a name");
    let options = ConnectOptions {
        keys: keys.cloned(),
        ..ConnectOptions::new(address.socket_addr(), nqn, host.clone())
    };
    Controller::connect(connector, options).await
}

async fn volume(controller: &Controller, nsid: u32) -> Namespace {
    controller.namespace(nsid).await.expect("it is there")
}

async fn write(volume: &Namespace, byte: u8) -> Result<(), Error> {
    let mut buffer = initiator::buffer(4096).await;
    buffer.fill(byte);
    volume.write(0, buffer, false).await.0
}

async fn holds(volume: &Namespace, byte: u8) -> bool {
    let (read, buffer) = volume.read(0, initiator::buffer(4096).await).await;
    read.expect("every host may read");
    buffer.iter().all(|found| *found == byte)
}

fn status<T>(result: Result<T, Error>) -> Status {
    let error = result.err().expect("it is refused");
    error.status().expect("the target answered").code()
}

#[test]
fn a_takeover_keeps_reservations_lists_of_hosts_their_keys_and_snapshots() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let offered = Offered::<2>::new(ceph, "kept", [69, 70]);
    let [owner, standby] = [0, 1].map(|at| offered.start(at));
    let [here, there] = offered.pools.each_ref();
    let [here, there] = [here, there].map(|pool| pool.to_str().expect("UTF-8"));
    let [holder, other, stranger] = [(); 3].map(|()| Host::generate());
    let (secret, keys) = new_secret();
    let file = offered.pools[0].with_extension("key");
    std::fs::write(&file, secret).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let name = holder.nqn.to_string();
    does(&[
        "host",
        "create",
        &name,
        "--dhchap-secret-file",
        file,
        "--pool",
        here,
    ]);
    for host in [&holder, &other] {
        does(&[
            "subsystem",
            "allow",
            NQN,
            &host.nqn.to_string(),
            "--pool",
            here,
        ]);
    }
    let ended = reactor::run(reactor::Config::default(), async {
        let connector = Connector::tcp(TcpHostConfig::default());
        let first = attach(&connector, &offered.listen[0], &holder, Some(&keys)).await;
        let first = first.expect("it has its key");
        let own = volume(&first, 1).await;
        write(&own, 1).await.expect("written");
        does(&["snapshot", "create", "vol0@before", "--pool", here]);
        does(&["namespace", "attach", NQN, "vol0@before", "--pool", here]);
        write(&own, 2).await.expect("written");
        // It need not survive a loss of power: a takeover is none.
        let registered = KeyPair {
            current: 0,
            other: 1,
        };
        own.register(RegisterAction::Register, false, None, registered)
            .await
            .expect("free");
        let acquired = KeyPair {
            current: 1,
            other: 0,
        };
        own.acquire(AcquireAction::Acquire, KIND, acquired)
            .await
            .expect("free");
        // The standby hears of all that, and the host is attached to it too.
        let began = Instant::now();
        let second = loop {
            let attached = attach(&connector, &offered.listen[1], &holder, Some(&keys)).await;
            if let Ok(second) = attached
                && second.namespaces().await.expect("a list") == [1, 2]
            {
                break second;
            }
            assert!(began.elapsed() < PATIENCE, "the standby hears nothing");
            reactor::sleep(AGAIN).await;
        };
        owner.kill_hard();
        let own = volume(&second, 1).await;
        let began = Instant::now();
        while let Err(error) = write(&own, 3).await {
            assert!(began.elapsed() < PATIENCE, "no node takes over: {error}");
            reactor::sleep(AGAIN).await;
        }
        let report = own.reservation_report().await.expect("a report");
        let mut holders = report.registrants.iter().filter(|host| host.is_holder);
        let found = holders.next().map(|found| (found.host, found.key));
        assert_eq!((report.kind, found), (Some(KIND), Some((holder.id, 1))));
        // Another host may read, and nothing else.
        let beside = attach(&connector, &offered.listen[1], &other, None).await;
        let beside = beside.expect("it is on the list");
        let shared = volume(&beside, 1).await;
        assert!(holds(&shared, 3).await, "what the holder wrote");
        let refused = write(&shared, 4).await;
        assert_eq!(status(refused), Status::RESERVATION_CONFLICT);
        assert!(holds(&volume(&beside, 2).await, 1).await, "the snapshot");
        // Who is not on the list, or has another key or none, stays outside.
        let refused = attach(&connector, &offered.listen[1], &stranger, None).await;
        assert_eq!(status(refused), Status::CONNECT_INVALID_HOST);
        for keys in [Some(&new_secret().1), None] {
            let refused = attach(&connector, &offered.listen[1], &holder, keys).await;
            let error = refused.expect_err("it has not the key");
            let is_known = matches!(error, Error::Authentication { .. } | Error::NoSecret { .. });
            assert!(is_known, "{error}");
        }
        for controller in [first, second, beside] {
            controller.close();
        }
        connector.shutdown().await;
    });
    ended.expect("this machine permits io_uring");
    let listed = does(&["snapshot", "list", "--pool", there]);
    assert!(listed.contains("vol0@before"), "{listed}");
    assert!(standby.stop().success());
}
