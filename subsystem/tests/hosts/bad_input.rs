//! Bad inputs that a target must survive (numbers 20 to 28 of the project's list): the right status,
//! no crash, no leak, and other associations go on.

use nvme::admin::{GetLogPage, Identify};
use nvme::fabrics::{ConnectCommand, FabricsCommand};
use nvme::io::{DsmRange, IoCommand, LbaRange};
use nvme::{SglDescriptor, Sqe, Status, admin, properties};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::harness::{Attached, CC_ENABLE, FakeQueue, Lab, connect_data, read, story, write};

/// Tells a story beside another host that must not notice anything.
fn beside_another_host<F: AsyncFnOnce(&Lab)>(tell: F) {
    story(async |lab| {
        let other = lab.attach(200).await;
        let queue = lab.io_queue(&other, 1).await;
        tell(&lab).await;
        lab.still_serves(&queue).await;
        lab.all_buffers_are_back().await;
        assert!(!other.admin.is_closed() && !queue.is_closed());
    });
}

async fn log(attached: &Attached, lid: u8, offset: u64, length: u64, room: usize) -> Status {
    let command = GetLogPage {
        lid,
        lsp: 0,
        retain_event: true,
        length,
        offset,
        offset_is_index: false,
        nsid: 0,
        csi: 0,
    };
    attached.admin.call_in(command.to_sqe(), room).await.status
}

#[test]
fn n20_a_second_connect_on_a_connected_queue_is_out_of_sequence() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for (queue, qid) in [(&attached.admin, 0), (&queue, 1)] {
            let command = ConnectCommand {
                record_format: 0,
                qid,
                sqsize: 31,
                attributes: 0,
                kato_ms: 0,
            };
            let data = connect_data(&attached.host, attached.cntlid)
                .encode()
                .to_vec();
            queue
                .call_out(command.to_sqe(), data)
                .await
                .refused(Status::COMMAND_SEQUENCE);
        }
    });
}

#[test]
fn n20_nothing_but_connect_works_on_a_new_queue() {
    beside_another_host(async |lab| {
        for qid in [0, 1] {
            let queue = lab.queue(qid, 32);
            for opcode in 0..=255u8 {
                let mut sqe = Sqe::new(opcode).with_nsid(1);
                if opcode == nvme::command::FABRICS_OPCODE {
                    sqe = FabricsCommand::property_get(0, true);
                }
                queue
                    .call_in(sqe, 4096)
                    .await
                    .refused(Status::COMMAND_SEQUENCE);
            }
        }
    });
}

#[test]
fn n22_flags_and_fused_operations_that_nobody_offers() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for flags in [0x00, 0x80, 0xc0, 0x41, 0x42, 0x43] {
            let with = |mut sqe: Sqe| {
                sqe.0[1] = flags;
                sqe
            };
            let identify = Identify {
                cns: 1,
                cntid: 0,
                nsid: 0,
                csi: 0,
                specific_id: 0,
            }
            .to_sqe();
            attached
                .admin
                .call_in(with(identify), 4096)
                .await
                .refused(Status::INVALID_FIELD);
            let property = FabricsCommand::property_get(0, true);
            attached
                .admin
                .call(with(property))
                .await
                .refused(Status::INVALID_FIELD);
            // The second of two, without the first.
            let status = match flags {
                0x42 => Status::MISSING_FUSED,
                _ => Status::INVALID_FIELD,
            };
            queue
                .call_in(with(read(1, 0, 1)), 4096)
                .await
                .refused(status);
            let data = vec![0; 4096];
            queue
                .call_out(with(write(1, 0, 1)), data)
                .await
                .refused(status);
        }
    });
}

#[test]
fn n23_log_pages_with_offsets_and_lengths_from_hell() {
    beside_another_host(async |lab| {
        let (discovery, attached) = (lab.discover(1).await, lab.attach(2).await);
        for (attached, lid) in [(&discovery, 0x70), (&attached, 0x01), (&attached, 0x05)] {
            let invalid = Status::INVALID_FIELD;
            for offset in [0xffff_ffff_ffff_f000, u64::MAX - 3, 1 << 20, 1, 2, 3, 1026] {
                assert_eq!(
                    log(attached, lid, offset, 4096, 4096).await.code(),
                    invalid,
                    "{offset:#x}"
                );
            }
            // NUMD FFFFFFFFh is 16 GiB.
            assert_eq!(log(attached, lid, 0, 1 << 34, 4096).await.code(), invalid);
            assert_eq!(
                log(attached, lid, 0, 2 << 20, 2 << 20).await.code(),
                invalid,
                "over MDTS"
            );
            assert_eq!(
                log(attached, lid, 0, 8192, 4096).await.code(),
                Status::SGL_LENGTH_INVALID,
                "more than the host has room for"
            );
            assert!(
                log(attached, lid, 0, 1 << 20, 1 << 20).await.is_success(),
                "padded with zeros"
            );
        }
        assert_eq!(
            log(&attached, 0xff, 0, 512, 512).await.code(),
            Status::INVALID_LOG_PAGE
        );
        assert_eq!(
            log(&attached, 0x70, 0, 1024, 1024).await.code(),
            Status::INVALID_LOG_PAGE
        );
    });
}

#[test]
fn n24_identify_of_what_there_is_not() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let identify = async |cns, nsid, csi, room| {
            let command = Identify {
                cns,
                cntid: 0,
                nsid,
                csi,
                specific_id: 0,
            };
            attached.admin.call_in(command.to_sqe(), room).await
        };
        for nsid in [0xffff_fffe, 0xffff_ffff] {
            identify(0x02, nsid, 0, 4096)
                .await
                .refused(Status::INVALID_NAMESPACE);
        }
        for nsid in [0, 5, 0xffff_ffff] {
            identify(0x03, nsid, 0, 4096)
                .await
                .refused(Status::INVALID_NAMESPACE);
        }
        identify(0x00, 0xffff_ffff, 0, 4096)
            .await
            .refused(Status::INVALID_NAMESPACE);
        identify(0x05, 77, 2, 4096)
            .await
            .refused(Status::INVALID_FIELD);
        identify(0x05, 77, 0, 4096)
            .await
            .refused(Status::INVALID_NAMESPACE);
        for cns in [0x04, 0x09, 0x14, 0x20, 0x80, 0xff] {
            identify(cns, 1, 0, 4096)
                .await
                .refused(Status::INVALID_FIELD);
        }
        identify(0x01, 0, 0, 4095)
            .await
            .refused(Status::SGL_LENGTH_INVALID);
        identify(0x01, 0, 0, 0)
            .await
            .refused(Status::SGL_LENGTH_INVALID);
    });
}

#[test]
fn n25_authentication_of_a_host_without_a_secret_is_an_invalid_opcode_whatever_it_carries() {
    const AUTH_SEND: u32 = 0x05;
    const AUTH_RECEIVE: u32 = 0x06;
    // DH-HMAC-CHAP messages (NVMe-oF 1.1, section 8.13.5) with lengths that lie: negotiate of 8 bytes;
    // negotiate with halen and dhlen of 255; reply with hl 255 and dhvlen FFFFh; nothing at all.
    let mut negotiate = vec![0x00, 0x00, 0, 0, 1, 0, 0, 1];
    let short = negotiate.clone();
    negotiate.extend([1, 0, 255, 255]);
    negotiate.resize(8 + 64, 0xff);
    let mut reply = vec![0x01, 0x02, 0, 0, 1, 0, 255, 0, 0xff, 0xff];
    reply.resize(16 + 32, 0xff);
    let messages = [short.clone(), negotiate, reply, short, Vec::new()];
    let authentication = |fctype: u32, length: u32| {
        // SPSP0, SPSP1 and SECP E9h (NVMe over Fabrics) in dword 10, TL or AL in dword 11.
        Sqe::new(nvme::command::FABRICS_OPCODE)
            .with_nsid(fctype)
            .with_cdw(10, 0xe901_0100)
            .with_cdw(11, length)
    };
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for at in [&attached.admin, &queue] {
            for message in &messages {
                for said in [message.len() as u32, 0, u32::MAX] {
                    at.call_out(authentication(AUTH_SEND, said), message.clone())
                        .await
                        .refused(Status::INVALID_OPCODE);
                }
            }
            for said in [0, 1, 4096, u32::MAX] {
                at.call_in(authentication(AUTH_RECEIVE, said), 4096)
                    .await
                    .refused(Status::INVALID_OPCODE);
            }
            assert!(!at.is_closed());
        }
        // Before Connect nothing else is allowed, authentication neither.
        let early = lab.queue(0, 32);
        early
            .call_out(authentication(AUTH_SEND, 8), vec![0; 8])
            .await
            .refused(Status::COMMAND_SEQUENCE);
        lab.still_serves(&queue).await;
    });
}

#[test]
fn n26_a_hundred_event_requests() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let requests: Vec<_> = (0..100)
            .map(|_| {
                attached
                    .admin
                    .begin(Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST))
                    .1
            })
            .collect();
        attached
            .admin
            .call(Sqe::new(admin::OPCODE_KEEP_ALIVE))
            .await
            .ok();
        for request in requests.into_iter().skip(4) {
            request
                .await
                .expect("an answer")
                .refused(Status::ASYNC_EVENT_LIMIT);
        }
        attached.admin.close_from_host();
        lab.attached_hosts_are(1).await;
    });
}

#[test]
fn n26_configurations_that_cannot_work() {
    beside_another_host(async |lab| {
        let attached = lab
            .connect_with(&crate::harness::TestHost::new(1), u32::MAX)
            .await;
        let wide = FabricsCommand::property_set(properties::CC, true, CC_ENABLE);
        attached
            .admin
            .call(wide)
            .await
            .refused(Status::INVALID_FIELD);
        for offset in [0x00, 0x08, 0x1c, 0x20, 0x68, 0xffff_fffc] {
            attached
                .set_property(offset, 0)
                .await
                .refused(Status::INVALID_FIELD);
        }
        for (offset, wide) in [(0x00, false), (0x08, true), (0x14, true)] {
            attached
                .property(offset, wide)
                .await
                .refused(Status::INVALID_FIELD);
        }
        for (offset, wide) in [
            (0x68, false),
            (0x1000, true),
            (3, false),
            (0xffff_fffc, true),
        ] {
            let reply = attached.property(offset, wide).await;
            assert_eq!(reply.status, Status::INVALID_FIELD, "property {offset:#x}");
        }
        // IOSQES 0; IOCQES 0; MPS 1; AMS 7; CSS 1, and CSS 7 for admin commands alone.
        for wrong in [
            0x0040_0001,
            0x0006_0001,
            0x0046_0081,
            0x0046_3801,
            0x0046_0011,
            0x0046_0071,
        ] {
            attached.set_property(properties::CC, wrong).await.ok();
            let status = attached.property(properties::CSTS, false).await.ok().result;
            assert_eq!(status & 3, 2, "fatal and not ready for {wrong:#x}");
            let keep_alive = attached
                .admin
                .call(Sqe::new(admin::OPCODE_KEEP_ALIVE))
                .await;
            keep_alive.refused(Status::COMMAND_SEQUENCE);
            attached.set_property(properties::CC, 0).await.ok();
        }
        for _ in 0..1000 {
            attached.set_property(properties::CC, CC_ENABLE).await.ok();
            attached.set_property(properties::CC, 0).await.ok();
        }
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        lab.still_serves(&lab.io_queue(&attached, 1).await).await;
    });
}

#[test]
fn n27_ranges_beyond_the_end_and_lengths_that_do_not_fit() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for (slba, blocks) in [
            (u64::MAX, 65536),
            (u64::MAX - 255, 256),
            (16384, 1),
            (16383, 2),
            (1 << 55, 256),
        ] {
            let len = (blocks as usize * 4096).min(1 << 20);
            queue
                .call_in(read(1, slba, blocks), len)
                .await
                .refused(Status::LBA_OUT_OF_RANGE);
            let data = vec![1; len];
            queue
                .call_out(write(1, slba, blocks), data)
                .await
                .refused(Status::LBA_OUT_OF_RANGE);
            let range = LbaRange { slba, blocks };
            let zeroes = IoCommand::WriteZeroes {
                nsid: 1,
                range,
                fua: true,
                deallocate: true,
            };
            queue
                .call(zeroes.to_sqe())
                .await
                .refused(Status::LBA_OUT_OF_RANGE);
        }
        for room in [0, 4095, 4097, 8192] {
            queue
                .call_in(read(1, 0, 1), room)
                .await
                .refused(Status::SGL_LENGTH_INVALID);
            queue
                .call_out(write(1, 0, 1), vec![1; room])
                .await
                .refused(Status::SGL_LENGTH_INVALID);
        }
        queue
            .call_in(read(1, 0, 257), 257 * 4096)
            .await
            .refused(Status::INVALID_FIELD);
        for nsid in [0, 2, 1025, u32::MAX] {
            queue
                .call_in(read(nsid, 0, 1), 4096)
                .await
                .refused(Status::INVALID_NAMESPACE);
        }
        assert_eq!(
            queue.call_in(read(1, 0, 1), 4096).await.ok().data,
            vec![0; 4096]
        );
    });
}

#[test]
fn n28_trims_that_lie_about_their_ranges() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 0, 1), vec![1; 4096]).await.ok();
        let trim = |ranges| {
            IoCommand::DatasetManagement {
                nsid: 1,
                ranges,
                deallocate: true,
            }
            .to_sqe()
        };
        queue
            .call_out(trim(256), vec![0; 16])
            .await
            .refused(Status::SGL_LENGTH_INVALID);
        queue
            .call_out(trim(1), vec![0; 0])
            .await
            .refused(Status::SGL_LENGTH_INVALID);
        for (slba, blocks) in [
            (1 << 55, 1),
            (0, u32::MAX),
            (u64::MAX, u32::MAX),
            (16384, 1),
        ] {
            let mut list = DsmRange { slba: 0, blocks: 1 }.encode().to_vec();
            list.extend(DsmRange { slba, blocks }.encode());
            queue
                .call_out(trim(2), list)
                .await
                .refused(Status::LBA_OUT_OF_RANGE);
        }
        assert_eq!(
            queue.call_in(read(1, 0, 1), 4096).await.ok().data,
            vec![1; 4096],
            "no range is touched unless all are right"
        );
        let all: Vec<u8> = (0..256)
            .flat_map(|n| {
                DsmRange {
                    slba: n * 64,
                    blocks: 64,
                }
                .encode()
            })
            .collect();
        queue.call_out(trim(256), all).await.ok();
        assert_eq!(lab.engine.status().logical_bytes, 0);
    });
}

#[test]
fn one_identifier_twice_in_flight_is_a_conflict() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let (cid, stuck) = queue.begin_stuck(write(1, 0, 1), 4096);
        let mut again = read(1, 0, 1);
        again.set_cid(cid);
        again.set_sgl(&SglDescriptor::Keyed {
            address: 0,
            length: 4096,
            key: 1,
            invalidate: false,
        });
        let reply = queue
            .send(again, Vec::new(), false)
            .await
            .expect("an answer");
        reply.refused(Status::COMMAND_ID_CONFLICT);
        queue.close_from_host();
        assert!(stuck.await.is_err());
    });
}

#[test]
fn descriptors_that_no_rdma_host_sends_are_refused() {
    beside_another_host(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for kind in [0x00, 0x10, 0x20, 0x30, 0x50, 0xff] {
            let mut sqe = read(1, 0, 1);
            sqe.set_cid(60_000 + kind);
            sqe.0[39] = kind as u8;
            let reply = queue.send(sqe, Vec::new(), false).await.expect("an answer");
            reply.refused(Status::SGL_TYPE_INVALID);
        }
    });
}

/// Random entries, half of them with an opcode and a namespace that exist.
fn random_entries(seed: u8, count: usize) -> Vec<(Sqe, usize)> {
    use proptest::prelude::*;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let entry = (
        any::<[u8; 32]>(),
        any::<[u8; 32]>(),
        any::<bool>(),
        0usize..8192,
    );
    (0..count)
        .map(|_| {
            let tree = entry.new_tree(&mut runner).expect("a value");
            let (low, high, plausible, room) = proptest::strategy::ValueTree::current(&tree);
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&low);
            bytes[32..].copy_from_slice(&high);
            if plausible {
                bytes[0] = [0, 1, 2, 5, 6, 8, 9, 10, 0x18, 0x7f][usize::from(low[0]) % 10];
                bytes[1] = 0x40;
                bytes[4..8].copy_from_slice(&[1, 0, 0, 0]);
            }
            (Sqe(bytes), room)
        })
        .collect()
}

#[test]
fn random_commands_are_answered_and_do_no_harm() {
    beside_another_host(async |lab| {
        for seed in 0..8 {
            let attached = lab.attach(seed).await;
            let queue = lab.io_queue(&attached, 1).await;
            let throw = async |at: &FakeQueue| {
                let mut answered = 0;
                for (sqe, room) in random_entries(seed, 500) {
                    // Connect's timer and keep alive are not what is tested here.
                    let is_event = sqe.opcode() == admin::OPCODE_ASYNC_EVENT_REQUEST;
                    let is_keep_alive_set =
                        sqe.opcode() == admin::OPCODE_SET_FEATURES && sqe.cdw(10) & 0xff == 0x0f;
                    // The first of two waits some seconds for the second.
                    let is_first = sqe.opcode() == nvme::io::OPCODE_COMPARE && sqe.fuse() == 1;
                    if at.is_closed() || is_event || is_keep_alive_set || is_first {
                        continue;
                    }
                    match at.try_call_out(sqe, vec![0x11; room]).await {
                        Some(reply) => {
                            assert_ne!(reply.code(), Status::INTERNAL, "{sqe:?}");
                            answered += 1;
                        }
                        // Who disconnects, or resets the controller, asked for the end of the queue.
                        None => {
                            let is_fabrics = sqe.opcode() == nvme::command::FABRICS_OPCODE;
                            assert!(at.is_closed() && is_fabrics, "no answer to {sqe:?}");
                        }
                    }
                }
                answered
            };
            let answered = [throw(&queue).await, throw(&attached.admin).await];
            assert!(answered.iter().all(|count| *count > 300), "{answered:?}");
            attached.admin.close_from_host();
            lab.attached_hosts_are(1).await;
        }
    });
}
