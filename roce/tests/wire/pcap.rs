//! Reads RoCEv2 packets out of classic pcap files of Ethernet frames.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use roce::wire::UDP_PORT;
use roce::wire::icrc::Flow;

/// A RoCEv2 packet as it was captured.
pub(crate) struct Captured {
    pub(crate) flow: Flow,
    pub(crate) ip_id: u16,
    /// The UDP payload, its ICRC included.
    pub(crate) payload: Vec<u8>,
}

/// All RoCEv2 packets of a capture in `tests/captures`.
pub(crate) fn read(name: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/captures")
        .join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    assert_eq!(number(&file[..4]), 0xa1b2_c3d4, "a little-endian pcap file");
    assert_eq!(number(&file[20..24]), 1, "of Ethernet frames");
    let mut packets = Vec::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let (captured, original) = (number(&rest[8..12]), number(&rest[12..16]));
        assert_eq!(captured, original, "frames are captured whole");
        let (frame, tail) = rest[16..].split_at(captured as usize);
        packets.extend(roce_packet(frame));
        rest = tail;
    }
    packets
}

fn roce_packet(frame: &[u8]) -> Option<Captured> {
    let be16 = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let is_ipv4 = be16(12) == 0x0800 && frame[14] == 0x45;
    if !is_ipv4 || frame[23] != 17 || be16(36) != UDP_PORT {
        return None;
    }
    let address = |at: usize| {
        IpAddr::V4(Ipv4Addr::new(
            frame[at],
            frame[at + 1],
            frame[at + 2],
            frame[at + 3],
        ))
    };
    // Short frames are padded: the length in the IP header counts.
    let end = 14 + usize::from(be16(16));
    Some(Captured {
        flow: Flow {
            src: address(26),
            dst: address(30),
            src_port: be16(34),
            dst_port: be16(36),
        },
        ip_id: be16(18),
        payload: frame[42..end].to_vec(),
    })
}
