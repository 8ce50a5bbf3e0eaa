//! Hosts and targets that behave.

use std::time::Duration;

use fabric::{
    CloseReason, Connector, HostData, HostError, HostQueue, QueueConnectError, TargetQueue,
    TcpHostConfig, TcpListener, TcpListenerConfig, Transport,
};
use futures_util::future::join_all;
use nvme::Status;
use nvme::tcp::{Data, IcReq, Pdu};

use crate::common::*;
use crate::harness::{
    IO, NO_DIGESTS, Raw, Target, attach, config, connect_command, ic_req, transported,
};

const ALL_DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

fn host((header_digest, data_digest): (bool, bool)) -> TcpHostConfig {
    TcpHostConfig {
        header_digest,
        data_digest,
        ..TcpHostConfig::default()
    }
}

#[test]
fn a_host_connects_and_the_queue_learns_its_depth_from_the_connect_command() {
    run(async {
        let target = Target::start(config());
        let queue = attach(&target, TcpHostConfig::default(), true).await;
        let info = target.queues.borrow()[0].info();
        assert_eq!(
            (info.qid, info.depth, info.cntlid),
            (Some(1), Some(32), None)
        );
        assert_eq!(
            (info.transport, info.local),
            (Transport::Tcp, target.address())
        );
        let (cqe, buf) = queue
            .submit(command(FLUSH, 0, 0), HostData::None)
            .await
            .expect("done");
        assert_eq!((cqe.status, cqe.result, cqe.sq_id), (Status::SUCCESS, 7, 1));
        assert!(buf.is_none());
    });
}

#[test]
fn the_submission_queue_head_goes_round_unless_the_host_gave_up_flow_control() {
    run(async {
        let target = Target::start(config());
        let queue = attach(&target, TcpHostConfig::default(), true).await;
        for n in 2..=70_u16 {
            let (cqe, _) = queue
                .submit(command(FLUSH, 0, 0), HostData::None)
                .await
                .expect("done");
            assert_eq!(cqe.sq_head, n % 32);
        }
        let queue = attach(&target, TcpHostConfig::default(), false).await;
        let (cqe, _) = queue
            .submit(command(FLUSH, 0, 0), HostData::None)
            .await
            .expect("done");
        assert_eq!(cqe.sq_head, 0xffff);
    });
}

#[test]
fn data_of_every_size_comes_back_as_it_was_written_with_all_digests() {
    for digests in ALL_DIGESTS {
        for flow_control in [true, false] {
            run(async move {
                let target = Target::start(TcpListenerConfig {
                    maxh2cdata: 65_536,
                    ..config()
                });
                let queue = attach(&target, host(digests), flow_control).await;
                // In the capsule; by one H2CData PDU; by several.
                for len in [1, 511, 4096, 16_384, 16_385, 65_536, 131_072, 1 << 20] {
                    let data = pattern(len as u64, len);
                    let status = write(&queue, 4096, &data).await;
                    assert_eq!(status, Status::SUCCESS, "{len} bytes");
                    assert!(
                        target.disk.borrow()[4096..4096 + len] == data,
                        "{len} bytes"
                    );
                    assert!(read(&queue, 4096, len).await == data, "{len} bytes read");
                }
                drop(queue);
                target.queues.borrow_mut().clear();
                all_buffers_back().await;
                assert_eq!(target.listener.counters().violations, 0);
            });
        }
    }
}

#[test]
fn checksums_of_blocks_come_with_written_data_where_their_digest_was_computed() {
    for digests in ALL_DIGESTS {
        run(async move {
            let target = Target::start(TcpListenerConfig {
                maxh2cdata: 65_536,
                ..config()
            });
            let queue = attach(&target, host(digests), true).await;
            CHECKED_BLOCKS.set(0);
            // Of data that are not whole blocks nothing is told.
            for len in [512, 4096, 65_536, 131_072, 131_072 + 512] {
                let data = pattern(len as u64, len);
                assert_eq!(write(&queue, 0, &data).await, Status::SUCCESS);
            }
            let (_, has_data_digest) = digests;
            let expected = if has_data_digest { 1 + 16 + 32 } else { 0 };
            assert_eq!(CHECKED_BLOCKS.get(), expected, "{digests:?}");
        });
    }
}

#[test]
fn more_commands_than_the_queue_has_entries_wait_their_turn() {
    run(async {
        let target = Target::start(config());
        let queue = &attach(&target, TcpHostConfig::default(), false).await;
        for (count, len) in [(300, 4096), (60, 131_072)] {
            join_all((0..count).map(|n| async move {
                let data = pattern(n as u64 + 1, len);
                assert_eq!(write(queue, n * len, &data).await, Status::SUCCESS);
                assert!(read(queue, n * len, len).await == data, "command {n}");
            }))
            .await;
        }
        let counters = target.listener.counters();
        assert_eq!((counters.open, counters.violations), (1, 0));
    });
}

#[test]
fn several_queues_share_a_listener() {
    run(async {
        let target = &Target::start(config());
        join_all((0..8_usize).map(|n| async move {
            let queue = attach(target, host(ALL_DIGESTS[n % 4]), n % 2 == 0).await;
            for round in 0..10 {
                let data = pattern((n * 100 + round) as u64, 65_536);
                write(&queue, n * 65_536, &data).await;
                assert!(read(&queue, n * 65_536, 65_536).await == data);
            }
        }))
        .await;
    });
}

#[test]
fn success_stands_for_the_response_only_where_the_host_gave_up_flow_control() {
    run(async {
        let target = Target::start(config());
        for flow_control in [true, false] {
            let (mut raw, _) = Raw::initialized(&target, NO_DIGESTS).await;
            let connect = connect_command(32, flow_control);
            assert_eq!(raw.command(connect, &[]).await.status, Status::SUCCESS);
            let capsule = raw.capsule(transported(READ, 5, 0, 512), &[]);
            raw.send(&capsule).await;
            let (Pdu::C2hData(header), data) = raw.pdu().await.expect("data") else {
                panic!("not data");
            };
            assert_eq!((header.cid, header.last, data.len()), (5, true, 512));
            assert_eq!(header.success, !flow_control);
            if flow_control {
                assert_eq!(raw.response().await.cid, 5);
            }
            let flush = transported(FLUSH, 6, 0, 0);
            assert_eq!(raw.command(flush, &[]).await.cid, 6);
        }
    });
}

#[test]
fn data_begins_where_a_host_wants_it_aligned() {
    run(async {
        let target = Target::start(config());
        let mut raw = Raw::open(&target);
        let mut request = Vec::new();
        let (alignment, digests, max_r2t) = (31, NO_DIGESTS, 0);
        IcReq {
            alignment,
            digests,
            max_r2t,
        }
        .emit(&mut request);
        raw.send(&request).await;
        raw.pdu().await.expect("an answer");
        raw.command(connect_command(32, true), &[]).await;
        let capsule = raw.capsule(transported(READ, 5, 0, 512), &[]);
        raw.send(&capsule).await;
        let header = raw.bytes(8).await;
        assert_eq!(
            (header[0], header[3]),
            (7, 128),
            "C2HData with its data at 128"
        );
        assert_eq!(header[4..8], (128_u32 + 512).to_le_bytes());
    });
}

#[test]
fn a_queue_closes_with_its_last_handle_and_the_other_side_learns_it() {
    run(async {
        let target = Target::start(config());
        let queue = attach(&target, TcpHostConfig::default(), true).await;
        drop(queue);
        let served = target.queues.borrow()[0].clone();
        assert_eq!(served.closed().await, CloseReason::Peer);

        let queue = attach(&target, TcpHostConfig::default(), true).await;
        let hanging = queue.clone();
        let hanging = reactor::spawn(async move {
            let data = HostData::FromTarget(buffer(4096).await, 4096);
            hanging.submit(command(HANG, 0, 0), data).await
        });
        goes_round(&queue).await;
        target.queues.borrow()[1].close();
        let lost = hanging.await.expect("it ends");
        assert!(matches!(
            lost,
            Err(HostError::Closed {
                reason: CloseReason::Peer,
                ..
            })
        ));
        assert_eq!(queue.closed().await, CloseReason::Peer);
        target.queues.borrow_mut().clear();
        drop((queue, served));
        all_buffers_back().await;
        while target.listener.counters().open > 0 {
            reactor::yield_now().await;
        }
    });
}

async fn goes_round(queue: &HostQueue) {
    let (cqe, _) = queue
        .submit(command(FLUSH, 0, 0), HostData::None)
        .await
        .expect("done");
    assert_eq!(cqe.status, Status::SUCCESS);
}

#[test]
fn answers_that_were_given_before_the_target_closed_still_arrive() {
    run(async {
        let target = Target::start(config());
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let capsule = raw.capsule(transported(READ, 9, 0, 1 << 20), &[]);
        raw.send(&capsule).await;
        while target.listener.counters().sends < 3 {
            reactor::yield_now().await;
        }
        target.queues.borrow()[0].close();
        let (pdu, data) = raw.pdu().await.expect("data");
        assert!(matches!(pdu, Pdu::C2hData(_)) && data.len() == 1 << 20);
        assert_eq!(raw.response().await.cid, 9);
        assert!(raw.pdu().await.is_none(), "then it is closed");
    });
}

#[test]
fn a_fetch_that_nobody_waits_for_leaves_the_queue_in_step() {
    run(async {
        let listener = TcpListener::bind(config()).expect("a free port");
        let mut raw = Raw::open_at(listener.local_addr());
        raw.send(&ic_req(NO_DIGESTS)).await;
        let served = TargetQueue::accept_tcp(&listener).await.expect("a queue");
        raw.pdu().await.expect("an answer");
        served.connected(1, 32);
        for cid in 0..5 {
            let capsule = raw.capsule(transported(WRITE, cid, 0, 65_536), &[]);
            raw.send(&capsule).await;
            let capsule = served.next_command().await.expect("a command");
            let patience = Duration::from_millis(1);
            let fetched = reactor::timeout(
                patience,
                served.fetch(&capsule, 65_536, buffer(65_536).await),
            );
            assert!(fetched.await.is_err(), "the data was not sent");
            let Some((Pdu::R2t(r2t), _)) = raw.pdu().await else {
                panic!("not an R2T");
            };
            all_buffers_back().await;
            let header = Data {
                cid,
                ttag: r2t.ttag,
                offset: 0,
                length: 65_536,
                last: true,
                success: false,
            };
            let late = raw.h2c_data(header, &pattern(1, 65_536));
            raw.send(&late).await;
            let cqe = nvme::Cqe::new(Status::ABORT_REQUESTED, 0);
            served.complete(capsule, cqe, None);
            assert_eq!(raw.response().await.status, Status::ABORT_REQUESTED);
        }
        assert_eq!(listener.counters().violations, 0);
    });
}

#[test]
fn connecting_fails_with_a_reason_where_nobody_listens_or_answers() {
    run(async {
        let unused = TcpListener::bind(config())
            .expect("a free port")
            .local_addr();
        let error = HostQueue::connect(&Connector::tcp(TcpHostConfig::default()), unused, IO)
            .await
            .expect_err("nobody listens");
        assert!(
            matches!(
                &error,
                QueueConnectError::Failed {
                    reason: CloseReason::Network(_),
                    ..
                }
            ),
            "{error}"
        );
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let impatient = TcpHostConfig {
            timeout: Duration::from_millis(50),
            ..TcpHostConfig::default()
        };
        let address = silent.local_addr().expect("an address");
        let error = HostQueue::connect(&Connector::tcp(impatient), address, IO)
            .await
            .expect_err("nobody answers");
        assert!(matches!(
            error,
            QueueConnectError::Failed {
                reason: CloseReason::ConnectTimeout,
                ..
            }
        ));
    });
}

#[test]
fn a_host_does_not_do_without_the_digests_it_asked_for() {
    run(async {
        let target = Target::start(TcpListenerConfig {
            digests: false,
            ..config()
        });
        let connector = Connector::tcp(host((true, true)));
        let error = HostQueue::connect(&connector, target.address(), IO)
            .await
            .expect_err("refused");
        assert!(
            matches!(
                &error,
                QueueConnectError::Failed {
                    reason: CloseReason::Violation(_),
                    ..
                }
            ),
            "{error}"
        );
        attach(&target, TcpHostConfig::default(), true).await;
    });
}

#[test]
fn several_listeners_share_a_port_and_both_families_stand_beside_each_other() {
    run(async {
        let shared = TcpListenerConfig {
            reuse_port: true,
            ..config()
        };
        let first = TcpListener::bind(shared).expect("a free port");
        let again = TcpListenerConfig {
            address: first.local_addr(),
            ..shared
        };
        let second = TcpListener::bind(again).expect("it is shared");
        assert_eq!(first.local_addr(), second.local_addr());
        let alone = TcpListenerConfig {
            reuse_port: false,
            ..again
        };
        let error = TcpListener::bind(alone).expect_err("it is taken");
        assert!(error.to_string().contains("in use"), "{error}");
        let v4 = TcpListener::bind(TcpListenerConfig::new(([0; 4], 0).into())).expect("free");
        let v6 = TcpListenerConfig::new(([0_u16; 8], v4.local_addr().port()).into());
        TcpListener::bind(v6).expect("IPv6 leaves IPv4 alone");
    });
}
