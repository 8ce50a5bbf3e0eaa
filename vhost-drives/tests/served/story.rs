//! Small tools of the stories.

use std::time::{Duration, Instant};

use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use reactor::{Buffer, Config, PoolConfig, SharedMemory, SharedPages};

/// No story takes that long; one that does hangs.
const STORY_MAX: Duration = Duration::from_secs(120);

/// Bytes of the buffers.
const BUFFER_BYTES: usize = 8 << 20;

/// Runs a story on a reactor.
pub(crate) fn story(run: impl AsyncFnOnce()) {
    story_on(Config::default(), run);
}

/// The same with buffers that servers of drives can map.
pub(crate) fn story_with_shared_buffers(run: impl AsyncFnOnce()) {
    let config = Config {
        shared_memory: Some(shared_memory()),
        ..Config::default()
    };
    story_on(config, run);
}

/// Memory for the buffers of a story.
pub(crate) fn shared_memory() -> SharedMemory {
    SharedMemory::new(BUFFER_BYTES, SharedPages::Usual).expect("memory")
}

pub(crate) fn story_on(config: Config, run: impl AsyncFnOnce()) {
    let config = Config {
        buffer_pool: PoolConfig {
            bytes: BUFFER_BYTES,
        },
        ..config
    };
    let ended = reactor::run(config, reactor::timeout(STORY_MAX, run()));
    ended
        .expect("this machine permits io_uring")
        .expect("the story hangs");
}

pub(crate) fn filled(blocks: usize, byte: u8) -> Buffer {
    let pool = reactor::current().expect("inside").buffers().clone();
    let mut buffer = pool.try_alloc(blocks * BLOCK_BYTES).expect("room");
    buffer.fill(byte);
    buffer
}

pub(crate) fn extent(block: u64, buffer_offset: usize, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset,
        blocks,
    }
}

pub(crate) async fn write(drive: &dyn Drive, block: u64, byte: u8) -> Result<(), DriveError> {
    drive.write(filled(1, byte), &[extent(block, 0, 1)]).await.0
}

pub(crate) async fn read(drive: &dyn Drive, block: u64) -> Result<u8, DriveError> {
    let (result, buffer) = drive.read(filled(1, 0xee), &[extent(block, 0, 1)]).await;
    result.map(|()| buffer[0])
}

/// Waits for a condition.
pub(crate) async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < STORY_MAX, "waited for {what}");
        reactor::sleep(Duration::from_millis(2)).await;
    }
}
