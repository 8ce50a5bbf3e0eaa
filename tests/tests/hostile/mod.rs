//! What the tests with bad hosts share: a daemon, a well-behaved host that works all the time, and the
//! daemon's use of memory and file descriptors.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

pub mod raw;

use std::{
    fs,
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use fabric::{Connector, Device, DeviceConfig, TcpHostConfig};
use initiator::{ConnectOptions, Controller, Host};
use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent},
    own_address, wait_for,
};

pub const NQN: &str = "nqn.2026-11.dev.onefold:default";
/// How long a test waits for what must happen: never the measure of anything, so generous.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The daemon's memory may grow by this much over a storm: what an allocator keeps, far below what a
/// leak of one queue or one buffer per connection would take.
const SLACK_BYTES: u64 = 24 << 20;

/// The transport that a story goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Rdma,
    Tcp,
}

impl Way {
    /// The address that the daemon listens on.
    fn listener(self, address: Ipv4Addr) -> String {
        match self {
            Way::Rdma => format!("rdma://{address}:4420"),
            Way::Tcp => format!("tcp://{address}:4420"),
        }
    }
}

/// All of them.
pub const WAYS: [Way; 2] = [Way::Rdma, Way::Tcp];

/// A daemon on a small pool.
pub struct Stage {
    folder: TempDir,
    daemon: Option<Daemon>,
    arguments: Vec<String>,
    pub address: Ipv4Addr,
}

impl Stage {
    /// Starts the daemon on a loopback address that belongs to this test (`number`, 1 to 254), with
    /// namespace 1 for whom the test is about and 2 for the witness.
    pub fn new(number: u8) -> Self {
        Self::with(number, "1G", &["vol0=256M", "vol1=256M"])
    }

    /// The same with another pool and other volumes.
    pub fn with(number: u8, pool: &str, volumes: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("onefold-storm-")
            .tempdir()
            .expect("a folder");
        let address = own_address(number);
        let mut arguments: Vec<String> = ["--buffers", "64M", "--create", pool]
            .map(str::to_owned)
            .to_vec();
        for way in WAYS {
            arguments.extend(["--listen".to_owned(), way.listener(address)]);
        }
        for volume in volumes {
            arguments.extend(["--volume".to_owned(), (*volume).to_owned()]);
        }
        let mut stage = Self {
            folder,
            daemon: None,
            arguments,
            address,
        };
        stage.start();
        stage
    }

    fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    fn start(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.daemon = Some(Daemon::start(&self.pool(), None, &arguments));
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("it runs until the end")
    }

    /// `kill -9`, and a new daemon on the same pool.
    pub fn kill_and_restart(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill_hard();
        }
        self.start();
    }

    /// Where the daemon listens.
    pub fn at(&self, way: Way) -> Place {
        Place {
            way,
            address: (self.address, 4420).into(),
            drop_every: None,
        }
    }

    /// Waits until no host but so many is attached: queues and associations are gone.
    pub fn hosts_are(&self, count: usize) {
        wait_for(&format!("{count} attached hosts"), PATIENCE, || {
            let status = self.daemon().status();
            let hosts = status["hosts"].as_array().map(Vec::len);
            (hosts == Some(count)).then_some(())
        });
    }

    /// Memory and file descriptors now.
    pub fn usage(&self) -> Usage {
        Usage::of(self.daemon().pid())
    }

    /// The daemon has given back what the storm took: file descriptors all, memory up to a slack.
    pub fn is_back_to(&self, before: Usage) {
        let now = wait_for(
            "the daemon's file descriptors to be closed",
            PATIENCE,
            || {
                let now = self.usage();
                (now.descriptors <= before.descriptors).then_some(now)
            },
        );
        assert!(
            now.resident_bytes <= before.resident_bytes + SLACK_BYTES,
            "the daemon grew: {before:?}, then {now:?}"
        );
    }

    /// Stops the daemon, which must end cleanly, and checks the pool; gives the daemon's log.
    pub fn end(mut self) -> String {
        let daemon = self.daemon.take().expect("it runs until now");
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&self.pool());
        fs::read_to_string(self.pool().with_extension("log")).expect("its log")
    }
}

/// A listener of the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub way: Way,
    pub address: SocketAddr,
    /// The host loses each so many-th packet that comes in; RDMA only.
    pub drop_every: Option<u32>,
}

impl Place {
    /// What reaches it, on the current reactor.
    pub fn connector(self) -> Connector {
        match self.way {
            Way::Rdma => device_with(self.address, self.drop_every).into(),
            Way::Tcp => Connector::tcp(TcpHostConfig::default()),
        }
    }
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub resident_bytes: u64,
    pub descriptors: usize,
}

impl Usage {
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok())
            .expect("the kernel says VmRSS in kB");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("it runs")
            .count();
        Self {
            resident_bytes: resident << 10,
            descriptors,
        }
    }
}

/// Runs a future on a reactor of its own.
pub fn run<F: Future>(future: F) -> F::Output {
    let config = reactor::Config {
        buffer_pool: reactor::PoolConfig { bytes: 32 << 20 },
        ..reactor::Config::default()
    };
    reactor::run(config, future).expect("a reactor")
}

/// A device that reaches the daemon.
pub fn device(address: SocketAddr) -> Device {
    device_with(address, None)
}

fn device_with(address: SocketAddr, drop_every: Option<u32>) -> Device {
    let mut config = DeviceConfig::to_reach(address.ip());
    config.soft.drop_every = drop_every;
    Device::open(config).expect("a device")
}

pub fn options(address: SocketAddr, io_queues: u16) -> ConnectOptions {
    let mut options = ConnectOptions::new(address, NQN.parse().expect("a name"), Host::generate());
    options.io_queues = io_queues;
    options.command_timeout = PATIENCE;
    options
}

/// A well-behaved host that writes and reads all the time, on a thread and a device of its own.
pub struct Witness {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Attaches the host; it works on namespace 2 from here on.
    pub fn start(place: Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (ends, counts) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || run(work(place, &ends, &counts)));
        let witness = Self {
            stop,
            rounds,
            thread: Some(thread),
        };
        witness.works();
        witness
    }

    /// Its commands go on: some are issued, done and verified after this call.
    pub fn works(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        wait_for("another host's I/O to go on", PATIENCE, || {
            let thread = self.thread.as_ref().expect("it runs until the end");
            assert!(!thread.is_finished(), "another host's I/O failed");
            (self.rounds.load(Ordering::Relaxed) >= before + 2).then_some(())
        });
    }

    /// Lets it leave; whatever went wrong for it fails the test.
    pub fn finish(mut self) {
        self.works();
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs until the end");
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

async fn work(place: Place, stop: &AtomicBool, rounds: &AtomicU64) {
    let connector = place.connector();
    let controller = Controller::connect(&connector, options(place.address, 1))
        .await
        .expect("the target accepts");
    let namespace = controller.namespace(2).await.expect("namespace 2");
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let offset = round % 512 * 65536;
        let mut buffer = initiator::buffer(65536).await;
        for (index, word) in buffer.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(round << 16 | index as u64).to_le_bytes());
        }
        let (result, mut buffer) = namespace.write(offset, buffer, false).await;
        result.expect("another host's write");
        buffer.fill(0);
        let (result, buffer) = namespace.read(offset, buffer).await;
        result.expect("another host's read");
        for (index, word) in buffer.chunks_exact(8).enumerate() {
            assert_eq!(
                word,
                (round << 16 | index as u64).to_le_bytes(),
                "another host's data"
            );
        }
        rounds.store(round, Ordering::Relaxed);
        // It shall notice trouble, not take the processor from those who make it.
        reactor::sleep(Duration::from_millis(5)).await;
    }
    controller.disconnect().await;
    connector.shutdown().await;
}
