//! SGL descriptors (Base 2.0, section 4.1.2; keyed ones: RDMA transport 1.0).

use crate::Status;

/// Bytes of a descriptor.
pub const SGL_BYTES: usize = 16;

/// The largest length that a keyed descriptor can carry: 24 bits.
pub const KEYED_LENGTH_MAX: u32 = 0xff_ffff;

/// Where a command's data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SglDescriptor {
    /// Type 0h, subtype 1h: in the capsule, `offset` bytes after the in-capsule data offset.
    InCapsule {
        /// Bytes from the start of the in-capsule data.
        offset: u64,
        /// Bytes of data.
        length: u32,
    },
    /// Type 4h: in the host's memory, reached by RDMA with a key.
    Keyed {
        /// The host's virtual address.
        address: u64,
        /// Bytes, at most 24 bits.
        length: u32,
        /// The remote key.
        key: u32,
        /// Subtype Fh: the completion is to invalidate the key.
        invalidate: bool,
    },
    /// Type 5h, subtype Ah: the transport moves the data (TCP).
    Transport {
        /// Bytes of data.
        length: u32,
    },
}

impl SglDescriptor {
    /// No data: what a host puts into a command that has none.
    pub const NONE: Self = Self::Keyed {
        address: 0,
        length: 0,
        key: 0,
        invalidate: false,
    };

    /// Parses a descriptor.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid with Do Not Retry for every type but the three above: segments
    /// would point outside the one descriptor that MSDBD allows.
    pub fn parse(bytes: &[u8; SGL_BYTES]) -> Result<Self, Status> {
        let address = u64::from_le_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]);
        let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        match bytes[15] {
            0x01 => Ok(Self::InCapsule {
                offset: address,
                length,
            }),
            0x5a => Ok(Self::Transport { length }),
            kind @ (0x40 | 0x4f) => Ok(Self::Keyed {
                address,
                length: length & KEYED_LENGTH_MAX,
                key: u32::from_le_bytes([bytes[11], bytes[12], bytes[13], bytes[14]]),
                invalidate: kind == 0x4f,
            }),
            _ => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    /// The wire form. A keyed length beyond 24 bits loses its top byte: check it first.
    #[must_use]
    pub fn encode(&self) -> [u8; SGL_BYTES] {
        let mut out = [0; SGL_BYTES];
        match *self {
            Self::InCapsule { offset, length } => {
                out[..8].copy_from_slice(&offset.to_le_bytes());
                out[8..12].copy_from_slice(&length.to_le_bytes());
                out[15] = 0x01;
            }
            Self::Keyed {
                address,
                length,
                key,
                invalidate,
            } => {
                out[..8].copy_from_slice(&address.to_le_bytes());
                out[8..11].copy_from_slice(&length.to_le_bytes()[..3]);
                out[11..15].copy_from_slice(&key.to_le_bytes());
                out[15] = if invalidate { 0x4f } else { 0x40 };
            }
            Self::Transport { length } => {
                out[8..12].copy_from_slice(&length.to_le_bytes());
                out[15] = 0x5a;
            }
        }
        out
    }

    /// Bytes of data that the descriptor names.
    #[must_use]
    pub const fn length(&self) -> u32 {
        match *self {
            Self::InCapsule { length, .. }
            | Self::Keyed { length, .. }
            | Self::Transport { length } => length,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_parse_to_a_descriptor_that_encodes_the_same_or_to_an_error(bytes: [u8; 16]) {
            if let Ok(sgl) = SglDescriptor::parse(&bytes) {
                prop_assert_eq!(SglDescriptor::parse(&sgl.encode()), Ok(sgl));
            }
        }

        #[test]
        fn every_unsupported_type_is_refused_for_good(mut bytes: [u8; 16], kind: u8) {
            prop_assume!(![0x01, 0x40, 0x4f, 0x5a].contains(&kind));
            bytes[15] = kind;
            prop_assert_eq!(
                SglDescriptor::parse(&bytes),
                Err(Status::SGL_TYPE_INVALID.with_dnr())
            );
        }
    }
}
