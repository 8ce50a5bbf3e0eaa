//! The key of a handshake: the one that a host offers, or the one that a target finds among those that are
//! offered.
//!
//! Guarantees: the first identity that is known decides; if none is, the handshake goes on with a key that nobody
//! has, so that it ends where it ends with a wrong key; a look at an offer is bounded.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvme::auth::{Hash, TlsPsk};
use zeroize::Zeroizing;

use super::{TlsKeys, TlsSession, TlsSuite};

/// Identities of an offer that are looked at.
const IDENTITIES_MAX: usize = 16;
/// Bytes of `obfuscated_ticket_age`, which follow an identity (RFC 8446, section 4.2.11).
const AGE_BYTES: usize = 4;

/// What is known of a handshake, kept with OpenSSL's connection.
pub(super) struct Exchange {
    /// Of a target: its keys, and who wants one.
    finder: Option<(Arc<dyn TlsKeys>, SocketAddr)>,
    chosen: Mutex<Option<Chosen>>,
    /// Changes of keys behind the handshake: of the peer, and of this side.
    key_changes: [AtomicU64; 2],
}

/// The key that the handshake goes on with.
struct Chosen {
    psk: TlsPsk,
    known: bool,
}

impl Exchange {
    /// A host's: it offers this key.
    pub(super) fn offering(psk: TlsPsk) -> Self {
        let known = true;
        Self {
            finder: None,
            chosen: Mutex::new(Some(Chosen { psk, known })),
            key_changes: Default::default(),
        }
    }

    /// A target's: it looks for a key.
    pub(super) fn finding(keys: Arc<dyn TlsKeys>, peer: SocketAddr) -> Self {
        Self {
            finder: Some((keys, peer)),
            chosen: Mutex::new(None),
            key_changes: Default::default(),
        }
    }

    /// A side begins to use a new key.
    pub(super) fn key_changed(&self, is_own: bool) {
        self.key_changes[usize::from(is_own)].fetch_add(1, Ordering::Relaxed);
    }

    /// How often a side has begun to use a new key.
    pub(super) fn key_changes(&self, is_own: bool) -> u64 {
        self.key_changes[usize::from(is_own)].load(Ordering::Relaxed)
    }

    fn with<R>(&self, what: impl FnOnce(&mut Option<Chosen>) -> R) -> R {
        // Each change is one step: what a panicking thread left is whole.
        what(&mut self.chosen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The body of a ClientHello's pre_shared_key extension: chooses the key, and with it the suite.
    pub(super) fn choose(&self, offer: &[u8]) -> Option<TlsSuite> {
        let (keys, peer) = self.finder.as_ref()?;
        let mut first = None;
        let mut found = None;
        for identity in identities(offer).take(IDENTITIES_MAX) {
            let identity = String::from_utf8_lossy(identity);
            let psk = keys.find(&identity, *peer);
            if let Some(psk) = psk.filter(|psk| psk.identity == identity) {
                let known = true;
                found = Some(Chosen { psk, known });
                break;
            }
            first.get_or_insert_with(|| identity.into_owned());
        }
        let chosen = found.or_else(|| first.and_then(unknown));
        let suite = chosen.as_ref().map(|chosen| TlsSuite::of(chosen.psk.hash));
        self.with(|place| *place = chosen);
        suite
    }

    /// Uses the chosen key; of a target, if that is its identity.
    pub(super) fn with_key<R>(
        &self,
        identity: Option<&[u8]>,
        what: impl FnOnce(&TlsPsk) -> R,
    ) -> Option<R> {
        self.with(|chosen| {
            let psk = &chosen.as_ref()?.psk;
            let wanted = identity
                .is_none_or(|identity| String::from_utf8_lossy(identity) == psk.identity.as_str());
            wanted.then(|| what(psk))
        })
    }

    /// The identity, and whether it is known; None before it is chosen.
    pub(super) fn identity(&self) -> Option<(Arc<str>, bool)> {
        self.with(|chosen| {
            let chosen = chosen.as_ref()?;
            Some((Arc::from(chosen.psk.identity.as_str()), chosen.known))
        })
    }

    /// What a finished handshake has proven. The key is not needed any more.
    pub(super) fn finish(&self) -> Option<TlsSession> {
        let chosen = self.with(Option::take)?;
        Some(TlsSession {
            identity: Arc::from(chosen.psk.identity.as_str()),
            suite: TlsSuite::of(chosen.psk.hash),
        })
    }
}

/// A key that nobody has.
fn unknown(identity: String) -> Option<Chosen> {
    // As in all identities of NVMe: `NVMe`, a version, `R`, and the hash.
    let hash = match identity.as_bytes().get(5..8) {
        Some(b"R02") => Hash::Sha384,
        _ => Hash::Sha256,
    };
    let mut key = Zeroizing::new(vec![0; hash.len()]);
    getrandom::fill(&mut key).ok()?;
    Some(Chosen {
        psk: TlsPsk {
            identity,
            hash,
            key,
        },
        known: false,
    })
}

/// The identities of an OfferedPsks (RFC 8446, section 4.2.11), as far as it is one.
fn identities(offer: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = prefixed(offer).map_or(&[][..], |(list, _)| list);
    std::iter::from_fn(move || {
        let (identity, behind) = prefixed(rest)?;
        rest = behind.get(AGE_BYTES..)?;
        Some(identity)
    })
}

/// What follows its length in two bytes, and what is behind that.
fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::TlsFailure;

    /// Knows every identity that begins with `NVMe` and ends with its address's port.
    struct Known;

    impl TlsKeys for Known {
        fn find(&self, identity: &str, peer: SocketAddr) -> Option<TlsPsk> {
            let known =
                identity.starts_with("NVMe") && identity.ends_with(&peer.port().to_string());
            known.then(|| TlsPsk {
                identity: identity.to_owned(),
                hash: Hash::Sha384,
                key: Zeroizing::new(vec![1; 48]),
            })
        }

        fn failed(&self, _: SocketAddr, _: &TlsFailure) {}

        fn holds_off(&self, _: SocketAddr) -> bool {
            false
        }
    }

    fn exchange() -> Exchange {
        Exchange::finding(Arc::new(Known), SocketAddr::from(([127, 0, 0, 1], 77)))
    }

    fn offer(identities: &[&str]) -> Vec<u8> {
        let mut list = Vec::new();
        for identity in identities {
            list.extend_from_slice(&(identity.len() as u16).to_be_bytes());
            list.extend_from_slice(identity.as_bytes());
            list.extend_from_slice(&[9; AGE_BYTES]);
        }
        let mut offer = (list.len() as u16).to_be_bytes().to_vec();
        offer.extend_from_slice(&list);
        // Binders.
        offer.extend_from_slice(&[0, 33, 32]);
        offer.extend_from_slice(&[5; 32]);
        offer
    }

    #[test]
    fn the_first_identity_that_is_known_decides() {
        let exchange = exchange();
        let offered = offer(&[
            "ticket",
            "NVMe0R01 of another",
            "NVMe0R02 a 77",
            "NVMe1R02 b 77",
        ]);
        assert_eq!(exchange.choose(&offered), Some(TlsSuite::Aes256Gcm));
        let key =
            |identity: &str| exchange.with_key(Some(identity.as_bytes()), |psk| psk.key.len());
        assert_eq!(key("NVMe0R02 a 77"), Some(48));
        assert_eq!(key("NVMe1R02 b 77"), None);
        assert_eq!(exchange.identity(), Some(("NVMe0R02 a 77".into(), true)));
    }

    #[test]
    fn an_unknown_identity_gets_a_key_that_nobody_has_for_the_suite_that_it_names() {
        for (identity, suite, bytes) in [
            ("NVMe0R01 x", TlsSuite::Aes128Gcm, 32),
            ("NVMe1R02 x", TlsSuite::Aes256Gcm, 48),
            ("x", TlsSuite::Aes128Gcm, 32),
        ] {
            let keys = [exchange(), exchange()].map(|exchange| {
                assert_eq!(exchange.choose(&offer(&[identity])), Some(suite));
                assert_eq!(exchange.identity(), Some((identity.into(), false)));
                let name = Some(identity.as_bytes());
                exchange
                    .with_key(name, |psk| psk.key.clone())
                    .expect("a key")
            });
            assert_eq!(keys[0].len(), bytes);
            assert_ne!(keys[0], keys[1]);
        }
    }

    #[test]
    fn nobody_is_asked_for_more_identities_than_a_host_has_keys() {
        let mut many = vec!["NVMe0R01 no"; IDENTITIES_MAX];
        many.push("NVMe0R01 a 77");
        let exchange = exchange();
        assert!(exchange.choose(&offer(&many)).is_some());
        assert_eq!(exchange.identity(), Some(("NVMe0R01 no".into(), false)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_offer_or_none(offer in prop::collection::vec(any::<u8>(), 0..200)) {
            let exchange = exchange();
            let suite = exchange.choose(&offer);
            prop_assert_eq!(suite.is_some(), exchange.identity().is_some());
            prop_assert_eq!(suite.is_some(), identities(&offer).next().is_some());
        }
    }
}
