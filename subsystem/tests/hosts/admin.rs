//! Identify, log pages, features and events, as Linux and nvme-cli ask for them.

use fabric::Transport;
use nvme::admin::{GetFeatures, GetLogPage, Identify, SetFeatures};
use nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, decode_descriptor_list,
    decode_namespace_list,
};
use nvme::log::{
    ChangedNamespaces, CommandEffects, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype,
    ErrorLogEntry, FeatureEffects, SmartLog, SupportedLogPages,
};
use nvme::{SglDescriptor, Sqe, Status, admin, properties};
use subsystem::catalog::SubsystemConfig;

use crate::harness::{Attached, CC_ENABLE, Reply, TestHost, VOLUME_BYTES, read, story, write};

pub(crate) async fn identify(attached: &Attached, cns: u8, nsid: u32) -> Reply {
    let command = Identify {
        cns,
        cntid: 0,
        nsid,
        csi: 0,
        specific_id: 0,
    };
    attached.admin.call_in(command.to_sqe(), 4096).await
}

pub(crate) fn log_page(lid: u8, offset: u64, length: u64) -> GetLogPage {
    GetLogPage {
        lid,
        lsp: 0,
        retain_event: false,
        length,
        offset,
        offset_is_index: false,
        nsid: 0xffff_ffff,
        csi: 0,
    }
}

pub(crate) async fn log(attached: &Attached, lid: u8, length: u64) -> Vec<u8> {
    let command = log_page(lid, 0, length).to_sqe();
    attached
        .admin
        .call_in(command, length as usize)
        .await
        .ok()
        .data
}

pub(crate) async fn get_feature(attached: &Attached, fid: u8, select: u8) -> Reply {
    let command = GetFeatures {
        fid,
        select,
        cdw11: 0,
        nsid: 0,
    };
    attached.admin.call(command.to_sqe()).await
}

async fn save_feature(attached: &Attached, fid: u8, value: u32) -> Reply {
    let command = SetFeatures {
        fid,
        save: true,
        dwords: [value, 0, 0, 0, 0],
        nsid: 0,
    };
    attached.admin.call(command.to_sqe()).await
}

pub(crate) async fn set_feature(attached: &Attached, fid: u8, value: u32) -> Reply {
    let command = SetFeatures {
        fid,
        save: false,
        dwords: [value, 0, 0, 0, 0],
        nsid: 0,
    };
    attached.admin.call(command.to_sqe()).await
}

#[test]
fn the_controller_page_passes_every_check_of_a_linux_host() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let page = identify(&attached, 0x01, 0).await.ok().data;
        let page = IdentifyController::decode(&page).expect("a page");
        assert_eq!(page.cntlid, attached.cntlid);
        assert_ne!(page.kas, 0);
        assert!(page.ioccsz >= 4 && page.iorcsz >= 1 && page.icdoff == 0);
        assert_ne!(page.cmic & 2, 0, "several controllers");
        assert_eq!((page.mdts, page.msdbd), (8, 1));
        assert!(page.mnan > 0 && page.mnan <= page.nn);
        assert_eq!(page.vwc & 1, 1);
        assert_eq!(page.cntrltype, 1);
        assert_eq!(page.sn, "123456789abcdef01234");
        assert_eq!(page.subnqn, subsystem::DEFAULT_SUBSYSTEM_NQN);
        assert_ne!(page.oaes & 1 << 8, 0);
    });
}

#[test]
fn a_host_that_enables_all_command_sets_finds_the_nvm_command_set() {
    // CC.CSS 110b: what Linux writes where CAP.CSS bit 6 is set, and some clients always.
    const CC_ALL_COMMAND_SETS: u64 = CC_ENABLE | 6 << 4;
    story(async |lab| {
        let attached = lab.connect_with(&TestHost::new(1), 0).await;
        let capabilities = attached.property(properties::CAP, true).await.ok().result;
        assert_eq!(capabilities >> 43 & 1, 1);
        let cc = attached.set_property(properties::CC, CC_ALL_COMMAND_SETS);
        cc.await.ok();
        let status = attached.property(properties::CSTS, false).await.ok().result;
        assert_eq!(status, 1, "ready");
        let ask = async |cns, nsid, csi| {
            let command = Identify {
                cns,
                cntid: 0xffff,
                nsid,
                csi,
                specific_id: 0,
            };
            attached.admin.call_in(command.to_sqe(), 4096).await
        };
        // In the order of Linux (drivers/nvme/host/core.c): limits, namespaces, then each of them.
        let combinations = ask(0x1c, 0, 0).await.ok().data;
        assert_eq!(
            combinations[..16],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let limits = ask(0x06, 0, 0).await.ok().data;
        assert_eq!(limits[..3], [16, 16, 8], "VSL, WZSL, WUSL");
        let list = decode_namespace_list(&ask(0x07, 0, 0).await.ok().data);
        assert_eq!(list.as_deref(), Some(&[1][..]));
        let descriptors = decode_descriptor_list(&ask(0x03, 1, 0).await.ok().data);
        let descriptors = descriptors.expect("descriptors");
        assert!(descriptors.contains(&NamespaceDescriptor::Csi(0)));
        let independent = ask(0x08, 1, 0).await.ok().data;
        assert_eq!(independent[14] & 1, 1, "ready");
        let formats = ask(0x05, 1, 0).await.ok().data;
        assert_eq!(formats, vec![0; 4096], "no protection information");
        // Zoned namespaces and key-value stores are not among them.
        for csi in [1, 2, 0x30] {
            for (cns, nsid) in [(0x05, 1), (0x06, 0), (0x07, 0)] {
                ask(cns, nsid, csi).await.refused(Status::INVALID_FIELD);
            }
        }
        // The one combination is chosen, and there is no other.
        assert_eq!(get_feature(&attached, 0x19, 0).await.ok().result, 0);
        set_feature(&attached, 0x19, 0).await.ok();
        set_feature(&attached, 0x19, 1)
            .await
            .refused(Status::COMMAND_SET_COMBINATION_REJECTED);
        lab.still_serves(&lab.io_queue(&attached, 1).await).await;
    });
}

#[test]
fn show_regs_of_nvme_cli_shows_the_properties_that_there_are() {
    // nvme-cli 2.3 reads so up to CMBSZ, and gives up at any failure but a plain Invalid Field.
    const CMBSZ: u32 = 0x3c;
    const WIDE: [u32; 3] = [properties::CAP, 0x28, 0x30];
    story(async |lab| {
        let attached = lab.attach(1).await;
        let before = error_entries(&attached).await;
        let (mut offset, mut shown) = (0, Vec::new());
        while offset <= CMBSZ {
            let wide = WIDE.contains(&offset);
            let reply = attached.property(offset, wide).await;
            match reply.status.bits() {
                0 => shown.push((offset, reply.result)),
                status => assert_eq!(status, Status::INVALID_FIELD.bits(), "at {offset:#x}"),
            }
            offset += if wide { 8 } else { 4 };
        }
        let offsets: Vec<u32> = shown.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, [0, 8, 0x14, 0x1c, 0x20]);
        assert_eq!(
            shown[1..],
            [(8, 0x1_0400), (0x14, CC_ENABLE), (0x1c, 1), (0x20, 0)]
        );
        assert_eq!(
            error_entries(&attached).await,
            before,
            "a question is no failure"
        );
    });
}

async fn error_entries(attached: &Attached) -> u128 {
    let page = log(attached, 0x02, 512).await;
    SmartLog::decode(&page).expect("a page").error_log_entries
}

#[test]
fn a_controller_tells_what_its_transport_can_do() {
    for (transport, depth, in_capsule_bytes, keyed) in [
        (Transport::Rdma, 256, 4096, true),
        (Transport::Tcp, 1024, 16384, false),
    ] {
        story(async |mut lab| {
            lab.transport = transport;
            let attached = lab.attach(1).await;
            let page = identify(&attached, 0x01, 0).await.ok().data;
            let page = IdentifyController::decode(&page).expect("a page");
            assert_eq!(page.maxcmd, depth, "MAXCMD by {transport}");
            assert_eq!(page.ioccsz, (64 + in_capsule_bytes) / 16);
            assert_ne!(page.sgls & 3, 0, "SGLs");
            assert_ne!(page.sgls & 1 << 20, 0, "data in capsules");
            assert_eq!(page.sgls & 1 << 2 != 0, keyed, "keyed SGLs by {transport}");
            let capabilities = attached.property(properties::CAP, true).await.ok().result;
            assert_eq!(capabilities & 0xffff, u64::from(depth) - 1, "MQES");
            assert_eq!(
                lab.target.attached_hosts()[0].transport,
                transport.to_string()
            );
        });
    }
}

#[test]
fn a_namespace_is_the_volume_with_its_identities() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        lab.create_volume("small", 1 << 20, 512).await;
        let list = identify(&attached, 0x02, 0).await.ok().data;
        assert_eq!(decode_namespace_list(&list), Some(vec![1, 2]));
        let list = identify(&attached, 0x02, 1).await.ok().data;
        assert_eq!(decode_namespace_list(&list), Some(vec![2]));

        let page = identify(&attached, 0x00, 1).await.ok().data;
        let page = IdentifyNamespace::decode(&page).expect("a page");
        assert_eq!(
            (page.nsze, page.lba_bytes()),
            (VOLUME_BYTES / 4096, Some(4096))
        );
        let page = identify(&attached, 0x00, 2).await.ok().data;
        let page = IdentifyNamespace::decode(&page).expect("a page");
        assert_eq!((page.nsze, page.lba_bytes()), (2048, Some(512)));

        let info = lab.engine.volume("vol0").expect("vol0").info();
        let list = identify(&attached, 0x03, 1).await.ok().data;
        let list = decode_descriptor_list(&list).expect("a list");
        assert!(list.contains(&NamespaceDescriptor::Uuid(info.uuid.into_bytes())));
        assert!(list.contains(&NamespaceDescriptor::Nguid(info.nguid)));
        assert!(list.contains(&NamespaceDescriptor::Csi(0)));
        // A valid identifier that is not in use is a page of zeros, as nvmet answers.
        assert_eq!(identify(&attached, 0x00, 3).await.ok().data, vec![0; 4096]);
    });
}

#[test]
fn smart_counts_what_hosts_did() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for block in 0..4 {
            queue
                .call_out(write(1, block * 256, 256), vec![1; 1 << 20])
                .await
                .ok();
        }
        queue.call_in(read(1, 0, 1), 4096).await.ok();
        queue
            .call_in(read(1, 1 << 40, 1), 4096)
            .await
            .refused(Status::LBA_OUT_OF_RANGE);
        let page = SmartLog::decode(&log(&attached, 0x02, 512).await).expect("a page");
        assert_eq!((page.host_write_commands, page.host_read_commands), (4, 1));
        assert_eq!(page.data_units_written, (4u128 << 20).div_ceil(512_000));
        assert_eq!(page.data_units_read, 1);
        assert_eq!((page.error_log_entries, page.media_errors), (1, 0));
        assert!(page.available_spare > 90 && page.critical_warning == 0);
    });
}

#[test]
fn the_error_log_tells_which_command_failed_and_where() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 3).await;
        queue
            .call_in(read(1, 1 << 40, 1), 4096)
            .await
            .refused(Status::LBA_OUT_OF_RANGE);
        identify(&attached, 0xff, 0)
            .await
            .refused(Status::INVALID_FIELD);
        let page = log(&attached, 0x01, 192).await;
        let entries: Vec<_> = page
            .chunks(64)
            .map(|entry| ErrorLogEntry::decode(entry).expect("one"))
            .collect();
        assert_eq!((entries[0].error_count, entries[0].sqid), (2, 0));
        assert_eq!(entries[0].parameter_location, 40);
        assert_eq!((entries[1].error_count, entries[1].sqid), (1, 3));
        assert_eq!((entries[1].lba, entries[1].nsid), (1 << 40, 1));
        assert_eq!(
            Status::from_bits(entries[1].status_field >> 1).code(),
            Status::LBA_OUT_OF_RANGE
        );
        assert_eq!(entries[2], ErrorLogEntry::default());
        // The transport is named where it is to blame: a host that sends less than it announced.
        assert_eq!((entries[0].trtype, entries[1].trtype), (0, 0));
        let mut short = write(1, 0, 2);
        short.set_cid(77);
        short.set_sgl(&SglDescriptor::Keyed {
            address: 0x1000,
            length: 8192,
            key: 7,
            invalidate: true,
        });
        let reply = queue.send(short, vec![1; 4096], false).await;
        let reply = reply.expect("an answer");
        assert_eq!(reply.code(), Status::DATA_TRANSFER_ERROR);
        let page = log(&attached, 0x01, 64).await;
        let entry = ErrorLogEntry::decode(&page).expect("one");
        assert_eq!((entry.cid, entry.trtype), (77, 1));
    });
}

#[test]
fn effects_and_firmware_have_their_pages() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let effects = CommandEffects::decode(&log(&attached, 0x05, 4096).await).expect("a page");
        assert_eq!(effects.iocs[0x02], CommandEffects::SUPPORTED);
        assert_eq!(effects.iocs[0x7e], 0);
        assert_eq!(log(&attached, 0x03, 512).await[0], 1);
    });
}

#[test]
fn every_log_page_that_is_announced_can_be_read_and_no_other() {
    story(async |lab| {
        for attached in [lab.attach(1).await, lab.discover(2).await] {
            let pages = log(&attached, 0x00, 1024).await;
            let pages = SupportedLogPages::decode(&pages).expect("a page");
            for lid in 0..=u8::MAX {
                let get = GetLogPage {
                    // Pages that are made first and then read are made.
                    lsp: 1,
                    ..log_page(lid, 0, 64)
                };
                let reply = attached.admin.call_in(get.to_sqe(), 64);
                match pages.0[usize::from(lid)] & SupportedLogPages::SUPPORTED {
                    0 => reply.await.refused(Status::INVALID_LOG_PAGE),
                    _ => reply.await.ok(),
                };
            }
        }
    });
}

#[test]
fn attached_hosts_hear_of_created_resized_and_deleted_volumes() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        set_feature(&attached, 0x0b, 1 << 8).await.ok();
        let next_event = async || {
            let (_, event) = attached
                .admin
                .begin(Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST));
            event.await.expect("an answer").ok().result
        };
        let changed =
            async || ChangedNamespaces::decode(&log(&attached, 0x04, 4096).await).expect("a page");
        // What happened before the host asked is not news to it, but the page has it.
        let _ = changed().await;
        lab.create_volume("more", 1 << 20, 4096).await;
        assert_eq!(next_event().await, 0x0004_0002);
        assert_eq!(changed().await, ChangedNamespaces::List(vec![2]));
        lab.engine
            .resize_volume("vol0", 2 * VOLUME_BYTES)
            .await
            .expect("a resize");
        assert_eq!(next_event().await, 0x0004_0002);
        lab.engine.delete_volume("more").await.expect("a deletion");
        assert_eq!(changed().await, ChangedNamespaces::List(vec![1, 2]));
        let page = identify(&attached, 0x00, 1).await.ok().data;
        assert_eq!(
            IdentifyNamespace::decode(&page).expect("one").nsze,
            2 * VOLUME_BYTES / 4096
        );
        let list = identify(&attached, 0x02, 0).await.ok().data;
        assert_eq!(decode_namespace_list(&list), Some(vec![1]));
    });
}

#[test]
fn features_answer_with_current_default_saved_and_supported() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let known = FeatureEffects::decode(&log(&attached, 0x12, 1024).await).expect("a page");
        for fid in 0..=u8::MAX {
            let known = known.0[usize::from(fid)] & FeatureEffects::SUPPORTED != 0;
            for select in 0..4 {
                let get = GetFeatures {
                    fid,
                    select,
                    // Host identifiers of 16 bytes; nothing to the others.
                    cdw11: u32::from(fid == 0x81),
                    nsid: 1,
                };
                let reply = attached.admin.call_in(get.to_sqe(), 4096).await;
                match known {
                    true => reply.ok(),
                    false => reply.refused(Status::INVALID_FIELD),
                };
            }
            get_feature(&attached, fid, 4)
                .await
                .refused(Status::INVALID_FIELD);
            if !known {
                set_feature(&attached, fid, 0)
                    .await
                    .refused(Status::INVALID_FIELD);
            }
        }
        for fid in [
            0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x0a, 0x0b, 0x0e, 0x0f, 0x16, 0x19, 0x80, 0x81,
            0x82, 0x83, 0x84,
        ] {
            assert_ne!(known.0[fid], 0, "feature {fid:02x}h");
        }
        assert_eq!(
            get_feature(&attached, 0x06, 0).await.ok().result,
            1,
            "write cache on"
        );
        set_feature(&attached, 0x06, 0).await.ok();
        assert_eq!(get_feature(&attached, 0x06, 0).await.ok().result, 0);
        assert_eq!(
            get_feature(&attached, 0x06, 1).await.ok().result,
            1,
            "the default"
        );
        assert_eq!(
            get_feature(&attached, 0x07, 0).await.ok().result,
            0x007f_007f
        );
        set_feature(&attached, 0x07, 0xffff)
            .await
            .refused(Status::INVALID_FIELD);
        assert_eq!(
            set_feature(&attached, 0x07, 0x01ff_01ff).await.ok().result,
            0x007f_007f
        );
        set_feature(&attached, 0x0b, 1 << 9)
            .await
            .refused(Status::INVALID_FIELD);
        for fid in [0x02, 0x07, 0x0e, 0x0f, 0x16, 0x81] {
            save_feature(&attached, fid, 1)
                .await
                .refused(Status::FEATURE_NOT_SAVEABLE);
        }
        let host_id = GetFeatures {
            fid: 0x81,
            select: 0,
            cdw11: 1,
            nsid: 0,
        };
        let reply = attached.admin.call_in(host_id.to_sqe(), 16).await.ok();
        assert_eq!(reply.data, attached.host.id);
        set_feature(&attached, 0x81, 1)
            .await
            .refused(Status::COMMAND_SEQUENCE);
        let stamp = SetFeatures {
            fid: 0x0e,
            save: false,
            dwords: [0; 5],
            nsid: 0,
        };
        let time = 1_700_000_000_000u64.to_le_bytes().to_vec();
        attached.admin.call_out(stamp.to_sqe(), time).await.ok();
        let stamp = GetFeatures {
            fid: 0x0e,
            select: 0,
            cdw11: 0,
            nsid: 0,
        };
        let reply = attached.admin.call_in(stamp.to_sqe(), 8).await.ok();
        let stamp = nvme::features::Timestamp::decode(&reply.data).expect("a time");
        assert!(stamp.set_by_host && stamp.milliseconds >= 1_700_000_000_000);
        take_retry_delays(&attached).await;
    });
}

#[test]
fn what_a_host_saves_comes_back_with_its_next_controller_and_with_nobody_elses() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        // Write cache, asynchronous events, arbitration.
        let saved = [(0x06, 0), (0x0b, 0x1ff), (0x01, 3)];
        for (fid, value) in saved {
            assert_eq!(get_feature(&attached, fid, 3).await.ok().result & 1, 1);
            let default = get_feature(&attached, fid, 1).await.ok().result;
            assert_eq!(
                get_feature(&attached, fid, 2).await.ok().result,
                default,
                "nothing was saved"
            );
            save_feature(&attached, fid, value).await.ok();
            // What is set later and not saved is gone with the controller.
            set_feature(&attached, fid, 1).await.ok();
            assert_eq!(get_feature(&attached, fid, 0).await.ok().result, 1);
            let saved = get_feature(&attached, fid, 2).await.ok().result;
            assert_eq!(saved, u64::from(value));
        }
        // The boot progress marker is always kept.
        set_feature(&attached, 0x80, 7).await.ok();
        let again = lab.attach(1).await;
        attached.set_property(properties::CC, 0).await.ok();
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        for controller in [&again, &attached] {
            for (fid, value) in saved.into_iter().chain([(0x80, 7)]) {
                let current = get_feature(controller, fid, 0).await.ok().result;
                assert_eq!(current, u64::from(value), "feature {fid:02x}h");
            }
        }
        let other = lab.attach(2).await;
        for fid in [0x06, 0x0b, 0x01, 0x80] {
            let default = get_feature(&other, fid, 1).await.ok().result;
            for select in [0, 2] {
                let value = get_feature(&other, fid, select).await.ok().result;
                assert_eq!(value, default, "feature {fid:02x}h of another host");
            }
        }
        // Anybody may look for subsystems, and leaves nothing behind.
        save_feature(&lab.discover(3).await, 0x0b, 1 << 31)
            .await
            .refused(Status::FEATURE_NOT_SAVEABLE);
    });
}

/// Host Behavior Support with ACRE: the host understands retry delays.
async fn take_retry_delays(host: &Attached) {
    let behavior = SetFeatures {
        fid: 0x16,
        save: false,
        dwords: [0; 5],
        nsid: 0,
    };
    let mut data = vec![0; 512];
    data[0] = 1;
    host.admin.call_out(behavior.to_sqe(), data).await.ok();
}

#[test]
fn a_host_that_can_wait_is_told_for_how_long() {
    story(async |lab| {
        let (patient, other) = (lab.attach(1).await, lab.attach(2).await);
        let page = identify(&patient, 0x01, 0).await.ok().data;
        let page = IdentifyController::decode(&page).expect("a page");
        assert_eq!((page.crdt1, page.crdt2, page.crdt3), (5, 20, 50));
        take_retry_delays(&patient).await;
        let queues = [
            lab.io_queue(&patient, 1).await,
            lab.io_queue(&other, 1).await,
        ];
        lab.engine.shutdown().await.expect("a clean end");
        let mut delays = Vec::new();
        for queue in &queues {
            let reply = queue.call_out(write(1, 0, 1), vec![1; 4096]).await;
            assert_eq!(reply.code(), Status::NAMESPACE_NOT_READY);
            assert!(!reply.status.is_dnr());
            delays.push(reply.status.retry_delay());
        }
        assert_eq!(delays, [3, 0]);
    });
}

#[test]
fn discovery_tells_where_the_subsystem_is() {
    story(async |lab| {
        let attached = lab.discover(1).await;
        let page = identify(&attached, 0x01, 0).await.ok().data;
        let page = IdentifyController::decode(&page).expect("a page");
        assert_eq!(page.cntrltype, 2);
        let all = log(&attached, 0x70, 8192).await;
        let header = DiscoveryHeader::decode(&all).expect("a header");
        // The discovery service itself and the subsystem, at both listeners.
        assert_eq!(header.records, 4);
        for at in [1024, 2048] {
            let entry = DiscoveryEntry::decode(&all[at..]).expect("an entry");
            assert_eq!(entry.subtype, DiscoverySubtype::CurrentDiscovery);
            assert_eq!(entry.subnqn, lab.target.discovery.nqn);
        }
        let entry = DiscoveryEntry::decode(&all[4096..]).expect("an entry");
        assert_eq!(
            (entry.transport, entry.traddr.as_str(), entry.treq),
            (nvme::log::Transport::TCP, "192.0.2.2", 4)
        );
        let entry = DiscoveryEntry::decode(&all[3072..]).expect("an entry");
        assert_eq!(entry.transport, nvme::log::Transport::ROCE_V2);
        assert_eq!(
            (entry.traddr.as_str(), entry.trsvcid.as_str()),
            ("192.0.2.2", "4420")
        );
        assert_eq!(entry.subnqn.as_str(), subsystem::DEFAULT_SUBSYSTEM_NQN);
        // libnvme 1.16 reads entries by offset and the header again.
        let piece = log_page(0x70, 1024, 1024).to_sqe();
        assert_eq!(
            attached.admin.call_in(piece, 1024).await.ok().data,
            all[1024..2048]
        );

        set_feature(&attached, 0x0b, 1 << 31).await.ok();
        let (_, event) = attached
            .admin
            .begin(Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST));
        let other = "nqn.2026-11.x:other".parse().expect("a name");
        let other = SubsystemConfig::new(other, "1".into());
        lab.target
            .change(|catalog| catalog.create_subsystem(other))
            .await
            .expect("changed");
        assert_eq!(event.await.expect("an answer").ok().result, 0x0070_f002);
        let again = DiscoveryHeader::decode(&log(&attached, 0x70, 1024).await).expect("a header");
        assert!(again.generation > header.generation);
    });
}

#[test]
fn a_host_finds_the_discovery_subsystem_under_the_name_that_it_used() {
    story(async |lab| {
        for name in [nvme::nqn::DISCOVERY, lab.target.discovery.nqn.as_str()] {
            let attached = lab.attach_to(1, name).await;
            let page = identify(&attached, 0x01, 0).await.ok().data;
            let page = IdentifyController::decode(&page).expect("a page");
            assert_eq!(page.subnqn, name);
            attached.admin.close_from_host();
        }
    });
}

#[test]
fn a_discovery_controller_answers_nothing_but_discovery() {
    story(async |lab| {
        let attached = lab.discover(1).await;
        for cns in [0x00, 0x02, 0x03, 0x06] {
            identify(&attached, cns, 1)
                .await
                .refused(Status::INVALID_FIELD);
        }
        for lid in [0x02, 0x04, 0x05] {
            let command = log_page(lid, 0, 512).to_sqe();
            attached
                .admin
                .call_in(command, 512)
                .await
                .refused(Status::INVALID_LOG_PAGE);
        }
        set_feature(&attached, 0x06, 0)
            .await
            .refused(Status::INVALID_FIELD);
        assert!(
            lab.target.attached_hosts().is_empty(),
            "discovery is no attachment"
        );
    });
}
