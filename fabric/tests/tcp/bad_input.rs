//! Numbers 1 to 19 of the bad inputs that a target must survive, and overrun of the queue (21). Each time
//! only the offender's own connection ends, or only its command fails, and another host's commands go on.

use fabric::{HostQueue, TcpHostConfig, TcpListenerConfig};
use nvme::tcp::{Data, FatalStatus, Pdu, R2t, TermReq};
use nvme::{SglDescriptor, Sqe, Status};

use crate::common::*;
use crate::harness::{
    DIGESTS, NO_DIGESTS, Raw, Target, attach, config, connect_command, goes_on, ic_req, in_capsule,
    transported,
};

const HEADER: FatalStatus = FatalStatus::InvalidHeaderField;

/// A target with a small MAXH2CDATA, and a host that behaves.
async fn scene() -> (Target, HostQueue) {
    let target = Target::start(TcpListenerConfig {
        maxh2cdata: 65_536,
        ..config()
    });
    let good = attach(&target, TcpHostConfig::default(), true).await;
    (target, good)
}

fn complaint(status: FatalStatus, information: u32) -> Option<TermReq> {
    Some(TermReq {
        status: status as u16,
        information,
    })
}

fn data(cid: u16, ttag: u16, offset: u32, length: u32) -> Data {
    Data {
        cid,
        ttag,
        offset,
        length,
        last: false,
        success: false,
    }
}

/// A write of 128 KiB whose R2T has come.
async fn asked(target: &Target, raw: &mut Raw, cid: u16) -> R2t {
    let capsule = raw.capsule(transported(WRITE, cid, 0, 131_072), &[]);
    raw.send(&capsule).await;
    match raw.pdu().await {
        Some((Pdu::R2t(r2t), _)) => r2t,
        other => panic!("{other:?}; {:?}", target.listener.counters()),
    }
}

/// An H2CData header with that length of the PDU and of the data, whatever they are.
fn bare_h2c_data(header: Data, plen: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pdu::H2cData(header).emit(NO_DIGESTS, 1, 0, &mut bytes);
    bytes[4..8].copy_from_slice(&plen.to_le_bytes());
    bytes
}

#[test]
fn n01_data_right_after_the_handshake() {
    run(async {
        let (target, good) = scene().await;
        let (mut raw, _) = Raw::initialized(&target, NO_DIGESTS).await;
        let bytes = raw.h2c_data(data(0, 0, 0, 512), &[0; 512]);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 10));
        goes_on(&good).await;
    });
}

#[test]
fn n02_data_without_data_that_says_it_has_four_gigabytes() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let r2t = asked(&target, &mut raw, 7).await;
        raw.send(&bare_h2c_data(data(7, r2t.ttag, 0, u32::MAX), 24))
            .await;
        assert_eq!(raw.ended().await, complaint(HEADER, 4));
        goes_on(&good).await;
    });
}

#[test]
fn n03_data_of_no_bytes_with_a_valid_tag() {
    run(async {
        let (target, good) = scene().await;
        for plen in [24, 28] {
            let mut raw = Raw::connected(&target, NO_DIGESTS).await;
            let r2t = asked(&target, &mut raw, 7).await;
            raw.send(&bare_h2c_data(data(7, r2t.ttag, 0, 0), plen))
                .await;
            let field = if plen == 24 { 4 } else { 16 };
            assert_eq!(raw.ended().await, complaint(HEADER, field));
        }
        goes_on(&good).await;
    });
}

#[test]
fn n04_more_data_in_a_pdu_than_the_target_takes() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let r2t = asked(&target, &mut raw, 7).await;
        let bytes = raw.h2c_data(data(7, r2t.ttag, 0, 65_540), &[0; 65_540]);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, complaint(FatalStatus::LimitExceeded, 0));
        goes_on(&good).await;
    });
}

#[test]
fn n05_tags_that_were_never_given() {
    run(async {
        let (target, good) = scene().await;
        for ttag in [0xffff, 0] {
            let mut raw = Raw::connected(&target, NO_DIGESTS).await;
            let r2t = asked(&target, &mut raw, 7).await;
            assert!(r2t.ttag != ttag);
            let bytes = raw.h2c_data(data(7, ttag, 0, 512), &[0; 512]);
            raw.send(&bytes).await;
            assert_eq!(raw.ended().await, complaint(HEADER, 10));
        }
        goes_on(&good).await;
    });
}

#[test]
fn n06_data_for_commands_that_were_not_asked_for_any() {
    run(async {
        let (target, good) = scene().await;
        // A command under way that has no R2T; one that is finished; the R2T of another command.
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let hanging = raw.capsule(transported(HANG, 3, 0, 4096), &[]);
        raw.send(&hanging).await;
        let bytes = raw.h2c_data(data(3, 1024, 0, 512), &[0; 512]);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 10));

        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let r2t = asked(&target, &mut raw, 4).await;
        for offset in [0, 65_536] {
            let bytes = raw.h2c_data(data(4, r2t.ttag, offset, 65_536), &[1; 65_536]);
            raw.send(&bytes).await;
        }
        assert_eq!(raw.response().await.status, Status::SUCCESS);
        let bytes = raw.h2c_data(data(4, r2t.ttag, 0, 512), &[0; 512]);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 10));

        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let r2t = asked(&target, &mut raw, 5).await;
        let bytes = raw.h2c_data(data(6, r2t.ttag, 0, 512), &[0; 512]);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 8));
        goes_on(&good).await;
    });
}

#[test]
fn n07_gaps_overlaps_and_sums_that_wrap() {
    run(async {
        let (target, good) = scene().await;
        let out_of_range = complaint(FatalStatus::DataOutOfRange, 0);
        for (first, second) in [(512, 1024), (512, 0), (512, 511)] {
            let mut raw = Raw::connected(&target, NO_DIGESTS).await;
            let r2t = asked(&target, &mut raw, 7).await;
            let mut bytes = raw.h2c_data(data(7, r2t.ttag, 0, first), &vec![0; first as usize]);
            bytes.extend(raw.h2c_data(data(7, r2t.ttag, second, 512), &[0; 512]));
            raw.send(&bytes).await;
            assert_eq!(raw.ended().await, out_of_range);
        }
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let r2t = asked(&target, &mut raw, 7).await;
        let wraps = data(7, r2t.ttag, 0x1000, 0xffff_f001);
        raw.send(&bare_h2c_data(wraps, 0xffff_f001_u32.wrapping_add(24)))
            .await;
        assert_eq!(raw.ended().await, complaint(HEADER, 12));
        goes_on(&good).await;
    });
}

#[test]
fn n08_more_data_than_was_asked_for() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let capsule = raw.capsule(transported(WRITE, 7, 0, 20_000), &[]);
        raw.send(&capsule).await;
        let Some((Pdu::R2t(r2t), _)) = raw.pdu().await else {
            panic!("no R2T");
        };
        let bytes = raw.h2c_data(data(7, r2t.ttag, 0, 20_001), &[0; 20_001]);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, complaint(FatalStatus::DataOutOfRange, 0));

        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let r2t = asked(&target, &mut raw, 7).await;
        let early = Data {
            last: true,
            ..data(7, r2t.ttag, 0, 512)
        };
        let bytes = raw.h2c_data(early, &[0; 512]);
        raw.send(&bytes).await;
        assert_eq!(
            raw.ended().await,
            complaint(HEADER, 1),
            "LAST, and it is not"
        );
        goes_on(&good).await;
    });
}

#[test]
fn n09_handshakes_that_make_no_sense() {
    run(async {
        let (target, good) = scene().await;
        let (mut raw, _) = Raw::initialized(&target, NO_DIGESTS).await;
        raw.send(&ic_req(NO_DIGESTS)).await;
        assert_eq!(raw.ended().await, complaint(FatalStatus::SequenceError, 0));
        // (offset, bytes, what is complained of)
        let cases: [(usize, &[u8], Option<TermReq>); 8] = [
            (4, &[0; 4], complaint(HEADER, 4)),
            (4, &[0xff; 4], complaint(HEADER, 4)),
            (2, &[127], complaint(HEADER, 2)),
            (2, &[0], complaint(HEADER, 2)),
            (8, &[1, 0], complaint(FatalStatus::Unsupported, 8)),
            (10, &[32], complaint(HEADER, 10)),
            (10, &[255], complaint(HEADER, 10)),
            (11, &[0xfc], complaint(HEADER, 11)),
        ];
        for (at, bytes, expected) in cases {
            let mut request = ic_req(NO_DIGESTS);
            request[at..at + bytes.len()].copy_from_slice(bytes);
            let mut raw = Raw::open(&target);
            raw.send(&request).await;
            assert_eq!(raw.ended().await, expected, "{bytes:x?} at {at}");
        }
        // An alignment of 8 bytes is within the specification.
        let mut request = ic_req(NO_DIGESTS);
        request[10] = 1;
        let mut raw = Raw::open(&target);
        raw.send(&request).await;
        assert!(matches!(raw.pdu().await, Some((Pdu::IcResp(_), _))));
        goes_on(&good).await;
    });
}

#[test]
fn n10_handshakes_that_are_broken_off() {
    run(async {
        let (target, good) = scene().await;
        for n in 0..200 {
            let mut raw = Raw::open(&target);
            raw.send(&ic_req(NO_DIGESTS)[..128 - n % 3]).await;
            raw.reset();
        }
        goes_on(&good).await;
        while target.listener.counters().open > 1 {
            reactor::yield_now().await;
        }
        assert_eq!(target.listener.counters().accepted, 201);
    });
}

#[test]
fn n11_pdus_before_the_handshake_and_types_that_hosts_do_not_send() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::open(&target);
        let capsule = raw.capsule(connect_command(32, true), &[]);
        raw.send(&capsule).await;
        assert_eq!(raw.ended().await, complaint(FatalStatus::SequenceError, 0));
        for kind in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0xff] {
            for handshake in [false, true] {
                let mut raw = Raw::open(&target);
                if handshake {
                    raw = Raw::connected(&target, NO_DIGESTS).await;
                }
                let mut bytes = vec![0; 128];
                bytes[0] = kind;
                bytes[2] = 24;
                bytes[4] = 24;
                raw.send(&bytes).await;
                assert_eq!(raw.ended().await, complaint(HEADER, 0), "type {kind:#x}");
            }
        }
        goes_on(&good).await;
    });
}

#[test]
fn n12_header_lengths_that_are_wrong_with_header_digests_on() {
    run(async {
        let (target, good) = scene().await;
        for hlen in [0, 8, 255] {
            let mut raw = Raw::connected(&target, DIGESTS).await;
            let mut bytes = raw.capsule(transported(FLUSH, 1, 0, 0), &[]);
            bytes[2] = hlen;
            raw.send(&bytes).await;
            assert_eq!(raw.ended().await, complaint(HEADER, 2), "hlen {hlen}");
        }
        goes_on(&good).await;
    });
}

#[test]
fn n13_command_lengths_that_are_wrong() {
    run(async {
        let (target, good) = scene().await;
        let wrong = async |change: &dyn Fn(&mut Vec<u8>), field: u32| {
            let mut raw = Raw::connected(&target, NO_DIGESTS).await;
            let mut bytes = raw.capsule(in_capsule(WRITE, 1, 0, 512), &[0; 512]);
            change(&mut bytes);
            raw.send(&bytes).await;
            assert_eq!(raw.ended().await, complaint(HEADER, field));
        };
        wrong(
            &|bytes| bytes[4..8].copy_from_slice(&8_u32.to_le_bytes()),
            4,
        )
        .await;
        wrong(&|bytes| bytes[4..8].fill(0xff), 4).await;
        wrong(&|bytes| bytes[3] = 255, 3).await;
        goes_on(&good).await;
    });
}

#[test]
fn n14_digests_that_are_missing_or_wrong() {
    run(async {
        let (target, good) = scene().await;
        // The flag of a digest that was agreed on is not set.
        for flag in [1, 2] {
            let mut raw = Raw::connected(&target, DIGESTS).await;
            let mut bytes = raw.capsule(in_capsule(WRITE, 1, 0, 512), &[0; 512]);
            bytes[1] &= !flag;
            raw.send(&bytes).await;
            assert_eq!(raw.ended().await, complaint(HEADER, 1));
        }
        // A header digest that is wrong ends the connection; it comes back in the complaint.
        let mut raw = Raw::connected(&target, DIGESTS).await;
        let mut bytes = raw.capsule(transported(FLUSH, 1, 0, 0), &[]);
        bytes[72] ^= 0x40;
        let received = u32::from_le_bytes(bytes[72..76].try_into().expect("four bytes"));
        raw.send(&bytes).await;
        assert_eq!(
            raw.ended().await,
            complaint(FatalStatus::HeaderDigest, received)
        );
        // A data digest that is wrong fails the command, and nothing is written; so it does on a
        // command that fails anyway; and the connection goes on.
        let mut raw = Raw::connected(&target, DIGESTS).await;
        for (opcode, status) in [
            (WRITE, Status::TRANSIENT_TRANSPORT),
            (0x55, Status::INVALID_OPCODE.with_dnr()),
        ] {
            let mut bytes = raw.capsule(in_capsule(opcode, 1, 4096, 512), &[9; 512]);
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            raw.send(&bytes).await;
            assert_eq!(raw.response().await.status, status);
        }
        assert!(
            target.disk.borrow()[4096..8192]
                .iter()
                .all(|byte| *byte == 0)
        );
        let r2t = asked(&target, &mut raw, 2).await;
        for offset in [0, 65_536] {
            let mut bytes = raw.h2c_data(data(2, r2t.ttag, offset, 65_536), &[9; 65_536]);
            if offset == 0 {
                bytes[1000] ^= 1;
            }
            raw.send(&bytes).await;
        }
        assert_eq!(raw.response().await.status, Status::TRANSIENT_TRANSPORT);
        let flush = transported(FLUSH, 3, 0, 0);
        assert_eq!(raw.command(flush, &[]).await.status, Status::SUCCESS);
        assert_eq!(target.listener.counters().digest_errors, 4);
        goes_on(&good).await;
    });
}

#[test]
fn n15_an_sgl_of_four_gigabytes() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        for opcode in [READ, WRITE, FLUSH, 0x55] {
            let mut sqe = transported(opcode, 1, 0, 0);
            sqe.set_sgl(&SglDescriptor::Transport { length: u32::MAX });
            assert_eq!(raw.command(sqe, &[]).await.cid, 1);
        }
        goes_on(&good).await;
    });
}

#[test]
fn n16_in_capsule_sgls_that_do_not_fit_their_capsule() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let sgl = |opcode: u8, offset: u64, length: u32, len: usize| {
            let mut sqe = transported(opcode, 1, 4096, len);
            sqe.set_sgl(&SglDescriptor::InCapsule { offset, length });
            sqe
        };
        let cases: [(Sqe, usize, Status); 6] = [
            (
                sgl(WRITE, 0, 511, 511),
                512,
                Status::SGL_LENGTH_INVALID.with_dnr(),
            ),
            (
                sgl(WRITE, 0, 513, 513),
                512,
                Status::SGL_LENGTH_INVALID.with_dnr(),
            ),
            (
                sgl(WRITE, 0, 1 << 20, 512),
                512,
                Status::SGL_LENGTH_INVALID.with_dnr(),
            ),
            (
                sgl(WRITE, 4, 512, 512),
                512,
                Status::SGL_OFFSET_INVALID.with_dnr(),
            ),
            (sgl(WRITE, 0, 512, 512), 0, Status::SGL_LENGTH_INVALID),
            (
                sgl(READ, 0, 512, 512),
                512,
                Status::SGL_TYPE_INVALID.with_dnr(),
            ),
        ];
        for (sqe, len, status) in cases {
            assert_eq!(raw.command(sqe, &vec![7; len]).await.status, status);
        }
        assert!(
            target.disk.borrow()[4096..8192]
                .iter()
                .all(|byte| *byte == 0)
        );
        // More than any capsule holds cannot even be passed over.
        let capsule = raw.capsule(in_capsule(WRITE, 1, 0, 16_388), &[0; 16_388]);
        raw.send(&capsule).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 4));
        goes_on(&good).await;
    });
}

#[test]
fn n17_in_capsule_data_where_no_command_wants_it() {
    run(async {
        let (target, good) = scene().await;
        // On an invalid opcode; on one that has no data; before Connect. The stream stays in step.
        let (mut raw, _) = Raw::initialized(&target, DIGESTS).await;
        for opcode in [0x55, FLUSH, 0xff] {
            let sqe = in_capsule(opcode, 1, 0, 8192);
            assert_eq!(raw.command(sqe, &[7; 8192]).await.cid, 1);
        }
        let connect = connect_command(32, true);
        assert_eq!(raw.command(connect, &[]).await.status, Status::SUCCESS);
        for opcode in [0x55, FLUSH, 0xff] {
            let sqe = in_capsule(opcode, 2, 0, 16_384);
            assert_eq!(raw.command(sqe, &[7; 16_384]).await.cid, 2);
        }
        goes_on(&good).await;
        drop(raw);
        target.queues.borrow_mut().clear();
        drop(good);
        all_buffers_back().await;
    });
}

#[test]
fn n18_connect_data_through_r2t() {
    run(async {
        let (target, good) = scene().await;
        let (mut raw, _) = Raw::initialized(&target, NO_DIGESTS).await;
        // What this target's owner does not fetch is not asked for; what it fetches comes by R2T, also
        // on a queue that is not connected.
        let mut connect = connect_command(32, true);
        connect.set_sgl(&SglDescriptor::Transport { length: 1024 });
        let capsule = raw.capsule(transported(WRITE, 1, 0, 1024), &[]);
        raw.send(&capsule).await;
        let Some((Pdu::R2t(r2t), _)) = raw.pdu().await else {
            panic!("no R2T");
        };
        let header = Data {
            last: true,
            ..data(1, r2t.ttag, 0, 1024)
        };
        let bytes = raw.h2c_data(header, &[5; 1024]);
        raw.send(&bytes).await;
        assert_eq!(raw.response().await.status, Status::SUCCESS);
        assert_eq!(raw.command(connect, &[]).await.status, Status::SUCCESS);
        goes_on(&good).await;
    });
}

#[test]
fn n21_more_commands_than_the_queue_has_entries() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        for cid in 0..33 {
            let capsule = raw.capsule(transported(HANG, cid, 0, 0), &[]);
            raw.send(&capsule).await;
        }
        assert_eq!(raw.ended().await, complaint(FatalStatus::SequenceError, 0));
        // Before Connect it is four.
        let (mut raw, _) = Raw::initialized(&target, NO_DIGESTS).await;
        for cid in 0..5 {
            let capsule = raw.capsule(transported(HANG, cid, 0, 0), &[]);
            raw.send(&capsule).await;
        }
        assert_eq!(raw.ended().await, complaint(FatalStatus::SequenceError, 0));
        goes_on(&good).await;
    });
}

#[test]
fn a_host_that_complains_is_let_go() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        let mut bytes = Vec::new();
        let request = TermReq {
            status: 3,
            information: 1,
        };
        request.emit(nvme::tcp::PduType::H2cTermReq, &[1; 24], &mut bytes);
        raw.send(&bytes).await;
        assert_eq!(raw.ended().await, None);
        let queue = target.queues.borrow()[1].clone();
        let reason = queue.closed().await.to_string();
        assert_eq!(reason, "the peer complains of a header digest error");
        goes_on(&good).await;
    });
}

/// What a TLS client says first: a record with a ClientHello of that many bytes (RFC 8446, section 4.1.2).
fn client_hello(random_bytes: usize) -> Vec<u8> {
    let body = random_bytes + 2;
    let mut bytes = vec![22, 3, 1];
    bytes.extend_from_slice(&((body + 4) as u16).to_be_bytes());
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&(body as u16).to_be_bytes());
    bytes.extend_from_slice(&[3, 3]);
    bytes.resize(bytes.len() + random_bytes, 0xa5);
    bytes
}

#[test]
fn n19_a_host_that_begins_tls_is_hung_up_on_and_told_nothing_that_it_cannot_read() {
    run(async {
        let (target, good) = scene().await;
        for random_bytes in [32, 200, 16_000] {
            let mut raw = Raw::open(&target);
            let bytes = client_hello(random_bytes);
            // The first bytes may come alone.
            raw.send(&bytes[..3]).await;
            raw.send(&bytes[3..]).await;
            assert_eq!(raw.ended().await, None);
        }
        assert_eq!(target.listener.counters().violations, 3);
        goes_on(&good).await;
    });
}

#[test]
fn n19_a_tls_alert_in_the_stream_ends_its_connection() {
    run(async {
        let (target, good) = scene().await;
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        // A fatal alert: a record of the wrong version.
        raw.send(&[21, 3, 3, 0, 2, 2, 70]).await;
        raw.send(&[0; 65]).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 0));
        // A handshake in the stream is no better.
        let mut raw = Raw::connected(&target, NO_DIGESTS).await;
        raw.send(&client_hello(32)).await;
        assert_eq!(raw.ended().await, complaint(HEADER, 0));
        goes_on(&good).await;
    });
}
