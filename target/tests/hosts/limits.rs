//! The bounds that are announced hold, and what goes beyond them is refused with the right status.

use fabric::Transport;
use nvme::Status;
use nvme::admin::{GetFeatures, Identify};
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, InvalidParameter};
use nvme::identify::IdentifyController;
use nvme::properties;

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
