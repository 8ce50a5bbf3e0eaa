//! Fused operations, Copy, Verify, Write Uncorrectable, Get LBA Status, and what is announced of them.

use futures_util::future::{join, join_all};
use nvme::admin::{Identify, SetFeatures};
use nvme::features::{HOST_BEHAVIOR_BYTES, HostBehavior};
use nvme::identify::{IdentifyController, IdentifyNamespace, IdentifyNvmController};
use nvme::io::{CopyFormat, CopyRange, DsmRange, IoCommand, LbaRange};
use nvme::lba_status::{GetLbaStatus, LbaStatusAction, LbaStatusList, LbaStatusRange};
use nvme::{Sqe, Status};
use subsystem::latency::Operation;

use crate::harness::{Attached, FakeQueue, Reply, read, story, write};

/// Blocks of 4 KiB with these bytes.
fn blocks(contents: &[u8]) -> Vec<u8> {
    contents.iter().flat_map(|byte| [*byte; 4096]).collect()
}

async fn firsts(queue: &FakeQueue, nsid: u32, slba: u64, count: u32) -> Vec<u8> {
    let len = count as usize * 4096;
    let data = queue.call_in(read(nsid, slba, count), len).await.ok().data;
    data.iter().step_by(4096).copied().collect()
}

fn compare(slba: u64, count: u32) -> Sqe {
    let range = LbaRange {
        slba,
        blocks: count,
    };
    IoCommand::Compare { nsid: 1, range }.to_sqe()
}

/// A fused Compare and Write of as many blocks as both have.
async fn fused(queue: &FakeQueue, slba: u64, old: Vec<u8>, new: Vec<u8>) -> (Reply, Reply) {
    let count = (new.len() / 4096) as u32;
    let first = queue.begin_with(compare(slba, count).with_fuse(1), old);
    let second = queue.begin_with(write(1, slba, count).with_fuse(2), new);
    let (first, second) = join(first, second).await;
    (first.expect("an answer"), second.expect("an answer"))
}

fn copy(nsid: u32, slba: u64, ranges: &[CopyRange], format: CopyFormat) -> (Sqe, Vec<u8>) {
    let command = IoCommand::Copy {
        nsid,
        slba,
        ranges: ranges.len() as u16,
        format,
        fua: false,
    };
    let data = ranges.iter().flat_map(|range| range.encode(format));
    (command.to_sqe(), data.collect())
}

fn from(nsid: u32, slba: u64, blocks: u32) -> CopyRange {
    CopyRange {
        nsid,
        slba,
        blocks,
        fast_only: false,
    }
}

const SAME: CopyFormat = CopyFormat::SameNamespace;
const ANY: CopyFormat = CopyFormat::AnyNamespace;

async fn enable_copies_between_namespaces(attached: &Attached) {
    let behavior = HostBehavior {
        copy_formats: ANY.bit(),
        ..HostBehavior::default()
    };
    let set = SetFeatures {
        fid: 0x16,
        save: false,
        dwords: [0; 5],
        nsid: 0,
    };
    let data = behavior.encode();
    assert_eq!(data.len(), HOST_BEHAVIOR_BYTES);
    attached
        .admin
        .call_out(set.to_sqe(), data.to_vec())
        .await
        .ok();
}

async fn lba_status(attached: &Attached, get: GetLbaStatus) -> Reply {
    let room = get.length as usize;
    attached.admin.call_in(get.to_sqe(), room).await
}

fn known(nsid: u32, slba: u64, blocks: u16) -> GetLbaStatus {
    GetLbaStatus {
        nsid,
        slba,
        blocks,
        action: LbaStatusAction::Known.as_u8(),
        length: 4096,
    }
}

#[test]
fn a_fused_compare_and_write_writes_what_was_compared() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let call = |data| queue.call_out(write(1, 0, 2), data);
        call(blocks(&[1, 2])).await.ok();
        let (first, second) = fused(&queue, 0, blocks(&[1, 3]), blocks(&[4, 5])).await;
        first.refused(Status::COMPARE_FAILURE);
        second.refused(Status::FAILED_FUSED);
        assert_eq!(firsts(&queue, 1, 0, 2).await, [1, 2]);
        let (first, second) = fused(&queue, 0, blocks(&[1, 2]), blocks(&[4, 5])).await;
        first.ok();
        second.ok();
        assert_eq!(firsts(&queue, 1, 0, 2).await, [4, 5]);
        // As large as any command.
        let large = vec![7; 1 << 20];
        let (first, second) = fused(&queue, 100, vec![0; 1 << 20], large).await;
        first.ok();
        second.ok();
        assert_eq!(firsts(&queue, 1, 100, 256).await, vec![7; 256]);
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn hosts_that_count_up_by_compare_and_write_in_two_queues_lose_no_step() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queues = [
            lab.io_queue(&attached, 1).await,
            lab.io_queue(&attached, 2).await,
        ];
        let number = |at: u32| [&at.to_le_bytes()[..], &[9; 4092]].concat();
        queues[0].call_out(write(1, 5, 1), number(0)).await.ok();
        // Each sees a number and tries to write the next one, until it has had its turns.
        let count = async |queue: &FakeQueue| {
            let (mut steps, mut failures) = (0, 0);
            while steps < 40 {
                let data = queue.call_in(read(1, 5, 1), 4096).await.ok().data;
                let seen = u32::from_le_bytes(data[..4].try_into().expect("four bytes"));
                let (first, second) = fused(queue, 5, data, number(seen + 1)).await;
                match first.status.is_success() {
                    true => {
                        second.ok();
                        steps += 1;
                    }
                    false => {
                        first.refused(Status::COMPARE_FAILURE);
                        second.refused(Status::FAILED_FUSED);
                        failures += 1;
                    }
                }
            }
            failures
        };
        let hosts = [&queues[0], &queues[1], &queues[0], &queues[1]];
        let failures: u32 = join_all(hosts.map(count)).await.into_iter().sum();
        assert!(failures > 0, "they never met");
        let data = queues[0].call_in(read(1, 5, 1), 4096).await.ok().data;
        assert_eq!(data, number(160));
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn half_a_fused_operation_changes_nothing() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let (old, new) = (blocks(&[0]), blocks(&[1]));
        let first = || queue.begin_with(compare(0, 1).with_fuse(1), old.clone());
        let second = || queue.call_out(write(1, 0, 1).with_fuse(2), new.clone());
        // The second alone; another command in between; the first twice.
        second().await.refused(Status::MISSING_FUSED);
        let lonely = first();
        assert_eq!(firsts(&queue, 1, 0, 1).await, [0]);
        lonely.await.expect("it").refused(Status::MISSING_FUSED);
        second().await.refused(Status::MISSING_FUSED);
        let lonely = first();
        let paired = first();
        let written = second().await;
        lonely.await.expect("it").refused(Status::MISSING_FUSED);
        paired.await.expect("it").ok();
        written.ok();
        // Other blocks, another namespace, another command, lengths that differ: neither is made.
        let others = [
            write(1, 1, 1),
            write(1, 0, 2),
            write(2, 0, 1),
            compare(0, 1),
            IoCommand::Flush { nsid: 1 }.to_sqe(),
        ];
        for other in others {
            let one = queue.begin_with(compare(0, 1).with_fuse(1), blocks(&[1]));
            let two = queue.call_out(other.with_fuse(2), blocks(&[2])).await;
            one.await.expect("it").refused(Status::INVALID_FIELD);
            two.refused(Status::INVALID_FIELD);
        }
        let one = queue.begin_with(compare(0, 1).with_fuse(1), blocks(&[1]));
        let two = queue.call_out(write(1, 0, 1).with_fuse(2), vec![2; 512]);
        two.await.refused(Status::SGL_LENGTH_INVALID);
        one.await.expect("it").refused(Status::FAILED_FUSED);
        let end = lab.engine.volumes()[0].size_bytes / 4096;
        let (one, two) = fused(&queue, end, blocks(&[0]), blocks(&[1])).await;
        one.refused(Status::LBA_OUT_OF_RANGE);
        two.refused(Status::FAILED_FUSED);
        assert_eq!(firsts(&queue, 1, 0, 2).await, [1, 0]);
        // Nothing comes after the first one.
        first().await.expect("it").refused(Status::MISSING_FUSED);
        // A host that goes away in the middle leaves nothing behind.
        let lonely = first();
        queue.close_from_host();
        drop(lonely);
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_copy_takes_its_ranges_in_order_and_stores_nothing_twice() {
    story(async |lab| {
        lab.create_volume("other", 1 << 20, 4096).await;
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let data = blocks(&[1, 2, 3, 4, 5, 6]);
        queue.call_out(write(1, 0, 6), data).await.ok();
        let used = lab.engine.status().used_bytes;
        let (sqe, data) = copy(
            1,
            1000,
            &[from(0, 4, 2), from(0, 100, 1), from(0, 0, 3)],
            SAME,
        );
        queue.call_out(sqe, data).await.ok();
        assert_eq!(firsts(&queue, 1, 1000, 6).await, [5, 6, 0, 1, 2, 3]);
        // Between namespaces, once the host says that it means it.
        let (sqe, data) = copy(2, 7, &[from(1, 1, 2), from(1, 1000, 1)], ANY);
        queue
            .call_out(sqe, data.clone())
            .await
            .refused(Status::INVALID_FIELD);
        enable_copies_between_namespaces(&attached).await;
        queue.call_out(sqe, data).await.ok();
        assert_eq!(firsts(&queue, 2, 6, 4).await, [0, 2, 3, 5]);
        assert_eq!(lab.engine.status().used_bytes, used, "no data were moved");
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_copy_that_asks_for_too_much_or_for_the_wrong_thing_changes_nothing() {
    story(async |lab| {
        lab.create_volume("small", 1 << 20, 512).await;
        let attached = lab.attach(1).await;
        enable_copies_between_namespaces(&attached).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 0, 2), blocks(&[1, 2])).await.ok();
        let end = (64 << 20) / 4096;
        let good = from(1, 0, 1);
        let fast = CopyRange {
            fast_only: true,
            ..from(2, 1, 8)
        };
        let too_many = vec![from(1, 0, 65535); 17];
        for (nsid, slba, ranges, status) in [
            (
                1,
                100,
                vec![good, from(1, end - 1, 2)],
                Status::LBA_OUT_OF_RANGE,
            ),
            (
                1,
                100,
                vec![good, from(1, u64::MAX, 65535)],
                Status::LBA_OUT_OF_RANGE,
            ),
            (1, end - 1, vec![good, good], Status::LBA_OUT_OF_RANGE),
            (1, u64::MAX, vec![good], Status::LBA_OUT_OF_RANGE),
            (
                1,
                1,
                vec![from(1, 5, 1), from(1, 2, 1)],
                Status::OVERLAPPING_IO_RANGE,
            ),
            (1, 100, vec![from(1, 0, 65536)], Status::COMMAND_SIZE_LIMIT),
            (1, 100, too_many, Status::COMMAND_SIZE_LIMIT),
            (
                1,
                100,
                vec![good, from(2, 0, 8)],
                Status::INCOMPATIBLE_NAMESPACE,
            ),
            (1, 100, vec![good, from(3, 0, 1)], Status::INVALID_NAMESPACE),
            (3, 100, vec![good], Status::INVALID_NAMESPACE),
            (2, 100, vec![fast], Status::FAST_COPY_NOT_POSSIBLE),
        ] {
            let (sqe, data) = copy(nsid, slba, &ranges, ANY);
            queue.call_out(sqe, data).await.refused(status);
        }
        // Fewer ranges than it says, formats with protection information, protection itself.
        let (sqe, data) = copy(1, 100, &[good; 2], SAME);
        queue
            .call_out(sqe, data[..63].to_vec())
            .await
            .refused(Status::SGL_LENGTH_INVALID);
        for bits in [1 << 8, 3 << 8, 15 << 8, 1 << 12, 1 << 29] {
            let wrong = sqe.with_cdw(12, sqe.cdw(12) | bits);
            let reply = queue.call_out(wrong, data.clone()).await;
            reply.refused(Status::INVALID_FIELD);
        }
        assert_eq!(firsts(&queue, 1, 99, 4).await, [0; 4]);
        assert_eq!(firsts(&queue, 1, 0, 2).await, [1, 2]);
        assert_eq!(lab.engine.status().used_bytes, 8192);
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_copy_that_meets_damage_names_the_range() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue
            .call_out(write(1, 0, 3), blocks(&[1, 2, 3]))
            .await
            .ok();
        let range = LbaRange { slba: 2, blocks: 1 };
        let mark = IoCommand::WriteUncorrectable { nsid: 1, range };
        queue.call(mark.to_sqe()).await.ok();
        let ranges = [from(0, 0, 1), from(0, 1, 2), from(0, 0, 2)];
        let (sqe, data) = copy(1, 100, &ranges, SAME);
        let reply = queue.call_out(sqe, data).await;
        assert_eq!(reply.result, 1);
        reply.refused(Status::UNRECOVERED_READ);
        assert_eq!(firsts(&queue, 1, 100, 2).await, [1, 2]);
    });
}

#[test]
fn verify_reads_what_the_host_does_not_want_to() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 0, 2), blocks(&[1, 2])).await.ok();
        let verify = |nsid, slba, blocks| {
            let range = LbaRange { slba, blocks };
            IoCommand::Verify { nsid, range }.to_sqe()
        };
        queue.call(verify(1, 0, 2)).await.ok();
        queue.call(verify(1, 0, 16384)).await.ok();
        for (sqe, status) in [
            (verify(1, 16383, 2), Status::LBA_OUT_OF_RANGE),
            (verify(1, u64::MAX, 65536), Status::LBA_OUT_OF_RANGE),
            (verify(9, 0, 1), Status::INVALID_NAMESPACE),
            (verify(1, 0, 1).with_cdw(12, 1 << 28), Status::INVALID_FIELD),
        ] {
            queue.call(sqe).await.refused(status);
        }
    });
}

#[test]
fn blocks_that_a_host_marks_are_errors_and_are_told_until_they_are_written() {
    story(async |lab| {
        lab.create_volume("small", 1 << 20, 512).await;
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 0, 6), blocks(&[1; 6])).await.ok();
        let mark = |nsid, slba, blocks| {
            let range = LbaRange { slba, blocks };
            IoCommand::WriteUncorrectable { nsid, range }.to_sqe()
        };
        queue.call(mark(1, 1, 2)).await.ok();
        queue.call(mark(1, 4, 1)).await.ok();
        queue
            .call_in(read(1, 0, 6), 6 * 4096)
            .await
            .refused(Status::UNRECOVERED_READ);
        assert_eq!(firsts(&queue, 1, 3, 1).await, [1], "of the same content");
        let list = async |get| {
            let reply = lba_status(&attached, get).await.ok();
            LbaStatusList::decode(&reply.data).expect("a list")
        };
        let at = |slba, blocks| LbaStatusRange { slba, blocks };
        let both = vec![at(1, 2), at(4, 1)];
        assert_eq!(list(known(1, 0, 0)).await.ranges, both);
        assert_eq!(list(known(1, 2, 2)).await.ranges, [at(2, 1)]);
        let scan = GetLbaStatus {
            action: LbaStatusAction::Scan.as_u8(),
            ..known(1, 0, 0)
        };
        assert_eq!(list(scan).await.ranges, both);
        // No room for all.
        let short = GetLbaStatus {
            length: 24,
            ..known(1, 0, 0)
        };
        let part = list(short).await;
        assert_eq!((part.ranges, part.has_more), (vec![at(1, 2)], true));
        queue.call_out(write(1, 1, 2), blocks(&[2, 3])).await.ok();
        queue.call_out(write(1, 4, 1), blocks(&[4])).await.ok();
        assert_eq!(firsts(&queue, 1, 0, 6).await, [1, 2, 3, 1, 4, 1]);
        assert_eq!(list(known(1, 0, 0)).await, LbaStatusList::default());
        // Smaller blocks are marked with all that share their 4 KiB, or not at all.
        queue.call(mark(2, 8, 16)).await.ok();
        assert_eq!(list(known(2, 10, 3)).await.ranges, [at(10, 3)]);
        for (sqe, status) in [
            (mark(2, 9, 8), Status::INVALID_FIELD),
            (mark(2, 8, 9), Status::INVALID_FIELD),
            (mark(1, 0, 257), Status::INVALID_FIELD),
            (mark(1, 16384, 1), Status::LBA_OUT_OF_RANGE),
            (mark(7, 0, 1), Status::INVALID_NAMESPACE),
        ] {
            queue.call(sqe).await.refused(status);
        }
        for (get, status) in [
            (known(7, 0, 0), Status::INVALID_NAMESPACE),
            (known(1, 16384, 0), Status::LBA_OUT_OF_RANGE),
            (known(1, 16383, 2), Status::LBA_OUT_OF_RANGE),
            (known(1, u64::MAX, 1), Status::LBA_OUT_OF_RANGE),
        ] {
            lba_status(&attached, get).await.refused(status);
        }
        let wrong = GetLbaStatus {
            action: 0x12,
            ..known(1, 0, 0)
        };
        lba_status(&attached, wrong)
            .await
            .refused(Status::INVALID_FIELD);
        let long = GetLbaStatus {
            length: 1 << 34,
            ..known(1, 0, 0)
        };
        attached
            .admin
            .call_in(long.to_sqe(), 4096)
            .await
            .refused(Status::INVALID_FIELD);
        // Who asks for more than it has room for gets what fits.
        let asking = known(1, 0, 0).to_sqe();
        let reply = attached.admin.call_in(asking, 4092).await.ok();
        assert_eq!(
            LbaStatusList::decode(&reply.data),
            Some(LbaStatusList::default())
        );
        let lying = attached.admin.call_in(asking, 4).await;
        lying.refused(Status::SGL_LENGTH_INVALID);
        let discovery = lab.discover(3).await;
        lba_status(&discovery, known(1, 0, 0))
            .await
            .refused(Status::INVALID_OPCODE);
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn what_is_announced_of_commands_is_what_they_do() {
    story(async |lab| {
        lab.create_volume("small", 1 << 20, 512).await;
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let identify = async |cns, nsid| {
            let identify = Identify {
                cns,
                cntid: 0,
                nsid,
                csi: 0,
                specific_id: 0,
            };
            let reply = attached.admin.call_in(identify.to_sqe(), 4096).await;
            reply.ok().data
        };
        let controller = IdentifyController::decode(&identify(1, 0).await).expect("a page");
        assert_eq!(controller.oncs & 0x18f, 0x18f);
        assert_eq!((controller.fuses, controller.ocfs), (1, 5));
        assert_eq!(controller.oacs & 1 << 9, 1 << 9);
        assert_eq!(
            (controller.awun, controller.awupf, controller.acwu),
            (255, 0, 255)
        );
        let limits = IdentifyNvmController::decode(&identify(6, 0).await).expect("a page");
        for (nsid, lba_bytes) in [(1, 4096_u64), (2, 512)] {
            let page = IdentifyNamespace::decode(&identify(0, nsid).await).expect("a page");
            assert_eq!(page.nsfeat & 2, 2);
            // A command is one to all others, and a sub-block when the power goes.
            assert_eq!((u64::from(page.nawun) + 1) * lba_bytes, 1 << 20);
            assert_eq!((u64::from(page.nacwu) + 1) * lba_bytes, 1 << 20);
            assert_eq!((u64::from(page.nawupf) + 1) * lba_bytes, 4096);
            // And two sub-blocks are not one then: the boundary is where the next one begins. Where a block is a
            // sub-block there is nothing to be said.
            let boundary_blocks = 4096 / lba_bytes;
            assert_eq!(u64::from(page.nabspf) + 1, boundary_blocks);
            assert_eq!((page.nabo, page.nabsn), (0, 0));
            assert_eq!((page.mssrl, page.msrc), (65535, 255));
            assert_eq!(u64::from(page.mcl) * lba_bytes, 4 << 30);
        }
        let zeroes = |blocks| IoCommand::WriteZeroes {
            nsid: 1,
            range: LbaRange { slba: 0, blocks },
            fua: false,
            deallocate: true,
        };
        assert_eq!((limits.vsl, limits.wzsl, limits.wusl), (16, 16, 8));
        queue.call(zeroes(16384).to_sqe()).await.ok();
        // All 256 ranges of Dataset Management, of any length.
        assert_eq!((limits.dmrl, limits.dmrsl), (0, u32::MAX));
        assert_eq!(limits.dmsl, 256 * u64::from(u32::MAX));
        let ranges = (0..256).flat_map(|at| {
            let (slba, blocks) = (at * 64, 64);
            DsmRange { slba, blocks }.encode()
        });
        let trim = IoCommand::DatasetManagement {
            nsid: 1,
            ranges: 256,
            deallocate: true,
        };
        queue.call_out(write(1, 16383, 1), blocks(&[1])).await.ok();
        queue.call_out(trim.to_sqe(), ranges.collect()).await.ok();
        assert_eq!(lab.engine.status().logical_bytes, 0);
        queue
            .call(IoCommand::Flush { nsid: u32::MAX }.to_sqe())
            .await
            .ok();
    });
}

#[test]
fn each_operation_on_a_volume_is_counted_once_with_its_time() {
    story(async |lab| {
        let uuid = lab.engine.volumes()[0].uuid;
        let (_, before) = lab.target.volume_io(uuid);
        assert!(before.0.is_empty(), "{before:?}");
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let other = lab.io_queue(&attached, 2).await;
        queue.call_out(write(1, 0, 2), blocks(&[1, 2])).await.ok();
        assert_eq!(firsts(&queue, 1, 0, 2).await, [1, 2]);
        assert_eq!(firsts(&other, 1, 0, 2).await, [1, 2]);
        queue.call(IoCommand::Flush { nsid: 1 }.to_sqe()).await.ok();
        let range = LbaRange { slba: 8, blocks: 1 };
        let zeroes = IoCommand::WriteZeroes {
            nsid: 1,
            range,
            fua: false,
            deallocate: false,
        };
        queue.call(zeroes.to_sqe()).await.ok();
        let trim = IoCommand::DatasetManagement {
            nsid: 1,
            ranges: 1,
            deallocate: true,
        };
        let (slba, count) = (16, 8);
        let ranges = DsmRange {
            slba,
            blocks: count,
        };
        let ranges = ranges.encode().to_vec();
        queue.call_out(trim.to_sqe(), ranges).await.ok();
        queue.call_out(compare(0, 1), blocks(&[1])).await.ok();
        let verify = IoCommand::Verify { nsid: 1, range };
        queue.call(verify.to_sqe()).await.ok();
        let (sqe, data) = copy(1, 32, &[from(0, 0, 1)], SAME);
        queue.call_out(sqe, data).await.ok();
        let mark = IoCommand::WriteUncorrectable { nsid: 1, range };
        queue.call(mark.to_sqe()).await.ok();
        let (_, latencies) = lab.target.volume_io(uuid);
        for operation in Operation::ALL {
            let latency = latencies.of(operation);
            let commands = 1 + u64::from(operation == Operation::Read);
            assert_eq!(latency.commands(), commands, "{operation:?}");
            assert!(latency.total_ns() > 0, "{operation:?}");
        }

        // Both of a fused operation are counted; what fails is not.
        let (first, second) = fused(&queue, 0, blocks(&[1]), blocks(&[3])).await;
        first.ok();
        second.ok();
        let (first, _) = fused(&queue, 0, blocks(&[1]), blocks(&[4])).await;
        first.refused(Status::COMPARE_FAILURE);
        queue
            .call_in(read(1, 1 << 40, 1), 4096)
            .await
            .refused(Status::LBA_OUT_OF_RANGE);
        let (io, after) = lab.target.volume_io(uuid);
        let since = after.since(&latencies);
        let counted: Vec<_> = since
            .0
            .iter()
            .map(|(is, it)| (*is, it.commands()))
            .collect();
        assert_eq!(counted, [(Operation::Write, 1), (Operation::Compare, 1)]);
        assert_eq!((io.read_commands, io.write_commands), (2, 5));
        lab.all_buffers_are_back().await;
    });
}
