//! What a pool says of itself: by its engine, or, where another node serves it, by what that node made known.
//!
//! Guarantee: a description has all that hosts are shown of a pool, so a standby shows them what the node does that serves it:
//! the same names, identifiers and lists. It has no data, and its figures (space, wear) are not known.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedup::Engine;
use meta::VolumeInfo;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::errors::Failure;

/// The form of a description; another one is refused.
const VERSION: u32 = 1;

/// What can be asked of a pool without its data.
pub(crate) trait Describe {
    /// As [`Engine::volumes`].
    fn volumes(&self) -> Vec<VolumeInfo>;

    /// As [`Engine::snapshots`].
    fn snapshots(&self) -> Vec<VolumeInfo>;

    /// As [`Engine::setting`].
    fn setting(&self, key: &str) -> Option<Arc<[u8]>>;

    /// As [`Engine::settings`].
    fn settings(&self, prefix: &str) -> Vec<(String, Arc<[u8]>)>;
}

impl Describe for Engine {
    fn volumes(&self) -> Vec<VolumeInfo> {
        Self::volumes(self)
    }

    fn snapshots(&self) -> Vec<VolumeInfo> {
        Self::snapshots(self)
    }

    fn setting(&self, key: &str) -> Option<Arc<[u8]>> {
        Self::setting(self, key)
    }

    fn settings(&self, prefix: &str) -> Vec<(String, Arc<[u8]>)> {
        Self::settings(self, prefix)
    }
}

/// All that hosts are shown of a pool, as it was at some moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    version: u32,
    /// The pool.
    pub pool: Uuid,
    volumes: Vec<VolumeInfo>,
    snapshots: Vec<VolumeInfo>,
    /// Settings; all of those that hosts see anything of are JSON.
    settings: BTreeMap<String, String>,
}

impl Description {
    /// What the engine says of this pool now, with these settings.
    pub(crate) fn of(pool: Uuid, engine: &Engine, settings: BTreeMap<String, Vec<u8>>) -> Self {
        let settings = settings
            .into_iter()
            .filter_map(|(key, value)| Some((key, String::from_utf8(value).ok()?)));
        Self {
            version: VERSION,
            pool,
            volumes: engine.volumes(),
            snapshots: engine.snapshots(),
            settings: settings.collect(),
        }
    }

    /// That of a pool of which nothing is known.
    pub(crate) fn empty(pool: Uuid) -> Self {
        Self {
            version: VERSION,
            pool,
            volumes: Vec::new(),
            snapshots: Vec::new(),
            settings: BTreeMap::new(),
        }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// None that anybody knows.
    pub fn encode(&self) -> Result<Vec<u8>, Failure> {
        let encoded = serde_json::to_vec(self);
        encoded.map_err(|error| {
            let text = format!("a pool's description cannot be written: {error}");
            Failure::new(dedup::ErrorKind::Internal, text)
        })
    }

    /// The description that these bytes are.
    ///
    /// # Errors
    /// They are none, or one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let unreadable = |why: &dyn std::fmt::Display| {
            Failure::invalid(format!(
                "what the pool's owner says of the pool cannot be understood ({why}): run the same version on both nodes"
            ))
        };
        let described: Self = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
        match described.version {
            VERSION => Ok(described),
            other => Err(unreadable(&format_args!("it has version {other}"))),
        }
    }
}

impl Describe for Description {
    fn volumes(&self) -> Vec<VolumeInfo> {
        self.volumes.clone()
    }

    fn snapshots(&self) -> Vec<VolumeInfo> {
        self.snapshots.clone()
    }

    fn setting(&self, key: &str) -> Option<Arc<[u8]>> {
        self.settings.get(key).map(|value| value.as_bytes().into())
    }

    fn settings(&self, prefix: &str) -> Vec<(String, Arc<[u8]>)> {
        let from = self.settings.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.as_bytes().into()))
            .collect()
    }
}
