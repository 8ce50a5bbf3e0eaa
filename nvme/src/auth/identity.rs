//! What a host calls the key of a TLS handshake on NVMe/TCP: `NVMe0R01 HOST SUBSYSTEM`, or with version 1
//! `NVMe1R01 HOST SUBSYSTEM DIGEST` (TCP transport 1.0, section 3.6.1.3). `G` in the place of `R` names a key
//! that an authentication made (secure concatenation).

use std::fmt;

use super::{Hash, PskVersion};
use crate::Nqn;

/// The longest identity: two names, the longest digest in base64, and what is around them.
pub const IDENTITY_BYTES_MAX: usize = 2 * crate::nqn::NQN_MAX_BYTES + 88 + 11;

/// Bytes of `NVMe0R01`.
const KIND_BYTES: usize = 8;

/// An identity, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PskIdentity {
    /// Its version.
    pub version: PskVersion,
    /// The key comes from an authentication; any other was configured.
    pub generated: bool,
    /// The hash of the cipher suite that the key is for: SHA-256 or SHA-384.
    pub hash: Hash,
    /// The host.
    pub host: Nqn,
    /// The subsystem that the host wants.
    pub subsystem: Nqn,
    /// The digest of the key, in base64; with version 1 only.
    pub digest: Option<String>,
}

impl PskIdentity {
    /// Takes it apart; `None` if it is malformed. Names are checked, the digest is not.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > IDENTITY_BYTES_MAX {
            return None;
        }
        let mut parts = text.split(' ');
        let kind: &[u8; KIND_BYTES] = parts.next()?.as_bytes().try_into().ok()?;
        let (version, generated, hash) = match kind {
            [b'N', b'V', b'M', b'e', version, kind, b'0', hash] => (version, kind, hash),
            _ => return None,
        };
        let identity = Self {
            version: match version {
                b'0' => PskVersion::V0,
                b'1' => PskVersion::V1,
                _ => return None,
            },
            generated: match generated {
                b'R' => false,
                b'G' => true,
                _ => return None,
            },
            hash: match hash {
                b'1' => Hash::Sha256,
                b'2' => Hash::Sha384,
                _ => return None,
            },
            host: Nqn::new(parts.next()?).ok()?,
            subsystem: Nqn::new(parts.next()?).ok()?,
            digest: parts.next().map(str::to_owned),
        };
        let is_whole = parts.next().is_none()
            && identity.digest.is_some() == (identity.version == PskVersion::V1);
        is_whole.then_some(identity)
    }
}

impl fmt::Display for PskIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.version {
            PskVersion::V0 => 0,
            PskVersion::V1 => 1,
        };
        let kind = if self.generated { 'G' } else { 'R' };
        let (id, host, subsystem) = (self.hash.id(), &self.host, &self.subsystem);
        write!(f, "NVMe{version}{kind}{id:02} {host} {subsystem}")?;
        match &self.digest {
            Some(digest) => write!(f, " {digest}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{ConfiguredPsk, Derivation};
    use super::*;

    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";

    #[test]
    fn the_identities_that_hosts_derive_are_understood() {
        for (hash, version) in [
            (Hash::Sha256, PskVersion::V0),
            (Hash::Sha384, PskVersion::V0),
            (Hash::Sha256, PskVersion::V1),
            (Hash::Sha384, PskVersion::V1),
        ] {
            let psk = ConfiguredPsk::from_random(hash, &[7; 64])
                .derive(HOST, SUBSYSTEM, version, Derivation::Standard)
                .unwrap()
                .unwrap();
            let identity = PskIdentity::parse(&psk.identity).unwrap();
            assert_eq!((identity.version, identity.hash), (version, hash));
            assert_eq!(identity.host.as_str(), HOST);
            assert_eq!(identity.subsystem.as_str(), SUBSYSTEM);
            assert_eq!(identity.digest.is_some(), version == PskVersion::V1);
            assert!(!identity.generated);
        }
        let generated = PskIdentity::parse("NVMe1G02 nqn.h nqn.s Zm9v").unwrap();
        assert!(generated.generated);
    }

    #[test]
    fn what_names_no_key_is_none() {
        for text in [
            "",
            "NVMe0R01",
            "NVMe0R01 nqn.h",
            "NVMe0R01 nqn.h nqn.s digest",
            "NVMe1R01 nqn.h nqn.s",
            "NVMe1R01 nqn.h nqn.s digest more",
            "NVMe2R01 nqn.h nqn.s",
            "NVMe0X01 nqn.h nqn.s",
            "NVMe0R03 nqn.h nqn.s",
            "NVMe0R11 nqn.h nqn.s",
            "NVMe0R01  nqn.h nqn.s",
            "NVMe0R01 host nqn.s",
            "nvme0R01 nqn.h nqn.s",
        ] {
            assert_eq!(PskIdentity::parse(text), None, "{text}");
        }
        let mut long = "NVMe1R01 nqn.h nqn.s ".to_owned();
        long.push_str(&"d".repeat(IDENTITY_BYTES_MAX - long.len()));
        assert!(PskIdentity::parse(&long).is_some());
        long.push('d');
        assert_eq!(PskIdentity::parse(&long), None);
    }

    proptest! {
        #[test]
        fn any_text_is_an_identity_or_none(text in "(NVMe[01][RG]0[12] )?[ -~]{0,64}( [!-~]{1,40}){0,3}") {
            if let Some(identity) = PskIdentity::parse(&text) {
                prop_assert_eq!(identity.to_string(), text);
            }
        }
    }
}
