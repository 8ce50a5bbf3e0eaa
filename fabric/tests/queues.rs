//! A target's and a host's queues over real UDP sockets on loopback.

mod common;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use common::*;
use fabric::provider::WorkStatus;
use fabric::{
    CloseReason, Device, DeviceConfig, DeviceError, HostData, HostError, HostQueue,
    HostQueueParams, Listener, ListenerConfig, Provider, QueueConnectError, QueueLimits,
    SoftConfig, TargetQueue,
};
use futures_util::future::join_all;
use nvme::rdma_cm::RdmaCmStatus;
use nvme::{Cqe, SglDescriptor, Status};
use roce::wire::UDP_PORT;
use roce::wire::icrc::{self, Flow};

/// Between two looks at whether another process has let go of an address.
const PAUSE: Duration = Duration::from_millis(20);

#[test]
fn a_host_connects_and_its_commands_are_answered() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let host = device(SoftConfig::default());
        let queue = connect(&host, &target).await;
        let (cqe, buf) = queue
            .submit(command(FLUSH, 0, 0), HostData::None)
            .await
            .expect("done");
        assert_eq!((cqe.status, cqe.result, cqe.sq_id), (Status::SUCCESS, 7, 1));
        assert!(buf.is_none());
        let info = target.queues.borrow()[0].info();
        assert_eq!(
            (info.qid, info.depth, info.cntlid),
            (Some(1), Some(32), Some(1))
        );
        assert_eq!(
            (info.peer.ip(), info.local),
            (host.addresses()[0], target.address())
        );
        assert_eq!(target.device.counters().icrc_errors, 0);
    });
}

#[test]
fn the_submission_queue_head_goes_round() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let queue = connect(&device(SoftConfig::default()), &target).await;
        for n in 1..=70_u16 {
            let (cqe, _) = queue
                .submit(command(FLUSH, 0, 0), HostData::None)
                .await
                .expect("done");
            assert_eq!(cqe.sq_head, n % 32);
        }
    });
}

#[test]
fn data_of_every_size_comes_back_as_it_was_written() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let queue = connect(&device(SoftConfig::default()), &target).await;
        // In the capsule; by READ in one packet, in several, in several READs.
        for len in [1, 511, 4096, 4097, 8192, 131_072, 1 << 20] {
            let data = pattern(len as u64, len);
            assert_eq!(
                write(&queue, 4096, &data).await,
                Status::SUCCESS,
                "{len} bytes"
            );
            assert!(
                target.disk.borrow()[4096..4096 + len] == data,
                "{len} bytes written"
            );
            assert!(read(&queue, 4096, len).await == data, "{len} bytes read");
        }
        drop(queue);
        target.queues.borrow_mut().clear();
        all_buffers_back().await;
    });
}

async fn many_concurrent(target: &Target, queue: &HostQueue, count: usize, len: usize) {
    join_all((0..count).map(|n| async move {
        let data = pattern(n as u64 + 1, len);
        assert_eq!(write(queue, n * len, &data).await, Status::SUCCESS);
        assert!(read(queue, n * len, len).await == data, "command {n}");
    }))
    .await;
    for n in 0..count {
        assert!(target.disk.borrow()[n * len..][..len] == pattern(n as u64 + 1, len));
    }
}

#[test]
fn more_commands_than_the_queue_has_entries_wait_their_turn() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let queue = connect(&device(SoftConfig::default()), &target).await;
        many_concurrent(&target, &queue, 200, 4096).await;
        many_concurrent(&target, &queue, 60, 131_072).await;
    });
}

#[test]
fn a_lone_small_write_travels_with_its_command_and_those_of_a_busy_queue_together() {
    run(async {
        let target = Target::over(device(SoftConfig::default()));
        let listener = Listener::bind(&target.device, PORT).expect("a free port");
        // How many writes came with their data, and how many without.
        let seen = Rc::new(Cell::new((0, 0)));
        let (disk, seen_by_target) = (target.disk.clone(), seen.clone());
        reactor::spawn(async move {
            let incoming = listener.accept().await.expect("a host");
            let queue =
                TargetQueue::accept_rdma(incoming, QueueLimits::default()).expect("a queue");
            queue.proved(false);
            while let Some(capsule) = queue.next_command().await {
                if capsule.sqe.opcode() == WRITE {
                    let (with, without) = seen_by_target.get();
                    let is_in_capsule =
                        matches!(capsule.sqe.sgl(), Ok(SglDescriptor::InCapsule { .. }));
                    seen_by_target.set(match is_in_capsule {
                        true => (with + 1, without),
                        false => (with, without + 1),
                    });
                }
                reactor::spawn(execute(disk.clone(), queue.clone(), capsule));
            }
        });
        let queue = connect(&device(SoftConfig::default()), &target).await;
        for n in 0..10 {
            let data = pattern(n, 4096);
            assert_eq!(write(&queue, 0, &data).await, Status::SUCCESS);
            assert!(read(&queue, 0, 4096).await == data);
        }
        assert_eq!(seen.take(), (10, 0));
        // A capsule with 4096 bytes of data is more than a packet of loopback's path MTU carries.
        many_concurrent(&target, &queue, 32, 4096).await;
        let (with, without) = seen.take();
        assert_eq!(with + without, 32);
        assert!(without > with, "{without} of 32 were fetched");
        // With less data it is not, and nothing is gained by fetching it.
        many_concurrent(&target, &queue, 32, 2048).await;
        assert_eq!(seen.take(), (32, 0));
    });
}

#[test]
fn several_queues_share_a_device() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let host = device(SoftConfig::default());
        let host = host.into();
        let queues =
            join_all((1..=8).map(|qid| {
                HostQueue::connect(&host, target.address(), HostQueueParams { qid, ..IO })
            }))
            .await;
        join_all(queues.into_iter().enumerate().map(|(n, queue)| {
            let target = &target;
            async move {
                let queue = queue.expect("a queue");
                for round in 0..20 {
                    let data = pattern((n * 100 + round) as u64, 65_536);
                    write(&queue, n * 65_536, &data).await;
                    assert!(target.disk.borrow()[n * 65_536..][..65_536] == data);
                    assert!(read(&queue, n * 65_536, 65_536).await == data);
                }
            }
        }))
        .await;
    });
}

#[test]
fn data_is_right_though_every_so_many_packets_are_lost() {
    for every in [97, 23] {
        run(async move {
            let lossy = SoftConfig {
                drop_every: Some(every),
                ..SoftConfig::default()
            };
            let target = Target::start(lossy.clone());
            let queue = connect(&device(lossy), &target).await;
            many_concurrent(&target, &queue, 64, 8192).await;
            many_concurrent(&target, &queue, 8, 262_144).await;
            assert!(target.device.counters().dropped_on_purpose > 0);
        });
    }
}

#[test]
fn packets_go_singly_where_there_is_no_segmentation_offload() {
    run(async {
        let plain = SoftConfig {
            segmentation_offload: false,
            ..SoftConfig::default()
        };
        let target = Target::start(plain.clone());
        let host = device(plain);
        let queue = connect(&host, &target).await;
        many_concurrent(&target, &queue, 16, 131_072).await;
        let counters = host.counters();
        assert_eq!(counters.messages_sent, counters.endpoint.packets_sent);
        assert_eq!(
            counters.icrc_errors + target.device.counters().icrc_errors,
            0
        );
    });
}

/// A device that checks the ICRC in full, if this user may have one.
fn strict_device() -> Option<Device> {
    let soft = SoftConfig {
        strict_icrc: true,
        ..SoftConfig::default()
    };
    let config = DeviceConfig {
        soft,
        ..DeviceConfig::on(vec![own_address()])
    };
    match Device::open(config) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
            left_out(error);
            None
        }
    }
}

#[test]
fn strict_checks_let_every_right_packet_pass() {
    run(async {
        let (Some(target), Some(host)) = (strict_device(), strict_device()) else {
            return;
        };
        let target = Target::start_on(target);
        let queue = connect(&host, &target).await;
        many_concurrent(&target, &queue, 64, 4096).await;
        many_concurrent(&target, &queue, 16, 131_072).await;
        let errors = host.counters().icrc_errors + target.device.counters().icrc_errors;
        assert_eq!(errors, 0);
    });
}

/// A packet for a queue pair that there is not, with the ICRC of this IP identification.
fn packet_for_nobody(flow: &Flow, identification: u16) -> Vec<u8> {
    let mut packet = vec![4, 0x40, 0xff, 0xff, 0, 1, 2, 3, 0, 0, 0, 1];
    let sum = icrc::compute(flow, identification, &packet);
    packet.extend(sum.to_le_bytes());
    packet
}

#[test]
fn strict_checks_notice_what_looks_like_another_identification() {
    run(async {
        let Some(strict) = strict_device() else {
            return;
        };
        let devices = [device(SoftConfig::default()), strict];
        let own = std::net::UdpSocket::bind((own_address(), 0)).expect("a socket");
        let from = own.local_addr().expect("an address");
        for to in &devices {
            // The kernel sends it with 0, and its ICRC is right for 5.
            let to = to.addresses()[0];
            let packet = packet_for_nobody(&Flow::new(from.ip(), to, from.port()), 5);
            own.send_to(&packet, (to, UDP_PORT)).expect("sent");
        }
        let received = || {
            devices
                .each_ref()
                .map(|device| device.counters().packets_received)
        };
        let errors = || {
            devices
                .each_ref()
                .map(|device| device.counters().icrc_errors)
        };
        while received()[0] + errors()[1] < 2 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        assert_eq!(errors(), [0, 1]);
    });
}

#[test]
fn a_packet_whose_icrc_is_wrong_is_dropped_and_counted() {
    run(async {
        let device = device(SoftConfig::default());
        let own = std::net::UdpSocket::bind((own_address(), 0)).expect("a socket");
        let from = own.local_addr().expect("an address");
        let to = device.addresses()[0];
        let packet = packet_for_nobody(&Flow::new(from.ip(), to, from.port()), 0);
        let damaged = packet
            .iter()
            .enumerate()
            .map(|(at, byte)| byte ^ u8::from(at == 9));
        let damaged: Vec<u8> = damaged.collect();
        for packet in [&packet, &damaged] {
            own.send_to(packet, (to, UDP_PORT)).expect("sent");
        }
        let seen = || device.counters();
        while seen().packets_received < 2 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        assert_eq!((seen().icrc_errors, seen().endpoint.unknown_qp), (1, 1));
    });
}

#[test]
fn a_host_that_leaves_is_noticed_and_nothing_is_kept() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let host = device(SoftConfig::default());
        let queue = connect(&host, &target).await;
        write(&queue, 0, &pattern(1, 65_536)).await;
        let theirs = target.queues.borrow_mut().pop().expect("accepted");
        queue.close();
        assert_eq!(queue.closed().await, CloseReason::Local);
        assert_eq!(theirs.closed().await, CloseReason::Peer);
        assert!(theirs.next_command().await.is_none());
        let error = queue
            .submit(command(FLUSH, 0, 0), HostData::None)
            .await
            .expect_err("closed");
        assert!(matches!(
            error,
            HostError::Closed {
                reason: CloseReason::Local,
                ..
            }
        ));
        all_buffers_back().await;
    });
}

#[test]
fn a_target_that_closes_fails_the_outstanding_commands_of_the_host() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let queue = connect(&device(SoftConfig::default()), &target).await;
        let hanging = join_all((0..8).map(|n| {
            let queue = queue.clone();
            async move {
                let data = match n % 3 {
                    0 => HostData::None,
                    1 => HostData::ToTarget(buffer(65_536).await, 65_536),
                    _ => HostData::FromTarget(buffer(65_536).await, 65_536),
                };
                queue.submit(command(HANG, 0, 65_536), data).await
            }
        }));
        let closing = async {
            // All eight arrived before the one that is answered.
            queue
                .submit(command(FLUSH, 0, 0), HostData::None)
                .await
                .expect("done");
            target.queues.borrow()[0].close();
        };
        let (outcomes, ()) = futures_util::join!(hanging, closing);
        for outcome in outcomes {
            let error = outcome.expect_err("the queue closed");
            assert!(matches!(
                error,
                HostError::Closed {
                    reason: CloseReason::Peer,
                    ..
                }
            ));
        }
        assert_eq!(queue.closed().await, CloseReason::Peer);
        let theirs = target.queues.borrow_mut().remove(0);
        assert_eq!(theirs.closed().await, CloseReason::Local);
        all_buffers_back().await;
    });
}

#[test]
fn queues_go_over_ipv6_too() {
    // The only loopback address of IPv6: one device is both ends.
    let address = "::1".parse().expect("an address");
    if let Err(error) = std::net::UdpSocket::bind((address, 0)) {
        return left_out(format_args!("no IPv6 here: {error}"));
    }
    run(async move {
        let config = DeviceConfig::on(vec![address]);
        let device = loop {
            match Device::open(config.clone()) {
                Ok(device) => break device,
                // Another program's test has it for a moment.
                Err(DeviceError::HeldByOnefold { .. }) => reactor::sleep(PAUSE).await,
                Err(error) => panic!("{error}"),
            }
        };
        let target = Target::start_on(device.clone());
        let queue = connect(&device, &target).await;
        many_concurrent(&target, &queue, 16, 131_072).await;
        assert_eq!(device.counters().icrc_errors, 0);
    });
}

#[test]
fn dropping_the_last_handle_closes_the_queue() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let queue = connect(&device(SoftConfig::default()), &target).await;
        let theirs = target.queues.borrow_mut().pop().expect("accepted");
        drop(queue);
        assert_eq!(theirs.closed().await, CloseReason::Peer);
    });
}

#[test]
fn a_submission_that_is_dropped_does_not_disturb_the_queue() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let queue = connect(&device(SoftConfig::default()), &target).await;
        for n in 0..100 {
            let data = HostData::FromTarget(buffer(65_536).await, 65_536);
            let mut submission = Box::pin(queue.submit(command(READ, 0, 65_536), data));
            // Sent, and at the latest then forgotten.
            let _ = futures_util::poll!(&mut submission);
            drop(submission);
            let data = pattern(n, 4096);
            write(&queue, 65_536, &data).await;
            assert!(read(&queue, 65_536, 4096).await == data);
        }
        drop(queue);
        target.queues.borrow_mut().clear();
        all_buffers_back().await;
    });
}

#[test]
fn a_queue_that_the_target_cannot_serve_is_refused_with_the_reason() {
    run(async {
        let target = Target::start(SoftConfig::default());
        let host = device(SoftConfig::default());
        let deep = HostQueueParams {
            qid: 0,
            depth: 33,
            ..IO
        };
        let error = HostQueue::connect(&host.clone().into(), target.address(), deep)
            .await
            .expect_err("too deep");
        assert_eq!(error, QueueConnectError::Depth { qid: 0, depth: 33 });

        let small = device(SoftConfig::default());
        let config = ListenerConfig {
            depth_max: 16,
            ..ListenerConfig::new(PORT)
        };
        let listener = Listener::bind_with(&small, config).expect("free");
        let task = reactor::spawn(async move { listener.accept().await.is_none() });
        let error = HostQueue::connect(&host.clone().into(), address(&small), IO)
            .await
            .expect_err("too deep");
        let status = RdmaCmStatus::InvalidHsqSize;
        assert_eq!(
            error,
            QueueConnectError::Refused {
                peer: address(&small),
                qid: 1,
                status
            }
        );
        task.abort();
    });
}

#[test]
fn hosts_are_refused_when_the_memory_for_capsules_is_used_up_and_taken_when_there_is_some() {
    run(async {
        let device = device(SoftConfig::default());
        let one = 33 * (64 + 4096);
        let config = ListenerConfig {
            capsule_bytes_max: 2 * one,
            ..ListenerConfig::new(PORT)
        };
        let listener = Listener::bind_with(&device, config).expect("free");
        let target = Target::over(device);
        let accepting = reactor::spawn(target.clone().listen(listener));
        let host = common::device(SoftConfig::default());
        let first = connect(&host, &target).await;
        let _second = connect(&host, &target).await;
        let refused = HostQueue::connect(&host.clone().into(), target.address(), IO)
            .await
            .expect_err("full");
        let status = RdmaCmStatus::NoResources;
        assert_eq!(
            refused,
            QueueConnectError::Refused {
                peer: target.address(),
                qid: 1,
                status
            }
        );
        first.close();
        let theirs = target.queues.borrow_mut().remove(0);
        theirs.closed().await;
        drop(theirs);
        let again = loop {
            // The tasks that served the first queue let go of it in their next turn.
            match HostQueue::connect(&host.clone().into(), target.address(), IO).await {
                Ok(queue) => break queue,
                Err(error) => assert_eq!(error, refused),
            }
        };
        write(&again, 0, &pattern(5, 4096)).await;
        accepting.abort();
    });
}

#[test]
fn connecting_where_nobody_listens_fails_at_once() {
    run(async {
        let (target, host) = (device(SoftConfig::default()), device(SoftConfig::default()));
        let error = HostQueue::connect(&host.clone().into(), address(&target), IO)
            .await
            .expect_err("no listener");
        assert!(matches!(
            error,
            QueueConnectError::Failed {
                reason: CloseReason::Refused { reason: 8, .. },
                ..
            }
        ));
    });
}

#[test]
fn two_listeners_on_one_port_are_an_error_until_the_first_goes() {
    run(async {
        let target = device(SoftConfig::default());
        let first = Listener::bind(&target, PORT).expect("free");
        assert!(Listener::bind(&target, PORT).is_err());
        drop(first);
        Listener::bind(&target, PORT).expect("free again");
    });
}

#[test]
fn a_roce_port_that_another_program_has_is_named_with_who_most_likely_has_it() {
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 201, high, low]);
    let _holder = std::net::UdpSocket::bind((address, UDP_PORT)).expect("nobody else is there");
    run(async {
        let config = DeviceConfig::on(vec![address]).provided_by(Provider::Soft);
        let error = Device::open(config).expect_err("the port is taken");
        let said = error.to_string();
        for part in [&address.to_string(), "rdma link delete"] {
            assert!(said.contains(part), "{said}");
        }
    });
}

#[test]
fn a_target_that_dies_is_noticed_by_its_hosts() {
    let target = reactor::start(reactor::Config {
        name: "target".into(),
        ..Default::default()
    });
    let target = target.expect("a reactor");
    let starting = target
        .handle()
        .spawn(|| async { Target::start(SoftConfig::default()).address() });
    let address = starting.wait().expect("started");
    run(async move {
        let mut soft = SoftConfig::default();
        // More than a busy machine starves a living target.
        soft.endpoint.give_up_after = Duration::from_secs(4);
        let queue = HostQueue::connect(&device(soft).into(), address, IO)
            .await
            .expect("a queue");
        write(&queue, 0, &pattern(1, 65_536)).await;
        // Its sockets close without a word.
        target.stop_and_join();
        let data = HostData::ToTarget(buffer(65_536).await, 65_536);
        let error = queue
            .submit(command(WRITE, 0, 65_536), data)
            .await
            .expect_err("dead");
        let reason = CloseReason::Failed(WorkStatus::NoAnswer);
        assert_eq!(
            error,
            HostError::Closed {
                peer: address,
                reason
            }
        );
        all_buffers_back().await;
    });
}

#[test]
fn a_host_on_the_targets_machine_uses_another_loopback_address() {
    run(async {
        // Another program's test may hold the address for a moment.
        let target = loop {
            match Device::open(DeviceConfig::wildcard()) {
                Ok(device) => break device,
                Err(DeviceError::HeldByOnefold { .. }) => {
                    reactor::sleep(PAUSE).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let again = Device::open(DeviceConfig::wildcard()).expect_err("held");
        assert!(
            matches!(again, DeviceError::HeldByOnefold { .. }),
            "{again}"
        );

        let listener = Listener::bind(&target, PORT).expect("free");
        let serve = reactor::spawn(async move {
            let mut queues = Vec::new();
            while let Some(incoming) = listener.accept().await {
                let queue =
                    TargetQueue::accept_rdma(incoming, QueueLimits::default()).expect("room");
                queues.push(reactor::spawn(async move {
                    while let Some(capsule) = queue.next_command().await {
                        queue.complete(capsule, Cqe::new(Status::SUCCESS, 1), None);
                    }
                }));
            }
        });
        let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|s| {
            s.connect("192.0.2.1:9")?;
            s.local_addr()
        });
        let mut addresses = vec![[127, 0, 0, 1].into()];
        addresses.extend(own.ok().map(|address| address.ip()));
        for ip in addresses {
            let host = Device::open(DeviceConfig::to_reach(ip)).expect("a loopback address");
            assert!(host.addresses()[0].is_loopback());
            let queue = HostQueue::connect(&host.clone().into(), (ip, PORT), IO)
                .await
                .expect("connected");
            let (cqe, _) = queue
                .submit(command(FLUSH, 0, 0), HostData::None)
                .await
                .expect("done");
            assert_eq!(cqe.result, 1, "through {ip}");
            host.shutdown().await;
        }
        let error = Device::open(DeviceConfig::to_reach("::1".parse().expect("an address")));
        assert!(matches!(error, Err(DeviceError::LocalIpv6 { .. })));
        serve.abort();
    });
}
