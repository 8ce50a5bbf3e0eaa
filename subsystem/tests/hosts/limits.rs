//! The bounds that are announced hold, and what goes beyond them is refused with the right status.

use std::time::Duration;

use fabric::Transport;
use nvme::admin::{GetFeatures, GetLogPage, Identify, SetFeatures};
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, InvalidParameter};
use nvme::identify::IdentifyController;
use nvme::io::{CopyFormat, IoCommand, LbaRange};
use nvme::lba_status::GetLbaStatus;
use nvme::reservation::{
    AcquireAction, RegisterAction, ReleaseAction, ReservationCommand, ReservationType,
};
use nvme::{SglDescriptor, Sqe, Status, properties};

use crate::harness::{Attached, Lab, Reply, TestHost, connect, connect_data, read, story, write};

fn connect_command(qid: u16, sqsize: u16) -> ConnectCommand {
    ConnectCommand {
        record_format: 0,
        qid,
        sqsize,
        attributes: 0,
        kato_ms: 0,
    }
}

/// Asks for an I/O queue with so many entries.
async fn open(lab: &Lab, attached: &Attached, qid: u16, entries: u32) -> Reply {
    let sqsize = u16::try_from(entries - 1).expect("zero based");
    // Over RDMA the transport knows its depth before the target does.
    let queue = lab.queue(qid, lab_depth(lab.transport));
    let data = connect_data(&attached.host, attached.cntlid);
    connect(&queue, connect_command(qid, sqsize), data).await
}

fn lab_depth(transport: Transport) -> u16 {
    match transport {
        Transport::Rdma => 256,
        Transport::Tcp => 1024,
    }
}

fn refused_for(reply: Reply, parameter: InvalidParameter) {
    assert_eq!(reply.result, parameter.result());
    reply.refused(Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn there_are_1024_controllers_and_the_next_host_is_told_to_come_again() {
    story(async |lab| {
        let mut attached = Vec::new();
        for number in 0..1024u16 {
            let queue = lab.queue(0, 32);
            let host = TestHost::new((number % 251) as u8);
            connect(
                &queue,
                connect_command(0, 31),
                connect_data(&host, CNTLID_DYNAMIC),
            )
            .await
            .ok();
            attached.push(queue);
        }
        let late = lab.queue(0, 32);
        let host = TestHost::new(255);
        let ask = async || {
            let data = connect_data(&host, CNTLID_DYNAMIC);
            connect(&late, connect_command(0, 31), data).await
        };
        assert_eq!(ask().await.status, Status::CONNECT_CONTROLLER_BUSY);
        attached.pop().expect("one").close_from_host();
        lab.attached_hosts_are(1023).await;
        ask().await.ok();
    });
}

#[test]
fn a_controller_has_128_queues_as_deep_as_it_says() {
    for transport in [Transport::Tcp, Transport::Rdma] {
        story(async |mut lab| {
            lab.transport = transport;
            let attached = lab.attach(1).await;
            let get = GetFeatures {
                fid: 7,
                select: 0,
                cdw11: 0,
                nsid: 0,
            };
            let granted = attached.admin.call(get.to_sqe()).await.ok().result;
            assert_eq!(granted, 0x007f_007f, "128 of each kind");
            let capabilities = attached.property(properties::CAP, true).await.ok().result;
            let entries = (capabilities & 0xffff) as u32 + 1;
            assert_eq!(entries, u32::from(lab_depth(transport)));
            refused_for(
                open(&lab, &attached, 1, entries + 1).await,
                InvalidParameter::command(44),
            );
            for qid in 1..=128 {
                open(&lab, &attached, qid, entries).await.ok();
            }
            refused_for(
                open(&lab, &attached, 129, entries).await,
                InvalidParameter::command(42),
            );
            assert_eq!(lab.target.attached_hosts()[0].queues, 128);
        });
    }
}

#[test]
fn a_transfer_is_as_long_as_mdts_says_and_no_longer() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let identify = Identify {
            cns: 1,
            cntid: 0,
            nsid: 0,
            csi: 0,
            specific_id: 0,
        };
        let page = attached.admin.call_in(identify.to_sqe(), 4096).await.ok();
        let page = IdentifyController::decode(&page.data).expect("a page");
        let most = 4096usize << page.mdts;
        assert_eq!(most, 1 << 20);
        let blocks = (most / 4096) as u32;
        let queue = lab.io_queue(&attached, 1).await;
        queue
            .call_out(write(1, 0, blocks), vec![3; most])
            .await
            .ok();
        let data = queue.call_in(read(1, 0, blocks), most).await.ok().data;
        assert_eq!(data, vec![3; most]);
        let beyond = most + 4096;
        queue
            .call_out(write(1, 0, blocks + 1), vec![3; beyond])
            .await
            .refused(Status::INVALID_FIELD);
        queue
            .call_in(read(1, 0, blocks + 1), beyond)
            .await
            .refused(Status::INVALID_FIELD);
        lab.still_serves(&queue).await;
    });
}

/// Every admin command that moves data, but those for namespaces, which subsystems do not offer by default.
fn admin_commands_with_data() -> Vec<(&'static str, Sqe)> {
    let set = |fid| SetFeatures {
        fid,
        save: false,
        dwords: [0; 5],
        nsid: 0,
    };
    let identify = Identify {
        cns: 1,
        cntid: 0,
        nsid: 0,
        csi: 0,
        specific_id: 0,
    };
    let log = GetLogPage {
        lid: 2,
        lsp: 0,
        retain_event: false,
        length: 512,
        offset: 0,
        offset_is_index: false,
        nsid: u32::MAX,
        csi: 0,
    };
    let timestamp = GetFeatures {
        fid: 0x0e,
        select: 0,
        cdw11: 0,
        nsid: 0,
    };
    let lba_status = GetLbaStatus {
        nsid: 1,
        slba: 0,
        blocks: 0,
        length: 4096,
        action: 0x11,
    };
    vec![
        ("Identify", identify.to_sqe()),
        ("Get Log Page", log.to_sqe()),
        ("Get Features, Timestamp", timestamp.to_sqe()),
        ("Set Features, Timestamp", set(0x0e).to_sqe()),
        ("Set Features, Host Behavior", set(0x16).to_sqe()),
        ("Get LBA Status", lba_status.to_sqe()),
    ]
}

/// Every I/O command that moves data.
fn io_commands_with_data() -> Vec<(&'static str, Sqe)> {
    let range = LbaRange { slba: 0, blocks: 1 };
    let compare = IoCommand::Compare { nsid: 1, range };
    let trim = IoCommand::DatasetManagement {
        nsid: 1,
        ranges: 1,
        deallocate: true,
    };
    let copy = IoCommand::Copy {
        nsid: 1,
        slba: 0,
        ranges: 1,
        format: CopyFormat::SameNamespace,
        fua: false,
    };
    let register = ReservationCommand::Register {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_key: false,
        persist: None,
    };
    let acquire = ReservationCommand::Acquire {
        nsid: 1,
        action: AcquireAction::Acquire,
        kind: ReservationType::WriteExclusive,
    };
    let release = ReservationCommand::Release {
        nsid: 1,
        action: ReleaseAction::Release,
        kind: 1,
    };
    let report = ReservationCommand::Report {
        nsid: 1,
        length: 64,
        extended: true,
    };
    vec![
        ("Read", read(1, 0, 1)),
        ("Write", write(1, 0, 1)),
        ("Compare", compare.to_sqe()),
        ("Dataset Management", trim.to_sqe()),
        ("Copy", copy.to_sqe()),
        ("Reservation Register", register.to_sqe()),
        ("Reservation Acquire", acquire.to_sqe()),
        ("Reservation Release", release.to_sqe()),
        ("Reservation Report", report.to_sqe()),
    ]
}

#[test]
fn every_command_whose_descriptor_names_more_than_a_transfer_is_refused_before_data_moves() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let keyed = |length| SglDescriptor::Keyed {
            address: 0x1000,
            length,
            key: 7,
            invalidate: false,
        };
        let transport = |length| SglDescriptor::Transport { length };
        let too_long = [
            transport(u32::MAX),
            transport((1 << 20) + 1),
            keyed(0xff_ffff),
            keyed((1 << 20) + 1),
        ];
        let on_admin = admin_commands_with_data().into_iter();
        let on_io = io_commands_with_data().into_iter();
        let all = on_admin
            .map(|command| (&attached.admin, command))
            .chain(on_io.map(|command| (&queue, command)));
        let mut cid = 40_000;
        for (at, (name, mut sqe)) in all {
            for sgl in too_long {
                cid += 1;
                sqe.set_cid(cid);
                sqe.set_sgl(&sgl);
                // Whoever asks this host for data waits for ever.
                let reply = at.send(sqe, Vec::new(), true);
                let reply = reactor::timeout(Duration::from_secs(60), reply).await;
                let reply = reply.unwrap_or_else(|_| panic!("{name}, {sgl:?}: no answer"));
                let reply = reply.expect("the queue lives");
                assert_eq!(
                    reply.status.code(),
                    Status::SGL_LENGTH_INVALID,
                    "{name}, {sgl:?}"
                );
                assert!(reply.status.is_dnr(), "{name}, {sgl:?}");
            }
        }
        lab.still_serves(&queue).await;
        lab.all_buffers_are_back().await;
    });
}
