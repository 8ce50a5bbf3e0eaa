//! Pages: the mappings of 64 sub-blocks that follow each other, or 64 such blocks, in one row.
//!
//! A value is a list of entries and of runs of them. An entry begins with a byte that holds its position in the page
//! (bits 0 to 5) and whether it is gone (bit 7); one that is not gone goes on with its content, whose length follows
//! from the key. Positions rise, and a value has at least one entry.
//!
//! A *run* (bit 6 of its first byte) is two or more entries that follow each other, beginning with that position. Its
//! second byte holds their number less one (bits 0 to 5) and of which kind it is (bits 6 and 7), and then comes:
//!
//! | entries                                             | kind | content                                           |
//! |-----------------------------------------------------|------|---------------------------------------------------|
//! | gone                                                | 0    | nothing                                           |
//! | mappings whose addresses rise by one                | 0    | the first address u64, the CRC-32C of each        |
//! | mappings that say the same                          | 1    | that mapping                                      |
//! | blocks with fingerprints, with the same count       | 0    | the count u32, the fingerprint of each, the       |
//! |                                                     |      | CRC-32C of each                                   |
//! | blocks without fingerprints, with the same count    | 1    | the count u32, the CRC-32C of each                |
//!
//! From the first entry on, each run is as long as it can be: so this program writes one value only for what it says.
//! It reads what is divided in another way as well: rows that older programs wrote have no runs.
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
pub(super) const ENTRIES: u64 = crate::changes::PAGE;
/// Bits of a position.
pub(super) const POSITION_BITS: u32 = ENTRIES.trailing_zeros();
/// The position in an entry's first byte, and the number less one in a run's second byte.
const POSITION: u8 = ENTRIES as u8 - 1;
/// In the first byte: what begins there is gone, and no content follows.
const GONE: u8 = 0x80;
/// In the first byte: a run begins there.
const RUN: u8 = 0x40;
/// In a block's count, which is less: the index entry for its fingerprint leads to it.
const HAS_INDEX_ENTRY: u32 = REFCOUNT_MAX + 1;

/// The position of an entry in its page.
pub(super) fn position(number: u64) -> u8 {
    (number % ENTRIES) as u8
}

/// What pages hold.
pub(super) trait Content: Copy + PartialEq {
    /// Its length.
    const BYTES: usize;
    /// What is where no entry is.
    const NOTHING: Self;

    /// Appends it, [`Self::BYTES`] long.
    fn put(self, out: &mut Vec<u8>);

    /// Reads it back from exactly so many bytes.
    fn take(bytes: &[u8]) -> Result<Self, CodecError>;

    /// The kind of the run that the next entry is in as well; `None` if there is none.
    fn run_with(&self, next: &Self) -> Option<u8>;

    /// Appends what a run of this kind says of its entries.
    fn put_run(run: &[Self], kind: u8, out: &mut Vec<u8>);

    /// Reads the content of a run of so many entries; what follows it is left.
    fn take_run<'a>(
        bytes: &'a [u8],
        kind: u8,
        entries: &mut [Self],
    ) -> Result<&'a [u8], CodecError>;
}

/// Mappings whose addresses rise by one.
const RISING: u8 = 0;
/// Mappings that say the same.
const SAME: u8 = 1;
/// Blocks with fingerprints.
const WITH_FINGERPRINTS: u8 = 0;
/// Blocks without.
const WITHOUT_FINGERPRINTS: u8 = 1;
const BAD_KIND: CodecError = CodecError::Field("kind of a run");

impl Content for Mapping {
    const BYTES: usize = 12;
    const NOTHING: Self = Self::HOLE;

    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pba.0.to_le_bytes());
        out.extend_from_slice(&self.crc32c.to_le_bytes());
    }

    #[inline]
    fn take(bytes: &[u8]) -> Result<Self, CodecError> {
        let (pba, rest) = bytes.split_first_chunk().ok_or(CodecError::Short)?;
        let crc32c = rest.first_chunk().ok_or(CodecError::Short)?;
        Ok(Self {
            pba: Pba(u64::from_le_bytes(*pba)),
            crc32c: u32::from_le_bytes(*crc32c),
        })
    }

    #[inline]
    fn run_with(&self, next: &Self) -> Option<u8> {
        match next.pba.0.checked_sub(self.pba.0) {
            Some(1) => Some(RISING),
            Some(0) if self.crc32c == next.crc32c => Some(SAME),
            _ => None,
        }
    }

    fn put_run(run: &[Self], kind: u8, out: &mut Vec<u8>) {
        let Some(first) = run.first() else { return };
        match kind {
            SAME => first.put(out),
            _ => {
                out.extend_from_slice(&first.pba.0.to_le_bytes());
                put_each(run, out, |mapping| mapping.crc32c.to_le_bytes());
            }
        }
    }

    fn take_run<'a>(
        bytes: &'a [u8],
        kind: u8,
        entries: &mut [Self],
    ) -> Result<&'a [u8], CodecError> {
        match kind {
            RISING => {
                let (first, rest) = bytes.split_first_chunk().ok_or(CodecError::Short)?;
                let first = u64::from_le_bytes(*first);
                let last = first.checked_add(entries.len().saturating_sub(1) as u64);
                let last = last.ok_or(CodecError::Field("address"))?;
                for (mapping, pba) in entries.iter_mut().zip(first..=last) {
                    mapping.pba = Pba(pba);
                }
                take_each(rest, entries, |mapping, crc32c| {
                    mapping.crc32c = u32::from_le_bytes(crc32c);
                })
            }
            SAME => {
                let (content, rest) = split(bytes, Self::BYTES)?;
                entries.fill(Self::take(content)?);
                Ok(rest)
            }
            _ => Err(BAD_KIND),
        }
    }
}

impl Content for BlockRow {
    const BYTES: usize = 24;
    const NOTHING: Self = Self {
        refcount: 0,
        fingerprint: Fingerprint::NONE,
        crc32c: 0,
        has_index_entry: false,
    };

    #[inline]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&count_of(&self));
        out.extend_from_slice(&self.fingerprint.0);
        out.extend_from_slice(&self.crc32c.to_le_bytes());
    }

    #[inline]
    fn take(bytes: &[u8]) -> Result<Self, CodecError> {
        let (count, rest) = take_count(bytes)?;
        let (fingerprint, rest) = rest.split_first_chunk().ok_or(CodecError::Short)?;
        let crc32c = rest.first_chunk().ok_or(CodecError::Short)?;
        Ok(Self {
            fingerprint: Fingerprint(*fingerprint),
            crc32c: u32::from_le_bytes(*crc32c),
            ..count
        })
    }

    #[inline]
    fn run_with(&self, next: &Self) -> Option<u8> {
        let is_run = self.refcount == next.refcount && self.has_index_entry == next.has_index_entry;
        match (self.fingerprint.is_some(), next.fingerprint.is_some()) {
            (true, true) if is_run => Some(WITH_FINGERPRINTS),
            (false, false) if is_run => Some(WITHOUT_FINGERPRINTS),
            _ => None,
        }
    }

    fn put_run(run: &[Self], kind: u8, out: &mut Vec<u8>) {
        let Some(first) = run.first() else { return };
        out.extend_from_slice(&count_of(first));
        if kind == WITH_FINGERPRINTS {
            put_each(run, out, |block| block.fingerprint.0);
        }
        put_each(run, out, |block| block.crc32c.to_le_bytes());
    }

    fn take_run<'a>(
        bytes: &'a [u8],
        kind: u8,
        entries: &mut [Self],
    ) -> Result<&'a [u8], CodecError> {
        let (count, mut rest) = take_count(bytes)?;
        entries.fill(count);
        match kind {
            WITH_FINGERPRINTS => {
                rest = take_each(rest, entries, |block, fingerprint| {
                    block.fingerprint = Fingerprint(fingerprint);
                })?;
            }
            WITHOUT_FINGERPRINTS => {}
            _ => return Err(BAD_KIND),
        }
        take_each(rest, entries, |block, crc32c| {
            block.crc32c = u32::from_le_bytes(crc32c);
        })
    }
}

/// The count of a block, and whether an index entry leads to it.
fn count_of(block: &BlockRow) -> [u8; 4] {
    let index_entry = u32::from(block.has_index_entry) * HAS_INDEX_ENTRY;
    (block.refcount | index_entry).to_le_bytes()
}

/// A block with that count, and with nothing else; what follows the count is left.
fn take_count(bytes: &[u8]) -> Result<(BlockRow, &[u8]), CodecError> {
    let (count, rest) = bytes.split_first_chunk().ok_or(CodecError::Short)?;
    let count = u32::from_le_bytes(*count);
    let refcount = count & !HAS_INDEX_ENTRY;
    if refcount == 0 {
        return Err(CodecError::Field("reference count of 0"));
    }
    let block = BlockRow {
        refcount,
        has_index_entry: count & HAS_INDEX_ENTRY != 0,
        ..BlockRow::NOTHING
    };
    Ok((block, rest))
}

/// Appends so many bytes of each entry of a run.
fn put_each<C, const N: usize>(run: &[C], out: &mut Vec<u8>, bytes: impl Fn(&C) -> [u8; N]) {
    let begin = out.len();
    out.resize(begin + N * run.len(), 0);
    let places = out[begin..].as_chunks_mut().0;
    for (place, entry) in places.iter_mut().zip(run) {
        *place = bytes(entry);
    }
}

/// Gives each entry of a run its bytes; what follows them is left.
fn take_each<'a, C, const N: usize>(
    bytes: &'a [u8],
    entries: &mut [C],
    mut take: impl FnMut(&mut C, [u8; N]),
) -> Result<&'a [u8], CodecError> {
    let (all, rest) = split(bytes, N * entries.len())?;
    for (entry, bytes) in entries.iter_mut().zip(all.as_chunks().0) {
        take(entry, *bytes);
    }
    Ok(rest)
}

fn split(bytes: &[u8], at: usize) -> Result<(&[u8], &[u8]), CodecError> {
    bytes.split_at_checked(at).ok_or(CodecError::Short)
}

/// The bits of so many positions from this one on.
fn bits(position: u32, count: u32) -> u64 {
    debug_assert!(count > 0 && u64::from(position + count) <= ENTRIES);
    (u64::MAX >> (ENTRIES as u32 - count)) << position
}

/// What values say of the entries of a page.
#[derive(Clone, Debug)]
pub(super) struct Page<C> {
    /// By position, those that are there.
    entries: [C; ENTRIES as usize],
    /// Positions of which something is said, one bit each.
    named: u64,
    /// Those of them whose entry is gone.
    gone: u64,
}

impl<C: Content> Page<C> {
    /// Nothing is said.
    pub(super) fn new() -> Self {
        Self {
            entries: [C::NOTHING; ENTRIES as usize],
            named: 0,
            gone: 0,
        }
    }

    /// That of a row.
    pub(super) fn of_row(value: &[u8]) -> Result<Self, CodecError> {
        let mut page = Self::new();
        page.read_row(Some(value))?;
        Ok(page)
    }

    /// Nothing is said any more.
    pub(super) fn clear(&mut self) {
        (self.named, self.gone) = (0, 0);
    }

    /// Becomes that of a row. Without one it has no entries.
    pub(super) fn read_row(&mut self, value: Option<&[u8]>) -> Result<(), CodecError> {
        self.clear();
        if let Some(value) = value {
            self.read(value)?;
        }
        match self.gone {
            0 => Ok(()),
            _ => Err(CodecError::Field("entry: gone")),
        }
    }

    /// Adds what a value says; it covers what was said before.
    fn read(&mut self, value: &[u8]) -> Result<(), CodecError> {
        if value.is_empty() {
            return Err(CodecError::Short);
        }
        let mut rest = value;
        let mut least = 0;
        while let Some((tag, content)) = rest.split_first() {
            let position = tag & POSITION;
            if position < least {
                return Err(CodecError::Field("position in its page"));
            }
            if tag & RUN != 0 {
                let (run, content) = content.split_first().ok_or(CodecError::Short)?;
                rest = self.read_run(*tag, *run, content)?;
                least = position + (run & POSITION) + 1;
                continue;
            }
            least = position + 1;
            let bit = 1 << position;
            self.named |= bit;
            if tag & GONE != 0 {
                self.gone |= bit;
                rest = content;
                continue;
            }
            let (content, after) = split(content, C::BYTES)?;
            self.entries[usize::from(position)] = C::take(content)?;
            self.gone &= !bit;
            rest = after;
        }
        Ok(())
    }

    /// Adds what a run says, whose first two bytes these are; what follows it is left.
    fn read_run<'a>(
        &mut self,
        tag: u8,
        run: u8,
        content: &'a [u8],
    ) -> Result<&'a [u8], CodecError> {
        let position = usize::from(tag & POSITION);
        let (count, kind) = (usize::from(run & POSITION) + 1, run >> POSITION_BITS);
        let entries = self.entries.get_mut(position..position + count);
        let entries = entries.filter(|entries| entries.len() > 1);
        let entries = entries.ok_or(CodecError::Field("entries of a run"))?;
        let bits = bits(position as u32, count as u32);
        self.named |= bits;
        if tag & GONE == 0 {
            self.gone &= !bits;
            return C::take_run(content, kind, entries);
        }
        self.gone |= bits;
        match kind {
            0 => Ok(content),
            _ => Err(BAD_KIND),
        }
    }

    /// Says of an entry what it is; `None` = gone.
    pub(super) fn put(&mut self, position: u8, content: Option<C>) {
        let bit = bits(u32::from(position & POSITION), 1);
        self.named |= bit;
        match content {
            Some(content) => {
                self.entries[usize::from(position & POSITION)] = content;
                self.gone &= !bit;
            }
            None => self.gone |= bit,
        }
    }

    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        self.named == 0
    }

    /// Which positions have an entry, one bit each.
    pub(super) fn present(&self) -> u64 {
        self.named & !self.gone
    }

    /// The entry at a position.
    pub(super) fn get(&self, position: u8) -> Option<C> {
        let is_there = self.present() >> (position & POSITION) & 1 == 1;
        is_there.then(|| self.entries[usize::from(position & POSITION)])
    }

    /// All entries, by position.
    pub(super) fn into_entries(self) -> impl Iterator<Item = (u8, C)> {
        let mut left = self.present();
        std::iter::from_fn(move || {
            let position = left.trailing_zeros();
            let entry = self.entries.get(position as usize)?;
            left &= left - 1;
            Some((position as u8, *entry))
        })
    }

    /// The value of the change that says this.
    pub(super) fn change(&self) -> Vec<u8> {
        self.value(self.named)
    }

    /// The value of the row with what is there; empty, which is no value, if nothing is.
    pub(super) fn row(&self) -> Vec<u8> {
        self.value(self.present())
    }

    /// The value that says what is said of these positions.
    fn value(&self, mut left: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(left.count_ones() as usize * (1 + C::BYTES));
        while left != 0 {
            let position = left.trailing_zeros();
            let is_gone = self.gone >> position & 1 == 1;
            let alike = match is_gone {
                true => left & self.gone,
                false => left & !self.gone,
            };
            let count = (alike >> position).trailing_ones();
            let entries = &self.entries[position as usize..(position + count) as usize];
            let (count, kind) = match is_gone {
                true => (entries.len(), 0),
                false => longest_run(entries),
            };
            let entries = &entries[..count];
            let tag = position as u8 | if is_gone { GONE } else { 0 };
            if count > 1 {
                out.extend_from_slice(&[tag | RUN, (count - 1) as u8 | kind << POSITION_BITS]);
            } else {
                out.push(tag);
            }
            match entries {
                _ if is_gone => {}
                [entry] => entry.put(&mut out),
                run => C::put_run(run, kind, &mut out),
            }
            left &= !bits(position, count as u32);
        }
        out
    }
}

/// How many of these entries, from the first on, are in one run, and its kind.
#[inline]
fn longest_run<C: Content>(entries: &[C]) -> (usize, u8) {
    let next_to = |pair: &[C]| pair[0].run_with(&pair[1]);
    let mut pairs = entries.windows(2);
    let Some(kind) = pairs.next().and_then(next_to) else {
        return (1, 0);
    };
    let more = pairs.take_while(|pair| next_to(pair) == Some(kind));
    (2 + more.count(), kind)
}

/// A row of blocks to none of which an index entry leads.
pub(super) fn without_index_entries(row: &[u8]) -> Cow<'_, [u8]> {
    let Ok(mut page) = Page::<BlockRow>::of_row(row) else {
        // Whoever reads it is told.
        return Cow::Borrowed(row);
    };
    let mut is_changed = false;
    for block in &mut page.entries {
        is_changed |= std::mem::take(&mut block.has_index_entry);
    }
    match is_changed {
        true => Cow::Owned(page.row()),
        false => Cow::Borrowed(row),
    }
}

/// What remains of values that lie on each other, from the lowest to the highest: a row if the first one is
/// a row or if there is nothing below it, and a change otherwise. A row in which nothing remains is empty,
/// which is no value.
pub(super) fn merge<'a, C: Content>(
    row: Option<&[u8]>,
    changes: impl Iterator<Item = &'a [u8]>,
    into_row: bool,
) -> Result<Vec<u8>, CodecError> {
    let mut page = Page::<C>::new();
    page.read_row(row)?;
    for change in changes {
        page.read(change)?;
    }
    Ok(match into_row {
        true => page.row(),
        false => page.change(),
    })
}

#[cfg(test)]
mod tests;
