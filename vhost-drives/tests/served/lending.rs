//! Buffers that the server uses where they lie, and answers that it calls nobody for.

use std::rc::Rc;
use std::time::Duration;

use drives::{BLOCK_BYTES, Drive, GatherExtent};
use futures_util::FutureExt;
use reactor::{BufferPool, Config};

use crate::server::{FEATURE_EVENT_INDEX, FEATURE_INDIRECT, IN, OUT, Server};
use crate::story::{
    extent, filled, read, shared_memory, story, story_on, story_with_shared_buffers, wait_for,
    write,
};

fn gather(block: u64, buffer: u32, offset: usize, blocks: u32) -> GatherExtent {
    GatherExtent {
        block,
        buffer,
        buffer_offset: (offset * BLOCK_BYTES) as u32,
        blocks,
    }
}

fn buffers() -> BufferPool {
    reactor::current().expect("inside").buffers().clone()
}

/// Takes all buffers that are free, and fills them.
fn fill_all_that_is_free(byte: u8) -> Vec<reactor::Buffer> {
    let pool = buffers();
    std::iter::from_fn(|| pool.try_alloc(BLOCK_BYTES))
        .map(|mut buffer| {
            buffer.fill(byte);
            buffer
        })
        .collect()
}

#[test]
fn the_server_reads_and_writes_shared_buffers_where_they_lie() {
    for is_indirect in [true, false] {
        let server = Server::start();
        if !is_indirect {
            server.device().features &= !FEATURE_INDIRECT;
        }
        story_with_shared_buffers(async || {
            let drive = server.open().await.expect("it opens");
            server.device().lent = 0;
            write(&drive, 5, 1).await.expect("written");
            assert_eq!(read(&drive, 5).await.expect("read"), 1);
            assert_eq!(server.device().lent, 2);

            // 40 blocks of one buffer that follow each other, and two of others: commands of 32 and 10 blocks.
            let many = Rc::new(vec![filled(40, 2), filled(1, 3), filled(2, 4)]);
            let runs = [
                gather(10, 0, 0, 40),
                gather(50, 1, 0, 1),
                gather(51, 2, 1, 1),
            ];
            drive
                .write_many(many.clone(), &runs)
                .await
                .expect("written");
            assert!(Rc::into_inner(many).is_some(), "it gave up its share");
            // Without tables of descriptors the second command is copied.
            let lent = if is_indirect { 2 + 1 + 3 } else { 2 + 1 };
            assert_eq!(server.device().lent, lent);

            let (result, buffer) = drive
                .read(filled(44, 9), &[extent(10, BLOCK_BYTES, 42)])
                .await;
            result.expect("read");
            let bytes: Vec<u8> = buffer.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
            let expected = [&[9][..], &[2; 40], &[3, 4, 9]].concat();
            assert_eq!(bytes, expected);
            assert_eq!(server.device().lent, lent + 2);
        });
    }
}

#[test]
fn data_in_more_places_than_a_command_may_have_and_private_buffers_are_copied() {
    let server = Server::start();
    story_with_shared_buffers(async || {
        let drive = server.open().await.expect("it opens");
        server.device().lent = 0;
        // Every other block of the buffer: nine segments where the device takes eight.
        let runs: Vec<_> = (0..9)
            .map(|at| gather(20 + at, 0, 2 * at as usize, 1))
            .collect();
        let buffer = Rc::new(vec![filled(18, 6)]);
        drive.write_many(buffer, &runs).await.expect("written");
        assert_eq!(server.device().lent, 0);
        assert_eq!(read(&drive, 28).await.expect("read"), 6);
        assert_eq!(server.device().lent, 1);
        let private = BufferPool::new(BLOCK_BYTES).expect("memory");
        let mut buffer = private.try_alloc(BLOCK_BYTES).expect("memory");
        buffer.fill(7);
        let (result, buffer) = drive.write(buffer, &[extent(3, 0, 1)]).await;
        result.expect("written");
        let (result, _) = drive.read(buffer, &[extent(3, 0, 1)]).await;
        result.expect("read");
        assert_eq!(server.device().lent, 1);
    });
    // Buffers that are shared later than the connection began.
    story(async || {
        let drive = server.open().await.expect("it opens");
        let later = BufferPool::in_shared(BLOCK_BYTES, &shared_memory()).expect("a pool");
        let mut buffer = later.try_alloc(BLOCK_BYTES).expect("memory");
        buffer.fill(8);
        server.device().lent = 0;
        let (result, _) = drive.write(buffer, &[extent(4, 0, 1)]).await;
        result.expect("written");
        assert_eq!(read(&drive, 4).await.expect("read"), 8);
        assert_eq!(server.device().lent, 0);
    });
}

#[test]
fn a_buffer_of_a_transfer_that_was_dropped_is_nobody_elses_before_the_server_is_done() {
    for kind in [IN, OUT] {
        let server = Server::start();
        story_with_shared_buffers(async || {
            let drive = server.open().await.expect("it opens");
            let all = buffers().stats().free_bytes;
            server.device().holds = Some(kind);
            let (extents, runs) = ([extent(5, 0, 1)], [gather(6, 0, 0, 1)]);
            let mut dropped = match kind {
                IN => drive.read(filled(1, 1), &extents).map(drop).boxed_local(),
                _ => drive
                    .write_many(Rc::new(vec![filled(1, 2)]), &runs)
                    .map(drop)
                    .boxed_local(),
            };
            assert!(dropped.as_mut().now_or_never().is_none());
            drop(dropped);
            wait_for("the command", || server.device().held() == 1).await;
            let others = fill_all_that_is_free(7);
            assert_eq!(others.len() * BLOCK_BYTES, all - BLOCK_BYTES);
            server.let_go();
            wait_for("its memory", || buffers().stats().free_bytes > 0).await;
            let seen = server.device().disk[6 * BLOCK_BYTES];
            assert_eq!(seen, if kind == OUT { 2 } else { 0 });
            assert!(
                others
                    .iter()
                    .all(|other| other.iter().all(|byte| *byte == 7))
            );
        });
    }
}

#[test]
fn what_a_server_does_after_its_connection_was_lost_meets_no_buffer_of_others() {
    let server = Server::start();
    story_with_shared_buffers(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        let all = buffers().stats().free_bytes;
        server.device().holds = Some(OUT);
        let (result, mut buffer) = drive.write(filled(1, 2), &[extent(6, 0, 1)]).await;
        assert!(result.expect_err("no answer").is_in_doubt());
        assert_eq!(buffer[5], 2, "the data come back");
        buffer.fill(7);
        let many = Rc::new(vec![filled(1, 3)]);
        let result = drive.write_many(many.clone(), &[gather(7, 0, 0, 1)]).await;
        assert!(result.expect_err("no answer").is_in_doubt());
        drop(many);
        let others = fill_all_that_is_free(7);
        assert_eq!(others.len() * BLOCK_BYTES, all - 2 * BLOCK_BYTES);
        server.let_go();
        wait_for("the memory", || {
            buffers().stats().free_bytes == 2 * BLOCK_BYTES
        })
        .await;
        drop(others);
        assert_eq!(read(&drive, 6).await.expect("it happened after all"), 2);
        assert_eq!(read(&drive, 7).await.expect("it happened after all"), 3);
    });
}

#[test]
fn a_read_that_is_repeated_gives_what_the_second_answer_has() {
    let mut server = Server::start();
    story_with_shared_buffers(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        server.device().holds = Some(IN);
        let first = read_whole(&drive);
        let broken = async {
            wait_for("the read", || server.device().held() == 1).await;
            server.die();
            server.device().holds = None;
            server.come_back();
        };
        let (buffer, ()) = futures_util::join!(first, broken);
        assert!(buffer.iter().all(|byte| *byte == 1));
        // The first one is answered now, with other data.
        server.device().disk[5 * BLOCK_BYTES..6 * BLOCK_BYTES].fill(2);
        server.let_go();
        let free = || buffers().stats().free_bytes == buffers().stats().total_bytes;
        wait_for("the memory", free).await;
        assert!(buffer.iter().all(|byte| *byte == 1));
    });
}

async fn read_whole(drive: &dyn Drive) -> reactor::Buffer {
    let (result, buffer) = drive.read(filled(1, 0xee), &[extent(5, 0, 1)]).await;
    result.expect("by a new connection");
    buffer
}

#[test]
fn the_server_calls_a_reactor_only_while_it_sleeps() {
    let cases = [true, false].into_iter().flat_map(|has_event_index| {
        let spins = [(Duration::from_secs(60), false), (Duration::ZERO, true)];
        spins.map(|(spin, is_called)| (has_event_index, spin, is_called))
    });
    for (has_event_index, spin, is_called) in cases {
        let server = Server::start();
        if !has_event_index {
            server.device().features &= !FEATURE_EVENT_INDEX;
        }
        let config = Config {
            spin,
            ..Config::default()
        };
        story_on(config, async || {
            let drive = server.open().await.expect("it opens");
            server.device().calls = 0;
            server.device().holds = Some(OUT);
            for round in 1..=20 {
                let answers = server.let_go_when(is_called);
                write(&drive, 5, round).await.expect("written");
                answers.join().expect("it answered");
                let expected = if is_called { usize::from(round) } else { 0 };
                assert_eq!(server.device().calls, expected);
            }
        });
    }
}
