//! What clients must not do, and what becomes of it: an error, or the end of their own connection.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use nbd::Bounds;
use nbd::wire::{Command, PAYLOAD_BYTES_MAX, Request};
use proptest::prelude::*;

use crate::client::{ACK, Client, ERROR, INVALID, LIST, NO_SPACE, OVERFLOW};
use crate::harness::{Lab, VOLUME_BYTES, wait_for};
use crate::stories::noise;

/// Reads what is there, as somebody else.
fn goes_on(client: &mut Client) {
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "others go on");
}

#[test]
fn bytes_that_are_no_requests_end_their_own_connection_alone() {
    let lab = Lab::new(4096);
    let mut other = Client::structured(&lab.path());
    let too_long = Request {
        command: Command::Write,
        flags: 0,
        cookie: 1,
        offset: 0,
        len: PAYLOAD_BYTES_MAX + 1,
    };
    for bytes in [
        &[0; 28][..],
        b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0______",
        &too_long.encode(),
    ] {
        let mut client = Client::structured(&lab.path());
        let cookie = client.ask((Command::Flush, 0), (0, 0), &[]);
        client.send(bytes);
        assert_eq!(
            client.outcome(cookie),
            Ok(()),
            "what came before is answered"
        );
        assert!(client.is_ended());
        goes_on(&mut other);
    }
}

#[test]
fn bytes_that_are_no_options_end_their_own_connection_alone() {
    let lab = Lab::new(4096);
    let mut other = Client::structured(&lab.path());
    let long = [&b"IHAVEOPT\0\0\0\x03"[..], &u32::MAX.to_be_bytes()].concat();
    for bytes in [&b"no option at all"[..], &[0x25; 28], &long] {
        let mut client = Client::greet(&lab.path());
        client.send(bytes);
        assert!(client.is_ended());
        goes_on(&mut other);
    }
    let mut client = Client::greet(&lab.path());
    let (kind, _) = client.option(LIST, &vec![0; 1 << 20]);
    assert!(kind > ERROR, "too long, and skipped");
    assert_eq!(client.option(LIST, &[]).0, ACK);
}

#[test]
fn ranges_outside_of_the_volume_are_errors_and_the_connection_goes_on() {
    let lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    let end = VOLUME_BYTES;
    for (at, len) in [
        (end, 512),
        (end - 512, 1024),
        (u64::MAX - 511, 512),
        (1 << 63, 4096),
    ] {
        assert_eq!(client.read(at, len), Err(INVALID), "{at}");
        assert_eq!(client.run((Command::Trim, 0), (at, len)), Err(INVALID));
        let adds = if at == u64::MAX - 511 {
            INVALID
        } else {
            NO_SPACE
        };
        assert_eq!(client.run((Command::WriteZeroes, 0), (at, len)), Err(adds));
        assert_eq!(client.write(at, &noise(len as usize, 1)), Err(adds));
    }
    for (at, len) in [(1, 512), (512, 1), (511, 513)] {
        assert_eq!(client.read(at, len), Err(INVALID));
        assert_eq!(client.write(at, &noise(len as usize, 1)), Err(INVALID));
    }
    assert_eq!(client.read(0, PAYLOAD_BYTES_MAX + 512), Err(OVERFLOW));
    assert_eq!(client.run((Command::Flush, 0), (512, 0)), Err(INVALID));
    for unknown in [5, 8, 999, u16::MAX] {
        assert_eq!(
            client.run((Command::Unknown(unknown), 0), (0, 512)),
            Err(INVALID)
        );
    }
    for flags in [1 << 5, 1 << 15, 1 << 1] {
        assert_eq!(client.run((Command::Flush, flags), (0, 0)), Err(INVALID));
        assert_eq!(client.write_with(flags, 0, &[1; 4096]), Err(INVALID));
    }
    goes_on(&mut client);
}

#[test]
fn a_write_that_is_cut_off_writes_whole_pieces_and_ends() {
    let lab = Lab::new(4096);
    let data = noise(1 << 20, 1);
    for len in [1, 511, 4096, 300_000, (1 << 20) - 1] {
        let mut client = Client::simple(&lab.path());
        client.ask((Command::Write, 0), (0, 1 << 20), &data[..len]);
        client
            .stream
            .shutdown(Shutdown::Write)
            .expect("no more comes");
        assert!(client.is_ended());
    }
    for len in [1, 4, 16, 27] {
        let mut client = Client::simple(&lab.path());
        client.send(&[0x25; 27][..len]);
        drop(client);
    }
    wait_for("the ends of all", || lab.connections() == 0);
    for at in 0..4 {
        let stored = lab.stored(at << 18, 256 << 10);
        let is_old = stored.iter().all(|byte| *byte == 0);
        assert!(is_old || stored == data[at as usize * (256 << 10)..][..256 << 10]);
    }
}

#[test]
fn a_handshake_that_does_not_end_is_ended_and_places_are_free_again() {
    let bounds = Bounds {
        connections_max: 3,
        handshake_time: Duration::from_millis(200),
        ..Bounds::default()
    };
    let lab = Lab::with_bounds(4096, bounds);
    let mut idle: Vec<_> = (0..3).map(|_| Client::greet(&lab.path())).collect();
    let stream = std::os::unix::net::UnixStream::connect(lab.path()).expect("it listens");
    let mut bytes = Vec::new();
    let sent = std::io::Read::read_to_end(&mut &stream, &mut bytes);
    assert_eq!(sent.expect("the end"), 0, "there is no place for a fourth");
    assert!(idle.iter_mut().all(Client::is_ended));
    let mut client = Client::simple(&lab.path());
    // Nothing happens when the deadline passes: that is what is proven, so there is no condition to wait for.
    std::thread::sleep(bounds.handshake_time);
    goes_on(&mut client);
}

#[test]
fn a_client_that_takes_no_replies_holds_no_buffers_and_nobody_up() {
    let lab = Lab::new(4096);
    let mut other = Client::structured(&lab.path());
    other.write(1 << 20, &noise(4 << 20, 1)).expect("a write");
    let free = lab.free_bytes();
    let mut slow: Vec<_> = (0..10).map(|_| Client::simple(&lab.path())).collect();
    for client in &mut slow {
        for at in 0..200 {
            let request = Request {
                command: Command::Read,
                flags: 0,
                cookie: at,
                offset: (1 << 20) + at * 4096,
                len: 1 << 20,
            };
            client.send(&request.encode());
        }
    }
    wait_for("buffers to come back", || lab.free_bytes() == free);
    for _ in 0..100 {
        assert!(other.read(1 << 20, 65536).is_ok());
    }
    // It can go on whenever it likes.
    for client in &mut slow {
        let mut came: Vec<u64> = (0..200)
            .map(|_| {
                let head = client.take(16);
                assert_eq!(head[4..8], [0; 4]);
                client.take(1 << 20);
                crate::client::number(&head[8..])
            })
            .collect();
        came.sort_unstable();
        assert!(came == (0..200).collect::<Vec<_>>());
    }
}

#[test]
fn an_export_ends_although_a_client_takes_no_replies() {
    let bounds = Bounds {
        patience: Duration::from_millis(100),
        ..Bounds::default()
    };
    let mut lab = Lab::with_bounds(4096, bounds);
    let mut clients = [Client::simple(&lab.path()), Client::structured(&lab.path())];
    for client in &mut clients {
        client.write(0, &noise(8 << 20, 1)).expect("a write");
        for _ in 0..50 {
            client.ask((Command::Read, 0), (0, 8 << 20), &[]);
        }
    }
    lab.stop();
    assert!(clients.iter_mut().all(Client::is_ended));
    let free = lab.free_bytes();
    assert_eq!(free, lab.total_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_clients_send_harms_nobody(
        talks in proptest::collection::vec(
            (
                any::<bool>(),
                proptest::collection::vec((any::<[u8; 24]>(), 0u16..9, 0u8..4), 0..20),
                proptest::collection::vec(any::<u8>(), 0..100),
            ),
            1..6,
        ),
    ) {
        let lab = Lab::new(4096);
        let mut other = Client::structured(&lab.path());
        for (structured, requests, noise) in talks {
            let mut client = match structured {
                true => Client::with_contexts(&lab.path(), &["base:allocation"]),
                false => Client::simple(&lab.path()),
            };
            for (fields, command, shape) in requests {
                let request = Request {
                    command: command.into(),
                    flags: u16::from(fields[0]) & if shape == 0 { 0xff } else { 0x1f },
                    cookie: u64::from(fields[1]),
                    offset: crate::client::number(&fields[8..16]) >> (8 * u32::from(shape) + 20) << 9,
                    len: crate::client::number(&fields[16..24]) as u32 >> (4 * u32::from(shape)) >> 9 << 9,
                };
                // It may have hung up.
                if client.stream.write_all(&request.encode()).is_err() {
                    break;
                }
                if request.payload() < 1 << 20 {
                    let _ = client.stream.write_all(&vec![0; request.payload() as usize]);
                }
            }
            let _ = client.stream.write_all(&noise);
        }
        goes_on(&mut other);
        drop(other);
        wait_for("the ends of all", || lab.connections() == 0);
        prop_assert_eq!(lab.free_bytes(), lab.total_bytes());
    }
}
