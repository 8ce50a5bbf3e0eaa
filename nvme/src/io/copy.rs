//! The source ranges of Copy (NVM Command Set 1.0, section 3.2.2), in the two descriptor formats without
//! protection information: 0, of the same namespace, and 2, of any.

use crate::Status;

/// Bytes of one source range, in either format.
pub const COPY_RANGE_BYTES: usize = 32;

/// Source ranges of one Copy at most: NR has 8 bits, zero based.
pub const COPY_RANGES_MAX: u16 = 256;

/// In the source options of format 2: fast copy only.
const FAST_COPY_ONLY: u16 = 1 << 15;

/// How the source ranges are described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// 0h: ranges of the namespace that the command names.
    SameNamespace,
    /// 2h: each names its namespace.
    AnyNamespace,
}

impl CopyFormat {
    /// The format with this number, if it is one without protection information.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::SameNamespace),
            2 => Some(Self::AnyNamespace),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        match self {
            Self::SameNamespace => 0,
            Self::AnyNamespace => 2,
        }
    }

    /// Its bit in the optional copy formats (OCFS), and in the formats that a host enables (CDFE).
    #[must_use]
    pub const fn bit(self) -> u16 {
        1 << self.as_u8()
    }
}

/// One source range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRange {
    /// Its namespace; in format 0 that of the command, and this is 0.
    pub nsid: u32,
    /// First block.
    pub slba: u64,
    /// How many: 1 to 65536.
    pub blocks: u32,
    /// Rather an error than data that are moved (format 2).
    pub fast_only: bool,
}

impl CopyRange {
    /// The first `count` ranges of the data.
    ///
    /// # Errors
    /// SGL length invalid with Do Not Retry when the data hold fewer; more is fine.
    pub fn parse_list(data: &[u8], count: u16, format: CopyFormat) -> Result<Vec<Self>, Status> {
        let bytes = data
            .get(..usize::from(count) * COPY_RANGE_BYTES)
            .ok_or(Status::SGL_LENGTH_INVALID.with_dnr())?;
        let (ranges, _) = bytes.as_chunks::<COPY_RANGE_BYTES>();
        let parse = |b: &[u8; COPY_RANGE_BYTES]| {
            let options = u16::from_le_bytes([b[22], b[23]]);
            let names = format == CopyFormat::AnyNamespace;
            Self {
                nsid: match names {
                    true => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                    false => 0,
                },
                slba: u64::from_le_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
                blocks: u32::from(u16::from_le_bytes([b[16], b[17]])) + 1,
                fast_only: names && options & FAST_COPY_ONLY != 0,
            }
        };
        Ok(ranges.iter().map(parse).collect())
    }

    /// The wire form; what the format does not have is left out.
    #[must_use]
    pub fn encode(&self, format: CopyFormat) -> [u8; COPY_RANGE_BYTES] {
        let mut out = [0; COPY_RANGE_BYTES];
        if format == CopyFormat::AnyNamespace {
            out[..4].copy_from_slice(&self.nsid.to_le_bytes());
            let options = if self.fast_only { FAST_COPY_ONLY } else { 0 };
            out[22..24].copy_from_slice(&options.to_le_bytes());
        }
        out[8..16].copy_from_slice(&self.slba.to_le_bytes());
        let blocks = self.blocks.wrapping_sub(1) as u16;
        out[16..18].copy_from_slice(&blocks.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_read_back_in_the_format_they_were_written_in(
            nsid: u32, slba: u64, blocks in 1u32..=65536, fast_only: bool
        ) {
            let range = CopyRange { nsid, slba, blocks, fast_only };
            let any = CopyFormat::AnyNamespace;
            prop_assert_eq!(CopyRange::parse_list(&range.encode(any), 1, any), Ok(vec![range]));
            let same = CopyFormat::SameNamespace;
            let plain = CopyRange { nsid: 0, fast_only: false, ..range };
            prop_assert_eq!(CopyRange::parse_list(&range.encode(same), 1, same), Ok(vec![plain]));
        }

        #[test]
        fn any_bytes_are_ranges_or_too_few(bytes: Vec<u8>, count in 1u16..=256) {
            let parsed = CopyRange::parse_list(&bytes, count, CopyFormat::AnyNamespace);
            prop_assert_eq!(parsed.is_ok(), bytes.len() >= usize::from(count) * COPY_RANGE_BYTES);
        }
    }

    #[test]
    fn fields_stand_where_nvme_cli_writes_them() {
        let range = CopyRange {
            nsid: 7,
            slba: 0x0102_0304_0506_0708,
            blocks: 16,
            fast_only: true,
        };
        let bytes = range.encode(CopyFormat::AnyNamespace);
        assert_eq!(bytes[..4], [7, 0, 0, 0]);
        assert_eq!(bytes[8..18], [8, 7, 6, 5, 4, 3, 2, 1, 15, 0]);
        assert_eq!(bytes[22..24], [0, 0x80]);
        for number in 0..=u8::MAX {
            if let Some(format) = CopyFormat::from_u8(number) {
                assert_eq!(format.as_u8(), number);
            }
        }
    }
}
