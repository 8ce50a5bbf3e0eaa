//! What a block is known by: 128 bits of a keyed hash, and its CRC-32C.
//!
//! A pool names its function when it is made ([`FingerprintFunction`]): BLAKE3, or Toeplitz-CLNH with BLAKE3
//! behind it, which is several times as fast where the processor multiplies without carries. Which one a
//! [`Hasher`] uses is asked once for a group of [`LANES`] blocks, never for a single one.
//!
//! Many blocks in, many results out: they are hashed side by side in SIMD lanes; an accelerator could stand
//! behind this interface without a change above it.

use drives::BLOCK_BYTES;
use meta::{Fingerprint, FingerprintFunction};

use super::clnh::{Clnh, Kernel};
use super::side_by_side::{Digest, LANES, SideBySide};
use crate::hooks::{Current, Hooks};

/// The bytes of one sub-block.
pub type Block = [u8; BLOCK_BYTES];

static ZEROS: Block = [0; BLOCK_BYTES];

/// Fingerprints blocks with a secret: without it nobody can search for collisions. The chance of one in a pool of
/// 1 PiB is below 2^-52 with either function.
pub struct Hasher(Keyed);

enum Keyed {
    Blake3(SideBySide),
    Clnh(Clnh),
}

impl Hasher {
    /// By this function, with this key.
    pub fn new(function: FingerprintFunction, key: &[u8; 32]) -> Self {
        Self(match function {
            FingerprintFunction::Blake3 => Keyed::Blake3(SideBySide::new(key)),
            FingerprintFunction::Clnh => Keyed::Clnh(Clnh::new(key)),
        })
    }

    /// The function that suits a new pool on this machine: CLNH where the processor multiplies without carries.
    pub fn suited() -> FingerprintFunction {
        match Kernel::fastest() {
            Kernel::PORTABLE => FingerprintFunction::Blake3,
            _ => FingerprintFunction::Clnh,
        }
    }

    /// What CLNH is computed with on this machine.
    pub fn clnh_kernel() -> &'static str {
        Kernel::fastest().name()
    }

    /// Gives the fingerprints of blocks to `each`, in order.
    pub fn batch<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a Block>,
        mut each: impl FnMut(Fingerprint),
    ) {
        let mut blocks = blocks.into_iter();
        let mut digests = [[0; 32]; LANES];
        while let Some(first) = blocks.next() {
            let mut group = [first; LANES];
            let mut count = 1;
            for (next, block) in group[1..].iter_mut().zip(blocks.by_ref()) {
                *next = block;
                count += 1;
            }
            self.digests(&group[..count], &mut digests);
            digests[..count].iter().map(cut).for_each(&mut each);
        }
    }

    /// Looks at blocks once, 16 at a time as long as they are in the cache, and gives `each` the index of a block
    /// and its fingerprint; `None`: it is all zeros. Their order is not that of the blocks.
    pub fn look<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a Block>,
        mut each: impl FnMut(usize, Option<Fingerprint>),
    ) {
        let mut group = [&ZEROS; LANES];
        let mut indexes = [0; LANES];
        let mut count = 0;
        for (index, block) in blocks.into_iter().enumerate() {
            if is_zero(block) {
                each(index, None);
                continue;
            }
            (group[count], indexes[count]) = (block, index);
            count += 1;
            if count == LANES {
                self.look_at_group(&group, &indexes, &mut each);
                count = 0;
            }
        }
        self.look_at_group(&group[..count], &indexes[..count], &mut each);
    }

    fn look_at_group(
        &self,
        group: &[&Block],
        indexes: &[usize],
        each: &mut impl FnMut(usize, Option<Fingerprint>),
    ) {
        let mut digests = [[0; 32]; LANES];
        self.digests(group, &mut digests);
        for (index, digest) in indexes.iter().zip(&digests) {
            each(*index, Some(cut(digest)));
        }
    }

    /// The fingerprint of one block.
    pub fn one(&self, block: &Block) -> Fingerprint {
        let mut digest = [[0; 32]];
        self.digests(&[block], &mut digest);
        cut(&digest[0])
    }

    /// The digests of at most [`LANES`] blocks, in order.
    fn digests(&self, blocks: &[&Block], out: &mut [Digest]) {
        match &self.0 {
            Keyed::Blake3(hash) => hash.digests(blocks, out),
            Keyed::Clnh(hash) => hash.digests(blocks, out),
        }
    }
}

/// The half of a digest that is stored.
fn cut(digest: &Digest) -> Fingerprint {
    let mut out = [0; 16];
    out.copy_from_slice(&digest[..16]);
    Current::weaken(&mut out);
    if out == Fingerprint::NONE.0 {
        // That value says that there is none.
        out[15] = 1;
    }
    Fingerprint(out)
}

/// CRC-32C (Castagnoli) of a block: checked on every read.
#[inline]
pub(crate) fn crc32c(block: &[u8]) -> u32 {
    // The library returns every CRC in a u64; a 32-bit one fits its lower half.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// Whether a block is all zeros (such blocks are not stored).
#[inline]
pub(crate) fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<32>();
    words.iter().all(|word| *word == [0u8; 32]) && rest.iter().all(|byte| *byte == 0)
}

/// The sub-blocks of a buffer.
#[inline]
pub(crate) fn split(bytes: &[u8]) -> &[Block] {
    bytes.as_chunks().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_equals_the_public_hash_block_by_block() {
        let key = [7u8; 32];
        let hasher = Hasher::new(FingerprintFunction::Blake3, &key);
        for count in 0..40u8 {
            let blocks: Vec<Block> = (0..count).map(|i| [i; BLOCK_BYTES]).collect();
            let mut found = Vec::new();
            hasher.batch(&blocks, |fingerprint| found.push(fingerprint));
            let wanted: Vec<_> = blocks
                .iter()
                .map(|block| cut(blake3::keyed_hash(&key, block).as_bytes()))
                .collect();
            assert_eq!(found, wanted);
            assert!(blocks.iter().map(|block| hasher.one(block)).eq(wanted));
        }
    }

    #[test]
    fn one_look_finds_zeros_and_the_fingerprints_of_all_others() {
        for function in [FingerprintFunction::Blake3, FingerprintFunction::Clnh] {
            let hasher = Hasher::new(function, &[7; 32]);
            for count in 0..50u8 {
                for zeros in [1, 2, 3, 64] {
                    let block =
                        |at: u8| [if at.is_multiple_of(zeros) { 0 } else { at }; BLOCK_BYTES];
                    let blocks: Vec<Block> = (0..count).map(block).collect();
                    let mut found = vec![Err("not looked at"); blocks.len()];
                    hasher.look(&blocks, |at, fingerprint| {
                        assert!(found[at].is_err(), "twice");
                        found[at] = Ok(fingerprint);
                    });
                    let one = |block: &Block| (*block != ZEROS).then(|| hasher.one(block));
                    let wanted: Vec<_> = blocks.iter().map(|block| Ok(one(block))).collect();
                    assert_eq!(found, wanted);
                }
            }
        }
    }

    #[test]
    fn another_key_or_function_gives_other_fingerprints() {
        use FingerprintFunction::{Blake3, Clnh};
        let block = [1u8; BLOCK_BYTES];
        let fingerprint = |function, key| Hasher::new(function, &[key; 32]).one(&block);
        let all = [(Blake3, 1), (Blake3, 2), (Clnh, 1), (Clnh, 2)];
        let all = all.map(|(function, key)| fingerprint(function, key));
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one));
        }
    }

    #[test]
    fn the_checksum_is_crc32c_with_its_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn only_a_block_of_nothing_but_zeros_is_zero() {
        let mut block = vec![0u8; BLOCK_BYTES];
        assert!(is_zero(&block));
        for at in [0, 31, 32, 2048, BLOCK_BYTES - 1] {
            block[at] = 1;
            assert!(!is_zero(&block));
            block[at] = 0;
        }
    }
}
