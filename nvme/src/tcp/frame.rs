//! The common header: how long everything in a PDU is (section 3.6.1).

use super::terminate::TERM_HEADER_BYTES;
use super::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, FLAG_DATA_DIGEST, FLAG_HEADER_DIGEST, FatalError,
    HEADER_BYTES_MAX, word,
};

/// Which digests a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Of headers.
    pub header: bool,
    /// Of data.
    pub data: bool,
}

/// Who sends a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// PDU-Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request.
    IcReq = 0x00,
    /// Initialize Connection Response.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule.
    CapsuleCmd = 0x04,
    /// Response Capsule.
    CapsuleResp = 0x05,
    /// Host to Controller Data.
    H2cData = 0x06,
    /// Controller to Host Data.
    C2hData = 0x07,
    /// Ready to Transfer.
    R2t = 0x09,
}

impl PduType {
    /// The type behind a number of the wire.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// HLEN: bytes of the header, without its digest.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => HEADER_BYTES_MAX,
            Self::CapsuleCmd => 72,
            Self::H2cTermReq
            | Self::C2hTermReq
            | Self::CapsuleResp
            | Self::H2cData
            | Self::C2hData
            | Self::R2t => TERM_HEADER_BYTES,
        }
    }

    /// Who may send it.
    #[must_use]
    pub const fn sender(self) -> Sender {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData => Sender::Host,
            Self::IcResp | Self::C2hTermReq | Self::CapsuleResp | Self::C2hData | Self::R2t => {
                Sender::Controller
            }
        }
    }

    /// Whether digests apply to it.
    const fn has_digests(self) -> bool {
        !matches!(
            self,
            Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq
        )
    }
}

/// A PDU's dimensions, consistent among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub kind: PduType,
    /// FLAGS.
    pub(super) flags: u8,
    /// Bytes of the header without its digest.
    pub header_bytes: usize,
    /// Whether a digest follows the header.
    pub header_digest: bool,
    /// Bytes between the header (with its digest) and the data.
    pub padding_bytes: usize,
    /// Bytes of data; 0 if there is none.
    pub data_bytes: usize,
    /// Whether a digest follows the data.
    pub data_digest: bool,
}

impl Frame {
    /// Judges the common header of a PDU from `sender` on a connection that uses `digests`, and whose
    /// receiver asked for data at multiples of `alignment` + 1 dwords.
    ///
    /// # Errors
    /// What is wrong with it. An unknown type, or one that the other side sends, is a wrong field.
    pub fn parse(
        bytes: &[u8; COMMON_HEADER_BYTES],
        sender: Sender,
        digests: Digests,
        alignment: u8,
    ) -> Result<Self, FatalError> {
        let kind = PduType::from_number(bytes[0])
            .filter(|kind| kind.sender() == sender)
            .ok_or(FatalError::field(0, "an unknown PDU type"))?;
        let (flags, hlen, pdo) = (bytes[1], usize::from(bytes[2]), usize::from(bytes[3]));
        let plen = word(bytes, 4) as usize;
        let header_bytes = kind.header_bytes();
        if hlen != header_bytes {
            return Err(FatalError::field(2, "a wrong header length"));
        }
        let header_digest = flags & FLAG_HEADER_DIGEST != 0;
        if kind.has_digests() && header_digest != digests.header {
            return Err(FatalError::field(
                1,
                "a header digest where none was agreed on, or none",
            ));
        }
        let header_digest = header_digest && kind.has_digests();
        let whole_header = header_bytes + usize::from(header_digest) * DIGEST_BYTES;
        let wrong_length = FatalError::field(4, "a wrong PDU length");
        if plen < whole_header {
            return Err(wrong_length);
        }
        let mut frame = Self {
            kind,
            flags,
            header_bytes,
            header_digest,
            padding_bytes: 0,
            data_bytes: plen - whole_header,
            data_digest: false,
        };
        match kind {
            PduType::H2cTermReq | PduType::C2hTermReq => {
                // The header of the PDU that was in error.
                if frame.data_bytes > HEADER_BYTES_MAX {
                    return Err(wrong_length);
                }
                return Ok(frame);
            }
            PduType::CapsuleCmd | PduType::H2cData | PduType::C2hData => {}
            PduType::IcReq | PduType::IcResp | PduType::CapsuleResp | PduType::R2t => {
                return if plen == whole_header {
                    Ok(frame)
                } else {
                    Err(wrong_length)
                };
            }
        }
        if plen == whole_header {
            // Only a command can do without data, and then PDO means nothing.
            return if kind == PduType::CapsuleCmd {
                Ok(frame)
            } else {
                Err(wrong_length)
            };
        }
        if pdo != whole_header.next_multiple_of((usize::from(alignment) + 1) * 4) {
            return Err(FatalError::field(
                3,
                "data that does not begin where it must",
            ));
        }
        frame.padding_bytes = pdo - whole_header;
        frame.data_digest = flags & FLAG_DATA_DIGEST != 0;
        if frame.data_digest != digests.data {
            return Err(FatalError::field(
                1,
                "a data digest where none was agreed on, or none",
            ));
        }
        let digest = usize::from(frame.data_digest) * DIGEST_BYTES;
        frame.data_bytes = plen
            .checked_sub(pdo + digest)
            .filter(|bytes| *bytes > 0)
            .ok_or(wrong_length)?;
        Ok(frame)
    }

    /// Bytes of the header and its digest.
    #[must_use]
    pub const fn whole_header_bytes(&self) -> usize {
        self.header_bytes + if self.header_digest { DIGEST_BYTES } else { 0 }
    }

    /// Appends the common header of a PDU with so much data, as `parse` takes it. `flags` are those
    /// that digests do not decide.
    pub(super) fn emit_common(
        kind: PduType,
        flags: u8,
        digests: Digests,
        data: Option<(usize, u8)>,
        out: &mut Vec<u8>,
    ) -> usize {
        let header_digest = digests.header && kind.has_digests();
        let whole_header = kind.header_bytes() + usize::from(header_digest) * DIGEST_BYTES;
        let mut flags = flags | if header_digest { FLAG_HEADER_DIGEST } else { 0 };
        let (mut pdo, mut plen) = (0, whole_header);
        if let Some((bytes, alignment)) = data.filter(|(bytes, _)| *bytes > 0) {
            pdo = whole_header.next_multiple_of((usize::from(alignment) + 1) * 4);
            plen = pdo + bytes;
            if digests.data {
                flags |= FLAG_DATA_DIGEST;
                plen += DIGEST_BYTES;
            }
        }
        out.extend_from_slice(&[kind as u8, flags, kind.header_bytes() as u8, pdo as u8]);
        out.extend_from_slice(&(plen as u32).to_le_bytes());
        pdo.saturating_sub(whole_header)
    }
}
