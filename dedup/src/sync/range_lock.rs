//! Locks on ranges of a volume's sub-blocks: shared for reads, exclusive for changes.
//!
//! Guarantees: two guards that overlap are both shared; waiters are served in the order they came
//! where they conflict (nobody starves), and a waiter that is dropped leaves no trace. A guard is
//! `'static`, so it can travel with a change into a batch.
//!
//! Most commands conflict with no other. A count of ranges per region of the volume shows that, without
//! a look at who holds what.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::sync::wait::lock;

/// Sub-blocks of a region: 128 KiB.
const REGION: u64 = 32;
/// Counters; regions that are this far apart share one.
const COUNTERS: usize = 1024;
/// Ranges over more regions are counted as wide instead.
const REGIONS_MAX: u64 = 64;

/// A range that a task asks for: from, up to, exclusively.
pub(crate) type Wanted<'a> = (&'a Arc<RangeLock>, u64, u64, bool);

/// The lock of one volume.
#[derive(Default)]
pub(crate) struct RangeLock {
    inner: Mutex<Inner>,
}

struct Inner {
    next_id: u64,
    /// Holders and waiters, in any order; `free` are the unused indexes.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Ranges that touch a region, by region.
    counters: Box<[u32; COUNTERS]>,
    wide: u32,
    exclusive: u32,
    waiting: u32,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            next_id: 0,
            entries: Vec::new(),
            free: Vec::new(),
            counters: Box::new([0; COUNTERS]),
            wide: 0,
            exclusive: 0,
            waiting: 0,
        }
    }
}

struct Entry {
    /// The earlier request has the smaller one.
    id: u64,
    start: u64,
    end: u64,
    exclusive: bool,
    granted: bool,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }

    /// The counters of its regions; `None` for a wide one.
    fn counters(&self) -> Option<impl Iterator<Item = usize> + use<>> {
        let first = self.start / REGION;
        let end = self.end.div_ceil(REGION);
        let regions = end.saturating_sub(first);
        (regions <= REGIONS_MAX)
            .then(|| (first..first + regions).map(|region| region as usize % COUNTERS))
    }
}

impl Inner {
    /// Whether an entry that came earlier stands in the way.
    fn is_blocked(&self, entry: &Entry) -> bool {
        self.entries
            .iter()
            .flatten()
            .any(|other| other.id < entry.id && other.conflicts(entry))
    }

    /// As [`is_blocked`](Self::is_blocked) for a new entry, mostly without looking at the others.
    fn is_new_blocked(&self, entry: &Entry) -> bool {
        if !entry.exclusive && self.exclusive == 0 {
            return false;
        }
        self.has_neighbours(entry) && self.is_blocked(entry)
    }

    /// Whether others may be in the same regions.
    fn has_neighbours(&self, entry: &Entry) -> bool {
        match entry.counters() {
            Some(mut counters) => self.wide > 0 || counters.any(|at| self.counters[at] > 0),
            None => self.entries.len() > self.free.len(),
        }
    }

    fn insert(&mut self, entry: Entry) -> u32 {
        match entry.counters() {
            Some(counters) => counters.for_each(|at| self.counters[at] += 1),
            None => self.wide += 1,
        }
        self.exclusive += u32::from(entry.exclusive);
        self.waiting += u32::from(!entry.granted);
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(entry);
                index
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        }
    }

    fn remove(&mut self, index: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        match entry.counters() {
            Some(counters) => counters.for_each(|at| self.counters[at] -= 1),
            None => self.wide -= 1,
        }
        self.exclusive -= u32::from(entry.exclusive);
        self.waiting -= u32::from(!entry.granted);
        Some(entry)
    }
}

impl RangeLock {
    /// Waits for shared access to sub-blocks `start..end`.
    pub(crate) fn shared(self: &Arc<Self>, start: u64, end: u64) -> Acquire {
        self.acquire(start, end, false)
    }

    /// Waits for exclusive access to sub-blocks `start..end`.
    pub(crate) fn exclusive(self: &Arc<Self>, start: u64, end: u64) -> Acquire {
        self.acquire(start, end, true)
    }

    /// The place in the queue is taken here, not at the first poll: order of calls is order of grants.
    fn acquire(self: &Arc<Self>, start: u64, end: u64, exclusive: bool) -> Acquire {
        self.enter(&mut lock(&self.inner), start, end, exclusive)
    }

    /// Takes a place in the queues of two ranges at one moment, so that nobody who holds one of two such
    /// ranges ever waits for somebody behind it. Of the same lock, the ranges do not conflict.
    pub(crate) fn both([first, second]: [Wanted<'_>; 2]) -> [Acquire; 2] {
        let enter = |inner: &mut Inner, (lock, start, end, exclusive): Wanted<'_>| {
            lock.enter(inner, start, end, exclusive)
        };
        if Arc::ptr_eq(first.0, second.0) {
            let mut inner = lock(&first.0.inner);
            return [enter(&mut inner, first), enter(&mut inner, second)];
        }
        // Always in the same order.
        if Arc::as_ptr(first.0) > Arc::as_ptr(second.0) {
            let [second, first] = Self::both([second, first]);
            return [first, second];
        }
        let (mut inner, mut other) = (lock(&first.0.inner), lock(&second.0.inner));
        [enter(&mut inner, first), enter(&mut other, second)]
    }

    /// As [`both`](Self::both), of the whole of any number of locks, each named once, exclusively. The places are in the
    /// order of the locks.
    pub(crate) fn all(locks: &[&Arc<Self>]) -> Vec<Acquire> {
        let mut order: Vec<usize> = (0..locks.len()).collect();
        order.sort_unstable_by_key(|at| Arc::as_ptr(locks[*at]));
        // Nobody takes two of them the other way round.
        let held = order.iter().map(|at| (*at, lock(&locks[*at].inner)));
        let mut held: Vec<_> = held.collect();
        held.sort_unstable_by_key(|(at, _)| *at);
        let places = held.iter_mut().zip(locks);
        places
            .map(|((_, inner), lock)| lock.enter(inner, 0, u64::MAX, true))
            .collect()
    }

    fn enter(
        self: &Arc<Self>,
        inner: &mut Inner,
        start: u64,
        end: u64,
        exclusive: bool,
    ) -> Acquire {
        let id = inner.next_id;
        inner.next_id += 1;
        let mut entry = Entry {
            id,
            start,
            end,
            exclusive,
            granted: false,
            waker: None,
        };
        entry.granted = !inner.is_new_blocked(&entry);
        let granted = entry.granted;
        let index = inner.insert(entry);
        Acquire {
            guard: Some(RangeGuard {
                lock: self.clone(),
                index,
            }),
            granted,
        }
    }

    /// Whether anybody holds a part of `start..end`, or waits for it. Mostly a look at counters.
    pub(crate) fn is_touched(&self, start: u64, end: u64) -> bool {
        let inner = lock(&self.inner);
        let asked = Entry {
            id: inner.next_id,
            start,
            end,
            exclusive: true,
            granted: false,
            waker: None,
        };
        inner.has_neighbours(&asked) && inner.is_blocked(&asked)
    }

    fn release(&self, index: u32) {
        let mut wake = Vec::new();
        {
            let mut inner = lock(&self.inner);
            let Some(gone) = inner.remove(index) else {
                return;
            };
            if inner.waiting == 0 {
                return;
            }
            // Only requests that conflict with the one that left can have waited for it.
            let grantable: Vec<usize> = (0..inner.entries.len())
                .filter(|at| match &inner.entries[*at] {
                    Some(entry) => {
                        !entry.granted && entry.conflicts(&gone) && !inner.is_blocked(entry)
                    }
                    None => false,
                })
                .collect();
            for at in grantable {
                inner.waiting -= 1;
                if let Some(entry) = &mut inner.entries[at] {
                    entry.granted = true;
                    wake.extend(entry.waker.take());
                }
            }
        }
        for waker in wake {
            waker.wake();
        }
    }
}

/// The range is locked as long as this lives.
pub(crate) struct RangeGuard {
    lock: Arc<RangeLock>,
    index: u32,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.lock.release(self.index);
    }
}

/// A place in the queue; becomes the guard.
pub(crate) struct Acquire {
    guard: Option<RangeGuard>,
    granted: bool,
}

impl Future for Acquire {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard> {
        let Some(guard) = self.guard.take() else {
            return Poll::Pending; // polled after it was ready
        };
        if !self.granted {
            let mut inner = lock(&guard.lock.inner);
            if let Some(Some(entry)) = inner.entries.get_mut(guard.index as usize)
                && !entry.granted
            {
                entry.waker = Some(cx.waker().clone());
                drop(inner);
                self.guard = Some(guard);
                return Poll::Pending;
            }
        }
        Poll::Ready(guard)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    impl RangeLock {
        /// Holders and waiters.
        fn held(&self) -> usize {
            let inner = lock(&self.inner);
            inner.entries.iter().flatten().count()
        }
    }

    #[test]
    fn readers_share_a_range_and_a_writer_waits_for_them() {
        let lock = Arc::new(RangeLock::default());
        let a = lock.shared(0, 10).now_or_never().unwrap();
        let b = lock.shared(5, 15).now_or_never().unwrap();
        let mut writer = lock.exclusive(9, 12);
        assert!((&mut writer).now_or_never().is_none());
        drop(a);
        assert!((&mut writer).now_or_never().is_none());
        drop(b);
        assert!((&mut writer).now_or_never().is_some());
    }

    #[test]
    fn a_waiting_writer_is_not_overtaken_by_later_readers() {
        let lock = Arc::new(RangeLock::default());
        let reader = lock.shared(0, 4).now_or_never().unwrap();
        let mut writer = lock.exclusive(0, 4);
        let mut late = lock.shared(0, 4);
        assert!((&mut late).now_or_never().is_none());
        drop(reader);
        assert!((&mut late).now_or_never().is_none());
        let writer = (&mut writer).now_or_never().unwrap();
        assert!((&mut late).now_or_never().is_none());
        drop(writer);
        assert!((&mut late).now_or_never().is_some());
    }

    #[test]
    fn a_waiter_that_gives_up_lets_the_next_one_in() {
        let lock = Arc::new(RangeLock::default());
        let reader = lock.shared(0, 4).now_or_never().unwrap();
        let writer = lock.exclusive(0, 4);
        let mut late = lock.shared(0, 4);
        assert!((&mut late).now_or_never().is_none());
        drop(writer);
        assert!((&mut late).now_or_never().is_some());
        drop(reader);
        assert!(lock.held() <= 1);
    }

    #[test]
    fn copies_in_opposite_directions_and_who_wants_all_never_wait_in_a_circle() {
        let (a, b) = (
            Arc::new(RangeLock::default()),
            Arc::new(RangeLock::default()),
        );
        let forth = RangeLock::both([(&a, 0, 8, false), (&b, 0, 8, true)]);
        let mut all = a.exclusive(0, 1000);
        let back = RangeLock::both([(&b, 4, 12, false), (&a, 4, 12, true)]);
        let within = RangeLock::both([(&a, 100, 108, true), (&a, 20, 28, false)]);
        // The first request goes first, whole.
        let forth = forth.map(|one| one.now_or_never().expect("nobody was there"));
        let waits = back.map(|mut one| {
            assert!((&mut one).now_or_never().is_none());
            one
        });
        drop(forth);
        let all = (&mut all).now_or_never().expect("it came second");
        let [first, second] = waits;
        let _first = first.now_or_never().expect("nobody has that one");
        drop(all);
        let back = second.now_or_never().expect("it came third");
        let _within = within.map(|one| one.now_or_never().expect("nobody is near"));
        drop(back);
    }

    proptest! {
        #[test]
        fn overlapping_guards_are_never_held_with_a_writer_among_them(
            scale in prop_oneof![Just(1u64), Just(20), Just(700)],
            steps in proptest::collection::vec((0u64..20, 1u64..8, any::<bool>(), any::<u8>()), 1..80)
        ) {
            let lock = Arc::new(RangeLock::default());
            let mut waiting: Vec<(u64, u64, bool, Acquire)> = Vec::new();
            let mut held: Vec<(u64, u64, bool, RangeGuard)> = Vec::new();
            for (start, len, exclusive, pick) in steps {
                let (start, len) = (start * scale, len * scale);
                let acquire = if exclusive {
                    lock.exclusive(start, start + len)
                } else {
                    lock.shared(start, start + len)
                };
                waiting.push((start, start + len, exclusive, acquire));
                if pick % 3 == 0 && !held.is_empty() {
                    held.remove(pick as usize % held.len());
                }
                let mut still = Vec::new();
                for (start, end, exclusive, mut acquire) in waiting {
                    match (&mut acquire).now_or_never() {
                        Some(guard) => held.push((start, end, exclusive, guard)),
                        None => still.push((start, end, exclusive, acquire)),
                    }
                }
                waiting = still;
                for (i, a) in held.iter().enumerate() {
                    for b in &held[i + 1..] {
                        prop_assert!(!(a.2 || b.2) || a.0 >= b.1 || b.0 >= a.1);
                    }
                }
            }
            // Everyone gets in at last.
            while !waiting.is_empty() {
                prop_assert!(!held.is_empty());
                held.remove(0);
                let mut still = Vec::new();
                for (start, end, exclusive, mut acquire) in waiting {
                    match (&mut acquire).now_or_never() {
                        Some(guard) => held.push((start, end, exclusive, guard)),
                        None => still.push((start, end, exclusive, acquire)),
                    }
                }
                waiting = still;
            }
            held.clear();
            prop_assert_eq!(lock.held(), 0);
            let inner = lock.inner.lock().unwrap();
            prop_assert!(inner.counters.iter().all(|count| *count == 0));
            prop_assert_eq!((inner.wide, inner.exclusive, inner.waiting), (0, 0, 0));
        }
    }
}
