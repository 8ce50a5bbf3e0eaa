//! The requests that a Linux host sent, out of the captures.

use std::path::Path as FilePath;
use std::time::Instant;

use roce::cm::{Config, Event, Manager};
use roce::wire::cm::{Message, tcp_service_id};
use roce::wire::{Opcode, Packet, Path, PathMtu};

use crate::pair::{acceptance, message};

/// Management packets of a capture whose source address ends in `host`, without their ICRC.
fn management_packets(name: &str, host: u8) -> Vec<Vec<u8>> {
    let path = FilePath::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/captures")
        .join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut rest = &file[24..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        let (frame, tail) = rest[16..].split_at(len);
        // A management packet on IPv4 has a fixed size: 20 + 8 + 12 + 8 + 256 + 4 bytes.
        if frame.len() == 14 + 308 && frame[23] == 17 && frame[29] == host {
            found.push(frame[42..frame.len() - 4].to_vec());
        }
        rest = tail;
    }
    found
}

#[test]
fn a_linux_host_is_served_like_the_linux_target_served_it() {
    for (name, mtu) in [
        ("rdma-mtu1500.pcap", PathMtu::Mtu1024),
        ("rdma-mtu9000.pcap", PathMtu::Mtu4096),
    ] {
        let now = Instant::now();
        let mut manager = Manager::new(Config::default(), [9; 32]);
        manager
            .listen(tcp_service_id(4420))
            .expect("nobody listens yet");
        let path = Path {
            local: [10, 77, 0, 2].into(),
            remote: [10, 77, 0, 3].into(),
        };
        let host = management_packets(name, 3);
        let target = management_packets(name, 2);
        let asked = Packet::parse(&host[0]).expect("a packet");
        assert_eq!(asked.bth.opcode, Opcode::UdSendOnly);
        manager.handle_packet(now, path, &asked).expect("a request");
        let Some(Event::ConnectRequest {
            conn,
            mtu: asked_mtu,
            peer,
            private_data,
            ..
        }) = manager.poll_event()
        else {
            panic!("a request")
        };
        assert_eq!(asked_mtu, mtu);
        assert_eq!(
            (
                peer.retry_count,
                peer.rnr_retry_count,
                peer.ack_timeout.code()
            ),
            (7, 7, 17)
        );
        assert_eq!(peer.initiator_depth, 0);
        assert_eq!(private_data[..8], [0, 0, 0, 0, 32, 0, 31, 0]);
        manager
            .accept(now, conn, &acceptance(0x222))
            .expect("it waits");
        let ours = manager.poll_transmit().expect("a reply");
        assert_eq!((ours.path, ours.dest_qpn), (path, 1));
        let Message::Rep(ours) = message(&ours) else {
            panic!("a reply")
        };
        let theirs = Packet::parse(&target[0]).expect("a packet");
        let Ok((_, Message::Rep(theirs))) = Message::parse(theirs.payload) else {
            panic!("a reply")
        };
        // What Linux's target said, except for identities and limits.
        assert_eq!(ours.remote_comm_id, theirs.remote_comm_id);
        assert_eq!(ours.responder_resources, theirs.responder_resources);
        assert_eq!(ours.target_ack_delay, theirs.target_ack_delay);
        assert_eq!(ours.flow_control, theirs.flow_control);
        assert_eq!((ours.srq, ours.failover), (theirs.srq, theirs.failover));
        assert!(ours.initiator_depth > 0 && ours.initiator_depth <= theirs.initiator_depth);
    }
}

#[test]
fn a_linux_host_that_repeats_its_request_gets_the_same_reply() {
    let packets = management_packets("rdma-unanswered-connect.pcap", 3);
    let packets = if packets.is_empty() {
        management_packets("rdma-unanswered-connect.pcap", 2)
    } else {
        packets
    };
    assert_eq!(packets.len(), 11);
    let first = Packet::parse(&packets[0]).expect("a packet");
    let Ok((_, Message::Req(request))) = Message::parse(first.payload) else {
        panic!("a request")
    };
    let path = Path {
        local: request.primary.remote(),
        remote: request.primary.local(),
    };
    let mut manager = Manager::new(Config::default(), [9; 32]);
    manager
        .listen(request.service_id)
        .expect("nobody listens yet");
    let now = Instant::now();
    let mut replies = Vec::new();
    for packet in &packets {
        let packet = Packet::parse(packet).expect("a packet");
        manager
            .handle_packet(now, path, &packet)
            .expect("a request");
        if let Some(Event::ConnectRequest { conn, .. }) = manager.poll_event() {
            manager
                .accept(now, conn, &acceptance(0x222))
                .expect("it waits");
        }
        replies.extend(std::iter::from_fn(|| manager.poll_transmit()));
    }
    assert_eq!(manager.live(), 1, "one connection");
    assert_eq!(replies.len(), 11);
    assert!(replies.iter().all(|reply| *reply == replies[0]));
}
