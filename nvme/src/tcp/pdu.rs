//! The typed PDUs (sections 3.6.2 and 3.6.3).

use crate::command::SQE_BYTES;
use crate::completion::CQE_BYTES;
use crate::{Cqe, Sqe};

use super::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, Digests, FLAG_LAST, FLAG_SUCCESS, FatalError, Frame, IcReq,
    IcResp, PduType, TermReq, digest, half, word,
};

const _: () = assert!(PduType::CapsuleCmd.header_bytes() == COMMON_HEADER_BYTES + SQE_BYTES);
const _: () = assert!(PduType::CapsuleResp.header_bytes() == COMMON_HEADER_BYTES + CQE_BYTES);
/// CCCID, TTAG, DATAO or R2TO, DATAL or R2TL, 4 reserved bytes.
const _: () = assert!(PduType::R2t.header_bytes() == COMMON_HEADER_BYTES + 2 + 2 + 4 + 4 + 4);

/// The header of an H2CData or C2HData PDU (figures 31 and 32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// CCCID: the command that the data belongs to.
    pub cid: u16,
    /// TTAG of the R2T that asked for it; reserved in C2HData.
    pub ttag: u16,
    /// DATAO: bytes from the start of the command's data.
    pub offset: u32,
    /// DATAL: bytes.
    pub length: u32,
    /// LAST_PDU: nothing follows for this R2T, or for this command.
    pub last: bool,
    /// SUCCESS of C2HData: no response capsule follows.
    pub success: bool,
}

/// R2T (figure 33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// CCCID: the command whose data is asked for.
    pub cid: u16,
    /// TTAG: comes back in the H2CData PDUs.
    pub ttag: u16,
    /// R2TO: bytes from the start of the command's data.
    pub offset: u32,
    /// R2TL: bytes.
    pub length: u32,
}

/// A PDU's header. What follows it, [`Frame`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// ICReq.
    IcReq(IcReq),
    /// ICResp.
    IcResp(IcResp),
    /// H2CTermReq.
    H2cTermReq(TermReq),
    /// C2HTermReq.
    C2hTermReq(TermReq),
    /// CapsuleCmd; its data, if any, follows.
    Command(Sqe),
    /// CapsuleResp.
    Response(Cqe),
    /// H2CData.
    H2cData(Data),
    /// C2HData.
    C2hData(Data),
    /// R2T.
    R2t(R2t),
}

/// The four fields that Data and R2T share.
fn emit_transfer(cid: u16, ttag: u16, offset: u32, length: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&cid.to_le_bytes());
    out.extend_from_slice(&ttag.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

impl Data {
    fn parse(frame: &Frame, header: &[u8]) -> Result<Self, FatalError> {
        let data = Self {
            cid: half(header, 8),
            ttag: half(header, 10),
            offset: word(header, 12),
            length: word(header, 16),
            last: frame.flags & FLAG_LAST != 0,
            success: frame.kind == PduType::C2hData && frame.flags & FLAG_SUCCESS != 0,
        };
        if data.length as usize != frame.data_bytes {
            return Err(FatalError::field(
                16,
                "DATAL that is not the length of the data",
            ));
        }
        if data.offset.checked_add(data.length).is_none() {
            return Err(FatalError::field(12, "data beyond 4 GiB"));
        }
        if data.success && !data.last {
            return Err(FatalError::field(1, "SUCCESS without LAST"));
        }
        Ok(data)
    }
}

impl Pdu {
    /// Makes a typed value of a header.
    ///
    /// # Errors
    /// What is wrong with it.
    ///
    /// # Panics
    /// If `header` is shorter than the frame says: an error in the program.
    pub fn parse(frame: &Frame, header: &[u8]) -> Result<Self, FatalError> {
        let header = &header[..frame.header_bytes];
        let short = FatalError::field(2, "a wrong header length");
        let body = &header[COMMON_HEADER_BYTES..];
        Ok(match frame.kind {
            PduType::IcReq => Self::IcReq(IcReq::parse(header)?),
            PduType::IcResp => Self::IcResp(IcResp::parse(header)?),
            PduType::H2cTermReq => Self::H2cTermReq(TermReq::parse(header)),
            PduType::C2hTermReq => Self::C2hTermReq(TermReq::parse(header)),
            PduType::CapsuleCmd => Self::Command(Sqe::from_capsule(body).ok_or(short)?),
            PduType::CapsuleResp => Self::Response(Cqe::decode(body).ok_or(short)?),
            PduType::H2cData => Self::H2cData(Data::parse(frame, header)?),
            PduType::C2hData => Self::C2hData(Data::parse(frame, header)?),
            PduType::R2t => Self::R2t(R2t {
                cid: half(header, 8),
                ttag: half(header, 10),
                offset: word(header, 12),
                length: word(header, 16),
            }),
        })
    }

    /// Appends the header, with its digest and the padding up to the data; `data` is how many bytes of
    /// data follow in this PDU, `alignment` what their receiver asked for.
    pub fn emit(&self, digests: Digests, data: usize, alignment: u8, out: &mut Vec<u8>) {
        let start = out.len();
        let following = Some((data, alignment));
        let padding = match self {
            Self::IcReq(request) => return request.emit(out),
            Self::IcResp(response) => return response.emit(out),
            Self::H2cTermReq(request) => return request.emit(PduType::H2cTermReq, &[], out),
            Self::C2hTermReq(request) => return request.emit(PduType::C2hTermReq, &[], out),
            Self::Command(sqe) => {
                let kind = PduType::CapsuleCmd;
                let padding = Frame::emit_common(kind, 0, digests, following, out);
                out.extend_from_slice(&sqe.0);
                padding
            }
            Self::Response(cqe) => {
                Frame::emit_common(PduType::CapsuleResp, 0, digests, None, out);
                out.extend_from_slice(&cqe.encode());
                0
            }
            Self::H2cData(data) | Self::C2hData(data) => {
                let kind = match self {
                    Self::H2cData(_) => PduType::H2cData,
                    _ => PduType::C2hData,
                };
                let flags = if data.last { FLAG_LAST } else { 0 }
                    | if data.success { FLAG_SUCCESS } else { 0 };
                let padding = Frame::emit_common(kind, flags, digests, following, out);
                emit_transfer(data.cid, data.ttag, data.offset, data.length, out);
                padding
            }
            Self::R2t(r2t) => {
                Frame::emit_common(PduType::R2t, 0, digests, None, out);
                emit_transfer(r2t.cid, r2t.ttag, r2t.offset, r2t.length, out);
                0
            }
        };
        if digests.header {
            let digest = digest(&out[start..]);
            out.extend_from_slice(&digest);
        }
        out.resize(out.len() + padding, 0);
    }
}

impl Frame {
    /// Checks the digest behind a header, if there is one; `bytes` are both.
    ///
    /// # Errors
    /// Header Digest Error, with the digest that was received.
    ///
    /// # Panics
    /// If `bytes` is shorter than the frame says: an error in the program.
    pub fn check_header_digest(&self, bytes: &[u8]) -> Result<(), FatalError> {
        if !self.header_digest {
            return Ok(());
        }
        let (header, received) = bytes[..self.whole_header_bytes()].split_at(self.header_bytes);
        if digest(header)[..] == received[..DIGEST_BYTES] {
            return Ok(());
        }
        Err(FatalError {
            information: word(received, 0),
            ..FatalError::new(super::FatalStatus::HeaderDigest, "a wrong header digest")
        })
    }
}
