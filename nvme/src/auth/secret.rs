//! Secrets of DH-HMAC-CHAP, as `nvme gen-dhchap-key` prints them: `DHHC-1:HH:BASE64:`.

use std::fmt;

use zeroize::Zeroizing;

use super::text::{self, TextError};
use super::{CryptoError, Hash};

const PREFIX: &str = "DHHC-1";

/// What is wrong with a secret. Says nothing of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Its form.
    #[error(
        "this is no DH-HMAC-CHAP secret: {0}; `nvme gen-dhchap-key` or `onefold host gen-dhchap-key` makes one"
    )]
    Text(TextError),
    /// An unknown hash.
    #[error(
        "this DH-HMAC-CHAP secret is for hash {0:02}, which does not exist; use one with 00, 01, 02 or 03"
    )]
    Hash(u8),
}

/// A secret that a host, or a controller, proves that it knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The hash by which the key is bound to its owner's name; none uses it as it is.
    transform: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// Parses the text form; white space around it is ignored.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let (hash, key) = text::parse(PREFIX, text.trim()).map_err(SecretError::Text)?;
        let transform = match hash {
            0 => None,
            id => Some(Hash::from_id(id).ok_or(SecretError::Hash(id))?),
        };
        Ok(Self { transform, key })
    }

    /// A new secret from random bytes, as many as the hash has (32 without one).
    #[must_use]
    pub fn from_random(transform: Option<Hash>, random: &[u8; 64]) -> Self {
        let bytes = transform.map_or(32, Hash::len);
        Self {
            transform,
            key: Zeroizing::new(random[..bytes].to_vec()),
        }
    }

    /// The text form. It is the secret: not for logs.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        text::format(PREFIX, self.transform.map_or(0, Hash::id), &self.key)
    }

    /// The hash by which it is bound to a name.
    #[must_use]
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// The key that its owner computes with: bound to the owner's name, unless the secret says to use it as
    /// it is.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn key_of(&self, owner: &str) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        match self.transform {
            None => Ok(self.key.clone()),
            Some(hash) => hash.hmac(&self.key, &[owner.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Made by `nvme gen-dhchap-key` of nvme-cli 2.3 (`--hmac=1 --nqn=...`, and `--hmac=0`).
    const OF_NVME_CLI: &str = "DHHC-1:01:vpgzxkS/CQmKUshSUy0pIXpspptwirK1IPMPWeAoJJLDedmC:";

    #[test]
    fn a_secret_of_nvme_cli_is_read_and_written_back_the_same() {
        let secret = Secret::parse(OF_NVME_CLI).unwrap();
        assert_eq!(secret.to_text().as_str(), OF_NVME_CLI);
        assert_eq!(secret.transform(), Some(Hash::Sha256));
        assert_eq!(
            Secret::parse(&format!(" {OF_NVME_CLI}\n")),
            Ok(secret),
            "a file ends with a newline"
        );
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_said_and_its_characters_are_not() {
        let whole = Secret::from_random(Some(Hash::Sha384), &[0xa5; 64]).to_text();
        let cases = [
            ("", "does not begin with `DHHC-1:`"),
            ("NVMeTLSkey-1:01:AAAA:", "does not begin"),
            ("DHHC-1:1:AAAA:", "two digits"),
            ("DHHC-1:04::", "not base64"),
            ("DHHC-1:00:AAAA", "does not end with"),
            ("DHHC-1:00:AA AA:", "not base64"),
            ("DHHC-1:00:AAAAAAAA:", "2 bytes; 32, 48 and 64"),
            (&whole.replace("DHHC-1:02", "DHHC-1:04"), "hash 04"),
            (&whole.replacen("paWl", "paWm", 1), "CRC-32 is wrong"),
        ];
        for (text, expected) in cases {
            let error = Secret::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("paWl"), "{error} shows the secret");
        }
        let secret = Secret::parse(&whole).unwrap();
        assert_eq!(
            format!("{secret:?}"),
            "Secret { transform: Some(Sha384), .. }"
        );
    }

    #[test]
    fn a_secret_with_a_hash_is_another_key_for_every_name() {
        let bound = Secret::from_random(Some(Hash::Sha256), &[7; 64]);
        let one = bound.key_of("nqn.2014-08.org.nvmexpress:uuid:1").unwrap();
        let other = bound.key_of("nqn.2014-08.org.nvmexpress:uuid:2").unwrap();
        assert_ne!(one, other);
        assert_eq!(one.len(), 32);
        let plain = Secret::from_random(None, &[7; 64]);
        assert_eq!(plain.key_of("any").unwrap().as_slice(), [7; 32]);
    }

    proptest! {
        #[test]
        fn every_secret_reads_back(random in proptest::collection::vec(any::<u8>(), 64), hash in 0u8..4) {
            let random: [u8; 64] = random.try_into().unwrap();
            let secret = Secret::from_random(Hash::from_id(hash), &random);
            prop_assert_eq!(Secret::parse(&secret.to_text()), Ok(secret));
        }

        #[test]
        fn any_text_is_a_secret_or_an_error(text in "(DHHC-1:0[0-4]:)?[A-Za-z0-9+/=: ]{0,120}:?") {
            if let Ok(secret) = Secret::parse(&text) {
                prop_assert_eq!(Secret::parse(&secret.to_text()), Ok(secret));
            }
        }
    }
}
