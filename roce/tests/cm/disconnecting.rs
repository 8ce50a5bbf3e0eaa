//! From an established connection, or half of one, to nothing.

use std::time::Duration;

use roce::cm::{Config, DisconnectReason, Dropped, Event};
use roce::wire::cm::{Message, PrivateData, Rej, RejectReason, RejectedMessage};

use crate::pair::{HOST, Pair, Side, local, message};

#[test]
fn a_disconnect_ends_both_sides() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(0x111, 0x222);
    pair.target.manager.disconnect(pair.now, target);
    let asked = pair.target.sent_one();
    let Message::Dreq(dreq) = message(&asked) else {
        panic!("a disconnect request")
    };
    assert_eq!(dreq.remote_qpn, 0x111);
    pair.host
        .take(pair.now, &asked)
        .expect("for the connection");
    pair.host.ended(host, DisconnectReason::Remote);
    assert_eq!(
        pair.target.manager.poll_event(),
        None,
        "the host has not agreed yet"
    );
    pair.exchange();
    pair.target.ended(target, DisconnectReason::Local);
    pair.target.manager.disconnect(pair.now, target);
    pair.assert_quiet();
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(0x111, 0x222);
    pair.host.manager.disconnect(pair.now, host);
    pair.target.manager.disconnect(pair.now, target);
    // The peer's own request is as good as its agreement, which may be lost.
    let asked = pair.target.sent_one();
    pair.host
        .take(pair.now, &asked)
        .expect("for the connection");
    pair.host.ended(host, DisconnectReason::Local);
    pair.exchange();
    pair.target.ended(target, DisconnectReason::Local);
    pair.assert_quiet();
}

#[test]
fn a_lost_answer_to_a_disconnect_is_given_again() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(0x111, 0x222);
    pair.host.manager.disconnect(pair.now, host);
    let asked = pair.host.sent_one();
    pair.target
        .take(pair.now, &asked)
        .expect("for the connection");
    let lost = pair.target.sent_one();
    pair.pass(Config::default().response_timeout);
    assert_eq!(pair.host.sent_one(), asked);
    pair.target
        .take(pair.now, &asked)
        .expect("it is remembered");
    let answer = pair.target.sent_one();
    assert_eq!(answer, lost);
    pair.target.ended(target, DisconnectReason::Remote);
    pair.host.take(pair.now, &answer).expect("the answer");
    pair.host.ended(host, DisconnectReason::Local);
    pair.assert_quiet();
}

#[test]
fn a_peer_that_never_answers_a_disconnect_is_given_up() {
    let config = Config::default();
    let mut pair = Pair::new();
    let (host, _) = pair.established(0x111, 0x222);
    pair.host.manager.disconnect(pair.now, host);
    for _ in 0..=config.retries {
        assert_eq!(pair.host.sent().len(), 1);
        pair.pass(config.response_timeout);
    }
    pair.host.ended(host, DisconnectReason::Local);
    assert!(pair.host.sent().is_empty());
}

#[test]
fn a_disconnect_for_an_unknown_connection_is_answered() {
    // The target was restarted: it knows nothing, but the host must be able to go on.
    let mut pair = Pair::new();
    let (host, _) = pair.established(0x111, 0x222);
    pair.target = Side::new(pair.target.address, Config::default(), 3);
    pair.host.manager.disconnect(pair.now, host);
    assert_eq!(pair.exchange(), 2);
    pair.host.ended(host, DisconnectReason::Local);
    pair.assert_quiet();
}

#[test]
fn a_disconnect_for_another_queue_pair_is_ignored() {
    let mut pair = Pair::new();
    let (host, _) = pair.established(0x111, 0x222);
    pair.host.manager.disconnect(pair.now, host);
    let mut asked = pair.host.sent_one();
    asked.mad[24 + 8 + 2] ^= 1;
    assert_eq!(pair.target.take(pair.now, &asked), Err(Dropped::Unknown));
    assert!(pair.target.sent().is_empty());
    assert_eq!(pair.target.manager.live(), 1);
}

#[test]
fn a_host_that_gives_up_before_the_reply_frees_the_target() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.host.manager.disconnect(pair.now, host);
    pair.exchange();
    pair.host.ended(host, DisconnectReason::Local);
    pair.target
        .ended(target, DisconnectReason::Rejected(RejectReason::Timeout));
    pair.assert_quiet();
}

#[test]
fn a_reply_to_a_request_that_was_given_up_is_rejected() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.host.manager.disconnect(pair.now, host);
    pair.host.sent(); // The withdrawal is lost.
    pair.accept(target, 0x222);
    pair.exchange();
    pair.target.ended(
        target,
        DisconnectReason::Rejected(RejectReason::InvalidCommId),
    );
    pair.host.ended(host, DisconnectReason::Local);
    pair.assert_quiet();
}

#[test]
fn a_target_may_disconnect_before_the_confirmation() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.accept(target, 0x222);
    pair.exchange();
    pair.target.manager.disconnect(pair.now, target);
    pair.exchange();
    assert!(matches!(pair.host.event(), Event::ReplyReceived { conn, .. } if conn == host));
    pair.host.ended(host, DisconnectReason::Remote);
    let established = pair.host.manager.establish(pair.now, host);
    assert_eq!(established, Err(roce::cm::CmError::NoSuchConnection));
    pair.target.ended(target, DisconnectReason::Local);
    pair.assert_quiet();
}

#[test]
fn a_connection_that_was_never_confirmed_can_be_given_up_at_once() {
    let mut pair = Pair::new();
    let (host, target, _) = pair.requested(0x111);
    pair.accept(target, 0x222);
    pair.exchange();
    assert!(matches!(pair.host.event(), Event::ReplyReceived { conn, .. } if conn == host));
    pair.target.manager.abandon(pair.now, target);
    pair.target.ended(target, DisconnectReason::Local);
    assert_eq!(pair.target.manager.live(), 0, "it waits for nobody");
    assert_eq!(pair.target.manager.poll_timeout(), None);
    pair.exchange();
    pair.host
        .ended(host, DisconnectReason::Rejected(RejectReason::Consumer));
    pair.assert_quiet();
    // One that is confirmed is disconnected as any other.
    let (_, target) = pair.established(0x11, 0x222);
    pair.target.manager.abandon(pair.now, target);
    assert!(pair.target.manager.poll_timeout().is_some());
}

#[test]
fn a_host_that_crashed_and_comes_again_from_the_same_queue_pair_is_let_in_and_asked_whether_it_lives()
 {
    let mut pair = Pair::new();
    let (_, old) = pair.established(0x11, 0x222);
    // The host's machine restarts: its adapter has the same identity, and its first queue pair has
    // the same number. Only the communication id differs, which is drawn anew.
    pair.host.connect(pair.now, local(0x12));
    let mut again = pair.host.sent_one();
    again.mad[24 + 35 - 1] = 0x11;
    pair.target.take(pair.now, &again).expect("a request");
    assert_eq!(pair.target.event(), Event::Contested { conn: old });
    let Event::ConnectRequest { conn, peer, .. } = pair.target.event() else {
        panic!("the new request is reported")
    };
    assert_eq!(peer.qpn, 0x11);
    pair.accept(conn, 0x333);
    assert_eq!(pair.target.manager.live(), 2, "the old one goes on");
    // A third one takes the place of the second, which nobody has confirmed.
    pair.host.connect(pair.now, local(0x13));
    let mut third = pair.host.sent_one();
    third.mad[24 + 35 - 1] = 0x11;
    pair.target.take(pair.now, &third).expect("a request");
    pair.target.ended(conn, DisconnectReason::Stale);
}

#[test]
fn a_request_that_arrives_after_its_connection_has_ended_makes_no_other() {
    let mut pair = Pair::new();
    let host = pair.host.connect(pair.now, local(0x111));
    let late = pair.host.sent_one();
    pair.target.take(pair.now, &late).expect("a request");
    let Event::ConnectRequest { conn: target, .. } = pair.target.event() else {
        panic!("a request")
    };
    pair.accept(target, 0x222);
    pair.exchange();
    pair.establish(host);
    pair.exchange();
    pair.host.manager.disconnect(pair.now, host);
    pair.exchange();
    while pair.host.manager.poll_event().is_some() {}
    while pair.target.manager.poll_event().is_some() {}
    pair.pass(Duration::from_secs(1));
    pair.target.take(pair.now, &late).expect("it is answered");
    let Message::Rej(rejection) = message(&pair.target.sent_one()) else {
        panic!("a rejection")
    };
    assert_eq!(rejection.reason, RejectReason::StaleConnection);
    pair.assert_quiet();
}

#[test]
fn a_request_of_a_new_incarnation_with_an_old_id_is_taken_for_what_it_is() {
    let mut pair = Pair::new();
    let (_, old) = pair.established(0x11, 0x222);
    // The same communication id, but another queue pair and sequence number.
    pair.host.connect(pair.now, local(0x13));
    let again = pair.host.sent_one();
    let (id, Message::Req(mut request)) = Message::parse(&again.mad).expect("ours") else {
        panic!("a request")
    };
    let replayed = {
        // The established connection's id: the host's first, which its disconnect request shows.
        let first = pair.host.manager.live();
        assert_eq!(first, 2);
        pair.target.manager.disconnect(pair.now, old);
        let Message::Dreq(dreq) = message(&pair.target.sent_one()) else {
            panic!("a request")
        };
        dreq.remote_comm_id
    };
    request.local_comm_id = replayed;
    let mut again = again;
    again.mad = Message::Req(request).to_mad(id);
    pair.target.take(pair.now, &again).expect("a request");
    pair.target.ended(old, DisconnectReason::Local);
    assert!(matches!(pair.target.event(), Event::ConnectRequest { .. }));
}

#[test]
fn messages_of_a_stranger_change_nothing() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(0x111, 0x222);
    pair.host.manager.disconnect(pair.now, host);
    let asked = pair.host.sent_one();
    let (id, Message::Dreq(dreq)) = Message::parse(&asked.mad).expect("ours") else {
        panic!("a disconnect request")
    };
    let rejection = Message::Rej(Rej {
        local_comm_id: dreq.local_comm_id,
        remote_comm_id: dreq.remote_comm_id,
        message: RejectedMessage::Other,
        info_length: 0,
        reason: RejectReason::InvalidCommId,
        additional_info: PrivateData::default(),
        private_data: PrivateData::default(),
    });
    let stranger = pair.target.path_to([10, 0, 0, 66].into());
    let manager = &mut pair.target.manager;
    let rejected = manager.handle_mad(pair.now, stranger, 1, &rejection.to_mad(id));
    assert_eq!(rejected, Err(Dropped::Unknown));
    manager
        .handle_mad(pair.now, stranger, 1, &asked.mad)
        .expect("it is answered as unknown");
    assert_eq!(pair.target.sent_one().path, stranger);
    assert_eq!(pair.target.manager.poll_event(), None);
    // The connection is alive: its own peer can end it.
    pair.target
        .take(pair.now, &asked)
        .expect("for the connection");
    pair.target.ended(target, DisconnectReason::Remote);
}

#[test]
fn a_peer_that_forgot_the_connection_ends_it_with_a_rejection() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(0x111, 0x222);
    pair.host.manager.disconnect(pair.now, host);
    let asked = pair.host.sent_one();
    let (id, Message::Dreq(dreq)) = Message::parse(&asked.mad).expect("ours") else {
        panic!("a disconnect request")
    };
    let reason = RejectReason::InvalidCommId;
    let rejection = Message::Rej(Rej {
        local_comm_id: dreq.local_comm_id,
        remote_comm_id: dreq.remote_comm_id,
        message: RejectedMessage::Other,
        info_length: 0,
        reason,
        additional_info: PrivateData::default(),
        private_data: PrivateData::default(),
    });
    let path = pair.target.path_to(HOST);
    let taken = pair
        .target
        .manager
        .handle_mad(pair.now, path, 1, &rejection.to_mad(id));
    assert_eq!(taken, Ok(()));
    pair.target
        .ended(target, DisconnectReason::Rejected(reason));
}
