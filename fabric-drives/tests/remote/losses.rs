//! A target that goes away, comes back, and is not what it was.

use std::path::Path;

use drives::{Drive, ErrorKind};
use fabric_drives::forget_losses;
use nvme::io::OPCODE_WRITE;

use crate::sled::{Sled, read, story, write};

#[test]
fn a_target_that_is_gone_is_an_error_within_the_limits_and_used_again_when_it_is_back() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        sled.die();
        let error = read(&drive, 5).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(!error.is_in_doubt());
        assert!(write(&drive, 5, 2).await.is_err());
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("it is back"), 1);
        write(&drive, 5, 3).await.expect("it is back");
        drive.flush().await.expect("nothing was lost");
    });
}

#[test]
fn a_read_whose_connection_breaks_is_repeated_on_the_next_one() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        sled.die();
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("repeated"), 1);
        assert_eq!(sled.media().connected.len(), 2);
    });
}

#[test]
fn a_write_without_an_answer_is_in_doubt_and_is_not_repeated() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        sled.holds_writes
            .store(true, std::sync::atomic::Ordering::Release);
        let error = write(&drive, 5, 1).await.expect_err("no answer");
        assert!(error.is_in_doubt(), "{error}");
        assert_eq!(sled.media().count(OPCODE_WRITE), 1);
        sled.holds_writes
            .store(false, std::sync::atomic::Ordering::Release);
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 0);
        sled.media().let_go();
        assert_eq!(read(&drive, 5).await.expect("it happened after all"), 1);
    });
}

#[test]
fn a_flush_fails_when_writes_before_it_may_be_lost_with_the_targets_cache() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written, not flushed");
        sled.die();
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 1);
        write(&drive, 6, 1).await.expect("written");
        for _ in 0..2 {
            let error = drive
                .flush()
                .await
                .expect_err("the first write may be lost");
            assert!(error.to_string().contains("may be lost"), "{error}");
        }
        // Somebody compares the whole drive.
        forget_losses(Path::new(drive.name()));
        drive.flush().await.expect("nothing is to be told any more");
    });
}

#[test]
fn another_namespace_at_the_address_is_not_written_to() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        let uuid = sled.media().uuid;
        sled.die();
        sled.media().uuid = [7; 16];
        sled.come_back();
        let error = read(&drive, 5).await.expect_err("another namespace");
        assert!(error.to_string().contains("another namespace"), "{error}");
        let error = write(&drive, 5, 1).await.expect_err("another namespace");
        assert!(!error.is_in_doubt());
        assert!(sled.media().commands.is_empty(), "nothing was asked of it");
        sled.die();
        sled.media().uuid = uuid;
        sled.come_back();
        write(&drive, 5, 1).await.expect("the right one is back");
    });
}

#[test]
fn a_namespace_of_another_size_or_format_is_not_written_to() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        let good = sled.media().namespace.clone();
        for change in [true, false] {
            sled.die();
            match change {
                true => sled.media().namespace.nsze -= 1,
                false => sled.media().namespace.lbaf[0].lbads = 9,
            }
            sled.come_back();
            assert!(read(&drive, 5).await.is_err());
            let error = write(&drive, 5, 1).await.expect_err("it changed");
            assert!(error.to_string().contains("when it was opened"), "{error}");
            assert!(sled.media().commands.is_empty());
            sled.media().namespace = good.clone();
        }
    });
}
