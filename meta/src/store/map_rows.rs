//! Rows of a map as they are stored, but for runs: who compares maps need not decode what is equal.

use std::ops::Range;
use std::path::Path;

use rocksdb::DB;

use super::database::{classify, corrupt, scanning};
use super::page::{self, Content, ENTRIES, Page};
use super::rows;
use crate::codec::CodecError;
use crate::error::MetaError;
use crate::types::{MapId, Mapping};

/// Bytes that are read ahead.
const READAHEAD_BYTES: usize = 256 << 10;

/// Bytes of an entry: its position in its row, and a mapping.
const ENTRY_BYTES: usize = 1 + Mapping::BYTES;

/// Rows of one map, encoded one mapping after the other. A row has the mappings and holes of 64 sub-blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapRows {
    bytes: Vec<u8>,
    /// The first sub-block of each row, in order, and where its entries begin.
    rows: Vec<(u64, usize)>,
}

impl MapRows {
    /// Appends a row. Its sub-blocks come after those of all others.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), CodecError> {
        let (_, first) = rows::parse_map_key(key)?;
        let page = Page::of_row(value)?;
        self.begin(first);
        for (position, mapping) in page.into_entries() {
            self.put(position, mapping);
        }
        Ok(())
    }

    /// Appends an entry behind all others.
    pub(super) fn push_entry(&mut self, map: MapId, sub_block: u64, mapping: Mapping) {
        let first = sub_block - sub_block % ENTRIES;
        debug_assert!(rows::parse_map_key(&rows::map_key(map, sub_block)) == Ok((map, first)));
        if self.rows.last().is_none_or(|(last, _)| *last != first) {
            self.begin(first);
        }
        self.put(page::position(sub_block), mapping);
    }

    fn put(&mut self, position: u8, mapping: Mapping) {
        self.bytes.push(position);
        mapping.put(&mut self.bytes);
    }

    fn begin(&mut self, first: u64) {
        debug_assert!(self.rows.last().is_none_or(|(last, _)| *last < first));
        self.rows.push((first, self.bytes.len()));
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Mappings and holes in all rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / ENTRY_BYTES
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One past the last sub-block that the last row may have.
    #[must_use]
    pub fn end(&self) -> u64 {
        let last = self.rows.last();
        last.map_or(0, |(first, _)| first.saturating_add(ENTRIES))
    }

    /// The numbers of the parts of so many sub-blocks that have entries, in order. Rows are divided into whole parts.
    pub fn parts(&self, sub_blocks: u64) -> impl Iterator<Item = u64> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(move |(number, (first, _))| {
            // One look at a row that is one part.
            let looks = match sub_blocks {
                ENTRIES => 1,
                _ => usize::MAX,
            };
            let entries = self.row(number).iter().take(looks);
            let mut last = None;
            entries.filter_map(move |(position, _)| {
                let part = (first + u64::from(position)) / sub_blocks;
                (last.replace(part) != Some(part)).then_some(part)
            })
        })
    }

    /// The entries of `first..end`, which lie in one row.
    #[must_use]
    pub fn within(&self, first: u64, end: u64) -> RowEntries<'_> {
        let row = first - first % ENTRIES;
        match self.rows.binary_search_by_key(&row, |(first, _)| *first) {
            Ok(number) => self.row_within(number, first, end),
            Err(_) => RowEntries::default(),
        }
    }

    /// A way through all rows in order.
    #[must_use]
    pub fn cursor(&self) -> RowCursor<'_> {
        RowCursor {
            rows: self,
            number: 0,
        }
    }

    fn row_within(&self, number: usize, first: u64, end: u64) -> RowEntries<'_> {
        let row = first - first % ENTRIES;
        let RowEntries { entries } = self.row(number);
        if end.saturating_sub(first) == ENTRIES {
            return RowEntries { entries };
        }
        let before =
            |sub_block: u64| entries.partition_point(|it| row + u64::from(it[0]) < sub_block);
        RowEntries {
            entries: &entries[before(first)..before(end)],
        }
    }

    fn row(&self, number: usize) -> RowEntries<'_> {
        let begin = self.rows[number].1;
        let end = self.rows.get(number + 1);
        let end = end.map_or(self.bytes.len(), |(_, end)| *end);
        RowEntries {
            entries: self.bytes[begin..end].as_chunks().0,
        }
    }
}

/// A way through the rows of a map in order.
#[derive(Clone, Debug)]
pub struct RowCursor<'a> {
    rows: &'a MapRows,
    number: usize,
}

impl<'a> RowCursor<'a> {
    /// The entries of `first..end`, which lie in one row. None of what was asked for before lies behind that.
    #[must_use]
    pub fn within(&mut self, first: u64, end: u64) -> RowEntries<'a> {
        let row = first - first % ENTRIES;
        let rows = &self.rows.rows;
        while rows.get(self.number).is_some_and(|(at, _)| *at < row) {
            self.number += 1;
        }
        match rows.get(self.number) {
            Some((at, _)) if *at == row => self.rows.row_within(self.number, first, end),
            _ => RowEntries::EMPTY,
        }
    }
}

/// Entries of one row: equal if they say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowEntries<'a> {
    entries: &'a [[u8; ENTRY_BYTES]],
}

impl<'a> RowEntries<'a> {
    /// None.
    pub const EMPTY: Self = Self { entries: &[] };

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// At which positions of their row they are, by bits.
    #[must_use]
    pub fn positions(self) -> u64 {
        if self.entries.len() as u64 == ENTRIES {
            return u64::MAX;
        }
        let entries = self.entries.iter();
        entries.fold(0, |positions, entry| {
            positions | 1 << (entry[0] % ENTRIES as u8)
        })
    }

    /// What they say of a position in their row. `positions`: those of all of them.
    #[must_use]
    pub fn get(self, positions: u64, position: u8) -> Option<Mapping> {
        let bit = 1u64.checked_shl(u32::from(position))?;
        if positions & bit == 0 {
            return None;
        }
        let before = (positions & (bit - 1)).count_ones();
        self.entries.get(before as usize).map(mapping)
    }

    /// What they say, by the position in their row.
    pub fn iter(self) -> impl Iterator<Item = (u8, Mapping)> + use<'a> {
        self.entries.iter().map(|entry| (entry[0], mapping(entry)))
    }

    /// Gives `each` the positions where these map other blocks than others of the same row.
    pub fn differences(self, other: Self, mut each: impl FnMut(u8)) {
        let (mut a, mut b) = (self.entries, other.entries);
        // Most of what differs at all is in one of both alone.
        if let ([], only) | (only, []) = (a, b) {
            let mapped = only.iter().filter(|entry| !mapping(entry).is_hole());
            return mapped.for_each(|entry| each(entry[0]));
        }
        loop {
            let (next, of_a, of_b) = match (a.first(), b.first()) {
                (None, None) => return,
                (Some(of_a), None) => (of_a[0], true, false),
                (None, Some(of_b)) => (of_b[0], false, true),
                (Some(of_a), Some(of_b)) => {
                    let next = of_a[0].min(of_b[0]);
                    (next, of_a[0] == next, of_b[0] == next)
                }
            };
            let of_a = of_a.then(|| a.split_off_first()).flatten();
            let of_b = of_b.then(|| b.split_off_first()).flatten();
            let is_nothing = |entry: Option<&[u8; ENTRY_BYTES]>| {
                entry.is_none_or(|entry| mapping(entry).is_hole())
            };
            if of_a != of_b && !(is_nothing(of_a) && is_nothing(of_b)) {
                each(next);
            }
        }
    }
}

/// Reads the rows that may have any of some ranges: the first ones, until these are `rows_max`, or have `count_max` entries.
pub(super) fn read_rows(
    dir: &Path,
    db: &DB,
    map: MapId,
    ranges: &[Range<u64>],
    (rows_max, count_max): (usize, usize),
) -> Result<MapRows, MetaError> {
    let mut found = MapRows::default();
    let whole = whole_rows(ranges);
    let (Some(first), Some(last)) = (whole.first(), whole.last()) else {
        return Ok(found);
    };
    let key = |sub_block| rows::map_key(map, sub_block);
    let mut options = scanning(READAHEAD_BYTES);
    options.set_iterate_lower_bound(key(first.start));
    // The least key after the last row.
    options.set_iterate_upper_bound([&key(last.end - 1)[..], &[0]].concat());
    let mut iterator = db.raw_iterator_opt(options);
    'ranges: for range in &whole {
        let (first, last) = (key(range.start), key(range.end - 1));
        // Between ranges that are near each other it may be there already.
        if iterator.key().is_none_or(|key| key < &first[..]) {
            iterator.seek(first);
        }
        while let Some((key, value)) = iterator.item() {
            if found.rows() >= rows_max || found.count() >= count_max {
                return Ok(found);
            }
            if key > &last[..] {
                continue 'ranges;
            }
            let pushed = found.push(key, value);
            pushed.map_err(|error| corrupt(dir, "mapping", error))?;
            iterator.next();
        }
        break; // nothing follows, or it cannot be read
    }
    let status = iterator.status();
    status.map_err(|error| classify(dir, "read the metadata store", error))?;
    Ok(found)
}

/// Adds the parts of so many sub-blocks that a row has any of `first..end` in.
pub(super) fn add_parts(
    parts: &mut Vec<u64>,
    (key, value): (&[u8], &[u8]),
    (first, end): (u64, u64),
    sub_blocks: u64,
) -> Result<(), CodecError> {
    let (_, row) = rows::parse_map_key(key)?;
    let is_whole = first <= row && end >= row.saturating_add(ENTRIES);
    if is_whole && sub_blocks.is_multiple_of(ENTRIES) {
        // A row has an entry, and all of them are in one part.
        parts.push(row / sub_blocks);
    } else {
        let mappings = rows::mappings(key, value)?.map(|(at, _)| at);
        let wanted = mappings.filter(|at| (first..end).contains(at));
        parts.extend(wanted.map(|at| at / sub_blocks));
    }
    parts.dedup();
    Ok(())
}

/// The sub-blocks of all rows that have any of some ranges, which are in order: in ranges that are apart from each other.
pub(super) fn whole_rows(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut whole: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for Range { start, end } in ranges.iter().filter(|range| !range.is_empty()).cloned() {
        let first = start - start % ENTRIES;
        let end = end.div_ceil(ENTRIES).saturating_mul(ENTRIES);
        match whole.last_mut() {
            Some(last) if first <= last.end => last.end = last.end.max(end),
            _ => whole.push(first..end),
        }
    }
    whole
}

fn mapping(entry: &[u8; ENTRY_BYTES]) -> Mapping {
    let [_, content @ ..] = entry;
    // So many bytes are always one.
    Mapping::take(content).unwrap_or(Mapping::HOLE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;
    use crate::types::Pba;

    fn rows_of(model: &BTreeMap<u64, Option<u32>>) -> MapRows {
        let mut rows = MapRows::default();
        for (at, number) in model {
            rows.push_entry(7, *at, mapping_of(*number));
        }
        rows
    }

    fn mapping_of(number: Option<u32>) -> Mapping {
        number.map_or(Mapping::HOLE, |number| Mapping {
            pba: Pba(u64::from(number)),
            crc32c: number,
        })
    }

    fn model() -> impl Strategy<Value = BTreeMap<u64, Option<u32>>> {
        btree_map(0..200u64, prop::option::of(0..3u32), 0..150)
    }

    proptest! {
        #[test]
        fn encoded_rows_say_what_their_mappings_say(a in model(), b in model(), part in 0..3u32) {
            let part = 8u64 << part.min(2);
            let part = if part == 32 { 64 } else { part };
            let (of_a, of_b) = (rows_of(&a), rows_of(&b));
            let parts = |model: &BTreeMap<u64, Option<u32>>| {
                let mut parts: Vec<u64> = model.keys().map(|at| at / part).collect();
                parts.dedup();
                parts
            };
            prop_assert_eq!(of_a.parts(part).collect::<Vec<_>>(), parts(&a));
            prop_assert_eq!(of_a.count(), a.len());
            let mut found = Vec::new();
            let mut cursor = of_a.cursor();
            for number in 0..200 / part + 1 {
                let (first, end) = (number * part, (number + 1) * part);
                let of_a = of_a.within(first, end);
                let of_b = of_b.within(first, end);
                let said: Vec<_> = of_a.iter().collect();
                let meant = a.range(first..end);
                let meant: Vec<_> = meant.map(|(at, number)| ((at % 64) as u8, mapping_of(*number))).collect();
                prop_assert_eq!(&said, &meant);
                prop_assert_eq!(cursor.within(first, end), of_a);
                let positions = of_a.positions();
                for (position, mapping) in (0..64).map(|it| (it, of_a.get(positions, it))) {
                    let meant = meant.iter().find(|(at, _)| *at == position);
                    prop_assert_eq!(mapping, meant.map(|(_, mapping)| *mapping));
                }
                of_a.differences(of_b, |position| found.push(first - first % 64 + u64::from(position)));
                if of_a == of_b {
                    prop_assert!(a.range(first..end).eq(b.range(first..end)));
                }
            }
            let differs = |at: &u64| a.get(at).copied().flatten() != b.get(at).copied().flatten();
            prop_assert_eq!(found, (0..200).filter(differs).collect::<Vec<_>>());
        }
    }

    #[test]
    fn ranges_in_the_same_row_ask_for_it_once() {
        let ranges = [3..4, 5..5, 9..64, 64..66, 300..301, 700..u64::MAX];
        let whole = [0..128, 256..320, 640..u64::MAX];
        assert_eq!(whole_rows(&ranges), whole);
    }

    #[test]
    fn rows_that_are_none_are_refused() {
        let key = rows::map_key(7, 64);
        let row = rows_of(&BTreeMap::from([(64, Some(1)), (66, Some(2))]));
        let mut again = MapRows::default();
        again.push(&key, &row.bytes).unwrap();
        assert_eq!(again, row);
        let mut turned = row.bytes.clone();
        turned.rotate_left(ENTRY_BYTES);
        let mut gone = row.bytes.clone();
        gone[0] |= 0x80;
        for value in [&[][..], &row.bytes[..14], &turned, &gone] {
            assert!(MapRows::default().push(&key, value).is_err());
        }
    }
}
