//! TLS keys that authentications made (secure concatenation).
//!
//! Guarantee: a key is valid for a while, so that its host can connect with it, and then as long as a controller uses it;
//! it ends with the secret that its host authenticated with. Memory is bounded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nvme::auth::TlsPsk;

use crate::catalog::{Catalog, HostConfig};
use crate::lock::lock;

/// Keys at most: for all controllers that there can be, and for as many hosts that are about to connect. Beyond that the
/// oldest unused key is dropped, so that a host which authenticates again and again evicts no key of an attached host.
const KEPT_MAX: usize = 2048;

struct Generated {
    psk: TlsPsk,
    made: Instant,
    /// The host's configuration with the secret that it proved.
    of: Arc<HostConfig>,
}

impl Generated {
    /// Whether the host still has that secret.
    fn is_of(&self, host: Option<&Arc<HostConfig>>) -> bool {
        host.is_some_and(|host| host.auth.dhchap_secret == self.of.auth.dhchap_secret)
    }
}

pub(crate) struct GeneratedKeys {
    /// By identity.
    keys: Mutex<HashMap<String, Generated>>,
    /// How long a host has to connect with its key.
    patience: Duration,
}

impl GeneratedKeys {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            keys: Mutex::default(),
            patience,
        }
    }

    /// Forgets the keys of hosts whose secret was removed or replaced.
    pub(crate) fn follow(&self, catalog: &Catalog) {
        lock(&self.keys).retain(|_, key| key.is_of(catalog.hosts.get(&key.of.nqn)));
    }

    /// Stores a key of a host that authenticated with the secret in `of`. `in_use` are the identities of the keys that
    /// controllers use.
    pub(crate) fn keep(
        &self,
        psk: TlsPsk,
        of: Arc<HostConfig>,
        now: Instant,
        in_use: &HashSet<Arc<str>>,
    ) {
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
        let key = Generated { made: now, of, psk };
        keys.insert(key.psk.identity.clone(), key);
    }

    /// The key of an identity, if its host still has the same secret. `in_use` is called only for a key that is not new.
    pub(crate) fn find(
        &self,
        identity: &str,
        catalog: &Catalog,
        now: Instant,
        in_use: impl FnOnce() -> HashSet<Arc<str>>,
    ) -> Option<TlsPsk> {
        let (psk, is_new) = {
            let keys = lock(&self.keys);
            let key = keys.get(identity)?;
            if !key.is_of(catalog.hosts.get(&key.of.nqn)) {
                // It was stored in the moment when the secret changed.
                return None;
            }
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
    use nvme::auth::{Hash, Secret};

    use crate::catalog::HostAuth;
    use crate::catalog::SubsystemConfig;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn psk(number: usize) -> TlsPsk {
        TlsPsk {
            identity: format!("NVMe1G01 nqn.h nqn.s {number}"),
            hash: Hash::Sha256,
            key: vec![7; 32].into(),
        }
    }

    /// A host with that secret.
    fn host(secret: u8) -> Arc<HostConfig> {
        Arc::new(HostConfig {
            nqn: "nqn.2026-11.test:host".parse().unwrap(),
            auth: HostAuth {
                dhchap_secret: Some(Secret::from_random(None, &[secret; 64])),
                ..HostAuth::default()
            },
        })
    }

    fn catalog(secret: u8) -> Catalog {
        let subsystem = "nqn.2026-11.test:subsystem".parse().unwrap();
        let mut catalog = Catalog::new(SubsystemConfig::new(subsystem, "S".into()));
        let host = host(secret);
        catalog.hosts.insert(host.nqn.clone(), host);
        catalog
    }

    #[test]
    fn a_key_ends_with_the_secret_that_it_was_made_with() {
        let (keys, now) = (GeneratedKeys::new(MINUTE), Instant::now());
        let used = || HashSet::from([psk(1).identity.into()]);
        let find = |catalog: &Catalog| keys.find(&psk(1).identity, catalog, now, used).is_some();
        keys.keep(psk(1), host(1), now, &used());
        let mut known = catalog(1);
        assert!(find(&known));
        // Something else of the host changes.
        let mut same = HostConfig::clone(&host(1));
        same.auth.dhchap_hashes = vec![Hash::Sha384];
        known.hosts.insert(same.nqn.clone(), Arc::new(same));
        keys.follow(&known);
        assert!(find(&known));
        // Another secret, none, and no host.
        assert!(!find(&catalog(2)));
        let mut without = HostConfig::clone(&host(1));
        without.auth.dhchap_secret = None;
        known.hosts.insert(without.nqn.clone(), Arc::new(without));
        assert!(!find(&known));
        known.hosts.clear();
        assert!(!find(&known));
        // It does not come back with the secret.
        keys.follow(&catalog(2));
        assert!(!find(&catalog(1)));
        assert!(lock(&keys.keys).is_empty());
    }

    #[test]
    fn a_key_is_good_for_a_while_and_then_for_who_uses_it() {
        let (keys, made) = (GeneratedKeys::new(MINUTE), Instant::now());
        let none = HashSet::new;
        let used = || HashSet::from([psk(1).identity.into()]);
        keys.keep(psk(1), host(1), made, &none());
        keys.keep(psk(2), host(1), made, &none());
        let find = |number, later, used: &dyn Fn() -> HashSet<Arc<str>>| {
            keys.find(&psk(number).identity, &catalog(1), made + later, used)
                .is_some()
        };
        assert!(find(1, MINUTE / 2, &none) && find(2, MINUTE / 2, &none));
        assert!(!find(1, MINUTE, &none) && !find(2, MINUTE, &used));
        assert!(find(1, 99 * MINUTE, &used));
        // What nobody uses goes with the next one that comes.
        keys.keep(psk(3), host(1), made + 2 * MINUTE, &used());
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
            keys.keep(psk(number), host(1), made, &used);
        }
        assert_eq!(lock(&keys.keys).len(), KEPT_MAX);
        let known = catalog(1);
        let find = |number| keys.find(&psk(number).identity, &known, now, HashSet::new);
        assert!(find(0).is_some() && find(1).is_none() && find(KEPT_MAX).is_some());
    }
}
