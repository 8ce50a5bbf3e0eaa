//! I/O commands of the NVM command set (NVM Command Set 1.0, section 3).

mod copy;

pub use copy::{COPY_RANGE_BYTES, COPY_RANGES_MAX, CopyFormat, CopyRange};

use crate::{Sqe, Status};

/// Flush.
pub const OPCODE_FLUSH: u8 = 0x00;
/// Write.
pub const OPCODE_WRITE: u8 = 0x01;
/// Read.
pub const OPCODE_READ: u8 = 0x02;
/// Write Uncorrectable.
pub const OPCODE_WRITE_UNCORRECTABLE: u8 = 0x04;
/// Compare.
pub const OPCODE_COMPARE: u8 = 0x05;
/// Write Zeroes.
pub const OPCODE_WRITE_ZEROES: u8 = 0x08;
/// Dataset Management.
pub const OPCODE_DATASET_MANAGEMENT: u8 = 0x09;

/// Verify.
pub const OPCODE_VERIFY: u8 = 0x0c;
/// Copy.
pub const OPCODE_COPY: u8 = 0x19;

/// Bytes of one range of Dataset Management.
pub const DSM_RANGE_BYTES: usize = 16;

const FUA: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
/// PRINFO, bits 29:26: protection information, which no namespace here is formatted with.
const PRINFO: u32 = 0xf << 26;
/// In Copy's dword 12, bits 15:12: the same of what is read.
const PRINFO_READ: u32 = 0xf << 12;
/// In Dataset Management's dword 11: AD.
const DSM_DEALLOCATE: u32 = 1 << 2;

/// A range of logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbaRange {
    /// First block.
    pub slba: u64,
    /// How many: 1 to 65536.
    pub blocks: u32,
}

/// An I/O command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoCommand {
    /// Makes everything acknowledged durable.
    Flush {
        /// Namespace; FFFFFFFFh for all.
        nsid: u32,
    },
    /// Writes.
    Write {
        /// Namespace.
        nsid: u32,
        /// Where.
        range: LbaRange,
        /// Durable before it is acknowledged.
        fua: bool,
    },
    /// Reads.
    Read {
        /// Namespace.
        nsid: u32,
        /// Where.
        range: LbaRange,
        /// From stable media.
        fua: bool,
    },
    /// Compares with what is stored.
    Compare {
        /// Namespace.
        nsid: u32,
        /// Where.
        range: LbaRange,
    },
    /// Writes zeroes without sending them.
    WriteZeroes {
        /// Namespace.
        nsid: u32,
        /// Where.
        range: LbaRange,
        /// Durable before it is acknowledged.
        fua: bool,
        /// The blocks may be deallocated.
        deallocate: bool,
    },
    /// Hints about ranges; only deallocation does anything.
    DatasetManagement {
        /// Namespace.
        nsid: u32,
        /// How many ranges the data hold: 1 to 256.
        ranges: u16,
        /// AD: deallocate them.
        deallocate: bool,
    },
    /// Compares what is stored with its checksums.
    Verify {
        /// Namespace.
        nsid: u32,
        /// Where.
        range: LbaRange,
    },
    /// Makes blocks unreadable until they are written.
    WriteUncorrectable {
        /// Namespace.
        nsid: u32,
        /// Where.
        range: LbaRange,
    },
    /// Copies ranges, one behind the other.
    Copy {
        /// Namespace that is written.
        nsid: u32,
        /// First block that is written.
        slba: u64,
        /// How many source ranges the data hold: 1 to 256.
        ranges: u16,
        /// How they are described.
        format: CopyFormat,
        /// Durable before it is acknowledged.
        fua: bool,
    },
}

impl IoCommand {
    /// Parses an entry of an I/O queue that is no Fabrics command.
    ///
    /// # Errors
    /// The status to answer with, Do Not Retry set.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        sqe.check_flags()?;
        let nsid = sqe.nsid();
        let dword = sqe.cdw(12);
        let range = LbaRange {
            slba: sqe.slba(),
            blocks: (dword & 0xffff) + 1,
        };
        let fua = dword & FUA != 0;
        let unprotected = || {
            if dword & PRINFO == 0 {
                Ok(())
            } else {
                Err(Status::INVALID_FIELD.with_dnr())
            }
        };
        Ok(match sqe.opcode() {
            OPCODE_FLUSH => Self::Flush { nsid },
            OPCODE_WRITE => {
                unprotected()?;
                Self::Write { nsid, range, fua }
            }
            OPCODE_READ => {
                unprotected()?;
                Self::Read { nsid, range, fua }
            }
            OPCODE_COMPARE => {
                unprotected()?;
                Self::Compare { nsid, range }
            }
            OPCODE_WRITE_ZEROES => {
                unprotected()?;
                Self::WriteZeroes {
                    nsid,
                    range,
                    fua,
                    deallocate: dword & DEALLOCATE != 0,
                }
            }
            OPCODE_DATASET_MANAGEMENT => Self::DatasetManagement {
                nsid,
                ranges: (sqe.cdw(10) & 0xff) as u16 + 1,
                deallocate: sqe.cdw(11) & DSM_DEALLOCATE != 0,
            },
            OPCODE_VERIFY => {
                unprotected()?;
                Self::Verify { nsid, range }
            }
            OPCODE_WRITE_UNCORRECTABLE => Self::WriteUncorrectable { nsid, range },
            OPCODE_COPY => {
                unprotected()?;
                let format = CopyFormat::from_u8((dword >> 8) as u8 & 0xf);
                match format.filter(|_| dword & PRINFO_READ == 0) {
                    Some(format) => Self::Copy {
                        nsid,
                        slba: range.slba,
                        ranges: (dword & 0xff) as u16 + 1,
                        format,
                        fua,
                    },
                    None => return Err(Status::INVALID_FIELD.with_dnr()),
                }
            }
            _ => return Err(Status::INVALID_OPCODE.with_dnr()),
        })
    }

    /// The command as a host sends it; the queue adds identifier and SGL.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        let ranged = |opcode, nsid, range: &LbaRange, bits| {
            Sqe::new(opcode)
                .with_nsid(nsid)
                .with_cdw(10, range.slba as u32)
                .with_cdw(11, (range.slba >> 32) as u32)
                .with_cdw(12, (range.blocks.wrapping_sub(1) & 0xffff) | bits)
        };
        let fua_bit = |fua| if fua { FUA } else { 0 };
        match self {
            Self::Flush { nsid } => Sqe::new(OPCODE_FLUSH).with_nsid(*nsid),
            Self::Write { nsid, range, fua } => ranged(OPCODE_WRITE, *nsid, range, fua_bit(*fua)),
            Self::Read { nsid, range, fua } => ranged(OPCODE_READ, *nsid, range, fua_bit(*fua)),
            Self::Compare { nsid, range } => ranged(OPCODE_COMPARE, *nsid, range, 0),
            Self::WriteZeroes {
                nsid,
                range,
                fua,
                deallocate,
            } => ranged(
                OPCODE_WRITE_ZEROES,
                *nsid,
                range,
                fua_bit(*fua) | if *deallocate { DEALLOCATE } else { 0 },
            ),
            Self::DatasetManagement {
                nsid,
                ranges,
                deallocate,
            } => Sqe::new(OPCODE_DATASET_MANAGEMENT)
                .with_nsid(*nsid)
                .with_cdw(10, u32::from(ranges.wrapping_sub(1) & 0xff))
                .with_cdw(11, if *deallocate { DSM_DEALLOCATE } else { 0 }),
            Self::Verify { nsid, range } => ranged(OPCODE_VERIFY, *nsid, range, 0),
            Self::WriteUncorrectable { nsid, range } => {
                ranged(OPCODE_WRITE_UNCORRECTABLE, *nsid, range, 0)
            }
            Self::Copy {
                nsid,
                slba,
                ranges,
                format,
                fua,
            } => {
                let count = LbaRange {
                    slba: *slba,
                    blocks: u32::from(ranges.wrapping_sub(1) & 0xff) + 1,
                };
                let format = u32::from(format.as_u8()) << 8;
                ranged(OPCODE_COPY, *nsid, &count, fua_bit(*fua) | format)
            }
        }
    }
}

/// One range of Dataset Management (NVM Command Set 1.0, figure 39).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DsmRange {
    /// First block.
    pub slba: u64,
    /// How many blocks; 0 names nothing.
    pub blocks: u32,
}

impl DsmRange {
    /// The first `count` ranges of the data.
    ///
    /// # Errors
    /// SGL length invalid with Do Not Retry when the data hold fewer; more is fine, because Linux
    /// always sends 4096 bytes.
    pub fn parse_list(data: &[u8], count: u16) -> Result<Vec<Self>, Status> {
        let bytes = data
            .get(..usize::from(count) * DSM_RANGE_BYTES)
            .ok_or(Status::SGL_LENGTH_INVALID.with_dnr())?;
        let (ranges, _) = bytes.as_chunks::<DSM_RANGE_BYTES>();
        Ok(ranges
            .iter()
            .map(|b| Self {
                blocks: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
                slba: u64::from_le_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            })
            .collect())
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; DSM_RANGE_BYTES] {
        let mut out = [0; DSM_RANGE_BYTES];
        out[4..8].copy_from_slice(&self.blocks.to_le_bytes());
        out[8..].copy_from_slice(&self.slba.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_parses_is_sent_again_the_same(opcode in 0u8..32, nsid: u32, dwords: [u32; 6]) {
            let mut sqe = Sqe::new(opcode).with_nsid(nsid);
            for (index, dword) in dwords.iter().enumerate() {
                sqe = sqe.with_cdw(10 + index, *dword);
            }
            if let Ok(command) = IoCommand::parse(&sqe) {
                prop_assert_eq!(IoCommand::parse(&command.to_sqe()), Ok(command));
            }
        }

        #[test]
        fn random_entries_never_panic(low: [u8; 32], high: [u8; 32]) {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&low);
            bytes[32..].copy_from_slice(&high);
            let _ = IoCommand::parse(&Sqe(bytes));
            let _ = crate::admin::AdminCommand::parse(&Sqe(bytes));
        }
    }

    #[test]
    fn a_list_of_256_ranges_in_16_bytes_is_refused() {
        assert_eq!(
            DsmRange::parse_list(&[0; 16], 256),
            Err(Status::SGL_LENGTH_INVALID.with_dnr())
        );
        let range = DsmRange {
            slba: 1 << 55,
            blocks: u32::MAX,
        };
        assert_eq!(DsmRange::parse_list(&range.encode(), 1), Ok(vec![range]));
        // Linux sends a whole page whatever the count is.
        assert_eq!(
            DsmRange::parse_list(&[0; 4096], 1).map(|list| list.len()),
            Ok(1)
        );
    }

    #[test]
    fn the_widest_range_is_parsed_as_it_is() {
        let sqe = Sqe::new(OPCODE_READ)
            .with_nsid(1)
            .with_cdw(10, u32::MAX)
            .with_cdw(11, u32::MAX)
            .with_cdw(12, 0xffff);
        assert_eq!(
            IoCommand::parse(&sqe),
            Ok(IoCommand::Read {
                nsid: 1,
                range: LbaRange {
                    slba: u64::MAX,
                    blocks: 65536
                },
                fua: false
            })
        );
    }

    #[test]
    fn protection_information_is_refused_because_no_namespace_has_it() {
        let sqe = Sqe::new(OPCODE_WRITE).with_nsid(1).with_cdw(12, 1 << 29);
        assert_eq!(
            IoCommand::parse(&sqe),
            Err(Status::INVALID_FIELD.with_dnr())
        );
    }
}
