//! What clients do.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use nbd::wire::{Command, command_flag, export_flag};
use subsystem::catalog::{ExportConfig, WriteProtect};

use crate::client::{
    ABORT, ACK, Client, ERROR, EXPORT_NAME, GO, INFO, LIST, OVERFLOW, PERM, SHUTDOWN, number,
};
use crate::harness::{EXPORT, Lab, VOLUME_BYTES, wait_for};

/// Bytes that do not repeat.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn what_is_written_is_read_back_whatever_its_length_is() {
    let lab = Lab::new(4096);
    for mut client in [Client::structured(&lab.path()), Client::simple(&lab.path())] {
        let mut at = 512;
        for len in [
            512,
            4096,
            4608,
            256 << 10,
            (256 << 10) + 512,
            1 << 20,
            5 << 20,
        ] {
            let data = noise(len, at);
            client.write(at, &data).expect("a write");
            assert!(
                client.read(at, len as u32).expect("a read") == data,
                "{len} bytes"
            );
            let block = lab.stored(at & !4095, 4096);
            assert!(
                block[at as usize % 4096..][..512] == data[..512],
                "hosts see the same"
            );
            at += len as u64 + 512;
        }
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        assert_eq!(client.read(0, 0), Ok(Vec::new()));
        assert_eq!(client.write(0, &[]), Ok(()));
    }
}

#[test]
fn the_export_says_what_it_is() {
    let lab = Lab::new(512);
    let mut client = Client::greet(&lab.path());
    let (kind, told) = client.option(LIST, &[]);
    assert_eq!((kind, told.len()), (ACK, 1));
    assert!(told[0].1.starts_with(b"\0\0\0\x04disk"));
    let (kind, _) = client.option(GO, b"\0\0\0\x05other\0\0");
    assert!(kind > ERROR);
    let (kind, told) = client.option(GO, b"\0\0\0\x04disk\0\x01\0\x03");
    assert_eq!((kind, told.len()), (ACK, 2));
    assert_eq!(told[0].0, INFO);
    assert_eq!(number(&told[0].1[2..10]), VOLUME_BYTES);
    let flags = number(&told[0].1[10..]) as u16;
    let expected = export_flag::HAS_FLAGS
        | export_flag::SEND_FLUSH
        | export_flag::SEND_FUA
        | export_flag::SEND_TRIM
        | export_flag::SEND_WRITE_ZEROES
        | export_flag::SEND_FAST_ZERO
        | export_flag::CAN_MULTI_CONN;
    assert_eq!(flags, expected);
    assert_ne!(
        Client::structured(&lab.path()).flags & export_flag::SEND_DF,
        0
    );
    let mut old = Client::greet(&lab.path());
    old.send_option(EXPORT_NAME, b"disk");
    assert_eq!(number(&old.take(8)), VOLUME_BYTES);
    old.take(2);
    assert_eq!(old.read(0, 512), Ok(vec![0; 512]), "without padding");
    let mut gone = Client::greet(&lab.path());
    assert_eq!(gone.option(ABORT, &[]).0, ACK);
    assert!(gone.is_ended());
}

#[test]
fn zeros_are_told_as_holes_unless_one_piece_is_asked_for() {
    let lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    let data = noise(4096, 1);
    client.write(1 << 20, &data).expect("a write");
    let len = 2 << 20;
    let cookie = client.ask((Command::Read, 0), (0, len), &[]);
    let (read, holes) = client.structured_data(cookie, 0, len).expect("a read");
    assert!(read[1 << 20..][..4096] == data && holes == len as usize - (256 << 10));
    let one =
        |client: &mut Client, len| client.ask((Command::Read, command_flag::DF), (0, len), &[]);
    let cookie = one(&mut client, 1 << 20);
    let chunk = client.chunk();
    assert_eq!(
        (chunk.cookie, chunk.kind, chunk.payload.len()),
        (cookie, 1, 8 + (1 << 20))
    );
    assert!(chunk.is_last);
    let cookie = one(&mut client, len);
    assert_eq!(client.outcome(cookie), Err(OVERFLOW));
}

#[test]
fn trims_and_zeros_of_any_length_read_as_zeros_and_survive() {
    let lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    let data = noise(1 << 20, 2);
    for (command, flags) in [
        (Command::Trim, 0),
        (Command::Trim, command_flag::FUA),
        (Command::WriteZeroes, 0),
        (
            Command::WriteZeroes,
            command_flag::FUA | command_flag::NO_HOLE,
        ),
        (Command::WriteZeroes, command_flag::FAST_ZERO),
    ] {
        let fua = command_flag::FUA;
        client.write_with(fua, 0, &data).expect("a write");
        client
            .run((command, flags), (4096, 40960))
            .expect("it is done");
        let read = client.read(0, 1 << 20).expect("a read");
        assert!(read[..4096] == data[..4096] && read[45056..] == data[45056..]);
        assert!(read[4096..45056].iter().all(|byte| *byte == 0));
        client
            .run((command, flags), (0, VOLUME_BYTES as u32))
            .expect("the whole volume");
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
        client.run((Command::Flush, 0), (0, 0)).expect("a flush");
    }
}

#[test]
fn an_export_that_takes_no_writes_says_so_and_takes_none() {
    let lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    let volume = lab.engine.volume("disk").expect("the volume").info().uuid;
    lab.change(move |catalog| {
        let mut subsystems = catalog.subsystems.values_mut();
        let subsystem = Arc::make_mut(subsystems.next().expect("the default one"));
        let mut namespaces = subsystem.namespaces.values_mut();
        let namespace = namespaces
            .find(|it| it.volume == volume)
            .expect("its namespace");
        Arc::make_mut(namespace).write_protect = WriteProtect::On;
    });
    for what in [Command::Trim, Command::WriteZeroes] {
        assert_eq!(client.run((what, 0), (0, 4096)), Err(PERM));
    }
    // The data of a write that is refused are no requests.
    assert_eq!(client.write(0, &noise(3 << 20, 3)), Err(PERM));
    assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
    assert_eq!(client.run((Command::Flush, 0), (0, 0)), Ok(()));
    let later = Client::simple(&lab.path());
    assert_ne!(later.flags & export_flag::READ_ONLY, 0);
    assert_eq!(
        later.flags & (export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES),
        0
    );
}

#[test]
fn a_snapshot_is_an_export_that_stays_as_it_was() {
    let lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    let data = noise(8192, 4);
    client.write(0, &data).expect("a write");
    lab.snapshot("before");
    client.write(0, &noise(8192, 5)).expect("a write");
    let snapshot = lab.engine.volume("disk@before").expect("it").info().uuid;
    lab.change(move |catalog| {
        let export = catalog.exports.get_mut(&EXPORT).expect("the export");
        let changed = ExportConfig {
            volume: snapshot,
            ..ExportConfig::clone(export)
        };
        *export = Arc::new(changed);
    });
    let mut of_snapshot = Client::structured(&lab.path());
    assert_ne!(of_snapshot.flags & export_flag::READ_ONLY, 0);
    assert!(of_snapshot.read(0, 8192) == Ok(data));
    assert_eq!(of_snapshot.write(0, &[1; 4096]), Err(PERM));
    let mut listed = Client::greet(&lab.path());
    assert!(
        listed.option(LIST, &[]).1[0]
            .1
            .ends_with(b"disk@before of Onefold")
    );
}

#[test]
fn a_new_size_is_told_to_new_connections_and_old_ones_go_on() {
    let lab = Lab::new(4096);
    let mut old = Client::simple(&lab.path());
    let engine = lab.engine.clone();
    lab.on(move || async move {
        let grown = engine.resize_volume("disk", 2 * VOLUME_BYTES).await;
        grown.expect("a new size");
    });
    assert_eq!(old.size_bytes, VOLUME_BYTES);
    assert_eq!(old.read(VOLUME_BYTES - 4096, 4096), Ok(vec![0; 4096]));
    let mut new = Client::simple(&lab.path());
    assert_eq!(new.size_bytes, 2 * VOLUME_BYTES);
    new.write(VOLUME_BYTES, &[1; 4096]).expect("a write");
}

#[test]
fn connections_share_one_export_and_a_flush_on_one_is_for_all() {
    let lab = Lab::new(4096);
    let mut clients: Vec<_> = (0..8).map(|_| Client::simple(&lab.path())).collect();
    wait_for("eight connections", || lab.connections() == 8);
    for (at, client) in clients.iter_mut().enumerate() {
        client
            .write(at as u64 * 8192, &[at as u8 + 1; 8192])
            .expect("a write");
    }
    clients[0]
        .run((Command::Flush, 0), (0, 0))
        .expect("a flush");
    let read = clients[7].read(0, 65536).expect("a read");
    for (at, block) in read.chunks(8192).enumerate() {
        assert!(block.iter().all(|byte| *byte == at as u8 + 1));
    }
    drop(clients);
    wait_for("their end", || lab.connections() == 0);
}

#[test]
fn an_export_that_ends_does_what_it_began_and_hangs_up() {
    let mut lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    lab.change(|catalog| {
        catalog.exports.remove(&EXPORT);
    });
    assert_eq!(client.read(0, 4096), Err(SHUTDOWN));
    assert_eq!(client.write(0, &[1; 4096]), Err(SHUTDOWN));
    let mut other = Client::greet(&lab.path());
    assert!(other.option(GO, &[0; 6]).0 > ERROR);
    lab.stop();
    assert!(client.is_ended() && other.is_ended());
    assert!(!std::path::Path::new(&lab.path()).exists());
}

#[test]
fn a_disconnect_waits_for_the_answers_to_what_came_before() {
    let lab = Lab::new(4096);
    let mut client = Client::simple(&lab.path());
    let data = noise(64 << 10, 6);
    let cookies: Vec<_> = (0..20)
        .map(|at| client.ask((Command::Write, 0), (at * 65536, 65536), &data))
        .collect();
    client.ask((Command::Disconnect, 0), (0, 0), &[]);
    let mut answered: Vec<_> = cookies
        .iter()
        .map(|_| {
            let head = client.take(16);
            assert_eq!(number(&head[4..8]), 0);
            number(&head[8..])
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, cookies);
    assert!(client.is_ended());
}

#[test]
fn a_socket_of_another_program_is_left_as_it_is() {
    let mut lab = Lab::new(4096);
    lab.stop();
    let other = UnixListener::bind(lab.path()).expect("the path is free");
    let taken = lab.try_serve().expect_err("it is taken");
    assert!(
        taken.to_string().contains("a program listens there"),
        "{taken}"
    );
    drop(other);
    lab.try_serve()
        .expect("what a killed program left is taken over");
    Client::simple(&lab.path());
}
