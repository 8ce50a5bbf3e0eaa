//! Connect: who gets in, and what those who do not are told.

use fabric::Transport;
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, InvalidParameter};
use nvme::{Status, properties};
use subsystem::limits::Limits;

use crate::harness::{CC_ENABLE, Lab, Reply, TestHost, connect, connect_data, story, story_with};

const ADMIN: ConnectCommand = ConnectCommand {
    record_format: 0,
    qid: 0,
    sqsize: 31,
    attributes: 0,
    kato_ms: 0,
};
const IO: ConnectCommand = ConnectCommand {
    record_format: 0,
    qid: 1,
    sqsize: 127,
    attributes: 0,
    kato_ms: 0,
};

#[track_caller]
fn points_at(reply: Reply, parameter: InvalidParameter) {
    assert_eq!(reply.result, parameter.result());
    reply.refused(Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn a_host_connects_enables_its_controller_and_gets_its_queues() {
    story(async |lab| {
        let attached = lab.connect_with(&TestHost::new(1), 5000).await;
        assert_ne!(attached.cntlid, 0);
        let capabilities = attached.property(properties::CAP, true).await.ok().result;
        assert_eq!(
            capabilities >> 37 & 0xff,
            0x41,
            "the NVM command set, and the list of all"
        );
        assert_eq!(
            attached.property(properties::CSTS, false).await.ok().result,
            0
        );
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        assert_eq!(
            attached.property(properties::CSTS, false).await.ok().result,
            1
        );
        assert_eq!(
            attached.property(properties::VS, false).await.ok().result,
            0x10400
        );
        let _queues = [
            lab.io_queue(&attached, 1).await,
            lab.io_queue(&attached, 2).await,
        ];
        let hosts = lab.target.attached_hosts();
        assert_eq!(hosts.len(), 1);
        assert_eq!(
            (hosts[0].queues, hosts[0].address.as_str()),
            (2, "192.0.2.7")
        );
        assert_eq!(hosts[0].hostnqn, attached.host.nqn.to_string());
    });
}

#[test]
fn controller_identifiers_rotate() {
    story(async |lab| {
        let mut seen = Vec::new();
        for number in 0..20 {
            let attached = lab.attach(number).await;
            assert!(!seen.contains(&attached.cntlid), "used again at once");
            seen.push(attached.cntlid);
            attached.admin.close_from_host();
            lab.nobody_is_attached().await;
        }
    });
}

#[test]
fn wrong_fields_of_the_command_are_named() {
    story(async |lab| {
        let host = TestHost::new(1);
        let attempt = async |command: ConnectCommand, qid, depth| {
            connect(
                &lab.queue(qid, depth),
                command,
                connect_data(&host, CNTLID_DYNAMIC),
            )
            .await
        };
        attempt(
            ConnectCommand {
                record_format: 1,
                ..ADMIN
            },
            0,
            32,
        )
        .await
        .refused(Status::CONNECT_INCOMPATIBLE_FORMAT);
        for sqsize in [0, 32, 0xffff] {
            let reply = attempt(ConnectCommand { sqsize, ..ADMIN }, 0, 32).await;
            points_at(reply, InvalidParameter::command(44));
        }
        // The transport was told another queue, or one that there cannot be.
        for (said, told) in [(0, 1), (1, 0), (129, 129), (0xffff, 0xffff)] {
            let reply = attempt(ConnectCommand { qid: said, ..ADMIN }, told, 32).await;
            points_at(reply, InvalidParameter::command(42));
        }
        lab.nobody_is_attached().await;
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn wrong_fields_of_the_data_are_named() {
    story(async |lab| {
        let host = TestHost::new(1);
        let with = |change: &dyn Fn(&mut [u8; 1024])| {
            let mut bytes = connect_data(&host, CNTLID_DYNAMIC).encode();
            change(&mut bytes);
            bytes.to_vec()
        };
        let cases: [(u16, Vec<u8>); 6] = [
            (16, with(&|b| b[16..18].fill(0))),
            (256, with(&|b| b[256..512].fill(b'n'))),
            (512, with(&|b| b[512..768].fill(b'n'))),
            (256, with(&|b| b[256] = b'x')),
            (512, with(&|b| b[512] = 0)),
            (256, with(&|b| b[256..512].copy_from_slice(&other_nqn()))),
        ];
        for (offset, data) in cases {
            let reply = lab.queue(0, 32).call_out(ADMIN.to_sqe(), data).await;
            points_at(reply, InvalidParameter::data(offset));
        }
        for len in [0, 1023, 1025, 4096] {
            let reply = lab
                .queue(0, 32)
                .call_out(ADMIN.to_sqe(), vec![0; len])
                .await;
            reply.refused(Status::SGL_LENGTH_INVALID);
        }
        lab.nobody_is_attached().await;
        lab.all_buffers_are_back().await;
    });
}

fn other_nqn() -> [u8; 256] {
    "nqn.2026-11.dev.onefold:other"
        .parse::<nvme::Nqn>()
        .expect("a name")
        .to_field()
}

#[test]
fn an_io_queue_joins_only_its_own_hosts_enabled_controller() {
    story(async |lab| {
        let early = lab.connect_with(&TestHost::new(1), 0).await;
        lab.connect_io(&lab.queue(1, 128), &early, 1)
            .await
            .refused(Status::COMMAND_SEQUENCE);
        early.set_property(properties::CC, CC_ENABLE).await.ok();
        let queue = lab.io_queue(&early, 1).await;
        lab.connect_io(&lab.queue(1, 128), &early, 1)
            .await
            .refused(Status::COMMAND_SEQUENCE);

        let join = async |host: &TestHost, cntlid| {
            connect(&lab.queue(1, 128), IO, connect_data(host, cntlid)).await
        };
        points_at(
            join(&early.host, early.cntlid ^ 0x4000).await,
            InvalidParameter::data(16),
        );
        points_at(
            join(&TestHost::new(2), early.cntlid).await,
            InvalidParameter::data(512),
        );
        let other_id = TestHost {
            id: [9; 16],
            ..early.host.clone()
        };
        points_at(
            join(&other_id, early.cntlid).await,
            InvalidParameter::data(0),
        );
        lab.still_serves(&queue).await;
    });
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    story(async |lab| {
        let discovery = lab.discover(1).await;
        let mut data = connect_data(&discovery.host, discovery.cntlid);
        data.subsystem = nvme::nqn::DISCOVERY.parse().expect("a name");
        points_at(
            connect(&lab.queue(1, 128), IO, data).await,
            InvalidParameter::command(42),
        );
    });
}

#[test]
fn over_tcp_a_queue_is_what_its_connect_says_it_is() {
    story(async |mut lab| {
        lab.transport = Transport::Tcp;
        let attached = lab.attach(1).await;
        for (qid, sqsize) in [(1, 1023), (2, 1)] {
            let queue = lab.queue(qid, 0);
            let command = ConnectCommand { qid, sqsize, ..IO };
            connect(
                &queue,
                command,
                connect_data(&attached.host, attached.cntlid),
            )
            .await
            .ok();
            assert_eq!(queue.joined_as(), Some((qid, sqsize + 1)));
            // What it holds counts with the other queues of its host.
            assert_eq!(queue.host(), Some(attached.host.nqn.to_string()));
            assert_eq!(attached.admin.host(), queue.host());
        }
        let refused = lab.queue(3, 0);
        for sqsize in [0, 1024, 0xffff] {
            let command = ConnectCommand {
                qid: 3,
                sqsize,
                ..IO
            };
            let reply = connect(
                &refused,
                command,
                connect_data(&attached.host, attached.cntlid),
            )
            .await;
            points_at(reply, InvalidParameter::command(44));
        }
        assert_eq!((refused.joined_as(), refused.host()), (None, None));
    });
}

#[test]
fn a_host_does_not_mix_transports_in_one_association() {
    story(async |mut lab| {
        let attached = lab.attach(1).await;
        lab.transport = Transport::Tcp;
        let reply = lab.connect_io(&lab.queue(1, 128), &attached, 1).await;
        points_at(reply, InvalidParameter::data(16));
        lab.transport = Transport::Rdma;
        lab.io_queue(&attached, 1).await;
    });
}

#[test]
fn too_many_controllers_are_told_to_come_again() {
    story_with(
        Limits {
            controllers: 2,
            ..Limits::default()
        },
        async |lab: Lab| {
            let (first, _second) = (lab.attach(1).await, lab.attach(2).await);
            let host = TestHost::new(3);
            let queue = lab.queue(0, 32);
            let reply = connect(&queue, ADMIN, connect_data(&host, CNTLID_DYNAMIC)).await;
            assert_eq!(
                reply.status,
                Status::CONNECT_CONTROLLER_BUSY,
                "and not for good"
            );
            first.admin.close_from_host();
            lab.attached_hosts_are(1).await;
            connect(&queue, ADMIN, connect_data(&host, CNTLID_DYNAMIC))
                .await
                .ok();
        },
    );
}

#[test]
fn more_queues_than_granted_do_not_connect() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let asked = nvme::admin::SetFeatures {
            fid: 7,
            save: false,
            dwords: [0x0001_0001, 0, 0, 0, 0],
            nsid: 0,
        };
        let granted = attached.admin.call(asked.to_sqe()).await.ok().result;
        assert_eq!(granted, 0x0001_0001);
        let _queue = lab.io_queue(&attached, 2).await;
        points_at(
            lab.connect_io(&lab.queue(3, 128), &attached, 3).await,
            InvalidParameter::command(42),
        );
    });
}

#[test]
fn a_target_that_stops_asks_hosts_to_come_again() {
    story(async |lab| {
        let queue = lab.queue(0, 32);
        lab.target.stop();
        let reply = connect(
            &queue,
            ADMIN,
            connect_data(&TestHost::new(1), CNTLID_DYNAMIC),
        )
        .await;
        assert_eq!(reply.status, Status::CONNECT_CONTROLLER_BUSY);
    });
}
