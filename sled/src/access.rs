//! Which hosts may use the drives, and by what they prove who they are.
//!
//! Guarantees:
//! - A host with a secret has to authenticate on every queue, before anything else ([`fabric::serving::auth`]).
//! - A host with a TLS key comes by TLS alone; a queue with TLS joins only controllers of the host and subsystem that its key is for.
//! - New keys count for connections from then on, and end none.
//! - Every failure is logged with the host's address. After several within a minute an address has to wait for a while.
//! - No key is logged or shown.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use fabric::serving::auth::{Attempts, Exchanges, HostSecrets};
use fabric::{TlsFailure, TlsKeys, TlsMode, TlsSession};
use nvme::Nqn;
use nvme::auth::{ConfiguredPsk, Group, Hash, PskIdentity, Secret, TlsPsk};
use nvme::fabrics::ConnectData;
use reactor::lock_whole as lock;

use crate::limits::AUTH_LIMITS;

/// By what a host proves who it is. Without any of them its name is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostKeys {
    /// Its secret.
    pub dhchap_secret: Option<Secret>,
    /// The controller's, for a host that authenticates the controller too.
    pub dhchap_ctrl_secret: Option<Secret>,
    /// Its key for TLS.
    pub tls_key: Option<ConfiguredPsk>,
}

impl HostSecrets for HostKeys {
    fn secret(&self) -> Option<&Secret> {
        self.dhchap_secret.as_ref()
    }

    fn controller_secret(&self) -> Option<&Secret> {
        self.dhchap_ctrl_secret.as_ref()
    }

    fn hashes(&self) -> &[Hash] {
        &[]
    }

    fn groups(&self) -> &[Group] {
        &[]
    }
}

/// The hosts that may connect, with their keys; `None` admits any.
pub type Hosts = Option<BTreeMap<Nqn, HostKeys>>;

type SharedHosts = Option<Arc<BTreeMap<Nqn, Arc<HostKeys>>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Access {
    hosts: Mutex<SharedHosts>,
    tls: TlsMode,
    /// The subsystems that keys are for.
    subsystems: [Nqn; 2],
    pub(crate) exchanges: Exchanges,
    handshakes: Attempts<IpAddr>,
}

impl Access {
    /// To these subsystems.
    pub(crate) fn new(hosts: Hosts, subsystems: [Nqn; 2]) -> Self {
        Self {
            tls: tls_of(hosts.as_ref()),
            hosts: Mutex::new(shared(hosts)),
            subsystems,
            exchanges: Exchanges::new(AUTH_LIMITS),
            handshakes: Attempts::new(AUTH_LIMITS.failures_max, AUTH_LIMITS.window),
        }
    }

    /// Whether hosts come by TLS over TCP. It does not change.
    pub(crate) fn tls(&self) -> TlsMode {
        self.tls
    }

    /// Gives the hosts other keys; which hosts have keys of which kind stays as it is.
    pub(crate) fn set_hosts(&self, hosts: Hosts) {
        *lock(&self.hosts) = shared(hosts);
    }

    fn hosts(&self) -> SharedHosts {
        lock(&self.hosts).clone()
    }

    /// Whether hosts have to be named to connect.
    pub(crate) fn is_for_named_hosts(&self) -> bool {
        self.hosts().is_some()
    }

    /// Whether the host may connect, if it proves what it has to.
    pub(crate) fn allows(&self, host: &Nqn) -> bool {
        self.hosts().is_none_or(|hosts| hosts.contains_key(host))
    }

    fn keys(&self, host: &Nqn) -> Option<Arc<HostKeys>> {
        self.hosts()?.get(host).cloned()
    }

    /// The secrets by which the host has to authenticate; none if it need not.
    pub(crate) fn secrets(&self, host: &Nqn) -> Option<Arc<HostKeys>> {
        self.keys(host).filter(|keys| keys.dhchap_secret.is_some())
    }

    /// Whether the host comes by TLS alone.
    pub(crate) fn requires_tls(&self, host: &Nqn) -> bool {
        self.keys(host).is_some_and(|keys| keys.tls_key.is_some())
    }

    /// Whether the names in a Connect command are those that the queue's key is for.
    pub(crate) fn is_for(
        &self,
        peer: SocketAddr,
        session: &TlsSession,
        connect: &ConnectData,
    ) -> bool {
        let proved = PskIdentity::parse(&session.identity);
        let is_for = proved.is_some_and(|proved| {
            proved.host == connect.host && proved.subsystem == connect.subsystem
        });
        if is_for {
            self.handshakes.succeeded(&peer.ip());
        }
        is_for
    }
}

impl TlsKeys for Access {
    fn find(&self, identity: &str, peer: SocketAddr) -> Option<TlsPsk> {
        let identity = PskIdentity::parse(identity)?;
        if identity.generated || !self.subsystems.contains(&identity.subsystem) {
            return None;
        }
        let keys = self.keys(&identity.host)?;
        let found = keys.tls_key.as_ref()?.named(&identity, false);
        found.unwrap_or_else(|error| {
            fabric::log_of_peer!(error, "TLS key not derived", peer.ip(), %peer, %error, "a TLS key cannot be derived");
            None
        })
    }

    fn failed(&self, peer: SocketAddr, failure: &TlsFailure) {
        if matches!(failure, TlsFailure::Clear) {
            // Nothing was computed, so the host need not be slowed down.
            fabric::log_of_peer!(warn, "refused without TLS", peer.ip(), event = "refused", %peer, reason = %failure, "a host was refused");
            return;
        }
        let lately = self.handshakes.failed(peer.ip());
        // An identity of version 0 does not tell how the host derived its key.
        let hint = match failure {
            TlsFailure::WrongKey { identity } if identity.starts_with("NVMe0R") => {
                "; a Linux host needs nvme-cli 2.14 or later for a sled's TLS"
            }
            _ => "",
        };
        fabric::log_of_peer!(warn, "TLS handshake failed", peer.ip(), event = "refused", %peer, reason = %failure, lately, "a TLS handshake failed{hint}");
    }

    fn holds_off(&self, peer: SocketAddr) -> bool {
        self.handshakes.is_over(&peer.ip())
    }
}

fn shared(hosts: Hosts) -> SharedHosts {
    let hosts = hosts?.into_iter();
    Some(Arc::new(
        hosts.map(|(nqn, keys)| (nqn, Arc::new(keys))).collect(),
    ))
}

/// Who has no TLS key comes in clear, so TLS can be required only where all hosts have one.
fn tls_of(hosts: Option<&BTreeMap<Nqn, HostKeys>>) -> TlsMode {
    let mut keys = hosts.into_iter().flat_map(BTreeMap::values);
    let with_key = keys.clone().filter(|keys| keys.tls_key.is_some()).count();
    match with_key {
        0 => TlsMode::Off,
        _ if keys.all(|keys| keys.tls_key.is_some()) => TlsMode::Required,
        _ => TlsMode::Allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_required_of_everybody_when_all_hosts_have_a_key_for_it() {
        let key = ConfiguredPsk::from_random(Hash::Sha256, &[1; 64]);
        let with = HostKeys {
            tls_key: Some(key),
            ..HostKeys::default()
        };
        let of = |keys: &[&HostKeys]| {
            let hosts = keys
                .iter()
                .zip(["nqn.2026-11.test:a", "nqn.2026-11.test:b"]);
            let hosts = hosts.map(|(keys, nqn)| (nqn.parse().expect("a name"), (*keys).clone()));
            tls_of(Some(&hosts.collect()))
        };
        let without = HostKeys::default();
        assert_eq!(tls_of(None), TlsMode::Off);
        assert_eq!(of(&[&without]), TlsMode::Off);
        assert_eq!(of(&[&with, &without]), TlsMode::Allowed);
        assert_eq!(of(&[&with, &with]), TlsMode::Required);
    }
}
