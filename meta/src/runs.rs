//! The numbers that the entries of a batch name, in their order: sub-blocks of maps, or blocks.
//!
//! A write names mappings, and mostly blocks too, whose numbers follow each other. So what is sorted is
//! runs of such numbers, and their occurrences one by one only where runs overlap.

use crate::types::{MapId, Pba};

/// A number that others follow.
pub trait Number: Copy + Ord {
    /// The number so many behind it.
    fn plus(self, count: u32) -> Option<Self>;

    /// What divides it into pages.
    fn number(self) -> u64;

    /// It as numbers that are in the same order.
    fn parts(self) -> (MapId, u64);

    /// The page of so many numbers that it is in, by its first number.
    fn page(self, numbers: u64) -> Self;
}

/// A block.
impl Number for Pba {
    #[inline]
    fn plus(self, count: u32) -> Option<Self> {
        self.0.checked_add(u64::from(count)).map(Self)
    }

    #[inline]
    fn number(self) -> u64 {
        self.0
    }

    #[inline]
    fn parts(self) -> (MapId, u64) {
        (0, self.0)
    }

    #[inline]
    fn page(self, numbers: u64) -> Self {
        Self(self.0 - self.0 % numbers)
    }
}

/// A sub-block of a map.
impl Number for (MapId, u64) {
    #[inline]
    fn plus(self, count: u32) -> Option<Self> {
        Some((self.0, self.1.checked_add(u64::from(count))?))
    }

    #[inline]
    fn number(self) -> u64 {
        self.1
    }

    #[inline]
    fn parts(self) -> (MapId, u64) {
        self
    }

    #[inline]
    fn page(self, numbers: u64) -> Self {
        (self.0, self.1 - self.1 % numbers)
    }
}

/// As what an entry names a number: those that come are counted before those that go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    New,
    Old,
}

/// Entries that can be told apart: half of what 32 bits can name.
pub(crate) const ENTRIES_MAX: usize = 1 << 31;

/// An entry, and as what it names a number, in 32 bits: first by side, then by entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Naming(u32);

impl Naming {
    const OLD: u32 = 1 << 31;

    fn new(entry: u32, side: Side) -> Self {
        debug_assert!((entry as usize) < ENTRIES_MAX);
        Self(match side {
            Side::New => entry,
            Side::Old => entry | Self::OLD,
        })
    }

    fn entry(self) -> u32 {
        self.0 & !Self::OLD
    }

    fn side(self) -> Side {
        match self.0 & Self::OLD {
            0 => Side::New,
            _ => Side::Old,
        }
    }
}

/// A number that an entry names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occurrence<N> {
    number: N,
    change: u32,
    naming: Naming,
}

impl<N> Occurrence<N> {
    /// The index of the entry.
    pub(crate) fn entry(&self) -> u32 {
        self.naming.entry()
    }

    /// As what it names the number.
    pub(crate) fn side(&self) -> Side {
        self.naming.side()
    }
}

/// Numbers that follow each other, named in the same way by entries that do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<N> {
    pub(crate) first: N,
    naming: Naming,
    pub(crate) count: u32,
}

impl<N: Number> Run<N> {
    /// The index of the first one's entry.
    pub(crate) fn entry(&self) -> u32 {
        self.naming.entry()
    }

    /// As what entries name the numbers.
    pub(crate) fn side(&self) -> Side {
        self.naming.side()
    }

    /// Each number with its entry.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (N, u32)> + '_ {
        let entry = self.entry();
        (0..self.count).filter_map(move |at| Some((self.first.plus(at)?, entry + at)))
    }

    /// The last number.
    fn last(&self) -> N {
        self.first.plus(self.count - 1).unwrap_or(self.first)
    }

    /// Whether a number is the next one, named by the next entry.
    fn goes_on_with(&self, number: N, naming: Naming) -> bool {
        let Self { first, count, .. } = *self;
        self.naming.0 + count == naming.0 && first.plus(count) == Some(number)
    }

    /// Its occurrences, with the changes that they belong to.
    fn occurrences<'a>(&'a self, changes: &'a [u32]) -> impl Iterator<Item = Occurrence<N>> + 'a {
        let changes = &changes[self.entry() as usize..][..self.count as usize];
        (0..self.count).zip(changes).filter_map(|(at, change)| {
            Some(Occurrence {
                number: self.first.plus(at)?,
                change: *change,
                naming: Naming(self.naming.0 + at),
            })
        })
    }
}

/// How numbers are named.
pub(crate) enum Named<'a, N> {
    /// Each of these once, by these entries and no others. Nobody asks when it was.
    Alone(&'a Run<N>),
    /// This number, by runs that overlap there.
    Together(N, &'a [Occurrence<N>]),
}

/// Numbers, in the order in which they were named.
#[derive(Clone, Debug)]
pub(crate) struct Runs<N> {
    all: Vec<Run<N>>,
    /// The last ones of new and of old numbers.
    last: [usize; 2],
}

impl<N> Default for Runs<N> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            last: [0; 2],
        }
    }
}

impl<N: Number> Runs<N> {
    /// One number more. The entry is in memory: its index is below [`ENTRIES_MAX`].
    pub(crate) fn push(&mut self, number: N, entry: u32, side: Side) {
        let naming = Naming::new(entry, side);
        let last = &mut self.last[side as usize];
        if let Some(run) = self.all.get_mut(*last)
            && run.goes_on_with(number, naming)
        {
            run.count += 1;
            return;
        }
        *last = self.all.len();
        self.all.push(Run {
            first: number,
            naming,
            count: 1,
        });
    }

    /// How many runs there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Gives all numbers; they rise. Where runs overlap, the occurrences of a number are in the order of the changes
    /// that entries belong to (`changes` says which, for each entry); within a change, what is new comes first.
    pub(crate) fn by_number<E>(
        mut self,
        changes: &[u32],
        mut each: impl FnMut(Named<'_, N>) -> Result<(), E>,
    ) -> Result<(), E> {
        radsort::sort_by_key(&mut self.all, |run| run.first.parts());
        let mut occurrences = Vec::new();
        let mut rest = &self.all[..];
        while let Some(first) = rest.first() {
            let mut last = first.last();
            let mut count = 1;
            while let Some(next) = rest.get(count).filter(|next| next.first <= last) {
                last = last.max(next.last());
                count += 1;
            }
            let (together, later) = rest.split_at(count);
            rest = later;
            if let [alone] = together {
                each(Named::Alone(alone))?;
                continue;
            }
            occurrences.clear();
            for run in together {
                occurrences.extend(run.occurrences(changes));
            }
            occurrences.sort_unstable_by_key(|occurrence| {
                (occurrence.number, occurrence.change, occurrence.naming)
            });
            for of_one in occurrences.chunk_by(|a, b| a.number == b.number) {
                each(Named::Together(of_one[0].number, of_one))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Of each number, in the order in which they count: change, whether it is old, entry.
    type Expected = BTreeMap<u64, Vec<(u32, bool, usize)>>;

    fn seen(runs: Runs<Pba>, changes: &[u32]) -> Expected {
        let mut seen = Expected::new();
        let mut last = None;
        let mut add = |number: Pba, of_one: Vec<(u32, Side)>| {
            assert!(last < Some(number), "numbers do not rise");
            last = Some(number);
            let of_one = of_one.into_iter().map(|(entry, side)| {
                let entry = entry as usize;
                (changes[entry], side == Side::Old, entry)
            });
            seen.insert(number.0, of_one.collect());
        };
        let done = runs.by_number::<()>(changes, |named| {
            match named {
                Named::Alone(run) => run
                    .numbers()
                    .for_each(|(number, entry)| add(number, vec![(entry, run.side())])),
                Named::Together(number, occurrences) => {
                    let of_one = occurrences.iter().map(|occurrence| {
                        assert_eq!(occurrence.number, number, "another's occurrence");
                        (occurrence.entry(), occurrence.side())
                    });
                    add(number, of_one.collect());
                }
            }
            Ok(())
        });
        assert!(done.is_ok());
        seen
    }

    proptest! {
        #[test]
        fn every_occurrence_comes_once_by_its_number_and_then_by_its_time(
            writes in prop::collection::vec((0..40_u64, 0..40_u64, 1..9_u32), 0..40),
        ) {
            let mut runs = Runs::default();
            let (mut changes, mut expected) = (Vec::new(), Expected::new());
            for (change, (new, old, count)) in (0..).zip(writes) {
                let first = changes.len() as u32;
                changes.extend((0..count).map(|_| change));
                for (side, number) in [(Side::New, new), (Side::Old, old)] {
                    for at in 0..count {
                        let (number, entry) = (number + u64::from(at), first + at);
                        runs.push(Pba(number), entry, side);
                        let occurrence = (change, side == Side::Old, entry as usize);
                        expected.entry(number).or_default().push(occurrence);
                    }
                }
            }
            prop_assert_eq!(seen(runs, &changes), expected);
        }
    }

    #[test]
    fn numbers_at_the_end_of_all_numbers_do_not_wrap() {
        let mut runs = Runs::default();
        for (entry, number) in (0..).zip([u64::MAX - 1, u64::MAX, 0, 1]) {
            runs.push(Pba(number), entry, Side::New);
        }
        let seen = seen(runs, &[0; 4]);
        assert!(seen.into_keys().eq([0, 1, u64::MAX - 1, u64::MAX]));
    }
}
