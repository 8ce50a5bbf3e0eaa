//! Whole packets: what lies between the UDP header and the invariant CRC.

use super::{Aeth, Bth, Deth, Ieth, ImmDt, Reth, WireError, be32};

/// How many zero bytes follow a payload of that length (0..=3).
#[inline]
pub const fn pad_for(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// A packet: its headers by value, its payload borrowed.
///
/// A parsed packet has exactly those headers that its opcode demands. For a packet to be sent, use
/// [`Packet::new`] and set the headers that [`Opcode`](super::Opcode) says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Acknowledgement header.
    pub aeth: Option<Aeth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Invalidate header.
    pub ieth: Option<Ieth>,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

/// Takes a header of constant size from the front of `rest`.
#[inline]
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(WireError::TooShort {
        need: N,
        have: rest.len(),
    })?;
    *rest = tail;
    Ok(*head)
}

impl<'a> Packet<'a> {
    /// A packet without extended headers; the pad count is that of the payload.
    #[inline]
    pub fn new(mut bth: Bth, payload: &'a [u8]) -> Self {
        bth.pad = pad_for(payload.len());
        Self {
            bth,
            deth: None,
            reth: None,
            aeth: None,
            imm: None,
            ieth: None,
            payload,
        }
    }

    /// Reads a packet: the UDP payload with the ICRC (four bytes) cut off.
    ///
    /// # Errors
    /// A [`WireError`] for everything that is not a complete, correctly padded packet of a known
    /// operation.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, WireError> {
        let bth = Bth::parse(packet)?;
        let opcode = bth.opcode;
        let need = opcode.header_len();
        if packet.len() < need {
            return Err(WireError::TooShort {
                need,
                have: packet.len(),
            });
        }
        let mut rest = &packet[Bth::LEN..];
        let mut parsed = Self {
            bth,
            deth: None,
            reth: None,
            aeth: None,
            imm: None,
            ieth: None,
            payload: &[],
        };
        if opcode.has_deth() {
            parsed.deth = Some(Deth::from_bytes(&take(&mut rest)?));
        }
        if opcode.has_reth() {
            parsed.reth = Some(Reth::from_bytes(&take(&mut rest)?));
        }
        if opcode.has_aeth() {
            parsed.aeth = Some(Aeth::from_bytes(&take(&mut rest)?)?);
        }
        if opcode.has_imm() {
            parsed.imm = Some(ImmDt(be32(&take::<{ ImmDt::LEN }>(&mut rest)?, 0)));
        }
        if opcode.has_ieth() {
            parsed.ieth = Some(Ieth(be32(&take::<{ Ieth::LEN }>(&mut rest)?, 0)));
        }
        if !opcode.may_have_payload() && !rest.is_empty() {
            return Err(WireError::UnexpectedPayload {
                opcode,
                have: rest.len(),
            });
        }
        if !rest.len().is_multiple_of(4) {
            return Err(WireError::Unaligned(rest.len()));
        }
        let Some(len) = rest.len().checked_sub(usize::from(bth.pad)) else {
            return Err(WireError::PadTooLong {
                pad: bth.pad,
                have: rest.len(),
            });
        };
        parsed.payload = &rest[..len];
        Ok(parsed)
    }

    /// Appends everything before the payload: the base header and the extended headers that are
    /// set, in the order of the wire.
    #[inline]
    pub fn write_header(&self, out: &mut Vec<u8>) {
        debug_assert_eq!(
            self.header_len(),
            self.bth.opcode.header_len(),
            "headers of the opcode"
        );
        out.extend_from_slice(&self.bth.to_bytes());
        if let Some(deth) = &self.deth {
            out.extend_from_slice(&deth.to_bytes());
        }
        if let Some(reth) = &self.reth {
            out.extend_from_slice(&reth.to_bytes());
        }
        if let Some(aeth) = &self.aeth {
            out.extend_from_slice(&aeth.to_bytes());
        }
        if let Some(ImmDt(imm)) = self.imm {
            out.extend_from_slice(&imm.to_be_bytes());
        }
        if let Some(Ieth(key)) = self.ieth {
            out.extend_from_slice(&key.to_be_bytes());
        }
    }

    /// Appends the whole packet: headers, payload and padding, without the ICRC.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_header(out);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(&[0; 3][..usize::from(self.bth.pad & 3)]);
    }

    /// Bytes of all headers that are set.
    #[inline]
    pub fn header_len(&self) -> usize {
        Bth::LEN
            + self.deth.map_or(0, |_| Deth::LEN)
            + self.reth.map_or(0, |_| Reth::LEN)
            + self.aeth.map_or(0, |_| Aeth::LEN)
            + self.imm.map_or(0, |_| ImmDt::LEN)
            + self.ieth.map_or(0, |_| Ieth::LEN)
    }
}
