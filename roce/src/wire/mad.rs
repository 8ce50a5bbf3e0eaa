//! Management datagrams: 256 bytes, of which the first 24 are a common header (chapter 13.4.3).

use super::{WireError, be16, be32, be64};

/// Bytes of a management datagram.
pub const LEN: usize = 256;

/// Bytes of the common header.
pub const HEADER_LEN: usize = 24;

/// Bytes after the common header.
pub const BODY_LEN: usize = LEN - HEADER_LEN;

/// The base version of all management datagrams.
pub const BASE_VERSION: u8 = 1;

/// The management class of connection management (chapter 16.7).
pub const CLASS_CM: u8 = 0x07;

/// The class version of connection management.
pub const CLASS_VERSION_CM: u8 = 2;

/// The method Send, the only one that connection management messages have.
pub const METHOD_SEND: u8 = 0x03;

/// The common header of a connection management datagram, without its constant fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// Ties answers to requests; answers repeat it.
    pub transaction_id: u64,
    /// Which message follows.
    pub attribute_id: u16,
    /// Further describes the attribute; 0 in connection management.
    pub attribute_modifier: u32,
    /// The status; 0 in connection management.
    pub status: u16,
}

impl MadHeader {
    /// A header with modifier and status 0.
    pub const fn new(attribute_id: u16, transaction_id: u64) -> Self {
        Self {
            transaction_id,
            attribute_id,
            attribute_modifier: 0,
            status: 0,
        }
    }

    /// Splits a connection management datagram in header and body.
    ///
    /// # Errors
    /// If the length is not 256, or version, class or method are not those of connection
    /// management.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8; BODY_LEN]), WireError> {
        let wrong_length = WireError::MadLength(datagram.len());
        let mad: &[u8; LEN] = datagram.try_into().map_err(|_| wrong_length)?;
        let (header, body) = mad.split_first_chunk::<HEADER_LEN>().ok_or(wrong_length)?;
        let body: &[u8; BODY_LEN] = body.try_into().map_err(|_| wrong_length)?;
        if header[1] != CLASS_CM {
            return Err(WireError::MadClass(header[1]));
        }
        if header[0] != BASE_VERSION || header[2] != CLASS_VERSION_CM {
            return Err(WireError::MadVersion {
                base: header[0],
                class: header[2],
            });
        }
        if header[3] != METHOD_SEND {
            return Err(WireError::MadMethod(header[3]));
        }
        let parsed = Self {
            status: be16(header, 4),
            // Bytes 6 and 7 are specific to other classes; bytes 18 and 19 are reserved.
            transaction_id: be64(header, 8),
            attribute_id: be16(header, 16),
            attribute_modifier: be32(header, 20),
        };
        Ok((parsed, body))
    }

    /// The datagram with this header and that body.
    pub fn to_bytes(&self, body: &[u8; BODY_LEN]) -> [u8; LEN] {
        let mut mad = [0; LEN];
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CLASS_VERSION_CM, METHOD_SEND]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        mad[20..24].copy_from_slice(&self.attribute_modifier.to_be_bytes());
        mad[HEADER_LEN..].copy_from_slice(body);
        mad
    }
}

const _: () = assert!(BODY_LEN == 232);
