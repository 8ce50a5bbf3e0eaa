//! Stories of drives in a cluster that is a model of one.

mod cell;
mod conforms;
mod deferred;
mod model;
mod nodes;
mod owners;
mod registry;

use drives::nodes::Process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use reactor::{Buffer, Config, PoolConfig};

use crate::client::Cluster;
use crate::shared::Names;
use crate::{Limits, OpenOptions, RadosDrive};
use model::Model;

/// No story takes that long; one that does hangs.
const STORY_MAX: Duration = Duration::from_secs(60);

/// Bytes of the drives: five objects.
const BYTES: u64 = 20 << 20;

fn story(run: impl AsyncFnOnce()) {
    let config = Config {
        buffer_pool: PoolConfig { bytes: 16 << 20 },
        ..Config::default()
    };
    let ended = reactor::run(config, reactor::timeout(STORY_MAX, run()));
    ended
        .expect("this machine permits io_uring")
        .expect("the story hangs");
}

fn options() -> OpenOptions {
    OpenOptions {
        create_bytes: Some(BYTES),
        limits: Limits {
            lease: Duration::from_millis(300),
            grace: Duration::from_millis(300),
            ..Limits::default()
        },
        ..OpenOptions::default()
    }
}

fn names() -> Names {
    Names {
        name: "rados:p/d".to_owned(),
        drive: "d".to_owned(),
        pool: "p".to_owned(),
        user: "admin".to_owned(),
    }
}

async fn open_as(
    model: &Arc<Model>,
    options: OpenOptions,
    process: Process,
) -> Result<RadosDrive, DriveError> {
    let cluster: Arc<dyn Cluster> = Arc::new(model::Shared(model.clone()));
    RadosDrive::open_in(names(), cluster, options, process).await
}

async fn open(model: &Arc<Model>) -> RadosDrive {
    let opened = open_as(model, options(), Process::own()).await;
    opened.expect("it opens")
}

fn filled(blocks: usize, byte: u8) -> Buffer {
    let pool = reactor::current().expect("inside").buffers().clone();
    let mut buffer = pool.try_alloc(blocks * BLOCK_BYTES).expect("room");
    buffer.fill(byte);
    buffer
}

fn extent(block: u64, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset: 0,
        blocks,
    }
}

async fn write(drive: &dyn Drive, block: u64, byte: u8) -> Result<(), DriveError> {
    drive.write(filled(1, byte), &[extent(block, 1)]).await.0
}

async fn read(drive: &dyn Drive, block: u64) -> Result<u8, DriveError> {
    let (result, buffer) = drive.read(filled(1, 0xee), &[extent(block, 1)]).await;
    result.map(|()| buffer[0])
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < STORY_MAX, "waited for {what}");
        reactor::sleep(Duration::from_millis(2)).await;
    }
}
