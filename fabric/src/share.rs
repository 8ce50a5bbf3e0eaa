//! What a queue holds of the memory for data, and how much it may.
//!
//! Guarantee: a host that does not take its data, or does not send what it was asked for, holds up
//! itself alone: its queue gets no further command while it holds its share of what is free (dynamic
//! thresholds: Choudhury and Hahne 1998). One command may always be under way.

use std::cell::Cell;
use std::rc::Rc;

/// A queue may always hold this much of the pool: 32 commands with 4 KiB.
const HELD_BYTES_FREE: usize = 128 << 10;

/// The usual share of a queue: one part in so many of what is free.
pub(crate) const QUEUE_SHARE: usize = 16;

/// What the queues of a listener hold together.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Bytes, now.
    pub(crate) bytes: Cell<usize>,
    /// How often a queue had to wait because it held its share.
    pub(crate) held_back: Cell<u64>,
}

/// A queue's share of the memory for data.
#[derive(Debug)]
pub(crate) struct Share {
    /// It may hold one part in so many of what is free.
    portion: usize,
    bytes: Cell<usize>,
    is_held_back: Cell<bool>,
    all: Rc<Held>,
}

impl Share {
    /// A queue that holds nothing yet.
    pub(crate) fn new(portion: usize, all: Rc<Held>) -> Self {
        Self {
            portion: portion.max(1),
            bytes: Cell::new(0),
            is_held_back: Cell::new(false),
            all,
        }
    }

    /// It holds so many bytes more.
    pub(crate) fn take(&self, bytes: usize) {
        self.set(self.bytes.get() + bytes);
    }

    /// It holds so many bytes less.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.set(self.bytes.get().saturating_sub(bytes));
    }

    fn set(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        let all = &self.all;
        all.bytes
            .set((all.bytes.get() + bytes).saturating_sub(before));
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Whether a command may take `wanted` bytes, when so many are free (asked for only if that
    /// matters) and the queue holds `beside` bytes that are counted elsewhere. If not, it is held back
    /// until [`look_again`](Self::look_again).
    pub(crate) fn may_take(
        &self,
        wanted: usize,
        beside: usize,
        free_bytes: impl FnOnce() -> usize,
    ) -> bool {
        let held = self.bytes() + beside;
        let then = held + wanted;
        let may = held == 0 || then <= HELD_BYTES_FREE || then <= free_bytes() / self.portion;
        if !may && !self.is_held_back.replace(true) {
            let held_back = &self.all.held_back;
            held_back.set(held_back.get().wrapping_add(1));
        }
        may
    }

    /// Whether the queue waits with a command because it holds its share.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_held_back.get()
    }

    /// Whether a command that was held back is to be looked at again, because the host took or sent
    /// something.
    pub(crate) fn look_again(&self) -> bool {
        self.is_held_back.take()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_holds_a_share_of_what_is_free_and_one_command_whatever_is_free() {
        let all = Rc::new(Held::default());
        let share = Share::new(4, all.clone());
        assert!(share.may_take(1 << 20, 0, || 0), "the first one always may");
        share.take(1 << 20);
        assert!(share.may_take(1 << 20, 0, || 8 << 20));
        assert!(!share.may_take(1 << 20, 0, || 4 << 20));
        assert!(!share.may_take(1 << 20, 0, || 4 << 20));
        assert_eq!(all.held_back.get(), 1, "it waits once");
        assert!(share.is_held_back() && share.look_again() && !share.look_again());
        share.give_back(1 << 20);
        assert!(share.may_take(1 << 20, 0, || 0));
        // Small commands do not wait for each other.
        share.take(4096);
        assert!(share.may_take(64 << 10, 0, || 0));
        assert!(!share.may_take(64 << 10, 128 << 10, || 0));
    }

    #[test]
    fn what_a_queue_held_does_not_count_when_it_is_gone() {
        let all = Rc::new(Held::default());
        let (one, other) = (Share::new(4, all.clone()), Share::new(4, all.clone()));
        one.take(100);
        other.take(10);
        assert_eq!(all.bytes.get(), 110);
        drop(one);
        assert_eq!(all.bytes.get(), 10);
    }
}
