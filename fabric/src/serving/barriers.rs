//! Lets any thread wait until no command that a queue has had so far can touch data.
//!
//! Guarantee: [`Barriers::earlier_done`] is ready only when no command that arrived before can touch data, and is ready soon after
//! that, as long as the queue's task passes barriers ([`Barriers::pass`]) or has ended ([`Barriers::pass_all`]).

use std::sync::atomic::{AtomicU64, Ordering};

use reactor::sync::Notify;

use super::InFlight;

/// See the module.
#[derive(Debug, Default)]
pub struct Barriers {
    /// How often somebody asked to wait for all earlier commands.
    asked: AtomicU64,
    /// For how many of these requests they are done.
    passed: AtomicU64,
    changed: Notify,
}

impl Barriers {
    /// Waits until no command that arrived before can touch data.
    pub async fn earlier_done(&self) {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.notify_all();
        let is_passed = || self.passed.load(Ordering::Acquire) >= number;
        self.changed.until(is_passed).await;
    }

    /// Passes barriers as long as it is polled. For the task of the queue, on the queue's reactor.
    pub async fn pass(&self, in_flight: &InFlight) {
        let mut passed = 0;
        loop {
            let asked = || self.asked.load(Ordering::Acquire);
            self.changed.until(|| asked() > passed).await;
            passed = asked();
            in_flight.earlier_done().await;
            self.passed.fetch_max(passed, Ordering::AcqRel);
            self.changed.notify_all();
        }
    }

    /// The queue has ended: no command is left, and none will arrive.
    pub fn pass_all(&self) {
        self.passed.store(u64::MAX, Ordering::Release);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_waits_for_earlier_commands_waits_for_those_alone_that_touch_data() {
        let (barriers, in_flight) = (Barriers::default(), InFlight::default());
        let mut passing = Box::pin(barriers.pass(&in_flight));
        let earlier = in_flight.enter_period();
        let mut done = Box::pin(barriers.earlier_done());
        assert_eq!(done.as_mut().now_or_never(), None);
        assert_eq!(passing.as_mut().now_or_never(), None);
        let later = in_flight.enter_period();
        in_flight.leave_period(earlier);
        assert_eq!(passing.as_mut().now_or_never(), None);
        assert_eq!(done.now_or_never(), Some(()));
        in_flight.leave_period(later);
    }

    #[test]
    fn who_waits_for_a_queue_that_ends_is_let_go() {
        let barriers = Barriers::default();
        let mut done = Box::pin(barriers.earlier_done());
        assert_eq!(done.as_mut().now_or_never(), None);
        barriers.pass_all();
        assert_eq!(done.now_or_never(), Some(()));
        assert_eq!(barriers.earlier_done().now_or_never(), Some(()));
    }
}
