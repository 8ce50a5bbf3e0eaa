//! Values of pages.

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

type Change<C> = BTreeMap<u8, Option<C>>;

fn mapping(number: u32) -> Mapping {
    Mapping {
        pba: Pba(u64::from(number)),
        crc32c: number.wrapping_mul(77),
    }
}

/// A block of one of a few kinds.
fn block(number: u32) -> BlockRow {
    let fingerprint = Fingerprint(u128::from(number).to_be_bytes());
    BlockRow {
        refcount: 1 + u32::from(number % 8 == 7),
        fingerprint: if number.is_multiple_of(5) {
            Fingerprint::NONE
        } else {
            fingerprint
        },
        crc32c: number,
        has_index_entry: number % 16 == 3,
    }
}

fn encoded<C: Content>(change: &Change<C>) -> Vec<u8> {
    let mut page = Page::new();
    for (position, content) in change {
        page.put(*position, *content);
    }
    page.change()
}

/// As programs wrote it that knew no runs.
fn without_runs<C: Content>(change: &Change<C>) -> Vec<u8> {
    let mut out = Vec::new();
    for (position, content) in change {
        match content {
            Some(content) => {
                out.push(*position);
                content.put(&mut out);
            }
            None => out.push(position | GONE),
        }
    }
    out
}

fn said<C: Content>(page: &Page<C>) -> Change<C> {
    let named = (0..64).filter(|position| page.named >> position & 1 == 1);
    named
        .map(|position| (position, page.get(position)))
        .collect()
}

fn read<C: Content>(value: &[u8]) -> Result<Change<C>, CodecError> {
    let mut page = Page::new();
    page.read(value)?;
    Ok(said(&page))
}

fn merged_change<C: Content>(changes: &[&[u8]]) -> Result<Vec<u8>, CodecError> {
    merge::<C>(None, changes.iter().copied(), false)
}

/// Changes with runs of all kinds, and with entries that are in none.
fn changes<C: Content + Debug>(of: fn(u32) -> C) -> impl Strategy<Value = Vec<Change<C>>> {
    // Where, how many, and by how much their numbers rise; without that, they are gone.
    let part = (
        0..64u8,
        1..40u8,
        0..200u32,
        prop::option::of(prop::sample::select(&[0, 1, 5, 16][..])),
    );
    vec(vec(part, 1..6), 1..8).prop_map(move |changes| {
        let changes = changes.into_iter().map(|parts| {
            let entries = parts.into_iter().flat_map(|(first, count, number, step)| {
                (first..64.min(first + count))
                    .zip(0..)
                    .map(move |(position, at)| (position, step.map(|step| of(number + at * step))))
            });
            entries.collect()
        });
        changes.collect()
    })
}

/// Whether values of changes become the row that the changes make, whoever wrote the row below them, and in whatever
/// order they are merged.
fn check_merges<C: Content + Debug>(
    changes: Vec<Change<C>>,
    (has_row, is_old): (bool, bool),
    cuts: Vec<usize>,
) -> Result<(), TestCaseError> {
    let mut model: BTreeMap<u8, C> = BTreeMap::new();
    for (position, content) in changes.iter().flatten() {
        match content {
            Some(content) => model.insert(*position, *content),
            None => model.remove(position),
        };
    }
    let mut values: Vec<Vec<u8>> = changes.iter().map(encoded).collect();
    // The lowest one is a row: nothing in it is gone.
    let lowest = changes[0].iter().filter(|entry| entry.1.is_some());
    let lowest: Change<C> = lowest
        .map(|(position, content)| (*position, *content))
        .collect();
    let row = (has_row && !lowest.is_empty()).then(|| match is_old {
        true => without_runs(&lowest),
        false => encoded(&lowest),
    });
    if row.is_some() {
        values.remove(0);
    }
    // Some that follow each other become one first.
    for cut in cuts {
        if cut + 1 < values.len() {
            let one = merged_change::<C>(&[&values[cut], &values[cut + 1]]).unwrap();
            values.splice(cut..cut + 2, [one]);
        }
    }
    let merged = merge::<C>(row.as_deref(), values.iter().map(Vec::as_slice), true).unwrap();
    if model.is_empty() {
        prop_assert!(merged.is_empty());
        return Ok(());
    }
    let page = Page::<C>::of_row(&merged).unwrap();
    for position in 0..64 {
        prop_assert_eq!(page.get(position), model.get(&position).copied());
        prop_assert_eq!(
            page.present() >> position & 1 == 1,
            model.contains_key(&position)
        );
    }
    let found: BTreeMap<u8, C> = page.into_entries().collect();
    prop_assert_eq!(&found, &model);
    // It is the only one that says so.
    let whole = model
        .into_iter()
        .map(|(position, content)| (position, Some(content)));
    let whole: Change<C> = whole.collect();
    prop_assert_eq!(&merged, &encoded(&whole));
    let plain = without_runs(&whole);
    prop_assert!(merged.len() <= plain.len());
    prop_assert_eq!(merge::<C>(Some(&plain), [].into_iter(), true), Ok(merged));
    Ok(())
}

/// Whether bytes are refused, or say what their only value says.
fn check_any<C: Content + Debug>(value: &[u8]) -> Result<(), TestCaseError> {
    let Ok(change) = read::<C>(value) else {
        prop_assert!(Page::<C>::of_row(value).is_err());
        prop_assert!(merged_change::<C>(&[value]).is_err());
        return Ok(());
    };
    let only = merged_change::<C>(&[value]).unwrap();
    prop_assert_eq!(&only, &encoded(&change));
    prop_assert_eq!(read::<C>(&only), Ok(change.clone()));
    prop_assert_eq!(read::<C>(&without_runs(&change)), Ok(change.clone()));
    let is_row = change.values().all(Option::is_some);
    prop_assert_eq!(Page::<C>::of_row(value).is_ok(), is_row);
    if is_row {
        prop_assert_eq!(merge::<C>(Some(value), [].into_iter(), true), Ok(only));
    }
    Ok(())
}

proptest! {
    #[test]
    fn changes_give_the_same_row_however_they_are_merged_before(
        of_map in changes(mapping),
        of_blocks in changes(block),
        row: (bool, bool),
        cuts in vec(0..8usize, 0..3),
    ) {
        check_merges(of_map, row, cuts.clone())?;
        check_merges(of_blocks, row, cuts)?;
    }

    #[test]
    fn any_bytes_are_refused_or_say_what_one_value_says(
        value in vec(prop_oneof![0..64u8, any::<u8>()], 0..60),
    ) {
        check_any::<Mapping>(&value)?;
        check_any::<BlockRow>(&value)?;
    }

    #[test]
    fn a_damaged_value_is_refused_or_says_what_one_value_says(
        of_map in changes(mapping),
        of_blocks in changes(block),
        at: prop::sample::Index,
        damage in prop_oneof![Just(None), any::<u8>().prop_map(Some)],
    ) {
        let damaged = |mut value: Vec<u8>| {
            let at = at.index(value.len());
            match damage {
                Some(byte) => value[at] = byte,
                None => value.truncate(at),
            }
            value
        };
        check_any::<Mapping>(&damaged(encoded(&of_map[0])))?;
        check_any::<BlockRow>(&damaged(encoded(&of_blocks[0])))?;
    }

    #[test]
    fn a_row_without_index_entries_says_the_same_of_all_else(of_blocks in changes(block), is_old: bool) {
        let row: Change<BlockRow> =
            of_blocks[0].clone().into_iter().filter(|entry| entry.1.is_some()).collect();
        prop_assume!(!row.is_empty());
        let value = if is_old { without_runs(&row) } else { encoded(&row) };
        let mut expected = row.clone();
        for block in expected.values_mut().flatten() {
            block.has_index_entry = false;
        }
        let without = without_index_entries(&value);
        prop_assert_eq!(read(&without), Ok(expected.clone()));
        match expected == row {
            true => prop_assert!(matches!(without, Cow::Borrowed(_))),
            false => prop_assert_eq!(&*without, &encoded(&expected)),
        }
    }
}

#[test]
fn a_write_of_many_blocks_is_a_run() {
    let whole = |step: u32| {
        let entries = (0..32).map(|at| (at as u8 + 16, Some(mapping(100 + at * step))));
        encoded(&entries.collect())
    };
    assert_eq!(whole(1).len(), 2 + 8 + 32 * 4);
    assert_eq!(whole(0).len(), 2 + 12);
    assert_eq!(whole(2).len(), 32 * 13);
    let blocks = |of: &dyn Fn(u32) -> BlockRow| {
        let entries = (0..32).map(|at| (at as u8 + 16, Some(of(at))));
        encoded(&entries.collect())
    };
    let plain = block(5);
    let crc32c = |at| BlockRow {
        crc32c: at,
        ..plain
    };
    assert_eq!(blocks(&crc32c).len(), 2 + 4 + 32 * 4);
    let hashed = |at| BlockRow {
        fingerprint: Fingerprint([1 + at as u8; 16]),
        ..plain
    };
    assert_eq!(blocks(&hashed).len(), 2 + 4 + 32 * 20);
    let gone = (16..48)
        .map(|position| (position, None::<BlockRow>))
        .collect();
    assert_eq!(encoded(&gone), [16 | GONE | RUN, 31]);
}

#[test]
fn what_is_in_no_run_is_written_as_it_ever_was() {
    let change = Change::from([
        (3, Some(mapping(7))),
        (5, None),
        (6, Some(mapping(7))),
        (7, Some(mapping(9))),
    ]);
    assert_eq!(encoded(&change), without_runs(&change));
    // Of two kinds, one after the other.
    let runs = [10, 10, 11, 12].map(mapping);
    let runs: Change<Mapping> = (0..).zip(runs.map(Some)).collect();
    assert_eq!(encoded(&runs).len(), (2 + 12) + (2 + 8 + 2 * 4));
    let highest = Mapping {
        pba: Pba(u64::MAX),
        ..Mapping::HOLE
    };
    let last = Change::from([(62, Some(Mapping::HOLE)), (63, Some(highest))]);
    assert_eq!(read(&encoded(&last)), Ok(last));
}

#[test]
fn values_that_are_no_pages_are_refused() {
    let entry = |position: u8| without_runs(&Change::from([(position, Some(mapping(7)))]));
    let refused = |value: &[u8]| {
        Page::<Mapping>::of_row(value).is_err()
            && merge::<Mapping>(Some(value), [].into_iter(), true).is_err()
    };
    assert!(!refused(&entry(63)));
    assert!(refused(&[]));
    assert!(refused(&entry(64)));
    assert!(refused(&entry(3)[..12]));
    assert!(refused(&[entry(3), entry(3)].concat()));
    assert!(refused(&[entry(4), entry(3)].concat()));
    assert!(refused(&[5 | GONE]));
    let merged = |change: &[u8]| merged_change::<Mapping>(&[change]);
    assert_eq!(merged(&[5 | GONE]), Ok(vec![5 | GONE]));
    assert!(merged(&[]).is_err());
    assert!(merged(&[5 | GONE, 5 | GONE]).is_err());
    assert!(Page::<BlockRow>::of_row(&[0; 25]).is_err());
}

#[test]
fn runs_that_are_none_are_refused() {
    let run = |position: u8, second: u8, first: u64, sums: usize| {
        let tag = [position | RUN, second];
        [&tag[..], &first.to_le_bytes(), &vec![7; 4 * sums]].concat()
    };
    let refused = |value: &[u8]| {
        let is_refused = Page::<Mapping>::of_row(value).is_err();
        assert_eq!(merged_change::<Mapping>(&[value]).is_err(), is_refused);
        assert_eq!(
            merge::<Mapping>(Some(value), [].into_iter(), true).is_err(),
            is_refused
        );
        is_refused
    };
    assert!(!refused(&run(60, 3, 9, 4)));
    // One entry; more than the page has; of no kind.
    assert!(refused(&run(60, 0, 9, 1)));
    assert!(refused(&run(60, 4, 9, 5)));
    assert!(refused(&run(60, 0x80 | 3, 9, 4)));
    // Cut off, in each of its parts.
    for len in 0..run(60, 3, 9, 4).len() {
        assert!(refused(&run(60, 3, 9, 4)[..len]), "{len} bytes");
    }
    // Addresses that do not end where numbers do.
    assert!(!refused(&run(60, 3, u64::MAX - 3, 4)));
    assert!(refused(&run(60, 3, u64::MAX - 2, 4)));
    // Over each other: the run goes to 12.
    let entry = |position: u8| without_runs(&Change::from([(position, Some(mapping(7)))]));
    assert!(!refused(&[run(10, 2, 9, 3), entry(13)].concat()));
    assert!(refused(&[run(10, 2, 9, 3), entry(12)].concat()));
    assert!(refused(&[run(10, 2, 9, 3), run(12, 2, 99, 3)].concat()));
    assert!(refused(&[entry(10), run(10, 2, 9, 3)].concat()));
    // What is gone is of one kind, and in no row.
    let gone = |run: u8| merged_change::<Mapping>(&[&[10 | GONE | RUN, run]]);
    assert_eq!(gone(1), Ok(vec![10 | GONE | RUN, 1]));
    assert!(gone(0x40 | 1).is_err() && gone(0).is_err() && gone(54).is_err());
    assert!(Page::<Mapping>::of_row(&[10 | GONE | RUN, 1]).is_err());
    // Blocks without a reference, and of no kind.
    let blocks = |second: u8, count: u32| {
        let value = [&[10 | RUN, second][..], &count.to_le_bytes(), &[7; 8]].concat();
        Page::<BlockRow>::of_row(&value).is_ok()
    };
    assert!(blocks(0x40 | 1, 1) && !blocks(0x40 | 1, 0) && !blocks(0x40 | 1, HAS_INDEX_ENTRY));
    assert!(!blocks(0x80 | 1, 1) && !blocks(1, 1));
}
