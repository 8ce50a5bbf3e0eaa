//! Connections: made, refused, lost and ended in every phase.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::pair::{A, B, Network, Pair, SERVICE};
use crate::endpoint::{
    AcceptParams, ConnectParams, DisconnectReason, EndpointConfig, EndpointError, Event, PathMtu,
    QpId, RejectReason, WcKind, WcStatus,
};
use crate::wire::GSI_QPN;
use crate::wire::Packet;
use crate::wire::mad::MadHeader;

fn pair(seed: u64) -> Pair {
    Pair::new(seed, EndpointConfig::default(), Network::perfect())
}

fn begin(pair: &mut Pair) -> QpId {
    let params = ConnectParams::new(SERVICE, b"ask".to_vec(), PathMtu::Mtu4096);
    let path = pair.sides[A].path;
    pair.sides[A]
        .endpoint
        .connect(pair.now, path, params)
        .expect("connect")
}

/// The attribute of a connection management packet.
fn attribute(bytes: &[u8]) -> Option<u16> {
    let packet = Packet::parse(bytes).ok()?;
    if packet.bth.dest_qpn != GSI_QPN {
        return None;
    }
    MadHeader::parse(packet.payload)
        .ok()
        .map(|(header, _)| header.attribute_id)
}

#[test]
fn a_connection_carries_data_both_ways_and_ends_cleanly() {
    let mut pair = pair(1);
    let qps = pair.connect();
    for side in [A, B] {
        pair.post_receive(side, qps[side], 10, 100);
        pair.post_receive(side, qps[side], 11, 100);
        pair.send(side, qps[side], 1, b"hello");
    }
    for side in [A, B] {
        let mut done = [
            pair.completion(side, qps[side]),
            pair.completion(side, qps[side]),
        ];
        done.sort_by_key(|completion| completion.0);
        assert_eq!(done[0], (1, WcKind::Send, WcStatus::Success, 5));
        assert_eq!(done[1], (10, WcKind::Receive, WcStatus::Success, 5));
    }
    let now = pair.now;
    pair.sides[A].endpoint.disconnect(now, qps[A]);
    for (side, reason) in [(A, DisconnectReason::Local), (B, DisconnectReason::Remote)] {
        assert_eq!(pair.disconnected(side, qps[side]), reason);
        let flushed = (11, WcKind::Receive, WcStatus::Flushed, 0);
        assert_eq!(pair.completion(side, qps[side]), flushed);
        assert!(pair.sides[side].events.is_empty());
    }
    pair.finish(qps);
}

#[test]
fn all_completions_come_before_the_end_of_the_connection() {
    let mut pair = pair(2);
    let qps = pair.connect();
    for wr_id in 0..5 {
        pair.post_receive(B, qps[B], wr_id, 8);
    }
    let now = pair.now;
    pair.sides[A].endpoint.disconnect(now, qps[A]);
    pair.run_for(Duration::from_secs(1));
    let events = &pair.sides[B].events;
    assert_eq!(events.len(), 6);
    assert!(matches!(events[5], Event::Disconnected { .. }));
    pair.finish(qps);
}

#[test]
fn a_rejection_carries_its_reason_and_private_data() {
    let mut pair = pair(3);
    pair.sides[B].endpoint.listen(SERVICE).expect("listen");
    let qp = begin(&mut pair);
    pair.post_receive(A, qp, 1, 8);
    let request = pair.request();
    let now = pair.now;
    pair.sides[B]
        .endpoint
        .reject(now, request, RejectReason::Consumer, b"no room");
    assert_eq!(
        pair.completion(A, qp),
        (1, WcKind::Receive, WcStatus::Flushed, 0)
    );
    let (reason, words) = pair.expect(A, "Rejected", |event| match event {
        Event::Rejected {
            reason,
            private_data,
            ..
        } => Some((*reason, private_data.clone())),
        _ => None,
    });
    assert_eq!(reason, RejectReason::Consumer);
    assert!(words.starts_with(b"no room\0"));
    assert!(matches!(
        pair.sides[B]
            .endpoint
            .accept(now, request, AcceptParams::default()),
        Err(EndpointError::NoSuchRequest)
    ));
    pair.finish([qp, qp]);
}

#[test]
fn nobody_listens() {
    let mut pair = pair(4);
    let qp = begin(&mut pair);
    let reason = pair.expect(A, "Rejected", |event| match event {
        Event::Rejected { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(reason, RejectReason::InvalidServiceId);
    pair.finish([qp, qp]);
}

#[test]
fn nobody_answers() {
    let mut pair = pair(5);
    pair.sides[B].dead = true;
    let qp = begin(&mut pair);
    let start = pair.now;
    assert_eq!(pair.disconnected(A, qp), DisconnectReason::Timeout);
    assert!(pair.now - start < Duration::from_secs(30));
    pair.finish([qp, qp]);
}

#[test]
fn each_lost_message_of_the_handshake_is_repeated() {
    for lost in 0..6 {
        let mut pair = pair(6);
        let mut seen = 0;
        pair.filter = Some(Box::new(move |_, bytes| {
            let managed = attribute(bytes).is_some();
            seen += usize::from(managed);
            managed && seen == lost + 1
        }));
        let qps = pair.connect();
        pair.post_receive(B, qps[B], 1, 8);
        pair.send(A, qps[A], 2, b"abcd");
        assert_eq!(
            pair.completion(B, qps[B]).2,
            WcStatus::Success,
            "message {lost}"
        );
        let now = pair.now;
        pair.sides[B].endpoint.disconnect(now, qps[B]);
        assert_eq!(pair.disconnected(A, qps[A]), DisconnectReason::Remote);
        assert_eq!(pair.disconnected(B, qps[B]), DisconnectReason::Local);
        pair.finish(qps);
    }
}

#[test]
fn the_first_message_stands_for_a_lost_rtu() {
    let mut pair = pair(7);
    pair.sides[B].endpoint.listen(SERVICE).expect("listen");
    const READY_TO_USE: u16 = 0x14;
    pair.filter = Some(Box::new(|_, bytes| attribute(bytes) == Some(READY_TO_USE)));
    let a = begin(&mut pair);
    let request = pair.request();
    let accept = AcceptParams::default();
    let b = pair.sides[B]
        .endpoint
        .accept(pair.now, request, accept)
        .expect("accept");
    pair.post_receive(B, b, 1, 8);
    // Posted before the peer is known to be ready: it leaves when it is.
    pair.send(B, b, 2, b"welcome");
    pair.expect(A, "Connected", |event| {
        matches!(event, Event::Connected { .. }).then_some(())
    });
    pair.post_receive(A, a, 3, 8);
    assert!(pair.sides[B].events.is_empty());
    pair.send(A, a, 4, b"abcd");
    pair.run_for(Duration::from_millis(1));
    assert!(matches!(pair.sides[B].events[0], Event::Established { qp } if qp == b));
    assert!(matches!(
        pair.sides[B].events[1],
        Event::Completion { wr_id: 1, .. }
    ));
    pair.expect(A, "the welcome", |event| {
        matches!(
            event,
            Event::Completion {
                wr_id: 3,
                status: WcStatus::Success,
                ..
            }
        )
        .then_some(())
    });
    pair.finish([a, b]);
}

#[test]
fn both_sides_disconnect_at_once() {
    let mut pair = pair(8);
    let qps = pair.connect();
    let now = pair.now;
    for side in [A, B] {
        pair.post_receive(side, qps[side], 1, 8);
        pair.sides[side].endpoint.disconnect(now, qps[side]);
    }
    for side in [A, B] {
        let reason = pair.disconnected(side, qps[side]);
        assert!(matches!(
            reason,
            DisconnectReason::Local | DisconnectReason::Remote
        ));
        assert_eq!(pair.completion(side, qps[side]).2, WcStatus::Flushed);
    }
    pair.run_for(Duration::from_secs(60));
    assert!(
        pair.sides.iter().all(|side| side.events.is_empty()),
        "told once"
    );
    pair.finish(qps);
}

#[test]
fn a_disconnect_request_that_nobody_answers_still_ends_the_connection() {
    let mut pair = pair(16);
    let qps = pair.connect();
    pair.sides[B].dead = true;
    let start = pair.now;
    pair.sides[A].endpoint.disconnect(start, qps[A]);
    assert_eq!(pair.disconnected(A, qps[A]), DisconnectReason::Local);
    assert!(pair.now - start < Duration::from_secs(30));
    pair.finish(qps);
}

#[test]
fn a_destroyed_queue_pair_tells_its_peer() {
    let mut pair = pair(9);
    let qps = pair.connect();
    pair.sides[A].endpoint.destroy(qps[A]);
    assert_eq!(pair.disconnected(B, qps[B]), DisconnectReason::Remote);
    assert!(pair.sides[A].events.is_empty());
    pair.finish(qps);
}

#[test]
fn a_violation_ends_the_connection_on_both_sides_and_says_why() {
    let mut pair = pair(10);
    let qps = pair.connect();
    let key = crate::RegionKey { rkey: 1, va: 1 };
    pair.write(A, qps[A], 1, key, 4);
    let refused = WcStatus::RemoteAccess;
    assert_eq!(pair.completion(A, qps[A]).2, refused);
    for side in [A, B] {
        assert_eq!(
            pair.disconnected(side, qps[side]),
            DisconnectReason::Error(refused)
        );
    }
    // The DREQ follows it, and neither side reports the end twice.
    pair.run_for(Duration::from_secs(60));
    assert!(pair.sides.iter().all(|side| side.events.is_empty()));
    pair.finish(qps);
}

#[test]
fn a_nak_is_sent_although_its_queue_pair_was_destroyed_at_once() {
    let mut pair = pair(11);
    let qps = pair.connect();
    pair.write(A, qps[A], 1, crate::RegionKey { rkey: 1, va: 1 }, 4);
    pair.disconnected(B, qps[B]);
    pair.sides[B].endpoint.destroy(qps[B]);
    assert_eq!(pair.completion(A, qps[A]).2, WcStatus::RemoteAccess);
    pair.finish(qps);
}

#[test]
fn a_peer_that_restarted_is_noticed() {
    let mut pair = pair(12);
    let qps = pair.connect();
    pair.post_receive(A, qps[A], 5, 8);
    let fresh = Pair::new(99, EndpointConfig::default(), Network::perfect());
    let [_, b] = fresh.sides;
    pair.sides[B].endpoint = b.endpoint;
    pair.send(A, qps[A], 1, b"abcd");
    assert_eq!(pair.completion(A, qps[A]).2, WcStatus::RetryExceeded);
    assert_eq!(pair.completion(A, qps[A]).2, WcStatus::Flushed);
    // And a new connection is accepted.
    let again = pair.connect();
    pair.sides[A].endpoint.destroy(qps[A]);
    pair.finish(again);
}

#[test]
fn queue_pairs_and_waiting_requests_are_bounded() {
    let config = EndpointConfig {
        max_qps: 3,
        max_pending_connects: 2,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new(13, config, Network::perfect());
    pair.sides[B].endpoint.listen(SERVICE).expect("listen");
    let qps: Vec<QpId> = (0..3).map(|_| begin(&mut pair)).collect();
    let params = ConnectParams::new(SERVICE, Vec::new(), PathMtu::Mtu1024);
    let path = pair.sides[A].path;
    let refused = pair.sides[A].endpoint.connect(pair.now, path, params);
    assert!(matches!(
        refused,
        Err(EndpointError::TooManyQueuePairs { limit: 3 })
    ));
    let (first, second) = (pair.request(), pair.request());
    assert_ne!(first, second);
    let reason = pair.expect(A, "Rejected", |event| match event {
        Event::Rejected { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(reason, RejectReason::NoResources);
    for qp in &qps {
        pair.sides[A].endpoint.destroy(*qp);
    }
    pair.run_for(Duration::from_secs(1));
    // The requests were withdrawn.
    let accepted = pair.sides[B]
        .endpoint
        .accept(pair.now, first, AcceptParams::default());
    assert!(matches!(accepted, Err(EndpointError::NoSuchRequest)));
    pair.finish([qps[0], qps[0]]);
}

#[test]
fn too_much_private_data_is_refused_and_costs_nothing() {
    let mut pair = pair(14);
    pair.sides[B].endpoint.listen(SERVICE).expect("listen");
    let path = pair.sides[A].path;
    let params = ConnectParams::new(SERVICE, vec![0; 57], PathMtu::Mtu1024);
    let refused = pair.sides[A].endpoint.connect(pair.now, path, params);
    assert!(matches!(refused, Err(EndpointError::Connection(_))));
    let a = begin(&mut pair);
    let request = pair.request();
    let accept = AcceptParams {
        private_data: vec![0; 197],
    };
    let refused = pair.sides[B].endpoint.accept(pair.now, request, accept);
    assert!(matches!(refused, Err(EndpointError::Connection(_))));
    let accept = AcceptParams {
        private_data: vec![1; 196],
    };
    let b = pair.sides[B]
        .endpoint
        .accept(pair.now, request, accept)
        .expect("accept");
    pair.expect(A, "Connected", |event| {
        matches!(event, Event::Connected { .. }).then_some(())
    });
    pair.finish([a, b]);
}

#[test]
fn the_reply_offers_reads_even_to_a_host_that_asks_for_none() {
    let mut pair = pair(15);
    pair.sides[B].endpoint.listen(SERVICE).expect("listen");
    let offered = Rc::new(Cell::new(0));
    let seen = Rc::clone(&offered);
    const REPLY: u16 = 0x13;
    pair.filter = Some(Box::new(move |_, bytes| {
        if attribute(bytes) == Some(REPLY) {
            // BTH 12, DETH 8, MAD header 24; Initiator Depth is byte 25 of the message.
            seen.set(bytes[12 + 8 + 24 + 25]);
        }
        false
    }));
    let qps = pair.connect();
    assert_eq!(offered.get(), 16);
    pair.finish(qps);
}
