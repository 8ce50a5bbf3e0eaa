//! What hosts find when the daemon is there again. A Linux host gives its controller or its namespaces up for good
//! when it is let in too early or finds less than before. So the host of this test connects again and again, from before
//! the start on: the first connection that is taken has to find everything.

use std::sync::mpsc;
use std::time::Duration;

use fabric::{Connector, TransportAddress};
use initiator::{ConnectOptions, Controller, Host};
use nvme::Status;
use nvme::identify::IdentifyController;
use tests::{
    daemon::{Daemon, assert_consistent, onefold, text_of},
    own_address,
};

const OTHER: &str = "nqn.2026-11.x:other";

/// Volumes of the other subsystem.
const VOLUMES: u32 = 40;

/// How soon the host connects again.
const KNOCK: Duration = Duration::from_millis(1);

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a host finds: the controller, and the namespaces with their sizes in bytes.
#[derive(Debug)]
struct Found {
    identify: IdentifyController,
    namespaces: Vec<(u32, u64)>,
    /// Connects that were answered and refused before one was taken.
    refusals: Vec<Status>,
}

/// Connects again and again until it is let in.
async fn connect_again(connector: &Connector, address: &TransportAddress, host: &Host) -> Found {
    let mut refusals = Vec::new();
    loop {
        let nqn = OTHER.parse().expect("a name");
        let options = ConnectOptions::new(address.socket_addr(), nqn, host.clone());
        let controller = match Controller::connect(connector, options).await {
            Ok(controller) => controller,
            Err(error) => {
                refusals.extend(error.status());
                reactor::sleep(KNOCK).await;
                continue;
            }
        };
        // One answer after another, at once: nothing may be missing.
        let mut namespaces = Vec::new();
        for nsid in controller.namespaces().await.expect("a list") {
            let namespace = controller.namespace(nsid).await.expect("a namespace");
            namespaces.push((nsid, namespace.size_bytes()));
        }
        let identify = controller.identify().clone();
        controller.disconnect().await;
        return Found {
            identify,
            namespaces,
            refusals,
        };
    }
}

#[test]
fn the_first_connection_that_is_taken_finds_all_that_was_there_and_none_is_refused_for_good() {
    let folder = tempfile::Builder::new()
        .prefix("onefold-restarts-")
        .tempdir()
        .expect("a folder");
    let pool = folder.path().join("pool");
    let listen = format!("tcp://{}:4420", own_address(43));
    let serve = ["--listen", &listen, "--reactors", "2"];
    let mut daemon = Daemon::start(&pool, None, &[&serve[..], &["--create", "1G"]].concat());
    let dir = pool.to_str().expect("UTF-8");
    let at = |words: &[&str]| {
        let output = onefold(&[words, &["--pool", dir]].concat());
        assert!(output.status.success(), "{words:?}: {}", text_of(&output));
    };
    at(&["subsystem", "create", OTHER, "--serial", "S1"]);
    for number in 1..=VOLUMES {
        let (name, size) = (format!("v{number}"), format!("{number}M"));
        at(&[
            "volume",
            "create",
            &name,
            "--size",
            &size,
            "--subsystem",
            OTHER,
        ]);
    }
    let address: TransportAddress = listen.parse().expect("an address");
    let (ask, asked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel::<Found>();
    let host = std::thread::spawn(move || {
        reactor::run(reactor::Config::default(), async move {
            let connector = Connector::to_reach(&address).expect("a connector");
            let host = Host::generate();
            while asked.recv().is_ok() {
                let found = connect_again(&connector, &address, &host).await;
                tell.send(found).expect("somebody listens");
            }
            connector.shutdown().await;
        })
        .expect("a reactor");
    });
    ask.send(()).expect("the host lives");
    let before = told.recv_timeout(PATIENCE).expect("the host got in");
    let sizes: Vec<(u32, u64)> = (1..=VOLUMES).map(|n| (n, u64::from(n) << 20)).collect();
    assert_eq!(before.namespaces, sizes);
    let mut identifiers = vec![before.identify.cntlid];
    for is_clean in [false, true] {
        match is_clean {
            false => daemon.kill_hard(),
            true => assert!(daemon.stop().success()),
        }
        // The host connects again and again from before the start on.
        ask.send(()).expect("the host lives");
        daemon = Daemon::start(&pool, None, &serve);
        let after = told.recv_timeout(PATIENCE).expect("the host got in");
        assert_eq!(after.namespaces, before.namespaces);
        let final_ones = after.refusals.iter().filter(|status| status.is_dnr());
        assert_eq!(final_ones.count(), 0, "{:?}", after.refusals);
        // Everything as it was, queue sizes too; only what names the controller, and this life of it, is other than before.
        assert!(!identifiers.contains(&after.identify.cntlid), "used again");
        assert_ne!(after.identify.cirn, before.identify.cirn);
        identifiers.push(after.identify.cntlid);
        let expected = IdentifyController {
            cntlid: after.identify.cntlid,
            ciu: after.identify.ciu,
            cirn: after.identify.cirn,
            unvmcap: after.identify.unvmcap,
            ..before.identify.clone()
        };
        assert_eq!(after.identify, expected);
    }
    drop(ask);
    host.join().expect("the host ends");
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}
