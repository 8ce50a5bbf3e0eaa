//! Reservation notifications of a controller: the Reservation Notification log page and the mask of feature 82h.
//!
//! Guarantees: pages are read in the order of the events; at most [`PAGES_MAX`] wait, and the count shows a host that
//! reads too late how many are missing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use nvme::reservation::{ReservationEvent, ReservationNotification};

use crate::lock::lock;

/// Pages that wait to be read.
const PAGES_MAX: usize = 128;

/// The notifications of one controller.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pages: VecDeque<(u64, ReservationEvent, u32)>,
    /// The number of the last page.
    count: u64,
    /// Feature 82h of the namespaces of which it was set.
    masks: BTreeMap<u32, u32>,
}

impl Notifications {
    /// Adds a page; false if the host masked the event.
    pub(crate) fn tell(&self, nsid: u32, event: ReservationEvent) -> bool {
        let mut state = lock(&self.state);
        let mask = state.masks.get(&nsid).copied().unwrap_or_default();
        if mask & event.mask_bit() != 0 {
            return false;
        }
        if state.pages.len() == PAGES_MAX {
            state.pages.pop_front();
        }
        state.count += 1;
        let page = (state.count, event, nsid);
        state.pages.push_back(page);
        true
    }

    /// The oldest page, which is gone then unless the host retains its event.
    pub(crate) fn read(&self, retain: bool) -> ReservationNotification {
        let mut state = lock(&self.state);
        let more = state.pages.len().saturating_sub(1);
        let Some(&(count, event, nsid)) = state.pages.front() else {
            return ReservationNotification::default();
        };
        if !retain {
            state.pages.pop_front();
        }
        ReservationNotification {
            count,
            event: Some((event, nsid)),
            more: u8::try_from(more).unwrap_or(u8::MAX),
        }
    }

    /// Feature 82h of a namespace.
    pub(crate) fn mask(&self, nsid: u32) -> u32 {
        let state = lock(&self.state);
        state.masks.get(&nsid).copied().unwrap_or_default()
    }

    /// Sets feature 82h of a namespace.
    pub(crate) fn set_mask(&self, nsid: u32, mask: u32) {
        lock(&self.state).masks.insert(nsid, mask);
    }

    /// A controller reset: nothing is left.
    pub(crate) fn reset(&self) {
        *lock(&self.state) = State::default();
    }
}

#[cfg(test)]
mod tests {
    use nvme::reservation::ReservationEvent::{RegistrationPreempted, ReservationReleased};

    use super::*;

    #[test]
    fn pages_are_read_in_order_and_say_what_follows() {
        let log = Notifications::default();
        assert_eq!(log.read(false), ReservationNotification::default());
        assert!(log.tell(1, RegistrationPreempted));
        assert!(log.tell(2, ReservationReleased));
        let first = log.read(true);
        assert_eq!(first.event, Some((RegistrationPreempted, 1)));
        assert_eq!((first.count, first.more), (1, 1));
        assert_eq!(log.read(false), first, "it was retained");
        let second = log.read(false);
        assert_eq!((second.count, second.more), (2, 0));
        assert_eq!(second.event, Some((ReservationReleased, 2)));
        assert_eq!(log.read(false), ReservationNotification::default());
    }

    #[test]
    fn what_is_masked_is_not_told_and_only_there() {
        let log = Notifications::default();
        log.set_mask(1, RegistrationPreempted.mask_bit());
        assert!(!log.tell(1, RegistrationPreempted));
        assert!(log.tell(1, ReservationReleased));
        assert!(log.tell(2, RegistrationPreempted));
        log.reset();
        assert_eq!(log.mask(1), 0);
        assert_eq!(log.read(false), ReservationNotification::default());
    }

    #[test]
    fn a_host_that_never_reads_costs_a_bounded_number_of_pages() {
        let log = Notifications::default();
        for _ in 0..PAGES_MAX + 10 {
            log.tell(1, ReservationReleased);
        }
        let oldest = log.read(false);
        assert_eq!(oldest.count, 11, "ten are missing");
        assert_eq!(usize::from(oldest.more), PAGES_MAX - 1);
    }
}
