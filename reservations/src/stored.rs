//! Reservations as bytes: a JSON object with a version.
//!
//! Guarantee: what cannot be understood, or contradicts itself, is told, and never taken for no reservation.

use serde::{Deserialize, Serialize};

use crate::Reservations;

/// The version of the stored form.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    reservations: Reservations,
}

/// Why bytes are no reservations, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStored(String);

impl std::fmt::Display for NotStored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotStored {}

impl Reservations {
    /// The bytes to store.
    ///
    /// # Errors
    /// A mistake of this program.
    pub fn to_bytes(&self) -> Result<Vec<u8>, NotStored> {
        let stored = Stored {
            version: VERSION,
            reservations: self.clone(),
        };
        serde_json::to_vec(&stored).map_err(|error| NotStored(error.to_string()))
    }

    /// What was stored.
    ///
    /// # Errors
    /// It cannot be understood, is of another version, or contradicts itself.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotStored> {
        let stored: Stored =
            serde_json::from_slice(bytes).map_err(|error| NotStored(error.to_string()))?;
        if stored.version != VERSION {
            return Err(NotStored(format!("version {}", stored.version)));
        }
        match stored.reservations.is_sound() {
            true => Ok(stored.reservations),
            false => Err(NotStored("its parts contradict each other".to_owned())),
        }
    }
}
