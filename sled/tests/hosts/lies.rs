//! Hosts that lie: each gets an error, harms nobody, and can go on.

use drives::BLOCK_BYTES;
use futures_util::future::join;
use initiator::Host;
use nvme::admin::{
    GetLogPage, Identify, OPCODE_ASYNC_EVENT_REQUEST, OPCODE_GET_FEATURES, OPCODE_KEEP_ALIVE,
    OPCODE_NAMESPACE_MANAGEMENT, SetFeatures,
};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::FabricsCommand;
use nvme::features::FeatureId;
use nvme::io::{DSM_RANGE_BYTES, DsmRange, IoCommand, LbaRange};
use nvme::log::{CommandEffects, LogPage};
use nvme::node_table::{OPCODE_NODE_TABLE_RECEIVE, OPCODE_NODE_TABLE_SEND};
use nvme::properties::{CAP, CC};
use nvme::reservation::{KEY_PAIR_BYTES, OPCODE_RESERVATION_REGISTER};
use nvme::{Nqn, Sqe, Status};

use crate::harness::{
    BLOCKS, Connect, Stage, assert_blocks, memory, story, submit, submit_from, submit_to,
    write_blocks,
};

fn read(slba: u64, blocks: u32) -> Sqe {
    let range = LbaRange { slba, blocks };
    let read = IoCommand::Read {
        nsid: 1,
        range,
        fua: false,
    };
    read.to_sqe()
}

fn write(slba: u64, blocks: u32) -> Sqe {
    let range = LbaRange { slba, blocks };
    let write = IoCommand::Write {
        nsid: 1,
        range,
        fua: false,
    };
    write.to_sqe()
}

#[test]
fn ranges_past_the_end_and_wrong_lengths_are_refused_while_another_host_works() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let honest = stage.attach(&Host::generate()).await.unwrap();
        let namespace = honest.namespace(1).await.unwrap();
        write_blocks(&namespace, 0, 16, 3, false).await.unwrap();
        let liar = stage.associate(&Host::generate(), 0).await;
        let lying = async {
            for (slba, blocks) in [
                (BLOCKS, 1),
                (BLOCKS - 1, 2),
                (u64::MAX, 1),
                (u64::MAX - 1, 2),
                (1 << 52, 1),
            ] {
                let len = blocks as usize * BLOCK_BYTES;
                let outside = Status::LBA_OUT_OF_RANGE;
                assert_eq!(
                    submit_from(&liar.io, read(slba, blocks), len).await,
                    outside,
                    "{slba:#x}"
                );
                assert_eq!(
                    submit_to(&liar.io, write(slba, blocks), len).await,
                    outside,
                    "{slba:#x}"
                );
            }
            let wrong = Status::SGL_LENGTH_INVALID;
            assert_eq!(submit_from(&liar.io, read(0, 2), 4096).await, wrong);
            assert_eq!(submit_from(&liar.io, read(0, 1), 8192).await, wrong);
            assert_eq!(submit_to(&liar.io, write(0, 2), 4096).await, wrong);
            assert_eq!(submit_to(&liar.io, write(0, 1), 512).await, wrong);
            // Longer than MDTS, though the drive has them.
            let longer = submit_from(&liar.io, read(0, 257), 257 * BLOCK_BYTES).await;
            assert_eq!(longer, Status::INVALID_FIELD);
        };
        let working = async {
            for _ in 0..32 {
                assert_blocks(&namespace, 0, 16, 3).await;
            }
        };
        join(lying, working).await;
        assert_blocks(&namespace, 0, 16, 3).await;
        honest.disconnect().await;
    });
}

#[test]
fn unknown_commands_and_namespaces_are_refused() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let host = stage.associate(&Host::generate(), 0).await;
        for opcode in [0x03, 0x04, 0x05, 0x0c, 0x19, 0x80, 0xff] {
            let status = submit(&host.io, Sqe::new(opcode).with_nsid(1)).await;
            assert_eq!(status, Status::INVALID_OPCODE, "I/O {opcode:#x}");
        }
        for opcode in [0x00, 0x10, 0x14, 0x80, 0xc1, OPCODE_NAMESPACE_MANAGEMENT] {
            let status = submit(&host.admin, Sqe::new(opcode)).await;
            assert_eq!(status, Status::INVALID_OPCODE, "admin {opcode:#x}");
        }
        for nsid in [0, 2, 1024, u32::MAX - 1] {
            let flush = IoCommand::Flush { nsid }.to_sqe();
            assert_eq!(submit(&host.io, flush).await, Status::INVALID_NAMESPACE);
            let read = read(0, 1).with_nsid(nsid);
            let status = submit_from(&host.io, read, BLOCK_BYTES).await;
            assert_eq!(status, Status::INVALID_NAMESPACE, "{nsid}");
            let register = Sqe::new(OPCODE_RESERVATION_REGISTER).with_nsid(nsid);
            let status = submit_to(&host.io, register, KEY_PAIR_BYTES).await;
            assert_eq!(status, Status::INVALID_NAMESPACE, "{nsid}");
        }
        let all = IoCommand::Flush { nsid: u32::MAX }.to_sqe();
        assert_eq!(submit(&host.io, all).await, Status::SUCCESS);
        // Admin commands do not belong on an I/O queue, nor I/O commands on the admin queue.
        let misplaced = submit(&host.io, Sqe::new(OPCODE_KEEP_ALIVE)).await;
        assert_eq!(misplaced, Status::INVALID_OPCODE);
        let property = FabricsCommand::property_get(CAP, true);
        assert_eq!(submit(&host.io, property).await, Status::INVALID_OPCODE);
    });
}

#[test]
fn the_commands_that_a_sled_announces_are_those_that_it_knows() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let attached = stage.attach(&Host::generate()).await.unwrap();
        let page = attached.log_page(LogPage::CommandEffects, 0, 4096);
        let effects = CommandEffects::decode(&page.await.unwrap()).unwrap();
        assert_ne!(effects.iocs[usize::from(OPCODE_NODE_TABLE_SEND)], 0);
        assert_ne!(effects.iocs[usize::from(OPCODE_NODE_TABLE_RECEIVE)], 0);
        let host = stage.associate(&Host::generate(), 0).await;
        for opcode in (0..=u8::MAX).filter(|opcode| *opcode != FABRICS_OPCODE) {
            let sqe = Sqe::new(opcode).with_nsid(1);
            let knows = submit(&host.io, sqe).await != Status::INVALID_OPCODE;
            let announced = effects.iocs[usize::from(opcode)] != 0;
            assert_eq!(announced, knows, "I/O command {opcode:02x}h");
            // That one is answered when there is an event.
            if opcode != OPCODE_ASYNC_EVENT_REQUEST {
                let knows = submit(&host.admin, sqe).await != Status::INVALID_OPCODE;
                let announced = effects.acs[usize::from(opcode)] != 0;
                assert_eq!(announced, knows, "admin command {opcode:02x}h");
            }
        }
        attached.disconnect().await;
    });
}

#[test]
fn ranges_of_dataset_management_are_all_checked_before_one_is_touched() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let honest = stage.attach(&Host::generate()).await.unwrap();
        let namespace = honest.namespace(1).await.unwrap();
        write_blocks(&namespace, 0, 1, 3, false).await.unwrap();
        let liar = stage.associate(&Host::generate(), 0).await;
        let trim = |ranges| {
            let trim = IoCommand::DatasetManagement {
                nsid: 1,
                ranges,
                deallocate: true,
            };
            trim.to_sqe()
        };
        for outside in [(BLOCKS, 1), (1 << 55, 1), (u64::MAX, u32::MAX)] {
            let mut buffer = initiator::buffer(4096).await;
            buffer.fill(0);
            let ranges = [(0, 1), outside];
            for (slot, (slba, blocks)) in buffer.chunks_mut(DSM_RANGE_BYTES).zip(ranges) {
                slot.copy_from_slice(&DsmRange { slba, blocks }.encode());
            }
            let data = fabric::HostData::ToTarget(buffer, 4096);
            let (cqe, _) = liar.io.submit(trim(2), data).await.unwrap();
            assert_eq!(cqe.status.code(), Status::LBA_OUT_OF_RANGE);
        }
        let short = submit_to(&liar.io, trim(256), DSM_RANGE_BYTES).await;
        assert_eq!(short, Status::SGL_LENGTH_INVALID);
        assert_blocks(&namespace, 0, 1, 3).await;
        honest.disconnect().await;
    });
}

#[test]
fn a_wrong_connect_is_refused_and_the_right_one_behind_it_is_not() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let host = Host::generate();
        let queue = stage.queue(0).await;
        let early = submit(&queue, Sqe::new(OPCODE_KEEP_ALIVE)).await;
        assert_eq!(early, Status::COMMAND_SEQUENCE);
        let right = Connect::of(&host);
        let wrong = [
            Connect {
                subsystem: Nqn::new("nqn.2026-11.org.example:other").unwrap(),
                ..Connect::of(&host)
            },
            Connect {
                cntlid: 1,
                ..Connect::of(&host)
            },
            Connect {
                sqsize: 0,
                ..Connect::of(&host)
            },
            Connect {
                sqsize: u16::MAX,
                ..Connect::of(&host)
            },
            Connect {
                qid: u16::MAX,
                ..Connect::of(&host)
            },
        ];
        for connect in wrong {
            let (status, result) = connect.send(&queue).await;
            assert_eq!(status.code(), Status::CONNECT_INVALID_PARAMETERS);
            assert_ne!(result, 0, "it names the field");
        }
        let format = Connect {
            record_format: 1,
            ..Connect::of(&host)
        };
        let (status, _) = format.send(&queue).await;
        assert_eq!(status.code(), Status::CONNECT_INCOMPATIBLE_FORMAT);
        assert_eq!(right.send(&queue).await.0, Status::SUCCESS);
        let again = right.send(&queue).await.0;
        assert_eq!(again.code(), Status::COMMAND_SEQUENCE);
        // Nothing but Fabrics commands before the controller is enabled.
        let keep_alive = submit(&queue, Sqe::new(OPCODE_KEEP_ALIVE)).await;
        assert_eq!(keep_alive, Status::COMMAND_SEQUENCE);
    });
}

#[test]
fn fields_of_admin_commands_are_checked() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let host = stage.associate(&Host::generate(), 0).await;
        let identify = |cns, nsid| {
            let identify = Identify {
                cns,
                cntid: 0,
                nsid,
                csi: 0,
                specific_id: 0,
            };
            identify.to_sqe()
        };
        let page = |sqe| submit_from(&host.admin, sqe, 4096);
        assert_eq!(page(identify(1, 0)).await, Status::SUCCESS);
        assert_eq!(page(identify(0xff, 0)).await, Status::INVALID_FIELD);
        assert_eq!(page(identify(0, 7)).await, Status::INVALID_NAMESPACE);
        assert_eq!(page(identify(2, u32::MAX)).await, Status::INVALID_NAMESPACE);
        let short = submit_from(&host.admin, identify(1, 0), 512).await;
        assert_eq!(short, Status::SGL_LENGTH_INVALID);
        let log = |lid, length, offset| {
            let get = GetLogPage {
                lid,
                lsp: 0,
                retain_event: false,
                length,
                offset,
                offset_is_index: false,
                nsid: u32::MAX,
                csi: 0,
            };
            get.to_sqe()
        };
        let smart = submit_from(&host.admin, log(2, 512, 0), 512).await;
        assert_eq!(smart, Status::SUCCESS);
        assert_eq!(page(log(2, 512, 514)).await, Status::INVALID_FIELD);
        assert_eq!(
            page(log(1, 64, 0xffff_ffff_ffff_f000)).await,
            Status::INVALID_FIELD
        );
        assert_eq!(page(log(1, 1 << 34, 0)).await, Status::INVALID_FIELD);
        assert_eq!(page(log(1, 8192, 0)).await, Status::SGL_LENGTH_INVALID);
        assert_eq!(page(log(0x70, 1024, 0)).await, Status::INVALID_LOG_PAGE);
        let set = |id: FeatureId, value| {
            let set = SetFeatures {
                fid: id.as_u8(),
                save: false,
                dwords: [value, 0, 0, 0, 0],
                nsid: 0,
            };
            submit(&host.admin, set.to_sqe())
        };
        // Queues are there already; an event that is not announced.
        assert_eq!(
            set(FeatureId::NumberOfQueues, 3).await,
            Status::COMMAND_SEQUENCE
        );
        assert_eq!(
            set(FeatureId::AsyncEventConfig, 1 << 31).await,
            Status::INVALID_FIELD
        );
        assert_eq!(set(FeatureId::Timestamp, 0).await, Status::INVALID_FIELD);
        let unknown = Sqe::new(OPCODE_GET_FEATURES).with_cdw(10, 0xdd);
        assert_eq!(submit(&host.admin, unknown).await, Status::INVALID_FIELD);
        let wide = FabricsCommand::property_set(CC, true, 0);
        assert_eq!(submit(&host.admin, wide).await, Status::INVALID_FIELD);
        let nowhere = FabricsCommand::property_get(0x1000, false);
        assert_eq!(submit(&host.admin, nowhere).await, Status::INVALID_FIELD);
    });
}
