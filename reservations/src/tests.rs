//! Stories of two hosts and the table of conflicts.

use nvme::Status;
use nvme::reservation::ReservationEvent::{
    RegistrationPreempted, ReservationPreempted, ReservationReleased,
};
use nvme::reservation::{
    AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReservationEvent, ReservationType,
};
use proptest::prelude::*;

use crate::{Access, Effects, HostId, REGISTRANTS_MAX, Request, Reservations};

const HOLDER: HostId = HostId::from_u128(1);
const REGISTRANT: HostId = HostId::from_u128(2);
const OTHER: HostId = HostId::from_u128(3);

const HOLDER_KEY: u64 = 0xa1;
const REGISTRANT_KEY: u64 = 0xb2;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const INVALID: Status = Status::INVALID_FIELD.with_dnr();

fn register(key: u64) -> Request {
    Request::Register {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: None,
        keys: KeyPair {
            current: 0,
            other: key,
        },
    }
}

fn change(action: RegisterAction, current: u64, other: u64) -> Request {
    Request::Register {
        action,
        ignore_key: false,
        persist: None,
        keys: KeyPair { current, other },
    }
}

fn acquire(action: AcquireAction, kind: ReservationType, current: u64, other: u64) -> Request {
    Request::Acquire {
        action,
        kind,
        keys: KeyPair { current, other },
    }
}

fn take(kind: ReservationType, key: u64) -> Request {
    acquire(AcquireAction::Acquire, kind, key, 0)
}

fn release(kind: ReservationType, key: u64) -> Request {
    Request::Release {
        action: ReleaseAction::Release,
        kind: kind.as_u8(),
        key,
    }
}

fn clear(key: u64) -> Request {
    Request::Release {
        action: ReleaseAction::Clear,
        kind: 0,
        key,
    }
}

fn key_of(host: HostId) -> u64 {
    match host {
        HOLDER => HOLDER_KEY,
        REGISTRANT => REGISTRANT_KEY,
        _ => 0xdead,
    }
}

/// A holder and a second registrant.
fn held(kind: ReservationType) -> Reservations {
    let mut state = Reservations::default();
    for host in [HOLDER, REGISTRANT] {
        assert_eq!(
            state.apply(host, register(key_of(host))),
            Ok(Effects::default())
        );
    }
    assert_eq!(
        state.apply(HOLDER, take(kind, HOLDER_KEY)),
        Ok(Effects::default())
    );
    assert!(state.is_held() && state.is_sound());
    state
}

fn told(effects: Result<Effects, Status>) -> Vec<(HostId, ReservationEvent)> {
    effects.expect("it succeeds").notify
}

/// Base 2.0, 'Command Behavior in the Presence of a Reservation': for the holder, another registrant,
/// and a host that is not registered, A is allowed and C a conflict; I is Invalid Field, where a
/// command is not in conflict but wrong. The columns are the types in the order of their numbers.
const TABLE: [(&str, [&str; 6]); 9] = [
    // Command        WE     EA     WERO   EARO   WEAR   EAAR
    ("read", ["AAA", "ACC", "AAA", "AAC", "AAA", "AAC"]),
    ("write", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("acquire", ["ACC", "ACC", "ACC", "ACC", "AAC", "AAC"]),
    (
        "acquire another",
        ["CCC", "CCC", "CCC", "CCC", "CCC", "CCC"],
    ),
    ("preempt", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("release", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("clear", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("register", ["AAA", "AAA", "AAA", "AAA", "AAA", "AAA"]),
    ("unregister", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
];

fn outcome(command: &str, kind: ReservationType, host: HostId) -> char {
    let mut state = held(kind);
    let key = key_of(host);
    let another = match kind {
        ReservationType::WriteExclusive => ReservationType::ExclusiveAccess,
        _ => ReservationType::WriteExclusive,
    };
    let request = match command {
        "read" | "write" => {
            let access = match command {
                "read" => Access::Read,
                _ => Access::Write,
            };
            return if state.admits(&host, access) {
                'A'
            } else {
                'C'
            };
        }
        "acquire" => take(kind, key),
        "acquire another" => take(another, key),
        "preempt" => acquire(AcquireAction::Preempt, another, key, HOLDER_KEY),
        "release" => release(kind, key),
        "clear" => clear(key),
        "register" => register(key),
        "unregister" => change(RegisterAction::Unregister, key, 0),
        _ => unreachable!("{command} is in the table"),
    };
    let before = state.clone();
    let result = state.apply(host, request);
    assert!(state.is_sound(), "{command} of {host} under {kind:?}");
    match result {
        Ok(_) => 'A',
        Err(status) => {
            assert_eq!(state, before, "a refused {command} changed something");
            match status {
                CONFLICT => 'C',
                INVALID => 'I',
                status => panic!("{command}: {status}"),
            }
        }
    }
}

#[test]
fn every_command_of_every_host_meets_every_type_as_the_table_says() {
    for (command, row) in TABLE {
        for (kind, expected) in ReservationType::ALL.into_iter().zip(row) {
            let hosts = [HOLDER, REGISTRANT, OTHER].into_iter();
            let got: String = hosts.map(|host| outcome(command, kind, host)).collect();
            assert_eq!(got, expected, "{command} under {kind:?}");
        }
    }
}

#[test]
fn without_a_reservation_everybody_may_do_everything() {
    let mut state = Reservations::default();
    state.apply(HOLDER, register(1)).expect("room");
    for host in [HOLDER, OTHER] {
        assert!(state.admits(&host, Access::Read) && state.admits(&host, Access::Write));
    }
}

#[test]
fn a_host_registers_once_and_changes_its_key_only_if_it_knows_it() {
    let mut state = Reservations::default();
    assert!(state.apply(HOLDER, register(1)).is_ok());
    assert!(
        state.apply(HOLDER, register(1)).is_ok(),
        "the same key again"
    );
    assert_eq!(state.apply(HOLDER, register(2)), Err(CONFLICT));
    let replace = |current, other| change(RegisterAction::Replace, current, other);
    assert_eq!(state.apply(HOLDER, replace(9, 2)), Err(CONFLICT));
    assert_eq!(
        state.apply(OTHER, replace(1, 2)),
        Err(CONFLICT),
        "not registered"
    );
    assert!(state.apply(HOLDER, replace(1, 2)).is_ok());
    assert_eq!(state.report().registrants[0].key, 2);
    let unregister = |key| change(RegisterAction::Unregister, key, 0);
    assert_eq!(state.apply(HOLDER, unregister(1)), Err(CONFLICT));
    assert!(state.apply(HOLDER, unregister(2)).is_ok());
    assert_eq!(state.report().registrants, []);
    assert_eq!(state.report().generation, 4, "one for each that succeeded");
}

#[test]
fn a_key_may_be_ignored_where_the_command_says_so() {
    let forced = |action, other| Request::Register {
        action,
        ignore_key: true,
        persist: Some(true),
        keys: KeyPair { current: 77, other },
    };
    let mut state = Reservations::default();
    assert_eq!(
        state.apply(HOLDER, forced(RegisterAction::Unregister, 0)),
        Err(CONFLICT),
        "it is not registered"
    );
    assert!(!state.persists(), "what is refused changes nothing");
    assert!(
        state
            .apply(HOLDER, forced(RegisterAction::Replace, 5))
            .is_ok()
    );
    assert!(state.persists());
    assert!(
        state
            .apply(HOLDER, forced(RegisterAction::Replace, 6))
            .is_ok()
    );
    assert_eq!(state.report().registrants[0].key, 6);
    assert!(
        state
            .apply(HOLDER, forced(RegisterAction::Unregister, 0))
            .is_ok()
    );
}

#[test]
fn a_holder_that_replaces_its_key_still_holds() {
    let mut state = held(ReservationType::WriteExclusive);
    let replace = change(RegisterAction::Replace, HOLDER_KEY, 0xa2);
    assert!(state.apply(HOLDER, replace).is_ok());
    assert!(state.report().registrants[0].is_holder);
    // And is preempted by its new key.
    let preempt = acquire(
        AcquireAction::Preempt,
        ReservationType::WriteExclusive,
        REGISTRANT_KEY,
        0xa2,
    );
    assert_eq!(
        told(state.apply(REGISTRANT, preempt)),
        [(HOLDER, RegistrationPreempted)]
    );
    assert!(!state.admits(&HOLDER, Access::Write) && state.admits(&REGISTRANT, Access::Write));
}

#[test]
fn the_reservation_goes_with_its_holder_and_the_others_hear_of_it() {
    for kind in ReservationType::ALL {
        let mut state = held(kind);
        let unregister = |key| change(RegisterAction::Unregister, key, 0);
        let notified = told(state.apply(HOLDER, unregister(HOLDER_KEY)));
        if kind.is_all_registrants() {
            assert!(state.is_held(), "the other registrant holds it too");
            assert_eq!(notified, []);
            assert!(state.apply(REGISTRANT, unregister(REGISTRANT_KEY)).is_ok());
        } else if kind.admits_registrants() {
            assert_eq!(notified, [(REGISTRANT, ReservationReleased)]);
        } else {
            assert_eq!(notified, []);
        }
        assert!(!state.is_held());
    }
}

#[test]
fn release_is_for_the_holder_with_the_right_type_and_tells_the_others() {
    for kind in ReservationType::ALL {
        let mut state = held(kind);
        let wrong = match kind {
            ReservationType::WriteExclusive => ReservationType::ExclusiveAccess,
            _ => ReservationType::WriteExclusive,
        };
        assert_eq!(
            state.apply(HOLDER, release(wrong, HOLDER_KEY)),
            Err(INVALID)
        );
        assert_eq!(
            state.apply(HOLDER, release(kind, 9)),
            Err(CONFLICT),
            "the key"
        );
        if !kind.is_all_registrants() {
            let nothing = state.apply(REGISTRANT, release(kind, REGISTRANT_KEY));
            assert_eq!(nothing, Ok(Effects::default()));
            assert!(state.is_held(), "it is not the holder");
        }
        let notified = told(state.apply(HOLDER, release(kind, HOLDER_KEY)));
        assert!(!state.is_held());
        match kind.admits_registrants() {
            true => assert_eq!(notified, [(REGISTRANT, ReservationReleased)]),
            false => assert_eq!(notified, []),
        }
        let again = state.apply(HOLDER, release(kind, HOLDER_KEY));
        assert_eq!(again, Ok(Effects::default()), "there is nothing to release");
    }
}

#[test]
fn clear_removes_everything_and_tells_the_others() {
    let mut state = held(ReservationType::ExclusiveAccess);
    let generation = state.report().generation;
    let notified = told(state.apply(REGISTRANT, clear(REGISTRANT_KEY)));
    assert_eq!(notified, [(HOLDER, ReservationPreempted)]);
    assert!(!state.is_held() && state.report().registrants.is_empty());
    assert_eq!(state.report().generation, generation + 1);
}

#[test]
fn preempting_the_holder_takes_the_reservation_and_its_registration() {
    for kind in ReservationType::ALL
        .into_iter()
        .filter(|k| !k.is_all_registrants())
    {
        let mut state = held(kind);
        let preempt = acquire(
            AcquireAction::PreemptAndAbort,
            ReservationType::ExclusiveAccess,
            REGISTRANT_KEY,
            HOLDER_KEY,
        );
        let effects = state.apply(REGISTRANT, preempt).expect("it may");
        assert_eq!(effects.notify, [(HOLDER, RegistrationPreempted)]);
        assert_eq!(effects.abort, [HOLDER]);
        let report = state.report();
        assert_eq!(report.kind, Some(ReservationType::ExclusiveAccess));
        assert_eq!(report.registrants.len(), 1);
        assert!(report.registrants[0].is_holder);
    }
}

#[test]
fn preempting_a_key_that_does_not_hold_unregisters_alone() {
    let mut state = held(ReservationType::WriteExclusiveRegistrantsOnly);
    let preempt = |key| {
        acquire(
            AcquireAction::Preempt,
            ReservationType::ExclusiveAccess,
            HOLDER_KEY,
            key,
        )
    };
    assert_eq!(
        state.apply(HOLDER, preempt(0x99)),
        Err(CONFLICT),
        "nobody's key"
    );
    assert_eq!(state.apply(HOLDER, preempt(0)), Err(INVALID));
    let notified = told(state.apply(HOLDER, preempt(REGISTRANT_KEY)));
    assert_eq!(notified, [(REGISTRANT, RegistrationPreempted)]);
    let report = state.report();
    assert_eq!(
        report.kind,
        Some(ReservationType::WriteExclusiveRegistrantsOnly)
    );
    assert_eq!(report.registrants.len(), 1);
    assert!(!state.admits(&REGISTRANT, Access::Write));
}

#[test]
fn a_holder_preempts_itself_to_change_the_type() {
    let mut state = held(ReservationType::WriteExclusiveRegistrantsOnly);
    let preempt = acquire(
        AcquireAction::Preempt,
        ReservationType::ExclusiveAccess,
        HOLDER_KEY,
        HOLDER_KEY,
    );
    let notified = told(state.apply(HOLDER, preempt));
    assert_eq!(notified, [(REGISTRANT, ReservationReleased)]);
    assert_eq!(state.report().kind, Some(ReservationType::ExclusiveAccess));
    assert_eq!(state.report().registrants.len(), 2);
}

#[test]
fn key_zero_preempts_all_registrants_of_the_types_where_all_hold() {
    for kind in [
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ] {
        let mut state = held(kind);
        let preempt = |key| {
            acquire(
                AcquireAction::PreemptAndAbort,
                ReservationType::WriteExclusive,
                REGISTRANT_KEY,
                key,
            )
        };
        assert_eq!(state.apply(REGISTRANT, preempt(0x99)), Err(CONFLICT));
        let effects = state.apply(REGISTRANT, preempt(0)).expect("it may");
        assert_eq!(effects.notify, [(HOLDER, RegistrationPreempted)]);
        assert_eq!(effects.abort, [HOLDER]);
        assert_eq!(state.report().kind, Some(ReservationType::WriteExclusive));
        assert!(state.admits(&REGISTRANT, Access::Write));
        assert!(!state.admits(&HOLDER, Access::Write));
    }
}

#[test]
fn more_hosts_than_there_is_room_for_are_refused() {
    let mut state = Reservations::default();
    for host in 0..REGISTRANTS_MAX as u128 {
        assert!(state.apply(HostId::from_u128(host), register(1)).is_ok());
    }
    let one_more = state.apply(HostId::from_u128(1 << 64), register(1));
    assert_eq!(one_more, Err(Status::INTERNAL.with_dnr()));
    assert!(
        state.apply(HostId::from_u128(0), register(1)).is_ok(),
        "it is one of them"
    );
    let stored = serde_json::to_vec(&state).expect("it is plain data");
    assert!(
        stored.len() < 64 << 10,
        "{} bytes fit into a setting",
        stored.len()
    );
}

fn any_request() -> impl Strategy<Value = Request> {
    let key = 0..4_u64;
    let keys = (key.clone(), key.clone()).prop_map(|(current, other)| KeyPair { current, other });
    let kind = prop::sample::select(ReservationType::ALL.to_vec());
    let action = prop::sample::select(vec![
        RegisterAction::Register,
        RegisterAction::Register,
        RegisterAction::Unregister,
        RegisterAction::Replace,
    ]);
    let taking = prop::sample::select(vec![
        AcquireAction::Acquire,
        AcquireAction::Preempt,
        AcquireAction::PreemptAndAbort,
    ]);
    let giving = prop::sample::select(vec![
        ReleaseAction::Release,
        ReleaseAction::Release,
        ReleaseAction::Release,
        ReleaseAction::Clear,
    ]);
    prop_oneof![
        (action, any::<bool>(), any::<Option<bool>>(), keys.clone()).prop_map(
            |(action, ignore_key, persist, keys)| Request::Register {
                action,
                ignore_key,
                persist,
                keys
            }
        ),
        (taking, kind, keys).prop_map(|(action, kind, keys)| Request::Acquire {
            action,
            kind,
            keys
        }),
        (giving, 0..8_u8, key).prop_map(|(action, kind, key)| Request::Release {
            action,
            kind,
            key
        }),
    ]
}

proptest! {
    #[test]
    fn after_any_sequence_the_parts_agree_and_what_is_stored_reads_back(
        requests in prop::collection::vec((0..4_u128, any_request()), 0..40),
    ) {
        let mut state = Reservations::default();
        for (host, request) in requests {
            let host = HostId::from_u128(host);
            let before = state.clone();
            match state.apply(host, request) {
                Err(_) => prop_assert_eq!(&state, &before, "{:?} was refused", request),
                Ok(effects) => {
                    prop_assert!(effects.notify.iter().all(|(told, _)| *told != host));
                    prop_assert!(!effects.abort.contains(&host));
                    let report = state.report();
                    let registered = |host: &HostId| {
                        report.registrants.iter().any(|one| one.host == host.into_bytes())
                    };
                    prop_assert!(!effects.abort.iter().any(registered), "whom it aborts is out");
                }
            }
            prop_assert!(state.is_sound(), "{:?} left {:?}", request, state);
            // Somebody can always write: a reservation that nobody can use would never end.
            let hosts = (0..4).map(HostId::from_u128);
            prop_assert!(hosts.into_iter().any(|host| state.admits(&host, Access::Write)));
            let text = serde_json::to_string(&state).expect("it is plain data");
            prop_assert_eq!(&serde_json::from_str::<Reservations>(&text).expect("its own"), &state);
        }
    }
}
