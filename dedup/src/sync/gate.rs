//! A gate through which those pass who use something that is about to change.
//!
//! Guarantee: [`Gate::drain`] returns when all who entered before it have left. Those who enter later are not waited for, so
//! what a change did before the drain is what they see.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::sync::wait::pause;

/// Counters side by side, so that threads do not share a cache line: more than machines have cores that reactors use, mostly.
const COUNTERS: usize = 32;

/// How often a drain looks whether all have left.
const LOOK: Duration = Duration::from_millis(1);

/// Those inside who entered by one counter: before the last change of sides, and after it, in turn.
#[derive(Default)]
#[repr(align(128))]
struct Counter([AtomicU64; 2]);

/// See the module.
pub(crate) struct Gate {
    counters: Box<[Counter]>,
    changes: AtomicUsize,
}

/// Where somebody entered: to be given to [`Gate::leave`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    counter: usize,
    side: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            counters: (0..COUNTERS).map(|_| Counter::default()).collect(),
            changes: AtomicUsize::new(0),
        }
    }
}

impl Gate {
    /// Somebody is about to look at what may change.
    #[inline]
    pub(crate) fn enter(&self) -> Entry {
        let counter = counter();
        loop {
            let side = self.changes.load(Ordering::SeqCst) % 2;
            let entry = Entry { counter, side };
            self.counters[counter].0[side].fetch_add(1, Ordering::SeqCst);
            if self.changes.load(Ordering::SeqCst) % 2 == side {
                return entry;
            }
            self.leave(entry);
        }
    }

    /// Who entered uses nothing any more of what they saw. They may be on another thread now.
    #[inline]
    pub(crate) fn leave(&self, Entry { counter, side }: Entry) {
        self.counters[counter].0[side].fetch_sub(1, Ordering::SeqCst);
    }

    /// Enters, and leaves when the answer is dropped.
    #[inline]
    pub(crate) fn pass(&self) -> Pass<'_> {
        Pass {
            gate: self,
            entry: self.enter(),
        }
    }

    /// Returns when all have left that entered before this. One at a time.
    pub(crate) async fn drain(&self) {
        let side = self.changes.fetch_add(1, Ordering::SeqCst) % 2;
        let is_inside = |counter: &Counter| counter.0[side].load(Ordering::SeqCst) > 0;
        while self.counters.iter().any(is_inside) {
            pause(LOOK).await;
        }
    }
}

/// Somebody is inside as long as this lives.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    entry: Entry,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.entry);
    }
}

/// The counter of this thread.
#[inline]
fn counter() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static COUNTER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    COUNTER.with(|counter| {
        if counter.get() == usize::MAX {
            counter.set(NEXT.fetch_add(1, Ordering::Relaxed) % COUNTERS);
        }
        counter.get()
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_drain_waits_for_those_inside_and_for_nobody_who_comes_later() {
        let gate = Gate::default();
        let early = gate.pass();
        let mut drain = Box::pin(gate.drain());
        assert!(drain.as_mut().now_or_never().is_none());
        let late = gate.pass();
        assert!(drain.as_mut().now_or_never().is_none());
        drop(early);
        assert!(drain.as_mut().now_or_never().is_some());
        // The next one waits for them too, whichever thread they leave from.
        let entry = gate.enter();
        drop(late);
        let mut drain = Box::pin(gate.drain());
        assert!(drain.as_mut().now_or_never().is_none());
        std::thread::scope(|scope| scope.spawn(|| gate.leave(entry)).join()).expect("it left");
        assert!(drain.as_mut().now_or_never().is_some());
    }
}
