//! Peers that send nonsense: an answer that says so or silence, and nobody else is harmed.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use roce::cm::{Dropped, Event};
use roce::wire::cm::{Message, PrivateData, RejectReason, Req};
use roce::wire::{PathMtu, WireError, mad};

use crate::pair::{HOST, Pair, Side, acceptance, local, message};

/// A valid request, changed.
fn rejected(change: impl FnOnce(&mut Req)) -> RejectReason {
    let mut pair = Pair::new();
    pair.host.connect(pair.now, local(0x111));
    let mut asked = pair.host.sent_one();
    let (id, Message::Req(mut request)) = Message::parse(&asked.mad).expect("ours") else {
        panic!("a request")
    };
    change(&mut request);
    asked.mad = Message::Req(request).to_mad(id);
    pair.target.take(pair.now, &asked).expect("it is answered");
    assert_eq!(pair.target.manager.poll_event(), None);
    assert_eq!(pair.target.manager.live(), 0, "nothing is kept of it");
    let Message::Rej(rejection) = message(&pair.target.sent_one()) else {
        panic!("a rejection")
    };
    rejection.reason
}

#[test]
fn requests_that_cannot_be_served_are_rejected_with_the_reason() {
    assert_eq!(
        rejected(|request| request.transport = 1),
        RejectReason::InvalidTransportType
    );
    assert_eq!(
        rejected(|request| request.extended_transport = 1),
        RejectReason::InvalidTransportType
    );
    assert_eq!(
        rejected(|request| request.service_id += 1),
        RejectReason::InvalidServiceId
    );
    for code in [0, 6, 15] {
        assert_eq!(
            rejected(|request| request.mtu_code = code),
            RejectReason::InvalidMtu
        );
        assert_eq!(PathMtu::from_code(code), None);
    }
    for qpn in [0, 1] {
        let reason = rejected(|request| request.local_qpn = qpn);
        assert_eq!(reason, RejectReason::InvalidCommInstance);
    }
    assert_eq!(
        rejected(|request| request.pkey = 0x8001),
        RejectReason::Unsupported
    );
    assert_eq!(
        rejected(|request| request.primary.local_gid[15] ^= 1),
        RejectReason::InvalidGid
    );
    assert_eq!(
        rejected(|request| request.primary.remote_gid[15] ^= 1),
        RejectReason::InvalidGid
    );
}

#[test]
fn private_data_without_a_valid_header_is_rejected() {
    let empty = rejected(|request| request.private_data = PrivateData::default());
    assert_eq!(empty, RejectReason::Unsupported);
    let version = rejected(|request| {
        let mut data = *request.private_data.as_bytes();
        data[0] = 0x10;
        request.private_data = PrivateData::new(&data).expect("it fits");
    });
    assert_eq!(version, RejectReason::Unsupported);
}

#[test]
fn datagrams_that_are_not_connection_management_are_dropped() {
    let mut pair = Pair::new();
    pair.host.connect(pair.now, local(0x111));
    let good = pair.host.sent_one().mad;
    let path = pair.target.path_to(HOST);
    let mut drop =
        |datagram: &[u8]| match pair.target.manager.handle_mad(pair.now, path, 1, datagram) {
            Err(Dropped::Malformed(error)) => error,
            other => panic!("{other:?}"),
        };
    let with = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        bad
    };
    assert_eq!(drop(&[]), WireError::MadLength(0));
    assert_eq!(drop(&good[..255]), WireError::MadLength(255));
    assert_eq!(
        drop(&[&good[..], &[0; 4]].concat()),
        WireError::MadLength(260)
    );
    assert_eq!(
        drop(&with(0, 2)),
        WireError::MadVersion { base: 2, class: 2 }
    );
    assert_eq!(
        drop(&with(2, 1)),
        WireError::MadVersion { base: 1, class: 1 }
    );
    assert_eq!(drop(&with(1, 0x01)), WireError::MadClass(1));
    assert_eq!(drop(&with(3, 0x01)), WireError::MadMethod(1));
    assert_eq!(drop(&with(17, 0x0f)), WireError::UnknownAttribute(0x0f));
    assert_eq!(drop(&with(17, 0x19)), WireError::UnknownAttribute(0x19));
    assert_eq!(drop(&with(16, 0x01)), WireError::UnknownAttribute(0x0110));
    assert!(pair.target.sent().is_empty());
    assert_eq!(pair.target.manager.live(), 0);
}

#[test]
fn a_reply_with_an_impossible_queue_pair_is_refused() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.target
        .manager
        .accept(pair.now, target, &acceptance(1))
        .expect("it waits");
    pair.exchange();
    let reason = RejectReason::InvalidCommInstance;
    assert!(
        matches!(pair.host.event(), Event::Rejected { conn, reason: r, .. } if conn == host && r == reason)
    );
    assert!(matches!(pair.target.event(), Event::Disconnected { .. }));
    pair.assert_quiet();
}

#[test]
fn a_target_that_never_stops_asking_for_time_gets_it_a_few_times_only() {
    let mut pair = Pair::new();
    pair.requested(0x111);
    pair.pass(Duration::from_secs(1));
    let again = pair.host.sent_one();
    pair.target.take(pair.now, &again).expect("a duplicate");
    let wait = pair.target.sent_one();
    let granted = (0..1000)
        .filter(|_| {
            pair.now += Duration::from_millis(1);
            pair.host.take(pair.now, &wait).is_ok()
        })
        .count();
    assert_eq!(granted, 7);
}

/// What a hostile host sends: any message, with ids that are sometimes right.
fn hostile() -> impl Strategy<Value = (u16, [u8; 2], Vec<(usize, u8)>, u64)> {
    (
        0x0f..0x19_u16,
        any::<[u8; 2]>(),
        vec((0..mad::BODY_LEN, any::<u8>()), 0..12),
        0..3000_u64,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// A hostile host sends whatever it likes, built on the messages of its own real connections.
    /// Nothing panics, the bounds hold, and the connection of another host lives on.
    #[test]
    fn a_hostile_host_harms_only_itself(script in vec(hostile(), 1..120)) {
        let mut pair = Pair::new();
        let (honest, served) = pair.established(0x111, 0x222);
        let mut enemy = Side::new([10, 0, 0, 66].into(), Default::default(), 66);
        let mut material: Vec<[u8; mad::LEN]> = Vec::new();
        let mut next_qpn = 0x300;
        for (attribute, [pick, mode], changes, millis) in script {
            enemy.connect(pair.now, local(u32::from(pick) + 2));
            material.extend(enemy.sent().into_iter().map(|transmit| transmit.mad));
            let mut datagram = material[usize::from(pick) % material.len()];
            if mode % 4 != 0 {
                datagram[16..18].copy_from_slice(&attribute.to_be_bytes());
            }
            if mode % 2 == 1 {
                // As if answering what the target sent: its ids the other way round.
                let (ours, theirs) = datagram[24..32].split_at_mut(4);
                ours.swap_with_slice(theirs);
            }
            for (at, value) in changes {
                datagram[mad::HEADER_LEN + at] = value;
            }
            let path = pair.target.path_to(enemy.address);
            let _ = pair.target.manager.handle_mad(pair.now, path, u32::from(mode), &datagram);
            while let Some(event) = pair.target.manager.poll_event() {
                match event {
                    Event::ConnectRequest { conn, .. } if mode % 3 != 0 => {
                        next_qpn += 1;
                        pair.target.manager.accept(pair.now, conn, &acceptance(next_qpn))
                            .expect("it waits");
                    }
                    Event::Disconnected { conn, .. } => prop_assert_ne!(conn, served),
                    _ => {}
                }
            }
            for transmit in pair.target.sent() {
                prop_assert_eq!(transmit.path.remote, enemy.address);
                material.push(transmit.mad);
                let _ = enemy.take(pair.now, &transmit);
                while let Some(event) = enemy.manager.poll_event() {
                    if let Event::ReplyReceived { conn, .. } = event {
                        enemy.manager.establish(pair.now, conn).expect("the reply came");
                    }
                }
            }
            prop_assert!(pair.target.manager.pending() <= 128);
            pair.now += Duration::from_millis(millis);
            pair.target.manager.handle_timeout(pair.now);
            enemy.manager.handle_timeout(pair.now);
        }
        // The honest host's connection still works.
        pair.target.sent();
        while pair.target.manager.poll_event().is_some() {}
        pair.host.manager.disconnect(pair.now, honest);
        pair.exchange();
        let ended = std::iter::from_fn(|| pair.target.manager.poll_event())
            .any(|event| matches!(event, Event::Disconnected { conn, .. } if conn == served));
        prop_assert!(ended);
        // And everything of the hostile one goes away with time.
        for _ in 0..100_000 {
            let Some(next) = pair.target.manager.poll_timeout() else { break };
            pair.now = pair.now.max(next);
            pair.target.manager.handle_timeout(pair.now);
            pair.target.sent();
            while let Some(event) = pair.target.manager.poll_event() {
                if let Event::ConnectRequest { conn, .. } = event {
                    pair.target.manager.disconnect(pair.now, conn);
                }
            }
        }
        prop_assert_eq!(pair.target.manager.pending(), 0);
        prop_assert_eq!(pair.target.manager.poll_timeout(), None);
    }
}
