//! Changes by what they change, in order.
//!
//! A batch that is made of records says most of its changes by naming the entries of those records: a write of 128 KiB is
//! one run of its map and one of its blocks, and no list holds each change by itself. What several entries say of one
//! sub-block or block, and what did not come from records, is held as it is.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BlockChange, BlockContent, MapChange};
use crate::record::MapEntry;
use crate::runs::{Number, Run, Side};
use crate::types::Mapping;

/// Numbers of a page of rows. No run goes over its end.
pub(crate) const PAGE: u64 = 64;

/// A change that an entry of a record may say.
pub trait Change: Copy {
    /// What the entry says of what it names as `kind`.
    fn of_entry(entry: &MapEntry, kind: Kind) -> Self;
}

impl Change for MapChange {
    #[inline]
    fn of_entry(entry: &MapEntry, _kind: Kind) -> Self {
        Self {
            old: entry.old,
            new: entry.new.map(|new| Mapping {
                pba: new.pba,
                crc32c: new.crc32c,
            }),
        }
    }
}

impl Change for BlockChange {
    #[inline]
    fn of_entry(entry: &MapEntry, kind: Kind) -> Self {
        if let Kind::Old = kind {
            return Self {
                delta: -1,
                lowest: -1,
                ..Self::default()
            };
        }
        Self {
            delta: 1,
            lowest: 0,
            content: entry.new.map(|new| BlockContent {
                fingerprint: new.fingerprint,
                crc32c: new.crc32c,
            }),
            wants_index_entry: kind == Kind::NewIndexed,
        }
    }
}

/// Where the changes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Entries say them: of a sub-block, or of its new block.
    New,
    /// The same, and an index entry is to lead to the block.
    NewIndexed,
    /// Entries say them, of the blocks that they take away.
    Old,
    /// They are held.
    Held,
}

impl From<Side> for Kind {
    fn from(side: Side) -> Self {
        match side {
            Side::New => Self::New,
            Side::Old => Self::Old,
        }
    }
}

/// Changes of numbers that follow each other, within a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<K> {
    first: K,
    /// Where the first change is: the others follow it.
    at: u32,
    /// 1 to [`PAGE`].
    count: u8,
    kind: Kind,
}

impl<K: Number> Piece<K> {
    /// Of its numbers, those from `from` to before `upto`, counted from the first one.
    fn part(&self, from: u8, upto: u8) -> Option<Self> {
        if from >= upto {
            return None;
        }
        Some(Self {
            first: self.first.plus(from.into())?,
            at: self.at + u32::from(from),
            count: upto - from,
            kind: self.kind,
        })
    }

    /// Its numbers.
    fn numbers(&self) -> impl ExactSizeIterator<Item = K> + use<K> {
        let first = self.first;
        // No piece goes beyond the last number that there is.
        (0..u32::from(self.count)).map(move |behind| first.plus(behind).unwrap_or(first))
    }

    /// Where their changes are.
    fn changes(&self) -> Range<usize> {
        self.at as usize..self.at as usize + usize::from(self.count)
    }

    /// Its last number.
    fn last(&self) -> K {
        let last = self.first.plus(u32::from(self.count) - 1);
        last.unwrap_or(self.first)
    }

    /// How many of its numbers come before this one.
    fn before(&self, number: K) -> u8 {
        self.numbers().take_while(|own| *own < number).count() as u8
    }
}

/// Changes that are sorted by what each changes, with each once. Batches are made whole and then gone through in order.
#[derive(Clone, Debug)]
pub struct Changes<K, V> {
    /// By their numbers.
    pieces: Vec<Piece<K>>,
    /// Entries of the records that the batch was made of.
    entries: Arc<Vec<MapEntry>>,
    /// Changes that no entry says by itself.
    held: Vec<V>,
    /// Numbers of all pieces.
    len: usize,
}

impl<K, V> Default for Changes<K, V> {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            entries: Arc::default(),
            held: Vec::new(),
            len: 0,
        }
    }
}

impl<K: Number, V: Change> Changes<K, V> {
    /// None yet, to be made of these entries in about so many runs.
    pub(crate) fn of_entries(entries: &Arc<Vec<MapEntry>>, runs: usize) -> Self {
        Self {
            pieces: Vec::with_capacity(runs),
            entries: Arc::clone(entries),
            ..Self::default()
        }
    }

    /// Adds a run of numbers that only its entries name. Numbers rise.
    pub(crate) fn push_run(&mut self, run: &Run<K>) {
        let Run { first, count, .. } = *run;
        self.len += count as usize;
        let mut done = 0;
        while done < count {
            let Some(first) = first.plus(done) else {
                return;
            };
            let in_page = PAGE - first.number() % PAGE;
            let count = in_page.min(u64::from(count - done)) as u8;
            self.pieces.push(Piece {
                first,
                at: run.entry() + done,
                count,
                kind: run.side().into(),
            });
            done += u32::from(count);
        }
    }

    /// Adds a number that one entry names. Numbers rise.
    pub(crate) fn push_entry(&mut self, number: K, entry: u32, side: Side) {
        self.push_at(number, entry, side.into());
    }

    /// Adds a change that no entry says by itself. Numbers rise.
    pub(crate) fn push(&mut self, number: K, change: V) {
        let at = self.held.len() as u32;
        self.held.push(change);
        self.push_at(number, at, Kind::Held);
    }

    fn push_at(&mut self, number: K, at: u32, kind: Kind) {
        self.len += 1;
        push_joined(&mut self.pieces, number, at, kind);
    }

    /// Makes `change` the change of `key`, and returns what it was before. Keys that rise cost least: others
    /// move all that follow.
    pub fn insert(&mut self, key: K, change: V) -> Option<V> {
        let follows = self.pieces.partition_point(|piece| piece.first <= key);
        if follows == self.pieces.len() && self.pieces.last().is_none_or(|it| it.last() < key) {
            self.push(key, change);
            return None;
        }
        let at = self.held.len() as u32;
        self.held.push(change);
        let new = Piece {
            first: key,
            at,
            count: 1,
            kind: Kind::Held,
        };
        let around = self.pieces[..follows].last().copied();
        let Some(around) = around.filter(|piece| piece.last() >= key) else {
            self.len += 1;
            self.pieces.insert(follows, new);
            return None;
        };
        let before = self.get(&key);
        let passed = around.before(key);
        let parts = [
            around.part(0, passed),
            Some(new),
            around.part(passed + 1, around.count),
        ];
        let parts = parts.into_iter().flatten();
        self.pieces.splice(follows - 1..follows, parts);
        before
    }

    /// The change of `key`.
    pub fn get(&self, key: &K) -> Option<V> {
        let follows = self.pieces.partition_point(|piece| piece.first <= *key);
        let piece = self.pieces[..follows].last()?;
        let mut changes = self.of_piece(piece);
        changes.find_map(|(number, change)| (number == *key).then_some(change))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (K, V)> + '_ {
        self.pieces.iter().flat_map(|piece| self.of_piece(piece))
    }

    /// Those of a range of keys.
    pub fn range(&self, keys: Range<K>) -> impl Iterator<Item = (K, V)> + '_ {
        let first = self
            .pieces
            .partition_point(|piece| piece.last() < keys.start);
        let changes = self.pieces[first..].iter();
        changes
            .take_while(move |piece| piece.first < keys.end)
            .flat_map(|piece| self.of_piece(piece))
            .filter(move |(key, _)| keys.contains(key))
    }

    /// Those of a list whose keys rise.
    pub(crate) fn from_sorted(changes: Vec<(K, V)>) -> Self {
        debug_assert!(changes.is_sorted_by(|(a, _), (b, _)| a < b));
        let mut all = Self::default();
        for (number, change) in changes {
            all.push(number, change);
        }
        all
    }

    /// By the pages of rows that they change.
    pub(crate) fn pages(&self) -> impl Iterator<Item = ChangesOfPage<'_, K, V>> {
        let pages = self
            .pieces
            .chunk_by(|a, b| a.first.page(PAGE) == b.first.page(PAGE));
        pages.filter_map(|pieces| {
            Some(ChangesOfPage {
                changes: self,
                pieces,
                first: pieces.first()?.first,
            })
        })
    }

    fn of_piece(&self, piece: &Piece<K>) -> impl Iterator<Item = (K, V)> + use<'_, K, V> {
        // Who made the piece has put its changes there: a list that is too short is no reason to leave any out.
        let (kind, changes) = (piece.kind, piece.changes());
        piece.numbers().zip(changes).map(move |(number, at)| {
            let change = match kind {
                Kind::Held => self.held[at],
                _ => V::of_entry(&self.entries[at], kind),
            };
            (number, change)
        })
    }

    /// Appends what [`Self::of_piece`] gives, each made where it stays.
    fn append_piece(&self, piece: &Piece<K>, out: &mut Vec<(K, V)>) {
        let changes = piece.changes();
        match piece.kind {
            Kind::Held => {
                let held = self.held[changes].iter().copied();
                out.extend(piece.numbers().zip(held));
            }
            kind => {
                let entries = self.entries[changes].iter();
                let changes = entries.map(|entry| V::of_entry(entry, kind));
                out.extend(piece.numbers().zip(changes));
            }
        }
    }
}

impl<K: Number> Changes<K, BlockChange> {
    /// Index entries are to lead to these blocks, which are in order and among those that get a content.
    pub(crate) fn want_index_entries(&mut self, blocks: impl Iterator<Item = K>) {
        let mut wanted = blocks.peekable();
        if wanted.peek().is_none() {
            return;
        }
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            if wanted.peek().is_none_or(|block| *block > piece.last()) {
                pieces.push(*piece);
                continue;
            }
            for behind in 0..u32::from(piece.count) {
                let Some(number) = piece.first.plus(behind) else {
                    continue;
                };
                let is_wanted = wanted.next_if_eq(&number).is_some();
                let at = piece.at + behind;
                let kind = match piece.kind {
                    Kind::New if is_wanted => Kind::NewIndexed,
                    kind => kind,
                };
                if kind == Kind::Held
                    && let Some(change) = self.held.get_mut(at as usize)
                {
                    change.wants_index_entry |= is_wanted;
                }
                push_joined(&mut pieces, number, at, kind);
            }
        }
        self.pieces = pieces;
    }
}

/// Adds a number behind all others, to the last piece if it follows that one within its page.
fn push_joined<K: Number>(pieces: &mut Vec<Piece<K>>, number: K, at: u32, kind: Kind) {
    if let Some(last) = pieces.last_mut() {
        let count = u32::from(last.count);
        if last.kind == kind
            && last.at + count == at
            && last.first.plus(count) == Some(number)
            && !number.number().is_multiple_of(PAGE)
        {
            last.count += 1;
            return;
        }
    }
    pieces.push(Piece {
        first: number,
        at,
        count: 1,
        kind,
    });
}

impl<K: Number, V: Change + PartialEq> PartialEq for Changes<K, V> {
    /// They change the same, however they are held.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<K: Number, V: Change + Eq> Eq for Changes<K, V> {}

/// The changes of one page of rows: at least one.
pub(crate) struct ChangesOfPage<'a, K, V> {
    changes: &'a Changes<K, V>,
    pieces: &'a [Piece<K>],
    /// The first number, which names the page.
    pub(crate) first: K,
}

impl<'a, K: Number, V: Change> ChangesOfPage<'a, K, V> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(|it| usize::from(it.count)).sum()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, V)> + use<'a, K, V> {
        let Self {
            changes, pieces, ..
        } = *self;
        pieces.iter().flat_map(|piece| changes.of_piece(piece))
    }

    /// Appends all of them.
    pub(crate) fn append_to(&self, out: &mut Vec<(K, V)>) {
        for piece in self.pieces {
            self.changes.append_piece(piece, out);
        }
    }
}

#[cfg(test)]
mod tests;
