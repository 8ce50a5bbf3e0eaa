//! The extended transport headers (chapter 9.3).

use super::{WireError, be24, be32, be64, put_be24};

/// RDMA extended header: which remote memory a WRITE or READ is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// The remote address.
    pub va: u64,
    /// The key that grants access to it.
    pub rkey: u32,
    /// Bytes of the whole message (not of this packet).
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    #[inline]
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            va: be64(bytes, 0),
            rkey: be32(bytes, 8),
            len: be32(bytes, 12),
        }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Why a responder refused a request (chapter 9.7.5.2.1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing; the acknowledgement's PSN says which is expected.
    SequenceError = 0,
    /// The request is not valid.
    InvalidRequest = 1,
    /// The key or the range of remote memory was refused.
    RemoteAccess = 2,
    /// The responder could not carry the request out.
    RemoteOperation = 3,
    /// Reliable datagrams only; here for completeness.
    InvalidRdRequest = 4,
}

/// The verdict of an acknowledgement (chapter 9.7.5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// All up to the PSN is done. The credit count is a 5-bit code; [`Syndrome::NO_CREDITS`] says
    /// that the responder does not count credits.
    Ack {
        /// The 5-bit credit code.
        credits: u8,
    },
    /// The receiver has no receive posted: try again after the time of the 5-bit code.
    Rnr {
        /// The 5-bit timer code, see [`Syndrome::rnr_delay`].
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

impl Syndrome {
    /// The credit code of a responder that does not count credits. rxe uses it always.
    pub const NO_CREDITS: u8 = 0x1f;

    /// An acknowledgement without credits.
    pub const ACK: Self = Self::Ack {
        credits: Self::NO_CREDITS,
    };

    /// The verdict of a byte.
    ///
    /// # Errors
    /// [`WireError::UnknownSyndrome`] for reserved values.
    #[inline]
    pub fn from_byte(byte: u8) -> Result<Self, WireError> {
        let value = byte & 0x1f;
        Ok(match (byte >> 5, value) {
            (0, credits) => Self::Ack { credits },
            (1, timer) => Self::Rnr { timer },
            (3, 0) => Self::Nak(NakCode::SequenceError),
            (3, 1) => Self::Nak(NakCode::InvalidRequest),
            (3, 2) => Self::Nak(NakCode::RemoteAccess),
            (3, 3) => Self::Nak(NakCode::RemoteOperation),
            (3, 4) => Self::Nak(NakCode::InvalidRdRequest),
            _ => return Err(WireError::UnknownSyndrome(byte)),
        })
    }

    /// The byte on the wire.
    #[inline]
    pub fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::Rnr { timer } => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code as u8,
        }
    }

    /// How long a receiver-not-ready timer code asks the sender to wait (table 46).
    pub fn rnr_delay(timer: u8) -> std::time::Duration {
        /// In units of 10 microseconds. Code 0 is the longest: a trap for those who leave it 0.
        const TENS_OF_MICROSECONDS: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        let tens = TENS_OF_MICROSECONDS[usize::from(timer & 0x1f)];
        std::time::Duration::from_micros(u64::from(tens) * 10)
    }
}

/// Acknowledgement extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// The verdict.
    pub syndrome: Syndrome,
    /// The responder's count of completed messages, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    #[inline]
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            syndrome: Syndrome::from_byte(bytes[0])?,
            msn: be24(bytes, 1),
        })
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.syndrome.byte();
        put_be24(&mut bytes, 1, self.msn);
        bytes
    }
}

/// Datagram extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// The key that the receiver compares with its own; [`GSI_QKEY`](super::GSI_QKEY) on queue
    /// pair 1.
    pub qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub src_qpn: u32,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    #[inline]
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            qkey: be32(bytes, 0),
            src_qpn: be24(bytes, 5),
        }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.qkey.to_be_bytes());
        put_be24(&mut bytes, 5, self.src_qpn);
        bytes
    }
}

/// Invalidate extended header: the key that the receiver shall revoke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth(pub u32);

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
}

/// Immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_is_a_verdict_of_that_byte_or_reserved() {
        let mut known = 0;
        for byte in 0..=255 {
            if let Ok(syndrome) = Syndrome::from_byte(byte) {
                assert_eq!(syndrome.byte(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 32 + 32 + 5);
    }

    #[test]
    fn receiver_not_ready_timers_have_the_specified_lengths() {
        assert_eq!(Syndrome::rnr_delay(0).as_micros(), 655_360);
        assert_eq!(Syndrome::rnr_delay(1).as_micros(), 10);
        assert_eq!(Syndrome::rnr_delay(12).as_micros(), 640);
        assert_eq!(Syndrome::rnr_delay(31).as_micros(), 491_520);
    }
}
