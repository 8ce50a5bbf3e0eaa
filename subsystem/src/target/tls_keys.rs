//! TLS keys on NVMe/TCP: the key that a host names in a handshake, and what a host with that key may do.
//!
//! Guarantees:
//! - A queue with TLS joins only controllers of the host and subsystem that its key is for, whatever its Connect command
//!   says.
//! - Keys are looked up when a handshake begins. Removing a key does not end queues that use it.
//! - A key that an authentication made (secure concatenation) is valid as long as a controller uses it, and before that
//!   for the time that an authentication may take; it ends with the secret that its host authenticated with.
//! - Every failure is counted and logged with the host's address. After several failures within a minute, handshakes
//!   from that address are refused for a while ([`Limits`](crate::limits::Limits)).
//! - No key is logged or shown.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use fabric::{TlsFailure, TlsKeys, TlsSession};
use nvme::auth::{CryptoError, PskIdentity, TlsPsk};
use nvme::fabrics::ConnectData;

use super::Target;
use crate::auth::is_generated;
use crate::catalog::{Catalog, HostConfig};

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
            // Nothing was computed, so the host need not be slowed down.
            fabric::log_of_peer!(warn, "refused without TLS", peer.ip(), event = "refused", %peer, reason = %failure, "a host was refused");
            return;
        }
        let lately = handshakes.attempts.failed(peer.ip());
        // An identity of version 0 does not tell how the host derived its key.
        let may_be_compat = match failure {
            TlsFailure::WrongKey { identity } => identity.starts_with("NVMe0R"),
            _ => false,
        };
        let hint = match may_be_compat {
            true => "; if the host's nvme-cli is older than 2.14, add its key with --compat",
            false => "",
        };
        fabric::log_of_peer!(warn, "TLS handshake failed", peer.ip(), event = "refused", %peer, reason = %failure, lately, "a TLS handshake failed{hint}");
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
    /// Results of TLS handshakes so far.
    pub fn tls_figures(&self) -> crate::auth::TlsFigures {
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
        // The newest key first: several keys can match an identity of version 0.
        for key in host.auth.tls_keys.iter().rev() {
            if let Some(psk) = key.psk.named(&identity, key.compat)? {
                return Ok(Some(psk));
            }
        }
        Ok(None)
    }

    /// Stores a key that an authentication made, of a host with these keys.
    pub(crate) fn keep_generated(&self, psk: TlsPsk, of: &Arc<HostConfig>) {
        let in_use = self.generated_in_use();
        let now = reactor::now();
        self.auth.tls.generated.keep(psk, of.clone(), now, &in_use);
    }

    /// Forgets the keys that were made with secrets that were removed or replaced.
    pub(crate) fn forget_generated(&self, catalog: &Catalog) {
        self.auth.tls.generated.follow(catalog);
    }

    /// The identities of generated keys that controllers use.
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

    /// Checks a Connect command on a queue with TLS: its names must be those that the key is for.
    ///
    /// # Errors
    /// The name that is another one.
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

/// The name in a Connect command that is not the one that the key was proved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongName {
    Host,
    Subsystem,
}
