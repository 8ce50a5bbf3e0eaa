//! Pages: the mappings of 64 sub-blocks that follow each other, or 64 such blocks, in one row.
//!
//! A value is a list of entries. Each begins with a byte that holds its position in the page (bits 0 to 5)
//! and whether it is gone (bit 7; bit 6 is 0); one that is not gone goes on with its content, whose length
//! follows from the key. Positions rise, and a value has at least one entry, so there is one value only for
//! what it says.
//!
//! * A *row* has no entries that are gone. When the last one goes, the row goes.
//! * A *change* (RocksDB's merge operand) holds what becomes of the entries it names, and nothing of the
//!   others. Rows and changes that lie on each other are one row in the end; changes without the row that is
//!   below them are one change ([`merge`]). Where the cut is makes no difference.
//!
//! Every value is checked whenever it is looked at: malformed changes are rejected when they are read and when they are
//! merged.

use std::borrow::Cow;

use crate::codec::CodecError;
use crate::types::{BlockRow, Fingerprint, Mapping, Pba, REFCOUNT_MAX};

/// Entries of a page. Its number is that of an entry divided by this.
pub(super) const ENTRIES: u64 = 64;
/// Bits of a position.
pub(super) const POSITION_BITS: u32 = ENTRIES.trailing_zeros();
/// In an entry's first byte: it is gone, and no content follows.
const GONE: u8 = 0x80;
/// In a block's count, which is less: the index entry for its fingerprint leads to it.
const HAS_INDEX_ENTRY: u32 = REFCOUNT_MAX + 1;

/// The position of an entry in its page.
pub(super) fn position(number: u64) -> u8 {
    (number % ENTRIES) as u8
}

/// What pages hold.
pub(super) trait Content: Copy {
    /// Its length.
    const BYTES: usize;

    /// Appends it, [`Self::BYTES`] long.
    fn put(self, out: &mut Vec<u8>);

    /// Reads it back from exactly so many bytes.
    fn take(bytes: &[u8]) -> Result<Self, CodecError>;
}

impl Content for Mapping {
    const BYTES: usize = 12;

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pba.0.to_le_bytes());
        out.extend_from_slice(&self.crc32c.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Result<Self, CodecError> {
        let (pba, rest) = bytes.split_first_chunk().ok_or(CodecError::Short)?;
        let crc32c = rest.first_chunk().ok_or(CodecError::Short)?;
        Ok(Self {
            pba: Pba(u64::from_le_bytes(*pba)),
            crc32c: u32::from_le_bytes(*crc32c),
        })
    }
}

impl Content for BlockRow {
    const BYTES: usize = 24;

    fn put(self, out: &mut Vec<u8>) {
        let index_entry = u32::from(self.has_index_entry) * HAS_INDEX_ENTRY;
        out.extend_from_slice(&(self.refcount | index_entry).to_le_bytes());
        out.extend_from_slice(&self.fingerprint.0);
        out.extend_from_slice(&self.crc32c.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Result<Self, CodecError> {
        let (refcount, rest) = bytes.split_first_chunk().ok_or(CodecError::Short)?;
        let (fingerprint, rest) = rest.split_first_chunk().ok_or(CodecError::Short)?;
        let crc32c = rest.first_chunk().ok_or(CodecError::Short)?;
        let refcount = u32::from_le_bytes(*refcount);
        let has_index_entry = refcount & HAS_INDEX_ENTRY != 0;
        let refcount = refcount & !HAS_INDEX_ENTRY;
        if refcount == 0 {
            return Err(CodecError::Field("reference count of 0"));
        }
        Ok(Self {
            refcount,
            fingerprint: Fingerprint(*fingerprint),
            crc32c: u32::from_le_bytes(*crc32c),
            has_index_entry,
        })
    }
}

/// Appends an entry; `None` = gone.
pub(super) fn put<C: Content>(out: &mut Vec<u8>, position: u8, content: Option<C>) {
    match content {
        Some(content) => {
            out.push(position);
            content.put(out);
        }
        None => out.push(position | GONE),
    }
}

/// A row of blocks to none of which an index entry leads.
pub(super) fn without_index_entries(row: &[u8]) -> Cow<'_, [u8]> {
    // Behind the position: the count is little endian, so its highest byte is the fourth.
    const COUNT_END: usize = 4;
    let flag = (HAS_INDEX_ENTRY >> 24) as u8;
    let entries = || row.chunks_exact(1 + BlockRow::BYTES);
    if !entries().any(|entry| entry[COUNT_END] & flag != 0) {
        return Cow::Borrowed(row);
    }
    let mut changed = row.to_vec();
    for entry in changed.chunks_exact_mut(1 + BlockRow::BYTES) {
        entry[COUNT_END] &= !flag;
    }
    Cow::Owned(changed)
}

/// An entry as it is stored.
#[derive(Clone, Copy)]
struct Entry<'a> {
    /// First byte and content.
    bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    fn tag(self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    fn position(self) -> u8 {
        self.tag() & !GONE
    }

    fn content(self) -> Option<&'a [u8]> {
        match self.bytes {
            [tag, content @ ..] if tag & GONE == 0 => Some(content),
            _ => None,
        }
    }
}

/// The entries of a value, checked one by one.
struct Entries<'a> {
    rest: &'a [u8],
    content_bytes: usize,
    /// Least position that the next one may have.
    least: u8,
}

impl<'a> Entries<'a> {
    fn new(value: &'a [u8], content_bytes: usize) -> Result<Self, CodecError> {
        if value.is_empty() {
            return Err(CodecError::Short);
        }
        Ok(Self {
            rest: value,
            content_bytes,
            least: 0,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, CodecError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let tag = *self.rest.first()?;
        let position = tag & !GONE;
        if position < self.least || u64::from(position) >= ENTRIES {
            self.rest = &[];
            return Some(Err(CodecError::Field("position in its page")));
        }
        self.least = position + 1;
        let bytes = match tag & GONE {
            0 => 1 + self.content_bytes,
            _ => 1,
        };
        let Some((bytes, rest)) = self.rest.split_at_checked(bytes) else {
            self.rest = &[];
            return Some(Err(CodecError::Short));
        };
        self.rest = rest;
        Some(Ok(Entry { bytes }))
    }
}

/// A row whose entries were checked.
pub(super) struct Row<'a> {
    bytes: &'a [u8],
    /// Which positions it has.
    present: u64,
    content_bytes: usize,
}

impl<'a> Row<'a> {
    /// The row with this value; every content in it is one.
    pub(super) fn parse<C: Content>(value: &'a [u8]) -> Result<Self, CodecError> {
        let mut present = 0;
        for entry in Entries::new(value, C::BYTES)? {
            let entry = entry?;
            let content = entry.content().ok_or(CodecError::Field("entry: gone"))?;
            C::take(content)?;
            present |= 1 << entry.position();
        }
        Ok(Self {
            bytes: value,
            present,
            content_bytes: C::BYTES,
        })
    }

    /// Which positions it has, one bit each.
    pub(super) fn present(&self) -> u64 {
        self.present
    }

    /// The entry at a position.
    pub(super) fn get<C: Content>(&self, position: u8) -> Option<C> {
        if self.present >> position & 1 == 0 {
            return None;
        }
        let before = (self.present & ((1 << position) - 1)).count_ones() as usize;
        let at = before * (1 + self.content_bytes) + 1;
        C::take(self.bytes.get(at..at + self.content_bytes)?).ok()
    }

    /// All entries, by position.
    pub(super) fn into_entries<C: Content>(self) -> impl Iterator<Item = (u8, C)> + use<'a, C> {
        self.bytes
            .chunks_exact(1 + self.content_bytes)
            .filter_map(|entry| {
                let (position, content) = entry.split_first()?;
                Some((*position, C::take(content).ok()?))
            })
    }
}

/// What remains of values that lie on each other, from the lowest to the highest: a row if the first one is
/// a row or if there is nothing below it, and a change otherwise. A row in which nothing remains is empty,
/// which is no value.
pub(super) fn merge<'a>(
    content_bytes: usize,
    row: Option<&'a [u8]>,
    changes: impl Iterator<Item = &'a [u8]>,
    into_row: bool,
) -> Result<Vec<u8>, CodecError> {
    let mut slots = [Entry { bytes: &[] }; ENTRIES as usize];
    let mut present = 0u64;
    if let Some(row) = row {
        for entry in Entries::new(row, content_bytes)? {
            let entry = entry?;
            entry.content().ok_or(CodecError::Field("entry: gone"))?;
            slots[usize::from(entry.position())] = entry;
            present |= 1 << entry.position();
        }
    }
    for change in changes {
        for entry in Entries::new(change, content_bytes)? {
            let entry = entry?;
            slots[usize::from(entry.position())] = entry;
            present |= 1 << entry.position();
        }
    }
    let mut out = Vec::with_capacity(present.count_ones() as usize * (1 + content_bytes));
    while present != 0 {
        let entry = slots[present.trailing_zeros() as usize];
        present &= present - 1;
        if !into_row || entry.content().is_some() {
            out.extend_from_slice(entry.bytes);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    type Change = BTreeMap<u8, Option<u32>>;

    fn mapping(number: u32) -> Mapping {
        Mapping {
            pba: Pba(u64::from(number) << 20),
            crc32c: number,
        }
    }

    fn encoded(change: &Change) -> Vec<u8> {
        let mut out = Vec::new();
        for (position, number) in change {
            put(&mut out, *position, number.map(mapping));
        }
        out
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        vec(btree_map(0..64u8, any::<Option<u32>>(), 1..20), 1..8)
    }

    proptest! {
        #[test]
        fn changes_give_the_same_row_however_they_are_merged_before(
            changes in changes(),
            has_row: bool,
            cuts in vec(0..8usize, 0..3),
        ) {
            let mut model = BTreeMap::new();
            for change in &changes {
                for (position, number) in change {
                    match number {
                        Some(number) => model.insert(*position, *number),
                        None => model.remove(position),
                    };
                }
            }
            let mut values: Vec<Vec<u8>> = changes.iter().map(encoded).collect();
            // The lowest one is a row: nothing in it is gone.
            let lowest: Change = changes[0].clone().into_iter().filter(|entry| entry.1.is_some()).collect();
            let row = (has_row && !lowest.is_empty()).then(|| encoded(&lowest));
            if row.is_some() {
                values.remove(0);
            }
            // Some that follow each other become one first.
            for cut in cuts {
                if cut + 1 < values.len() {
                    let pair = values[cut..cut + 2].iter().map(Vec::as_slice);
                    let one = merge(Mapping::BYTES, None, pair, false).unwrap();
                    values.splice(cut..cut + 2, [one]);
                }
            }
            let merged = merge(Mapping::BYTES, row.as_deref(), values.iter().map(Vec::as_slice), true).unwrap();
            if model.is_empty() {
                prop_assert!(merged.is_empty());
                return Ok(());
            }
            let page = Row::parse::<Mapping>(&merged).unwrap();
            let expected: BTreeMap<u8, Mapping> =
                model.iter().map(|(position, number)| (*position, mapping(*number))).collect();
            for position in 0..64 {
                prop_assert_eq!(page.get(position), expected.get(&position).copied());
                prop_assert_eq!(page.present() >> position & 1 == 1, expected.contains_key(&position));
            }
            let found: BTreeMap<u8, Mapping> = page.into_entries().collect();
            prop_assert_eq!(&found, &expected);
        }

        #[test]
        fn any_bytes_are_refused_or_are_the_only_ones_that_say_what_they_say(
            value in vec(prop_oneof![0..64u8, any::<u8>()], 0..60),
        ) {
            if let Ok(page) = Row::parse::<BlockRow>(&value) {
                let mut again = Vec::new();
                for (position, row) in page.into_entries::<BlockRow>() {
                    put(&mut again, position, Some(row));
                }
                prop_assert_eq!(&again, &value);
                prop_assert_eq!(merge(BlockRow::BYTES, Some(&value), [].into_iter(), true), Ok(value.clone()));
            }
            if let Ok(change) = merge(BlockRow::BYTES, None, [value.as_slice()].into_iter(), false) {
                prop_assert_eq!(&change, &value);
            }
        }
    }

    #[test]
    fn values_that_are_no_pages_are_refused() {
        let entry = |position: u8| {
            let mut out = Vec::new();
            put(&mut out, position, Some(mapping(7)));
            out
        };
        let refused = |value: &[u8]| {
            Row::parse::<Mapping>(value).is_err()
                && merge(Mapping::BYTES, Some(value), [].into_iter(), true).is_err()
        };
        assert!(!refused(&entry(63)));
        assert!(refused(&[]));
        assert!(refused(&entry(64)));
        assert!(refused(&entry(3)[..12]));
        assert!(refused(&[entry(3), entry(3)].concat()));
        assert!(refused(&[entry(4), entry(3)].concat()));
        assert!(refused(&[5 | GONE]));
        let merged = |change: &[u8]| merge(Mapping::BYTES, None, [change].into_iter(), false);
        assert_eq!(merged(&[5 | GONE]), Ok(vec![5 | GONE]));
        assert!(merged(&[]).is_err());
        assert!(merged(&[64 | GONE]).is_err());
        assert!(merged(&[5 | GONE, 5 | GONE]).is_err());
        assert!(Row::parse::<BlockRow>(&[0; 25]).is_err());
    }
}
