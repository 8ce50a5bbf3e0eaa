//! Asynchronous events of one controller: what happened, which requests wait for it, what the host
//! wants to hear.
//!
//! Guarantees:
//! - An event of a kind is reported once, and again only after the host has read the log page that it
//!   points to: the host is never flooded, and nothing is lost, because the page holds all changes
//!   since it was read.
//! - What happens while no request waits is kept (one event per kind), not dropped.
//! - Memory is bounded: one bit per kind, and at most [`CHANGED_NAMESPACES_MAX`] changed namespaces.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use crate::queue::lock;

/// Entries of the Changed Namespace List log page (NVM Express base specification, log 04h).
pub(crate) const CHANGED_NAMESPACES_MAX: usize = 1024;

/// Asynchronous Event Request Limit, as a count (AERL is one less). As the Linux target has it.
pub(crate) const REQUESTS_MAX: usize = 4;

/// The kinds of events this target reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EventKind {
    /// A namespace was added, removed or changed its size.
    NamespaceAttributeChanged,
    /// The discovery log page changed.
    DiscoveryLogChanged,
}

impl EventKind {
    const ALL: [Self; 2] = [Self::NamespaceAttributeChanged, Self::DiscoveryLogChanged];

    /// The bit of Asynchronous Event Configuration (feature 0Bh) and OAES that stands for it.
    #[must_use]
    pub(crate) const fn config_bit(self) -> u32 {
        match self {
            Self::NamespaceAttributeChanged => 1 << 8,
            Self::DiscoveryLogChanged => 1 << 31,
        }
    }

    /// Dword 0 of the completion: type 'notice' (2), information, log page identifier.
    #[must_use]
    pub(crate) const fn completion(self) -> u32 {
        let (information, log_page) = match self {
            Self::NamespaceAttributeChanged => (0x00, 0x04),
            Self::DiscoveryLogChanged => (0xf0, 0x70),
        };
        (log_page << 16) | (information << 8) | 2
    }

    const fn index(self) -> usize {
        match self {
            Self::NamespaceAttributeChanged => 0,
            Self::DiscoveryLogChanged => 1,
        }
    }
}

/// What happened to one controller's world, and whether its host knows.
#[derive(Debug, Default)]
pub(crate) struct Events {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Feature 0Bh: the events that the host wants.
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
    /// Sets what the host wants to hear.
    pub(crate) fn set_wanted(&self, wanted: u32) {
        let mut state = lock(&self.state);
        state.wanted = wanted;
        state.wake();
    }

    /// What the host wants to hear.
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
        state.pending[EventKind::NamespaceAttributeChanged.index()] = true;
        state.wake();
    }

    /// The discovery log page changed.
    pub(crate) fn discovery_changed(&self) {
        let mut state = lock(&self.state);
        state.pending[EventKind::DiscoveryLogChanged.index()] = true;
        state.wake();
    }

    /// The changed namespaces for log page 04h: `None` means more than fit. Unless `retain`, the list
    /// is cleared and the next change is reported again.
    pub(crate) fn read_changed_namespaces(&self, retain: bool) -> Option<Vec<u32>> {
        let mut state = lock(&self.state);
        let list = (!state.too_many_changed).then(|| state.changed.iter().copied().collect());
        if !retain {
            state.changed.clear();
            state.too_many_changed = false;
            state.log_read(EventKind::NamespaceAttributeChanged);
        }
        list
    }

    /// The host read the discovery log page.
    pub(crate) fn discovery_log_read(&self) {
        lock(&self.state).log_read(EventKind::DiscoveryLogChanged);
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

    fn log_read(&mut self, kind: EventKind) {
        self.pending[kind.index()] = false;
        self.masked[kind.index()] = false;
    }

    fn take(&mut self) -> Option<EventKind> {
        let kind = EventKind::ALL.into_iter().find(|kind| {
            self.pending[kind.index()]
                && !self.masked[kind.index()]
                && self.wanted & kind.config_bit() != 0
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

    const NAMESPACES: u32 = EventKind::NamespaceAttributeChanged.config_bit();

    #[test]
    fn the_completion_names_the_notice_and_its_log_page() {
        assert_eq!(
            EventKind::NamespaceAttributeChanged.completion(),
            0x0004_0002
        );
        assert_eq!(EventKind::DiscoveryLogChanged.completion(), 0x0070_f002);
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
