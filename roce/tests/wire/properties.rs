//! Any bytes at all: parsing does not panic, and what parses is written to the same bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use roce::wire::cm::Message;
use roce::wire::{CmaHeader, Opcode, Packet, WireError, icrc, mad};

use crate::pcap;

/// Bytes that get past the first checks often: a known operation, version 0.
fn nearly_packets() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        4 => prop::sample::select(&Opcode::ALL[..]).prop_map(Opcode::byte),
        1 => any::<u8>(),
    ];
    (opcode, any::<u8>(), vec(any::<u8>(), 0..96)).prop_map(|(opcode, flags, rest)| {
        let mut bytes = vec![opcode, flags & 0xf0];
        bytes.extend(rest);
        bytes
    })
}

/// Datagrams with a valid header and any body.
fn nearly_datagrams() -> impl Strategy<Value = Vec<u8>> {
    (0x0f..0x18_u8, any::<u64>(), vec(any::<u8>(), mad::BODY_LEN)).prop_map(
        |(attribute, id, body)| {
            let header = mad::MadHeader::new(u16::from(attribute), id);
            header.to_bytes(&body.try_into().expect("a body")).to_vec()
        },
    )
}

/// Writes a packet again, and compares what parsing promises to keep.
fn check_packet(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let mut written = Vec::new();
    packet.write(&mut written);
    assert_eq!(written.len(), bytes.len());
    assert_eq!(Packet::parse(&written), Ok(packet));
}

fn check_datagram(bytes: &[u8]) {
    if let Ok((id, message)) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.to_mad(id)), Ok((id, message)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_bytes_never_panic_a_parser(bytes in vec(any::<u8>(), 0..600)) {
        check_packet(&bytes);
        check_datagram(&bytes);
        let _ = CmaHeader::parse(&bytes);
        let flow = icrc::Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1);
        let _ = icrc::verify(&flow, &bytes);
        let _ = icrc::compute(&flow, 0, &bytes);
    }

    #[test]
    fn nearly_valid_packets_never_panic_and_are_written_again(bytes in nearly_packets()) {
        check_packet(&bytes);
    }

    #[test]
    fn nearly_valid_datagrams_never_panic_and_are_written_again(bytes in nearly_datagrams()) {
        check_datagram(&bytes);
    }

    #[test]
    fn datagrams_of_another_length_are_refused(bytes in nearly_datagrams(), len in 0..600_usize) {
        let mut bytes = bytes;
        bytes.resize(len, 0);
        if len != mad::LEN {
            prop_assert_eq!(Message::parse(&bytes), Err(WireError::MadLength(len)));
        }
    }
}

/// A captured packet, and what to do to its bytes.
fn mutations() -> impl Strategy<Value = (usize, Vec<(usize, u8)>, usize)> {
    (
        any::<usize>(),
        vec((any::<usize>(), any::<u8>()), 0..6),
        any::<usize>(),
    )
}

#[test]
fn mutated_captured_packets_never_panic_and_are_written_again() {
    let mut packets = pcap::read("rdma-mtu1500.pcap");
    packets.extend(pcap::read("rdma-mtu1500-loss4pct.pcap"));
    let config = ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    };
    proptest!(config, |((which, changes, cut) in mutations())| {
        let mut bytes = packets[which % packets.len()].payload.clone();
        bytes.truncate(bytes.len() - 4);
        for (at, value) in changes {
            // The headers are where it matters.
            let at = at % bytes.len().min(320);
            bytes[at] = value;
        }
        if cut % 3 == 0 {
            bytes.truncate(cut / 3 % (bytes.len() + 1));
        }
        check_packet(&bytes);
        if let Ok(packet) = Packet::parse(&bytes) {
            check_datagram(packet.payload);
        }
    });
}
