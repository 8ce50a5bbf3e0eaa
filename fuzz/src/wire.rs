//! RoCEv2 packets and connection management datagrams.

use std::net::IpAddr;

use roce::wire::cm::Message;
use roce::wire::icrc::{self, Flow};
use roce::wire::{CmaHeader, Packet, mad};

use crate::input::Input;

/// A UDP payload: one byte says between which addresses, the rest is the packet with its ICRC.
pub(crate) fn packet(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.u8();
    let payload = input.rest();
    let (src, dst): (IpAddr, IpAddr) = match flags & 1 {
        0 => ([10, 77, 0, 2].into(), [10, 77, 0, 1].into()),
        _ => (
            [0xfd77, 0, 0, 0, 0, 0, 0, 2].into(),
            [0xfd77, 0, 0, 0, 0, 0, 0, 1].into(),
        ),
    };
    let flow = Flow::new(src, dst, u16::from(flags) << 8 | 0xc0de);
    let _ = icrc::verify(&flow, payload);
    check(payload);
    let Some((body, _)) = payload.split_last_chunk::<{ icrc::LEN }>() else {
        return;
    };
    check(body);
    if body.len() >= roce::wire::Bth::LEN {
        // A packet with the right check passes, whatever it is.
        let mut sent = body.to_vec();
        sent.extend(icrc::compute(&flow, 0, body).to_le_bytes());
        assert!(
            icrc::verify(&flow, &sent).is_ok(),
            "its own ICRC is refused"
        );
    }
}

/// What parses is written to as many bytes that parse to the same.
fn check(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    assert!(packet.payload.len() + packet.header_len() <= bytes.len());
    assert_eq!(packet.header_len(), packet.bth.opcode.header_len());
    let mut written = Vec::new();
    packet.write(&mut written);
    assert_eq!(written.len(), bytes.len());
    assert_eq!(Packet::parse(&written), Ok(packet));
}

/// A management datagram; one that is shorter than 256 bytes is also tried as the body of one, with
/// its first byte as the kind of message.
pub(crate) fn mad(bytes: &[u8]) {
    datagram(bytes);
    let _ = CmaHeader::parse(bytes);
    let mut input = Input::new(bytes);
    let attribute = 0x10 + u16::from(input.u8() & 7);
    let mut body = [0; mad::BODY_LEN];
    let taken = input.bytes(mad::BODY_LEN);
    body[..taken.len()].copy_from_slice(taken);
    datagram(&mad::MadHeader::new(attribute, 7).to_bytes(&body));
}

fn datagram(bytes: &[u8]) {
    let Ok((id, message)) = Message::parse(bytes) else {
        return;
    };
    let written = message.to_mad(id);
    if let Message::Req(request) = &message {
        let _ = (
            request.mtu(),
            request.primary.local(),
            request.alternate.remote(),
        );
        let private = request.private_data.as_bytes();
        if let Ok(header) = CmaHeader::parse(private) {
            assert_eq!(CmaHeader::parse(&header.to_bytes()), Ok(header));
        }
    }
    assert_eq!(Message::parse(&written), Ok((id, message)));
}
