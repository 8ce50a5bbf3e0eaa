//! The base transport header, which every packet begins with (chapter 9.2).

use super::{Opcode, Psn, QPN_MAX, WireError, be16, be24, put_be24};

/// The default partition, with full membership. RoCE uses no other.
pub const PKEY_DEFAULT: u16 = 0xffff;

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the sender asks that the receiver be woken.
    pub solicited: bool,
    /// Migration state. Network cards send 1, rxe sends 0; nobody looks at it without alternate
    /// paths.
    pub migration: bool,
    /// Zero bytes after the payload (0..=3).
    pub pad: u8,
    /// The partition.
    pub pkey: u16,
    /// The queue pair that the packet is for, 24 bits.
    pub dest_qpn: u32,
    /// The sender asks for an acknowledgement.
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header in the default partition, with migration state 1, no padding, and neither event nor
    /// acknowledgement asked for.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: u32, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migration: true,
            pad: 0,
            pkey: PKEY_DEFAULT,
            dest_qpn: dest_qpn & QPN_MAX,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header at the beginning of a packet.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::UnknownOpcode`] or [`WireError::TransportVersion`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, WireError> {
        let bytes = packet
            .first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::TooShort {
                need: Self::LEN,
                have: packet.len(),
            })?;
        let version = bytes[1] & 0x0f;
        if version != 0 {
            return Err(WireError::TransportVersion(version));
        }
        Ok(Self {
            opcode: Opcode::try_from(bytes[0])?,
            solicited: bytes[1] & 0x80 != 0,
            migration: bytes[1] & 0x40 != 0,
            pad: (bytes[1] >> 4) & 3,
            pkey: be16(bytes, 2),
            // Byte 4 holds congestion marks that the network may set; they are not ours to keep.
            dest_qpn: be24(bytes, 5),
            ack_request: bytes[8] & 0x80 != 0,
            psn: Psn::new(be24(bytes, 9)),
        })
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.opcode.byte();
        bytes[1] = (u8::from(self.solicited) << 7)
            | (u8::from(self.migration) << 6)
            | ((self.pad & 3) << 4);
        bytes[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        if self.opcode == Opcode::CongestionNotification {
            // Backward congestion: what the peer sends met it. The ICRC does not cover this byte.
            bytes[4] = 0x40;
        }
        put_be24(&mut bytes, 5, self.dest_qpn);
        bytes[8] = u8::from(self.ack_request) << 7;
        put_be24(&mut bytes, 9, self.psn.value());
        bytes
    }
}

const _: () = assert!(Bth::LEN == 12);
