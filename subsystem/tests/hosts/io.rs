//! Reads, writes and their relatives, on volumes of both block sizes.

use std::sync::atomic::Ordering;

use futures_util::future::{join_all, join3};
use nvme::io::{DsmRange, IoCommand, LbaRange};
use nvme::{Status, admin::SetFeatures};

use crate::harness::{read, story, write};

#[test]
fn what_was_written_is_read_back_and_stored_once() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let (one, two) = (
            lab.io_queue(&attached, 1).await,
            lab.io_queue(&attached, 2).await,
        );
        let data: Vec<u8> = (0..1 << 20).map(|i| (i / 4096 + i % 251) as u8).collect();
        one.call_out(write(1, 0, 256), data.clone()).await.ok();
        two.call_out(write(1, 1024, 256), data.clone()).await.ok();
        assert_eq!(two.call_in(read(1, 0, 256), 1 << 20).await.ok().data, data);
        assert_eq!(
            one.call_in(read(1, 1024, 256), 1 << 20).await.ok().data,
            data
        );
        assert_eq!(
            one.call_in(read(1, 5000, 1), 4096).await.ok().data,
            vec![0; 4096]
        );
        let space = lab.engine.status();
        assert_eq!((space.logical_bytes, space.used_bytes), (2 << 20, 1 << 20));
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn writes_that_wait_in_a_queue_together_reach_the_drive_together() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let written = |block: u8| {
            let data = vec![block + 1; 4096];
            queue.call_out(write(1, u64::from(block), 1), data)
        };
        let before = lab.drive_writes.load(Ordering::Relaxed);
        // A command among them that needs not wait is no boundary.
        let (first, other, last) = join3(
            join_all((0..8).map(written)),
            queue.call_in(read(1, 5000, 1), 4096),
            join_all((8..16).map(written)),
        )
        .await;
        other.ok();
        first.into_iter().chain(last).for_each(|reply| {
            reply.ok();
        });
        let writes = lab.drive_writes.load(Ordering::Relaxed) - before;
        assert_eq!(writes, 1, "writes of the drive for 16 of the host");
        let data = queue.call_in(read(1, 0, 16), 16 * 4096).await.ok().data;
        let firsts: Vec<u8> = data.iter().step_by(4096).copied().collect();
        assert_eq!(firsts, (1..=16).collect::<Vec<u8>>());
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn checksums_that_come_with_written_data_are_stored_with_them() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let data = [[1; 4096], [2; 4096]].concat();
        let mut checksums: Vec<u32> = data
            .chunks(4096)
            .map(|block| u32::from_le_bytes(nvme::tcp::digest(block)))
            .collect();
        queue.knows_checksums(&checksums);
        queue.call_out(write(1, 0, 2), data.clone()).await.ok();
        assert_eq!(queue.call_in(read(1, 0, 2), 8192).await.ok().data, data);
        // The second block is not what it was any more when it is stored.
        let data = [[3; 4096], [4; 4096]].concat();
        checksums[0] = u32::from_le_bytes(nvme::tcp::digest(&data[..4096]));
        queue.knows_checksums(&checksums);
        queue.call_out(write(1, 8, 2), data.clone()).await.ok();
        let first = queue.call_in(read(1, 8, 1), 4096).await.ok();
        assert_eq!(first.data, data[..4096]);
        let second = queue.call_in(read(1, 9, 1), 4096).await;
        assert_eq!(second.code(), Status::UNRECOVERED_READ);
    });
}

#[test]
fn small_blocks_work_at_any_place() {
    story(async |lab| {
        lab.create_volume("small", 1 << 20, 512).await;
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue
            .call_out(write(2, 3, 11), vec![0x5a; 11 * 512])
            .await
            .ok();
        let data = queue.call_in(read(2, 0, 16), 16 * 512).await.ok().data;
        assert!(data[..3 * 512].iter().all(|b| *b == 0));
        assert!(data[3 * 512..14 * 512].iter().all(|b| *b == 0x5a));
        assert!(data[14 * 512..].iter().all(|b| *b == 0));
        queue
            .call_out(write(2, 2048, 1), vec![1; 512])
            .await
            .refused(Status::LBA_OUT_OF_RANGE);
    });
}

#[test]
fn a_write_is_durable_with_fua_or_after_a_flush_or_without_a_write_cache() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let range = LbaRange { slba: 0, blocks: 1 };
        let fua = IoCommand::Write {
            nsid: 1,
            range,
            fua: true,
        }
        .to_sqe();
        queue.call_out(fua, vec![1; 4096]).await.ok();
        assert_eq!(lab.engine.status().unflushed_bytes, 0);
        queue.call_out(write(1, 1, 1), vec![2; 4096]).await.ok();
        assert_ne!(lab.engine.status().unflushed_bytes, 0);
        queue.call(IoCommand::Flush { nsid: 1 }.to_sqe()).await.ok();
        assert_eq!(lab.engine.status().unflushed_bytes, 0);
        queue.call_out(write(1, 2, 1), vec![3; 4096]).await.ok();
        queue
            .call(IoCommand::Flush { nsid: u32::MAX }.to_sqe())
            .await
            .ok();
        assert_eq!(lab.engine.status().unflushed_bytes, 0);
        let off = SetFeatures {
            fid: 6,
            save: false,
            dwords: [0; 5],
            nsid: 0,
        };
        attached.admin.call(off.to_sqe()).await.ok();
        queue.call_out(write(1, 3, 1), vec![4; 4096]).await.ok();
        assert_eq!(lab.engine.status().unflushed_bytes, 0);
        queue
            .call(IoCommand::Flush { nsid: 9 }.to_sqe())
            .await
            .refused(Status::INVALID_NAMESPACE);
    });
}

#[test]
fn zeroes_and_trim_give_space_back() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let data: Vec<u8> = (0..64 * 4096).map(|i| (i / 4096 + 1) as u8).collect();
        queue.call_out(write(1, 0, 64), data).await.ok();
        assert_eq!(lab.engine.status().logical_bytes, 64 * 4096);
        let range = LbaRange {
            slba: 0,
            blocks: 16,
        };
        for deallocate in [false, true] {
            let zeroes = IoCommand::WriteZeroes {
                nsid: 1,
                range,
                fua: false,
                deallocate,
            };
            queue.call(zeroes.to_sqe()).await.ok();
            assert_eq!(lab.engine.status().logical_bytes, 48 * 4096);
        }
        assert_eq!(
            queue.call_in(read(1, 0, 16), 65536).await.ok().data,
            vec![0; 65536]
        );
        let ranges = [(16, 8), (32, 32), (0, 0)].map(|(slba, blocks)| DsmRange { slba, blocks });
        let mut list: Vec<u8> = ranges.iter().flat_map(DsmRange::encode).collect();
        list.resize(4096, 0xff);
        let hint = IoCommand::DatasetManagement {
            nsid: 1,
            ranges: 3,
            deallocate: false,
        };
        queue.call_out(hint.to_sqe(), list.clone()).await.ok();
        assert_eq!(lab.engine.status().logical_bytes, 48 * 4096, "only a hint");
        let trim = IoCommand::DatasetManagement {
            nsid: 1,
            ranges: 3,
            deallocate: true,
        };
        queue.call_out(trim.to_sqe(), list).await.ok();
        assert_eq!(lab.engine.status().logical_bytes, 8 * 4096);
    });
}

#[test]
fn compare_tells_equal_from_different_for_good() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 7, 1), vec![1; 4096]).await.ok();
        let compare = IoCommand::Compare {
            nsid: 1,
            range: LbaRange { slba: 7, blocks: 1 },
        };
        queue.call_out(compare.to_sqe(), vec![1; 4096]).await.ok();
        let mut other = vec![1; 4096];
        other[4095] = 2;
        queue
            .call_out(compare.to_sqe(), other)
            .await
            .refused(Status::COMPARE_FAILURE);
    });
}

#[test]
fn two_hosts_share_a_namespace() {
    story(async |lab| {
        let (one, two) = (lab.attach(1).await, lab.attach(2).await);
        let (first, second) = (lab.io_queue(&one, 1).await, lab.io_queue(&two, 1).await);
        first.call_out(write(1, 0, 1), vec![1; 4096]).await.ok();
        assert_eq!(
            second.call_in(read(1, 0, 1), 4096).await.ok().data,
            vec![1; 4096]
        );
        one.admin.close_from_host();
        first.closed().await;
        lab.still_serves(&second).await;
    });
}

#[test]
fn a_full_pool_fails_new_data_and_nothing_else() {
    story(async |lab| {
        lab.create_volume("big", 1 << 30, 4096).await;
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let mut number = 0u64;
        let mut unique = || {
            let mut data = vec![0; 1 << 20];
            for block in data.chunks_mut(4096) {
                number += 1;
                block[..8].copy_from_slice(&number.to_le_bytes());
            }
            data
        };
        let mut full = None;
        for slba in (0..1 << 18).step_by(256) {
            let reply = queue.call_out(write(2, slba, 256), unique()).await;
            if !reply.status.is_success() {
                full = Some((slba, reply));
                break;
            }
        }
        let (slba, reply) = full.expect("the pool is smaller than the volume");
        reply.refused(Status::CAPACITY_EXCEEDED);
        // Duplicates, reads and trims go on.
        let known = queue.call_in(read(2, 0, 256), 1 << 20).await.ok().data;
        queue.call_out(write(2, slba, 256), known).await.ok();
        let range = LbaRange {
            slba: 0,
            blocks: 256,
        };
        let zeroes = IoCommand::WriteZeroes {
            nsid: 2,
            range,
            fua: false,
            deallocate: true,
        };
        queue.call(zeroes.to_sqe()).await.ok();
    });
}
