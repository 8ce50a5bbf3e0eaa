//! Changes are what was put in, however they are held.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::record::NewBlock;
use crate::runs::{Named, Runs};
use crate::types::{Fingerprint, Pba};

/// A change that can be told from others.
fn held(number: u32) -> BlockChange {
    BlockChange {
        delta: i64::from(number) + 2,
        lowest: 0,
        content: Some(content(number)),
        wants_index_entry: false,
    }
}

fn content(number: u32) -> BlockContent {
    BlockContent {
        fingerprint: Fingerprint([number as u8; 16]),
        crc32c: number,
    }
}

/// Entries that write block `first + i` and take the one `first + 1000 + i` away.
fn entries(first: u64, count: u32) -> Vec<MapEntry> {
    let entry = |at: u32| MapEntry {
        old: Some(Pba(first + 1000 + u64::from(at))),
        new: Some(NewBlock {
            pba: Pba(first + u64::from(at)),
            fingerprint: content(at).fingerprint,
            crc32c: at,
        }),
    };
    (0..count).map(entry).collect()
}

/// Blocks that entries write from `first` on, in order, and take away from `first + 1000` on.
fn of_entries(first: u64, count: u32) -> (Changes<Pba, BlockChange>, BTreeMap<Pba, BlockChange>) {
    let entries = Arc::new(entries(first, count));
    let mut runs = Runs::default();
    for (at, entry) in (0..).zip(entries.iter()) {
        runs.push(entry.new.unwrap().pba, at, Side::New);
        runs.push(entry.old.unwrap(), at, Side::Old);
    }
    let mut changes = Changes::of_entries(&entries, runs.len());
    let all = runs.by_number::<()>(&vec![0; count as usize], |named| {
        match named {
            Named::Alone(run) => changes.push_run(run),
            Named::Together(..) => panic!("they do not overlap"),
        }
        Ok(())
    });
    all.unwrap();
    let mut expected = BTreeMap::new();
    for (at, entry) in (0..).zip(entries.iter()) {
        let new = BlockChange {
            delta: 1,
            content: Some(content(at)),
            ..BlockChange::default()
        };
        let old = BlockChange {
            delta: -1,
            lowest: -1,
            ..BlockChange::default()
        };
        expected.insert(entry.new.unwrap().pba, new);
        expected.insert(entry.old.unwrap(), old);
    }
    (changes, expected)
}

fn are_same(changes: &Changes<Pba, BlockChange>, expected: &BTreeMap<Pba, BlockChange>) {
    let expected_in_order = expected.iter().map(|(pba, change)| (*pba, *change));
    assert!(changes.iter().eq(expected_in_order));
    assert_eq!(changes.len(), expected.len());
    assert_eq!(changes.is_empty(), expected.is_empty());
    let by_pages = changes.pages().flat_map(|page| {
        let mut appended = Vec::new();
        page.append_to(&mut appended);
        assert!(page.iter().eq(appended));
        assert_eq!(page.iter().count(), page.len());
        let number = page.first.0 / PAGE;
        page.iter()
            .inspect(move |(pba, _)| assert_eq!(pba.0 / PAGE, number, "another page's"))
    });
    assert!(by_pages.eq(changes.iter()));
    let pages: Vec<u64> = changes.pages().map(|page| page.first.0 / PAGE).collect();
    assert!(pages.is_sorted_by(|a, b| a < b), "a page comes twice");
}

proptest! {
    #[test]
    fn a_change_that_is_put_in_takes_the_place_of_what_a_run_said(
        first in 0..200_u64,
        count in 0..200_u32,
        put in prop::collection::vec((0..1500_u64, 0..100_u32), 0..40),
        asked in (0..1500_u64, 0..1500_u64),
    ) {
        let (mut changes, mut expected) = of_entries(first, count);
        are_same(&changes, &expected);
        for (pba, number) in put {
            let before = expected.insert(Pba(pba), held(number));
            prop_assert_eq!(changes.insert(Pba(pba), held(number)), before);
        }
        are_same(&changes, &expected);
        for pba in (0..1500).map(Pba) {
            prop_assert_eq!(changes.get(&pba), expected.get(&pba).copied());
        }
        let asked = Pba(asked.0.min(asked.1))..Pba(asked.0.max(asked.1));
        let found: Vec<_> = changes.range(asked.clone()).collect();
        let range = expected.range(asked).map(|(pba, change)| (*pba, *change));
        prop_assert_eq!(found, range.collect::<Vec<_>>());
        let list = expected.iter().map(|(pba, change)| (*pba, *change));
        prop_assert_eq!(&Changes::from_sorted(list.collect()), &changes);
    }

    #[test]
    fn index_entries_are_wanted_of_these_blocks_and_no_others(
        first in 0..200_u64,
        count in 0..200_u32,
        put in prop::collection::vec((0..400_u64, 0..100_u32), 0..10),
        wanted in prop::collection::vec(any::<bool>(), 1500),
        later in prop::collection::vec(any::<bool>(), 1500),
    ) {
        let (mut changes, mut expected) = of_entries(first, count);
        for (pba, number) in put {
            changes.insert(Pba(pba), held(number));
            expected.insert(Pba(pba), held(number));
        }
        // Those that are wanted stay so when others are wanted later.
        for wanted in [wanted, later] {
            let is_wanted =
                |pba: &Pba, change: &BlockChange| change.content.is_some() && wanted[pba.0 as usize];
            let blocks: Vec<Pba> = expected
                .iter()
                .filter(|(pba, change)| is_wanted(pba, change))
                .map(|(pba, _)| *pba)
                .collect();
            changes.want_index_entries(blocks.iter().copied());
            for pba in blocks {
                expected.get_mut(&pba).unwrap().wants_index_entry = true;
            }
            are_same(&changes, &expected);
        }
    }
}

#[test]
fn a_write_of_128_kib_is_one_run_of_its_page() {
    let (changes, _) = of_entries(64, 32);
    // What is written, and what goes, which lies in two pages.
    assert_eq!(changes.pieces.len(), 1 + 2);
    assert!(changes.held.is_empty());
}
