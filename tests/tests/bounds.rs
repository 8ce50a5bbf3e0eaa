//! The options of `onefold serve` for what hosts may take, as hosts meet them.

mod hostile;

use fabric::{Connector, TcpHostConfig};
use hostile::{
    NQN, PATIENCE, options,
    raw::{PLAIN, Raw},
    run,
};
use initiator::Controller;
use nvme::Status;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tests::{
    daemon::{Daemon, assert_consistent, onefold, text_of},
    own_address, wait_for,
};

#[test]
fn the_daemon_takes_all_descriptors_that_the_system_allows_and_warns_of_nothing_that_nobody_asked_for()
 {
    let folder = tempfile::Builder::new()
        .prefix("onefold-descriptors-")
        .tempdir()
        .expect("a folder");
    let pool = folder.path().join("pool");
    let listen = format!("tcp://{}:4420", own_address(11));
    let before = getrlimit(Resource::Nofile);
    // As a shell or an init system starts it: the soft limit far below the hard one.
    let few = Rlimit {
        current: Some(256),
        ..before
    };
    setrlimit(Resource::Nofile, few).expect("a lower limit");
    let daemon = Daemon::start(&pool, None, &["--create", "1G", "--listen", &listen]);
    setrlimit(Resource::Nofile, before).expect("the limit as it was");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid()));
    let limits = limits.expect("the limits of a running process");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let columns: Vec<&str> = line.expect("a line").split_whitespace().collect();
    assert_eq!(columns[3], columns[4], "soft and hard limit: {limits}");
    let log = daemon.log();
    assert!(!log.contains("open files"), "{log}");
    assert!(daemon.stop().success());
}

#[test]
fn what_hosts_may_take_is_an_option_and_what_goes_beyond_is_refused_properly() {
    let folder = tempfile::Builder::new()
        .prefix("onefold-bounds-")
        .tempdir()
        .expect("a folder");
    let pool = folder.path().join("pool");
    let host = own_address(9);
    let listen = format!("tcp://{host}:4420");
    let arguments = [
        "--create",
        "1G",
        "--volume",
        "vol0=64M",
        "--reactors",
        "1",
        "--listen",
        &listen,
        "--hosts",
        "1",
        "--io-queues",
        "2",
        "--queue-depth",
        "16",
        "--in-capsule",
        "4k",
        "--tcp-connections",
        "4",
        "--handshake-timeout",
        "1",
        "--queue-share",
        "64",
        "--host-share",
        "8",
        "--stall-timeout",
        "1",
    ];
    let daemon = Daemon::start(&pool, None, &arguments);
    let address = (host, 4420).into();
    run(async {
        let connector = Connector::tcp(TcpHostConfig::default());
        // A discovery controller is no attached host of the subsystem.
        let mut wishes = options(address, 4);
        wishes.depth = 16;
        let first = Controller::connect(&connector, wishes)
            .await
            .expect("the first host");
        assert_eq!(first.io_queues(), 2, "granted of four");
        let identify = first.identify();
        assert_eq!(identify.maxcmd, 16);
        assert_eq!(identify.ioccsz, (64 + 4096) / 16);
        let refused = Controller::connect(&connector, options(address, 1)).await;
        let refused = refused.expect_err("a second host");
        let busy = Status::CONNECT_CONTROLLER_BUSY.code();
        assert_eq!(refused.status().map(Status::code), Some(busy), "{refused}");
        let log = daemon.log();
        assert!(
            log.contains("Connect was refused") && log.contains("--hosts"),
            "{log}"
        );
        // More than is brought along is asked for, and arrives all the same.
        let namespace = first.namespace(1).await.expect("namespace 1");
        let mut buffer = initiator::buffer(1 << 20).await;
        buffer.fill(7);
        namespace.write(0, buffer, false).await.0.expect("a write");

        // Three of four connections are the first host's. Of a crowd that says nothing one at most finds
        // room, and not for long.
        let mut crowd: Vec<Raw> = (0..12).map(|_| Raw::open(address)).collect();
        for silent in &mut crowd {
            silent.ends();
        }
        let status = wait_for("the refusals to be counted", PATIENCE, || {
            let status = daemon.status();
            let refused = &status["transports"][0]["refused"];
            let [crowded, silent] = ["too_many", "handshake"].map(|why| refused[why].as_u64());
            let all = crowded? + silent? == 12 && silent? <= 1;
            all.then_some(status)
        });
        assert_eq!(
            status["transports"][0]["refused"]["connect"], 1,
            "{status:#}"
        );
        // The target waits for the other half of a PDU as long as the option says, which is less than anybody's patience here.
        let mut half = Raw::initialized(address, PLAIN);
        half.send(&[4, 0, 72]);
        half.ends();
        first.disconnect().await;
        connector.shutdown().await;
    });
    let wrong = format!("{listen}/{NQN}");
    let output = onefold(&[
        "perf", &wrong, "--rw", "read", "--size", "1M", "--queues", "3",
    ]);
    assert!(
        !output.status.success() && text_of(&output).contains("granted 2 of 3"),
        "{}",
        text_of(&output)
    );
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}
