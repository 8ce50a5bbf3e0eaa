//! What is written comes back, by commands that the target takes.

use std::rc::Rc;
use std::sync::Arc;

use drives::{
    BLOCK_BYTES, BlockingDrive, Drive, DriveError, ErrorKind, FrontDrive, GatherExtent, SmartLog,
    content_of, wipe_signatures,
};
use fabric_drives::{Claim, RemoteDrive};
use futures_util::FutureExt;
use nvme::identify::LbaFormat;
use nvme::io::{OPCODE_DATASET_MANAGEMENT, OPCODE_FLUSH, OPCODE_READ, OPCODE_WRITE};
use reactor::Buffer;
use uuid::Uuid;

use crate::sled::{BYTES, Sled, TRANSFER_BYTES, extent, filled, options, read, story, write};

#[test]
fn data_come_back_whatever_the_size_of_the_targets_blocks() {
    for lba_bytes in [512, 4096] {
        let sled = Sled::start(lba_bytes);
        story(async || {
            let drive = sled.open().await.expect("it opens");
            assert_eq!(
                drive.blocks(),
                (BYTES / BLOCK_BYTES) as u64,
                "whole blocks only"
            );

            // Runs from two buffers, neighbours on the drive among them, and more than one command may move.
            let buffers = Rc::new(vec![filled(16, 1), filled(4, 2)]);
            let gather = |block, buffer, offset: usize, blocks| GatherExtent {
                block,
                buffer,
                buffer_offset: (offset * BLOCK_BYTES) as u32,
                blocks,
            };
            let runs = [
                gather(3, 0, 0, 16),
                gather(19, 1, 1, 2),
                gather(100, 1, 3, 1),
            ];
            drive
                .write_many(buffers.clone(), &runs)
                .await
                .expect("written");
            assert!(
                Rc::into_inner(buffers).is_some(),
                "the drive has given up its share"
            );
            let pieces = (18 * BLOCK_BYTES).div_ceil(TRANSFER_BYTES) + 1;
            assert_eq!(sled.media().count(OPCODE_WRITE), pieces);

            let extents = [extent(100, 0, 1), extent(2, BLOCK_BYTES, 19)];
            let (result, buffer) = drive.read(filled(20, 9), &extents).await;
            result.expect("read");
            let bytes: Vec<u8> = buffer.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
            let expected = [&[2, 0][..], &[1; 16], &[2; 2]].concat();
            assert_eq!(bytes, expected);
            assert_eq!(read(&drive, 255).await.expect("the last block"), 0);
        });
    }
}

#[test]
fn a_transfer_that_does_not_fit_is_refused_and_sends_nothing() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        let end = drive.blocks();
        let (result, buffer) = drive.read(filled(1, 5), &[extent(end, 0, 1)]).await;
        assert_eq!(
            result.expect_err("no such block").kind(),
            ErrorKind::Invalid
        );
        assert_eq!(buffer.len(), BLOCK_BYTES, "the buffer comes back");
        let (result, _) = drive.write(filled(1, 5), &[extent(0, 0, 2)]).await;
        assert_eq!(result.expect_err("too short").kind(), ErrorKind::Invalid);
        let error = drive.discard(end, 1).await.expect_err("no such block");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(sled.media().commands.is_empty());
    });
}

#[test]
fn the_health_of_a_drive_elsewhere_is_what_its_target_tells() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = Arc::new(sled.open().await.expect("it opens"));
        let worn = SmartLog {
            percentage_used: 91,
            ..SmartLog::default()
        };
        sled.media().health = Some(worn);
        // As the engine has a drive whose end holds metadata.
        let front = FrontDrive::new(drive.clone(), 100);
        assert_eq!(front.smart_log().await.expect("told"), Some(worn));
        sled.media().health = None;
        let told = drive.smart_log().await;
        assert_eq!(told.expect("a target without it is no failure"), None);
        write(&drive, 7, 1).await.expect("the connection stands");
        assert_eq!(sled.media().connected.len(), 1);
    });
}

#[test]
fn flushes_and_deallocations_reach_a_target_that_knows_them() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        write(&drive, 7, 3).await.expect("written");
        drive.flush().await.expect("flushed");
        drive.flush().await.expect("nothing to flush");
        assert_eq!(sled.media().count(OPCODE_FLUSH), 1);
        drive.discard(7, 1).await.expect("discarded");
        assert_eq!(sled.media().count(OPCODE_DATASET_MANAGEMENT), 1);
        assert_eq!(read(&drive, 7).await.expect("read"), 0);
    });
}

#[test]
fn the_first_flush_reaches_the_target_though_this_process_wrote_nothing() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        drive
            .flush()
            .await
            .expect("flushed: what an earlier process wrote");
        assert_eq!(sled.media().commands, [OPCODE_FLUSH]);
    });
}

#[test]
fn a_command_without_a_reactor_reads_and_flushes_and_does_not_write() {
    let sled = Sled::start(4096);
    sled.media().disk[8192..12288].fill(7);
    let address = sled.address().parse().expect("an address");
    let drive = BlockingDrive::open("the namespace", move || {
        RemoteDrive::open(address, options())
    })
    .expect("it opens");
    let now = |(result, buffer): (Result<(), DriveError>, Buffer)| result.map(|()| buffer);
    let extents = [extent(2, 0, 1), extent(0, BLOCK_BYTES, 2)];
    let read = drive.read(filled(3, 9), &extents).now_or_never();
    let buffer = now(read.expect("at once")).expect("read");
    let bytes: Vec<u8> = buffer.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
    assert_eq!(bytes, [7, 0, 0]);
    let flushed = drive.flush().now_or_never().expect("at once");
    flushed.expect("flushed");
    let written = drive.write(filled(1, 1), &extents[..1]).now_or_never();
    assert!(now(written.expect("at once")).is_err());
    assert_eq!(sled.media().count(OPCODE_FLUSH), 1);
    assert_eq!(sled.media().count(OPCODE_WRITE), 0);
}

#[test]
fn a_target_without_a_cache_and_deallocation_is_asked_for_neither() {
    let sled = Sled::start(4096);
    (sled.media().controller.vwc, sled.media().controller.oncs) = (0, 0);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        write(&drive, 7, 3).await.expect("written");
        drive.flush().await.expect("nothing to flush");
        drive.discard(7, 1).await.expect("nothing to discard");
        assert_eq!(sled.media().commands, [OPCODE_WRITE]);
    });
}

#[test]
fn every_reactor_has_its_own_connection_and_a_flush_covers_all_of_them() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = std::sync::Arc::new(sled.open().await.expect("it opens"));
        write(&drive, 1, 1).await.expect("written");
        let other = reactor::start(reactor::Config::default()).expect("a reactor");
        let used = drive.clone();
        let written = other
            .handle()
            .spawn(move || async move { write(&used, 2, 2).await });
        written.await.expect("it runs").expect("written");
        assert_eq!(sled.media().connected.len(), 2);
        drive.flush().await.expect("flushed");
        assert_eq!(sled.media().count(OPCODE_FLUSH), 2);
        assert_eq!(read(&drive, 2).await.expect("read"), 2);

        // What a reactor wrote before it ended is flushed by another one.
        let used = drive.clone();
        let written = other
            .handle()
            .spawn(move || async move { write(&used, 3, 3).await });
        written.await.expect("it runs").expect("written");
        other.stop_and_join();
        drive.flush().await.expect("flushed");
        assert_eq!(sled.media().count(OPCODE_FLUSH), 3);
    });
}

#[test]
fn a_namespace_is_open_once_in_a_process() {
    let sled = Sled::start(4096);
    story(async || {
        let first = sled.open().await.expect("it opens");
        let error = sled.open().await.expect_err("it is open already");
        assert_eq!(error.kind(), ErrorKind::InUse);
        // By whatever name it is reached.
        let alias = sled.address().replace("127.0.0.1", "localhost");
        let alias = RemoteDrive::open(alias.parse().expect("an address"), options()).await;
        assert_eq!(alias.expect_err("the same one").kind(), ErrorKind::InUse);
        drop(first);
        sled.open().await.expect("nobody has it any more");
    });
}

#[test]
fn what_cannot_be_a_drive_is_refused_when_it_is_opened() {
    let sled = Sled::start(4096);
    let good = sled.media().namespace.clone();
    story(async || {
        for (format, word) in [
            (
                LbaFormat {
                    ms: 0,
                    lbads: 13,
                    rp: 0,
                },
                "8192",
            ),
            (
                LbaFormat {
                    ms: 8,
                    lbads: 12,
                    rp: 0,
                },
                "metadata",
            ),
        ] {
            sled.media().namespace.lbaf = vec![format];
            let error = sled.open().await.expect_err("no drive");
            assert!(error.to_string().contains(word), "{error}");
        }
        sled.media().namespace = good;
        let address = sled.address().parse().expect("an address");
        let expected = fabric_drives::OpenOptions {
            expected_blocks: Some(1 << 20),
            ..options()
        };
        let error = RemoteDrive::open(address, expected)
            .await
            .expect_err("too small");
        assert_eq!(error.kind(), ErrorKind::Truncated);
        let nobody = "nvme+tcp://127.0.0.1:1/nqn.2026-11.dev.onefold:sled#1";
        let nobody = RemoteDrive::open(nobody.parse().expect("an address"), options()).await;
        let error = nobody.expect_err("nobody listens there");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    });
}

#[test]
fn what_a_namespace_holds_is_recognised_and_can_be_wiped() {
    let sled = Sled::start(512);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        assert_eq!(content_of(&drive).await.expect("looked at"), None);
        // The signature of a LUKS volume.
        sled.media().disk[..6].copy_from_slice(b"LUKS\xba\xbe");
        let found = content_of(&drive).await.expect("looked at");
        let found = found.expect("it holds something").to_string();
        assert!(found.contains("LUKS"), "{found}");
        drive
            .claim(Uuid::from_u128(1), Claim::First)
            .await
            .expect("free");
        wipe_signatures(&drive).await.expect("wiped");
        assert_eq!(content_of(&drive).await.expect("looked at"), None);
        assert_eq!(sled.media().count(OPCODE_FLUSH), 1);
        assert!(sled.media().count(OPCODE_READ) > 0);
    });
}
