//! Storms: hosts that come and go in crowds, die in every phase, or stop doing their part. Each time
//! another host's I/O goes on and the daemon ends with as much memory and as many file descriptors as
//! it had.
//!
//! `ONEFOLD_STORM_ROUNDS=10000 cargo test -p tests --test storms` connects ten thousand times; without
//! it a few hundred times, because these tests run with every change.

#![allow(clippy::print_stdout, reason = "what a queue takes is a result")]

mod hostile;

use std::{
    cell::{Cell, RefCell},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    rc::Rc,
    time::{Duration, Instant},
};

use fabric::provider::{
    Completion, ConnectionParams, QueuePair, QueuePairHandler, Work, WorkKind, WorkStatus,
};
use fabric::{CloseReason, Connector, Device, FabricMemory, HostData, HostQueue, HostQueueParams};
use futures_util::future::join_all;
use hostile::{
    NQN, Place, Stage, Way, Witness, device, options,
    raw::{PLAIN, Raw as RawTcp, connect_data, request},
    run,
};
use initiator::{ConnectOptions, Controller, Host};
use nvme::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectCommand, ConnectData, FabricsCommand,
};
use nvme::io::{IoCommand, LbaRange};
use nvme::rdma_cm::RdmaCmRequest;
use nvme::{Cqe, SglDescriptor, Sqe, properties};
use roce::endpoint::{ConnectParams, Endpoint, EndpointConfig, Path, PathMtu};
use roce::wire::cm::tcp_service_id;
use roce::wire::icrc::{self, Flow};

/// Connects in a row, unless the environment says another number.
const ROUNDS: u64 = 150;
/// Hosts that come at the same moment.
const CROWD: usize = 200;
/// Hosts of a fleet, the I/O queues of each, and their entries.
const FLEET: usize = 256;
const FLEET_QUEUES: u16 = 4;
const FLEET_DEPTH: u16 = 32;

fn rounds() -> u64 {
    match std::env::var("ONEFOLD_STORM_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("ONEFOLD_STORM_ROUNDS is a number"),
        Err(_) => ROUNDS,
    }
}

/// A host attaches, writes a block and leaves, again and again: in order, or by hanging up.
async fn come_and_go(place: Place, rounds: u64) {
    let connector = place.connector();
    for round in 0..rounds {
        let controller = Controller::connect(&connector, options(place.address, 1))
            .await
            .unwrap_or_else(|error| panic!("connect {round}: {error}"));
        let namespace = controller.namespace(1).await.expect("namespace 1");
        let mut buffer = initiator::buffer(4096).await;
        buffer.fill(round as u8);
        let offset = round % 1024 * 4096;
        namespace
            .write(offset, buffer, false)
            .await
            .0
            .expect("a write");
        drop(namespace);
        if round % 2 == 0 {
            controller.disconnect().await;
        }
    }
    connector.shutdown().await;
}

fn thousands_of_connects_in_a_row(number: u8, way: Way) {
    let stage = Stage::new(number);
    let place = stage.at(way);
    let witness = Witness::start(place);
    // What is made once and kept is made here, and the witness's writes fill RocksDB's memory, which
    // takes 60 MB over some gigabytes, whoever comes and goes.
    run(come_and_go(place, 50 + rounds() / 3));
    stage.hosts_are(1);
    let before = stage.usage();
    run(come_and_go(place, rounds()));
    stage.hosts_are(1);
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn thousands_of_connects_in_a_row_over_rdma_leave_nothing_behind() {
    thousands_of_connects_in_a_row(1, Way::Rdma);
}

#[test]
fn thousands_of_connects_in_a_row_over_tcp_leave_nothing_behind() {
    thousands_of_connects_in_a_row(31, Way::Tcp);
}

/// A crowd attaches at the same moment, writes and reads once for each of its queues, and leaves.
async fn crowd(place: Place, size: usize, wishes: ConnectOptions, attached: impl FnOnce()) {
    let connectors: Vec<Connector> = (0..10).map(|_| place.connector()).collect();
    let connects = (0..size).map(|n| {
        let connector = connectors[n % connectors.len()].clone();
        let mut options = wishes.clone();
        options.host = Host::generate();
        reactor::spawn(async move { Controller::connect(&connector, options).await })
    });
    let connects: Vec<_> = connects.collect();
    let mut controllers = Vec::new();
    for (n, connect) in connects.into_iter().enumerate() {
        let outcome = connect.await.expect("the task ends");
        controllers.push(outcome.unwrap_or_else(|error| panic!("host {n}: {error}")));
    }
    let blocks = usize::from(wishes.io_queues);
    let works = controllers
        .iter()
        .enumerate()
        .map(|(n, controller)| async move {
            let namespace = controller.namespace(1).await.expect("namespace 1");
            join_all((0..blocks).map(|block| {
                let namespace = &namespace;
                async move {
                    let offset = (n * blocks + block) as u64 * 4096;
                    let mut buffer = initiator::buffer(4096).await;
                    buffer.fill((n ^ block) as u8);
                    let (result, buffer) = namespace.write(offset, buffer, false).await;
                    result.expect("a write");
                    let (result, buffer) = namespace.read(offset, buffer).await;
                    result.expect("a read");
                    let right = buffer.iter().all(|byte| *byte == (n ^ block) as u8);
                    assert!(right, "host {n}");
                }
            }))
            .await;
        });
    join_all(works).await;
    attached();
    join_all(controllers.into_iter().map(Controller::disconnect)).await;
    join_all(connectors.iter().map(Connector::shutdown)).await;
}

fn two_hundred_hosts_at_once(number: u8, way: Way) {
    let stage = Stage::new(number);
    let place = stage.at(way);
    let witness = Witness::start(place);
    // Memory for so many queues is kept by the allocator: the second crowd finds it there.
    let wishes = options(place.address, 1);
    let all_there = || stage.hosts_are(CROWD + 1);
    run(crowd(place, CROWD, wishes.clone(), all_there));
    stage.hosts_are(1);
    let before = stage.usage();
    run(crowd(place, CROWD, wishes, || witness.works()));
    stage.hosts_are(1);
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn two_hundred_hosts_that_connect_at_once_over_rdma_are_all_served() {
    two_hundred_hosts_at_once(2, Way::Rdma);
}

#[test]
fn two_hundred_hosts_that_connect_at_once_over_tcp_are_all_served() {
    two_hundred_hosts_at_once(32, Way::Tcp);
}

#[test]
fn a_fleet_of_256_hosts_with_four_queues_each_over_rdma_is_served() {
    let stage = Stage::new(3);
    let place = stage.at(Way::Rdma);
    let witness = Witness::start(place);
    let mut wishes = options(place.address, FLEET_QUEUES);
    wishes.depth = FLEET_DEPTH;
    let before = stage.usage();
    let all_there = || {
        stage.hosts_are(FLEET + 1);
        let now = stage.usage().resident_bytes;
        let taken = now.saturating_sub(before.resident_bytes);
        // With the admin queues, of 32 entries too.
        let queues = FLEET as u64 * (u64::from(FLEET_QUEUES) + 1);
        println!(
            "{queues} queues of {FLEET_DEPTH}: {} bytes each, capsules included",
            taken / queues
        );
        witness.works();
    };
    run(crowd(place, FLEET, wishes, all_there));
    stage.hosts_are(1);
    witness.finish();
    stage.end();
}

/// How far a host gets before it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Transport,
    ConnectSent,
    Connected,
    Enabled,
    IoTransport,
    IoConnected,
    Working,
}

const PHASES: [Phase; 7] = [
    Phase::Transport,
    Phase::ConnectSent,
    Phase::Connected,
    Phase::Enabled,
    Phase::IoTransport,
    Phase::IoConnected,
    Phase::Working,
];

/// The keep-alive timeout of hosts that die.
const KATO_MS: u32 = 1000;

async fn fabrics_connect(queue: &HostQueue, host: &Host, qid: u16, cntlid: u16) -> Cqe {
    let command = ConnectCommand {
        record_format: 0,
        qid,
        sqsize: 31,
        attributes: 0,
        kato_ms: KATO_MS,
    };
    let data = ConnectData {
        host_id: host.id,
        cntlid,
        subsystem: NQN.parse().expect("a name"),
        host: host.nqn.clone(),
    };
    let mut buffer = initiator::buffer(CONNECT_DATA_BYTES).await;
    buffer[..CONNECT_DATA_BYTES].copy_from_slice(&data.encode());
    let data = HostData::ToTarget(buffer, CONNECT_DATA_BYTES);
    let (cqe, _) = queue
        .submit(command.to_sqe(), data)
        .await
        .expect("an answer");
    assert!(cqe.status.is_success(), "{:?}", cqe.status);
    cqe
}

/// Goes up to that phase, and gives back what must be dropped to hang up.
async fn go_as_far_as(connector: &Connector, place: Place, phase: Phase) -> Vec<HostQueue> {
    let params = HostQueueParams {
        qid: 0,
        depth: 32,
        cntlid: 0,
        in_capsule_bytes: 0,
    };
    let admin = HostQueue::connect(connector, place.address, params)
        .await
        .expect("an admin queue");
    let mut queues = vec![admin.clone()];
    let host = Host::generate();
    if phase == Phase::ConnectSent {
        let (queue, host) = (admin.clone(), host.clone());
        drop(reactor::spawn(async move {
            fabrics_connect(&queue, &host, 0, CNTLID_DYNAMIC).await;
        }));
        reactor::yield_now().await;
    }
    if phase < Phase::Connected {
        return queues;
    }
    let cntlid = fabrics_connect(&admin, &host, 0, CNTLID_DYNAMIC)
        .await
        .result as u16;
    if phase >= Phase::Enabled {
        let enable = FabricsCommand::property_set(properties::CC, false, 0x0046_0001);
        admin.submit(enable, HostData::None).await.expect("enabled");
    }
    if phase >= Phase::IoTransport {
        let params = HostQueueParams {
            qid: 1,
            cntlid,
            ..params
        };
        let io = HostQueue::connect(connector, place.address, params)
            .await
            .expect("an I/O queue");
        queues.push(io.clone());
        if phase >= Phase::IoConnected {
            fabrics_connect(&io, &host, 1, cntlid).await;
        }
        if phase == Phase::Working {
            for n in 0..16 {
                let (io, buffer) = (io.clone(), initiator::buffer(1 << 20).await);
                let range = LbaRange {
                    slba: n * 256,
                    blocks: 256,
                };
                let write = IoCommand::Write {
                    nsid: 1,
                    range,
                    fua: false,
                };
                drop(reactor::spawn(async move {
                    let data = HostData::ToTarget(buffer, 1 << 20);
                    let _ = io.submit(write.to_sqe(), data).await;
                }));
            }
            reactor::yield_now().await;
        }
    }
    queues
}

/// Hosts that hang up in every phase, with or without a word.
fn hang_up_in_every_phase(place: Place, silently: bool) {
    for phase in PHASES {
        if silently {
            // The reactor ends with its sockets, as a host does that loses its power.
            let host = reactor::start(reactor::Config::default()).expect("a reactor");
            let (ready, wait) = std::sync::mpsc::channel();
            let task = host.handle().spawn(move || async move {
                let connector = place.connector();
                let queues = go_as_far_as(&connector, place, phase).await;
                ready.send(()).expect("the test waits");
                std::future::pending::<()>().await;
                drop(queues);
            });
            wait.recv().expect("the phase is reached");
            host.stop_and_join();
            assert!(task.wait().is_err(), "it was cut off");
        } else {
            run(async {
                let connector = place.connector();
                drop(go_as_far_as(&connector, place, phase).await);
                connector.shutdown().await;
            });
        }
    }
}

fn hosts_that_hang_up(number: u8, way: Way, silently: bool) {
    let stage = Stage::new(number);
    let place = stage.at(way);
    let witness = Witness::start(place);
    hang_up_in_every_phase(place, silently);
    stage.hosts_are(1);
    let before = stage.usage();
    for _ in 0..3 {
        hang_up_in_every_phase(place, silently);
        witness.works();
    }
    stage.hosts_are(1);
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn hosts_that_hang_up_in_any_phase_over_rdma_leave_nothing_behind() {
    hosts_that_hang_up(3, Way::Rdma, false);
}

#[test]
fn hosts_that_hang_up_in_any_phase_over_tcp_leave_nothing_behind() {
    hosts_that_hang_up(33, Way::Tcp, false);
}

#[test]
fn hosts_that_die_without_a_word_in_any_phase_over_rdma_are_noticed() {
    hosts_that_hang_up(4, Way::Rdma, true);
}

#[test]
fn hosts_that_die_without_a_word_in_any_phase_over_tcp_are_noticed() {
    hosts_that_hang_up(34, Way::Tcp, true);
}

/// A host without manners: a bare queue pair, and what happened on it.
struct Raw {
    qp: Rc<dyn QueuePair>,
    seen: Rc<Seen>,
}

#[derive(Default)]
struct Seen {
    established: Cell<bool>,
    responses: Cell<usize>,
    closed: RefCell<Option<CloseReason>>,
}

impl QueuePairHandler for Seen {
    fn established(&self, _private_data: &[u8]) {
        self.established.set(true);
    }

    fn completed(&self, completion: Completion) {
        if completion.kind == WorkKind::Receive && completion.status == WorkStatus::Success {
            self.responses.set(self.responses.get() + 1);
        }
    }

    fn closed(&self, reason: CloseReason) {
        *self.closed.borrow_mut() = Some(reason);
    }
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        reactor::sleep(Duration::from_millis(5)).await;
    }
}

impl Raw {
    /// Connects a queue pair that takes so many responses and no more.
    async fn connect(device: &Device, address: SocketAddr, receives: usize) -> Self {
        let request = RdmaCmRequest {
            qid: 0,
            hrqsize: 32,
            hsqsize: 31,
            cntlid: 0,
        };
        let seen = Rc::new(Seen::default());
        let params = ConnectionParams {
            private_data: request.encode().to_vec(),
            receives: (0..receives)
                .map(|_| FabricMemory::inline(&[0; 16]))
                .collect(),
            receives_later: 0,
        };
        let qp = device.rdma().connect(address, params, seen.clone());
        let raw = Self {
            qp: qp.expect("started"),
            seen,
        };
        until(|| raw.seen.established.get() || raw.seen.closed.borrow().is_some()).await;
        assert!(raw.seen.established.get(), "{:?}", raw.seen.closed);
        raw
    }

    /// Sends an entry that asks for nothing, and gets an error before a Connect.
    fn send(&self, cid: u16) -> bool {
        let mut sqe = Sqe::new(0x18);
        sqe.set_cid(cid);
        sqe.set_sgl(&SglDescriptor::NONE);
        let work = Work::Send {
            data: FabricMemory::Capsule(sqe.0.to_vec().into_boxed_slice()),
            len: sqe.0.len(),
            invalidate: None,
        };
        self.qp.post_send(0, work).is_ok()
    }

    async fn closed(&self) -> CloseReason {
        until(|| self.seen.closed.borrow().is_some()).await;
        self.seen.closed.borrow().clone().expect("closed")
    }
}

#[test]
fn a_host_that_takes_no_answers_ends_alone() {
    let stage = Stage::new(5);
    let witness = Witness::start(stage.at(Way::Rdma));
    let round = || {
        run(async {
            let device = device(stage.at(Way::Rdma).address);
            let connects = (0..10).map(|_| Raw::connect(&device, stage.at(Way::Rdma).address, 1));
            let raws = join_all(connects).await;
            for raw in &raws {
                // Each answer wants a receive, and only the first finds one.
                for cid in 0..8 {
                    raw.send(cid);
                }
            }
            for raw in &raws {
                assert!(!matches!(raw.closed().await, CloseReason::Local));
                assert!(raw.seen.responses.get() <= 1);
            }
            device.shutdown().await;
        });
    };
    round();
    witness.works();
    let before = stage.usage();
    round();
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn more_commands_than_a_queue_has_entries_end_that_queue_alone() {
    let stage = Stage::new(6);
    let witness = Witness::start(stage.at(Way::Rdma));
    let round = || {
        run(async {
            let device = device(stage.at(Way::Rdma).address);
            for _ in 0..20 {
                let raw = Raw::connect(&device, stage.at(Way::Rdma).address, 64).await;
                // Answers come while it sends, so it takes more than the queue has to overrun it.
                let mut cid = 0_u16;
                while raw.seen.closed.borrow().is_none() && cid < 2048 {
                    if !raw.send(cid) {
                        reactor::yield_now().await;
                        continue;
                    }
                    cid += 1;
                }
                raw.qp.disconnect();
                raw.closed().await;
            }
            device.shutdown().await;
        });
    };
    round();
    witness.works();
    let before = stage.usage();
    round();
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

/// Connection requests from many addresses, none of which goes on when it is answered.
fn flood(stage: &Stage, hosts: u8, requests: usize) {
    let [_, second, third, _] = stage.address.octets();
    for host in 1..=hosts {
        // Addresses beside the daemon's that no story uses.
        let local = Ipv4Addr::new(127, second | 0x80, third, host);
        let socket = UdpSocket::bind((local, roce::wire::UDP_PORT)).expect("an address of our own");
        let mut endpoint = Endpoint::<Vec<u8>>::new(EndpointConfig::default(), [host; 32]);
        let path = Path {
            local: local.into(),
            remote: stage.address.into(),
        };
        let request = RdmaCmRequest {
            qid: 1,
            hrqsize: 128,
            hsqsize: 127,
            cntlid: 0,
        };
        let now = Instant::now();
        let service = tcp_service_id(4420);
        for _ in 0..requests {
            let private = request.encode().to_vec();
            let params = ConnectParams::new(service, private, PathMtu::Mtu1024);
            endpoint.connect(now, path, params).expect("room");
        }
        let flow = Flow::new(path.local, path.remote, roce::wire::UDP_PORT);
        endpoint.poll_transmit(now, usize::MAX, &mut |packet| {
            let mut bytes = packet.header.to_vec();
            bytes.extend_from_slice(packet.payload);
            bytes.resize(bytes.len() + usize::from(packet.pad), 0);
            let check = icrc::compute(&flow, 0, &bytes);
            bytes.extend(check.to_le_bytes());
            // A full buffer loses it, as a network would.
            let _ = socket.send_to(&bytes, (stage.address, roce::wire::UDP_PORT));
        });
    }
}

#[test]
fn a_flood_of_requests_that_nobody_follows_up_passes() {
    let stage = Stage::new(7);
    let witness = Witness::start(stage.at(Way::Rdma));
    let visit = || {
        flood(&stage, 20, 200);
        witness.works();
        // They keep nobody out.
        run(async {
            let place = stage.at(Way::Rdma);
            let connector = place.connector();
            let controller = Controller::connect(&connector, options(place.address, 4)).await;
            let controller = controller.expect("there is room for a host that answers");
            controller.disconnect().await;
            connector.shutdown().await;
        });
    };
    visit();
    let before = stage.usage();
    visit();
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

/// A host over TCP that asks for much and takes nothing.
fn stops_reading(address: SocketAddr) -> [RawTcp; 2] {
    let [admin, mut io] = RawTcp::attached_with(address, PLAIN, 5000);
    for _ in 0..30 {
        let range = LbaRange {
            slba: 0,
            blocks: 64,
        };
        let read = IoCommand::Read {
            nsid: 1,
            range,
            fua: false,
        };
        io.begin_transport(read.to_sqe(), 64 * 4096);
    }
    [admin, io]
}

#[test]
fn hosts_over_tcp_that_stop_reading_hold_up_nobody_and_are_given_up() {
    let stage = Stage::new(11);
    let place = stage.at(Way::Tcp);
    let witness = Witness::start(place);
    let before = stage.usage();
    // Together they ask for almost three times the memory that the daemon has for data.
    let silent: Vec<[RawTcp; 2]> = (0..24).map(|_| stops_reading(place.address)).collect();
    witness.works();
    witness.works();
    // Who comes now is served too.
    run(come_and_go(place, 3));
    let status = stage.daemon().status();
    let transports = status["transports"].as_array().expect("a list");
    let tcp = transports.iter().find(|of| of["transport"] == "tcp");
    let held_back = tcp.and_then(|tcp| tcp["held_back"].as_u64());
    assert!(held_back > Some(0), "they wait for their hosts: {tcp:#?}");
    // They still hold their connections and read nothing: the target hangs up.
    stage.hosts_are(1);
    drop(silent);
    witness.works();
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn hosts_over_tcp_that_send_a_byte_at_a_time_hold_up_nobody() {
    let stage = Stage::new(12);
    let place = stage.at(Way::Tcp);
    let witness = Witness::start(place);
    let round = || {
        let mut slow: Vec<RawTcp> = (0..50).map(|_| RawTcp::open(place.address)).collect();
        let host = Host::generate();
        let mut words = request(PLAIN, 0);
        let command = ConnectCommand {
            record_format: 0,
            qid: 0,
            sqsize: 31,
            attributes: 0,
            kato_ms: 0,
        };
        let mut sqe = command.to_sqe();
        sqe.set_sgl(&SglDescriptor::InCapsule {
            offset: 0,
            length: CONNECT_DATA_BYTES as u32,
        });
        words.extend(slow[0].capsule(sqe, &connect_data(&host, CNTLID_DYNAMIC)));
        // Half of a Connect, in more than a thousand pieces; then some hang up and some go on.
        let half = words.len() - 600;
        for byte in &words[..half] {
            for raw in &mut slow {
                raw.send(std::slice::from_ref(byte));
            }
        }
        witness.works();
        slow.truncate(25);
        for byte in &words[half..] {
            for raw in &mut slow {
                raw.send(std::slice::from_ref(byte));
            }
        }
        for raw in &mut slow {
            raw.initialize();
            assert!(raw.completion().status.is_success());
        }
        witness.works();
        drop(slow);
        stage.hosts_are(1);
    };
    round();
    let before = stage.usage();
    round();
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn hosts_over_tcp_that_begin_and_never_go_on_are_given_up() {
    let stage = Stage::new(13);
    let place = stage.at(Way::Tcp);
    let witness = Witness::start(place);
    let before = stage.usage();
    // Nothing; half an ICReq; an ICReq and nothing more; half a Connect.
    let mut waiting: Vec<RawTcp> = (0..40).map(|_| RawTcp::open(place.address)).collect();
    for (number, raw) in waiting.iter_mut().enumerate() {
        let mut bytes = request(PLAIN, 0);
        bytes.extend(raw.capsule(Sqe::new(0x7f), &[0; 100]));
        raw.send(&bytes[..[0, 64, 128, 150][number % 4]]);
    }
    witness.works();
    // The target hangs up by itself.
    for raw in &mut waiting {
        raw.ends();
    }
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

#[test]
fn a_host_that_is_refused_again_and_again_gets_a_few_lines_of_the_log_and_a_count_of_the_rest() {
    const CONNECTS: u64 = 200;
    let stage = Stage::new(14);
    let place = stage.at(Way::Tcp);
    let witness = Witness::start(place);
    let mut raw = RawTcp::initialized(place.address, PLAIN);
    let peer = raw.socket.local_addr().expect("it is connected").ip();
    let host = Host::generate();
    let unknown = ConnectData {
        host_id: host.id,
        cntlid: CNTLID_DYNAMIC,
        subsystem: "nqn.2026-11.org.example:unknown".parse().expect("a name"),
        host: host.nqn,
    };
    let command = ConnectCommand {
        record_format: 0,
        qid: 0,
        sqsize: 31,
        attributes: 0,
        kato_ms: 0,
    };
    for _ in 0..CONNECTS {
        let cqe = raw.call(command.to_sqe(), &unknown.encode());
        assert!(!cqe.status.is_success(), "{cqe:?}");
    }
    witness.finish();
    let log = stage.end();
    let kind = "Connect was refused";
    let of_peer = || {
        let about = |line: &&str| line.contains(kind) && line.contains(&peer.to_string());
        log.lines().filter(about)
    };
    let is_count = |line: &&str| line.contains("lines of the log were left out");
    let left_out = |line: &str| -> Option<u64> {
        let number = line.split_once("left_out=")?.1;
        number.split(' ').next()?.parse().ok()
    };
    let lines = of_peer().filter(|line| !is_count(line)).count() as u64;
    assert!((1..CONNECTS / 2).contains(&lines), "{lines} lines:\n{log}");
    assert!(of_peer().any(|line| is_count(&line)), "no count in:\n{log}");
    let counted: u64 = of_peer().filter_map(left_out).sum();
    assert_eq!(lines + counted, CONNECTS, "{log}");
}
