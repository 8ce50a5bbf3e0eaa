//! Both rows of Toeplitz-CLNH by the processor's carry-less multiplication.
//!
//! A [`Kernel`] is made only where the machine has its instructions, which is what makes it sound to call. Every
//! kernel gives the rows of [`Kernel::PORTABLE`], the definition written down; tests compare them.
//!
//! `unsafe` is needed to call functions that are compiled for instructions which not every machine has, and to
//! load and store vectors, each of which is an array of exactly its size.

#![allow(unsafe_code)]

use super::{KEY_BYTES, PAIR_BYTES, Rows};
use crate::content::fingerprint::Block;

/// How the rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// VPCLMULQDQ, four pairs at a time.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// VPCLMULQDQ, two pairs at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// PCLMULQDQ, a pair at a time.
    #[cfg(target_arch = "x86_64")]
    Sse,
    /// PMULL, a pair at a time.
    #[cfg(target_arch = "aarch64")]
    Pmull,
    /// Shifts and XOR, some hundred times slower.
    Portable,
}

impl Kernel {
    /// The one that every machine has.
    pub(crate) const PORTABLE: Self = Self(Kind::Portable);

    /// The fastest of this machine.
    pub(crate) fn fastest() -> Self {
        Self::all().next().unwrap_or(Self::PORTABLE)
    }

    /// All of this machine, the fastest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let kinds = Kind::native().into_iter();
        let kinds = kinds.filter_map(|(is_there, kind)| is_there.then_some(kind));
        kinds.chain([Kind::Portable]).map(Self)
    }

    /// What it is called.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "AVX-512 VPCLMULQDQ",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "AVX2 VPCLMULQDQ",
            #[cfg(target_arch = "x86_64")]
            Kind::Sse => "PCLMULQDQ",
            #[cfg(target_arch = "aarch64")]
            Kind::Pmull => "PMULL",
            Kind::Portable => "portable",
        }
    }

    /// The rows of blocks, in order.
    pub(super) fn rows(self, key: &[u8; KEY_BYTES], blocks: &[&Block], out: &mut [Rows]) {
        match self.0 {
            // SAFETY: this kernel is made only where AVX-512F and VPCLMULQDQ are detected.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { x86::avx512(key, blocks, out) },
            // SAFETY: this kernel is made only where AVX2 and VPCLMULQDQ are detected.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { x86::avx2(key, blocks, out) },
            // SAFETY: this kernel is made only where PCLMULQDQ is detected; every x86-64 has SSE2.
            #[cfg(target_arch = "x86_64")]
            Kind::Sse => unsafe { x86::sse(key, blocks, out) },
            // SAFETY: this kernel is made only where NEON and AES, of which PMULL is a part, are detected.
            #[cfg(target_arch = "aarch64")]
            Kind::Pmull => unsafe { arm::pmull(key, blocks, out) },
            Kind::Portable => portable(key, blocks, out),
        }
    }
}

impl Kind {
    /// Those for this kind of processor, and whether this one has what they need.
    #[cfg(target_arch = "x86_64")]
    fn native() -> [(bool, Self); 3] {
        let is_wide = is_x86_feature_detected!("vpclmulqdq");
        [
            (is_wide && is_x86_feature_detected!("avx512f"), Self::Avx512),
            (is_wide && is_x86_feature_detected!("avx2"), Self::Avx2),
            (is_x86_feature_detected!("pclmulqdq"), Self::Sse),
        ]
    }

    /// Those for this kind of processor, and whether this one has what they need.
    #[cfg(target_arch = "aarch64")]
    fn native() -> [(bool, Self); 1] {
        use std::arch::is_aarch64_feature_detected;
        let is_there = is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("aes");
        [(is_there, Self::Pmull)]
    }

    /// Nothing is known of this kind of processor.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn native() -> [(bool, Self); 0] {
        []
    }
}

/// The definition, step by step.
fn portable(key: &[u8; KEY_BYTES], blocks: &[&Block], out: &mut [Rows]) {
    let words = |pair: &[u8; PAIR_BYTES]| {
        let pair = u128::from_le_bytes(*pair);
        (pair as u64, (pair >> 64) as u64)
    };
    let (keys, _) = key.as_chunks::<PAIR_BYTES>();
    for (block, rows) in blocks.iter().zip(out) {
        let (pairs, _) = block.as_chunks::<PAIR_BYTES>();
        for (shift, row) in rows.iter_mut().enumerate() {
            *row = 0;
            for (pair, key) in pairs.iter().zip(&keys[shift..]) {
                let ((even, odd), (key_even, key_odd)) = (words(pair), words(key));
                *row ^= multiply(even ^ key_even, odd ^ key_odd);
            }
        }
    }
}

/// The product without carries.
pub(super) fn multiply(a: u64, b: u64) -> u128 {
    (0..u64::BITS).fold(0, |sum, bit| {
        let is_set = u128::from(b >> bit & 1);
        sum ^ ((u128::from(a) << bit) & is_set.wrapping_neg())
    })
}

/// The bytes of the key that the second row begins with.
fn second(key: &[u8; KEY_BYTES]) -> &[u8] {
    &key[PAIR_BYTES..]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_setzero_si128,
        _mm_storeu_si128, _mm_xor_si128, _mm256_clmulepi64_epi128, _mm256_loadu_si256,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256, _mm512_clmulepi64_epi128,
        _mm512_loadu_si512, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
    };

    use super::{Block, KEY_BYTES, Rows, second};

    /// The high half of each pair of the first operand by the low half of the second.
    const HIGH_BY_LOW: i32 = 0x01;

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) fn avx512(key: &[u8; KEY_BYTES], blocks: &[&Block], out: &mut [Rows]) {
        let (first, _) = key.as_chunks();
        let (second, _) = second(key).as_chunks();
        for (block, rows) in blocks.iter().zip(out) {
            let mut one = _mm512_setzero_si512();
            let mut two = one;
            let (vectors, _) = block.as_chunks();
            for ((vector, first), second) in vectors.iter().zip(first).zip(second) {
                let vector = load512(vector);
                let a = _mm512_xor_si512(vector, load512(first));
                let b = _mm512_xor_si512(vector, load512(second));
                one = _mm512_xor_si512(one, _mm512_clmulepi64_epi128::<HIGH_BY_LOW>(a, a));
                two = _mm512_xor_si512(two, _mm512_clmulepi64_epi128::<HIGH_BY_LOW>(b, b));
            }
            *rows = [sum512(one), sum512(two)];
        }
    }

    #[target_feature(enable = "avx2,vpclmulqdq")]
    pub(super) fn avx2(key: &[u8; KEY_BYTES], blocks: &[&Block], out: &mut [Rows]) {
        let (first, _) = key.as_chunks();
        let (second, _) = second(key).as_chunks();
        for (block, rows) in blocks.iter().zip(out) {
            let mut one = _mm256_setzero_si256();
            let mut two = one;
            let (vectors, _) = block.as_chunks();
            for ((vector, first), second) in vectors.iter().zip(first).zip(second) {
                let vector = load256(vector);
                let a = _mm256_xor_si256(vector, load256(first));
                let b = _mm256_xor_si256(vector, load256(second));
                one = _mm256_xor_si256(one, _mm256_clmulepi64_epi128::<HIGH_BY_LOW>(a, a));
                two = _mm256_xor_si256(two, _mm256_clmulepi64_epi128::<HIGH_BY_LOW>(b, b));
            }
            *rows = [sum256(one), sum256(two)];
        }
    }

    #[target_feature(enable = "sse2,pclmulqdq")]
    pub(super) fn sse(key: &[u8; KEY_BYTES], blocks: &[&Block], out: &mut [Rows]) {
        let (first, _) = key.as_chunks();
        let (second, _) = second(key).as_chunks();
        for (block, rows) in blocks.iter().zip(out) {
            let mut one = _mm_setzero_si128();
            let mut two = one;
            let (vectors, _) = block.as_chunks();
            for ((vector, first), second) in vectors.iter().zip(first).zip(second) {
                let vector = load128(vector);
                let a = _mm_xor_si128(vector, load128(first));
                let b = _mm_xor_si128(vector, load128(second));
                one = _mm_xor_si128(one, _mm_clmulepi64_si128::<HIGH_BY_LOW>(a, a));
                two = _mm_xor_si128(two, _mm_clmulepi64_si128::<HIGH_BY_LOW>(b, b));
            }
            *rows = [sum128(one), sum128(two)];
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load512(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: the array has the 64 bytes that are loaded, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load256(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the array has the 32 bytes that are loaded, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load128(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array has the 16 bytes that are loaded, and the load needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// The products of a vector, added.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn sum512(vector: __m512i) -> u128 {
        let mut products = [0; 4];
        // SAFETY: the array has the 64 bytes that are stored, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(products.as_mut_ptr().cast(), vector) };
        products.iter().fold(0, |sum: u128, product| sum ^ product)
    }

    /// The products of a vector, added.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum256(vector: __m256i) -> u128 {
        let mut products = [0; 2];
        // SAFETY: the array has the 32 bytes that are stored, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(products.as_mut_ptr().cast(), vector) };
        products.iter().fold(0, |sum: u128, product| sum ^ product)
    }

    /// The product of a vector.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn sum128(vector: __m128i) -> u128 {
        let mut product: u128 = 0;
        // SAFETY: the number has the 16 bytes that are stored, and the store needs no alignment.
        unsafe { _mm_storeu_si128((&raw mut product).cast(), vector) };
        product
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::{
        uint64x2_t, vdupq_n_u64, veorq_u64, vgetq_lane_u64, vld1q_u8, vmull_p64,
        vreinterpretq_u64_p128, vreinterpretq_u64_u8,
    };

    use super::{Block, KEY_BYTES, Rows, second};

    #[target_feature(enable = "neon,aes")]
    pub(super) fn pmull(key: &[u8; KEY_BYTES], blocks: &[&Block], out: &mut [Rows]) {
        let (first, _) = key.as_chunks();
        let (second, _) = second(key).as_chunks();
        for (block, rows) in blocks.iter().zip(out) {
            let mut one = vdupq_n_u64(0);
            let mut two = one;
            let (vectors, _) = block.as_chunks();
            for ((vector, first), second) in vectors.iter().zip(first).zip(second) {
                let vector = load(vector);
                one = veorq_u64(one, product(veorq_u64(vector, load(first))));
                two = veorq_u64(two, product(veorq_u64(vector, load(second))));
            }
            *rows = [number(one), number(two)];
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn load(bytes: &[u8; 16]) -> uint64x2_t {
        // SAFETY: the array has the 16 bytes that are loaded, and the load needs no alignment.
        vreinterpretq_u64_u8(unsafe { vld1q_u8(bytes.as_ptr()) })
    }

    /// One half of a pair by the other.
    #[inline]
    #[target_feature(enable = "neon,aes")]
    fn product(pair: uint64x2_t) -> uint64x2_t {
        let (even, odd) = (vgetq_lane_u64::<0>(pair), vgetq_lane_u64::<1>(pair));
        vreinterpretq_u64_p128(vmull_p64(even, odd))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn number(vector: uint64x2_t) -> u128 {
        let (low, high) = (vgetq_lane_u64::<0>(vector), vgetq_lane_u64::<1>(vector));
        u128::from(low) | u128::from(high) << 64
    }
}
