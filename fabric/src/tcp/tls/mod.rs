//! TLS 1.3 on NVMe/TCP, with keys that both sides know beforehand (TCP transport 1.0, section 3.6.1).
//!
//! From below: `raw` is the few functions of OpenSSL that the openssl crate lacks, `exchange` finds the key
//! of a handshake, `session` makes records of bytes and bytes of records. None of them knows sockets.
//!
//! Guarantees:
//!
//! - TLS 1.3 alone, with TLS_AES_128_GCM_SHA256 or TLS_AES_256_GCM_SHA384, whichever the key is for, and always
//!   with an ephemeral key exchange (psk_dhe_ke): who learns the key later cannot read what was recorded.
//! - No certificates, no early data, no renegotiation, and no session tickets: a kernel that works on the
//!   records itself (Linux) takes nothing but data, alerts and key updates behind a handshake.
//! - A host that names an unknown key, and one that has the wrong key, get the same answer for the same work.
//! - A handshake takes a bounded number of bytes, and what is kept of a connection is bounded: a record each way.
//! - No key protects more than AES-GCM is good for ([`TLS_KEY_BYTES_MAX`]): a host of ours changes the keys of both
//!   directions before that. A target does so too if its host has changed keys before; other hosts may not understand
//!   that (Linux before 6.14 does not), so their connection ends, and they connect again with new keys.

mod exchange;
#[cfg(test)]
mod pairs;
mod raw;
pub(super) mod session;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use nvme::auth::{ConfiguredPsk, CryptoError, Derivation, Hash, PskVersion, TlsPsk};

use crate::error::TlsFailure;

/// Bytes of records that a key may protect, each way: AES-GCM is good for 2^24.5 records of full size (RFC 8446, section
/// 5.5), which are 388 GB. What counts for it is the number of AES blocks, so shorter records count for what is in them.
pub const TLS_KEY_BYTES_MAX: u64 = 360 << 30;

// 2^24.5 records of 2^14 bytes. What is sealed before a connection looks whether it has to end is far less than this
// leaves.
const _: () = assert!(TLS_KEY_BYTES_MAX + (1 << 30) < 388_736_063_996);

/// Whether hosts of a TCP listener speak TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// None does.
    #[default]
    Off,
    /// Who wants.
    Allowed,
    /// All: who does not is hung up on.
    Required,
}

impl TlsMode {
    const NAMES: [(&'static str, Self); 3] = [
        ("off", Self::Off),
        ("allowed", Self::Allowed),
        ("required", Self::Required),
    ];
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, mode)| mode == self);
        f.pad(name.map_or("?", |(name, _)| name))
    }
}

impl FromStr for TlsMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = Self::NAMES.iter().find(|(name, _)| *name == text);
        mode.map(|(_, mode)| *mode)
            .ok_or_else(|| format!("'{text}' is not one of off, allowed and required"))
    }
}

/// How a connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsSuite {
    /// TLS_AES_128_GCM_SHA256.
    Aes128Gcm,
    /// TLS_AES_256_GCM_SHA384.
    Aes256Gcm,
}

impl TlsSuite {
    /// The suite of a key with that hash.
    fn of(hash: Hash) -> Self {
        match hash {
            Hash::Sha256 => Self::Aes128Gcm,
            // No key of TLS has SHA-512.
            Hash::Sha384 | Hash::Sha512 => Self::Aes256Gcm,
        }
    }

    /// Its number (RFC 8446, appendix B.4).
    fn number(self) -> [u8; 2] {
        match self {
            Self::Aes128Gcm => [0x13, 0x01],
            Self::Aes256Gcm => [0x13, 0x02],
        }
    }

    /// Its name as IANA has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "TLS_AES_128_GCM_SHA256",
            Self::Aes256Gcm => "TLS_AES_256_GCM_SHA384",
        }
    }
}

impl fmt::Display for TlsSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a handshake has proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSession {
    /// The identity of the key that both ends have.
    pub identity: Arc<str>,
    /// How the connection is protected.
    pub suite: TlsSuite,
}

/// The keys of a TCP listener's hosts.
pub trait TlsKeys: Send + Sync {
    /// The key of an identity, if there is one. Called during a handshake, on a reactor, once or more: it must be
    /// fast. `identity` is what the host says, of up to 64 KiB.
    fn find(&self, identity: &str, peer: SocketAddr) -> Option<TlsPsk>;

    /// A connection ended before its handshake was done.
    fn failed(&self, peer: SocketAddr, failure: &TlsFailure);

    /// Whether this address has to wait because its handshakes failed: then it is hung up on before anything is
    /// computed for it.
    fn holds_off(&self, peer: SocketAddr) -> bool;
}

/// How a host protects its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsHostConfig {
    /// Its keys for the subsystem, in the order in which they are tried, each on a connection of its own.
    pub psks: Vec<TlsPsk>,
}

impl TlsHostConfig {
    /// What a host makes of the key that its administrator gave it: the identity with a digest first, then by
    /// names alone; derived as the specification says, and last as nvme-cli did before version 2.14, which the
    /// target may have its keys from.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn of(key: &ConfiguredPsk, host: &str, subsystem: &str) -> Result<Self, CryptoError> {
        let mut psks = Vec::new();
        for derivation in [Derivation::Standard, Derivation::Compat] {
            for version in [PskVersion::V1, PskVersion::V0] {
                psks.extend(key.derive(host, subsystem, version, derivation)?);
            }
        }
        Ok(Self { psks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_they_are_read() {
        for mode in [TlsMode::Off, TlsMode::Allowed, TlsMode::Required] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Required".parse::<TlsMode>().is_err());
    }
}
