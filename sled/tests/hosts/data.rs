//! Data come back, are durable when the host is told so, and a drive that fails is no success.

use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive, FileDrive, OpenOptions};
use fabric::HostData;
use futures_util::future::join_all;
use initiator::{Error, Host};
use nvme::Status;
use nvme::admin::{Identify, SetFeatures};
use nvme::features::FeatureId;
use nvme::identify::{CSI_NVM, Cns, NamespaceDescriptor, decode_descriptor_list};
use nvme::io::{IoCommand, LbaRange};

use crate::harness::{
    BLOCKS, Stage, assert_blocks, memory, nqn, story, submit, submit_to, write_blocks,
};
use crate::spy::{Did, Failing, SpyDrive};

fn code(done: Result<(), Error>) -> Status {
    match done {
        Ok(()) => Status::SUCCESS,
        Err(error) => error.status().expect("an answer").code(),
    }
}

#[test]
fn what_a_host_writes_comes_back_whatever_its_length() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let controller = stage.attach(&Host::generate()).await.unwrap();
        let namespace = controller.namespace(1).await.unwrap();
        assert_eq!(namespace.lba_bytes(), 4096);
        assert_eq!(namespace.size_bytes(), BLOCKS * 4096);
        // In the capsule, by R2T, and as long as a command can be.
        for (block, blocks) in [(0, 1), (1, 2), (8, 32), (512, 256), (BLOCKS - 1, 1)] {
            write_blocks(&namespace, block, blocks, 0x5a, false)
                .await
                .unwrap();
        }
        for (block, blocks) in [(0, 1), (1, 2), (8, 32), (512, 256), (BLOCKS - 1, 1)] {
            assert_blocks(&namespace, block, blocks, 0x5a).await;
        }
        controller.disconnect().await;
    });
}

#[test]
fn a_file_drive_has_what_two_hosts_wrote_at_once() {
    story(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive");
        let options = OpenOptions {
            create_bytes: Some(BLOCKS * BLOCK_BYTES as u64),
            expected_blocks: None,
        };
        let drive: Arc<dyn Drive> = Arc::new(FileDrive::open(&path, &options).unwrap());
        let stage = Stage::new(vec![drive, memory()]);
        let hosts = [Host::generate(), Host::generate()];
        let mut controllers = Vec::new();
        for host in &hosts {
            controllers.push(stage.attach(host).await.unwrap());
        }
        assert_eq!(controllers[0].namespaces().await.unwrap(), [1, 2]);
        let mut namespaces = Vec::new();
        for controller in &controllers {
            namespaces.push(controller.namespace(1).await.unwrap());
        }
        let writes = (0..64_u64).map(|number| {
            let namespace = &namespaces[number as usize % 2];
            write_blocks(namespace, number * 4, 4, 7, number % 8 == 0)
        });
        for done in join_all(writes).await {
            done.unwrap();
        }
        namespaces[0].flush().await.unwrap();
        // Each sees what the other one wrote.
        assert_blocks(&namespaces[0], 0, 256, 7).await;
        assert_blocks(&namespaces[1], 0, 256, 7).await;
        for controller in controllers {
            controller.disconnect().await;
        }
    });
}

#[test]
fn flush_and_fua_reach_the_drive_before_the_answer_and_plain_writes_do_not_wait_for_one() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let controller = stage.attach(&Host::generate()).await.unwrap();
        let namespace = controller.namespace(1).await.unwrap();
        write_blocks(&namespace, 0, 1, 1, false).await.unwrap();
        assert_eq!(spy.did(), [Did::Write]);
        namespace.flush().await.unwrap();
        assert_eq!(spy.did(), [Did::Write, Did::Flush]);
        write_blocks(&namespace, 0, 1, 1, true).await.unwrap();
        assert_eq!(spy.did()[2..], [Did::Write, Did::Flush]);
        controller.disconnect().await;
    });
}

#[test]
fn zeros_are_written_and_trimmed_blocks_are_given_back() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let controller = stage.attach(&Host::generate()).await.unwrap();
        let namespace = controller.namespace(1).await.unwrap();
        write_blocks(&namespace, 0, 8, 0xff, false).await.unwrap();
        namespace.write_zeroes(0, 2 * 4096).await.unwrap();
        let (done, buffer) = namespace.read(0, initiator::buffer(3 * 4096).await).await;
        done.unwrap();
        assert!(buffer[..2 * 4096].iter().all(|byte| *byte == 0));
        assert_eq!(buffer[2 * 4096], 2 ^ 0xff);
        namespace.trim(4096 * 4, 4096 * 4).await.unwrap();
        assert_eq!(spy.did().last(), Some(&Did::Discard));
        assert_blocks(&namespace, 2, 2, 0xff).await;
        controller.disconnect().await;
    });
}

#[test]
fn a_drive_that_fails_is_a_media_error_and_others_go_on() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive), memory()]);
        let controller = stage.attach(&Host::generate()).await.unwrap();
        let failing = controller.namespace(1).await.unwrap();
        let other = controller.namespace(2).await.unwrap();
        spy.fail(Failing::Io);
        assert_eq!(
            code(write_blocks(&failing, 0, 1, 1, false).await),
            Status::WRITE_FAULT
        );
        assert_eq!(code(failing.flush().await), Status::WRITE_FAULT);
        assert_eq!(code(failing.trim(0, 4096).await), Status::WRITE_FAULT);
        let (done, _) = failing.read(0, initiator::buffer(4096).await).await;
        assert_eq!(code(done), Status::UNRECOVERED_READ);
        spy.fail(Failing::NoSpace);
        assert_eq!(
            code(write_blocks(&failing, 0, 1, 1, false).await),
            Status::CAPACITY_EXCEEDED
        );
        write_blocks(&other, 0, 1, 1, true).await.unwrap();
        assert_blocks(&other, 0, 1, 1).await;
        // It works again.
        spy.fail(Failing::Not);
        write_blocks(&failing, 0, 1, 2, true).await.unwrap();
        assert_blocks(&failing, 0, 1, 2).await;
        controller.disconnect().await;
    });
}

#[test]
fn a_drive_with_a_write_in_doubt_takes_nothing_newer() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive), memory()]);
        let controller = stage.attach(&Host::generate()).await.unwrap();
        let doubtful = controller.namespace(1).await.unwrap();
        let other = controller.namespace(2).await.unwrap();
        spy.fail(Failing::InDoubt);
        assert_eq!(
            code(write_blocks(&doubtful, 0, 1, 1, false).await),
            Status::WRITE_FAULT
        );
        spy.fail(Failing::Not);
        for _ in 0..2 {
            assert_eq!(
                code(write_blocks(&doubtful, 0, 1, 2, false).await),
                Status::NAMESPACE_NOT_READY
            );
        }
        assert_eq!(code(doubtful.flush().await), Status::NAMESPACE_NOT_READY);
        assert_eq!(spy.did(), []);
        write_blocks(&other, 0, 1, 1, true).await.unwrap();
        controller.disconnect().await;
    });
}

#[test]
fn hosts_find_the_sled_by_discovery_and_see_the_same_names_each_time() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let host = Host::generate();
        for _ in 0..2 {
            let found = initiator::discover(&Stage::connector(), stage.address, host.clone())
                .await
                .unwrap();
            let names: Vec<_> = found.iter().map(|entry| entry.subnqn.as_str()).collect();
            assert_eq!(names, [nvme::nqn::DISCOVERY, nqn().as_str()]);
            assert_eq!(found[1].trsvcid, stage.address.port().to_string());
            let controller = stage.attach(&host).await.unwrap();
            let identify = controller.identify();
            assert_eq!(
                (identify.subnqn.as_str(), identify.mn.as_str()),
                (nqn().as_str(), "Onefold sled")
            );
            controller.disconnect().await;
        }
    });
}

#[test]
fn a_host_without_a_write_cache_has_every_write_durable() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let host = stage.associate(&Host::generate(), 0).await;
        let off = SetFeatures {
            fid: FeatureId::VolatileWriteCache.as_u8(),
            save: false,
            dwords: [0; 5],
            nsid: 0,
        };
        assert_eq!(submit(&host.admin, off.to_sqe()).await, Status::SUCCESS);
        assert_eq!(spy.did(), [Did::Flush], "what was written before");
        let write = IoCommand::Write {
            nsid: 1,
            range: LbaRange { slba: 0, blocks: 1 },
            fua: false,
        };
        let written = submit_to(&host.io, write.to_sqe(), BLOCK_BYTES).await;
        assert_eq!(written, Status::SUCCESS);
        assert_eq!(spy.did()[1..], [Did::Write, Did::Flush]);
    });
}

#[test]
fn each_drive_has_the_uuid_that_it_was_given() {
    story(async {
        let stage = Stage::new(vec![memory(), memory()]);
        let host = stage.associate(&Host::generate(), 0).await;
        for nsid in [1, 2] {
            let identify = Identify {
                cns: Cns::NamespaceDescriptors.as_u8(),
                cntid: 0,
                nsid,
                csi: 0,
                specific_id: 0,
            };
            let data = HostData::FromTarget(initiator::buffer(4096).await, 4096);
            let answered = host.admin.submit(identify.to_sqe(), data).await;
            let page = answered.unwrap().1.unwrap();
            assert_eq!(
                decode_descriptor_list(&page).unwrap(),
                [
                    NamespaceDescriptor::Uuid([nsid as u8; 16]),
                    NamespaceDescriptor::Csi(CSI_NVM)
                ]
            );
        }
    });
}
