//! Requests that were refused for who asked: how many, and that the log tells of them.
//!
//! Guarantee: whoever tries tokens waits [`PAUSE`] for each answer, fills no log, and is seen in the figures.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reactor::lock_whole;

/// How long the answer to a wrong token takes. With the bound of connections it bounds the tries of a second.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// How often the log tells of wrong tokens.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Requests that were refused since the daemon started, by the reason.
#[derive(Debug, Default)]
pub struct Refused {
    pub(crate) no_token: AtomicU64,
    pub(crate) wrong_token: AtomicU64,
    pub(crate) expired_token: AtomicU64,
    pub(crate) role: AtomicU64,
    untold: Mutex<Untold>,
}

/// Wrong tokens that the log has not told of.
#[derive(Debug, Default)]
struct Untold {
    count: u64,
    told: Option<Instant>,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Refused {
    /// A wrong token was shown from that address.
    pub(crate) fn wrong_token(&self, from: IpAddr) {
        count(&self.wrong_token);
        if let Some(tries) = self.to_tell(Instant::now()) {
            tracing::warn!(
                event = "refused",
                %from,
                tries,
                "a request used a token that this pool does not know; `onefold token list` shows the pool's tokens"
            );
        }
    }

    /// Counts a try. Gives how many the log is to tell of now.
    fn to_tell(&self, now: Instant) -> Option<u64> {
        let mut untold = lock_whole(&self.untold);
        untold.count += 1;
        let is_told = |at: Instant| now.saturating_duration_since(at) < TELL_INTERVAL;
        if untold.told.is_some_and(is_told) {
            return None;
        }
        untold.told = Some(now);
        Some(std::mem::take(&mut untold.count))
    }

    /// The counts, with the names of their reasons.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("no_token", &self.no_token),
            ("wrong_token", &self.wrong_token),
            ("expired_token", &self.expired_token),
            ("role", &self.role),
        ]
        .map(|(reason, counter)| (reason, counter.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_wrong_tokens_is_counted_and_fills_no_log() {
        let refused = Refused::default();
        let now = Instant::now();
        assert_eq!(refused.to_tell(now), Some(1));
        for _ in 0..1000 {
            assert_eq!(refused.to_tell(now + TELL_INTERVAL / 2), None);
        }
        assert_eq!(refused.to_tell(now + TELL_INTERVAL), Some(1001));
        refused.wrong_token(IpAddr::from([192, 0, 2, 7]));
        assert_eq!(refused.counts()[1], ("wrong_token", 1));
    }
}
