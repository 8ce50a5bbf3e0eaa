//! Operation codes of the base transport header (chapter 9.2.1, table 38).

/// What a packet is. Only the reliable connection's operations (without atomics) and the unreliable
/// datagram that carries management are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// First packet of a SEND of several.
    SendFirst = 0x00,
    /// A packet in the middle of a SEND.
    SendMiddle = 0x01,
    /// Last packet of a SEND of several.
    SendLast = 0x02,
    /// Last packet of a SEND of several, with immediate data.
    SendLastImm = 0x03,
    /// A SEND in one packet.
    SendOnly = 0x04,
    /// A SEND in one packet, with immediate data.
    SendOnlyImm = 0x05,
    /// First packet of an RDMA WRITE of several.
    WriteFirst = 0x06,
    /// A packet in the middle of an RDMA WRITE.
    WriteMiddle = 0x07,
    /// Last packet of an RDMA WRITE of several.
    WriteLast = 0x08,
    /// Last packet of an RDMA WRITE of several, with immediate data.
    WriteLastImm = 0x09,
    /// An RDMA WRITE in one packet.
    WriteOnly = 0x0a,
    /// An RDMA WRITE in one packet, with immediate data.
    WriteOnlyImm = 0x0b,
    /// An RDMA READ request.
    ReadRequest = 0x0c,
    /// First packet of an answer to a READ of several.
    ReadResponseFirst = 0x0d,
    /// A packet in the middle of an answer to a READ.
    ReadResponseMiddle = 0x0e,
    /// Last packet of an answer to a READ of several.
    ReadResponseLast = 0x0f,
    /// An answer to a READ in one packet.
    ReadResponseOnly = 0x10,
    /// An acknowledgement, positive or negative.
    Acknowledge = 0x11,
    /// Last packet of a SEND of several that invalidates a key.
    SendLastInvalidate = 0x16,
    /// A SEND in one packet that invalidates a key.
    SendOnlyInvalidate = 0x17,
    /// An unreliable datagram.
    UdSendOnly = 0x64,
    /// The peer's packets met congestion (RoCEv2 congestion management, annex A17.9.3).
    CongestionNotification = 0x81,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Opcode {
    /// All operations that are known.
    pub const ALL: [Opcode; 22] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::UdSendOnly,
        Self::CongestionNotification,
    ];

    /// The operation of a byte, or nothing if it is not known.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastImm,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyImm,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImm,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImm,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x16 => Self::SendLastInvalidate,
            0x17 => Self::SendOnlyInvalidate,
            0x64 => Self::UdSendOnly,
            0x81 => Self::CongestionNotification,
            _ => return None,
        })
    }

    /// The byte on the wire.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Where the packet stands in its message.
    pub const fn position(self) -> Position {
        match self {
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst => Position::First,
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle => Position::Middle,
            Self::SendLast
            | Self::SendLastImm
            | Self::SendLastInvalidate
            | Self::WriteLast
            | Self::WriteLastImm
            | Self::ReadResponseLast => Position::Last,
            Self::SendOnly
            | Self::SendOnlyImm
            | Self::SendOnlyInvalidate
            | Self::WriteOnly
            | Self::WriteOnlyImm
            | Self::ReadRequest
            | Self::ReadResponseOnly
            | Self::Acknowledge
            | Self::UdSendOnly
            | Self::CongestionNotification => Position::Only,
        }
    }

    /// Whether a message begins with this packet.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self.position(), Position::First | Position::Only)
    }

    /// Whether a message ends with this packet.
    #[inline]
    pub const fn is_last(self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }

    /// Whether this is part of a SEND of the reliable connection.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendLastInvalidate
                | Self::SendOnlyInvalidate
        )
    }

    /// Whether this is part of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Whether this is part of the answer to an RDMA READ.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// Whether the requester of a reliable connection sends this (as opposed to the responder).
    #[inline]
    pub const fn is_request(self) -> bool {
        self.is_send() || self.is_write() || matches!(self, Self::ReadRequest)
    }

    /// Whether the responder of a reliable connection sends this.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Self::Acknowledge)
    }

    /// Whether the packet has an RDMA header (address, key, length).
    #[inline]
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm | Self::ReadRequest
        )
    }

    /// Whether the packet has an acknowledgement header.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::Acknowledge
                | Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// Whether the packet has a datagram header.
    #[inline]
    pub const fn has_deth(self) -> bool {
        matches!(self, Self::UdSendOnly)
    }

    /// Whether the packet names a key to invalidate.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        matches!(self, Self::SendLastInvalidate | Self::SendOnlyInvalidate)
    }

    /// Whether the packet has immediate data.
    #[inline]
    pub const fn has_imm(self) -> bool {
        matches!(
            self,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm
        )
    }

    /// Whether the packet may have a payload.
    #[inline]
    pub const fn may_have_payload(self) -> bool {
        !matches!(self, Self::ReadRequest | Self::Acknowledge)
    }

    /// Bytes of all headers of such a packet, the base transport header included.
    #[inline]
    pub const fn header_len(self) -> usize {
        let mut len = super::Bth::LEN;
        if self.has_deth() {
            len += super::Deth::LEN;
        }
        if self.has_reth() {
            len += super::Reth::LEN;
        }
        if self.has_aeth() {
            len += super::Aeth::LEN;
        }
        if self.has_imm() {
            len += super::ImmDt::LEN;
        }
        if self.has_ieth() {
            len += super::Ieth::LEN;
        }
        len
    }
}

impl TryFrom<u8> for Opcode {
    type Error = super::WireError;
    #[inline]
    fn try_from(byte: u8) -> Result<Self, Self::Error> {
        Self::from_byte(byte).ok_or(super::WireError::UnknownOpcode(byte))
    }
}

impl From<Opcode> for u8 {
    #[inline]
    fn from(opcode: Opcode) -> u8 {
        opcode.byte()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_an_operation_of_that_byte_or_none() {
        let known: Vec<_> = (0..=255).filter_map(Opcode::from_byte).collect();
        assert_eq!(known.len(), Opcode::ALL.len());
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_byte(opcode.byte()), Some(opcode));
        }
    }

    #[test]
    fn each_operation_is_request_response_datagram_or_notification() {
        for opcode in Opcode::ALL {
            let notifies = opcode == Opcode::CongestionNotification;
            let kinds = [
                opcode.is_request(),
                opcode.is_response(),
                opcode.has_deth(),
                notifies,
            ];
            assert_eq!(
                kinds.into_iter().filter(|kind| *kind).count(),
                1,
                "{opcode:?}"
            );
        }
    }
}
