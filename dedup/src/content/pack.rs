//! The bytes of a pack: a physical block that several compressed contents share.
//!
//! | bytes           | what                                                                          |
//! |-----------------|-------------------------------------------------------------------------------|
//! | 0               | [`FORMAT`]                                                                    |
//! | 1               | how many fragments, 1 to 15                                                   |
//! | 2 per fragment  | little endian: its length in bits 0 to 11, its algorithm in bits 12 to 15     |
//! | their lengths   | the fragments, one behind the other, in the order of their slots              |
//! | the rest        | zeros                                                                         |
//!
//! A pack is written once, by one batch of writes, and never changed. What it says is not trusted: every
//! length is checked before it is used, and what a fragment unpacks to is compared with its checksum by
//! who asked for it. Parsing never panics, whatever the bytes are.

use meta::Pba;

use super::compress::Algorithm;
use super::fingerprint::Block;
use crate::SUB_BLOCK_BYTES;

/// First byte of a pack. Another layout gets another number.
pub(crate) const FORMAT: u8 = 0xc1;
/// Bytes of the header before its fragments' entries.
const HEADER_BYTES: usize = 2;
/// Bytes of a fragment's entry.
const ENTRY_BYTES: usize = 2;
/// Fragments of a pack at most.
pub(crate) const FRAGMENTS_MAX: usize = Pba::SLOT_MAX as usize + 1;

const LENGTH_BITS: u32 = 12;

/// Bytes of a block that so many fragments of so many bytes together take.
pub(crate) fn bytes_of(fragments: usize, bytes: usize) -> usize {
    HEADER_BYTES + fragments * ENTRY_BYTES + bytes
}

/// Why a block is not a pack, or a fragment of it is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// It does not begin as a pack does.
    #[error("the block is no pack")]
    Format,
    /// A length or an algorithm that cannot be, or bytes where none may be.
    #[error("the header of the pack is damaged")]
    Header,
    /// The pack has no fragment with this slot.
    #[error("the pack has no such fragment")]
    Slot,
    /// A fragment does not unpack to a block.
    #[error("the fragment does not unpack")]
    Fragment,
}

/// A block whose header was found right.
#[derive(Clone, Copy, Debug)]
pub struct Pack<'a> {
    block: &'a Block,
    count: usize,
}

impl<'a> Pack<'a> {
    /// Looks at the header of a block.
    ///
    /// # Errors
    /// [`PackError::Format`] and [`PackError::Header`].
    pub fn parse(block: &'a Block) -> Result<Self, PackError> {
        if block[0] != FORMAT {
            return Err(PackError::Format);
        }
        let pack = Self {
            block,
            count: usize::from(block[1]),
        };
        if !(1..=FRAGMENTS_MAX).contains(&pack.count) {
            return Err(PackError::Header);
        }
        let mut end = bytes_of(pack.count, 0);
        for slot in 0..pack.count {
            let (length, algorithm) = pack.entry(slot);
            end += length;
            if length == 0 || algorithm.is_none() {
                return Err(PackError::Header);
            }
        }
        let rest = block.get(end..).ok_or(PackError::Header)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(PackError::Header);
        }
        Ok(pack)
    }

    /// How many fragments it has.
    pub fn count(&self) -> usize {
        self.count
    }

    fn entry(&self, slot: usize) -> (usize, Option<Algorithm>) {
        let at = HEADER_BYTES + slot * ENTRY_BYTES;
        let entry = u16::from_le_bytes([self.block[at], self.block[at + 1]]);
        let algorithm = Algorithm::from_number((entry >> LENGTH_BITS) as u8);
        (usize::from(entry & ((1 << LENGTH_BITS) - 1)), algorithm)
    }

    /// A fragment as it is stored.
    ///
    /// # Errors
    /// [`PackError::Slot`].
    pub fn fragment(&self, slot: usize) -> Result<(Algorithm, &'a [u8]), PackError> {
        if slot >= self.count {
            return Err(PackError::Slot);
        }
        let before: usize = (0..slot).map(|slot| self.entry(slot).0).sum();
        let start = bytes_of(self.count, before);
        let (length, algorithm) = self.entry(slot);
        let bytes = self.block.get(start..start + length);
        algorithm.zip(bytes).ok_or(PackError::Header)
    }

    /// Unpacks a fragment. After an error `content` holds anything.
    ///
    /// # Errors
    /// [`PackError::Slot`] and [`PackError::Fragment`].
    pub fn unpack(&self, slot: usize, content: &mut Block) -> Result<(), PackError> {
        let (algorithm, bytes) = self.fragment(slot)?;
        match algorithm.decompress(bytes, content) {
            true => Ok(()),
            false => Err(PackError::Fragment),
        }
    }

    /// Makes a pack of fragments (1 to 15, of 1 to 4095 bytes), in the order of their slots. The caller
    /// has checked that they fit the block; what does not is not there, and reading it is an error.
    pub fn build<'f>(
        block: &mut Block,
        fragments: impl ExactSizeIterator<Item = (Algorithm, &'f [u8])>,
    ) {
        let count = fragments.len();
        debug_assert!((1..=FRAGMENTS_MAX).contains(&count));
        block[0] = FORMAT;
        block[1] = count as u8;
        let mut end = bytes_of(count, 0);
        for (slot, (algorithm, bytes)) in fragments.enumerate() {
            debug_assert!((1..1 << LENGTH_BITS).contains(&bytes.len()));
            let at = HEADER_BYTES + slot * ENTRY_BYTES;
            let entry = u16::from(algorithm.number()) << LENGTH_BITS | bytes.len() as u16;
            block[at..at + ENTRY_BYTES].copy_from_slice(&entry.to_le_bytes());
            let Some(place) = block.get_mut(end..end + bytes.len()) else {
                debug_assert!(
                    false,
                    "fragments do not fit a block of {SUB_BLOCK_BYTES} bytes"
                );
                return;
            };
            place.copy_from_slice(bytes);
            end += bytes.len();
        }
        // Nothing of what a buffer held before goes to a drive.
        block[end..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::content::compress::tests::{mixed, noise};

    fn packed(contents: &[Block], algorithm: Algorithm) -> Block {
        let fragments: Vec<Vec<u8>> = contents
            .iter()
            .map(|content| algorithm.compress(content).unwrap())
            .collect();
        let mut block = [0xaa; SUB_BLOCK_BYTES];
        Pack::build(
            &mut block,
            fragments.iter().map(|bytes| (algorithm, &bytes[..])),
        );
        block
    }

    #[test]
    fn what_was_packed_unpacks_slot_by_slot() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
            let contents: Vec<Block> = (1..=6).map(|seed| mixed(seed, 500)).collect();
            let block = packed(&contents, algorithm);
            let pack = Pack::parse(&block).unwrap();
            assert_eq!(pack.count(), 6);
            for (slot, content) in contents.iter().enumerate() {
                let mut found = [0; SUB_BLOCK_BYTES];
                pack.unpack(slot, &mut found).unwrap();
                assert!(found == *content, "{algorithm:?} slot {slot}");
            }
            assert_eq!(
                pack.unpack(6, &mut [0; SUB_BLOCK_BYTES]),
                Err(PackError::Slot)
            );
        }
    }

    #[test]
    fn blocks_that_are_no_pack_are_told_apart() {
        let good = packed(&[mixed(1, 100), mixed(2, 100)], Algorithm::Lz4);
        let broken = |at: usize, byte: u8| {
            let mut block = good;
            block[at] = byte;
            Pack::parse(&block).map(|_| ())
        };
        assert_eq!(broken(0, 0), Err(PackError::Format));
        assert_eq!(broken(1, 0), Err(PackError::Header));
        assert_eq!(broken(1, 16), Err(PackError::Header));
        // An algorithm that there is not, a length that goes beyond the block, and bytes behind the end.
        assert_eq!(broken(3, 0xf0), Err(PackError::Header));
        assert_eq!(broken(3, 0x1f), Err(PackError::Header));
        assert_eq!(broken(SUB_BLOCK_BYTES - 1, 1), Err(PackError::Header));
        assert_eq!(Pack::parse(&noise(3)).map(|_| ()), Err(PackError::Format));
    }

    proptest! {
        #[test]
        fn no_bytes_make_unpacking_panic_or_write_elsewhere(
            header in proptest::collection::vec(any::<u8>(), 0..40),
            seed in any::<u64>(),
            is_formatted in any::<bool>(),
        ) {
            let mut block = mixed(seed, 2048);
            block[..header.len()].copy_from_slice(&header);
            if is_formatted {
                block[0] = FORMAT;
                block[1] = block[1] % 15 + 1;
                let end = bytes_of(usize::from(block[1]), 0);
                for entry in block[2..end].chunks_exact_mut(2) {
                    // Lengths that together fit, of algorithms that there are.
                    entry[1] = 0x10 << (entry[1] & 1);
                    entry[0] |= 1;
                }
                let used: usize = block[2..end].chunks_exact(2).map(|e| usize::from(e[0])).sum();
                block[end + used..].fill(0);
                prop_assert!(Pack::parse(&block).is_ok());
            }
            if let Ok(pack) = Pack::parse(&block) {
                let mut content = [0; SUB_BLOCK_BYTES];
                for slot in 0..16 {
                    let unpacked = pack.unpack(slot, &mut content);
                    prop_assert!(slot < pack.count() || unpacked == Err(PackError::Slot));
                }
            }
        }

        #[test]
        fn a_flipped_bit_never_passes_for_the_content_unnoticed_by_the_checksum(
            seed in any::<u64>(),
            at in 0..SUB_BLOCK_BYTES,
            bit in 0u8..8,
        ) {
            let content = mixed(seed, 900);
            let mut block = packed(&[content, mixed(!seed, 900)], Algorithm::Lz4);
            block[at] ^= 1 << bit;
            let mut found = [0; SUB_BLOCK_BYTES];
            let unpacked = Pack::parse(&block).and_then(|pack| pack.unpack(0, &mut found));
            if unpacked.is_ok() && found != content {
                let crc = crate::content::fingerprint::crc32c;
                prop_assert_ne!(crc(&found), crc(&content));
            }
        }
    }
}
