//! Reservations of the program from outside: two hosts, one volume, and a daemon that is killed between.

mod hostile;

use hostile::{NQN, run};
use initiator::{ConnectOptions, Controller, Error, Host, Namespace};
use nvme::{
    Status,
    reservation::{AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReservationType},
};
use tests::{
    daemon::{Daemon, assert_consistent, onefold, text_of},
    own_address,
};

use fabric::{Connector, TcpHostConfig};

const KIND: ReservationType = ReservationType::WriteExclusive;

fn keys(current: u64, other: u64) -> KeyPair {
    KeyPair { current, other }
}

async fn write(namespace: &Namespace) -> Result<(), Error> {
    let buffer = initiator::buffer(4096).await;
    namespace.write(0, buffer, false).await.0
}

#[track_caller]
fn conflicts(result: Result<(), Error>) {
    let error = result.expect_err("the other host has it");
    let status = error.status().expect("the target answered");
    assert_eq!(status.code(), Status::RESERVATION_CONFLICT, "{error}");
}

#[test]
fn a_reservation_outlives_a_killed_daemon_and_falls_to_who_preempts_it() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let pool = folder.path().join("pool");
    let host = own_address(1);
    let listen = format!("tcp://{host}:4420");
    let arguments = [
        "--create", "256M", "--volume", "vol0=64M", "--listen", &listen,
    ];
    let daemon = Daemon::start(&pool, None, &arguments);
    let hosts = [Host::generate(), Host::generate()];
    let attach = async |connector: &Connector| {
        let mut attached = Vec::new();
        for host_name in &hosts {
            let nqn = NQN.parse().expect("a name");
            let mut options = ConnectOptions::new((host, 4420).into(), nqn, host_name.clone());
            options.io_queues = 1;
            let controller = Controller::connect(connector, options).await;
            let controller = controller.expect("the daemon listens");
            let namespace = controller.namespace(1).await.expect("namespace 1");
            attached.push((controller, namespace));
        }
        attached
    };
    let path = pool.to_str().expect("test folders are UTF-8");
    let told = |verb| {
        let output = onefold(&["reservation", verb, "vol0", "--pool", path]);
        assert!(output.status.success(), "{}", text_of(&output));
        text_of(&output)
    };
    run(async {
        let connector = Connector::tcp(TcpHostConfig::default());
        let attached = attach(&connector).await;
        let [(_, one), (_, two)] = &attached[..] else {
            panic!("two hosts");
        };
        let register = RegisterAction::Register;
        one.register(register, false, Some(true), keys(0, 1))
            .await
            .expect("free");
        two.register(register, false, None, keys(0, 2))
            .await
            .expect("free");
        one.acquire(AcquireAction::Acquire, KIND, keys(1, 0))
            .await
            .expect("free");
        write(one).await.expect("it has it");
        conflicts(write(two).await);
        daemon.kill_hard();
        drop(attached);
        connector.shutdown().await;
    });
    let daemon = Daemon::start(&pool, None, &["--listen", &listen]);
    let text = told("show");
    assert!(
        text.contains("reservation write exclusive, survives a restart"),
        "{text}"
    );
    run(async {
        let connector = Connector::tcp(TcpHostConfig::default());
        let attached = attach(&connector).await;
        let [(first, one), (second, two)] = &attached[..] else {
            panic!("two hosts");
        };
        conflicts(write(two).await);
        let report = two.reservation_report().await.expect("a report");
        assert_eq!((report.kind, report.persist), (Some(KIND), true));
        let mut holders = report.registrants.iter().filter(|host| host.is_holder);
        let holder = holders.next().map(|holder| (holder.host, holder.key));
        assert_eq!(holder, Some((hosts[0].id, 1)));
        two.acquire(AcquireAction::PreemptAndAbort, KIND, keys(2, 1))
            .await
            .expect("it is registered");
        conflicts(write(one).await);
        write(two).await.expect("it has it");
        conflicts(one.release(ReleaseAction::Clear, KIND, 1).await);
        let text = told("clear");
        assert!(text.contains("reservation none"), "{text}");
        write(one).await.expect("no host holds it");
        first.clone().disconnect().await;
        second.clone().disconnect().await;
        connector.shutdown().await;
    });
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}
