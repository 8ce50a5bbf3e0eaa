//! Keys of TLS on NVMe/TCP: which one a host names in a handshake, and what a host that proved one may do.
//!
//! Guarantees:
//! - A queue that came by TLS joins only controllers of the host and of the subsystem that its key was proved
//!   for, whatever its Connect command says.
//! - Keys are looked up when a handshake begins: a new one counts from then on, and queues that are there go
//!   on when theirs is taken away.
//! - A key that an authentication made (secure concatenation) is good as long as a controller came by it, and for
//!   the time that an authentication may take before that; no longer than its host has the secret that it
//!   authenticated with.
//! - Every failure is counted and logged with the host's address. From an address where several failed within
//!   a minute no handshake is computed for a while ([`Limits`](crate::subsystem::Limits)).
//! - No key is logged or shown.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fabric::{TlsFailure, TlsKeys, TlsSession};
use nvme::auth::{ConfiguredPsk, CryptoError, Derivation, PskIdentity, PskVersion, TlsPsk};
use nvme::fabrics::ConnectData;
use serde::{Deserialize, Serialize};

use super::attempts::Attempts;
use super::config::TlsKey;
use super::generated::GeneratedKeys;
use crate::catalog::{Catalog, HostConfig};
use crate::subsystem::Target;

/// What became of handshakes.
pub(crate) struct Handshakes {
    generated: GeneratedKeys,
    attempts: Attempts<IpAddr>,
    succeeded: AtomicU64,
    failed: AtomicU64,
    held_off: AtomicU64,
    refused: AtomicU64,
}

/// What became of TLS since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFigures {
    /// Queues that connected by TLS.
    pub succeeded: u64,
    /// Handshakes that failed, and hosts that came without TLS where it is required.
    pub failed: u64,
    /// Connections closed because of earlier failures from their address.
    pub held_off: u64,
    /// Connect commands refused because they are about another host or subsystem than the key is for.
    pub refused: u64,
}

impl Handshakes {
    pub(crate) fn new(failures_max: u32, window: Duration, patience: Duration) -> Self {
        Self {
            generated: GeneratedKeys::new(patience),
            attempts: Attempts::new(failures_max, window),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            held_off: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn figures(&self) -> TlsFigures {
        TlsFigures {
            succeeded: self.succeeded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            held_off: self.held_off.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The keys of a target's hosts, as its listeners ask for them.
pub struct HostKeyring {
    target: Weak<Target>,
}

impl HostKeyring {
    /// The keys of the hosts that `target` knows.
    #[must_use]
    pub fn of(target: &Arc<Target>) -> Arc<dyn TlsKeys> {
        Arc::new(Self {
            target: Arc::downgrade(target),
        })
    }
}

impl TlsKeys for HostKeyring {
    fn find(&self, identity: &str, peer: SocketAddr) -> Option<TlsPsk> {
        let target = self.target.upgrade()?;
        target.tls_psk(identity).unwrap_or_else(|error| {
            fabric::log_of_peer!(error, "TLS key not derived", peer.ip(), %peer, %error, "a TLS key cannot be derived");
            None
        })
    }

    fn failed(&self, peer: SocketAddr, failure: &TlsFailure) {
        let Some(target) = self.target.upgrade() else {
            return;
        };
        let handshakes = &target.auth.tls;
        handshakes.failed.fetch_add(1, Ordering::Relaxed);
        if matches!(failure, TlsFailure::Clear) {
            // That cost nothing: such a host need not be slowed down.
            fabric::log_of_peer!(warn, "refused without TLS", peer.ip(), %peer, reason = %failure, "a host was refused");
            return;
        }
        let lately = handshakes.attempts.failed(peer.ip());
        // Of names alone one cannot see how the host derives its key.
        let may_be_compat = match failure {
            TlsFailure::WrongKey { identity } => identity.starts_with("NVMe0R"),
            _ => false,
        };
        let hint = match may_be_compat {
            true => "; for a host with nvme-cli before 2.14 the key has to be kept with --compat",
            false => "",
        };
        fabric::log_of_peer!(warn, "TLS handshake failed", peer.ip(), %peer, reason = %failure, lately, "a TLS handshake failed{hint}");
    }

    fn holds_off(&self, peer: SocketAddr) -> bool {
        let Some(target) = self.target.upgrade() else {
            return true;
        };
        let handshakes = &target.auth.tls;
        let holds_off = handshakes.attempts.is_over(&peer.ip());
        if holds_off {
            handshakes.held_off.fetch_add(1, Ordering::Relaxed);
        }
        holds_off
    }
}

impl Target {
    /// What became of TLS so far.
    pub fn tls_figures(&self) -> TlsFigures {
        self.auth.tls.figures()
    }

    /// The key of an identity, if a host has it.
    fn tls_psk(&self, text: &str) -> Result<Option<TlsPsk>, CryptoError> {
        let catalog = self.catalog();
        let Some(identity) = PskIdentity::parse(text) else {
            return Ok(None);
        };
        if identity.generated {
            let generated = &self.auth.tls.generated;
            let in_use = || self.generated_in_use();
            return Ok(generated.find(text, &catalog, reactor::now(), in_use));
        }
        if self.subsystem(&identity.subsystem).is_none() {
            return Ok(None);
        }
        let Some(host) = catalog.hosts.get(&identity.host) else {
            return Ok(None);
        };
        // The one that came last is the first: names alone, as in version 0, fit several.
        for key in host.auth.tls_keys.iter().rev() {
            if key.psk.hash() != identity.hash {
                continue;
            }
            for derivation in derivations(key, identity.version) {
                let psk = derive(&key.psk, &identity, *derivation)?;
                if let Some(psk) = psk.filter(|psk| psk.identity == text) {
                    return Ok(Some(psk));
                }
            }
        }
        Ok(None)
    }

    /// Keeps a key that an authentication made, of a host that authenticated by these keys.
    pub(crate) fn keep_generated(&self, psk: TlsPsk, of: &Arc<HostConfig>) {
        let in_use = self.generated_in_use();
        let now = reactor::now();
        self.auth.tls.generated.keep(psk, of.clone(), now, &in_use);
    }

    /// Forgets the keys that were made with secrets which hosts do not have any more.
    pub(crate) fn forget_generated(&self, catalog: &Catalog) {
        self.auth.tls.generated.follow(catalog);
    }

    /// The identities of generated keys by which controllers came.
    fn generated_in_use(&self) -> HashSet<Arc<str>> {
        let controllers = self.controllers().into_iter();
        controllers
            .filter_map(|controller| {
                controller
                    .tls
                    .as_ref()
                    .filter(|tls| is_generated(tls))
                    .cloned()
            })
            .map(|tls| tls.identity)
            .collect()
    }

    /// Whether a queue may connect so: by TLS it is bound to the names that its key is for.
    ///
    /// # Errors
    /// The name that it may not have.
    pub(crate) fn check_tls(
        &self,
        peer: SocketAddr,
        session: &TlsSession,
        connect: &ConnectData,
    ) -> Result<(), WrongName> {
        let handshakes = &self.auth.tls;
        let proved = PskIdentity::parse(&session.identity);
        let wrong = match &proved {
            Some(proved) if proved.host != connect.host => WrongName::Host,
            Some(proved) if proved.subsystem != connect.subsystem => WrongName::Subsystem,
            Some(_) => {
                handshakes.succeeded.fetch_add(1, Ordering::Relaxed);
                handshakes.attempts.succeeded(&peer.ip());
                return Ok(());
            }
            None => WrongName::Host,
        };
        handshakes.refused.fetch_add(1, Ordering::Relaxed);
        fabric::log_of_peer!(
            warn,
            "TLS key of another",
            peer.ip(),
            %peer,
            identity = %session.identity,
            host = %connect.host,
            subsystem = %connect.subsystem,
            "the TLS key is for another host or subsystem"
        );
        Err(wrong)
    }
}

/// Whether the key is one that an authentication made: then its host need not authenticate again.
pub(crate) fn is_generated(session: &TlsSession) -> bool {
    PskIdentity::parse(&session.identity).is_some_and(|identity| identity.generated)
}

/// The name in a Connect command that is not the one that the key was proved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongName {
    Host,
    Subsystem,
}

/// How keys may be derived for an identity of that version.
fn derivations(key: &TlsKey, version: PskVersion) -> &'static [Derivation] {
    match (version, key.compat) {
        (PskVersion::V0, false) => &[Derivation::Standard],
        (PskVersion::V0, true) => &[Derivation::Compat],
        // The digest says which.
        (PskVersion::V1, _) => &[Derivation::Standard, Derivation::Compat],
    }
}

fn derive(
    psk: &ConfiguredPsk,
    identity: &PskIdentity,
    derivation: Derivation,
) -> Result<Option<TlsPsk>, CryptoError> {
    let (host, subsystem) = (identity.host.as_str(), identity.subsystem.as_str());
    psk.derive(host, subsystem, identity.version, derivation)
}
