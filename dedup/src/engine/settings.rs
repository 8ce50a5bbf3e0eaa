//! Settings as the program changes them.
//!
//! Guarantees: what is changed together survives together, a loss of power too when the call has returned;
//! all of them are in memory, within [`SETTINGS_BYTES_MAX`].

use std::sync::Arc;

use meta::{Record, SETTING_CHANGES_BYTES_MAX, SETTING_VALUE_BYTES_MAX, SettingChanges};

use crate::log::append::commit;
use crate::log::flush::flush;
use crate::metadata::settings::SETTINGS_BYTES_MAX;
use crate::sync::wait::lock;
use crate::{Engine, EngineError, Result};

impl Engine {
    /// The value of a setting.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<Arc<[u8]>> {
        lock(&self.shared.state).settings.get(key)
    }

    /// All settings whose key begins with `prefix`, in the order of their keys.
    #[must_use]
    pub fn settings(&self, prefix: &str) -> Vec<(String, Arc<[u8]>)> {
        let state = lock(&self.shared.state);
        let settings = state.settings.with_prefix(prefix);
        settings
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// How many settings have a key that begins with `prefix`.
    #[must_use]
    pub fn settings_count(&self, prefix: &str) -> usize {
        let state = lock(&self.shared.state);
        state.settings.with_prefix(prefix).count()
    }

    /// Whether a change is on the pool's drives when it is acknowledged ([`EngineConfig::write_through`](crate::EngineConfig)).
    #[must_use]
    pub fn writes_through(&self) -> bool {
        self.shared.config.write_through
    }

    /// Changes settings, all or none of them: `None` removes one. If a key comes twice, the last counts.
    /// Durable when it returns.
    ///
    /// # Errors
    /// `Invalid` for a key that is not 1 to 512 bytes of printable ASCII, for a value above 64 KiB, for more
    /// than 256 KiB at once or [`SETTINGS_BYTES_MAX`] in all; `Unavailable` for a pool that is read-only.
    pub async fn change_settings(&self, changes: Vec<(String, Option<Vec<u8>>)>) -> Result<()> {
        let changes: SettingChanges = changes.into_iter().collect();
        check(&changes)?;
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        {
            let state = lock(&shared.state);
            state.check_writable()?;
            let bytes = state.settings.bytes_after(&changes);
            if bytes > SETTINGS_BYTES_MAX && bytes > state.settings.bytes() {
                return Err(EngineError::invalid(format!(
                    "the pool has room for {SETTINGS_BYTES_MAX} bytes of settings, this would make {bytes}: \
                     remove hosts, subsystems or others that are not used any more"
                )));
            }
        }
        commit(shared, Record::Settings(changes), None, None).await?;
        flush(shared).await
    }
}

fn check(changes: &SettingChanges) -> Result<()> {
    for (key, value) in changes {
        let short: String = key.chars().take(80).collect();
        if !meta::is_setting_key(key) {
            return Err(EngineError::invalid(format!(
                "`{}` cannot be the key of a setting: use 1 to 512 printable ASCII characters",
                short.escape_default()
            )));
        }
        let len = value.as_ref().map_or(0, Vec::len);
        if len > SETTING_VALUE_BYTES_MAX {
            return Err(EngineError::invalid(format!(
                "setting `{short}`: {len} bytes are more than {SETTING_VALUE_BYTES_MAX}"
            )));
        }
    }
    let record = Record::Settings(changes.clone());
    if record.encoded_len() > SETTING_CHANGES_BYTES_MAX {
        return Err(EngineError::invalid(format!(
            "settings of {} bytes cannot be changed together: {SETTING_CHANGES_BYTES_MAX} at most",
            record.encoded_len()
        )));
    }
    Ok(())
}
