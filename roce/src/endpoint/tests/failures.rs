//! Failures: of the peer, of the path, of a request; each ends its own queue pair alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::pair::{A, B, Joint, Network, Pair, is};
use crate::endpoint::{DisconnectReason, EndpointConfig, QpId, SendWork, WcKind, WcStatus};
use crate::memory::{Access, RegionKey};
use crate::wire::{Opcode, Packet};

const READ: Access = Access {
    remote_read: true,
    remote_write: false,
};
const WRITE: Access = Access {
    remote_read: false,
    remote_write: true,
};

fn pair() -> Pair {
    Pair::new(1, EndpointConfig::default(), Network::perfect())
}

#[test]
fn a_silent_peer_is_given_up_after_the_configured_time() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    pair.post_receive(A, qps[A], 9, 64);
    pair.sides[B].dead = true;
    let start = pair.now;
    pair.send(A, qps[A], 1, b"hello");
    pair.send(A, qps[A], 2, b"anybody there?");
    let failed = pair.completion(A, qps[A]);
    assert_eq!(failed, (1, WcKind::Send, WcStatus::RetryExceeded, 0));
    let waited = pair.now - start;
    assert!(
        waited > Duration::from_secs(7) && waited < Duration::from_secs(9),
        "{waited:?}"
    );
    assert_eq!(
        pair.completion(A, qps[A]),
        (2, WcKind::Send, WcStatus::Flushed, 0)
    );
    assert_eq!(
        pair.completion(A, qps[A]),
        (9, WcKind::Receive, WcStatus::Flushed, 0)
    );
    let reason = pair.disconnected(A, qps[A]);
    assert_eq!(reason, DisconnectReason::Error(WcStatus::RetryExceeded));
    pair.finish(qps);
}

#[test]
fn a_peer_that_comes_back_before_that_loses_nothing() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    pair.post_receive(B, qps[B], 9, 64);
    pair.sides[B].dead = true;
    pair.send(A, qps[A], 1, b"hello");
    pair.run_for(Duration::from_secs(5));
    pair.sides[B].dead = false;
    assert_eq!(
        pair.completion(A, qps[A]),
        (1, WcKind::Send, WcStatus::Success, 5)
    );
    assert_eq!(
        pair.completion(B, qps[B]),
        (9, WcKind::Receive, WcStatus::Success, 5)
    );
    pair.finish(qps);
}

#[test]
fn a_message_waits_until_its_receive_is_posted() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    pair.send(A, qps[A], 1, b"early");
    pair.send(A, qps[A], 2, b"later");
    pair.run_for(Duration::from_millis(500));
    assert!(pair.sides[A].endpoint.counters().rnr_received > 3);
    pair.post_receive(B, qps[B], 8, 64);
    pair.post_receive(B, qps[B], 9, 64);
    assert_eq!(
        pair.completion(A, qps[A]),
        (1, WcKind::Send, WcStatus::Success, 5)
    );
    assert_eq!(
        pair.completion(A, qps[A]),
        (2, WcKind::Send, WcStatus::Success, 5)
    );
    assert_eq!(pair.completion(B, qps[B]).0, 8);
    assert_eq!(pair.completion(B, qps[B]).0, 9);
    pair.finish(qps);
}

#[test]
fn a_peer_that_never_posts_a_receive_is_given_up() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    let start = pair.now;
    pair.send(A, qps[A], 1, b"early");
    let failed = pair.completion(A, qps[A]);
    assert_eq!(failed, (1, WcKind::Send, WcStatus::RnrRetryExceeded, 0));
    let waited = pair.now - start;
    assert!(
        waited > Duration::from_secs(3) && waited < Duration::from_secs(10),
        "{waited:?}"
    );
    pair.finish(qps);
}

/// One queue pair does something forbidden; another one of the same endpoints goes on. A region that
/// was involved has the content given, afterwards.
fn violation(
    forbidden: impl FnOnce(&mut Pair, QpId) -> Option<(RegionKey, Vec<u8>)>,
    expected: (WcKind, WcStatus),
    status_of_peer: WcStatus,
) {
    let mut pair = pair();
    let bad = pair.join(Joint::default());
    let good = pair.join(Joint {
        psn: [5, 6],
        ..Joint::default()
    });
    pair.post_receive(B, bad[B], 70, 16);
    pair.post_receive(B, good[B], 71, 16);
    let region = forbidden(&mut pair, bad[A]);
    pair.send(A, bad[A], 50, b"behind it");
    let (_, kind, status, _) = pair.completion(A, bad[A]);
    assert_eq!((kind, status), expected);
    assert_eq!(
        pair.completion(A, bad[A]),
        (50, WcKind::Send, WcStatus::Flushed, 0)
    );
    assert_eq!(
        pair.disconnected(A, bad[A]),
        DisconnectReason::Error(expected.1)
    );
    assert_eq!(
        pair.disconnected(B, bad[B]),
        DisconnectReason::Error(status_of_peer)
    );
    pair.send(A, good[A], 51, b"goes on");
    assert_eq!(
        pair.completion(A, good[A]),
        (51, WcKind::Send, WcStatus::Success, 7)
    );
    assert_eq!(
        pair.completion(B, good[B]),
        (71, WcKind::Receive, WcStatus::Success, 7)
    );
    if let Some((key, content)) = region {
        assert_eq!(pair.deregister(B, key), content);
    }
    for qps in [bad, good] {
        for side in [A, B] {
            pair.sides[side].endpoint.destroy(qps[side]);
        }
    }
    pair.finish(good);
}

const REFUSED_WRITE: (WcKind, WcStatus) = (WcKind::Write, WcStatus::RemoteAccess);
const REFUSED_READ: (WcKind, WcStatus) = (WcKind::Read, WcStatus::RemoteAccess);

#[test]
fn a_write_beyond_the_region_ends_its_queue_pair_only_and_writes_nothing() {
    let forbidden = |pair: &mut Pair, qp| {
        let key = pair.register(B, vec![1; 3000], WRITE);
        pair.write(A, qp, 1, key, 3001);
        Some((key, vec![1; 3000]))
    };
    violation(forbidden, REFUSED_WRITE, WcStatus::RemoteAccess);
}

#[test]
fn a_write_without_the_right_ends_its_queue_pair_only() {
    let forbidden = |pair: &mut Pair, qp| {
        let key = pair.register(B, vec![1; 10], READ);
        pair.write(A, qp, 1, key, 10);
        Some((key, vec![1; 10]))
    };
    violation(forbidden, REFUSED_WRITE, WcStatus::RemoteAccess);
}

#[test]
fn a_read_with_a_wrong_key_ends_its_queue_pair_only() {
    let forbidden = |pair: &mut Pair, qp| {
        let key = pair.register(B, vec![1; 10], READ);
        pair.read(
            A,
            qp,
            1,
            RegionKey {
                rkey: key.rkey ^ 1,
                ..key
            },
            10,
        );
        Some((key, vec![1; 10]))
    };
    violation(forbidden, REFUSED_READ, WcStatus::RemoteAccess);
}

#[test]
fn a_read_after_the_region_was_invalidated_ends_its_queue_pair_only() {
    let forbidden = |pair: &mut Pair, qp| {
        let key = pair.register(B, vec![1; 10], READ);
        let data = pair.block(vec![1]);
        let invalidate = Some(key.rkey);
        pair.post(
            A,
            qp,
            1,
            SendWork::Send {
                data,
                len: 1,
                invalidate,
            },
        );
        assert_eq!(pair.completion(A, qp).2, WcStatus::Success);
        pair.read(A, qp, 2, key, 10);
        Some((key, vec![1; 10]))
    };
    violation(forbidden, REFUSED_READ, WcStatus::RemoteAccess);
}

#[test]
fn invalidating_an_unknown_key_ends_its_queue_pair_only() {
    let forbidden = |pair: &mut Pair, qp| {
        let data = pair.block(vec![1]);
        pair.post(
            A,
            qp,
            1,
            SendWork::Send {
                data,
                len: 1,
                invalidate: Some(42),
            },
        );
        None
    };
    violation(
        forbidden,
        (WcKind::Send, WcStatus::RemoteAccess),
        WcStatus::RemoteAccess,
    );
}

#[test]
fn a_message_longer_than_its_receive_ends_its_queue_pair_only() {
    let forbidden = |pair: &mut Pair, qp| {
        pair.send(A, qp, 1, &[0; 17]);
        None
    };
    let expected = (WcKind::Send, WcStatus::RemoteInvalidRequest);
    violation(forbidden, expected, WcStatus::LocalLength);
}

#[test]
fn a_region_taken_away_while_it_is_read_ends_the_queue_pair() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    let key = pair.register(B, vec![1; 1 << 20], READ);
    pair.read(A, qps[A], 1, key, 1 << 20);
    let request = pair.drain(A, 1).remove(0);
    let path = pair.sides[B].path;
    pair.sides[B]
        .endpoint
        .handle_packet(pair.now, path, &request);
    assert_eq!(pair.drain(B, 10).len(), 10);
    pair.deregister(B, key);
    assert_eq!(
        pair.completion(A, qps[A]),
        (1, WcKind::Read, WcStatus::RetryExceeded, 0)
    );
    let reason = pair.disconnected(B, qps[B]);
    assert_eq!(reason, DisconnectReason::Error(WcStatus::RemoteAccess));
    pair.finish(qps);
}

#[test]
fn a_lost_read_response_is_asked_for_again_from_where_it_is_missing() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    let content: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    let key = pair.register(B, content.clone(), READ);
    let requests = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&requests);
    let mut responses = 0;
    pair.filter = Some(Box::new(move |sender, bytes| {
        let packet = Packet::parse(bytes).expect("whole packets");
        if sender == A && packet.bth.opcode == Opcode::ReadRequest {
            seen.borrow_mut().push(packet.reth.expect("of a READ"));
        }
        responses += usize::from(sender == B && packet.bth.opcode.is_read_response());
        // The fourth response packet.
        sender == B && responses == 4
    }));
    pair.read(A, qps[A], 1, key, content.len());
    assert_eq!(
        pair.completion(A, qps[A]),
        (1, WcKind::Read, WcStatus::Success, 10_000)
    );
    let requests = requests.borrow();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].va, requests[0].len), (key.va, 10_000));
    assert_eq!(
        (requests[1].va, requests[1].len),
        (key.va + 3 * 1024, 10_000 - 3 * 1024)
    );
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn an_acknowledgement_behind_a_read_says_that_its_responses_are_lost() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    let key = pair.register(B, vec![5; 2000], READ);
    pair.post_receive(B, qps[B], 9, 64);
    let mut responses = 0;
    pair.filter = Some(Box::new(move |_, bytes| {
        let response = is(bytes, Opcode::ReadResponseFirst) || is(bytes, Opcode::ReadResponseLast);
        responses += usize::from(response);
        response && responses <= 2
    }));
    pair.read(A, qps[A], 1, key, 2000);
    pair.send(A, qps[A], 2, b"behind");
    assert_eq!(
        pair.completion(A, qps[A]),
        (1, WcKind::Read, WcStatus::Success, 2000)
    );
    assert_eq!(
        pair.completion(A, qps[A]),
        (2, WcKind::Send, WcStatus::Success, 6)
    );
    // No timer was needed, and the message was delivered once.
    assert_eq!(pair.sides[A].endpoint.counters().ack_timeouts, 0);
    assert_eq!(
        pair.completion(B, qps[B]),
        (9, WcKind::Receive, WcStatus::Success, 6)
    );
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn a_message_whose_acknowledgement_is_lost_is_delivered_once_and_acknowledged_again() {
    let mut pair = pair();
    let qps = pair.join(Joint::default());
    pair.post_receive(B, qps[B], 8, 64);
    pair.post_receive(B, qps[B], 9, 64);
    let lost = Rc::new(Cell::new(0));
    let count = Rc::clone(&lost);
    pair.filter = Some(Box::new(move |_, bytes| {
        let drops = is(bytes, Opcode::Acknowledge) && count.get() < 3;
        count.set(count.get() + u32::from(drops));
        drops
    }));
    pair.send(A, qps[A], 1, b"once");
    assert_eq!(
        pair.completion(A, qps[A]),
        (1, WcKind::Send, WcStatus::Success, 4)
    );
    assert_eq!(lost.get(), 3);
    pair.send(A, qps[A], 2, b"two");
    assert_eq!(
        pair.completion(B, qps[B]),
        (8, WcKind::Receive, WcStatus::Success, 4)
    );
    assert_eq!(
        pair.completion(B, qps[B]),
        (9, WcKind::Receive, WcStatus::Success, 3)
    );
    assert!(pair.sides[B].endpoint.counters().duplicates >= 3);
    pair.finish(qps);
}

#[test]
fn a_peer_with_a_small_socket_buffer_gets_everything_with_few_repetitions() {
    let network = Network {
        room: 64,
        ..Network::perfect()
    };
    let mut pair = Pair::new(2, EndpointConfig::default(), network);
    let len = 1 << 20;
    let qps = [(); 4].map(|()| pair.join(Joint::default()));
    let keys = [(); 4].map(|()| pair.register(B, vec![0; len], WRITE));
    let start = pair.now;
    for (qps, key) in qps.iter().zip(keys) {
        for wr_id in 0..4 {
            pair.write(A, qps[A], wr_id, key, len);
        }
    }
    for qps in &qps {
        for wr_id in 0..4 {
            let done = pair.completion(A, qps[A]);
            assert_eq!(done, (wr_id, WcKind::Write, WcStatus::Success, len));
        }
    }
    let counters = pair.sides[A].endpoint.counters().clone();
    let needed = 4 * 4 * (len as u64 / 1024);
    let took = pair.now - start;
    assert!(
        counters.retransmits < needed,
        "{took:?} {needed} {counters:?}"
    );
    assert!(
        took < Duration::from_secs(5),
        "{took:?} {needed} {counters:?}"
    );
    for (qps, key) in qps.into_iter().zip(keys) {
        assert_eq!(pair.deregister(B, key), vec![7; len]);
        for side in [A, B] {
            pair.sides[side].endpoint.destroy(qps[side]);
        }
    }
    pair.finish(qps[0]);
}
