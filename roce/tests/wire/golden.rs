//! Bytes written down by hand from the specification, for what the captures do not contain.

use roce::wire::cm::{
    CmTimeout, Message, Mra, PrivateData, Rej, RejectReason, RejectedMessage, tcp_service_id,
};
use roce::wire::{
    Aeth, Bth, Ieth, ImmDt, NakCode, Opcode, Packet, Psn, Reth, Syndrome, WireError, icrc, pad_for,
};

fn written(packet: &Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    packet.write(&mut out);
    assert_eq!(Packet::parse(&out).as_ref(), Ok(packet));
    out
}

#[test]
fn the_icrc_on_ipv6_is_that_of_an_independent_computation() {
    // Computed with zlib over the masked headers as Linux rxe masks them.
    let mut packet = vec![
        0x04, 0x40, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef,
    ];
    packet.extend(0..16);
    let [src, dst] = ["fd00::1", "fd00:0:0:1::2"].map(|text| text.parse().expect("an address"));
    let flow = icrc::Flow::new(src, dst, 0xc123);
    assert_eq!(icrc::compute(&flow, 0, &packet), 0xef87_73b4);
    assert_eq!(
        icrc::compute(&flow, 99, &packet),
        0xef87_73b4,
        "IPv6 has no identification"
    );
}

#[test]
fn a_send_with_invalidate_has_its_key_before_the_payload() {
    let mut bth = Bth::new(Opcode::SendOnlyInvalidate, 0x0102_0304, Psn::new(0x0a0b0c));
    bth.solicited = true;
    let mut packet = Packet::new(bth, b"hello");
    packet.ieth = Some(Ieth(0xdead_beef));
    let expected = [
        0x17, 0xf0, 0xff, 0xff, 0x00, 0x02, 0x03, 0x04, 0x00, 0x0a, 0x0b, 0x0c, 0xde, 0xad, 0xbe,
        0xef, b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
    ];
    assert_eq!(written(&packet), expected);
}

#[test]
fn a_write_with_immediate_data_has_it_after_the_address() {
    let mut bth = Bth::new(Opcode::WriteOnlyImm, 7, Psn::new(1));
    bth.ack_request = true;
    bth.migration = false;
    let mut packet = Packet::new(bth, &[1, 2, 3, 4]);
    packet.reth = Some(Reth {
        va: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        len: 4,
    });
    packet.imm = Some(ImmDt(0x1112_1314));
    let expected = [
        0x0b, 0x00, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
        0, 0, 0, 4, 0x11, 0x12, 0x13, 0x14, 1, 2, 3, 4,
    ];
    assert_eq!(written(&packet), expected);
}

#[test]
fn negative_acknowledgements_have_the_specified_syndromes() {
    for (syndrome, byte) in [
        (Syndrome::ACK, 0x1f),
        (Syndrome::Rnr { timer: 12 }, 0x2c),
        (Syndrome::Nak(NakCode::SequenceError), 0x60),
        (Syndrome::Nak(NakCode::InvalidRequest), 0x61),
        (Syndrome::Nak(NakCode::RemoteAccess), 0x62),
        (Syndrome::Nak(NakCode::RemoteOperation), 0x63),
    ] {
        let mut packet = Packet::new(Bth::new(Opcode::Acknowledge, 2, Psn::new(3)), &[]);
        packet.aeth = Some(Aeth {
            syndrome,
            msn: 0x010203,
        });
        assert_eq!(written(&packet)[12..], [byte, 1, 2, 3]);
    }
}

#[test]
fn padding_brings_every_payload_to_four_bytes() {
    assert_eq!([0, 1, 2, 3, 4, 5, 1023].map(pad_for), [0, 3, 2, 1, 0, 3, 1]);
    for len in 0..9 {
        let payload = vec![0xee; len];
        let packet = Packet::new(Bth::new(Opcode::SendOnly, 2, Psn::new(3)), &payload);
        assert!(written(&packet).len().is_multiple_of(4));
    }
}

#[test]
fn packets_with_wrong_lengths_are_refused() {
    let send = written(&Packet::new(
        Bth::new(Opcode::SendOnly, 2, Psn::new(3)),
        &[1, 2, 3, 4],
    ));
    for cut in 0..12 {
        assert!(matches!(
            Packet::parse(&send[..cut]),
            Err(WireError::TooShort { need: 12, .. })
        ));
    }
    assert_eq!(Packet::parse(&send[..14]), Err(WireError::Unaligned(2)));
    let mut padded = send.clone();
    padded[1] |= 0x30;
    padded.truncate(12);
    assert_eq!(
        Packet::parse(&padded),
        Err(WireError::PadTooLong { pad: 3, have: 0 })
    );

    let mut read = Packet::new(Bth::new(Opcode::ReadRequest, 2, Psn::new(3)), &[]);
    read.reth = Some(Reth {
        va: 0,
        rkey: 0,
        len: 1,
    });
    let mut read = written(&read);
    for cut in 12..28 {
        assert_eq!(
            Packet::parse(&read[..cut]),
            Err(WireError::TooShort {
                need: 28,
                have: cut
            })
        );
    }
    read.extend([0; 4]);
    let opcode = Opcode::ReadRequest;
    assert_eq!(
        Packet::parse(&read),
        Err(WireError::UnexpectedPayload { opcode, have: 4 })
    );

    let mut version = send.clone();
    version[1] |= 1;
    assert_eq!(Packet::parse(&version), Err(WireError::TransportVersion(1)));
    let mut atomic = send;
    atomic[0] = 0x13;
    assert_eq!(Packet::parse(&atomic), Err(WireError::UnknownOpcode(0x13)));
}

#[test]
fn a_rejection_has_its_fields_where_the_specification_puts_them() {
    let message = Message::Rej(Rej {
        local_comm_id: 0x0102_0304,
        remote_comm_id: 0x0506_0708,
        message: RejectedMessage::Rep,
        info_length: 2,
        reason: RejectReason::Consumer,
        additional_info: PrivateData::new(&[0xa1, 0xa2]).expect("it fits"),
        private_data: PrivateData::new(&[0xb1]).expect("it fits"),
    });
    let mad = message.to_mad(0x1122_3344_5566_7788);
    let header = [
        1, 7, 2, 3, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x12, 0, 0, 0,
        0, 0, 0,
    ];
    assert_eq!(mad[..24], header);
    assert_eq!(
        mad[24..38],
        [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 4, 0, 28, 0xa1, 0xa2]
    );
    assert_eq!(mad[24 + 84], 0xb1);
    assert_eq!(Message::parse(&mad), Ok((0x1122_3344_5566_7788, message)));
}

#[test]
fn a_receipt_acknowledgement_has_its_fields_where_the_specification_puts_them() {
    let message = Message::Mra(Mra {
        local_comm_id: 1,
        remote_comm_id: 2,
        message: RejectedMessage::Req,
        service_timeout: CmTimeout::from_code(20),
        private_data: PrivateData::new(&[0xc1]).expect("it fits"),
    });
    let mad = message.to_mad(5);
    assert_eq!(mad[16..18], [0, 0x11]);
    assert_eq!(mad[24..35], [0, 0, 0, 1, 0, 0, 0, 2, 0, 20 << 3, 0xc1]);
    assert_eq!(Message::parse(&mad), Ok((5, message)));
}

#[test]
fn time_codes_double_from_four_microseconds() {
    use std::time::Duration;
    assert_eq!(
        CmTimeout::from_code(0).duration(),
        Duration::from_nanos(4096)
    );
    assert_eq!(CmTimeout::from_code(17).duration().as_millis(), 536);
    assert_eq!(CmTimeout::from_code(20).duration().as_millis(), 4294);
    assert_eq!(CmTimeout::at_least(Duration::from_secs(1)).code(), 18);
    assert_eq!(CmTimeout::at_least(Duration::ZERO).code(), 0);
    assert_eq!(CmTimeout::at_least(Duration::MAX).code(), 31);
}

#[test]
fn service_ids_name_the_port_space_and_the_port() {
    assert_eq!(tcp_service_id(4420), 0x0000_0000_0106_1144);
}
