//! The bad inputs of `tests/BAD_INPUTS.md` that a host can send over TCP (numbers 1 to 19), to the real
//! daemon: each ends its own connection or fails its own command, another host's I/O goes on, and the
//! daemon keeps neither memory nor file descriptors.

mod hostile;

use std::{net::SocketAddr, time::Duration};

use hostile::{
    Stage, Way, Witness,
    raw::{Answer, CHECKED, PLAIN, Raw, connect_data, request},
};
use initiator::Host;
use nvme::{
    SglDescriptor, Sqe, Status,
    fabrics::{CNTLID_DYNAMIC, ConnectCommand},
    io::{IoCommand, LbaRange},
    tcp::{Data, Digests, Pdu, R2t},
};

/// Tells a story twice beside a host that must not notice anything: what the first time leaves in
/// memory may stay, the second may add nothing.
fn beside_another_host(number: u8, tell: impl Fn(SocketAddr)) {
    let stage = Stage::new(number);
    let place = stage.at(Way::Tcp);
    let witness = Witness::start(place);
    tell(place.address);
    stage.hosts_are(1);
    let before = stage.usage();
    tell(place.address);
    witness.works();
    stage.hosts_are(1);
    stage.is_back_to(before);
    witness.finish();
    stage.end();
}

fn write(blocks: u32) -> Sqe {
    let range = LbaRange { slba: 0, blocks };
    let command = IoCommand::Write {
        nsid: 1,
        range,
        fua: false,
    };
    command.to_sqe()
}

fn read(blocks: u32) -> Sqe {
    let range = LbaRange { slba: 0, blocks };
    let command = IoCommand::Read {
        nsid: 1,
        range,
        fua: false,
    };
    command.to_sqe()
}

fn trim(ranges: u16) -> Sqe {
    let command = IoCommand::DatasetManagement {
        nsid: 1,
        ranges,
        deallocate: true,
    };
    command.to_sqe()
}

fn data(cid: u16, ttag: u16, offset: u32, length: u32) -> Data {
    Data {
        cid,
        ttag,
        offset,
        length,
        last: true,
        success: false,
    }
}

/// An H2CData header without data that says these lengths.
fn header_only(header: Data, plen: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pdu::H2cData(header).emit(PLAIN, 1, 0, &mut bytes);
    bytes[4..8].copy_from_slice(&plen.to_le_bytes());
    bytes
}

/// A write of 128 KiB, and the target's request for its data.
fn asked(io: &mut Raw) -> R2t {
    io.begin_transport(write(32), 131_072);
    match io.answer() {
        Answer::Pdu(Pdu::R2t(r2t), _) => r2t,
        other => panic!("{other:?} instead of R2T"),
    }
}

#[test]
fn n01_to_n04_data_that_nobody_asked_for_or_of_impossible_length() {
    beside_another_host(20, |address| {
        let mut raw = Raw::initialized(address, PLAIN);
        let bytes = raw.h2c_data(data(0, 0, 0, 512), &[0; 512]);
        raw.send(&bytes);
        raw.ends();
        type Lie = fn(R2t, usize) -> Vec<u8>;
        let lies: [Lie; 3] = [
            |r2t, _| header_only(data(r2t.cid, r2t.ttag, 0, u32::MAX), 24),
            |r2t, _| header_only(data(r2t.cid, r2t.ttag, 0, 0), 24),
            |r2t, most| {
                let length = most as u32 + 4;
                header_only(data(r2t.cid, r2t.ttag, 0, length), 24 + length)
            },
        ];
        for lie in lies {
            let [_admin, mut io] = Raw::attached(address, PLAIN);
            let r2t = asked(&mut io);
            let bytes = lie(r2t, io.maxh2cdata);
            io.send(&bytes);
            io.ends();
        }
    });
}

#[test]
fn n05_to_n08_data_with_wrong_tags_ranges_or_amounts() {
    beside_another_host(21, |address| {
        type Lie = fn(&Raw, R2t) -> Vec<u8>;
        let lies: [Lie; 8] = [
            |io, r2t| io.h2c_data(data(r2t.cid, 0xffff, 0, 512), &[0; 512]),
            |io, r2t| io.h2c_data(data(r2t.cid, r2t.ttag ^ 1, 0, 512), &[0; 512]),
            |io, r2t| io.h2c_data(data(r2t.cid ^ 0x40, r2t.ttag, 0, 512), &[0; 512]),
            |io, r2t| io.h2c_data(data(r2t.cid, r2t.ttag, 512, 512), &[0; 512]),
            |io, r2t| {
                let mut twice = io.h2c_data(data(r2t.cid, r2t.ttag, 0, 512), &[0; 512]);
                twice.extend(io.h2c_data(data(r2t.cid, r2t.ttag, 256, 512), &[0; 512]));
                twice
            },
            |_, r2t| {
                let wraps = data(r2t.cid, r2t.ttag, 0x1000, 0xffff_f001);
                header_only(wraps, 0xffff_f001_u32.wrapping_add(24))
            },
            |io, r2t| {
                // One byte more than was asked for.
                let length = r2t.length + 1;
                io.h2c_data(
                    data(r2t.cid, r2t.ttag, 0, length),
                    &vec![0; length as usize],
                )
            },
            |io, r2t| {
                let all = vec![7; r2t.length as usize];
                let mut twice = io.h2c_data(data(r2t.cid, r2t.ttag, r2t.offset, r2t.length), &all);
                twice.extend(io.h2c_data(data(r2t.cid, r2t.ttag, r2t.offset, 512), &[0; 512]));
                twice
            },
        ];
        for lie in lies {
            let [_admin, mut io] = Raw::attached(address, PLAIN);
            let r2t = asked(&mut io);
            let bytes = lie(&io, r2t);
            io.send(&bytes);
            io.ends();
        }
        // Data for a read.
        let [_admin, mut io] = Raw::attached(address, PLAIN);
        let cid = io.begin_transport(read(32), 131_072);
        let bytes = io.h2c_data(data(cid, 0, 0, 512), &[0; 512]);
        io.send(&bytes);
        io.ends();
    });
}

#[test]
fn n09_handshakes_that_make_no_sense() {
    beside_another_host(22, |address| {
        let changed = |at: usize, value: u8| {
            let mut bytes = request(PLAIN, 0);
            bytes[at] = value;
            bytes
        };
        let length = |plen: u32| {
            let mut bytes = request(PLAIN, 0);
            bytes[4..8].copy_from_slice(&plen.to_le_bytes());
            bytes
        };
        let wrong = [
            length(0),
            length(u32::MAX),
            changed(2, 24),
            changed(8, 1),
            changed(10, 255),
            changed(11, 0xfc),
        ];
        for bytes in wrong {
            let mut raw = Raw::open(address);
            raw.send(&bytes);
            raw.ends();
        }
        let mut raw = Raw::initialized(address, PLAIN);
        raw.send(&request(PLAIN, 0));
        raw.ends();
        // Alignment of 8 bytes is unusual, not wrong.
        let mut raw = Raw::open(address);
        raw.send(&request(PLAIN, 1));
        raw.initialize();
    });
}

#[test]
fn n10_handshakes_that_end_in_a_reset() {
    beside_another_host(23, |address| {
        for round in 0..300 {
            let mut raw = Raw::open(address);
            // None, half of, or the whole ICReq.
            raw.send(&request(PLAIN, 0)[..[0, 64, 128][round % 3]]);
            let reset = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&raw.socket, reset).expect("an option");
        }
    });
}

#[test]
fn n11_to_n13_pdus_of_wrong_types_and_lengths() {
    beside_another_host(24, |address| {
        let mut raw = Raw::open(address);
        let bytes = raw.capsule(write(1), &[]);
        raw.send(&bytes);
        raw.ends();
        for kind in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0xff] {
            let mut raw = Raw::initialized(address, PLAIN);
            let mut bytes = raw.capsule(write(1), &[]);
            bytes[0] = kind;
            raw.send(&bytes);
            raw.ends();
        }
        for (digests, at, value) in [
            (CHECKED, 2, 0),
            (CHECKED, 2, 8),
            (CHECKED, 2, 255),
            (PLAIN, 4, 8),
            (PLAIN, 7, 0xff),
        ] {
            let mut raw = Raw::initialized(address, digests);
            let mut bytes = raw.capsule(write(1), &[]);
            bytes[at] = value;
            raw.send(&bytes);
            raw.ends();
        }
        let mut raw = Raw::initialized(address, PLAIN);
        let mut bytes = raw.capsule(write(1), &[0; 4096]);
        bytes[3] = 255;
        raw.send(&bytes);
        raw.ends();
        let mut raw = Raw::initialized(address, PLAIN);
        let mut bytes = raw.capsule(write(1), &[]);
        bytes[4..8].fill(0xff);
        raw.send(&bytes);
        raw.ends();
    });
}

#[test]
fn n14_digests_that_are_missing_or_wrong() {
    beside_another_host(25, |address| {
        // The flag says that there is none; then the header's digest is wrong.
        for (at, change) in [(1, 1), (72, 0xff)] {
            let mut raw = Raw::initialized(address, CHECKED);
            let mut bytes = raw.capsule(write(1), &[]);
            bytes[at] ^= change;
            raw.send(&bytes);
            raw.ends();
        }
        // Wrong data: the command fails and may be repeated, whether it would have succeeded or not.
        for (nsid, digests) in [(1, CHECKED), (77, CHECKED)] {
            let [_admin, mut io] = Raw::attached(address, digests);
            let mut sqe = write(1).with_nsid(nsid);
            sqe.set_cid(9);
            sqe.set_sgl(&SglDescriptor::InCapsule {
                offset: 0,
                length: 4096,
            });
            let mut bytes = io.capsule(sqe, &[5; 4096]);
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            io.send(&bytes);
            let cqe = io.completion();
            assert!(!cqe.status.is_success() && cqe.cid == 9, "{cqe:?}");
            io.is_in_step();
        }
    });
}

#[test]
fn n15_to_n17_descriptors_and_data_that_do_not_fit_fail_their_command_alone() {
    beside_another_host(26, |address| {
        let [_admin, mut io] = Raw::attached(address, PLAIN);
        let inline = |offset, length| SglDescriptor::InCapsule { offset, length };
        let transport = |length| SglDescriptor::Transport { length };
        let cases = [
            ("more than was announced", write(1), transport(u32::MAX), 0),
            (
                "a list of one range that is said to be 4 GiB",
                trim(1),
                transport(u32::MAX),
                0,
            ),
            ("a read into nothing", read(1), transport(0), 0),
            ("less data than it says", write(1), inline(0, 4096), 512),
            ("more data than it says", write(1), inline(0, 4096), 8192),
            ("data at an offset", write(1), inline(64, 4096), 4096),
            (
                "an offset that wraps",
                write(1),
                inline(u64::MAX - 4095, 4096),
                4096,
            ),
            ("data of a read", read(1), inline(0, 4096), 4096),
            (
                "data of a command that there is not",
                Sqe::new(0x7e).with_nsid(1),
                inline(0, 4096),
                4096,
            ),
        ];
        for (number, (what, mut sqe, sgl, len)) in cases.into_iter().enumerate() {
            sqe.set_cid(100 + number as u16);
            sqe.set_sgl(&sgl);
            let bytes = io.capsule(sqe, &vec![0x33; len]);
            io.send(&bytes);
            let cqe = io.completion();
            assert_eq!(cqe.cid, sqe.cid(), "{what}");
            assert!(!cqe.status.is_success(), "{what}");
            io.is_in_step();
        }
        // More than a capsule may carry.
        let [_admin, mut io] = Raw::attached(address, PLAIN);
        let mut sqe = write(16);
        sqe.set_cid(9);
        sqe.set_sgl(&inline(0, 65_536));
        let bytes = io.capsule(sqe, &[0; 65_536]);
        io.send(&bytes);
        io.ends();
        // Data on a queue that has not connected: refused, and the stream stays in step.
        let mut raw = Raw::initialized(address, PLAIN);
        for _ in 0..3 {
            let cqe = raw.call(write(1), &[1; 4096]);
            assert_eq!(cqe.status.code(), Status::COMMAND_SEQUENCE);
        }
        let cqe = raw.connect(&Host::generate(), 0, CNTLID_DYNAMIC, 0);
        assert_ne!(cqe.result as u16, 0);
    });
}

#[test]
fn n18_connect_data_that_the_target_would_have_to_ask_for() {
    beside_another_host(27, |address| {
        let mut raw = Raw::initialized(address, PLAIN);
        let command = ConnectCommand {
            record_format: 0,
            qid: 0,
            sqsize: 31,
            attributes: 0,
            kato_ms: 0,
        };
        raw.begin_transport(command.to_sqe(), 1024);
        // It asks, or it refuses; either way the queue lives.
        match raw.answer() {
            Answer::Pdu(Pdu::R2t(r2t), _) => {
                let bytes = connect_data(&Host::generate(), CNTLID_DYNAMIC);
                let pdu = raw.h2c_data(data(r2t.cid, r2t.ttag, 0, 1024), &bytes);
                raw.send(&pdu);
                assert!(raw.completion().status.is_success());
            }
            Answer::Pdu(Pdu::Response(cqe), _) => {
                assert!(!cqe.status.is_success());
                raw.connect(&Host::generate(), 0, CNTLID_DYNAMIC, 0);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn n19_a_host_that_begins_tls_is_hung_up_on_and_the_log_says_what_to_do() {
    let stage = Stage::new(29);
    let place = stage.at(Way::Tcp);
    let witness = Witness::start(place);
    // A record with a ClientHello, as far as it matters.
    let hello = [&[22, 3, 1, 0, 44, 1, 0, 0, 40, 3, 3][..], &[0xa5; 38]].concat();
    let mut raw = Raw::open(place.address);
    let host = raw.socket.local_addr().expect("it is connected");
    raw.send(&hello);
    assert_eq!(raw.ends(), None, "a TLS client could not read a complaint");
    // An alert in the stream of an attached host ends its association.
    let [mut admin, mut io] = Raw::attached(place.address, PLAIN);
    io.send(&[&[21, 3, 3, 0, 2, 2, 70][..], &[0; 65]].concat());
    io.ends();
    admin.send(&hello);
    admin.ends();
    stage.hosts_are(1);
    witness.works();
    let log = stage.daemon().log();
    let said = log.lines().find(|line| line.contains("begins TLS"));
    let said = said.unwrap_or_else(|| panic!("nothing of TLS in:\n{log}"));
    assert!(said.contains(&host.to_string()), "names the host: {said}");
    assert!(said.contains("without --tls"), "says what to do: {said}");
    witness.finish();
    stage.end();
}

#[test]
fn n14_a_host_may_ask_for_one_digest_without_the_other() {
    beside_another_host(28, |address| {
        for (header, data) in [(true, false), (false, true)] {
            let [_admin, mut io] = Raw::attached(address, Digests { header, data });
            let cqe = io.call(write(1), &[1; 4096]);
            assert!(cqe.status.is_success());
            io.is_in_step();
        }
    });
}
