use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::metadata::block_table::BlockInfo;

proptest! {
    #[test]
    fn the_index_agrees_with_a_plain_map(steps in proptest::collection::vec((0u8..20, any::<bool>()), 1..200)) {
        let blocks = BlockTable::new(&[20_000, 30_000]);
        let index = Index::new(&[20_000, 30_000], u64::MAX);
        let mut model = HashMap::new();
        for (number, (content, insert)) in steps.into_iter().enumerate() {
            let fingerprint = Fingerprint([content; 16]);
            if insert {
                let block = Pba::new(number as u16 % 2, number as u64 * 37);
                let pba = if number % 3 == 0 { block } else { block.fragment(number as u8 % 15) };
                blocks.set(pba, BlockInfo { references: 1, crc32c: 0, fingerprint });
                let known = index.find(&blocks, &fingerprint).resident();
                assert!(index.insert(&blocks, pba, known));
                model.insert(content, pba);
            } else if let Some(pba) = model.remove(&content) {
                remove(&index, &blocks, pba);
            }
            prop_assert_eq!(index.len(), model.len() as u64);
            for content in 0u8..20 {
                let found = index.find(&blocks, &Fingerprint([content; 16])).resident();
                prop_assert_eq!(found.map(|p| p.0), model.get(&content).map(|p| p.0));
            }
        }
    }
}

#[test]
fn removing_a_second_copy_leaves_the_one_that_can_be_found() {
    let blocks = BlockTable::new(&[100]);
    let index = Index::new(&[100], u64::MAX);
    let fingerprint = Fingerprint([3; 16]);
    let (a, b) = (Pba::new(0, 1), Pba::new(0, 2));
    for pba in [a, b] {
        blocks.set(
            pba,
            BlockInfo {
                references: 1,
                crc32c: 0,
                fingerprint,
            },
        );
        let known = index.find(&blocks, &fingerprint).resident();
        assert!(index.insert(&blocks, pba, known));
    }
    remove(&index, &blocks, a);
    assert_eq!(index.find(&blocks, &fingerprint), Found::Resident(b));
}

fn remove(index: &Index, blocks: &BlockTable, pba: Pba) {
    index.at(&blocks.get(pba).fingerprint).remove(pba);
}

fn spread(number: u64) -> Fingerprint {
    let mut fingerprint = [0; 16];
    let digest = blake3::hash(&number.to_le_bytes());
    fingerprint.copy_from_slice(&digest.as_bytes()[..16]);
    Fingerprint(fingerprint)
}

#[test]
fn what_is_not_there_is_missed_soon_however_often_contents_were_replaced() {
    // A shard that holds 8192 entries at a load of 0.85.
    let mut shard = Shard::new(1205);
    let entry = |number: u64| {
        let hash = Hash::new(&spread(number));
        hash.tag << NUMBER_BITS | (number + 1)
    };
    for number in 0..8192 {
        shard.insert(entry(number));
    }
    // Buckets that are looked at for contents that are not there.
    let looked_at = |shard: &Shard| {
        let of = |number: u64| {
            let mut bucket = shard.home(Hash::new(&spread(number)).tag);
            let mut count = 1;
            while shard.passed(bucket) > 0 {
                bucket = shard.after(bucket);
                count += 1;
            }
            count
        };
        (1_000_000..1_004_000).map(of).sum::<usize>() as f64 / 4000.0
    };
    let before = looked_at(&shard);
    for number in 8192..20 * 8192 {
        assert!(shard.remove(entry(number - 8192)));
        shard.insert(entry(number));
    }
    let after = looked_at(&shard);
    assert!(after < before * 1.2, "{before} buckets, later {after}");
    let used = (0..shard.buckets).flat_map(|bucket| shard.slots(bucket));
    assert_eq!(used.filter(|entry| **entry != 0).count(), 8192);
    for number in 19 * 8192..20 * 8192 {
        assert!(shard.remove(entry(number)));
    }
    assert!((0..shard.buckets).all(|bucket| shard.passed(bucket) == 0));
}

#[test]
fn a_full_index_takes_no_more_until_something_leaves_and_finds_what_it_took() {
    const BLOCKS: u64 = 60_000;
    for bytes_max in [0, 1000, 100_000, 300_000] {
        let blocks = BlockTable::new(&[BLOCKS]);
        let index = Index::new(&[BLOCKS], bytes_max);
        let smallest = index.memory_bytes();
        let mut taken = Vec::new();
        for number in 0..BLOCKS {
            let pba = Pba::new(0, number);
            blocks.set(
                pba,
                BlockInfo {
                    references: 1,
                    crc32c: 0,
                    fingerprint: spread(number),
                },
            );
            if index.insert(&blocks, pba, None) {
                taken.push(number);
            }
        }
        assert!(index.memory_bytes() <= bytes_max.max(smallest));
        assert_eq!(index.bytes_max(), bytes_max.max(smallest));
        assert_eq!(index.len(), taken.len() as u64);
        // Nearly all of the room is used.
        assert!(taken.len() as u64 >= bytes_max / 13);
        for number in 0..BLOCKS {
            let found = index.find(&blocks, &spread(number)).resident();
            let is_taken = taken.binary_search(&number).is_ok();
            assert_eq!(found, is_taken.then(|| Pba::new(0, number)));
        }
        // A second copy takes the place of the first one, and the room of one that left is used.
        let (first, second) = (Pba::new(0, taken[0]), Pba::new(0, taken[1]));
        let other = blocks.get(second);
        blocks.set(first, other);
        remove(&index, &blocks, second);
        let fingerprint = spread(taken[0]);
        blocks.set(
            first,
            BlockInfo {
                fingerprint,
                ..other
            },
        );
        blocks.set(
            second,
            BlockInfo {
                fingerprint,
                ..other
            },
        );
        assert!(index.insert(&blocks, second, Some(first)));
        assert_eq!(index.find(&blocks, &fingerprint), Found::Resident(second));
        assert_eq!(index.len(), taken.len() as u64 - 1);
    }
}

#[test]
fn a_large_index_forgets_nothing_and_takes_about_ten_bytes_an_entry() {
    const BLOCKS: u64 = 120_000;
    // Two drives, so that numbers are not addresses.
    let sizes = [50_000, BLOCKS - 50_000];
    let blocks = BlockTable::new(&sizes);
    let index = Index::new(&sizes, u64::MAX);
    let pba = |number: u64| match number.checked_sub(sizes[0]) {
        None => Pba::new(0, number),
        Some(block) => Pba::new(1, block),
    };
    for number in 0..BLOCKS {
        blocks.set(
            pba(number),
            BlockInfo {
                references: 1,
                crc32c: 0,
                fingerprint: spread(number),
            },
        );
        assert!(index.insert(&blocks, pba(number), None));
    }
    assert_eq!(index.len(), BLOCKS);
    let bytes = index.memory_bytes() as f64 / BLOCKS as f64;
    assert!((8.0..11.0).contains(&bytes), "{bytes} bytes an entry");
    for number in (0..BLOCKS).step_by(3) {
        remove(&index, &blocks, pba(number));
    }
    for number in 0..BLOCKS {
        let found = index.find(&blocks, &spread(number)).resident();
        let wanted = (number % 3 != 0).then(|| pba(number));
        assert_eq!(found, wanted, "block {number}");
    }
    let none: Vec<_> = (BLOCKS..BLOCKS + 10).map(spread).collect();
    index.prefetch(&blocks, none.iter(), std::iter::empty());
    assert!(
        none.iter()
            .all(|f| index.find(&blocks, f) == Found::Nowhere)
    );
    for number in 0..BLOCKS {
        remove(&index, &blocks, pba(number));
    }
    assert_eq!(index.len(), 0);
}
