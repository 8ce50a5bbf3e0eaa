//! ICReq and ICResp: what both sides agree on before anything else (sections 3.6.2.1 and 3.6.2.2).

use super::{Digests, FatalError, FatalStatus, HEADER_BYTES_MAX, MAXH2CDATA_MIN, PduType};
use super::{half, word};

/// DGST bit 0: header digests.
const HEADER_DIGEST: u8 = 1 << 0;
/// DGST bit 1: data digests.
const DATA_DIGEST: u8 = 1 << 1;
/// HPDA and CPDA say at most this: 128 bytes in dwords, zero based.
const ALIGNMENT_MAX: u8 = 31;

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// HPDA: data of C2HData PDUs begins at a multiple of this many dwords, zero based.
    pub alignment: u8,
    /// The digests it wants.
    pub digests: Digests,
    /// MAXR2T: R2Ts that it takes for one command at a time, zero based.
    pub max_r2t: u32,
}

/// What a controller answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// CPDA: data of capsules and H2CData PDUs begin at a multiple of this many dwords, zero based.
    pub alignment: u8,
    /// The digests that are used.
    pub digests: Digests,
    /// MAXH2CDATA: bytes of data of one H2CData PDU at most.
    pub max_h2c_data: u32,
}

fn emit(kind: PduType, alignment: u8, digests: Digests, last: u32, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + HEADER_BYTES_MAX, 0);
    let header = &mut out[start..];
    header[0] = kind as u8;
    header[2] = HEADER_BYTES_MAX as u8;
    header[4] = HEADER_BYTES_MAX as u8;
    header[10] = alignment;
    header[11] = u8::from(digests.header) * HEADER_DIGEST + u8::from(digests.data) * DATA_DIGEST;
    header[12..16].copy_from_slice(&last.to_le_bytes());
}

/// PDU format version, alignment and digests, the same in both.
fn parse(header: &[u8]) -> Result<(u8, Digests), FatalError> {
    let unsupported = |offset, what| FatalError {
        information: offset,
        ..FatalError::new(FatalStatus::Unsupported, what)
    };
    if half(header, 8) != 0 {
        return Err(unsupported(8, "a PDU format version other than 0"));
    }
    if header[10] > ALIGNMENT_MAX {
        return Err(FatalError::field(10, "an alignment of more than 128 bytes"));
    }
    let digests = header[11];
    if digests & !(HEADER_DIGEST | DATA_DIGEST) != 0 {
        return Err(FatalError::field(11, "unknown digests"));
    }
    let digests = Digests {
        header: digests & HEADER_DIGEST != 0,
        data: digests & DATA_DIGEST != 0,
    };
    Ok((header[10], digests))
}

impl IcReq {
    pub(super) fn parse(header: &[u8]) -> Result<Self, FatalError> {
        let (alignment, digests) = parse(header)?;
        Ok(Self {
            alignment,
            digests,
            max_r2t: word(header, 12),
        })
    }

    /// Appends the PDU.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit(
            PduType::IcReq,
            self.alignment,
            self.digests,
            self.max_r2t,
            out,
        );
    }
}

impl IcResp {
    pub(super) fn parse(header: &[u8]) -> Result<Self, FatalError> {
        let (alignment, digests) = parse(header)?;
        let max_h2c_data = word(header, 12);
        if max_h2c_data < MAXH2CDATA_MIN || !max_h2c_data.is_multiple_of(4) {
            return Err(FatalError::field(
                12,
                "MAXH2CDATA below 4096, or not a multiple of 4",
            ));
        }
        Ok(Self {
            alignment,
            digests,
            max_h2c_data,
        })
    }

    /// Appends the PDU.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (kind, last) = (PduType::IcResp, self.max_h2c_data);
        emit(kind, self.alignment, self.digests, last, out);
    }
}
