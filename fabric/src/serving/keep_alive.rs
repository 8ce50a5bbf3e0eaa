//! The keep-alive timer of an association (Base 2.0, section 3.9), for every command of a host as its sign of life.
//!
//! Guarantee: a host that sends something within each timeout is never taken for silent, also while this machine does not
//! run the reactor for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Keep Alive Support: the granularity of the timer in units of 100 ms. As nvmet.
pub const KAS: u16 = 10;

/// How often the timer is looked at in each timeout.
const LOOKS: u32 = 4;

/// How long, and then for how many turns of the reactor, an expired timer waits for commands that have arrived but were
/// not read yet. A packet becomes a command within three turns.
const CATCH_UP: Duration = Duration::from_millis(100);
const CATCH_UP_TURNS: u32 = 8;

/// How long a silent host counts as alive, by the keep-alive timeout that it set: rounded up to the granularity. `None` for
/// 0, which is no timeout.
#[must_use]
pub fn timeout_of(kato_ms: u32) -> Option<Duration> {
    let granularity_ms = u64::from(KAS) * 100;
    let rounded = u64::from(kato_ms).div_ceil(granularity_ms) * granularity_ms;
    (rounded > 0).then(|| Duration::from_millis(rounded))
}

/// Waits until the timer has expired. It is checked a few times in each `timeout`, and expires up to one check later than
/// the last command allows. `was_alive` tells whether a command arrived since it was asked last; `changed` is ready when
/// the timeout changes, which starts the timer anew.
///
/// Time also passes for the host while this machine does not run the reactor (a suspended guest, a starved
/// processor), and what the host sent meanwhile waits in a socket. So checks are counted instead of time, and the
/// timer expires only after the queues had their turn.
pub async fn expired<Changed: Future<Output = ()>>(
    timeout: impl Fn() -> Option<Duration>,
    changed: impl Fn() -> Changed,
    was_alive: impl Fn() -> bool,
) {
    let mut silent_looks = 0;
    loop {
        let Some(timeout) = timeout() else {
            changed().await;
            silent_looks = 0;
            continue;
        };
        match reactor::timeout(timeout / LOOKS, changed()).await {
            Ok(()) => silent_looks = 0,
            Err(_) => silent_looks = if was_alive() { 0 } else { silent_looks + 1 },
        }
        if silent_looks >= LOOKS {
            reactor::sleep(CATCH_UP).await;
            for _ in 0..CATCH_UP_TURNS {
                reactor::yield_now().await;
            }
            if !was_alive() {
                return;
            }
            silent_looks = 0;
        }
    }
}

/// The exactness of [`LastHeard`]: it is written this seldom, because all queues of an association share it.
const EXACTNESS_MS: u64 = 64;

/// When a host was heard last, by the clock.
///
/// [`expired`] counts looks, and a machine that stood still has not looked. Its hosts waited by their clocks, and count on
/// it that nothing they said before can happen any more. So what was on its way meanwhile must not be taken for a sign
/// of life: who is asked here decides by the time alone.
#[derive(Debug)]
pub struct LastHeard {
    began: Instant,
    at_ms: AtomicU64,
}

impl LastHeard {
    /// Of a host that is heard now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            at_ms: AtomicU64::new(0),
        }
    }

    fn ms(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.began).as_millis();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }

    fn silence_ms(&self, now: Instant) -> u64 {
        self.ms(now)
            .saturating_sub(self.at_ms.load(Ordering::Acquire))
    }

    /// A command comes. False if the host was silent for too long before: then its association is over, and this changes
    /// nothing. The timeout is asked for a few times a second.
    pub fn hears(&self, now: Instant, timeout: impl FnOnce() -> Option<Duration>) -> bool {
        if self.silence_ms(now) < EXACTNESS_MS {
            return true;
        }
        let is_in_time = !self.is_silent(now, timeout());
        if is_in_time {
            self.again(now);
        }
        is_in_time
    }

    /// Whether the host has been silent for longer than it may.
    #[must_use]
    pub fn is_silent(&self, now: Instant, timeout: Option<Duration>) -> bool {
        timeout.is_some_and(|timeout| {
            let allowed = timeout.saturating_add(Duration::from_millis(EXACTNESS_MS));
            Duration::from_millis(self.silence_ms(now)) > allowed
        })
    }

    /// The timer starts anew.
    pub fn again(&self, now: Instant) {
        self.at_ms.fetch_max(self.ms(now), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_rounded_up_to_what_is_announced() {
        assert_eq!(timeout_of(0), None);
        assert_eq!(timeout_of(1), Some(Duration::from_secs(1)));
        assert_eq!(timeout_of(5000), Some(Duration::from_secs(5)));
        assert_eq!(timeout_of(5001), Some(Duration::from_secs(6)));
        assert!(timeout_of(u32::MAX) > Some(Duration::from_secs(4_000_000)));
    }

    #[test]
    fn a_command_after_a_silence_that_is_too_long_is_no_sign_of_life() {
        const TIMEOUT: Option<Duration> = Some(Duration::from_secs(4));
        let began = Instant::now();
        let after = |ms| began + Duration::from_millis(ms);
        let host = LastHeard::new(began);
        // Within each timeout, however often; the time at which it was written last does not matter.
        for ms in [10, 70, 80, 4000, 8000, 12_050] {
            assert!(host.hears(after(ms), || TIMEOUT), "{ms}");
        }
        assert!(!host.is_silent(after(16_000), TIMEOUT));
        for ms in [16_200, 16_210, 100_000] {
            assert!(!host.hears(after(ms), || TIMEOUT), "{ms}");
            assert!(host.is_silent(after(ms), TIMEOUT), "{ms}");
        }
        assert!(host.hears(after(100_000), || None), "it has no timeout");
        assert!(host.hears(after(100_001), || TIMEOUT));
        // A reactor that knows an older time.
        assert!(host.hears(after(3), || TIMEOUT));
        assert!(!host.is_silent(after(103_000), TIMEOUT));
    }
}
