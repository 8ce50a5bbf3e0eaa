//! Targets that break NVMe/TCP: their host ends the queue with a reason that says what was wrong, or hands the
//! command an error. It never gives out data that did not arrive as they should, and never waits for ever.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use fabric::{
    CloseReason, Connector, HostData, HostError, HostQueue, QueueConnectError, TcpHostConfig,
};
use nvme::tcp::{Data, Digests, IcResp, Pdu, PduType, R2t, TermReq, digest};
use nvme::{Cqe, Status};
use reactor::Buffer;

use crate::common::{FLUSH, READ, WRITE, all_buffers_back, buffer, command, pattern, run};
use crate::harness::{DIGESTS, IO, NO_DIGESTS, Raw};

/// Data of a command here; more than fits a capsule.
const LEN: usize = 24 << 10;

const AGREED: IcResp = IcResp {
    alignment: 0,
    digests: NO_DIGESTS,
    max_h2c_data: 8192,
};

fn host(digests: Digests) -> Connector {
    Connector::tcp(TcpHostConfig {
        header_digest: digests.header,
        data_digest: digests.data,
        ..TcpHostConfig::default()
    })
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// A host's queue, and the target's side of it.
async fn scene(digests: Digests) -> (HostQueue, Raw) {
    let (listener, address) = listen();
    let connector = host(digests);
    let (queue, target) = futures_util::join!(HostQueue::connect(&connector, address, IO), async {
        let mut target = Raw::accept(&listener).await;
        target.agree(IcResp { digests, ..AGREED }).await;
        target
    });
    (queue.expect("a queue"), target)
}

/// A command that the host has under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of [`LEN`] bytes.
    Read,
    /// Of [`LEN`] bytes, which the target has to ask for.
    Write,
    /// Of 4096 bytes that are in the capsule.
    SmallWrite,
    Flush,
}

type Outcome = Result<(Cqe, Option<Buffer>), HostError>;

async fn submit(queue: &HostQueue, kind: Kind) -> Outcome {
    let (opcode, data) = match kind {
        Kind::Read => {
            let mut memory = buffer(LEN).await;
            memory.fill(0);
            (READ, HostData::FromTarget(memory, LEN))
        }
        Kind::Write => (WRITE, HostData::ToTarget(buffer(LEN).await, LEN)),
        Kind::SmallWrite => (WRITE, HostData::ToTarget(buffer(4096).await, 4096)),
        Kind::Flush => (FLUSH, HostData::None),
    };
    let submitted = queue.submit(command(opcode, 0, LEN), data);
    // Far more than anything here takes: a host that waits for ever is named.
    let answered = reactor::timeout(Duration::from_secs(30), submitted).await;
    answered.unwrap_or_else(|_| panic!("{kind:?}: the host waits for ever"))
}

/// What becomes of a command when the target answers with these bytes, which it makes of the identifier.
async fn lied_to(
    digests: Digests,
    kind: Kind,
    lie: impl FnOnce(&Raw, u16) -> Vec<u8>,
) -> (Outcome, HostQueue, Raw) {
    let (queue, mut target) = scene(digests).await;
    let lying = async {
        let Pdu::Command(sqe) = target.pdu().await.expect("a command").0 else {
            panic!("no command");
        };
        let bytes = lie(&target, sqe.cid());
        target.send(&bytes).await;
    };
    let (outcome, ()) = futures_util::join!(submit(&queue, kind), lying);
    (outcome, queue, target)
}

/// The queue ended, because the target broke the protocol; and it was told so.
async fn ended(what: &str, (outcome, queue, mut target): (Outcome, HostQueue, Raw)) {
    let error = outcome.expect_err(what);
    let HostError::Closed { reason, .. } = &error else {
        panic!("{what}: {error}");
    };
    assert!(
        matches!(reason, CloseReason::Violation(_)),
        "{what}: {error}"
    );
    // What it still sent, and then why it goes.
    let mut told = false;
    while !told && let Some((pdu, _)) = target.pdu().await {
        told = matches!(pdu, Pdu::H2cTermReq(_));
    }
    assert!(told, "{what}: the target does not hear why");
    drop(target);
    assert_eq!(&queue.closed().await, reason, "{what}");
}

fn data(cid: u16, offset: usize, length: usize) -> Data {
    Data {
        cid,
        ttag: 0,
        offset: offset as u32,
        length: length as u32,
        last: offset + length >= LEN,
        success: false,
    }
}

/// C2HData, with bytes of the pattern that the whole command would have.
fn c2h(target: &Raw, header: Data) -> Vec<u8> {
    let all = pattern(5, 4 * LEN);
    let start = (header.offset as usize).min(LEN);
    target.encoded(
        Pdu::C2hData(header),
        &all[start..start + header.length as usize],
    )
}

fn response(target: &Raw, cid: u16, status: Status) -> Vec<u8> {
    let mut cqe = Cqe::new(status, 0);
    cqe.cid = cid;
    target.encoded(Pdu::Response(cqe), &[])
}

fn r2t(target: &Raw, cid: u16, offset: usize, length: usize) -> Vec<u8> {
    let r2t = R2t {
        cid,
        ttag: 3,
        offset: offset as u32,
        length: length as u32,
    };
    target.encoded(Pdu::R2t(r2t), &[])
}

#[test]
fn data_that_arrive_in_pieces_are_what_the_target_sent() {
    run(async {
        for digests in [NO_DIGESTS, DIGESTS] {
            for by_flag in [false, true] {
                let (outcome, queue, _target) = lied_to(digests, Kind::Read, |target, cid| {
                    let mut bytes = c2h(target, data(cid, 0, 4096));
                    bytes.extend(c2h(target, data(cid, 4096, 16384)));
                    let last = Data {
                        success: by_flag,
                        ..data(cid, 20480, LEN - 20480)
                    };
                    bytes.extend(c2h(target, last));
                    if !by_flag {
                        bytes.extend(response(target, cid, Status::SUCCESS));
                    }
                    bytes
                })
                .await;
                let (cqe, memory) = outcome.expect("an answer");
                assert_eq!(cqe.status, Status::SUCCESS);
                let memory = memory.expect("the buffer comes back");
                assert!(memory[..LEN] == pattern(5, LEN));
                assert!(!queue.is_closing());
            }
        }
        all_buffers_back().await;
    });
}

#[test]
fn a_wrong_data_digest_makes_the_command_fail_whatever_the_target_says_of_it() {
    run(async {
        for by_flag in [false, true] {
            for wrong_piece in 0..2 {
                let (outcome, queue, _target) = lied_to(DIGESTS, Kind::Read, |target, cid| {
                    let half = LEN / 2;
                    let mut pieces = [data(cid, 0, half), data(cid, half, half)].map(|header| {
                        let success = header.last && by_flag;
                        c2h(target, Data { success, ..header })
                    });
                    // The last byte of a PDU is the last one of its digest.
                    *pieces[wrong_piece].last_mut().expect("a PDU") ^= 1;
                    let mut bytes = pieces.concat();
                    if !by_flag {
                        bytes.extend(response(target, cid, Status::SUCCESS));
                    }
                    bytes
                })
                .await;
                let (cqe, _) = outcome.expect("an answer");
                assert_eq!(cqe.status.code(), Status::TRANSIENT_TRANSPORT);
                // That is an error of the one command.
                assert!(!queue.is_closing());
            }
        }
        // An error of the target's own is not hidden by it.
        let (outcome, ..) = lied_to(DIGESTS, Kind::Read, |target, cid| {
            let mut bytes = c2h(target, data(cid, 0, LEN));
            *bytes.last_mut().expect("a PDU") ^= 1;
            bytes.extend(response(target, cid, Status::UNRECOVERED_READ));
            bytes
        })
        .await;
        assert_eq!(
            outcome.expect("an answer").0.status,
            Status::UNRECOVERED_READ
        );
        all_buffers_back().await;
    });
}

#[test]
fn data_at_other_places_than_they_belong_end_the_queue() {
    type Lie = fn(&Raw, u16) -> Vec<u8>;
    let cases: [(&str, Lie); 12] = [
        ("longer than the command", |t, cid| {
            c2h(t, data(cid, 0, LEN + 4))
        }),
        ("a second piece that is too long", |t, cid| {
            let second = data(cid, 4096, LEN - 4096 + 1);
            [c2h(t, data(cid, 0, 4096)), c2h(t, second)].concat()
        }),
        ("a piece behind the end", |t, cid| {
            [c2h(t, data(cid, 0, LEN)), c2h(t, data(cid, LEN, 4))].concat()
        }),
        ("a gap at the beginning", |t, cid| {
            c2h(t, data(cid, 4, LEN - 4))
        }),
        ("a gap", |t, cid| {
            [c2h(t, data(cid, 0, 4096)), c2h(t, data(cid, 8192, 4096))].concat()
        }),
        ("a piece twice", |t, cid| {
            [c2h(t, data(cid, 0, 4096)), c2h(t, data(cid, 0, 4096))].concat()
        }),
        ("pieces that overlap", |t, cid| {
            [c2h(t, data(cid, 0, 4096)), c2h(t, data(cid, 4092, 4096))].concat()
        }),
        ("an offset that wraps", |t, cid| {
            let header = Data {
                offset: u32::MAX - 3,
                ..data(cid, 0, 4096)
            };
            c2h(t, header)
        }),
        ("a length that is not that of the data", |t, cid| {
            let mut bytes = c2h(t, data(cid, 0, 4096));
            bytes[16..20].copy_from_slice(&8192_u32.to_le_bytes());
            bytes
        }),
        ("success without all data", |t, cid| {
            let done = response(t, cid, Status::SUCCESS);
            [c2h(t, data(cid, 0, LEN - 4)), done].concat()
        }),
        ("success without any data", |t, cid| {
            response(t, cid, Status::SUCCESS)
        }),
        ("the flag of success without all data", |t, cid| {
            let header = Data {
                success: true,
                last: true,
                ..data(cid, 0, 4096)
            };
            c2h(t, header)
        }),
    ];
    run(async {
        for (what, lie) in cases {
            let told = lied_to(NO_DIGESTS, Kind::Read, lie).await;
            ended(what, told).await;
        }
        // SUCCESS says that nothing follows, and LAST the opposite.
        let lie = |t: &Raw, cid| {
            let mut bytes = c2h(t, data(cid, 0, LEN));
            bytes[1] = bytes[1] & !(1 << 2) | 1 << 3;
            bytes
        };
        ended(
            "success that is not last",
            lied_to(NO_DIGESTS, Kind::Read, lie).await,
        )
        .await;
        all_buffers_back().await;
    });
}

#[test]
fn answers_to_what_was_not_asked_end_the_queue() {
    run(async {
        for kind in [Kind::Read, Kind::Write, Kind::SmallWrite, Kind::Flush] {
            // Another slot, another use of the slot, a slot that the queue does not have.
            for other in [1, 1 << 10, 1 << 15, 0x3ff] {
                let said = |cid: u16| cid ^ other;
                let what = format!("{kind:?}, identifier changed by {other:#x}");
                for lie in 0..3 {
                    let told = lied_to(NO_DIGESTS, kind, |t, cid| match lie {
                        0 => response(t, said(cid), Status::SUCCESS),
                        1 => c2h(t, data(said(cid), 0, 4096)),
                        _ => r2t(t, said(cid), 0, 4096),
                    })
                    .await;
                    ended(&format!("{what}, {lie}"), told).await;
                }
            }
            // Data for a command that gets none.
            if kind != Kind::Read {
                let told = lied_to(NO_DIGESTS, kind, |t, cid| c2h(t, data(cid, 0, 4096))).await;
                ended(&format!("data for {kind:?}"), told).await;
            }
            // Requests for data by a command that sends none, or has sent it.
            if kind != Kind::Write {
                let told = lied_to(NO_DIGESTS, kind, |t, cid| r2t(t, cid, 0, 4096)).await;
                ended(&format!("R2T for {kind:?}"), told).await;
            }
        }
        // What ended is not answered twice.
        let (queue, mut target) = scene(NO_DIGESTS).await;
        let lying = async {
            let Pdu::Command(sqe) = target.pdu().await.expect("a command").0 else {
                panic!("no command");
            };
            let answer = response(&target, sqe.cid(), Status::SUCCESS);
            target.send(&[answer.clone(), answer].concat()).await;
        };
        let (outcome, ()) = futures_util::join!(submit(&queue, Kind::Flush), lying);
        assert_eq!(outcome.expect("the first one").0.status, Status::SUCCESS);
        let reason = queue.closed().await;
        assert!(matches!(reason, CloseReason::Violation(_)), "{reason}");
        drop((queue, target));
        all_buffers_back().await;
    });
}

#[test]
fn data_leave_only_as_they_are_asked_for() {
    run(async {
        // The whole, in two requests, of which each comes in pieces of what the target takes.
        let (queue, mut target) = scene(NO_DIGESTS).await;
        let sent = pattern(9, LEN);
        let mut memory = buffer(LEN).await;
        memory[..LEN].copy_from_slice(&sent);
        let write = queue.submit(command(WRITE, 0, LEN), HostData::ToTarget(memory, LEN));
        let asking = async {
            let Pdu::Command(sqe) = target.pdu().await.expect("a command").0 else {
                panic!("no command");
            };
            let (cid, mut got) = (sqe.cid(), Vec::new());
            for (offset, length) in [(0, 12288), (12288, LEN - 12288)] {
                target.send(&r2t(&target, cid, offset, length)).await;
                let end = offset + length;
                while got.len() < end {
                    let (Pdu::H2cData(header), data) = target.pdu().await.expect("data") else {
                        panic!("no data");
                    };
                    assert_eq!((header.cid, header.ttag), (cid, 3));
                    assert_eq!(header.offset as usize, got.len());
                    assert!(data.len() <= AGREED.max_h2c_data as usize);
                    got.extend(data);
                    assert_eq!(header.last, got.len() == end);
                }
            }
            target.send(&response(&target, cid, Status::SUCCESS)).await;
            got
        };
        let (outcome, got) = futures_util::join!(write, asking);
        assert_eq!(outcome.expect("an answer").0.status, Status::SUCCESS);
        assert!(got == sent);
        drop((queue, target));

        type Lie = fn(&Raw, u16) -> Vec<u8>;
        let cases: [(&str, Lie); 7] = [
            ("nothing", |t, cid| r2t(t, cid, 0, 0)),
            ("more than the command has", |t, cid| {
                r2t(t, cid, 0, LEN + 1)
            }),
            ("what is behind the command", |t, cid| r2t(t, cid, LEN, 4)),
            ("a place that wraps", |t, cid| {
                r2t(t, cid, u32::MAX as usize - 3, 8)
            }),
            ("what comes later", |t, cid| r2t(t, cid, 4096, 4096)),
            ("the same twice", |t, cid| {
                [r2t(t, cid, 0, 4096), r2t(t, cid, 0, 4096)].concat()
            }),
            ("a part of what was sent", |t, cid| {
                [r2t(t, cid, 0, 8192), r2t(t, cid, 4096, 8192)].concat()
            }),
        ];
        for (what, lie) in cases {
            ended(what, lied_to(NO_DIGESTS, Kind::Write, lie).await).await;
        }
        all_buffers_back().await;
    });
}

#[test]
fn bytes_that_are_no_pdu_of_a_target_end_the_queue() {
    let changed = |at: usize, value: u8| {
        move |t: &Raw, cid: u16| {
            let mut bytes = response(t, cid, Status::SUCCESS);
            bytes[at] = value;
            bytes
        }
    };
    run(async {
        // Types that only hosts send, types that nobody sends, a header that is longer or shorter, a PDU that is
        // shorter than its header and one of 4 GiB, data in a response.
        let host_types = [
            PduType::IcReq,
            PduType::H2cTermReq,
            PduType::CapsuleCmd,
            PduType::H2cData,
        ];
        for kind in host_types
            .map(|kind| kind as u8)
            .into_iter()
            .chain([0x0a, 0x7f, 0xff])
        {
            let what = format!("type {kind:#x}");
            ended(
                &what,
                lied_to(NO_DIGESTS, Kind::Flush, changed(0, kind)).await,
            )
            .await;
        }
        for (at, value) in [
            (2, 0),
            (2, 23),
            (2, 25),
            (2, 255),
            (4, 8),
            (4, 23),
            (4, 25),
            (7, 255),
        ] {
            let what = format!("byte {at} of the header is {value}");
            ended(
                &what,
                lied_to(NO_DIGESTS, Kind::Flush, changed(at, value)).await,
            )
            .await;
        }
        // Digests that nobody agreed on, and a wrong one of a header.
        ended(
            "a header digest",
            lied_to(NO_DIGESTS, Kind::Flush, changed(1, 1)).await,
        )
        .await;
        ended(
            "no header digest",
            lied_to(DIGESTS, Kind::Flush, changed(1, 0)).await,
        )
        .await;
        ended(
            "a wrong header digest",
            lied_to(DIGESTS, Kind::Flush, changed(24, 0x5a)).await,
        )
        .await;
        let in_header = lied_to(DIGESTS, Kind::Read, |t, cid| {
            let mut bytes = c2h(t, data(cid, 0, LEN));
            bytes[13] ^= 4;
            bytes
        });
        ended("a header that was changed", in_header.await).await;
        // A second agreement.
        let second = lied_to(NO_DIGESTS, Kind::Flush, |t, _| {
            t.encoded(Pdu::IcResp(AGREED), &[])
        });
        ended("a second ICResp", second.await).await;
        // Data that begin at another place than agreed on.
        let padded = lied_to(NO_DIGESTS, Kind::Read, |t, cid| {
            let mut bytes = c2h(t, data(cid, 0, LEN));
            bytes[3] = 23;
            bytes
        });
        ended("data within the header", padded.await).await;
        all_buffers_back().await;
    });
}

#[test]
fn a_target_that_complains_or_stops_is_told_as_such() {
    run(async {
        let (outcome, queue, _target) = lied_to(NO_DIGESTS, Kind::Flush, |t, _| {
            t.encoded(
                Pdu::C2hTermReq(TermReq {
                    status: 4,
                    information: 0,
                }),
                &[],
            )
        })
        .await;
        let error = outcome.expect_err("it complained");
        let HostError::Closed { reason, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(
            reason,
            &CloseReason::Terminated("a data transfer out of range")
        );
        assert!(queue.is_closing());
        // It stops: before an answer, within a header, within data and within a digest.
        for stops_at in [0, 1, 7, 8, 23, 24, 100, 24 + LEN, 24 + 4 + LEN + 3] {
            let (queue, mut target) = scene(DIGESTS).await;
            let lying = async {
                let Pdu::Command(sqe) = target.pdu().await.expect("a command").0 else {
                    panic!("no command");
                };
                let header = Data {
                    success: true,
                    ..data(sqe.cid(), 0, LEN)
                };
                let bytes = c2h(&target, header);
                assert!(stops_at < bytes.len());
                target.send(&bytes[..stops_at]).await;
                target.stop();
            };
            let (outcome, ()) = futures_util::join!(submit(&queue, Kind::Read), lying);
            let error = outcome.expect_err("it stopped");
            assert!(
                matches!(error, HostError::Closed { .. }),
                "{stops_at}: {error}"
            );
            assert_ne!(queue.closed().await, CloseReason::Local, "{stops_at}");
            drop((queue, target));
        }
        all_buffers_back().await;
    });
}

#[test]
fn a_target_that_agrees_to_what_cannot_be_is_not_connected_to() {
    run(async {
        let answers: [(&str, Vec<u8>); 10] = {
            let with = |change: &dyn Fn(&mut Vec<u8>)| {
                let mut bytes = Vec::new();
                AGREED.emit(&mut bytes);
                change(&mut bytes);
                bytes
            };
            [
                ("another version", with(&|bytes| bytes[8] = 1)),
                ("an alignment of 132 bytes", with(&|bytes| bytes[10] = 32)),
                (
                    "digests that were not asked for",
                    with(&|bytes| bytes[11] = 3),
                ),
                ("digests that nobody knows", with(&|bytes| bytes[11] = 4)),
                ("no data at all", with(&|bytes| bytes[12..16].fill(0))),
                (
                    "data of 4092 bytes",
                    with(&|bytes| bytes[12..16].copy_from_slice(&4092_u32.to_le_bytes())),
                ),
                ("data of an odd length", with(&|bytes| bytes[12] = 1)),
                ("a longer header", with(&|bytes| bytes[2] = 129)),
                (
                    "another PDU",
                    with(&|bytes| bytes[0] = PduType::CapsuleResp as u8),
                ),
                (
                    "bytes of something else",
                    b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
                ),
            ]
        };
        for (what, bytes) in answers {
            let (listener, address) = listen();
            let connector = host(NO_DIGESTS);
            let connecting = HostQueue::connect(&connector, address, IO);
            let (queue, _target) = futures_util::join!(connecting, async {
                let mut target = Raw::accept(&listener).await;
                target.send(&bytes).await;
                target
            });
            let error = queue.expect_err(what);
            let QueueConnectError::Failed { reason, .. } = &error else {
                panic!("{what}: {error}");
            };
            assert!(
                matches!(reason, CloseReason::Violation(_)),
                "{what}: {error}"
            );
        }
        // Nor is one that says nothing, or hangs up.
        for hangs_up in [false, true] {
            let (listener, address) = listen();
            let connector = Connector::tcp(TcpHostConfig {
                timeout: Duration::from_millis(200),
                ..TcpHostConfig::default()
            });
            let connecting = HostQueue::connect(&connector, address, IO);
            let (queue, target) = futures_util::join!(connecting, async {
                let target = Raw::accept(&listener).await;
                (!hangs_up).then_some(target)
            });
            let error = queue.expect_err("no agreement");
            assert!(matches!(error, QueueConnectError::Failed { .. }), "{error}");
            drop(target);
        }
        all_buffers_back().await;
    });
}

#[test]
fn a_digest_covers_what_it_should() {
    // What the tests above take for a right digest is one by RFC 3720's example.
    assert_eq!(digest(&[0; 32]), 0x8a91_36aa_u32.to_le_bytes());
}
