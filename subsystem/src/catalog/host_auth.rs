//! A host's keys, as the pool's settings store them. Only their owner can read a pool's files.

use fabric::serving::auth::HostSecrets;
use nvme::auth::{ConfiguredPsk, Group, Hash, Secret};
use serde::{Deserialize, Serialize};

use super::HostConfig;

/// TLS keys that a host may have: two or more for each cipher suite, to change from one to the next.
pub const TLS_KEYS_MAX: usize = 8;

/// How a host proves who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAuth {
    /// The host's secret: with it, the host has to authenticate.
    #[serde(default, with = "secret", skip_serializing_if = "Option::is_none")]
    pub dhchap_secret: Option<Secret>,
    /// Since when it has that secret, in seconds since 1970; `None`: it was stored by a version that did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_secret_since: Option<u64>,
    /// The controller's secret, for hosts that authenticate the controller too.
    #[serde(default, with = "secret", skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_secret: Option<Secret>,
    /// As [`HostAuth::dhchap_secret_since`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_secret_since: Option<u64>,
    /// Hashes to negotiate, the preferred one first; empty for all.
    #[serde(default, with = "hashes", skip_serializing_if = "Vec::is_empty")]
    pub dhchap_hashes: Vec<Hash>,
    /// The same of Diffie-Hellman groups.
    #[serde(default, with = "groups", skip_serializing_if = "Vec::is_empty")]
    pub dhchap_groups: Vec<Group>,
    /// Its TLS keys, the newest one last; [`TLS_KEYS_MAX`] at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_keys: Vec<TlsKey>,
    /// The number of the newest key, so that no number is used twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tls_keys_made: u32,
    /// The host must use TLS, except with the discovery subsystem and to have a TLS key made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tls_only: bool,
}

/// A key of TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsKey {
    /// Its number among the keys of its host.
    pub id: u32,
    /// The key.
    #[serde(with = "psk")]
    pub psk: ConfiguredPsk,
    /// For an identity of version 0 it is derived as nvme-cli did before its version 2.14
    /// ([`nvme::auth::Derivation::Compat`]). Identities of version 1 tell by themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compat: bool,
    /// As [`HostAuth::dhchap_secret_since`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl HostSecrets for HostConfig {
    fn secret(&self) -> Option<&Secret> {
        self.auth.dhchap_secret.as_ref()
    }

    fn controller_secret(&self) -> Option<&Secret> {
        self.auth.dhchap_ctrl_secret.as_ref()
    }

    fn hashes(&self) -> &[Hash] {
        &self.auth.dhchap_hashes
    }

    fn groups(&self) -> &[Group] {
        &self.auth.dhchap_groups
    }
}

mod secret {
    use nvme::auth::Secret;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(
        secret: &Option<Secret>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match secret {
            Some(secret) => serializer.serialize_some(secret.to_text().as_str()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Secret>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| Secret::parse(&text))
            .transpose()
            .map_err(D::Error::custom)
    }
}

mod psk {
    use nvme::auth::ConfiguredPsk;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(
        psk: &ConfiguredPsk,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&psk.to_text())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ConfiguredPsk, D::Error> {
        let text = String::deserialize(deserializer)?;
        ConfiguredPsk::parse(&text).map_err(D::Error::custom)
    }
}

/// Lists of things that have names.
macro_rules! names {
    ($module:ident, $kind:ty) => {
        mod $module {
            use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

            pub(super) fn serialize<S: Serializer>(
                list: &[$kind],
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(list.iter().map(|item| item.name()))
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Vec<$kind>, D::Error> {
                let names = Vec::<String>::deserialize(deserializer)?;
                let parse = |name: &String| {
                    <$kind>::from_name(name)
                        .ok_or_else(|| D::Error::custom(format!("'{name}' is not known")))
                };
                names.iter().map(parse).collect()
            }
        }
    };
}

names!(hashes, nvme::auth::Hash);
names!(groups, nvme::auth::Group);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_reads_back() {
        let auth = HostAuth {
            dhchap_secret: Some(Secret::from_random(Some(Hash::Sha384), &[1; 64])),
            dhchap_secret_since: Some(1_795_359_855),
            dhchap_ctrl_secret: Some(Secret::from_random(None, &[2; 64])),
            dhchap_ctrl_secret_since: None,
            dhchap_hashes: vec![Hash::Sha256],
            dhchap_groups: vec![Group::Ffdhe8192, Group::Null],
            tls_keys: vec![TlsKey {
                id: 3,
                psk: ConfiguredPsk::from_random(Hash::Sha384, &[3; 64]),
                compat: true,
                since: Some(1),
            }],
            tls_keys_made: 3,
            tls_only: true,
        };
        let text = serde_json::to_string(&auth).unwrap();
        assert_eq!(serde_json::from_str::<HostAuth>(&text).unwrap(), auth);
        assert_eq!(
            serde_json::from_str::<HostAuth>("{}").unwrap(),
            HostAuth::default()
        );
    }

    #[test]
    fn a_host_that_offers_an_exchange_gets_one_and_none_only_if_it_offers_nothing_else() {
        let of = |auth| HostConfig {
            nqn: "nqn.2026-11.test:host".parse().unwrap(),
            auth,
        };
        let auth = of(HostAuth::default());
        // The order in which Linux offers them.
        assert_eq!(auth.choose_hash(&[1, 2, 3]), Some(Hash::Sha512));
        assert_eq!(
            auth.choose_group(&[0, 1, 2, 3, 4, 5]),
            Some(Group::Ffdhe2048)
        );
        assert_eq!(auth.choose_group(&[0]), Some(Group::Null));
        assert_eq!(auth.choose_hash(&[9]), None);
        let strict = of(HostAuth {
            dhchap_groups: vec![Group::Ffdhe8192],
            ..HostAuth::default()
        });
        assert_eq!(strict.choose_group(&[0, 1]), None);
    }
}
