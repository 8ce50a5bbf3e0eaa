//! Several subsystems: who may use which, who sees which namespaces, and what hosts hear of changes.

use std::collections::BTreeSet;

use nvme::admin::{GetFeatures, NamespaceAttachment, NamespaceManagement, SetFeatures};
use nvme::fabrics::InvalidParameter;
use nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, decode_descriptor_list,
    decode_namespace_list, encode_controller_list,
};
use nvme::log::{ChangedNamespaces, DiscoveryEntry, DiscoveryHeader};
use nvme::{Nqn, Sqe, Status, admin};
use subsystem::catalog::{Catalog, NamespaceConfig, SubsystemConfig, WriteProtect};
use subsystem::errors::Failure;
use subsystem::limits::Limits;

use crate::admin::{identify, log, log_page, set_feature};
use crate::harness::{Attached, Lab, TestHost, open_target, read, story, write};

/// A subsystem beside the default one.
const OTHER: &str = "nqn.2026-11.x:other";

pub(crate) fn name(text: &str) -> Nqn {
    text.parse().expect("a name")
}

impl Lab {
    pub(crate) async fn change<T>(
        &self,
        change: impl FnOnce(&mut Catalog) -> Result<T, Failure>,
    ) -> T {
        self.target.change(change).await.expect("a change")
    }

    /// Makes the other subsystem, with a volume of that name under an identifier.
    async fn other_with(&self, volume: &str, nsid: u32) {
        self.create_volume(volume, 1 << 20, 4096).await;
        let volume = self.engine.volume(volume).expect("the volume").info().uuid;
        self.change(|catalog| {
            catalog.create_subsystem(SubsystemConfig::new(name(OTHER), "other".into()))?;
            catalog.attach(&name(OTHER), Some(nsid), NamespaceConfig::new(volume))
        })
        .await;
    }
}

impl Attached {
    pub(crate) async fn namespaces(&self) -> Vec<u32> {
        let page = identify(self, 0x02, 0).await.ok().data;
        decode_namespace_list(&page).expect("a list")
    }

    async fn changed_namespaces(&self) -> Vec<u32> {
        match ChangedNamespaces::decode(&log(self, 0x04, 4096).await) {
            Some(ChangedNamespaces::List(list)) => list,
            other => panic!("{other:?} is no list"),
        }
    }

    /// Names of subsystems in the discovery log.
    async fn offered(&self) -> BTreeSet<String> {
        let page = log(self, 0x70, 64 << 10).await;
        let header = DiscoveryHeader::decode(&page).expect("a header");
        page[1024..]
            .chunks_exact(1024)
            .take(header.records as usize)
            .map(|entry| DiscoveryEntry::decode(entry).expect("an entry"))
            .map(|entry| entry.subnqn.to_string())
            .collect()
    }
}

#[test]
fn a_volume_is_a_namespace_of_several_subsystems_under_numbers_of_their_own() {
    story(async |lab| {
        lab.other_with("vol1", 1000).await;
        let (first, second) = (lab.attach(1).await, lab.attach_to(1, OTHER).await);
        assert_eq!(first.namespaces().await, [1, 2]);
        assert_eq!(second.namespaces().await, [1000]);
        let page = identify(&second, 0x01, 0).await.ok().data;
        let page = IdentifyController::decode(&page).expect("a page");
        assert_eq!((page.subnqn.as_str(), page.sn.trim()), (OTHER, "other"));

        let (a, b) = (lab.io_queue(&first, 1).await, lab.queue(1, 128));
        let mut data = crate::harness::connect_data(&second.host, second.cntlid);
        data.subsystem = name(OTHER);
        let io = nvme::fabrics::ConnectCommand {
            record_format: 0,
            qid: 1,
            sqsize: 127,
            attributes: 0,
            kato_ms: 0,
        };
        crate::harness::connect(&b, io, data).await.ok();
        let bytes = vec![0x5c; 4096];
        b.call_out(write(1000, 3, 1), bytes.clone()).await.ok();
        assert_eq!(a.call_in(read(2, 3, 1), 4096).await.ok().data, bytes);
        // Neither reaches what the other one has.
        a.call_in(read(1000, 3, 1), 4096)
            .await
            .refused(Status::INVALID_NAMESPACE);
        b.call_in(read(1, 3, 1), 4096)
            .await
            .refused(Status::INVALID_NAMESPACE);
        let ids = |page: Vec<u8>| decode_descriptor_list(&page).expect("descriptors");
        let here = ids(identify(&first, 0x03, 2).await.ok().data);
        let there = ids(identify(&second, 0x03, 1000).await.ok().data);
        assert_eq!(here, there, "the same volume has the same identity");
        assert!(
            here.iter()
                .any(|id| matches!(id, NamespaceDescriptor::Eui64(bytes) if *bytes != [0; 8]))
        );
    });
}

#[test]
fn attached_hosts_hear_of_namespaces_that_they_see_and_of_no_other() {
    story(async |lab| {
        lab.other_with("vol1", 7).await;
        let (first, second) = (lab.attach(1).await, lab.attach_to(2, OTHER).await);
        set_feature(&first, 0x0b, 1 << 8).await.ok();
        let (_, event) = first
            .admin
            .begin(Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST));
        // The default subsystem got the volume before the host came.
        assert!(first.changed_namespaces().await.is_empty());
        let volume = lab.engine.volume("vol1").expect("the volume").info().uuid;
        lab.change(|catalog| catalog.detach(&name(subsystem::DEFAULT_SUBSYSTEM_NQN), 2))
            .await;
        assert_eq!(event.await.expect("an answer").ok().result, 0x0004_0002);
        assert_eq!(first.changed_namespaces().await, [2]);
        assert_eq!(first.namespaces().await, [1]);
        assert!(second.changed_namespaces().await.is_empty());

        lab.engine
            .resize_volume("vol1", 2 << 20)
            .await
            .expect("resized");
        assert!(first.changed_namespaces().await.is_empty());
        assert_eq!(second.changed_namespaces().await, [7]);
        let only_for_9 = NamespaceConfig {
            hosts: Some([TestHost::new(9).nqn].into()),
            ..NamespaceConfig::new(volume)
        };
        lab.change(|catalog| {
            catalog.attach(
                &name(subsystem::DEFAULT_SUBSYSTEM_NQN),
                Some(900),
                only_for_9.clone(),
            )
        })
        .await;
        assert!(first.changed_namespaces().await.is_empty());
        lab.engine.delete_volume("vol1").await.expect("deleted");
        assert!(first.changed_namespaces().await.is_empty());
        assert_eq!(second.changed_namespaces().await, [7]);
        assert!(second.namespaces().await.is_empty());
    });
}

#[test]
fn a_masked_namespace_is_not_there_for_other_hosts() {
    story(async |lab| {
        let volume = lab.engine.volume("vol0").expect("the volume").info().uuid;
        lab.other_with("vol1", 1).await;
        let masked = NamespaceConfig {
            hosts: Some([TestHost::new(1).nqn].into()),
            ..NamespaceConfig::new(volume)
        };
        lab.change(|catalog| catalog.attach(&name(OTHER), Some(5), masked))
            .await;
        let (seeing, blind) = (lab.attach_to(1, OTHER).await, lab.attach_to(2, OTHER).await);
        assert_eq!(seeing.namespaces().await, [1, 5]);
        assert_eq!(blind.namespaces().await, [1]);
        for cns in [0x03, 0x05, 0x08, 0x12] {
            identify(&blind, cns, 5)
                .await
                .refused(Status::INVALID_NAMESPACE);
        }
        let page = identify(&blind, 0x00, 5).await.ok().data;
        assert_eq!(page, vec![0; 4096]);
        lab.change(|catalog| {
            let namespace = catalog.namespace_mut(&name(OTHER), 5)?;
            namespace.hosts = Some([TestHost::new(2).nqn].into());
            Ok(())
        })
        .await;
        assert_eq!(seeing.changed_namespaces().await, [5]);
        assert_eq!(blind.changed_namespaces().await, [5]);
        assert_eq!(seeing.namespaces().await, [1]);
        assert_eq!(blind.namespaces().await, [1, 5]);
    });
}

#[test]
fn once_a_list_is_set_only_hosts_on_it_get_in_and_see_the_subsystem() {
    story(async |lab| {
        lab.other_with("vol1", 1).await;
        let (friend, stranger) = (TestHost::new(1), TestHost::new(2));
        let attached = lab.attach_to(2, OTHER).await;
        let watcher = lab.discover(2).await;
        assert!(watcher.offered().await.contains(OTHER));
        let list = |catalog: &mut Catalog| {
            let subsystem = catalog.subsystem_mut(&name(OTHER))?;
            subsystem.hosts.insert(friend.nqn.clone());
            subsystem.allow_any_host = false;
            Ok(())
        };
        lab.change(list).await;
        // Who is there and may not stay is put out.
        attached.admin.closed().await;
        let (_, refused) = lab.try_connect(&stranger, OTHER).await;
        refused.refused(Status::CONNECT_INVALID_HOST);
        let (_, unknown) = lab.try_connect(&stranger, "nqn.2026-11.x:none").await;
        assert_eq!(unknown.result, InvalidParameter::data(256).result());
        unknown.refused(Status::CONNECT_INVALID_PARAMETERS);
        let (_, welcome) = lab.try_connect(&friend, OTHER).await;
        welcome.ok();
        let discovery = lab.discover(1).await;
        assert!(discovery.offered().await.contains(OTHER));
        assert!(!watcher.offered().await.contains(OTHER));
    });
}

#[test]
fn a_discovery_log_that_is_read_in_pieces_is_one_log() {
    story(async |lab| {
        let attached = lab.discover(1).await;
        let header = async || {
            let command = log_page(0x70, 0, 1024).to_sqe();
            let page = attached.admin.call_in(command, 1024).await.ok().data;
            DiscoveryHeader::decode(&page).expect("a header")
        };
        let before = header().await;
        lab.other_with("vol1", 1).await;
        // What was begun goes on, and ends where it said it would.
        let beyond = log_page(0x70, 1024 * (1 + before.records), 1024).to_sqe();
        let rest = attached.admin.call_in(beyond, 1024).await.ok().data;
        assert_eq!(rest, vec![0; 1024]);
        let after = header().await;
        assert!(after.generation > before.generation);
        assert_eq!(after.records, before.records + 2);
        let last = log_page(0x70, 1024 * after.records, 1024).to_sqe();
        let last = attached.admin.call_in(last, 1024).await.ok().data;
        let last = DiscoveryEntry::decode(&last).expect("an entry");
        assert_eq!(last.subnqn, name(OTHER));
        assert_eq!(header().await.generation, after.generation);
    });
}

#[test]
fn a_host_hears_only_of_discovery_changes_that_it_can_see() {
    story(async |lab| {
        let (friend, stranger) = (lab.discover(1).await, lab.discover(2).await);
        for attached in [&friend, &stranger] {
            set_feature(attached, 0x0b, 1 << 31).await.ok();
        }
        let requests = [&friend, &stranger].map(|attached| {
            let sqe = Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST);
            attached.admin.begin(sqe).1
        });
        let mut hidden = SubsystemConfig::new(name(OTHER), "other".into());
        hidden.allow_any_host = false;
        hidden.hosts.insert(friend.host.nqn.clone());
        lab.change(|catalog| catalog.create_subsystem(hidden)).await;
        let [told, mut untold] = requests;
        assert_eq!(told.await.expect("an answer").ok().result, 0x0070_f002);
        assert!(untold.try_recv().is_err());
    });
}

#[test]
fn a_protected_namespace_takes_no_writes_until_that_is_lifted() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let data = vec![7; 4096];
        queue.call_out(write(1, 0, 1), data.clone()).await.ok();
        let protect = async |state| {
            lab.change(|catalog| {
                let default = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
                catalog.namespace_mut(&default, 1)?.write_protect = state;
                Ok(())
            })
            .await;
        };
        protect(WriteProtect::On).await;
        assert_eq!(attached.changed_namespaces().await, [1]);
        queue
            .call_out(write(1, 0, 1), vec![8; 4096])
            .await
            .refused(Status::NAMESPACE_WRITE_PROTECTED);
        assert_eq!(queue.call_in(read(1, 0, 1), 4096).await.ok().data, data);
        let page = identify(&attached, 0x00, 1).await.ok().data;
        let page = IdentifyNamespace::decode(&page).expect("a page");
        assert_eq!(page.nsattr, 1);
        protect(WriteProtect::Off).await;
        queue.call_out(write(1, 0, 1), vec![8; 4096]).await.ok();
    });
}

#[test]
fn a_private_namespace_belongs_to_one_controller_and_follows_its_host() {
    story(async |lab| {
        lab.change(|catalog| {
            let default = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
            catalog.namespace_mut(&default, 1)?.shared = false;
            Ok(())
        })
        .await;
        let (first, second) = (lab.attach(1).await, lab.attach(2).await);
        assert_eq!(first.namespaces().await, [1]);
        assert!(second.namespaces().await.is_empty());
        // Its connection is lost, and the host is back before the old association has ended.
        let again = lab.attach(1).await;
        assert_eq!(again.namespaces().await, [1]);
        assert_eq!(first.changed_namespaces().await, [1]);
        assert!(first.namespaces().await.is_empty());
        first.admin.close_from_host();
        again.admin.close_from_host();
        lab.attached_hosts_are(1).await;
        assert_eq!(second.changed_namespaces().await, [1]);
        assert_eq!(second.namespaces().await, [1]);
    });
}

#[test]
fn a_deleted_subsystem_is_gone_for_its_hosts_and_its_volumes_are_not() {
    story(async |lab| {
        lab.other_with("vol1", 1).await;
        let attached = lab.attach_to(1, OTHER).await;
        lab.change(|catalog| catalog.delete_subsystem(&name(OTHER)))
            .await;
        attached.admin.closed().await;
        let (_, unknown) = lab.try_connect(&attached.host, OTHER).await;
        unknown.refused(Status::CONNECT_INVALID_PARAMETERS);
        assert_eq!(lab.attach(1).await.namespaces().await, [1, 2]);
    });
}

#[test]
fn what_was_configured_is_there_after_a_restart() {
    story(async |mut lab| {
        lab.other_with("vol1", 1000).await;
        lab.create_volume("vol2", 1 << 20, 4096).await;
        lab.change(|catalog| {
            let other = catalog.subsystem_mut(&name(OTHER))?;
            other.hosts.insert(TestHost::new(1).nqn);
            other.allow_any_host = false;
            catalog.namespace_mut(&name(OTHER), 1000)?.write_protect = WriteProtect::On;
            let default = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
            catalog.namespace_mut(&default, 1)?.write_protect = WriteProtect::UntilPowerCycle;
            catalog.detach(&default, 3).map(drop)
        })
        .await;
        let before = lab.target.catalog();
        let unattached = lab.engine.volume("vol2").expect("it").info().uuid;
        assert!(before.unattached.contains(&unattached));
        lab.target = open_target(&lab.engine, Limits::default());
        let mut expected = Catalog::clone(&before);
        let default = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
        let first = expected.namespace_mut(&default, 1).expect("it");
        first.write_protect = WriteProtect::Off;
        assert_eq!(*lab.target.catalog(), expected);
        // A volume whose deletion was interrupted leaves nothing behind that hosts could see.
        lab.engine.delete_volume("vol1").await.expect("deleted");
        lab.target = open_target(&lab.engine, Limits::default());
        assert!(lab.attach_to(1, OTHER).await.namespaces().await.is_empty());
    });
}

#[test]
fn a_setting_that_cannot_be_understood_stops_the_start_by_its_name() {
    story(async |lab| {
        let key = format!("subsystem/{OTHER}");
        let newer = br#"{"version":2,"shape":"unknown"}"#.to_vec();
        let change = vec![(key.clone(), Some(newer))];
        lab.engine.change_settings(change).await.expect("kept");
        let parts = subsystem::target::TargetParts {
            pool: subsystem::target::Pool::Here(lab.engine.clone()),
            pool_uuid: uuid::Uuid::from_u128(1),
            is_new_pool: false,
            listeners_by_default: false,
            listeners_tls: fabric::TlsMode::Off,
            listeners: Vec::new(),
            limits: Limits::default(),
        };
        let failure = subsystem::target::Target::open(parts).expect_err("refused");
        assert!(failure.message.contains(&key), "{failure}");
    });
}

#[test]
fn a_bound_that_is_met_is_named_with_the_command_that_makes_room() {
    story(async |lab| {
        let mut catalog = Catalog::clone(&lab.target.catalog());
        let refusal = (0..100_000).find_map(|number| {
            let new = SubsystemConfig::new(name(&format!("nqn.2026-11.x:{number}")), "1".into());
            catalog.create_subsystem(new).expect("another name");
            catalog.check().err()
        });
        let refusal = refusal.expect("a bound").message;
        assert!(
            refusal.contains("subsystems, and no more are possible")
                && refusal.contains("`onefold subsystem delete`"),
            "{refusal}"
        );
    });
}

/// A page for Namespace Management: so many blocks of that format.
fn wanted(blocks: u64, format: u8) -> Vec<u8> {
    let page = IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        flbas: format,
        nmic: 1,
        ..Default::default()
    };
    page.encode().to_vec()
}

#[test]
fn a_host_makes_attaches_and_deletes_a_namespace_where_that_is_allowed() {
    story(async |lab| {
        let (maker, other) = (lab.attach(1).await, lab.attach(2).await);
        let create = NamespaceManagement::Create { csi: 0 }.to_sqe();
        let made = maker.admin.call_out(create, wanted(256, 1)).await;
        made.refused(Status::INVALID_OPCODE);
        let page = identify(&maker, 0x01, 0).await.ok().data;
        assert_eq!(
            IdentifyController::decode(&page).expect("a page").oacs & 8,
            0
        );
        lab.change(|catalog| {
            let default = catalog.subsystem_mut(&name(subsystem::DEFAULT_SUBSYSTEM_NQN))?;
            default.namespace_management = true;
            Ok(())
        })
        .await;
        let page = identify(&maker, 0x01, 0).await.ok().data;
        assert_eq!(
            IdentifyController::decode(&page).expect("a page").oacs & 8,
            8
        );
        let common = identify(&maker, 0x00, 0xffff_ffff).await.ok().data;
        let common = IdentifyNamespace::decode(&common).expect("a page");
        let formats: Vec<_> = common.lbaf.iter().map(|format| format.lbads).collect();
        assert_eq!(formats, [12, 9]);

        let made = maker.admin.call_out(create, wanted(2048, 1)).await.ok();
        let nsid = made.result as u32;
        assert_eq!(nsid, 2);
        assert_eq!(maker.namespaces().await, [1], "nobody sees it yet");
        let allocated = identify(&maker, 0x10, 0).await.ok().data;
        assert_eq!(decode_namespace_list(&allocated), Some(vec![1, 2]));
        let page = identify(&maker, 0x11, nsid).await.ok().data;
        let page = IdentifyNamespace::decode(&page).expect("a page");
        assert_eq!((page.nsze, page.lba_bytes()), (2048, Some(512)));

        let attachment = async |select, ids: &[u16]| {
            let sqe = NamespaceAttachment { nsid, select }.to_sqe();
            let list = encode_controller_list(ids).to_vec();
            maker.admin.call_out(sqe, list).await
        };
        let (attach, detach) = (NamespaceAttachment::ATTACH, NamespaceAttachment::DETACH);
        for ids in [&[][..], &[maker.cntlid, maker.cntlid ^ 0x4000]] {
            let reply = attachment(attach, ids).await;
            reply.refused(Status::CONTROLLER_LIST_INVALID);
        }
        attachment(detach, &[maker.cntlid])
            .await
            .refused(Status::NAMESPACE_NOT_ATTACHED);
        attachment(2, &[maker.cntlid])
            .await
            .refused(Status::INVALID_FIELD);
        attachment(attach, &[maker.cntlid]).await.ok();
        attachment(attach, &[maker.cntlid])
            .await
            .refused(Status::NAMESPACE_ALREADY_ATTACHED);
        assert_eq!(maker.namespaces().await, [1, 2]);
        assert_eq!(maker.changed_namespaces().await, [2]);
        assert!(other.changed_namespaces().await.is_empty());
        assert_eq!(other.namespaces().await, [1]);
        attachment(attach, &[other.cntlid]).await.ok();
        attachment(detach, &[maker.cntlid]).await.ok();
        assert_eq!(maker.namespaces().await, [1]);
        assert_eq!(other.namespaces().await, [1, 2]);

        let delete = async |nsid| {
            let sqe = NamespaceManagement::Delete { nsid }.to_sqe();
            maker.admin.call(sqe).await
        };
        delete(2).await.ok();
        delete(2).await.refused(Status::INVALID_NAMESPACE);
        assert_eq!(other.namespaces().await, [1]);
        assert_eq!(lab.engine.volumes().len(), 1, "its volume is gone with it");
    });
}

#[test]
fn what_cannot_be_a_namespace_is_refused_and_nothing_is_made() {
    story(async |lab| {
        lab.change(|catalog| {
            let default = catalog.subsystem_mut(&name(subsystem::DEFAULT_SUBSYSTEM_NQN))?;
            default.namespace_management = true;
            Ok(())
        })
        .await;
        let host = lab.attach(1).await;
        let create = NamespaceManagement::Create { csi: 0 }.to_sqe();
        for (page, status) in [
            (wanted(0, 0), Status::INVALID_FIELD),
            (wanted(8, 2), Status::INVALID_FORMAT),
            (wanted(u64::MAX, 0), Status::NAMESPACE_INSUFFICIENT_CAPACITY),
            (vec![0; 512], Status::SGL_LENGTH_INVALID),
        ] {
            host.admin.call_out(create, page).await.refused(status);
        }
        let csi = NamespaceManagement::Create { csi: 2 }.to_sqe();
        let reply = host.admin.call_out(csi, wanted(8, 0)).await;
        reply.refused(Status::COMMAND_SET_NOT_SUPPORTED);
        let reply = host.admin.call(NamespaceManagement::Unknown.to_sqe()).await;
        reply.refused(Status::INVALID_FIELD);
        assert_eq!(lab.engine.volumes().len(), 1);
        assert_eq!(host.namespaces().await, [1]);
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_host_protects_a_namespace_and_cannot_do_what_nobody_can_undo() {
    story(async |lab| {
        let host = lab.attach(1).await;
        let queue = lab.io_queue(&host, 1).await;
        let set = async |nsid, value| {
            let command = SetFeatures {
                fid: 0x84,
                save: false,
                dwords: [value, 0, 0, 0, 0],
                nsid,
            };
            host.admin.call(command.to_sqe()).await
        };
        let get = async |select| {
            let command = GetFeatures {
                fid: 0x84,
                select,
                cdw11: 0,
                nsid: 1,
            };
            host.admin.call(command.to_sqe()).await.ok().result
        };
        set(9, 1).await.refused(Status::INVALID_NAMESPACE);
        for value in [3, 4, 7] {
            set(1, value).await.refused(Status::INVALID_FIELD);
        }
        set(1, 1).await.ok();
        assert_eq!((get(0).await, get(1).await, get(2).await), (1, 0, 1));
        queue
            .call_out(write(1, 0, 1), vec![8; 4096])
            .await
            .refused(Status::NAMESPACE_WRITE_PROTECTED);
        set(1, 0).await.ok();
        queue.call_out(write(1, 0, 1), vec![8; 4096]).await.ok();
        set(1, 2).await.ok();
        set(1, 0).await.refused(Status::FEATURE_NOT_CHANGEABLE);
        assert_eq!((get(0).await, get(2).await), (2, 0));
    });
}
