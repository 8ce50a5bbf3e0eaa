//! Recent failures, by host and address, or by address alone.
//!
//! Guarantees: memory is bounded; failures of a host at one address delay no other host, and no host of the same name at
//! another address.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reactor::lock_whole as lock;

/// Entries at most; the oldest one makes room for a new one.
const REMEMBERED_MAX: usize = 4096;

/// How long somebody has to wait, and after how many failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOff {
    failures: u32,
    left: Duration,
}

impl fmt::Display for HeldOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.left.as_secs() + 1;
        write!(f, "held off {seconds} s after {} failures", self.failures)
    }
}

/// Failures of one.
#[derive(Debug)]
struct Failures {
    count: u32,
    since: Instant,
}

/// Failures of all, by who failed.
#[derive(Debug)]
pub struct Attempts<Who> {
    failures_max: u32,
    window: Duration,
    failures: Mutex<HashMap<Who, Failures>>,
}

impl<Who: Clone + Eq + Hash> Attempts<Who> {
    /// For who may fail so often within that time.
    #[must_use]
    pub fn new(failures_max: u32, window: Duration) -> Self {
        Self {
            failures_max,
            window,
            failures: Mutex::default(),
        }
    }

    /// Whether it failed as often as it may within the window.
    pub fn is_over(&self, who: &Who) -> bool {
        self.held_off(who).is_some()
    }

    /// The same, with the number of failures and the time left.
    pub fn held_off(&self, who: &Who) -> Option<HeldOff> {
        let failures = lock(&self.failures);
        let failures = failures.get(who)?;
        let left = self.window.checked_sub(failures.since.elapsed())?;
        let is_over = failures.count >= self.failures_max && !left.is_zero();
        is_over.then_some(HeldOff {
            failures: failures.count,
            left,
        })
    }

    /// Counts a failure; returns the number within the window.
    pub fn failed(&self, who: Who) -> u32 {
        let mut failures = lock(&self.failures);
        if failures.len() >= REMEMBERED_MAX && !failures.contains_key(&who) {
            failures.retain(|_, failures| failures.since.elapsed() < self.window);
            let oldest = failures.iter().min_by_key(|(_, failures)| failures.since);
            let oldest = oldest.map(|(key, _)| key.clone());
            if failures.len() >= REMEMBERED_MAX
                && let Some(oldest) = oldest
            {
                failures.remove(&oldest);
            }
        }
        let now = Instant::now();
        let entry = failures.entry(who).or_insert(Failures {
            count: 0,
            since: now,
        });
        if entry.since.elapsed() >= self.window {
            *entry = Failures {
                count: 0,
                since: now,
            };
        }
        entry.count = entry.count.saturating_add(1);
        entry.count
    }

    /// It succeeded: earlier failures are forgotten.
    pub fn succeeded(&self, who: &Who) {
        lock(&self.failures).remove(who);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use nvme::Nqn;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn host(number: u32) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.test:host{number}")).unwrap()
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_host_that_fails_too_often_waits_and_no_other_does() {
        let attempts = Attempts::new(3, HOUR);
        for count in 1..=3 {
            assert!(!attempts.is_over(&(address(1), host(1))));
            assert_eq!(attempts.failed((address(1), host(1))), count);
        }
        let held_off = attempts.held_off(&(address(1), host(1)));
        let text = held_off.expect("it has to wait").to_string();
        assert_eq!(text, "held off 3600 s after 3 failures");
        assert!(
            !attempts.is_over(&(address(1), host(2))),
            "another host there"
        );
        assert!(
            !attempts.is_over(&(address(2), host(1))),
            "the name elsewhere"
        );
        attempts.succeeded(&(address(1), host(1)));
        assert!(!attempts.is_over(&(address(1), host(1))));
    }

    #[test]
    fn failures_of_long_ago_do_not_count() {
        let attempts = Attempts::new(1, Duration::ZERO);
        attempts.failed((address(1), host(1)));
        assert!(!attempts.is_over(&(address(1), host(1))));
        assert_eq!(attempts.failed((address(1), host(1))), 1);
    }

    #[test]
    fn a_flood_of_addresses_is_remembered_in_bounded_memory() {
        let attempts = Attempts::new(1, HOUR);
        for number in 0..2 * REMEMBERED_MAX as u32 {
            attempts.failed((address(number), host(0)));
        }
        assert_eq!(lock(&attempts.failures).len(), REMEMBERED_MAX);
        assert!(attempts.is_over(&(address(2 * REMEMBERED_MAX as u32 - 1), host(0))));
    }
}
