//! Hosts that were preempted, and may have commands of before under way.
//!
//! Guarantee: who preempts hosts is told of all whose commands may be under way, also of those that were preempted by one that it
//! preempts itself. That one may not know yet that nothing of theirs is, and may never find out.

use std::collections::BTreeMap;
use std::sync::Mutex;

use reservations::HostId;

use crate::lock::lock;

/// The fences of a volume. Only fences that are dropped leave hosts here: until the next one is closed, which is for all of them.
#[derive(Default)]
pub(crate) struct Fences {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last fence.
    last: u64,
    /// Hosts, each with the last fence that is for it.
    open: BTreeMap<HostId, u64>,
}

/// A fence: nothing of what its hosts sent before may touch the volume when it is closed. One that is dropped stays open, until a
/// later one is closed.
#[must_use = "it has to be closed when nothing of its hosts is under way"]
pub(crate) struct Fence {
    number: u64,
    hosts: Vec<HostId>,
}

impl Fence {
    /// Whether commands of this host may be under way.
    pub(crate) fn is_for(&self, host: &HostId) -> bool {
        self.hosts.contains(host)
    }
}

impl Fences {
    /// A fence for hosts that one preempts now, and for those of all fences that are open, but for itself. Call it where the reservations
    /// change, so that fences are in the order of changes.
    pub(crate) fn open(&self, by: HostId, preempted: &[HostId]) -> Fence {
        let mut state = lock(&self.state);
        state.last += 1;
        let number = state.last;
        let preempted = preempted.iter().map(|host| (*host, number));
        state.open.extend(preempted);
        let mut hosts = Vec::with_capacity(state.open.len());
        for (host, last) in state.open.iter_mut().filter(|(host, _)| **host != by) {
            *last = number;
            hosts.push(*host);
        }
        Fence { number, hosts }
    }

    /// Nothing of its hosts is under way that came before it.
    pub(crate) fn close(&self, fence: &Fence) {
        let mut state = lock(&self.state);
        state
            .open
            .retain(|host, last| *last > fence.number || !fence.is_for(host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u128) -> HostId {
        HostId::from_u128(number)
    }

    /// Whether one that preempts now would wait for this host.
    fn is_waited_for(fences: &Fences, number: u128) -> bool {
        fences.open(host(99), &[]).is_for(&host(number))
    }

    #[test]
    fn who_preempts_waits_for_those_too_whom_the_preempted_one_waits_for() {
        let fences = Fences::default();
        let first = fences.open(host(2), &[host(1)]);
        let second = fences.open(host(3), &[host(2)]);
        assert!(first.is_for(&host(1)) && !first.is_for(&host(2)));
        assert!(second.is_for(&host(1)) && second.is_for(&host(2)));
        // What was sent between the two is none of the first one's business.
        fences.close(&first);
        assert!(is_waited_for(&fences, 1));
        let third = fences.open(host(4), &[host(3)]);
        fences.close(&third);
        assert!(!is_waited_for(&fences, 1));
    }

    #[test]
    fn nobody_waits_for_its_own_commands_and_others_do_all_the_same() {
        let fences = Fences::default();
        drop(fences.open(host(2), &[host(1)]));
        let back = fences.open(host(1), &[host(2)]);
        assert!(!back.is_for(&host(1)));
        fences.close(&back);
        assert!(is_waited_for(&fences, 1));
        assert!(!is_waited_for(&fences, 2));
    }

    #[test]
    fn a_host_is_waited_for_when_the_one_that_preempted_it_is_gone() {
        let fences = Fences::default();
        drop(fences.open(host(2), &[host(1)]));
        let later = fences.open(host(3), &[host(2)]);
        assert!(later.is_for(&host(1)));
        fences.close(&later);
        assert!(!is_waited_for(&fences, 1));
    }
}
