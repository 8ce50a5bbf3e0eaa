//! Reservations between hosts: who may do what, who is told, and what survives.

use std::sync::Arc;

use nvme::admin::{GetFeatures, GetLogPage, OPCODE_ASYNC_EVENT_REQUEST, SetFeatures};
use nvme::features::AsyncEvent;
use nvme::io::{DsmRange, IoCommand, LbaRange};
use nvme::reservation::{
    AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReservationCommand, ReservationEvent,
    ReservationNotification, ReservationReport, ReservationType,
};
use nvme::{Sqe, Status};
use subsystem::errors::Failure;
use subsystem::limits::Limits;
use subsystem::target::{Pool, Target, TargetParts};
use uuid::Uuid;

use crate::harness::{Attached, FakeQueue, Lab, Reply, read, story, write};

const HOLDER_KEY: u64 = 0xa1;
const REGISTRANT_KEY: u64 = 0xb2;
const OTHER_KEY: u64 = 0xc3;

fn pair(current: u64, other: u64) -> Vec<u8> {
    KeyPair { current, other }.encode().to_vec()
}

pub(crate) async fn registering(
    queue: &FakeQueue,
    action: RegisterAction,
    persist: Option<bool>,
    keys: (u64, u64),
) -> Reply {
    let command = ReservationCommand::Register {
        nsid: 1,
        action,
        ignore_key: false,
        persist,
    };
    queue.call_out(command.to_sqe(), pair(keys.0, keys.1)).await
}

async fn register(queue: &FakeQueue, key: u64) -> Reply {
    registering(queue, RegisterAction::Register, None, (0, key)).await
}

fn acquiring(nsid: u32, action: AcquireAction, kind: ReservationType) -> Sqe {
    ReservationCommand::Acquire { nsid, action, kind }.to_sqe()
}

pub(crate) async fn acquire(
    queue: &FakeQueue,
    action: AcquireAction,
    kind: ReservationType,
    keys: (u64, u64),
) -> Reply {
    let data = pair(keys.0, keys.1);
    queue.call_out(acquiring(1, action, kind), data).await
}

async fn release(queue: &FakeQueue, action: ReleaseAction, kind: u8, key: u64) -> Reply {
    let command = ReservationCommand::Release {
        nsid: 1,
        action,
        kind,
    };
    let data = key.to_le_bytes().to_vec();
    queue.call_out(command.to_sqe(), data).await
}

async fn report(queue: &FakeQueue) -> ReservationReport {
    let command = ReservationCommand::Report {
        nsid: 1,
        length: 4096,
        extended: true,
    };
    let reply = queue.call_in(command.to_sqe(), 4096).await.ok();
    ReservationReport::decode(&reply.data, true).expect("a report")
}

/// Three hosts: the first two registered, the first with a reservation.
pub(crate) struct Cast {
    /// Holder, registrant, and a host that is not registered.
    pub(crate) attached: [Attached; 3],
    pub(crate) holder: FakeQueue,
    pub(crate) registrant: FakeQueue,
    pub(crate) other: FakeQueue,
}

impl Cast {
    pub(crate) async fn new(lab: &Lab) -> Self {
        let attached = [
            lab.attach(1).await,
            lab.attach(2).await,
            lab.attach(3).await,
        ];
        Self {
            holder: lab.io_queue(&attached[0], 1).await,
            registrant: lab.io_queue(&attached[1], 1).await,
            other: lab.io_queue(&attached[2], 1).await,
            attached,
        }
    }

    /// As if nothing had been reserved before.
    pub(crate) async fn set(&self, kind: ReservationType) {
        for (queue, key) in [
            (&self.holder, HOLDER_KEY),
            (&self.registrant, REGISTRANT_KEY),
        ] {
            if release(queue, ReleaseAction::Clear, 0, key)
                .await
                .status
                .is_success()
            {
                break;
            }
        }
        register(&self.holder, HOLDER_KEY).await.ok();
        register(&self.registrant, REGISTRANT_KEY).await.ok();
        acquire(&self.holder, AcquireAction::Acquire, kind, (HOLDER_KEY, 0))
            .await
            .ok();
        assert_eq!(report(&self.other).await.kind, Some(kind));
    }
}

/// What a host may do, by the order of the types' numbers; for each type the holder, another
/// registrant, and a host that is not registered: A is allowed, C a conflict. From the figure 'Command
/// Behavior in the Presence of a Reservation' of Base 2.0.
const TABLE: [(&str, [&str; 6]); 14] = [
    // Command          WE     EA     WERO   EARO   WEAR   EAAR
    ("read", ["AAA", "ACC", "AAA", "AAC", "AAA", "AAC"]),
    ("compare", ["AAA", "ACC", "AAA", "AAC", "AAA", "AAC"]),
    ("write", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("write zeroes", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("deallocate", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("flush", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("register", ["AAA", "AAA", "AAA", "AAA", "AAA", "AAA"]),
    ("replace", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("unregister", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("acquire", ["ACC", "ACC", "ACC", "ACC", "AAC", "AAC"]),
    ("preempt", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("release", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("clear", ["AAC", "AAC", "AAC", "AAC", "AAC", "AAC"]),
    ("report", ["AAA", "AAA", "AAA", "AAA", "AAA", "AAA"]),
];

async fn attempt(queue: &FakeQueue, name: &str, kind: ReservationType, key: u64) -> Reply {
    let range = LbaRange { slba: 3, blocks: 1 };
    match name {
        "read" => queue.call_in(read(1, 3, 1), 4096).await,
        "compare" => {
            let command = IoCommand::Compare { nsid: 1, range };
            queue.call_out(command.to_sqe(), vec![0; 4096]).await
        }
        "write" => queue.call_out(write(1, 3, 1), vec![0; 4096]).await,
        "write zeroes" => {
            let command = IoCommand::WriteZeroes {
                nsid: 1,
                range,
                fua: false,
                deallocate: true,
            };
            queue.call(command.to_sqe()).await
        }
        "deallocate" => {
            let command = IoCommand::DatasetManagement {
                nsid: 1,
                ranges: 1,
                deallocate: true,
            };
            let range = DsmRange { slba: 3, blocks: 1 };
            queue
                .call_out(command.to_sqe(), range.encode().to_vec())
                .await
        }
        "flush" => queue.call(IoCommand::Flush { nsid: 1 }.to_sqe()).await,
        "register" => register(queue, key).await,
        "replace" => registering(queue, RegisterAction::Replace, None, (key, key)).await,
        "unregister" => registering(queue, RegisterAction::Unregister, None, (key, 0)).await,
        "acquire" => acquire(queue, AcquireAction::Acquire, kind, (key, 0)).await,
        "preempt" => acquire(queue, AcquireAction::Preempt, kind, (key, HOLDER_KEY)).await,
        "release" => release(queue, ReleaseAction::Release, kind.as_u8(), key).await,
        "clear" => release(queue, ReleaseAction::Clear, 0, key).await,
        "report" => {
            let command = ReservationCommand::Report {
                nsid: 1,
                length: 64,
                extended: true,
            };
            queue.call_in(command.to_sqe(), 64).await
        }
        name => panic!("{name} is in the table and nowhere else"),
    }
}

#[test]
fn every_command_of_every_host_meets_every_type_of_reservation_as_the_specification_says() {
    story(async |lab| {
        let cast = Cast::new(&lab).await;
        for kind in ReservationType::ALL {
            for (name, row) in TABLE {
                let mut got = String::new();
                let hosts = [
                    (&cast.holder, HOLDER_KEY),
                    (&cast.registrant, REGISTRANT_KEY),
                    (&cast.other, 0xc3),
                ];
                for (queue, key) in hosts {
                    cast.set(kind).await;
                    let reply = attempt(queue, name, kind, key).await;
                    got.push(match reply.status.is_success() {
                        true => 'A',
                        false => {
                            reply.refused(Status::RESERVATION_CONFLICT);
                            'C'
                        }
                    });
                    if name == "register" && key == 0xc3 {
                        let left = registering(queue, RegisterAction::Unregister, None, (key, 0));
                        left.await.ok();
                    }
                }
                let expected = row[usize::from(kind.as_u8()) - 1];
                assert_eq!(got, expected, "{name} under {}", kind.name());
            }
        }
    });
}

#[test]
fn a_host_holds_its_reservation_on_all_of_its_paths() {
    story(async |lab| {
        let cast = Cast::new(&lab).await;
        let second_path = lab.attach(1).await;
        let second_path = lab.io_queue(&second_path, 1).await;
        cast.set(ReservationType::ExclusiveAccess).await;
        second_path
            .call_out(write(1, 0, 1), vec![1; 4096])
            .await
            .ok();
        let reply = cast.registrant.call_in(read(1, 0, 1), 4096).await;
        reply.refused(Status::RESERVATION_CONFLICT);
        let report = report(&second_path).await;
        assert_eq!(report.registrants.len(), 2);
        let holders = report.registrants.iter().filter(|one| one.is_holder);
        let holders: Vec<_> = holders.map(|one| (one.host, one.key)).collect();
        assert_eq!(holders, [([1; 16], HOLDER_KEY)]);
        release(
            &second_path,
            ReleaseAction::Release,
            ReservationType::ExclusiveAccess.as_u8(),
            HOLDER_KEY,
        )
        .await
        .ok();
        cast.other.call_in(read(1, 0, 1), 4096).await.ok();
    });
}

#[test]
fn preempt_and_abort_ends_what_the_other_host_has_on_its_way() {
    story(async |lab| {
        let cast = Cast::new(&lab).await;
        lab.create_volume("vol1", 16 << 20, 4096).await;
        cast.set(ReservationType::WriteExclusiveRegistrantsOnly)
            .await;
        let (_, stuck) = cast.holder.begin_stuck(write(1, 0, 1), 4096);
        let (_, elsewhere) = cast.holder.begin_stuck(write(2, 0, 1), 4096);
        // Both are on their way when a later one is done.
        cast.holder
            .call_out(write(1, 9, 1), vec![7; 4096])
            .await
            .ok();
        let preempting = acquire(
            &cast.registrant,
            AcquireAction::PreemptAndAbort,
            ReservationType::WriteExclusive,
            (REGISTRANT_KEY, HOLDER_KEY),
        );
        let mut preempting = std::pin::pin!(preempting);
        // The write waits for data: it is aborted before the preempt is answered. The one in the other
        // namespace is none of its business, but the command waits for it.
        let first = futures_util::future::select(stuck, &mut preempting).await;
        let futures_util::future::Either::Left((aborted, _)) = first else {
            panic!("answered before the command was aborted");
        };
        let aborted = aborted.expect("an answer");
        assert_eq!(aborted.code(), Status::ABORT_REQUESTED);
        let reply = cast.holder.call_out(write(1, 0, 1), vec![1; 4096]).await;
        reply.refused(Status::RESERVATION_CONFLICT);
        cast.holder.close_from_host();
        preempting.await.ok();
        drop(elsewhere);
        let data = cast.other.call_in(read(1, 0, 1), 4096).await.ok().data;
        assert_eq!(data, vec![0; 4096], "the aborted write left nothing");
    });
}

#[test]
fn who_preempts_a_host_waits_for_those_too_whom_that_one_still_waits_for() {
    story(async |lab| {
        let cast = Cast::new(&lab).await;
        lab.create_volume("vol1", 16 << 20, 4096).await;
        let kind = ReservationType::WriteExclusive;
        cast.set(kind).await;
        register(&cast.other, OTHER_KEY).await.ok();
        // The holder's queue has a command that does not end, so nobody knows of its writes that none is under way.
        let (_, stuck) = cast.holder.begin_stuck(write(2, 0, 1), 4096);
        let preempt = || acquiring(1, AcquireAction::PreemptAndAbort, kind);
        let keys = pair(REGISTRANT_KEY, HOLDER_KEY);
        let first = cast.registrant.begin_with(preempt(), keys);
        let is_gone = async |key| {
            let registrants = report(&cast.other).await.registrants;
            !registrants.iter().any(|one| one.key == key)
        };
        while !is_gone(HOLDER_KEY).await {}
        let keys = pair(OTHER_KEY, REGISTRANT_KEY);
        let mut second = cast.other.begin_with(preempt(), keys);
        while !is_gone(REGISTRANT_KEY).await {}
        for _ in 0..20 {
            cast.other.call_in(read(1, 0, 1), 4096).await.ok();
        }
        assert!(second.try_recv().is_err(), "answered too early");
        cast.holder.close_from_host();
        second.await.expect("an answer").ok();
        drop((first, stuck));
    });
}

#[test]
fn two_hosts_that_preempt_each_other_never_wait_for_each_other() {
    story(async |lab| {
        let cast = Cast::new(&lab).await;
        lab.create_volume("vol1", 16 << 20, 4096).await;
        for (nsid, queue, key) in [
            (1, &cast.holder, 1),
            (1, &cast.registrant, 2),
            (2, &cast.holder, 1),
            (2, &cast.registrant, 2),
        ] {
            let command = ReservationCommand::Register {
                nsid,
                action: RegisterAction::Register,
                ignore_key: false,
                persist: None,
            };
            queue.call_out(command.to_sqe(), pair(0, key)).await.ok();
        }
        let kind = ReservationType::WriteExclusive;
        let preempt = |nsid| acquiring(nsid, AcquireAction::PreemptAndAbort, kind);
        let one = cast.holder.begin_with(preempt(1), pair(1, 2));
        let two = cast.registrant.begin_with(preempt(2), pair(2, 1));
        // Either may be aborted by the other one while it waits; none waits for ever.
        let (one, two) = futures_util::future::join(one, two).await;
        for reply in [one, two] {
            let code = reply.expect("an answer").code();
            assert!(
                [Status::SUCCESS, Status::ABORT_REQUESTED].contains(&code),
                "{code}"
            );
        }
    });
}

fn notification_log(retain_event: bool) -> Sqe {
    GetLogPage {
        lid: 0x80,
        lsp: 0,
        retain_event,
        length: 64,
        offset: 0,
        offset_is_index: false,
        nsid: 0,
        csi: 0,
    }
    .to_sqe()
}

async fn read_notification(host: &Attached) -> ReservationNotification {
    let reply = host.admin.call_in(notification_log(false), 64).await.ok();
    ReservationNotification::decode(&reply.data).expect("a page")
}

fn set_feature(fid: u8, nsid: u32, value: u32) -> Sqe {
    SetFeatures {
        fid,
        save: false,
        dwords: [value, 0, 0, 0, 0],
        nsid,
    }
    .to_sqe()
}

fn get_feature(fid: u8, nsid: u32) -> Sqe {
    GetFeatures {
        fid,
        select: 0,
        cdw11: 0,
        nsid,
    }
    .to_sqe()
}

#[test]
fn hosts_are_told_what_others_did_to_their_registration_and_reservation() {
    story(async |lab| {
        let (one, two) = (lab.attach(1).await, lab.attach(2).await);
        let (queue_one, queue_two) = (lab.io_queue(&one, 1).await, lab.io_queue(&two, 1).await);
        let kind = ReservationType::WriteExclusiveRegistrantsOnly;
        register(&queue_one, 1).await.ok();
        register(&queue_two, 2).await.ok();
        acquire(&queue_one, AcquireAction::Acquire, kind, (1, 0))
            .await
            .ok();
        let (_, event) = two.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST));
        release(&queue_one, ReleaseAction::Release, kind.as_u8(), 1)
            .await
            .ok();
        let event = event.await.expect("an event").ok();
        assert_eq!(event.result, u64::from(AsyncEvent::RESERVATION.encode()));

        // Two more happen before the host reads the first one.
        acquire(&queue_one, AcquireAction::Preempt, kind, (1, 2))
            .await
            .ok();
        register(&queue_two, 2).await.ok();
        release(&queue_one, ReleaseAction::Clear, 0, 1).await.ok();
        let (_, next) = two.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST));
        let expected = [
            (ReservationEvent::ReservationReleased, 2),
            (ReservationEvent::RegistrationPreempted, 1),
            (ReservationEvent::ReservationPreempted, 0),
        ];
        for (number, (event, more)) in (1..).zip(expected) {
            let page = read_notification(&two).await;
            assert_eq!(page.event, Some((event, 1)));
            assert_eq!((page.count, page.more), (number, more));
        }
        let next = next.await.expect("an event").ok();
        assert_eq!(next.result, u64::from(AsyncEvent::RESERVATION.encode()));
        assert_eq!(
            read_notification(&two).await,
            ReservationNotification::default()
        );
        // Who did it is told nothing.
        assert_eq!(
            read_notification(&one).await,
            ReservationNotification::default()
        );
    });
}

#[test]
fn a_host_hears_only_of_what_it_did_not_mask() {
    story(async |lab| {
        let (one, two) = (lab.attach(1).await, lab.attach(2).await);
        let (queue_one, queue_two) = (lab.io_queue(&one, 1).await, lab.io_queue(&two, 1).await);
        for nsid in [1, u32::MAX] {
            two.admin.call(set_feature(0x82, nsid, 0)).await.ok();
        }
        let mask = ReservationEvent::RegistrationPreempted.mask_bit();
        two.admin.call(set_feature(0x82, 1, mask)).await.ok();
        assert_eq!(
            two.admin.call(get_feature(0x82, 1)).await.ok().result,
            u64::from(mask)
        );
        register(&queue_one, 1).await.ok();
        register(&queue_two, 2).await.ok();
        let kind = ReservationType::WriteExclusive;
        acquire(&queue_one, AcquireAction::Acquire, kind, (1, 0))
            .await
            .ok();
        acquire(&queue_one, AcquireAction::Preempt, kind, (1, 2))
            .await
            .ok();
        assert_eq!(
            read_notification(&two).await,
            ReservationNotification::default()
        );
        register(&queue_two, 2).await.ok();
        release(&queue_one, ReleaseAction::Clear, 0, 1).await.ok();
        let page = read_notification(&two).await;
        assert_eq!(
            page.event,
            Some((ReservationEvent::ReservationPreempted, 1))
        );

        let admin = &two.admin;
        admin
            .call(set_feature(0x82, 1, 1))
            .await
            .refused(Status::INVALID_FIELD);
        admin
            .call(set_feature(0x83, 1, 2))
            .await
            .refused(Status::INVALID_FIELD);
        for sqe in [
            set_feature(0x82, 9, 0),
            set_feature(0x83, 9, 0),
            get_feature(0x82, 9),
            get_feature(0x83, u32::MAX),
        ] {
            admin.call(sqe).await.refused(Status::INVALID_NAMESPACE);
        }
    });
}

/// The daemon after a restart: the same pool, nothing else.
fn restarted(lab: Lab) -> Lab {
    let target = reopened(&lab).expect("its own settings");
    Lab { target, ..lab }
}

fn reopened(lab: &Lab) -> Result<Arc<Target>, Failure> {
    Target::open(TargetParts {
        pool: Pool::Here(lab.engine.clone()),
        pool_uuid: Uuid::from_u128(1),
        is_new_pool: false,
        listeners_by_default: false,
        listeners_tls: fabric::TlsMode::Off,
        listeners: Vec::new(),
        limits: Limits::default(),
    })
}

#[test]
fn what_persists_is_there_after_a_restart_and_what_does_not_is_gone() {
    story(async |lab| {
        let kind = ReservationType::ExclusiveAccessRegistrantsOnly;
        let cast = Cast::new(&lab).await;
        cast.set(kind).await;
        let lab = restarted(lab);
        let cast = Cast::new(&lab).await;
        assert_eq!(report(&cast.other).await, ReservationReport::default());

        let persist = |on| {
            registering(
                &cast.holder,
                RegisterAction::Register,
                Some(on),
                (0, HOLDER_KEY),
            )
        };
        persist(true).await.ok();
        register(&cast.registrant, REGISTRANT_KEY).await.ok();
        acquire(&cast.holder, AcquireAction::Acquire, kind, (HOLDER_KEY, 0))
            .await
            .ok();
        let before = report(&cast.other).await;
        assert!(before.persist);
        let lab = restarted(lab);
        let cast = Cast::new(&lab).await;
        assert_eq!(report(&cast.other).await, before);
        let reply = cast.other.call_in(read(1, 0, 1), 4096).await;
        reply.refused(Status::RESERVATION_CONFLICT);
        cast.holder
            .call_out(write(1, 0, 1), vec![1; 4096])
            .await
            .ok();

        // Switched off by the feature: from then on it lives as long as the daemon.
        let host = lab.attach(7).await;
        assert_eq!(host.admin.call(get_feature(0x83, 1)).await.ok().result, 1);
        host.admin.call(set_feature(0x83, 1, 0)).await.ok();
        assert_eq!(report(&cast.other).await.kind, Some(kind));
        assert_eq!(lab.engine.settings("reservation/").len(), 0);
        let lab = restarted(lab);
        let cast = Cast::new(&lab).await;
        assert_eq!(report(&cast.other).await, ReservationReport::default());
    });
}

#[test]
fn reservations_of_a_deleted_volume_leave_nothing_behind() {
    story(async |lab| {
        let host = lab.attach(1).await;
        let queue = lab.io_queue(&host, 1).await;
        registering(&queue, RegisterAction::Register, Some(true), (0, 1))
            .await
            .ok();
        assert_eq!(lab.engine.settings("reservation/").len(), 1);
        lab.engine.delete_volume("vol0").await.expect("it is there");
        lab.target
            .forget_reservations()
            .await
            .expect("a pool that takes changes");
        assert_eq!(lab.engine.settings("reservation/").len(), 0);
        let reply = register(&queue, 1).await;
        reply.refused(Status::INVALID_NAMESPACE);
    });
}

#[test]
fn a_stored_reservation_that_cannot_be_understood_stops_the_start() {
    story(async |lab| {
        let uuid = lab.engine.volumes()[0].uuid;
        for (key, value) in [
            (format!("reservation/{uuid}"), "{"),
            (
                format!("reservation/{uuid}"),
                r#"{"version":2,"reservations":{}}"#,
            ),
            ("reservation/vol0".to_owned(), "{}"),
            (
                format!("reservation/{uuid}"),
                r#"{"version":1,"reservations":{"generation":1,"persist":true,"registrants":{},
                   "held":{"kind":1,"holder":"00000000-0000-0000-0000-000000000001"}}}"#,
            ),
        ] {
            let set = vec![(key.clone(), Some(value.as_bytes().to_vec()))];
            lab.engine.change_settings(set).await.expect("a setting");
            let error = reopened(&lab).expect_err(value);
            assert!(error.message.contains(&key), "{}", error.message);
            lab.engine
                .change_settings(vec![(key, None)])
                .await
                .expect("a setting");
        }
        reopened(&lab).expect("nothing is left");
    });
}

#[test]
fn reservation_commands_that_are_wrong_are_refused_for_good() {
    story(async |lab| {
        let host = lab.attach(1).await;
        let queue = lab.io_queue(&host, 1).await;
        let kind = ReservationType::WriteExclusive;
        let acquire = acquiring(1, AcquireAction::Acquire, kind);
        let report = |nsid, length, extended| {
            ReservationCommand::Report {
                nsid,
                length,
                extended,
            }
            .to_sqe()
        };
        let release = |nsid| {
            ReservationCommand::Release {
                nsid,
                action: ReleaseAction::Release,
                kind: 1,
            }
            .to_sqe()
        };
        for (sqe, data, status) in [
            (
                acquiring(2, AcquireAction::Acquire, kind),
                16,
                Status::INVALID_NAMESPACE,
            ),
            (
                acquiring(u32::MAX, AcquireAction::Acquire, kind),
                16,
                Status::INVALID_NAMESPACE,
            ),
            (release(0), 8, Status::INVALID_NAMESPACE),
            (acquire, 15, Status::SGL_LENGTH_INVALID),
            (release(1), 7, Status::SGL_LENGTH_INVALID),
            (acquire.with_cdw(10, 0x108), 16, Status::INVALID_FIELD),
            (acquire.with_cdw(10, 0x700), 16, Status::INVALID_FIELD),
            (acquire.with_cdw(10, 0x103), 16, Status::INVALID_FIELD),
        ] {
            queue.call_out(sqe, vec![0; data]).await.refused(status);
        }
        for (sqe, room, status) in [
            (report(2, 64, true), 64, Status::INVALID_NAMESPACE),
            (report(1, 128, true), 64, Status::SGL_LENGTH_INVALID),
            (report(1, 1 << 34, true), 64, Status::INVALID_FIELD),
            (report(1, 64, false), 64, Status::HOST_ID_INCONSISTENT),
        ] {
            queue.call_in(sqe, room).await.refused(status);
        }
        // The header alone is a whole answer.
        let header = queue.call_in(report(1, 24, true), 24).await.ok();
        assert_eq!(header.data, [0; 24]);
        lab.all_buffers_are_back().await;
    });
}
