//! Sessions of a Linux 6.12 host with a Linux 6.12 target, recorded between two machines.

use std::collections::BTreeMap;

use roce::wire::cm::{Message, tcp_service_id};
use roce::wire::{CmaHeader, GSI_QKEY, GSI_QPN, Opcode, Packet, PathMtu, icrc};

use crate::pcap;

/// The files, and how many RoCEv2 packets each has.
const CAPTURES: [(&str, usize); 6] = [
    ("rdma-mtu1500.pcap", 421),
    ("rdma-mtu9000.pcap", 255),
    ("rdma-mtu1500-loss4pct.pcap", 469),
    ("rdma-discover-mtu1500.pcap", 81),
    ("rdma-unanswered-connect.pcap", 11),
    ("tcp-mtu1500.pcap", 0),
];

#[test]
fn every_packet_parses_and_is_written_to_the_same_bytes() {
    let mut total = 0;
    for (name, count) in CAPTURES {
        let packets = pcap::read(name);
        assert_eq!(packets.len(), count, "{name}");
        total += count;
        for (index, captured) in packets.iter().enumerate() {
            let (body, _) = captured
                .payload
                .split_last_chunk::<{ icrc::LEN }>()
                .expect("an ICRC");
            let packet = Packet::parse(body).unwrap_or_else(|e| panic!("{name} {index}: {e}"));
            let mut written = Vec::new();
            packet.write(&mut written);
            assert_eq!(written, body, "{name} {index}");
            assert_eq!(
                packet.header_len(),
                packet.bth.opcode.header_len(),
                "{name} {index}"
            );
        }
    }
    assert_eq!(total, 1237);
}

#[test]
fn every_packet_carries_the_icrc_that_we_compute() {
    for (name, _) in CAPTURES {
        for (index, captured) in pcap::read(name).iter().enumerate() {
            let (body, sent) = captured.payload.split_last_chunk().expect("an ICRC");
            let computed = icrc::compute(&captured.flow, captured.ip_id, body);
            assert_eq!(computed.to_le_bytes(), *sent, "{name} {index}");
        }
    }
}

#[test]
fn every_packet_is_verified_and_its_ip_identification_recovered() {
    for (name, _) in CAPTURES {
        for (index, captured) in pcap::read(name).iter().enumerate() {
            let verified = icrc::verify(&captured.flow, &captured.payload);
            let expected = icrc::Verified {
                ip_id: Some(captured.ip_id),
            };
            assert_eq!(verified, Ok(expected), "{name} {index}");
        }
    }
}

#[test]
fn every_packet_is_refused_with_a_flipped_bit() {
    // On IPv4 the check has 16 bits: of some thousand flips hardly one may pass.
    let mut passed = 0;
    for (name, _) in CAPTURES {
        for (index, captured) in pcap::read(name).iter().enumerate() {
            let mut damaged = captured.payload.clone();
            let bits = damaged.len() * 8;
            let bit = index * 7919 % bits;
            if bit / 8 != 4 {
                damaged[bit / 8] ^= 1 << (bit % 8);
                passed += usize::from(icrc::verify(&captured.flow, &damaged).is_ok());
            }
        }
    }
    assert!(passed <= 1, "{passed} damaged packets passed");
}

#[test]
fn every_management_datagram_is_written_to_the_same_bytes() {
    let mut kinds = BTreeMap::new();
    for (name, _) in CAPTURES {
        for captured in pcap::read(name) {
            let body = &captured.payload[..captured.payload.len() - icrc::LEN];
            let packet = Packet::parse(body).expect("parsed before");
            if packet.bth.opcode != Opcode::UdSendOnly {
                continue;
            }
            let deth = packet.deth.expect("a datagram header");
            assert_eq!(
                (packet.bth.dest_qpn, deth.qkey, deth.src_qpn),
                (GSI_QPN, GSI_QKEY, 1)
            );
            let (id, message) = Message::parse(packet.payload).expect("a known message");
            assert_eq!(message.to_mad(id), packet.payload);
            let kind = match message {
                Message::Req(_) => "REQ",
                Message::Mra(_) => "MRA",
                Message::Rej(_) => "REJ",
                Message::Rep(_) => "REP",
                Message::Rtu(_) => "RTU",
                Message::Dreq(_) => "DREQ",
                Message::Drep(_) => "DREP",
            };
            *kinds.entry(kind).or_insert(0) += 1;
        }
    }
    assert!(
        ["REQ", "REP", "RTU", "DREQ", "DREP"]
            .iter()
            .all(|kind| kinds.contains_key(kind))
    );
}

#[test]
fn a_linux_request_says_what_we_expect() {
    for (name, mtu) in [
        ("rdma-mtu1500.pcap", PathMtu::Mtu1024),
        ("rdma-mtu9000.pcap", PathMtu::Mtu4096),
    ] {
        let packets = pcap::read(name);
        let body = &packets[0].payload[..packets[0].payload.len() - icrc::LEN];
        let packet = Packet::parse(body).expect("parsed before");
        let Ok((_, Message::Req(request))) = Message::parse(packet.payload) else {
            panic!("{name} begins with a request");
        };
        assert_eq!(request.service_id, tcp_service_id(4420));
        assert_eq!(request.mtu(), Some(mtu));
        assert_eq!(request.primary.local(), packets[0].flow.src);
        assert_eq!(request.primary.remote(), packets[0].flow.dst);
        assert_eq!(request.primary.ack_timeout, 17);
        assert_eq!((request.retry_count, request.rnr_retry_count), (7, 7));
        assert_eq!(request.initiator_depth, 0);
        assert!(request.responder_resources > 0);
        let header = CmaHeader::parse(request.private_data.as_bytes()).expect("a header");
        assert_eq!(
            (header.src, header.dst),
            (packets[0].flow.src, packets[0].flow.dst)
        );
        // NVMe's part: record format 0, queue 0, 32 receives, 31 sends.
        let nvme = &request.private_data.as_bytes()[CmaHeader::LEN..];
        assert_eq!(nvme[..8], [0, 0, 0, 0, 32, 0, 31, 0]);
    }
}
