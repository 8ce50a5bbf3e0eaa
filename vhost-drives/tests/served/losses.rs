//! A server that goes away, comes back, and is not what it was.

use std::path::Path;

use drives::{Drive, ErrorKind};
use vhost_drives::{Claim, forget_losses};

use crate::server::{OUT, Server};
use crate::story::{read, story, wait_for, write};

#[test]
fn a_server_that_is_gone_is_an_error_within_the_limits_and_used_again_when_it_is_back() {
    let mut server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        server.die();
        let error = read(&drive, 5).await.expect_err("it is gone");
        assert!(!error.is_in_doubt());
        assert!(error.to_string().contains("start the server"), "{error}");
        assert!(write(&drive, 5, 2).await.is_err());
        server.come_back();
        assert_eq!(read(&drive, 5).await.expect("it is back"), 1);
        write(&drive, 5, 3).await.expect("it is back");
        drive.flush().await.expect("nothing was lost");
    });
}

#[test]
fn what_has_no_answer_when_the_connection_breaks_is_in_doubt_and_not_repeated() {
    let mut server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 9).await.expect("written");
        server.device().holds = Some(OUT);
        let lost = async {
            let error = write(&drive, 5, 1).await.expect_err("no answer");
            assert!(error.is_in_doubt(), "{error}");
        };
        let broken = async {
            wait_for("the write", || server.device().held() == 1).await;
            server.die();
            server.come_back();
        };
        futures_util::join!(lost, broken);
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 9);
        // This server lives on, and may still do it: nothing says that it will not.
        let error = drive.fence().await.expect_err("nothing is proven");
        assert!(
            error
                .to_string()
                .contains("may still happen: end the server"),
            "{error}"
        );
        server.let_go();
        assert_eq!(read(&drive, 5).await.expect("it happened after all"), 1);
        drive.fence().await.expect("it was answered");
    });
}

#[test]
fn a_command_that_takes_too_long_ends_the_connection_and_is_fenced_when_the_stopped_queue_has_its_answer()
 {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        server.device().holds = Some(OUT);
        let error = write(&drive, 5, 1).await.expect_err("no answer");
        assert!(error.is_in_doubt(), "{error}");
        assert!(
            error.to_string().contains("did not answer a write within"),
            "{error}"
        );
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 0);
        assert_eq!(server.device().connections, 2);
        drive
            .fence()
            .await
            .expect_err("the server took it, and has not answered");
        server.let_go();
        drive.fence().await.expect("it is answered");
        drive.fence().await.expect("nothing is in doubt");
        assert_eq!(read(&drive, 5).await.expect("it happened after all"), 1);
        assert_eq!(server.device().count(OUT), 1);
    });
}

#[test]
fn a_drive_that_is_opened_again_waits_for_what_the_earlier_opening_sent() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        server.device().holds = Some(OUT);
        write(&drive, 5, 1).await.expect_err("no answer");
        drop(drive);
        let drive = server.open().await.expect("it opens");
        let error = drive.claim(Claim::Again).await.expect_err("in doubt");
        assert!(error.to_string().contains("may still happen"), "{error}");
        server.let_go();
        drive.claim(Claim::Again).await.expect("it is answered");
        write(&drive, 5, 2).await.expect("written");
    });
}

#[test]
fn a_server_with_too_many_unsettled_connections_is_asked_no_more() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        server.device().holds = Some(OUT);
        for _ in 0..4 {
            assert!(
                write(&drive, 5, 1)
                    .await
                    .expect_err("no answer")
                    .is_in_doubt()
            );
        }
        let error = read(&drive, 5).await.expect_err("no connection");
        assert!(
            error.to_string().contains("4 connections were lost"),
            "{error}"
        );
        assert_eq!(server.device().connections, 4);
        server.let_go();
        read(&drive, 5).await.expect("all are settled");
    });
}

#[test]
fn a_flush_fails_when_writes_before_it_may_be_lost_with_the_servers_cache() {
    let mut server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written, not flushed");
        server.die();
        server.come_back();
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
fn another_device_behind_the_socket_is_not_written_to() {
    let mut server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        type Change = fn(&mut crate::server::Device);
        let changes: [(Change, &str); 3] = [
            (|device| device.id[0] = b'T', "another device"),
            (|device| device.config[0] += 1, "when it was opened"),
            (
                |device| device.config[20..24].copy_from_slice(&4096_u32.to_le_bytes()),
                "when it was opened",
            ),
        ];
        for (change, reason) in changes {
            let id = server.device().id;
            let config = server.device().config;
            server.die();
            change(&mut server.device());
            server.come_back();
            server.device().commands.clear();
            let error = read(&drive, 5).await.expect_err("another device");
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.kind(), ErrorKind::Truncated);
            let error = write(&drive, 5, 1).await.expect_err("another device");
            assert!(!error.is_in_doubt());
            assert_eq!(server.device().count(OUT), 0);
            server.die();
            server.device().id = id;
            server.device().config = config;
            server.come_back();
            write(&drive, 5, 1).await.expect("the right one is back");
        }
    });
}
