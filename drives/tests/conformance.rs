//! Files, memory, and the drive that can fail: what every kind of drive must do.

use std::sync::Arc;

use conformance::{BLOCKS, Races};
use drives::{
    AbsentDrive, BLOCK_BYTES, Drive, Extent, FaultDrive, FaultPlan, FileDrive, FrontDrive,
    MemoryDrive, OpenOptions,
};
use reactor::{Config, PoolConfig};

fn on_a_reactor(story: impl Future<Output = ()>) {
    let config = Config {
        buffer_pool: PoolConfig { bytes: 4 << 20 },
        ..Config::default()
    };
    reactor::run(config, story).expect("this machine permits io_uring");
}

#[test]
fn a_file_does_what_every_drive_must() {
    // On a real file system: the temporary folder is often in memory, without O_DIRECT.
    let beside_the_tests = std::env::current_exe().expect("a path");
    let parent = beside_the_tests.parent().expect("a folder").to_owned();
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    let options = OpenOptions {
        create_bytes: Some(BLOCKS * BLOCK_BYTES as u64),
        ..OpenOptions::default()
    };
    let drive = FileDrive::open(folder.path().join("drive0"), &options).expect("made");
    on_a_reactor(async {
        let drive = Arc::new(drive);
        for seed in 0..4 {
            // The system lets reads of a file race with writes.
            conformance::check(drive.clone(), Races::TheEndIsWhole, seed).await;
        }
    });
}

#[test]
fn memory_does_what_every_drive_must() {
    on_a_reactor(async {
        for seed in 0..4 {
            let drive = Arc::new(MemoryDrive::new(BLOCKS));
            conformance::check(drive, Races::ReadsAreWhole, seed).await;
        }
    });
}

#[test]
fn the_front_part_of_a_drive_does_what_every_drive_must_and_touches_nothing_behind_it() {
    on_a_reactor(async {
        for seed in 0..4 {
            let whole = Arc::new(MemoryDrive::new(BLOCKS + 7));
            let front = Arc::new(FrontDrive::new(whole.clone(), BLOCKS));
            conformance::check(front, Races::ReadsAreWhole, seed).await;
            let buffers = reactor::current().expect("inside").buffers().clone();
            let buffer = buffers.alloc(7 * BLOCK_BYTES).await;
            let behind = Extent {
                block: BLOCKS,
                buffer_offset: 0,
                blocks: 7,
            };
            let (read, buffer) = whole.read(buffer, &[behind]).await;
            read.expect("memory can be read");
            assert!(buffer[..7 * BLOCK_BYTES].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn the_drive_that_can_fail_does_what_every_drive_must() {
    on_a_reactor(async {
        for seed in 0..4 {
            let plan = FaultPlan {
                seed,
                max_delay: 3,
                ..FaultPlan::default()
            };
            let drive = Arc::new(FaultDrive::new(BLOCKS, plan));
            conformance::check(drive, Races::ReadsAreWhole, seed).await;
        }
    });
}

#[test]
fn a_drive_that_is_not_there_fails_with_its_reason() {
    let drive = AbsentDrive::new("/dev/gone".to_owned(), BLOCKS, "it is gone".to_owned());
    on_a_reactor(async { conformance::check_absent(&drive).await });
}
