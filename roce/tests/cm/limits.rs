//! Everything has a bound, and what exceeds it is told so.

use roce::cm::{CmError, Config, DisconnectReason, Event, Manager};
use roce::wire::Path;
use roce::wire::cm::{Message, RejectReason};

use crate::pair::{HOST, Pair, Side, TARGET, acceptance, local, message, request};

fn small() -> Config {
    Config {
        max_connections: 4,
        max_pending: 2,
        max_time_wait: 3,
        ..Config::default()
    }
}

#[test]
fn requests_beyond_the_bound_are_rejected_and_leave_nothing_behind() {
    let mut pair = Pair::new();
    assert_eq!(Config::default().max_pending, 128);
    let mut waiting = Vec::new();
    for index in 0..200 {
        pair.host.connect(pair.now, local(0x1000 + index));
        pair.exchange();
        match pair.target.manager.poll_event() {
            Some(Event::ConnectRequest { conn, .. }) => waiting.push(conn),
            None => {
                let Event::Rejected { reason, .. } = pair.host.event() else {
                    panic!("a rejection")
                };
                assert_eq!(reason, RejectReason::NoResources);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((waiting.len(), pair.target.manager.pending()), (128, 128));
    assert_eq!(pair.target.manager.live(), 128);
    // An answer makes room for another one.
    pair.target
        .manager
        .accept(pair.now, waiting[0], &acceptance(0x222))
        .expect("it waits");
    pair.target
        .manager
        .reject(pair.now, waiting[1], RejectReason::Consumer, b"")
        .expect("it waits");
    assert_eq!(pair.target.manager.pending(), 126);
    pair.requested(0x2000);
}

#[test]
fn connections_beyond_the_bound_are_refused_on_both_sides() {
    let mut pair = Pair::with_config(small());
    for index in 0..4 {
        pair.established(0x1000 + index, 0x2000 + index);
    }
    let path = pair.host.path_to(TARGET);
    let refused = pair
        .host
        .manager
        .connect(pair.now, request(path, local(0x1111)));
    assert_eq!(
        refused,
        Err(CmError::Limit {
            what: "max_connections",
            limit: 4
        })
    );
    let mut other = Side::new([10, 0, 0, 3].into(), Config::default(), 5);
    other.connect(pair.now, local(0x1111));
    let asked = other.sent_one();
    pair.target.take(pair.now, &asked).expect("it is answered");
    let Message::Rej(rejection) = message(&pair.target.sent_one()) else {
        panic!("a rejection")
    };
    assert_eq!(rejection.reason, RejectReason::NoResources);
}

#[test]
fn ended_connections_do_not_count_and_the_oldest_is_forgotten() {
    let mut pair = Pair::with_config(small());
    for index in 0..20 {
        let (host, target) = pair.established(0x1000 + index, 0x2000 + index);
        pair.host.manager.disconnect(pair.now, host);
        pair.exchange();
        pair.host.ended(host, DisconnectReason::Local);
        pair.target.ended(target, DisconnectReason::Remote);
    }
    pair.assert_quiet();
}

#[test]
fn datagrams_that_nobody_sends_do_not_pile_up() {
    let mut pair = Pair::with_config(Config {
        max_transmits: 10,
        ..Config::default()
    });
    for index in 0..100 {
        pair.host.connect(pair.now, local(0x1000 + index));
    }
    assert_eq!(pair.host.sent().len(), 10);
    // The others are repeated when their time has come.
    pair.pass(Config::default().response_timeout);
    assert_eq!(pair.host.sent().len(), 10);
}

#[test]
fn events_that_nobody_takes_do_not_pile_up() {
    let mut pair = Pair::with_config(small());
    for index in 0..1000 {
        let host = pair.host.connect(pair.now, local(0x1000 + index));
        pair.exchange();
        pair.host.manager.disconnect(pair.now, host);
        pair.exchange();
        while pair.host.manager.poll_event().is_some() {}
    }
    let events = std::iter::from_fn(|| pair.target.manager.poll_event()).count();
    assert!(events <= 4 * 4 + 4, "{events} events");
}

#[test]
fn private_data_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut pair = Pair::new();
    let mut long = request(pair.host.path_to(TARGET), local(0x111));
    long.private_data = vec![1; 57];
    let refused = pair.host.manager.connect(pair.now, long.clone());
    assert!(
        matches!(refused, Err(CmError::PrivateData(_))),
        "{refused:?}"
    );
    assert_eq!((pair.host.manager.live(), pair.host.sent().len()), (0, 0));
    long.private_data.truncate(56);
    pair.host.manager.connect(pair.now, long).expect("it fits");
    pair.exchange();
    let Event::ConnectRequest {
        conn, private_data, ..
    } = pair.target.event()
    else {
        panic!("a request")
    };
    assert_eq!(private_data, [1; 56]);
    let mut accept = acceptance(0x222);
    accept.private_data = vec![2; 197];
    let refused = pair.target.manager.accept(pair.now, conn, &accept);
    assert!(
        matches!(refused, Err(CmError::PrivateData(_))),
        "{refused:?}"
    );
    let reason = RejectReason::Consumer;
    let refused = pair
        .target
        .manager
        .reject(pair.now, conn, reason, &[3; 149]);
    assert!(
        matches!(refused, Err(CmError::PrivateData(_))),
        "{refused:?}"
    );
    assert_eq!(pair.target.manager.pending(), 1, "the request still waits");
    accept.private_data.truncate(196);
    pair.target
        .manager
        .accept(pair.now, conn, &accept)
        .expect("it fits");
    pair.exchange();
    let Event::ReplyReceived { private_data, .. } = pair.host.event() else {
        panic!("a reply")
    };
    assert_eq!(private_data, [2; 196]);
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(0x111, 0x222);
    let accepted = pair
        .target
        .manager
        .accept(pair.now, target, &acceptance(0x333));
    assert_eq!(accepted, Err(CmError::WrongState));
    assert_eq!(
        pair.host.manager.establish(pair.now, host),
        Err(CmError::WrongState)
    );
    let rejected = pair
        .host
        .manager
        .reject(pair.now, host, RejectReason::Consumer, b"");
    assert_eq!(rejected, Err(CmError::WrongState));
    let listening = pair.target.manager.listen(crate::pair::SERVICE);
    assert_eq!(listening, Err(CmError::ServiceInUse(crate::pair::SERVICE)));
    let mixed = Path {
        local: HOST,
        remote: "fd00::1".parse().expect("an address"),
    };
    let refused = pair
        .host
        .manager
        .connect(pair.now, request(mixed, local(0x444)));
    assert_eq!(refused, Err(CmError::MixedFamilies));
}

#[test]
fn different_seeds_make_different_identities() {
    let requests: Vec<_> = [[1; 32], [2; 32], [1; 32]]
        .into_iter()
        .map(|seed| {
            let mut manager = Manager::new(Config::default(), seed);
            let path = Path {
                local: HOST,
                remote: TARGET,
            };
            let now = std::time::Instant::now();
            manager
                .connect(now, request(path, local(0x111)))
                .expect("a connection");
            let transmit = manager.poll_transmit().expect("a request");
            let Message::Req(request) = message(&transmit) else {
                panic!("a request")
            };
            (request.ca_guid, request.local_comm_id)
        })
        .collect();
    assert_ne!(requests[0], requests[1]);
    assert_eq!(requests[0], requests[2], "a seed replays");
}
