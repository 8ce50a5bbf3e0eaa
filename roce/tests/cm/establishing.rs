//! From the request to an established connection, with every message lost once.

use std::time::Duration;

use roce::cm::{Config, DisconnectReason, Dropped, Event};
use roce::wire::cm::{Message, RejectReason, RejectedMessage};
use roce::wire::{CmaHeader, GSI_QKEY, Opcode, PathMtu};

use crate::pair::{HOST, Pair, SERVICE, TARGET, acceptance, local, message, request};

#[test]
fn both_sides_learn_each_others_values() {
    let mut pair = Pair::new();
    let host = pair.host.connect(pair.now, local(0x111));
    pair.exchange();
    let Event::ConnectRequest {
        conn,
        path,
        service_id,
        mtu,
        peer,
        private_data,
    } = pair.target.event()
    else {
        panic!("a request")
    };
    assert_eq!((path.local, path.remote), (TARGET, HOST));
    assert_eq!((service_id, mtu), (SERVICE, PathMtu::Mtu1024));
    // The sequence number in a message is the one that its receiver starts with.
    assert_eq!(
        (peer.qpn, peer.starting_psn),
        (0x111, local(0x111).starting_psn)
    );
    assert_eq!((peer.responder_resources, peer.initiator_depth), (16, 8));
    assert_eq!(
        (
            peer.ack_timeout.code(),
            peer.retry_count,
            peer.rnr_retry_count
        ),
        (15, 7, 6)
    );
    assert_eq!(private_data.len(), 56);
    assert!(private_data.starts_with(b"request\0"));

    let mut accept = acceptance(0x222);
    accept.local.initiator_depth = 4;
    pair.target
        .manager
        .accept(pair.now, conn, &accept)
        .expect("it waits");
    pair.exchange();
    let Event::ReplyReceived {
        conn: replied,
        peer,
        private_data,
    } = pair.host.event()
    else {
        panic!("a reply")
    };
    assert_eq!(replied, host);
    assert_eq!(
        (peer.qpn, peer.starting_psn),
        (0x222, local(0x222).starting_psn)
    );
    // 16 can be served, but 8 were asked for.
    assert_eq!((peer.responder_resources, peer.initiator_depth), (8, 4));
    assert_eq!(private_data.len(), 196);
    assert!(private_data.starts_with(b"reply\0"));

    pair.establish(host);
    pair.exchange();
    assert_eq!(pair.target.event(), Event::Established { conn });
    assert_eq!(pair.host.manager.poll_timeout(), None);
    assert_eq!(pair.target.manager.poll_timeout(), None);
}

#[test]
fn a_reply_never_claims_more_reads_than_the_host_serves_nor_none() {
    // A Linux host that reads "initiator depth 0" refuses all READs.
    let mut pair = Pair::new();
    let mut offer = local(0x111);
    offer.responder_resources = 1;
    offer.initiator_depth = 0;
    pair.host.connect(pair.now, offer);
    pair.exchange();
    let Event::ConnectRequest { conn, .. } = pair.target.event() else {
        panic!("a request")
    };
    pair.accept(conn, 0x222);
    let Message::Rep(reply) = message(&pair.target.sent_one()) else {
        panic!("a reply")
    };
    assert_eq!((reply.responder_resources, reply.initiator_depth), (0, 1));
}

#[test]
fn management_travels_between_the_queue_pairs_number_one() {
    let mut pair = Pair::new();
    pair.host.connect(pair.now, local(0x111));
    let transmit = pair.host.sent_one();
    let packet = transmit.packet(roce::wire::Psn::new(9));
    assert_eq!(packet.bth.opcode, Opcode::UdSendOnly);
    assert_eq!(packet.bth.dest_qpn, 1);
    let deth = packet.deth.expect("a datagram header");
    assert_eq!((deth.qkey, deth.src_qpn), (GSI_QKEY, 1));

    let path = pair.target.path_to(HOST);
    let mut wrong = packet;
    wrong.deth = Some(roce::wire::Deth {
        qkey: 1,
        src_qpn: 1,
    });
    let result = pair.target.manager.handle_packet(pair.now, path, &wrong);
    assert_eq!(result, Err(Dropped::NotGsi));
    let mut wrong = packet;
    wrong.bth.dest_qpn = 2;
    let result = pair.target.manager.handle_packet(pair.now, path, &wrong);
    assert_eq!(result, Err(Dropped::NotGsi));
    let mut wrong = packet;
    wrong.bth.pkey = 0x8001;
    let result = pair.target.manager.handle_packet(pair.now, path, &wrong);
    assert_eq!(result, Err(Dropped::NotGsi));

    // The answer goes to the queue pair that asked.
    pair.target
        .manager
        .handle_mad(pair.now, path, 0x77, &transmit.mad)
        .expect("a request");
    let Event::ConnectRequest { conn, .. } = pair.target.event() else {
        panic!("a request")
    };
    pair.accept(conn, 0x222);
    assert_eq!(pair.target.sent_one().dest_qpn, 0x77);
}

#[test]
fn a_lost_request_is_repeated_and_then_given_up() {
    let config = Config::default();
    let mut pair = Pair::new();
    let conn = pair.host.connect(pair.now, local(0x111));
    let first = pair.host.sent_one();
    for _ in 0..config.retries {
        assert_eq!(
            pair.host.manager.poll_timeout(),
            Some(pair.now + config.response_timeout)
        );
        pair.pass(config.response_timeout - Duration::from_micros(1));
        assert!(pair.host.sent().is_empty());
        pair.pass(Duration::from_micros(1));
        assert_eq!(pair.host.sent_one(), first);
    }
    assert_eq!(pair.host.manager.poll_event(), None);
    pair.pass(config.response_timeout);
    pair.host.ended(conn, DisconnectReason::Timeout);
    let Message::Rej(rejection) = message(&pair.host.sent_one()) else {
        panic!("a withdrawal")
    };
    assert_eq!(rejection.reason, RejectReason::Timeout);
    assert_eq!(
        (rejection.message, rejection.remote_comm_id),
        (RejectedMessage::Req, 0)
    );
    assert_eq!(rejection.info_length, 8);
    pair.assert_quiet();
}

#[test]
fn a_lost_reply_is_sent_again_when_the_request_comes_again() {
    let mut pair = Pair::new();
    pair.host.connect(pair.now, local(0x111));
    let asked = pair.host.sent_one();
    pair.target.take(pair.now, &asked).expect("a request");
    let Event::ConnectRequest { conn, .. } = pair.target.event() else {
        panic!("a request")
    };
    pair.accept(conn, 0x222);
    let reply = pair.target.sent_one();
    pair.target.take(pair.now, &asked).expect("a duplicate");
    assert_eq!(pair.target.sent_one(), reply);
    assert_eq!(
        pair.target.manager.poll_event(),
        None,
        "it is reported once"
    );
    assert_eq!(pair.target.manager.live(), 1);
}

#[test]
fn a_reply_that_nobody_confirms_is_repeated_and_then_given_up() {
    let config = Config::default();
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.accept(target, 0x222);
    let reply = pair.target.sent_one();
    for _ in 0..config.retries {
        pair.target
            .manager
            .handle_timeout(pair.now + config.response_timeout);
        pair.now += config.response_timeout;
        assert_eq!(pair.target.sent_one(), reply);
    }
    pair.now += config.response_timeout;
    pair.target.manager.handle_timeout(pair.now);
    pair.target.ended(target, DisconnectReason::Timeout);
    // The rejection tells the host at once.
    pair.exchange();
    let Event::Rejected { conn, reason, .. } = pair.host.event() else {
        panic!("a rejection")
    };
    assert_eq!((conn, reason), (host, RejectReason::Timeout));
    pair.assert_quiet();
}

#[test]
fn a_lost_confirmation_is_sent_again_when_the_reply_comes_again() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.accept(target, 0x222);
    pair.exchange();
    assert!(matches!(pair.host.event(), Event::ReplyReceived { .. }));
    pair.establish(host);
    let lost = pair.host.sent_one();
    pair.pass(Config::default().response_timeout);
    let reply = pair.target.sent_one();
    pair.host.take(pair.now, &reply).expect("a duplicate");
    let again = pair.host.sent_one();
    assert_eq!(again, lost);
    pair.target
        .take(pair.now, &again)
        .expect("the confirmation");
    assert_eq!(pair.target.event(), Event::Established { conn: target });
    assert_eq!(pair.target.take(pair.now, &again), Err(Dropped::Unexpected));
    assert_eq!(
        pair.target.manager.poll_event(),
        None,
        "it is reported once"
    );
}

#[test]
fn data_before_the_confirmation_stands_for_it() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.target.manager.data_received(pair.now, target);
    assert_eq!(
        pair.target.manager.poll_event(),
        None,
        "nothing was accepted yet"
    );
    pair.accept(target, 0x222);
    pair.exchange();
    assert!(matches!(pair.host.event(), Event::ReplyReceived { .. }));
    pair.establish(host);
    let late = pair.host.sent_one();
    pair.target.manager.data_received(pair.now, target);
    assert_eq!(pair.target.event(), Event::Established { conn: target });
    pair.target.manager.data_received(pair.now, target);
    assert_eq!(pair.target.take(pair.now, &late), Err(Dropped::Unexpected));
    assert_eq!(pair.target.manager.poll_event(), None);
    assert_eq!(
        pair.target.manager.poll_timeout(),
        None,
        "the reply is not repeated any more"
    );
}

#[test]
fn a_host_that_asks_again_while_the_target_thinks_is_told_to_wait() {
    let config = Config::default();
    let mut pair = Pair::new();
    let (_, target, _) = pair.requested(0x111);
    pair.pass(config.response_timeout);
    let again = pair.host.sent_one();
    pair.target.take(pair.now, &again).expect("a duplicate");
    let wait = pair.target.sent_one();
    let Message::Mra(mra) = message(&wait) else {
        panic!("a receipt")
    };
    pair.host.take(pair.now, &wait).expect("a receipt");
    let deadline = pair.now + mra.service_timeout.duration() + config.response_timeout;
    assert_eq!(pair.host.manager.poll_timeout(), Some(deadline));
    pair.pass(Duration::from_secs(4));
    assert!(pair.host.sent().is_empty(), "the host waits");
    pair.accept(target, 0x222);
    pair.exchange();
    assert!(matches!(pair.host.event(), Event::ReplyReceived { .. }));
}

#[test]
fn a_target_that_asks_for_time_without_end_is_given_up() {
    let mut pair = Pair::new();
    pair.requested(0x111);
    // The target never decides, and answers each repetition of the request with "wait".
    for _ in 0..200 {
        let next = pair.host.manager.poll_timeout();
        let Some(next) = next else { break };
        pair.now = pair.now.max(next);
        pair.host.manager.handle_timeout(pair.now);
        pair.exchange();
    }
    let reason = DisconnectReason::Timeout;
    assert!(matches!(pair.host.event(), Event::Disconnected { reason: r, .. } if r == reason));
    // And the target learns that the host went away.
    let reason = DisconnectReason::Rejected(RejectReason::Timeout);
    assert!(matches!(pair.target.event(), Event::Disconnected { reason: r, .. } if r == reason));
    pair.assert_quiet();
}

#[test]
fn a_request_that_the_target_never_answers_is_rejected_at_last() {
    let mut pair = Pair::new();
    let (_, target, _) = pair.requested(0x111);
    let limit = pair.now + Config::default().pending_timeout;
    assert_eq!(pair.target.manager.poll_timeout(), Some(limit));
    pair.target.manager.handle_timeout(limit);
    pair.target.ended(target, DisconnectReason::Timeout);
    assert_eq!(pair.target.manager.pending(), 0);
    let accepted = pair
        .target
        .manager
        .accept(limit, target, &acceptance(0x222));
    assert_eq!(accepted, Err(roce::cm::CmError::NoSuchConnection));
}

#[test]
fn the_application_rejects_with_its_reason_and_data() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    let reason = RejectReason::Consumer;
    pair.target
        .manager
        .reject(pair.now, target, reason, &[0, 0, 3, 0])
        .expect("it waits");
    pair.exchange();
    let Event::Rejected {
        conn,
        reason,
        private_data,
    } = pair.host.event()
    else {
        panic!("a rejection")
    };
    assert_eq!((conn, reason.code()), (host, 28));
    assert_eq!(private_data.len(), 148);
    assert_eq!(private_data[..4], [0, 0, 3, 0]);
    pair.assert_quiet();
}

#[test]
fn the_host_rejects_a_reply_that_it_does_not_like() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.accept(target, 0x222);
    pair.exchange();
    assert!(matches!(pair.host.event(), Event::ReplyReceived { .. }));
    pair.host
        .manager
        .reject(pair.now, host, RejectReason::Consumer, b"")
        .expect("it waits");
    pair.exchange();
    pair.target
        .ended(target, DisconnectReason::Rejected(RejectReason::Consumer));
    pair.assert_quiet();
}

#[test]
fn a_service_without_a_listener_is_rejected() {
    let mut pair = Pair::new();
    assert!(pair.target.manager.unlisten(SERVICE));
    assert!(!pair.target.manager.unlisten(SERVICE));
    let conn = pair.host.connect(pair.now, local(0x111));
    pair.exchange();
    let Event::Rejected {
        conn: rejected,
        reason,
        ..
    } = pair.host.event()
    else {
        panic!("a rejection")
    };
    assert_eq!((rejected, reason), (conn, RejectReason::InvalidServiceId));
    pair.assert_quiet();
}

#[test]
fn many_connections_between_two_addresses_do_not_mix() {
    let mut pair = Pair::new();
    let pairs: Vec<_> = (0..50)
        .map(|index| pair.established(0x1000 + index, 0x2000 + index))
        .collect();
    assert_eq!(pair.host.manager.live(), 50);
    for (host, target) in pairs.into_iter().rev() {
        pair.host.manager.disconnect(pair.now, host);
        pair.exchange();
        pair.host.ended(host, DisconnectReason::Local);
        pair.target.ended(target, DisconnectReason::Remote);
    }
    pair.assert_quiet();
}

#[test]
fn a_connection_to_oneself_works() {
    let mut pair = Pair::new();
    let path = pair.target.path_to(TARGET);
    let active = pair
        .target
        .manager
        .connect(pair.now, request(path, local(0x111)))
        .expect("a connection");
    let deliver = |pair: &mut Pair| {
        for transmit in pair.target.sent() {
            pair.target.take(pair.now, &transmit).expect("for itself");
        }
    };
    deliver(&mut pair);
    let Event::ConnectRequest { conn: passive, .. } = pair.target.event() else {
        panic!("a request")
    };
    pair.accept(passive, 0x222);
    deliver(&mut pair);
    assert!(matches!(pair.target.event(), Event::ReplyReceived { conn, .. } if conn == active));
    pair.target
        .manager
        .establish(pair.now, active)
        .expect("the reply came");
    deliver(&mut pair);
    assert_eq!(pair.target.event(), Event::Established { conn: passive });
}

#[test]
fn connections_over_ipv6_carry_its_addresses() {
    let [host, target] = ["fd00::1", "fd00::2"].map(|text| text.parse().expect("an address"));
    let mut pair = Pair::new();
    pair.host.address = host;
    pair.target.address = target;
    let path = pair.host.path_to(target);
    pair.host
        .manager
        .connect(pair.now, request(path, local(0x111)))
        .expect("a connection");
    let asked = pair.host.sent_one();
    let Message::Req(sent) = message(&asked) else {
        panic!("a request")
    };
    assert_eq!(
        (sent.primary.local(), sent.primary.remote()),
        (host, target)
    );
    let header = CmaHeader::parse(sent.private_data.as_bytes()).expect("a header");
    assert_eq!((header.src, header.dst), (host, target));
    pair.target.take(pair.now, &asked).expect("a request");
    let Event::ConnectRequest { path, .. } = pair.target.event() else {
        panic!("a request")
    };
    assert_eq!((path.local, path.remote), (target, host));
}
