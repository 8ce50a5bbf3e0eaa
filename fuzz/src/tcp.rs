//! NVMe/TCP: a stream of PDUs as one side receives it.

use nvme::tcp::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, Data, Digests, Frame, HEADER_BYTES_MAX, Pdu, PduType,
    Sender, digest,
};

use crate::input::Input;

/// One byte says who listens and what was agreed on; the rest is the stream. Header digests are made
/// right, so that what lies behind them is reached.
pub(crate) fn pdu(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let agreed = input.u8();
    let sender = match agreed & 1 {
        0 => Sender::Host,
        _ => Sender::Controller,
    };
    let digests = Digests {
        header: agreed & 2 != 0,
        data: agreed & 4 != 0,
    };
    let alignment = (agreed >> 3) & 31;
    let mut rest = input.rest();
    while let Some(common) = rest.first_chunk::<COMMON_HEADER_BYTES>() {
        let Ok(frame) = Frame::parse(common, sender, digests, alignment) else {
            return;
        };
        let plen = usize::try_from(u32::from_le_bytes([
            common[4], common[5], common[6], common[7],
        ]));
        let check = usize::from(frame.data_digest) * DIGEST_BYTES;
        assert_eq!(
            Ok(frame.whole_header_bytes() + frame.padding_bytes + frame.data_bytes + check),
            plen,
            "the parts are the whole"
        );
        assert!(frame.header_bytes <= HEADER_BYTES_MAX);
        assert!(frame.padding_bytes < 128);
        assert_eq!(frame.kind.sender(), sender);
        assert_eq!(PduType::from_number(frame.kind as u8), Some(frame.kind));
        let Some((header, behind)) = rest.split_at_checked(frame.header_bytes) else {
            return;
        };
        if let Ok(pdu) = Pdu::parse(&frame, header) {
            written_again(&pdu, &frame, digests, alignment, sender);
        }
        // The digest and the data are whatever follows.
        let follows = frame.whole_header_bytes() - frame.header_bytes
            + frame.padding_bytes
            + frame.data_bytes
            + check;
        let Some((_, next)) = behind.split_at_checked(follows) else {
            return;
        };
        rest = next;
    }
}

fn written_again(pdu: &Pdu, frame: &Frame, digests: Digests, alignment: u8, sender: Sender) {
    if let Pdu::H2cData(Data { offset, length, .. }) | Pdu::C2hData(Data { offset, length, .. }) =
        pdu
    {
        assert_eq!(*length as usize, frame.data_bytes);
        assert!(offset.checked_add(*length).is_some());
    }
    // A terminate request carries a piece of what was wrong, which is not kept.
    let data = match pdu {
        Pdu::H2cTermReq(_) | Pdu::C2hTermReq(_) => 0,
        _ => frame.data_bytes,
    };
    let mut bytes = Vec::new();
    pdu.emit(digests, data, alignment, &mut bytes);
    let common = bytes.first_chunk().expect("a header");
    let again = Frame::parse(common, sender, digests, alignment).expect("what was read is right");
    assert_eq!(again.data_bytes, data);
    assert_eq!(
        bytes.len(),
        again.whole_header_bytes() + again.padding_bytes
    );
    assert_eq!(again.check_header_digest(&bytes), Ok(()));
    if again.header_digest {
        let (header, check) = bytes.split_at(again.header_bytes);
        assert_eq!(digest(header)[..], check[..DIGEST_BYTES]);
    }
    assert_eq!(Pdu::parse(&again, &bytes[..again.header_bytes]), Ok(*pdu));
}
