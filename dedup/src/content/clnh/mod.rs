//! Toeplitz-CLNH: a keyed universal hash of blocks of 4 KiB, at several times the speed of BLAKE3.
//!
//! **What is computed.** A block is 512 little-endian words `m[0]` to `m[511]` of 64 bits, the key is 514 words.
//! A word stands for a polynomial over GF(2): `+` is XOR, `x` is multiplication without carries, and a product
//! has 127 bits. The hash is two rows of 128 bits; the second one uses the key from two words (16 bytes) on:
//!
//! ```text
//! row 1 = sum over i of (m[2i] + k[2i])   x (m[2i+1] + k[2i+1])
//! row 2 = sum over i of (m[2i] + k[2i+2]) x (m[2i+1] + k[2i+3])
//! ```
//!
//! This is NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO '99) in its carry-less form (Lemire and
//! Kaser: CLHASH, arXiv 1503.03465), with UMAC's Toeplitz construction for the second row.
//!
//! **What holds.** Two different blocks have the same 256 bits with at most one of 2^128 keys. Take the last pair
//! `i` in which they differ, and say that its even words differ, by `d`. (If only the odd ones do, exchange even
//! and odd below.) Add both blocks' hashes: they collide where that sum is 0.
//! - In the sum of row 1, `k[2i+1]` comes in once, as `d x k[2i+1]`; every other term is given by other words of
//!   the key. There are no zero divisors among polynomials over GF(2), so at most one value of `k[2i+1]` makes
//!   the sum 0, whatever the rest of the key is: a chance of 2^-64.
//! - In the sum of row 2 the same is true of `k[2i+3]`. Row 1 does not depend on it: there it belongs to pair
//!   `i+1`, which is equal in both blocks and cancels out. So for every key with which row 1 collides, row 2
//!   does with a chance of 2^-64 again, and the chances multiply.
//!
//! That is why the shift is a whole pair: the last pair that differs meets two words in row 2 that row 1 leaves
//! free, whichever of its words differ. Without a shift both rows would be one. A test counts the collisions of
//! all blocks and keys of two pairs with words of two bits.
//!
//! **What a fingerprint is.** The 32 bytes go through BLAKE3 with another key, and its first 128 bits are
//! stored. So what is stored or shown tells nothing of the key, and all bits of it are spread evenly. On
//! different inputs BLAKE3 adds a chance of 2^-128, as any function of 128 bits must: together two blocks have
//! one fingerprint with a chance of at most 2^-127, and any two of the 2^38 blocks of 1 PiB with 2^-52. Who
//! writes blocks and sees which of them were known learns nothing of the key before the first collision, so
//! that choosing one block after the other does not help.
//!
//! **What it assumes.** All blocks have 4 KiB. Both keys are made from the domain's key by BLAKE3's extendable
//! output, which is taken for random. And the key is secret: blocks are chosen without it. Who has it finds
//! different blocks of one fingerprint by solving linear equations, which with BLAKE3 nobody could. Volumes whose
//! writes are compared (`verify`) stay right even then. For the same reason BLAKE3 is the choice where
//! fingerprints are computed outside of the pool's node, because the key would have to be there.

mod kernels;
#[cfg(test)]
mod tests;

use drives::BLOCK_BYTES;

pub(crate) use kernels::Kernel;

use super::fingerprint::Block;
use super::side_by_side::{Digest, LANES, SHORT_BYTES, SideBySide};

/// Bytes of a pair of words.
const PAIR_BYTES: usize = 16;
/// Bytes of the key: the second row begins a pair later.
const KEY_BYTES: usize = BLOCK_BYTES + PAIR_BYTES;

/// Both rows of a block.
type Rows = [u128; 2];

/// What the keys are derived for: BLAKE3 wants it unique in the world, and never changed.
const CONTEXT: &str = "onefold 2026-11-22 keys of Toeplitz-CLNH and of the BLAKE3 behind it";

/// The words of the key. No load of the first row crosses a cache line.
#[repr(align(64))]
struct Key([u8; KEY_BYTES]);

/// Toeplitz-CLNH with BLAKE3 behind it, with one key.
pub(crate) struct Clnh {
    kernel: Kernel,
    key: Box<Key>,
    finish: SideBySide,
}

impl Clnh {
    /// With the fastest kernel of this machine.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self::with_kernel(key, Kernel::fastest())
    }

    fn with_kernel(key: &[u8; 32], kernel: Kernel) -> Self {
        let mut derived = blake3::Hasher::new_derive_key(CONTEXT)
            .update(key)
            .finalize_xof();
        let mut words = Box::new(Key([0; KEY_BYTES]));
        derived.fill(&mut words.0);
        let mut finish = [0; 32];
        derived.fill(&mut finish);
        Self {
            kernel,
            key: words,
            finish: SideBySide::new(&finish),
        }
    }

    /// The digests of at most [`LANES`] blocks, in order.
    pub(crate) fn digests(&self, blocks: &[&Block], out: &mut [Digest]) {
        let mut rows = [[0; 2]; LANES];
        let rows = &mut rows[..blocks.len()];
        self.kernel.rows(&self.key.0, blocks, rows);
        // BLAKE3 takes 64 bytes at a time: the other half is zeros.
        let mut messages = [[0; SHORT_BYTES]; LANES];
        for (message, rows) in messages.iter_mut().zip(&*rows) {
            let (halves, _) = message.as_chunks_mut::<PAIR_BYTES>();
            for (half, row) in halves.iter_mut().zip(rows) {
                *half = row.to_le_bytes();
            }
        }
        self.finish.short(&messages[..blocks.len()], out);
    }
}
