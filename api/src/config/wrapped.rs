//! Secrets in an exported configuration, wrapped under a passphrase.
//!
//! Guarantees:
//! - Without the passphrase nothing of the secrets can be read, and nothing be changed unnoticed: Argon2id makes the key
//!   (RFC 9106, its second recommended choice), ChaCha20-Poly1305 (RFC 8439) encrypts and proves. The salt is new with
//!   each export, so no key is used twice.
//! - What a file asks of memory and time is bounded.
//! - Neither passphrase nor key nor secrets stay in memory that was given back.

use std::collections::BTreeMap;
use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use nvme::Nqn;
use nvme::auth::ConfiguredPsk;
use nvme::auth::Secret;
use openssl::base64;
use openssl::rand::rand_bytes;
use openssl::symm::{Cipher, decrypt_aead, encrypt_aead};
use serde::{Deserialize, Serialize};
use subsystem::catalog::Catalog;
use subsystem::errors::Failure;
use zeroize::Zeroizing;

/// The form of the table.
const VERSION: u32 = 1;
/// RFC 9106, section 4: 64 MiB, three passes, four lanes.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 4;
/// What a file may ask for.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 16;
/// Bytes of the key and of the parts beside it, as the cipher has them.
const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// The longest passphrase, in bytes.
pub(super) const PASSPHRASE_BYTES_MAX: usize = 1024;

/// `[secrets]`: what is needed to read them, and they themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wrapped {
    version: u32,
    kdf: Kdf,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    cipher: CipherName,
    /// Base64, as the two below.
    salt: String,
    nonce: String,
    data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kdf {
    Argon2id,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum CipherName {
    #[serde(rename = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

/// A text that must not be shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Hidden(Zeroizing<String>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

impl Serialize for Hidden {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Zeroizing::new(String::deserialize(deserializer)?)))
    }
}

impl Hidden {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The secrets of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Secrets {
    pub(super) hosts: BTreeMap<Nqn, HostSecrets>,
}

/// The secrets of one host, in the text that people exchange them by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSecrets {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dhchap_secret: Option<Hidden>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dhchap_ctrl_secret: Option<Hidden>,
    /// By their numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) tls_keys: BTreeMap<u32, Hidden>,
}

impl Secrets {
    /// Those of a catalog. Hosts without a secret are left out.
    pub(super) fn of(catalog: &Catalog) -> Self {
        let text = |secret: &Option<Secret>| secret.as_ref().map(|secret| Hidden(secret.to_text()));
        let key = |psk: &ConfiguredPsk| Hidden(psk.to_text());
        let hosts = catalog.hosts.values().map(|host| {
            let auth = &host.auth;
            let secrets = HostSecrets {
                dhchap_secret: text(&auth.dhchap_secret),
                dhchap_ctrl_secret: text(&auth.dhchap_ctrl_secret),
                tls_keys: auth
                    .tls_keys
                    .iter()
                    .map(|one| (one.id, key(&one.psk)))
                    .collect(),
            };
            (host.nqn.clone(), secrets)
        });
        Self {
            hosts: hosts
                .filter(|(_, secrets)| *secrets != HostSecrets::default())
                .collect(),
        }
    }

    /// Wraps them. It takes about a tenth of a second and 64 MiB.
    ///
    /// # Errors
    /// The passphrase cannot be, or the system's OpenSSL refuses.
    pub(super) fn wrap(&self, passphrase: &str) -> Result<Wrapped, Failure> {
        let internal = |why: &dyn fmt::Display| {
            Failure::new(
                dedup::ErrorKind::Internal,
                format!("the secrets cannot be wrapped: {why}"),
            )
        };
        let (mut salt, mut nonce) = ([0; SALT_BYTES], [0; NONCE_BYTES]);
        rand_bytes(&mut salt).map_err(|e| internal(&e))?;
        rand_bytes(&mut nonce).map_err(|e| internal(&e))?;
        let mut wrapped = Wrapped {
            version: VERSION,
            kdf: Kdf::Argon2id,
            memory_kib: MEMORY_KIB,
            passes: PASSES,
            lanes: LANES,
            cipher: CipherName::ChaCha20Poly1305,
            salt: base64::encode_block(&salt),
            nonce: base64::encode_block(&nonce),
            data: String::new(),
        };
        let key = wrapped.key(passphrase, &salt)?;
        let plain = Zeroizing::new(serde_json::to_vec(self).map_err(|e| internal(&e))?);
        let mut tag = [0; TAG_BYTES];
        let cipher = Cipher::chacha20_poly1305();
        let sealed = encrypt_aead(
            cipher,
            &*key,
            Some(&nonce),
            &wrapped.header(),
            &plain,
            &mut tag,
        );
        let mut sealed = sealed.map_err(|e| internal(&e))?;
        sealed.extend(tag);
        wrapped.data = base64::encode_block(&sealed);
        Ok(wrapped)
    }
}

impl Wrapped {
    /// The secrets.
    ///
    /// # Errors
    /// The passphrase is another one, the table was changed, or a newer version wrote it.
    pub(super) fn unwrap(&self, passphrase: &str) -> Result<Secrets, Failure> {
        if self.version != VERSION {
            return Err(Failure::invalid(format!(
                "secrets of version {} were wrapped by another version of onefold: import them with that one",
                self.version
            )));
        }
        let damaged = || {
            Failure::invalid(
                "the secrets cannot be unwrapped: the passphrase is another one, or the table [secrets] was changed",
            )
        };
        let decode = |text: &str| base64::decode_block(text).map_err(|_| damaged());
        let (salt, nonce) = (decode(&self.salt)?, decode(&self.nonce)?);
        let data = decode(&self.data)?;
        if salt.len() != SALT_BYTES || nonce.len() != NONCE_BYTES || data.len() < TAG_BYTES {
            return Err(damaged());
        }
        let (sealed, tag) = data.split_at(data.len() - TAG_BYTES);
        let key = self.key(passphrase, &salt)?;
        let cipher = Cipher::chacha20_poly1305();
        let plain = decrypt_aead(cipher, &*key, Some(&nonce), &self.header(), sealed, tag);
        let plain = Zeroizing::new(plain.map_err(|_| damaged())?);
        serde_json::from_slice(&plain).map_err(|_| damaged())
    }

    fn key(&self, passphrase: &str, salt: &[u8]) -> Result<Zeroizing<[u8; KEY_BYTES]>, Failure> {
        if passphrase.is_empty() || passphrase.len() > PASSPHRASE_BYTES_MAX {
            return Err(Failure::invalid(format!(
                "the passphrase is empty or longer than {PASSPHRASE_BYTES_MAX} bytes: write another one into its file"
            )));
        }
        let too_much = || {
            Failure::invalid(format!(
                "the table [secrets] asks for {} KiB, {} passes and {} lanes: use up to {MEMORY_KIB_MAX} KiB, \
                 {PASSES_MAX} passes and {LANES_MAX} lanes",
                self.memory_kib, self.passes, self.lanes
            ))
        };
        if self.memory_kib > MEMORY_KIB_MAX || self.passes > PASSES_MAX || self.lanes > LANES_MAX {
            return Err(too_much());
        }
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(KEY_BYTES));
        let argon2 = Argon2::new(
            Algorithm::Argon2id,
            Version::V0x13,
            params.map_err(|_| too_much())?,
        );
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let made = argon2.hash_password_into(passphrase.as_bytes(), salt, &mut *key);
        made.map_err(|_| too_much())?;
        Ok(key)
    }

    /// What is proven beside the secrets: how they are wrapped.
    fn header(&self) -> Vec<u8> {
        let Self {
            version,
            memory_kib,
            passes,
            lanes,
            ..
        } = self;
        format!(
            "onefold secrets {version} argon2id {memory_kib} {passes} {lanes} chacha20-poly1305"
        )
        .into_bytes()
    }
}
