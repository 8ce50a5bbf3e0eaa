//! A target that goes away, comes back, and is not what it was.

use std::path::Path;

use drives::{Drive, ErrorKind};
use fabric_drives::forget_losses;
use nvme::io::OPCODE_WRITE;

use crate::sled::{SUBSYSTEM, Sled, options, read, story, write};

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
        forget_losses(Path::new(drive.name())).await;
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

#[test]
fn a_loss_that_a_reactor_has_not_noticed_yet_is_forgotten_with_the_others() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = std::sync::Arc::new(sled.open().await.expect("it opens"));
        let other = reactor::start(reactor::Config::default()).expect("a reactor");
        let on_other = |block| {
            let drive = drive.clone();
            other
                .handle()
                .spawn(move || async move { write(&drive, block, 9).await })
        };
        write(&drive, 5, 1).await.expect("written, not flushed");
        on_other(6).await.expect("it runs").expect("written");
        sled.die();
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 1);
        drive
            .flush()
            .await
            .expect_err("what was written may be lost");
        // Somebody compares the whole drive; the other reactor did not use it since.
        forget_losses(Path::new(drive.name())).await;
        on_other(6).await.expect("it runs").expect("written again");
        drive.flush().await.expect("nothing is to be told any more");
        other.stop_and_join();
    });
}

#[test]
fn a_drive_with_two_ways_is_reached_by_the_second_while_the_first_is_silent_or_refuses() {
    let mut sled = Sled::start(4096);
    // The kernel takes its connections, and nobody answers on them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_at = silent.local_addr().expect("it is bound");
    let by_way_of = |first: &str| sled.address().replace("tcp://", &format!("tcp://{first},"));
    let named = [silent_at.to_string(), "127.0.0.1:1".to_owned()].map(|at| by_way_of(&at));
    story(async || {
        for named in named {
            let address = named.parse().expect("an address");
            let drive = fabric_drives::RemoteDrive::open(address, options());
            let drive = drive.await.expect("the second way leads there");
            assert_eq!(drive.name(), named);
            write(&drive, 5, 1).await.expect("written");
            // So does each connection after that.
            sled.die();
            sled.come_back();
            assert_eq!(read(&drive, 5).await.expect("repeated"), 1);
        }
    });
}

#[test]
fn a_second_way_that_leads_to_another_namespace_is_not_used() {
    let (mut sled, other) = (Sled::start(4096), Sled::start(4096));
    story(async || {
        let second = other.address();
        let second = second.trim_start_matches("nvme+tcp://");
        let (second, _) = second.split_once('/').expect("a host");
        let named = sled
            .address()
            .replace(&format!("/{SUBSYSTEM}"), &format!(",{second}/{SUBSYSTEM}"));
        let address = named.parse().expect("an address");
        let drive = fabric_drives::RemoteDrive::open(address, options());
        let drive = drive.await.expect("the first way leads there");
        write(&drive, 5, 1).await.expect("written");
        sled.die();
        let error = write(&drive, 5, 2).await.expect_err("it is lost");
        assert!(error.to_string().contains("gone"), "{error}");
        let error = write(&drive, 5, 2).await.expect_err("another namespace");
        assert!(error.to_string().contains("another namespace"), "{error}");
        assert!(other.media().commands.is_empty(), "nothing was asked of it");
    });
}
