//! The RoCEv2 wire formats: packets of the reliable connection and of the general services queue
//! pair, the invariant CRC, and connection management messages.
//!
//! What this module guarantees:
//! - Parsing never panics, whatever the bytes, and never allocates.
//! - A value that parsed is valid: fields that have no meaning on the wire cannot be represented,
//!   every length was checked, and the padding is the one that the payload's length demands.
//! - Writing what was parsed yields the same bytes, reserved fields excepted, which are written as
//!   the specification asks (zero).
//!
//! Numbers, offsets and names follow the InfiniBand Architecture Specification, volume 1: chapter 9
//! (transport headers), chapter 12 (communication management), chapter 13 (management datagrams),
//! annex A11 (RDMA IP CM service) and annex A17 (RoCEv2).

mod bth;
pub mod cm;
mod cma;
mod error;
mod headers;
pub mod icrc;
pub mod mad;
mod opcode;
mod packet;
mod path;
mod psn;

pub use bth::{Bth, PKEY_DEFAULT};
pub use cma::CmaHeader;
pub use error::WireError;
pub use headers::{Aeth, Deth, Ieth, ImmDt, NakCode, Reth, Syndrome};
pub use opcode::{Opcode, Position};
pub use packet::{Packet, pad_for};
pub use path::{Path, PathMtu};
pub use psn::Psn;

/// The UDP port of RoCEv2 (IANA; annex A17).
pub const UDP_PORT: u16 = 4791;

/// The queue pair number of the general services interface, where connection management lives.
pub const GSI_QPN: u32 = 1;

/// The well-known Q_Key of the general services interface (chapter 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// The largest queue pair number: they have 24 bits.
pub const QPN_MAX: u32 = 0x00ff_ffff;

/// Reads a big-endian 16-bit number at a constant offset of a slice that was checked to be long
/// enough.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a big-endian 24-bit number, as [`be16`].
#[inline]
pub(crate) fn be24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

/// Reads a big-endian 32-bit number, as [`be16`].
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a big-endian 64-bit number, as [`be16`].
#[inline]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    (u64::from(be32(bytes, at)) << 32) | u64::from(be32(bytes, at + 4))
}

/// Writes the lower 24 bits of a number at a constant offset, big-endian.
#[inline]
pub(crate) fn put_be24(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}
