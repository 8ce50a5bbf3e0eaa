//! Keys of TLS on NVMe/TCP: the configured PSK as `nvme gen-tls-key` prints it (`NVMeTLSkey-1:HH:BASE64:`),
//! and the identity and the TLS PSK that both ends derive of it (TCP transport 1.0, section 3.6.1; TP 8018).
//!
//! A configured PSK and the names of host and subsystem give up to two identities: version 0 is
//! `NVMe0R01 HOST SUBSYSTEM`, version 1 has a digest of the key behind that, so that two keys of a host can be
//! told apart. R01 stands for TLS_AES_128_GCM_SHA256, R02 for TLS_AES_256_GCM_SHA384.

use std::fmt;

use openssl::base64;
use openssl::pkey::Id;
use openssl::pkey_ctx::{HkdfMode, PkeyCtx};
use zeroize::Zeroizing;

use super::text::{self, TextError};
use super::{CryptoError, Hash, PskIdentity};

const PREFIX: &str = "NVMeTLSkey-1";
/// What a length field of one byte can say (HkdfLabel, RFC 8446 section 7.1).
const CONTEXT_BYTES_MAX: usize = 255;

/// What is wrong with a configured PSK. Says nothing of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PskError {
    /// Its form.
    #[error("this is no TLS key: {0}; `nvme gen-tls-key` makes one")]
    Text(TextError),
    /// An unknown hash, or another length than the hash's.
    #[error(
        "this TLS key has {bytes} bytes for hash {hash:02}; 32 go with 00 or 01, 48 with 00 or 02"
    )]
    Hash {
        /// The hash identifier.
        hash: u8,
        /// Bytes of the key.
        bytes: usize,
    },
}

/// How the label of a derived key is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Derivation {
    /// As RFC 8446 says: what nvme-cli does since its version 2.14, and other targets do.
    #[default]
    Standard,
    /// As earlier versions of nvme-cli do (`nvme check-tls-key --compat` of later ones): without the lengths
    /// of label and context, and with the length of the key in the other order of bytes.
    Compat,
}

/// The version of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PskVersion {
    /// `NVMe0R..`: by names alone.
    V0,
    /// `NVMe1R..`: with a digest.
    V1,
}

/// What a TLS handshake needs to know.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPsk {
    /// What the host names the key.
    pub identity: String,
    /// The hash of the only cipher suite that the key is for.
    pub hash: Hash,
    /// The key.
    pub key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPsk")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The key that administrators give to both ends.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredPsk {
    /// The hash by which it is bound to the host's name; none uses it as it is.
    transform: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfiguredPsk")
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}

impl ConfiguredPsk {
    /// Parses the text form; white space around it is ignored.
    ///
    /// # Errors
    /// [`PskError`].
    pub fn parse(text: &str) -> Result<Self, PskError> {
        let (hash, key) = text::parse(PREFIX, text.trim()).map_err(PskError::Text)?;
        let transform = match (hash, key.len()) {
            (0, 32 | 48) => None,
            (1, 32) => Some(Hash::Sha256),
            (2, 48) => Some(Hash::Sha384),
            (hash, bytes) => return Err(PskError::Hash { hash, bytes }),
        };
        Ok(Self { transform, key })
    }

    /// A new key from random bytes. SHA-512 is not possible and gives one for SHA-384.
    #[must_use]
    pub fn from_random(hash: Hash, random: &[u8; 64]) -> Self {
        let transform = match hash {
            Hash::Sha256 => Hash::Sha256,
            Hash::Sha384 | Hash::Sha512 => Hash::Sha384,
        };
        Self {
            transform: Some(transform),
            key: Zeroizing::new(random[..transform.len()].to_vec()),
        }
    }

    /// The text form. It is the secret: not for logs.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        text::format(PREFIX, self.transform.map_or(0, Hash::id), &self.key)
    }

    /// The hash of the cipher suite that the key is for.
    #[must_use]
    pub fn hash(&self) -> Hash {
        match self.key.len() {
            32 => Hash::Sha256,
            _ => Hash::Sha384,
        }
    }

    /// The key of an identity, if this is the one that it names. An identity of version 0 does not tell how its host derived the
    /// key: `is_compat` says that it is [`Derivation::Compat`].
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn named(
        &self,
        identity: &PskIdentity,
        is_compat: bool,
    ) -> Result<Option<TlsPsk>, CryptoError> {
        if self.hash() != identity.hash {
            return Ok(None);
        }
        let derivations: &[Derivation] = match (identity.version, is_compat) {
            (PskVersion::V0, false) => &[Derivation::Standard],
            (PskVersion::V0, true) => &[Derivation::Compat],
            // The digest says which.
            (PskVersion::V1, _) => &[Derivation::Standard, Derivation::Compat],
        };
        let text = identity.to_string();
        let (host, subsystem) = (identity.host.as_str(), identity.subsystem.as_str());
        for derivation in derivations {
            let psk = self.derive(host, subsystem, identity.version, *derivation)?;
            if let Some(psk) = psk.filter(|psk| psk.identity == text) {
                return Ok(Some(psk));
            }
        }
        Ok(None)
    }

    /// What the host and the subsystem use; none if their names are too long for version 0.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn derive(
        &self,
        host: &str,
        subsystem: &str,
        version: PskVersion,
        derivation: Derivation,
    ) -> Result<Option<TlsPsk>, CryptoError> {
        let hash = self.hash();
        let retained = match self.transform {
            None => self.key.clone(),
            Some(_) => expand_label(hash, &self.key, "HostNQN", host, derivation)?,
        };
        let id = hash.id();
        let (identity, context) = match version {
            PskVersion::V0 => {
                let identity = format!("NVMe0R{id:02} {host} {subsystem}");
                (identity.clone(), identity)
            }
            PskVersion::V1 => {
                return with_digest('R', hash, &retained, host, subsystem, derivation).map(Some);
            }
        };
        if context.len() > CONTEXT_BYTES_MAX {
            return Ok(None);
        }
        let key = expand_label(hash, &retained, "nvme-tls-psk", &context, derivation)?;
        Ok(Some(TlsPsk {
            identity,
            hash,
            key,
        }))
    }
}

/// An authentication of which both sides make a key (secure concatenation; Base 2.1, section 8.3.5.5.9).
#[derive(Debug, Clone, Copy)]
pub struct Concatenation<'a> {
    /// The hash that was agreed on: SHA-256 or SHA-384. It is that of the key's cipher suite.
    pub hash: Hash,
    /// What the Diffie-Hellman exchange gave.
    pub shared: &'a [u8],
    /// The controller's challenge (C1).
    pub controller_challenge: &'a [u8],
    /// The host's (C2).
    pub host_challenge: &'a [u8],
    /// The host's name.
    pub host: &'a str,
    /// The subsystem's name.
    pub subsystem: &'a str,
}

impl Concatenation<'_> {
    /// The key, with an identity that begins with `NVMe1G`.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn psk(&self) -> Result<TlsPsk, CryptoError> {
        // Linux takes the secret as it is. That is the same: HMAC hashes a key that is longer than its blocks,
        // as the secrets of all groups are.
        let session_key = self.hash.digest(self.shared)?;
        let challenges = [self.controller_challenge, self.host_challenge];
        let psk = self.hash.hmac(&session_key, &challenges)?;
        let derivation = Derivation::Standard;
        with_digest('G', self.hash, &psk, self.host, self.subsystem, derivation)
    }
}

/// The identity of version 1, with a digest of the key, and the TLS PSK.
fn with_digest(
    kind: char,
    hash: Hash,
    psk: &[u8],
    host: &str,
    subsystem: &str,
    derivation: Derivation,
) -> Result<TlsPsk, CryptoError> {
    let id = hash.id();
    let parts = [host, " ", subsystem, " NVMe-over-Fabrics"];
    let digest = hash.hmac(psk, &parts.map(str::as_bytes))?;
    let digest = base64::encode_block(&digest);
    let context = format!("{id:02} {digest}");
    Ok(TlsPsk {
        identity: format!("NVMe1{kind}{id:02} {host} {subsystem} {digest}"),
        hash,
        key: expand_label(hash, psk, "nvme-tls-psk", &context, derivation)?,
    })
}

/// HKDF-Extract with a salt of zeros, then HKDF-Expand-Label to the length of the hash.
fn expand_label(
    hash: Hash,
    key: &[u8],
    label: &str,
    context: &str,
    derivation: Derivation,
) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
    let length = hash.len() as u16;
    let label = format!("tls13 {label}");
    let mut info = Vec::new();
    match derivation {
        Derivation::Standard => {
            info.extend_from_slice(&length.to_be_bytes());
            info.push(label.len() as u8);
            info.extend_from_slice(label.as_bytes());
            info.push(context.len() as u8);
        }
        Derivation::Compat => {
            info.extend_from_slice(&length.to_le_bytes());
            info.extend_from_slice(label.as_bytes());
        }
    }
    info.extend_from_slice(context.as_bytes());
    let compute = || {
        let mut hkdf = PkeyCtx::new_id(Id::HKDF)?;
        hkdf.derive_init()?;
        hkdf.set_hkdf_mode(HkdfMode::EXTRACT_THEN_EXPAND)?;
        hkdf.set_hkdf_md(hash.hkdf_kind())?;
        hkdf.set_hkdf_key(key)?;
        hkdf.add_hkdf_info(&info)?;
        let mut out = Zeroizing::new(vec![0; hash.len()]);
        hkdf.derive(Some(&mut out))?;
        Ok(out)
    };
    compute().map_err(CryptoError::new("a key by HKDF"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The key of the examples in the TCP transport specification, which libnvme and SPDK test with.
    const EXAMPLE_256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const EXAMPLE_384: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";

    #[test]
    fn identities_are_those_of_libnvme() {
        // From libnvme's test/psk.c.
        let cases = [
            (
                EXAMPLE_256,
                Derivation::Standard,
                "01",
                "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            ),
            (
                EXAMPLE_384,
                Derivation::Standard,
                "02",
                "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            ),
            (
                EXAMPLE_256,
                Derivation::Compat,
                "01",
                "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
            ),
            (
                EXAMPLE_384,
                Derivation::Compat,
                "02",
                "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
            ),
        ];
        for (text, derivation, hash, digest) in cases {
            let configured = ConfiguredPsk::parse(text).unwrap();
            assert_eq!(configured.to_text().as_str(), text);
            let derive = |version| {
                configured
                    .derive(HOST, SUBSYSTEM, version, derivation)
                    .unwrap()
                    .unwrap()
            };
            assert_eq!(
                derive(PskVersion::V1).identity,
                format!("NVMe1R{hash} {HOST} {SUBSYSTEM} {digest}")
            );
            let version_0 = derive(PskVersion::V0);
            assert_eq!(
                version_0.identity,
                format!("NVMe0R{hash} {HOST} {SUBSYSTEM}")
            );
            assert_eq!(version_0.key.len(), configured.hash().len());
            assert_ne!(version_0.key, derive(PskVersion::V1).key);
        }
    }

    #[test]
    fn an_authentication_gives_both_sides_the_same_key() {
        // Computed apart from this code, as drivers/nvme/common/auth.c says (generate_psk, generate_digest,
        // derive_tls_psk).
        let cases = [
            (
                Hash::Sha256,
                "01",
                "K3ndPcPLysUXvRIxlUXISEIgqW/1/H0XvbiPweZir9o=",
                "31a075dafeb9443da40ced0425f0c8fbe4ad451c878a4077c79fb9672dfdb0aa",
            ),
            (
                Hash::Sha384,
                "02",
                "2Me8o2sQqFf+e3W7SuuXWAXLQAv5uBzIp+iztWEAKkW4JX6cGmnuXxY5l0ULXxXK",
                "c50521b45e346ca225b71da4ebc4b7f7d6a575184261956e88c9011e3f59b3fd930814e72cba8cbacfe813391c458dfc",
            ),
        ];
        for (hash, id, digest, key) in cases {
            let challenge = |from| (from..).take(hash.len()).collect::<Vec<u8>>();
            let concatenation = Concatenation {
                hash,
                shared: &[0x5a; 256],
                controller_challenge: &challenge(0),
                host_challenge: &challenge(100),
                host: HOST,
                subsystem: SUBSYSTEM,
            };
            let psk = concatenation.psk().unwrap();
            assert_eq!(
                psk.identity,
                format!("NVMe1G{id} {HOST} {SUBSYSTEM} {digest}")
            );
            let shown: String = psk.key.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((psk.hash, shown.as_str()), (hash, key));
        }
    }

    #[test]
    fn names_too_long_for_version_0_have_version_1_alone() {
        let configured = ConfiguredPsk::parse(EXAMPLE_256).unwrap();
        let derive = |name_bytes: usize, version| {
            let long = "n".repeat(name_bytes);
            configured.derive(HOST, &long, version, Derivation::Standard)
        };
        // The context of version 0 is its identity: both names, and ten bytes more.
        let longest = CONTEXT_BYTES_MAX - "NVMe0R01  ".len() - HOST.len();
        assert!(derive(longest, PskVersion::V0).unwrap().is_some());
        assert_eq!(derive(longest + 1, PskVersion::V0), Ok(None));
        assert!(derive(200, PskVersion::V1).unwrap().is_some());
    }

    #[test]
    fn a_key_that_does_not_fit_its_hash_is_refused_without_showing_it() {
        let of_384 = EXAMPLE_256.replace(":01:", ":02:");
        let error = ConfiguredPsk::parse(&of_384).unwrap_err().to_string();
        assert!(error.contains("32 bytes for hash 02"), "{error}");
        let secret = EXAMPLE_256.replace("NVMeTLSkey-1", "DHHC-1");
        let error = ConfiguredPsk::parse(&secret).unwrap_err().to_string();
        assert!(
            error.contains("NVMeTLSkey-1") && !error.contains("VRLb"),
            "{error}"
        );
        let shown = format!("{:?}", ConfiguredPsk::parse(EXAMPLE_256).unwrap());
        assert!(!shown.contains("85"), "{shown} shows bytes");
    }

    proptest! {
        #[test]
        fn every_key_reads_back(random in proptest::collection::vec(any::<u8>(), 64), sha384: bool) {
            let random: [u8; 64] = random.try_into().unwrap();
            let hash = if sha384 { Hash::Sha384 } else { Hash::Sha256 };
            let configured = ConfiguredPsk::from_random(hash, &random);
            prop_assert_eq!(ConfiguredPsk::parse(&configured.to_text()), Ok(configured));
        }
    }
}
