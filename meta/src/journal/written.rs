//! How far the ring has no hole: writers that end in any order add what they wrote.
//!
//! Mostly the one that ends is the oldest, and then nothing is locked: a number is moved on. Who ends before an older one
//! leaves its range here, and the older one takes it along.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Records that are written.
pub(super) struct Written {
    /// All up to this one.
    upto: AtomicU64,
    /// Behind one that is not: the first record of each range, and the number behind its last.
    ahead: Mutex<BTreeMap<u64, u64>>,
    /// How many ranges those are. It changes before `upto` is looked at, and is looked at after `upto` changed: so either who
    /// leaves a range sees that it is next, or who moves on sees the range.
    ranges_ahead: AtomicUsize,
}

impl Written {
    /// All records up to this one are.
    pub(super) fn new(upto: u64) -> Self {
        Self {
            upto: AtomicU64::new(upto),
            ahead: Mutex::default(),
            ranges_ahead: AtomicUsize::new(0),
        }
    }

    /// Every record up to this one is written.
    pub(super) fn upto(&self) -> u64 {
        self.upto.load(Ordering::SeqCst)
    }

    /// The records from `first` to before `end`, at least one, are written. Nobody adds them again. Returns
    /// [`Self::upto`], which others may have moved.
    pub(super) fn add(&self, first: u64, end: u64) -> u64 {
        debug_assert!(0 < first && first < end);
        let moved =
            self.upto
                .compare_exchange(first - 1, end - 1, Ordering::SeqCst, Ordering::SeqCst);
        if moved.is_err() {
            let mut ahead = self.ahead();
            ahead.insert(first, end);
            self.ranges_ahead.store(ahead.len(), Ordering::SeqCst);
            self.take_along(ahead);
        } else if self.ranges_ahead.load(Ordering::SeqCst) > 0 {
            self.take_along(self.ahead());
        }
        self.upto()
    }

    /// Moves on over ranges that are next. Nobody else moves on from where one of them is next: its writer could not.
    fn take_along(&self, mut ahead: MutexGuard<'_, BTreeMap<u64, u64>>) {
        while let Some(end) = ahead.remove(&(self.upto() + 1)) {
            self.upto.store(end - 1, Ordering::SeqCst);
        }
        self.ranges_ahead.store(ahead.len(), Ordering::SeqCst);
    }

    fn ahead(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // Nothing in here panics between two changes that belong together.
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Ranges of so many records each, from record 1 on.
    fn ranges(counts: &[u64]) -> Vec<(u64, u64)> {
        let mut first = 1;
        let range = |count: &u64| {
            let range = (first, first + count);
            first = range.1;
            range
        };
        counts.iter().map(range).collect()
    }

    proptest! {
        #[test]
        fn in_whatever_order_writers_end_all_before_the_first_hole_is_written(
            order in Just((0..30_usize).collect::<Vec<_>>()).prop_shuffle(),
            counts in prop::collection::vec(1..5_u64, 30),
        ) {
            let ranges = ranges(&counts);
            let written = Written::new(0);
            let mut is_added = [false; 30];
            for number in order {
                let (first, end) = ranges[number];
                is_added[number] = true;
                let hole = is_added.iter().position(|is_added| !is_added);
                let expected = hole.map_or(ranges[29].1 - 1, |hole| ranges[hole].0 - 1);
                prop_assert_eq!(written.add(first, end), expected);
                prop_assert_eq!(written.upto(), expected);
            }
            prop_assert!(written.ahead().is_empty());
        }
    }

    #[test]
    fn writers_that_end_at_the_same_time_leave_no_range_behind() {
        const WRITERS: usize = 4;
        let ranges = ranges(&[1; 4_000]);
        let written = Written::new(0);
        let begin = Barrier::new(WRITERS);
        // Each round ends where all are in.
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (ranges, written, begin) = (&ranges, &written, &begin);
                scope.spawn(move || {
                    for round in ranges.chunks(WRITERS) {
                        let (first, end) = round[writer];
                        begin.wait();
                        written.add(first, end);
                        begin.wait();
                        assert_eq!(written.upto(), round[WRITERS - 1].0);
                    }
                });
            }
        });
    }
}
