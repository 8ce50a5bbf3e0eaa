//! Settings in memory: small named values that are kept with the pool for whoever serves it.

use std::collections::BTreeMap;
use std::sync::Arc;

use meta::SettingChanges;

/// All settings of a pool at most, in bytes of keys and values.
pub const SETTINGS_BYTES_MAX: usize = 16 << 20;

/// All settings, as the records so far have made them.
#[derive(Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, Arc<[u8]>>,
    /// Of keys and values.
    bytes: usize,
}

impl Settings {
    pub(crate) fn new(values: BTreeMap<String, Vec<u8>>) -> Self {
        let mut settings = Self::default();
        settings.install(
            &values
                .into_iter()
                .map(|(key, value)| (key, Some(value)))
                .collect(),
        );
        settings
    }

    /// Makes a record's changes.
    pub(crate) fn install(&mut self, changes: &SettingChanges) {
        for (key, value) in changes {
            if let Some(before) = self.values.remove(key) {
                self.bytes -= key.len() + before.len();
            }
            if let Some(value) = value {
                self.bytes += key.len() + value.len();
                self.values.insert(key.clone(), value.as_slice().into());
            }
        }
    }

    /// The value of a setting.
    pub(crate) fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.values.get(key).cloned()
    }

    /// Settings whose key begins with `prefix`, in the order of their keys.
    pub(crate) fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a Arc<[u8]>)> {
        let from = self.values.range(prefix.to_owned()..);
        from.take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of keys and values after these changes.
    pub(crate) fn bytes_after(&self, changes: &SettingChanges) -> usize {
        let mut bytes = self.bytes;
        for (key, value) in changes {
            bytes -= self
                .values
                .get(key)
                .map_or(0, |before| key.len() + before.len());
            bytes += value.as_ref().map_or(0, |value| key.len() + value.len());
        }
        bytes
    }
}
