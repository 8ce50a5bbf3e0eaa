//! Whose a controller is: before its host has authenticated it counts for nobody, and a host identifier is the host's
//! that proved its name.

use std::sync::Arc;
use std::time::Duration;

use nvme::admin::NamespaceAttachment;
use nvme::auth::{Group, HostExchange, HostKeys};
use nvme::fabrics::CNTLID_DYNAMIC;
use nvme::identify::{decode_controller_list, decode_namespace_list, encode_controller_list};
use nvme::reservation::{AcquireAction, RegisterAction, ReservationType};
use nvme::{Status, properties};
use subsystem::DEFAULT_SUBSYSTEM_NQN;
use subsystem::limits::Limits;

use crate::admin::identify;
use crate::auth::{
    admitted, authenticate, connected, failed_with, hear, keep, kept, keys, tell, transfer,
};
use crate::harness::{
    Attached, CC_ENABLE, FakeQueue, Lab, Reply, TestHost, connect, connect_data, open_target, read,
    story, story_with, write,
};
use crate::reservations::{acquire, registering};

const ADMIN: nvme::fabrics::ConnectCommand = nvme::fabrics::ConnectCommand {
    record_format: 0,
    qid: 0,
    sqsize: 31,
    attributes: 0,
    kato_ms: 0,
};
const KEY: u64 = 0xa1;

async fn namespaces(host: &Attached) -> Vec<u32> {
    let page = identify(host, 0x02, 0).await.ok().data;
    decode_namespace_list(&page).expect("a list")
}

async fn controllers(host: &Attached) -> Vec<u16> {
    let page = identify(host, 0x13, 0).await.ok().data;
    decode_controller_list(&page).expect("a list")
}

/// What a host is told that connects an admin queue.
async fn answer_to(lab: &Lab, host: &TestHost) -> Reply {
    let data = connect_data(host, CNTLID_DYNAMIC);
    connect(&lab.queue(0, 32), ADMIN, data).await
}

/// Changes how the default subsystem shows the volume to whom.
async fn configure(lab: &Lab, shared: bool, namespace_management: bool) {
    let changed = lab.target.change(|catalog| {
        let nqn = DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        catalog.subsystem_mut(&nqn)?.namespace_management = namespace_management;
        catalog.namespace_mut(&nqn, 1)?.shared = shared;
        Ok(())
    });
    changed.await.expect("a catalog");
}

async fn controllers_are(lab: &Lab, count: usize) {
    while lab.target.nvm.controller_count() != count {
        reactor::yield_now().await;
    }
}

#[test]
fn a_host_that_has_yet_to_authenticate_takes_nothing_from_anybody() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        configure(&lab, false, false).await;
        // Who comes first with a name that travels in clear is not its host.
        let stranger = connected(&lab, &host).await;
        assert!(lab.target.attached_hosts().is_empty());
        assert_eq!(stranger.admin.host(), None, "its memory is not the host's");
        let other = lab.attach(2).await;
        assert_eq!(namespaces(&other).await, [1]);
        other.admin.close_from_host();
        controllers_are(&lab, 1).await;
        let (attached, io) = admitted(&lab, &host, &keys(1)).await;
        assert_eq!(namespaces(&attached).await, [1]);
        assert_eq!(io.host(), Some(host.nqn.to_string()));
        // Nor does it take the namespace of the host as that would itself, if its connection was lost.
        let again = connected(&lab, &host).await;
        assert_eq!(namespaces(&attached).await, [1]);
        assert_eq!(controllers(&attached).await, [attached.cntlid]);
        assert_eq!(lab.target.attached_hosts().len(), 1);
        lab.still_serves(&io).await;
        // With the proof it is the host.
        let proof = authenticate(&again.admin, &host, &keys(1)).await;
        proof.expect("it knows the secret");
        again.set_property(properties::CC, CC_ENABLE).await.ok();
        assert_eq!(namespaces(&again).await, [1]);
        assert!(namespaces(&attached).await.is_empty());
        assert_eq!(lab.target.attached_hosts().len(), 2);
        assert_eq!(again.admin.host(), Some(host.nqn.to_string()));
    });
}

#[test]
fn a_host_that_has_yet_to_authenticate_is_put_on_no_list_of_a_namespace() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        configure(&lab, true, true).await;
        let stranger = connected(&lab, &host).await;
        let (maker, third) = (lab.attach(2).await, lab.attach(3).await);
        let attachment = async |select, cntlid| {
            let sqe = NamespaceAttachment { nsid: 1, select }.to_sqe();
            let list = encode_controller_list(&[cntlid]).to_vec();
            maker.admin.call_out(sqe, list).await
        };
        // All others that see the namespace go on seeing it: the stranger is none of them.
        attachment(NamespaceAttachment::DETACH, third.cntlid)
            .await
            .ok();
        let nqn = DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        let shown_to = || {
            let catalog = lab.target.catalog();
            let namespace = catalog.subsystems[&nqn].namespaces[&1].clone();
            namespace.hosts.clone().expect("a list")
        };
        assert!(shown_to().iter().eq([&maker.host.nqn]));
        attachment(NamespaceAttachment::ATTACH, stranger.cntlid)
            .await
            .refused(Status::CONTROLLER_LIST_INVALID);
    });
}

/// Registers with the volume, and reserves it.
async fn reserve(queue: &FakeQueue, persist: bool) {
    registering(queue, RegisterAction::Register, Some(persist), (0, KEY))
        .await
        .ok();
    let kind = ReservationType::ExclusiveAccess;
    acquire(queue, AcquireAction::Acquire, kind, (KEY, 0))
        .await
        .ok();
}

#[test]
fn a_host_identifier_belongs_to_the_host_that_proved_its_name_with_it() {
    story(async |lab| {
        let owner = TestHost::new(1);
        let thief = TestHost {
            id: owner.id,
            ..TestHost::new(2)
        };
        let nobody = TestHost {
            id: owner.id,
            ..TestHost::new(3)
        };
        keep(&lab, &owner.nqn, kept(1)).await;
        keep(&lab, &thief.nqn, kept(2)).await;
        // Before anybody has proved anything, both may try.
        let early = connected(&lab, &thief).await;
        let (attached, io) = admitted(&lab, &owner, &keys(1)).await;
        for other in [&thief, &nobody] {
            // Not for good: it can be the owner itself, who comes after the thief.
            let reply = answer_to(&lab, other).await;
            assert_eq!(reply.status, Status::CONNECT_INVALID_HOST);
        }
        reserve(&io, true).await;
        for other in [&thief, &nobody] {
            let reply = answer_to(&lab, other).await;
            reply.refused(Status::CONNECT_INVALID_HOST);
        }
        // And the one who proves its name later is put out.
        let keys_2 = Arc::new(keys(2));
        let name = thief.nqn.as_str();
        let mut exchange = HostExchange::new(keys_2, name, DEFAULT_SUBSYSTEM_NQN, 7);
        tell(&early.admin, &exchange.negotiate()).await;
        let reply = exchange.reply(&hear(&early.admin).await, &[[5; 64], [6; 64]]);
        tell(&early.admin, &reply.expect("a challenge")).await;
        early.admin.closed().await;
        lab.attached_hosts_are(1).await;
        // The owner itself comes on as many paths as it likes.
        let (second, _) = admitted(&lab, &owner, &keys(1)).await;
        second.admin.close_from_host();
        // While it is registered the identifier is its own, attached or not, also after a restart.
        attached.admin.close_from_host();
        lab.nobody_is_attached().await;
        let reply = answer_to(&lab, &thief).await;
        reply.refused(Status::CONNECT_INVALID_HOST);
        let target = open_target(&lab.engine, Limits::default());
        let lab = lab.with_target(target);
        let reply = answer_to(&lab, &thief).await;
        reply.refused(Status::CONNECT_INVALID_HOST);
        let (attached, io) = admitted(&lab, &owner, &keys(1)).await;
        io.call_out(write(1, 0, 1), vec![1; 4096]).await.ok();
        // When it has left for good, another one may have it.
        registering(&io, RegisterAction::Unregister, None, (KEY, 0))
            .await
            .ok();
        attached.admin.close_from_host();
        lab.nobody_is_attached().await;
        let (_attached, io) = admitted(&lab, &thief, &keys(2)).await;
        io.call_in(read(1, 0, 1), 4096).await.ok();
    });
}

#[test]
fn hosts_that_proved_nothing_share_an_identifier_until_one_proves_its_name_with_it() {
    story(async |lab| {
        let owner = TestHost::new(1);
        keep(&lab, &owner.nqn, kept(1)).await;
        let mut nameless = Vec::new();
        for number in [2, 3] {
            let host = TestHost {
                id: owner.id,
                ..TestHost::new(number)
            };
            nameless.push(lab.connect_with(&host, 0).await);
        }
        lab.attached_hosts_are(2).await;
        let (_attached, io) = admitted(&lab, &owner, &keys(1)).await;
        for host in nameless {
            host.admin.closed().await;
        }
        lab.attached_hosts_are(1).await;
        lab.still_serves(&io).await;
        // All zeros are no identifier: no reservation takes it, and nobody owns it.
        for number in [1, 2] {
            let host = TestHost {
                id: [0; 16],
                ..TestHost::new(number)
            };
            keep(&lab, &host.nqn, kept(number)).await;
            let host = connected(&lab, &host).await;
            let proof = authenticate(&host.admin, &host.host, &keys(number)).await;
            proof.expect("it knows the secret");
        }
    });
}

#[test]
fn a_queue_begins_a_bounded_number_of_exchanges() {
    let limits = Limits {
        auth_exchanges_max: 3,
        auth_failures_window: Duration::from_secs(3600),
        ..Limits::default()
    };
    story_with(limits, async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, kept(1)).await;
        let costly = Arc::new(HostKeys {
            groups: vec![Group::Ffdhe8192],
            ..keys(1)
        });
        let name = host.nqn.as_str();
        let negotiate = HostExchange::new(costly, name, DEFAULT_SUBSYSTEM_NQN, 7).negotiate();
        let attached = connected(&lab, &host).await;
        for _ in 0..3 {
            tell(&attached.admin, &negotiate).await;
            hear(&attached.admin).await;
        }
        assert_eq!(lab.target.auth_figures().failed, 0);
        tell(&attached.admin, &negotiate).await;
        failed_with(&attached.admin).await;
        assert_eq!(lab.target.auth_figures().failed, 1);
        // Also those that succeed count: one after the other they would keep a processor busy as well.
        let (attached, io) = admitted(&lab, &host, &keys(1)).await;
        for _ in 1..3 {
            let again = authenticate(&io, &host, &keys(1)).await;
            again.expect("it knows the secret");
        }
        lab.still_serves(&io).await;
        let bytes = negotiate.encode();
        let sqe = nvme::fabrics::FabricsCommand::auth_send(transfer(bytes.len()));
        io.call_out(sqe, bytes).await.ok();
        failed_with(&io).await;
        attached.property(properties::CAP, true).await.ok();
    });
}
