//! The features that hosts saved, in the pool's settings.
//!
//! Guarantees: a value belongs to the host that saved it and to the subsystem in which it did; a
//! pool stores the values of at most [`HOSTS_MAX`] hosts, so that nobody fills it by saving under new names.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use dedup::{Engine, EngineError, ErrorKind};
use nvme::Nqn;
use nvme::features::FeatureId;
use serde::{Deserialize, Serialize};

use crate::describe::Describe;
use crate::errors::Failure;

/// Hosts, counted in each subsystem, whose values are stored.
pub(crate) const HOSTS_MAX: usize = 1024;

/// What the keys of these settings begin with.
pub(crate) const PREFIX: &str = "feature/";

/// The form of the setting's value.
const VERSION: u32 = 1;

/// Values of features that are one dword; a feature that is not in there has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Values(BTreeMap<u8, u32>);

impl Values {
    pub(crate) fn of(&self, id: FeatureId) -> u32 {
        let value = self.0.get(&id.as_u8()).copied();
        value.unwrap_or_else(|| super::features::default_of(id))
    }

    pub(crate) fn set(&mut self, id: FeatureId, value: u32) {
        self.0.insert(id.as_u8(), value);
    }
}

/// A setting's value.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    version: u32,
    values: Values,
}

/// Names may have any printable characters, keys only ASCII; and `/` stands between two names.
fn key(subsystem: &Nqn, host: &Nqn) -> String {
    let mut key = PREFIX.to_owned();
    for (index, name) in [subsystem, host].into_iter().enumerate() {
        if index > 0 {
            key.push('/');
        }
        for byte in name.as_str().bytes() {
            match byte {
                b'%' | b'/' | 0x80.. => {
                    // Writing to a string cannot fail.
                    let _ = write!(key, "%{byte:02x}");
                }
                _ => key.push(char::from(byte)),
            }
        }
    }
    key
}

fn read(key: &str, value: &[u8]) -> Result<Values, Failure> {
    let document: Document = serde_json::from_slice(value).map_err(|error| {
        Failure::invalid(format!(
            "the pool's setting '{key}' (features that a host saved) cannot be read: {error}; \
             open the pool with the version of onefold that wrote it"
        ))
    })?;
    if document.version != VERSION {
        return Err(Failure::invalid(format!(
            "the pool's setting '{key}' has version {}, this program knows {VERSION}: \
             open the pool with the version of onefold that wrote it",
            document.version
        )));
    }
    Ok(document.values)
}

/// Checks all saved values, before hosts can connect.
///
/// # Errors
/// The first setting that cannot be read.
pub(crate) fn check(pool: &dyn Describe) -> Result<(), Failure> {
    for (key, value) in pool.settings(PREFIX) {
        read(&key, &value)?;
    }
    Ok(())
}

/// What a host saved in a subsystem.
pub(crate) fn of(pool: &dyn Describe, subsystem: &Nqn, host: &Nqn) -> Values {
    let key = key(subsystem, host);
    let Some(value) = pool.setting(&key) else {
        return Values::default();
    };
    read(&key, &value).unwrap_or_else(|failure| {
        // All of them were read at the start, and only this module writes them.
        tracing::error!(%failure, "saved features are not used");
        Values::default()
    })
}

/// Saves a value of a host in a subsystem, durably; gives all that the host has saved there. One at a time: each adds to
/// what the one before has saved.
///
/// # Errors
/// Feature Not Saveable: too many hosts have saved theirs. Whatever the engine says.
pub(crate) async fn save(
    engine: &Engine,
    (subsystem, host): (&Nqn, &Nqn),
    id: FeatureId,
    value: u32,
) -> Result<Values, SaveError> {
    let key = key(subsystem, host);
    if engine.setting(&key).is_none() && engine.settings_count(PREFIX) >= HOSTS_MAX {
        return Err(SaveError::TooManyHosts);
    }
    let mut values = of(engine, subsystem, host);
    values.set(id, value);
    let document = Document {
        version: VERSION,
        values: values.clone(),
    };
    let bytes = serde_json::to_vec(&document)
        .map_err(|e| EngineError::new(ErrorKind::Internal, format!("saved features: {e}")))?;
    engine.change_settings(vec![(key, Some(bytes))]).await?;
    Ok(values)
}

/// Why a value is not saved.
#[derive(Debug)]
pub(crate) enum SaveError {
    /// As many hosts as may have saved theirs.
    TooManyHosts,
    /// The pool does not take it.
    Engine(EngineError),
}

impl From<EngineError> for SaveError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(text: &str) -> Nqn {
        text.parse().expect("a name")
    }

    #[test]
    fn names_that_look_alike_have_keys_of_their_own() {
        let keys = [
            key(&nqn("nqn.a/nqn.b"), &nqn("nqn.c")),
            key(&nqn("nqn.a"), &nqn("nqn.b/nqn.c")),
            key(&nqn("nqn.a%2fnqn.b"), &nqn("nqn.c")),
            key(&nqn("nqn.\u{e9}"), &nqn("nqn.c")),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(key.is_ascii(), "{key}");
            assert!(!keys[..index].contains(key), "{key}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for value in [&b"{"[..], br#"{"version":2,"values":{}}"#] {
            let failure = read("feature/x", value).expect_err("unreadable");
            assert!(failure.message.contains("feature/x"), "{failure}");
        }
        let values = read("feature/x", br#"{"version":1,"values":{"6":0},"later":1}"#);
        let values = values.expect("readable");
        assert_eq!(values.of(FeatureId::VolatileWriteCache), 0);
        assert_eq!(values.of(FeatureId::TemperatureThreshold), 0xffff);
    }
}
