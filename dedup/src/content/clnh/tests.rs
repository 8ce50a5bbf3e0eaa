//! Every kernel is the definition, the definition is what was published, and it does what it promises.

use proptest::prelude::*;

use super::kernels::multiply;
use super::*;

/// Bytes that look random, the same for the same seed.
fn random<const BYTES: usize>(seed: u64) -> Box<[u8; BYTES]> {
    let mut bytes = Box::new([0; BYTES]);
    let mut hash = blake3::Hasher::new();
    hash.update(&seed.to_le_bytes());
    hash.finalize_xof().fill(&mut bytes[..]);
    bytes
}

fn rows(kernel: Kernel, key: &[u8; KEY_BYTES], block: &Block) -> Rows {
    let mut rows = [[0; 2]];
    kernel.rows(key, &[block], &mut rows);
    rows[0]
}

/// The rows of a block by the fastest kernel, with a fixed key.
fn hash(block: &Block) -> Rows {
    rows(Kernel::fastest(), &random(1), block)
}

/// Intel's white paper on the carry-less multiplication instruction: operands, and the products of the halves
/// that it names (high or low of the first, then of the second).
const FIRST: u128 = 0x7b5b5465_73745665_63746f72_5d53475d;
const SECOND: u128 = 0x48692853_68617929_5b477565_726f6e5d;
const PRODUCTS: [(bool, bool, u128); 4] = [
    (false, false, 0x1d4d84c8_5c3440c0_929633d5_d36f0451),
    (false, true, 0x1bd17c8d_556ab5a1_7fa540ac_2a281315),
    (true, false, 0x1a2bf6db_3a30862f_babf262d_f4b7d5c9),
    (true, true, 0x1d1e1f2c_592e7c45_d66ee03e_410fd4ed),
];

fn half(number: u128, is_high: bool) -> u64 {
    (if is_high { number >> 64 } else { number }) as u64
}

#[test]
fn the_reference_multiplies_as_published() {
    for (high_first, high_second, product) in PRODUCTS {
        let (a, b) = (half(FIRST, high_first), half(SECOND, high_second));
        assert_eq!(multiply(a, b), product);
        assert_eq!(multiply(b, a), product);
    }
    assert_eq!(multiply(u64::MAX, 1), u128::from(u64::MAX));
    assert_eq!(multiply(1 << 63, 1 << 63), 1 << 126);
}

#[test]
fn every_kernel_multiplies_as_published_wherever_the_words_are() {
    for kernel in Kernel::all() {
        for (high_first, high_second, product) in PRODUCTS {
            let (a, b) = (half(FIRST, high_first), half(SECOND, high_second));
            for pair in [0, 1, 2, 3, 4, 100, 254, 255] {
                // With a key of zeros a row is the sum of the pairs' products.
                let mut block = [0; BLOCK_BYTES];
                let at = pair * PAIR_BYTES;
                block[at..at + 8].copy_from_slice(&a.to_le_bytes());
                block[at + 8..at + 16].copy_from_slice(&b.to_le_bytes());
                let found = rows(kernel, &[0; KEY_BYTES], &block);
                assert_eq!(found, [product; 2], "{} at pair {pair}", kernel.name());
            }
        }
    }
}

#[test]
fn the_second_row_uses_the_key_from_its_second_pair_on() {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&3u64.to_le_bytes());
    key[8..16].copy_from_slice(&5u64.to_le_bytes());
    key[KEY_BYTES - 16..KEY_BYTES - 8].copy_from_slice(&7u64.to_le_bytes());
    key[KEY_BYTES - 8..].copy_from_slice(&11u64.to_le_bytes());
    for kernel in Kernel::all() {
        let found = rows(kernel, &key, &[0; BLOCK_BYTES]);
        assert_eq!(
            found,
            [multiply(3, 5), multiply(7, 11)],
            "{}",
            kernel.name()
        );
    }
}

#[test]
fn a_machine_of_this_kind_has_a_kernel_and_the_portable_one_is_the_last() {
    assert_eq!(Kernel::all().last(), Some(Kernel::PORTABLE));
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        Kernel::fastest() == Kernel::PORTABLE,
        !is_x86_feature_detected!("pclmulqdq")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn every_kernel_gives_the_rows_of_the_reference(
        seed in any::<u64>(),
        places in proptest::collection::vec((0..BLOCK_BYTES, any::<u8>()), 0..8),
        count in 1..=5usize,
        offset in 0..64usize,
    ) {
        // Not aligned, as blocks in a host's buffers are not always either.
        let mut room = vec![0; offset + count * BLOCK_BYTES];
        for at in 0..count {
            let block = &mut room[offset + at * BLOCK_BYTES..][..BLOCK_BYTES];
            if at % 2 == 0 {
                block.copy_from_slice(&random::<BLOCK_BYTES>(seed ^ at as u64)[..]);
            }
            for (place, byte) in &places {
                block[*place] = *byte;
            }
        }
        let (blocks, _) = room[offset..].as_chunks::<BLOCK_BYTES>();
        let blocks: Vec<&Block> = blocks.iter().collect();
        let key = random(!seed);
        let mut wanted = vec![[0; 2]; count];
        Kernel::PORTABLE.rows(&key, &blocks, &mut wanted);
        for kernel in Kernel::all() {
            let mut found = vec![[1; 2]; count];
            kernel.rows(&key, &blocks, &mut found);
            prop_assert_eq!(&found, &wanted, "{}", kernel.name());
        }
    }
}

#[test]
fn a_digest_is_blake3_of_the_rows_with_the_second_derived_key() {
    let key = [9; 32];
    let mut derived = blake3::Hasher::new_derive_key(CONTEXT)
        .update(&key)
        .finalize_xof();
    let (mut words, mut finish) = ([0; KEY_BYTES], [0; 32]);
    derived.fill(&mut words);
    derived.fill(&mut finish);
    for kernel in Kernel::all() {
        for count in [1, 2, 15, LANES] {
            let blocks: Vec<_> = (0..count as u64).map(random::<BLOCK_BYTES>).collect();
            let views: Vec<&Block> = blocks.iter().map(|block| &**block).collect();
            let mut found = [[0; 32]; LANES];
            Clnh::with_kernel(&key, kernel).digests(&views, &mut found);
            for (block, found) in blocks.iter().zip(found) {
                let [one, two] = rows(Kernel::PORTABLE, &words, block);
                let mut message = [0; 64];
                message[..16].copy_from_slice(&one.to_le_bytes());
                message[16..32].copy_from_slice(&two.to_le_bytes());
                let wanted = blake3::keyed_hash(&finish, &message);
                assert_eq!(found, *wanted.as_bytes(), "{}", kernel.name());
            }
        }
    }
}

/// A pool's fingerprints must never change: this one was computed when the function was made.
#[test]
fn a_known_block_has_a_known_fingerprint() {
    let mut block = [0; BLOCK_BYTES];
    for (at, byte) in block.iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    let mut found = [[0; 32]];
    Clnh::new(&[42; 32]).digests(&[&block], &mut found);
    let text: String = found[0].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        text,
        "d5d3510a0ce0ef194bef9c86103d56b7d0794eec913f1c51c7607924ec20eced"
    );
}

#[test]
fn every_single_bit_changes_both_rows() {
    for mut block in [random::<BLOCK_BYTES>(2), Box::new([0; BLOCK_BYTES])] {
        let before = hash(&block);
        for at in 0..BLOCK_BYTES {
            for bit in 0..8 {
                block[at] ^= 1 << bit;
                let after = hash(&block);
                assert!(
                    after[0] != before[0] && after[1] != before[1],
                    "bit {bit} of byte {at}"
                );
                block[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn any_other_pair_changes_both_rows() {
    let block = random::<BLOCK_BYTES>(3);
    let before = hash(&block);
    for pair in 0..BLOCK_BYTES / PAIR_BYTES {
        for seed in 10..18 {
            let mut other = block.clone();
            let at = pair * PAIR_BYTES;
            other[at..at + PAIR_BYTES].copy_from_slice(&random::<PAIR_BYTES>(seed)[..]);
            let after = hash(&other);
            assert!(
                after[0] != before[0] && after[1] != before[1],
                "pair {pair}"
            );
        }
    }
}

#[test]
fn words_pairs_and_halves_that_change_places_are_noticed() {
    let block = random::<BLOCK_BYTES>(4);
    let before = hash(&block);
    for len in [8, PAIR_BYTES, 64, BLOCK_BYTES / 2] {
        for first in (0..BLOCK_BYTES - len).step_by(len) {
            for second in [first + len, BLOCK_BYTES - len] {
                if second <= first {
                    continue;
                }
                let mut other = block.clone();
                other.copy_within(second..second + len, first);
                other[second..second + len].copy_from_slice(&block[first..first + len]);
                let after = hash(&other);
                assert!(
                    after[0] != before[0] && after[1] != before[1],
                    "{len} at {first}"
                );
            }
        }
    }
}

/// With the key in hand, blocks that collide in one row are easy to make: where a word equals the key's, the
/// other word of the pair counts for nothing. The other row still tells them apart.
#[test]
fn blocks_made_to_collide_in_one_row_differ_in_the_other() {
    let key = random::<KEY_BYTES>(1);
    for pair in 0..BLOCK_BYTES / PAIR_BYTES {
        let at = pair * PAIR_BYTES;
        for row in 0..2 {
            let mut one = random::<BLOCK_BYTES>(5);
            let from = at + row * PAIR_BYTES;
            one[at..at + 8].copy_from_slice(&key[from..from + 8]);
            let mut two = one.clone();
            two[at + 8] ^= 1;
            let (one, two) = (hash(&one), hash(&two));
            assert_eq!(
                one[row], two[row],
                "row {row} of pair {pair} was made to collide"
            );
            assert_ne!(one[1 - row], two[1 - row], "pair {pair}");
        }
    }
}

/// Counts, for all pairs of blocks of two pairs of words of two bits, the keys with which both rows are equal:
/// the largest count, if the second row uses the key from this word on.
fn most_collisions(shift: usize) -> usize {
    const WORDS: usize = 4;
    const BLOCKS: usize = 1 << (2 * WORDS);
    let word = |words: usize, at: usize| words >> (2 * at) & 3;
    let row = |block: usize, key: usize| {
        (0..WORDS).step_by(2).fold(0, |sum, at| {
            let even = (word(block, at) ^ word(key, at)) as u64;
            let odd = (word(block, at + 1) ^ word(key, at + 1)) as u64;
            sum ^ multiply(even, odd) as usize
        })
    };
    let mut equal = vec![[0u16; BLOCKS]; BLOCKS];
    for key in 0..1 << (2 * (WORDS + shift)) {
        let mut by_hash = vec![Vec::new(); 1 << 6];
        for block in 0..BLOCKS {
            by_hash[row(block, key) << 3 | row(block, key >> (2 * shift))].push(block);
        }
        for same in by_hash {
            for (at, one) in same.iter().enumerate() {
                for two in &same[at + 1..] {
                    equal[*one][*two] += 1;
                }
            }
        }
    }
    equal.into_iter().flatten().max().unwrap_or(0).into()
}

#[test]
fn the_bound_holds_for_all_keys_and_blocks_of_small_words() {
    // Words of two bits: one row collides for a quarter of the keys at most, both for a sixteenth.
    let keys = 1 << (2 * (4 + 2));
    assert_eq!(most_collisions(2), keys / 16);
    // Without a shift the second row adds nothing.
    let keys = 1 << (2 * 4);
    assert!(most_collisions(0) > keys / 16);
}
