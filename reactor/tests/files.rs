//! Files through the ring, from registered buffers and from others.

use std::fs::File;
use std::future::Future;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use reactor::file::{self, FileExtent};
use reactor::{BufferPool, Config, PoolConfig, run, yield_now};

fn on_a_reactor<T>(future: impl Future<Output = T>) -> T {
    let config = Config {
        // Fewer entries than the tests have operations in flight.
        ring_entries: 8,
        spin: Duration::ZERO,
        buffer_pool: PoolConfig {
            bytes: 8 * 1024 * 1024,
        },
        ..Config::default()
    };
    run(config, future).expect("this machine permits io_uring")
}

/// The reactor's own pool, which is registered with the ring, and one that is not.
fn pools() -> [BufferPool; 2] {
    let own = reactor::current().expect("inside").buffers().clone();
    [own, BufferPool::new(8 * 1024 * 1024).expect("memory")]
}

fn temporary() -> (File, Arc<OwnedFd>) {
    let file = tempfile::tempfile().expect("a temporary file");
    let descriptor = Arc::new(file.try_clone().expect("a duplicate").into());
    (file, descriptor)
}

fn extent(file_offset: u64, buffer_offset: usize, len: usize) -> FileExtent {
    FileExtent {
        file_offset,
        buffer_offset,
        len,
    }
}

#[test]
fn extents_are_scattered_and_gathered() {
    on_a_reactor(async {
        for pool in pools() {
            let (_, fd) = temporary();
            let mut buffer = pool.alloc(3 * 4096).await;
            for (i, block) in buffer.chunks_mut(4096).enumerate() {
                block.fill(i as u8 + 1);
            }
            let extents = [
                extent(40_960, 0, 4096),
                extent(0, 4096, 4096),
                extent(8192, 8192, 4096),
            ];
            let (result, mut buffer) = file::write(&fd, buffer, &extents).await;
            result.expect("written");
            buffer.fill(0xff);
            let extents = [
                extent(0, 8192, 4096),
                extent(40_960, 4096, 4096),
                extent(4096, 0, 4096),
            ];
            let (result, buffer) = file::read(&fd, buffer, &extents).await;
            result.expect("read");
            let first_bytes: Vec<u8> = buffer.chunks(4096).map(|block| block[0]).collect();
            assert_eq!(
                first_bytes,
                [0, 1, 2],
                "a hole, then the first block, then the second"
            );
            assert!(
                buffer
                    .chunks(4096)
                    .all(|block| block.iter().all(|byte| *byte == block[0]))
            );
        }
    });
}

#[test]
fn more_operations_than_the_ring_has_entries_all_complete() {
    on_a_reactor(async {
        for pool in pools() {
            let (file, fd) = temporary();
            let content: Vec<u8> = (0..1024u32).flat_map(|i| [(i % 251) as u8; 4096]).collect();
            file.write_all_at(&content, 0).expect("written");
            let whole = 512 * 4096;
            // Every block of half the file as an extent of its own, in reverse; twice at once.
            let reads = (0..2u64).map(|half| {
                let (pool, fd) = (pool.clone(), fd.clone());
                async move {
                    let extents: Vec<_> = (0..512u64)
                        .map(|i| extent((half * 512 + 511 - i) * 4096, i as usize * 4096, 4096))
                        .collect();
                    file::read(&fd, pool.alloc(whole).await, &extents).await
                }
            });
            for (half, (result, buffer)) in join_all(reads).await.into_iter().enumerate() {
                result.expect("read");
                for (i, block) in buffer.chunks(4096).enumerate() {
                    let expected = ((half * 512 + 511 - i) % 251) as u8;
                    assert!(
                        block.iter().all(|&byte| byte == expected),
                        "block {i} of {half}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_file_that_ends_early_is_an_error_and_the_buffer_comes_back() {
    on_a_reactor(async {
        for pool in pools() {
            let (file, fd) = temporary();
            for len in [0u64, 100, 4096, 4196, 8191] {
                file.set_len(len).expect("resized");
                let buffer = pool.alloc(8192).await;
                let (result, buffer) = file::read(&fd, buffer, &[extent(0, 0, 8192)]).await;
                let error = result.expect_err("it is too short");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                assert!(
                    error.to_string().contains(&format!("byte {len}")),
                    "{error}"
                );
                assert_eq!(buffer.len(), 8192);
            }
        }
    });
}

#[test]
fn extents_outside_the_buffer_are_refused() {
    on_a_reactor(async {
        let (_, fd) = temporary();
        let mut buffer = pools()[0].alloc(4096).await;
        for wrong in [
            extent(0, 0, 4097),
            extent(0, 4096, 1),
            extent(0, usize::MAX, 2),
        ] {
            let result;
            (result, buffer) = file::read(&fd, buffer, &[wrong]).await;
            assert_eq!(result.expect_err("outside").kind(), ErrorKind::InvalidInput);
        }
        let (result, _) = file::write(&fd, buffer, &[extent(u64::MAX - 5, 0, 4096)]).await;
        assert_eq!(
            result.expect_err("no such offset").kind(),
            ErrorKind::InvalidInput
        );
    });
}

#[test]
fn an_error_of_the_kernel_is_passed_on() {
    on_a_reactor(async {
        let fd: Arc<OwnedFd> = Arc::new(File::open("/dev/null").expect("it exists").into());
        let buffer = pools()[0].alloc(4096).await;
        let (result, _) = file::write(&fd, buffer, &[extent(0, 0, 4096)]).await;
        assert_eq!(
            result.expect_err("opened for reading").raw_os_error(),
            Some(libc::EBADF)
        );
    });
}

#[test]
fn a_discarded_range_reads_as_zeros_and_the_file_keeps_its_size() {
    on_a_reactor(async {
        let (mut file, fd) = temporary();
        file.write_all(&[7; 12_288]).expect("written");
        match file::discard(&fd, 4096, 4096).await {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            Err(error) => panic!("{error}"),
        }
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("seekable");
        file.read_to_end(&mut content).expect("read");
        assert_eq!(content.len(), 12_288);
        assert!(content[4096..8192].iter().all(|&byte| byte == 0));
        assert!(
            content[..4096]
                .iter()
                .chain(&content[8192..])
                .all(|&byte| byte == 7)
        );
        file::discard(&fd, 0, 0).await.expect("nothing to do");
    });
}

#[test]
fn a_dropped_future_neither_frees_its_buffer_early_nor_corrupts_another() {
    on_a_reactor(async {
        for pool in pools() {
            let (file, fd) = temporary();
            let total = pool.stats().total_bytes;
            file.write_all_at(&vec![0xee; 1 << 20], 0).expect("written");
            for round in 0..200 {
                let buffer = pool.alloc(1 << 20).await;
                let extents: Vec<_> = (0..256)
                    .map(|i| extent(i * 4096, i as usize * 4096, 4096))
                    .collect();
                let mut read = Box::pin(file::read(&fd, buffer, &extents));
                assert!(
                    (&mut read).now_or_never().is_none(),
                    "submitted, not complete"
                );
                if round % 2 == 0 {
                    yield_now().await;
                }
                drop(read);
                // Whatever is allocated now is not what the kernel writes to.
                let mut other = pool.alloc(1 << 20).await;
                other.fill(0x11);
                yield_now().await;
                assert!(other.iter().all(|&byte| byte == 0x11));
            }
            while pool.stats().free_bytes < total {
                yield_now().await;
            }
        }
    });
}

#[test]
fn a_reactor_that_stops_waits_for_the_kernel() {
    let pool = BufferPool::new(8 * 1024 * 1024).expect("memory");
    let (file, fd) = temporary();
    file.write_all_at(&vec![0xee; 1 << 20], 0).expect("written");
    for _ in 0..50 {
        on_a_reactor(async {
            let buffer = pool.alloc(1 << 20).await;
            let fd = fd.clone();
            let task =
                reactor::spawn(
                    async move { file::read(&fd, buffer, &[extent(0, 0, 1 << 20)]).await.0 },
                );
            yield_now().await;
            drop(task);
        });
        assert_eq!(pool.stats().free_bytes, pool.stats().total_bytes);
    }
}

#[test]
fn without_a_reactor_there_is_a_clear_error() {
    let (_, fd) = temporary();
    let pool = BufferPool::new(1).expect("memory");
    let buffer = pool.try_alloc(4096).expect("room");
    let extents = [extent(0, 0, 4096)];
    let (result, _buffer) = file::read(&fd, buffer, &extents)
        .now_or_never()
        .expect("at once");
    assert!(
        result
            .expect_err("no reactor")
            .to_string()
            .contains("reactor")
    );
}
