//! The frame around a record in the ring.
//!
//! ```text
//! byte  0  u32  CRC-32C of bytes 4.. to the end of the frame, padding included
//! byte  4  u32  payload bytes
//! byte  8  u32  epoch
//! byte 12  u8   kind (a record's, or WRAP); then three zero bytes
//! byte 16  u64  sequence number
//! byte 24  u64  last sequence number that was stable when the frame was written
//! byte 32       payload, padded with zeros to a multiple of 8
//! ```
//! All little endian. Frames begin at multiples of 8 and never straddle the end of the ring: where the
//! next one does not fit, a WRAP frame with that one's sequence number sends the reader to byte 0 (as
//! does a rest that is too small for a header).

use crate::codec::crc32c;

/// Bytes of a frame before its payload.
pub(crate) const HEADER_BYTES: usize = 32;
/// Frames begin and end at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// Kind of the frame that sends the reader to the beginning of the ring.
pub(crate) const KIND_WRAP: u8 = 0xff;

/// What a frame says besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) crc32c: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) epoch: u32,
    pub(crate) kind: u8,
    pub(crate) seq: u64,
    pub(crate) stable: u64,
}

impl Header {
    /// The header in these bytes, if they can be one. The checksum is not checked here.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        let u32_at = |at: usize| {
            bytes
                .get(at..)
                .and_then(<[u8]>::first_chunk)
                .map(|b| u32::from_le_bytes(*b))
        };
        let u64_at = |at: usize| {
            bytes
                .get(at..)
                .and_then(<[u8]>::first_chunk)
                .map(|b| u64::from_le_bytes(*b))
        };
        let [kind, 0, 0, 0] = *bytes.get(12..).and_then(<[u8]>::first_chunk)? else {
            return None;
        };
        if kind == 0 {
            return None;
        }
        Some(Self {
            crc32c: u32_at(0)?,
            payload_bytes: u32_at(4)?,
            epoch: u32_at(8)?,
            kind,
            seq: u64_at(16)?,
            stable: u64_at(24)?,
        })
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        frame_bytes(u64::from(self.payload_bytes))
    }
}

/// Bytes of a frame with a payload of that many bytes.
pub(crate) fn frame_bytes(payload_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + payload_bytes).next_multiple_of(ALIGN as u64)
}

/// Whether `frame` (header, payload, padding) carries the checksum of its content.
pub(crate) fn is_whole(header: &Header, frame: &[u8]) -> bool {
    frame
        .get(4..)
        .is_some_and(|content| crc32c(content) == header.crc32c)
}

/// Appends a frame to `out` that has no range of the ring yet: its bytes, but for what [`seal`] writes. `payload` appends
/// the payload.
pub(crate) fn encode(out: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&[0; 16]);
    payload(out);
    let payload_bytes = (out.len() - start - HEADER_BYTES) as u32;
    out.resize(start + frame_bytes(u64::from(payload_bytes)) as usize, 0);
    out[start + 4..start + 8].copy_from_slice(&payload_bytes.to_le_bytes());
}

/// Writes into an encoded frame whose it is and where it belongs, and its checksum.
pub(crate) fn seal(frame: &mut [u8], epoch: u32, seq: u64, stable: u64) {
    frame[8..12].copy_from_slice(&epoch.to_le_bytes());
    frame[16..24].copy_from_slice(&seq.to_le_bytes());
    frame[24..32].copy_from_slice(&stable.to_le_bytes());
    let crc = crc32c(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_whole_only_without_any_changed_bit() {
        let mut frame = Vec::new();
        encode(&mut frame, 7, |out| out.extend_from_slice(b"payload"));
        seal(&mut frame, 3, 9, 8);
        assert_eq!(frame.len(), 40);
        let header = Header::parse(&frame).unwrap();
        assert_eq!(
            (header.kind, header.epoch, header.seq, header.stable),
            (7, 3, 9, 8)
        );
        assert!(is_whole(&header, &frame));
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let accepted = Header::parse(&damaged).is_some_and(|header| {
                header.frame_bytes() == frame.len() as u64 && is_whole(&header, &damaged)
            });
            assert!(!accepted, "bit {bit}");
        }
    }

    #[test]
    fn zeroed_space_is_no_frame() {
        assert_eq!(Header::parse(&[0; 64]), None);
        assert_eq!(Header::parse(&[1; 31]), None);
    }
}
