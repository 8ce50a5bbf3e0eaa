//! Hosts that break the protocol: numbers 29 and 30 of the bad inputs that a target must survive, and
//! overrun of the queue (21). Each time only the offender's own queue ends, and another host's
//! commands go on.

mod common;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::*;
use fabric::provider::{
    Completion, ConnectionParams, QueuePair, QueuePairHandler, RegionKey, RemoteRights, Work,
    WorkKind, WorkStatus,
};
use fabric::{
    CloseReason, Device, FabricMemory, HostData, HostQueue, Listener, ListenerConfig, QueueLimits,
    SoftConfig, TargetQueue,
};
use nvme::rdma_cm::{RdmaCmReject, RdmaCmRequest, RdmaCmStatus};
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use roce::endpoint::{ConnectParams, Endpoint, EndpointConfig, Path, PathMtu};
use roce::wire::UDP_PORT;
use roce::wire::cm::tcp_service_id;
use roce::wire::icrc::{self, Flow};

const GOOD: RdmaCmRequest = RdmaCmRequest {
    qid: 1,
    hrqsize: 32,
    hsqsize: 31,
    cntlid: 1,
};

/// A host without manners: a bare queue pair, and what happened on it.
struct Raw {
    qp: Rc<dyn QueuePair>,
    seen: Rc<Seen>,
}

#[derive(Default)]
struct Seen {
    established: Cell<bool>,
    responses: RefCell<Vec<Cqe>>,
    closed: RefCell<Option<CloseReason>>,
}

impl QueuePairHandler for Seen {
    fn established(&self, _private_data: &[u8]) {
        self.established.set(true);
    }

    fn completed(&self, completion: Completion) {
        let ok = completion.status == WorkStatus::Success;
        if ok && completion.kind == WorkKind::Receive {
            let cqe = Cqe::decode(&completion.memory.bytes()[..completion.len]);
            self.responses
                .borrow_mut()
                .push(cqe.expect("a whole entry"));
        }
    }

    fn closed(&self, reason: CloseReason) {
        *self.closed.borrow_mut() = Some(reason);
    }
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        reactor::sleep(LOOK_AGAIN).await;
    }
}

impl Raw {
    fn start(host: &Device, target: SocketAddr, private_data: &[u8]) -> Self {
        let seen = Rc::new(Seen::default());
        let params = ConnectionParams {
            private_data: private_data.to_vec(),
            receives: (0..64).map(|_| FabricMemory::inline(&[0; 16])).collect(),
            receives_later: 0,
        };
        let qp = host
            .rdma()
            .connect(target, params, seen.clone())
            .expect("started");
        Self { qp, seen }
    }

    async fn connect(host: &Device, target: &Target) -> Self {
        Self::connect_to(host, target.address()).await
    }

    async fn connect_to(host: &Device, target: SocketAddr) -> Self {
        let raw = Self::start(host, target, &GOOD.encode());
        until(|| raw.seen.established.get()).await;
        raw
    }

    fn send(&self, message: Vec<u8>) {
        let len = message.len();
        let data = FabricMemory::Capsule(message.into_boxed_slice());
        self.qp
            .post_send(
                0,
                Work::Send {
                    data,
                    len,
                    invalidate: None,
                },
            )
            .expect("posted");
    }

    async fn closed(&self) -> CloseReason {
        until(|| self.seen.closed.borrow().is_some()).await;
        self.seen.closed.borrow().clone().expect("closed")
    }
}

/// A target, a well-behaved host's queue, and a device for the others.
async fn scene() -> (Target, HostQueue, Device) {
    let target = Target::start(SoftConfig::default());
    let good = connect(&device(SoftConfig::default()), &target).await;
    (target, good, device(SoftConfig::default()))
}

async fn goes_on(good: &HostQueue) {
    let data = pattern(99, 131_072);
    assert_eq!(write(good, 0, &data).await, Status::SUCCESS);
    assert!(read(good, 0, data.len()).await == data);
}

#[test]
fn bad_input_29_connection_requests_that_make_no_sense_are_refused_with_a_status() {
    run(async {
        let (target, good, host) = scene().await;
        let changed = |at: usize, value: u16| {
            let mut bytes = GOOD.encode().to_vec();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        let cases = [
            (changed(0, 1), RdmaCmStatus::InvalidRecordFormat),
            (changed(4, 0), RdmaCmStatus::InvalidHrqSize),
            (changed(4, 0xffff), RdmaCmStatus::InvalidHrqSize),
            (changed(6, 0), RdmaCmStatus::InvalidHsqSize),
            (changed(6, 0xffff), RdmaCmStatus::InvalidHsqSize),
            (changed(6, 1024), RdmaCmStatus::InvalidHsqSize),
            // The admin queue has at most 32 entries.
            (
                RdmaCmRequest {
                    qid: 0,
                    hsqsize: 127,
                    ..GOOD
                }
                .encode()
                .to_vec(),
                RdmaCmStatus::InvalidHsqSize,
            ),
            // The connection manager's field is padded with zeroes, so what is cut off is 0.
            (GOOD.encode()[..6].to_vec(), RdmaCmStatus::InvalidHsqSize),
            (Vec::new(), RdmaCmStatus::InvalidHrqSize),
        ];
        for (private_data, status) in cases {
            let raw = Raw::start(&host, target.address(), &private_data);
            let CloseReason::Refused {
                reason: 28,
                private_data,
            } = raw.closed().await
            else {
                panic!("not refused: {:?}", raw.seen.closed);
            };
            assert_eq!(
                RdmaCmReject::parse(&private_data).map(|r| r.status),
                Some(status as u16)
            );
            goes_on(&good).await;
        }
        assert_eq!(target.queues.borrow().len(), 1);
    });
}

#[test]
fn bad_input_29_more_connects_than_may_wait_are_served_later_or_refused() {
    run(async {
        let (target, good, host) = scene().await;
        // A second port whose owner does not look at it yet.
        let listener = Listener::bind(&target.device, PORT + 1).expect("free");
        let busy: std::net::SocketAddr = (target.address().ip(), PORT + 1).into();
        let connects: Vec<_> = (0..200)
            .map(|_| {
                let seen = Rc::new(Seen::default());
                let params = ConnectionParams {
                    private_data: GOOD.encode().to_vec(),
                    receives: vec![FabricMemory::inline(&[0; 16])],
                    receives_later: 0,
                };
                let qp = host
                    .rdma()
                    .connect(busy, params, seen.clone())
                    .expect("started");
                Raw { qp, seen }
            })
            .collect();
        goes_on(&good).await;
        let (taker, queues) = (target.clone(), target.queues.clone());
        let accepting = reactor::spawn(async move {
            while let Some(incoming) = listener.accept().await {
                taker.take(incoming);
            }
        });
        let answered = |raw: &Raw| raw.seen.established.get() || raw.seen.closed.borrow().is_some();
        until(|| connects.iter().all(answered)).await;
        let established = connects
            .iter()
            .filter(|raw| raw.seen.established.get())
            .count();
        assert!(established >= 128, "only {established}");
        goes_on(&good).await;
        connects.iter().for_each(|raw| raw.qp.disconnect());
        for raw in &connects {
            raw.closed().await;
        }
        until(|| {
            queues
                .borrow()
                .iter()
                .filter(|queue| !queue.is_closing())
                .count()
                == 1
        })
        .await;
        accepting.abort();
        goes_on(&good).await;
    });
}

/// A target that takes a host's first command for the proof of who it is.
async fn serve_proven(target: Target, listener: Rc<Listener>) {
    while let Some(incoming) = listener.accept().await {
        let Ok(queue) = TargetQueue::accept_rdma(incoming, QueueLimits::default()) else {
            continue;
        };
        let disk = target.disk.clone();
        drop(reactor::spawn(async move {
            let Some(first) = queue.next_command().await else {
                return;
            };
            queue.proved(true);
            drop(reactor::spawn(execute(disk.clone(), queue.clone(), first)));
            serve(disk, queue).await;
        }));
    }
}

/// Requests for I/O queues of 128 entries from an address that does not take the answers.
fn ask_and_vanish(local: IpAddr, target: SocketAddr, requests: usize) {
    let mut endpoint = Endpoint::<Vec<u8>>::new(EndpointConfig::default(), [7; 32]);
    let remote = target.ip();
    let path = Path { local, remote };
    let socket = UdpSocket::bind((local, UDP_PORT)).expect("an address of its own");
    let request = RdmaCmRequest {
        hrqsize: 128,
        hsqsize: 127,
        ..GOOD
    };
    let now = Instant::now();
    for _ in 0..requests {
        let private_data = request.encode().to_vec();
        let service = tcp_service_id(target.port());
        let params = ConnectParams::new(service, private_data, PathMtu::Mtu1024);
        endpoint.connect(now, path, params).expect("room");
    }
    let flow = Flow::new(local, remote, UDP_PORT);
    endpoint.poll_transmit(now, usize::MAX, &mut |packet| {
        let mut bytes = [packet.header, packet.payload].concat();
        bytes.resize(bytes.len() + usize::from(packet.pad), 0);
        let check = icrc::compute(&flow, 0, &bytes);
        bytes.extend(check.to_le_bytes());
        socket.send_to(&bytes, (remote, UDP_PORT)).expect("sent");
    });
}

#[test]
fn six_hundred_requests_that_nobody_follows_up_keep_no_host_out() {
    run(async {
        let target = Target::over(device(SoftConfig::default()));
        let listener = Rc::new(Listener::bind(&target.device, PORT).expect("a free port"));
        drop(reactor::spawn(serve_proven(
            target.clone(),
            listener.clone(),
        )));
        let seen = || listener.counters();
        for round in 1..=60 {
            ask_and_vanish(own_address(), target.address(), 10);
            until(|| seen().accepted >= round * 10).await;
        }
        assert_eq!(seen().queue_bytes, 0, "nobody has proved anything");
        assert_eq!(seen().turned_away, 600 - 256);
        let good = connect(&device(SoftConfig::default()), &target).await;
        goes_on(&good).await;
        assert_eq!(seen().queue_bytes, 33 * (64 + 4096));
        assert_eq!(seen().refused_no_resources, 0);
    });
}

#[test]
fn hosts_at_one_address_that_connect_and_say_no_more_leave_places_for_others() {
    run(async {
        let target = Target::over(device(SoftConfig::default()));
        let config = ListenerConfig {
            unproven_max: 16,
            ..ListenerConfig::new(PORT)
        };
        let listener = Listener::bind_with(&target.device, config).expect("a free port");
        let listener = Rc::new(listener);
        drop(reactor::spawn(serve_proven(
            target.clone(),
            listener.clone(),
        )));
        let host = device(SoftConfig::default());
        let mut silent = Vec::new();
        for _ in 0..16 {
            silent.push(Raw::connect(&host, &target).await);
        }
        let one_more = Raw::start(&host, target.address(), &GOOD.encode());
        assert!(matches!(
            one_more.closed().await,
            CloseReason::Refused { reason: 28, .. }
        ));
        let other = device(SoftConfig::default());
        let good = connect(&other, &target).await;
        goes_on(&good).await;
        // The oldest gave way; and what has proved who it is has no need of a place.
        silent[0].closed().await;
        assert!(
            silent[1..]
                .iter()
                .all(|raw| raw.seen.closed.borrow().is_none())
        );
        for _ in 0..16 {
            let queue = connect(&other, &target).await;
            goes_on(&queue).await;
        }
    });
}

fn capsule(sqe: Sqe, sgl: SglDescriptor, data: usize) -> Vec<u8> {
    let mut sqe = sqe;
    sqe.set_sgl(&sgl);
    let mut message = sqe.0.to_vec();
    message.resize(64 + data, 0xee);
    message
}

#[test]
fn bad_input_30_a_capsule_that_makes_no_sense_ends_its_queue_alone() {
    run(async {
        let (target, good, host) = scene().await;
        let write = command(WRITE, 0, 4096);
        let inline = |offset, length| SglDescriptor::InCapsule { offset, length };
        let cases = [
            ("an empty message", Vec::new()),
            ("a short entry", vec![0; 63]),
            (
                "longer than the receive",
                capsule(write, SglDescriptor::NONE, 4097),
            ),
            ("an offset", capsule(write, inline(64, 4096), 4096)),
            (
                "an offset that wraps",
                capsule(write, inline(0xffff_ffff_ffff_f000, 0x1000), 4096),
            ),
            (
                "data beyond the capsule",
                capsule(write, inline(0, 4097), 4096),
            ),
            ("no data at all", capsule(write, inline(0, 4096), 0)),
            (
                "length that wraps",
                capsule(write, inline(0, 0xffff_ffff), 4096),
            ),
        ];
        for (what, message) in cases {
            let raw = Raw::connect(&host, &target).await;
            raw.send(message);
            raw.closed().await;
            assert!(raw.seen.responses.borrow().is_empty(), "{what}");
            let theirs = target.queues.borrow_mut().pop().expect("accepted");
            assert!(
                !matches!(theirs.closed().await, CloseReason::Local),
                "{what}"
            );
            goes_on(&good).await;
        }
    });
}

#[test]
fn bad_input_30_keys_that_are_not_the_hosts_own_end_its_queue_alone() {
    run(async {
        let (target, good, host) = scene().await;
        let keyed = |address, key| SglDescriptor::Keyed {
            address,
            length: 0xff_ffff,
            key,
            invalidate: true,
        };
        for opcode in [READ, WRITE] {
            for sgl in [keyed(0, 0x1234_5678), keyed(u64::MAX - 4095, 1)] {
                let raw = Raw::connect(&host, &target).await;
                raw.send(capsule(command(opcode, 0, 1 << 20), sgl, 0));
                // A range that wraps is answered; the wrong key ends the connection.
                until(|| {
                    raw.seen.closed.borrow().is_some() || !raw.seen.responses.borrow().is_empty()
                })
                .await;
                for cqe in raw.seen.responses.borrow().iter() {
                    assert_ne!(cqe.status, Status::SUCCESS);
                }
                raw.qp.disconnect();
                raw.closed().await;
                let theirs = target.queues.borrow_mut().pop().expect("accepted");
                theirs.closed().await;
                goes_on(&good).await;
            }
        }
        drop((good, host));
        target.queues.borrow_mut().clear();
        all_buffers_back().await;
    });
}

#[test]
fn bad_input_30_a_descriptor_that_is_not_for_rdma_is_an_error_of_its_command() {
    run(async {
        let (target, good, host) = scene().await;
        let raw = Raw::connect(&host, &target).await;
        let mut last_segment = capsule(command(WRITE, 0, 4096), SglDescriptor::NONE, 0);
        last_segment[24..40].fill(0xff);
        last_segment[39] = 0x32;
        raw.send(last_segment);
        let transport = SglDescriptor::Transport { length: 4096 };
        raw.send(capsule(command(WRITE, 0, 4096), transport, 0));
        raw.send(capsule(command(READ, 0, 4096), transport, 0));
        let short = SglDescriptor::Keyed {
            address: 0,
            length: 4095,
            key: 1,
            invalidate: false,
        };
        raw.send(capsule(command(READ, 0, 4096), short, 0));
        raw.send(capsule(command(WRITE, 0, 4096), short, 0));
        until(|| raw.seen.responses.borrow().len() == 5).await;
        for cqe in raw.seen.responses.borrow().iter() {
            let code = cqe.status.code();
            assert!(code == Status::SGL_TYPE_INVALID || code == Status::SGL_LENGTH_INVALID);
        }
        assert!(raw.seen.closed.borrow().is_none());
        goes_on(&good).await;
        drop(target);
    });
}

#[test]
fn bad_input_21_more_commands_than_the_queue_has_entries_end_it() {
    run(async {
        let (target, good, host) = scene().await;
        let raw = Raw::connect(&host, &target).await;
        for _ in 0..33 {
            raw.send(capsule(command(HANG, 0, 0), SglDescriptor::NONE, 0));
        }
        assert_eq!(raw.closed().await, CloseReason::Peer);
        let theirs = target.queues.borrow_mut().pop().expect("accepted");
        assert!(matches!(theirs.closed().await, CloseReason::Violation(_)));
        goes_on(&good).await;
    });
}

#[test]
fn a_host_that_dies_in_the_middle_of_a_read_gives_its_buffers_back() {
    run(async {
        let (target, good, host) = scene().await;
        let raw = Raw::connect(&host, &target).await;
        let region = raw
            .qp
            .register(
                FabricMemory::Buffer(buffer(1 << 20).await),
                RemoteRights::Read,
            )
            .expect("room");
        let RegionKey { rkey, address } = region;
        let sgl = SglDescriptor::Keyed {
            address,
            length: 1 << 20,
            key: rkey,
            invalidate: true,
        };
        for n in 0..8 {
            raw.send(capsule(command(WRITE, n << 20, 1 << 20), sgl, 0));
        }
        until(|| host.counters().packets_received > 16).await;
        raw.qp.disconnect();
        raw.closed().await;
        raw.qp.deregister(rkey);
        goes_on(&good).await;
        drop((raw, good, host));
        target.queues.borrow_mut().clear();
        all_buffers_back().await;
    });
}

#[test]
fn a_host_that_stands_still_holds_its_share_of_the_buffers_and_no_more() {
    const READS: usize = 31;
    run(async {
        let mut patient = SoftConfig::default();
        patient.endpoint.give_up_after = Duration::from_secs(100);
        let target = Target::over(device(patient));
        let listener = Rc::new(Listener::bind(&target.device, PORT).expect("a free port"));
        let (serving, accepting) = (target.clone(), listener.clone());
        reactor::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                serving.take(incoming);
            }
        })
        .detach();
        let good = connect(&device(SoftConfig::default()), &target).await;
        let address = target.address();
        let still = reactor::start(reactor::Config {
            name: "still".into(),
            ..Default::default()
        });
        let still = still.expect("a reactor");
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let answers = still.handle().spawn(move || async move {
            let host = device(SoftConfig::default());
            let raw = Raw::connect_to(&host, address).await;
            let region = raw
                .qp
                .register(
                    FabricMemory::Buffer(buffer(1 << 20).await),
                    RemoteRights::Write,
                )
                .expect("room");
            let sgl = SglDescriptor::Keyed {
                address: region.address,
                length: 1 << 20,
                key: region.rkey,
                invalidate: false,
            };
            for _ in 0..READS {
                raw.send(capsule(command(READ, 0, 1 << 20), sgl, 0));
            }
            until(|| host.counters().packets_received > 4).await;
            // Its whole machine stands still: nothing is acknowledged.
            wait.recv().expect("the test goes on");
            until(|| raw.seen.responses.borrow().len() == READS).await;
            raw.qp.deregister(region.rkey);
            raw.qp.disconnect();
            raw.closed().await;
        });
        until(|| listener.counters().held_back > 0).await;
        let total = reactor::current().expect("on a reactor").buffers().stats();
        let held = listener.counters().held_bytes as usize;
        assert!(held <= total.total_bytes / 8, "{held} bytes are held");
        for _ in 0..3 {
            goes_on(&good).await;
        }
        go_on.send(()).expect("it waits");
        answers.await.expect("all its reads are answered");
        goes_on(&good).await;
        until(|| listener.counters().held_bytes == 0).await;
        still.stop_and_join();
    });
}

/// A target that completes commands in ways that a host must not believe.
#[derive(Default)]
struct Liar {
    qp: RefCell<Option<Rc<dyn QueuePair>>>,
    answer: Cell<[u8; 17]>,
    len: Cell<usize>,
    invalidate: Cell<Option<u32>>,
}

impl QueuePairHandler for Liar {
    fn established(&self, _private_data: &[u8]) {}

    fn completed(&self, completion: Completion) {
        if completion.kind != WorkKind::Receive || completion.status != WorkStatus::Success {
            return;
        }
        let data = FabricMemory::inline(&self.answer.get());
        let work = Work::Send {
            data,
            len: self.len.get(),
            invalidate: self.invalidate.get(),
        };
        if let Some(qp) = &*self.qp.borrow() {
            qp.post_send(0, work).expect("posted");
        }
    }

    fn closed(&self, _reason: CloseReason) {
        self.qp.take();
    }
}

#[test]
fn a_host_ends_its_queue_when_the_target_completes_what_it_did_not_ask() {
    run(async {
        let answer = |cid: u16| {
            let mut bytes = [0; 17];
            bytes[12..14].copy_from_slice(&cid.to_le_bytes());
            bytes
        };
        // The host's first command is in slot 0, used for the first time.
        let right = 1 << 10;
        let cases = [
            ("another slot", answer(right | 5), 16, None),
            ("another use of the slot", answer(0), 16, None),
            (
                "a slot that does not exist",
                answer(right | 0x3ff),
                16,
                None,
            ),
            ("a short entry", answer(right), 15, None),
            ("a long entry", answer(right), 17, None),
            (
                "a key that is not the command's",
                answer(right),
                16,
                Some(77),
            ),
        ];
        for (what, bytes, len, invalidate) in cases {
            let (target, host) = (device(SoftConfig::default()), device(SoftConfig::default()));
            let listener = target.rdma().listen(None, PORT, 4).expect("free");
            let liar = Rc::new(Liar::default());
            liar.answer.set(bytes);
            liar.len.set(len);
            liar.invalidate.set(invalidate);
            let accepting = async {
                let pending = std::future::poll_fn(|cx| listener.poll_accept(cx)).await;
                let params = ConnectionParams {
                    private_data: nvme::rdma_cm::RdmaCmAccept { crqsize: 32 }
                        .encode()
                        .to_vec(),
                    receives: (0..4).map(|_| FabricMemory::capsule(64)).collect(),
                    receives_later: 0,
                };
                let qp = pending
                    .expect("open")
                    .accept(params, liar.clone())
                    .expect("accepted");
                *liar.qp.borrow_mut() = Some(qp);
            };
            let connector = host.clone().into();
            let connecting = HostQueue::connect(&connector, address(&target), IO);
            let (queue, ()) = futures_util::join!(connecting, accepting);
            let queue = queue.expect("a queue");
            let outcome = queue.submit(command(FLUSH, 0, 0), HostData::None).await;
            assert!(outcome.is_err(), "{what}");
            let reason = queue.closed().await;
            assert!(
                !matches!(reason, CloseReason::Peer | CloseReason::Local),
                "{what}: {reason}"
            );
        }
    });
}
