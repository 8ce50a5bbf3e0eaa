//! What somebody who is not the peer sends in the peer's name does no harm.

use std::time::Duration;

use super::pair::{A, B, Joint, Network, Pair, SERVICE};
use crate::endpoint::{
    AcceptParams, ConnectParams, DisconnectReason, EndpointConfig, Event, PathMtu, QpId,
    RejectReason, WcStatus,
};
use crate::wire::{Aeth, Bth, Opcode, Packet, Psn, Syndrome};

/// Where the communication id of a connection request lies in its packet: behind BTH, DETH and the MAD's header.
const COMM_ID_AT: usize = 12 + 8 + 24;

const START: u32 = 50_000;
const WINDOW: usize = 128;

fn notification(qp: QpId, psn: u32) -> Packet<'static> {
    let bth = Bth::new(Opcode::CongestionNotification, qp.number(), Psn::new(psn));
    Packet::new(bth, &[0; 16])
}

/// How many packets leave A at once after it heard of congestion at these sequence numbers, one each millisecond.
fn window_after(notified: &[u32]) -> usize {
    let config = EndpointConfig {
        max_unacked_packets: WINDOW as u32,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new(3, config, Network::perfect());
    let qps = pair.join(Joint {
        psn: [START, START],
        ..Joint::default()
    });
    for id in 0..3 * WINDOW as u64 {
        pair.send(A, qps[A], id, b"abcd");
    }
    assert_eq!(pair.drain(A, usize::MAX).len(), WINDOW);
    for psn in notified {
        pair.now += Duration::from_millis(1);
        pair.inject(A, notification(qps[A], *psn));
    }
    let bth = Bth::new(
        Opcode::Acknowledge,
        qps[A].number(),
        Psn::new(START + WINDOW as u32 - 1),
    );
    let mut all = Packet::new(bth, &[]);
    all.aeth = Some(Aeth {
        syndrome: Syndrome::ACK,
        msn: 0,
    });
    pair.inject(A, all);
    let sent = pair.drain(A, usize::MAX).len();
    pair.finish(qps);
    sent
}

#[test]
fn a_notification_of_congestion_counts_if_it_names_a_packet_that_was_sent_lately() {
    let last = START + WINDOW as u32 - 1;
    assert_eq!(window_after(&[]), WINDOW);
    assert!(window_after(&[START]) < WINDOW);
    assert!(window_after(&[last]) < WINDOW);
    assert!(window_after(&[START; 100]) < WINDOW / 8);
    let forged = [1, last + 1, last + 1000, START - 1000, START + (1 << 23)];
    assert_eq!(window_after(&forged), WINDOW, "nothing is slowed down");
}

#[test]
fn a_notification_of_a_network_card_which_has_number_zero_slows_a_queue_down_to_a_quarter_at_most()
{
    let one = window_after(&[0]);
    assert!((WINDOW / 2..WINDOW).contains(&one), "{one}");
    let many = window_after(&[0; 100]);
    assert!((WINDOW / 4..WINDOW / 2).contains(&many), "{many}");
}

/// How long A takes to send 4 MiB over a path of 40 us, while somebody sends notifications without a number in B's
/// name.
fn time_to_send(notified_every: Option<Duration>) -> Duration {
    let config = EndpointConfig::default();
    let mut pair = Pair::new(7, config, Network::perfect());
    let qps = pair.join(Joint::default());
    for id in 0..64 {
        pair.post_receive(B, qps[B], id, 64 << 10);
        pair.send(A, qps[A], id, &[7; 64 << 10]);
    }
    let start = pair.now;
    let mut left = 64;
    while left > 0 {
        if let Some(pause) = notified_every {
            pair.inject(A, notification(qps[A], 0));
            pair.run_for(pause);
        } else {
            pair.run_for(Duration::from_micros(10));
        }
        while pair
            .take(A, |event| {
                matches!(event, Event::Completion { .. }).then_some(())
            })
            .is_some()
        {
            left -= 1;
        }
        assert!(
            pair.now - start < Duration::from_secs(10),
            "it stands still"
        );
    }
    let took = pair.now - start;
    pair.finish(qps);
    took
}

#[test]
fn a_forger_of_notifications_without_a_number_leaves_a_queue_an_eighth_of_its_speed_on_the_longest_path()
 {
    let alone = time_to_send(None);
    let forged = time_to_send(Some(Duration::from_micros(10)));
    assert!(forged > alone, "{alone:?} {forged:?}");
    // Nothing but the window limits this path: elsewhere a quarter of the window costs less.
    assert!(forged < alone * 8, "{alone:?} {forged:?}");
}

/// A connection, and the request by which A asked for it.
fn connected() -> (Pair, [QpId; 2], Vec<u8>) {
    let mut pair = Pair::new(5, EndpointConfig::default(), Network::perfect());
    pair.sides[B].endpoint.listen(SERVICE).expect("it is free");
    let params = ConnectParams::new(SERVICE, b"ask".to_vec(), PathMtu::Mtu1024);
    let path = pair.sides[A].path;
    let now = pair.now;
    let a = pair.sides[A].endpoint.connect(now, path, params);
    let a = a.expect("room");
    let asked = pair.drain(A, 1).remove(0);
    deliver(&mut pair, &asked);
    let request = pair.request();
    let accept = AcceptParams {
        private_data: b"answer".to_vec(),
    };
    let b = pair.sides[B].endpoint.accept(pair.now, request, accept);
    let b = b.expect("room");
    pair.expect(A, "Connected", |event| {
        matches!(event, Event::Connected { .. }).then_some(())
    });
    pair.expect(B, "Established", |event| {
        matches!(event, Event::Established { .. }).then_some(())
    });
    (pair, [a, b], asked)
}

/// A packet reaches B from A's address.
fn deliver(pair: &mut Pair, packet: &[u8]) {
    let path = pair.sides[B].path;
    pair.sides[B].endpoint.handle_packet(pair.now, path, packet);
}

/// A request for another connection from the same queue pair, which reaches B.
fn forge(pair: &mut Pair, asked: &[u8], comm_id: u8) {
    let mut forged = asked.to_vec();
    forged[COMM_ID_AT] ^= comm_id;
    deliver(pair, &forged);
    let request = pair.request();
    let now = pair.now;
    pair.sides[B]
        .endpoint
        .reject(now, request, RejectReason::Consumer, &[]);
}

fn exchange(pair: &mut Pair, qps: [QpId; 2], id: u64) {
    pair.post_receive(B, qps[B], id, 16);
    pair.send(A, qps[A], id, b"abcd");
    assert_eq!(pair.completion(A, qps[A]).2, WcStatus::Success);
    assert_eq!(pair.completion(B, qps[B]).2, WcStatus::Success);
}

#[test]
fn a_request_in_the_name_of_a_living_peer_does_not_end_its_connection() {
    for is_used in [false, true] {
        let (mut pair, qps, asked) = connected();
        if is_used {
            exchange(&mut pair, qps, 1);
        }
        for forged in 1..20 {
            forge(&mut pair, &asked, forged);
            pair.run_for(Duration::from_secs(5));
        }
        // Longer than it waits for a silent peer.
        pair.now += Duration::from_secs(60);
        pair.run_for(Duration::from_secs(60));
        let ended = pair.take(B, |event| {
            matches!(event, Event::Disconnected { .. }).then_some(())
        });
        assert_eq!(ended, None);
        exchange(&mut pair, qps, 2);
        pair.finish(qps);
    }
}

#[test]
fn a_peer_that_restarted_and_asks_anew_loses_its_old_connection_soon() {
    let (mut pair, qps, asked) = connected();
    exchange(&mut pair, qps, 1);
    pair.sides[A].dead = true;
    let before = pair.now;
    forge(&mut pair, &asked, 1);
    assert_eq!(
        pair.disconnected(B, qps[B]),
        DisconnectReason::Error(WcStatus::RetryExceeded)
    );
    let waited = pair.now - before;
    let patience = EndpointConfig::default().give_up_after;
    assert!(waited >= patience && waited < patience * 2, "{waited:?}");
}
