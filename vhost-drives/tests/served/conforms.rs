//! What every kind of drive must do.

use std::sync::Arc;

use conformance::Races;

use crate::qemu::Qemu;
use crate::server::{FEATURE_INDIRECT, Server, options};
use crate::story::{story, story_with_shared_buffers};

#[test]
fn a_device_of_a_server_does_what_every_drive_must() {
    for (is_indirect, queues) in [(true, 4), (true, 1), (false, 2)] {
        let server = Server::start();
        server.device().queues = queues;
        if !is_indirect {
            server.device().features &= !FEATURE_INDIRECT;
        }
        story(async || {
            let drive = Arc::new(server.open().await.expect("it opens"));
            conformance::check(drive.clone(), Races::ReadsAreWhole, queues).await;
            let fail = |fails: bool| server.device().fails_with = fails.then_some(1);
            conformance::check_failures(drive, fail).await;
        });
    }
}

#[test]
fn a_device_that_uses_shared_buffers_does_what_every_drive_must() {
    for is_indirect in [true, false] {
        let server = Server::start();
        if !is_indirect {
            server.device().features &= !FEATURE_INDIRECT;
        }
        story_with_shared_buffers(async || {
            let drive = Arc::new(server.open().await.expect("it opens"));
            conformance::check(drive.clone(), Races::ReadsAreWhole, 3).await;
            let fail = |fails: bool| server.device().fails_with = fails.then_some(1);
            conformance::check_failures(drive, fail).await;
            assert!(server.device().lent > 100, "most of it was not copied");
        });
    }
}

#[test]
fn a_device_of_qemu_does_what_every_drive_must() {
    let Some(qemu) = Qemu::start() else { return };
    let check = async || {
        let drive = Arc::new(qemu.open(options()).await);
        for seed in 0..3 {
            conformance::check(drive.clone(), Races::TheEndIsWhole, seed).await;
        }
    };
    story(check);
    story_with_shared_buffers(check);
}
