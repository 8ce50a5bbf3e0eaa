//! Terminate Connection Requests, and the fatal errors that they tell (sections 3.6.2.3 and 3.6.2.4).

use super::{HEADER_BYTES_MAX, PduType, word};

/// Bytes of the header of a Terminate request.
pub(super) const TERM_HEADER_BYTES: usize = 24;

/// FES: what kind of error ended the connection (figures 24 and 26).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalStatus {
    /// A field of a header is wrong; FEI is its byte offset.
    InvalidHeaderField = 1,
    /// A PDU came at a time when it may not.
    SequenceError = 2,
    /// The header digest is wrong; FEI is the digest that was received.
    HeaderDigest = 3,
    /// Data outside of what was asked for.
    DataOutOfRange = 4,
    /// More data in a PDU than MAXH2CDATA, or, from a host, more R2Ts than it takes.
    LimitExceeded = 5,
    /// A value of a field that this side does not support; FEI is its byte offset.
    Unsupported = 6,
}

impl FatalStatus {
    /// The status behind a number of the wire.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::InvalidHeaderField,
            2 => Self::SequenceError,
            3 => Self::HeaderDigest,
            4 => Self::DataOutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::Unsupported,
            _ => return None,
        })
    }

    /// The specification's words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::InvalidHeaderField => "an invalid PDU header field",
            Self::SequenceError => "a PDU sequence error",
            Self::HeaderDigest => "a header digest error",
            Self::DataOutOfRange => "a data transfer out of range",
            Self::LimitExceeded => "a limit on data or R2Ts exceeded",
            Self::Unsupported => "an unsupported parameter",
        }
    }
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what} (error information {information:#x})", status.text())]
pub struct FatalError {
    /// FES.
    pub status: FatalStatus,
    /// FEI, as the status says.
    pub information: u32,
    /// What happened, for the log.
    pub what: &'static str,
}

impl FatalError {
    /// A field at a byte offset of the header is wrong.
    #[must_use]
    pub const fn field(offset: u32, what: &'static str) -> Self {
        Self {
            status: FatalStatus::InvalidHeaderField,
            information: offset,
            what,
        }
    }

    /// An error whose status has no information.
    #[must_use]
    pub const fn new(status: FatalStatus, what: &'static str) -> Self {
        Self {
            status,
            information: 0,
            what,
        }
    }
}

/// H2CTermReq or C2HTermReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// FES, also one that is not known here.
    pub status: u16,
    /// FEI.
    pub information: u32,
}

impl TermReq {
    pub(super) fn parse(header: &[u8]) -> Self {
        Self {
            status: u16::from_le_bytes([header[8], header[9]]),
            information: word(header, 10),
        }
    }

    /// What the sender complains of.
    #[must_use]
    pub fn text(&self) -> &'static str {
        FatalStatus::from_number(self.status).map_or("an unknown error", FatalStatus::text)
    }

    /// Appends a request of that type, H2CTermReq or C2HTermReq, about a PDU whose header is
    /// `offender` (of which at most 128 bytes are told).
    pub fn emit(&self, kind: PduType, offender: &[u8], out: &mut Vec<u8>) {
        let offender = &offender[..offender.len().min(HEADER_BYTES_MAX)];
        let plen = (TERM_HEADER_BYTES + offender.len()) as u32;
        out.extend_from_slice(&[kind as u8, 0, TERM_HEADER_BYTES as u8, 0]);
        out.extend_from_slice(&plen.to_le_bytes());
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&self.information.to_le_bytes());
        out.extend_from_slice(&[0; TERM_HEADER_BYTES - 14]);
        out.extend_from_slice(offender);
    }
}

impl From<FatalError> for TermReq {
    fn from(error: FatalError) -> Self {
        Self {
            status: error.status as u16,
            information: error.information,
        }
    }
}
