//! What a queue holds of the memory for data, and how much it may.
//!
//! Guarantee: a host that does not take its data, or does not send what it was asked for, holds up
//! itself alone: its queue gets no further command while it holds its share of what is free (dynamic
//! thresholds: Choudhury and Hahne 1998). The same holds for all queues of a host together, on each reactor,
//! so that many queues give nobody the memory of the others. One command of a queue may always be under way.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

/// A queue may always hold this much of the pool: 32 commands with 4 KiB.
const HELD_BYTES_FREE: usize = 128 << 10;

/// The usual share of a queue: one part in so many of what is free.
pub(crate) const QUEUE_SHARE: usize = 16;

/// The usual share of a host.
pub(crate) const HOST_SHARE: usize = 2;

/// What the queues of a listener hold together.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Bytes of each host, by its NQN.
    hosts: RefCell<HashMap<Box<str>, Weak<Cell<usize>>>>,
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
    /// And its host's queues together one part in so many.
    host_portion: usize,
    bytes: Cell<usize>,
    /// What its host's queues hold together, once it is known whose it is.
    host: RefCell<Option<Rc<Cell<usize>>>>,
    is_held_back: Cell<bool>,
    all: Rc<Held>,
}

impl Share {
    /// A queue that holds nothing yet.
    pub(crate) fn new(portion: usize, host_portion: usize, all: Rc<Held>) -> Self {
        Self {
            portion: portion.max(1),
            host_portion: host_portion.max(1),
            bytes: Cell::new(0),
            host: RefCell::new(None),
            is_held_back: Cell::new(false),
            all,
        }
    }

    /// It is a queue of that host, for good.
    pub(crate) fn belongs_to(&self, nqn: &str) {
        let mut hosts = self.all.hosts.borrow_mut();
        let known = hosts.get(nqn).and_then(Weak::upgrade);
        let host = known.unwrap_or_else(|| {
            // Those that are gone leave their names.
            hosts.retain(|_, host| host.strong_count() > 0);
            let host = Rc::default();
            hosts.insert(nqn.into(), Rc::downgrade(&host));
            host
        });
        host.set(host.get() + self.bytes());
        let before = self.host.replace(Some(host));
        if let Some(before) = before {
            before.set(before.get().saturating_sub(self.bytes()));
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
        let changed = |sum: &Cell<usize>| sum.set((sum.get() + bytes).saturating_sub(before));
        changed(&self.all.bytes);
        if let Some(host) = &*self.host.borrow() {
            changed(host);
        }
    }

    /// Bytes that the queues of its host hold.
    fn host_bytes(&self) -> usize {
        let host = self.host.borrow();
        host.as_ref().map_or(self.bytes(), |host| host.get())
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
        let is_within_shares = || {
            let free_bytes = free_bytes();
            let host_then = self.host_bytes() + beside + wanted;
            then <= free_bytes / self.portion && host_then <= free_bytes / self.host_portion
        };
        let may = held == 0 || then <= HELD_BYTES_FREE || is_within_shares();
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
        let share = Share::new(4, 1, all.clone());
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
        let (one, other) = (Share::new(4, 1, all.clone()), Share::new(4, 1, all.clone()));
        one.take(100);
        other.take(10);
        assert_eq!(all.bytes.get(), 110);
        drop(one);
        assert_eq!(all.bytes.get(), 10);
    }

    #[test]
    fn the_queues_of_a_host_share_its_part_and_leave_other_hosts_theirs() {
        let all = Rc::new(Held::default());
        let queue_of = |nqn| {
            let share = Share::new(4, 2, all.clone());
            share.belongs_to(nqn);
            share
        };
        let free = || 16 << 20;
        let greedy: Vec<Share> = (0..4)
            .map(|_| queue_of("nqn.2014-08.org.example:one"))
            .collect();
        let other = queue_of("nqn.2014-08.org.example:other");
        greedy.iter().for_each(|queue| queue.take(1 << 20));
        other.take(1 << 20);
        assert!(greedy[0].may_take(1 << 20, 0, free));
        greedy.iter().for_each(|queue| queue.take(1 << 20));
        assert!(
            !greedy[0].may_take(1 << 20, 0, free),
            "eight of sixteen are its part"
        );
        assert!(
            other.may_take(1 << 20, 0, free),
            "another host's part is its own"
        );
        let fresh = queue_of("nqn.2014-08.org.example:one");
        assert!(fresh.may_take(1 << 20, 0, free), "one command always may");
        drop(greedy);
        fresh.take(1 << 20);
        assert!(
            fresh.may_take(1 << 20, 0, free),
            "what is gone holds nothing"
        );
        drop((fresh, other));
        drop(queue_of("nqn.2014-08.org.example:third"));
        assert_eq!(
            all.hosts.borrow().len(),
            1,
            "no host is remembered for ever"
        );
    }
}
