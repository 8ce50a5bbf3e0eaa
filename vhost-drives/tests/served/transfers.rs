//! What is written comes back, by commands that the server takes.

use std::rc::Rc;

use drives::{BLOCK_BYTES, Drive, ErrorKind, GatherExtent};
use futures_util::FutureExt;
use futures_util::future::join_all;
use reactor::Config;

use crate::server::{
    BYTES, DISCARD, FEATURE_FLUSH, FEATURE_INDIRECT, FLUSH, GET_ID, OUT, Server, options,
};
use crate::story::{extent, filled, read, story, write};

#[test]
fn data_come_back_with_and_without_tables_of_descriptors() {
    for is_indirect in [true, false] {
        let server = Server::start();
        if !is_indirect {
            server.device().features &= !FEATURE_INDIRECT;
        }
        story(async || {
            let drive = server.open().await.expect("it opens");
            assert_eq!(drive.blocks(), (BYTES / BLOCK_BYTES) as u64);
            let buffers = Rc::new(vec![filled(64, 1), filled(4, 2)]);
            let gather = |block, buffer, offset: usize, blocks| GatherExtent {
                block,
                buffer,
                buffer_offset: (offset * BLOCK_BYTES) as u32,
                blocks,
            };
            let runs = [
                gather(3, 0, 0, 64),
                gather(67, 1, 1, 2),
                gather(100, 1, 3, 1),
            ];
            drive
                .write_many(buffers.clone(), &runs)
                .await
                .expect("written");
            assert!(
                Rc::into_inner(buffers).is_some(),
                "the drive gave up its share"
            );
            // 66 blocks in commands of 32, and one.
            assert_eq!(server.device().count(OUT), 4);
            assert_eq!(server.device().longest, 128 << 10);

            let extents = [extent(100, 0, 1), extent(2, BLOCK_BYTES, 67)];
            let (result, buffer) = drive.read(filled(68, 9), &extents).await;
            result.expect("read");
            let bytes: Vec<u8> = buffer.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
            let expected = [&[2, 0][..], &[1; 64], &[2; 2]].concat();
            assert_eq!(bytes, expected);
            assert_eq!(read(&drive, 255).await.expect("the last block"), 0);
        });
    }
}

#[test]
fn more_commands_than_the_queue_has_entries_wait_for_each_other() {
    for is_indirect in [true, false] {
        let server = Server::start();
        if !is_indirect {
            server.device().features &= !FEATURE_INDIRECT;
        }
        story(async || {
            let drive = server.open().await.expect("it opens");
            let writes = (0..250).map(|block| write(&drive, block, block as u8));
            assert!(join_all(writes).await.iter().all(Result::is_ok));
            for block in 0..250 {
                assert_eq!(read(&drive, block).await.expect("read"), block as u8);
            }
        });
    }
}

#[test]
fn a_transfer_that_does_not_fit_is_refused_and_sends_nothing() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
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
        assert_eq!(server.device().commands, [GET_ID]);
    });
}

#[test]
fn reactors_have_a_queue_each_and_share_those_that_the_server_has() {
    let server = Server::start();
    server.device().queues = 2;
    story(async || {
        let drive = std::sync::Arc::new(server.open().await.expect("it opens"));
        assert_eq!(server.device().enabled, 2);
        let threads: Vec<_> = (0..3)
            .map(|_| reactor::start(Config::default()).expect("a reactor"))
            .collect();
        let ended = threads.iter().zip(0..).map(|(thread, at)| {
            let drive = drive.clone();
            thread.handle().spawn(move || async move {
                for block in 0..50 {
                    write(&*drive, at * 50 + block, block as u8 + 1).await?;
                }
                Ok::<(), drives::DriveError>(())
            })
        });
        for ended in join_all(ended).await {
            ended.expect("no panic").expect("written");
        }
        // Reactors that end leave the others what they need.
        for thread in threads {
            thread.stop_and_join();
        }
        for block in 0..150 {
            assert_eq!(
                read(&*drive, block).await.expect("read"),
                (block % 50) as u8 + 1
            );
        }
        let mut used = std::mem::take(&mut server.device().used);
        used.sort_unstable();
        used.dedup();
        assert_eq!(used, [0, 1]);
        assert_eq!(server.device().connections, 1);
    });
}

#[test]
fn a_write_that_nobody_waits_for_any_more_harms_no_later_one() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        server.device().holds = Some(OUT);
        for round in 0..300 {
            let mut dropped = Box::pin(write(&drive, 7, round as u8));
            assert!(dropped.as_mut().now_or_never().is_none());
        }
        server.let_go();
        for block in 0..50 {
            write(&drive, block, 50 - block as u8)
                .await
                .expect("written");
        }
        for block in (0..50).filter(|block| *block != 7) {
            assert_eq!(read(&drive, block).await.expect("read"), 50 - block as u8);
        }
    });
}

#[test]
fn a_flush_asks_a_device_with_a_cache_only() {
    for has_cache in [true, false] {
        let server = Server::start();
        if !has_cache {
            server.device().features &= !FEATURE_FLUSH;
        }
        story(async || {
            let drive = server.open().await.expect("it opens");
            write(&drive, 5, 1).await.expect("written");
            drive.flush().await.expect("flushed");
            assert_eq!(server.device().count(FLUSH), usize::from(has_cache));
        });
    }
}

#[test]
fn discards_keep_to_the_limits_of_the_device_and_leave_neighbours_alone() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        for block in [9, 10, 29, 30] {
            write(&drive, block, 1).await.expect("written");
        }
        drive.discard(10, 20).await.expect("discarded");
        // 160 sectors, 64 at a time.
        assert_eq!(server.device().count(DISCARD), 3);
        for (block, byte) in [(9, 1), (10, 0xdd), (29, 0xdd), (30, 1)] {
            assert_eq!(read(&drive, block).await.expect("read"), byte);
        }
        let without = Server::start();
        without.device().features &= !(1 << 13);
        let drive = without.open().await.expect("it opens");
        drive.discard(0, 20).await.expect("nothing to do");
        assert_eq!(without.device().count(DISCARD), 0);
    });
}

#[test]
fn a_command_that_the_device_refuses_is_an_error_and_not_in_doubt() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        server.device().fails_with = Some(1);
        let error = write(&drive, 5, 1).await.expect_err("refused");
        assert!(
            !error.is_in_doubt() && error.to_string().contains("server's log"),
            "{error}"
        );
        assert!(read(&drive, 5).await.is_err());
        server.device().fails_with = Some(2);
        let error = drive.discard(5, 8).await.expect_err("refused");
        assert!(error.to_string().contains("does not support"), "{error}");
        server.device().fails_with = None;
        write(&drive, 5, 1).await.expect("written");
        assert_eq!(server.device().connections, 1);
    });
}

#[test]
fn a_socket_is_a_drive_once() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        let error = server.open().await.expect_err("open already");
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(drive);
        server.open().await.expect("it opens again");
        let larger = vhost_drives::OpenOptions {
            expected_blocks: Some(257),
            ..options()
        };
        let error = vhost_drives::VhostDrive::open(server.address(), larger).await;
        assert_eq!(error.expect_err("too small").kind(), ErrorKind::Truncated);
    });
}
