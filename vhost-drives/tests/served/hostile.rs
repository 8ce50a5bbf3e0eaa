//! A server that breaks the rules: what it says ends its connection, with an error that names the socket, and nothing else.

use drives::{Drive, ErrorKind};

use crate::server::{FEATURE_RO, Lie, NEEDED, OUT, Server};
use crate::story::{read, story, wait_for, write};

#[test]
fn answers_that_make_no_sense_end_the_connection_and_the_next_one_works() {
    let lies = [
        (Lie::Id(127), "which it did not have"),
        (Lie::Id(u32::MAX), "which it did not have"),
        (Lie::Len(1 << 20), "room for"),
        (Lie::Jump(1), "where it had 1"),
        (Lie::Jump(30_000), "where it had 1"),
        (Lie::Twice, "where it had 1"),
    ];
    for (lie, reason) in lies {
        let server = Server::start();
        story(async || {
            let drive = server.open().await.expect("it opens");
            server.device().lie = Some(lie);
            let error = write(&drive, 5, 1).await.expect_err("a lie");
            let text = error.to_string();
            assert!(error.is_in_doubt() && text.contains(reason), "{text}");
            assert!(text.contains(&*server.path.to_string_lossy()), "{text}");
            // It is repeated once, and lied to again.
            let text = read(&drive, 5).await.expect_err("a lie").to_string();
            assert!(text.contains("breaks the rules"), "{text}");
            // Who lied is not believed that it is done.
            server.device().lie = None;
            drive.fence().await.expect_err("nothing is proven");
            write(&drive, 6, 2).await.expect("by a new connection");
            assert_eq!(read(&drive, 6).await.expect("read"), 2);
        });
    }
}

#[test]
fn a_command_without_a_status_failed() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        server.device().lie = Some(Lie::NoStatus);
        write(&drive, 5, 1).await.expect_err("no status");
        server.device().lie = None;
        write(&drive, 5, 1).await.expect("written");
        assert_eq!(server.device().connections, 1);
    });
}

#[test]
fn whatever_a_server_says_at_the_start_is_a_drive_or_an_error_that_names_the_socket() {
    let codes = [1, 2, 3, 5, 8, 9, 10, 12, 13, 15, 16, 17, 18, 24];
    let mut lies = vec![
        Lie::ConfigBytes(0),
        Lie::ConfigBytes(59),
        Lie::ConfigBytes(4000),
        Lie::ConfigBytes(5000),
    ];
    for code in codes {
        lies.push(Lie::HangsUp(code));
        // Nothing is acknowledged before that is agreed on.
        if code != 16 {
            lies.push(Lie::Chatters(code));
            lies.push(Lie::Reply(code));
            lies.push(Lie::ReplyBytes(code, 7));
            lies.push(Lie::ReplyBytes(code, 9));
        }
        if ![1, 15, 16, 17, 24].contains(&code) {
            lies.push(Lie::Refuses(code));
        }
    }
    let server = Server::start();
    story(async || {
        for lie in lies {
            server.device().lie = Some(lie);
            let Err(error) = server.open().await else {
                panic!("{lie:?} was believed")
            };
            let error = error.to_string();
            assert!(
                error.contains(&*server.path.to_string_lossy()),
                "{lie:?}: {error}"
            );
        }
        server.device().lie = None;
        server.open().await.expect("it opens");
    });
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let server = Server::start();
    story(async || {
        for code in [1, 5, 18] {
            server.device().lie = Some(Lie::Silent(code));
            let error = server.open().await.expect_err("silence").to_string();
            assert!(error.contains("does not answer"), "{error}");
        }
    });
}

#[test]
fn a_server_that_talks_without_being_asked_loses_the_connection() {
    let server = Server::start();
    story(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        server.device().holds = Some(OUT);
        let (talked, _) = futures_util::join!(write(&drive, 5, 2), async {
            wait_for("the write", || server.device().held() == 1).await;
            server.chatter();
        });
        let error = talked.expect_err("the connection ends");
        assert!(error.is_in_doubt(), "{error}");
        assert!(error.to_string().contains("was not asked for"), "{error}");
        server.let_go();
        read(&drive, 5).await.expect("by a new connection");
    });
}

#[test]
fn devices_that_cannot_be_drives_are_refused_with_what_to_do() {
    type Change = fn(&mut crate::server::Device);
    let changes: [(Change, &str); 6] = [
        (
            |device| device.features |= FEATURE_RO,
            "export it for writing",
        ),
        (|device| device.features &= !(1 << 32), "VIRTIO_F_VERSION_1"),
        (|device| device.features &= !(1 << 30), "PROTOCOL_FEATURES"),
        (|device| device.protocol = 1, "PROTOCOL_F_CONFIG"),
        (
            |device| device.config[20..24].copy_from_slice(&8192_u32.to_le_bytes()),
            "512 or 4096",
        ),
        (|device| device.config[..8].fill(0xff), "no device has"),
    ];
    for (change, reason) in changes {
        let server = Server::start();
        change(&mut server.device());
        story(async || {
            let error = server.open().await.expect_err("no drive");
            assert!(error.to_string().contains(reason), "{error}");
        });
    }
    let empty = Server::start();
    empty.device().config[..8].fill(0);
    story(async || {
        let error = empty.open().await.expect_err("no blocks");
        assert_eq!(error.kind(), ErrorKind::Truncated);
    });
}

#[test]
fn the_least_that_a_server_can_offer_is_enough() {
    let server = Server::start();
    server.device().features = NEEDED;
    server.device().protocol = 1 << 9;
    story(async || {
        let drive = server.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("it writes through");
        drive.discard(7, 1).await.expect("nothing to do");
        assert_eq!(read(&drive, 5).await.expect("read"), 1);
    });
}
