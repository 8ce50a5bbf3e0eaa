//! Bounds: hosts that are slow, silent, too many or too greedy hold what is theirs and no more.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use fabric::{
    CloseReason, SharedPorts, TargetQueue, TcpHostConfig, TcpListener, TcpListenerConfig,
};
use nvme::Status;
use nvme::tcp::{Pdu, Sender};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::common::{
    FLUSH, HANG, HANG_WITHOUT_DATA, LOOK_AGAIN, READ, WRITE, all_buffers_back, pattern, run,
};
use crate::harness::{
    NO_DIGESTS, Raw, Target, attach, config, goes_on, ic_req, in_capsule, transported,
};

/// So short that a test can wait for it; nobody who behaves is measured by it.
const PATIENCE: Duration = Duration::from_millis(100);

#[test]
fn a_connection_that_says_nothing_or_half_a_word_is_closed_in_time() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            handshake_timeout: PATIENCE,
            ..config()
        });
        let mut silent = Raw::open(&target);
        let mut half = Raw::open(&target);
        half.send(&ic_req(NO_DIGESTS)[..100]).await;
        assert_eq!(silent.ended().await, None);
        assert_eq!(half.ended().await, None);
        assert_eq!(target.listener.counters().handshakes_failed, 2);
        assert!(target.queues.borrow().is_empty(), "nobody sees them");
    });
}

#[test]
fn a_host_that_stops_in_the_middle_is_let_go_and_an_idle_one_is_not() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            stall_timeout: PATIENCE,
            ..config()
        });
        let idle = attach(&target, TcpHostConfig::default(), true).await;
        // In the middle of a capsule; with an R2T unanswered; with answers unread.
        let mut capsule = Raw::connected(&target, NO_DIGESTS).await;
        let bytes = capsule.capsule(in_capsule(WRITE, 1, 0, 4096), &[1; 4096]);
        capsule.send(&bytes[..1000]).await;
        let mut transfer = Raw::connected(&target, NO_DIGESTS).await;
        let bytes = transfer.capsule(transported(WRITE, 1, 0, 65_536), &[]);
        transfer.send(&bytes).await;
        let mut deaf = Raw::connected(&target, NO_DIGESTS).await;
        for cid in 0..20 {
            let bytes = deaf.capsule(transported(READ, cid, 0, 1 << 20), &[]);
            deaf.send(&bytes).await;
        }
        let queues: Vec<_> = target.queues.borrow().iter().skip(1).cloned().collect();
        for queue in &queues {
            assert_eq!(queue.closed().await, CloseReason::Stalled);
        }
        assert_eq!(target.listener.counters().stalled, 3);
        goes_on(&idle).await;
        target.queues.borrow_mut().clear();
        drop((queues, idle));
        all_buffers_back().await;
    });
}

#[test]
fn a_host_that_sends_a_byte_now_and_then_is_let_go_too() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            stall_timeout: PATIENCE,
            ..config()
        });
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let queue = target.queues.borrow()[0].clone();
        let bytes = raw.capsule(in_capsule(WRITE, 1, 0, 16_384), &[1; 16_384]);
        for byte in bytes.chunks(1) {
            if queue.is_closing() {
                break;
            }
            raw.send(byte).await;
            reactor::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(queue.closed().await, CloseReason::Stalled);
    });
}

#[test]
fn a_host_that_does_not_read_holds_no_more_than_its_queue() {
    run(async {
        let target = Target::start(config());
        let good = attach(&target, TcpHostConfig::default(), true).await;
        let mut deaf = Raw::connected(&target, NO_DIGESTS).await;
        // More commands than its queue has entries, none of whose answers it takes: the answers that
        // the kernel does not take count as outstanding.
        for cid in 0..400 {
            let bytes = deaf.capsule(transported(READ, cid, 0, 256 << 10), &[]);
            deaf.send(&bytes).await;
            reactor::yield_now().await;
        }
        let queue = target.queues.borrow()[1].clone();
        let reason = queue.closed().await;
        assert!(matches!(reason, CloseReason::Violation(_)), "{reason}");
        goes_on(&good).await;
        drop((good, queue));
        target.queues.borrow_mut().clear();
        all_buffers_back().await;
    });
}

/// Reads of 1 MiB, as many as a queue takes, none of whose answers is taken.
async fn deaf(target: &Target) -> Raw {
    let mut deaf = Raw::connected(target, NO_DIGESTS).await;
    for cid in 0..30 {
        let bytes = deaf.capsule(transported(READ, cid, 0, 1 << 20), &[]);
        deaf.send(&bytes).await;
    }
    deaf
}

#[test]
fn many_hosts_that_do_not_read_leave_memory_for_one_that_does() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            // The shares alone must do.
            stall_timeout_short: Duration::from_secs(1000),
            stall_timeout: Duration::from_secs(1000),
            ..config()
        });
        let good = attach(&target, TcpHostConfig::default(), true).await;
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(deaf(&target).await);
            goes_on(&good).await;
        }
        // They ask for 360 MiB of a pool of 64; every one of them was told to wait.
        while target.listener.counters().held_back < 12 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        let pool = reactor::current().expect("on a reactor").buffers().clone();
        for _ in 0..100 {
            goes_on(&good).await;
        }
        let (counters, stats) = (target.listener.counters(), pool.stats());
        assert_eq!(counters.stalled, 0, "nobody had to be sent away");
        assert_eq!(stats.waiting, 0);
        assert!(stats.free_bytes > 16 << 20, "{stats:?}");
        assert!(counters.held_bytes > 8 << 20, "{counters:?}");
        drop((silent, good));
        target.queues.borrow_mut().clear();
        all_buffers_back().await;
        assert_eq!(target.listener.counters().held_bytes, 0);
    });
}

#[test]
fn a_host_that_was_held_back_gets_all_its_answers_when_it_reads_again() {
    run(async {
        let target = Target::start(config());
        target.disk.borrow_mut()[..1 << 20].copy_from_slice(&pattern(5, 1 << 20));
        let mut hosts = [deaf(&target).await, deaf(&target).await];
        while target.listener.counters().held_back < 2 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        for host in &mut hosts {
            let mut answered = 0;
            while answered < 30 {
                match host.pdu().await.expect("an answer") {
                    (Pdu::C2hData(_), data) => assert!(data == pattern(5, 1 << 20)),
                    (Pdu::Response(cqe), _) => {
                        assert_eq!(cqe.status, Status::SUCCESS);
                        answered += 1;
                    }
                    (other, _) => panic!("{other:?}"),
                }
            }
        }
    });
}

#[test]
fn a_command_without_data_holds_no_memory_whatever_its_descriptor_says() {
    run(async {
        let target = Target::start(config());
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        for cid in 0..20 {
            let bytes = raw.capsule(
                transported(HANG_WITHOUT_DATA, cid, 0, u32::MAX as usize),
                &[],
            );
            raw.send(&bytes).await;
        }
        let flush = transported(FLUSH, 20, 0, u32::MAX as usize);
        assert_eq!(raw.command(flush, &[]).await.status, Status::SUCCESS);
        assert_eq!(target.listener.counters().held_back, 0);
    });
}

#[test]
fn hosts_that_hold_memory_are_let_go_soon_when_it_runs_short() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            stall_timeout_short: PATIENCE,
            ..config()
        });
        let _silent = deaf(&target).await;
        while target.listener.counters().held_back < 1 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        let queue = target.queues.borrow()[0].clone();
        assert!(!queue.is_closing(), "memory is left");
        let pool = reactor::current().expect("on a reactor").buffers().clone();
        let mut taken = Vec::new();
        while let Some(buffer) = pool.try_alloc(reactor::MAX_BUFFER_BYTES) {
            taken.push(buffer);
        }
        assert_eq!(queue.closed().await, CloseReason::Stalled);
    });
}

#[test]
fn hosts_attach_while_no_buffer_for_data_is_left() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            capsule_bytes_max: 0,
            ..config()
        });
        let pool = reactor::current().expect("on a reactor").buffers().clone();
        let mut taken = Vec::new();
        for bytes in [reactor::MAX_BUFFER_BYTES, 4096] {
            while let Some(buffer) = pool.try_alloc(bytes) {
                taken.push(buffer);
            }
        }
        let (mut raw, _) = Raw::initialized(&target, NO_DIGESTS).await;
        let queue = target.queues.borrow()[0].clone();
        let admin = queue.admin_buffers().expect("TCP has them");
        let before = admin.stats().free_bytes;
        // The test's language has a Connect without data: any command shows where its data goes.
        let bytes = raw.capsule(in_capsule(HANG, 1, 0, 1024), &[3; 1024]);
        raw.send(&bytes).await;
        while admin.stats().free_bytes == before {
            reactor::sleep(LOOK_AGAIN).await;
        }
        assert_eq!(target.listener.counters().capsules_refused, 0);
        drop((taken, queue));
    });
}

#[test]
fn connections_beyond_the_bound_are_closed_and_later_ones_are_served() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            connections_max: 2,
            ..config()
        });
        let first = attach(&target, TcpHostConfig::default(), true).await;
        let second = attach(&target, TcpHostConfig::default(), true).await;
        let mut third = Raw::open(&target);
        assert_eq!(third.ended().await, None);
        assert_eq!(target.listener.counters().refused, 1);
        goes_on(&first).await;
        drop(second);
        target.queues.borrow_mut().pop();
        while target.listener.counters().open > 1 {
            reactor::yield_now().await;
        }
        attach(&target, TcpHostConfig::default(), true).await;
    });
}

/// A connection from that address of this machine.
fn from(address: [u8; 4], target: SocketAddr) -> std::net::TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((address, 0))).expect("a loopback address");
    connect(&socket, &target).expect("a connection");
    socket.into()
}

#[test]
fn connections_from_one_address_that_prove_nothing_leave_places_for_others() {
    run(async {
        let listener = TcpListener::bind(TcpListenerConfig {
            unproven_max: 8,
            ..config()
        });
        let listener = Rc::new(listener.expect("a free port"));
        let address = listener.local_addr();
        let accepting = listener.clone();
        let proved = Rc::new(Cell::new(0));
        let counted = proved.clone();
        drop(reactor::spawn(async move {
            let mut queues = Vec::new();
            while let Some(queue) = TargetQueue::accept_tcp(&accepting).await {
                if queue.info().peer.ip() != IpAddr::from([127, 0, 0, 1]) {
                    queue.proved(true);
                    counted.set(counted.get() + 1);
                }
                queues.push(queue);
            }
        }));
        let mut silent: Vec<Raw> = (0..20).map(|_| Raw::open_at(address)).collect();
        while listener.counters().accepted < 20 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        assert_eq!(listener.counters().refused, 12);
        for turned_away in &mut silent[8..] {
            assert_eq!(turned_away.ended().await, None);
        }
        // Those from another address displace one of them, and prove who they are.
        let mut others = Vec::new();
        for number in 1..=20 {
            let mut other = Raw::over(from([127, 0, 0, 2], address), Sender::Controller);
            other.send(&ic_req(NO_DIGESTS)).await;
            assert!(matches!(other.pdu().await, Some((Pdu::IcResp(_), _))));
            while proved.get() < number {
                reactor::sleep(LOOK_AGAIN).await;
            }
            others.push(other);
        }
        assert_eq!(silent[0].ended().await, None, "the oldest gave way");
        assert_eq!(listener.counters().refused, 13);
        while listener.counters().open > 27 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        assert_eq!(listener.counters().open, 27);
    });
}

#[test]
fn in_capsule_data_without_memory_fails_its_command_and_the_host_may_try_again() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            capsule_bytes_max: 8192,
            ..config()
        });
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        // All buffers are taken.
        let pool = reactor::current().expect("on a reactor").buffers().clone();
        let mut taken = Vec::new();
        for bytes in [reactor::MAX_BUFFER_BYTES, 4096] {
            while let Some(buffer) = pool.try_alloc(bytes) {
                taken.push(buffer);
            }
        }
        for cid in 0..3 {
            let bytes = raw.capsule(
                in_capsule(WRITE, cid, 8192 * usize::from(cid), 8192),
                &[7; 8192],
            );
            raw.send(&bytes).await;
        }
        while target.listener.counters().capsules_refused < 2 {
            reactor::yield_now().await;
        }
        assert_eq!(target.listener.counters().queue_bytes, 8192);
        drop(taken);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let cqe = raw.response().await;
            statuses.push((cqe.cid, cqe.status));
        }
        statuses.sort_by_key(|(cid, _)| *cid);
        let interrupted = Status::COMMAND_INTERRUPTED;
        assert_eq!(
            statuses,
            [(0, Status::SUCCESS), (1, interrupted), (2, interrupted)]
        );
        assert_eq!(target.listener.counters().queue_bytes, 0);
        let again = in_capsule(WRITE, 9, 8192, 8192);
        assert_eq!(raw.command(again, &[7; 8192]).await.status, Status::SUCCESS);
        assert!(target.disk.borrow()[..16_384].iter().all(|byte| *byte == 7));
    });
}

#[test]
fn many_hosts_connect_at_once_and_go_again() {
    run(async {
        let target = Target::start(config());
        let before = target.listener.counters().accepted;
        let mut raws: Vec<Raw> = (0..200).map(|_| Raw::open(&target)).collect();
        for raw in &mut raws {
            raw.send(&ic_req(NO_DIGESTS)).await;
        }
        for raw in &mut raws {
            assert!(matches!(raw.pdu().await, Some((Pdu::IcResp(_), _))));
        }
        assert_eq!(target.listener.counters().open, 200);
        drop(raws);
        while target.listener.counters().open > 0 {
            reactor::yield_now().await;
        }
        assert_eq!(target.listener.counters().accepted, before + 200);
    });
}

#[test]
fn a_port_is_free_again_as_soon_as_its_listener_is_gone() {
    run(async {
        let target = Target::start(config());
        let queue = attach(&target, TcpHostConfig::default(), true).await;
        let first = fabric::TcpListener::bind(config()).expect("a free port");
        let address = first.local_addr();
        drop(first);
        let again = TcpListenerConfig {
            address,
            ..config()
        };
        fabric::TcpListener::bind(again).expect("it was given up");
        goes_on(&queue).await;
    });
}

/// A listener of a shared port on a reactor of its own.
struct Sharing {
    reactor: reactor::ReactorThread,
    address: SocketAddr,
}

thread_local! {
    static LISTENER: std::cell::RefCell<Option<Rc<TcpListener>>> = const { std::cell::RefCell::new(None) };
}

impl Sharing {
    async fn start(ports: &SharedPorts, address: SocketAddr) -> Self {
        let config = reactor::Config {
            name: "sharing".into(),
            ..Default::default()
        };
        let reactor = reactor::start(config).expect("a reactor");
        let ports = ports.clone();
        let listening = reactor.handle().spawn(move || async move {
            let config = TcpListenerConfig {
                reuse_port: true,
                ..TcpListenerConfig::new(address)
            };
            let listener = TcpListener::bind_knowing(config, None, Default::default(), &ports);
            let listener = Rc::new(listener.expect("it shares the port"));
            let address = listener.local_addr();
            LISTENER.set(Some(listener));
            address
        });
        let address = listening.await.expect("it runs");
        Self { reactor, address }
    }

    /// Connections that are open here.
    async fn open(&self) -> u64 {
        let open = self.reactor.handle().spawn(|| async {
            LISTENER.with_borrow(|listener| listener.as_ref().map_or(0, |l| l.counters().open))
        });
        open.await.expect("it runs")
    }

    async fn close(&self) {
        let closed = self
            .reactor
            .handle()
            .spawn(|| async { LISTENER.take().is_some() });
        assert!(closed.await.expect("it runs"));
    }
}

/// Waits until the listeners have so many connections open.
async fn open_at(listeners: &[&Sharing], expected: &[u64]) {
    loop {
        let mut open = Vec::new();
        for listener in listeners {
            open.push(listener.open().await);
        }
        if open == expected {
            return;
        }
        reactor::sleep(LOOK_AGAIN).await;
    }
}

#[test]
fn connections_go_to_the_reactor_with_the_fewest_wherever_they_come_in() {
    run(async {
        let ports = SharedPorts::default();
        let first = Sharing::start(&ports, SocketAddr::from(([127, 0, 0, 1], 0))).await;
        let second = Sharing::start(&ports, first.address).await;
        let both = [&first, &second];
        let mut connections = Vec::new();
        let connect = || std::net::TcpStream::connect(first.address).expect("it listens");
        for n in 1..=16_u64 {
            connections.push(connect());
            // The two have as many each, or one has one more.
            loop {
                let open = [first.open().await, second.open().await];
                if open[0] + open[1] == n {
                    assert!(open[0].abs_diff(open[1]) <= 1, "{open:?}");
                    break;
                }
                reactor::sleep(LOOK_AGAIN).await;
            }
        }
        open_at(&both, &[8, 8]).await;
        connections.clear();
        open_at(&both, &[0, 0]).await;
        // One that has closed gets none.
        second.close().await;
        connections.extend((0..4).map(|_| connect()));
        open_at(&[&first], &[4]).await;
    });
}
