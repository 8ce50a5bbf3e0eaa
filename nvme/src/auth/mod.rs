//! In-band authentication by DH-HMAC-CHAP (Base 2.0, section 8.13): messages, secrets, and what both sides
//! compute. And the keys of TLS on NVMe/TCP, which are written and derived alike ([`psk`]).
//!
//! Guarantees:
//! - Every length of a message is checked before it is used; a message that lies about one is refused with
//!   the explanation that goes into AUTH_Failure1.
//! - Nothing here prints a secret: `Debug` says what kind it is, errors say what is wrong with it, and memory
//!   that held one is overwritten.
//! - No randomness is drawn: it comes in as an argument.
//!
//! Where the specification leaves room, Linux decides (`drivers/nvme/common/auth.c`, `host/auth.c`).

pub mod chap;
pub mod dh;
pub mod host;
pub mod identity;
pub mod message;
mod primes;
pub mod psk;
pub mod secret;
mod text;

use std::fmt;

use openssl::hash::MessageDigest;
use openssl::md::{Md, MdRef};
use openssl::pkey::PKey;
use openssl::sign::Signer;
use zeroize::Zeroizing;

pub use chap::{Exchange, Party};
pub use dh::{DhError, KeyPair};
pub use host::{HostAuthError, HostExchange, HostKeys};
pub use identity::PskIdentity;
pub use message::{
    AUTH_DATA_BYTES_MAX, Challenge, Explanation, Failure, Malformed, Message, Negotiate, Reply,
    Success1,
};
pub use psk::{Concatenation, ConfiguredPsk, Derivation, PskError, PskVersion, TlsPsk};
pub use secret::{Secret, SecretError};

/// The library that computes has failed: no memory, or a policy of the system forbids the algorithm.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("OpenSSL cannot compute {what}: {reason}")]
pub struct CryptoError {
    what: &'static str,
    reason: String,
}

impl CryptoError {
    fn new(what: &'static str) -> impl Fn(openssl::error::ErrorStack) -> Self {
        move |error| Self {
            what,
            reason: error.to_string(),
        }
    }
}

/// A hash function, with its identifier in messages and in secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// 01h.
    Sha256 = 1,
    /// 02h.
    Sha384 = 2,
    /// 03h.
    Sha512 = 3,
}

impl Hash {
    /// All, the strongest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// The function of that identifier.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            3 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Bytes of its result.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a result is never empty")]
    pub const fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// As `nvme gen-dhchap-key` and the kernel name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// The function of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    fn digest_kind(self) -> MessageDigest {
        match self {
            Self::Sha256 => MessageDigest::sha256(),
            Self::Sha384 => MessageDigest::sha384(),
            Self::Sha512 => MessageDigest::sha512(),
        }
    }

    fn hkdf_kind(self) -> &'static MdRef {
        match self {
            Self::Sha256 => Md::sha256(),
            Self::Sha384 => Md::sha384(),
            Self::Sha512 => Md::sha512(),
        }
    }

    /// The hash of some bytes.
    fn digest(self, bytes: &[u8]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        openssl::hash::hash(self.digest_kind(), bytes)
            .map(|digest| Zeroizing::new(digest.to_vec()))
            .map_err(CryptoError::new("a hash"))
    }

    /// The HMAC of all parts one after the other.
    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let compute = || {
            let key = PKey::hmac(key)?;
            let mut signer = Signer::new(self.digest_kind(), &key)?;
            for part in parts {
                signer.update(part)?;
            }
            signer.sign_to_vec().map(Zeroizing::new)
        };
        compute().map_err(CryptoError::new("an HMAC"))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Diffie-Hellman group, with its identifier in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// 00h: no exchange; who records an authentication can try secrets offline.
    Null = 0,
    /// 01h: ffdhe2048 of RFC 7919.
    Ffdhe2048 = 1,
    /// 02h.
    Ffdhe3072 = 2,
    /// 03h.
    Ffdhe4096 = 3,
    /// 04h.
    Ffdhe6144 = 4,
    /// 05h.
    Ffdhe8192 = 5,
}

impl Group {
    /// All, by preference: the smallest exchange first, which is strong enough, and none at all last.
    pub const ALL: [Self; 6] = [
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
        Self::Null,
    ];

    /// The group of that identifier.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Bytes of a public value; 0 for none.
    #[must_use]
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// As the kernel names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// The group of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_groups_are_found_by_the_names_that_the_kernel_gives_them() {
        for group in Group::ALL {
            assert_eq!(Group::from_name(group.name()), Some(group));
        }
        for hash in Hash::ALL {
            assert_eq!(Hash::from_name(hash.name()), Some(hash));
        }
        assert_eq!(Group::from_name("ffdhe1024"), None);
        assert_eq!(Hash::from_name("md5"), None);
    }
}
