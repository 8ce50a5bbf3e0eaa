//! Files and memory as drives: what they keep, and what they refuse.

use std::fs::{self, File};
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;

use drives::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, FaultDrive, FaultPlan, FileDrive,
    GatherExtent, MemoryDrive, OpenOptions,
};
use futures_util::FutureExt;
use proptest::prelude::*;
use reactor::{BufferPool, Config, PoolConfig};

const BLOCKS: u64 = 64;

fn on_a_reactor<T>(future: impl Future<Output = T>) -> T {
    let config = Config {
        buffer_pool: PoolConfig {
            bytes: 4 * 1024 * 1024,
        },
        ..Config::default()
    };
    reactor::run(config, future).expect("this machine permits io_uring")
}

fn buffers() -> BufferPool {
    reactor::current().expect("inside").buffers().clone()
}

/// A folder on a real file system: the temporary one is often in memory, without O_DIRECT.
fn folder() -> tempfile::TempDir {
    let beside_the_tests = std::env::current_exe().expect("a path");
    let parent = beside_the_tests.parent().expect("a folder").to_owned();
    tempfile::tempdir_in(parent).expect("a folder")
}

fn made(folder: &tempfile::TempDir) -> (PathBuf, FileDrive) {
    let path = folder.path().join("drive0");
    let options = OpenOptions {
        create_bytes: Some(BLOCKS * BLOCK_BYTES as u64),
        ..OpenOptions::default()
    };
    let drive = FileDrive::open(&path, &options).expect("made");
    (path, drive)
}

fn refusal(result: Result<FileDrive, DriveError>) -> (ErrorKind, String) {
    let error = result.expect_err("it must be refused");
    (error.kind(), error.to_string())
}

fn extent(block: u64, buffer_offset: usize, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset,
        blocks,
    }
}

/// Random operations against an array of bytes.
async fn behaves(drive: &dyn Drive, steps: &[(u8, u64, u32, u8)]) {
    let pool = buffers();
    let mut model = vec![0u8; BLOCKS as usize * BLOCK_BYTES];
    for &(what, block, blocks, byte) in steps {
        let block = block % BLOCKS;
        let blocks = (u64::from(blocks % 16) + 1).min(BLOCKS - block);
        let bytes = blocks as usize * BLOCK_BYTES;
        let at = block as usize * BLOCK_BYTES..block as usize * BLOCK_BYTES + bytes;
        match what % 8 {
            0..2 => {
                // From two buffers, in runs of three blocks that alternate between them.
                let mut both = Vec::new();
                for part in 0..2u8 {
                    let mut buffer = pool.alloc(bytes).await;
                    buffer.fill(byte.wrapping_add(part));
                    both.push(buffer);
                }
                let extents: Vec<GatherExtent> = (0..blocks)
                    .step_by(3)
                    .map(|first| GatherExtent {
                        block: block + first,
                        buffer: (first / 3 % 2) as u32,
                        buffer_offset: first as u32 * BLOCK_BYTES as u32,
                        blocks: (blocks - first).min(3) as u32,
                    })
                    .collect();
                for extent in &extents {
                    let start = extent.block as usize * BLOCK_BYTES;
                    let bytes = extent.blocks as usize * BLOCK_BYTES;
                    model[start..start + bytes].fill(byte.wrapping_add(extent.buffer as u8));
                }
                let both = Rc::new(both);
                let result = drive.write_many(both.clone(), &extents).await;
                result.expect("written");
                let back = Rc::try_unwrap(both).expect("the drive gave up its share");
                assert_eq!((back.len(), back[1][0]), (2, byte.wrapping_add(1)));
            }
            2..4 => {
                // In two extents, swapped in the buffer.
                let half = blocks as u32 / 2;
                let rest = blocks as u32 - half;
                let extents = [
                    extent(block, rest as usize * BLOCK_BYTES, half),
                    extent(block + u64::from(half), 0, rest),
                ];
                let mut buffer = pool.alloc(bytes).await;
                for (i, chunk) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
                    chunk.fill(byte.wrapping_add(i as u8));
                }
                let (low, high) = buffer.split_at(rest as usize * BLOCK_BYTES);
                model[at].copy_from_slice(&[high, low].concat());
                let (result, _) = drive.write(buffer, &extents).await;
                result.expect("written");
            }
            4..6 => {
                let buffer = pool.alloc(bytes).await;
                let (result, buffer) = drive.read(buffer, &[extent(block, 0, blocks as u32)]).await;
                result.expect("read");
                assert!(buffer[..] == model[at]);
            }
            6 => drive.flush().await.expect("flushed"),
            _ => {
                drive.discard(block, blocks).await.expect("discarded");
                // What it reads as is not promised: write it again.
                let mut buffer = pool.alloc(bytes).await;
                buffer.fill(byte);
                model[at].fill(byte);
                let (result, _) = drive
                    .write(buffer, &[extent(block, 0, blocks as u32)])
                    .await;
                result.expect("written");
            }
        }
    }
    let buffer = pool.alloc(model.len()).await;
    let (result, buffer) = drive.read(buffer, &[extent(0, 0, BLOCKS as u32)]).await;
    result.expect("read");
    assert!(buffer[..] == model[..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_drive_behaves_like_an_array_of_blocks(
        steps in proptest::collection::vec(any::<(u8, u64, u32, u8)>(), 1..60),
        seed: u64,
    ) {
        let folder = folder();
        on_a_reactor(async {
            behaves(&made(&folder).1, &steps).await;
            behaves(&MemoryDrive::new(BLOCKS), &steps).await;
            let plan = FaultPlan { seed, max_delay: 3, ..FaultPlan::default() };
            behaves(&FaultDrive::new(BLOCKS, plan), &steps).await;
        });
    }
}

#[test]
fn a_file_is_made_sparse_and_found_again_with_its_content() {
    let folder = folder();
    on_a_reactor(async {
        let (path, drive) = made(&folder);
        assert_eq!(drive.blocks(), BLOCKS);
        assert_eq!(drive.name(), path.display().to_string());
        use std::os::unix::fs::MetadataExt;
        assert_eq!(
            fs::metadata(&path).expect("it is there").blocks(),
            0,
            "sparse"
        );
        let mut buffer = buffers().alloc(BLOCK_BYTES).await;
        buffer.fill(3);
        let (result, buffer) = drive.write(buffer, &[extent(5, 0, 1)]).await;
        result.expect("written");
        drive.flush().await.expect("flushed");
        drop(drive);
        let options = OpenOptions {
            expected_blocks: Some(BLOCKS),
            ..OpenOptions::default()
        };
        let drive = FileDrive::open(&path, &options).expect("found");
        let (result, buffer) = drive.read(buffer, &[extent(5, 0, 1)]).await;
        result.expect("read");
        assert!(buffer.iter().all(|&byte| byte == 3));
    });
}

#[test]
fn discarded_space_goes_back_to_the_file_system() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    on_a_reactor(async {
        let (path, drive) = made(&folder);
        let mut buffer = buffers().alloc(BLOCKS as usize * BLOCK_BYTES).await;
        buffer.fill(1);
        drive
            .write(buffer, &[extent(0, 0, BLOCKS as u32)])
            .await
            .0
            .expect("written");
        drive.flush().await.expect("flushed");
        let before = fs::metadata(&path).expect("it is there");
        drive.discard(0, BLOCKS).await.expect("discarded");
        let after = fs::metadata(&path).expect("it is there");
        assert_eq!(after.len(), before.len());
        assert!(after.blocks() <= before.blocks());
    });
}

#[test]
fn a_missing_file_is_named_and_not_made_unasked() {
    let folder = folder();
    let path = folder.path().join("nowhere");
    let (kind, text) = refusal(FileDrive::open(&path, &OpenOptions::default()));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains("nowhere"), "{text}");
    assert!(!path.exists());
    let options = OpenOptions {
        create_bytes: Some(1 << 20),
        ..OpenOptions::default()
    };
    let (kind, text) = refusal(FileDrive::open(path.join("deeper"), &options));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains("folder"), "{text}");
}

#[test]
fn a_missing_device_is_refused_and_no_file_is_made_in_its_place() {
    let path = "/dev/onefold-no-such-drive";
    let options = OpenOptions {
        create_bytes: Some(BLOCKS * BLOCK_BYTES as u64),
        ..OpenOptions::default()
    };
    let (kind, text) = refusal(FileDrive::open(path, &options));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains(path), "{text}");
    assert!(!PathBuf::from(path).exists());
}

#[test]
fn what_is_no_drive_is_refused_by_what_it_is() {
    let folder = folder();
    let (kind, text) = refusal(FileDrive::open(folder.path(), &OpenOptions::default()));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("directory"), "{text}");
    let (kind, text) = refusal(FileDrive::open("/dev/null", &OpenOptions::default()));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("special file"), "{text}");
}

#[test]
fn a_file_in_use_is_refused_until_it_is_free() {
    let folder = folder();
    let (path, drive) = made(&folder);
    let (kind, text) = refusal(FileDrive::open(&path, &OpenOptions::default()));
    assert_eq!(kind, ErrorKind::InUse);
    assert!(text.contains("another process"), "{text}");
    drop(drive);
    FileDrive::open(&path, &OpenOptions::default()).expect("it is free");
}

#[test]
fn a_truncated_file_is_refused_with_both_sizes() {
    let folder = folder();
    let (path, drive) = made(&folder);
    drop(drive);
    File::options()
        .write(true)
        .open(&path)
        .expect("opened")
        .set_len(100_000)
        .expect("cut");
    let options = OpenOptions {
        expected_blocks: Some(BLOCKS),
        ..OpenOptions::default()
    };
    let (kind, text) = refusal(FileDrive::open(&path, &options));
    assert_eq!(kind, ErrorKind::Truncated);
    assert!(text.contains("100000") && text.contains("262144"), "{text}");
    assert_eq!(
        fs::metadata(&path).expect("it is there").len(),
        100_000,
        "left as it was"
    );
}

#[test]
fn a_file_too_small_or_of_a_wrong_size_is_refused() {
    let folder = folder();
    let path = folder.path().join("small");
    File::create(&path)
        .expect("made")
        .set_len(4095)
        .expect("cut");
    let (kind, text) = refusal(FileDrive::open(&path, &OpenOptions::default()));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("too small"), "{text}");
    for bytes in [0, 4097, u64::MAX - 4095] {
        let options = OpenOptions {
            create_bytes: Some(bytes),
            ..OpenOptions::default()
        };
        let path = folder.path().join("new");
        let (kind, _) = refusal(FileDrive::open(&path, &options));
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(!path.exists());
    }
    let options = OpenOptions {
        create_bytes: Some(1 << 20),
        ..OpenOptions::default()
    };
    File::options()
        .write(true)
        .open(&path)
        .expect("opened")
        .set_len(8192)
        .expect("grown");
    let (_, text) = refusal(FileDrive::open(&path, &options));
    assert!(text.contains("there already"), "{text}");
}

#[test]
fn a_file_truncated_while_in_use_is_reported_and_never_read_as_zeros() {
    let folder = folder();
    on_a_reactor(async {
        let (path, drive) = made(&folder);
        File::options()
            .write(true)
            .open(&path)
            .expect("opened")
            .set_len(8192 + 100)
            .expect("cut");
        let buffer = buffers().alloc(4 * BLOCK_BYTES).await;
        let (result, _) = drive.read(buffer, &[extent(1, 0, 4)]).await;
        let error = result.expect_err("it ends early");
        assert_eq!(error.kind(), ErrorKind::Truncated);
        assert!(error.to_string().contains("truncated"), "{error}");
    });
}

#[test]
fn memory_is_taken_when_it_is_written_and_given_back_when_nobody_needs_it() {
    let pool = BufferPool::new(1).expect("memory");
    let chunk = 512;
    let drive = MemoryDrive::new(64 * chunk);
    assert_eq!((drive.memory_bytes(), drive.written_blocks()), (0, 0));
    let mut buffer = pool.try_alloc(2 * BLOCK_BYTES).expect("room");
    buffer.fill(7);
    // Across the border of two chunks of 2 MiB, and far away.
    let extents = [extent(chunk - 1, 0, 2), extent(20 * chunk, 0, 2)];
    let (result, buffer) = drive.write(buffer, &extents).now_or_never().expect("now");
    result.expect("written");
    assert_eq!((drive.memory_bytes(), drive.written_blocks()), (6 << 20, 4));
    drive
        .discard(0, chunk)
        .now_or_never()
        .expect("now")
        .expect("done");
    assert_eq!((drive.memory_bytes(), drive.written_blocks()), (4 << 20, 3));
    let (result, buffer) = drive
        .read(buffer, &[extent(chunk - 1, 0, 2)])
        .now_or_never()
        .expect("now");
    result.expect("read");
    let (gone, kept) = buffer.split_at(BLOCK_BYTES);
    assert!(gone.iter().all(|&byte| byte == 0) && kept.iter().all(|&byte| byte == 7));
    drive
        .discard(0, drive.blocks())
        .now_or_never()
        .expect("now")
        .expect("done");
    assert_eq!((drive.memory_bytes(), drive.written_blocks()), (0, 0));
}

#[test]
fn a_resident_drive_has_its_memory_from_the_start_and_keeps_it() {
    let pool = BufferPool::new(1).expect("memory");
    let drive = MemoryDrive::resident(2 * 512).expect("4 MiB");
    assert_eq!((drive.memory_bytes(), drive.written_blocks()), (4 << 20, 0));
    let mut buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
    buffer.fill(7);
    let (result, buffer) = drive
        .write(buffer, &[extent(600, 0, 1)])
        .now_or_never()
        .expect("now");
    result.expect("written");
    let all = drive.discard(0, drive.blocks());
    all.now_or_never().expect("now").expect("done");
    assert_eq!((drive.memory_bytes(), drive.written_blocks()), (4 << 20, 0));
    let (result, buffer) = drive
        .read(buffer, &[extent(600, 0, 1)])
        .now_or_never()
        .expect("now");
    result.expect("read");
    assert!(buffer[..BLOCK_BYTES].iter().all(|&byte| byte == 0));
}

#[test]
fn hundreds_of_scattered_pieces_reach_a_file_in_one_call() {
    let folder = folder();
    on_a_reactor(async {
        let path = folder.path().join("drive0");
        let options = OpenOptions {
            create_bytes: Some(16 << 20),
            ..OpenOptions::default()
        };
        let drive = FileDrive::open(&path, &options).expect("made");
        let pool = buffers();
        let mut given = Vec::new();
        for index in 0..4u8 {
            let mut buffer = pool.alloc(128 * BLOCK_BYTES).await;
            for (at, block) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
                block.fill(index * 64 + at as u8 % 61);
            }
            given.push(buffer);
        }
        // Runs of 300 neighbours whose bytes come from all buffers in turn: more than fit into one
        // vectored write; and a hole behind each run.
        let place = |piece: u64| piece + piece / 300;
        let extents: Vec<GatherExtent> = (0..512u64)
            .map(|piece| GatherExtent {
                block: place(piece),
                buffer: (piece % 4) as u32,
                buffer_offset: (piece / 4) as u32 * BLOCK_BYTES as u32,
                blocks: 1,
            })
            .collect();
        let given = Rc::new(given);
        let result = drive.write_many(given.clone(), &extents).await;
        result.expect("written");
        for piece in 0..512u64 {
            let buffer = pool.alloc(BLOCK_BYTES).await;
            let (result, buffer) = drive.read(buffer, &[extent(place(piece), 0, 1)]).await;
            result.expect("read");
            let from = &given[piece as usize % 4][piece as usize / 4 * BLOCK_BYTES..];
            assert!(buffer[..] == from[..BLOCK_BYTES], "piece {piece}");
        }
    });
}

#[test]
fn transfers_outside_the_drive_or_the_buffer_are_refused() {
    let pool = BufferPool::new(1).expect("memory");
    let drive = MemoryDrive::new(BLOCKS);
    let wrong = [
        extent(BLOCKS, 0, 1),
        extent(BLOCKS - 1, 0, 2),
        extent(u64::MAX, 0, 2),
        extent(0, 1, 1),
        extent(0, BLOCK_BYTES, 2),
        extent(0, usize::MAX - 4095, 1),
        extent(0, 0, u32::MAX),
    ];
    for extent in wrong {
        let buffer = pool.try_alloc(2 * BLOCK_BYTES).expect("room");
        let (result, _) = drive
            .read(buffer, &[extent])
            .now_or_never()
            .expect("at once");
        assert_eq!(
            result.expect_err("refused").kind(),
            ErrorKind::Invalid,
            "{extent:?}"
        );
    }
    let wrong = [
        (BLOCKS, 0, 0, 1),
        (0, 1, 0, 1),
        (0, 0, 1, 1),
        (0, 0, 4096, 2),
        (0, 0, u32::MAX - 4095, 1),
        (0, 0, 0, u32::MAX),
    ];
    for (block, buffer, buffer_offset, blocks) in wrong {
        let extent = GatherExtent {
            block,
            buffer,
            buffer_offset,
            blocks,
        };
        let given = Rc::new(vec![pool.try_alloc(2 * BLOCK_BYTES).expect("room")]);
        let result = drive
            .write_many(given, &[extent])
            .now_or_never()
            .expect("at once");
        let error = result.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{extent:?}");
    }
    let refused = drive.discard(1, u64::MAX).now_or_never().expect("at once");
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Invalid);
}

#[test]
fn without_a_reactor_a_file_drive_says_what_it_needs() {
    let folder = folder();
    let (_, drive) = made(&folder);
    let pool = BufferPool::new(1).expect("memory");
    let buffer = pool.try_alloc(BLOCK_BYTES).expect("room");
    let (result, _) = drive
        .read(buffer, &[extent(0, 0, 1)])
        .now_or_never()
        .expect("no reactor, no wait");
    let text = result.expect_err("no reactor").to_string();
    assert!(text.contains("reactor"), "{text}");
}
