//! A host that is attached to the node that serves a pool, and to its standby.

use std::sync::Arc;

use nvme::admin::{GetLogPage, Identify, OPCODE_ASYNC_EVENT_REQUEST, SetFeatures};
use nvme::ana::{AnaLog, AnaState};
use nvme::features::{AsyncEvent, AsyncEventConfig};
use nvme::io::IoCommand;
use nvme::reservation::{AcquireAction, RegisterAction, ReservationType};
use nvme::{Sqe, Status};
use subsystem::describe::Description;
use subsystem::limits::{ControllerIds, Limits};
use subsystem::target::{Pool, Target, TargetParts};
use uuid::Uuid;

use crate::harness::{Attached, read, story, write};
use crate::reservations::{acquire, registering};

/// All namespaces.
const EVERY: u32 = 0xffff_ffff;

pub(crate) fn limits(node: u16) -> Limits {
    Limits {
        controller_ids: ControllerIds::of_node(node),
        ..Limits::default()
    }
}

/// What the owner says, as it comes over.
fn said(owner: &Target) -> Description {
    let bytes = owner.description().expect("it serves it").encode();
    Description::decode(&bytes.expect("bytes")).expect("understood")
}

pub(crate) fn standby_of(owner: &Target) -> Arc<Target> {
    let description = said(owner);
    let parts = TargetParts {
        pool_uuid: description.pool,
        pool: Pool::Elsewhere(Box::new(description)),
        is_new_pool: false,
        listeners: vec!["tcp://0.0.0.0:4420".parse().expect("an address")],
        listeners_by_default: false,
        listeners_tls: fabric::TlsMode::Off,
        limits: limits(1),
    };
    Target::open(parts).expect("a standby")
}

fn identify(cns: u8, nsid: u32) -> Sqe {
    let identify = Identify {
        cns,
        cntid: 0,
        nsid,
        csi: 0,
        specific_id: 0,
    };
    identify.to_sqe()
}

async fn page(host: &Attached, cns: u8, nsid: u32) -> Vec<u8> {
    let reply = host.admin.call_in(identify(cns, nsid), 4096).await;
    reply.ok().data
}

async fn ana_log(host: &Attached) -> AnaLog {
    let log = GetLogPage {
        lid: 0x0c,
        lsp: 0,
        retain_event: false,
        length: 4096,
        offset: 0,
        offset_is_index: false,
        nsid: 0,
        csi: 0,
    };
    let reply = host.admin.call_in(log.to_sqe(), 4096).await;
    AnaLog::decode(&reply.ok().data).expect("a page")
}

async fn wants_events(host: &Attached) {
    let wanted = AsyncEventConfig::ANA_CHANGE.0 | AsyncEventConfig::NAMESPACE_ATTRIBUTE.0;
    let set = SetFeatures {
        fid: 0x0b,
        save: false,
        dwords: [wanted, 0, 0, 0, 0],
        nsid: 0,
    };
    host.admin.call(set.to_sqe()).await.ok();
}

#[test]
fn a_host_sees_the_same_on_a_standby_and_its_commands_wait_there_until_it_has_the_pool() {
    story(async |lab| {
        let owner = lab.target.clone();
        owner.keep().await.expect("as a daemon does at its start");
        let on_owner = lab.attach(1).await;
        let owner_io = lab.io_queue(&on_owner, 1).await;
        let data = vec![7; 4096];
        owner_io.call_out(write(1, 0, 1), data.clone()).await.ok();

        let standby = standby_of(&owner);
        let lab = lab.with_target(standby.clone());
        let host = lab.attach(1).await;
        let io = lab.io_queue(&host, 1).await;
        let own = limits(1).controller_ids;
        assert!((own.first..=own.last).contains(&host.cntlid));
        // Serial number, model and firmware: Linux takes controllers that differ there for another subsystem's.
        let (there, here) = (page(&on_owner, 1, 0).await, page(&host, 1, 0).await);
        assert_eq!(there[4..72], here[4..72]);
        for (cns, what) in [(2, "identifiers"), (3, "descriptors")] {
            let nsid = if cns == 2 { 0 } else { 1 };
            let (there, here) = (
                page(&on_owner, cns, nsid).await,
                page(&host, cns, nsid).await,
            );
            assert!(there == here, "{what}");
        }
        let (there, here) = (page(&on_owner, 0, 1).await, page(&host, 0, 1).await);
        assert_eq!(there[..16], here[..16], "size and capacity");
        assert_eq!(here[16..24], [0; 8], "how much is used is not known");
        assert!(there[24..] == here[24..]);

        let log = ana_log(&host).await;
        let groups: Vec<_> = log
            .groups
            .iter()
            .map(|group| (group.id, group.state))
            .collect();
        assert_eq!(groups, [(1, AnaState::Inaccessible)]);
        let replies = [
            io.call_in(read(1, 0, 1), 4096).await,
            io.call_out(write(1, 0, 1), vec![1; 4096]).await,
            io.call(IoCommand::Flush { nsid: 1 }.to_sqe()).await,
            io.call(IoCommand::Flush { nsid: EVERY }.to_sqe()).await,
        ];
        for reply in replies {
            assert_eq!(reply.code(), Status::ASYMMETRIC_INACCESSIBLE);
            assert!(!reply.status.is_dnr(), "the host may try the other path");
        }
        io.call_in(read(9, 0, 1), 4096)
            .await
            .refused(Status::INVALID_NAMESPACE);

        wants_events(&host).await;
        let told = host.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).1;
        standby.take_over(lab.engine.clone()).await.expect("taken");
        let told = told.await.expect("an event").ok();
        assert_eq!(told.result, u64::from(AsyncEvent::ANA_CHANGED.encode()));
        let after = ana_log(&host).await;
        assert_eq!(after.groups[0].state, AnaState::Optimized);
        assert!(after.change_count > log.change_count);
        assert!(after.groups[0].change_count > log.groups[0].change_count);
        assert_eq!(io.call_in(read(1, 0, 1), 4096).await.ok().data, data);
        io.call_out(write(1, 0, 1), vec![1; 4096]).await.ok();
        io.call(IoCommand::Flush { nsid: EVERY }.to_sqe())
            .await
            .ok();
        // From here on it tells of changes as any target does.
        let told = host.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).1;
        lab.create_volume("later", 16 << 20, 4096).await;
        told.await.expect("an event").ok();
    });
}

#[test]
fn what_the_owner_changes_is_seen_on_the_standby() {
    story(async |lab| {
        let owner = lab.target.clone();
        let standby = standby_of(&owner);
        let engine = lab.engine.clone();
        let lab = lab.with_target(standby.clone());
        let host = lab.attach(1).await;
        wants_events(&host).await;
        let told = host.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).1;
        lab.create_volume("vol1", 32 << 20, 4096).await;
        standby.show(said(&owner)).await.expect("shown");
        told.await.expect("an event").ok();
        assert_eq!(
            page(&host, 2, 0).await[..12],
            [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
        );

        let size = page(&host, 0, 2).await[..8].to_vec();
        let changed = GetLogPage {
            lid: 4,
            lsp: 0,
            retain_event: false,
            length: 4096,
            offset: 0,
            offset_is_index: false,
            nsid: 0,
            csi: 0,
        };
        host.admin.call_in(changed.to_sqe(), 4096).await.ok();
        let told = host.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).1;
        engine
            .resize_volume("vol1", 64 << 20)
            .await
            .expect("larger");
        standby.show(said(&owner)).await.expect("shown");
        told.await.expect("an event").ok();
        assert_ne!(page(&host, 0, 2).await[..8], size);

        // Who is not on the list any more goes here too.
        let nqn = owner.nvm.nqn.clone();
        let closed = owner.change(|catalog| {
            catalog.subsystem_mut(&nqn)?.allow_any_host = false;
            Ok(())
        });
        closed.await.expect("changed");
        standby.show(said(&owner)).await.expect("shown");
        host.admin.closed().await;
    });
}

#[test]
fn what_is_asked_of_the_pool_is_refused_by_a_standby_and_changes_nothing() {
    story(async |lab| {
        let owner = lab.target.clone();
        let standby = standby_of(&owner);
        let before = standby.catalog();
        let refused = standby.change(|catalog| {
            catalog.unattached.insert(Uuid::from_u128(9));
            Ok(())
        });
        let refused = refused.await.expect_err("it has no pool");
        assert!(refused.message.contains("standby"), "{refused}");
        standby.description().expect_err("it knows it by hearsay");
        assert_eq!(*standby.catalog(), *before);
        // Another pool's description is no news of this one.
        let mut other = said(&owner);
        other.pool = Uuid::from_u128(77);
        let refused = standby.show(other).await.expect_err("another pool");
        assert!(refused.message.contains("start it again"), "{refused}");
        // A damaged one is told.
        let refused = Description::decode(b"{\"version\":1").expect_err("half");
        assert!(refused.message.contains("same version"), "{refused}");
        let later = serde_json::json!({
            "version": 2, "pool": Uuid::from_u128(1), "volumes": [], "snapshots": [], "settings": {}
        });
        let refused = Description::decode(later.to_string().as_bytes()).expect_err("a later one");
        assert!(refused.message.contains("version 2"), "{refused}");
        // And two pools cannot be taken over by one target.
        standby.take_over(lab.engine.clone()).await.expect("taken");
        standby
            .take_over(lab.engine.clone())
            .await
            .expect_err("it has one");
    });
}

#[test]
fn a_reservation_holds_on_the_node_that_takes_the_pool_over() {
    story(async |lab| {
        let owner = lab.target.clone();
        let standby = standby_of(&owner);
        let engine = lab.engine.clone();
        // Both hosts are attached to the standby before the first one reserves on the owner.
        let first = lab.attach(1).await;
        let first_io = lab.io_queue(&first, 1).await;
        let lab = lab.with_target(standby.clone());
        let other = lab.attach(2).await;
        let other_io = lab.io_queue(&other, 1).await;
        registering(&first_io, RegisterAction::Register, Some(true), (0, 5))
            .await
            .ok();
        let kind = ReservationType::WriteExclusive;
        acquire(&first_io, AcquireAction::Acquire, kind, (5, 0))
            .await
            .ok();
        standby.take_over(engine).await.expect("taken");
        let reply = other_io.call_out(write(1, 0, 1), vec![1; 4096]).await;
        assert_eq!(reply.code(), Status::RESERVATION_CONFLICT);
        other_io.call_in(read(1, 0, 1), 4096).await.ok();
    });
}

#[test]
fn a_description_that_makes_no_sense_is_refused_or_harms_nobody() {
    story(async |lab| {
        let owner = lab.target.clone();
        owner.keep().await.expect("as a daemon does at its start");
        let standby = standby_of(&owner);
        let lab = lab.with_target(standby.clone());
        let host = lab.attach(1).await;
        let io = lab.io_queue(&host, 1).await;
        let good = said(&owner).encode().expect("bytes");
        let good: serde_json::Value = serde_json::from_slice(&good).expect("JSON");
        let namespace = good["settings"]
            .as_object()
            .expect("settings")
            .keys()
            .find(|key| key.starts_with("namespace/"))
            .expect("the volume's")
            .clone();
        let changes: [(&str, serde_json::Value, bool); 7] = [
            ("/volumes/0/lba_bytes", 0.into(), true),
            ("/volumes/0/lba_bytes", u32::MAX.into(), true),
            ("/volumes/0/size_bytes", u64::MAX.into(), true),
            ("/volumes/0/nsid", 0.into(), true),
            ("/volumes/0/trimming", serde_json::json!([[9, 3]]), true),
            ("/volumes/0/uuid", "nobody".into(), false),
            (
                &format!("/settings/{}", namespace.replace('/', "~1")),
                "{".into(),
                false,
            ),
        ];
        for (place, value, is_shown) in changes {
            let mut bad = good.clone();
            *bad.pointer_mut(place).expect("it is there") = value.clone();
            let shown = match Description::decode(bad.to_string().as_bytes()) {
                Ok(description) => standby.show(description).await,
                Err(refused) => Err(refused),
            };
            assert_eq!(shown.is_ok(), is_shown, "{place} {value}: {shown:?}");
            for (cns, nsid) in [(0, 1), (2, 0), (3, 1), (1, 0)] {
                let reply = host.admin.call_in(identify(cns, nsid), 4096).await;
                assert!(reply.status.is_success(), "{place}: {:?}", reply.code());
            }
            let reply = io.call_in(read(1, 0, 1), 4096).await;
            assert_eq!(reply.code(), Status::ASYMMETRIC_INACCESSIBLE, "{place}");
        }
    });
}
