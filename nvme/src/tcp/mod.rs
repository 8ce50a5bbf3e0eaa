//! NVMe/TCP protocol data units (NVMe/TCP Transport 1.0, section 3.6), as bytes.
//!
//! A PDU is a header of fixed length, a digest of it if that was agreed on, padding, data, and a
//! digest of the data. [`Frame::parse`] judges the first 8 bytes: from then on it is known how long
//! everything is, and nothing of it contradicts anything else. [`Pdu::parse`] makes a typed value of
//! the whole header. Whether a PDU may come at this time is the connection's to say.
//!
//! Guarantees: any bytes parse to a value or to a [`FatalError`], which says what to put into a
//! Terminate Connection Request; no length from the wire leaves this module unchecked against the
//! others; what is emitted parses to the same value. Numbers are little endian.

mod digest;
mod frame;
mod initialize;
mod pdu;
mod terminate;

pub use digest::{BLOCK_BYTES, BlockDigests, PieceDigest, digest};
pub use frame::{Digests, Frame, PduType, Sender};
pub use initialize::{IcReq, IcResp};
pub use pdu::{Data, Pdu, R2t};
pub use terminate::{FatalError, FatalStatus, TermReq};

/// Bytes of the common header (figure 17).
pub const COMMON_HEADER_BYTES: usize = 8;

/// Bytes of the longest header: those of ICReq and ICResp.
pub const HEADER_BYTES_MAX: usize = 128;

/// Bytes of a header or data digest.
pub const DIGEST_BYTES: usize = 4;

/// What a controller takes in the capsule of an admin or Fabrics command, in bytes (section 3.3.2.1.1:
/// 'shall support in-capsule data of up to 8192 bytes').
pub const ADMIN_IN_CAPSULE_BYTES: usize = 8192;

/// The least value of MAXH2CDATA, in bytes (figure 28).
pub const MAXH2CDATA_MIN: u32 = 4096;

/// FLAGS bit 0 of every PDU but ICReq, ICResp and the Terminate requests: a header digest follows.
const FLAG_HEADER_DIGEST: u8 = 1 << 0;
/// FLAGS bit 1: a data digest follows the data.
const FLAG_DATA_DIGEST: u8 = 1 << 1;
/// FLAGS bit 2 of H2CData and C2HData: the last of its transfer.
const FLAG_LAST: u8 = 1 << 2;
/// FLAGS bit 3 of C2HData: no response capsule follows, the command succeeded.
const FLAG_SUCCESS: u8 = 1 << 3;

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
