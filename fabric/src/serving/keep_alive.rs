//! The keep-alive timer of an association (Base 2.0, section 3.9), for every command of a host as its sign of life.
//!
//! Guarantee: a host that sends something within each timeout is never taken for silent, also while this machine does not
//! run the reactor for a while.

use std::time::Duration;

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
}
