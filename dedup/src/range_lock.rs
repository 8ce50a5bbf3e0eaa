//! Locks on ranges of a volume's sub-blocks: shared for reads, exclusive for changes.
//!
//! Guarantees: two guards that overlap are both shared; waiters are served in the order they came
//! where they conflict (nobody starves), and a waiter that is dropped leaves no trace. A guard is
//! `'static`, so it can travel with a change into the group commit.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::wait::lock;

/// The lock of one volume.
#[derive(Default)]
pub(crate) struct RangeLock {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next_id: u64,
    /// Holders and waiters in the order they came.
    entries: VecDeque<Entry>,
}

struct Entry {
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
        let mut inner = lock(&self.inner);
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
        #[cfg(test)]
        let broken = crate::ablation::is(crate::ablation::Broken::NoRangeLock);
        #[cfg(not(test))]
        let broken = false;
        entry.granted = broken
            || !inner
                .entries
                .iter()
                .any(|earlier| earlier.conflicts(&entry));
        inner.entries.push_back(entry);
        drop(inner);
        Acquire {
            guard: Some(RangeGuard {
                lock: self.clone(),
                id,
            }),
        }
    }

    fn release(&self, id: u64) {
        let mut wake = Vec::new();
        {
            let mut inner = lock(&self.inner);
            let Some(position) = inner.entries.iter().position(|entry| entry.id == id) else {
                return;
            };
            inner.entries.remove(position);
            // Only entries behind the one that left can have waited for it.
            for waiting in position..inner.entries.len() {
                let entry = &inner.entries[waiting];
                if entry.granted
                    || inner
                        .entries
                        .iter()
                        .take(waiting)
                        .any(|earlier| earlier.conflicts(entry))
                {
                    continue;
                }
                let entry = &mut inner.entries[waiting];
                entry.granted = true;
                wake.extend(entry.waker.take());
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
    id: u64,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.lock.release(self.id);
    }
}

/// A place in the queue; becomes the guard.
pub(crate) struct Acquire {
    guard: Option<RangeGuard>,
}

impl Future for Acquire {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard> {
        let Some(guard) = self.guard.take() else {
            return Poll::Pending; // polled after it was ready
        };
        {
            let mut inner = lock(&guard.lock.inner);
            if let Some(entry) = inner.entries.iter_mut().find(|entry| entry.id == guard.id)
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
        assert!(lock.inner.lock().unwrap().entries.len() <= 1);
    }

    proptest! {
        #[test]
        fn overlapping_guards_are_never_held_with_a_writer_among_them(
            steps in proptest::collection::vec((0u64..20, 1u64..8, any::<bool>(), any::<u8>()), 1..80)
        ) {
            let lock = Arc::new(RangeLock::default());
            let mut waiting: Vec<(u64, u64, bool, Acquire)> = Vec::new();
            let mut held: Vec<(u64, u64, bool, RangeGuard)> = Vec::new();
            for (start, len, exclusive, pick) in steps {
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
            prop_assert!(lock.inner.lock().unwrap().entries.is_empty());
        }
    }
}
