//! Copysets: sets of drives that hold all copies of some data (Cidon et al., "Copysets: Reducing the Frequency of Data Loss in
//! Cloud Storage", USENIX ATC 2013). Data are lost when all drives of one set fail before one of them is rebuilt, so their
//! number and sizes say how often that happens.

use meta::COPIES_MAX;

/// How many copysets a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copysets {
    /// Those of one drive, of two, of three.
    pub of_size: [u64; COPIES_MAX],
}

impl Copysets {
    /// The copies that some data have at least; `None` if there is no set.
    #[must_use]
    pub fn copies_min(&self) -> Option<usize> {
        let sets = self.of_size.iter();
        sets.zip(1..).find(|(sets, _)| **sets > 0).map(|(_, of)| of)
    }
}

/// Counts sets of drives, each once: a bit for each that can be, 2 MiB for 256 drives.
pub(super) struct Counter {
    drives: usize,
    seen: Vec<u64>,
    counted: Copysets,
}

impl Counter {
    /// For drives with indexes below `drives`.
    pub(super) fn new(drives: usize) -> Self {
        let sets = drives.pow(COPIES_MAX as u32);
        Self {
            drives,
            seen: vec![0; sets.div_ceil(64)],
            counted: Copysets::default(),
        }
    }

    /// Some data have copies on these drives, in any order. An empty set is none, and one with an unknown drive neither.
    pub(super) fn add(&mut self, set: &mut Vec<u16>) {
        set.sort_unstable();
        set.dedup();
        let (Some(last), Some(counted)) = (
            set.last().copied(),
            set.len()
                .checked_sub(1)
                .and_then(|at| self.counted.of_size.get_mut(at)),
        ) else {
            return;
        };
        // What a set lacks in drives is its last one again: no other set has that number.
        let all = set.iter().copied().chain(std::iter::repeat(last));
        let number = all
            .take(COPIES_MAX)
            .fold(0, |number, drive| number * self.drives + usize::from(drive));
        let bit = 1 << (number % 64);
        if usize::from(last) < self.drives
            && let Some(word) = self.seen.get_mut(number / 64)
            && *word & bit == 0
        {
            *word |= bit;
            *counted += 1;
        }
    }

    pub(super) fn counted(self) -> Copysets {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_counts_once_whatever_the_order_of_its_drives() {
        let mut counter = Counter::new(4);
        for set in [
            &[0, 1][..],
            &[1, 0],
            &[0],
            &[1],
            &[0, 0, 1],
            &[0, 1, 3],
            &[3, 1, 0],
            &[0, 1, 2],
            &[1, 3],
            &[],
        ] {
            counter.add(&mut set.to_vec());
        }
        let counted = counter.counted();
        assert_eq!(counted.of_size, [2, 2, 2]);
        assert_eq!(counted.copies_min(), Some(1));
    }

    #[test]
    fn no_two_sets_have_one_number_and_the_last_drive_has_its_own() {
        let mut counter = Counter::new(256);
        let last = [0, 1, 127, 128, 254, 255];
        for a in last {
            counter.add(&mut vec![a]);
            for b in last.into_iter().filter(|b| a < *b) {
                counter.add(&mut vec![b, a]);
                for c in last.into_iter().filter(|c| b < *c) {
                    counter.add(&mut vec![c, a, b]);
                }
            }
        }
        let counted = counter.counted();
        assert_eq!(counted.of_size, [6, 15, 20]);
        let mut none = Counter::new(2);
        none.add(&mut vec![0, 2]);
        assert_eq!(none.counted().copies_min(), None);
    }
}
