//! NVMe/TCP PDUs: those of a real Linux host and target, random ones, and good ones that were damaged.

use std::collections::BTreeMap;
use std::path::Path;

use nvme::tcp::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, Data, Digests, FatalError, FatalStatus, Frame,
    HEADER_BYTES_MAX, IcReq, IcResp, Pdu, PduType, R2t, Sender, TermReq,
};
use nvme::{Cqe, Sqe, Status};
use proptest::prelude::*;

/// Parses the PDU at the start of the bytes; the whole of it must be there.
fn parse(
    bytes: &[u8],
    sender: Sender,
    digests: Digests,
    alignment: u8,
) -> Result<(Frame, Pdu), FatalError> {
    let common: &[u8; COMMON_HEADER_BYTES] = bytes.first_chunk().expect("a common header");
    let frame = Frame::parse(common, sender, digests, alignment)?;
    frame.check_header_digest(bytes)?;
    Ok((frame, Pdu::parse(&frame, bytes)?))
}

/// Bytes of the whole PDU.
fn length(frame: &Frame) -> usize {
    frame.whole_header_bytes()
        + frame.padding_bytes
        + frame.data_bytes
        + usize::from(frame.data_digest) * DIGEST_BYTES
}

/// The byte streams of a capture's TCP connections, by source port and destination port.
fn streams(name: &str) -> BTreeMap<(u16, u16), Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../roce/tests/captures")
        .join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    assert_eq!(number(&file[..4]), 0xa1b2_c3d4, "a little-endian pcap file");
    let mut segments: BTreeMap<(u16, u16), BTreeMap<u32, Vec<u8>>> = BTreeMap::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let (frame, tail) = rest[16..].split_at(number(&rest[8..12]) as usize);
        rest = tail;
        let be16 = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        if be16(12) != 0x0800 || frame[14] != 0x45 || frame[23] != 6 {
            continue;
        }
        let sequence = u32::from_be_bytes(frame[38..42].try_into().expect("four bytes"));
        let data = 34 + usize::from(frame[46] >> 4) * 4;
        // Short frames are padded: the length in the IP header counts.
        let end = 14 + usize::from(be16(16));
        if data < end {
            let of = segments.entry((be16(34), be16(36))).or_default();
            of.insert(sequence, frame[data..end].to_vec());
        }
    }
    segments
        .into_iter()
        .map(|(ports, segments)| {
            let first = *segments.first_key_value().expect("a segment").0;
            let mut stream: Vec<u8> = Vec::new();
            for (sequence, bytes) in segments {
                let at = sequence.wrapping_sub(first) as usize;
                assert!(at <= stream.len(), "a segment is missing");
                let known = stream.len() - at;
                stream.extend_from_slice(bytes.get(known..).unwrap_or_default());
            }
            (ports, stream)
        })
        .collect()
}

#[test]
fn what_linux_sends_reads_back_to_the_same_bytes() {
    let mut seen: BTreeMap<u8, usize> = BTreeMap::new();
    for ((_, to), stream) in streams("tcp-mtu1500.pcap") {
        let sender = if [4420, 8009].contains(&to) {
            Sender::Host
        } else {
            Sender::Controller
        };
        let mut at = 0;
        while at < stream.len() {
            let (frame, pdu) = parse(&stream[at..], sender, Digests::default(), 0)
                .unwrap_or_else(|error| panic!("byte {at} to port {to}: {error}"));
            let mut again = Vec::new();
            pdu.emit(Digests::default(), frame.data_bytes, 0, &mut again);
            let header = &stream[at..at + frame.whole_header_bytes() + frame.padding_bytes];
            assert_eq!(again, header, "{pdu:?}");
            *seen.entry(frame.kind as u8).or_default() += 1;
            at += length(&frame);
        }
        assert_eq!(at, stream.len(), "the capture ends between two PDUs");
    }
    for kind in [
        PduType::IcReq,
        PduType::IcResp,
        PduType::CapsuleCmd,
        PduType::CapsuleResp,
        PduType::H2cData,
        PduType::C2hData,
        PduType::R2t,
    ] {
        assert!(seen.contains_key(&(kind as u8)), "no {kind:?} in {seen:?}");
    }
}

#[test]
fn a_pdu_of_padding_without_data_is_refused() {
    // A command capsule whose data begins at a multiple of 128 bytes, as the controller asked.
    let parse = |length: u8| {
        let common = [PduType::CapsuleCmd as u8, 0, 72, 128, length, 0, 0, 0];
        Frame::parse(&common, Sender::Host, Digests::default(), 31)
    };
    assert!(parse(128).is_err());
    assert_eq!(parse(132).map(|frame| frame.data_bytes), Ok(4));
}

#[test]
fn a_target_takes_at_least_4096_bytes_in_a_pdu_and_a_multiple_of_four() {
    for (max_h2c_data, is_right) in [(4096, true), (4100, true), (4092, false), (4098, false)] {
        let mut bytes = Vec::new();
        let response = IcResp {
            alignment: 0,
            digests: Digests::default(),
            max_h2c_data,
        };
        response.emit(&mut bytes);
        let parsed = parse(&bytes, Sender::Controller, Digests::default(), 0);
        assert_eq!(parsed.is_ok(), is_right, "{max_h2c_data}");
    }
}

fn digests() -> impl Strategy<Value = Digests> + Clone {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

fn sqe() -> impl Strategy<Value = Sqe> {
    (any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(a, b)| {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&a);
        bytes[32..].copy_from_slice(&b);
        Sqe(bytes)
    })
}

fn cqe() -> impl Strategy<Value = Cqe> {
    (any::<u64>(), any::<u16>(), any::<u16>(), any::<u16>()).prop_map(
        |(result, sq_head, cid, bits)| Cqe {
            result,
            sq_head,
            sq_id: 0,
            cid,
            status: Status::from_bits(bits),
        },
    )
}

/// A PDU and how many bytes of data it has.
fn pdu() -> impl Strategy<Value = (Pdu, usize)> {
    let transfer = (any::<u16>(), any::<u16>(), 0..1_u32 << 31, 1..100_000_u32);
    let (data, c2h) = (transfer.clone(), transfer.clone());
    let ic = (0..32_u8, digests(), any::<u32>());
    prop_oneof![
        ic.clone().prop_map(|(alignment, digests, max_r2t)| {
            (
                Pdu::IcReq(IcReq {
                    alignment,
                    digests,
                    max_r2t,
                }),
                0,
            )
        }),
        ic.prop_map(|(alignment, digests, max)| {
            let max_h2c_data = (max & !3).max(4096);
            (
                Pdu::IcResp(IcResp {
                    alignment,
                    digests,
                    max_h2c_data,
                }),
                0,
            )
        }),
        (any::<u16>(), any::<u32>()).prop_map(|(status, information)| {
            (
                Pdu::H2cTermReq(TermReq {
                    status,
                    information,
                }),
                0,
            )
        }),
        (any::<u16>(), any::<u32>()).prop_map(|(status, information)| {
            (
                Pdu::C2hTermReq(TermReq {
                    status,
                    information,
                }),
                0,
            )
        }),
        (sqe(), 0..20_000_usize).prop_map(|(sqe, data)| (Pdu::Command(sqe), data)),
        cqe().prop_map(|cqe| (Pdu::Response(cqe), 0)),
        (data, any::<bool>()).prop_map(|((cid, ttag, offset, length), last)| {
            let success = false;
            (
                Pdu::H2cData(Data {
                    cid,
                    ttag,
                    offset,
                    length,
                    last,
                    success,
                }),
                length as usize,
            )
        }),
        (c2h, any::<bool>()).prop_map(|((cid, ttag, offset, length), last)| {
            let success = last && cid & 1 == 1;
            (
                Pdu::C2hData(Data {
                    cid,
                    ttag,
                    offset,
                    length,
                    last,
                    success,
                }),
                length as usize,
            )
        }),
        transfer.prop_map(|(cid, ttag, offset, length)| {
            (
                Pdu::R2t(R2t {
                    cid,
                    ttag,
                    offset,
                    length,
                }),
                0,
            )
        }),
    ]
}

fn sender(pdu: &Pdu) -> Sender {
    match pdu {
        Pdu::IcReq(_) | Pdu::H2cTermReq(_) | Pdu::Command(_) | Pdu::H2cData(_) => Sender::Host,
        _ => Sender::Controller,
    }
}

proptest! {
    #[test]
    fn every_pdu_reads_back_as_it_was_written(
        (pdu, data) in pdu(), digests in digests(), alignment in 0..32_u8,
    ) {
        let mut bytes = Vec::new();
        pdu.emit(digests, data, alignment, &mut bytes);
        let (frame, again) = parse(&bytes, sender(&pdu), digests, alignment).expect("its own bytes");
        prop_assert_eq!(again, pdu);
        prop_assert_eq!(frame.data_bytes, data);
        prop_assert_eq!(frame.data_digest, digests.data && data > 0);
        prop_assert_eq!(bytes.len(), frame.whole_header_bytes() + frame.padding_bytes);
        if data > 0 {
            prop_assert_eq!(bytes.len() % ((usize::from(alignment) + 1) * 4), 0);
        }
        prop_assert!(bytes.len() <= HEADER_BYTES_MAX + 128);
    }

    #[test]
    fn any_header_parses_to_lengths_that_agree_or_to_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES_MAX + DIGEST_BYTES),
        kind in 0..12_u8, plausible: bool, plen in 0..300_u32,
        digests in digests(), alignment in 0..32_u8, host: bool,
    ) {
        let sender = if host { Sender::Host } else { Sender::Controller };
        bytes[0] = kind;
        if let (Some(kind), true) = (PduType::from_number(kind), plausible) {
            bytes[1] &= 0xc;
            bytes[2] = kind.header_bytes() as u8;
            bytes[3] = kind.header_bytes() as u8;
            bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        }
        let told = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if let Ok((frame, pdu)) = parse(&bytes, sender, digests, alignment) {
            prop_assert_eq!(length(&frame), told as usize);
            prop_assert!(frame.whole_header_bytes() <= HEADER_BYTES_MAX + DIGEST_BYTES);
            if let Pdu::H2cData(data) | Pdu::C2hData(data) = pdu {
                prop_assert_eq!(data.length as usize, frame.data_bytes);
                prop_assert!(data.offset.checked_add(data.length).is_some());
            }
        }
    }

    #[test]
    fn a_header_with_a_digest_shows_every_damaged_bit(
        (pdu, data) in pdu(), bit in any::<prop::sample::Index>(),
    ) {
        let digests = Digests { header: true, data: true };
        let mut bytes = Vec::new();
        pdu.emit(digests, data, 0, &mut bytes);
        let (frame, _) = parse(&bytes, sender(&pdu), digests, 0).expect("its own bytes");
        prop_assume!(frame.header_digest);
        let bit = bit.index(frame.whole_header_bytes() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(parse(&bytes, sender(&pdu), digests, 0).is_err());
    }

    #[test]
    fn a_complaint_tells_at_most_one_header(
        status: u16, information: u32, offender in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let complaint = TermReq { status, information };
        let mut bytes = Vec::new();
        complaint.emit(PduType::C2hTermReq, &offender, &mut bytes);
        let (frame, pdu) =
            parse(&bytes, Sender::Controller, Digests::default(), 0).expect("its own bytes");
        prop_assert_eq!(pdu, Pdu::C2hTermReq(complaint));
        prop_assert_eq!(&bytes[24..], &offender[..offender.len().min(HEADER_BYTES_MAX)]);
        prop_assert_eq!(length(&frame), bytes.len());
    }
}

#[test]
fn each_wrong_field_of_a_header_is_named_by_its_offset() {
    let command = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        Pdu::Command(Sqe::new(1)).emit(Digests::default(), 4096, 0, &mut bytes);
        change(&mut bytes);
        parse(&bytes, Sender::Host, Digests::default(), 0)
            .map_err(|error| (error.status, error.information))
    };
    assert!(command(&|_| {}).is_ok());
    let wrong = |offset: u32| Err((FatalStatus::InvalidHeaderField, offset));
    for kind in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0xff] {
        assert_eq!(
            command(&|bytes| bytes[0] = kind),
            wrong(0),
            "type {kind:#x}"
        );
    }
    assert_eq!(
        command(&|bytes| bytes[1] = 1),
        wrong(1),
        "a digest out of the blue"
    );
    assert_eq!(
        command(&|bytes| bytes[1] = 2),
        wrong(1),
        "a digest out of the blue"
    );
    for hlen in [0, 8, 71, 73, 255] {
        assert_eq!(command(&|bytes| bytes[2] = hlen), wrong(2), "hlen {hlen}");
    }
    for pdo in [0, 71, 76, 255] {
        assert_eq!(command(&|bytes| bytes[3] = pdo), wrong(3), "pdo {pdo}");
    }
    for plen in [0_u32, 8, 71] {
        let change = |bytes: &mut Vec<u8>| bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        assert_eq!(command(&change), wrong(4), "plen {plen}");
    }
}
