//! Wrong fields, wrong order and foreign objects, feature by feature: what is refused says why, is refused for good,
//! changes nothing, and tells nothing about what the host may not see.
//!
//! Where else misuse is told: the table in `tests/BAD_INPUTS.md` has the test of each feature.

use std::collections::BTreeSet;

use nvme::admin::{GetFeatures, NamespaceAttachment, NamespaceManagement, SetFeatures};
use nvme::ana::AnaLog;
use nvme::identify::encode_controller_list;
use nvme::io::{IoCommand, LbaRange};
use nvme::lba_status::{GetLbaStatus, LbaStatusAction};
use nvme::reservation::ReservationCommand;
use nvme::{Sqe, Status};

use crate::admin::{identify, log};
use crate::harness::{Attached, FakeQueue, Lab, Reply, TestHost, read, story, write};
use crate::subsystems::name;

/// Not specific to a namespace, as the status code says it.
const NOT_OF_A_NAMESPACE: Status = Status::from_bits(0x10f);

async fn set(host: &Attached, fid: u8, nsid: u32, value: u32, save: bool) -> Reply {
    let command = SetFeatures {
        fid,
        save,
        dwords: [value, 0, 0, 0, 0],
        nsid,
    };
    host.admin.call(command.to_sqe()).await
}

async fn get(host: &Attached, fid: u8, room: usize) -> (u64, Vec<u8>) {
    let command = GetFeatures {
        fid,
        select: 0,
        cdw11: u32::from(fid == 0x81),
        nsid: 1,
    };
    let reply = host.admin.call_in(command.to_sqe(), room).await.ok();
    (reply.result, reply.data)
}

#[test]
fn a_feature_that_is_set_wrongly_stays_as_it_is() {
    story(async |lab| {
        let host = lab.attach(1).await;
        let _queue = lab.io_queue(&host, 1).await;
        // The time goes on by itself.
        let kept = [
            0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x0a, 0x0b, 0x0f, 0x16, 0x19, 0x80, 0x81, 0x82,
            0x83, 0x84,
        ];
        let mut before = Vec::new();
        for fid in kept {
            before.push(get(&host, fid, 512).await);
        }
        for (fid, nsid, value, save, status) in [
            // A power state that there is not; a second sensor; DULBE, which no namespace offers.
            (0x02, 0, 1, false, Status::INVALID_FIELD),
            (0x04, 0, 1 << 16, false, Status::INVALID_FIELD),
            (0x04, 0, 2 << 20, false, Status::INVALID_FIELD),
            (0x05, 0, 1 << 16, false, Status::INVALID_FIELD),
            // Queues are asked for before the first one is there, and not 65,536 of them.
            (0x07, 0, 3, false, Status::COMMAND_SEQUENCE),
            (0x07, 0, 0xffff_0000, false, Status::INVALID_FIELD),
            // Events that there are not.
            (0x0b, 0, 1 << 31, false, Status::INVALID_FIELD),
            // There is one combination of command sets.
            (0x19, 0, 1, false, Status::COMMAND_SET_COMBINATION_REJECTED),
            // A host has its identifier from Connect on.
            (0x81, 0, 1, false, Status::COMMAND_SEQUENCE),
            (0x82, 1, 1 << 5, false, Status::INVALID_FIELD),
            (0x83, 1, 2, false, Status::INVALID_FIELD),
            (0x84, 1, 5, false, Status::INVALID_FIELD),
            // Of a namespace that does not exist, or with no namespace at all.
            (0x82, 9, 2, false, Status::INVALID_NAMESPACE),
            (0x83, 9, 1, false, Status::INVALID_NAMESPACE),
            (0x84, 0, 1, false, Status::INVALID_NAMESPACE),
            (0x84, u32::MAX, 1, false, Status::INVALID_NAMESPACE),
            (0x06, 1, 0, false, NOT_OF_A_NAMESPACE),
            (0x0f, 1, 5000, false, NOT_OF_A_NAMESPACE),
            // What is not kept cannot be saved.
            (0x07, 0, 3, true, Status::FEATURE_NOT_SAVEABLE),
            (0x0f, 0, 5000, true, Status::FEATURE_NOT_SAVEABLE),
            (0x16, 0, 0, true, Status::FEATURE_NOT_SAVEABLE),
            (0x84, 1, 1, true, Status::FEATURE_NOT_SAVEABLE),
            // LBA range types, interrupts and what nobody has.
            (0x03, 1, 0, false, Status::INVALID_FIELD),
            (0x08, 0, 0, false, Status::INVALID_FIELD),
            (0xc0, 0, 0, false, Status::INVALID_FIELD),
        ] {
            let reply = set(&host, fid, nsid, value, save).await;
            assert_eq!(
                reply.code(),
                status,
                "feature {fid:02x}h, {value:#x}, NSID {nsid}"
            );
            assert!(reply.status.is_dnr());
        }
        // Data that are too short, or say what cannot be.
        let with_data = async |fid, data: Vec<u8>| {
            let command = SetFeatures {
                fid,
                save: false,
                dwords: [0; 5],
                nsid: 0,
            };
            host.admin.call_out(command.to_sqe(), data).await
        };
        for fid in [0x0e, 0x16] {
            with_data(fid, vec![0; 4])
                .await
                .refused(Status::SGL_LENGTH_INVALID);
        }
        with_data(0x16, vec![2; 512])
            .await
            .refused(Status::INVALID_FIELD);
        for (fid, before) in kept.into_iter().zip(before) {
            assert_eq!(get(&host, fid, 512).await, before, "feature {fid:02x}h");
        }
        lab.all_buffers_are_back().await;
    });
}

/// Every command that names a namespace, as this host meets it with that number.
async fn every_answer(lab: &Lab, host: &Attached, queue: &FakeQueue, nsid: u32) -> Vec<Status> {
    let range = LbaRange { slba: 0, blocks: 1 };
    let mut answers = vec![
        queue.call_in(read(nsid, 0, 1), 4096).await,
        queue.call_out(write(nsid, 0, 1), vec![1; 4096]).await,
        queue.call(IoCommand::Flush { nsid }.to_sqe()).await,
        queue.call(IoCommand::Verify { nsid, range }.to_sqe()).await,
        queue
            .call(IoCommand::WriteUncorrectable { nsid, range }.to_sqe())
            .await,
        queue
            .call_out(IoCommand::Compare { nsid, range }.to_sqe(), vec![1; 4096])
            .await,
        // A range far beyond every end: who may not see the namespace does not learn where it ends.
        queue.call_in(read(nsid, 1 << 40, 1), 4096).await,
    ];
    let report = ReservationCommand::Report {
        nsid,
        length: 64,
        extended: true,
    };
    answers.push(queue.call_in(report.to_sqe(), 64).await);
    for cns in [0x03, 0x05, 0x08, 0x12] {
        answers.push(identify(host, cns, nsid).await);
    }
    let status = GetLbaStatus {
        nsid,
        slba: 0,
        blocks: 0,
        action: LbaStatusAction::Known.as_u8(),
        length: 64,
    };
    answers.push(host.admin.call_in(status.to_sqe(), 64).await);
    for fid in [0x82, 0x83, 0x84] {
        let get = GetFeatures {
            fid,
            select: 0,
            cdw11: 0,
            nsid,
        };
        answers.push(host.admin.call(get.to_sqe()).await);
    }
    let delete = NamespaceManagement::Delete { nsid };
    answers.push(host.admin.call(delete.to_sqe()).await);
    let attach = NamespaceAttachment {
        nsid,
        select: NamespaceAttachment::ATTACH,
    };
    let list = encode_controller_list(&[host.cntlid]).to_vec();
    answers.push(host.admin.call_out(attach.to_sqe(), list).await);
    let identified = identify(host, 0x00, nsid).await;
    assert_eq!(identified.ok().data, vec![0; 4096]);
    lab.all_buffers_are_back().await;
    answers.into_iter().map(|reply| reply.status).collect()
}

#[test]
fn a_namespace_that_a_host_may_not_see_answers_as_one_that_does_not_exist() {
    story(async |lab| {
        lab.create_volume("hidden", 1 << 20, 4096).await;
        lab.change(|catalog| {
            let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
            let only = BTreeSet::from([TestHost::new(1).nqn]);
            catalog.namespace_mut(&nqn, 2)?.hosts = Some(only);
            Ok(())
        })
        .await;
        let host = lab.attach(2).await;
        let queue = lab.io_queue(&host, 1).await;
        let absent = every_answer(&lab, &host, &queue, 3).await;
        let hidden = every_answer(&lab, &host, &queue, 2).await;
        assert_eq!(hidden, absent);
        for status in absent {
            let expected = [Status::INVALID_NAMESPACE, Status::INVALID_OPCODE];
            assert!(
                expected.contains(&status.code()) && status.is_dnr(),
                "{status}"
            );
        }
        // Nor does a log name it.
        lab.change(|catalog| {
            let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
            catalog.namespace_mut(&nqn, 2)?.shared = false;
            Ok(())
        })
        .await;
        assert_eq!(
            log(&host, 0x04, 4096).await,
            vec![0; 4096],
            "changed namespaces"
        );
        let paths = AnaLog::decode(&log(&host, 0x0c, 4096).await).expect("a page");
        let shown: Vec<u32> = paths.groups.iter().flat_map(|g| g.nsids.clone()).collect();
        assert_eq!(shown, [1]);
    });
}

#[test]
fn commands_before_the_controller_is_enabled_are_out_of_sequence() {
    story(async |lab| {
        let host = lab.connect_with(&TestHost::new(1), 0).await;
        let get = GetFeatures {
            fid: 6,
            select: 0,
            cdw11: 0,
            nsid: 0,
        };
        let delete = NamespaceManagement::Delete { nsid: 1 };
        let early: [Sqe; 3] = [
            get.to_sqe(),
            delete.to_sqe(),
            Sqe::new(nvme::admin::OPCODE_ASYNC_EVENT_REQUEST),
        ];
        for sqe in early {
            host.admin.call(sqe).await.refused(Status::COMMAND_SEQUENCE);
        }
        identify(&host, 1, 0)
            .await
            .refused(Status::COMMAND_SEQUENCE);
        assert_eq!(lab.engine.volumes().len(), 1);
    });
}
