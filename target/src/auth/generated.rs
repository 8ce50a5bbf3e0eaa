//! Keys of TLS that authentications made (secure concatenation).
//!
//! Guarantee: a key is good for a while, so that its host can come by it, and as long as a controller is there
//! that came by it; memory is bounded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nvme::auth::TlsPsk;

use crate::queue::lock;

/// Keys that are kept: those of all controllers that there can be, and of as many hosts on their way. For another, the
/// one that was made first of those that nobody uses is forgotten: a host that authenticates again and again drives out
/// no key of a host that is attached.
const KEPT_MAX: usize = 2048;

struct Generated {
    psk: TlsPsk,
    made: Instant,
}

pub(super) struct GeneratedKeys {
    /// By identity.
    keys: Mutex<HashMap<String, Generated>>,
    /// How long a host has to come by its key.
    patience: Duration,
}

impl GeneratedKeys {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            keys: Mutex::default(),
            patience,
        }
    }

    /// Keeps a key. `in_use` names those by which controllers came.
    pub(super) fn keep(&self, psk: TlsPsk, now: Instant, in_use: &HashSet<Arc<str>>) {
        let mut keys = lock(&self.keys);
        keys.retain(|identity, key| self.is_new(key, now) || in_use.contains(identity.as_str()));
        if keys.len() >= KEPT_MAX {
            let of_least_use = |(identity, key): &(&String, &Generated)| {
                (in_use.contains(identity.as_str()), key.made)
            };
            let oldest = keys.iter().min_by_key(of_least_use);
            if let Some(oldest) = oldest.map(|(identity, _)| identity.clone()) {
                keys.remove(&oldest);
            }
        }
        keys.insert(psk.identity.clone(), Generated { psk, made: now });
    }

    /// The key of an identity. `in_use` is asked only if it is not new any more.
    pub(super) fn find(
        &self,
        identity: &str,
        now: Instant,
        in_use: impl FnOnce() -> HashSet<Arc<str>>,
    ) -> Option<TlsPsk> {
        let (psk, is_new) = {
            let keys = lock(&self.keys);
            let key = keys.get(identity)?;
            (key.psk.clone(), self.is_new(key, now))
        };
        (is_new || in_use().contains(identity)).then_some(psk)
    }

    fn is_new(&self, key: &Generated, now: Instant) -> bool {
        now.saturating_duration_since(key.made) < self.patience
    }
}

#[cfg(test)]
mod tests {
    use nvme::auth::Hash;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn psk(number: usize) -> TlsPsk {
        TlsPsk {
            identity: format!("NVMe1G01 nqn.h nqn.s {number}"),
            hash: Hash::Sha256,
            key: vec![7; 32].into(),
        }
    }

    #[test]
    fn a_key_is_good_for_a_while_and_then_for_who_uses_it() {
        let (keys, made) = (GeneratedKeys::new(MINUTE), Instant::now());
        let none = HashSet::new;
        let used = || HashSet::from([psk(1).identity.into()]);
        keys.keep(psk(1), made, &none());
        keys.keep(psk(2), made, &none());
        let find = |number, later, used: &dyn Fn() -> HashSet<Arc<str>>| {
            keys.find(&psk(number).identity, made + later, used)
                .is_some()
        };
        assert!(find(1, MINUTE / 2, &none) && find(2, MINUTE / 2, &none));
        assert!(!find(1, MINUTE, &none) && !find(2, MINUTE, &used));
        assert!(find(1, 99 * MINUTE, &used));
        // What nobody uses goes with the next one that comes.
        keys.keep(psk(3), made + 2 * MINUTE, &used());
        assert!(find(1, 2 * MINUTE, &used));
        assert_eq!(lock(&keys.keys).len(), 2);
    }

    #[test]
    fn hosts_that_have_keys_made_and_never_come_take_bounded_memory_and_drive_nobody_out() {
        let (keys, now) = (GeneratedKeys::new(MINUTE), Instant::now());
        // The first is an attached host's.
        let used = HashSet::from([psk(0).identity.into()]);
        for number in 0..=KEPT_MAX {
            let made = now + Duration::from_nanos(number as u64);
            keys.keep(psk(number), made, &used);
        }
        assert_eq!(lock(&keys.keys).len(), KEPT_MAX);
        let find = |number| keys.find(&psk(number).identity, now, HashSet::new);
        assert!(find(0).is_some() && find(1).is_none() && find(KEPT_MAX).is_some());
    }
}
