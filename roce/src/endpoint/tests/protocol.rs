//! The rules of the protocol, packet by packet.

use super::pair::{A, B, Joint, Network, Pair, is};
use crate::endpoint::{
    DisconnectReason, EndpointConfig, Path, PathMtu, PostError, QpId, SendWork, WcStatus,
};
use crate::memory::Access;
use crate::wire::{Aeth, Bth, Ieth, ImmDt, NakCode, Opcode, Packet, Psn, Reth, Syndrome};

const BOTH: Access = Access {
    remote_read: true,
    remote_write: true,
};

/// A pair whose queue pairs start at sequence number 100, and the one of B.
fn pair(config: EndpointConfig) -> (Pair, [QpId; 2]) {
    let mut pair = Pair::new(3, config, Network::perfect());
    let qps = pair.join(Joint {
        mtu: PathMtu::Mtu256,
        reads: 2,
        psn: [100, 100],
    });
    (pair, qps)
}

fn packet<'a>(qp: QpId, opcode: Opcode, psn: u32, payload: &'a [u8]) -> Packet<'a> {
    let bth = Bth {
        ack_request: true,
        ..Bth::new(opcode, qp.number(), Psn::new(psn))
    };
    let mut packet = Packet::new(bth, payload);
    packet.reth = opcode.has_reth().then_some(Reth {
        va: 0,
        rkey: 0,
        len: 0,
    });
    packet.aeth = opcode.has_aeth().then_some(Aeth {
        syndrome: Syndrome::ACK,
        msn: 0,
    });
    packet.ieth = opcode.has_ieth().then_some(Ieth(1));
    packet.imm = opcode.has_imm().then_some(ImmDt(1));
    packet
}

fn read_request(qp: QpId, psn: u32, va: u64, rkey: u32, len: u32) -> Packet<'static> {
    let reth = Some(Reth { va, rkey, len });
    Packet {
        reth,
        ..packet(qp, Opcode::ReadRequest, psn, &[])
    }
}

/// The answers of B as (operation, sequence number, syndrome, MSN).
fn answers(pair: &mut Pair) -> Vec<(Opcode, u32, Option<Syndrome>, u32)> {
    let packets = pair.drain(B, 1000);
    packets
        .iter()
        .map(|bytes| {
            // Payloads of the tests need no padding.
            let packet = Packet::parse(bytes).expect("a packet");
            let syndrome = packet.aeth.map(|aeth| aeth.syndrome);
            let msn = packet.aeth.map_or(0, |aeth| aeth.msn);
            (packet.bth.opcode, packet.bth.psn.value(), syndrome, msn)
        })
        .collect()
}

fn ack(psn: u32, msn: u32) -> Vec<(Opcode, u32, Option<Syndrome>, u32)> {
    vec![(Opcode::Acknowledge, psn, Some(Syndrome::ACK), msn)]
}

fn nak(psn: u32, code: NakCode, msn: u32) -> Vec<(Opcode, u32, Option<Syndrome>, u32)> {
    vec![(Opcode::Acknowledge, psn, Some(Syndrome::Nak(code)), msn)]
}

#[test]
fn a_batch_of_messages_is_acknowledged_once_and_the_msn_counts_them() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    for psn in 100..120 {
        pair.post_receive(B, qps[B], 0, 16);
        pair.inject(B, packet(qps[B], Opcode::SendOnly, psn, b"abcd"));
    }
    assert_eq!(answers(&mut pair), ack(119, 20));
    assert_eq!(answers(&mut pair), vec![]);
    pair.finish(qps);
}

#[test]
fn a_gap_is_refused_once_until_it_is_filled() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    for _ in 0..4 {
        pair.post_receive(B, qps[B], 0, 16);
    }
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 101, b"abcd"));
    assert_eq!(answers(&mut pair), nak(100, NakCode::SequenceError, 0));
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 102, b"abcd"));
    assert_eq!(answers(&mut pair), vec![]);
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 100, b"abcd"));
    assert_eq!(answers(&mut pair), ack(100, 1));
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 102, b"abcd"));
    assert_eq!(answers(&mut pair), nak(101, NakCode::SequenceError, 1));
    pair.finish(qps);
}

#[test]
fn a_message_without_a_receive_is_answered_not_ready_and_later_ones_are_not_answered() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 100, b"abcd"));
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 101, b"abcd"));
    let not_ready = Some(Syndrome::Rnr { timer: 12 });
    assert_eq!(
        answers(&mut pair),
        vec![(Opcode::Acknowledge, 100, not_ready, 0)]
    );
    pair.post_receive(B, qps[B], 0, 16);
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 100, b"abcd"));
    assert_eq!(answers(&mut pair), ack(100, 1));
    pair.finish(qps);
}

#[test]
fn a_read_uses_as_many_numbers_as_it_has_packets_and_is_answered_before_what_follows() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    let key = pair.register(B, vec![5; 700], BOTH);
    pair.post_receive(B, qps[B], 0, 16);
    pair.inject(B, read_request(qps[B], 100, key.va, key.rkey, 700));
    pair.inject(B, packet(qps[B], Opcode::SendOnly, 103, b"abcd"));
    let expected = vec![
        (Opcode::ReadResponseFirst, 100, Some(Syndrome::ACK), 2),
        (Opcode::ReadResponseMiddle, 101, None, 0),
        (Opcode::ReadResponseLast, 102, Some(Syndrome::ACK), 2),
        (Opcode::Acknowledge, 103, Some(Syndrome::ACK), 2),
    ];
    assert_eq!(answers(&mut pair), expected);
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn a_repeated_read_is_answered_again_only_for_the_same_key_and_range() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    let key = pair.register(B, vec![5; 768], BOTH);
    let other = pair.register(B, vec![6; 768], BOTH);
    pair.inject(B, read_request(qps[B], 100, key.va, key.rkey, 768));
    assert_eq!(answers(&mut pair).len(), 3);
    // From its second packet on.
    pair.inject(B, read_request(qps[B], 101, key.va + 256, key.rkey, 512));
    let again = vec![
        (Opcode::ReadResponseFirst, 101, Some(Syndrome::ACK), 1),
        (Opcode::ReadResponseLast, 102, Some(Syndrome::ACK), 1),
    ];
    assert_eq!(answers(&mut pair), again);
    // Another key, another address, another length, a number that was no READ's.
    pair.inject(B, read_request(qps[B], 100, key.va, other.rkey, 768));
    pair.inject(B, read_request(qps[B], 100, other.va, other.rkey, 768));
    pair.inject(B, read_request(qps[B], 101, key.va, key.rkey, 512));
    pair.inject(B, read_request(qps[B], 101, key.va + 256, key.rkey, 256));
    pair.inject(B, read_request(qps[B], 99, key.va, key.rkey, 768));
    assert_eq!(answers(&mut pair), vec![]);
    // The region is gone: a late duplicate is not worth an error.
    pair.deregister(B, key);
    pair.inject(B, read_request(qps[B], 100, key.va, key.rkey, 768));
    assert_eq!(answers(&mut pair), vec![]);
    assert_eq!(pair.sides[B].endpoint.counters().qp_errors, 0);
    pair.deregister(B, other);
    pair.finish(qps);
}

#[test]
fn more_reads_at_once_than_agreed_end_the_queue_pair() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    let key = pair.register(B, vec![5; 256], BOTH);
    for psn in 100..103 {
        pair.inject(B, read_request(qps[B], psn, key.va, key.rkey, 256));
    }
    let answers = answers(&mut pair);
    assert_eq!(answers.len(), 3);
    let refused = Some(Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(answers[2], (Opcode::Acknowledge, 102, refused, 2));
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn requests_that_break_the_rules_are_refused_as_invalid() {
    let full = [0u8; 256];
    let sequences: [&[(Opcode, &[u8])]; 15] = [
        &[(Opcode::SendMiddle, &full)],
        &[(Opcode::SendLast, b"abcd")],
        &[(Opcode::WriteMiddle, &full)],
        &[(Opcode::WriteLast, b"abcd")],
        &[(Opcode::SendFirst, b"abcd")],
        &[(Opcode::SendFirst, &full), (Opcode::SendFirst, &full)],
        &[(Opcode::SendFirst, &full), (Opcode::SendOnly, b"abcd")],
        &[(Opcode::SendFirst, &full), (Opcode::SendMiddle, b"abcd")],
        &[(Opcode::SendFirst, &full), (Opcode::SendLast, b"")],
        &[(Opcode::SendFirst, &full), (Opcode::WriteMiddle, &full)],
        &[(Opcode::SendFirst, &full), (Opcode::ReadRequest, b"")],
        &[(Opcode::SendOnly, &[0; 260])],
        &[(Opcode::WriteOnly, b"abcd")],
        &[(Opcode::WriteFirst, &full)],
        &[(Opcode::SendOnlyImm, b"abcd")],
    ];
    for sequence in sequences {
        let (mut pair, qps) = pair(EndpointConfig::default());
        pair.post_receive(B, qps[B], 0, 1024);
        for (index, (opcode, payload)) in sequence.iter().enumerate() {
            pair.inject(B, packet(qps[B], *opcode, 100 + index as u32, payload));
        }
        let last = 99 + sequence.len() as u32;
        let expected = nak(last, NakCode::InvalidRequest, 0);
        assert_eq!(answers(&mut pair), expected, "{sequence:?}");
        let reason = DisconnectReason::Error(WcStatus::RemoteInvalidRequest);
        assert_eq!(pair.disconnected(B, qps[B]), reason);
        // The queue pair has failed: it drops whatever comes now.
        pair.inject(B, packet(qps[B], Opcode::SendOnly, last, b"abcd"));
        assert_eq!(answers(&mut pair), vec![]);
        pair.finish(qps);
    }
}

#[test]
fn a_write_that_is_not_as_long_as_it_said_is_refused() {
    for (said, opcodes) in [
        (
            300,
            vec![(Opcode::WriteFirst, 256), (Opcode::WriteLast, 40)],
        ),
        (
            300,
            vec![(Opcode::WriteFirst, 256), (Opcode::WriteLast, 48)],
        ),
        (
            300,
            vec![(Opcode::WriteFirst, 256), (Opcode::WriteMiddle, 256)],
        ),
        (8, vec![(Opcode::WriteOnly, 4)]),
        (8, vec![(Opcode::WriteOnly, 12)]),
    ] {
        let (mut pair, qps) = pair(EndpointConfig::default());
        let key = pair.register(B, vec![0; 1024], BOTH);
        let zeros = [0; 256];
        for (index, (opcode, len)) in opcodes.iter().enumerate() {
            let mut packet = packet(qps[B], *opcode, 100 + index as u32, &zeros[..*len]);
            packet.reth = packet.reth.map(|_| Reth {
                va: key.va,
                rkey: key.rkey,
                len: said,
            });
            pair.inject(B, packet);
        }
        let last = 99 + opcodes.len() as u32;
        assert_eq!(
            answers(&mut pair),
            nak(last, NakCode::InvalidRequest, 0),
            "{opcodes:?}"
        );
        pair.deregister(B, key);
        pair.finish(qps);
    }
}

#[test]
fn strangers_are_not_heard() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    pair.post_receive(B, qps[B], 0, 16);
    let mut bytes = Vec::new();
    packet(qps[B], Opcode::SendOnly, 100, b"abcd").write(&mut bytes);
    let Path { local, remote } = pair.sides[B].path;
    let endpoint = &mut pair.sides[B].endpoint;
    endpoint.handle_packet(
        pair.now,
        Path {
            local,
            remote: local,
        },
        &bytes,
    );
    endpoint.handle_packet(
        pair.now,
        Path {
            local: remote,
            remote,
        },
        &bytes,
    );
    assert_eq!(endpoint.counters().wrong_address, 2);
    let unknown = QpId(qps[B].number() ^ 8);
    pair.inject(B, packet(unknown, Opcode::SendOnly, 100, b"abcd"));
    let mut other_partition = packet(qps[B], Opcode::SendOnly, 100, b"abcd");
    other_partition.bth.pkey = 0x1234;
    pair.inject(B, other_partition);
    let counters = pair.sides[B].endpoint.counters();
    assert_eq!((counters.unknown_qp, counters.malformed), (1, 1));
    assert_eq!(answers(&mut pair), vec![]);
    assert!(pair.sides[B].events.is_empty());
    pair.finish(qps);
}

/// What an acknowledgement can say of a sequence number: it arrived, the receiver was not ready, it is refused.
const SYNDROMES: [Syndrome; 7] = [
    Syndrome::ACK,
    Syndrome::Rnr { timer: 1 },
    Syndrome::Nak(NakCode::SequenceError),
    Syndrome::Nak(NakCode::InvalidRequest),
    Syndrome::Nak(NakCode::RemoteAccess),
    Syndrome::Nak(NakCode::RemoteOperation),
    Syndrome::Nak(NakCode::InvalidRdRequest),
];

/// Four SENDs (or two SENDs and two READs behind them) that are posted, with numbers 100 to 103, of which the
/// window let the first two out.
fn half_sent(reads: bool) -> (Pair, [QpId; 2], crate::memory::RegionKey) {
    let config = EndpointConfig {
        max_unacked_packets: 2,
        ..EndpointConfig::default()
    };
    let (mut pair, qps) = pair(config);
    let key = pair.register(B, vec![7; 4], BOTH);
    for wr_id in 1..=4 {
        pair.post_receive(B, qps[B], 0, 16);
        match reads && wr_id > 2 {
            true => pair.read(A, qps[A], wr_id, key, 4),
            false => pair.send(A, qps[A], wr_id, b"abcd"),
        }
    }
    let sent = pair.drain(A, 10);
    let numbers = sent.iter().map(|bytes| {
        let packet = Packet::parse(bytes).expect("a packet");
        packet.bth.psn.value()
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [100, 101]);
    (pair, qps, key)
}

fn say(pair: &mut Pair, qp: QpId, psn: u32, syndrome: Syndrome) {
    let aeth = Some(Aeth { syndrome, msn: 0 });
    let packet = Packet {
        aeth,
        ..packet(qp, Opcode::Acknowledge, psn, &[])
    };
    pair.inject(A, packet);
    pair.collect_events();
}

#[test]
fn acknowledgements_of_what_was_never_sent_change_nothing() {
    // A number before the first; the first one that was not sent, the others that wait, and far away.
    for psn in [99, 102, 103, 104, 5000, 0x80_0000] {
        for syndrome in SYNDROMES {
            // A refusal of the number behind the last says that all before it arrived, and is the next test's.
            if psn == 102 && matches!(syndrome, Syndrome::Nak(_)) {
                continue;
            }
            for reads in [false, true] {
                let (mut pair, qps, key) = half_sent(reads);
                say(&mut pair, qps[A], psn, syndrome);
                pair.inject(A, packet(qps[A], Opcode::ReadResponseOnly, psn, b"evil"));
                pair.collect_events();
                let what = format!("{syndrome:?} of {psn}");
                assert_eq!(pair.sides[A].events.len(), 0, "{what}");
                assert_eq!(pair.sides[A].endpoint.counters().qp_errors, 0, "{what}");
                // All of them are done in order when the peer really has them.
                for wr_id in 1..=4 {
                    let (done, _, status, _) = pair.completion(A, qps[A]);
                    assert_eq!((done, status), (wr_id, WcStatus::Success), "{what}");
                }
                pair.deregister(B, key);
                pair.finish(qps);
            }
        }
    }
}

#[test]
fn a_nak_for_the_number_behind_the_last_completes_what_was_sent_and_no_more() {
    for syndrome in SYNDROMES {
        if !matches!(syndrome, Syndrome::Nak(_)) {
            continue;
        }
        let (mut pair, qps, key) = half_sent(false);
        say(&mut pair, qps[A], 102, syndrome);
        assert_eq!(pair.sides[A].events.len(), 2, "{syndrome:?}");
        assert_eq!(pair.sides[A].endpoint.counters().qp_errors, 0);
        // Now two more leave; what was refused once more is no more than that.
        assert_eq!(pair.drain(A, 10).len(), 2);
        say(&mut pair, qps[A], 102, Syndrome::ACK);
        assert_eq!(pair.sides[A].events.len(), 3, "{syndrome:?}");
        say(&mut pair, qps[A], 104, syndrome);
        assert_eq!(pair.sides[A].events.len(), 4, "{syndrome:?}");
        pair.deregister(B, key);
        pair.finish(qps);
    }
}

#[test]
fn a_read_response_of_the_wrong_length_ends_the_queue_pair() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    let key = pair.register(B, vec![1; 300], BOTH);
    pair.read(A, qps[A], 1, key, 300);
    assert_eq!(pair.drain(A, 10).len(), 1);
    pair.inject(A, packet(qps[A], Opcode::ReadResponseFirst, 100, &[0; 252]));
    assert_eq!(pair.completion(A, qps[A]).2, WcStatus::BadResponse);
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn no_more_numbers_are_unacknowledged_than_the_window_allows() {
    let config = EndpointConfig {
        max_unacked_packets: 10,
        ..EndpointConfig::default()
    };
    let (mut pair, qps) = pair(config);
    let key = pair.register(B, vec![0; 256 * 64], BOTH);
    pair.write(A, qps[A], 1, key, 256 * 64);
    let packets = pair.drain(A, 1000);
    assert_eq!(packets.len(), 10);
    let asked: Vec<bool> = packets
        .iter()
        .map(|bytes| Packet::parse(bytes).expect("a packet").bth.ack_request)
        .collect();
    // The one that fills the window asks for an acknowledgement: nothing else would open it.
    assert_eq!(asked, [[false; 9].as_slice(), &[true]].concat());
    pair.inject(A, packet(qps[A], Opcode::Acknowledge, 103, &[]));
    assert_eq!(pair.drain(A, 1000).len(), 4);
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn a_write_and_the_message_behind_it_ask_for_one_acknowledgement() {
    let (mut pair, qps) = pair(EndpointConfig::default());
    let key = pair.register(B, vec![0; 4096], BOTH);
    pair.write(A, qps[A], 1, key, 4096);
    pair.send(A, qps[A], 2, b"done");
    let packets = pair.drain(A, 1000);
    let asking = packets
        .iter()
        .filter(|bytes| Packet::parse(bytes).expect("a packet").bth.ack_request);
    assert_eq!((packets.len(), asking.count()), (17, 1));
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn queue_pairs_take_turns_and_the_packets_of_a_turn_follow_each_other() {
    let config = EndpointConfig {
        // Eight packets of 12 bytes of header and 256 of payload.
        transmit_quantum_bytes: 8 * (12 + 256),
        ..EndpointConfig::default()
    };
    let (mut pair, first) = pair(config);
    let second = pair.join(Joint {
        mtu: PathMtu::Mtu256,
        ..Joint::default()
    });
    let key = pair.register(B, vec![0; 256 * 32], BOTH);
    pair.write(A, first[A], 1, key, 256 * 32);
    pair.write(A, second[A], 2, key, 256 * 32);
    let packets = pair.drain(A, 1000);
    assert_eq!(packets.len(), 64);
    let turns: Vec<u32> = packets
        .chunks(8)
        .map(|turn| {
            let to = |bytes: &Vec<u8>| Packet::parse(bytes).expect("a packet").bth.dest_qpn;
            assert!(turn.iter().all(|packet| to(packet) == to(&turn[0])));
            to(&turn[0])
        })
        .collect();
    let expected = [first[B].number(), second[B].number()].repeat(4);
    assert_eq!(turns, expected);
    pair.deregister(B, key);
    pair.sides[A].endpoint.destroy(second[A]);
    pair.sides[B].endpoint.destroy(second[B]);
    pair.finish(first);
}

#[test]
fn writes_of_a_turn_go_before_its_sends_where_that_is_allowed() {
    let config = EndpointConfig {
        sends_are_overtaken: true,
        ..EndpointConfig::default()
    };
    let (mut pair, qps) = pair(config);
    let key = pair.register(B, vec![0; 64], BOTH);
    let round = |pair: &mut Pair| {
        for wr_id in 0..3 {
            pair.write(A, qps[A], 2 * wr_id, key, 64);
            pair.send(A, qps[A], 2 * wr_id + 1, b"done");
        }
    };
    round(&mut pair);
    let sent: Vec<_> = pair.drain(A, 5);
    // Three WRITEs and two SENDs left; nothing overtakes what left, but the SEND that waits.
    round(&mut pair);
    let rest = pair.drain(A, 100);
    let kinds: String = sent
        .iter()
        .chain(&rest)
        .map(|packet| {
            if is(packet, Opcode::SendOnly) {
                's'
            } else {
                'w'
            }
        })
        .collect();
    assert_eq!(kinds, "wwwsswwwssss");
    let numbers = sent.iter().chain(&rest).map(|packet| packet[11]);
    assert!(
        numbers
            .clone()
            .zip(numbers.skip(1))
            .all(|(one, next)| next == one.wrapping_add(1))
    );
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn work_that_cannot_be_posted_comes_back_with_its_memory() {
    let config = EndpointConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..EndpointConfig::default()
    };
    let (mut pair, qps) = pair(config);
    pair.post_receive(A, qps[A], 0, 16);
    pair.send(A, qps[A], 1, b"abcd");
    let refused = |pair: &mut Pair, qp, len| {
        let data = pair.block(vec![0; 4]);
        let work = SendWork::Send {
            data,
            len,
            invalidate: None,
        };
        pair.sides[A]
            .endpoint
            .post_send(pair.now, qp, 2, work)
            .expect_err("refused")
            .0
    };
    assert_eq!(refused(&mut pair, qps[A], 5), PostError::BadRange);
    assert_eq!(refused(&mut pair, qps[A], 4), PostError::QueueFull);
    assert_eq!(refused(&mut pair, QpId(1), 4), PostError::NoSuchQueuePair);
    let block = pair.block(Vec::new());
    let (error, _) = pair.sides[A]
        .endpoint
        .post_receive(qps[A], 3, block)
        .expect_err("refused");
    assert_eq!(error, PostError::QueueFull);
    let now = pair.now;
    pair.sides[A].endpoint.disconnect(now, qps[A]);
    assert_eq!(refused(&mut pair, qps[A], 4), PostError::NotConnected);
    pair.finish(qps);
}
