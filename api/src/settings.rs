//! Values that the API keeps in the pool, as JSON with a version.
//!
//! Guarantee: a value of another version is an error, never something else than it was.

use dedup::{Engine, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::server::{ApiState, on_control};

/// The form of the values.
const VERSION: u32 = 1;

/// A value as the pool stores it.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    version: u32,
    value: T,
}

/// The value of a setting, if it has one.
///
/// # Errors
/// It is of another version.
pub(crate) fn stored<T: DeserializeOwned>(
    engine: &Engine,
    key: &str,
) -> Result<Option<T>, Failure> {
    let Some(bytes) = engine.setting(key) else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice::<Stored<T>>(&bytes).ok();
    let parsed = parsed.filter(|stored| stored.version == VERSION);
    parsed.map(|stored| Some(stored.value)).ok_or_else(|| {
        let text = format!(
            "the pool's setting '{key}' cannot be understood: serve the pool with the version that wrote it"
        );
        Failure::new(ErrorKind::Corrupt, text)
    })
}

/// Changes the value of a setting, durably; `None` takes it away.
///
/// # Errors
/// The pool is read-only, or has no room for it.
pub(crate) async fn store<T: Serialize>(
    state: &ApiState,
    key: &str,
    value: Option<&T>,
) -> Result<(), Failure> {
    let bytes = |value| {
        let stored = Stored {
            version: VERSION,
            value,
        };
        serde_json::to_vec(&stored).map_err(|e| Failure::new(ErrorKind::Internal, e.to_string()))
    };
    let change = vec![(key.to_owned(), value.map(bytes).transpose()?)];
    let engine = state.engine.clone();
    on_control(state, move || async move {
        engine.change_settings(change).await
    })
    .await
}
