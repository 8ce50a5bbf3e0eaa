//! Asynchronous events of one controller: pending events, waiting requests, and the events that the host asked for.
//!
//! Guarantees:
//! - An event of a kind is reported once, and again only after the host has read its log page. So the host is never
//!   flooded, and nothing is lost, because the page holds all changes since it was read.
//! - Events without a waiting request are kept (one for each kind).
//! - Memory is bounded: one bit per kind, and at most [`CHANGED_NAMESPACES_MAX`] changed namespaces.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use nvme::features::{AsyncEvent, AsyncEventConfig};
use nvme::log::LogPage;

use crate::lock::lock;

/// Entries of the Changed Namespace List log page (NVM Express base specification, log 04h).
pub(crate) const CHANGED_NAMESPACES_MAX: usize = 1024;

/// Asynchronous Event Request Limit, as a count (AERL is one less). As the Linux target has it.
pub(crate) const REQUESTS_MAX: usize = 4;

/// The kinds of events this target reports. Each is armed again by reading the log page it points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EventKind {
    /// The pool is nearly full: the SMART log's spare is below its threshold.
    SpareBelowThreshold,
    /// The pool lost data or takes no writes: the SMART log says which.
    Unreliable,
    /// A namespace was added, removed or changed its size.
    NamespaceAttributeChanged,
    /// The state of an ANA group changed on this controller's path.
    AnaChanged,
    /// A reset of another controller has ended, which was still under way when its command was answered.
    ControllerResetCompleted,
    /// The discovery log page changed.
    DiscoveryLogChanged,
    /// The reservation notification log has an entry.
    ReservationNotification,
}

impl EventKind {
    /// In the order in which they are reported when several are due.
    const ALL: [Self; 7] = [
        Self::SpareBelowThreshold,
        Self::Unreliable,
        Self::NamespaceAttributeChanged,
        Self::AnaChanged,
        Self::ControllerResetCompleted,
        Self::DiscoveryLogChanged,
        Self::ReservationNotification,
    ];

    /// The bits of Asynchronous Event Configuration (feature 0Bh) that ask for it: one of them is
    /// enough. `None`: the host cannot mask it there (reservation notifications have feature 82h).
    #[must_use]
    pub(crate) const fn wanted_by(self) -> Option<AsyncEventConfig> {
        Some(match self {
            // Bit n stands for bit n of the SMART log's critical warning.
            Self::SpareBelowThreshold => AsyncEventConfig::SMART_SPARE,
            Self::Unreliable => {
                AsyncEventConfig::SMART_UNRELIABLE.union(AsyncEventConfig::SMART_READ_ONLY)
            }
            Self::NamespaceAttributeChanged => AsyncEventConfig::NAMESPACE_ATTRIBUTE,
            Self::AnaChanged => AsyncEventConfig::ANA_CHANGE,
            Self::ControllerResetCompleted => AsyncEventConfig::CROSS_CONTROLLER_RESET,
            Self::DiscoveryLogChanged => AsyncEventConfig::DISCOVERY_CHANGE,
            Self::ReservationNotification => return None,
        })
    }

    /// What the completion says.
    #[must_use]
    pub(crate) const fn event(self) -> AsyncEvent {
        match self {
            Self::SpareBelowThreshold => AsyncEvent::SPARE_BELOW_THRESHOLD,
            Self::Unreliable => AsyncEvent::RELIABILITY,
            Self::NamespaceAttributeChanged => AsyncEvent::NAMESPACE_CHANGED,
            Self::AnaChanged => AsyncEvent::ANA_CHANGED,
            Self::ControllerResetCompleted => AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED,
            Self::DiscoveryLogChanged => AsyncEvent::DISCOVERY_CHANGED,
            Self::ReservationNotification => AsyncEvent::RESERVATION,
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// What happened to what one controller sees, and whether its host knows.
#[derive(Debug, Default)]
pub(crate) struct Events {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Feature 0Bh: the events that the host asked for.
    wanted: u32,
    pending: [bool; EventKind::ALL.len()],
    /// Reported, and the log page was not read since.
    masked: [bool; EventKind::ALL.len()],
    requests: usize,
    wakers: Vec<Waker>,
    changed: BTreeSet<u32>,
    too_many_changed: bool,
}

impl Events {
    /// Sets the events that the host asked for.
    pub(crate) fn set_wanted(&self, wanted: u32) {
        let mut state = lock(&self.state);
        state.wanted = wanted;
        state.wake();
    }

    /// The events that the host asked for.
    pub(crate) fn wanted(&self) -> u32 {
        lock(&self.state).wanted
    }

    /// A namespace was added, removed or resized.
    pub(crate) fn namespace_changed(&self, nsid: u32) {
        let mut state = lock(&self.state);
        if state.changed.len() < CHANGED_NAMESPACES_MAX || state.changed.contains(&nsid) {
            state.changed.insert(nsid);
        } else {
            state.too_many_changed = true;
        }
        state.raise(EventKind::NamespaceAttributeChanged);
    }

    /// The discovery log page changed.
    pub(crate) fn discovery_changed(&self) {
        self.raise(EventKind::DiscoveryLogChanged);
    }

    /// Reports an event. Its log page must show the change already.
    pub(crate) fn raise(&self, kind: EventKind) {
        lock(&self.state).raise(kind);
    }

    /// The host read that log page, and did not retain its event: the next change is reported again.
    /// Called before the page is made, so that no change falls between the two.
    pub(crate) fn log_read(&self, page: LogPage) {
        lock(&self.state).log_read(page);
    }

    /// The changed namespaces for log page 04h: `None` means more than fit. Unless `retain`, the list
    /// is cleared and the next change is reported again.
    pub(crate) fn read_changed_namespaces(&self, retain: bool) -> Option<Vec<u32>> {
        let mut state = lock(&self.state);
        let list = (!state.too_many_changed).then(|| state.changed.iter().copied().collect());
        if !retain {
            state.changed.clear();
            state.too_many_changed = false;
            state.log_read(LogPage::ChangedNamespaces);
        }
        list
    }

    /// Takes a place among the waiting requests; `None` when [`REQUESTS_MAX`] wait already.
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        let mut state = lock(&self.state);
        if state.requests >= REQUESTS_MAX {
            return None;
        }
        state.requests += 1;
        Some(Request { events: self })
    }
}

impl State {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn raise(&mut self, kind: EventKind) {
        self.pending[kind.index()] = true;
        self.wake();
    }

    fn log_read(&mut self, page: LogPage) {
        let of_page = |kind: &EventKind| kind.event().log_page == page.as_u8();
        for kind in EventKind::ALL.into_iter().filter(of_page) {
            self.pending[kind.index()] = false;
            self.masked[kind.index()] = false;
        }
    }

    fn is_wanted(&self, kind: EventKind) -> bool {
        let wanted_by = kind.wanted_by();
        wanted_by.is_none_or(|bits| self.wanted & bits.0 != 0)
    }

    fn take(&mut self) -> Option<EventKind> {
        let kind = EventKind::ALL.into_iter().find(|kind| {
            self.pending[kind.index()] && !self.masked[kind.index()] && self.is_wanted(*kind)
        })?;
        self.pending[kind.index()] = false;
        self.masked[kind.index()] = true;
        Some(kind)
    }
}

/// An Asynchronous Event Request that waits.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    events: &'a Events,
}

impl Request<'_> {
    /// The next event for this request.
    pub(crate) async fn event(&self) -> EventKind {
        poll_fn(|cx| {
            let mut state = lock(&self.events.state);
            if let Some(kind) = state.take() {
                return Poll::Ready(kind);
            }
            state.wakers.retain(|waker| !waker.will_wake(cx.waker()));
            // One waker per request; a request that was aborted leaves its own behind at most until
            // the next event.
            if state.wakers.len() >= REQUESTS_MAX {
                state.wake();
            }
            state.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.events.state);
        state.requests = state.requests.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const NAMESPACES: u32 = AsyncEventConfig::NAMESPACE_ATTRIBUTE.0;

    #[test]
    fn the_completion_names_the_event_and_its_log_page() {
        for (kind, completion) in [
            (EventKind::NamespaceAttributeChanged, 0x0004_0002),
            (EventKind::AnaChanged, 0x000c_0302),
            (EventKind::ControllerResetCompleted, 0x001e_f402),
            (EventKind::DiscoveryLogChanged, 0x0070_f002),
            (EventKind::SpareBelowThreshold, 0x0002_0201),
            (EventKind::Unreliable, 0x0002_0001),
            (EventKind::ReservationNotification, 0x0080_0006),
        ] {
            assert_eq!(kind.event().encode(), completion, "{kind:?}");
        }
    }

    #[test]
    fn an_event_comes_only_to_a_host_that_asked_for_it() {
        for kind in EventKind::ALL {
            let events = Events::default();
            events.raise(kind);
            let request = events.request().expect("room");
            let bits = kind.wanted_by().map_or(0, |bits| bits.0);
            events.set_wanted(!bits);
            let expected = (bits == 0).then_some(kind);
            assert_eq!(request.event().now_or_never(), expected);
            events.set_wanted(bits);
            let expected = (bits != 0).then_some(kind);
            assert_eq!(request.event().now_or_never(), expected);
        }
    }

    #[test]
    fn reading_a_log_page_arms_its_own_events_alone() {
        let events = Events::default();
        events.set_wanted(u32::MAX);
        let request = events.request().expect("room");
        let report_all = || {
            EventKind::ALL
                .into_iter()
                .for_each(|kind| events.raise(kind));
            let mut reported = Vec::new();
            while let Some(kind) = request.event().now_or_never() {
                reported.push(kind);
            }
            reported
        };
        assert_eq!(report_all(), EventKind::ALL);
        assert_eq!(report_all(), []);
        events.log_read(LogPage::Smart);
        assert_eq!(
            report_all(),
            [EventKind::SpareBelowThreshold, EventKind::Unreliable]
        );
        events.log_read(LogPage::ReservationNotification);
        assert_eq!(report_all(), [EventKind::ReservationNotification]);
    }

    #[test]
    fn a_change_before_the_request_is_not_lost() {
        let events = Events::default();
        events.namespace_changed(3);
        let request = events.request().expect("room");
        assert_eq!(
            request.event().now_or_never(),
            None,
            "the host did not ask for it yet"
        );
        events.set_wanted(NAMESPACES);
        assert_eq!(
            request.event().now_or_never(),
            Some(EventKind::NamespaceAttributeChanged)
        );
    }

    #[test]
    fn changes_are_reported_again_only_after_the_log_was_read() {
        let events = Events::default();
        events.set_wanted(NAMESPACES);
        events.namespace_changed(1);
        let request = events.request().expect("room");
        assert!(request.event().now_or_never().is_some());
        events.namespace_changed(2);
        assert_eq!(request.event().now_or_never(), None);
        assert_eq!(events.read_changed_namespaces(true), Some(vec![1, 2]));
        assert_eq!(
            request.event().now_or_never(),
            None,
            "the event was retained"
        );
        assert_eq!(events.read_changed_namespaces(false), Some(vec![1, 2]));
        assert_eq!(
            request.event().now_or_never(),
            None,
            "the host has just seen all of it"
        );
        events.namespace_changed(1);
        assert!(request.event().now_or_never().is_some());
        assert_eq!(events.read_changed_namespaces(false), Some(vec![1]));
        assert_eq!(events.read_changed_namespaces(false), Some(vec![]));
    }

    #[test]
    fn more_changes_than_fit_are_told_as_such() {
        let events = Events::default();
        for nsid in 1..=1024 {
            events.namespace_changed(nsid);
        }
        assert_eq!(
            events.read_changed_namespaces(true).map(|list| list.len()),
            Some(1024)
        );
        events.namespace_changed(2000);
        assert_eq!(events.read_changed_namespaces(false), None);
        assert_eq!(events.read_changed_namespaces(false), Some(vec![]));
    }

    #[test]
    fn requests_are_limited_and_free_their_place() {
        let events = Events::default();
        let mut requests: Vec<_> = (0..REQUESTS_MAX).filter_map(|_| events.request()).collect();
        assert_eq!(requests.len(), REQUESTS_MAX);
        assert!(events.request().is_none());
        requests.pop();
        assert!(events.request().is_some());
    }
}
