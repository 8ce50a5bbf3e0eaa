//! Admission to a volume: the checks that every command passes before it touches one, on every transport.
//!
//! Guarantees:
//! - Every command asks [`Admission::admit`] for each volume that it names, before its data move, and finds its bytes by
//!   [`Admission::place`] alone.
//! - Who asks always hears of the first reason: write protection, then reservations, then the range.
//! - Asking costs one atomic load as long as no reservation changes, and no lock.

use crate::catalog::WriteProtect;
use crate::reservation;

/// What a command does to a volume (the command groups of reservations, Base 2.0, section 8.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Looks at its content: Read, Compare, Verify, the source of a Copy.
    Read,
    /// Changes its content: Write, Write Zeroes, Write Uncorrectable, Dataset Management, the
    /// destination of a Copy.
    Write,
    /// Makes it durable: to reservations a change, to write protection none.
    Flush,
}

impl Access {
    /// The command group that reservations count it to.
    const fn group(self) -> reservations::Access {
        match self {
            Self::Read => reservations::Access::Read,
            Self::Write | Self::Flush => reservations::Access::Write,
        }
    }
}

/// Why a command may not touch a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The volume takes no writes here.
    WriteProtected,
    /// Another host's reservation keeps the command out.
    Reserved,
}

/// Bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What one user of a volume may do to it.
pub(crate) struct Admission {
    pub(crate) size_bytes: u64,
    pub(crate) lba_bytes: u32,
    pub(crate) write_protect: WriteProtect,
    pub(crate) reservations: reservations::Watch<reservation::Shared>,
}

impl Admission {
    /// Whether the volume may be used so.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn admit(&self, access: Access) -> Result<(), Refusal> {
        if access == Access::Write && self.write_protect != WriteProtect::Off {
            return Err(Refusal::WriteProtected);
        }
        match self.reservations.admits(access.group()) {
            true => Ok(()),
            false => Err(Refusal::Reserved),
        }
    }

    /// The bytes of `blocks` logical blocks from `slba`, if the volume has them all. The engine checks ranges
    /// again, so a volume that changed a moment ago does no harm.
    pub(crate) fn place(&self, slba: u64, blocks: u32) -> Option<Place> {
        place_in(self.size_bytes, self.lba_bytes, slba, blocks)
    }
}

/// The bytes of `blocks` logical blocks from `slba`, if they lie in a volume of that size.
fn place_in(size_bytes: u64, lba_bytes: u32, slba: u64, blocks: u32) -> Option<Place> {
    let lba_bytes = u64::from(lba_bytes);
    let end = slba.checked_add(u64::from(blocks))?;
    if end > size_bytes / lba_bytes {
        return None;
    }
    // Both products are at most the volume's size.
    Some(Place {
        offset: slba * lba_bytes,
        len: u64::from(blocks) * lba_bytes,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_ends_where_the_volume_ends() {
        let size = 1 << 20;
        assert_eq!(
            place_in(size, 4096, 255, 1),
            Some(Place {
                offset: 255 << 12,
                len: 4096
            })
        );
        assert_eq!(place_in(size, 4096, 256, 1), None);
        assert_eq!(place_in(size, 4096, 0, 257), None);
        assert_eq!(
            place_in(size, 512, 2047, 1),
            Some(Place {
                offset: 2047 << 9,
                len: 512
            })
        );
    }

    #[test]
    fn ranges_whose_sums_wrap_lie_outside() {
        for slba in [u64::MAX, u64::MAX - 0xffff, 1 << 55, u64::MAX / 4096] {
            assert_eq!(place_in(64 << 30, 4096, slba, 0x1_0000), None, "{slba:#x}");
            assert_eq!(place_in(64 << 30, 512, slba, u32::MAX), None, "{slba:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_place_is_never_outside(size: u64, large: bool, slba: u64, blocks: u32) {
            let lba_bytes = if large { 4096 } else { 512 };
            if let Some(place) = place_in(size, lba_bytes, slba, blocks) {
                prop_assert!(place.offset.checked_add(place.len).is_some_and(|end| end <= size));
            }
        }
    }
}
