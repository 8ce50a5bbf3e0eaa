//! Authentication: who proves who he is gets in, nobody else does, and nothing is done before.

use std::sync::Arc;
use std::time::Duration;

use nvme::auth::{
    Explanation, Failure, Group, Hash, HostAuthError, HostExchange, HostKeys, Message, Secret,
};
use nvme::fabrics::{AuthTransfer, CNTLID_DYNAMIC, ConnectCommand, FabricsCommand};
use nvme::io::{IoCommand, LbaRange};
use nvme::{Nqn, Sqe, Status, properties};
use subsystem::DEFAULT_SUBSYSTEM_NQN;
use subsystem::catalog::HostAuth;
use subsystem::catalog::HostConfig;
use subsystem::limits::Limits;

use crate::harness::{
    Attached, CC_ENABLE, FakeQueue, Lab, TestHost, connect, connect_data, read, story, story_with,
    write,
};

const ADMIN: ConnectCommand = ConnectCommand {
    record_format: 0,
    qid: 0,
    sqsize: 31,
    attributes: 0,
    kato_ms: 0,
};
/// AUTHREQ of the result of Connect.
const AUTH_REQUIRED: u64 = 1 << 17;
const ROOM: usize = 4096;

pub(crate) fn secret(number: u8) -> Secret {
    Secret::from_random(Some(Hash::Sha256), &[number; 64])
}

/// What the target keeps of a host with that secret.
pub(crate) fn kept(number: u8) -> HostAuth {
    HostAuth {
        dhchap_secret: Some(secret(number)),
        ..HostAuth::default()
    }
}

/// Gives the target a host's keys, as an administrator does.
pub(crate) async fn keep(lab: &Lab, nqn: &Nqn, auth: HostAuth) {
    let host = HostConfig {
        nqn: nqn.clone(),
        auth,
    };
    let changed = lab.target.change(|catalog| {
        catalog.hosts.insert(host.nqn.clone(), Arc::new(host));
        Ok(())
    });
    changed.await.expect("a catalog with another host");
}

pub(crate) fn keys(number: u8) -> HostKeys {
    HostKeys {
        groups: vec![Group::Null],
        ..HostKeys::new(secret(number), None)
    }
}

pub(crate) fn transfer(length: usize) -> AuthTransfer {
    AuthTransfer {
        protocol: AuthTransfer::PROTOCOL,
        length: length as u32,
    }
}

pub(crate) async fn tell(queue: &FakeQueue, message: &Message) {
    tell_bytes(queue, message.encode()).await;
}

async fn tell_bytes(queue: &FakeQueue, bytes: Vec<u8>) {
    let sqe = FabricsCommand::auth_send(transfer(bytes.len()));
    queue.call_out(sqe, bytes).await.ok();
}

pub(crate) async fn hear(queue: &FakeQueue) -> Vec<u8> {
    let sqe = FabricsCommand::auth_receive(transfer(ROOM));
    queue.call_in(sqe, ROOM).await.ok().data
}

/// A whole exchange, as a host does it.
pub(crate) async fn authenticate(
    queue: &FakeQueue,
    host: &TestHost,
    keys: &HostKeys,
) -> Result<(), HostAuthError> {
    let mut exchange = HostExchange::new(
        Arc::new(keys.clone()),
        host.nqn.as_str(),
        DEFAULT_SUBSYSTEM_NQN,
        77,
    );
    tell(queue, &exchange.negotiate()).await;
    let challenge = hear(queue).await;
    let reply = exchange.reply(&challenge, &[[5; 64], [6; 64]])?;
    tell(queue, &reply).await;
    let success = hear(queue).await;
    match exchange.finish(&success) {
        Ok(Some(last)) => tell(queue, &last).await,
        Ok(None) => {}
        Err(error) => {
            if let Some(last) = error.to_message(77) {
                tell(queue, &last).await;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// An admin queue that is connected and has not authenticated.
pub(crate) async fn connected(lab: &Lab, host: &TestHost) -> Attached {
    let admin = lab.queue(0, 32);
    let data = connect_data(host, CNTLID_DYNAMIC);
    let reply = connect(&admin, ADMIN, data).await.ok();
    assert_eq!(
        reply.result & AUTH_REQUIRED,
        AUTH_REQUIRED,
        "the host is told"
    );
    Attached {
        host: host.clone(),
        admin,
        cntlid: reply.result as u16,
    }
}

/// A host that is in, with one I/O queue.
pub(crate) async fn admitted(lab: &Lab, host: &TestHost, keys: &HostKeys) -> (Attached, FakeQueue) {
    let attached = connected(lab, host).await;
    authenticate(&attached.admin, host, keys)
        .await
        .expect("it knows the secret");
    attached.set_property(properties::CC, CC_ENABLE).await.ok();
    let queue = lab.queue(1, 128);
    let reply = lab.connect_io(&queue, &attached, 1).await.ok();
    assert_eq!(
        reply.result & AUTH_REQUIRED,
        AUTH_REQUIRED,
        "on every queue"
    );
    authenticate(&queue, host, keys)
        .await
        .expect("it knows the secret");
    (attached, queue)
}

/// What a failure says, after which the target ends the queue.
pub(crate) async fn failed_with(queue: &FakeQueue) -> Explanation {
    let Ok(Message::Failure1(Failure { explanation, .. })) = Message::parse(&hear(queue).await)
    else {
        panic!("no failure");
    };
    queue.closed().await;
    explanation
}

#[test]
fn a_host_that_knows_its_secret_gets_in_with_every_hash_and_group() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        for hash in Hash::ALL {
            for group in Group::ALL {
                let keys = HostKeys {
                    hashes: vec![hash],
                    groups: vec![group],
                    ..HostKeys::new(secret(1), None)
                };
                let attached = connected(&lab, &host).await;
                authenticate(&attached.admin, &host, &keys)
                    .await
                    .expect("it knows the secret");
                attached.property(properties::CAP, true).await.ok();
                attached.admin.close_from_host();
                lab.nobody_is_attached().await;
            }
        }
        assert_eq!(lab.target.auth_figures().succeeded, 18);
    });
}

#[test]
fn both_ways_host_and_controller_know_each_other_and_a_foreign_controller_is_left() {
    story(async |lab| {
        let host = TestHost::new(1);
        let both = HostAuth {
            dhchap_ctrl_secret: Some(secret(9)),
            ..kept(1)
        };
        keep(&lab, &host.nqn, both).await;
        let asking = |number| HostKeys {
            groups: vec![Group::Ffdhe2048],
            ..HostKeys::new(secret(1), Some(secret(number)))
        };
        let (_attached, io) = admitted(&lab, &host, &asking(9)).await;
        lab.still_serves(&io).await;
        let attached = connected(&lab, &host).await;
        let outcome = authenticate(&attached.admin, &host, &asking(8)).await;
        assert_eq!(outcome, Err(HostAuthError::NotTheController));
        attached.admin.closed().await;
        // A controller without a secret of its own cannot prove itself.
        keep(&lab, &host.nqn, kept(1)).await;
        let attached = connected(&lab, &host).await;
        let outcome = authenticate(&attached.admin, &host, &asking(9)).await;
        assert_eq!(outcome, Err(HostAuthError::Refused(Explanation::Failed)));
    });
}

#[test]
fn nothing_is_done_for_a_host_before_it_has_authenticated() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let attached = connected(&lab, &host).await;
        let refused = [
            FabricsCommand::property_get(properties::CAP, true),
            FabricsCommand::property_set(properties::CC, false, CC_ENABLE),
            Sqe::new(nvme::admin::OPCODE_KEEP_ALIVE),
            Sqe::new(0xff),
        ];
        for sqe in refused {
            attached
                .admin
                .call(sqe)
                .await
                .refused(Status::AUTHENTICATION_REQUIRED);
        }
        authenticate(&attached.admin, &host, &keys(1))
            .await
            .expect("it knows the secret");
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        let queue = lab.queue(1, 128);
        lab.connect_io(&queue, &attached, 1).await.ok();
        queue
            .call_in(read(1, 0, 1), 4096)
            .await
            .refused(Status::AUTHENTICATION_REQUIRED);
        queue
            .call_out(write(1, 0, 1), vec![1; 4096])
            .await
            .refused(Status::AUTHENTICATION_REQUIRED);
        // Nor as the two parts of a fused operation.
        let fused = |mut sqe: Sqe, part: u8| {
            sqe.0[1] |= part;
            sqe
        };
        let range = LbaRange { slba: 0, blocks: 1 };
        let compare = IoCommand::Compare { nsid: 1, range }.to_sqe();
        for (sqe, part) in [(compare, 1), (write(1, 0, 1), 2)] {
            queue
                .call_out(fused(sqe, part), vec![0; 4096])
                .await
                .refused(Status::AUTHENTICATION_REQUIRED);
        }
        authenticate(&queue, &host, &keys(1))
            .await
            .expect("it knows the secret");
        lab.still_serves(&queue).await;
        // Others than those with a secret are not asked, and discovery asks nobody.
        let other = lab.attach(2).await;
        lab.still_serves(&lab.io_queue(&other, 1).await).await;
        lab.discover(1).await;
    });
}

#[test]
fn a_wrong_secret_ends_the_queue_and_is_counted() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        for group in [Group::Null, Group::Ffdhe2048] {
            let wrong = HostKeys {
                groups: vec![group],
                ..keys(2)
            };
            let attached = connected(&lab, &host).await;
            let outcome = authenticate(&attached.admin, &host, &wrong).await;
            assert_eq!(outcome, Err(HostAuthError::Refused(Explanation::Failed)));
            attached.admin.closed().await;
        }
        lab.nobody_is_attached().await;
        assert_eq!(lab.target.auth_figures().failed, 2);
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_host_that_failed_cannot_try_again_on_the_same_queue() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let attached = connected(&lab, &host).await;
        tell(&attached.admin, &Message::Success2(5)).await;
        let again = HostExchange::new(
            Arc::new(keys(1)),
            host.nqn.as_str(),
            DEFAULT_SUBSYSTEM_NQN,
            6,
        );
        let bytes = again.negotiate().encode();
        let sqe = FabricsCommand::auth_send(transfer(bytes.len()));
        let reply = attached.admin.call_out(sqe, bytes).await;
        reply.refused(Status::COMMAND_SEQUENCE);
        assert_eq!(
            failed_with(&attached.admin).await,
            Explanation::IncorrectMessage
        );
    });
}

#[test]
fn a_host_that_fails_again_and_again_has_to_wait_and_others_do_not() {
    let limits = Limits {
        auth_failures_max: 2,
        ..Limits::default()
    };
    story_with(limits, async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        keep(&lab, &TestHost::new(2).nqn, kept(2)).await;
        for _ in 0..2 {
            let attached = connected(&lab, &host).await;
            authenticate(&attached.admin, &host, &keys(3))
                .await
                .expect_err("a wrong secret");
            attached.admin.closed().await;
        }
        let queue = lab.queue(0, 32);
        let data = connect_data(&host, CNTLID_DYNAMIC);
        let reply = connect(&queue, ADMIN, data).await;
        // Not for good: Linux would give the controller up.
        assert_eq!(reply.status, Status::CONNECT_CONTROLLER_BUSY);
        assert_eq!(lab.target.auth_figures().held_off, 1);
        admitted(&lab, &TestHost::new(2), &keys(2)).await;
    });
}

#[test]
fn a_secret_is_changed_and_asked_for_again_without_a_disconnect() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let (attached, io) = admitted(&lab, &host, &keys(1)).await;
        keep(&lab, &host.nqn, kept(2)).await;
        // What is authenticated goes on, also in the middle of the next exchange.
        lab.still_serves(&io).await;
        let keys_2 = keys(2);
        let exchange = HostExchange::new(
            Arc::new(keys_2.clone()),
            host.nqn.as_str(),
            DEFAULT_SUBSYSTEM_NQN,
            1,
        );
        tell(&io, &exchange.negotiate()).await;
        lab.still_serves(&io).await;
        for queue in [&attached.admin, &io] {
            authenticate(queue, &host, &keys_2)
                .await
                .expect("it knows the new secret");
        }
        lab.still_serves(&io).await;
        // The old one is of no use any more, and to fail ends what was good.
        let outcome = authenticate(&io, &host, &keys(1)).await;
        assert_eq!(outcome, Err(HostAuthError::Refused(Explanation::Failed)));
        io.closed().await;
    });
}

#[test]
fn a_host_that_computes_for_longer_than_its_keep_alive_timeout_is_waited_for() {
    let limits = Limits {
        auth_timeout: Duration::from_millis(3500),
        ..Limits::default()
    };
    story_with(limits, async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let admin = lab.queue(0, 32);
        let kato_ms = 1;
        let command = ConnectCommand { kato_ms, ..ADMIN };
        connect(&admin, command, connect_data(&host, CNTLID_DYNAMIC))
            .await
            .ok();
        let connected = std::time::Instant::now();
        admin.closed().await;
        // The keep-alive timeout, rounded up, is a second; what ended the queue is the other one.
        assert!(connected.elapsed() >= Duration::from_secs(3));
    });
}

#[test]
fn a_queue_that_has_yet_to_authenticate_excuses_no_late_commands_of_others() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let admin = lab.queue(0, 32);
        let command = ConnectCommand {
            kato_ms: 1000,
            ..ADMIN
        };
        let reply = connect(&admin, command, connect_data(&host, CNTLID_DYNAMIC)).await;
        let attached = Attached {
            host: host.clone(),
            admin,
            cntlid: reply.ok().result as u16,
        };
        let keys = keys(1);
        let known = authenticate(&attached.admin, &host, &keys).await;
        known.expect("it knows the secret");
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        let [used, awaited] = [1, 2].map(|qid| lab.queue(qid, 128));
        for (qid, queue) in [(1, &used), (2, &awaited)] {
            lab.connect_io(queue, &attached, qid).await.ok();
        }
        let known = authenticate(&used, &host, &keys).await;
        known.expect("it knows the secret");
        lab.still_serves(&used).await;
        // This machine stands still, and the host gives the association up.
        let end = reactor::now() + Duration::from_millis(1250);
        while reactor::now() < end {
            std::thread::yield_now();
        }
        let exchange =
            HostExchange::new(Arc::new(keys), host.nqn.as_str(), DEFAULT_SUBSYSTEM_NQN, 1);
        let bytes = exchange.negotiate().encode();
        let first = FabricsCommand::auth_send(transfer(bytes.len()));
        drop(awaited.try_call_out(first, bytes).await);
        let late = used.try_call_out(write(1, 0, 1), vec![1; 4096]);
        assert!(late.await.is_none(), "its association is over");
        attached.admin.closed().await;
    });
}

#[test]
fn a_host_that_does_not_authenticate_in_time_is_gone() {
    let limits = Limits {
        auth_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    story_with(limits, async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let silent = connected(&lab, &host).await;
        silent.admin.closed().await;
        lab.nobody_is_attached().await;
    });
}

#[test]
fn a_host_that_says_no_more_after_its_connect_has_failed_to_authenticate() {
    let limits = Limits {
        auth_timeout: Duration::from_millis(50),
        auth_failures_max: 2,
        ..Limits::default()
    };
    story_with(limits, async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        for _ in 0..2 {
            connected(&lab, &host).await.admin.closed().await;
        }
        assert_eq!(lab.target.auth_figures().failed, 2);
        let queue = lab.queue(0, 32);
        let reply = connect(&queue, ADMIN, connect_data(&host, CNTLID_DYNAMIC)).await;
        assert_eq!(reply.status, Status::CONNECT_CONTROLLER_BUSY);
        assert_eq!(lab.target.auth_figures().held_off, 1);
    });
}

#[test]
fn hosts_that_connect_by_a_name_and_do_not_prove_it_leave_room_for_those_who_do() {
    let limits = Limits {
        controllers: 16,
        ..Limits::default()
    };
    story_with(limits, async |mut lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let honest = lab.peer;
        lab.peer = [192, 0, 2, 66].into();
        let mut silent = Vec::new();
        let mut busy = 0;
        for _ in 0..40 {
            let queue = lab.queue(0, 32);
            let data = connect_data(&host, CNTLID_DYNAMIC);
            match connect(&queue, ADMIN, data).await.status {
                Status::SUCCESS => silent.push(queue),
                status => {
                    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
                    busy += 1;
                }
            }
        }
        assert_eq!((silent.len(), busy), (4, 36), "a quarter of all");
        lab.peer = honest;
        for _ in 0..8 {
            admitted(&lab, &host, &keys(1)).await;
        }
        assert!(
            silent.iter().any(FakeQueue::is_closed),
            "one of them gave way"
        );
        lab.attach(9).await;
    });
}

#[test]
fn a_queue_is_its_hosts_when_the_host_has_proved_who_it_is() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let attached = connected(&lab, &host).await;
        assert_eq!(attached.admin.proved(), None);
        authenticate(&attached.admin, &host, &keys(1))
            .await
            .expect("it knows the secret");
        assert_eq!(attached.admin.proved(), Some(true));
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        let queue = lab.queue(1, 128);
        lab.connect_io(&queue, &attached, 1).await.ok();
        assert_eq!(queue.proved(), None);
        authenticate(&queue, &host, &keys(1))
            .await
            .expect("it knows the secret");
        assert_eq!(queue.proved(), Some(false));
        // Whoever need not prove anything has done so by its Connect; discovery is for anybody.
        assert_eq!(lab.attach(2).await.admin.proved(), Some(true));
        assert_eq!(lab.discover(3).await.admin.proved(), Some(false));
    });
}

/// Bad input 25: the queue of the host that sends it ends, and that is all.
#[test]
fn malformed_and_misplaced_messages_fail_the_authentication_and_nobody_elses() {
    story(async |lab| {
        let other = lab.attach(2).await;
        let others = lab.io_queue(&other, 1).await;
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let negotiate = |keys: &HostKeys| {
            HostExchange::new(
                Arc::new(keys.clone()),
                host.nqn.as_str(),
                DEFAULT_SUBSYSTEM_NQN,
                5,
            )
            .negotiate()
        };
        let mut long_lists = negotiate(&keys(1)).encode();
        long_lists[10..12].fill(255);
        let mut concatenated = negotiate(&keys(1)).encode();
        concatenated[6] = 1;
        let mut other_protocol = negotiate(&keys(1)).encode();
        other_protocol[8] = 9;
        let unknown_hash = HostKeys {
            hashes: vec![],
            ..keys(1)
        };
        let strict = HostKeys {
            groups: vec![],
            ..keys(1)
        };
        let first_messages = [
            (vec![0; 8], Explanation::IncorrectPayload),
            (vec![0, 0, 0], Explanation::IncorrectPayload),
            (vec![9; 64], Explanation::IncorrectMessage),
            (long_lists, Explanation::IncorrectPayload),
            (concatenated, Explanation::SecureChannelMismatch),
            (other_protocol, Explanation::ProtocolUnusable),
            (negotiate(&unknown_hash).encode(), Explanation::HashUnusable),
            (negotiate(&strict).encode(), Explanation::GroupUnusable),
            (Message::Success2(5).encode(), Explanation::IncorrectMessage),
        ];
        for (bytes, explanation) in first_messages {
            let attached = connected(&lab, &host).await;
            tell_bytes(&attached.admin, bytes).await;
            assert_eq!(failed_with(&attached.admin).await, explanation);
        }
        lab.attached_hosts_are(1).await;
        // Replies that lie, or belong to another transaction, or hold values of another group.
        let keys = HostKeys {
            groups: vec![Group::Ffdhe2048],
            ..keys(1)
        };
        for spoil in 0..5 {
            let attached = connected(
                &lab,
                &TestHost {
                    id: [spoil; 16],
                    ..host.clone()
                },
            )
            .await;
            let mut exchange = HostExchange::new(
                Arc::new(keys.clone()),
                host.nqn.as_str(),
                DEFAULT_SUBSYSTEM_NQN,
                5,
            );
            tell(&attached.admin, &exchange.negotiate()).await;
            let reply = exchange.reply(&hear(&attached.admin).await, &[[5; 64], [6; 64]]);
            let mut reply = reply.expect("a reply").encode();
            let (public_at, end) = (reply.len() - 256, reply.len());
            match spoil {
                0 => reply[6] = 255,
                1 => reply[10..12].fill(0xff),
                2 => reply[4] ^= 1,
                3 => reply[public_at..end].fill(0),
                _ => reply[public_at..end].fill(0xff),
            }
            tell_bytes(&attached.admin, reply).await;
            assert_eq!(
                failed_with(&attached.admin).await,
                Explanation::IncorrectPayload
            );
        }
        lab.still_serves(&others).await;
    });
}

#[test]
fn wrong_fields_of_the_commands_are_refused_and_change_nothing() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let attached = connected(&lab, &host).await;
        let admin = &attached.admin;
        let right = AuthTransfer::PROTOCOL;
        for (protocol, length) in [
            (right, 0),
            (right, u32::MAX),
            (0xea_0101, 72),
            (0xe9_0001, 72),
        ] {
            let transfer = AuthTransfer { protocol, length };
            let sent = admin
                .call_out(FabricsCommand::auth_send(transfer), vec![0; 72])
                .await;
            sent.refused(Status::INVALID_FIELD);
            let heard = admin
                .call_in(FabricsCommand::auth_receive(transfer), 72)
                .await;
            heard.refused(Status::INVALID_FIELD);
        }
        let sqe = FabricsCommand::auth_send(transfer(72));
        admin
            .call_out(sqe, vec![0; 71])
            .await
            .refused(Status::SGL_LENGTH_INVALID);
        // Nothing to receive yet; and a message that does not fit is not lost.
        let sqe = FabricsCommand::auth_receive(transfer(ROOM));
        admin
            .call_in(sqe, ROOM)
            .await
            .refused(Status::COMMAND_SEQUENCE);
        let keys = keys(1);
        let mut exchange = HostExchange::new(
            Arc::new(keys.clone()),
            host.nqn.as_str(),
            DEFAULT_SUBSYSTEM_NQN,
            5,
        );
        tell(admin, &exchange.negotiate()).await;
        let sqe = FabricsCommand::auth_receive(transfer(1));
        admin.call_in(sqe, 1).await.refused(Status::INVALID_FIELD);
        let reply = exchange
            .reply(&hear(admin).await, &[[5; 64], [6; 64]])
            .expect("a challenge");
        tell(admin, &reply).await;
        exchange
            .finish(&hear(admin).await)
            .expect("all as if nothing had been");
        attached.property(properties::CAP, true).await.ok();
    });
}
